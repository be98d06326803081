"""Results that a handler makes and neither returns nor raises: they would have no effect."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Sequence
from typing import Any

from penstock.worker.registered import AnyHandler
from penstock.worker.results import Result

__all__ = ["check_used"]

warned: dict[Any, Any] = {}
"""The warnings of this process, as `warnings` keeps them: each comes once for a handler."""


def check_used(handler: AnyHandler, results: Sequence[Result], value: Any) -> None:
    """Warn if all results of a run are of one kind, and none was returned or raised.

    Those of several kinds are a table from which the handler has chosen nothing.

    Args:
        handler: the handler.
        results: those that it has made, at least one.
        value: what it has returned.

    Raises:
        TypeError: there is one, and the handler is strict.
        RuntimeWarning: there is one, and the filters of the program make warnings errors.
    """
    returned = value if isinstance(value, (list, tuple)) else (value,)
    is_used = any(
        result.__traceback__ is not None or any(result is one for one in returned)
        for result in results
    )
    if not is_used and len({type(result) for result in results}) == 1:
        _complain(handler, type(results[0]).__name__)


def _complain(handler: AnyHandler, kind: str) -> None:
    text = (
        f"{kind}(...) was made in handler {handler.title!r}, and neither returned nor raised, so "
        f"it has no effect: write `return {kind}(...)`"
    )
    if handler.is_strict:
        raise TypeError(text)
    function = inspect.unwrap(handler.function)
    code = getattr(function, "__code__", None)
    warnings.warn_explicit(
        text,
        RuntimeWarning,
        filename=code.co_filename if code else repr(function),
        lineno=code.co_firstlineno if code else 1,
        module=function.__module__,
        registry=warned,
    )
