"""Where the queue of a system is: on servers that stand alone, in a cluster or behind Sentinels."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

import fakeredis

from tests.simulation.cluster import Cluster
from tests.simulation.plan import Plan
from tests.simulation.sentinel import SERVICE, Sentinels
from tests.simulation.server import Server
from tests.simulation.world import World

__all__ = ["Place", "urls_of"]

SENTINELS = ("s0", "s1")
LONGEST_ELECTION = 2.0
"""Most seconds until a replica takes over."""


def urls_of(plan: Plan) -> list[str]:
    """Return what the clients of a system are given: names of servers, or a URL."""
    if "sentinel" in plan.features:
        return [f"redis+sentinel://{','.join(SENTINELS)}/{SERVICE}"]
    return [*plan.servers[:1]] if "cluster" in plan.features else [*plan.servers]


class Place:
    """The servers of a system.

    Args:
        world: the world.
        plan: what the system consists of.

    Attributes:
        primaries: the servers that have data, by the name of the first one in each place.
        servers: these, and their replicas.
    """

    def __init__(self, world: World, plan: Plan) -> None:
        self._draws = world.draws
        self.primaries = {name: world.add_server(name) for name in plan.servers}
        self._replicas = dict[str, Server]()
        self._cluster: Cluster | None = None
        self._sentinels: Sentinels | None = None
        if "cluster" in plan.features or "sentinel" in plan.features:
            self._replicas = {name: world.add_server(f"{name}2") for name in plan.servers}
        self.servers = [*self.primaries.values(), *self._replicas.values()]
        if "cluster" in plan.features:
            self._cluster = Cluster([*self.primaries.values()])
            for replica in self._replicas.values():
                self._cluster.join(replica)
        elif "sentinel" in plan.features:
            sentinels = [world.add_server(name) for name in SENTINELS]
            self._sentinels = Sentinels(sentinels, self.servers, world.draws)

    @property
    def stores(self) -> list[fakeredis.FakeServer]:
        """The data of each primary, or of the whole cluster."""
        if self._cluster is None:
            return [server.fake for server in self.primaries.values()]
        whole = fakeredis.FakeServer()
        for server in self.primaries.values():
            whole.dbs[0].update(server.data)
        return [whole]

    async def elect(self) -> None:
        """Let some time pass until a replica takes over, if it has an address of its own."""
        if self._replicas:
            await asyncio.sleep(self._draws.uniform(0.0, LONGEST_ELECTION))

    async def tell(self) -> None:
        """Tell clients where the primaries are."""
        if self._sentinels is not None:
            await self._sentinels.learn()

    def promote(self, name: str, data: dict[bytes, Any]) -> None:
        """Let a replica with this data take the place of a server, which is its replica then."""
        old = self.primaries[name]
        if not self._replicas:  # it gets the address of the server, too
            old.replace_data(data)
            return
        new = self._replicas[name]
        new.set_clock_as(old)
        new.replace_data(data)
        old.replace_data({})
        self.primaries[name], self._replicas[name] = new, old
        if self._cluster is not None:
            self._cluster.replace(old, new)
        elif self._sentinels is not None:
            self._sentinels.replace(new)

    async def move_slot(self, name: str, seconds: float, refused: Collection[str]) -> None:
        """Move a slot of a server, if it has keys, to the other one.

        Args:
            name: of the server.
            seconds: for which that takes.
            refused: names of the servers that are down.
        """
        assert self._cluster is not None
        source, [target] = (
            self.primaries[name],
            [server for other, server in self.primaries.items() if other != name],
        )
        slots = self._cluster.slots_of(source)
        if slots:

            def can_move() -> bool:
                return not target.is_full and not {source.name, target.name} & {*refused}

            await self._cluster.move(self._draws.choice(slots), target, seconds, can_move)
