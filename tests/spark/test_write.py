"""Groups 3, 6, 7 and 10: the sinks on Spark with faults; no row is lost or doubled."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock import Penstock
from penstock.spark import enqueue_partition, name_checkpoint, write
from tests.spark.loads import (
    breaking,
    consumed,
    expected,
    files,
    forget_last,
    pushing,
    rows,
    streamed,
    written,
)
from tests.spark.support import Driver, wait_for


def waiting(ps: Penstock, queue: str = "mail") -> Counter[bytes]:
    """Count the waiting bodies."""
    return Counter(job.raw for job in ps.queue(queue).jobs(n=1000))


@pytest.mark.parametrize("how, mode", [("raise", "direct"), ("kill", "staged")])
def test_a_task_that_is_repeated_adds_nothing_twice(
    how: str, mode: str, spark: Any, redis_url: str, tmp_path: Path
) -> None:
    """A task is repeated in another order, with equal rows, while a consumer works: each row is
    added once.
    """
    with consumed(redis_url) as seen:
        written(spark, redis_url, str(tmp_path / "sign"), how, commitMode=mode, idColumn="id")
    assert seen == expected()
    assert (tmp_path / "sign").exists()


@pytest.mark.parametrize("how, mode", [("raise", "staged"), ("kill", "direct")])
def test_rows_without_ids_are_distinguished_by_content(
    how: str, mode: str, spark: Any, redis_url: str, tmp_path: Path
) -> None:
    """Group 6: rows without ids are identified by content, also if a repeat has another order."""
    frame = rows(spark).select("payload")
    broken = frame.mapInArrow(breaking(how, str(tmp_path / "sign")), "payload binary")
    sink = broken.write.format("penstock").mode("append")
    with consumed(redis_url) as seen:
        sink.options(queue="mail", url=redis_url, batchSize="100", commitMode=mode).save()
    assert seen == expected()
    assert (tmp_path / "sign").exists()


def test_the_same_by_hand_doubles(spark: Any, redis_url: str, tmp_path: Path) -> None:
    """The control: without penstock's sink these faults do double jobs."""
    frame = rows(spark).mapInArrow(
        breaking("raise", str(tmp_path / "sign")), "id string, payload binary"
    )
    with consumed(redis_url) as seen:
        frame.foreachPartition(pushing(redis_url))
    assert seen.total() > expected().total()
    assert set(seen) == set(expected())


def test_a_write_that_fails_for_good(spark: Any, ps: Penstock, redis_url: str) -> None:
    """direct: accepted rows stay, and the same name completes the write. staged: no
    row is added.
    """
    frame = rows(spark)
    bad = frame.selectExpr("IF(id = '3000', NULL, id) AS id", "payload")
    for mode, some in (("staged", False), ("direct", True)):
        given = {"queue": "mail", "url": redis_url, "commitMode": mode, "writeId": mode}
        with pytest.raises(Exception, match=r"column 'id', row \d+ of its partition"):
            bad.write.format("penstock").mode("append").options(**given).save()
        assert (ps.queue("mail").stats().ready > 0) is some
        assert ps.topology.executor.command("KEYS", "penstock:{mail}:stage:*") == []
    frame.write.format("penstock").mode("append").options(**given).save()
    assert waiting(ps) == expected()


def test_errors_are_the_drivers(spark: Any, ps: Penstock, redis_url: str) -> None:
    """Group 10: errors come before a task runs and have the option or column; also
    without a server.
    """
    frame = rows(spark)
    whole = {"queue": "mail", "url": redis_url}

    def told(frame: Any, mode: str = "append", **options: str) -> str:
        with pytest.raises(Exception) as caught:  # noqa: PT011  # Spark's own, by version
            frame.write.format("penstock").mode(mode).options(**options).save()
        assert "Job aborted" not in str(caught.value)
        return str(caught.value)

    assert "option 'queue'" in told(frame, url=redis_url)
    assert "option 'url'" in told(frame, queue="mail")
    assert "did you mean 'batchSize'" in told(frame, batchsiz="5", **whole)
    assert "option idColumn='key'" in told(frame, idColumn="key", **whole)
    assert "'extra'" in told(frame.selectExpr("*", "1 AS extra"), **whole)
    assert "timestamp" in told(frame.selectExpr("*", "'x' AS ready_at"), **whole)
    assert "purge" in told(frame, "overwrite", **whole)
    assert "the server can't be reached" in told(
        frame, queue="mail", url="redis://127.0.0.1:1", retryFor="0"
    )
    for mode in ("errorifexists", "ignore"):
        assert "append" in told(frame, mode, **whole).lower()
    assert ps.queues() == []


