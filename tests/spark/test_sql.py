"""Groups 9, 10 and 12: queues as SQL tables, and Spark's lookup of sources."""

from __future__ import annotations

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions

from penstock import Penstock
from penstock.core.values.partitions import partition_of
from penstock.spark import register
from tests.spark import smoke
from tests.spark.support import ROOT, environment

VIEW = "CREATE TEMP VIEW {name} USING penstock OPTIONS (queue '{queue}', url '{url}')"


def test_a_view_is_read_and_written(spark: Any, ps: Penstock, redis_url: str) -> None:
    """`SELECT` sees every job and reserves none; `INSERT INTO` a view
    with the columns of the rows adds jobs.
    """
    jobs = ps.queue("mail")
    jobs.enqueue_many([f"letter {number}" for number in range(50)])
    jobs.enqueue("later", delay=3600)
    jobs.bury(jobs.reserve(10), "no such address")
    spark.sql(VIEW.format(name="jobs", queue="mail", url=redis_url))
    rows = spark.sql("SELECT state, count(*) AS n FROM jobs GROUP BY state").collect()
    assert {row.state: row.n for row in rows} == {"ready": 40, "scheduled": 1, "dead": 10}
    [row] = spark.sql(
        "SELECT count(*) AS n, max(last_error) AS why FROM jobs WHERE state = 'dead'"
    ).collect()
    assert (row.n, row.why) == (10, "no such address")
    spark.sql("CREATE TEMP VIEW fresh AS SELECT 'by sql' AS payload")
    spark.sql(
        "CREATE TEMP VIEW sink (payload STRING) USING penstock "
        f"OPTIONS (queue 'mail', url '{redis_url}')"
    )
    spark.sql("INSERT INTO sink SELECT payload FROM fresh")
    spark.sql(
        "CREATE TEMP VIEW letters (id STRING, payload STRING) USING penstock "
        f"OPTIONS (queue 'mail', url '{redis_url}')"
    )
    for _ in range(2):  # an id is added once
        spark.sql("INSERT INTO letters VALUES ('ada', 'hello')")
    stats = jobs.stats()
    assert (stats.ready, stats.scheduled, stats.dead, stats.active) == (42, 1, 10, 0)


def test_rows_as_json(spark: Any, ps: Penstock, redis_url: str) -> None:
    """A payload made by Spark's `to_json` arrives decoded, from a DataFrame and from SQL."""
    spark.sql(
        "CREATE TEMP VIEW people AS SELECT 'ada' AS k, DATE'2026-01-02' AS born, "
        "named_struct('street', 'Low \"é\"', 'at', named_struct('x', 1.5D)) AS home, "
        "array(named_struct('n', 1), NULL) AS list, map('a', 1) AS map, double('NaN') AS odd, "
        "CAST(1.50 AS DECIMAL(9, 2)) AS price, X'00ff' AS raw, CAST(NULL AS STRING) AS none, "
        "TIMESTAMP'2026-01-02 03:04:05Z' AS time, 60 AS delay"
    )
    frame = spark.table("people")
    options = {"timeZone": "UTC", "ignoreNullFields": "false"}
    text = functions.to_json(functions.struct("*"), options).alias("payload")
    given = {"queue": "mail", "url": redis_url, "payloadFormat": "json", "idColumn": "k"}
    frame.select("k", text).write.format("penstock").mode("append").options(**given).save()
    spark.sql(
        "CREATE TEMP VIEW sink (k STRING, payload STRING) USING penstock OPTIONS (queue 'sql', "
        f"url '{redis_url}', payloadFormat 'json', idColumn 'k')"
    )
    spark.sql("INSERT INTO sink SELECT k, to_json(struct(k, born, none)) FROM people")
    [job], [by_sql] = ps.queue("mail").reserve(9), ps.queue("sql").reserve(9)
    assert (job.dedup_id, by_sql.dedup_id) == ("ada", "ada")
    assert job.body == {
        "k": "ada", "born": "2026-01-02", "home": {"street": 'Low "é"', "at": {"x": 1.5}},
        "list": [{"n": 1}, None], "map": {"a": 1}, "odd": "NaN", "price": 1.5, "raw": "AP8=",
        "none": None, "time": "2026-01-02T03:04:05.000Z", "delay": 60,
    }  # fmt: skip
    assert by_sql.body == {"k": "ada", "born": "2026-01-02"}


