"""Spans of enqueues and runs: their relations, attributes and errors."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from penstock import AsyncPenstock, BadArgument, Dedup, Job, Penstock, Queue, QueueFull, RunEvent
from penstock.core.jobs.job import Delivery
from penstock.core.jobs.middleware import running
from penstock.integrations.otel import MAX_LINKS, OpenTelemetry
from tests.support.backends import Backend


class Spans:
    """A tracer provider, and the spans that have ended."""

    def __init__(self, **options: Any) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False, **options)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def take(self) -> list[ReadableSpan]:
        """Return the spans that have ended since the last call."""
        found = list(self._exporter.get_finished_spans())
        self._exporter.clear()
        return found


@pytest.fixture
def spans() -> Iterator[Spans]:
    """Spans with a provider of its own."""
    made = Spans()
    yield made
    made.provider.shutdown()


@pytest.fixture
def otel(spans: Spans) -> OpenTelemetry:
    """The middleware with it."""
    return OpenTelemetry(spans.provider, TraceContextTextMapPropagator())


@pytest.fixture
def q(backend: Backend, otel: OpenTelemetry) -> Iterator[Queue]:
    """A queue of a client with this middleware."""
    with Penstock(backend.sync_client(), owner="tester", middleware=[otel]) as client:
        yield client.queue("emails")


def a_run(*jobs: Delivery, handler: str | None = "greet") -> RunEvent:
    """Return a run of these jobs."""
    return RunEvent("emails", jobs, handler)


def reserved(q: Queue, n: int = 1) -> tuple[Job, ...]:
    """Reserve the next jobs."""
    return tuple(q.reserve(n, block=0))


def test_an_enqueue_is_a_producer_span(q: Queue, spans: Spans) -> None:
    """Name and attributes follow the conventions; its context is in the job."""
    result = q.enqueue({"n": 1}, headers={"handler": "greet"})
    [span] = spans.take()
    assert (span.name, span.kind) == ("send emails", SpanKind.PRODUCER)
    assert dict(span.attributes or {}) == {
        "messaging.system": "penstock",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "emails",
        "messaging.message.id": result.id,
        "penstock.handler": "greet",
    }
    assert span.instrumentation_scope is not None
    assert span.instrumentation_scope.name == "penstock"
    assert span.status.status_code is StatusCode.UNSET
    [job] = reserved(q)
    _, trace_id, span_id, flags = job.headers["traceparent"].split("-")
    assert (int(trace_id, 16), int(span_id, 16)) == (span.context.trace_id, span.context.span_id)
    assert int(flags, 16) & 1  # sampled
    assert job.headers.keys() == {"handler", "traceparent"}


def test_an_enqueue_belongs_to_the_span_around_it(q: Queue, spans: Spans) -> None:
    """The enqueue's span is a child of the application's current span."""
    with spans.provider.get_tracer("app").start_as_current_span("request") as request:
        q.enqueue(1)
    [sent, _] = spans.take()
    assert sent.parent == request.get_span_context()


def test_a_bulk_enqueue_is_one_span(q: Queue, spans: Spans) -> None:
    """It has a count instead of an id; all jobs have its context."""
    q.enqueue_many(range(1200))
    [span] = spans.take()
    assert span.attributes is not None
    assert span.attributes["messaging.batch.message_count"] == 1200
    assert "messaging.message.id" not in span.attributes
    assert len({job.headers["traceparent"] for job in reserved(q, 1200)}) == 1


def test_a_span_of_a_duplicate(q: Queue, spans: Spans) -> None:
    """The span has the id of the existing job; with only a window there is none."""
    first = q.enqueue(1, dedup=Dedup("a", window=60))
    q.enqueue(1, dedup_id="a")
    [_, again] = spans.take()
    assert again.attributes is not None
    assert again.attributes["penstock.duplicate"] is True
    assert again.attributes["messaging.message.id"] == first.id
    q.ack([first.id])
    q.enqueue(1, dedup_id="a")
    [late] = spans.take()
    assert late.attributes is not None
    assert late.attributes["penstock.duplicate"] is True
    assert "messaging.message.id" not in late.attributes


def test_an_enqueue_that_fails_is_an_error(q: Queue, spans: Spans) -> None:
    """Type and text of the exception are recorded; a bulk call has the accepted number."""
    with pytest.raises(BadArgument):
        q.enqueue(1, delay=-1)
    [span] = spans.take()
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description == "BadArgument: delay=-1: can't be negative"
    assert span.attributes is not None
    assert span.attributes["error.type"] == "penstock.errors.BadArgument"
    assert [event.name for event in span.events] == ["exception"]
    q.enqueue(0)
    with pytest.raises(QueueFull):
        q.enqueue_many([1, 2], max_length=1)
    assert spans.take()[-1].attributes["messaging.batch.message_count"] == 0  # type: ignore[index]


def test_a_run_is_a_child_of_its_enqueue(q: Queue, otel: OpenTelemetry, spans: Spans) -> None:
    """A consumer span is current inside the handler, whatever was current before."""
    result = q.enqueue(1)
    [sent] = spans.take()
    event = a_run(*reserved(q))
    app = spans.provider.get_tracer("app")
    with app.start_as_current_span("worker") as worker:
        with running((otel,), event):
            inside = trace.get_current_span().get_span_context()
            with app.start_as_current_span("query"):
                pass
        assert trace.get_current_span() is worker
    [query, span, _] = spans.take()
    assert (span.name, span.kind) == ("process emails", SpanKind.CONSUMER)
    assert span.parent is not None
    assert (span.parent.trace_id, span.parent.span_id) == (
        sent.context.trace_id, sent.context.span_id,
    )  # fmt: skip
    assert span.parent.is_remote
    assert span.context == inside == query.parent
    assert dict(span.attributes or {}) == {
        "messaging.system": "penstock",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "emails",
        "messaging.message.id": result.id,
        "messaging.client.id": "tester",
        "penstock.handler": "greet",
        "penstock.job.attempt": 1,
        "penstock.job.outcome": "done",
    }
    assert span.status.status_code is StatusCode.UNSET


def test_a_job_without_a_context_begins_a_trace(
    q: Queue, backend: Backend, otel: OpenTelemetry, spans: Spans
) -> None:
    """The producer has no middleware, or another language."""
    with Penstock(backend.sync_client()) as plain:
        plain.queue("emails").enqueue(1)
    with running((otel,), a_run(*reserved(q), handler=None)):
        pass
    [span] = spans.take()
    assert span.parent is None
    assert "penstock.handler" not in (span.attributes or {})


def test_a_batch_has_links(q: Queue, otel: OpenTelemetry, spans: Spans, backend: Backend) -> None:
    """It has a link for each enqueue, and none as its parent."""
    for body in range(2):
        q.enqueue(body)
    q.enqueue_many(range(3))
    with Penstock(backend.sync_client()) as plain:
        plain.queue("emails").enqueue(1)
    sent = [span.context.span_id for span in spans.take()]
    with running((otel,), a_run(*reserved(q, 6))):
        pass
    [span] = spans.take()
    assert [link.context.span_id for link in span.links] == sent
    assert span.parent is None
    assert span.attributes is not None
    assert span.attributes["messaging.batch.message_count"] == 6
    assert "messaging.message.id" not in span.attributes


def test_links_are_bounded(q: Queue, otel: OpenTelemetry, spans: Spans) -> None:
    """A batch of a thousand enqueues has as many links as an SDK keeps."""
    for body in range(MAX_LINKS + 5):
        q.enqueue(body)
    spans.take()
    with running((otel,), a_run(*reserved(q, 200))):
        pass
    [span] = spans.take()
    assert (len(span.links), span.dropped_links) == (MAX_LINKS, 0)


def test_a_header_that_is_no_context_is_ignored(
    q: Queue, backend: Backend, otel: OpenTelemetry, spans: Spans
) -> None:
    """An invalid header is ignored."""
    with Penstock(backend.sync_client()) as plain:
        plain.queue("emails").enqueue_many([1, 2, 3], headers={"traceparent": "nonsense"})
    jobs = reserved(q, 3)
    with running((otel,), a_run(*jobs)):
        pass
    with running((otel,), a_run(jobs[0])):
        pass
    batch, single = spans.take()
    assert (batch.links, single.parent) == ((), None)


def test_a_run_that_fails_is_an_error(q: Queue, otel: OpenTelemetry, spans: Spans) -> None:
    """The exception is recorded, also a cancellation; the next attempt is a sibling."""
    q.enqueue(1)
    [sent] = spans.take()
    [job] = reserved(q)
    with pytest.raises(ZeroDivisionError), running((otel,), a_run(job), lambda _: "retried"):
        raise ZeroDivisionError("by zero")
    job.nack(delay=0)
    [job] = reserved(q)
    with pytest.raises(asyncio.CancelledError), running((otel,), a_run(job), lambda _: "lost"):
        raise asyncio.CancelledError
    first, second = spans.take()
    for span, error, outcome, attempt in (
        (first, "ZeroDivisionError", "retried", 1),
        (second, "asyncio.exceptions.CancelledError", "lost", 2),
    ):
        assert span.attributes is not None
        assert span.attributes["error.type"] == error
        assert span.attributes["penstock.job.outcome"] == outcome
        assert span.attributes["penstock.job.attempt"] == attempt
        assert span.status.status_code is StatusCode.ERROR
        assert [one.name for one in span.events] == ["exception"]
        assert span.parent is not None
        assert span.parent.span_id == sent.context.span_id


def test_an_error_without_a_text(q: Queue, otel: OpenTelemetry, spans: Spans) -> None:
    """An exception whose `__str__` fails stays the error of the run; its type is recorded."""

    class Shy(Exception):
        def __str__(self) -> str:
            raise OSError

    q.enqueue(1)
    [job] = reserved(q)
    with pytest.raises(Shy), running((otel,), a_run(job), lambda _: "retried"):
        raise Shy
    assert spans.take()[-1].status.description == "Shy"


def test_raised_results_are_no_errors(q: Queue, otel: OpenTelemetry, spans: Spans) -> None:
    """Raised results, and the end of a cancelled job, are no errors; a returned one may be one."""
    q.enqueue(1)
    [job] = reserved(q)
    spans.take()
    for outcome in ("snoozed", "cancelled"):
        with pytest.raises(LookupError), running((otel,), a_run(job), lambda _, end=outcome: end):
            raise LookupError(outcome)
    rejected, mixed, well = a_run(job), a_run(job, job, job), a_run(job, job)
    with running((otel,), rejected):
        rejected.outcome = "rejected"
    with running((otel,), mixed):
        mixed.outcome, mixed.outcomes = "mixed", {"done": 1, "retried": 2}
    with running((otel,), well):
        well.outcome, well.outcomes = "mixed", {"done": 1, "snoozed": 1}
    seen = [(span.status.status_code, dict(span.attributes or {}).get("error.type"), span.events)
            for span in spans.take()]  # fmt: skip
    assert seen == [
        (StatusCode.UNSET, None, ()),
        (StatusCode.UNSET, None, ()),
        (StatusCode.ERROR, "rejected", ()),
        (StatusCode.ERROR, "retried", ()),
        (StatusCode.UNSET, None, ()),
    ]


def test_baggage_is_propagated(backend: Backend, spans: Spans) -> None:
    """Baggage of the producer is available inside the handler, and not after it."""
    both = CompositePropagator([TraceContextTextMapPropagator(), W3CBaggagePropagator()])
    otel = OpenTelemetry(spans.provider, both)
    with Penstock(backend.sync_client(), middleware=[otel]) as client:
        token = context.attach(baggage.set_baggage("tenant", "ada & co"))
        client.queue("emails").enqueue(1)
        context.detach(token)
        with running((otel,), a_run(*reserved(client.queue("emails")))):
            assert baggage.get_baggage("tenant") == "ada & co"
        assert baggage.get_baggage("tenant") is None


def test_a_trace_that_is_not_sampled_costs_no_attributes(backend: Backend) -> None:
    """Its jobs have the unsampled flag."""
    spans = Spans(sampler=ALWAYS_OFF)
    otel = OpenTelemetry(spans.provider, TraceContextTextMapPropagator())
    with Penstock(backend.sync_client(), middleware=[otel]) as client:
        client.queue("emails").enqueue(1)
        [job] = reserved(client.queue("emails"))
    with running((otel,), a_run(job)):
        assert not trace.get_current_span().is_recording()
    assert not int(job.headers["traceparent"].split("-")[3], 16) & 1
    assert spans.take() == []


def test_without_an_sdk_nothing_happens(backend: Backend) -> None:
    """The global provider makes no spans, and no header is added."""
    otel = OpenTelemetry()
    with Penstock(backend.sync_client(), middleware=[otel]) as client:
        client.queue("emails").enqueue(1)
        [job] = reserved(client.queue("emails"))
    with running((otel,), a_run(job)):
        assert not trace.get_current_span().get_span_context().is_valid
    assert job.headers == {}


async def test_tasks_do_not_see_each_other(
    backend: Backend, otel: OpenTelemetry, spans: Spans
) -> None:
    """In concurrent runs of one event loop each has its own span after each await."""
    async with (
        backend.async_client() as lent,
        AsyncPenstock(lent, middleware=[otel]) as client,
    ):
        queue = client.queue("emails")
        for body in range(5):
            await queue.enqueue(body)
        jobs = await queue.reserve(5, block=0)
        sent = [span.context.span_id for span in spans.take()]
        all_in = asyncio.Event()
        within: list[int] = []

        async def handle(job: Delivery) -> None:
            event = a_run(job)
            with running((otel,), event):
                before = trace.get_current_span()
                within.append(job.body)
                if len(within) == 5:
                    all_in.set()
                await all_in.wait()
                assert trace.get_current_span() is before
                await queue.enqueue("child")
            assert not trace.get_current_span().get_span_context().is_valid

        await asyncio.gather(*map(handle, jobs))
    ended = spans.take()
    runs = {span.context.span_id: span for span in ended if span.kind is SpanKind.CONSUMER}
    assert {span.parent.span_id for span in runs.values() if span.parent} == set(sent)
    children = [span.parent.span_id for span in ended
                if span.kind is SpanKind.PRODUCER and span.parent]  # fmt: skip
    assert sorted(children) == sorted(runs)


def test_metrics_of_the_conventions(backend: Backend, spans: Spans) -> None:
    """Messages and durations, of successes and failures, with the address of the server."""
    reader = InMemoryMetricReader()
    otel = OpenTelemetry(
        spans.provider,
        meter_provider=MeterProvider([reader], shutdown_on_exit=False),
        server_address="redis.example.com",
        server_port=6379,
    )
    with Penstock(backend.sync_client(), middleware=[otel]) as client:
        q = client.queue("emails")
        q.enqueue_many(range(3))
        with pytest.raises(QueueFull):
            q.enqueue(1, max_length=3, block=0)
        with running((otel,), a_run(*reserved(q)), lambda _: "done"):
            pass
        with (
            pytest.raises(ZeroDivisionError),
            running((otel,), a_run(*reserved(q)), lambda _: "retried"),
        ):
            raise ZeroDivisionError
    data = reader.get_metrics_data()
    assert data is not None
    [scope] = data.resource_metrics[0].scope_metrics
    found: dict[tuple[str, object], Any] = {}
    for metric in scope.metrics:
        for point in metric.data.data_points:
            attributes = dict(point.attributes or {})
            assert (attributes["server.address"], attributes["server.port"]) == (
                "redis.example.com",
                6379,
            )
            assert attributes["messaging.destination.name"] == "emails"
            found[metric.name, attributes.get("error.type")] = point
    sent = {error: p.value for (name, error), p in found.items() if name.endswith("sent.messages")}
    assert sent == {None: 3, "penstock.errors.QueueFull": 1}
    assert found["messaging.client.consumed.messages", None].value == 2
    for error in (None, "ZeroDivisionError"):
        point = found["messaging.process.duration", error]
        assert (point.count, point.explicit_bounds[0]) == (1, 0.005)
    assert found["messaging.client.operation.duration", None].count == 1
    assert spans.take()[0].attributes["server.port"] == 6379  # type: ignore[index]


def test_an_address_that_can_not_be_used() -> None:
    """The error names the argument."""
    with pytest.raises(BadArgument, match="server_port"):
        OpenTelemetry(server_port=0)
