"""Procedures of several steps, as generators without I/O.

A flow yields what it needs (an effect), is sent the answer, and returns its result; the client
drives it. What a crash after each step leaves is said in protocol/core.md.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from penstock.core.calls import Call, Confirmed, Wait
from penstock.core.effects import (
    LOST,
    Cancelled,
    Cede,
    Drop,
    Effect,
    Hurry,
    Pop,
    Quit,
    Register,
    ReserveJobs,
    Rest,
    Run,
    Tidy,
    Unregister,
)
from penstock.core.operations import QueueOps, Taken
from penstock.core.operations.consuming import Recovered
from penstock.core.operations.producing import Added
from penstock.core.options import BATCH
from penstock.core.refusals import REFUSALS
from penstock.core.roles import RoleLease
from penstock.errors import NotReplicated, PenstockError, QueueFull, QueueInUse, QueueMissing
from penstock.wire.codes import Code
from penstock.wire.replies import Configure, Pending

__all__ = [
    "LOST",
    "TICK",
    "Cancelled",
    "Cede",
    "Drop",
    "Hurry",
    "Pop",
    "Quit",
    "Register",
    "ReserveJobs",
    "Rest",
    "Run",
    "Tidy",
    "Unregister",
    "acquire",
    "configure",
    "enqueue",
    "recover",
    "reserve",
    "withdraw",
]

Clock = Callable[[], float]
Noted = Callable[[QueueOps, int | None], None]
R = TypeVar("R")
TICK = 4.0
"""Seconds after which an idle consumer or producer looks by itself, whatever it was told."""
AGAIN = 8.0
"""Seconds for which a consumer leaves a queue alone that did not answer, while others do."""
LINGER = 0.2
"""Seconds for which a consumer whose time is over still looks behind expired jobs."""
FIRST_LOOK, LAST_LOOK = 0.1, 2.5
"""Seconds between two looks at a role that another client holds: the first, the later ones."""


def new_epoch() -> str:
    """A queue's life: 8 random hex digits, never all zero."""
    return f"{secrets.randbits(32) or 1:08x}"


def enqueue(
    ops: QueueOps,
    records: Sequence[bytes],
    *,
    delay: str | int,
    bound: int | str,
    block: float | None,
    partial: bool,
    clock: Clock,
    wait: Wait | None = None,
    mode: str | None = None,
    make: Callable[[str, int], Call[Added]] | None = None,
) -> Generator[Effect, Any, tuple[Added, Confirmed]]:
    """Add records in one script; make the queue first if need be; wait for room if asked to.

    Args:
        block: seconds to wait for room, 0 = not at all, None = for ever.
        wait: replicas that are waited for.
        mode: what becomes of duplicates; None = the records have no dedup ids.
        partial: whether to add as many as there is room for, when not all of them fit (the reply
            then counts fewer than were given).
        make: builds another call that adds jobs, from what is said of the queue's making and the
            ms to wait.

    Returns:
        The reply, and what replicas have confirmed.

    Raises:
        QueueFull, QueueClosed, QueuePaused, QueueInUse, RoleLost, QueueDamaged, StaleCall,
        UnsupportedVersion.
    """
    deadline = None if block is None else clock() + block
    create, todo, waited = "", records, False
    while True:
        over = block == 0 or (deadline is not None and clock() >= deadline)
        wait_ms = 0 if over else int(TICK * 2000)
        call = (
            make(create, wait_ms)
            if make is not None
            else ops.enqueue(
                todo,
                create=create,
                delay=delay,
                bound=bound,
                wait_ms=wait_ms,
                wait=wait,
                mode=mode,
            )
        )
        sent, todo = todo, records
        refusal, reply = yield from _tried(call)
        if create:
            made = "" if reply is None else reply.epoch.decode()
            create = yield from _unlist_unused(ops, create, made)
        if reply is not None:
            # The jobs are in: what fails from here on must not say otherwise.
            with suppress(Exception):
                if reply.created:
                    yield Register(ops, reply.epoch.decode())
                    yield Tidy((), made=True)
                yield from _leave_producer(ops, waited)
            return reply, call.confirmed
        if isinstance(refusal, QueueMissing):
            create, todo = new_epoch(), sent
            yield Register(ops, create)
        elif isinstance(refusal, QueueFull):
            room = refusal.limit - refusal.waiting
            if refusal.swept:
                continue
            never = len(records) > refusal.limit and not partial and mode is None
            if over or never:
                yield from _leave_producer(ops, waited)
                raise refusal
            if partial and 0 < room < len(records):
                todo = records[:room]
                continue
            tick = clock() + _tick([ops], "producer")
            until = tick if deadline is None else min(deadline, tick)
            waited = True
            yield Pop((ops.keys["space"],), until)
        else:
            with suppress(Exception):
                yield from _leave_producer(ops, waited)
            assert refusal is not None
            raise refusal


