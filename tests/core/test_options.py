"""Options of callers as whole numbers on the wire."""

from __future__ import annotations

import math
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

import penstock
from penstock import BadArgument
from penstock.core.enqueuing.prepared import prepared
from penstock.core.values.checks import (
    MAX_LEASE_MS,
    check_block,
    check_count,
    check_text,
    duration_ms,
    lease_ms,
    moment_ms,
)


@pytest.mark.parametrize(
    "value, ms",
    [
        (0, 0),
        (1, 1000),
        (0.1, 100),
        (0.001, 1),
        (0.0001, 1),
        (1.0001, 1001),
        (0.29, 290),
        (1.1, 1100),
        (16.1, 16_100),
        (timedelta(milliseconds=1), 1),
        (timedelta(microseconds=1), 1),
        (timedelta(days=1, seconds=1), 86_401_000),
        (100 * 365 * 86_400, 100 * 365 * 86_400_000),
    ],
)
def test_durations_are_rounded_up_to_ms(value: Any, ms: int) -> None:
    """Durations are rounded up to ms without float noise: 0.29 s is 290 ms."""
    assert duration_ms("delay", value) == ms


@pytest.mark.parametrize(
    "value",
    [-1, -1e-9, math.nan, math.inf, True, False, "1", None, 4e9, 1e308, 9**999, timedelta(-1), [1]],
)
def test_invalid_durations(value: Any) -> None:
    """An invalid duration is refused; the error has argument and value."""
    with pytest.raises(BadArgument, match="delay=") as caught:
        duration_ms("delay", value)
    assert caught.value.argument == "delay"
    assert caught.value.value is value


def test_a_duration_that_cannot_be_zero() -> None:
    """With `zero=False` a duration of 0 is refused."""
    with pytest.raises(BadArgument, match="ttl=0: can't be zero"):
        duration_ms("ttl", 0, zero=False)
    assert duration_ms("ttl", 1e-9, zero=False) >= 0


def test_leases_end_at_24_days() -> None:
    """A lease is at most 24 days; 0 is at most once."""
    assert lease_ms("lease", 0) == 0
    assert lease_ms("lease", timedelta(days=24)) == MAX_LEASE_MS
    with pytest.raises(BadArgument, match="at most 24 days"):
        lease_ms("lease", timedelta(days=24, milliseconds=1))


def test_moments() -> None:
    """A time is in seconds since 1970 or an aware datetime, rounded up to ms."""
    assert moment_ms("at", 0) == 0
    assert moment_ms("at", 1_700_000_000.1234) == 1_700_000_000_124
    zone = timezone(timedelta(hours=5, minutes=30))
    moment = datetime(2030, 1, 2, 3, 4, 5, 678_000, tzinfo=timezone.utc)
    assert moment_ms("at", moment) == 1_893_553_445_678
    assert moment_ms("at", moment.astimezone(zone)) == 1_893_553_445_678


@pytest.mark.parametrize(
    "value",
    [
        datetime(2030, 1, 1),  # noqa: DTZ001  # on purpose
        -0.001,
        5e9,
        math.nan,
        "now",
        None,
        True,
        timedelta(1),
        10**400,
    ],
)
def test_invalid_times(value: Any) -> None:
    """A time that is naive, before 1970, after 2109 or of another type is refused."""
    with pytest.raises(BadArgument, match="at="):
        moment_ms("at", value)


def test_counts() -> None:
    """A count is a whole number; the error has the bounds."""
    assert check_count("n", 1) == 1
    assert check_count("n", 0, low=0) == 0
    for value in (0, -1, 1.0, "1", None, True):
        with pytest.raises(BadArgument, match="must be a whole number of at least 1"):
            check_count("n", value)
    with pytest.raises(BadArgument, match="must be a whole number from 1 to 9007199254740991"):
        check_count("n", 1 << 53)
    with pytest.raises(BadArgument, match="n=1001: must be a whole number from 1 to 1000"):
        check_count("n", 1001, high=1000)


def test_blocking() -> None:
    """`block` of None waits forever, and 0 not at all."""
    assert check_block(None) is None
    assert check_block(0) == 0
    assert check_block(timedelta(milliseconds=1500)) == 1.5
    for value in (-1, math.nan, True, "5"):
        with pytest.raises(BadArgument, match="block="):
            check_block(value)


@pytest.mark.parametrize(
    "text, limit, expected",
    [
        ("abc", 3, "abc"),
        ("abcd", 3, "abc"),
        ("üüü", 5, "üü"),
        ("日本", 5, "日"),
        ("", 0, ""),
        ("a\ud800b", 10, "a?b"),
    ],
)
def test_texts_are_cut_at_a_character(text: str, limit: int, expected: str) -> None:
    """A text is cut between characters, and characters that UTF-8 can't encode are replaced."""
    assert check_text("error", text, limit=limit) == expected


@pytest.mark.parametrize("value", [None, 5, b"x", ValueError("x")])
def test_invalid_texts(value: Any) -> None:
    """An error must be text."""
    with pytest.raises(BadArgument, match=r"error=.*must be a str"):
        check_text("error", value, limit=10)


@pytest.mark.parametrize("name", ["delay", "priority", "result_ttl"])
def test_an_equal_value_of_another_type_is_checked(name: str) -> None:
    """The kept form of an option is that of a value and its type: True is not the delay 1."""
    prepared(**{name: 1})
    with pytest.raises(BadArgument, match=f"^{name}="):
        prepared(**{name: True})


def test_a_value_without_a_hash_is_refused_by_name() -> None:
    """Also beside options that come again."""
    for _ in range(2):
        with pytest.raises(BadArgument, match=r"^delay="):
            prepared(key="a", delay=[1])


def test_a_duration_as_a_text_is_told_in_seconds() -> None:
    """Only schedules take texts; the error has the number to write."""
    with pytest.raises(BadArgument, match=r"a number, or a timedelta: delay=300"):
        prepared(delay="5m")  # type: ignore[arg-type]  # on purpose
    with pytest.raises(BadArgument, match=r"or a timedelta$"):
        prepared(delay="soon")  # type: ignore[arg-type]  # on purpose
    with pytest.raises(BadArgument, match=r"such as RetryPolicy\(max_attempts=3\)"):
        prepared(retry=3)  # type: ignore[arg-type]  # on purpose


def test_names_of_other_libraries() -> None:
    """They name the calls that do this here."""
    with pytest.raises(AttributeError, match=r"penstock has no group: use queue\.batch"):
        penstock.group  # noqa: B018  # it is read
