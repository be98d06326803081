"""The calls that only Spark makes: about staged rows, and about the batch of a checkpoint.

Their scripts have keys of one write or checkpoint, besides those of the queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from penstock.core.calls.call import Call, target_of
from penstock.core.calls.operations import QueueOps

__all__ = ["Staged", "about_batch", "about_staged", "staged_chunk"]


class Staged(NamedTuple):
    """Node, writer and batch of rows that are staged together (protocol/staging.md)."""

    node: str
    writer: str
    batch: int


def about_staged(ops: QueueOps, name: str, at: Staged, *args: Any) -> Call[Any]:
    """Return the call of `stage`, `commit`, `unstage` or `publish`."""
    call = ops.call(name, *args)
    own = ops.keys.stage(at.writer, at.batch), ops.keys.commit(at.writer)
    call.target = target_of(call.script, (*call.head[1:], *own))
    return call


def staged_chunk(delay: int | str, records: Sequence[bytes]) -> bytes:
    """Encode records that are staged together: delay and sizes, a newline, the records."""
    sizes = " ".join([str(len(record)) for record in records])
    return b"%b %b\n%b" % (str(delay).encode(), sizes.encode(), b"".join(records))


def about_batch(ops: QueueOps, name: str, consumer: str, *args: Any) -> Call[Any]:
    """Return the call of `assign`, `assigned`, `fetch` or `dismiss`."""
    call = ops.call(name, *args)
    call.target = target_of(call.script, (*call.head[1:], ops.keys.checkpoint(consumer)))
    return call
