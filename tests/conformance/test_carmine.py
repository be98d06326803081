"""The behaviour that users of Carmine's message queue rely on, by rows of a checklist.

A docstring begins with the rows that it tests; (F) marks an intended difference from Carmine.
WORKER has the rows that are about Carmine's worker and not about the queue.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest
import redis

from penstock import BadArgument, Dedup, Job, JobGone, Penstock, Queue, StaleReceipt
from penstock.embedded import EmbeddedServer
from tests.conformance import carmine
from tests.conformance.carmine import (
    ANSWERS,
    BEFORE,
    COMBINATIONS,
    DELAYS,
    ID,
    MODES,
    ROWS,
    WINDOWS,
    Row,
    Status,
    check_claims,
    mentions,
    seen,
)
from tests.crash.tasks import STEPS, STEPS_AFTER_RUN
from tests.support.backends import Backend
from tests.support.binaries import first_binary
from tests.support.keyspace import Raw, advance, check_invariant, dump, load_scripts
from tests.support.twins import spawn, wait_for
from tests.support.workers import Nursery

CHECKLIST = range(1, 25)
WORKER = {"C-17", "C-21", "C-23"}
"""Rows about Carmine's worker only, in test_carmine_worker.py."""
SOON = 3.0
"""Maximum of seconds until a consumer is woken; without a token it looks after 4."""
PATIENCE = 5.0
"""Maximum of seconds for something that need not wait, on a busy machine."""


@pytest.fixture
def q(ps: Penstock, raw: Raw) -> Iterator[Queue]:
    """A queue that does not exist yet; jobs and ids are checked at the end."""
    queue = ps.queue("q")
    yield queue
    check_invariant(raw)
    check_swept(raw, queue)


@pytest.fixture
def real_raw(real_backend: Backend) -> Raw:
    """A plain client of `real_backend`, which knows every script."""
    client = real_backend.sync_client()
    load_scripts(client)
    return client


@pytest.fixture
def real_q(real_backend: Backend) -> Iterator[Queue]:
    """A queue on `real_backend` that does not exist yet."""
    with Penstock(real_backend.sync_client(), owner="tester") as client:
        yield client.queue("q")


def check_swept(raw: Raw, q: Queue) -> None:
    """Sweep and check every id."""
    q.sweep()
    check_claims(raw, q.ops)


VARYING = (b"seen", b"off", b"alarm")


def held(raw: Raw, q: Queue) -> dict[bytes, Any]:
    """Return all keys except the stored replies of producers and the queues' clocks."""
    keys = dump(raw)
    meta = keys.get(q.ops.keys["meta"])
    if meta is not None:
        for field in [name for name in meta[0][1] if name in VARYING or name.startswith(b"@")]:
            del meta[0][1][field]
    return keys


def bodies(jobs: Any) -> list[Any]:
    """Return the bodies of the jobs."""
    return [job.body for job in jobs]


def drained(q: Queue) -> list[Any]:
    """Reserve and acknowledge jobs one by one, and return their bodies."""
    found = []
    while jobs := q.reserve(1, block=0):
        found += bodies(jobs)
        q.ack(jobs)
    return found


# -- the list ----------------------------------------------------------------------------------


def test_every_row_has_a_test_or_a_reason() -> None:
    """Each number of the checklist starts a docstring here, or is a row of the worker's tests."""
    tests = [one for name, one in globals().items() if name.startswith("test_")]
    heads = [(one.__doc__ or "").partition(":")[0] for one in tests]
    named = {f"C-{row}" for head in heads for row in re.findall(r"\bC-(\d+)\b", head)}
    assert named.isdisjoint(WORKER)
    assert named | WORKER == {f"C-{row}" for row in CHECKLIST}


def test_the_rows_are_complete() -> None:
    """Each state, each `on_duplicate` and each delay is in one row, with Carmine's answer."""
    asked = Counter(case for row in ROWS for case in product(row.before, row.modes, row.delays))
    assert asked == Counter(product(BEFORE, MODES, DELAYS))
    for row in ROWS:
        if any(BEFORE[name].theirs != "" for name in row.before):
            assert row.action in ANSWERS[row.theirs], row


# -- C-1, C-2: states and answers --------------------------------------------------------------


@pytest.mark.parametrize("name", BEFORE)
def test_each_status_of_carmine_exists(raw: Raw, q: Queue, name: str) -> None:
    """C-1: each status, and two that Carmine lacks: at most once, and taken from the enqueue on."""
    BEFORE[name].reach(raw, q)
    assert seen(q) == BEFORE[name].status
    found = q.dedup_status(ID)
    if found is not None:
        assert found.dedup_id == ID
        for view in filter(None, (found.job, found.successor)):
            assert (view.dedup_id, view.queue) == (ID, "q")