def _tried(call: Call[R]) -> Generator[Effect, Any, tuple[PenstockError | None, R | None]]:
    """Run a script: what it has refused, or its result."""
    try:
        return None, (yield Run(call))
    except REFUSALS as error:
        return error, None


def withdraw(
    ops: QueueOps,
    reply: Added,
    wanted: int,
    got: int,
    *,
    updated: bool = False,
    fsynced: bool | None = None,
) -> Generator[Effect, Any, NotReplicated]:
    """Take back what too few replicas confirmed; the error that says what became of it.

    Args:
        updated: whether jobs that were there before have got new content, which stays.
        fsynced: whether they are on disk; None = that was not asked for.
    """
    withdrawn: bool | None = None
    if reply.count == 0:
        return NotReplicated(wanted, got, not updated, fsynced)
    with suppress(Exception):
        call = ops.withdraw_added(reply)
        answer = yield Run(call)
        if not (call.resent and Code.GONE in answer.codes):
            # what is gone was delivered and finished
            withdrawn = not answer.codes and not updated
    return NotReplicated(wanted, got, withdrawn, fsynced)


def _unlist_unused(ops: QueueOps, create: str, epoch: str) -> Generator[Effect, Any, str]:
    """Unlist the epoch that this client registered, unless the queue was made with it.

    Args:
        create: the epoch that was registered.
        epoch: that of the queue; '' = the call was refused.

    Returns:
        '': the next call that finds no queue registers another epoch.
    """
    if create != epoch:
        with suppress(Exception):  # the answer to the call counts more than a leftover
            yield Unregister(ops, create)
    return ""


def _leave_producer(ops: QueueOps, waited: bool) -> Generator[Effect, Any, None]:
    """End the wait; a token taken meanwhile is handed on if there is room."""
    if waited and (yield Quit()):
        yield Run(ops.enqueue(()))


def configure(ops: QueueOps, fields: Sequence[Any]) -> Generator[Effect, Any, Configure]:
    """Store settings; make the queue first if need be.

    Raises:
        UnsupportedVersion, QueueDamaged.
    """
    refusal, reply = yield from _tried(ops.configure(fields))
    if isinstance(refusal, QueueMissing):
        epoch = new_epoch()
        yield Register(ops, epoch)
        refusal, reply = yield from _tried(ops.configure(fields, create=epoch))
        made = "" if reply is None else reply.epoch.decode()
        yield from _unlist_unused(ops, epoch, made)
    if reply is None:
        assert refusal is not None
        raise refusal
    if reply.created:
        yield Register(ops, reply.epoch.decode())
    return reply


