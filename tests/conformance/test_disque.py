"""Disque's ADDJOB and GETJOB, option by option; and the check of all tables of these tests.

Each row of ROWS is one of Disque's command table, with its tests or the reason why it has no
meaning for one node. The docstring of a test begins with its rows.
"""

from __future__ import annotations

import doctest
import math
import re
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    BadArgument,
    Durable,
    NotReplicated,
    Penstock,
    Queue,
    QueueFull,
    QueuePaused,
    StaleReceipt,
)
from tests.conformance import test_disque_looking as looking
from tests.conformance import test_disque_pause as pause
from tests.conformance import test_disque_promises as promises
from tests.conformance import test_disque_settling as settling
from tests.conformance import test_disque_suite as suite
from tests.conformance.disque import (
    SEVERAL_NODES,
    Rows,
    bodies,
    check_rows,
)
from tests.docs.test_coming_from import sessions
from tests.support.keyspace import Raw, advance, check_invariant, dump, reach_blocked
from tests.support.twins import spawn

GUIDE = Path(__file__).parents[2] / "docs" / "coming-from-disque.md"
ANSWERED = """
    ADDJOB REPLICATE DELAY RETRY TTL MAXLEN ASYNC GETJOB NOHANG TIMEOUT COUNT WITHCOUNTERS FROM
    ACKJOB FASTACK WORKING NACK ENQUEUE DEQUEUE DELJOB SHOW QLEN QSTAT QPEEK QSCAN MINLEN BUSYLOOP
    JSCAN QUEUE STATE REPLY PAUSE HELLO INFO CLUSTER MEET NODES LEAVING FORGET FLUSHALL
    ERR BADID NOREPL PAUSED NOJOB
"""
"""Disque's commands, options and error words that the guide has with a server's answer."""
TOLD = """
    TOOLATE OOM IMPORTRATE BCAST FORCE RESET CONFIG LOADJOB GETJOBS SCANJOBS SCANQUEUES PING PONG
    FAIL REPLJOB GOTJOB QUEUEJOB WILLQUEUE QUEUED SETACK GOTACK DELJOB NEEDJOBS YOURJOBS
"""
"""Those in its tables, and messages between nodes."""
DIFFERENT: Rows = {
    "copies": ("ADDJOB … REPLICATE", "ADDJOB … ASYNC", "02 fails, not enough nodes available"),
    "ttl": ("ADDJOB … TTL", "a.2 TTL end"),
    "retry time": ("ADDJOB … RETRY", "a.2 retry clock", "a.2 jitter"),
    "failures": ("NACK",),
    "`NACK`": ("NACK",),
    "order": ("a.2 put back",),
    "`GETJOB` of several queues": ("a.2 several queues",),
    "`GETJOB` that waits": ("GETJOB … TIMEOUT", "a.2 blocked GETJOB"),
    "`MAXLEN`": ("ADDJOB … MAXLEN",),
    "`ACKJOB` and other calls with ids": ("ACKJOB", "a.7 3"),
    "an id": ("ACKJOB",),
    "`JSCAN` of all queues": ("JSCAN", "JSCAN … QUEUE"),
    "a job is finished by": ("a.2 retry clock", "ACKJOB"),
    "an ack of an unknown id": ("ACKJOB … unknown id",),
    "`TOOLATE`": ("WORKING … TOOLATE",),
    "`RETRY 0`": ("ADDJOB … RETRY 0", "a.7 4"),
    "`RETRY 0` after a crash": ("a.5 crash", "03 RETRY 0 is never requeued"),
    "`PAUSE in`": ("PAUSE … in",),
    "a restart": ("a.5 crash", "PAUSE … restart"),
    "counters": ("a.1 counters",),
    "`OOM`": ("a.4 at 95 %", "a.4 at 100 %"),
    "an empty queue": ("04 idle queues expire",),
    "expired jobs": ("04 mass expiry",),
    "ids": ("a.1 ID", "a.1 ID alphabet"),
    "the name of a queue": ("ADDJOB",),
    "body": ("ADDJOB",),
}
"""Differences in the guide -> the rows of Disque with their tests."""

