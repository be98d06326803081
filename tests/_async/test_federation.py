"""A queue on several nodes: the node of each job and call. Faults are in tests/nodes."""

from __future__ import annotations

import asyncio  # async only
import inspect
import math
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from typing import Any

import fakeredis
import pytest
import redis

from penstock import (
    AckNotReplicated,
    AsyncJob,
    AsyncPenstock,
    AsyncQueue,
    AsyncWorker,
    BadArgument,
    BadJobId,
    ConfigurationError,
    Done,
    Durable,
    EnqueueEvent,
    Handlers,
    IncompleteSettle,
    Middleware,
    NodesMissed,
    NodesUnavailable,
    Outcome,
    QueueClosed,
    ResultGone,
    ResultTimeout,
    WrongEpoch,
    WrongNode,
    parse_id,
)
from penstock.client._async.client import twin_of
from penstock.client._async.nodes.federation import AsyncFederation
from penstock.client._async.nodes.hints import replay
from penstock.client._async.route import parts
from penstock.client._async.transport import server as transport
from penstock.client._async.transport.executor import AsyncExecutor
from penstock.client._async.transport.flow_run import AsyncFlowRun  # async only
from penstock.core.flows import schedules as schedule_flows
from penstock.core.jobs import hints
from penstock.core.jobs.job import number_of, set_result
from penstock.core.nodes.merging import Partial
from penstock.embedded import EmbeddedServer
from penstock.wire.keys import QueueKeys
from tests.support.backends import Backend
from tests.support.keyspace import check_invariant
from tests.support.twins import aspawn


def federation_of(ps: AsyncPenstock) -> AsyncFederation:
    """Return the nodes of a client."""
    federation = ps.topology.federation
    assert federation is not None
    return federation


NOWHERE = "redis://127.0.0.1:1/0"
"""An address without a server."""


class Nodes:
    """Several nodes for one test: servers of fakeredis, or databases of one server.

    Args:
        backends: one a node.
    """

    def __init__(self, backends: list[Backend]) -> None:
        self.backends = backends

    @property
    def sources(self) -> list[Any]:
        """Return a source for each node."""
        return [one.async_client() if one.is_fake else one.url for one in self.backends]

    def client(self, *more: Any, **options: Any) -> AsyncPenstock:
        """Return a client of all nodes."""
        return AsyncPenstock([*self.sources, *more], owner="tester", **options)

    def of(self, number: int) -> AsyncPenstock:
        """Return an ordinary client of one node."""
        return AsyncPenstock(self.sources[number], owner="other")


