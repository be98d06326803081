"""The table of states and events: the effect of each event on a job in each place.

protocol/scripts.md shows this table, and the tests run every pair of it against the scripts. A
*place* is a state together with a time that has come or not: a scheduled job whose due time has
passed is still in `scheduled`, but reserve takes it; a job whose ttl has ended stays until a script
removes it.
"Delivery ended": the lease has ended, and then a claim of the same dedup id has ended the delivery.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

__all__ = [
    "TABLE",
    "Cell",
    "Condition",
    "Edge",
    "Event",
    "JobState",
    "StateCase",
    "edges",
    "states_of",
]


class JobState(str, enum.Enum):
    """The structure of the queue that holds a job."""

    NONE = "none"
    """Not there: never added, done, deleted, expired or trimmed. Nothing of it is kept."""
    READY = "ready"
    """Waits in the stream; never delivered nor moved."""
    SCHEDULED = "scheduled"
    """Waits for its time: delayed, backing off, or put back to be taken at once."""
    ACTIVE = "active"
    """Delivered under a lease."""
    ONCE = "once"
    """Delivered at most once (lease 0): never delivered again. Shown as active."""
    DEAD = "dead"
    """A dead letter."""


class Condition(str, enum.Enum):
    """An elapsed time of a job."""

    PLAIN = ""
    DUE = "due"
    LEASE_ENDED = "lease ended"
    DELIVERY_ENDED = "delivery ended"
    TTL_ENDED = "ttl ended"


class StateCase(enum.Enum):
    """A state and a condition; the letter stands for it in the table below."""

    NONE = ("N", JobState.NONE, Condition.PLAIN)
    READY = ("R", JobState.READY, Condition.PLAIN)
    READY_EXPIRED = ("R!", JobState.READY, Condition.TTL_ENDED)
    SCHEDULED = ("S", JobState.SCHEDULED, Condition.PLAIN)
    DUE = ("S*", JobState.SCHEDULED, Condition.DUE)
    SCHEDULED_EXPIRED = ("S!", JobState.SCHEDULED, Condition.TTL_ENDED)
    ACTIVE = ("A", JobState.ACTIVE, Condition.PLAIN)
    LEASE_ENDED = ("A*", JobState.ACTIVE, Condition.LEASE_ENDED)
    DELIVERY_ENDED = ("A~", JobState.ACTIVE, Condition.DELIVERY_ENDED)
    ACTIVE_EXPIRED = ("A!", JobState.ACTIVE, Condition.TTL_ENDED)
    ONCE = ("O", JobState.ONCE, Condition.PLAIN)
    ONCE_EXPIRED = ("O!", JobState.ONCE, Condition.TTL_ENDED)
    DEAD = ("D", JobState.DEAD, Condition.PLAIN)
    DEAD_EXPIRED = ("D!", JobState.DEAD, Condition.TTL_ENDED)

    def __init__(self, letter: str, state: JobState, condition: Condition) -> None:
        self.letter = letter
        self.state = state
        self.condition = condition

    @property
    def title(self) -> str:
        """Return text for readers: `active, lease ended`."""
        return ", ".join(filter(None, (self.state.value, self.condition.value)))


class Event(str, enum.Enum):
    """A script and its kind of call, or (in brackets) an elapsed time."""

    ENQUEUE = "enqueue"
    ENQUEUE_DELAYED = "enqueue, delayed"
    ENQUEUE_REPEATED = "enqueue, repeated call"
    ENQUEUE_STALE = "enqueue, stale call"
    ENQUEUE_FULL = "enqueue, queue full"
    ENQUEUE_PAUSED = "enqueue, paused in"
    ENQUEUE_CLOSED = "enqueue, closed"
    ENQUEUE_IN_USE = "enqueue, role taken"
    ENQUEUE_LOST = "enqueue, role lost"
    CLAIM = "claim"
    CLAIM_TAKEN = "claim, its dedup id"
    CLAIM_UPDATE = "claim, its dedup id, update"
    CLAIM_CLOSED = "claim, its dedup id, closed"
    PUBLISH = "publish"
    PUBLISH_DELAYED = "publish, delayed"
    PUBLISH_TAKEN = "publish, its dedup id"
    PUBLISH_CLOSED = "publish, closed"
    TICK = "tick"
    OPEN_BATCH = "open_batch"
    RESERVE = "reserve"
    RESERVE_LAST = "reserve, crashes used up"
    RESERVE_CANCELLED = "reserve, marked by cancel"
    RESERVE_PAUSED_OUT = "reserve, paused out"
    RESERVE_PAUSED_IN = "reserve, paused in"
    RESERVE_CLOSED = "reserve, closed"
    RESERVE_IN_USE = "reserve, role taken"
    RESERVE_LOST = "reserve, role lost"
    ASSIGN = "assign"
    ASSIGN_LAST = "assign, crashes used up"
    ASSIGN_CANCELLED = "assign, marked by cancel"
    ASSIGN_PAUSED = "assign, paused out"
    ASSIGN_CLOSED = "assign, closed"
    ASSIGN_IN_USE = "assign, role taken"
    RECOVER = "recover"
    RECOVER_LAST = "recover, crashes used up"
    RECOVER_CANCELLED = "recover, marked by cancel"
    RECOVER_PAUSED = "recover, paused"
    RECOVER_CLOSED = "recover, closed"
    RECOVER_IN_USE = "recover, role taken"
    ACK = "ack, receipt"
    ACK_OLD = "ack, older receipt"
    ACK_ID = "ack, by id"
    HAND_OVER = "hand_over, receipt"
    HAND_OVER_OLD = "hand_over, older receipt"
    HAND_OVER_ID = "hand_over, by id"
    SETTLE = "settle, receipt"
    SETTLE_OLD = "settle, older receipt"
    SETTLE_ID = "settle, by id"
    SETTLE_NEXT = "settle, takes jobs"
    SETTLE_LAST = "settle, crashes used up"
    SETTLE_IN_USE = "settle, role taken"
    NACK = "nack, receipt"
    NACK_OLD = "nack, older receipt"
    NACK_ID = "nack, by id"
    NACK_LAST = "nack, attempts used up"
    NACK_CANCELLED = "nack, marked by cancel"
    NACK_CLOSED = "nack, closed"
    RELEASE = "release, receipt"
    RELEASE_OLD = "release, older receipt"
    RELEASE_ID = "release, by id"
    RELEASE_LAST = "release, releases used up"
    RELEASE_CANCELLED = "release, marked by cancel"
    RELEASE_CLOSED = "release, closed"
    SUSPEND = "suspend, receipt"
    SUSPEND_OLD = "suspend, older receipt"
    SUSPEND_ID = "suspend, by id"
    SUSPEND_CANCELLED = "suspend, marked by cancel"
    CALL_JOBS = "call_jobs, receipt"
    CALL_JOBS_OLD = "call_jobs, older receipt"
    CALL_JOBS_CANCELLED = "call_jobs, marked by cancel"
    SIGNAL = "signal"
    BURY = "bury, receipt"
    BURY_OLD = "bury, older receipt"
    BURY_ID = "bury, by id"
    EXTEND = "extend, receipt"
    EXTEND_OLD = "extend, older receipt"
    EXTEND_ID = "extend, by id"
    CANCEL = "cancel"
    PROMOTE = "promote"
    DEQUEUE = "dequeue"
    WITHDRAW = "withdraw"
    REDRIVE = "redrive, by id"
    REDRIVE_OLDEST = "redrive, the oldest"
    REDRIVE_CLOSED = "redrive, closed"
    DELETE = "delete"
    PURGE = "purge, of its state"
    SWEEP = "sweep"
    SWEEP_OVER = "sweep, too many dead"
    CLEAR = "clear"
    EVICT = "evict"
    STATS = "stats"
    PEEK = "peek"
    LOOK = "show, scan, survey, pending, lookup, beat, emit, watch, note, read_notes"
    BATCH = "assigned, fetch, dismiss"
    PAUSE = "configure, paused"
    CLOSE = "configure, closed"
    ACQUIRE = "acquire, resign"
    DUE = "(its due time comes)"
    LEASE_ENDS = "(its lease ends)"
    TTL_ENDS = "(its ttl ends)"

    @property
    def script(self) -> str:
        """Return the script of the event; '' for a time, or several scripts."""
        name = self.value.partition(",")[0]
        several = self in (Event.LOOK, Event.BATCH)
        return "" if name.startswith("(") or several else name


@dataclass(frozen=True, slots=True)
class Cell:
    """The effect of an event on a job in a place.

    Attributes:
        code: the reply's code for this job; None where the reply does not name it.
        next: where the job is then.
        once, once_code: the same for a waiting job of lease 0, which was never delivered.
    """

    code: int | None
    next: StateCase
    once: StateCase
    once_code: int | None


# A cell: `.` the job is not touched and not named; `-` can't happen; `-2` the reply's code, nothing
# changed; `1>S` code and next place; `>A/O` next place, not named, after the slash for lease 0,
# which may have a code of its own: `1>S/-2`.
_COLUMNS = "N R R! S S* S! A A* A~ A! O O! D D!"
_ROWS = """
enqueue                   | 1>R  .     >N    .    .     >N    .    .    .    >N    .    >N   .    .
enqueue, delayed          | 1>S  .     >N    .    .     >N    .    .    .    >N    .    >N   .    .
enqueue, repeated call    | 1    1     1     1    1     1     1    1    1    1     1    1    1    1
enqueue, stale call       | -7   -7    -7    -7   -7    -7    -7   -7   -7   -7    -7   -7   -7   -7
enqueue, queue full       | -3   .     >N    .    .     >N    .    .    .    >N    .    >N   .    .
enqueue, paused in        | -4   .     .     .    .     .     .    .    .    .     .    .    .    .
enqueue, closed           | -14  .     .     .    .     .     .    .    .    .     .    .    .    .
enqueue, role taken       | -15  .     .     .    .     .     .    .    .    .     .    .    .    .
enqueue, role lost        | -16  .     .     .    .     .     .    .    .    .     .    .    .    .
claim                     | 1>R  .     >N    .    .     >N    .    .    .    >N    .    >N   .    .
claim, its dedup id       | 1>R  .     >N    .    .     >N    .    >A~  .    >N    .    >N   .    .
claim, its dedup id, update | 1>R  >S*  >N   .    .    >N   .    >A~  .    >N   .    >N   .    .
claim, its dedup id, closed | -14  .    .    .    .    .    .    .    .    .    .    .    .    .
publish                   | 1>R  .     >N    .    .     >N    .    .    .    >N    .    >N   .    .
publish, delayed          | 1>S  .     >N    .    .     >N    .    .    .    >N    .    >N   .    .
publish, its dedup id     | 1>R  .     >N    .    .     >N    .    >A~  .    >N    .    >N   .    .
publish, closed           | -14  .     .     .    .     .     .    .    .    .     .    .    .    .
tick                      | 1>R  .     >N    .    .     >N    .    .    .    >N    .    >N   .    .
open_batch                | 1>S  .     >N    .    .     >N    .    .    .    >N    .    >N   .    .
reserve                   | .    >A/O  >N    .    >A/O  >N    .    >A   >A   >N    .    >N   .    .
reserve, crashes used up  | .    >A/O  >N    .    >A/O  >N    .    >D   >D   >N    .    >N   .    .
reserve, marked by cancel | .    >A/O  >N    .    >A/O  >N    .    >N   >N   >N    .    >N   .    .
reserve, paused out       | .    .     >N    .    .     >N    .    .    .    >N    .    >N   .    .
reserve, paused in        | .    >A/O  >N    .    .     >N    .    .    .    >N    .    >N   .    .
reserve, closed           | .    >A/O  >N    .    >A/O  >N    .    >A   >A   >N    .    >N   .    .
reserve, role taken       | .    .     .     .    .     .     .    .    .    .     .    .    .    .
reserve, role lost        | .    .     .     .    .     .     .    .    .    .     .    .    .    .
assign                    | .    >A/O  >N    .    >A/O  >N    .    >A   >A   >N    .    >N   .    .
assign, crashes used up   | .    >A/O  >N    .    >A/O  >N    .    >D   >D   >N    .    >N   .    .
assign, marked by cancel  | .    >A/O  >N    .    >A/O  >N    .    >N   >N   >N    .    >N   .    .
assign, paused out        | .    .     >N    .    .     >N    .    .    .    >N    .    >N   .    .
assign, closed            | .    >A/O  >N    .    >A/O  >N    .    >A   >A   >N    .    >N   .    .
assign, role taken        | .    .     .     .    .     .     .    .    .    .     .    .    .    .
recover                   | .    .     .     .    .     .     1>A  1>A  .    .     .    .    .    .
recover, crashes used up  | .    .     .     .    .     .     >D   >D   .    .     .    .    .    .
recover, marked by cancel | .    .     .     .    .     .     >N   >N   .    .     .    .    .    .
recover, paused           | .    .     .     .    .     .     .    .    .    .     .    .    .    .
recover, closed           | .    .     .     .    .     .     1>A  1>A  .    .     .    .    .    .
recover, role taken       | .    .     .     .    .     .     .    .    .    .     .    .    .    .
ack, receipt              | 0    -1    -1    2    2     2     1>N  1>N  -1   1>N   1>N  1>N  2    2
ack, older receipt        | 0    -1    -1    -1   -1    -1    -1   -1   -1   -1    -1   -1   -1   -1
ack, by id                | 0    1>N   1>N   1>N  1>N   1>N   1>N  1>N  1>N  1>N   1>N  1>N  -2   -2
hand_over, receipt        | 0    -1    -1    2    2     2     1>N  1>N  -1   1>N   1>N  1>N  2    2
hand_over, older receipt  | 0    -1    -1    -1   -1    -1    -1   -1   -1   -1    -1   -1   -1   -1
hand_over, by id          | 0    1>N   1>N   1>N  1>N   1>N   1>N  1>N  1>N  1>N   1>N  1>N  -2   -2
settle, receipt           | 0    -1    -1>N  2    2     2>N   1>N  1>N  -1   1>N   1>N  1>N  2    2
settle, older receipt     | 0    -1    -1>N  -1   -1    -1>N  -1   -1   -1   -1>N  -1   -1>N -1   -1
settle, by id             | 0    1>N   1>N   1>N  1>N   1>N   1>N  1>N  1>N  1>N   1>N  1>N  -2   -2
settle, takes jobs        | .    >A/O  >N    .    >A/O  >N    .    >A   >A   >N    .    >N   .    .
settle, crashes used up   | .    >A/O  >N    .    >A/O  >N    .    >D   >D   >N    .    >N   .    .
settle, role taken        | -15  -15  -15  -15  -15  -15  -15  -15  -15  -15  -15  -15  -15  -15
nack, receipt             | 0    -1    -1    2    2     2     1>S  1>S  -1   1>S!  -2   -2   2    2
nack, older receipt       | 0    -1    -1    -1   -1    -1    -1   -1   -1   -1    -1   -1   -1   -1
nack, by id               | 0    -2    -2    -2   -2    -2    1>S  1>S  1>S  1>S!  -2   -2   -2   -2
nack, attempts used up    | 0    -1    -1    2    2     2     3>D  3>D  -1   3>D!  -2   -2   2    2
nack, marked by cancel    | 0    -1    -1    2    2     2     4>N  4>N  -1   4>N   -2   -2   2    2
nack, closed              | 0    -1    -1    2    2     2     1>S  1>S  -1   1>S!  -2   -2   2    2
release, receipt          | 0    -1    -1    2    2     2     1>S* 1>S* -1   1>S!  -2   -2   2    2
release, older receipt    | 0    -1    -1    -1   -1    -1    -1   -1   -1   -1    -1   -1   -1   -1
release, by id            | 0    -2    -2    -2   -2    -2    1>S* 1>S* 1>S* 1>S!  -2   -2   -2   -2
release, releases used up | 0    -1    -1    2    2     2     3>D  3>D  -1   3>D!  -2   -2   2    2
release, marked by cancel | 0    -1    -1    2    2     2     4>N  4>N  -1   4>N   -2   -2   2    2
release, closed           | 0    -1    -1    2    2     2     1>S* 1>S* -1   1>S!  -2   -2   2    2
suspend, receipt          | 0    -1    -1    2    2     2     1>S* 1>S* -1   1>S!  -2   -2   2    2
suspend, older receipt    | 0    -1    -1    -1   -1    -1    -1   -1   -1   -1    -1   -1   -1   -1
suspend, by id            | 0    -2    -2    -2   -2    -2    1>S* 1>S* 1>S* 1>S!  -2   -2   -2   -2
suspend, marked by cancel | 0    -1    -1    2    2     2     4>N  4>N  -1   4>N   -2   -2   2    2
call_jobs, receipt        | 0    -1    -1    2    2     2     1>S  1>S  -1   1>S!  -2   -2   2    2
call_jobs, older receipt  | 0    -1    -1    -1   -1    -1    -1   -1   -1   -1    -1   -1   -1   -1
call_jobs, marked by cancel | 0  -1    -1    2    2     2     4>N  4>N  -1   4>N   -2   -2   2    2
signal                    | 0    1>S*/-2 0   1>S/-2 1>S*/-2 0  1    1    1    0     -2   -2   1    1
bury, receipt             | 0    -1    -1    2    2     2     1>D  1>D  -1   1>D!  -2   -2   2    2
bury, older receipt       | 0    -1    -1    -1   -1    -1    -1   -1   -1   -1    -1   -1   -1   -1
bury, by id               | 0    1>D   1>D!  1>D  1>D   1>D!  1>D  1>D  1>D  1>D!  -2   -2   -2   -2
extend, receipt           | 0    -1    -1    2    2     2     1    1>A  -1   0     -2   -2   2    2
extend, older receipt     | 0    -1    -1    -1   -1    -1    -1   -1   -1   -1    -1   -1   -1   -1
extend, by id             | 0    -2    -2    -2   -2    -2    1    1>A  -2   0     -2   -2   -2   -2
cancel                    | 0    1>N   1>N   1>N  1>N   1>N   4    1>N  1>N  1>N   -2   -2   -2   -2
promote                   | 0    -2    -3    1>S* 1     -3    1>S* 1>S* 1>S* -3    -2   -2   -2   -2
dequeue                   | 0    1>S/-2 -3   -2   1>S/-2 -3   -2   1>S  1>S  -3   -2   -2   -2   -2
withdraw                  | 0 1>N 1>N -2/1>N -2/1>N -2/1>N -2 -2 -2 -2 -2 -2 -2 -2
redrive, by id            | 0    -2    -2    -2   -2    -2    -2   -2   -2   -2    -2   -2   1>S* -3
redrive, the oldest       | .    .     .     .    .     .     .    .    .    .     .    .    >S*  .
redrive, closed           | 0    -2    -2    -2   -2    -2    -2   -2   -2   -2    -2   -2   1>S* -3
delete                    | 0    1>N  1>N  1>N  1>N  1>N  1>N  1>N  1>N  1>N  1>N  1>N  1>N  1>N
purge, of its state       | .    >N    >N    >N   >N    >N    >N   >N   >N   >N    >N   .    >N   >N
sweep                     | .    .     >N    .    .     >N    .    .    .    >N    .    >N   .    .
sweep, too many dead      | .    .     >N    .    .     >N    .    .    .    >N    .    >N   >N   >N
clear                     | .    >N    >N    >N   >N    >N    >N   >N   >N   >N    >N   >N   >N   >N
evict                     | .    .     .     .    .     .     .    .    .    .     >N   >N   >N   >N
stats                     | .    .     .     .    .     .     .    .    .    .     .    .    .    .
peek                      | .    .     >N    .    .     >N    .    .    .    >N    .    >N   .    .
show, scan, survey, pending, lookup, beat, emit, watch, note, read_notes|. . . . . . . . . . . . . .
assigned, fetch, dismiss  | .    .     .     .    .     .     .    .    .    .     .    .    .    .
configure, paused         | .    .     .     .    .     .     .    .    .    .     .    .    .    .
configure, closed         | .    .     .     .    .     .     .    .    .    .     .    .    .    .
acquire, resign           | .    .     .     .    .     .     .    .    .    .     .    .    .    .
(its due time comes)      | -    -     -     >S*  -     -     -    -    -    -     -    -    -    -
(its lease ends)          | -    -     -     -    -     -     >A*  -    -    -     -    -    -    -
(its ttl ends)            | -    >R!   -     >S!  >S!   -     >A!  >A!  >A!  -     >O!  -    >D!  -
"""
_BY_LETTER = {place.letter: place for place in StateCase}
IMPOSSIBLE, UNTOUCHED = "-", "."


def _cell(text: str, here: StateCase) -> Cell | None:
    if text == IMPOSSIBLE:
        return None
    plain, _, once = text.partition("/")
    code, place = _half(plain, here)
    if not once:
        return Cell(code, place, place, code)
    if once in _BY_LETTER:
        return Cell(code, place, _BY_LETTER[once], code)
    once_code, once_place = _half(once, here)
    return Cell(code, place, once_place, once_code)


def _half(text: str, here: StateCase) -> tuple[int | None, StateCase]:
    code, arrow, target = text.partition(">")
    number = int(code) if code not in ("", UNTOUCHED) else None
    return number, _BY_LETTER[target] if arrow else here


def _row(line: str) -> tuple[Event, dict[StateCase, Cell | None]]:
    name, _, cells = line.partition("|")
    places = [_BY_LETTER[letter] for letter in _COLUMNS.split()]
    pairs = zip(places, cells.split(), strict=True)
    return Event(name.strip()), {place: _cell(text, place) for place, text in pairs}


TABLE: Mapping[Event, Mapping[StateCase, Cell | None]] = dict(map(_row, _ROWS.strip().splitlines()))
"""Every pair; None where it can't happen."""


