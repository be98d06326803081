"""Workers on several nodes that are killed, frozen and restarted; every job is done."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from redis.exceptions import RedisError

from penstock import AsyncPenstock, AsyncWorker, BadArgument, Done, Handlers, Penstock, Worker
from penstock.client._async import topology as async_topology
from penstock.client._async.nodes import federation as async_federation
from penstock.client._sync import topology
from penstock.client._sync.nodes import federation
from tests.nodes.federation import Servers
from tests.support.twins import await_for, wait_for


@pytest.fixture
def three() -> Iterator[Servers]:
    """Three nodes, with a queue on each."""
    with Servers(3) as servers:
        with servers.client() as ps:
            ps.queue("q").configure(lease=3, max_crashes=0)
        yield servers


def add(servers: Servers, number: int, bodies: Any, **options: Any) -> None:
    """Add jobs on one node."""
    with Penstock(servers.urls[number], federation=False) as single:
        single.queue("q").enqueue_many(bodies, **options)


class Seen:
    """The jobs done by handlers."""

    def __init__(self) -> None:
        self.bodies: Counter[Any] = Counter()
        self.gate = threading.Event()
        self.begun = threading.Event()

    def __call__(self, job: Any) -> None:
        """Do a job."""
        self.bodies[job.body] += 1

    def slow(self, job: Any) -> None:
        """Start a job and wait."""
        self.begun.set()
        assert self.gate.wait(30)
        self.bodies[job.body] += 1

    async def waiting(self, job: Any) -> None:
        """Start a job and wait, with asyncio."""
        self.begun.set()
        await await_for(self.gate.is_set)
        self.bodies[job.body] += 1


def left(servers: Servers) -> int:
    """Count the jobs that are not done."""
    with servers.client() as ps:
        stats = ps.queue("q").stats()
        return stats.ready + stats.scheduled + stats.active + len(stats.unreachable)


def test_a_worker_takes_from_all_nodes(three: Servers) -> None:
    """The worker takes existing jobs, and new ones from any node during its wait."""
    for number in range(3):
        add(three, number, range(number * 100, number * 100 + 50))
    seen = Seen()
    with Worker(three.urls, "q", seen, concurrency=4) as worker:
        wait_for(lambda: len(seen.bodies) == 150)
        wait_for(lambda: all(_blocked(three, number) for number in range(3)))
        for number in range(3):
            add(three, number, [f"late {number}"])
            wait_for(lambda number=number: seen.bodies[f"late {number}"] == 1, 3)  # type: ignore[misc]  # bound now
        wait_for(lambda: left(three) == 0)
        status = worker.status()
    assert set(seen.bodies.values()) == {1}
    assert status.healthy
    assert status.stats.counts["done"] == 153


async def test_an_asynchronous_worker(three: Servers) -> None:
    """An asyncio worker takes jobs from all nodes."""
    for number in range(3):
        add(three, number, range(number * 100, number * 100 + 50))
    seen = Seen()

    async def handler(job: Any) -> None:
        seen(job)

    async with AsyncWorker(AsyncPenstock(three.urls), "q", handler, concurrency=4):
        await await_for(lambda: len(seen.bodies) == 150)
        add(three, 1, ["late"])
        await await_for(lambda: seen.bodies["late"] == 1)
        await await_for(lambda: left(three) == 0)
    assert set(seen.bodies.values()) == {1}


def test_a_queue_that_is_damaged_on_one_node(
    three: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    """Its report waits for the repair, without a hint; the jobs of the other nodes are done."""
    add(three, 0, ["held"], lease=60)
    seen, key = Seen(), "penstock:{q}:active"
    with Worker(three.urls, "q", seen.slow, concurrency=4) as worker:
        assert seen.begun.wait(20)
        raws = [redis.Redis.from_url(url) for url in three.urls]
        good = raws[0].dump(key)
        raws[0].set(key, "of another type")
        seen.gate.set()
        add(three, 1, range(10))
        wait_for(lambda: [text for text in caplog.messages if "can't be used" in text])
        wait_for(lambda: worker.status().stats.counts.get("done", 0) >= 10)
        assert worker._life is not None
        state = worker._life.state
        wait_for(lambda: max(poll.failures for poll in state.polls) >= 3)
        assert worker.status().stats.counts == {"done": 10}
        assert [raw.exists("penstock:hints") for raw in raws] == [0, 0, 0]
        raws[0].restore(key, 0, good, replace=True)
        wait_for(lambda: worker.status().stats.counts == {"done": 11})
        for raw in raws:
            raw.close()
    assert left(three) == 0
    assert set(seen.bodies.values()) == {1}


def listed(servers: Servers) -> None:
    """Add all nodes to the list."""
    with Penstock(servers.urls[0]) as ps:
        for url in servers.urls[1:]:
            ps.nodes.add(url)


def test_a_worker_of_one_url_takes_from_all_nodes(three: Servers) -> None:
    """A worker with one URL uses all nodes listed there at its start."""
    listed(three)
    for number in range(3):
        add(three, number, range(number * 100, number * 100 + 50))
    seen = Seen()
    with Worker(three.urls[0], "q", seen, concurrency=4):
        wait_for(lambda: len(seen.bodies) == 150)
        wait_for(lambda: left(three) == 0)
    assert set(seen.bodies.values()) == {1}


@pytest.mark.parametrize("kind", ["threads", "asyncio"])
async def test_a_worker_that_runs_joins(
    three: Servers, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A running worker finishes its jobs with renewed leases, and then takes jobs of new nodes."""
    for module in (topology, federation, async_topology, async_federation):
        monkeypatch.setattr(module, "NODE_LIST_MAX_AGE", 0.2)
    add(three, 0, ["held"], lease=8)  # calls of this test delay the loop that renews it
    add(three, 1, ["there"])
    seen = Seen()
    if kind == "threads":
        worker = Worker(three.urls[0], "q", seen.slow, concurrency=4)
        worker.start()
    else:
        other = AsyncWorker(three.urls[0], "q", seen.waiting, concurrency=4)
        await other.start()
    await await_for(seen.begun.is_set)
    listed(three)
    await await_for(lambda: all(_blocked(three, number) for number in (1, 2)))
    until = _leased_until(three, 0)
    await await_for(lambda: _leased_until(three, 0) > until)
    assert _redelivered(three) == 0
    seen.gate.set()
    await await_for(lambda: seen.bodies == {"held": 1, "there": 1})
    await await_for(lambda: left(three) == 0)
    if kind == "threads":
        worker.stop()
        worker.join()
    else:
        other.stop()
        await other.join()
    assert _redelivered(three) == 0


