"""The staged commit: rows wait beside the queue until the driver commits all of them.

    task      stage, stage, …              nothing is in the queue; staged rows expire
    driver    commit                       from here on all of the rows will be in the queue
              publish, publish, …          each moves a chunk into the queue
              unstage                      the server remembers that this batch is done

If the driver dies before `commit`, nothing is left. If it dies after it, the next commit of the
same writer, for this batch or a later one, publishes the rest. Clearing or purging the queue
forgets committed batches, also those that are done (protocol/staging.md).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from itertools import chain
from time import monotonic

from penstock.core import flows
from penstock.core.calls.call import Call
from penstock.core.calls.operations.producing import Added
from penstock.core.calls.refusals import Unstaged
from penstock.core.jobs.logs import get_logger
from penstock.core.values.confirmations import Wait
from penstock.errors import NotReplicated
from penstock.spark.calls import Staged, about_staged, staged_chunk
from penstock.spark.encoding import Encoded
from penstock.spark.errors import OptionError, StagesLost
from penstock.spark.options import Write
from penstock.spark.shards import OpenShard, OpenShards, open_shards
from penstock.spark.sink import Packer, RecordBatch, put_patiently
from penstock.wire.codes import Code
from penstock.wire.replies import CommitEnded, CommitGone, StageGone

__all__ = ["StagedAttempt", "StagedCommit", "shard_of"]

logger = get_logger("penstock")
STAGED_JOBS_MS = 30 * 86_400_000
"""Shortest time for which a named batch is remembered: a query may be stopped for that long."""
EMPTY_KEPT_MS = 1
"""Time for which a batch without rows is remembered: it takes no name."""
MORE_THAN_A_CHUNK = 1000
Attempt = tuple[str, int]
"""Token and number of chunks of an attempt."""


def shard_of(options: Write, node: str, found: OpenShards) -> OpenShard:
    """Return the queue's shard on a node."""
    if found.partitions > 1:
        reason = f"queue {options.queue!r} has partitions: its rows need ids (idColumn)"
        raise OptionError("commitMode", "staged", reason)
    return found.find(node)


def _gone(options: Write) -> StagesLost:
    return StagesLost(
        f"queue {options.queue!r}: staged rows are gone: stageTtl ({options.stage_ttl / 1000:g} s) "
        "is over, or the server has lost its data. No row is in the queue: repeat the write"
    )


class StagedAttempt:
    """Stages the rows of one attempt of a task: none if the batch was committed before."""

    def __init__(self, options: Write, at: Staged, found: OpenShards) -> None:
        self._options = options
        self._shard = shard_of(options, at.node, found)
        self._at = at
        self._packer = Packer[str](options, self._send)
        self.token = secrets.token_hex(8)
        self.chunks = 0
        self._is_committed = False

    def put(self, rows: Iterable[Encoded]) -> int:
        """Stage rows; return their number. Rows of a committed batch are only counted."""
        count = 0
        for some in rows:
            count += len(some.records)
            self._packer.add([""] * len(some.records), some.records, some.delays)
        self._packer.finish()
        return count

    def _send(self, batches: Mapping[str, RecordBatch]) -> None:
        for batch in batches.values():  # one: all rows have the same key
            if self._is_committed:
                return
            field = f"{self.token}:{self.chunks}"
            chunk = staged_chunk(batch.delay().decode(), batch.records)
            args = (self._at.batch, field, self._options.stage_ttl, chunk)
            try:
                with batch.naming_rows():
                    reply = self._shard.run(about_staged(self._shard.ops, "stage", self._at, *args))
            except Unstaged:
                raise _gone(self._options) from None
            if isinstance(reply, StageGone):
                self._is_committed = True
            else:
                self.chunks += 1