def test_every_combination_is_a_state() -> None:
    """C-1: each combination of present, done, lock, backoff and requeue is one of these states."""
    statuses = {
        ("nx", False): None, ("nx", True): None,
        ("queued", False): "queued", ("queued", True): "queued-with-backoff",
        ("locked", False): "locked", ("locked", True): "locked",
        ("done", False): "done-awaiting-gc", ("done", True): "done-with-backoff",
    }  # fmt: skip
    assert len(COMBINATIONS) == 2 * len(statuses)
    for (base, backoff, requeue), name in COMBINATIONS.items():
        theirs = statuses[base, backoff]
        if requeue and base in ("locked", "done"):
            theirs = f"{base}-with-requeue"
        assert BEFORE[name].theirs == theirs
    told = {before.theirs for before in BEFORE.values()} - {""}
    assert {BEFORE[name].theirs for name in COMBINATIONS.values()} == told


@pytest.mark.parametrize("name", BEFORE)
def test_each_way_to_add(raw: Raw, q: Queue, name: str) -> None:
    """C-2, C-7: the answer and the status after it; (F) a refusal changes nothing
    and names the job.
    """
    for row in ROWS:
        for options in product(row.modes, row.delays, WINDOWS) if name in row.before else ():
            q.clear()
            BEFORE[name].reach(raw, q)
            check_row(raw, q, row, *options)
            check_swept(raw, q)


def check_row(raw: Raw, q: Queue, row: Row, mode: str, delay: float, window: float | None) -> None:
    """Add "new", and compare the results."""
    case = f"{row.before}, {mode}, delay {delay}, window {window}"
    q.sweep()  # jobs that had ended do not matter here
    keys, before = held(raw, q), seen(q)
    answer = q.enqueue("new", dedup=Dedup(ID, on_duplicate=mode, window=window), delay=delay)
    assert (answer.action, answer.state) == (row.action, row.state), case
    assert answer.duplicate == (row.action in ("refused", "updated")), case
    assert seen(q) == row.after, case
    view = q.show(answer.id) if answer.id else None
    if row.action == "refused":
        assert before == row.after, case
        if not any(state.startswith("lapsed") for state in row.before):  # their delivery ends
            assert held(raw, q) == keys, case
        assert (view and view.body) == row.after.job, case
    else:
        assert view is not None, case
        assert (view.body, view.dedup_id) == ("new", ID), case


@pytest.mark.parametrize("name", BEFORE)
def test_each_job_runs_once_and_in_turn(raw: Raw, q: Queue, name: str) -> None:
    """C-2, C-5: after any adding in any state every job ends, and the id is free."""
    for row in ROWS:
        for mode in row.modes if name in row.before else ():
            q.clear()
            BEFORE[name].reach(raw, q)
            q.enqueue("new", dedup=Dedup(ID, on_duplicate=mode))
            due = []
            for seconds in (0, 31, 601, 601):
                advance(raw, q.ops, seconds)
                due += drained(q)
            expected = [row.after.job, row.after.successor]
            if name == "once":
                expected[0] = None  # it is not delivered again; the next one waits for its ttl
                advance(raw, q.ops, 86_400)
                q.sweep()
                due += drained(q)
            if name == "started":
                expected.append("old")  # its lease has ended
            assert sorted(due) == sorted(filter(None, expected)), (name, mode)
            assert seen(q) is None, (name, mode)


# -- C-3: delays -------------------------------------------------------------------------------


def lateness(q: Queue, count: int) -> list[float]:
    """Return the lateness of some delayed jobs at an idle consumer, by the server's clock."""
    late = []
    for i in range(count):
        answer = q.enqueue(i, delay=0.3, dedup_id=f"mine {i}")
        assert q.reserve(block=0) == []
        view = q.show(answer.id)
        assert view is not None
        assert view.due is not None
        (job,) = q.reserve(block=30)
        late.append(job.delivered - view.due)
        assert job.ack()
    return late


def test_a_delayed_job_is_on_time(real_q: Queue) -> None:
    """C-3: never before its time; with 1,000 later jobs the best of some is at most 250 ms late."""
    real_q.enqueue_many(range(1000), delay=3600, dedup_id=str)
    late = lateness(real_q, 4)
    assert min(late) >= 0
    assert min(late) < 0.25
    assert max(late) < PATIENCE


@pytest.mark.slow  # a short run has 1,000 later jobs, above
def test_a_delayed_job_is_on_time_with_many_others() -> None:
    """C-3 (F): with 100,000 later jobs too; Carmine checks them one by one."""
    with EmbeddedServer(first_binary()) as server, Penstock(server.url) as ps:
        q = ps.queue("q")
        q.enqueue_many(range(100_000), delay=3600, dedup_id=str)
        late = lateness(q, 4)
        assert min(late) >= 0
        assert min(late) < 0.25
        assert max(late) < PATIENCE


