"""The ground of the simulation: the clock, the network and the server do what their names say."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from penstock import PenstockError
from tests.simulation.loop import HotLoop, Stuck, current_process
from tests.simulation.network import Link
from tests.simulation.plan import draw_plan
from tests.simulation.system import simulate
from tests.simulation.world import World


@pytest.fixture
def world() -> Iterator[World]:
    """Yield a world with a server."""
    with World(1) as made:
        made.add_server("a")
        yield made


def run_in(world: World, work: Callable[[], Any], name: str = "p") -> Any:
    """Run a coroutine in a process of its own; return its result."""

    async def run() -> Any:
        return await world.process(name).spawn(work())

    return world.run(run())


@pytest.mark.slow
def test_a_seed_repeats_exactly() -> None:
    """Every command, every reply and every time is the same; of another seed they are not."""
    logs: tuple[list[str], list[str]] = [], []
    first, again = (simulate(3, log=log).digest for log in logs)
    assert logs[0]
    assert logs[1] == logs[0]
    assert first == again
    assert simulate(4).digest != first


@pytest.mark.slow
def test_a_seed_repeats_in_another_process() -> None:
    """Neither the hashes of texts, the addresses of objects nor the seeds before it matter."""
    seeds = (seed for seed in count() if "two nodes" in draw_plan(seed).features)
    before, seed = next(seeds), next(seeds)
    runs = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.simulation", "--seed", str(seed)],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for hash_seed in ("1", "2")
    ]
    simulate(before)
    digest = simulate(seed).digest
    told = [run.communicate()[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0]
    assert told[0] == told[1]
    assert digest in told[0]


def test_time_passes_only_while_all_wait(world: World) -> None:
    """A sleep of an hour takes no real time, and the server's clock goes with it."""

    async def sleep() -> tuple[int, int]:
        async with world.client("p", "a") as ps:
            before = await ps.topology.executor.time_ms()
            await asyncio.sleep(3600)
            return before, await ps.topology.executor.time_ms()

    before, after = run_in(world, sleep)
    assert 3_600_000 <= after - before < 3_601_000


@pytest.mark.parametrize("kind", ["cut", "mute"])
@pytest.mark.parametrize("what", ["request", "reply"])
def test_an_enqueue_survives_a_lost_message(world: World, kind: str, what: str) -> None:
    """Its job is added once, whether the request or the reply was lost."""

    async def enqueue() -> tuple[str, int, list[bytes]]:
        async with world.client("p", "a") as ps:
            queue = ps.queue("q")
            await queue.enqueue(b"first")
            lost = []

            def lose(link: Link, direction: str) -> None:
                if direction == what and not lost:
                    lost.append(link)
                    getattr(link, kind)()

            world.network.strike = lose
            added = await queue.enqueue(b"second")
            assert lost
            stats = await queue.stats()
            return added.id, stats.enqueued, [job.body for job in await queue.peek()]

    began = world.clock.now
    _, enqueued, bodies = run_in(world, enqueue)
    assert (enqueued, bodies) == (2, [b"first", b"second"])
    assert (world.clock.now - began > 5) == (kind == "mute")  # the time-out of a reply


def test_a_late_reply_is_not_that_of_the_next_call(world: World) -> None:
    """The client gives the connection up, and asks again on another one."""

    async def enqueue() -> int:
        async with world.client("p", "a") as ps:
            queue = ps.queue("q")
            await queue.enqueue(b"first")
            delayed: list[Link] = []

            def delay(link: Link, direction: str) -> None:
                if direction == "reply" and not delayed:
                    delayed.append(link)
                    link.delay(7.0)

            world.network.strike = delay
            await queue.enqueue(b"second")
            await asyncio.sleep(10)
            return (await queue.stats()).enqueued

    assert run_in(world, enqueue) == 2


def test_a_token_wakes_the_longest_waiting(world: World) -> None:
    """Blocked consumers are served in the order in which they came."""
    got: list[str] = []

    async def consume(name: str) -> None:
        async with world.client(name, "a") as ps:
            for job in await ps.queue("q").reserve(1, block=None):
                got.append(name)
                await job.ack()

    async def run() -> None:
        consumers = []
        for name in ("c1", "c2", "c3"):
            consumers.append(world.process(name).spawn(consume(name)))
            await asyncio.sleep(0.1)
        async with world.client("p", "a") as ps:
            for _ in consumers:
                await ps.queue("q").enqueue(b"1")
                await asyncio.sleep(0.01)
        await asyncio.gather(*consumers)

    world.run(run())
    assert got == ["c1", "c2", "c3"]
    assert world.clock.now < 1001


def test_a_killed_process_runs_no_code(world: World) -> None:
    """Its `finally` blocks don't run either, and what it holds stays held."""
    ran: list[str] = []

    async def hold() -> None:
        try:
            async with world.client("p", "a") as ps:
                queue = ps.queue("q")
                await queue.enqueue(b"1", lease=5)
                assert await queue.reserve(1)
                await asyncio.sleep(60)
        finally:
            ran.append("finally")

    async def run() -> tuple[int, int]:
        process = world.process("p")
        process.spawn(hold())
        await asyncio.sleep(1)
        process.kill()
        for link in world.network.links_of(process):
            link.cut()
        async with world.client("o", "a") as ps:
            queue = ps.queue("q")
            held = (await queue.stats()).active
            await asyncio.sleep(5)
            return held, len(await queue.reserve(1))

    assert world.run(run()) == (1, 1)
    assert not ran


def test_a_stopped_process_goes_on_where_it_was(world: World) -> None:
    """Time passes for it meanwhile; its timers end when it goes on."""
    seen: list[float] = []

    async def count() -> None:
        for _ in range(3):
            await asyncio.sleep(1)
            seen.append(world.clock.now - 1000)

    async def run() -> None:
        process = world.process("p")
        task = process.spawn(count())
        await asyncio.sleep(1.5)
        process.stop()
        await asyncio.sleep(10)
        process.resume()
        await task

    world.run(run())
    assert [round(at, 2) for at in seen] == [1.0, 11.5, 12.5]


def test_a_server_that_is_down_refuses_connections(world: World) -> None:
    """The error that reaches the caller is one of penstock's."""
    world.network.refused.add("a")

    async def enqueue() -> None:
        async with world.client("p", "a", retry_for=1) as ps:
            await ps.queue("q").enqueue(b"1")

    with pytest.raises(PenstockError):
        run_in(world, enqueue)


def test_a_wait_that_nothing_ends_is_found(world: World) -> None:
    """The world says so, and does not hang."""

    async def wait() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Stuck):
        run_in(world, wait)


def test_a_loop_that_never_waits_is_found(world: World) -> None:
    """The world says so, and does not hang."""

    async def spin() -> None:
        while True:  # noqa: ASYNC110  # that is the fault
            await asyncio.sleep(0)

    with pytest.raises(HotLoop):
        run_in(world, spin)


def test_an_exception_that_no_task_has_caught_fails_the_world(world: World) -> None:
    """A callback that fails ends the run."""

    async def fail() -> None:
        assert current_process() is not None
        asyncio.get_running_loop().call_soon(lambda: 1 / 0)
        await asyncio.sleep(1)

    with pytest.raises(ZeroDivisionError):
        run_in(world, fail)
