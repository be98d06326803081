"""The log formats of workers: lines of text, or lines of JSON."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from textwrap import dedent
from typing import Literal, TypeAlias

from penstock.core.jobs.logs import STANDARD_ATTRIBUTES, get_logger, hidden, indented, printable

__all__ = [
    "JsonFormatter",
    "LogFormat",
    "LogFormatter",
    "chosen_setup",
    "set_up",
    "show_by_default",
]

LogFormat: TypeAlias = Literal["text", "json"]


class LogFormatter(logging.Formatter):
    """One line a record: `2026-11-21T18:40:00.123Z 4711 INFO penstock.worker: text key=value`.

    The fields come from `extra`. A traceback follows on lines of its own, indented by two blanks.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as text."""
        fields = [
            f" {k}={_value(v)}" for k, v in vars(record).items() if k not in STANDARD_ATTRIBUTES
        ]
        start = f"{_time(record)} {record.process} {record.levelname} {record.name}"
        lines = [printable(hidden(f"{start}: {record.getMessage()}")) + "".join(fields)]
        if record.exc_info:
            lines.append(indented(self.formatException(record.exc_info)))
        elif record.exc_text:
            lines.append(record.exc_text)
        if record.stack_info:
            lines.append(indented(self.formatStack(record.stack_info)))
        return "\n".join(lines)


class JsonFormatter(logging.Formatter):
    """One JSON object a record, on one line and in ASCII.

    `time`, `pid`, `level`, `logger`, `message`, the fields from `extra`, and `traceback`.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as JSON."""
        shown: dict[str, object] = {
            "time": _time(record),
            "pid": record.process,
            "level": record.levelname,
            "logger": record.name,
            "message": hidden(record.getMessage()),
        }
        for name, value in vars(record).items():
            if name not in STANDARD_ATTRIBUTES:
                shown.setdefault(name, hidden(value) if isinstance(value, str) else value)
        if record.exc_info:
            shown["traceback"] = hidden(self.formatException(record.exc_info))
        elif record.exc_text:
            shown["traceback"] = dedent(record.exc_text)
        if record.stack_info:
            shown["stack"] = self.formatStack(record.stack_info)
        return json.dumps(shown, default=str)


CHATTY_LOGGERS = ("httpx", "httpcore")
"""Loggers that tell of each request at INFO; a worker shows them at its level `debug` only."""
FORMATTERS: Mapping[str, type[logging.Formatter]] = {"text": LogFormatter, "json": JsonFormatter}


def _time(record: logging.LogRecord) -> str:
    at = datetime.fromtimestamp(record.created, timezone.utc)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _value(value: object) -> str:
    text = hidden(str(value))
    plain = text.isprintable() and text and not any(c in text for c in " =\"'")
    return text if plain else repr(text)


def _handler(form: LogFormat) -> logging.Handler:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(FORMATTERS[form]())
    return handler


def set_up(level: str | None, form: LogFormat = "text") -> None:
    """Log to stderr, unless the app has set up logging itself.

    Args:
        level: the lowest level to show; None = info, or the level that the app has set.
        form: the format.
    """
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(_handler(form))
        root.setLevel(logging.INFO)
        if level != "debug":
            for name in CHATTY_LOGGERS:  # unless the app has chosen their levels
                logger = logging.getLogger(name)
                logger.setLevel(logger.level or logging.WARNING)
    if level is not None:
        root.setLevel(level.upper())


def chosen_setup() -> tuple[str, str] | tuple[()]:
    """Return the arguments of `set_up` in this process; empty = the app has set up its own log."""
    root = logging.getLogger()
    for handler in root.handlers:
        for form, formatter in FORMATTERS.items():
            if type(handler.formatter) is formatter:
                return logging.getLevelName(root.level), form
    return ()


@contextmanager
def show_by_default() -> Iterator[None]:
    """Show penstock's records on stderr for a while, in a program that has not set up logging."""
    logger = get_logger("penstock")
    if logger.hasHandlers() or logger.level != logging.NOTSET:
        yield
        return
    handler = _handler("text")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
