"""Watching a job: all that its handler tells is seen at once and in order, until the end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, TypeAlias

import pytest

from penstock import (
    AsyncJob,
    AsyncPenstock,
    AsyncQueue,
    AsyncWorker,
    BadArgument,
    BadJobId,
    JobEvent,
    ResultTimeout,
    chain,
)
from penstock.client._async import looking
from penstock.core.calls.operations import QueueOps
from penstock.worker import Handlers
from tests.support.keyspace import Raw, advance
from tests.support.twins import AsyncBeside, aspawn, await_for

MARKS_FROM = 2**52
Watch: TypeAlias = "Callable[[str], AsyncWatcher]"


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no watcher look again by itself: a test that is not told does not end."""
    monkeypatch.setattr(looking, "LOOK_AGAIN", 600.0)


class AsyncWatcher:
    """A client that watches a job in the background.

    Attributes:
        events: those that it has seen.
    """

    def __init__(self, q: AsyncQueue, job_id: str) -> None:
        self.events: list[JobEvent] = []
        self._reading: AsyncBeside[None] = aspawn(self._read, q, job_id)

    async def _read(self, q: AsyncQueue, job_id: str) -> None:
        async for event in q.watch(job_id, timeout=20):
            self.events.append(event)

    async def sees(self, *kinds: str) -> None:
        """Return when it has seen events of these kinds, in this order, with others between."""
        await await_for(lambda: _is_part(kinds, self.kinds))

    @property
    def kinds(self) -> list[str]:
        """The kinds of its events."""
        return [event.kind for event in self.events]

    async def end(self) -> list[JobEvent]:
        """Return all events when the job has ended."""
        await self._reading.result()
        return self.events

    async def leave(self) -> None:
        """Watch no longer."""
        await self._reading.end()


@pytest.fixture
async def watch(q: AsyncQueue) -> AsyncIterator[Watch]:
    """A function that begins to watch a job. No watcher outlives the test, even if it fails."""
    async with AsyncExitStack() as watchers:

        def begin(job_id: str) -> AsyncWatcher:
            watcher = AsyncWatcher(q, job_id)
            watchers.push_async_callback(watcher.leave)
            return watcher

        yield begin


def _is_part(wanted: tuple[str, ...], kinds: list[str]) -> bool:
    rest = iter(kinds)
    return all(kind in rest for kind in wanted)


async def watched(raw: Raw, q: AsyncQueue, *jobs: str) -> None:
    """Return when these jobs are marked as watched."""
    names = [b"!" + q.ops.number_of(job)[0] for job in jobs]
    await await_for(lambda: None not in raw.zmscore(q.ops.keys["expiry"], names))


def facts(events: list[JobEvent], kind: str) -> list[Any]:
    """Return what the events of a kind tell."""
    return [str(e.progress) if kind == "progress" else e.data for e in events if e.kind == kind]


async def run(ps: AsyncPenstock, q: AsyncQueue, handle: Callable[[AsyncJob], Any]) -> None:
    """Run a worker until no job is left."""
    await AsyncWorker(ps, q, handle, burst=True).run()


async def test_each_progress_is_seen_at_once(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw, watch: Watch
) -> None:
    """A handler that waits until its watcher has seen each progress and chunk gets on."""
    job = await q.enqueue(1, result_ttl=60)
    watcher = watch(job.id)
    await watched(raw, q, job.id)

    async def handle(job: AsyncJob) -> int:
        for i in range(1, 21):
            job.progress(i, 20)
            await await_for(lambda i=i: watcher.kinds.count("progress") == i)  # type: ignore[misc]  # a default
            job.emit(f"token {i}")
            await await_for(lambda i=i: watcher.kinds.count("chunk") == i)  # type: ignore[misc]  # a default
        return 7

    await run(ps, q, handle)
    events = await watcher.end()
    assert watcher.kinds == ["waiting", "started", *["progress", "chunk"] * 20, "ended"]
    assert [event.progress.done for event in events if event.progress] == [*range(1, 21)]
    assert facts(events, "chunk") == [f"token {i}" for i in range(1, 21)]
    assert [event.number for event in events if event.number] == [*range(1, 41)]
    last = events[-1]
    assert (last.state, last.value, last.attempt, last.id) == ("done", 7, 1, job.id)


