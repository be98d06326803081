"""Specs of schedules: their ticks, also when clocks are put forward and back; their checks."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import BadArgument, ConfigurationError, Handlers, RetryPolicy
from penstock.core.enqueuing import schedules
from penstock.core.enqueuing.schedules import (
    MAX_VALUE,
    NewSchedule,
    Spec,
    StoredSchedule,
    check_spec,
    new_schedule,
    read_entry,
)
from penstock.core.values.checks import MAX_DURATION_MS

T0 = 1_800_000_000_000
BERLIN = "Europe/Berlin"
EVERY = check_spec(every=60)


def ticks(cron: str, start: str, count: int, tz: str = BERLIN) -> list[str]:
    """Return the first ticks after a local time, as local times with offsets."""
    spec, zone = check_spec(cron, tz=tz), ZoneInfo(tz)
    at = round(datetime.fromisoformat(start).replace(tzinfo=zone).timestamp() * 1000)
    found = []
    for _ in range(count):
        at = spec.after(at)
        found.append(datetime.fromtimestamp(at / 1000, zone).strftime("%m-%d %H:%M%z"))
    return found


@pytest.mark.parametrize(
    "cron, start, wanted",
    [
        # Clocks are put forward: 02:00 to 03:00 does not exist on 29 March 2026.
        ("30 2 * * *", "2026-03-28T12:00", ["03-29 03:00+0200", "03-30 02:30+0200"]),
        ("0 2 * * *", "2026-03-28T12:00", ["03-29 03:00+0200", "03-30 02:00+0200"]),
        ("0 3 * * *", "2026-03-28T12:00", ["03-29 03:00+0200", "03-30 03:00+0200"]),
        ("30 * * * *", "2026-03-29T00:45", ["03-29 01:30+0100", "03-29 03:30+0200"]),
        ("*/30 * * * *", "2026-03-29T01:10", ["03-29 01:30+0100", "03-29 03:00+0200"]),
        # Clocks are put back: 02:00 to 03:00 comes twice on 25 October 2026.
        ("30 2 * * *", "2026-10-24T12:00", ["10-25 02:30+0200", "10-26 02:30+0100"]),
        ("0 3 * * *", "2026-10-24T12:00", ["10-25 03:00+0100", "10-26 03:00+0100"]),
        ("30 * * * *", "2026-10-25T01:45", ["10-25 02:30+0200", "10-25 02:30+0100"]),
        ("0 */2 * * *", "2026-10-25T01:45", ["10-25 02:00+0200", "10-25 02:00+0100"]),
        # Days.
        ("0 0 29 2 *", "2026-03-01T00:00", ["02-29 00:00+0100", "02-29 00:00+0100"]),
        ("0 0 L * *", "2026-02-10T00:00", ["02-28 00:00+0100", "03-31 00:00+0200"]),
        ("0 9 1 * MON", "2026-11-24T12:00", ["11-30 09:00+0100", "12-01 09:00+0100"]),
    ],
)
def test_ticks_of_cron_expressions(cron: str, start: str, wanted: list[str]) -> None:
    """A fixed hour runs once a day; an hour of * follows the time that passes."""
    assert ticks(cron, start, 2) == wanted


def test_a_tick_of_the_doubled_hour_does_not_come_again() -> None:
    """From within the second of the doubled hours a fixed time is next on the next day."""
    again = datetime(2026, 10, 25, 2, 10, tzinfo=ZoneInfo(BERLIN), fold=1).timestamp() * 1000
    found = check_spec("30 2 * * *", tz=BERLIN).after(round(again))
    assert datetime.fromtimestamp(found / 1000, ZoneInfo(BERLIN)).day == 26


@pytest.mark.parametrize("day", ["2026-03-29", "2026-10-25"])
@pytest.mark.parametrize("cron", ["30 2 * * *", "30 2,3 * * *", "*/20 * * * *", "0 3 * * 7"])
def test_ticks_around_a_change_of_the_clocks(cron: str, day: str) -> None:
    """From each minute of the night, the next tick is later, and no tick is passed over."""
    spec = check_spec(cron, tz=BERLIN)
    begin = round(datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(BERLIN)).timestamp() * 1000)
    found = [spec.after(begin + minute * 60_000) for minute in range(360)]
    assert all(tick > begin + minute * 60_000 for minute, tick in enumerate(found))
    assert found == sorted(found)


@given(
    st.integers(min_value=T0 - 10**11, max_value=T0 + 10**11),
    st.sampled_from(["* * * * *", "30 2 * * *", "0 */3 * * *", "15 1,2,3 * * 0", "* * * * * *"]),
    st.sampled_from(["UTC", BERLIN, "America/New_York", "Australia/Lord_Howe"]),
)
def test_a_tick_is_later_and_in_order(ms: int, cron: str, tz: str) -> None:
    """The tick after a time is later, and from within the gap before it is the same."""
    spec = check_spec(cron, tz=tz)
    first = spec.after(ms)
    assert first > ms
    assert spec.after(first) > first
    assert spec.after(first - 1000) == first


@pytest.mark.parametrize(
    "every, ms", [("15m", 900_000), ("1h30m", 5_400_000), ("2d", 172_800_000), (90, 90_000),
                  (timedelta(minutes=1), 60_000), ("1d 1s", 86_401_000), (1.5, 1500)],
)  # fmt: skip
def test_intervals_count_from_1970(every: Any, ms: int) -> None:
    """Every worker computes the same ticks, whenever it starts."""
    spec = check_spec(every=every)
    assert spec.every_ms == ms
    assert spec.after(T0) % ms == 0
    assert 0 < spec.after(T0) - T0 <= ms
    assert spec.after(spec.after(T0)) - spec.after(T0) == ms


@pytest.mark.parametrize(
    "given, argument, reason",
    [
        ({}, "cron", "pass either cron="),
        ({"cron": "0 3 * * *", "every": 5}, "cron", "pass either cron="),
        ({"cron": "61 3 * * *"}, "cron", "Bad minute: must be minute hour day month weekday"),
        ({"cron": "0 3 * *"}, "cron", "Wrong number of fields"),
        ({"cron": "@daily"}, "cron", "Wrong number of fields"),
        ({"cron": 5}, "cron", "must be a cron expression such as"),
        ({"cron": "0 0 31 2 *"}, "cron", "Bad day-of-month"),
        ({"cron": "0 3 * * *", "tz": "Mars/Base"}, "tz", "no such time zone"),
        ({"cron": "0 3 * * *", "tz": "../etc/passwd"}, "tz", "no such time zone"),
        ({"cron": "0 3 * * *", "tz": 5}, "tz", "no such time zone"),
        ({"every": "soon"}, "every", "must be seconds, a timedelta, or a text such as"),
        ({"every": "9" * 5000 + "s"}, "every", "must be seconds, a timedelta, or a text such as"),
        ({"every": 1e308}, "every", "must be at most 100 years"),
        ({"every": ""}, "every", "must be seconds, a timedelta, or a text such as"),
        ({"every": 0}, "every", "must be at least one second"),
        ({"every": "0s"}, "every", "must be at least one second"),
        ({"every": -5}, "every", "can't be negative"),
        ({"every": None, "tz": BERLIN}, "cron", "pass either cron="),
        ({"every": 5, "tz": BERLIN}, "tz", "leave tz out"),
        ({"every": 5, "overlap": 1}, "overlap", "must be True or False"),
        ({"every": 5, "missed": "all"}, "missed", "must be one of one, skip"),
    ],
)
def test_a_spec_that_can_not_be_used(given: dict[str, Any], argument: str, reason: str) -> None:
    """The error names the argument, its value and the way out."""
    with pytest.raises(BadArgument) as caught:
        check_spec(**given)
    assert str(caught.value).startswith(f"{argument}=")
    assert reason in str(caught.value)


@pytest.fixture
def without_cronsim(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the import of cronsim fail."""
    inner = builtins.__import__

    def refuse(name: str, *args: Any) -> Any:
        if name == "cronsim":
            raise ImportError(name)
        return inner(name, *args)

    monkeypatch.setattr(builtins, "__import__", refuse)
    schedules.cronsim.cache_clear()
    yield
    schedules.cronsim.cache_clear()


