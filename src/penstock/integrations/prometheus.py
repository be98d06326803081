"""Prometheus: counters, times and a gauge of what this process enqueues and runs.

It needs the extra `prometheus` (prometheus-client). The application serves the figures, with
`prometheus_client.start_http_server(9000)` or the client's multi-process mode.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
    from prometheus_client.metrics import MetricWrapperBase
except ModuleNotFoundError as error:
    package = "penstock.integrations.prometheus needs prometheus-client"
    reason = f"{package}: pip install 'penstock[prometheus]'"
    raise ModuleNotFoundError(reason, name=error.name) from None

from penstock.core.jobs.job import BulkEnqueued
from penstock.core.jobs.middleware import EnqueueEvent, Middleware, RunEvent
from penstock.errors import BadArgument

__all__ = ["Prometheus"]

BUCKETS_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 60, 300, 1800, 3600)
"""The bounds of both histograms, in seconds."""


class Prometheus(Middleware):
    """Counts enqueues and runs, and measures how long they took.

    Make one for all clients of the process: a registry takes each metric once.

    | metric | type, labels | value |
    |---|---|---|
    | `penstock_enqueued_total` | counter: queue | jobs added; without duplicates, and without next
      jobs, callbacks of batches and jobs of schedules |
    | `penstock_jobs_total` | counter: queue, handler, outcome | jobs run |
    | `penstock_handling_seconds` | histogram: queue, handler | time of a handler; a chunk is one |
    | `penstock_queueing_seconds` | histogram: queue | from enqueue to delivery, delay included, at
      first attempts; of a chunk that of its oldest job |
    | `penstock_running` | gauge: queue, handler | jobs whose handler runs now |

    The default handler has an empty label.

    Args:
        registry: where the metrics are registered; None = prometheus-client's own.
        prefix: the beginning of their names.

    Raises:
        BadArgument: no name can begin with the prefix.
        ValueError: the registry has metrics of these names already.
    """

    def __init__(self, registry: CollectorRegistry | None = None, prefix: str = "penstock") -> None:
        name: object = prefix
        if not isinstance(name, str) or not re.fullmatch("[a-zA-Z_][a-zA-Z0-9_]*", name):
            reason = "must be letters, digits and underscores, without a digit first"
            raise BadArgument("prefix", prefix, reason)
        by_queue, by_handler = ["queue"], ["queue", "handler"]

        def metric(kind: Any, name: str, text: str, labels: list[str], **more: Any) -> Children:
            place = REGISTRY if registry is None else registry
            return Children(kind(f"{prefix}_{name}", text, labels, registry=place, **more))

        self._enqueued = metric(Counter, "enqueued", "Jobs added.", by_queue)
        self._jobs = metric(Counter, "jobs", "Jobs run, by outcome.", [*by_handler, "outcome"])
        self._handling = metric(
            Histogram,
            "handling_seconds",
            "Time a handler took.",
            by_handler,
            buckets=BUCKETS_SECONDS,
        )
        text = "Time from enqueue to first delivery."
        self._queueing = metric(
            Histogram, "queueing_seconds", text, by_queue, buckets=BUCKETS_SECONDS
        )
        text = "Jobs whose handler runs now."
        self._running = metric(Gauge, "running", text, by_handler, multiprocess_mode="livesum")

    @contextmanager
    def enqueue(self, event: EnqueueEvent) -> Iterator[None]:
        """Counts the jobs that were added, also by a bulk call that failed midway."""
        try:
            yield
        finally:
            if event.results:
                self._enqueued[event.queue,].inc(added(event))

    @contextmanager
    def run(self, event: RunEvent) -> Iterator[None]:
        """Counts the jobs, and times their handler."""
        queue, handler, count = event.queue, event.handler or "", len(event.jobs)
        running = self._running[queue, handler]
        waited = event.queueing
        if waited is not None:
            self._queueing[queue,].observe(waited)
        running.inc(count)
        try:
            yield
        finally:
            running.dec(count)
            self._handling[queue, handler].observe(event.seconds)
            for outcome, jobs in event.counts.items():
                self._jobs[queue, handler, outcome].inc(jobs)


class Children(dict[tuple[str, ...], Any]):
    """The labelled children of a metric; finding one here is ten times as fast as `labels`.

    Args:
        metric: of prometheus-client.
    """

    def __init__(self, metric: MetricWrapperBase) -> None:
        super().__init__()
        self._metric = metric

    def __missing__(self, labels: tuple[str, ...]) -> Any:
        found = self[labels] = self._metric.labels(*labels)
        return found


def added(event: EnqueueEvent) -> int:
    """Return how many jobs an enqueue has added."""
    results = event.results
    if isinstance(results, BulkEnqueued):
        return len(results) - results.duplicates
    return sum(not result.duplicate for result in results)