# -- C-4 to C-8: duplicates and attempts -------------------------------------------------------


def test_an_update_keeps_everything_except_content(raw: Raw, q: Queue) -> None:
    """C-4: content is replaced; position, age and attempts stay, (F) and the lease
    if none is given.
    """
    q.enqueue("first", dedup_id="first")
    q.enqueue("old", dedup_id=ID, lease=7, headers={"a": "1"})
    q.enqueue("last", dedup_id="last")
    assert q.nack(q.reserve(2, block=0), delay=0).done == 2
    (_, before) = q.peek(2)
    advance(raw, q.ops, 10)
    assert q.enqueue("refused", dedup_id=ID).action == "refused"
    answer = q.enqueue("new", dedup=Dedup(ID, on_duplicate="update"))
    (_, after, _) = q.peek(3)
    assert (answer.id, answer.action) == (before.id, "updated")
    assert bodies(q.peek(3)) == ["first", "new", "last"]
    assert (after.created, after.attempts, after.nacks, after.lease) == (before.created, 1, 1, 7)
    assert after.age >= before.age + 10
    assert after.headers == {}
    assert q.enqueue("newest", dedup=Dedup(ID, on_duplicate="update"), lease=9).action == "updated"
    jobs = q.reserve(3, block=0)
    assert [(job.body, job.attempt, job.lease) for job in jobs[:2]] == [
        ("first", 2, 30),
        ("newest", 2, 9),
    ]
    assert jobs[1].id == answer.id


@pytest.mark.parametrize("end", ["ack", "bury", "nack", "lapse", "delete", "ack by id", "settle"])
def test_one_successor_runs_after_the_one_at_work(raw: Raw, q: Queue, end: str) -> None:
    """C-5: it has attempt 1 and its own content and lease; a second is refused or replaces it."""
    q.configure(max_attempts=2, max_crashes=2)
    q.enqueue("old", dedup_id=ID, lease=7)
    q.reserve(block=0)[0].nack(delay=0)
    (job,) = q.reserve(block=0)
    assert job.attempt == 2
    assert q.enqueue("no", dedup_id=ID).action == "refused"
    first = q.enqueue("next", dedup=Dedup(ID, on_duplicate="requeue"), lease=8)
    assert q.enqueue("no", dedup=Dedup(ID, on_duplicate="requeue")).action == "refused"
    again = q.enqueue("new", dedup=Dedup(ID, on_duplicate="requeue+update"), lease=9)
    assert (again.id, again.action) == (first.id, "updated")
    assert q.reserve(10, block=0) == []
    ends: dict[str, Callable[[], Any]] = {
        "ack": job.ack,
        "bury": job.bury,
        "nack": job.nack,
        "lapse": lambda: advance(raw, q.ops, 8),
        "delete": lambda: q.delete([job.id]),
        "ack by id": lambda: q.ack([job.id]),
        "settle": lambda: q.ack_and_reserve([job], 1),
    }
    done = ends[end]()
    settled = done[1] if end == "settle" else []
    assert bool(settled) == (end == "settle")
    jobs = settled or q.reserve(10, block=0)
    assert [(one.id, one.body, one.attempt, one.lease) for one in jobs] == [(first.id, "new", 1, 9)]
    assert seen(q) == Status("active", "new")


def test_a_window_after_success(raw: Raw, q: Queue) -> None:
    """C-6: refused while the window is open, and then accepted."""
    q.enqueue("old", dedup=Dedup(ID, window=10))
    assert drained(q) == ["old"]
    advance(raw, q.ops, 8)
    refused = q.enqueue("no", dedup_id=ID)
    assert (refused.action, refused.state, refused.id) == ("refused", "window", "")
    advance(raw, q.ops, 3)
    assert q.enqueue("new", dedup_id=ID).action == "added"
    assert q.enqueue("no", dedup_id=ID).action == "refused"
    assert drained(q) == ["new"]


@pytest.mark.parametrize("asked", ["while it ran", "in the window"])
def test_a_requeue_runs_when_the_window_ends(raw: Raw, q: Queue, asked: str) -> None:
    """C-6: accepted at once, and run after the window, for a requeue before or in the window."""
    q.enqueue("old", dedup=Dedup(ID, window=10))
    (job,) = q.reserve(block=0)
    if asked == "in the window":
        job.ack()
    assert q.enqueue("new", dedup=Dedup(ID, on_duplicate="requeue")).action == "requeued"
    if asked == "while it ran":
        job.ack()
    found = q.dedup_status(ID)
    assert found is not None
    assert found.job is not None
    assert (found.state, found.job.body) == ("window", "new")
    assert found.window_ends == found.job.due
    assert drained(q) == []
    advance(raw, q.ops, 8)
    assert drained(q) == []
    advance(raw, q.ops, 3)
    assert drained(q) == ["new"]
    assert seen(q) is None  # the second one had no window


