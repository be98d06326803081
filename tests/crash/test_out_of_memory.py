"""A server at maxmemory refuses new jobs, but its queues can be drained."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import redis

from penstock import Dedup, Outcome, OutOfMemory, Penstock, Queue, ResultGone, ResultTimeout
from penstock.client._sync.client import twin_of
from penstock.core.calls.call import Call
from penstock.core.calls.operations.consuming import JobsOfStep
from penstock.core.enqueuing.schedules import check_spec, new_schedule
from penstock.core.jobs.emission import ToldEntry
from penstock.core.jobs.job import set_result
from penstock.core.jobs.results import results_of
from penstock.embedded import EmbeddedServer, ServerBinary
from penstock.spark.calls import Staged, about_batch, about_staged, staged_chunk
from penstock.wire.scripts import all_scripts
from tests.support.binaries import chosen_binaries
from tests.support.keyspace import advance, check_invariant, dump, evalshas, load_scripts
from tests.support.twins import spawn
from tests.support.workers import until

BINARIES = chosen_binaries()
DONE = [Outcome.DONE]
STAGED = Staged("node", "loader", 0)


@pytest.fixture(scope="module", params=BINARIES, ids=lambda binary: binary.name)
def small_server(request: pytest.FixtureRequest) -> Iterator[EmbeddedServer]:
    """A server that never evicts, for each installed version."""
    binary: ServerBinary = request.param
    with EmbeddedServer(binary, args=("--maxmemory-policy", "noeviction")) as server:
        yield server


@pytest.fixture
def raw(small_server: EmbeddedServer) -> Iterator[redis.Redis]:
    """A plain client of an empty server."""
    with redis.Redis.from_url(small_server.url) as client:
        client.config_set("maxmemory", 0)
        client.flushall()
        load_scripts(client)
        yield client
        client.config_set("maxmemory", 0)


@pytest.fixture
def client(small_server: EmbeddedServer, raw: redis.Redis) -> Iterator[Penstock]:
    """A client that evicts no jobs."""
    with Penstock(small_server.url, evict=False) as made:
        yield made


@pytest.fixture
def evicting(small_server: EmbeddedServer, raw: redis.Redis) -> Iterator[Penstock]:
    """A client with default settings."""
    with Penstock(small_server.url) as made:
        yield made


@pytest.fixture
def queue(client: Penstock, raw: redis.Redis) -> Queue:
    """A queue with jobs in every state, all of whose structures have been used."""
    made = client.queue("full")
    made.configure(max_length=1000, backoff_base=1)
    made.enqueue_many([b"dead"] * 3)
    made.bury(made.reserve(3, block=0), "for the test")
    made.enqueue_many([b"once"] * 2, lease=0, ttl=3600)
    made.reserve(2, block=0)
    made.enqueue_many([b"back"] * 3)
    made.nack(made.reserve(3, block=0), delay=3600)
    made.enqueue_many([b"again"] * 3)
    made.release(made.reserve(3, block=0))
    made.enqueue_many([b"ttl"] * 3, ttl=7200)
    made.enqueue_many([b"later"] * 3, delay=60, ttl=7200)
    made.enqueue_many([b"plain"] * 20)
    made.enqueue(b"named", dedup=Dedup("a", window=60))
    made.schedules.add("hourly", every=3600, job=b"hourly")
    declared = new_schedule("hourly", b"hourly", check_spec(every=3600), None, "shop")
    _ran(made, made.ops.schedule(declared, 0))
    made.batch(then=b"callback").__enter__().enqueue(b"member")
    return made


@contextmanager
def no_memory(raw: redis.Redis) -> Iterator[None]:
    """Fill the server's memory."""
    raw.config_set("maxmemory", 1)
    try:
        with pytest.raises(redis.exceptions.ResponseError, match="maxmemory"):
            raw.set("more", "than there is room for")
        yield
    finally:
        raw.config_set("maxmemory", 0)


@pytest.mark.parametrize(
    "options", [{}, {"delay": 60}, {"ttl": 60}, {"lease": 0}, {"dedup_id": "b"}], ids=str
)
def test_enqueue_is_refused(options: dict[str, Any], queue: Queue, raw: redis.Redis) -> None:
    """The producer gets a typed error, and no key changes."""
    queue.stats()
    before = dump(raw)
    with no_memory(raw):
        for bodies in ([b"1"], [b"1", b"2", b"3"]):
            with pytest.raises(OutOfMemory):
                queue.enqueue_many(bodies, **options)
        with pytest.raises(OutOfMemory):
            queue.enqueue(b"1", **options)
        assert dump(raw) == before
    queue.enqueue(b"1", **options)
    check_invariant(raw)


