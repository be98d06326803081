"""The job that a consumer holds: its attributes, and the effect of leaving its block."""

from __future__ import annotations

import asyncio  # async only
import logging
import os
import socket

import pytest

from penstock import AsyncPenstock, AsyncQueue, StaleReceipt, parse_id
from penstock.core.jobs.logs import LOG_FIELDS, Fields
from tests.support.backends import Backend
from tests.support.keyspace import Raw, advance, dump, raw_time


async def test_a_first_delivery(q: AsyncQueue, raw: Raw) -> None:
    """A job of a first delivery has these attributes."""
    done = await q.enqueue({"to": "ada"}, headers={"a": "b"}, lease=60, ttl=120)
    before = raw_time(raw)
    (job,) = await q.reserve(block=0)
    assert (job.id, job.queue, job.queue_name) == (done.id, q, "q")
    assert (job.body, job.headers, job.raw) == ({"to": "ada"}, {"a": "b"}, b'{"to":"ada"}')
    assert (job.attempt, job.nacks, job.crashes, job.deliveries) == (1, 0, 0, 1)
    assert (job.lease, job.ttl, job.at_most_once, job.last_error) == (60, 120, False, "")
    assert job.created == parse_id(done.id).ms / 1000
    assert before - 0.001 <= job.delivered <= raw_time(raw)
    assert (job.owner, job.settled) == ("tester", False)
    assert job.receipt.startswith("1-")
    assert done.id in repr(job)


async def test_nacks_and_crashes_count_as_attempts(q: AsyncQueue, raw: Raw) -> None:
    """A nack and a crash count as attempts; a release does not. Each delivery is counted."""
    await q.enqueue("x", lease=10)
    seen = []
    for how in ("nack", "release", "crash", "nack", "release", "end"):
        (job,) = await q.reserve(block=0)
        seen.append((job.attempt, job.nacks, job.crashes, job.deliveries, job.last_error))
        if how == "nack":
            await job.nack(delay=0, error=f"failed {job.attempt}")
        elif how == "release":
            await job.release()
        elif how == "crash":
            advance(raw, q.ops, 11)
    assert seen == [
        (1, 0, 0, 1, ""),
        (2, 1, 0, 2, "failed 1"),
        (2, 1, 0, 3, "failed 1"),
        (3, 1, 1, 4, "failed 1"),
        (4, 2, 1, 5, "failed 3"),
        (4, 2, 1, 6, "failed 3"),
    ]


async def test_each_delivery_has_a_receipt_of_its_own(q: AsyncQueue) -> None:
    """Each delivery has its own receipt, with a rising number."""
    await q.enqueue("x")
    receipts = []
    for _ in range(4):
        (job,) = await q.reserve(block=0)
        receipts.append(job.receipt)
        await job.release()
    assert [receipt.partition("-")[0] for receipt in receipts] == ["1", "2", "3", "4"]


async def test_the_owner_is_kept_with_the_delivery(backend: Backend, raw: Raw) -> None:
    """The owner of a delivery is host and process by default; every client can see it."""
    async with backend.async_client() as lent:
        mine = AsyncPenstock(lent)
        named = AsyncPenstock(lent, owner="Köln, worker 3")
        await mine.queue("q").enqueue_many([1, 2])
        await mine.queue("q").reserve(block=0)
        await named.queue("q").reserve(block=0)
        views = await mine.queue("q").peek(state="active")
        assert [view.owner for view in views] == [
            f"{socket.gethostname()}:{os.getpid()}",
            "Köln, worker 3",
        ]
        await mine.close()
        await named.close()


async def test_leaving_the_block_acknowledges(q: AsyncQueue, raw: Raw) -> None:
    """Leaving the block acknowledges the job, and nothing of it is left."""
    await q.enqueue("x", ttl=600)
    (job,) = await q.reserve(block=0)
    async with job as same:
        assert same is job
        assert (await q.stats()).active == 1
    assert job.settled
    stats = await q.stats()
    assert (stats.acked, stats.active, stats.ready) == (1, 0, 0)
    assert raw.exists(*[q.ops.keys[kind] for kind in ("held", "active", "tally", "expiry")]) == 0


