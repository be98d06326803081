"""The behaviour that users of RedisRQ rely on, by rows of a checklist, on a stock Redis."""

from __future__ import annotations

import copy
import itertools
import math
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from redis.exceptions import RedisClusterException

from penstock import (
    BadArgument,
    BadJobId,
    Job,
    JobView,
    Outcome,
    Penstock,
    Queue,
    QueueDamaged,
    StaleReceipt,
    parse_id,
)
from penstock.client._sync.transport.connection import ProducerConnection
from penstock.core.calls.call import Call
from penstock.core.values.ids import encode_id
from penstock.wire.codes import Code
from penstock.wire.keys import node_key, registry_key
from penstock.wire.scripts import all_scripts, script
from tests.conformance.durable import WAYS, Keeper
from tests.protocol import clock
from tests.support.backends import Backend
from tests.support.binaries import first_binary
from tests.support.keyspace import Raw, advance, dump, load_scripts, raw_time, reach_blocked
from tests.support.twins import spawn, wait_for

ROWS = range(1, 24)
HOUR_MS = 3_600_000
PATIENCE = 5.0
"""Maximum of seconds for a call that need not wait, on a busy machine."""


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the scripts and commands that clients send from now on, by name and in order."""
    names: list[str] = []
    exchange, command = ProducerConnection.exchange, ProducerConnection.command

    def noted_exchange(connection: ProducerConnection, call: Call, *rest: Any) -> Any:
        names.append(call.script.name)
        return exchange(connection, call, *rest)

    def noted_command(connection: ProducerConnection, *args: Any) -> Any:
        names.append(args[0])
        return command(connection, *args)

    monkeypatch.setattr(ProducerConnection, "exchange", noted_exchange)
    monkeypatch.setattr(ProducerConnection, "command", noted_command)
    return names


def number(job_id: str) -> tuple[int, int]:
    """Return the job number in an id."""
    parsed = parse_id(job_id)
    return parsed.ms, parsed.seq


def rise(numbers: list[tuple[int, int]]) -> bool:
    """Tell if each number is above the one before."""
    return all(a < b for a, b in itertools.pairwise(numbers))


def bodies(jobs: list[Job] | list[JobView]) -> list[Any]:
    """Return their bodies, in order."""
    return [job.body for job in jobs]


def ids(jobs: list[Job] | list[JobView]) -> list[str]:
    """Return their ids, in order."""
    return [job.id for job in jobs]


def pop_apart(q: Queue, raw: Raw, *leases: float, gap: float = 100) -> list[Job]:
    """Push a job for each lease, and pop them one by one with a gap in the queue's time.

    The bodies are their places: 0, 1, 2, ... The last one was popped `gap` seconds ago.
    """
    for place, lease in enumerate(leases):
        q.enqueue(place, lease=lease)
    jobs = []
    for _ in leases:
        jobs += q.reserve(1, block=0)
        advance(raw, q.ops, gap)
    return jobs


def never_dead(q: Queue) -> None:
    """Allow any number of recoveries, as in RedisRQ."""
    q.configure(max_crashes=0, max_attempts=0)


# -- the list -----------------------------------------------------------------------------


def test_every_row_has_a_test() -> None:
    """Each number of the checklist starts the docstring of a test here."""
    tests = [one for name, one in globals().items() if name.startswith("test_")]
    heads = [(one.__doc__ or "").partition(":")[0] for one in tests]
    found = {int(row) for head in heads for row in re.findall(r"\bR-(\d+)\b", head)}
    assert found == set(ROWS)


# -- ids -----------------------------------------------------------------------------


def test_push_returns_an_id_for_each_body_in_order(q: Queue) -> None:
    """R-1: n rising ids for n bodies, also across calls and chunks."""
    given = q.enqueue_many([b"one"]).ids
    given += q.enqueue_many(f"{i}".encode() for i in range(2500)).ids  # three chunks
    given += [q.enqueue(b"%d" % i).id for i in range(200)]  # several in one ms
    given += q.enqueue_many([b"last"]).ids
    assert len(given) == 2702
    assert all(re.fullmatch(rb"\d+-\d+", parse_id(one).number) for one in given)
    assert rise([number(one) for one in given])
    assert given == sorted(given)  # whole ids sort as their numbers do
    popped = q.reserve(3000, block=0)
    assert ids(popped) == given
    assert popped[0].raw == b"one"
    assert popped[-1].raw == b"last"


def push_at(raw: Raw, q: Queue, now_ms: int, draw: int | None = None) -> list[tuple[int, int]]:
    """Push two bodies at this server time, and return their numbers.

    Producer and call, from which `seq` is drawn, are `draw`, or any.
    """
    call = random.getrandbits(40) if draw is None else draw
    producer = f"{random.getrandbits(64) if draw is None else draw:016x}"
    args = (call, producer, "", 0, "", 0, "", b"1\nx", b"1\ny")
    keys = clock.keys_of(q.ops.keys, script("enqueue"))
    source = clock.frozen(script("enqueue").source, now_ms)
    reply = raw.execute_command("EVAL", source, len(keys), *keys, *args)
    assert reply[0] in (Code.DONE, Code.LANE)
    assert reply[3] == 2
    ms, seq = (int(part) for part in reply[2].split(b"-"))
    return [(ms, seq), (ms, seq + 1)]


def test_ids_rise_while_the_clock_steps_back(q: Queue, raw: Raw) -> None:
    """R-1: back by a ms, an hour, a year; and while it stands still."""
    given = [number(q.enqueue(b"x").id)]
    start = given[0][0]
    for back in (0, 1, HOUR_MS, HOUR_MS, 0, 365 * 24 * HOUR_MS, HOUR_MS, -5):
        given += push_at(raw, q, start - back)
    given.append(number(q.enqueue(b"x").id))
    assert rise(given)
    assert [number(job.id) for job in q.reserve(100, block=0)] == given


def test_ids_of_two_queues_differ_in_one_ms(ps: Penstock, raw: Raw) -> None:
    """R-1: the number is unique in its queue; the id is globally unique, as it has the queue."""
    a, b = ps.queue("a"), ps.queue("b")
    now = int(raw_time(raw) * 1000) + 60_000
    a.enqueue(b"make it")
    b.enqueue(b"make it")
    a.ack(a.reserve(block=0))
    b.ack(b.reserve(block=0))
    assert push_at(raw, a, now, 7) == push_at(raw, b, now, 7)
    (of_a, of_b) = a.peek(2), b.peek(2)
    assert [number(one) for one in ids(of_a)] == [number(one) for one in ids(of_b)]
    assert len({*ids(of_a), *ids(of_b)}) == 4


# -- pop ------------------------------------------------------------------------


def test_pop_gives_queue_id_and_body_in_push_order(q: Queue) -> None:
    """R-2: one by default, otherwise min(n, available); bodies are any bytes."""
    pushed = [b"", b"\x00\xff\r\n", b"three", b"4", b"5", b"6"]
    given = q.enqueue_many(pushed[:4]).ids
    given += q.enqueue_many(pushed[4:]).ids
    popped: list[tuple[str, str, bytes]] = []
    for jobs, expected in ((q.reserve(), 1), (q.reserve(2), 2), (q.reserve(99), 3)):
        assert len(jobs) == expected
        popped += [(job.queue_name, job.id, job.body) for job in jobs]
    assert popped == [("q", one, body) for one, body in zip(given, pushed, strict=True)]
    assert q.reserve(block=0) == []


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6, 7, 100])
def test_pop_drains_queues_in_argument_order(ps: Penstock, n: int) -> None:
    """R-3: the first queue first, up to n in total; a missing queue is skipped."""
    ps.queue("low").enqueue_many([b"l1", b"l2", b"l3"])
    ps.queue("high").enqueue_many([b"h1", b"h2", b"h3"])
    jobs = ps.reserve(["high", "missing", "low"], n, block=0)
    expected = [("high", b"h1"), ("high", b"h2"), ("high", b"h3")]
    expected += [("low", b"l1"), ("low", b"l2"), ("low", b"l3")]
    assert [(job.queue_name, job.body) for job in jobs] == expected[:n]
    rest = ps.reserve(["low", "high"], 100, block=0)
    assert sorted([*bodies(jobs), *bodies(rest)]) == [b"h1", b"h2", b"h3", b"l1", b"l2", b"l3"]


# -- waiting ---------------------------------------------------------------


def test_nothing_to_pop(ps: Penstock, q: Queue) -> None:
    """R-4: empty at once without a block time; otherwise empty when it is over."""
    q.enqueue(b"x", delay=600)
    queues: list[str | Queue] = ["missing", q]
    for call in (partial(q.reserve, 5, block=0), partial(ps.reserve, queues, 5, block=0)):
        start = time.monotonic()
        assert call() == []
        assert time.monotonic() - start < PATIENCE
    for wait in (0.2, 0.5):
        start = time.monotonic()
        assert ps.reserve(queues, 5, block=wait) == []
        assert 0.9 * wait <= time.monotonic() - start < PATIENCE


@pytest.mark.parametrize("name", ["there", "empty", "new"])
def test_a_blocked_pop_wakes_on_a_push_to_any_queue(
    real_ps: Penstock, real_raw: Raw, name: str
) -> None:
    """R-5: at once, also for a queue that did not exist when the wait began."""
    real_ps.queue("there").enqueue(b"held")
    real_ps.queue("there").reserve(block=0)
    real_ps.queue("empty").enqueue(b"gone")
    real_ps.queue("empty").purge()
    consumer = spawn(real_ps.reserve, ["there", "empty", "new"], 3, block=30)
    reach_blocked(real_raw, 1, queues=3)
    real_ps.queue(name).enqueue_many([b"1", b"2"])
    jobs = consumer.result()
    assert [(job.queue_name, job.body) for job in jobs] == [(name, b"1"), (name, b"2")]
    assert jobs[0].delivered - jobs[0].created < PATIENCE


def test_waiters_are_served_in_arrival_order(real_q: Queue, real_raw: Raw) -> None:
    """R-5: the first waiter gets the first message, of one push or of several."""
    for together in (True, False):
        waiters = []
        for count in range(6):
            waiters.append(spawn(real_q.reserve, 1, block=30))
            reach_blocked(real_raw, count + 1)
        if together:
            real_q.enqueue_many(range(6))
        else:
            for body in range(6):
                real_q.enqueue(body)
                assert bodies(waiters[body].result()) == [body]
        assert [bodies(one.result()) for one in waiters] == [[body] for body in range(6)]


def test_a_push_is_shared_among_waiters(real_q: Queue, real_raw: Raw) -> None:
    """R-5: five messages for a consumer of three and a consumer of one: one is left."""
    three = spawn(real_q.reserve, 3, block=30)
    reach_blocked(real_raw, 1)
    one = spawn(real_q.reserve, 1, block=30)
    reach_blocked(real_raw, 2)
    real_q.enqueue_many(range(5))
    assert (bodies(three.result()), bodies(one.result())) == ([0, 1, 2], [3])
    assert bodies(real_q.peek()) == [4]


def test_each_message_goes_to_one_of_many_waiters(real_ps: Penstock) -> None:
    """R-5: overlapping sets of queues, several producers: each message once, none left."""
    names = ("a", "b", "c")
    total = 900
    taken: list[tuple[str, bytes]] = []
    over = threading.Event()

    def consume(queues: tuple[str, ...], n: int) -> None:
        while not over.is_set():
            for job in real_ps.reserve(queues, n, block=0.5):
                assert job.ack()
                taken.append((job.queue_name, job.body))
            if len(taken) == total:
                over.set()

    def produce(first: int) -> None:
        for i in range(first, total, 3):
            real_ps.queue(names[i % 7 % 3]).enqueue(b"%d" % i)

    sets = [("a", "b"), ("b", "c"), ("c", "a"), ("a", "b", "c"), ("c", "b", "a"), ("b",)]
    consumers = [spawn(consume, queues, 1 + i % 3) for i, queues in enumerate(sets)]
    try:
        for one in [spawn(produce, first) for first in range(3)]:
            one.result()
        wait_for(over.is_set)
    finally:
        over.set()
    for worker in consumers:
        worker.result()
    assert Counter(taken) == Counter((names[i % 7 % 3], b"%d" % i) for i in range(total))
    for name in names:
        stats = real_ps.queue(name).stats()
        assert (stats.ready, stats.active, stats.acked) == (0, 0, stats.enqueued)


def test_block_has_one_meaning(real_q: Queue, real_raw: Raw) -> None:
    """R-6: 0 does not wait, None waits forever, and a number is the maximum in seconds."""
    start = time.monotonic()
    assert real_q.reserve(block=0) == []
    assert time.monotonic() - start < PATIENCE
    waiter = spawn(real_q.reserve, block=None)
    reach_blocked(real_raw, 1)
    real_q.enqueue(b"x")
    assert bodies(waiter.result()) == [b"x"]


def test_options_have_names_and_bad_numbers_are_refused(ps: Penstock, q: Queue, raw: Raw) -> None:
    """R-6: in any order; a bad number is not taken for a queue name, and no job is popped."""
    ps.queue("COUNT").enqueue(b"a queue of that name")
    ps.queue("2").enqueue(b"and this one")
    q.enqueue_many([1, 2, 3, 4])
    assert bodies(q.reserve(block=0, n=2)) == [1, 2]
    assert bodies(ps.reserve(block=0, n=1, queues=["q"])) == [3]
    before = dump(raw)
    for bad in ("2", "COUNT", b"2", 0, -1, 1.5, None, True, math.nan):
        count: Any = bad
        for call in (partial(q.reserve, count), partial(ps.reserve, ["q"], count)):
            with pytest.raises(BadArgument, match=r"^n="):
                call()
    for bad in ("200", -1, -0.001, math.nan, math.inf, True):
        wait: Any = bad
        for call in (partial(q.reserve, block=wait), partial(ps.reserve, ["q"], block=wait)):
            with pytest.raises(BadArgument, match=r"^block="):
                call()
    assert dump(raw) == before


# -- pending and ack ---------------------------------------------------------


def test_popped_messages_are_pending(q: Queue, raw: Raw) -> None:
    """R-7: with the server's time of the pop and one delivery, until they are acknowledged."""
    given = q.enqueue_many(["a", "b", "c"]).ids
    before = int(raw_time(raw) * 1000)
    jobs = q.reserve(2, block=0)
    after = int(raw_time(raw) * 1000)
    pending = q.peek(state="active")
    assert ids(pending) == ids(jobs) == given[:2]
    for view, job in zip(pending, jobs, strict=True):
        assert view.delivered is not None
        assert before <= round(view.delivered * 1000) <= after
        assert (view.delivered, view.deliveries) == (job.delivered, 1)
        assert (job.deliveries, job.redeliveries, view.redeliveries) == (1, 0, 0)
    assert jobs[1].ack()
    assert ids(q.peek(state="active")) == given[:1]
    assert jobs[0].ack()
    assert q.peek(state="active") == []
    assert ids(q.peek()) == given[2:]


