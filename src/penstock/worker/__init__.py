"""The worker: runs handlers, renews leases, and comes to an orderly end."""

from __future__ import annotations

from penstock.worker._async.worker import AsyncWorker
from penstock.worker._sync.worker import Worker
from penstock.worker.arguments import Conversion, Converter, Unfit
from penstock.worker.handlers import Handler, Handlers, JobArgs, NamedHandler
from penstock.worker.monitor import LoopEvent, Monitor, size_monitor
from penstock.worker.results import ACK, Done, Reject, Result, Retry, Snooze, Verdict
from penstock.worker.statistics import Summary, WorkerStats
from penstock.worker.status import RunningJob, WorkerStatus

__all__ = [
    "ACK",
    "AsyncWorker",
    "Conversion",
    "Converter",
    "Done",
    "Handler",
    "Handlers",
    "JobArgs",
    "LoopEvent",
    "Monitor",
    "NamedHandler",
    "Reject",
    "Result",
    "Retry",
    "RunningJob",
    "Snooze",
    "Summary",
    "Unfit",
    "Verdict",
    "Worker",
    "WorkerStats",
    "WorkerStatus",
    "size_monitor",
]
