# From tests/_async/test_life_of_a_queue.py by tools/unasync.py; do not edit.
"""Names, prefixes and the registry; creation and removal of queues, and damaged keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock import (
    MetaLost,
    Outcome,
    Penstock,
    Queue,
    QueueDamaged,
    QueuePartitioned,
    UnsupportedVersion,
    WrongEpoch,
    WrongNode,
    WrongQueue,
    parse_id,
)
from penstock.client._sync.client import twin_of
from penstock.client._sync.transport.executor import Executor
from penstock.core.flows.sweeping import IDLE_MS
from penstock.core.jobs.job import number_of
from tests.support.backends import Backend
from tests.support.keyspace import Raw, advance, check_invariant, dump

NAMES = [
    "emails",
    "a b/c:d*e?f[g]",
    "{",
    "}",
    "}x",
    "{}",
    "{a}{b}",
    "%",
    "%7B",
    "50%",
    "ünïcödé / 日本 \U0001f600",
    "line\nbreak\r\t\x01\x7f",
    " ",
    ":",
    "q" * 1024,
    "ü" * 512,
    "penstock",
    "x:ready",
]
IDLE = IDLE_MS // 1000


def crc16(data: bytes) -> int:
    """Return the CRC-16/XMODEM checksum that Redis Cluster uses."""
    crc = 0
    for byte in data:
        crc ^= byte << 8
        for _ in range(8):
            crc = (crc << 1 ^ 0x1021 if crc & 0x8000 else crc << 1) & 0xFFFF
    return crc


def slot(key: bytes) -> int:
    """Return the slot of a key in Redis Cluster: that of the part between the first { and }."""
    start = key.find(b"{")
    if start >= 0:
        end = key.find(b"}", start + 1)
        if end > start + 1:
            key = key[start + 1 : end]
    return crc16(key) % 16384


def use(q: Queue) -> None:
    """Create every kind of key of a queue."""
    q.enqueue_many([1, 2, 3, 4], ttl=600)
    q.enqueue("once", lease=0)
    q.enqueue("later", delay=600)
    one, two, *_ = q.reserve(5, block=0)
    one.bury()
    two.nack(delay=0)
    q.enqueue("ready")


def test_the_slot_function_is_the_clusters() -> None:
    """The slot function agrees with known values."""
    assert crc16(b"123456789") == 0x31C3
    assert slot(b"foo{bar}baz") == slot(b"bar") == 5061
    assert slot(b"{}a") != slot(b"{}b")


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_any_text_is_a_name(ps: Penstock, raw: Raw, name: str) -> None:
    """A queue may have any name: it works, is listed, and all its keys share one slot."""
    q = ps.queue(name)
    use(q)
    (job,) = q.reserve(block=0)
    assert (job.queue_name, q.name) == (name, name)
    assert q.ack([job.id])
    assert ps.queues() == [name]
    keys = [key for key in raw.scan_iter() if key not in (b"penstock:node", b"penstock:queues")]
    assert len(keys) >= 9
    assert len({slot(key) for key in keys}) == 1


def test_names_do_not_clash(ps: Penstock) -> None:
    """Names that look alike when encoded belong to different queues."""
    for name in NAMES:
        ps.queue(name).enqueue(name)
    assert ps.queues() == sorted(NAMES)
    for name in NAMES:
        jobs = ps.queue(name).reserve(9, block=0)
        assert [job.body for job in jobs] == [name]


def test_two_prefixes_do_not_see_each_other(backend: Backend, raw: Raw) -> None:
    """Two prefixes on one server share no job, queue or key."""
    with backend.sync_client() as lent:
        one = Penstock(lent, prefix="one")
        two = Penstock(lent, prefix="two:more")
        use(one.queue("q"))
        before = dump(raw)
        assert two.queues() == []
        assert two.queue("q").reserve(block=0) == []
        done = two.queue("q").enqueue("two")
        assert {key: value for key, value in dump(raw).items() if key in before} == before
        assert all(key.startswith((b"one:", b"two:more:")) for key in raw.scan_iter())
        with pytest.raises((WrongNode, WrongEpoch)):
            one.queue("q").ack([done.id])
        check_invariant(raw, "one")
        check_invariant(raw, "two:more")
        one.close()
        two.close()


def test_the_node_has_an_id_for_good(backend: Backend, raw: Raw) -> None:
    """The first client sets the node's id, and it never changes."""
    ids = set()
    for _ in range(3):
        with backend.sync_client() as lent, Penstock(lent) as ps:
            ids.add(parse_id(ps.queue("q").enqueue(1).id).node)
    assert ids == {raw.hget("penstock:node", "id").decode()[:8]}


