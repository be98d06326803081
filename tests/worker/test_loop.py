"""The worker's loop as a flow: no job is lost, whatever fails and whenever handlers end.

The test drives the flow by hand on fakeredis: it answers its effects, lets calls fail before or
after they ran, ends handlers in any order, and stops the worker at any time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from redis.exceptions import ResponseError

from penstock import CannotSync, DeliveryNotReplicated, Queue, QueueDamaged, QueueInUse
from penstock.core import flows
from penstock.core.calls.operations import Taken
from penstock.core.jobs.job import term_of
from penstock.worker.concerns import leave_out
from penstock.worker.deliveries import take_reply
from penstock.worker.loop import work
from penstock.worker.polls import Finished
from penstock.worker.results import NO_REPORT
from penstock.worker.state import HEALTHY_SECONDS
from penstock.worker.taking import read_sizes
from tests.support.keyspace import check_invariant
from tests.worker.stage import Stage, ignore

FAR = 3_600_000
THOROUGH = settings(max_examples=min(60, settings().max_examples), deadline=None)
"""Fewer in a short run."""


def _idle() -> None:
    pass


def _first(count: int) -> int:
    del count
    return 0


@pytest.fixture
def many() -> Iterator[Callable[..., Stage]]:
    """Return a function that makes stages, which are closed at the end."""
    made: list[Stage] = []

    def make(*args: Any, **options: Any) -> Stage:
        made.append(Stage(*args, **options))
        return made[-1]

    yield make
    for stage in made:
        stage.client.close()
        stage.raw.close()


def figures(queues: Sequence[Queue]) -> Counter[str]:
    """Return the sum of the counters of the queues."""
    found: Counter[str] = Counter()
    for queue in queues:
        stats = queue.stats()
        for name in ("ready", "scheduled", "active", "dead", "acked", "nacked", "crashed"):
            found[name] += getattr(stats, name)
    return found


def staged(data: st.DataObject, **options: Any) -> Stage:
    """Return a stage with one or two queues and few runners, chosen by Hypothesis."""
    return Stage(
        lambda n: data.draw(st.integers(0, n - 1)) if n > 1 else 0,
        ["a", "b"][: data.draw(st.integers(1, 2), label="queues")],
        concurrency=data.draw(st.integers(1, 3), label="concurrency"),
        prefetch=data.draw(st.sampled_from([None, 0, 1, 3]), label="prefetch"),
        batches=data.draw(st.booleans(), label="batches"),
        **options,
    )


@settings(THOROUGH)
@given(data=st.data())
def test_no_job_is_lost(data: st.DataObject) -> None:
    """Every job ends with its handler's result; jobs of lost replies stay leased."""
    stage = staged(data, burst=True)
    total = 0
    for queue in stage.queues:
        jobs = data.draw(st.integers(0, 9), label="jobs")
        batched = data.draw(st.integers(0, 4), label="batched")
        queue.enqueue_many(range(jobs))
        queue.enqueue_many(range(batched), headers=stage.batched)
        total += jobs + batched
    stage.faults = data.draw(st.integers(0, 4), label="faults")
    lost_replies = stage.faults
    stage.drive()
    found = figures(stage.queues)
    assert found["ready"] == 0
    assert found["acked"] + found["scheduled"] + found["dead"] + found["active"] == total
    if not lost_replies:
        counts = Counter(stage.state.statistics.snapshot().counts)
        assert found["active"] == 0
        assert (counts["done"], counts["rejected"]) == (found["acked"], found["dead"])
        assert counts["retried"] == found["nacked"]
        assert counts["retried"] + counts["snoozed"] == found["scheduled"]
    assert not stage.state.held
    assert not stage.state.unsettled
    assert not stage.state.finished
    check_invariant(stage.raw)
    stage.client.close()
    stage.raw.close()


