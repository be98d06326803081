"""Waits for the ends of jobs: one reader of the streams `finished` for all waits on a node.

It also reads the streams `emitted` of jobs that are watched.

A wait is entered before the job is looked at, and the reader begins at the id that the look has
answered, so no end in between is missed (protocol/results.md, Reading and waiting). The first wait
reads for all; when it ends, the next one goes on.
"""

from __future__ import annotations

import asyncio  # async only
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from redis.exceptions import ConnectionError as RedisConnectionError

from penstock.client._acompat import AsyncWakeup, afirst_ready
from penstock.client._async.transport.blocking import (
    FAKE_BLPOP_SECONDS,
    STOP_TIMEOUT,
    AsyncBlockingConnection,
)
from penstock.client._async.transport.cluster import AsyncCluster, is_elsewhere
from penstock.client._async.transport.server import AsyncServer
from penstock.client.clock import monotonic
from penstock.core.calls.failures import passing
from penstock.core.flows import POLL_INTERVAL

__all__ = ["AsyncEndReader", "AsyncJobWait"]

XREAD_BLOCK_SECONDS = 5.0
"""Seconds after which an XREAD ends by itself: longer silence shows a dead connection."""
ALL_JOBS_ENTRY = b"*"
"""An entry that tells all waits for jobs of a queue to look again."""

EntryId = tuple[int, int]
ServerSlot = tuple[AsyncServer, int | None]


class _AsyncConnected(Protocol):
    """An executor, as far as a reader needs it."""

    connections: AsyncServer | AsyncCluster


class AsyncJobWait:
    """A call that waits for the end of one job, or for what happens to it.

    Attributes:
        places: keys of the streams that tell it, each with the number of the job if entries about
            other jobs are in it, or with nothing.
        signal: ends a pause of the wait.
        seen: id of an entry that each stream has had before the next look.
        is_told: True if the job may have changed since it was looked at.
    """

    def __init__(self) -> None:
        self.places: Mapping[bytes, bytes] = {}
        self.signal = AsyncWakeup()
        self.seen: dict[bytes, EntryId] = {}
        self.is_told = False
        self._reader: AsyncEndReader | None = None

    def enter(self, reader: AsyncEndReader, places: Mapping[bytes, bytes]) -> None:
        """Note what `reader` reads in these streams from now on."""
        if self._reader is not reader or self.places != places:
            self.leave()
            self._reader, self.places, self.seen = reader, places, {}
            reader.enter(self)

    async def pause(self, lasts: Sequence[bytes], timeout: float) -> None:
        """Wait until the job should be looked at again.

        Args:
            lasts: id of the last entry of each stream, as the look has answered it.
            timeout: seconds.
        """
        assert self._reader is not None
        await self._reader.wait(self, lasts, timeout)

    def leave(self) -> None:
        """Note nothing any more."""
        if self._reader is not None:
            self._reader.leave(self)
            self._reader = None
        self.signal.close()


