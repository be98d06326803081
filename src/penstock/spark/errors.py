"""The errors of the Spark data source, besides those of the library."""

from __future__ import annotations

from penstock.core.values.urls import NOT_SHOWN
from penstock.errors import BadArgument, PenstockError

__all__ = ["NOT_SHOWN", "OptionError", "RowError", "StagesLost", "Unreachable", "WrongServer"]


class OptionError(BadArgument):
    """An option of a reader or writer can't be used; nothing was read or written."""

    def __init__(self, argument: str, value: object, reason: str) -> None:
        super().__init__(argument, value, reason)
        told = f"{argument!r}: {reason}" if value is None else self.args[0]
        self.args = (f"option {told}",)


class RowError(BadArgument):
    """A value of a row can't be used."""

    def __init__(self, column: str, value: object, reason: str, row: int) -> None:
        super().__init__(column, value, reason)
        is_harmless = value is None or isinstance(value, (bool, int, float))
        shown = repr(value) if is_harmless else f"a {type(value).__name__}"  # no payload in a log
        if isinstance(value, (str, bytes)):
            shown += f" of length {len(value)}"
        self.args = (f"column {column!r}, row {row} of its partition: {reason}, not {shown}",)
        self.row = row


class WrongServer(PenstockError):
    """An executor reaches another server than the driver, perhaps by the name `localhost`."""


class StagesLost(PenstockError):
    """Staged rows have expired or were removed; nothing of the write is in the queue."""


class Unreachable(PenstockError):
    """No server can be reached by the options of a reader or writer."""
