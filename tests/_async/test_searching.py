"""Search among the jobs of a queue."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import AsyncPenstock, AsyncQueue, BadArgument, StateName
from tests._async.conftest import Raw
from tests.support.keyspace import advance, dump


async def bodies(q: AsyncQueue, state: StateName, n: int = 100, **options: Any) -> list[bytes]:
    """Return the bodies of all pages."""
    found, cursor = list[bytes](), "0"
    while True:
        page = await q.jobs(state, body=1000, n=n, **options).page(cursor)
        assert page.looked <= n
        assert page.ids == [job.id for job in page.jobs]
        found += [job.raw for job in page.jobs]
        cursor = page.cursor
        if cursor == "0":
            return found


async def filled(q: AsyncQueue, raw: Raw) -> None:
    """Add jobs in every place of every state."""
    for name in ("dead 1", "dead 2"):
        await q.enqueue(name.encode(), headers={"handler": name.replace(" ", "")})
        [job] = await q.reserve(block=0)
        await job.bury(f"No {name}")
    await q.enqueue_many([b"ended 1", b"ended 2"], lease=5)
    await q.reserve(2, block=0)
    await q.enqueue(b"once", lease=0)
    await q.reserve(block=0)
    await q.enqueue_many([b"active 1", b"active 2"], lease=100)
    await q.reserve(2, block=0)
    await q.enqueue_many([b"due 1", b"due 2"], delay=5)
    await q.enqueue_many([b"later 1", b"later 2"], delay=100)
    await q.enqueue(b"milk", ttl=5)
    await q.enqueue_many([b"waits 1", b"waits 2"])
    advance(raw, q.ops, 6)


ORDER = {
    "ready": [b"ended 1", b"ended 2", b"due 1", b"due 2", b"waits 1", b"waits 2"],
    "scheduled": [b"later 1", b"later 2"],
    "active": [b"active 1", b"active 2", b"once"],
    "dead": [b"dead 1", b"dead 2"],
}


@pytest.mark.parametrize("n", [1, 2, 100])
@pytest.mark.parametrize("state", list(ORDER))
async def test_every_page(q: AsyncQueue, raw: Raw, state: StateName, n: int) -> None:
    """Pages hold each job of the state once, in order or backwards; nothing is written."""
    await filled(q, raw)
    before = dump(raw)
    found = await bodies(q, state, n)
    assert found == ORDER[state]
    assert await bodies(q, state, n, newest=True) == found[::-1]
    assert [view.raw async for view in q.jobs(state, n=n)] == found
    assert dump(raw) == before


async def test_filters(q: AsyncQueue, raw: Raw) -> None:
    """Jobs are searched by handler and by a part of their error."""
    await filled(q, raw)
    assert await bodies(q, "dead", handler="dead1") == [b"dead 1"]
    assert await bodies(q, "dead", error="no DEAD") == [b"dead 1", b"dead 2"]
    assert await bodies(q, "dead", 1, error="2", handler="dead2") == [b"dead 2"]
    assert await bodies(q, "dead", error="2", handler="dead1") == []


async def test_jobs_of_a_key(q: AsyncQueue) -> None:
    """Jobs are searched by key, also those that wait for another job of it."""
    await q.configure(per_key=1)
    for name in ("ada", "eve", "ada"):
        await q.enqueue(name.encode(), key=name)
    assert await bodies(q, "ready", key="ada") == [b"ada"]
    assert await bodies(q, "parked", 1, key="ada") == [b"ada"]
    assert await bodies(q, "parked", key="eve") == []


async def test_the_start_of_bodies(q: AsyncQueue) -> None:
    """Only as many bytes of each body are read as asked for."""
    await q.enqueue({"to": "ada"}, headers={"a": "b"})
    for most, expected in ((0, b""), (5, b'{"to"'), (1000, b'{"to":"ada"}')):
        [job] = (await q.jobs("ready", body=most).page()).jobs
        assert (job.raw, dict(job.headers)) == (expected, {"a": "b"})


async def test_a_search_beside_changes(q: AsyncQueue) -> None:
    """The next page follows, also when the last job of this one is gone."""
    ids = (await q.enqueue_many(range(6), delay=100)).ids
    search = q.jobs("scheduled", n=2)
    page = await search.page()
    assert page.ids == ids[:2]
    await q.delete(ids[:2])
    assert (await search.page(page.cursor)).ids == ids[2:4]


async def test_jobs_with_a_priority(q: AsyncQueue) -> None:
    """They come first among those that are ready, and page after page."""
    for priority in (0, 3, 9, 3):
        await q.enqueue(b"%d" % priority, priority=priority)
    assert await bodies(q, "ready", 1) == [b"9", b"3", b"3", b"0"]
    assert await bodies(q, "ready", 1, newest=True) == [b"0", b"3", b"3", b"9"]
    assert await bodies(q, "scheduled") == []


async def test_a_search_in_partitions(ps: AsyncPenstock) -> None:
    """A queue in partitions is read one after the other."""
    q = ps.queue("parts", partitions=4)
    ids = (await q.enqueue_many(range(20))).ids
    assert sorted([view.id async for view in q.jobs("ready", n=3)]) == sorted(ids)


@pytest.mark.parametrize(
    "cursor, options",
    [
        ("0", {"state": "lost"}),
        ("ready:", {}),
        ("dead:yesterday", {}),
        (7, {}),
        ("0", {"n": 0}),
        ("0", {"n": 1001}),
        ("0", {"handler": 7}),
        ("0", {"error": b"no"}),
        ("0", {"key": 7}),
        ("0", {"body": 1001}),
        ("0", {"batch": "b1"}),
        ("0", {"newest": True, "state": None}),
    ],
)
async def test_bad_arguments(q: AsyncQueue, cursor: Any, options: dict[str, Any]) -> None:
    """An argument that can't be used is refused."""
    with pytest.raises(BadArgument):
        await q.jobs(**{"state": "dead", **options}).page(cursor)


