"""Carmine's message ids as data: each state of an id, each way to add to it, and the result.

Carmine has seven statuses of a message id, and three flags for adding; here these are the states of
a dedup id and `on_duplicate`. test_carmine.py runs the rows on every back end. This module also has
functions that bring an id into each state, and the check of the keys of dedup ids.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from penstock import Dedup, Job, Penstock, Queue
from penstock.client.sockets import Socket
from penstock.core.calls.operations import QueueOps
from penstock.core.jobs.record import escaped
from tests.crash.tasks import struck
from tests.support.keyspace import Raw, advance, numbers
from tests.support.workers import await_word, die, tell

__all__ = [
    "BEFORE",
    "COMBINATIONS",
    "DELAYS",
    "FLAGS",
    "ID",
    "MODES",
    "ROWS",
    "WINDOWS",
    "Row",
    "Status",
    "check_claims",
    "killed",
    "mentions",
    "seen",
]

ID = "x"
NEVER = 9_007_199_254_740_991
"""Due time of a successor, in ms."""


class Status(NamedTuple):
    """The status of a dedup id; a job is named by its body.

    Attributes:
        state: of the id.
        job: its holder, None = none.
        successor: its next holder.
        window: whether a window is open.
    """

    state: str
    job: Any
    successor: Any = None
    window: bool = False


def seen(q: Queue, dedup_id: str = ID) -> Status | None:
    """Return the status of an id, as the rows have it."""
    found = q.dedup_status(dedup_id)
    if found is None:
        return None
    job = None if found.job is None else found.job.body
    successor = None if found.successor is None else found.successor.body
    return Status(found.state, job, successor, found.window_ends is not None)


# -- states ------------------------------------------------------------------------------------


def take(q: Queue) -> Job:
    """Reserve the only job."""
    (job,) = q.reserve(2, block=0)
    return job


def let_free(raw: Raw, q: Queue) -> None:
    """Leave the id unused."""
    finish(raw, q, dedup_id="another")


def finish(raw: Raw, q: Queue, *, dedup_id: str = ID, window: float | None = None) -> None:
    """Finish a job with the id."""
    q.enqueue("old", dedup=Dedup(dedup_id, window=window))
    assert take(q).ack()


def add(raw: Raw, q: Queue) -> None:
    """Add a waiting job with the id."""
    q.enqueue("old", dedup_id=ID)


def delay(raw: Raw, q: Queue) -> None:
    """Add a delayed job."""
    q.enqueue("old", dedup_id=ID, delay=600)


def hold(raw: Raw, q: Queue) -> None:
    """Add a job and reserve it."""
    add(raw, q)
    take(q)


def hold_again(raw: Raw, q: Queue) -> None:
    """Reserve a job again after a delay and a failure."""
    fail(raw, q)
    advance(raw, q.ops, 601)
    assert take(q).attempt == 2


def fail(raw: Raw, q: Queue) -> None:
    """Let it fail once; it is retried later."""
    add(raw, q)
    take(q).nack(delay=600)


def lapse(raw: Raw, q: Queue) -> None:
    """Let its lease end without a report."""
    hold(raw, q)
    advance(raw, q.ops, 31)


def follow(raw: Raw, q: Queue) -> None:
    """Add a successor that waits for its end."""
    hold(raw, q)
    assert q.enqueue("next", dedup=Dedup(ID, on_duplicate="requeue")).action == "requeued"


def follow_again(raw: Raw, q: Queue) -> None:
    """Add a successor during a later attempt."""
    hold_again(raw, q)
    assert q.enqueue("next", dedup=Dedup(ID, on_duplicate="requeue")).action == "requeued"


def follow_lapsed(raw: Raw, q: Queue) -> None:
    """Add a successor, and let the lease end without a report."""
    follow(raw, q)
    advance(raw, q.ops, 31)


def follow_failed(raw: Raw, q: Queue) -> None:
    """Add a successor, and let the first job fail; it is retried later."""
    add(raw, q)
    job = take(q)
    assert q.enqueue("next", dedup=Dedup(ID, on_duplicate="requeue")).action == "requeued"
    job.nack(delay=600)


def open_window(raw: Raw, q: Queue) -> None:
    """Finish it; the id stays taken for a window."""
    finish(raw, q, window=600)


def follow_window(raw: Raw, q: Queue) -> None:
    """Finish it, and add a job that waits for the end of the window."""
    open_window(raw, q)
    assert q.enqueue("next", dedup=Dedup(ID, on_duplicate="requeue")).action == "requeued"


def end_followed_window(raw: Raw, q: Queue) -> None:
    """Let the window end after a job waited for it."""
    follow_window(raw, q)
    advance(raw, q.ops, 601)


def end_window(raw: Raw, q: Queue) -> None:
    """Finish it, and let the window end."""
    open_window(raw, q)
    advance(raw, q.ops, 601)


def bury(raw: Raw, q: Queue) -> None:
    """Bury it."""
    add(raw, q)
    take(q).bury()


def start(raw: Raw, q: Queue) -> None:
    """Start a job that had the id until its start."""
    q.enqueue("old", dedup=Dedup(ID, until="started"))
    take(q)


def hold_once(raw: Raw, q: Queue) -> None:
    """Add a job with lease 0 and reserve it."""
    q.enqueue("old", dedup_id=ID, lease=0)
    take(q)


def throttle(raw: Raw, q: Queue) -> None:
    """Take the id for a window from the enqueue on, and finish the job."""
    q.enqueue("old", dedup=Dedup(ID, window=600, until="enqueued"))
    assert take(q).ack()


class Before(NamedTuple):
    """A state of an id.

    Attributes:
        reach: brings a new queue there.
        theirs: Carmine's status; "" = Carmine has no such state.
        status: ours.
    """

    reach: Callable[[Raw, Queue], None]
    theirs: str | None
    status: Status | None


BEFORE = {
    "free": Before(let_free, None, None),
    "ready": Before(add, "queued", Status("ready", "old")),
    "lapsed": Before(lapse, "queued", Status("ready", "old")),
    "lapsed, followed": Before(follow_lapsed, "queued", Status("ready", "old", "next")),
    "scheduled": Before(delay, "queued-with-backoff", Status("scheduled", "old")),
    "failed": Before(fail, "queued-with-backoff", Status("scheduled", "old")),
    "failed, followed": Before(
        follow_failed, "queued-with-backoff", Status("scheduled", "old", "next")
    ),
    "active": Before(hold, "locked", Status("active", "old")),
    "active again": Before(hold_again, "locked", Status("active", "old")),
    "followed": Before(follow, "locked-with-requeue", Status("active", "old", "next")),
    "followed again": Before(follow_again, "locked-with-requeue", Status("active", "old", "next")),
    "window": Before(open_window, "done-with-backoff", Status("window", None, window=True)),
    "window, followed": Before(
        follow_window, "done-with-requeue", Status("window", "next", window=True)
    ),
    "window over, followed": Before(
        end_followed_window, "done-with-requeue", Status("ready", "next")
    ),
    "window over": Before(end_window, "done-awaiting-gc", None),
    "done": Before(finish, "done-awaiting-gc", None),
    "dead": Before(bury, "done-awaiting-gc", None),
    "started": Before(start, "", None),
    "once": Before(hold_once, "", Status("active", "old")),
    "throttled": Before(throttle, "", Status("window", None, window=True)),
}

COMBINATIONS = {
    ("nx", False, False): "free",
    ("nx", False, True): "free",
    ("nx", True, False): "free",
    ("nx", True, True): "free",
    ("queued", False, False): "ready",
    ("queued", False, True): "lapsed, followed",
    ("queued", True, False): "scheduled",
    ("queued", True, True): "failed, followed",
    ("locked", False, False): "active",
    ("locked", False, True): "followed",
    ("locked", True, False): "active again",
    ("locked", True, True): "followed again",
    ("done", False, False): "done",
    ("done", False, True): "window over, followed",
    ("done", True, False): "window",
    ("done", True, True): "window, followed",
}
"""Carmine's base status, backoff, and requested requeue -> our state."""

