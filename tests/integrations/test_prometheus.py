"""The metrics: their values and names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from time import monotonic

import pytest
from prometheus_client import CollectorRegistry

from penstock import (
    AsyncPenstock,
    BadArgument,
    IncompleteEnqueue,
    Penstock,
    Queue,
    RunEvent,
    SettleEvent,
)
from penstock.core.jobs.middleware import running
from penstock.integrations.prometheus import Prometheus
from tests.support.backends import Backend


@pytest.fixture
def registry() -> CollectorRegistry:
    """A registry of its own."""
    return CollectorRegistry()


@pytest.fixture
def metrics(registry: CollectorRegistry) -> Prometheus:
    """The middleware with it."""
    return Prometheus(registry)


@pytest.fixture
def q(backend: Backend, metrics: Prometheus) -> Iterator[Queue]:
    """A queue of a client with this middleware."""
    with Penstock(backend.sync_client(), middleware=[metrics]) as client:
        yield client.queue("emails")


def figures(registry: CollectorRegistry) -> dict[tuple[str, ...], float]:
    """Return the values that are not zero, without buckets and times of creation."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for metric in registry.collect()
        for sample in metric.samples
        if sample.value and not sample.name.endswith(("_created", "_bucket"))
    }


def test_enqueues_are_counted(q: Queue, registry: CollectorRegistry) -> None:
    """Every added job is counted: no duplicates, no refused ones; of a failed bulk
    the added part.
    """
    q.enqueue(1)
    q.enqueue_many([1, 2, 3])
    for _ in range(2):
        q.enqueue(1, dedup_id="a")
    q.enqueue_many(["a", "b"], dedup_id=str)
    with pytest.raises(BadArgument):
        q.enqueue(1, delay=-1)
    with pytest.raises(IncompleteEnqueue):
        q.enqueue_many(range(1500), max_length=1100)
    assert figures(registry) == {("penstock_enqueued_total", "emails"): 1 + 3 + 1 + 1 + 1000}


def test_a_run_is_counted_and_timed(
    q: Queue, metrics: Prometheus, registry: CollectorRegistry
) -> None:
    """The gauge counts a running handler."""
    q.enqueue(1)
    [job] = q.reserve(block=0)
    event = RunEvent("emails", (job,), "greet")
    with running((metrics,), event, clock=monotonic):
        assert figures(registry)["penstock_running", "emails", "greet"] == 1
    found = figures(registry)
    assert ("penstock_running", "emails", "greet") not in found
    assert found["penstock_handling_seconds_count", "emails", "greet"] == 1
    assert found["penstock_handling_seconds_sum", "emails", "greet"] == event.seconds
    assert found["penstock_queueing_seconds_count", "emails"] == 1
    assert event.queueing is not None
    assert found.get(("penstock_queueing_seconds_sum", "emails"), 0) == event.queueing


def test_outcomes_are_counted_separately(
    q: Queue, metrics: Prometheus, registry: CollectorRegistry
) -> None:
    """A batch counts as one run, and its jobs one by one when they are settled; only first
    attempts have a queueing time.
    """
    q.enqueue_many(range(3))
    jobs = tuple(q.reserve(3, block=0))
    with running((metrics,), RunEvent("emails", jobs)):
        pass
    assert "penstock_jobs_total" not in {name for name, *_ in figures(registry)}
    metrics.settle(SettleEvent("emails", jobs[1:], None, "done"))
    metrics.settle(SettleEvent("emails", jobs[:1], None, "retried"))
    q.nack(jobs[:1], delay=0)
    [again] = q.reserve(block=0)
    with suppress(LookupError), running((metrics,), RunEvent("emails", (again,)), lambda _: "lost"):
        raise LookupError("no")
    found = figures(registry)
    outcomes = {key[3]: value for key, value in found.items() if key[0] == "penstock_jobs_total"}
    assert outcomes == {"done": 2, "retried": 1}
    assert found["penstock_handling_seconds_count", "emails", ""] == 2
    assert found["penstock_queueing_seconds_count", "emails"] == 1
    assert ("penstock_running", "emails", "") not in found


def test_names_begin_with_the_prefix(backend: Backend, registry: CollectorRegistry) -> None:
    """Different prefixes can share a registry; equal ones can't."""
    Prometheus(registry)
    shop = Prometheus(registry, prefix="shop_queue")
    with Penstock(backend.sync_client(), middleware=[shop]) as client:
        client.queue("q").enqueue(1)
    assert figures(registry) == {("shop_queue_enqueued_total", "q"): 1}
    with pytest.raises(ValueError, match="Duplicated"):
        Prometheus(registry)


@pytest.mark.parametrize("prefix", ["", "9a", "a-b", "a b", None, 5, "ä"])
def test_a_prefix_that_can_be_no_name(registry: CollectorRegistry, prefix: object) -> None:
    """An invalid prefix is refused before anything is registered."""
    with pytest.raises(BadArgument, match="prefix="):
        Prometheus(registry, prefix=prefix)  # type: ignore[arg-type]  # on purpose
    assert list(registry.collect()) == []


async def test_asyncio_is_counted_the_same(
    backend: Backend, metrics: Prometheus, registry: CollectorRegistry
) -> None:
    """Two concurrent runs count as two in the gauge."""
    async with (
        backend.async_client() as lent,
        AsyncPenstock(lent, middleware=[metrics]) as client,
    ):
        q = client.queue("emails")
        await q.enqueue_many([1, 2])
        a, b = await q.reserve(2, block=0)
    first, second = (RunEvent("emails", (job,)) for job in (a, b))
    with running((metrics,), first), running((metrics,), second):
        assert figures(registry)["penstock_running", "emails", ""] == 2
    assert figures(registry)["penstock_handling_seconds_count", "emails", ""] == 2
