"""Enqueueing from a user's function, in `foreachPartition` or `foreachBatch`."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

from penstock.errors import BadArgument
from penstock.spark.errors import OptionError
from penstock.spark.options import Write
from penstock.spark.rows import columns_of
from penstock.spark.shards import open_shards
from penstock.spark.sink import Sink
from penstock.spark.tasks import encoded, task

__all__ = ["enqueue_partition"]


def enqueue_partition(rows: Iterable[Any], **options: Any) -> dict[str, int]:
    """Enqueue the rows of a partition; a repeated attempt adds nothing twice.

    All partitions in a process share its connection. Rows must have ids: only they identify a row
    that comes again, perhaps in another partition.

    Args:
        rows: Rows or mappings, all with the same names.
        options: the sink's, as in `df.write.options(…)`: `queue`, `urlEnv`, `idColumn`, …

    Returns:
        How many `rows` there were, how many were `added`, and how many were `duplicates`.

    Raises:
        OptionError: an option can't be used; nothing was written.
        BadArgument: a column or a value can't be used; rows before it may have been added.
        Unreachable: no server can be reached, or not every one of several nodes.
        QueueMissing: there is no such queue, and `requireQueue` is set.
        As `Queue.enqueue`.
    """
    given = Write.parse(options)
    if given.operation != "enqueue":
        raise OptionError("operation", given.operation, "must be enqueue in enqueue_partition")
    if given.commit_mode == "staged":
        raise OptionError("commitMode", "staged", "must be direct in enqueue_partition")
    source = iter(rows)
    first = next(source, None)
    if first is None:
        return {"rows": 0, "added": 0, "duplicates": 0}
    names = _names(first)
    fields = [(name, "") for name in names]
    if "id" not in columns_of(fields, given).places:
        raise OptionError(
            "idColumn",
            None,
            "is required, or a column id: a repeat with another number of partitions would add "
            "rows without ids again. df.write can stage them",
        )
    found = open_shards(given)
    found.check(given, whole=not given.skip_unreachable)
    sink = Sink(given, found.nodes, found)
    values = _valued(chain([first], source), names)
    sink.put(encoded(values, fields, given, where=task(), own=secrets.token_hex(8)))
    return sink.finish()


def _names(row: Any) -> tuple[str, ...]:
    if isinstance(row, Mapping):
        return tuple(row)
    names = getattr(row, "__fields__", None)
    if names is None:
        raise TypeError(f"rows must be Rows or mappings, not {type(row).__name__}")
    return tuple(names)


def _valued(rows: Iterable[Any], names: tuple[str, ...]) -> Iterator[list[Any]]:
    for at, row in enumerate(rows):
        found = _names(row)
        if found != names and set(found) != set(names):
            raise BadArgument(
                "columns",
                found,
                f"row {at} of its partition has other columns than the first: {names}",
            )
        yield [row[name] for name in names]
