"""A job in every place of the state x event table, seeded by scripts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.wire.keys import QueueKeys, end_of
from tests.protocol.clock import T0, run
from tests.protocol.keyspace import Raw
from tools.states import Condition, JobState, StateCase

__all__ = ["AT", "EPOCH", "HISTORIES", "Job", "place_of", "seed"]

EPOCH = "e0e0e0e0"
AT = T0 + 500
"""Time of the event: within a second of the last write, so that `seen` does not change."""
HISTORIES = ("first", "second", "urgent")
"""The counted delivery is the job's first, or its second after a release; then the job is large.
Or it is the first of a job with a priority, which is never in ready."""
SOON, LATER = 200, 60_000
SEED_CALL = 5


@dataclass
class Job:
    """A seeded job.

    Attributes:
        number: its job number.
        last: receipt of its last delivery; a made-up one if there was none.
        older: receipt of an earlier delivery, or of one that this server never made (a failover
            lost it): another tag, or another number where the tag is not kept any more.
    """

    raw: Raw
    keys: QueueKeys
    number: bytes = b""
    last: str = "1-bbb"
    older: str = "1-aaa"

    def run(self, name: str, *args: Any, at: int = T0) -> list[Any]:
        """Run a script on the job's queue."""
        return run(self.raw, self.keys, name, args, now_ms=at)


def _record(place: StateCase, history: str, *, once: bool) -> str:
    is_ended = place in (StateCase.LEASE_ENDED, StateCase.DELIVERY_ENDED)
    lease = ";l=0" if once else ";l=100" if is_ended else ""
    is_short = place.condition is Condition.TTL_ENDED
    ttl = f";t={SOON}" if is_short else f";t={LATER}" if once else ""
    name = ";d=seed" if place is StateCase.DELIVERY_ENDED else ""
    policy = ";p=,,,5" if history == "urgent" else ""
    return f"1{lease}{ttl}{policy}{name}\n{'body' * (2000 if history == 'second' else 1)}"


def seed(raw: Raw, keys: QueueKeys, place: StateCase, history: str, *, once: bool = False) -> Job:
    """Bring a new job into a place; its times have come at `AT`.

    Args:
        history: one of HISTORIES; before a delivery the size alone differs.
        once: whether the job has lease 0.
    """
    job = Job(raw, keys)
    once = once or place.state is JobState.ONCE
    is_undelivered = once and place.state is JobState.SCHEDULED
    is_soon = place is StateCase.DUE or place.condition is Condition.TTL_ENDED
    delay = (100 if is_soon else 10_000) if is_undelivered else 0
    record = _record(place, history, once=once)
    if place is StateCase.DELIVERY_ENDED:
        reply = job.run("claim", SEED_CALL - 1, EPOCH, delay, "", 0, "", "", record)
    else:
        reply = job.run("enqueue", SEED_CALL, EPOCH, delay, "", 0, "", record)
    job.number = reply[2]
    if place.state is not JobState.READY and not is_undelivered:
        _deliver(job, place, history if not once else "first")
        _move(job, place)
    return job


def _deliver(job: Job, place: StateCase, history: str) -> None:
    if history == "second":
        assert len(job.run("reserve", 2, 1, 0xAAA, "ada", 0, "")) == 9
        assert job.run("release", 3, EPOCH, "1-aaa", 0, job.number) == [1, b"3", 1]
        job.last = "2-bbb"
    else:
        job.older = "7-aaa" if place.state in (JobState.SCHEDULED, JobState.DEAD) else "1-aaa"
    assert len(job.run("reserve", 4, 1, 0xBBB, "bob", 0, "")) == 9


def _move(job: Job, place: StateCase) -> None:
    if place.state is JobState.SCHEDULED:
        delay = 100 if place is StateCase.DUE else 10_000
        job.run("nack", 5, EPOCH, job.last, delay, 1, "broke", "", job.number)
    elif place.state is JobState.DEAD:
        job.run("bury", 5, EPOCH, job.last, "no use", "", job.number)
    elif place is StateCase.DELIVERY_ENDED:  # by a claim that finds its lease ended
        reply = job.run("claim", SEED_CALL, EPOCH, 0, "", 0, "", "", "1;d=seed\nx", at=T0 + 200)
        assert reply[10:13] == [0, job.number, b"ready"]
    elif place is StateCase.NONE:
        job.run("ack", 5, EPOCH, job.last, "", job.number)


def place_of(raw: Raw, keys: QueueKeys, number: bytes, now_ms: int = AT) -> StateCase:
    """Return the place of a job, from all structures."""
    in_ready = bool(raw.xrange(keys["ready"], number, number))
    is_held = raw.hexists(keys["held"], number)
    indexes = {JobState.SCHEDULED: "scheduled", JobState.ACTIVE: "active", JobState.ONCE: "once"}
    _check_urgent(raw, keys, number)
    scores = {
        state: raw.zscore(keys[kind], number)
        for state, kind in {**indexes, JobState.DEAD: "dead"}.items()
    }
    found = [state for state, score in scores.items() if score is not None]
    found += [JobState.READY] if in_ready else []
    assert len(found) <= 1, f"{number!r} is in {found}"
    assert is_held == (bool(found) and not in_ready), f"{number!r} is in {found}, held: {is_held}"
    if not found:
        for kind in ("tally", "expiry"):
            command = "HEXISTS" if kind == "tally" else "ZSCORE"
            assert not raw.execute_command(command, keys[kind], number), f"left in {kind}"
        assert not raw.hexists(keys["held"], b"=" + number), "its body is left"
        return StateCase.NONE
    condition = _condition(raw, keys, number, found[0], scores.get(found[0]), now_ms)
    return next(p for p in StateCase if p.state is found[0] and p.condition is condition)


def _check_urgent(raw: Raw, keys: QueueKeys, number: bytes) -> None:
    """Check that a job with a priority is in urgent while it waits for its time, else not."""
    score, coming = raw.zscore(keys["scheduled"], number), raw.zscore(keys["urgent"], number)
    has_priority = b";p=,,,5" in (raw.hget(keys["held"], number) or b"")
    assert coming == (score * 16 + 5 if has_priority and (score or -1) >= 0 else None)


def _condition(
    raw: Raw, keys: QueueKeys, number: bytes, state: JobState, score: float | None, now_ms: int
) -> Condition:
    ends = raw.zscore(keys["expiry"], number)
    if state is JobState.DEAD:
        record = raw.hget(keys["held"], number)
        ends = int(number[:-11]) + SOON if b";t=%d" % SOON in record else None
    if state is JobState.ONCE:
        ends = end_of(int(score or 0))
    if ends is not None and ends <= now_ms:
        return Condition.TTL_ENDED
    if state is JobState.ACTIVE and score is not None and end_of(int(score)) <= now_ms:
        counters = raw.hget(keys["tally"], number) or b""
        is_set_aside = counters.partition(b" ")[0].endswith(b"+")
        return Condition.DELIVERY_ENDED if is_set_aside else Condition.LEASE_ENDED
    if state is JobState.SCHEDULED and score is not None and score <= now_ms:
        return Condition.DUE
    return Condition.PLAIN
