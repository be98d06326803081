"""Dedup ids: at most one job per id, the treatment of duplicates, and when an id becomes free."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import partial
from typing import Any

import pytest

from penstock import (
    AsyncJob,
    AsyncPenstock,
    AsyncQueue,
    BadArgument,
    Dedup,
    Durable,
    Enqueued,
    IncompleteEnqueue,
    JobView,
    NotReplicated,
    Outcome,
    QueueFull,
    QueuePaused,
    parse_id,
)
from penstock.embedded import EmbeddedServer
from penstock.wire.scripts import script
from tests.conformance.carmine import Status, check_claims
from tests.support.keyspace import (
    Raw,
    advance,
    check_invariant,
    dump,
    load_scripts,
    method_of,
    numbers,
    queue_time_ms,
)
from tests.support.proxy import Fault, Proxy
from tests.support.twins import aspawn

from .conftest import AsyncWaits

ODD_IDS = [
    ";", "=", "a;b=c", "d=x", "\n", "a\nb", "\r\n", "\0", " ", "  ", "%", "%3B", "%%", "%3D;",
    "1-1", "1800000000000-1000000000", "@5", "1 @5", "@", "-", "+", "*", "{}", "~", "'\"\\",
    "Grüße", "日本", "\U0001f600", "\u2028", "\x7f", "x", "X", "x ", "x" * 1024, "é" * 512,
    ";" * 1024, "\U0001f600" * 256,
]  # fmt: skip
NO_IDS: list[Any] = [
    "", "x" * 1025, "é" * 513, "\ud800", b"x", 5, True, ["x"], object(), str,
]  # fmt: skip
BUSY = ("refuse", "update", "debounce", "requeue", "requeue+update", "requeue+debounce")


@pytest.fixture
async def q(ps: AsyncPenstock, raw: Raw) -> AsyncIterator[AsyncQueue]:
    """A queue that does not exist yet. The end of the test checks that a job or
    window has each id.
    """
    queue = ps.queue("q")
    yield queue
    await queue.sweep()
    check_claims(raw, queue.ops)


async def seen(q: AsyncQueue, dedup_id: str = "x") -> Status | None:
    """Return the status of an id, with the bodies of its jobs."""
    found = await q.dedup_status(dedup_id)
    if found is None:
        return None
    job = None if found.job is None else found.job.body
    successor = None if found.successor is None else found.successor.body
    return Status(found.state, job, successor, found.window_ends is not None)


async def take(q: AsyncQueue) -> AsyncJob:
    """Reserve the next job."""
    (job,) = await q.reserve(1, block=0)
    return job


async def drained(q: AsyncQueue) -> list[Any]:
    """Reserve and acknowledge jobs one by one, and return their bodies."""
    found = []
    while jobs := await q.reserve(1, block=0):
        found += bodies(jobs)
        await q.ack(jobs)
    return found


async def shown(q: AsyncQueue, job_id: str) -> JobView:
    """Return the view of an existing job."""
    view = await q.show(job_id)
    assert view is not None
    return view


def bodies(jobs: Any) -> list[Any]:
    """Return the bodies of the jobs."""
    return [job.body for job in jobs]


VARYING = (b"seen", b"off", b"alarm")


def content(raw: Raw, q: AsyncQueue) -> dict[bytes, Any]:
    """Return all keys except the stored replies of producers and the queue's clock."""
    keys = dump(raw)
    meta = keys[q.ops.keys["meta"]][0][1]
    for field in [name for name in meta if name in VARYING or name.startswith(b"@")]:
        del meta[field]
    return keys


async def with_successor(
    q: AsyncQueue, *, window: float | None = None, **options: Any
) -> tuple[AsyncJob, Enqueued]:
    """Enqueue two jobs with the id "x": "old" is active, and "new" is its successor."""
    await q.enqueue("old", dedup=Dedup("x", window=window), **options)
    job = await take(q)
    answer = await q.enqueue("new", dedup=Dedup("x", on_duplicate="requeue"))
    assert (answer.action, answer.state, answer.duplicate) == ("requeued", "scheduled", False)
    return job, answer


# -- ids ---------------------------------------------------------------------------------------


async def test_a_job_has_its_id(q: AsyncQueue) -> None:
    """The delivery and all views show the dedup id; a job without one shows None."""
    first = await q.enqueue("with", dedup_id="x")
    await q.enqueue("without")
    assert first == Enqueued(first.id, "ready", duplicate=False, replicas=0, action="added")
    assert [view.dedup_id for view in await q.peek()] == ["x", None]
    assert [view.dedup_id async for view in q.jobs()] == ["x", None]
    jobs = await q.reserve(2, block=0)
    assert [job.dedup_id for job in jobs] == ["x", None]
    found = await q.dedup_status("x")
    assert found is not None
    assert found.job is not None
    assert (found.dedup_id, found.state, found.job.id) == ("x", "active", first.id)
    assert (found.successor, found.window_ends) == (None, None)


async def test_a_duplicate_names_the_job_that_is_there(q: AsyncQueue, raw: Raw) -> None:
    """A duplicate answers with the id and state of the existing job, and writes nothing."""
    first = await q.enqueue("old", dedup_id="x", delay=60)
    before = content(raw, q)
    again = await q.enqueue(b"new", dedup_id="x", delay=5, lease=7, ttl=9, headers={"a": "b"})
    assert again == Enqueued(first.id, "scheduled", duplicate=True, replicas=0, action="refused")
    assert content(raw, q) == before
    advance(raw, q.ops, 61)
    assert (await q.enqueue("new", dedup_id="x")).state == "ready"
    await take(q)
    again = await q.enqueue("new", dedup_id="x")
    assert (again.id, again.state, again.duplicate) == (first.id, "active", True)


async def test_a_duplicate_answers_with_the_exact_id(q: AsyncQueue) -> None:
    """A duplicate answers with the exact id of the existing job, including its ttl
    and lease parts.
    """
    for ttl, lease in ((3600, None), (3600, 0), (None, 0), (None, 5)):
        name = f"{ttl} {lease}"
        first = await q.enqueue("x", dedup_id=name, ttl=ttl, lease=lease)
        assert (await q.enqueue("y", dedup_id=name)).id == first.id
        done = await q.enqueue("y", dedup=Dedup(name, on_duplicate="update"), ttl=60)
        assert (done.id, done.action) == (first.id, "updated")


async def test_any_text_is_an_id(q: AsyncQueue) -> None:
    """Any text is a valid id: it stays distinct, comes back unchanged, and is free
    after the ack.
    """
    answers = [await q.enqueue(i, dedup_id=name) for i, name in enumerate(ODD_IDS)]
    assert {answer.action for answer in answers} == {"added"}
    for i, name in enumerate(ODD_IDS):
        again = await q.enqueue("no", dedup_id=name)
        assert (again.id, again.action) == (answers[i].id, "refused")
        assert await seen(q, name) == Status("ready", i)
        new = await q.enqueue([i], dedup=Dedup(name, on_duplicate="update"), headers={name: name})
        assert (new.id, new.action) == (answers[i].id, "updated")
    jobs = await q.reserve(100, block=0)
    assert [job.dedup_id for job in jobs] == ODD_IDS
    assert bodies(jobs) == [[i] for i in range(len(ODD_IDS))]
    assert [job.headers for job in jobs] == [{name: name} for name in ODD_IDS]
    for i, name in enumerate(ODD_IDS):
        assert (await q.enqueue(-i, dedup=Dedup(name, on_duplicate="requeue"))).action == "requeued"
    assert await q.ack(jobs)
    assert await drained(q) == [-i for i in range(len(ODD_IDS))]
    for name in ODD_IDS:
        assert await q.dedup_status(name) is None


async def test_text_like_an_id_in_body_or_headers_does_not_count(q: AsyncQueue) -> None:
    """Text in a body or header that looks like the id field of a record does not count."""
    await q.enqueue(b"1;d=x\n;d=x", headers={"d": "x", "h;d=x": ";d=x"})
    assert await q.dedup_status("x") is None
    assert (await q.enqueue(b"1;d=y\n", dedup_id="x", headers={"d": "y"})).action == "added"
    assert await q.dedup_status("y") is None
    assert len(await q.reserve(2, block=0)) == 2
    assert (
        await q.enqueue(b";d=y\n", dedup=Dedup("x", on_duplicate="requeue"))
    ).action == "requeued"
    assert await q.ack([view.id for view in await q.peek(state="active")])
    assert await drained(q) == [b";d=y\n"]


async def test_queues_do_not_share_ids(ps: AsyncPenstock) -> None:
    """Two queues may use one dedup id independently."""
    for name in ("a", "b"):
        assert (await ps.queue(name).enqueue(name, dedup_id="x")).action == "added"
        assert await seen(ps.queue(name)) == Status("ready", name)


# -- update ------------------------------------------------------------------------------------


