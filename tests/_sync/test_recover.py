# From tests/_async/test_recover.py by tools/unasync.py; do not edit.
"""Taking over deliveries from consumers that do not report."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from penstock import BadArgument, Outcome, Penstock, Queue, StaleReceipt
from penstock.core.jobs.job import number_of
from penstock.embedded import EmbeddedServer
from penstock.wire.keys import QueueKeys
from penstock.wire.scripts import script
from tests.protocol.clock import T0, run
from tests.support.backends import Backend
from tests.support.keyspace import Raw, advance, dump, load_scripts
from tests.support.proxy import Proxy
from tests.support.twins import spawn


def taken(q: Queue, raw: Raw, *leases: float | None) -> list[str]:
    """Deliver jobs with these leases one second apart, and return their ids."""
    ids = []
    for lease in leases:
        ids.append(q.enqueue("x", lease=lease, ttl=None if lease else 900).id)
        assert len(q.reserve(block=0)) == 1
        advance(raw, q.ops, 1)
    return ids


def test_the_oldest_delivery_comes_first(q: Queue, raw: Raw) -> None:
    """The oldest delivery is recovered first, whatever its lease and extensions."""
    ids = taken(q, raw, 600, 20, 900, 10, 300, 40)
    q.extend([ids[1], ids[3]], 1000)
    q.extend([ids[0]], 8)
    jobs = q.recover(4, idle=0)
    assert [job.id for job in jobs] == ids[:4]
    assert [job.lease for job in jobs] == [600, 20, 900, 10]
    assert [job.id for job in q.recover(1000, idle=0.5)] == ids[4:]


def test_the_place_is_that_of_the_delivery(q: Queue, raw: Raw) -> None:
    """A job that was released and reserved again is as old as its last delivery."""
    ids = taken(q, raw, 600, 600, 600)
    q.release([ids[0]])
    (again,) = q.reserve(block=0)
    advance(raw, q.ops, 1)
    assert again.id == ids[0]
    assert [job.id for job in q.recover(9, idle=0)] == [ids[1], ids[2], ids[0]]


def test_a_lease_that_has_ended_is_taken_over_too(q: Queue, raw: Raw) -> None:
    """A delivery whose lease has ended is recovered in its order among the others."""
    ids = taken(q, raw, 600, 100, 600)
    advance(raw, q.ops, 100)
    assert q.stats().ready == 1
    assert [job.id for job in q.recover(9, idle=0)] == ids


def test_a_new_delivery_under_its_own_lease(q: Queue, raw: Raw) -> None:
    """A recovered job is a full delivery with the caller's lease; it counts as a crash."""
    done = q.enqueue({"a": 1}, lease=100, headers={"h": "v"})
    (old,) = q.reserve(block=0)
    old.extend(1000)
    advance(raw, q.ops, 30)
    (job,) = q.recover(idle=30)
    assert (job.id, job.body, job.headers, job.lease) == (done.id, {"a": 1}, {"h": "v"}, 100)
    assert (job.deliveries, job.attempt, job.crashes, job.nacks, job.redeliveries) == (
        2,
        2,
        1,
        0,
        1,
    )
    view = q.show(job)
    assert view is not None
    assert view.lease_until == pytest.approx(job.delivered + 100)
    assert (view.state, view.owner) == ("active", "tester")
    assert view.delivered == job.delivered
    stats = q.stats()
    assert (stats.crashed, stats.deliveries, stats.active, stats.died) == (1, 2, 1, 0)
    assert job.ack()
    assert q.stats().acked == 1


def test_old_receipts_are_stale_after_recover(q: Queue, raw: Raw) -> None:
    """Every call with the old receipt raises, and changes nothing."""
    q.enqueue("x")
    (old,) = q.reserve(block=0)
    (new,) = q.recover(idle=0)
    before = dump(raw)
    for call in (old.ack, old.nack, old.release, old.bury, old.extend):
        with pytest.raises(StaleReceipt):
            call()
    assert list(q.ack([old])) == [Outcome.STALE]
    assert dump(raw) == before
    assert new.ack()


def test_at_most_once_is_left_alone(q: Queue, raw: Raw) -> None:
    """A job with lease 0 is never recovered."""
    taken(q, raw, 0, 0)
    assert q.recover(9, idle=0) == []
    assert q.stats().active == 2


def test_waiting_jobs_are_not_recovered(q: Queue) -> None:
    """Jobs that were never reserved, were released or were buried are not recovered."""
    q.enqueue_many(range(3))
    q.enqueue("later", delay=60)
    one, two, _ = q.reserve(3, block=0)
    one.release()
    two.bury()
    assert [job.body for job in q.recover(9, idle=0)] == [2]


def test_recover_is_bounded(q: Queue) -> None:
    """`n` bounds the recovered jobs; the next call takes the next ones."""
    ids = q.enqueue_many(range(10)).ids
    q.reserve(10, block=0)
    assert [job.id for job in q.recover(idle=0)] == ids[:1]
    q.ack(ids[:1])
    assert [job.id for job in q.recover(3, idle=0)] == ids[1:4]
    q.ack(ids[1:4])
    assert [job.id for job in q.recover(1000, idle=0)] == ids[4:]


