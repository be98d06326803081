"""The log format of `penstock worker`: time, process, level, message, fields."""

from __future__ import annotations

import logging
import sys
from datetime import datetime, timezone

from penstock.core.logs import USUAL, indented, printable

__all__ = ["LogFormatter", "set_up"]


class LogFormatter(logging.Formatter):
    """One line a record: `2026-11-21T18:40:00.123Z 4711 INFO penstock.worker: text key=value`.

    The fields come from `extra`. A traceback follows on lines of its own, indented by two blanks.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as text."""
        at = datetime.fromtimestamp(record.created, timezone.utc)
        time = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        fields = [f" {k}={_value(v)}" for k, v in vars(record).items() if k not in USUAL]
        line = f"{time} {record.process} {record.levelname} {record.name}: {record.getMessage()}"
        lines = [printable(line) + "".join(fields)]
        if record.exc_info:
            lines.append(indented(self.formatException(record.exc_info)))
        if record.stack_info:
            lines.append(indented(self.formatStack(record.stack_info)))
        return "\n".join(lines)


def _value(value: object) -> str:
    text = str(value)
    plain = text.isprintable() and text and not any(c in text for c in " =\"'")
    return text if plain else repr(text)


def set_up(level: str | None) -> None:
    """Log to stderr, unless the app has set up logging itself.

    Args:
        level: the lowest level to show; None = info, or the level that the app has set.
    """
    root = logging.getLogger()
    if not root.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(LogFormatter())
        root.addHandler(handler)
        root.setLevel(logging.INFO)
    if level is not None:
        root.setLevel(level.upper())
