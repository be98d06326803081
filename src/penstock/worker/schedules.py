"""The schedules of a worker's queues: it stores those of its handlers, and runs ticks that are due.

No worker is the leader. Each reads the ticks of the next seconds, waits for them, and calls `tick`,
which does nothing if another worker was quicker (protocol/schedules.md).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from redis.exceptions import NoPermissionError, RedisError

from penstock.core import flows
from penstock.core.calls.call import Call
from penstock.core.calls.failures import about_server, passing
from penstock.core.calls.operations import QueueOps
from penstock.core.calls.operations.scheduling import ListedSchedules
from penstock.core.enqueuing.schedules import MISSED_MS, NewSchedule, StoredSchedule, new_schedule
from penstock.core.flows.effects import Effect, Flow
from penstock.core.flows.schedules import StoreOutcome, schedule_on
from penstock.core.values.codec import Codec
from penstock.core.values.partitions import partition_of
from penstock.errors import (
    ConfigurationError,
    OutOfMemory,
    PenstockError,
    QueueClosed,
    QueueDamaged,
    QueueFull,
    QueueInUse,
    QueueMissing,
    QueuePartitioned,
    QueuePaused,
    RoleLost,
    UnsupportedVersion,
)
from penstock.worker.declared import DeclaredSchedules
from penstock.worker.messages import shortened
from penstock.worker.registered import AnyHandler

__all__ = ["TickRun", "Ticker", "declared_schedules", "own_part"]

TICK_LOOK_INTERVAL = flows.POLL_INTERVAL
"""Seconds between two looks at the ticks of a queue that has schedules."""
LOOK_AHEAD_MS = 5000
"""How far ahead a look reads."""
NAMES_PER_CALL = 100
"""Most names in one call."""
CLOCK_JUMP_MS = MISSED_MS // 2
"""A step of the server's clock, forward or back, after which all schedules are checked."""
SCHEDULE_CHECK_INTERVAL = 60.0
"""Seconds between two checks of all schedules without such a step. Another client may have stored a
tick by a wrong time that this worker has not seen."""
NOT_TAKING_ERRORS = (
    OutOfMemory, QueueClosed, QueueFull, QueueInUse, QueueMissing, QueuePaused, RoleLost
)  # fmt: skip
"""Errors of a queue that takes no jobs now. The tick stays."""
WHOLE_QUEUE_ERRORS = (NoPermissionError, QueueDamaged, QueuePartitioned, UnsupportedVersion)
"""Errors that concern each schedule of a queue."""
REFUSED_STORE_PAUSE = 15.0
"""Seconds until schedules whose storing was refused are stored again."""

KEEP_INTERVAL = 15.0
"""Seconds between two notes that this worker declares its schedules."""
IS_ORPHANED = 2
"""The code of `keep_schedules` for a schedule that waits until it is stored again."""
ORPHAN_IDLE_MS = 60_000
"""Time for which no worker has declared a schedule whose code is gone."""

CallRunner = Callable[[Call[Any]], Generator[Effect, Any, Any]]
"""Runs a call of a flow and returns its result."""


