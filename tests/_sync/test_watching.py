# From tests/_async/test_watching.py by tools/unasync.py; do not edit.
"""Watching a job: all that its handler tells is seen at once and in order, until the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any, TypeAlias

import pytest

from penstock import (
    BadArgument,
    BadJobId,
    Job,
    JobEvent,
    Penstock,
    Queue,
    ResultTimeout,
    Worker,
    chain,
)
from penstock.client._sync import looking
from penstock.core.calls.operations import QueueOps
from penstock.worker import Handlers
from tests.support.keyspace import Raw, advance
from tests.support.twins import Beside, spawn, wait_for

MARKS_FROM = 2**52
Watch: TypeAlias = "Callable[[str], Watcher]"


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no watcher look again by itself: a test that is not told does not end."""
    monkeypatch.setattr(looking, "LOOK_AGAIN", 600.0)


class Watcher:
    """A client that watches a job in the background.

    Attributes:
        events: those that it has seen.
    """

    def __init__(self, q: Queue, job_id: str) -> None:
        self.events: list[JobEvent] = []
        self._reading: Beside[None] = spawn(self._read, q, job_id)

    def _read(self, q: Queue, job_id: str) -> None:
        for event in q.watch(job_id, timeout=20):
            self.events.append(event)

    def sees(self, *kinds: str) -> None:
        """Return when it has seen events of these kinds, in this order, with others between."""
        wait_for(lambda: _is_part(kinds, self.kinds))

    @property
    def kinds(self) -> list[str]:
        """The kinds of its events."""
        return [event.kind for event in self.events]

    def end(self) -> list[JobEvent]:
        """Return all events when the job has ended."""
        self._reading.result()
        return self.events

    def leave(self) -> None:
        """Watch no longer."""
        self._reading.end()


@pytest.fixture
def watch(q: Queue) -> Iterator[Watch]:
    """A function that begins to watch a job. No watcher outlives the test, even if it fails."""
    with ExitStack() as watchers:

        def begin(job_id: str) -> Watcher:
            watcher = Watcher(q, job_id)
            watchers.callback(watcher.leave)
            return watcher

        yield begin


def _is_part(wanted: tuple[str, ...], kinds: list[str]) -> bool:
    rest = iter(kinds)
    return all(kind in rest for kind in wanted)


def watched(raw: Raw, q: Queue, *jobs: str) -> None:
    """Return when these jobs are marked as watched."""
    names = [b"!" + q.ops.number_of(job)[0] for job in jobs]
    wait_for(lambda: None not in raw.zmscore(q.ops.keys["expiry"], names))


def facts(events: list[JobEvent], kind: str) -> list[Any]:
    """Return what the events of a kind tell."""
    return [str(e.progress) if kind == "progress" else e.data for e in events if e.kind == kind]


def run(ps: Penstock, q: Queue, handle: Callable[[Job], Any]) -> None:
    """Run a worker until no job is left."""
    Worker(ps, q, handle, burst=True).run()


def test_each_progress_is_seen_at_once(ps: Penstock, q: Queue, raw: Raw, watch: Watch) -> None:
    """A handler that waits until its watcher has seen each progress and chunk gets on."""
    job = q.enqueue(1, result_ttl=60)
    watcher = watch(job.id)
    watched(raw, q, job.id)

    def handle(job: Job) -> int:
        for i in range(1, 21):
            job.progress(i, 20)
            wait_for(lambda i=i: watcher.kinds.count("progress") == i)  # type: ignore[misc]  # a default
            job.emit(f"token {i}")
            wait_for(lambda i=i: watcher.kinds.count("chunk") == i)  # type: ignore[misc]  # a default
        return 7

    run(ps, q, handle)
    events = watcher.end()
    assert watcher.kinds == ["waiting", "started", *["progress", "chunk"] * 20, "ended"]
    assert [event.progress.done for event in events if event.progress] == [*range(1, 21)]
    assert facts(events, "chunk") == [f"token {i}" for i in range(1, 21)]
    assert [event.number for event in events if event.number] == [*range(1, 41)]
    last = events[-1]
    assert (last.state, last.value, last.attempt, last.id) == ("done", 7, 1, job.id)


