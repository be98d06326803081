"""Every event of the state x event table as it is sent to the server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tests.protocol.clock import STAGED, promise
from tests.protocol.seeds import AT, EPOCH, SEED_CALL, Job
from tools.states import Condition, Event, JobState, StateCase

__all__ = ["EVENTS", "happen"]

NEW = "1\nanother"
ENDED = "1800000000000789-0123456789abcdef"
"""A role without a holder."""
Code = int | None
Happening = Callable[[Job, StateCase], Code]


def happen(event: Event, job: Job, place: StateCase) -> Code:
    """Run the event at `AT`; return the reply's code for the job, or None if it
    does not name it.
    """
    return EVENTS[event](job, place)


def _enqueue(call: int, delay: int = 0, bound: str = "", records: int = 1) -> Happening:
    def run(job: Job, place: StateCase) -> Code:
        args = (call, EPOCH, delay, bound, 0, "", *[NEW] * records)
        reply = job.run("enqueue", *args, at=AT)
        if place is StateCase.NONE and reply[0] == 1 and not reply[6]:
            job.number = reply[2]
        is_named = place is StateCase.NONE or call <= SEED_CALL
        return int(reply[0]) if is_named else None

    return run


def _take(job: Job, place: StateCase) -> None:
    """Give the dedup id to the job of the place."""
    if place is not StateCase.NONE:
        job.raw.hset(job.keys["dedup"], "mine", job.number)
        uses = job.raw.hget(job.keys["meta"], "uses") + b"d"
        job.raw.hset(job.keys["meta"], "uses", uses)


def _publish(delay: int = 0, *, taken: bool = False) -> Happening:
    """Publish a staged job with a dedup id; with `taken` the job of the place has it."""

    def run(job: Job, place: StateCase) -> Code:
        if taken:
            _take(job, place)
        record = "1;d=mine\nanother"
        job.raw.hset(job.keys.stage(*STAGED), "a:0", f"{delay} {len(record)}\n{record}")
        promise(job.raw, job.keys)
        reply = job.run("publish", 6, EPOCH, "", 0, "", "a:0", 1000, at=AT)
        staging = (job.keys.stage(*STAGED), job.keys.commit(STAGED[0]), job.keys["writes"])
        job.raw.delete(*staging)
        if place is not StateCase.NONE:
            return None
        job.number = reply[2] if reply[0] == 1 else job.number
        return int(reply[0])

    return run


def _claim(mode: str = "", *, taken: bool = False) -> Happening:
    """Claim with a dedup id; with `taken` the job of the place has it."""

    def run(job: Job, place: StateCase) -> Code:
        if taken:
            _take(job, place)
        reply = job.run("claim", 6, EPOCH, 0, "", 0, "", mode, "1;d=mine\nanother", at=AT)
        if place is not StateCase.NONE:
            return None
        job.number = reply[2] if reply[0] == 1 else job.number
        return int(reply[0])

    return run


def _tick(job: Job, place: StateCase) -> Code:
    """Create a schedule, and run its first tick."""
    name, mark, value = "report", "a" * 16, '{"every":60000}\n1\nbody'
    assert job.run("schedule", 5, EPOCH, name, AT, mark, "", value, at=AT)[0] == 1
    reply = job.run("tick", 6, name, mark, AT, AT + 60_000, "run", "", NEW, at=AT)
    if place is not StateCase.NONE:
        return None
    job.number = reply[2] if reply[0] == 1 else job.number
    return int(reply[0])


def _open_batch(job: Job, place: StateCase) -> Code:
    """Open a batch; the new job is its callback."""
    reply = job.run("open_batch", 6, EPOCH, "", "success", NEW, at=AT)
    if place is not StateCase.NONE:
        return None
    job.number = reply[2] if reply[0] == 1 else job.number
    return int(reply[0])


def _clear(job: Job, place: StateCase) -> Code:
    assert job.run("clear", 8, at=AT)[0] == 1
    return None


def _paused(side: str, then: Happening) -> Happening:
    def run(job: Job, place: StateCase) -> Code:
        job.run("configure", 7, "", "paused", side)
        return then(job, place)

    return run


def _closed(then: Happening) -> Happening:
    def run(job: Job, place: StateCase) -> Code:
        job.run("configure", 7, EPOCH, "closed", 1)
        return then(job, place)

    return run


def _taken(kind: str, then: Happening) -> Happening:
    """Let another client hold an exclusive role."""

    def run(job: Job, place: StateCase) -> Code:
        assert job.run("acquire", 7, EPOCH, kind, "0123456789abcdef", "", 60_000, "eve")[0] == 1
        return then(job, place)

    return run


def _refused(name: str, code: int, *args: Any) -> Happening:
    """Make a call about missing jobs, which is refused as a whole."""

    def run(job: Job, place: StateCase) -> Code:
        assert job.run(name, 6, *args, at=AT)[0] == code
        return code if name == "enqueue" and place is StateCase.NONE else None

    return run


def _settle_taken(job: Job, place: StateCase) -> Code:
    args = (EPOCH, job.last, 1, 0xCCC, "eve", "", job.number)
    return int(job.run("settle", 8, *args, at=AT)[0])


def _recover_taken(job: Job, place: StateCase) -> Code:
    args = (EPOCH, "*", 0xCCC, "eve", "", job.number, job.last)
    assert job.run("recover", 8, *args, at=AT)[0] == -15
    return None


def _acquire(job: Job, place: StateCase) -> Code:
    for kind in ("producer", "consumer"):
        reply = job.run("acquire", 8, EPOCH, kind, "0123456789abcdef", "", 1000, "eve", at=AT)
        assert reply[0] == 1
        assert job.run("resign", 8, kind, "0123456789abcdef", at=AT) == [1, b"8", 1]
    return None


def _configured(name: str, then: Happening, value: int = 1) -> Happening:
    def run(job: Job, place: StateCase) -> Code:
        job.run("configure", 7, "", name, value)
        return then(job, place)

    return run


def _marked(places: str, then: Happening) -> Happening:
    """Let a call of cancel have marked the job, in places with these letters."""

    def run(job: Job, place: StateCase) -> Code:
        if place.letter in places.split():
            tally, meta = job.keys["tally"], job.keys["meta"]
            uses: Any = job.raw.hget(meta, "uses")
            if b"m" not in uses:
                job.raw.hset(meta, mapping={"uses": uses + b"m", "v": "3"})
            job.raw.hset(tally, b"c" + job.number, "1")
        return then(job, place)

    return run


def _reserve(job: Job, place: StateCase) -> Code:
    reply = job.run("reserve", 8, 1000, 0xCCC, "eve", 0, "", at=AT)
    assert reply[0] == 1
    return None


def _settle_next(job: Job, place: StateCase) -> Code:
    reply = job.run("settle", 8, "", "", 1000, 0xCCC, "eve", "", at=AT)
    assert reply[0] == 1
    return None


def _assign(job: Job, place: StateCase) -> Code:
    reply = job.run("assign", 8, "", 1, 1000, 1000, 0xCCC, "eve", 60_000, at=AT)
    assert reply[0] == 1
    return None


def _batch(job: Job, place: StateCase) -> Code:
    assert job.run("assigned", 8, "", 1, 0, 10, at=AT) == [0, b"8", b""]
    assert job.run("fetch", 8, 1, 0, 10, 2, at=AT) == [0, b"8", b""]
    assert job.run("dismiss", 8, 1, 1, at=AT) == [0, b"8", b""]
    return None


def _named(name: str, which: str, *args: Any) -> Happening:
    """Run a script with deliveries, with the last receipt, an older one, or none."""

    def run(job: Job, place: StateCase) -> Code:
        receipt = {"last": job.last, "older": job.older, "none": ""}[which]
        reply = job.run(name, 8, EPOCH, receipt, *args, job.number, at=AT)
        assert reply[0] == 1
        if name == "settle":
            return int(reply[7] or 1)
        if name == "extend":
            return 1 if reply[3] > 3 else int(reply[3])
        _, _, done, *codes = reply
        assert done == (1 if not codes or codes[0] in (1, 3, 4) else 0)
        return int(codes[0]) if codes else 1

    return run


def _recover(job: Job, place: StateCase) -> Code:
    reply = job.run("pending", 8, "-inf", 0, 0, at=AT)
    pairs = [part for i in range(6, len(reply), 3) for part in reply[i : i + 2]]
    taken = job.run("recover", 8, EPOCH, "*", 0xCCC, "eve", "", *pairs, at=AT)
    return int(taken[0]) if job.number in taken[6::3] else None


def _by_id(name: str) -> Happening:
    """Run a script with ids only."""

    def run(job: Job, place: StateCase) -> Code:
        reply = job.run(name, 8, EPOCH, job.number, at=AT)
        assert reply[:2] == [1, b"8"]
        return int(reply[3]) if len(reply) > 3 else int(reply[2])

    return run


def _handed_over(which: str) -> Happening:
    """Acknowledge the job, and add another one."""

    def run(job: Job, place: StateCase) -> Code:
        receipt = {"last": job.last, "older": job.older, "none": ""}[which]
        reply = job.run("hand_over", 8, EPOCH, receipt, "", job.number, "", "", NEW, at=AT)
        return 1 if reply[0] == 1 else int(reply[2])

    return run


def _called(which: str) -> Happening:
    """Let the job call another one, and wait for that."""

    def run(job: Job, place: StateCase) -> Code:
        receipt = {"last": job.last, "older": job.older}[which]
        about = (EPOCH, receipt, job.number, 1, "ship", 1, "", "-", "", NEW)
        reply = job.run("call_jobs", 8, *about, at=AT)
        return int(reply[3]) if len(reply) > 3 else int(reply[2])

    return run


def _redrive(job: Job, place: StateCase) -> Code:
    reply = job.run("redrive", 8, EPOCH, 0, 0, job.number, at=AT)
    return int(reply[5]) if len(reply) > 5 else int(reply[2])


def _redrive_oldest(job: Job, place: StateCase) -> Code:
    assert job.run("redrive", 8, "", 1000, 0, at=AT)[0] == 1
    return None


def _purge(job: Job, place: StateCase) -> Code:
    fence: Any = ""
    more = 1
    while place is not StateCase.NONE and more:
        _, _, _, more, fence, _ = job.run("purge", 8, _purged_state(place), fence, 0, at=AT)
    return None


def _purged_state(place: StateCase) -> str:
    """Return purge's name of the state: that of `stats`, and a score is never after a ttl."""
    has_come = place.condition is not Condition.PLAIN
    others = {JobState.SCHEDULED: "due", JobState.ACTIVE: "ended"}
    return others.get(place.state, place.state.value) if has_come else place.state.value


