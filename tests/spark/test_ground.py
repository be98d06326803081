"""Groups 2 and 5: Spark's own behaviour in the setup of these tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.spark.support import Driver, StandaloneCluster, python_workers, wait_for


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


def test_a_killed_executor_is_replaced(
    cluster: StandaloneCluster, driver: Callable[..., Driver], tmp_path: Path
) -> None:
    """An executor's tasks run again; executors are on two addresses."""
    sign = tmp_path / "sign"
    started = driver(
        "tests.spark.programs:sleep_once",
        master=cluster.url,
        conf={"spark.executor.memory": cluster.memory},
        rows=1000,
        sign=str(sign),
    )
    wait_for(sign.exists)
    [victim] = [
        executor
        for executor in cluster.executors()
        if int(sign.read_text() or 0) in [one.pid for one in executor.children(recursive=True)]
    ]
    hosts = {word for one in cluster.executors() for word in one.cmdline() if "127.0.0." in word}
    cluster.kill_executor(victim)
    assert started.result() == 1000
    assert {"127.0.0.2", "127.0.0.3"} <= hosts


def test_a_driver_can_be_killed(driver: Callable[..., Driver]) -> None:
    """A killed driver leaves no process."""
    started = driver("tests.spark.programs:add_up", rows=1000)
    started.wait_for("started")
    jvm = started.jvm()
    started.kill()
    assert not jvm.is_running()
