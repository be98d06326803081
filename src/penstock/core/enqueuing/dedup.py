"""Dedup ids: the options of an enqueue, and their fields in records (protocol/dedup.md)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, TypeAlias

from penstock.core.jobs.record import check_head, escaped
from penstock.core.values.checks import Duration, check_choice, check_label, duration_ms
from penstock.errors import BadArgument

__all__ = ["Dedup", "DedupUntil", "OnDuplicate", "with_id"]

OnDuplicate: TypeAlias = Literal[
    "refuse", "update", "debounce", "requeue", "requeue+update", "requeue+debounce"
]
"""Action for a duplicate."""
DedupUntil: TypeAlias = Literal["finished", "started", "enqueued"]
"""Event that ends the hold of a job on its dedup id."""

MODES: dict[OnDuplicate, str] = {
    "refuse": "",
    "update": "u",
    "debounce": "ud",
    "requeue": "q",
    "requeue+update": "uq",
    "requeue+debounce": "udq",
}
"""Action for a duplicate -> the letters of `claim`."""
UNTIL: dict[DedupUntil, str] = {"finished": "", "started": "s", "enqueued": "e"}
"""Event that frees an id -> the field `u` of a record."""
ID_PLACEHOLDER = b"\x01"
"""Placeholder of the id in a head that many records share. Escaped text never contains it."""


@dataclass(frozen=True, slots=True)
class Dedup:
    """A dedup id: while a job has it, another job with the same id is a duplicate.

    Args:
        id: 1 to 1024 bytes of text; for `enqueue_many` also a function that computes it from a
            body.
        window: seconds for which the id stays taken after the job was acknowledged.
        until: "finished" = the job has the id until it is acknowledged, dead, expired or removed;
            "started" = until its first delivery; "enqueued" = no job has it, it is taken for the
            window from now on (a throttle).
        on_duplicate: the action for a duplicate. "refuse" = nothing changes. "update" = the
            existing job, unless active, gets the new content (and the lease, if one is given); it
            keeps its place, attempts and ttl. "debounce" = as "update", and its delay starts again.
            "requeue" = while the existing job is active, or the window is open, the new job is
            added as its successor: it runs when that is over and its own delay has passed. There is
            at most one successor. "requeue+update" = as "requeue", and a waiting successor is
            updated. "requeue+debounce" = as "requeue+update", and the successor's delay starts
            again: the last change is never lost. If the existing job and a successor both wait, the
            successor is updated.

    Raises:
        BadArgument: an argument can't be used, or two of them do not go together.

    Examples:
        >>> q.enqueue("hello", dedup=Dedup("welcome:7", window=60)).action
        'added'
        >>> q.enqueue("again", dedup=Dedup("welcome:7", window=60)).duplicate
        True
    """

    id: str | Callable[[Any], str]
    _: KW_ONLY
    window: Duration | None = None
    until: DedupUntil = "finished"
    on_duplicate: OnDuplicate = "refuse"

    def __post_init__(self) -> None:
        if not callable(self.id):
            check_label("id", self.id)
        if (self.window, self.until, self.on_duplicate) == (None, "finished", "refuse"):
            return
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
        """Return the letters of `claim`."""
        return MODES[self.on_duplicate] + UNTIL[self.until]

    def id_of(self, body: Any) -> str:
        """Return the dedup id of a body.

        Raises:
            BadArgument: the id can't be used.
        """
        return self.id if isinstance(self.id, str) else check_label("dedup_id", self.id(body))

    @property
    def fields(self) -> str:
        """Return the fields of a record, with the placeholder instead of the id."""
        window = "" if self.window is None else f";w={duration_ms('window', self.window)}"
        until = UNTIL[self.until]
        return f";d={ID_PLACEHOLDER.decode()}{window}{';u=' + until if until else ''}"

    def encoded_fields(self) -> bytes:
        """Return the fields of a record, with the placeholder only for an id that is computed."""
        fields = self.fields.encode()
        if isinstance(self.id, str):
            return fields.replace(ID_PLACEHOLDER, escaped(self.id).encode(), 1)
        return fields


def with_id(head: bytes, dedup_id: str) -> bytes:
    """Return the head of a record with the id instead of the placeholder.

    Raises:
        BadArgument: the head is too long.
    """
    whole = head.replace(ID_PLACEHOLDER, escaped(dedup_id).encode(), 1)
    check_head(len(whole))
    return whole
