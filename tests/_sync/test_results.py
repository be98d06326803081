# From tests/_async/test_results.py by tools/unasync.py; do not edit.
"""Results: kept for jobs that ask for it, read by id, bounded; nothing is kept of other jobs."""

from __future__ import annotations

import copy
import logging
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from penstock import (
    BadArgument,
    Done,
    Handlers,
    JobExpired,
    JobFailed,
    Middleware,
    Penstock,
    PenstockError,
    Queue,
    ResultGone,
    ResultTimeout,
    RetryPolicy,
    RunEvent,
    Snooze,
    Worker,
)
from penstock.client._acompat import sleep
from tests.support.backends import Backend
from tests.support.keyspace import Raw, advance
from tests.support.twins import spawn


def work(ps: Penstock, handlers: Any, **options: Any) -> None:
    """Work until no job is left."""
    Worker(ps, "q", handlers, burst=True, **options).run()


def outcome(q: Queue, job_id: str) -> Any:
    """Return the result of a job that has ended, or the error in its place."""
    try:
        return q.result(job_id, timeout=0)
    except PenstockError as error:
        return type(error)


@pytest.mark.parametrize(
    "value", [{"to": ["ada", 1.5, None, True]}, "näïve\n", 0, None, [], ""], ids=repr
)
def test_a_value_comes_back(ps: Penstock, q: Queue, value: Any) -> None:
    """The return value of a handler is the result of its job, for as long as it is kept."""
    handlers = Handlers()

    @handlers.handler("echo", result_ttl=60)
    def echo(what: Any) -> Any:
        return what

    job = echo.enqueue(q, value)
    work(ps, handlers)
    assert job.result(timeout=10) == value
    assert q.result(job.id) == value
    assert ps.result(job.id) == value
    view = q.show(job.id)
    assert view is not None
    assert (view.id, view.state, view.attempts, view.raw) == (job.id, "done", 1, b"")
    assert view.finished is not None


def test_of_a_kept_job_the_attempt_is_known(q: Queue) -> None:
    """A view has the number of the last attempt, 0 without one, and no other counters."""
    failed, waiting = q.enqueue(b"1", result_ttl=60), q.enqueue(b"2", result_ttl=60)
    for _ in range(2):
        q.nack(q.reserve(block=0), delay=0)
    q.ack(q.reserve(block=0))
    q.cancel([waiting.id])
    views = [q.show(job.id) for job in (failed, waiting)]
    found = [(one.state, one.attempts, one.nacks, one.redeliveries) for one in views if one]
    assert found == [("done", 3, 0, 0), ("cancelled", 0, 0, 0)]


def test_nothing_is_kept_of_other_jobs(ps: Penstock, q: Queue, raw: Raw) -> None:
    """A job without `result_ttl` leaves nothing, also beside jobs that have one."""
    plain, kept = q.enqueue(1), q.enqueue(2, result_ttl=60)

    def double(job: Any) -> Any:
        return 2 * job.body

    work(ps, double)
    assert outcome(q, plain.id) is ResultGone
    assert outcome(q, kept.id) == 4
    assert q.stats().kept == 1
    assert raw.hlen(q.ops.keys["held"]) == 1


def test_a_queue_without_results_stays_a_queue_of_version_2(q: Queue, raw: Raw) -> None:
    """The first job whose result is kept makes older clients refuse the queue."""
    q.enqueue(1, result_ttl=0)
    assert raw.hmget(q.ops.keys["meta"], "v", "uses") == [b"2", b""]
    q.enqueue(1, result_ttl=1)
    q.enqueue(1, lease=5, result_ttl=1)
    assert raw.hmget(q.ops.keys["meta"], "v", "uses") == [b"3", b"k"]


def test_results_by_an_ack(q: Queue) -> None:
    """An ack leaves a state without a value: with a receipt, by id, of several, one by one."""
    jobs = q.enqueue_many([1, 2, 3], result_ttl=60)
    one, two = q.reserve(2, block=0)
    one.ack()
    q.ack([two.id, jobs[2].id])
    assert [outcome(q, job_id) for job_id in jobs.ids] == [None, None, None]
    views = [q.show(job_id) for job_id in jobs.ids]
    assert [view and (view.state, view.attempts) for view in views] == [
        ("done", 1),
        ("done", 1),
        ("done", 0),
    ]
    assert jobs[0].result(timeout=0) is None


