# From tests/_async/test_job.py by tools/unasync.py; do not edit.
"""The job that a consumer holds: its attributes, and the effect of leaving its block."""

from __future__ import annotations

import logging
import os
import socket

import pytest

from penstock import Penstock, Queue, StaleReceipt, parse_id
from penstock.core.jobs.logs import LOG_FIELDS, Fields
from tests.support.backends import Backend
from tests.support.keyspace import Raw, advance, dump, raw_time


def test_a_first_delivery(q: Queue, raw: Raw) -> None:
    """A job of a first delivery has these attributes."""
    done = q.enqueue({"to": "ada"}, headers={"a": "b"}, lease=60, ttl=120)
    before = raw_time(raw)
    (job,) = q.reserve(block=0)
    assert (job.id, job.queue, job.queue_name) == (done.id, q, "q")
    assert (job.body, job.headers, job.raw) == ({"to": "ada"}, {"a": "b"}, b'{"to":"ada"}')
    assert (job.attempt, job.nacks, job.crashes, job.deliveries) == (1, 0, 0, 1)
    assert (job.lease, job.ttl, job.at_most_once, job.last_error) == (60, 120, False, "")
    assert job.created == parse_id(done.id).ms / 1000
    assert before - 0.001 <= job.delivered <= raw_time(raw)
    assert (job.owner, job.settled) == ("tester", False)
    assert job.receipt.startswith("1-")
    assert done.id in repr(job)


def test_nacks_and_crashes_count_as_attempts(q: Queue, raw: Raw) -> None:
    """A nack and a crash count as attempts; a release does not. Each delivery is counted."""
    q.enqueue("x", lease=10)
    seen = []
    for how in ("nack", "release", "crash", "nack", "release", "end"):
        (job,) = q.reserve(block=0)
        seen.append((job.attempt, job.nacks, job.crashes, job.deliveries, job.last_error))
        if how == "nack":
            job.nack(delay=0, error=f"failed {job.attempt}")
        elif how == "release":
            job.release()
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


def test_each_delivery_has_a_receipt_of_its_own(q: Queue) -> None:
    """Each delivery has its own receipt, with a rising number."""
    q.enqueue("x")
    receipts = []
    for _ in range(4):
        (job,) = q.reserve(block=0)
        receipts.append(job.receipt)
        job.release()
    assert [receipt.partition("-")[0] for receipt in receipts] == ["1", "2", "3", "4"]


def test_the_owner_is_kept_with_the_delivery(backend: Backend, raw: Raw) -> None:
    """The owner of a delivery is host and process by default; every client can see it."""
    with backend.sync_client() as lent:
        mine = Penstock(lent)
        named = Penstock(lent, owner="Köln, worker 3")
        mine.queue("q").enqueue_many([1, 2])
        mine.queue("q").reserve(block=0)
        named.queue("q").reserve(block=0)
        views = mine.queue("q").peek(state="active")
        assert [view.owner for view in views] == [
            f"{socket.gethostname()}:{os.getpid()}",
            "Köln, worker 3",
        ]
        mine.close()
        named.close()


def test_leaving_the_block_acknowledges(q: Queue, raw: Raw) -> None:
    """Leaving the block acknowledges the job, and nothing of it is left."""
    q.enqueue("x", ttl=600)
    (job,) = q.reserve(block=0)
    with job as same:
        assert same is job
        assert q.stats().active == 1
    assert job.settled
    stats = q.stats()
    assert (stats.acked, stats.active, stats.ready) == (1, 0, 0)
    assert raw.exists(*[q.ops.keys[kind] for kind in ("held", "active", "tally", "expiry")]) == 0


def test_an_exception_is_a_failed_attempt(q: Queue, caplog: pytest.LogCaptureFixture) -> None:
    """An exception in the block is stored with the job and logged, and is not raised further."""
    q.configure(backoff_base=60)
    q.enqueue("x")
    (job,) = q.reserve(block=0)
    with caplog.at_level(logging.DEBUG, "penstock"):
        with job:
            raise ValueError("not a number")
    view = q.show(job)
    assert view is not None
    assert (view.state, view.nacks, view.error) == ("scheduled", 1, "ValueError: not a number")
    entries = [entry for entry in caplog.records if job.id in entry.getMessage()]
    told = [(entry.levelno, entry.exc_info is not None) for entry in entries]
    assert told == [(logging.WARNING, False), (logging.DEBUG, True)]
    for entry in entries:
        assert {name: vars(entry)[name] for name in LOG_FIELDS} == Fields(job)


def test_an_exception_that_has_no_text(q: Queue) -> None:
    """Its `__str__` fails: it is a failed attempt all the same, with the type as the error."""

    class Shy(Exception):
        def __str__(self) -> str:
            raise OSError

    q.enqueue("x")
    (job,) = q.reserve(block=0)
    with job:
        raise Shy
    view = q.show(job)
    assert view is not None
    assert (view.nacks, view.error) == (1, "Shy")


@pytest.mark.parametrize("lease", [None, 0], ids=["out of attempts", "at most once"])
def test_an_exception_that_ends_a_job_is_logged_with_its_traceback(
    q: Queue, caplog: pytest.LogCaptureFixture, lease: float | None
) -> None:
    """If the exception ends the job (buried, or at most once), the log record is an ERROR."""
    q.configure(max_attempts=1)
    q.enqueue("x", lease=lease)
    (job,) = q.reserve(block=0)
    with caplog.at_level(logging.DEBUG, "penstock"):
        with job:
            raise ValueError("not a number")
    (entry,) = [entry for entry in caplog.records if job.id in entry.getMessage()]
    assert (entry.levelno, entry.exc_info is not None) == (logging.ERROR, True)
    assert {name: vars(entry)[name] for name in LOG_FIELDS} == Fields(job)


