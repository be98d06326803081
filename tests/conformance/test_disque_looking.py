"""Disque's commands that look at jobs and queues, and those that stop and start a queue.

ROWS continues the table of test_disque.py; that module checks it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest

from penstock import (
    Penstock,
    Queue,
    QueueStats,
    parse_id,
)
from tests.conformance.disque import (
    SEVERAL_NODES,
    Rows,
    bodies,
    one_in_each_state,
    refused,
    shown,
)
from tests.support.keyspace import Raw, advance, dump, reach_blocked
from tests.support.twins import spawn

ROWS: Rows = {
    "SHOW": ("test_every_field_of_a_job", "test_nothing_to_show"),
    "SHOW … state": ("test_the_states_of_a_job",),
    "SHOW … next-requeue-within, next-awake-within": ("test_when_a_job_moves_next",),
    "SHOW … repl, nodes-delivered, nodes-confirmed": (
        "Redis replicates, and does not tell which replica has which job; nothing lists them"
    ),
    "QLEN": ("test_the_length_of_a_queue",),
    "QSTAT": ("test_every_field_of_a_queue", "test_a_missing_queue"),
    "QSTAT … age, idle": ("test_age_and_idle_time",),
    "QSTAT … blocked": ("test_blocked_clients_are_the_servers",),
    "QSTAT … import-from, import-rate": SEVERAL_NODES,
    "QPEEK": ("test_looking_from_the_head", "test_bad_options_of_a_look"),
    "QPEEK … negative": ("test_looking_from_the_tail",),
    "QSCAN": ("test_scanning_queues", "test_queues_that_come_and_go_during_a_scan"),
    "QSCAN … COUNT": ("test_a_page_of_queues", "test_bad_options_of_a_queue_scan"),
    "QSCAN … BUSYLOOP": ("test_scanning_queues",),
    "QSCAN … MINLEN, MAXLEN": ("test_scanning_queues_by_length",),
    "QSCAN … MAXIDLE": ("test_scanning_queues_by_idle_time",),
    "QSCAN … IMPORTRATE": SEVERAL_NODES,
    "QSCAN … cursor": ("test_bad_options_of_a_queue_scan",),
    "JSCAN": (
        "test_scanning_jobs",
        "test_jobs_that_move_during_a_scan",
        "test_a_scan_with_a_busy_producer_ends",
    ),
    "JSCAN … COUNT": ("test_a_page_of_jobs", "test_bad_options_of_a_job_scan"),
    "JSCAN … BUSYLOOP": ("test_scanning_jobs",),
    "JSCAN … QUEUE": ("test_scanning_jobs_of_some_queues",),
    "JSCAN … STATE": (
        "test_scanning_jobs_by_state",
        "test_a_scan_and_a_peek_agree",
        "test_bad_options_of_a_job_scan",
    ),
    "JSCAN … REPLY": ("test_scanning_with_and_without_bodies",),
    "JSCAN … cursor": ("test_bad_options_of_a_job_scan",),
}


MOST_PAGES = 200
LONG = "x" * 100
"""A body that makes Redis store a hash of few jobs like one of many."""


# -- SHOW --------------------------------------------------------------------------------------


def test_every_field_of_a_job(q: Queue, raw: Raw) -> None:
    """SHOW: id, queue, state, ttl, ctime, delay, retry, nacks, additional deliveries and body, each
    under its name in penstock.
    """
    done = q.enqueue({"to": "ada"}, delay=20, lease=30, ttl=600)
    view = shown(q, done.id)
    assert (view.id, view.queue, view.state) == (done.id, "q", "scheduled")
    assert (view.ttl, view.lease, view.body) == (600, 30, {"to": "ada"})
    assert view.created == parse_id(done.id).ms / 1000
    assert view.due == pytest.approx(view.created + 20)
    assert view.expires == pytest.approx(view.created + 600)
    assert (view.deliveries, view.nacks, view.redeliveries, view.idle) == (0, 0, 0, None)
    advance(raw, q.ops, 20)
    (job,) = q.reserve(block=0)
    job.nack(delay=0)
    q.reserve(block=0)
    advance(raw, q.ops, 40)
    view = shown(q, done.id)
    assert (view.nacks, view.deliveries, view.redeliveries) == (1, 2, 1)
    assert view.idle == pytest.approx(40, abs=3)
    assert view.ttl_left == pytest.approx(600 - 60, abs=3)
    assert view.now == pytest.approx(view.created + 60, abs=3)
    assert view.state == "ready"  # its lease has ended
    (job,) = q.reserve(block=0)
    assert (job.nacks, job.redeliveries) == (1, 1)
    view = shown(q, job)
    assert (view.nacks, view.redeliveries) == (1, 1)


def test_nothing_to_show(q: Queue) -> None:
    """SHOW: an acked, deleted or unknown job is None."""
    q.enqueue_many(["acked", "deleted"])
    acked, deleted = q.reserve(2, block=0)
    acked.ack()
    q.delete([deleted.id])
    assert (q.show(acked.id), q.show(deleted.id)) == (None, None)


def test_the_states_of_a_job(q: Queue, raw: Raw) -> None:
    """SHOW … state: queued is ready; active is split into scheduled and active; acked is gone; dead
    letters have their own state.
    """
    for state, job_id in one_in_each_state(q).items():
        assert shown(q, job_id).state == state


def test_when_a_job_moves_next(q: Queue, raw: Raw) -> None:
    """SHOW … next-requeue-within, next-awake-within: seconds to the due time of a delayed job, or
    to the end of a lease; None for other jobs.
    """
    ids = one_in_each_state(q)
    assert shown(q, ids["scheduled"]).next_in == pytest.approx(600, abs=3)
    assert shown(q, ids["active"]).next_in == pytest.approx(30, abs=3)
    assert shown(q, ids["ready"]).next_in is None
    assert shown(q, ids["dead"]).next_in is None
    advance(raw, q.ops, 20)
    assert shown(q, ids["scheduled"]).next_in == pytest.approx(580, abs=3)
    assert shown(q, ids["active"]).next_in == pytest.approx(10, abs=3)


# -- QLEN, QSTAT, QPEEK ------------------------------------------------------------------------


def test_the_length_of_a_queue(q: Queue, raw: Raw) -> None:
    """QLEN; a.7 5: the exact number of ready jobs, and 0 without a queue."""
    assert q.stats().ready == 0
    one_in_each_state(q)
    assert q.stats().ready == 1
    advance(raw, q.ops, 601)  # one is due, and a lease has ended
    assert q.stats().ready == 3


def test_every_field_of_a_queue(q: Queue) -> None:
    """QSTAT: name, len, jobs-in, jobs-out, pause; and the other states, which
    Disque did not count.
    """
    one_in_each_state(q)
    stats = q.stats()
    assert (stats.name, stats.exists) == ("q", True)
    assert (stats.ready, stats.scheduled, stats.active, stats.dead) == (1, 1, 1, 1)
    assert (stats.enqueued, stats.deliveries) == (4, 2)
    assert stats.settings.paused is None
    q.pause("out")
    assert q.stats().settings.paused == "out"
    named = set(QueueStats.__slots__)
    assert not named & {"blocked", "import_from", "import_rate"}


def test_a_missing_queue(q: Queue, raw: Raw) -> None:
    """QSTAT: an unused queue does not exist, and reading does not create it."""
    before = dump(raw)
    stats = q.stats()
    assert (stats.exists, stats.ready, stats.age, stats.idle) == (False, 0, None, None)
    assert {key for key in dump(raw) if b"{q}" in key} == {key for key in before if b"{q}" in key}


def test_age_and_idle_time(q: Queue, raw: Raw) -> None:
    """QSTAT … age, idle: seconds since the queue was created, and since its last change."""
    q.enqueue(b"a")
    advance(raw, q.ops, 100)
    stats = q.stats()
    assert stats.age == pytest.approx(100, abs=3)
    assert stats.idle == pytest.approx(100, abs=3)
    q.enqueue(b"b")
    advance(raw, q.ops, 50)
    stats = q.stats()
    assert stats.age == pytest.approx(150, abs=3)
    assert stats.idle == pytest.approx(50, abs=3)
    q.reserve(block=0)
    stats = q.stats()
    assert stats.idle == pytest.approx(0, abs=3)


def test_blocked_clients_are_the_servers(real_ps: Penstock, real_raw: Raw) -> None:
    """QSTAT … blocked: Redis counts blocked clients of the whole server; `info` has the number."""
    queue = real_ps.queue("q")
    reader = spawn(lambda: queue.reserve(block=None))
    reach_blocked(real_raw, 1)
    assert real_ps.info().blocked_clients == 1
    queue.enqueue(b"x")
    assert len(reader.result()) == 1
    reach_blocked(real_raw, 0)
    assert real_ps.info().blocked_clients == 0


def test_looking_from_the_head(q: Queue, raw: Raw) -> None:
    """QPEEK: the oldest first, in the order of delivery; no job is reserved."""
    q.enqueue_many(range(5))
    before = dump(raw)
    assert bodies(q.peek(3)) == [0, 1, 2]
    assert bodies(q.peek(9)) == [0, 1, 2, 3, 4]
    assert bodies(q.peek(2, start=3)) == [3, 4]
    assert q.peek(2, start=5) == []
    assert dump(raw) == before


def test_looking_from_the_tail(q: Queue, raw: Raw) -> None:
    """QPEEK … negative: the newest first; a negative start counts from the tail."""
    q.enqueue_many(range(5))
    assert bodies(q.peek(3, newest=True)) == [4, 3, 2]
    assert bodies(q.peek(9, newest=True)) == [4, 3, 2, 1, 0]
    assert bodies(q.peek(2, newest=True, start=1)) == [3, 2]
    assert bodies(q.peek(2, start=-2)) == [3, 4]
    assert bodies(q.peek(2, start=-4)) == [1, 2]
    assert bodies(q.peek(9, start=-5)) == [0, 1, 2, 3, 4]
    assert q.peek(9, start=-6) == []
    (oldest,) = q.reserve(block=0)
    oldest.release()
    assert bodies(q.peek(2, newest=True)) == [4, 3]
    assert bodies(q.peek(9, newest=True)) == bodies(q.peek(9))[::-1]
    assert q.stats().ready == 5


@pytest.mark.parametrize(
    "options, argument",
    [
        *(({"n": n}, "n") for n in (0, -1, 1.0, "1", True, None)),
        *(({"start": start}, "start") for start in (1.0, "0", True, None)),
        *(({"state": state}, "state") for state in ("", "queued", None, 1)),
    ],
    ids=str,
)
def test_bad_options_of_a_look(q: Queue, raw: Raw, options: dict[str, Any], argument: str) -> None:
    """QPEEK: a count below 1, a bad start or state is a typed error."""
    q.enqueue(b"x")
    refused(raw, lambda: q.peek(**options), argument)


# -- QSCAN -------------------------------------------------------------------------------------


def many_queues(ps: Penstock, count: int) -> list[str]:
    """Make queues, each with as many jobs as its number's last digit; return sorted names."""
    names = [f"queue {number:03d}" for number in range(count)]
    for name in names:
        ps.queue(name).configure(lease=5)
        if int(name[-1]):
            ps.queue(name).enqueue_many(range(int(name[-1])))
    return names


