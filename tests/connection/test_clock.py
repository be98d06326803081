"""Steps of the server's clock, on fakeredis, which uses the clock of the process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import fakeredis
import pytest

from penstock import BadArgument, Penstock, Queue, Worker, parse_id
from penstock.worker import schedules
from tests.support.twins import wait_for


class Steps:
    """A clock with an offset that the test sets.

    Attributes:
        offset: seconds by which it is wrong.
    """

    def __init__(self) -> None:
        self.offset = 0.0
        self._real = time.time

    def __call__(self) -> float:
        return self._real() + self.offset


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    """The clock used by fakeredis."""
    made = Steps()
    monkeypatch.setattr(time, "time", made)
    return made


@pytest.fixture
def raw() -> Iterator[fakeredis.FakeRedis]:
    """A server of its own for each test."""
    with fakeredis.FakeRedis() as client:
        yield client


@pytest.fixture
def q(raw: fakeredis.FakeRedis) -> Iterator[Queue]:
    """A queue on it."""
    with Penstock(raw) as ps:
        yield ps.queue("q")


def offset(raw: fakeredis.FakeRedis) -> int:
    """Return how far the queue's clock is ahead of the server's, in ms."""
    return int(raw.hget("penstock:{q}:meta", "off") or 0)


def test_numbers_keep_rising_when_the_clock_steps_back(q: Queue, steps: Steps) -> None:
    """After a step back by a second or a day, ids still sort in the order of the calls."""
    ids = []
    for offset in (0, -1, -1.5, -86_400, -3600, 5, -86_400):
        steps.offset = offset
        ids += [q.enqueue(offset).id, *q.enqueue_many([1, 2]).ids]
    assert ids == sorted(set(ids))
    assert [job.id for job in q.reserve(100, block=0)] == ids


def test_numbers_keep_rising_without_a_queue(q: Queue, steps: Steps) -> None:
    """Numbers also rise if the queue was empty in between."""
    first = q.enqueue(1).id
    q.purge()
    steps.offset = -3600
    assert q.enqueue(2).id > first


def test_leases_end_although_the_clock_stepped_back(q: Queue, steps: Steps) -> None:
    """A lease ends after its own length, without the step."""
    q.enqueue("x", lease=3)
    (held,) = q.reserve(block=0)
    steps.offset = -3600
    q.enqueue("y", lease=60)
    jobs = q.reserve(block=0)
    assert [job.body for job in jobs] == ["y"]
    (again,) = q.reserve(block=20)
    assert (again.id, again.crashes) == (held.id, 1)


def test_delays_end_although_the_clock_stepped_back(q: Queue, steps: Steps) -> None:
    """A job that was due in 0.3 s is due in time."""
    q.enqueue("x", delay=0.3)
    steps.offset = -3600
    (job,) = q.reserve(block=20)
    assert job.body == "x"


def test_the_offset_shrinks(q: Queue, raw: fakeredis.FakeRedis, steps: Steps) -> None:
    """The queue's clock approaches the server's by a tenth of the elapsed time."""
    q.enqueue("x")
    steps.offset = -60
    q.enqueue("x")
    assert 55_000 < offset(raw) <= 60_000
    seen = []
    for passed in range(0, 900, 50):
        steps.offset = -60 + passed
        q.enqueue("x")
        seen.append(offset(raw))
    assert seen == sorted(seen, reverse=True)
    assert seen[4] == pytest.approx(60_000 - 20_000, abs=3000)
    assert seen[-1] == 0
    ids = [view.id for view in q.peek(100)]
    assert ids == sorted(ids)


def test_at_is_by_the_servers_clock(q: Queue, raw: fakeredis.FakeRedis, steps: Steps) -> None:
    """While the queue's clock is ahead, `at` is never early by the server's clock."""
    q.enqueue("x")
    steps.offset = -3600
    q.enqueue("y")
    assert offset(raw) > 3_000_000
    moment = time.time() + 60
    q.enqueue("z", at=moment)
    (view,) = q.peek(state="scheduled")
    assert view.due is not None
    assert view.due - offset(raw) / 1000 == pytest.approx(moment, abs=1)


def test_a_step_forward_ends_times_within_it(q: Queue, steps: Steps) -> None:
    """A step forward ends leases, delays and ttls within it early; no job is lost otherwise."""
    q.enqueue("leased", lease=30)
    q.reserve(block=0)
    q.enqueue("delayed", delay=30)
    q.enqueue("short", ttl=60)
    q.enqueue("kept")
    steps.offset = 3600
    bodies = [job.body for job in q.reserve(10, block=0)]
    assert bodies[0] == "leased"
    assert sorted(bodies) == ["delayed", "kept", "leased"]
    assert q.stats().expired == 1


def test_put_backs_after_a_step_back(q: Queue, steps: Steps) -> None:
    """A released job is ready at once, although it was created ahead of the clock."""
    q.enqueue("x")
    steps.offset = -0.5
    (job,) = q.reserve(block=0)
    job.release()
    (job,) = q.reserve(block=0)
    job.nack(delay=0)
    (job,) = q.reserve(block=0)
    job.bury()
    q.redrive()
    (job,) = q.reserve(block=0)
    assert job.deliveries == 4
    assert q.stats().oldest is None


def test_times_of_a_job_never_run_backwards(q: Queue, steps: Steps) -> None:
    """The times of a job never run backwards."""
    done = q.enqueue("x")
    steps.offset = -3600
    (job,) = q.reserve(block=0)
    assert job.delivered >= job.created == parse_id(done.id).ms / 1000


def test_a_lease_beyond_the_range_of_scores_is_refused(q: Queue, steps: Steps) -> None:
    """A lease beyond the range of scores is refused; the error has lease, value and bound."""
    q.enqueue("x", lease=0.5)
    (job,) = q.reserve(block=0)
    steps.offset = (3_934_712_855_551 - 5_000) / 1000 - time.time()
    before = q.stats()
    for call in (
        lambda: q.enqueue("y", lease=3600),
        lambda: q.enqueue("y", lease=3600, dedup_id="y"),
        lambda: q.configure(lease=3600),
        lambda: job.extend(3600),
    ):
        with pytest.raises(BadArgument, match=r"lease=3600\.0: must be at most .*2094-09-07"):
            call()
    after = q.stats()
    assert (after.enqueued, after.settings) == (before.enqueued, before.settings)
    assert q.enqueue("y").id


# -- schedules of a running worker ----------------------------------------------------------------


@pytest.fixture
def ticked(raw: fakeredis.FakeRedis, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """The ticks of a schedule of each second, which a worker runs.

    A job whose lease a jump ends runs twice; its tick is noted once.
    """
    monkeypatch.setattr(schedules, "TICK_LOOK_INTERVAL", 0.2)
    ran, seen = list[float](), set[str]()

    def note(job: Any) -> None:
        if job.id not in seen:
            seen.add(job.id)
            ran.append(job.scheduled_for)

    with Penstock(raw) as ps:
        ps.queue("q").schedules.add("s", every=1, job="x", overlap=True)
        with Worker(ps, "q", note):
            wait_for(lambda: len(ran) >= 2)
            yield ran


@pytest.mark.slow
def test_a_running_worker_follows_a_clock_that_jumps(steps: Steps, ticked: list[float]) -> None:
    """After each jump, ahead or back, ticks go on at the present time; none comes twice."""
    for offset in (86_400 * 20, 0, -3600, 0):
        before, steps.offset = len(ticked), offset

        def went_on(before: int = before) -> bool:
            near = [tick for tick in ticked[before:] if abs(tick - time.time()) < 5]
            return len(near) >= 3

        wait_for(went_on, 20)
    assert len(set(ticked)) == len(ticked)


@pytest.mark.slow
def test_small_steps_neither_repeat_nor_lose_a_tick(steps: Steps, ticked: list[float]) -> None:
    """Steps of a few seconds, ahead and back, leave the ticks in order and complete."""
    for offset in (-2, 3, 0):
        before, steps.offset = len(ticked), offset
        wait_for(lambda before=before: len(ticked) >= before + 2, 20)  # type: ignore[misc]  # a default
    assert sorted(ticked) == [ticked[0] + at for at in range(len(ticked))]