@dataclass(slots=True)
class Ticker:
    """The schedules of one queue, as a worker knows them.

    Points in time are by the worker's clock.

    Attributes:
        own: schedules of the worker's handlers, not stored yet.
        look_at: when to read the ticks; inf = the queue has no schedules.
        near: the ticks that were read, each with the time at which to run it.
        is_checked: whether all ticks were compared with their specs since the start and since the
            last step of the server's clock.
        check_at: when to compare them again, a page with each look.
        cursor: of the next page.
        now_ms: the server's time at the last look.
        at: when the answer to that look came.
        unread: names of the schedules that this worker can't run.
        refused: names of the schedules whose last call was refused, and the kind of the error.
        failures: how many looks in a row have failed.
        store_at: when to store `own`, at the earliest.
        has_waited: whether some of `own` could not be stored at the last look, as a node was down.
        apps: those to which the worker's handlers belong.
        keep_at: when to note again that this worker declares its schedules.
        orphan_at: from when on schedules may be orphaned: other workers note first that they
            declare theirs, if this one could not look for a while.
        orphaned: names of schedules that wait since the last looks, by app; not logged yet.
        declared: all schedules of the worker's handlers, and which of them are stored.
    """

    own: list[NewSchedule] = field(default_factory=list)
    look_at: float = math.inf
    near: list[tuple[float, StoredSchedule]] = field(default_factory=list)
    is_checked: bool = False
    check_at: float = 0.0
    cursor: str = "0"
    now_ms: int = 0
    at: float = 0.0
    unread: set[str] = field(default_factory=set)
    refused: dict[str, str] = field(default_factory=dict)
    failures: int = 0
    store_at: float = 0.0
    has_waited: bool = False
    apps: frozenset[str] = frozenset()
    keep_at: float = 0.0
    orphan_at: float = 0.0
    orphaned: dict[str, list[str]] = field(default_factory=dict)
    declared: DeclaredSchedules = field(init=False)

    def __post_init__(self) -> None:
        self.declared = DeclaredSchedules({new.name: new for new in self.own})

    @property
    def due_at(self) -> float:
        """When there is something to do."""
        return min([self.look_at, *(at for at, _ in self.near)])

    def learn(self, *, has_schedules: bool) -> None:
        """Learn if the queue has schedules."""
        if not (has_schedules or self.own or self.declared.stored):
            self.look_at, self.near = math.inf, []
        elif self.look_at == math.inf:
            self.look_at = 0.0

    def look_now(self) -> None:
        """Read the ticks now, if the queue has schedules: some may have changed."""
        if self.look_at < math.inf:
            self.look_at = 0.0

    def note_stored(self, name: str) -> None:
        """Note that a declared schedule lies here, and check all soon.

        The entry of one that was stored during a check may lie behind its cursor.
        """
        self.declared.stored.add(name)
        self.look_at, self.check_at, self.cursor = 0.0, 0.0, "0"

    def server_ms(self, now: float) -> int:
        """Return the server's time, or a little less."""
        return self.now_ms + int((now - self.at) * 1000)

    def orphans(self, listed: ListedSchedules) -> dict[str, list[str]]:
        """Return the names of schedules whose code is gone, by app."""
        names = dict[str, list[str]]()
        for entry in listed.entries:
            is_gone = entry.app in self.apps and entry.name not in self.declared.by_name
            idle_ms = abs(listed.now_ms - entry.declared)
            if entry.app and is_gone and entry.tick is not None and idle_ms >= ORPHAN_IDLE_MS:
                names.setdefault(entry.app, []).append(entry.name)
        return names

    def due_by(self, now: float) -> list[StoredSchedule]:
        """Return the schedules whose tick has come, and remove them from `near`."""
        due = [entry for at, entry in self.near if at <= now]
        self.near = [one for one in self.near if one[0] > now]
        return due

    def put_off(self, now: float) -> None:
        """Look again later, as the last look has failed."""
        self.failures += 1
        self.look_at, self.near = now + TICK_LOOK_INTERVAL, []

    def expect(self, entry: StoredSchedule) -> None:
        """Wait for the tick of a schedule if it comes before the next look does."""
        assert entry.tick is not None
        at = self.at + max(0, entry.tick - self.now_ms) / 1000
        if at <= self.look_at:
            self.near.append((at, entry))


def declared_schedules(
    handlers: Iterable[AnyHandler], queues: Iterable[str], codec: Codec | None
) -> dict[str, list[NewSchedule]]:
    """Return the schedules that handlers declare, by the names of their queues.

    Args:
        handlers: of the worker.
        queues: those of the worker; the result has them all.
        codec: of bodies.

    Raises:
        BadArgument: a job can't be made.
    """
    by_queue: dict[str, list[NewSchedule]] = {name: [] for name in queues}
    for handler in handlers:
        if handler.schedule is not None:
            new = new_schedule(
                handler.name, handler.scheduled_job(), handler.schedule, codec, handler.app
            )
            by_queue.setdefault(handler.queue or "", []).append(new)
    return by_queue


