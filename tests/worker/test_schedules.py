"""Schedules that a queue refuses, without a server."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Generator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from penstock.core.calls.operations import QueueOps
from penstock.core.calls.operations.scheduling import ListedSchedules
from penstock.core.enqueuing.schedules import NewSchedule, StoredSchedule, check_spec, new_schedule
from penstock.errors import QueueDamaged, QueuePaused
from penstock.wire.keys import QueueKeys
from penstock.worker.schedules import Ticker, TickRun

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
    ticks = TickRun(
        ticker=ticker, ops=ops, parts={ops: ticker}, run_call=run, clock=lambda: 100.0, log=log
    )
    flow = ticks.run()
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
        self.entries: list[StoredSchedule] = []
        self.ran: list[str] = []
        self.moved: list[str] = []
        self.error: Exception | None = None
        self.epoch = b"01020304"
        self.unscheduled = 0
        self.page_size = 100

    def __call__(self, call: Any) -> Any:
        """Answer a call."""
        if self.error is not None:
            return self.error
        if call.script.name == "schedules":
            cursor = str(call.args[0])
            start = int(cursor or 0)
            is_page = cursor.isdecimal()
            end = start + self.page_size if is_page else None
            entries = self.entries[start if is_page else 0 : end]
            return ListedSchedules(
                now_ms=1,
                next_ms=1,
                epoch=self.epoch,
                cursor=str(end) if end is not None and end < len(self.entries) else "0",
                unscheduled=self.unscheduled,
                entries=[one for one in entries if is_page or not cursor or one.tick is not None],
                unread={},
            )
        if call.script.name == "keep_schedules":
            return SimpleNamespace(codes=[1] * len(call.args))
        name = next(name for name in NAMES if name in call.args)
        if name in self.refused:
            return self.refused[name]
        if call.script.name == "tick":
            (self.moved if "move" in call.args else self.ran).append(name)
            return SimpleNamespace(first=b"")
        self.stored.append(name)
        self.store(name)
        return SimpleNamespace(what=1)

    def store(self, name: str, value_hash: str = "", *replaced: str) -> None:
        """Store a schedule in front of the others; without a hash with that of the worker."""
        [new] = schedules(name)
        self.entries = [entry for entry in self.entries if entry.name != name]
        entry = replace(entry_of(name, None), replaced_hashes=replaced)
        self.entries.insert(0, replace(entry, value_hash=value_hash or new.value_hash))


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


def lose(server: Schedules, *, epoch: bytes = b"01020304", unscheduled: int = 0) -> None:
    """Let the server have no schedules from now on."""
    server.entries, server.epoch, server.unscheduled = [], epoch, unscheduled


@pytest.mark.parametrize(
    "change, stored",
    [
        (lose, ["first", "second"]),  # a failover
        (lambda server: lose(server, epoch=b""), ["first", "second"]),
        (lambda server: lose(server, epoch=b"05060708"), ["first", "second"]),
        (lambda server: lose(server, unscheduled=1), []),
    ],
    ids=["lost", "empty", "created again", "removed by a client"],
)
def test_a_schedule_that_the_server_has_lost_is_stored_again(
    change: Callable[[Schedules], None], stored: list[str]
) -> None:
    """Unless a client has removed it, or another version of the program has replaced it."""
    ticker, server = Ticker(schedules(*NAMES), 0.0), Schedules()
    for _ in range(2):
        assert run_once(ticker, server) is None
    assert server.stored == [*NAMES]
    server.stored.clear()
    server.store("third", "0")  # another version has replaced it
    for _ in range(2):
        ticker.look_at = ticker.check_at = 0.0
        assert run_once(ticker, server) is None
        if server.entries:
            change(server)
            ticker.learn(has_schedules=False)
    assert server.stored == stored


OWN_HASH = schedules("first")[0].value_hash


@pytest.mark.parametrize(
    "value_hash, replaced, stored",
    [
        ("a" * 16, (), ["first"]),  # it was stored first after a loss
        ("a" * 16, (OWN_HASH,), []),  # a client has brought it back
        ("b" * 16, (), []),  # unknown: it may be newer
    ],
    ids=["older", "brought back", "unknown"],
)
def test_an_older_version_is_not_left_after_a_loss(
    value_hash: str, replaced: tuple[str, ...], stored: list[str]
) -> None:
    """The worker knows which values its own has replaced."""
    ticker, server = Ticker(schedules("first"), 0.0), Schedules()
    server.store("first", "", "a" * 16)
    for _ in range(2):
        assert run_once(ticker, server) is None
    server.epoch = b"05060708"
    server.store("first", value_hash, *replaced)
    for _ in range(2):
        ticker.look_at = 0.0
        assert run_once(ticker, server) is None
    assert server.stored == stored


def test_a_schedule_that_was_removed_a_moment_before_a_loss(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A look that finds a removal checks at once which schedules are left."""
    ticker, server = Ticker(schedules("first", "second"), 0.0), Schedules()
    for _ in range(2):
        assert run_once(ticker, server) is None
    server.stored.clear()
    lose(server, unscheduled=1)
    server.store("second")
    ticker.look_at = 0.0
    assert run_once(ticker, server) is None
    lose(server, epoch=b"05060708")
    ticker.look_at = 0.0
    assert run_once(ticker, server) is None
    assert server.stored == ["second"]
    assert not [text for text in caplog.messages if "no client" in text]


