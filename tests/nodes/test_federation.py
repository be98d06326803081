"""Several nodes with faults: killed, frozen, disconnected, full; no job is lost, no call hangs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from penstock import (
    AsyncPenstock,
    Durable,
    NodesMissed,
    NotReplicated,
    Outcome,
    OutOfMemory,
    Penstock,
)
from penstock.core.nodes import state
from penstock.embedded import EmbeddedServer
from tests.nodes.federation import Ledger, Servers, fill_up, home_of, one_on, spread
from tests.support.proxy import Proxy
from tests.support.replicated import reach_replicas
from tests.support.twins import aspawn, spawn, wait_for

# -- total queue -------------------------------------------------------------------------------


def test_nodes_are_killed_and_restarted_under_load(five: Servers) -> None:
    """The nodes with most jobs are killed, one and then two: no confirmed job is lost.

    Meanwhile jobs go to other nodes. A job acknowledged on its node is not delivered again.
    """
    ledger = Ledger(five, retry_for=1)
    with five.client() as ps:
        homes = {view.id[:8]: five.number_of(view.address) for view in ps.hello().nodes}
    for _ in range(3):
        ledger.produce(0.002)
    for _ in range(2):
        ledger.consume()
    ledger.wait_acked(100)
    for count in (1, 1, 1, 2, 2):
        used = [home for home, _ in spread(list(ledger.added)).most_common(count)]
        down = [five.all[homes[home]] for home in used]
        for server in down:
            server.kill()
        before = set(ledger.added)
        ledger.wait_added(100)
        ledger.wait_acked(50)
        late = spread(set(ledger.added) - before)
        assert sum(late[home] for home in used) <= 3  # one call of each producer had its answer
        for server in down:
            server.restart()
        ledger.wait_acked(50)
    ledger.end()
    assert len(spread(ledger.added)) >= 3
    assert not ledger.came_back()


def test_progress_with_one_node_of_five(five: Servers) -> None:
    """With four of five nodes dead, jobs are added and done; the rest when they are back."""
    ledger = Ledger(five, retry_for=1)
    ledger.produce(0.002)
    ledger.consume()
    ledger.wait_acked(50)
    for server in five.all[:4]:
        server.kill()
    ledger.wait_added(100)
    ledger.wait_acked(100)
    for server in five.all[:4]:
        server.restart()
    ledger.end()
    assert not ledger.came_back()


def test_frozen_nodes_under_load(three: Servers) -> None:
    """A node is paused (SIGSTOP) and continues: no job is lost, and the others are used."""
    ledger = Ledger(three, "socket_timeout=0.5", retry_for=1)
    for _ in range(2):
        ledger.produce(0.002)
        ledger.consume()
    ledger.wait_acked(50)
    for server in three.all:
        server.pause()
        try:
            ledger.wait_added(50)
            ledger.wait_acked(50)
        finally:
            server.resume()
        ledger.wait_acked(20)
    ledger.end()
    assert not ledger.came_back()


# -- consumers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_a_node_that_is_down_delays_no_client(five: Servers, how: str) -> None:
    """A consumer uses the other nodes at once, or after a timeout if a node hangs."""
    with five.client(retry_for=1) as ps:
        q = ps.queue("q")
        q.reserve(1, block=0)
        down = five.all[2]
        if how == "killed":
            down.kill()
        else:
            down.pause()
        try:
            spans = []
            for number in (0, 1, 3, 4) * 3:
                one_on(five.all[number])
                began = time.monotonic()
                [job] = q.reserve(1, block=10)
                assert job.ack()
                spans.append(time.monotonic() - began)
            assert max(spans) < 4
            assert sorted(spans)[len(spans) // 2] < 0.5
        finally:
            if how == "killed":
                down.restart()
            else:
                down.resume()
        job_id = one_on(down)
        [job] = q.reserve(1, block=15)
        assert job.id == job_id


def test_a_blocked_consumer_sees_a_node_come_back(three: Servers) -> None:
    """It waits on the other nodes, and gets the first job of the one that comes back."""
    with three.client() as ps:
        q = ps.queue("q")
        three.all[0].kill()
        waiting = spawn(q.reserve, 1, block=30)
        wait_for(lambda: _blocked(three, 1) == 1)
        three.all[0].restart()
        job_id = one_on(three.all[0])
        [job] = waiting.result(20)
        assert job.id == job_id


async def test_a_blocked_task_sees_a_node_fall_and_come_back(three: Servers) -> None:
    """A task waits on, when a node is killed during the wait and comes back."""
    async with AsyncPenstock(three.urls) as ps:
        q = ps.queue("q")
        waiting = aspawn(q.reserve, 1, block=30)
        while _blocked(three, 0) < 1:
            await q.stats()
        three.all[0].kill()
        assert (await q.stats()).unreachable
        three.all[0].restart()
        job_id = one_on(three.all[0])
        [job] = await waiting.result(20)
        assert job.id == job_id


def test_an_idle_consumer_costs_little(five: Servers) -> None:
    """An idle consumer sends at most half a command a second to each node."""
    with five.client() as ps:
        waiting = spawn(ps.queue("q").reserve, 1, block=13)
        for number in range(5):
            wait_for(lambda number=number: _blocked(five, number) == 1)  # type: ignore[misc]  # bound now
        before = [_commands(five, number) for number in range(5)]
        began = time.monotonic()
        time.sleep(12)
        span = time.monotonic() - began
        after = [_commands(five, number) for number in range(5)]
        rates = [(b - a - 1) / span for a, b in zip(before, after, strict=True)]  # without the INFO
        assert max(rates) <= 0.5, rates
        assert waiting.result() == []


def _blocked(servers: Servers, number: int) -> int:
    return int(servers.raw(number).info("clients")["blocked_clients"])


def _commands(servers: Servers, number: int) -> int:
    """Count the commands of clients, without those run by scripts.

    Only HMGET may be sent by both; every script runs it once.
    """
    stats = servers.raw(number).info("commandstats")
    counts = {name.removeprefix("cmdstat_"): found["calls"] for name, found in stats.items()}
    sent = ("evalsha", "blpop", "client|id", "client|unblock", "hgetall", "hlen", "info", "ping")
    own = max(0, counts.get("hmget", 0) - counts.get("evalsha", 0))
    return own + sum(counts.get(name, 0) for name in sent)


# -- producers ---------------------------------------------------------------------------------


def behind(proxy: Proxy, other: EmbeddedServer, **options: Any) -> tuple[Penstock, Any]:
    """A client of a node behind a proxy and of another one; its producer uses the former."""
    while True:
        source = [f"{proxy.url}?socket_timeout=0.2", other.url]
        ps = Penstock(source, retry_for=0.3, **options)
        if home_of(ps.queue("q").enqueue("first").id) == id_of(proxy.url):
            return ps, ps.queue("q")
        ps.close()


@pytest.fixture
def trusting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make producers trust the last state of a node: a look at it would fail before the call."""
    monkeypatch.setattr(state, "FLAG_MAX_AGE", 60.0)


