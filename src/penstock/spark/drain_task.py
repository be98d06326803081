"""The tasks of `drain`: each runs a worker in an executor until the queue is empty."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from threading import Event

import pyarrow as pa

from penstock import Penstock
from penstock.client._sync.sharded.parts import operations_of
from penstock.client._sync.transport.connection import monotonic
from penstock.core.logs import RateLimit, get_logger
from penstock.core.options import MAX_DURATION_MS
from penstock.core.outcomes import Outcome
from penstock.spark.drain_output import DrainOutput, DrainResults
from penstock.spark.errors import Unreachable
from penstock.spark.job_ref import JobRef
from penstock.spark.options import Connection
from penstock.spark.shards import new_client, open_in_task
from penstock.worker._sync.worker import Worker
from penstock.worker.handlers import Handlers

__all__ = ["COUNTS", "FIGURES", "AckTask", "DrainTask"]

logger = get_logger("penstock")

COUNTS = ("taken", "done", "failed", "dead", "released", "lost", "cut")
"""Figures of a task; `cut` is 1 if the task ended before the queue was empty."""
FIGURES = pa.schema([(f"_{name}", pa.int64()) for name in COUNTS])
FIGURE_OF = {
    "done": "done",
    "settled": "done",
    "retried": "failed",
    "dead": "dead",
    "rejected": "dead",
    "failed": "dead",  # delivered at most once
    "snoozed": "released",
    "cancelled": "released",
    "lost": "lost",
}
"""Figures, by outcomes of a worker. Jobs that it hands back were not begun, and don't count."""
FIRST = 16
"""Most jobs that a task holds at first. If handlers are slow, other tasks can take the rest."""
TRIAL, QUICK = 1000, 2.0
"""A task that has done this number of jobs within these seconds holds more jobs from then on."""
LOOK = 0.1
"""Seconds between two looks at a worker and its results."""
SILENCE = 10.0
"""Seconds for which a worker may be unhealthy before its task fails."""
SAMPLE = 10.0
"""Fewest seconds between two log records of one kind about jobs."""


@dataclass
class DrainTask:
    """Runs a worker until the queue is empty. Spark calls it in each task.

    Args:
        connection: options of the connection.
        expected: ids of the nodes that the driver reaches.
        handlers: of the jobs.
        batch_size: most jobs that it holds.
        shares: most jobs of each Spark partition; empty = no limit.
        output: settings of the output; None = results are dropped.
    """

    connection: Connection
    expected: tuple[str, ...]
    handlers: Handlers
    batch_size: int
    shares: tuple[int, ...] = ()
    output: DrainOutput | None = None

    def run(self, batches: Iterable[pa.RecordBatch]) -> Generator[pa.RecordBatch, None, None]:
        """Yield the results, if they are wanted, and the figures; the input numbers the task."""
        numbers = [batch.column(0)[0].as_py() for batch in batches if batch.num_rows]
        open_in_task(self.connection, self.expected)
        is_sample = samples()
        logger.addFilter(is_sample)
        try:
            yield from self._drained(self.shares[numbers[0]] if self.shares else math.inf)
        finally:
            logger.removeFilter(is_sample)

    def _drained(self, share: float) -> Iterator[pa.RecordBatch]:
        """Yield the results and the figures of up to `share` jobs."""
        output, tally = self.output, Counter[str](cut=1)
        results = None if output is None else DrainResults(output, self.handlers)
        schema = FIGURES if results is None else pa.schema([*results.schema, *FIGURES])
        began = monotonic()
        ends = began + (math.inf if output is None else output.seconds)
        size, most = min(FIRST, self.batch_size), min(TRIAL, share)
        with new_client(self.connection, [] if results is None else [results]) as made:
            jobs = made.open(self.connection.queue)
            while tally["cut"] and most > 0 and monotonic() < ends:
                worker = self._worker(made, size, most)
                with closing(watched(worker, ends)) as looks:
                    for _ in looks:
                        found = None if results is None else results.batch(jobs)
                        if found is not None:
                            none = [pa.nulls(found.num_rows, one.type) for one in FIGURES]
                            arrays = [*found.columns, *none]
                            yield pa.RecordBatch.from_arrays(arrays, schema=schema)
                status = worker.status()
                tally.update(figures_of(status.stats.counts))
                tally["cut"] = int(worker.stopping or status.taken >= most)
                most = share - tally["taken"]
                if monotonic() - began < QUICK:
                    size = self.batch_size
        if results is not None:
            tally["lost"] += results.lost
            tally["done"] -= results.kept  # the driver counts them when they are acknowledged
        yield figures(tally, schema)

    def _worker(self, made: Penstock, size: int, most: float) -> Worker:
        return Worker(
            made,
            self.connection.queue,
            self.handlers,
            concurrency=1,
            prefetch=size - 1,
            grace=MAX_DURATION_MS // 1000,
            burst=True,
            max_jobs=None if most == math.inf else int(most),
        )


def figures_of(counts: Mapping[str, int]) -> Counter[str]:
    """Return the figures for the outcomes that a worker has counted."""
    found = Counter[str]()
    for outcome, figure in FIGURE_OF.items():
        found.update({figure: counts.get(outcome, 0), "taken": counts.get(outcome, 0)})
    return found


def watched(worker: Worker, ends: float) -> Generator[None, None, None]:
    """Run a worker; yield again and again until it is over, and once then.

    Raises:
        Unreachable: the server does not answer any more.
    """
    over = Event()  # waits for it can be interrupted; those for threads can't, before Python 3.13
    worker.on_stop(over.set)
    worker.start()
    healthy_at = monotonic()
    try:
        while not over.wait(LOOK):
            yield
            now = monotonic()
            if now > ends and not worker.stopping:
                worker.stop()
            if worker.healthy():
                healthy_at = now
            elif now > healthy_at + SILENCE:
                raise Unreachable(f"{worker!r}: the server does not answer")
        worker.join()
        yield
    except BaseException:  # also if Spark wants no more rows, or at SIGINT
        worker.stop(0)
        worker.join()
        raise


def samples() -> Callable[[logging.LogRecord], bool]:
    """Return a filter for log records about jobs: few of each kind pass."""
    limit = RateLimit(SAMPLE, monotonic)
    return lambda record: not hasattr(record, "job_id") or limit.allows(record.msg)


def figures(tally: Counter[str], schema: pa.Schema = FIGURES) -> pa.RecordBatch:
    """Return a row of figures; other columns of the schema are null."""
    return pa.RecordBatch.from_pylist([{f"_{name}": tally[name] for name in COUNTS}], schema)


@dataclass
class AckTask:
    """Acknowledges jobs whose results are safe. Spark calls it for each of their partitions."""

    connection: Connection
    expected: tuple[str, ...]

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Acknowledge rows of id, receipt and window; return the figures.

        A row without a receipt is of a job that was delivered at most once.
        """
        open_in_task(self.connection, self.expected)
        tally = Counter[str]()
        with new_client(self.connection) as made:
            queue = made.open(self.connection.queue)
            crcs = frozenset(ops.crc for ops in operations_of(queue))
            for batch in batches:
                rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
                for (receipt, window), alike in groupby(rows, itemgetter(1, 2)):
                    held = [JobRef(queue.name, row[0], receipt or "", crcs) for row in alike]
                    tally["done"] += len(held)
                    if receipt is not None:
                        seconds = None if window is None else window / 1000
                        outcomes = queue.ack(held, dedup_window=seconds)
                        lost = sum(one not in (Outcome.DONE, Outcome.HINTED) for one in outcomes)
                        tally.update(done=-lost, lost=lost)
        yield figures(tally)
