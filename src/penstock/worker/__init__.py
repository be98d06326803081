"""The worker: runs handlers, renews leases, and comes to an orderly end."""

from __future__ import annotations

from penstock.worker.arguments import Conversion, Converter, Unfit
from penstock.worker.handlers import Handler, Handlers, JobArgs, NamedHandler
from penstock.worker.results import ACK, Done, Reject, Result, Retry, Snooze, Verdict

__all__ = [
    "ACK",
    "Conversion",
    "Converter",
    "Done",
    "Handler",
    "Handlers",
    "JobArgs",
    "NamedHandler",
    "Reject",
    "Result",
    "Retry",
    "Snooze",
    "Unfit",
    "Verdict",
]