def all_queues(ps: Penstock, between: Callable[[], None], **options: Any) -> list[str]:
    """Return the names of a whole scan, page by page."""
    found: list[str] = []
    cursor = "0"
    for _ in range(MOST_PAGES):
        page = ps.scan_queues(cursor, **options)
        found += [queue.name for queue in page.queues]
        if page.cursor == "0":
            return found
        cursor = page.cursor
        between()
    raise AssertionError("the scan has no end")


def test_scanning_queues(ps: Penstock) -> None:
    """QSCAN; QSCAN … BUSYLOOP: all queues with their figures, page by page or in one loop."""
    assert list(ps.scan_queues_iter()) == []
    names = many_queues(ps, 40)
    assert set(all_queues(ps, lambda: None, n=7)) == set(names)
    looped = list(ps.scan_queues_iter())
    assert {queue.name for queue in looped} == set(names)
    assert all(queue.ready == int(queue.name[-1]) for queue in looped)


def test_a_page_of_queues(ps: Penstock) -> None:
    """QSCAN … COUNT: it roughly bounds a page; a scan of several pages ends."""
    names = many_queues(ps, 40)
    pages = 0

    def count() -> None:
        nonlocal pages
        pages += 1

    assert set(all_queues(ps, count, n=1000)) == set(names)
    whole, pages = pages, 0
    assert set(all_queues(ps, count, n=5)) == set(names)
    assert whole <= pages


