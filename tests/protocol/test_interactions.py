"""Limits of a queue beside its other features: each cell of the table in protocol/keys.md.

Each case enqueues jobs of key `a`, and some of other keys, and reserves all that it gets, hour by
hour. The deliveries of each hour keep to the limit, and to the other feature.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock import Done, Handlers, Job, Penstock, Queue, Worker
from penstock.core.flows import effects
from tests.protocol.pages import section
from tests.support.backends import Backend
from tests.support.keyspace import advance, evalshas

HOUR = 3600
LIMITS: dict[str, Callable[[Queue], object]] = {
    "`share`": lambda q: q.configure(share=1),
    "`key_rate`": lambda q: q.configure(key_rate="1/h"),
    "`max_active`": lambda q: q.configure(max_active=2),
    "hold of the queue": lambda q: q.hold(HOUR),
    "hold of a key": lambda q: q.hold(HOUR, key="a"),
}
KEYED = ("`share`", "`key_rate`")
HOLDS = ("hold of the queue", "hold of a key")


class Scene:
    """A queue with a limit, and its deliveries, hour by hour.

    Attributes:
        hours: the bodies that were delivered in each hour.
        most_nodes: how many parts have the limit by themselves.
    """

    def __init__(self, ps: Penstock, raws: list[Any], limit: str) -> None:
        self.ps, self.raws, self.limit = ps, raws, limit
        self.queue = ps.queue("q")
        self.hours = list[list[str]]()
        self.parts = 1

    def limited(self, partitions: int | None = None, **settings: Any) -> Queue:
        """Return the queue with its limit, and with other settings."""
        self.queue = self.ps.queue("q", partitions=partitions)
        self.queue.configure(lease=500 * HOUR, **settings)
        LIMITS[self.limit](self.queue)
        return self.queue

    @property
    def flat(self) -> list[str]:
        """Return all bodies that were delivered, in order."""
        return [body for hour in self.hours for body in hour]

    def hour_of(self, body: str) -> int:
        """Return the hour in which a job was delivered last."""
        return max(at for at, hour in enumerate(self.hours) if body in hour)

    def pass_hour(self) -> None:
        """Set the clock of each part an hour forward."""
        for raw in self.raws:
            for key in raw.scan_iter("penstock:*:meta"):
                if raw.hget(key, "epoch"):
                    name = key.decode().split("{")[1].split("}")[0]
                    keys = {"meta": key}
                    ops = type("Ops", (), {"keys": keys, "name": name})
                    advance(raw, ops, HOUR + 60)  # type: ignore[arg-type]  # it reads the keys

    def look(self, settle: Callable[[Job], object] = lambda job: job.ack()) -> list[str]:
        """Reserve all that there is in this hour, settle it, and go on to the next one."""
        jobs = list[Job]()
        while more := self.queue.reserve(50, block=0):
            jobs += more
        for job in jobs:
            settle(job)
        self.hours.append([job.body for job in jobs])
        self.pass_hour()
        return self.hours[-1]

    def drain(self, hours: int = 12) -> None:
        """Look for so many hours, and check the limit."""
        for _ in range(hours):
            self.look()
        self.check()

    def check(self) -> None:
        """Require that the deliveries have kept to the limit."""
        first, parts = self.hours[0], self.parts
        is_whole = parts == 1 and self.queue.partitions is None
        if self.limit == "`share`" and len(set(map(key_of, first))) > 1 and is_whole:
            assert key_of(first[0]) != key_of(first[1])
        most_of_key = parts if self.limit == "`key_rate`" else math.inf
        most = 2 * parts if self.limit == "`max_active`" else math.inf
        for hour in self.hours:
            assert len(hour) <= most
            counts = Counter(map(key_of, hour))
            assert all(count <= most_of_key for key, count in counts.items() if key != "-")
        if self.limit in HOLDS:
            kept = [one for one in first if self.limit == HOLDS[0] or key_of(one) == "a"]
            assert kept == []
        stats = self.queue.stats()
        assert (stats.ready, stats.scheduled, stats.parked, stats.active) == (0, 0, 0, 0)


def key_of(body: str) -> str:
    """Return the key of a job by its body; "-" = it has none."""
    return body[0]


def enqueue(queue: Queue, *bodies: str, **options: Any) -> list[str]:
    """Enqueue jobs; return their ids."""
    keyed = [body for body in bodies if key_of(body) != "-"]
    assert len(keyed) in (0, len(bodies))
    options |= {"key": key_of} if keyed else {}
    return list(queue.enqueue_many(bodies, **options).ids)


def with_order(scene: Scene) -> None:
    """One job of a key at a time, in order."""
    enqueue(scene.limited(ordered=True), "a0", "a1", "a2", "b0")
    for _ in range(8):
        jobs = scene.look()
        assert Counter(map(key_of, jobs))["a"] <= (1 if scene.limit in KEYED else 3)
    assert [body for body in scene.flat if key_of(body) == "a"] == ["a0", "a1", "a2"]
    scene.check()


def with_per_key(scene: Scene) -> None:
    """At most so many of a key at once."""
    enqueue(scene.limited(per_key=2), *(f"a{i}" for i in range(5)), "b0")
    scene.drain()
    assert len(scene.flat) == 6
    assert all(Counter(map(key_of, hour))["a"] <= 2 for hour in scene.hours)


def with_rate(scene: Scene) -> None:
    """At most so many in a time."""
    enqueue(scene.limited(rate="2/h", burst=2), *(f"a{i}" for i in range(4)), "b0", "b1")
    scene.drain()
    assert len(scene.flat) == 6
    assert all(len(hour) <= 2 for hour in scene.hours)


def with_priority(scene: Scene) -> None:
    """The highest first: of a share, in the line; of a rate of keys, among jobs without a key."""
    queue = scene.limited()
    for body, priority in (("a0", 0), ("a1", 9), ("-0", 0), ("-9", 9)):
        enqueue(queue, body, priority=priority)
    scene.drain()
    assert scene.flat.index("-9") < scene.flat.index("-0")
    is_first = scene.flat.index("a1") < scene.flat.index("a0")
    assert is_first == (scene.limit not in KEYED)


def with_delay(scene: Scene) -> None:
    """A delayed job waits for its time, and then for the limit."""
    queue = scene.limited()
    enqueue(queue, "a0", "b0")
    enqueue(queue, "a1", delay=5 * HOUR)
    scene.drain()
    assert len(scene.flat) == 3
    assert scene.hour_of("a1") >= 4


def with_retry(scene: Scene) -> None:
    """A retry comes again, and keeps to the limit."""
    enqueue(scene.limited(), "a0", "a1", "b0")
    for _ in range(3):
        scene.look(lambda job: job.nack(delay=0) if job.attempt == 1 else job.ack())
    scene.drain()
    assert Counter(scene.flat) == {"a0": 2, "a1": 2, "b0": 2}


def with_batch(scene: Scene) -> None:
    """The callback comes behind all jobs of the batch."""
    queue = scene.limited()
    with queue.batch(then="-end") as batch:
        batch.enqueue_many(["a0", "a1", "b0"], key=key_of)
    scene.drain()
    assert scene.flat[-1] == "-end"
    assert len(scene.flat) == 4


def with_hand_over(scene: Scene) -> None:
    """A job that is handed over is a job like any other."""
    handlers, ran = Handlers(), list[str]()

    @handlers.handler("step")
    def step(body: str) -> Any:
        ran.append(body)
        return Done(then=[step.options(key="a").job("a1")]) if body == "a0" else None

    queue = scene.limited()
    step.options(key="a").enqueue(queue, "a0")
    for _ in range(4):
        ran.clear()
        Worker(scene.ps, queue, handlers, burst=True, concurrency=1).run()
        scene.hours.append([*ran])
        scene.pass_hour()
    scene.check()
    assert scene.flat == ["a0", "a1"]


def with_cancel(scene: Scene) -> None:
    """A cancelled job takes no place of the limit."""
    queue = scene.limited()
    ids = enqueue(queue, "a0", "a1", "a2", "b0")
    queue.cancel(ids[:2])
    scene.drain()
    assert sorted(scene.flat) == ["a2", "b0"]
    assert scene.hour_of("a2") <= 1


def with_purge(scene: Scene) -> None:
    """Nothing is left, and the next job is delivered."""
    queue = scene.limited()
    enqueue(queue, "a0", "a1", "b0")
    assert queue.purge() == 3
    enqueue(queue, "a9")
    scene.drain()
    assert scene.flat == ["a9"]


def with_pause(scene: Scene) -> None:
    """Nothing is delivered meanwhile; a pause of producers delivers no parked job."""
    queue = scene.limited()
    enqueue(queue, "a0", "a1", "b0")
    queue.pause()
    assert scene.look() == []
    queue.pause("in")
    expected = {"`share`": 2, "`key_rate`": 0, "hold of a key": 1}.get(scene.limit)
    jobs = scene.look()
    assert len(jobs) == expected or expected is None
    queue.resume()
    for _ in range(4):
        scene.look()
    assert sorted(scene.flat) == ["a0", "a1", "b0"]


def with_partitions(scene: Scene) -> None:
    """Each partition has its part of the limit, or the keys that lie in it."""
    enqueue(scene.limited(partitions=2), *(f"{key}{i}" for key in "abcd" for i in range(2)))
    scene.drain()
    assert len(scene.flat) == 8


def with_nodes(scene: Scene) -> None:
    """Each node has the limit."""
    scene.parts = 2
    enqueue(scene.limited(), *(f"a{i}" for i in range(6)), *(f"b{i}" for i in range(6)))
    scene.drain()
    assert len(scene.flat) == 12


FEATURES: dict[str, Callable[[Scene], None]] = {
    "`ordered`": with_order,
    "`per_key`": with_per_key,
    "`rate`": with_rate,
    "priority": with_priority,
    "delay": with_delay,
    "retry": with_retry,
    "batch": with_batch,
    "hand-over": with_hand_over,
    "`cancel`": with_cancel,
    "`purge`": with_purge,
    "pause": with_pause,
    "partitions": with_partitions,
    "several nodes": with_nodes,
}


def test_the_table_has_each_pair() -> None:
    """Its lines are the features, its columns the limits, and no cell is empty."""
    table = section("protocol/keys.md", "Beside other features")
    head, *rows = [line.split(" | ") for line in re.findall(r"^\| (.*) \|$", table, re.MULTILINE)]
    assert head[1:] == list(LIMITS)
    assert [row[0] for row in rows] == list(FEATURES)
    assert all(len(row) == len(head) and all(row) for row in rows)


@pytest.fixture
def scene(
    request: pytest.FixtureRequest, brief_backend: Backend, limit: str, feature: str
) -> Iterator[Scene]:
    """A queue on one node, or on two."""
    backends = [brief_backend]
    if feature == "several nodes":
        backends = [Backend(f"fake-{i}", "") for i in range(2)]
    raws = [one.sync_client() for one in backends]
    source = raws if len(raws) > 1 else raws[0]
    with Penstock(source, owner="tester") as ps:
        yield Scene(ps, raws, limit)


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("feature", FEATURES)
def test_a_pair(scene: Scene, feature: str) -> None:
    """The limit holds beside the feature, as the table says."""
    FEATURES[feature](scene)


IDLE: dict[str, Callable[[Queue], object]] = {
    **LIMITS,
    "`share`": lambda q: q.configure(share=1, per_key=1),
    "`per_key`": lambda q: q.configure(per_key=1),
    "`ordered`": lambda q: q.configure(ordered=True),
    "`rate`": lambda q: q.configure(rate="1/h"),
    "pause": lambda q: q.pause(),
}


@pytest.mark.parametrize("limit", IDLE)
def test_an_idle_consumer_rests(
    one_server: Backend, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a limit holds its jobs back, a blocked consumer makes no call but the first and last.

    Polls are turned off: each further call would be one of a loop.
    """
    monkeypatch.setattr(effects, "POLL_INTERVAL", 60.0)
    raw = one_server.sync_client()
    with Penstock(one_server.sync_client(), owner="tester") as ps:
        queue = ps.queue("q")
        queue.configure(lease=600)
        IDLE[limit](queue)
        enqueue(queue, *(f"a{i}" for i in range(5)))
        while queue.reserve(1, block=0):
            pass
        before = evalshas(raw)
        assert queue.reserve(1, block=0.4) == []
        assert evalshas(raw) - before <= 3
