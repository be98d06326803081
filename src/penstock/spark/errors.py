"""What goes wrong between Spark and a queue, beside the library's own errors."""

from __future__ import annotations

from penstock.errors import BadArgument, PenstockError

__all__ = ["OptionError", "RowError", "StagesLost", "Unreachable", "WrongServer"]

HIDDEN = "<not shown>"


class OptionError(BadArgument):
    """An option of a reader or writer can't be used; nothing was read or written.

    Args:
        argument: the option's name as it is documented.
        value: what was given; `HIDDEN` where it may be a secret.
        reason: what would have been accepted.
    """

    def __init__(self, argument: str, value: object, reason: str) -> None:
        super().__init__(argument, value, reason)
        if value is None:
            self.args = (f"option {argument!r}: {reason}",)
        elif value == HIDDEN:
            self.args = (f"option {argument!r} ({HIDDEN[1:-1]}): {reason}",)
        else:
            self.args = (f"option {self.args[0]}",)


class RowError(BadArgument):
    """A value of a row can't be used.

    Args:
        column: its name.
        value: what it holds.
        reason: what would have been accepted.
        row: which row of the partition, from 0.
    """

    def __init__(self, column: str, value: object, reason: str, row: int) -> None:
        super().__init__(column, value, reason)
        self.args = (
            f"column {column!r}, row {row} of its partition: {reason}, not {_kind(value)}",
        )
        self.row = row


def _kind(value: object) -> str:
    """What a value is, without its content: a payload does not belong in a log."""
    if isinstance(value, (str, bytes, bytearray)):
        return f"a {type(value).__name__} of {len(value)}"
    if value is None or isinstance(value, (bool, int, float)):
        return repr(value)
    return type(value).__name__


class WrongServer(PenstockError):
    """An executor's connection leads to another server than the driver's: `localhost`, perhaps."""


class StagesLost(PenstockError):
    """Rows that were staged are not there any more; nothing of the write is in the queue."""


class Unreachable(PenstockError):
    """No server can be reached by the options of a reader or writer."""
