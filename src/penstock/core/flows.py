"""Procedures of several steps, as generators without I/O.

A flow yields an effect, is sent the answer, and returns its result; the client drives it.
protocol/core.md says what a crash after each step leaves.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
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
"""Seconds after which an idle consumer or producer calls again, without a token."""
AGAIN = 8.0
"""Seconds for which a consumer does not ask a queue that did not answer, while others do."""
LINGER = 0.2
"""Seconds for which a consumer whose time is over still looks behind expired jobs."""
FIRST_LOOK, LAST_LOOK = 0.1, 2.5
"""Seconds between two tries to take a role that another client holds: the first, the longest."""


def new_epoch() -> str:
    """Return the epoch of a new queue: 8 random hex digits, never all zero."""
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
        wait: replicas and disks that have to confirm.
        mode: treatment of duplicates; None = the records have no dedup ids.
        partial: whether to add only some of them if not all fit; the reply has the count.
        make: builds another call that adds jobs, given the epoch of a new queue and the ms to
            wait.

    Returns:
        The reply, and the confirmations.

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
    """Remove jobs that too few replicas confirmed; return the error of the enqueue.

    Args:
        updated: whether jobs that were there before have new content, which stays.
        fsynced: whether the jobs are on disk; None = that was not asked for.
    """
    withdrawn: bool | None = None
    if reply.count == 0:
        return NotReplicated(wanted, got, not updated, fsynced)
    with suppress(Exception):
        call = ops.withdraw_added(reply)
        answer = yield Run(call)
        if not (call.resent and Code.GONE in answer.codes):
            # jobs that are gone were delivered and finished
            withdrawn = not answer.codes and not updated
    return NotReplicated(wanted, got, withdrawn, fsynced)


def _unlist_unused(ops: QueueOps, create: str, epoch: str) -> Generator[Effect, Any, str]:
    """Unlist the epoch that this client registered, unless the queue was made with it.

    Args:
        create: the epoch that was registered.
        epoch: the epoch of the queue; '' = the call was refused.

    Returns:
        '': the next call that finds no queue registers another epoch.
    """
    if create != epoch:
        with suppress(Exception):  # the answer to the call counts more than a leftover
            yield Unregister(ops, create)
    return ""


def _leave_producer(ops: QueueOps, waited: bool) -> Generator[Effect, Any, None]:
    """End the wait. If it took a token and there is room, wake the next producer."""
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
    queue before anything else; end the blocking pop before leaving the wait; before leaving,
    reserve nothing on a queue whose next event is near, which wakes another consumer.

    Args:
        block: seconds to wait, 0 = not at all, None = for ever.
        transient: tells errors of the connection, which may pass by themselves, from others.
        seen: the reply, without jobs, that the first queue gave a moment ago.
        apart: whether the queues lie on several servers. Then one that does not answer is left out
            as long as another one answers.
        noted: is told how many jobs each queue gave; None = it did not answer.
        eager: number of queues to ask for more when some jobs were taken; None = all.

    Raises:
        QueueClosed: every queue is closed and drained.
    """
    deadline = math.inf if block is None else clock() + block
    until = max(deadline, clock() + LINGER)
    count = len(sources)
    eager = count if eager is None else eager
    wakes = [ops.keys["wake"] for ops in sources]
    watch = _Watch(
        sources, wakes, n, until, clock, transient, seen, apart and count > 1, noted, eager
    )
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
        # Jobs were taken, so this must not raise; other consumers look at their next tick.
        with suppress(Exception):
            yield from watch.leave()
    if watch.is_over:
        raise sources[0].drained()
    return watch.got


