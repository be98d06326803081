"""The status of a worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from penstock.client.clock import monotonic
from penstock.worker.running import RunningJob
from penstock.worker.statistics import WorkerStats

if TYPE_CHECKING:
    from penstock.worker.options import WorkerOptions
    from penstock.worker.state import WorkerState

__all__ = ["WorkerStatus", "worker_status"]


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """The status of a worker at one moment.

    Attributes:
        name: the name of the worker, kept with each delivery as its owner.
        state: "new", "running", "stopping" or "stopped".
        healthy: whether the server has answered in the last 15 seconds, and not all queues have
            refused the worker for that long.
        queues: the number of jobs that could be taken at the last look, by queue.
        concurrency: how many handlers run at once.
        options: all options; durations in seconds, functions by their names.
        held: the number of jobs that it holds.
        taken: the number of jobs that it has taken since it began.
        running: the jobs that handlers are processing, the oldest first.
        idle_rounds: the number of rounds in a row that brought no job.
        answered: seconds since the server's last answer.
        stats: the figures of the worker.
    """

    name: str
    state: str
    healthy: bool
    queues: Mapping[str, int]
    concurrency: int
    options: Mapping[str, Any]
    held: int
    taken: int
    running: tuple[RunningJob, ...]
    idle_rounds: int
    answered: float
    stats: WorkerStats

    def as_dict(self) -> dict[str, Any]:
        """Return dicts, lists, texts and numbers for JSON."""
        return asdict(self)


def worker_status(
    state: WorkerState | None,
    *,
    name: str,
    life: str,
    is_healthy: bool,
    options: WorkerOptions,
    running: tuple[RunningJob, ...],
) -> WorkerStatus:
    """Return the status of a worker; without a state it has not been started.

    Args:
        state: its state.
        name: its name.
        life: "new", "running", "stopping" or "stopped".
        is_healthy: whether it is healthy.
        options: its options.
        running: the jobs that its own handlers are processing.
    """
    isolated = () if state is None or state.isolator is None else state.isolator.running
    return WorkerStatus(
        name=name,
        state=life,
        healthy=is_healthy,
        queues=dict.fromkeys(options.queues, 0) | ({} if state is None else state.sizes),
        concurrency=options.concurrency,
        options=options.shown() | {"name": name},
        held=0 if state is None else len(state.held) + len(isolated),
        taken=0 if state is None else state.taken,
        running=running + isolated,
        idle_rounds=0 if state is None else state.idle_rounds,
        answered=0.0 if state is None else monotonic() - state.answered,
        stats=WorkerStats() if state is None else state.statistics.snapshot(),
    )