@pytest.mark.parametrize("spread", ["one ms", "several ms"])
async def test_an_update_keeps_the_place(q: AsyncQueue, raw: Raw, spread: str) -> None:
    """Updated jobs keep their order, however often and in whatever order they are updated."""
    names = [str(i) for i in range(12)]
    if spread == "one ms":
        given = (await q.enqueue_many(names, dedup_id=str)).ids
    else:
        given = []
        for name in names:
            given.append((await q.enqueue(name, dedup_id=name)).id)
            advance(raw, q.ops, 0.005)
    chosen = ["7", "0", "11", "6", "7", "1", "7"]
    for step, name in enumerate(chosen):
        done = await q.enqueue(f"{name} at {step}", dedup=Dedup(name, on_duplicate="update"))
        assert (done.id, done.action, done.state) == (given[int(name)], "updated", "ready")
        assert [view.id for view in await q.peek(20)] == given
    last = {name: f"{name} at {step}" for step, name in enumerate(chosen)}
    expected = [last.get(name, name) for name in names]
    assert bodies(await q.peek(20)) == expected
    assert bodies(await q.peek(3, start=-3)) == expected[-3:]
    jobs = [await take(q) for _ in range(4)]
    done = await q.enqueue("6 again", dedup=Dedup("6", on_duplicate="update"))
    assert [*bodies(jobs), *bodies(await q.reserve(20, block=0))] == [
        *expected[:6],
        "6 again",
        *expected[7:],
    ]


async def test_any_number_of_updates_keeps_the_order(q: AsyncQueue) -> None:
    """Random updates, releases and new jobs keep the order of jobs with and without ids."""
    dice = random.Random(5)
    expected: list[list[Any]] = []
    for step in range(150):
        name = dice.choice("abcdefgh")
        if dice.random() < 0.3:
            await q.enqueue(step)
            expected.append([None, step])
        else:
            done = await q.enqueue(step, dedup=Dedup(name, on_duplicate="update"))
            mine = [entry for entry in expected if entry[0] == name]
            assert done.action == ("updated" if mine else "added")
            if mine:
                mine[0][1] = step
            else:
                expected.append([name, step])
        if dice.random() < 0.2:
            jobs = await q.reserve(2, block=0)
            await q.release(jobs[1:])
            await q.ack(jobs[:1])
            del expected[0]
        assert bodies(await q.peek(200)) == [body for _, body in expected]
    assert await drained(q) == [body for _, body in expected]


@pytest.mark.parametrize("where", ["ready", "delayed", "nacked", "lapsed"])
async def test_an_update_keeps_age_and_counters(q: AsyncQueue, raw: Raw, where: str) -> None:
    """An update keeps creation and due time, attempts and the last error in every waiting state."""
    await q.configure(max_crashes=5)
    first = await q.enqueue("old", dedup_id="x", delay=60 if where == "delayed" else 0)
    if where == "nacked":
        await (await take(q)).nack(delay=60, error="it failed")
    elif where == "lapsed":
        await take(q)
        advance(raw, q.ops, 31)
    before = await shown(q, first.id)
    advance(raw, q.ops, 5)
    done = await q.enqueue("new", dedup=Dedup("x", on_duplicate="update"), delay=600)
    assert (done.id, done.action, done.state) == (first.id, "updated", before.state)
    after = await shown(q, first.id)
    assert (before.body, after.body) == ("old", "new")
    for field in ("created", "due", "state", "deliveries", "nacks", "crashes", "error", "owner"):
        if (field, where) != ("due", "ready"):  # it has become a due job
            assert getattr(after, field) == getattr(before, field), field
    assert after.age >= before.age + 5
    advance(raw, q.ops, 61)
    job = await take(q)
    assert (job.body, job.attempt) == ("new", 2 if where in ("nacked", "lapsed") else 1)


async def test_an_update_replaces_the_content(q: AsyncQueue) -> None:
    """An update replaces body, codec and headers completely."""
    await q.enqueue({"n": 1}, dedup_id="x", headers={"a": "1", "b": "2"})
    for body, headers in ((b"\x00;d=y\n", {"c": "3"}), ("text", {}), (b"", {"a": ";"})):
        await q.enqueue(body, dedup=Dedup("x", on_duplicate="update"), headers=headers)
        (view,) = await q.peek()
        assert (view.body, view.headers, view.dedup_id) == (body, headers, "x")
        assert view.codec == ("json" if body == "text" else "")
    job = await take(q)
    assert (job.raw, job.headers) == (b"", {"a": ";"})


async def test_an_update_and_the_lease(q: AsyncQueue) -> None:
    """An update without a lease keeps the old one; an update with a lease replaces it."""
    await q.enqueue(0, dedup_id="x", lease=7)
    for lease, expected in ((None, 7), (9, 9), (None, 9), (0.5, 0.5)):
        assert (await q.enqueue(1, dedup=Dedup("x", on_duplicate="update"), lease=lease)).duplicate
        assert [view.lease for view in await q.peek()] == [expected]
    assert (await take(q)).lease == 0.5
    await q.enqueue(0, dedup_id="default")
    await q.enqueue(1, dedup=Dedup("default", on_duplicate="update"))
    assert (await take(q)).lease == 30


@pytest.mark.parametrize("mode", ["update", "debounce", "requeue+update", "requeue+debounce"])
async def test_an_update_cannot_change_the_class(q: AsyncQueue, raw: Raw, mode: str) -> None:
    """An update cannot switch between at most once and at least once: it is refused."""
    once = await q.enqueue("once", dedup_id="once", lease=0)
    usual = await q.enqueue("usual", dedup_id="usual", lease=7)
    default = await q.enqueue("default", dedup_id="default")
    before = content(raw, q)
    for first, name, lease in ((once, "once", 5), (usual, "usual", 0), (default, "default", 0)):
        done = await q.enqueue("no", dedup=Dedup(name, on_duplicate=mode), lease=lease, delay=60)
        assert done == Enqueued(first.id, "ready", duplicate=True, replicas=0, action="refused")
    assert content(raw, q) == before
    done = await q.enqueue("new", dedup=Dedup("once", on_duplicate=mode))
    assert (done.id, done.action) == (once.id, "updated")
    assert (await q.enqueue("newer", dedup=Dedup("once", on_duplicate=mode), lease=0)).duplicate
    job = await take(q)
    assert (job.body, job.at_most_once) == ("newer", True)


@pytest.mark.parametrize("mode", ["update", "debounce", "requeue+update", "requeue+debounce"])
async def test_an_update_keeps_the_ttl(q: AsyncQueue, raw: Raw, mode: str) -> None:
    """A job's ttl counts from its creation; an update does not change it."""
    first = await q.enqueue("old", dedup_id="x", ttl=60)
    await q.enqueue("old", dedup_id="for ever")
    done = await q.enqueue("new", dedup=Dedup("x", on_duplicate=mode), ttl=6000)
    again = await q.enqueue("new", dedup=Dedup("for ever", on_duplicate=mode), ttl=6000)
    assert (done.id, done.action, again.action) == (first.id, "updated", "updated")
    assert [view.ttl for view in await q.peek()] == [60, None]
    advance(raw, q.ops, 61)
    assert await seen(q) is None
    assert [job.dedup_id for job in await q.reserve(2, block=0)] == ["for ever"]


async def test_an_update_and_the_window(q: AsyncQueue, raw: Raw) -> None:
    """An update without a window keeps the old one; an update with a window replaces it."""
    for given, seconds in ((None, 50), (100, 100)):
        await q.enqueue("old", dedup=Dedup("x", window=50))
        done = await q.enqueue("new", dedup=Dedup("x", window=given, on_duplicate="update"))
        assert done.action == "updated"
        assert await drained(q) == ["new"]
        advance(raw, q.ops, seconds - 2)
        assert await seen(q) == Status("window", None, window=True)
        advance(raw, q.ops, 3)
        assert await seen(q) is None


async def test_an_update_and_until(q: AsyncQueue) -> None:
    """An update without `until` (`finished`) keeps the old value; otherwise it replaces it."""
    for before, now, is_free in (
        ("finished", "started", True),
        ("started", "finished", True),
        ("started", "started", True),
        ("finished", "finished", False),
    ):
        await q.enqueue("old", dedup=Dedup("x", until=before))
        done = await q.enqueue("new", dedup=Dedup("x", until=now, on_duplicate="update"))
        assert done.action == "updated"
        job = await take(q)
        assert (await seen(q) is None) == is_free, (before, now)
        await job.ack()


async def test_an_active_job_is_not_updated(q: AsyncQueue, raw: Raw) -> None:
    """An update of a job that a consumer holds is refused."""
    first = await q.enqueue("old", dedup_id="x")
    job = await take(q)
    before = content(raw, q)
    for mode in ("update", "debounce"):
        done = await q.enqueue("new", dedup=Dedup("x", on_duplicate=mode))
        assert done == Enqueued(first.id, "active", duplicate=True, replicas=0, action="refused")
    assert content(raw, q) == before
    await job.release()
    assert (await q.enqueue("new", dedup=Dedup("x", on_duplicate="update"))).action == "updated"
    assert (await take(q)).body == "new"


# -- debounce, throttle, until started ---------------------------------------------------------


async def test_a_debounce_restarts_the_delay(q: AsyncQueue, raw: Raw) -> None:
    """A debounced job runs when no duplicate came for the delay, with the last content."""
    first = await q.enqueue(0, dedup=Dedup("x", on_duplicate="debounce"), delay=10)
    assert first.action == "added"
    for serial in range(1, 4):
        advance(raw, q.ops, 8)
        done = await q.enqueue(serial, dedup=Dedup("x", on_duplicate="debounce"), delay=10)
        assert (done.id, done.action, done.state) == (first.id, "updated", "scheduled")
        assert await q.reserve(block=0) == []
    advance(raw, q.ops, 11)
    assert (await take(q)).body == 3


