"""The streaming source: micro-batches of leased jobs, acknowledged after Spark's commit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyarrow import RecordBatch
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from penstock.spark.calls import about_batch
from penstock.spark.checkpoint import BatchSlice, Consumer, lost
from penstock.spark.columns import Origin, Shape, pages
from penstock.spark.options import Stream
from penstock.spark.shards import open_listed
from penstock.wire.replies import Fetch

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["StreamReader"]

try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
except ImportError:  # before Spark 4.2

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]  # in place of Spark's
        """A placeholder."""


class StreamReader(Consumer, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of the streaming source."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        super().__init__(Stream.parse(options))
        self.shape = Shape(schema)

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options, "shape": self.shape}  # what `read` needs

    def getDefaultReadLimit(self) -> Any:  # noqa: N802  # Spark's name
        """Return the limit of `maxJobsPerTrigger`."""
        from pyspark.sql.streaming.datasource import ReadMaxRows

        return ReadMaxRows(self.options.max_jobs_per_trigger)

    def latestOffset(  # noqa: N802  # Spark's name; no arguments before Spark 4.2
        self, start: dict[str, Any] | None = None, limit: Any = None
    ) -> dict[str, Any]:
        """Acknowledge the jobs of the finished batch, and reserve the next one."""
        most = self.options.max_jobs_per_trigger
        # ReadAllAvailable of trigger(once=True) has no number.
        return self.latest(start, most if limit is None else getattr(limit, "max_rows", None))

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """Yield the jobs of a slice that the query still holds."""
        assert isinstance(partition, BatchSlice)
        for page in pages(self._replies(partition)):
            if page.count:
                yield self.shape.batch(page)

    def _replies(self, whole: BatchSlice) -> Iterator[tuple[Origin, list[bytes]]]:
        shards = open_listed(self.options, [one.address for one in whole.ranges])
        for found, (_, batch, at, end) in zip(shards, whole.ranges, strict=True):
            while at < end:
                count = min(self.options.fetch_size, end - at)
                args = (batch, at, count, self.shape.full)
                reply = found.run(about_batch(found.ops, "fetch", whole.consumer, *args))
                if not isinstance(reply, Fetch) or reply.next <= at:  # forgotten, or finished
                    if self.options.fail_on_lost_batch:
                        raise lost(self.options.queue, batch)
                    break
                at = reply.next
                packed = found.ops.place(reply.epoch).packed
                yield Origin(self.options.queue, found.node, packed, "active"), reply.jobs