@pytest.mark.usefixtures("without_cronsim")
def test_a_missing_extra_is_named() -> None:
    """`cron` without its package says what to install; `every` needs nothing."""
    with pytest.raises(BadArgument, match=r"pip install 'penstock\[cron\]'"):
        check_spec("0 3 * * *")
    assert check_spec(every=5).after(T0) == T0 + 5000


SPECS = [
    check_spec("0  3 * * *", tz=BERLIN),
    check_spec("* * * * *", missed="skip", overlap=True),
    check_spec(every="15m"),
    replace(EVERY, ttl_code="0abc"),
]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.text)
def test_a_spec_comes_back(spec: Spec) -> None:
    """The stored JSON has one form, without defaults."""
    raw = spec.encoded()
    assert Spec.decoded(raw) == spec
    assert b"\n" not in raw
    assert [spec.text for spec in SPECS[:3]] == [
        "0 3 * * * Europe/Berlin",
        "* * * * * UTC",
        "every 15m",
    ]
    assert SPECS[2].encoded() == b'{"every":900000}'


def stored(new: NewSchedule, front: bytes = b"- 0 0 0 0", tick: int = T0) -> StoredSchedule:
    """Return a schedule as it would be read."""
    raw = front + b" " + new.value_hash.encode() + b"\n" + new.value
    return read_entry(new.name.encode(), b"%d" % tick, raw)


