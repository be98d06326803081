"""Simulated clusters and Sentinels act as their names say, and clients find their queues there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.simulation.places import Place, urls_of
from tests.simulation.plan import Plan, draw_plan
from tests.simulation.world import World


@pytest.fixture
def world() -> Iterator[World]:
    """Yield a world."""
    with World(1) as made:
        yield made


def plan_of(place: str, *servers: str) -> Plan:
    """Return a plan without faults."""
    return replace(draw_plan(0), features=(place,), blows=(), servers=servers)


def test_a_queue_whose_slot_moves(world: World) -> None:
    """Scripts are answered TRYAGAIN until all keys have moved; then the other server has them."""
    plan, world.log = plan_of("cluster", "a", "b"), []
    place = Place(world, plan)

    async def enqueue() -> int:
        async with world.client("p", *urls_of(plan)) as ps:
            queue = ps.queue("work")
            for number in range(20):
                await queue.enqueue({"number": number}, delay=number % 2)
            return (await queue.stats()).enqueued

    async def run() -> None:
        first = world.process("p").spawn(enqueue())
        assert await first == 20
        [source] = [
            name
            for name, server in place.primaries.items()
            if any(key.startswith(b"penstock:{work}") for key in server.data)
        ]
        producer = world.process("p").spawn(enqueue())
        while list(place.primaries[source].data):
            await place.move_slot(source, seconds=0.5, refused=set())
        assert await producer == 40

    world.run(run())
    text = "\n".join(world.log)
    assert "TRYAGAIN" in text
    assert "MOVED" in text


def test_a_primary_that_fails_over_behind_sentinels(world: World) -> None:
    """Its clients find the replica, which has another address, and what it had received."""
    plan = plan_of("sentinel", "a")
    place = Place(world, plan)

    async def enqueue() -> int:
        async with world.client("p", *urls_of(plan)) as ps:
            queue = ps.queue("work")
            await queue.enqueue(b"1")
            kept = place.primaries["a"].copy_data()
            await queue.enqueue(b"2")
            for link in list(world.network.links):
                link.cut()
            place.promote("a", kept)
            await place.tell()
            await queue.enqueue(b"3")
            return (await queue.stats()).enqueued

    async def run() -> int:
        return int(await world.process("p").spawn(enqueue()))

    assert world.run(run()) == 2
    assert place.primaries["a"].name == "a2"