def test_the_error_may_be_any_text(q: Queue) -> None:
    """The error may hold line breaks, NUL, lone surrogates and kilobytes of text."""
    texts = ["a\nb\r\n\x00c", "name \udcff of a file", "", "ü" * 4000, "1 2 3 4"]
    for text in texts:
        q.enqueue("x")
        (job,) = q.reserve(block=0)
        assert job.nack(error=text)
        view = q.show(job)
        assert view is not None
        assert view.nacks == 1
        assert len(view.error.encode("utf-8", "replace")) <= 1024
        if len(text) < 100 and "\udcff" not in text:
            assert view.error == text
        q.delete([job])


def test_a_keyboard_interrupt_gives_the_job_back(q: Queue) -> None:
    """A KeyboardInterrupt gives the job back without charging an attempt, and is raised again."""
    q.enqueue("x")
    (job,) = q.reserve(block=0)
    with pytest.raises(KeyboardInterrupt):
        with job:
            raise KeyboardInterrupt
    (again,) = q.reserve(block=0)
    assert (again.id, again.attempt, again.deliveries) == (job.id, 1, 2)


@pytest.mark.parametrize("how", ["ack", "nack", "release", "bury"])
@pytest.mark.parametrize("fails", [False, True])
def test_a_job_settled_inside_is_left_alone(q: Queue, raw: Raw, how: str, fails: bool) -> None:
    """A job settled in its block stays so; an exception after that is raised to the caller."""
    q.enqueue("x")
    (job,) = q.reserve(block=0)

    def handle() -> None:
        with job:
            assert {
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
            handle()
    else:
        handle()
    assert dump(raw) == handled[0]


def test_leaving_the_block_too_late(q: Queue, raw: Raw) -> None:
    """Leaving the block after another consumer got the job raises `StaleReceipt`."""
    q.enqueue("x", lease=10)
    (late,) = q.reserve(block=0)
    seen = []

    def work() -> None:
        with late:
            advance(raw, q.ops, 11)
            seen.extend(q.reserve(block=0))
            before.update(dump(raw))

    before: dict[bytes, object] = {}
    with pytest.raises(StaleReceipt, match=late.id):
        work()
    assert dump(raw) == before
    assert seen[0].ack() is True


@pytest.mark.parametrize("now", ["scheduled", "dead", "gone", "held by id", "once more"])
def test_a_stale_receipt_error_has_the_current_receipt(q: Queue, raw: Raw, now: str) -> None:
    """The error has the current receipt, if another consumer holds the job."""
    q.enqueue("x", lease=10)
    (late,) = q.reserve(block=0)
    advance(raw, q.ops, 11)
    (holder,) = q.reserve(block=0)
    current = None
    if now == "scheduled":
        holder.nack(delay=60)
    elif now == "dead":
        holder.bury()
    elif now == "gone":
        holder.ack()
    elif now == "held by id":
        q.release([holder.id])
    else:
        holder.release()
        (again,) = q.reserve(block=0)
        current = again.receipt
    if now == "gone":
        assert late.ack() is False
        return
    with pytest.raises(StaleReceipt) as caught:
        late.ack()
    assert (caught.value.receipt, caught.value.current) == (late.receipt, current)
    assert late.receipt in str(caught.value)
    assert str(current or "this delivery has ended") in str(caught.value)


def test_a_receipt_that_was_used(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """A receipt that already ended its delivery is refused without asking the server."""
    q.enqueue("x")
    (job,) = q.reserve(block=0)
    job.release(delay=60)
    asked: list[object] = []
    monkeypatch.setattr(q.ops, "show", asked.append)
    with pytest.raises(StaleReceipt) as caught:
        job.ack()
    assert (caught.value.receipt, caught.value.current) == (job.receipt, None)
    assert asked == []


def test_the_query_for_the_holder_fails(
    q: Queue, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the query for the current receipt fails, the error is raised without it."""
    q.enqueue("x", lease=10)
    (late,) = q.reserve(block=0)
    advance(raw, q.ops, 11)
    (holder,) = q.reserve(block=0)

    def fail(names: object) -> None:
        raise ConnectionError("lost")

    monkeypatch.setattr(q.ops, "showing", fail)
    with pytest.raises(StaleReceipt, match="this delivery has ended") as caught:
        late.extend()
    assert (caught.value.receipt, caught.value.current) == (late.receipt, None)
    assert holder.ack()


def test_failing_in_the_block_too_late(q: Queue, raw: Raw) -> None:
    """A failure in the block after the delivery has ended is not charged to the job."""
    q.enqueue("x", lease=10)
    (late,) = q.reserve(block=0)
    seen = []

    def fail() -> None:
        with late:
            advance(raw, q.ops, 11)
            seen.extend(q.reserve(block=0))
            before.update(dump(raw))
            raise ValueError("too late")

    before: dict[bytes, object] = {}
    with pytest.raises(StaleReceipt):
        fail()
    assert dump(raw) == before
    assert seen[0].ack() is True


def test_a_lease_that_ended_unnoticed_still_counts(q: Queue, raw: Raw) -> None:
    """After its lease the holder can settle a job until it is delivered again."""
    q.enqueue("x", lease=10)
    (job,) = q.reserve(block=0)
    advance(raw, q.ops, 60)
    assert q.stats().ready == 1
    assert job.ack() is True
    assert q.stats().ready == 0


def test_a_job_that_was_finished_by_id(q: Queue) -> None:
    """When a job was finished by id, its holder's ack returns False without an error."""
    q.enqueue("x")
    (job,) = q.reserve(block=0)
    assert q.ack([job.id])
    with job:
        pass
    assert job.ack() is False
