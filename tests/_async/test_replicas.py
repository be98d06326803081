"""Enqueuing and acknowledging with replicas: a primary with two replicas."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import fakeredis
import pytest
import redis

from penstock import (
    AckNotReplicated,
    AsyncJob,
    AsyncPenstock,
    AsyncQueue,
    BadArgument,
    Dedup,
    Durable,
    IncompleteEnqueue,
    IncompleteSettle,
    NotReplicated,
    Outcome,
    Penstock,
    StaleReceipt,
)
from penstock.client._async.adding import add_each
from penstock.core.calls.operations import QueueOps
from penstock.core.enqueuing.prepared import prepared
from penstock.embedded import EmbeddedServer
from penstock.wire.scripts import script
from tests.support.binaries import chosen_binaries
from tests.support.keyspace import load_scripts, numbers
from tests.support.proxy import Proxy
from tests.support.replicated import Replicated, reach_replicas, replicated
from tests.support.twins import aspawn, await_for


@pytest.fixture
def trio(make_server: Callable[..., EmbeddedServer]) -> Iterator[Replicated]:
    """A primary and two replicas that follow it."""
    with replicated(make_server) as made:
        yield made


@pytest.fixture
async def tq(trio: Replicated) -> AsyncIterator[AsyncQueue]:
    """A queue on the primary that does not exist yet."""
    async with AsyncPenstock(trio.url, owner="tester") as client:
        yield client.queue("q")


async def test_confirmed_by_both(trio: Replicated, tq: AsyncQueue) -> None:
    """The first job of a new queue is on both replicas when the call returns."""
    done = await tq.enqueue(b"x", durable=Durable(2, timeout=10))
    assert (done.replicas, done.state) == (2, "ready")
    assert trio.bodies() == [[b"x"]] * 3
    assert [raw.hget("penstock:{q}:meta", "enqueued") for raw in trio.copies] == [b"1"] * 2
    later = await tq.enqueue(b"later", delay=60, durable=Durable(2, timeout=10))
    assert (later.replicas, later.state) == (2, "scheduled")
    assert [numbers(raw, tq.ops, "scheduled") for raw in trio.copies] == [
        numbers(trio.raw, tq.ops, "scheduled")
    ] * 2


async def test_one_trip(trio: Replicated, tq: AsyncQueue) -> None:
    """A call needs one script and one WAIT; without replicas no WAIT."""
    await tq.enqueue("the queue is there", durable=Durable(1, timeout=10))
    before, start = trio.calls(), time.monotonic()
    for i in range(10):
        assert (await tq.enqueue(i, durable=Durable(2, timeout=10))).replicas == 2
    after = trio.calls()
    assert after[0] - before[0] == 10
    assert 10 <= after[1] - before[1] <= 10 + slices_since(start)
    assert (await tq.enqueue("alone")).replicas == 0
    assert (await tq.enqueue("alone", replicas=0)).replicas == 0
    assert trio.calls()[1] == after[1]


def slices_since(start: float) -> float:
    """Return how often a WAIT may have been repeated for slow replicas: each takes 100 ms."""
    return (time.monotonic() - start) / 0.1


async def test_the_setting_of_the_queue(trio: Replicated, tq: AsyncQueue) -> None:
    """The queue's setting applies to all clients, also to one that does not know it yet."""
    await tq.configure(replicas=2)
    assert (await tq.enqueue("a")).replicas == 2
    assert (await tq.enqueue("b", durable=Durable(1, timeout=10))).replicas >= 1
    assert (await tq.enqueue("c", replicas=0)).replicas == 0
    assert {done.replicas for done in await tq.enqueue_many(range(3))} == {2}
    async with AsyncPenstock(trio.url) as other:
        assert (await other.queue("q").enqueue("d")).replicas == 2
        assert (await other.queue("q").enqueue("e")).replicas == 2
        await tq.configure(replicas=None)
        before = trio.calls()[1]
        await other.queue("q").enqueue("f")
        assert (await other.queue("q").enqueue("g")).replicas == 0
        assert trio.calls()[1] - before <= 1  # the one that was sent before the setting was known
    assert trio.raw.hget("penstock:{q}:meta", "enqueued") == b"10"