def test_the_last_words_of_a_handler(ps: Penstock, q: Queue, raw: Raw, watch: Watch) -> None:
    """What a handler tells just before it returns or raises comes before the end of the attempt."""
    q.configure(backoff_base=0.001)
    jobs = [q.enqueue(i, result_ttl=60) for i in range(3)]
    watchers = [watch(job.id) for job in jobs]
    watched(raw, q, *[job.id for job in jobs])

    def handle(job: Job) -> None:
        for word in ("once", {"upon": "a"}, "time\n"):
            job.emit(word)
        if job.attempt == 1:
            raise OSError("not yet")
        # What is kept of a failure ends with the job.
        wait_for(lambda: "failed" in watchers[job.body].kinds)

    Worker(ps, q, handle, max_jobs=6).run()  # a burst leaves a retry that is not due yet
    for watcher in watchers:
        events = [event for event in watcher.end() if event.kind != "waiting"]
        told = ["once", {"upon": "a"}, "time\n"]
        assert facts(events, "chunk") == told * 2
        attempt = ["started", "chunk", "chunk", "chunk"]
        assert [event.kind for event in events] == [*attempt, "failed", *attempt, "ended"]
        assert [event.attempt for event in events] == [1] * 5 + [2] * 5
        assert [event.delivery for event in events] == [1] * 5 + [2] * 5
        assert [event.number for event in events] == [0, 1, 2, 3, 0] * 2
        assert events[4].error == "OSError: not yet"


