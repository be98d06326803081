"""A queue in partitions: which of them a job goes to, and how their number is kept; no I/O.

Each partition is an ordinary queue with a name of its own (protocol/partitions.md).
"""

from __future__ import annotations

import zlib

from penstock.core.values.checks import check_count
from penstock.wire.keys import MAX_PARTITIONS

__all__ = ["check_partitions", "count_field", "partition_of", "read_count"]

PARTITIONS_VERSION = b"2/"
"""Begin of the field `v` of `meta`, under the name of a queue with partitions."""


def check_partitions(value: object) -> int | None:
    """Return the number of partitions; None = an ordinary queue, or as many as it has.

    Raises:
        BadArgument: not a number from 1 to 256.
    """
    return None if value is None else check_count("partitions", value, high=MAX_PARTITIONS)


def partition_of(key: str, count: int) -> int:
    """Return the partition of a key or dedup id: CRC-32 of its UTF-8 bytes modulo their number."""
    return zlib.crc32(key.encode()) % count


def count_field(count: int) -> str:
    """Return the number of partitions as the field `v` of `meta` has it.

    Every script refuses a version that it does not know, so no client uses that name as a queue.
    """
    return f"{PARTITIONS_VERSION.decode()}{count}"


def read_count(version: object) -> int | None:
    """Return the number of partitions in a field `v`; None = it is absent, or a plain version."""
    text = bytes(version) if isinstance(version, (bytes, bytearray)) else b""
    number = text.removeprefix(PARTITIONS_VERSION)
    return int(number) if text.startswith(PARTITIONS_VERSION) and number.isdigit() else None
