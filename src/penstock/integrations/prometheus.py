"""Prometheus: what this process enqueues and runs, and the figures of all queues.

It needs the extra `prometheus` (prometheus-client). The application serves the figures, with
`prometheus_client.start_http_server(9000)` or the client's multi-process mode.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, get_args

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.metrics import MetricWrapperBase
    from prometheus_client.registry import Collector
except ModuleNotFoundError as error:
    package = "penstock.integrations.prometheus needs prometheus-client"
    reason = f"{package}: pip install 'penstock[prometheus]'"
    raise ModuleNotFoundError(reason, name=error.name) from None

from redis.exceptions import RedisError

from penstock.client._sync.client import Penstock
from penstock.core.jobs.job import BulkEnqueued
from penstock.core.jobs.logs import get_logger
from penstock.core.jobs.middleware import EnqueueEvent, Middleware, RunEvent, SettleEvent
from penstock.core.jobs.queue_stats import QueueStats
from penstock.core.values.checks import StateName, check_count
from penstock.errors import BadArgument, PenstockError

__all__ = ["Prometheus", "QueueCollector"]

logger = get_logger("penstock")

BUCKETS_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 60, 300, 1800, 3600)
"""The bounds of both histograms, in seconds."""


MAX_QUEUES = 1_000
"""Queues with labels of their own, unless another number is given."""
COUNTED = {
    "enqueued": ("enqueued", "Jobs added."),
    "acked": ("done", "Jobs finished."),
    "nacked": ("failed", "Failed attempts that were reported."),
    "crashed": ("crashed", "Leases that ended without a report."),
    "died": ("died", "Jobs that became dead letters, with a worker or without one."),
    "redriven": ("redriven", "Dead letters brought back."),
    "trimmed": ("trimmed", "Dead letters dropped by age or number."),
    "expired": ("expired", "Jobs removed because their ttl had ended."),
    "cancelled": ("cancelled", "Jobs that ended because they were cancelled."),
}
"""Totals of `QueueStats`, each with the middle of its metric's name and the help."""


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
    | `penstock_queue_jobs` | gauge: queue, state | jobs that are ready, scheduled, parked, active
      or dead |
    | `penstock_queue_oldest_wait_seconds` | gauge: queue | for how long the longest waiting job
      could have been reserved; 0 = no job waits |
    | `penstock_queue_paused` | gauge: queue | 1 = deliveries are paused |
    | `penstock_queue_workers` | gauge: queue | workers that run, and take its jobs |
    | `penstock_queue_enqueued_total`, `_done_`, `_failed_`, `_crashed_`, `_died_`, `_redriven_`,
      `_trimmed_`, `_expired_`, `_cancelled_` | counter: queue | totals since the queue was made |
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
        self._client = client
        self._pattern = pattern
        self._most = check_count("most", most)

    def describe(self) -> Sequence[Metric]:
        """Return nothing: registering reads nothing."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics, as they are now."""
        up = GaugeMetricFamily("penstock_up", "Whether the server has answered.")
        found = list[Metric]()
        try:
            found += self._queue_metrics()
            found += self._node_metrics()
        except (PenstockError, RedisError, OSError) as error:
            logger.warning("the figures of queues can't be read: %s", error)
            found = []
        up.add_metric([], float(bool(found)))
        yield up
        yield from found

    def _queue_metrics(self) -> Iterator[Metric]:
        every = {one.name: one for one in self._client.scan_queues_iter(pattern=self._pattern)}
        yield GaugeMetricFamily("penstock_queues", "Number of queues.", len(every))
        shown = [every[name] for name in sorted(every)[: self._most]]
        taking = [name for one in self._client.workers() for name in one.queues]
        jobs = GaugeMetricFamily("penstock_queue_jobs", "Jobs by state.", labels=["queue", "state"])
        for one in shown:
            for state in get_args(StateName):
                jobs.add_metric([one.name, state], getattr(one, state))
        yield jobs
        text = "Seconds for which the longest waiting job could have been reserved."
        oldest = {one.name: one.oldest or 0.0 for one in shown}
        yield _gauge("penstock_queue_oldest_wait_seconds", text, "queue", oldest)
        paused = {one.name: float(one.settings.paused in ("out", "all")) for one in shown}
        yield _gauge("penstock_queue_paused", "Whether deliveries are paused.", "queue", paused)
        workers = {one.name: float(taking.count(one.name)) for one in shown}
        yield _gauge("penstock_queue_workers", "Workers that take its jobs.", "queue", workers)
        yield from _totals(shown)

    def _node_metrics(self) -> Iterator[Metric]:
        nodes = self._client.hello().nodes
        up = {one.address: float(not one.error) for one in nodes}
        yield _gauge("penstock_node_up", "Whether the node has answered.", "node", up)
        for name, text in (("used", "Memory in use."), ("max", "Limit of the memory; 0 = none.")):
            sizes = {one.address: getattr(one, f"{name}_memory") for one in nodes}
            known: dict[str, Any] = {node: size for node, size in sizes.items() if size is not None}
            yield _gauge(f"penstock_node_{name}_memory_bytes", text, "node", known)


def _gauge(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    made = GaugeMetricFamily(name, text, labels=[label])
    for of, value in values.items():
        made.add_metric([of], value)
    return made


def _totals(queues: Sequence[QueueStats]) -> Iterator[Metric]:
    for field, (name, text) in COUNTED.items():
        made = CounterMetricFamily(f"penstock_queue_{name}", text, labels=["queue"])
        for one in queues:
            made.add_metric([one.name], getattr(one, field))
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