def test_scanning_queues_by_length(ps: Penstock) -> None:
    """QSCAN … MINLEN, MAXLEN: queues with at least, and at most, this many waiting jobs."""
    names = many_queues(ps, 40)

    def found(**options: Any) -> list[str]:
        listed = [queue.name for queue in ps.scan_queues_iter(**options)]
        assert set(listed) == set(all_queues(ps, lambda: None, n=9, **options))
        return sorted(set(listed))

    assert found(min_length=7) == [name for name in names if int(name[-1]) >= 7]
    assert found(max_length=2) == [name for name in names if int(name[-1]) <= 2]
    assert found(min_length=4, max_length=4) == [name for name in names if name[-1] == "4"]
    assert found(max_length=0) == [name for name in names if name[-1] == "0"]


def test_scanning_queues_by_idle_time(ps: Penstock, raw: Raw) -> None:
    """QSCAN … MAXIDLE: queues with a change in that time."""
    for name in ("idle", "busy"):
        ps.queue(name).enqueue(b"x")
    advance(raw, ps.queue("idle").ops, 1000)
    assert [queue.name for queue in ps.scan_queues_iter(max_idle=500)] == ["busy"]
    assert len(list(ps.scan_queues_iter(max_idle=5000))) == 2


@pytest.mark.slow  # a short run has it in tests/_async/test_scan.py
def test_queues_that_come_and_go_during_a_scan(ps: Penstock) -> None:
    """QSCAN: a queue that exists from the first page to the last is in one of them."""
    names = many_queues(ps, 60)
    added = iter(range(10_000))

    def change() -> None:
        for _ in range(5):
            ps.queue(f"new {next(added)}").enqueue(b"x")

    assert set(names) <= set(all_queues(ps, change, n=3))