@pytest.mark.parametrize("state", ["dead", None, ["active", "dead"]], ids=str)
async def test_whole_jobs(q: AsyncQueue, raw: Raw, state: StateName | list[StateName]) -> None:
    """Bodies are whole as a rule; filters, the start of bodies and ids go with any states."""
    await filled(q, raw)
    long = [b"x" * 1500, b"y" * 5000, b""]
    added = await q.enqueue_many(long, headers={"handler": "dead1"})
    await q.bury(added.ids)
    found = [view.raw async for view in q.jobs(state, handler="dead1", n=2)]
    assert sorted(found) == sorted([b"dead 1", *long])
    search = q.jobs(state, error="dead 2", body=3)
    view = await anext(aiter(search))
    assert (view.state, view.raw) == ("dead", b"dea")
    page = await search.page(full=False)
    assert (page.ids, page.jobs) == ([view.id], [])


@pytest.mark.parametrize("state", ["ready", None, ["ready", "scheduled"]], ids=str)
async def test_jobs_of_a_batch(q: AsyncQueue, state: StateName | list[StateName]) -> None:
    """Jobs are searched by batch; its callback and other jobs are none of them."""
    await q.enqueue_many([b"a", b"b"])
    async with q.batch(then=b"report") as batch:
        added = await batch.enqueue_many([b"1", b"2", b"3"])
        async with q.batches.open(then=b"other") as other:
            await other.enqueue(b"4")
    for n in (1, 100):
        found = {view.id: view.raw async for view in q.jobs(state, batch=batch.id, n=n)}
        assert found == dict(zip(added.ids, [b"1", b"2", b"3"], strict=True))
    assert [view.raw async for view in q.jobs("ready", batch=other.id, handler="x")] == []


async def test_old_jobs(q: AsyncQueue, raw: Raw) -> None:
    """Jobs are searched by the time since they were enqueued, in whichever state they are."""
    await q.enqueue_many([b"old", b"older"], lease=1000)
    await q.reserve(block=0)
    advance(raw, q.ops, 100)
    await q.enqueue(b"new")
    assert [view.raw async for view in q.jobs("ready", older_than=50)] == [b"older"]
    assert {view.raw async for view in q.jobs(older_than=50)} == {b"old", b"older"}
    assert [view.raw async for view in q.jobs("ready", older_than=500)] == []
    with pytest.raises(BadArgument, match="older_than"):
        q.jobs("ready", older_than=-1)


async def test_groups_of_errors(q: AsyncQueue) -> None:
    """Jobs are counted by handler and error, up to a limit, and searched for by group."""
    for number, error in enumerate(["no 'a'\ntrace", "late", "no 'b'"] * 2):
        await q.enqueue(number, headers={"handler": "h"} if number < 5 else None)
        [job] = await q.reserve(block=0)
        await job.bury(error)
    found = await q.jobs("dead", n=2).error_groups()
    told = [(group.jobs, group.handler, group.error) for group in found.groups]
    assert told == [(3, "h", "no '…'"), (2, "h", "late"), (1, "", "no '…'")]
    assert (found.looked, found.is_complete) == (6, True)
    [first] = (await q.jobs("dead", error="late", n=2).page()).ids
    assert found.groups[1].example == first
    assert [sum(group.trend) for group in found.groups] == [3, 2, 1]
    deaths = [view.died async for view in q.jobs("dead")]
    assert (found.since, found.until) == (deaths[0], deaths[-1])
    assert (found.groups[2].first, found.groups[2].last) == (deaths[5], deaths[5])
    for group, numbers in zip(found.groups, ([0, 2, 3], [1, 4], [5]), strict=True):
        of_group = [view.body async for view in q.jobs("dead", group=group.id, n=2)]
        assert of_group == numbers
    assert [view.body async for view in q.jobs("dead", handler="")] == [5]
    some = await q.jobs("dead", n=2).error_groups(limit=3)
    assert (some.looked, some.is_complete) == (4, False)
    [late] = (await q.jobs(error="late").error_groups()).groups
    assert (late.id, late.jobs) == (found.groups[1].id, 2)


async def test_a_text(q: AsyncQueue) -> None:
    """It may be in a body, beyond what a page shows, a header, the dedup id or the error."""
    long = b"x" * 1500 + b" Ada@example.com"
    huge = b"y" * 9000 + b"ada@example.com"
    await q.enqueue(long)
    await q.enqueue(huge)
    await q.enqueue({"to": "ADA@example.com"})
    await q.enqueue(b"h", headers={"to": "ada@example.com"})
    await q.enqueue(b"i", dedup_id="mail ada@example.com")
    await q.enqueue(b"bob@example.com")
    chosen: dict[str, Any] = {"text": "ada@EXAMPLE.com"}
    found = [view.raw async for view in q.jobs("ready", body=9, **chosen)]
    assert found == [long[:9], huge[:9], b'{"to":"AD', b"h", b"i"]
    assert {view.raw async for view in q.jobs(**chosen)} == {
        long,
        huge,
        *found[3:],
        b'{"to":"ADA@example.com"}',
    }
    page = await q.jobs("ready", n=1000, **chosen).page(full=False)
    assert len(page.ids) == 5
    [job] = await q.reserve(block=0)
    await job.bury("no mail to ada@example.com")
    assert [view.id async for view in q.jobs("dead", text="MAIL TO")] == [job.id]
    with pytest.raises(BadArgument, match="text"):
        q.jobs(text=5)  # type: ignore[arg-type]  # on purpose
