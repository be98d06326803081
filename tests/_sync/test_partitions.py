# From tests/_async/test_partitions.py by tools/unasync.py; do not edit.
"""Partitioned queues: the partition of each job, the order of delivery, and calls for the whole."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    BadArgument,
    ConfigurationError,
    Done,
    Handlers,
    IncompleteEnqueue,
    Job,
    Outcome,
    Penstock,
    Queue,
    QueueClosed,
    QueueFull,
    QueuePartitioned,
    Worker,
    WrongQueue,
    parse_id,
)
from penstock.client._sync.client import twin_of
from penstock.core.jobs.record import key_hash
from penstock.core.values.partitions import partition_of
from penstock.wire.keys import (
    SLOT_COUNT,
    QueueKeys,
    key_slot,
    partition_name,
    queue_crc,
    registry_key,
)
from tests.protocol.vectors import placed
from tests.support.backends import Backend
from tests.support.keyspace import Raw, check_invariant, method_of
from tests.support.twins import spawn, wait_for

COUNT = 4
VECTORS = Path(__file__).parents[1] / "vectors" / "partitions.json"
CRCS = {queue_crc(partition_name("q", number)): number for number in range(COUNT)}


@pytest.fixture
def backend(brief_backend: Backend) -> Backend:
    """Use two back ends, as partitions have no scripts of their own."""
    return brief_backend


@pytest.fixture
def q(ps: Penstock, raw: Raw) -> Iterator[Queue]:
    """A queue in four partitions; the layout of its keys is checked at the end."""
    yield ps.queue("q", partitions=COUNT)
    check_invariant(raw)


def partition(job_id: str) -> int:
    """Return the partition of a job, from its id."""
    return CRCS[parse_id(job_id).crc]


def spread(ids: Any) -> Counter[int]:
    """Count the jobs of each partition."""
    return Counter(partition(one) for one in ids)


# -- where jobs go ---------------------------------------------------------------------------


def test_jobs_are_spread(q: Queue) -> None:
    """Jobs go to the partitions in turn; the id has the partition."""
    ids = [q.enqueue(number).id for number in range(8)]
    assert spread(ids) == {0: 2, 1: 2, 2: 2, 3: 2}
    assert [partition(one) for one in ids[:4]] == [partition(one) for one in ids[4:]]


def test_a_chunk_is_in_one_partition(q: Queue) -> None:
    """Chunks of a bulk go to the partitions in turn: each is one trip, all or nothing."""
    many = q.enqueue_many(range(3500))
    assert sorted(spread(many.ids).values()) == [500, 1000, 1000, 1000]
    assert q.stats().ready == 3500


def test_a_key_chooses(q: Queue) -> None:
    """A key chooses the partition by a checksum that every language has."""
    for key in ("ada", "eve", "ü", "user:17"):
        done = q.enqueue(1, key=key)
        assert partition(done.id) == partition_of(key, COUNT)
    assert partition_of("123456789", 1000) == 0xCBF43926 % 1000


def test_a_bulk_by_keys(q: Queue) -> None:
    """In a bulk each body goes to the partition of its key; results keep the order
    of the bodies.
    """
    bodies = [[f"user:{number % 7}", number] for number in range(5000)]
    many = q.enqueue_many(bodies, key=lambda body: str(body[0]))
    assert len(many) == 5000
    assert [partition(one) for one in many.ids] == [partition_of(b[0], COUNT) for b in bodies]
    last = q.show(many.ids[-1])
    assert last is not None
    assert last.body == ["user:1", 4999]


def test_one_key_for_a_whole_bulk(q: Queue) -> None:
    """A str as key applies to all jobs of a bulk."""
    many = q.enqueue_many(range(10), key="ada")
    assert spread(many.ids) == {partition_of("ada", COUNT): 10}


def test_a_dedup_id_is_one_in_the_whole_queue(q: Queue) -> None:
    """A dedup id chooses the partition, so duplicates are found; in a bulk too."""
    first = q.enqueue("a", dedup_id="x")
    again = q.enqueue("b", dedup_id="x")
    many = q.enqueue_many(["x", "y", "x", "z"], dedup_id=str)
    assert again.duplicate
    assert {again.id, many[0].id, many[2].id} == {first.id}
    assert [one.duplicate for one in many] == [True, False, True, False]
    status = q.dedup_status("y")
    assert status is not None
    assert status.job is not None
    assert status.job.id == many[1].id
    assert q.dedup_status("unknown") is None


def test_with_a_key_a_dedup_id_is_one_in_its_partition(q: Queue) -> None:
    """A key overrides the dedup id, which is then unique within its partition."""
    keys = {partition_of(key, COUNT): key for key in "abcdefgh"}
    ids = {q.enqueue(1, dedup_id="x", key=key).id for key in keys.values()}
    assert len(ids) == len(keys) > 1
    again = q.enqueue(1, dedup_id="x", key=keys[0])
    assert again.duplicate


@pytest.mark.parametrize("key", ["", "x" * 1025, 5, b"ada", "\ud800"])
def test_invalid_keys(ps: Penstock, q: Queue, raw: Raw, key: Any) -> None:
    """A bad key is refused before anything is written, with and without partitions."""
    for queue in (q, ps.queue("ordinary")):
        with pytest.raises(BadArgument, match="key="):
            queue.enqueue(1, key=key)
        with pytest.raises(BadArgument, match="key="):
            queue.enqueue_many([1], key=key)
    with pytest.raises(BadArgument, match="key="):
        q.enqueue_many([1], key=lambda _: key)
    assert not raw.keys("*:ready")


def test_an_ordinary_queue_takes_keys(ps: Penstock) -> None:
    """A queue without partitions accepts keys too."""
    queue = ps.queue("ordinary")
    queue.enqueue(1, key="ada")
    queue.enqueue_many([2, 3], key=str)
    assert [job.body for job in queue.reserve(10)] == [1, 2, 3]


def test_the_vectors_of_partitions() -> None:
    """The vectors fix names, keys, slots and checksums of partitions for other languages."""
    vectors = placed(json.loads(VECTORS.read_text()), 0)
    for one in vectors["names"]:
        keys = QueueKeys(one["name"], one["prefix"], one["partition"])
        assert keys["ready"].decode() == one["ready"]
        assert key_slot(keys["ready"]) == one["slot"]
        assert f"{queue_crc(keys.name):08x}" == one["crc32"]
        assert keys.name == one["wire_name"]
    letters = [partition_name("", number)[-3:] for number in range(256)]
    assert vectors["letters"].split() == letters
    for one in vectors["keys"]:
        assert partition_of(one["key"], one["partitions"]) == one["partition"]


# -- in which order they come ----------------------------------------------------------------


def test_jobs_of_a_key_come_in_order(q: Queue) -> None:
    """Jobs of one key are delivered in order, whatever other keys do and whatever the batches."""
    bodies = [[f"user:{number % 5}", number] for number in range(300)]
    q.enqueue_many(bodies[:150], key=lambda body: str(body[0]))
    for body in bodies[150:]:
        q.enqueue(body, key=body[0])
    seen = defaultdict(list)
    while jobs := q.reserve(7, block=0):
        for job in jobs:
            seen[job.body[0]].append(job.body[1])
        q.ack(jobs)
    assert sum(map(len, seen.values())) == 300
    assert all(numbers == sorted(numbers) for numbers in seen.values())


def test_a_job_that_is_given_back_comes_first_again(q: Queue) -> None:
    """A released job, or one failed without a delay, comes before later jobs of its key."""
    for number in range(4):
        q.enqueue(number, key="ada")
    for settle in ("release", "nack"):
        [job] = q.reserve(1)
        getattr(job, settle)(delay=0)
        [again] = q.reserve(1)
        assert again.id == job.id
        again.ack()
    assert [job.body for job in q.reserve(10)] == [2, 3]


def test_all_partitions_have_their_turn(q: Queue) -> None:
    """A consumer of single jobs takes them from all partitions in turn while each has some."""
    keys = {partition_of(key, COUNT): key for key in "abcdefgh"}
    for key in keys.values():
        q.enqueue_many(range(20), key=key)
    taken = [q.reserve(1, block=0)[0].id for _ in range(40)]
    assert spread(taken) == {0: 10, 1: 10, 2: 10, 3: 10}


def test_a_busy_partition_hides_no_other(q: Queue) -> None:
    """An empty partition is checked again while another one always has jobs."""
    keys = {partition_of(key, COUNT): key for key in "abcdefgh"}
    q.enqueue_many(range(900), key=keys[0])
    for _ in range(5):
        q.reserve(1)
    late = q.enqueue("late", key=keys[3])
    found = []
    while late.id not in found:  # otherwise 900 rounds end in an IndexError
        found.append(q.reserve(1, block=0)[0].id)
    assert len(found) < 890


# -- what is of all of them ------------------------------------------------------------------


def test_the_queue_of_a_batch_waits_in_its_partition(q: Queue) -> None:
    """A settle through it takes no job of another partition, also when it waits for one."""
    with q.batch(then="end") as batch:
        for n in range(COUNT):
            q.enqueue(n)
        held = batch.queue.reserve(COUNT, block=0)
        outcomes, jobs = batch.queue.ack_and_reserve(held, COUNT, block=0.05)
        assert (list(outcomes), jobs) == ([Outcome.DONE], [])
    assert q.stats().ready == COUNT


def test_figures_cover_all_partitions(ps: Penstock, q: Queue) -> None:
    """Stats, peek, scan and the list of queues treat the partitions as one queue."""
    ids = [q.enqueue(number).id for number in range(10)]
    [job] = q.reserve(1)
    stats = q.stats()
    assert (stats.name, stats.partitions, stats.exists) == ("q", COUNT, True)
    assert (stats.ready, stats.active, stats.enqueued) == (9, 1, 10)
    waiting = sorted(set(ids) - {job.id})
    assert sorted(view.id for view in q.peek(10)) == waiting
    assert sorted([view.id for view in q.jobs(n=2)]) == sorted(ids)
    assert {view.queue for view in q.peek(10)} == {"q"}
    assert ps.queues() == ["q"]
    assert [one.name for one in ps.scan_queues_iter()] == ["q"]
    assert sorted([view.id for view in ps.jobs()]) == sorted(ids)
    assert ps.info().registered_jobs == 10


def test_a_callback_of_a_batch_is_listed_last(q: Queue) -> None:
    """It has no due time, so jobs of other partitions that have one come before it."""
    for number in range(COUNT):
        with q.batch(then=number) as batch:
            for delay in (60, 70):
                batch.enqueue(delay + number, delay=delay + number)
    due = [delay + number for delay in (60, 70) for number in range(COUNT)]
    bodies = [view.body for view in q.peek(20, state="scheduled")]
    assert (bodies[: 2 * COUNT], sorted(bodies[2 * COUNT :])) == (due, [*range(COUNT)])
    last = [view.body for view in q.peek(COUNT, state="scheduled", newest=True)]
    assert sorted(last) == [*range(COUNT)]


def test_parked_jobs_are_listed_by_key(q: Queue) -> None:
    """Also those of several partitions."""
    q.configure(per_key=1)
    keys = list("abcdef") * 3
    q.enqueue_many(keys, key=lambda body: body)
    parked = [view.body for view in q.peek(20, state="parked")]
    assert parked == [key for key in sorted("abcdef", key=key_hash) for _ in range(2)]


def test_settings_are_those_of_each(q: Queue) -> None:
    """`max_length` applies to each partition; a job without a key goes to one with room."""
    q.configure(max_length=2)
    for number in range(8):
        q.enqueue(number)
    with pytest.raises(QueueFull):
        q.enqueue(8)
    [job] = q.reserve(1)
    done = q.enqueue(8)
    assert partition(done.id) == partition(job.id)
    with pytest.raises(QueueFull):
        q.enqueue(9, key="ada")
    assert q.stats().settings.max_length == 2


def test_a_waiting_producer_gets_room(q: Queue) -> None:
    """A producer uses a partition with room at once, or waits until some partition has room."""
    q.configure(max_length=1)
    for number in range(COUNT - 1):
        q.enqueue(number)
    assert q.enqueue("with room", block=5).state == "ready"
    waiting = spawn(q.enqueue, "waits", block=20)
    for job in q.reserve(10):
        job.ack()
    assert waiting.result().state == "ready"


def test_a_pause_is_everywhere(q: Queue) -> None:
    """A pause stops deliveries from all partitions; its end wakes a waiting consumer."""
    for number in range(COUNT):
        q.enqueue(number)
    q.pause("out")
    assert q.reserve(1, block=0) == []
    waiting = spawn(q.reserve, 1, block=20)
    q.resume()
    assert len(waiting.result()) == 1


def test_close_purge_redrive(q: Queue) -> None:
    """Close, purge and redrive apply to every partition."""
    for number in range(8):
        q.enqueue(number)
    buried = q.reserve(5)
    assert q.bury(buried, "bad").all_done
    assert q.stats().dead == 5
    assert q.redrive(limit=2) == 2
    assert q.redrive() == 3
    assert q.purge() == 8
    q.close()
    with pytest.raises(QueueClosed):
        q.enqueue(1)
    with pytest.raises(QueueClosed):
        q.reserve(1)
    q.reopen()
    assert q.enqueue(1).state == "ready"


METHODS = ["ack", "nack", "release", "bury", "delete", "promote", "postpone", "withdraw", "extend"]


@pytest.mark.parametrize("method", METHODS)
def test_jobs_of_all_partitions_in_one_call(q: Queue, method: str) -> None:
    """One call settles jobs of all partitions, by id or delivery; outcomes keep the order."""
    waiting = [q.enqueue(number).id for number in range(COUNT)]
    if method in ("delete", "withdraw", "postpone"):
        assert list(method_of(q, method)(waiting)) == [Outcome.DONE] * COUNT
        return
    jobs = q.reserve(COUNT)
    assert len(jobs) == COUNT
    mixed = [jobs[0], jobs[1].id, jobs[2], jobs[3].id]
    settled = method_of(q, method)(mixed)
    assert list(settled) == [Outcome.DONE] * COUNT
    if method == "extend":
        assert all(29 < left <= 30 for left in settled.seconds_left)


def test_a_job_settles_itself(q: Queue) -> None:
    """A job object settles itself, and its queue is the partitioned queue."""
    q.enqueue("a")
    for job in q.consume(block=0.1):
        assert job.queue is q
        assert job.queue_name == "q"
        assert job.ack()
    assert q.stats().acked == 1


def test_another_client_settles_a_job(ps: Penstock, q: Queue) -> None:
    """A delivery has its partition, so any client can settle it."""
    for number in range(COUNT):
        q.enqueue(number)
    jobs = q.reserve(COUNT)
    with twin_of(ps) as other:
        assert other.open("q").ack(jobs).all_done


def test_an_id_of_another_queue(ps: Penstock, q: Queue) -> None:
    """An id of another queue is refused, and no key changes."""
    foreign = ps.queue("other").enqueue(1)
    with pytest.raises(WrongQueue):
        q.ack([foreign.id])


def test_recover_covers_all_partitions(q: Queue) -> None:
    """Deliveries are recovered from every partition."""
    for number in range(COUNT):
        q.enqueue(number)
    held = {job.id for job in q.reserve(COUNT)}
    assert {job.id for job in q.recover(10, idle=0)} == held


def test_a_partitioned_queue_refuses_roles(q: Queue) -> None:
    """A partitioned queue has no roles."""
    for role in ("producer", "consumer"):
        with pytest.raises(ConfigurationError, match="without partitions"):
            q.exclusive(role)


def test_a_job_in_any_partition_wakes_a_consumer(q: Queue) -> None:
    """An idle consumer waits for all partitions at once."""
    for key in {partition_of(key, COUNT): key for key in "abcdefgh"}.values():
        waiting = spawn(q.reserve, 1, block=20)
        done = q.enqueue("a", key=key)
        [job] = waiting.result()
        assert job.id == done.id
        job.ack()


def test_a_consumer_of_one_job_asks_each_partition_once(
    ps: Penstock, q: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partition that is asked first, alone, is not asked again with the others."""
    assert q.reserve(block=0) == []
    run, asked = ps.topology.executor.connections.run, list[bytes]()

    def note(call: Any, **options: Any) -> Any:
        asked.append(call.head[1])
        return run(call, **options)

    monkeypatch.setattr(ps.topology.executor.connections, "run", note)
    assert q.reserve(block=0) == []
    assert len(asked) == len(set(asked)) == COUNT