def test_enqueue_to_a_new_queue_is_refused(
    client: Penstock, queue: Queue, raw: redis.Redis
) -> None:
    """A new queue is not partly created."""
    before = dump(raw)
    with no_memory(raw):
        with pytest.raises(OutOfMemory):
            client.queue("new").enqueue(b"1")
        assert dump(raw) == before
    assert client.queues() == ["full"]


def _ran(queue: Queue, call: Call[Any]) -> Any:
    return queue.route.node.executor.run(call)


def _staged(queue: Queue, field: str) -> Call[Any]:
    chunk = staged_chunk(0, [b"1;d=one\n1", b"1;d=two\n2"])
    return about_staged(queue.ops, "stage", STAGED, 0, field, 60_000, chunk)


def _published(queue: Queue) -> Call[Any]:
    return about_staged(queue.ops, "publish", STAGED, "", "", 0, "", "a:0", 1000)


@pytest.mark.parametrize("script", ["ack", "settle"])
def test_the_state_of_a_result_is_kept(script: str, queue: Queue, raw: redis.Redis) -> None:
    """An ack whose values find no room is done; its states are kept, and tell why."""
    queue.purge("ready", "scheduled")
    jobs = queue.enqueue_many([b"1", b"2"], result_ttl=60)
    taken = queue.reserve(2, block=0)
    assert {job.id for job in taken} == set(jobs.ids)
    for job in taken:
        set_result(job, (b"123", ""))
    text = results_of(taken, [0.5, 0.5])
    with no_memory(raw):
        if script == "ack":
            assert _ran(queue, queue.ops.ack(taken, results=text)).all_done
        else:
            assert _ran(queue, queue.ops.settle(taken, 1, results=text)).outcomes.all_done
    for job in jobs:
        with pytest.raises(ResultGone, match="the server's memory was full"):
            job.result(timeout=0)
    check_invariant(raw)


@pytest.mark.parametrize("script", ["ack", "settle", "hand_over"])
def test_the_place_of_a_value_is_kept(script: str, queue: Queue, raw: redis.Redis) -> None:
    """A job of a batch whose value finds no room is done; reading it tells why."""
    queue.purge("ready", "scheduled")
    with queue.batch(then=b"sum", results=True) as batch:
        batch.enqueue_many([b"1", b"2"])
    taken = queue.reserve(2, block=0)
    for job in taken:
        set_result(job, (b"123", ""))
    text, last = results_of(taken[:1], [0.5]), results_of(taken[1:], [0.5])
    with no_memory(raw):
        if script == "ack":
            assert _ran(queue, queue.ops.ack(taken[:1], results=text)).all_done
        elif script == "settle":
            assert _ran(queue, queue.ops.settle(taken[:1], 1, results=text)).outcomes.all_done
        else:
            follow = [(0, b"1\nnext")]
            assert _ran(queue, queue.ops.hand_over(taken[:1], follow, results=text)).all_done
            [job] = queue.reserve(1, block=0)
            set_result(job, (b"4", ""))
            assert _ran(queue, queue.ops.ack([job], results=results_of([job], [0.5]))).all_done
        assert _ran(queue, queue.ops.ack(taken[1:], results=last)).all_done
    found = queue.batches.results(batch.id, return_exceptions=True)
    assert ["the server's memory was full" in str(one) for one in found] == [True, True]
    check_invariant(raw)


@pytest.mark.parametrize("script", ["ack", "settle", "hand_over"])
def test_a_result_beside_a_value_finds_no_room(script: str, queue: Queue, raw: redis.Redis) -> None:
    """A member whose result is kept besides leaves its state alone, as any job does."""
    queue.purge("ready", "scheduled")
    with queue.batch(then=b"sum", results=True) as batch:
        job = batch.enqueue(b"1", result_ttl=60)
    taken = queue.reserve(1, block=0)
    set_result(taken[0], (b'"%b"' % (b"x" * 60_000), ""))
    text = results_of(taken, [0.5])
    with no_memory(raw):
        if script == "ack":
            assert _ran(queue, queue.ops.ack(taken, results=text)).all_done
        elif script == "settle":
            assert _ran(queue, queue.ops.settle(taken, 1, results=text)).outcomes.all_done
        else:
            assert _ran(queue, queue.ops.hand_over(taken, [(0, b"1\nnext")], results=text)).all_done
    with pytest.raises(ResultGone, match="the server's memory was full"):
        queue.result(job.id, timeout=0)
    check_invariant(raw)


