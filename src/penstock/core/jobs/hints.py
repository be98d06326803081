"""Hints: calls that another node keeps while the node of their jobs is down.

A hint is a field of `penstock:hints`. The field names the node, the call, the job and its receipt;
the value has the end of its validity and the arguments (protocol/nodes.md, Hints).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.core.jobs.job import Delivery, JobName, epoch_of, number_of, record_of
from penstock.core.jobs.results import missing_value_mark
from penstock.core.values.checks import BATCH
from penstock.core.values.ids import parse_id
from penstock.wire.keys import is_listed_name

__all__ = [
    "MAX_HINTS",
    "MAX_HINT_MS",
    "Hint",
    "Intent",
    "hint_of",
    "is_once",
    "read_hint",
    "read_hints",
    "together",
]

MAX_HINTS = 10_000
"""Limit of the hints on one node."""
MAX_HINT_MS = 0xFFFF * 60_000
"""Validity of a hint for a job without ttl: the longest ttl in an id, 45 days."""
MAX_CLOCK_SKEW_MS = 300_000
"""Difference of the clocks of two nodes up to which no hint is removed too early."""
HINT_KINDS = ("ack", "delete", "bury")
HINT_NUMBER = "[1-9][0-9]{0,14}-[1-9][0-9]{9}"


@dataclass(frozen=True, slots=True)
class Intent:
    """A call that may be kept as hints.

    Attributes:
        kind: ack, delete or bury.
        window_ms: dedup window of an ack; None = that of each job.
        reason: reason of a bury.
        waits: whether the call waits for replicas or disks, which may take long.
    """

    kind: str
    window_ms: int | None = None
    reason: str = ""
    waits: bool = False


class Hint(NamedTuple):
    """A call about one job, as another node keeps it.

    Attributes:
        node: id of the job's node, 8 hex digits.
        kind: ack, delete or bury.
        epoch, number, receipt, queue: name the job; an empty receipt = by id alone.
        until: end of its validity, ms since 1970.
        window: ms as text, or `-`.
        reason: text; of an ack, see `missing_value_mark`.
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
        """Field of the hash: node, call and job."""
        receipt = self.receipt or "-"
        return f"{self.node} {self.kind} {self.epoch} {self.number} {receipt} {self.queue}"

    @property
    def value(self) -> str:
        """Value of the hash: end of validity, and arguments."""
        return f"{self.until} {self.window} {self.reason}"


def is_once(name: JobName) -> bool:
    """Return True if a job is delivered at most once, so that no hint about it is kept."""
    return name.at_most_once if isinstance(name, Delivery) else parse_id(name).at_most_once


def hint_of(name: JobName, node: str, queue: str, intent: Intent, now: int) -> Hint | None:
    """Return the hint for a job; None = it is delivered at most once, or its ttl ended long ago.

    Args:
        name: the delivery or the id.
        node: id of its node.
        queue: name of its queue.
        intent: the call.
        now: ms since 1970 by the clock of the node that is to keep the hint.
    """
    reason = intent.reason
    if isinstance(name, Delivery):
        if intent.kind == "ack":
            reason = missing_value_mark(name)
        epoch, number, receipt = epoch_of(name), number_of(name), name.receipt
        once, ttl = name.at_most_once, record_of(name).ttl_ms
    else:
        parsed = parse_id(name)
        epoch, number, receipt, once = parsed.epoch, parsed.number, "", parsed.at_most_once
        ttl = None if parsed.ttl_minutes is None else parsed.ttl_minutes * 60_000
    until = now + MAX_HINT_MS if ttl is None else int(number[:-11]) + ttl + MAX_CLOCK_SKEW_MS
    if once or until <= now:
        return None
    window = "-" if intent.window_ms is None else str(intent.window_ms)
    return Hint(node, intent.kind, epoch, number.decode(), receipt, queue, until, window, reason)


def read_hint(field: str, value: str) -> Hint | None:
    """Parse a hint; None = this version does not know its form."""
    about, rest = field.split(" ", 5), value.split(" ", 2)
    if len(about) != 6 or len(rest) != 3 or about[1] not in HINT_KINDS or not rest[0].isdecimal():
        return None
    node, kind, epoch, number, receipt, queue = about
    until, window, reason = rest
    if (window != "-" and not window.isdecimal()) or not re.fullmatch(HINT_NUMBER, number):
        return None
    if not is_listed_name(queue):
        return None
    receipt = "" if receipt == "-" else receipt
    return Hint(node, kind, epoch, number, receipt, queue, int(until), window, reason)


def read_hints(flat: Sequence[bytes]) -> tuple[list[Hint], list[bytes]]:
    """Parse a reply of field, value, field, value …; return hints, and fields of unknown form."""
    hints, foreign = [], []
    for field, value in zip(flat[::2], flat[1::2], strict=True):
        hint = read_hint(field.decode("utf-8", "replace"), value.decode("utf-8", "replace"))
        if hint is None or hint.field.encode() != field:
            foreign.append(field)
        else:
            hints.append(hint)
    return hints, foreign


def together(hints: Iterable[Hint]) -> list[list[Hint]]:
    """Group hints that one call can replay together. One with results names no job twice."""
    groups: dict[tuple[str | int, ...], list[Hint]] = {}
    seen_with_results = Counter[tuple[str, ...]]()
    for hint in hints:
        about = (hint.queue, hint.epoch, hint.kind, hint.window, hint.reason)
        repeat, job = 0, (*about, hint.number)
        if hint.kind == "ack" and hint.reason:
            repeat = seen_with_results[job]
            seen_with_results[job] += 1
        groups.setdefault((*about, repeat), []).append(hint)
    return [
        group[start : start + BATCH]
        for group in groups.values()
        for start in range(0, len(group), BATCH)
    ]
