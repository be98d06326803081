# Generated from src/penstock/_async/queue.py by tools/unasync.py; do not edit.
"""The queue: every public operation, each a line or two over `core`."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from penstock._sync.connection import monotonic
from penstock._sync.job import Job
from penstock.core import flows
from penstock.core.bulk import chunks, prepared
from penstock.core.job import (
    OUTCOMES,
    BulkEnqueued,
    Delivery,
    Enqueued,
    JobView,
    Outcome,
    QueueStats,
    Settings,
    Settled,
)
from penstock.core.operations import ENDED, GONE, REFUSED, QueueOps, check_state, purge_parts
from penstock.core.options import (
    BATCH,
    Duration,
    Moment,
    check_block,
    check_count,
    check_text,
    duration_ms,
    lease_ms,
)
from penstock.core.record import check_size, encode_body
from penstock.core.settings import KEEP, setting_fields
from penstock.errors import BadArgument, IncompleteEnqueue, NotReplicated
from penstock.wire.keys import QueueKeys

if TYPE_CHECKING:
    from penstock._sync.client import Penstock

Named = Delivery | str
"""A job is named by its delivery, which proves who holds it, or by its id alone."""
IDLE_MS = 900_000

logger = logging.getLogger("penstock")


class Queue:
    """One queue. Made by `Penstock.queue`; it exists on the server from its first use.

    Args:
        client: whose connections it uses.
        name: any non-empty text.
    """

    def __init__(self, client: Penstock, name: str) -> None:
        self._client = client
        self._driver = client._driver
        self._node = client._node
        keys = QueueKeys(name, client.prefix)
        self.ops = QueueOps(keys, client.owner, self._node.known, self, Job)

    @property
    def name(self) -> str:
        """The queue's name."""
        return self.ops.name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    # -- producing -------------------------------------------------------------------------

    def enqueue(
        self,
        body: Any,
        *,
        delay: Duration = 0,
        at: Moment | None = None,
        lease: Duration | None = None,
        ttl: Duration | None = None,
        headers: Mapping[str, str] | None = None,
        max_length: int | None = None,
        block: Duration | None = 0,
        replicas: int = 0,
    ) -> Enqueued:
        """Add one job: it waits in `ready`, or in `scheduled` until its time comes.

        A call whose reply is lost is repeated with the same number, so the job is added once
        (PROTOCOL.md, Repeats).

        Args:
            body: bytes pass untouched; anything else must be expressible in JSON.
            delay: seconds from now before which it is not delivered.
            at: seconds since 1970 or an aware datetime, instead of a delay; the past = now.
            lease: seconds, up to 24 days; None = the queue's (30); 0 = deliver at most once.
            ttl: seconds after which it is not delivered any more; None = never (lease 0: a day).
            headers: names and values carried with the job.
            max_length: refuse if more jobs than this would wait; beside the queue's own bound.
            block: seconds to wait for room in a full queue; 0 = refuse at once, None = for ever.
            replicas: replicas that must confirm.

        Returns:
            The job's id and state.

        Raises:
            BadArgument: an argument can't be used.
            QueueFull, QueuePaused: the job was not added.
            OutOfMemory: the server is at maxmemory; the job was not added.
            NotReplicated: replicas were asked for and there are none.
        """
        options = prepared(delay, at, lease, ttl, headers, max_length, block)
        if replicas:
            self._check_replicas(replicas)
        raw, is_json = encode_body(body)
        record = (options.json_head if is_json else options.head) + raw
        if len(record) > 1_000_000:
            check_size(len(record))
        if not self._node.id:
            self._client.connect()
        ops = self.ops
        reply: list[Any] | None = None
        if options.block == 0:
            reply, _ = self._node.run(
                ops.enqueue((record,), delay=options.delay, bound=options.bound)
            )
        if reply is None or reply[0] != 1:
            reply = self._enqueue_flow((record,), options, partial=False)
        place = ops.place(self._node.id, reply[4])
        return Enqueued(ops.id_of(place, reply[2], options.ttl_code), ops.state_of(reply))

    def enqueue_many(
        self,
        bodies: Iterable[Any],
        *,
        delay: Duration = 0,
        at: Moment | None = None,
        lease: Duration | None = None,
        ttl: Duration | None = None,
        headers: Mapping[str, str] | None = None,
        max_length: int | None = None,
        block: Duration | None = 0,
        replicas: int = 0,
    ) -> BulkEnqueued:
        """Add many jobs in chunks of up to 1,000 or 1 MiB: one trip a chunk, each all or nothing.

        Args:
            bodies: any iterable, also a generator; read as the chunks go out.
            delay, at, lease, ttl, headers, max_length, block, replicas: as in `enqueue`, for every
                job. With `block`, jobs go in as room appears.

        Returns:
            The results in the order of the bodies; ids are built when looked at.

        Raises:
            IncompleteEnqueue: a chunk failed after others were accepted; `results` holds those, the
                cause is the error.
            As `enqueue`: nothing was accepted.
        """
        options = prepared(delay, at, lease, ttl, headers, max_length, block)
        if replicas:
            self._check_replicas(replicas)
        results = BulkEnqueued(options.ttl_code)
        try:
            for chunk in chunks(bodies, options):
                if not self._node.id:
                    self._client.connect()
                self._add_chunk(chunk, options, results)
        except Exception as error:
            if len(results):
                raise IncompleteEnqueue(results) from error
            raise
        return results

    def _add_chunk(self, chunk: list[bytes], options: Any, results: BulkEnqueued) -> None:
        while chunk:
            reply: list[Any] | None = None
            if options.block == 0:
                call = self.ops.enqueue(chunk, delay=options.delay, bound=options.bound)
                reply, _ = self._node.run(call)
            if reply is None or reply[0] != 1:
                reply = self._enqueue_flow(chunk, options, partial=options.block != 0)
            place = self.ops.place(self._node.id, reply[4])
            results.add(reply[2], reply[3], place, self.ops.state_of(reply))
            chunk = chunk[reply[3] :]

    def _enqueue_flow(self, records: Sequence[bytes], options: Any, *, partial: bool) -> list[Any]:
        flow = flows.enqueue(
            self.ops,
            records,
            delay=options.delay,
            bound=options.bound,
            block=options.block,
            partial=partial,
            clock=monotonic,
        )
        reply: list[Any] = self._driver.drive(flow)
        return reply

    def _check_replicas(self, replicas: int) -> None:
        check_count("replicas", replicas, low=0, high=1000)
        raise NotReplicated(replicas, 0, "this client does not wait for replicas yet")

    # -- consuming -------------------------------------------------------------------------

    def reserve(self, n: int = 1, *, block: Duration | None = 5) -> list[Job]:
        """Take up to n jobs under a lease; nothing leaves the server before it is acknowledged.

        Ended leases come first, then what has been due or waiting longest. About 1 MiB of bodies is
        taken a call, at least one job.

        Args:
            n: at least 1.
            block: seconds to wait until there is a job; 0 = not at all, None = for ever.

        Returns:
            The jobs in order; empty if there was none in time.
        """
        return self._client.reserve([self], n, block=block)

    def consume(self, *, batch: int = 1, block: Duration | None = None) -> Iterator[Job]:
        """Reserve jobs and hand them out one after the other.

        A job that its `with` block has finished is acknowledged as soon as the loop comes back or
        is left: the last of a batch together with the next reserve, in one trip. Calls on the job
        itself (`job.ack()` and its like) are sent as they are made.

        Args:
            batch: how many are reserved at once; their leases run while they wait for their turn.
            block: seconds without a job after which the loop ends; None = never.
        """
        check_count("batch", batch, high=BATCH)
        done: list[Job] = []
        try:
            jobs = self.reserve(batch, block=block)
            while jobs or block is None:
                for job in jobs:
                    if done:  # the next one may take long, and this one's lease runs
                        self._report(done, self.ack(done))
                    job.batch.deferred = done
                    yield job
                if done:
                    outcomes, jobs = self.settle(done, batch, block=block)
                    self._report(done, outcomes)
                else:
                    jobs = self.reserve(batch, block=block)
        finally:
            if done:
                self._report(done, self.ack(done))

    def _report(self, done: list[Job], outcomes: Settled) -> None:
        """Forget what was acknowledged, and log what was not: its lease had ended."""
        if not outcomes:
            for job_id in outcomes.ids(Outcome.STALE, Outcome.ENDED):
                logger.warning("%s was done after its lease had ended; it may run again", job_id)
        done.clear()

    # -- settling --------------------------------------------------------------------------

    def ack(self, jobs: Iterable[Named]) -> Settled:
        """Finish jobs: they are done and forgotten. By id alone a waiting job is finished too.

        Args:
            jobs: deliveries, or ids.

        Returns:
            An outcome for each, in order: done, gone, stale, ended or refused (a dead letter).

        Raises:
            BadJobId: an id is malformed, of another queue, node or epoch; nothing was done.
        """
        return self._each(jobs, self.ops.ack, resent_code=GONE)

    def settle(
        self, done: Iterable[Named], n: int, *, block: Duration | None = 0
    ) -> tuple[Settled, list[Job]]:
        """Finish jobs and take up to n more in one trip.

        Args:
            done: deliveries or ids, at most 1000.
            n: up to 1000.
            block: seconds to wait for a job if none is there; the finished are finished before.

        Returns:
            An outcome for each of `done` as in `ack`, and the jobs taken.
        """
        names = self._listed("done", done, most=BATCH)
        check_count("n", n, high=BATCH)
        wait = check_block(block)
        self._client.connect()
        call, tag = self.ops.settle(names, n)
        reply, resent = self._driver.run(self.ops, call)
        outcomes = self.ops.settled(names, reply)
        taken = self.ops.taken(reply, tag, self._node.id, 8)
        if resent:
            outcomes = outcomes.after_resend(GONE)
        jobs = taken.deliveries
        if not jobs and (wait is None or wait > 0):
            # The finished are finished: a connection that fails now is the next call's news.
            with suppress(RedisConnectionError, RedisTimeoutError):
                jobs = self.reserve(n, block=block)
        return outcomes, jobs

    def nack(
        self, jobs: Iterable[Named], *, delay: Duration | None = None, error: str = ""
    ) -> Settled:
        """Report failed attempts: tried again later, or dead when the attempts are used up.

        Args:
            jobs: deliveries, or ids of delivered jobs, whose holders' receipts are void then.
            delay: seconds until the next try; None = by the queue's policy; 0 = at once, before
                younger jobs.
            error: kept with the job, at most 1024 bytes.

        Returns:
            An outcome for each, in order: done, dead, gone, stale, ended or refused.

        Raises:
            BadArgument, BadJobId: nothing was done.
        """
        wait = -1 if delay is None else duration_ms("delay", delay)
        text = check_text("error", error, limit=1024)
        return self._each(jobs, lambda names: self.ops.nack(names, wait, text))

    def release(self, jobs: Iterable[Named], *, delay: Duration = 0) -> Settled:
        """Give jobs back without a failure; no attempt is charged.

        Args:
            jobs: deliveries, or ids of delivered jobs.
            delay: seconds until they may be delivered again; 0 = at once, before younger jobs.

        Returns, raises: as `nack`.
        """
        wait = duration_ms("delay", delay)
        return self._each(jobs, lambda names: self.ops.release(names, wait))

    def bury(self, jobs: Iterable[Named], reason: str = "") -> Settled:
        """Give jobs up: they become dead letters. By id alone also jobs that wait.

        Args:
            jobs: deliveries, or ids.
            reason: kept with the job, at most 1024 bytes.

        Returns, raises: as `nack`.
        """
        text = check_text("reason", reason, limit=1024)
        return self._each(jobs, lambda names: self.ops.bury(names, text))

    def extend(self, jobs: Iterable[Named], lease: Duration | None = None) -> list[float | Outcome]:
        """Renew leases, from now, never beyond the end of a job's ttl.

        Args:
            jobs: deliveries, or ids of delivered jobs.
            lease: seconds; None = each job's own lease.

        Returns:
            For each, in order: seconds from now for which its lease holds, or the outcome that says
            why it does not: gone, stale, ended or refused (not active, or at most once).

        Raises:
            BadArgument, BadJobId: nothing was done.
        """
        span = 0 if lease is None else lease_ms("lease", lease)
        if lease is not None and span == 0:
            raise BadArgument("lease", lease, "a lease can't be extended by nothing")
        self._client.connect()
        names = self._checked("jobs", jobs)
        results: list[float | Outcome] = []
        for start in range(0, len(names), BATCH):
            call = self.ops.extend(names[start : start + BATCH], span)
            reply, _ = self._driver.run(self.ops, call)
            self.ops.check(reply)
            results += [
                OUTCOMES[code] if code <= 3 else (code - reply[2]) / 1000 for code in reply[3:]
            ]
        return results

    # -- dead letters, removal -------------------------------------------------------------

    def redrive(self, jobs: Iterable[Named] | None = None, *, limit: int | None = None) -> int:
        """Bring dead letters back to where their age puts them; their attempts start anew.

        Args:
            jobs: these dead letters; None = the oldest.
            limit: at most so many of the oldest; None = all there are.

        Returns:
            How many were brought back. A job whose ttl has ended stays dead.
        """
        left = check_count("limit", limit) if limit is not None else 1 << 53
        self._client.connect()
        if jobs is not None:
            settled = self._each(jobs, self.ops.redrive, start=5, resent_code=REFUSED)
            return settled.done
        total = skip = 0
        while left > 0:
            reply, _ = self._node.run(self.ops.redrive(None, min(left, BATCH), skip))
            self.ops.check(reply)
            total, left, skip = total + reply[2], left - reply[2], skip + reply[4]
            if reply[3] == 0:
                break
        return total

    def delete(self, jobs: Iterable[Named]) -> Settled:
        """Remove jobs, whatever state they are in; a delivery of theirs ends.

        Args:
            jobs: deliveries, or ids.

        Returns:
            An outcome for each, in order: done or gone.
        """
        return self._each(jobs, self.ops.delete, resent_code=GONE)

    def purge(self, *states: str) -> int:
        """Remove the jobs that exist now, in bounded steps; jobs that are added meanwhile stay.

        Args:
            states: of ready, scheduled, active, dead; none given = ready and scheduled.

        Returns:
            How many were removed. A crash midway leaves the rest as it was.
        """
        chosen = {check_state("states", state) for state in states} or {"ready", "scheduled"}
        self._client.connect()
        total = 0
        fence: bytes | str = ""
        for part in purge_parts(chosen):
            again = True
            while again:
                fence, removed, steps = self._purge_pass(part, fence)
                total += removed
                # Jobs leave a range as their time comes, and a pass of several steps may miss some.
                again = steps > 1 and removed > 0
        return total

    def _purge_pass(self, part: str, fence: bytes | str) -> tuple[bytes | str, int, int]:
        """Go over a part once; the fence, how many were removed, and in how many steps."""
        skip, removed, steps, more = 0, 0, 0, 1
        while more:
            reply, _ = self._node.run(self.ops.purge(part, fence, skip))
            self.ops.check(reply)
            removed, more, fence, skip = removed + reply[2], reply[3], reply[4], reply[5]
            steps += 1
        return fence, removed, steps

    def sweep(self) -> int:
        """Give back the memory of jobs past their ttl and of dead letters past their bounds.

        A queue without jobs and settings on which nothing was written for 15 minutes is removed.

        Returns:
            How many jobs were removed.
        """
        self._client.connect()
        total, more = 0, 1
        while more:
            reply, _ = self._node.run(self.ops.sweep(IDLE_MS))
            self.ops.check(reply)
            total, more = total + reply[2] + reply[3], reply[4]
            if reply[5]:
                self._driver.unregister(self.ops, reply[5].decode())
        return total

    # -- looking ---------------------------------------------------------------------------

    def stats(self) -> QueueStats:
        """Count the jobs, exactly, in time that does not grow with their number."""
        self._client.connect()
        reply, _ = self._node.run(self.ops.stats())
        return self.ops.read_stats(reply)

    def peek(self, n: int = 10, *, state: str = "ready", start: int = 0) -> list[JobView]:
        """Look at jobs without taking them: of ready in the order in which `reserve` would.

        Args:
            n: at most so many, up to 1000; about 1 MiB of bodies is read.
            state: ready, scheduled, active or dead.
            start: how many to pass over, up to 1000.
        """
        check_count("n", n, high=BATCH)
        check_count("start", start, low=0, high=BATCH)
        call = self.ops.peek(check_state("state", state), start, n)
        self._client.connect()
        reply, _ = self._node.run(call)
        return [view for view in self.ops.views(reply, self._node.id) if view]

    def show(self, job: Named) -> JobView | None:
        """Everything about one job, or None if it is gone.

        Raises:
            BadJobId: malformed, or of another queue, node or epoch.
        """
        self._client.connect()
        names = self._listed("job", [job])
        reply, _ = self._driver.run(self.ops, self.ops.show(names))
        return self.ops.views(reply, self._node.id)[0]

    # -- settings --------------------------------------------------------------------------

    def configure(
        self,
        *,
        lease: Duration | None = KEEP,
        max_length: int | None = KEEP,
        max_attempts: int | None = KEEP,
        max_crashes: int | None = KEEP,
        max_releases: int | None = KEEP,
        backoff_base: Duration | None = KEEP,
        backoff_cap: Duration | None = KEEP,
        dead_max: int | None = KEEP,
        dead_age: Duration | None = KEEP,
    ) -> Settings:
        """Store settings on the queue, for all its clients; what is not named stays as it is.

        Args:
            lease, max_length, max_attempts, max_crashes, max_releases, backoff_base, backoff_cap,
                dead_max, dead_age: as in `Settings`; None = the default again.

        Returns:
            All settings as they are now.
        """
        fields = setting_fields(
            lease=lease,
            max_length=max_length,
            max_attempts=max_attempts,
            max_crashes=max_crashes,
            max_releases=max_releases,
            backoff_base=backoff_base,
            backoff_cap=backoff_cap,
            dead_max=dead_max,
            dead_age=dead_age,
        )
        self._client.connect()
        reply = self._driver.drive(flows.configure(self.ops, fields))
        return self.ops.settings(reply)

    def pause(self, side: str = "all") -> None:
        """Stop a side of the queue; it survives a restart, and a paused empty queue stays.

        Args:
            side: "in" = producers are refused, and retries, due jobs and ended leases wait; "out" =
                nothing is delivered; "all" = both. It replaces what was paused before.
        """
        if side not in ("in", "out", "all"):
            raise BadArgument("side", side, "one of in, out, all")
        self._client.connect()
        self._driver.drive(flows.configure(self.ops, ["paused", side]))

    def resume(self) -> None:
        """End a pause; whoever waits is woken."""
        self._client.connect()
        self._driver.drive(flows.configure(self.ops, ["paused", ""]))

    # -- helpers ---------------------------------------------------------------------------

    def _listed(self, argument: str, jobs: Any, most: int | None = None) -> list[Any]:
        if isinstance(jobs, (Delivery, str, bytes)) or not isinstance(jobs, Iterable):
            raise BadArgument(argument, jobs, "an iterable of jobs or ids")
        names = list(jobs)
        if most is not None and len(names) > most:
            raise BadArgument(argument, f"<{len(names)} jobs>", f"at most {most}")
        return names

    def _checked(self, argument: str, jobs: Any) -> list[Any]:
        """The jobs as a list; every id is looked at before the first of several calls is sent."""
        names = self._listed(argument, jobs)
        if len(names) > BATCH:
            for name in names:
                self.ops.number_of(name)
        return names

    def _each(
        self, jobs: Iterable[Named], build: Any, *, resent_code: int = ENDED, start: int = 3
    ) -> Settled:
        if not self._node.id:
            self._client.connect()
        names = self._checked("jobs", jobs)
        whole: Settled | None = None
        for at in range(0, max(len(names), 1), BATCH):
            part = names[at : at + BATCH]
            if not part:
                return Settled(part, None)
            reply, resent = self._driver.run(self.ops, build(part))
            settled = self.ops.codes(part, reply, start)
            if resent:
                settled = settled.after_resend(resent_code)
            whole = settled if whole is None else whole.joined(settled)
        assert whole is not None
        return whole


__all__ = ["Queue"]