ROWS: Rows = {
    "Names": (
        "test_the_guide_has_every_name",
        "test_each_difference_of_the_guide_has_a_test",
    ),
    "ADDJOB": (
        "test_the_answer_is_an_id",
        "test_a_body_is_any_bytes",
        "test_a_queue_has_any_nonempty_name",
        "test_a_refused_add_writes_nothing",
    ),
    "ADDJOB … ms-timeout": ("test_bad_options_of_an_add", "test_copies_without_replicas"),
    "ADDJOB … REPLICATE": (
        "test_bad_options_of_an_add",
        "test_copies_without_replicas",
        "test_a_job_that_was_taken_is_not_withdrawn",
    ),
    "ADDJOB … DELAY": (
        "test_a_delayed_job",
        "test_bad_options_of_an_add",
        "test_a_delay_longer_than_the_ttl",
    ),
    "ADDJOB … RETRY": (
        "test_a_job_comes_back_after_its_own_lease",
        "test_the_default_lease",
        "test_a_lease_longer_than_the_ttl",
        "test_bad_options_of_an_add",
    ),
    "ADDJOB … RETRY 0": (
        "test_at_most_once",
        "test_at_most_once_with_copies",
        "test_a_nack_at_most_once",
    ),
    "ADDJOB … TTL": ("test_a_ttl_ends_a_job", "test_bad_options_of_an_add"),
    "ADDJOB … MAXLEN": (
        "test_a_bound_refuses",
        "test_waiting_jobs_count_for_the_bound",
        "test_expired_jobs_leave_room",
        "test_bad_options_of_an_add",
    ),
    "ADDJOB … ASYNC": ("test_without_copies_nothing_is_waited_for",),
    "ADDJOB … paused": ("test_an_add_to_a_paused_queue",),
    "ADDJOB … a repeated option": "a keyword is given once; Python refuses a repeated one",
    "ADDJOB … pipelined": "the connection is never blocked by an add; enqueue_many is one trip",
    "GETJOB": ("test_a_delivery",),
    "GETJOB … NOHANG": ("test_nothing_to_take",),
    "GETJOB … TIMEOUT": ("test_a_timeout", "test_a_wait_for_ever", "test_bad_options_of_a_take"),
    "GETJOB … COUNT": (
        "test_up_to_so_many",
        "test_a_blocked_reader_gets_several",
        "test_bad_options_of_a_take",
    ),
    "GETJOB … WITHCOUNTERS": ("test_the_two_counters",),
    "GETJOB … FROM": (
        "test_several_queues_from_left_to_right",
        "test_a_wait_on_several_queues",
        "test_a_paused_queue_among_several",
        "test_queues_that_cannot_be_read",
    ),
    "GETJOB … LEAVING": SEVERAL_NODES,
}


def test_every_row_is_held_or_has_a_reason() -> None:
    """The tables name existing tests, and each test names its rows."""
    modules = (sys.modules[__name__], settling, looking, pause, suite, promises)
    rows = {row: held for module in modules for row, held in module.ROWS.items()}
    assert len(rows) == sum(len(module.ROWS) for module in modules)
    check_rows(rows, *modules)
    for what, theirs in promises.UNTESTED.items():
        assert all(isinstance(rows[row], tuple) for row in theirs), what


def test_the_guide_has_every_name() -> None:
    """Names: each command, option and error word is in the guide, with a call and its answer (run
    by tests/docs), or in a table of replacements.
    """
    text = GUIDE.read_text(encoding="utf-8")
    assert set(ANSWERED.split()) - answered(text) == set()
    told = " ".join(row for rows in tables(text).values() for row in rows)
    assert set(TOLD.split()) - set(re.findall(r"[A-Z]+", told)) == set()


def test_each_difference_of_the_guide_has_a_test() -> None:
    """Names: each difference in the guide has a test of Disque's rows."""
    known = {**ROWS, **settling.ROWS, **looking.ROWS, **pause.ROWS, **suite.ROWS, **promises.ROWS}
    assert tables(GUIDE.read_text(encoding="utf-8"))["Different from Disque"] == list(DIFFERENT)
    for what, rows in DIFFERENT.items():
        assert all(isinstance(known[row], tuple) for row in rows), what


def answered(text: str) -> set[str]:
    """Return Disque's words in comments of calls that have an answer, or whose next call has it.

    A comment is behind its call, or in the line above it.
    """
    found: set[str] = set()
    text = re.sub(r"^>>> (# .*)\n(>>> .*)$", r"\2  \1", text, flags=re.MULTILINE)
    for session in sessions(text):
        examples = doctest.DocTestParser().get_examples(session)
        for example, follows in pairwise([*examples, doctest.Example("", "")]):
            if example.want or follows.want:
                found.update(re.findall(r"[A-Z]+", example.source.partition("#")[2]))
    return found


