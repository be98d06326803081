"""A program with the library only in a zip: `zipped.py library.zip redis://…`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from pyspark.sql import SparkSession


def where(batches: Iterator[Any]) -> Iterator[Any]:
    """Return the place from which an executor imported the library."""
    import pyarrow as pa

    import penstock

    for _ in batches:
        yield pa.RecordBatch.from_pydict({"path": [penstock.__file__]})


def main(package: str, url: str) -> None:
    """Write, read back, and print the place of the library."""
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.memory", "1g").config("spark.submit.pyFiles", package)
    spark = builder.config("spark.log.level", "ERROR").getOrCreate()
    sys.path.insert(0, package)
    from penstock.spark import register

    register(spark)
    options = {"queue": "zipped", "url": url}
    rows = spark.range(100).selectExpr("CAST(id AS STRING) AS payload")
    rows.write.format("penstock").mode("append").options(**options).save()
    count = spark.read.format("penstock").options(**options).load().count()
    [path] = {row.path for row in spark.range(2).mapInArrow(where, "path string").collect()}
    print(count, path.split("/penstock/")[0])  # noqa: T201
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
