"""Names, prefixes and the registry; creation and removal of queues, and damaged keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock import (
    AsyncPenstock,
    AsyncQueue,
    MetaLost,
    Outcome,
    QueueDamaged,
    QueuePartitioned,
    UnsupportedVersion,
    WrongEpoch,
    WrongNode,
    WrongQueue,
    parse_id,
)
from penstock.client._async.client import twin_of
from penstock.client._async.transport.executor import AsyncExecutor
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


async def use(q: AsyncQueue) -> None:
    """Create every kind of key of a queue."""
    await q.enqueue_many([1, 2, 3, 4], ttl=600)
    await q.enqueue("once", lease=0)
    await q.enqueue("later", delay=600)
    one, two, *_ = await q.reserve(5, block=0)
    await one.bury()
    await two.nack(delay=0)
    await q.enqueue("ready")


async def test_the_slot_function_is_the_clusters() -> None:
    """The slot function agrees with known values."""
    assert crc16(b"123456789") == 0x31C3
    assert slot(b"foo{bar}baz") == slot(b"bar") == 5061
    assert slot(b"{}a") != slot(b"{}b")


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
async def test_any_text_is_a_name(ps: AsyncPenstock, raw: Raw, name: str) -> None:
    """A queue may have any name: it works, is listed, and all its keys share one slot."""
    q = ps.queue(name)
    await use(q)
    (job,) = await q.reserve(block=0)
    assert (job.queue_name, q.name) == (name, name)
    assert await q.ack([job.id])
    assert await ps.queues() == [name]
    keys = [key for key in raw.scan_iter() if key not in (b"penstock:node", b"penstock:queues")]
    assert len(keys) >= 9
    assert len({slot(key) for key in keys}) == 1


async def test_names_do_not_clash(ps: AsyncPenstock) -> None:
    """Names that look alike when encoded belong to different queues."""
    for name in NAMES:
        await ps.queue(name).enqueue(name)
    assert await ps.queues() == sorted(NAMES)
    for name in NAMES:
        jobs = await ps.queue(name).reserve(9, block=0)
        assert [job.body for job in jobs] == [name]


async def test_two_prefixes_do_not_see_each_other(backend: Backend, raw: Raw) -> None:
    """Two prefixes on one server share no job, queue or key."""
    async with backend.async_client() as lent:
        one = AsyncPenstock(lent, prefix="one")
        two = AsyncPenstock(lent, prefix="two:more")
        await use(one.queue("q"))
        before = dump(raw)
        assert await two.queues() == []
        assert await two.queue("q").reserve(block=0) == []
        done = await two.queue("q").enqueue("two")
        assert {key: value for key, value in dump(raw).items() if key in before} == before
        assert all(key.startswith((b"one:", b"two:more:")) for key in raw.scan_iter())
        with pytest.raises((WrongNode, WrongEpoch)):
            await one.queue("q").ack([done.id])
        check_invariant(raw, "one")
        check_invariant(raw, "two:more")
        await one.close()
        await two.close()


async def test_the_node_has_an_id_for_good(backend: Backend, raw: Raw) -> None:
    """The first client sets the node's id, and it never changes."""
    ids = set()
    for _ in range(3):
        async with backend.async_client() as lent, AsyncPenstock(lent) as ps:
            ids.add(parse_id((await ps.queue("q").enqueue(1)).id).node)
    assert ids == {raw.hget("penstock:node", "id").decode()[:8]}


async def test_the_version_of_a_server(backend: Backend, ps: AsyncPenstock) -> None:
    """The version of the server is known, except for fakeredis, which has no INFO."""
    facts = await ps.topology.executor.server_facts()
    if backend.is_fake:
        assert (facts.version, facts.name) == ((), "unknown server")
    else:
        assert facts.version[:2] >= (6, 2)
        assert backend.version in facts.name
    assert facts.warnings() == []
    assert await ps.topology.executor.command("GET", "nothing") is None


async def test_a_client_outlives_a_flushall(q: AsyncQueue, raw: Raw) -> None:
    """After FLUSHALL the next enqueue creates the queue and the node id again, with a new id."""
    before = await q.enqueue(1)
    raw.flushdb()
    after = await q.enqueue(2)
    assert parse_id(after.id).epoch != parse_id(before.id).epoch
    assert parse_id(after.id).node.encode() == raw.hget("penstock:node", "id")[:8]
    assert [job.id for job in await q.reserve(5, block=0)] == [after.id]
    assert await q.ack([after.id])


