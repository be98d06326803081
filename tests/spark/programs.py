"""What drivers of their own run; see `support.Driver`."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.spark.support import say

__all__ = ["add_up", "drain_slowly", "sleep_once"]


def add_up(spark: Any, rows: int) -> int:
    """Count rows in Python, on two partitions."""

    def passed(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches

    say("started")
    return int(spark.range(0, rows, 1, 2).mapInArrow(passed, "id long").count())


def sleep_once(spark: Any, rows: int, sign: str) -> int:
    """The same; the first attempt of partition 0 leaves a sign and never ends."""

    def passed(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        first = context.partitionId() == 0 and context.attemptNumber() == 0
        if first:
            Path(sign).write_text(str(os.getpid()))
            time.sleep(3600)
        yield from batches

    return int(spark.range(0, rows, 1, 2).mapInArrow(passed, "id long").count())


def drain_slowly(spark: Any, url: str) -> int:
    """Drain the queue `mail` again and again, until no job is left."""
    from penstock import Penstock
    from penstock.spark import drain
    from tests.spark.test_drain import leave_a_mark

    def mark(job: Any) -> None:
        leave_a_mark(job)
        time.sleep(0.01)

    done = 0
    with Penstock(url) as client:
        while True:
            report = drain(spark, queue="mail", handler=mark, url=url, parallelism=2, batch_size=32)
            done += report.done
            stats = client.queue("mail").stats()
            if stats.ready + stats.active + stats.scheduled == 0:
                return done
            time.sleep(0.2)
