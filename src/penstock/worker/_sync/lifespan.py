# From src/penstock/worker/_async/lifespan.py by tools/unasync.py; do not edit.
"""The lifespan and the hooks of one worker."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from penstock.errors import BadArgument
from penstock.worker.lifespan import LifespanError, check_hook, context_of, passed

IS_ASYNC = False


class Lifespan:
    """Functions of the user that a worker calls before its first job and after its last one.

    Attributes:
        state: what the lifespan has yielded; None = nothing, or the worker does not run.
    """

    def __init__(self) -> None:
        self.state: Any = None
        self._function: Callable[..., Any] | None = None
        self._first: list[Callable[..., Any]] = []
        self._last: list[Callable[..., Any]] = []
        self._stack = ExitStack()

    def set(self, function: Callable[..., Any]) -> None:
        """Set the lifespan.

        Raises:
            BadArgument: it can't be one, or there is one.
        """
        check_hook("lifespan", function, asynchronous=IS_ASYNC)
        if self._function is not None:
            raise BadArgument("lifespan", function, "a worker has one lifespan")
        self._function = function

    def add_start(self, function: Callable[..., Any]) -> None:
        """Add a function for the start.

        Raises:
            BadArgument: it can't be called like that.
        """
        check_hook("on_start", function, asynchronous=IS_ASYNC)
        self._first.append(function)

    def add_stop(self, function: Callable[..., Any]) -> None:
        """Add a function for the end.

        Raises:
            BadArgument: it can't be called like that.
        """
        check_hook("on_stop", function, asynchronous=IS_ASYNC)
        self._last.append(function)

    def start(self, worker: Any) -> None:
        """Call the hooks for the start, then enter the lifespan.

        Raises:
            LifespanError: one of them has raised.
        """
        for function in self._first:
            _guarded(_called, function, "start", function, worker)
        for function in reversed(self._last):
            self._stack.callback(_guarded, _called, function, "end", function, worker)
        if self._function is not None:
            entered = _guarded(self._enter, self._function, "start", self._function, worker)
            self.state = entered

    def _enter(self, function: Callable[..., Any], worker: Any) -> Any:
        made = context_of(function)(*passed(function, worker))
        if hasattr(made, "__enter__"):
            state = made.__enter__()
            self._stack.callback(_guarded, made.__exit__, function, "end", None, None, None)
            return state
        raise TypeError(f"it returned a {type(made).__name__}, not a context manager")

    def stop(self) -> None:
        """Leave the lifespan, then call the hooks for the end, if the start has come so far.

        Raises:
            LifespanError: one of them has raised; the others have been called.
        """
        try:
            self._stack.close()
        finally:
            self.state = None


def _called(function: Callable[..., Any], worker: Any) -> None:
    value = function(*passed(function, worker))
    del value


def _guarded(call: Callable[..., Any], function: Callable[..., Any], phase: Any, *args: Any) -> Any:
    """Await a call; its exception becomes a `LifespanError` that names the function."""
    try:
        return call(*args)
    except Exception as error:
        raise LifespanError(function, phase, error) from error
