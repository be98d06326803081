"""The writers: what Spark's driver and tasks do for a batch, and for each micro-batch of a stream.

A writer is made on the driver and pickled to every attempt of every task, and to commit or abort;
what they share is made here, once. Whatever an attempt has put on the server stays there when
another one is committed, so all that counts is that both put the same: see `rows`.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from penstock.core.logs import get_logger
from penstock.errors import QueueFull
from penstock.spark.calls import Staged
from penstock.spark.connect import check_identity, check_reached, identity
from penstock.spark.errors import OptionError
from penstock.spark.operations import Settler, check_columns
from penstock.spark.options import Write
from penstock.spark.rows import Encoder, Item, columns_of, name_of, preferred
from penstock.spark.sink import Sink
from penstock.spark.staged_commit import StagedAttempt, StagedCommit, StagedName, part_of
from penstock.spark.tasks import Task, batches, task, type_name, write_name

__all__ = ["BatchWriter", "StreamWriter", "TaskReport", "WriteJob"]

logger = get_logger("penstock")
StreamBase: Any = getattr(
    datasource, "DataSourceStreamArrowWriter", datasource.DataSourceStreamWriter
)
"""With Spark 4.0 streams are written row by row."""


@dataclass(frozen=True)
class TaskReport(WriterCommitMessage):
    """What one task has done.

    Attributes:
        counts: how many rows, and what became of them.
        staged: of a staged write: the name of its record.
        token, chunks: of a staged write: the attempt's rows.
        promised: of a staged write: its batch was committed before; nothing was staged.
    """

    counts: dict[str, int]
    staged: StagedName | None = None
    token: str = ""
    chunks: int = 0
    promised: bool = False


@dataclass
class WriteJob:
    """What both writers share; it is pickled, so it holds no connection.

    Attributes:
        options: of the write.
        fields: name and type of each column.
        nodes: ids of the nodes that the driver reaches.
        streams: whether a stream's micro-batches are written.
        has_ids: whether rows have ids.
        own: names a write that has no `writeId`.
    """

    options: Write
    fields: tuple[tuple[str, str], ...]
    nodes: tuple[str, ...]
    streams: bool
    has_ids: bool
    own: str = field(default_factory=lambda: secrets.token_hex(8))

    @classmethod
    def planned(cls, options: Any, schema: Any, overwrite: bool, *, streams: bool) -> WriteJob:
        """Check all that can be checked before a row is there.

        Raises:
            BadArgument: an option or column can't be used.
            Unreachable: no server can be reached, or not every one of several nodes.
            QueueMissing: there is no such queue, and `requireQueue` is set.
        """
        if overwrite:
            word = '.outputMode("append")' if streams else '.mode("append")'
            raise OptionError(
                "outputMode" if streams else "mode",
                "complete" if streams else "overwrite",
                f"a queue is only added to: use {word}. To empty it first is a decision of its "
                f"own, as it throws away what others are at work on: Queue.purge(), or "
                f"`penstock purge`",
            )
        given = Write.parse(options)
        fields = tuple((one.name, type_name(one.dataType)) for one in schema.fields)
        has_ids = True
        if given.operation == "enqueue":
            has_ids = "id" in columns_of(fields, given).places
            given = given.with_mode(has_ids)
            given.check_repeats(has_ids, named=streams or bool(given.write_id))
        else:
            check_columns(fields, given)
        nodes = identity(given)
        if given.commit_mode == "staged":
            part_of(given, nodes[0])
        if given.operation == "enqueue" and not given.skip_unreachable:
            check_reached(given)
        return cls(given, fields, nodes, streams, has_ids)

    def run(self, source: Iterable[Any]) -> TaskReport:
        """Write one partition: the work of an attempt of a task."""
        where = task()
        check_identity(self.options, self.nodes)
        if self.options.operation != "enqueue":
            settler = Settler(self.options, self.fields)
            for values, count in batches(source, len(self.fields)):
                settler.add(values, count)
            return TaskReport(settler.finish())
        if self.options.commit_mode == "staged":
            name = self._stage_name(where)
            attempt = StagedAttempt(self.options, name)
            rows = attempt.put(self._items(where, source, attempt.token))
            return TaskReport(
                {"rows": rows}, name, attempt.token, attempt.chunks, attempt.is_promised
            )
        self.options.check_repeats(self.has_ids, named=bool(where.query))
        sink = Sink(self.options, self.nodes)
        sink.put(self._items(where, source))
        done = sink.finish()
        return TaskReport({"rows": done.rows, "added": done.added, "duplicates": done.duplicates})

    def _items(self, where: Task, source: Iterable[Any], attempt: str = "") -> Iterator[Item]:
        write = write_name(where, self.options.write_id, self.own)
        columns = columns_of(self.fields, self.options)
        encoder = Encoder(columns, self.options, write, where.partition, attempt)
        for values, count in batches(source, len(self.fields)):
            yield from encoder.encode(values, count)

    def _stage_name(self, where: Task) -> StagedName:
        write_id = self.options.write_id
        if where.query:
            if not write_id and not self.streams:
                raise OptionError(
                    "writeId",
                    None,
                    "is required inside foreachBatch for rows without ids, and for all that is "
                    "staged: it tells this write from others of the same batch",
                )
            writer = name_of("stream", write_id, where.query).hex()
            return StagedName(self._home(writer), Staged(writer, int(where.batch)))
        return self._own_stage()

    def _own_stage(self) -> StagedName:
        """The name of what is staged of a batch write."""
        writer = name_of("batch", self.options.write_id or self.own).hex()
        return StagedName(self._home(writer), Staged(writer, 0))

    def _home(self, writer: str) -> str:
        return preferred(writer, self.nodes)

    def commit(self, messages: Sequence[Any], batch: int | None = None) -> None:
        """All tasks are done: what was staged becomes jobs."""
        reports = [one for one in messages if isinstance(one, TaskReport)]
        total = totals(reports)
        name = next((one.staged for one in reports if one.staged is not None), None)
        if name is not None:
            attempts = [(one.token, one.chunks) for one in reports if one.chunks]
            try:
                commit = StagedCommit(self.options, name, is_named=self._is_named(name))
                total.update(commit.run(attempts, total.get("rows", 0)))
            except QueueFull as full:
                text = f"{full}. {self._rest()}"
                raise QueueFull(text, full.waiting, full.limit) from None
        logger.info("%s: written %s", self._place(batch), _told(total))

    def _is_named(self, name: StagedName) -> bool:
        """Whether the write can come again under the same name."""
        return bool(self.options.write_id) or name.at.writer != self._own_stage().at.writer

    def _rest(self) -> str:
        """How a promise is kept that was not kept at once."""
        if self.streams:
            return "The next start of the query publishes the rest"
        name = self.options.write_id or self.own
        return f"The same write with writeId={name} publishes the rest; under no name it is another"

    def abort(self, messages: Sequence[Any], batch: int | None = None) -> None:
        """A task has failed for good: what was staged goes, unless it was promised."""
        reports = [one for one in messages if isinstance(one, TaskReport)]
        name = next((one.staged for one in reports if one.staged is not None), None)
        if name is None and self.options.commit_mode == "staged" and not self.streams:
            name = self._own_stage()  # no task has told it
        after = "what is in stays in"
        if name is not None:
            is_gone = StagedCommit(self.options, name).abort()
            after = "none of its rows are added" if is_gone else self._rest()
        elif self.options.operation == "enqueue" and not self.streams:
            after += (
                ", and the same again adds the others"
                if self.has_ids
                else ", and the same again adds all rows again, as they have no ids"
            )
        told = _told(totals(reports))
        logger.warning("%s: failed; finished tasks: %s; %s", self._place(batch), told, after)

    def _place(self, batch: int | None) -> str:
        return f"queue {self.options.queue}" + ("" if batch is None else f", batch {batch}")


def _told(total: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in total.items()) or "nothing"


def totals(reports: Iterable[TaskReport]) -> dict[str, int]:
    """The counts of several tasks taken together."""
    found: dict[str, int] = {}
    for report in reports:
        for name, count in report.counts.items():
            found[name] = found.get(name, 0) + count
    return found


class BatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame into a queue.

    Args:
        options, schema, overwrite: as Spark has them.

    Raises:
        As `WriteJob.planned`: nothing was written.
    """

    def __init__(self, options: Any, schema: Any, overwrite: bool) -> None:
        self.job = WriteJob.planned(options, schema, overwrite, streams=False)

    def write(self, iterator: Iterator[Any]) -> TaskReport:
        """One attempt of one task."""
        return self.job.run(iterator)

    def commit(self, messages: list[Any]) -> None:
        """All tasks are done."""
        self.job.commit(messages)

    def abort(self, messages: list[Any]) -> None:
        """The write has failed; perhaps in commit."""
        self.job.abort(messages)


class StreamWriter(StreamBase):
    """Writes the micro-batches of a stream into a queue. Args, raises: as `BatchWriter`."""

    def __init__(self, options: Any, schema: Any, overwrite: bool) -> None:
        self.job = WriteJob.planned(options, schema, overwrite, streams=True)

    def write(self, iterator: Iterator[Any]) -> TaskReport:
        """One attempt of one task of a micro-batch."""
        return self.job.run(iterator)

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803  # Spark's name
        """All tasks of a micro-batch are done; again when the query is restarted before it knew."""
        self.job.commit(messages, batchId)

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: N803  # Spark's name
        """A micro-batch has failed."""
        self.job.abort(messages, batchId)
