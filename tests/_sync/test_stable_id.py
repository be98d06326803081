# From tests/_async/test_stable_id.py by tools/unasync.py; do not edit.
"""Stable ids: a handler can use them to make its work idempotent."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import Dedup, Penstock, Queue
from penstock.core.calls.call import Call
from tests.support.keyspace import Raw, drop_producers


@pytest.fixture
def q(ps: Penstock) -> Queue:
    """A queue that does not exist yet."""
    return ps.queue("q")


def test_producer_and_consumer_see_the_same(q: Queue) -> None:
    """Producer and consumer see the same id, for single, bulk and dedup jobs, at every delivery."""
    told = [q.enqueue("a"), *q.enqueue_many(["b", b"c"])]
    told += [q.enqueue("d", dedup_id="d"), *q.enqueue_many(["e"], dedup_id="e")]
    jobs = q.reserve(9, block=0)
    assert [job.id for job in jobs] == [one.id for one in told]
    assert [job.stable_id for job in jobs] == [one.stable_id for one in told]
    assert len({job.stable_id for job in jobs}) == 5
    for job in jobs:
        view = q.show(job.id)
        assert view is not None
        assert view.stable_id == job.stable_id
    q.release(jobs)
    assert [view.stable_id for view in q.peek(9)] == [job.stable_id for job in jobs]
    found = {view.id: view.stable_id for view in q.jobs()}
    assert found == {job.id: job.stable_id for job in jobs}
    again = q.reserve(9, block=0)
    assert [job.stable_id for job in again] == [one.stable_id for one in told]


def test_a_repeat_on_a_primary_without_the_call_keeps_it(
    q: Queue, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failover that lost the call, its repeat has another id but the same stable id."""
    build = q.ops.enqueue_one
    sent: list[Call[Any]] = []

    def kept(*args: Any, **options: Any) -> Call[Any]:
        sent.append(build(*args, **options))
        return sent[-1]

    q.enqueue("first")
    q.reserve(1, block=0)
    with monkeypatch.context() as patch:
        patch.setattr(q.ops, "enqueue_one", kept)
        told = q.enqueue("work")
    (old,) = q.reserve(1, block=0)
    old.ack()
    drop_producers(raw, q.ops)  # as a lagging replica: it has neither the job nor the call
    q.route.node.executor.run(sent[-1])
    (new,) = q.reserve(1, block=0)
    assert new.id != old.id == told.id
    assert new.stable_id == old.stable_id == told.stable_id
    assert (new.body, new.deliveries) == ("work", 1)


def test_a_refused_duplicate_has_none(q: Queue) -> None:
    """An update has the stable id of the new content; a refused duplicate has none."""
    first = q.enqueue("a", dedup_id="x")
    assert first.stable_id
    assert q.enqueue("b", dedup_id="x").stable_id == ""
    update = q.enqueue("c", dedup=Dedup("x", on_duplicate="update"))
    (job,) = q.reserve(1, block=0)
    assert job.stable_id == update.stable_id != first.stable_id
    after = q.enqueue("d", dedup=Dedup("x", on_duplicate="requeue"))
    job.ack()
    (job,) = q.reserve(1, block=0)
    assert job.stable_id == after.stable_id


def test_a_job_without_one_has_its_id(q: Queue, raw: Raw) -> None:
    """A job whose producer gave no stable id uses its id."""
    q.enqueue("made")
    q.purge()
    raw.xadd(q.ops.keys["ready"], {"j": b"1\nplain"}, id=b"1900000000000-1000000000")
    (view,) = q.peek(1)
    (job,) = q.reserve(1, block=0)
    assert job.stable_id == job.id == view.stable_id == view.id
