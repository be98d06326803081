"""Group 8: the streaming source: killed at each step, idle, slow, stopped too long, shared."""

from __future__ import annotations

import json
import shutil
import time
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock import Penstock
from tests.spark.streams import POINTS, consume
from tests.spark.support import Driver, wait_for

BODIES = [f"{number}" for number in range(500)]


def bodies(count: int = len(BODIES)) -> list[bytes]:
    """Return the enqueued bodies."""
    return [body.encode() for body in BODIES[:count]]


class Sink:
    """The content of a query's batches, in this process.

    Attributes:
        batches: number -> bodies, as it was last.
        seen: every body, as often as it came.
    """

    def __init__(self) -> None:
        self.batches: dict[int, list[str]] = {}
        self.seen: Counter[str] = Counter()
        self.before: Callable[[], None] = lambda: None

    def write(self, frame: Any, number: int) -> None:
        """Store a batch; for `foreachBatch`."""
        had = [row.payload for row in frame.collect()]
        self.batches[number] = had
        self.seen.update(had)
        self.before()


@pytest.fixture
def stream(spark: Any, redis_url: str, tmp_path: Path) -> Callable[..., Any]:
    """Return a function that starts a query on `mail`: `stream(sink, checkpoint="…", option=…)`."""

    def start(sink: Sink, checkpoint: str = "own", trigger: Any = None, **options: Any) -> Any:
        source = (
            spark.readStream.format("penstock")
            .schema("payload string, id string")
            .options(queue="mail", url=redis_url, **options)
            .load()
        )
        writer = source.writeStream.foreachBatch(sink.write)
        writer = writer.option("checkpointLocation", str(tmp_path / checkpoint))
        return writer.trigger(**(trigger or {"availableNow": True})).start()

    return start


def left(ps: Penstock, queue: str = "mail") -> tuple[int, int, int]:
    """Count the jobs: ready, active, and dead or scheduled."""
    stats = ps.queue(queue).stats()
    return stats.ready, stats.active, stats.dead + stats.scheduled


def test_a_killed_driver_loses_nothing(
    driver: Callable[..., Driver], spark: Any, ps: Penstock, redis_url: str, tmp_path: Path
) -> None:
    """Three queries are killed with their driver: after a reserve, a sink, and a commit log.

    The batch whose sink had written comes twice with the same jobs; all others once.
    """
    for name in POINTS:
        ps.queue(name).enqueue_many(bodies())
    arguments = {"url": redis_url, "directory": str(tmp_path)}
    run = driver("tests.spark.streams:consume", env={"PENSTOCK_TEST_HALT": "yes"}, **arguments)
    for point in POINTS:
        run.wait_for(point)
    jvm = run.jvm()
    run.kill()
    assert not jvm.is_running()
    consume(spark, **arguments)
    for point in POINTS:
        lines = (tmp_path / f"{point}.notes").read_text().splitlines()
        notes = [json.loads(line) for line in lines]
        numbers = [0, 1, 2, 2, 3, 4] if point == "written" else [0, 1, 2, 3, 4]
        assert [number for number, _ in notes] == numbers
        batches = {number: sorted(had) for number, had in notes}
        assert all(sorted(had) == batches[number] for number, had in notes)
        assert Counter(body for had in batches.values() for body in had) == Counter(BODIES)
        assert left(ps, point) == (0, 0, 0)


def test_available_now_leaves_nothing_leased(stream: Any, ps: Penstock) -> None:
    """All jobs come in batches of the requested size, and all are acknowledged."""
    ps.queue("mail").enqueue_many(bodies())
    sink = Sink()
    query = stream(sink, maxJobsPerTrigger=200)
    query.awaitTermination()
    assert [len(had) for had in sink.batches.values()] == [200, 200, 100]
    assert sink.seen == Counter(BODIES)
    assert left(ps) == (0, 0, 0)
    assert ps.queue("mail").stats().acked == 500


def test_an_idle_stream_acknowledges_its_last_batch(stream: Any, ps: Penstock) -> None:
    """Each trigger finishes batches in the commit log, even without new jobs.

    The progress has the number of waiting jobs.
    """
    queue = ps.queue("mail")
    queue.enqueue_many(bodies())
    queue.enqueue("later", delay=3600)
    sink = Sink()
    query = stream(sink, trigger={"processingTime": "100 milliseconds"})
    wait_for(lambda: queue.stats().acked == 500)
    assert left(ps) == (0, 0, 1)

    def told() -> bool:
        latest = [json.loads(p.json)["sources"][0]["latestOffset"] for p in query.recentProgress]
        return any(one and one.get("scheduled") == 1 for one in latest)

    wait_for(told)
    query.stop()
    assert sink.seen == Counter(BODIES)


def test_a_batch_that_is_slower_than_its_leases(stream: Any, ps: Penstock) -> None:
    """Leases are renewed: another consumer gets nothing for three leases."""
    ps.queue("mail").enqueue_many(bodies(50))
    sink, others = Sink(), list[Any]()
    sink.before = lambda: others.extend(ps.queue("mail").reserve(block=4.5))
    query = stream(sink, leaseDuration="1500ms")
    query.awaitTermination()
    assert others == []
    assert (sink.seen, left(ps)) == (Counter(BODIES[:50]), (0, 0, 0))
    assert ps.queue("mail").stats().crashed == 0


