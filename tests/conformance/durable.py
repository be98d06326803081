"""Ways in which a queue survives the end of its server, and queues with every kind of content.

    with Everysec(binary) as keeper, Penstock(keeper.url, retry_for=30) as ps:
        held = fill(ps)
        before = picture(keeper.raw())
        keeper.fall()                       # kill -9, and the next server starts
        assert picture(keeper.raw()) == before

Clients use one address before and after the fall.
"""

from __future__ import annotations

import abc
import time
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from penstock import Job, Penstock, Queue
from penstock.embedded import EmbeddedServer, ServerBinary
from penstock.errors import QueueFull
from penstock.wire.keys import DEFAULT_PREFIX, node_key
from tests.support import keyspace
from tests.support.keyspace import Raw
from tests.support.proxy import Address, Proxy
from tests.support.twins import wait_for

__all__ = [
    "EVERYTHING",
    "MANY",
    "WAYS",
    "Always",
    "Keeper",
    "Promoted",
    "fill",
    "picture",
    "take",
    "views",
]

EVERYTHING = "}all {of} 100% näive\n"
"""The queue of `fill`; its name has every kind of character."""
MANY = 250
DAY = 86_400
AOF = ("--auto-aof-rewrite-percentage", "0")
TTL_LEEWAY_MS = 10_000
MOVING = {"now", "age", "idle", "oldest", "last_death", "ttl_left", "next_in"}
"""Values computed from the time of the call, which differ between two calls."""


class Door(Proxy):
    """A proxy for clients, whichever server is behind it."""

    def lead_to(self, address: Address) -> None:
        """Connect clients that come from now on to another server."""
        self._upstream = address


class Keeper(abc.ABC):
    """A server, and one way in which its data survives its end.

    Args:
        binary: the server; the first one that is found unless given.
    """

    args: tuple[str, ...] = ()
    appendonly = False

    def __init__(self, binary: ServerBinary | None) -> None:
        self._binary = binary
        self._stack = ExitStack()
        self.server = self._start(*self.args)
        self.door = Door(self.server.address)
        self._stack.callback(self.door.close)

    def _start(self, *args: str) -> EmbeddedServer:
        started = EmbeddedServer(self._binary, tcp=True, appendonly=self.appendonly, args=args)
        return self._stack.enter_context(started)

    @property
    def url(self) -> str:
        """The address for clients."""
        return self.door.url

    def raw(self) -> Raw:
        """A plain client of the current server, bypassing the proxy."""
        plain = Retry(NoBackoff(), 0)
        client: redis.Redis = redis.Redis.from_url(self.server.url, retry=plain)
        return self._stack.enter_context(client)

    @abc.abstractmethod
    def fall(self) -> None:
        """End the server, and start the next one with the kept data."""

    def __enter__(self) -> Keeper:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()


class Always(Keeper):
    """An append-only file that is on disk before each answer; the process is killed."""

    args: tuple[str, ...] = ("--appendfsync", "always", *AOF)
    appendonly = True

    def fall(self) -> None:
        """Kill it; start it again."""
        self.server.kill()
        self.server.restart()

    def file(self) -> Path:
        """The append-only file."""
        folder = self.server.directory
        (found,) = [*folder.rglob("*.incr.aof")] or [*folder.rglob("appendonly.aof")]
        return found


class Everysec(Always):
    """An append-only file that is forced to disk each second; the process is killed.

    A write during an fsync may be delayed and would be lost with the process, so the fall waits
    until all is written.
    """

    args: tuple[str, ...] = ("--appendfsync", "everysec", *AOF)

    def fall(self) -> None:
        """Kill it when all is written; start it again."""
        raw = self.raw()
        wait_for(lambda: raw.info("persistence")["aof_buffer_length"] == 0)
        super().fall()


