"""Disque's own tests, restated for one node, with more checks where it had few.

ROWS names all 80 of them, with the number of their file; test_disque.py checks the table. A test of
several nodes runs on a primary with replicas where that makes sense.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import redis

from penstock import Durable, NotReplicated, Outcome, Penstock, Queue, QueueFull, StaleReceipt
from penstock.core.jobs.job import number_of
from penstock.embedded import EmbeddedServer
from tests.conformance.disque import SEVERAL_NODES, Rows, bodies, shown
from tests.support.backends import Backend
from tests.support.keyspace import Raw, advance
from tests.support.twins import spawn, wait_for

ROWS: Rows = {
    "00 different nodes have different ids": ("test_nodes_have_different_ids",),
    "01 kill two nodes, flagged as failing": SEVERAL_NODES,
    "01 restart two nodes, flag cleared": SEVERAL_NODES,
    "02 ADDJOB, single node": ("test_an_add_queues_one_job",),
    "02 ADDJOB out of memory, external replication, 1 and 2 nodes": SEVERAL_NODES,
    "02 synchronous replication to 3": ("test_copies_on_two_replicas",),
    "02 asynchronous replication to 3": ("test_copies_in_the_end",),
    "02 fails, not enough nodes available": ("test_more_copies_than_there_are_nodes",),
    "02 fails, not enough nodes reachable": ("test_a_replica_that_does_not_answer",),
    "02 uses more nodes when the first are down (3 tests)": SEVERAL_NODES,
    "02 job expires before replication": ("test_a_job_that_expires_while_it_is_copied",),
    "02 REPLJOB is retried against old nodes": ("test_a_replica_that_answers_late",),
    "03 initially queued in the target node": ("test_replicas_are_passive",),
    "03 not consumed, not requeued": ("test_a_waiting_job_is_queued_once",),
    "03 consumed, not acked, requeued": ("test_an_unacked_job_comes_back",),
    "03 RETRY 0 is never requeued": ("test_at_most_once_is_never_put_back",),
    "03 queueing node unreachable, requeued elsewhere": ("test_a_failover_delivers",),
    "03 queued on one node only": ("test_one_reader_of_eight_gets_a_job",),
    "03 N copies, N-1 nodes crash (10 tests)": ("test_the_last_copy_is_delivered",),
    "03 single node order": ("test_a_queue_is_in_order",),
    "03 MAXLEN": ("test_producers_that_race_for_the_last_place",),
    "04 TTL honoured": ("test_a_ttl_is_honoured",),
    "04 mass expiry": ("test_a_thousand_jobs_expire",),
    "04 idle queues expire": ("test_empty_queues_go",),
    "05 ack, single node": ("test_an_ack_ends_a_job",),
    "05 acks propagate": ("test_an_ack_reaches_the_replicas",),
    "05 acks are evicted when all holders have them": ("test_an_ack_without_a_replica",),
    "05 ack to a node that does not know the job": SEVERAL_NODES,
    "05 ack while owners are down (2 tests)": ("test_an_ack_while_the_server_is_down",),
    "05 fast ack to the owner": ("test_an_ack_ends_a_job",),
    "05 fast ack to another node": SEVERAL_NODES,
    "06 add 100 to random nodes": SEVERAL_NODES,
    "06 node 0 has not all": SEVERAL_NODES,
    "06 fetch each from one instance": ("test_a_hundred_jobs_by_several_readers",),
    "06 add 100 with RETRY 0": ("test_a_hundred_jobs_by_several_readers",),
    "06 fetch each RETRY 0 job": ("test_a_hundred_jobs_by_several_readers",),
    "07 enable AOF": "a setting of the server; the tests of 07 start it with one",
    "07 delivered after a mass restart (5 tests)": ("test_everything_is_there_after_a_restart",),
    "07 disable AOF": "a setting of the server; the tests of 07 start it with one",
    "08 QSCAN iterator": ("test_many_queues_are_scanned",),
    "08 QSCAN BUSYLOOP": ("test_many_queues_are_scanned",),
    "08 QSCAN MINLEN, MAXLEN": ("test_many_queues_are_scanned",),
    "08 QSCAN IMPORTRATE": SEVERAL_NODES,
    "09 JSCAN iterator": ("test_many_jobs_are_scanned",),
    "09 JSCAN BUSYLOOP": ("test_many_jobs_are_scanned",),
    "09 JSCAN QUEUE": ("test_many_jobs_are_scanned",),
    "09 JSCAN STATE": ("test_many_jobs_are_scanned",),
    "09 JSCAN REPLY ALL": ("test_many_jobs_are_scanned",),
    "10 leaving can be queried, and set (2 tests)": SEVERAL_NODES,
    "10 leaving reaches other nodes": SEVERAL_NODES,
    "10 a leaving node takes no copies (2 tests)": SEVERAL_NODES,
    "10 GETJOB of a leaving node (2 tests)": SEVERAL_NODES,
    "10 HELLO priority of a leaving node": SEVERAL_NODES,
    "11 WORKING returns the retry time": ("test_working_postpones",),
    "11 WORKING prevents a requeue": ("test_working_postpones",),
    "12 NACK requeues at once": ("test_a_nack_is_exactly_one",),
    "12 WITHCOUNTERS, nacks": ("test_a_nack_is_exactly_one",),
    "12 WITHCOUNTERS, additional deliveries": ("test_an_additional_delivery_is_exactly_one",),
    "set-up checks (4 in each file)": "they start Disque's cluster; the fixtures start servers",
}


class Copies:
    """A primary and two replicas of it, all in step.

    Args:
        make: starts a server.
    """

    def __init__(self, make: Callable[..., EmbeddedServer]) -> None:
        options = ("--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1")
        self.primary = make(tcp=True, appendonly=True, args=options)
        of = ("--replicaof", "127.0.0.1", str(self.primary.port))
        self.replicas = [make(tcp=True, args=(*of, *options)) for _ in range(2)]
        self.in_step()

    def in_step(self) -> None:
        """Return when both replicas have all data."""
        with redis.Redis.from_url(self.primary.url) as raw:
            wait_for(lambda: raw.info("replication")["connected_slaves"] == 2)
            raw.set("step", time.time())
            wait_for(lambda: raw.execute_command("WAIT", 2, 1000) == 2)
            raw.delete("step")

    @staticmethod
    def promote(replica: EmbeddedServer) -> None:
        """Make a replica a primary."""
        with redis.Redis.from_url(replica.url) as raw:
            raw.replicaof("NO", "ONE")


def numbers(server: EmbeddedServer, kind: str) -> list[bytes]:
    """Return the jobs of the queue `q` in `ready` or `held` of a server, without writing."""
    raw: Raw = redis.Redis.from_url(server.url)
    with raw:
        if kind == "ready":
            return [number for number, _ in raw.xrange("penstock:{q}:ready")]
        return sorted(raw.hkeys("penstock:{q}:held"))


def nothing(server: EmbeddedServer) -> bool:
    """Tell if a server has no job of the queue `q`."""
    return numbers(server, "ready") + numbers(server, "held") == []


@pytest.fixture
def copies(make_server: Callable[..., EmbeddedServer]) -> Copies:
    """A primary with two replicas."""
    return Copies(make_server)


def together(work: Callable[[int], Any], count: int) -> list[Any]:
    """Return the results of this many threads started at once."""
    barrier = threading.Barrier(count)

    def run(number: int) -> Any:
        barrier.wait()
        return work(number)

    beside = [spawn(run, number) for number in range(count)]
    return [one.result() for one in beside]


# -- 00 to 02 ----------------------------------------------------------------------------------


def test_nodes_have_different_ids(make_server: Callable[..., EmbeddedServer]) -> None:
    """00 different nodes have different ids: each node keeps its own id."""
    servers = [make_server() for _ in range(2)]

    def ids() -> list[str]:
        found = []
        for server in servers:
            with Penstock(server.url) as ps:
                found.append(ps.hello().node)
        return found

    first = ids()
    assert len(set(first)) == 2
    assert ids() == first


def test_an_add_queues_one_job(q: Queue) -> None:
    """02 ADDJOB, single node: one holder, and the job is queued."""
    done = q.enqueue(b"x")
    (view,) = q.peek()
    assert (view.id, view.state) == (done.id, "ready")
    stats = q.stats()
    assert (stats.ready, stats.scheduled, stats.active, stats.enqueued) == (1, 0, 0, 1)


def test_copies_on_two_replicas(copies: Copies) -> None:
    """02 synchronous replication to 3: when the call returns both replicas have the job."""
    with Penstock(copies.primary.url) as ps:
        done = ps.queue("q").enqueue(b"x", durable=Durable(2, timeout=20))
        assert done.replicas == 2
        seen = [numbers(server, "ready") for server in (copies.primary, *copies.replicas)]
        assert seen[0] == seen[1] == seen[2]
        assert len(seen[0]) == 1
        many = ps.queue("q").enqueue_many([b"y"] * 2500, durable=Durable(2, timeout=20))
        assert {one.replicas for one in many} == {2}
        assert [len(numbers(server, "ready")) for server in copies.replicas] == [2501] * 2
        ps.queue("q").configure(replicas=2)
        assert ps.queue("q").enqueue(b"z", durable=Durable(timeout=20)).replicas == 2


def test_copies_in_the_end(copies: Copies) -> None:
    """02 asynchronous replication to 3: the call does not wait, and the replicas
    have the job soon.
    """
    with Penstock(copies.primary.url) as ps:
        assert ps.queue("q").enqueue(b"x").replicas == 0
        wait_for(lambda: all(len(numbers(server, "ready")) == 1 for server in copies.replicas))


def test_more_copies_than_there_are_nodes(copies: Copies) -> None:
    """02 fails, not enough nodes available: a typed error at once, and no job is added."""
    with Penstock(copies.primary.url) as ps:
        queue = ps.queue("q")
        with pytest.raises(NotReplicated) as caught:
            queue.enqueue(b"x", durable=Durable(99, timeout=3600))
        assert (caught.value.wanted, caught.value.connected) == (99, 2)
        assert caught.value.withdrawn is True
        assert (queue.stats().ready, queue.stats().enqueued) == (0, 0)
        copies.in_step()
        assert all(nothing(server) for server in copies.replicas)


def test_a_replica_that_does_not_answer(copies: Copies) -> None:
    """02 fails, not enough nodes reachable: the error has the number of timely answers."""
    with Penstock(copies.primary.url) as ps:
        queue = ps.queue("q")
        queue.enqueue(b"made", durable=Durable(2, timeout=20))
        copies.replicas[0].pause()
        try:
            with pytest.raises(NotReplicated) as caught:
                queue.enqueue(b"x", durable=Durable(2, timeout=1))
        finally:
            copies.replicas[0].resume()
        assert (caught.value.wanted, caught.value.got) == (2, 1)
        assert caught.value.withdrawn is True
        assert bodies(queue.peek()) == [b"made"]


def test_a_job_that_was_taken_is_not_withdrawn(copies: Copies) -> None:
    """ADDJOB … REPLICATE: a consumer got the job during the wait: it stays, and the
    error says so.
    """
    with Penstock(copies.primary.url) as ps:
        queue = ps.queue("q")
        queue.enqueue(b"made", durable=Durable(2, timeout=20))
        queue.purge()
        copies.replicas[0].pause()
        try:
            reader = spawn(lambda: queue.reserve(block=None))
            with pytest.raises(NotReplicated) as caught:
                queue.enqueue(b"x", durable=Durable(2, timeout=3))
        finally:
            copies.replicas[0].resume()
        assert caught.value.withdrawn is False
        (job,) = reader.result()
        assert job.ack()
        assert (queue.stats().withdrawn, queue.stats().acked) == (0, 1)


def test_a_job_that_expires_while_it_is_copied(copies: Copies) -> None:
    """02 job expires before replication: the call fails and no data of the job is left."""
    with Penstock(copies.primary.url) as ps:
        queue = ps.queue("q")
        queue.enqueue(b"made", durable=Durable(2, timeout=20))
        copies.replicas[0].pause()
        try:
            with pytest.raises(NotReplicated):
                queue.enqueue(b"x", durable=Durable(2, timeout=0.6), ttl=0.2)
        finally:
            copies.replicas[0].resume()
        assert bodies(queue.peek()) == [b"made"]
        queue.sweep()
        assert (len(numbers(copies.primary, "ready")), numbers(copies.primary, "held")) == (1, [])


def test_a_replica_that_answers_late(copies: Copies) -> None:
    """02 REPLJOB is retried against old nodes: a waiting call returns when the replica is back."""
    with Penstock(copies.primary.url) as ps:
        queue = ps.queue("q")
        queue.enqueue(b"made", durable=Durable(2, timeout=20))
        copies.replicas[0].pause()
        try:
            adding = spawn(lambda: queue.enqueue(b"x", durable=Durable(2, timeout=60)))
            wait_for(lambda: len(numbers(copies.replicas[1], "ready")) == 2)
            assert not adding.is_done
        finally:
            copies.replicas[0].resume()
        assert adding.result().replicas == 2
        assert queue.stats().ready == 2


# -- 03 ----------------------------------------------------------------------------------------


def test_replicas_are_passive(copies: Copies) -> None:
    """03 initially queued in the target node: replicas have the job, and one node delivers it."""
    with Penstock(copies.primary.url) as ps:
        ps.queue("q").enqueue(b"x", durable=Durable(2, timeout=20))
        (job,) = ps.queue("q").reserve(block=0)
        copies.in_step()
        for server in copies.replicas:
            assert (numbers(server, "ready"), numbers(server, "held")) == ([], [number_of(job)])


def test_a_waiting_job_is_queued_once(q: Queue, raw: Raw) -> None:
    """03 not consumed, not requeued: however long the job waits, its counters stay 0."""
    q.enqueue(b"x", lease=1)
    for _ in range(5):
        advance(raw, q.ops, 3)
        stats = q.stats()
        assert (stats.ready, stats.enqueued) == (1, 1)
    (job,) = q.reserve(5, block=0)
    assert (job.deliveries, job.nacks, job.redeliveries) == (1, 0, 0)


def test_an_unacked_job_comes_back(q: Queue) -> None:
    """03 consumed, not acked, requeued: in real time, and not before the lease has ended."""
    q.enqueue(b"x", lease=0.5)
    (first,) = q.reserve(block=0)
    (again,) = q.reserve(block=15)
    assert (again.id, again.redeliveries) == (first.id, 1)
    assert round(again.delivered - first.delivered, 3) >= 0.5


def test_at_most_once_is_never_put_back(q: Queue, raw: Raw) -> None:
    """03 RETRY 0 is never requeued: not by time, nack, promote, sweep or recover."""
    done = q.enqueue(b"x", lease=0)
    (job,) = q.reserve(block=0)
    for _ in range(3):
        advance(raw, q.ops, 1000)
        assert q.nack([job.id], delay=0)[0] is Outcome.REFUSED
        assert q.promote([done.id])[0] is Outcome.REFUSED
        q.sweep()
        assert q.recover(10, idle=1) == []
        assert q.reserve(5, block=0) == []
    assert q.stats().active == 1


def test_a_failover_delivers(copies: Copies) -> None:
    """03 queueing node unreachable, requeued elsewhere: the promoted replica delivers the job with
    the producer's id.
    """
    with Penstock(copies.primary.url) as ps:
        done = ps.queue("q").enqueue(b"x", durable=Durable(2, timeout=20))
    copies.primary.kill()
    copies.promote(copies.replicas[0])
    with Penstock(copies.replicas[0].url) as ps:
        (job,) = ps.queue("q").reserve(block=0)
        assert (job.id, job.body) == (done.id, b"x")
        assert ps.queue("q").ack([done.id]).done == 1


def test_one_reader_of_eight_gets_a_job(backend: Backend, ps: Penstock, q: Queue, raw: Raw) -> None:
    """03 queued on one node only: one of eight simultaneous readers gets it, also
    after its lease.
    """
    q.enqueue(b"x", lease=20)
    clients = [Penstock(backend.sync_client()) for _ in range(8)]
    try:
        for client in clients:
            client.connect()
        for turn in range(1, 3):
            taken = together(lambda n: clients[n].queue("q").reserve(3, block=0), 8)
            assert [job.deliveries for jobs in taken for job in jobs] == [turn]
            advance(raw, q.ops, 20)
    finally:
        for client in clients:
            client.close()


def test_the_last_copy_is_delivered(copies: Copies) -> None:
    """03 N copies, N-1 nodes crash (10 tests): primary and one replica are killed, the last one is
    promoted and has the job with its body.
    """
    with Penstock(copies.primary.url) as ps:
        done = ps.queue("q").enqueue(b"the body", durable=Durable(2, timeout=20))
        delayed = ps.queue("q").enqueue(b"later", delay=3600, durable=Durable(2, timeout=20))
    copies.primary.kill()
    copies.replicas[0].kill()
    copies.promote(copies.replicas[1])
    with Penstock(copies.replicas[1].url) as ps:
        queue = ps.queue("q")
        (job,) = queue.reserve(5, block=0)
        assert (job.id, job.body) == (done.id, b"the body")
        assert list(queue.promote([delayed.id])) == [Outcome.DONE]
        assert bodies(queue.reserve(5, block=0)) == [b"later"]


def test_a_queue_is_in_order(q: Queue) -> None:
    """03 single node order: first in, first out; a nacked job returns to its place."""
    ids = [q.enqueue(n).id for n in range(50)] + q.enqueue_many(range(50, 100)).ids
    middle = q.reserve(40, block=0)[20]
    q.ack([job_id for job_id in ids[:40] if job_id != middle.id])
    middle.nack(delay=0)
    assert [job.id for job in q.reserve(100, block=0)] == [middle.id, *ids[40:]]


def test_producers_that_race_for_the_last_place(backend: Backend, ps: Penstock, q: Queue) -> None:
    """03 MAXLEN: simultaneous producers never exceed it."""
    q.enqueue(b"made")
    q.purge()
    clients = [Penstock(backend.sync_client()) for _ in range(4)]

    def added(queue: Queue) -> bool:
        try:
            return bool(queue.enqueue(b"x", max_length=17))
        except QueueFull:
            return False

    def produce(number: int) -> int:
        return sum(added(clients[number].queue("q")) for _ in range(10))

    try:
        assert sum(together(produce, 4)) == q.stats().ready == 17
    finally:
        for client in clients:
            client.close()


# -- 04, 05 ------------------------------------------------------------------------------------


def test_a_ttl_is_honoured(q: Queue, raw: Raw) -> None:
    """04 TTL honoured: the job exists until its last ms, and is not delivered after that."""
    q.enqueue_many([b"x"] * 2, ttl=1000)
    advance(raw, q.ops, 990)
    assert q.stats().ready == 2
    assert len(q.reserve(1, block=0)) == 1
    advance(raw, q.ops, 10)
    assert q.reserve(5, block=0) == []
    assert q.stats().expired == 2
    assert not raw.exists(*q.ops.keys.of(("held", "active", "expiry")))


@pytest.mark.parametrize("call", ["peek", "sweep", "enqueue", "reserve"])
def test_a_thousand_jobs_expire(q: Queue, raw: Raw, call: str) -> None:
    """04 mass expiry: each call frees at least 100 of them, also if no job is consumed; a sweep
    frees the rest. No job's only copy has a Redis TTL.
    """
    q.enqueue_many([b"stays"] * 20)
    q.enqueue_many([b"x"] * 1000, ttl=60)
    q.release(q.reserve(320, block=0)[:20])
    keys = q.ops.keys.of(("ready", "held", "active", "expiry", "meta"))
    assert {raw.pttl(key) for key in keys} == {-1}
    advance(raw, q.ops, 60)
    todo: dict[str, Callable[[], Any]] = {
        "peek": q.peek,
        "sweep": q.sweep,
        "enqueue": lambda: q.enqueue(b"y"),
        "reserve": lambda: q.reserve(block=0),
    }
    for calls in range(1, 12):
        todo[call]()
        left = raw.zcard(q.ops.keys["expiry"])
        assert left <= (0 if call == "sweep" else max(0, 1000 - 100 * calls))
    there = raw.xlen(q.ops.keys["ready"]) + raw.hlen(q.ops.keys["held"])
    assert there == (31 if call == "enqueue" else 20)
    assert q.stats().expired == 1000


def test_empty_queues_go(ps: Penstock, raw: Raw) -> None:
    """04 idle queues expire: a sweep removes an empty idle queue; only keys of the node and of
    producers are left.
    """
    for number in range(30):
        queue = ps.queue(f"queue {number}")
        queue.enqueue(b"x")
        queue.ack(queue.reserve(block=0))
        assert not raw.exists(*queue.ops.keys.of(("held", "active", "expiry", "tally")))
        advance(raw, queue.ops, 1000)
    ps.sweep()
    assert ps.queues() == []
    assert [key for key in raw.scan_iter() if b"producer" not in key] == [b"penstock:node"]


def test_an_ack_ends_a_job(q: Queue) -> None:
    """05 ack, single node; 05 fast ack to the owner: no data of it is shown any more."""
    done = q.enqueue(b"x")
    (job,) = q.reserve(block=0)
    assert q.ack([job]).done == 1
    assert q.show(done.id) is None
    assert q.stats().acked == 1


def test_an_ack_reaches_the_replicas(copies: Copies) -> None:
    """05 acks propagate: after the ack no replica has the job."""
    with Penstock(copies.primary.url) as ps:
        queue = ps.queue("q")
        queue.enqueue_many([b"x"] * 3, durable=Durable(2, timeout=20))
        queue.ack(queue.reserve(3, block=0))
        copies.in_step()
        assert all(nothing(server) for server in copies.replicas)


def test_an_ack_without_a_replica(copies: Copies) -> None:
    """05 acks are evicted when all holders have them: no data is kept for an absent replica; when
    it is back it removes the job too.
    """
    with Penstock(copies.primary.url) as ps:
        queue = ps.queue("q")
        queue.enqueue_many([b"x"] * 3, durable=Durable(2, timeout=20))
        copies.replicas[0].kill()
        queue.ack(queue.reserve(3, block=0))
        assert nothing(copies.primary)
        copies.replicas[0].restart()
        copies.in_step()
        assert nothing(copies.replicas[0])


def test_an_ack_while_the_server_is_down(durable: EmbeddedServer) -> None:
    """05 ack while owners are down (2 tests): the call is repeated until the server is back, and
    the job is not delivered again.
    """
    with Penstock(durable.url, retry_for=60) as ps:
        queue = ps.queue("q")
        queue.enqueue(b"x", lease=0.2)
        (job,) = queue.reserve(block=0)
        durable.kill()
        acking = spawn(lambda: queue.ack([job.id]))
        durable.restart()
        assert list(acking.result()) == [Outcome.DONE]
        assert queue.reserve(block=0.4) == []
        assert queue.stats().acked == 1


# -- 06, 07 ------------------------------------------------------------------------------------


@pytest.mark.parametrize("lease", [None, 0], ids=["leased", "once"])
def test_a_hundred_jobs_by_several_readers(
    backend: Backend, ps: Penstock, q: Queue, lease: float | None
) -> None:
    """06 fetch each from one instance; 06 add 100 with RETRY 0; 06 fetch each RETRY 0 job: four
    simultaneous readers get each of them once.
    """
    q.enqueue_many(range(100), lease=lease)
    clients = [Penstock(backend.sync_client()) for _ in range(4)]

    def drain(number: int) -> list[int]:
        found: list[int] = []
        while jobs := clients[number].queue("q").reserve(3, block=0):
            found += bodies(jobs)
        return found

    try:
        found = [body for part in together(drain, 4) for body in part]
        assert Counter(found) == Counter(range(100))
    finally:
        for client in clients:
            client.close()


def test_everything_is_there_after_a_restart(durable: EmbeddedServer) -> None:
    """07 delivered after a mass restart (5 tests); a.5 crash; a.1 counters: after a kill the server
    has order, counters, delays, leases, pauses and jobs with lease 0 at once.
    """
    with Penstock(durable.url) as ps, redis.Redis.from_url(durable.url) as raw:
        q = ps.queue("q")
        delivered = q.enqueue("delivered", lease=0)
        q.reserve(block=0)
        ids = q.enqueue_many(["a", "b", "c", "d"]).ids
        counted = q.enqueue("counted", lease=20)
        jobs = q.reserve(5, block=0)
        jobs[-1].nack(delay=0)
        q.reserve(block=0)
        advance(raw, q.ops, 20)
        q.reserve(block=0)
        q.nack([jobs[2].id, jobs[0].id, jobs[3].id, jobs[1].id], delay=0)
        delayed = q.enqueue("delayed", delay=600)
        once = q.enqueue("once", lease=0)
        assert q.extend([counted.id], 5000).seconds_left == [5000]
        before = [view for state in ("scheduled", "active") for view in q.peek(state=state)]
        stats = q.stats()
        durable.kill()
        durable.restart()
        after = [view for state in ("scheduled", "active") for view in q.peek(state=state)]
        assert [(one.id, one.due, one.lease_until) for one in after] == [
            (one.id, one.due, one.lease_until) for one in before
        ]
        again = q.stats()
        assert (again.ready, again.scheduled, again.active) == (
            stats.ready,
            stats.scheduled,
            stats.active,
        )
        assert (again.nacked, again.deliveries) == (stats.nacked, stats.deliveries)
        found = q.reserve(10, block=0)
        assert [job.id for job in found] == [*ids, once.id]
        assert [job.nacks for job in found] == [1, 1, 1, 1, 0]
        assert shown(q, delivered.id).state == "active"
        view = shown(q, counted.id)
        assert (view.nacks, view.redeliveries, view.deliveries) == (1, 1, 3)
        advance(raw, q.ops, 600)
        assert delayed.id in [job.id for job in q.reserve(10, block=0)]


# -- 08, 09 ------------------------------------------------------------------------------------


@pytest.mark.slow  # a short run has fewer queues, in test_disque_looking.py
def test_many_queues_are_scanned(real_ps: Penstock) -> None:
    """08 QSCAN iterator; 08 QSCAN BUSYLOOP; 08 QSCAN MINLEN, MAXLEN: 512 queues, all found."""
    names = {f"queue {number}" for number in range(512)}
    for name in names:
        real_ps.queue(name).enqueue(b"x")
    real_ps.queue("queue 0").enqueue_many([b"y"] * 10)
    real_ps.queue("queue 1").enqueue_many([b"y"] * 20)
    cursor, found = "0", []
    while True:
        page = real_ps.scan_queues(cursor, 64)
        found += [queue.name for queue in page.queues]
        cursor = page.cursor
        if cursor == "0":
            break
    assert set(found) == names
    assert {queue.name for queue in real_ps.scan_queues_iter()} == names
    long = {queue.name: queue.ready for queue in real_ps.scan_queues_iter(min_length=10)}
    assert long == {"queue 0": 11, "queue 1": 21}
    assert {queue.name for queue in real_ps.scan_queues_iter(min_length=10, max_length=11)} == {
        "queue 0"
    }


def test_many_jobs_are_scanned(ps: Penstock) -> None:
    """09 JSCAN iterator; 09 JSCAN BUSYLOOP; 09 JSCAN QUEUE; 09 JSCAN STATE; 09 JSCAN REPLY ALL: 512
    jobs, all found.
    """
    one, two = ps.queue("one"), ps.queue("two")
    ids = set(one.enqueue_many(range(256)).ids)
    ids |= set(two.enqueue_many(range(246)).ids)
    delayed = set(two.enqueue_many(range(10), delay=600).ids)
    found: list[str] = []
    for queue in (one, two):
        cursor = "0"
        while True:
            page = queue.jobs(n=50).page(cursor, full=False)
            found += page.ids
            cursor = page.cursor
            if cursor == "0":
                break
    assert set(found) == ids | delayed
    assert {view.id for view in ps.jobs()} == ids | delayed
    assert {view.queue for view in ps.jobs(["two"])} == {"two"}
    assert len({view.id for view in ps.jobs(["two"])}) == 256
    assert {view.id for view in ps.jobs(state=["scheduled"])} == delayed
    (first,) = [view for view in one.jobs() if view.body == 0]
    assert (first.queue, first.state, first.lease) == ("one", "ready", 30)


# -- 11, 12 ------------------------------------------------------------------------------------


def test_working_postpones(q: Queue, raw: Raw) -> None:
    """11 WORKING returns the retry time; 11 WORKING prevents a requeue: while the holder calls, no
    other consumer gets the job.
    """
    q.enqueue(b"x", lease=30)
    (job,) = q.reserve(block=0)
    for _ in range(10):
        assert job.extend() == 30
        advance(raw, q.ops, 20)
        assert q.reserve(block=0) == []
    q.enqueue(b"y", lease=123)
    (other,) = q.reserve(block=0)
    assert other.extend() == 123


def test_a_nack_is_exactly_one(q: Queue) -> None:
    """12 NACK requeues at once; 12 WITHCOUNTERS, nacks: one nack is counted once, and the job is
    first.
    """
    q.enqueue_many(["x", "y"])
    (job,) = q.reserve(block=0)
    assert job.nack(delay=0)
    with pytest.raises(StaleReceipt):
        job.nack(delay=0)
    assert q.stats().ready == 2
    again, other = q.reserve(2, block=0)
    assert (again.id, again.nacks, again.redeliveries) == (job.id, 1, 0)
    assert other.nacks == 0
    assert q.stats().nacked == 1


def test_an_additional_delivery_is_exactly_one(q: Queue, raw: Raw) -> None:
    """12 WITHCOUNTERS, additional deliveries: one ended lease is counted once."""
    q.enqueue(b"x", lease=20)
    q.reserve(block=0)
    advance(raw, q.ops, 200)
    for _ in range(3):
        q.stats()
        q.sweep()
    (job,) = q.reserve(block=0)
    assert (job.nacks, job.redeliveries, job.deliveries) == (0, 1, 2)
