"""The codes with which replies begin, each with its meaning.

A code belongs to the whole call, or to one job in it. protocol/core.md shows this table,
`tools/replies.py` refuses a header with a code that is not in it, and `core/calls/refusals.py`
makes errors of them.
"""

from __future__ import annotations

import enum

__all__ = ["Code", "PressureCode"]


class _Explained(enum.IntEnum):
    """An integer with a meaning."""

    meaning: str

    def __new__(cls, value: int, meaning: str = "") -> _Explained:
        """Make a member of a number and its meaning."""
        member = int.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member


class Code(_Explained):
    """A code of the protocol."""

    DONE = 1, "done"
    ENDED = 2, "ended before, by this same receipt; nothing changed"
    DIED = 3, "done, and the job is a dead letter now"
    CANCELLED = 4, "cancelled: marked for its holder, or removed because it was marked"
    LANE = 5, "done, by the fast lane of the script"
    WATCHED = 6, "goes on, and a client watches the job"
    GONE = 0, "gone: the job is not there, or the checkpoint has another batch; nothing changed"
    STALE = -1, "stale receipt: it is not that of the delivery that counts; nothing changed"
    REFUSED = -2, "refused: not allowed in this state; nothing changed"
    FULL = -3, "of a job: its ttl has ended; of an enqueue: the queue is full; nothing changed"
    EXPIRED = -3
    PAUSED = -4, "paused for producers; nothing changed"
    MISSING = -5, "no such queue; nothing changed"
    NEWER = -6, "written by a newer protocol; nothing changed"
    STALE_CALL = -7, "stale call of a producer; nothing changed"
    DAMAGED = -8, "damaged: jobs, but no meta; nothing changed"
    OTHER_EPOCH = -9, "another epoch: the ids are of an earlier life of the queue; nothing changed"
    BAD_RECORD = -10, "a record is not of this version, or its header is too long; nothing changed"
    TOO_LATE = -11, "too late: more than half of its ttl has passed; nothing changed"
    DEDUP_TAKEN = -13, "its dedup id is taken by another job; nothing changed"
    CLOSED = -14, "closed for producers; nothing changed"
    IN_USE = -15, "another party has the exclusive role; nothing changed"
    ROLE_LOST = -16, "the exclusive role that the call passes has ended; nothing changed"
    CHECKPOINT_TAKEN = -17, "another client has taken the checkpoint over; nothing changed"
    UNSTAGED = -18, "the earlier rows of the attempt, or the promise, are gone; nothing changed"
    MALFORMED = -19, "malformed argument: its name, at most 200 bytes of its value; nothing changed"
    KEYS_MISSING = -20, "more than the fast lane can do: call again with all keys; nothing changed"
    BATCH_CLOSED = (
        -21,
        "no such open batch: it was closed or abandoned, or has ended; nothing changed",
    )
    OTHER_NOTE = -22, "another note is there, or an earlier one is missing; nothing changed"
    NOTE_TOO_LARGE = -23, "more bytes than a note, or the notes of a job, may have; nothing changed"


class PressureCode(_Explained):
    """A code of the protocol pressure."""

    DONE = 1, "done"
    HOLDING = 2, "not possible now; the caller holds the role"
    LOST = 0, "the caller does not hold the role any more"
    MISSING = -1, "no queue"
    CLOSED = -2, "closed"
    FULL = -3, "no room"
    EMPTY = -4, "no message"
    IN_USE = -5, "another party has the role"
    EXISTS = -6, "the queue is there already"
    UNFINISHED = -7, "keys of an earlier queue are left"
    DAMAGED = -8, "a bound or counter is no number"
    MALFORMED = -19, "malformed argument: its name, at most 200 bytes of its value; nothing changed"
