"""Adding jobs to a modelled queue, with and without dedup ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from tests.model.jobs import (
    FIRST_SEQ,
    MONTH,
    NEVER,
    Answer,
    DedupId,
    ModelJob,
    Number,
    Policy,
    reach,
)
from tests.model.keys import script
from tests.model.state import ModelState


class ModelAdding(ModelState):
    """A modelled queue that accepts jobs."""

    @script
    def enqueue(
        self,
        bodies: Sequence[bytes],
        *,
        keys: Mapping[bytes, str] | None = None,
        delay: int = 0,
        lease: int | None = None,
        ttl: int | None = None,
        bound: int | None = None,
        retry: Policy | None = None,
    ) -> list[ModelJob] | Literal["closed", "paused", "full"]:
        """Add jobs, all of them or none; expired ones make room first."""
        refused = self._admitted(len(bodies), bound, len(bodies))
        if refused:
            return refused
        due = self.now + delay if delay > 0 else 0
        jobs = [ModelJob((0, 0), body, lease, ttl, "ready", 0, retry=retry) for body in bodies]
        for job in jobs:
            job.key = (keys or {}).get(job.body, "")
            self._added(job, due)
            if not due:
                self.take(job)
        return jobs

    def _admitted(
        self, count: int, bound: int | None, asked: int
    ) -> Literal["", "closed", "paused", "full"]:
        """Remove expired jobs if there is no room; return the reason of a refusal, '' for none."""
        if self.closed:
            return "closed"
        if self.paused in ("in", "all"):
            return "paused"
        limits = [x for x in (bound, self.settings.get("max_length")) if x is not None]
        while count and limits and self.waiting + count > min(limits):
            gone = self.expire(reach(asked))[0]
            self.admit()  # the script ends, and the client calls again
            if not gone:
                return "full"
        self._begin()
        self.expire(reach(asked))
        return ""

    def _added(self, job: ModelJob, due: int) -> ModelJob:
        """Number a job and add it; due = 0 means ready."""
        job.number = self._next_number()
        job.at = job.number[0]
        if job.ttl is not None:
            ahead = job.number[0] - self.now > MONTH
            job.ends = (self.now if ahead else job.number[0]) + job.ttl
        if due:
            job.place, job.at, job.is_late = "scheduled", job.capped(due), True
        elif job.priority:
            job.at = min(self.now, job.at)
        job.place_by(self.now)
        self.jobs[job.number] = job
        self.totals["enqueued"] += 1
        return job

    def _next_number(self) -> Number:
        if self.last is None or self.last[0] < self.now:
            self.last = (self.now, FIRST_SEQ)
        else:
            self.last = (self.last[0], self.last[1] + 1)
        return self.last

    # -- dedup ids -----------------------------------------------------------------------

    @script
    def claim(
        self,
        jobs: Sequence[tuple[str, bytes]],
        mode: str,
        *,
        keys: Mapping[bytes, str] | None = None,
        delay: int = 0,
        lease: int | None = None,
        ttl: int | None = None,
        window: int | None = None,
        bound: int | None = None,
        retry: Policy | None = None,
    ) -> list[Answer] | Literal["closed", "paused", "full"]:
        """Add jobs with dedup ids one after the other.

        Args:
            jobs: id and body of each.
            mode: handling of duplicates (u, d, q), and how long the ids are taken (s, e).
            delay, lease, ttl, window, bound, retry: of all of them.
        """
        adding = ("added", "requeued")
        verdicts = [self._verdict(name, mode) for name in {name for name, _ in jobs}]
        # a successor takes no room
        count = sum(
            action == "added" or (action == "requeued" and not job) for action, job in verdicts
        )
        refused = self._admitted(count, bound, len(jobs))
        if refused:
            return refused
        answers = []
        new: set[Number] = set()
        until = "s" if "s" in mode else "e" if "e" in mode else ""
        for name, body in jobs:
            self._pass_on(name)
            owner = self.holders(name)[0]
            if owner and owner.place == "active" and self.state(owner) == "ready":
                owner.void = True  # its lease has ended, and the producer is told that it is ready
            action, about = self._verdict(name, mode)
            one = self.ids.get(name, DedupId())
            if action not in adding:
                if action == "updated" and about and about.number in new:
                    about.key = (keys or {}).get(body, "")  # its record is the last one
                answers.append(
                    self._duplicate(
                        action, about, body, new, begins="d" in mode, delay=delay, lease=lease,
                        window=window, retry=retry, until=until, name=name, mode=mode,
                    )
                )  # fmt: skip
                continue
            job = ModelJob((0, 0), body, lease, ttl, "ready", 0, retry=retry)
            job.dedup_id, job.window, job.until = name, window, until
            job.key = (keys or {}).get(body, "")
            due = self.now + delay if delay > 0 else 0
            if action == "added":
                self._added(job, due)
                self.ids[name] = DedupId(job.number)
                if until == "e":
                    self.ids[name] = DedupId(end=self.now + (window or 0))
            elif about is None:
                self._added(job, max(one.end, self.now + delay))
                self.ids[name] = DedupId(job.number, end=one.end)
            else:
                self._added(job, NEVER)
                self.ids[name] = DedupId(about.number, job.number, due=due)
            new.add(job.number)
            state = "scheduled" if due or action == "requeued" else "ready"
            answers.append(Answer(job.number, state, action))
        return answers

    def _verdict(self, name: str, mode: str) -> tuple[str, ModelJob | None]:
        """Return the action for a job with a dedup id, and the job that it is about."""
        owner, successor, end = self.holders(name)
        busy = owner is not None and self.state(owner) == "active"
        if successor and "u" in mode and ("q" in mode or not busy):
            return "updated", successor
        if owner and busy:
            return ("requeued" if "q" in mode and not successor else "refused"), owner
        if owner:
            return ("updated" if "u" in mode and ("q" in mode or not end) else "refused"), owner
        if end:
            return ("requeued" if "q" in mode else "refused"), None
        return "added", None

    def _duplicate(
        self,
        action: str,
        about: ModelJob | None,
        body: bytes,
        new: set[Number],
        *,
        begins: bool,
        delay: int,
        lease: int | None,
        window: int | None,
        retry: Policy | None,
        until: str,
        name: str,
        mode: str,
    ) -> Answer:
        """Return the answer to a duplicate, whose content may replace that of the existing job."""
        if about is None:
            return Answer(None, "window", "refused")
        if action == "refused":
            waits = self.holders(name)[2] and "q" not in mode
            return Answer(about.number, "window" if waits else self.state(about), action)
        if about.number in new:
            about.body = body
            return Answer(about.number, self.state(about), action)
        if lease is not None and (lease == 0) is not (about.lease == 0):
            return Answer(about.number, self.state(about), "refused")
        about.body = body
        about.lease = about.lease if lease is None else lease
        about.window = about.window if window is None else window
        about.retry = merged(about.retry, retry)
        about.until = until or about.until
        one = self.ids[name]
        due = self.now + delay if begins and delay > 0 else 0
        if one.successor == about.number:
            one.due = due if begins else one.due
        elif (
            about.place == "ready"
            or (about.place == "scheduled" and begins)
            or (about.place == "parked" and due)
        ):
            about.place = "scheduled"
            end = one.end if one.end > self.now else 0
            about.at = about.capped(max(end, due or min(self.now, about.number[0])))
            about.is_late |= about.at > self.now
            self.postpone(about)
        if about.place == "scheduled":
            about.place_by(self.now)
        return Answer(about.number, self.state(about), action)


def merged(old: Policy | None, new: Policy | None) -> Policy | None:
    """Return policy and priority after an update."""
    if old is None or new is None:
        return new or old
    parts = old if new[3] is not None and new[:3] == (None, None, None) else new
    return (*parts[:3], old[3] if new[3] is None else new[3])