def tables(text: str) -> dict[str, list[str]]:
    """Return the first cells of the tables of a page, by section."""
    found: dict[str, list[str]] = {}
    for section in text.split("\n## ")[1:]:
        title, _, rest = section.partition("\n")
        cells = [line.split("|")[1].strip() for line in rest.splitlines() if line.startswith("|")]
        found[title] = [cell for cell in cells if cell.strip("-") not in ("", "Disque")]
    return found


# -- ADDJOB ------------------------------------------------------------------------------------


def test_the_answer_is_an_id(q: Queue) -> None:
    """ADDJOB: the answer names the job in 40 characters, and the job waits in its queue."""
    done = q.enqueue(b"body")
    assert len(done.id) == 40
    assert re.fullmatch(r"D-[0-9a-f]{8}-[-_0-9A-Za-z]{24}-[0-9a-f]{4}", done.id)
    (view,) = q.peek()
    assert (view.id, view.queue, view.raw, view.state) == (done.id, "q", b"body", "ready")


@pytest.mark.parametrize(
    "body", [b"", b"\x00\r\n$-1\r\n", bytes(range(256)) * 1000], ids=["empty", "wire", "long"]
)
def test_a_body_is_any_bytes(q: Queue, body: bytes) -> None:
    """ADDJOB: a body, even an empty one, comes back unchanged."""
    q.enqueue(body)
    (job,) = q.reserve(block=0)
    assert job.body == body


def test_a_queue_has_any_nonempty_name(ps: Penstock) -> None:
    """ADDJOB: the first job creates its queue, whatever its name; an empty name is refused."""
    names = ["a queue", "FROM", "{x}", "ü/%0a", "\n"]
    for name in names:
        ps.queue(name).enqueue(name)
    assert [bodies(ps.queue(name).reserve(5, block=0)) for name in names] == [[n] for n in names]
    with pytest.raises(BadArgument):
        ps.queue("")


def test_a_refused_add_writes_nothing(ps: Penstock, q: Queue, raw: Raw) -> None:
    """ADDJOB: options are checked first: with a bad one neither job nor queue is created."""
    ps.connect()
    before = dump(raw)
    with pytest.raises(BadArgument):
        q.enqueue(b"x", delay=5, lease=10, ttl=60, max_length=0)
    with pytest.raises(BadArgument):
        q.enqueue_many([b"x", b"y"], delay=-1)
    assert dump(raw) == before


BAD_OPTIONS = {
    "delay": [-1, -0.001, math.nan, math.inf, "5", True],
    "lease": [-1, math.nan, "5", True, 25 * 86_400],
    "ttl": [0, -1, math.nan, "5", True, 8_589_934_592],
    "max_length": [0, -1, 1.5, "5", True],
    "replicas": [-1, 1.5, "2", True, 65_536],
    "timeout": [-1, 0, math.nan, "5", True, 3601],
}


@pytest.mark.parametrize(
    "option, value", [(name, value) for name, values in BAD_OPTIONS.items() for value in values]
)
def test_bad_options_of_an_add(q: Queue, raw: Raw, option: str, value: Any) -> None:
    """ADDJOB … DELAY; ADDJOB … RETRY; ADDJOB … TTL; ADDJOB … MAXLEN; ADDJOB … REPLICATE; ADDJOB …
    ms-timeout: a value that is negative, not a number, or out of range is a typed error.
    """
    q.enqueue(b"made")
    before = dump(raw)

    def chosen() -> dict[str, Any]:
        return {"durable": Durable(timeout=value)} if option == "timeout" else {option: value}

    for add in (
        lambda: q.enqueue(b"x", **chosen()),
        lambda: q.enqueue_many([b"x"], **chosen()),
    ):
        with pytest.raises(BadArgument) as caught:
            add()
        assert caught.value.argument == option
    assert dump(raw) == before


def test_copies_without_replicas(real_ps: Penstock, real_raw: Raw) -> None:
    """ADDJOB … REPLICATE; ADDJOB … ms-timeout: a single server can't confirm copies; the call is
    refused at once, and no job is added.
    """
    queue = real_ps.queue("q")
    with pytest.raises(NotReplicated) as caught:
        queue.enqueue(b"x", durable=Durable(2, timeout=3600))
    error = caught.value
    assert (error.wanted, error.got, error.connected, error.withdrawn) == (2, 0, 0, True)
    with pytest.raises(NotReplicated):
        queue.enqueue_many([b"x"] * 3, durable=Durable(1, timeout=3600))
    stats = queue.stats()
    assert (stats.ready, stats.enqueued, stats.withdrawn) == (0, 0, 0)
    assert queue.reserve(5, block=0) == []
    check_invariant(real_raw)


