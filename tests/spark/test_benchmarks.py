"""The benchmark section `spark` with a few rows: every row of its table, without speeds."""

from __future__ import annotations

import dataclasses

import pytest
from redis import Redis

from benchmarks import spark
from benchmarks.bed import Refused, opened
from benchmarks.plan import QUICK
from tests.spark.support import environment

ROWS, ROUNDS = 200, 1
NAMES = [
    spark.XADD,
    "enqueue_many",
    "enqueue_many, ids",
    "Arrow sink, ids",
    "Arrow sink, content ids",
    "Arrow sink, staged",
    *(name for name in spark.SHAPES for _ in range(2)),  # one for each of two budgets
    spark.PLAN,
    spark.DRIVER,
    "batch source",
    "batch source, ids",
    "stream source",
    "stream source, ids",
    "stream source, 3 nodes",
    "drain",
    "drain, ids",
    "drain, ack=output",
    "drain, ack=output, ids",
    spark.EMPTY,
    "stream source, start to end",
    "stream source, start to end, ids",
]
PLAN = dataclasses.replace(QUICK, rounds=ROUNDS, memory=ROWS)


def test_every_row_is_measured(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sink, sources and drain, and plain Python, are measured in each round and leave nothing."""
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    with opened(redis_url, sure=True) as bed:
        table = spark.spark(bed, PLAN)
    assert sorted(str(row.cells[0]) for row in table.rows) == sorted(NAMES)
    rates = [row.cells[2] for row in table.rows if row.cells[0] not in spark.MOST]
    assert all(isinstance(rate, float) and rate > 0 for rate in rates)
    assert all(budget.value > 0 for budget in table.budgets)
    assert {budget.least for budget in table.budgets} == {True, False}
    assert all(len(rates) == ROUNDS for rates in table.rounds.values())
    assert table.note.startswith(f"{ROWS} rows of 100 bytes")
    with Redis.from_url(redis_url) as raw:
        assert [key for key in raw.scan_iter() if key != b"penstock:node"] == []


def test_it_is_refused_where_there_is_no_java(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without Java the section is refused before it runs; the error names it."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
    assert not spark.is_there()
    with opened(redis_url, sure=True) as bed, pytest.raises(Refused, match="needs Java"):
        spark.spark(bed, PLAN)
