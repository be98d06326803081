"""Results that a handler makes and neither returns nor raises: they would have no effect."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Sequence
from types import CodeType
from typing import Any

from penstock.worker.registered import AnyHandler
from penstock.worker.results import Result

__all__ = ["check_used"]

warned: dict[Any, Any] = {}
"""The warnings of this process, as `warnings` keeps them: each comes once for a handler."""


CONTROL = [(None, object())]
"""A result to which nothing else refers."""


def check_used(handler: AnyHandler, results: Sequence[tuple[CodeType, Result]]) -> None:
    """Warn if the function of a handler has made results of one kind, and dropped all of them.

    One that was returned or raised is used, and with it all others. One that something else still
    refers to may be used later. Those of other functions are theirs to drop. Several kinds are a
    table from which the handler has chosen nothing.

    Args:
        handler: the handler.
        results: those that its run has made, at least one, each behind the code that has made it.
            The caller still has what the handler has returned.

    Raises:
        TypeError: there is one, and the handler is strict.
        RuntimeWarning: there is one, and the filters of the program make warnings errors.
    """
    unreferenced = _count_references(CONTROL, 0)
    if any(_count_references(results, at) > unreferenced for at in range(len(results))):
        return  # it was returned, or stored
    if any(result.__traceback__ is not None for _, result in results):
        return  # it was raised
    own = getattr(inspect.unwrap(handler.function), "__code__", None)
    kinds = {type(result).__name__ for _, result in results}
    if len(kinds) == 1 and any(code is own for code, _ in results):
        _complain(handler, *kinds)


def _count_references(results: Sequence[tuple[Any, Any]], at: int) -> int:
    """Return the number of references to a result; it is that of `CONTROL` if none is elsewhere."""
    count: int = sys.getrefcount(results[at][1])
    return count


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
