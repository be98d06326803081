"""Shared parts of the Disque tests: the check of their tables, and small helpers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any, TypeAlias

import pytest

from penstock import BadArgument, JobView, Queue
from tests.support.keyspace import Raw, dump

__all__ = [
    "SEVERAL_NODES",
    "Rows",
    "bodies",
    "check_rows",
    "one_in_each_state",
    "refused",
    "shown",
]

Rows: TypeAlias = Mapping[str, tuple[str, ...] | str]
"""Row of Disque's documentation or tests -> names of its tests, or the reason why it has none."""

SEVERAL_NODES = "several nodes: see tests/nodes/test_disque_nodes.py"
CHECK = "test_every_row_is_held_or_has_a_reason"


# -- the tables --------------------------------------------------------------------------------


def check_rows(rows: Rows, *modules: ModuleType) -> None:
    """Each row names tests that hold it, or a reason; each test names the rows that it holds.

    Args:
        rows: the table.
        modules: where the tests are.

    Raises:
        AssertionError: a row without tests and reason, a test that is not there, or a test whose
            docstring does not begin with the row.
    """
    functions = [function for module in modules for function in tests_of(module)]
    said = {function.__name__: heads_of(function) for function in functions}
    assert len(said) == len(functions), "two tests of one name"
    for row, holders in rows.items():
        if isinstance(holders, str):
            assert len(holders) > 10, f"{row}: {holders!r} is no reason"
            continue
        assert holders, f"{row}: neither a test nor a reason"
        for name in holders:
            assert name in said, f"{row}: there is no {name}"
            assert row in said[name], f"{row}: {name} says that it holds {said[name]}"
    for name, heads in said.items():
        for head in heads:
            assert name in rows.get(head, ()), f"{name}: the row {head!r} does not name it"


def tests_of(module: ModuleType) -> Iterator[FunctionType]:
    """Return the test functions of a module, except the one that checks the tables."""
    for name, value in vars(module).items():
        if name.startswith("test_") and name != CHECK and isinstance(value, FunctionType):
            yield value


def heads_of(function: FunctionType) -> list[str]:
    """Return the rows at the start of a docstring, `ROW; ROW: behaviour`."""
    head, colon, _ = " ".join((function.__doc__ or "").split()).partition(": ")
    assert colon, f"{function.__name__} names no row"
    return head.split("; ")


# -- fixtures ----------------------------------------------------------------------------------


# -- helpers -----------------------------------------------------------------------------------


def bodies(jobs: Any) -> list[Any]:
    """Return the bodies of the jobs."""
    return [job.body for job in jobs]


def shown(queue: Queue, job: Any) -> JobView:
    """Return the view of an existing job."""
    view = queue.show(job)
    assert view is not None
    return view


def refused(raw: Raw, call: Callable[[], Any], argument: str) -> None:
    """Check that the call raises, names the argument, and changes no key."""
    before = dump(raw)
    with pytest.raises(BadArgument) as caught:
        call()
    assert caught.value.argument == argument
    assert dump(raw) == before


def one_in_each_state(queue: Queue) -> dict[str, str]:
    """Return the ids of a job in each state."""
    queue.enqueue_many(["active", "dead"])
    active, dead = queue.reserve(2, block=0)
    dead.bury("why")
    scheduled = queue.enqueue("scheduled", delay=600)
    ready = queue.enqueue("ready")
    return {"active": active.id, "dead": dead.id, "scheduled": scheduled.id, "ready": ready.id}