# -- rows --------------------------------------------------------------------------------------

FLAGS = {
    "refuse": "",
    "update": "can-update",
    "debounce": "can-update, reset-init-backoff",
    "requeue": "can-requeue",
    "requeue+update": "can-update, can-requeue",
    "requeue+debounce": "can-update, can-requeue, reset-init-backoff",
}
"""Our `on_duplicate` -> Carmine's flags."""
MODES = tuple(FLAGS)
DELAYS = (0, 60)
WINDOWS = (None, 60)
"""Windows of the new job, which do not affect the answers."""
KEEP = ("refuse", "requeue")
CHANGE = ("update", "requeue+update")
STAY = ("refuse", "update", "debounce")
FOLLOW = ("requeue", "requeue+update", "requeue+debounce")
BEGIN = ("debounce", "requeue+debounce")


class Row(NamedTuple):
    """The effect of enqueuing "new".

    Attributes:
        before: the state of the id, or several that answer alike.
        modes: `on_duplicate`.
        delays: of the new job.
        theirs: Carmine's action or error; it does not matter where Carmine has no such state.
        action, state: of the answer; it is a duplicate if it was refused or updated.
        after: the status then.
    """

    before: tuple[str, ...]
    modes: tuple[str, ...]
    delays: tuple[int, ...]
    theirs: str
    action: str
    state: str
    after: Status


