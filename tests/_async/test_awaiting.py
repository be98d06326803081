"""Waiting for results: each end is told at once, on one connection, and nothing stays behind."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any

import pytest
from redis import Redis

from penstock import (
    AsyncPenstock,
    AsyncQueue,
    JobCancelled,
    JobExpired,
    JobFailed,
    PenstockError,
    ResultGone,
    ResultTimeout,
)
from penstock.client._async import looking
from penstock.core.calls.operations import QueueOps
from penstock.embedded import EmbeddedServer
from tests.support.keyspace import Raw, advance
from tests.support.twins import aspawn, await_for

MARKS_FROM = 2**52


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no wait look again by itself: a test that is not told does not end."""
    monkeypatch.setattr(looking, "LOOK_AGAIN", 600.0)


def awaited(raw: Raw, q: AsyncQueue) -> int:
    """Return the number of awaited jobs."""
    return int(raw.zcount(q.ops.keys["expiry"], MARKS_FROM, "+inf"))


async def outcome(q: AsyncQueue, job_id: str, timeout: float = 20) -> Any:
    """Wait for a result; return it, or the type of the error in its place."""
    try:
        return await q.result(job_id, timeout=timeout)
    except PenstockError as error:
        return type(error)


async def ack(q: AsyncQueue, _: str) -> None:
    """Reserve a job and finish it."""
    await (await q.reserve(block=0))[0].ack()


async def fail(q: AsyncQueue, _: str) -> None:
    """Fail the last attempt of a job."""
    await q.configure(max_attempts=1)
    await (await q.reserve(block=0))[0].nack(error="no")


async def cancel_active(q: AsyncQueue, job_id: str) -> None:
    """Cancel a job that is active, and give it back."""
    [job] = await q.reserve(block=0)
    await q.cancel([job_id])
    await job.release()


async def exchange(q: AsyncQueue, _: str) -> None:
    """Finish a job and ask for another one in one call."""
    await q.ack_and_reserve(await q.reserve(block=0), 1)


ENDS: dict[str, tuple[Callable[[AsyncQueue, str], Awaitable[Any]], Any]] = {
    "ack": (ack, None),
    "ack by id": (lambda q, job_id: q.ack([job_id]), None),
    "settle": (exchange, None),
    "nack": (fail, JobFailed),
    "bury": (lambda q, job_id: q.bury([job_id], "no"), JobFailed),
    "cancel": (lambda q, job_id: q.cancel([job_id]), JobCancelled),
    "cancel, release": (cancel_active, JobCancelled),
    "delete": (lambda q, job_id: q.delete([job_id]), ResultGone),
    "withdraw": (lambda q, job_id: q.delete([job_id], if_undelivered=True), ResultGone),
    "purge": (lambda q, _: q.purge(), ResultGone),
    "clear": (lambda q, _: q.clear(), ResultGone),
}


@pytest.mark.parametrize("how", ENDS)
async def test_each_end_is_told(q: AsyncQueue, raw: Raw, how: str) -> None:
    """A wait ends with the job, however it ends; only awaited jobs are told."""
    end, found = ENDS[how]
    job = await q.enqueue(1, result_ttl=60)
    waiting = aspawn(outcome, q, job.id)
    await await_for(lambda: awaited(raw, q) == 1)
    await end(q, job.id)
    assert await waiting.result() == found
    assert awaited(raw, q) == 0
    entries = [fields[b"j"] for _, fields in raw.xrange(q.ops.keys["finished"])]
    assert entries == [b"*" if how == "clear" else q.ops.number_of(job.id)[0]]
    raw.delete(q.ops.keys["finished"])  # else it ends by its time to live


async def test_an_expiry_is_told(q: AsyncQueue, raw: Raw) -> None:
    """The call that removes an expired job tells its end."""
    job = await q.enqueue(1, ttl=5, result_ttl=60)
    waiting = aspawn(outcome, q, job.id)
    await await_for(lambda: awaited(raw, q) == 1)
    advance(raw, q.ops, 10)
    await q.reserve(block=0)
    assert await waiting.result() is JobExpired


async def test_waits_for_jobs_of_several_queues(ps: AsyncPenstock, q: AsyncQueue, raw: Raw) -> None:
    """Waits that begin and end while others go on are told each of its own job."""
    other = ps.queue("other")
    mine = [await q.enqueue(i, result_ttl=60) for i in range(6)]
    theirs = [await other.enqueue(i, result_ttl=60) for i in range(6)]
    waits = [aspawn(outcome, q, job.id) for job in mine[:3]]
    await await_for(lambda: awaited(raw, q) == 3)
    waits += [aspawn(outcome, other, job.id) for job in theirs]
    await await_for(lambda: awaited(raw, other) == 6)
    short = aspawn(outcome, q, mine[5].id, 0.01)
    assert await short.result() is ResultTimeout
    waits += [aspawn(outcome, q, job.id) for job in mine[3:]]
    await await_for(lambda: awaited(raw, q) == 6)
    for queue, jobs in ((other, theirs), (q, mine)):
        await queue.ack([job.id for job in jobs])
    assert [await wait.result() for wait in waits] == [None] * 12


