# From tests/_async/test_searching.py by tools/unasync.py; do not edit.
"""Search among the jobs of a queue."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import BadArgument, Penstock, Queue, StateName
from tests._sync.conftest import Raw
from tests.support.keyspace import advance, dump


def bodies(q: Queue, state: StateName, n: int = 100, **options: Any) -> list[bytes]:
    """Return the bodies of all pages."""
    found, cursor = list[bytes](), "0"
    while True:
        page = q.jobs(state, body=1000, n=n, **options).page(cursor)
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
    assert [view.raw for view in q.jobs(state, n=n)] == found
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
        [job] = q.jobs("ready", body=most).page().jobs
        assert (job.raw, dict(job.headers)) == (expected, {"a": "b"})


def test_a_search_beside_changes(q: Queue) -> None:
    """The next page follows, also when the last job of this one is gone."""
    ids = q.enqueue_many(range(6), delay=100).ids
    search = q.jobs("scheduled", n=2)
    page = search.page()
    assert page.ids == ids[:2]
    q.delete(ids[:2])
    assert search.page(page.cursor).ids == ids[2:4]


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
    assert sorted([view.id for view in q.jobs("ready", n=3)]) == sorted(ids)


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
def test_bad_arguments(q: Queue, cursor: Any, options: dict[str, Any]) -> None:
    """An argument that can't be used is refused."""
    with pytest.raises(BadArgument):
        q.jobs(**{"state": "dead", **options}).page(cursor)


@pytest.mark.parametrize("state", ["dead", None, ["active", "dead"]], ids=str)
def test_whole_jobs(q: Queue, raw: Raw, state: StateName | list[StateName]) -> None:
    """Bodies are whole as a rule; filters, the start of bodies and ids go with any states."""
    filled(q, raw)
    long = [b"x" * 1500, b"y" * 5000, b""]
    added = q.enqueue_many(long, headers={"handler": "dead1"})
    q.bury(added.ids)
    found = [view.raw for view in q.jobs(state, handler="dead1", n=2)]
    assert sorted(found) == sorted([b"dead 1", *long])
    search = q.jobs(state, error="dead 2", body=3)
    view = next(iter(search))
    assert (view.state, view.raw) == ("dead", b"dea")
    page = search.page(full=False)
    assert (page.ids, page.jobs) == ([view.id], [])


@pytest.mark.parametrize("state", ["ready", None, ["ready", "scheduled"]], ids=str)
def test_jobs_of_a_batch(q: Queue, state: StateName | list[StateName]) -> None:
    """Jobs are searched by batch; its callback and other jobs are none of them."""
    q.enqueue_many([b"a", b"b"])
    with q.batch(then=b"report") as batch:
        added = batch.enqueue_many([b"1", b"2", b"3"])
        with q.batches.open(then=b"other") as other:
            other.enqueue(b"4")
    for n in (1, 100):
        found = {view.id: view.raw for view in q.jobs(state, batch=batch.id, n=n)}
        assert found == dict(zip(added.ids, [b"1", b"2", b"3"], strict=True))
    assert [view.raw for view in q.jobs("ready", batch=other.id, handler="x")] == []


def test_old_jobs(q: Queue, raw: Raw) -> None:
    """Jobs are searched by the time since they were enqueued, in whichever state they are."""
    q.enqueue_many([b"old", b"older"], lease=1000)
    q.reserve(block=0)
    advance(raw, q.ops, 100)
    q.enqueue(b"new")
    assert [view.raw for view in q.jobs("ready", older_than=50)] == [b"older"]
    assert {view.raw for view in q.jobs(older_than=50)} == {b"old", b"older"}
    assert [view.raw for view in q.jobs("ready", older_than=500)] == []
    with pytest.raises(BadArgument, match="older_than"):
        q.jobs("ready", older_than=-1)


def test_groups_of_errors(q: Queue) -> None:
    """Jobs are counted by handler and error, up to a limit, and searched for by group."""
    for number, error in enumerate(["no 'a'\ntrace", "late", "no 'b'"] * 2):
        q.enqueue(number, headers={"handler": "h"} if number < 5 else None)
        [job] = q.reserve(block=0)
        job.bury(error)
    found = q.jobs("dead", n=2).error_groups()
    told = [(group.jobs, group.handler, group.error) for group in found.groups]
    assert told == [(3, "h", "no '…'"), (2, "h", "late"), (1, "", "no '…'")]
    assert (found.looked, found.is_complete) == (6, True)
    [first] = q.jobs("dead", error="late", n=2).page().ids
    assert found.groups[1].example == first
    assert [sum(group.trend) for group in found.groups] == [3, 2, 1]
    deaths = [view.died for view in q.jobs("dead")]
    assert (found.since, found.until) == (deaths[0], deaths[-1])
    assert (found.groups[2].first, found.groups[2].last) == (deaths[5], deaths[5])
    for group, numbers in zip(found.groups, ([0, 2, 3], [1, 4], [5]), strict=True):
        of_group = [view.body for view in q.jobs("dead", group=group.id, n=2)]
        assert of_group == numbers
    assert [view.body for view in q.jobs("dead", handler="")] == [5]
    some = q.jobs("dead", n=2).error_groups(limit=3)
    assert (some.looked, some.is_complete) == (4, False)
    [late] = q.jobs(error="late").error_groups().groups
    assert (late.id, late.jobs) == (found.groups[1].id, 2)


def test_a_text(q: Queue) -> None:
    """It may be in a body, beyond what a page shows, a header, the dedup id or the error."""
    long = b"x" * 1500 + b" Ada@example.com"
    huge = b"y" * 9000 + b"ada@example.com"
    q.enqueue(long)
    q.enqueue(huge)
    q.enqueue({"to": "ADA@example.com"})
    q.enqueue(b"h", headers={"to": "ada@example.com"})
    q.enqueue(b"i", dedup_id="mail ada@example.com")
    q.enqueue(b"bob@example.com")
    chosen: dict[str, Any] = {"text": "ada@EXAMPLE.com"}
    found = [view.raw for view in q.jobs("ready", body=9, **chosen)]
    assert found == [long[:9], huge[:9], b'{"to":"AD', b"h", b"i"]
    assert {view.raw for view in q.jobs(**chosen)} == {
        long,
        huge,
        *found[3:],
        b'{"to":"ADA@example.com"}',
    }
    page = q.jobs("ready", n=1000, **chosen).page(full=False)
    assert len(page.ids) == 5
    [job] = q.reserve(block=0)
    job.bury("no mail to ada@example.com")
    assert [view.id for view in q.jobs("dead", text="MAIL TO")] == [job.id]
    with pytest.raises(BadArgument, match="text"):
        q.jobs(text=5)  # type: ignore[arg-type]  # on purpose
