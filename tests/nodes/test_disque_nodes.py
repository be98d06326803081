"""Disque's tests of several nodes, restated for nodes that do not know each other.

A docstring begins with the rows of tests/conformance/test_disque_suite.py (and _promises) it holds.
"""

from __future__ import annotations

import sys
import time
from collections import Counter

import pytest

from penstock import NodesUnavailable, Outcome, Penstock, WrongNode
from tests.conformance import disque
from tests.conformance.disque import SEVERAL_NODES, Rows, check_rows
from tests.conformance.test_disque_promises import ROWS as PROMISES
from tests.conformance.test_disque_suite import ROWS as SUITE
from tests.nodes.federation import Servers, fill_up, home_of
from tests.support.twins import spawn, wait_for

ROWS: Rows = {
    "01 kill two nodes, flagged as failing": ("test_two_nodes_that_are_killed",),
    "01 restart two nodes, flag cleared": ("test_two_nodes_that_come_back",),
    "02 ADDJOB out of memory, external replication, 1 and 2 nodes": (
        "test_a_full_node_is_passed_over",
        "test_a_crowded_node_comes_last",
    ),
    "02 uses more nodes when the first are down (3 tests)": (
        "test_adds_use_the_remaining_nodes",
        "test_adds_without_any_node",
    ),
    "05 ack to a node that does not know the job": ("test_an_ack_goes_to_the_node_of_its_job",),
    "05 ack while owners are down (2 tests)": ("test_an_ack_while_the_home_is_down",),
    "05 fast ack to another node": ("test_an_ack_goes_to_the_node_of_its_job",),
    "06 add 100 to random nodes": ("test_a_hundred_jobs_on_several_nodes",),
    "06 node 0 has not all": ("test_a_hundred_jobs_on_several_nodes",),
    "06 fetch each from one instance": ("test_a_hundred_jobs_on_several_nodes",),
    "06 add 100 with RETRY 0": ("test_a_hundred_jobs_on_several_nodes",),
    "06 fetch each RETRY 0 job": ("test_a_hundred_jobs_on_several_nodes",),
    "08 QSCAN IMPORTRATE": "queues do not draw jobs from other nodes; consumers go to them",
    "10 leaving can be queried, and set (2 tests)": ("test_leaving_is_a_flag_of_the_node",),
    "10 leaving reaches other nodes": ("test_leaving_is_a_flag_of_the_node",),
    "10 a leaving node takes no copies (2 tests)": ("test_a_leaving_node_takes_no_jobs",),
    "10 GETJOB of a leaving node (2 tests)": ("test_a_leaving_node_is_drained",),
    "10 HELLO priority of a leaving node": ("test_leaving_is_a_flag_of_the_node",),
    "a.4 at most once and another node": ("test_a_leaving_node_takes_no_jobs",),
    "a.5 requeue race": "one node has a job, so there is no race for it",
    "a.5 ack among holders": ("test_an_ack_while_the_home_is_down",),
    "a.5 wrong node": ("test_every_call_goes_to_the_node_of_its_job",),
    "a.5 reach of counts": ("test_counts_reach_every_node",),
    "a.5 federation delay": ("test_a_cold_node_wakes_a_reader",),
}


def one_on_each(servers: Servers, **options: object) -> list[str]:
    """Return the ids of jobs, one on each node in order."""
    ids = []
    for url in servers.urls:
        with Penstock(url) as single:
            ids.append(single.queue("q").enqueue(url, **options).id)  # type: ignore[arg-type]  # theirs
    return ids


def test_every_row_is_held_or_has_a_reason() -> None:
    """Every row is either here or in the tables of one node."""
    check_rows(ROWS, sys.modules[__name__])
    left = {row for rows in (SUITE, PROMISES) for row in rows if rows[row] == SEVERAL_NODES}
    assert left <= set(ROWS)
    assert all(map(disque.heads_of, disque.tests_of(sys.modules[__name__])))


