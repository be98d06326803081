"""Disque's commands that settle jobs: ACKJOB, FASTACK, NACK, ENQUEUE, DEQUEUE, WORKING, DELJOB.

ROWS continues the table of test_disque.py; that module checks it.
"""

from __future__ import annotations

from typing import Any

import pytest

from penstock import (
    BadJobId,
    JobGone,
    JobNotActive,
    Outcome,
    Penstock,
    Queue,
    StaleReceipt,
    TooLate,
    WrongQueue,
)
from tests.conformance.disque import (
    Rows,
    bodies,
)
from tests.support.keyspace import Raw, advance, dump, method_of, raw_time, reach_blocked
from tests.support.twins import spawn

ROWS: Rows = {
    "ACKJOB": (
        "test_an_ack_counts_what_it_finished",
        "test_an_ack_of_a_waiting_job",
        "test_one_bad_id_stops_a_call",
        "test_an_id_of_another_queue",
        "test_a_call_for_no_job",
    ),
    "ACKJOB … unknown id": ("test_an_unknown_id_leaves_nothing", "test_an_ack_after_the_ttl"),
    "FASTACK": ("test_an_ack_is_fast",),
    "NACK": (
        "test_a_nack_puts_a_job_back_at_its_place",
        "test_a_nack_of_unheld_jobs",
        "test_a_nack_at_most_once",
        "test_limits_can_be_switched_off",
        "test_putting_back_during_a_pause",
    ),
    "ENQUEUE": (
        "test_promoting_a_delayed_job",
        "test_promoting_a_held_job",
        "test_jobs_that_cannot_be_promoted",
        "test_a_waiting_reader_gets_a_promoted_job",
        "test_putting_back_during_a_pause",
    ),
    "DEQUEUE": (
        "test_a_dequeued_job_comes_back",
        "test_dequeuing_an_ended_lease",
        "test_jobs_that_cannot_be_dequeued",
        "test_a_waiting_reader_gets_a_dequeued_job",
    ),
    "WORKING": (
        "test_working_answers_the_seconds_gained",
        "test_working_by_id",
        "test_working_counts_from_now",
    ),
    "WORKING … TOOLATE": ("test_working_in_the_second_half_of_a_ttl", "test_only_a_ttl_is_halved"),
    "WORKING … NOJOB": ("test_working_on_a_finished_job",),
    "WORKING … not delivered": ("test_working_on_unheld_jobs",),
    "DELJOB": ("test_deleting_in_any_state",),
}


# -- ACKJOB, FASTACK ---------------------------------------------------------------------------


def test_an_ack_counts_what_it_finished(q: Queue) -> None:
    """ACKJOB; a.7 3: an outcome for each id; `done` counts known unfinished jobs."""
    q.enqueue_many(range(3))
    ids = [job.id for job in q.reserve(3, block=0)]
    first = q.ack(ids[:2])
    assert (first.done, list(first)) == (2, [Outcome.DONE] * 2)
    again = q.ack(ids)
    assert (again.done, list(again)) == (1, [Outcome.GONE, Outcome.GONE, Outcome.DONE])
    assert not again
    assert q.ack(ids).done == 0


def test_an_ack_of_a_waiting_job(q: Queue) -> None:
    """ACKJOB: a queued or delayed job is finished by its id and never delivered."""
    ids = [q.enqueue(b"queued").id, q.enqueue(b"delayed", delay=60).id]
    assert list(q.ack(ids)) == [Outcome.DONE] * 2
    assert q.reserve(block=0) == []
    assert [q.show(job_id) for job_id in ids] == [None, None]


OLD_IDS = [
    "DI0f0c644fd3ccb51c2cedbd47fcb6f312646c993c05a0SQ",
    "D-dcb833cf-8YL1NT17e9+wsA/09NqxscQI-05a1",
]
"""As the alpha of Disque made them, and as its last version did."""
BAD_IDS = [
    "",
    "x",
    "D-" + "0" * 38,
    "D-00000000-000000000000000000000000-ffff",
    None,
    5,
    b"D-",
    *OLD_IDS,
]


@pytest.mark.parametrize("call", ["ack", "nack", "promote", "postpone", "withdraw", "delete",
                                  "extend", "release", "bury", "redrive"])  # fmt: skip
