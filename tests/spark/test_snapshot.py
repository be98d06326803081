"""Group 9: the batch source: its rows, and consistency while the queue is used."""

from __future__ import annotations

import itertools
import pickle
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import fakeredis
import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock import Job, Penstock
from penstock.client._sync.transport.executor import Executor
from penstock.errors import QueueMissing
from penstock.spark import OptionError
from penstock.spark.options import STATES
from penstock.spark.schema import SCHEMA
from penstock.spark.snapshot import PIECES_PER_SLICE, SnapshotReader
from tests.model.clock import TestClock, use_test_clock

TYPES: dict[str, DataType] = {
    "string": StringType(),
    "binary": BinaryType(),
    "int": IntegerType(),
    "timestamp": TimestampType(),
    "map<string,string>": MapType(StringType(), StringType()),
}
URL = "redis://not-used"


def schema(text: str = SCHEMA) -> StructType:
    """Return a schema, made without a JVM."""
    columns = [column.split(" ", 1) for column in text.split(", ")]
    return StructType([StructField(name, TYPES[kind]) for name, kind in columns])


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Penstock:
    """A client that readers use too; no Spark is needed."""
    found = Penstock(fakeredis.FakeRedis(server=fakeredis.FakeServer(), protocol=2))
    monkeypatch.setattr("penstock.spark.shards.get_client", lambda *_: found)
    return found


def rows(
    text: str = SCHEMA, between: Callable[[], Any] = lambda: None, **options: Any
) -> list[dict[str, Any]]:
    """Return a reader's rows, slice by slice; a callback may run between two pages."""
    given = {"queue": "q", "url": URL, **{name: str(value) for name, value in options.items()}}
    reader = SnapshotReader(given, schema(text))
    found: list[dict[str, Any]] = []
    for one in reader.partitions():
        for batch in reader.read(one):
            found += pa.Table.from_batches([batch]).to_pylist()
            between()
    return found