def test_many_results_share_blocks(ps: Penstock, q: Queue, raw: Raw) -> None:
    """Results of jobs with neighbouring numbers that end together lie in a few fields."""
    texts = ["x" * 300 if i % 50 == 7 else f"text {i}" for i in range(230)]
    handlers = Handlers()

    @handlers.chunk("echo", size=100, result_ttl=60)
    def echo(jobs: list[Any]) -> list[Any]:
        return [job.body for job in jobs]

    added = [echo.enqueue_many(q, texts[:115]), echo.enqueue_many(q, texts[115:])]
    work(ps, handlers)
    ids = [job_id for one in added for job_id in one.ids]
    assert [outcome(q, job_id) for job_id in ids] == texts
    assert raw.hlen(q.ops.keys["held"]) <= 6 + 5  # blocks of hundreds, and long results
    assert q.stats().kept == 230
    q.configure(results_max=115)
    for _ in range(2):  # a call removes about a hundred
        last = q.enqueue(1, result_ttl=1)
        q.ack([last.id])
    assert q.stats().kept <= 115


def test_a_dead_letter_is_its_own_result(ps: Penstock, q: Queue) -> None:
    """`result` raises the stored error; after a redrive it waits again."""
    handlers = Handlers()

    @handlers.handler("fail", result_ttl=60, retry=RetryPolicy(max_attempts=1))
    def fail() -> None:
        raise ValueError("no")

    job = fail.enqueue(q)
    work(ps, handlers)
    with pytest.raises(JobFailed, match="after 1 attempts: ValueError: no") as caught:
        job.result(timeout=1)
    assert (caught.value.error, caught.value.attempts) == ("ValueError: no", 1)
    assert copy.copy(caught.value).error == "ValueError: no"
    q.redrive([job.id])
    assert outcome(q, job.id) is ResultTimeout


def test_an_expired_job(q: Queue, raw: Raw) -> None:
    """A job that expires leaves that; a deleted, purged or withdrawn one leaves nothing."""
    late = q.enqueue(1, ttl=5, result_ttl=60)
    other = q.enqueue(2, ttl=5)
    advance(raw, q.ops, 10)
    assert [outcome(q, job.id) for job in (late, other)] == [JobExpired] * 2
    assert q.reserve(block=0) == []  # this removes them
    assert [outcome(q, job.id) for job in (late, other)] == [JobExpired, ResultGone]
    removed = q.enqueue_many([1, 2, 3], result_ttl=60)
    q.delete([removed[0].id])
    q.delete([removed[1].id], if_undelivered=True)
    q.purge()
    assert [outcome(q, job_id) for job_id in removed.ids] == [ResultGone] * 3
    assert outcome(q, late.id) is JobExpired


def test_a_job_that_is_done_after_its_ttl(q: Queue, raw: Raw) -> None:
    """It is expired until its consumer acknowledges it, if no call has removed it by then."""
    late, removed = q.enqueue_many([1, 2], ttl=5, result_ttl=60)
    jobs = q.reserve(2, block=0)
    advance(raw, q.ops, 10)
    assert [outcome(q, job.id) for job in (late, removed)] == [JobExpired] * 2
    view = q.show(late.id)
    assert (view and view.state, q.stats().unswept) == ("expired", 2)
    assert jobs[0].ack()
    assert outcome(q, late.id) is None
    q.sweep()
    assert not jobs[1].ack()
    assert outcome(q, removed.id) is JobExpired


def test_results_are_kept_for_their_time(q: Queue, raw: Raw) -> None:
    """A result whose time is over is gone at once; `sweep` frees its memory, then the queue."""
    job = q.enqueue(1, result_ttl=60)
    q.reserve(block=0)[0].ack()
    q.sweep()
    assert outcome(q, job.id) is None
    advance(raw, q.ops, 61)
    assert outcome(q, job.id) is ResultGone
    assert q.show(job.id) is None
    assert raw.hlen(q.ops.keys["held"]) == 1
    q.sweep()
    assert not raw.exists(q.ops.keys["held"], q.ops.keys["expiry"])
    assert q.stats().kept == 0


def test_the_bounds_of_results(ps: Penstock, q: Queue) -> None:
    """More results than `results_max`, or bytes than `results_bytes`: the soonest to end go."""

    def echo(job: Any) -> Any:
        return job.body

    q.configure(results_max=3)
    jobs = [q.enqueue(i, result_ttl=100 + i) for i in range(5)]
    work(ps, echo)
    assert [outcome(q, job.id) for job in jobs] == [ResultGone, ResultGone, 2, 3, 4]
    q.configure(results_max=None, results_bytes=300)
    big = q.enqueue("x" * 200, result_ttl=1000)
    work(ps, echo)
    assert outcome(q, big.id) == "x" * 200
    assert q.stats().kept < 4
    assert q.stats().settings.results_bytes == 300


