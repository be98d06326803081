"""Settings of a queue: checked, and turned into the fields of meta."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

from penstock.core.calls import Argument
from penstock.core.options import check_count, duration_ms, lease_ms
from penstock.core.rate import check_burst, rate_field
from penstock.core.views import SETTING_KINDS
from penstock.errors import BadArgument

__all__ = ["KEEP", "setting_fields"]


class _Unchanged(enum.Enum):
    KEEP = 1

    def __repr__(self) -> str:
        return "unchanged"  # in help(Queue.configure)


KEEP: Any = _Unchanged.KEEP
"""Leave a setting as it is."""


def setting_fields(given: Mapping[str, object], partitions: int | None = None) -> list[Argument]:
    """Return name, value, name, value … of the settings that change; '' drops one.

    Args:
        given: values by name; other names than those of settings are ignored.
        partitions: of the queue; None = it has none.

    Raises:
        BadArgument: a value can't be used.
    """
    fields: list[Argument] = []
    for name, value in given.items():
        if name not in SETTING_KINDS or value is KEEP:
            continue
        is_none = value is None or (value is False and SETTING_KINDS[name] == "flag")
        if name == "rate" and value is not None:
            fields += [name, rate_field(value, partitions)]
        else:
            fields += [name, "" if is_none else _field(name, value)]
    return fields


def _field(name: str, value: object) -> int:
    if name == "lease":
        ms = lease_ms(name, value)
        return ms or duration_ms(name, value, zero=False)
    if SETTING_KINDS[name] == "flag":
        if value is not True:
            raise BadArgument(name, value, "must be a bool")
        return 1
    if SETTING_KINDS[name] == "duration":
        return duration_ms(name, value, zero=False)
    if name == "burst":
        return check_burst(value)
    return check_count(name, value, low=0 if SETTING_KINDS[name] == "limit" else 1)