def test_ack_reports_removed_messages(q: Queue) -> None:
    """R-8: exactly those ids, in argument order, by delivery or by id."""
    q.enqueue_many(range(6))
    jobs = q.reserve(6, block=0)
    assert q.ack([jobs[3], jobs[0].id, jobs[5]]).ids() == [jobs[3].id, jobs[0].id, jobs[5].id]
    assert q.ack(ids(jobs)).ids() == [jobs[1].id, jobs[2].id, jobs[4].id]
    assert q.ack(jobs).ids() == []
    assert q.stats().acked == 6


def test_ack_names_an_id_once(q: Queue) -> None:
    """R-8: an id given several times, in any form, is reported once."""
    q.enqueue_many(range(3))
    a, b, c = q.reserve(3, block=0)
    assert q.ack([b, a, b, a.id, b.id]).ids() == [b.id, a.id]
    assert q.ack([c.id, c.id, c]).ids() == [c.id]
    assert q.stats().acked == 3


def test_ack_leaves_out_messages_that_are_not_pending(q: Queue) -> None:
    """R-8: unknown, acknowledged and never popped ones; no error is raised, the rest is done."""
    q.enqueue_many(range(4))
    done, released, held = q.reserve(3, block=0)
    assert done.ack()
    assert released.release(delay=60)
    (waiting,) = q.peek()
    never_popped = copy.copy(held)  # another message's receipt: the message was never popped
    never_popped._number = parse_id(waiting.id).number
    unknown = held.id[:11] + "-0" + held.id[13:]
    outcome = q.ack([unknown, done, never_popped, held, released, done.id])
    assert outcome.ids() == [held.id]
    assert list(outcome) == [
        Outcome.GONE, Outcome.GONE, Outcome.STALE, Outcome.DONE, Outcome.ENDED, Outcome.GONE,
    ]  # fmt: skip
    stats = q.stats()
    assert (stats.ready, stats.scheduled, stats.active, stats.acked) == (1, 1, 0, 2)