@settings(THOROUGH)
@given(data=st.data())
def test_a_stopped_worker_releases_its_jobs(data: st.DataObject) -> None:
    """After a stop no job stays leased, and only reported attempts are charged.

    The event loop may end after the stop, also while the worker leaves: then the grace ends.
    """
    stage = staged(data, grace=data.draw(st.sampled_from([0, 3, 1000]), label="grace"))
    for queue in stage.queues:
        queue.enqueue_many(range(data.draw(st.integers(0, 9), label="jobs")))
        queue.enqueue_many(range(2), headers=stage.batched)
    total = sum(queue.stats().ready for queue in stage.queues)
    steps = data.draw(st.integers(0, 30), label="steps")
    end = data.draw(st.integers(0, 12), label="effects until the end of the event loop")
    answer = stage._answer

    def stopping(effect: flows.Effect) -> Any:
        nonlocal steps, end
        steps -= 1
        if steps == 0:
            stage.state.stop()
        end -= steps < 0
        if steps < 0 and end == 0:
            raise flows.Cancelled
        return answer(effect)

    stage._answer = stopping  # type: ignore[method-assign]  # the loop is stopped at this effect
    if steps == 0:
        stage.state.stop()
    stage.drive()
    found = figures(stage.queues)
    assert found["active"] == 0
    assert found["acked"] + found["scheduled"] + found["dead"] + found["ready"] == total
    assert found["crashed"] == 0
    assert found["nacked"] == stage.state.statistics.snapshot().counts.get("retried", 0)
    check_invariant(stage.raw)
    stage.client.close()
    stage.raw.close()


def test_the_event_loop_ends_while_a_worker_leaves(many: Callable[..., Stage]) -> None:
    """The jobs are given back all the same."""
    stage = many(_first, ["a"], concurrency=2)
    stage.queues[0].enqueue_many(range(2))
    answer, ends = stage._answer, iter([True])

    def ending(effect: flows.Effect) -> Any:
        if len(stage.runners.items) == 2:
            stage.state.stop(0)
        if isinstance(effect, flows.GiveUpSoon) and next(ends, False):
            raise flows.Cancelled
        return answer(effect)

    stage._answer = ending  # type: ignore[method-assign]  # as above
    stage.drive()
    assert next(ends, False) is False
    assert figures(stage.queues)["ready"] == 2


@settings(THOROUGH)
@given(data=st.data())
def test_a_queue_that_refuses_calls_holds_up_no_other(data: st.DataObject) -> None:
    """Whatever calls of a queue fail in scripts, the other's jobs are done, and no job vanishes."""
    stage = Stage(
        lambda n: data.draw(st.integers(0, n - 1)) if n > 1 else 0,
        ["a", "b"],
        concurrency=data.draw(st.integers(1, 3), label="concurrency"),
        batches=True,
    )
    bad, good = stage.queues
    bad.enqueue_many(range(6))
    good.enqueue_many(range(9))
    good.enqueue_many(range(2), headers={"handler": "batch"})
    answer = stage._answer

    def refusing(effect: flows.Effect) -> Any:
        found = figures([good])
        if found["ready"] + found["active"] == 0:
            stage.state.stop(0)
        is_bad = isinstance(effect, flows.Run) and b"{a}" in effect.call.head[1]
        if is_bad and data.draw(st.integers(0, 2), label="refused"):
            stage.has_failed = True
            raise ResponseError("user_script:1: attempt to compare number with nil")
        return answer(effect)

    stage._answer = refusing  # type: ignore[method-assign]  # calls of one queue are refused
    stage.drive()
    found = figures([good])
    assert (found["ready"], found["active"]) == (0, 0)
    assert found["acked"] + found["scheduled"] + found["dead"] == 11
    found = figures([bad])
    places = ("ready", "scheduled", "active", "dead", "acked")
    assert sum(found[place] for place in places) == 6
    assert stage.state.failures == 0
    check_invariant(stage.raw)
    stage.client.close()
    stage.raw.close()


