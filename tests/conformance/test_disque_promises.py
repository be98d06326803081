"""The semantics behind Disque's commands: ids, order, the clock, ttl, counters, memory.

ROWS has the rows of the semantics; UNTESTED has behaviour that Disque's own tests leave out, with
the rows here. test_disque.py checks both.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import pytest
import redis

from penstock import (
    BadArgument,
    JobGone,
    Outcome,
    OutOfMemory,
    Penstock,
    Queue,
    TooLate,
    parse_id,
)
from penstock.embedded import EmbeddedServer
from tests.conformance.disque import (
    SEVERAL_NODES,
    Rows,
    bodies,
)
from tests.model.clock import TestClock, use_test_clock
from tests.support.backends import Backend
from tests.support.keyspace import Raw, advance, check_invariant, dump, reach_blocked
from tests.support.twins import Beside, spawn

ROWS: Rows = {
    "a.1 ID": ("test_ids_are_distinct_and_sorted",),
    "a.1 ID alphabet": ("test_an_id_may_stand_in_a_url",),
    "a.1 ID randomness": "an id is made of time, count, queue and epoch; it needs no random bits",
    "a.1 ID time field": ("test_an_id_has_ttl_and_parity",),
    "a.1 states": "the row SHOW … state: five states that can be told apart, acked is gone",
    "a.1 ctime": ("test_many_jobs_in_one_millisecond",),
    "a.1 counters": (
        "test_counters_are_exact",
        "test_counters_do_not_wrap",
        "test_everything_is_there_after_a_restart",
    ),
    "a.1 times": ("test_times_are_seconds_with_milliseconds",),
    "a.2 queue order": (
        "test_many_jobs_in_one_millisecond",
        "test_order_when_the_clock_steps_back",
    ),
    "a.2 put back": ("test_put_back_jobs_come_first",),
    "a.2 retry clock": ("test_the_lease_runs_from_the_delivery", "test_working_counts_from_now"),
    "a.2 jitter": ("test_a_lease_ends_to_the_millisecond",),
    "a.2 default RETRY": "the row ADDJOB … RETRY: 30 s, or what the queue says; not a part of ttl",
    "a.2 DELAY": ("test_a_delay_ends_to_the_millisecond",),
    "a.2 TTL end": (
        "test_no_delivery_from_the_end_of_the_ttl",
        "test_the_end_of_a_ttl_takes_a_held_job",
        "test_put_back_past_the_ttl",
        "test_nothing_is_swept_early",
    ),
    "a.2 several queues": ("test_several_queues_from_left_to_right",),
    "a.2 blocked GETJOB": (
        "test_a_blocked_reader_gets_several",
        "test_readers_are_served_in_turn",
    ),
    "a.2 timer cost": "nothing runs on the server between calls; there is no timer to cost",
    "a.4 at 75 %": ("test_below_the_bound_nothing_changes",),
    "a.4 at 95 %": (
        "test_below_the_bound_nothing_changes",
        "test_evicting",
        "test_bad_options_of_an_evict",
    ),
    "a.4 at 100 %": ("test_a_full_server_is_drained", "test_evicting_makes_room"),
    "a.4 allowed throughout": ("test_a_full_server_is_drained",),
    "a.4 at most once and another node": SEVERAL_NODES,
    "a.5 copies": "the rows of 02 and 03: replicas of Redis hold the copies",
    "a.5 requeue race": SEVERAL_NODES,
    "a.5 ack among holders": SEVERAL_NODES,
    "a.5 wrong node": SEVERAL_NODES,
    "a.5 reach of counts": SEVERAL_NODES,
    "a.5 federation delay": SEVERAL_NODES,
    "a.5 crash": ("test_everything_is_there_after_a_restart",),
    "a.6 the module": "the same commands on a Redis with a module; nothing of its own to hold",
    "a.7 1": ("test_the_lease_runs_from_the_delivery",),
    "a.7 2": (
        "test_several_queues_from_left_to_right",
        "test_a_blocked_reader_gets_several",
        "test_put_back_jobs_come_first",
    ),
    "a.7 3": ("test_an_ack_counts_what_it_finished",),
    "a.7 4": ("test_a_nack_at_most_once", "test_jobs_that_cannot_be_dequeued"),
    "a.7 5": ("test_waiting_jobs_count_for_the_bound", "test_the_length_of_a_queue"),
    "a.7 6": (
        "test_pauses_replace_each_other",
        "test_putting_back_during_a_pause",
        "test_a_pause_survives_a_restart",
    ),
    "a.7 7": (
        "test_no_delivery_from_the_end_of_the_ttl",
        "test_working_in_the_second_half_of_a_ttl",
        "test_half_of_a_ttl_to_the_millisecond",
        "test_the_end_of_a_ttl_takes_a_held_job",
    ),
    "a.7 8": ("test_an_id_has_ttl_and_parity",),
    "a.7 9": ("test_many_jobs_in_one_millisecond",),
    "a.7 10": ("test_times_are_seconds_with_milliseconds",),
}

UNTESTED: Mapping[str, tuple[str, ...]] = {
    "PAUSE": ("PAUSE", "PAUSE … in", "PAUSE … out", "PAUSE … restart", "PAUSE … an empty queue"),
    "DELAY": ("ADDJOB … DELAY", "a.2 DELAY"),
    "QPEEK": ("QPEEK", "QPEEK … negative"),
    "QSTAT": ("QSTAT", "QSTAT … age, idle", "QSTAT … blocked"),
    "ENQUEUE": ("ENQUEUE",),
    "DEQUEUE": ("DEQUEUE",),
    "DELJOB as a command": ("DELJOB",),
    "NOHANG": ("GETJOB … NOHANG",),
    "COUNT": ("GETJOB … COUNT",),
    "several queues": ("GETJOB … FROM", "a.2 several queues"),
    "blocking order": ("a.2 blocked GETJOB",),
    "TOOLATE": ("WORKING … TOOLATE",),
    "NOJOB": ("WORKING … NOJOB",),
    "BADID": ("ACKJOB", "Error words"),
    "option checks": ("ADDJOB … MAXLEN", "ADDJOB … TTL", "GETJOB … COUNT", "JSCAN … STATE"),
    "the id's parity bit": ("a.1 ID time field",),
    "reply counts of ACKJOB and NACK": ("ACKJOB", "NACK"),
}

START = 1_800_000_000_000


@pytest.fixture
def clock(raw: Raw, monkeypatch: pytest.MonkeyPatch) -> TestClock:
    """Set the clock of every script; it stands still until it is set again."""
    use_test_clock(monkeypatch)
    return TestClock(raw, START)


# -- ids ---------------------------------------------------------------------------------------


def test_ids_are_distinct_and_sorted(backend: Backend, ps: Penstock, q: Queue) -> None:
    """a.1 ID: two producers at once never get the same id, and ids sort as the jobs."""
    q.enqueue(b"made")
    other = Penstock(backend.sync_client())
    try:
        beside: Beside[list[str]] = spawn(
            lambda: [other.queue("q").enqueue(n).id for n in range(60)]
        )
        mine = [job_id for _ in range(20) for job_id in q.enqueue_many(range(50)).ids]
        ids = mine + beside.result()
    finally:
        other.close()
    assert len(set(ids)) == 1060
    assert [view.id for view in q.peek(1000, start=1)] == sorted(ids)[:1000]


def test_an_id_may_stand_in_a_url(q: Queue) -> None:
    """a.1 ID alphabet: 500 ids have no character that a URL or a file name must escape."""
    for job_id in q.enqueue_many(range(500)).ids:
        assert quote(job_id, safe="") == job_id


@pytest.mark.parametrize(
    "ttl, odd, even",
    [
        (1, "0001", "0002"),
        (60, "0001", "0002"),
        (61, "0003", "0002"),
        (120, "0003", "0002"),
        (86_400, "05a1", "05a0"),
        (46 * 86_400, "ffff", "fffe"),
    ],
)
def test_an_id_has_ttl_and_parity(q: Queue, ttl: int, odd: str, even: str) -> None:
    """a.1 ID time field; a.7 8: its last digits are the ttl in minutes, rounded up, odd for at
    least once and even for at most once; the producer and every delivery see one id.
    """
    pair = [q.enqueue(b"x", ttl=ttl).id, q.enqueue(b"x", ttl=ttl, lease=0).id]
    assert [job_id[-4:] for job_id in pair] == [odd, even]
    assert [parse_id(job_id).at_most_once for job_id in pair] == [False, True]
    assert [job.id for job in q.reserve(2, block=0)] == pair
    assert q.enqueue(b"x").id[-4:] == "ffff"
    assert q.enqueue(b"x", lease=0).id[-4:] == "05a0"


@pytest.mark.parametrize("seed", range(3))
def test_counters_are_exact(q: Queue, raw: Raw, seed: int) -> None:
    """a.1 counters: each delivery has the exact numbers of earlier ones and of nacks, whatever
    happened, and every job is accounted for.
    """
    dice = random.Random(seed)
    q.configure(max_crashes=0, max_attempts=0)
    delivered: Counter[str] = Counter()
    nacked: Counter[str] = Counter()

    def some(state: str) -> list[str]:
        return [view.id for view in q.peek(dice.randrange(1, 5), state=state)]

    def add() -> None:
        ttl, lease = dice.choice([None, None, 30, 60]), dice.choice([None, 0, 5, 20])
        q.enqueue_many(range(dice.randrange(1, 5)), ttl=ttl, lease=lease, delay=dice.choice([0, 7]))

    def take() -> None:
        for job in q.reserve(dice.randrange(1, 6), block=0):
            delivered[job.id] += 1
            assert (job.deliveries, job.nacks) == (delivered[job.id], nacked[job.id])
            assert job.redeliveries == job.deliveries - 1 - job.nacks

    moves: list[Callable[[], Any]] = [
        add, add, add, take, take, take,
        lambda: nacked.update(q.nack(some("active"), delay=dice.choice([0, 5])).ids()),
        lambda: q.release(some("active"), delay=dice.choice([0, 5])),
        lambda: q.promote(some("scheduled") + some("active")),
        lambda: q.postpone(some("ready")),
        lambda: q.ack(some("active")[:1] + some("ready")[:1]),
        lambda: q.bury(some("active")[:1]),
        lambda: q.delete(some("ready")[:1], if_undelivered=True),
        lambda: q.delete(some("scheduled")[:1]),
        lambda: q.sweep(evict=1),
        lambda: advance(raw, q.ops, dice.choice([1, 6, 25])),
    ]  # fmt: skip
    for _ in range(80):
        dice.choice(moves)()
        stats = q.stats()
        there = stats.ready + stats.scheduled + stats.active + stats.dead + stats.unswept
        gone = stats.acked + stats.expired + stats.deleted + stats.withdrawn + stats.evicted
        assert there + gone == stats.enqueued
        assert stats.deliveries == sum(delivered.values())
        assert stats.nacked == sum(nacked.values())


def test_counters_do_not_wrap(q: Queue, raw: Raw) -> None:
    """a.1 counters: they are exact beyond 65,536."""
    q.enqueue(b"x")
    q.configure(max_attempts=0)
    q.nack(q.reserve(block=0), delay=0)
    (view,) = q.peek()
    (number,) = raw.hkeys(q.ops.keys["tally"])
    raw.hset(q.ops.keys["tally"], number, "140000 65536 0 0")
    (job,) = q.reserve(block=0)
    assert (job.id, job.nacks, job.deliveries, job.redeliveries) == (
        view.id,
        65_536,
        140_001,
        140_001 - 1 - 65_536,
    )
    job.nack(delay=0)
    assert q.reserve(block=0)[0].nacks == 65_537


def test_times_are_seconds_with_milliseconds(q: Queue) -> None:
    """a.1 times; a.7 10: every time is in seconds, whole or not, or a timedelta."""
    for seconds in (1.234, timedelta(seconds=1, milliseconds=234)):
        done = q.enqueue(b"x", delay=seconds, ttl=timedelta(hours=1), lease=seconds)
        view = q.show(done.id)
        assert view is not None
        assert (view.lease, view.ttl) == (1.234, 3600)
        assert view.due is not None
        assert round(view.due - view.created, 3) == 1.234
    with pytest.raises(BadArgument):
        q.enqueue(b"x", ttl=8_589_934_592)


# -- order and the clock -----------------------------------------------------------------------


def test_many_jobs_in_one_millisecond(clock: TestClock, q: Queue) -> None:
    """a.2 queue order; a.1 ctime; a.7 9: 3,000 jobs of one ms are delivered in the order of adding,
    and so are released ones.
    """
    ids = [*q.enqueue_many(range(1500)).ids, *(q.enqueue(n).id for n in range(1500, 1600))]
    ids += q.enqueue_many(range(1600, 3000)).ids
    assert len({parse_id(job_id).ms for job_id in ids}) == 1
    assert ids == sorted(set(ids))
    first = q.reserve(1000, block=0)
    assert [job.id for job in first] == ids[:1000]
    back = [first[n] for n in (700, 3, 999, 4)]
    q.nack(back[:2], delay=0)
    q.release(back[2:])
    assert bodies(q.reserve(6, block=0)) == [3, 4, 700, 999, 1000, 1001]


def test_order_when_the_clock_steps_back(clock: TestClock, q: Queue) -> None:
    """a.2 queue order: after a step by an hour or a day later jobs stay later, and released ones
    earlier.
    """
    ids = []
    for step in (0, -3_600_000, 1, -86_400_000, -86_399_000, 5):
        clock.set(START + step)
        ids += [q.enqueue(step).id, *q.enqueue_many([step] * 3).ids]
    assert ids == sorted(set(ids))
    clock.set(START - 80_000_000)
    jobs = q.reserve(10, block=0)
    assert [job.id for job in jobs] == ids[:10]
    clock.set(START - 86_400_000)
    q.nack([jobs[6], jobs[2]], delay=0)
    assert [job.id for job in q.reserve(4, block=0)] == [ids[2], ids[6], ids[10], ids[11]]


def test_put_back_jobs_come_first(clock: TestClock, q: Queue) -> None:
    """a.2 put back; a.7 2: after a nack, release, promote or ended lease a job precedes all younger
    ones, in order; a delayed job is placed by its due time.
    """
    q.enqueue_many(["nacked", "released", "promoted", "held", "lapses"], lease=50)
    nacked, released, promoted, held, _ = q.reserve(5, block=0)
    q.enqueue("delayed", delay=20)
    clock.set(START + 10_000)
    q.enqueue("younger")
    held.extend(1000)
    clock.set(START + 30_000)
    q.enqueue("youngest")
    released.release()
    q.promote([promoted.id])
    nacked.nack(delay=0)
    assert bodies(q.peek()) == ["nacked", "released", "promoted", "younger", "delayed", "youngest"]
    clock.set(START + 50_000)
    assert bodies(q.reserve(10, block=0)) == [
        "lapses", "nacked", "released", "promoted", "younger", "delayed", "youngest",
    ]  # fmt: skip


def test_the_lease_runs_from_the_delivery(clock: TestClock, q: Queue) -> None:
    """a.2 retry clock; a.7 1: a job that waited for most of its lease is held for a whole one."""
    q.enqueue(b"x", lease=3)
    clock.set(START + 2_900)
    (job,) = q.reserve(block=0)
    clock.set(START + 2_900 + 2_999)
    assert q.reserve(block=0) == []
    assert job.ack()


def test_a_lease_ends_to_the_millisecond(clock: TestClock, q: Queue) -> None:
    """a.2 jitter: exactly at its time, not one ms early or late."""
    q.enqueue(b"x", lease=1.5)
    q.reserve(block=0)
    clock.set(START + 1_499)
    assert q.reserve(block=0) == []
    clock.set(START + 1_500)
    assert len(q.reserve(block=0)) == 1


def test_a_delay_ends_to_the_millisecond(clock: TestClock, q: Queue) -> None:
    """a.2 DELAY: exactly at its time, not one ms early or late."""
    q.enqueue(b"x", delay=1.5)
    clock.set(START + 1_499)
    assert q.reserve(block=0) == []
    clock.set(START + 1_500)
    assert len(q.reserve(block=0)) == 1


def ready(q: Queue, clock: TestClock) -> None:
    """Add a waiting job."""
    q.enqueue(b"x", ttl=10)


def scheduled(q: Queue, clock: TestClock) -> None:
    """Add a job that is due just before the end."""
    q.enqueue(b"x", ttl=10, delay=9.999)


def at_its_end(q: Queue, clock: TestClock) -> None:
    """Add a job released for exactly that time."""
    q.enqueue(b"x", ttl=10)
    q.nack(q.reserve(block=0), delay=9.999)


def lapsed(q: Queue, clock: TestClock) -> None:
    """Add a job whose lease ends just before."""
    q.enqueue(b"x", ttl=10, lease=9.999)
    q.reserve(block=0)


def once(q: Queue, clock: TestClock) -> None:
    """Add an undelivered job with lease 0."""
    q.enqueue(b"x", ttl=10, lease=0)


def promoted(q: Queue, clock: TestClock) -> None:
    """Add a job whose delay was ended."""
    q.promote([q.enqueue(b"x", ttl=10, delay=9).id])


@pytest.mark.parametrize("prepare", [ready, scheduled, at_its_end, lapsed, once, promoted])
def test_no_delivery_from_the_end_of_the_ttl(
    clock: TestClock, q: Queue, prepare: Callable[[Queue, TestClock], None]
) -> None:
    """a.2 TTL end; a.7 7: one ms before it the job is delivered, from then on never, in any state;
    no client is told, and it is counted.
    """
    prepare(q, clock)
    clock.set(START + 9_999)
    assert bodies(q.peek()) == [b"x"]
    clock.set(START + 10_000)
    assert q.peek() == []
    assert q.reserve(block=0) == []
    assert q.stats().expired == 1
    clock.set(START + 20_000)
    prepare_again(q)
    clock.set(START + 29_999)
    assert len(q.reserve(block=0)) == 1


def prepare_again(q: Queue) -> None:
    """Add a second job like the first, to show that the ttl kept the first one back."""
    q.enqueue(b"x", ttl=10)


def test_the_end_of_a_ttl_takes_a_held_job(clock: TestClock, q: Queue) -> None:
    """a.2 TTL end; a.7 7: a lease ends with the ttl; no client is told; the holder
    finds the job gone.
    """
    q.enqueue_many([b"x"] * 3, ttl=10, lease=100)
    late, swept, by_id = q.reserve(3, block=0)
    clock.set(START + 10_000)
    assert q.reserve(block=0) == []
    assert q.stats().active == 0
    assert late.ack() is False
    assert swept.nack() is False
    with pytest.raises(JobGone):
        swept.extend(late=True)
    assert list(q.ack([by_id.id])) == [Outcome.GONE]
    assert q.stats().expired == 3


@pytest.mark.parametrize("how", ["nack", "release", "postpone"])
def test_put_back_past_the_ttl(clock: TestClock, q: Queue, how: str) -> None:
    """a.2 TTL end: jobs whose delay or lease would pass their ttl end with it, and are counted as
    expired before a sweep.
    """
    q.enqueue_many([b"x"] * 150, ttl=10, lease=100)
    if how == "postpone":
        q.postpone([view.id for view in q.peek(150)])
    else:
        getattr(q, how)(q.reserve(150, block=0), delay=100)
    assert q.stats().scheduled == 150
    clock.set(START + 10_000)
    stats = q.stats()
    assert (stats.ready, stats.scheduled, stats.unswept, stats.expired) == (0, 0, 150, 0)
    assert q.reserve(block=0) == []
    q.sweep()
    assert q.stats().expired == 150


def test_half_of_a_ttl_to_the_millisecond(clock: TestClock, q: Queue) -> None:
    """a.7 7: up to half of its ttl a job can be extended, and one ms later not; the half counts
    from the creation.
    """
    q.enqueue(b"x", ttl=10, lease=3)
    clock.set(START + 4_000)
    (job,) = q.reserve(block=0)
    clock.set(START + 5_000)
    assert job.extend() == 3
    clock.set(START + 5_001)
    with pytest.raises(TooLate):
        job.extend()
    assert job.extend(4, late=True) == 4


def test_readers_are_served_in_turn(real_backend: Backend) -> None:
    """a.2 blocked GETJOB: the first of the waiting readers gets the first job."""
    raw = real_backend.sync_client()
    clients = [Penstock(real_backend.sync_client()) for _ in range(3)]
    try:
        queue = clients[0].queue("q")
        queue.configure(lease=60)
        readers = []
        for count, client in enumerate(clients, 1):
            readers.append(spawn(client.queue("q").reserve, block=3600))
            reach_blocked(raw, count)
        with Penstock(real_backend.sync_client()) as producer:
            for number, reader in enumerate(readers):
                producer.queue("q").enqueue(number)
                assert bodies(reader.result()) == [number]
    finally:
        for client in clients:
            client.close()


# -- memory ------------------------------------------------------------------------------------


@contextmanager
def bounded(server: EmbeddedServer, room: int) -> Iterator[tuple[redis.Redis, Penstock]]:
    """Make a server that is full after this many more bytes."""
    with redis.Redis.from_url(server.url) as raw, Penstock(server.url, evict=False) as ps:
        queue = ps.queue("q")
        queue.enqueue(b"x")
        queue.ack(queue.reserve(block=0))
        raw.config_set("maxmemory", raw.info("memory")["used_memory"] + room)
        yield raw, ps


def fill(q: Queue, **options: Any) -> int:
    """Add jobs until the memory is full, and return their number."""
    added = 0
    try:
        while True:
            q.enqueue(b"x" * 10_000, **options)
            added += 1
    except OutOfMemory:
        return added


def test_below_the_bound_nothing_changes(server: EmbeddedServer) -> None:
    """a.4 at 75 %; a.4 at 95 %: every job is accepted until maxmemory is reached,
    and none is lost.
    """
    with bounded(server, 4_000_000) as (raw, ps):
        q = ps.queue("q")
        added = fill(q)
        memory = raw.info("memory")
        assert memory["used_memory"] > 0.95 * memory["maxmemory"]
        assert q.stats().ready == added > 200


def test_a_full_server_is_drained(server: EmbeddedServer) -> None:
    """a.4 at 100 %; a.4 allowed throughout: an add is refused by a typed error and writes nothing;
    calls that drain the server work, and then it accepts jobs again.
    """
    with bounded(server, 3_000_000) as (raw, ps):
        q = ps.queue("q")
        added = fill(q)
        before = q.stats()
        with pytest.raises(OutOfMemory):
            ps.queue("other").enqueue(b"x" * 200_000)
        assert q.stats().enqueued == before.enqueued
        jobs = q.reserve(5, block=0)
        assert jobs[0].extend() == 30
        assert jobs[0].nack(delay=0)
        assert jobs[1].release()
        assert jobs[2].bury()
        assert q.ack(jobs[3:]).done == len(jobs[3:])
        assert list(q.postpone([q.peek(1, newest=True)[0].id])) == [Outcome.DONE]
        assert list(q.promote([q.peek(1, state="scheduled")[0].id])) == [Outcome.DONE]
        q.pause("in")
        q.resume()
        drained = 0
        while jobs := q.reserve(50, block=0):
            drained += q.ack(jobs).done
        assert drained == added - 3
        q.enqueue(b"x" * 10_000)
        check_invariant(raw)


@pytest.mark.parametrize("dead", [True, False])
def test_evicting(q: Queue, raw: Raw, dead: bool) -> None:
    """a.4 at 95 %: delivered jobs with lease 0 go by end of ttl, then the oldest dead letters
    unless spared; at most n a call, and no others.
    """
    q.enqueue_many(["dead 1", "dead 2"])
    for job in q.reserve(2, block=0):
        job.bury()
    for ttl in (900, 300, 600):
        q.enqueue(f"once {ttl}", lease=0, ttl=ttl)
    q.reserve(3, block=0)
    q.enqueue_many(["held", "ready"])
    q.enqueue("fresh", lease=0)
    (held,) = q.reserve(block=0)
    assert q.sweep(evict=2, dead=dead) == 2
    assert bodies(q.peek(state="active")) == ["held", "once 900"]
    assert q.sweep(evict=2, dead=dead) == (2 if dead else 1)
    assert bodies(q.peek(state="dead")) == (["dead 2"] if dead else ["dead 1", "dead 2"])
    assert q.sweep(evict=100, dead=dead) == (1 if dead else 0)
    assert q.sweep(evict=100, dead=dead) == 0
    assert q.stats().evicted == (5 if dead else 3)
    assert bodies(q.peek()) == ["ready", "fresh"]
    assert held.ack()


@pytest.mark.parametrize("n", [-1, 1.0, "1", True, None])
def test_bad_options_of_an_evict(q: Queue, raw: Raw, n: Any) -> None:
    """a.4 at 95 %: a count below 0 is a typed error, and no job is removed."""
    q.enqueue(b"x", lease=0)
    q.reserve(block=0)
    before = dump(raw)
    with pytest.raises(BadArgument):
        q.sweep(evict=n)
    assert dump(raw) == before


def test_evicting_makes_room(server: EmbeddedServer) -> None:
    """a.4 at 100 %: a server full of delivered jobs with lease 0 accepts jobs again after it."""
    with bounded(server, 3_000_000) as (raw, ps):
        q = ps.queue("q")
        fill(q, lease=0)
        taken = 0
        while jobs := q.reserve(50, block=0):
            taken += len(jobs)
        fill(q, lease=0)  # uses memory that was freed meanwhile
        assert q.stats().active == taken
        assert q.sweep(evict=200) == 200  # more than the buffer of a reply to reserve has taken
        q.enqueue(b"x" * 10_000)
        assert (q.stats().evicted, q.stats().active) == (200, taken - 200)
        check_invariant(raw)


def test_nothing_is_swept_early(q: Queue, raw: Raw) -> None:
    """a.2 TTL end: a sweep removes no job before its ttl ends, with lease 0 or not."""
    q.enqueue_many([b"x"] * 3, ttl=100)
    q.enqueue_many([b"x"] * 3, ttl=100, lease=0)
    q.reserve(4, block=0)
    advance(raw, q.ops, 90)
    assert q.sweep() == 0
    stats = q.stats()
    assert (stats.ready + stats.active, stats.expired) == (6, 0)
    advance(raw, q.ops, 10)
    assert q.sweep() == 6