def own_part(new: Iterable[NewSchedule], ops: QueueOps) -> list[NewSchedule]:
    """Return those of a queue's schedules that belong to this part of it."""
    count, number = ops.partitions, ops.keys.partition
    return [
        schedule
        for schedule in new
        if count is None or partition_of(schedule.name, count) == number
    ]


@dataclass(frozen=True, slots=True)
class TickRun:
    """One run of a queue's ticks by a worker.

    Attributes:
        ticker: the schedules of the queue.
        ops: its operations.
        parts: those of the same part of the queue on each node, with the schedules there.
        run_call: runs a call.
        clock: the worker's clock.
        log: the worker's log.
    """

    ticker: Ticker
    ops: QueueOps
    parts: Mapping[QueueOps, Ticker]
    run_call: CallRunner
    clock: Callable[[], float]
    log: Any

    def run(self) -> Generator[Effect, Any, bool]:
        """Run the ticks that are due, and look for others; return whether jobs are due by them.

        Raises:
            Exception: an error that concerns the server, or the form of the queue.
        """
        try:
            is_due: bool = yield from self._run_due()
        except Exception as error:
            if about_server(error) or isinstance(error, (QueuePartitioned, UnsupportedVersion)):
                raise
            self.ticker.put_off(self.clock())
            if self.ticker.failures == 1:
                text = "the schedules of queue %r can't be run: %s: %s; they are tried again"
                kind, trace = type(error).__name__, _unknown(error)
                self.log.log(logging.ERROR, text, self.ops.name, kind, error, exc_info=trace)
            return False
        self.ticker.failures = 0
        return is_due

    def _run_due(self) -> Generator[Effect, Any, bool]:
        ticker, is_due = self.ticker, False
        if ticker.look_at <= self.clock():
            yield from self._look()
            if not ticker.is_checked or ticker.check_at <= ticker.at:
                yield from self._check()
        for entry in ticker.due_by(self.clock()):
            is_due |= yield from self._tick(entry)
        # Ticks of older versions come first.
        may_store = ticker.at and not any(at <= self.clock() for at, _ in ticker.near)
        if ticker.own and may_store and self.clock() >= ticker.store_at:
            yield from self._store()
            if any(new.name in ticker.refused for new in ticker.own):
                ticker.store_at = self.clock() + REFUSED_STORE_PAUSE
        return is_due

    def _tick(self, entry: StoredSchedule) -> Generator[Effect, Any, bool]:
        """Run or skip a tick; return whether a job is due by it."""
        assert entry.tick is not None
        server_ms = self.ticker.server_ms(self.clock())
        is_missed = server_ms - entry.tick > MISSED_MS
        try:
            following = entry.spec.after(server_ms if is_missed else entry.tick)
            call = self.ops.tick(entry, following, entry.what(server_ms))
            reply = yield from self.run_call(call)
        except ConfigurationError as error:
            self._leave_to_others(entry.name, str(error))
            return False
        except Exception as error:
            if about_server(error) or isinstance(error, WHOLE_QUEUE_ERRORS):
                raise
            self._say_refused(entry.name, error, effect="its tick waits")
            return False
        self.ticker.refused.pop(entry.name, None)
        self.ticker.expect(replace(entry, tick=following))  # also if another worker was quicker
        return reply is not None and bool(reply.first)  # also of one that waited for its retry

    def _say_refused(self, name: str, error: Exception, *, effect: str) -> None:
        """Log that a queue has refused a schedule, once until that changes. It is tried again."""
        kind = type(error).__name__
        if self.ticker.refused.get(name) != kind:
            self.ticker.refused[name] = kind
            level = logging.INFO if isinstance(error, NOT_TAKING_ERRORS) else logging.ERROR
            text = "schedule %r of queue %r is refused: %s: %s; %s"
            trace = _unknown(error)
            self.log.log(level, text, name, self.ops.name, kind, error, effect, exc_info=trace)

    def _look(self) -> Flow:
        ticker = self.ticker
        listed = yield from self.run_call(self.ops.near_schedules(LOOK_AHEAD_MS))
        now = self.clock()
        has_jumped = ticker.now_ms and abs(ticker.server_ms(now) - listed.now_ms) > CLOCK_JUMP_MS
        if has_jumped or ticker.declared.has_new_epoch(listed):
            ticker.is_checked, ticker.cursor = False, "0"
        elif ticker.declared.has_removals(listed):
            ticker.check_at = 0.0
        if has_jumped or (ticker.now_ms and now - ticker.at > KEEP_INTERVAL):
            ticker.orphan_at = now + ORPHAN_IDLE_MS / 1000
        ticker.now_ms, ticker.at, ticker.near = listed.now_ms, now, []
        next_in = listed.next_ms / 1000 if listed.next_ms >= 0 else TICK_LOOK_INTERVAL
        ticker.look_at = now + min(TICK_LOOK_INTERVAL, next_in)
        yield from self._keep(has_jumped=bool(has_jumped))
        for name, reason in listed.unread.items():
            self._leave_to_others(name, reason)
        orphaned = yield from self._orphan(listed)
        if not orphaned:
            self._say_orphaned()
        for entry in listed.entries:
            if entry.name not in ticker.unread and entry.name not in orphaned:
                ticker.expect(entry)

    def _keep(self, *, has_jumped: bool) -> Flow:
        """Note that this worker declares its schedules, and take back those that are orphaned."""
        ticker, names = self.ticker, [*self.ticker.declared.by_name]
        if ticker.keep_at > ticker.at and not has_jumped:
            return
        for start in range(0, len(names), NAMES_PER_CALL):
            batch = names[start : start + NAMES_PER_CALL]
            reply = yield from self.run_call(self.ops.keep_schedules(batch))
            for name, code in zip(batch, reply.codes, strict=True):
                new = ticker.declared.by_name[name]
                if code == IS_ORPHANED and new not in ticker.own:
                    ticker.own.append(new)
        ticker.keep_at = ticker.at + KEEP_INTERVAL

    def _orphan(self, listed: ListedSchedules) -> Generator[Effect, Any, set[str]]:
        """Let schedules wait whose code is gone, and return their names."""
        ticker, orphaned = self.ticker, set[str]()
        if self.clock() < ticker.orphan_at:
            return orphaned
        for app, names in ticker.orphans(listed).items():
            reply = yield from self.run_call(self.ops.orphan_schedules(app, ORPHAN_IDLE_MS, names))
            done = [name for name, code in zip(names, reply.codes, strict=True) if code]
            if done:
                ticker.look_now()  # others may be near behind them
                ticker.orphaned.setdefault(app, []).extend(done)
            orphaned.update(done)
        return orphaned

    def _say_orphaned(self) -> None:
        """Log, once, which schedules wait whose code is gone."""
        for app, names in self.ticker.orphaned.items():
            text = "no worker declares these schedules of queue %r any more: %s; %s"
            remedy = (
                f"app {app!r} runs without them, and their ticks wait until one does:"
                " schedules.remove(name) removes one"
            )
            self.log.warning(text, self.ops.name, shortened(names), remedy)
        self.ticker.orphaned = {}

    def _leave_to_others(self, name: str, reason: str) -> None:
        if name not in self.ticker.unread:
            self.ticker.unread.add(name)
            self.log.error("schedule %r can't be run by this worker: %s", name, reason)

    def _check(self) -> Flow:
        """Bring ticks forward that a wrong clock has put too late; find lost schedules.

        Compare all of them after a step of the server's clock, or in a new queue, otherwise a page.
        """
        ticker = self.ticker
        while True:
            listed = yield from self.run_call(self.ops.schedules(ticker.cursor))
            ticker.declared.add_page(listed, is_first=ticker.cursor == "0")
            orphaned = yield from self._orphan(listed)
            for entry in listed.entries:
                if entry.name not in orphaned:
                    yield from self._move(entry, listed.now_ms)
            ticker.cursor = listed.cursor
            if ticker.cursor == "0":
                ticker.is_checked, ticker.check_at = True, ticker.at + SCHEDULE_CHECK_INTERVAL
                self._restore_lost(listed)
            if ticker.is_checked:
                return

    def _restore_lost(self, listed: ListedSchedules) -> None:
        """Have schedules stored again that the server has lost, but not those removed."""
        lost, removed = self.ticker.declared.finish_check(listed)
        elsewhere = "" if self.ops.node is None else ", unless another node has it"
        for new in lost:
            text = "schedule %r of queue %r is gone, or has an older value: it is stored again%s"
            self.log.warning(text, new.name, self.ops.name, elsewhere)
            if new not in self.ticker.own:
                self.ticker.own.append(new)
        for new in removed:
            text = (
                "schedule %r of queue %r was removed; the next worker that starts creates it again"
            )
            self.log.warning(text, new.name, self.ops.name)

    def _move(self, entry: StoredSchedule, now_ms: int) -> Flow:
        """Bring a tick forward if it is too late. The next check repeats a refusal."""
        try:
            earlier = entry.earlier(now_ms)
            if earlier is None:
                return
            yield from self.run_call(self.ops.tick(entry, earlier, "move"))
        except ConfigurationError as error:
            self._leave_to_others(entry.name, str(error))
        except Exception as error:
            if about_server(error) or isinstance(error, WHOLE_QUEUE_ERRORS):
                raise
            self._say_refused(entry.name, error, effect="its tick stays too late")
        else:
            self.ticker.refused.pop(entry.name, None)
            self.ticker.look_now()

    def _split_unstored(self) -> Generator[Effect, Any, list[NewSchedule]]:
        """Return the schedules that the server does not have with this value; note the others."""
        unstored = list[NewSchedule]()
        for start in range(0, len(self.ticker.own), NAMES_PER_CALL):
            batch = self.ticker.own[start : start + NAMES_PER_CALL]
            call = self.ops.schedules(names=[new.name for new in batch])
            listed = yield from self.run_call(call)
            known = {
                (entry.name, entry.value_hash, entry.app)
                for entry in listed.entries
                if not entry.is_orphaned
            }
            for new in batch:
                if (new.name, new.value_hash, new.app) in known:
                    self.ticker.declared.stored.add(new.name)
                else:
                    unstored.append(new)
        return unstored

    def _store(self) -> Flow:
        """Store the schedules of the worker's handlers.

        A schedule that is on no node waits until all nodes are up: it may lie on one that is down.
        """
        ticker = self.ticker
        up = [part for part in self.parts if part.node is None or part.node.state.is_up]
        has_all = len(up) == len(self.parts)
        refused, waiting = list[NewSchedule](), list[NewSchedule]()
        wanted = ticker.own if len(self.parts) > 1 else (yield from self._split_unstored())
        for new in wanted:
            try:
                outcome: StoreOutcome = yield from schedule_on(up, new, is_whole=has_all)
            except Exception as error:
                is_away = len(self.parts) > 1 and passing(error)
                if not is_away and (about_server(error) or isinstance(error, WHOLE_QUEUE_ERRORS)):
                    raise
                (waiting if is_away else refused).append(new)
                if not is_away:
                    self._say_refused(new.name, error, effect="it is not stored")
                continue
            ticker.refused.pop(new.name, None)
            if outcome.code is None:
                waiting.append(new)
            elif outcome.code == flows.SCHEDULE_OUTDATED:
                text = "schedule %r stays as it is: a later version has replaced this one; %s"
                self.log.warning(text, new.name, "schedules.restore(...) brings it back")
            elif outcome.ops is not None:
                self.parts[outcome.ops].note_stored(new.name)
            if outcome.code == flows.SCHEDULE_REPLACED:
                text = (
                    "schedule %r of queue %r has replaced another value of this name, of an "
                    "earlier version or of another app: two apps that share a queue need two names"
                )
                self.log.info(text, new.name, self.ops.name)
        if waiting and not ticker.has_waited and self.ops is up[0]:
            text = "the schedules %s are not stored yet, as a node is down that may have them"
            self.log.warning(text, ", ".join(repr(new.name) for new in waiting))
        ticker.own, ticker.has_waited = waiting + refused, bool(waiting)


def _unknown(error: Exception) -> Exception | None:
    """Return an error that no server sends, whose traceback is logged; None for the others."""
    return None if isinstance(error, (PenstockError, RedisError, OSError)) else error