async def test_nothing_is_told_where_no_client_waits(q: AsyncQueue, raw: Raw) -> None:
    """A look alone writes nothing; the mark of a wait that was given up goes, and its letter."""
    job = await q.enqueue(1, result_ttl=60)
    before = raw.hgetall(q.ops.keys["meta"])
    assert await outcome(q, job.id, 0) is ResultTimeout
    assert raw.hgetall(q.ops.keys["meta"]) == before
    assert await outcome(q, job.id, 0.01) is ResultTimeout
    assert (awaited(raw, q), raw.hget(q.ops.keys["meta"], "uses")) == (1, b"kw")
    advance(raw, q.ops, 31)
    await ack(q, job.id)
    assert (awaited(raw, q), raw.hget(q.ops.keys["meta"], "uses")) == (0, b"k")
    assert not raw.exists(q.ops.keys["finished"])


async def test_a_stream_that_has_ended(
    q: AsyncQueue, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wait that outlasts the entries of other jobs looks as seldom as before, and is told."""
    monkeypatch.setattr(looking, "LOOK_AGAIN", 0.05)
    looks, results = list[float](), QueueOps.results

    def note(ops: QueueOps, *args: Any, **options: Any) -> Any:
        looks.append(monotonic())
        return results(ops, *args, **options)

    monkeypatch.setattr(QueueOps, "results", note)
    other, job = await q.enqueue_many([1, 2], result_ttl=60)
    first = aspawn(outcome, q, other.id)
    await await_for(lambda: awaited(raw, q) == 1)
    await q.ack([other.id])
    assert await first.result() is None
    waiting = aspawn(outcome, q, job.id)
    await await_for(lambda: awaited(raw, q) == 1)
    raw.delete(q.ops.keys["finished"])  # as its time to live does
    before = len(looks)
    await await_for(lambda: len(looks) >= before + 20)
    assert looks[before + 19] - looks[before] > 0.5
    monkeypatch.setattr(looking, "LOOK_AGAIN", 600.0)
    await q.ack([job.id])
    assert await waiting.result() is None


def readers(raw: Raw) -> list[str]:
    """Return the ids of the connections on which an XREAD is pending."""
    clients = raw.client_list()
    return [one["id"] for one in clients if one["cmd"] == "xread" and "b" in one["flags"]]


async def test_one_connection_for_all_waits(make_server: Callable[..., EmbeddedServer]) -> None:
    """A client has one connection for all its waits; when it is lost, they go on."""
    url = make_server().url
    async with AsyncPenstock(url) as ps:
        with Redis.from_url(url) as raw:
            await one_reader(ps.queue("q"), raw)


async def one_reader(q: AsyncQueue, raw: Raw) -> None:
    """Wait for several jobs, cut the connection, and finish the jobs."""
    jobs = [await q.enqueue(i, result_ttl=60) for i in range(8)]
    waits = [aspawn(outcome, q, job.id) for job in jobs]
    await await_for(lambda: awaited(raw, q) == 8 and len(readers(raw)) == 1)
    [lost] = readers(raw)
    raw.client_kill_filter(_id=lost)
    await await_for(lambda: len(readers(raw)) == 1 and readers(raw) != [lost])
    await q.ack([job.id for job in jobs])
    assert [await wait.result() for wait in waits] == [None] * 8
    await await_for(lambda: not readers(raw))


async def test_a_full_server(make_server: Callable[..., EmbeddedServer]) -> None:
    """A server at maxmemory takes waits, and an ack with an awaited result."""
    url = make_server().url
    async with AsyncPenstock(url) as ps, AsyncPenstock(url) as theirs:
        q = ps.queue("q")
        job = await q.enqueue(1, result_ttl=60)
        executor = ps.topology.executor
        await executor.command("CONFIG", "SET", "maxmemory", "1")
        waiting = aspawn(outcome, theirs.queue("q"), job.id)
        while not await executor.command("ZCOUNT", q.ops.keys["expiry"], MARKS_FROM, "+inf"):
            pass
        await ack(q, job.id)
        assert await waiting.result() is None
        assert await executor.command("XLEN", q.ops.keys["finished"]) == 1