def test_a_full_queue_without_consumers(spark: Any, ps: Penstock, redis_url: str) -> None:
    """Both tasks wait in vain; the error says so, and the fitting rows are added."""
    ps.queue("mail").configure(max_length=500)
    given = {"queue": "mail", "url": redis_url, "fullTimeout": "300ms", "idColumn": "id"}
    with pytest.raises(Exception, match=r"(?s)fullTimeout.*may need"):
        rows(spark).write.format("penstock").mode("append").options(**given).save()
    assert ps.queue("mail").stats().ready == 500


def test_a_bounded_queue_with_a_consumer(spark: Any, ps: Penstock, redis_url: str) -> None:
    """The writers continue when there is room."""
    ps.queue("mail").configure(max_length=150)
    given = {"queue": "mail", "url": redis_url, "idColumn": "id"}
    with consumed(redis_url) as seen:
        rows(spark).write.format("penstock").mode("append").options(**given).save()
    assert seen == expected()


@pytest.mark.parametrize("ids", [False, True])
def test_a_batch_that_spark_has_forgotten_comes_again(
    ids: bool, spark: Any, ps: Penstock, redis_url: str, tmp_path: Path
) -> None:
    """Group 7: without the checkpoint's last commit the last batch is repeated."""
    lines = files(tmp_path / "in", 2, 300, equal=not ids)
    places = {"source": str(tmp_path / "in"), "checkpoint": str(tmp_path / "ck")}
    given = {**places, **({"idColumn": "payload"} if ids else {})}
    assert streamed(spark, redis_url, **given) >= 2
    assert waiting(ps) == lines
    forget_last(tmp_path / "ck")
    assert streamed(spark, redis_url, **given) >= 1
    assert waiting(ps) == lines
    lines += files(tmp_path / "more", 1, 100, first=7, equal=not ids)
    (tmp_path / "more" / "7.txt").rename(tmp_path / "in" / "9.txt")
    streamed(spark, redis_url, **given)
    assert waiting(ps) == lines


def test_a_query_that_is_stopped_in_the_middle_of_a_batch(
    spark: Any, ps: Penstock, redis_url: str, tmp_path: Path
) -> None:
    """staged: no row of the batch is visible; the next start adds all of them once."""
    lines = files(tmp_path / "in", 1, 2000)
    ps.queue("mail").enqueue(b"other")
    frame = spark.readStream.format("text").load(str(tmp_path / "in"))
    sign = tmp_path / "sign"
    hanging = frame.selectExpr("CAST(value AS BINARY) AS payload").repartition(2)
    hanging = hanging.mapInArrow(breaking("hang", str(sign)), "payload binary")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    given = {"queue": "mail", "url": redis_url, "checkpointLocation": str(tmp_path / "ck")}
    sink = hanging.writeStream.format("penstock").options(commitMode="staged", **given)
    query = sink.start()
    wait_for(sign.exists)
    query.stop()
    assert waiting(ps) == Counter([b"other"])
    query = sink.trigger(availableNow=True).start()
    query.awaitTermination()
    assert waiting(ps) == lines + Counter([b"other"])


def test_a_driver_that_dies_while_staged_rows_are_moved(
    spark: Any, ps: Penstock, redis_url: str, tmp_path: Path, driver: Callable[..., Driver]
) -> None:
    """The driver is killed while rows are published; the next start publishes the rest."""
    lines = files(tmp_path / "in", 1, 1500)
    ps.queue("mail").configure(max_length=600)
    given = {
        "url": redis_url, "source": str(tmp_path / "in"), "checkpoint": str(tmp_path / "ck"),
        "commitMode": "staged", "batchSize": "100",
    }  # fmt: skip
    first = driver("tests.spark.loads:streamed", **given)
    wait_for(lambda: ps.queue("mail").stats().ready == 600)
    first.kill()
    assert ps.queue("mail").stats().ready == 600
    ps.queue("mail").configure(max_length=None)
    streamed(spark, **given)
    assert waiting(ps) == lines
    assert ps.topology.executor.command("KEYS", "penstock:{mail}:stage:*") == []


