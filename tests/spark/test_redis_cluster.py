"""Groups 2, 3, 8 and 9 on a Redis Cluster: slots move while tasks use them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from penstock import Penstock
from penstock.spark import drain
from penstock.wire.keys import QueueKeys, key_slot
from tests.spark.gates import Gate, move
from tests.spark.hands import close_all
from tests.spark.loads import expected, rows
from tests.support.cluster import Cluster, RawCluster, names_apart
from tests.support.keyspace import check_invariant
from tests.support.twins import spawn


@pytest.fixture(scope="module")
def shards() -> Iterator[Cluster]:
    """Three primaries for this file; load causes no failover."""
    with Cluster(3, node_timeout=15_000) as cluster:
        yield cluster
        close_all()


@pytest.fixture
def client(shards: Cluster) -> Iterator[Penstock]:
    """A client of the cluster; each test has its own queues, which are checked at the end."""
    with Penstock(shards.url) as client:
        yield client
    shards.settle()
    with RawCluster(shards) as raw:
        check_invariant(raw)


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    """A gate for tasks."""
    (tmp_path / "gate").mkdir()
    return Gate(tmp_path / "gate")


def slot(queue: str, partition: int | None = None) -> int:
    """Return the slot of a queue or of one of its partitions."""
    return key_slot(QueueKeys(queue, partition=partition)["meta"])


def bodies(client: Penstock, queue: str) -> Counter[bytes]:
    """Count the waiting bodies."""
    return Counter(view.raw for view in client.open(queue).jobs(n=1000))


@pytest.mark.parametrize("mode", ["direct", "staged"])
def test_a_write(mode: str, spark: Any, shards: Cluster, client: Penstock, gate: Gate) -> None:
    """Each row is one job; repeating the write adds nothing, wherever the slot is then."""
    queue = f"written {mode}"
    client.queue(queue).enqueue(b"first")
    given = {"queue": queue, "url": shards.url, "commitMode": mode, "writeId": "load"}
    names = ["payload"] if mode == "staged" else ["id", "payload"]
    frame = rows(spark, parts=2).select(*names)
    held = frame.mapInArrow(gate.batches(), frame.schema)

    def save(frame: Any) -> None:
        frame.write.format("penstock").mode("append").options(**given, batchSize="100").save()

    moving = spawn(move, shards, gate, slot(queue))
    save(held)
    moving.result()
    wanted = expected(parts=2) + Counter([b"first"])
    assert bodies(client, queue) == wanted
    save(frame)
    assert bodies(client, queue) == wanted


def test_a_write_into_partitions(spark: Any, shards: Cluster, client: Penstock, gate: Gate) -> None:
    """Partitions are on all primaries; one of them moves."""
    queue = client.queue("shared out", partitions=6)
    queue.enqueue_many([b"first %d" % number for number in range(60)], key=str)
    assert len({shards.owner(slot("shared out", number)) for number in range(6)}) == 3
    held = rows(spark, parts=2).mapInArrow(gate.batches(), "id string, payload binary")
    sink = held.write.format("penstock").mode("append")
    sink = sink.options(queue="shared out", url=shards.url, idColumn="id", batchSize="100")
    moving = spawn(move, shards, gate, slot("shared out", 3))
    sink.save()
    moving.result()
    found = bodies(client, "shared out")
    assert found == expected(parts=2) + Counter(b"first %d" % number for number in range(60))
    assert min(part.read_stats().ready for part in queue.route.parts) > 200


@pytest.mark.parametrize("partitions", [None, 6])
def test_a_table(
    partitions: int | None, spark: Any, shards: Cluster, client: Penstock, gate: Gate
) -> None:
    """A snapshot has each job once, although the slot of later tasks moves."""
    name = f"read {partitions}"
    queue = client.queue(name, partitions=partitions)
    ids = queue.enqueue_many([b"%d" % number for number in range(600)], key=str).ids
    table = spark.read.format("penstock").options(queue=name, url=shards.url, numPartitions="6")
    held = table.load().select("id").mapInArrow(gate.batches(), "id string")
    moving = spawn(move, shards, gate, slot(name, partitions and partitions - 1))
    assert Counter(row.id for row in held.collect()) == Counter(ids)
    moving.result()
    assert queue.stats().ready == 600


def test_streams(spark: Any, shards: Cluster, client: Penstock, gate: Gate, tmp_path: Path) -> None:
    """A stream from partitions into another queue has each job once and acknowledges it.

    A partition moves while the first batch is read, and the target while it is written.
    """
    source, target = names_apart(shards, 2, "stream")
    queue = client.queue(source, partitions=6)
    queue.enqueue_many([b"%d" % number for number in range(900)], key=str)
    client.queue(target).enqueue(b"first")
    options = {"url": shards.url, "maxJobsPerTrigger": "600", "numPartitions": "6"}
    stream = spark.readStream.format("penstock").options(queue=source, **options).load()
    held = stream.select("payload").mapInArrow(gate.batches(), "payload binary")
    sink = held.writeStream.format("penstock").options(queue=target, url=shards.url)
    sink = sink.options(commitMode="staged", checkpointLocation=str(tmp_path / "checkpoint"))
    moving = spawn(move, shards, gate, slot(source, 5), slot(target))
    sink.trigger(availableNow=True).start().awaitTermination()
    moving.result()
    wanted = Counter([b"first", *(b"%d" % number for number in range(900))])
    assert bodies(client, target) == wanted
    stats = queue.stats()
    assert (stats.ready, stats.active, stats.acked) == (0, 0, 900)


@pytest.mark.parametrize("ack", ["task", "output"])
def test_a_drain(
    ack: str,
    spark: Any,
    shards: Cluster,
    client: Penstock,
    gate: Gate,
    redis_url: str,
    tmp_path: Path,
) -> None:
    """Every job is done and acknowledged once, although a partition moves."""
    name = f"drained {ack}"
    queue = client.queue(name, partitions=6)
    ids = queue.enqueue_many(range(600), key=str).ids

    def handle(job: Any) -> None:
        gate.pass_by(job.id)
        with redis.Redis.from_url(redis_url) as others:
            others.hincrby("worked", job.id)

    path = {"path": str(tmp_path / "out")} if ack == "output" else {}
    moving = spawn(move, shards, gate, *(slot(name, number) for number in range(6)))
    report = drain(
        *(spark,), queue=name, handler=handle, url=shards.url, parallelism=2, batch_size=20,
        ack=ack, **path,
    )  # fmt: skip
    moving.result()
    assert (report.taken, report.done, report.lost) == (600, 600, 0)
    with redis.Redis.from_url(redis_url, decode_responses=True) as others:
        assert others.hgetall("worked") == dict.fromkeys(ids, "1")
    stats = queue.stats()
    assert (stats.ready, stats.active, stats.acked) == (0, 0, 600)
    if path:
        assert spark.read.parquet(path["path"]).select("id").distinct().count() == 600
