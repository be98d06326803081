# From tests/_async/test_waking.py by tools/unasync.py; do not edit.
"""Idle consumers are woken in time, and only when there is a reason."""

from __future__ import annotations

import pytest

from penstock import Job, Penstock, Queue
from tests.support.keyspace import Raw, evalshas, load_scripts
from tests.support.twins import spawn

from .conftest import Waits


def passed(before: Job, after: Job) -> float:
    """Return the seconds between two deliveries by the server's clock."""
    return round(after.delivered - before.delivered, 3)


def test_an_idle_consumer_recovers_an_ended_lease(q: Queue, waits: Waits) -> None:
    """With a lease of 1 s an idle consumer gets the orphaned job within 2 s,
    without other traffic.
    """
    q.enqueue("orphan", lease=1)
    (held,) = q.reserve(block=0)
    (again,) = q.reserve(block=30)
    assert (again.id, again.crashes) == (held.id, 1)
    assert 1.0 <= passed(held, again) < 2.0


def test_a_consumer_that_waited_before_recovers_it_too(q: Queue, waits: Waits) -> None:
    """A consumer that blocked before the job came gets it after the other holder's lease."""
    q.enqueue("make the queue")
    q.purge()
    idle = spawn(q.reserve, 1, block=30)
    waits.reach(1)
    q.enqueue("orphan", lease=1)
    (first,) = idle.result()
    second = spawn(q.reserve, 1, block=30)
    (again,) = second.result()
    assert again.id == first.id
    assert 1.0 <= passed(first, again) < 2.0


def test_two_idle_consumers_recover_one_job_after_the_other(q: Queue, waits: Waits) -> None:
    """Two leases end one after the other; the wake-up for the first does not lose the second."""
    q.enqueue("a", lease=0.4)
    q.enqueue("b", lease=0.9)
    held = q.reserve(2, block=0)

    def take_one() -> Job:
        (job,) = q.reserve(1, block=30)
        job.ack()
        return job

    consumers = [spawn(take_one) for _ in range(2)]
    again = sorted([one.result() for one in consumers], key=lambda job: job.body)
    assert [job.body for job in again] == ["a", "b"]
    for before, after in zip(held, again, strict=True):
        assert before.lease <= passed(before, after) < before.lease + 1


def test_a_lease_cut_short_is_noticed(q: Queue, waits: Waits) -> None:
    """A consumer that knew a later end of the lease is told of the earlier one."""
    q.enqueue("x", lease=60)
    (held,) = q.reserve(block=0)
    idle = spawn(q.reserve, 1, block=30)
    waits.reach(1)
    assert held.extend(0.2) == 0.2
    (again,) = idle.result()
    assert again.delivered - held.delivered < 3


@pytest.mark.parametrize("how", ["ack", "delete", "bury", "extend", "purge", "nack"])
def test_an_early_settled_lease_hides_no_later_event(q: Queue, waits: Waits, how: str) -> None:
    """An announced lease is settled early; a delay that ends later is still on time."""
    q.enqueue("x", lease=1)
    (job,) = q.reserve(block=0)
    if how == "delete":
        q.delete([job.id])
    elif how == "purge":
        q.purge("active")
    elif how == "extend":
        job.extend(60)
    elif how == "nack":
        job.nack(delay=60)
    else:
        (job.ack() if how == "ack" else job.bury("no use"))
    idle = spawn(q.reserve, 1, block=30)
    waits.reach(1)
    q.enqueue("later", delay=1.1)
    (later,) = idle.result()
    assert later.body == "later"
    assert later.delivered - later.created < 3  # a tick alone would need 4