def test_staging_is_refused(queue: Queue, raw: redis.Redis) -> None:
    """Neither staging, nor promising, nor publishing is done in part."""
    steps = [
        _staged(queue, "a:1"),
        about_staged(queue.ops, "commit", STAGED, 0, 60_000, 2, "a", 2),
        _published(queue),
    ]
    _ran(queue, _staged(queue, "a:0"))
    for step in steps:
        queue.stats()
        before = dump(raw)
        with no_memory(raw):
            with pytest.raises(OutOfMemory):
                _ran(queue, step)
            assert dump(raw) == before
        assert _ran(queue, step).code == 1
    check_invariant(raw)


def _one(queue: Queue) -> Any:
    (job,) = queue.reserve(1, block=0)
    return job


def _reserve(queue: Queue) -> None:
    assert len(queue.reserve(5, block=0)) == 5


def _ack(queue: Queue) -> None:
    assert list(queue.ack([_one(queue)])) == DONE
    assert list(queue.ack([queue.peek(1)[0].id])) == DONE


def _hand_over(queue: Queue) -> None:
    records = [(0, b"1;c=json\n1"), (60_000, b"1\n" + b"x" * 60_000)]
    before, job = queue.stats(), _one(queue)
    for outcome in (Outcome.DONE, Outcome.GONE):
        assert [*_ran(queue, queue.ops.hand_over([job], records))] == [outcome]
    after = queue.stats()
    assert (after.acked, after.enqueued) == (before.acked + 1, before.enqueued + 2)


def _close_batch(queue: Queue) -> None:
    (batch,) = queue.batches.list()
    closed = queue.batches.close(batch.id)
    while closed is not None and closed.state == "waiting":
        assert list(queue.ack([_one(queue)])) == DONE
        closed = queue.batches.get(batch.id)
    assert closed is not None
    assert closed.state == "called"


def _list_batches(queue: Queue) -> None:
    (batch,) = queue.batches.list()
    assert (batch.state, batch.total) == ("open", 1)
    assert _ran(queue, queue.ops.batch_failures(batch.id, 0)) == (0, [])


def _settle(queue: Queue) -> None:
    outcomes, jobs = queue.ack_and_reserve([_one(queue)], 3)
    assert (list(outcomes), len(jobs)) == (DONE, 3)


def _nack(queue: Queue) -> None:
    assert list(queue.nack([_one(queue)], error="no")) == DONE
    assert list(queue.nack([_one(queue)], delay=0)) == DONE


def _release(queue: Queue) -> None:
    assert list(queue.release([_one(queue)])) == DONE
    assert list(queue.release([_one(queue)], delay=5)) == DONE


def _bury(queue: Queue) -> None:
    assert list(queue.bury([_one(queue)], "bad")) == DONE
    assert list(queue.bury([queue.peek(1)[0].id], "never seen")) == DONE


def _extend(queue: Queue) -> None:
    assert queue.extend([_one(queue)], 60).seconds_left == [60.0]


def _redrive(queue: Queue) -> None:
    assert queue.redrive(limit=1) == 1
    assert queue.redrive() == 2


def _cancel(queue: Queue) -> None:
    assert list(queue.cancel([_one(queue)])) == [Outcome.CANCELLED]
    assert list(queue.cancel([queue.peek(1)[0].id])) == DONE


def _beat(queue: Queue) -> None:
    job = _one(queue)
    job.progress(1, 2)
    assert job.send_progress()


def _note(queue: Queue) -> None:
    job = _one(queue)
    assert _ran(queue, queue.ops.note(job, 1, "stock", b'"blue"')).outcome == 1
    assert _ran(queue, queue.ops.read_notes(job)).outcome == 1
    assert _ran(queue, queue.ops.suspend([job], 2, "a day", 86_400_000)) == DONE


def _call_jobs(queue: Queue) -> None:
    records = [(0, b"1;c=json\n1"), (60_000, b"1\n" + b"x" * 60_000)]
    step, before = JobsOfStep(1, "stock", 2, (1, 2), "-"), queue.stats()
    assert [*_ran(queue, queue.ops.call_jobs(_one(queue), step, records))] == DONE
    after = queue.stats()
    assert (after.released, after.enqueued) == (before.released + 1, before.enqueued + 2)


