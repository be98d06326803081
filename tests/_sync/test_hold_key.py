# From tests/_async/test_hold_key.py by tools/unasync.py; do not edit.
"""A hold of a key stops the deliveries of its jobs for a time, and ends by itself."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import pytest

from penstock import (
    BadArgument,
    Job,
    Penstock,
    Queue,
    Retry,
    Snooze,
    StaleReceipt,
    Worker,
)
from penstock.core.jobs.record import key_hash
from tests.support.keyspace import Raw, advance, evalshas
from tests.support.twins import spawn

from .conftest import Waits

LIMITS: dict[str, dict[str, Any]] = {
    "no limit": {},
    "per_key": {"per_key": 2},
    "share": {"share": 1},
    "key_rate": {"key_rate": "1000/s", "key_burst": 100},
    "ordered": {"ordered": True},
}


def taken(q: Queue, n: int = 100) -> list[Any]:
    """Reserve and acknowledge jobs, and return their bodies."""
    bodies = list[Any]()
    while jobs := q.reserve(n, block=0):
        bodies += [job.body for job in jobs]
        q.ack(jobs)
    return bodies


def left_behind(raw: Raw, q: Queue) -> dict[str, int]:
    """Return how many entries the sets of keys have, without empty ones."""
    kinds = ("parked", "tickets", "turns", "holds", "paces", "active", "scheduled")
    sizes = {kind: int(raw.zcard(q.ops.keys[kind])) for kind in kinds}
    return {kind: size for kind, size in sizes.items() if size}


@pytest.mark.parametrize("limit", LIMITS)
def test_only_its_key_waits(q: Queue, raw: Raw, limit: str) -> None:
    """Its jobs come when the hold is over, in order; those of others, and without a key, before."""
    q.configure(lease=600, **LIMITS[limit])
    q.enqueue_many(["a0", "a1"], key="a")
    q.hold(60, key="a")
    q.enqueue_many(["a2", "a3"], key="a")
    q.enqueue_many(["b0", "b1"], key="b")
    q.enqueue("plain")
    assert sorted(taken(q)) == ["b0", "b1", "plain"]
    assert q.stats().parked == 4
    advance(raw, q.ops, 59)
    assert taken(q) == []
    advance(raw, q.ops, 2)
    assert taken(q) == ["a0", "a1", "a2", "a3"]
    q.sweep()
    assert left_behind(raw, q).keys() <= {"paces"}
    if limit == "no limit":
        assert raw.hget(q.ops.keys["meta"], "uses") == b""


@pytest.mark.parametrize("limit", LIMITS)
def test_retries_and_ended_leases_wait_too(q: Queue, raw: Raw, limit: str) -> None:
    """A lost delivery and a retry that is due are parked; a holder may settle its job."""
    q.configure(lease=20, **LIMITS[limit])
    q.enqueue_many(["a0", "a1"], key="a")
    jobs = q.reserve(2, block=0)
    q.hold(60, key="a")
    jobs[-1].nack(delay=5)
    advance(raw, q.ops, 30)
    assert q.reserve(5, block=0) == []
    assert q.recover(5, idle=0) == []
    advance(raw, q.ops, 31)
    assert sorted(taken(q)) == ["a0", "a1"]


@pytest.mark.parametrize(
    "settings, expected",
    [
        ({"per_key": 2}, "its key: 2 of 2 running or next"),
        ({"share": 1}, "its key: 1 of 1 running or next"),
        ({"ordered": True}, "its key: 1 of 1 running or next"),
        ({"key_rate": "1/h"}, "the rate of its key"),
    ],
)
def test_a_parked_job_tells_what_it_waits_for(
    q: Queue, settings: dict[str, Any], expected: str
) -> None:
    """For others of its key, for its rate, or for the end of a hold; `stats` counts held keys."""
    q.configure(**settings)
    ids = q.enqueue_many(range(5), key="a").ids
    q.reserve(1, block=0)
    view = q.show(ids[-1])
    assert view is not None
    assert (view.state, view.waits_for, view.key_held) == ("parked", expected, False)
    q.hold(60, key="a")
    q.hold(60, key="b")
    view = q.show(ids[-1])
    assert view is not None
    assert (view.waits_for, view.key_held) == ("the end of a hold of its key", True)
    assert 50 < (view.next_in or 0) <= 60
    assert q.stats().held_keys == 2


@pytest.mark.parametrize(
    "settings, expected",
    [
        ({"per_key": 2}, "its key: 2 of 2 running or next"),
        ({"key_rate": "1/h"}, "the rate of its key"),
    ],
)
def test_lists_tell_what_parked_jobs_wait_for(
    q: Queue, settings: dict[str, Any], expected: str
) -> None:
    """`peek`, and `jobs` of one state and of all, tell what `show` tells."""
    q.configure(**settings)
    q.enqueue_many(range(5), key="a")
    q.enqueue_many(range(3), key="b")
    q.reserve(2, block=0)
    q.hold(60, key="b")
    for _ in range(2):
        shown = {
            view.id: (told.waits_for, told.due, told.batch)
            for view in q.peek(100, state="parked")
            if (told := q.show(view.id)) is not None
        }
        for views in (
            q.peek(100, state="parked"),
            q.peek(100, state="parked", newest=True),
            [view for view in q.jobs("parked") if view],
            [view for view in q.jobs() if view.state == "parked"],
        ):
            told = {view.waits_for for view in views}
            assert told == {expected, "the end of a hold of its key"}
            assert {view.id: (view.waits_for, view.due) for view in views} == {
                job_id: (waits_for, due) for job_id, (waits_for, due, _) in shown.items()
            }
        batches = {view.id: view.batch for view in q.peek(100, state="parked")}
        assert batches == {job_id: batch for job_id, (*_, batch) in shown.items()}
        with q.batch(then="then") as batch:
            batch.enqueue("member", key="a")


def test_a_job_without_a_report_is_parked(q: Queue, raw: Raw) -> None:
    """Its crash is counted as usual, and it comes first of its key."""
    q.configure(ordered=True, lease=20)
    q.enqueue_many(["a0", "a1"], key="a")
    [lost] = q.reserve(5, block=0)
    q.hold(60, key="a")
    advance(raw, q.ops, 30)
    assert q.reserve(5, block=0) == []
    [view] = [q.show(lost.id)]
    assert view is not None
    assert (view.state, view.crashes) == ("parked", 1)
    assert 25 < (view.next_in or 0) <= 31
    advance(raw, q.ops, 31)
    assert taken(q) == ["a0", "a1"]


def test_the_later_end_counts(q: Queue, raw: Raw) -> None:
    """A shorter hold changes nothing, a longer one does, and 0 ends it."""
    q.enqueue("a", key="a")
    for seconds in (60, 5, 90):
        q.hold(seconds, key="a")
    advance(raw, q.ops, 80)
    assert taken(q) == []
    q.hold(0, key="a")
    q.hold(0, key="b")
    assert taken(q) == ["a"]


def test_a_hold_of_the_queue_is_another_one(q: Queue) -> None:
    """The end of one does not end the other."""
    q.enqueue("a", key="a")
    q.hold(60)
    q.hold(60, key="a")
    q.hold(0)
    assert taken(q) == []
    q.hold(0, key="a")
    assert taken(q) == ["a"]


@pytest.mark.usefixtures("no_ticks")
@pytest.mark.parametrize("limit", LIMITS)
def test_consumers_wait_without_load(real_q: Queue, real_raw: Raw, limit: str) -> None:
    """A blocked consumer makes a few calls until the hold ends, and then gets the job at once."""
    real_q.configure(lease=600, **LIMITS[limit])
    real_q.enqueue_many(range(3), key="a")
    real_q.hold(0.5, key="a")
    before = evalshas(real_raw)
    [job] = real_q.reserve(1, block=30)
    assert job.body == 0
    assert evalshas(real_raw) - before <= 6


@pytest.mark.usefixtures("no_ticks")
def test_a_job_of_a_held_key_is_announced(real_q: Queue, waits: Waits) -> None:
    """A consumer that waits already learns of the end of the hold."""
    real_q.enqueue("b", key="b")
    real_q.hold(1, key="a")
    assert taken(real_q) == ["b"]
    consumer = spawn(real_q.reserve, 1, block=30)
    waits.reach(1)
    real_q.enqueue("a", key="a")
    assert [job.body for job in consumer.result()] == ["a"]


@pytest.mark.usefixtures("no_ticks")
def test_its_end_by_hand_wakes_a_consumer(q: Queue, waits: Waits) -> None:
    """A consumer that waits gets the job."""
    q.enqueue("a", key="a")
    q.hold(600, key="a")
    consumer = spawn(q.reserve, 1, block=30)
    waits.reach(1)
    q.hold(0, key="a")
    assert [job.body for job in consumer.result()] == ["a"]


def test_a_wrong_clock_holds_nothing(q: Queue, raw: Raw) -> None:
    """A time more than a day ahead counts as none; the next call drops it and frees the jobs."""
    q.enqueue_many(range(3), key="a")
    q.hold(60, key="a")
    assert taken(q) == []
    raw.zadd(q.ops.keys["holds"], {str(int(key_hash("a"), 16)): 10**14})
    assert taken(q) == [0, 1, 2]
    assert raw.zcard(q.ops.keys["holds"]) == 0


def test_many_jobs_and_many_keys(q: Queue, raw: Raw) -> None:
    """All of them come at the end, whatever their number, and nothing is left."""
    q.enqueue_many([f"a{i}" for i in range(1000)], key="a")
    q.enqueue_many(range(300), key=str)
    for key in ("a", *range(300)):
        q.hold(60, key=str(key))
    assert taken(q) == []
    advance(raw, q.ops, 61)
    bodies = taken(q)
    assert len(bodies) == 1300
    assert [body for body in bodies if str(body).startswith("a")] == [f"a{i}" for i in range(1000)]
    assert left_behind(raw, q) == {}


def test_parked_jobs_can_end(q: Queue, raw: Raw) -> None:
    """A held job may be cancelled, deleted or expire; nothing is left of it or of the hold."""
    ids = [q.enqueue(i, key="a", ttl=30 if i == 2 else 600) for i in range(4)]
    q.hold(60, key="a")
    assert taken(q) == []
    q.cancel([ids[0].id])
    q.delete([ids[1].id])
    advance(raw, q.ops, 61)
    assert taken(q) == [3]
    assert left_behind(raw, q) == {}


def test_a_sweep_drops_what_is_over(q: Queue, raw: Raw) -> None:
    """A hold without jobs leaves nothing, nor does its letter; one that lasts stays."""
    q.enqueue("b", key="b")
    q.hold(60, key="a")
    q.sweep()
    assert raw.zcard(q.ops.keys["holds"]) == 1
    assert set(raw.hget(q.ops.keys["meta"], "uses") or b"") == set(b"qy")
    advance(raw, q.ops, 61)
    q.sweep()
    assert raw.hget(q.ops.keys["meta"], "uses") == b""


def test_each_partition_and_no_queue(ps: Penstock) -> None:
    """A key is held in the partition that has it. A queue that does not exist has no hold."""
    q = ps.queue("parted", partitions=3)
    q.enqueue_many(range(30), key=str)
    for key in range(10):
        q.hold(60, key=str(key))
    assert sorted(taken(q)) == list(range(10, 30))
    assert not ps.queue("none").hold(60, key="a")


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("partitions", [None, 2])
@pytest.mark.parametrize(
    "result, nacks",
    [(lambda: Retry(after=30, hold="key"), 1), (lambda: Snooze(30, hold="key"), 0)],
)
def test_a_handler_holds_its_key(
    ps: Penstock, result: Any, nacks: int, partitions: int | None, raises: bool
) -> None:
    """Its job comes back after the time, and no other one of its key begins before."""
    q = ps.queue("q", partitions=partitions)
    q.enqueue_many(["a0", "b0", "a1", "b1", "a2"], key=lambda body: body[0])
    ran: list[Any] = []

    def handle(job: Job) -> Any:
        ran.append(job.body)
        if job.body[0] == "b":
            return None
        if raises:
            raise result()
        return result()

    Worker(ps, q, handle, concurrency=1, burst=True).run()
    [waiting] = q.peek(9, state="scheduled")
    assert sorted(ran) == ["a0", "b0", "b1"]
    assert (waiting.body, waiting.nacks, q.stats().parked) == ("a0", nacks, 2)


@pytest.mark.parametrize("result", [Retry(after=30, hold="key"), Snooze(30, hold="key")])
def test_a_job_without_a_key_fails(ps: Penstock, q: Queue, result: Any) -> None:
    """There is nothing to hold: the error of the job says so, and what to do."""
    q.configure(max_attempts=1)
    q.enqueue("a")
    Worker(ps, q, lambda _: result, burst=True).run()
    [letter] = q.peek(state="dead")
    assert letter.error is not None
    assert letter.error.startswith("BadArgument: hold='key': the job has no key")


@pytest.mark.parametrize(
    "make, name",
    [
        (lambda: Retry(hold="key"), "after"),
        (lambda: Snooze(0, hold="key"), "seconds"),
        (lambda: Snooze(86_401, hold="key"), "seconds"),
        (lambda: Snooze(5, hold="job"), "hold"),  # type: ignore[arg-type]  # it is refused
    ],
)
def test_holds_that_are_refused(make: Any, name: str) -> None:
    """A hold has a time of at most a day, and is that of the queue or of a key."""
    with pytest.raises(BadArgument, match=f"^{name}="):
        make()
    assert repr(Retry(after=5, hold="key")) == "Retry(after=5, hold='key')"


@pytest.mark.parametrize("key", ["", 5, "x" * 1025])
def test_a_key_that_is_none(q: Queue, key: Any) -> None:
    """It is refused by name."""
    with pytest.raises(BadArgument, match=r"^key="):
        q.hold(5, key=key)


class Course:
    """A queue to which something happens at random.

    Times are multiples of 1000 s, so the seconds that the test takes change nothing.
    """

    def __init__(self, q: Queue, raw: Raw, seed: int) -> None:
        self.q, self.raw, self.draw = q, raw, random.Random(seed)
        self.now = self.added = 0
        self.ends = dict.fromkeys("abc", 0)
        self.jobs, self.done = list[Job](), list[int]()

    def add(self) -> None:
        """Add jobs, some with a delay."""
        for _ in range(self.draw.randint(1, 6)):
            delay = self.draw.choice([0, 0, 0, 2000])
            self.q.enqueue(self.added, key=self.draw.choice("aab"), delay=delay)
            self.added += 1

    def hold(self) -> None:
        """Hold a key, or end a hold."""
        key, span = self.draw.choice("abc"), self.draw.choice([0, 2000, 4000])
        self.q.hold(span, key=key)
        self.ends[key] = max(self.ends[key], self.now + span) if span else 0

    def advance(self) -> None:
        """Let time pass."""
        self.now += 1000
        advance(self.raw, self.q.ops, 1000)

    def take(self) -> None:
        """Reserve jobs: none has a key that is held."""
        jobs = take_all(self.q, self.draw.randint(1, 5))
        held = {key_hash(key) for key, end in self.ends.items() if end > self.now}
        views = [self.q.show(job.id) for job in jobs]
        assert not held & {view.key_hash for view in views if view}
        self.jobs += jobs

    def settle(self) -> None:
        """Report a job, perhaps late, or let its lease end."""
        job = self.draw.choice(self.jobs) if self.jobs else None
        way = self.draw.choice(["ack", "ack", "nack", "release", "lose"])
        with suppress(StaleReceipt):
            if job and way == "ack" and job.ack():
                self.done.append(job.body)
            elif job and way == "nack":
                job.nack(delay=self.draw.choice([0, 2000]))
            elif job and way == "release":
                job.release(delay=self.draw.choice([0, 2000]))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("limit", [*LIMITS, "per_key and share"])
def test_at_random(q: Queue, raw: Raw, limit: str, seed: int) -> None:
    """No job of a held key is delivered, whatever else happens; all end, and nothing is left."""
    settings = {"per_key": 3, "share": 1} if limit == "per_key and share" else LIMITS[limit]
    q.configure(lease=1500, max_crashes=0, max_attempts=0, max_releases=0, **settings)
    course = Course(q, raw, seed)
    acts = (course.add, course.hold, course.advance, *[course.take, course.settle] * 2)
    for _ in range(80):
        course.draw.choice(acts)()
    done = course.done
    while len(done) < course.added:
        advance(raw, q.ops, 5000)
        jobs = take_all(q, 1000)
        assert jobs or q.stats().active
        q.ack(jobs)
        done += [job.body for job in jobs]
    assert sorted(done) == list(range(course.added))
    q.sweep()
    assert left_behind(raw, q).keys() <= {"paces"}


def take_all(q: Queue, n: int) -> list[Job]:
    """Reserve up to n jobs, in as many calls as the script needs."""
    jobs = q.reserve(n, block=0)
    while len(jobs) < n and (more := q.reserve(n - len(jobs), block=0)):
        jobs += more
    return jobs


def test_a_call_asks_once_for_each_key(real_q: Queue, real_raw: Raw) -> None:
    """While a key is held, jobs of other keys cost a few commands a key."""

    def looks() -> int:
        found = real_raw.info("commandstats")
        return sum(
            found.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("zcount", "zscore")
        )

    real_q.enqueue("a", key="a")
    real_q.hold(60, key="a")
    real_q.reserve(1, block=0)
    before = looks()
    real_q.enqueue_many(range(1000), key="b")
    assert len(real_q.reserve(1000, block=0)) == 1000
    assert looks() - before < 100