def reserve(
    sources: Sequence[QueueOps],
    n: int,
    block: float | None,
    *,
    clock: Clock,
    transient: Callable[[BaseException], bool],
    seen: Taken | None = None,
    apart: bool = False,
    noted: Noted | None = None,
    eager: int | None = None,
) -> Generator[Effect, Any, list[Any]]:
    """Take up to n jobs from queues, the first queue first; wait until there is one.

    The laws of waking apply (protocol/core.md, Waking): after popping a token, reserve on that
    queue before anything else; end the blocking pop before leaving the wait; a consumer that
    leaves after it was told of a near event hands that on.

    Args:
        block: seconds to wait, 0 = not at all, None = for ever.
        transient: whether an error is the connection's and may pass by itself.
        seen: what the first queue answered a moment ago: nothing.
        apart: whether the queues lie on several servers, so that one which is not there is left out
            as long as another one answers.
        eager: how many of them are asked although there are some jobs, if not n; None = all.
        noted: is told how many jobs each queue that was asked has given, None = it did not answer.

    Raises:
        QueueClosed: every queue is closed and drained.
    """
    deadline = math.inf if block is None else clock() + block
    until = max(deadline, clock() + LINGER)
    watch = _Watch(sources, n, until, clock, transient, seen, apart, noted, eager)
    everything: Sequence[int] = range(len(sources))
    asked, lap = everything, 0.0
    while True:
        if len(asked) == len(sources):
            lap = clock() + _tick(sources, "consumer")
        yield from watch.ask(asked)
        if watch.is_over and len(asked) < len(sources):
            asked = everything  # they were not found so at the same time
            continue
        if watch.got or watch.is_over or clock() >= deadline:
            break
        key = yield from watch.wait(min(lap, deadline))
        if isinstance(key, bytes):
            asked = (watch.wakes.index(key),)
        elif key is LOST or clock() >= min(lap, deadline):
            asked = everything
        else:
            asked = [i for i, at in watch.due.items() if at <= clock()]
    if watch.idle:
        # Jobs that were taken are the caller's, whatever fails now: others look at their next tick.
        with suppress(Exception):
            yield from watch.leave()
    if watch.is_over:
        raise sources[0].drained()
    return watch.got


class _Watch:
    """A consumer's look at its queues, and its wait beside them.

    Args:
        sources, n, clock, transient, seen, apart, noted, eager: as in `reserve`.
        until: as in `take`.

    Attributes:
        wakes: the keys of their tokens.
        got: the jobs taken.
        due: when the next event of each falls due, as far as this consumer has to care.
        over: those that were closed and drained, when they were asked last.
        barred: until when to leave those alone that did not answer.
        idle: whether it has waited.
    """

    def __init__(
        self,
        sources: Sequence[QueueOps],
        n: int,
        until: float,
        clock: Clock,
        transient: Callable[[BaseException], bool],
        seen: Taken | None,
        apart: bool = False,
        noted: Noted | None = None,
        eager: int | None = None,
    ) -> None:
        self._eager = len(sources) if eager is None else eager
        self._apart = apart and len(sources) > 1
        self._noted = noted
        self._sources = sources
        self._n = n
        self._until = until
        self._clock = clock
        self._transient = transient
        self._seen = seen
        self._awaited: tuple[bytes, ...] = ()
        self._tokens: list[bytes] = []
        self.wakes = tuple(ops.keys["wake"] for ops in sources)
        self.got: list[Any] = []
        self.due: dict[int, float] = {}
        self.over: set[int] = set()
        self.barred: dict[int, float] = {}
        self.idle = False

    @property
    def is_over(self) -> bool:
        """Whether nothing was taken, and every queue is closed and drained."""
        return not self.got and len(self.over) == len(self._sources)

    def ask(self, asked: Sequence[int]) -> Generator[Effect, Any, None]:
        """Reserve on these queues until there are n jobs."""
        try:
            yield from self._ask(asked)
        except PenstockError:  # refused: what it was told of is for others
            if self.idle:
                with suppress(Exception):
                    yield from self.leave()
            raise

    def _ask(self, asked: Sequence[int]) -> Generator[Effect, Any, None]:
        failures = 0
        for i in self._usable(asked):
            if len(self.got) >= self._n or (self.got and i >= self._eager):
                return
            taken = self._seen or (yield from self._asked(i, brief=self._apart))
            self._seen = None
            if taken is None:
                failures += 1
                continue
            self._took(i, taken)
        if failures == len(self._sources):  # no node answers: ask one with full patience
            taken = yield from self._asked(asked[0], brief=False)
            assert taken is not None
            self._took(asked[0], taken)

    def _usable(self, asked: Sequence[int]) -> Sequence[int]:
        """Those that may answer; if there are none, all of them."""
        if not self.barred:
            return asked
        now = self._clock()
        self.barred = {i: until for i, until in self.barred.items() if until > now}
        return [i for i in asked if i not in self.barred] or asked

    def _asked(self, i: int, *, brief: bool) -> Generator[Effect, Any, Taken | None]:
        """What a queue gives; None = it does not answer, and others may."""
        parts = self._sources
        asked = take(
            parts,
            i,
            self._n,
            self.idle,
            self.got,
            self._transient,
            clock=self._clock,
            until=self._until,
            brief=brief,
        )
        try:
            return (yield from asked)
        except Exception as error:
            if not (brief and self._transient(error)):
                raise
            self.barred[i] = self.due[i] = self._clock() + AGAIN
            if self._noted is not None:
                self._noted(parts[i], None)
            return None

    def _took(self, i: int, taken: Taken) -> None:
        self.got += taken.deliveries
        self.due[i] = _due(taken, self._clock)
        if self._noted is not None:
            self._noted(self._sources[i], len(taken.deliveries))
        self.over.discard(i)
        if taken.is_over:
            self.over.add(i)

    def wait(self, until: float) -> Generator[Effect, Any, bytes | object | None]:
        """Wait for a token, a due time or this time; the answer is that of `Pop`.

        A drained queue is left out: its token is always there.
        """
        keys = tuple(key for i, key in enumerate(self.wakes) if i not in self.over)
        is_changed = self.idle and keys != self._awaited
        self.idle, self._awaited = True, keys
        key: bytes | object | None
        try:
            if is_changed:
                self._tokens += yield Quit()
            if self._tokens:
                return self._tokens.pop(0)
            with suppress(Exception):  # it is the next client's turn as well
                yield Tidy(tuple(self._sources))
            key = yield Pop(keys, min([until, *self.due.values()]))
        except Cancelled:
            yield from self.leave()
            raise
        return key

    def leave(self) -> Generator[Effect, Any, None]:
        """End the wait; hand on tokens taken meanwhile, and what only this consumer was told."""
        tick = self._clock() + TICK
        tokens = [*self._tokens, *(yield Quit())]
        for i, ops in enumerate(self._sources):
            if ops.keys["wake"] in tokens or self.due.get(i, math.inf) <= tick:
                # One that refuses, or is not there, is no reason to leave the rest.
                with suppress(Exception if self._apart else PenstockError):
                    yield ReserveJobs(ops, 0, True, self._apart)