BAD_CURSORS = [
    "", "x", "-1", "+5", "0 ", "1.5", None, 0, b"0", True, "9" * 400, "0\n", "05", "\u0663",
    "h", "h-1", "h05", "r0-0", "r1-1", "18446744073709551616", "h18446744073709551616",
]  # fmt: skip
"""Cursors that no page returns: of queues or of jobs."""
BAD_COUNTS = [0, -1, 1.0, "1", True, None]


@pytest.mark.parametrize(
    "options, argument",
    [
        *(({"cursor": cursor}, "cursor") for cursor in BAD_CURSORS),
        *(({"n": n}, "n") for n in BAD_COUNTS),
        *(({"min_length": value}, "min_length") for value in (-1, 1.5, "1", True)),
        *(({"max_length": value}, "max_length") for value in (-1, 1.5, "1", True)),
        *(({"max_idle": value}, "max_idle") for value in (-1, "1", True, math.nan)),
    ],
    ids=str,
)
def test_bad_options_of_a_queue_scan(
    ps: Penstock, q: Queue, raw: Raw, options: dict[str, Any], argument: str
) -> None:
    """QSCAN … cursor; QSCAN … COUNT: a cursor that is not from a page, a count
    below 1, a bad filter.
    """
    q.enqueue(b"x")
    refused(raw, lambda: ps.scan_queues(**options), argument)