@pytest.mark.parametrize("partitions", [None, 3])
@pytest.mark.parametrize("rival", [False, True])
async def test_a_flushall_between_two_steps(
    ps: AsyncPenstock, raw: Raw, monkeypatch: pytest.MonkeyPatch, partitions: int, rival: bool
) -> None:
    """A client whose fields are gone when it goes on writes them again; so it does with a rival's.

    The fields are the id of the node and the number of partitions.
    """
    await ps.connect()
    inner, flushes, most = AsyncExecutor.command, list[Any](), 4 if rival else 1

    async def command(node: AsyncExecutor, *args: Any) -> Any:
        strikes = args[0] == "HSETNX" and len(flushes) < most
        if strikes and rival:
            raw.hset(*args[1:])
        reply = await inner(node, *args)
        if strikes:
            raw.flushdb()
            flushes.append(args)
        return reply

    monkeypatch.setattr(AsyncExecutor, "command", command)
    raw.flushdb()
    added = await ps.queue("q", partitions=partitions).enqueue(1)
    assert len(flushes) == most
    assert parse_id(added.id).node
    with pytest.raises(QueuePartitioned):
        await ps.queue("q", partitions=4).enqueue(1)


async def test_an_id_from_before_a_flushall(q: AsyncQueue, raw: Raw) -> None:
    """It is not of an unknown node: this node had the id, so no URL is missing."""
    before = (await q.enqueue(1)).id
    raw.flushdb()
    await q.enqueue(2)
    with pytest.raises(WrongEpoch):
        await q.show(before)


async def test_an_idle_queue_is_removed(ps: AsyncPenstock, q: AsyncQueue, raw: Raw) -> None:
    """A sweep removes a queue that is empty, has no settings and was idle for 10 minutes."""
    await q.enqueue_many([1, 2], ttl=600)
    await q.nack(await q.reserve(2, block=0), delay=0)
    await q.ack(await q.reserve(2, block=0))
    advance(raw, q.ops, IDLE - 30)
    await ps.sweep()
    assert await ps.queues() == ["q"]
    advance(raw, q.ops, IDLE + 30)
    await ps.sweep()
    assert raw.keys() == [b"penstock:node"]
    assert await ps.queues() == []
    assert not (await q.stats()).exists


@pytest.mark.parametrize("why", ["job", "scheduled", "held", "dead", "setting", "pause"])
async def test_a_queue_in_use_is_not_removed(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw, why: str
) -> None:
    """A job in any state, a setting or a pause keeps a queue from being removed."""
    await q.enqueue("x", delay=10**6 if why == "scheduled" else 0, lease=10**6)
    if why != "scheduled" and why != "job":
        (job,) = await q.reserve(block=0)
        if why == "dead":
            await job.bury()
        elif why != "held":
            await job.ack()
    if why == "setting":
        await q.configure(lease=5)
    elif why == "pause":
        await q.pause("in")
    advance(raw, q.ops, 5000)
    await ps.sweep()
    assert await ps.queues() == ["q"]
    assert (await q.stats()).exists


async def test_ids_are_not_reused_after_removal(ps: AsyncPenstock, q: AsyncQueue, raw: Raw) -> None:
    """A queue that is removed and re-created has a new epoch, so old ids match none of its jobs."""
    old = await q.enqueue("x")
    (job,) = await q.reserve(block=0)
    await job.ack()
    advance(raw, q.ops, IDLE + 30)
    await q.sweep()
    assert await ps.queues() == []
    assert list(await q.ack([old.id])) == [Outcome.GONE]
    assert await job.ack() is False
    assert await q.show(old.id) is None
    new = await q.enqueue("y")
    assert parse_id(new.id).epoch != parse_id(old.id).epoch
    before = dump(raw)
    for call in (q.ack, q.nack, q.release, q.bury, q.extend, q.delete, q.redrive):
        for name in (old.id, job):
            with pytest.raises(WrongEpoch):
                await call([name])
    with pytest.raises(WrongEpoch):
        await q.show(old.id)
    with pytest.raises(WrongEpoch):
        await q.ack_and_reserve([job], 1)
    assert dump(raw) == before


async def test_ids_of_two_lives_in_one_call(q: AsyncQueue, raw: Raw) -> None:
    """Ids of two epochs in one call are refused before anything is sent, in either order."""
    old = await q.enqueue("x")
    raw.flushdb()
    await q.stats()
    new = await q.enqueue("y")
    before = dump(raw)
    for ids in ([old.id, new.id], [new.id, old.id]):
        with pytest.raises((WrongEpoch, WrongNode)):
            await q.ack(ids)
    assert dump(raw) == before


