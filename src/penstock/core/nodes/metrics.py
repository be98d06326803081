"""The metrics of queues, workers and nodes: their names, and the text in which they are served."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias, get_args

from penstock.core.jobs.history import JobTimes
from penstock.core.jobs.queue_stats import QueueStats
from penstock.core.jobs.workers import WorkerView
from penstock.core.nodes.node_views import NodeView
from penstock.core.nodes.times_counter import TimedHandler, TimesCounter, buckets_of
from penstock.core.values.checks import StateName

__all__ = [
    "METRICS",
    "TEXT_TYPE",
    "Family",
    "LateSchedules",
    "Metric",
    "Seen",
    "as_text",
]

TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""The content type of `as_text`."""
MetricKind = Literal["gauge", "counter", "histogram"]
TOTAL_FIELDS = {
    "enqueued": "enqueued",
    "done": "acked",
    "failed": "nacked",
    "crashed": "crashed",
    "died": "died",
    "redriven": "redriven",
    "trimmed": "trimmed",
    "expired": "expired",
    "cancelled": "cancelled",
}
"""The middle of the name of each counter, and its total in `QueueStats`."""


class Metric(NamedTuple):
    """The description of a metric: its kind, its help, and the names of its labels."""

    kind: MetricKind
    text: str
    labels: tuple[str, ...] = ()


QUEUE, QUEUE_AND_HANDLER, NODE = ("queue",), ("queue", "handler"), ("node",)
METRICS: Mapping[str, Metric] = {
    "penstock_up": Metric("gauge", "Whether the server has answered."),
    "penstock_queues": Metric("gauge", "Number of queues."),
    "penstock_queues_omitted": Metric("gauge", "Queues without figures: there are too many."),
    "penstock_handlers_omitted": Metric("gauge", "Handlers without times: there are too many."),
    "penstock_workers": Metric("gauge", "Workers that run."),
    "penstock_queue_jobs": Metric("gauge", "Jobs by state.", ("queue", "state")),
    "penstock_queue_oldest_wait_seconds": Metric(
        "gauge", "Seconds for which the longest waiting job could have been reserved.", QUEUE
    ),
    "penstock_queue_paused": Metric("gauge", "Whether deliveries are paused.", QUEUE),
    "penstock_queue_workers": Metric("gauge", "Workers that take its jobs.", QUEUE),
    "penstock_queue_schedules_late": Metric(
        "gauge", "Schedules whose tick is due for more than a minute; at most 100.", QUEUE
    ),
    "penstock_queue_schedule_late_seconds": Metric(
        "gauge", "Seconds for which the longest due tick of a schedule waits.", QUEUE
    ),
    "penstock_queue_enqueued_total": Metric("counter", "Jobs added.", QUEUE),
    "penstock_queue_done_total": Metric("counter", "Jobs finished.", QUEUE),
    "penstock_queue_failed_total": Metric("counter", "Failed attempts that were reported.", QUEUE),
    "penstock_queue_crashed_total": Metric("counter", "Leases that ended without a report.", QUEUE),
    "penstock_queue_died_total": Metric(
        "counter", "Jobs that became dead letters, with a worker or without one.", QUEUE
    ),
    "penstock_queue_redriven_total": Metric("counter", "Dead letters brought back.", QUEUE),
    "penstock_queue_trimmed_total": Metric(
        "counter", "Dead letters dropped by age or number.", QUEUE
    ),
    "penstock_queue_expired_total": Metric(
        "counter", "Jobs removed because their ttl had ended.", QUEUE
    ),
    "penstock_queue_cancelled_total": Metric(
        "counter", "Jobs that ended because they were cancelled.", QUEUE
    ),
    "penstock_queue_waiting_seconds": Metric(
        "histogram", "Time from enqueue to first delivery, by the history.", QUEUE_AND_HANDLER
    ),
    "penstock_queue_running_seconds": Metric(
        "histogram", "Time of handlers, by the history.", QUEUE_AND_HANDLER
    ),
    "penstock_node_up": Metric("gauge", "Whether the node has answered.", NODE),
    "penstock_node_used_memory_bytes": Metric("gauge", "Memory in use.", NODE),
    "penstock_node_max_memory_bytes": Metric("gauge", "Limit of the memory; 0 = none.", NODE),
}
"""All metrics of the server's figures, in their order. Those of one process are others."""


Samples: TypeAlias = Sequence[tuple[tuple[str, ...], float]]
"""The values of the labels, and the number, of each sample."""