def _emit(queue: Queue) -> None:
    job, chunk = _one(queue), "x" * 60_000
    told = [ToldEntry("p", 1, "1 2 half", 8), ToldEntry("t", 2, chunk, len(chunk))]
    reply = _ran(queue, queue.ops.emit(job, 60_000, told))
    assert (reply.outcome, reply.kept) == (1, -1)
    looked = _ran(queue, queue.ops.watch(job.id, b"0-0", awaited=False))
    assert looked.progress is not None
    assert not looked.entries


def _watch(queue: Queue) -> None:
    job = _one(queue)
    for awaited in (False, True):
        looked = _ran(queue, queue.ops.watch(job.id, b"0-0", awaited=awaited))
        assert (looked.state, bool(looked.last)) == ("active", awaited)
    assert _ran(queue, queue.ops.emit(job, 0, [])).watched == 1


def _signal(queue: Queue) -> None:
    job, other = _one(queue), _one(queue)
    assert _ran(queue, queue.ops.suspend([job], 0, "approval", 86_400_000)) == DONE
    for one in (job, other, queue.peek(1, state="ready")[0]):
        assert queue.signal(one.id, "approval", "x" * 60_000)


def _delete(queue: Queue) -> None:
    for state in ("ready", "scheduled", "active", "dead"):
        assert list(queue.delete([queue.peek(1, state=state)[0].id])) == DONE


def _purge(queue: Queue) -> None:
    def count() -> int:
        stats = queue.stats()
        number: int = getattr(stats, state)
        return number - stats.dependent if state == "scheduled" else number

    for state in ("scheduled", "dependent", "active", "ready", "dead"):
        before = count()
        assert queue.purge(state) == before > 0
        assert count() == 0


def _sweep(queue: Queue) -> None:
    queue.configure(dead_max=1)
    assert queue.sweep() == 2


def _configure(queue: Queue) -> None:
    assert queue.configure(max_length=5, dead_max=50).max_length == 5
    assert queue.configure(max_length=None).max_length is None
    for side in ("in", "all", "out"):
        queue.pause(side)
    assert queue.reserve(1, block=0) == []
    queue.resume()
    assert queue.reserve(1, block=0)


def _peek(queue: Queue) -> None:
    assert len(queue.peek(5)) == 5


def _show(queue: Queue) -> None:
    view = queue.peek(1)[0]
    shown = queue.show(view.id)
    assert shown is not None
    assert replace(shown, now=view.now) == view


def _browse(queue: Queue) -> None:
    assert len(queue.jobs("dead").page().jobs) == 3


def _stats(queue: Queue) -> None:
    assert queue.stats().dead == 3


def _promote(queue: Queue) -> None:
    assert list(queue.promote([queue.peek(1, state="scheduled")[0].id])) == DONE
    assert list(queue.promote([_one(queue).id])) == DONE


def _dequeue(queue: Queue) -> None:
    assert list(queue.postpone([queue.peek(1)[0].id])) == DONE
    assert list(queue.postpone([queue.peek(1, newest=True)[0].id])) == DONE


def _withdraw(queue: Queue) -> None:
    assert list(queue.delete([queue.peek(1, newest=True)[0].id], if_undelivered=True)) == DONE


def _recover(queue: Queue) -> None:
    queue.reserve(2, block=0)
    assert len(queue.recover(2, idle=0)) == 2


def _evict(queue: Queue) -> None:
    assert queue.sweep(evict=1) == 1


def _scan(queue: Queue) -> None:
    assert len(list(queue.jobs(n=7))) > 20


def _status(queue: Queue) -> None:
    assert queue.dedup_status("unknown") is None


def _take_roles(queue: Queue) -> None:
    with queue.exclusive("consumer", block=0) as consumer:
        (job,) = consumer.queue.reserve(block=0)
        assert job.release(delay=60)
    with queue.exclusive("producer", block=0) as producer:
        with pytest.raises(OutOfMemory):
            producer.queue.enqueue(b"no room")
        assert producer.extend() > 0
        assert not producer.lost


def _survey(queue: Queue) -> None:
    reply = _ran(queue, queue.ops.call("survey", "", "ready", "", "", 1000, 2))
    assert len(reply.jobs) // 2 > 20


