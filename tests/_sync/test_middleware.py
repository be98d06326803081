# From tests/_async/test_middleware.py by tools/unasync.py; do not edit.
"""Middleware for enqueues: one event per call, headers for every job, errors before sending."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from penstock import (
    BadArgument,
    Done,
    EnqueueEvent,
    Handlers,
    IncompleteEnqueue,
    Middleware,
    Penstock,
    Queue,
    QueueFull,
    Worker,
)
from tests.support.backends import Backend
from tests.support.keyspace import Raw, dump


class Tracing(Middleware):
    """A middleware that adds a header, records events, and may refuse a call.

    Args:
        name: the header's.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.events: list[EnqueueEvent] = []
        self.errors: list[type] = []
        self.refusal: Exception | None = None

    @contextmanager
    def enqueue(self, event: EnqueueEvent) -> Iterator[None]:
        if self.refusal:
            raise self.refusal
        event.headers[self.name] = f"{len(event.headers)} before"
        self.events.append(event)
        try:
            yield
        finally:
            self.errors.append(type(event.error))


@pytest.fixture
def outer() -> Tracing:
    """The first middleware of the client."""
    return Tracing("outer")


@pytest.fixture
def inner() -> Tracing:
    """The second."""
    return Tracing("inner")


@pytest.fixture
def client(backend: Backend, outer: Tracing, inner: Tracing) -> Iterator[Penstock]:
    """A client with both."""
    with (
        backend.sync_client() as lent,
        Penstock(lent, middleware=iter([outer, inner])) as client,
    ):
        assert client.middleware == (outer, inner)
        yield client


@pytest.fixture
def observed(client: Penstock) -> Queue:
    """A queue of it."""
    return client.queue("q")


def test_an_enqueue_passes_through_all(observed: Queue, outer: Tracing, inner: Tracing) -> None:
    """Middleware runs in order; each sees the earlier headers and the result, and options stay."""
    given = {"mine": "x"}
    result = observed.enqueue({"n": 1}, headers=given, lease=7)
    [job] = observed.reserve(block=0)
    assert (job.id, job.body, job.lease) == (result.id, {"n": 1}, 7)
    assert job.headers == {"mine": "x", "outer": "1 before", "inner": "2 before"}
    assert given == {"mine": "x"}
    [event] = outer.events
    assert inner.events == [event]
    assert (event.queue, event.count, event.results, event.error) == ("q", 1, (result,), None)


def test_a_bulk_call_is_one(observed: Queue, outer: Tracing) -> None:
    """A bulk call is one event, however many chunks it has; every job gets the headers."""
    results = observed.enqueue_many(range(1500))
    jobs = observed.reserve(1500, block=0)
    assert [job.body for job in jobs] == list(range(1500))
    assert {tuple(job.headers.items()) for job in jobs} == {
        (("outer", "0 before"), ("inner", "1 before"))
    }
    [event] = outer.events
    assert (event.count, event.results) == (None, results)


def test_a_refusal_comes_before_anything_is_written(
    observed: Queue, outer: Tracing, inner: Tracing, raw: Raw
) -> None:
    """When a middleware refuses, the call raises its error, outer ones see it, and
    no key changes.
    """
    before = dump(raw)
    inner.refusal = PermissionError("not now")
    with pytest.raises(PermissionError):
        observed.enqueue(1)
    with pytest.raises(PermissionError):
        observed.enqueue_many([1])
    assert [event.results for event in outer.events] == [(), ()]
    assert dump(raw) == before


def test_errors_of_the_call_are_seen(observed: Queue, outer: Tracing) -> None:
    """Middleware sees errors of the call, such as bad arguments and a full queue,
    with its results.
    """
    with pytest.raises(BadArgument, match="delay="):
        observed.enqueue(1, delay=-1)
    with pytest.raises(BadArgument, match="headers="):
        observed.enqueue(1, headers=[("a", "b")])  # type: ignore[arg-type]  # on purpose
    with pytest.raises(IncompleteEnqueue):
        observed.enqueue_many(range(1500), max_length=1200)
    with pytest.raises(QueueFull):
        observed.enqueue(1, max_length=1)
    assert outer.errors == [BadArgument, IncompleteEnqueue, QueueFull]
    assert {event.error for event in outer.events} == {None}
    assert [len(event.results) for event in outer.events] == [0, 1000, 0]


def test_invalid_headers_from_a_middleware(observed: Queue, outer: Tracing) -> None:
    """Invalid headers from a middleware are refused like those of a caller."""
    outer.name = ""
    with pytest.raises(BadArgument, match="headers="):
        observed.enqueue(1)


def test_duplicates_are_answers_not_errors(observed: Queue, outer: Tracing) -> None:
    """A duplicate is a result and not an error; a bulk result has the number of duplicates."""
    for _ in range(2):
        observed.enqueue("x", dedup_id="a")
    assert [event.results[0].duplicate for event in outer.events] == [False, True]
    many = observed.enqueue_many(["a", "b", "b"], dedup_id=str)
    assert (many.duplicates, len(many)) == (2, 3)


def test_next_jobs_pass_through_when_they_are_made(client: Penstock, outer: Tracing) -> None:
    """The ack adds them later, so the event has no results; a refusal fails the job before."""
    handlers = Handlers()

    @handlers.handler("next")
    def following() -> None: ...

    @handlers.handler("first")
    def first() -> Done:
        if refused:
            outer.refusal = LookupError("no")
        return Done(then=[following.options(headers={"mine": "x"}).job()])

    refused: set[str] = set()
    first.enqueue(client.queue("q"))
    Worker(client, "q", handlers, max_jobs=1).run()
    [view] = client.queue("q").peek()
    assert view.headers == {
        "handler": "next",
        "mine": "x",
        "outer": "2 before",
        "inner": "3 before",
    }
    event = outer.events[-1]
    assert (event.queue, event.count, event.handler, event.results) == ("q", 1, "next", ())
    client.queue("q").clear()
    first.enqueue(client.queue("q"))
    refused.add("q")
    Worker(client, "q", handlers, max_jobs=1).run()
    [view] = client.queue("q").peek(state="scheduled")
    assert (view.headers["handler"], view.error) == ("first", "LookupError: no")


@pytest.mark.parametrize("partitions", [None, 2])
def test_jobs_of_a_batch_and_its_callback_pass_through(
    client: Penstock, outer: Tracing, partitions: int | None
) -> None:
    """The callback does when it is made, so its event has no results."""
    queue = client.queue("q", partitions=partitions)
    with queue.batch(then="callback") as batch:
        added = batch.enqueue(b"1")
    callback, member = outer.events
    assert (callback.queue, callback.count, callback.results) == ("q", 1, ())
    assert member.results == (added,)
    for name in (batch.id, added.id):
        view = queue.show(name)
        assert view is not None
        assert view.headers == {"outer": "0 before", "inner": "1 before"}


def test_a_queue_has_the_middleware_of_its_client(q: Queue, ps: Penstock) -> None:
    """Without middleware it has none, and enqueues directly."""
    assert q.middleware == ps.middleware == ()
    hook = Middleware()
    assert Penstock(middleware=[hook]).queue("q").middleware == (hook,)


@pytest.mark.parametrize(
    "given", [None, Middleware(), [Middleware]], ids=["None", "one", "a class"]
)
def test_invalid_middleware(given: object) -> None:
    """A wrong `middleware=` is refused when the client is constructed."""
    with pytest.raises(BadArgument, match="middleware="):
        Penstock(middleware=given)  # type: ignore[arg-type]  # on purpose