@dataclass(slots=True)
class _Watch:
    """State of one `reserve`.

    Args:
        sources, n, clock, transient, seen, apart, noted, eager: as in `reserve`.
        until: as in `take`.
        wakes: the keys of the tokens.

    Attributes:
        awaited: the keys of the last wait.
        tokens: tokens that ended waits took, and that were not used yet.
        got: the jobs taken.
        due: time of the next event of each queue that this consumer has to look at.
        over: queues that were closed and drained when they were asked last.
        barred: time until which a queue that did not answer is not asked.
        idle: whether it has waited.
    """

    sources: Sequence[QueueOps]
    wakes: Sequence[bytes]
    n: int
    until: float
    clock: Clock
    transient: Callable[[BaseException], bool]
    seen: Taken | None
    apart: bool
    noted: Noted | None
    eager: int
    awaited: tuple[bytes, ...] = ()
    tokens: list[bytes] = field(default_factory=list)
    got: list[Any] = field(default_factory=list)
    due: dict[int, float] = field(default_factory=dict)
    over: set[int] = field(default_factory=set)
    barred: dict[int, float] = field(default_factory=dict)
    idle: bool = False

    @property
    def is_over(self) -> bool:
        """True if nothing was taken, and every queue is closed and drained."""
        return not self.got and len(self.over) == len(self.sources)

    def ask(self, asked: Sequence[int]) -> Generator[Effect, Any, None]:
        """Reserve on these queues until there are n jobs."""
        try:
            yield from self._ask(asked)
        except PenstockError:  # another consumer has to use the token
            if self.idle:
                with suppress(Exception):
                    yield from self.leave()
            raise

    def _ask(self, asked: Sequence[int]) -> Generator[Effect, Any, None]:
        failures = 0
        for i in self._usable(asked):
            if len(self.got) >= self.n or (self.got and i >= self.eager):
                return
            taken = self.seen or (yield from self._asked(i, brief=self.apart))
            self.seen = None
            if taken is None:
                failures += 1
                continue
            self._took(i, taken)
        if failures == len(self.sources):  # no node answers: ask one with full patience
            taken = yield from self._asked(asked[0], brief=False)
            assert taken is not None
            self._took(asked[0], taken)

    def _usable(self, asked: Sequence[int]) -> Sequence[int]:
        if not self.barred:
            return asked
        now = self.clock()
        self.barred = {i: until for i, until in self.barred.items() if until > now}
        return [i for i in asked if i not in self.barred] or asked

    def _asked(self, i: int, *, brief: bool) -> Generator[Effect, Any, Taken | None]:
        """Reserve on a queue; None = it does not answer, and others may have jobs."""
        clock, until = self.clock, self.until
        arguments = (self.sources, i, self.n, self.idle, self.got, self.transient)
        try:
            return (yield from take(*arguments, clock=clock, until=until, brief=brief))
        except Exception as error:
            if not (brief and self.transient(error)):
                raise
            self.barred[i] = self.due[i] = clock() + AGAIN
            if self.noted is not None:
                self.noted(self.sources[i], None)
            return None

    def _took(self, i: int, taken: Taken) -> None:
        self.got += taken.deliveries
        self.due[i] = due_at(taken, self.clock)
        if self.noted is not None:
            self.noted(self.sources[i], len(taken.deliveries))
        self.over.discard(i)
        if taken.is_over:
            self.over.add(i)

    def wait(self, until: float) -> Generator[Effect, Any, bytes | object | None]:
        """Wait for a token, a due time or this time; return the answer to `Pop`.

        A drained queue is left out, as its token is always there.
        """
        keys = tuple(key for i, key in enumerate(self.wakes) if i not in self.over)
        is_changed = self.idle and keys != self.awaited
        self.idle, self.awaited = True, keys
        key: bytes | object | None
        try:
            if is_changed:
                self.tokens += yield Quit()
            if self.tokens:
                return self.tokens.pop(0)
            with suppress(Exception):  # the next idle client sweeps as well
                yield Tidy(tuple(self.sources))
            key = yield Pop(keys, min([until, *self.due.values()]))
        except Cancelled:
            yield from self.leave()
            raise
        return key

    def leave(self) -> Generator[Effect, Any, None]:
        """End the wait; hand on its tokens, and near events that only this consumer knows of."""
        tick = self.clock() + TICK
        tokens = [*self.tokens, *(yield Quit())]
        for i, ops in enumerate(self.sources):
            if ops.keys["wake"] in tokens or self.due.get(i, math.inf) <= tick:
                # If one refuses or does not answer, the others are still told.
                with suppress(Exception if self.apart else PenstockError):
                    yield ReserveJobs(ops, 0, True, self.apart)


def _tick(sources: Sequence[QueueOps], role: str) -> float:
    """Return the seconds until a waiting client calls again, few enough to keep its roles."""
    borne = [ops.tenures[role].lease_ms / 3000 for ops in sources if role in ops.tenures]
    return min([TICK, *borne])


def due_at(taken: Taken, clock: Clock) -> float:
    """Return the time of a queue's next event, after a reply without jobs; else infinity."""
    return math.inf if taken.deliveries or taken.next_ms <= 0 else clock() + taken.next_ms / 1000


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
    """Reserve on one queue the jobs that `got` lacks.

    A script that finds only expired jobs removes a bounded number of them. It is called again until
    it finds another job, or until the time `until`.

    A call may fail after jobs were taken (`got`, or by an earlier call). After a failure of the
    connection the caller gets those jobs, and the next call reports the failure. A refusal (a key
    of another type) is raised now and the jobs are released; unless one of them is delivered at
    most once, as it would be lost.
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
    """Release jobs that no caller has seen. If that fails, they return after their lease."""
    for ops in sources:
        own = [job for job in jobs if job.batch.ops is ops]
        for at in range(0, len(own), BATCH):
            with suppress(Exception):
                yield Run(ops.release(own[at : at + BATCH], 0))


def acquire(
    ops: QueueOps, tenure: RoleLease, *, block: float | None, clock: Clock
) -> Generator[Effect, Any, int]:
    """Take an exclusive role; make the queue first if need be; wait until it is free if asked to.

    The end of the holder's lease is waited for exactly. A role that is given back before is found
    by tries: soon at first, then every few seconds.

    Args:
        block: seconds to wait, 0 = not at all, None = for ever.

    Returns:
        The fence of the role.

    Raises:
        QueueInUse: another client holds it.
    """
    try:
        return (yield from _acquire(ops, tenure, block, clock))
    except Cancelled:  # the role may be taken, and the reply lost
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
    """Take over up to n deliveries that are older than `idle_ms`, the oldest first.

    The deliveries are read page by page, then the oldest are named to `recover` with their
    receipts: jobs that end meanwhile are left out, and no two callers take the same one.
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
