# From src/penstock/client/_async/admin.py by tools/unasync.py; do not edit.
"""Administration of a queue: move and remove jobs, change settings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.client._sync.route.interfaces import Route
from penstock.client._sync.route.part import AskPart, Part
from penstock.client._sync.settling import BuildCall
from penstock.client.clock import monotonic
from penstock.core.calls.call import Call
from penstock.core.calls.operations import QueueOps
from penstock.core.calls.operations.managing import purge_parts
from penstock.core.calls.settings import KEEP, setting_fields
from penstock.core.jobs.hints import Intent
from penstock.core.jobs.job import Delivery, JobName
from penstock.core.jobs.middleware import Middleware
from penstock.core.jobs.outcomes import SIGNALLED_OF_OUTCOME, Outcome, Settled, Signalled
from penstock.core.jobs.queue_stats import Settings
from penstock.core.jobs.record import key_hash
from penstock.core.jobs.results import encoded_value
from penstock.core.values.checks import (
    BATCH,
    LONGEST_HOLD_MS,
    Duration,
    PauseSide,
    PurgeState,
    check_choice,
    check_count,
    check_flag,
    check_label,
    check_party,
    duration_ms,
)
from penstock.errors import (
    BadArgument,
    NodesMissed,
    OutcomeUnknown,
    StepNotKept,
)
from penstock.wire.codes import Code

if TYPE_CHECKING:
    pass

T = TypeVar("T")


def ask_all(queue: QueueAdmin, ask: AskPart[T]) -> list[T]:
    """Ask every part of a queue; return the answers.

    Raises:
        NodesMissed: some nodes did not answer.
    """
    answers, missed = queue.route.refresh().ask_parts(ask)
    if missed:
        raise NodesMissed(missed, answers)
    return answers


class QueueAdmin:
    """The name and the way of a queue, and the methods that move and remove jobs, or set it.

    Args:
        name: any non-empty text.
        partitions: their number; None = the queue has none.
        middleware: the hooks around each enqueue.

    Attributes:
        route: the way of the calls to the parts of the queue. The client sets it, and sets another
            one when it joins other nodes.
        partitions, middleware: the arguments.
    """

    partitions: int | None = None
    """Number of partitions; None = the queue has none."""
    job_type: type[Delivery] = Delivery
    """The class of its jobs."""
    route: Route

    def __init__(
        self, name: str, partitions: int | None = None, middleware: Sequence[Middleware] = ()
    ) -> None:
        self._name = name
        self.partitions = partitions
        self.middleware = middleware

    @property
    def name(self) -> str:
        """Name of the queue."""
        return self._name

    @property
    def ops(self) -> QueueOps:
        """Internal: the operations of the queue, for workers, Spark and the command line."""
        return self.route.ops

    def _settle(self, jobs: Iterable[JobName], build: BuildCall, **how: Any) -> Settled:
        route = self.route
        if monotonic() >= route.topology.look_at:
            route = route.refresh()
        return route.settle(jobs, build, **how)

    # -- moving ----------------------------------------------------------------------------

    def redrive(self, jobs: Iterable[JobName] | None = None, *, limit: int | None = None) -> int:
        """Bring dead letters back, to the place of their creation time. Attempts start at 0 again.

        Args:
            jobs: the dead letters; None = the oldest ones.
            limit: most dead letters to bring back if `jobs` is None; None = all.

        Returns:
            Number of jobs brought back. A job whose ttl has ended stays dead.
        """
        most = check_count("limit", limit) if limit is not None else 1 << 53
        if jobs is not None:
            return self._settle(jobs, QueueOps.redrive, resent_code=Code.REFUSED).done
        total = 0

        def redrive_oldest(part: Part) -> None:
            nonlocal total
            total += part.redrive(most - total)

        ask_all(self, redrive_oldest)
        return total

    def promote(self, jobs: Iterable[JobName]) -> Settled:
        """Make jobs ready at once, at the place of their creation time.

        A delayed job, or one in backoff, no longer waits. The delivery of an active job ends, and
        its holder's receipt is void. While the queue is paused, jobs wait for the end of the pause.

        Args:
            jobs: deliveries, or ids.

        Returns:
            An outcome for each, in order: done, gone, expired, or refused (already ready; parked;
            dead, see `redrive`; or delivered at most once).
        """
        return self._settle(jobs, QueueOps.promote, resent_code=Code.REFUSED)

    def postpone(self, jobs: Iterable[JobName]) -> Settled:
        """Set ready jobs aside for the length of their lease; then they come back.

        Args:
            jobs: deliveries, or ids, of jobs that could be reserved now.

        Returns:
            An outcome for each, in order: done, gone, expired, or refused (not due, parked,
            leased, dead, or delivered at most once, which has no lease).
        """
        return self._settle(jobs, QueueOps.dequeue, resent_code=Code.REFUSED)

    # -- removing --------------------------------------------------------------------------

    def delete(self, jobs: Iterable[JobName], *, if_undelivered: bool = False) -> Settled:
        """Remove jobs in any state. Deliveries of these jobs end.

        Args:
            jobs: deliveries, or ids.
            if_undelivered: remove only jobs that were never delivered.

        Returns:
            An outcome for each, in order: done, gone, or with `if_undelivered` refused (delivered
            before, or dead).
        """
        check_flag("if_undelivered", if_undelivered)
        build = QueueOps.withdraw if if_undelivered else QueueOps.delete
        intent = None if if_undelivered else Intent("delete")
        return self._settle(jobs, build, resent_code=Code.GONE, intent=intent)

    def cancel(self, jobs: Iterable[JobName]) -> Settled:
        """Cancel jobs. Waiting ones are removed at once.

        An active job is marked. Its worker learns of it within a second, ends the handler and the
        job. If the handler finishes first, its ack wins; a failure, a release or the end of the
        lease ends a marked job, too. The job keeps its dedup id as long as the handler runs.

        Args:
            jobs: deliveries, or ids.

        Returns:
            An outcome for each, in order: done (removed), cancelled (active: marked), gone, or
            refused (dead, or delivered at most once).

        Raises:
            BadArgument, BadJobId: nothing was done.
        """
        return self._settle(jobs, QueueOps.cancel, resent_code=Code.GONE)

    def signal(self, job: JobName, name: str, value: object = None) -> Signalled:
        """Give a job the value that its step `steps.wait(name)` returns, now or later.

        A job that waits for it becomes ready, at the place of its creation time. One that does not
        yet keeps the signal until its wait. The first outcome of a name stays.

        Args:
            job: a delivery, or an id.
            name: of the wait: printable text of 1 to 200 bytes.
            value: written as JSON; at most 64 KiB, or `result_size` if that is more.

        Returns:
            "taken", which alone is true; "there already": an earlier signal, or the timeout of the
            wait, is its outcome; "gone"; or "at most once": a job with lease 0 can't wait.

        Raises:
            BadArgument: the name or the value can't be used, or the signals of the job would have
                more than 256 KiB, or all its notes more than 1 MiB; nothing was done.
            BadJobId: the id is malformed, or of another queue or node; nothing was done.
            WrongEpoch: it is of an earlier queue of this name; nothing was done.
            OutcomeUnknown: the reply was lost, and the repeated call finds the job gone: it may
                have ended before the signal, or with it.

        Examples:
            >>> added = q.enqueue({"euros": 300})
            >>> print(q.signal(added.id, "approval", {"by": "ada"}))
            taken
            >>> print(q.signal(added.id, "approval", {"by": "eve"}))
            there already

        Section of the protocol: protocol/steps.md.
        """
        check_party("name", name)
        try:
            raw = encoded_value(value)
        except BadArgument as error:
            raise BadArgument("value", value, error.reason) from error
        calls: list[Call[Settled]] = []

        def build(ops: QueueOps, names: list[JobName]) -> Call[Settled]:
            calls.append(ops.signal(names, name, raw))
            return calls[-1]

        try:
            [outcome] = self._settle([job], build)
        except StepNotKept as error:
            raise BadArgument("value", f"<{len(raw)} bytes>", f"can't be kept: {error}") from None
        if outcome is Outcome.GONE and any(call.resent for call in calls):
            raise OutcomeUnknown(
                f"signal {name!r}: the reply was lost, and now the job is gone: it may have ended"
                " before the signal, or with it"
            )
        return SIGNALLED_OF_OUTCOME[outcome]

    def purge(self, *states: PurgeState) -> int:
        """Remove the jobs that exist now, in bounded steps. Jobs that are added meanwhile stay.

        A purge of ready jobs also forgets earlier staged writes of Spark: if one is repeated, its
        jobs are added again. So does `clear`.

        Args:
            states: ready, scheduled, parked (these by default), active, dead; or dependent: jobs
                that wait for other jobs (callbacks, successors), which "scheduled" leaves. Purging
                ready jobs also removes jobs that the purge itself makes ready.

        Returns:
            Number of jobs removed. A crash midway leaves the rest as it was.
        """
        names = purge_parts(states)
        return sum(ask_all(self, lambda part: part.purge(names)))

    def sweep(self, *, evict: int = 0, dead: bool = True) -> int:
        """Remove jobs past their ttl and dead letters past their bounds, to free their memory.

        A queue without jobs, settings, schedules and open windows is removed ten minutes after
        its last write; its counters are removed with it. Clients that wait for jobs sweep about
        once a minute.

        Args:
            evict: make room on a full server: also remove up to this many jobs, at most 1000, that
                are never delivered again. Delivered jobs with lease 0 are removed first, nearest
                end of ttl first; then dead letters, the oldest first. `stats().evicted` counts
                them.
            dead: whether dead letters may be evicted, too.

        Returns:
            Number of jobs removed.
        """
        check_count("evict", evict, low=0, high=BATCH)
        check_flag("dead", dead)
        return sum(ask_all(self, lambda part: part.sweep(evict, dead=dead)))

    def clear(self) -> int:
        """Remove the queue and all its contents: jobs in every state, settings, a pause.

        Returns:
            Number of jobs removed.
        """
        return self.route.refresh().clear()[1]

    # -- settings --------------------------------------------------------------------------

    def configure(
        self,
        *,
        lease: Duration | None = KEEP,
        max_length: int | None = KEEP,
        max_attempts: int | None = KEEP,
        max_crashes: int | None = KEEP,
        max_releases: int | None = KEEP,
        max_snoozes: int | None = KEEP,
        replicas: int | None = KEEP,
        backoff_base: Duration | None = KEEP,
        backoff_cap: Duration | None = KEEP,
        unknown_age: Duration | None = KEEP,
        dead_max: int | None = KEEP,
        dead_age: Duration | None = KEEP,
        results_max: int | None = KEEP,
        results_bytes: int | None = KEEP,
        result_size: int | None = KEEP,
        result_ttl: Duration | None = KEEP,
        rate: str | None = KEEP,
        burst: int | None = KEEP,
        per_key: int | None = KEEP,
        share: int | None = KEEP,
        ordered: bool | None = KEEP,
        key_rate: str | None = KEEP,
        key_burst: int | None = KEEP,
        max_active: int | None = KEEP,
        history: bool | None = KEEP,
        longest_wait: Duration | None = KEEP,
    ) -> Settings:
        """Store settings on the queue, for all its clients. Settings not given stay as they are.

        Args:
            lease, max_length, max_attempts, max_crashes, max_releases, max_snoozes, replicas,
                backoff_base, backoff_cap, unknown_age, dead_max, dead_age, results_max,
                results_bytes, result_size, result_ttl, rate, burst, per_key, share, ordered,
                key_rate, key_burst, max_active, history, longest_wait: as in `Settings`; None =
                back to the default.

        Returns:
            All settings as they are now.

        Examples:
            >>> (q.configure(lease=60)).lease
            60.0
        """
        settings = locals()
        return self._configure(setting_fields(settings, self.partitions))

    def _configure(self, fields: list[Any]) -> Settings:
        return ask_all(self, lambda part: part.configure(fields))[0]

    def pause(self, side: PauseSide = "out") -> None:
        """Stop deliveries, or another side of the queue. The pause survives a restart.

        Jobs whose handlers run are finished. Workers give back those that they have not begun,
        about a second after the pause. A paused empty queue is kept.

        Args:
            side: "out" = nothing is delivered, and producers go on; "in" = producers are refused,
                and retries, due jobs and ended leases wait; "all" = both. It replaces an earlier
                pause.
        """
        self._configure(["paused", check_choice("side", side, PauseSide)])

    def resume(self) -> None:
        """End a pause and wake waiting calls."""
        self._configure(["paused", ""])

    def hold(self, seconds: Duration, *, key: str | None = None) -> bool:
        """Deliver nothing for a time. It ends by itself; of two holds the later end counts.

        Handlers that run go on. A hold is no setting: a queue that does not exist has none. A hold
        of the queue and holds of its keys do not change each other (docs/keys.md, Holds).

        Args:
            seconds: at most a day; 0 = end the hold.
            key: hold only the jobs that were enqueued with this key; None = the queue.

        Returns:
            True if the queue exists.

        Raises:
            BadArgument: a longer time, or no key.
            NodesMissed: some nodes did not answer; the others are held.

        Examples:
            >>> job = q.enqueue("ping")
            >>> q.hold(60)
            True
            >>> len(q.reserve(block=0)), (q.stats()).ready
            (0, 1)
        """
        span_ms = duration_ms("seconds", seconds)
        if span_ms > LONGEST_HOLD_MS:
            raise BadArgument("seconds", seconds, "must be at most a day")
        hashed = "" if key is None else key_hash(check_label("key", key))
        return any(ask_all(self, lambda part: part.hold(span_ms, hashed)))

    def close(self) -> None:
        """Refuse producers from now on. Consumers finish the jobs that the queue has.

        Calls that wait for room end at once. When no job is left to deliver, `reserve` raises
        `QueueClosed` and `consume` ends. Accepted jobs are processed as before, with delays,
        retries, leases and redrives. The closure survives a restart, and a closed empty queue is
        kept, until `reopen` or `clear`.
        """
        self._configure(["closed", "1"])

    def reopen(self) -> None:
        """Take jobs again after a `close`."""
        self._configure(["closed", ""])
