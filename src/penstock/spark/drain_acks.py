"""The tasks that acknowledge the jobs of a `drain`, once its output is safe."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from penstock.client._sync.queue import Queue
from penstock.core.jobs.outcomes import Outcome
from penstock.spark.drain_results import HeldJobs, make_held_jobs
from penstock.spark.drain_task import FIGURES_SCHEMA, figures
from penstock.spark.operations import collect_outcomes
from penstock.spark.options import Connection
from penstock.spark.shards import new_client, open_in_task

__all__ = ["AckTask"]

SEEN_JOBS = 100
"""Most waiting jobs whose age is compared with that of the drain."""


@dataclass
class AckTask:
    """Acknowledges jobs whose results are safe. Spark calls it for parts of the output."""

    connection: Connection
    expected: tuple[str, ...]
    age: float = 0.0  # seconds since the drain began

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Acknowledge the jobs of a column of receipts; return the figures."""
        open_in_task(self.connection, self.expected)
        tally = Counter[str]()
        texts = (text for batch in batches for text in batch.column(0).to_pylist())
        groups = (HeldJobs(*group) for text in texts for group in json.loads(text))
        with new_client(self.connection) as made:
            queue = made.open(self.connection.queue)
            for window, held in make_held_jobs(queue, groups):
                seconds = None if window is None else window / 1000
                outcomes = collect_outcomes(partial(queue.ack, dedup_window=seconds), held)
                done = outcomes.count(Outcome.DONE) + outcomes.count(Outcome.HINTED)
                tally.update(done=done, lost=len(held) - done)
            tally["cut"] = int(self._look_for_freed(queue))
        yield figures(tally, FIGURES_SCHEMA)

    def _look_for_freed(self, queue: Queue) -> bool:
        """Return whether the acks have freed other jobs: of their keys, or the callback of a batch.

        Such a job is older than the drain. Jobs that producers add meanwhile do not count: with
        them a drain of a queue in use would never end.
        """
        if queue.stats().settings.rate:
            return False
        return any(view.now - view.created > self.age for view in queue.peek(SEEN_JOBS))
