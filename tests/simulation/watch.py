"""A look into the servers: whether workers hold the jobs that they believe to hold, and how many.

A worker counts a lease from when it asked for it, so by its own clock the lease ends before it does
on the server (protocol/core.md, Consuming). The sets of leases are read as the protocol stores them
(protocol/storage.md); no command is sent.
"""

from __future__ import annotations

import asyncio

from penstock.core.values.ids import parse_id
from tests.simulation.ledger import SERVER_TICK, Ledger, Run
from tests.simulation.loop import EPOCH
from tests.simulation.server import Server
from tests.simulation.world import World

__all__ = ["LeaseWatch"]

LOOK_SECONDS = 0.2
"""Seconds between two looks."""
SCORES_BEGIN_MS = 1_735_689_600_000
"""The time that scores of leases count from."""
TAGS = 4096
"""Number of the tags of deliveries, which scores and receipts have."""


class LeaseWatch:
    """Compares, again and again, what workers believe with what servers have stored.

    Args:
        world: the world.
        ledger: has the runs, and gets what is wrong.
        slots: the most jobs that a queue or a partition may deliver at once; None = any number.
    """

    def __init__(self, world: World, ledger: Ledger, slots: int | None = None) -> None:
        self._servers = list(world.network.servers.values())
        self._clock = world.clock
        self._ledger = ledger
        self._slots = slots
        self._unheld_since: dict[Run, float] = {}

    async def run(self) -> None:
        """Look until the task is cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            unheld = dict[Run, float]()
            for run in self._ledger.running:
                if self._is_believed(run) and not self._is_held(run):
                    unheld[run] = self._unheld_since.get(run, self._clock.now)
                    self._check_notice(run, self._clock.now - unheld[run])
            self._unheld_since = unheld
            if self._slots is not None and not self._ledger.has_lost:
                self._check_slots(self._slots)

    def _is_believed(self, run: Run) -> bool:
        """Return whether a worker believes that it holds a job, as it may."""
        job = run.job
        is_told = job.lost or job.at_most_once or self._ledger.is_forgotten(run)
        return run.process.is_alive and run.until > self._clock.now and not is_told

    def _is_held(self, run: Run) -> bool:
        """Return whether the server agrees that a delivery lasts; check until when."""
        tag = int(run.job.receipt.rpartition("-")[2], 16)
        number = parse_id(run.job.id).number
        for server in self._servers:
            for score in _scores(server, number):
                if score % TAGS == tag:
                    self._check_end(run, server, score)
                    return True
        return False

    def _check_end(self, run: Run, server: Server, score: float) -> None:
        end = (score // TAGS + SCORES_BEGIN_MS) / 1000 - EPOCH
        late = run.until - end
        if server.was_stepped:
            return
        if late > SERVER_TICK:
            who = run.process.name
            self._ledger.complain(f"{who} counts {run.entry.name} as held {late:.3f} s too long")
        short = run.extended_to - end
        if short > SERVER_TICK:
            self._ledger.complain(f"the lease of {run.entry.name} ends {short:.3f} s too early")

    def _check_slots(self, most: int) -> None:
        for server in self._servers:
            for key, item in server.fake.dbs[0]._dict.items():
                if key.endswith(b":active") and len(item.value) > most:
                    self._ledger.complain(f"{key.decode()} has {len(item.value)} jobs, not {most}")

    def _check_notice(self, run: Run, seconds: float) -> None:
        bound = self._ledger.notice.seconds_since(self._clock.now - seconds)
        if seconds > bound and not run.process.was_stopped:
            who = run.process.name
            self._ledger.complain(f"{who} does not notice that it has lost {run.entry.name}")


def _scores(server: Server, number: bytes) -> list[float]:
    """Return the scores of a job in the sets of leases of a server."""
    found = []
    for key, item in server.fake.dbs[0]._dict.items():
        if key.endswith(b":active"):
            score = item.value.get(number)
            if score is not None:
                found.append(score)
    return found
