"""Group 1: the writers by hand, without a JVM, on a real server."""

from __future__ import annotations

import importlib
import json
import pickle
import re
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest
import redis
from pyspark.sql import Row

from penstock import (
    AckNotReplicated,
    BadArgument,
    NotReplicated,
    Penstock,
    QueueFull,
    QueuePaused,
    RetryPolicy,
    parse_id,
)
from penstock.embedded import EmbeddedServer, find_server
from penstock.errors import QueueDamaged, QueueMissing, UnsupportedVersion
from penstock.spark import OptionError, WrongServer, enqueue_partition, sink
from penstock.spark import writer as writer_module
from penstock.spark.encoding import Task
from penstock.spark.errors import RowError, Unreachable
from penstock.spark.options import Write
from penstock.spark.shards import get_client
from penstock.spark.sink import Sink
from penstock.spark.staged_commit import StagedCommit
from penstock.spark.writer import BatchWriter, StreamWriter
from tests.spark.hands import PLAIN, ROWS, arrow, bodies, close_all, running, schema, write
from tests.spark.support import wait_for
from tests.support.proxy import Proxy

MAP = pa.map_(pa.string(), pa.string())


@pytest.mark.parametrize("mode", ["direct", "staged"])
def test_attempts_in_any_order_of_rows_add_nothing_twice(
    mode: str, ps: Penstock, options: Any
) -> None:
    """Equal rows are separate jobs, within and across partitions; repeated attempts add none."""
    writer = BatchWriter(options(commitMode=mode, batchSize=2), schema(PLAIN), False)
    messages = write(writer, ROWS, tries=3, turn=True)
    assert bodies(ps) == ([] if mode == "staged" else [b"a"] * 4 + [b"b", b"c"])
    pickle.loads(pickle.dumps(writer)).commit(messages)
    assert bodies(ps) == [b"a"] * 4 + [b"b", b"c"]


@pytest.mark.parametrize("text", [PLAIN, "payload binary, id string"])
def test_a_named_write_is_done_once(text: str, ps: Penstock, options: Any) -> None:
    """A repeat adds nothing, also in other partitions and after its jobs are done.

    By default rows with ids are written directly, and others are staged. For staged rows another
    name, or none, adds them again; rows with ids are recognised by them.
    """
    rows, again = [[b"a", b"b"], [b"c", b"d"]], [[b"d", b"a"], [b"c"], [b"b"]]
    names = (("load", 4), ("load", 4), ("other", 8), ("", 12), ("", 16))
    for number, (name, total) in enumerate(names):
        given = options(**({"writeId": name} if name else {}))
        writer = BatchWriter(given, schema(text), False)
        assert writer.options.commit_mode == ("staged" if text == PLAIN else "direct")
        writer.commit(write(writer, again if number else rows))
        total = total if text == PLAIN else 4
        stats = ps.queue("mail").stats()
        assert stats.enqueued == total
        ps.queue("mail").ack(ps.queue("mail").reserve(1000, block=0))


@pytest.mark.parametrize(
    "name, kind, values",
    [
        ("ttl", "int", [100, 200]),
        ("lease", "int", [10, None]),
        ("max_attempts", "int", [3, 4]),
        ("backoff", "int", [5, None]),
        ("delay", "int", [60, 0]),
        ("headers", "map", [{"k": "v"}, {"k": "\x01"}]),
        ("key", "int", [5, None]),
        ("priority", "int", [5, None]),
    ],
)
def test_the_same_body_with_other_terms_is_another_row(
    name: str, kind: str, values: list[Any], ps: Penstock, options: Any
) -> None:
    """A row's whole content identifies it: equal bodies with other options are other rows."""
    types = {name: MAP if kind == "map" else pa.int32()}

    def written(queue: str, attempts: list[list[Any]]) -> list[str]:
        text = f"payload binary, {name} {kind}"
        writer = BatchWriter(
            options(batchSize=1, queue=queue, commitMode="direct"), schema(text), False
        )
        for said in attempts:
            with running(0):
                writer.write(iter(arrow({"payload": [b"x"] * len(said), name: said}, **types)))
        views = ps.queue(queue).jobs()
        return sorted(
            f"{v.state} {v.lease} {v.ttl} {v.retry} {v.headers} {v.key_hash} {v.priority}"
            for v in views
        )

    wanted = written("mail", [values])
    assert len(set(wanted)) == 2
    assert written("other", [values[:1], values[::-1]]) == wanted


def test_jobs_that_are_done_meanwhile_do_not_come_again(ps: Penstock, options: Any) -> None:
    """A dedup id outlives the ack, so finished jobs are not added again."""
    writer = BatchWriter(options(commitMode="direct"), schema(PLAIN), False)
    write(writer, ROWS)
    queue = ps.queue("mail")
    assert queue.ack(queue.reserve(100, block=0)).done == 6
    write(writer, ROWS)
    assert bodies(ps) == []


def test_ids_are_those_of_other_producers(ps: Penstock, options: Any) -> None:
    """A job that a producer added under an id is not added again by a row with that id."""
    names = ["welcome7", "é", "日本", "٣", "a b", "50%;d=x"]
    queue = ps.queue("mail")
    for name in names[::2]:
        queue.enqueue(b"by hand", dedup_id=name)
    writer = BatchWriter(options(), schema("id string, payload binary"), False)
    with running(0):
        rows = {"id": pa.array(names), "payload": pa.array([b"row"] * len(names), pa.binary())}
        writer.commit([writer.write(iter(arrow(rows)))])
    assert bodies(ps) == [b"by hand"] * 3 + [b"row"] * 3
    assert all(queue.dedup_status(name) is not None for name in names)


