"""Each pair of the state x event table, run by the scripts (protocol/scripts.md)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.wire.codes import Code
from penstock.wire.keys import QueueKeys
from penstock.wire.scripts import Script, all_scripts
from tests.protocol.events import EVENTS, happen
from tests.protocol.keyspace import Raw, Space, dump, same
from tests.protocol.seeds import AT, HISTORIES, Job, place_of, seed
from tests.support.backends import Backend
from tools.states import TABLE, Cell, Condition, Event, JobState, StateCase, states_of

KEYS = QueueKeys("table")
TIMES = {Event.DUE: 20_000, Event.LEASE_ENDS: 40_000, Event.TTL_ENDS: 70_000}
"""Time after the event, in ms after AT."""
BESIDE = (b"meta", b"wake", b"space")
SET_UP = [event for event in Event if event.value.endswith((", closed", ", role taken"))]
WITH_SCRIPT = [event for event in Event if event not in TIMES]


def _cases(event: Event) -> Iterator[tuple[StateCase, str, bool, Cell]]:
    """Return place, history, lease 0 or not, and the table's cell.

    A waiting job of lease 0 was never delivered, so code 2 has no counterpart there.
    """
    for place, cell in TABLE[event].items():
        if cell is None:
            continue
        for history in HISTORIES:
            if history == "urgent" and place.state is JobState.READY:
                continue
            yield place, history, False, cell
        if place.state in (JobState.READY, JobState.SCHEDULED) and cell.code != 2:
            yield place, HISTORIES[0], True, cell


def _without_news(space: Space, keys: QueueKeys) -> Space:
    """Return the keys without those about the whole queue or other jobs."""
    beside = {keys[kind.decode()].decode() for kind in BESIDE}
    return {
        name: value
        for name, value in space.items()
        if name not in beside and ":checkpoint:" not in name
    }


def test_the_table_is_complete() -> None:
    """Every event has a cell for every place, and a function that runs it."""
    for event in Event:
        assert list(TABLE[event]) == list(StateCase)
    assert set(EVENTS) == set(WITH_SCRIPT)
    codes = {cell.code for row in TABLE.values() for cell in row.values() if cell}
    assert codes - {None} <= {*map(int, Code)}


@pytest.mark.parametrize("event", WITH_SCRIPT, ids=lambda event: event.name.lower())
def test_each_pair_agrees_with_the_table(event: Event, backend: Backend) -> None:
    """The job's place and the reply's code are those of the table."""
    raw = backend.sync_client()
    for place, history, once, cell in _cases(event):
        raw.flushdb()
        job = seed(raw, KEYS, place, history, once=once)
        what = f"{event.value} x {place.title} ({history} delivery, lease 0: {once})"
        assert place is StateCase.NONE or place_of(raw, KEYS, job.number) is place, f"seed: {what}"
        assert happen(event, job, place) == (cell.once_code if once else cell.code), what
        wanted = cell.once if once else cell.next
        assert place_of(raw, KEYS, job.number) is wanted, what


REFUSING = [
    event
    for event in WITH_SCRIPT
    if any(cell and cell.code not in (None, 1, 3) for cell in TABLE[event].values())
]


@pytest.mark.parametrize("event", REFUSING, ids=lambda event: event.name.lower())
def test_a_refused_event_changes_nothing(event: Event, backend: Backend) -> None:
    """A pair with a refusing code changes no key."""
    raw = backend.sync_client()
    for place, history, once, cell in _cases(event):
        code, target = (cell.once_code, cell.once) if once else (cell.code, cell.next)
        if code in (None, 1, 3, 4) or target is not place:
            continue
        raw.flushdb()
        job = seed(raw, KEYS, place, history, once=once)
        before = dump(raw)
        happen(event, job, place)
        after = dump(raw)
        if event in (*SET_UP, Event.ENQUEUE_PAUSED, Event.NACK_LAST, Event.RELEASE_LAST):
            before, after = _without_news(before, KEYS), _without_news(after, KEYS)
        assert same(after, before), f"{event.value} x {place.title}"


UNTOUCHING = [
    event
    for event in WITH_SCRIPT
    if event is not Event.CLAIM_UPDATE  # it replaces the job's content in any waiting place
    and any(cell and cell.code is None for cell in TABLE[event].values())
]
OF_OTHERS = ("ENQUEUE", "CLAIM", "PUBLISH", "TICK", "OPEN_BATCH", "CLEAR")
"""Events that change the queue or other jobs, but not this job."""


def _about(space: Space, number: bytes) -> Space:
    """Return the data of one job from the keys."""
    own, found = (number.decode(), f"={number.decode()}"), {}
    for name, value in space.items():
        parts = {
            part: {field: content for field, content in value.get(part, {}).items() if field in own}
            for part in ("entries", "fields", "members")
        }
        found[name] = {part: content for part, content in parts.items() if content}
    return {name: value for name, value in found.items() if value}


@pytest.mark.parametrize("event", UNTOUCHING, ids=lambda event: event.name.lower())
def test_an_event_about_other_things_changes_no_job(event: Event, backend: Backend) -> None:
    """An event about other things leaves every structure of jobs unchanged."""
    raw = backend.sync_client()
    for place, history, once, cell in _cases(event):
        if cell.code is not None or cell.next is not place:
            continue
        raw.flushdb()
        job = seed(raw, KEYS, place, history, once=once)
        before, number = _without_news(dump(raw), KEYS), job.number
        happen(event, job, place)
        after = _without_news(dump(raw), KEYS)
        if event.name.startswith(OF_OTHERS):
            before, after = _about(before, number), _about(after, number)
        assert same(after, before), f"{event.value} x {place.title}"


@pytest.mark.parametrize("event", TIMES, ids=lambda event: event.name.lower())
def test_an_elapsed_time_needs_no_script(event: Event, backend: Backend) -> None:
    """The clock alone moves a job to another place without a change of keys."""
    raw = backend.sync_client()
    for place, history, _, cell in _cases(event):
        raw.flushdb()
        number = _with_times(raw, place, history).number
        before = dump(raw)
        reached = _place_later(raw, number, AT + TIMES[event], event)
        assert reached is cell.next, f"{event.value} x {place.title}"
        assert same(dump(raw), before)


def _with_times(raw: Raw, place: StateCase, history: str) -> Job:
    """Put a job into a place, with a ttl of a minute if possible."""
    job = seed(raw, KEYS, place, history)
    if place.state in (JobState.READY, JobState.SCHEDULED, JobState.ACTIVE):
        raw.zadd(KEYS["expiry"], {job.number: int(job.number[:-11]) + 60_000})
    return job


def _place_later(raw: Raw, number: bytes, now_ms: int, event: Event) -> StateCase:
    here = place_of(raw, KEYS, number, now_ms)
    if (
        event is Event.TTL_ENDS and here is StateCase.DEAD
    ):  # a dead letter's ttl is in its record only
        return StateCase.DEAD_EXPIRED
    return here


@pytest.mark.parametrize("script", all_scripts(), ids=lambda script: script.name)
def test_headers_name_the_states_of_the_table(script: Script) -> None:
    """FROM and TO of a script's header are the states of its rows; once counts as active."""
    found = {
        line.split()[0]: line for line in script.header.splitlines() if line.startswith("FROM")
    }
    rows = any(event.script == script.name for event in Event)
    if not rows or script.name in (
        "configure",
        "acquire",
        "stats",
    ):  # their rows say that no job moves
        assert not found
        return
    line = found["FROM"].removeprefix("FROM")
    said = [{part.strip() for part in side.split(",")} for side in line.split("TO")]
    start, end = states_of(script.name, expired=script.name in ("sweep", "peek"))
    assert {_shown(state) for state in start} == _meant(said[0])
    assert {_shown(state) for state in end} == _meant(said[1])


def _shown(state: JobState) -> str:
    return "active" if state is JobState.ONCE else state.value


def _meant(said: set[str]) -> set[str]:
    """Normalise states: `done` means absent."""
    return {"none" if word == "done" else word for word in said}


def test_places_are_states_with_a_condition() -> None:
    """Places with an ended time are listed only where it matters."""
    assert len({(place.state, place.condition) for place in StateCase}) == len(StateCase)
    assert {p.state for p in StateCase if p.condition is Condition.LEASE_ENDED} == {JobState.ACTIVE}
    assert {p.state for p in StateCase if p.condition is Condition.DUE} == {JobState.SCHEDULED}
