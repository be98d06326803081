# From tests/_async/test_dead.py by tools/unasync.py; do not edit.
"""Dead letters: how jobs die, the recorded reason, and how a redrive brings them back."""

from __future__ import annotations

import pytest

from penstock import JobView, Outcome, Penstock, Queue
from tests.support.backends import Backend
from tests.support.keyspace import Raw, advance, dump, numbers, queue_time_ms


def letters(q: Queue) -> list[JobView]:
    """All dead letters, the oldest first."""
    return q.peek(1000, state="dead")


def last_held(text: str, letter: JobView) -> str:
    """Return the error of a job that died of a crash, with its last owner and time in ms."""
    return f"{text}, last held by {letter.owner} since {(letter.delivered or 0) * 1000:.0f}"


def bury_all(q: Queue, count: int) -> list[str]:
    """Create dead letters and return their ids in the order of their death."""
    results = q.enqueue_many(range(count))
    jobs = q.reserve(count, block=0)
    assert q.bury(jobs, "buried")
    return results.ids


def test_death_by_failed_attempts(q: Queue) -> None:
    """After `max_attempts` nacks the job is dead, with its last error."""
    q.configure(max_attempts=3)
    done = q.enqueue("x")
    for attempt in (1, 2):
        (job,) = q.reserve(block=0)
        assert list(q.nack([job], delay=0, error=f"error {attempt}")) == [Outcome.DONE]
    (job,) = q.reserve(block=0)
    assert list(q.nack([job], delay=0, error="error 3")) == [Outcome.DEAD]
    (letter,) = letters(q)
    assert (letter.id, letter.state, letter.nacks, letter.error) == (done.id, "dead", 3, "error 3")
    assert letter.deliveries == 3
    assert q.reserve(block=0) == []
    stats = q.stats()
    assert (stats.dead, stats.died, stats.nacked) == (1, 1, 3)


def test_twenty_attempts_by_default(q: Queue) -> None:
    """By default the twentieth failure buries a job; an empty error keeps the previous one."""
    q.enqueue("x")
    for attempt in range(1, 21):
        (job,) = q.reserve(block=0)
        assert job.attempt == attempt
        assert job.nack(delay=0, error="the first" if attempt == 1 else "")
    assert [letter.error for letter in letters(q)] == ["the first"]


def test_the_attempts_of_a_job(q: Queue) -> None:
    """Deliveries that count, with the one that runs or buried the job: 2 of 2 when it died."""
    q.configure(max_attempts=2)
    job_id, seen = q.enqueue("x").id, []

    def look() -> None:
        view = q.show(job_id)
        assert view is not None
        seen.append((view.state, view.attempts))

    look()
    for _ in range(2):
        q.release(q.reserve(block=0))
        jobs = q.reserve(block=0)
        look()
        q.nack(jobs, delay=0)
        look()
    q.redrive([job_id])
    look()
    q.nack(q.reserve(block=0), delay=0)
    q.bury(q.reserve(block=0), "no")
    look()
    assert seen == [
        ("ready", 0), ("active", 1), ("ready", 1), ("active", 2), ("dead", 2), ("ready", 0),
        ("dead", 1),
    ]  # fmt: skip


def test_the_attempts_of_a_buried_job(q: Queue) -> None:
    """The delivery that buries a job counts, also the first and after a failure; none = 0."""
    jobs = q.enqueue_many(range(3))
    q.bury([jobs.ids[2]], "no")
    once, again = q.reserve(2, block=0)
    q.nack([again], delay=0)
    (again,) = q.reserve(block=0)
    q.bury([once, again], "no")
    letters_of = {letter.id: letter.attempts for letter in letters(q)}
    assert letters_of == {once.id: 1, again.id: 2, jobs.ids[2]: 0}


