# From tests/_async/test_staged_rows.py by tools/unasync.py; do not edit.
"""Rows of staged writes in the figures of a queue, from the first chunk to the end."""

from __future__ import annotations

import time

from penstock import Penstock, Queue
from penstock.spark.calls import Staged, about_staged, staged_chunk
from tests.support.keyspace import Raw

AT = Staged("node", "aa11", 0)


def staged(q: Queue, field: str, rows: int, at: Staged = AT) -> None:
    """Stage a chunk of this many rows."""
    chunk = staged_chunk(0, [b"1;d=%b-%d\nx" % (field.encode(), i) for i in range(rows)])
    q.route.node.executor.run(about_staged(q.ops, "stage", at, at.batch, field, 60_000, chunk))


def counted(q: Queue) -> tuple[int, int, int]:
    """Return the numbers of staged, promised and ready rows."""
    stats = q.stats()
    return stats.staged, stats.promised, stats.ready


def test_a_write_from_stage_to_queue(q: Queue, raw: Raw) -> None:
    """Each row is staged, then promised, then a ready job. A failed attempt counts until the
    commit, and a chunk that is sent twice counts once.
    """
    run = q.route.node.executor.run
    q.enqueue("before")
    for field, rows in (("a:0", 3), ("a:1", 2), ("a:1", 2), ("failed:0", 4)):
        staged(q, field, rows)
    assert counted(q) == (9, 0, 1)
    run(about_staged(q.ops, "commit", AT, 0, 60_000, 5, "a", 2))
    assert counted(q) == (0, 5, 1)
    for field, most, promised in (("a:0", 2, 3), ("a:0", 2, 2), ("a:0", 2, 2), ("a:1", 9, 0)):
        run(about_staged(q.ops, "publish", AT, "", "", 0, "", field, most))
        assert counted(q) == (0, promised, 6 - promised)
    run(about_staged(q.ops, "unstage", AT, 0, 60_000))
    assert not raw.exists(q.ops.keys["staged"])


def test_a_write_that_is_given_up(q: Queue) -> None:
    """Its rows are in no figure any more; those of another write stay."""
    staged(q, "a:0", 3)
    staged(q, "b:0", 2, AT._replace(writer="bb22"))
    q.route.node.executor.run(about_staged(q.ops, "unstage", AT, 0, ""))
    assert counted(q) == (2, 0, 0)


def test_a_write_whose_driver_has_died(q: Queue, raw: Raw) -> None:
    """Its rows are in no figure when they expire, also while another write is staged."""
    staged(q, "a:0", 3)
    index = q.ops.keys["staged"]
    assert 0 < raw.pttl(index) <= 60_000
    raw.hset(index, "aa11:0", f"{int(time.time() * 1000) - 1} 3")
    assert counted(q) == (0, 0, 0)
    staged(q, "b:0", 2, AT._replace(writer="bb22"))
    assert raw.hkeys(index) == [b"bb22:0"]


def test_a_clear_ends_promises(q: Queue) -> None:
    """Promised rows are then staged rows that expire."""
    q.enqueue("x")
    staged(q, "a:0", 3)
    q.route.node.executor.run(about_staged(q.ops, "commit", AT, 0, 60_000, 3, "a", 1))
    q.clear()
    assert counted(q) == (3, 0, 0)


def test_a_thousand_writes_are_counted(q: Queue, raw: Raw) -> None:
    """A further one is staged and committed like the others, and not counted."""
    ends = int(time.time() * 1000) + 60_000
    index = q.ops.keys["staged"]
    raw.hset(index, mapping={f"cc33:{i}": f"{ends} 1" for i in range(999)})
    staged(q, "a:0", 3)
    staged(q, "b:0", 2, AT._replace(writer="bb22"))
    assert counted(q) == (1002, 0, 0)
    reply = q.route.node.executor.run(
        about_staged(q.ops, "commit", AT._replace(writer="bb22"), 0, 9000, 2, "b", 1)
    )
    assert (reply.code, raw.hlen(index)) == (1, 1000)


def test_a_node_with_staged_rows_is_not_drained(ps: Penstock, q: Queue) -> None:
    """Its queue may still get the rows: a node that is forgotten would keep them."""
    q.configure(lease=60)
    staged(q, "a:0", 3)
    run, end = q.route.node.executor.run, about_staged(q.ops, "unstage", AT, 0, "")
    [node] = ps.nodes.list()
    found = ps.nodes.check_drained(node)
    assert (bool(found), found.waiting, found.rows) == (False, 0, 3)
    run(end)
    assert ps.nodes.check_drained(node)