def id_of(url: str) -> str:
    """Return the id prefix of a node."""
    with Penstock(url) as single:
        return single.hello().node[:8]


@pytest.mark.usefixtures("trusting")
def test_an_unknown_outcome_raises(three: Servers) -> None:
    """The replies of a node are lost: it may have the job, so no other node gets it."""
    with Proxy(three.all[0].address) as proxy:
        ps, q = behind(proxy, three.all[1])
        with ps:
            proxy.hole("down")
            with pytest.raises(RedisTimeoutError):
                q.enqueue("once")
            proxy.restore()
            q.enqueue("next")
            wait_for(lambda: not q.stats().unreachable)
            bodies = [view.body for view in q.peek(100)]
            assert (bodies.count("once"), bodies.count("next")) == (1, 1)


@pytest.mark.usefixtures("trusting")
def test_an_unknown_outcome_may_continue(three: Servers) -> None:
    """With on_unknown="next" the enqueue returns, and the job may exist twice, as it does here."""
    with Proxy(three.all[0].address) as proxy:
        ps, q = behind(proxy, three.all[1], on_unknown="next")
        with ps:
            proxy.hole("down")
            assert home_of(q.enqueue("twice").id) == id_of(three.urls[1])
            proxy.restore()
            wait_for(lambda: not q.stats().unreachable)
            assert [view.body for view in q.peek(100)].count("twice") == 2


def test_a_bulk_continues_elsewhere(three: Servers) -> None:
    """A node fails between chunks: the ids show which node has which chunk."""
    with three.client(retry_for=1) as ps:
        q = ps.queue("q")

        def bodies() -> Iterator[int]:
            for number in range(3000):
                if number == 1500:
                    three.with_id(ps, home_of(next(iter(q.peek(1))).id)).kill()
                yield number

        done = q.enqueue_many(bodies())
        assert sorted(spread(done.ids).values()) == [1000, 2000]
        wait_for(lambda: q.stats().ready == 2000)


