"""The signals that stop workers: which ones count, and what is restored after them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from penstock import Worker
from penstock.worker.signals import GROUP_SIGNALS, handle_signals, handling_signals

HUP, INT, TERM = signal.SIGHUP, signal.SIGINT, signal.SIGTERM


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """Restore all handlers; SIGHUP has its default handler in the test."""
    before = {number: signal.getsignal(number) for number in GROUP_SIGNALS}
    signal.signal(HUP, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class Signalled(Worker):
    """A worker without a server that gets signals while it runs."""

    def __init__(self, *numbers: int) -> None:
        super().__init__("redis://127.0.0.1:1", "q", print)
        self.numbers = numbers
        self.graces: list[Any] = []

    def start(self) -> None:
        """Start nothing."""

    def join(self, timeout: Any = None) -> bool:
        """Send the signals."""
        del timeout
        for number in self.numbers:
            signal.raise_signal(number)
        return True

    def stop(self, grace: Any = None) -> None:
        """Note the grace."""
        self.graces.append(grace)
        super().stop(grace)


@pytest.mark.parametrize(
    "numbers, graces",
    [
        ((TERM, INT), [None, 0]),
        ((HUP, HUP), [None, None]),  # a closed terminal
        ((TERM, HUP), [None, None]),  # the end of a session
        ((HUP, TERM), [None, None]),  # both at once: Python calls the handler of SIGHUP first
        ((HUP, TERM, TERM), [None, None, 0]),
        ((INT, HUP, INT), [None, None, 0]),
    ],
)
def test_a_second_signal_ends_the_grace(numbers: tuple[int, ...], graces: list[Any]) -> None:
    """SIGHUP does not count."""
    worker = Signalled(*numbers)
    worker.run()
    assert worker.graces == graces


def test_a_closed_terminal_stops_a_worker() -> None:
    """SIGHUP does, unless nohup ignores it or the program has a handler of its own."""
    for own in (signal.SIG_DFL, signal.SIG_IGN, lambda *_: None):
        signal.signal(HUP, own)
        with handling_signals(print):
            used = signal.getsignal(HUP)
        assert (used is own) == (own is not signal.SIG_DFL)
        assert signal.getsignal(HUP) is own


def test_several_workers_are_told_and_end_in_any_order() -> None:
    """The handlers of the program come back when the last worker has ended."""
    told: list[tuple[str, str]] = []

    def own(*_: Any) -> None:
        told.append(("program", ""))

    signal.signal(TERM, own)
    with ExitStack() as first, ExitStack() as second:
        first.enter_context(handling_signals(lambda name: told.append(("first", name))))
        second.enter_context(handling_signals(lambda name: told.append(("second", name))))
        signal.raise_signal(HUP)
        assert told == [("first", "SIGHUP"), ("second", "SIGHUP")]
        first.close()
        for number in (TERM, HUP):
            signal.raise_signal(number)
        assert told[2:] == [("second", "SIGTERM"), ("second", "SIGHUP")]
    assert (signal.getsignal(TERM), signal.getsignal(HUP)) == (own, signal.SIG_DFL)


def test_a_handler_that_the_program_sets_meanwhile_stays() -> None:
    """Only our own handlers are replaced by earlier ones."""

    def own(*_: Any) -> None:
        """Do nothing."""

    with handling_signals(print):
        signal.signal(TERM, own)
    assert signal.getsignal(TERM) is own


def test_signals_before_a_worker_runs_belong_to_the_command() -> None:
    """It handles SIGHUP too, but only until the worker runs."""
    early, told = list[str](), list[str]()
    handle_signals(early.append)
    signal.raise_signal(HUP)
    with handling_signals(told.append):
        for number in GROUP_SIGNALS:
            signal.raise_signal(number)
    assert early == ["SIGHUP"]
    assert told == ["SIGTERM", "SIGINT", "SIGHUP"]
