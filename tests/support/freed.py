"""Objects whose end is watched, with the garbage collector off.

For tests that an exception does not keep the local variables of the code that raised it.
"""

from __future__ import annotations

import gc
import io
import logging
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.twins import wait_for

__all__ = ["Freed", "all_records", "no_collector"]


class Local:
    """An object that is in a local variable."""


class Freed:
    """Tells when the objects of a test are freed, and checks that they are."""

    def __init__(self) -> None:
        self._made = 0
        self._freed: list[int] = []

    def make(self) -> Local:
        """Return another object."""
        local = Local()
        self._made += 1
        weakref.finalize(local, self._freed.append, self._made)
        return local

    def are_all(self, count: int = 1) -> bool:
        """Tell if this many objects were made, and all are freed."""
        return len(self._freed) == self._made == count

    def check(self, count: int = 1) -> None:
        """Wait until this many objects were made and freed."""
        wait_for(lambda: self.are_all(count))


@contextmanager
def no_collector() -> Iterator[None]:
    """Turn the garbage collector off."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.collect()


@contextmanager
def all_records() -> Iterator[list[logging.Handler]]:
    """Pass penstock's records of all levels to these handlers, not to those of pytest.

    Those keep the records, with their exceptions.
    """
    handlers: list[logging.Handler] = [logging.StreamHandler(io.StringIO())]

    def handle(record: logging.LogRecord) -> bool:
        for handler in handlers:
            handler.handle(record)
        return False

    loggers = [logging.getLogger(name) for name in ("penstock", "penstock.worker")]
    for logger in loggers:
        logger.setLevel(logging.DEBUG)
        logger.addFilter(handle)
    try:
        yield handlers
    finally:
        for logger in loggers:
            logger.setLevel(logging.NOTSET)
            logger.removeFilter(handle)
