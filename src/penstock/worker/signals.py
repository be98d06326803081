"""The signals that stop a worker which owns its process."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeAlias

__all__ = ["GROUP_SIGNALS", "ReceivedSignals", "handle_signals", "handling_signals", "hear_hang_up"]

STOPPING = (signal.SIGTERM, signal.SIGINT)
GROUP_SIGNALS = (*STOPPING, signal.SIGHUP)
"""Signals that a terminal sends to the whole process group. Helper processes ignore them; the
worker ends its helpers."""
HANG_UP = signal.SIGHUP.name

Listener: TypeAlias = Callable[[str], object]
"""A function that is called with the name of a signal."""


class _SignalHandler:
    def __init__(self, *listeners: Listener) -> None:
        self.listeners = list(listeners)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        del frame
        for listener in tuple(self.listeners):
            listener(signal.Signals(number).name)

    def install(self) -> dict[int, Any]:
        """Handle the signals that stop a worker; return the handlers that it replaces."""
        hang_up = signal.getsignal(signal.SIGHUP)
        has_default_hangup = hang_up is signal.SIG_DFL or isinstance(hang_up, _SignalHandler)
        numbers = GROUP_SIGNALS if has_default_hangup else STOPPING
        replaced = [number for number in numbers if signal.getsignal(number) is not self]
        return {number: signal.signal(number, self) for number in replaced}


_shared = _SignalHandler()
"""The handler of the workers that run. They may end in any order."""
_replaced: dict[int, Any] = {}
"""The handlers that it has replaced, by their signals."""


def handle_signals(listener: Listener) -> None:
    """Call a function at the signals that stop a worker, for the rest of the program.

    Only the main thread can. A running worker handles these signals in its place.
    """
    _SignalHandler(listener).install()


def hear_hang_up() -> None:
    """Let SIGHUP through again, which `penstock worker` keeps back until a handler is there."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})


@contextmanager
def handling_signals(listener: Listener) -> Iterator[None]:
    """Call a function at the signals that stop a worker. Only the main thread can.

    A terminal that is closed sends SIGHUP. It stops a worker too, unless nohup ignores it or the
    program has a handler of its own. Each of several workers is told.
    """
    _shared.listeners.append(listener)
    _replaced.update(_shared.install())
    try:
        yield
    finally:
        if _shared.listeners == [listener]:
            _restore()
        _shared.listeners.remove(listener)


def _restore() -> None:
    for number, handler in _replaced.items():
        if signal.getsignal(number) is _shared:  # the program may have replaced it
            # None: it was not set by Python, and can't be set again.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
    _replaced.clear()


class ReceivedSignals:
    """The signals that a worker has received, and what they mean for its grace.

    SIGHUP ends no grace, and neither does the first signal after it: a shell sends SIGHUP to its
    jobs, and the kernel sends it again when the shell has ended. At the end of a session it comes
    together with SIGTERM, in any order.

    Attributes:
        last: the last one, but no SIGHUP after others; empty = none.
    """

    last = ""

    def receive(self, name: str, *, is_stopping: bool) -> int | None:
        """Note a signal; return the grace that it leaves: 0 or None, which is the worker's."""
        ends_grace = is_stopping and HANG_UP not in (name, self.last)
        if name != HANG_UP or not self.last:
            self.last = name
        return 0 if ends_grace else None

    @property
    def hint(self) -> str:
        """The end of a message that the worker stops; empty if no signal has stopped it."""
        if self.last == HANG_UP:
            return "; SIGTERM, sent twice, ends it at once"
        return self.last and "; a second Ctrl-C or SIGTERM ends it at once"