def test_nothing_more_is_sent_for_jobs_that_no_client_watches(
    ps: Penstock, q: Queue, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1000 notes of progress cost no call; the first chunk of a delivery asks once."""
    sent, emit = list[int](), QueueOps.emit

    def count(ops: QueueOps, job: Any, span: int, entries: Any) -> Any:
        sent.append(len(entries))
        return emit(ops, job, span, entries)

    monkeypatch.setattr(QueueOps, "emit", count)
    q.enqueue("progress")
    q.enqueue("chunks")

    def handle(job: Job) -> None:
        for i in range(1000):
            job.progress(i)
            if job.body == "chunks":
                job.emit("x")
                if i == 0:
                    wait_for(lambda: bool(sent))

    run(ps, q, handle)
    assert len(sent) == 1
    assert not [key for key in raw.keys("*") if b"emit" in key]


def test_a_late_watcher(ps: Penstock, q: Queue, raw: Raw, watch: Watch) -> None:
    """It sees the state first, then the chunks with a ttl; two watchers see the same."""
    job = q.enqueue(1, result_ttl=60)
    first = list[Watcher]()

    def handle(job: Job) -> str:
        job.emit("lost")  # no client watches
        job.emit("one", ttl=60)
        job.emit("two", ttl=60)
        wait_for(lambda: bool(raw.exists(q.ops.keys.emitted(number)[0])))
        first.extend([watch(job.id), watch(job.id)])
        for watcher in first:
            watcher.sees("started", "chunk", "chunk", "chunk")
        job.progress(1, 2)
        for watcher in first:
            watcher.sees("started", "chunk", "chunk", "chunk", "progress")
        return "done"

    number = q.ops.number_of(job.id)[0]
    run(ps, q, handle)
    seen = [watcher.end() for watcher in first]
    assert first[0].kinds == ["started", "chunk", "chunk", "chunk", "progress", "ended"]
    assert seen[0] == seen[1]
    after = watch(job.id)
    assert after.end()[1:] == seen[0][1:]
    assert (seen[0][0].state, after.events[0].kind) == ("active", "started")


def test_a_watcher_of_a_retry_reads_no_earlier_attempt(q: Queue) -> None:
    """A client that comes between two attempts, or in the second one, reads the chunks of that."""
    q.enqueue(1)
    [job] = q.reserve()
    job.emit("first", ttl=60)
    job.send_progress()
    job.nack(delay=60, error="no")
    seen = first_look(q, job.id)
    assert [(event.kind, event.state, event.attempt) for event in seen] == [
        ("waiting", "scheduled", 1)
    ]
    assert seen[0].due is not None
    q.promote([job.id])
    [job] = q.reserve()
    seen = first_look(q, job.id)
    assert [(event.kind, event.attempt) for event in seen] == [("started", 2)]
    job.emit("second", ttl=60)
    job.progress(1, 3, "scene 1")
    job.send_progress()
    seen = first_look(q, job.id)
    assert [(event.kind, event.attempt, event.data) for event in seen] == [
        ("started", 2, None),
        ("chunk", 2, "second"),
        ("progress", 2, None),
    ]


def first_look(q: Queue, job_id: str) -> list[JobEvent]:
    """Return what a watcher sees at once, of a job that has not ended."""
    return look(q, job_id, 0)


def look(q: Queue, job_id: str, timeout: float) -> list[JobEvent]:
    """Return what a watcher sees in a time, of a job that does not end."""
    events = list[JobEvent]()
    try:
        for event in q.watch(job_id, timeout=timeout):
            events.append(event)
    except ResultTimeout:
        return events
    raise AssertionError("the job has ended")


def test_progress_without_a_worker(q: Queue, raw: Raw, watch: Watch) -> None:
    """`send_progress` sends all that was told since the last one, if a client watches."""
    added = q.enqueue(1)
    [job] = q.reserve()
    job.progress(1, 4)
    job.send_progress()  # no client watches: only the last one is stored
    watcher = watch(added.id)
    watcher.sees("started", "progress")
    job.progress(2, 4)
    job.progress(3, 4)
    job.emit([1])
    assert job.send_progress()
    watcher.sees("started", "progress", "progress", "progress", "chunk")
    view = q.show(added.id)
    assert view is not None
    assert view.progress is not None
    assert view.progress.done == 3
    job.ack()
    assert [event.state for event in watcher.end()][-1] == "gone"
    told = [event.progress.done for event in watcher.events if event.progress]
    assert told == [1, 2, 3]


def end_by_ack(q: Queue, _: str) -> None:
    """Reserve the job and finish it."""
    q.reserve(block=0)[0].ack()


def end_by_death(q: Queue, _: str) -> None:
    """Fail the last attempt."""
    q.configure(max_attempts=1)
    q.reserve(block=0)[0].nack(error="no")


ENDS: dict[str, tuple[Callable[[Queue, str], Any], str]] = {
    "ack": (end_by_ack, "done"),
    "nack": (end_by_death, "dead"),
    "bury": (lambda q, job_id: q.bury([job_id], "no"), "dead"),
    "cancel": (lambda q, job_id: q.cancel([job_id]), "cancelled"),
    "delete": (lambda q, job_id: q.delete([job_id]), "gone"),
    "purge": (lambda q, _: q.purge(), "gone"),
    "clear": (lambda q, _: q.clear(), "gone"),
}


@pytest.mark.parametrize("how", ENDS)
def test_each_end_is_the_last_event(q: Queue, raw: Raw, how: str, watch: Watch) -> None:
    """The iteration ends with the job, for a client that waits and one that comes later."""
    end, state = ENDS[how]
    job = q.enqueue(1, result_ttl=60)
    watcher = watch(job.id)
    watched(raw, q, job.id)
    end(q, job.id)
    last = watcher.end()[-1]
    assert (last.kind, last.state) == ("ended", state)
    assert last.error == ("no" if state == "dead" else "")
    assert raw.zcount(q.ops.keys["expiry"], MARKS_FROM, "+inf") == 0
    if how != "clear":
        again = watch(job.id).end()
        assert [(event.kind, event.state) for event in again] == [("ended", state)]


def test_an_expiry_is_the_last_event(q: Queue, raw: Raw, watch: Watch) -> None:
    """The call that removes an expired job tells its watcher."""
    job = q.enqueue(1, ttl=5, result_ttl=60)
    watcher = watch(job.id)
    watched(raw, q, job.id)
    advance(raw, q.ops, 10)
    q.reserve(block=0)
    assert watcher.end()[-1].state == "expired"


def test_what_happens_between_attempts(q: Queue, raw: Raw, watch: Watch) -> None:
    """A snooze, a failure and a lost worker are told, with the time of the next attempt."""
    added = q.enqueue(1, result_ttl=60)
    watcher = watch(added.id)
    watched(raw, q, added.id)
    [job] = q.reserve(block=0)
    job.send_progress()
    watcher.sees("waiting", "started")
    job.release(delay=60)
    watcher.sees("waiting", "started", "waiting")
    q.promote([added.id])
    [job] = q.reserve(block=0)
    job.send_progress()
    watcher.sees("started", "started")
    job.nack(delay=60, error="OSError: 5")
    watcher.sees("started", "started", "failed")
    q.promote([added.id])
    q.reserve(block=0)  # its worker dies
    q.configure(max_crashes=5)
    advance(raw, q.ops, 31)
    [job] = q.reserve(block=0)
    watched_again(raw, q, added.id)
    job.send_progress()
    watcher.sees("failed", "failed", "started")
    job.ack()
    events = watcher.end()
    assert [event.error for event in events if event.kind == "failed"] == [
        "OSError: 5",
        "lease ended",
    ]
    snoozed = next(event for event in events[1:] if event.kind == "waiting")
    failed = next(event for event in events if event.kind == "failed")
    assert (snoozed.state, failed.state) == ("scheduled", "scheduled")
    assert None not in (snoozed.due, failed.due)
    begun = [event.delivery for event in events if event.kind == "started"]
    assert begun in ([1, 2, 4], [1, 2, 3, 4])  # the third one may have been seen
    assert (events[-1].state, events[-1].attempt) == ("done", 3)


def watched_again(raw: Raw, q: Queue, job_id: str) -> None:
    """Renew the mark of a watcher, which the step of the clock has let end."""
    name = b"!" + q.ops.number_of(job_id)[0]
    raw.zincrby(q.ops.keys["expiry"], 60_000, name)


def test_a_chain_is_watched_to_its_end(ps: Penstock, q: Queue, raw: Raw, watch: Watch) -> None:
    """The jobs of a chain are watched one behind another; a client that waits is told, too."""
    handlers = Handlers(queue="q")

    @handlers.handler("double")
    def double(n: int) -> int:
        return n * 2

    @handlers.handler("add")
    def add(n: int, more: int) -> int:
        return n + more

    first = q.enqueue(chain(double.job(4), partial(add, more=1)))
    watcher = watch(first.id)
    result = spawn(q.result, first.id, timeout=20)
    watched(raw, q, first.id)
    Worker(ps, handlers=handlers, burst=True).run()
    last = watcher.end()[-1]
    assert (last.kind, last.state, last.value) == ("ended", "done", 9)
    assert last.id != first.id
    assert result.result() == 9


def test_timeouts(q: Queue, raw: Raw) -> None:
    """With 0 the state is told, and with more the changes until then; then it raises."""
    job = q.enqueue(1)
    assert [event.kind for event in first_look(q, job.id)] == ["waiting"]
    assert [event.kind for event in look(q, job.id, 0.01)] == ["waiting"]
    advance(raw, q.ops, 31)
    q.sweep()
    assert raw.zcount(q.ops.keys["expiry"], MARKS_FROM, "+inf") == 0
    with pytest.raises(BadJobId):
        for _ in q.watch("nonsense"):
            pass


def test_what_can_not_be_told(q: Queue) -> None:
    """A chunk that can't be sent is refused when it is emitted, and nothing is sent."""
    q.enqueue(1)
    [job] = q.reserve()
    job.emit("x" * 65_536)
    for data, reason in (
        ("é" * 32_769, "has 65538 bytes, and a chunk at most 65536"),
        (b"bytes", "must be text, or fit in JSON"),
        (float("nan"), "must be text, or fit in JSON"),
        ("\ud800", "must be encodable as UTF-8"),
    ):
        with pytest.raises(BadArgument, match=reason):
            job.emit(data)
    for ttl in (-1, 86_401, "a"):
        with pytest.raises(BadArgument, match="ttl"):
            job.emit("x", ttl=ttl)  # type: ignore[arg-type]  # wrong on purpose


def test_nothing_stays_behind(ps: Penstock, q: Queue, raw: Raw) -> None:
    """What was told has a time to live; a client that went away leaves a mark of some seconds."""
    job = q.enqueue(1)
    for event in q.watch(job.id):
        assert event.kind == "waiting"
        break

    def handle(job: Job) -> None:
        job.emit("x")

    run(ps, q, handle)
    number = q.ops.number_of(job.id)[0]
    left = {key: raw.pttl(key) for key in (*q.ops.keys.emitted(number), q.ops.keys["finished"])}
    assert all(0 < ms <= 60_000 for ms in left.values()), left
    assert raw.zcount(q.ops.keys["expiry"], MARKS_FROM, "+inf") == 0
    other = q.enqueue(2)
    first_look(q, other.id)  # it writes nothing
    assert raw.zcount(q.ops.keys["expiry"], MARKS_FROM, "+inf") == 0


def test_a_queue_has_at_most_1000_streams(
    ps: Penstock, q: Queue, raw: Raw, caplog: pytest.LogCaptureFixture
) -> None:
    """A chunk that would begin another one is dropped with a warning; the job goes on."""
    job = q.enqueue(1, result_ttl=60)
    number = q.ops.number_of(job.id)[0]
    stream, streams = q.ops.keys.emitted(number)
    raw.zadd(streams, {f"{i}": 2**52 for i in range(1000)})

    def handle(job: Job) -> str:
        job.emit("x", ttl=60)
        return "done"

    run(ps, q, handle)
    assert q.result(job.id, timeout=0) == "done"
    assert not raw.exists(stream)
    assert "1000 jobs of the queue have chunks already" in caplog.text
    raw.delete(streams)


def test_chunks_that_come_too_fast(q: Queue, caplog: pytest.LogCaptureFixture) -> None:
    """Those that wait to be sent are bounded: the oldest are dropped, and a gap tells it."""
    added = q.enqueue(1)
    [job] = q.reserve()
    for i in range(1500):
        job.emit(i, ttl=60)
    job.send_progress()
    seen = first_look(q, added.id)
    assert [event.data for event in seen if event.kind == "chunk"] == [*range(500, 1500)]
    assert seen[1].number == 501