def _tick(sources: Sequence[QueueOps], role: str) -> float:
    """Seconds after which one who waits looks by itself; a role that it bears must not end."""
    borne = [ops.tenures[role].lease_ms / 3000 for ops in sources if role in ops.tenures]
    return min([TICK, *borne])


def _due(taken: Any, clock: Clock) -> float:
    """When the queue's next event falls due, as far as this consumer has to care."""
    if taken.deliveries or taken.next_ms <= 0:
        return math.inf
    return clock() + float(taken.next_ms) / 1000


def take(
    sources: Sequence[QueueOps],
    i: int,
    n: int,
    idle: bool,
    got: Sequence[Any],
    transient: Callable[[BaseException], bool],
    *,
    clock: Clock,
    until: float,
    brief: bool = False,
) -> Generator[Effect, Any, Taken]:
    """Reserve on one queue what `got` lacks, again while a bound of the script stopped it early.

    A script that finds only expired jobs removes a bounded number of them. It is called again until
    it finds another job, or until the time `until`.

    When that fails after jobs were taken (`got`, or in an earlier call): a failure of the
    connection is the next call's to report, those jobs are the caller's. A refusal (a key of
    another type) is reported now, and the jobs are given back; unless one of them is delivered at
    most once, so it would be lost.
    """
    ops, jobs = sources[i], list[Any]()
    next_ms = 0
    try:
        while len(jobs) + len(got) < n:
            asked = min(n - len(jobs) - len(got), BATCH)
            taken = yield ReserveJobs(ops, asked, idle, brief)
            jobs += taken.deliveries
            next_ms = taken.next_ms
            if next_ms != 0 or (taken.deliveries and len(taken.deliveries) < asked):
                break
            if not taken.deliveries and clock() >= until:
                break
    except Exception as error:
        held = [*got, *jobs]
        if not held:
            raise
        if not transient(error) and not any(job.at_most_once for job in held):
            yield from _give_back(sources, held)
            raise
    return Taken(next_ms, jobs)