@pytest.mark.parametrize("bad", BAD_IDS, ids=repr)
def test_one_bad_id_stops_a_call(q: Queue, raw: Raw, call: str, bad: Any) -> None:
    """ACKJOB: all ids are checked before anything is sent; with a bad one no job changes."""
    q.enqueue_many(range(2))
    (held,) = q.reserve(block=0)
    (waits,) = q.peek()
    before = dump(raw)
    for names in ([held.id, bad], [bad], [waits.id, bad, held.id]):
        with pytest.raises(BadJobId):
            method_of(q, call)(names)
    assert dump(raw) == before


@pytest.mark.parametrize("call", ["ack", "promote", "delete", "extend"])
def test_an_id_of_another_queue(ps: Penstock, raw: Raw, call: str) -> None:
    """ACKJOB: an id used with another queue is a typed error, and nothing changes."""
    mine, others = ps.queue("mine").enqueue(b"x"), ps.queue("others").enqueue(b"x")
    before = dump(raw)
    with pytest.raises(WrongQueue):
        method_of(ps.queue("mine"), call)([mine.id, others.id])
    assert dump(raw) == before


@pytest.mark.parametrize("call", ["ack", "nack", "promote", "postpone", "withdraw", "delete"])
def test_a_call_for_no_job(q: Queue, raw: Raw, call: str) -> None:
    """ACKJOB: a call without ids is allowed and does nothing."""
    q.enqueue(b"x")
    before = dump(raw)
    settled = method_of(q, call)([])
    assert (len(settled), settled.done) == (0, 0)
    assert dump(raw) == before


@pytest.mark.parametrize("lease", [None, 0], ids=["odd", "even"])
def test_an_unknown_id_leaves_nothing(q: Queue, raw: Raw, lease: float | None) -> None:
    """ACKJOB … unknown id: it is gone, and no data about it is kept, odd or even."""
    q.enqueue(b"stays")
    done = q.enqueue(b"x", lease=lease)
    q.delete([done.id])
    before = dump(raw)
    assert list(q.ack([done.id, done.id])) == [Outcome.GONE] * 2
    assert dump(raw) == before


@pytest.mark.parametrize("lease", [None, 0], ids=["leased", "once"])
@pytest.mark.parametrize("swept", [False, True], ids=["there", "swept"])
def test_an_ack_after_the_ttl(q: Queue, raw: Raw, lease: float | None, swept: bool) -> None:
    """ACKJOB … unknown id: an expired job can be acked by id without an error."""
    done = q.enqueue(b"x", ttl=10, lease=lease)
    q.reserve(block=0)
    advance(raw, q.ops, 11)
    if swept:
        assert q.sweep() == 1
    assert list(q.ack([done.id])) == [Outcome.GONE if swept else Outcome.DONE]
    assert q.show(done.id) is None


def test_an_ack_is_fast(q: Queue, raw: Raw) -> None:
    """FASTACK: one copy needs one call only; no data of the job is left."""
    q.enqueue_many(range(3), lease=10, ttl=60)
    jobs = q.reserve(3, block=0)
    assert q.ack(jobs).done == 3
    assert not raw.exists(*q.ops.keys.of(("held", "active", "tally", "expiry")))
    assert q.ack([job.id for job in jobs]).done == 0


# -- NACK, ENQUEUE, DEQUEUE --------------------------------------------------------------------


def test_a_nack_puts_a_job_back_at_its_place(q: Queue) -> None:
    """NACK: at once, before all younger jobs; several keep the order of their creation."""
    q.enqueue_many(["a", "b", "c", "d"])
    a, b, c = q.reserve(3, block=0)
    assert q.nack([c.id, a.id], delay=0).done == 2
    again = q.reserve(10, block=0)
    assert bodies(again) == ["a", "c", "d"]
    assert [(job.nacks, job.redeliveries) for job in again] == [(1, 0), (1, 0), (0, 0)]
    assert b.ack()


