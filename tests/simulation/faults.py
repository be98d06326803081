"""The faults of a world, as its plan has them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from tests.simulation.ledger import RESULT, Ledger
from tests.simulation.network import Link
from tests.simulation.places import Place
from tests.simulation.plan import FAULT_SECONDS, MOVE, Blow, Plan
from tests.simulation.server import Server
from tests.simulation.world import World

__all__ = ["Faults", "Member"]

CHANCE_PER_WRITE = 0.01
"""Chance that bytes are struck."""
LONGEST_DELAY = 8.0
"""Most seconds that bytes are late; more than any time-out of a client."""
LONGEST_TAIL = 1.0
"""Most seconds of calls that a power cut or a failover loses."""


class Member:
    """A program that is started again when its process was killed.

    Args:
        world: the world.
        name: for the trace.
        main: returns what its process runs.
    """

    def __init__(
        self, world: World, name: str, main: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        self._world = world
        self.name = name
        self._main = main
        self.start()

    def start(self) -> None:
        """Start a process."""
        self.process = self._world.process(self.name)
        self.task = self.process.spawn(self._main())

    def kill(self) -> None:
        """Kill the process: its connections break, and none of its code runs any more."""
        self.process.kill()
        for link in self._world.network.links_of(self.process):
            link.cut()


class Faults:
    """The faults of a world.

    Args:
        world: the world.
        plan: which faults there are.
        place: the servers.
        members: the programs.
        ledger: is told what servers have forgotten.
        repair: restores what a server has lost that has forgotten all.

    Attributes:
        counts: how often each kind has struck.
        is_on: whether faults happen.
    """

    def __init__(
        self,
        world: World,
        plan: Plan,
        place: Place,
        members: Iterable[Member],
        ledger: Ledger,
        repair: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        self._world = world
        self._ledger = ledger
        self._repair = repair
        self._plan = plan
        self._place = place
        self._shift = asyncio.Lock()  # of data from one server to another, or to an older state
        self._members = {member.name: member for member in members}
        self.counts: Counter[str] = Counter()
        self.is_on = True
        self._healing: list[asyncio.Task[None]] = []
        self._acts: dict[str, Callable[[Blow], Coroutine[Any, Any, None]]] = {
            "kill": self._kill,
            "stop": self._stop,
            "cut all": self._cut_all,
            "restart server": self._restart,
            "flush scripts": self._flush_scripts,
            "fill server": self._fill,
            "slow server": self._slow_down,
            "step clock": self._step_clock,
            "lose tail": self._lose_tail,
            "fail over": self._fail_over,
            "flush all": self._flush_all,
            MOVE: self._move_slot,
        }
        world.network.strike = self.strike

    def strike(self, link: Link, what: str) -> None:
        """Perhaps strike bytes that are about to be sent."""
        draws = self._world.draws
        if not self.is_on or draws.random() >= CHANCE_PER_WRITE:
            return
        kinds = [kind for kind in self._plan.strikes if kind.endswith(what)]
        if not kinds:
            return
        kind = draws.choice(kinds)
        owner = link.process.name if link.process else "-"
        self.counts[kind] += 1
        self._world.note(kind, owner, link.server.name)
        if kind.startswith("cut"):
            link.cut()
        elif kind.startswith("mute"):
            link.mute()
        else:
            link.delay(draws.uniform(0.1, LONGEST_DELAY))

    async def run(self) -> None:
        """Let faults happen, then heal everything."""
        clock = self._world.clock
        began = clock.now
        for blow in self._plan.blows:
            await asyncio.sleep(max(0.0, began + blow.at - clock.now))
            self._healing.append(asyncio.ensure_future(self._acts[blow.kind](blow)))
        await asyncio.sleep(max(0.0, began + FAULT_SECONDS - clock.now))
        self.is_on = False
        for task in self._healing:
            await task
        self._world.note("calm", dict(sorted(self.counts.items())))

    def _note(self, blow: Blow) -> None:
        self.counts[blow.kind] += 1
        self._world.note(blow.kind, blow.target, f"for {blow.seconds:.1f} s")

    # -- processes -------------------------------------------------------------------------

    def _member_of(self, blow: Blow) -> Member | None:
        """Return the program that a blow strikes, if it runs."""
        member = self._members.get(blow.target)
        if member is None or member.task.done():
            return None
        process = member.process
        return member if process.is_alive and not process.is_stopped else None

    async def _kill(self, blow: Blow) -> None:
        member = self._member_of(blow)
        if member is not None:
            self._note(blow)
            member.kill()
            await asyncio.sleep(blow.seconds)
            self._world.note("start", member.name)
            member.start()

    async def _stop(self, blow: Blow) -> None:
        member = self._member_of(blow)
        if member is not None:
            self._note(blow)
            member.process.stop()
            await asyncio.sleep(blow.seconds)
            member.process.resume()
            self._world.note("resumed", member.name)

    # -- servers ---------------------------------------------------------------------------

    def _server_of(self, blow: Blow) -> Server:
        self._note(blow)
        return self._place.primaries[blow.target]

    async def _cut_all(self, blow: Blow) -> None:
        self._cut_links(self._server_of(blow))

    def _cut_links(self, server: Server) -> None:
        for link in list(self._world.network.links):
            if link.server is server:
                link.cut()

    async def _flush_scripts(self, blow: Blow) -> None:
        self._server_of(blow).flush_scripts()

    async def _restart(self, blow: Blow) -> None:
        await self._keep_down(self._server_of(blow), blow.seconds)

    async def _keep_down(self, server: Server, seconds: float) -> None:
        refused = self._world.network.refused
        self._cut_links(server)
        refused.add(server.name)
        server.flush_scripts()
        await asyncio.sleep(seconds)
        refused.discard(server.name)
        self._world.note("is up", server.name)

    async def _fill(self, blow: Blow) -> None:
        server = self._server_of(blow)
        server.is_full = True
        with self._ledger.excusing(RESULT):
            await asyncio.sleep(blow.seconds)
        server.is_full = False
        self._world.note("has room", server.name)

    async def _slow_down(self, blow: Blow) -> None:
        server = self._server_of(blow)
        server.seconds_per_request = self._world.draws.choice((0.02, 0.1, 0.4))
        with self._ledger.notice.slowed(server.seconds_per_request):
            await asyncio.sleep(blow.seconds)
        server.seconds_per_request = 0.0
        self._world.note("is fast", server.name)

    async def _step_clock(self, blow: Blow) -> None:
        server = self._server_of(blow)
        before = server.time()
        server.step_clock(blow.seconds)
        self._ledger.step_clock(blow.seconds, before)

    async def _lose_tail(self, blow: Blow) -> None:
        """Cut the power of a server that has not written the last calls to its disk."""
        async with self._shift:
            server, since = self._place.primaries[blow.target], self._world.clock.now
            kept = server.copy_data()
            await asyncio.sleep(self._world.draws.uniform(0.0, LONGEST_TAIL))
            self._note(blow)
            server.replace_data(kept)
            self._ledger.lose_since(since)
            await self._keep_down(server, blow.seconds)

    async def _fail_over(self, blow: Blow) -> None:
        """Let a replica take the place of a server, after a time in which it got nothing."""
        async with self._shift:
            server, since = self._place.primaries[blow.target], self._world.clock.now
            server.has_lag = True
            kept = server.copy_data()
            await asyncio.sleep(self._world.draws.uniform(0.0, LONGEST_TAIL))
            self._note(blow)
            down = asyncio.ensure_future(self._keep_down(server, blow.seconds))
            await self._place.elect()
            self._place.promote(blow.target, kept)
            server.has_lag = False
            self._ledger.lose_since(since, but_confirmed=True)
            await self._place.tell()
            await down

    async def _flush_all(self, blow: Blow) -> None:
        async with self._shift:
            server = self._server_of(blow)
            with self._ledger.wiping():
                server.replace_data({})
                await self._repair()

    async def _move_slot(self, blow: Blow) -> None:
        """Move a slot that has keys to another server of a cluster."""
        async with self._shift:
            refused = self._world.network.refused
            self._note(blow)
            await self._place.move_slot(blow.target, blow.seconds, refused)