def test_a_schedule_that_is_stored_during_a_check_is_not_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A check begins again after it, as its entry may lie behind the cursor."""
    ticker, server = Ticker(schedules("first", "second"), 0.0), Schedules()
    for _ in range(2):
        assert run_once(ticker, server) is None
    server.page_size, ticker.look_at, ticker.check_at = 1, 0.0, 0.0
    ticker.own = schedules("third")
    ticker.declared.by_name["third"] = ticker.own[0]
    for _ in range(8):
        assert run_once(ticker, server) is None
        ticker.look_at = 0.0
    assert server.stored == [*NAMES]
    assert ticker.declared.stored == {*NAMES}
    assert not caplog.messages


def entry_of(name: str, tick: int | None) -> StoredSchedule:
    """Return a stored schedule with its next tick; None = it is paused."""
    return StoredSchedule(
        name=name,
        tick=tick,
        last_run=None,
        last_tick=0,
        runs=0,
        skipped=0,
        paused=False,
        value_hash="0",
        spec=check_spec(every="1h"),
        record=b"1\nx",
    )


FAR_AHEAD = 10**12


@pytest.mark.parametrize(
    "error, level",
    [(SCRIPT_ERROR, logging.ERROR), (QueuePaused("producers"), logging.INFO)],
    ids=["refused", "paused"],
)
def test_a_tick_that_can_not_be_moved_does_not_hold_up_the_others(
    caplog: pytest.LogCaptureFixture, error: Exception, level: int
) -> None:
    """The other late ticks are brought forward, and those that are due run."""
    caplog.set_level(logging.INFO, "penstock")
    ticker, server = Ticker([], 0.0), Schedules(first=error)
    server.entries = [entry_of("first", FAR_AHEAD), entry_of("second", FAR_AHEAD)]
    server.entries.append(entry_of("third", 1))
    assert run_once(ticker, server) is None
    assert (server.moved, server.ran) == (["second"], ["third"])
    assert ticker.is_checked
    told = [one for one in caplog.records if "'first' of queue 'jobs'" in one.getMessage()]
    assert [one.levelno for one in told] == [level]
    assert not [text for text in caplog.messages if "can't be run" in text]


@pytest.mark.parametrize(
    "error, has_trace", [(TypeError("a fault of penstock"), True), (SCRIPT_ERROR, False)]
)
def test_the_log_shows_where_an_unknown_error_was_raised(
    caplog: pytest.LogCaptureFixture, error: Exception, has_trace: bool
) -> None:
    """An error that no server sends is logged with its traceback."""
    ticker, server = Ticker(schedules("first"), 0.0), Schedules(first=error)
    assert run_once(ticker, server) is None
    ticker, server.error = Ticker([], 0.0), error
    assert run_once(ticker, server) is None
    assert [bool(one.exc_info) for one in caplog.records] == [has_trace, has_trace]