@pytest.mark.parametrize("where", ["ready", "nacked"])
async def test_a_debounce_of_a_job_that_waits(q: AsyncQueue, raw: Raw, where: str) -> None:
    """A debounce of a ready job delays it from now on, and keeps its attempts."""
    first = await q.enqueue(0, dedup_id="x")
    if where == "nacked":
        await (await take(q)).nack(delay=3600)
    done = await q.enqueue(1, dedup=Dedup("x", on_duplicate="debounce"), delay=20)
    assert (done.id, done.state) == (first.id, "scheduled")
    (view,) = await q.peek(state="scheduled")
    assert view.next_in == pytest.approx(20, abs=2)
    assert await q.reserve(block=0) == []
    advance(raw, q.ops, 21)
    job = await take(q)
    assert (job.body, job.attempt) == (1, 2 if where == "nacked" else 1)


async def test_a_debounce_without_delay_ends_it(q: AsyncQueue) -> None:
    """Without a delay a debounce makes the job ready, at the place of its creation."""
    await q.enqueue("first")
    first = await q.enqueue(0, dedup_id="x", delay=60)
    await q.enqueue("last")
    done = await q.enqueue(1, dedup=Dedup("x", on_duplicate="debounce"))
    assert (done.id, done.action) == (first.id, "updated")
    assert await seen(q) == Status("ready", 1)
    assert await drained(q) == ["first", 1, "last"]


async def test_a_debounce_to_a_point_in_time(q: AsyncQueue, raw: Raw) -> None:
    """A debounce accepts `at` as well as a delay; the end of the ttl bounds both."""
    first = await q.enqueue(0, dedup_id="x", delay=60, ttl=100)
    view = await shown(q, first.id)
    await q.enqueue(1, dedup=Dedup("x", on_duplicate="debounce"), at=view.created + 90)
    assert (await shown(q, first.id)).due == pytest.approx(view.created + 90, abs=0.01)
    await q.enqueue(2, dedup=Dedup("x", on_duplicate="debounce"), delay=3600)
    advance(raw, q.ops, 101)
    assert await q.reserve(block=0) == []
    assert await seen(q) is None


async def test_a_throttle(q: AsyncQueue, raw: Raw) -> None:
    """A throttle lets one job per window through, counted from the enqueue."""
    throttle = Dedup("x", until="enqueued", window=100)
    for serial in range(3):
        done = await q.enqueue(serial, dedup=throttle)
        assert (done.action, done.state) == ("added", "ready")
        for now in ("waits", "at work", "done"):
            if now == "at work":
                assert (await take(q)).body == serial
            elif now == "done":
                assert await q.ack([done.id])
            again = await q.enqueue("no", dedup=throttle)
            assert again == Enqueued("", "window", duplicate=True, replicas=0, action="refused")
            assert await seen(q) == Status("window", None, window=True)
        advance(raw, q.ops, 90)
        assert (await q.enqueue("no", dedup=throttle)).duplicate
        advance(raw, q.ops, 15)
        assert await seen(q) is None
    assert (await q.stats()).enqueued == 3


@pytest.mark.parametrize("end", ["delete", "bury", "purge", "withdraw"])
async def test_a_throttle_outlives_its_job(q: AsyncQueue, raw: Raw, end: str) -> None:
    """A throttle's window stays open when its job ends, in every way a job can end."""
    done = await q.enqueue(0, dedup=Dedup("x", until="enqueued", window=10))
    await (q.purge() if end == "purge" else method_of(q, end)([done.id]))
    assert (await q.enqueue(1, dedup_id="x")).action == "refused"
    advance(raw, q.ops, 11)
    assert (await q.enqueue(1, dedup_id="x")).action == "added"
    assert (await q.enqueue(1, dedup_id="x")).action == "refused"


async def test_until_started(q: AsyncQueue, raw: Raw) -> None:
    """With `until="started"` a duplicate is refused until the first delivery, even
    if that fails.
    """
    first = await q.enqueue("old", dedup=Dedup("x", until="started"))
    assert (await q.enqueue("no", dedup=Dedup("x", until="started"))).id == first.id
    job = await take(q)
    assert await seen(q) is None
    assert (await q.enqueue("new", dedup=Dedup("x", until="started"))).action == "added"
    assert await seen(q) == Status("ready", "new")
    await job.nack(delay=0)
    assert await seen(q) == Status("ready", "new")
    assert bodies(await q.reserve(2, block=0)) == ["old", "new"]
    assert await seen(q) is None
    advance(raw, q.ops, 31)
    assert (await q.enqueue("third", dedup_id="x")).action == "added"
    assert sorted(await drained(q)) == ["new", "old", "third"]


async def test_until_started_or_removed(q: AsyncQueue) -> None:
    """With `until="started"` the id is also free when the job ends without being delivered."""
    for end in ("delete", "bury", "withdraw"):
        done = await q.enqueue(end, dedup=Dedup("x", until="started"), delay=60)
        assert await method_of(q, end)([done.id])
        assert await seen(q) is None


async def test_until_started_has_no_successor(q: AsyncQueue) -> None:
    """With `until="started"` a job never has a successor."""
    await q.enqueue("old", dedup=Dedup("x", until="started"))
    again = await q.enqueue("no", dedup=Dedup("x", on_duplicate="requeue", until="started"))
    assert again.action == "refused"
    await take(q)
    again = await q.enqueue("new", dedup=Dedup("x", on_duplicate="requeue", until="started"))
    assert (again.action, again.state) == ("added", "ready")


# -- windows -----------------------------------------------------------------------------------


async def test_a_window_begins_with_the_ack(q: AsyncQueue, raw: Raw) -> None:
    """A window starts with the ack and lasts as long as the job's own setting."""
    await q.enqueue(0, dedup=Dedup("x", window=100))
    advance(raw, q.ops, 600)
    job = await take(q)
    advance(raw, q.ops, 20)
    assert (await q.enqueue(1, dedup_id="x")).state == "active"
    await job.ack()
    found = await q.dedup_status("x")
    assert found is not None
    assert found.window_ends is not None
    assert (found.state, found.job, found.successor) == ("window", None, None)
    advance(raw, q.ops, 90)
    again = await q.enqueue(1, dedup_id="x")
    assert again == Enqueued("", "window", duplicate=True, replicas=0, action="refused")
    advance(raw, q.ops, 20)
    assert await q.dedup_status("x") is None
    assert (await q.enqueue(1, dedup_id="x")).action == "added"
    assert (await q.enqueue(2, dedup_id="x")).action == "refused"


@pytest.mark.parametrize("end", ["bury", "dead", "delete", "purge", "ttl"])
async def test_only_an_ack_opens_a_window(q: AsyncQueue, raw: Raw, end: str) -> None:
    """A job that was buried, removed or expired opens no window."""
    await q.configure(max_attempts=1)
    ttl = 60 if end == "ttl" else None
    done = await q.enqueue(0, dedup=Dedup("x", window=600), ttl=ttl)
    if end in ("bury", "dead"):
        job = await take(q)
        assert await (job.bury() if end == "bury" else job.nack())
    elif end == "purge":
        assert await q.purge() == 1
    elif end == "delete":
        assert await q.delete([done.id])
    else:
        advance(raw, q.ops, 61)
    assert await seen(q) is None
    assert (await q.enqueue(1, dedup_id="x")).action == "added"
    assert (await q.enqueue(2, dedup_id="x")).action == "refused"


@pytest.mark.parametrize("by_queue", [True, False])
@pytest.mark.parametrize("own", [None, 600, 2])
async def test_an_ack_may_name_the_window(
    q: AsyncQueue, raw: Raw, own: int | None, by_queue: bool
) -> None:
    """The window of an ack replaces the producer's, longer or shorter; 0 means none."""
    for window in (10, 0, 0.5):
        await q.enqueue("new", dedup=Dedup("x", window=own))
        await q.enqueue("without an id")
        jobs = await q.reserve(2, block=0)
        if by_queue:
            assert await q.ack(jobs, dedup_window=window)
        else:
            assert [await job.ack(dedup_window=window) for job in jobs] == [True, True]
        found = await q.dedup_status("x")
        assert (found is not None) is (window > 0)
        if found is not None and found.window_ends is not None:
            assert 0 < found.window_ends - queue_time_ms(raw, q.ops) / 1000 <= window
        advance(raw, q.ops, window + 0.001)
        assert await seen(q) is None


async def test_a_window_of_the_ack_and_a_successor(q: AsyncQueue, raw: Raw) -> None:
    """A successor waits for the end of the window that the ack names."""
    for window in (10, 0):
        await q.enqueue("old", dedup=Dedup("x", window=5))
        job = await take(q)
        await q.enqueue("new", dedup=Dedup("x", on_duplicate="requeue"))
        assert await job.ack(dedup_window=window)
        assert (await drained(q) == ["new"]) is (window == 0)
        advance(raw, q.ops, window + 0.001)
        assert (await drained(q) == ["new"]) is (window > 0)


async def test_invalid_windows_of_an_ack(q: AsyncQueue, raw: Raw) -> None:
    """An invalid window is refused, and the job is still held."""
    await q.enqueue(0, dedup_id="x")
    job = await take(q)
    before = dump(raw)
    values: list[Any] = [-1, True, "5", float("nan"), 10**12]
    for value in values:
        for call in (job.ack, partial(q.ack, [job])):
            with pytest.raises(BadArgument) as caught:
                await call(dedup_window=value)
            assert caught.value.argument == "dedup_window"
    assert dump(raw) == before


