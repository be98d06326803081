"""Dead letters: how jobs die, the recorded reason, and how a redrive brings them back."""

from __future__ import annotations

import pytest

from penstock import AsyncPenstock, AsyncQueue, JobView, Outcome
from tests.support.backends import Backend
from tests.support.keyspace import Raw, advance, dump, numbers, queue_time_ms


async def letters(q: AsyncQueue) -> list[JobView]:
    """All dead letters, the oldest first."""
    return await q.peek(1000, state="dead")


def last_held(text: str, letter: JobView) -> str:
    """Return the error of a job that died of a crash, with its last owner and time in ms."""
    return f"{text}, last held by {letter.owner} since {(letter.delivered or 0) * 1000:.0f}"


async def bury_all(q: AsyncQueue, count: int) -> list[str]:
    """Create dead letters and return their ids in the order of their death."""
    results = await q.enqueue_many(range(count))
    jobs = await q.reserve(count, block=0)
    assert await q.bury(jobs, "buried")
    return results.ids


async def test_death_by_failed_attempts(q: AsyncQueue) -> None:
    """After `max_attempts` nacks the job is dead, with its last error."""
    await q.configure(max_attempts=3)
    done = await q.enqueue("x")
    for attempt in (1, 2):
        (job,) = await q.reserve(block=0)
        assert list(await q.nack([job], delay=0, error=f"error {attempt}")) == [Outcome.DONE]
    (job,) = await q.reserve(block=0)
    assert list(await q.nack([job], delay=0, error="error 3")) == [Outcome.DEAD]
    (letter,) = await letters(q)
    assert (letter.id, letter.state, letter.nacks, letter.error) == (done.id, "dead", 3, "error 3")
    assert letter.deliveries == 3
    assert await q.reserve(block=0) == []
    stats = await q.stats()
    assert (stats.dead, stats.died, stats.nacked) == (1, 1, 3)


async def test_twenty_attempts_by_default(q: AsyncQueue) -> None:
    """By default the twentieth failure buries a job; an empty error keeps the previous one."""
    await q.enqueue("x")
    for attempt in range(1, 21):
        (job,) = await q.reserve(block=0)
        assert job.attempt == attempt
        assert await job.nack(delay=0, error="the first" if attempt == 1 else "")
    assert [letter.error for letter in await letters(q)] == ["the first"]


async def test_the_attempts_of_a_job(q: AsyncQueue) -> None:
    """Deliveries that count, with the one that runs or buried the job: 2 of 2 when it died."""
    await q.configure(max_attempts=2)
    job_id, seen = (await q.enqueue("x")).id, []

    async def look() -> None:
        view = await q.show(job_id)
        assert view is not None
        seen.append((view.state, view.attempts))

    await look()
    for _ in range(2):
        await q.release(await q.reserve(block=0))
        jobs = await q.reserve(block=0)
        await look()
        await q.nack(jobs, delay=0)
        await look()
    await q.redrive([job_id])
    await look()
    await q.nack(await q.reserve(block=0), delay=0)
    await q.bury(await q.reserve(block=0), "no")
    await look()
    assert seen == [
        ("ready", 0), ("active", 1), ("ready", 1), ("active", 2), ("dead", 2), ("ready", 0),
        ("dead", 1),
    ]  # fmt: skip


async def test_the_attempts_of_a_buried_job(q: AsyncQueue) -> None:
    """The delivery that buries a job counts, also the first and after a failure; none = 0."""
    jobs = await q.enqueue_many(range(3))
    await q.bury([jobs.ids[2]], "no")
    once, again = await q.reserve(2, block=0)
    await q.nack([again], delay=0)
    (again,) = await q.reserve(block=0)
    await q.bury([once, again], "no")
    letters_of = {letter.id: letter.attempts for letter in await letters(q)}
    assert letters_of == {once.id: 1, again.id: 2, jobs.ids[2]: 0}


