"""Groups 2 and 5: Spark's own behaviour in the setup of these tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.spark.support import python_workers


def passed(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield the batches."""
    yield from batches


def fails_once(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield the batches at the second attempt."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    if context.attemptNumber() == 0:
        raise RuntimeError("the first attempt")
    yield from batches


def test_functions_of_these_tests_run_in_tasks(spark: Any) -> None:
    """Executors import this module and penstock by name."""
    assert spark.range(0, 1000, 1, 2).mapInArrow(passed, "id long").count() == 1000
    assert python_workers()


def test_a_task_has_more_than_one_attempt(spark: Any) -> None:
    """`local[2,4]`: a failed task is run again."""
    assert spark.range(0, 100, 1, 2).mapInArrow(fails_once, "id long").count() == 100