def test_a_waiting_worker_that_fills_up_passes_its_token_on(many: Callable[..., Stage]) -> None:
    """A token that arrives while a full worker ends its wait is put back for another consumer."""
    stage = many(_first, ["a"], concurrency=1)
    queue, state = stage.queues[0], stage.state
    flow = work(state, ignore)
    effect = next(flow)
    while not isinstance(effect, flows.Listen):  # no job is there
        effect = flow.send(stage._answer(effect))
    queue.enqueue_many([1, 2])
    state.polls[0].at = 0.0  # as at a due time: reserves without having popped the token
    effect = flow.send(flows.WaitResult())
    assert isinstance(effect, flows.Run)
    effect = flow.send(stage._run(effect))
    assert isinstance(effect, flows.EndWait)
    assert len(state.held) == 1
    told = stage._tokens([queue.ops])
    assert told == (queue.ops,)
    effect = flow.send(flows.WaitResult(told))
    assert isinstance(effect, flows.Run)
    flow.send(stage._run(effect))
    assert stage.raw.llen(queue.ops.keys["wake"]) == 1
    flow.close()


def test_a_kept_job_is_not_reported(many: Callable[..., Stage]) -> None:
    """A job that its handler settled, or that another worker holds, needs no report."""
    stage = many(_first, ["a"], concurrency=1, burst=True)
    stage.queues[0].enqueue(1)
    hand = stage.state.dispatcher.hand

    def handed(jobs: Sequence[Any]) -> None:
        hand(jobs)
        stage.runners.items.clear()
        for job in jobs:
            job.settled = True
            stage.state.finished.append(Finished((job,), NO_REPORT, 0.0))

    stage.state.dispatcher.hand = handed  # type: ignore[method-assign]  # a handler that settles its job
    stage.drive()
    assert stage.queues[0].stats().active == 1
    assert stage.state.statistics.snapshot().counts == {"settled": 1}


def test_a_lease_counts_from_the_last_sending(many: Callable[..., Stage]) -> None:
    """A reply later than the lease does not make the job lost if the call was resent."""
    stage = many(_first, ["a"])
    stage.queues[0].configure(lease=3)
    stage.queues[0].enqueue("x")

    def resend(effect: flows.Run) -> Any:
        stage.now += 5
        reply = stage.client.topology.executor.run(effect.call)
        effect.call.resent = stage.now
        return reply

    flow = work(stage.state, ignore)
    effect = next(flow)
    while not stage.state.held:
        is_run = isinstance(effect, flows.Run)
        effect = flow.send(resend(effect) if is_run else stage._answer(effect))
    (job,) = stage.state.held
    assert term_of(job).until == stage.now + 3
    flow.close()


def test_the_lease_of_a_reserve_behind_a_wait_counts_from_its_run(
    many: Callable[..., Stage],
) -> None:
    """A worker that was stopped for ten minutes after it knows how long ago the reserve ran."""
    stage = many(_first, ["a"])
    (queue,) = stage.queues
    queue.configure(lease=3600)
    queue.enqueue("first")
    flow = work(stage.state, ignore)
    effect = next(flow)
    while not (isinstance(effect, flows.Listen) and effect.follow is not None):
        effect = flow.send(stage._answer(effect))
    queue.enqueue("second")
    asked_at = stage.now
    taken = stage.client.topology.executor.run(effect.follow())
    stage.now += 600
    flow.send(flows.WaitResult(taken=taken))
    (job,) = [job for job in stage.state.held if job.body == "second"]
    assert term_of(job).until < asked_at + 3600 + 300
    flow.close()


class Slow:
    """A worker on a network with a given round trip; its jobs end with the next call.

    Args:
        stage: with one queue.
        lease: of the queue, or of its jobs if it is `own`.
    """

    def __init__(self, stage: Stage, *, lease: float, own: bool = False) -> None:
        self.stage, self.queue = stage, stage.queues[0]
        stage.follows = False  # no trip is measured then
        self.queue.configure(lease=30 if own else lease)
        self.queue.enqueue_many(range(6), lease=lease if own else None)
        self._flow = work(stage.state, ignore)
        self._effect: Any = next(self._flow)

    def step(self, trip: float, calls: int) -> None:
        """Continue until this many more calls were made."""
        self.stage.trip, most = trip, len(self.stage.calls) + calls
        while len(self.stage.calls) < most:
            self._effect = self._flow.send(self.stage._answer(self._effect))

    def close(self) -> None:
        """End the flow where it is."""
        self._flow.close()