async def test_at_most_once_is_not_waited_for(trio: Replicated, tq: AsyncQueue) -> None:
    """With lease 0 an explicit `replicas` is refused; the queue's setting causes no wait."""
    with pytest.raises(BadArgument, match="replicas"):
        await tq.enqueue("x", lease=0, durable=Durable(1, timeout=10))
    with pytest.raises(BadArgument, match="replicas"):
        await tq.enqueue_many(["x"], lease=0, replicas=1)
    assert trio.raw.exists("penstock:{q}:meta") == 0
    await tq.configure(replicas=2)
    before = trio.calls()[1]
    assert (await tq.enqueue("x", lease=0)).replicas == 0
    assert [done.replicas for done in await tq.enqueue_many(["x"], lease=0)] == [0]
    assert trio.calls()[1] == before


@pytest.mark.parametrize("replicas", [-1, 1.5, "1", True])
async def test_bad_numbers_of_replicas(replicas: Any) -> None:
    """A bad number of replicas is refused without a connection."""
    q = AsyncPenstock("redis://127.0.0.1:1", retry_for=0).queue("q")
    with pytest.raises(BadArgument, match="replicas"):
        await q.enqueue("x", replicas=replicas)
    with pytest.raises(BadArgument, match="replicas"):
        await q.enqueue_many(["x"], replicas=replicas)


@pytest.mark.parametrize("replicas", [-1, 1.5, "1", True, False, None])
async def test_bad_numbers_of_replicas_of_an_ack(replicas: Any) -> None:
    """For an ack None is refused too, as no setting applies to it."""
    q = AsyncPenstock("redis://127.0.0.1:1", retry_for=0).queue("q")
    with pytest.raises(BadArgument, match="replicas"):
        await q.ack(["x"], replicas=replicas)


@pytest.mark.parametrize("timeout", [-1, 0, "1", True, float("nan"), 3601])
async def test_bad_time_outs(timeout: Any) -> None:
    """A bad timeout is refused without a connection."""
    q = AsyncPenstock("redis://127.0.0.1:1", retry_for=0).queue("q")
    with pytest.raises(BadArgument, match="timeout"):
        await q.enqueue("x", durable=Durable(1, timeout=timeout))
    with pytest.raises(BadArgument, match="timeout"):
        await q.ack(["x"], durable=Durable(1, timeout=timeout))


async def test_many_jobs(trio: Replicated, tq: AsyncQueue) -> None:
    """A bulk sends one WAIT per chunk of 1,000."""
    await tq.enqueue("the queue is there", durable=Durable(1, timeout=10))
    before, start = trio.calls(), time.monotonic()
    results = await tq.enqueue_many(range(3500), durable=Durable(2, timeout=10))
    after = trio.calls()
    assert {done.replicas for done in results} == {2}
    assert after[0] - before[0] == 4
    assert 4 <= after[1] - before[1] <= 4 + slices_since(start)
    assert [raw.xlen("penstock:{q}:ready") for raw in trio.copies] == [3501, 3501]


async def test_too_few_are_connected(trio: Replicated, tq: AsyncQueue) -> None:
    """With too few connected replicas the call is refused at once; nothing is written."""
    await tq.enqueue("x", durable=Durable(2, timeout=10))
    before = trio.calls()
    for _ in range(2):
        with pytest.raises(NotReplicated, match="2 of 3 replicas are connected, nothing") as caught:
            await tq.enqueue("y", durable=Durable(3, timeout=3600))
        error = caught.value
        assert (error.wanted, error.connected, error.withdrawn, error.fsynced) == (3, 2, True, None)
    with pytest.raises(NotReplicated, match="2 of 3"):
        await tq.enqueue_many(["y"] * 3, durable=Durable(3, timeout=3600), dedup_id=str)
    await tq.configure(replicas=3)
    with pytest.raises(NotReplicated, match="2 of 3"):
        await tq.enqueue("y", durable=Durable(timeout=3600))
    assert trio.calls()[0] == before[0] + 1  # configure
    async with AsyncPenstock(trio.url) as fresh:  # it learns the setting from the reply
        with pytest.raises(NotReplicated) as caught:
            await fresh.queue("q").enqueue("y", durable=Durable(timeout=3600))
        assert (caught.value.wanted, caught.value.withdrawn) == (3, True)
        await fresh.queue("q").configure(replicas=2)
    assert (
        await tq.enqueue("z", durable=Durable(timeout=10))
    ).replicas == 2  # the setting is fetched
    assert [view.body for view in await tq.peek()] == ["x", "z"]
    assert (await tq.stats()).withdrawn == 1