def test_an_id_is_free_when_its_job_is_done(q: Queue) -> None:
    """C-7: without a window the id is accepted again without any option."""
    for serial in range(3):
        assert q.enqueue(serial, dedup_id=ID).action == "added"
        assert drained(q) == [serial]


def test_attempts(raw: Raw, q: Queue) -> None:
    """C-8: 1 at first, one more after a retry or an ended lease, 1 again after a requeue."""
    q.enqueue("old", dedup_id=ID)
    tries = []
    ends = (lambda job: job.nack(delay=0), lambda _: advance(raw, q.ops, 31), Job.ack)
    for end in ends:
        (job,) = q.reserve(block=0)
        tries.append(job.attempt)
        q.enqueue("new", dedup=Dedup(ID, on_duplicate="requeue"))
        end(job)
    (job,) = q.reserve(block=0)
    assert [*tries, job.attempt] == [1, 2, 3, 1]
    assert job.body == "new"


# -- C-9 to C-12: reports of a consumer --------------------------------------------------------


def test_a_retry(raw: Raw, q: Queue) -> None:
    """C-9: after the delay, or at once without one. The id is kept."""
    q.enqueue("x", dedup_id=ID)
    (job,) = q.reserve(block=0)
    job.nack(delay=0)
    (job,) = q.reserve(block=0)
    job.nack(delay=100)
    assert q.enqueue("no", dedup_id=ID).action == "refused"
    assert q.reserve(block=0) == []
    advance(raw, q.ops, 90)
    assert q.reserve(block=0) == []
    advance(raw, q.ops, 20)
    assert bodies(q.reserve(block=0)) == ["x"]


def test_a_handler_that_raises(q: Queue, caplog: pytest.LogCaptureFixture) -> None:
    """C-10 (F): retried; with a single attempt a dead letter at once, and the id is free."""
    q.configure(max_attempts=1)
    q.enqueue("bad", dedup_id=ID)
    q.enqueue("good", dedup_id="good")
    for job in q.consume(block=0.05):
        with job:
            if job.body == "bad":
                raise ValueError("no")
    assert "ValueError: no" in caplog.text
    (letter,) = q.peek(state="dead")
    assert (letter.body, letter.error) == ("bad", "ValueError: no")
    assert (q.stats().acked, seen(q), seen(q, "good")) == (1, None, None)


def test_a_handler_that_returns(q: Queue) -> None:
    """C-10: leaving the block without a report is success; no return value is a status."""
    q.enqueue("x", dedup_id=ID)
    for job in q.consume(block=0.05):
        with job:
            pass
    assert (q.stats().acked, seen(q)) == (1, None)


def test_a_lease_that_ends(raw: Raw, q: Queue) -> None:
    """C-11: the job is delivered again, once; its own lease overrides the queue's."""
    q.configure(lease=100)
    q.enqueue("own", lease=10, dedup_id=ID)
    q.enqueue("default", dedup_id="default")
    assert len(q.reserve(10, block=0)) == 2
    advance(raw, q.ops, 11)
    again = q.reserve(10, block=0)
    assert [(job.body, job.attempt) for job in again] == [("own", 2)]
    assert q.ack(again)
    advance(raw, q.ops, 90)
    assert bodies(q.reserve(10, block=0)) == ["default"]


@pytest.mark.parametrize("wrong", [-3600, 3600])
def test_a_wrong_clock_of_a_client(q: Queue, monkeypatch: pytest.MonkeyPatch, wrong: int) -> None:
    """C-11 (F): leases, delays and windows use the server's clock."""
    clock = time.time
    monkeypatch.setattr(time, "time", lambda: clock() + wrong)
    monkeypatch.setattr(time, "time_ns", lambda: int((clock() + wrong) * 1e9))
    q.enqueue("held", dedup_id="held", lease=60)
    assert len(q.reserve(block=0)) == 1
    q.enqueue("done", dedup=Dedup("done", window=60))
    assert drained(q) == ["done"]
    q.enqueue("later", dedup_id="later", delay=60)
    assert q.reserve(10, block=0) == []
    assert seen(q, "held") == Status("active", "held")
    assert seen(q, "done") == Status("window", None, window=True)
    assert seen(q, "later") == Status("scheduled", "later")


LATE: dict[str, Callable[[Job], Any]] = {
    "ack": Job.ack,
    "nack": lambda job: job.nack(delay=0),
    "release": Job.release,
    "bury": Job.bury,
    "extend": lambda job: job.extend(600),
}


