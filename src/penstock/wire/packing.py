"""Commands in the form in which they are sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, TypeAlias

import hiredis

__all__ = ["Argument", "Packable", "front_of", "pack", "with_args", "with_record", "words"]

Argument: TypeAlias = str | bytes | int
"""An argument of a script or a command."""
Packable: TypeAlias = str | bytes
"""An argument that can be packed. hiredis asks Python for the digits of a number. There the handler
of a signal may run, and if it raises, hiredis crashes the process."""
pack: Callable[[tuple[Packable, ...]], bytes] = hiredis.pack_command  # type: ignore[assignment]  # its annotation is of one argument
"""Packs a command, given with its arguments."""


def words(args: Iterable[Argument]) -> tuple[Packable, ...]:
    """Return arguments that can be packed: numbers become bytes."""
    return tuple([b"%d" % arg if isinstance(arg, int) else arg for arg in args])


def front_of(sha: str, head: tuple[bytes, ...]) -> bytes:
    """Return what all calls of a script for a queue have in common, as it stands in a command.

    Args:
        sha: of the script.
        head: number of keys, and the keys.
    """
    return _packed(b"EVALSHA", sha, *head)


def with_args(front: bytes, size: int, args: tuple[Packable, ...]) -> bytes:
    """Pack a call.

    Args:
        front: its begin, packed.
        size: the number of words in `front`.
        args: the arguments behind it.
    """
    return b"*%d\r\n%b%b" % (size + len(args), front, _packed(*args))


def with_record(
    begin: bytes, nonce: bytes, producer: bytes, args: tuple[Packable, ...], omitted: int
) -> bytes:
    """Pack a call with one record, its last argument.

    This is twice as fast as `with_args`: the other arguments are often the same, or none.

    Args:
        begin: of the command, packed, with the number of its words.
        nonce, producer, args: the arguments behind it.
        omitted: how many of the first of `args` are left out.
    """
    record: Any = args[-1]
    between = _packed_before(*args[omitted:-1]) if omitted < len(args) - 1 else b""
    return b"%b$%d\r\n%b\r\n$%d\r\n%b\r\n%b$%d\r\n%b\r\n" % (
        begin, len(nonce), nonce, len(producer), producer, between, len(record), record,
    )  # fmt: skip


def _packed(*args: Packable) -> bytes:
    """Return arguments as they stand in a packed command."""
    packed = pack(args)
    return packed[packed.index(b"\n") + 1 :]


_packed_before = lru_cache(maxsize=1024)(_packed)
"""`_packed` of the arguments before a record."""
