"""OpenTelemetry: spans of enqueues and runs, joined by a context in the job; outcomes as a metric.

It needs the extra `otel` (opentelemetry-api). The application sets up an SDK, which exports the
spans and the metric. Names and attributes follow the semantic conventions for messaging, which are
not stable yet:
https://opentelemetry.io/docs/specs/semconv/messaging/
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress

try:
    from opentelemetry import context as contexts
    from opentelemetry import metrics, propagate, trace
    from opentelemetry.context import Context
    from opentelemetry.metrics import Histogram, MeterProvider
    from opentelemetry.propagators.textmap import TextMapPropagator
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider
except ModuleNotFoundError as error:
    reason = "penstock.integrations.otel needs opentelemetry-api: pip install 'penstock[otel]'"
    raise ModuleNotFoundError(reason, name=error.name) from None

from penstock.core.jobs.job import Delivery
from penstock.core.jobs.middleware import EnqueueEvent, Middleware, RunEvent, SettleEvent
from penstock.core.values.caught import summary_of
from penstock.core.values.checks import check_count, check_label
from penstock.version import __version__

__all__ = ["OpenTelemetry"]

Attributes = dict[str, str | int | bool]
SUCCESSFUL_OUTCOMES = frozenset({"done", "snoozed", "suspended", "cancelled", "settled"})
"""Outcomes of a run that are no failure, even if an exception led to them."""
DURATION_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
"""Seconds: the bounds of the buckets that the conventions ask for."""
MAX_LINKS = 128
"""Most links of a span that an SDK keeps by default."""


class OpenTelemetry(Middleware):
    """A span `send <queue>` around each enqueue, a span `process <queue>` around each run.

    The context of the producer's span is kept in the job's headers (`traceparent` and others that
    the propagator writes). So each run of a single job, in any process, is a child of that span.
    The span of a chunk has links to the spans of its jobs. The outcome on a span is that of the
    run.

    The counter `penstock.jobs` has the jobs that workers have taken, by what the server has made of
    them: its attributes are the queue, the handler and `penstock.job.outcome`. Dead letters are
    dead or rejected; unknown ones were given back, as the worker has no handler. Those of the
    conventions are `messaging.client.sent.messages`, `messaging.client.consumed.messages`,
    `messaging.client.operation.duration` (of an enqueue) and `messaging.process.duration`.

    Args:
        tracer_provider: makes the spans; None = the global one.
        propagator: writes and reads the headers; None = the global one.
        meter_provider: makes the metrics; None = the global one.
        server_address, server_port: of the server, as `server.address` and `server.port` of spans
            and metrics; None = they have none.
    """

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        propagator: TextMapPropagator | None = None,
        meter_provider: MeterProvider | None = None,
        server_address: str | None = None,
        server_port: int | None = None,
    ) -> None:
        meter = metrics.get_meter("penstock", __version__, meter_provider)
        self._jobs = meter.create_counter("penstock.jobs", "{job}", "Jobs by outcome.")
        messages = "{message}"
        self._sent = meter.create_counter(
            "messaging.client.sent.messages", messages, "Jobs that were enqueued, or tried to."
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages", messages, "Jobs that a handler was given."
        )

        def create_histogram(name: str, text: str) -> Histogram:
            return meter.create_histogram(
                name, "s", text, explicit_bucket_boundaries_advisory=DURATION_BOUNDS
            )

        self._calls = create_histogram(
            "messaging.client.operation.duration", "Duration of an enqueue."
        )
        self._runs = create_histogram("messaging.process.duration", "Duration of a handler.")
        self._server = Attributes()
        if server_address is not None:
            self._server["server.address"] = check_label("server_address", server_address)
        if server_port is not None:
            self._server["server.port"] = check_count("server_port", server_port, high=65_535)
        self._tracer = trace.get_tracer("penstock", __version__, tracer_provider)
        self._propagator = propagator

    @property
    def propagator(self) -> TextMapPropagator:
        """Writes and reads the headers."""
        return self._propagator or propagate.get_global_textmap()

    @contextmanager
    def enqueue(self, event: EnqueueEvent) -> Iterator[None]:
        """Start a span that ends with the reply."""
        name, attributes = self._describe("send", event.queue, event.handler)
        measured = {**attributes}
        with self._span(name, SpanKind.PRODUCER, attributes) as span:
            self.propagator.inject(event.headers)
            try:
                yield
            finally:
                if span.is_recording():
                    span.set_attributes(answered(event))
                    if event.error is not None:
                        failed(span, event.error)
                if event.error is not None:
                    measured["error.type"] = type_name(event.error)
                self._calls.record(event.seconds, measured)
                self._sent.add(len(event.results) or event.count or 0, measured)

    @contextmanager
    def run(self, event: RunEvent) -> Iterator[None]:
        """Start a span that is current in the handler, and ends with it."""
        name, attributes = self._describe("process", event.queue, event.handler)
        measured = {**attributes}
        self._consumed.add(len(event.jobs), measured)
        parent, links = Context(), []
        if len(event.jobs) == 1:
            [job] = event.jobs
            parent = self.propagator.extract(job.headers, Context())
            attributes.update({"messaging.message.id": job.id, "penstock.job.attempt": job.attempt})
        else:
            links = self._links(event.jobs)
            attributes["messaging.batch.message_count"] = len(event.jobs)
        if event.jobs:
            attributes["messaging.client.id"] = event.jobs[0].owner
        token = contexts.attach(parent)  # with its baggage, which a span does not have
        try:
            with self._span(name, SpanKind.CONSUMER, attributes, links) as span:
                try:
                    yield
                finally:
                    if span.is_recording():
                        span.set_attribute("penstock.job.outcome", event.outcome)
                        if bad := event.counts.keys() - SUCCESSFUL_OUTCOMES:
                            failed(span, event.error or min(bad))
                    if bad := event.counts.keys() - SUCCESSFUL_OUTCOMES:
                        measured["error.type"] = type_name(event.error or min(bad))
                    self._runs.record(event.seconds, measured)
        finally:
            contexts.detach(token)

    def settle(self, event: SettleEvent) -> None:
        """Count jobs by their outcome."""
        _, attributes = self._describe("settle", event.queue, event.handler)
        self._jobs.add(len(event.jobs), attributes | {"penstock.job.outcome": event.outcome})

    def _describe(self, operation: str, queue: str, handler: str | None) -> tuple[str, Attributes]:
        """Return the name of a span, and the attributes that are known when it begins."""
        attributes: Attributes = {
            "messaging.system": "penstock",
            "messaging.operation.name": operation,
            "messaging.operation.type": operation,
            "messaging.destination.name": queue,
            **self._server,
        }
        if handler is not None:
            attributes["penstock.handler"] = handler
        return f"{operation} {queue}", attributes

    def _span(
        self, name: str, kind: SpanKind, attributes: Attributes, links: Sequence[Link] = ()
    ) -> AbstractContextManager[Span]:
        return self._tracer.start_as_current_span(
            name,
            kind=kind,
            attributes=attributes,
            links=links,
            record_exception=False,  # not every exception is an error: see WELL
            set_status_on_exception=False,
        )

    def _links(self, jobs: Sequence[Delivery]) -> list[Link]:
        """Return a link to each span in which jobs were enqueued. A bulk call has one span."""
        propagator = self.propagator
        fields = propagator.fields
        links: dict[tuple[str | None, ...], Link] = {}
        for job in jobs:
            headers = job.headers
            key = tuple(headers.get(name) for name in fields)
            if key in links or not any(key):
                continue
            origin = trace.get_current_span(propagator.extract(headers, Context()))
            if origin.get_span_context().is_valid:
                links[key] = Link(origin.get_span_context())
                if len(links) == MAX_LINKS:
                    break
        return list(links.values())


def answered(event: EnqueueEvent) -> Attributes:
    """Return the attributes that the result of an enqueue adds."""
    if event.count is None:
        return {"messaging.batch.message_count": len(event.results)}
    if not event.results:
        return {}
    [result] = event.results
    found: Attributes = {"penstock.duplicate": True} if result.duplicate else {}
    if result.id:
        found["messaging.message.id"] = result.id
    return found


def failed(span: Span, error: BaseException | str) -> None:
    """Record an error on a span: an exception, or the outcome that a handler returned."""
    if isinstance(error, str):
        span.set_attribute("error.type", error)
        span.set_status(Status(StatusCode.ERROR))
        return
    span.set_attribute("error.type", type_name(error))
    with suppress(BaseException):  # its __str__ may raise anything
        span.record_exception(error)
    span.set_status(Status(StatusCode.ERROR, summary_of(error)))


def type_name(error: BaseException | str) -> str:
    """Return the name of an exception's class with its module, or an outcome as it is."""
    if isinstance(error, str):
        return error
    kind = type(error)
    return (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )
