# From tests/_async/test_enqueue.py by tools/unasync.py; do not edit.
"""Enqueuing one job: its options, its state, and the result."""

from __future__ import annotations

import pickle
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any

import pytest

from penstock import (
    BadArgument,
    Durable,
    Enqueued,
    Handlers,
    NotReplicated,
    Penstock,
    Queue,
    QueueClosed,
    QueuePaused,
    StaleCall,
    parse_id,
)
from penstock.core.enqueuing import prepared
from penstock.core.jobs.job import record_of
from penstock.wire.keys import queue_crc
from tests.support.backends import Backend
from tests.support.keyspace import Raw, advance, dump, numbers, raw_time

BYTES = [b"", b"x", b"\x00\xff\r\n;=@1\n", b"1;l=0;t=5\nbody", b"@17 owner\nbody", b"x" * 70_000]
OBJECTS = [
    None,
    True,
    0,
    -1.5,
    1e300,
    2**70,
    "",
    "a str is JSON",
    "Grüße, 日本, \U0001f600, \x00, \u2028\n",
    [],
    [1, [2, {"three": None}]],
    {"to": "ada", "ümlaut": "%{}", "": 0},
]
HEADERS = {
    "trace": "00-4bf92f3577b34da6a3ce929d0e0e4736",
    "h.x": "a;b=c",
    "a;b=c\nd": "%3B line\r\nbreak \x00 nul",
    "l": "5",
    "Grüße": "日本 \U0001f600",
    " ": "",
    "@": "~!#$&'()*+,/:<>?[]^_`{|}\"",
}


def test_the_result_names_the_job(ps: Penstock, q: Queue, raw: Raw) -> None:
    """The id has the node, the queue, its epoch, the creation time, and the class of the job."""
    before = int(raw_time(raw) * 1000)
    done = q.enqueue({"to": "ada"})
    after = int(raw_time(raw) * 1000)
    parts = parse_id(done.id)
    assert done == Enqueued(done.id, "ready", duplicate=False, replicas=0)
    assert parts.node.encode() == raw.hget("penstock:node", "id")[:8]
    assert parts.crc == queue_crc("q")
    assert parts.epoch.encode() == raw.hget(q.ops.keys["meta"], "epoch")
    assert before <= parts.ms <= after
    assert (parts.ttl_minutes, parts.at_most_once) == (None, False)
    assert numbers(raw, q.ops, "ready") == [parts.number]


def test_the_id_of_the_result(q: Queue) -> None:
    """The id can't be changed, and goes with a copy to another process."""
    done = q.enqueue(1)
    copy = pickle.loads(pickle.dumps(done))
    assert (copy, copy.stable_id, hash(copy)) == (done, done.stable_id, hash(done))
    assert eval(repr(done)) == done
    with pytest.raises(AttributeError):
        done.id = "another"  # type: ignore[misc]  # on purpose