def test_a_mixed_call(ps: Penstock, q: Queue) -> None:
    """A call for several queues may include a partitioned one, at its place in the order."""
    q.enqueue_many(range(2), key="ada")
    q.enqueue(2, key="eve")
    ps.queue("later").enqueue("later")
    ps.queue("first").enqueue("first")
    jobs = ps.reserve(["first", "q", "later"], 10)
    assert [job.queue_name for job in jobs] == ["first", "q", "q", "q", "later"]


# -- how many there are ----------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 257, -1, 2.0, "4", True])
def test_invalid_numbers_of_partitions(ps: Penstock, count: Any) -> None:
    """The number of partitions is from 1 to 256."""
    with pytest.raises(BadArgument, match="partitions="):
        ps.queue("q", partitions=count)


def test_another_number_is_refused(ps: Penstock, q: Queue, raw: Raw) -> None:
    """The number is stored; a client with another number, or none, is refused with
    the right one.
    """
    q.enqueue(1)
    before = sorted(raw.keys("*"))
    with twin_of(ps) as other:
        other._partitions = {}
        for opened, queue in ((None, other.queue("q")), (8, other.queue("q", partitions=8))):
            for call in (
                partial(queue.enqueue, 1),
                partial(queue.reserve, block=0),
                queue.stats,
                queue.purge,
                partial(queue.configure, lease=5),
                queue.clear,
            ):
                with pytest.raises(QueuePartitioned) as refused:
                    call()
                assert (refused.value.partitions, refused.value.opened) == (4, opened)
        assert sorted(raw.keys("*")) == before
        [job] = other.open("q").reserve()
        assert job.body == 1
        assert other.queue("q").partitions == COUNT