@pytest.mark.parametrize("delay, waits", [(0, 100), (50, 100), (300, 300)])
async def test_a_requeue_in_a_window(q: AsyncQueue, raw: Raw, delay: int, waits: int) -> None:
    """A requeued job runs at the end of the window or of its own delay, whichever is later."""
    await q.enqueue("old", dedup=Dedup("x", window=100))
    assert await drained(q) == ["old"]
    done = await q.enqueue("new", dedup=Dedup("x", on_duplicate="requeue"), delay=delay)
    assert (done.action, done.state, done.duplicate) == ("requeued", "scheduled", False)
    assert await seen(q) == Status("window", "new", window=True)
    again = await q.enqueue("no", dedup=Dedup("x", on_duplicate="requeue"))
    assert (again.id, again.action) == (done.id, "refused")
    advance(raw, q.ops, waits - 10)
    assert await q.reserve(block=0) == []
    advance(raw, q.ops, 20)
    assert await seen(q) == Status("ready", "new")
    assert await drained(q) == ["new"]
    assert await seen(q) is None


async def test_a_job_waiting_for_a_window_is_not_promoted(q: AsyncQueue, raw: Raw) -> None:
    """A job that waits for a window can be promoted only after the window's end."""
    await q.enqueue("old", dedup=Dedup("x", window=10))
    assert await drained(q) == ["old"]
    done = await q.enqueue("new", dedup=Dedup("x", on_duplicate="requeue"), delay=30)
    assert list(await q.promote([done.id])) == [Outcome.REFUSED]
    assert await seen(q) == Status("window", "new", window=True)
    assert await q.reserve(block=0) == []
    advance(raw, q.ops, 11)
    assert list(await q.promote([done.id])) == [Outcome.DONE]
    assert await drained(q) == ["new"]
    assert await seen(q) is None


async def test_windows_follow_each_other(q: AsyncQueue, raw: Raw) -> None:
    """In a chain of successors each job waits for the window of the one before it."""
    job, _ = await with_successor(q, window=100)
    await q.enqueue("2", dedup=Dedup("x", window=200, on_duplicate="requeue+update"))
    await job.ack()
    advance(raw, q.ops, 110)
    job = await take(q)
    assert job.body == "2"
    await q.enqueue("3", dedup=Dedup("x", window=50, on_duplicate="requeue"))
    await job.ack()
    advance(raw, q.ops, 190)
    assert await q.reserve(block=0) == []
    advance(raw, q.ops, 20)
    assert await drained(q) == ["3"]
    assert await seen(q) == Status("window", None, window=True)
    advance(raw, q.ops, 60)
    assert await seen(q) is None


@pytest.mark.parametrize("end", ["delete", "withdraw", "purge", "bury", "ttl", "ack"])
async def test_a_job_waiting_for_a_window_may_end(q: AsyncQueue, raw: Raw, end: str) -> None:
    """A job that waits for a window may end; the window stays open until its time."""
    await q.enqueue("old", dedup=Dedup("x", window=100))
    assert await drained(q) == ["old"]
    ttl = 10 if end == "ttl" else None
    done = await q.enqueue("new", dedup=Dedup("x", on_duplicate="requeue"), ttl=ttl)
    if end == "ttl":
        advance(raw, q.ops, 11)
        assert await q.sweep() == 1
    elif end == "purge":
        assert await q.purge("scheduled") == 1
    else:
        assert await method_of(q, end)([done.id])
    assert await seen(q) == Status("window", None, window=True)
    assert (await q.enqueue("no", dedup_id="x")).state == "window"
    third = await q.enqueue("third", dedup=Dedup("x", on_duplicate="requeue"))
    assert third.action == "requeued"
    advance(raw, q.ops, 101)
    assert await drained(q) == ["third"]


@pytest.mark.parametrize("by", ["sweep", "stats", "enqueue", "reserve"])
@pytest.mark.parametrize("end", ["ttl", "at most once"])
async def test_a_window_and_its_waiting_job_end_together(
    q: AsyncQueue, raw: Raw, end: str, by: str
) -> None:
    """Window and waiting job have both ended: the call that finds that leaves nothing of the id."""
    await q.enqueue("old", dedup=Dedup("x", window=10))
    assert await drained(q) == ["old"]
    options: dict[str, Any] = {"ttl": 20} if end == "ttl" else {"lease": 0}
    await q.enqueue("new", dedup=Dedup("x", on_duplicate="requeue"), **options)
    if end == "at most once":
        advance(raw, q.ops, 11)
        assert (await take(q)).body == "new"
    advance(raw, q.ops, 90_000)
    if by == "enqueue":
        await q.enqueue("other", dedup_id="other")
    elif by == "reserve":
        assert await q.reserve(block=0) == []
    else:
        await getattr(q, by)()
    assert await q.dedup_status("x") is None
    await q.sweep()
    claimed = raw.hkeys(q.ops.keys["dedup"])
    assert claimed == ([b"other"] if by == "enqueue" else [])
    assert raw.exists(q.ops.keys["windows"]) == 0
    assert (await q.enqueue("again", dedup_id="x")).action == "added"


async def test_many_windows_end_together(q: AsyncQueue, raw: Raw) -> None:
    """More windows end than one call closes; each id is free on time all the same."""
    count = 350
    await q.enqueue_many(range(count), dedup=Dedup(str, window=10))
    assert await q.ack(await q.reserve(count, block=0))
    answers = await q.enqueue_many(range(count), dedup_id=str)
    assert {answer.state for answer in answers} == {"window"}
    advance(raw, q.ops, 11)
    answers = await q.enqueue_many(range(count), dedup_id=str)
    assert {answer.action for answer in answers} == {"added"}
    answers = await q.enqueue_many(range(count), dedup_id=str)
    assert {answer.action for answer in answers} == {"refused"}
    await q.sweep()
    assert raw.exists(q.ops.keys["windows"]) == 0
    assert await q.ack(await q.reserve(count, block=0))
    assert raw.exists(q.ops.keys["dedup"]) == 0


async def test_a_queue_with_an_open_window_stays(q: AsyncQueue, raw: Raw) -> None:
    """A sweep removes an idle queue without jobs only after its windows have ended."""
    await q.enqueue(0, dedup=Dedup("x", window=3600))
    assert await drained(q) == [0]
    advance(raw, q.ops, 1800)
    await q.sweep()
    assert await seen(q) == Status("window", None, window=True)
    advance(raw, q.ops, 1801)
    await q.sweep()
    advance(raw, q.ops, 1800)
    await q.sweep()
    assert not (await q.stats()).exists
    assert raw.keys("*{q}*") == []


# -- successors --------------------------------------------------------------------------------


async def test_a_successor_is_a_job_of_its_own(q: AsyncQueue) -> None:
    """A successor counts as scheduled, has its own id, and is due at no known time."""
    job, answer = await with_successor(q)
    assert answer.id != job.id
    (view,) = await q.peek(state="scheduled")
    assert (view.id, view.body, view.due, view.next_in) == (answer.id, "new", None, None)
    assert (await shown(q, answer.id)).state == "scheduled"
    stats = await q.stats()
    assert (stats.ready, stats.scheduled, stats.active, stats.enqueued) == (0, 1, 1, 2)
    assert await q.reserve(block=0) == []
    assert list(await q.promote([answer.id])) == [Outcome.REFUSED]
    assert list(await q.postpone([answer.id])) == [Outcome.REFUSED]
    assert await q.purge("scheduled") == 0
    assert await seen(q) == Status("active", "old", "new")
    assert await job.ack()
    assert (await take(q)).id == answer.id


async def test_a_failure_does_not_release_the_successor(q: AsyncQueue, raw: Raw) -> None:
    """A failed job keeps its id and is retried, so its successor keeps waiting."""
    job, _ = await with_successor(q)
    await job.nack(delay=10)
    assert await seen(q) == Status("scheduled", "old", "new")
    assert await q.reserve(block=0) == []
    advance(raw, q.ops, 11)
    job = await take(q)
    assert (job.body, job.attempt) == ("old", 2)
    await job.release()
    assert await seen(q) == Status("ready", "old", "new")
    assert (await take(q)).body == "old"
    advance(raw, q.ops, 31)
    assert await drained(q) == ["old", "new"]


async def test_an_update_while_the_first_waits_again(q: AsyncQueue) -> None:
    """While the first job waits for its retry, an update changes the successor, which runs last."""
    job, successor = await with_successor(q)
    await job.release()
    assert (await q.enqueue("no", dedup=Dedup("x", on_duplicate="requeue"))).action == "refused"
    for how in ("update", "debounce", "requeue+update", "requeue+debounce"):
        done = await q.enqueue(how, dedup=Dedup("x", on_duplicate=how))
        assert (done.id, done.action, done.state) == (successor.id, "updated", "scheduled")
        assert await seen(q) == Status("ready", "old", how)
    assert await drained(q) == ["old", "requeue+debounce"]


