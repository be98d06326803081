"""Rows of a task as records: Arrow batches give the same ones as rows."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest

from penstock import Dedup
from penstock.core.enqueuing.prepared import prepared
from penstock.spark.encoding import Encoded, Encoder, Task
from penstock.spark.errors import RowError
from penstock.spark.options import Write

COUNT = 2500
STABLE_ID = re.compile(rb";i=[^\n;]*")
FIRST = datetime(2040, 1, 1, tzinfo=timezone.utc)
TIMES = [FIRST + timedelta(microseconds=7 * i) for i in range(COUNT)]
COLUMNS: dict[str, tuple[str, list[Any]]] = {
    "id": ("string", [("é ä", "a-b_c.d~e", "x;y", "plain")[i % 4] + str(i) for i in range(COUNT)]),
    "payload": ("string", [f'["body {i % 7} é"]' for i in range(COUNT)]),
    "delay": ("long", [(None, 5, 60)[i % 3] for i in range(COUNT)]),
    "ready_at": ("timestamp", [None if i % 5 == 0 else time for i, time in enumerate(TIMES)]),
    "ttl": ("double", [1e9 + 0.5 + i % 3 for i in range(COUNT)]),
    "key": ("string", [None if i % 4 == 0 else f"é {i % 900}" for i in range(COUNT)]),
    "priority": ("long", [(None, 0, 9)[i % 3] for i in range(COUNT)]),
    "result_ttl": ("double", [(None, 0.0, 60.5, 7.0)[i % 4] for i in range(COUNT)]),
    "q": ("string", [f"q{i % 3}" for i in range(COUNT)]),
}  # fmt: skip
KINDS = {
    "string": pa.string(), "long": pa.int64(), "double": pa.float64(),
    "timestamp": pa.timestamp("us", "UTC"),
}  # fmt: skip


def batch(names: tuple[str, ...]) -> pa.RecordBatch:
    """Return the rows of these columns as one Arrow batch."""
    arrays = [pa.array(COLUMNS[name][1], KINDS[COLUMNS[name][0]]) for name in names]
    return pa.RecordBatch.from_arrays(arrays, names)


def joined(source: Any, names: tuple[str, ...], **options: str) -> Encoded:
    """Return the records of all rows."""
    given = Write.parse({"queue": "q", "url": "redis://h", **options})
    fields = [(name, COLUMNS[name][0]) for name in names]
    parts = list(Encoder(fields, given, Task(3), "w").records(source))
    return Encoded(*([one for part in parts for one in part[i]] for i in range(4)))


@pytest.mark.parametrize(
    "names",
    [
        ("id", "payload"), ("payload",), ("id", "payload", "delay"), ("payload", "ready_at"),
        ("id", "ready_at", "payload", "ttl"), ("payload", "delay", "ttl"), ("key", "payload"),
        ("priority", "id", "payload", "key", "result_ttl"),
    ],
    ids=",".join,
)  # fmt: skip
@pytest.mark.parametrize("body", ["raw", "json"])
@pytest.mark.parametrize("queue", [False, True])
def test_batches_and_rows(names: tuple[str, ...], body: str, queue: bool) -> None:
    """Equal rows without ids have ids of their own, wherever a batch is cut."""
    options = {"payloadFormat": body}
    if queue:
        names, options["queueColumn"] = (*names, "q"), "q"
    rows = zip(*(COLUMNS[name][1] for name in names), strict=True)
    found = joined(iter([batch(names)]), names, **options)
    assert found == joined(rows, names, **options)
    assert len(set(found.records)) == COUNT
    if "key" not in names:
        assert len(set(found.keys)) == COUNT
    assert found.queues == (COLUMNS["q"][1] if queue else ["q"] * COUNT)


def test_a_time_is_rounded_up_to_a_millisecond() -> None:
    """A row without a time has no delay."""
    found = joined(iter([batch(("payload", "ready_at"))]), ("payload", "ready_at"))
    start = int(FIRST.timestamp() * 1000)
    expected = [0, f"@{start + 1}", f"@{start + 1}", f"@{start + 2}"]
    assert [found.delays[i] for i in (0, 1, 142, 143)] == expected


def test_a_record_is_that_of_an_enqueue() -> None:
    """Key, priority and result_ttl are as `enqueue` writes them. The key chooses the partition."""
    names = ("id", "payload", "key", "priority", "result_ttl")
    rows = list(zip(*(COLUMNS[name][1][:12] for name in names), strict=True))
    found = joined(rows, names)
    for record, place, (name, body, key, priority, result_ttl) in zip(
        found.records, found.keys, rows, strict=True
    ):
        made = prepared(
            dedup=Dedup(name, window=86_400), key=key, priority=priority, result_ttl=result_ttl
        ).record(body.encode())
        assert STABLE_ID.sub(b"", record) == STABLE_ID.sub(b"", made)
        assert place == (key or name)


@pytest.mark.parametrize("year", [1969, 2300])
def test_a_time_that_no_job_can_have(year: int) -> None:
    """The error names the row of the partition."""
    times = [*TIMES[1:2200], datetime(year, 1, 1, tzinfo=timezone.utc), TIMES[0]]
    part = pa.RecordBatch.from_arrays(
        [pa.array(["x"] * len(times)), pa.array(times, KINDS["timestamp"])], ["payload", "ready_at"]
    )
    with pytest.raises(RowError, match=r"'ready_at', row 2199 of its partition: must be seconds"):
        joined(iter([part]), ("payload", "ready_at"))


@pytest.mark.parametrize(
    "name, fine, wrong",
    [
        ("ttl", 1, True), ("ttl", 1, [1]), ("max_attempts", 1, 1.0), ("delay", 1, True),
        ("headers", {"a": "b"}, {"a": ["b"]}), ("key", 1, True), ("key", "a", ["a"]),
        ("key", "a", "x" * 1025), ("priority", 1, 10), ("result_ttl", 1, True),
    ],
)  # fmt: skip
def test_a_value_of_another_type(name: str, fine: object, wrong: object) -> None:
    """Rows of Python may have values of any type; one that equals an earlier one is checked too."""
    given = Write.parse({"queue": "q", "url": "redis://h"})
    fields = [("id", ""), ("payload", ""), (name, "")]
    encoder = Encoder(fields, given, Task(3), "w")
    with pytest.raises(RowError, match=f"column '{name}', row 1 of its partition: .*must be"):
        list(encoder.records([["a", "x", fine], ["b", "x", wrong]]))