def test_two_nodes_that_are_killed(five: Servers) -> None:
    """01 kill two nodes, flagged as failing: within a second they are down, and get no jobs."""
    with five.client() as ps:
        down = {ps.hello().nodes[i].id for i in (1, 3)}
        for number in (1, 3):
            five.all[number].kill()
        began = time.monotonic()
        nodes = ps.hello().nodes
        assert time.monotonic() - began < 5
        assert {node.id for node in nodes if node.priority == 100} == down
        assert all(node.error for node in nodes if node.priority == 100)
        ids = [ps.queue("q").enqueue(i).id for i in range(20)]
        assert not {one[:8] for one in down} & {home_of(one) for one in ids}


def test_two_nodes_that_come_back(five: Servers) -> None:
    """01 restart two nodes, flag cleared: clients that knew them as down use them again."""
    with five.client() as ps:
        ps.connect()
        for number in (1, 3):
            five.all[number].kill()
        assert sum(node.priority == 100 for node in ps.hello().nodes) == 2
        for number in (1, 3):
            five.all[number].restart()
        wait_for(lambda: all(node.priority == 1 for node in ps.hello().nodes))
        ids = one_on_each(five)
        got: list[str] = []
        while len(got) < 5:
            got += [job.id for job in ps.queue("q").reserve(5, block=5)]
        assert sorted(got) == sorted(ids)


@pytest.mark.parametrize("full", [1, 2])
def test_a_full_node_is_passed_over(three: Servers, full: int) -> None:
    """02 ADDJOB out of memory, external replication, 1 and 2 nodes: the add goes to another node,
    whose prefix the id has, and the body can be read.
    """
    with three.client() as ps:
        q = ps.queue("q")
        filled = set()
        for _ in range(full):
            home = home_of(q.enqueue("before").id)
            server = three.with_id(ps, home)
            fill_up(three.raw(three.all.index(server)), 1.1)
            filled.add(home)
        done = q.enqueue("after")
        assert home_of(done.id) not in filled
        with Penstock(three.with_id(ps, home_of(done.id)).url) as single:
            view = single.queue("q").show(done.id)
        assert view is not None
        assert view.body == "after"


def test_a_crowded_node_comes_last(three: Servers) -> None:
    """02 ADDJOB out of memory, external replication, 1 and 2 nodes: above three quarters of its
    memory a node gets jobs only if all others are as full.
    """
    with three.client() as ps:
        q = ps.queue("q")
        first = home_of(q.enqueue("x").id)
        fill_up(three.raw(three.all.index(three.with_id(ps, first))), 0.85)
        wait_for(lambda: home_of(q.enqueue("x").id) != first)
        for number in range(3):
            fill_up(three.raw(number), 0.85)
        wait_for(lambda: {node.priority for node in ps.hello().nodes} == {10})
        with three.client() as other:
            assert other.queue("q").enqueue("x").id


@pytest.mark.parametrize("down", [1, 2, 4])
def test_adds_use_the_remaining_nodes(five: Servers, down: int) -> None:
    """02 uses more nodes when the first are down (3 tests): one of five nodes is sufficient;
    clients connected to dead ones continue too.
    """
    with five.client() as ps:
        q = ps.queue("q")
        for _ in range(down):
            five.with_id(ps, home_of(q.enqueue("before").id)).kill()
            began = time.monotonic()
            q.enqueue("after")
            assert time.monotonic() - began < 5
        [job] = q.reserve(1)
        assert job.ack()
        with five.client() as fresh:
            assert fresh.queue("q").enqueue("fresh").id


def test_adds_without_any_node(three: Servers) -> None:
    """02 uses more nodes when the first are down (3 tests): without any node the error names each
    with its reason after the time.
    """
    with three.client(retry_for=0.3) as ps:
        q = ps.queue("q")
        q.enqueue("x")
        for server in three.all:
            server.kill()
        with pytest.raises(NodesUnavailable) as caught:
            q.enqueue("y")
        assert len(caught.value.reasons) == 3


