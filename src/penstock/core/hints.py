"""Calls that are kept on another node while the home of their jobs is down.

One field of `penstock:hints` a job: what is to be done, where, and with which receipt; its value
says until when it is worth doing, and the rest (protocol/nodes.md, Hints).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from penstock.core.ids import parse_id
from penstock.core.job import Delivery
from penstock.core.options import BATCH

__all__ = ["MOST", "MOST_MS", "Hint", "Intent", "batches", "hint_of", "is_once", "read_hint"]

MOST = 10_000
"""Hints that one node keeps."""
MOST_MS = 0xFFFF * 60_000
"""What "no ttl" stands for: the most that an id can say, 45 days."""
SKEW_MS = 300_000
"""By how much the clocks of two nodes may differ before a hint is thrown away too early."""
KINDS = ("ack", "delete", "bury")
NUMBER = re.compile("[1-9][0-9]{0,14}-[1-9][0-9]{9}")


@dataclass(frozen=True, slots=True)
class Intent:
    """What a call was to do to its jobs.

    Attributes:
        kind: ack, delete or bury.
        window_ms: of an ack, for the dedup ids; None = as the jobs say.
        reason: of a bury.
        waits: whether the call waits for replicas or disks, which takes its time.
    """

    kind: str
    window_ms: int | None = None
    reason: str = ""
    waits: bool = False


class Hint(NamedTuple):
    """A call about one job, as another node keeps it.

    Attributes:
        node: home of the job, 8 hex digits.
        kind, epoch, number, receipt, queue: what to do to which job; no receipt = by id alone.
        until: ms since 1970 until which it is worth doing.
        window: ms as text, or `-`.
        reason: text.
    """

    node: str
    kind: str
    epoch: str
    number: str
    receipt: str
    queue: str
    until: int
    window: str
    reason: str

    @property
    def field(self) -> str:
        """What it is about."""
        receipt = self.receipt or "-"
        return f"{self.node} {self.kind} {self.epoch} {self.number} {receipt} {self.queue}"

    @property
    def value(self) -> str:
        """The rest."""
        return f"{self.until} {self.window} {self.reason}"


def is_once(name: Delivery | str) -> bool:
    """Whether a job is delivered at most once, so that nothing about it is kept."""
    return name.at_most_once if isinstance(name, Delivery) else parse_id(name).at_most_once


def hint_of(name: Delivery | str, node: str, queue: str, intent: Intent, now: int) -> Hint | None:
    """What to keep for a job; None = it is delivered at most once, or its ttl has long ended.

    Args:
        name: the delivery or the id.
        node: its home.
        queue: its queue.
        intent: what was to be done.
        now: ms since 1970 by the clock of the node that is to keep it.
    """
    if isinstance(name, Delivery):
        epoch, number, receipt, once = name.epoch, name.number, name.receipt, name.at_most_once
        ttl = name.record.ttl_ms
    else:
        parsed = parse_id(name)
        epoch, number, receipt, once = parsed.epoch, parsed.number, "", parsed.at_most_once
        ttl = None if parsed.ttl_minutes is None else parsed.ttl_minutes * 60_000
    until = now + MOST_MS if ttl is None else int(number[:-11]) + ttl + SKEW_MS
    if once or until <= now:
        return None
    window = "-" if intent.window_ms is None else str(intent.window_ms)
    return Hint(
        node, intent.kind, epoch, number.decode(), receipt, queue, until, window, intent.reason
    )


def read_hint(field: str, value: str) -> Hint | None:
    """A hint as it is kept; None = none that this version understands."""
    about, rest = field.split(" ", 5), value.split(" ", 2)
    if len(about) != 6 or len(rest) != 3 or about[1] not in KINDS or not rest[0].isdecimal():
        return None
    node, kind, epoch, number, receipt, queue = about
    until, window, reason = rest
    if (window != "-" and not window.isdecimal()) or not NUMBER.fullmatch(number):
        return None
    return Hint(
        node,
        kind,
        epoch,
        number,
        "" if receipt == "-" else receipt,
        queue,
        int(until),
        window,
        reason,
    )


def read_hints(flat: Sequence[bytes]) -> tuple[list[Hint], list[bytes]]:
    """Those in a reply of field, value, field, value …, and the fields that are not understood."""
    found, foreign = [], []
    for field, value in zip(flat[::2], flat[1::2], strict=True):
        hint = read_hint(field.decode("utf-8", "replace"), value.decode("utf-8", "replace"))
        if hint is None or hint.field.encode() != field:
            foreign.append(field)
        else:
            found.append(hint)
    return found, foreign


def batches(hints: Iterable[Hint]) -> list[list[Hint]]:
    """Hints that one call of a script can make up for together."""

    def alike(hint: Hint) -> tuple[str, ...]:
        return (hint.queue, hint.epoch, hint.kind, hint.window, hint.reason)

    found: list[list[Hint]] = []
    for _, group in groupby(sorted(hints, key=alike), alike):
        part = list(group)
        found += [part[at : at + BATCH] for at in range(0, len(part), BATCH)]
    return found


__all__ += ["read_hints"]
