"""Checks of arguments, and their conversion to the values on the wire."""

from __future__ import annotations

import math
import re
from datetime import datetime, timedelta
from typing import Any, Literal, TypeAlias, TypeVar, get_args

from penstock.errors import BadArgument

__all__ = [
    "LATEST_HOLD_END_MS",
    "LONGEST_HOLD_MS",
    "Duration",
    "Missed",
    "Moment",
    "OnUnknown",
    "PauseSide",
    "PurgeState",
    "RoleName",
    "StateName",
    "check_block",
    "check_choice",
    "check_count",
    "check_cursor",
    "check_flag",
    "check_handler_name",
    "check_label",
    "check_party",
    "check_text",
    "duration_ms",
    "lease_ms",
    "moment_ms",
    "seconds_in",
]

Duration: TypeAlias = int | float | timedelta
"""Seconds as a number, or a timedelta."""
Moment: TypeAlias = int | float | datetime
"""Seconds since 1970 as a number, or an aware datetime."""

StateName: TypeAlias = Literal["ready", "scheduled", "parked", "active", "dead"]
"""State of a job, as calls name it to select jobs."""
PurgeState: TypeAlias = Literal[StateName, "dependent"]
"""Jobs that a purge removes: those of a state, or jobs of scheduled that wait for other jobs."""
PauseSide: TypeAlias = Literal["in", "out", "all"]
"""Side of a queue that `pause` stops."""
RoleName: TypeAlias = Literal["producer", "consumer"]
"""Exclusive role of a queue."""
Missed: TypeAlias = Literal["one", "skip"]
"""How ticks are made up for that came while no worker ran: by one run, or by none."""
OnUnknown: TypeAlias = Literal["raise", "next"]
"""Action of an enqueue when a node may or may not have the job."""

T = TypeVar("T")
JOB_CURSOR = r"0|r[0-9]{1,16}-[0-9]{10}:(\+|[0-9]{1,16}-[0-9]{10})|h(0|[1-9][0-9]{0,18})"
QUEUE_CURSOR = r"(0|[1-9][0-9]{0,18})(\.[0-9a-f]{16})?"
SPAN_TEXT = r"(?:([0-9]{1,15})d)?\s*(?:([0-9]{1,15})h)?\s*(?:([0-9]{1,15})m)?\s*(?:([0-9]{1,15})s)?"
SECONDS_OF_UNITS = (86_400, 3_600, 60, 1)
MAX_LEASE_MS = 24 * 86_400_000
LONGEST_HOLD_MS = 86_400_000
LATEST_HOLD_END_MS = 90_000_000
"""Most ms until a hold ends: the clock may have gone back an hour."""
MAX_HANDLER_NAME_BYTES = 200
"""Most bytes of the name of a handler in the header of a job."""
MAX_LABEL_BYTES = 1024
MAX_DURATION_S = 100 * 366 * 86_400
MAX_DURATION_MS = MAX_DURATION_S * 1000
MAX_INTEGER = (1 << 53) - 1
"""The largest integer that the scripts take: larger ones are not exact in Lua."""
BATCH = 1000
"""The most jobs that one script takes or returns."""


def seconds_in(text: str) -> int | None:
    """Return the seconds in a text such as "15m", "1h30m" or "2d"; None = it is another text."""
    match = re.fullmatch(SPAN_TEXT, text.strip())
    if match is None or not text.strip():
        return None
    pairs = zip(SECONDS_OF_UNITS, match.groups(), strict=True)
    return sum(unit * int(count) for unit, count in pairs if count)


def _seconds(argument: str, value: Any) -> float:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        meant = seconds_in(value) if isinstance(value, str) else None
        way = "" if meant is None else f": {argument}={meant}"
        raise BadArgument(argument, value, f"must be seconds as a number, or a timedelta{way}")
    try:
        seconds = float(value)
    except OverflowError:
        seconds = math.inf
    if not math.isfinite(seconds):
        raise BadArgument(argument, value, "must be a finite number of seconds")
    return seconds


def duration_ms(argument: str, value: Any, *, zero: bool = True) -> int:
    """Return a duration in whole ms, rounded up.

    Raises:
        BadArgument: not a duration, negative, NaN, over 100 years, or 0 where `zero` is false.
    """
    if type(value) is int and 0 < value <= MAX_DURATION_S:
        return value * 1000
    seconds = _seconds(argument, value)
    if seconds < 0:
        raise BadArgument(argument, value, "can't be negative")
    if seconds == 0 and not zero:
        raise BadArgument(argument, value, "can't be zero")
    if seconds > MAX_DURATION_S:
        raise BadArgument(argument, value, "must be at most 100 years")
    return math.ceil(round(seconds * 1000, 6))