@dataclass(frozen=True, slots=True)
class Edge:
    """A transition from one state to another, and its events."""

    start: JobState
    end: JobState
    events: tuple[Event, ...]


def edges() -> Iterator[Edge]:
    """Yield the transitions in the order of the states, without those of an ended ttl."""
    ways: dict[tuple[JobState, JobState], list[Event]] = {}
    for event, row in TABLE.items():
        for place, cell in row.items():
            if cell is None or place.condition is Condition.TTL_ENDED:
                continue
            for target in {cell.next, cell.once}:
                way = ways.setdefault((place.state, target.state), [])
                if target.state is not place.state and event not in way:
                    way.append(event)
    for start in JobState:
        for end in JobState:
            if ways.get((start, end)):
                yield Edge(start, end, tuple(ways[start, end]))


def states_of(script: str, *, expired: bool = False) -> tuple[set[JobState], set[JobState]]:
    """Return the states from which a script takes jobs, and those to which it moves them.

    Args:
        expired: whether jobs whose ttl has ended, which it removes beside its work, count too.
    """
    start, end = set(), set()
    for event, row in TABLE.items():
        for place, cell in row.items() if event.script == script else ():
            if cell is None or (place.condition is Condition.TTL_ENDED and not expired):
                continue
            renewed = script in ("extend", "recover") and cell.code == 1
            for target in (cell.next, cell.once):
                if target is not place or renewed:
                    start.add(place.state)
                    end.add(target.state)
    return start, end