@pytest.fixture
def scripts(q: Queue, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the scripts that the client runs."""
    run, found = q.route.node.executor.connections.run, list[str]()

    def noting(call: Any, **options: Any) -> Any:
        found.append(call.script.name)
        return run(call, **options)

    monkeypatch.setattr(q.route.node.executor.connections, "run", noting)
    return found


def test_a_paused_or_closed_queue_takes_no_plain_job(q: Queue) -> None:
    """The client does not have to know that the queue was paused or closed meanwhile."""
    q.enqueue(b"x")
    q.pause("in")
    with pytest.raises(QueuePaused):
        q.enqueue(b"x")
    q.resume()
    q.enqueue(b"x")
    q.close()
    with pytest.raises(QueueClosed):
        q.enqueue(b"x")
    assert q.stats().ready == 2


@pytest.mark.parametrize("body", BYTES, ids=range(len(BYTES)))
def test_bytes_pass_untouched(q: Queue, body: bytes) -> None:
    """Any bytes come back unchanged, including empty ones and bytes that look like a record."""
    q.enqueue(body)
    (seen,) = q.peek()
    (job,) = q.reserve(block=0)
    assert (job.body, job.raw, record_of(job).codec) == (body, body, "")
    assert (seen.body, seen.raw) == (body, body)


def test_other_bytes_types_come_back_as_bytes(q: Queue) -> None:
    """A bytearray and a memoryview come back as bytes, not as JSON."""
    q.enqueue(bytearray(b"\x00a"))
    q.enqueue(memoryview(b"xx\x00b")[2:])
    assert [job.body for job in q.reserve(2, block=0)] == [b"\x00a", b"\x00b"]


def test_objects_travel_as_json(q: Queue) -> None:
    """Values that JSON can express come back equal: None, numbers, text, and nested ones."""
    for body in OBJECTS:
        q.enqueue(body)
    jobs = q.reserve(len(OBJECTS), block=0)
    assert [job.body for job in jobs] == OBJECTS
    assert [type(job.body) for job in jobs] == [type(body) for body in OBJECTS]
    assert {record_of(job).codec for job in jobs} == {"json"}


def test_headers_come_back_as_they_were(q: Queue) -> None:
    """Names and values of headers may hold any character, including those of the
    record's syntax.
    """
    done = q.enqueue(b"body;h.no=1\n", headers=HEADERS, lease=5, ttl=60)
    seen = q.show(done.id)
    (job,) = q.reserve(block=0)
    assert job.headers == HEADERS
    assert seen is not None
    assert seen.headers == HEADERS
    assert (job.body, job.lease, job.ttl) == (b"body;h.no=1\n", 5, 60)


@pytest.mark.parametrize(
    "lease, ttl, seconds",
    [(60, None, 60), (0.5, None, 0.5), (timedelta(hours=2), 86_400, 7200), (None, None, 30)],
)
def test_a_job_has_the_lease_it_was_given(q: Queue, lease: Any, ttl: Any, seconds: float) -> None:
    """A lease is in seconds or a timedelta; the default is the queue's 30 s."""
    q.enqueue("x", lease=lease, ttl=ttl)
    (job,) = q.reserve(block=0)
    view = q.show(job)
    assert job.lease == seconds
    assert view is not None
    assert view.lease_until == pytest.approx(job.delivered + seconds)


def test_a_lease_lasts_up_to_24_days(q: Queue) -> None:
    """The longest lease is 24 days; it is kept to the millisecond."""
    q.enqueue("x", lease=timedelta(days=24))
    (job,) = q.reserve(block=0)
    assert job.lease == 24 * 86_400
    assert job.extend() == 24 * 86_400


@pytest.mark.parametrize("delay", [3600, 3600.0, timedelta(hours=1)])
def test_a_delayed_job_is_scheduled(q: Queue, raw: Raw, delay: Any) -> None:
    """A delayed job is delivered when its time has come, and not before."""
    done = q.enqueue("later", delay=delay)
    assert done.state == "scheduled"
    (view,) = q.peek(state="scheduled")
    assert view.due == pytest.approx(view.created + 3600)
    assert q.reserve(block=0) == []
    advance(raw, q.ops, 3580)
    assert q.reserve(block=0) == []
    advance(raw, q.ops, 30)
    (job,) = q.reserve(block=0)
    assert job.id == done.id


def test_at_is_a_point_in_time(q: Queue, raw: Raw) -> None:
    """`at` is in seconds since 1970 or a datetime with a zone, and exact to the millisecond."""
    moment = int(raw_time(raw)) + 3600
    zone = timezone(timedelta(hours=-7))
    as_number = q.enqueue("x", at=moment)
    as_datetime = q.enqueue("y", at=datetime.fromtimestamp(moment, zone))
    assert (as_number.state, as_datetime.state) == ("scheduled", "scheduled")
    views = q.peek(state="scheduled")
    assert [view.due for view in views] == [pytest.approx(moment, abs=0.002)] * 2


def test_at_in_the_past_is_now(q: Queue, raw: Raw) -> None:
    """With `at` in the past the job is ready, and the result says so."""
    done = q.enqueue("x", at=raw_time(raw) - 3600)
    assert q.stats().ready == 1
    assert [job.id for job in q.reserve(block=0)] == [done.id]
    assert done.state == "ready"


def test_a_ttl_is_counted_from_the_enqueue(q: Queue, raw: Raw) -> None:
    """After its ttl a job is never delivered; the next call removes and counts it."""
    done = q.enqueue("milk", ttl=60)
    kept = q.enqueue("rice")
    assert parse_id(done.id).ttl_minutes == 1
    advance(raw, q.ops, 40)
    assert q.stats().ready == 2
    advance(raw, q.ops, 30)
    stats = q.stats()
    assert (stats.ready, stats.unswept, stats.expired) == (1, 1, 0)
    assert [job.id for job in q.reserve(5, block=0)] == [kept.id]
    assert q.stats().expired == 1
    assert q.show(done.id) is None


def test_a_ttl_also_ends_delayed_and_leased_jobs(q: Queue, raw: Raw) -> None:
    """A job whose ttl ends is not delivered again, whatever state it is in."""
    q.enqueue("delayed", delay=30, ttl=60)
    q.enqueue("leased", lease=300, ttl=60)
    (job,) = q.reserve(block=0)
    view = q.show(job)
    assert view is not None
    assert view.lease_until == view.expires == pytest.approx(job.created + 60)
    advance(raw, q.ops, 61)
    assert q.sweep() == 2
    stats = q.stats()
    assert (stats.ready, stats.scheduled, stats.active, stats.expired) == (0, 0, 0, 2)
    assert job.ack() is False
    assert q.reserve(5, block=0) == []


def test_a_hundred_expired_jobs_do_not_hide_a_live_one(q: Queue, raw: Raw) -> None:
    """A script removes at most 100 expired jobs; reserve repeats it until it finds the live one."""
    q.enqueue_many(range(250), ttl=10)
    live = q.enqueue("live")
    advance(raw, q.ops, 11)
    assert [job.id for job in q.reserve(block=0)] == [live.id]
    assert q.stats().expired == 250


def test_a_ttl_must_outlive_the_delay(q: Queue, raw: Raw) -> None:
    """A ttl shorter than the delay is refused, and no key changes."""
    q.enqueue("x")
    before = dump(raw)
    for delay, ttl in ((60, 60), (60, 59.999), (timedelta(minutes=1), 1)):
        with pytest.raises(BadArgument, match=r"ttl=.*longer than the delay"):
            q.enqueue("x", delay=delay, ttl=ttl)
    assert dump(raw) == before


def greet(to: str) -> None:
    """Greet."""


def test_a_ttl_must_outlive_the_time_until_at(q: Queue, raw: Raw) -> None:
    """By the server's clock: a job that would expire before it may run is refused."""
    q.enqueue("x")
    before, late = dump(raw), raw_time(raw) + 3600
    mail = Handlers().handler(greet).options(ttl=60).options(at=late)
    for call in (
        partial(q.enqueue, "x", at=late, ttl=60),
        partial(q.enqueue_many, ["x", "y"], at=late, ttl=60),
        partial(q.enqueue, "x", at=late, ttl=60, dedup_id="a"),
        partial(q.enqueue, "x", at=late, lease=0, ttl=60),
        partial(q.enqueue, mail.job("eve")),
    ):
        with pytest.raises(BadArgument, match=r"ttl=60\.0: must be longer than the time"):
            call()
    assert dump(raw) == before
    assert q.enqueue("x", at=late, ttl=7200).state == "scheduled"
    assert q.enqueue("x", at=late - 7200, ttl=1).state == "ready"


def test_a_body_of_512_mib_is_refused(q: Queue, raw: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    """A too large body is refused before it is sent; the error has the bound (here 2 MiB)."""
    monkeypatch.setattr(prepared, "MAX_RECORD_BYTES", 2 << 20)
    q.enqueue(b"x" * ((2 << 20) - 20))  # its header has at most 19 bytes
    before = dump(raw)
    for body in (b"x" * ((2 << 20) - 2), "x" * (2 << 20)):
        with pytest.raises(BadArgument, match=r"body=.*512 MiB"):
            q.enqueue(body)
        with pytest.raises(BadArgument, match=r"body=.*512 MiB"):
            q.enqueue_many([body])
    assert dump(raw) == before


def test_without_enough_replicas(q: Queue, raw: Raw) -> None:
    """Without enough replicas the job is refused or withdrawn; the error has the wanted number."""
    q.enqueue("x")
    refused = (
        "0 of 2 replicas (confirmed: the jobs were withdrawn|are connected, nothing was added)"
    )
    with pytest.raises(NotReplicated, match=refused) as caught:
        q.enqueue("x", durable=Durable(2, timeout=0.1))
    error = caught.value
    assert (error.wanted, error.got, error.withdrawn) == (2, 0, True)
    with pytest.raises(NotReplicated):
        q.enqueue_many(["x"], durable=Durable(1, timeout=0.1))
    assert len(numbers(raw, q.ops, "ready")) == 1
    stats = q.stats()
    assert (stats.ready, stats.enqueued - stats.withdrawn) == (1, 1)


def test_a_call_that_is_repeated_adds_nothing(ps: Penstock, q: Queue) -> None:
    """A repeated call number returns the first answer again, for one job and for many."""
    q.enqueue("make the queue")
    (caller,) = ps.topology.executor.connections.idle
    one = q.enqueue("one")
    caller.calls -= 1
    assert q.enqueue("one") == one
    many = q.enqueue_many(range(5), delay=60)
    caller.calls -= 1
    assert list(q.enqueue_many(range(5), delay=60)) == list(many)
    stats = q.stats()
    assert (stats.enqueued, stats.ready, stats.scheduled) == (7, 2, 5)


def test_a_call_with_an_old_number_does_nothing(ps: Penstock, q: Queue, raw: Raw) -> None:
    """A call with a number below the producer's last one came too late and does nothing."""
    for number in range(4):
        q.enqueue(number)
    (caller,) = ps.topology.executor.connections.idle
    before = dump(raw)
    caller.calls -= 3
    with pytest.raises(StaleCall, match=r"call \d+ of this producer ran first"):
        q.enqueue("late")
    assert dump(raw) == before


def test_producers_are_distinguished(backend: Backend, raw: Raw) -> None:
    """Equal call numbers of two clients or of two queues are not repeats."""
    with backend.sync_client() as lent:
        for _ in range(3):
            with Penstock(lent) as ps:
                ps.queue("a").enqueue(1)
                ps.queue("b").enqueue(1)
    assert raw.xlen("penstock:{a}:ready") == raw.xlen("penstock:{b}:ready") == 3
    assert all(0 < raw.pttl(key) <= 600_000 for key in raw.keys("penstock:*producer*"))


def test_a_closed_client_opens_again(backend: Backend, raw: Raw) -> None:
    """`close()` only closes connections; the next call opens new ones."""
    with backend.sync_client() as lent:
        ps = Penstock(lent)
        q = ps.queue("q")
        q.enqueue(1)
        ps.close()
        q.enqueue(2)
        ps.close()
        with ps:
            assert [job.body for job in q.reserve(5, block=0)] == [1, 2]


def test_scripts_come_back_after_a_flush(ps: Penstock, raw: Raw) -> None:
    """Clients load their scripts again after SCRIPT FLUSH between any two calls."""
    q = ps.queue("q")
    raw.script_flush()
    q.enqueue_many(range(4))
    raw.script_flush()
    one, two, three, four = q.reserve(4, block=0)
    for call in (one.ack, partial(two.nack, delay=60), three.release, four.bury):
        raw.script_flush()
        assert call()
    raw.script_flush()
    stats = q.stats()
    assert (stats.ready, stats.scheduled, stats.dead, stats.acked) == (1, 1, 1, 1)


def test_a_queue_is_listed_once_it_has_a_job(ps: Penstock, raw: Raw) -> None:
    """Reading a queue does not create it; its first job does."""
    ps.queue("looked at").stats()
    assert ps.queue("looked at").reserve(block=0) == []
    ps.queue("b").enqueue(1)
    ps.queue("a").enqueue(1)
    assert ps.queues() == ["a", "b"]
    assert not ps.queue("looked at").stats().exists