async def test_a_repeat_of_unknown_outcome_is_not_refused(trio: Replicated, tq: AsyncQueue) -> None:
    """A repeat after a lost reply is sent even with too few replicas, and WAIT decides."""
    with Proxy(trio.primary.address) as proxy:
        async with AsyncPenstock(proxy.url) as client:
            q = client.queue("q")
            await q.enqueue("there", durable=Durable(2, timeout=10))
            proxy.eat_reply(after=b"lost")
            trio.cut(0)
            # For this connection both are connected, as both confirmed its last call.
            with pytest.raises(NotReplicated) as caught:
                await q.enqueue("lost", durable=Durable(2, timeout=10))
            assert (caught.value.connected, caught.value.withdrawn) == (None, True)
            stats = await q.stats()
            assert (stats.ready, stats.enqueued, stats.withdrawn) == (1, 2, 1)


async def test_one_that_comes_back_is_waited_for(trio: Replicated, tq: AsyncQueue) -> None:
    """A refusal is not cached: a replica that comes back is counted at the next call."""
    trio.cut(0)
    with pytest.raises(NotReplicated, match="1 of 2 replicas are connected"):
        await tq.enqueue("x", durable=Durable(2, timeout=3600))
    trio.attach(0)
    trio.settle()
    assert (await tq.enqueue("x", durable=Durable(2, timeout=10))).replicas == 2


async def test_the_number_is_asked_for_only_where_it_matters(
    trio: Replicated, tq: AsyncQueue
) -> None:
    """The number of replicas is read once per connection, and again after a failed WAIT."""

    def asked() -> int:
        return int(trio.raw.info("commandstats")["cmdstat_info"]["calls"])

    await tq.enqueue("x", durable=Durable(2, timeout=10))
    before = asked()
    for _ in range(20):
        await tq.enqueue("x", durable=Durable(2, timeout=10))
    await tq.enqueue("x")
    assert asked() == before + 1  # asked by this test


async def test_an_ack_waits_for_those_that_are_connected(trio: Replicated, tq: AsyncQueue) -> None:
    """An ack is done although one replica is missing; the error says so at once."""
    jobs = await held(tq, 2)
    trio.cut(0)
    with pytest.raises(AckNotReplicated) as caught:
        await tq.ack(jobs, durable=Durable(2, timeout=3600))
    assert (caught.value.wanted, caught.value.got) == (2, 1)
    assert caught.value.outcomes.all_done


async def test_too_few(trio: Replicated, tq: AsyncQueue) -> None:
    """Unconfirmed jobs are withdrawn, and no data is left."""
    await tq.enqueue("there", durable=Durable(2, timeout=10))
    await tq.purge()
    trio.replicas[0].pause()
    with pytest.raises(NotReplicated) as caught:
        await tq.enqueue("x", durable=Durable(2, timeout=0.05))
    error = caught.value
    assert (error.wanted, error.withdrawn, error.connected) == (2, True, None)
    assert error.got < 2
    with pytest.raises(NotReplicated) as caught:
        await tq.enqueue_many(["x", "y"], durable=Durable(2, timeout=0.05), delay=5, ttl=50)
    assert caught.value.withdrawn is True
    assert await tq.peek() == []
    trio.replicas[0].resume()
    stats = await tq.stats()
    assert (stats.ready, stats.scheduled, stats.enqueued, stats.withdrawn) == (0, 0, 4, 3)
    assert [numbers(trio.raw, tq.ops, kind) for kind in ("ready", "held", "expiry")] == [[]] * 3
    trio.settle()
    assert trio.bodies() == [[]] * 3
    assert (await tq.enqueue("after it", durable=Durable(2, timeout=10))).replicas == 2


async def test_a_replica_that_is_lost(trio: Replicated, tq: AsyncQueue) -> None:
    """When one of two replicas is lost, two can't confirm and one can."""
    await tq.enqueue("x", durable=Durable(2, timeout=10))
    trio.cut(0)
    with pytest.raises(NotReplicated) as caught:
        await tq.enqueue("y", durable=Durable(2, timeout=0.2))
    assert (caught.value.wanted, caught.value.withdrawn) == (2, True)
    assert caught.value.got < 2
    assert (await tq.enqueue("z", durable=Durable(1, timeout=10))).replicas == 1
    assert [view.body for view in await tq.peek()] == ["x", "z"]
    trio.attach(0)
    trio.settle()
    assert (await tq.enqueue("again", durable=Durable(2, timeout=10))).replicas == 2
    assert [len(bodies) for bodies in trio.bodies()] == [3, 3, 3]