def waiting(before: tuple[str, ...], job: str = "old") -> list[Row]:
    """Return the rows of a waiting job that could be delivered now."""
    old, new, later = Status("ready", job), Status("ready", "new"), Status("scheduled", "new")
    return [
        Row(before, KEEP, DELAYS, "already-queued", "refused", "ready", old),
        Row(before, CHANGE, DELAYS, "updated", "updated", "ready", new),
        Row(before, BEGIN, (0,), "updated", "updated", "ready", new),
        Row(before, BEGIN, (60,), "updated", "updated", "scheduled", later),
    ]


def lapsed(before: tuple[str, ...]) -> list[Row]:
    """Return the rows of a job whose lease has ended; no delay starts there."""
    *rows, last = waiting(before)
    return [*rows, last._replace(state="ready", after=last.after._replace(state="ready"))]


def delayed(before: tuple[str, ...]) -> list[Row]:
    """Return the rows of a delayed job."""
    old, new, now = Status("scheduled", "old"), Status("scheduled", "new"), Status("ready", "new")
    return [
        Row(before, KEEP, DELAYS, "already-queued", "refused", "scheduled", old),
        Row(before, CHANGE, DELAYS, "updated", "updated", "scheduled", new),
        Row(before, BEGIN, (0,), "updated", "updated", "ready", now),
        Row(before, BEGIN, (60,), "updated", "updated", "scheduled", new),
    ]


def followed(before: str, state: str) -> list[Row]:
    """Return the rows of a waiting job with a successor, which is updated as it runs last.

    Carmine updates the first one, and then runs the older content after the newer.
    """
    old = Status(state, "old", "next")
    new = old._replace(successor="new")
    return [
        Row((before,), KEEP, DELAYS, "already-queued", "refused", state, old),
        Row((before,), CHANGE + BEGIN, DELAYS, "updated", "updated", "scheduled", new),
    ]


FREE = ("free", "done", "window over", "dead", "started")
HELD = ("active", "active again", "once")
FOLLOWED = ("followed", "followed again")
OPEN = ("window", "throttled")
ACTIVE = Status("active", "old")
WINDOW = Status("window", None, window=True)

ROWS = [
    Row(FREE, MODES, (0,), "added", "added", "ready", Status("ready", "new")),
    Row(FREE, MODES, (60,), "added", "added", "scheduled", Status("scheduled", "new")),
    *waiting(("ready",)),
    *lapsed(("lapsed",)),
    *followed("lapsed, followed", "ready"),
    *waiting(("window over, followed",), job="next"),
    *delayed(("scheduled", "failed")),
    *followed("failed, followed", "scheduled"),
    Row(HELD, STAY, DELAYS, "locked", "refused", "active", ACTIVE),
    Row(HELD, FOLLOW, DELAYS, "added", "requeued", "scheduled", ACTIVE._replace(successor="new")),
    Row(FOLLOWED, STAY, DELAYS, "locked", "refused", "active", ACTIVE._replace(successor="next")),
    Row(
        FOLLOWED,
        ("requeue",),
        DELAYS,
        "already-queued",
        "refused",
        "active",
        ACTIVE._replace(successor="next"),
    ),
    Row(
        FOLLOWED,
        ("requeue+update", "requeue+debounce"),
        DELAYS,
        "updated",
        "updated",
        "scheduled",
        ACTIVE._replace(successor="new"),
    ),
    Row(OPEN, STAY, DELAYS, "backoff", "refused", "window", WINDOW),
    Row(OPEN, FOLLOW, DELAYS, "added", "requeued", "scheduled", WINDOW._replace(job="new")),
    Row(
        ("window, followed",),
        STAY,
        DELAYS,
        "backoff",
        "refused",
        "window",
        WINDOW._replace(job="next"),
    ),
    Row(
        ("window, followed",),
        ("requeue",),
        DELAYS,
        "already-queued",
        "refused",
        "scheduled",
        WINDOW._replace(job="next"),
    ),
    Row(
        ("window, followed",),
        ("requeue+update", "requeue+debounce"),
        DELAYS,
        "updated",
        "updated",
        "scheduled",
        WINDOW._replace(job="new"),
    ),
]

ANSWERS = {
    "added": {"added", "requeued"},
    "updated": {"updated"},
    "already-queued": {"refused"},
    "locked": {"refused"},
    "backoff": {"refused"},
}
"""Carmine's action or error -> ours."""

# -- the content of the keys ---------------------------------------------------------------------