async def test_ids_keep_rising_after_the_last_job(q: AsyncQueue, raw: Raw) -> None:
    """A number is never used twice, however the queue became empty."""
    ids = []
    for empty in (q.purge, q.sweep):
        done = await q.enqueue("x")
        ids.append(done.id)
        await empty()
        await q.ack(await q.reserve(5, block=0))
        raw.delete(q.ops.keys["ready"])  # like a restore that leaves out empty streams
    ids.append((await q.enqueue("x")).id)
    assert ids == sorted(set(ids))


async def test_meta_that_is_lost_is_restored(q: AsyncQueue, raw: Raw, damage: None) -> None:
    """While jobs exist the registry restores the epoch, so known ids stay valid."""
    ids = (await q.enqueue_many(range(3))).ids
    (job,) = await q.reserve(block=0)
    raw.delete(q.ops.keys["meta"])
    new = await q.enqueue("new")
    assert {parse_id(one).epoch for one in [*ids, new.id]} == {parse_id(new.id).epoch}
    assert new.id > ids[-1]
    assert await job.ack() is True
    assert await q.ack([ids[1]])
    assert [one.id for one in await q.reserve(5, block=0)] == [ids[2], new.id]
    assert raw.hget(q.ops.keys["meta"], "v") == b"3"


@pytest.mark.parametrize(
    "first",
    ["reserve", "configure", "enqueue", "ack", "nack", "release", "bury", "extend",
     "settle", "delete", "show", "peek", "scan", "purge", "redrive", "evict", "status", "recover",
     "stats", "sweep", "find"],
)  # fmt: skip
async def test_every_call_that_meets_lost_meta_repairs_it(
    q: AsyncQueue, raw: Raw, damage: None, first: str
) -> None:
    """Every call that finds meta missing repairs it, and treats the jobs as those
    of the same epoch.
    """
    ids = (await q.enqueue_many(["x", "y"], dedup_id=str)).ids
    (job,) = await q.reserve(block=0)
    (again,) = await q.reserve(block=0)
    await again.bury("no")
    await q.enqueue_many(["x2"])
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
    told = await done[first]()
    assert first == "sweep" or told
    assert raw.hget(q.ops.keys["meta"], "epoch").decode() == parse_id(ids[0]).epoch
    assert (await q.stats()).exists
    check_invariant(raw)


async def test_ids_are_whole_after_lost_meta(q: AsyncQueue, raw: Raw, damage: None) -> None:
    """With meta missing, ids from `peek` and `jobs` can be acknowledged, and `purge` works."""
    ids = (await q.enqueue_many([*"abcd"])).ids
    delayed = await q.enqueue("later", delay=60)
    raw.delete(q.ops.keys["meta"])
    assert [view.id for view in await q.peek(9)] == ids
    raw.delete(q.ops.keys["meta"])
    assert set((await q.jobs().page()).ids) == {*ids, delayed.id}
    assert await q.ack(ids[:1])
    raw.delete(q.ops.keys["meta"])
    assert await q.purge() == 4


async def test_held_jobs_alone_are_purged_after_lost_meta(
    q: AsyncQueue, raw: Raw, damage: None
) -> None:
    """A purge covers held jobs even if no stream tells the last number."""
    await q.enqueue_many([*"abc"], delay=60)
    raw.delete(q.ops.keys["meta"])
    assert await q.purge() == 3


async def test_repair_takes_the_epoch_of_the_ids_that_are_out(
    q: AsyncQueue, ps: AsyncPenstock, raw: Raw, damage: None
) -> None:
    """A call with ids tells the epoch, and leftover entries of the registry are removed."""
    ids = (await q.enqueue_many([*"ab"])).ids
    epoch = parse_id(ids[0]).epoch
    (own,) = raw.hkeys("penstock:queues")
    leftovers = [own[:8] + b"%08x" % number for number in range(1, 9)]
    for _ in range(2):
        raw.hset("penstock:queues", mapping=dict.fromkeys(leftovers, "q"))
        raw.delete(q.ops.keys["meta"])
        async with twin_of(ps) as client:
            other = client.queue("q")
            with pytest.raises(MetaLost, match=r"'q' has jobs but no meta.* 00000001, .*job id"):
                await other.reserve(block=0)
            assert raw.exists(q.ops.keys["meta"]) == 0
            assert await other.show(ids[0])
        assert raw.hget(q.ops.keys["meta"], "epoch") == epoch.encode()
        assert raw.hkeys("penstock:queues") == [own]
    raw.hset("penstock:queues", mapping=dict.fromkeys(leftovers, "q"))
    raw.delete(q.ops.keys["meta"])
    assert [job.id for job in await q.reserve(9, block=0)] == ids  # the client knows these ids