def lease_ms(argument: str, value: Any, *, zero: bool = True) -> int:
    """Return a lease in ms; 0 = at most once.

    Raises:
        BadArgument: as `duration_ms`, or above 24 days.
    """
    ms = duration_ms(argument, value, zero=zero)
    if ms > MAX_LEASE_MS:
        raise BadArgument(argument, value, "must be at most 24 days")
    return ms


def moment_ms(argument: str, value: Any) -> int:
    """Return a point in time in ms since 1970.

    Raises:
        BadArgument: a naive datetime, or not a finite number of seconds since 1970.
    """
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise BadArgument(argument, value, "a datetime must have a time zone")
        value = value.timestamp()
    elif isinstance(value, timedelta):
        raise BadArgument(argument, value, "must be a point in time; pass a duration as delay=")
    seconds = value if type(value) is int else _seconds(argument, value)
    if not 0 <= seconds * 1000 <= 2**42:
        raise BadArgument(argument, value, "must be seconds since 1970, up to the year 2109")
    return math.ceil(round(seconds * 1000, 3))


def check_count(argument: str, value: Any, *, low: int = 1, high: int = MAX_INTEGER) -> int:
    """Return the value if it is an integer from `low` to `high`.

    Raises:
        BadArgument: otherwise.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        is_large = isinstance(value, int) and value > high
        bound = f"from {low} to {high}" if is_large or high < MAX_INTEGER else f"of at least {low}"
        raise BadArgument(argument, value, f"must be a whole number {bound}")
    return value


def check_choice(argument: str, value: T, choices: Any) -> T:
    """Return the value if it is one of the choices.

    Args:
        argument: the name of the argument.
        value: the value of the argument.
        choices: a `Literal`.

    Raises:
        BadArgument: otherwise.
    """
    names = get_args(choices)
    if not isinstance(value, str) or value not in names:
        raise BadArgument(argument, value, f"must be one of {', '.join(names)}")
    return value


def check_flag(argument: str, value: object) -> bool:
    """Return True or False.

    Raises:
        BadArgument: not a bool.
    """
    if not isinstance(value, bool):
        raise BadArgument(argument, value, "must be True or False")
    return value


def check_party(argument: str, value: object) -> str:
    """Return the name of a client.

    Raises:
        BadArgument: empty, over 200 bytes, or with control characters.
    """
    if not isinstance(value, str) or not value.isprintable() or not 1 <= len(value.encode()) <= 200:
        raise BadArgument(argument, value, "must be 1 to 200 bytes of printable text")
    return value


def check_cursor(argument: str, value: Any, form: str) -> str:
    """Return the cursor of a scan if it matches the regular expression `form`.

    Raises:
        BadArgument: neither "0" nor the cursor of a page.
    """
    fits = isinstance(value, str) and re.fullmatch(form, value)
    if not isinstance(value, str) or not fits or int(re.findall("[0-9]+", value)[0]) >= 1 << 63:
        raise BadArgument(argument, value, 'must be the cursor of a page, or "0" to begin')
    return value


def check_block(value: Any, argument: str = "block") -> float | None:
    """Return the longest wait of a call in seconds; 0 = no wait, None = for ever.

    Raises:
        BadArgument: not a duration, negative or NaN.
    """
    return None if value is None else duration_ms(argument, value) / 1000


def check_label(argument: str, value: object) -> str:
    """Return a key or a dedup id if it is a str of 1 to 1024 bytes of UTF-8.

    Raises:
        BadArgument: otherwise.
    """
    try:
        size = len(value.encode()) if isinstance(value, str) else 0
    except UnicodeEncodeError:
        size = 0
    if not isinstance(value, str) or not 1 <= size <= MAX_LABEL_BYTES:
        raise BadArgument(
            argument, value, f"must be a str of 1 to {MAX_LABEL_BYTES} bytes of UTF-8"
        )
    return value


def check_handler_name(argument: str, value: object) -> str:
    """Return the name of a handler if it is printable text of 1 to 200 bytes.

    Raises:
        BadArgument: otherwise.
    """
    if not isinstance(value, str) or not value or not value.isprintable():
        raise BadArgument(argument, value, "must be printable text that is not empty")
    if len(value.encode()) > MAX_HANDLER_NAME_BYTES:
        raise BadArgument(argument, value, f"must have at most {MAX_HANDLER_NAME_BYTES} bytes")
    return value


def check_text(argument: str, value: Any, *, limit: int) -> str:
    """Return a str, cut to `limit` bytes of UTF-8.

    Raises:
        BadArgument: not a str.
    """
    if not isinstance(value, str):
        raise BadArgument(argument, value, "must be a str")
    return value.encode("utf-8", "replace")[:limit].decode("utf-8", "ignore")