def test_a_full_federation_refuses(three: Servers) -> None:
    """Without memory on any node the error is that of a single node; all nodes can be drained."""
    with three.client() as ps:
        q = ps.queue("q")
        q.enqueue("before")
        for number in range(3):
            fill_up(three.raw(number), 1.1)
        with pytest.raises(OutOfMemory):
            q.enqueue("x")
        [job] = q.reserve(1)
        assert job.ack()


def test_replicas_decide_where_a_job_goes(three: Servers) -> None:
    """A node without enough replicas withdraws the job, and the next node gets it."""
    replica = three.more("--replicaof", "127.0.0.1", str(three.all[1].port))
    with three.client() as ps:
        q = ps.queue("q")
        reach_replicas(three.raw(1), 1)
        for _ in range(5):
            done = q.enqueue("x", durable=Durable(1, timeout=1))
            assert home_of(done.id) == id_of(three.urls[1])
        assert q.stats().ready == 5
        replica.kill()
        with pytest.raises(NotReplicated) as caught:
            q.enqueue("x", durable=Durable(1, timeout=0.2))
        assert caught.value.withdrawn
        assert q.stats().ready == 5


def test_a_returning_node_gets_missed_changes(three: Servers) -> None:
    """A returning node gets a missed pause before a waiting consumer reserves from it."""
    with three.client(retry_for=1) as ps:
        q = ps.queue("q")
        q.configure(lease=7)
        there = one_on(three.all[1])
        three.all[1].kill()
        with pytest.raises(NodesMissed):
            q.pause("out")
        with pytest.raises(NodesMissed):
            q.configure(lease=9)
        waiting = spawn(q.reserve, 1, block=30)
        three.all[1].restart()
        wait_for(lambda: not q.stats().unreachable)
        stats = q.stats()
        assert (stats.settings.lease, stats.settings.paused, stats.ready) == (9, "out", 1)
        assert stats.differing == ()
        assert not waiting.is_done
        q.resume()
        [job] = waiting.result()
        assert job.id == there


# -- hints -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["ack", "delete", "bury"])
def test_a_call_is_kept_while_its_home_is_down(three: Servers, kind: str) -> None:
    """A call by receipt or id is kept as a hint, applied when its node is back, and removed."""
    with three.client(retry_for=0.3) as ps:
        q = ps.queue("q")
        ids = [one_on(three.all[0], number, lease=1) for number in range(3)]
        jobs = {job.id: job for job in q.reserve(2)}
        three.all[0].kill()
        named = [jobs.get(one, one) for one in ids]
        assert list(getattr(q, kind)(named)) == [Outcome.HINTED] * 3
        assert not getattr(q, kind)(named)
        kept = [three.raw(number).hlen("penstock:hints") for number in (1, 2)]
        assert sorted(kept) == [0, 3]
        [life] = [three.raw(i).pttl("penstock:hints") for i in (1, 2) if kept[i - 1]]
        assert 44 * 86_400_000 < life <= 46 * 86_400_000
        time.sleep(1.1)
        three.all[0].restart()
        assert q.reserve(3, block=3) == []
        stats = q.stats()
        done = {"ack": (3, 0, 0), "delete": (0, 3, 0), "bury": (0, 0, 3)}[kind]
        assert (stats.acked, stats.deleted, stats.dead) == done
        assert [three.raw(number).hlen("penstock:hints") for number in (1, 2)] == [0, 0]


@pytest.mark.parametrize("how", ["killed", "frozen"])
@pytest.mark.parametrize("method", ["ack", "bury", "delete"])
def test_a_dead_node_does_not_delay_hints(three: Servers, how: str, method: str) -> None:
    """The first call finds out within a second, later ones know; `retry_for` does
    not delay them.
    """
    with three.client(retry_for=60) as ps:
        q = ps.queue("q")
        jobs = [one_on(three.all[0]) for _ in range(3)]
        q.reserve(3)
        down = three.all[0]
        (down.kill if how == "killed" else down.pause)()
        began = time.monotonic()
        for job in jobs:
            assert list(getattr(q, method)([job])) == [Outcome.HINTED]
        assert time.monotonic() - began < 10  # 0.8 s on an idle machine
        (down.restart if how == "killed" else down.resume)()
        wait_for(lambda: not q.stats().unreachable)
        wait_for(lambda: not any(three.raw(number).hlen("penstock:hints") for number in (1, 2)))
        stats = q.stats()
        assert (stats.active, stats.acked + stats.dead + stats.deleted) == (0, 3)