@pytest.mark.parametrize("say", LATE)
def test_a_late_finisher_and_the_holder(raw: Raw, q: Queue, say: str) -> None:
    """C-12 (F): refused; the holder's lease, its successor and the id do not change."""
    q.enqueue("old", dedup=Dedup(ID, window=60))
    (late,) = q.reserve(block=0)
    advance(raw, q.ops, 31)
    (holder,) = q.reserve(block=0)
    q.enqueue("new", dedup=Dedup(ID, on_duplicate="requeue"))
    keys = held(raw, q)
    with pytest.raises(StaleReceipt):
        LATE[say](late)
    assert held(raw, q) == keys
    assert seen(q) == Status("active", "old", "new")
    assert holder.ack()
    assert seen(q) == Status("window", "new", window=True)


@pytest.mark.parametrize("later", ["added", "successor", "window", "in work"])
@pytest.mark.parametrize("say", LATE)
def test_a_late_finisher_and_a_later_job(raw: Raw, q: Queue, say: str, later: str) -> None:
    """C-12 (F): its job is gone; a later job with the same id is not affected."""
    q.enqueue("old", dedup=Dedup(ID, window=60 if later == "window" else None))
    (late,) = q.reserve(block=0)
    advance(raw, q.ops, 31)
    (holder,) = q.reserve(block=0)
    if later == "successor":
        q.enqueue("new", dedup=Dedup(ID, on_duplicate="requeue"))
    assert holder.ack()
    q.enqueue("new", dedup=Dedup(ID, on_duplicate="requeue"))
    if later == "in work":
        assert bodies(q.reserve(block=0)) == ["new"]
    keys, status = held(raw, q), seen(q)
    assert status is not None
    assert status.job == "new"
    if say == "extend":
        with pytest.raises(JobGone):
            late.extend(600)
    else:
        assert LATE[say](late) is False
    assert (held(raw, q), seen(q)) == (keys, status)
    advance(raw, q.ops, 61)
    assert drained(q) == ["new"]


# -- C-13, C-14: remaining data ----------------------------------------------------------------


@pytest.mark.parametrize(
    "after", ["ack", "window", "requeue", "delete", "ttl", "throttle", "purge"]
)
def test_nothing_mentions_an_id_that_is_free(raw: Raw, q: Queue, after: str) -> None:
    """C-13 (F): no key has the id when the job is finished and its window is over."""
    name = "an id; like=no other 日本"
    q.enqueue("beside", dedup_id="beside", delay=3600)
    chosen = {
        "window": Dedup(name, window=60),
        "requeue": Dedup(name, window=60),
        "throttle": Dedup(name, window=60, until="enqueued"),
    }
    ttl = 60 if after == "ttl" else None
    answer = q.enqueue("x", dedup=chosen.get(after, Dedup(name)), ttl=ttl)
    assert mentions(raw, name)
    if after == "ttl":
        advance(raw, q.ops, 61)
    elif after == "delete":
        assert q.delete([answer.id])
    elif after == "purge":
        assert q.purge("ready") == 1
    else:
        q.ack(q.reserve(block=0))
    if after == "requeue":
        q.enqueue("y", dedup=Dedup(name, on_duplicate="requeue"))
        assert mentions(raw, name)
        advance(raw, q.ops, 61)
        q.ack(q.reserve(block=0))
    advance(raw, q.ops, 61)
    q.sweep()
    assert mentions(raw, name) == []
    assert seen(q, "beside") == Status("scheduled", "beside")


@pytest.mark.slow
def test_a_thousand_cycles_leave_no_more_than_one(raw: Raw, q: Queue) -> None:
    """C-14 (F): a thousand cycles of a job that is requeued while it runs, and runs again."""
    q.enqueue(0, dedup_id=ID)
    sizes = []
    (job,) = q.reserve(block=0)
    for cycle in range(1, 1001):
        assert q.enqueue(cycle, dedup=Dedup(ID, on_duplicate="requeue")).action == "requeued"
        assert job.ack()
        (job,) = q.reserve(1, block=0)
        assert job.body == cycle
        if cycle in (1, 1000):
            sizes.append(sizes_of(raw))
    assert sizes[0] == sizes[1]
    assert job.ack()
    assert q.stats().acked == 1001
    assert seen(q) is None


def sizes_of(raw: Raw) -> dict[bytes, int]:
    """Return the number of elements of each key, except meta, in which a new queue differs."""
    readers = {b"hash": raw.hlen, b"zset": raw.zcard, b"list": raw.llen, b"stream": raw.xlen}
    keys = [key for key in raw.scan_iter(count=1000) if not key.endswith((b":meta", b":wake"))]
    return {key: readers.get(raw.type(key), raw.exists)(key) for key in keys}


# -- C-15, C-16: no consumer starves or spins --------------------------------------------------