async def test_an_update_stays(trio: Replicated, tq: AsyncQueue) -> None:
    """An unconfirmed update is kept, and the error says so."""
    await tq.enqueue("old", dedup_id="x", durable=Durable(2, timeout=10))
    trio.replicas[0].pause()
    with pytest.raises(NotReplicated) as caught:
        await tq.enqueue(
            "new", dedup=Dedup("x", on_duplicate="update"), durable=Durable(2, timeout=0.05)
        )
    trio.replicas[0].resume()
    assert (caught.value.connected, caught.value.withdrawn) == (None, False)
    assert [view.body for view in await tq.peek()] == ["new"]


async def test_a_consumer_was_quicker(trio: Replicated, tq: AsyncQueue) -> None:
    """A job delivered during the wait for replicas is not withdrawn, and the error says so."""
    await tq.configure(lease=600)
    with Penstock(trio.url) as beside:
        trio.replicas[0].pause()
        call = aspawn(tq.enqueue, "x", durable=Durable(2, timeout=1.5))
        jobs = await eager(beside)
        with pytest.raises(NotReplicated) as caught:
            await call.result()
        assert caught.value.withdrawn is False
        assert [job.body for job in jobs] == ["x"]
        assert jobs[0].ack()
    stats = await tq.stats()
    assert (stats.enqueued, stats.withdrawn, stats.acked) == (1, 0, 1)


async def eager(beside: Penstock) -> list[Any]:
    """Reserve the first job that appears."""
    found: list[Any] = []

    def look() -> bool:
        found.extend(beside.queue("q").reserve(block=0))
        return bool(found)

    await await_for(look)
    return found


async def test_some_of_them_were_delivered(trio: Replicated, tq: AsyncQueue) -> None:
    """Of several unconfirmed jobs only those not yet delivered are withdrawn."""
    await tq.configure(lease=600)
    with Penstock(trio.url) as beside:
        trio.replicas[0].pause()
        call = aspawn(tq.enqueue_many, ["a", "b", "c"], durable=Durable(2, timeout=1.5))
        (job,) = await eager(beside)
        with pytest.raises(NotReplicated) as caught:
            await call.result()
        assert caught.value.withdrawn is False
        assert job.body == "a"
    stats = await tq.stats()
    assert (stats.ready, stats.active, stats.withdrawn) == (0, 1, 2)


async def test_a_later_chunk(trio: Replicated, tq: AsyncQueue) -> None:
    """Confirmed chunks are reported; the unconfirmed chunk is withdrawn."""

    def bodies() -> Iterator[int]:
        for i in range(2500):
            if i == 1000:
                trio.cut(1)
            yield i

    with pytest.raises(IncompleteEnqueue) as caught:
        await tq.enqueue_many(bodies(), durable=Durable(2, timeout=5))
    results, cause = caught.value.results, caught.value.__cause__
    assert isinstance(cause, NotReplicated)
    assert (cause.wanted, cause.withdrawn) == (2, True)
    assert cause.got < 2
    assert {done.replicas for done in results} == {2}
    stats = await tq.stats()
    assert len(results) == stats.ready == stats.enqueued - stats.withdrawn
    assert stats.withdrawn in (999, 1000)
    assert trio.raw.xlen("penstock:{q}:ready") == len(results)


async def test_a_replica_that_is_paused_for_a_while(trio: Replicated, tq: AsyncQueue) -> None:
    """A paused replica confirms when it continues, and the waiting call succeeds."""
    await tq.enqueue("x", durable=Durable(2, timeout=10))
    trio.replicas[0].pause()
    call = aspawn(tq.enqueue, "y", durable=Durable(2, timeout=15))
    await await_for(lambda: trio.raw.xlen("penstock:{q}:ready") == 2)
    assert not call.is_done
    assert len(trio.raw.xrange("penstock:{q}:ready")) == 2
    trio.replicas[0].resume()
    assert (await call.result()).replicas == 2
    assert trio.bodies()[1] == trio.bodies()[0]


