"""The figures of all queues for Prometheus."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from urllib.parse import unquote

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from penstock import BadArgument, Penstock
from penstock.client._sync.metrics import Metrics
from penstock.core.jobs.history import HandlerHistory, JobTimes, QueueHistory, TimesPoint
from penstock.core.jobs.workers import worker_entry
from penstock.core.nodes.metrics import METRICS, Family, as_text
from penstock.core.nodes.times_counter import TimesCounter
from penstock.integrations.prometheus import QueueCollector
from penstock.wire.keys import worker_key, workers_key
from tests.support.backends import Backend
from tests.support.keyspace import advance
from tests.worker.test_history import measure, noted

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


def test_a_late_schedule(backend: Backend, ps: Penstock) -> None:
    """A schedule whose tick no worker has run is late for more than a minute; a paused one not."""
    q = ps.queue("mail")
    for name in ("due", "paused"):
        q.schedules.add(name, job=1, every=3600)
    q.schedules.pause("paused")
    found = scraped(ps)
    assert found["queue_schedules_late", "mail"] == 0
    assert found["queue_schedule_late_seconds", "mail"] == 0
    raw = backend.sync_client()
    seconds, _ = raw.time()
    raw.zadd(q.ops.keys["ticks"], {"due": (int(seconds) - 90) * 1000})
    found = scraped(ps)
    assert found["queue_schedules_late", "mail"] == 1
    assert 90 <= found["queue_schedule_late_seconds", "mail"] < 150


def test_our_text_is_that_of_the_client_of_prometheus(ps: Penstock) -> None:
    """Its parser reads from our text what it reads from its own, also of hostile names."""
    q = ps.queue(HOSTILE + "\n")
    q.enqueue(1)
    ours = as_text(Metrics(ps).read())
    registry = CollectorRegistry()
    registry.register(QueueCollector(ps))
    theirs = generate_latest(registry).decode()

    def read(text: str) -> list[tuple[str, str, str, dict[str, str]]]:
        return [
            (family.name, family.type, sample.name, sample.labels)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        ]

    assert read(ours) == read(theirs)
    assert {family.name for family in Metrics(ps).read()} == {*METRICS}


def test_looking_writes_nothing(backend: Backend, ps: Penstock) -> None:
    """Neither the figures nor the jobs of a queue, also of one that does not exist."""
    q = ps.queue("mail")
    q.enqueue_many(range(3))
    q.reserve(1)
    q.schedules.add("report", job=1, every=3600)
    raw = backend.sync_client()

    def content() -> dict[bytes, object]:
        return {key: raw.dump(key) for key in raw.scan_iter()}

    before = content()
    metrics = Metrics(ps)
    assert metrics.answer("/metrics") is not None
    for name, backlog in (("mail", 3), ("nosuch", 0), ("a%2Fb", 0)):
        answer = metrics.answer(f"/queues/{name}.json")
        assert answer is not None
        document = json.loads(answer.body)
        assert (answer.status, document["backlog"]) == (200, backlog)
        assert document["queue"] == unquote(name)
    assert content() == before


def test_only_queues_of_the_patterns_are_answered(ps: Penstock) -> None:
    """Other paths have no answer; a name that no queue can have is a bad request."""
    metrics = Metrics(ps, ["mail", "shop.*"])
    for path in ("/queues/other.json", "/queues/mail", "/", "/metrics/", "/queues/a/b.json"):
        assert metrics.answer(path) is None
    assert metrics.answer("/queues/shop.eu.json") is not None
    answer = Metrics(ps).answer("/queues/%00.json")
    assert answer is not None
    assert answer.status == 400


def test_jobs_of_a_server_that_is_down() -> None:
    """An autoscaler gets an error, and no zero."""
    ps = Penstock("redis://127.0.0.1:1", retry_for=0)
    answer = Metrics(ps).answer("/queues/mail.json")
    ps.close()
    assert answer is not None
    assert answer.status == 503
    assert "can't be reached" in json.loads(answer.body)["error"]


def test_the_number_of_labels_is_bounded(ps: Penstock) -> None:
    """Only the first queues by name have labels, and those of the pattern."""
    for name in ("a", "b", "c", HOSTILE):
        ps.queue(name).enqueue(1)
    assert scraped(ps)["queue_jobs", HOSTILE, "ready"] == 1
    found = scraped(ps, "?", 2)
    assert {key[1] for key in found if key[0] == "queue_died_total"} == {"a", "b"}
    assert (found["queues",], found["queues_omitted",]) == (3, 1)
    assert scraped(ps)["queues_omitted",] == 0
    with pytest.raises(BadArgument, match="most"):
        QueueCollector(ps, most=0)


def test_a_server_that_is_down() -> None:
    """The scrape says so, and has no other figures."""
    ps = Penstock("redis://127.0.0.1:1", retry_for=0)
    assert scraped(ps) == {("up",): 0}
    ps.close()


def counted(found: Sequence[Family], name: str) -> dict[tuple[str, ...], float]:
    """Return the numbers of jobs of a histogram, by its labels; those of empty buckets are out."""
    [family] = [one for one in found if one.name == f"penstock_queue_{name}_seconds"]
    return {
        (labels["queue"], labels["handler"], labels.get("le", "count")): number
        for _, labels, number in family.lines()
        if number
    }


def test_times_by_handler(backend: Backend, ps: Penstock) -> None:
    """They grow from the first look on with the history, and never shrink when it forgets."""
    raw, times = backend.sync_client(), TimesCounter()
    q, metrics = ps.queue("mail"), Metrics(ps, times=times)

    def work(*runs: tuple[str, float, float]) -> None:
        q.enqueue(1)
        q.ack(q.reserve(1, block=1))
        advance(raw, q.ops, 60)
        measure(q, noted(*runs))

    def look() -> Sequence[Family]:
        times.due = min(times.due, 1e-9)  # a minute is over
        return metrics.read()

    measure(q)  # the work begins
    work(("before", 0.2, 0.2))
    assert counted(look(), "running") == {}
    work(("send", 0.02, 0.3), ("send", 0.02, 7.0), ("", 0.02, 4000.0))
    first = counted(look(), "running")
    ends = ("0.5", "1.0", "5.0")
    assert {one[2]: n for one, n in first.items() if one[1] == "send"} == {
        **dict.fromkeys(ends, 1),
        **dict.fromkeys(("10.0", "60.0", "300.0", "1800.0", "3600.0", "+Inf", "count"), 2),
    }
    assert first["mail", "", "+Inf"] == 1
    assert ("mail", "", "3600.0") not in first
    assert counted(look(), "running") == first
    work(("send", 0.02, 0.3))
    advance(raw, q.ops, 7200)
    work(("send", 0.02, 0.3))
    again = counted(look(), "running")
    assert again["mail", "send", "count"] == 3  # the one of two hours ago came too late
    assert counted(look(), "waiting")["mail", "send", "0.05"] == 3
    q.clear()
    ps.queue("mail").enqueue(1)
    assert counted(look(), "running") == again
    raw.delete(q.ops.keys["history"])
    work(("send", 0.02, 0.3))
    assert counted(look(), "running")["mail", "send", "count"] == 4
    text = as_text(look())
    line = 'penstock_queue_running_seconds_bucket{queue="mail",handler="send",le="0.5"} 3.0'
    assert line in text.splitlines()
    families = {one.name: one for one in text_string_to_metric_families(text)}
    assert families["penstock_queue_running_seconds"].type == "histogram"


def test_handlers_with_times_are_bounded() -> None:
    """Those that come later have none, and are counted."""
    times, point = TimesCounter(), TimesPoint(0.0, JobTimes(), JobTimes((1,) * 14))
    for number in range(30):
        handlers = [HandlerHistory(f"h{name}", [point]) for name in range(10)]
        handlers.append(HandlerHistory(None, [point]))
        times.note(f"q{number}", QueueHistory(60.0, handlers=handlers), is_first=False)
    assert len(times.by_handler) == 200
    assert len(times.omitted) == 130
    assert times.by_handler["q0", "(others)"].running.count == 14