async def test_death_by_crashes(q: AsyncQueue, raw: Raw) -> None:
    """A lease that ends without a report is a crash; the third crash buries the job."""
    await q.enqueue("x", lease=10)
    for crashes in (0, 1, 2):
        (job,) = await q.reserve(block=0)
        assert (job.crashes, job.attempt) == (crashes, crashes + 1)
        advance(raw, q.ops, 11)
    assert await q.reserve(block=0) == []
    (letter,) = await letters(q)
    assert (letter.crashes, letter.nacks, letter.error) == (
        3,
        0,
        last_held("lease ended 3 times", letter),
    )
    stats = await q.stats()
    assert (stats.crashed, stats.died, stats.dead) == (3, 1, 1)


@pytest.mark.parametrize("crashes", [0, 3])
async def test_a_poison_job_names_its_last_worker(
    backend: Backend, q: AsyncQueue, raw: Raw, crashes: int
) -> None:
    """Three workers crash on a job one after the other: its error names the last
    one and the time.
    """
    await q.configure(max_crashes=crashes, max_attempts=3)
    await q.enqueue("poison", lease=10)
    for owner in ("host-a:1", "host-b:22", "härte, c;3 since 5"):
        async with backend.async_client() as lent, AsyncPenstock(lent, owner=owner) as worker:
            (job,) = await worker.queue("q").reserve(block=0)
            assert job.owner == owner
        advance(raw, q.ops, 11)
    assert await q.reserve(block=0) == []
    (letter,) = await letters(q)
    assert letter.owner == owner
    text = "lease ended 3 times" if crashes else "3 attempts"
    assert letter.error == last_held(text, letter)
    assert await q.redrive() == 1
    (job,) = await q.reserve(block=0)
    assert (job.last_error, job.owner) == ("", "tester")


async def test_a_report_after_the_death_of_the_job(q: AsyncQueue, raw: Raw) -> None:
    """A job died because its lease ended; a late report of its last consumer changes nothing."""
    await q.configure(max_crashes=1)
    await q.enqueue("x", lease=10)
    (job,) = await q.reserve(block=0)
    advance(raw, q.ops, 11)
    assert await q.reserve(block=0) == []
    before = dump(raw)
    for call in (q.ack, q.nack, q.release, q.bury):
        assert list(await call([job])) == [Outcome.STALE]
    assert dump(raw) == before


async def test_the_bound_of_crashes_is_a_setting(q: AsyncQueue, raw: Raw) -> None:
    """`max_crashes` is a setting of the queue."""
    await q.configure(max_crashes=1)
    await q.enqueue("x", lease=10)
    await q.reserve(block=0)
    advance(raw, q.ops, 11)
    assert await q.reserve(block=0) == []
    assert len(await letters(q)) == 1


async def test_crashes_are_attempts_too(q: AsyncQueue, raw: Raw) -> None:
    """Nacks and crashes together use up `max_attempts`."""
    await q.configure(max_attempts=3)
    await q.enqueue("x", lease=10)
    (job,) = await q.reserve(block=0)
    await job.nack(delay=0, error="first")
    await q.reserve(block=0)
    advance(raw, q.ops, 11)
    (job,) = await q.reserve(block=0)
    assert (job.nacks, job.crashes, job.attempt) == (1, 1, 3)
    advance(raw, q.ops, 11)
    assert await q.reserve(block=0) == []
    (letter,) = await letters(q)
    assert (letter.nacks, letter.crashes) == (1, 2)


async def test_a_lease_that_is_settled_late_is_no_crash(q: AsyncQueue, raw: Raw) -> None:
    """The job was not reserved again, so the holder's late nack counts, and counts once."""
    await q.enqueue("x", lease=10)
    (job,) = await q.reserve(block=0)
    advance(raw, q.ops, 11)
    assert await job.nack(delay=0)
    (job,) = await q.reserve(block=0)
    assert (job.nacks, job.crashes) == (1, 0)


async def test_death_by_releases(q: AsyncQueue) -> None:
    """A job that is released without a delay again and again is buried by `max_releases`."""
    await q.configure(max_releases=3)
    await q.enqueue("x")
    for _ in range(2):
        (job,) = await q.reserve(block=0)
        assert list(await q.release([job])) == [Outcome.DONE]
    (job,) = await q.reserve(block=0)
    assert list(await q.release([job])) == [Outcome.DEAD]
    (letter,) = await letters(q)
    assert (letter.releases, letter.nacks, letter.error) == (3, 0, "released 3 times")