class AsyncEndReader:
    """Reads the streams `finished` on a node, while there are waits.

    There is one connection, or one for each slot of a cluster. It is closed when no wait is left,
    unless nothing is pending on it.

    Args:
        executor: provides the connections.
    """

    def __init__(self, executor: _AsyncConnected) -> None:
        self._executor = executor
        self._bound: object = None  # async only
        self.forget()

    def forget(self) -> None:
        """Forget all waits and connections: another process or loop has them."""
        self._lock = threading.Lock()
        self._waits: dict[bytes, dict[bytes, list[AsyncJobWait]]] = {}
        self._began: dict[bytes, EntryId] = {}
        self._read_to: dict[bytes, EntryId] = {}
        self._waiting: dict[AsyncJobWait, None] = {}
        self._leader: AsyncJobWait | None = None
        self._lines: dict[ServerSlot, _ReadingLine] = {}
        self._failures = 0
        self._again_at = 0.0

    def enter(self, wait: AsyncJobWait) -> None:
        """Note the ends of a job from now on."""
        # [async only
        running = asyncio.get_running_loop()
        if running is not self._bound:
            self.forget()
            self._bound = running
        # async only]
        with self._lock:
            for key, number in wait.places.items():
                self._waits.setdefault(key, {}).setdefault(number, []).append(wait)

    def leave(self, wait: AsyncJobWait) -> None:
        """Note the ends of a job no longer."""
        with self._lock:
            for key, number in wait.places.items():
                self._forget(wait, key, number)

    def _forget(self, wait: AsyncJobWait, key: bytes, number: bytes) -> None:
        numbers = self._waits.get(key, {})
        waits = numbers.get(number, [])
        if wait in waits:
            waits.remove(wait)
        if not waits:
            numbers.pop(number, None)
        if not numbers:
            for by_key in (self._waits, self._began, self._read_to):
                by_key.pop(key, None)

    async def wait(self, wait: AsyncJobWait, lasts: Sequence[bytes], timeout: float) -> None:
        """Wait until a job should be looked at again; see `AsyncJobWait.pause`."""
        until = monotonic() + timeout
        if not self._begins(wait, [*map(_entry_id, lasts)]):
            return
        try:
            while not wait.is_told and monotonic() < until:
                if self._leads(wait):
                    await self._read(wait, until)
                else:
                    await wait.signal.wait(until - monotonic())
        finally:
            await self._end(wait)
            wait.is_told = False

    def _begins(self, wait: AsyncJobWait, lasts: Sequence[EntryId]) -> bool:
        """Return True if every entry behind `lasts` is read; else look at the job again.

        If a stream has had a later entry before the look, it has ended since (it has a time to
        live), and reading begins anew.
        """
        with self._lock:
            are_read = True
            for key, last in zip(wait.places, lasts, strict=True):
                if key not in self._began or last < wait.seen.get(key, (0, 0)):
                    self._began[key] = self._read_to[key] = last
                    if self._leader is not None:
                        self._leader.signal.set()
                wait.seen[key] = self._read_to[key]
                are_read = are_read and self._began[key] <= last
            return are_read

    def _leads(self, wait: AsyncJobWait) -> bool:
        """Return True if this wait reads for all from now on."""
        with self._lock:
            self._waiting[wait] = None
            if self._leader is None:
                self._leader = wait
            return self._leader is wait

    async def _end(self, wait: AsyncJobWait) -> None:
        """Let another wait read; without one, give the connections back or close them."""
        lines: list[_ReadingLine] = []
        with self._lock:
            self._waiting.pop(wait, None)
            if self._leader is wait:
                self._leader = None
            if self._leader is None and self._waiting:
                next(iter(self._waiting)).signal.set()
            elif self._leader is None:
                lines, self._lines = list(self._lines.values()), {}
        for line in lines:
            await line.end()

    async def _read(self, wait: AsyncJobWait, until: float) -> None:
        """Read for all waits until this one is told, or the time is over."""
        while not wait.is_told and monotonic() < until:
            rest = min(self._again_at, until) - monotonic()
            if rest > 0:
                await wait.signal.wait(rest)
                continue
            try:
                await self._arm()
                if not self._has_to_poll:
                    await self._next(until - monotonic(), wait.signal)
                if self._has_to_poll:
                    await self._close_and_wake_waits(POLL_INTERVAL)
                self._failures = 0
            except Exception as error:
                self._failures += 1
                await self._close_and_wake_waits(min(0.02 * 2**self._failures, 1.0))
                if not passing(error):
                    raise

    @property
    def _has_to_poll(self) -> bool:
        """True if a server refuses XREAD: then jobs are looked at every few seconds."""
        return any("XREAD" in server.unavailable for server, _ in self._lines)

    async def _close_and_wake_waits(self, pause: float) -> None:
        self._again_at = monotonic() + pause
        with self._lock:
            lines, self._lines = list(self._lines.values()), {}
            self._began.clear()
            self._read_to.clear()
            for numbers in self._waits.values():
                _tell(wait for waits in numbers.values() for wait in waits)
        for line in lines:
            await line.waiter.drop()

    # -- reading ---------------------------------------------------------------------------

    async def _arm(self) -> None:
        """Ensure that each stream is read, from where the last reading ended."""
        with self._lock:
            wanted = dict(self._read_to)
        places = await self._executor.connections.locate_keys(tuple(wanted)) if wanted else {}
        for place, line in self._lines.copy().items():
            if is_elsewhere(self._executor.connections, place, line.waiter):
                raise RedisConnectionError(f"{place[0].address} is not the right server now")
            if place not in places:
                del self._lines[place]
                await line.end()
            elif line.waiter.reader is not None and not line.keys.issuperset(places[place]):
                await place[0].unblock([line.waiter])
                if line.waiter.id:
                    self._tell(await line.waiter.entries(STOP_TIMEOUT))
                else:
                    await line.waiter.drop()  # reading goes on where the last reply ended
        for place, keys in places.items():
            line = self._lines.setdefault(place, _ReadingLine(place[0]))
            if line.waiter.reader is None and "XREAD" not in place[0].unavailable:
                await line.waiter.close_if_dead()
                line.keys = set(keys)
                if not line.waiter.is_sliced:
                    await line.waiter.watch(self._places(keys), XREAD_BLOCK_SECONDS)

    def _places(self, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        with self._lock:
            return {key: b"%d-%d" % self._read_to.get(key, (0, 0)) for key in keys}

    async def _next(self, timeout: float, signal: AsyncWakeup) -> None:
        """Read entries that come within a time; until the signal at most."""
        sliced = [line for line in self._lines.values() if line.waiter.is_sliced]
        for line in sliced:
            self._tell(await line.waiter.look(self._places(line.keys)))
        if sliced:
            await signal.wait(min(timeout, FAKE_BLPOP_SECONDS))
            return
        lines = {line.waiter.reader: line for line in self._lines.values() if line.waiter.reader}
        ready = await afirst_ready(list(lines), timeout, signal)
        if ready is not None:
            self._tell(await lines[ready].waiter.entries(0))
        for line in self._lines.values():
            if line.waiter.is_silent(XREAD_BLOCK_SECONDS + STOP_TIMEOUT):
                raise RedisConnectionError("the reply to XREAD is overdue")

    def _tell(self, reply: Any) -> None:
        streams = reply.items() if isinstance(reply, Mapping) else reply or ()
        with self._lock:
            for key, entries in streams:
                numbers = self._waits.get(key, {})
                for name, fields in entries:
                    if key in self._read_to:
                        self._read_to[key] = max(self._read_to[key], _entry_id(name))
                    _tell(numbers.get(b"", ()))
                    ended = numbers if fields[1] == ALL_JOBS_ENTRY else fields[1].split()
                    for number in ended:
                        _tell(numbers.get(number, ()))


class _ReadingLine:
    """A connection that reads some streams."""

    def __init__(self, server: AsyncServer) -> None:
        self._server = server
        self.waiter: AsyncBlockingConnection = server.waiter()
        self.keys: set[bytes] = set()

    async def end(self) -> None:
        """Keep the connection for another wait, or close it if a reply is pending."""
        if self.waiter.reader is None and not self.waiter.is_sliced:
            self._server.rest(self.waiter)
        else:
            await self.waiter.drop()


def _tell(waits: Iterable[AsyncJobWait]) -> None:
    for wait in waits:
        wait.is_told = True
        wait.signal.set()


def _entry_id(name: bytes) -> EntryId:
    ms, _, seq = name.partition(b"-")
    return int(ms), int(seq)
