"""Functions that a worker calls at its start and end."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from typing import Any, Literal

from penstock.core.values.caught import summary_of
from penstock.errors import BadArgument, PenstockError
from penstock.worker.functions import is_async, qualified

__all__ = ["LifespanError", "arguments_for", "check_hook", "context_of"]


class LifespanError(PenstockError):
    """The lifespan or a hook of a worker has raised; `__cause__` is its exception.

    At the start the worker has taken no job. At the end all its jobs have been reported.

    Args:
        function: the user's function.
        phase: when it was called.
        error: its exception.
    """

    def __init__(
        self, function: Callable[..., Any], phase: Literal["start", "end"], error: BaseException
    ) -> None:
        self.function, self.phase = function, phase
        text = f"{qualified(function)} failed at the {phase} of the worker"
        super().__init__(f"{text}: {summary_of(error)}")


def check_hook(argument: str, function: Any, *, asynchronous: bool) -> None:
    """Raise an error if a function can't be called at the start or end of a worker.

    Raises:
        BadArgument: it can't be called, or is asynchronous for a worker of threads.
    """
    if not callable(function):
        raise BadArgument(argument, function, "must be a function")
    if not asynchronous and (is_async(function) or _is_async_generator(function)):
        raise BadArgument(argument, function, "an asynchronous function needs an AsyncWorker")
    if argument != "lifespan" and inspect.isgeneratorfunction(function):
        raise BadArgument(
            argument, function, "must not be a generator function: make it the lifespan"
        )


def context_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that makes a context manager; generator functions are decorated."""
    if inspect.isasyncgenfunction(function):
        return contextlib.asynccontextmanager(function)
    return (
        contextlib.contextmanager(function) if inspect.isgeneratorfunction(function) else function
    )


def arguments_for(function: Callable[..., Any], worker: Any) -> tuple[Any, ...]:
    """Return the arguments of a function: the worker if it requires an argument, else none."""
    try:
        inspect.signature(function).bind()
    except TypeError:
        return (worker,)
    except ValueError:  # some builtins have no signature
        pass
    return ()


def _is_async_generator(function: Any) -> bool:
    return inspect.isasyncgenfunction(inspect.unwrap(function))
