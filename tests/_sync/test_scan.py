# From tests/_async/test_scan.py by tools/unasync.py; do not edit.
"""Scanning jobs and queues page by page while other clients work."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import (
    BadArgument,
    JobView,
    Penstock,
    Queue,
    ScanPage,
    StateName,
)
from tests.support.backends import Backend
from tests.support.keyspace import Raw, advance
from tests.support.profiles import at_most
from tests.support.twins import spawn

STATES = ("ready", "scheduled", "active", "dead")
BUCKET = 20
"""More jobs than a server keeps in one hash bucket, which it scans as a whole."""
WRONG_CURSORS: tuple[Any, ...] = (
    *("", "x", "1", "r", "h", "r1-1", "h-1", "0 ", "0\n", "h1\n", "r1763700000123-999999999x"),
    *(0, None, b"0", "h" + "9" * 20),
)
WRONG_STATES: tuple[Any, ...] = ("done", b"ready", [], ["done"], ["ready", None], 5, [[]])
LONG = "x" * 100
"""A body that makes the server keep a hash table, through which a scan goes in several steps."""


def scanned(
    q: Queue, n: int, state: Iterable[StateName] | None = None, *, full: bool = True
) -> list[ScanPage]:
    """Return all pages of a scan."""
    search = q.jobs(state, n=n)
    pages = [search.page(full=full)]
    while pages[-1].cursor != "0":
        pages.append(search.page(pages[-1].cursor, full=full))
    return pages


def ids_of(pages: Iterable[ScanPage]) -> set[str]:
    """Return the ids of the found jobs."""
    return {job_id for page in pages for job_id in page.ids}


def fill(q: Queue, raw: Raw) -> dict[str, set[str]]:
    """Add jobs in every state, some of them expired; return the ids of the others."""
    q.enqueue_many([LONG] * 15)
    dead = q.reserve(15, block=0)
    q.bury(dead)
    q.enqueue_many([LONG] * 6, lease=1)
    ended = q.reserve(6, block=0)
    due = q.enqueue_many([LONG] * 7, delay=1)
    q.enqueue_many([LONG] * 4, ttl=1)
    q.enqueue_many([LONG] * 4, ttl=1, delay=0.5)
    advance(raw, q.ops, 2)
    q.enqueue_many([LONG] * 5, lease=0, ttl=900)
    q.enqueue_many([LONG] * 20, lease=900)
    taken = q.reserve(13 + 25, block=0)  # ended leases and due jobs come first
    active = {job.id for job in taken} - {job.id for job in ended} - set(due.ids)
    back = [job for job in taken if job.id not in active]
    q.release(back)
    later = q.enqueue_many([LONG] * 25, delay=900)
    ready = q.enqueue_many([LONG] * 30)
    q.enqueue_many([LONG] * 3, ttl=1)
    q.enqueue_many([LONG] * 3, ttl=1, delay=0.5)
    advance(raw, q.ops, 2)
    return {
        "ready": {*ready.ids, *(job.id for job in back)},
        "scheduled": set(later.ids),
        "active": active,
        "dead": {job.id for job in dead},
    }


@pytest.mark.parametrize("n", [1, 3, 10, 1000])
def test_every_job_is_found(q: Queue, raw: Raw, n: int) -> None:
    """Pages of any size together have every job; none is much larger than asked, none expired."""
    placed = fill(q, raw)
    pages = scanned(q, n)
    assert ids_of(pages) == set().union(*placed.values())
    assert all([view.id for view in page.jobs] == page.ids for page in pages)
    assert max(len(page.ids) for page in pages) <= n + 50
    if n == 1:
        assert len(pages) > 20


def test_jobs_are_described_as_by_show(q: Queue, raw: Raw) -> None:
    """A scanned job has the same state, times and counters as in `show`."""
    fill(q, raw)
    for page in scanned(q, 1000):
        for view in page.jobs:
            shown = q.show(view.id)
            assert shown is not None
            assert shown.now >= view.now
            other = {"now": 0, "failures": (), "trace": ""}  # only `show` has failures
            assert fields(shown) | other == fields(view) | other


def fields(view: JobView) -> dict[str, Any]:
    """Return all fields of a view."""
    return {name: getattr(view, name) for name in JobView.__slots__}


@pytest.mark.parametrize("n", [2, 1000])
def test_jobs_of_some_states(q: Queue, raw: Raw, n: int) -> None:
    """Only the given states are returned; due jobs and ended leases are ready,
    lease 0 is active.
    """
    placed = fill(q, raw)
    for states in (*([state] for state in STATES), ["scheduled", "dead"], ["active", "ready"]):
        pages = scanned(q, n, state=states)
        assert ids_of(pages) == set().union(*(placed[state] for state in states))
        assert {view.state for page in pages for view in page.jobs} == set(states)
    assert ids_of(scanned(q, n, state=set(STATES))) == set().union(*placed.values())


def test_a_step_may_find_nothing(q: Queue) -> None:
    """A filter that few jobs match does not make one step read all jobs."""
    q.enqueue_many([LONG] * 50)
    q.bury(q.reserve(50, block=0))
    q.enqueue_many([LONG] * 3)
    pages = scanned(q, 1, state=["active"])
    assert len(pages) > 1  # a step of Valkey may include a whole bucket of its table
    assert ids_of(pages) == set()


def test_ids_alone(real_q: Queue, real_raw: Raw) -> None:
    """Without bodies a scan does not read them."""
    ids = real_q.enqueue_many(b"x" * 20_000 for _ in range(60)).ids
    real_q.reserve(30, block=0)
    before = real_raw.info("stats")["total_net_output_bytes"]
    pages = scanned(real_q, 10, full=False)
    assert real_raw.info("stats")["total_net_output_bytes"] - before < 100_000
    assert ids_of(pages) == set(ids)
    assert [page.jobs for page in pages] == [[]] * len(pages)


def test_nothing_to_scan(q: Queue, raw: Raw) -> None:
    """A missing queue and an empty one give one empty page, and nothing is created."""
    assert q.jobs().page() == ScanPage("0", [], [])
    assert raw.dbsize() == 1  # the node's id
    q.configure(max_length=5)
    assert q.jobs().page() == ScanPage("0", [], [])


@pytest.mark.parametrize(
    "arguments",
    [
        *({"cursor": x} for x in WRONG_CURSORS),
        *({"n": x} for x in (0, -1, 1001, True, 1.5, "5", None)),
        *({"state": x} for x in WRONG_STATES),
    ],
    ids=repr,
)
def test_bad_arguments_of_a_scan(arguments: dict[str, Any]) -> None:
    """A bad argument is refused without a connection."""
    q = Penstock("redis://127.0.0.1:1", retry_for=0).queue("q")
    paging = {name: arguments.pop(name) for name in ("cursor",) if name in arguments}
    with pytest.raises(BadArgument) as caught:
        q.jobs(**arguments).page(**paging)
    assert caught.value.argument == next(iter(paging or arguments))


def test_big_bodies_come_in_bounded_pages(real_q: Queue) -> None:
    """A step returns about 1 MiB of bodies or one hash bucket, whatever `count` is."""
    ids = real_q.enqueue_many(b"x" * 300_000 for _ in range(24)).ids
    real_q.reserve(3, block=0)
    while len(real_q.reserve(12, block=0)) and real_q.stats().active < 12:
        pass
    pages = scanned(real_q, 1000)
    assert ids_of(pages) == set(ids)
    assert max(sum(len(view.raw) for view in page.jobs) for page in pages) < BUCKET * 300_000
    assert len(pages) > 2


def test_big_bodies_behind_small_ones(real_q: Queue) -> None:
    """After many small jobs a step still returns no more than about 1 MiB."""
    ids = real_q.enqueue_many([b"small"] * 200).ids
    ids += real_q.enqueue_many([b"x" * 500_000] * 40).ids
    for held in (0, 240):
        while held and real_q.stats().active < held:
            real_q.reserve(1000, block=0)
        pages = scanned(real_q, 1000)
        assert ids_of(pages) == set(ids)
        assert max(sum(len(view.raw) for view in page.jobs) for page in pages) < BUCKET * 500_000


# -- during other work ------------------------------------------------------------------------


def disturb(q: Queue, what: str, keep: set[str]) -> None:
    """Change the queue as other clients do; the jobs to keep move but stay in the queue."""
    if what.startswith("take"):
        take(q, what)
    elif what == "add":
        q.enqueue_many([LONG] * 5)
        q.enqueue_many([LONG] * 5, delay=60)
    elif what == "grow":
        q.enqueue_many([LONG] * 300, delay=60)
    elif what == "move":
        q.promote([view.id for view in q.peek(20, state="scheduled")])
        q.postpone([view.id for view in q.peek(6)])
        q.bury([view.id for view in q.peek(2)])
        q.redrive(limit=3)
    else:
        for state in STATES:
            views = q.peek(1000, state=state)
            q.delete([view.id for view in views if view.id not in keep][:200])


def take(q: Queue, what: str) -> None:
    """Reserve jobs, and settle them in the given way."""
    jobs = q.reserve(1000 if what == "take all" else 7, block=0)
    if what == "take and fail":
        q.nack(jobs[:4], delay=0)
        q.nack(jobs[4:], delay=60)
    elif what == "take and return":
        q.release(jobs)
    elif what == "take and give up":
        q.bury(jobs)


WHATS = st.sampled_from(
    [
        *("take", "take all", "take and fail", "take and return", "take and give up"),
        *("add", "grow", "move", "remove"),
    ]
)


def mixed(q: Queue) -> set[str]:
    """Add jobs of which every other one is to stay, and return their ids."""
    keep: set[str] = set()
    for _ in range(25):
        keep |= set(q.enqueue_many([LONG] * 2).ids)
        q.enqueue_many([LONG] * 2)
    keep |= set(q.enqueue_many([LONG] * 20, delay=60).ids)
    return keep


@at_most(12)
@given(n=st.sampled_from([1, 2, 5, 13, 40]), events=st.lists(WHATS, min_size=3, max_size=15))
def test_jobs_that_stay_are_found(
    real_ps: Penstock, real_raw: Raw, n: int, events: list[str]
) -> None:
    """A job that exists during the whole scan is found, whatever moves between the pages."""
    real_raw.flushdb()
    q = real_ps.queue("q")
    keep = mixed(q)
    found: set[str] = set()
    cursor, step = "0", 0
    while step == 0 or cursor != "0":
        page = q.jobs(n=n).page(cursor)
        cursor, step = page.cursor, step + 1
        found |= set(page.ids)
        if events and (step % 3 == 0 or n > 5):
            disturb(q, events.pop(), keep)
        assert step < 5000
    assert keep <= found


def churn(client: Penstock, keep: set[str], stop: threading.Event, rounds: list[int]) -> None:
    """Reserve, finish, release and add jobs until told to stop; keep some."""
    dice, q = random.Random(7), client.queue("q")
    while not stop.is_set():
        jobs = q.reserve(dice.randrange(1, 60), block=0)
        dice.shuffle(jobs)
        stay = [job for job in jobs if job.id in keep]
        q.ack([job for job in jobs if job.id not in keep])
        q.release(stay[::3])
        q.nack(stay[1::3], delay=dice.choice([0, 0.01, 60]))
        q.bury(stay[2::3])
        q.redrive(limit=20)
        q.enqueue_many([LONG] * dice.randrange(1, 80), delay=dice.choice([0, 0, 0.05]))
        q.promote([view.id for view in q.peek(30, state="scheduled")])
        rounds.append(len(jobs))


def test_jobs_that_stay_are_found_despite_a_busy_client(
    real_backend: Backend, real_q: Queue
) -> None:
    """A full scan finds every job that stays while another client changes the queue."""
    real_q.configure(max_attempts=0, max_releases=0, max_crashes=0)
    keep = mixed(real_q)
    stop, rounds, scans = threading.Event(), list[int](), 0
    with Penstock(real_backend.sync_client()) as client:
        beside = spawn(churn, client, keep, stop, rounds)
        try:
            while (scans < 3 or len(rounds) < 10) and not beside.is_done:
                pages = scanned(real_q, (3, 10, 25)[scans % 3], full=False)
                assert keep <= ids_of(pages)
                scans += 1
        finally:
            stop.set()
        beside.result()
    assert scans >= 3


# -- iterators, several queues -----------------------------------------------------------------


def test_iterating(q: Queue, raw: Raw) -> None:
    """An iteration yields single jobs."""
    placed = fill(q, raw)
    assert {view.id for view in q.jobs()} == set().union(*placed.values())
    search = q.jobs(iter(["dead", "scheduled"]), n=3)
    for _ in range(2):  # each iteration begins anew
        chosen = {view.id for view in search}
        assert chosen == placed["dead"] | placed["scheduled"]


def test_iterating_over_queues(ps: Penstock) -> None:
    """All queues are scanned, or those given by name or as objects."""
    for name in ("a", "b", "{c}"):
        ps.queue(name).enqueue_many([f"{name} now", f"{name} too"])
        ps.queue(name).enqueue(f"{name} later", delay=60)
    ps.queue("empty").configure(max_length=5)
    found = {view.id: view for view in ps.jobs(n=1)}
    views = list(found.values())
    assert sorted(view.body for view in views) == sorted(
        f"{name} {when}" for name in ("a", "b", "{c}") for when in ("now", "too", "later")
    )
    assert {view.queue for view in views} == {"a", "b", "{c}"}
    assert all(view.body.startswith(view.queue) for view in views)
    named = ps.jobs(["b", ps.queue("{c}"), "none"], state=iter(["scheduled"]))
    assert [view.body for view in named] == ["b later", "{c} later"]
    with pytest.raises(BadArgument, match="queues"):
        next(ps.jobs("a"))


def found_queues(ps: Penstock, n: int, **options: Any) -> list[str]:
    """Return the queues of a scan, page by page."""
    page = ps.scan_queues("0", n, **options)
    names = [stats.name for stats in page.queues]
    while page.cursor != "0":
        page = ps.scan_queues(page.cursor, n, **options)
        names += [stats.name for stats in page.queues]
    return names


@pytest.mark.parametrize("n", [1, 7, 1000])
def test_queues_step_by_step(ps: Penstock, n: int) -> None:
    """Pages of any size have each queue with its figures."""
    names = {f"{i} {LONG}" for i in range(40)}
    for name in names:
        ps.queue(name).enqueue("x")
    assert set(found_queues(ps, n)) == names
    assert len(ps.scan_queues("0", n).queues) == min(n, 40)
    for stats in ps.scan_queues_iter(n=n):
        assert (stats.exists, stats.ready, stats.enqueued) == (True, 1, 1)
        names.discard(stats.name)
    assert names == set()


def test_queues_of_a_pattern(ps: Penstock) -> None:
    """Only queues whose names match are read and returned; their partitions are one queue."""
    for name in ("mail.a", "mail.b", "Mail.c", "report"):
        ps.queue(name).enqueue("x")
    ps.queue("mail.p", partitions=3).enqueue_many(range(9), key=str)
    assert set(found_queues(ps, 2, pattern="mail.*")) == {"mail.a", "mail.b", "mail.p"}
    assert set(found_queues(ps, 100, pattern="[mM]ail.?")) == {
        "mail.a", "mail.b", "Mail.c", "mail.p",
    }  # fmt: skip
    assert [one.name for one in ps.scan_queues_iter(pattern="mail.?", min_length=2)] == ["mail.p"]
    assert found_queues(ps, 100, pattern="none") == []


def test_a_page_of_a_small_registry_is_cut(ps: Penstock) -> None:
    """The server returns a small hash at once; removals between two pages hide no queue."""
    names = [f"{i}" for i in range(25)]
    for name in names:
        ps.queue(name).enqueue("x")
    found, cursor = list[str](), "0"
    for _ in range(5):
        page = ps.scan_queues(cursor, 5)
        assert len(page.queues) == 5
        cursor = page.cursor
        found += [stats.name for stats in page.queues]
        ps.queue(found[0]).clear()
    assert cursor == "0"
    assert sorted(found) == sorted(names)


def test_queues_of_some_length(ps: Penstock, raw: Raw) -> None:
    """A filter takes bounds on the ready jobs and on the time since the last write."""
    for count in range(5):
        q = ps.queue(f"{count}")
        q.configure(max_length=50)
        q.enqueue_many(range(count))
        q.enqueue_many(range(9), delay=60)
    assert set(found_queues(ps, 100, min_length=2)) == {"2", "3", "4"}
    assert set(found_queues(ps, 100, max_length=0)) == {"0"}
    assert set(found_queues(ps, 100, min_length=1, max_length=3)) == {"1", "2", "3"}
    assert found_queues(ps, 100, min_length=4, max_length=3) == []
    advance(raw, ps.queue("3").ops, 50)
    assert set(found_queues(ps, 100, max_idle=40)) == {"0", "1", "2", "4"}
    assert set(found_queues(ps, 100, max_idle=40, min_length=3)) == {"4"}
    assert {stats.name for stats in ps.scan_queues_iter(min_length=3)} == {"3", "4"}


def test_leftovers_of_the_registry_are_not_shown(ps: Penstock, raw: Raw) -> None:
    """Registry entries without a queue, or of an earlier epoch, are not returned."""
    ps.queue("q").enqueue("x")
    raw.hset("penstock:queues", "0123456789abcdef", "never made")
    raw.hset("penstock:queues", f"{ps.queue('q').ops.crc:08x}00000001", "q")
    assert found_queues(ps, 100) == ["q"]
    assert [view.body for view in ps.jobs()] == ["x"]


def test_queues_that_stay_are_found(real_ps: Penstock, real_raw: Raw) -> None:
    """A queue that exists during the whole scan is found while others come and go."""
    names = [f"{i} {LONG}" for i in range(60)]
    for name in names:
        real_ps.queue(name).enqueue("x")
    stay = set(names[::2])
    leave = [name for name in names if name not in stay]
    found: set[str] = set()
    cursor, step = "0", 0
    while step == 0 or cursor != "0":
        page = real_ps.scan_queues(cursor, 4)
        cursor, step = page.cursor, step + 1
        found |= {stats.name for stats in page.queues}
        for i in range(3):
            real_ps.queue(f"new {step} {i} {LONG}").configure(max_length=5)
        if leave:
            gone = real_ps.queue(leave.pop())
            gone.purge()
            advance(real_raw, gone.ops, 1000)
            gone.sweep()
        assert step < 200
    assert stay <= found


@pytest.mark.parametrize(
    "arguments",
    [
        *({"cursor": x} for x in ("", "x", "h1", "-1", "0\n", 0, None, "9" * 20)),
        *({"n": x} for x in (0, -1, 1001, True, 1.5, "5")),
        *({"min_length": x} for x in (-1, 1.5, "1", True)),
        *({"max_length": x} for x in (-1, 1.5, "1", True)),
        *({"max_idle": x} for x in (-1, "1", float("nan"))),
        *({"pattern": x} for x in (b"a", None, 5)),
    ],
    ids=repr,
)
def test_bad_arguments_of_a_scan_over_queues(arguments: dict[str, Any]) -> None:
    """A bad argument is refused without a connection."""
    ps = Penstock("redis://127.0.0.1:1", retry_for=0)
    with pytest.raises(BadArgument) as caught:
        ps.scan_queues(**arguments)
    assert caught.value.argument == next(iter(arguments))
