"""The errors of negative codes. The executor raises them; no other code reads these codes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.core.partitions import read_count
from penstock.errors import (
    BadArgument,
    BatchClosed,
    CheckpointTaken,
    MetaLost,
    PenstockError,
    QueueClosed,
    QueueFull,
    QueueInUse,
    QueueMissing,
    QueuePartitioned,
    QueuePaused,
    RoleLost,
    StaleCall,
    UnsupportedVersion,
    WrongEpoch,
)
from penstock.wire.codes import Code

__all__ = ["REFUSALS", "NotPlain", "Unstaged", "refusal"]

BOUNDED = (
    "batch", "body", "bound", "count", "delay", "expected", "horizon", "idle", "keep", "limit",
    "most", "n", "next", "rows", "seed", "skip", "start", "tag", "wait", "window",
)  # fmt: skip
"""Whole numbers that scripts check by the bounds in their headers."""
FORMS = {
    **dict.fromkeys(BOUNDED, "must be a whole number within its bounds: see protocol/scripts.md"),
    **dict.fromkeys(
        ("delays", "kept"), "must be ms, at most 3162240000000 (100 years), separated by blanks"
    ),
    "ttl": "must be ms, at most 3162240000000 (100 years), and longer than the time until the job"
    " may run",
    "value": "must be a setting within its bounds: protocol/core.md names them",
    "number": "must be a job number: ms, a dash, ten digits, without leading zeros; 1000 at most",
    **dict.fromkeys(("fence", "from", "to"), "must be what an earlier reply has returned"),
    "producer": "must be 16 hex digits",
    "progress": "must name a job of the call, and be at most 1024 bytes",
    "owner": "must be at most 200 bytes without a line feed",
    "asked": "must be ms, at most 2073600000 (24 days), and end before 2094-09-07",
    "lease": "must be ms, at most 2073600000 (24 days), and end before 2094-09-07",
    "what": "must be run or alone; of a tick also skip or move",
    "hash": "must be 16 small hex digits",
    "priority": "can't be used with ordered=True: use per_key, or another queue",
    "ordered": "can't be set while jobs have priorities: wait until they have ended, then sweep()",
}
"""The form of each argument that a script checks."""


class NotPlain(PenstockError):
    """The job or its queue needs the full script."""


class Unstaged(PenstockError):
    """The staged rows of an attempt are gone."""


REFUSALS = (
    BadArgument,
    BatchClosed,
    CheckpointTaken,
    MetaLost,
    QueueClosed,
    QueueFull,
    QueueInUse,
    QueueMissing,
    QueuePartitioned,
    QueuePaused,
    RoleLost,
    StaleCall,
    UnsupportedVersion,
    Unstaged,
)
"""The errors of `refusal`. The script has run, and the queue is unchanged."""


def refusal(queue: str, raw: Sequence[Any]) -> PenstockError:
    """Return the error for a reply with a negative code.

    Args:
        queue: the queue's name.
        raw: the reply.
    """
    code, _, *told = raw
    if code in TEXTS:
        kind, text = TEXTS[code]
        return kind(text.format(queue=repr(queue)))
    if code == Code.NEWER:
        return _newer(queue, told[0])
    if code == Code.FULL:
        waiting, limit, expired = told
        text = f"queue {queue!r} is full: {waiting} jobs wait, the limit is {limit}"
        return QueueFull(text, waiting, limit, expired)
    if code == Code.PAUSED:
        return QueuePaused(f"queue {queue!r} is paused ({told[0].decode()}): resume() ends that")
    if code == Code.STALE_CALL:
        text = f"call {int(raw[1])} did nothing: call {int(told[0])} of this producer ran first"
        return StaleCall(text)
    if code == Code.IN_USE:
        kind_of_role, owner, left = told
        return QueueInUse(kind_of_role.decode(), owner.decode("utf-8", "replace"), left / 1000)
    if code == Code.ROLE_LOST:
        return RoleLost(told[0].decode())
    if code == Code.OTHER_EPOCH:
        text = f"queue {queue!r} was deleted and created again since"
        return WrongEpoch("id", "<ids of an earlier queue>", text)
    if code == Code.BAD_RECORD:
        text = "must be a record of this version with a header of at most 16384 bytes"
        return BadArgument("records", told[0], text)
    name, value = (part.decode("utf-8", "replace") for part in told)
    return BadArgument(name, value, FORMS[name])


TEXTS: dict[int, tuple[type[PenstockError], str]] = {
    Code.MISSING: (QueueMissing, "queue {queue} does not exist"),
    Code.DAMAGED: (MetaLost, "queue {queue} has jobs but no meta key: run penstock doctor"),
    Code.CLOSED: (
        QueueClosed,
        "queue {queue} is closed and takes no more jobs: reopen() ends that",
    ),
    Code.CHECKPOINT_TAKEN: (
        CheckpointTaken,
        "queue {queue}: another run of the query uses this checkpoint now",
    ),
    Code.BATCH_CLOSED: (
        BatchClosed,
        "queue {queue}: the batch takes no jobs, as it was closed or abandoned: open another",
    ),
    Code.NOT_PLAIN: (NotPlain, "queue {queue}: only the full script can do this"),
    Code.UNSTAGED: (Unstaged, "queue {queue}: the staged rows are gone"),
}
"""The errors that need nothing but the queue's name."""


def _newer(queue: str, version: bytes) -> PenstockError:
    count = read_count(version)
    if count is not None:
        return QueuePartitioned(queue, count)
    shown = version.decode("utf-8", "replace")
    text = f"queue {queue!r} was written by version {shown} of the protocol: upgrade penstock"
    return UnsupportedVersion(text)
