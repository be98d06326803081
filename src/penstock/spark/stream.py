"""The streaming source: micro-batches of leased jobs, acknowledged when Spark has noted them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from penstock.spark.calls import fetch
from penstock.spark.checkpoint import Consumer, Part, lost
from penstock.spark.columns import Origin, Shape, pages
from penstock.spark.options import Stream
from penstock.spark.shards import open_shard
from penstock.wire.replies import Fetch

__all__ = ["StreamReader"]

try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
except ImportError:  # before Spark 4.2

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """There is no such thing."""


class StreamInput(InputPartition):
    """A part of a batch, as Spark hands it to a task."""

    def __init__(self, part: Part) -> None:
        self.part = part


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """What Spark asks of the source; `checkpoint` answers.

    Spark makes several of these, some only to pickle them: nothing is done before the first
    question.

    Args:
        options: as Spark has them.
        schema: the columns that are asked for.
    """

    def __init__(self, options: Mapping[str, str], schema: Any) -> None:
        self.options = Stream.parse(options)
        self.shape = Shape(schema)
        self._consumer: Consumer | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_consumer": None}

    @property
    def consumer(self) -> Consumer:
        """The driver's half, made when it is asked first."""
        if self._consumer is None:
            self._consumer = Consumer(self.options)
        return self._consumer

    # Spark's names; latestOffset has no arguments before 4.2
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Before the first batch."""
        return self.consumer.initial()

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        """As many jobs a trigger as the option says."""
        from pyspark.sql.streaming.datasource import ReadMaxRows

        return ReadMaxRows(self.options.max_jobs_per_trigger)

    def latestOffset(  # noqa: N802
        self, start: dict[str, Any] | None = None, limit: Any = None
    ) -> dict[str, Any]:
        """Acknowledge what is done, reserve the next batch."""
        if limit is None:
            most: int | None = self.options.max_jobs_per_trigger
        else:  # ReadAllAvailable of trigger(once=True) says none
            most = getattr(limit, "max_rows", None)
        return self.consumer.latest(start, most)

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """What waits: it is shown in the query's progress."""
        return self.consumer.figures()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """What can be reserved now is all."""
        self.consumer.available_now()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The parts of a batch."""
        return [StreamInput(part) for part in self.consumer.parts(start, end)]

    def commit(self, end: dict[str, Any]) -> None:
        """What is done is acknowledged, unless `latestOffset` has done that."""
        self.consumer.committed(end)

    def stop(self) -> None:
        """The query has stopped."""
        if self._consumer is not None:
            self._consumer.stop()

    def read(self, partition: Any) -> Iterator[Any]:
        """The jobs of a part that are still ours, as Arrow batches."""
        part: Part = partition.part
        target = self.shape.arrow()
        for page in pages(self._replies(part)):
            if page.count:
                yield self.shape.batch(page, target)

    def _replies(self, part: Part) -> Iterator[tuple[Origin, list[bytes]]]:
        found, at = open_shard(self.options, part.site), part.start
        while at < part.end:
            count = min(self.options.fetch_size, part.end - at)
            call = fetch(found.ops, part.consumer, part.batch, at, count, self.shape.full)
            reply = found.run(call)
            if not isinstance(reply, Fetch) or reply.next <= at:  # forgotten, or finished
                if self.options.fail_on_lost_claim:
                    raise lost(self.options.queue, part.batch)
                return
            at = reply.next
            origin = Origin(self.options.queue, found.node, found.packed(reply.epoch), "active")
            yield origin, reply.jobs