def garbage(good: str) -> list[Any]:
    """Return invalid ids, some of them similar to a valid one."""
    return [
        "", "x", "1600000000000-1", good + "xyz", " " + good, "0" + good, good + "\n", good[:-1],
        good.upper(), good[:35] + "-FFFF", good.encode(), "9" * 4000, "D-" + "9" * 10_000, None, 5,
    ]  # fmt: skip


def test_ids_are_compared_as_whole_strings(q: Queue, raw: Raw, sent: list[str]) -> None:
    """R-8, R-9: an invalid id is refused before anything is sent; even 10 kB of it."""
    good = q.enqueue(b"x").id
    (job,) = q.reserve(block=0)
    before = dump(raw)
    sent.clear()
    for bad in garbage(good):
        for named in ([bad], [good, bad], [job, bad]):
            with pytest.raises(BadJobId):
                q.ack(named)
    assert sent == []
    assert dump(raw) == before
    assert raw.ping()
    assert q.ack([good]).ids() == [good]


def test_the_newest_is_acked_as_fast_as_the_oldest(real_q: Queue) -> None:
    """R-10: of 20,000 pending ones; the fastest of alternating batches, within a factor of 3."""
    real_q.enqueue_many([b"x" * 100] * 20_000)
    jobs = real_q.reserve(20_000, block=0)
    assert len(jobs) == 20_000
    took: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(25):
        for newest in (True, False):
            batch = jobs[-40:] if newest else jobs[:40]
            jobs = jobs[:-40] if newest else jobs[40:]
            start = time.perf_counter()
            assert real_q.ack(reversed(batch)).done == 40
            took[newest].append(time.perf_counter() - start)
    assert min(took[True]) <= 3 * min(took[False])


# -- recover ----------------------------------------------------------------