class Rewritten(Everysec):
    """An append-only file that is first rewritten as commands; the process is killed."""

    args = (*Everysec.args, "--aof-use-rdb-preamble", "no")

    def fall(self) -> None:
        """Rewrite the file, kill it, start it again."""
        raw = self.raw()
        raw.bgrewriteaof()
        wait_for(lambda: self._has_rewritten(raw.info("persistence")))
        super().fall()

    @staticmethod
    def _has_rewritten(info: dict[str, Any]) -> bool:
        busy = info["aof_rewrite_in_progress"] or info["aof_rewrite_scheduled"]
        assert info["aof_last_bgrewrite_status"] == "ok"
        return not busy and info["aof_last_rewrite_time_sec"] >= 0


class Saved(Keeper):
    """A snapshot by SAVE; then the process is killed."""

    def fall(self) -> None:
        """Save, kill it, start it again."""
        self.raw().save()
        self.server.kill()
        self.server.restart()


class Stopped(Keeper):
    """A snapshot that a server with save points writes at SIGTERM."""

    args = ("--save", "86400", "1000000")

    def fall(self) -> None:
        """End it by SIGTERM; start it again."""
        self.server.restart()


class Promoted(Keeper):
    """A replica with all data; the primary is killed, and the replica promoted."""

    args = ("--repl-diskless-sync", "no")

    def __init__(self, binary: ServerBinary | None) -> None:
        super().__init__(binary)
        self._replica = self._start()
        with redis.Redis.from_url(self._replica.url) as raw:
            raw.execute_command("REPLICAOF", "127.0.0.1", self.server.port)
            # WAIT counts a replica that still loads the first copy: earlier writes have the offset
            # 0, as the replica has.
            wait_for(lambda: raw.info("replication")["master_link_status"] == "up")

    def fall(self) -> None:
        """Wait until the replica has all, kill the primary, promote the replica."""
        self.catch_up()
        self.promote()

    def catch_up(self) -> None:
        """Wait until the replica has all."""
        pipeline = self.raw().pipeline(transaction=False)
        # WAIT covers writes of its own connection: writing the same value again is enough.
        node = self.raw().hget(node_key(DEFAULT_PREFIX), "id")
        pipeline.hset(node_key(DEFAULT_PREFIX), "id", node)
        pipeline.execute_command("WAIT", 1, 20_000)
        assert pipeline.execute()[1] == 1, "the replica has not caught up"

    def refrain(self) -> None:
        """Stop the replication from now on."""
        with redis.Redis.from_url(self._replica.url) as raw:
            raw.execute_command("REPLICAOF", "NO", "ONE")

    def promote(self) -> None:
        """Kill the primary, and promote the replica as it is."""
        self.server.kill()
        with redis.Redis.from_url(self._replica.url) as raw:
            raw.execute_command("REPLICAOF", "NO", "ONE")
        self.server = self._replica
        self.door.lead_to(self.server.address)


WAYS: dict[str, type[Keeper]] = {
    "always": Always,
    "everysec": Everysec,
    "rewritten": Rewritten,
    "saved": Saved,
    "stopped": Stopped,
    "promoted": Promoted,
}


# -- the data --------------------------------------------------------------------------------------


class Picture:
    """Every key with type and value, and the times when expiring ones end."""

    def __init__(self, raw: Raw) -> None:
        self.keys = keyspace.dump(raw)
        self.ends = dict(_end_of_life(raw, key) for key, (_, ends) in self.keys.items() if ends)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Picture):
            return NotImplemented
        return self.keys == other.keys and all(
            abs(end - other.ends[key]) < TTL_LEEWAY_MS for key, end in self.ends.items()
        )

    __hash__ = None  # type: ignore[assignment]  # compared only


def _end_of_life(raw: Raw, key: bytes) -> tuple[bytes, int]:
    (seconds, micros), left = raw.pipeline().time().pttl(key).execute()
    return key, seconds * 1000 + micros // 1000 + left


def picture(raw: Raw) -> Picture:
    """Return the whole key space, for a comparison with a later one."""
    return Picture(raw)


def views(ps: Penstock) -> dict[tuple[str, str], Any]:
    """Return everything that a client can see: stats and settings of each queue, and every job."""
    seen: dict[tuple[str, str], Any] = {}
    for name in ps.queues():
        queue = ps.queue(name)
        seen[name, "stats"] = _still(queue.stats())
        for state in ("ready", "scheduled", "active", "dead"):
            seen[name, state] = [_still(view) for view in queue.peek(1000, state=state)]
    return seen