def test_death_by_crashes(q: Queue, raw: Raw) -> None:
    """A lease that ends without a report is a crash; the third crash buries the job."""
    q.enqueue("x", lease=10)
    for crashes in (0, 1, 2):
        (job,) = q.reserve(block=0)
        assert (job.crashes, job.attempt) == (crashes, crashes + 1)
        advance(raw, q.ops, 11)
    assert q.reserve(block=0) == []
    (letter,) = letters(q)
    assert (letter.crashes, letter.nacks, letter.error) == (
        3,
        0,
        last_held("lease ended 3 times", letter),
    )
    stats = q.stats()
    assert (stats.crashed, stats.died, stats.dead) == (3, 1, 1)


@pytest.mark.parametrize("crashes", [0, 3])
def test_a_poison_job_names_its_last_worker(
    backend: Backend, q: Queue, raw: Raw, crashes: int
) -> None:
    """Three workers crash on a job one after the other: its error names the last
    one and the time.
    """
    q.configure(max_crashes=crashes, max_attempts=3)
    q.enqueue("poison", lease=10)
    for owner in ("host-a:1", "host-b:22", "härte, c;3 since 5"):
        with backend.sync_client() as lent, Penstock(lent, owner=owner) as worker:
            (job,) = worker.queue("q").reserve(block=0)
            assert job.owner == owner
        advance(raw, q.ops, 11)
    assert q.reserve(block=0) == []
    (letter,) = letters(q)
    assert letter.owner == owner
    text = "lease ended 3 times" if crashes else "3 attempts"
    assert letter.error == last_held(text, letter)
    assert q.redrive() == 1
    (job,) = q.reserve(block=0)
    assert (job.last_error, job.owner) == ("", "tester")


def test_a_report_after_the_death_of_the_job(q: Queue, raw: Raw) -> None:
    """A job died because its lease ended; a late report of its last consumer changes nothing."""
    q.configure(max_crashes=1)
    q.enqueue("x", lease=10)
    (job,) = q.reserve(block=0)
    advance(raw, q.ops, 11)
    assert q.reserve(block=0) == []
    before = dump(raw)
    for call in (q.ack, q.nack, q.release, q.bury):
        assert list(call([job])) == [Outcome.STALE]
    assert dump(raw) == before


def test_the_bound_of_crashes_is_a_setting(q: Queue, raw: Raw) -> None:
    """`max_crashes` is a setting of the queue."""
    q.configure(max_crashes=1)
    q.enqueue("x", lease=10)
    q.reserve(block=0)
    advance(raw, q.ops, 11)
    assert q.reserve(block=0) == []
    assert len(letters(q)) == 1


def test_crashes_are_attempts_too(q: Queue, raw: Raw) -> None:
    """Nacks and crashes together use up `max_attempts`."""
    q.configure(max_attempts=3)
    q.enqueue("x", lease=10)
    (job,) = q.reserve(block=0)
    job.nack(delay=0, error="first")
    q.reserve(block=0)
    advance(raw, q.ops, 11)
    (job,) = q.reserve(block=0)
    assert (job.nacks, job.crashes, job.attempt) == (1, 1, 3)
    advance(raw, q.ops, 11)
    assert q.reserve(block=0) == []
    (letter,) = letters(q)
    assert (letter.nacks, letter.crashes) == (1, 2)


def test_a_lease_that_is_settled_late_is_no_crash(q: Queue, raw: Raw) -> None:
    """The job was not reserved again, so the holder's late nack counts, and counts once."""
    q.enqueue("x", lease=10)
    (job,) = q.reserve(block=0)
    advance(raw, q.ops, 11)
    assert job.nack(delay=0)
    (job,) = q.reserve(block=0)
    assert (job.nacks, job.crashes) == (1, 0)


def test_death_by_releases(q: Queue) -> None:
    """A job that is released without a delay again and again is buried by `max_releases`."""
    q.configure(max_releases=3)
    q.enqueue("x")
    for _ in range(2):
        (job,) = q.reserve(block=0)
        assert list(q.release([job])) == [Outcome.DONE]
    (job,) = q.reserve(block=0)
    assert list(q.release([job])) == [Outcome.DEAD]
    (letter,) = letters(q)
    assert (letter.releases, letter.nacks, letter.error) == (3, 0, "released 3 times")