def test_recover_takes_the_oldest_deliveries(q: Queue, raw: Raw) -> None:
    """R-11: at most n, none younger than `idle`, the oldest delivery first."""
    never_dead(q)
    jobs = pop_apart(q, raw, *[3600] * 6)  # 600, 500, ... 100 s ago
    taken = q.recover(2, idle=350)
    assert ids(taken) == ids(jobs[:2])
    assert [(job.queue_name, job.body) for job in taken] == [("q", 0), ("q", 1)]
    assert bodies(q.recover(10, idle=350)) == [2]
    assert q.recover(10, idle=350) == []
    assert bodies(q.recover(idle=150)) == [3]
    assert bodies(q.recover(1000, idle=150)) == [4]


def test_recover_ignores_leases(q: Queue, raw: Raw) -> None:
    """R-11: mixed leases, ended and extended ones; jobs with lease 0 are left alone."""
    never_dead(q)
    leases = [900, 3600, 700, 0, 3600, 350, 90_000, 86_400]
    jobs = pop_apart(q, raw, *leases)  # 800, 700, ... 100 s ago
    assert jobs[5].extend(7200) == 7200  # its delivery stays 300 s old
    assert jobs[1].extend(1000) == 1000
    advance(raw, q.ops, 1100)  # the leases of 0, 1 and 2 have ended
    assert bodies(q.recover(3, idle=1350)) == [0, 1, 2]
    assert bodies(q.recover(100, idle=1350)) == [4, 5]  # 3 is never delivered again
    assert q.recover(100, idle=1350) == []
    assert bodies(q.recover(100, idle=1150)) == [6, 7]
    (once,) = [view for view in q.peek(100, state="active") if view.deliveries == 1]
    assert (once.body, once.lease) == (3, 0)
    assert jobs[3].ack()


def test_recover_of_everything_takes_nothing_twice(q: Queue) -> None:
    """R-11: `idle=0` recovers each pending message once per call, and counts one delivery."""
    never_dead(q)
    q.enqueue_many(range(4))
    q.reserve(4, block=0)
    for turn in (2, 3, 4):
        jobs = q.recover(10, idle=0)
        assert sorted(bodies(jobs)) == [0, 1, 2, 3]
        assert {job.deliveries for job in jobs} == {turn}
    assert len(q.recover(3, idle=0)) == 3
    assert sorted(view.deliveries for view in q.peek(state="active")) == [4, 5, 5, 5]


