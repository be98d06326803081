"""Settings of a queue: checked, and turned into the fields of meta."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

from penstock.core.jobs.queue_stats import SETTING_KINDS
from penstock.core.values.checks import check_count, check_flag, duration_ms, lease_ms
from penstock.core.values.rate import rate_field, slots_field
from penstock.wire.packing import Argument

__all__ = ["KEEP", "setting_fields"]


class _Unchanged(enum.Enum):
    KEEP = 1

    def __repr__(self) -> str:
        return "unchanged"  # in help(Queue.configure)


MAX_BURST = 100_000
KEEP: Any = _Unchanged.KEEP
"""Leave a setting as it is."""


def setting_fields(settings: Mapping[str, object], partitions: int | None = None) -> list[Argument]:
    """Return name, value, name, value … of the settings that change; '' drops one.

    Args:
        settings: values by name; other names than those of settings are ignored.
        partitions: of the queue; None = it has none.

    Raises:
        BadArgument: a value can't be used.
    """
    fields: list[Argument] = []
    for name, value in settings.items():
        if name not in SETTING_KINDS or value is KEEP:
            continue
        fields += [name, "" if value is None else _field(name, value, partitions)]
    return fields


def _field(name: str, value: object, partitions: int | None) -> Argument:
    kind = SETTING_KINDS[name]
    if kind == "rate":
        return rate_field(name, value, partitions if name == "rate" else None)
    if kind == "slots":
        return slots_field(value, partitions)
    if kind == "lease":
        return lease_ms(name, value, zero=False)
    if kind == "flag":
        return 1 if check_flag(name, value) else ""
    if kind == "switch":
        return "" if check_flag(name, value) else 0
    if kind == "duration":
        return duration_ms(name, value, zero=False)
    if name in ("burst", "key_burst"):
        return check_count(name, value, high=MAX_BURST)
    return check_count(name, value, low=0 if kind == "limit" else 1)