@pytest.mark.parametrize("lease", [0.5, 2.0, 4.0])
def test_no_jobs_are_taken_over_trips_too_long_for_their_leases(
    many: Callable[..., Stage], caplog: pytest.LogCaptureFixture, lease: float
) -> None:
    """If round trips are too long for the lease, no job is reserved, not even the first.

    The worker logs this once. When trips are shorter, jobs are reserved.
    """
    slow = Slow(many(_first, ["a"]), lease=lease)
    slow.step(2.4, 20)
    assert (slow.queue.stats().ready, slow.queue.stats().crashed) == (6, 0)
    assert slow.stage.state.held == {}
    assert [text for text in caplog.messages if "no jobs are reserved" in text] == [
        (
            f"queue 'a': a round trip takes 2.40 s, too long for leases of {lease:.2f} s; no jobs "
            "are reserved until it is shorter. Set a longer lease with configure(lease=...)"
        )
    ]
    slow.step(0.01, 5)
    assert slow.stage.state.held
    assert "jobs are reserved again" in caplog.text
    slow.close()


def test_a_queue_with_long_trips_that_failed_is_looked_at(many: Callable[..., Stage]) -> None:
    """Nothing else asks it: a reserve waits until a look has measured a shorter trip.

    Found by the simulation: a worker never took jobs again of a node that was slow, then down.
    """
    state = many(_first, ["a"]).state
    (poll,) = state.polls
    poll.failures, poll.barred = 1, state.clock()
    assert not list(read_sizes(state, busy=False))
    poll.is_slow = True
    assert isinstance(next(read_sizes(state, busy=False)), flows.Run)
    poll.barred = state.clock() + 1
    assert not list(read_sizes(state, busy=False))


@pytest.mark.parametrize("own", [False, True], ids=["of the queue", "of the jobs"])
def test_leases_are_lengthened_for_long_trips(
    many: Callable[..., Stage], caplog: pytest.LogCaptureFixture, own: bool
) -> None:
    """Leases are extended to eight round trips, with one log record a minute."""
    slow = Slow(many(_first, ["a"]), lease=2, own=own)
    slow.step(0.8, 3)
    (job, _) = slow.stage.state.held
    assert term_of(job).lease == pytest.approx(6.4)
    assert term_of(job).renewal(2 / 3) < slow.stage.now
    assert term_of(job).until == pytest.approx(slow.stage.now + 1.2)
    slow.step(0.8, 10)
    assert len([text for text in caplog.messages if "are lengthened to 6.40 s" in text]) == 1
    slow.close()


def test_jobs_whose_lease_ended_during_the_reserve_are_not_run(
    many: Callable[..., Stage], caplog: pytest.LogCaptureFixture
) -> None:
    """Round trips became long during a reserve: its jobs are not run, and reserving pauses."""
    slow = Slow(many(_first, ["a"]), lease=2)
    slow.step(0.01, 2)
    slow.step(2.4, 10)
    assert (slow.stage.state.held, slow.stage.runners.items) == ({}, [])
    assert slow.stage.state.statistics.snapshot().counts == {"lost": 2}
    assert (slow.queue.stats().ready, slow.queue.stats().active) == (4, 2)
    assert "the leases of 2 jobs ended before the jobs arrived" in caplog.text
    slow.close()


def test_one_job_with_a_short_lease_on_a_slow_network(many: Callable[..., Stage]) -> None:
    """One job shows that leases of jobs are shorter than the queue's: reserving stops."""
    slow = Slow(many(_first, ["a"]), lease=2, own=True)
    slow.step(1.4, 10)
    assert slow.queue.stats().ready == 4
    slow.step(0.01, 8)
    assert slow.queue.stats().ready < 4
    slow.close()