def test_for_each_batch(spark: Any, ps: Penstock, redis_url: str, tmp_path: Path) -> None:
    """A batch that fails after its writes is repeated: sink and function add it once.

    This holds in other partitions too. A staged write there needs a name.
    """
    lines = files(tmp_path / "in", 1, 200)
    tries: list[int] = []

    def push(found: Any) -> None:
        enqueue_partition(found, queue="function", url=redis_url, idColumn="payload")

    def handle(frame: Any, batch: int) -> None:
        frame = frame.repartition(1 + 2 * len(tries))
        sink = frame.write.format("penstock").mode("append").options(queue="mail", url=redis_url)
        with pytest.raises(Exception, match=r"'writeId'.*foreachBatch"):
            sink.save()
        sink.option("writeId", "load").save()
        frame.foreachPartition(push)
        tries.append(batch)
        if len(tries) == 1:
            raise RuntimeError("as planned")

    frame = spark.readStream.format("text").load(str(tmp_path / "in"))
    frame = frame.withColumnRenamed("value", "payload")
    sink = frame.writeStream.foreachBatch(handle).trigger(availableNow=True)
    sink = sink.option("checkpointLocation", str(tmp_path / "ck"))
    with pytest.raises(Exception, match="as planned"):
        sink.start().awaitTermination()
    sink.start().awaitTermination()
    assert tries == [0, 0]
    assert waiting(ps) == lines
    assert waiting(ps, "function") == Counter(set(lines))


def test_jobs_are_settled_by_rows(spark: Any, ps: Penstock, redis_url: str) -> None:
    """`operation` on the ordinary sink: acknowledge, redrive, delete."""
    queue = ps.queue("mail")
    queue.enqueue_many([b"%d" % number for number in range(30)])
    jobs = queue.reserve(20, block=0)
    queue.bury(jobs[10:])

    def settle(operation: str, frame: Any) -> None:
        given = {"queue": "mail", "url": redis_url, "operation": operation}
        frame.write.format("penstock").mode("append").options(**given).save()

    held = spark.createDataFrame(
        [(job.id, job.receipt) for job in jobs[:10]], "id string, receipt string"
    )
    settle("ack", held)
    dead = spark.createDataFrame([(job.id,) for job in jobs[10:]], "id string")
    settle("redrive", dead.limit(4))
    stats = queue.stats()
    assert (stats.ready, stats.active, stats.dead) == (14, 0, 6)
    settle("delete", dead)
    assert queue.stats().ready + queue.stats().dead == 10


def test_a_write_that_returns_counts(spark: Any, ps: Penstock, redis_url: str) -> None:
    """Rows whose ids are taken are counted; of a failed write none is, if it is staged."""
    given = {"queue": "mail", "url": redis_url}
    frame = rows(spark)
    count = frame.count()
    first = {"rows": count, "added": count, "duplicates": 0}
    assert write(frame, **given, idColumn="id") == first
    assert write(frame, **given, idColumn="id") == {**first, "added": 0, "duplicates": count}
    ps.queue("mail").clear()
    bodies = frame.select("payload")
    failing = bodies.selectExpr(
        "CASE WHEN rand() < 2 THEN raise_error('no') ELSE payload END payload"
    )
    with pytest.raises(Exception, match="no"):
        write(bodies.union(failing), **given)
    assert waiting(ps) == Counter()
    assert write(bodies, **given, writeId="load") == first
    assert waiting(ps) == expected()
    with pytest.raises(TypeError, match="frame must be a DataFrame"):
        write(spark, **given)


def test_the_name_of_a_checkpoint(spark: Any, tmp_path: Path) -> None:
    """It is the same for each start, and another one in a new directory at the same place."""
    place = str(tmp_path / "checkpoint")
    name = name_checkpoint(spark, place)
    assert name_checkpoint(spark, place + "/") == name
    shutil.rmtree(place)
    assert name_checkpoint(spark, place) != name
