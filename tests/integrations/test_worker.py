"""Both integrations in a worker: handlers in threads and in tasks, single and in batches."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from prometheus_client import CollectorRegistry

from penstock import AsyncPenstock, Middleware, Penstock, RunEvent, SettleEvent
from penstock.integrations.otel import OpenTelemetry
from penstock.integrations.prometheus import Prometheus
from penstock.worker import AsyncWorker, Handlers, Reject, Retry, Snooze, Worker
from tests.support.backends import Backend
from tests.support.workers import until


class Seen:
    """Both integrations, and their results."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.registry = CollectorRegistry()
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader], shutdown_on_exit=False)
        self.middleware = [
            OpenTelemetry(self.provider, TraceContextTextMapPropagator(), self.meters),
            Prometheus(self.registry),
        ]

    def outcomes(self) -> dict[tuple[str, str], float]:
        """Return the numbers of jobs by handler and outcome, from Prometheus."""
        [metric] = [metric for metric in self.registry.collect() if metric.name == "penstock_jobs"]
        return {
            (sample.labels["handler"], sample.labels["outcome"]): sample.value
            for sample in metric.samples
            if sample.name == "penstock_jobs_total"
        }

    def metered(self) -> dict[tuple[str, str], float]:
        """Return the numbers of jobs by handler and outcome, from OpenTelemetry."""
        data = self.reader.get_metrics_data()
        assert data is not None
        scopes = (scope for resource in data.resource_metrics for scope in resource.scope_metrics)
        every = [metric for scope in scopes for metric in scope.metrics]
        [metric] = [metric for metric in every if metric.name == "penstock.jobs"]
        assert metric.unit == "{job}"
        points = [(point, point.attributes or {}) for point in metric.data.data_points]
        assert {at["messaging.destination.name"] for _, at in points} == {"q"}
        return {
            (str(at.get("penstock.handler", "")), str(at["penstock.job.outcome"])): point.value
            for point, at in points
        }

    def check(self) -> None:
        """Check that each run is a child of an enqueue or has links, and only
        failed ones have errors.
        """
        spans = self.exporter.get_finished_spans()
        sent = {span.context.span_id for span in spans if span.kind is SpanKind.PRODUCER}
        runs = [span for span in spans if span.kind is SpanKind.CONSUMER]
        origins = [
            {link.context.span_id for link in span.links} or {span.parent.span_id}
            for span in runs
            if span.links or span.parent
        ]
        assert len(origins) == len(runs)
        assert set.union(*origins) <= sent
        for span in runs:
            assert span.attributes is not None
            outcome = span.attributes["penstock.job.outcome"]
            is_error = span.status.status_code is StatusCode.ERROR
            assert is_error == (outcome in ("failed", "rejected", "mixed"))


@pytest.fixture
def seen() -> Iterator[Seen]:
    """Both with a provider and a registry of their own."""
    made = Seen()
    yield made
    made.provider.shutdown()
    made.meters.shutdown()


def handlers_of_all_kinds(current: list[bool]) -> Handlers:
    """Return a handler for each outcome, and a batch with two of them.

    Args:
        current: for each run of `well`, whether its span is the current one.
    """
    handlers = Handlers()

    @handlers.handler("well")
    def well() -> None:
        current.append(trace.get_current_span().get_span_context().is_valid)

    @handlers.handler("badly")
    def badly() -> None:
        raise ZeroDivisionError

    @handlers.handler("later")
    def later() -> None:
        raise Retry(60)

    @handlers.handler("snooze")
    def snooze() -> Snooze:
        return Snooze(60)

    @handlers.handler("never")
    def never() -> None:
        raise Reject("no")

    @handlers.chunk("batch", size=2, wait=0.01)
    def batch(jobs: list[object]) -> list[object]:
        return [None, Retry(60)][: len(jobs)]

    return handlers


NAMES = ("well", "badly", "later", "snooze", "never", "batch", "batch")
OUTCOMES = {
    ("well", "done"): 1,
    ("badly", "retried"): 1,
    ("later", "retried"): 1,
    ("snooze", "snoozed"): 1,
    ("never", "rejected"): 1,
    ("batch", "done"): 1,
    ("batch", "retried"): 1,
}


def test_threads(one_server: Backend, seen: Seen) -> None:
    """The handler's span is the current one."""
    current: list[bool] = []
    with Penstock(one_server.url, middleware=seen.middleware) as ps:
        q = ps.queue("q")
        q.configure(backoff_base=3600)
        for name in NAMES:
            q.enqueue({}, headers={"handler": name})
        worker = Worker(ps, "q", handlers_of_all_kinds(current), burst=True)
        worker.run()
    assert current == [True]
    assert seen.outcomes() == OUTCOMES
    assert worker.status().stats.counts == {"done": 2, "retried": 3, "snoozed": 1, "rejected": 1}
    seen.check()