def test_the_version_of_a_server(backend: Backend, ps: Penstock) -> None:
    """The version of the server is known, except for fakeredis, which has no INFO."""
    facts = ps.topology.executor.server_facts()
    if backend.is_fake:
        assert (facts.version, facts.name) == ((), "unknown server")
    else:
        assert facts.version[:2] >= (6, 2)
        assert backend.version in facts.name
    assert facts.warnings() == []
    assert ps.topology.executor.command("GET", "nothing") is None


def test_a_client_outlives_a_flushall(q: Queue, raw: Raw) -> None:
    """After FLUSHALL the next enqueue creates the queue and the node id again, with a new id."""
    before = q.enqueue(1)
    raw.flushdb()
    after = q.enqueue(2)
    assert parse_id(after.id).epoch != parse_id(before.id).epoch
    assert parse_id(after.id).node.encode() == raw.hget("penstock:node", "id")[:8]
    assert [job.id for job in q.reserve(5, block=0)] == [after.id]
    assert q.ack([after.id])


@pytest.mark.parametrize("partitions", [None, 3])
@pytest.mark.parametrize("rival", [False, True])
def test_a_flushall_between_two_steps(
    ps: Penstock, raw: Raw, monkeypatch: pytest.MonkeyPatch, partitions: int, rival: bool
) -> None:
    """A client whose fields are gone when it goes on writes them again; so it does with a rival's.

    The fields are the id of the node and the number of partitions.
    """
    ps.connect()
    inner, flushes, most = Executor.command, list[Any](), 4 if rival else 1

    def command(node: Executor, *args: Any) -> Any:
        strikes = args[0] == "HSETNX" and len(flushes) < most
        if strikes and rival:
            raw.hset(*args[1:])
        reply = inner(node, *args)
        if strikes:
            raw.flushdb()
            flushes.append(args)
        return reply

    monkeypatch.setattr(Executor, "command", command)
    raw.flushdb()
    added = ps.queue("q", partitions=partitions).enqueue(1)
    assert len(flushes) == most
    assert parse_id(added.id).node
    with pytest.raises(QueuePartitioned):
        ps.queue("q", partitions=4).enqueue(1)


def test_an_id_from_before_a_flushall(q: Queue, raw: Raw) -> None:
    """It is not of an unknown node: this node had the id, so no URL is missing."""
    before = q.enqueue(1).id
    raw.flushdb()
    q.enqueue(2)
    with pytest.raises(WrongEpoch):
        q.show(before)


def test_an_idle_queue_is_removed(ps: Penstock, q: Queue, raw: Raw) -> None:
    """A sweep removes a queue that is empty, has no settings and was idle for 10 minutes."""
    q.enqueue_many([1, 2], ttl=600)
    q.nack(q.reserve(2, block=0), delay=0)
    q.ack(q.reserve(2, block=0))
    advance(raw, q.ops, IDLE - 30)
    ps.sweep()
    assert ps.queues() == ["q"]
    advance(raw, q.ops, IDLE + 30)
    ps.sweep()
    assert raw.keys() == [b"penstock:node"]
    assert ps.queues() == []
    assert not q.stats().exists


@pytest.mark.parametrize("why", ["job", "scheduled", "held", "dead", "setting", "pause"])
def test_a_queue_in_use_is_not_removed(ps: Penstock, q: Queue, raw: Raw, why: str) -> None:
    """A job in any state, a setting or a pause keeps a queue from being removed."""
    q.enqueue("x", delay=10**6 if why == "scheduled" else 0, lease=10**6)
    if why != "scheduled" and why != "job":
        (job,) = q.reserve(block=0)
        if why == "dead":
            job.bury()
        elif why != "held":
            job.ack()
    if why == "setting":
        q.configure(lease=5)
    elif why == "pause":
        q.pause("in")
    advance(raw, q.ops, 5000)
    ps.sweep()
    assert ps.queues() == ["q"]
    assert q.stats().exists