def test_recover_finds_the_oldest_of_thousands(q: Queue, raw: Raw) -> None:
    """R-11: exact over several pages, although the oldest deliveries have the latest leases."""
    never_dead(q)
    leases = (86_400, 40_000, 7200, 3600)
    jobs: list[Job] = []
    for turn in range(24):
        q.enqueue_many([turn] * 100, lease=leases[turn * 4 // 24])
        jobs += q.reserve(100, block=0)
        advance(raw, q.ops, 60)
    assert len(jobs) == 2400
    taken = q.recover(130, idle=90)
    assert ids(taken) == ids(jobs[:130])
    taken += q.recover(1000, idle=90)
    assert ids(taken) == ids(jobs[:1130])
    for _ in range(3):
        taken += q.recover(1000, idle=90)
    assert ids(taken) == ids(jobs[:2300])  # the last 100 are 60 s old
    assert q.stats().active == 2400


def test_recover_misses_none_during_acknowledgements(
    backend: Backend, q: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-11: acknowledgements between two pages hide no other delivery."""
    q.enqueue_many(range(2500), lease=3600)
    jobs = q.reserve(500, block=0) + q.reserve(1000, block=0) + q.reserve(1000, block=0)
    exchange = ProducerConnection.exchange
    pages = []

    def beside(connection: ProducerConnection, call: Call, *rest: Any) -> Any:
        reply = exchange(connection, call, *rest)
        if call.script.name == "pending":
            pages.append(reply)
            if len(pages) == 1:
                assert other.queue("q").ack(ids(jobs[:2000])).done == 2000
        return reply

    monkeypatch.setattr(ProducerConnection, "exchange", beside)
    with Penstock(backend.sync_client()) as other:
        taken = q.recover(1000, idle=0)
    assert len(pages) > 1
    assert ids(taken) == ids(jobs[2000:])


def test_recover_affects_only_deliveries(q: Queue, raw: Raw) -> None:
    """R-11: waiting, delayed, released, buried and acknowledged jobs are not recovered."""
    jobs = pop_apart(q, raw, *[3600] * 5)
    q.enqueue("waits")
    q.enqueue("delayed", delay=600)
    advance(raw, q.ops, 5)
    assert jobs[0].ack()
    assert jobs[1].release()
    assert jobs[2].nack(delay=60)
    assert jobs[3].bury()
    assert bodies(q.recover(100, idle=0)) == [4]
    stats = q.stats()
    assert (stats.ready, stats.scheduled, stats.active, stats.dead) == (2, 2, 1, 1)


@pytest.mark.parametrize("n", [0, -1, 1001, 1.5, "5", None, True])
def test_recover_refuses_counts(q: Queue, raw: Raw, n: Any) -> None:
    """R-11: an invalid count or `idle` is refused before any recovery."""
    q.enqueue(b"x")
    q.reserve(block=0)
    before = dump(raw)
    with pytest.raises(BadArgument, match=r"^n="):
        q.recover(n, idle=0)
    for bad in (-1, math.nan, math.inf, "5", None, True):
        idle: Any = bad
        with pytest.raises(BadArgument, match=r"^idle="):
            q.recover(1, idle=idle)
    with pytest.raises(TypeError):
        q.recover(1)  # type: ignore[call-arg]  # on purpose
    assert dump(raw) == before


def test_a_recovered_message_is_last_among_the_pending(q: Queue, raw: Raw) -> None:
    """R-12: it has one more delivery, now, behind the others; the order of the
    recovered is kept.
    """
    jobs = pop_apart(q, raw, *[3600] * 5)
    before = q.stats().deliveries
    taken = q.recover(3, idle=250)
    assert ids(taken) == ids(jobs[:3])
    assert [job.deliveries for job in taken] == [2, 2, 2]
    assert [job.redeliveries for job in taken] == [1, 1, 1]
    pending = q.peek(state="active")
    assert bodies(pending) == [3, 4, 0, 1, 2]
    assert [view.deliveries for view in pending] == [1, 1, 2, 2, 2]
    assert [view.redeliveries for view in pending] == [0, 0, 1, 1, 1]
    assert [view.delivered for view in pending[2:]] == [job.delivered for job in taken]
    assert all(view.idle is not None and view.idle < PATIENCE for view in pending[2:])
    assert q.stats().deliveries == before + 3


def test_messages_popped_together_are_recovered_in_their_order(q: Queue, raw: Raw) -> None:
    """R-12: and in that order among the pending."""
    never_dead(q)
    given = q.enqueue_many(range(50), lease=3600).ids
    q.reserve(50, block=0)
    for _ in range(2):
        advance(raw, q.ops, 100)
        assert ids(q.recover(20, idle=50)) == given[:20]
        assert ids(q.peek(100, state="active")) == given[20:] + given[:20]
        advance(raw, q.ops, 10)
        assert ids(q.recover(50, idle=50)) == given[20:]
        assert ids(q.peek(100, state="active")) == given
        advance(raw, q.ops, 100)
        assert ids(q.recover(100, idle=50)) == given


def test_a_just_recovered_message_is_not_recovered_again(q: Queue, raw: Raw) -> None:
    """R-13: not within `idle` of its recovery; after that it is."""
    pop_apart(q, raw, 3600, 3600, 3600)  # 300, 200 and 100 s ago
    assert bodies(q.recover(10, idle=150)) == [0, 1]
    assert q.recover(10, idle=150) == []
    advance(raw, q.ops, 80)
    assert bodies(q.recover(10, idle=150)) == [2]
    advance(raw, q.ops, 100)
    assert bodies(q.recover(10, idle=150)) == [0, 1]
    assert [(job.body, job.deliveries) for job in q.recover(10, idle=50)] == [(2, 3)]


def test_two_recovering_clients_share_the_messages(real_backend: Backend) -> None:
    """R-13: two clients that recover repeatedly at once get each message once, and all of them."""
    raw = real_backend.sync_client()
    with Penstock(real_backend.sync_client()) as one, Penstock(real_backend.sync_client()) as two:
        q = one.queue("q")
        q.enqueue_many(range(2100), lease=3600)
        q.reserve(2100, block=0)
        advance(raw, q.ops, 1000)
        line = threading.Barrier(2)

        def work(client: Penstock) -> list[Any]:
            found: list[Any] = []
            line.wait()
            for _ in range(80):
                found += bodies(client.queue("q").recover(30, idle=900))
            return found

        shares = [spawn(work, client) for client in (one, two)]
        taken = [body for share in shares for body in share.result()]
        assert Counter(taken) == Counter(range(2100))
        assert q.stats().deliveries == 2 * 2100


def test_a_recovery_counts_as_a_crash(q: Queue) -> None:
    """R-11: at the queue's `max_crashes` it becomes a dead letter, unless that is 0."""
    assert q.configure(max_crashes=2).max_crashes == 2
    q.enqueue("poison", lease=3600)
    q.reserve(block=0)
    (job,) = q.recover(idle=0)
    assert (job.crashes, job.attempt) == (1, 2)
    assert q.recover(10, idle=0) == []
    (letter,) = q.peek(state="dead")
    assert (letter.body, letter.crashes) == ("poison", 2)
    never_dead(q)
    assert q.redrive() == 1
    q.reserve(block=0)
    for turn in range(30):
        (job,) = q.recover(idle=0)
        assert job.crashes == turn + 1
    assert q.stats().dead == 0


def test_either_consumer_may_ack_by_id(q: Queue) -> None:
    """R-14: the former consumer or the new holder; the second call reports none."""
    q.enqueue_many(["a", "b"], lease=3600)
    first = q.reserve(2, block=0)
    second = q.recover(2, idle=0)
    assert ids(first) == ids(second)
    assert q.ack([first[0].id]).ids() == [first[0].id]
    assert q.ack(second).ids() == [second[1].id]
    assert q.ack(ids(first)).ids() == []
    assert q.ack(second).ids() == []
    assert q.stats().acked == 2


def test_a_former_holder_gets_a_stale_outcome(q: Queue) -> None:
    """R-14: an ack by delivery proves the holder, so the former holder's changes nothing."""
    q.enqueue("a", lease=3600)
    (first,) = q.reserve(block=0)
    (second,) = q.recover(idle=0)
    outcome = q.ack([first])
    assert (list(outcome), outcome.ids()) == ([Outcome.STALE], [])
    with pytest.raises(StaleReceipt):
        first.ack()
    assert second.ack()
    assert first.queue.ack([first]).ids() == []


# -- inspect ------------------------------------------------------------------


@pytest.mark.parametrize("state", ["ready", "active", "scheduled", "dead"])
def test_inspect_counts_from_either_end(q: Queue, raw: Raw, state: str) -> None:
    """R-15: a negative start counts from the tail; beyond the ends there is nothing; none is
    delivered.
    """
    if state == "scheduled":
        given = [q.enqueue(body, delay=600 + body).id for body in range(5)]
    else:
        given = q.enqueue_many(range(5)).ids
    if state in ("active", "dead"):
        jobs = q.reserve(5, block=0)
        if state == "dead":
            q.bury(jobs)
    whole = [*zip(given, range(5), strict=True)]
    before = dump(raw)
    for start in (-1000, *range(-7, 8), 1000):
        for count in (1, 2, 4, 5, 6, 1000):
            seen = q.peek(count, state=state, start=start)
            rest = whole[start:] if start >= -len(whole) else []
            assert [(view.id, view.body) for view in seen] == rest[:count], (start, count)
    assert [view.body for view in q.peek(2, state=state, newest=True)] == [4, 3]
    assert dump(raw) == before


def test_inspect_from_the_tail_goes_by_the_order_of_delivery(q: Queue, raw: Raw) -> None:
    """R-15: also when messages are due, released, or have ended leases."""
    q.enqueue("orphan", lease=5)
    q.enqueue("put back")
    jobs = q.reserve(2, block=0)
    q.enqueue("due", delay=3)
    q.enqueue("first")
    advance(raw, q.ops, 10)
    assert jobs[1].release()
    q.enqueue_many(["second", "third"])
    order = bodies(q.peek(100))
    assert set(order) == {"orphan", "put back", "due", "first", "second", "third"}
    for start in range(-8, 0):
        assert bodies(q.peek(100, start=start)) == (order[start:] if start >= -6 else []), start
        assert bodies(q.peek(2, start=start)) == (order[start:] if start >= -6 else [])[:2], start
    assert bodies(q.peek(100, newest=True)) == order[::-1]
    assert bodies(q.reserve(100, block=0)) == order


@pytest.mark.parametrize("state", ["ready", "active"])
def test_inspect_behind_big_bodies_is_right_or_refused(q: Queue, state: str) -> None:
    """R-15: a position too far to be read is refused and not reported as empty."""
    q.enqueue_many(bytes([i]) * 1_000_000 for i in range(12))
    while state == "active" and q.reserve(100, block=0):
        pass
    answered = set()
    for start in range(-12, 12):
        seen = peek_one(q, state, start)
        if seen is not None:
            assert [view.raw[0] for view in seen] == [start % 12], start
            answered.add(start)
    assert {*range(-8, 8)} <= answered


def peek_one(q: Queue, state: str, start: int) -> list[JobView] | None:
    """Return the job at this position, or None if the call was refused."""
    try:
        return q.peek(1, state=state, start=start)
    except BadArgument as error:
        if error.argument != "start":
            raise
        return None


def test_inspect_of_pending_has_five_fields(q: Queue, raw: Raw) -> None:
    """R-15: id, body, last delivery, time since, deliveries; by the queue's own clock."""
    never_dead(q)
    jobs = pop_apart(q, raw, 3600, 3600, 3600, gap=100)
    q.recover(1, idle=250)
    advance(raw, q.ops, 40)
    pending = q.peek(state="active")
    assert [(view.id, view.body, view.deliveries) for view in pending] == [
        (jobs[1].id, 1, 1), (jobs[2].id, 2, 1), (jobs[0].id, 0, 2),
    ]  # fmt: skip
    for view, since in zip(pending, (240, 140, 40), strict=True):
        assert view.delivered is not None
        assert view.idle is not None
        assert abs(view.idle - (view.now - view.delivered)) < 0.05
        assert view.idle == pytest.approx(since, abs=PATIENCE)


def test_times_are_by_the_servers_clock(q: Queue, raw: Raw) -> None:
    """R-15: `now` is the server's time of the call, `delivered` that of the pop."""
    q.enqueue(b"x")
    (job,) = q.reserve(block=0)
    before = math.floor(raw_time(raw) * 1000) / 1000
    (view,) = q.peek(state="active")
    assert before <= view.now <= raw_time(raw)
    assert view.delivered == job.delivered
    assert view.idle == pytest.approx(view.now - job.delivered, abs=0.05)


@pytest.mark.parametrize("count", [0, -1, -100, 1.5, "3", None, True])
def test_inspect_refuses_counts(q: Queue, raw: Raw, count: Any) -> None:
    """R-16: counts must be positive whole numbers; for waiting and pending, existing or not."""
    for _ in range(2):
        before = dump(raw)
        for state in ("ready", "active"):
            with pytest.raises(BadArgument, match=r"^n="):
                q.peek(count, state=state)
            for bad in (0.5, "0", None):
                start: Any = bad
                with pytest.raises(BadArgument, match=r"^start="):
                    q.peek(1, state=state, start=start)
        assert dump(raw) == before
        q.enqueue(b"x")


def test_a_missing_queue_answers_empty(ps: Penstock, raw: Raw) -> None:
    """R-16: every verb returns empty, and none creates the queue."""
    known = ps.queue("known").enqueue(b"x").id
    missing = ps.queue("missing")
    place = missing.ops.crc.to_bytes(4, "big") + bytes.fromhex("1f2e3d4c")
    named = encode_id(parse_id(known).node, place, parse_id(known).number, "ffff")
    before = dump(raw)
    assert missing.reserve(5, block=0) == []
    assert ps.reserve(["missing", "also missing"], 5, block=0) == []
    assert missing.recover(5, idle=0) == []
    for state, start in itertools.product(("ready", "scheduled", "active", "dead"), (0, 5, -5)):
        assert missing.peek(state=state, start=start) == []
    stats = missing.stats()
    assert (stats.exists, stats.ready, stats.active, stats.enqueued) == (False, 0, 0, 0)
    undelivered = partial(missing.delete, if_undelivered=True)
    for call in (missing.ack, missing.nack, missing.release, missing.bury, missing.delete,
                 missing.promote, missing.postpone, undelivered):  # fmt: skip
        outcome = call([named])
        assert (list(outcome), outcome.ids()) == ([Outcome.GONE], [])
    assert missing.extend([named]) == [Outcome.GONE]
    assert (missing.redrive([named]), missing.show(named)) == (0, None)
    outcome, jobs = missing.ack_and_reserve([named], 5)
    assert (list(outcome), jobs) == ([Outcome.GONE], [])
    assert (missing.purge(), missing.sweep(), missing.sweep(evict=100)) == (0, 0, 0)
    assert dump(raw) == before


def test_messages_of_a_server_that_was_emptied_are_gone(ps: Penstock, raw: Raw) -> None:
    """R-16: a consumer that still holds one gets that outcome without an error."""
    q = ps.queue("q")
    q.enqueue_many(["a", "b"])
    job, other = q.reserve(2, block=0)
    raw.flushall()
    assert job.ack() is False
    assert q.ack([job, other]).ids() == []
    assert raw.dbsize() == 0


# -- other types --------------------------------------------------------------------

VERBS = ("push", "pop", "pop of several", "ack", "recover", "inspect", "inspect pending", "info")
NEEDED = {"ready": {"push", "pop", "pop of several", "inspect", "info"}, "meta": set(VERBS)}
NEEDED["active"] = set(VERBS) - {"push"}
NEEDED["held"] = {"pop", "pop of several", "ack", "recover", "inspect pending"}


def verbs(ps: Penstock, job: Job) -> dict[str, Callable[[], Any]]:
    """A call of each verb."""
    q = job.queue
    return {
        "push": lambda: q.enqueue(b"y"),
        "pop": lambda: q.reserve(5, block=0),
        "pop of several": lambda: ps.reserve(["before", q, "behind"], 5, block=0),
        "ack": lambda: q.ack([job]),
        "recover": lambda: q.recover(5, idle=0),
        "inspect": lambda: q.peek(5),
        "inspect pending": lambda: q.peek(5, state="active"),
        "info": q.stats,
    }


@pytest.mark.parametrize("kind", NEEDED)
def test_a_key_of_another_type_raises(ps: Penstock, raw: Raw, damage: None, kind: str) -> None:
    """R-17: every verb that reads it raises, and nothing changes."""
    q = ps.queue("q")
    q.enqueue_many([b"x", b"y", b"z"])
    (job, _) = q.reserve(2, block=0)
    calls = verbs(ps, job)
    assert tuple(calls) == VERBS
    key = q.ops.keys[kind]
    raw.delete(key)
    raw.set(key, "not what it should be")
    before = dump(raw)
    for name in VERBS:
        if name in NEEDED[kind]:
            with pytest.raises(QueueDamaged, match="wrong type"):
                calls[name]()
            assert dump(raw) == before, name


@pytest.mark.parametrize("position", range(4))
@pytest.mark.parametrize("block", [0, 0.1])
def test_a_key_of_another_type_among_several_queues(
    ps: Penstock, raw: Raw, damage: None, position: int, block: float
) -> None:
    """R-17: at any position; no job stays reserved, and the order is unchanged."""
    for kind in ("ready", "held", "active", "meta", "wake"):
        names = [f"{kind} {letter}" for letter in "abcd"]
        for name in names:
            ps.queue(name).enqueue_many([f"{name} {i}" for i in range(3)])
        for name in names[1:]:  # some were released before
            ps.queue(name).reserve(block=0)[0].release()
        key = ps.queue(names[position]).ops.keys[kind]
        raw.delete(key)
        raw.set(key, "not what it should be")
        sound = [ps.queue(name) for name in names if name != names[position]]
        orders = {q.name: ids(q.peek(100)) for q in sound}
        with pytest.raises(QueueDamaged, match="wrong type"):
            ps.reserve(names, 100, block=block)
        assert raw.get(key) == b"not what it should be"
        for q in sound:
            stats = q.stats()
            assert (stats.ready, stats.active, stats.crashed, stats.nacked) == (3, 0, 0, 0), kind
            assert ids(q.peek(100)) == orders[q.name]
            jobs = q.reserve(100, block=0)
            assert ids(jobs) == orders[q.name]
            assert {job.attempt for job in jobs} == {1}


def test_a_key_of_another_type_behind_messages_at_most_once(
    ps: Penstock, raw: Raw, damage: None
) -> None:
    """R-17: jobs that can't be released are returned; the next call raises."""
    ps.queue("a").enqueue_many(["once", "too"], lease=0)
    raw.set(ps.queue("b").ops.keys["meta"], "not what it should be")
    assert bodies(ps.reserve(["a", "b"], 5, block=0)) == ["once", "too"]
    with pytest.raises(QueueDamaged):
        ps.reserve(["a", "b"], 5, block=0)


def test_a_queue_that_is_not_needed_is_not_read(ps: Penstock, raw: Raw, damage: None) -> None:
    """R-17: with n messages in earlier queues it is not read."""
    ps.queue("a").enqueue_many([1, 2, 3])
    raw.set(ps.queue("b").ops.keys["meta"], "not what it should be")
    assert bodies(ps.reserve(["a", "b"], 2, block=0)) == [1, 2]
    with pytest.raises(QueueDamaged):
        ps.reserve(["b", "a"], 1, block=0)
    assert bodies(ps.queue("a").peek()) == [3]


# -- counts and remaining data ------------------------------------------------


def test_waiting_and_pending_add_up(q: Queue, raw: Raw) -> None:
    """R-18: their sum falls by an ack, and by nothing else that a consumer does."""
    never_dead(q)
    q.enqueue_many(range(20), lease=3600)

    def counts() -> tuple[int, int]:
        stats = q.stats()
        assert (stats.scheduled, stats.dead, stats.unswept) == (0, 0, 0)
        return stats.ready, stats.active

    assert counts() == (20, 0)
    jobs = q.reserve(12, block=0)
    assert counts() == (8, 12)
    assert q.ack(jobs[:2])
    assert counts() == (8, 10)
    advance(raw, q.ops, 600)
    recovered = q.recover(5, idle=300)
    assert counts() == (8, 10)
    assert not q.ack(jobs[2:4])  # recovered meanwhile
    assert counts() == (8, 10)
    assert q.release(recovered[:2])
    assert q.nack(recovered[2:3], delay=0)
    assert counts() == (11, 7)
    advance(raw, q.ops, 3700)  # all leases end
    assert counts() == (18, 0)
    last = q.reserve(100, block=0)
    assert counts() == (0, 18)
    assert q.ack(last)
    assert counts() == (0, 0)
    assert q.stats().acked == q.stats().enqueued == 20


def test_nothing_of_a_message_is_left(ps: Penstock, raw: Raw) -> None:
    """R-19: after the last ack only documented metadata is left, as in protocol/core.md."""
    q = ps.queue("q")
    q.enqueue_many([b"x" * 100] * 30, ttl=3600)
    jobs = q.reserve(20, block=0)
    assert jobs[0].release()
    assert jobs[1].nack(delay=0)
    recovered = q.recover(5, idle=0)
    assert len(recovered) == 5
    while left := q.reserve(100, block=0):
        q.ack(left)
    q.ack(job.id for job in jobs)
    assert q.stats().acked == 30
    keys = q.ops.keys
    may_stay = {keys["wake"]}  # at most one token of one byte
    assert set(raw.keys()) - may_stay == {
        keys["ready"], keys["meta"], node_key("penstock"), registry_key("penstock"),
    }  # fmt: skip
    assert raw.xlen(keys["ready"]) == 0
    assert raw.lrange(keys["wake"], 0, -1) in ([], [b"1"])
    advance(raw, q.ops, 3600)
    ps.sweep()
    assert raw.keys("penstock:{q}*") == []


# -- persistence --------------------------------------------------------------------


@pytest.fixture(params=["saved", "always", "promoted"])
def keeper(request: pytest.FixtureRequest) -> Iterator[Keeper]:
    """A server whose data survives by a snapshot, an append-only file, or a replica."""
    with WAYS[request.param](first_binary()) as made:
        yield made


def test_messages_survive_the_server(keeper: Keeper) -> None:
    """R-20: waiting and pending ones, with ids, bodies, order, deliveries and last delivery."""
    with Penstock(keeper.url, retry_for=30) as ps:
        q = ps.queue("q")
        given = q.enqueue_many([b"", b"\x00\xff", *(b"%d" % i for i in range(300))], lease=3600).ids
        held = q.reserve(120, block=0)
        advance(keeper.raw(), q.ops, 500)
        recovered = q.recover(10, idle=250)
        assert ids(recovered) == given[:10]

        def seen() -> list[Any]:
            views = [*q.peek(1000), *q.peek(1000, state="active")]
            return [(view.id, view.raw, view.deliveries, view.delivered) for view in views]

        before = seen()
        assert [entry[0] for entry in before] == given[120:] + given[10:120] + given[:10]
        keeper.fall()
        assert seen() == before
        assert q.ack([*held[10:120], *recovered]).done == 120
        assert ids(q.reserve(1000, block=0)) == given[120:]


def test_ids_rise_across_a_fall(keeper: Keeper) -> None:
    """R-1, R-20: also if the next server's clock is an hour behind, and no message was left."""
    with Penstock(keeper.url, retry_for=30) as ps:
        q = ps.queue("q")
        given = [number(one) for one in q.enqueue_many([b"x"] * 3).ids]
        q.ack(q.reserve(3, block=0))
        keeper.fall()
        given += push_at(keeper.raw(), q, given[0][0] - HOUR_MS)
        given += [number(q.enqueue(b"x").id)]
        assert rise(given)


# -- memory -------------------------------------------------------------------------


@pytest.mark.parametrize("size", [100, 2000])
def test_one_pending_message_of_many_keeps_little(real_q: Queue, real_raw: Raw, size: int) -> None:
    """R-21: one of 10,000 needs less than 10 kB with all metadata, and keeps no other's body.

    Tables of the server, 8 bytes a slot, shrink as other messages pass: to 400 kB at once, whatever
    the size of the bodies.
    """
    real_q.enqueue_many([b"x" * size] * 10_000)
    jobs = []
    while more := real_q.reserve(1000, block=0):
        jobs += more
    assert memory(real_raw) > 10_000 * size
    kept = jobs.pop(5000)
    assert real_q.ack(jobs).done == 9999
    assert memory(real_raw) < 400_000
    for _ in range(300):
        real_q.enqueue(b"passes")
        real_q.ack(real_q.reserve(block=0))
    assert memory(real_raw) < 10_000
    (view,) = real_q.peek(state="active")
    assert (view.id, len(view.raw)) == (kept.id, size)


def memory(raw: Raw) -> int:
    """Return the bytes of all keys."""
    return sum(raw.memory_usage(key, samples=0) for key in raw.scan_iter(count=1000))


# -- transactions and scripts -------------------------------------------------------


def test_a_pipeline_is_refused(backend: Backend, raw: Raw) -> None:
    """R-22: a pipeline is refused, so no call waits or pushes inside a transaction."""
    before = dump(raw)
    for transaction in (True, False):
        with backend.sync_client().pipeline(transaction=transaction) as pipeline:
            with pytest.raises(BadArgument, match=r"^source="):
                Penstock(pipeline)
            with suppress(RedisClusterException):  # a cluster's pipeline can't be one
                pipeline.multi()
            with pytest.raises(BadArgument, match=r"^source="):
                Penstock(pipeline)
    assert dump(raw) == before


def test_scripts_do_not_block_in_a_transaction(real_q: Queue, real_raw: Raw) -> None:
    """R-22: push and pop inside MULTI answer at once; without messages the answer is empty."""
    load_scripts(real_raw)
    real_q.enqueue(b"make it")
    real_q.ack(real_q.reserve(block=0))

    def call(name: str, *args: Any) -> tuple[Any, ...]:
        keys = clock.keys_of(real_q.ops.keys, script(name))
        return ("EVALSHA", script(name).sha, len(keys), *keys, *args)

    start = time.monotonic()
    with real_raw.pipeline(transaction=True) as pipeline:
        pipeline.execute_command(*call("reserve", 1, 5, 2748, "me", 0, ""))
        pipeline.execute_command(
            *call("enqueue", 2, clock.PRODUCER, "", 0, "", 0, "", b"1\nx", b"1\ny")
        )
        pipeline.execute_command(*call("reserve", 3, 5, 2748, "me", 1, ""))
        nothing, pushed, popped = pipeline.execute()
    assert time.monotonic() - start < PATIENCE
    assert (nothing[:3], len(nothing)) == ([Code.LANE, b"1", -1], 6)
    assert (pushed[0], pushed[3]) == (Code.LANE, 2)
    assert popped[7::2] == [b"1\nx", b"1\ny"]
    assert real_q.stats().active == 2


def test_no_script_has_a_blocking_command() -> None:
    """R-22: the client waits, on a separate connection and outside of scripts."""
    for one in all_scripts():
        called = set(re.findall(r"call\('(\w+)'", one.source))
        assert called, one.name
        assert not {name for name in called if name.startswith(("B", "W")) or name == "XREAD"}


# -- throughput ---------------------------------------------------------------------


@pytest.mark.parametrize("count", [100, 1000])
def test_a_hundred_messages_take_one_call(q: Queue, sent: list[str], count: int) -> None:
    """R-23: push, pop and ack of 100, and of 1,000, are one script each."""
    known(q)
    for _ in range(2):
        sent.clear()
        q.enqueue_many([b"x" * 100] * count)
        jobs = q.reserve(count)
        assert q.ack(jobs).done == len(jobs) == count
        scripts = [name for name in sent if name != "HGET"]  # which may be due on a slow machine
        assert scripts == ["enqueue", "reserve", "ack"]


def test_a_batch_is_acked_and_followed_in_one_call(q: Queue, sent: list[str]) -> None:
    """R-23: the ack of 100 and the pop of the next 100 are one script."""
    known(q)
    q.enqueue_many([b"x" * 100] * 400)
    jobs = q.ack_and_reserve(q.reserve(100), 100)[1]
    sent.clear()
    for _ in range(2):
        outcome, jobs = q.ack_and_reserve(jobs, 100)
        assert (outcome.done, len(jobs)) == (100, 100)
    assert sent == ["settle", "settle"]


def known(q: Queue) -> None:
    """Make the queue, and load the scripts."""
    q.enqueue(b"x")
    q.ack(q.reserve(block=0))
    q.ack_and_reserve([], 1)