async def test_the_epoch_of_the_ids_counts_more_than_the_last_one_seen(
    q: AsyncQueue, raw: Raw, damage: None
) -> None:
    """A queue comes back from a backup without its meta, after its client has used a new one."""
    old = (await q.enqueue("x")).id
    ready, listed = raw.dump(q.ops.keys["ready"]), raw.hgetall("penstock:queues")
    await q.clear()
    new = (await q.enqueue("y")).id
    assert parse_id(new).epoch != parse_id(old).epoch
    raw.delete(q.ops.keys["meta"])
    raw.restore(q.ops.keys["ready"], 0, ready, replace=True)
    raw.hset("penstock:queues", mapping=listed)
    assert await q.ack([old])
    assert raw.hget(q.ops.keys["meta"], "epoch") == parse_id(old).epoch.encode()


@pytest.mark.parametrize("first", ["enqueue", "configure", "role"])
async def test_a_lost_race_to_create_a_queue_leaves_no_entry(
    q: AsyncQueue, ps: AsyncPenstock, raw: Raw, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """Another client creates the queue between our registration and our creation."""
    register = ps.topology.driver._register

    async def slowly(effect: Any) -> None:
        await register(effect)
        async with twin_of(ps) as quicker:
            await quicker.queue("q").enqueue("quicker")

    monkeypatch.setattr(ps.topology.driver, "_register", slowly)
    if first == "enqueue":
        await q.enqueue("x")
    elif first == "configure":
        await q.configure(lease=5)
    else:
        async with q.exclusive("consumer"):
            pass
    epoch = raw.hget(q.ops.keys["meta"], "epoch")
    assert [entry[8:] for entry in raw.hkeys("penstock:queues")] == [epoch]


@pytest.mark.parametrize("call", ["enqueue", "reserve", "configure"])
async def test_meta_and_registry_lost(q: AsyncQueue, raw: Raw, damage: None, call: str) -> None:
    """Without meta and registry the epoch is unknown: the call is refused and writes nothing."""
    await q.enqueue_many(range(3))
    await q.reserve(block=0)
    raw.delete(q.ops.keys["meta"], "penstock:queues")
    before = dump(raw)
    calls: dict[str, Callable[[], Any]] = {
        "enqueue": lambda: q.enqueue(1),
        "reserve": lambda: q.reserve(block=0),
        "configure": lambda: q.configure(lease=5),
    }
    with pytest.raises(QueueDamaged, match="'q'"):
        await calls[call]()
    assert dump(raw) == before


async def test_a_record_that_is_lost_is_counted(q: AsyncQueue, raw: Raw, damage: None) -> None:
    """An index entry without a record (evicted, or a damaged restore) is skipped and counted."""
    await q.enqueue_many(["a", "b", "c"], lease=5)
    jobs = await q.reserve(3, block=0)
    raw.hdel(q.ops.keys["held"], number_of(jobs[1]))
    advance(raw, q.ops, 6)
    assert [job.body for job in await q.reserve(5, block=0)] == ["a", "c"]
    assert (await q.stats()).dangling == 1
    check_invariant(raw)


@pytest.mark.parametrize(
    "call",
    [
        "enqueue", "enqueue many", "reserve", "ack", "settle", "nack", "release", "bury", "extend",
        "redrive", "delete", "purge", "sweep", "stats", "peek", "show", "configure", "pause",
        "resume",
    ],
)  # fmt: skip
async def test_a_newer_version_is_refused(q: AsyncQueue, raw: Raw, damage: None, call: str) -> None:
    """Every call refuses a queue with a newer protocol version, and writes nothing."""
    await q.enqueue("x")
    await q.enqueue("y")
    (job,) = await q.reserve(block=0)
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
        await calls[call]()
    assert dump(raw) == before


async def test_jobs_of_another_queue_by_id(ps: AsyncPenstock, raw: Raw) -> None:
    """An id names its queue; every other queue refuses it."""
    done = await ps.queue("a").enqueue(1)
    await ps.queue("b").enqueue(1)
    before = dump(raw)
    with pytest.raises(WrongQueue, match="belongs to another queue than 'b'"):
        await ps.queue("b").ack([done.id])
    assert dump(raw) == before
