"""Jobs with a ttl: expired jobs never hide others."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import pytest

from penstock import AsyncQueue
from penstock.core.jobs.job import number_of
from penstock.wire.keys import score_of
from tests.support.keyspace import Raw, advance, evalshas, load_scripts, numbers

LIVE = ["a", "b", "c"]
START_MS = 1_800_000_000_000
QueueIdentity = Callable[[AsyncQueue, Raw], Awaitable[None]]


async def behind_in_ready(q: AsyncQueue, raw: Raw) -> None:
    """Put 350 expired jobs before the live ones in ready."""
    await q.enqueue_many(range(350), ttl=10)
    await q.enqueue_many(LIVE)
    advance(raw, q.ops, 11)


async def behind_in_scheduled(q: AsyncQueue, raw: Raw) -> None:
    """Put 350 expired jobs before the live ones in scheduled."""
    await q.enqueue_many(range(350), ttl=10, delay=5)
    await q.enqueue_many(LIVE, delay=6)
    advance(raw, q.ops, 11)


async def behind_ended_leases(q: AsyncQueue, raw: Raw) -> None:
    """Put 350 expired jobs before the live ones among the ended leases."""
    await q.enqueue_many(range(350), ttl=10)
    await q.enqueue_many(LIVE, lease=20)
    assert len(await q.reserve(353, block=0)) == 353
    advance(raw, q.ops, 21)


async def between_in_all(q: AsyncQueue, raw: Raw) -> None:
    """Put a live job in each place, behind expired ones."""
    await q.enqueue_many(range(120), ttl=10)
    await q.enqueue("a", lease=20)
    assert len(await q.reserve(121, block=0)) == 121
    await q.enqueue_many(range(120), ttl=10, delay=5)
    await q.enqueue("b", delay=5)
    await q.enqueue_many(range(120), ttl=10)
    advance(raw, q.ops, 10)
    await q.enqueue("c")
    advance(raw, q.ops, 11)


class AsyncCounted:
    """A queue on a real server, with a counter of its scripts."""

    def __init__(self, q: AsyncQueue, raw: Raw) -> None:
        load_scripts(raw)
        self.q, self.raw, self._before = q, raw, 0

    def begin(self) -> None:
        """Start counting."""
        self._before = evalshas(self.raw)

    @property
    def calls(self) -> int:
        """Count the scripts since `begin`."""
        return evalshas(self.raw) - self._before


@pytest.fixture
def counted(real_q: AsyncQueue, real_raw: Raw) -> AsyncCounted:
    """A queue that does not exist yet."""
    return AsyncCounted(real_q, real_raw)


@pytest.mark.parametrize(
    "place", [behind_in_ready, behind_in_scheduled, behind_ended_leases, between_in_all]
)
async def test_live_jobs_behind_expired_ones_come_in_one_call(
    counted: AsyncCounted, place: QueueIdentity
) -> None:
    """Live jobs come in order in one call, with more expired ones than it lists;
    those are removed.
    """
    q, raw = counted.q, counted.raw
    await place(q, raw)
    counted.begin()
    jobs = await q.reserve(3, block=0)
    assert [job.body for job in jobs] == LIVE
    assert counted.calls == 1
    assert numbers(raw, q.ops, "held") == sorted(number_of(job) for job in jobs)
    assert numbers(raw, q.ops, "ready") == numbers(raw, q.ops, "scheduled") == []
    assert (await q.stats()).expired == (360 if place is between_in_all else 350)


async def test_settle_delivers_behind_expired_jobs(counted: AsyncCounted) -> None:
    """One settle finishes a job and reserves live jobs behind expired ones."""
    q, raw = counted.q, counted.raw
    await q.enqueue("first")
    done = await q.reserve(block=0)
    await behind_in_ready(q, raw)
    counted.begin()
    outcomes, jobs = await q.ack_and_reserve(done, 3)
    assert outcomes
    assert [job.body for job in jobs] == LIVE
    assert counted.calls == 1
    assert numbers(raw, q.ops, "expiry") == []


async def test_live_jobs_between_expired_ones_come_in_one_call(counted: AsyncCounted) -> None:
    """With every other job expired, one call still returns a full batch."""
    q, raw = counted.q, counted.raw
    for i in range(400):
        await q.enqueue_many([i], ttl=10)
        await q.enqueue_many([i])
    advance(raw, q.ops, 11)
    counted.begin()
    jobs = await q.reserve(400, block=0)
    assert [job.body for job in jobs] == [*range(400)]
    assert counted.calls == 1


async def test_a_call_passes_over_a_bounded_number_of_expired_jobs(counted: AsyncCounted) -> None:
    """A script skips about two thousand expired jobs; then the call repeats it."""
    q, raw = counted.q, counted.raw
    await q.enqueue_many(range(5000), ttl=10)
    await q.enqueue("live")
    advance(raw, q.ops, 11)
    counted.begin()
    (job,) = await q.reserve(block=5)
    assert job.body == "live"
    assert 2 <= counted.calls <= 4
    assert (await q.stats()).expired == 5000


@pytest.mark.parametrize("seed", range(6))
async def test_only_expired_jobs_leave_the_head_of_ready(
    q: AsyncQueue, raw: Raw, seed: int
) -> None:
    """Only expired jobs are removed from the head of ready, even if some are active or missing."""
    draw = random.Random(seed)
    living, total = [], 0
    await q.enqueue_many(range(-40, 0), ttl=100)
    assert len(await q.reserve(20, block=0)) == 20
    for _ in range(60):
        ttl = draw.choice([90, 100, 100, 100, 600, None] if seed % 2 else [90, 100])
        bodies = [*range(total, total + draw.choice([1, 1, 2, 30]))]
        await q.enqueue_many(bodies, ttl=ttl)
        total += len(bodies)
        living += bodies if ttl in (600, None) else []
    missing = numbers(raw, q.ops, "ready")[5]
    raw.xdel(q.ops.keys["ready"], missing)
    await q.enqueue("last")
    advance(raw, q.ops, 110)
    for _ in range(20):  # each call removes some
        await q.stats()
    assert [job.body for job in await q.reserve(1000, block=0)] == [*living, "last"]
    stats = await q.stats()
    assert (stats.expired, stats.ready) == (total + 40 - len(living), 0)
    assert len(numbers(raw, q.ops, "expiry")) <= len(living)


async def test_expired_jobs_that_are_passed_over_free_their_dedup_ids(
    q: AsyncQueue, raw: Raw
) -> None:
    """Skipped expired jobs free their dedup ids, like those that the call has listed."""
    await q.enqueue_many(range(300), ttl=10, dedup_id=str)
    await q.enqueue("live")
    advance(raw, q.ops, 11)
    assert [job.body for job in await q.reserve(block=0)] == ["live"]
    assert raw.hlen(q.ops.keys["dedup"]) == 0
    assert raw.zcard(q.ops.keys["expiry"]) == 0


async def test_a_consumer_that_finds_only_expired_jobs_returns_with_nothing(
    q: AsyncQueue, raw: Raw
) -> None:
    """A few calls of about two thousand jobs each remove all expired jobs."""
    await q.enqueue_many(range(2500), ttl=10)
    advance(raw, q.ops, 11)
    for _ in range(3):
        assert await q.reserve(block=0) == []
    assert numbers(raw, q.ops, "ready") == []


async def test_peek_passes_over_a_bounded_number_of_expired_jobs(counted: AsyncCounted) -> None:
    """Peek skips about a thousand expired jobs per script, and repeats it until it finds one."""
    q, raw = counted.q, counted.raw
    await q.enqueue_many(range(2500), ttl=10)
    await q.enqueue_many(range(2500), ttl=10, delay=5)
    await q.enqueue("live")
    await q.enqueue("later", delay=10)
    advance(raw, q.ops, 11)
    counted.begin()
    (view,) = await q.peek(1)
    assert view.body == "live"
    assert 3 <= counted.calls <= 6
    counted.begin()
    assert [view.body for view in await q.peek(1, newest=True)] == ["later"]
    assert [view.body for view in await q.peek(2, start=-2)] == ["live", "later"]
    assert [view.body for view in await q.peek(1, start=1)] == ["later"]
    assert 3 <= counted.calls <= 8
    assert (await q.stats()).expired == 5000


@pytest.mark.parametrize("newest", [False, True])
async def test_peek_removes_the_expired_jobs_in_its_way(
    q: AsyncQueue, raw: Raw, newest: bool
) -> None:
    """Peek removes expired jobs on its way, also listed ones, and frees their dedup ids."""
    await q.enqueue_many(range(150), ttl=9)
    await q.enqueue_many(["a", "b"])
    await q.enqueue_many(range(300), ttl=10, dedup_id=str)
    await q.enqueue("c")
    advance(raw, q.ops, 11)
    views = await q.peek(4, newest=newest)
    assert [view.body for view in views] == (["c", "b", "a"] if newest else ["a", "b", "c"])
    assert len(numbers(raw, q.ops, "ready")) == 3
    assert raw.hlen(q.ops.keys["dedup"]) == raw.zcard(q.ops.keys["expiry"]) == 0


@pytest.mark.parametrize("state", ["ready", "scheduled", "active", "dead"])
async def test_peek_of_a_damaged_queue_ends(counted: AsyncCounted, state: str) -> None:
    """Peek stops after a thousand index entries without a job, and returns the jobs found."""
    q, raw = counted.q, counted.raw
    await q.enqueue("there")
    index = {"ready": "scheduled"}.get(state, state)
    at = {"ready": 1, "active": score_of(2 * START_MS, 0)}.get(state, 2 * START_MS)
    raw.zadd(q.ops.keys[index], {f"{START_MS + i}-1000000000": at for i in range(3000)})
    counted.begin()
    assert await q.peek(1, state=state) == []
    assert counted.calls == 1
    raw.delete(q.ops.keys[index])
