"""Group 1: the streaming source's driver part without a JVM, with crashes at every step."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import fakeredis
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from penstock import BatchLost, CheckpointTaken, Penstock
from penstock.errors import BadArgument, QueueMissing
from penstock.spark import stream
from penstock.spark.calls import about_batch
from penstock.spark.checkpoint import Batches
from penstock.spark.shards import OpenShard, OpenShards
from penstock.spark.stream import StreamReader
from penstock.wire.keys import end_of, score_of
from penstock.wire.replies import Fetch
from tests.model.clock import CLOCK, TestClock, use_test_clock
from tests.spark.hands import schema
from tests.spark.streams import QuietReader

T0 = 1_800_000_000_000
LEASE = 60_000
FEW = settings(max_examples=40, stateful_step_count=30, suppress_health_check=list(HealthCheck))
OPTIONS = {"queue": "q", "url": "redis://not-used", "leaseDuration": "60s", "stopLease": "60s"}
Offset = dict[str, Any]


class Ground:
    """A server, its clock, and successive drivers of a query."""

    def __init__(self) -> None:
        self.raw = fakeredis.FakeRedis(server=fakeredis.FakeServer(), protocol=2)
        self.clock = TestClock(self.raw, T0)
        self.client = Penstock(self.raw)
        self.queue = self.client.queue("q")

    def life(self, **options: str) -> QuietReader:
        """Return a newly started driver; the test renews its leases."""
        return Life(self, {**OPTIONS, **options})

    def shards(self) -> OpenShards:
        """Return the queue as a driver finds it."""
        found = OpenShards([OpenShard(self.client, "q")])
        found.exists = self.queue.stats().exists
        return found

    def add(self, count: int) -> None:
        """Enqueue jobs with distinct bodies."""
        added = self.queue.stats().enqueued
        self.queue.enqueue_many([b"%d" % (added + i) for i in range(count)])

    def read(self, slices: list[InputPartition]) -> list[bytes]:
        """Return the bodies of these slices, as tasks read them."""
        shard, bodies = OpenShard(self.client, "q"), list[bytes]()
        for consumer, one in [(a.value[0], b) for a in slices for b in a.value[1]]:
            at = one.start
            while at < one.end:
                args = (one.batch, at, min(1000, one.end - at), 2)
                reply = shard.run(about_batch(shard.ops, "fetch", consumer, *args))
                assert isinstance(reply, Fetch)
                if reply.next <= at:
                    break
                at = reply.next
                bodies += [value.rpartition(b"\n")[2] for value in reply.jobs[3::4]]
        return bodies


class Life(QuietReader):
    """A driver that finds the queue on its ground."""

    def __init__(self, ground: Ground, options: dict[str, str]) -> None:
        super().__init__(options, schema("id string"))
        self.ground = ground

    def _open(self, consumer: str) -> dict[str, Batches]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(stream, "open_shards", lambda _: self.ground.shards())
            return super()._open(consumer)


@pytest.fixture
def ground(monkeypatch: pytest.MonkeyPatch) -> Ground:
    """A server whose clock stands still."""
    use_test_clock(monkeypatch)
    return Ground()


def consumers_of(life: QuietReader) -> Iterator[threading.Thread]:
    """Return the threads that renew its leases."""
    yield from (t for t in threading.enumerate() if t.name.startswith(f"penstock-{life._consumer}"))


# -- the state machine ----------------------------------------------------------------------


class Engine(RuleBasedStateMachine):
    """Spark's handling of a source: offset log, tasks, sink, commit log; it crashes
    between them.
    """

    use_lapse = True

    def __init__(self) -> None:
        super().__init__()
        self.ground = Ground()
        self.ground.queue.configure(max_crashes=0, max_attempts=0)
        self.alive: QuietReader | None = None
        self.offsets: list[tuple[Offset, Offset]] = []
        self.committed = 0
        self.sink: dict[int, list[bytes]] = {}
        self.others: list[bytes] = []
        self.lapsed = False

    @rule(count=st.integers(1, 40))
    def produce(self, count: int) -> None:
        """Enqueue jobs as a producer."""
        self.ground.add(count)

    @rule(limit=st.sampled_from([1, 7, 30, None]), dies=st.integers(0, 5))
    def trigger(self, limit: int | None, dies: int) -> None:
        """Run a micro-batch; the driver dies at the step of this number, 5 = never."""
        life = self.alive = self.alive or self.ground.life()
        if len(self.offsets) == self.committed:
            start = self.offsets[-1][1] if self.offsets else life.initialOffset()
            end = life.latest(start, limit)
            if end == start:
                return None
            if dies == 0:
                return self.die()
            self.offsets.append((start, end))
        if dies == 1:
            return self.die()
        number = self.committed
        start, end = self.offsets[number]
        if number == 0:  # Spark asks again, and a new driver may answer differently
            start = life.initialOffset()
        rows = self.ground.read(life.partitions(start, end))
        if dies == 2:
            return self.die()
        self.sink[number] = rows  # the sink keeps a batch once, whichever run writes it
        if dies == 3:
            return self.die()
        self.committed += 1
        if dies == 4:
            return self.die()
        if number % 2:
            life.commit(end)
        return None

    def die(self) -> None:
        """Lose the driver's process and memory."""
        assert self.alive is not None
        self.alive.stop()
        self.alive = None

    @rule(ms=st.integers(1, LEASE // 3))
    def wait(self, ms: int) -> None:
        """Advance the time; a running driver renews its leases."""
        self.ground.clock.set(self.ground.clock.ms + ms)
        if self.alive is not None:
            for one in self.alive._made.values():
                one.renew()
        elif ms > 100:
            self.lapsed = True

    @rule(n=st.integers(1, 10))
    def steal(self, n: int) -> None:
        """Let leases end without renewal, and another worker reserve some jobs."""
        if self.alive is None and self.use_lapse:
            self.lapsed = True
            self.ground.clock.set(self.ground.clock.ms + LEASE + 1)
            jobs = self.ground.queue.reserve(n, block=0)
            self.others += [job.raw for job in jobs]
            self.ground.queue.ack(jobs)

    def teardown(self) -> None:
        """Run the stream to its end, and check that every job was processed and none is left."""
        for _ in range(200):
            before = (self.committed, self.ground.queue.stats().acked)
            self.trigger(None, 5)
            if before != (self.committed, self.ground.queue.stats().acked):
                continue
            if not self.ground.queue.stats().active:
                break
            self.wait(LEASE // 3)  # a driver without a noted offset left leases
        self.die()
        stats = self.ground.queue.stats()
        assert (stats.ready, stats.scheduled, stats.active, stats.dead) == (0, 0, 0, 0)
        done = Counter(body for rows in self.sink.values() for body in rows) + Counter(self.others)
        assert set(done) == {b"%d" % i for i in range(stats.enqueued)}
        if not self.lapsed:
            assert set(done.values()) <= {1}


def test_no_job_is_lost_wherever_the_driver_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every job comes at least once; with held leases once, in the same batch."""
    use_test_clock(monkeypatch)
    run_state_machine_as_test(Engine, settings=FEW)


def test_no_job_is_doubled_while_leases_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """If no lease ends, each job comes exactly once to a sink that keeps a batch once."""
    use_test_clock(monkeypatch)

    class Prompt(Engine):
        use_lapse = False

    run_state_machine_as_test(Prompt, settings=FEW)


# -- single cases --------------------------------------------------------------------------


def test_a_batch_is_made_in_steps_and_found_again(ground: Ground) -> None:
    """A driver dies between two steps of 500 and leaves an open batch; the next one fills it."""
    ground.add(1200)
    first = ground.life()
    start = first.initialOffset()
    one = first._open_batches(start["consumer"])["" or OpenShard(ground.client, "q").key]
    one._assign(1, 1200, 500)
    first.stop()
    second = ground.life()
    end = second.latest(start, 1200)
    assert end == {"consumer": start["consumer"], "queue": "q", "nodes": {one.shard.key: 1}}
    parts = second.partitions(start, end)
    assert Counter(ground.read(parts)) == Counter(b"%d" % i for i in range(1200))
    second.stop()


def test_offsets_and_finished_batches(ground: Ground) -> None:
    """The offset stays without jobs and advances with jobs; the start's batch is finished."""
    life = ground.life()
    start = life.initialOffset()
    assert life.initialOffset() == start
    assert life.latest(start, 10) == start
    ground.add(25)
    first = life.latest(start, 10)
    assert life.latest(start, 10) == first
    assert ground.queue.stats().active == 10
    second = life.latest(first, 10)
    assert ([*second["nodes"].values()], ground.queue.stats().acked) == ([2], 10)
    third = life.latest(second, 10)
    assert life.latest(third, 10) == third
    stats = ground.queue.stats()
    assert (stats.acked, stats.active, stats.ready) == (25, 0, 0)
    life.stop()


def test_the_old_signature(ground: Ground) -> None:
    """Without arguments (Spark 4.0, 4.1) the last planned batch is finished at the
    next question.
    """
    ground.add(15)
    life = ground.life()
    first = life.latest(None, 10)
    assert life.latest(None, 10) == first
    life.partitions(life.initialOffset(), first)
    second = life.latest(None, 10)
    assert ([*second["nodes"].values()], ground.queue.stats().acked) == ([2], 10)
    life.stop()
    later = ground.life()  # does not know where it was
    ground.add(5)
    begun = later.latest(None, 10)
    later.partitions(second, begun)  # but gets the committed offset
    assert ground.queue.stats().acked == 15
    later.stop()


@pytest.mark.parametrize("then", ["plans", "commits", "dies"])
def test_a_driver_that_is_not_told_its_checkpoint(then: str, ground: Ground) -> None:
    """Spark 4.0 and 4.1 do not pass the committed offset, so a new consumer begins.

    The committed batch is acknowledged, and the new one is read, whatever the driver does first.
    """
    ground.add(10)
    life = ground.life()
    first = life.latest(None, 10)
    life.partitions(life.initialOffset(), first)
    life.stop()
    ground.add(5)
    later = ground.life()
    begun = later.latest(None, 10)
    if then == "commits":
        later.commit(first)
    if then == "dies":
        later.stop()
        later = ground.life()
    assert len(ground.read(later.partitions(first, begun))) == 5
    assert ground.queue.stats().acked == 10
    assert later.latest(begun, 10) == begun
    assert ground.queue.stats().acked == 15
    later.stop()


def test_commit_is_the_second_chance(ground: Ground) -> None:
    """`commit` finishes what `latestOffset` has not; together they finish a batch once."""
    ground.add(10)
    life = ground.life()
    first = life.latest(life.initialOffset(), 5)
    life.commit(first)
    assert ground.queue.stats().acked == 5
    second = life.latest(first, 5)
    life.commit(first)
    assert (ground.queue.stats().acked, ground.queue.stats().active) == (5, 5)
    life.commit(second)
    assert ground.queue.stats().acked == 10
    life.stop()


def test_a_copied_checkpoint_stops_the_older_query(ground: Ground) -> None:
    """The query that takes the checkpoint over continues; the older one fails without effect."""
    ground.add(20)
    older = ground.life()
    start = older.initialOffset()
    first = older.latest(start, 10)
    newer = ground.life()
    assert newer.latest(start, 10) == first
    before = ground.queue.stats()
    for offset in (start, first):
        with pytest.raises(CheckpointTaken):
            older.latest(offset, 10)
    assert ground.queue.stats().acked == before.acked == 0
    assert [*newer.latest(first, 10)["nodes"].values()] == [2]
    older.stop()
    newer.stop()


def test_a_restarted_query_plans_its_batch_again(ground: Ground) -> None:
    """It takes the checkpoint over, and renews the leases at once and from then on."""
    ground.add(10)
    older, newer = ground.life(), ground.life()
    start = older.initialOffset()
    first = older.latest(start, 10)
    older.stop()
    assert not list(consumers_of(older))
    ground.clock.set(T0 + LEASE - 1)
    newer.partitions(start, first)
    assert len(list(consumers_of(newer))) == 1
    ground.clock.set(T0 + LEASE + 1)
    assert ground.queue.reserve(10, block=0) == []
    with pytest.raises(CheckpointTaken):
        older.latest(first, 10)
    assert ground.queue.stats().acked == 0
    newer.latest(first, 10)
    assert ground.queue.stats().acked == 10
    assert len(list(consumers_of(newer))) == 1
    newer.stop()
    assert not list(consumers_of(newer))


@pytest.mark.parametrize("fails", [True, False])
def test_a_forgotten_batch(fails: bool, ground: Ground, caplog: pytest.LogCaptureFixture) -> None:
    """A failover lost a batch's list: the result is an error or a batch without
    jobs; they come back.
    """
    ground.add(10)
    life = ground.life()
    start = life.initialOffset()
    end = life.latest(start, 10)
    life.stop()
    ground.raw.delete(ground.queue.ops.keys.checkpoint(start["consumer"]))
    later = ground.life(failOnLostBatch=str(fails).lower())
    if fails:
        with pytest.raises(BatchLost, match=r"batch 1 .*set failOnLostBatch=false"):
            later.partitions(start, end)
    else:
        assert later.partitions(start, end) == []
        assert "has forgotten batch 1 of this checkpoint" in caplog.text
    ground.clock.set(T0 + LEASE + 1)
    assert len(ground.queue.reserve(100)) == 10
    later.stop()


def test_leases_are_renewed_while_a_batch_runs(ground: Ground) -> None:
    """A thread renews leases until the batch is finished; a stopped query renews none."""
    ground.add(5)
    life = ground.life()
    life.beat = 0.01
    end = life.latest(life.initialOffset(), 5)
    key = ground.queue.ops.keys["active"]
    ground.clock.set(T0 + LEASE // 2)
    renewed = threading.Event()
    for _ in range(2000):
        scores = [end_of(score) for _, score in ground.raw.zrange(key, 0, -1, withscores=True)]
        if scores and min(scores) == T0 + LEASE // 2 + LEASE:
            renewed.set()
            break
        threading.Event().wait(0.005)
    assert renewed.is_set()
    assert list(consumers_of(life))
    life.latest(end, 5)
    life.stop()
    assert not list(consumers_of(life))
    assert ground.queue.stats().active == 0


def test_jobs_with_mixed_receipts_are_settled_by_a_few_calls(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alternating first deliveries and others need a few calls, as each receipt is sent once."""
    ground.add(300)
    for number, job in enumerate(ground.queue.reserve(300)):
        job.nack(delay=0 if number % 2 else 400 + number)
    for number, job in enumerate(ground.queue.reserve(300)):
        job.nack(delay=401 + 2 * number)
    life = ground.life()
    ground.clock.set(T0 + 800_000)
    end = life.latest(life.initialOffset(), 1000)
    assert len(ground.read(life.partitions(life.initialOffset(), end))) == 300
    called = watched(monkeypatch)
    life.renew()
    life.latest(end, 1000)
    names = [call.script.name for call in called]
    assert ground.queue.stats().acked == 300
    assert names.count("extend") == names.count("ack") == 2, names
    life.stop()


def watched(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list of the calls from now on."""
    called: list[Any] = []
    run = OpenShard.run

    def noted(self: OpenShard, call: Any) -> Any:
        called.append(call)
        return run(self, call)

    monkeypatch.setattr(OpenShard, "run", noted)
    return called


def test_the_calls_of_a_batch(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run reads a batch once, and makes no call for one that it has finished."""
    ground.add(1300)
    life = ground.life()
    start = life.initialOffset()
    called = watched(monkeypatch)

    def trips() -> int:
        count = len(called)
        called.clear()
        return count

    first = life.latest(start, 1300)
    assert trips() == 3 + 2  # 500 jobs are reserved by a call, and 1,000 are read
    life.partitions(start, first)
    assert trips() == 0
    life.renew()
    assert trips() == 3  # one for each reserve, as its jobs have one receipt
    life.latest(first, 10)
    assert ["@" in call.args[1] for call in called if call.script.name == "ack"] == [True] * 3
    assert trips() == 3 + 3  # and three to read what is new, to end the batch, to begin the next
    life.commit(first)
    life.renew()
    assert trips() == 0
    life.stop()


def test_many_jobs_with_one_receipt(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Steps that draw the same tag have the same receipt; a call takes 1,000 jobs of them."""
    monkeypatch.setattr(random, "getrandbits", lambda _: 7)
    ground.add(2200)
    life = ground.life()
    end = life.latest(life.initialOffset(), 2200)
    called = watched(monkeypatch)
    life.renew()
    life.latest(end, 10)
    settled = [call for call in called if call.script.name in ("extend", "ack")]
    assert [len(call.args) for call in settled] == [1004, 1004, 204, 1003, 1003, 203]
    assert ground.queue.stats().acked == 2200
    assert "held no more" not in caplog.text
    life.stop()


def test_jobs_that_were_taken_from_a_batch(
    ground: Ground, caplog: pytest.LogCaptureFixture
) -> None:
    """The others stay leased and are acknowledged; the log has the number of those taken."""
    ground.add(10)
    life = ground.life()
    start = life.initialOffset()
    end = life.latest(start, 10)
    ids = [view.id for view in ground.queue.jobs()]
    ground.queue.ack(ids[:3])
    life.renew()
    assert len(ground.read(life.partitions(start, end))) == 7
    life.latest(end, 10)
    assert ground.queue.stats().acked == 10
    assert (
        "queue 'q': 3 jobs of batch 1 were not held any more: others have settled them"
        in caplog.text
    )
    life.stop()


def test_a_queue_that_is_cleared_while_its_batch_runs(
    ground: Ground, caplog: pytest.LogCaptureFixture
) -> None:
    """The query goes on with new jobs; nothing is logged, as that was intended."""
    ground.add(10)
    life = ground.life()
    end = life.latest(life.initialOffset(), 10)
    ground.queue.clear()
    ground.queue.enqueue(b"new")
    life.renew()
    after = life.latest(end, 10)
    assert ground.read(life.partitions(end, after)) == [b"new"]
    assert caplog.text == ""
    life.stop()


def test_leases_of_jobs_with_a_ttl(ground: Ground) -> None:
    """They are renewed up to the end of the ttl, also in its second half."""
    ground.queue.enqueue(b"x", ttl=100)
    life = ground.life()
    life.latest(life.initialOffset(), 10)
    ground.clock.set(T0 + 55_000)
    life.renew()
    ground.clock.set(T0 + LEASE + 1)
    assert ground.queue.reserve(1, block=0) == []
    assert ground.queue.stats().active == 1
    life.stop()


def test_jobs_behind_many_that_have_expired(ground: Ground) -> None:
    """The batch has them, so a query with `availableNow` does not end before them."""
    ground.queue.enqueue_many([b"old"] * 2100, ttl=1)
    ground.clock.set(T0 + 2000)
    ground.queue.enqueue_many([b"%d" % number for number in range(5)])
    life = ground.life()
    start = life.initialOffset()
    assert len(ground.read(life.partitions(start, life.latest(start, 10)))) == 5
    life.stop()


@pytest.mark.parametrize(
    "more, beat", [({}, 20), ({"leaseDuration": "2h"}, 60), ({"leasePolicy": "sticky"}, 60)]
)
def test_how_often_leases_are_renewed(more: dict[str, str], beat: float) -> None:
    """At a third of their time, and each minute if they are long."""
    assert StreamReader({**OPTIONS, **more}, schema("id string")).beat == beat


def test_a_heartbeat_that_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error reaches Spark each time: no query runs without one."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    reader = StreamReader(OPTIONS, schema("id string"))
    monkeypatch.setattr(reader, "_made", {"0f1e2d3c": None})
    for _ in range(2):
        with pytest.raises(RuntimeError, match="new thread"):
            reader._start_heartbeats()
    reader.stop()


def test_the_limit_of_a_trigger(ground: Ground) -> None:
    """It is Spark's: `maxJobsPerTrigger`, which may be lower, or all jobs."""
    ground.add(30)
    life = ground.life(maxJobsPerTrigger="7")
    assert life.getDefaultReadLimit().max_rows == 7
    offset, limits = life.initialOffset(), [None, ReadMaxRows(3), ReadAllAvailable()]
    for limit, active in zip(limits, [7, 3, 20], strict=True):
        offset = life.latestOffset(offset, limit)
        assert ground.queue.stats().active == active
    life.stop()


def test_a_sticky_batch_waits_for_its_checkpoint(ground: Ground) -> None:
    """With `leasePolicy=sticky` leases have the maximum of 24 days."""
    ground.add(1)
    life = ground.life(leasePolicy="sticky")
    life.latest(life.initialOffset(), 1)
    [(_, score)] = ground.raw.zrange(ground.queue.ops.keys["active"], 0, -1, withscores=True)
    assert end_of(score) == T0 + 24 * 86_400_000
    life.stop()


def test_a_query_that_dies_three_times_makes_dead_letters(ground: Ground) -> None:
    """Each ended lease counts as a crash, whether the query processed the job or not."""
    ground.add(1)
    for away in range(1, 4):
        ground.life().latest(None, 1)
        ground.clock.set(T0 + away * (LEASE + 1))
    assert ground.queue.reserve(1, block=0) == []
    assert ground.queue.stats().dead == 1


def test_a_query_that_is_stopped_makes_no_dead_letters(ground: Ground) -> None:
    """A stop is no crash: others get the jobs, as often as it is longer than `stopLease`."""
    ground.add(1)
    for away in range(1, 6):
        life = ground.life()
        life.latest(None, 1)
        life.stop()
        ground.clock.set(T0 + away * (LEASE + 1))
    [job] = ground.queue.reserve(1, block=0)
    assert (job.attempt, job.deliveries) == (1, 6)
    stats = ground.queue.stats()
    assert (stats.dead, stats.crashed) == (0, 0)


def test_a_batch_that_was_committed_before_a_stop(ground: Ground) -> None:
    """No other consumer gets its jobs for an hour; the next run acknowledges them."""
    ground.add(10)
    life = ground.life(stopLease="1h")
    start = life.initialOffset()
    first = life.latest(start, 10)
    life.partitions(start, first)
    life.stop()
    ground.clock.set(T0 + 3_600_000 - 1)
    assert ground.queue.reserve(10, block=0) == []
    later = ground.life()
    assert later.latest(first, 10) == first
    assert ground.queue.stats().acked == 10
    later.stop()


def test_a_batch_that_was_not_committed_before_a_stop(ground: Ground) -> None:
    """The next run takes it over: from then on the end of a lease is a crash again."""
    ground.add(1)
    life = ground.life(stopLease="1h")
    start = life.initialOffset()
    first = life.latest(start, 1)
    life.stop()
    ground.clock.set(T0 + 3_600_000 - 1)
    later = ground.life()
    assert ground.read(later.partitions(start, first)) == [b"0"]
    ground.clock.set(T0 + 3_600_000 + LEASE)
    [job] = ground.queue.reserve(1, block=0)
    assert (job.attempt, ground.queue.stats().crashed) == (2, 1)


def test_a_batch_that_is_reserved_again_after_a_stop(ground: Ground) -> None:
    """Spark had not noted it: the next run finds it, renews it, and counts its own crashes."""
    ground.add(5)
    life = ground.life(stopLease="2m")
    start = life.initialOffset()
    first = life.latest(start, 10)
    life.stop()
    ground.clock.set(T0 + 2 * LEASE - 1)
    later = ground.life()
    assert later.latest(start, 10) == first
    assert len(ground.read(later.partitions(start, first))) == 5
    ground.clock.set(T0 + 3 * LEASE - 2)
    assert ground.queue.reserve(10, block=0) == []
    ground.clock.set(T0 + 3 * LEASE)
    assert len(ground.queue.reserve(10, block=0)) == 5
    assert ground.queue.stats().crashed == 5


def test_expired_jobs_make_no_empty_batch(ground: Ground) -> None:
    """A call that only removes expired jobs does not complete a batch whose bytes are limited."""
    for _ in range(3):
        ground.queue.enqueue_many([b"old"] * 1000, ttl=1)
    ground.clock.set(T0 + 2000)
    ground.add(3)
    life = ground.life(maxBytesPerTrigger="1000")
    life.latest(life.initialOffset(), 10)
    assert ground.queue.stats().active == 3


def test_an_older_reader_that_stops(ground: Ground) -> None:
    """It changes nothing of a batch that another reader has taken over."""
    ground.add(1)
    older, newer = ground.life(stopLease="1h"), ground.life()
    start = older.initialOffset()
    first = older.latest(start, 1)
    newer.partitions(start, first)
    older.stop()
    ground.clock.set(T0 + LEASE + 1)
    [job] = ground.queue.reserve(1, block=0)
    assert job.attempt == 2


def test_a_trigger_waits_for_jobs(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only for `minJobsPerTrigger`, and only for `maxTriggerDelay`; the first one never does."""
    now = [100.0]
    monkeypatch.setattr(stream, "monotonic", lambda: now[0])
    life = ground.life(minJobsPerTrigger="5", maxTriggerDelay="10s")
    ground.add(2)
    offset = life.latest(life.initialOffset(), 100)
    assert ground.queue.stats().active == 2
    ground.add(4)
    offset = life.latest(offset, 100)
    assert (ground.queue.stats().active, ground.queue.stats().acked) == (0, 2)
    ground.add(1)
    offset = life.latest(offset, 100)
    assert ground.queue.stats().active == 5
    ground.add(1)
    offset = life.latest(offset, 100)
    now[0] += 9.9
    assert life.latest(offset, 100) == offset
    now[0] += 0.2
    assert life.latest(offset, 100) != offset
    assert ground.queue.stats().active == 1
    life.stop()


@pytest.mark.parametrize(
    "size, limit, wanted", [(1000, 100_000, 100), (50_000, 1, 16), (50_000, 1_000_000, 20)]
)
def test_a_batch_is_limited_by_bytes(size: int, limit: int, wanted: int, ground: Ground) -> None:
    """It ends near the limit: the first 16 jobs tell the size of the others."""
    ground.queue.enqueue_many([b"x" * size] * 300)
    life = ground.life(maxBytesPerTrigger=str(limit))
    start = life.initialOffset()
    first = life.latest(start, 10_000)
    active = ground.queue.stats().active
    assert wanted * 0.9 <= active <= wanted
    assert len(ground.read(life.partitions(start, first))) == active
    second = life.latest(first, 10_000)
    assert (ground.queue.stats().acked, ground.queue.stats().active) == (active, active)
    assert second["nodes"] != first["nodes"]
    life.stop()


def test_available_now_takes_existing_jobs(ground: Ground) -> None:
    """Later jobs are left for the next run."""
    ground.add(25)
    life = ground.life()
    life.prepareForTriggerAvailableNow()
    offset, taken = life.initialOffset(), 0
    while True:
        after = life.latest(offset, 10)
        if after == offset:
            break
        taken += len(ground.read(life.partitions(offset, after)))
        offset = after
        ground.add(3)
    assert taken == 25
    stats = ground.queue.stats()
    assert (stats.ready, stats.active, stats.acked) == (9, 0, 25)
    life.stop()


@pytest.mark.parametrize("policy", ["expire", "sticky"])
@pytest.mark.parametrize("more", [0, 8])
def test_available_now_takes_jobs_reserved_by_an_earlier_driver(
    more: int, policy: str, ground: Ground
) -> None:
    """The driver died before its offset was noted: those jobs are done now, with the ready ones."""
    ground.add(5)
    first = ground.life(leasePolicy=policy)
    start = first.initialOffset()
    first.latest(start, 10)
    first.stop()
    ground.add(more)
    life = ground.life(leasePolicy=policy)
    life.prepareForTriggerAvailableNow()
    offset, taken = start, list[bytes]()
    while (after := life.latest(offset, 10)) != offset:
        taken += ground.read(life.partitions(offset, after))
        offset = after
    assert sorted(taken, key=int) == [b"%d" % number for number in range(5 + more)]
    stats = ground.queue.stats()
    assert (stats.ready, stats.active, stats.acked) == (0, 0, 5 + more)
    life.stop()


def test_a_batch_that_was_empty_when_it_was_looked_at(ground: Ground) -> None:
    """Another driver filled a batch after we saw it empty: it is read before its ack."""
    ground.add(1)
    ground.queue.ack(ground.queue.reserve(1))
    older, newer = ground.life(), ground.life()
    start = older.initialOffset()
    assert older.latest(start, 10) == start  # an empty list
    newer.prepareForTriggerAvailableNow()
    assert newer.latest(start, 10) == start  # has read it
    ground.add(5)
    newest = ground.life()
    end = newest.latest(start, 10)
    assert len(ground.read(newer.partitions(start, end))) == 5
    for life in (older, newer, newest):
        life.stop()


def test_all_that_is_available_after_a_crash(ground: Ground) -> None:
    """After a crash of `trigger(once=True)` the reserved jobs are a batch of their own."""
    ground.add(5)
    first = ground.life()
    start = first.initialOffset()
    end = first.latest(start, None)
    first.stop()
    life = ground.life()
    assert life.latest(start, None) == end
    assert len(ground.read(life.partitions(start, end))) == 5
    life.stop()


def test_all_that_is_available(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a limit (`trigger(once=True)`) one batch has all jobs available at the start."""
    ground.add(1300)
    life = ground.life()
    end = life.latest(life.initialOffset(), None)
    assert len(ground.read(life.partitions(life.initialOffset(), end))) == 1300
    ground.add(20)
    monkeypatch.setattr(stream, "MAX_JOBS_PER_BATCH", 15)  # the limit of a batch without one
    life.latest(end, None)
    assert ground.queue.stats().active == 15
    life.stop()


@pytest.mark.parametrize("more", [{"numPartitions": "4"}, {}])
def test_slices(more: dict[str, str], ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """There are `numPartitions` slices, or as many as jobs need; each job is in one of them."""
    monkeypatch.setattr(stream, "ROWS_A_PARTITION", 30)
    ground.add(103)
    life = ground.life(**more)
    end = life.latest(life.initialOffset(), 103)
    slices = life.partitions(life.initialOffset(), end)
    assert [one.end - one.start for each in slices for one in each.value[1]] == [26, 26, 26, 25]
    assert len(set(ground.read(slices))) == 103
    life.stop()


def test_figures_for_the_progress(ground: Ground) -> None:
    """The progress has the numbers of waiting, leased and dead jobs."""
    ground.add(7)
    ground.queue.enqueue("later", delay=60)
    ground.queue.bury(ground.queue.reserve(2), "no use")
    life = ground.life()
    life.latest(life.initialOffset(), 3)
    assert life.reportLatestOffset() == {
        "ready": 2, "scheduled": 1, "parked": 0, "active": 3, "dead": 2, "oldestWaitMs": 0,
    }  # fmt: skip
    ground.clock.set(T0 + 1500)
    assert life.reportLatestOffset()["oldestWaitMs"] == 1500
    life.stop()


def test_a_required_queue(ground: Ground) -> None:
    """Without `requireQueue` a missing queue is empty; with it the query fails."""
    life = ground.life()
    assert life.latest(life.initialOffset(), 3) == life.initialOffset()
    assert set(ground.raw.keys()) <= {CLOCK, b"penstock:node"}
    strict = ground.life(requireQueue="true")
    with pytest.raises(QueueMissing, match="requireQueue"):
        strict.latest(strict.initialOffset(), 3)
    life.stop()
    strict.stop()


def test_an_offset_of_something_else(ground: Ground) -> None:
    """A checkpoint of another source is refused before any job is reserved."""
    ground.add(1)
    life = ground.life()
    others: list[Any] = [
        {"consumer": "../x", "nodes": {}},
        {"consumer": "0" * 16},
        {"offset": 4},
        {"consumer": None},
        {"consumer": "0" * 16, "queue": "other", "nodes": {}},
        [7],
        7,
    ]
    for wrong in others:
        with pytest.raises(BadArgument, match="checkpointLocation"):
            life.latest(wrong, 1)
        with pytest.raises(BadArgument, match="checkpointLocation"):
            life.partitions(life.initialOffset(), wrong)
        with pytest.raises(BadArgument, match="checkpointLocation"):
            life.commit(wrong)
    assert ground.queue.stats().active == 0


def test_the_known_end_of_leases(ground: Ground) -> None:
    """The known end of leases equals the server's, at the start and after a
    renewal; acks need it.
    """
    ground.add(20)
    life = ground.life()
    offset = life.latest(life.initialOffset(), 20)
    [one] = life._open_batches(offset["consumer"]).values()
    [receipt] = one.held
    assert one.ends == {receipt: T0 + LEASE}
    tag, active = int(receipt[-3:], 16), ground.queue.ops.keys["active"]
    for now in (T0, T0 + 5000):
        ground.clock.set(now)
        life.renew()
        scores = {score for _, score in ground.raw.zrange(active, 0, -1, withscores=True)}
        assert scores == {score_of(one.ends[receipt], tag)} == {score_of(now + LEASE, tag)}
    life.latest(offset, 20)
    assert ground.queue.stats().acked == 20
    life.stop()
