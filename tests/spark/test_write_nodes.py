"""Group 1: writing by hand into a queue on two nodes."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest

from penstock import Penstock, parse_id
from penstock.embedded import EmbeddedServer, find_server
from penstock.errors import NodesUnavailable
from penstock.spark import OptionError, enqueue_partition
from penstock.spark.errors import Unreachable
from penstock.spark.writer import BatchWriter
from tests.spark.hands import PLAIN, arrow, close_all, running, schema
from tests.spark.test_writer import TO, settle

BODIES = [b"%d" % number for number in range(40)]


@pytest.fixture
def urls() -> Iterator[list[str]]:
    """Two servers."""
    with (
        EmbeddedServer(find_server(), tcp=True) as one,
        EmbeddedServer(find_server(), tcp=True) as two,
    ):
        yield [one.url, two.url]
        close_all()


def attempts(writer: BatchWriter, count: int) -> list[Any]:
    """Return the messages of the last of this many attempts."""
    message: Any = None
    columns: dict[str, Any] = {"payload": BODIES}
    if writer.has_ids:
        columns["id"] = [str(number) for number in range(len(BODIES))]
    for _ in range(count):
        with running():
            copy = pickle.loads(pickle.dumps(writer))
            message = copy.write(iter(arrow(columns)))
    return [message]


@pytest.mark.parametrize("mode", ["direct", "staged"])
def test_every_row_is_there_once(mode: str, urls: list[str]) -> None:
    """direct: the row's id selects its node in every attempt. staged: one node has all rows.

    The order of the nodes does not matter.
    """
    for nodes in (urls, urls[::-1]):
        given = {"queue": "mail", "nodes": ",".join(nodes), "commitmode": mode, "writeid": "w"}
        text = PLAIN if mode == "staged" else "payload binary, id string"
        writer = BatchWriter(given, schema(text), False)
        writer.commit(attempts(writer, 2))
    with Penstock(urls) as ps:
        assert sorted(job.raw for job in ps.queue("mail").jobs()) == sorted(BODIES)
    counts = []
    for url in urls:
        with Penstock(url) as one:
            counts.append(one.queue("mail").stats().ready)
    assert min(counts) == 0 if mode == "staged" else min(counts) > 5


def test_rows_of_many_queues(urls: list[str]) -> None:
    """The id selects the node in each queue; one of the queues has partitions."""
    with Penstock(urls) as ps:
        ps.queue("to.1", partitions=3).enqueue(b"first")
        given = {"queue": "mail", "nodes": ",".join(urls), "queuecolumn": "to"}
        writer = BatchWriter(given, schema("payload binary, id string, to string"), False)
        rows = BODIES + [b"more %d" % number for number in range(120)]  # or a node may have none
        to = [f"to.{number % 4}" for number in range(len(rows))]
        columns = {"payload": rows, "id": list(map(bytes.decode, rows)), "to": to}
        for added in (len(rows), 0):
            with running():
                assert writer.write(iter(arrow(columns))).counts["added"] == added
        for name in set(to):
            wanted = [body for body, one in zip(rows, to, strict=True) if one == name]
            jobs = list(ps.open(name).jobs())
            assert len({parse_id(job.id).node for job in jobs}) == len(urls)
            assert sorted(job.raw for job in jobs if job.raw != b"first") == sorted(wanted)


@pytest.mark.parametrize("mode", ["direct", "staged"])
def test_a_node_that_is_away_when_a_write_is_planned(mode: str, urls: list[str]) -> None:
    """The write fails: rows put elsewhere would be added again when the node is back."""
    with EmbeddedServer(find_server(), tcp=True) as gone:
        away = gone.url
    given = {"queue": "mail", "nodes": f"{urls[0]},{away}", "commitmode": mode, "retryfor": "0"}
    with pytest.raises(Unreachable, match=r"1 of 2 nodes.*skipUnreachable"):
        BatchWriter(given, schema(PLAIN), False)
    rows = [{"payload": body, "id": number} for number, body in enumerate(BODIES)]
    with running(), pytest.raises(Unreachable, match="1 of 2 nodes"):
        enqueue_partition(rows, **{**given, "commitmode": "direct"})
    given["skipunreachable"] = "true"
    writer = BatchWriter(given, schema(PLAIN), False)
    writer.commit(attempts(writer, 2))
    with running():
        more = {"queue": "other", "commitmode": "direct"}
        assert enqueue_partition(rows, **{**given, **more})["added"] == len(BODIES)
    writer = BatchWriter({**given, "commitmode": "direct", "queuecolumn": "to"}, schema(TO), False)
    with running():
        rows_to = {name: [str(number) for number in range(40)] for name in ("payload", "id")}
        writer.write(iter(arrow({**rows_to, "to": ["third"] * 40})))
    with Penstock(urls[0]) as ps:
        for name in ("mail", "other", "third"):
            assert sorted(job.raw for job in ps.queue(name).jobs()) == sorted(BODIES)


def test_operations_go_where_the_jobs_are(urls: list[str]) -> None:
    """Operations go to the node of the id."""
    with Penstock(urls) as ps:
        for url in urls:
            with Penstock(url) as one:
                one.queue("mail").enqueue_many(BODIES)
        ids = [job.id for job in ps.queue("mail").jobs()]
        given = {"queue": "mail", "nodes": ",".join(urls), "operation": "delete"}
        assert settle(given, "id string", {"id": ids})["done"] == 80
        assert ps.queue("mail").stats().ready == 0


def test_operations_with_a_node_that_is_away(urls: list[str]) -> None:
    """Jobs of the other nodes are settled; a row with a job of this node is an error."""
    ids = []
    for url in urls:
        with Penstock(url) as one:
            ids.append(one.queue("mail").enqueue(b"x").id)
    with EmbeddedServer(find_server(), tcp=True) as gone:
        away = gone.url
    given = {"queue": "mail", "nodes": f"{urls[0]},{away}", "operation": "ack", "retryfor": "0"}
    assert settle(given, "id string", {"id": ids[:1]}) == {"rows": 1, "done": 1}
    with pytest.raises(NodesUnavailable, match="has jobs of these rows"):
        settle(given, "id string", {"id": ids})


def test_staged_writes_are_spread(urls: list[str]) -> None:
    """The name of a write chooses the node that has its rows."""
    given = {"queue": "mail", "nodes": ",".join(urls), "commitmode": "staged"}
    nodes = set()
    for number in range(30):
        writer = BatchWriter({**given, "writeid": f"w{number}"}, schema(PLAIN), False)
        with running():
            nodes.add(writer.write(iter(arrow({"payload": [b"x"]}))).staged.node)
    assert nodes == {*writer.nodes}
    assert len(nodes) == 2


def test_a_queue_in_partitions(redis_url: str) -> None:
    """A row's id selects its partition; staging can't promise across partitions."""
    given = {"queue": "mail", "url": redis_url, "writeid": "w"}
    with Penstock(redis_url) as ps:
        queue = ps.queue("mail", partitions=4)
        queue.enqueue(b"first")
        given["requirequeue"] = "true"
        for _ in range(2):
            writer = BatchWriter(given, schema("payload binary, id string"), False)
            writer.commit(attempts(writer, 2))
        jobs = list(queue.jobs())
        assert sorted(job.raw for job in jobs) == sorted([b"first", *BODIES])
        assert len({parse_id(job.id).crc for job in jobs}) == 4
        for more in ({"commitmode": "staged"}, {}):
            with pytest.raises(OptionError, match=r"partitions.*idColumn"):
                BatchWriter({**given, **more}, schema(PLAIN), False)
        deleting = {**given, "operation": "delete"}
        assert settle(deleting, "id string", {"id": [job.id for job in jobs]})["done"] == 41
        assert queue.stats().ready == 0
        close_all()


def test_the_rows_of_a_key_lie_in_one_partition(redis_url: str) -> None:
    """A row's key selects its partition, as that of an enqueue; rows without one use their ids."""
    with Penstock(redis_url) as ps:
        queue = ps.queue("mail", partitions=4)
        keys = [f"customer {number}" for number in range(8)]
        first = {key: parse_id(queue.enqueue(b"first", key=key).id).crc for key in keys}
        rows: dict[str, Any] = {"id": [str(n) for n in range(80)], "payload": BODIES * 2}
        rows["key"] = keys * 9 + [None] * 8
        given = {"queue": "mail", "url": redis_url}
        writer = BatchWriter(given, schema("id string, payload binary, key string"), False)
        for _ in range(2):
            with running():
                writer.commit([writer.write(iter(arrow(rows)))])
        found = {view.dedup_id: parse_id(view.id).crc for view in queue.jobs()}
        assert len(found) == 1 + 80
        assert [found[str(n)] for n in range(72)] == [first[key] for key in keys] * 9
        for n in range(72, 80):
            assert queue.enqueue(b"again", dedup_id=str(n)).id
        assert len(list(queue.jobs())) == 8 + 80
        close_all()


def test_rows_acknowledge_jobs_of_partitions(redis_url: str) -> None:
    """Jobs are acknowledged by id and receipt, each in its partition."""
    with Penstock(redis_url) as ps:
        queue = ps.queue("mail", partitions=4)
        queue.enqueue_many(BODIES[:20])
        queue.enqueue_many(BODIES[20:])
        jobs = []
        while taken := queue.reserve(40, block=0):
            jobs += taken
        named = {"id": [job.id for job in jobs], "receipt": [job.receipt for job in jobs]}
        given = {"queue": "mail", "url": redis_url, "operation": "ack"}
        assert settle(given, "id string, receipt string", named) == {"rows": 40, "done": 40}
        assert queue.stats().acked == 40
        close_all()