def test_a_nack_of_unheld_jobs(q: Queue) -> None:
    """NACK: a queued or delayed job is refused and does not move; an unknown one is gone."""
    delayed = q.enqueue(b"delayed", delay=60)
    queued = q.enqueue(b"queued")
    gone = q.enqueue(b"gone")
    q.delete([gone.id])
    settled = q.nack([delayed.id, queued.id, gone.id], delay=0)
    assert list(settled) == [Outcome.REFUSED, Outcome.REFUSED, Outcome.GONE]
    assert settled.done == 0
    assert bodies(q.reserve(5, block=0)) == [b"queued"]


def test_a_nack_at_most_once(q: Queue) -> None:
    """NACK; ADDJOB … RETRY 0; a.7 4: a job with lease 0 is not put back, and the
    outcome says so.
    """
    done = q.enqueue(b"x", lease=0)
    (job,) = q.reserve(block=0)
    for name in (job, done.id):
        assert list(q.nack([name], delay=0)) == [Outcome.REFUSED]
        assert list(q.promote([name])) == [Outcome.REFUSED]
        assert list(q.postpone([name])) == [Outcome.REFUSED]
    with pytest.raises(JobNotActive):
        job.nack()
    assert q.reserve(block=0) == []
    assert job.ack()


def test_limits_can_be_switched_off(q: Queue, raw: Raw) -> None:
    """NACK: by default the 20th failure and the 3rd crash bury a job; with 0 they do not."""
    q.enqueue(b"x", lease=5)
    q.configure(max_attempts=0, max_crashes=0)
    for _ in range(25):
        (job,) = q.reserve(block=0)
        assert q.nack([job], delay=0)[0] is Outcome.DONE
    for _ in range(5):
        assert len(q.reserve(block=0)) == 1
        advance(raw, q.ops, 5)
    (job,) = q.reserve(block=0)
    assert (job.nacks, job.redeliveries, q.stats().died) == (25, 5, 0)
    q.configure(max_attempts=None)
    assert q.nack([job], delay=0)[0] is Outcome.DEAD


def test_promoting_a_delayed_job(q: Queue, raw: Raw) -> None:
    """ENQUEUE: a delay ends at once; the job goes to the place of its creation and
    is not counted.
    """
    first = q.enqueue("first", delay=3600)
    q.enqueue_many(["b", "c"])
    last = q.enqueue("last", delay=3600)
    assert list(q.promote([last.id, first.id])) == [Outcome.DONE] * 2
    jobs = q.reserve(10, block=0)
    assert bodies(jobs) == ["first", "b", "c", "last"]
    assert {(job.nacks, job.redeliveries) for job in jobs} == {(0, 0)}
    assert q.stats().promoted == 2


def test_promoting_a_held_job(q: Queue) -> None:
    """ENQUEUE: a delivery ends, its receipt is stale, and the next delivery counts
    as additional.
    """
    q.enqueue_many(["a", "b"])
    (held,) = q.reserve(block=0)
    assert list(q.promote([held.id])) == [Outcome.DONE]
    assert list(q.ack([held])) == [Outcome.STALE]
    with pytest.raises(StaleReceipt):
        held.ack()
    (again, other) = q.reserve(2, block=0)
    assert (again.body, again.nacks, again.redeliveries, again.deliveries) == ("a", 0, 1, 2)
    assert other.redeliveries == 0
    assert again.ack()


def test_jobs_that_cannot_be_promoted(q: Queue, raw: Raw) -> None:
    """ENQUEUE: jobs that are queued, dead, expired, unknown, or delivered with lease 0."""
    ids = {}
    for name in ("once", "dead"):
        ids[name] = q.enqueue(name, lease=0 if name == "once" else None).id
        (job,) = q.reserve(block=0)
        if name == "dead":
            job.bury()
    ids["ready"] = q.enqueue("ready").id
    ids["expired"] = q.enqueue("expired", delay=50, ttl=60).id
    ids["gone"] = q.enqueue("gone").id
    q.delete([ids["gone"]])
    advance(raw, q.ops, 60)
    assert dict(zip(ids, q.promote(ids.values()), strict=True)) == {
        "once": Outcome.REFUSED,
        "dead": Outcome.REFUSED,
        "ready": Outcome.REFUSED,
        "expired": Outcome.EXPIRED,
        "gone": Outcome.GONE,
    }
    assert bodies(q.reserve(10, block=0)) == ["ready"]