async def test_releases_with_a_delay_are_not_bounded(q: AsyncQueue, raw: Raw) -> None:
    """Releases with a delay make no busy loop and are not bounded."""
    await q.configure(max_releases=2)
    await q.enqueue("x")
    for _ in range(4):
        (job,) = await q.reserve(block=0)
        assert list(await q.release([job], delay=1)) == [Outcome.DONE]
        advance(raw, q.ops, 2)
    assert (await q.stats()).dead == 0


async def test_the_backoff_has_full_jitter(q: AsyncQueue, raw: Raw) -> None:
    """The k-th failure waits for a random time up to base x 2^(k-1), bounded by the cap."""
    await q.configure(backoff_base=10, backoff_cap=35, max_attempts=50)
    await q.enqueue_many(range(200))
    for bound in (10, 20, 35, 35):
        jobs = await q.reserve(200, block=0)
        assert len(jobs) == 200
        before = queue_time_ms(raw, q.ops)
        assert await q.nack(jobs)
        after = queue_time_ms(raw, q.ops)
        views = await q.peek(200, state="scheduled")
        ready = 200 - len(views)  # a delay near 0 may have passed already
        due = [round(view.due * 1000) for view in views if view.due is not None]
        assert ready < 10
        assert min(due) > before
        assert max(due) <= after + bound * 1000
        assert max(due) > before + bound * 700
        assert min(due) < after + bound * 300
        advance(raw, q.ops, bound + 1)


async def test_the_default_backoff_starts_at_five_seconds(q: AsyncQueue, raw: Raw) -> None:
    """The default bound doubles from 5 s: 5 s, 10 s, 20 s."""
    await q.enqueue_many(range(60))
    for bound in (5, 10, 20):
        assert await q.nack(await q.reserve(60, block=0))
        now = queue_time_ms(raw, q.ops) / 1000
        due = [view.due for view in await q.peek(60, state="scheduled") if view.due is not None]
        assert now + bound / 2 < max(due) <= now + bound + 0.001
        advance(raw, q.ops, bound + 1)


async def test_redrive_brings_all_back(q: AsyncQueue) -> None:
    """Redriven jobs keep the place of their age; attempts start again and the error is cleared."""
    ids = await bury_all(q, 3)
    young = await q.enqueue("young")
    assert await q.redrive() == 3
    jobs = await q.reserve(9, block=0)
    assert [job.id for job in jobs] == [*ids, young.id]
    assert {(job.attempt, job.nacks, job.crashes) for job in jobs} == {(1, 0, 0)}
    assert [job.deliveries for job in jobs] == [2, 2, 2, 1]
    stats = await q.stats()
    assert (stats.dead, stats.redriven, stats.died) == (0, 3, 3)


async def test_redrive_of_the_oldest(q: AsyncQueue) -> None:
    """`limit` bounds the number of redriven jobs."""
    ids = await bury_all(q, 5)
    assert await q.redrive(limit=2) == 2
    assert [job.id for job in await q.reserve(9, block=0)] == ids[:2]
    assert [letter.id for letter in await letters(q)] == ids[2:]


async def test_redrive_of_more_than_a_script_takes(q: AsyncQueue) -> None:
    """More jobs than one script takes need several calls; each job comes back once."""
    ids = await bury_all(q, 1000) + await bury_all(q, 500)
    assert await q.redrive() == 1500
    assert [job.id for job in await q.reserve(2000, block=0)] == ids


async def test_redrive_of_named_jobs(q: AsyncQueue) -> None:
    """Only the named jobs are redriven; named jobs that are not dead are left alone."""
    ids = await bury_all(q, 4)
    alive = await q.enqueue("alive")
    assert await q.redrive([ids[2], ids[0]]) == 2
    assert await q.redrive([ids[1], alive.id, ids[0]]) == 1
    assert [letter.id for letter in await letters(q)] == [ids[3]]
    assert [job.id for job in await q.reserve(9, block=0)] == [*ids[:3], alive.id]


