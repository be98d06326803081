"""Programs of drivers in their own processes; see `support.Driver`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

__all__ = [
    "connected",
    "drain_slowly",
    "every_kind",
    "registered",
    "watched",
]


def drain_slowly(spark: Any, url: str) -> int:
    """Drain the queue `mail` repeatedly until it is empty."""
    from penstock import Penstock
    from penstock.spark import drain
    from tests.spark.test_drain import leave_a_mark

    def mark(job: Any) -> None:
        leave_a_mark(job)
        time.sleep(0.01)

    done = 0
    with Penstock(url) as client:
        while True:
            report = drain(spark, queue="mail", handler=mark, url=url, parallelism=2, batch_size=32)
            done += report.done
            stats = client.queue("mail").stats()
            if stats.ready + stats.active + stats.scheduled == 0:
                return done
            time.sleep(0.2)


def registered(spark: Any, url: str) -> int:
    """Write and read where Spark can't find the source by name."""
    from penstock.spark import register

    register(spark)
    rows = spark.range(10).selectExpr("CAST(id AS STRING) AS payload")
    options = {"queue": "mail", "url": url}
    rows.write.format("penstock").mode("append").options(**options).save()
    return int(spark.read.format("penstock").options(**options).load().count())


def connected(spark: Any, url: str, directory: str, place: str) -> dict[str, Any]:
    """Read and write in every way on Spark Connect; repeat the writes of `every_kind`."""
    import pytest

    from penstock import BadArgument, Penstock
    from penstock.spark import drain, enqueue_partition, write

    def sized(job: Any) -> int:
        return len(job.raw)

    def added(rows: Iterator[Any]) -> None:
        enqueue_partition(rows, queue="partition", url=url, idColumn="payload")

    def reader(queue: str) -> Any:
        return spark.read.format("penstock").options(queue=queue, url=url).load()

    rows = spark.range(0, 100, 1, 2).selectExpr("to_json(struct(*)) AS payload")
    sink = rows.write.format("penstock").mode("append").option("payloadFormat", "json")
    sink.options(queue="in", url=url).save()
    found: dict[str, Any] = {"module": type(spark).__module__}
    with Penstock(url) as client:
        found["written"] = sorted(job.body["id"] for job in client.queue("in").jobs())
    spark.sql(f"CREATE TEMP VIEW jobs USING penstock OPTIONS (queue 'in', url '{url}')")
    [row] = spark.sql("SELECT count(*) AS n FROM jobs WHERE state = 'ready'").collect()
    found["selected"] = row.n
    source = spark.readStream.format("penstock").options(queue="in", url=url).load()
    sink = source.select("id", "payload").writeStream.format("penstock")
    sink = sink.options(queue="out", url=url, checkpointLocation=f"{directory}/checkpoint")
    sink.trigger(availableNow=True).start().awaitTermination()
    found["streamed"] = reader("out").count()
    rows.foreachPartition(added)
    found["partition"] = reader("partition").count()
    given = {"queue": "counted", "url": url}
    more = rows.union(spark.sql("SELECT 'one more' AS payload"))
    found["counted"] = [
        write(rows, **given, idColumn="payload"),
        write(more, **given, idColumn="payload"),
        write(rows, **given, writeId="a load"),
        write(rows, **given, writeId="a load"),
    ]
    options = {"spark": spark, "handler": sized, "url": url, "parallelism": 2}
    found["drained"] = drain(queue="out", **options).done
    path = f"{directory}/out"
    found["output"] = drain(queue="partition", ack="output", path=path, **options).done
    Path(directory, "file").touch()
    with pytest.raises(BadArgument, match=r"path=.*/file/run=.* Parent path is not a directory"):
        drain(queue="partition", ack="output", path=f"{directory}/file", **options)
    each_batch(spark, url, Path(directory))
    found["batches"] = reader("batches").count()
    every_kind(spark, url, place, 5)
    return found


def each_batch(spark: Any, url: str, place: Path) -> None:
    """Write the same rows in two batches inside `foreachBatch`; the first one fails after that.

    Then a new checkpoint writes them again: its batches have the same numbers.
    """
    import pytest
    from pyspark.errors import StreamingQueryException

    from penstock.spark import name_checkpoint

    (place / "in").mkdir()
    for name in ("a", "b"):
        (place / "in" / name).write_text("x\ny\n")
    sign = place / "sign"

    def handle(own: str, frame: Any, batch: int) -> None:
        given = {"queue": "batches", "url": url, "writeId": f"{own} {batch}"}
        sink = frame.repartition(3 if sign.exists() else 1).write.format("penstock")
        sink.mode("append").options(**given).save()
        if not sign.exists():
            sign.touch()
            raise RuntimeError("as planned")

    frame = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(place / "in"))
    frame = frame.withColumnRenamed("value", "payload")

    def run(checkpoint: str) -> None:
        own = name_checkpoint(spark, checkpoint)
        sink = frame.writeStream.foreachBatch(partial(handle, own)).trigger(availableNow=True)
        sink.option("checkpointLocation", checkpoint).start().awaitTermination()

    with pytest.raises(StreamingQueryException, match="as planned"):
        run(str(place / "batches"))
    run(str(place / "batches"))
    run(str(place / "new"))