def test_ids_are_not_reused_after_removal(ps: Penstock, q: Queue, raw: Raw) -> None:
    """A queue that is removed and re-created has a new epoch, so old ids match none of its jobs."""
    old = q.enqueue("x")
    (job,) = q.reserve(block=0)
    job.ack()
    advance(raw, q.ops, IDLE + 30)
    q.sweep()
    assert ps.queues() == []
    assert list(q.ack([old.id])) == [Outcome.GONE]
    assert job.ack() is False
    assert q.show(old.id) is None
    new = q.enqueue("y")
    assert parse_id(new.id).epoch != parse_id(old.id).epoch
    before = dump(raw)
    for call in (q.ack, q.nack, q.release, q.bury, q.extend, q.delete, q.redrive):
        for name in (old.id, job):
            with pytest.raises(WrongEpoch):
                call([name])
    with pytest.raises(WrongEpoch):
        q.show(old.id)
    with pytest.raises(WrongEpoch):
        q.ack_and_reserve([job], 1)
    assert dump(raw) == before


def test_ids_of_two_lives_in_one_call(q: Queue, raw: Raw) -> None:
    """Ids of two epochs in one call are refused before anything is sent, in either order."""
    old = q.enqueue("x")
    raw.flushdb()
    q.stats()
    new = q.enqueue("y")
    before = dump(raw)
    for ids in ([old.id, new.id], [new.id, old.id]):
        with pytest.raises((WrongEpoch, WrongNode)):
            q.ack(ids)
    assert dump(raw) == before


def test_ids_keep_rising_after_the_last_job(q: Queue, raw: Raw) -> None:
    """A number is never used twice, however the queue became empty."""
    ids = []
    for empty in (q.purge, q.sweep):
        done = q.enqueue("x")
        ids.append(done.id)
        empty()
        q.ack(q.reserve(5, block=0))
        raw.delete(q.ops.keys["ready"])  # like a restore that leaves out empty streams
    ids.append(q.enqueue("x").id)
    assert ids == sorted(set(ids))


def test_meta_that_is_lost_is_restored(q: Queue, raw: Raw, damage: None) -> None:
    """While jobs exist the registry restores the epoch, so known ids stay valid."""
    ids = q.enqueue_many(range(3)).ids
    (job,) = q.reserve(block=0)
    raw.delete(q.ops.keys["meta"])
    new = q.enqueue("new")
    assert {parse_id(one).epoch for one in [*ids, new.id]} == {parse_id(new.id).epoch}
    assert new.id > ids[-1]
    assert job.ack() is True
    assert q.ack([ids[1]])
    assert [one.id for one in q.reserve(5, block=0)] == [ids[2], new.id]
    assert raw.hget(q.ops.keys["meta"], "v") == b"3"


@pytest.mark.parametrize(
    "first",
    ["reserve", "configure", "enqueue", "ack", "nack", "release", "bury", "extend",
     "settle", "delete", "show", "peek", "scan", "purge", "redrive", "evict", "status", "recover",
     "stats", "sweep", "find"],
)  # fmt: skip
def test_every_call_that_meets_lost_meta_repairs_it(
    q: Queue, raw: Raw, damage: None, first: str
) -> None:
    """Every call that finds meta missing repairs it, and treats the jobs as those
    of the same epoch.
    """
    ids = q.enqueue_many(["x", "y"], dedup_id=str).ids
    (job,) = q.reserve(block=0)
    (again,) = q.reserve(block=0)
    again.bury("no")
    q.enqueue_many(["x2"])
    raw.delete(q.ops.keys["meta"])
    done: dict[str, Callable[[], Any]] = {
        "reserve": lambda: q.reserve(block=0),
        "configure": lambda: q.configure(lease=5),
        "enqueue": lambda: q.enqueue_many(["z"]),
        "ack": job.ack,
        "nack": job.nack,
        "release": job.release,
        "bury": job.bury,
        "extend": job.extend,
        "settle": lambda: q.ack_and_reserve([job], 5),
        "delete": lambda: q.delete([job]),
        "show": lambda: q.show(job),
        "peek": lambda: q.peek(5),
        "scan": q.jobs().page,
        "purge": q.purge,
        "redrive": q.redrive,
        "evict": lambda: q.sweep(evict=100),
        "status": lambda: q.dedup_status("x"),
        "recover": lambda: q.recover(idle=0),
        "stats": q.stats,
        "sweep": q.sweep,
        "find": q.jobs("ready").page,
    }
    told = done[first]()
    assert first == "sweep" or told
    assert raw.hget(q.ops.keys["meta"], "epoch").decode() == parse_id(ids[0]).epoch
    assert q.stats().exists
    check_invariant(raw)


