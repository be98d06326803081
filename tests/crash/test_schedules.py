"""Workers that are killed while they run ticks: each tick runs exactly once."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from penstock import Penstock, QueueStats, Worker
from penstock.embedded import EmbeddedServer
from penstock.wire.keys import QueueKeys
from penstock.wire.scripts import script
from tests.crash.tasks import QUEUE, STEPS
from tests.support.keyspace import load_scripts
from tests.support.workers import Nursery, until, whole_lines

KILLS = 12
HOUR = 3_600_000


@pytest.mark.parametrize("step", STEPS)
def test_a_worker_killed_at_a_step_of_a_tick(
    step: str, client: Penstock, raw: redis.Redis, crash_server: object, nursery: Nursery
) -> None:
    """Another worker runs the tick, unless it was run: there is one job."""
    queue = client.queue(QUEUE)
    queue.schedules.add("s", every=HOUR, job="x")
    raw.script_load(script("tick").source)  # the first call of the worker runs
    tick = int(time.time() * 1000) - 5000
    raw.zadd(queue.ops.keys["ticks"], {"s": tick})
    child = nursery.start("ticked", url=crash_server.url, step=step)  # type: ignore[attr-defined]  # a server
    assert child.wait() == []
    assert child.killed
    ran: list[float | None] = []
    Worker(client, QUEUE, lambda job: ran.append(job.scheduled_for), burst=True).run()
    until(lambda: raw.zscore(queue.ops.keys["ticks"], "s") != tick)
    [found] = queue.schedules.list()
    assert (ran, found.runs, found.skipped) == ([tick / 1000], 1, 0)


@pytest.fixture
def two(make_server: Callable[..., EmbeddedServer]) -> list[str]:
    """The URLs of two nodes, which know all scripts."""
    urls = [make_server(tcp=True).url for _ in range(2)]
    for url in urls:
        with redis.Redis.from_url(url) as raw:
            load_scripts(raw)
    return urls


def homes(urls: list[str]) -> list[str]:
    """Return the nodes that have the schedule."""
    keys, found = QueueKeys(QUEUE), []
    for url in urls:
        with redis.Redis.from_url(url) as raw:
            found += [url] * raw.hlen(keys["schedules"])
            assert raw.zcard(keys["ticks"]) == raw.hlen(keys["schedules"])
    return found


@pytest.mark.parametrize("step", STEPS)
def test_killed_while_it_creates_a_schedule_on_two_nodes(
    step: str, two: list[str], nursery: Nursery
) -> None:
    """The next client creates it, or finds it: it lies on one node."""
    child = nursery.start("scheduled", urls=two, step=step)
    assert child.wait() == []
    assert child.killed
    with Penstock(two) as client:
        queue = client.queue(QUEUE)
        queue.schedules.add("s", every=HOUR // 1000, job="x")
        assert not queue.schedules.add("s", every=HOUR // 1000, job="x")
        assert len(homes(two)) == 1
        assert [found.runs for found in queue.schedules.list()] == [0]


@pytest.mark.parametrize("step", STEPS)
def test_killed_at_a_step_of_a_tick_on_two_nodes(
    step: str, two: list[str], nursery: Nursery
) -> None:
    """Another worker of both nodes runs the tick, unless it was run: there is one job."""
    with Penstock(two) as client:
        queue = client.queue(QUEUE)
        queue.schedules.add("s", every=HOUR // 1000, job="x")
        (home,) = homes(two)
        tick = int(time.time() * 1000) - 5000
        with redis.Redis.from_url(home) as raw:
            raw.zadd(QueueKeys(QUEUE)["ticks"], {"s": tick})
        child = nursery.start("ticked", url=two, step=step)
        assert child.wait() == []
        assert child.killed
        ran: list[float | None] = []
        Worker(client, QUEUE, lambda job: ran.append(job.scheduled_for), burst=True).run()
        until(lambda: queue.schedules.list()[0].runs == 1)
        assert (ran, homes(two)) == ([tick / 1000], [home])


def unfinished(stats: QueueStats) -> int:
    """Return the number of jobs to come; a suspect that must run alone is scheduled for 1 s."""
    return stats.ready + stats.active + stats.scheduled


@pytest.mark.slow
def test_two_workers_that_are_killed_again_and_again(
    client: Penstock, raw: redis.Redis, crash_server: object, tmp_path: Path
) -> None:
    """A schedule of every second has each tick once, while one of two workers always lives."""
    queue, log = client.queue(QUEUE), tmp_path / "log"
    queue.configure(lease=0.5, max_crashes=0)
    log.touch()
    queue.schedules.add("s", every=1, job="x", overlap=True)
    url = crash_server.url  # type: ignore[attr-defined]  # a server
    with Nursery("tests.crash.tasks") as one, Nursery("tests.crash.tasks") as other:
        homes = [one, other]
        children = [home.start("tick", url=url, log=str(log)) for home in homes]
        for kill in range(KILLS):
            before = queue.schedules.list()[0].runs
            until(lambda before=before: queue.schedules.list()[0].runs > before)  # type: ignore[misc]  # a default
            at = kill % 2
            children[at].signal(signal.SIGKILL)
            children[at].wait()
            children[at] = homes[at].start("tick", url=url, log=str(log))
        queue.schedules.pause("s")
        until(lambda: not unfinished(queue.stats()))
        for child in children:
            child.signal(signal.SIGKILL)
            child.wait()
    ticks: dict[str, int] = {}
    for line in whole_lines(log.read_bytes()):
        job, tick = line.split(" ")
        assert ticks.setdefault(job, int(tick)) == int(tick)
    times = sorted(ticks.values())
    assert times == [times[0] + 1000 * i for i in range(len(times))], "a tick is lost, or ran twice"
    assert len(times) == queue.schedules.list()[0].runs >= KILLS
