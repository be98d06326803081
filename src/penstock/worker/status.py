"""The status of a worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from penstock.worker.statistics import WorkerStats

__all__ = ["RunningJob", "WorkerStatus"]


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job that a handler is processing.

    Attributes:
        id: the id of the job.
        queue: the name of its queue.
        handler: the name of the handler; None = it has none.
        attempt: 1 = the first.
        seconds: the time for which it has been running.
    """

    id: str
    queue: str
    handler: str | None
    attempt: int
    seconds: float


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
