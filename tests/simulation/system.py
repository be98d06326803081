"""A system of producers and workers with one queue, from a plan, and its check at the end."""

from __future__ import annotations

import asyncio
import gc
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import fakeredis

from penstock import AsyncQueue, AsyncWorker
from tests.simulation.faults import Faults, Member
from tests.simulation.ledger import REPEATED, Entry, Ledger
from tests.simulation.load import (
    KEY_RATE,
    PARTITIONS,
    RATE,
    SECONDS_OF_DEED,
    TICK_SECONDS,
    Load,
)
from tests.simulation.places import Place
from tests.simulation.plan import Plan, draw_plan
from tests.simulation.plants import Plant
from tests.simulation.watch import LeaseWatch
from tests.simulation.world import World, silenced
from tests.support.keyspace import check_invariant

__all__ = ["BrokenPromise", "find", "simulate"]

END_SECONDS = 180.0
"""Virtual seconds after the faults within which all jobs end."""
SETTLING_SECONDS = 60.0
"""Virtual seconds after the faults in which clients find connections that are dead."""
IDLE_SECONDS = 30.0
"""Virtual seconds in which the system has nothing to do."""
IDLE_COMMANDS = 4.0
"""Most commands per second of an idle worker."""
PROBES = 6
"""Jobs that are added at the end, when the workers have nothing to do."""
PICK_UP_SECONDS = 0.5
"""Most virtual seconds after which an idle worker begins a job that is due."""


class BrokenPromise(AssertionError):
    """A promise was broken; the text has the seed and the end of the story."""

    def __init__(self, world: World, broken: list[str]) -> None:
        story = "\n".join(world.story[-60:])
        super().__init__(f"seed {world.seed}: {'; '.join(broken[:5])}\n{story}")
        self.broken = broken