async def test_an_exception_is_a_failed_attempt(
    q: AsyncQueue, caplog: pytest.LogCaptureFixture
) -> None:
    """An exception in the block is stored with the job and logged, and is not raised further."""
    await q.configure(backoff_base=60)
    await q.enqueue("x")
    (job,) = await q.reserve(block=0)
    with caplog.at_level(logging.DEBUG, "penstock"):
        async with job:
            raise ValueError("not a number")
    view = await q.show(job)
    assert view is not None
    assert (view.state, view.nacks, view.error) == ("scheduled", 1, "ValueError: not a number")
    entries = [entry for entry in caplog.records if job.id in entry.getMessage()]
    told = [(entry.levelno, entry.exc_info is not None) for entry in entries]
    assert told == [(logging.WARNING, False), (logging.DEBUG, True)]
    for entry in entries:
        assert {name: vars(entry)[name] for name in LOG_FIELDS} == Fields(job)


async def test_an_exception_that_has_no_text(q: AsyncQueue) -> None:
    """Its `__str__` fails: it is a failed attempt all the same, with the type as the error."""

    class Shy(Exception):
        def __str__(self) -> str:
            raise OSError

    await q.enqueue("x")
    (job,) = await q.reserve(block=0)
    async with job:
        raise Shy
    view = await q.show(job)
    assert view is not None
    assert (view.nacks, view.error) == (1, "Shy")


@pytest.mark.parametrize("lease", [None, 0], ids=["out of attempts", "at most once"])
async def test_an_exception_that_ends_a_job_is_logged_with_its_traceback(
    q: AsyncQueue, caplog: pytest.LogCaptureFixture, lease: float | None
) -> None:
    """If the exception ends the job (buried, or at most once), the log record is an ERROR."""
    await q.configure(max_attempts=1)
    await q.enqueue("x", lease=lease)
    (job,) = await q.reserve(block=0)
    with caplog.at_level(logging.DEBUG, "penstock"):
        async with job:
            raise ValueError("not a number")
    (entry,) = [entry for entry in caplog.records if job.id in entry.getMessage()]
    assert (entry.levelno, entry.exc_info is not None) == (logging.ERROR, True)
    assert {name: vars(entry)[name] for name in LOG_FIELDS} == Fields(job)


async def test_the_error_may_be_any_text(q: AsyncQueue) -> None:
    """The error may hold line breaks, NUL, lone surrogates and kilobytes of text."""
    texts = ["a\nb\r\n\x00c", "name \udcff of a file", "", "ü" * 4000, "1 2 3 4"]
    for text in texts:
        await q.enqueue("x")
        (job,) = await q.reserve(block=0)
        assert await job.nack(error=text)
        view = await q.show(job)
        assert view is not None
        assert view.nacks == 1
        assert len(view.error.encode("utf-8", "replace")) <= 1024
        if len(text) < 100 and "\udcff" not in text:
            assert view.error == text
        await q.delete([job])


async def test_a_keyboard_interrupt_gives_the_job_back(q: AsyncQueue) -> None:
    """A KeyboardInterrupt gives the job back without charging an attempt, and is raised again."""
    await q.enqueue("x")
    (job,) = await q.reserve(block=0)
    with pytest.raises(KeyboardInterrupt):
        async with job:
            raise KeyboardInterrupt
    (again,) = await q.reserve(block=0)
    assert (again.id, again.attempt, again.deliveries) == (job.id, 1, 2)


# [async only
async def test_cancellation_gives_the_job_back(q: AsyncQueue) -> None:
    """A cancelled handler gives its job back to the next consumer; that is no failure."""
    await q.enqueue("x")
    (job,) = await q.reserve(block=0)
    entered = asyncio.Event()

    async def handle() -> None:
        async with job:
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(handle())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    (again,) = await q.reserve(block=5)
    assert (again.id, again.attempt) == (job.id, 1)


# async only]
@pytest.mark.parametrize("how", ["ack", "nack", "release", "bury"])
@pytest.mark.parametrize("fails", [False, True])
async def test_a_job_settled_inside_is_left_alone(
    q: AsyncQueue, raw: Raw, how: str, fails: bool
) -> None:
    """A job settled in its block stays so; an exception after that is raised to the caller."""
    await q.enqueue("x")
    (job,) = await q.reserve(block=0)

    async def handle() -> None:
        async with job:
            assert await {
                "ack": job.ack,
                "nack": job.nack,
                "release": job.release,
                "bury": job.bury,
            }[how]()
            handled.append(dump(raw))
            if fails:
                raise LookupError("after settling")

    handled: list[object] = []
    if fails:
        with pytest.raises(LookupError):
            await handle()
    else:
        await handle()
    assert dump(raw) == handled[0]