async def test_a_replica_that_is_paused_for_too_long(trio: Replicated, tq: AsyncQueue) -> None:
    """After the timeout the job is withdrawn; the replica later gets both changes."""
    await tq.enqueue("x", durable=Durable(2, timeout=10))
    trio.replicas[1].pause()
    with pytest.raises(NotReplicated) as caught:
        await tq.enqueue("y", durable=Durable(2, timeout=0.3))
    assert caught.value.withdrawn is True
    assert caught.value.got < 2
    trio.replicas[1].resume()
    trio.settle()
    assert trio.bodies() == [[b'"x"']] * 3


async def test_a_time_out_beyond_that_of_the_socket(trio: Replicated) -> None:
    """Waiting for replicas is not limited by the socket timeout, and the job is added once."""
    async with AsyncPenstock(f"{trio.url}?socket_timeout=0.3", retry_for=60) as client:
        q = client.queue("q")
        await q.enqueue("x", replicas=2)
        trio.replicas[0].pause()
        start = time.monotonic()
        with pytest.raises(NotReplicated) as caught:
            await q.enqueue("y", durable=Durable(2, timeout=1.2))
        assert time.monotonic() - start >= 1.2
        assert caught.value.withdrawn is True
        assert caught.value.got < 2
        call = aspawn(q.enqueue, "z", durable=Durable(2, timeout=15))
        await await_for(lambda: trio.raw.xlen("penstock:{q}:ready") == 2)
        trio.replicas[0].resume()
        assert (await call.result()).replicas == 2
        stats = await q.stats()
        assert (stats.enqueued, stats.withdrawn, stats.ready) == (3, 1, 2)


async def test_next_to_no_time(trio: Replicated, tq: AsyncQueue) -> None:
    """Paused replicas confirm nothing within a millisecond."""
    trio.replicas[0].pause()
    trio.replicas[1].pause()
    with pytest.raises(NotReplicated) as caught:
        await tq.enqueue("x", durable=Durable(1, timeout=0.001))
    assert (caught.value.wanted, caught.value.got, caught.value.withdrawn) == (1, 0, True)


async def test_a_server_without_replicas(real_q: AsyncQueue) -> None:
    """Without replicas the job is withdrawn."""
    with pytest.raises(NotReplicated) as caught:
        await real_q.enqueue("x", durable=Durable(1, timeout=0.01))
    assert (caught.value.wanted, caught.value.got, caught.value.withdrawn) == (1, 0, True)
    await real_q.configure(replicas=1)
    with pytest.raises(NotReplicated):
        await real_q.enqueue("x", durable=Durable(timeout=0.01))
    assert (await real_q.stats()).ready == 0
    assert (await real_q.enqueue("x", replicas=0)).replicas == 0


# -- acknowledging ---------------------------------------------------------------------------------


async def held(tq: AsyncQueue, n: int = 1) -> list[AsyncJob]:
    """Reserve this many jobs with a lease that does not end during the test."""
    await tq.configure(lease=600)
    await tq.enqueue_many(range(n))
    jobs: list[AsyncJob] = []
    while len(jobs) < n:
        jobs += await tq.reserve(min(1000, n - len(jobs)), block=0)
    return jobs


def left(trio: Replicated) -> list[int]:
    """Count the held jobs on the primary and on each replica."""
    return [raw.hlen("penstock:{q}:held") for raw in (trio.raw, *trio.copies)]


async def test_acks_confirmed_by_both(trio: Replicated, tq: AsyncQueue) -> None:
    """The jobs are gone from both replicas when the call returns; one script, one WAIT."""
    first, *others = await held(tq, 4)
    before, start = trio.calls(), time.monotonic()
    assert await first.ack(durable=Durable(2, timeout=10)) is True
    assert left(trio) == [3, 3, 3]
    settled = await tq.ack(others, durable=Durable(2, timeout=10))
    assert (list(settled), settled.replicas) == ([Outcome.DONE] * 3, 2)
    assert left(trio) == [0, 0, 0]
    after = trio.calls()
    assert after[0] - before[0] == 2
    assert 2 <= after[1] - before[1] <= 2 + slices_since(start)