@pytest.mark.usefixtures("no_ticks")
@pytest.mark.parametrize("how", ["release", "nack", "release later", "nack later", "redrive"])
def test_a_job_given_back_wakes_an_idle_consumer(q: Queue, waits: Waits, how: str) -> None:
    """A released job wakes an idle consumer at once or after its delay."""
    delay = 0.1 if "later" in how else 0
    q.enqueue("x")
    (job,) = q.reserve(block=0)
    if how == "redrive":
        job.bury()
    idle = spawn(q.reserve, 1, block=30)
    waits.reach(1)
    if how.startswith("release"):
        assert job.release(delay=delay)
    elif how.startswith("nack"):
        assert job.nack(delay=delay)
    else:
        assert q.redrive() == 1
    (again,) = idle.result()
    assert (again.id, again.deliveries) == (job.id, 2)


def test_a_delayed_job_is_never_early_and_hardly_late(q: Queue, waits: Waits) -> None:
    """A delayed job is never early and, unless the machine is busy, at most 50 ms late."""
    late = []
    for _ in range(7):
        idle = spawn(q.reserve, 1, block=30)
        waits.reach(1)
        q.enqueue("x", delay=0.12)
        (job,) = idle.result()
        late.append(round(job.delivered - job.created - 0.12, 3))
        job.ack()
    assert 0 <= min(late) <= 0.05


def test_a_delay_longer_than_a_tick_is_on_time(q: Queue) -> None:
    """A delay longer than the 4 s tick is on time too."""
    q.enqueue("x", delay=4.3)
    (job,) = q.reserve(block=30)
    assert 4.3 <= round(job.delivered - job.created, 3) < 5.3


def test_consumers_share_the_delayed_jobs(q: Queue, waits: Waits) -> None:
    """Three jobs are due one after the other; three idle consumers start one each on time."""
    consumers = [spawn(q.reserve, 1, block=30) for _ in range(3)]
    waits.reach(3)
    for number in (1, 2, 3):
        q.enqueue(number, delay=number * 0.25)
    jobs = [job for one in consumers for job in one.result()]
    assert sorted(job.body for job in jobs) == [1, 2, 3]
    for job in jobs:
        late = round(job.delivered - job.created - job.body * 0.25, 3)
        assert 0 <= late < 1


@pytest.mark.usefixtures("no_ticks")
def test_one_call_wakes_enough_consumers(q: Queue, waits: Waits) -> None:
    """Five jobs in one call: each woken consumer passes the token to the next one."""
    consumers = [spawn(q.reserve, 1, block=30) for _ in range(5)]
    waits.reach(5)
    q.enqueue_many(range(5))
    jobs = [job for one in consumers for job in one.result()]
    assert sorted(job.body for job in jobs) == list(range(5))


def test_a_fresh_job_wakes_one_consumer(real_q: Queue, real_raw: Raw, waits: Waits) -> None:
    """One new job wakes one of five waiting consumers; the other four send nothing."""
    load_scripts(real_raw)
    real_q.enqueue("make the queue")
    real_q.purge()
    consumers = [spawn(real_q.reserve, 1, block=30) for _ in range(5)]
    waits.reach(5)
    before = evalshas(real_raw)
    real_q.enqueue("fresh")
    waits.reach(4)
    assert evalshas(real_raw) - before <= 3  # enqueue, reserve, and at most one more
    real_q.enqueue_many(range(4))
    assert sum([len(one.result()) for one in consumers]) == 5


def test_a_consumer_that_stops_waiting_takes_no_token(q: Queue, waits: Waits) -> None:
    """One of two idle consumers takes a due job by its timer; the next job wakes the other one."""
    for _ in range(3):
        consumers = [spawn(q.reserve, 1, block=30) for _ in range(2)]
        waits.reach(2)
        q.enqueue("due", delay=0.1)
        waits.reach(1)
        q.enqueue("fresh")
        jobs = [job for one in consumers for job in one.result()]
        (fresh,) = (job for job in jobs if job.body == "fresh")
        assert fresh.delivered - fresh.created < 2
        q.ack(jobs)


