"""An idle worker starts a job before it waits again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from penstock import AsyncPenstock, AsyncWorker
from penstock.client._async.transport import blocking
from penstock.embedded import EmbeddedServer


async def test_the_handler_begins_before_the_worker_waits_again(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token, a reserve, the handler's first line, and only then the next BLPOP."""
    steps: list[str] = []
    waits, handled = asyncio.Event(), asyncio.Event()
    send: Callable[..., Any] = blocking.asend

    async def noted(conn: Any, packed: bytes) -> None:
        await send(conn, packed)
        if b"BLPOP" in packed:
            steps.append("BLPOP")
            waits.set()

    async def handler(_: Any) -> None:
        steps.append("handler")
        handled.set()
        await asyncio.wait_for(waits.wait(), 20)  # while a handler runs, there is room for more

    monkeypatch.setattr(blocking, "asend", noted)
    async with AsyncPenstock(server.url) as client, AsyncWorker(client, "q", handler):
        await asyncio.wait_for(waits.wait(), 20)
        waits.clear()
        steps.clear()
        await client.queue("q").enqueue(b"a")
        await asyncio.wait_for(handled.wait(), 20)
        await asyncio.wait_for(waits.wait(), 20)
    assert steps == ["handler", "BLPOP"]