async def test_an_ack_of_many(trio: Replicated, tq: AsyncQueue) -> None:
    """Many acks need one WAIT per chunk of 1,000."""
    jobs = await held(tq, 2500)
    before, start = trio.calls(), time.monotonic()
    settled = await tq.ack(jobs, durable=Durable(2, timeout=10))
    after = trio.calls()
    assert (settled.done, settled.replicas, settled.all_done) == (2500, 2, True)
    assert after[0] - before[0] == 3
    assert 3 <= after[1] - before[1] <= 3 + slices_since(start)
    assert left(trio) == [0, 0, 0]


async def test_an_ack_does_not_wait_by_default(trio: Replicated, tq: AsyncQueue) -> None:
    """The queue's setting applies to enqueues, so an ack does not wait unless asked."""
    jobs = await held(tq, 2)
    await tq.configure(replicas=2)
    before = trio.calls()[1]
    assert await jobs[0].ack()
    assert (await tq.ack(jobs[1:], durable=Durable(timeout=5))).replicas == 0
    assert trio.calls()[1] == before


async def test_an_ack_that_too_few_confirm(trio: Replicated, tq: AsyncQueue) -> None:
    """The jobs are done although too few replicas confirm; the error has every outcome."""
    jobs = await held(tq, 3)
    assert await jobs[0].ack()
    trio.cut(0)
    with pytest.raises(AckNotReplicated, match="may be delivered again after a failover") as caught:
        await tq.ack(jobs, durable=Durable(2, timeout=0.2))
    error = caught.value
    assert list(error.outcomes) == [Outcome.GONE, Outcome.DONE, Outcome.DONE]
    assert (error.wanted, error.withdrawn, error.confirmed, error.fsynced) == (2, False, 0, None)
    assert error.got < 2
    stats = await tq.stats()
    assert (stats.acked, stats.active) == (3, 0)
    assert (await tq.ack(jobs, durable=Durable(1, timeout=10))).replicas >= 1


async def test_a_job_whose_ack_too_few_confirm(trio: Replicated, tq: AsyncQueue) -> None:
    """The job is done: its block reports no failed attempt, and raises the error."""
    (job,) = await held(tq)
    with pytest.raises(AckNotReplicated) as caught:
        async with job:
            await job.ack(durable=Durable(3, timeout=0.05))
    assert list(caught.value.outcomes) == [Outcome.DONE]
    assert job.settled
    stats = await tq.stats()
    assert (stats.acked, stats.nacked, stats.scheduled) == (1, 0, 0)


async def test_a_stale_ack_is_stale_despite_missing_replicas(
    trio: Replicated, tq: AsyncQueue
) -> None:
    """A stale receipt is reported before missing confirmations."""
    (job,) = await held(tq)
    await tq.release([job.id])
    (later,) = await tq.reserve(block=0)
    with pytest.raises(StaleReceipt):
        await job.ack(durable=Durable(3, timeout=0.05))
    assert await later.ack(durable=Durable(2, timeout=10))


