"""The end of runs when the page is shut down."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.client._async.queue import AsyncQueue
from penstock.web.runs import BulkAction, Filter, Runs


def queue(wait: Callable[[], Awaitable[None]]) -> AsyncQueue:
    """Return a queue without jobs, a page of which is read when `wait` ends."""

    async def page(_: str) -> Any:
        await wait()
        return SimpleNamespace(ids=[], looked=0, cursor="0")

    async def stats() -> Any:
        return SimpleNamespace(dead=7)

    search = SimpleNamespace(page=page)
    made = SimpleNamespace(name="q", jobs=lambda *_, **__: search, stats=stats)
    return cast("AsyncQueue", made)


def started(runs: Runs, wait: Callable[[], Awaitable[None]]) -> BulkAction:
    """Return a run that counts its jobs."""
    run = runs.create(queue(wait), "delete", Filter("dead"), "-")
    assert run is not None
    return run


async def test_all_runs_are_asked_to_stop_before_one_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run that needs long for its step does not delay the request to the others."""
    monkeypatch.setattr("penstock.web.runs.RUN_STOP_TIMEOUT", 600)
    runs = Runs(lambda: None)

    async def until_all_are_asked() -> None:
        while any(run.is_moving for run in runs.latest()):  # noqa: ASYNC110  # a status is no event
            await asyncio.sleep(0.001)

    found = [started(runs, until_all_are_asked) for _ in range(3)]
    await asyncio.sleep(0)
    await asyncio.wait_for(runs.close(), 60)
    assert [run.status for run in found] == ["stopped"] * 3


async def test_a_run_that_does_not_end_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connections are closed next, so no step may still use them."""
    monkeypatch.setattr("penstock.web.runs.RUN_STOP_TIMEOUT", 0.01)
    runs, cancelled = Runs(lambda: None), list[bool]()

    async def for_ever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(True)

    run = started(runs, for_ever)
    await asyncio.sleep(0)
    await runs.close()
    assert (run.status, cancelled) == ("stopped", [True])
