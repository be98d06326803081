"""What can be known of a function without calling it."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from penstock.core.logs import get_logger
from penstock.errors import BadArgument

__all__ = ["checked", "hints", "is_async", "is_target", "qualified"]

F = TypeVar("F", bound=Callable[..., Any])

logger = get_logger("penstock.worker")


def is_target(text: str) -> bool:
    """Whether a text has the form `module:name`, both perhaps dotted."""
    module, _, name = text.partition(":")
    return all(part.isidentifier() for part in (*module.split("."), *name.split(".")))


def qualified(function: Any) -> str:
    """The name of a function with its module's, for messages."""
    name = getattr(function, "__qualname__", None)
    return repr(function) if name is None else f"{getattr(function, '__module__', '?')}.{name}"


def is_async(function: Callable[..., Any]) -> bool:
    """Whether a call gives a coroutine.

    A plain function that is wrapped around a coroutine function (`functools.wraps`) is taken for
    one that hands the coroutine on.
    """
    return any(inspect.iscoroutinefunction(layer) for layer in _layers(function))


def checked(function: F, *, whole: bool = True) -> F:
    """Refuse what can't be a handler.

    Args:
        function: what was decorated.
        whole: it is called with one argument, the job or the list of jobs.

    Raises:
        BadArgument: it can't be called, is a generator function, or does not take that argument.
    """
    if not callable(function):
        raise BadArgument("function", function, "something that can be called")
    for layer in _layers(function):
        if inspect.isgeneratorfunction(layer) or inspect.isasyncgenfunction(layer):
            raise BadArgument("function", function, "a generator function does nothing when called")
    if whole:
        try:
            inspect.signature(function).bind(None)
        except TypeError as error:
            raise BadArgument("function", function, f"must take one argument: {error}") from None
        except ValueError:  # some builtins don't tell
            pass
    return function


def hints(function: Callable[..., Any], *, strict: bool) -> dict[str, Any]:
    """The annotations of a function, with strings resolved.

    Args:
        function: anything that can be called.
        strict: raise NameError for a name that is not there (yet); else the annotation is left out,
            and logged.
    """
    owner = _annotated(function)
    try:
        return typing.get_type_hints(owner, include_extras=True)
    except Exception as error:  # annotations are the user's code
        if strict and isinstance(error, NameError):
            raise
    found: dict[str, Any] = {}
    for name, annotation in getattr(owner, "__annotations__", {}).items():
        one = types.SimpleNamespace(__annotations__={name: annotation})
        names = getattr(owner, "__globals__", {})
        try:
            found |= typing.get_type_hints(one, names, include_extras=True)
        except Exception as error:  # noqa: BLE001
            logger.debug("%s: %r is not checked: %s", qualified(function), name, error)
    return found


def _layers(function: Any) -> Iterator[Any]:
    """Return the function and what it is made of: partials, decorators, callable objects."""
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
    """Return the object with the annotations: the innermost layer; of a class its `__init__`."""
    layers = list(_layers(function))
    inner = layers[-1]
    return vars(inner).get("__init__", inner) if isinstance(inner, type) else inner
