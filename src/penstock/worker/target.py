"""Load the worker that a user names as `module:attribute`."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from typing import Any, TypeAlias

from penstock.core.values.caught import summary_of
from penstock.core.values.near import did_you_mean
from penstock.worker import AsyncWorker, Worker
from penstock.worker.functions import is_target

__all__ = ["AnyWorker", "NoWorker", "load"]

AnyWorker: TypeAlias = Worker | AsyncWorker
WORKER_TYPES = (Worker, AsyncWorker)
MOST_TRACE_LINES = 10
OWN_FILES = (__file__, importlib.__file__, "<frozen importlib")


class NoWorker(Exception):
    """There is no worker with that name.

    Args:
        reason: one line.
        trace: the last lines of the traceback, if the app's own code has raised.
    """

    def __init__(self, reason: str, trace: Iterable[str] = ()) -> None:
        super().__init__(reason)
        self.trace = list(trace)

    @classmethod
    def from_error(cls, doing: str, error: BaseException) -> NoWorker:
        """Return the error for an exception that the app's own code has raised."""
        trace = traceback.extract_tb(error.__traceback__)
        frames = [frame for frame in trace if not frame.filename.startswith(OWN_FILES)]
        lines = "".join(
            [*traceback.format_list(frames), *traceback.format_exception_only(type(error), error)]
        )
        # Without a frame or a line of the app, a traceback says no more than the reason.
        theirs = frames or isinstance(error, SyntaxError)
        summary = " ".join(summary_of(error).split())
        return cls(f"{doing}: {summary}", lines.splitlines()[-MOST_TRACE_LINES:] if theirs else ())


def load(target: str) -> AnyWorker:
    """Return the worker. Modules of the current directory come first.

    Args:
        target: `module:attribute`, both perhaps with dots. It is a worker, or returns one.

    Raises:
        NoWorker: there is none.
    """
    module, _, path = target.partition(":")
    if module.endswith(".py"):
        dotted = module[:-3].removeprefix("./").replace("/", ".")
        raise NoWorker(f"{target!r} names a file, not a module: write {dotted}:{path or 'worker'}")
    if not is_target(target):
        raise NoWorker(f"{target!r} is not of the form module:attribute, such as app:worker")
    if sys.path[:1] != [os.getcwd()]:  # noqa: PTH109 - sys.path holds strings
        sys.path.insert(0, os.getcwd())  # noqa: PTH109 - same
    with _failing(f"{module} can't be imported"):
        imported = importlib.import_module(module)
    try:
        value = attrgetter(path)(imported)
    except AttributeError as error:
        names = [name for name, one in vars(imported).items() if isinstance(one, WORKER_TYPES)]
        raise NoWorker(f"{module}:{path}: {error}{did_you_mean(path, names)}") from error
    if isinstance(value, WORKER_TYPES):
        return value
    if not callable(value):
        raise NoWorker(f"{target} is {_kind(value)}, not a worker or a function that returns one")
    with _failing(f"{target}() failed"):
        worker = value()
    if inspect.iscoroutine(worker):
        worker.close()  # otherwise Python warns that it was never awaited
    if not isinstance(worker, WORKER_TYPES):
        raise NoWorker(f"{target}() returned {_kind(worker)}, not a worker")
    return worker


@contextmanager
def _failing(doing: str) -> Iterator[None]:
    try:
        yield
    except (Exception, SystemExit) as error:
        raise NoWorker.from_error(doing, error) from error


def _kind(value: Any) -> str:
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
