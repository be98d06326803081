"""A queue in partitions: which of them a job goes to, and how their number is kept; no I/O.

Each partition is an ordinary queue with a name of its own (protocol/partitions.md).
"""

from __future__ import annotations

import zlib

from penstock.core.options import check_count
from penstock.wire.keys import MOST_PARTITIONS

__all__ = ["check_partitions", "mark", "partition_of", "read_mark"]

MARK = b"2/"
"""The beginning of the mark that a queue with partitions has in place of its version."""


def check_partitions(value: object) -> int | None:
    """Return the number of partitions; None = an ordinary queue, or as many as it has.

    Raises:
        BadArgument: not a number from 1 to 256.
    """
    return None if value is None else check_count("partitions", value, high=MOST_PARTITIONS)


def partition_of(key: str, count: int) -> int:
    """Return the partition of a key or dedup id: CRC-32 of its UTF-8 bytes modulo their number."""
    return zlib.crc32(key.encode()) % count


def mark(count: int) -> str:
    """Return the mark that replaces the version in the `meta` of the queue's own name.

    Every script refuses a version that it does not know, so no client uses that name as a queue.
    """
    return f"{MARK.decode()}{count}"


def read_mark(version: object) -> int | None:
    """Return the number of partitions of a mark; None = it is not a mark."""
    text = bytes(version) if isinstance(version, (bytes, bytearray)) else b""
    number = text.removeprefix(MARK)
    return int(number) if text.startswith(MARK) and number.isdigit() else None