def test_an_idle_worker_sweeps_its_queues(many: Callable[..., Stage]) -> None:
    """A worker sweeps its usable queues when it begins to wait, not while it has a job."""
    stage = many(_first, ["a", "b"])
    stage.state.polls[1].failures = 1
    stage.state.polls[1].barred = math.inf
    flow = work(stage.state, ignore)
    effect = next(flow)
    while not isinstance(effect, flows.Listen):
        effect = flow.send(stage._answer(effect))
    assert stage.swept == ["a"]
    flow.close()


def test_a_report_is_not_held_back(many: Callable[..., Stage]) -> None:
    """A result finished while the worker waits is reported in the next call."""
    stage = many(_first, ["a"], concurrency=2)
    queue = stage.queues[0]
    queue.enqueue(1)
    flow = work(stage.state, ignore)
    effect = next(flow)
    while not (isinstance(effect, flows.Listen) and stage.runners.items):
        effect = flow.send(stage._answer(effect))
    now = stage.now
    stage.finish_one()
    effect = flow.send(flows.WaitResult())  # the runner's signal has ended the wait
    assert isinstance(effect, flows.Run)
    assert effect.call.script.name == "ack"
    assert stage.now == now
    flow.send(stage._run(effect))
    assert queue.stats().acked == 1
    flow.close()


def test_a_report_is_not_held_back_by_a_role(many: Callable[..., Stage]) -> None:
    """Another client has the consumer role: no job is reserved, but finished ones are reported."""
    stage = many(_first, ["a"], concurrency=2)
    queue = stage.queues[0]
    queue.enqueue(1)
    flow = work(stage.state, ignore)
    effect = next(flow)
    while not (isinstance(effect, flows.Listen) and stage.runners.items):
        effect = flow.send(stage._answer(effect))
    with queue.exclusive("consumer", lease=600):
        finish, stage.finish_one = stage.finish_one, _idle  # type: ignore[method-assign]  # not yet
        asked, since = 0, stage.now
        while stage.now < since + 20 or not isinstance(effect, flows.Rest):
            asked += isinstance(effect, flows.Run) and effect.call.script.name.startswith("reserve")
            try:
                answer = stage._answer(effect)
            except QueueInUse as error:
                effect = flow.throw(error)
            else:
                effect = flow.send(answer)
        assert 5 <= asked <= 12  # more often at first, then at a tick, without waiting for a token
        now = stage.now
        finish()
        effect = flow.send(flows.WaitResult())  # the runner's signal has ended the wait
        assert isinstance(effect, flows.Run)
        assert effect.call.script.name == "ack"
        effect = flow.send(stage._run(effect))
        assert stage.now == now
        assert queue.stats().acked == 1
        assert not isinstance(effect, flows.Run)  # and the role is not asked for again
    flow.close()


def test_a_token_without_confirmations_is_handed_on(many: Callable[..., Stage]) -> None:
    """A worker that takes no job, as its delivery can't be confirmed, wakes another consumer."""
    for error in (DeliveryNotReplicated(1, 0, connected=0), CannotSync("no append-only file")):
        stage = many(_first, ["a"])
        flow = work(stage.state, ignore)
        effect = next(flow)
        while not isinstance(effect, flows.Listen):
            effect = flow.send(stage._answer(effect))
        calls = [flow.send(flows.WaitResult(effect.queues))]
        calls.append(flow.throw(error))
        asked = []
        for effect in calls:
            assert isinstance(effect, flows.Run)
            names = effect.call.script.args[1:]  # without the nonce
            given = dict(zip(names, effect.call.args, strict=False))
            asked.append((given["n"] != b"0", given["idle"]))
        assert asked == [(True, b"1"), (False, b"1")]
        flow.close()