async def test_the_last_words_of_a_handler(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw, watch: Watch
) -> None:
    """What a handler tells just before it returns or raises comes before the end of the attempt."""
    await q.configure(backoff_base=0.001)
    jobs = [await q.enqueue(i, result_ttl=60) for i in range(3)]
    watchers = [watch(job.id) for job in jobs]
    await watched(raw, q, *[job.id for job in jobs])

    async def handle(job: AsyncJob) -> None:
        for word in ("once", {"upon": "a"}, "time\n"):
            job.emit(word)
        if job.attempt == 1:
            raise OSError("not yet")
        # What is kept of a failure ends with the job.
        await await_for(lambda: "failed" in watchers[job.body].kinds)

    await AsyncWorker(ps, q, handle, max_jobs=6).run()  # a burst leaves a retry that is not due yet
    for watcher in watchers:
        events = [event for event in await watcher.end() if event.kind != "waiting"]
        told = ["once", {"upon": "a"}, "time\n"]
        assert facts(events, "chunk") == told * 2
        attempt = ["started", "chunk", "chunk", "chunk"]
        assert [event.kind for event in events] == [*attempt, "failed", *attempt, "ended"]
        assert [event.attempt for event in events] == [1] * 5 + [2] * 5
        assert [event.delivery for event in events] == [1] * 5 + [2] * 5
        assert [event.number for event in events] == [0, 1, 2, 3, 0] * 2
        assert events[4].error == "OSError: not yet"


