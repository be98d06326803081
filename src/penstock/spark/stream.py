"""The streaming source: micro-batches of leased jobs, acknowledged after Spark's commit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyarrow import RecordBatch
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from penstock.spark.calls import fetch
from penstock.spark.checkpoint import Consumer, Part, lost
from penstock.spark.columns import Origin, Shape, pages
from penstock.spark.options import Stream
from penstock.spark.shards import open_shard
from penstock.wire.replies import Fetch

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["StreamReader"]

try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
except ImportError:  # before Spark 4.2

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]  # in place of Spark's
        """A placeholder."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of the streaming source; `checkpoint` has its logic.

    Spark creates several readers, some only to pickle them. So nothing is done before the first
    call of a method.

    Args:
        options: as Spark passes them.
        schema: the columns to read.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self.options = Stream.parse(options)
        self.shape = Shape(schema)
        self._consumer: Consumer | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_consumer": None}

    @property
    def consumer(self) -> Consumer:
        """Consumer on the driver, made when it is needed."""
        if self._consumer is None:
            self._consumer = Consumer(self.options)
        return self._consumer

    # Spark's names; latestOffset has no arguments before 4.2
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Return the offset before the first batch."""
        return self.consumer.initial()

    def getDefaultReadLimit(self) -> Any:  # noqa: N802  # Spark's name
        """Return the limit of `maxJobsPerTrigger`."""
        from pyspark.sql.streaming.datasource import ReadMaxRows

        return ReadMaxRows(self.options.max_jobs_per_trigger)

    def latestOffset(  # noqa: N802  # Spark's name
        self, start: dict[str, Any] | None = None, limit: Any = None
    ) -> dict[str, Any]:
        """Acknowledge the jobs of the finished batch, and reserve the next one."""
        if limit is None:
            most: int | None = self.options.max_jobs_per_trigger
        else:  # ReadAllAvailable of trigger(once=True) says none
            most = getattr(limit, "max_rows", None)
        return self.consumer.latest(start, most)

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Return the numbers of jobs, which the query's progress shows."""
        return self.consumer.figures()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        """Let the query end after the jobs that are ready now."""
        self.consumer.available_now()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the parts of a batch."""
        return self.consumer.parts(start, end)

    def commit(self, end: dict[str, Any]) -> None:
        """Acknowledge the jobs of a batch, unless `latestOffset` has done that."""
        self.consumer.committed(end)

    def stop(self) -> None:
        """Stop renewing leases: the query has stopped."""
        if self._consumer is not None:
            self._consumer.stop()

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """Yield the jobs of a part that the query still holds."""
        assert isinstance(partition, Part)
        for page in pages(self._replies(partition)):
            if page.count:
                yield self.shape.batch(page)

    def _replies(self, part: Part) -> Iterator[tuple[Origin, list[bytes]]]:
        found, at = open_shard(self.options, part.address), part.start
        while at < part.end:
            count = min(self.options.fetch_size, part.end - at)
            call = fetch(found.ops, part.consumer, part.batch, at, count, self.shape.full)
            reply = found.run(call)
            if not isinstance(reply, Fetch) or reply.next <= at:  # forgotten, or finished
                if self.options.fail_on_lost_batch:
                    raise lost(self.options.queue, part.batch)
                return
            at = reply.next
            origin = Origin(
                self.options.queue, found.node, found.ops.place(reply.epoch).packed, "active"
            )
            yield origin, reply.jobs
