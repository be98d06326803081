"""Jobs with a priority are delivered before the others, and starve none of them."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import AsyncQueue, BadArgument, Dedup, RetryPolicy
from penstock.worker import Handlers
from tests.support.keyspace import Raw, advance, check_invariant, method_of, numbers


async def take(q: AsyncQueue, n: int = 100) -> list[Any]:
    """Reserve jobs and acknowledge them; return their bodies in the order of delivery."""
    jobs = await q.reserve(n, block=0)
    if jobs:
        await q.ack(jobs)
    return [job.body for job in jobs]


async def urgent(q: AsyncQueue, raw: Raw) -> list[bytes]:
    """Return the numbers in `urgent`."""
    check_invariant(raw)
    return numbers(raw, q.ops, "urgent")


async def test_higher_priorities_come_first(q: AsyncQueue, raw: Raw) -> None:
    """Within one priority the order is that of the enqueues; 0 is the usual priority."""
    for body, priority in (("a", None), ("b", 1), ("c", 9), ("d", 0), ("e", 9), ("f", 5)):
        added = await q.enqueue(body, priority=priority)
        assert added.state == "ready"
    assert [job.body for job in await q.peek(10)] == ["c", "e", "f", "b", "a", "d"]
    assert [job.body for job in await q.peek(10, newest=True)] == ["d", "a", "b", "f", "e", "c"]
    assert [job.priority for job in await q.peek(10)] == [9, 9, 5, 1, 0, 0]
    assert await take(q, 2) == ["c", "e"]
    assert await take(q) == ["f", "b", "a", "d"]
    check_invariant(raw)


async def test_a_reader_sees_a_ready_job(q: AsyncQueue, raw: Raw) -> None:
    """State, times and figures are those of other ready jobs."""
    added = await q.enqueue("a", priority=7)
    advance(raw, q.ops, 5)
    stats = await q.stats()
    assert (stats.ready, stats.scheduled) == (1, 0)
    assert stats.oldest is not None
    assert 5 <= stats.oldest < 60
    [view] = (await q.jobs().page()).jobs
    assert (view.state, view.due, view.priority, view.retry) == ("ready", None, 7, None)
    shown = await q.show(added.id)
    assert shown is not None
    assert (shown.state, shown.due, shown.priority) == ("ready", None, 7)
    [job] = await q.reserve(block=0)
    assert (job.priority, job.retry) == (7, None)
    shown = await q.show(added.id)
    assert shown is not None
    assert (shown.state, shown.priority) == ("active", 7)


async def test_one_call_adds_jobs_of_several_priorities(q: AsyncQueue) -> None:
    """Handlers give their jobs priorities, and a call of `enqueue_many` may have both."""
    handlers = Handlers()

    @handlers.handler("mail")
    def mail(to: str) -> None: ...

    fast = mail.options(priority=3)
    await q.enqueue_many([mail.job("a"), fast.job("b"), mail.job("c"), fast.job("d")])
    await q.enqueue(fast.job("e"), priority=0)
    assert [body["to"] for body in await take(q)] == ["b", "d", "a", "c", "e"]


async def test_a_retry_keeps_the_priority(q: AsyncQueue, raw: Raw) -> None:
    """A job that comes back passes the usual jobs that wait longer."""
    await q.enqueue("a", priority=2, retry=RetryPolicy(5, base=10))
    [job] = await q.reserve(block=0)
    await q.nack([job], delay=20)
    assert len(await urgent(q, raw)) == 1
    shown = await q.show(job)
    assert shown is not None
    assert (shown.state, shown.priority) == ("scheduled", 2)
    await q.enqueue_many(["b", "c"])
    assert (await q.stats()).scheduled == 1
    advance(raw, q.ops, 21)
    await q.enqueue("d", priority=2)
    assert (await q.stats()).ready == 4
    assert await take(q, 1) == ["a"]
    assert await urgent(q, raw) == []
    assert await take(q) == ["d", "b", "c"]


@pytest.mark.parametrize("how", ["release", "promote", "postpone"])
async def test_a_job_that_is_put_back_keeps_its_place(q: AsyncQueue, raw: Raw, how: str) -> None:
    """It comes before the usual jobs, and before younger ones of its priority."""
    first = (await q.enqueue("a", priority=4)).id
    await q.enqueue_many(["b", "c"])
    if how == "postpone":
        assert await q.postpone([first])
        assert len(await urgent(q, raw)) == 1
        advance(raw, q.ops, 31)
    else:
        [job] = await q.reserve(block=0)
        assert await q.release([job]) if how == "release" else await q.promote([job])
    await q.enqueue("d", priority=4)
    assert await take(q) == ["a", "d", "b", "c"]
    assert await urgent(q, raw) == []


async def test_a_delayed_job_is_promoted_to_its_priority(q: AsyncQueue, raw: Raw) -> None:
    """Then it is ready; promoting it again is refused as for other ready jobs."""
    await q.enqueue("a")
    added = await q.enqueue("b", priority=1, delay=100)
    assert (added.state, len(await urgent(q, raw))) == ("scheduled", 1)
    assert await q.promote([added.id])
    assert await urgent(q, raw) == []
    assert not await q.promote([added.id])
    assert await take(q) == ["b", "a"]


async def test_due_jobs_come_by_their_priority(q: AsyncQueue, raw: Raw) -> None:
    """A call brings up to 100 due jobs with a priority before the usual ones."""
    await q.enqueue_many(["usual"] * 3)
    await q.enqueue_many(range(250), priority=1, delay=10)
    await q.enqueue_many(["top"], priority=2, delay=20)
    assert len(await urgent(q, raw)) == 251
    advance(raw, q.ops, 21)
    assert (await q.stats()).ready == 254
    assert (await take(q, 1)) == [0]
    assert len(await urgent(q, raw)) == 151
    assert await take(q, 1) == [1]
    assert await take(q, 1) == ["top"]
    assert await urgent(q, raw) == []
    rest = await take(q, 300)
    assert [body for body in rest if body != "usual"] == list(range(2, 250))


async def test_each_sixteenth_job_is_of_a_lower_priority(q: AsyncQueue) -> None:
    """Priorities 0 to 8 have this turn one after the other, so none starves."""
    await q.enqueue_many(["usual"] * 30)
    for priority in (1, 8, 9):
        await q.enqueue_many([priority] * 150, priority=priority)
    bodies = [body for _ in range(9) for body in await take(q, 16)]
    turns = bodies[15::16]
    assert turns == ["usual", *[1] * 7, 8]
    assert [body for body in bodies if body != 9] == turns


async def test_turns_within_one_call(q: AsyncQueue) -> None:
    """The turn is counted in jobs, however many a call takes."""
    await q.enqueue_many(["usual"] * 10)
    await q.enqueue_many(range(200), priority=9)
    await q.enqueue_many(["low"] * 2, priority=2)
    bodies = await take(q, 160)
    turns = ["usual", "usual", "low", "low", *["usual"] * 6]
    assert bodies[15::16] == turns
    assert [body for body in bodies if body not in turns] == list(range(150))
    assert await take(q) == [*range(150, 165), "usual", *range(165, 180), "usual", *range(180, 200)]


async def test_a_pause_of_producers_delivers_them(q: AsyncQueue, raw: Raw) -> None:
    """A job with a priority that is ready is no due job."""
    await q.enqueue("a", priority=1)
    await q.enqueue("due", delay=5)
    await q.enqueue("b")
    advance(raw, q.ops, 6)
    await q.pause("in")
    assert await take(q, 1) == ["a"]
    assert await take(q) == ["b"]
    assert await take(q) == []
    await q.resume()
    assert await take(q) == ["due"]


async def test_expired_jobs_leave_no_trace(q: AsyncQueue, raw: Raw) -> None:
    """Ready and delayed ones are removed when their ttl ends."""
    await q.enqueue_many(range(300), priority=5, ttl=10)
    await q.enqueue_many(range(300), priority=5, ttl=10, delay=5)
    await q.enqueue("a")
    advance(raw, q.ops, 11)
    assert await take(q) == ["a"]
    stats = await q.stats()
    assert (stats.ready, stats.scheduled, stats.expired) == (0, 0, 600)
    assert await urgent(q, raw) == []


@pytest.mark.parametrize("state", ["ready", "scheduled"])
async def test_a_purge_removes_them(q: AsyncQueue, raw: Raw, state: Any) -> None:
    """Each in its state."""
    await q.enqueue_many(range(5), priority=5)
    await q.enqueue_many(range(7), priority=5, delay=100)
    assert await q.purge(state) == (5 if state == "ready" else 7)
    assert len(await urgent(q, raw)) == (7 if state == "ready" else 0)
    assert len(numbers(raw, q.ops, "scheduled")) == (7 if state == "ready" else 5)


@pytest.mark.parametrize("how", ["delete", "cancel", "withdraw", "ack", "bury"])
async def test_waiting_jobs_end_by_id(q: AsyncQueue, raw: Raw, how: str) -> None:
    """No entry is left of a ready or delayed job."""
    delays = {"a": 0, "b": 100}
    ids = [(await q.enqueue(body, priority=3, delay=delay)).id for body, delay in delays.items()]
    settled = await method_of(q, how)(ids)
    assert (bool(settled), settled.done) == (True, 2)
    assert await urgent(q, raw) == []
    assert numbers(raw, q.ops, "scheduled") == []
    if how == "bury":
        assert await q.redrive(ids) == 2
        assert await q.enqueue("usual")
        assert await take(q) == ["a", "b", "usual"]


async def test_a_bounded_queue_counts_them(q: AsyncQueue) -> None:
    """`max_length` counts waiting jobs of any priority."""
    await q.configure(max_length=2)
    await q.enqueue("a", priority=1)
    await q.enqueue("b", priority=1, delay=10)
    with pytest.raises(Exception, match="full"):
        await q.enqueue("c", priority=9)


async def test_an_update_may_change_the_priority(q: AsyncQueue, raw: Raw) -> None:
    """An update without a priority keeps the old one, and the retry policy."""
    update = Dedup("x", on_duplicate="update")
    await q.enqueue("a", dedup=update, retry=RetryPolicy(3))
    await q.enqueue("usual")
    await q.enqueue("b", dedup=update, priority=6)
    [view, _] = await q.peek(2)
    assert (view.body, view.priority, view.retry) == ("b", 6, RetryPolicy(3))
    await q.enqueue("c", dedup=update)
    [view, _] = await q.peek(2)
    assert (view.body, view.priority) == ("c", 6)
    await q.enqueue("d", dedup=update, priority=0)
    assert [(v.body, v.priority) for v in await q.peek(2)] == [("d", 0), ("usual", 0)]
    assert await urgent(q, raw) == []


async def test_debounced_jobs_keep_their_priority(q: AsyncQueue, raw: Raw) -> None:
    """Their due time moves; then they come before the usual jobs."""
    debounce = Dedup("x", on_duplicate="debounce")
    await q.enqueue("a", dedup=debounce, delay=10, priority=6)
    await q.enqueue("usual")
    advance(raw, q.ops, 5)
    await q.enqueue("b", dedup=debounce, delay=10)
    assert len(await urgent(q, raw)) == 1
    advance(raw, q.ops, 11)
    assert await take(q) == ["b", "usual"]
    assert await urgent(q, raw) == []


async def test_a_successor_comes_by_its_priority(q: AsyncQueue, raw: Raw) -> None:
    """It waits for the end of the job with its id, and then passes the usual jobs."""
    requeue = Dedup("x", on_duplicate="requeue")
    await q.enqueue("a", dedup=requeue)
    [job] = await q.reserve(block=0)
    await q.enqueue("b", dedup=requeue, priority=9)
    await q.enqueue("usual")
    assert len(await urgent(q, raw)) == 1
    assert (await q.stats()).scheduled == 1
    await q.ack([job])
    assert await urgent(q, raw) == []
    assert await take(q) == ["b", "usual"]


async def test_a_large_body_and_lease_0(q: AsyncQueue, raw: Raw) -> None:
    """Both go with a priority."""
    await q.enqueue(b"usual")
    await q.enqueue(b"x" * 10_000, priority=1, lease=0, ttl=60)
    [job] = await q.reserve(block=0)
    assert (len(job.raw), job.at_most_once) == (10_000, True)
    check_invariant(raw)


async def test_a_crash_counts_and_comes_first(q: AsyncQueue, raw: Raw) -> None:
    """Jobs whose lease has ended come before any priority."""
    await q.enqueue("crashed", priority=1, lease=5)
    assert len(await q.reserve(block=0)) == 1
    await q.enqueue("top", priority=9)
    advance(raw, q.ops, 6)
    jobs = await q.reserve(2, block=0)
    assert [(job.body, job.crashes) for job in jobs] == [("crashed", 1), ("top", 0)]


async def test_a_consumer_wakes_for_a_due_job(q: AsyncQueue) -> None:
    """The time of a delayed job with a priority is an event."""
    await q.enqueue("a", priority=1, delay=0.2)
    [job] = await q.reserve(block=5)
    assert job.body == "a"


async def test_an_ordered_queue_has_no_priorities(q: AsyncQueue, raw: Raw) -> None:
    """Jobs of a key would change places; the queue becomes ordered when such jobs have ended."""
    await q.enqueue("a", priority=1)
    with pytest.raises(BadArgument, match="ordered"):
        await q.configure(ordered=True)
    assert await take(q) == ["a"]
    await q.sweep()
    await q.configure(ordered=True)
    for options in ({}, {"key": "k"}, {"dedup_id": "x"}):
        with pytest.raises(BadArgument, match="priority"):
            await q.enqueue("b", priority=2, **options)  # type: ignore[arg-type]  # of any kind
    await q.enqueue("c", priority=0, key="k")
    assert await take(q) == ["c"]
    check_invariant(raw)


async def test_a_limit_per_key_goes_with_priorities(q: AsyncQueue, raw: Raw) -> None:
    """Jobs above the limit wait, whatever their priority; then they come by it."""
    await q.configure(per_key=1)
    await q.enqueue_many(["a", "b"], key="k")
    await q.enqueue_many(["c", "d"], key="k", priority=9)
    await q.enqueue("e", priority=5)
    await q.enqueue("f")
    check_invariant(raw)
    bodies = []
    for _ in range(6):
        jobs = await q.reserve(5, block=0)
        bodies.append("".join(sorted(job.body for job in jobs)))
        await q.ack(jobs)
        check_invariant(raw)
    assert bodies == ["aef", "b", "c", "d", "", ""]


@pytest.mark.parametrize("how", ["nack", "release", "end", "promote", "bury"])
async def test_a_keyed_job_with_a_priority_that_comes_back(
    q: AsyncQueue, raw: Raw, how: str
) -> None:
    """It keeps its priority among those that are parked, delayed or redriven."""
    await q.configure(per_key=1)
    await q.enqueue("a", key="k", priority=3, lease=5)
    await q.enqueue("b", key="k", priority=7, delay=2)
    await q.enqueue("c", key="k")
    [job] = await q.reserve(1, block=0)
    assert job.body == "a"
    if how == "end":
        advance(raw, q.ops, 6)
    elif how in ("nack", "release"):
        await method_of(q, how)([job], delay=1)
    else:
        await method_of(q, how)([job])
    check_invariant(raw)
    advance(raw, q.ops, 7)
    await q.redrive()
    check_invariant(raw)
    bodies = []
    for _ in range(4):
        jobs = await q.reserve(5, block=0)
        bodies += [job.body for job in jobs]
        await q.ack(jobs)
        check_invariant(raw)
    assert sorted(bodies) == ["a", "b", "c"]


@pytest.mark.parametrize("priority", [-1, 10, 1.5, True, "1"])
async def test_a_bad_priority_is_refused(q: AsyncQueue, priority: Any) -> None:
    """It is a whole number from 0 to 9."""
    with pytest.raises(BadArgument, match="priority"):
        await q.enqueue("a", priority=priority)