def test_spark_computes_the_partition_of_an_id(spark: Any) -> None:
    """`crc32(id) % n` is the partition of the queue to which a row with this id goes."""
    names = ["ada", "50%;d=x", "größe", "日本", "7"]
    frame = spark.createDataFrame([(name,) for name in names], "id string")
    found = {row[0]: row[1] for row in frame.selectExpr("id", "crc32(id) % 16").collect()}
    assert found == {name: partition_of(name, 16) for name in names}


def test_a_view_of_one_state(spark: Any, ps: Penstock, redis_url: str) -> None:
    """Options are those of the reader; a missing queue has no rows."""
    ps.queue("mail").enqueue_many(range(5))
    spark.sql(
        "CREATE TEMP VIEW dead USING penstock "
        f"OPTIONS (queue 'mail', url '{redis_url}', states 'dead')"
    )
    spark.sql(VIEW.format(name="absent", queue="nowhere", url=redis_url))
    assert spark.sql("SELECT * FROM dead").count() == 0
    assert spark.sql("SELECT * FROM absent").count() == 0
    assert ps.queues() == ["mail"]


def test_a_wrong_option_is_named(spark: Any, redis_url: str) -> None:
    """The driver's error has the option, but not a value that may be secret."""
    spark.sql(VIEW.format(name="broken", queue="mail", url="nonsense-with-a-secret"))
    with pytest.raises(Exception, match="option url=") as caught:
        spark.sql("SELECT * FROM broken").collect()
    assert "nonsense-with-a-secret" not in str(caught.value)


def test_a_zip_shipped_with_the_job_beside_a_broken_module(tmp_path: Path, redis_url: str) -> None:
    """`spark.submit.pyFiles`: executors import the library and its Lua files from the zip.

    A broken `pyspark_*` module hides all others; `register` does not need the lookup.
    """
    import penstock

    source = Path(penstock.__file__).parent
    shutil.copytree(source, tmp_path / "src/penstock", ignore=shutil.ignore_patterns("*.pyc"))
    package = Path(shutil.make_archive(str(tmp_path / "library"), "zip", tmp_path / "src"))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "pyspark_broken.py").write_text("raise RuntimeError('broken')\n")
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "spark" / "zipped.py"), str(package), redis_url],
        env=environment() | {"PYTHONPATH": str(tmp_path / "broken")},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    count, path = done.stdout.split()[-2:]
    assert (count, Path(path).name) == ("100", package.name), done.stdout


def test_our_module_never_raises(tmp_path: Path) -> None:
    """Without PySpark our module is empty and does not raise, so it hides no other."""
    (tmp_path / "pyspark.py").write_text("raise ImportError('no pyspark')\n")
    code = "import pyspark_penstock; print(pyspark_penstock.__all__)"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=environment(PYTHONPATH=f"{tmp_path}:{environment()['PYTHONPATH']}"),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == "[]\n"


def test_register_makes_it_known_again(spark: Any, ps: Penstock, redis_url: str) -> None:
    """`register` may be called repeatedly."""
    register(spark)
    register(spark)
    ps.queue("mail").enqueue("x")
    assert spark.read.format("penstock").options(queue="mail", url=redis_url).load().count() == 1


def test_another_thread_with_an_active_session(spark: Any, ps: Penstock, redis_url: str) -> None:
    """Spark looks for sources in the active session of a thread; `createDataFrame` sets it."""
    rows = spark.range(3).selectExpr("CAST(id AS STRING) AS payload")

    def write() -> None:
        spark.createDataFrame([], "id int")
        rows.write.format("penstock").mode("append").options(queue="mail", url=redis_url).save()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(write).result()
    assert ps.queue("mail").stats().ready == 3


def test_every_way_of_this_spark(spark: Any, ps: Penstock, redis_url: str, tmp_path: Path) -> None:
    """The steps of the program for each version of Spark, on the newest one."""
    smoke.batch(spark, ps, redis_url)
    smoke.stream(spark, ps, redis_url, tmp_path)
    smoke.work(spark, ps, redis_url)
