"""Dedup ids: what an enqueue says of them, and how it lies in records (protocol/dedup.md)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, TypeAlias

from penstock.core.options import Duration, check_choice, check_label, duration_ms
from penstock.core.record import check_head, escaped
from penstock.errors import BadArgument

__all__ = ["Dedup", "DedupUntil", "OnDuplicate", "dedup_of"]

OnDuplicate: TypeAlias = Literal[
    "refuse", "update", "debounce", "requeue", "requeue+update", "requeue+debounce"
]
"""What becomes of a duplicate."""
DedupUntil: TypeAlias = Literal["finished", "started", "enqueued"]
"""Until when a job has its dedup id."""

MODES: dict[OnDuplicate, str] = {
    "refuse": "",
    "update": "u",
    "debounce": "ud",
    "requeue": "q",
    "requeue+update": "uq",
    "requeue+debounce": "udq",
}
"""What becomes of a duplicate -> the letters of `claim`."""
UNTIL: dict[DedupUntil, str] = {"finished": "", "started": "s", "enqueued": "e"}
"""Until when an id is taken -> the field `u` of a record."""
MARK = b"\x01"
"""Stands for the id in the head of a record that many jobs share: no escaped text has it."""


@dataclass(frozen=True, slots=True)
class Dedup:
    """A dedup id: while a job with the same id is there, another one is a duplicate.

    Args:
        id: 1 to 1024 bytes of text; for `enqueue_many` also a function that computes it from a
            body.
        window: seconds for which the id stays taken when the job has been acknowledged.
        until: "finished" = the job has the id until it is acknowledged, dead, expired or removed;
            "started" = until its first delivery; "enqueued" = no job has it, it is taken for the
            window from now on (a throttle).
        on_duplicate: what becomes of a duplicate. "refuse" = nothing changes. "update" = the job
            that is there gets the content (and the lease, if one is given), and keeps its place,
            attempts and ttl; an active one does not. "debounce" = as "update", and its delay begins
            anew. "requeue" = while the other is active, or the window is open, this one is added,
            and runs when that is over and its own delay has passed; one at most. "requeue+update" =
            as "requeue", and the one that waits so is updated. "requeue+debounce" = as
            "requeue+update", and the delay of that one begins anew: the last change is never lost.
            Where both the other and such a one wait, an update is for the latter.

    Raises:
        BadArgument: one of them can't be used, or they do not go together.
    """

    id: str | Callable[[Any], str]
    _: KW_ONLY
    window: Duration | None = None
    until: DedupUntil = "finished"
    on_duplicate: OnDuplicate = "refuse"

    def __post_init__(self) -> None:
        if not callable(self.id):
            check_label("id", self.id)
        check_choice("on_duplicate", self.on_duplicate, OnDuplicate)
        check_choice("until", self.until, DedupUntil)
        if self.window is not None:
            duration_ms("window", self.window, zero=False)
        if self.until == "enqueued" and self.window is None:
            reason = "needs a window: the time for which the id is taken"
            raise BadArgument("until", self.until, reason)
        if self.until == "started" and self.window is not None:
            reason = 'not with until="started": use "finished" or "enqueued"'
            raise BadArgument("window", self.window, reason)
        if self.until == "enqueued" and self.on_duplicate != "refuse":
            reason = 'must be "refuse" with until="enqueued"'
            raise BadArgument("on_duplicate", self.on_duplicate, reason)

    @property
    def mode(self) -> str:
        """The letters of `claim`."""
        return MODES[self.on_duplicate] + UNTIL[self.until]

    def id_of(self, body: Any) -> str:
        """Return the dedup id of a body.

        Raises:
            BadArgument: it can't be used.
        """
        return self.id if isinstance(self.id, str) else check_label("dedup_id", self.id(body))

    @property
    def fields(self) -> str:
        """The fields of a record, with the mark instead of the id."""
        window = "" if self.window is None else f";w={duration_ms('window', self.window)}"
        until = UNTIL[self.until]
        return f";d={MARK.decode()}{window}{';u=' + until if until else ''}"


def with_id(head: bytes, dedup_id: str) -> bytes:
    """Return the head of a record with the id in the place of the mark.

    Raises:
        BadArgument: it is too long.
    """
    found = head.replace(MARK, escaped(dedup_id).encode(), 1)
    check_head(len(found))
    return found


def dedup_of(dedup_id: Any, dedup: object, *, many: bool) -> Dedup | None:
    """Return the dedup options of an enqueue; None = there are none.

    Args:
        dedup_id: the short form.
        dedup: the long form.
        many: whether the id may be computed from each body.

    Raises:
        BadArgument: both forms were given, or one that can't be used.
    """
    if dedup is not None and not isinstance(dedup, Dedup):
        raise BadArgument("dedup", dedup, "must be a Dedup; a plain id is passed as dedup_id=")
    if dedup_id is not None:
        if dedup is not None:
            raise BadArgument("dedup_id", dedup_id, "not together with dedup=: pass one of them")
        if not callable(dedup_id):
            check_label("dedup_id", dedup_id)
        dedup = Dedup(dedup_id)
    if dedup is not None and not many and callable(dedup.id):
        name = "dedup" if dedup_id is None else "dedup_id"
        raise BadArgument(name, dedup.id, "must be text; enqueue_many takes a function")
    return dedup