@pytest.mark.parametrize(
    "value, level, why",
    [
        ("x" * 70_000, logging.WARNING, "larger than the queue's result_size"),
        (object(), logging.ERROR, "not be written as JSON"),
        (b"bytes", logging.ERROR, "not be written as JSON"),
        ({1: 2}, logging.ERROR, "not be written as JSON"),
        (float("nan"), logging.ERROR, "not be written as JSON"),
    ],
    ids=["large", "object", "bytes", "keys", "nan"],
)
def test_a_value_that_is_not_kept(
    ps: Penstock,
    q: Queue,
    caplog: pytest.LogCaptureFixture,
    value: object,
    level: int,
    why: str,
) -> None:
    """The job is done all the same; the log and the reader are told that its value is missing."""
    job = q.enqueue(1, result_ttl=60)

    def give(_: Any) -> object:
        return value

    with caplog.at_level(logging.WARNING, "penstock"):
        work(ps, give)
    assert [(r.levelno, job.id in r.getMessage()) for r in caplog.records] == [(level, True)]
    with pytest.raises(ResultGone, match=why):
        job.result(timeout=1)
    stats = q.stats()
    assert (stats.acked, stats.died, stats.kept) == (1, 0, 1)


def test_result_size_of_the_queue(ps: Penstock, q: Queue, raw: Raw) -> None:
    """The queue's `result_size` replaces 64 KiB; the script checks it, too."""
    q.configure(result_size=100_000)
    large = q.enqueue("x" * 70_000, result_ttl=60)
    small = q.enqueue("y", result_ttl=60)

    def echo(job: Any) -> Any:
        return job.body

    work(ps, echo)
    assert outcome(q, large.id) == "x" * 70_000
    assert outcome(q, small.id) == "y"
    assert int(raw.hget(q.ops.keys["meta"], "kept_bytes") or 0) > 70_000


def test_the_result_ttl_of_the_queue(ps: Penstock, q: Queue) -> None:
    """A job's own `result_ttl` decides before that of its handler, and this before the queue's."""
    handlers = Handlers()

    @handlers.handler("usual")
    def usual(what: Any) -> Any:
        return what

    @handlers.handler("never", result_ttl=0)
    def never(what: Any) -> Any:
        return what

    before = usual.enqueue(q, 0)
    assert q.configure(result_ttl=60).result_ttl == 60
    jobs = [
        usual.enqueue(q, 1),
        usual.options(dedup_id="a", lease=9).enqueue(q, 2),
        usual.options(delay=0.05, ttl=60).enqueue(q, 3),
        q.enqueue_many([usual.job("x" * 5000)])[0],
        never.options(result_ttl=60).enqueue(q, 4),
    ]
    none = [before, never.enqueue(q, 5), usual.options(result_ttl=0).enqueue(q, 6)]
    with Worker(ps, "q", handlers):
        assert [job.result(timeout=20) for job in jobs] == [1, 2, 3, "x" * 5000, 4]
        assert [outcome(q, job.id) for job in none] == [ResultGone] * 3
    q.configure(result_ttl=None)
    after = usual.enqueue(q, 7)
    work(ps, handlers)
    assert outcome(q, after.id) is ResultGone


def test_results_after_the_letter_was_removed(ps: Penstock, q: Queue, raw: Raw) -> None:
    """`sweep` removes the letter of results from a queue without jobs; the next job sets it."""
    q.configure(result_ttl=1)
    for number in range(2):
        job = q.enqueue(number)
        work(ps, lambda job: job.body)
        assert outcome(q, job.id) == number
        advance(raw, q.ops, 10)
        q.sweep()  # removes the result
        q.sweep()  # removes the letter, as nothing else is left to remove
        assert b"k" not in raw.hget(q.ops.keys["meta"], "uses")


def test_a_result_that_comes_later(ps: Penstock, q: Queue) -> None:
    """`result` waits for a job that has not ended; other waiters get it, too."""
    job = q.enqueue(20, result_ttl=60)
    waiting = [spawn(q.result, job.id, timeout=20) for _ in range(3)]
    sleep(0)

    def double(job: Any) -> Any:
        return 2 * job.body

    work(ps, double)
    assert [one.result() for one in waiting] == [40, 40, 40]


def test_timeouts_and_bad_input(q: Queue) -> None:
    """A timeout is a TimeoutError; bad arguments are refused before anything is sent."""
    job = q.enqueue(1, result_ttl=60)
    with pytest.raises(TimeoutError, match=r"has not ended within 0\.02 s"):
        q.result(job.id, timeout=0.02)
    calls: list[tuple[str, Callable[[], Any]]] = [
        ("timeout", lambda: q.result(job.id, timeout=-1)),
        ("id", lambda: q.result("nonsense")),
        ("result_ttl", lambda: q.enqueue(1, result_ttl=-1)),
        ("result_ttl", lambda: q.enqueue(1, result_ttl="60")),  # type: ignore[arg-type]  # wrong on purpose
        ("result_ttl", lambda: q.enqueue_many([1], result_ttl=float("nan"))),
        ("results_max", lambda: q.configure(results_max=-1)),
    ]
    for name, call in calls:
        with pytest.raises(BadArgument) as caught:
            call()
        assert caught.value.argument == name
    with pytest.raises(BadArgument, match="result_ttl"):
        Handlers().handler("x", result_ttl=-1)(work)
    with pytest.raises(BadArgument, match=r"call queue.result\(id\)"):
        copy.copy(job).result()