def test_opened_by_several_at_once(ps: Penstock) -> None:
    """Several clients open a queue at once: the first stores the number, and all use it."""
    for name in ("one", "two", "three"):
        queue = ps.queue(name, partitions=COUNT)
        beside = [spawn(queue.enqueue, number) for number in range(8)]
        for one in beside:
            assert one.result().state == "ready"
        assert queue.stats().ready == 8


def test_an_ordinary_queue_has_no_partitions(ps: Penstock, raw: Raw) -> None:
    """An existing queue without partitions can't get any, with or without jobs."""
    ps.queue("q").enqueue(1)
    other = ps.queue("q", partitions=4)
    for call in (partial(other.enqueue, 1), partial(other.reserve, block=0), other.stats):
        with pytest.raises(QueuePartitioned) as refused:
            call()
        assert (refused.value.partitions, refused.value.opened) == (None, 4)
    assert ps.open("q").stats().ready == 1
    check_invariant(raw)


def test_a_cleared_queue_may_have_another_number(ps: Penstock, q: Queue) -> None:
    """`clear` removes the number too; a producer with the old number is then refused."""
    q.enqueue_many(range(10))
    assert q.clear() == 10
    other = ps.queue("q", partitions=2)
    other.enqueue(1)
    assert ps.queues() == ["q"]
    for key in "abcdefgh":
        if partition_of(key, COUNT) > 1:
            with pytest.raises(QueuePartitioned):
                q.enqueue(1, key=key)
            break
    assert ps.clear(["q"]) == ["q"]
    assert ps.queues() == []


