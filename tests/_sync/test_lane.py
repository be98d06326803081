# From tests/_async/test_lane.py by tools/unasync.py; do not edit.
"""The client sends the keys of the fast lane in usual calls, and all keys if it must."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import Penstock, Queue, StaleReceipt
from tests.support.keyspace import Raw, load_scripts


@pytest.fixture
def sent(q: Queue, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the scripts that the client calls, each with its number of keys."""
    found: list[str] = []
    run = q.route.node.executor.connections.run

    def noting(call: Any, **options: Any) -> Any:
        keys = int(call.head[0])
        found.append(f"{call.script.name} {'all' if keys == len(call.script.keys) else keys}")
        return run(call, **options)

    monkeypatch.setattr(q.route.node.executor.connections, "run", noting)
    return found


def test_usual_calls_send_the_keys_of_the_lane(q: Queue, sent: list[str]) -> None:
    """Each script gets all keys until its lane has answered once: no call is sent twice."""
    q.enqueue(b"makes the queue")
    sent.clear()
    for body in (b"2", {"to": "ada"}, b"x" * 4000):
        q.enqueue(body, headers={"trace": "1"})
    q.enqueue_many([b"5", b"6"])
    assert sent == ["enqueue all", *["enqueue 3"] * 3]
    sent.clear()
    [one] = q.reserve()
    many = q.reserve(2)
    one.ack()
    assert q.ack(many).all_done
    assert sent == ["reserve all", "reserve 6", "ack all", "ack 7"]
    sent.clear()
    jobs = q.reserve(1)
    outcomes, jobs = q.ack_and_reserve(jobs, 1)
    assert outcomes.all_done
    assert [job.attempt for job in jobs] == [1]
    outcomes, jobs = q.ack_and_reserve(jobs, 5)
    assert [len(job.raw) for job in jobs] == [1]
    assert sent == ["reserve 6", "settle all", "settle 7"]
    assert q.stats().acked == 5


def test_a_refusal_costs_one_trip_once(q: Queue, sent: list[str]) -> None:
    """A queue that changes is sent all keys from the first refusal of a script on."""
    q.enqueue_many([b"x"] * 5)
    for _ in range(3):
        q.reserve()
    q.enqueue(b"x", ttl=60)
    sent.clear()
    for _ in range(3):
        assert len(q.reserve()) == 1
        q.enqueue(b"x")
    assert sent[:4] == ["reserve 6", "reserve all", "enqueue all", "reserve all"]
    assert set(sent[2:]) == {"reserve all", "enqueue all"}
    assert len(sent) == 7


def test_a_queue_with_limits_is_never_tried(q: Queue, sent: list[str]) -> None:
    """Its lane has not answered, so the client sends all keys."""
    q.configure(max_length=100)
    sent.clear()
    for _ in range(3):
        assert q.enqueue(b"x").state == "ready"
    assert sent == ["enqueue all"] * 3
    q.configure(max_length=None)
    sent.clear()
    q.enqueue(b"x")
    q.enqueue(b"x")
    assert sent == ["enqueue all", "enqueue 3"]


def test_calls_with_options_send_all_keys(q: Queue, sent: list[str]) -> None:
    """They count as no refusal: the next usual call sends the keys of the lane."""
    q.enqueue_many([b"x", b"y"])
    q.enqueue(b"x")
    sent.clear()
    q.enqueue(b"x" * 5000)
    q.enqueue(b"x", delay=1)
    q.enqueue(b"x", lease=0)
    q.enqueue_many([b"x"] * 2, delay=5)
    q.enqueue_many([b"x"] * 2, max_length=100)
    q.enqueue_many([b"x" * 5000] * 2)
    q.enqueue_many([b"x"] * 2, ttl=60)
    assert sent == ["enqueue all"] * 7


def test_a_second_delivery_sends_all_keys(q: Queue, sent: list[str]) -> None:
    """It has counters. The lane refuses the receipt of a first delivery that is over."""
    q.enqueue(b"x")
    [job] = q.reserve()
    job.release()
    [again] = q.reserve()
    q.enqueue_many([b"y", b"z"])
    first, second = q.reserve(2)
    first.ack()
    sent.clear()
    second.ack()
    with pytest.raises(StaleReceipt):
        job.ack()
    again.ack()
    assert sent == ["ack 7", "ack 7", "ack all", "show all", "ack all"]
    assert q.stats().acked == 3


def test_acks_with_options_send_all_keys(q: Queue, sent: list[str]) -> None:
    """Acks by id or with a window."""
    job = q.enqueue(b"x")
    q.enqueue(b"y")
    q.enqueue(b"z")
    taken = q.reserve(3)
    q.ack(taken[2:])
    sent.clear()
    q.ack([job.id])
    q.ack(taken[1:2], dedup_window=5)
    assert sent == ["ack all", "ack all"]


def test_a_late_answer_of_the_lane_undoes_no_refusal(q: Queue) -> None:
    """Two calls go out before the lane is known. One is answered, a later one is refused, and then
    the answer to the other comes: the client goes on sending all keys.
    """
    for _ in range(2):
        q.enqueue(b"x")
    early, late = q.ops.reserve(1), q.ops.reserve(1)
    assert q.route.node.executor.run(early).deliveries
    assert q.ops.reserve(1).head != early.head
    q.ops.decline(early.script)
    assert q.route.node.executor.run(late).deliveries
    assert q.ops.reserve(1).head == early.head


def test_a_call_behind_a_wait_tells_it_too(real_ps: Penstock, real_raw: Raw) -> None:
    """A reserve that goes out behind a BLPOP is answered by the lane: its keys are enough then."""
    load_scripts(real_raw)
    q = real_ps.queue("emails")
    q.enqueue(b"x")
    key, call = q.ops.keys["wake"], q.ops.reserve(1)
    [(server, _)] = q.route.node.executor.connections.locate_keys((key,))
    waiter = server.waiter()
    waiter.begin((key,), lambda: call)
    assert waiter.read(10) == key
    assert len(waiter.take().deliveries) == 1
    waiter.drop()
    assert len(q.ops.reserve(1).head) < len(call.head)