class Family(NamedTuple):
    """A metric with its samples.

    Attributes:
        name: of the metric.
        samples: its values, unless it is a histogram.
        times: the values of a histogram, by the values of the labels.
    """

    name: str
    samples: Samples = ()
    times: Mapping[TimedHandler, JobTimes] = {}

    def lines(self) -> Iterator[tuple[str, dict[str, str], float]]:
        """Yield the name, the labels and the number of each series.

        A histogram has no sum: a history counts jobs by bucket.
        """
        names = METRICS[self.name].labels
        for values, number in self.samples:
            yield self.name, dict(zip(names, values, strict=True)), number
        for values, times in self.times.items():
            labels = dict(zip(names, values, strict=True))
            for bound, count in buckets_of(times):
                yield f"{self.name}_bucket", {**labels, "le": bound}, count
            yield f"{self.name}_count", labels, times.count


class LateSchedules(NamedTuple):
    """The schedules of a queue whose ticks are due.

    Attributes:
        number: of those that are due for more than a minute; of each part of the queue at most 100.
        seconds: for how long the first one is due.
    """

    number: int = 0
    seconds: float = 0.0


class Seen(NamedTuple):
    """The figures of a server at one time.

    Attributes:
        queues: those that have figures.
        number: of all queues.
        late: the due schedules of queues that have some, by the name of the queue.
        workers: those that run.
        nodes: as the client sees them.
        times: how long jobs took, by queue and handler.
    """

    queues: Sequence[QueueStats]
    number: int
    late: Mapping[str, LateSchedules]
    workers: Sequence[WorkerView]
    nodes: Iterable[NodeView]
    times: TimesCounter

    def families(self) -> list[Family]:
        """Return the metrics, in the order of `METRICS`."""
        samples = {**self._of_queues(), **self._of_nodes()}
        shown = {one.name for one in self.queues}
        times = {one: self.times.by_handler[one] for one in sorted(self.times.by_handler)}
        histograms = {
            f"penstock_queue_{name}_seconds": {
                timed: getattr(one, name) for timed, one in times.items() if timed[0] in shown
            }
            for name in ("waiting", "running")
        }
        return [
            Family(name, times=histograms[name])
            if name in histograms
            else Family(name, samples[name])
            for name in METRICS
        ]

    def _of_queues(self) -> dict[str, Samples]:
        taking = [name for one in self.workers for name in one.queues]

        def each(values: Iterable[float]) -> Samples:
            return [((one.name,), value) for one, value in zip(self.queues, values, strict=True)]

        late = [self.late.get(one.name, LateSchedules()) for one in self.queues]
        totals: dict[str, Samples] = {
            f"penstock_queue_{name}_total": each(getattr(one, total) for one in self.queues)
            for name, total in TOTAL_FIELDS.items()
        }
        return totals | {
            "penstock_up": [((), 1)],
            "penstock_queues": [((), self.number)],
            "penstock_queues_omitted": [((), self.number - len(self.queues))],
            "penstock_handlers_omitted": [((), len(self.times.omitted))],
            "penstock_workers": [((), len(self.workers))],
            "penstock_queue_jobs": [
                ((one.name, state), getattr(one, state))
                for one in self.queues
                for state in get_args(StateName)
            ],
            "penstock_queue_oldest_wait_seconds": each(one.oldest or 0 for one in self.queues),
            "penstock_queue_paused": each(
                one.settings.paused in ("out", "all") for one in self.queues
            ),
            "penstock_queue_workers": each(taking.count(one.name) for one in self.queues),
            "penstock_queue_schedules_late": each(one.number for one in late),
            "penstock_queue_schedule_late_seconds": each(one.seconds for one in late),
        }

    def _of_nodes(self) -> dict[str, Samples]:
        nodes = list(self.nodes)
        memory: dict[str, Samples] = {
            f"penstock_node_{name}_memory_bytes": [
                ((one.address,), size)
                for one in nodes
                if (size := getattr(one, f"{name}_memory")) is not None
            ]
            for name in ("used", "max")
        }
        return memory | {"penstock_node_up": [((one.address,), not one.error) for one in nodes]}


def as_text(families: Iterable[Family]) -> str:
    """Return metrics in the text format of Prometheus."""
    return "".join(f"{line}\n" for family in families for line in _lines(family))


def _lines(family: Family) -> Iterator[str]:
    name, metric = family.name, METRICS[family.name]
    yield f"# HELP {name} {metric.text}"
    yield f"# TYPE {name} {metric.kind}"
    for series, pairs, number in family.lines():
        labels = ",".join(f'{label}="{_escape(value)}"' for label, value in pairs.items())
        yield f"{series}{{{labels}}} {float(number)}" if labels else f"{series} {float(number)}"


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