def every_kind(spark: Any, url: str, place: str, parts: int) -> None:
    """Write the files of `in` and `ids` in each way, in this many partitions."""

    def save(frame: Any, queue: str, **options: str) -> None:
        sink = frame.write.format("penstock").mode("append")
        sink.options(queue=queue, url=url, **options).save()

    def shaped(frame: Any) -> Any:
        return frame.withColumnRenamed("value", "payload").repartition(parts)

    for name, source, given in (("ids", "ids", {"idColumn": "payload"}), ("staged", "in", {})):
        once = {**given, "writeId": "load"}
        save(shaped(spark.read.text(f"{place}/{source}")), f"batch.{name}", **once)
        files = spark.readStream.format("text").option("maxFilesPerTrigger", 1)
        lines = shaped(files.load(f"{place}/{source}"))
        sink = lines.writeStream.format("penstock").options(queue=f"stream.{name}", url=url)
        sink = sink.options(checkpointLocation=f"{place}/stream.{name}", **given)
        sink.trigger(availableNow=True).start().awaitTermination()
    lines = shaped(spark.read.text(f"{place}/in"))
    numbered = lines.selectExpr(
        "payload",
        "CONCAT_WS('-', 'load', SHA2(payload, 256), "
        "ROW_NUMBER() OVER (PARTITION BY SHA2(payload, 256) ORDER BY 1)) AS id",
    )
    save(numbered, "batch.numbered")


def watched(spark: Any, ways: dict[str, dict[str, str]], directory: str) -> dict[str, Any]:
    """Return everything that Spark shows of each way to connect; each has its own queue."""
    found = {way: _watched(spark, way, given, f"{directory}/{way}") for way, given in ways.items()}
    return {**found, "rest": _pages(spark)}


def _watched(spark: Any, queue: str, options: dict[str, str], directory: str) -> dict[str, Any]:
    """Return everything Spark shows of reads and writes, some failing, except its web pages."""
    import contextlib
    import io

    place = Path(directory)
    (place / "input").mkdir(parents=True)
    (place / "input" / "rows.txt").write_text("a\nb\nc\n" * 10)
    shown = io.StringIO()
    errors: list[str] = []

    def failing(work: Any) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001  # its text is checked
            errors.append(f"{error!r} {error}")
        else:
            raise AssertionError("it did not fail")

    lines = spark.readStream.format("text").load(str(place / "input"))
    sink = lines.withColumnRenamed("value", "payload").writeStream.format("penstock")
    sink = sink.options(queue=queue, checkpointLocation=f"{directory}/checkpoint", **options)
    query = sink.trigger(availableNow=True).start()
    query.awaitTermination()
    frame = spark.read.format("penstock").options(queue=queue, **options).load()
    with contextlib.redirect_stdout(shown):
        for mode in ("simple", "extended", "formatted", "cost"):
            frame.explain(mode=mode)
        query.explain(extended=True)
    given = ", ".join(f"{name} '{value}'" for name, value in options.items())
    spark.sql(f"CREATE OR REPLACE TEMP VIEW jobs USING penstock OPTIONS (queue '{queue}', {given})")
    described = spark.sql("DESCRIBE EXTENDED jobs").collect()
    described += spark.sql(
        f"EXPLAIN CREATE TEMP VIEW other USING penstock OPTIONS (queue '{queue}', {given})"
    ).collect()
    rows = frame.count()
    # Failures on the driver and in a task.
    bad = {**options, "queue": f"dangerous {queue}"}
    failing(lambda: spark.read.format("penstock").options(states="odd", **bad).load().collect())
    failing(
        lambda: spark.read.format("penstock").options(requireQueue="true", **bad).load().count()
    )
    numbers = spark.range(5).selectExpr("IF(id = 3, NULL, 'x') AS payload")
    failing(lambda: numbers.write.format("penstock").mode("append").options(**bad).save())
    away = {**bad, "url": options["url"].rpartition(":")[0] + ":1", "retryFor": "0s"}
    failing(lambda: spark.read.format("penstock").options(**away).load().count())
    failing(lambda: numbers.write.format("penstock").mode("append").options(**away).save())
    return {
        "rows": rows,
        "explain": shown.getvalue(),
        "describe": [str(row) for row in described],
        "progress": [str(one) for one in query.recentProgress],
        "errors": errors,
    }


def _pages(spark: Any) -> list[str]:
    """Return the data of the web pages."""
    import urllib.request

    web = spark.sparkContext.uiWebUrl
    application = spark.sparkContext.applicationId
    rest = []
    for page in ("sql?details=true&length=1000", "environment", "jobs", "stages?details=true"):
        address = f"{web}/api/v1/applications/{application}/{page}"
        with urllib.request.urlopen(address, timeout=60) as answer:
            rest.append(answer.read().decode())
    return rest