def test_nodes_that_were_slow_keep_hints(three: Servers) -> None:
    """A client whose first call fails before it has met the other nodes does not wait for long."""
    with three.client() as ps:
        ps.hello()  # each has its id
    job_id = one_on(three.all[0])
    for other in three.all[1:]:
        other.pause()
    ps = three.client(retry_for=60)
    [job] = ps.queue("q").reserve(1)
    assert job.id == job_id
    three.all[0].pause()
    for other in three.all[1:]:
        other.resume()
    began = time.monotonic()
    assert job.ack()
    assert time.monotonic() - began < 20  # 2.1 s on an idle machine, and not 60 s
    assert any(three.raw(number).hlen("penstock:hints") for number in (1, 2))
    three.all[0].resume()
    ps.close()


def test_a_call_that_no_node_keeps_is_tried_for_longer(three: Servers) -> None:
    """Calls for jobs with lease 0, or with replicas, are retried until the node is back."""
    with three.client(retry_for=20) as ps:
        q = ps.queue("q")
        once = [one_on(three.all[0], lease=0, ttl=600), one_on(three.all[0], lease=0, ttl=600)]
        q.reserve(2)
        three.all[0].kill()
        acking = spawn(q.ack, once[:1])
        wait_for(lambda: bool(q.stats().unreachable))
        assert not acking.is_done
        three.all[0].restart()
        assert list(acking.result()) == [Outcome.DONE]
        assert list(q.ack(once[1:], durable=Durable(0, timeout=1))) == [Outcome.DONE]


def test_a_hint_is_applied_by_other_clients(three: Servers) -> None:
    """A client that reaches both nodes applies the hint before it reserves from the job's node."""
    with three.client(retry_for=0.3) as ps, three.client() as other, three.client() as third:
        for one in (other, third):
            one.queue("q").reserve(1, block=0)
        job_id = one_on(three.all[0], lease=1)
        [job] = ps.queue("q").reserve(1)
        three.all[0].kill()
        assert job.ack()
        ps.close()
        time.sleep(1.1)
        three.all[0].restart()
        assert other.queue("q").reserve(1, block=2) == []
        assert other.queue("q").show(job_id) is None
        assert third.queue("q").reserve(1, block=0) == []


def test_calls_without_hints(three: Servers) -> None:
    """Acks of jobs with lease 0 are not kept, nor hints on nodes that leave or are full."""
    with three.client(retry_for=0.2) as ps:
        q = ps.queue("q")
        once = one_on(three.all[0], lease=0)
        twice = one_on(three.all[0], lease=9)
        jobs = {job.id: job for job in q.reserve(2)}
        views = {node.address: node for node in ps.nodes.list()}
        three.all[0].kill()
        with pytest.raises(RedisError):
            q.ack([jobs[once]])
        assert list(q.ack([jobs[once], jobs[twice]])) == [Outcome.UNKNOWN, Outcome.HINTED]
        for number in (1, 2):
            three.raw(number).delete("penstock:hints")
        ps.nodes.leave(views[f"127.0.0.1:{three.all[1].port}"])
        fill_up(three.raw(2), 0.9)
        time.sleep(1.1)  # its cached state of the nodes expires
        with pytest.raises(RedisError):
            q.ack([jobs[twice]])
        with pytest.raises(RedisError):
            q.nack([jobs[twice]])
        assert [three.raw(number).hlen("penstock:hints") for number in (1, 2)] == [0, 0]


def test_some_nodes_of_a_call_are_missing(three: Servers) -> None:
    """The error has the outcomes of the other nodes."""
    ids = [one_on(server) for server in three.all]
    with three.client(retry_for=0.2) as ps:
        q = ps.queue("q")
        jobs = {job.id: job for job in q.reserve(3)}
        three.all[1].kill()
        with pytest.raises(NodesMissed) as caught:
            q.nack([jobs[one] for one in ids])
        assert list(caught.value.results) == [Outcome.DONE, Outcome.UNKNOWN, Outcome.DONE]
        assert list(caught.value.unreachable) == [f"127.0.0.1:{three.all[1].port}"]


def test_a_consumer_continues_when_the_node_of_its_job_dies(three: Servers) -> None:
    """The node dies between delivery and ack: the loop continues, and the job is
    not redelivered.
    """
    ids = {one_on(server, number, lease=1) for number, server in enumerate(three.all)}
    with three.client(retry_for=0.3) as ps:
        seen = []
        for job in ps.queue("q").consume(block=2):
            with job:
                seen.append(job.id)
                if len(seen) == 1:
                    down = three.with_id(ps, home_of(job.id))
                    down.kill()
            if len(seen) == 3:
                time.sleep(1.1)
                down.restart()
        assert sorted(seen) == sorted(ids)