def by_id(found: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the rows by id, each once."""
    assert max(Counter(row["id"] for row in found).values(), default=1) == 1
    return {row["id"]: row for row in found}


def filled(client: Penstock) -> None:
    """Add jobs in every state, with everything a job may have."""
    queue = client.queue("q")
    queue.configure(per_key=1)
    queue.enqueue_many([b"plain %d" % i for i in range(5)])
    queue.enqueue_many([b"of ada %d" % i for i in range(4)], key="ada")
    queue.enqueue(
        {"to": "ada"}, headers={"trace": "abc", "größe": "ü;=%"}, dedup_id="a;b", ttl=3600
    )
    jobs = queue.reserve(6)
    jobs[0].nack(delay=100, error="SMTP answered 451")
    jobs[1].bury("no use")
    jobs[2].release()
    [again] = queue.reserve(1)
    again.extend(300)
    queue.enqueue(b"once", lease=0, ttl=60)
    queue.enqueue(b"later", delay=50)
    queue.enqueue(b"held twice", dedup_id="x")
    queue.enqueue_many([b"ready %d" % i for i in range(3)])
    queue.promote([queue.enqueue(b"soon", delay=500).id])


def test_every_column_equals_show(client: Penstock) -> None:
    """Each row equals `show`: ids, states, times, counters, headers, owner, error."""
    filled(client)
    queue = client.queue("q")
    found = by_id(rows(numPartitions=3))
    views = {view.id: view for view in queue.jobs()}
    assert set(found) == set(views)
    for name, row in found.items():
        view = views[name]
        assert row["queue"] == "q"
        assert row["node"] == name[2:10]
        assert (row["state"], row["payload"]) == (view.state, view.raw)
        assert dict(row["headers"]) == view.headers
        assert row["dedup_id"] == view.dedup_id
        assert row["attempt"] == 1 + view.nacks + view.crashes
        assert (row["nacks"], row["crashes"]) == (view.nacks, view.crashes)
        assert (row["last_error"] or "") == view.error
        assert (row["owner"] or "") == view.owner
        assert row["enqueued_at"].timestamp() == view.created
        for column, time in (("lease_until", view.lease_until), ("expires_at", view.expires)):
            assert (row[column] and row[column].timestamp()) == time, column
        if view.state == "scheduled":
            assert row["ready_at"].timestamp() == view.due
        assert (row["receipt"] is not None) == (view.state == "active")
    held = [row for row in found.values() if row["receipt"]]
    assert queue.ack([]).done == 0
    for row in held:
        number, _ = queue.ops.number_of(row["id"])
        call = queue.ops.call("ack", "", row["receipt"], "", number)
        assert client.topology.executor.run(call).acked == 1


def test_nothing_is_taken(client: Penstock) -> None:
    """Reading changes nothing."""
    filled(client)
    raw = client.topology.executor.command("DBSIZE")
    before = client.queue("q").stats()
    rows()
    after = client.queue("q").stats()
    assert (before.ready, before.active, before.deliveries) == (
        after.ready, after.active, after.deliveries,
    )  # fmt: skip
    assert client.topology.executor.command("DBSIZE") == raw


@pytest.mark.parametrize("states", [*STATES, "ready,dead"])
def test_states(states: str, client: Penstock) -> None:
    """Rows of one state only; due jobs and ended leases are ready."""
    filled(client)
    wanted = states.split(",")
    found = by_id(rows(states=states))
    assert set(found) == {view.id for view in client.queue("q").jobs(state=wanted)}
    assert {row["state"] for row in found.values()} == set(wanted)


def test_times_and_prefixes(client: Penstock) -> None:
    """`enqueuedAfter` is inclusive, `enqueuedBefore` exclusive; an id may be a prefix."""
    queue = client.queue("q")
    while len({view.created for view in queue.jobs()}) < 6:
        queue.enqueue(b"x")
    every = by_id(rows())
    moments = sorted({row["enqueued_at"] for row in every.values()})
    middle = moments[len(moments) // 2]
    late = by_id(rows(enqueuedAfter=middle.isoformat()))
    early = by_id(rows(enqueuedBefore=str(middle.timestamp())))
    assert set(late) == {name for name, row in every.items() if row["enqueued_at"] >= middle}
    assert set(early) == set(every) - set(late)
    one = max(every)
    assert set(by_id(rows("id string", idPrefix=one[:30]))) == {
        name for name in every if name.startswith(one[:30])
    }
    assert rows(idPrefix="D-00000000") == []
    for wrong in ("yesterday", "1800000000000"):  # ms instead of seconds
        with pytest.raises(OptionError, match="enqueuedAfter"):
            rows(enqueuedAfter=wrong)


@pytest.mark.parametrize("year", [2099, 2290, 2500, 9999])
def test_a_time_that_is_far_away(year: int, client: Penstock) -> None:
    """A date far in the future is later than every job, in every state."""
    queue = client.queue("q")
    queue.enqueue_many([b"x"] * 3)
    queue.enqueue(b"later", delay=60)
    queue.bury(queue.reserve(1), "no use")
    assert len(rows(enqueuedBefore=f"{year}-01-01")) == 4
    assert rows(enqueuedAfter=f"{year}-01-01") == []


@pytest.mark.parametrize("moment", ["0", "1.5", "1970-01-01", "2001-01-01"])
def test_a_time_long_ago(moment: str, client: Penstock) -> None:
    """It is earlier than every job, also if it has fewer digits in ms."""
    client.queue("q").enqueue_many([b"x"] * 3)
    client.queue("q").enqueue(b"later", delay=60)
    assert len(rows(enqueuedAfter=moment)) == 4
    assert rows(enqueuedBefore=moment) == []


@pytest.mark.parametrize("columns", ["id string", "state string", "payload string, attempt int"])
def test_some_columns(columns: str, client: Penstock) -> None:
    """A schema with fewer columns fetches less; a payload may be text."""
    client.queue("q").enqueue_many([b"plain %d" % i for i in range(5)])
    found = rows(columns)
    assert len(found) == 5
    assert [*found[0]] == [column.split()[0] for column in columns.split(", ")]
    if "payload" in columns:
        assert {row["payload"] for row in found} == {f"plain {i}" for i in range(5)}


def test_a_missing_queue(client: Penstock) -> None:
    """A missing queue has no rows and no partitions, unless it is required."""
    assert rows() == []
    with pytest.raises(QueueMissing, match="requireQueue"):
        rows(requireQueue="true")
    client.queue("q").enqueue(b"x")
    client.queue("q").ack(client.queue("q").reserve(1))
    assert rows() == []


BEGIN = 1_800_000_000_000
"""The ms in which a test begins to enqueue."""


@pytest.mark.parametrize(
    "calls, slices",
    [
        pytest.param([(0, 1), *((10**11 + ms, 25) for ms in range(40))], 4, id="an old job"),
        pytest.param([(ms, 1) for ms in range(512)], 12, id="even"),
        pytest.param([(ms + at, 5) for at in (0, 10**9) for ms in range(100)], 8, id="two bursts"),
        pytest.param([(0, 200)], 8, id="one ms"),
        pytest.param([(0, 1)], 1, id="one job"),
    ],
)
def test_the_stream_is_cut_where_jobs_are(
    calls: list[tuple[int, int]], slices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slices are about equal, however the jobs are spread over time, and have each job once."""
    use_test_clock(monkeypatch)
    raw = fakeredis.FakeRedis(server=fakeredis.FakeServer(), protocol=2)
    clock, found = TestClock(raw, BEGIN), Penstock(raw)
    monkeypatch.setattr("penstock.spark.shards.get_client", lambda *_: found)
    for ms, count in calls:
        clock.set(BEGIN + ms)
        found.queue("q").enqueue_many([b"x"] * count)
    reader = SnapshotReader(
        {"queue": "q", "url": URL, "numPartitions": str(slices)}, schema("id string")
    )
    sizes = [sum(b.num_rows for b in reader.read(one)) for one in reader.partitions()]
    assert sum(sizes) == sum(count for _, count in calls)
    assert len(sizes) == slices
    assert max(sizes) <= 1.3 * sum(sizes) / slices


def test_jobs_that_stay_are_seen_once_while_others_move(
    client: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs change between any two pages: untouched jobs come once, and no id comes twice.

    Jobs are enqueued, delivered, acknowledged, failed, released, extended, buried, redriven.
    """
    monkeypatch.setattr("penstock.spark.decoding.JOBS_PER_PAGE", 1)
    draw, queue = random.Random(7), client.queue("q")
    stay = {"ready": 30, "scheduled": 30, "parked": 30, "dead": 20, "active": 20}
    kept = _staying(client, stay)
    moving: list[Job] = []

    def happen() -> None:
        queue.enqueue_many([b"moves"] * 3, delay=draw.choice([0, 0, 0.001, 30]), lease=3600)
        moving.extend(job for job in queue.reserve(1, block=0) if job.raw == b"moves")
        for job in [moving.pop(draw.randrange(len(moving))) for _ in range(min(1, len(moving)))]:
            draw.choice([job.ack, job.nack, job.release, job.bury, job.extend])()
        queue.extend([job for job in kept["active"] if draw.random() < 0.3])

    for _ in range(10):
        happen()
    for size in (3, 10):
        found = rows("id string, state string", happen, numPartitions=3, fetchSize=size)
        seen = by_id(found)
        for state, ids in kept.items():
            names = ids if state != "active" else [job.id for job in ids]
            assert {seen.get(name, {}).get("state") for name in names} == {state}


def _staying(client: Penstock, counts: dict[str, int]) -> dict[str, Any]:
    """Return jobs of each state that stay untouched."""
    queue = client.queue("q")
    queue.enqueue_many([b"stays"] * counts["dead"])
    dead = queue.reserve(counts["dead"])
    queue.bury(dead, "no use")
    queue.enqueue_many([b"stays"] * counts["active"], lease=3600)
    active = queue.reserve(counts["active"])
    scheduled = queue.enqueue_many([b"stays"] * counts["scheduled"], delay=3600).ids
    queue.configure(per_key=1)
    queue.enqueue(b"is never acknowledged", key="ada", lease=3600)
    parked = queue.enqueue_many([b"stays"] * counts["parked"], key="ada").ids
    # waiting ones stay behind the moving ones, in the order of delivery
    queue.enqueue_many([b"moves"] * 400, lease=3600)
    ready = queue.enqueue_many([b"stays"] * counts["ready"]).ids
    return {
        "dead": [job.id for job in dead],
        "active": active,
        "scheduled": list(scheduled),
        "parked": list(parked),
        "ready": list(ready),
    }


def test_a_plan_is_small_however_many_jobs_are_at_work(client: Penstock) -> None:
    """A slice has no list of jobs: only places, so a plan is as small for millions of jobs."""
    queue, sizes = client.queue("q"), []
    reader = SnapshotReader({"queue": "q", "url": URL, "numPartitions": "10"}, schema("id string"))
    for _ in range(2):
        queue.enqueue_many([b"x"] * 2000)
        queue.enqueue_many([b"x"] * 200, delay=60)
        assert len(queue.reserve(1000)) + len(queue.reserve(1000)) == 2000
        slices = [len(pickle.dumps(one)) for one in reader.partitions()]
        assert len(slices) == 10
        sizes.append(sum(slices))
    assert max(sizes) < 10 * 400
    assert abs(sizes[0] - sizes[1]) < 100
    assert len(by_id(rows("id string", numPartitions="10"))) == 4400


def fill_partitions(client: Penstock, jobs: int) -> set[str]:
    """Enqueue jobs to a queue in 64 partitions, in every state; return the ids of all."""
    queue = client.queue("q", partitions=64)
    for number in range(jobs):
        queue.enqueue(b"x", key=f"k{number}", delay=60 if number % 4 == 0 else 0)
    held = queue.reserve(jobs // 2, block=0)
    queue.bury(held[: len(held) // 2], "no use")
    return {view.id for view in queue.jobs()}


@pytest.mark.parametrize(
    "wanted, rows_a_slice, slices", [(4, 1, 4), (None, 50, 4), (None, 1000, 1)]
)
def test_partitions_of_a_queue_share_slices(
    wanted: int | None,
    rows_a_slice: int,
    slices: int,
    client: Penstock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`numPartitions`, or else the number of jobs, decides how many slices there are."""
    monkeypatch.setattr("penstock.spark.snapshot.ROWS_A_SLICE", rows_a_slice)
    expected = fill_partitions(client, 200)
    options = {"queue": "q", "url": URL, **({"numPartitions": str(wanted)} if wanted else {})}
    reader = SnapshotReader(options, schema("id string"))
    parts = reader.partitions()
    assert len(parts) == slices
    assert len(pickle.dumps(parts)) < 64 * 400
    found = [[name for b in reader.read(one) for name in b.column(0).to_pylist()] for one in parts]
    assert Counter(name for names in found for name in names) == Counter(expected)
    assert max(map(len, found)) <= 1.5 * 200 / slices


@pytest.mark.parametrize("wanted", [1, 4, 10, 64, 1000])
def test_held_jobs_of_a_partition_are_read_last(wanted: int, client: Penstock) -> None:
    """A held job that goes back to the queue has been looked for there: other jobs are read before.

    They are in the last slice that has jobs of the partition, and are its last ones.
    """
    fill_partitions(client, 200)
    reader = SnapshotReader(
        {"queue": "q", "url": URL, "numPartitions": str(wanted)}, schema("id string")
    )
    parts: Any = reader.partitions()
    assert len(parts) <= wanted
    places: dict[int, list[str]] = {}
    for one in (each for part in parts for each in part.value):
        places.setdefault(one.address.number, []).append(one.place)
    assert len(places) == 64
    for found in places.values():
        assert "active" not in found[:-1]
    assert any(found[-1] == "active" for found in places.values())


def at_a_cut(
    monkeypatch: pytest.MonkeyPatch, do: Callable[[], Any], name: str = "ZRANGE", number: int = 10
) -> None:
    """Call a function in the middle of a plan: when the tenth place in a sorted set is read."""
    asked, command = itertools.count(1), Executor.command

    def spied(self: Executor, *args: Any) -> Any:
        if args[0] == name and next(asked) == number:
            do()
        return command(self, *args)

    monkeypatch.setattr(Executor, "command", spied)


def test_slices_do_not_overlap_if_jobs_come_meanwhile(
    client: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs that come while the plan is made change the ranks of others: these are read once."""
    queue = client.queue("q")
    stay = queue.enqueue_many([b"x"] * 40, delay=3600).ids
    at_a_cut(monkeypatch, lambda: queue.enqueue_many([b"x"] * 30, delay=1800))
    assert set(stay) <= set(by_id(rows("id string", numPartitions=20)))


def test_a_slice_has_no_later_jobs_if_jobs_go_meanwhile(
    client: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs that go while the plan is made change the ranks of others: no job is read too early."""
    queue = client.queue("q")
    queue.enqueue_many([b"x"] * 40)
    queue.release(queue.reserve(40))
    queue.enqueue_many([b"x"] * 40, delay=3600)
    at_a_cut(monkeypatch, lambda: queue.reserve(30))
    found = rows("id string, state string", states="ready", numPartitions=20)
    assert {row["state"] for row in found} == {"ready"}


@pytest.mark.parametrize("command", ["XRANGE", "XREVRANGE"])
def test_a_stream_that_is_emptied_while_it_is_divided(
    command: str, client: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan ends, and there are no jobs to read."""
    queue = client.queue("q")
    queue.enqueue_many([b"x"] * 40)
    at_a_cut(monkeypatch, lambda: queue.ack(queue.reserve(40)), command, 1)
    assert rows("id string", numPartitions=4) == []


def test_a_job_that_is_delivered_after_it_was_read_comes_once(client: Penstock) -> None:
    """Also if no column needs its record: the note of its delivery is read all the same."""
    queue = client.queue("q")
    queue.enqueue_many([b"x"] * 20)
    queue.reserve(1)
    assert (
        len(rows("queue string", lambda: queue.reserve(20, block=0), states="ready,active")) == 20
    )


def test_a_plan_needs_few_commands(client: Penstock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream is divided by a number of commands that depends on that of the slices."""
    asked, command = list[Any](), Executor.command

    def counted(self: Executor, *args: Any) -> Any:
        asked.append(args[0])
        return command(self, *args)

    for _ in range(50):
        client.queue("q").enqueue_many([b"x"] * 100)
    monkeypatch.setattr(Executor, "command", counted)
    options = {"queue": "q", "url": URL, "numPartitions": "10"}
    assert len(SnapshotReader(options, schema("id string")).partitions()) == 10
    assert len(asked) < 10 + 2 * PIECES_PER_SLICE * 10


def test_jobs_whose_leases_are_extended_while_they_are_read_come_once(
    client: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An extension moves a job towards the end of the structure, where it is read again."""
    monkeypatch.setattr("penstock.spark.decoding.JOBS_PER_PAGE", 7)
    queue = client.queue("q")
    queue.enqueue_many([b"x"] * 30)
    jobs = queue.reserve(30)
    leases = iter(range(600, 700))  # for ever would be too long
    found = rows("id string", lambda: queue.extend(jobs[:9], next(leases)), fetchSize=7)
    assert sorted(by_id(found)) == sorted(job.id for job in jobs)


def test_ties_are_cut_by_number(client: Penstock) -> None:
    """Jobs due at one time are split among slices, and each is seen once."""
    queue = client.queue("q")
    queue.enqueue_many([b"x"] * 300, at=4_000_000_000)
    reader = SnapshotReader(
        {"queue": "q", "url": URL, "numPartitions": "5", "states": "scheduled", "fetchSize": "17"},
        schema("id string"),
    )
    sizes = [sum(b.num_rows for b in reader.read(one)) for one in reader.partitions()]
    assert sizes == [60] * 5


def test_large_bodies_come_in_pages(client: Penstock) -> None:
    """A page has about 1 MiB in every state."""
    queue = client.queue("q")
    queue.enqueue_many([b"x" * 400_000] * 12)
    dead = queue.reserve(10)
    queue.bury(dead, "no use")
    held = queue.reserve(10)
    counts = {"ready": 12 - len(dead) - len(held), "dead": len(dead), "active": len(held)}
    found = rows("state string, payload binary")
    assert Counter(row["state"] for row in found) == counts
    assert min(counts.values()) > 1
    assert {len(row["payload"]) for row in found} == {400_000}


def test_a_queue_recreated_during_a_read(client: Penstock) -> None:
    """When the queue is re-created during a read, the snapshot ends."""
    queue = client.queue("q")
    queue.enqueue_many([b"x"] * 30)
    reader = SnapshotReader({"queue": "q", "url": URL, "fetchSize": "10"}, schema("id string"))
    slices = reader.partitions()
    client.clear([queue])
    queue.enqueue(b"another")
    assert [batch for one in slices for batch in reader.read(one)] == []


def test_a_slice_goes_to_the_node_of_the_plan(client: Penstock) -> None:
    """An executor that reaches another server raises."""
    from penstock.spark import WrongServer

    client.queue("q").enqueue(b"x")
    reader = SnapshotReader({"queue": "q", "url": URL}, schema("id string"))
    [part] = reader.partitions()
    [one] = part.value
    wrong = one._replace(address=replace(one.address, node="00000000"))
    with pytest.raises(WrongServer):
        list(reader.read(InputPartition([wrong])))


# -- with Spark ----------------------------------------------------------------------------


def table(spark: Any, url: str, **options: Any) -> Any:
    """Return the queue `mail` as a table."""
    return spark.read.format("penstock").options(queue="mail", url=url, **options).load()


def test_a_table(spark: Any, ps: Penstock, redis_url: str) -> None:
    """All columns work in Spark; a drained queue has no rows."""
    queue = ps.queue("mail")
    queue.enqueue_many([b"body %d" % i for i in range(3000)], headers={"k": "v"})
    found = table(spark, redis_url, numPartitions=3).collect()
    assert {bytes(row.payload) for row in found} == {b"body %d" % i for i in range(3000)}
    assert {row.id for row in found} == {view.id for view in queue.jobs()}
    assert {tuple(row.headers.items()) for row in found} == {(("k", "v"),)}
    while jobs := queue.reserve(1000, block=0):
        queue.ack(jobs)
    assert table(spark, redis_url).count() == 0


def test_partitions_of_a_queue_share_tasks(spark: Any, ps: Penstock, redis_url: str) -> None:
    """Spark runs as many tasks as asked for, though the queue has 64 partitions."""
    queue = ps.queue("mail", partitions=64)
    for number in range(300):
        queue.enqueue(b"x", key=f"k{number}", delay=60 if number % 4 == 0 else 0)
    queue.bury(queue.reserve(100, block=0)[:50], "no use")
    for given, tasks in (({"numPartitions": 4}, 4), ({}, 1)):
        found = table(spark, redis_url, **given).selectExpr("id", "spark_partition_id() AS task")
        kept = found.collect()
        assert sorted(row.id for row in kept) == sorted(view.id for view in queue.jobs())
        assert len({row.task for row in kept}) == tasks


def test_spark_applies_filters(spark: Any, ps: Penstock, redis_url: str) -> None:
    """Spark applies the filters of a query."""
    ps.queue("mail").enqueue_many([b"x"] * 50)
    assert table(spark, redis_url).where("state = 'ready' and attempt < 2").count() == 50
