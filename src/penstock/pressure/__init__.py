"""Bounded, synchronized, exclusive FIFO queues, shared with other clients of pressure 0.15.

The protocol is not ours: C, Python and Go clients speak it, and it has keys of its own. Here each
of its operations is one script where possible (protocol/pressure.md, The scripts of pressure).
"""

from __future__ import annotations

from penstock.pressure._async.queue import AsyncPressureQueue
from penstock.pressure._sync.queue import PressureQueue
from penstock.pressure.options import PressureCounters

__all__ = ["AsyncPressureQueue", "PressureCounters", "PressureQueue"]