@pytest.mark.parametrize("what", ["retry", "delayed", "lapsed", "requeued"])
def test_fresh_jobs_do_not_starve_a_due_one(raw: Raw, q: Queue, what: str) -> None:
    """C-15 (F): a due job is delivered before jobs that came after its due time."""
    q.enqueue("due", dedup=Dedup(ID, window=20), delay=20 if what == "delayed" else 0)
    for job in q.reserve(block=0):
        if what == "retry":
            job.nack(delay=20)
        elif what == "requeued":
            q.enqueue("due", dedup=Dedup(ID, on_duplicate="requeue"))
            job.ack()
    waited = 0
    for serial in range(100):
        q.enqueue(serial, dedup_id=f"fresh {serial}")
        advance(raw, q.ops, 0.5)
        (job,) = q.reserve(1, block=0)
        job.ack()
        if job.body == "due":
            waited = serial
    assert 0 < waited <= 2 * (30 if what == "lapsed" else 20) + 2


def test_an_idle_consumer_is_quiet(real_q: Queue, real_raw: Raw) -> None:
    """C-16 (F): at most two commands a second on average, after the first jobs too."""
    real_q.enqueue("first", dedup=Dedup(ID, window=3600))
    assert drained(real_q) == ["first"]
    real_q.enqueue("waits", dedup=Dedup(ID, on_duplicate="requeue"))
    before = commands(real_raw)
    start = time.monotonic()
    assert real_q.reserve(block=4) == []
    seconds = time.monotonic() - start
    assert 2 <= commands(real_raw) - before <= 2 * seconds


def commands(raw: Raw) -> int:
    """Count the commands of clients, without those inside of scripts."""
    stats = raw.info("commandstats")
    sent = ("evalsha", "eval", "blpop", "hget", "wait", "time", "hgetall", "script|load")
    return sum(stats[f"cmdstat_{name}"]["calls"] for name in sent if f"cmdstat_{name}" in stats)


def test_an_idle_consumer_starts_at_once(real_q: Queue, real_raw: Raw) -> None:
    """C-16 (F): the best of some jobs with new ids starts within 100 ms of its enqueue."""
    waits = []
    for serial in range(5):
        consumer = spawn(real_q.reserve, 1, block=30)
        wait_for(lambda: real_raw.info("clients")["blocked_clients"] == 1)
        assert real_q.enqueue(serial, dedup_id=str(serial)).action == "added"
        (job,) = consumer.result()
        waits.append(job.delivered - job.created)
        assert job.ack()
    assert min(waits) < 0.1
    assert max(waits) < PATIENCE


@pytest.mark.parametrize("what", ["delay", "retry", "window", "successor"])
def test_an_idle_consumer_wakes_by_itself(real_q: Queue, real_raw: Raw, what: str) -> None:
    """C-16 (F): it wakes for the next due job without a message from another client."""
    real_q.enqueue(
        "due",
        dedup=Dedup(ID, window=0.5 if what == "window" else None),
        delay=0.5 if what == "delay" else 0,
    )
    jobs = real_q.reserve(block=0)
    if what == "retry":
        real_q.nack(jobs, delay=0.5)
    elif what != "delay":
        real_q.enqueue("due", dedup=Dedup(ID, on_duplicate="requeue"))
    consumer = spawn(real_q.reserve, 1, block=30)
    wait_for(lambda: real_raw.info("clients")["blocked_clients"] == 1)
    if what in ("window", "successor"):
        assert real_q.ack(jobs)
    (found,) = consumer.result(SOON)
    assert (found.body, found.dedup_id) == ("due", ID)


# -- C-18 to C-20, C-22: looking and clearing --------------------------------------------------


def test_counts_are_exact(raw: Raw, q: Queue) -> None:
    """C-18: waiting, active and delayed, in one call; (F) ended leases are not active."""
    for serial in range(4):
        q.enqueue(serial, dedup_id=f"ready {serial}")
        q.enqueue(serial, dedup_id=f"later {serial}", delay=600)
    jobs = q.reserve(3, block=0)
    q.enqueue("next", dedup=Dedup("ready 0", on_duplicate="requeue"))
    q.enqueue("short", dedup_id="short", ttl=5)
    assert counts(q) == (2, 5, 3)
    advance(raw, q.ops, 31)
    assert counts(q) == (4, 5, 0)  # three leases and a ttl have ended
    advance(raw, q.ops, 600)
    assert counts(q) == (8, 1, 0)  # a successor has no due time
    assert q.ack(jobs[:1])  # it has no other holder
    assert counts(q) == (8, 0, 0)


def counts(q: Queue) -> tuple[int, int, int]:
    """Count the jobs: waiting, delayed, active."""
    stats = q.stats()
    return stats.ready, stats.scheduled, stats.active


