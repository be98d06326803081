"""Take jobs from queues, and wait for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from penstock.core.calls.operations import QueueOps, Taken
from penstock.core.calls.operations.consuming import Recovered
from penstock.core.flows import effects
from penstock.core.flows.effects import (
    Cancelled,
    Clock,
    Effect,
    EndWait,
    Listen,
    ReserveJobs,
    Run,
    SweepDue,
    WaitResult,
    poll_interval,
)
from penstock.core.jobs.job import ops_of
from penstock.core.values.checks import BATCH
from penstock.core.values.confirmations import Wait
from penstock.errors import CannotSync, DeliveryNotReplicated, PenstockError, ServerError
from penstock.wire import replies

__all__ = [
    "EXPIRED_JOBS_GRACE",
    "SILENT_QUEUE_PAUSE",
    "ReserveRequest",
    "ReserveRules",
    "recover",
    "reserve",
]

SILENT_QUEUE_PAUSE = 8.0
"""Seconds for which a consumer does not ask a queue that did not answer, while others do."""
EXPIRED_JOBS_GRACE = 0.2
"""Seconds for which a consumer whose time is over still looks behind expired jobs."""


@dataclass(frozen=True, slots=True)
class ReserveRules:
    """The queues of a consuming call, and how to ask them.

    Args:
        order: returns the queues in the order in which to ask them, and how many of them to ask for
            more when some jobs were taken.
        clock: returns monotonic seconds.
        transient: tells errors of the connection, which may pass by themselves, from others.
        noted: is told how many jobs a queue gave; None = it did not answer.
        apart: whether the queues lie on several servers. Then one that does not answer is left out
            as long as another one answers.
        unavailable: returns the error that no node has answered until the end of the wait; None =
            raise the failure at once.
    """

    order: Callable[[], tuple[Sequence[QueueOps], int]]
    clock: Clock
    transient: Callable[[BaseException], bool]
    noted: Callable[[QueueOps, int | None], None]
    apart: bool = False
    unavailable: Callable[[], PenstockError] | None = None


class ReserveRequest(NamedTuple):
    """The arguments of a consuming call.

    Attributes:
        n: limit of the jobs.
        block: seconds to wait, 0 = not at all, None = for ever.
        confirm: the confirmations of deliveries at most once; None = they are not waited for.
        seen: the reply, without jobs, that a queue gave a moment ago: it is not asked at first.
    """

    n: int
    block: float | None
    confirm: Wait | None = None
    seen: Mapping[QueueOps, Taken] = MappingProxyType({})


def reserve(rules: ReserveRules, request: ReserveRequest) -> Generator[Effect, Any, list[Any]]:
    """Take up to n jobs from queues, the first queue first; wait until there is one.

    The rules of waking apply (protocol/core.md, Waking): after popping a token, reserve on that
    queue before anything else; end the blocking pop before leaving the wait; before leaving,
    reserve nothing on a queue whose next event is near, which wakes another consumer.

    Raises:
        QueueClosed: every queue is closed and drained.
        NodesUnavailable: no node has answered.
        DeliveryNotReplicated: some deliveries at most once were not confirmed; it has all jobs that
            were taken.
        DeliveryNotReplicated, CannotSync: a server can't confirm any, and no other one has jobs.
    """
    clock = rules.clock
    deadline = math.inf if request.block is None else clock() + request.block
    watch = _TokenWatch(rules, request, max(deadline, clock() + EXPIRED_JOBS_GRACE))
    asked, lap = watch.queues, clock() + poll_interval(watch.queues, "consumer")
    while True:
        yield from watch.ask(asked)
        if watch.is_over and len(asked) < len(watch.queues):
            asked = watch.queues  # they were not found so at the same time
            continue
        if watch.jobs or watch.is_over or clock() >= deadline:
            break
        heard = yield from watch.wait(min(lap, deadline))
        now = clock()
        if now >= min(lap, deadline):
            asked, lap = watch.queues, now + poll_interval(watch.queues, "consumer")
        else:
            asked = [*heard.lost, *watch.due_by(now)]
        asked = list(dict.fromkeys([*heard.woken, *asked]))
    if watch.idle:
        # Jobs were taken, so this must not raise; other consumers look at their next poll.
        with suppress(Exception):
            yield from watch.leave()
    if watch.is_over:
        raise watch.queues[0].drained()
    if rules.unavailable is not None and not (watch.jobs or watch.is_answered):
        raise rules.unavailable() from watch.failure
    return watch.jobs


class _TokenWatch:
    """State of one `reserve`.

    Args:
        rules, request: as in `reserve`.
        until: time until which to look for jobs behind expired ones.

    Attributes:
        queues: the queues, in the order in which to ask them.
        jobs: the jobs taken.
        idle: whether it has waited.
        is_answered: whether any queue has answered.
        failure: the last failure of a connection.
    """

    def __init__(self, rules: ReserveRules, request: ReserveRequest, until: float) -> None:
        self._rules = rules
        self._n, self._confirm, self._seen = request.n, request.confirm, {**request.seen}
        self._until = until
        self.jobs: list[Any] = []
        self.idle = False
        self.is_answered = False
        self.failure: BaseException | None = None
        self._refusal: DeliveryNotReplicated | CannotSync | None = None
        self._tokens: set[QueueOps] = set()
        """Queues whose token this consumer took, and which it has not asked since."""
        self._due: dict[QueueOps, float] = {}
        """Time of the next event of each queue that has answered."""
        self._over: set[QueueOps] = set()
        """Queues that were closed and drained when they were asked last."""
        self._barred: dict[QueueOps, float] = {}
        """Time until which a queue that did not answer is not asked."""
        self._read_order()

    def _read_order(self) -> None:
        self.queues, eager = self._rules.order()
        self._eager = frozenset(self.queues[:eager])

    @property
    def is_over(self) -> bool:
        """True if nothing was taken, and every queue is closed and drained."""
        return not self.jobs and self._over.issuperset(self.queues)

    def due_by(self, now: float) -> list[QueueOps]:
        """Return the queues with an event by now, and those whose node is back."""
        return [ops for ops in self.queues if ops.is_up and self._due.get(ops, 0.0) <= now]

    def ask(self, asked: Sequence[QueueOps]) -> Generator[Effect, Any, None]:
        """Reserve on these queues until there are n jobs."""
        try:
            yield from self._ask(asked)
        except Cancelled:
            yield from _give_back(self.jobs)
            raise
        except PenstockError as error:  # another consumer has to use the token
            if self.idle and not isinstance(error, ServerError):
                with suppress(Exception):
                    yield from self.leave()
            raise

    def _ask(self, asked: Sequence[QueueOps]) -> Generator[Effect, Any, None]:
        now, apart = self._rules.clock(), self._rules.apart
        up = [ops for ops in asked if ops.is_up]
        failures = 0
        for ops in [ops for ops in up if self._barred.get(ops, 0.0) <= now] or up:
            if len(self.jobs) >= self._n or (self.jobs and ops not in self._eager):
                return
            failures += not (yield from self._ask_queue(ops, brief=apart))
        if failures == len(self.queues) and self._rules.unavailable is None and not self.jobs:
            yield from self._ask_queue(
                asked[0], brief=False
            )  # no server answers: be patient with one
        if self._refusal is not None and not self.jobs:
            raise self._refusal  # no other server has jobs, and those of this one wait

    def _ask_queue(self, ops: QueueOps, *, brief: bool) -> Generator[Effect, Any, bool]:
        """Reserve on a queue; return False if it does not answer, and others may have jobs.

        A script that finds only expired jobs removes a bounded number of them. It is called again
        until it finds another job, or until the time `until`.

        A call may fail after jobs were taken. After a failure of the connection the caller gets
        those jobs, and the next call reports the failure. A refusal (a key of another type) is
        raised now and the jobs are released; unless one of them is delivered at most once, as it
        would be lost.
        """
        rules, clock, had = self._rules, self._rules.clock, len(self.jobs)
        had_token = ops in self._tokens
        self._tokens.discard(ops)
        try:
            while True:
                wanted = min(self._n - len(self.jobs), BATCH)
                ask = ReserveJobs(ops, wanted, self.idle, brief, self._confirm)
                taken = self._seen.pop(ops, None) or (yield ask)
                self.jobs += taken.deliveries
                count = len(taken.deliveries)
                if taken.next_ms != 0 or 0 < count < wanted or len(self.jobs) >= self._n:
                    break
                if not count and clock() >= self._until:
                    break
        except (DeliveryNotReplicated, CannotSync) as error:
            return self._continue_without(ops, error, had_token=had_token, brief=brief)
        except Exception as error:
            if brief and rules.transient(error):
                self._note_failure(ops, error)
                return False
            if not self.jobs:
                raise
            if not (rules.transient(error) or any(job.at_most_once for job in self.jobs)):
                yield from _give_back(self.jobs)
                raise
            self._n = len(self.jobs)  # the caller gets these, and takes no more
            return True
        self.is_answered = True
        new_jobs = len(self.jobs) - had
        rules.noted(ops, new_jobs)
        is_near = not new_jobs and taken.next_ms > 0
        self._due[ops] = clock() + taken.next_ms / 1000 if is_near else math.inf
        self._over.discard(ops)
        if taken.is_over and not new_jobs:
            self._over.add(ops)
        return True

    def _continue_without(
        self,
        ops: QueueOps,
        error: DeliveryNotReplicated | CannotSync,
        *,
        had_token: bool,
        brief: bool,
    ) -> bool:
        """Skip a server that can't confirm. Raise if jobs were given up or no other server is left.

        Raises:
            DeliveryNotReplicated, CannotSync: the error.
        """
        if isinstance(error, DeliveryNotReplicated) and error.given_up:
            jobs = [*self.jobs, *error.jobs]
            raise DeliveryNotReplicated(
                error.wanted, error.got, error.fsynced, jobs=jobs, given_up=error.given_up
            ) from None
        self.is_answered = True
        if had_token:  # another consumer may use the token
            self._tokens.add(ops)
        if not (brief or self.jobs):
            raise error
        if brief:
            self._due[ops], self._refusal = math.inf, error.with_traceback(None)
            self._over.discard(ops)
        else:
            self._n = len(self.jobs)  # the caller gets these, and takes no more
        return True

    def _note_failure(self, ops: QueueOps, error: BaseException) -> None:
        self.failure = error
        self._due.pop(ops, None)  # it may be up again before the wait
        if ops.node is None:  # else the state of its node says when to ask it again
            self._barred[ops] = self._due[ops] = self._rules.clock() + SILENT_QUEUE_PAUSE
            self._rules.noted(ops, None)

    def wait(self, until: float) -> Generator[Effect, Any, WaitResult]:
        """Wait for tokens, a due time or this time.

        A drained queue is left out, as its token is always there.
        """
        self.idle = True
        self._due = {ops: at for ops, at in self._due.items() if ops.is_up}
        listened = tuple(ops for ops in self.queues if ops.is_up and ops not in self._over)
        try:
            with suppress(Exception):  # the next idle client sweeps as well
                yield SweepDue(tuple(self.queues))
            heard: WaitResult = yield Listen(listened, min([until, *self._due.values()]))
        except Cancelled:
            yield from self.leave()
            raise
        self._tokens.update(heard.woken)
        self._read_order()
        return heard

    def leave(self) -> Generator[Effect, Any, None]:
        """End the wait; hand on its tokens, and near events that only this consumer knows of."""
        rules = self._rules
        next_poll = rules.clock() + effects.POLL_INTERVAL
        self._tokens.update((yield EndWait()).woken)
        for ops in self.queues:
            if ops.is_up and (ops in self._tokens or self._due.get(ops, math.inf) <= next_poll):
                # If one refuses or does not answer, the others are still told.
                try:
                    yield ReserveJobs(ops, 0, True, rules.apart)
                except Exception as error:
                    is_refusal = isinstance(error, PenstockError)
                    if not rules.apart and (isinstance(error, ServerError) or not is_refusal):
                        raise


def _give_back(jobs: Sequence[Any]) -> Generator[Effect, Any, None]:
    """Release jobs that no caller has seen, except those delivered at most once.

    If that fails, they return after their lease.
    """
    by_queue: dict[QueueOps, list[Any]] = {}
    for job in jobs:
        if not job.at_most_once:
            by_queue.setdefault(ops_of(job), []).append(job)
    for ops, own in by_queue.items():
        for at in range(0, len(own), BATCH):
            with suppress(Exception):
                yield Run(ops.release(own[at : at + BATCH], -1))


def recover(ops: QueueOps, n: int, idle_ms: int) -> Generator[Effect, Any, list[Any]]:
    """Take over up to n deliveries that are older than `idle_ms`, the oldest first.

    The deliveries are read page by page, then the oldest are named to `recover` with their
    receipts: jobs that end meanwhile are left out, and no two callers take the same one.
    """
    pending, epoch = yield from _list_pending(ops, idle_ms)
    pending.sort()
    jobs: list[Any] = []
    at = 0
    while at < len(pending) and len(jobs) < n:
        part = pending[at : at + min(n - len(jobs), BATCH)]
        pairs = [text for _, number, receipt in part for text in (number, receipt)]
        taken: Recovered = yield Run(ops.recover(epoch, pairs))
        jobs += taken.deliveries
        if taken.seen == 0:
            break
        at += taken.seen
    return jobs


def _list_pending(
    ops: QueueOps, idle_ms: int
) -> Generator[Effect, Any, tuple[list[tuple[int, bytes, bytes]], str]]:
    pending: dict[bytes, tuple[int, bytes, bytes]] = {}
    score: bytes | str = "-inf"
    skip, epoch = 0, ""
    while score:
        reply: replies.Pending = yield Run(ops.pending(score, skip, idle_ms))
        epoch, score, skip = reply.epoch.decode(), reply.score, reply.skip
        for number, receipt, delivered in reply.deliveries:
            pending[number] = (int(delivered), number, receipt)
    return list(pending.values()), epoch