@pytest.mark.parametrize("lease", [None, 12])
def test_a_dequeued_job_comes_back(q: Queue, raw: Raw, lease: float | None) -> None:
    """DEQUEUE: a queued job leaves the queue for its own lease, or the queue's."""
    q.configure(lease=40)
    a = q.enqueue("a", lease=lease)
    q.enqueue("b")
    assert list(q.postpone([a.id])) == [Outcome.DONE]
    assert bodies(q.peek()) == ["b"]
    assert bodies(q.reserve(5, block=0)) == ["b"]
    view = q.show(a.id)
    assert view is not None
    assert view.state == "scheduled"
    advance(raw, q.ops, (lease or 40) - 5)
    assert q.reserve(block=0) == []
    advance(raw, q.ops, 5)
    (job,) = [job for job in q.reserve(5, block=0) if job.id == a.id]
    assert (job.nacks, job.redeliveries) == (0, 0)
    assert q.stats().postponed == 1


def test_dequeuing_an_ended_lease(q: Queue, raw: Raw) -> None:
    """DEQUEUE: a job with an ended lease, or a due one, can be dequeued too."""
    q.enqueue("held", lease=20)
    (held,) = q.reserve(block=0)
    due = q.enqueue("due", delay=10, lease=20)
    advance(raw, q.ops, 20)
    assert list(q.postpone([held.id, due.id])) == [Outcome.DONE] * 2
    assert q.reserve(5, block=0) == []
    assert list(q.ack([held])) == [Outcome.STALE]
    advance(raw, q.ops, 20)
    again = q.reserve(5, block=0)
    assert sorted(bodies(again)) == ["due", "held"]
    assert {job.body: job.redeliveries for job in again} == {"due": 0, "held": 1}


def test_jobs_that_cannot_be_dequeued(q: Queue, raw: Raw) -> None:
    """DEQUEUE; a.7 4: held, delayed and dead jobs, and those with lease 0, which would be lost."""
    ids = {"held": q.enqueue("held").id, "dead": q.enqueue("dead").id}
    (held, dead) = q.reserve(2, block=0)
    dead.bury()
    ids["delayed"] = q.enqueue("delayed", delay=60).id
    ids["once"] = q.enqueue("once", lease=0).id
    ids["gone"] = q.enqueue("gone").id
    q.delete([ids["gone"]])
    before = dump(raw)
    assert dict(zip(ids, q.postpone(ids.values()), strict=True)) == {
        "held": Outcome.REFUSED,
        "dead": Outcome.REFUSED,
        "delayed": Outcome.REFUSED,
        "once": Outcome.REFUSED,
        "gone": Outcome.GONE,
    }
    assert dump(raw) == before
    assert held.ack()
    assert bodies(q.reserve(10, block=0)) == ["once"]


def test_a_waiting_reader_gets_a_promoted_job(real_ps: Penstock, real_raw: Raw) -> None:
    """ENQUEUE: a waiting consumer gets it before its own next look."""
    queue = real_ps.queue("q")
    later = queue.enqueue(b"later", delay=3600)
    reader = spawn(lambda: queue.reserve(block=None))
    reach_blocked(real_raw, 1)
    promoted = raw_time(real_raw)
    assert queue.promote([later.id]).done == 1
    (job,) = reader.result()
    assert job.body == b"later"
    assert job.delivered - promoted < 3


def test_a_waiting_reader_gets_a_dequeued_job(real_ps: Penstock, real_raw: Raw) -> None:
    """DEQUEUE: a waiting consumer gets it when it comes back."""
    queue = real_ps.queue("q")
    done = queue.enqueue(b"x", lease=0.5)
    dequeued = raw_time(real_raw)
    assert queue.postpone([done.id]).done == 1
    (job,) = queue.reserve(block=None)
    assert job.id == done.id
    assert 0.499 <= round(job.delivered - dequeued, 3) < 3


# -- WORKING -----------------------------------------------------------------------------------


def test_working_answers_the_seconds_gained(q: Queue) -> None:
    """WORKING: it returns the seconds of the lease: the job's own or the requested ones."""
    q.enqueue(b"x", lease=123)
    (job,) = q.reserve(block=0)
    assert job.extend() == 123
    assert job.extend(7) == 7
    assert q.extend([job], 45).seconds_left == [45]