def test_without_copies_nothing_is_waited_for(real_ps: Penstock) -> None:
    """ADDJOB … ASYNC: by default an add answers as soon as its node has the job."""
    queue = real_ps.queue("q")
    done = queue.enqueue(b"x", durable=Durable(timeout=3600))
    assert (done.replicas, done.state) == (0, "ready")
    assert queue.enqueue(b"x", replicas=0).replicas == 0


def test_a_delayed_job(q: Queue, raw: Raw) -> None:
    """ADDJOB … DELAY: the job exists at once, and is delivered when it is due."""
    done = q.enqueue(b"x", delay=60)
    assert done.state == "scheduled"
    view = q.show(done.id)
    assert view is not None
    assert view.due == pytest.approx(view.created + 60)
    assert q.reserve(block=0) == []
    advance(raw, q.ops, 55)
    assert q.reserve(block=0) == []
    advance(raw, q.ops, 5)
    assert [job.id for job in q.reserve(block=0)] == [done.id]
    assert q.enqueue(b"x", delay=0).state == "ready"


@pytest.mark.parametrize("delay, ttl", [(60, 60), (61, 60), (1, 0.5)])
def test_a_delay_longer_than_the_ttl(q: Queue, raw: Raw, delay: float, ttl: float) -> None:
    """ADDJOB … DELAY: a delay that is not shorter than the ttl is refused."""
    with pytest.raises(BadArgument):
        q.enqueue(b"x", delay=delay, ttl=ttl)
    assert q.enqueue(b"x", delay=59.999, ttl=60).state == "scheduled"


def test_a_job_comes_back_after_its_own_lease(q: Queue, raw: Raw) -> None:
    """ADDJOB … RETRY: an unacknowledged job is delivered again when its lease, counted from the
    delivery, has ended.
    """
    done = q.enqueue(b"x", lease=20)
    advance(raw, q.ops, 100)  # time in the queue does not count
    (first,) = q.reserve(block=0)
    assert first.lease == 20
    advance(raw, q.ops, 15)
    assert q.reserve(block=0) == []
    advance(raw, q.ops, 5)
    (again,) = q.reserve(block=0)
    assert (again.id, again.deliveries, again.redeliveries) == (done.id, 2, 1)
    assert round(again.delivered - first.delivered, 3) >= 20
    with pytest.raises(StaleReceipt):
        first.ack()


def test_the_default_lease(q: Queue, raw: Raw) -> None:
    """ADDJOB … RETRY: without its own lease a job has the queue's, 30 s by default."""
    q.enqueue_many([b"x"] * 2)
    (job,) = q.reserve(block=0)
    assert job.lease == 30
    q.configure(lease=7)
    (job,) = q.reserve(block=0)
    assert job.lease == 7


def test_a_lease_longer_than_the_ttl(q: Queue, raw: Raw) -> None:
    """ADDJOB … RETRY: a lease may be longer than the ttl; both end with the ttl."""
    done = q.enqueue(b"x", lease=100, ttl=10)
    (job,) = q.reserve(block=0)
    view = q.show(done.id)
    assert view is not None
    assert view.lease_until == view.expires == pytest.approx(job.created + 10)
    advance(raw, q.ops, 10)
    assert q.reserve(block=0) == []
    assert q.show(done.id) is None


def test_at_most_once(q: Queue, raw: Raw) -> None:
    """ADDJOB … RETRY 0: delivered at most once; shown until its ack or its ttl, a day."""
    done = q.enqueue(b"x", lease=0)
    (job,) = q.reserve(block=0)
    assert job.at_most_once
    assert job.ttl is None or job.ttl == 86_400
    advance(raw, q.ops, 86_000)
    assert q.reserve(block=0) == []
    view = q.show(done.id)
    assert view is not None
    assert (view.state, view.lease) == ("active", 0)
    advance(raw, q.ops, 400)
    assert q.reserve(block=0) == []
    assert q.show(done.id) is None


def test_at_most_once_with_copies(q: Queue, raw: Raw) -> None:
    """ADDJOB … RETRY 0: copies of such a job are refused; the queue's setting causes no wait."""
    q.enqueue(b"made")
    before = dump(raw)
    with pytest.raises(BadArgument):
        q.enqueue(b"x", lease=0, replicas=1)
    with pytest.raises(BadArgument):
        q.enqueue_many([b"x"], lease=0, replicas=2)
    assert dump(raw) == before
    q.configure(replicas=1)
    assert q.enqueue(b"x", lease=0, durable=Durable(timeout=0.1)).replicas == 0


