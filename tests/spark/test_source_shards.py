"""Groups 1 and 9: the sources with several nodes and partitions, without a JVM."""

from __future__ import annotations

import pickle
import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import fakeredis
import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition
from redis.exceptions import ConnectionError as RedisConnectionError

from penstock import BatchLost, CheckpointTaken, Penstock
from penstock.core.values.partitions import partition_of
from penstock.errors import NodesUnavailable, QueueMissing
from penstock.spark import stream
from penstock.spark.checkpoint import Batches
from penstock.spark.errors import Unreachable
from penstock.spark.options import STATES
from penstock.spark.shards import OpenShard, OpenShards
from penstock.spark.snapshot import SnapshotReader
from tests.model.clock import TestClock, use_test_clock
from tests.spark.hands import schema
from tests.spark.streams import QuietReader

T0 = 1_800_000_000_000
LEASE = 60_000
Offset = dict[str, Any]


class Ground:
    """Servers that can be made unreachable, and a queue on all of them.

    Args:
        count: of the servers.
        partitions: of the queue; None = it has none.
    """

    def __init__(self, count: int, partitions: int | None) -> None:
        self.servers = [fakeredis.FakeServer() for _ in range(count)]
        raws = [fakeredis.FakeRedis(server=one, protocol=2) for one in self.servers]
        self.clocks = [TestClock(raw, T0) for raw in raws]
        self.clients = [Penstock(raw, retry_for=0) for raw in raws]
        self.queues = [one.queue("q", partitions=partitions) for one in self.clients]
        self.urls = [f"redis://n{number}" for number in range(count)]
        self.added = 0

    def client(self, options: Any) -> Penstock:
        """Return the client of the named server."""
        return self.clients[self.urls.index(options.url or options.nodes[0])].connect()

    def options(self, **given: Any) -> dict[str, str]:
        """Return options with all servers."""
        where = {"nodes": ",".join(self.urls)} if len(self.urls) > 1 else {"url": self.urls[0]}
        return {"queue": "q", **where, **{name: str(value) for name, value in given.items()}}

    def add(self, count: int, at: int | None = None) -> None:
        """Enqueue jobs with distinct bodies, on one server or each in turn."""
        for body in range(self.added, self.added + count):
            self.queues[body % len(self.queues) if at is None else at].enqueue(b"%d" % body)
        self.added += count

    def life(self, **given: Any) -> QuietReader:
        """Return a newly started driver."""
        options = self.options(leaseDuration="60s", stopLease="60s", **given)
        return QuietReader(options, schema("id string, payload binary"))

    def read(self, parts: Sequence[InputPartition], **given: Any) -> list[bytes]:
        """Return the bodies of a batch, as tasks read them."""
        reader = QuietReader(self.options(**given), schema("id string, payload binary"))
        batches = [batch for part in parts for batch in reader.read(part)]
        rows = [row for batch in batches for row in pa.Table.from_batches([batch]).to_pylist()]
        assert len({row["id"] for row in rows}) == len(rows)
        return [row["payload"] for row in rows]

    def cut(self, at: int) -> None:
        """Make a server unreachable."""
        self.servers[at].connected = False

    def mend(self, at: int) -> None:
        """Make it reachable again."""
        self.servers[at].connected = True

    def drained(self, at: int) -> int:
        """Count the jobs that others can reserve on a server."""
        count = 0
        while jobs := self.queues[at].reserve(20, block=0):
            count += len(jobs)
        return count

    def total(self, name: str) -> int:
        """Return a sum over the whole queue."""
        return sum(getattr(queue.stats(), name) for queue in self.queues)


Make = Callable[..., Ground]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Make:
    """Return a function that makes servers with fixed clocks."""
    use_test_clock(monkeypatch)

    def made(count: int = 2, partitions: int | None = None) -> Ground:
        ground = Ground(count, partitions)
        monkeypatch.setattr("penstock.spark.shards.get_client", ground.client)
        return ground

    return made