def test_ids_are_whole_after_lost_meta(q: Queue, raw: Raw, damage: None) -> None:
    """With meta missing, ids from `peek` and `jobs` can be acknowledged, and `purge` works."""
    ids = q.enqueue_many([*"abcd"]).ids
    delayed = q.enqueue("later", delay=60)
    raw.delete(q.ops.keys["meta"])
    assert [view.id for view in q.peek(9)] == ids
    raw.delete(q.ops.keys["meta"])
    assert set(q.jobs().page().ids) == {*ids, delayed.id}
    assert q.ack(ids[:1])
    raw.delete(q.ops.keys["meta"])
    assert q.purge() == 4


def test_held_jobs_alone_are_purged_after_lost_meta(q: Queue, raw: Raw, damage: None) -> None:
    """A purge covers held jobs even if no stream tells the last number."""
    q.enqueue_many([*"abc"], delay=60)
    raw.delete(q.ops.keys["meta"])
    assert q.purge() == 3


def test_repair_takes_the_epoch_of_the_ids_that_are_out(
    q: Queue, ps: Penstock, raw: Raw, damage: None
) -> None:
    """A call with ids tells the epoch, and leftover entries of the registry are removed."""
    ids = q.enqueue_many([*"ab"]).ids
    epoch = parse_id(ids[0]).epoch
    (own,) = raw.hkeys("penstock:queues")
    leftovers = [own[:8] + b"%08x" % number for number in range(1, 9)]
    for _ in range(2):
        raw.hset("penstock:queues", mapping=dict.fromkeys(leftovers, "q"))
        raw.delete(q.ops.keys["meta"])
        with twin_of(ps) as client:
            other = client.queue("q")
            with pytest.raises(MetaLost, match=r"'q' has jobs but no meta.* 00000001, .*job id"):
                other.reserve(block=0)
            assert raw.exists(q.ops.keys["meta"]) == 0
            assert other.show(ids[0])
        assert raw.hget(q.ops.keys["meta"], "epoch") == epoch.encode()
        assert raw.hkeys("penstock:queues") == [own]
    raw.hset("penstock:queues", mapping=dict.fromkeys(leftovers, "q"))
    raw.delete(q.ops.keys["meta"])
    assert [job.id for job in q.reserve(9, block=0)] == ids  # the client knows these ids


def test_the_epoch_of_the_ids_counts_more_than_the_last_one_seen(
    q: Queue, raw: Raw, damage: None
) -> None:
    """A queue comes back from a backup without its meta, after its client has used a new one."""
    old = q.enqueue("x").id
    ready, listed = raw.dump(q.ops.keys["ready"]), raw.hgetall("penstock:queues")
    q.clear()
    new = q.enqueue("y").id
    assert parse_id(new).epoch != parse_id(old).epoch
    raw.delete(q.ops.keys["meta"])
    raw.restore(q.ops.keys["ready"], 0, ready, replace=True)
    raw.hset("penstock:queues", mapping=listed)
    assert q.ack([old])
    assert raw.hget(q.ops.keys["meta"], "epoch") == parse_id(old).epoch.encode()