def test_a_ttl_ends_a_job(q: Queue, raw: Raw) -> None:
    """ADDJOB … TTL: after its end the job is not delivered, and its memory is freed."""
    done = q.enqueue(b"x", ttl=60)
    advance(raw, q.ops, 50)
    view = q.show(done.id)
    assert view is not None
    assert view.ttl == 60
    assert view.expires == pytest.approx(view.created + 60)
    advance(raw, q.ops, 10)
    assert q.reserve(block=0) == []
    assert q.show(done.id) is None
    assert q.stats().expired == 1


def test_a_bound_refuses(q: Queue, raw: Raw) -> None:
    """ADDJOB … MAXLEN: a job above the bound is refused, and nothing is added."""
    for body in (b"1", b"2"):
        q.enqueue(body, max_length=2)
    before = dump(raw)
    with pytest.raises(QueueFull):
        q.enqueue(b"3", max_length=2)
    with pytest.raises(QueueFull):
        q.enqueue_many([b"3", b"4"], max_length=3)
    assert bodies(q.peek()) == [b"1", b"2"]
    assert {key for key in dump(raw) if b"producer" not in key} == {
        key for key in before if b"producer" not in key
    }
    q.enqueue(b"3")  # another producer has no bound
    assert q.stats().ready == 3


def test_waiting_jobs_count_for_the_bound(q: Queue, raw: Raw) -> None:
    """ADDJOB … MAXLEN; a.7 5: waiting and delayed jobs count; held and dead ones do not, and
    released ones may exceed it.
    """
    q.configure(max_length=2)
    q.enqueue(b"delayed", delay=3600)
    q.enqueue(b"held")
    with pytest.raises(QueueFull):
        q.enqueue(b"3")
    (job,) = q.reserve(block=0)
    q.enqueue(b"3")
    job.nack(delay=0)
    stats = q.stats()
    assert (stats.ready, stats.scheduled) == (2, 1)
    with pytest.raises(QueueFull):
        q.enqueue(b"4")


def test_expired_jobs_leave_room(q: Queue, raw: Raw) -> None:
    """ADDJOB … MAXLEN: an expired job takes no place, swept or not."""
    q.enqueue_many([b"x"] * 3, ttl=60)
    q.enqueue(b"delayed", delay=50, ttl=60)
    advance(raw, q.ops, 60)
    q.enqueue_many([b"y"] * 4, max_length=4)
    with pytest.raises(QueueFull):
        q.enqueue(b"y", max_length=4)


@pytest.mark.parametrize("side", ["in", "all"])
def test_an_add_to_a_paused_queue(q: Queue, raw: Raw, side: str) -> None:
    """ADDJOB … paused: a queue with its incoming side paused refuses it with a typed error."""
    q.enqueue(b"made")
    q.pause(side)
    for add in (lambda: q.enqueue(b"x"), lambda: q.enqueue_many([b"x"], delay=5)):
        with pytest.raises(QueuePaused):
            add()
    assert q.stats().enqueued == 1
    q.resume()
    q.enqueue(b"x")


# -- GETJOB ------------------------------------------------------------------------------------


def test_a_delivery(q: Queue) -> None:
    """GETJOB: a job has its queue's name, its id and its body; the default is one job."""
    first = q.enqueue(b"a")
    q.enqueue(b"b")
    (job,) = q.reserve(block=0)
    assert (job.queue_name, job.id, job.body) == ("q", first.id, b"a")


def test_nothing_to_take(ps: Penstock, q: Queue) -> None:
    """GETJOB … NOHANG: without a job the call returns at once, also from a new queue."""
    assert q.reserve(block=0) == []
    assert ps.reserve(["x", "y"], 5, block=0) == []
    q.enqueue(b"a")
    assert bodies(q.reserve(5, block=0)) == [b"a"]


def test_a_timeout(q: Queue) -> None:
    """GETJOB … TIMEOUT: the call waits for that time, in fractions of a second, and no less."""
    start = time.monotonic()
    assert q.reserve(block=0.15) == []
    assert time.monotonic() - start >= 0.15


def test_a_wait_for_ever(real_ps: Penstock, real_raw: Raw) -> None:
    """GETJOB … TIMEOUT: None waits until there is a job."""
    queue = real_ps.queue("q")
    reader = spawn(lambda: queue.reserve(block=None))
    reach_blocked(real_raw, 1)
    queue.enqueue(b"a")
    assert bodies(reader.result()) == [b"a"]


