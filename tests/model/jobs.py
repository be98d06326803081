"""Jobs of the model, and the constants of a queue."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from penstock.core.jobs.record import key_hash
from tests.model.clock import REACH

Number: TypeAlias = tuple[int, int]
"""Creation ms and place within it."""
Receipt: TypeAlias = tuple[int, int]
"""Number of the delivery and its tag."""
Name: TypeAlias = tuple[Number, Receipt | None]
"""A job in a call: with the receipt of a delivery, or by id only."""
Policy: TypeAlias = tuple[int | None, int | None, int | None, int | None]
"""Attempts, base and cap in ms, and priority; None leaves a part to the queue."""
Place = Literal["ready", "scheduled", "parked", "active", "once", "dead"]

FIRST_SEQ = 1_000_000_000
MONTH = 30 * 86_400_000  # a number further ahead was made at a wrong time
STEP = 100  # expired jobs, and dead letters, removed by a script that ends no job
SWEPT = 1000  # removed by one sweep
OWNER = "tester"  # reserves all jobs
NEVER = (1 << 53) - 1  # due time of a successor
DEFAULTS = {
    "lease": 30_000,
    "max_attempts": 20,
    "max_crashes": 3,
    "max_releases": 1000,
    "max_snoozes": 0,
    "replicas": 0,
    "backoff_base": 5_000,
    "backoff_cap": 21_600_000,
    "dead_max": 100_000,
    "dead_age": 14 * 86_400_000,
}


def reach(size: int) -> int:
    """Return how many expired jobs and dead letters a script of this size lists."""
    return REACH + 0 * size


@dataclass
class ModelJob:
    """A job: its place, and the time of that place (`at`)."""

    number: Number
    body: bytes
    lease: int | None
    ttl: int | None
    place: Place
    at: int  # ready: created; scheduled: due; active: end of lease; once: end of ttl; dead: death
    tag: int = 0
    deliveries: int = 0
    provisional: bool = False  # the end of its lease is not a crash
    void: bool = False  # no receipt is valid: the next delivery's number is set aside
    others: int = 0  # deliveries that ended, or were repeated, without a nack
    nacks: int = 0
    crashes: int = 0
    releases: int = 0
    snoozes: int = 0
    failures: list[str] = field(default_factory=list)  # texts
    marked: bool = False  # by a call of cancel: its holder shall end it
    error: str = ""
    delivered: int | None = None
    drawn: range | None = field(default=None, repr=False)  # `at` is anywhere in here
    dedup_id: str | None = None
    window: int | None = None  # ms for which the dedup id stays taken after an ack
    retry: Policy | None = None  # its own policy
    ends: int | None = None  # end of its ttl
    raised: bool = False  # it has a priority, and its time has come
    key: str = ""
    has_ticket: bool = False
    is_late: bool = False  # it was delayed or dead: it has lost its place in the order of its key
    until: str = ""  # s: the id is free from the first delivery on; e: the job never has it

    @property
    def expires(self) -> int | None:
        """Return the end of its ttl."""
        return None if self.ttl is None else self.number[0] + self.ttl

    def ends_by(self, now: int) -> int | None:
        """Return the end of its ttl by its number; a number ahead of the time counts from now."""
        return None if self.ttl is None else min(now, self.number[0]) + self.ttl

    def capped(self, at: int) -> int:
        """Return a time, or the end of its ttl if that is earlier; a successor has no time."""
        return at if self.ends is None or at == NEVER else min(at, self.ends)

    def note(self, text: str) -> None:
        """Keep a line about a failure: the last ten, each up to 200 bytes."""
        line = re.sub(r"[\x00-\x1f\x7f]", " ", text.encode()[:200].decode("utf-8", "replace"))
        self.failures = [*self.failures, line][-10:]

    @property
    def may_expire(self) -> bool:
        """Return True if the job expires with its ttl: not if it is dead, or in `once`."""
        return self.ttl is not None and self.place in ("ready", "scheduled", "parked", "active")

    @property
    def priority(self) -> int:
        """Return its priority."""
        return (self.retry[3] if self.retry else None) or 0

    def place_by(self, now: int) -> None:
        """Put the waiting job where its priority and its time belong."""
        if self.priority:
            self.place = "scheduled"
        self.raised = self.priority > 0 and self.at <= now

    @property
    def order(self) -> tuple[int, int, int, Number]:
        """Return its place in the order of its state."""
        if self.place == "parked":
            return (int(key_hash(self.key), 16), 0, 0, self.number)
        before = -self.priority if self.raised and self.place == "scheduled" else 0
        return (before, self.at, self.tag if self.place in ("active", "once") else 0, self.number)


@dataclass
class DedupId:
    """The holder of a dedup id: a job, and a successor; or a window that ends at `end`.

    The successor is not due before `due`, its own delay.
    """

    owner: Number | None = None
    successor: Number | None = None
    end: int = 0
    due: int = 0


@dataclass(frozen=True)
class Answer:
    """The answer for one job with a dedup id; `number` is None if only a window has the id."""

    number: Number | None
    state: str
    action: str
