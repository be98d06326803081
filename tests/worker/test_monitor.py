"""The size monitor warns of long queues, with a pause between warnings."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import pytest

from penstock import BadArgument
from penstock.worker import monitor as module
from penstock.worker.monitor import LoopEvent, size_monitor


class Clock:
    """A clock that the test moves; it replaces the module `time`."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        """Return the time."""
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The monitor's clock."""
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


@pytest.fixture
def warned(caplog: pytest.LogCaptureFixture) -> Any:
    """Return a function that returns the new warnings: queue and size."""
    caplog.set_level(logging.WARNING, "penstock")

    def look() -> list[tuple[str, int]]:
        records: list[Any] = [*caplog.records]
        assert {(record.name, record.levelname) for record in records} <= {("penstock", "WARNING")}
        caplog.clear()
        return [(record.queue, record.size) for record in records]

    return look


def loop(**sizes: int) -> LoopEvent:
    """Return a loop event with these queue sizes."""
    return LoopEvent(sizes, 0, 0)


def test_only_more_than_the_limit_is_warned_of(clock: Clock, warned: Any) -> None:
    """Only a size above the limit is warned of."""
    monitor = size_monitor(10)
    monitor(loop(a=10, b=0))
    assert warned() == []
    monitor(loop(a=11, b=10))
    assert warned() == [("a", 11)]


def test_the_usual_limit_is_a_thousand_every_six_hours(clock: Clock, warned: Any) -> None:
    """The defaults are a thousand jobs and six hours, as in Carmine."""
    monitor = size_monitor()
    monitor(loop(a=1000))
    monitor(loop(a=1001))
    clock.now += 6 * 3600 - 1
    monitor(loop(a=5000))
    assert warned() == [("a", 1001)]
    clock.now += 1
    monitor(loop(a=5000))
    assert warned() == [("a", 5000)]


def test_each_queue_has_its_own_pause(clock: Clock, warned: Any) -> None:
    """Each queue has its own pause: one around the limit is warned of once."""
    monitor = size_monitor(5, every=timedelta(minutes=1))
    for a, b in [(6, 0), (0, 0), (7, 8), (9, 9)]:
        monitor(loop(a=a, b=b))
        clock.now += 10
    assert warned() == [("a", 6), ("b", 8)]
    clock.now += 30
    monitor(loop(a=6, b=6))
    assert warned() == [("a", 6)]


def test_the_warning_can_be_read(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    """The text of the warning has queue, size and limit."""
    size_monitor(5)(loop(emails=6))
    assert caplog.messages == ["queue 'emails' holds 6 jobs, more than 5"]


@pytest.mark.parametrize(
    "arguments", [{"limit": -1}, {"limit": 1.5}, {"every": -1}, {"every": "6h"}], ids=str
)
def test_arguments_that_cannot_be_used(arguments: dict[str, Any]) -> None:
    """A bad argument is refused by name when the monitor is constructed."""
    with pytest.raises(BadArgument) as caught:
        size_monitor(**arguments)
    assert {caught.value.argument: caught.value.value} == arguments