def _assign(queue: Queue) -> None:
    ops, consumer = queue.ops, secrets.token_hex(8)
    fence, jobs = "", 0
    while jobs < 5:
        args = (fence, 1, 5, 5, 0xABC, ops.owner_name, 60_000)
        reply = _ran(queue, about_batch(ops, "assign", consumer, *args))
        fence, epoch = reply.fence.decode(), reply.epoch.decode()
        assert reply.jobs > jobs
        jobs = reply.jobs
    entries = _ran(queue, about_batch(ops, "assigned", consumer, fence, 1, 0, 10)).receipts
    assert len(entries) == 5
    assert len(_ran(queue, about_batch(ops, "fetch", consumer, 1, 0, 10, 2)).jobs) == 5 * 4
    for number, receipt in (entry.split(b" ") for entry in entries):
        assert _ran(queue, ops.call("ack", epoch, receipt, "", number)).acked == 1
    assert _ran(queue, about_batch(ops, "dismiss", consumer, fence, 1)).jobs == 5


def _unstage(queue: Queue) -> None:
    assert _ran(queue, about_staged(queue.ops, "unstage", STAGED, 0, "")).code == 1


def _retime(queue: Queue) -> None:
    for place in ("active", "once", "scheduled", "dead", "expiry"):
        assert _ran(queue, queue.ops.call("retime", place, 0, 10**12, 1)).found == 0


def _results(queue: Queue) -> None:
    with pytest.raises(ResultTimeout):
        queue.result(queue.peek(1)[0].id, timeout=0)


def _schedules(queue: Queue) -> None:
    assert [one.name for one in queue.schedules.list()] == ["hourly"]
    with pytest.raises(OutOfMemory):
        queue.schedules.add("daily", every="1d", job=b"daily")
    with pytest.raises(OutOfMemory):
        queue.schedules.run("hourly")
    assert queue.schedules.list()[0].runs == 0


def _measure(queue: Queue) -> None:
    assert _ran(queue, queue.ops.measure(["mail", "0.1", "1.1"])).code == 1
    assert queue.history().handlers


def _hold(queue: Queue) -> None:
    assert queue.hold(60)
    assert queue.stats().held
    assert queue.hold(0)


def _pause_schedule(queue: Queue) -> None:
    queue.schedules.pause("hourly")
    assert queue.schedules.list()[0].paused
    queue.schedules.resume("hourly")


def _keep_schedules(queue: Queue) -> None:
    reply = _ran(queue, queue.ops.keep_schedules(["hourly", "none"]))
    assert [*reply.codes] == [1, 0]


def _orphan_schedules(queue: Queue) -> None:
    [found] = queue.schedules.list()  # without an app after the resume
    reply = _ran(queue, queue.ops.orphan_schedules("shop", 1, ["hourly"]))
    assert reply.done == (1 if found.app else 0)
    queue.schedules.resume("hourly")


def _unschedule(queue: Queue) -> None:
    assert queue.schedules.remove("hourly") or not queue.schedules.list()


WORKING: dict[str, Callable[[Queue], None]] = {
    "reserve": _reserve, "hand_over": _hand_over,
    "close_batch": _close_batch, "list_batches": _list_batches, "read_batch": _list_batches,
    "ack": _ack, "settle": _settle, "nack": _nack, "release": _release,
    "bury": _bury, "extend": _extend, "redrive": _redrive, "delete": _delete, "purge": _purge,
    "sweep": _sweep, "configure": _configure, "peek": _peek, "show": _show, "stats": _stats,
    "promote": _promote, "dequeue": _dequeue, "withdraw": _withdraw, "recover": _recover,
    "pending": _recover, "evict": _evict, "scan": _scan, "browse": _browse, "lookup": _status,
    "acquire": _take_roles, "resign": _take_roles, "survey": _survey, "unstage": _unstage,
    "assign": _assign, "assigned": _assign, "fetch": _assign, "dismiss": _assign,
    "retime": _retime, "results": _results, "cancel": _cancel, "beat": _beat,
    "call_jobs": _call_jobs, "emit": _emit, "watch": _watch,
    "note": _note, "read_notes": _note, "suspend": _note, "signal": _signal,
    "measure": _measure, "hold": _hold, "schedules": _schedules, "pause_schedule": _pause_schedule,
    "unschedule": _unschedule,
    "keep_schedules": _keep_schedules, "orphan_schedules": _orphan_schedules,
}  # fmt: skip


