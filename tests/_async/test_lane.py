"""The client sends the keys of the fast lane in usual calls, and all keys if it must."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import AsyncPenstock, AsyncQueue, StaleReceipt
from tests.support.keyspace import Raw, load_scripts


@pytest.fixture
def sent(q: AsyncQueue, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the scripts that the client calls, each with its number of keys."""
    found: list[str] = []
    run = q.route.node.executor.connections.run

    async def noting(call: Any, **options: Any) -> Any:
        keys = int(call.head[0])
        found.append(f"{call.script.name} {'all' if keys == len(call.script.keys) else keys}")
        return await run(call, **options)

    monkeypatch.setattr(q.route.node.executor.connections, "run", noting)
    return found


async def test_usual_calls_send_the_keys_of_the_lane(q: AsyncQueue, sent: list[str]) -> None:
    """Each script gets all keys until its lane has answered once: no call is sent twice."""
    await q.enqueue(b"makes the queue")
    sent.clear()
    for body in (b"2", {"to": "ada"}, b"x" * 4000):
        await q.enqueue(body, headers={"trace": "1"})
    await q.enqueue_many([b"5", b"6"])
    assert sent == ["enqueue all", *["enqueue 3"] * 3]
    sent.clear()
    [one] = await q.reserve()
    many = await q.reserve(2)
    await one.ack()
    assert (await q.ack(many)).all_done
    assert sent == ["reserve all", "reserve 6", "ack all", "ack 7"]
    sent.clear()
    jobs = await q.reserve(1)
    outcomes, jobs = await q.ack_and_reserve(jobs, 1)
    assert outcomes.all_done
    assert [job.attempt for job in jobs] == [1]
    outcomes, jobs = await q.ack_and_reserve(jobs, 5)
    assert [len(job.raw) for job in jobs] == [1]
    assert sent == ["reserve 6", "settle all", "settle 7"]
    assert (await q.stats()).acked == 5


async def test_a_refusal_costs_one_trip_once(q: AsyncQueue, sent: list[str]) -> None:
    """A queue that changes is sent all keys from the first refusal of a script on."""
    await q.enqueue_many([b"x"] * 5)
    for _ in range(3):
        await q.reserve()
    await q.enqueue(b"x", ttl=60)
    sent.clear()
    for _ in range(3):
        assert len(await q.reserve()) == 1
        await q.enqueue(b"x")
    assert sent[:4] == ["reserve 6", "reserve all", "enqueue all", "reserve all"]
    assert set(sent[2:]) == {"reserve all", "enqueue all"}
    assert len(sent) == 7


async def test_a_queue_with_limits_is_never_tried(q: AsyncQueue, sent: list[str]) -> None:
    """Its lane has not answered, so the client sends all keys."""
    await q.configure(max_length=100)
    sent.clear()
    for _ in range(3):
        assert (await q.enqueue(b"x")).state == "ready"
    assert sent == ["enqueue all"] * 3
    await q.configure(max_length=None)
    sent.clear()
    await q.enqueue(b"x")
    await q.enqueue(b"x")
    assert sent == ["enqueue all", "enqueue 3"]


async def test_calls_with_options_send_all_keys(q: AsyncQueue, sent: list[str]) -> None:
    """They count as no refusal: the next usual call sends the keys of the lane."""
    await q.enqueue_many([b"x", b"y"])
    await q.enqueue(b"x")
    sent.clear()
    await q.enqueue(b"x" * 5000)
    await q.enqueue(b"x", delay=1)
    await q.enqueue(b"x", lease=0)
    await q.enqueue_many([b"x"] * 2, delay=5)
    await q.enqueue_many([b"x"] * 2, max_length=100)
    await q.enqueue_many([b"x" * 5000] * 2)
    await q.enqueue_many([b"x"] * 2, ttl=60)
    assert sent == ["enqueue all"] * 7


async def test_a_second_delivery_sends_all_keys(q: AsyncQueue, sent: list[str]) -> None:
    """It has counters. The lane refuses the receipt of a first delivery that is over."""
    await q.enqueue(b"x")
    [job] = await q.reserve()
    await job.release()
    [again] = await q.reserve()
    await q.enqueue_many([b"y", b"z"])
    first, second = await q.reserve(2)
    await first.ack()
    sent.clear()
    await second.ack()
    with pytest.raises(StaleReceipt):
        await job.ack()
    await again.ack()
    assert sent == ["ack 7", "ack 7", "ack all", "show all", "ack all"]
    assert (await q.stats()).acked == 3


async def test_acks_with_options_send_all_keys(q: AsyncQueue, sent: list[str]) -> None:
    """Acks by id or with a window."""
    job = await q.enqueue(b"x")
    await q.enqueue(b"y")
    await q.enqueue(b"z")
    taken = await q.reserve(3)
    await q.ack(taken[2:])
    sent.clear()
    await q.ack([job.id])
    await q.ack(taken[1:2], dedup_window=5)
    assert sent == ["ack all", "ack all"]


async def test_a_late_answer_of_the_lane_undoes_no_refusal(q: AsyncQueue) -> None:
    """Two calls go out before the lane is known. One is answered, a later one is refused, and then
    the answer to the other comes: the client goes on sending all keys.
    """
    for _ in range(2):
        await q.enqueue(b"x")
    early, late = q.ops.reserve(1), q.ops.reserve(1)
    assert (await q.route.node.executor.run(early)).deliveries
    assert q.ops.reserve(1).head != early.head
    q.ops.decline(early.script)
    assert (await q.route.node.executor.run(late)).deliveries
    assert q.ops.reserve(1).head == early.head


async def test_a_call_behind_a_wait_tells_it_too(real_ps: AsyncPenstock, real_raw: Raw) -> None:
    """A reserve that goes out behind a BLPOP is answered by the lane: its keys are enough then."""
    load_scripts(real_raw)
    q = real_ps.queue("emails")
    await q.enqueue(b"x")
    key, call = q.ops.keys["wake"], q.ops.reserve(1)
    [(server, _)] = await q.route.node.executor.connections.locate_keys((key,))
    waiter = server.waiter()
    await waiter.begin((key,), lambda: call)
    assert await waiter.read(10) == key
    assert len(waiter.take().deliveries) == 1
    await waiter.drop()
    assert len(q.ops.reserve(1).head) < len(call.head)