def _give_back(sources: Sequence[QueueOps], jobs: Sequence[Any]) -> Generator[Effect, Any, None]:
    """Release jobs that no caller has seen; what can't be released comes back with its lease."""
    for ops in sources:
        own = [job for job in jobs if job.batch.ops is ops]
        for at in range(0, len(own), BATCH):
            with suppress(Exception):
                yield Run(ops.release(own[at : at + BATCH], 0))


def acquire(
    ops: QueueOps, tenure: RoleLease, *, block: float | None, clock: Clock
) -> Generator[Effect, Any, int]:
    """Take an exclusive role; make the queue first if need be; wait until it is free if asked to.

    A lease that ends is waited for exactly, a role that is given back is looked for: soon at first,
    then every few seconds.

    Args:
        block: seconds to wait, 0 = not at all, None = for ever.

    Returns:
        The number of the taking.

    Raises:
        QueueInUse: another client holds it.
    """
    try:
        return (yield from _acquire(ops, tenure, block, clock))
    except Cancelled:  # it may have got through, and its reply is lost
        yield Run(ops.resign(tenure))
        raise


def _acquire(
    ops: QueueOps, tenure: RoleLease, block: float | None, clock: Clock
) -> Generator[Effect, Any, int]:
    deadline = math.inf if block is None else clock() + block
    create, pause = "", FIRST_LOOK
    while True:
        refusal, reply = yield from _tried(ops.acquire(tenure, create=create))
        if create:
            made = "" if reply is None else reply.epoch.decode()
            create = yield from _unlist_unused(ops, create, made)
        if reply is not None:
            if reply.created:
                with suppress(Exception):
                    yield Register(ops, reply.epoch.decode())
            return int(reply.fence)
        if isinstance(refusal, QueueMissing):
            create = new_epoch()
            yield Register(ops, create)
        elif isinstance(refusal, QueueInUse) and clock() < deadline:
            yield Rest(min(deadline, clock() + min(pause, refusal.left)))
            pause = min(pause * 2, LAST_LOOK)
        else:
            assert refusal is not None
            raise refusal


def recover(ops: QueueOps, n: int, idle_ms: int) -> Generator[Effect, Any, list[Any]]:
    """Take over up to n deliveries that were made at least so long ago, the oldest first.

    The deliveries are looked through page by page, then the oldest are named to `recover` with
    their receipts: jobs that end meanwhile are left out, and no two callers take the same one.
    """
    found, epoch = yield from _pending(ops, idle_ms)
    found.sort()
    jobs: list[Any] = []
    at = 0
    while at < len(found) and len(jobs) < n:
        part = found[at : at + min(n - len(jobs), BATCH)]
        pairs = [text for _, number, receipt in part for text in (number, receipt)]
        taken: Recovered = yield Run(ops.recover(epoch, pairs))
        jobs += taken.deliveries
        if taken.seen == 0:
            break
        at += taken.seen
    return jobs


def _pending(
    ops: QueueOps, idle_ms: int
) -> Generator[Effect, Any, tuple[list[tuple[int, bytes, bytes]], str]]:
    """Time, number and receipt of the deliveries made so long ago, and the queue's epoch."""
    found: dict[bytes, tuple[int, bytes, bytes]] = {}
    score: bytes | str = "-inf"
    skip, epoch = 0, ""
    while score:
        reply: Pending = yield Run(ops.pending(score, skip, idle_ms))
        epoch, score, skip = reply.epoch.decode(), reply.score, reply.skip
        for number, receipt, delivered in reply.deliveries:
            found[number] = (int(delivered), number, receipt)
    return list(found.values()), epoch


__all__ += ["Effect", "QueueFull", "new_epoch"]
