"""Prometheus: what this process enqueues and runs, and the figures of all queues.

It needs the extra `prometheus` (prometheus-client). The application serves the figures, with
`prometheus_client.start_http_server(9000)` or the client's multi-process mode.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
    from prometheus_client.core import Metric
    from prometheus_client.metrics import MetricWrapperBase
    from prometheus_client.registry import Collector
except ModuleNotFoundError as error:
    package = "penstock.integrations.prometheus needs prometheus-client"
    reason = f"{package}: pip install 'penstock[prometheus]'"
    raise ModuleNotFoundError(reason, name=error.name) from None

from penstock.client._sync.client import Penstock
from penstock.client._sync.metrics import MAX_QUEUES, Metrics
from penstock.core.jobs.enqueued import BulkEnqueued
from penstock.core.jobs.history import TIME_BOUNDS_SECONDS
from penstock.core.jobs.middleware import EnqueueEvent, Middleware, RunEvent, SettleEvent
from penstock.core.nodes.metrics import METRICS
from penstock.errors import BadArgument

__all__ = ["Prometheus", "QueueCollector"]


class Prometheus(Middleware):
    """Counts enqueues and outcomes, and measures how long runs took.

    Make one for all clients of the process: a registry takes each metric once.

    | metric | type, labels | value |
    |---|---|---|
    | `penstock_enqueued_total` | counter: queue | jobs added; without duplicates, and without next
      jobs, callbacks of batches and jobs of schedules |
    | `penstock_jobs_total` | counter: queue, handler, outcome | jobs that workers have taken, by
      what became of them; dead letters are dead or rejected; unknown = there was no handler |
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
        text = "Jobs that workers have taken, by outcome."
        self._jobs = metric(Counter, "jobs", text, [*by_handler, "outcome"])
        self._handling = metric(
            Histogram,
            "handling_seconds",
            "Time a handler took.",
            by_handler,
            buckets=TIME_BOUNDS_SECONDS,
        )
        text = "Time from enqueue to first delivery."
        self._queueing = metric(
            Histogram, "queueing_seconds", text, by_queue, buckets=TIME_BOUNDS_SECONDS
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
        """Counts the running jobs, and times their handler."""
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

    def settle(self, event: SettleEvent) -> None:
        """Counts the jobs by their outcome."""
        self._jobs[event.queue, event.handler or "", event.outcome].inc(len(event.jobs))


class QueueCollector(Collector):
    """Reads the figures of all queues, workers and nodes at each scrape. Looking writes nothing.

    So it also counts what no worker sees: jobs that die when the lease of a killed worker ends.
    Register one in one process: all would report the same figures.

    | metric | type, labels | value |
    |---|---|---|
    | `penstock_up` | gauge | 1 = the server has answered; else there are no other figures |
    | `penstock_queues` | gauge | number of queues, also of those without labels of their own |
    | `penstock_queues_omitted` | gauge | queues without labels of their own: there are more than
      `most` |
    | `penstock_handlers_omitted` | gauge | handlers without times: there are more than 200 |
    | `penstock_workers` | gauge | workers that run |
    | `penstock_queue_jobs` | gauge: queue, state | jobs that are ready, scheduled, parked, active
      or dead |
    | `penstock_queue_oldest_wait_seconds` | gauge: queue | for how long the longest waiting job
      could have been reserved; 0 = no job waits |
    | `penstock_queue_paused` | gauge: queue | 1 = deliveries are paused |
    | `penstock_queue_workers` | gauge: queue | workers that run, and take its jobs |
    | `penstock_queue_schedules_late` | gauge: queue | schedules whose tick is due for more than a
      minute, at most 100 |
    | `penstock_queue_schedule_late_seconds` | gauge: queue | for how long the longest due tick of a
      schedule waits; 0 = none is due |
    | `penstock_queue_enqueued_total`, `_done_`, `_failed_`, `_crashed_`, `_died_`, `_redriven_`,
      `_trimmed_`, `_expired_`, `_cancelled_` | counter: queue | totals since the queue was made |
    | `penstock_queue_waiting_seconds`, `penstock_queue_running_seconds` | histogram: queue,
      handler | time from enqueue to first delivery, and of the handler, as the history of the queue
      tells it once a minute; since the first scrape, without sums |
    | `penstock_node_up` | gauge: node | 1 = the node has answered |
    | `penstock_node_used_memory_bytes`, `penstock_node_max_memory_bytes` | gauge: node | memory;
      a limit of 0 = none |

    Args:
        client: reads the figures.
        pattern: only queues whose names match, as in `client.queues`.
        most: the most queues with labels of their own: the first ones by name.

    Raises:
        BadArgument: an argument can't be used.
    """

    def __init__(self, client: Penstock, pattern: str = "*", most: int = MAX_QUEUES) -> None:
        self._metrics = Metrics(client, [pattern], most)

    def describe(self) -> Sequence[Metric]:
        """Return nothing: registering reads nothing."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics, as they are now."""
        for family in self._metrics.read():
            described = METRICS[family.name]
            name = family.name.removesuffix("_total")
            made = Metric(name, described.text, described.kind)
            for series, labels, number in family.lines():
                made.add_sample(series, labels, number)
            yield made


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