def test_names_with_a_slash(ps: Penstock, q: Queue, raw: Raw) -> None:
    """No queue name that a user may give collides with the name of a partition."""
    q.enqueue_many(range(4), key=str)
    names = ["q/0", "q/000", "q/003-aaa", "q%00/003-aaa", "q/"]
    for name in names:
        ps.queue(name).enqueue(name)
    assert ps.queues() == sorted(["q", *names])
    assert q.stats().ready == 4
    with pytest.raises(BadArgument, match="queue="):
        ps.queue(partition_name("q", 3))
    listed = set(raw.hvals(registry_key("penstock")))
    assert {name.encode() for name in names} < listed


def test_the_checksums_of_partitions_differ() -> None:
    """Partitions have different checksums, so an id leads to exactly one."""
    for name in ("q", "emails", "ü" * 500, "a/003"):
        crcs = {queue_crc(partition_name(name, number)) for number in range(256)}
        assert len(crcs) == 256


def test_partitions_are_spread_over_slots() -> None:
    """Of 2, 4 or 8 partitions there is one in each half, quarter or eighth of a cluster's slots."""
    for name in ("q", "emails", "ü" * 500, "a/003"):
        slots = [key_slot(QueueKeys(name, partition=number)["meta"]) for number in range(256)]
        for count in (2, 4, 8, 16, 32, 64, 128, 256):
            places = sorted(slot * count // SLOT_COUNT for slot in slots[:count])
            assert places == list(range(count))


# -- failures --------------------------------------------------------------------------------


def test_a_bulk_that_fails_midway(q: Queue) -> None:
    """After a failure each added body has an id at its position; the others have None."""
    q.configure(max_length=3)
    keys = {partition_of(key, COUNT): key for key in "abcdefgh"}
    bodies = [keys[0], keys[1], keys[0], keys[1], keys[1], keys[1], keys[0]]
    with pytest.raises(IncompleteEnqueue) as failed:
        q.enqueue_many(bodies, key=str)
    assert isinstance(failed.value.__cause__, QueueFull)
    assert str(failed.value) == "3 jobs were added before the call failed"
    results = list(failed.value.results)
    assert [one.state for one in results] == [
        "ready" if body == keys[0] else "missing" for body in bodies
    ]
    assert q.stats().ready == 3


def test_errors_have_the_numbers_of_partitions() -> None:
    """The error has the stored and the requested number of partitions."""
    error = QueuePartitioned("q", 4, 8)
    assert re.search(r"'q' has 4 partitions, but was opened with 8: pass partitions=4", str(error))
    assert "no partitions" in str(QueuePartitioned("q", None, 8))


def test_it_waits_with_few_commands(real_ps: Penstock, real_backend: Backend) -> None:
    """An idle consumer uses one BLPOP for all partitions; in a cluster one for each slot."""
    queue = real_ps.queue("q", partitions=16)
    queue.enqueue(1)
    assert len(queue.reserve()) == 1
    raw = real_backend.sync_client()
    waiting = spawn(queue.reserve, 1, block=20)
    expected = 1 if real_backend.cluster is None else 16
    wait_for(lambda: raw.info("clients")["blocked_clients"] == expected)
    queue.enqueue(2)
    assert len(waiting.result()) == 1


# -- workers ---------------------------------------------------------------------------------


def worked(ps: Penstock, queues: Any, **options: Any) -> list[Any]:
    """Run a worker until no job is left, and return the bodies."""
    done: list[Any] = []

    def handle(job: Job) -> None:
        done.append(job.body)

    worker = Worker(ps, queues, handle, burst=True, concurrency=1, **options)
    worker.run()
    return done


def test_a_worker_takes_from_all(ps: Penstock, q: Queue) -> None:
    """A worker takes jobs from all partitions, also when another client created them."""
    q.enqueue_many([{"n": number} for number in range(40)], key=lambda body: str(body["n"]))
    assert len(worked(ps, "q")) == 40
    q.enqueue_many([{"n": number} for number in range(40)], key=lambda body: str(body["n"]))
    ps._partitions.clear()
    assert len(worked(ps, "q")) == 40
    stats = q.stats()
    assert (stats.acked, stats.ready, stats.active) == (80, 0, 0)


def test_partitions_share_the_weight_of_their_queue(ps: Penstock, q: Queue) -> None:
    """The weight of a queue does not depend on its number of partitions."""
    for number in range(200):
        q.enqueue({"n": number}, key=str(number))
    ps.queue("other").enqueue_many([{"n": "other"}] * 200)
    done = worked(ps, {"q": 1, "other": 1}, max_jobs=100, prefetch=7)
    assert 35 <= sum(body == {"n": "other"} for body in done) <= 65


def test_a_worker_ends_when_all_are_drained(ps: Penstock, q: Queue) -> None:
    """A worker of a closed queue ends when all partitions are drained."""
    q.enqueue_many(range(8), key=str)
    q.close()
    ps._partitions.clear()
    done: list[str] = []

    def handle(job: Job) -> None:
        done.append(job.id)

    worker = Worker(ps, "q", handle)
    worker.run()
    assert len(set(done)) == 8
    assert worker.drained


def test_a_hand_over_within_and_between_partitions(ps: Penstock, q: Queue) -> None:
    """The next job lies in the partition of its first job; one with a key in that of its key."""
    handlers, ran = Handlers(), dict[str, Any]()

    @handlers.handler("then")
    def then(job: Job, name: str) -> None:
        ran[name] = partition(job.id)

    @handlers.handler("first")
    def first(job: Job) -> Any:
        ran["first"] = partition(job.id)
        return Done(then=[then.job("own"), *(then.options(key=key).job(key) for key in "abcdef")])

    first.enqueue(q)
    Worker(ps, q, handlers, burst=True).run()
    keyed = {key: partition_of(key, COUNT) for key in "abcdef"}
    assert ran == {"first": ran["first"], "own": ran["first"], **keyed}


def test_limits_per_key_hold_for_the_whole_queue(q: Queue) -> None:
    """Jobs of a key share a partition, so one of them runs at a time, in order."""
    q.configure(ordered=True)
    bodies = [(key, number) for number in range(3) for key in "abcdef"]
    q.enqueue_many(bodies, key=lambda body: body[0])
    for number in range(3):
        jobs = [job for _ in range(COUNT) for job in q.reserve(30, block=0)]
        assert sorted(job.body for job in jobs) == [[key, number] for key in "abcdef"]
        assert q.stats().parked == 6 * (2 - number)
        q.ack(jobs)


def test_a_share_is_that_of_each_partition(q: Queue) -> None:
    """Jobs of a key share a partition: one is in the line, and calls take the others by turns."""
    assert q.configure(share=1).share == 1
    keys = list("abcdef") * 3
    q.enqueue_many(keys, key=lambda body: body)
    assert q.stats().parked == 12
    first = [job.body for job in q.reserve(6, block=0)]
    assert q.stats().parked == 18 - 6 - q.stats().ready
    rest = [job.body for _ in range(2 * COUNT) for job in q.reserve(30, block=0)]
    assert sorted(first + rest) == sorted(keys)
    assert q.stats().parked == 0


def test_slots_are_shared_by_the_partitions(q: Queue) -> None:
    """Each has its part, rounded down, and at least one; settings show the whole."""
    for most, part in ((2 * COUNT + 1, 2), (1, 1)):
        assert q.configure(max_active=most).max_active == most
        assert q.stats().settings.max_active == most
        q.enqueue_many(range(20 * COUNT), key=str)
        jobs = [job for _ in range(2 * COUNT) for job in q.reserve(30, block=0)]
        assert len(jobs) == part * COUNT
        q.ack(jobs)


def test_a_priority_acts_within_a_partition(q: Queue) -> None:
    """The jobs of each partition come in the order of their priorities."""
    for priority in (0, 3, 9):
        q.enqueue_many(list("abcdef"), key=lambda body: body, priority=priority)
    found = defaultdict(list)
    while jobs := q.reserve(1, block=0):
        found[partition(jobs[0].id)].append(jobs[0].priority)
    assert sum(map(len, found.values())) == 18
    assert all(one == sorted(one, reverse=True) for one in found.values())


def test_a_batch_lies_in_one_partition(q: Queue) -> None:
    """Its jobs are in the partition of its callback, also those with another key."""
    with q.batch(then="callback", on="finished") as batch:
        added = batch.enqueue_many(list("abcdef"), key=lambda body: body)
        assert {partition(one) for one in added.ids} == {partition(batch.id)}
        assert q.stats().batches == 1
    assert [one.id for one in q.batches.list()] == [batch.id]
    q.cancel(added.ids[:1])
    q.ack(q.reserve(30, block=0))
    status = q.batches.get(batch.id)
    assert status is not None
    assert (status.state, status.total, status.done, status.failed) == ("called", 6, 5, 1)
    assert [job.id for job in q.reserve(30, block=0)] == [batch.id]