async def test_nothing_more_is_sent_for_jobs_that_no_client_watches(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1000 notes of progress cost no call; the first chunk of a delivery asks once."""
    sent, emit = list[int](), QueueOps.emit

    def count(ops: QueueOps, job: Any, span: int, entries: Any) -> Any:
        sent.append(len(entries))
        return emit(ops, job, span, entries)

    monkeypatch.setattr(QueueOps, "emit", count)
    await q.enqueue("progress")
    await q.enqueue("chunks")

    async def handle(job: AsyncJob) -> None:
        for i in range(1000):
            job.progress(i)
            if job.body == "chunks":
                job.emit("x")
                if i == 0:
                    await await_for(lambda: bool(sent))

    await run(ps, q, handle)
    assert len(sent) == 1
    assert not [key for key in raw.keys("*") if b"emit" in key]


async def test_a_late_watcher(ps: AsyncPenstock, q: AsyncQueue, raw: Raw, watch: Watch) -> None:
    """It sees the state first, then the chunks with a ttl; two watchers see the same."""
    job = await q.enqueue(1, result_ttl=60)
    first = list[AsyncWatcher]()

    async def handle(job: AsyncJob) -> str:
        job.emit("lost")  # no client watches
        job.emit("one", ttl=60)
        job.emit("two", ttl=60)
        await await_for(lambda: bool(raw.exists(q.ops.keys.emitted(number)[0])))
        first.extend([watch(job.id), watch(job.id)])
        for watcher in first:
            await watcher.sees("started", "chunk", "chunk", "chunk")
        job.progress(1, 2)
        for watcher in first:
            await watcher.sees("started", "chunk", "chunk", "chunk", "progress")
        return "done"

    number = q.ops.number_of(job.id)[0]
    await run(ps, q, handle)
    seen = [await watcher.end() for watcher in first]
    assert first[0].kinds == ["started", "chunk", "chunk", "chunk", "progress", "ended"]
    assert seen[0] == seen[1]
    after = watch(job.id)
    assert (await after.end())[1:] == seen[0][1:]
    assert (seen[0][0].state, after.events[0].kind) == ("active", "started")


async def test_a_watcher_of_a_retry_reads_no_earlier_attempt(q: AsyncQueue) -> None:
    """A client that comes between two attempts, or in the second one, reads the chunks of that."""
    await q.enqueue(1)
    [job] = await q.reserve()
    job.emit("first", ttl=60)
    await job.send_progress()
    await job.nack(delay=60, error="no")
    seen = await first_look(q, job.id)
    assert [(event.kind, event.state, event.attempt) for event in seen] == [
        ("waiting", "scheduled", 1)
    ]
    assert seen[0].due is not None
    await q.promote([job.id])
    [job] = await q.reserve()
    seen = await first_look(q, job.id)
    assert [(event.kind, event.attempt) for event in seen] == [("started", 2)]
    job.emit("second", ttl=60)
    job.progress(1, 3, "scene 1")
    await job.send_progress()
    seen = await first_look(q, job.id)
    assert [(event.kind, event.attempt, event.data) for event in seen] == [
        ("started", 2, None),
        ("chunk", 2, "second"),
        ("progress", 2, None),
    ]


async def first_look(q: AsyncQueue, job_id: str) -> list[JobEvent]:
    """Return what a watcher sees at once, of a job that has not ended."""
    return await look(q, job_id, 0)


async def look(q: AsyncQueue, job_id: str, timeout: float) -> list[JobEvent]:
    """Return what a watcher sees in a time, of a job that does not end."""
    events = list[JobEvent]()
    try:
        async for event in q.watch(job_id, timeout=timeout):
            events.append(event)
    except ResultTimeout:
        return events
    raise AssertionError("the job has ended")


async def test_progress_without_a_worker(q: AsyncQueue, raw: Raw, watch: Watch) -> None:
    """`send_progress` sends all that was told since the last one, if a client watches."""
    added = await q.enqueue(1)
    [job] = await q.reserve()
    job.progress(1, 4)
    await job.send_progress()  # no client watches: only the last one is stored
    watcher = watch(added.id)
    await watcher.sees("started", "progress")
    job.progress(2, 4)
    job.progress(3, 4)
    job.emit([1])
    assert await job.send_progress()
    await watcher.sees("started", "progress", "progress", "progress", "chunk")
    view = await q.show(added.id)
    assert view is not None
    assert view.progress is not None
    assert view.progress.done == 3
    await job.ack()
    assert [event.state for event in await watcher.end()][-1] == "gone"
    told = [event.progress.done for event in watcher.events if event.progress]
    assert told == [1, 2, 3]


async def end_by_ack(q: AsyncQueue, _: str) -> None:
    """Reserve the job and finish it."""
    await (await q.reserve(block=0))[0].ack()


async def end_by_death(q: AsyncQueue, _: str) -> None:
    """Fail the last attempt."""
    await q.configure(max_attempts=1)
    await (await q.reserve(block=0))[0].nack(error="no")


ENDS: dict[str, tuple[Callable[[AsyncQueue, str], Awaitable[Any]], str]] = {
    "ack": (end_by_ack, "done"),
    "nack": (end_by_death, "dead"),
    "bury": (lambda q, job_id: q.bury([job_id], "no"), "dead"),
    "cancel": (lambda q, job_id: q.cancel([job_id]), "cancelled"),
    "delete": (lambda q, job_id: q.delete([job_id]), "gone"),
    "purge": (lambda q, _: q.purge(), "gone"),
    "clear": (lambda q, _: q.clear(), "gone"),
}


@pytest.mark.parametrize("how", ENDS)
async def test_each_end_is_the_last_event(q: AsyncQueue, raw: Raw, how: str, watch: Watch) -> None:
    """The iteration ends with the job, for a client that waits and one that comes later."""
    end, state = ENDS[how]
    job = await q.enqueue(1, result_ttl=60)
    watcher = watch(job.id)
    await watched(raw, q, job.id)
    await end(q, job.id)
    last = (await watcher.end())[-1]
    assert (last.kind, last.state) == ("ended", state)
    assert last.error == ("no" if state == "dead" else "")
    assert raw.zcount(q.ops.keys["expiry"], MARKS_FROM, "+inf") == 0
    if how != "clear":
        again = await watch(job.id).end()
        assert [(event.kind, event.state) for event in again] == [("ended", state)]


async def test_an_expiry_is_the_last_event(q: AsyncQueue, raw: Raw, watch: Watch) -> None:
    """The call that removes an expired job tells its watcher."""
    job = await q.enqueue(1, ttl=5, result_ttl=60)
    watcher = watch(job.id)
    await watched(raw, q, job.id)
    advance(raw, q.ops, 10)
    await q.reserve(block=0)
    assert (await watcher.end())[-1].state == "expired"


async def test_what_happens_between_attempts(q: AsyncQueue, raw: Raw, watch: Watch) -> None:
    """A snooze, a failure and a lost worker are told, with the time of the next attempt."""
    added = await q.enqueue(1, result_ttl=60)
    watcher = watch(added.id)
    await watched(raw, q, added.id)
    [job] = await q.reserve(block=0)
    await job.send_progress()
    await watcher.sees("waiting", "started")
    await job.release(delay=60)
    await watcher.sees("waiting", "started", "waiting")
    await q.promote([added.id])
    [job] = await q.reserve(block=0)
    await job.send_progress()
    await watcher.sees("started", "started")
    await job.nack(delay=60, error="OSError: 5")
    await watcher.sees("started", "started", "failed")
    await q.promote([added.id])
    await q.reserve(block=0)  # its worker dies
    await q.configure(max_crashes=5)
    advance(raw, q.ops, 31)
    [job] = await q.reserve(block=0)
    await watched_again(raw, q, added.id)
    await job.send_progress()
    await watcher.sees("failed", "failed", "started")
    await job.ack()
    events = await watcher.end()
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


async def watched_again(raw: Raw, q: AsyncQueue, job_id: str) -> None:
    """Renew the mark of a watcher, which the step of the clock has let end."""
    name = b"!" + q.ops.number_of(job_id)[0]
    raw.zincrby(q.ops.keys["expiry"], 60_000, name)


async def test_a_chain_is_watched_to_its_end(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw, watch: Watch
) -> None:
    """The jobs of a chain are watched one behind another; a client that waits is told, too."""
    handlers = Handlers(queue="q")

    @handlers.handler("double")
    async def double(n: int) -> int:
        return n * 2

    @handlers.handler("add")
    async def add(n: int, more: int) -> int:
        return n + more

    first = await q.enqueue(chain(double.job(4), partial(add, more=1)))
    watcher = watch(first.id)
    result = aspawn(q.result, first.id, timeout=20)
    await watched(raw, q, first.id)
    await AsyncWorker(ps, handlers=handlers, burst=True).run()
    last = (await watcher.end())[-1]
    assert (last.kind, last.state, last.value) == ("ended", "done", 9)
    assert last.id != first.id
    assert await result.result() == 9


async def test_timeouts(q: AsyncQueue, raw: Raw) -> None:
    """With 0 the state is told, and with more the changes until then; then it raises."""
    job = await q.enqueue(1)
    assert [event.kind for event in await first_look(q, job.id)] == ["waiting"]
    assert [event.kind for event in await look(q, job.id, 0.01)] == ["waiting"]
    advance(raw, q.ops, 31)
    await q.sweep()
    assert raw.zcount(q.ops.keys["expiry"], MARKS_FROM, "+inf") == 0
    with pytest.raises(BadJobId):
        async for _ in q.watch("nonsense"):
            pass


async def test_what_can_not_be_told(q: AsyncQueue) -> None:
    """A chunk that can't be sent is refused when it is emitted, and nothing is sent."""
    await q.enqueue(1)
    [job] = await q.reserve()
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


async def test_nothing_stays_behind(ps: AsyncPenstock, q: AsyncQueue, raw: Raw) -> None:
    """What was told has a time to live; a client that went away leaves a mark of some seconds."""
    job = await q.enqueue(1)
    async for event in q.watch(job.id):
        assert event.kind == "waiting"
        break

    async def handle(job: AsyncJob) -> None:
        job.emit("x")

    await run(ps, q, handle)
    number = q.ops.number_of(job.id)[0]
    left = {key: raw.pttl(key) for key in (*q.ops.keys.emitted(number), q.ops.keys["finished"])}
    assert all(0 < ms <= 60_000 for ms in left.values()), left
    assert raw.zcount(q.ops.keys["expiry"], MARKS_FROM, "+inf") == 0
    other = await q.enqueue(2)
    await first_look(q, other.id)  # it writes nothing
    assert raw.zcount(q.ops.keys["expiry"], MARKS_FROM, "+inf") == 0


async def test_a_queue_has_at_most_1000_streams(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw, caplog: pytest.LogCaptureFixture
) -> None:
    """A chunk that would begin another one is dropped with a warning; the job goes on."""
    job = await q.enqueue(1, result_ttl=60)
    number = q.ops.number_of(job.id)[0]
    stream, streams = q.ops.keys.emitted(number)
    raw.zadd(streams, {f"{i}": 2**52 for i in range(1000)})

    async def handle(job: AsyncJob) -> str:
        job.emit("x", ttl=60)
        return "done"

    await run(ps, q, handle)
    assert await q.result(job.id, timeout=0) == "done"
    assert not raw.exists(stream)
    assert "1000 jobs of the queue have chunks already" in caplog.text
    raw.delete(streams)


async def test_chunks_that_come_too_fast(q: AsyncQueue, caplog: pytest.LogCaptureFixture) -> None:
    """Those that wait to be sent are bounded: the oldest are dropped, and a gap tells it."""
    added = await q.enqueue(1)
    [job] = await q.reserve()
    for i in range(1500):
        job.emit(i, ttl=60)
    await job.send_progress()
    seen = await first_look(q, added.id)
    assert [event.data for event in seen if event.kind == "chunk"] == [*range(500, 1500)]
    assert seen[1].number == 501
