"""The tasks of `drain`: each runs a worker in an executor until the queue is empty."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from threading import Event

import pyarrow as pa

from penstock import Penstock
from penstock.client.clock import monotonic
from penstock.core.jobs.logs import RateLimit, get_logger
from penstock.core.values.checks import MAX_DURATION_MS
from penstock.spark.drain_results import KEYS_SCHEMA, DrainOutput, DrainResults
from penstock.spark.encoding import task
from penstock.spark.errors import Unreachable
from penstock.spark.options import Connection
from penstock.spark.shards import new_client, open_in_task
from penstock.worker._sync.worker import Worker
from penstock.worker.handlers import Handlers

__all__ = ["FIGURES_SCHEMA", "FIGURE_NAMES", "DrainTask", "figures"]

logger = get_logger("penstock")

FIGURE_NAMES = ("taken", "done", "failed", "dead", "released", "lost", "cut")
"""Figures of a task; `cut` is 1 if the task has left jobs that can be taken."""
OUTCOMES_OF_FIGURE = {
    "done": ("done", "settled"),
    "failed": ("retried",),
    "dead": ("dead", "rejected", "failed"),  # failed: delivered at most once
    "released": ("snoozed", "suspended", "cancelled", "unknown"),
    "lost": ("lost",),
}
"""Outcomes of a worker, by figure. Jobs that it hands back were not begun, and don't count."""
FIRST_HELD_JOBS = 16
"""Most jobs that a task holds at first. If handlers are slow, other tasks can take the rest."""
TRIAL_JOBS, QUICK_TRIAL_SECONDS = 100, 0.4
"""A task that does this number of jobs within these seconds holds more jobs from then on."""
WORKER_LOOK_INTERVAL = 0.1
"""Seconds between two looks at a worker and its results."""
MAX_UNHEALTHY_SECONDS = 10.0
"""Seconds for which a worker may be unhealthy before its task fails."""
JOB_LOG_PAUSE = 10.0
"""Fewest seconds between two log records of one kind about jobs."""
FIGURES_SCHEMA = pa.schema([KEYS_SCHEMA.field("receipts")])


@dataclass
class DrainTask:
    """Runs a worker until the queue is empty. Spark calls it in each task.

    Args:
        expected: ids of the nodes that the driver reaches.
        shares: most jobs of each Spark partition; empty = no limit.
        output: None = results are dropped.
    """

    connection: Connection
    expected: tuple[str, ...]
    handlers: Handlers
    batch_size: int
    shares: tuple[int, ...] = ()
    output: DrainOutput | None = None

    def run(self, batches: Iterable[pa.RecordBatch]) -> Generator[pa.RecordBatch, None, None]:
        """Yield the results, if they are wanted, and the figures."""
        open_in_task(self.connection, self.expected)
        is_sample = sample_filter()
        logger.addFilter(is_sample)
        try:
            yield from self._run_workers(self.shares[task().partition] if self.shares else math.inf)
        finally:
            logger.removeFilter(is_sample)
        list(batches)  # Spark uses the process again only if it has read its input

    def _run_workers(self, share: float) -> Iterator[pa.RecordBatch]:
        """Yield the results and the figures of up to `share` jobs."""
        output, tally = self.output, Counter[str](cut=1)
        results = None if output is None else DrainResults(output)
        began = monotonic()
        ends = began + (math.inf if output is None else output.seconds)
        size, left = min(FIRST_HELD_JOBS, self.batch_size), min(TRIAL_JOBS, share)
        with new_client(self.connection) as client:
            jobs = client.open(self.connection.queue)
            while tally["cut"] and left > 0 and (monotonic() < ends or not tally["taken"]):
                worker = self._worker(client, size, left)
                if output is not None and results is not None:
                    worker.take, worker.lease_ms = results.take, output.hold_ms
                with closing(watch(worker, ends)) as looks:
                    for _ in looks:
                        rows = None if results is None else results.batch(jobs)
                        if rows is not None:
                            yield rows
                status = worker.status()
                tally.update(figures_of(status.stats.counts))
                tally["cut"] = int(worker.stopping or status.taken >= left)
                left = share - tally["taken"]
                if monotonic() - began < QUICK_TRIAL_SECONDS:
                    size = self.batch_size
        if results is not None:
            tally["lost"] += results.lost
            tally["done"] -= results.kept  # the driver counts them when they are acknowledged
        yield figures(tally, FIGURES_SCHEMA if results is None else results.schema)

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
    tally = Counter[str]()
    for figure, outcomes in OUTCOMES_OF_FIGURE.items():
        tally[figure] = sum(counts.get(outcome, 0) for outcome in outcomes)
    tally["taken"] = tally.total()
    return tally


def watch(worker: Worker, ends: float) -> Generator[None, None, None]:
    """Run a worker; yield again and again until it is over, and once then.

    Raises:
        Unreachable: the server does not answer any more.
    """
    over = Event()  # waits for it can be interrupted; those for threads can't, before Python 3.13
    worker.on_stop(over.set)
    worker.start()
    healthy_at = monotonic()
    try:
        while not over.wait(WORKER_LOOK_INTERVAL):
            yield
            now = monotonic()
            if now > ends and not worker.stopping and worker.status().taken:
                worker.stop()  # a round that takes no job would be the last one
            if worker.healthy():
                healthy_at = now
            elif now > healthy_at + MAX_UNHEALTHY_SECONDS:
                raise Unreachable(f"{worker!r}: the server does not answer")
        worker.join()
        yield
    except BaseException:  # also if Spark wants no more rows, or at SIGINT
        worker.stop(0)
        worker.join()
        raise


def sample_filter() -> Callable[[logging.LogRecord], bool]:
    """Return a filter for log records about jobs: few of each kind pass."""
    limit = RateLimit(JOB_LOG_PAUSE, monotonic)
    return lambda record: not hasattr(record, "job_id") or limit.allows(record.msg)


def figures(tally: Counter[str], schema: pa.Schema) -> pa.RecordBatch:
    """Return a row with the figures as a text; its other columns are null."""
    text = " ".join([str(tally[name]) for name in FIGURE_NAMES])
    return pa.RecordBatch.from_pylist([{"receipts": text}], schema)
