"""A synchronous client in a coroutine."""

from __future__ import annotations

import asyncio

import pytest

from penstock import Penstock
from penstock.client import loops
from tests.support.backends import Backend


def test_a_synchronous_client_in_a_coroutine_is_told_once(
    real_backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    """It blocks the event loop with each call; in a thread it does not."""
    loops._warn.cache_clear()

    def use() -> None:
        with Penstock(real_backend.url) as client:
            client.queue("q").enqueue("a")

    async def use_wrongly() -> None:
        use()
        use()

    use()
    asyncio.run(asyncio.to_thread(use))
    assert not caplog.records
    asyncio.run(use_wrongly())
    [record] = caplog.records
    assert "AsyncPenstock" in record.getMessage()