def _signal(job: Job, place: StateCase) -> Code:
    return int(job.run("signal", 8, EPOCH, job.number, "a", "1", at=AT)[2])


def _sweep(job: Job, place: StateCase) -> Code:
    assert job.run("sweep", 8, 600_000, at=AT)[0] == 1
    return None


def _look(job: Job, place: StateCase) -> Code:
    assert len(job.run("show", 8, EPOCH, job.number, at=AT)) == 6
    assert job.run("scan", 8, "0", 10, 1, at=AT)[0] == 1
    for kind in ("ready", "scheduled", "active", "once", "dead"):
        assert job.run("survey", 8, EPOCH, kind, "", "", 10, 2, at=AT)[0] == 1
    assert job.run("pending", 8, "-inf", 0, 0, at=AT)[0] == 1
    assert job.run("lookup", 8, "mine", at=AT)[0] == 1
    assert job.run("beat", 8, EPOCH, "", "", job.number, at=AT)[0] == 1
    assert job.run("note", 8, EPOCH, "9-fff", job.number, 1, "a", "1", at=AT)[0] == 1
    assert job.run("emit", 8, EPOCH, "9-fff", job.number, "", "t1", "a", at=AT)[0] == 1
    assert job.run("watch", 8, EPOCH, job.number, "0-0", "", at=AT)[0] == 1
    assert job.run("read_notes", 8, EPOCH, "9-fff", job.number, at=AT)[0] == 1
    return None


