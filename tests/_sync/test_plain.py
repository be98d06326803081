# From tests/_async/test_plain.py by tools/unasync.py; do not edit.
"""The client calls the plain forms of reserve, ack and settle, and the full ones if it must."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import Queue, StaleReceipt
from penstock.core.calls.operations.base import CALLS_BEFORE_PLAIN


@pytest.fixture
def scripts(q: Queue, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the scripts that the client calls."""
    found: list[str] = []
    run = q.node.executor.connections.run

    def noting(call: Any, **options: Any) -> Any:
        found.append(call.script.name)
        return run(call, **options)

    monkeypatch.setattr(q.node.executor.connections, "run", noting)
    return found


def test_the_usual_case_takes_the_plain_forms(q: Queue, scripts: list[str]) -> None:
    """First deliveries in a queue without options."""
    q.enqueue_many([b"1", b"2", b"3", b"4", b"5"])
    scripts.clear()
    [one] = q.reserve()
    many = q.reserve(2)
    one.ack()
    assert q.ack(many).all_done
    assert q.reserve(5)
    assert not q.reserve(block=0)
    assert scripts == ["reserve_plain"] * 2 + ["ack_plain"] * 2 + ["reserve_plain"] * 2
    assert q.stats().acked == 3


def test_an_exchange_takes_the_plain_form(q: Queue, scripts: list[str]) -> None:
    """`settle` of first deliveries."""
    q.enqueue_many([b"1", b"2", b"3"])
    jobs = q.reserve(2)
    scripts.clear()
    outcomes, jobs = q.ack_and_reserve(jobs, 2)
    assert outcomes.all_done
    assert [job.body for job in jobs] == [b"3"]
    assert [job.attempt for job in jobs] == [1]
    assert scripts == ["settle_plain"]


def test_a_refusal_leads_to_the_full_script(q: Queue, scripts: list[str]) -> None:
    """The call is done by the full script, and so are the next ones, until it is tried again."""
    q.enqueue(b"x", ttl=60)
    q.enqueue_many([b"x"] * (CALLS_BEFORE_PLAIN + 3))
    scripts.clear()
    for _ in range(CALLS_BEFORE_PLAIN + 2):
        assert len(q.reserve()) == 1
    refused = ["reserve_plain", "reserve"]
    assert scripts == [*refused, *["reserve"] * CALLS_BEFORE_PLAIN, *refused]


def test_a_second_delivery_is_ended_by_the_full_script(q: Queue, scripts: list[str]) -> None:
    """It has counters. A first one is left to the plain form again."""
    q.enqueue(b"x")
    [job] = q.reserve()
    job.release()
    [again] = q.reserve()
    q.enqueue(b"y")
    [first] = q.reserve()
    scripts.clear()
    with pytest.raises(StaleReceipt):
        job.ack()
    again.ack()
    q.ops.declined.clear()
    first.ack()
    assert scripts == ["ack_plain", "ack", "show", "ack", "ack_plain"]
    assert q.stats().acked == 2


def test_options_of_a_call_need_the_full_script(q: Queue, scripts: list[str]) -> None:
    """Acks by id or with a window."""
    job = q.enqueue(b"x")
    q.enqueue(b"y")
    taken = q.reserve(2)
    scripts.clear()
    q.ack([job.id])
    q.ack(taken[1:], dedup_window=5)
    assert scripts == ["ack", "ack"]


def test_many_plain_jobs_take_the_plain_form(q: Queue, scripts: list[str]) -> None:
    """Also when the first call has created the queue. Jobs with options need the full script."""
    assert len(q.enqueue_many([b"x"] * 3)) == 3
    assert scripts == ["enqueue_plain", "enqueue", "enqueue", "enqueue"]
    scripts.clear()
    added = q.enqueue_many([b"1", {"to": "ada"}, b"3"], lease=60)
    assert scripts == ["enqueue_plain"]
    assert [job.state for job in added] == ["ready"] * 3
    assert [view.id for view in q.peek(10)][3:] == added.ids
    scripts.clear()
    q.enqueue_many([b"x"] * 2, delay=5)
    q.enqueue_many([b"x"] * 2, max_length=100)
    q.enqueue_many([b"x" * 5000] * 2)
    q.enqueue_many([b"x"] * 2, ttl=60)
    assert scripts == ["enqueue"] * 4
    scripts.clear()
    q.enqueue_many([b"x"] * 2)
    q.enqueue_many([b"x"] * 2)
    assert scripts == ["enqueue_plain", "enqueue", "enqueue"]