def _redelivered(servers: Servers) -> int:
    with servers.client() as ps:
        stats = ps.queue("q").stats()
        return stats.crashed + stats.released


def _leased_until(servers: Servers, number: int) -> float:
    """Return the end of the lease of a node's delivered job."""
    with Penstock(servers.urls[number], federation=False) as single:
        [view] = single.queue("q").peek(1, state="active")
        assert view.lease_until is not None
        return view.lease_until


@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_a_failed_node_does_not_delay_others(three: Servers, how: str) -> None:
    """The other nodes' jobs run; those of the failed node when it is back."""
    seen = Seen()
    down = three.all[1]
    with Worker(Penstock(three.urls, retry_for=1), "q", seen, concurrency=2) as worker:
        wait_for(lambda: all(_blocked(three, number) for number in range(3)))
        (down.kill if how == "killed" else down.pause)()
        add(three, 0, range(100))
        add(three, 2, range(100, 200))
        wait_for(lambda: len(seen.bodies) == 200, 15)
        assert worker.healthy()
        (down.restart if how == "killed" else down.resume)()
        add(three, 1, range(200, 300))
        wait_for(lambda: len(seen.bodies) == 300, 15)
        wait_for(lambda: left(three) == 0)
    assert set(seen.bodies.values()) == {1}