async def test_leaving_the_block_too_late(q: AsyncQueue, raw: Raw) -> None:
    """Leaving the block after another consumer got the job raises `StaleReceipt`."""
    await q.enqueue("x", lease=10)
    (late,) = await q.reserve(block=0)
    seen = []

    async def work() -> None:
        async with late:
            advance(raw, q.ops, 11)
            seen.extend(await q.reserve(block=0))
            before.update(dump(raw))

    before: dict[bytes, object] = {}
    with pytest.raises(StaleReceipt, match=late.id):
        await work()
    assert dump(raw) == before
    assert await seen[0].ack() is True


@pytest.mark.parametrize("now", ["scheduled", "dead", "gone", "held by id", "once more"])
async def test_a_stale_receipt_error_has_the_current_receipt(
    q: AsyncQueue, raw: Raw, now: str
) -> None:
    """The error has the current receipt, if another consumer holds the job."""
    await q.enqueue("x", lease=10)
    (late,) = await q.reserve(block=0)
    advance(raw, q.ops, 11)
    (holder,) = await q.reserve(block=0)
    current = None
    if now == "scheduled":
        await holder.nack(delay=60)
    elif now == "dead":
        await holder.bury()
    elif now == "gone":
        await holder.ack()
    elif now == "held by id":
        await q.release([holder.id])
    else:
        await holder.release()
        (again,) = await q.reserve(block=0)
        current = again.receipt
    if now == "gone":
        assert await late.ack() is False
        return
    with pytest.raises(StaleReceipt) as caught:
        await late.ack()
    assert (caught.value.receipt, caught.value.current) == (late.receipt, current)
    assert late.receipt in str(caught.value)
    assert str(current or "this delivery has ended") in str(caught.value)


async def test_a_receipt_that_was_used(q: AsyncQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """A receipt that already ended its delivery is refused without asking the server."""
    await q.enqueue("x")
    (job,) = await q.reserve(block=0)
    await job.release(delay=60)
    asked: list[object] = []
    monkeypatch.setattr(q.ops, "show", asked.append)
    with pytest.raises(StaleReceipt) as caught:
        await job.ack()
    assert (caught.value.receipt, caught.value.current) == (job.receipt, None)
    assert asked == []


async def test_the_query_for_the_holder_fails(
    q: AsyncQueue, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the query for the current receipt fails, the error is raised without it."""
    await q.enqueue("x", lease=10)
    (late,) = await q.reserve(block=0)
    advance(raw, q.ops, 11)
    (holder,) = await q.reserve(block=0)

    def fail(names: object) -> None:
        raise ConnectionError("lost")

    monkeypatch.setattr(q.ops, "showing", fail)
    with pytest.raises(StaleReceipt, match="this delivery has ended") as caught:
        await late.extend()
    assert (caught.value.receipt, caught.value.current) == (late.receipt, None)
    assert await holder.ack()


async def test_failing_in_the_block_too_late(q: AsyncQueue, raw: Raw) -> None:
    """A failure in the block after the delivery has ended is not charged to the job."""
    await q.enqueue("x", lease=10)
    (late,) = await q.reserve(block=0)
    seen = []

    async def fail() -> None:
        async with late:
            advance(raw, q.ops, 11)
            seen.extend(await q.reserve(block=0))
            before.update(dump(raw))
            raise ValueError("too late")

    before: dict[bytes, object] = {}
    with pytest.raises(StaleReceipt):
        await fail()
    assert dump(raw) == before
    assert await seen[0].ack() is True


async def test_a_lease_that_ended_unnoticed_still_counts(q: AsyncQueue, raw: Raw) -> None:
    """After its lease the holder can settle a job until it is delivered again."""
    await q.enqueue("x", lease=10)
    (job,) = await q.reserve(block=0)
    advance(raw, q.ops, 60)
    assert (await q.stats()).ready == 1
    assert await job.ack() is True
    assert (await q.stats()).ready == 0


async def test_a_job_that_was_finished_by_id(q: AsyncQueue) -> None:
    """When a job was finished by id, its holder's ack returns False without an error."""
    await q.enqueue("x")
    (job,) = await q.reserve(block=0)
    assert await q.ack([job.id])
    async with job:
        pass
    assert await job.ack() is False
