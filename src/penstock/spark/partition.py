"""Enqueueing from a function of one's own, in `foreachPartition` or `foreachBatch`."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

from penstock.errors import BadArgument
from penstock.spark.connect import check_reached, parts
from penstock.spark.errors import OptionError
from penstock.spark.options import Write
from penstock.spark.rows import Encoder, columns_of, transposed
from penstock.spark.sink import Sink
from penstock.spark.tasks import task, write_name

__all__ = ["enqueue_partition"]

ROWS = 1000
"""Made into records at a time."""


def enqueue_partition(rows: Iterable[Any], **options: Any) -> dict[str, int]:
    """Enqueue the rows of a partition; a repeated attempt adds nothing twice.

    The connection is that of the process: one, whatever the number of partitions. Rows have ids:
    nothing else tells them apart when they come again, in other partitions perhaps.

    Args:
        rows: Rows or mappings, all with the same names.
        options: the sink's, as in `df.write.options(…)`: `queue`, `urlEnv`, `idColumn`, …

    Returns:
        How many `rows` there were, how many were `added`, and how many were `duplicates`.

    Raises:
        OptionError: an option can't be used; nothing was written.
        BadArgument: a column or a value can't be used; rows before it may have been added.
        Unreachable: no server can be reached, or not every one of several nodes.
        As `Queue.enqueue`.
    """
    given = Write.parse(
        {name: _text(value) for name, value in options.items() if value is not None}
    )
    if given.operation != "enqueue" or given.commit_mode == "staged":
        raise OptionError("commitMode", given.commit_mode, "a function enqueues, and directly")
    where = task()
    source = iter(rows)
    first = next(source, None)
    if first is None:
        return {"rows": 0, "added": 0, "duplicates": 0}
    names = _names(first)
    columns = columns_of([(name, "") for name in names], given)
    if "id" not in columns.places:
        raise OptionError(
            "idColumn",
            None,
            "is required, or a column id: rows without ids are added again by a repeat with "
            "another number of partitions. df.write can stage them",
        )
    write = write_name(where, given.write_id, secrets.token_hex(8))
    encoder = Encoder(columns, given, write, where.partition)
    nodes = tuple(sorted(parts(given)))
    if not given.skip_unreachable:
        check_reached(given)
    sink = Sink(given, nodes)
    for values, count in transposed(_valued(chain([first], source), names), len(names), ROWS):
        sink.put(encoder.encode(values, count))
    done = sink.finish()
    return {"rows": done.rows, "added": done.added, "duplicates": done.duplicates}


def _text(value: Any) -> str:
    """An option as Spark would hand it on."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _names(row: Any) -> tuple[str, ...]:
    if isinstance(row, Mapping):
        return tuple(row)
    names = getattr(row, "__fields__", None)
    if names is None:
        raise TypeError(f"rows must be Rows or mappings, not {type(row).__name__}")
    return tuple(names)


def _valued(rows: Iterable[Any], names: tuple[str, ...]) -> Iterator[list[Any]]:
    """The values of each row, in the order of the first one's names.

    Raises:
        BadArgument: a row has others.
    """
    for at, row in enumerate(rows):
        found = _names(row)
        if found != names and set(found) != set(names):
            raise BadArgument(
                "columns",
                found,
                f"row {at} of its partition has other columns than the first: {names}",
            )
        yield [row[name] for name in names]