def test_every_script_is_tried() -> None:
    """Each script except those that add jobs, and `clear`, is among the tested ones.

    Fast lanes refuse this queue; tests/protocol/test_commands.py has one that they take.
    """
    refused = {"enqueue", "claim", "stage", "commit", "publish"}
    refused |= {"open_batch", "schedule", "tick"}
    assert {*WORKING, *refused, "clear"} == {found.name for found in all_scripts()}


def test_clearing_works(client: Penstock, queue: Queue, raw: redis.Redis) -> None:
    """`clear` removes a whole queue on a full server."""
    with no_memory(raw):
        assert queue.clear() > 30
        assert client.queues() == []
    check_invariant(raw)


@pytest.mark.parametrize("work", WORKING.values(), ids=WORKING)
def test_everything_else_works(
    work: Callable[[Queue], None], queue: Queue, raw: redis.Redis
) -> None:
    """Other scripts work on a full server as usual, in every state of the queue."""
    with no_memory(raw):
        work(queue)
        check_invariant(raw)
    advance(raw, queue.ops, 40)  # leases have ended, delayed jobs are due: other branches run
    queue.enqueue_many([b"more"] * 10, delay=60)
    queue.reserve(1, block=0)
    queue.bury([view.id for view in queue.peek(3)])
    with no_memory(raw):
        # These count the fixture's jobs.
        if work not in (_sweep, _purge, _redrive, _stats, _browse):
            work(queue)
        check_invariant(raw)


def test_a_new_client_drains_it(
    small_server: EmbeddedServer, queue: Queue, raw: redis.Redis
) -> None:
    """A new client on a full server drains a queue with every kind of job."""
    queue.delete([batch.id for batch in queue.batches.list()])
    advance(raw, queue.ops, 3601)
    living = queue.stats().ready + queue.stats().dead
    with no_memory(raw), Penstock(small_server.url) as late:
        mine = late.queue("full")
        assert mine.redrive() == 3
        drained = 0
        while jobs := mine.reserve(7, block=0):
            drained += mine.ack(jobs).done
        assert drained == living
        mine.sweep()
        stats = mine.stats()
        assert (stats.ready, stats.scheduled, stats.dead, stats.unswept) == (0, 0, 0, 0)
        keys = mine.ops.keys
        assert not raw.exists(*keys.of(("held", "active", "once", "scheduled", "dead", "tally")))
        assert raw.xlen(keys["ready"]) == 0
        check_invariant(raw)


@pytest.mark.parametrize("is_paused", [False, True], ids=["empty", "paused"])
def test_an_idle_consumer_stays_idle(is_paused: bool, client: Penstock, raw: redis.Redis) -> None:
    """A waiting consumer on a full server neither fails nor spins, and gets due jobs."""
    queue = client.queue("idle")
    queue.enqueue(b"1", delay=1)
    if is_paused:
        queue.pause("out")
    with no_memory(raw):
        before = evalshas(raw)
        jobs = queue.reserve(1, block=2)
        assert evalshas(raw) - before < 10
    assert [job.body for job in jobs] == ([] if is_paused else [b"1"])


def test_a_waiting_consumer_is_woken(small_server: EmbeddedServer, client: Penstock) -> None:
    """A job that becomes ready on a full server wakes a waiting consumer."""
    queue = client.queue("wake")
    queue.enqueue(b"1")
    (job,) = queue.reserve(1, block=0)
    with redis.Redis.from_url(small_server.url) as raw, no_memory(raw):
        work = spawn(lambda: queue.reserve(1, block=10))
        until(lambda: raw.info("clients")["blocked_clients"] == 1)
        assert queue.nack([job], delay=0)
        (again,) = work.result()
        assert (again.body, again.nacks) == (b"1", 1)


def test_a_waiting_producer_of_a_full_server_is_refused(client: Penstock, raw: redis.Redis) -> None:
    """A producer that would wait for room does not wait for the server's memory."""
    queue = client.queue("bounded")
    queue.configure(max_length=1)
    queue.enqueue(b"1")
    work = spawn(lambda: queue.enqueue(b"2", block=10))
    until(lambda: raw.info("clients")["blocked_clients"] == 1)
    with no_memory(raw):
        queue.ack(queue.reserve(1, block=0))
        with pytest.raises(OutOfMemory):
            work.result()
    check_invariant(raw)


# -- making room -------------------------------------------------------------------------------