def test_batches_and_results(ps: Penstock, q: Queue) -> None:
    """A list that a chunk handler returns has the value of each job; another value is of none."""
    handlers = Handlers()

    @handlers.chunk("pairs", size=3, result_ttl=60)
    def pairs(jobs: list[Any]) -> Any:
        if jobs[0].body == "one":
            return "for all"
        return [Snooze(3600) if job.body == "later" else [job.body] for job in jobs]

    added = [q.enqueue(pairs.job(body)) for body in ("a", "later", "b")]
    work(ps, handlers)
    assert [outcome(q, job.id) for job in added] == [["a"], ResultTimeout, ["b"]]
    alone = q.enqueue(pairs.job("one"))
    work(ps, handlers)
    assert outcome(q, alone.id) is None


def test_done_has_no_value(ps: Penstock, q: Queue) -> None:
    """`Done` ends the job without a value, and a job that its handler acks has none."""
    first, second = [q.enqueue(i, result_ttl=60) for i in (1, 2)]

    def end(job: Any) -> Any:
        if job.body == 1:
            return Done()
        job.ack()
        return "too late"

    work(ps, end)
    assert [outcome(q, job.id) for job in (first, second)] == [None, None]


def test_middleware_sees_the_value(backend: Backend) -> None:
    """`RunEvent.value` is the return value, whether or not it is kept."""
    values: list[Any] = []

    class Seeing(Middleware):
        @contextmanager
        def run(self, event: RunEvent) -> Iterator[None]:
            yield
            values.append(event.value)

    def echo(job: Any) -> Any:
        return job.body

    with backend.sync_client() as lent, Penstock(lent, middleware=[Seeing()]) as ps:
        kept = ps.queue("q").enqueue([1], result_ttl=60)
        ps.queue("q").enqueue([2])
        work(ps, echo)
        assert values == [[1], [2]]
        assert kept.result(timeout=1) == [1]


def test_results_of_duplicates_and_updates(ps: Penstock, q: Queue) -> None:
    """A duplicate answers with the result of the existing job; an update keeps its time."""
    first = q.enqueue(1, dedup_id="a", result_ttl=60)
    second = q.enqueue(2, dedup_id="a")

    def echo(job: Any) -> Any:
        return job.body

    work(ps, echo)
    assert second.id == first.id
    assert second.result(timeout=1) == 1


def test_partitions_and_results(ps: Penstock) -> None:
    """A result lies in the partition of its job; the id finds it."""
    q = ps.queue("q", partitions=4)
    jobs = [q.enqueue(i, result_ttl=60, key=str(i)) for i in range(8)]

    def echo(job: Any) -> Any:
        return job.body

    work(ps, echo)
    assert [job.result(timeout=1) for job in jobs] == list(range(8))
    assert q.stats().kept == 8


def test_results_and_a_clear(q: Queue, raw: Raw) -> None:
    """`clear` removes results; listings do not show them."""
    q.enqueue_many([1, 2], result_ttl=60)
    q.ack(q.reserve(2, block=0))
    page = q.jobs().page()
    assert page.ids == []
    assert q.peek() == []
    q.clear()
    assert not raw.exists(q.ops.keys["held"])


def test_a_result_of_a_queue_that_is_gone(ps: Penstock, q: Queue) -> None:
    """The client finds the queue of an id in the registry, unless it was cleared."""
    job = q.enqueue(1, result_ttl=60)
    q.clear()
    with pytest.raises(ResultGone, match="its queue was deleted"):
        ps.result(job.id)
    with pytest.raises(BadArgument, match="id="):
        ps.result("nonsense")


def test_copies_of_answers_have_no_queue(q: Queue) -> None:
    """Answers to an enqueue can be pickled; a copy names the jobs, and `Queue.result` asks."""
    plain = q.enqueue_many([1, 2], result_ttl=60)
    named = q.enqueue_many([3, 4], result_ttl=60, dedup_id=str)
    for many in (plain, named):
        copied = pickle.loads(pickle.dumps(many))
        assert copied.ids == many.ids
        with pytest.raises(BadArgument, match=r"call queue.result\(id\)"):
            copied[1].result()
        q.ack(many.ids)
        assert [one.result(timeout=10) for one in many] == [None, None]