def _stats(job: Job, place: StateCase) -> Code:
    assert job.run("stats", 8, at=AT)[0] == 1
    return None


def _peek(job: Job, place: StateCase) -> Code:
    for state in ("ready", "scheduled", "active", "dead"):
        assert job.run("peek", 8, state, 0, 10, 0, at=AT)[0] == 1
    return None


def _evict(job: Job, place: StateCase) -> Code:
    assert job.run("evict", 8, 10, 1, at=AT)[0] == 1
    return None


def _close(job: Job, place: StateCase) -> Code:
    for value in (1, ""):
        assert job.run("configure", 8, "", "closed", value, at=AT)[0] == 1
    return None


def _pause(job: Job, place: StateCase) -> Code:
    for side in ("in", "out", "all", ""):
        assert job.run("configure", 8, "", "paused", side, at=AT)[0] == 1
    return None


EVENTS: Mapping[Event, Happening] = {
    Event.ENQUEUE: _enqueue(6),
    Event.ENQUEUE_DELAYED: _enqueue(6, delay=1000),
    Event.ENQUEUE_REPEATED: _enqueue(SEED_CALL),
    Event.ENQUEUE_STALE: _enqueue(SEED_CALL - 1),
    Event.ENQUEUE_FULL: _enqueue(6, bound="1", records=2),
    Event.ENQUEUE_PAUSED: _paused("in", _enqueue(6)),
    Event.ENQUEUE_CLOSED: _closed(_enqueue(6)),
    Event.ENQUEUE_IN_USE: _taken("producer", _refused("enqueue", -15, EPOCH, 0, "", 0, "", NEW)),
    Event.ENQUEUE_LOST: _refused("enqueue", -16, EPOCH, 0, "", 0, ENDED, NEW),
    Event.CLAIM: _claim(),
    Event.CLAIM_TAKEN: _claim(taken=True),
    Event.CLAIM_UPDATE: _claim("u", taken=True),
    Event.CLAIM_CLOSED: _closed(_claim("u", taken=True)),
    Event.PUBLISH: _publish(),
    Event.PUBLISH_DELAYED: _publish(1000),
    Event.PUBLISH_TAKEN: _publish(taken=True),
    Event.PUBLISH_CLOSED: _closed(_publish()),
    Event.TICK: _tick,
    Event.OPEN_BATCH: _open_batch,
    Event.RESERVE: _reserve,
    Event.RESERVE_CANCELLED: _marked("A* A~", _reserve),
    Event.RESERVE_LAST: _configured("max_crashes", _reserve),
    Event.RESERVE_PAUSED_OUT: _paused("out", _reserve),
    Event.RESERVE_PAUSED_IN: _paused("in", _reserve),
    Event.RESERVE_CLOSED: _closed(_reserve),
    Event.RESERVE_IN_USE: _taken("consumer", _refused("reserve", -15, 9, 0xCCC, "eve", 0, "")),
    Event.RESERVE_LOST: _refused("reserve", -16, 9, 0xCCC, "eve", 0, ENDED),
    Event.ASSIGN: _assign,
    Event.ASSIGN_CANCELLED: _marked("A* A~", _assign),
    Event.ASSIGN_LAST: _configured("max_crashes", _assign),
    Event.ASSIGN_PAUSED: _paused("out", _assign),
    Event.ASSIGN_CLOSED: _closed(_assign),
    Event.ASSIGN_IN_USE: _taken(
        "consumer", _refused("assign", -15, "", 1, 9, 9, 0xCCC, "eve", 60_000)
    ),
    Event.RECOVER: _recover,
    Event.RECOVER_CANCELLED: _marked("A A*", _recover),
    Event.RECOVER_LAST: _configured("max_crashes", _recover),
    Event.RECOVER_PAUSED: _paused("in", _recover),
    Event.RECOVER_CLOSED: _closed(_recover),
    Event.RECOVER_IN_USE: _taken("consumer", _recover_taken),
    Event.ACK: _named("ack", "last", ""),
    Event.ACK_OLD: _named("ack", "older", ""),
    Event.ACK_ID: _named("ack", "none", ""),
    Event.HAND_OVER: _handed_over("last"),
    Event.HAND_OVER_OLD: _handed_over("older"),
    Event.HAND_OVER_ID: _handed_over("none"),
    Event.SETTLE: _named("settle", "last", 0, 0xCCC, "eve", ""),
    Event.SETTLE_OLD: _named("settle", "older", 0, 0xCCC, "eve", ""),
    Event.SETTLE_ID: _named("settle", "none", 0, 0xCCC, "eve", ""),
    Event.SETTLE_NEXT: _settle_next,
    Event.SETTLE_LAST: _configured("max_crashes", _settle_next),
    Event.SETTLE_IN_USE: _taken("consumer", _settle_taken),
    Event.NACK: _named("nack", "last", 5000, 1, "broke", ""),
    Event.NACK_OLD: _named("nack", "older", 5000, 1, "broke", ""),
    Event.NACK_ID: _named("nack", "none", 5000, 1, "broke", ""),
    Event.NACK_CANCELLED: _marked("A A* A!", _named("nack", "last", 5000, 1, "broke", "")),
    Event.NACK_LAST: _configured("max_attempts", _named("nack", "last", 5000, 1, "broke", "")),
    Event.NACK_CLOSED: _closed(_named("nack", "last", 5000, 1, "broke", "")),
    Event.RELEASE: _named("release", "last", 0),
    Event.RELEASE_OLD: _named("release", "older", 0),
    Event.RELEASE_ID: _named("release", "none", 0),
    Event.RELEASE_CANCELLED: _marked("A A* A!", _named("release", "last", 0)),
    Event.RELEASE_LAST: _configured("max_releases", _named("release", "last", 0)),
    Event.RELEASE_CLOSED: _closed(_named("release", "last", 0)),
    Event.SUSPEND: _named("suspend", "last", 1, "a", 0),
    Event.SUSPEND_OLD: _named("suspend", "older", 1, "a", 0),
    Event.SUSPEND_ID: _named("suspend", "none", 1, "a", 0),
    Event.SUSPEND_CANCELLED: _marked("A A* A!", _named("suspend", "last", 1, "a", 0)),
    Event.CALL_JOBS: _called("last"),
    Event.CALL_JOBS_OLD: _called("older"),
    Event.CALL_JOBS_CANCELLED: _marked("A A* A!", _called("last")),
    Event.SIGNAL: _signal,
    Event.BURY: _named("bury", "last", "no use", ""),
    Event.BURY_OLD: _named("bury", "older", "no use", ""),
    Event.BURY_ID: _named("bury", "none", "no use", ""),
    Event.EXTEND: _named("extend", "last", 5000, 0),
    Event.EXTEND_OLD: _named("extend", "older", 5000, 0),
    Event.EXTEND_ID: _named("extend", "none", 5000, 0),
    Event.CANCEL: _by_id("cancel"),
    Event.PROMOTE: _by_id("promote"),
    Event.DEQUEUE: _by_id("dequeue"),
    Event.WITHDRAW: _by_id("withdraw"),
    Event.REDRIVE: _redrive,
    Event.REDRIVE_OLDEST: _redrive_oldest,
    Event.REDRIVE_CLOSED: _closed(_redrive),
    Event.DELETE: _by_id("delete"),
    Event.PURGE: _purge,
    Event.SWEEP: _sweep,
    Event.SWEEP_OVER: _configured("dead_max", _sweep, 0),
    Event.CLEAR: _clear,
    Event.EVICT: _evict,
    Event.STATS: _stats,
    Event.PEEK: _peek,
    Event.LOOK: _look,
    Event.BATCH: _batch,
    Event.PAUSE: _pause,
    Event.CLOSE: _close,
    Event.ACQUIRE: _acquire,
}
