"""The calls about batches: open, close and read them."""

from __future__ import annotations

from functools import partial
from typing import Any

from penstock.core.calls.call import Call, RawReply
from penstock.core.calls.operations.base import Names, Operations
from penstock.core.enqueuing.batches import (
    BatchFailure,
    BatchStatus,
    MemberOutcome,
    failures_of,
    outcomes_of,
    statuses,
)
from penstock.core.values.ids import AT_LEAST_ONCE_FOREVER, encode_id
from penstock.wire import replies
from penstock.wire.packing import Packable
from penstock.wire.replies import Parser

__all__ = ["Batching"]


class Batching(Operations):
    """The operations on batches."""

    def join_batch(self, number: bytes) -> None:
        """Let all jobs that this object adds join a batch."""
        self.joining = f"&{number.decode()}"

    def open_batch(self, record: bytes, on: str, *, create: str = "") -> Call[replies.Enqueue]:
        """Add the callback of a new batch."""
        return self.call("open_batch", create, self.producing, on, record)

    def close_batch(self, name: Any) -> Call[Any]:
        """Close a batch, named by its callback; the code of the reply is 0 if it is gone."""
        epoch, _, numbers = self.named([name])
        return self.call("close_batch", epoch, *numbers)

    def batches(self, cursor: str = "0", names: Names = ()) -> Call[tuple[str, list[BatchStatus]]]:
        """Return the cursor of the next page ("0" = none), and batches: those named, or a page."""
        epoch, _, numbers = self.named(names)
        args: tuple[Packable, ...] = (epoch, "" if names else cursor, *numbers)
        return self.call_read_by("list_batches", self._listed_batches, args)

    def _listed_batches(
        self, parse: Parser[replies.ListBatches], raw: RawReply
    ) -> tuple[str, list[BatchStatus]]:
        reply = parse(raw)
        return reply.cursor.decode(), statuses(
            reply, [self.batch_id(reply.epoch, row[0]) for row in reply.batches]
        )

    def batch_failures(self, name: Any, start: int) -> Call[tuple[int, list[BatchFailure]]]:
        """Return the dead letters of a batch on a page that begins there, and the next begin."""
        epoch, _, [number] = self.named([name])
        args: tuple[Packable, ...] = (epoch, number, "dead", b"%d" % start)
        read = partial(self._read_failures, epoch.encode())
        return self.call_read_by("read_batch", read, args)

    def _read_failures(
        self, epoch: bytes, parse: Parser[Any], raw: RawReply
    ) -> tuple[int, list[BatchFailure]]:
        reply = parse(raw)
        if not isinstance(reply, replies.ReadBatch):
            return 0, []
        return reply.next, failures_of(reply, self.place(epoch))

    def batch_values(
        self, name: Any, start: int
    ) -> Call[tuple[int, int, list[MemberOutcome]] | None]:
        """Return how the members on a page have ended that begins there.

        Behind the next begin and the number of members; None = nothing is kept.
        """
        epoch, _, [number] = self.named([name])
        args: tuple[Packable, ...] = (epoch, number, "values", b"%d" % start)
        read = partial(self._read_values, epoch.encode())
        return self.call_read_by("read_batch", read, args)

    def _read_values(
        self, epoch: bytes, parse: Parser[Any], raw: RawReply
    ) -> tuple[int, int, list[MemberOutcome]] | None:
        reply = parse(raw)
        if not isinstance(reply, replies.ReadBatch):
            return None
        ids = [self.batch_id(epoch, row[0]) for row in reply.members]
        return reply.next, reply.count, outcomes_of(reply, ids)

    def batch_id(self, epoch: bytes, number: bytes) -> str:
        """Return the job id of a callback."""
        place = self.place(epoch)
        return encode_id(place.node, place.packed, number, AT_LEAST_ONCE_FOREVER)
