"""Renews the leases of held jobs, in a thread and on connections of its own.

So a handler that blocks the event loop, or keeps the interpreter busy, does not lose its job. A
lease counts from the time at which it was asked for, by this machine's monotonic clock: what this
worker believes to hold it does hold.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from penstock.client._acompat import Signal
from penstock.client._async.transport.connection import monotonic
from penstock.client._async.transport.driver import AsyncDriver
from penstock.client._async.transport.node import AsyncNode
from penstock.core.logs import Fields, get_logger
from penstock.core.operations import QueueOps
from penstock.core.options import BATCH
from penstock.errors import WrongEpoch
from penstock.wire.scripts import script
from penstock.worker.heartbeat_process import HeartbeatProcess
from penstock.worker.loop import leave
from penstock.worker.runners import ain_thread
from penstock.worker.state import WorkerState
from penstock.worker.terms import LEFT, OVER

__all__ = ["AsyncHeartbeat"]

logger = get_logger("penstock")

PAUSE = 10.0
"""Most seconds between two looks at the leases."""
SHORTEST = 0.01
"""Fewest seconds between two looks."""
GONE = "it expired, was removed, or somebody else has it"
AGAIN = 1.0
"""Most seconds until leases that could not be renewed are tried again."""
OVERDUE = 2.0
"""Seconds after the grace at which a worker that has not ended is left behind by `run`, and its
heartbeat gives back its jobs; and the same again, after which the heartbeat ends the process."""


class AsyncHeartbeat:
    """Extends what is held when a third of its lease has passed; tells what is lost.

    Args:
        state: of the worker whose jobs these are.
        twin: makes a separate connection to a node; None stands for the only one.
        prefix: prefix of all keys.
        name: of the thread.
        overdue: called, once, when the worker should have ended some time ago and has not; it may
            end the process.
        helper: a process that does it, so that this one has little to do.
    """

    def __init__(
        self,
        state: WorkerState,
        twin: Callable[[Any], AsyncNode],
        *,
        prefix: str,
        name: str,
        overdue: Callable[[], None] | None = None,
        helper: HeartbeatProcess | None = None,
    ) -> None:
        self._state = state
        self._twin = twin
        self._prefix = prefix
        self._drivers: dict[Any, AsyncDriver] = {}
        self._name = name
        self._overdue = overdue
        self._helper = helper
        self._poked = Signal()  # an Event may not be set in a signal handler: it has a lock
        self._closed = False
        self._failures = 0
        self._has_left = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin."""
        self._state.poke = self._poked.set
        self._thread = ain_thread(self._main, self._name)

    def close(self) -> None:
        """End; waits until a call that is under way is over."""
        self._closed = True
        self._poked.set()
        if self._thread is not None:
            self._thread.join()

    async def _main(self) -> None:
        try:
            await self._warm_up()
            while not self._closed:
                await self._beat()
                self._state.beat_at = math.inf  # who takes a job from here on says so
                pause = self._pause()
                self._state.beat_at = monotonic() + pause
                self._poked.wait(pause)
        finally:
            for driver in self._drivers.values():
                await driver.node.close()

    def _driver(self, home: Any) -> AsyncDriver:
        """What calls a node, one of several, or the only one: None."""
        found = self._drivers.get(home)
        if found is None:
            found = self._drivers[home] = AsyncDriver(self._twin(home), self._prefix)
        return found

    async def _warm_up(self) -> None:
        """Connect before it matters: beside a handler that keeps the interpreter it takes long."""
        for home in dict.fromkeys(poll.home for poll in list(self._state.polls)):
            with suppress(Exception):  # the first beat with something to do tries again
                node = self._driver(home).node
                await node.command("SCRIPT", "LOAD", script("extend").source)

    async def _beat(self) -> None:
        failed = False
        if self._helper is not None:
            self._lose(self._helper.news(), GONE)
        for (ops, _, lease), jobs in self._due().items():
            failed |= not await self._renewed(ops, lease, jobs)
        self._failures = self._failures + 1 if failed else 0
        if self._overdue is not None and monotonic() > self._end_at:
            await self._end(self._overdue)

    @property
    def _end_at(self) -> float:
        """When to do what the worker, which has not ended, can't do."""
        return self._state.deadline + (2 * OVERDUE if self._has_left else OVERDUE)

    async def _end(self, overdue: Callable[[], None]) -> None:
        """Give back the jobs of a worker whose event loop does not move; then end the process."""
        if self._has_left:
            self._overdue = None
            overdue()
            return
        self._has_left = True
        if self._state.polls[0].home is None:  # of several nodes the leases end by themselves
            await self._driver(None).drive(leave(self._state))

    async def _renewed(self, ops: QueueOps, lease: float, jobs: Sequence[Any]) -> bool:
        """Whether the leases of one queue were renewed; those of others are another matter."""
        try:
            for start in range(0, len(jobs), BATCH):
                await self._extend(ops, lease, jobs[start : start + BATCH])
        except WrongEpoch:
            self._lose(jobs, "its queue was removed")
        except Exception as error:  # noqa: BLE001  # tried again, until the leases end
            if self._failures % 10 == 0:
                name, kind = ops.name, type(error).__name__
                text = "leases of %r can't be renewed: %s: %s"
                logger.warning(text, name, kind, error, extra=self._state.fields)
            await self._driver(ops.home).node.close()
            return False
        return True

    def _due(self) -> dict[tuple[QueueOps, str, float], list[Any]]:
        """The jobs whose lease is to be renewed now, by queue, life, lease; what is over is lost.

        Also those that a handler has done with: until the loop, which another handler may block,
        has reported them, they must not run again.
        """
        now, due = monotonic(), dict[tuple[QueueOps, str, float], list[Any]]()
        over, ended = list[Any](), list[Any]()
        unbegun = self._state.suspects.unbegun
        for job in list(self._state.held):
            if job.lost:
                continue
            term = job.term
            if term.until <= now:
                (over if term.lease else ended).append(job)
            elif job in unbegun or _is_away(job):
                continue
            elif term.lease and term.renewal(LEFT) <= now:
                due.setdefault((job.batch.ops, job.epoch, term.lease), []).append(job)
        self._lose(over, "its lease was not renewed in time")
        self._lose(ended, "its ttl has ended")
        return due

    async def _extend(self, ops: QueueOps, lease: float, jobs: Sequence[Any]) -> None:
        sent = monotonic()
        call = ops.extend(jobs, round(lease * 1000), late=True)
        reply = await self._driver(ops.home).node.run(call)
        sent, heard, gone = call.resent or sent, monotonic(), []
        for job, until in zip(jobs, reply.untils, strict=True):
            term = job.term.renewed(sent, heard, reply.now, until)
            if term is None:
                gone.append(job)
            else:
                job.term = term
        self._lose(gone, GONE)

    def _lose(self, jobs: Sequence[Any], why: str) -> None:
        """Tell the handlers of these jobs; one that is done with them has reported, or will see."""
        lost = []
        for job in jobs:
            job.term = OVER
            if not job.settled and job in self._state.held:
                lost.append(job)
                logger.warning("%s is lost: %s", job.id, why, extra=Fields(job))
        if lost:
            self._state.dispatcher.lose(lost)

    def _pause(self) -> float:
        """Seconds until the next lease is due."""
        nearest = math.inf
        for job in list(self._state.held):
            if not job.lost:
                is_left_alone = job in self._state.suspects.unbegun or _is_away(job)
                at = job.term.until if is_left_alone else job.term.renewal(LEFT)
                nearest = min(nearest, at)
        if self._overdue is not None:
            nearest = min(nearest, self._end_at)
        shortest = min(SHORTEST * 2.0 ** min(self._failures, 10), AGAIN)
        return min(max(nearest - monotonic(), shortest), PAUSE)


def _is_away(job: Any) -> bool:
    """Whether the home of a job, one of several nodes, is down: it must not hold up the others."""
    home = job.batch.ops.home
    return home is not None and not home.state.is_up
