"""Methods as users see them: their names in a TypeError, and calls that other libraries have."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import NoReturn, TypeVar

__all__ = ["ElsewhereCall", "name_methods", "refuse_pickle"]

C = TypeVar("C", bound=type)


def name_methods(public: str) -> Callable[[C], C]:
    """Name the methods of a class and of its bases after a public class, as a decorator.

    The TypeError of a wrong call names `Queue.postpone()` then, and not the class that defines it,
    and a pickled method is found by this name.

    Args:
        public: the name of the class in `penstock`.
    """

    def rename(cls: C) -> C:
        for base in cls.__mro__:
            for name, member in vars(base).items():
                function = getattr(member, "__func__", member)
                if _is_method(function):
                    function.__module__, function.__qualname__ = "penstock", f"{public}.{name}"
        return cls

    return rename


def refuse_pickle() -> NoReturn:
    """Raise the error for a client that is to be sent to another process."""
    raise TypeError(
        "a client or a queue can't be pickled: it holds connections. Make it in the process that "
        "uses it; in a Spark task, use penstock.spark.enqueue_partition"
    )


def _is_method(function: object) -> bool:
    """Return True for a function of this package that was defined in a class."""
    return (
        isinstance(function, FunctionType)
        and function.__module__.partition(".")[0] == "penstock"
        and "." in function.__qualname__
    )


class ElsewhereCall:
    """An attribute that objects of other libraries have, and that is missing here.

    Reading it raises an AttributeError that names the right call, so `hasattr` is false.

    Args:
        subject: stands for the object in the text, if it has no `__name__`.
        call: the right call. `{0}` stands for the class of the object.
    """

    def __init__(self, subject: str, call: str) -> None:
        self._subject, self._call, self._name = subject, call, ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> object:
        subject = getattr(instance, "__name__", self._subject)
        text = f"{subject} has no {self._name}(): use {subject}.{self._call.format(owner)}"
        # With a name of its own, Python does not guess another attribute.
        raise AttributeError(text, name=self._name)
