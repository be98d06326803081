# From tests/_async/test_settings.py by tools/unasync.py; do not edit.
"""Settings and pauses: stored on the queue and valid for all clients."""

from __future__ import annotations

from datetime import timedelta

import pytest

from penstock import Penstock, Queue, QueuePaused, Settings
from tests.support.keyspace import Raw, advance, dump
from tests.support.twins import spawn

EVERYTHING = {
    "lease": 45,
    "max_length": 1000,
    "max_attempts": 5,
    "max_crashes": 2,
    "max_releases": 7,
    "backoff_base": 0.5,
    "backoff_cap": 60,
    "dead_max": 50,
    "dead_age": 3600,
    "rate": "100/min",
    "burst": 20,
}


def test_defaults(q: Queue) -> None:
    """A new queue has no stored settings."""
    q.enqueue(1)
    assert q.stats().settings == Settings()


def test_settings_are_stored_and_answered(ps: Penstock, q: Queue) -> None:
    """`configure` stores all settings and returns them; before the first job it
    creates the queue.
    """
    stored = q.configure(**EVERYTHING)  # type: ignore[arg-type]  # one dict for all kinds
    assert stored == Settings(**EVERYTHING)  # type: ignore[arg-type]  # the same
    assert q.stats().settings == stored
    assert ps.queues() == ["q"]


def test_settings_that_are_not_given_stay(q: Queue) -> None:
    """Settings that are not given stay; None restores the default of a single setting."""
    q.configure(lease=45, max_attempts=5, dead_max=0)
    assert q.configure(max_attempts=6) == Settings(lease=45, max_attempts=6, dead_max=0)
    assert q.configure(lease=None) == Settings(max_attempts=6, dead_max=0)
    assert q.configure() == Settings(max_attempts=6, dead_max=0)


def test_durations_may_be_timedeltas(q: Queue) -> None:
    """Durations may be timedeltas, with millisecond precision."""
    stored = q.configure(lease=timedelta(minutes=2), backoff_base=timedelta(milliseconds=1))
    assert (stored.lease, stored.backoff_base) == (120, 0.001)


def test_the_lease_of_the_queue(q: Queue, raw: Raw) -> None:
    """The queue's lease applies to jobs without their own, from the next delivery on."""
    q.enqueue_many([1, 2])
    (before,) = q.reserve(block=0)
    q.configure(lease=100)
    (after,) = q.reserve(block=0)
    assert (before.lease, after.lease) == (30, 100)
    advance(raw, q.ops, 31)
    assert [job.id for job in q.reserve(5, block=0)] == [before.id]


def test_all_clients_see_them(ps: Penstock, q: Queue) -> None:
    """All clients see the settings."""
    ps.queue("q").configure(max_attempts=1)
    q.enqueue(1)
    (job,) = q.reserve(block=0)
    job.nack()
    assert q.stats().dead == 1


@pytest.mark.parametrize("side", ["in", "all"])
def test_a_pause_for_producers(q: Queue, raw: Raw, side: str) -> None:
    """In a pause of both directions producers are refused, and no key changes."""
    q.enqueue(1)
    q.pause(side)
    before = dump(raw)
    for delay in (0, 5):
        with pytest.raises(QueuePaused, match=f"'q' is paused \\({side}\\)"):
            q.enqueue(2, delay=delay)
    with pytest.raises(QueuePaused):
        q.enqueue_many([2, 3])
    assert dump(raw) == before
    q.resume()
    q.enqueue(2)


@pytest.mark.parametrize("side", ["out", "all"])
def test_a_pause_for_consumers(q: Queue, raw: Raw, side: str) -> None:
    """In a pause nothing is delivered; held jobs may be settled and extended."""
    q.enqueue_many([1, 2, 3, 4])
    one, two, three = q.reserve(3, block=0)
    q.pause(side)
    assert q.reserve(5, block=0.02) == []
    assert one.ack()
    assert two.nack(delay=0)
    assert three.extend() == 30
    assert q.ack_and_reserve([three], 5)[1] == []
    stats = q.stats()
    assert (stats.ready, stats.active, stats.acked) == (2, 0, 2)
    q.resume()
    assert [job.body for job in q.reserve(5, block=0)] == [2, 4]


def test_a_pause_of_the_incoming_side(q: Queue, raw: Raw) -> None:
    """A pause of the incoming side also holds retries, due jobs and ended leases back."""
    q.enqueue("orphan", lease=5)
    q.reserve(block=0)
    q.enqueue("retried")
    (job,) = q.reserve(block=0)
    q.enqueue("due", delay=1)
    q.enqueue("ready")
    q.pause("in")
    job.nack(delay=0)
    advance(raw, q.ops, 6)
    assert [job.body for job in q.reserve(9, block=0)] == ["ready"]
    assert q.reserve(9, block=0.02) == []
    q.resume()
    bodies = [job.body for job in q.reserve(9, block=0)]
    assert bodies == ["orphan", "retried", "due"]


def test_a_pause_of_the_outgoing_side_accepts_jobs(q: Queue) -> None:
    """A pause of the outgoing side accepts jobs, which are delivered later."""
    q.pause("out")
    q.enqueue(1)
    q.enqueue_many([2, 3])
    assert q.stats().settings.paused == "out"
    q.resume()
    assert [job.body for job in q.reserve(9, block=0)] == [1, 2, 3]


def test_one_pause_replaces_another(q: Queue) -> None:
    """A second pause replaces the first; resume ends either, and is harmless without one."""
    for side in ("in", "out", "all"):
        q.pause(side)
        assert q.stats().settings.paused == side
    q.resume()
    assert q.stats().settings.paused is None
    q.resume()
    q.enqueue(1)


def test_a_paused_queue_exists(ps: Penstock, q: Queue, raw: Raw) -> None:
    """A paused queue exists even without jobs, and an idle sweep keeps it."""
    q.pause("out")
    assert ps.queues() == ["q"]
    advance(raw, q.ops, 100_000)
    assert ps.sweep() == 0
    assert q.stats().settings.paused == "out"


def test_purge_and_delete_in_a_pause(q: Queue) -> None:
    """Purge and delete work in a pause."""
    results = q.enqueue_many(range(4))
    q.pause("all")
    assert q.delete([results[0].id]).done == 1
    assert q.bury([results[1].id]).done == 1
    assert q.redrive() == 1
    assert q.purge() == 3


def test_a_consumer_that_waits_is_not_served_in_a_pause(q: Queue) -> None:
    """A waiting consumer gets no job during a pause, and gets one after it."""
    q.pause("out")
    consumer = spawn(q.reserve, 1, block=20)
    q.enqueue(1)
    assert q.reserve(1, block=0.05) == []
    assert not consumer.is_done
    q.resume()
    assert [job.body for job in consumer.result()] == [1]