async def test_redrive_by_the_last_delivery(q: AsyncQueue) -> None:
    """A job object names its dead letter as well as an id does."""
    await q.enqueue("x")
    (job,) = await q.reserve(block=0)
    await job.bury()
    assert await q.redrive([job]) == 1
    (again,) = await q.reserve(block=0)
    assert (again.id, again.deliveries) == (job.id, 2)


async def test_a_dead_letter_past_its_ttl_stays_dead(q: AsyncQueue, raw: Raw) -> None:
    """A dead letter past its ttl would never be delivered, so it stays dead; others come back."""
    await q.enqueue("short", ttl=60)
    await q.enqueue("long", ttl=600)
    assert await q.bury(await q.reserve(2, block=0))
    advance(raw, q.ops, 61)
    assert await q.redrive() == 1
    assert [letter.body for letter in await letters(q)] == ["short"]
    (job,) = await q.reserve(block=0)
    assert job.body == "long"
    before = dump(raw)
    assert await q.redrive() == 0
    assert dump(raw) == before
    await job.release()
    advance(raw, q.ops, 600)
    assert await q.reserve(block=0) == []


async def test_nothing_to_redrive(q: AsyncQueue, raw: Raw) -> None:
    """Without dead letters a redrive returns 0 and changes nothing."""
    await q.enqueue("x")
    before = dump(raw)
    assert await q.redrive() == 0
    assert await q.redrive([]) == 0
    assert dump(raw) == before


async def test_dead_letters_are_bounded_in_number(q: AsyncQueue, raw: Raw) -> None:
    """New dead letters replace the oldest ones, which are counted."""
    await q.configure(dead_max=3)
    ids = await bury_all(q, 5)
    assert [letter.id for letter in await letters(q)] == ids[2:]
    stats = await q.stats()
    assert (stats.dead, stats.trimmed, stats.died) == (3, 2, 5)
    assert numbers(raw, q.ops, "held") == sorted(numbers(raw, q.ops, "dead"))


async def test_dead_letters_may_be_unwanted(q: AsyncQueue, raw: Raw) -> None:
    """With a bound of 0 no dead letter is kept, and each is counted."""
    await q.configure(dead_max=0)
    await bury_all(q, 2)
    stats = await q.stats()
    assert (stats.dead, stats.trimmed) == (0, 2)
    assert numbers(raw, q.ops, "held") == []


async def test_dead_letters_are_bounded_by_age(q: AsyncQueue, raw: Raw) -> None:
    """Dead letters are kept for 14 days by default; the next death or a sweep drops older ones."""
    await bury_all(q, 2)
    advance(raw, q.ops, 14 * 86_400 - 60)
    (fresh,) = await bury_all(q, 1)
    assert (await q.stats()).dead == 3
    advance(raw, q.ops, 120)
    assert await q.sweep() == 2
    assert [letter.id for letter in await letters(q)] == [fresh]
    assert (await q.stats()).trimmed == 2
    await q.configure(dead_age=10)
    advance(raw, q.ops, 11)
    (last,) = await bury_all(q, 1)
    assert [letter.id for letter in await letters(q)] == [last]


async def test_a_narrower_bound_is_reached_by_a_sweep(q: AsyncQueue) -> None:
    """A sweep reaches a lower bound in steps of bounded size."""
    await bury_all(q, 250)
    await q.configure(dead_max=10)
    assert await q.sweep() == 240
    stats = await q.stats()
    assert (stats.dead, stats.trimmed) == (10, 240)


@pytest.mark.parametrize("limit", [1024, 5000])
async def test_a_reason_is_cut_to_a_kilobyte(q: AsyncQueue, limit: int) -> None:
    """A reason is cut to a kilobyte without splitting a character."""
    for start in ("", "x"):
        await q.enqueue("x")
        (job,) = await q.reserve(block=0)
        await job.bury(start + "ü" * limit)
        view = await q.show(job)
        assert view is not None
        assert view.error == start + "ü" * (511 if start else 512)