def test_an_entry_comes_back() -> None:
    """The record of a job has the time of its tick and an id of its own."""
    new = new_schedule("report", {"n": 1}, EVERY, None)
    entry = stored(new, b"1800000000000-1000000000 1800000000000 7 2 1")
    assert (entry.last_run, entry.last_tick) == (b"1800000000000-1000000000", T0)
    assert (entry.runs, entry.skipped, entry.paused, entry.value_hash) == (
        7,
        2,
        True,
        new.value_hash,
    )
    assert (entry.spec, entry.record) == (EVERY, b'1;c=json\n{"n":1}')
    first, second = entry.record_at(T0), entry.record_at(T0)
    assert first.startswith(b"1;c=json;h.scheduled_for=1800000000000;i=")
    assert first.endswith(b'\n{"n":1}')
    assert first != second


@pytest.mark.parametrize("raw", [b"", b"- 0 0 0 0\n{}\n1\n"])
def test_an_entry_that_can_not_be_read(raw: bytes) -> None:
    """Damage, or a newer penstock, is a ValueError."""
    with pytest.raises(ValueError, match="schedule"):
        read_entry(b"x", b"", raw)


@pytest.mark.parametrize(
    "spec",
    [
        "", "{}", "[]", "5", '{"every":"15m"}', '{"every":0}', '{"every":true}', '{"cron":5}',
        '{"every":-5}', '{"every":3162240000001}',
        '{"cron":"* * * * *","tz":5}', '{"every":60000,"missed":"two"}',
    ],
)  # fmt: skip
def test_a_spec_that_can_not_be_read(spec: str) -> None:
    """A spec of another form is a ValueError, so the schedule is left to other clients."""
    with pytest.raises(ValueError, match=r"schedule|Expecting"):
        read_entry(b"x", b"", b"- 0 0 0 0 " + b"a" * 16 + b"\n" + spec.encode() + b"\n1\n")


@pytest.mark.parametrize("cron", ["nonsense", "0 0 31 2 *"])
def test_a_cron_expression_that_has_no_tick(cron: str) -> None:
    """An expression that this version can't read, or that never comes, is a ConfigurationError."""
    with pytest.raises(ConfigurationError, match="cron"):
        Spec(cron).after(T0)


def test_other_contents_have_other_marks() -> None:
    """Spec, options and body count; the name does not."""
    marks = {
        new_schedule(name, body, spec, None).value_hash
        for name in "ab"
        for body in ("x", b"x")
        for spec in (EVERY, check_spec(every=61))
    }
    assert len(marks) == 4