@pytest.mark.parametrize("n", [0, -1, 1001, True, 1.5, "5", None])
def test_bad_numbers(n: object) -> None:
    """A bad number is refused without a connection."""
    q = Penstock("redis://127.0.0.1:1", retry_for=0).queue("q")
    with pytest.raises(BadArgument, match="n="):
        q.recover(n, idle=1)  # type: ignore[arg-type]  # on purpose


@pytest.mark.parametrize("idle", [-1, float("nan"), "1", None, True])
def test_bad_spans(idle: object) -> None:
    """A bad duration is refused without a connection."""
    q = Penstock("redis://127.0.0.1:1", retry_for=0).queue("q")
    with pytest.raises(BadArgument, match="idle="):
        q.recover(1, idle=idle)  # type: ignore[arg-type]  # on purpose


@pytest.mark.parametrize("early", [0, 1])
def test_the_bound_is_exact(q: Queue, raw: Raw, early: int) -> None:
    """A delivery that is exactly `idle` old is recovered; one a millisecond younger is not."""
    q.enqueue("x")
    (job,) = q.reserve(block=0)
    at = round(job.delivered * 1000)
    keys = QueueKeys("q")
    raw.hdel(keys["meta"], "off")
    reply = run(raw, keys, "pending", [1, "-inf", 0, 5000], now_ms=at + 5000 - early)
    assert list(reply[6::3]) == ([] if early else [number_of(job)])
    assert run(raw, keys, "pending", [1, "-inf", 0, 0], now_ms=T0)[6:7] == [number_of(job)]


def test_a_queue_of_more_than_a_page(real_q: Queue) -> None:
    """Among thousands of deliveries the oldest are found, wherever their leases end."""
    young = real_q.enqueue_many(range(2500), lease=900).ids
    while len(jobs := real_q.reserve(1000, block=0)):
        real_q.extend(jobs, 500 + len(jobs))
    real_q.release(young[-3:])
    ids = [job.id for job in real_q.recover(1000, idle=0)]
    assert ids == young[:1000]
    real_q.ack(ids)
    assert [job.id for job in real_q.recover(1000, idle=0)] == young[1000:2000]


def test_nothing_is_left_out(real_q: Queue) -> None:
    """Thousands of jobs whose leases end together are all found."""
    ids = real_q.enqueue_many(range(3000), lease=900).ids
    real_q.configure(max_crashes=0, max_attempts=0)
    real_q.reserve(1000, block=0)
    real_q.recover(1000, idle=0)
    real_q.reserve(2000, block=0)
    found: set[str] = set()
    while jobs := real_q.recover(1000, idle=0):
        found |= {job.id for job in jobs}
        real_q.ack(jobs)
    assert found == set(ids)


def test_too_many_crashes_are_the_end(q: Queue, raw: Raw) -> None:
    """A recovered job at its bound of crashes or attempts is buried instead of returned."""
    q.configure(max_crashes=2, max_attempts=3)
    crashed = q.enqueue("crashed", lease=600)
    q.reserve(block=0)
    (job,) = q.recover(idle=0)
    failed = q.enqueue("failed", lease=600)
    for _ in range(2):
        (other,) = q.reserve(block=0)
        other.nack(delay=0, error="no")
    q.reserve(block=0)
    ids = q.enqueue_many(["a", "b"], lease=600).ids
    q.reserve(2, block=0)
    jobs = q.recover(2, idle=0)
    assert [job.id for job in jobs] == ids  # buried jobs do not count for n
    letters = q.peek(state="dead")
    assert {(letter.id, letter.error.partition(" since ")[0]) for letter in letters} == {
        (crashed.id, "lease ended 2 times, last held by tester"),
        (failed.id, "3 attempts, last held by tester"),
    }
    with pytest.raises(StaleReceipt):
        job.ack()
    stats = q.stats()
    assert (stats.crashed, stats.died, stats.dead, stats.active) == (5, 2, 2, 2)


def test_without_limits_a_job_never_dies(q: Queue) -> None:
    """A bound of 0 means no limit."""
    q.configure(max_crashes=0, max_attempts=0)
    q.enqueue("x")
    q.reserve(block=0)
    for crashes in range(1, 31):
        (job,) = q.recover(idle=0)
        assert (job.crashes, job.deliveries) == (crashes, crashes + 1)
    assert q.stats().dead == 0


def test_a_job_past_its_ttl(q: Queue, raw: Raw) -> None:
    """A job past its ttl is not recovered; a new lease never ends after the ttl."""
    q.enqueue("short", ttl=50, lease=100)
    q.enqueue("long", ttl=100, lease=90)
    q.reserve(2, block=0)
    advance(raw, q.ops, 60)
    (job,) = q.recover(9, idle=60)
    assert job.body == "long"
    view = q.show(job)
    assert view is not None
    assert view.lease_until == view.expires