async def test_a_successor_has_a_ttl_of_its_own(q: AsyncQueue, raw: Raw) -> None:
    """A successor may expire while it waits: the first job goes on, and a new
    successor may come.
    """
    await q.enqueue("old", dedup_id="x", lease=3600)
    job = await take(q)
    await q.enqueue("short", dedup=Dedup("x", on_duplicate="requeue"), ttl=10)
    advance(raw, q.ops, 11)
    assert await seen(q) == Status("active", "old")
    done = await q.enqueue("new", dedup=Dedup("x", on_duplicate="requeue"), ttl=100)
    assert done.action == "requeued"
    assert await seen(q) == Status("active", "old", "new")
    assert await job.ack()
    assert await drained(q) == ["new"]


async def test_the_end_of_a_ttl_releases_the_successor(q: AsyncQueue, raw: Raw) -> None:
    """When the owner's ttl ends its successor is due, and the late holder's receipt is stale."""
    job, _ = await with_successor(q, ttl=60, lease=3600)
    advance(raw, q.ops, 61)
    await q.sweep()
    assert await seen(q) == Status("ready", "new")
    assert await job.ack() is False
    assert (await take(q)).body == "new"


@pytest.mark.parametrize("mode", BUSY)
async def test_an_enqueue_finds_that_a_ttl_has_ended(q: AsyncQueue, raw: Raw, mode: str) -> None:
    """After the ttl an enqueue finds the id free or with the successor, before any sweep."""
    job, successor = await with_successor(q, ttl=60, lease=3600)
    await q.enqueue("alone", dedup_id="y", ttl=60)
    advance(raw, q.ops, 61)
    alone = await q.enqueue("fresh", dedup=Dedup("y", on_duplicate=mode))
    assert alone.action == "added"
    done = await q.enqueue("newest", dedup=Dedup("x", on_duplicate=mode))
    updated = mode not in ("refuse", "requeue")
    assert (done.id, done.action) == (successor.id, "updated" if updated else "refused")
    assert await seen(q, "y") == Status("ready", "fresh")
    assert await seen(q) == Status("ready", "newest" if updated else "new")
    assert sorted(await drained(q)) == ["fresh", "newest" if updated else "new"]
    assert await job.ack() is False


OWNER: dict[str, tuple[Status | None, list[str]]] = {
    "delete": (Status("ready", "new"), ["new"]),
    "bury": (Status("ready", "new"), ["new"]),
    "purge": (Status("ready", "new"), ["new"]),
    "ack": (Status("ready", "new"), ["new"]),
    "withdraw": (Status("active", "old", "new"), ["new"]),
    "postpone": (Status("active", "old", "new"), ["new"]),
    "promote": (Status("ready", "old", "new"), ["old", "new"]),
    "nack": (Status("ready", "old", "new"), ["old", "new"]),
}
"""Call by id on an active job -> the status afterwards, and the jobs that run then."""


@pytest.mark.parametrize("what", OWNER)
async def test_the_first_job_is_removed(q: AsyncQueue, what: str) -> None:
    """When the first job is removed, and not before, the successor has the id."""
    job, _ = await with_successor(q)
    calls: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
        "purge": lambda: q.purge("active"),
        "nack": lambda: q.nack([job.id], delay=0),
    }
    call = calls.get(what) or (lambda: method_of(q, what)([job.id]))
    await call()
    status, left = OWNER[what]
    assert await seen(q) == status
    if status is not None and status.state == "active":
        await job.ack()
    assert await drained(q) == left
    assert await seen(q) is None


@pytest.mark.parametrize("what", ["delete", "bury", "purge", "withdraw", "ack", "ttl"])
async def test_the_successor_is_removed(q: AsyncQueue, raw: Raw, what: str) -> None:
    """When the successor is removed, the first job keeps the id and may get another successor."""
    await q.enqueue("old", dedup_id="x", lease=3600)
    job = await take(q)
    ttl = 60 if what == "ttl" else None
    successor = await q.enqueue("new", dedup=Dedup("x", on_duplicate="requeue"), ttl=ttl)
    if what == "ttl":
        advance(raw, q.ops, 61)
        await q.sweep()
    elif what == "purge":
        assert await q.purge("dependent") == 1
    else:
        assert await method_of(q, what)([successor.id])
    assert await seen(q) == Status("active", "old")
    third = await q.enqueue("third", dedup=Dedup("x", on_duplicate="requeue"))
    assert third.action == "requeued"
    await job.ack()
    assert await drained(q) == ["third"]


async def test_one_call_starts_thousands_of_successors(real_q: AsyncQueue, real_raw: Raw) -> None:
    """1,000 jobs are acknowledged and 4,000 expire, half of them delivered at most once: more
    successors are due than one command can name.
    """
    q, batches = real_q, [[f"{name}{i}" for i in range(1000)] for name in "abcde"]
    options: list[Any] = [
        {"lease": 3600},
        *[{"lease": 0, "ttl": 60}] * 2,
        *[{"lease": 30, "ttl": 60}] * 2,
    ]
    for bodies, one in zip(batches, options, strict=True):
        await q.enqueue_many(bodies, dedup=Dedup(str), **one)
    jobs = [job for _ in range(5) for job in await q.reserve(1000, block=0)]
    for bodies in batches:
        await q.enqueue_many(bodies, dedup=Dedup(str, on_duplicate="requeue"))
    assert (await q.stats()).dependent == 5000
    advance(real_raw, q.ops, 61)
    settled = await q.route.node.executor.run(q.ops.settle(jobs[:1000], 1))
    assert settled.outcomes.all_done
    stats = await q.stats()
    assert (stats.dependent, stats.ready + len(settled.taken.deliveries)) == (0, 5000)
    check_invariant(real_raw, q.ops)


@pytest.mark.parametrize("order", ["first, successor", "successor, first"])
@pytest.mark.parametrize("what", ["delete", "bury", "ack"])
async def test_owner_and_successor_are_removed(q: AsyncQueue, what: str, order: str) -> None:
    """Owner and successor are removed in one call, in either order: the id is free."""
    job, successor = await with_successor(q)
    both = [job.id, successor.id]
    assert (await method_of(q, what)(both if order == "first, successor" else both[::-1])).done == 2
    assert await seen(q) is None
    stats = await q.stats()
    assert (stats.ready, stats.scheduled, stats.active) == (0, 0, 0)
    assert (await q.enqueue("again", dedup_id="x")).action == "added"


async def test_a_purge_removes_owner_and_successor(q: AsyncQueue) -> None:
    """A purge removes waiting and active jobs, so owner and successor both go."""
    await with_successor(q)
    assert await q.purge("ready", "scheduled", "active") == 2
    assert await seen(q) is None
    assert (await q.enqueue("again", dedup_id="x")).action == "added"


async def test_many_successors_at_once(q: AsyncQueue) -> None:
    """Each of many successors waits for its own job; one ack for all makes all of them due."""
    count = 200
    await q.enqueue_many(range(count), dedup_id=str)
    jobs = await q.reserve(count, block=0)
    answers = await q.enqueue_many(range(count), dedup=Dedup(str, on_duplicate="requeue"))
    assert {answer.action for answer in answers} == {"requeued"}
    half = jobs[::2]
    assert await q.ack(half)
    again = await q.reserve(count, block=0)
    assert bodies(again) == bodies(half)
    assert [job.id for job in again] == answers.ids[::2]
    assert await q.ack(jobs[1::2])
    assert bodies(await q.reserve(count, block=0)) == bodies(jobs[1::2])


# -- the dead ----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["bury", "nack", "crash", "release", "bury by id"])
async def test_a_dead_letter_has_no_id(q: AsyncQueue, raw: Raw, how: str) -> None:
    """A job that died, in whatever way, releases its id: another may be enqueued at once."""
    await q.configure(max_attempts=1, max_crashes=1, max_releases=1)
    first = await q.enqueue("old", dedup=Dedup("x", window=60))
    if how == "bury by id":
        assert await q.bury([first.id])
    else:
        job = await take(q)
        if how == "crash":
            advance(raw, q.ops, 31)
            assert await q.reserve(block=0) == []
        else:
            await getattr(job, how)()
    assert (await q.stats()).dead == 1
    assert await seen(q) is None
    (view,) = await q.peek(state="dead")
    assert (view.id, view.dedup_id) == (first.id, "x")
    assert (await q.enqueue("new", dedup_id="x")).action == "added"


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("holder", ["ready", "scheduled", "active", "window", "free"])
async def test_a_redrive_and_the_id(q: AsyncQueue, raw: Raw, holder: str, named: bool) -> None:
    """A job whose id is used again stays dead; if the id is free, the redriven job has it again."""
    first = await q.enqueue("old", dedup_id="x")
    await q.bury([first.id])
    await q.enqueue("other", dedup_id="other")
    await q.bury([view.id for view in await q.peek()])
    if holder != "free":
        delay = 600 if holder == "scheduled" else 0
        await q.enqueue("new", dedup=Dedup("x", window=600), delay=delay)
    if holder in ("active", "window"):
        job = await take(q)
        if holder == "window":
            await job.ack()
    before = await seen(q)
    free = holder == "free"
    ids = [view.id for view in await q.peek(state="dead")]
    assert len(ids) == 2
    assert await q.redrive(ids if named else None) == 1 + free
    assert (await q.stats()).dead == 1 - free
    assert (await q.stats()).redriven == 1 + free
    if free:
        again = await q.enqueue("no", dedup_id="x")
        assert (again.id, again.action) == (first.id, "refused")
    else:
        assert await seen(q) == before
        advance(raw, q.ops, 601)
    assert "other" in await drained(q)