def test_an_ack_goes_to_the_node_of_its_job(three: Servers) -> None:
    """05 ack to a node that does not know the job; 05 fast ack to another node: it works from a
    client whose producer uses another node; the outcome is exact.
    """
    ids = one_on_each(three)
    with three.client() as ps:
        q = ps.queue("q")
        assert list(q.ack(ids)) == [Outcome.DONE] * 3
        assert list(q.ack(ids)) == [Outcome.GONE] * 3
        assert q.stats().ready == 0


def test_an_ack_while_the_home_is_down(three: Servers) -> None:
    """05 ack while owners are down (2 tests); a.5 ack among holders: it is kept as a hint and
    applied when the node is back: the job is not redelivered, although its lease has ended.
    """
    with three.client(retry_for=0.5) as ps:
        q = ps.queue("q")
        added = q.enqueue("x", lease=1)
        [job] = q.reserve(1)
        server = three.with_id(ps, home_of(added.id))
        server.kill()
        assert list(q.ack([job])) == [Outcome.HINTED]
        time.sleep(1.1)  # the lease
        server.restart()
        assert q.reserve(1, block=3) == []
        assert (q.stats().acked, q.stats().deliveries) == (1, 1)


@pytest.mark.parametrize("lease", [None, 0])
def test_a_hundred_jobs_on_several_nodes(three: Servers, lease: float | None) -> None:
    """06 add 100 to random nodes; 06 node 0 has not all; 06 fetch each from one instance; 06 add
    100 with RETRY 0; 06 fetch each RETRY 0 job: each node has some jobs; one reader drains them
    all, each body once.
    """
    homes: Counter[str] = Counter()
    for number in range(100):
        with Penstock([three.urls[number % 3]]) as producer:
            done = producer.queue("q").enqueue(number, lease=lease)
            homes[home_of(done.id)] += 1
    assert sorted(homes.values()) == [33, 33, 34]
    with three.client() as ps:
        q, got = ps.queue("q"), []
        began = time.monotonic()
        while len(got) < 100:
            jobs = q.reserve(10, block=5)
            got += [job.body for job in jobs]
            q.ack(jobs)
        assert time.monotonic() - began < 5
        assert sorted(got) == list(range(100))
        assert q.reserve(1, block=0) == []


def test_leaving_is_a_flag_of_the_node(three: Servers) -> None:
    """10 leaving can be queried, and set (2 tests); 10 leaving reaches other nodes; 10 HELLO
    priority of a leaving node: the flag is stored on the node and survives a restart; every client
    sees its changes.
    """
    with three.client() as ps, three.client() as other:
        node = ps.nodes.list()[0]
        assert not node.leaving
        ps.nodes.leave(node)
        seen = {one.id: one for one in other.nodes.list()}[node.id]
        assert (seen.leaving, seen.priority) == (True, 100)
        server = three.with_id(ps, node.id)
        server.kill()
        server.restart()
        with three.client() as fresh:
            assert {one.id: one for one in fresh.nodes.list()}[node.id].leaving
        wait_for(lambda: not any(one.error for one in other.nodes.list()))
        other.nodes.join(node.id[:8])
        assert not any(one.leaving for one in ps.nodes.list())


@pytest.mark.parametrize("lease", [None, 0])
def test_a_leaving_node_takes_no_jobs(three: Servers, lease: float | None) -> None:
    """10 a leaving node takes no copies (2 tests); a.4 at most once and another node: within a
    second of the flag, for every class of jobs; if all nodes leave, adds are refused.
    """
    with three.client() as ps, three.client() as steering:
        q = ps.queue("q")
        home = home_of(q.enqueue("x", lease=lease).id)
        steering.nodes.leave(home)
        until = time.monotonic() + 1
        while time.monotonic() < until:
            q.enqueue("x", lease=lease)
        before = steering.nodes.check_drained(home).waiting
        ids = [q.enqueue("x", lease=lease).id for _ in range(50)]
        assert home not in {home_of(one) for one in ids}
        assert steering.nodes.check_drained(home).waiting == before
        for node in steering.nodes.list():
            steering.nodes.leave(node)
        time.sleep(1)
        with pytest.raises(NodesUnavailable, match="leaving"):
            q.enqueue("x", lease=lease)
        jobs = q.reserve(1000, block=0)
        assert len(jobs) == 1000 or q.stats().ready == 0


