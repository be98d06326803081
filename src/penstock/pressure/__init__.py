"""Bounded, synchronized, exclusive FIFO queues, shared with other clients of pressure 0.15.

Clients in C, Python and Go use the same protocol, which has its own keys. Here each operation is
one script where possible (protocol/pressure.md, The scripts of pressure).
"""

from __future__ import annotations

from penstock.pressure._async.queue import AsyncPressureQueue
from penstock.pressure._sync.queue import PressureQueue
from penstock.pressure.errors import (
    OperationUnblocked,
    PutNotReplicated,
    QueueEmpty,
    QueueExists,
)
from penstock.pressure.options import PressureCounters

__all__ = [
    "AsyncPressureQueue",
    "OperationUnblocked",
    "PressureCounters",
    "PressureQueue",
    "PutNotReplicated",
    "QueueEmpty",
    "QueueExists",
]