def bodies(first: int, end: int) -> list[bytes]:
    """Return the bodies that were added."""
    return [b"%d" % number for number in range(first, end)]


# -- streams -------------------------------------------------------------------------------


@pytest.mark.parametrize("count, partitions", [(3, None), (1, 4), (2, 3)])
def test_an_offset_for_each_shard(count: int, partitions: int | None, make: Make) -> None:
    """Each partition on each node has its own batches; together they have each job once."""
    ground = make(count, partitions)
    ground.add(60)
    life = ground.life()
    start = life.initialOffset()
    first = life.latest(start, 1000)
    assert len(first["nodes"]) == count * (partitions or 1)
    assert set(first["nodes"].values()) == {1}
    parts = pickle.loads(pickle.dumps(life.partitions(start, first)))
    assert sorted(ground.read(parts)) == sorted(bodies(0, 60))
    copy = pickle.loads(pickle.dumps(life))  # as each task gets it
    assert sum(batch.num_rows for part in parts for batch in copy.read(part)) == 60
    assert life.reportLatestOffset() == dict.fromkeys(STATES, 0) | {
        "active": 60,
        "oldestWaitMs": 0,
    }
    ground.add(1, at=0)
    second = life.latest(first, 1000)
    changed = {key for key in second["nodes"] if second["nodes"][key] != first["nodes"][key]}
    assert len(changed) == 1
    assert ground.read(life.partitions(first, second)) == [b"60"]
    assert (ground.total("acked"), ground.total("active")) == (60, 1)
    life.commit(second)
    assert ground.total("acked") == 61
    life.stop()


def test_offsets_of_one_node_are_read_with_several(make: Make) -> None:
    """A checkpoint of one server continues when others are added."""
    ground = make(2)
    ground.add(4, at=0)
    one, other = (client.connect().topology.executor.id for client in ground.clients)
    offset = {"consumer": "00112233445566ff", "queue": "q", "nodes": {one: 6}}
    older = QuietReader({"queue": "q", "url": ground.urls[0]}, schema("id string"))
    noted = older.latest(offset, 10)
    assert noted == {**offset, "nodes": {one: 7}}
    older.stop()
    ground.add(3, at=1)
    life = ground.life()
    assert sorted(ground.read(life.partitions(offset, noted))) == bodies(0, 4)
    after = life.latest(noted, 10)
    assert after["nodes"] == {one: 7, other: 1}
    assert sorted(ground.read(life.partitions(noted, after))) == bodies(4, 7)
    life.commit(after)
    assert ground.total("acked") == 7
    life.stop()