class StagedCommit:
    """Commits or removes the staged rows of a write, on the driver.

    A write that can be repeated under its name (`is_named`) is remembered longer.
    """

    def __init__(self, options: Write, at: Staged, *, is_named: bool = True) -> None:
        self._options = options
        self._shard = shard_of(options, at.node, open_shards(options))
        self._at = at
        self._kept = max(STAGED_JOBS_MS, options.dedup_window) if is_named else options.stage_ttl
        self._wait = Wait(options.replicas, options.replication_timeout, options.replicas or 0)
        self._short: NotReplicated | None = None
        self._added = 0

    def run(self, attempts: Sequence[Attempt], rows: int = 0) -> int:
        """Commit and publish `rows` rows of these attempts, or finish what was committed before.

        Args:
            attempts: those of which all rows are committed.

        Returns:
            How many rows became jobs.

        Raises:
            StagesLost: nothing of the write is in the queue.
            QueueFull, QueueClosed, QueuePaused: the rows are committed; the same write repeated,
                or the stream's next start, publishes the rest.
            NotReplicated: all is published, and too few replicas have confirmed it in time.
        """
        while (reply := self._commit(attempts, rows)) is not None:
            words = reply.stages.decode().split()
            before = list(zip(words[::2], map(int, words[1::2]), strict=True))
            if reply.state == b"promised":
                self._publish(self._at._replace(batch=reply.batch), before, self._kept)
            if reply.batch >= self._at.batch:
                if before != list(attempts) or reply.state != b"promised":
                    self._log_repeat(rows, reply)
                self._unstage(self._at, self._kept)
                break
        else:
            self._publish(self._at, attempts, self._kept if attempts or rows else EMPTY_KEPT_MS)
        if self._short is not None:
            raise self._short
        return self._added

    def _log_repeat(self, rows: int, reply: CommitEnded) -> None:
        options, own = self._options, self._at.batch
        write = f", write {options.write_id!r}" if options.write_id else ""
        batch = f", batch {own}" if own or not write else ""
        before = "it" if reply.batch == own else f"batch {reply.batch}"
        state = "done" if reply.state == b"done" else "committed"
        when = datetime.fromtimestamp(int(reply.at) // 1000, timezone.utc)
        text = "queue %r%s%s: %s was %s before, on %s; "
        text += "" if state == "done" else "the rest of it is published now, and "
        text += "none of these %d rows are added"
        logger.warning(text, options.queue, write, batch, before, state, when, rows)

    def _commit(self, attempts: Sequence[Attempt], rows: int) -> CommitEnded | None:
        """Commit the rows; return the last batch that the writer has committed before, if any."""
        kept = self._kept if attempts or rows else EMPTY_KEPT_MS
        args = (self._at.batch, kept, rows, *chain.from_iterable(attempts))
        call = about_staged(self._shard.ops, "commit", self._at, *args)
        call.wait = self._wait if self._options.replicas else None
        reply = self._shard.run(call)
        if isinstance(reply, CommitGone):
            raise _gone(self._options)
        return reply if isinstance(reply, CommitEnded) else None

    def _publish(self, at: Staged, attempts: Iterable[Attempt], kept: int) -> None:
        try:
            for token, chunks in attempts:
                for index in range(chunks):
                    self._publish_chunk(at, f"{token}:{index}")
        except Unstaged:
            text = "queue %r was cleared or purged during this write: its staged rows were removed"
            logger.warning(text, self._options.queue)
        self._unstage(at, kept)

    def _publish_chunk(self, at: Staged, field: str) -> None:
        shard = self._shard

        def put(_: int, most: int, block: float) -> int:
            def make(_: object, *, create: str, wait_ms: int) -> Call[Added]:
                args = (create, "", wait_ms, shard.ops.producing, field, most)
                call = about_staged(shard.ops, "publish", at, *args)
                if self._short is None:
                    call.wait = self._wait._replace(refuses=False)
                return call

            flow = flows.enqueue(shard.ops, (), make, block=block, in_parts=False, clock=monotonic)
            reply, confirmed = shard.part.driver.drive(flow)
            self._added += reply.count
            wanted = reply.replicas if self._wait.replicas is None else self._wait.replicas
            if self._short is None and confirmed.replicas < wanted:
                self._short = NotReplicated(wanted, confirmed.replicas, withdrawn=False)
                text = f"{confirmed.replicas} of {wanted} replicas confirmed; all rows are added"
                self._short.args = (text,)
            return most

        put_patiently(self._options, MORE_THAN_A_CHUNK, put)

    def _unstage(self, at: Staged, keep_ms: int | str) -> bool:
        """Forget published rows and remember the batch for `keep_ms`; '' = drop staged rows."""
        call = about_staged(self._shard.ops, "unstage", at, at.batch, keep_ms)
        return bool(self._shard.run(call).code == Code.DONE)

    def abort(self) -> bool:
        """Remove the staged rows, unless they are committed; return whether they were removed."""
        return self._unstage(self._at, "")
