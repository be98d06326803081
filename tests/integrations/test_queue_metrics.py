"""The figures of all queues for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from penstock import BadArgument, Penstock
from penstock.core.jobs.workers import worker_entry
from penstock.integrations.prometheus import QueueCollector
from penstock.wire.keys import worker_key, workers_key
from tests.support.backends import Backend
from tests.support.keyspace import advance

HOSTILE = 'a "quoted" {name="x"} \\ é'


@pytest.fixture
def ps(backend: Backend) -> Iterator[Penstock]:
    """A client of an empty server."""
    with Penstock(backend.sync_client()) as client:
        yield client


def scraped(ps: Penstock, *args: object) -> dict[tuple[str, ...], float]:
    """Return the values of a scrape, by the name and the labels."""
    registry = CollectorRegistry()
    registry.register(QueueCollector(ps, *args))  # type: ignore[arg-type]  # also wrong ones
    return {
        (sample.name.removeprefix("penstock_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    }


def test_a_job_that_dies_without_a_worker(backend: Backend, ps: Penstock) -> None:
    """A job whose workers were all killed is counted when another client looks for jobs."""
    q = ps.queue("mail")
    q.configure(max_crashes=1)
    q.enqueue_many(range(2), lease=10)
    q.enqueue(3, delay=3600)
    q.ack(q.reserve(1, block=0))
    assert len(q.reserve(1, block=0)) == 1
    advance(backend.sync_client(), q.ops, 11)
    assert q.reserve(1, block=0) == []
    found = scraped(ps)
    assert found["queue_died_total", "mail"] == found["queue_crashed_total", "mail"] == 1
    states = {state: found["queue_jobs", "mail", state] for state in ("ready", "scheduled", "dead")}
    assert states == {"ready": 0, "scheduled": 1, "dead": 1}
    assert found["queue_done_total", "mail"] == 1
    assert found["queue_enqueued_total", "mail"] == 3


def test_waits_pauses_and_workers(backend: Backend, ps: Penstock) -> None:
    """For alerts on a queue without a worker, a long wait, or a forgotten pause."""
    q = ps.queue("mail")
    q.enqueue(1)
    ps.queue("other").pause()
    advance(backend.sync_client(), q.ops, 100)
    raw = backend.sync_client()
    entry = {"version": "1", "concurrency": 8, "since_ms": 1, "seen_ms": 2}
    text = worker_entry(name="w", kind="Worker", host="h", queues=["mail"], **entry)
    raw.set(worker_key("penstock", "0" * 16), text)
    raw.zadd(workers_key("penstock"), {"0" * 16: 2**52})
    found = scraped(ps)
    assert found["up",] == 1
    assert 100 <= found["queue_oldest_wait_seconds", "mail"] < 160
    assert found["queue_oldest_wait_seconds", "other"] == 0
    assert (found["queue_paused", "mail"], found["queue_paused", "other"]) == (0, 1)
    assert (found["queue_workers", "mail"], found["queue_workers", "other"]) == (1, 0)
    [address] = [one.address for one in ps.hello().nodes]
    assert found["node_up", address] == 1


def test_the_number_of_labels_is_bounded(ps: Penstock) -> None:
    """Only the first queues by name have labels, and those of the pattern."""
    for name in ("a", "b", "c", HOSTILE):
        ps.queue(name).enqueue(1)
    assert scraped(ps)["queue_jobs", HOSTILE, "ready"] == 1
    found = scraped(ps, "?", 2)
    assert {key[1] for key in found if key[0] == "queue_died_total"} == {"a", "b"}
    assert found["queues",] == 3
    with pytest.raises(BadArgument, match="most"):
        QueueCollector(ps, most=0)


def test_a_server_that_is_down() -> None:
    """The scrape says so, and has no other figures."""
    ps = Penstock("redis://127.0.0.1:1", retry_for=0)
    assert scraped(ps) == {("up",): 0}
    ps.close()
