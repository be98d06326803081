"""Procedures of several steps, as generators without I/O.

A flow yields an effect, is sent the answer, and returns its result; the client drives it.
protocol/core.md says what a crash after each step leaves.
"""

from penstock.core.flows.consuming import (
    EXPIRED_JOBS_GRACE,
    SILENT_QUEUE_PAUSE,
    ReserveRequest,
    ReserveRules,
    recover,
    reserve,
)
from penstock.core.flows.effects import (
    POLL_INTERVAL,
    Cancelled,
    CloseConnections,
    Effect,
    EndWait,
    GiveUpSoon,
    LetRunnersStart,
    Listen,
    Register,
    ReserveJobs,
    Rest,
    Run,
    StoreHint,
    SweepDue,
    Unregister,
    WaitResult,
)
from penstock.core.flows.producing import create_and_run, enqueue, new_epoch, withdraw
from penstock.core.flows.roles import acquire
from penstock.core.flows.schedules import (
    SCHEDULE_OUTDATED,
    SCHEDULE_REPLACED,
    SCHEDULE_UNCHANGED,
    schedule,
)

__all__ = [
    "EXPIRED_JOBS_GRACE",
    "POLL_INTERVAL",
    "SCHEDULE_OUTDATED",
    "SCHEDULE_REPLACED",
    "SCHEDULE_UNCHANGED",
    "SILENT_QUEUE_PAUSE",
    "Cancelled",
    "CloseConnections",
    "Effect",
    "EndWait",
    "GiveUpSoon",
    "LetRunnersStart",
    "Listen",
    "Register",
    "ReserveJobs",
    "ReserveRequest",
    "ReserveRules",
    "Rest",
    "Run",
    "StoreHint",
    "SweepDue",
    "Unregister",
    "WaitResult",
    "acquire",
    "create_and_run",
    "enqueue",
    "new_epoch",
    "recover",
    "reserve",
    "schedule",
    "withdraw",
]