async def test_one_of_two_dead_letters_is_redriven(q: AsyncQueue) -> None:
    """Of two dead letters with one id the older is redriven; the other one after its end."""
    for body in ("first", "second"):
        await q.bury([(await q.enqueue(body, dedup_id="x")).id])
    assert await q.redrive() == 1
    assert await seen(q) == Status("ready", "first")
    assert await q.redrive() == 0
    assert await drained(q) == ["first"]
    assert await q.redrive() == 1
    assert await drained(q) == ["second"]


@pytest.mark.parametrize("gone", ["window", "ttl"])
async def test_a_redrive_when_the_id_is_free_by_time(q: AsyncQueue, raw: Raw, gone: str) -> None:
    """A window or ttl that has ended does not prevent a redrive, swept or not."""
    await q.bury([(await q.enqueue("old", dedup_id="x")).id])
    if gone == "window":
        await q.enqueue("new", dedup=Dedup("x", window=10))
        assert await drained(q) == ["new"]
    else:
        await q.enqueue("new", dedup_id="x", ttl=10)
    advance(raw, q.ops, 11)
    assert await seen(q) is None
    assert await q.redrive() == 1
    assert await seen(q) == Status("ready", "old")
    assert (await q.enqueue("no", dedup_id="x")).action == "refused"
    assert await drained(q) == ["old"]


async def test_a_redrive_of_ids_that_had_started(q: AsyncQueue) -> None:
    """With `until="started"` a redriven job has no id, so it runs next to a job that has it."""
    await q.enqueue("old", dedup=Dedup("x", until="started"))
    await (await take(q)).bury()
    await q.enqueue("new", dedup_id="x")
    assert await q.redrive() == 1
    assert await seen(q) == Status("ready", "new")
    assert sorted(await drained(q)) == ["new", "old"]


# -- at most once ------------------------------------------------------------------------------


async def test_a_job_at_most_once_keeps_its_id(q: AsyncQueue, raw: Raw) -> None:
    """A job with lease 0 keeps its id until its ack or ttl, and is not delivered again."""
    for end in ("ack", "ttl"):
        await q.enqueue("old", dedup_id="x", lease=0, ttl=3600)
        job = await take(q)
        advance(raw, q.ops, 600)
        again = await q.enqueue("no", dedup_id="x")
        assert (again.id, again.state, again.action) == (job.id, "active", "refused")
        done = await q.enqueue("new", dedup=Dedup("x", on_duplicate="requeue"), lease=0)
        assert done.action == "requeued"
        if end == "ack":
            assert await job.ack()
        else:
            advance(raw, q.ops, 3001)
            await q.sweep()
        assert await drained(q) == ["new"]
        assert await seen(q) is None


async def test_an_eviction_frees_the_id(q: AsyncQueue) -> None:
    """Evicting a job with lease 0 frees its id; its successor becomes due."""
    await with_successor(q, lease=0)
    await q.enqueue("alone", dedup_id="y", lease=0)
    assert (await take(q)).body == "alone"
    assert await q.sweep(evict=100) == 2
    assert await seen(q, "y") is None
    assert await seen(q) == Status("ready", "new")


# -- bulk --------------------------------------------------------------------------------------


def first_letter(body: str) -> str:
    """Return the first letter, which is the dedup id in these tests."""
    return body[0]


BULK: dict[str, tuple[list[str], list[str]]] = {
    "refuse": (["refused", "added", "refused", "refused", "added"], ["a0", "b1", "c1"]),
    "update": (["updated", "added", "updated", "updated", "added"], ["a2", "b2", "c1"]),
    "debounce": (["updated", "added", "updated", "updated", "added"], ["a2", "b2", "c1"]),
    "requeue": (["refused", "added", "refused", "refused", "added"], ["a0", "b1", "c1"]),
    "requeue+update": (["updated", "added", "updated", "updated", "added"], ["a2", "b2", "c1"]),
    "requeue+debounce": (["updated", "added", "updated", "updated", "added"], ["a2", "b2", "c1"]),
}
"""`on_duplicate` -> the answers to a1, b1, a2, b2, c1 while a0 waits; the jobs afterwards."""


@pytest.mark.parametrize("mode", BUSY)
async def test_duplicates_in_one_call(q: AsyncQueue, mode: str) -> None:
    """Each job gets an answer, in order; duplicates within the call count too."""
    first = await q.enqueue("a0", dedup_id="a")
    given = ["a1", "b1", "a2", "b2", "c1"]
    answers = await q.enqueue_many(given, dedup=Dedup(first_letter, on_duplicate=mode))
    actions, left = BULK[mode]
    assert [answer.action for answer in answers] == actions
    assert [answer.duplicate for answer in answers] == [one != "added" for one in actions]
    assert {answer.state for answer in answers} == {"ready"}
    b, c = answers[1].id, answers[4].id
    assert answers.ids == [first.id, b, first.id, b, c]
    assert [(view.id, view.body) for view in await q.peek()] == [
        (first.id, left[0]),
        (b, left[1]),
        (c, left[2]),
    ]
    assert (await q.stats()).enqueued == 3


async def test_successors_in_one_call(q: AsyncQueue, raw: Raw) -> None:
    """Several successors for one active job in one call: one is added, the others find it."""
    await q.enqueue_many(["a0", "b0"], dedup=Dedup(first_letter, window=10))
    jobs = await q.reserve(2, block=0)
    await jobs[1].ack()
    given = ["a1", "b1", "c1", "a2", "b2", "c2"]
    answers = await q.enqueue_many(given, dedup=Dedup(first_letter, on_duplicate="requeue+update"))
    assert [answer.action for answer in answers] == [
        "requeued", "requeued", "added", "updated", "updated", "updated",
    ]  # fmt: skip
    assert [answer.state for answer in answers] == ["scheduled", "scheduled", "ready"] * 2
    assert answers.ids[:3] == answers.ids[3:]
    assert await seen(q, "a") == Status("active", "a0", "a2")
    assert await seen(q, "b") == Status("window", "b2", window=True)
    assert await drained(q) == ["c2"]
    await jobs[0].ack()
    advance(raw, q.ops, 11)
    assert sorted(await drained(q)) == ["a2", "b2"]


async def in_each_state(q: AsyncQueue) -> None:
    """Put an id into each state, each named by a letter; e is free."""
    await q.enqueue_many(["b0", "f0"], dedup_id=first_letter, lease=3600)
    assert len(await q.reserve(2, block=0)) == 2
    await q.enqueue("f1", dedup=Dedup("f", on_duplicate="requeue"))
    await q.enqueue_many(["c0", "g0"], dedup=Dedup(first_letter, window=600))
    assert await q.ack(await q.reserve(2, block=0))
    await q.enqueue("g1", dedup=Dedup("g", on_duplicate="requeue"))
    await q.enqueue("d0", dedup_id="d", delay=600)
    await q.enqueue("a0", dedup_id="a")


@pytest.mark.parametrize("delay", [0, 60])
@pytest.mark.parametrize("mode", BUSY)
async def test_one_bulk_call_equals_many_calls(ps: AsyncPenstock, mode: str, delay: int) -> None:
    """One bulk call has the same answers and leaves the same data as single calls."""
    one, many = ps.queue("one"), ps.queue("many")
    for q in (one, many):
        await in_each_state(q)
    dice = random.Random(7)
    given = [f"{dice.choice('abcdefg')}{serial}" for serial in range(2, 30)]
    options: dict[str, Any] = {"on_duplicate": mode, "window": 60}
    every = Dedup(first_letter, **options)
    together = list(await many.enqueue_many(given, dedup=every, delay=delay))
    singly = [
        await one.enqueue(body, dedup=Dedup(body[0], **options), delay=delay) for body in given
    ]
    for told, expected in zip(together, singly, strict=True):
        assert (told.action, told.state) == (expected.action, expected.state)
        assert (told.duplicate, bool(told.id)) == (expected.duplicate, bool(expected.id))
    places = [[ids.index(each) for each in ids] for ids in ids_of(together, singly)]
    assert places[0] == places[1]
    for letter in "abcdefg":
        assert await seen(many, letter) == await seen(one, letter)
    assert bodies(await many.peek(20)) == bodies(await one.peek(20))


def ids_of(*results: list[Enqueued]) -> list[list[str]]:
    """Return the ids of each list of answers."""
    return [[answer.id for answer in answers] for answers in results]


async def test_one_id_for_all(q: AsyncQueue) -> None:
    """A str is the id of every job: the first one is added, or the last one's content is kept."""
    answers = await q.enqueue_many(["one", "two", "three"], dedup_id="x")
    assert [answer.action for answer in answers] == ["added", "refused", "refused"]
    assert len(set(answers.ids)) == 1
    await q.enqueue_many(["four", "five"], dedup=Dedup("x", on_duplicate="update"))
    assert await drained(q) == ["five"]


async def test_several_chunks(q: AsyncQueue, raw: Raw) -> None:
    """2,500 jobs with 900 ids need three scripts: duplicates are found across chunks."""
    answers = await q.enqueue_many(range(2500), dedup_id=lambda body: str(body % 900))
    assert [answer.action for answer in answers] == ["added"] * 900 + ["refused"] * 1600
    assert answers.ids == [answers[i % 900].id for i in range(2500)]
    assert len(answers) == 2500
    assert answers[-1].id == answers[2499 % 900].id
    assert numbers(raw, q.ops, "ready") == [parse_id(one).number for one in answers.ids[:900]]
    assert bodies(await q.reserve(1000, block=0)) == list(range(900))


