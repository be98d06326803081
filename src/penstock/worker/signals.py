"""The signals that stop a worker which owns its process."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["GROUP", "STOPPING", "handling_signals"]

STOPPING = (signal.SIGTERM, signal.SIGINT)
GROUP = (*STOPPING, signal.SIGHUP)
"""Signals that may reach all processes of a worker; each is for the worker, which ends them."""


@contextmanager
def handling_signals(handle: Callable[[int, Any], object]) -> Iterator[None]:
    """Call a function at the signals that stop a worker. Only the main thread can.

    A terminal that is closed sends SIGHUP. It stops a worker too, unless nohup ignores it or the
    program has a handler of its own.
    """
    is_free = signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
    numbers = GROUP if is_free else STOPPING
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            # None: it was not set by Python, and can't be set again.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
