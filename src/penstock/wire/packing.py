"""Commands in the form in which they are sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hiredis

__all__ = ["front_of", "pack", "with_record"]

pack: Callable[[tuple[Any, ...]], bytes] = hiredis.pack_command
"""Packs a command, given with its arguments."""


def front_of(sha: str, head: tuple[Any, ...]) -> bytes:
    """Return what all calls of a script with one record have in common, up to the last key.

    Args:
        sha: of the script.
        head: number of keys, and the keys.
    """
    packed = pack((b"EVALSHA", sha, *head))
    arguments = 3  # nonce, producer, record
    return b"*%d%b" % (2 + len(head) + arguments, packed[packed.index(b"\r") :])


def with_record(front: bytes, nonce: bytes, producer: bytes, record: object) -> bytes:
    """Pack a call with one record. This is three times as fast as `pack`, as `front` is packed."""
    assert isinstance(record, bytes)
    return b"%b$%d\r\n%b\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % (
        front, len(nonce), nonce, len(producer), producer, len(record), record,
    )  # fmt: skip