LARGE = b"x" * 40_000


@contextmanager
def lacking(raw: redis.Redis, mebibytes: float) -> Iterator[None]:
    """Leave the server this many bytes short."""
    used = raw.info("memory")["used_memory"]
    raw.config_set("maxmemory", int(used - mebibytes * (1 << 20)))
    try:
        yield
    finally:
        raw.config_set("maxmemory", 0)


def crowded(client: Penstock) -> Queue:
    """300 delivered lease-0 jobs of 40 KB, and small jobs of every other kind."""
    queue = client.queue("crowded")
    queue.enqueue_many([LARGE] * 300, lease=0, ttl=3600)
    assert sum(len(queue.reserve(100, block=0)) for _ in range(12)) == 300
    queue.enqueue_many([b"dead", b"held"])
    dead, _ = queue.reserve(2, block=0)
    dead.bury()
    queue.enqueue(b"not delivered", lease=0, ttl=3600)
    queue.enqueue(b"waits")
    queue.enqueue(b"later", delay=60)
    return queue


@pytest.mark.parametrize(
    "options", [{}, {"delay": 60}, {"dedup_id": "b"}, {"block": 5}, {"max_length": 9}], ids=str
)
def test_an_enqueue_makes_room(
    options: dict[str, Any], evicting: Penstock, raw: redis.Redis
) -> None:
    """Enqueue evicts delivered lease-0 jobs, a hundred at first, and then adds its job."""
    queue = crowded(evicting)
    before = queue.stats()
    with lacking(raw, 1):
        assert queue.enqueue(b"new", **options)
    stats = queue.stats()
    assert stats.evicted == 100
    assert stats.active == before.active - 100
    assert stats.enqueued == before.enqueued + 1
    assert (stats.dead, stats.ready + stats.scheduled) == (1, before.ready + before.scheduled + 1)
    check_invariant(raw)


def test_a_bulk_makes_room(evicting: Penstock, raw: redis.Redis) -> None:
    """Each time the server refuses, twice as many jobs are evicted."""
    queue = crowded(evicting)
    with lacking(raw, 6):
        assert len(queue.enqueue_many([b"new"] * 50)) == 50
    assert queue.stats().evicted == 300
    check_invariant(raw)


def test_an_enqueue_without_evictable_jobs_is_refused(evicting: Penstock, raw: redis.Redis) -> None:
    """Without delivered lease-0 jobs the enqueue is refused; other jobs stay."""
    queue = crowded(evicting)
    with no_memory(raw), pytest.raises(OutOfMemory):
        queue.enqueue(b"new")
    stats = queue.stats()
    assert (stats.evicted, stats.active, stats.dead) == (300, 1, 1)
    assert (stats.ready, stats.scheduled, stats.enqueued) == (2, 1, 305)
    check_invariant(raw)


def test_a_client_with_evict_false(client: Penstock, raw: redis.Redis) -> None:
    """With evict=False the first refusal is raised, and no job is removed."""
    queue = crowded(client)
    before = dump(raw)
    with lacking(raw, 1):
        with pytest.raises(OutOfMemory):
            queue.enqueue(b"new")
        with pytest.raises(OutOfMemory):
            queue.enqueue_many([b"new"])
    assert dump(raw) == before
    assert not twin_of(client).topology.config.evict


def test_an_evicted_job_is_gone_for_its_holder(evicting: Penstock, raw: redis.Redis) -> None:
    """A late ack of an evicted job changes nothing and reports it gone."""
    queue = evicting.queue("late")
    queue.enqueue(LARGE, lease=0, ttl=3600)
    (job,) = queue.reserve(block=0)
    with no_memory(raw), pytest.raises(OutOfMemory):
        queue.enqueue(b"new")
    assert list(queue.ack([job])) == [Outcome.GONE]
    assert queue.stats().evicted == 1


def test_unused_queues_make_room(evicting: Penstock, raw: redis.Redis) -> None:
    """If no job can be evicted, queues unused for ten minutes are removed."""
    for number in range(10):
        used = evicting.queue(f"used {number}")
        used.enqueue(b"only")
        used.ack(used.reserve(block=0))
        advance(raw, used.ops, 660)
    with no_memory(raw), pytest.raises(OutOfMemory):
        evicting.queue("new").enqueue(b"new")
    assert evicting.queues() == []
    assert not [key for key in raw.scan_iter() if key.endswith((b":meta", b":ready"))]
