# From tests/_async/test_sweeping.py by tools/unasync.py; do not edit.
"""Waiting clients free unused memory (protocol/maintenance.md, Sweeping)."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import Dedup, Penstock, Queue
from penstock.core.flows.sweeping import IDLE_MS, SweepSchedule
from tests.support.keyspace import advance, check_invariant, evalshas

Raw = Any
MOMENT = 0.01
TEN_MINUTES = 660


def hurried(client: Penstock) -> None:
    """Make the client sweep at each wait from its second one."""
    client.topology.driver._turns = SweepSchedule(lambda: 0.0)


def used_up(client: Penstock, raw: Raw, name: str) -> None:
    """Create a queue that had one job and was idle for more than ten minutes."""
    queue = client.queue(name)
    queue.enqueue("only")
    assert queue.ack(queue.reserve(block=0))
    advance(raw, queue.ops, TEN_MINUTES)


def test_a_consumer_that_waits_sweeps_its_queues(ps: Penstock, q: Queue, raw: Raw) -> None:
    """A waiting consumer removes ended windows, expired jobs and old dead letters."""
    hurried(ps)
    q.configure(dead_age=100)
    for number in range(150):
        q.enqueue(number, dedup=Dedup(str(number), window=50))
    jobs = q.reserve(150, block=0)
    q.bury(jobs[:20], "no")
    q.ack(jobs[20:])
    q.enqueue_many([b""] * 150, lease=0, ttl=50)
    q.reserve(150, block=0)
    advance(raw, q.ops, 200)
    assert q.reserve(block=MOMENT) == []
    assert q.reserve(block=MOMENT) == []
    left = [
        kind
        for kind in ("windows", "dedup", "dead", "once", "held")
        if raw.exists(q.ops.keys[kind])
    ]
    assert left == []
    check_invariant(raw)


def test_a_consumer_of_several_queues_sweeps_all(ps: Penstock, raw: Raw) -> None:
    """A consumer of several queues sweeps each of them."""
    hurried(ps)
    queues = [ps.queue(name) for name in ("a", "b", "c")]
    for queue in queues:
        queue.enqueue("x", lease=0, ttl=50)
        queue.reserve(block=0)
        advance(raw, queue.ops, 100)
    for _ in range(2):
        assert ps.reserve(queues, block=MOMENT) == []
    assert [queue.stats().unswept for queue in queues] == [0, 0, 0]
    assert not any(raw.exists(queue.ops.keys["held"]) for queue in queues)


def test_a_short_wait_costs_nothing(real_q: Queue, real_raw: Raw) -> None:
    """A client first sweeps after half a minute, so a short wait needs only two scripts."""
    real_q.reserve(block=0)
    before = evalshas(real_raw)
    for _ in range(3):
        assert real_q.reserve(block=MOMENT) == []
    assert evalshas(real_raw) - before == 6


def test_a_queue_with_a_consumer_stays(ps: Penstock, q: Queue, raw: Raw) -> None:
    """A queue with a waiting consumer is kept, and so are its counters."""
    hurried(ps)
    used_up(ps, raw, q.name)
    q.reserve(block=0)
    for _ in range(3):
        assert q.reserve(block=MOMENT) == []
    assert q.stats().acked == 1


def test_used_up_queues_of_others_are_removed(ps: Penstock, raw: Raw) -> None:
    """Forty unused queues are removed while a consumer waits for another one."""
    for number in range(40):
        used_up(ps, raw, f"used {number}")
    hurried(ps)
    q = ps.queue("waited for")
    q.enqueue("later", delay=10**6)
    for _ in range(42):
        if len(ps.queues()) == 1:
            break
        assert q.reserve(block=MOMENT) == []
        if ps.topology.driver._turns._listed_at is not None:  # the next sweep is due
            ps.topology.driver._turns._listed_at = 0.0
    assert ps.queues() == ["waited for"]
    assert raw.hlen("penstock:queues") == 1
    assert raw.keys("penstock:{used*") == []


def test_creating_queues_removes_unused_ones(ps: Penstock, raw: Raw) -> None:
    """With a new queue for each request, the number of queues stays bounded."""
    most = 0
    for number in range(80):
        used_up(ps, raw, f"request {number}")
        most = max(most, raw.hlen("penstock:queues"))
    assert most <= 40


@pytest.mark.parametrize("why", ["damaged", "newer", "no name"])
def test_damaged_queues_do_not_stop_the_sweep(ps: Penstock, raw: Raw, why: str) -> None:
    """Damaged queues, newer protocols and invalid registry entries do not stop the sweep."""
    used_up(ps, raw, "used")
    if why == "no name":
        raw.hset("penstock:queues", "0" * 16, b"")
    else:
        other = ps.queue("other")
        other.enqueue("x")
        if why == "damaged":
            raw.delete(other.ops.keys["meta"])
            raw.hset("penstock:queues", f"{other.ops.crc:08x}00000001", "other")
        else:
            raw.hset(other.ops.keys["meta"], "v", "4")
    removed = sum([ps.topology.driver.sweep_listed(1) for _ in range(6)])
    assert removed == 1
    assert not raw.exists(ps.queue("used").ops.keys["meta"])
    raw.flushdb()  # the damage is intended


def test_an_entry_of_an_earlier_epoch_is_removed(ps: Penstock, q: Queue, raw: Raw) -> None:
    """A leftover registry entry of an earlier epoch is removed."""
    q.enqueue("x")
    raw.hset("penstock:queues", f"{q.ops.crc:08x}00000001", q.name)
    for _ in range(4):
        ps.topology.driver.sweep_listed(1)
    assert raw.hlen("penstock:queues") == 1
    assert ps.queues() == [q.name]


# -- sparse streams ----------------------------------------------------------------------------


def sparse(q: Queue, **options: Any) -> list[Any]:
    """Create a queue of 20,000 jobs, remove all but every hundredth, and return their bodies."""
    added = q.enqueue_many(range(20_000), **options)
    q.delete([one.id for number, one in enumerate(added) if number % 100])
    return list(range(0, 20_000, 100))


def memory(raw: Raw, q: Queue) -> int:
    """Return the bytes of the structures that hold waiting jobs."""
    return sum(raw.memory_usage(q.ops.keys[kind]) or 0 for kind in ("ready", "held", "scheduled"))


def test_a_sparse_stream_is_compacted(real_q: Queue, real_raw: Raw) -> None:
    """A compacted queue keeps its jobs ready and in order, in a fifth of the memory."""
    wanted = sparse(real_q)
    before, stats = memory(real_raw, real_q), real_q.stats()
    shown = real_q.peek(200)
    assert real_q.sweep() == 0
    assert memory(real_raw, real_q) < before / 5
    assert real_raw.xlen(real_q.ops.keys["ready"]) == 0
    after = real_q.stats()
    assert (after.ready, after.scheduled) == (stats.ready, 0) == (200, 0)
    assert [view.id for view in real_q.peek(200)] == [view.id for view in shown]
    check_invariant(real_raw)
    real_q.enqueue_many(["new 1", "new 2"])
    jobs = real_q.reserve(300, block=0)
    assert [job.body for job in jobs] == [*wanted, "new 1", "new 2"]
    assert [job.id for job in jobs[:200]] == [view.id for view in shown]
    assert all(real_q.ack(jobs))
    check_invariant(real_raw)


def test_a_call_compacts_a_thousand_jobs_at_most(real_q: Queue, real_raw: Raw) -> None:
    """A sweep goes on until the stream is compacted."""
    added = real_q.enqueue_many(range(30_000))
    real_q.delete([one.id for number, one in enumerate(added) if number % 20])
    moved = real_q.route.node.executor.run(real_q.ops.call("sweep", IDLE_MS))
    assert (moved.more, real_raw.xlen(real_q.ops.keys["ready"])) == (1, 500)
    real_q.sweep()
    assert real_raw.xlen(real_q.ops.keys["ready"]) == 0
    assert real_q.stats().ready == 1500


def test_a_compacted_job_keeps_its_ttl_and_dedup_id(real_q: Queue, real_raw: Raw) -> None:
    """A compacted job keeps its dedup id, can be withdrawn, and expires."""
    sparse(real_q, ttl=500, dedup_id=str)
    real_q.sweep()
    assert real_raw.xlen(real_q.ops.keys["ready"]) == 0
    check_invariant(real_raw)
    again = real_q.enqueue("other", dedup_id="700")
    assert again.action == "refused"
    assert again.state == "ready"
    assert real_q.delete([again.id], if_undelivered=True).done == 1
    assert real_q.enqueue("other", dedup_id="700").action == "added"
    advance(real_raw, real_q.ops, 600)
    assert [job.body for job in real_q.reserve(300, block=0)] == ["other"]
    check_invariant(real_raw)


@pytest.mark.parametrize("side", ["in", "out", "all"])
def test_a_paused_queue_is_not_compacted(real_q: Queue, real_raw: Raw, side: str) -> None:
    """A paused queue is not compacted, as a pause treats the two structures differently."""
    sparse(real_q)
    real_q.pause(side)
    real_q.sweep()
    assert real_raw.xlen(real_q.ops.keys["ready"]) == 200
    real_q.resume()
    real_q.sweep()
    assert real_raw.xlen(real_q.ops.keys["ready"]) == 0


def test_a_survey_keeps_jobs_in_their_places(real_q: Queue, real_raw: Raw) -> None:
    """For ten minutes after a survey jobs stay in place, as it reads the structures in turn."""
    sparse(real_q)
    real_q.route.node.executor.run(real_q.ops.call("survey", "", "scheduled", "", "", 10, 0))
    for seconds, left in ((0, 200), (590, 200), (120, 0)):
        advance(real_raw, real_q.ops, seconds)
        real_q.sweep()
        assert real_raw.xlen(real_q.ops.keys["ready"]) == left


@pytest.mark.parametrize("size, keep", [(1, 1), (1, 5), (300, 1), (2000, 2)])
def test_a_stream_that_is_dense_enough_stays(
    real_q: Queue, real_raw: Raw, size: int, keep: int
) -> None:
    """A stream is compacted only if that saves memory."""
    added = real_q.enqueue_many(["x" * size] * 3000)
    real_q.delete([one.id for number, one in enumerate(added) if number % keep])
    real_q.sweep()
    assert real_raw.xlen(real_q.ops.keys["ready"]) == 3000 // keep
