"""The errors of negative codes. The executor raises them; no other code reads these codes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from penstock.core.values.partitions import read_count
from penstock.errors import (
    BadArgument,
    BatchClosed,
    CheckpointTaken,
    MetaLost,
    NotesLost,
    PenstockError,
    QueueClosed,
    QueueFull,
    QueueInUse,
    QueueMissing,
    QueuePartitioned,
    QueuePaused,
    RoleLost,
    StaleCall,
    StepNotKept,
    UnsupportedVersion,
    WrongEpoch,
)
from penstock.wire.codes import Code
from penstock.wire.scripts import Bound

__all__ = ["REFUSALS", "Unstaged", "refusal"]

ARGUMENTS_IN_SECONDS = ("lease", "ttl")
"""Arguments that scripts read in ms, and callers give in seconds."""
ARGUMENT_RULES = {
    **dict.fromkeys(("delay", "window"), "must be ms, at most 3162240000000 (100 years)"),
    **dict.fromkeys(
        ("delays", "kept"), "must be ms, at most 3162240000000 (100 years), separated by blanks"
    ),
    "ttl": "must be longer than the time until the job may run (its delay, or at), and at most 100"
    " years",
    "value": "must be a setting within its bounds: protocol/core.md names them",
    "number": "must be a job number: ms, a dash, ten digits, without leading zeros; 1000 at most",
    **dict.fromkeys(
        ("cursor", "fence", "from", "score", "to"), "must be what an earlier reply has returned"
    ),
    **dict.fromkeys(("producer", "token"), "must be 16 hex digits"),
    "kind": "must be producer or consumer",
    "chunk": "must begin with a line of a delay and the sizes of its records",
    "chunks": "must be the number of the attempt's chunks, at least 1",
    "create": "must be the epoch of a new queue: 8 small hex digits",
    "progress": "must name a job of the call, and be at most 1024 bytes",
    "head": "must be a kind of entry (p, s, t, j) and its index",
    "text": "must be at most 65536 bytes; of progress 1024",
    "owner": "must be at most 200 bytes without a line feed",
    "place": "must be ready, scheduled, parked, active, once or dead",
    "part": "must be dead or values",
    "asked": "must be ms, at most 2073600000 (24 days), and end before 2094-09-07",
    "lease": "must be at most 24 days, and end before 2094-09-07",
    "what": "must be run or alone; of a tick also skip or move",
    "hash": "must be 16 small hex digits",
    "key": "must be the hash of a key: 13 hex digits",
    "handler": "must be one of 20 handlers at most",
    "app": "must be at most 600 bytes without blanks or line feeds",
    "name": "must be one of 100 names at most; of a step or a signal 1 to 200 bytes of UTF-8"
    " without control characters",
    "signal": "must be JSON without line feeds",
    "own_key": "is that of a job which waits for the end of this one, as a step has called it, and"
    " the queue is ordered: they would wait for each other",
    "parts": "must be rising numbers of the step's jobs, separated by blanks, one for each record",
    "print": "must be 1 to 16 hex digits, or -",
    "receipt": "must be that of a delivery, as 1-abc",
    "priority": "can't be used with ordered=True: use per_key, or another queue",
    "ordered": "can't be set while jobs have priorities: wait until they have ended, then sweep()",
}
"""The form of each argument that a script checks, besides those in its BOUNDS."""


class Unstaged(PenstockError):
    """The staged rows of an attempt are gone."""


REFUSALS = (
    BadArgument,
    BatchClosed,
    CheckpointTaken,
    MetaLost,
    NotesLost,
    QueueClosed,
    QueueFull,
    QueueInUse,
    QueueMissing,
    QueuePartitioned,
    QueuePaused,
    RoleLost,
    StaleCall,
    StepNotKept,
    UnsupportedVersion,
    Unstaged,
)
"""The errors of `refusal`. The script has run, and the queue is unchanged."""


def refusal(queue: str, raw: Sequence[Any], bounds: Iterable[Bound]) -> PenstockError:
    """Return the error for a reply with a negative code.

    Args:
        queue: the queue's name.
        raw: the reply.
        bounds: those of the script.
    """
    code, _, *details = raw
    if code in ERROR_OF_CODE:
        kind, text = ERROR_OF_CODE[code]
        text = TEXT_OF_FULL_NOTES.get(details[0], text) if code == Code.NOTE_TOO_LARGE else text
        return kind(text.format(*details, queue=repr(queue)))
    if code == Code.NEWER:
        return _newer(queue, details[0])
    if code == Code.FULL:
        waiting, limit, expired = details
        text = f"queue {queue!r} is full: {waiting} jobs wait, the limit is {limit}"
        return QueueFull(text, waiting, limit, expired)
    if code == Code.PAUSED:
        return QueuePaused(f"queue {queue!r} is paused ({details[0].decode()}): resume() ends that")
    if code == Code.STALE_CALL:
        text = f"call {int(raw[1])} did nothing: call {int(details[0])} of this producer ran first"
        return StaleCall(text)
    if code == Code.IN_USE:
        kind_of_role, owner, left = details
        return QueueInUse(kind_of_role.decode(), owner.decode("utf-8", "replace"), left / 1000)
    if code == Code.ROLE_LOST:
        return RoleLost(details[0].decode())
    if code == Code.OTHER_EPOCH:
        text = f"queue {queue!r} was deleted and created again since"
        return WrongEpoch("id", "<ids of an earlier queue>", text)
    if code == Code.BAD_RECORD:
        text = "must be a record of this version with a header of at most 16384 bytes"
        return BadArgument("records", details[0], text)
    name, value = (part.decode("utf-8", "replace") for part in details)
    return _malformed(name, value, bounds)


ERROR_OF_CODE: dict[int, tuple[type[PenstockError], str]] = {
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
    Code.OTHER_NOTE: (
        NotesLost,
        "queue {queue}: the server has lost steps of the job that this run has noted",
    ),
    Code.NOTE_TOO_LARGE: (
        StepNotKept,
        "the limit of queue {queue} is {0} bytes: return less, or raise its result_size",
    ),
    Code.UNSTAGED: (Unstaged, "queue {queue}: the staged rows are gone"),
}
"""The errors whose texts have nothing but the queue's name and the reply's details."""


TEXT_OF_FULL_NOTES = {
    262_144: "all signals of a job have at most 262144 bytes, and those that it has leave less: let"
    " another job do the rest",
    1_048_576: "the steps and signals of a job have at most 1048576 bytes: let another job do the"
    " rest",
}
"""The texts of the limits that a job has for all its notes, which no setting raises."""


def _newer(queue: str, version: bytes) -> PenstockError:
    count = read_count(version)
    if count is not None:
        return QueuePartitioned(queue, count)
    shown = version.decode("utf-8", "replace")
    text = f"queue {queue!r} was written by version {shown} of the protocol: upgrade penstock"
    return UnsupportedVersion(text)


def _malformed(name: str, value: str, bounds: Iterable[Bound]) -> PenstockError:
    if name in ARGUMENT_RULES:
        is_ms = name in ARGUMENTS_IN_SECONDS and value.isdecimal()
        return BadArgument(name, int(value) / 1000 if is_ms else value, ARGUMENT_RULES[name])
    least, most = next((one.least, one.most) for one in bounds if one.name == name)
    return BadArgument(name, value, f"must be a whole number from {least} to {most}")
