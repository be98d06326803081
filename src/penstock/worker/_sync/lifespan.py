# From src/penstock/worker/_async/lifespan.py by tools/unasync.py; do not edit.
"""The lifespan and the hooks of one worker."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, TypeVar

from penstock.errors import BadArgument
from penstock.worker.lifespan import LifespanError, check_hook, context_of, passed

IS_ASYNC = False

HOOKS = ("on_start", "lifespan", "on_stop")
Hook = TypeVar("Hook", bound=Callable[..., Any])


class Lifespan:
    """Functions of the user that a worker calls before its first job and after its last one.

    Attributes:
        state: what the lifespan has yielded; None = nothing, or the worker does not run.
    """

    def __init__(self) -> None:
        self.state: Any = None
        self._hooks: dict[str, list[Callable[..., Any]]] = {hook: [] for hook in HOOKS}
        self._stack = ExitStack()

    def add(self, hook: str, function: Hook) -> Hook:
        """Add a function, and return it.

        Args:
            hook: one of `HOOKS`.
            function: the function.

        Raises:
            BadArgument: it can't be called like that, or there is a lifespan.
        """
        check_hook(hook, function, asynchronous=IS_ASYNC)
        if hook == "lifespan" and self._hooks[hook]:
            raise BadArgument(hook, function, "a worker has one lifespan")
        self._hooks[hook].append(function)
        return function

    def start(self, worker: Any) -> None:
        """Call the hooks for the start, then enter the lifespan.

        Raises:
            LifespanError: one of them has raised.
        """
        for function in self._hooks["on_start"]:
            _guarded(_called, function, "start", function, worker)
        for function in reversed(self._hooks["on_stop"]):
            self._stack.callback(_guarded, _called, function, "end", function, worker)
        for function in self._hooks["lifespan"]:
            self.state = _guarded(self._enter, function, "start", function, worker)

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