def test_a_node_that_is_down_while_a_batch_is_planned(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """The other nodes continue; the jobs of the node come when it is back, and none is lost."""
    ground = make(3)
    ground.add(30)
    life = ground.life()
    start = life.initialOffset()
    ground.cut(1)
    first = life.latest(start, 100)
    assert "a node is not used for now" in caplog.text
    assert len(first["nodes"]) == 2
    assert len(ground.read(life.partitions(start, first))) == 20
    assert life.reportLatestOffset()["active"] == 20
    ground.mend(1)
    second = life.latest(first, 100)
    assert sorted(second["nodes"].values()) == [1, 1, 1]
    assert {int(body) % 3 for body in ground.read(life.partitions(first, second))} == {1}
    assert life.latest(second, 100) == second
    assert (ground.total("acked"), ground.total("active")) == (30, 0)
    life.stop()


def test_a_required_queue_on_a_node_that_is_down(make: Make) -> None:
    """It may exist there, so the query goes on with the other nodes."""
    ground = make(2)
    ground.add(5, at=0)
    ground.cut(0)
    life = ground.life(requireQueue="true")
    start = life.initialOffset()
    assert life.latest(start, 10) == start
    ground.mend(0)
    assert len(life.latest(start, 10)["nodes"]) == 1
    life.stop()


def test_no_node_at_all(make: Make) -> None:
    """Without any node the query fails; that is not an empty queue."""
    ground = make(2)
    life = ground.life()
    ground.cut(0)
    ground.cut(1)
    with pytest.raises(Unreachable, match="'q': the server can't be reached"):
        life.latest(life.initialOffset(), 10)
    life.stop()


def test_a_node_that_goes_and_comes_between_two_triggers(make: Make) -> None:
    """A committed batch is acknowledged when its node is back, before a new one is reserved."""
    ground = make(2)
    ground.add(20)
    life = ground.life()
    start = life.initialOffset()
    first = life.latest(start, 10)
    seen = ground.read(life.partitions(start, first))
    ground.cut(1)
    second = life.latest(first, 10)
    assert sorted(second["nodes"].values()) == [1, 2]
    seen += ground.read(life.partitions(first, second))
    ground.mend(1)
    third = life.latest(second, 10)
    seen += ground.read(life.partitions(second, third))
    assert life.latest(third, 10) == third
    assert sorted(seen) == sorted(bodies(0, 20))
    assert (ground.total("acked"), ground.total("active")) == (20, 0)
    life.stop()


def test_leases_of_a_finished_batch_on_a_node_that_was_away(make: Make) -> None:
    """They are renewed until the batch can be acknowledged, or its jobs would come again."""
    ground = make(2)
    ground.add(20)
    life = ground.life()
    first = life.latest(life.initialOffset(), 20)
    ground.cut(1)
    second = life.latest(first, 20)
    ground.mend(1)
    ground.clocks[1].set(T0 + LEASE - 1)
    life.renew()
    ground.clocks[1].set(T0 + LEASE + 1)
    assert ground.drained(1) == 0
    life.latest(second, 20)
    assert ground.total("acked") == 20
    life.stop()


def test_a_copied_checkpoint_of_several_nodes(make: Make) -> None:
    """The older query fails: only nodes that can't be reached are left out."""
    ground = make(2)
    ground.add(20)
    older, newer = ground.life(), ground.life()
    start = older.initialOffset()
    first = older.latest(start, 10)
    assert newer.latest(start, 10) == first
    with pytest.raises(CheckpointTaken):
        older.latest(first, 10)
    older.stop()
    newer.stop()


def test_the_only_server_fails_during_a_call(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The query fails: a batch without jobs would look like an empty queue."""
    ground = make(1)
    ground.add(5)
    life = ground.life()

    def fails(*_: Any) -> int:
        raise RedisConnectionError("for once")

    monkeypatch.setattr(Batches, "take", fails)
    with pytest.raises(RedisConnectionError, match="for once"):
        life.latest(life.initialOffset(), 10)
    life.stop()


def test_a_shard_is_finished_before_it_is_taken_from(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A node fails during the ack and answers directly after: its batch is kept."""
    ground = make(2)
    ground.add(20)
    life = ground.life()
    start = life.initialOffset()
    first = life.latest(start, 10)
    seen = ground.read(life.partitions(start, first))
    failing = next(iter(life._made.values()))

    def fails(_: int) -> int:
        raise RedisConnectionError("for once")

    with monkeypatch.context() as patch:
        patch.setattr(failing, "finish", fails)
        second = life.latest(first, 10)
    assert "a node is not used for now: for once" in caplog.text
    seen += ground.read(life.partitions(first, second))
    assert second["nodes"][failing.shard.key] == 1
    for _ in range(3):
        third = life.latest(second, 10)
        seen += ground.read(life.partitions(second, third))
        second = third
    for clock in ground.clocks:
        clock.set(T0 + LEASE + 1)
    assert [queue.reserve(10, block=0) for queue in ground.queues] == [[], []]
    assert sorted(seen) == sorted(bodies(0, 20))
    life.stop()


def test_a_batch_is_not_read_without_a_node_that_has_some_of_it(make: Make) -> None:
    """A restarted driver does not skip a missing node's jobs, as the batch's ack
    would include them.
    """
    ground = make(2)
    ground.add(20)
    life = ground.life()
    start = life.initialOffset()
    noted = life.latest(start, 20)
    life.stop()
    ground.cut(1)
    later = ground.life(failOnLostBatch="false")
    with pytest.raises(NodesUnavailable, match=r"queue 'q': node [0-9a-f]{8} has jobs of batch 1"):
        later.partitions(start, noted)
    later.stop()
    ground.mend(1)
    last = ground.life()
    assert sorted(ground.read(last.partitions(start, noted))) == sorted(bodies(0, 20))
    last.stop()


def test_a_node_that_is_not_named_any_more(make: Make) -> None:
    """A batch's jobs on a node that is no longer named are lost to the query, which logs that.

    When it is named again they come after their leases, and are not acknowledged unread.
    """
    ground = make(3)
    ground.add(30)
    life = ground.life()
    start = life.initialOffset()
    noted = life.latest(start, 30)
    life.stop()
    two = {"nodes": ",".join(ground.urls[:2])}
    strict = ground.life(**two)
    with pytest.raises(BatchLost, match="failOnLostBatch"):
        strict.partitions(start, noted)
    strict.stop()
    lenient = ground.life(**two, failOnLostBatch="false")
    assert len(ground.read(lenient.partitions(start, noted), **two)) == 20
    after = lenient.latest(noted, 30)
    assert (len(noted["nodes"]), len(after["nodes"])) == (3, 2)
    assert lenient.partitions(noted, after) == []
    assert lenient.latest(after, 30) == after
    lenient.stop()
    ground.clocks[2].set(T0 + LEASE + 1)
    again = ground.life()
    last = again.latest(after, 30)
    assert {int(body) % 3 for body in ground.read(again.partitions(after, last))} == {2}
    again.commit(last)
    assert ground.total("acked") == 30
    again.stop()


class Query:
    """Spark's use of the source, with faults.

    Args:
        ground: the servers.
        draw: decides what happens.

    Attributes:
        is_calm: whether nothing goes wrong.
        sink: each batch once, whichever run writes it.
    """

    def __init__(self, ground: Ground, draw: random.Random) -> None:
        self.ground = ground
        self.draw = draw
        self.is_calm = False
        self.life = ground.life()
        self.start = self.life.initialOffset()
        self.noted: Offset | None = None
        self.sink: list[list[bytes]] = []

    def weather(self) -> None:
        """Make at most one node unreachable."""
        for at in range(len(self.ground.servers)):
            self.ground.mend(at)
        if not self.is_calm and self.draw.random() < 0.5:
            self.ground.cut(self.draw.randrange(len(self.ground.servers)))

    def dies(self) -> bool:
        """Restart the driver at random."""
        if self.is_calm or self.draw.random() > 0.2:
            return False
        self.restart()
        return True

    def restart(self) -> None:
        """Start another driver with the noted offsets."""
        self.life.stop()
        self.life = self.ground.life()

    def step(self) -> bool:
        """Run a micro-batch or part of one; return False if there was nothing to do."""
        if self.noted is None:
            found = self.life.latest(self.start, self.draw.choice([1, 5, 40]))
            if found == self.start:
                return False
            if self.dies():
                return True
            self.noted = found
        self.weather()
        try:
            done = self.ground.read(self.life.partitions(self.start, self.noted))
        except (RedisConnectionError, Unreachable):  # the query fails
            self.restart()
            return True
        if not self.dies():
            self.sink.append(done)
            self.start, self.noted = self.noted, None
        return True


@pytest.mark.parametrize("count, partitions", [(3, None), (2, 2)])
@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_lost_or_doubled(
    seed: int, count: int, partitions: int | None, make: Make
) -> None:
    """Nodes fail and the driver dies between any steps: with held leases each job comes once.

    The sink keeps a batch once.
    """
    draw, ground = random.Random(seed), make(count, partitions)
    query = Query(ground, draw)
    for _ in range(60):
        for at in range(count):
            ground.mend(at)
        ground.add(draw.choice([0, 3, 12]))
        query.weather()
        query.step()
    query.is_calm = True
    query.weather()
    while query.step():
        pass
    query.life.stop()
    done = Counter(body for rows in query.sink for body in rows)
    assert done == Counter(bodies(0, ground.added))
    assert (ground.total("ready"), ground.total("active")) == (0, 0)
    assert ground.total("acked") == ground.added


def test_a_trigger_is_shared(make: Make) -> None:
    """`maxJobsPerTrigger` is divided equally; unused shares go to other shards."""
    ground = make(3)
    ground.add(5, at=0)
    ground.add(200, at=1)
    life = ground.life()
    first = life.latest(life.initialOffset(), 90)
    assert [queue.stats().active for queue in ground.queues] == [5, 85, 0]
    ground.add(100, at=2)
    second = life.latest(first, 90)
    assert [queue.stats().active for queue in ground.queues] == [0, 45, 45]
    life.stop()
    assert len(second["nodes"]) == 3


@pytest.mark.parametrize("wanted, slices", [(None, 1), (3, 3), (8, 8)])
def test_a_slice_has_jobs_of_several_shards(wanted: int | None, slices: int, make: Make) -> None:
    """A small batch is one slice; `numPartitions` is that of the batch, not of each shard."""
    ground = make(2, 8)
    for number in range(160):
        ground.queues[number % 2].enqueue(b"%d" % number, key=f"k{number}")
    life = ground.life(**({"numPartitions": wanted} if wanted else {}))
    end = life.latest(life.initialOffset(), 100)
    made = life.partitions(life.initialOffset(), end)
    assert len(end["nodes"]) == 16
    assert len(made) == slices
    jobs = [sum(one.end - one.start for one in each.value[1]) for each in made]
    assert sum(jobs) == 100 == len(set(ground.read(made)))
    assert max(jobs) == -(-100 // slices)
    assert all(one.start < one.end for each in made for one in each.value[1])
    life.stop()


@pytest.mark.parametrize("nodes, partitions", [(3, None), (1, 4)])
def test_the_driver_calls_several_shards_at_a_time(
    nodes: int, partitions: int | None, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One slow shard does not hold up the others: all of them are reserved from at once."""
    ground = make(nodes, partitions)
    for number in range(40):
        ground.queues[number % nodes].enqueue(b"%d" % number, key=f"k{number}")
    shards = nodes * (partitions or 1)
    together, take = threading.Barrier(shards, timeout=30), Batches.take

    def meeting(self: Batches, *args: Any) -> bool:
        together.wait()  # breaks unless the others come, too
        return take(self, *args)

    monkeypatch.setattr(Batches, "take", meeting)
    life = ground.life()
    assert len(life.latest(life.initialOffset(), 40)["nodes"]) == shards
    life.stop()


def test_jobs_of_a_call(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """`fetchSize` is the most jobs of a call, and a slice ends where it ends."""
    ground = make(1)
    ground.add(13)
    life = ground.life(numPartitions=2)
    parts = life.partitions(life.initialOffset(), life.latest(life.initialOffset(), 20))
    counts: list[int] = []
    run = OpenShard.run

    def counted(self: OpenShard, call: Any) -> Any:
        reply = run(self, call)
        counts.append(len(reply.jobs) // 4)
        return reply

    monkeypatch.setattr(OpenShard, "run", counted)
    assert sorted(ground.read(parts, fetchSize=3)) == sorted(bodies(0, 13))
    assert counts == [3, 3, 1, 3, 3]
    life.stop()


def test_fewer_jobs_a_trigger_than_shards(make: Make) -> None:
    """With fewer jobs than shards, shards take turns."""
    ground = make(1, 4)
    for number in range(4):
        key = next(f"k{i}" for i in range(100) if partition_of(f"k{i}", 4) == number)
        for _ in range(5):
            ground.queues[0].enqueue(b"x", key=key)
    life = ground.life()
    offset = life.initialOffset()
    for _ in range(8):
        offset = life.latest(offset, 1)
    assert set(offset["nodes"].values()) == {2}
    life.stop()


def test_available_now_is_counted_over_all_shards(make: Make) -> None:
    """Jobs added later on any shard are left for the next run."""
    ground = make(2, 2)
    ground.add(50)
    life = ground.life()
    life.prepareForTriggerAvailableNow()
    offset, seen = life.initialOffset(), list[bytes]()
    while (after := life.latest(offset, 12)) != offset:
        seen += ground.read(life.partitions(offset, after))
        offset = after
        ground.add(2)
    assert len(seen) == 50
    assert ground.total("acked") == 50
    life.stop()


@pytest.mark.parametrize("fails", [True, False])
def test_a_task_that_outlives_its_batch_ends(
    fails: bool, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task whose batch is finished, or forgotten, ends without repeated calls."""
    ground = make(1, None)
    ground.add(5)
    life = ground.life()
    life.prepareForTriggerAvailableNow()
    end = life.latest(life.initialOffset(), 10)
    parts = life.partitions(life.initialOffset(), end)
    assert life.latest(end, 10) == end
    assert ground.queues[0].stats().acked == 5
    asked: list[Any] = []
    run = OpenShard.run

    def counted(self: OpenShard, call: Any) -> list[Any]:
        asked.append(call)
        assert len(asked) < 10
        return run(self, call)

    monkeypatch.setattr(OpenShard, "run", counted)
    for _ in range(2):
        asked.clear()
        with pytest.raises(BatchLost) if fails else nullcontext():
            assert ground.read(parts, failOnLostBatch=fails) == []
        assert len(asked) == 1
        key = ground.queues[0].ops.keys.checkpoint(end["consumer"])
        ground.clients[0].topology.executor.command("DEL", key)
    life.stop()


def test_leases_of_every_shard_are_renewed(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    """One heartbeat renews the leases of all shards; a node that is down does not stop it."""
    ground = make(2, 2)
    ground.add(20)
    life = ground.life()
    life.latest(life.initialOffset(), 100)
    for clock in ground.clocks:
        clock.set(T0 + LEASE - 1)
    life.renew()
    for clock in ground.clocks:
        clock.set(T0 + 2 * LEASE - 2)
    assert [queue.reserve(10, block=0) for queue in ground.queues] == [[], []]
    ground.cut(0)
    life.renew()
    ground.mend(0)
    assert caplog.text.count("were not renewed") == 2  # its partitions
    for clock in ground.clocks:
        clock.set(T0 + 2 * LEASE + LEASE // 2)
    assert ground.drained(1) == 0
    assert ground.drained(0) == 10
    life.stop()


def test_partitions_are_learned_when_there_are_some(make: Make) -> None:
    """A query may be older than its queue's partitions; a node that does not know them uses the
    others' number.
    """
    ground = make(2)
    life = ground.life()
    start = life.initialOffset()
    assert life.latest(start, 10) == start
    ground.queues[0] = ground.clients[0].queue("q", partitions=3)
    ground.add(9, at=0)
    first = life.latest(start, 10)
    assert sorted(ground.read(life.partitions(start, first))) == bodies(0, 9)
    assert all("/" in key for key in first["nodes"])
    ground.queues[1] = ground.clients[1].queue("q", partitions=9)
    ground.add(9, at=1)
    second = life.latest(first, 20)
    assert sorted(ground.read(life.partitions(first, second))) == sorted(bodies(9, 18))
    life.stop()
    strict = ground.life(requireQueue="true")
    assert strict.latest(second, 10) == second
    strict.stop()


def test_partitions_that_are_made_meanwhile(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing queue that gets created is read at the next trigger."""
    ground = make(1, 2)
    ground.add(3)
    before = OpenShards([OpenShard(ground.clients[0], "q")])
    monkeypatch.setattr(stream, "open_shards", lambda _: before)
    life = ground.life()
    assert life.latest(life.initialOffset(), 10) == life.initialOffset()
    assert ground.total("ready") == 3
    life.stop()


# -- snapshots -----------------------------------------------------------------------------


def rows(ground: Ground, **given: Any) -> tuple[list[dict[str, Any]], int]:
    """Return the batch source's rows and number of parts."""
    columns = schema("id string, queue string, state string, payload binary, node string")
    reader = SnapshotReader(ground.options(**given), columns)
    parts = reader.partitions()
    batches = [batch for part in parts for batch in reader.read(part)]
    found = [row for batch in batches for row in pa.Table.from_batches([batch]).to_pylist()]
    return found, len(parts)


@pytest.mark.parametrize("count, partitions", [(3, None), (1, 4), (2, 3)])
def test_a_snapshot_has_all_parts(count: int, partitions: int | None, make: Make) -> None:
    """The rows equal the library's view of each node: ids, states, bodies, queue name."""
    ground = make(count, partitions)
    ground.add(80)
    for queue in ground.queues:
        queue.enqueue(b"later", delay=50)
        jobs = queue.reserve(8)
        queue.bury(jobs[:3], "no use")
    found, _ = rows(ground)
    views = {view.id: view for queue in ground.queues for view in queue.jobs()}
    assert sorted(row["id"] for row in found) == sorted(views)
    assert {row["queue"] for row in found} == {"q"}
    assert {row["node"] for row in found} == {name[2:10] for name in views}
    for row in found:
        view = views[row["id"]]
        assert (row["state"], row["payload"]) == (view.state, view.raw)


def test_num_partitions_is_shared_by_the_shards(make: Make) -> None:
    """The number of Spark partitions is as asked in total, not for each shard."""
    ground = make(2, 4)
    ground.add(320)
    found, parts = rows(ground, numPartitions=16)
    assert len(found) == 320
    assert parts == 16


def test_a_snapshot_without_a_node(make: Make) -> None:
    """A missing node is an error unless jobs may be missing; a queue on one node exists."""
    ground = make(2)
    ground.add(10, at=0)
    assert len(rows(ground, requireQueue="true")[0]) == 10
    ground.add(10, at=1)
    ground.cut(0)
    with pytest.raises(Unreachable, match=r"1 of 2 nodes.*skipUnreachable"):
        rows(ground)
    found, _ = rows(ground, skipUnreachable="true")
    assert sorted(row["payload"] for row in found) == bodies(10, 20)
    with pytest.raises(QueueMissing):
        rows(ground, queue="other", requireQueue="true", skipUnreachable="true")


def test_a_slice_of_a_snapshot_has_jobs_of_several_nodes(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task opens each node once. If the queue is re-created on one, it reads the other's jobs."""
    ground, opened = make(2, 8), list[str]()
    ground.add(160)
    for queue in ground.queues:
        queue.reserve(20, block=0)

    def noted(options: Any) -> Penstock:
        opened.extend(options.nodes)
        return ground.client(options)

    monkeypatch.setattr("penstock.spark.shards.get_client", noted)
    found, parts = rows(ground)
    assert (parts, sorted(row["payload"] for row in found)) == (1, sorted(bodies(0, 160)))
    assert opened == ground.urls * 2  # by the plan, and by the task
    reader = SnapshotReader(ground.options(), schema("payload binary"))
    [part] = reader.partitions()
    ground.clients[0].clear([ground.queues[0]])
    ground.queues[0].enqueue(b"another")
    left = [body for batch in reader.read(part) for body in batch.column(0).to_pylist()]
    assert sorted(left) == sorted(b"%d" % number for number in range(1, 160, 2))
    ground.cut(1)
    found, parts = rows(ground, skipUnreachable="true")
    assert (parts, [row["payload"] for row in found]) == (1, [b"another"])


def test_a_queue_in_partitions_without_jobs_is_there(make: Make) -> None:
    """A partitioned queue exists by its stored number, so `requireQueue` accepts it."""
    ground = make(1, 2)
    ground.queues[0].reserve(1, block=0)
    assert rows(ground, requireQueue="true") == ([], 0)