def test_a_burst_names_the_nodes_whose_jobs_are_left(
    three: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    """It does not wait for a node that is down; its last line is a warning then."""
    caplog.set_level("INFO", "penstock")
    for number in range(3):
        add(three, number, range(10 * number, 10 * number + 10))
    down, seen = three.all[1], Seen()
    for levels, count in (["WARNING"], 20), (["INFO"], 30):
        with three.client(retry_for=1) as ps:
            if count == 20:
                down.kill()
            else:
                down.restart()
            caplog.clear()
            Worker(ps, "q", seen, burst=True).run()
        last = [one for one in caplog.records if "has ended" in one.message]
        assert [one.levelname for one in last] == levels
        assert (f"are left: 127.0.0.1:{down.port}" in last[0].message) == (count == 20)
        assert len(seen.bodies) == count


def test_a_job_is_done_while_its_home_is_down(three: Servers) -> None:
    """Its ack is kept as a hint: the job does not run again when its node is back later."""
    add(three, 1, ["x"], lease=2)
    seen = Seen()
    with Worker(Penstock(three.urls, retry_for=1), "q", seen.slow, concurrency=1) as worker:
        assert seen.begun.wait(20)
        three.all[1].kill()
        seen.gate.set()
        wait_for(lambda: worker.status().held == 0, 10)
        time.sleep(2.1)  # the lease
        three.all[1].restart()
        wait_for(lambda: left(three) == 0)
        time.sleep(1)
    assert seen.bodies == {"x": 1}


def test_a_job_hands_over_while_its_home_is_down(three: Servers) -> None:
    """A hint has no next jobs, so the report waits for the node: the next job is not lost."""
    seen, handlers = Seen(), Handlers()

    @handlers.handler("then")
    def then(name: str) -> None:
        seen.bodies[name] += 1

    @handlers.handler(None)
    def first(job: Any) -> Any:
        seen.slow(job)
        return Done(then=[then.job("then")])

    add(three, 1, ["first"], lease=30)
    with Worker(Penstock(three.urls, retry_for=1), "q", handlers, concurrency=1):
        assert seen.begun.wait(20)
        three.all[1].kill()
        with three.client() as ps:
            wait_for(lambda: bool(ps.queue("q").stats().unreachable))
        seen.gate.set()
        wait_for(lambda: seen.bodies["first"] == 1)
        time.sleep(1)  # the first reports fail
        three.all[1].restart()
        wait_for(lambda: len(seen.bodies) == 2)
        wait_for(lambda: left(three) == 0)
    assert set(seen.bodies.values()) == {1}


@pytest.mark.parametrize("how, lease", [("killed", 1), ("frozen", 4)])
def test_leases_are_renewed_on_every_node(three: Servers, how: str, lease: int) -> None:
    """A handler may take longer than the lease on any node, while another node is down."""
    for number in range(3):
        add(three, number, [number], lease=lease)
    seen = Seen()
    with Worker(Penstock(three.urls, retry_for=1), "q", seen.slow, concurrency=3) as worker:
        wait_for(lambda: worker.status().held == 3)
        down = three.all[2]
        (down.kill if how == "killed" else down.pause)()
        time.sleep(lease + 2)
        (down.restart if how == "killed" else down.resume)()
        seen.gate.set()
        wait_for(lambda: left(three) == 0)
    assert (seen.bodies[0], seen.bodies[1]) == (1, 1)


def test_a_stopping_worker_releases_its_jobs(three: Servers) -> None:
    """Jobs are released on running nodes; on others their leases end."""
    for number in range(3):
        add(three, number, [number], lease=30)
    seen = Seen()
    worker = Worker(Penstock(three.urls, retry_for=1), "q", seen.slow, concurrency=3)
    worker.start()
    wait_for(lambda: worker.status().held == 3)
    three.all[0].kill()
    worker.stop(0)
    assert worker.join(20)
    seen.gate.set()
    with three.client() as ps:
        stats = ps.queue("q").stats()
        assert (stats.ready, stats.active, len(stats.unreachable)) == (2, 0, 1)


def test_workers_on_nodes_that_are_killed_in_turn(three: Servers) -> None:
    """Nodes are killed and restarted under producers and two workers: all added jobs are done."""
    seen, added = Seen(), []
    stop = threading.Event()

    def produce() -> None:
        number = 0
        with Penstock(three.urls, retry_for=1) as ps:
            while not stop.wait(0.002):
                number += 1
                try:
                    ps.queue("q").enqueue(number)
                except RedisError:
                    continue  # the result is unknown
                added.append(number)

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        with Worker(Penstock(three.urls, retry_for=1), "q", seen), Worker(three.urls, "q", seen):
            for number in (0, 1, 2, 1):
                before = len(seen.bodies)
                wait_for(lambda before=before: len(seen.bodies) > before + 50)  # type: ignore[misc]  # bound now
                three.all[number].kill()
                before = len(seen.bodies)
                wait_for(lambda before=before: len(seen.bodies) > before + 50)  # type: ignore[misc]  # same
                three.all[number].restart()
            stop.set()
            producer.join()
            wait_for(lambda: left(three) == 0)
    finally:
        stop.set()
        producer.join()
    lost = set(added) - set(seen.bodies)
    assert not lost, lost


def test_a_helper_process_is_for_one_node(three: Servers) -> None:
    """A helper process is refused with a reason."""
    worker = Worker(three.urls, "q", Seen(), heartbeat="process")
    with pytest.raises(BadArgument, match="heartbeat"):
        worker.start()


def _blocked(servers: Servers, number: int) -> int:
    return int(servers.raw(number).info("clients")["blocked_clients"])


@pytest.mark.parametrize("held", [0, 3])
def test_a_worker_ends_despite_a_frozen_node(three: Servers, held: int) -> None:
    """It releases the other nodes' jobs, and waits only briefly for the frozen one."""
    for number in range(held):
        add(three, number, [number], lease=30)
    seen = Seen()
    worker = Worker(Penstock(three.urls, retry_for=1), "q", seen.slow, concurrency=3)
    worker.start()
    wait_for(lambda: worker.status().held == held)
    wait_for(lambda: bool(held) or all(_blocked(three, number) for number in range(3)))
    three.all[0].pause()
    try:
        began = time.monotonic()
        worker.stop(0)
        assert worker.join(20)
        assert time.monotonic() - began < 8
    finally:
        three.all[0].resume()
    seen.gate.set()
    with Penstock(three.urls[1:]) as ps:
        stats = ps.queue("q").stats()
        assert (stats.ready, stats.active) == (2 * bool(held), 0)


def test_a_failure_that_cannot_be_reported_does_not_delay_others(three: Servers) -> None:
    """The only runner continues with other nodes' jobs; the lease brings the job back."""
    add(three, 1, ["bad"], lease=2)
    gate, begun, seen = threading.Event(), threading.Event(), Counter[Any]()

    def handle(job: Any) -> None:
        seen[job.body] += 1
        if job.body == "bad" and seen["bad"] == 1:
            begun.set()
            assert gate.wait(30)
            raise ValueError("no good")

    with Worker(Penstock(three.urls, retry_for=1), "q", handle, concurrency=1) as worker:
        assert begun.wait(20)
        three.all[1].kill()
        gate.set()
        add(three, 0, range(20))
        wait_for(lambda: sum(seen[number] for number in range(20)) == 20, 15)
        wait_for(lambda: worker.status().held == 0, 15)
        three.all[1].restart()
        wait_for(lambda: left(three) == 0)
    assert seen["bad"] == 2