def test_releases_with_a_delay_are_not_bounded(q: Queue, raw: Raw) -> None:
    """Releases with a delay make no busy loop and are not bounded."""
    q.configure(max_releases=2)
    q.enqueue("x")
    for _ in range(4):
        (job,) = q.reserve(block=0)
        assert list(q.release([job], delay=1)) == [Outcome.DONE]
        advance(raw, q.ops, 2)
    assert q.stats().dead == 0


def test_the_backoff_has_full_jitter(q: Queue, raw: Raw) -> None:
    """The k-th failure waits for a random time up to base x 2^(k-1), bounded by the cap."""
    q.configure(backoff_base=10, backoff_cap=35, max_attempts=50)
    q.enqueue_many(range(200))
    for bound in (10, 20, 35, 35):
        jobs = q.reserve(200, block=0)
        assert len(jobs) == 200
        before = queue_time_ms(raw, q.ops)
        assert q.nack(jobs)
        after = queue_time_ms(raw, q.ops)
        views = q.peek(200, state="scheduled")
        ready = 200 - len(views)  # a delay near 0 may have passed already
        due = [round(view.due * 1000) for view in views if view.due is not None]
        assert ready < 10
        assert min(due) > before
        assert max(due) <= after + bound * 1000
        assert max(due) > before + bound * 700
        assert min(due) < after + bound * 300
        advance(raw, q.ops, bound + 1)


def test_the_default_backoff_starts_at_five_seconds(q: Queue, raw: Raw) -> None:
    """The default bound doubles from 5 s: 5 s, 10 s, 20 s."""
    q.enqueue_many(range(60))
    for bound in (5, 10, 20):
        assert q.nack(q.reserve(60, block=0))
        now = queue_time_ms(raw, q.ops) / 1000
        due = [view.due for view in q.peek(60, state="scheduled") if view.due is not None]
        assert now + bound / 2 < max(due) <= now + bound + 0.001
        advance(raw, q.ops, bound + 1)


def test_redrive_brings_all_back(q: Queue) -> None:
    """Redriven jobs keep the place of their age; attempts start again and the error is cleared."""
    ids = bury_all(q, 3)
    young = q.enqueue("young")
    assert q.redrive() == 3
    jobs = q.reserve(9, block=0)
    assert [job.id for job in jobs] == [*ids, young.id]
    assert {(job.attempt, job.nacks, job.crashes) for job in jobs} == {(1, 0, 0)}
    assert [job.deliveries for job in jobs] == [2, 2, 2, 1]
    stats = q.stats()
    assert (stats.dead, stats.redriven, stats.died) == (0, 3, 3)


def test_redrive_of_the_oldest(q: Queue) -> None:
    """`limit` bounds the number of redriven jobs."""
    ids = bury_all(q, 5)
    assert q.redrive(limit=2) == 2
    assert [job.id for job in q.reserve(9, block=0)] == ids[:2]
    assert [letter.id for letter in letters(q)] == ids[2:]


def test_redrive_of_more_than_a_script_takes(q: Queue) -> None:
    """More jobs than one script takes need several calls; each job comes back once."""
    ids = bury_all(q, 1000) + bury_all(q, 500)
    assert q.redrive() == 1500
    assert [job.id for job in q.reserve(2000, block=0)] == ids


def test_redrive_of_named_jobs(q: Queue) -> None:
    """Only the named jobs are redriven; named jobs that are not dead are left alone."""
    ids = bury_all(q, 4)
    alive = q.enqueue("alive")
    assert q.redrive([ids[2], ids[0]]) == 2
    assert q.redrive([ids[1], alive.id, ids[0]]) == 1
    assert [letter.id for letter in letters(q)] == [ids[3]]
    assert [job.id for job in q.reserve(9, block=0)] == [*ids[:3], alive.id]