async def test_a_throttle_in_one_call(q: AsyncQueue, raw: Raw) -> None:
    """A throttle lets the first job of each id through; the others are in its window."""
    answers = await q.enqueue_many(
        ["a1", "b1", "a2"], dedup=Dedup(first_letter, until="enqueued", window=10)
    )
    assert [answer.action for answer in answers] == ["added", "added", "refused"]
    assert answers[2] == Enqueued("", "window", duplicate=True, replicas=0, action="refused")
    assert await drained(q) == ["a1", "b1"]
    assert (await q.enqueue("a3", dedup_id="a")).action == "refused"
    advance(raw, q.ops, 11)
    assert (await q.enqueue("a4", dedup_id="a")).action == "added"


async def test_an_answer_carries_no_headers(q: AsyncQueue, raw: Raw) -> None:
    """The stored answer to a duplicate is small, even if the existing job has large headers."""
    await q.enqueue("old", dedup_id="x", headers={"h": "v" * 10_000})
    answers = await q.enqueue_many(range(100), dedup_id="x")
    assert {answer.action for answer in answers} == {"refused"}
    kept = [
        len(value) for name, value in raw.hgetall(q.ops.keys["meta"]).items() if name[:1] == b"@"
    ]
    assert 0 < max(kept) < 100 * 200


@pytest.mark.parametrize("mode", BUSY)
async def test_a_job_is_read_once_a_call(real_q: AsyncQueue, real_raw: Raw, mode: str) -> None:
    """A job is read once per call, however many duplicates the call has."""
    await real_q.enqueue("old", dedup_id="x")
    load_scripts(real_raw)
    before = reads(real_raw)
    assert len(await real_q.enqueue_many(range(100), dedup=Dedup("x", on_duplicate=mode))) == 100
    assert 0 < reads(real_raw) - before < 10


def reads(raw: Raw) -> int:
    """Count the commands that read single records."""
    stats = raw.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("xrange", "hget"))


def next_of(given: Iterator[Any], _: object) -> Any:
    """Return the next dedup id, whatever the body is."""
    return next(given)


async def test_a_bad_id_of_a_body(q: AsyncQueue, raw: Raw) -> None:
    """A bad id fails its chunk; the error lists the jobs of the chunks before it."""
    await q.enqueue("make it")
    before = dump(raw)
    for bad in NO_IDS:
        given = iter(["x", "x", bad])
        with pytest.raises(BadArgument, match=r"^dedup_id="):
            await q.enqueue_many([1, 2, 3], dedup_id=partial(next_of, given))
    assert dump(raw) == before
    with pytest.raises(IncompleteEnqueue) as caught:
        await q.enqueue_many(range(1500), dedup_id=lambda body: "" if body == 1400 else str(body))
    assert len(caught.value.results) == 1000
    assert isinstance(caught.value.__cause__, BadArgument)
    assert (await q.stats()).ready == 1001


# -- bounds, pauses, replicas ------------------------------------------------------------------


@pytest.mark.parametrize("mode", BUSY)
async def test_a_full_queue(q: AsyncQueue, raw: Raw, mode: str) -> None:
    """A full queue refuses a call that has to add a job, including its updates."""
    await q.enqueue_many(["a0", "b0", "c0"], dedup_id=first_letter)
    assert (await take(q)).body == "a0"
    await q.configure(max_length=2)
    before = content(raw, q)
    with pytest.raises(QueueFull, match="2 jobs wait, the limit is 2"):
        await q.enqueue_many(["b1", "d1"], dedup=Dedup(first_letter, on_duplicate=mode), delay=60)
    assert content(raw, q) == before
    if "requeue" in mode:  # a requeued job waits for the end of another one, and takes no room
        answer = await q.enqueue("a1", dedup=Dedup("a", on_duplicate=mode))
        assert answer.action == "requeued"
    answers = await q.enqueue_many(["b1", "c1"], dedup=Dedup(first_letter, on_duplicate=mode))
    updated = mode not in ("refuse", "requeue")
    assert {answer.action for answer in answers} == {"updated" if updated else "refused"}
    assert sorted(await drained(q)) == (["b1", "c1"] if updated else ["b0", "c0"])


async def test_a_duplicate_does_not_wait_for_room(q: AsyncQueue, waits: AsyncWaits) -> None:
    """Only a call that has to add a job waits for room, and adds it once."""
    await q.enqueue("a0", dedup_id="a")
    again = await q.enqueue("a1", dedup_id="a", max_length=1, block=None)
    assert again.action == "refused"
    producer = aspawn(
        q.enqueue_many,
        ["a1", "b1"],
        dedup=Dedup(first_letter, on_duplicate="update"),
        max_length=1,
        block=30,
    )
    await waits.reach(1)
    assert bodies(await q.peek()) == ["a0"]
    assert (await take(q)).body == "a0"
    answers = await producer.result()
    assert [answer.action for answer in answers] == ["refused", "added"]
    assert await drained(q) == ["b1"]


@pytest.mark.parametrize("mode", BUSY)
async def test_a_paused_queue(q: AsyncQueue, raw: Raw, mode: str) -> None:
    """A pause of the incoming side refuses duplicates too; a pause of the outgoing side doesn't."""
    await q.enqueue("old", dedup_id="x")
    await q.pause("in")
    before = content(raw, q)
    for name in ("x", "y"):
        with pytest.raises(QueuePaused):
            await q.enqueue("new", dedup=Dedup(name, on_duplicate=mode))
    assert content(raw, q) == before
    assert await seen(q) == Status("ready", "old")
    await q.pause("out")
    assert (await q.enqueue("new", dedup=Dedup("x", on_duplicate=mode))).duplicate
    assert (await q.enqueue("new", dedup=Dedup("y", on_duplicate=mode))).action == "added"


async def test_too_few_replicas(real_q: AsyncQueue) -> None:
    """An added job is withdrawn: its id is free, or with the active job again."""
    with pytest.raises(NotReplicated) as caught:
        await real_q.enqueue("x", dedup_id="x", durable=Durable(1, timeout=0.05))
    assert caught.value.withdrawn is True
    assert await seen(real_q) is None
    await real_q.enqueue("old", dedup_id="x")
    await take(real_q)
    with pytest.raises(NotReplicated) as caught:
        await real_q.enqueue(
            "new", dedup=Dedup("x", on_duplicate="requeue"), durable=Durable(1, timeout=0.05)
        )
    assert caught.value.withdrawn is True
    assert await seen(real_q) == Status("active", "old")


async def test_too_few_replicas_of_a_duplicate(real_q: AsyncQueue) -> None:
    """A duplicate is refused at once too, although it would not add a job."""
    await real_q.enqueue("old", dedup_id="x")
    for on_duplicate in ("refuse", "update"):
        with pytest.raises(NotReplicated) as caught:
            await real_q.enqueue(
                "new", dedup=Dedup("x", on_duplicate=on_duplicate), durable=Durable(1, timeout=3600)
            )
        assert (caught.value.connected, caught.value.withdrawn) == (0, True)
    assert await seen(real_q) == Status("ready", "old")


# -- calls whose reply is lost -----------------------------------------------------------------


@pytest.fixture
async def broken(server: EmbeddedServer) -> AsyncIterator[tuple[Proxy, AsyncQueue]]:
    """A queue behind a proxy, on a server that knows all scripts."""
    with Proxy(server.address) as proxy:
        async with AsyncPenstock(proxy.url) as ps:
            queue = ps.queue("q")
            await queue.enqueue("make it")
            assert await drained(queue) == ["make it"]
            with raw_client(server) as client:
                load_scripts(client)
            yield proxy, queue
            with raw_client(server) as client:
                check_invariant(client)
                await queue.sweep()
                check_claims(client, queue.ops)


def raw_client(server: EmbeddedServer) -> Any:
    """Return a plain client of a server."""
    import redis

    return redis.Redis.from_url(server.url)


def lose(proxy: Proxy, name: str) -> Fault:
    """Drop the next reply to a script, and the connection with it."""
    return proxy.eat_reply(after=script(name).sha.encode())


@pytest.mark.parametrize("state", ["free", "ready", "active", "followed", "window"])
@pytest.mark.parametrize("mode", BUSY)
async def test_a_lost_answer_is_repeated(
    broken: tuple[Proxy, AsyncQueue], mode: str, state: str
) -> None:
    """The repeated call returns the same answer, and no work is done twice."""
    proxy, q = broken
    answers: list[Any] = []
    for name in ("whole", "torn"):
        if state != "free":
            await q.enqueue("old", dedup=Dedup(name, window=600 if state == "window" else None))
        held = await q.reserve(block=0) if state in ("active", "followed", "window") else []
        if state == "followed":
            await q.enqueue("next", dedup=Dedup(name, on_duplicate="requeue"))
        elif state == "window":
            assert await q.ack(held)
        enqueued = (await q.stats()).enqueued
        fault = lose(proxy, "claim") if name == "torn" else None
        done = await q.enqueue("new", dedup=Dedup(name, on_duplicate=mode), delay=60)
        if fault is not None:
            fault.wait()
        view = await q.show(done.id) if done.id else None
        grown = (await q.stats()).enqueued - enqueued
        answers.append((done.action, done.state, done.duplicate, view and view.body, grown))
        answers.append((await seen(q, name), view and view.dedup_id == name))
        await q.purge("ready", "scheduled")
    assert answers[:2] == answers[2:]


