"""Limits of a queue and its keys: so many jobs in a time, and at once (protocol/rate.md)."""

from __future__ import annotations

import re

from penstock.core.values.checks import check_count
from penstock.errors import BadArgument

__all__ = ["rate_field", "rate_text", "slots_field", "slots_in", "slots_of_part"]

MS_PER_RATE_UNIT = {"ms": 1, "s": 1000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
RATE_TEXT = r"\s*([0-9]{1,9})\s*/\s*([0-9]{0,9})\s*(ms|s|min|h|d)\s*"
RATE_FIELD = r"([1-9][0-9]{0,8})/([1-9][0-9]{0,8})(?:/[0-9]{1,3})?"
SLOTS_FIELD = r"([1-9][0-9]{0,15})(?:/([1-9][0-9]{0,2}))?"
MAX_RATE_COUNT = 1_000_000
MAX_RATE_PERIOD_MS = 86_400_000


def rate_field(name: str, value: object, partitions: int | None) -> str:
    """Return a rate as it is stored: count, period in ms, and number of partitions that share it.

    Args:
        name: of the setting.
        value: a text such as "100/min", "5/s" or "100/90s".
        partitions: those that share the rate; None = it is not shared.

    Raises:
        BadArgument: no such text, or a part of it is out of bounds.
    """
    match = re.fullmatch(RATE_TEXT, value) if isinstance(value, str) else None
    if match is None:
        reason = 'must be jobs in a time, such as "100/min", "5/s", "10/h", "50/d" or "100/90s"'
        raise BadArgument(name, value, reason)
    count, period = int(match[1]), int(match[2] or 1) * MS_PER_RATE_UNIT[match[3]]
    if not 1 <= count <= MAX_RATE_COUNT or not 1 <= period <= MAX_RATE_PERIOD_MS:
        reason = f"must be 1 to {MAX_RATE_COUNT} jobs in a time of 1 ms to a day"
        raise BadArgument(name, value, reason)
    return f"{count}/{period}" + (f"/{partitions}" if partitions else "")


def rate_text(field: str) -> str | None:
    """Return a stored rate as `configure` takes it; None = it is malformed, and no rate applies."""
    match = re.fullmatch(RATE_FIELD, field)
    if match is None:
        return None
    period = int(match[2])
    unit = max(
        (unit for unit, ms in MS_PER_RATE_UNIT.items() if period % ms == 0),
        key=MS_PER_RATE_UNIT.__getitem__,
    )
    times = period // MS_PER_RATE_UNIT[unit]
    return f"{match[1]}/{times if times > 1 else ''}{unit}"


def slots_field(value: object, partitions: int | None) -> int | str:
    """Return a number of slots as it is stored, with the number of partitions that share it.

    Args:
        value: a whole number from 1.
        partitions: of the queue; None = it has none.

    Raises:
        BadArgument: no such number.
    """
    count = check_count("max_active", value)
    return f"{count}/{partitions}" if partitions else count


def slots_in(field: str) -> int | None:
    """Return the slots of the whole queue; None = it is malformed, and nothing is limited."""
    match = re.fullmatch(SLOTS_FIELD, field)
    return int(match[1]) if match else None


def slots_of_part(field: str) -> int | None:
    """Return the slots of the part of a queue whose field it is; None = nothing is limited."""
    match = re.fullmatch(SLOTS_FIELD, field)
    return max(1, int(match[1]) // int(match[2] or 1)) if match else None
