"""Rows for queues, and faults while they are written; functions for tasks and drivers."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from penstock import Penstock
from tests.spark.support import say, wait_for

__all__ = [
    "MODES",
    "breaking",
    "consumed",
    "expected",
    "files",
    "forget_last",
    "hung",
    "pushing",
    "rows",
    "speculated",
    "streamed",
    "written",
]  # fmt: skip

PARTS, EACH, BATCH = 3, 1200, 200
MODES = ("direct", "staged")
PAD = 600
"""Bytes: the first half has to exceed the JVM's buffers."""


def rows(spark: Any, parts: int = PARTS, each: int = EACH) -> Any:
    """Return rows with id and payload; every tenth payload is repeated in its partition."""
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(BATCH))
    numbers = spark.range(0, parts * each, 1, parts)
    text = f"CONCAT('row ', id - IF(id % 10 = 1, 1, 0), REPEAT(' ', {PAD}))"
    payload = f"CAST({text} AS BINARY) AS payload"
    return numbers.selectExpr("CAST(id AS STRING) AS id", payload)


def expected(parts: int = PARTS, each: int = EACH) -> Counter[bytes]:
    """Return the payloads of `rows`."""
    return Counter(b"row %d" % (n - (n % 10 == 1)) + b" " * PAD for n in range(parts * each))


def breaking(how: str, sign: str) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return a function that causes a fault once in the middle of partition 1; a repeat has another
    order.

    Args:
        how: `raise`: the task does. `kill`: Python processes beside it, the writer's among them.
            `hang`: it waits until there is a file `<sign>-over`.
        sign: a file that says that it has happened.
    """

    def passed(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        first = context.attemptNumber() == 0
        if not first and context.partitionId() == 1:
            wait_for(Path(sign).exists)  # a speculative attempt may come too early
        for number, batch in enumerate(batches):
            if first and context.partitionId() == 1 and number == EACH // BATCH // 2:
                go_wrong()
            yield batch if first else batch.take(list(reversed(range(batch.num_rows))))

    def go_wrong() -> None:
        try:
            os.close(os.open(sign, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        time.sleep(1)  # earlier rows are with the writer by then
        if how == "raise":
            raise RuntimeError("as planned")
        if how == "kill":
            kill_others()
        if how == "hang":
            wait_for(Path(f"{sign}-over").exists, 3600)

    return passed


def kill_others() -> None:
    """Kill the other Python processes of tasks."""
    parent = psutil.Process(os.getpid()).parent()
    assert parent is not None
    for other in parent.children():
        if other.pid != os.getpid():
            os.kill(other.pid, signal.SIGKILL)


@contextmanager
def consumed(url: str, queue: str = "mail") -> Iterator[Counter[bytes]]:
    """Work and acknowledge until the block has ended and no job is left."""
    seen: Counter[bytes] = Counter()
    over = threading.Event()

    def work() -> None:
        with Penstock(url) as own:
            theirs = own.queue(queue)
            while True:
                last = over.is_set()
                jobs = theirs.reserve(100, block=0.1)
                seen.update(job.raw for job in jobs)
                theirs.ack(jobs)
                if last and not jobs:
                    return

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    try:
        yield seen
    finally:
        over.set()
        worker.join(60)


def written(spark: Any, url: str, sign: str, how: str, **options: str) -> int:
    """Write `rows` with a fault, and return the number of rows."""
    fields = "id string, payload binary" if "idColumn" in options else "payload binary"
    names = [part.split(" ")[0] for part in fields.split(", ")]
    frame = rows(spark).select(*names).mapInArrow(breaking(how, sign), fields)
    sink = frame.write.format("penstock").mode("append")
    sink.options(**{"queue": "mail", "url": url, "batchSize": "100", **options}).save()
    return PARTS * EACH


def speculated(spark: Any, url: str, sign: str) -> None:
    """Write `rows` in both modes, each with an attempt that ends after `save()`."""
    executors = spark.sparkContext._jsc.sc().statusStore().executorList

    def is_idle() -> bool:
        found = executors(True)
        return not sum(found.apply(at).activeTasks() for at in range(found.size()))

    for mode in MODES:
        written(spark, url, f"{sign}-{mode}", "hang", queue=mode, commitMode=mode)
        say(mode)
        wait_for(is_idle)


def hung(spark: Any, url: str, sign: str) -> None:
    """Write `rows` in both modes; an attempt of each hangs until it is killed."""
    for mode in MODES:
        written(spark, url, f"{sign}-{mode}", "hang", queue=mode, commitMode=mode)


def pushing(url: str) -> Callable[[Iterator[Any]], None]:
    """Return a function that uses the queue's client directly, without penstock.spark."""

    def push(found: Iterator[Any]) -> None:
        with Penstock(url) as client:
            queue, chunk = client.queue("mail"), []
            for row in found:
                chunk.append(bytes(row.payload))
                if len(chunk) == 100:
                    queue.enqueue_many(chunk)
                    chunk = []
            queue.enqueue_many(chunk)

    return push


def streamed(spark: Any, url: str, source: str, checkpoint: str, **options: str) -> int:
    """Stream the lines of all files, one file per batch, and return the number of batches."""
    lines = spark.readStream.format("text").option("maxFilesPerTrigger", "1").load(source)
    sink = lines.withColumnRenamed("value", "payload").writeStream.format("penstock")
    sink = sink.options(queue="mail", url=url, checkpointLocation=checkpoint, **options)
    query = sink.trigger(availableNow=True).start()
    query.awaitTermination()
    return len(query.recentProgress)


def files(
    directory: Path, count: int, lines: int, *, first: int = 0, equal: bool = True
) -> Counter[bytes]:
    """Write input files for `streamed`, and return their lines.

    Args:
        directory: where.
        count: of files.
        lines: in each.
        first: number of the first file.
        equal: whether each line stands twice.
    """
    directory.mkdir(exist_ok=True)
    found: Counter[bytes] = Counter()
    for number in range(first, first + count):
        texts = [f"line {number}.{line // (1 + equal)}" for line in range(lines)]
        found.update(text.encode() for text in texts)
        (directory / f"{number}.txt").write_text("\n".join(texts) + "\n")
    return found


def forget_last(checkpoint: Path) -> None:
    """Remove a streaming query's last commit, so that its last batch is repeated."""
    done = sorted((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    done[-1].unlink()
    (done[-1].parent / f".{done[-1].name}.crc").unlink(missing_ok=True)
