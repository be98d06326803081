"""The lifespan and the hooks of one worker."""

from __future__ import annotations

import inspect  # async only
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Any, Literal, TypeVar

from penstock.core.jobs.middleware import NO_ERROR
from penstock.errors import BadArgument
from penstock.worker.lifespan import LifespanError, arguments_for, check_hook, context_of

# sync only: IS_ASYNC = False
IS_ASYNC = True  # async only

# sync only: PROTOCOLS = (("__enter__", "__exit__"),)
PROTOCOLS = (("__aenter__", "__aexit__"), ("__enter__", "__exit__"))  # async only
HOOKS = ("on_start", "lifespan", "on_stop")
Hook = TypeVar("Hook", bound=Callable[..., Any])


class AsyncLifespan:
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
            raise BadArgument(hook, function, "a worker has one lifespan, and this one has another")
        self._hooks[hook].append(function)
        return function

    async def start(self) -> None:
        """Call the hooks for the start, then enter the lifespan.

        Raises:
            LifespanError: one of them has raised.
        """
        for function in self._hooks["on_start"]:
            with _naming(function, "start"):
                await _call(function, *arguments_for(function, self._worker))
        for function in reversed(self._hooks["on_stop"]):
            self._stack.push_async_callback(
                _end, function, function, *arguments_for(function, self._worker)
            )
        for function in self._hooks["lifespan"]:
            with _naming(function, "start"):
                self.state = await self._enter(function)

    async def _enter(self, function: Callable[..., Any]) -> Any:
        context = context_of(function)(*arguments_for(function, self._worker))
        for enter, leave in PROTOCOLS:
            if hasattr(context, enter):
                state = await _call(getattr(context, enter))
                self._stack.push_async_callback(_end, function, getattr(context, leave), *NO_ERROR)
                return state
        raise TypeError(f"it returned a {type(context).__name__}, not a context manager")

    async def stop(self) -> None:
        """Leave the lifespan, then call the hooks for the end, if the start has come so far.

        Raises:
            LifespanError: one of them has raised; the others have been called.
        """
        try:
            await self._stack.aclose()
        finally:
            self.state = None


async def _call(call: Callable[..., Any], *args: Any) -> Any:
    # sync only: return call(*args)
    # [async only
    value = call(*args)
    return await value if inspect.isawaitable(value) else value
    # async only]


async def _end(function: Callable[..., Any], call: Callable[..., Any], *args: Any) -> None:
    with _naming(function, "end"):
        await _call(call, *args)


@contextmanager
def _naming(function: Callable[..., Any], phase: Literal["start", "end"]) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise LifespanError(function, phase, error) from error