# -- JSCAN -------------------------------------------------------------------------------------


def all_jobs(q: Queue, between: Callable[[], object], **options: Any) -> list[str]:
    """Return the ids of a whole scan, page by page."""
    found: list[str] = []
    cursor = "0"
    for _ in range(MOST_PAGES):
        page = q.jobs(**options).page(cursor)
        found += page.ids
        if page.cursor == "0":
            return found
        cursor = page.cursor
        between()
    raise AssertionError("the scan has no end")


def spread(q: Queue, each: int) -> dict[str, set[str]]:
    """Return the ids of this many jobs in each state."""
    ids = {"active": set(q.enqueue_many([LONG] * each).ids)}
    q.reserve(each, block=0)
    ids["dead"] = set(q.enqueue_many([LONG] * each).ids)
    q.bury(q.reserve(each, block=0))
    ids["scheduled"] = set(q.enqueue_many([LONG] * each, delay=600).ids)
    ids["ready"] = set(q.enqueue_many([LONG] * each).ids)
    return ids


def test_scanning_jobs(ps: Penstock, q: Queue) -> None:
    """JSCAN; JSCAN … BUSYLOOP: all jobs in every state, page by page or in one loop."""
    assert list(q.jobs()) == []
    ids = set().union(*spread(q, 30).values())
    q.enqueue("once", lease=0)
    taken = q.reserve(100, block=0)[-1]
    ids.add(taken.id)
    assert set(all_jobs(q, lambda: None, n=7)) == ids
    assert {view.id for view in q.jobs()} == ids
    assert {view.id for view in ps.jobs()} == ids


def test_a_page_of_jobs(q: Queue) -> None:
    """JSCAN … COUNT: it roughly bounds a page, and bodies are read only for the page."""
    ids = set(q.enqueue_many(range(500)).ids)
    page = q.jobs(n=50).page()
    assert 0 < len(page.ids) < 500
    assert page.cursor != "0"
    assert len(page.jobs) == len(page.ids)
    assert set(page.ids) | set(all_jobs(q, lambda: None, n=50)) == ids


def test_scanning_jobs_of_some_queues(ps: Penstock) -> None:
    """JSCAN … QUEUE: only the jobs of the named queues."""
    for name in "abc":
        ps.queue(name).enqueue_many([name] * 5)
    assert sorted(bodies(ps.jobs(["a", "c"]))) == ["a"] * 5 + ["c"] * 5
    assert sorted(bodies(ps.jobs())) == sorted("abc" * 5)
    assert list(ps.jobs(["never"])) == []


def test_scanning_jobs_by_state(ps: Penstock, q: Queue) -> None:
    """JSCAN … STATE: one state or several; each job has its state."""
    ids = spread(q, 11)
    for states in (["ready"], ["scheduled", "dead"], ["active", "ready", "dead"], [*ids]):
        wanted = set().union(*(ids[state] for state in states))
        assert set(all_jobs(q, lambda: None, n=4, state=states)) == wanted
        views = list(q.jobs(state=states))
        assert {view.id for view in views} == wanted
        assert all(view.id in ids[view.state] for view in views)
        assert {view.id for view in ps.jobs(state=states)} == wanted