HANDLERS = Handlers()


@HANDLERS.handler("report", queue="reports", lease=90, retry=RetryPolicy(3))
def report(kind: str = "daily") -> None:
    """Do nothing."""


def test_the_job_of_a_handler_keeps_its_options() -> None:
    """Lease, policy and header of the handler are in the record."""
    new = new_schedule("r", report.job("weekly"), EVERY, None)
    assert new.record.startswith(b"1;l=90000;p=3")
    assert b";h.handler=report" in new.record
    assert new_schedule("r", report.options(ttl=60).job(), EVERY, None).spec.ttl_code != "ffff"


@pytest.mark.parametrize(
    "options",
    [{"delay": 5}, {"at": 5}, {"dedup_id": "x"}, {"key": "k"}, {"max_length": 5}],
    ids=str,
)
def test_options_that_a_schedule_can_not_have(options: Any) -> None:
    """A delay, a dedup id and a bound have no meaning for a tick."""
    with pytest.raises(BadArgument, match="the job of a schedule can't have it"):
        new_schedule("r", report.options(**options).job(), EVERY, None)


@pytest.mark.parametrize("name", ["", "x" * 201, "a\nb", None, 5, b"x"])
def test_a_name_that_can_not_be_used(name: Any) -> None:
    """Names are printable texts of at most 200 bytes."""
    with pytest.raises(BadArgument, match=r"^name="):
        new_schedule(name, "x", EVERY, None)


def test_a_large_job_is_refused() -> None:
    """Each tick rewrites the entry, so it is short."""
    new_schedule("x", b"x" * (MAX_VALUE - 2), EVERY, None)
    with pytest.raises(BadArgument, match=r"^job='65537 bytes': .*store large data elsewhere"):
        new_schedule("x", b"x" * (MAX_VALUE - 1), EVERY, None)


@pytest.mark.parametrize(
    "spec, late_ms, wanted",
    [
        (EVERY, 0, "alone"),
        (EVERY, 10**9, "alone"),
        (check_spec(every=60, overlap=True), 10**9, "run"),
        (check_spec(every=60, missed="skip"), 60_000, "alone"),
        (check_spec(every=60, missed="skip"), 60_001, "skip"),
    ],
)
def test_what_happens_to_a_tick(spec: Spec, late_ms: int, wanted: str) -> None:
    """Only with `skip` a tick that is more than a minute late adds no job."""
    assert stored(new_schedule("x", "x", spec, None)).what(T0 + late_ms) == wanted


DAY = 86_400_000


@pytest.mark.parametrize(
    "tick, last, wanted",
    [
        (T0 + 60_000, 0, None),  # the first one
        (T0 + DAY, 0, T0 + 60_000),  # stored while the clock was wrong
        (T0 + DAY, T0 + DAY - 60_000, T0 + 60_000),  # run while the clock was wrong
        (T0 + DAY, T0, T0 + 60_000),  # a missed tick, run while the clock was wrong
        (T0 + DAY, T0 + 60_000, T0 + 120_000),  # the same, and the first one has run
        (T0 + 120_000, T0 + 60_000, None),  # a small step back: it has run
        (T0 + 60_000, T0, None),
    ],
)
def test_a_tick_that_lies_too_far_ahead(tick: int, last: int, wanted: int | None) -> None:
    """It is brought forward, unless it may have run already."""
    entry = stored(new_schedule("x", "x", EVERY, None), b"- %d 0 0 0" % last, tick)
    assert entry.earlier(T0) == wanted


def test_stored_intervals() -> None:
    """Any client may store 1 ms to 100 years; a longer or shorter interval is malformed."""
    for every in (1, MAX_DURATION_MS):
        assert Spec.decoded(b'{"every":%d}' % every).every_ms == every
    for every in (-1, 0, MAX_DURATION_MS + 1):
        with pytest.raises(ValueError, match="schedule"):
            Spec.decoded(b'{"every":%d}' % every)