def test_columns_set_the_options_of_a_job(ps: Penstock, options: Any) -> None:
    """Delay, time, ttl, lease, policy, headers and id are columns; null means no value."""
    soon = datetime.now(timezone.utc) + timedelta(hours=1)
    text = (
        "id string, payload string, readyAt timestamp, ttl double, lease long, max_attempts int, "
        "backoff interval, headers map"
    )
    batch = arrow(
        {
            "id": ["one", "two"],
            "payload": ["héllo", "x"],
            "readyAt": [soon, None],
            "ttl": [7200.5, None],
            "lease": [9, None],
            "max_attempts": [3, None],
            "backoff": [timedelta(seconds=2), None],
            "headers": [[("trace", "t1")], None],
        },
        readyAt=pa.timestamp("us", "UTC"), headers=MAP,
    )  # fmt: skip
    with running():
        BatchWriter(options(), schema(text), False).write(iter(batch))
    queue = ps.queue("mail")
    first, second = queue.dedup_status("one"), queue.dedup_status("two")
    assert first is not None and second is not None  # noqa: PT018
    one, two = first.job, second.job
    assert one is not None and two is not None  # noqa: PT018
    assert (one.raw, one.state, two.raw, two.state) == (
        "héllo".encode(),
        "scheduled",
        b"x",
        "ready",
    )
    assert one.due is not None
    assert abs(one.due - soon.timestamp()) < 2
    assert dict(one.headers) == {"trace": "t1"}
    assert one.retry is not None
    assert (one.retry.max_attempts, one.retry.base, one.retry.cap) == (3, 2.0, None)
    assert two.retry is None
    [job] = queue.reserve(block=0)
    assert (job.id, job.lease) == (two.id, 30)


@pytest.mark.parametrize("mode", ["direct", "staged"])
def test_rows_with_keys_and_priorities(mode: str, ps: Penstock, options: Any) -> None:
    """Jobs of a key take turns, in the order of the rows; those with a priority come first."""
    queue = ps.queue("mail")
    queue.configure(ordered=True)
    rows = {"id": [*"abcde"], "payload": [*"12345"], "key": ["ada", "bob", "ada", None, "bob"]}
    text = "id string, payload string, key string"
    writer = BatchWriter(options(commitMode=mode), schema(text), False)
    with running():
        writer.commit([writer.write(iter(arrow(rows)))])
    taken = queue.reserve(9, block=0)
    assert [job.raw for job in taken] == [b"1", b"2", b"4"]
    queue.ack(taken)
    assert [job.raw for job in queue.reserve(9, block=0)] == [b"3", b"5"]

    urgent = {"id": [*"fgh"], "payload": [*"678"], "priority": [None, 3, 9]}
    text = "id string, payload string, priority int"
    writer = BatchWriter(options(commitMode=mode, queue="urgent"), schema(text), False)
    with running():
        writer.commit([writer.write(iter(arrow(urgent, priority=pa.int32())))])
    assert [job.raw for job in ps.queue("urgent").reserve(9, block=0)] == [b"8", b"7", b"6"]


def test_a_queue_for_each_row(ps: Penstock, options: Any) -> None:
    """A column has the queue; one id in two queues makes two jobs."""
    batch = arrow({"payload": [b"1", b"2"], "id": ["i", "i"], "to": ["mail.a", "mail.b"]})
    text = "payload binary, id string, to string"
    with running():
        BatchWriter(options(queueColumn="to"), schema(text), False).write(iter(batch))
    assert (bodies(ps, "mail.a"), bodies(ps, "mail.b")) == ([b"1"], [b"2"])