@pytest.mark.parametrize("passed", [0, 25, 40, 100])
def test_a_scan_and_a_peek_agree(q: Queue, raw: Raw, passed: int) -> None:
    """JSCAN … STATE: states are those at the time of the page, as delays, leases and ttls end."""
    q.enqueue_many(["leased"] * 3, lease=20)
    q.enqueue_many(["once"] * 3, lease=0, ttl=30)
    dead = q.reserve(6, block=0)[0]
    dead.bury()
    q.enqueue_many(["delayed"] * 3, delay=35)
    q.enqueue_many(["expires"] * 3, ttl=30)
    q.enqueue_many(["ready"] * 3)
    advance(raw, q.ops, passed)
    for state in ("ready", "scheduled", "active", "dead"):
        views = list(q.jobs(state=[state]))
        assert {view.state for view in views} <= {state}
        peeked = sorted(view.id for view in q.peek(100, state=state))
        assert sorted(view.id for view in views) == peeked
        assert sorted(q.jobs([state]).page(full=False).ids) == peeked


def test_scanning_with_and_without_bodies(q: Queue) -> None:
    """JSCAN … REPLY: all data of a job, as in `show`, or its id only."""
    ids = one_in_each_state(q)
    whole = q.jobs().page()
    assert sorted(view.id for view in whole.jobs) == sorted(ids.values())
    for view in whole.jobs:
        again = shown(q, view.id)
        assert (again.state, again.body, again.due) == (view.state, view.body, view.due)
        assert (again.nacks, again.deliveries) == (view.nacks, view.deliveries)
    short = q.jobs().page(full=False)
    assert sorted(short.ids) == sorted(ids.values())
    assert list(short.jobs) == []


def stir(q: Queue, dice: random.Random) -> None:
    """Move some jobs from any state to another one."""
    for state, move in (
        ("ready", lambda ids: q.reserve(len(ids) or 1, block=0)),
        ("active", lambda ids: q.nack(ids, delay=600)),
        ("active", q.release),
        ("active", q.bury),
        ("scheduled", q.promote),
        ("ready", q.postpone),
        ("dead", q.redrive),
    ):
        ids = [view.id for view in q.peek(100, state=state)]
        move(dice.sample(ids, len(ids) // 3))


@pytest.mark.parametrize("seed", range(3))
def test_jobs_that_move_during_a_scan(q: Queue, raw: Raw, seed: int) -> None:
    """JSCAN: a job that exists from the first page to the last is in one of them, though it changes
    its state between any two; others may come and go.
    """
    dice = random.Random(seed)
    stay = set().union(*spread(q, 40).values())
    others: list[str] = []

    def change() -> None:
        stir(q, dice)
        q.delete(others[:3])
        del others[:3]
        others.extend(q.enqueue_many([LONG] * 5).ids)
        if dice.random() < 0.2:
            advance(raw, q.ops, 20)

    assert stay <= set(all_jobs(q, change, n=11 + seed))


def test_a_scan_with_a_busy_producer_ends(q: Queue) -> None:
    """JSCAN: jobs added after its first page do not prolong it."""
    ids = set(q.enqueue_many(range(30)).ids)
    assert ids <= set(all_jobs(q, lambda: q.enqueue_many(range(9)), n=9))


@pytest.mark.parametrize(
    "options, argument",
    [
        *(({"cursor": cursor}, "cursor") for cursor in BAD_CURSORS),
        *(({"n": n}, "n") for n in BAD_COUNTS),
        *(({"state": value}, "state") for value in (["queued"], "queued", [None], [1], 5)),
    ],
    ids=str,
)
def test_bad_options_of_a_job_scan(
    q: Queue, raw: Raw, options: dict[str, Any], argument: str
) -> None:
    """JSCAN … cursor; JSCAN … COUNT; JSCAN … STATE: a cursor that is not from a page, a count below
    1, an unknown state.
    """
    q.enqueue(b"x")
    search = {name: value for name, value in options.items() if name != "cursor"}
    refused(raw, lambda: q.jobs(**search).page(options.get("cursor", "0")), argument)
