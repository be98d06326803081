"""Event loops that a synchronous client would block."""

from __future__ import annotations

from asyncio import _get_running_loop
from functools import cache

from penstock.core.jobs.logs import get_logger

__all__ = ["warn_in_loop"]

logger = get_logger("penstock")


def warn_in_loop() -> None:
    """Warn, once in a process, if a synchronous client connects in a coroutine."""
    if _get_running_loop() is not None:
        _warn()


@cache
def _warn() -> None:
    logger.warning(
        "Penstock is used in a coroutine: each call blocks the event loop. Use AsyncPenstock there,"
        " or await asyncio.to_thread(...)"
    )
