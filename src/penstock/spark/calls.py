"""The calls that only Spark makes: staged writes, batches of checkpoints, surveys."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

from penstock.core.calls import Call, Wait
from penstock.core.operations import QueueOps
from penstock.core.operations.producing import Added
from penstock.wire import replies

__all__ = [
    "Staged", "ack_receipts", "assign", "assigned", "commit", "dismiss", "extend_receipts",
    "fetch", "publish", "stage", "staged_chunk", "survey", "unstage",
]  # fmt: skip


class Staged(NamedTuple):
    """Node, writer and batch of rows that are staged together (protocol/staging.md)."""

    node: str
    writer: str
    batch: int


# -- staging -------------------------------------------------------------------------------


def _keys(ops: QueueOps, at: Staged) -> tuple[bytes, bytes]:
    return ops.keys.stage(at.writer, at.batch), ops.keys.commit(at.writer)


def _staging(ops: QueueOps, name: str, at: Staged, *args: Any) -> Call[Any]:
    call = ops.call(name, at.batch, *args)
    call.head = (call.head[0], *_keys(ops, at), *call.head[1:])
    return call


def stage(
    ops: QueueOps, at: Staged, field: str, ttl_ms: int, chunk: bytes
) -> Call[replies.Stage | replies.StageGone]:
    """Stage a chunk of jobs, made by `staged_chunk`."""
    return _staging(ops, "stage", at, field, ttl_ms, chunk)


def commit(
    ops: QueueOps,
    at: Staged,
    stages: Sequence[tuple[str, int]],
    rows: int,
    keep_ms: int,
    wait: Wait | None,
) -> Call[replies.Commit | replies.CommitEnded | replies.CommitGone]:
    """Commit the rows of these attempts: token and number of chunks of each."""
    flat = [item for stage in stages for item in stage]
    call = _staging(ops, "commit", at, keep_ms, rows, *flat)
    call.wait = wait
    return call


def unstage(
    ops: QueueOps, at: Staged, keep_ms: int | None
) -> Call[replies.Unstage | replies.UnstageGone]:
    """Forget published rows and remember the batch for `keep_ms`; None = drop staged rows."""
    return _staging(ops, "unstage", at, "" if keep_ms is None else keep_ms)


def publish(
    ops: QueueOps,
    at: Staged,
    field: str,
    most: int,
    wait: Wait | None,
    create: str,
    wait_ms: int,
) -> Call[Added]:
    """Move the first jobs of a staged chunk into the queue."""
    call = ops.call("publish", create, "", wait_ms, ops.producing, field, most)
    call.head = (*call.head, *_keys(ops, at))
    call.wait = wait
    return call


def staged_chunk(delay: int | str, records: Sequence[bytes]) -> bytes:
    """Encode records that are staged together: delay and sizes, a newline, the records."""
    sizes = " ".join([str(len(record)) for record in records])
    return b"%b %b\n%b" % (str(delay).encode(), sizes.encode(), b"".join(records))


# -- the batch of a checkpoint -------------------------------------------------------------


def _of_checkpoint(ops: QueueOps, name: str, consumer: str, *args: Any) -> Call[Any]:
    call = ops.call(name, *args)
    call.head = (*call.head, ops.keys.checkpoint(consumer))
    return call


def assign(
    ops: QueueOps, consumer: str, fence: str, batch: int, *, most: int, n: int, lease_ms: int
) -> tuple[Call[replies.Assign], int]:
    """Reserve up to n more jobs for a batch; return the call and the tag of its receipts.

    An empty fence takes the checkpoint over.
    """
    tag = random.getrandbits(12)
    args = (fence, batch, most, n, tag, ops.owner_name, lease_ms)
    return _of_checkpoint(ops, "assign", consumer, *args), tag


def assigned(
    ops: QueueOps, consumer: str, fence: str, batch: int, start: int, count: int
) -> Call[replies.Assigned | replies.AssignedGone]:
    """Read a page of the receipts of a batch."""
    return _of_checkpoint(ops, "assigned", consumer, fence, batch, start, count)


def fetch(
    ops: QueueOps, consumer: str, batch: int, start: int, count: int, full: int
) -> Call[replies.Fetch | replies.FetchGone]:
    """Read jobs of a batch that are still held under its receipts."""
    return _of_checkpoint(ops, "fetch", consumer, batch, start, count, full)


def dismiss(
    ops: QueueOps, consumer: str, fence: str, batch: int
) -> Call[replies.Dismiss | replies.DismissGone]:
    """Forget the receipts of a batch."""
    return _of_checkpoint(ops, "dismiss", consumer, fence, batch)


def ack_receipts(
    ops: QueueOps, epoch: str, receipt: str, numbers: Sequence[bytes], until: int = 0
) -> Call[replies.Ack]:
    """Acknowledge jobs that share a receipt; `until` is a hint when their leases end."""
    common = f"{receipt}@{until}" if until else receipt
    return ops.call("ack", epoch, common, "", *numbers)


def extend_receipts(
    ops: QueueOps, epoch: str, receipt: str, numbers: Sequence[bytes], lease_ms: int
) -> Call[replies.Extend]:
    """Renew the leases of jobs that share a receipt."""
    return ops.call("extend", epoch, receipt, lease_ms, 1, *numbers)


# -- reading -------------------------------------------------------------------------------


def survey(
    ops: QueueOps, epoch: str, place: str, start: str, end: str, count: int, full: int
) -> Call[replies.Survey]:
    """Read a page of the jobs of one structure, between two places in it."""
    return ops.call("survey", epoch, place, start, end, count, full)
