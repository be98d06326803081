"""The calls of tools: move, remove and show jobs, settings, roles."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.core.calls.call import Call, RawReply, target_of
from penstock.core.calls.operations.base import Names, Operations, Views
from penstock.core.jobs.job import JobName
from penstock.core.jobs.outcomes import Settled
from penstock.core.jobs.queue_stats import QueueStats, Settings, read_settings, read_stats
from penstock.core.jobs.views import JobResult, JobView, ScanPage, read_result
from penstock.core.values.checks import PurgeState, check_choice
from penstock.core.values.roles import RoleLease
from penstock.wire import replies
from penstock.wire.packing import Argument, words
from penstock.wire.replies import Parser

if TYPE_CHECKING:
    from penstock.core.jobs.events import LookedAt

__all__ = ["Managing", "purge_parts"]


class Looked(NamedTuple):
    """The result of a look at results.

    Attributes:
        last: id of the last entry of the stream `finished`; empty unless they are awaited.
        jobs: the result of each; None = the job is gone, and nothing is kept of it.
    """

    last: bytes
    jobs: list[JobResult | None]


class Managing(Operations):
    """The operations of tools that manage a queue."""

    # -- moving ----------------------------------------------------------------------------

    def promote(self, names: Names) -> Call[Settled]:
        """Move jobs forward to the place of their creation."""
        return self.call_about_jobs("promote", names)

    def dequeue(self, names: Names) -> Call[Settled]:
        """Remove jobs from the queue for the time of a lease."""
        return self.call_about_jobs("dequeue", names)

    # -- dead letters, removal -------------------------------------------------------------

    def redrive(self, names: Names) -> Call[Settled]:
        """Bring these dead letters back."""
        return self.call_about_jobs("redrive", names, 0, 0)

    def redrive_oldest(self, limit: int, skip: int) -> Call[replies.Redrive]:
        """Bring `limit` of the oldest dead letters back, after `skip`."""
        return self.call("redrive", "", limit, skip)

    def delete(self, names: Names) -> Call[Settled]:
        """Remove jobs in any state."""
        return self.call_about_jobs("delete", names)

    def cancel(self, names: Names) -> Call[Settled]:
        """Cancel jobs."""
        return self.call_about_jobs("cancel", names)

    def purge(self, state: str, fence: bytes | str, skip: int) -> Call[replies.Purge]:
        """Return the call of one step of a purge."""
        return self.call("purge", state, fence, skip)

    def sweep(self, idle_ms: int) -> Call[replies.Sweep]:
        """Return the call of one step of a sweep."""
        return self.call("sweep", idle_ms)

    def evict(self, count: int, *, letters: bool) -> Call[replies.Evict]:
        """Remove jobs that are never delivered again."""
        return self.call("evict", count, 1 if letters else 0)

    def measure(self, times: Sequence[str]) -> Call[replies.Measure]:
        """Note the history of the queue; `times` are those of `TimesNote.take`."""
        return self.call("measure", *times)

    def clear(self) -> Call[replies.Clear]:
        """Remove the queue."""
        return self.call("clear")

    # -- roles -----------------------------------------------------------------------------

    def acquire(
        self, role_lease: RoleLease, *, fence: int | str = "", create: str = ""
    ) -> Call[replies.Acquire]:
        """Take an exclusive role; with its fence: renew it."""
        kind, token, lease = role_lease.role, role_lease.token, role_lease.lease_ms
        call = self.call("acquire", create, kind, token, fence, lease, self.owner_name)
        call.role_lease = role_lease
        return call

    def resign(self, role_lease: RoleLease) -> Call[replies.Resign]:
        """Give an exclusive role back."""
        return self.call("resign", role_lease.role, role_lease.token)

    # -- looking ---------------------------------------------------------------------------

    def stats(self) -> Call[QueueStats]:
        """Return counts."""
        return self.call_read_by("stats", self._stats, ())

    def _stats(self, parse: Parser[replies.Stats], raw: RawReply) -> QueueStats:
        return read_stats(self.name, parse(raw))

    def peek(self, state: str, start: int, count: int, *, newest: bool) -> Call[Views | None]:
        """Return jobs of a state, or None when it has removed expired ones: call it again."""
        return self.call_read_by(
            "peek", self._peeked, words((state, start, count, 1 if newest else 0))
        )

    def show(self, names: Names) -> Call[Views]:
        """Return jobs by id; None for one that is gone."""
        epoch, _, rest = self.named(names)
        return self.call_read_by("show", self._shown, (epoch, *rest))

    def showing(self, names: Names) -> Call[replies.Show]:
        """Return the call of `show` whose result is the reply."""
        epoch, _, rest = self.named(names)
        return self.call("show", epoch, *rest)

    def results(self, names: Names, *, awaited: bool = False) -> Call[Looked]:
        """Look at the results of jobs; mark those that have not ended if they are awaited."""
        epoch, _, rest = self.named(names)
        return self.call_read_by("results", _results, (epoch, "1" if awaited else "", *rest))

    def watch(self, name: JobName, place: bytes, *, awaited: bool) -> Call[LookedAt]:
        """Look at a job, and read what it has told behind this place; mark it as watched."""
        number, epoch = self.number_of(name)
        args = (epoch, number, place, "1" if awaited else "")
        call = self.call_read_by("watch", _looked_at, args)
        call.target = target_of(call.script, (*call.head[1:], self.keys.emitted(number)[0]))
        return call

    def _peeked(self, parse: Parser[Any], raw: RawReply) -> Views | None:
        reply = parse(raw)
        return None if isinstance(reply, replies.PeekGone) else self.views(reply)

    def _shown(self, parse: Parser[replies.Show], raw: RawReply) -> Views:
        return self.views(parse(raw))

    def scan(
        self, cursor: str, count: int, states: Collection[str], *, full: bool
    ) -> Call[ScanPage]:
        """Return one page of all jobs."""
        args = words((cursor, count, 1 if full else 0, *states))
        return self.call_read_by("scan", partial(self._page, full), args)

    def _page(
        self, full: bool, parse: Parser[replies.Scan], raw: RawReply
    ) -> ScanPage:  # by partial
        reply = parse(raw)
        jobs = [view for view in self.views(reply) if view]
        return ScanPage(reply.cursor.decode(), [view.id for view in jobs], jobs if full else [])

    def browse(
        self, part: str, place: str, count: int, *, newest: bool, body: int
    ) -> Call[tuple[str, int, list[JobView]]]:
        """Return jobs of a part of a state: the next place, the number looked at, the jobs."""
        args = words((part, place, count, 1 if newest else 0, body))
        return self.call_read_by("browse", self._browsed, args)

    def _browsed(
        self, parse: Parser[replies.Browse], raw: RawReply
    ) -> tuple[str, int, list[JobView]]:
        reply = parse(raw)
        return reply.cursor.decode(), reply.looked, [job for job in self.views(reply) if job]

    # -- settings --------------------------------------------------------------------------

    def configure(self, fields: Sequence[Argument], *, create: str = "") -> Call[replies.Configure]:
        """Store settings: name, value, name, value …; '' drops one."""
        return self.call("configure", create, *fields)

    def hold(self, span_ms: int, hashed_key: str = "") -> Call[replies.Hold]:
        """Deliver nothing, or nothing of a key, for so many ms; 0 = end the hold."""
        return self.call("hold", span_ms, hashed_key)

    def settings(self, reply: replies.Configure) -> Settings:
        """Read the reply of configure."""
        settings = read_settings({field.decode(): value.decode() for field, value in reply.fields})
        self.replicas = settings.replicas or 0
        return settings


def _results(parse: Parser[replies.Results], raw: RawReply) -> Looked:
    reply = parse(raw)
    return Looked(reply.last, [read_result(entry) if entry else None for entry in reply.jobs])


def _looked_at(parse: Parser[replies.Watch], raw: RawReply) -> LookedAt:
    from penstock.core.jobs.events import read_look

    return read_look(parse(raw))


def purge_parts(states: Collection[object]) -> list[str]:
    """Return the parts to purge for states; in this order no job is missed when its time comes.

    Args:
        states: as they were given; none = ready, scheduled and parked.

    Raises:
        BadArgument: one of them is unknown.
    """
    chosen = {check_choice("states", state, PurgeState) for state in states}
    parts = {
        "ready": "ready",
        "parked": "parked",
        "scheduled": "scheduled",
        "dependent": "dependent",
        "active": "active",
        "once": "active",
        "due": "ready",
        "ended": "ready",
        "dead": "dead",
    }
    wanted = chosen or {"ready", "scheduled", "parked"}
    return [part for part, state in parts.items() if state in wanted]