def test_a_token_of_another_queue_is_not_taken(ps: Penstock, waits: Waits) -> None:
    """A consumer of two queues takes a job of one; a job of the other wakes its own consumer."""
    for _ in range(3):
        both = spawn(ps.reserve, ["a", "b"], 1, block=30)
        waits.reach(1)
        other = spawn(ps.queue("b").reserve, 1, block=30)
        waits.reach(2)
        ps.queue("a").enqueue("for both")
        ps.queue("b").enqueue("for the other")
        jobs = both.result() + other.result()
        assert sorted(job.body for job in jobs) == ["for both", "for the other"]
        assert all(job.delivered - job.created < 2 for job in jobs)


def test_a_wait_that_ends_leaves_the_job_to_others(q: Queue, waits: Waits) -> None:
    """A consumer's wait times out; a later job reaches the remaining consumer."""
    short = spawn(q.reserve, 1, block=0.1)
    stays = spawn(q.reserve, 1, block=30)
    assert short.result() == []
    waits.reach(1)
    q.enqueue("x")
    (job,) = stays.result()
    assert job.delivered - job.created < 2


@pytest.mark.parametrize("side", ["out", "all"])
def test_a_pause_with_jobs_waiting_costs_no_busy_loop(
    real_q: Queue, real_raw: Raw, waits: Waits, side: str
) -> None:
    """Two consumers wait at a paused queue with ready, due and orphaned jobs
    without a busy loop.
    """
    load_scripts(real_raw)
    real_q.enqueue("orphan", lease=0.01)
    real_q.reserve(block=0)
    real_q.enqueue_many(range(10))
    real_q.enqueue("due", delay=0.01)
    real_q.pause(side)
    before = evalshas(real_raw)
    consumers = [spawn(real_q.reserve, 1, block=0.8) for _ in range(2)]
    assert [one.result() for one in consumers] == [[], []]
    assert evalshas(real_raw) - before <= 12


def test_a_pause_of_the_incoming_side_costs_no_busy_loop(
    real_q: Queue, real_raw: Raw, waits: Waits
) -> None:
    """With the incoming side paused, held-back jobs cause no busy loop."""
    load_scripts(real_raw)
    real_q.enqueue("orphan", lease=0.01)
    real_q.reserve(block=0)
    real_q.enqueue("due", delay=0.01)
    real_q.pause("in")
    before = evalshas(real_raw)
    consumers = [spawn(real_q.reserve, 1, block=0.8) for _ in range(2)]
    assert [one.result() for one in consumers] == [[], []]
    assert evalshas(real_raw) - before <= 12


def test_waiting_for_a_far_event_costs_a_call_a_tick(
    real_q: Queue, real_raw: Raw, waits: Waits
) -> None:
    """Leases and delays that end after the wait do not cause repeated calls."""
    load_scripts(real_raw)
    real_q.enqueue("held", lease=3600)
    real_q.reserve(block=0)
    real_q.enqueue("later", delay=3)
    before = evalshas(real_raw)
    assert real_q.reserve(block=0.6) == []
    assert evalshas(real_raw) - before <= 6


@pytest.mark.usefixtures("no_ticks")
@pytest.mark.parametrize("side", ["out", "all"])
def test_resume_wakes_idle_consumers(q: Queue, waits: Waits, side: str) -> None:
    """Idle consumers start on the waiting jobs at once after a resume."""
    q.enqueue_many(range(2))
    q.pause(side)
    consumers = [spawn(q.reserve, 1, block=30) for _ in range(2)]
    waits.reach(2)
    q.resume()
    jobs = [job for one in consumers for job in one.result()]
    assert sorted(job.body for job in jobs) == [0, 1]


@pytest.mark.usefixtures("no_ticks")
def test_resuming_the_incoming_side_wakes_idle_consumers(q: Queue, waits: Waits) -> None:
    """Jobs that a pause held back wake idle consumers after a resume."""
    q.enqueue("due", delay=0.01)
    q.pause("in")
    idle = spawn(q.reserve, 1, block=30)
    waits.reach(1)
    q.resume()
    assert [job.body for job in idle.result()] == ["due"]
