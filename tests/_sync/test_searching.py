# From tests/_async/test_searching.py by tools/unasync.py; do not edit.
"""Search among the jobs of a queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from penstock import BadArgument, Penstock, Queue, StateName
from tests._sync.conftest import Raw
from tests.support.keyspace import advance, dump


def bodies(q: Queue, state: StateName, n: int = 100, **options: Any) -> list[bytes]:
    """Return the bodies of all pages."""
    found, cursor = list[bytes](), "0"
    while True:
        page = q.find(state, cursor, n, body=1000, **options)
        assert page.looked <= n
        assert page.ids == [job.id for job in page.jobs]
        found += [job.raw for job in page.jobs]
        cursor = page.cursor
        if cursor == "0":
            return found


def filled(q: Queue, raw: Raw) -> None:
    """Add jobs in every place of every state."""
    for name in ("dead 1", "dead 2"):
        q.enqueue(name.encode(), headers={"handler": name.replace(" ", "")})
        [job] = q.reserve(block=0)
        job.bury(f"No {name}")
    q.enqueue_many([b"ended 1", b"ended 2"], lease=5)
    q.reserve(2, block=0)
    q.enqueue(b"once", lease=0)
    q.reserve(block=0)
    q.enqueue_many([b"active 1", b"active 2"], lease=100)
    q.reserve(2, block=0)
    q.enqueue_many([b"due 1", b"due 2"], delay=5)
    q.enqueue_many([b"later 1", b"later 2"], delay=100)
    q.enqueue(b"milk", ttl=5)
    q.enqueue_many([b"waits 1", b"waits 2"])
    advance(raw, q.ops, 6)


ORDER = {
    "ready": [b"ended 1", b"ended 2", b"due 1", b"due 2", b"waits 1", b"waits 2"],
    "scheduled": [b"later 1", b"later 2"],
    "active": [b"active 1", b"active 2", b"once"],
    "dead": [b"dead 1", b"dead 2"],
}


@pytest.mark.parametrize("n", [1, 2, 100])
@pytest.mark.parametrize("state", list(ORDER))
def test_every_page(q: Queue, raw: Raw, state: StateName, n: int) -> None:
    """Pages hold each job of the state once, in order or backwards; nothing is written."""
    filled(q, raw)
    before = dump(raw)
    found = bodies(q, state, n)
    assert found == ORDER[state]
    assert bodies(q, state, n, newest=True) == found[::-1]
    assert dump(raw) == before


def test_filters(q: Queue, raw: Raw) -> None:
    """Jobs are searched by handler and by a part of their error."""
    filled(q, raw)
    assert bodies(q, "dead", handler="dead1") == [b"dead 1"]
    assert bodies(q, "dead", error="no DEAD") == [b"dead 1", b"dead 2"]
    assert bodies(q, "dead", 1, error="2", handler="dead2") == [b"dead 2"]
    assert bodies(q, "dead", error="2", handler="dead1") == []


def test_jobs_of_a_key(q: Queue) -> None:
    """Jobs are searched by key, also those that wait for another job of it."""
    q.configure(per_key=1)
    for name in ("ada", "eve", "ada"):
        q.enqueue(name.encode(), key=name)
    assert bodies(q, "ready", key="ada") == [b"ada"]
    assert bodies(q, "parked", 1, key="ada") == [b"ada"]
    assert bodies(q, "parked", key="eve") == []


def test_the_start_of_bodies(q: Queue) -> None:
    """Only as many bytes of each body are read as asked for."""
    q.enqueue({"to": "ada"}, headers={"a": "b"})
    for most, expected in ((0, b""), (5, b'{"to"'), (1000, b'{"to":"ada"}')):
        [job] = q.find("ready", body=most).jobs
        assert (job.raw, dict(job.headers)) == (expected, {"a": "b"})


def test_a_search_beside_changes(q: Queue) -> None:
    """The next page follows, also when the last job of this one is gone."""
    ids = q.enqueue_many(range(6), delay=100).ids
    page = q.find("scheduled", n=2)
    assert page.ids == ids[:2]
    q.delete(ids[:2])
    assert q.find("scheduled", page.cursor, n=2).ids == ids[2:4]


def test_jobs_with_a_priority(q: Queue) -> None:
    """They come first among those that are ready, and page after page."""
    for priority in (0, 3, 9, 3):
        q.enqueue(b"%d" % priority, priority=priority)
    assert bodies(q, "ready", 1) == [b"9", b"3", b"3", b"0"]
    assert bodies(q, "ready", 1, newest=True) == [b"0", b"3", b"3", b"9"]
    assert bodies(q, "scheduled") == []


def test_a_search_in_partitions(ps: Penstock) -> None:
    """A queue in partitions is read one after the other."""
    q = ps.queue("parts", partitions=4)
    ids = q.enqueue_many(range(20)).ids
    found, cursor = list[str](), "0"
    while True:
        page = q.find("ready", cursor, 3)
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
def test_bad_arguments(q: Queue, arguments: Sequence[Any], options: dict[str, Any]) -> None:
    """An argument that can't be used is refused."""
    with pytest.raises(BadArgument):
        q.find(*arguments, **options)