def _still(found: Any) -> dict[str, Any]:
    return {name: value for name, value in asdict(found).items() if name not in MOVING}


# -- queues with every kind of content -------------------------------------------------------------


def take(queue: Queue, body: Any, **options: Any) -> Job:
    """Add a job and reserve it; no other job may be ready."""
    added = queue.enqueue(body, **options)
    (job,) = queue.reserve(1, block=0)
    assert job.id == added.id
    return job


def again(queue: Queue, job: Job) -> Job:
    """Reserve the job again when it is ready; no other job may be."""
    (later,) = queue.reserve(1, block=20)
    assert later.id == job.id
    return later


def fill(ps: Penstock) -> dict[str, Job]:
    """Queues with jobs in every state and of every kind, settings, pauses and tokens.

    Returns:
        The deliveries whose holders live, by what is special about them.
    """
    queue = ps.queue(EVERYTHING)
    _configure(queue)
    _totals(queue)
    _dead(queue)
    held = _held(queue)
    _put_back(queue)
    _waiting(queue)
    _ended_and_given_back(queue, held)
    _pauses(ps)
    _rooms(ps)
    ps.queue("drained").enqueue("gone")
    ps.queue("drained").reserve(1, block=0)[0].ack()
    return held


def _configure(queue: Queue) -> None:
    queue.configure(
        lease=600, max_length=100_000, max_attempts=6, max_crashes=4, max_releases=9,
        backoff_base=20 * DAY, backoff_cap=90 * DAY, dead_max=50, dead_age=30 * DAY,
    )  # fmt: skip


def _totals(queue: Queue) -> None:
    """Increase each counter of the queue."""
    for number in range(3):
        take(queue, number).ack()
    queue.delete([queue.enqueue("deleted").id])
    queue.enqueue("purged")
    assert queue.purge() == 1
    queue.enqueue("expired", ttl=0.001)
    wait_for(lambda: queue.sweep() == 1)
    queue.configure(dead_max=1)
    for number in range(3):
        take(queue, number).bury("trimmed")
    queue.configure(dead_max=50)
    assert queue.redrive() == 1
    queue.ack(queue.reserve(1, block=0))
    stats = queue.stats()
    assert (stats.acked, stats.deleted, stats.purged, stats.expired) == (4, 1, 1, 1)
    assert (stats.died, stats.trimmed, stats.redriven) == (3, 2, 1)
    promoted = queue.enqueue("promoted", delay=DAY).id
    assert queue.promote([promoted])
    assert queue.ack(queue.reserve(1, block=0)).ids() == [promoted]
    assert queue.delete([queue.enqueue("withdrawn", delay=DAY).id], if_undelivered=True)
    take(queue, "evicted", lease=0)
    assert queue.sweep(evict=100, dead=False) == 1
    stats = queue.stats()
    assert (stats.promoted, stats.withdrawn, stats.evicted) == (1, 1, 1)


def _dead(queue: Queue) -> None:
    """Add dead letters of every cause, with their reasons."""
    take(queue, "buried", headers={"trace": "a;b=c"}).bury("bad address\nof ada")
    queue.bury([queue.enqueue({"never": "delivered"}).id], "by hand")
    take(queue, "silent").bury()
    failing = take(queue, b"\x00fails\xff")
    for attempt in range(1, 7):
        failing.nack(delay=0, error=f"try {attempt}: naïve")
        failing = again(queue, failing) if attempt < 6 else failing
    crashing = take(queue, "crashes", lease=0.002, ttl=DAY)
    for _ in range(3):
        crashing = again(queue, crashing)
    wait_for(lambda: not queue.reserve(1, block=0) and queue.stats().dead == 5)
    assert queue.stats().crashed == 4