def test_the_content_of_a_queue(raw: Raw, q: Queue) -> None:
    """C-19: id, body, state, attempts, remaining delay and age of every job, page by page."""
    expected: dict[str, tuple[str, int]] = {}
    for serial in range(30):
        name = f"job {serial}"
        state = ("ready", "scheduled", "active")[serial % 3]
        q.enqueue({"n": serial}, dedup_id=name, delay=600 if state == "scheduled" else 0)
        expected[name] = (state, int(state == "active"))
    jobs = {job.body["n"]: job for job in q.reserve(20, block=0)}
    for serial, job in jobs.items():
        if serial % 3 == 0:
            job.nack(delay=0)
            expected[f"job {serial}"] = ("ready", 1)
    advance(raw, q.ops, 20)
    views = list(q.jobs(n=4))
    assert len(views) == len({view.id for view in views}) == 30
    for view in views:
        state, attempts = expected[view.dedup_id or ""]
        assert (view.state, view.attempts) == (state, attempts)
        assert view.body == {"n": int((view.dedup_id or "").removeprefix("job "))}
        assert 20 <= view.age < 100
        if state == "scheduled":
            assert view.next_in is not None
            assert 480 < view.next_in <= 580


def test_clear(raw: Raw, ps: Penstock) -> None:
    """C-20: every key of the queue is removed, with ids and windows; other queues stay."""
    raw.set("beside", "it")
    names = ("a", "b", "ab*")
    for name in names:
        one = ps.queue(name)
        one.configure(max_length=5)
        one.enqueue("old", dedup=Dedup(ID, window=60))
        one.ack(one.reserve(block=0))
        one.enqueue("new", dedup=Dedup(ID, on_duplicate="requeue"))
        one.enqueue("more", dedup_id="more")
    kept = {key: value for key, value in dump(raw).items() if b"{a}" not in key}
    assert ps.queues() == ["a", "ab*", "b"]
    assert ps.queues("a*") == ["a", "ab*"]
    assert ps.queues("[b]") == ["b"]
    assert ps.queue("a").clear() == 2
    assert ps.queue("a").clear() == 0
    assert not raw.keys("penstock:{a}*")
    registry = {key: value for key, value in dump(raw).items() if b"{a}" not in key}
    assert registry.pop(b"penstock:queues") != kept.pop(b"penstock:queues")
    assert registry == kept
    assert ps.queue("a").dedup_status(ID) is None
    assert ps.queue("a").enqueue("again", dedup_id=ID).action == "added"
    assert ps.clear(["a", "missing", "b"]) == ["a", "b"]
    assert ps.queues() == ["ab*"]


def test_clear_all(backend: Backend, raw: Raw, ps: Penstock) -> None:
    """C-20: all queues of the prefix and nothing else, if the prefix is repeated."""
    raw.set("beside", "it")
    with Penstock(backend.sync_client(), prefix="other") as other:
        for queue in (ps.queue("a"), ps.queue("b"), other.queue("c")):
            queue.enqueue("body", dedup_id="an id")
        before = dump(raw)
        for wrong in ("", "other", "*", "penstock*", None):
            prefix: Any = wrong
            with pytest.raises(BadArgument, match=r"^confirm="):
                ps.clear_all(confirm=prefix)
        assert dump(raw) == before
        assert ps.clear_all(confirm="penstock") == ["a", "b"]
        assert ps.clear_all(confirm="penstock") == []
        assert other.queues() == ["c"]
        assert seen(other.queue("c"), "an id") == Status("ready", "body")
    assert raw.get("beside") == b"it"
    assert set(mentions(raw, "an id")) == {b"other:{c}:dedup", b"other:{c}:ready"}


def test_figures(raw: Raw, q: Queue) -> None:
    """C-22: counts by result, the length of the queue, and the queueing time of each delivery."""
    for serial in range(6):
        q.enqueue(serial, dedup_id=str(serial))
    assert q.enqueue("no", dedup_id="0").action == "refused"
    advance(raw, q.ops, 5)
    jobs = q.reserve(5, block=0)
    assert all(5 <= job.delivered - job.created < 5 + PATIENCE for job in jobs)
    jobs[0].ack()
    jobs[1].nack(delay=60)
    jobs[2].release()
    jobs[3].bury()
    advance(raw, q.ops, 31)
    again = q.reserve(10, block=0)
    assert sorted((job.body, job.attempt) for job in again) == [(2, 1), (4, 2), (5, 1)]
    stats = q.stats()
    assert (stats.enqueued, stats.acked, stats.nacked, stats.released) == (6, 1, 1, 1)
    assert (stats.died, stats.crashed, stats.deliveries) == (1, 1, 8)
    assert (stats.ready, stats.active, stats.scheduled, stats.dead) == (0, 3, 1, 1)


# -- C-24: all together ------------------------------------------------------------------------


