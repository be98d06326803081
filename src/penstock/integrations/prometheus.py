"""Prometheus: counters, times and a gauge of what this process enqueues and runs.

It needs the extra `prometheus` (prometheus-client). To serve the figures is up to the application:
`prometheus_client.start_http_server(9000)`, or the client's multi-process mode for several.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from penstock.core.job import BulkEnqueued
from penstock.core.middleware import EnqueueEvent, Middleware, RunEvent
from penstock.errors import BadArgument

__all__ = ["Prometheus"]

SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 60, 300, 1800, 3600)
"""The bounds of both histograms: from a cache look-up to a report, and a backlog of an hour."""


class Prometheus(Middleware):
    """Counts enqueues and runs, and measures how long they took.

    Make one and give it to all clients of the process: metrics have one name in a registry once.

    | metric | type, labels | what it says |
    |---|---|---|
    | `penstock_enqueued_total` | counter: queue | jobs added; duplicates are not |
    | `penstock_jobs_total` | counter: queue, handler, outcome | jobs run |
    | `penstock_handling_seconds` | histogram: queue, handler | time of a handler; a batch is one |
    | `penstock_queueing_seconds` | histogram: queue | from enqueue to delivery, delay included, at
      first attempts; of a batch that of its oldest job |
    | `penstock_running` | gauge: queue, handler | jobs whose handler runs now |

    The default handler has an empty label.

    Args:
        registry: where the metrics are registered; None = prometheus-client's own.
        prefix: with which their names begin.

    Raises:
        BadArgument: the prefix can't be the beginning of a name.
        ValueError: the registry has metrics of these names already.
    """

    def __init__(self, registry: CollectorRegistry | None = None, prefix: str = "penstock") -> None:
        check_prefix(prefix)
        place = REGISTRY if registry is None else registry
        at, run = ["queue"], ["queue", "handler"]
        self._enqueued = Children(Counter(f"{prefix}_enqueued", "Jobs added.", at, registry=place))
        self._jobs = Children(
            Counter(f"{prefix}_jobs", "Jobs run, by outcome.", [*run, "outcome"], registry=place)
        )
        self._handling = Children(
            Histogram(
                f"{prefix}_handling_seconds",
                "Time a handler took.",
                run,
                buckets=SECONDS,
                registry=place,
            )
        )
        self._queueing = Children(
            Histogram(
                f"{prefix}_queueing_seconds",
                "Time from enqueue to first delivery.",
                at,
                buckets=SECONDS,
                registry=place,
            )
        )
        self._running = Children(
            Gauge(
                f"{prefix}_running",
                "Jobs whose handler runs now.",
                run,
                registry=place,
                multiprocess_mode="livesum",
            )
        )

    @contextmanager
    def enqueue(self, event: EnqueueEvent) -> Iterator[None]:
        """Counts what was added, also by a bulk call that failed midway."""
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
    """The labelled children of a metric: to find one here is ten times as fast as `labels`.

    Args:
        metric: whose.
    """

    def __init__(self, metric: Any) -> None:
        super().__init__()
        self._metric = metric

    def __missing__(self, labels: tuple[str, ...]) -> Any:
        found = self[labels] = self._metric.labels(*labels)
        return found


def check_prefix(prefix: object) -> None:
    """Refuse what can't be the beginning of a metric's name.

    Raises:
        BadArgument: so it is.
    """
    if not isinstance(prefix, str) or not re.fullmatch("[a-zA-Z_][a-zA-Z0-9_]*", prefix):
        raise BadArgument(
            "prefix", prefix, "must be letters, digits and underscores, without a digit first"
        )


def added(event: EnqueueEvent) -> int:
    """How many jobs an enqueue has added."""
    results = event.results
    if isinstance(results, BulkEnqueued):
        return len(results) - results.duplicates
    return sum(not result.duplicate for result in results)