@pytest.mark.parametrize(
    "text, columns, types, named",
    [
        (PLAIN, {"payload": [b"x", None]}, {}, "payload"),
        ("payload binary, id string", {"payload": [b"x"], "id": [None]}, {}, "id"),
        ("payload binary, id string", {"payload": [b"x"], "id": [""]}, {}, "id"),
        ("payload binary, id string", {"payload": [b"x"], "id": ["i" * 1025]}, {}, "id"),
        ("payload binary, delay double", {"payload": [b"x"], "delay": [-1.0]}, {}, "delay"),
        ("payload binary, delay double", {"payload": [b"x"], "delay": [float("nan")]}, {}, "delay"),
        ("payload binary, ttl long", {"payload": [b"x"], "ttl": [0]}, {}, "ttl"),
        ("payload binary, lease long", {"payload": [b"x"], "lease": [10**9]}, {}, "lease"),
        ("payload binary, max_attempts int", {"payload": [b"x"], "max_attempts": [-1]}, {},
         "max_attempts"),
        ("payload binary, headers map", {"payload": [b"x"], "headers": [[("", "v")]]},
         {"headers": MAP}, "headers"),
        ("payload binary, headers map", {"payload": [b"x"], "headers": [[("a", None)]]},
         {"headers": MAP}, "headers"),
        ("payload binary, delay long, ttl long", {"payload": [b"x"], "delay": [9], "ttl": [9]}, {},
         "ttl"),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_used_names_column_and_row(
    text: str, columns: Any, types: Any, named: str, ps: Penstock, options: Any
) -> None:
    """The task's error has column and row; with staging no row is added."""
    for mode in ("direct", "staged"):
        writer = BatchWriter(options(commitMode=mode), schema(text), False)
        with running(), pytest.raises(RowError) as caught:
            writer.write(iter(arrow(columns, **types)))
        assert caught.value.argument == named
        assert caught.value.row == len(columns["payload"]) - 1
        writer.abort([None])
    assert bodies(ps) == []


@pytest.mark.parametrize("ttl", [{}, {"ttl": [60]}])
def test_a_time_that_python_has_not_names_the_column(
    ttl: dict[str, list[int]], ps: Penstock, options: Any
) -> None:
    """Spark has years beyond 9999, which raise with the column, as it is spelled."""
    late = pa.array([253_500_000_000_000_000], pa.int64()).view(pa.timestamp("us", tz="UTC"))
    text = ", ".join(["payload string", "readyAt timestamp", *(f"{name} long" for name in ttl)])
    writer = BatchWriter(options(), schema(text), False)
    with running(0), pytest.raises(BadArgument, match=r"column='readyAt'.*(year|range)"):
        writer.write(iter(arrow({"payload": ["x"], "readyAt": late, **ttl})))
    assert bodies(ps) == []


def test_every_queue_that_rows_name_has_to_be_there(ps: Penstock, options: Any) -> None:
    """With `requireQueue` every queue named by a row must exist."""
    for name in ("mail", "other"):
        ps.queue(name).enqueue(b"there")
    given = options(requireQueue="true", queueColumn="to", commitMode="direct")
    writer = BatchWriter(given, schema("payload string, to string"), False)
    with running(0):
        writer.write(iter(arrow({"payload": ["a", "b"], "to": ["mail", "other"]})))
        with pytest.raises(QueueMissing, match="'othr'"):
            writer.write(iter(arrow({"payload": ["c"], "to": ["othr"]})))
        with pytest.raises(QueueMissing, match="'othr'"):
            enqueue_partition(
                [{"id": 1, "payload": "d"}], url=given["url"], queue="othr", requireQueue="true"
            )
    assert not ps.queue("othr").stats().exists
    assert bodies(ps, "other") == [b"b", b"there"]


@pytest.mark.parametrize(
    "wrong, reason",
    [
        ("ada", "Expecting value"), ("", "Expecting value"), ('{"a": 1} 2', "Extra data"),
        ('{"a": NaN}', "NaN"), ("[-Infinity]", "-Infinity"),
        pytest.param("[" * 100_000, "JSON", id="deep"), (None, "bytes or text"),
        (b"\xff", "utf-8"), ('"é"'.encode("utf-16"), "utf-8"), ("\ud800", "surrogates"),
        ({"a": 1}, "bytes or text"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("column", ["payload", "body"])
def test_a_payload_that_is_not_json(
    column: str, wrong: object, reason: str, ps: Penstock, options: Any
) -> None:
    """payloadFormat=json: the error has column, row and reason, and its batch is not written."""
    given = options(payloadFormat="json", payloadColumn=column)
    fine = [{"id": 1, column: '{"a": "é"}'}, {"id": 2, column: b"[null, 1e3]"}]
    with running(), pytest.raises(RowError, match=f"'{column}', row 2 of its.*{reason}") as caught:
        enqueue_partition([*fine, {"id": 3, column: wrong}], **given)
    assert caught.value.row == 2
    assert bodies(ps) == []
    with running():
        enqueue_partition(fine, **given)
    assert [view.body for view in ps.queue("mail").peek(2)] == [{"a": "é"}, [None, 1000.0]]


def test_plans_that_cannot_be_carried_out(ps: Penstock, options: Any, redis_url: str) -> None:
    """Overwriting, an unreachable server and a missing required queue fail before any task."""
    for overwriting, name in ((BatchWriter, "mode"), (StreamWriter, "outputMode")):
        with pytest.raises(OptionError, match=rf'{name}=.*must be "append".*purge'):
            overwriting(options(), schema(PLAIN), True)
    with pytest.raises(Unreachable, match=r"mail.*127\.0\.0\.1:1"):
        BatchWriter(options(url="redis://127.0.0.1:1", retryFor=0), schema(PLAIN), False)
    with pytest.raises(QueueMissing, match="mail"):
        BatchWriter(options(requireQueue="true"), schema(PLAIN), False)
    ps.queue("mail").enqueue(b"x")
    BatchWriter(options(requireQueue="true"), schema(PLAIN), False)
    with pytest.raises(BadArgument, match="nope"):
        BatchWriter(options(), schema(PLAIN + ", nope string"), False)


def test_an_executor_that_reaches_another_server_raises(options: Any) -> None:
    """`localhost` differs between machines: an executor on another server raises."""
    writer = BatchWriter(options(), schema(PLAIN), False)
    writer.nodes = ("00000000",)
    with running(), pytest.raises(WrongServer, match="localhost"):
        writer.write(iter(arrow({"payload": [b"x"]})))


def flush_all(ps: Penstock) -> None:
    """Empty the server; the next client gives it another id."""
    ps.topology.executor.command("FLUSHALL")


@pytest.mark.parametrize("many", [False, True])
def test_a_server_that_was_emptied_is_a_new_one(
    many: bool, ps: Penstock, options: Any, redis_url: str
) -> None:
    """Driver and executors both notice an emptied server."""
    given = options(**({"nodes": json.dumps([redis_url])} if many else {}))
    if many:
        given.pop("url")
    write(BatchWriter(given, schema("id string, payload binary"), False), [])
    get_client(Write.parse(given))
    flush_all(ps)
    writer = BatchWriter(given, schema("id string, payload binary"), False)
    close_all()
    node = redis.Redis.from_url(redis_url)
    with node, running():
        row = arrow({"id": ["a"], "payload": [b"x"]})
        writer.write(iter(row))
        assert writer.nodes == (node.hget("penstock:node", "id")[:8].decode(),)
        flush_all(ps)
        driver = BatchWriter(given, schema("id string, payload binary"), False)
        assert driver.nodes != writer.nodes
        driver.write(iter(row))


@pytest.mark.parametrize("mode", ["direct", "staged"])
def test_a_server_that_is_gone_when_a_task_runs(mode: str) -> None:
    """The task's error has queue and address."""
    with EmbeddedServer(find_server(), tcp=True) as server:
        given = {"queue": "mail", "url": server.url, "retryfor": "0", "commitmode": mode}
        writer = BatchWriter(given, schema(PLAIN), False)
        close_all()
    address = server.url.partition("://")[2].partition("/")[0]
    with running(), pytest.raises(Unreachable, match=rf"'mail'.*{address}"):
        writer.write(iter(arrow({"payload": [b"x"]})))
    close_all()


def test_a_pickled_writer_has_no_connection(options: Any) -> None:
    """The pickled writer has no connection and is small, as every task gets it."""
    writer = BatchWriter(options(), schema(PLAIN), False)
    with running():
        writer.write(iter(arrow({"payload": [b"x"]})))
    assert len(pickle.dumps(writer)) < 3000


def test_ids_of_a_stream_are_those_of_its_batch(ps: Penstock, options: Any) -> None:
    """A repeated batch adds nothing; the next batch and another query do."""
    for query, batch, total in (("q", 1, 2), ("q", 1, 2), ("q", 2, 4), ("r", 1, 6)):
        writer = StreamWriter(options(), schema(PLAIN), False)
        with running(0, query, batch):
            message = writer.write(iter(arrow({"payload": [b"x", b"x"]})))
        StreamWriter(options(), schema(PLAIN), False).commit([message, None], batch)
        assert ps.queue("mail").stats().ready == total


def test_a_queue_of_a_newer_protocol_is_left_alone(ps: Penstock, options: Any) -> None:
    """With a newer protocol no row is staged or enqueued."""
    ps.topology.executor.command("HSET", "penstock:{mail}:meta", "v", 4, "epoch", "0000000a")
    for mode in ("staged", "direct"):
        writer = BatchWriter(options(commitMode=mode), schema(PLAIN), False)
        with running(), pytest.raises(UnsupportedVersion):
            writer.write(iter(arrow({"payload": [b"x"]})))
    assert ps.topology.executor.command("KEYS", "penstock:{mail}:*") == [b"penstock:{mail}:meta"]


def test_rows_work_as_arrow_does(ps: Penstock, options: Any) -> None:
    """Rows (Spark 4.0's streaming writer) give the same ids as Arrow."""
    writer = BatchWriter(options(commitMode="direct"), schema(PLAIN), False)
    rows = [Row(payload=b"x"), Row(payload=b"x"), Row(payload=b"y")]
    with running():
        writer.write(iter(rows))
        writer.write(iter(arrow({"payload": [b"y", b"x", b"x"]})))
    assert bodies(ps) == [b"x", b"x", b"y"]


@pytest.mark.parametrize("mode", ["direct", "staged"])
def test_a_full_queue(mode: str, ps: Penstock, options: Any) -> None:
    """fail: raise at once. wait: for a time; fitting rows are added, and the rest
    with a consumer.
    """
    queue = ps.queue("mail")
    queue.configure(max_length=3)
    rows = [[b"%d" % number for number in range(8)]]
    text = PLAIN if mode == "staged" else "payload binary, id string"
    for more in ({"onFull": "fail"}, {"fullTimeout": "200ms"}):
        writer = BatchWriter(options(commitMode=mode, writeId="w", **more), schema(text), False)
        with pytest.raises(QueueFull, match="the limit is 3"):
            writer.commit(write(writer, rows))
        writer.abort([None])
        assert queue.stats().ready == 3
    queue.configure(max_length=100)
    writer = BatchWriter(options(commitMode=mode, writeId="w"), schema(text), False)
    writer.commit(write(writer, rows))
    assert bodies(ps) == rows[0]


def test_each_row_keeps_its_delay_in_a_full_queue(ps: Penstock, options: Any) -> None:
    """A part of a batch is added with the delays of its rows; the repeat adds the others."""
    ps.queue("mail").configure(max_length=3)
    ids, delays = [f"{number}" for number in range(8)], [*range(60, 68)]
    text = "id string, payload string, delay int"
    writer = BatchWriter(options(onFull="fail"), schema(text), False)
    rows = arrow({"id": ids, "payload": ids, "delay": delays}, delay=pa.int32())
    for raised, limit in ((QueueFull, 6), (QueueFull, None)):
        with running(0), pytest.raises(raised):
            writer.write(iter(rows))
        ps.queue("mail").configure(max_length=limit)
    with running(0):
        writer.write(iter(rows))
    jobs = [*ps.queue("mail").jobs()]
    found = {job.raw.decode(): round(job.due - job.created) for job in jobs if job.due}
    assert found == dict(zip(ids, delays, strict=True))


@pytest.mark.parametrize("mode", ["direct", "staged"])
def test_a_paused_queue_holds_a_write(
    mode: str, ps: Penstock, options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write waits for the end of the pause, as for room; fail and the time-out apply to it."""
    queue, text = ps.queue("mail"), PLAIN if mode == "staged" else "payload binary, id string"
    queue.pause("in")
    for more in ({"onFull": "fail"}, {"fullTimeout": "10ms"}):
        writer = BatchWriter(options(commitMode=mode, writeId="w", **more), schema(text), False)
        with pytest.raises(QueuePaused, match=r"'mail' is paused.*rows"):
            writer.commit(write(writer, [[b"a", b"b"]]))
        assert queue.stats().ready == 0
    monkeypatch.setattr(sink, "sleep", lambda _: queue.resume())
    writer = BatchWriter(options(commitMode=mode, writeId="w"), schema(text), False)
    writer.commit(write(writer, [[b"a", b"b"]]))
    assert bodies(ps) == [b"a", b"b"]


@pytest.mark.parametrize(
    "column, mode", [("delay", "direct"), ("delay", "staged"), ("queue", "direct")]
)
def test_many_delays_and_queues_take_few_calls(
    column: str, mode: str, ps: Penstock, options: Any
) -> None:
    """Rows are grouped by queue; rows with different delays share a call."""
    names = [f"n{number}" for number in range(400)]
    rows = {"payload": names, "id": names}
    if mode == "staged":
        del rows["id"]
    if column == "delay":
        values, kind = [60 + number % 200 for number in range(400)], "int"
    else:
        values, kind = [f"q{number % 200}" for number in range(400)], "string"
    text = ", ".join(f"{name} string" for name in rows) + f", {column} {kind}"
    more = {"queueColumn": "queue"} if column == "queue" else {}
    writer = BatchWriter(options(commitMode=mode, batchSize=100, **more), schema(text), False)
    ps.topology.executor.command("CONFIG", "RESETSTAT")
    with running(0):
        report = writer.write(iter(arrow({**rows, column: values}, delay=pa.int32())))
    writer.commit([report])
    info = ps.topology.executor.command("INFO", "commandstats").decode()
    calls = sum(int(one) for one in re.findall(r"cmdstat_evalsha:calls=(\d+)", info))
    reads = ps.topology.executor.server_facts().number("total_reads_processed")
    if column == "delay":
        jobs = list(ps.queue("mail").jobs())
        delays = {job.raw.decode(): round(job.due - job.created) for job in jobs}
        assert delays == dict(zip(names, values, strict=True))
        assert calls < 20
    else:
        assert {ps.queue(name).stats().ready for name in set(values)} == {2}
        assert calls < 200 * 5  # a refusal, the creation, and the checks of a new queue
        assert reads < 900  # a trip for each call would be 1,800


QUEUES = ("a", "b", "c", "d")
TO = "id string, payload string, to string"


def spread(names: Sequence[str], rows: int = 3) -> list[Any]:
    """Return rows for each of these queues."""
    ids = [f"{name}{row}" for row in range(rows) for name in names]
    return arrow({"id": ids, "payload": ids, "to": [one[0] for one in ids]})


def test_a_refusal_of_one_queue_stops_no_other(ps: Penstock, options: Any) -> None:
    """Rows of the other queues are added, and a repeat adds the rest."""
    ps.queue("b").configure(max_length=2)
    ps.queue("c").pause("in")
    ps.topology.executor.command("SET", ps.queue("d").ops.keys["ready"], "no stream")
    writer = BatchWriter(options(queueColumn="to", onFull="fail"), schema(TO), False)
    for error, queue in ((QueueFull, "b"), (QueuePaused, "c"), (QueueDamaged, "d")):
        with running(0), pytest.raises(error, match=f"{queue}"):
            writer.write(iter(spread(["a", queue])))
        assert ps.queue("a").stats().ready == 3
        ps.clear(["a"])
    ps.queue("b").configure(max_length=None)
    ps.queue("c").resume()
    ps.topology.executor.command("DEL", ps.queue("d").ops.keys["ready"])
    with running(0):
        report = writer.write(iter(spread(QUEUES)))
    assert report.counts == {"rows": 12, "added": 10, "duplicates": 2}
    assert [ps.queue(name).stats().ready for name in QUEUES] == [3, 3, 3, 3]


def test_lost_replies_of_many_queues_add_no_job(options: Any) -> None:
    """The calls are repeated with their numbers, so the server recognises them."""
    with EmbeddedServer(find_server(), tcp=True) as server, Proxy(server.address) as proxy:
        given = {"queue": "a", "url": proxy.url, "queueColumn": "to"}
        writer = BatchWriter(options(**given), schema(TO), False)
        for turn in range(2):
            fault = proxy.eat_reply(after=b"\nd%d\r\n" % (turn * 3))
            with running(0):
                report = writer.write(iter(spread(QUEUES, rows=3 + turn)))
            assert fault.has_struck
            assert report.counts == {
                "rows": 12 + 4 * turn, "added": 4 if turn else 12, "duplicates": 12 * turn
            }  # fmt: skip
        close_all()
        with Penstock(server.url, prefix=writer.options.prefix) as ps:
            assert [ps.queue(name).stats().enqueued for name in QUEUES] == [4, 4, 4, 4]


def test_a_queue_that_is_cleared_after_its_shards_were_found(
    ps: Penstock, options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is made again, and registered. Shards are looked up once."""
    looked_up: list[str] = []
    for name in QUEUES:
        ps.queue(name).enqueue(b"before")
    find = Sink._find

    def cleared(self: Sink, *names: str) -> None:
        find(self, *names)
        looked_up.extend(names)
        ps.clear(["b", "c"])

    monkeypatch.setattr(Sink, "_find", cleared)
    with running(0):
        write = BatchWriter(options(queueColumn="to"), schema(TO), False)
        assert write.write(iter(spread(QUEUES) * 2)).counts["added"] == 12
    assert sorted(looked_up) == [*QUEUES]
    assert [ps.queue(name).stats().ready for name in QUEUES] == [4, 3, 3, 4]
    assert set(QUEUES) <= set(ps.queues())


def test_each_queue_waits_for_its_replicas(
    ps: Penstock, options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue's setting holds, and the option for all queues; there is no replica."""
    for name in "bd":
        ps.queue(name).configure(replicas=1)
    given = options(queueColumn="to", replicationTimeout="10ms")
    terms: list[Any] = []
    add = sink.add_each

    def noted(batches: Any) -> Any:
        terms.extend(batch[2] for batch in batches)
        return add(batches)

    monkeypatch.setattr(sink, "add_each", noted)
    with running(0), pytest.raises(NotReplicated):
        BatchWriter(given, schema(TO), False).write(iter(spread(QUEUES)))
    assert {one.wait.timeout_ms for one in terms} == {10}
    assert [ps.queue(name).stats().ready for name in QUEUES] == [3, 0, 3, 0]
    with running(0), pytest.raises(NotReplicated):
        BatchWriter({**given, "replicas": "1"}, schema(TO), False).write(iter(spread(["e", "f"])))
    assert not ps.queue("e").stats().ready


def test_a_write_waits_for_room_while_a_consumer_works(
    ps: Penstock, options: Any, redis_url: str
) -> None:
    """The bound is kept, and all rows are added."""
    import threading

    queue, done, most = ps.queue("mail"), [], []
    queue.configure(max_length=10)

    def work() -> None:
        with Penstock(redis_url) as own:
            theirs = own.queue("mail")
            while len(done) < 100:
                most.append(theirs.stats().ready)
                jobs = theirs.reserve(7, block=1)
                done.extend(job.raw for job in jobs)
                theirs.ack(jobs)

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    writer = BatchWriter(options(fullTimeout=30), schema(PLAIN), False)
    writer.commit(write(writer, [[b"%d" % number for number in range(100)]]))
    worker.join(30)
    assert sorted(done) == sorted(b"%d" % number for number in range(100))
    assert max(most) <= 10


def test_enqueue_partition(ps: Penstock, options: Any, redis_url: str) -> None:
    """For functions: rows need ids, also in a stream's batch."""
    rows = [Row(k="a", payload=b"1"), Row(k="b", payload=b"2")]
    by_id = {"queue": "mail", "url": redis_url, "idColumn": "k"}
    with running(3):
        assert enqueue_partition(rows, **by_id) == {"rows": 2, "added": 2, "duplicates": 0}
        assert enqueue_partition([row.asDict() for row in rows], **by_id)["added"] == 0
        assert enqueue_partition([], queue="mail", url=redis_url)["rows"] == 0
        turned = [{"k": "a", "payload": b"1"}, {"payload": b"2", "k": "b"}]
        assert enqueue_partition(turned, **by_id) == {"rows": 2, "added": 0, "duplicates": 2}
        plain = [{"payload": b"1"}, {"payload": b"1"}]
        for more in ({}, {"writeId": "w"}, {"commitMode": "direct"}):
            with pytest.raises(OptionError, match=r"idColumn.*a repeat would add rows again"):
                enqueue_partition(plain, queue="mail", url=redis_url, **more)
        named = {"queue": "mail", "url": redis_url, "idColumn": "payload"}
        with pytest.raises(OptionError, match="commitMode"):
            enqueue_partition(plain, commitMode="staged", **named)
        with pytest.raises(OptionError, match=r"operation|commitMode"):
            enqueue_partition(plain, operation="ack", **named)
        with pytest.raises(RowError, match="payload"):
            enqueue_partition([{"payload": 5}], **named)
        with pytest.raises(RowError, match="'delay', row 0"):
            enqueue_partition([{"payload": b"x", "delay": {"x": []}}], **named)
        for other in ({"body": b"x"}, {}, {"payload": b"x", "body": b"x"}):
            with pytest.raises(BadArgument, match=r"columns=.*row 1 of its partition"):
                enqueue_partition([*plain[:1], other], **named)
        with pytest.raises(TypeError, match="Rows or mappings"):
            enqueue_partition([(b"x",)], **named)
    with running(0, "q", 7), pytest.raises(OptionError, match="idColumn"):
        enqueue_partition(plain, queue="mail", url=redis_url)
    assert len(bodies(ps)) == 2


# -- operations ---------------------------------------------------------------------------------


def settle(given: dict[str, str], text: str, columns: dict[str, Any]) -> dict[str, int]:
    """Run an operation by hand, and return its counts."""
    types = {name: pa.string() for name in columns}
    with running():
        writer = BatchWriter(given, schema(text), False)
        message: Any = writer.write(iter(arrow(columns, **types)))
    writer.commit([message])
    return dict(message.counts)


def test_jobs_are_acknowledged_failed_redriven_and_deleted_by_rows(
    ps: Penstock, options: Any
) -> None:
    """By id and receipt; a repeat finds the jobs done, without an error."""
    queue = ps.queue("mail")
    queue.enqueue_many([b"%d" % number for number in range(6)])
    jobs = queue.reserve(4, block=0)
    text = "id string, receipt string"
    named = {"id": [job.id for job in jobs[:2]], "receipt": [job.receipt for job in jobs[:2]]}
    assert settle(options(operation="ack"), text, named) == {"rows": 2, "done": 2}
    assert settle(options(operation="ack"), text, named) == {"rows": 2, "gone": 2}
    tag = int(jobs[2].receipt.partition("-")[2], 16)
    for receipt in ("7-fff", f"1-{tag ^ 1:03x}", f"2-{tag:03x}"):
        stale = {"id": [jobs[2].id], "receipt": [receipt]}
        assert settle(options(operation="ack"), text, stale) == {"rows": 1, "stale": 1}
    third = {"id": [jobs[2].id], "receipt": [jobs[2].receipt]}
    assert settle(options(operation="nack", delay=0, error="no"), text, third)["done"] == 1
    shown = queue.show(jobs[2].id)
    assert shown is not None
    assert (shown.state, shown.error) == ("ready", "no")
    both = [*queue.reserve(2, block=0), *queue.reserve(1, block=0)]
    assert sorted(job.deliveries for job in both) == [1, 1, 2]
    mixed = {"id": [job.id for job in both], "receipt": [job.receipt for job in both]}
    assert settle(options(operation="nack", delay=0), text, mixed) == {"rows": 3, "done": 3}
    jobs[3].bury("why")
    only = {"id": [jobs[3].id]}
    assert settle(options(operation="redrive"), "id string", only) == {"rows": 1, "done": 1}
    assert settle(options(operation="redrive"), "id string", only) == {"rows": 1, "refused": 1}
    assert settle(options(operation="delete"), "id string", only) == {"rows": 1, "done": 1}
    assert settle(options(operation="delete"), "id string", only) == {"rows": 1, "gone": 1}
    assert queue.stats().ready == 3
    ids = [view.id for view in queue.jobs()]
    no_receipts = {"id": ids, "receipt": [None] * 3}
    assert settle(options(operation="ack"), text, no_receipts) == {"rows": 3, "done": 3}


def test_acks_wait_for_replicas(ps: Penstock, options: Any) -> None:
    """There is no replica: the write fails, although the jobs are acknowledged.

    Other operations have no such wait, so they refuse the option.
    """
    given = options(operation="ack", replicas=1, replicationTimeout="10ms")
    ids = [job.id for job in ps.queue("mail").enqueue_many([b"0", b"1"])]
    with pytest.raises(AckNotReplicated, match="0 of 1"):
        settle(given, "id string", {"id": ids})
    assert ps.queue("mail").stats().acked == 2
    for operation in ("nack", "redrive", "delete"):
        with pytest.raises(OptionError, match="replicas='1'"):
            settle({**given, "operation": operation}, "id string", {"id": ids})


def test_a_failed_job_waits_for_the_delay_or_its_backoff(ps: Penstock, options: Any) -> None:
    """`delay` has a unit; without it the job waits as its policy says."""
    queue = ps.queue("mail")
    queue.enqueue_many([b"0", b"1"], retry=RetryPolicy(base=10**6))
    for more, least, most in (({"delay": "5m"}, 299, 360), ({}, 0, 10**6)):
        [job] = queue.reserve(1, block=0)
        named = {"id": [job.id], "receipt": [job.receipt]}
        settle(options(operation="nack", **more), "id string, receipt string", named)
        shown = queue.show(job.id)
        assert shown is not None
        assert shown.state == "scheduled"
        assert shown.due is not None
        assert least < shown.due - shown.created < most


def test_rows_are_settled_in_batches(ps: Penstock, options: Any) -> None:
    """A batch is settled when it is full, once, and the rest at the end."""
    queue = ps.queue("mail")
    ids = [job.id for job in queue.enqueue_many([b"%d" % number for number in range(5)])]

    def rows() -> Iterator[Any]:
        yield from arrow({"id": ids[:3]})
        assert queue.stats().acked == 2
        yield from arrow({"id": ids[3:]})
        assert queue.stats().acked == 4

    with running():
        writer = BatchWriter(options(operation="ack", batchSize=2), schema("id string"), False)
        assert writer.write(rows()).counts == {"rows": 5, "done": 5}


def test_a_lost_reply_of_a_redrive(
    ps: Penstock, spark_server: EmbeddedServer, options: Any
) -> None:
    """The call is sent again, and a job that was redriven by it counts as done."""
    queue = ps.queue("mail")
    queue.enqueue_many([b"0", b"1"])
    first, second = queue.reserve(2, block=0)
    queue.bury([first, second])
    given = options(operation="redrive")
    settle(given, "id string", {"id": [first.id]})  # loads the script
    with Proxy(spark_server.address) as proxy:
        given["url"] = proxy.url
        fault = proxy.eat_reply(after=parse_id(second.id).number)
        assert settle(given, "id string", {"id": [second.id]}) == {"rows": 1, "done": 1}
        assert fault.has_struck
        close_all()


def test_rows_that_name_no_job(ps: Penstock, options: Any) -> None:
    """Missing columns fail on the driver; an invalid or foreign id fails in its task."""
    for text, named in (
        ("receipt string", "id"),
        ("id long", "id"),
        ("id string, extra string", "extra"),
    ):
        with pytest.raises(BadArgument, match=named):
            BatchWriter(options(operation="ack"), schema(text), False)
    with pytest.raises(BadArgument, match="receipt"):
        BatchWriter(options(operation="delete"), schema("id string, receipt string"), False)
    other = ps.queue("other").enqueue(b"x").id
    for wrong in (None, "D-nonsense", other):
        with pytest.raises(RowError, match="'id', row 0"):
            settle(options(operation="ack"), "id string", {"id": [wrong]})
    own = ps.queue("mail").enqueue(b"x").id
    for wrong in ("3f0", "1-3f", "1-3f0@5", "0-3f0"):
        with pytest.raises(RowError, match="'receipt', row 0"):
            settle(
                options(operation="ack"),
                "id string, receipt string",
                {"id": [own], "receipt": [wrong]},
            )
    with pytest.raises(RowError, match="'id', row 1"):
        settle(options(operation="ack"), "id string", {"id": [own, other]})


def test_ids_of_an_earlier_life_of_the_queue_are_gone(ps: Penstock, options: Any) -> None:
    """An archive may have ids of an earlier epoch, which are reported as gone."""
    old = ps.queue("mail").enqueue(b"x").id
    ps.clear(["mail"])
    new = ps.queue("mail").enqueue(b"y").id
    found = settle(options(operation="delete"), "id string", {"id": [old, new, old]})
    assert found == {"rows": 3, "done": 1, "gone": 2}


def test_reports_of_the_driver_are_logged(
    ps: Penstock, options: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The log has the number of added rows; a failed write's has the state and advice."""
    caplog.set_level("INFO", "penstock")
    ids = BatchWriter(options(), schema("payload binary, id string"), False)
    ids.commit(write(ids, [[b"a", b"b"]], tries=2))
    assert "queue mail: written 2 rows, 0 added, 2 duplicates" in caplog.text
    ids.abort([*write(ids, [[b"a"]]), None])
    assert "1 duplicates; the rows that were added stay in the queue, and rep" in caplog.text
    assert "repeating the write adds the others" in caplog.text
    plain = BatchWriter(options(commitMode="direct"), schema(PLAIN), False)
    plain.abort([*write(plain, ROWS), None])
    assert (
        "0 duplicates; the rows that were added stay in the queue, and repeating the write adds all"
        in caplog.text
    )
    aside = BatchWriter(options(writeId="load 7"), schema(PLAIN), False)
    aside.abort([*write(aside, ROWS), None])
    assert "finished tasks: 6 rows; none of its rows are added" in caplog.text
    aside.commit(write(aside, ROWS))
    aside.abort(write(aside, ROWS))
    assert (
        "To add the missing rows and none twice, repeat the write with writeId=load 7"
        in caplog.text
    )
    assert json.dumps(ids.options.url) not in caplog.text
    caplog.clear()
    BatchWriter(options(operation="delete"), schema("id string"), False).abort([])
    text = "finished tasks: nothing; the jobs of finished tasks are settled, and repeating the"
    assert text in caplog.text
    caplog.clear()
    stream = StreamWriter(options(), schema("payload binary, id string"), False)
    stream.commit(write(stream, [[b"new"]]), 0)
    stream.abort([None], 0)
    assert "queue mail, batch 0: written 1 rows, 1 added" in caplog.text
    assert caplog.messages[-1].endswith("nothing; the rows that were added stay in the queue")
    StreamWriter(options(), schema(PLAIN), False).abort([None], 0)
    assert caplog.messages[-1].endswith("nothing; none of its rows are added")


def test_unsafe_repeats_are_refused(ps: Penstock, options: Any) -> None:
    """Rows without ids in direct mode are refused for a named write.

    The error names the option, and comes from the driver if it can know.
    """
    direct = options(commitMode="direct")
    for refused in (
        lambda: StreamWriter(direct, schema(PLAIN), False),
        lambda: BatchWriter(options(commitMode="direct", writeId="w"), schema(PLAIN), False),
    ):
        with pytest.raises(OptionError, match=r"commitMode='direct'.*idColumn.*staged"):
            refused()
    once = BatchWriter(direct, schema(PLAIN), False)
    with running(0, "query", 3), pytest.raises(OptionError, match="idColumn"):
        once.write(iter(arrow({"payload": [b"x"]})))
    with pytest.raises(OptionError, match=r"queueColumn='to'.*idColumn.*commitMode=direct"):
        BatchWriter(options(queueColumn="to"), schema(PLAIN + ", to string"), False)
    ps.queue("parts", partitions=2).enqueue(b"x", dedup_id="x")
    with pytest.raises(OptionError, match=r"commitMode='staged'.*partitions.*idColumn"):
        BatchWriter(options(queue="parts"), schema(PLAIN), False)
    assert bodies(ps) == []


@pytest.mark.parametrize("text", [PLAIN, "payload binary, id string"])
@pytest.mark.parametrize("mode", ["direct", "staged"])
def test_jobs_have_stable_ids(mode: str, text: str, ps: Penstock, options: Any) -> None:
    """A row has one stable id in all attempts, so a job is recognised after a failover."""
    writer = BatchWriter(options(commitMode=mode), schema(text), False)
    found = []
    rows = [[b"a", b"b"], [b"c"]] if writer.has_ids else ROWS
    for _ in range(2):
        messages = write(writer, rows)
        if mode == "staged":
            StagedCommit(writer.options, messages[0].staged).run(
                [(one.token, one.chunks) for one in messages if one.chunks]
            )
        found.append(sorted(job.stable_id for job in ps.queue("mail").reserve(10, block=0)))
        ps.queue("mail").clear()
    assert found[0] == found[1]
    assert len(set(found[0])) == sum(len(part) for part in rows)
    assert all(re.fullmatch("[-0-9A-Z_a-z]{20}", one) for one in found[0])
    other = BatchWriter(options(commitMode=mode), schema(text), False)
    other.commit(write(other, rows))
    jobs = ps.queue("mail").reserve(10, block=0)
    assert len(jobs) == len(found[0])
    assert not {job.stable_id for job in jobs} & set(found[0])


def written(options: dict[str, str], ids: list[str], bodies_: list[bytes]) -> None:
    """Write one partition of rows with ids, and finish the write."""
    writer = BatchWriter(options, schema("id string, payload binary"), False)
    with running():
        writer.commit([writer.write(iter(arrow({"id": ids, "payload": bodies_})))])


def test_rows_whose_ids_are_taken_are_told(
    ps: Penstock, options: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A few are usual in a repeated load; a larger share is a warning that names the cause."""
    many = [str(number) for number in range(20)]
    written(options(), many, [b"x"] * 20)
    assert not caplog.records
    written(options(), [*many[:2], *(f"new {one}" for one in many)], [b"y"] * 22)
    assert not caplog.records
    written(options(), many[:10], [b"other"] * 10)
    assert "queue mail: 10 of 10 rows added nothing" in caplog.text
    assert "monotonically_increasing_id()" in caplog.text


def test_an_empty_write_takes_no_name(ps: Penstock, redis_url: str, options: Any) -> None:
    """A named write without rows, as by a failed source, is not the write of that name."""
    for rows in ([], [b"a", b"b"], [b"c"]):
        writer = BatchWriter(options(writeId="day"), schema(PLAIN), False)
        with running():
            writer.commit([writer.write(iter(arrow({"payload": rows})))])
        if not rows:
            with redis.Redis.from_url(redis_url) as raw:
                wait_for(lambda: not raw.keys("*commit*"))
    assert bodies(ps) == [b"a", b"b"]


@pytest.mark.parametrize("setting", ["maxmemory 1", "min-replicas-to-write 1"])
def test_a_server_that_refuses_in_the_middle(setting: str, redis_url: str, options: Any) -> None:
    """The error says how many rows are in; a repeat with the same ids adds the others."""
    name, value = setting.split()
    with redis.Redis.from_url(redis_url, decode_responses=True) as raw:
        usual = raw.config_get(name)[name]
        writer = BatchWriter(options(batchSize=2), schema("id string, payload binary"), False)

        def batches() -> Iterator[Any]:
            yield from arrow({"id": ["a", "b"], "payload": [b"a", b"b"]})
            raw.config_set(name, value)
            yield from arrow({"id": ["c", "d"], "payload": [b"c", b"d"]})

        try:
            with running(), pytest.raises(Exception, match="2 rows of this partition were added"):
                writer.write(batches())
        finally:
            raw.config_set(name, usual)


def test_a_source_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever uses the source is told the reason; Spark still finds the other sources."""
    monkeypatch.setitem(sys.modules, "penstock.spark.source", None)
    monkeypatch.delitem(sys.modules, "pyspark_penstock", raising=False)
    found = importlib.import_module("pyspark_penstock")
    monkeypatch.delitem(sys.modules, "pyspark_penstock")
    assert found.DefaultSource.name() == "penstock"
    with pytest.raises(ImportError, match=r"can't be imported here.*penstock\.spark\.source"):
        found.DefaultSource({})


def test_a_client_in_a_task(redis_url: str) -> None:
    """A client, a queue or a method that a function of Spark captures says what to use."""
    with Penstock(redis_url) as client:
        for captured in (client, client.queue("mail"), client.queue("mail").enqueue):
            with pytest.raises(TypeError, match="enqueue_partition"):
                pickle.dumps(captured)


def test_rows_of_an_earlier_attempt_are_no_warning(
    options: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The task that is repeated finds its own rows."""
    writer = BatchWriter(options(), schema("id string, payload binary"), False)
    for attempt in range(2):
        with pytest.MonkeyPatch.context() as patch:
            for module in (writer_module, sink):
                patch.setattr(module, "task", lambda: Task(0, attempt=attempt))  # noqa: B023
            report = writer.write(iter(arrow({"id": ["a", "b"], "payload": [b"a", b"b"]})))
    assert writer.finish([report]) == {"rows": 2, "added": 0, "duplicates": 2}
    assert writer.finish([]) == {"rows": 0, "added": 0, "duplicates": 0}
    assert not caplog.records