@pytest.mark.parametrize("first", ["enqueue", "configure", "role"])
def test_a_lost_race_to_create_a_queue_leaves_no_entry(
    q: Queue, ps: Penstock, raw: Raw, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """Another client creates the queue between our registration and our creation."""
    register = ps.topology.driver._register

    def slowly(effect: Any) -> None:
        register(effect)
        with twin_of(ps) as quicker:
            quicker.queue("q").enqueue("quicker")

    monkeypatch.setattr(ps.topology.driver, "_register", slowly)
    if first == "enqueue":
        q.enqueue("x")
    elif first == "configure":
        q.configure(lease=5)
    else:
        with q.exclusive("consumer"):
            pass
    epoch = raw.hget(q.ops.keys["meta"], "epoch")
    assert [entry[8:] for entry in raw.hkeys("penstock:queues")] == [epoch]


@pytest.mark.parametrize("call", ["enqueue", "reserve", "configure"])
def test_meta_and_registry_lost(q: Queue, raw: Raw, damage: None, call: str) -> None:
    """Without meta and registry the epoch is unknown: the call is refused and writes nothing."""
    q.enqueue_many(range(3))
    q.reserve(block=0)
    raw.delete(q.ops.keys["meta"], "penstock:queues")
    before = dump(raw)
    calls: dict[str, Callable[[], Any]] = {
        "enqueue": lambda: q.enqueue(1),
        "reserve": lambda: q.reserve(block=0),
        "configure": lambda: q.configure(lease=5),
    }
    with pytest.raises(QueueDamaged, match="'q'"):
        calls[call]()
    assert dump(raw) == before


def test_a_record_that_is_lost_is_counted(q: Queue, raw: Raw, damage: None) -> None:
    """An index entry without a record (evicted, or a damaged restore) is skipped and counted."""
    q.enqueue_many(["a", "b", "c"], lease=5)
    jobs = q.reserve(3, block=0)
    raw.hdel(q.ops.keys["held"], number_of(jobs[1]))
    advance(raw, q.ops, 6)
    assert [job.body for job in q.reserve(5, block=0)] == ["a", "c"]
    assert q.stats().dangling == 1
    check_invariant(raw)


@pytest.mark.parametrize(
    "call",
    [
        "enqueue", "enqueue many", "reserve", "ack", "settle", "nack", "release", "bury", "extend",
        "redrive", "delete", "purge", "sweep", "stats", "peek", "show", "configure", "pause",
        "resume",
    ],
)  # fmt: skip
def test_a_newer_version_is_refused(q: Queue, raw: Raw, damage: None, call: str) -> None:
    """Every call refuses a queue with a newer protocol version, and writes nothing."""
    q.enqueue("x")
    q.enqueue("y")
    (job,) = q.reserve(block=0)
    raw.hset(q.ops.keys["meta"], "v", "4")
    before = dump(raw)
    calls: dict[str, Callable[[], Any]] = {
        "enqueue": lambda: q.enqueue(1),
        "enqueue many": lambda: q.enqueue_many([1, 2], delay=5),
        "reserve": lambda: q.reserve(block=0),
        "ack": job.ack,
        "settle": lambda: q.ack_and_reserve([job], 1),
        "nack": job.nack,
        "release": job.release,
        "bury": job.bury,
        "extend": job.extend,
        "redrive": q.redrive,
        "delete": lambda: q.delete([job]),
        "purge": q.purge,
        "sweep": q.sweep,
        "stats": q.stats,
        "peek": q.peek,
        "show": lambda: q.show(job),
        "configure": lambda: q.configure(lease=5),
        "pause": q.pause,
        "resume": q.resume,
    }
    with pytest.raises(UnsupportedVersion, match="'q' was written by version 4"):
        calls[call]()
    assert dump(raw) == before


def test_jobs_of_another_queue_by_id(ps: Penstock, raw: Raw) -> None:
    """An id names its queue; every other queue refuses it."""
    done = ps.queue("a").enqueue(1)
    ps.queue("b").enqueue(1)
    before = dump(raw)
    with pytest.raises(WrongQueue, match="belongs to another queue than 'b'"):
        ps.queue("b").ack([done.id])
    assert dump(raw) == before
