"""Schedules that a queue refuses, without a server."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Generator
from types import SimpleNamespace
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from penstock.core.operations import QueueOps
from penstock.core.schedules import NewSchedule, check_spec, new_schedule
from penstock.errors import QueueDamaged
from penstock.wire.keys import QueueKeys
from penstock.worker.schedules import Ticker, run_ticks

SCRIPT_ERROR = ResponseError("user_script:7: attempt to compare number with nil")
DAMAGED = QueueDamaged("key 'dead' has the wrong type")


NAMES = ("first", "second", "third")


def schedules(*names: str) -> list[NewSchedule]:
    """Return schedules that handlers declare."""
    return [new_schedule(name, "x", check_spec(every="1h"), None) for name in names]


def run_once(ticker: Ticker, answer: Callable[[Any], Any]) -> Exception | None:
    """Run the ticks of a queue; `answer` returns the answer to each call, or its error."""
    ops = QueueOps(QueueKeys("jobs", "penstock"), "me", ())

    def run(call: Any) -> Generator[Any, Any, Any]:
        return (yield SimpleNamespace(call=call))

    log = logging.getLogger("penstock")
    flow = run_ticks(ticker, ops, [ops], run, lambda: 100.0, log)
    try:
        effect: Any = next(flow)
        while True:
            told = answer(effect.call)
            effect = flow.throw(told) if isinstance(told, Exception) else flow.send(told)
    except StopIteration:
        return None
    except Exception as error:  # noqa: BLE001  # the tests look at it
        return error


class Schedules:
    """A server that stores schedules.

    Args:
        refused: the names of those that it refuses, with the error.
    """

    def __init__(self, **refused: Exception) -> None:
        self.refused = refused
        self.stored: list[str] = []
        self.error: Exception | None = None

    def __call__(self, call: Any) -> Any:
        """Answer a call."""
        if self.error is not None:
            return self.error
        if call.script.name == "schedules":
            return SimpleNamespace(
                now_ms=1, next_ms=1, cursor="0", entries=(), unread={}, epoch=b"01020304"
            )
        name = next(name for name in NAMES if name in call.args)
        if name in self.refused:
            return self.refused[name]
        self.stored.append(name)
        return SimpleNamespace(what=1)


def test_a_schedule_that_is_refused_does_not_hold_up_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The others are stored, one line names schedule and queue, and it is tried again later."""
    ticker, server = Ticker(schedules(*NAMES), 0.0), Schedules(second=SCRIPT_ERROR)
    for _ in range(3):
        assert run_once(ticker, server) is None
    assert server.stored == ["first", "third"]
    assert [new.name for new in ticker.own] == ["second"]
    assert len([text for text in caplog.messages if "'second' of queue 'jobs'" in text]) == 1


def test_schedules_are_not_lost_with_the_connection() -> None:
    """If the server is lost while they are stored, they are stored later."""
    ticker, server = Ticker(schedules("first", "second"), 0.0), Schedules()
    server.error = RedisConnectionError("lost")
    assert run_once(ticker, Schedules(second=server.error)) is server.error
    assert run_once(ticker, server) is server.error
    server.error = None
    assert run_once(ticker, server) is None
    assert server.stored == ["first", "second"]
    assert not ticker.own


def test_ticks_that_can_not_be_read_are_read_later(caplog: pytest.LogCaptureFixture) -> None:
    """They stop no jobs of the queue, and one line tells of it."""
    ticker, server = Ticker([], 0.0), Schedules()
    server.error = DAMAGED
    assert run_once(ticker, server) is None
    assert 100.0 < ticker.due_at < math.inf
    ticker.look_at = 0.0
    assert run_once(ticker, server) is None
    assert len([text for text in caplog.messages if "'jobs'" in text]) == 1
