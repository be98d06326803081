"""A hold stops the deliveries of a queue for a time, and ends by itself."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import (
    AsyncJob,
    AsyncPenstock,
    AsyncQueue,
    AsyncWorker,
    BadArgument,
    Retry,
    Snooze,
)
from penstock.core.jobs.record import key_hash
from tests.support.keyspace import Raw, advance, evalshas
from tests.support.twins import aspawn

from .conftest import AsyncWaits


async def taken(q: AsyncQueue) -> list[Any]:
    """Reserve jobs, and return their bodies."""
    return [job.body for job in await q.reserve(100, block=0)]


async def test_nothing_starts_before_its_end(q: AsyncQueue, raw: Raw) -> None:
    """Jobs that wait, retries and ended leases come when it is over; holders may settle theirs."""
    await q.configure(lease=20)
    await q.enqueue_many(range(3))
    first, second, *_ = await q.reserve(2, block=0)
    assert await q.hold(60)
    assert 59 < ((await q.stats()).held or 0) <= 60
    await first.ack()
    advance(raw, q.ops, 30)
    assert await taken(q) == []
    assert await q.recover(5, idle=0) == []
    _, more = await q.ack_and_reserve([second.id], 5)
    assert more == []
    await q.enqueue("urgent", priority=9)
    assert await taken(q) == []
    advance(raw, q.ops, 31)
    assert (await q.stats()).held is None
    assert await taken(q) == ["urgent", 2]


async def test_the_later_end_counts(q: AsyncQueue, raw: Raw) -> None:
    """A shorter hold changes nothing, a longer one does, and 0 ends it."""
    await q.enqueue("a")
    for seconds, left in ((60, 60), (5, 60), (90, 90)):
        await q.hold(seconds)
        assert left - 1 < ((await q.stats()).held or 0) <= left
    await q.hold(0)
    assert (await q.stats()).held is None
    assert await taken(q) == ["a"]
    assert raw.hget(q.ops.keys["meta"], "held_until") is None
    await q.hold(0)


@pytest.mark.usefixtures("no_ticks")
async def test_consumers_wait_without_load(real_q: AsyncQueue, real_raw: Raw) -> None:
    """A blocked consumer makes no call until the hold ends, and then gets the job at once."""
    await real_q.enqueue_many(range(2))
    await real_q.hold(0.5)
    before = evalshas(real_raw)
    [job] = await real_q.reserve(1, block=30)
    assert job.body == 0
    assert evalshas(real_raw) - before <= 5


@pytest.mark.usefixtures("no_ticks")
async def test_jobs_that_come_meanwhile_wake_no_consumer(
    real_q: AsyncQueue, real_raw: Raw, waits: AsyncWaits
) -> None:
    """A consumer that waits makes no call for them, and learns of the end by a poll."""
    await real_q.enqueue("a")
    await real_q.enqueue("a", dedup_id="a")  # both scripts are loaded
    await real_q.hold(600)
    consumer = aspawn(real_q.reserve, 1, block=30)
    await waits.reach(1)
    before = evalshas(real_raw)
    for number in range(20):
        await real_q.enqueue(number)
        await real_q.enqueue(number, dedup_id=str(number))
    assert evalshas(real_raw) - before == 40
    assert real_raw.llen(real_q.ops.keys["wake"]) == 0
    await real_q.hold(0)
    assert [job.body for job in await consumer.result()] == ["a"]


@pytest.mark.usefixtures("no_ticks")
async def test_its_end_by_hand_wakes_a_consumer(q: AsyncQueue, waits: AsyncWaits) -> None:
    """A consumer that waits gets the job."""
    await q.enqueue("a")
    await q.hold(600)
    consumer = aspawn(q.reserve, 1, block=30)
    await waits.reach(1)
    await q.hold(0)
    assert [job.body for job in await consumer.result()] == ["a"]


async def test_a_wrong_clock_holds_nothing(q: AsyncQueue, raw: Raw) -> None:
    """A time more than 25 hours ahead counts as none, and a sweep removes it."""
    await q.enqueue("a")
    await q.hold(60)
    raw.hset(q.ops.keys["meta"], "held_until", 10**14)
    assert (await q.stats()).held is None
    assert await taken(q) == ["a"]
    await q.sweep()
    assert raw.hget(q.ops.keys["meta"], "held_until") is None


@pytest.mark.parametrize("key", [None, "k"])
async def test_a_clock_that_goes_back(q: AsyncQueue, raw: Raw, key: str | None) -> None:
    """A hold of a whole day goes on, though its end is then more than a day ahead."""
    await q.enqueue("a", key="k")
    await q.hold(86_400, key=key)
    if key:
        raw.zincrby(q.ops.keys["holds"], 60_000, int(key_hash(key), 16))
    else:
        raw.hincrby(q.ops.keys["meta"], "held_until", 60_000)
    assert await taken(q) == []
    stats = await q.stats()
    assert stats.held_keys == 1 if key else stats.held
    advance(raw, q.ops, 86_461)
    assert await taken(q) == ["a"]


async def test_beside_a_rate(q: AsyncQueue, raw: Raw) -> None:
    """The later one of both counts."""
    await q.configure(rate="1/min", lease=600)
    await q.enqueue_many(range(3))
    assert await taken(q) == [0]
    await q.hold(30)
    advance(raw, q.ops, 31)
    assert await taken(q) == []
    advance(raw, q.ops, 30)
    await q.hold(90)
    assert await taken(q) == []
    advance(raw, q.ops, 91)
    assert await taken(q) == [1]


async def test_a_queue_that_does_not_exist(q: AsyncQueue) -> None:
    """It has no hold, and gets none."""
    assert not await q.hold(5)
    assert not (await q.stats()).exists


async def test_each_partition_is_held(ps: AsyncPenstock) -> None:
    """No partition delivers."""
    q = ps.queue("parted", partitions=3)
    await q.enqueue_many(range(30), key=str)
    await q.hold(60)
    assert await taken(q) == []
    assert 59 < ((await q.stats()).held or 0) <= 60


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize(
    "result, state",
    [
        (lambda: Retry(after=30, hold="queue"), "scheduled"),
        (lambda: Snooze(30, hold="queue"), "scheduled"),
    ],
)
async def test_a_handler_holds_its_queue(
    ps: AsyncPenstock, result: Any, state: Any, raises: bool
) -> None:
    """Its job comes back after the time, and no other job begins before, in no partition."""
    q = ps.queue("parted", partitions=2)
    await q.enqueue_many(range(8), key=str)
    ran: list[Any] = []

    async def handle(job: AsyncJob) -> Any:
        ran.append(job.body)
        if raises:
            raise result()
        return result()

    await AsyncWorker(ps, q, handle, concurrency=1, burst=True).run()
    stats = await q.stats()
    assert (len(ran), stats.ready, len(await q.peek(9, state=state))) == (1, 7, 1)
    assert 28 < (stats.held or 0) <= 30


@pytest.mark.parametrize(
    "make, name",
    [
        (lambda: Retry(hold="queue"), "after"),
        (lambda: Retry(after=0, hold="queue"), "after"),
        (lambda: Snooze(86_401, hold="queue"), "seconds"),
        (lambda: Snooze(5, hold="job"), "hold"),  # type: ignore[arg-type]  # it is refused
    ],
)
def test_holds_that_are_refused(make: Any, name: str) -> None:
    """A hold has a time of at most a day, and is that of the queue or of a key."""
    with pytest.raises(BadArgument, match=f"^{name}="):
        make()
    assert repr(Retry(after=5, hold="queue")) == "Retry(after=5, hold='queue')"


@pytest.mark.parametrize("seconds", [-1, 86_401, "5", float("nan")])
async def test_a_time_that_is_none(q: AsyncQueue, seconds: Any) -> None:
    """It is refused by name."""
    with pytest.raises(BadArgument, match=r"^seconds="):
        await q.hold(seconds)