def test_a_leaving_node_is_drained(three: Servers) -> None:
    """10 GETJOB of a leaving node (2 tests): a reader empties it and continues with the others
    without an error.
    """
    with three.client() as ps, three.client() as reader:
        ids = one_on_each(three)
        leaving = home_of(ids[0])
        ps.nodes.leave(leaving)
        assert not ps.nodes.check_drained(leaving)
        q = reader.queue("q")
        got = []
        for job in q.consume(block=1):
            with job:
                got.append(job.id)
                if len(got) == 3:
                    assert ps.queue("q").enqueue("more").id
        assert set(ids) <= set(got)
        assert len(got) == 4
        assert ps.nodes.check_drained(leaving)
        assert spawn(q.reserve, 1, block=0.2).result() == []


def test_every_call_goes_to_the_node_of_its_job(three: Servers) -> None:
    """a.5 wrong node: every call by id reaches the job's node; an unknown node is
    named in the error.
    """
    ids = one_on_each(three)
    with three.client() as ps:
        q = ps.queue("q")
        assert all(q.show(one) for one in ids)
        assert list(q.postpone(ids)) == [Outcome.DONE] * 3
        assert list(q.promote(ids)) == [Outcome.DONE] * 3
        jobs = q.reserve(3)
        lasting = q.extend([job.id for job in jobs]).seconds_left
        assert all(left is not None and left > 29 for left in lasting)
        assert list(q.nack(jobs, delay=0)) == [Outcome.DONE] * 3
        assert list(q.delete(ids)) == [Outcome.DONE] * 3
    with Penstock(three.urls[:2]) as two, pytest.raises(WrongNode, match=home_of(ids[2])):
        two.queue("q").ack([ids[2]])


def test_counts_reach_every_node(three: Servers) -> None:
    """a.5 reach of counts: lengths, stats, peeks and scans cover all nodes; one
    that is down is named.
    """
    ids = one_on_each(three)
    with three.client() as ps:
        q = ps.queue("q")
        assert q.stats().ready == 3
        assert {view.id for view in q.peek()} == {view.id for view in q.jobs()} == set(ids)
        three.all[0].kill()
        missing = (f"127.0.0.1:{three.all[0].port}",)
        assert (q.stats().ready, q.stats().unreachable) == (2, missing)
        assert {view.id for view in q.jobs()} == set(ids[1:])


def test_a_cold_node_wakes_a_reader(five: Servers) -> None:
    """a.5 federation delay: a reader blocked on five nodes gets a job of any of
    them within 50 ms.
    """
    with five.client() as ps:
        q = ps.queue("q")
        best = [9.0] * 5
        for _ in range(5):  # the machine may be busy
            for number, url in enumerate(five.urls):
                if best[number] < 0.05:
                    continue
                with Penstock(url) as single:
                    cold = single.queue("q")
                    cold.stats()
                    waiting = spawn(_timed, q)
                    wait_for(lambda: _blocked(five) == 5)
                    began = time.monotonic()
                    cold.enqueue("x")
                    best[number] = min(best[number], waiting.result() - began)
        assert max(best) < 0.05, best


def _timed(q: object) -> float:
    [job] = q.reserve(1, block=20)  # type: ignore[attr-defined]  # a queue
    at = time.monotonic()
    job.ack()
    return at


def _blocked(servers: Servers) -> int:
    return sum(servers.raw(i).info("clients")["blocked_clients"] for i in range(len(servers.all)))
