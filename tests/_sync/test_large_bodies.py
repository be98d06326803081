# From tests/_async/test_large_bodies.py by tools/unasync.py; do not edit.
"""Bodies above 4096 bytes: stored once while their jobs move, and removed with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

from penstock import BadArgument, Dedup, Outcome, Penstock, Queue, RetryPolicy
from penstock.spark.calls import Staged, about_staged, staged_chunk
from tests.support.keyspace import Raw, advance, check_invariant, numbers

SIZES = pytest.mark.parametrize("size", [4096, 4097, 50_000])


def stored(raw: Raw, q: Queue) -> list[bytes]:
    """Return the numbers of the jobs whose bodies are stored separately."""
    names = raw.hkeys(q.ops.keys["held"])
    return sorted(name[1:] for name in names if name.startswith(b"="))


@SIZES
def test_a_whole_life(q: Queue, raw: Raw, size: int) -> None:
    """The body is the same at each delivery, and removed when the job is acknowledged."""
    body = b"x" * size
    job_id = q.enqueue(body, headers={"trace": "abc"}, retry=RetryPolicy(5)).id
    ends: list[Callable[[Any], Any]] = [
        lambda job: q.nack([job], delay=0),
        lambda job: q.release([job]),
        lambda _: q.promote([job_id]),
        lambda job: q.bury([job], "no use"),
        lambda _: q.bury([job_id], "no use"),
    ]
    for end in ends:
        check_invariant(raw)
        (job,) = q.reserve(block=0)
        assert (job.body, job.headers, job.retry) == (body, {"trace": "abc"}, RetryPolicy(5))
        view = q.show(job_id)
        assert view is not None
        assert (view.body, view.headers) == (body, {"trace": "abc"})
        end(job)
        check_invariant(raw)
        if q.stats().dead:
            assert [letter.body for letter in q.peek(state="dead")] == [body]
            assert q.redrive([job_id]) == 1
    assert len(stored(raw, q)) == (size > 4096)
    (job,) = q.reserve(block=0)
    assert job.ack()
    assert not raw.exists(q.ops.keys["held"])
    q.sweep()
    assert b"b" not in raw.hget(q.ops.keys["meta"], "uses")


Ending: TypeAlias = Callable[[Queue, list[str]], Any]
ENDINGS: dict[str, Ending] = {
    "ack": lambda q, ids: q.ack(ids),
    "settle": lambda q, ids: q.ack_and_reserve(ids, 1),
    "delete": lambda q, ids: q.delete(ids),
    "withdraw": lambda q, ids: q.delete(ids, if_undelivered=True),
    "purge": lambda q, _: q.purge(),
    "clear": lambda q, _: q.clear(),
}


@pytest.mark.parametrize("delay", [0, 60])
@pytest.mark.parametrize("end", ENDINGS)
def test_ending_waiting_jobs_by_id_removes_their_bodies(
    q: Queue, raw: Raw, end: str, delay: int
) -> None:
    """Ending waiting jobs by id removes their bodies and no others; ready has only headers."""
    ids = [q.enqueue(body, delay=delay).id for body in (b"x" * 5000, b"small", b"y" * 5000)]
    ends_all = end in ("purge", "clear")
    if not ends_all:
        q.enqueue(b"z" * 6000, delay=60)
    assert sum(len(fields[b"j"]) for _, fields in raw.xrange(q.ops.keys["ready"])) < 100
    ENDINGS[end](q, ids)
    assert len(stored(raw, q)) == (0 if ends_all else 1)
    check_invariant(raw)


HUGE = b"x" * 5_000_000
"""Fourteen of them are more than a call removes: 64 MiB."""


@pytest.mark.parametrize("end", ["ack", "settle", "delete", "withdraw", "bury", "expire"])
def test_a_call_removes_64_mib_of_bodies(q: Queue, raw: Raw, end: str) -> None:
    """One call ends all jobs; the last two bodies are noted, and removed by the next call."""
    ttl = 60 if end == "expire" else None
    ids = [job.id for job in q.enqueue_many([HUGE] * 16, ttl=ttl)]
    if end == "bury":
        q.configure(dead_max=1)
        newest = q.enqueue(b"the newest letter")
        q.bury([*ids, newest.id], "no use")
    elif end == "expire":
        advance(raw, q.ops, 61)
        q.peek()
    else:
        ENDINGS[end](q, ids)
    stats = q.stats()
    assert stats.ready + stats.active == 0
    left = sorted(raw.hget(q.ops.keys["held"], "=").split())
    assert len(left) == 2
    assert stored(raw, q) == [b"", *left]
    check_invariant(raw)
    q.enqueue(b"next")
    assert stored(raw, q) == []


def test_purge_and_sweep_leave_no_body(q: Queue, raw: Raw) -> None:
    """Purge and sweep repeat their scripts until every body is removed."""
    q.enqueue_many([HUGE] * 16)
    assert q.purge() == 16
    assert stored(raw, q) == []
    q.delete([job.id for job in q.enqueue_many([HUGE] * 16)])
    assert len(stored(raw, q)) == 3
    q.sweep()
    assert not raw.exists(q.ops.keys["held"])


def test_an_eviction_takes_as_many_jobs_as_it_frees(q: Queue, raw: Raw) -> None:
    """Evict does not end jobs whose bodies would not be freed by the same call."""
    q.enqueue_many([HUGE] * 16, lease=0, ttl=600)
    while q.reserve(16, block=0):
        pass
    assert q.sweep(evict=100) == 14
    assert len(stored(raw, q)) == 2
    assert q.sweep(evict=100) == 2
    assert not raw.exists(q.ops.keys["held"])


def test_a_noted_body_that_an_update_replaces_stays(q: Queue, raw: Raw) -> None:
    """An update writes a new large body while the old one is noted for removal: the
    new one stays.
    """
    q.enqueue(b"x" * 5000, dedup_id="a")
    (number,) = stored(raw, q)
    raw.hset(q.ops.keys["held"], "=", number + b" ")
    again = q.enqueue(b"y" * 5000, dedup=Dedup("a", on_duplicate="update"))
    assert again.action == "updated"
    q.enqueue(b"next")
    assert stored(raw, q) == [number]
    check_invariant(raw)


@pytest.mark.parametrize("place", ["ready", "scheduled", "active", "once", "dead"])
def test_an_evicted_and_an_expired_job(q: Queue, raw: Raw, place: str) -> None:
    """The body is removed when the job expires, is dropped as a dead letter, or is evicted."""
    body = b"x" * 5000
    q.enqueue(
        body,
        delay=1 if place == "scheduled" else 0,
        ttl=None if place == "dead" else 5,
        lease=0 if place == "once" else None,
    )
    if place in ("active", "once", "dead"):
        (job,) = q.reserve(block=0)
        assert job.body == body
        if place == "dead":
            job.bury("no use")
            q.configure(dead_age=1)
    assert len(stored(raw, q)) == 1
    advance(raw, q.ops, 12)
    q.sweep()
    assert stored(raw, q) == []
    check_invariant(raw)
    q.enqueue(body, lease=0, ttl=60)
    q.reserve(block=0)
    assert q.sweep(evict=100) == 1
    assert not raw.exists(q.ops.keys["held"])


@pytest.mark.parametrize("where", ["ready", "scheduled", "lease ended"])
def test_an_update_changes_the_size(q: Queue, raw: Raw, where: str) -> None:
    """An update may replace a large body by a small one and the reverse, in any waiting state."""
    delay = 60 if where == "scheduled" else 0
    q.enqueue(b"first", dedup_id="a", delay=delay, lease=1)
    if where == "lease ended":
        q.reserve(block=0)
        advance(raw, q.ops, 5)
    for body in (b"x" * 5000, b"small", b"y" * 6000, b"z" * 7000):
        answer = q.enqueue(body, dedup=Dedup("a", on_duplicate="update"))
        assert answer.action == "updated"
        check_invariant(raw)
        status = q.dedup_status("a")
        assert status is not None
        assert status.job is not None
        assert status.job.body == body
    q.promote([answer.id])
    (job,) = q.reserve(block=0)
    assert job.body == b"z" * 7000
    assert job.ack()
    assert not raw.exists(q.ops.keys["held"])


def test_staged_jobs(q: Queue, raw: Raw) -> None:
    """Large bodies are stored separately when staged jobs are moved into the queue."""
    bodies = [b"x" * 5000, b"small", b"y" * 9000]
    at = Staged("node", "writer", 0)
    q.enqueue(b"before")
    records = [b"1;d=%d\n%b" % (i, body) for i, body in enumerate(bodies)]
    run, chunk = q.route.node.executor.run, staged_chunk(0, records)
    run(about_staged(q.ops, "stage", at, 0, "a:0", 60_000, chunk))
    run(about_staged(q.ops, "commit", at, 0, 60_000, 1, "a", 1))
    for most in (2, 2):
        call = about_staged(q.ops, "publish", at, "", "", 0, "", "a:0", most)
        assert run(call).code == 1
    check_invariant(raw)
    assert [job.body for job in q.reserve(4, block=0)] == [b"before", *bodies]


def test_recovered_and_redelivered(q: Queue, raw: Raw) -> None:
    """A delivery that is taken over, or redelivered after its lease, has the body."""
    body = b"x" * 5000
    q.enqueue(body, lease=5)
    q.reserve(block=0)
    advance(raw, q.ops, 3)
    (job,) = q.recover(idle=1)
    assert job.body == body
    advance(raw, q.ops, 12)
    (again,) = q.reserve(block=0)
    assert (again.body, again.attempt) == (body, 3)
    assert list(q.ack([job])) == [Outcome.STALE]
    assert again.ack()
    assert not raw.exists(q.ops.keys["held"])


def test_a_body_that_is_gone(q: Queue, raw: Raw) -> None:
    """A job whose body is missing is not delivered: its entry is dropped and counted."""
    lost = q.enqueue(b"x" * 5000)
    held = q.enqueue(b"y" * 5000)
    q.postpone([held.id])
    q.enqueue(b"sound")
    for number in stored(raw, q):
        raw.hdel(q.ops.keys["held"], b"=" + number)
    view = q.show(lost.id)
    assert view is not None
    assert (view.state, view.body) == ("dangling", b"")
    advance(raw, q.ops, 60)
    assert [job.body for job in q.reserve(9, block=0)] == [b"sound"]
    assert raw.hget(q.ops.keys["meta"], "dangling") == b"2"
    assert numbers(raw, q.ops, "ready") == []
    check_invariant(raw)


def test_pages_have_each_body_once(q: Queue) -> None:
    """Pages of peek and scan hold about 1 MiB each, and every job is in one of them."""
    bodies = [bytes([65 + i]) * 400_000 for i in range(6)]
    q.enqueue_many(bodies[:3])
    q.bury([job.id for job in q.peek(3)], "no use")
    q.enqueue_many(bodies[3:])
    dead = q.peek(3, state="dead")
    assert [job.body for job in dead] == bodies[:3]
    found = [view.body for view in q.jobs()]
    assert sorted(found) == bodies
    assert len(q.peek(3, state="dead", start=-3)) == 3


def test_headers_are_bounded(ps: Penstock, raw: Raw) -> None:
    """Headers are bounded, as every transition moves them; the error suggests the body."""
    q = ps.queue("headers")
    with pytest.raises(BadArgument, match=r"headers=.*put more into the body"):
        q.enqueue(b"", headers={"a": "x" * 16_384})
    assert not raw.exists(q.ops.keys["meta"])
    most = 16_384 - len("1;h.a=\n") - len(";c=json") - len(";i=") - 16
    q.enqueue("text", headers={"a": "x" * most})
    (job,) = q.reserve(block=0)
    assert len(job.headers["a"]) == most
