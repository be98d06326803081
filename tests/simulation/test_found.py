"""Faults that the simulation has found, each as the shortest story that shows it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from penstock import AsyncWorker, Handlers, NodesUnavailable
from tests.simulation.server import Server, Session
from tests.simulation.world import World


def test_scripts_that_are_flushed_behind_their_loading() -> None:
    """The client loads the script again; no caller hears of it.

    Another client may send SCRIPT FLUSH at any time, and a server may restart.
    """
    with World(1) as world:
        server = world.add_server("a")
        flushed: list[bytes] = []
        execute = server.execute

        def execute_and_flush(session: Session, command: Sequence[bytes]) -> None:
            execute(session, command)
            if command[:2] == [b"SCRIPT", b"LOAD"] and flushed.count(command[2]) < 2:
                flushed.append(command[2])
                server.flush_scripts()

        server.execute = execute_and_flush

        async def enqueue() -> int:
            async with world.client("p", "a") as ps:
                queue = ps.queue("q")
                await queue.configure(lease=5)
                await queue.enqueue(b"1")
                return (await queue.stats()).enqueued

        async def run() -> int:
            return int(await world.process("p").spawn(enqueue()))

        assert world.run(run()) == 1
        assert flushed


def test_a_wait_that_outlasts_the_ends_of_other_jobs() -> None:
    """It looks every few seconds, also when the stream of ends has ended by its time to live."""
    with World(1) as world:
        server = world.add_server("a")

        async def enqueue() -> None:
            async with world.client("p", "a") as ps:
                queue = ps.queue("q")
                await queue.configure(lease=600, result_ttl=600)
                for body in (b"1", b"2"):
                    await queue.result((await queue.enqueue(body)).id, timeout=None)

        async def consume() -> None:
            async with world.client("c", "a") as ps:
                for seconds in (1, 300):
                    [job] = await ps.queue("q").reserve(block=None)
                    await asyncio.sleep(seconds)
                    await job.ack()

        async def run() -> None:
            consumer = world.process("c").spawn(consume())
            await world.process("p").spawn(enqueue())
            await consumer

        world.run(run())
        assert server.commands < 1000


def test_a_batch_whose_node_goes_down_while_it_is_full() -> None:
    """Its jobs can't go to another node: the caller is told that none takes them."""
    with World(1) as world:
        servers = [world.add_server("a"), world.add_server("b")]
        is_down = asyncio.Event()

        def fail_at_look(execute: Any) -> Any:
            def fail(session: Session, command: Sequence[bytes]) -> None:
                if is_down.is_set() and command[0] == b"INFO":
                    world.network.refused.update(world.network.servers)
                    for link in list(world.network.links):
                        link.cut()
                else:
                    execute(session, command)

            return fail

        for server in servers:
            server.execute = fail_at_look(server.execute)

        async def enqueue() -> None:
            async with world.client("p", "a", "b") as ps:
                queue = ps.queue("q")
                await queue.configure(max_length=1)
                batch = await queue.batch(then=b"then").__aenter__()
                await batch.enqueue(b"1")
                is_down.set()
                with pytest.raises(NodesUnavailable):
                    await batch.enqueue(b"2", block=60)

        world.run(world.process("p").spawn(enqueue()))


def test_a_declared_schedule_whose_nodes_restart_empty_one_after_the_other() -> None:
    """Its worker stores it on the other node, and again there when that one has lost it, too."""
    with World(1) as world:
        servers = [world.add_server("a"), world.add_server("b")]
        handlers, has_ticked = Handlers(), asyncio.Event()

        @handlers.handler("often", queue="q", every=2)
        async def run_tick() -> None:
            has_ticked.set()

        async def work() -> None:
            ps = world.client("w", "a", "b")
            await AsyncWorker(ps, ps.queue("q"), handlers).run(signals=False)

        async def wait_for_tick() -> Server:
            """Return the server that has the schedule, behind a tick."""
            has_ticked.clear()
            await asyncio.wait_for(has_ticked.wait(), 30)
            [home] = [one for one in servers if _has_schedules(one)]
            return home

        async def run() -> None:
            world.process("w").spawn(work())
            home = await wait_for_tick()
            homes = [home.name]
            while not {*pairwise(homes)} >= {("a", "b"), ("b", "a")}:  # ids of nodes are drawn
                home.replace_data({})
                for link in list(world.network.links):
                    link.cut()
                home = await wait_for_tick()
                homes.append(home.name)

        world.run(run())


def _has_schedules(server: Server) -> bool:
    return any(key.endswith(b":schedules") for key in server.copy_data())
