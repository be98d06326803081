# From src/penstock/client/_async/transport/finished.py by tools/unasync.py; do not edit.
"""Waits for the ends of jobs: one reader of the streams `finished` for all waits on a node.

It also reads the streams `emitted` of jobs that are watched.

A wait is entered before the job is looked at, and the reader begins at the id that the look has
answered, so no end in between is missed (protocol/results.md, Reading and waiting). The first wait
reads for all; when it ends, the next one goes on.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from redis.exceptions import ConnectionError as RedisConnectionError

from penstock.client._acompat import Wakeup, first_ready
from penstock.client._sync.transport.blocking import (
    FAKE_BLPOP_SECONDS,
    STOP_TIMEOUT,
    BlockingConnection,
)
from penstock.client._sync.transport.cluster import Cluster, is_elsewhere
from penstock.client._sync.transport.server import Server
from penstock.client.clock import monotonic
from penstock.core.calls.failures import passing
from penstock.core.flows import POLL_INTERVAL

__all__ = ["EndReader", "JobWait"]

XREAD_BLOCK_SECONDS = 5.0
"""Seconds after which an XREAD ends by itself: longer silence shows a dead connection."""
ALL_JOBS_ENTRY = b"*"
"""An entry that tells all waits for jobs of a queue to look again."""

EntryId = tuple[int, int]
ServerSlot = tuple[Server, int | None]


class _Connected(Protocol):
    """An executor, as far as a reader needs it."""

    connections: Server | Cluster


class JobWait:
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
        self.signal = Wakeup()
        self.seen: dict[bytes, EntryId] = {}
        self.is_told = False
        self._reader: EndReader | None = None

    def enter(self, reader: EndReader, places: Mapping[bytes, bytes]) -> None:
        """Note what `reader` reads in these streams from now on."""
        if self._reader is not reader or self.places != places:
            self.leave()
            self._reader, self.places, self.seen = reader, places, {}
            reader.enter(self)

    def pause(self, lasts: Sequence[bytes], timeout: float) -> None:
        """Wait until the job should be looked at again.

        Args:
            lasts: id of the last entry of each stream, as the look has answered it.
            timeout: seconds.
        """
        assert self._reader is not None
        self._reader.wait(self, lasts, timeout)

    def leave(self) -> None:
        """Note nothing any more."""
        if self._reader is not None:
            self._reader.leave(self)
            self._reader = None
        self.signal.close()


class EndReader:
    """Reads the streams `finished` on a node, while there are waits.

    There is one connection, or one for each slot of a cluster. It is closed when no wait is left,
    unless nothing is pending on it.

    Args:
        executor: provides the connections.
    """

    def __init__(self, executor: _Connected) -> None:
        self._executor = executor
        self.forget()

    def forget(self) -> None:
        """Forget all waits and connections: another process or loop has them."""
        self._lock = threading.Lock()
        self._waits: dict[bytes, dict[bytes, list[JobWait]]] = {}
        self._began: dict[bytes, EntryId] = {}
        self._read_to: dict[bytes, EntryId] = {}
        self._waiting: dict[JobWait, None] = {}
        self._leader: JobWait | None = None
        self._lines: dict[ServerSlot, _ReadingLine] = {}
        self._failures = 0
        self._again_at = 0.0

    def enter(self, wait: JobWait) -> None:
        """Note the ends of a job from now on."""
        with self._lock:
            for key, number in wait.places.items():
                self._waits.setdefault(key, {}).setdefault(number, []).append(wait)

    def leave(self, wait: JobWait) -> None:
        """Note the ends of a job no longer."""
        with self._lock:
            for key, number in wait.places.items():
                self._forget(wait, key, number)

    def _forget(self, wait: JobWait, key: bytes, number: bytes) -> None:
        numbers = self._waits.get(key, {})
        waits = numbers.get(number, [])
        if wait in waits:
            waits.remove(wait)
        if not waits:
            numbers.pop(number, None)
        if not numbers:
            for by_key in (self._waits, self._began, self._read_to):
                by_key.pop(key, None)

    def wait(self, wait: JobWait, lasts: Sequence[bytes], timeout: float) -> None:
        """Wait until a job should be looked at again; see `JobWait.pause`."""
        until = monotonic() + timeout
        if not self._begins(wait, [*map(_entry_id, lasts)]):
            return
        try:
            while not wait.is_told and monotonic() < until:
                if self._leads(wait):
                    self._read(wait, until)
                else:
                    wait.signal.wait(until - monotonic())
        finally:
            self._end(wait)
            wait.is_told = False

    def _begins(self, wait: JobWait, lasts: Sequence[EntryId]) -> bool:
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

    def _leads(self, wait: JobWait) -> bool:
        """Return True if this wait reads for all from now on."""
        with self._lock:
            self._waiting[wait] = None
            if self._leader is None:
                self._leader = wait
            return self._leader is wait

    def _end(self, wait: JobWait) -> None:
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
            line.end()

    def _read(self, wait: JobWait, until: float) -> None:
        """Read for all waits until this one is told, or the time is over."""
        while not wait.is_told and monotonic() < until:
            rest = min(self._again_at, until) - monotonic()
            if rest > 0:
                wait.signal.wait(rest)
                continue
            try:
                self._arm()
                if not self._has_to_poll:
                    self._next(until - monotonic(), wait.signal)
                if self._has_to_poll:
                    self._close_and_wake_waits(POLL_INTERVAL)
                self._failures = 0
            except Exception as error:
                self._failures += 1
                self._close_and_wake_waits(min(0.02 * 2**self._failures, 1.0))
                if not passing(error):
                    raise

    @property
    def _has_to_poll(self) -> bool:
        """True if a server refuses XREAD: then jobs are looked at every few seconds."""
        return any("XREAD" in server.unavailable for server, _ in self._lines)

    def _close_and_wake_waits(self, pause: float) -> None:
        self._again_at = monotonic() + pause
        with self._lock:
            lines, self._lines = list(self._lines.values()), {}
            self._began.clear()
            self._read_to.clear()
            for numbers in self._waits.values():
                _tell(wait for waits in numbers.values() for wait in waits)
        for line in lines:
            line.waiter.drop()

    # -- reading ---------------------------------------------------------------------------

    def _arm(self) -> None:
        """Ensure that each stream is read, from where the last reading ended."""
        with self._lock:
            wanted = dict(self._read_to)
        places = self._executor.connections.locate_keys(tuple(wanted)) if wanted else {}
        for place, line in self._lines.copy().items():
            if is_elsewhere(self._executor.connections, place, line.waiter):
                raise RedisConnectionError(f"{place[0].address} is not the right server now")
            if place not in places:
                del self._lines[place]
                line.end()
            elif line.waiter.reader is not None and not line.keys.issuperset(places[place]):
                place[0].unblock([line.waiter])
                if line.waiter.id:
                    self._tell(line.waiter.entries(STOP_TIMEOUT))
                else:
                    line.waiter.drop()  # reading goes on where the last reply ended
        for place, keys in places.items():
            line = self._lines.setdefault(place, _ReadingLine(place[0]))
            if line.waiter.reader is None and "XREAD" not in place[0].unavailable:
                line.waiter.close_if_dead()
                line.keys = set(keys)
                if not line.waiter.is_sliced:
                    line.waiter.watch(self._places(keys), XREAD_BLOCK_SECONDS)

    def _places(self, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        with self._lock:
            return {key: b"%d-%d" % self._read_to.get(key, (0, 0)) for key in keys}

    def _next(self, timeout: float, signal: Wakeup) -> None:
        """Read entries that come within a time; until the signal at most."""
        sliced = [line for line in self._lines.values() if line.waiter.is_sliced]
        for line in sliced:
            self._tell(line.waiter.look(self._places(line.keys)))
        if sliced:
            signal.wait(min(timeout, FAKE_BLPOP_SECONDS))
            return
        lines = {line.waiter.reader: line for line in self._lines.values() if line.waiter.reader}
        ready = first_ready(list(lines), timeout, signal)
        if ready is not None:
            self._tell(lines[ready].waiter.entries(0))
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

    def __init__(self, server: Server) -> None:
        self._server = server
        self.waiter: BlockingConnection = server.waiter()
        self.keys: set[bytes] = set()

    def end(self) -> None:
        """Keep the connection for another wait, or close it if a reply is pending."""
        if self.waiter.reader is None and not self.waiter.is_sliced:
            self._server.rest(self.waiter)
        else:
            self.waiter.drop()


def _tell(waits: Iterable[JobWait]) -> None:
    for wait in waits:
        wait.is_told = True
        wait.signal.set()


def _entry_id(name: bytes) -> EntryId:
    ms, _, seq = name.partition(b"-")
    return int(ms), int(seq)