async def test_a_lost_answer_to_a_bulk(broken: tuple[Proxy, AsyncQueue]) -> None:
    """A repeated bulk returns the same answers, in order, for added jobs and duplicates."""
    proxy, q = broken
    old = await q.enqueue_many(["a0", "b0", "b;=%\n"], dedup_id=lambda body: body[:1])
    (job,) = await q.reserve(1, block=0)
    given = ["c1", "a1", "b1", "c2", "d1", "a2"]
    fault = lose(proxy, "claim")
    answers = await q.enqueue_many(given, dedup=Dedup(first_letter, on_duplicate="requeue+update"))
    fault.wait()
    assert [answer.action for answer in answers] == [
        "added", "requeued", "updated", "updated", "added", "updated",
    ]  # fmt: skip
    assert answers[2].id == old[1].id
    assert answers.ids[3] == answers.ids[0]
    assert answers.ids[5] == answers.ids[1]
    views = {view.id: view.body async for view in q.jobs()}
    assert [views[one] for one in answers.ids] == ["c2", "a2", "b1", "c2", "d1", "a2"]
    assert len(views) == 5
    await job.ack()
    assert sorted(await drained(q)) == ["a2", "b1", "c2", "d1"]


async def test_a_lost_ack_releases_one_successor(broken: tuple[Proxy, AsyncQueue]) -> None:
    """A repeated ack finds the job done, and does not open the window again."""
    proxy, q = broken
    job, successor = await with_successor(q)
    fault = lose(proxy, "ack")
    assert list(await q.ack([job])) == [Outcome.DONE]
    fault.wait()
    assert await seen(q) == Status("ready", "new")
    (again,) = await q.reserve(2, block=0)
    assert (again.id, again.attempt) == (successor.id, 1)
    fault = lose(proxy, "settle")
    outcomes, jobs = await q.ack_and_reserve([again], 1)
    fault.wait()
    assert (list(outcomes), jobs) == ([Outcome.DONE], [])
    assert await seen(q) is None


# -- bad input ---------------------------------------------------------------------------------


async def test_bad_options(q: AsyncQueue, raw: Raw) -> None:
    """For bad options the error names the argument, and no command is sent."""
    await q.enqueue("make it")
    before = dump(raw)
    for value in NO_IDS:
        with pytest.raises(BadArgument, match=r"^dedup_id="):
            await q.enqueue("x", dedup_id=value)
        if not callable(value):
            with pytest.raises(BadArgument, match=r"^dedup_id="):
                await q.enqueue_many(["x"], dedup_id=value)
            with pytest.raises(BadArgument, match=r"^id="):
                Dedup(value)
    calls: list[Any] = [partial(q.enqueue, "x"), partial(q.enqueue_many, ["x"])]
    for call in calls:
        with pytest.raises(BadArgument, match=r"^dedup_id='x': not together with dedup="):
            await call(dedup_id="x", dedup=Dedup("x"))
        for wrong in ("x", {"id": "x"}, Dedup):
            with pytest.raises(BadArgument, match=r"^dedup="):
                await call(dedup=wrong)
    with pytest.raises(BadArgument, match=r"^dedup=.*enqueue_many takes a function"):
        await q.enqueue("x", dedup=Dedup(str))
    for value in [*NO_IDS, None]:
        with pytest.raises(BadArgument, match=r"^dedup_id="):
            await q.dedup_status(value)
    assert dump(raw) == before


def test_an_invalid_dedup() -> None:
    """An invalid `Dedup` is refused when it is constructed; the error names the argument."""
    bad: list[tuple[str, Any, dict[str, Any]]] = [
        *(
            ("window", value, {})
            for value in (0, -1, -0.001, True, "5", float("nan"), float("inf"), 10**400)
        ),
        *(
            ("on_duplicate", value, {})
            for value in ("", "Update", "replace", "u", None, 5, True, ["update"])
        ),
        *(("until", value, {}) for value in ("", "done", "s", "Started", None, 5, ["started"])),
        ("until", "enqueued", {}),
        ("window", 5, {"until": "started"}),
        *(("on_duplicate", mode, {"until": "enqueued", "window": 5}) for mode in BUSY[1:]),
    ]
    for argument, value, others in bad:
        with pytest.raises(BadArgument) as caught:
            Dedup("x", **others, **{argument: value})
        assert caught.value.argument == argument, (argument, value, others)


async def test_nothing_is_sent_for_a_bad_id(ps: AsyncPenstock, raw: Raw) -> None:
    """With a bad id no command is sent, not even the one that creates a queue."""
    before = raw.keys()
    with pytest.raises(BadArgument):
        await ps.queue("new").enqueue("x", dedup_id="")
    with pytest.raises(BadArgument):
        await ps.queue("new").dedup_status("")
    assert raw.keys() == before


async def test_the_id_of_a_job_has_no_dedup_status(q: AsyncQueue) -> None:
    """It is refused, and the error names the call that shows the job."""
    job_id = (await q.enqueue("x")).id
    with pytest.raises(BadArgument, match=r"^dedup_id='D-.*is the id of a job: use show\(\)"):
        await q.dedup_status(job_id)
    assert await q.dedup_status(job_id[:-1]) is None


async def test_the_status_of_an_id_in_a_missing_queue(ps: AsyncPenstock, raw: Raw) -> None:
    """`status` of an id in a missing queue is None and does not create the queue."""
    before = raw.keys("*{*")
    assert await ps.queue("new").dedup_status("x") is None
    assert raw.keys("*{*") == before


# -- waking ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_ticks")
@pytest.mark.parametrize("end", ["ack", "bury", "delete", "nack", "purge", "ack by id"])
async def test_a_successor_wakes_a_consumer(q: AsyncQueue, waits: AsyncWaits, end: str) -> None:
    """A successor wakes a consumer when the job before it has ended, in any way."""
    await q.configure(max_attempts=1)
    job, successor = await with_successor(q)
    consumer = aspawn(q.reserve, 1, block=30)
    await waits.reach(1)
    ends: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
        "purge": lambda: q.purge("active"),
        "delete": lambda: q.delete([job.id]),
        "ack by id": lambda: q.ack([job.id]),
    }
    await (ends.get(end) or getattr(job, end))()
    (found,) = await consumer.result()
    assert found.id == successor.id


@pytest.mark.usefixtures("no_ticks")
@pytest.mark.parametrize("by", ["sweep", "peek", "enqueue", "claim", "evict", "full"])
async def test_a_call_that_finds_an_ended_ttl_wakes_a_consumer(
    q: AsyncQueue, raw: Raw, waits: AsyncWaits, by: str
) -> None:
    """Any call that finds that the owner's ttl has ended makes the successor due
    and wakes a consumer.
    """
    await q.enqueue("old", dedup_id="x", ttl=3600, lease=0 if by == "evict" else 4000)
    await take(q)
    successor = await q.enqueue("new", dedup=Dedup("x", on_duplicate="requeue"))
    consumer = aspawn(q.reserve, 1, block=30)
    await waits.reach(1)
    if by != "evict":
        advance(raw, q.ops, 3601)
    if by in ("enqueue", "claim"):
        await q.enqueue("later", delay=60, dedup_id="y" if by == "claim" else None)
    elif by == "full":
        with pytest.raises(QueueFull):
            await q.enqueue_many([1, 2], max_length=1)
    elif by == "evict":
        await q.sweep(evict=100)
    else:
        await getattr(q, by)()
    (found,) = await consumer.result()
    assert found.id == successor.id


@pytest.mark.usefixtures("no_ticks")
async def test_the_end_of_a_window_wakes_a_consumer(q: AsyncQueue, waits: AsyncWaits) -> None:
    """The end of a window wakes a consumer, for a successor from before or after the ack."""
    for when in ("before", "after"):
        await q.enqueue("old", dedup=Dedup(when, window=0.5))
        job = await take(q)
        if when == "before":
            await q.enqueue("new", dedup=Dedup(when, on_duplicate="requeue"))
        consumer = aspawn(q.reserve, 1, block=30)
        await waits.reach(1)
        await job.ack()
        if when == "after":
            await q.enqueue("new", dedup=Dedup(when, on_duplicate="requeue"))
        (found,) = await consumer.result()
        assert (found.body, found.dedup_id) == ("new", when)
        assert found.delivered - job.delivered >= 0.5
        await found.ack()


async def test_settling_continues_with_the_successor(q: AsyncQueue) -> None:
    """A loop that consumes gets the successor next."""
    await q.enqueue("old", dedup_id="x")
    found = []
    async for job in q.consume(block=0.2):
        async with job:
            found.append(job.body)
            if len(found) == 1:
                await q.enqueue("new", dedup=Dedup("x", on_duplicate="requeue"))
    assert found == ["old", "new"]
    assert await seen(q) is None


async def test_a_job_that_runs_again_and_again(q: AsyncQueue) -> None:
    """A job that enqueues its own next run: there is always one, and never two at once."""
    await q.enqueue(0, dedup_id="x")
    async for job in q.consume(block=0.2):
        async with job:
            assert await seen(q) == Status("active", job.body)
            if job.body < 20:
                done = await q.enqueue(job.body + 1, dedup=Dedup("x", on_duplicate="requeue"))
                assert done.action == "requeued"
    assert (await q.stats()).acked == 21