async def test_tasks(one_server: Backend, seen: Seen) -> None:
    """Coroutines and plain functions, which run in threads, have their span as the current one."""
    current: list[bool] = []
    handlers = handlers_of_all_kinds(current)

    @handlers.handler("async")
    async def coroutine() -> None:
        await asyncio.sleep(0)
        current.append(trace.get_current_span().get_span_context().is_valid)

    async with AsyncPenstock(one_server.url, middleware=seen.middleware) as ps:
        q = ps.queue("q")
        await q.configure(backoff_base=3600)
        for name in (*NAMES, "async"):
            await q.enqueue({}, headers={"handler": name})
        await AsyncWorker(ps, "q", handlers, burst=True).run(signals=False)
    assert current == [True, True]
    assert seen.outcomes() == {**OUTCOMES, ("async", "done"): 1}
    seen.check()


def test_deaths_are_counted(one_server: Backend, seen: Seen) -> None:
    """The last attempt counts as dead, and a job that has no handler here as unknown, in both."""
    handlers = Handlers()

    @handlers.handler("badly")
    def badly() -> None:
        raise ZeroDivisionError

    with Penstock(one_server.url, middleware=seen.middleware) as ps:
        q = ps.queue("q")
        q.configure(max_attempts=2, backoff_base=0.001)
        for name in ("badly", "badly", "gone", "gone, too"):
            q.enqueue({}, headers={"handler": name})
        with Worker(ps, "q", handlers):
            until(lambda: q.stats().died == 2 and len(q.peek(state="scheduled")) == 2)
    counts = {("badly", "retried"): 2, ("badly", "dead"): 2, ("", "unknown"): 2}
    assert seen.outcomes() == counts
    assert seen.metered() == counts
    seen.check()


def test_a_hook_sees_outcomes_that_the_server_has_decided(one_server: Backend) -> None:
    """It gets the jobs by handler and outcome; if it raises, that is logged and changes nothing."""
    handlers, seen = Handlers(), list[SettleEvent]()

    class Watching(Middleware):
        def settle(self, event: SettleEvent) -> None:
            seen.append(event)
            raise LookupError("a fault of the hook")

    @handlers.handler("slow")
    def slow(number: int) -> None:
        if number == 1:
            q.delete([ids[1]])  # the report of success comes too late
        if number == 2:
            raise Reject("no")

    with Penstock(one_server.url, middleware=[Watching()]) as ps:
        q = ps.queue("q")
        ids = [slow.enqueue(q, number).id for number in range(3)]
        worker = Worker(ps, "q", handlers, burst=True)
        worker.run()
    ends = {(event.handler, event.outcome, job.id) for event in seen for job in event.jobs}
    ends_of = zip(("done", "lost", "rejected"), ids, strict=True)
    assert ends == {("slow", outcome, job) for outcome, job in ends_of}
    assert {event.queue for event in seen} == {"q"}
    assert worker.status().stats.counts == {"done": 1, "lost": 1, "rejected": 1}


class Transaction(Middleware):
    """A middleware that fails before one handler and after another."""

    @contextmanager
    def run(self, event: RunEvent) -> Iterator[None]:
        if event.handler == "refused":
            raise ConnectionError("no database")
        yield
        if event.handler == "uncommitted":
            raise Retry(60, "conflict")


def test_a_hook_that_raises_is_a_failure_of_its_handler(one_server: Backend, seen: Seen) -> None:
    """An error before or after the handler is its failure; outer hooks see the outcome."""
    handlers, calls = Handlers(), list[str]()

    @handlers.handler("refused")
    def refused() -> None:
        calls.append("refused")

    @handlers.handler("uncommitted")
    def uncommitted() -> None:
        calls.append("uncommitted")

    hooks = [*seen.middleware, Transaction()]
    with Penstock(one_server.url, middleware=hooks) as ps:
        q = ps.queue("q")
        q.configure(backoff_base=3600)
        for name in ("refused", "uncommitted"):
            q.enqueue({}, headers={"handler": name})
        Worker(ps, "q", handlers, burst=True).run()
        errors = sorted(view.error for view in q.peek(2, state="scheduled"))
    assert calls == ["uncommitted"]
    assert errors == ["ConnectionError: no database", "conflict"]
    assert seen.outcomes() == {("refused", "retried"): 1, ("uncommitted", "retried"): 1}
    seen.check()
