"""The jobs that the handlers of a worker are processing."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RunningJob"]


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