@pytest.fixture(params=["fakeredis", "server"])
def three(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    """Three empty nodes; the layout of their keys is checked at the end.

    A node that is slow, as the machine is busy, is not taken for one that is down.
    """
    monkeypatch.setattr(transport, "HURRY_SECONDS", 20.0)
    with ExitStack() as stack:
        if request.param == "fakeredis":
            backends = [Backend(f"fake-{i}", "") for i in range(3)]
        else:
            server = stack.enter_context(EmbeddedServer())
            urls = [f"{server.url}?db={i}" for i in range(3)]
            backends = [Backend(f"db-{i}", "", url, shared=True) for i, url in enumerate(urls)]
        for one in backends:
            stack.enter_context(one.acquired())
        yield Nodes(backends)
        for one in backends:
            check_invariant(one.sync_client())


@pytest.fixture
async def ps(three: Nodes) -> AsyncIterator[AsyncPenstock]:
    """A client of three nodes."""
    async with three.client() as client:
        yield client


@pytest.fixture
def q(ps: AsyncPenstock) -> AsyncQueue:
    """A queue on three nodes."""
    return ps.queue("q")


async def one_on_each(three: Nodes, name: str = "q", **options: Any) -> list[str]:
    """Enqueue one job on each node, and return the ids in the order of the nodes."""
    ids = []
    for number in range(3):
        async with three.of(number) as single:
            ids.append((await single.queue(name).enqueue(number, **options)).id)
    return ids


async def prefixes(ps: AsyncPenstock) -> list[str]:
    """Return the prefix of each node's ids."""
    return [node.id[:8] for node in (await ps.hello()).nodes]


async def test_every_node_has_an_id_of_its_own(three: Nodes, ps: AsyncPenstock) -> None:
    """A node's id is the same, whatever the order in which the nodes are listed."""
    ids = await prefixes(ps)
    assert len(set(ids)) == 3
    async with AsyncPenstock(list(reversed(three.sources))) as other:
        assert await prefixes(other) == list(reversed(ids))


async def test_a_producer_stays_with_one_node(ps: AsyncPenstock, q: AsyncQueue) -> None:
    """All jobs of one producer are on one node, and their ids name it."""
    ids = [(await q.enqueue(i)).id for i in range(5)]
    ids += (await q.enqueue_many(range(5))).ids
    [home] = {parse_id(one).node for one in ids}
    assert home in await prefixes(ps)


async def test_producers_are_spread(three: Nodes) -> None:
    """Clients start with different nodes."""
    seen = set()
    for _ in range(60):
        async with three.client() as ps:
            seen.add(parse_id((await ps.queue("q").enqueue("x")).id).node)
        if len(seen) == 3:
            return
    raise AssertionError(seen)


async def test_a_consumer_takes_from_all(three: Nodes, q: AsyncQueue) -> None:
    """One call reserves jobs from all nodes, up to the requested number."""
    ids = await one_on_each(three)
    jobs = await q.reserve(2, block=0)
    jobs += await q.reserve(2, block=0)
    assert sorted(job.id for job in jobs) == sorted(ids)
    assert await q.reserve(block=0) == []
    assert all(job.queue is q for job in jobs)


@pytest.mark.parametrize("number", range(3))
async def test_a_blocked_consumer_is_woken_by_every_node(
    three: Nodes, q: AsyncQueue, number: int
) -> None:
    """A job on any node wakes a blocked consumer."""
    async with three.of(number) as single:
        await single.queue("q").enqueue("before")
        assert await (await q.reserve())[0].ack()
        waiting = aspawn(q.reserve, 1, block=20)
        added = await single.queue("q").enqueue("x")
        [job] = await waiting.result()
        assert job.id == added.id


async def test_a_wait_leaves_no_tokens(three: Nodes, q: AsyncQueue) -> None:
    """A consumer that waits on all nodes and gets a job from one leaves no unused token."""
    waiting = aspawn(q.reserve, 1, block=20)
    await one_on_each(three)
    [first] = await waiting.result()
    second = await q.reserve(1, block=20)
    third = await q.reserve(1, block=20)
    assert len({first.id, second[0].id, third[0].id}) == 3


async def test_several_queues_on_several_nodes(three: Nodes, ps: AsyncPenstock) -> None:
    """Jobs of the first queue come first, whatever their node."""
    low = await one_on_each(three, "low")
    high = await one_on_each(three, "high")
    jobs = await ps.reserve(["high", "low"], 10, block=0)
    assert [job.queue.name for job in jobs] == ["high"] * 3 + ["low"] * 3
    assert {job.id for job in jobs} == {*high, *low}


async def test_busy_nodes_take_turns(three: Nodes, q: AsyncQueue) -> None:
    """A consumer takes jobs from all nodes in turn instead of draining one first."""
    for number in range(3):
        async with three.of(number) as single:
            await single.queue("q").enqueue_many(range(5))
    got = [parse_id((await q.reserve(block=0))[0].id).node for _ in range(9)]
    assert all(got.count(node) == 3 for node in set(got))


SETTLED = {
    "ack": {}, "nack": {"delay": 60}, "release": {"delay": 60}, "bury": {},
    "promote": {}, "delete": {},
}  # fmt: skip


@pytest.mark.parametrize("method", SETTLED)
async def test_calls_go_to_the_nodes_of_their_jobs(
    three: Nodes, q: AsyncQueue, method: str
) -> None:
    """A call with jobs of several nodes goes to each of them, and answers in the
    order of the jobs.
    """
    await one_on_each(three)
    jobs = await q.reserve(3)
    jobs.reverse()
    named = [jobs[0], jobs[1].id, jobs[2]]
    settled = await getattr(q, method)(named, **SETTLED[method])
    assert list(settled) == [Outcome.DONE] * 3
    assert settled
    assert settled.ids() == [job.id for job in jobs]
    again = await getattr(q, method)(named, **SETTLED[method])
    assert not again or method == "promote"


async def test_outcomes_are_in_the_order_of_the_jobs(three: Nodes, q: AsyncQueue) -> None:
    """Each outcome is at its job's position, also when a job of one node is gone."""
    await one_on_each(three)
    jobs = await q.reserve(3)
    await q.delete([jobs[1]])
    settled = await q.ack(jobs)
    assert list(settled) == [Outcome.DONE, Outcome.GONE, Outcome.DONE]


async def test_a_job_settles_itself_on_its_node(three: Nodes, q: AsyncQueue) -> None:
    """A job object settles itself on its node, by method and as a context manager."""
    await one_on_each(three)
    first, second, third = await q.reserve(3)
    assert await first.extend(60) > 59
    assert await first.ack()
    assert await second.release(delay=60)
    async with third:
        pass
    stats = await q.stats()
    assert (stats.acked, stats.released, stats.scheduled) == (2, 1, 1)


async def test_waiting_jobs_are_found_by_their_ids(three: Nodes, q: AsyncQueue) -> None:
    """Every call by id goes to the node that the id names."""
    ids = await one_on_each(three)
    assert [(await q.show(one)).body for one in ids] == [0, 1, 2]  # type: ignore[union-attr]  # all are there
    assert list(await q.postpone(ids[:1])) == [Outcome.DONE]
    assert list(await q.delete(ids[1:2], if_undelivered=True)) == [Outcome.DONE]
    assert list(await q.bury(ids[2:])) == [Outcome.DONE]
    assert await q.redrive(ids[2:]) == 1
    assert await q.extend([]) == []
    stats = await q.stats()
    assert (stats.scheduled, stats.withdrawn, stats.redriven) == (1, 1, 1)


@pytest.mark.parametrize("method", ["ack", "delete", "extend", "show", "redrive"])
async def test_an_unknown_node_is_named(q: AsyncQueue, method: str) -> None:
    """An id of an unknown node is refused, and so are malformed ones."""
    good = (await q.enqueue("x")).id
    foreign = f"D-00000000{good[10:]}"
    for name in (foreign, "nonsense", 7):
        with pytest.raises(BadJobId):
            await getattr(q, method)(name if method == "show" else [good, name])
    with pytest.raises(WrongNode, match="00000000"):
        await getattr(q, method)(foreign if method == "show" else [foreign])
    assert (await q.stats()).ready == 1


async def test_results_are_on_the_nodes_of_their_jobs(
    three: Nodes, ps: AsyncPenstock, q: AsyncQueue
) -> None:
    """A result is found by the id of its job; the figures count those of all nodes."""
    added = await one_on_each(three, result_ttl=60)
    while jobs := await q.reserve(3, block=0):
        await q.ack(jobs)
    assert [await q.result(job_id, timeout=10) for job_id in added] == [None] * 3
    assert await ps.result(added[2], timeout=10) is None
    assert (await q.stats()).kept == 3
    own = await q.enqueue("own", result_ttl=60)
    assert [job.id for job in await q.reserve(block=0)] == [own.id]
    with pytest.raises(ResultTimeout):
        await own.result(timeout=0)


async def test_figures_are_sums(three: Nodes, q: AsyncQueue) -> None:
    """Stats are sums over the nodes; the age is that of the oldest job."""
    await one_on_each(three)
    await one_on_each(three, delay=60)
    await q.reserve(1)
    stats = await q.stats()
    assert (stats.ready, stats.scheduled, stats.active) == (2, 3, 1)
    assert (stats.enqueued, stats.deliveries) == (6, 1)
    assert stats.exists
    assert stats.epoch is None
    assert stats.unreachable == ()


async def test_peek_merges_by_time(three: Nodes, q: AsyncQueue) -> None:
    """`peek` merges the jobs of all nodes by creation time, from either end."""
    for number in (2, 0, 1, 2, 0):
        async with three.of(number) as single:
            await single.queue("q").enqueue(number)
    # Two jobs of one millisecond on different nodes may come in either order.
    views = await q.peek(5)
    created = [view.created for view in views]
    assert created == sorted(created)
    assert sorted(view.body for view in views) == [0, 0, 1, 2, 2]
    assert isinstance(views, Partial)
    newest = [view.created for view in await q.peek(2, newest=True)]
    assert newest == sorted(created, reverse=True)[:2]
    assert [view.created for view in await q.peek(2, start=1)] == created[1:3]
    assert [view.created for view in await q.peek(2, start=-3)] == created[2:4]
    assert await q.peek(3, start=9) == []
    assert await q.peek(3, start=-9) == []
    with pytest.raises(BadArgument, match="together"):
        await q.peek(1000, start=1)


async def test_scans_pass_every_node(three: Nodes, ps: AsyncPenstock, q: AsyncQueue) -> None:
    """Scans visit every node; a queue that several nodes have is returned once."""
    for number in range(3):
        async with three.of(number) as single:
            await single.queue("q").enqueue_many(range(7))
            await single.queue(f"only-{number}").enqueue("x")
    found = [view.id async for view in q.jobs(n=2)]
    assert len(set(found)) == 21
    searched = [view.id async for view in q.jobs("ready", n=2)]
    assert sorted(searched) == sorted(set(found))
    names = ["only-0", "only-1", "only-2", "q"]
    assert await ps.queues() == names
    assert await ps.queues("o*") == names[:3]
    figures = {one.name: one.ready async for one in ps.scan_queues_iter(n=1)}
    assert figures == {"only-0": 1, "only-1": 1, "only-2": 1, "q": 21}
    pages = [one.name async for one in ps.scan_queues_iter(min_length=2)]
    assert pages == ["q"]
    for bad in ("1", "q:0", "00000000:x", 5):
        with pytest.raises(BadArgument):
            await q.jobs().page(bad)  # type: ignore[arg-type]  # on purpose
        with pytest.raises(BadArgument):
            await q.jobs("ready").page(bad)  # type: ignore[arg-type]  # on purpose
        with pytest.raises(BadArgument):
            await ps.scan_queues(bad)  # type: ignore[arg-type]  # on purpose


async def test_the_whole_queue_is_paused(three: Nodes, q: AsyncQueue) -> None:
    """Pausing, resuming and configuring apply to every node."""
    await one_on_each(three)
    await q.pause("out")
    assert await q.reserve(3, block=0) == []
    await q.resume()
    assert len(await q.reserve(3, block=0)) == 3
    assert (await q.configure(max_length=7)).max_length == 7
    for number in range(3):
        async with three.of(number) as single:
            assert (await single.queue("q").stats()).settings.max_length == 7
    with pytest.raises(BadArgument):
        await q.pause("up")


async def stored(three: Nodes, number: int) -> tuple[Any, ...]:
    """Read some settings of one node, and whether the queue is closed there."""
    async with three.of(number) as single:
        stats = await single.queue("q").stats()
        return (stats.settings.lease, stats.settings.paused, stats.closed)


async def test_the_settings_stored_last_are_those_of_all(three: Nodes) -> None:
    """A client copies the newest settings and pauses to all nodes when it uses the queue."""
    await one_on_each(three)
    for number, lease in ((2, 5), (0, 6), (1, 7)):
        async with three.of(number) as single:
            await single.queue("q").configure(lease=lease)
    async with three.of(1) as single:
        await single.queue("q").pause("out")
        await single.queue("q").close()
    async with three.client() as ps:
        q = ps.queue("q")
        stats = await q.stats()
        assert (stats.settings.lease, stats.settings.paused) == (7, "out")
        assert len(stats.differing) == 2 or three.backends[0].is_fake  # they share one address
        assert stats.configured is not None
        assert await q.reserve(3, block=0) == []
        assert [await stored(three, number) for number in range(3)] == [(7, "out", True)] * 3
        assert (await q.stats()).differing == ()
        await q.reopen()
        await q.resume()
    async with three.client() as ps:
        await ps.queue("q").enqueue("x")
        assert [await stored(three, number) for number in range(3)] == [(7, None, False)] * 3


async def test_figures_of_each_node(three: Nodes, q: AsyncQueue, ps: AsyncPenstock) -> None:
    """Stats list the figures of each node; the figures of the queue are their sums."""
    await one_on_each(three)
    async with three.of(1) as single:
        await single.queue("q").enqueue_many(range(4))
    stats = await q.stats()
    if not three.backends[0].is_fake:  # they share one address
        views = (await ps.hello()).nodes
        assert [stats.nodes[view.address].enqueued for view in views] == [1, 5, 1]
    assert stats.enqueued == 7
    async with three.of(1) as single:
        assert not (await single.queue("q").stats()).nodes


async def test_a_stored_setting_out_of_bounds_holds_back_no_other(
    three: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a setting that earlier scripts stored out of bounds, the others are copied."""
    await one_on_each(three)
    async with three.of(0) as single:
        await single.queue("q").configure(lease=7)
        await single.queue("q").pause("out")
    three.backends[0].sync_client().hset(QueueKeys("q")["meta"], "per_key", "007")
    async with three.client() as ps:
        await ps.queue("q").stats()
        assert await ps.queue("q").reserve(3, block=0) == []
    assert [await stored(three, number) for number in range(3)] == [(7, "out", False)] * 3
    assert "setting per_key of 'q' was not stored on" in caplog.text


async def test_each_partition_gets_the_settings(three: Nodes) -> None:
    """Every partition on every node gets the settings."""
    async with three.of(1) as single:
        await single.queue("parts", partitions=3).configure(lease=7)
    async with three.client() as ps:
        await ps.queue("parts", partitions=3).enqueue("x")
    for number in range(3):
        async with three.of(number) as single:
            assert (await single.queue("parts", partitions=3).stats()).settings.lease == 7


async def test_a_queue_is_closed_on_every_node(three: Nodes, q: AsyncQueue) -> None:
    """Producers are refused on all nodes; consumers end when no node has jobs left."""
    ids = await one_on_each(three)
    await q.close()
    assert (await q.stats()).closed
    with pytest.raises(QueueClosed):
        await q.enqueue("x")
    seen = []
    async for job in q.consume():
        async with job:
            seen.append(job.id)
    assert sorted(seen) == sorted(ids)
    with pytest.raises(QueueClosed):
        await q.reserve(block=5)
    await q.reopen()
    await q.enqueue("x")
    assert len(await q.reserve(block=0)) == 1


async def test_removals_reach_every_node(three: Nodes, ps: AsyncPenstock, q: AsyncQueue) -> None:
    """purge, redrive, sweep, evict and clear reach every node."""
    await one_on_each(three)
    assert await q.purge() == 3
    ids = await one_on_each(three)
    await q.bury(ids)
    assert await q.redrive(limit=2) == 2
    assert await q.redrive() == 1
    await q.bury(ids)
    assert await q.sweep(evict=1) == 3
    assert await ps.sweep() == 0
    await one_on_each(three)
    assert await ps.clear(["q", "none"]) == ["q"]
    assert await ps.queues() == []


async def test_recover_asks_every_node(three: Nodes, q: AsyncQueue) -> None:
    """Deliveries of others are taken over from every node, up to the requested number."""
    await one_on_each(three)
    await q.reserve(3)
    assert len(await q.recover(2, idle=0)) == 2
    assert len(await q.recover(5, idle=0)) == 3


async def test_a_dedup_id_is_kept_on_one_node(three: Nodes, q: AsyncQueue) -> None:
    """A client of all nodes keeps a dedup id on one node; on the other nodes the id is free."""
    first = await q.enqueue("x", dedup_id="one")
    again = await q.enqueue("x", dedup_id="one")
    assert again.duplicate
    assert again.id == first.id
    status = await q.dedup_status("one")
    assert status is not None
    assert status.job is not None
    assert status.job.id == first.id
    assert await q.dedup_status("two") is None
    many = await q.enqueue_many(["a", "b", "a"], dedup_id=str)
    assert [one.duplicate for one in many] == [False, False, True]


async def test_consume_acknowledges_across_nodes(three: Nodes, q: AsyncQueue) -> None:
    """The loop acknowledges a job of one node and takes the next one from another."""
    ids = await one_on_each(three)
    seen = []
    async for job in q.consume(block=0.05):
        async with job:
            seen.append(job.id)
    assert sorted(seen) == sorted(ids)
    assert (await q.stats()).acked == 3
    done, more = await q.ack_and_reserve([], 1)
    assert (list(done), more) == ([], [])


async def test_hooks_see_one_enqueue(three: Nodes) -> None:
    """A hook sees one enqueue, even if several nodes were tried."""
    seen = []

    class Hook(Middleware):
        def enqueue(self, event: EnqueueEvent) -> Any:
            seen.append((event.queue, event.count))
            return super().enqueue(event)

    async with three.client(middleware=[Hook()]) as ps:
        await ps.queue("q").enqueue("x")
        await ps.queue("q").enqueue_many(["y", "z"])
    assert seen == [("q", 1), ("q", None)]


async def test_info_covers_all_nodes(three: Nodes, ps: AsyncPenstock) -> None:
    """Info has the queues and jobs of all nodes."""
    await one_on_each(three)
    info = await ps.info()
    assert (info.registered_jobs, info.waiting_jobs) == (3, 3)
    assert [one[:8] for one in info.node.split()] == await prefixes(ps)
    with pytest.raises(ConfigurationError):
        await ps.topology.executor.command("PING")
    with pytest.raises(ConfigurationError):
        await ps.topology.executor.server_facts()


async def test_a_missing_node_is_named(three: Nodes) -> None:
    """Reads answer and name the missing node; calls that need every node raise."""
    async with three.client(NOWHERE) as ps:
        q = ps.queue("q")
        await one_on_each(three)
        missing = ("127.0.0.1:1",)
        assert (await q.stats()).unreachable == missing
        assert (await q.stats()).ready == 3
        assert (await q.peek()).unreachable == missing  # type: ignore[attr-defined]  # a Partial
        assert (await q.jobs().page()).unreachable == missing
        assert (await ps.scan_queues()).unreachable == missing
        names = await ps.queues()
        assert (names, names.unreachable) == (["q"], missing)  # type: ignore[attr-defined]  # same
        silent = (await ps.hello()).nodes[-1]
        assert (silent.address, silent.priority, silent.id) == ("127.0.0.1:1", 100, "")
        assert "127.0.0.1:1" in silent.error
        with pytest.raises(NodesMissed, match=r"127\.0\.0\.1:1") as caught:
            await q.pause("in")
        assert list(caught.value.unreachable) == ["127.0.0.1:1"]
        assert len(caught.value.results) == 3
        for number in range(3):
            async with three.of(number) as single:
                assert (await single.queue("q").stats()).settings.paused == "in"
        assert len(await q.reserve(3, block=0)) == 3


async def test_ids_of_any_node(three: Nodes, ps: AsyncPenstock) -> None:
    """An id leads to its node and queue. If a node is down that may have it, the call says so."""
    ids = [*await one_on_each(three, "a"), *await one_on_each(three, "b")]
    async with AsyncPenstock(fakeredis.FakeAsyncRedis(server=fakeredis.FakeServer())) as other:
        strange = (await other.queue("a").enqueue(1)).id
    assert await ps.ack([*ids[:4], strange]) == [Outcome.DONE] * 4 + [Outcome.GONE]
    async with three.client("redis://127.0.0.1:1", retry_for=0) as wider:
        with pytest.raises(NodesMissed, match=r"127\.0\.0\.1:1"):
            await wider.ack([strange])
        for look in (wider.show, wider.result):
            with pytest.raises(NodesMissed, match=r"127\.0\.0\.1:1"):
                await look(strange)
        assert await wider.ack(ids[4:]) == [Outcome.DONE] * 2


async def test_acks_of_any_queue_while_a_node_is_down(three: Nodes, ps: AsyncPenstock) -> None:
    """Jobs of other nodes are done, wherever they stand in the call; the others as by `q.ack`.

    If no node that is up has the queue, and this client has not opened it, its name is not known.
    """
    ids = await one_on_each(three, "a")
    async with three.of(0) as single:
        own = (await single.queue("own").enqueue(1)).id
        part = (await single.queue("parts", partitions=2).enqueue(1)).id
    down = federation_of(ps).find_node(parse_id(own).node, own)
    down.note_failure(redis.ConnectionError("gone"))
    down.state.until = math.inf  # no look at it in the background
    ps.queue("parts", partitions=2)
    assert await ps.ack([ids[0], part]) == [Outcome.HINTED] * 2
    for order in ([own, ids[1]], [ids[2], own]):
        with pytest.raises(NodesMissed) as caught:
            await ps.ack(order)
        assert list(caught.value.unreachable) == [down.address]
        outcomes = [Outcome.UNKNOWN if one == own else Outcome.DONE for one in order]
        assert caught.value.results == outcomes
        assert caught.value.results.ids() == [one for one in order if one != own]
    ps.queue("own")
    assert await ps.ack([own]) == [Outcome.HINTED]
    assert (await ps.queue("a").stats()).acked == 2


@pytest.mark.parametrize("three", ["server"], indirect=True)
async def test_every_node_has_closed_its_connections(three: Nodes, q: AsyncQueue) -> None:
    """After all nodes restart none is reported missing, and each one's hints are delivered."""
    ids = await one_on_each(three)
    jobs = {job.id: job for job in await q.reserve(3, block=0)}
    job = jobs[ids[1]]
    now = int(number_of(job)[:-11])
    hint = hints.hint_of(job, parse_id(job.id).node, "q", hints.Intent("ack"), now)
    assert hint
    last = three.backends[2].sync_client()
    last.hset("penstock:hints", hint.field, hint.value)
    last.client_kill_filter(_type="normal", skipme=True)
    stats = await q.stats()
    assert (stats.unreachable, stats.active) == ((), 2)
    assert not last.exists("penstock:hints")
    last.client_kill_filter(_type="normal", skipme=True)
    await q.pause("in")


async def test_a_result_that_a_hint_does_not_carry(three: Nodes, q: AsyncQueue) -> None:
    """It is missed, unlike that of a handler without a value."""
    ids = await one_on_each(three, result_ttl=60)
    jobs = {job.id: job for job in await q.reserve(3, block=0)}
    for number, value in enumerate([b'{"sum":3}', b"null", None]):
        job = jobs[ids[number]]
        if value is not None:
            set_result(job, (value, ""))
        now = int(number_of(job)[:-11])
        hint = hints.hint_of(job, parse_id(job.id).node, "q", hints.Intent("ack"), now)
        assert hint
        keeper = three.backends[number - 1].sync_client()
        keeper.hset("penstock:hints", hint.field, hint.value)
    for node in q.route.federation.nodes:
        await replay(q.route.federation, node)
    assert [await q.result(job_id, timeout=0) for job_id in ids[1:]] == [None, None]
    with pytest.raises(ResultGone, match="its node was down"):
        await q.result(ids[0], timeout=0)


@pytest.mark.parametrize("is_kept", [True, False])
async def test_a_node_that_fails_between_two_chunks_of_acks(
    three: Nodes, monkeypatch: pytest.MonkeyPatch, is_kept: bool
) -> None:
    """A node fails between two chunks of acks: the rest is kept as hints on other nodes.

    Where no node can keep them, the error has the known outcomes. In both cases it says that the
    other acks were not confirmed.
    """
    monkeypatch.setattr(hints, "MAX_HINTS", 9 if is_kept else 0)
    async with three.client() as ps:
        q = ps.queue("q")
        await one_on_each(three)
        await one_on_each(three)
        jobs = sorted(await q.reserve(6, block=0), key=lambda job: job.id)
        settle_each = parts.settle_each

        async def failing(part: Any, names: list[Any], build: Any, **options: Any) -> Any:
            if jobs[2] not in names:
                return await settle_each(part, names, build, **options)
            first = await settle_each(part, names[:1], build)
            raise IncompleteSettle(first) from redis.ConnectionError("gone")

        monkeypatch.setattr(parts, "settle_each", failing)
        with pytest.raises(AckNotReplicated if is_kept else NodesMissed) as caught:
            await q.ack(jobs, durable=Durable(1, timeout=0.01))
        done, fourth = Outcome.DONE, Outcome.HINTED if is_kept else Outcome.UNKNOWN
        found = caught.value
        outcomes = found.outcomes if isinstance(found, AckNotReplicated) else found.results
        assert list(outcomes) == [done, done, done, fourth, done, done]
        if isinstance(found, NodesMissed):
            assert len(found.unreachable) == 1
            assert isinstance(found.__cause__, AckNotReplicated)
        assert sum(one.sync_client().hlen("penstock:{q}:held") for one in three.backends) == 1


async def test_nodes_that_refuse_hints_are_named(
    three: Nodes, ps: AsyncPenstock, caplog: pytest.LogCaptureFixture
) -> None:
    """If no other node can keep an ack, the log tells why, and the job's own node is asked."""
    await one_on_each(three)
    q = ps.queue("q")
    job = (await q.reserve(3, block=0))[0]
    for one in three.backends:
        one.sync_client().set("penstock:hints", "x")
    home = federation_of(ps).find_node(parse_id(job.id).node, job.id)
    home.note_failure(redis.ConnectionError("gone"))
    home.state.until = math.inf  # no look at it in the background
    caplog.clear()
    assert list(await q.ack([job])) == [Outcome.DONE]
    others = {one.address for one in federation_of(ps).nodes if one is not home}
    told = [one.getMessage() for one in caplog.records]
    found = {text.partition(" on ")[2].partition(": ")[0] for text in told if "hints can't" in text}
    assert found == others


async def test_a_federation_refuses_roles(q: AsyncQueue) -> None:
    """A federation refuses roles."""
    with pytest.raises(ConfigurationError):
        q.exclusive("producer")


async def test_no_node_at_all() -> None:
    """Without any reachable node the error names each node with its reason."""
    ps = AsyncPenstock([NOWHERE, "redis://127.0.0.1:2/0"], retry_for=0)
    for call in (ps.connect, ps.queues, ps.queue("q").reserve, ps.queue("q").stats):
        with pytest.raises(NodesUnavailable, match=r"127\.0\.0\.1:2") as caught:
            await call()
        assert sorted(caught.value.reasons) == ["127.0.0.1:1", "127.0.0.1:2"]
    await ps.close()


async def test_one_id_twice_is_refused(three: Nodes) -> None:
    """Two nodes with one id are refused: one server under two names, or a copy of its data."""
    sources = three.sources
    if not three.backends[0].is_fake:
        sources[1] = sources[0].replace("db=0", "db=0&socket_timeout=9")
    else:
        sources[1] = three.backends[0].async_client()
    ps = AsyncPenstock(sources)
    with pytest.raises(ConfigurationError, match="the same node id"):
        await ps.connect()
    with pytest.raises(ConfigurationError, match="the same node id"):
        await ps.queue("q").enqueue("x")
    await ps.close()


async def test_ids_from_before_a_flushall(three: Nodes, ps: AsyncPenstock, q: AsyncQueue) -> None:
    """They still go to their node, and so do ids given before the client noted the new node id."""
    former = (await q.enqueue("former")).id
    for one in three.backends:
        one.sync_client().flushdb()
    ids = [(await q.enqueue(i)).id for i in range(2)]
    for node in federation_of(ps).nodes:
        await node.look()
    assert [(await q.show(one)).body for one in ids] == [0, 1]
    with pytest.raises(WrongEpoch):
        await q.show(former)


async def test_a_flushall_while_a_node_is_recognised(
    three: Nodes, ps: AsyncPenstock, q: AsyncQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node whose new id is gone at once is used under this id."""
    former = (await q.enqueue("former")).id
    raws = [one.sync_client() for one in three.backends]
    inner = AsyncExecutor.command

    async def command(node: AsyncExecutor, *args: Any) -> Any:
        reply = await inner(node, *args)
        if args[0] == "HSETNX":
            for raw in raws:
                raw.flushdb()
        return reply

    monkeypatch.setattr(AsyncExecutor, "command", command)
    for raw in raws:
        raw.flushdb()
    for node in federation_of(ps).nodes:
        await node.look()
    assert parse_id(former).node not in [node.id for node in federation_of(ps).nodes]


@pytest.mark.parametrize(
    "source", [[], (), [NOWHERE, NOWHERE], ["http://x"], [5], [["redis://x"]]], ids=repr
)
def test_bad_lists_of_nodes(source: Any) -> None:
    """A list of nodes that is empty, repeats a node, or has an invalid entry is refused."""
    with pytest.raises(BadArgument):
        AsyncPenstock(source)
    with pytest.raises(BadArgument, match="on_unknown"):
        AsyncPenstock([NOWHERE], on_unknown="again")


async def test_a_list_of_one(three: Nodes) -> None:
    """A list with one node is a federation too."""
    async with AsyncPenstock(three.sources[:1]) as ps:
        q = ps.queue("q")
        await q.enqueue("x")
        async for job in q.consume(block=0):
            async with job:
                assert job.body == "x"
        assert (await q.stats()).acked == 1


async def test_a_copy_is_a_federation_too(three: Nodes, ps: AsyncPenstock) -> None:
    """A copy of the client is a federation too, with its own connections."""
    added = await ps.queue("q").enqueue("x")
    async with twin_of(ps, owner="twin") as twin:
        [job] = await twin.queue("q").reserve()
        assert (job.id, job.owner) == (added.id, "twin")


def test_calls_of_a_queue_refresh_its_route() -> None:
    """Each method of a queue that uses its route first reads the list of nodes, if that is due.

    An enqueue of one job does it on its way: at the same time it checks that the node takes jobs.
    """
    for kind in (AsyncQueue, *AsyncQueue.__mro__):
        for name, member in vars(kind).items():
            if inspect.isfunction(member) and ".route" in (text := inspect.getsource(member)):
                uses_its_own_check = name in ("__repr__", "_bind", "enqueue")
                assert uses_its_own_check or ".refresh()" in text, name


# [async only
async def test_a_wait_that_is_cancelled_twice_ends_its_calls(
    three: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wait is cancelled a second time while it ends the calls on the nodes, and
    still ends them.
    """
    waits, leaves, left = asyncio.Event(), asyncio.Event(), asyncio.Event()
    listen, end_wait = AsyncFlowRun.listen, AsyncFlowRun.end_wait

    async def noted(self: AsyncFlowRun[Any], effect: Any) -> Any:
        waits.set()
        return await listen(self, effect)

    async def slow(self: AsyncFlowRun[Any]) -> Any:
        leaves.set()
        await asyncio.sleep(0)
        keys = await end_wait(self)
        left.set()
        return keys

    monkeypatch.setattr(AsyncFlowRun, "listen", noted)
    monkeypatch.setattr(AsyncFlowRun, "end_wait", slow)
    async with three.client() as ps:
        waiting = asyncio.ensure_future(ps.queue("q").reserve(1, block=30))
        await waits.wait()
        waiting.cancel()
        await leaves.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert left.is_set()


# async only]


def places(three: Nodes, name: str) -> list[int]:
    """Return the nodes that have a schedule of this name."""
    raws = [backend.sync_client() for backend in three.backends]
    return [at for at, raw in enumerate(raws) if raw.hexists(QueueKeys("q")["schedules"], name)]


async def test_a_schedule_lies_on_one_node(three: Nodes, ps: AsyncPenstock, q: AsyncQueue) -> None:
    """All clients choose the same node, which others replace it on; workers find it there."""
    names = [f"s{number}" for number in range(20)]
    for name in names:
        assert await q.schedules.add(name, every=86400, job="x")
    homes = {name: places(three, name) for name in names}
    assert {len(found) for found in homes.values()} == {1}
    assert {at for (at,) in homes.values()} == {0, 1, 2}  # they are spread
    async with AsyncPenstock(three.sources[::-1]) as other:
        for name in names:
            assert not await other.queue("q").schedules.add(name, every=86400, job="x")
            assert await other.queue("q").schedules.add(name, every=7 * 86400, job="x")
    assert {name: places(three, name) for name in names} == homes
    assert [found.name for found in await q.schedules.list()] == sorted(names)

    (home,) = homes["s0"]
    three.backends[home].sync_client().zadd(QueueKeys("q")["ticks"], {"s0": 1_700_000_000_000})
    ran: list[Any] = []

    async def note(job: AsyncJob) -> None:
        ran.append((job.body, job.scheduled_for))

    await AsyncWorker(ps, "q", note, burst=True).run()
    assert ran == [("x", 1_700_000_000)]
    assert (await q.show((await q.schedules.run("s0")).id)) is not None
    await q.schedules.pause("s0")
    assert [found.name for found in await q.schedules.list() if found.paused] == ["s0"]
    await q.schedules.resume("s0")
    assert await q.schedules.remove("s0")
    assert places(three, "s0") == []


async def test_a_schedule_that_lies_on_two_nodes(
    three: Nodes, ps: AsyncPenstock, q: AsyncQueue
) -> None:
    """Clients of one node each may make two of one name; the next change keeps one of them."""
    await ps.connect()
    for source in three.sources[:2]:
        async with AsyncPenstock(source, federation=False) as alone:
            await alone.queue("q").schedules.add("s", every=3600, job="x")
    assert places(three, "s") == [0, 1]
    await q.schedules.add("s", every=60, job="x")
    assert len(places(three, "s")) == 1
    assert [found.spec for found in await q.schedules.list()] == ["every 1m"]
    raws = [backend.sync_client() for backend in three.backends]
    meta = QueueKeys("q")["meta"]
    assert [raw.hget(meta, "unscheduled") for raw in raws] == [None] * 3  # no client has removed it


async def test_a_hand_over_stays_on_the_node_of_its_job(
    three: Nodes, ps: AsyncPenstock, q: AsyncQueue
) -> None:
    """The next job lies on the node of its first job; one for another queue lies on any node."""
    handlers, ran = Handlers(), list[Any]()

    @handlers.handler("then")
    async def then(job: AsyncJob, number: int) -> None:
        ran.append((number, parse_id(job.id).node))

    @handlers.handler("there", queue="other")
    async def there(number: int) -> None:
        ran.append((number, "other"))

    @handlers.default
    async def first(job: AsyncJob) -> Any:
        return Done(then=[then.job(job.body), there.job(job.body)])

    added = await one_on_each(three)
    await AsyncWorker(ps, ["q", "other"], handlers, burst=True).run()
    homes = [(number, parse_id(job_id).node) for number, job_id in enumerate(added)]
    assert sorted(ran) == sorted([*homes, *((number, "other") for number in range(3))])


async def test_two_clients_create_a_schedule_at_once(three: Nodes, q: AsyncQueue) -> None:
    """If another client creates it on another node meanwhile, both keep the same one."""
    real: Any = schedule_flows.schedule

    def late(ops: Any, new: Any, **options: Any) -> Any:
        for other in q.route.operations:
            yield from real(other, new, **options)
        return (yield from real(ops, new, **options))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schedule_flows, "schedule", late)
        await q.schedules.add("s", every=3600, job="x")
    assert len(places(three, "s")) == 1
    home = places(three, "s")
    await q.schedules.remove("s")
    await q.schedules.add("s", every=3600, job="x")
    assert places(three, "s") == home


async def test_a_schedule_while_a_node_is_down(three: Nodes, q: AsyncQueue) -> None:
    """One that is there is replaced; a new one might be on the node that is down."""
    await q.schedules.add("s", every=3600, job="x")
    async with three.client(NOWHERE, retry_for=0.1) as other:
        assert await other.queue("q").schedules.add("s", every=60, job="x")
        with pytest.raises(NodesUnavailable, match="the new schedule 'new' may lie on a node that"):
            await other.queue("q").schedules.add("new", every=60, job="x")
    assert (len(places(three, "s")), places(three, "new")) == (1, [])


async def test_a_worker_waits_for_all_nodes(
    three: Nodes, q: AsyncQueue, caplog: pytest.LogCaptureFixture
) -> None:
    """A new schedule is not stored while a node is down; the worker says so once, and works."""
    await q.schedules.add("a", every=3600, job="x")
    await q.enqueue("job")
    client, seen = three.client(NOWHERE, retry_for=0.1), list[Any]()

    async def note(job: AsyncJob) -> None:
        seen.append(job.body)

    queue = client.queue("q")
    for name in ("a", "b"):
        queue.handler(name, every="2h")(report)
    queue.handlers.default(note)
    await AsyncWorker(client, queue, burst=True).run()
    assert seen == ["job"]
    assert [(found.name, found.spec) for found in await q.schedules.list()] == [("a", "every 2h")]
    told = [text for text in caplog.messages if "are not stored yet" in text]
    assert told == ["the schedules 'b' are not stored yet, as a node is down that may have them"]


async def test_handlers_with_schedules_on_several_nodes(
    three: Nodes, ps: AsyncPenstock, q: AsyncQueue
) -> None:
    """A worker stores each schedule of its handlers once."""

    def declare(every: str) -> AsyncQueue:
        queue = AsyncPenstock(three.sources[0]).queue("q")
        for name in ("a", "b", "c", "d"):
            queue.handler(name, every=every)(report)
        return queue

    await AsyncWorker(ps, declare("1h"), burst=True).run()
    assert [len(places(three, name)) for name in "abcd"] == [1] * 4
    homes = [places(three, name) for name in "abcd"]
    await AsyncWorker(three.sources[::-1], declare("2h"), burst=True).run()
    assert [found.spec for found in await q.schedules.list()] == ["every 2h"] * 4
    await AsyncWorker(ps, declare("1h"), burst=True).run()  # an older version
    assert [found.spec for found in await q.schedules.list()] == ["every 2h"] * 4
    assert [places(three, name) for name in "abcd"] == homes


async def report() -> None:
    """Do nothing."""


async def test_a_share_is_that_of_each_node(three: Nodes, q: AsyncQueue) -> None:
    """One job of a key is in the line of each node, and a call takes the others, too."""
    await q.configure(share=1)
    for _ in range(2):
        await one_on_each(three, key="customer:7")
    assert (await q.stats()).parked == 3
    jobs = [job for _ in range(3) for job in await q.reserve(30, block=0)]
    assert Counter(parse_id(job.id).node for job in jobs).most_common()[-1][1] == 2
    assert len(jobs) == 6


async def test_limits_hold_on_each_node(three: Nodes, q: AsyncQueue) -> None:
    """Limits per key, priorities and rates are those of each node."""
    await q.configure(per_key=1)
    for _ in range(2):
        await one_on_each(three, key="customer:7")
    jobs = await q.reserve(30, block=0)
    assert len({parse_id(job.id).node for job in jobs}) == len(jobs) == 3
    assert (await q.stats()).parked == 3
    await q.purge()
    for priority in (0, 9):
        await one_on_each(three, priority=priority)
    found = defaultdict(list)
    for job in await q.reserve(30, block=0):
        found[parse_id(job.id).node].append(job.priority)
    assert [*found.values()] == [[9, 0]] * 3
    await q.configure(per_key=None, rate="1/h", burst=1)
    for _ in range(2):
        await one_on_each(three)
    jobs = await q.reserve(30, block=0)
    assert len({parse_id(job.id).node for job in jobs}) == len(jobs) == 3


async def test_slots_are_those_of_each_node(three: Nodes, q: AsyncQueue) -> None:
    """Three nodes with two slots deliver six jobs at once."""
    await q.configure(max_active=2)
    for _ in range(3):
        await one_on_each(three)
    jobs = [job for _ in range(4) for job in await q.reserve(30, block=0)]
    assert Counter(parse_id(job.id).node for job in jobs).most_common()[-1][1] == 2
    assert len(jobs) == 6


async def test_an_order_is_kept_on_each_node(three: Nodes, q: AsyncQueue) -> None:
    """A failed job holds back the jobs of its key on its node, and on no other."""
    await q.configure(ordered=True)
    first, second = [await one_on_each(three, key="account:7") for _ in range(2)]
    jobs = await q.reserve(30, block=0)
    assert sorted(job.id for job in jobs) == sorted(first)
    await q.nack([job for job in jobs if job.id == first[0]], delay=60)
    await q.ack([job for job in jobs if job.id != first[0]])
    assert sorted(job.id for job in await q.reserve(30, block=0)) == sorted(second[1:])


async def test_a_batch_lies_on_one_node(
    three: Nodes, ps: AsyncPenstock, q: AsyncQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its jobs are on the node of its callback, whichever node their producer prefers."""
    async with q.batch(then="callback") as batch:
        home = parse_id(batch.id).node
        for number in range(3):
            federation = federation_of(ps)
            preferred = sorted(federation.preferred(), key=lambda one: one.id.startswith(home))  # type: ignore[union-attr]  # a federation
            monkeypatch.setattr(federation, "preferred", lambda preferred=preferred: preferred)
            ids = [(await batch.enqueue(number)).id, *(await batch.enqueue_many([number])).ids]
            assert {parse_id(one).node for one in ids} == {home}
        assert (await q.stats()).batches == 1
    async with three.client() as other:
        assert [one.id for one in await other.queue("q").batches.list()] == [batch.id]
        jobs = await other.queue("q").reserve(30, block=0)
        await other.queue("q").ack(jobs)
        status = await other.queue("q").batches.get(batch.id)
    assert status is not None
    assert (status.state, status.total, status.done) == ("called", 6, 6)
    assert [job.id for job in await q.reserve(30, block=0)] == [batch.id]