def test_working_by_id(q: Queue) -> None:
    """WORKING: it works by id too; the holder's receipt stays valid."""
    q.enqueue(b"x", lease=123)
    (job,) = q.reserve(block=0)
    assert q.extend([job.id]).seconds_left == [123]
    assert job.ack()


def test_working_counts_from_now(q: Queue, raw: Raw) -> None:
    """WORKING; a.2 retry clock: each call starts a whole lease again, so a job is not redelivered
    while its holder calls in time.
    """
    q.enqueue(b"x", lease=20)
    (job,) = q.reserve(block=0)
    for _ in range(6):
        advance(raw, q.ops, 15)
        assert q.reserve(block=0) == []
        assert job.extend() == 20
    advance(raw, q.ops, 20)
    (again,) = q.reserve(block=0)
    assert again.redeliveries == 1
    with pytest.raises(StaleReceipt):
        job.extend()


def test_working_in_the_second_half_of_a_ttl(q: Queue, raw: Raw) -> None:
    """WORKING … TOOLATE; a.7 7: refused when more than half of the ttl has passed since creation,
    unless `late=True`.
    """
    q.enqueue_many([b"x"] * 2, ttl=1000, lease=900)
    job, other = q.reserve(2, block=0)
    advance(raw, q.ops, 480)
    assert job.extend(5) == 5
    assert job.extend(900) == pytest.approx(520, abs=10)  # bounded by the ttl
    advance(raw, q.ops, 30)
    with pytest.raises(TooLate):
        job.extend(5)
    assert q.extend([job, other.id]) == [Outcome.TOO_LATE] * 2
    view = q.show(job)
    assert view is not None
    assert view.lease_until == view.expires
    assert job.extend(5, late=True) == 5
    assert q.extend([other], 7, late=True).seconds_left == [7]
    assert job.ack()


def test_only_a_ttl_is_halved(q: Queue, raw: Raw) -> None:
    """WORKING … TOOLATE: a job without a ttl can always be extended."""
    q.enqueue(b"x", lease=50)
    (job,) = q.reserve(block=0)
    for _ in range(20):
        advance(raw, q.ops, 40)
        assert job.extend() == 50


def test_working_on_a_finished_job(q: Queue) -> None:
    """WORKING … NOJOB: an acked, deleted or unknown job raises; by id it is an outcome."""
    q.enqueue_many([b"acked", b"deleted"])
    acked, deleted = q.reserve(2, block=0)
    acked.ack()
    q.delete([deleted.id])
    for job in (acked, deleted):
        with pytest.raises(JobGone):
            job.extend()
    assert q.extend([acked.id, deleted]) == [Outcome.GONE] * 2


def test_working_on_unheld_jobs(q: Queue, raw: Raw) -> None:
    """WORKING … not delivered: a queued job, a delayed one and one with lease 0 are refused and
    keep their place and delay.
    """
    delayed = q.enqueue("delayed", delay=60)
    queued = q.enqueue("queued")
    once = q.enqueue("once", lease=0)
    before = dump(raw)
    assert q.extend([delayed.id, queued.id, once.id], 5) == [Outcome.REFUSED] * 3
    assert dump(raw) == before
    jobs = q.reserve(5, block=0)
    assert bodies(jobs) == ["queued", "once"]
    with pytest.raises(JobNotActive):
        jobs[1].extend()
    advance(raw, q.ops, 60)
    assert "delayed" in bodies(q.reserve(5, block=0))


# -- DELJOB ------------------------------------------------------------------------------------


def test_deleting_in_any_state(q: Queue) -> None:
    """DELJOB: in any state a job is removed at once; the answer counts the existing ones."""
    ids = [q.enqueue("once", lease=0).id, q.enqueue("held").id, q.enqueue("dead").id]
    once, held, dead = q.reserve(3, block=0)
    dead.bury()
    ids += [q.enqueue("delayed", delay=60).id, q.enqueue("queued").id]
    assert q.delete(ids).done == 5
    assert list(q.delete(ids)) == [Outcome.GONE] * 5
    assert [held.ack(), once.ack()] == [False, False]
    assert [q.show(job_id) for job_id in ids] == [None] * 5
    assert q.reserve(5, block=0) == []
