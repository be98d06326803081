"""Search among the jobs of a queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from penstock import AsyncPenstock, AsyncQueue, BadArgument, StateName
from tests._async.conftest import Raw
from tests.support.keyspace import advance, dump


async def bodies(q: AsyncQueue, state: StateName, n: int = 100, **options: Any) -> list[bytes]:
    """Return the bodies of all pages."""
    found, cursor = list[bytes](), "0"
    while True:
        page = await q.find(state, cursor, n, body=1000, **options)
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
        [job] = (await q.find("ready", body=most)).jobs
        assert (job.raw, dict(job.headers)) == (expected, {"a": "b"})


async def test_a_search_beside_changes(q: AsyncQueue) -> None:
    """The next page follows, also when the last job of this one is gone."""
    ids = (await q.enqueue_many(range(6), delay=100)).ids
    page = await q.find("scheduled", n=2)
    assert page.ids == ids[:2]
    await q.delete(ids[:2])
    assert (await q.find("scheduled", page.cursor, n=2)).ids == ids[2:4]


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
    found, cursor = list[str](), "0"
    while True:
        page = await q.find("ready", cursor, 3)
        found += page.ids
        cursor = page.cursor
        if cursor == "0":
            break
    assert sorted(found) == sorted(ids)


@pytest.mark.parametrize(
    "arguments, options",
    [
        (["lost"], {}),
        (["dead", "ready:"], {}),
        (["dead", "dead:yesterday"], {}),
        (["dead", 7], {}),
        (["dead", "0", 0], {}),
        (["dead"], {"n": 1001}),
        (["dead"], {"handler": 7}),
        (["dead"], {"error": b"no"}),
        (["dead"], {"key": 7}),
        (["dead"], {"body": 1001}),
    ],
)
async def test_bad_arguments(
    q: AsyncQueue, arguments: Sequence[Any], options: dict[str, Any]
) -> None:
    """An argument that can't be used is refused."""
    with pytest.raises(BadArgument):
        await q.find(*arguments, **options)
