# From src/penstock/worker/_async/lifespan.py by tools/unasync.py; do not edit.
"""The lifespan and the hooks of one worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Literal, TypeVar

from penstock.core.jobs.middleware import NO_ERROR
from penstock.errors import BadArgument
from penstock.worker.lifespan import LifespanError, arguments_for, check_hook, context_of

IS_ASYNC = False

PROTOCOLS = (("__enter__", "__exit__"),)
HOOKS = ("on_start", "lifespan", "on_stop")
Hook = TypeVar("Hook", bound=Callable[..., Any])


class Lifespan:
    """Functions of the user that a worker calls before its first job and after its last one.

    Args:
        worker: the worker, which functions that require an argument get.

    Attributes:
        state: what the lifespan has yielded; None = nothing, or the worker does not run.
    """

    def __init__(self, worker: Any) -> None:
        self._worker = worker
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
            raise BadArgument(hook, function, "a worker has one lifespan, and this one has another")
        self._hooks[hook].append(function)
        return function

    def start(self) -> None:
        """Call the hooks for the start, then enter the lifespan.

        Raises:
            LifespanError: one of them has raised.
        """
        for function in self._hooks["on_start"]:
            with _naming(function, "start"):
                _call(function, *arguments_for(function, self._worker))
        for function in reversed(self._hooks["on_stop"]):
            self._stack.callback(_end, function, function, *arguments_for(function, self._worker))
        for function in self._hooks["lifespan"]:
            with _naming(function, "start"):
                self.state = self._enter(function)

    def _enter(self, function: Callable[..., Any]) -> Any:
        context = context_of(function)(*arguments_for(function, self._worker))
        for enter, leave in PROTOCOLS:
            if hasattr(context, enter):
                state = _call(getattr(context, enter))
                self._stack.callback(_end, function, getattr(context, leave), *NO_ERROR)
                return state
        raise TypeError(f"it returned a {type(context).__name__}, not a context manager")

    def stop(self) -> None:
        """Leave the lifespan, then call the hooks for the end, if the start has come so far.

        Raises:
            LifespanError: one of them has raised; the others have been called.
        """
        try:
            self._stack.close()
        finally:
            self.state = None


def _call(call: Callable[..., Any], *args: Any) -> Any:
    return call(*args)


def _end(function: Callable[..., Any], call: Callable[..., Any], *args: Any) -> None:
    with _naming(function, "end"):
        _call(call, *args)


@contextmanager
def _naming(function: Callable[..., Any], phase: Literal["start", "end"]) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise LifespanError(function, phase, error) from error
