"""What a worker says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from penstock.worker.statistics import WorkerStats

__all__ = ["RunningJob", "WorkerStatus"]


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job that a handler is at.

    Attributes:
        id: the job.
        queue: its queue.
        handler: the handler's name; None = the default one.
        attempt: 1 = the first.
        seconds: how long it has been running.
    """

    id: str
    queue: str
    handler: str | None
    attempt: int
    seconds: float


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A worker at one moment.

    Attributes:
        name: of the worker; kept with each delivery as its owner.
        state: "new", "running", "stopping" or "stopped".
        healthy: whether the server has answered in the last 15 seconds.
        queues: their names, with the number of jobs that could be taken when last looked at.
        concurrency: how many handlers run at once.
        options: all options that it was made with or changed to, durations in seconds; a function
            is shown by its name.
        held: how many jobs it has under a lease.
        taken: how many it has taken since it began.
        running: those a handler is at, the oldest first.
        idle_rounds: how many times in a row nothing has come.
        answered: seconds since the server answered last.
        stats: its figures.
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
        """Dicts, lists, texts and numbers, as JSON takes them."""
        return asdict(self)
