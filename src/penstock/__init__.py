"""penstock makes a stock Redis a reliable distributed job queue."""

from __future__ import annotations

from penstock._async.client import AsyncPenstock
from penstock._async.connection import EvictionWarning
from penstock._async.job import AsyncJob
from penstock._async.queue import AsyncQueue
from penstock._sync.client import Penstock
from penstock._sync.job import Job
from penstock._sync.queue import Queue
from penstock.core.ids import JobId, parse_id
from penstock.core.job import (
    BulkEnqueued,
    Enqueued,
    JobView,
    Outcome,
    QueueStats,
    Settings,
    Settled,
)
from penstock.errors import *  # noqa: F403  # the whole tree is public, and listed in errors.__all__
from penstock.errors import __all__ as _errors

__version__ = "0.1.0"

__all__ = [
    "AsyncJob",
    "AsyncPenstock",
    "AsyncQueue",
    "BulkEnqueued",
    "Enqueued",
    "EvictionWarning",
    "Job",
    "JobId",
    "JobView",
    "Outcome",
    "Penstock",
    "Queue",
    "QueueStats",
    "Settings",
    "Settled",
    "parse_id",
    *_errors,
]
