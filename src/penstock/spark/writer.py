"""The writers: the work of Spark's driver and tasks for a batch, and for each micro-batch.

A writer is made on the driver and pickled to every attempt of every task, and to commit or abort.
So values that all of them share are made here, once. The rows that an attempt has sent stay on the
server when another attempt is committed. Both attempts send the same rows: see `encoding`.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql import datasource as api
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from penstock.core.jobs.logs import get_logger
from penstock.errors import BadArgument
from penstock.spark.calls import Staged
from penstock.spark.encoding import Encoder, Task, columns_of, name_of, preferred, task
from penstock.spark.errors import OptionError
from penstock.spark.operations import Settler
from penstock.spark.options import Write
from penstock.spark.shards import open_in_task, open_on_driver
from penstock.spark.sink import Sink
from penstock.spark.staged_commit import StagedAttempt, StagedCommit, shard_of

if TYPE_CHECKING:
    from pyspark.sql.types import StructField, StructType

__all__ = ["BatchWriter", "StreamWriter", "TaskReport"]

logger = get_logger("penstock")
USUAL_DUPLICATES = 0.1
"""Share of the rows of a write whose ids are taken, without a warning."""
StreamBase: Any = getattr(api, "DataSourceStreamArrowWriter", api.DataSourceStreamWriter)
"""Spark 4.0 writes streams row by row."""


@dataclass(frozen=True)
class TaskReport(WriterCommitMessage):
    """The report of one task.

    Attributes:
        counts: the number of rows, and of each outcome.
        staged: of a staged write: where its rows are.
        is_repeated: whether an earlier attempt of the task may have added rows.
        token, chunks: of a staged write: the attempt's rows; 0 = none, the batch was committed
            before.
    """

    counts: dict[str, int]
    staged: Staged | None = None
    token: str = ""
    chunks: int = 0
    is_repeated: bool = False


class QueueWriter:
    """The writer of a batch or a stream. It is pickled, so it holds no connection.

    Attributes:
        fields: name and type of each column.
        nodes: ids of the nodes that the driver reaches.
        own: names a write that has no `writeId`.
    """

    streams = False

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        if overwrite:
            name, mode = ("outputMode", "complete") if self.streams else ("mode", "overwrite")
            reason = 'must be "append"; to remove jobs first, use Queue.purge() or `penstock purge`'
            raise OptionError(name, mode, reason)
        given = Write.parse(options)
        self.fields = tuple(map(_field, schema.fields))
        self.own = secrets.token_hex(8)
        columns = columns_of(self.fields, given)
        self.has_ids = "id" in columns
        if given.operation == "enqueue":
            mode = given.commit_mode or ("direct" if self.has_ids else "staged")
            given = replace(given, commit_mode=mode)
            given.check_repeats(self.has_ids, named=self.streams or bool(given.write_id))
        self.options = given
        needs_all = given.operation == "enqueue" and not given.skip_unreachable
        found = open_on_driver(given, whole=needs_all)
        self.nodes = found.nodes
        if given.commit_mode == "staged":
            shard = shard_of(given, self.nodes[0], found)
            if "priority" in columns and shard.queue.stats().settings.ordered:
                reason = f"queue {given.queue!r} is ordered and has no priorities: drop the column"
                raise BadArgument("column", self.fields[columns["priority"]][0], reason)

    def write(self, iterator: Iterator[Any]) -> TaskReport:
        """Write one partition: one attempt of one task."""
        options, where = self.options, task()
        found = open_in_task(options, self.nodes)
        if options.operation != "enqueue":
            return TaskReport(Settler(options, self.fields, found).put(iterator))
        encoder = partial(Encoder, self.fields, options, where, self.own)
        if options.commit_mode == "staged":
            name = self._stage_name(where)
            attempt = StagedAttempt(options, name, found)
            rows = attempt.put(encoder(attempt.token).records(iterator))
            return TaskReport({"rows": rows}, name, attempt.token, attempt.chunks)
        options.check_repeats(self.has_ids, named=bool(where.query))
        counts = Sink(options, self.nodes, found).put(encoder().records(iterator))
        return TaskReport(counts, is_repeated=where.attempt > 0)

    def _stage_name(self, where: Task | None = None) -> Staged:
        """Return the place of staged rows: by query and batch, else by the name of the write."""
        write_id, batch = self.options.write_id, 0
        writer = name_of("batch", write_id or self.own).hex()
        if where is not None and where.query:
            if not write_id and not self.streams:
                reason = "is required in foreachBatch for rows without ids, to name this write"
                raise OptionError("writeId", None, reason)
            writer, batch = name_of("stream", write_id, where.query).hex(), int(where.batch)
        return Staged(preferred(writer, self.nodes), writer, batch)

    def commit(self, messages: Sequence[Any], batchId: int | None = None) -> None:  # noqa: N803  # Spark's name
        """Make jobs of the staged rows: all tasks have finished.

        Spark calls it again for a micro-batch, if the query is restarted before it is noted.
        """
        self.finish(messages, batchId)

    def finish(self, messages: Sequence[Any], batch: int | None = None) -> dict[str, int]:
        """Commit, and return the number of `rows` and of each outcome."""
        reports, name, total = _summed(messages)
        if self.options.operation == "enqueue":
            total.update(rows=0, added=0, duplicates=0)
        if name is not None:
            attempts = [(one.token, one.chunks) for one in reports if one.chunks]
            is_named = bool(self.options.write_id) or name != self._stage_name()
            try:
                commit = StagedCommit(self.options, name, is_named=is_named)
                total["added"] = commit.run(attempts, total["rows"])
                total["duplicates"] = total["rows"] - total["added"]
            except Exception as error:
                error.args = (f"{error}. {self._rest()}",)
                raise
        logger.info("%s: written %s", self._place(batch), _told(total))
        share = total["duplicates"] / max(1, total["rows"])
        if name is None and share > USUAL_DUPLICATES and not any(r.is_repeated for r in reports):
            text = "%s: %d of %d rows added nothing: jobs with their ids exist, or were done "
            text += "within dedupWindow. If the rows are new, make their ids from their data: a "
            text += "generated one, as of monotonically_increasing_id(), comes again next time"
            logger.warning(text, self._place(batch), total["duplicates"], total["rows"])
        return dict(total)

    def _rest(self) -> str:
        if self.streams:
            return "The next start of the query adds the missing rows"
        name = self.options.write_id or self.own
        return f"To add the missing rows and none twice, repeat the write with writeId={name}"

    def abort(self, messages: Sequence[Any], batchId: int | None = None) -> None:  # noqa: N803  # Spark's name
        """Remove the staged rows, unless they were committed: a task, or commit, has failed."""
        _, name, total = _summed(messages)
        if self.options.commit_mode == "staged":
            name = name or self._stage_name()  # no task has reported it
        after = "the rows that were added stay in the queue"
        if name is not None:
            is_gone = StagedCommit(self.options, name).abort()
            after = "none of its rows are added" if is_gone else self._rest()
        elif self.options.operation != "enqueue":
            after = "the jobs of finished tasks are settled, and repeating the write settles others"
        elif not self.streams:
            others = "the others" if self.has_ids else "all rows again, as they have no ids"
            after += f", and repeating the write adds {others}"
        text = "%s: failed; finished tasks: %s; %s"
        logger.warning(text, self._place(batchId), _told(total), after)

    def _place(self, batch: int | None) -> str:
        return f"queue {self.options.queue}" + ("" if batch is None else f", batch {batch}")


def _field(field: StructField) -> tuple[str, str]:
    kind = field.dataType
    return field.name, kind.simpleString() if kind.typeName() == "map" else kind.typeName()


def _summed(messages: Sequence[Any]) -> tuple[list[TaskReport], Staged | None, Counter[str]]:
    reports = [one for one in messages if isinstance(one, TaskReport)]
    total = Counter[str]()
    for report in reports:
        total.update(report.counts)
    return reports, next((one.staged for one in reports), None), total


def _told(total: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in total.items()) or "nothing"


class BatchWriter(QueueWriter, DataSourceArrowWriter):
    """Writes a DataFrame into a queue."""


class StreamWriter(QueueWriter, StreamBase):
    """Writes the micro-batches of a stream into a queue."""

    streams = True