def test_up_to_so_many(q: Queue) -> None:
    """GETJOB … COUNT: at most this many, in order; fewer if there are fewer."""
    q.enqueue_many(range(7))
    assert bodies(q.reserve(4, block=0)) == [0, 1, 2, 3]
    assert bodies(q.reserve(4, block=0)) == [4, 5, 6]


def test_a_blocked_reader_gets_several(real_ps: Penstock, real_raw: Raw) -> None:
    """GETJOB … COUNT; a.2 blocked GETJOB; a.7 2: a blocked reader gets the jobs that have come, up
    to the count.
    """
    queue = real_ps.queue("q")
    reader = spawn(lambda: queue.reserve(4, block=None))
    reach_blocked(real_raw, 1)
    queue.enqueue_many(range(6))
    assert bodies(reader.result()) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "options",
    [
        *({"n": n, "block": 0} for n in (0, -1, 1.0, "1", True, None)),
        *({"block": block} for block in (-1, -0.001, math.nan, "5", True)),
    ],
    ids=str,
)
def test_bad_options_of_a_take(ps: Penstock, q: Queue, raw: Raw, options: dict[str, Any]) -> None:
    """GETJOB … COUNT; GETJOB … TIMEOUT: a count below 1 or a bad time is a typed error, and no job
    changes.
    """
    q.enqueue(b"a")
    before = dump(raw)
    with pytest.raises(BadArgument):
        q.reserve(**options)
    with pytest.raises(BadArgument):
        ps.reserve(["q", "r"], **options)
    assert dump(raw) == before


def test_the_two_counters(q: Queue, raw: Raw) -> None:
    """GETJOB … WITHCOUNTERS: nacks, and deliveries that ended otherwise, both exact."""
    q.enqueue(b"x", lease=10)
    seen = []

    def deliver() -> Any:
        (job,) = q.reserve(block=0)
        seen.append((job.nacks, job.redeliveries))
        return job

    deliver().nack(delay=0)
    deliver().nack(delay=0)
    deliver()
    advance(raw, q.ops, 10)
    deliver().release()
    deliver().nack(delay=0)
    deliver()
    assert seen == [(0, 0), (1, 0), (2, 0), (2, 1), (2, 2), (3, 2)]


def test_several_queues_from_left_to_right(ps: Penstock) -> None:
    """GETJOB … FROM; a.2 several queues; a.7 2: the first queue is emptied before the second one is
    read.
    """
    for name in ("c", "COUNT", "a"):
        ps.queue(name).enqueue_many(f"{name}{i}" for i in range(3))
    jobs = ps.reserve(["a", "empty", "COUNT", "c"], 7, block=0)
    assert bodies(jobs) == ["a0", "a1", "a2", "COUNT0", "COUNT1", "COUNT2", "c0"]
    assert [job.queue_name for job in jobs] == ["a"] * 3 + ["COUNT"] * 3 + ["c"]


@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_a_wait_on_several_queues(real_ps: Penstock, real_raw: Raw, name: str) -> None:
    """GETJOB … FROM: a job in any of them ends the wait."""
    reader = spawn(lambda: real_ps.reserve(["a", "b", "c"], block=None))
    reach_blocked(real_raw, 1, queues=3)
    real_ps.queue(name).enqueue(b"x")
    assert [(job.queue_name, job.body) for job in reader.result()] == [(name, b"x")]


def test_a_paused_queue_among_several(ps: Penstock) -> None:
    """GETJOB … FROM; PAUSE … out: it is skipped, and the others are read."""
    for name in "abc":
        ps.queue(name).enqueue(name)
    ps.queue("a").pause("out")
    assert bodies(ps.reserve(["a", "b", "c"], 5, block=0)) == ["b", "c"]
    ps.queue("a").resume()
    assert bodies(ps.reserve(["a", "b", "c"], 5, block=0)) == ["a"]


@pytest.mark.parametrize("names", [[], "ab", ["a", "a"], ["a", ""], ["a", None], None], ids=str)
def test_queues_that_cannot_be_read(ps: Penstock, names: Any) -> None:
    """GETJOB … FROM: no queue, a duplicate, or an invalid queue is a typed error."""
    ps.queue("a").enqueue(b"x")
    with pytest.raises(BadArgument):
        ps.reserve(names, block=0)
    assert ps.queue("a").stats().ready == 1