async def test_chunks_behind_one_that_too_few_confirm(
    trio: Replicated, tq: AsyncQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later chunks are acknowledged without a wait; the error lists the confirmed ones.

    A job that is gone does not matter for the number of those.
    """
    jobs = await held(tq, 3500)
    await tq.delete([jobs[0].id])
    build, chunks = QueueOps.ack, list[int]()

    def cutting(ops: QueueOps, names: Any) -> Any:
        chunks.append(len(names))
        if len(chunks) == 2:
            trio.cut(1)
        return build(ops, names)

    monkeypatch.setattr(QueueOps, "ack", cutting)
    before, start = trio.calls(), time.monotonic()
    with pytest.raises(AckNotReplicated) as caught:
        await tq.ack(jobs, durable=Durable(2, timeout=3))
    error = caught.value
    assert (error.confirmed, error.wanted) == (1000, 2)
    assert error.got < 2
    assert error.outcomes.ids(Outcome.GONE) == [jobs[0].id]
    assert (error.outcomes.done, len(error.outcomes)) == (3499, 3500)
    assert error.outcomes.replicas == 0  # these were not waited for
    assert chunks == [1000, 1000, 1000, 500]
    assert 2 <= trio.calls()[1] - before[1] <= 2 + slices_since(start)
    assert (await tq.stats()).acked == 3499


async def test_a_chunk_that_fails_behind_others(
    trio: Replicated, tq: AsyncQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a chunk fails, the error has the acknowledgements before it."""
    jobs = await held(tq, 1500)
    build, chunks = QueueOps.ack, list[int]()

    def refusing(ops: QueueOps, names: Any) -> Any:
        chunks.append(len(names))
        if len(chunks) == 2:
            raise redis.ConnectionError("gone")
        return build(ops, names)

    monkeypatch.setattr(QueueOps, "ack", refusing)
    with pytest.raises(IncompleteSettle, match="1000 jobs") as caught:
        await tq.ack(jobs, durable=Durable(2, timeout=10))
    assert isinstance(caught.value.__cause__, redis.ConnectionError)
    assert list(caught.value.outcomes) == [Outcome.DONE] * 1000
    assert caught.value.outcomes.replicas == 2
    assert caught.value.not_replicated is None
    assert (await tq.stats()).active == 500


async def test_a_chunk_that_fails_after_an_unconfirmed_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The error has the acknowledged jobs, and says that they were not confirmed."""
    async with AsyncPenstock(fakeredis.FakeAsyncRedis(server=fakeredis.FakeServer())) as client:
        q = client.queue("q")
        jobs = await held(q, 2500)
        build, chunks = QueueOps.ack, list[int]()

        def refusing(ops: QueueOps, names: Any) -> Any:
            chunks.append(len(names))
            if len(chunks) == 3:
                raise redis.ConnectionError("gone")
            return build(ops, names)

        monkeypatch.setattr(QueueOps, "ack", refusing)
        match = "2000 jobs were done before the call failed, 0 of them confirmed"
        with pytest.raises(IncompleteSettle, match=match) as caught:
            await q.ack(jobs, durable=Durable(1, timeout=0.01))
        error = caught.value
        assert isinstance(error.__cause__, redis.ConnectionError)
        assert list(error.outcomes) == [Outcome.DONE] * 2000
        short = error.not_replicated
        assert short is not None
        assert short.outcomes is error.outcomes
        assert (short.confirmed, short.wanted, short.got, short.fsynced) == (0, 1, 0, None)
        assert (await q.stats()).active == 500


async def test_an_ack_and_a_replica_that_is_paused(trio: Replicated, tq: AsyncQueue) -> None:
    """A replica paused too long does not confirm; when it continues, a waiting call succeeds."""
    first, second = await held(tq, 2)
    trio.replicas[0].pause()
    with pytest.raises(AckNotReplicated) as caught:
        await first.ack(durable=Durable(2, timeout=0.2))
    assert caught.value.got < 2
    call = aspawn(second.ack, durable=Durable(2, timeout=15))
    await await_for(lambda: trio.raw.hlen("penstock:{q}:held") == 0)
    assert not call.is_done
    trio.replicas[0].resume()
    assert await call.result() is True
    assert left(trio) == [0, 0, 0]


async def test_an_ack_and_a_replica_that_dies(trio: Replicated, tq: AsyncQueue) -> None:
    """When one of two replicas dies, one confirms."""
    first, second = await held(tq, 2)
    trio.replicas[0].kill()
    with pytest.raises(AckNotReplicated) as caught:
        await first.ack(durable=Durable(2, timeout=0.2))
    assert caught.value.got < 2
    assert await second.ack(durable=Durable(1, timeout=10))
    assert trio.copies[1].hlen("penstock:{q}:held") == 0
    trio.replicas[0].restart()


async def test_an_ack_on_a_demoted_primary(trio: Replicated, tq: AsyncQueue) -> None:
    """A wait on a demoted primary fails at once, as it can't confirm anything."""
    (job,) = await held(tq)
    for replica in trio.replicas:
        replica.pause()
    call = aspawn(job.ack, durable=Durable(2, timeout=600))
    await await_for(lambda: trio.raw.hlen("penstock:{q}:held") == 0)
    host, port = trio.replicas[0].address
    trio.raw.replicaof(str(host), str(port))
    with pytest.raises(AckNotReplicated) as caught:
        await call.result()
    assert (caught.value.got, list(caught.value.outcomes)) == (0, [Outcome.DONE])
    trio.raw.replicaof("NO", "ONE")  # its data is read before the other one continues


async def test_a_server_without_replicas_and_an_ack(real_q: AsyncQueue) -> None:
    """Without replicas nothing confirms; the job is done."""
    (job,) = await held(real_q)
    with pytest.raises(AckNotReplicated) as caught:
        await job.ack(durable=Durable(1, timeout=0.01))
    assert (caught.value.wanted, caught.value.got) == (1, 0)
    assert (await real_q.stats()).acked == 1


async def test_where_there_is_no_wait() -> None:
    """A server without WAIT is not asked again for an hour."""
    async with AsyncPenstock(fakeredis.FakeAsyncRedis(server=fakeredis.FakeServer())) as client:
        q = client.queue("q")
        (job,) = await held(q)
        with pytest.raises(AckNotReplicated):
            await job.ack(durable=Durable(1, timeout=3600))
        with pytest.raises(NotReplicated):
            await q.enqueue("x", durable=Durable(1, timeout=3600))


async def test_a_repeated_ack_waits_for_the_first_one(
    make_server: Callable[..., EmbeddedServer],
) -> None:
    """A repeated ack finds the job gone, but must still wait for the replicas.

    Servers from 7.2 on answer a WAIT without a write before it at once, so the test uses one if
    possible. The replica is paused and must not be counted.
    """
    binary = chosen_binaries()[-1]
    args = ("--repl-diskless-sync-delay", "0", "--repl-timeout", "60")
    primary, replica = (make_server(binary=binary, tcp=True, args=args) for _ in range(2))
    with (
        redis.Redis.from_url(primary.url, protocol=2) as raw,
        redis.Redis.from_url(replica.url, protocol=2) as copy,
        Proxy(primary.address) as door,
    ):
        copy.replicaof(*map(str, primary.address))
        load_scripts(raw)
        reach_replicas(raw, 1)
        async with AsyncPenstock(door.url, owner="tester") as client:
            q = client.queue("q")
            (job,) = await held(q)
            replica.pause()
            fault = door.eat_reply(after=script("ack").sha.encode())
            with pytest.raises(AckNotReplicated) as caught:
                await q.ack([job], durable=Durable(1, timeout=0.3))
            assert fault.has_struck
            assert (caught.value.got, list(caught.value.outcomes)) == (0, [Outcome.DONE])
            with pytest.raises(AckNotReplicated) as caught:
                await q.ack([job], durable=Durable(1, timeout=0.3))
            assert (caught.value.got, list(caught.value.outcomes)) == (0, [Outcome.GONE])
            replica.resume()
            again = await q.ack([job], durable=Durable(1, timeout=10))
            assert (again.replicas, list(again)) == (1, [Outcome.GONE])
            assert await q.clear() == 0
            replica.pause()
            with pytest.raises(AckNotReplicated):  # the queue no longer exists
                await q.ack([job], durable=Durable(1, timeout=0.3))
            replica.resume()


async def test_jobs_of_several_queues_are_confirmed(trio: Replicated) -> None:
    """Each call waits for as many replicas as its options or its queue's setting say."""
    async with AsyncPenstock(trio.url) as client:
        await confirm_jobs_of_several_queues(trio, client)


async def confirm_jobs_of_several_queues(trio: Replicated, client: AsyncPenstock) -> None:
    """Add jobs to several queues of a client, before and after a replica is lost."""
    queues = [client.queue("q"), client.queue("other")]
    await queues[1].configure(replicas=2)
    asked, unset = prepared(durable=Durable(2, timeout=10)), prepared(durable=Durable(timeout=10))
    for terms in (asked, unset):
        ends = await add_each([(queue.route.part, [terms.record(b"x")], terms) for queue in queues])
        assert not [end for end in ends if isinstance(end, Exception)]
    assert [raw.hget("penstock:{other}:meta", "enqueued") for raw in trio.copies] == [b"2"] * 2
    before, start = trio.calls(), time.monotonic()
    many = [client.queue(f"many-{number}") for number in range(30)]
    await add_each([(queue.route.part, [asked.record(b"x")], asked) for queue in many])
    scripts, waits = (after - count for after, count in zip(trio.calls(), before, strict=True))
    assert scripts >= len(many)
    assert waits <= 1 + slices_since(start)  # one for all, as one trip has sent them
    trio.cut(0)
    brief = prepared(durable=Durable(2, timeout=0.05))
    for _ in range(2):  # in the second call the lost one is known
        ends = await add_each([(queue.route.part, [brief.record(b"y")], brief) for queue in queues])
        assert [type(end) for end in ends] == [NotReplicated] * 2
        assert [(await queue.stats()).ready for queue in queues] == [2, 2]
