"""A job queue for Python that needs nothing but Redis 6.2 or newer.

    >>> from penstock import Penstock
    >>> ps = Penstock("redis://localhost:6379/0")
    >>> emails = ps.queue("emails")
    >>> emails.enqueue({"to": "ada"}).state
    'ready'
    >>> for job in emails.reserve():
    ...     with job:  # acknowledges the job; after an exception it is tried again later
    ...         print("sending to", job.body["to"])
    sending to ada

`Penstock` and `AsyncPenstock` are the clients, `Queue` and `AsyncQueue` their queues. `Handlers`
makes functions handlers of jobs, each a `Handler`; `Worker` and `AsyncWorker` run them. A handler
may return `Done`, `Retry`, `Snooze` or `Reject`. `Dedup`, `Durable` and `RetryPolicy` are options
of an enqueue. Every error is a `PenstockError`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock.core.enqueuing.batches import BatchFailure, BatchStatus
from penstock.core.enqueuing.dedup import Dedup, DedupUntil, OnDuplicate
from penstock.core.enqueuing.new_jobs import NewJob, NewJobs
from penstock.core.jobs.enqueued import BulkEnqueued, Enqueued
from penstock.core.jobs.marks import Death, Failure, LogLine, Progress
from penstock.core.jobs.middleware import EnqueueEvent, Middleware, RunEvent, SettleEvent
from penstock.core.jobs.outcomes import Outcome, Settled, Signalled
from penstock.core.jobs.queue_stats import Holder, QueuePage, QueueStats, Settings
from penstock.core.jobs.views import DedupStatus, JobView, ScanPage, StepView
from penstock.core.nodes.servers import EvictionWarning
from penstock.core.values.checks import OnUnknown, PauseSide, PurgeState, RoleName, StateName
from penstock.core.values.codec import Codec
from penstock.core.values.durable import Durable
from penstock.core.values.ids import JobId, parse_id
from penstock.core.values.policy import RetryPolicy
from penstock.errors import (
    AccessDenied,
    AckNotReplicated,
    BadArgument,
    BadJobId,
    BatchClosed,
    BatchLost,
    BodyTooLarge,
    CannotSync,
    CheckpointTaken,
    ConfigurationError,
    DeliveryNotReplicated,
    DuplicateStep,
    IncompleteEnqueue,
    IncompleteSettle,
    JobCancelled,
    JobExpired,
    JobFailed,
    JobGone,
    JobNotActive,
    MetaLost,
    NodesMissed,
    NodesUnavailable,
    NoSuchDatabase,
    NotesLost,
    NotPermitted,
    NotRedis,
    NotReplicated,
    OutcomeUnknown,
    OutOfMemory,
    PenstockError,
    ProtocolError,
    QueueClosed,
    QueueDamaged,
    QueueFull,
    QueueInUse,
    QueueMissing,
    QueuePartitioned,
    QueuePaused,
    ReadOnlyReplica,
    ResultGone,
    ResultTimeout,
    RoleLost,
    ServerError,
    ServerTimeout,
    ServerUnreachable,
    StaleCall,
    StaleReceipt,
    StepError,
    StepFailed,
    StepNotKept,
    StepOverlap,
    StepsChanged,
    StepTimeout,
    TooLate,
    UndecodableBody,
    UnsupportedServer,
    UnsupportedVersion,
    WrongEpoch,
    WrongNode,
    WrongQueue,
)
from penstock.version import __version__ as __version__

if TYPE_CHECKING:
    from penstock.client._async.batches import AsyncQueueBatches
    from penstock.client._async.chains import AsyncQueueChains
    from penstock.client._async.client import AsyncPenstock
    from penstock.client._async.queue import AsyncBatch, AsyncJob, AsyncQueue, AsyncRole
    from penstock.client._async.schedules import AsyncQueueSchedules
    from penstock.client._async.searching import AsyncJobSearch
    from penstock.client._sync.batches import QueueBatches
    from penstock.client._sync.chains import QueueChains
    from penstock.client._sync.client import Penstock
    from penstock.client._sync.queue import Batch, Job, Queue, Role
    from penstock.client._sync.schedules import QueueSchedules
    from penstock.client._sync.searching import JobSearch
    from penstock.core.enqueuing.chains import ChainStatus
    from penstock.core.enqueuing.schedules import ScheduleView
    from penstock.core.jobs.error_groups import ErrorGroup, ErrorGroups
    from penstock.core.jobs.events import JobEvent
    from penstock.core.jobs.history import (
        HandlerHistory,
        HistoryPoint,
        JobTimes,
        QueueHistory,
        TimesPoint,
    )
    from penstock.core.jobs.workers import WorkerView
    from penstock.core.nodes.node_views import Drain, Hello, Info, NodeView, PrimaryView
    from penstock.core.nodes.problems import Problem
    from penstock.worker import (
        AsyncBoundHandler,
        AsyncSteps,
        AsyncWorker,
        BoundHandler,
        Done,
        Handler,
        Handlers,
        Reject,
        Result,
        Retry,
        Snooze,
        Steps,
        Worker,
        WorkerStatus,
        size_monitor,
    )
    from penstock.worker.chains import chain

__all__ = [
    "AccessDenied",
    "AckNotReplicated",
    "AsyncBatch",
    "AsyncBoundHandler",
    "AsyncJob",
    "AsyncJobSearch",
    "AsyncPenstock",
    "AsyncQueue",
    "AsyncQueueBatches",
    "AsyncQueueChains",
    "AsyncQueueSchedules",
    "AsyncRole",
    "AsyncSteps",
    "AsyncWorker",
    "BadArgument",
    "BadJobId",
    "Batch",
    "BatchClosed",
    "BatchFailure",
    "BatchLost",
    "BatchStatus",
    "BodyTooLarge",
    "BoundHandler",
    "BulkEnqueued",
    "CannotSync",
    "ChainStatus",
    "CheckpointTaken",
    "Codec",
    "ConfigurationError",
    "Death",
    "Dedup",
    "DedupStatus",
    "DedupUntil",
    "DeliveryNotReplicated",
    "Done",
    "Drain",
    "DuplicateStep",
    "Durable",
    "EnqueueEvent",
    "Enqueued",
    "ErrorGroup",
    "ErrorGroups",
    "EvictionWarning",
    "Failure",
    "Handler",
    "HandlerHistory",
    "Handlers",
    "Hello",
    "HistoryPoint",
    "Holder",
    "IncompleteEnqueue",
    "IncompleteSettle",
    "Info",
    "Job",
    "JobCancelled",
    "JobEvent",
    "JobExpired",
    "JobFailed",
    "JobGone",
    "JobId",
    "JobNotActive",
    "JobSearch",
    "JobTimes",
    "JobView",
    "LogLine",
    "MetaLost",
    "Middleware",
    "NewJob",
    "NewJobs",
    "NoSuchDatabase",
    "NodeView",
    "NodesMissed",
    "NodesUnavailable",
    "NotPermitted",
    "NotRedis",
    "NotReplicated",
    "NotesLost",
    "OnDuplicate",
    "OnUnknown",
    "OutOfMemory",
    "Outcome",
    "OutcomeUnknown",
    "PauseSide",
    "Penstock",
    "PenstockError",
    "PrimaryView",
    "Problem",
    "Progress",
    "ProtocolError",
    "PurgeState",
    "Queue",
    "QueueBatches",
    "QueueChains",
    "QueueClosed",
    "QueueDamaged",
    "QueueFull",
    "QueueHistory",
    "QueueInUse",
    "QueueMissing",
    "QueuePage",
    "QueuePartitioned",
    "QueuePaused",
    "QueueSchedules",
    "QueueStats",
    "ReadOnlyReplica",
    "Reject",
    "Result",
    "ResultGone",
    "ResultTimeout",
    "Retry",
    "RetryPolicy",
    "Role",
    "RoleLost",
    "RoleName",
    "RunEvent",
    "ScanPage",
    "ScheduleView",
    "ServerError",
    "ServerTimeout",
    "ServerUnreachable",
    "Settings",
    "SettleEvent",
    "Settled",
    "Signalled",
    "Snooze",
    "StaleCall",
    "StaleReceipt",
    "StateName",
    "StepError",
    "StepFailed",
    "StepNotKept",
    "StepOverlap",
    "StepTimeout",
    "StepView",
    "Steps",
    "StepsChanged",
    "TimesPoint",
    "TooLate",
    "UndecodableBody",
    "UnsupportedServer",
    "UnsupportedVersion",
    "Worker",
    "WorkerStatus",
    "WorkerView",
    "WrongEpoch",
    "WrongNode",
    "WrongQueue",
    "chain",
    "parse_id",
    "size_monitor",
]

_LATER = {
    "AsyncQueueBatches": "penstock.client._async.batches",
    "AsyncQueueChains": "penstock.client._async.chains",
    "AsyncQueueSchedules": "penstock.client._async.schedules",
    "AsyncJobSearch": "penstock.client._async.searching",
    "QueueBatches": "penstock.client._sync.batches",
    "QueueChains": "penstock.client._sync.chains",
    "QueueSchedules": "penstock.client._sync.schedules",
    "JobSearch": "penstock.client._sync.searching",
    "ErrorGroup": "penstock.core.jobs.error_groups",
    "ErrorGroups": "penstock.core.jobs.error_groups",
    "HandlerHistory": "penstock.core.jobs.history",
    "JobEvent": "penstock.core.jobs.events",
    "HistoryPoint": "penstock.core.jobs.history",
    "JobTimes": "penstock.core.jobs.history",
    "QueueHistory": "penstock.core.jobs.history",
    "TimesPoint": "penstock.core.jobs.history",
    "AsyncBatch": "penstock.client._async.queue",
    "AsyncPenstock": "penstock.client._async.client",
    "AsyncJob": "penstock.client._async.queue",
    "AsyncQueue": "penstock.client._async.queue",
    "AsyncRole": "penstock.client._async.queue",
    "Batch": "penstock.client._sync.queue",
    "Penstock": "penstock.client._sync.client",
    "Job": "penstock.client._sync.queue",
    "Queue": "penstock.client._sync.queue",
    "Role": "penstock.client._sync.queue",
    "ChainStatus": "penstock.core.enqueuing.chains",
    "Problem": "penstock.core.nodes.problems",
    "chain": "penstock.worker.chains",
    "ScheduleView": "penstock.core.enqueuing.schedules",
    "WorkerView": "penstock.core.jobs.workers",
    **dict.fromkeys(
        ("Drain", "Hello", "Info", "NodeView", "PrimaryView"), "penstock.core.nodes.node_views"
    ),
    **dict.fromkeys(
        (
            "AsyncBoundHandler",
            "AsyncSteps",
            "AsyncWorker",
            "BoundHandler",
            "Done",
            "Handler",
            "Handlers",
            "Reject",
            "Result",
            "Retry",
            "Snooze",
            "Steps",
            "Worker",
            "WorkerStatus",
            "size_monitor",
        ),
        "penstock.worker",
    ),
}
"""Name -> its module. These are imported on first use: a program needs one client, not both."""

_ELSEWHERE = {"group": "queue.batch(then=...)", "chord": "queue.batch(then=..., results=True)"}
"""Names of other libraries, and the calls that do this here."""


def __getattr__(name: str) -> Any:
    """Import a name on first use."""
    if name in _ELSEWHERE:
        text = f"penstock has no {name}: use {_ELSEWHERE[name]}"
        raise AttributeError(text, name="")  # Python would guess another name
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_LATER[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
