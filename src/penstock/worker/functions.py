"""Properties of a function that are known without calling it."""

from __future__ import annotations

import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from penstock.core.jobs.logs import get_logger
from penstock.errors import BadArgument

__all__ = ["app_of", "check_function", "hints", "is_async", "is_target", "qualified"]

logger = get_logger("penstock.worker")

METHOD_REASON = "must not be a method: a job has no object for it; decorate a function"


def is_target(text: str) -> bool:
    """Return whether a text has the form `module:name`; both may have dots."""
    module, _, name = text.partition(":")
    return all(part.isidentifier() for part in (*module.split("."), *name.split(".")))


def qualified(function: Any) -> str:
    """Return the name of a function with its module, for messages."""
    name = getattr(function, "__qualname__", None)
    return repr(function) if name is None else f"{getattr(function, '__module__', '?')}.{name}"


def app_of(function: Any) -> str:
    """Return the top-level package of a function; for a script, the name of its file."""
    module = getattr(function, "__module__", None) or ""
    if module == "__main__":
        main = sys.modules["__main__"]
        spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        module = spec.name if spec is not None else Path(file).stem if file else module
    return str(module).partition(".")[0]


def is_async(function: Callable[..., Any]) -> bool:
    """Return whether a call returns a coroutine.

    A plain function that wraps a coroutine function (`functools.wraps`) is expected to return its
    coroutine.
    """
    return any(inspect.iscoroutinefunction(layer) for layer in _layers(function))


def check_function(function: Any, *, whole: bool) -> None:
    """Raise an error if the function can't be a handler.

    Args:
        function: the decorated object.
        whole: whether its only argument is the job, or the list of jobs.

    Raises:
        BadArgument: it can't be called, is a generator function or a method, or does not take that
            argument.
    """
    if isinstance(function, classmethod):
        raise BadArgument("function", function, METHOD_REASON)
    if not callable(function):
        raise BadArgument(
            "function", function, "must be a function, or another object that can be called"
        )
    for layer in _layers(function):
        if inspect.isgeneratorfunction(layer) or inspect.isasyncgenfunction(layer):
            reason = "must not be a generator function: its call would run none of its code"
            raise BadArgument("function", function, reason)
    if inspect.isfunction(function) and _takes_its_object(function):
        raise BadArgument("function", function, METHOD_REASON)
    if whole:
        try:
            inspect.signature(function).bind(None)
        except TypeError as error:
            raise BadArgument("function", function, f"must take one argument: {error}") from None
        except ValueError:  # some builtins have no signature
            pass


def _takes_its_object(function: types.FunctionType) -> bool:
    """Return whether a function stands in a class and takes its object; a static one does not."""
    home = function.__qualname__.rpartition(".")[0]
    first = function.__code__.co_varnames[: function.__code__.co_argcount][:1]
    return bool(home) and not home.endswith("<locals>") and first in (("self",), ("cls",))


def hints(function: Callable[..., Any], *, strict: bool) -> dict[str, Any]:
    """Return the annotations of a function, with strings resolved.

    Args:
        function: any callable.
        strict: raise NameError for a name that is not defined (yet). Otherwise the annotation is
            left out and logged.
    """
    owner = _annotated(function)
    resolved: dict[str, Any] = {}
    for name, annotation in getattr(owner, "__annotations__", {}).items():
        holder = types.SimpleNamespace(__annotations__={name: annotation})
        names = getattr(owner, "__globals__", {})
        try:
            resolved |= typing.get_type_hints(holder, names, include_extras=True)
        except Exception as error:  # annotations are the user's code
            if strict and isinstance(error, NameError):
                raise
            logger.debug("%s: %r is not checked: %s", qualified(function), name, error)
    return resolved


def _layers(function: Any) -> Iterator[Any]:
    while function is not None:
        yield function
        function = _inner(function)


def _inner(function: Any) -> Any:
    if isinstance(function, functools.partial):
        return function.func
    if hasattr(function, "__wrapped__"):
        return function.__wrapped__
    if inspect.isroutine(function) or isinstance(function, type):
        return None
    return type(function).__call__


def _annotated(function: Callable[..., Any]) -> Any:
    """Return the object with the annotations: the innermost layer, or `__init__` of a class."""
    layers = list(_layers(function))
    inner = layers[-1]
    return vars(inner).get("__init__", inner) if isinstance(inner, type) else inner
