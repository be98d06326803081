"""The lifespan and the hooks of one worker."""

from __future__ import annotations

import inspect  # async only
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from penstock.errors import BadArgument
from penstock.worker.lifespan import LifespanError, check_hook, context_of, passed

# sync only: IS_ASYNC = False
IS_ASYNC = True  # async only

HOOKS = ("on_start", "lifespan", "on_stop")
Hook = TypeVar("Hook", bound=Callable[..., Any])


class AsyncLifespan:
    """Functions of the user that a worker calls before its first job and after its last one.

    Attributes:
        state: what the lifespan has yielded; None = nothing, or the worker does not run.
    """

    def __init__(self) -> None:
        self.state: Any = None
        self._hooks: dict[str, list[Callable[..., Any]]] = {hook: [] for hook in HOOKS}
        self._stack = AsyncExitStack()

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

    async def start(self, worker: Any) -> None:
        """Call the hooks for the start, then enter the lifespan.

        Raises:
            LifespanError: one of them has raised.
        """
        for function in self._hooks["on_start"]:
            await _guarded(_called, function, "start", function, worker)
        for function in reversed(self._hooks["on_stop"]):
            self._stack.push_async_callback(_guarded, _called, function, "end", function, worker)
        for function in self._hooks["lifespan"]:
            self.state = await _guarded(self._enter, function, "start", function, worker)

    async def _enter(self, function: Callable[..., Any], worker: Any) -> Any:
        made = context_of(function)(*passed(function, worker))
        if hasattr(made, "__aenter__"):
            state = await made.__aenter__()
            self._stack.push_async_callback(
                _guarded, made.__aexit__, function, "end", None, None, None
            )
            return state
        # [async only
        if hasattr(made, "__enter__"):
            state = made.__enter__()
            self._stack.callback(_exit, made, function)
            return state
        # async only]
        raise TypeError(f"it returned a {type(made).__name__}, not a context manager")

    async def stop(self) -> None:
        """Leave the lifespan, then call the hooks for the end, if the start has come so far.

        Raises:
            LifespanError: one of them has raised; the others have been called.
        """
        try:
            await self._stack.aclose()
        finally:
            self.state = None


async def _called(function: Callable[..., Any], worker: Any) -> None:
    value = function(*passed(function, worker))
    # [async only
    if inspect.isawaitable(value):
        await value
    # async only]
    # sync only: del value


async def _guarded(
    call: Callable[..., Any], function: Callable[..., Any], phase: Any, *args: Any
) -> Any:
    """Await a call; its exception becomes a `LifespanError` that names the function."""
    try:
        return await call(*args)
    except Exception as error:
        raise LifespanError(function, phase, error) from error


# [async only
def _exit(made: Any, function: Callable[..., Any]) -> None:
    try:
        made.__exit__(None, None, None)
    except Exception as error:
        raise LifespanError(function, "end", error) from error


# async only]
