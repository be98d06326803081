"""penstock makes a stock Redis a reliable distributed job queue."""

from __future__ import annotations

from penstock._async.client import AsyncPenstock
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
from penstock.core.servers import EvictionWarning
from penstock.errors import (
    BadArgument,
    BadJobId,
    ConfigurationError,
    EmbeddedServerError,
    IncompleteEnqueue,
    JobExpired,
    JobGone,
    JobNotActive,
    MetaLost,
    NotReplicated,
    OutOfMemory,
    PenstockError,
    ProtocolError,
    QueueDamaged,
    QueueFull,
    QueuePaused,
    StaleCall,
    StaleReceipt,
    UnsupportedServer,
    UnsupportedVersion,
    WrongEpoch,
    WrongNode,
    WrongQueue,
)

__version__ = "0.1.0"

__all__ = [
    "AsyncJob",
    "AsyncPenstock",
    "AsyncQueue",
    "BadArgument",
    "BadJobId",
    "BulkEnqueued",
    "ConfigurationError",
    "EmbeddedServerError",
    "Enqueued",
    "EvictionWarning",
    "IncompleteEnqueue",
    "Job",
    "JobExpired",
    "JobGone",
    "JobId",
    "JobNotActive",
    "JobView",
    "MetaLost",
    "NotReplicated",
    "OutOfMemory",
    "Outcome",
    "Penstock",
    "PenstockError",
    "ProtocolError",
    "Queue",
    "QueueDamaged",
    "QueueFull",
    "QueuePaused",
    "QueueStats",
    "Settings",
    "Settled",
    "StaleCall",
    "StaleReceipt",
    "UnsupportedServer",
    "UnsupportedVersion",
    "WrongEpoch",
    "WrongNode",
    "WrongQueue",
    "parse_id",
]