@pytest.mark.parametrize("side", ["in", "out", "all"])
def test_a_paused_queue(q: Queue, raw: Raw, side: str) -> None:
    """In a paused queue nothing is recovered."""
    q.enqueue("x")
    q.reserve(block=0)
    q.pause(side)
    before = dump(raw)
    assert q.recover(9, idle=0) == []
    assert dump(raw) == before
    q.resume()
    assert len(q.recover(9, idle=0)) == 1


def test_a_queue_that_does_not_exist(q: Queue, raw: Raw) -> None:
    """In a missing queue nothing is recovered, and the queue is not created."""
    assert q.recover(9, idle=0) == []
    assert raw.dbsize() == 1  # the node's id


def test_big_bodies(real_q: Queue) -> None:
    """A script returns about 1 MiB of bodies; the call runs as many scripts as it needs."""
    ids = real_q.enqueue_many(b"x" * 300_000 for _ in range(12)).ids
    while real_q.stats().ready:
        real_q.reserve(12, block=0)
    jobs = real_q.recover(11, idle=0)
    assert [job.id for job in jobs] == ids[:11]
    assert {len(job.body) for job in jobs} == {300_000}
    assert real_q.stats().crashed == 11


def test_the_end_of_a_recovered_lease_wakes_a_consumer(q: Queue, raw: Raw) -> None:
    """A recovered lease that ends within a tick is announced, as for reserve."""
    q.enqueue("x", lease=2)
    q.reserve(block=0)
    raw.delete(q.ops.keys["wake"])
    advance(raw, q.ops, 3)
    q.recover(idle=0)
    assert raw.llen(q.ops.keys["wake"]) == 1


def recoverer(client: Penstock, start: threading.Barrier, found: list[str]) -> None:
    """Recover jobs that were silent for a minute until none is left."""
    q = client.queue("q")
    start.wait(20)
    while jobs := q.recover(7, idle=60):
        found += [job.id for job in jobs]


def test_two_at_once_take_nothing_twice(
    real_backend: Backend, real_q: Queue, real_raw: Raw
) -> None:
    """Two clients that recover at once get different deliveries."""
    ids = real_q.enqueue_many(range(400), lease=900).ids
    real_q.reserve(400, block=0)
    advance(real_raw, real_q.ops, 100)
    found: list[list[str]] = [[], []]
    start = threading.Barrier(2)
    clients = [Penstock(real_backend.sync_client()) for _ in found]
    try:
        threads = [
            spawn(recoverer, one, start, mine) for one, mine in zip(clients, found, strict=True)
        ]
        for thread in threads:
            thread.result()
    finally:
        for one in clients:
            one.close()
    assert sorted(found[0] + found[1]) == sorted(ids)
    stats = real_q.stats()
    assert (stats.crashed, stats.deliveries, stats.died) == (400, 800, 0)


# -- a connection that fails -------------------------------------------------------------------


@pytest.fixture
def proxy(server: EmbeddedServer) -> Iterator[Proxy]:
    """A proxy between client and server."""
    with Proxy(server.address) as made:
        yield made


def silent(server: EmbeddedServer) -> list[str]:
    """Three jobs of a consumer that does not report; the server knows all scripts."""
    with Penstock(server.url) as client:
        load_scripts(client_of(server))
        ids = client.queue("q").enqueue_many(range(3), lease=600).ids
        client.queue("q").reserve(3, block=0)
    return ids


def client_of(server: EmbeddedServer) -> Raw:
    """Return a plain client of a server."""
    import redis

    return redis.Redis.from_url(server.url, protocol=2)


@pytest.mark.parametrize("name", ["pending", "recover"])
def test_a_request_that_does_not_arrive(server: EmbeddedServer, proxy: Proxy, name: str) -> None:
    """A request that does not arrive is sent again, and its jobs are returned."""
    ids = silent(server)
    with Penstock(proxy.url) as client:
        fault = proxy.cut_after_request_bytes(20, after=script(name).sha.encode())
        jobs = client.queue("q").recover(9, idle=0)
        fault.wait()
        assert [job.id for job in jobs] == ids
        assert client.queue("q").stats().crashed == 3


def test_a_lost_reply_of_recover(server: EmbeddedServer, proxy: Proxy) -> None:
    """If the reply is lost, its jobs wait for their leases and are not recovered again."""
    ids = silent(server)
    with Penstock(proxy.url) as client:
        q = client.queue("q")
        fault = proxy.eat_reply(after=script("recover").sha.encode())
        jobs = q.recover(2, idle=0)
        fault.wait()
        assert [job.id for job in jobs] == ids[2:]
        stats = q.stats()
        assert (stats.crashed, stats.deliveries, stats.active) == (3, 6, 3)
        assert [job.id for job in q.recover(9, idle=0)] == ids
