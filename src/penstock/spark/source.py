"""The data source: its readers and writers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from penstock.spark.schema import SCHEMA

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from penstock.spark.snapshot import SnapshotReader
    from penstock.spark.stream import StreamReader
    from penstock.spark.writer import BatchWriter, StreamWriter

__all__ = ["PenstockDataSource"]


class PenstockDataSource(DataSource):
    """The data source `penstock`, for `spark.read`, `readStream`, `df.write` and `writeStream`.

    docs/spark.md has the options. A batch read never takes a job; a streaming read does.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return "penstock"

    def schema(self) -> str:
        """Return the columns of both readers, unless the caller gives some of them."""
        return SCHEMA

    def reader(self, schema: StructType) -> SnapshotReader:
        """Return the reader of a snapshot."""
        from penstock.spark.snapshot import SnapshotReader

        return SnapshotReader(self.options, schema)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802  # Spark's name
        """Return the reader of a stream, whose leases belong to the checkpoint."""
        from penstock.spark.stream import StreamReader

        return StreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Return the writer of a DataFrame."""
        from penstock.spark.writer import BatchWriter

        return BatchWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802  # Spark's name
        """Return the writer of micro-batches."""
        from penstock.spark.writer import StreamWriter

        return StreamWriter(self.options, schema, overwrite)