@pytest.mark.slow  # a short run has it with workers, in test_carmine_worker.py
def test_two_workers_of_four_threads(real_backend: Backend) -> None:
    """C-24: 10,000 jobs are delivered once each; no lease ends, and no id is left."""
    total = 10_000
    taken: list[int] = []
    with (
        Penstock(real_backend.sync_client()) as one,
        Penstock(real_backend.sync_client()) as other,
    ):
        q = one.queue("q")

        def work(queue: Queue) -> None:
            for job in queue.consume(batch=50, block=1):
                with job:
                    taken.append(job.body)

        workers = [spawn(work, ps.queue("q")) for ps in (one, other) for _ in range(4)]
        answers = q.enqueue_many(range(total), dedup_id=str)
        assert {answer.action for answer in answers} == {"added"}
        for worker in workers:
            worker.result(60)
        assert sorted(taken) == list(range(total))
        stats = q.stats()
        assert (stats.acked, stats.deliveries, stats.crashed) == (total, total, 0)
        assert real_backend.sync_client().exists(q.ops.keys["dedup"]) == 0


def test_one_of_many_producers_is_first(real_backend: Backend) -> None:
    """C-2, C-24: eight producers add the same ids at once: one is told so, the job exists once."""
    ready = threading.Barrier(8)
    with Penstock(real_backend.sync_client()) as ps:
        q = ps.queue("q")

        def produce(mode: str) -> list[tuple[str, str]]:
            ready.wait()
            answers = q.enqueue_many(range(300), dedup=Dedup(str, on_duplicate=mode))
            return [(answer.id, answer.action) for answer in answers]

        modes = ("refuse", "update", "requeue", "debounce") * 2
        producers = [spawn(produce, mode) for mode in modes]
        answers = [producer.result(60) for producer in producers]
        for told in zip(*answers, strict=True):
            assert [action for _, action in told].count("added") == 1
            assert len({job_id for job_id, _ in told}) == 1
        assert (q.stats().ready, q.stats().enqueued) == (300, 300)


# -- a client that is killed -------------------------------------------------------------------


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    """The nursery for clients to be killed."""
    with Nursery(carmine.__name__) as made:
        yield made


@pytest.fixture(scope="module")
def crash_server() -> Iterator[EmbeddedServer]:
    """A server that exists longer than its clients."""
    with EmbeddedServer(first_binary(), tcp=True) as server:
        yield server


def kill(
    nursery: Nursery, server: EmbeddedServer, q: Queue, operation: str, step: str, **options: Any
) -> None:
    """Let a client of the queue die at a step of a call."""
    child = nursery.start(
        "killed", url=server.url, queue=q.name, operation=operation, step=step, options=options
    )
    assert child.next_event() == "about to send"
    if step == "sent":
        server.pause()
    try:
        child.send("go")
        assert child.wait() == []
    finally:
        if step == "sent":
            server.resume()
    assert child.killed


KILLED: dict[str, tuple[str, Status | None, Status | None]] = {
    "claim": ("free", None, Status("ready", "mine")),
    "requeue": ("active", Status("active", "old"), Status("active", "old", "mine")),
    "update": ("ready", Status("ready", "old"), Status("ready", "mine")),
    "reserve": ("ready", Status("ready", "old"), Status("active", "old")),
    "ack": ("ready", Status("active", "old"), None),
    "ack, followed": ("failed, followed", Status("active", "old", "next"), Status("ready", "next")),
    "settle, followed": (
        "failed, followed", Status("active", "old", "next"), Status("ready", "next"),
    ),
    "nack, followed": (
        "failed, followed", Status("active", "old", "next"), Status("ready", "old", "next"),
    ),
}  # fmt: skip
"""Call -> the state of the id before it, the status without the call, and with it."""


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("call", KILLED)
def test_a_client_is_killed(
    crash_server: EmbeddedServer, nursery: Nursery, call: str, step: str
) -> None:
    """C-2, C-12: after kill -9 at any step the id is free or a live job's, and no job is lost."""
    name, without, with_it = KILLED[call]
    operation = {"requeue": "claim", "update": "claim"}.get(call, call.partition(",")[0])
    options = {"on_duplicate": call} if call in ("requeue", "update") else {}
    with Penstock(crash_server.url) as ps:
        q = ps.queue("q")
        with redis.Redis.from_url(crash_server.url) as raw:
            raw.flushall()
            load_scripts(raw)
            BEFORE[name].reach(raw, q)
            advance(raw, q.ops, 601 if "failed" in name else 0)
            kill(nursery, crash_server, q, operation, step, **options)
            expected = with_it if step in STEPS_AFTER_RUN else without
            assert seen(q) == expected
            check_swept(raw, q)
            check_invariant(raw)
            advance(raw, q.ops, 31)  # the lease of the dead client
            names = [] if expected is None else [expected.job, expected.successor]
            assert drained(q) == [body for body in names if body is not None]
            assert seen(q) is None
            assert q.enqueue("again", dedup_id=ID).action == "added"