def test_health_while_no_queue_can_be_used(many: Callable[..., Stage]) -> None:
    """A worker is unhealthy if all its queues have refused each reserve for 15 seconds."""
    for error in (DeliveryNotReplicated(1, 0), QueueDamaged("another type")):
        stage = many(_first, ["a", "b"])
        state, (first, second) = stage.state, stage.state.polls
        leave_out(state, first, error)
        stage.now += HEALTHY_SECONDS
        leave_out(state, second, error)
        state.note_answer()
        assert state.is_healthy
        stage.now += HEALTHY_SECONDS
        state.note_answer()
        leave_out(state, first, error)
        assert not state.is_healthy
        take_reply(state, first, Taken(-1, []), wanted=0, sent=stage.now)
        assert state.is_healthy


def test_a_burst_without_the_role_ends(many: Callable[..., Stage]) -> None:
    """In burst mode a worker without the role ends after its running jobs are reported."""
    stage = many(_first, ["a"], concurrency=1, burst=True)
    queue = stage.queues[0]
    queue.enqueue_many([1, 2])
    hand, role = stage.state.dispatcher.hand, queue.exclusive("consumer", lease=600)

    def handed(jobs: Sequence[Any]) -> None:
        hand(jobs)
        role.take()

    stage.state.dispatcher.hand = handed  # type: ignore[method-assign]  # takes the role
    stage.drive()
    stats = queue.stats()
    assert (stats.acked, stats.active, stats.ready) == (1, 0, 1)
    role.release()


def test_jobs_that_are_held_ahead_are_given_back(many: Callable[..., Stage]) -> None:
    """Short jobs are held ahead; when those that run take long, the others are free after 30 ms.

    Nothing is counted for them, and nothing is held ahead any more.
    """
    stage = many(_first, ["a"], concurrency=2)
    stage.trip = 0.0001
    (queue,) = stage.queues
    queue.enqueue_many(range(400))
    answer, finish = stage._answer, stage.finish_one
    most, began = 0, 0.0

    def stop_when_given_back(effect: flows.Effect) -> Any:
        nonlocal most, began
        most = max(most, stage.state.capacity)
        if stage.runners.waiting() > 20 and not began:
            stage.begin()
            stage.finish_one, began = _idle, stage.now  # type: ignore[method-assign]
        if began and queue.stats().active == 2 and not stage.state.stopping:
            assert stage.now == pytest.approx(began + 0.03, abs=0.01)
            assert (most > 20, stage.state.capacity) == (True, 2)
            assert {view.releases for view in queue.peek(50)} == {0}
            assert (stage.raw.hget(queue.ops.keys["meta"], "released"), most < 301) == (None, True)
            stage.finish_one = finish  # type: ignore[method-assign]
            stage.state.stop()
        return answer(effect)

    stage._answer = stop_when_given_back  # type: ignore[method-assign]
    stage.drive()
    assert stage.state.stopping
    assert "handed back" not in stage.state.statistics.snapshot().counts
    check_invariant(stage.raw)


@pytest.mark.parametrize(
    "settings",
    [
        {"rate": "1000000/s"},
        {"ordered": True},
        {"per_key": 5},
        {"share": 1},
        {"key_rate": "1000000/s"},
        {"max_active": 500},
        {"lease": 0.5},
        {},
    ],
    ids=str,
)
def test_a_limit_counts_no_job_that_only_waits(
    many: Callable[..., Stage], settings: dict[str, Any]
) -> None:
    """With a limit, an order, a short lease or a priority, only jobs that can begin are held."""
    stage = many(_first, ["a"], concurrency=2, burst=True)
    stage.trip = 0.0001
    (queue,) = stage.queues
    queue.configure(**settings)
    queue.enqueue_many(range(100), priority=0 if settings else 5, key="k" if settings else None)
    answer, most = stage._answer, 0

    def note(effect: flows.Effect) -> Any:
        nonlocal most
        most = max(most, len(stage.state.held))
        return answer(effect)

    stage._answer = note  # type: ignore[method-assign]
    stage.drive()
    assert most <= 2
    assert queue.stats().acked == 100
