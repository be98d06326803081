"""The processes beside a worker, as its state sees them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from penstock.core.jobs.job import Delivery
from penstock.worker.running import RunningJob

__all__ = ["LeaseHelper", "SuspectProcess", "SuspectRun"]


class LeaseHelper(Protocol):
    """The process that renews leases; see `HeartbeatProcess`."""

    @property
    def pid(self) -> int | None:
        """Number of the process; None = none is running."""

    def start(self) -> None:
        """Start the process."""

    def is_ready(self) -> bool:
        """Return True if it renews leases."""

    def hold(self, jobs: Sequence[Delivery]) -> None:
        """Renew the leases of these jobs."""

    def drop(self, jobs: Iterable[Delivery]) -> None:
        """Renew the leases of these jobs no more."""

    def news(self) -> list[Delivery]:
        """Return the jobs that it has found lost."""

    def close(self) -> None:
        """End the process."""


class SuspectProcess(Protocol):
    """The process that runs suspects; see `Isolator`."""

    job: Delivery | None

    @property
    def is_broken(self) -> bool:
        """True if it can't be started."""

    @property
    def running(self) -> tuple[RunningJob, ...]:
        """The job that it runs, if any."""

    def take(self, job: Delivery) -> bool:
        """Run a job; return False if it can't."""

    def check(self) -> None:
        """Look after the process."""

    def close(self) -> Delivery | None:
        """End the process; return the job that it ran."""


class SuspectRun(Protocol):
    """The worker's side of the process that runs suspects; see `Isolated`."""

    def take_jobs(self, state: Any) -> None:
        """Take the jobs that the other process has sent over; `state` is that of the worker."""

    def report_outcome(self, **outcome: Any) -> None:
        """Report the outcome of the job: arguments of `WorkerState.note_outcome`."""