class System:
    """Producers, workers and a server.

    Args:
        world: the world.
        plan: what it consists of.
    """

    def __init__(self, world: World, plan: Plan) -> None:
        self.world = world
        self.plan = plan
        self.ledger = Ledger(world)
        self.place = Place(world, plan)
        self.servers = self.place.servers
        self.load = Load(world, plan, self.ledger)
        world.note("has", ", ".join(plan.parts))
        self.producers = [self._member(name, self.load.produce) for name in plan.producers]
        self.workers = [self._member(name, self._work) for name in plan.workers]
        self.operator = self._member("operator", lambda _: self.load.operate())
        members = [*self.producers, *self.workers]
        self.faults = Faults(world, plan, self.place, members, self.ledger, self._repair)

    def _member(self, name: str, main: Callable[[str], Any]) -> Member:
        return Member(self.world, name, lambda: main(name))

    async def _work(self, name: str) -> None:
        client = self.load.client(name)
        worker = AsyncWorker(
            client,
            self.load.queue(client),
            self.load.handlers(),
            concurrency=self.plan.concurrency,
            grace=2,
        )
        await worker.run(signals=False)

    async def _repair(self) -> None:
        """Configure the queue again, as a deployment does."""
        await self.world.process("repair").spawn(self.load.configure_anew())

    # -- the end ---------------------------------------------------------------------------

    async def run(self) -> None:
        """Run the system to its end, and check it."""
        world, ledger = self.world, self.ledger
        watch = asyncio.ensure_future(LeaseWatch(world, ledger, self.load.slots).run())
        await self.faults.run()
        for member in (*self.producers, self.operator):
            await member.task
        await asyncio.sleep(max(SECONDS_OF_DEED.values()))
        watch.cancel()
        observer = world.process("observer")
        await observer.spawn(self._observe())
        world.note("over", "latest notice", f"{ledger.latest_notice:.1f}")
        ledger.check_orders()
        if self.load.has("rate"):
            ledger.check_rate(*RATE)
        if self.load.has("key rate"):
            ledger.check_key_rate(KEY_RATE)
        for worker in self.workers:
            if worker.task.done():
                ledger.complain(f"{worker.name} has ended: {worker.task!r}")

    async def _observe(self) -> None:
        client = self.load.client("observer")
        try:
            queue = self.load.queue(client)
            schedules = self.load.schedules
            await self._drain(queue, wholly=not schedules)
            if schedules:
                await self._observe_ticks(queue)
                await self._drain(queue)
            await self._observe_idleness()
            await self._probe(queue)
            self._check_counts(await queue.stats())
        finally:
            await client.close()

    async def _observe_ticks(self, queue: AsyncQueue) -> None:
        """Let the schedules run without faults, and remove them."""
        await asyncio.sleep(SETTLING_SECONDS)
        was_stepped = any(server.was_stepped for server in self.servers)
        began = self.servers[0].time()
        if not was_stepped:  # else the queue's time is another
            await asyncio.sleep(10 * TICK_SECONDS)
        for name in self.load.schedules:
            await queue.schedules.remove(name)
            ended = self.servers[0].time() - TICK_SECONDS
            if not was_stepped:
                self.ledger.check_ticks(name, began, ended, TICK_SECONDS)

    async def _drain(self, queue: AsyncQueue, *, wholly: bool = True) -> None:
        """Wait until all jobs have ended; those of ticks too, if `wholly`."""
        until = self.world.clock.now + END_SECONDS
        while True:
            for view in await queue.peek(1000, state="dead"):
                entry = self.ledger.entries.get(view.body.get("name"))
                if entry is not None and not entry.is_dead:
                    self.ledger.bury(entry.name)
            stats = await queue.stats()
            waiting = self._held(stats) - self._stranded(stats)
            left = self.ledger.left()
            if not left and not (wholly and waiting):
                return
            if self.world.clock.now > until:
                self.ledger.complain(
                    f"left after {END_SECONDS} s: {left} {waiting} of {stats.enqueued}"
                )
                return
            await asyncio.sleep(1.0)

    @staticmethod
    def _held(stats: Any) -> int:
        return int(stats.ready + stats.scheduled + stats.active + stats.parked)

    def _stranded(self, stats: Any) -> int:
        """Return the number of jobs that stay.

        Jobs at most once stay active if their delivery or their ack got lost. The callback of a
        batch that its producer has not closed waits for an hour.
        """
        once, unclosed = 0, 0
        for entry in self.ledger.entries.values():
            once += entry.deed == "once"
            is_closed = entry.is_accepted and not entry.excuses
            is_own = entry.is_callback and entry.parent is None
            unclosed += is_own and not is_closed and not entry.done
        return min(once, stats.active) + min(unclosed, stats.scheduled)

    @property
    def _commands(self) -> int:
        return sum(server.commands for server in self.servers)

    async def _observe_idleness(self) -> None:
        await asyncio.sleep(max(0.0, self.load.until + SETTLING_SECONDS - self.world.clock.now))
        before, began = self._commands, self.world.clock.now
        await asyncio.sleep(IDLE_SECONDS)
        rate = (self._commands - before) / (self.world.clock.now - began)
        parts = PARTITIONS if self.load.has("partitions") else 1
        if rate > IDLE_COMMANDS * len(self.workers) * len(self.plan.servers) * parts:
            self.ledger.complain(f"{rate:.1f} commands per second without work")

    async def _probe(self, queue: AsyncQueue) -> None:
        """Add jobs, one at a time, which an idle worker must begin soon."""
        draws = self.world.draws
        # After a clock was set back the time of the queue passes by a tenth more slowly.
        slowness = 1.25 if any(server.was_stepped for server in self.servers) else 1.0
        for number in range(PROBES):
            delay = draws.choice((0.0, draws.uniform(0.2, 1.5)))
            entry = Entry(f"probe.{number}", "ok")
            self.ledger.attempt(entry)
            self.ledger.accept(entry, (await queue.enqueue({"name": entry.name}, delay=delay)).id)
            await asyncio.sleep(delay * slowness + PICK_UP_SECONDS)
            if not entry.runs:
                self.ledger.complain(f"{entry.name} waits for {PICK_UP_SECONDS} s, with no work")
            await asyncio.sleep(draws.uniform(0.0, 8.0))

    def _is_counted(self, entry: Entry) -> bool:
        """Return whether the queue has counted a job for certain, and has not forgotten that."""
        return entry.is_accepted and not (entry.excuses and self.ledger.has_lost)

    def _check_counts(self, stats: Any) -> None:
        ended = stats.acked + stats.died + stats.cancelled + stats.expired + stats.withdrawn
        ended += stats.purged + stats.evicted
        left = self._held(stats)
        if stats.enqueued != ended + left:
            self.ledger.complain(f"{stats.enqueued} were added, {ended} ended, {left} are left")
        accepted = [one for one in self.ledger.entries.values() if self._is_counted(one)]
        repeated = sum(REPEATED in one.excuses for one in self.ledger.entries.values())
        ticks = sum(map(len, self.ledger.ticks.values()))
        most = len(self.ledger.entries) + ticks + repeated + stats.purged
        if not len(accepted) <= stats.enqueued <= most:
            self.ledger.complain(f"{len(accepted)} were accepted, {stats.enqueued} were added")
        if stats.dangling:
            self.ledger.complain(f"{stats.dangling} entries have no job")
        # In a cluster the registry may be on another server, and get lost alone (durability.md).
        is_listed = not (self.load.has("cluster") and self.ledger.has_lost)
        for store in self.place.stores:
            check_invariant(fakeredis.FakeRedis(server=store), is_listed=is_listed)


def simulate(
    seed: int,
    *,
    log: list[str] | None = None,
    plant: Plant | None = None,
    plan: Plan | None = None,
) -> World:
    """Run the system of a seed; return its world.

    Args:
        seed: the seed.
        log: gets each command and each reply.
        plant: a fault that is planted into the product.
        plan: what the system consists of; None = what the seed draws.

    Raises:
        BrokenPromise: a promise was broken.
    """
    with World(seed) as world:
        world.log = log
        with nullcontext() if plant is None else plant.planted(world):
            broken = _run(world, plan or draw_plan(seed))  # its objects are gone before the world
    if broken:
        raise BrokenPromise(world, broken)
    return world


def find(plant: Plant, most: int) -> int | None:
    """Return the first seed whose run fails with a fault, or None if `most` of them do not.

    Whatever a run raises shows the fault, as a run without one raises nothing.
    """
    return next((seed for seed in range(most) if not _holds(seed, plant)), None)


def _holds(seed: int, plant: Plant) -> bool:
    try:
        simulate(seed, plant=plant)
    except Exception as error:  # noqa: BLE001  # any failure will do
        with silenced():  # what the frames of the error hold ends here, and not in another test
            traceback.clear_frames(error.__traceback__)
            del error
            gc.collect()
        return False
    return True


def _run(world: World, plan: Plan) -> list[str]:
    system = System(world, plan)
    world.run(system.run())
    return system.ledger.broken
