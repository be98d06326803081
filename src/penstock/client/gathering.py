"""Concurrent calls of `enqueue` on one event loop go to the server together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from penstock.core.calls.refusals import REFUSALS
from penstock.core.enqueuing.chunks import CHUNK_BYTES
from penstock.core.enqueuing.prepared import USUAL, Prepared
from penstock.core.jobs.enqueued import BulkEnqueued, Enqueued
from penstock.core.values.checks import BATCH
from penstock.errors import BodyTooLarge, OutOfMemory

__all__ = ["Gathering"]

Answer = Enqueued | list[Exception] | None
"""The result of a call; or a list with the exception to raise, which is taken out: see `caught`;
None = refused together with others."""
MOST_SINGLE_CALLS = 4
"""Calls of one job that a queue has under way; a few callers lose no time by waiting."""


class _ChunkAdder(Protocol):
    async def add_chunk(
        self, chunk: list[bytes], options: Prepared, results: BulkEnqueued
    ) -> None: ...


class Gathering:
    """The plain jobs that are being added to one queue.

    MOST_SINGLE_CALLS calls go out at once, each with its job. A job that comes meanwhile waits
    until one of them has ended; then all that wait go out in one call, like those of
    `enqueue_many`. So 100 concurrent calls cost five trips, and a single one waits for nothing.

    Args:
        part: adds them.

    Attributes:
        calls: calls of one job that are under way.
    """

    def __init__(self, part: _ChunkAdder) -> None:
        self._part = part
        self.calls = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: list[tuple[bytes, asyncio.Future[Answer]]] = []
        self._task: asyncio.Task[None] | None = None
        self._asked: asyncio.Future[bool | None] | None = None

    async def share(self, ask: Callable[[], Awaitable[bool]]) -> bool:
        """Return the answer that another call waits for, or else ask.

        Otherwise each of a thousand calls would open a connection to ask. If the other call fails,
        each asks for itself.
        """
        loop = asyncio.get_running_loop()
        asked, answer = self._asked, None
        if asked is not None and asked.get_loop() is loop:
            answer = await asyncio.shield(asked)
            return await ask() if answer is None else answer
        self._asked = asked = loop.create_future()
        try:
            answer = await ask()
            return answer
        finally:
            self._asked = None
            asked.set_result(answer)

    def has_room(self) -> bool:
        """Return True if a job may go out by itself; count its call then, until `done`."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # calls of an earlier loop have ended with it
            self._loop, self.calls, self._waiting, self._task = loop, 0, [], None
        if self.calls >= MOST_SINGLE_CALLS:
            return False
        self.calls += 1
        return True

    def done(self) -> None:
        """Note the end of a call, and send what waits."""
        self.calls = max(0, self.calls - 1)
        if self._waiting and self._task is None:
            self._task = asyncio.ensure_future(self._send())

    async def add(self, record: bytes) -> Enqueued | None:
        """Add a job together with others, and return its result.

        None = the call was refused; the job may be added by itself.

        Raises:
            As `enqueue`: otherwise.
        """
        result: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((record, result))
        answer = await result
        if isinstance(answer, list):
            raise answer.pop()
        return answer

    async def _send(self) -> None:
        try:
            while chunk := self._chunk():
                await self._send_chunk(chunk)
        finally:  # after a cancellation some jobs may wait
            left, self._waiting, self._task = self._waiting, [], None
            for _, result in left:
                result.cancel()

    async def _send_chunk(self, chunk: list[tuple[bytes, asyncio.Future[Answer]]]) -> None:
        results = BulkEnqueued()
        try:
            await self._part.add_chunk([record for record, _ in chunk], USUAL, results)
        except asyncio.CancelledError:
            for _, result in chunk:
                result.cancel()
            raise
        except Exception as error:  # noqa: BLE001  # each call raises it
            # Only a refusal tells that nothing was added, so that each job may be tried by itself.
            refused = isinstance(error, (*REFUSALS, OutOfMemory, BodyTooLarge))
            for _, result in chunk[len(results) :]:
                if not result.done():
                    result.set_result(None if refused else [error])
        for (_, result), answer in zip(chunk, results, strict=False):
            if not result.done():  # else its caller was cancelled
                result.set_result(answer)

    def _chunk(self) -> list[tuple[bytes, asyncio.Future[Answer]]]:
        """Return the next jobs to send; those whose callers were cancelled are left out."""
        waiting = [one for one in self._waiting if not one[1].done()]
        size = end = 0
        while end < min(len(waiting), BATCH) and size < CHUNK_BYTES:
            size += len(waiting[end][0])
            end += 1
        self._waiting = waiting[end:]
        return waiting[:end]
