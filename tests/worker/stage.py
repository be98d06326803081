"""The loop of a worker on fakeredis, driven by hand, for tests of the flow."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import fakeredis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from penstock import Handlers, Penstock, PenstockError
from penstock.core import flows
from penstock.core.calls.call import Call
from penstock.core.calls.operations import QueueOps
from penstock.worker.dispatcher import Dispatcher
from penstock.worker.loop import work
from penstock.worker.options import WorkerOptions
from penstock.worker.polls import Finished, QueuePoll
from penstock.worker.results import ACK, Verdict
from penstock.worker.state import WorkerState

__all__ = ["Runners", "Stage", "ignore"]

FAR = 3_600_000
VERDICTS = (
    ACK,
    ACK,
    ACK,
    Verdict("nack", FAR, "no"),
    Verdict("release", FAR),
    Verdict("bury", text="bad"),
)


class Runners:
    """A stand-in for runners that holds its jobs until the test ends them."""

    def __init__(self) -> None:
        self.items: list[tuple[Any, Sequence[Any]]] = []
        self.lost: list[Any] = []
        self.began: set[Any] = set()

    def put(self, item: tuple[Any, Sequence[Any]]) -> None:
        self.items.append(item)

    def waiting(self) -> int:
        return len(self.items) - len(self.began)

    def drain(self) -> list[tuple[Any, Sequence[Any]]]:
        found = [item for item in self.items if item[1][0] not in self.began]
        self.items = [item for item in self.items if item[1][0] in self.began]
        return found

    def lose(self, jobs: Sequence[Any]) -> None:
        for job in jobs:
            job.lost = True
        self.lost += jobs


class Stage:
    """A worker state on fakeredis, with a clock that the loop's rests move, and random decisions.

    Args:
        draw: decides: a whole number from 0 up to what is given, exclusive.
        names: of the queues.
        batches: whether there is a chunk handler.
        options: of the worker.
    """

    def __init__(
        self,
        draw: Callable[[int], int],
        names: Sequence[str],
        *,
        batches: bool = False,
        **options: Any,
    ) -> None:
        self.draw = draw
        self.now = 1000.0
        self.raw = fakeredis.FakeRedis()
        self.client = Penstock(self.raw, retry_for=0).connect()
        self.queues = [self.client.queue(name) for name in names]
        self.runners = Runners()
        self.batched: dict[str, str] = {"handler": "batch"} if batches else {}
        handlers = Handlers()
        handlers.handler(None)(_nothing)
        if batches:
            handlers.chunk("batch", size=3, wait=5)(_nothing)
        options = {"concurrency": 2, **options}
        self.options = WorkerOptions(dict.fromkeys(names, 1), **options)
        self.woken = False
        self.state = WorkerState(
            [QueuePoll(queue.ops) for queue in self.queues],
            Dispatcher(handlers, self.runners, return_unknown=self._unknown, clock=self._clock),
            wake=self._wake,
            clock=self._clock,
            options=self.options,
        )
        self.most_held = 0
        self.faults = 0
        self.has_failed = False
        self.trip = 0.0
        self.follows = True
        self.behind: Call[Any] | None = None
        self.calls: list[str] = []
        self.swept: list[str] = []

    def _clock(self) -> float:
        return self.now

    def _wake(self) -> None:
        self.woken = True

    def _unknown(self, job: Any) -> None:
        raise AssertionError(f"there is a handler for {job}")

    # -- handlers --------------------------------------------------------------------------

    def begin(self) -> None:
        """Start waiting jobs up to the number of runners."""
        for _, jobs in self.runners.items:
            if len(self._begun()) < self.options.concurrency:
                self.runners.began.add(jobs[0])

    def _begun(self) -> list[Sequence[Any]]:
        return [jobs for _, jobs in self.runners.items if jobs[0] in self.runners.began]

    def finish_one(self) -> None:
        """End one of the handlers."""
        self.begin()
        begun = self._begun()
        if not begun:
            return
        jobs = begun[self.draw(len(begun))]
        self.runners.items = [item for item in self.runners.items if item[1] is not jobs]
        self.runners.began.discard(jobs[0])
        seconds = 0.0 if self.state.ahead is None else (0.00001, 0.05)[self.draw(2)]
        verdict = VERDICTS[self.draw(len(VERDICTS))]
        for job in jobs:
            job.settled = True
        self.state.finished.append(Finished(jobs, verdict, seconds))
        self.woken = True

    # -- effects ---------------------------------------------------------------------------

    def drive(self, *, most: int = 2000) -> None:
        """Answer the loop until it ends."""
        flow = work(self.state, ignore)
        answer: Any = None
        error: BaseException | None = None
        try:
            effect = next(flow)
            for _ in range(most):
                try:
                    answer, error = self._answer(effect), None
                except (RedisError, PenstockError, flows.Cancelled) as failed:
                    error = failed
                effect = flow.send(answer) if error is None else flow.throw(error)
                self._look()
        except (StopIteration, flows.Cancelled):
            return
        raise AssertionError("the loop does not end")

    def _look(self) -> None:
        """Check that no more jobs are held than allowed.

        Those whose reports can't be made now are extra, and so are lost replies on the server. When
        fewer may be held ahead than before, those that are there stay for a while.
        """
        active = sum(self.raw.zcard(queue.ops.keys["active"]) for queue in self.queues)
        held, capacity = len(self.state.held) - self._waiting(), self.state.capacity
        self.most_held = (
            capacity if max(active, held) <= capacity else max(self.most_held, capacity)
        )
        assert active <= self.most_held or self.has_failed
        assert held <= self.most_held

    def _waiting(self) -> int:
        """Count the jobs whose reports were refused, or wait for a queue that has failed."""
        return sum(
            len(done.jobs)
            for poll, reports in self.state.unsettled.items()
            for finished in reports.values()
            for done in finished
            if done.tries or done.stands_in or poll.failures
        )

    def _answer(self, effect: flows.Effect) -> Any:
        for _ in range(self.draw(3)):
            self.finish_one()
        if isinstance(effect, flows.Run):
            return self._run(effect)
        if isinstance(effect, flows.Listen):
            return self._listen(effect)
        if isinstance(effect, flows.Rest):
            self._pass(effect.until)
            return None
        if isinstance(effect, flows.EndWait):
            listened = () if self.draw(2) else [poll.ops for poll in self.state.listened]
            return flows.WaitResult(self._tokens(listened), taken=self._ran_behind())
        if isinstance(effect, flows.SweepDue):
            assert not self.state.held
            self.swept += [ops.name for ops in effect.queues]
            return None
        if isinstance(effect, flows.CloseConnections):
            self.behind = None
        assert isinstance(effect, (flows.CloseConnections, flows.GiveUpSoon, flows.LetRunnersStart))
        return None

    def _ran_behind(self) -> Any:
        """Run the reserve that was sent behind the wait, as the server does when that has ended."""
        call, self.behind = self.behind, None
        if call is None or not self.draw(6):  # the script was not loaded
            return None
        taken = self.client.topology.executor.run(call)
        self.state.polls[0].asked_at = self.now  # the queue's clock does not run in these tests
        self.now += self.trip
        return taken

    def _run(self, effect: flows.Run) -> Any:
        chance = self.draw(12) if self.faults > 0 else 11
        if chance < 2:
            self.faults -= 1
            self.has_failed = True
        if chance == 0:
            raise RedisConnectionError("before it was sent")
        reply = self.client.topology.executor.run(effect.call)
        self.now += self.trip
        self.calls.append(effect.call.script.name)
        if chance == 1:
            raise RedisConnectionError("after it was run")
        return reply

    def _listen(self, effect: flows.Listen) -> flows.WaitResult:
        assert self.state.free + self._waiting() > 0
        if self.woken:
            self.woken = False
            return flows.WaitResult()
        if self.behind is None and self.follows and effect.follow is not None:
            self.behind = effect.follow()
        told = self._tokens(effect.queues)
        if not told:
            self._pass(effect.until)
            if self.draw(2):  # the BLPOP has not ended yet
                return flows.WaitResult()
        if self.behind is not None and self.faults > 0 and not self.draw(12):
            self.faults -= 1
            self._ran_behind()  # its answer is lost, and the token
            return flows.WaitResult(lost=effect.queues)
        return flows.WaitResult(told, taken=self._ran_behind())

    def _tokens(self, queues: Sequence[QueueOps]) -> tuple[QueueOps, ...]:
        """The first queue that has a token, which is taken."""
        return tuple(islice((ops for ops in queues if self.raw.lpop(ops.keys["wake"])), 1))

    def _pass(self, until: float) -> None:
        assert math.isfinite(until)
        self.finish_one()
        if not self.woken:
            self.now = max(self.now, until)
        self.woken = False


def _nothing(job: Any) -> None:
    del job


def ignore(got: int) -> None:
    """Do nothing after a round."""
    del got
