"""What a worker does with jobs that it holds ahead and should not: it gives them back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from penstock import Handlers, Penstock, Retry, Worker
from penstock.core import flows
from penstock.worker.polls import Finished
from penstock.worker.results import Verdict
from penstock.worker.state import WorkerState
from tests.support.keyspace import check_invariant
from tests.worker.stage import Stage


@pytest.fixture
def stage() -> Iterator[Stage]:
    """A worker of one queue with two runners, as if its last jobs had been short."""
    made = Stage(lambda _: 0, ["a"], concurrency=2)
    made.trip = 0.0001
    ahead = made.state.ahead
    assert ahead is not None
    ahead.extra = 98
    made.state.set_capacity(98)
    made.finish_one = lambda: None  # type: ignore[method-assign]  # handlers that take long
    yield made
    made.client.close()
    made.raw.close()


def held_after(stage: Stage, seconds: float) -> set[int]:
    """Return how many jobs it has held at that time and later, until twice that time."""
    answer, begin, found = stage._answer, stage.now, set[int]()

    def look(effect: flows.Effect) -> Any:
        stage.begin()
        if stage.now >= begin + seconds:
            found.add(len(stage.state.held))
        if stage.now >= begin + 2 * seconds:
            raise flows.Cancelled
        return answer(effect)

    stage._answer = look  # type: ignore[method-assign]
    stage.drive()
    return found


@pytest.mark.parametrize("terms", [{"priority": 5}, {"lease": 0.8}], ids=str)
def test_what_came_with_a_barred_job_is_given_back(stage: Stage, terms: dict[str, Any]) -> None:
    """The first of a reply bars holding ahead; what came with it must not wait for handlers."""
    stage.queues[0].enqueue_many(range(100), **terms)
    assert held_after(stage, 0.1) == {2}
    check_invariant(stage.raw)


def test_jobs_delivered_at_most_once_are_not_looked_at_again_and_again(stage: Stage) -> None:
    """They can't be given back, so they wait, and the loop rests meanwhile."""
    stage.queues[0].enqueue_many(range(60), lease=0)
    assert held_after(stage, 0.1) == {60}
    assert len(stage.calls) < 20


def test_a_handler_that_holds_the_queue_lets_no_other_job_begin(stage: Stage) -> None:
    """Those held ahead go back before the hold is made, and those that a call brings then."""
    queue, state = stage.queues[0], stage.state
    queue.enqueue_many(range(300))
    answer, is_told = stage._answer, False

    def tell(effect: flows.Effect) -> Any:
        nonlocal is_told
        stage.begin()
        if stage.runners.waiting() > 20 and not is_told:
            is_told = True
            (_, jobs) = stage.runners.items.pop(0)
            stage.runners.began.discard(jobs[0])
            jobs[0].settled = True
            hold = Verdict("nack", 60_000, "busy", hold="queue", hold_ms=60_000)
            state.finished.append(Finished(jobs, hold, 0.001))
            state.give_back_ahead()
            assert (state.is_hold_due, stage.runners.waiting()) == (True, 0)
        elif is_told and not state.is_hold_due and queue.stats().active == 1:
            raise flows.Cancelled
        return answer(effect)

    stage._answer = tell  # type: ignore[method-assign]
    stage.drive()
    assert is_told
    stats = queue.stats()
    assert (stats.held is not None, stats.nacked, state.taken) == (True, 1, 2)
    check_invariant(stage.raw)


def test_a_report_that_holds_the_queue_is_told(
    ps: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A runner tells it as soon as the handler has ended."""
    told = list[str]()
    monkeypatch.setattr(WorkerState, "give_back_ahead", lambda _: told.append("held"))
    handlers, queue = Handlers(), ps.queue("a")

    @handlers.handler
    def busy(again: bool) -> None:
        if again:
            raise Retry(after=60, hold="queue")

    busy.enqueue(queue, again=False)
    busy.enqueue(queue, again=True)
    Worker(ps, queue, handlers, burst=True, concurrency=1).run()
    assert told == ["held"]
