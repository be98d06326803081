"""Groups of jobs with the same handler and the same error, apart from numbers, ids and quotes."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from penstock.core.jobs.middleware import HANDLER
from penstock.core.jobs.views import JobView, ScanPage

__all__ = ["ErrorCounter", "ErrorGroup", "ErrorGroups", "error_pattern", "group_id"]

LONGEST_PATTERN = 300
"""Characters of an error that its group depends on."""
MAX_ERROR_GROUPS = 1000
"""Groups that are told apart; jobs of further ones are only counted."""
PARTS_OF_TREND = 24
"""Equal parts of time whose jobs a group counts."""
SHORTEST_MIXED_ID = 8
"""Characters of a word with letters and digits by turns that is an id."""
KEPT_PATTERNS = 1024
"""Patterns that are remembered: many jobs have the same error."""
SECONDS_OF_SLOT = 60
"""Times of jobs are remembered in slots of this length."""
TOKEN = re.compile(r"""(?<!\w)[bfru]{0,2}('[^']*'|"[^"]*"|`[^`]*`|“[^”]*”)(?!\w)|[\w.+@-]+""")
"""A quoted part, or a word, an id, an address."""
NUMBER = re.compile(r"[0-9]+(?:[.,][0-9]+)*")
HEX_DIGITS = re.compile(r"[0-9A-Fa-f]{8,}|0[xX][0-9A-Fa-f]+")
LONG_ID = re.compile(r"[\w-]{20,}")
DIGIT_AND_LETTER, LETTER_AND_DIGIT = re.compile("[0-9][A-Za-z]"), re.compile("[A-Za-z][0-9]")


def error_pattern(error: str) -> str:
    """Return the first line of an error without what differs from job to job.

    Numbers become #, ids and addresses …, and of a quoted part the quotes are left.
    """
    return _pattern_of_line(" ".join(error.partition("\n")[0][:LONGEST_PATTERN].split()))


@lru_cache(maxsize=KEPT_PATTERNS)
def _pattern_of_line(line: str) -> str:
    return NUMBER.sub("#", TOKEN.sub(_without_ids, line))


def _without_ids(match: re.Match[str]) -> str:
    if match[1]:
        return f"{match[1][0]}…{match[1][-1]}"
    token = match[0]
    if "@" in token[1:-1]:
        return "…"
    if NUMBER.search(token) is None:
        return token
    word = token.rstrip(".")
    if LONG_ID.fullmatch(word) and not word.replace("-", "").isdecimal():
        return f"…{token[len(word) :]}"
    return "".join("…" if _is_id(part) else part for part in re.split(r"([.+@-])", token))


def _is_id(word: str) -> bool:
    if HEX_DIGITS.fullmatch(word):
        return not word.isdecimal()
    is_mixed = DIGIT_AND_LETTER.search(word) and LETTER_AND_DIGIT.search(word)
    return len(word) >= SHORTEST_MIXED_ID and is_mixed is not None


def group_id(job: JobView) -> str:
    """Return the id of the group of a job: 12 hex digits of its handler and its error."""
    return _group_id(job.headers.get(HANDLER, ""), error_pattern(job.error))


def _group_id(handler: str, error: str) -> str:
    text = f"{handler}\n{error}".encode("utf-8", "surrogatepass")
    return hashlib.sha1(text, usedforsecurity=False).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class ErrorGroup:
    """Jobs with one handler and, apart from numbers, ids and quoted parts, one error.

    Attributes:
        id: names the group, from call to call: `queue.jobs("dead", group=id)`.
        jobs: their number.
        handler: the name of their handler; "" = they have none.
        error: the first line of their error, with # for numbers, … for ids and addresses, and '…'
            for quoted parts.
        example: the id of the first one found.
        example_error: the first line of its error, as it is.
        first, last: when the first and the last one died, seconds since 1970. Of a job that is not
            dead its last delivery counts.
        trend: the number of jobs in each of 24 equal parts of the time from `ErrorGroups.since` to
            `ErrorGroups.until`.
    """

    id: str
    jobs: int
    handler: str
    error: str
    example: str
    example_error: str
    first: float
    last: float
    trend: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ErrorGroups:
    """Jobs counted by handler and error.

    Attributes:
        groups: the groups, the largest first; at most 1000.
        others: number of jobs of further groups.
        looked: number of jobs looked at.
        is_complete: False if the limit was met before the last job.
        since, until: when the first and the last of all jobs died; 0 = there are no jobs.
        unreachable: addresses of nodes whose jobs are not counted: they did not answer.
    """

    groups: list[ErrorGroup]
    others: int
    looked: int
    is_complete: bool
    since: float = 0.0
    until: float = 0.0
    unreachable: tuple[str, ...] = ()


class _Tally:
    """A group that is being counted."""

    def __init__(self, handler: str, error: str, example: JobView) -> None:
        self.handler, self.error, self.example = handler, error, example
        self.jobs = 0
        self.first = self.last = _time_of(example)
        self.slots = Counter[int]()

    def add(self, at: float) -> None:
        self.jobs += 1
        self.first, self.last = min(self.first, at), max(self.last, at)
        self.slots[int(at) // SECONDS_OF_SLOT] += 1


class ErrorCounter:
    """A count of jobs by handler and error, page by page.

    Attributes:
        cursor: of the last page; "0" at first.
        is_complete: whether that was the last page of all.
        looked: number of jobs looked at.
    """

    def __init__(self) -> None:
        self._tallies: dict[tuple[str, str], _Tally] = {}
        self._unreachable: set[str] = set()
        self._others = 0
        self.cursor = "0"
        self.is_complete = False
        self.looked = 0

    def add(self, page: ScanPage) -> None:
        """Count the jobs of the next page."""
        for job in page.jobs:
            group = job.headers.get(HANDLER, ""), error_pattern(job.error)
            tally = self._tallies.get(group)
            if tally is None:
                if len(self._tallies) >= MAX_ERROR_GROUPS:
                    self._others += 1
                    continue
                tally = self._tallies[group] = _Tally(*group, job)
            tally.add(_time_of(job))
        self.looked += page.looked
        self._unreachable.update(page.unreachable)
        self.cursor = page.cursor
        self.is_complete = page.cursor == "0"

    @property
    def result(self) -> ErrorGroups:
        """Return the groups."""
        tallies = sorted(self._tallies.values(), key=lambda tally: (-tally.jobs, -tally.last))
        since = min((tally.first for tally in tallies), default=0.0)
        until = max((tally.last for tally in tallies), default=0.0)
        groups = [
            ErrorGroup(
                id=_group_id(tally.handler, tally.error),
                jobs=tally.jobs,
                handler=tally.handler,
                error=tally.error,
                example=tally.example.id,
                example_error=tally.example.error.partition("\n")[0],
                first=tally.first,
                last=tally.last,
                trend=_trend(tally.slots, since, until),
            )
            for tally in tallies
        ]
        return ErrorGroups(
            groups=groups,
            others=self._others,
            looked=self.looked,
            is_complete=self.is_complete,
            since=since,
            until=until,
            unreachable=tuple(sorted(self._unreachable)),
        )


def _time_of(job: JobView) -> float:
    return job.died or job.delivered or job.created


def _trend(slots: Mapping[int, int], since: float, until: float) -> tuple[int, ...]:
    parts = [0] * PARTS_OF_TREND
    low = int(since) // SECONDS_OF_SLOT
    width = (int(until) // SECONDS_OF_SLOT - low + 1) / PARTS_OF_TREND
    for slot, jobs in slots.items():
        parts[int((slot - low) / width)] += jobs
    return tuple(parts)
