"""A pipeline on Spark: CSV -> queue -> executors -> parquet, and the handling of dead letters.

The jobs are the modules of Python's standard library. It needs penstock[spark] and Java. It prints:

    loaded twice, each module is one job: True
    each is done, or a dead letter: True
    the parquet has what was done, once: True
    dead letters by reason: ['no docstring', 'not this Python']
    redriven by a filter and done: 2 of 2
    the others are in the archive, and deleted: True
"""

import ast
import csv
import os
import sys
import sysconfig
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.functions import struct, to_json
from server import url

from penstock import Penstock
from penstock.spark import drain
from penstock.worker.results import Reject

os.environ["PYSPARK_PYTHON"] = sys.executable
LIBRARY = Path(sysconfig.get_paths()["stdlib"])
ODD = [("odd1.py", "x = 1\n"), ("odd2.py", "def f(): ...\n"), ("old.py", "print 1\n")]


def outline(job):
    """Return lines and functions of a module; this runs on an executor."""
    source = job.body["source"]
    try:
        tree = ast.parse(source)
    except SyntaxError:
        raise Reject("not this Python") from None
    if ast.get_docstring(tree) is None:
        raise Reject("no docstring")
    return source.count("\n"), sum(isinstance(node, ast.FunctionDef) for node in ast.walk(tree))


with tempfile.TemporaryDirectory() as place, Penstock(url()) as ps:
    builder = SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", False)
    spark = builder.config("spark.sql.warehouse.dir", f"{place}/warehouse").getOrCreate()
    queue = {"queue": "example.spark", "url": url()}
    write = {"format": "penstock", "mode": "append", **queue}

    # CSV to queue: all rows or none, and each once, however often the file is loaded.
    sources = [(path.name, path.read_text("utf-8", "replace")) for path in LIBRARY.glob("*.py")]
    with Path(f"{place}/modules.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("path", "source"), *sources, *ODD])
    rows = spark.read.csv(f"{place}/modules.csv", header=True, multiLine=True, escape='"')
    named = rows.select("path", to_json(struct("*")).alias("payload")).write
    for _ in range(2):
        named.save(idColumn="path", payloadFormat="json", commitMode="staged", **write)
    jobs = ps.queue("example.spark")
    count = len(sources) + len(ODD)
    print("loaded twice, each module is one job:", jobs.stats().ready == count)

    # Queue to parquet: a job is acknowledged when its result is safe.
    output = {"ack": "output", "path": f"{place}/results", "schema": "lines int, functions int"}
    done = drain(spark, handler=outline, parallelism=2, **output, **queue)
    print("each is done, or a dead letter:", done.done + done.dead == count)
    results = spark.read.parquet(f"{place}/results")
    print("the parquet has what was done, once:", results.count() == done.done > 0)

    # Dead letters: archived, inspected, some redriven, the others deleted.
    dead = spark.read.format("penstock").options(states="dead", **queue).load()
    dead.write.parquet(f"{place}/archive")
    archive = spark.read.parquet(f"{place}/archive")
    archive.selectExpr("*", "CAST(payload AS STRING) AS text").createTempView("archive")
    reasons = spark.sql("SELECT DISTINCT last_error AS why FROM archive ORDER BY why")
    print("dead letters by reason:", [row.why for row in reasons.collect()])
    odd = spark.sql("SELECT id FROM archive WHERE get_json_object(text, '$.path') LIKE 'odd%'")
    odd.write.save(operation="redrive", **write)
    again = drain(spark, handler=lambda job: print(job.id), **queue)
    print("redriven by a filter and done:", again.done, "of", odd.count())
    archive.join(odd, "id", "left_anti").select("id").write.save(operation="delete", **write)
    print("the others are in the archive, and deleted:", jobs.stats().dead == 0 < archive.count())
    ps.clear(["example.spark"])
    spark.stop()
