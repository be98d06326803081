"""The data source: what Spark asks, and who answers."""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import DataSource

from penstock.spark.schema import SCHEMA

__all__ = ["PenstockDataSource"]


class PenstockDataSource(DataSource):
    """Queues: `spark.read`, `df.write`, `spark.readStream`, `df.writeStream` `.format("penstock")`.

    docs/spark.md has the options. A batch read never takes a job; a streaming read does.
    """

    @classmethod
    def name(cls) -> str:
        """As in `format`."""
        return "penstock"

    def schema(self) -> str:
        """Of both readers, unless the caller gives a part of it."""
        return SCHEMA

    def reader(self, schema: Any) -> Any:
        """Of a snapshot."""
        from penstock.spark.snapshot import reader

        return reader(self.options, schema)

    def streamReader(self, schema: Any) -> Any:  # noqa: N802  # Spark's name
        """A consumer whose leases are bound to the checkpoint."""
        from penstock.spark.stream import StreamReader

        return StreamReader(self.options, schema)

    def writer(self, schema: Any, overwrite: bool) -> Any:
        """Of a batch."""
        from penstock.spark.writer import BatchWriter

        return BatchWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802  # Spark's name
        """Of one micro-batch after the other."""
        from penstock.spark.writer import StreamWriter

        return StreamWriter(self.options, schema, overwrite)