def test_leases_lost_while_the_query_was_down(stream: Any, ps: Penstock) -> None:
    """Another worker has some jobs by then: the batch comes without them, and its
    ack skips them.
    """
    queue = ps.queue("mail")
    queue.enqueue_many(bodies(50))
    sink = Sink()

    def fail() -> None:
        raise RuntimeError("the database is down")

    sink.before = fail
    with pytest.raises(Exception, match="the database is down"):
        stream(sink, leaseDuration="300ms", stopLease="300ms").awaitTermination()
    taken = list[Any]()
    while len(taken) < 20:
        taken += queue.reserve(20 - len(taken), block=10)
    sink.before = lambda: None
    stream(sink, leaseDuration="10m").awaitTermination()
    stolen = {job.body.decode() for job in taken}
    assert set(sink.batches[0]) == set(BODIES[:50]) - stolen
    assert left(ps) == (0, 20, 0)
    assert queue.ack(taken).done == 20


def test_once_leaves_its_batch_to_the_next_start(stream: Any, ps: Penstock) -> None:
    """`trigger(once=True)`: one batch has all jobs despite the limit; the next run acknowledges."""
    ps.queue("mail").enqueue_many(bodies())
    sink = Sink()
    stream(sink, trigger={"once": True}, maxJobsPerTrigger=100).awaitTermination()
    assert [len(had) for had in sink.batches.values()] == [500]
    assert left(ps) == (0, 500, 0)
    stream(sink).awaitTermination()
    assert (sink.seen, left(ps)) == (Counter(BODIES), (0, 0, 0))


def test_a_stop_keeps_the_last_batch_for_the_next_start(stream: Any, ps: Penstock) -> None:
    """Its jobs are done, but Spark tells that only the next start: nobody else gets them."""
    queue = ps.queue("mail")
    queue.enqueue_many(bodies(50))
    sink = Sink()
    query = stream(sink, trigger={"processingTime": "1 hour"}, leaseDuration="3s")
    wait_for(lambda: query.lastProgress)
    query.stop()
    wait_for(lambda: min(one.lease_until for one in queue.jobs("active")) > time.time() + 3000)
    assert queue.reserve(100, block=0) == []
    stream(sink).awaitTermination()
    assert (sink.seen, left(ps)) == (Counter(BODIES[:50]), (0, 0, 0))
    assert queue.stats().crashed == 0


def test_two_queries_share_a_queue(stream: Any, ps: Penstock) -> None:
    """Two queries with their own checkpoints have each job once in total."""
    first, second = Sink(), Sink()
    often = {"processingTime": "50 milliseconds"}
    queries = []
    for sink, name in ((first, "one"), (second, "two")):
        queries.append(stream(sink, name, often, maxJobsPerTrigger=20))
        wait_for(lambda: queries[-1].status["message"].startswith("Waiting"))
    queue, added = ps.queue("mail"), Counter[str]()

    def both_had_some() -> bool:
        if queue.stats().ready < 30:  # or a slow machine has thousands to read at the end
            more = [f"{len(added) + i}" for i in range(30)]
            queue.enqueue_many([body.encode() for body in more])
            added.update(more)
        return bool(first.seen and second.seen)

    wait_for(both_had_some)
    wait_for(lambda: queue.stats().acked == len(added))
    for query in queries:
        query.stop()
    assert first.seen + second.seen == added


def test_a_copied_checkpoint_fails_the_older_query(
    stream: Any, ps: Penstock, tmp_path: Path
) -> None:
    """Of two queries with one checkpoint the later one continues; the older one
    fails with a reason.
    """
    queue, sink, copied = ps.queue("mail"), Sink(), Sink()
    queue.enqueue_many(bodies(10))
    stream(sink, "own").awaitTermination()
    shutil.copytree(tmp_path / "own", tmp_path / "copy")
    # In one session Spark would end queries with one id.
    (tmp_path / "copy" / ".metadata.crc").unlink()
    (tmp_path / "copy" / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))
    often = {"processingTime": "50 milliseconds"}
    older = stream(sink, "own", often)
    queue.enqueue_many(bodies(20)[10:])
    wait_for(lambda: queue.stats().acked == 20)
    newer = stream(copied, "copy", often)
    with pytest.raises(Exception, match="another run of the query uses this checkpoint now"):
        older.awaitTermination(60)
    queue.enqueue_many(bodies(30)[20:])
    wait_for(lambda: queue.stats().acked == 30)
    newer.stop()
    assert sink.seen + copied.seen == Counter(BODIES[:30])


def test_a_queue_that_has_to_be_there(stream: Any, redis_url: str) -> None:
    """Without `requireQueue` a missing queue is an empty one."""
    sink = Sink()
    stream(sink).awaitTermination()
    assert sink.seen == Counter()
    with pytest.raises(Exception, match=r"requireQueue.*queue 'mail' does not exist"):
        stream(sink, "other", requireQueue="true").awaitTermination()


@pytest.mark.parametrize(
    "columns, options, text",
    [
        ("priority int", {}, "option schema='priority'"),
        ("attempt string", {}, "option schema='attempt string'"),
        ("id string", {"fetchSize": "0"}, "option fetchSize='0'"),
        ("id string", {"url": "redis://127.0.0.1:1/0", "retryFor": "0"}, "can't be reached"),
    ],
)
def test_an_error_on_the_driver_comes_last(
    columns: str, options: dict[str, str], text: str, spark: Any, ps: Penstock, redis_url: str,
    tmp_path: Path,
) -> None:  # fmt: skip
    """No error of Spark follows ours, only ours has a traceback, and no job was reserved."""
    ps.queue("mail").enqueue(b"x")
    given = {"queue": "mail", "url": redis_url, **options}
    source = spark.readStream.format("penstock").options(**given).schema(columns).load()
    sink = source.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    with pytest.raises(Exception, match="penstock") as caught:
        sink.trigger(availableNow=True).start().awaitTermination()
    told = str(caught.value)
    assert text in [line for line in told.splitlines() if "Error" in line or "reach" in line][-1]
    assert told.count("Traceback") == 1
    assert ps.queue("mail").stats().deliveries == 0