def test_redrive_by_the_last_delivery(q: Queue) -> None:
    """A job object names its dead letter as well as an id does."""
    q.enqueue("x")
    (job,) = q.reserve(block=0)
    job.bury()
    assert q.redrive([job]) == 1
    (again,) = q.reserve(block=0)
    assert (again.id, again.deliveries) == (job.id, 2)


def test_a_dead_letter_past_its_ttl_stays_dead(q: Queue, raw: Raw) -> None:
    """A dead letter past its ttl would never be delivered, so it stays dead; others come back."""
    q.enqueue("short", ttl=60)
    q.enqueue("long", ttl=600)
    assert q.bury(q.reserve(2, block=0))
    advance(raw, q.ops, 61)
    assert q.redrive() == 1
    assert [letter.body for letter in letters(q)] == ["short"]
    (job,) = q.reserve(block=0)
    assert job.body == "long"
    before = dump(raw)
    assert q.redrive() == 0
    assert dump(raw) == before
    job.release()
    advance(raw, q.ops, 600)
    assert q.reserve(block=0) == []


def test_nothing_to_redrive(q: Queue, raw: Raw) -> None:
    """Without dead letters a redrive returns 0 and changes nothing."""
    q.enqueue("x")
    before = dump(raw)
    assert q.redrive() == 0
    assert q.redrive([]) == 0
    assert dump(raw) == before


def test_dead_letters_are_bounded_in_number(q: Queue, raw: Raw) -> None:
    """New dead letters replace the oldest ones, which are counted."""
    q.configure(dead_max=3)
    ids = bury_all(q, 5)
    assert [letter.id for letter in letters(q)] == ids[2:]
    stats = q.stats()
    assert (stats.dead, stats.trimmed, stats.died) == (3, 2, 5)
    assert numbers(raw, q.ops, "held") == sorted(numbers(raw, q.ops, "dead"))


def test_dead_letters_may_be_unwanted(q: Queue, raw: Raw) -> None:
    """With a bound of 0 no dead letter is kept, and each is counted."""
    q.configure(dead_max=0)
    bury_all(q, 2)
    stats = q.stats()
    assert (stats.dead, stats.trimmed) == (0, 2)
    assert numbers(raw, q.ops, "held") == []


def test_dead_letters_are_bounded_by_age(q: Queue, raw: Raw) -> None:
    """Dead letters are kept for 14 days by default; the next death or a sweep drops older ones."""
    bury_all(q, 2)
    advance(raw, q.ops, 14 * 86_400 - 60)
    (fresh,) = bury_all(q, 1)
    assert q.stats().dead == 3
    advance(raw, q.ops, 120)
    assert q.sweep() == 2
    assert [letter.id for letter in letters(q)] == [fresh]
    assert q.stats().trimmed == 2
    q.configure(dead_age=10)
    advance(raw, q.ops, 11)
    (last,) = bury_all(q, 1)
    assert [letter.id for letter in letters(q)] == [last]


def test_a_narrower_bound_is_reached_by_a_sweep(q: Queue) -> None:
    """A sweep reaches a lower bound in steps of bounded size."""
    bury_all(q, 250)
    q.configure(dead_max=10)
    assert q.sweep() == 240
    stats = q.stats()
    assert (stats.dead, stats.trimmed) == (10, 240)


@pytest.mark.parametrize("limit", [1024, 5000])
def test_a_reason_is_cut_to_a_kilobyte(q: Queue, limit: int) -> None:
    """A reason is cut to a kilobyte without splitting a character."""
    for start in ("", "x"):
        q.enqueue("x")
        (job,) = q.reserve(block=0)
        job.bury(start + "ü" * limit)
        view = q.show(job)
        assert view is not None
        assert view.error == start + "ü" * (511 if start else 512)