def _held(queue: Queue) -> dict[str, Job]:
    """Return jobs held in every way."""
    take(queue, "recovered", headers={"k": "v"})
    (recovered,) = queue.recover(1, idle=0)
    crashed = again(queue, take(queue, "crashed", lease=0.02))
    crashed.extend(700)
    held = {
        "recovered": recovered,
        "the queue's lease": take(queue, "plain"),
        "a lease of its own": take(queue, {"own": 1}, lease=900),
        "the longest lease": take(queue, b"long", lease=24 * DAY),
        "a ttl": take(queue, b"", ttl=2 * DAY, lease=900),
        "a lease that its ttl cuts": take(queue, "cut", ttl=1000, lease=DAY),
        "an extended lease": take(queue, "extended", lease=30, headers={"k": "v"}),
        "nacked before": take(queue, "nacked"),
        "released before": take(queue, "released"),
        "crashed before": crashed,
        "at most once": take(queue, "once", lease=0),
        "at most once, with a ttl": take(queue, b"once", lease=0, ttl=5000),
    }
    held["an extended lease"].extend(1800)
    held["nacked before"].nack(delay=0, error="first try")
    held["nacked before"] = again(queue, held["nacked before"])
    held["released before"].release()
    held["released before"] = again(queue, held["released before"])
    taken, early = take(queue, "taken away"), queue.enqueue("brought forward", delay=DAY)
    assert queue.promote([taken.id, early.id])
    held["taken away"], held["brought forward"] = queue.reserve(2, block=0)
    queue.enqueue_many(range(20), headers={"batch": "1"})
    held |= {f"one of a batch, {job.body}": job for job in queue.reserve(20, block=0)}
    return held


def _put_back(queue: Queue) -> None:
    """Add jobs that were delivered and wait for a later time."""
    take(queue, "backs off").nack(error="by the queue's policy")
    take(queue, "waits").nack(delay=7000, error="as told")
    take(queue, "waits with a ttl", ttl=6000).nack(delay=9000)
    take(queue, "later").release(delay=8000)
    assert queue.postpone([queue.enqueue("dequeued", lease=5000).id])


def _waiting(queue: Queue) -> None:
    """Add jobs that were never delivered."""
    queue.enqueue("in ten minutes", delay=600)
    queue.enqueue("at a time", at=time.time() + 7200, headers={"h": "1"})
    queue.enqueue("next year", delay=365 * DAY, ttl=400 * DAY)
    queue.enqueue("at most once, later", delay=3600, lease=0, ttl=DAY)
    queue.enqueue_many((f"many, later {i}" for i in range(MANY)), delay=5000)
    queue.enqueue("at most once", lease=0)
    queue.enqueue("with a lease and a ttl", lease=77, ttl=7 * DAY)
    for body in (b"", b"\r\n$-1\r\n", bytes(range(256)) * 700, None, {"to": ["ada", "naïve"]}):
        queue.enqueue(body, headers={"trace": "x" * 300})
    queue.enqueue_many(f"many {i}".encode() for i in range(MANY))
    queue.enqueue_many((f"many, to end {i}" for i in range(20)), ttl=DAY)


def _ended_and_given_back(queue: Queue, held: dict[str, Job]) -> None:
    """Add jobs that come first: leases ended, or released."""
    for name in ("one of a batch, 3", "one of a batch, 4"):
        assert held.pop(name).extend(0.001)
    held.pop("one of a batch, 7").release()
    held.pop("one of a batch, 8").nack(delay=0, error="at once")
    wait_for(lambda: sum(view.owner != "" for view in queue.peek(4)) == 4)


def _pauses(ps: Penstock) -> None:
    """Make a queue for each side that can be paused, with a job; and queues with settings only."""
    for side in ("in", "out", "all"):
        ps.queue(f"paused {side}").enqueue("waits", delay=0.001 if side == "in" else 0)
        ps.queue(f"paused {side}").pause(side)
    ps.queue("paused and empty").pause("all")
    ps.queue("without limits").configure(max_attempts=0, max_crashes=0, max_releases=0, replicas=2)


def _rooms(ps: Penstock) -> None:
    """Make two bounded queues with a waiting producer: a full one, and one with a token."""
    for name in ("full", "room"):
        queue = ps.queue(name)
        queue.configure(max_length=2)
        queue.enqueue_many(["a", "b"])
        with suppress(QueueFull):
            queue.enqueue("c", block=0.01)
    assert ps.queue("room").reserve(1, block=0)
