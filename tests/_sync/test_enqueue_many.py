# From tests/_async/test_enqueue_many.py by tools/unasync.py; do not edit.
"""Enqueuing many jobs: chunks, their order, and the result when one chunk fails."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock import BadArgument, IncompleteEnqueue, Penstock, Queue, QueueFull, parse_id
from penstock.client._sync.adding import add_each
from penstock.core.enqueuing.prepared import prepared
from penstock.errors import PenstockError
from tests.support.keyspace import Raw, advance, dump, evalshas, load_scripts, numbers


def three_then_an_error() -> Iterator[int]:
    """Yield three bodies and then raise an error."""
    yield from range(3)
    raise LookupError("the source broke")


def bodies_then_an_error(count: int) -> Iterator[int]:
    """Yield `count` bodies and then raise an error."""
    yield from range(count)
    raise LookupError("the source broke")


def test_results_come_in_the_order_of_the_bodies(q: Queue, raw: Raw) -> None:
    """There is one result for each body; the ids rise, and each belongs to its job."""
    bodies = [b"bytes", "str", None, {"k": 1}, b"", 5]
    results = q.enqueue_many(bodies)
    jobs = q.reserve(len(bodies), block=0)
    assert [job.body for job in jobs] == bodies
    assert [result.id for result in results] == [job.id for job in jobs]
    assert results.ids == sorted(results.ids)
    assert {result.state for result in results} == {"ready"}


def test_results_are_a_sequence(q: Queue) -> None:
    """Results support len, index from both ends, slice and iteration; a bad index
    raises IndexError.
    """
    results = q.enqueue_many(range(1200))
    ids = results.ids
    assert len(results) == len(set(ids)) == 1200
    assert (results[0].id, results[-1].id, results[1000].id) == (ids[0], ids[-1], ids[1000])
    assert [one.id for one in results[998:1003]] == ids[998:1003]
    for index in (1200, -1201):
        with pytest.raises(IndexError):
            results[index]


def test_a_generator_is_read_as_the_chunks_go_out(q: Queue, raw: Raw) -> None:
    """The generator is read chunk by chunk: at its last body the first chunk is on the server."""
    seen: list[int] = []

    def bodies() -> Iterator[int]:
        for number in range(1001):
            if number == 1000:
                seen.append(raw.xlen(q.ops.keys["ready"]))
            yield number

    assert len(q.enqueue_many(bodies())) == 1001
    assert seen == [1000]
    assert [job.body for job in q.reserve(1001, block=0)] == list(range(1001))


def test_arguments_are_checked_before_the_server_is_reached() -> None:
    """A mistake is told at once, also while the server is down."""
    q = Penstock("redis://127.0.0.1:1", retry_for=60).queue("q")
    with pytest.raises(BadArgument, match=r"^ttl=0"):
        q.enqueue_many([b"x"], ttl=0)


def test_an_empty_iterable(q: Queue, raw: Raw) -> None:
    """An empty iterable needs no round trip and creates no queue."""
    before = dump(raw)
    results = q.enqueue_many(iter(()))
    assert (len(results), results.ids) == (0, [])
    assert dump(raw) == before


def test_one_trip_a_chunk_of_a_thousand(real_ps: Penstock, real_q: Queue, real_raw: Raw) -> None:
    """2,500 small jobs need three scripts, and 1,000 need one."""
    load_scripts(real_raw)
    real_q.enqueue("make the queue")
    before = evalshas(real_raw)
    real_q.enqueue_many(range(2500))
    assert evalshas(real_raw) - before == 3
    real_q.enqueue_many(range(1000))
    assert evalshas(real_raw) - before == 4


def test_one_trip_a_chunk_of_a_mebibyte(real_q: Queue, real_raw: Raw) -> None:
    """Large bodies are split by size; a body above the bound has a chunk of its own."""
    load_scripts(real_raw)
    real_q.enqueue("make the queue")
    before = evalshas(real_raw)
    sizes = [400_000, 400_000, 400_000, 1_500_000, 10, 10]
    real_q.enqueue_many(b"x" * size for size in sizes)
    assert evalshas(real_raw) - before == 4
    got = [len(job.raw) for _ in range(9) for job in real_q.reserve(9, block=0)]
    assert got[1:] == sizes


def test_all_options_hold_for_every_job(q: Queue, raw: Raw) -> None:
    """delay, lease, ttl and headers apply to every job."""
    results = q.enqueue_many([1, 2], delay=10, lease=7, ttl=600, headers={"a": "b"})
    assert {result.state for result in results} == {"scheduled"}
    assert {parse_id(result.id).ttl_minutes for result in results} == {11}
    assert q.reserve(2, block=0) == []
    advance(raw, q.ops, 10)
    jobs = q.reserve(2, block=0)
    assert [(job.lease, job.ttl, job.headers) for job in jobs] == [(7, 600, {"a": "b"})] * 2


def test_a_thousand_delayed_jobs_keep_their_order(q: Queue, raw: Raw) -> None:
    """Jobs of one call are due in the same millisecond and are delivered in the given order."""
    q.enqueue_many(range(1000), delay=5)
    assert q.reserve(1000, block=0) == []
    advance(raw, q.ops, 6)
    assert [view.body for view in q.peek(1000)] == list(range(1000))
    assert [job.body for job in q.reserve(1000, block=0)] == list(range(1000))


def test_jobs_of_one_call_have_consecutive_numbers(q: Queue, raw: Raw) -> None:
    """Numbers of jobs are unique and rising, however many calls one millisecond has."""
    for size in (1, 300, 1, 700):
        q.enqueue_many(range(size))
    found = numbers(raw, q.ops, "ready")
    assert found == sorted(set(found))
    assert {len(number) for number in found} == {24}


@pytest.mark.parametrize("bodies", ["text", b"bytes", {"a": 1}, 5, None, bytearray(b"x")])
def test_bodies_must_be_an_iterable_of_bodies(q: Queue, raw: Raw, bodies: object) -> None:
    """A str or a dict is a single body, so passing one as `bodies` is refused."""
    before = dump(raw)
    with pytest.raises(BadArgument, match=r"bodies=.*iterable of bodies"):
        q.enqueue_many(bodies)  # type: ignore[arg-type]  # on purpose
    assert dump(raw) == before


def test_a_first_chunk_that_fails_adds_nothing(q: Queue, raw: Raw) -> None:
    """A bad body or a failing source in the first chunk raises its own error; no key changes."""
    q.enqueue("x")
    before = dump(raw)
    with pytest.raises(BadArgument, match="body="):
        q.enqueue_many([1, 2, {3}])
    with pytest.raises(LookupError):
        q.enqueue_many(three_then_an_error())
    assert dump(raw) == before


def test_a_failing_later_chunk_lists_the_added_jobs(q: Queue) -> None:
    """`results` holds the accepted jobs, in order; the cause is the error."""
    with pytest.raises(IncompleteEnqueue, match="1000 jobs were added") as caught:
        q.enqueue_many(bodies_then_an_error(1500))
    assert isinstance(caught.value.__cause__, LookupError)
    assert isinstance(caught.value, PenstockError)
    jobs = q.reserve(2000, block=0)
    assert [job.id for job in jobs] == caught.value.results.ids
    assert [job.body for job in jobs] == list(range(1000))


def test_each_chunk_is_all_or_nothing(q: Queue) -> None:
    """A chunk that does not fit into the queue adds none of its jobs."""
    with pytest.raises(IncompleteEnqueue) as caught:
        q.enqueue_many(range(1500), max_length=1400)
    assert isinstance(caught.value.__cause__, QueueFull)
    assert len(caught.value.results) == q.stats().ready == 1000
    with pytest.raises(QueueFull):
        q.enqueue_many(range(900), max_length=1400)
    assert q.stats().ready == 1000


def test_many_at_most_once(q: Queue) -> None:
    """With lease 0 the ids are even (at most once), and the ttl is a day."""
    results = q.enqueue_many([b"a", b"b"], lease=0)
    parts = [parse_id(result.id) for result in results]
    assert [(part.at_most_once, part.ttl_minutes) for part in parts] == [(True, 1440)] * 2


def test_jobs_of_several_queues(ps: Penstock) -> None:
    """They share trips. New queues are listed, and one that refuses its jobs stops no other."""
    queues = [ps.queue(f"of {number}") for number in range(10)]
    queues[0].enqueue(b"before")
    queues[1].configure(max_length=1)
    terms = prepared()
    records = [terms.record(b"1"), terms.record(b"2")]
    ends = add_each([(queue.route.part, records, terms) for queue in queues])
    assert isinstance(ends[1], QueueFull)
    assert [None if isinstance(end, Exception) else end.count for end in ends] == [
        2, None, *[2] * 8
    ]  # fmt: skip
    assert [queue.stats().ready for queue in queues] == [3, 0, *[2] * 8]
    assert ps.queues() == [queue.name for queue in queues]
    with pytest.raises(AssertionError, match="two calls of one queue"):
        add_each([(queues[0].route.part, records, terms)] * 2)