VALUE = re.compile(rb"(\d+-\d+)?(?: (\d+-\d+)(?: \d+)?)?(?: ?@(\d+))?")
NOTE = re.compile(rb"@[^\n]*\n")


def check_claims(raw: Raw, ops: QueueOps) -> None:
    """Check that owners carry their ids, successors have an owner, and windows are listed.

    Args:
        raw: a client that does not decode.
        ops: of the queue, from which what has expired has been swept.
    """
    claims = raw.hgetall(ops.keys["dedup"])
    for number in [name[1:] for name in claims if name.startswith(b"=")]:  # of a large record
        brief = claims.pop(b"=" + number)
        assert brief.partition(b";")[0] in living(raw, ops).get(number, b""), number
    windows = dict(raw.zrange(ops.keys["windows"], 0, -1, withscores=True))
    names = living(raw, ops)
    scheduled = dict(raw.zrange(ops.keys["scheduled"], 0, -1, withscores=True))
    successors = set()
    for name, value in claims.items():
        found = VALUE.fullmatch(value)
        assert found, f"{name!r}: {value!r}"
        assert found[1] or found[3], f"{name!r}: no holder: {value!r}"
        for number in filter(None, found.groups()[:2]):
            assert name in names.get(number, b""), f"{name!r} is {number!r}'s, which has it not"
        if found[2]:
            successors.add(found[2])
            assert found[2] in scheduled, f"{name!r}: {found[2]!r} waits nowhere"
        if found[3]:
            assert windows.get(name) == int(found[3]), f"{name!r}: its window will not be closed"
    waits = {number for number, due in scheduled.items() if due == NEVER}
    assert waits <= successors, f"no end will free {waits - successors}"
    for number, header in names.items():
        carried = re.search(rb";d=([^;]+)", header)
        if carried and b";u=" not in header:
            value = claims.get(carried[1], b"")
            assert number in value, f"{number!r} has {carried[1]!r}, whose value is {value!r}"


def living(raw: Raw, ops: QueueOps) -> dict[bytes, bytes]:
    """Return the header of every job that is not dead, by number."""
    dead = set(numbers(raw, ops, "dead"))
    held = raw.hgetall(ops.keys["held"])
    records = {number: NOTE.sub(b"", value, count=1) for number, value in held.items()}
    records |= {number: fields[b"j"] for number, fields in raw.xrange(ops.keys["ready"])}
    return {
        number: record.partition(b"\n")[0]
        for number, record in records.items()
        if number not in dead
    }


def mentions(raw: Raw, dedup_id: str) -> list[bytes]:
    """Return the keys with an id in their names or values, except those of producers.

    A producer's key holds the answer to its last call, in case that has to be repeated; the server
    drops it after 10 minutes.
    """
    text = escaped(dedup_id).encode()
    found = []
    for key in raw.scan_iter(count=1000):
        if b"}:producer:" in key:
            assert 0 < raw.pttl(key) <= 600_000
        elif text in key or text in raw.dump(key) or text in repr(value_of(raw, key)).encode():
            found.append(key)
    return found


def value_of(raw: Raw, key: bytes) -> Any:
    """Return the value of a key of any type."""
    readers: dict[bytes, Callable[[bytes], Any]] = {
        b"hash": raw.hgetall,
        b"zset": lambda key: raw.zrange(key, 0, -1),
        b"list": lambda key: raw.lrange(key, 0, -1),
        b"stream": raw.xrange,
    }
    return readers.get(raw.type(key), raw.get)(key)


# -- tasks of a child of the crash tests ---------------------------------------------------------


def killed(url: str, queue: str, operation: str, step: str, options: dict[str, Any]) -> None:
    """Run a call in a process of its own, and die at a step of it (tests/crash/tasks.py).

    Args:
        url: of the server.
        queue: its name.
        operation: claim, reserve, ack, nack or settle.
        step: where it dies.
        options: of the dedup id of the enqueue.
    """
    q = Penstock(url).queue(queue)
    q.stats()
    held = q.reserve(1, block=0) if operation in ("ack", "nack", "settle") else []

    def halt() -> None:
        tell("about to send")
        await_word()  # the server is frozen by now if it is to run the call after the death

    patched: Any = Socket
    patched.trip = struck(operation, step, 0, halt, die)
    calls: dict[str, Callable[[], Any]] = {
        "claim": lambda: q.enqueue("mine", dedup=Dedup(ID, **options)),
        "reserve": lambda: q.reserve(1, block=0),
        "ack": lambda: q.ack(held),
        "nack": lambda: q.nack(held, delay=0),
        "settle": lambda: q.ack_and_reserve(held, 1),
    }
    calls[operation]()
    raise AssertionError("still alive")
