"""Bounded, synchronized, exclusive FIFO queues, shared with other clients of pressure 0.15.

The protocol is not ours: C, Python and Go clients speak it, and it has keys of its own. Here each
of its operations is one script where possible (protocol/pressure.md, The scripts of pressure).
"""

from __future__ import annotations

from penstock.pressure._async.queue import AsyncQueue
from penstock.pressure._sync.queue import Queue
from penstock.pressure.options import Counters

__all__ = ["AsyncQueue", "Counters", "Queue"]
