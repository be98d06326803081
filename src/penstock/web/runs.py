"""Actions on jobs: on those that are named, or in the background on all that a filter matches."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from penstock.client._async.queue import AsyncQueue
from penstock.core.jobs.logs import get_logger
from penstock.core.jobs.outcomes import Outcome, Settled
from penstock.core.values.checks import StateName
from penstock.core.values.urls import redacted

__all__ = ["ACTIONS_OF_STATE", "FILTERS", "ActionName", "BulkAction", "Filter", "Runs", "act"]

logger = get_logger("penstock.web")

ActionName = Literal["redrive", "promote", "cancel", "delete"]
ACTIONS_OF_STATE: dict[StateName, tuple[ActionName, ...]] = {
    "ready": ("cancel", "delete"),
    "scheduled": ("promote", "cancel", "delete"),
    "parked": ("cancel", "delete"),
    "active": ("cancel",),
    "dead": ("redrive", "delete"),
}
"""The actions on jobs of each state."""
JOBS_PER_RUN_STEP = 200
"""Jobs of one step of a run: the server takes about 5 ms for them."""
REST_PER_STEP = 3.0
"""Pause after a step, in lengths of the step: a run uses a quarter of a core at most."""
REST_PER_COUNT = 1.0
"""Pause after a step that only counts."""
KEPT_RUNS = 50
"""Runs that are remembered."""
RUN_STOP_TIMEOUT = 1.0
"""Seconds in which the step of a run has to end when the run is stopped."""
FILTERS = ("handler", "error", "group", "key", "batch")
"""The filters of `queue.jobs` that a page has, besides the state."""


@dataclass(frozen=True, slots=True)
class Filter:
    """Jobs of a queue.

    Attributes:
        state: their state.
        handler: only jobs of this handler; None = any.
        error: only jobs whose error contains this; None = any.
        group: only jobs of the group of errors with this id; None = any.
        key: only jobs of this key; None = any.
        batch: only jobs of the batch with this id; None = any.
        group_text: the errors of the group, for people; empty = not known.
    """

    state: StateName
    handler: str | None = None
    error: str | None = None
    group: str | None = None
    key: str | None = None
    batch: str | None = None
    group_text: str = ""

    def __bool__(self) -> bool:
        return any(value is not None for value in self.options.values())

    @property
    def options(self) -> dict[str, Any]:
        """Return the filters as arguments of `queue.jobs`."""
        return {name: getattr(self, name) for name in FILTERS}

    def query(self) -> dict[str, str | None]:
        """Return the fields of a form or of the query of a page."""
        return {"state": self.state, **self.options}


async def act(queue: AsyncQueue, action: ActionName, ids: Sequence[str]) -> int:
    """Apply an action to jobs; return for how many it was done."""
    done: int | Settled = await getattr(queue, action)(ids)
    if isinstance(done, int):
        return done
    return sum(outcome in (Outcome.DONE, Outcome.CANCELLED) for outcome in done)


@dataclass
class BulkAction:
    """A run: an action on all jobs that a filter matches.

    Attributes:
        id: names the run.
        queue: the queue.
        action: the action.
        filter: the jobs.
        user: name of the user that asked for it.
        status: counting; counted = it waits for a confirmation; running; then done, stopped or
            failed.
        total: number of jobs in the state, when the count began.
        matched: number of jobs that match, as far as counted; the run handles no more than these.
        looked: number of jobs looked at in this pass.
        named: number of jobs that the action was tried on.
        changed: number of jobs for which it was done.
        error: why it has failed.
        began: seconds since 1970.
    """

    id: str
    queue: AsyncQueue
    action: ActionName
    filter: Filter
    user: str
    status: Literal["counting", "counted", "running", "done", "stopped", "failed"] = "counting"
    total: int = 0
    matched: int = 0
    looked: int = 0
    named: int = 0
    changed: int = 0
    error: str = ""
    began: float = field(default_factory=time.time)

    @property
    def is_moving(self) -> bool:
        """True while it counts or runs."""
        return self.status in ("counting", "running")


class Runs:
    """The runs of this process.

    Args:
        changed: called when a run has changed jobs.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._runs: dict[str, BulkAction] = {}

    def get(self, name: str) -> BulkAction | None:
        """Return the run of this id."""
        return self._runs.get(name)

    def latest(self) -> list[BulkAction]:
        """Return the runs, the latest first."""
        return list(self._runs.values())[::-1]

    def create(
        self, queue: AsyncQueue, action: ActionName, chosen: Filter, user: str
    ) -> BulkAction | None:
        """Create a run that counts its jobs; None = too many are under way."""
        if len(self._runs) >= KEPT_RUNS:
            oldest = next((one for one in self._runs.values() if not one.is_moving), None)
            if oldest is None:
                return None
            del self._runs[oldest.id]
        run = BulkAction(secrets.token_urlsafe(12), queue, action, chosen, user)
        self._runs[run.id] = run
        self._spawn(run, self._count(run))
        return run

    def start(self, run: BulkAction, ended: Callable[[BulkAction], None]) -> None:
        """Start a run that was counted and confirmed; `ended` is called at its end."""
        run.status, run.looked = "running", 0
        self._spawn(run, self._work(run), ended)

    async def stop(self, run: BulkAction) -> None:
        """Stop a run after the step that is under way."""
        _ask_to_stop(run)
        await self.settle(run, RUN_STOP_TIMEOUT)

    async def settle(self, run: BulkAction, seconds: float) -> None:
        """Wait until a run pauses or has ended, but not longer than so many seconds."""
        task = self._tasks.get(run.id)
        if task is not None:
            await asyncio.wait([task], timeout=seconds)

    async def close(self) -> None:
        """Stop all runs after the steps that are under way; cancel those that take too long."""
        for run in self._runs.values():
            _ask_to_stop(run)
        if self._tasks:
            _, late = await asyncio.wait(self._tasks.values(), timeout=RUN_STOP_TIMEOUT)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def _spawn(
        self,
        run: BulkAction,
        work: Awaitable[None],
        ended: Callable[[BulkAction], None] = lambda _: None,
    ) -> None:
        async def guard() -> None:
            try:
                await work
            except Exception as error:  # noqa: BLE001  # the page shows it
                run.status, run.error = "failed", redacted(f"{type(error).__name__}: {error}")
                logger.warning("%s of jobs of %r failed: %s", run.action, run.queue.name, run.error)
            finally:
                self._tasks.pop(run.id, None)
                ended(run)

        self._tasks[run.id] = asyncio.create_task(guard())

    async def _count(self, run: BulkAction) -> None:
        run.total = getattr(await run.queue.stats(), run.filter.state)
        async for ids in self._find_ids(run, REST_PER_COUNT):
            run.matched += len(ids)
        if run.status == "counting":
            run.status = "counted"

    async def _work(self, run: BulkAction) -> None:
        async for ids in self._find_ids(run, REST_PER_STEP):
            some = ids[: run.matched - run.named]
            if some:
                run.named += len(some)
                run.changed += await act(run.queue, run.action, some)
                self._changed()
            if run.named >= run.matched:
                break
        if run.status == "running":
            run.status = "done"

    async def _find_ids(self, run: BulkAction, rest: float) -> AsyncIterator[list[str]]:
        """Yield the ids of matching jobs, the newest first: jobs added later are not found."""
        chosen, cursor, status = run.filter, "0", run.status
        search = run.queue.jobs(
            chosen.state, newest=True, body=0, n=JOBS_PER_RUN_STEP, **chosen.options
        )
        while run.status == status:
            began = time.monotonic()
            page = await search.page(cursor)
            run.looked += page.looked
            yield page.ids
            cursor = page.cursor
            if cursor == "0":
                return
            await asyncio.sleep(rest * (time.monotonic() - began))


def _ask_to_stop(run: BulkAction) -> None:
    if run.status in ("counting", "counted", "running"):
        run.status = "stopped"
