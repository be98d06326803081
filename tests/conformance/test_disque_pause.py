"""Disque's PAUSE, HELLO and INFO, and the errors.

ROWS continues the table of test_disque.py; that module checks it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock import (
    BadArgument,
    BadJobId,
    JobGone,
    NotReplicated,
    Outcome,
    OutOfMemory,
    Penstock,
    PenstockError,
    Queue,
    QueueFull,
    QueuePaused,
    TooLate,
    parse_id,
)
from penstock.embedded import EmbeddedServer
from tests.conformance.disque import (
    SEVERAL_NODES,
    Rows,
    bodies,
    one_in_each_state,
    refused,
)
from tests.support.keyspace import Raw, advance, raw_time, reach_blocked
from tests.support.twins import spawn

ROWS: Rows = {
    "PAUSE": ("test_pauses_replace_each_other", "test_bad_options_of_a_pause"),
    "PAUSE … state": ("test_pauses_replace_each_other",),
    "PAUSE … bcast": SEVERAL_NODES,
    "PAUSE … in": (
        "test_paused_in_nothing_moves_and_nothing_is_lost",
        "test_putting_back_during_a_pause",
        "test_a_reader_gets_jobs_due_during_a_pause",
    ),
    "PAUSE … out": (
        "test_paused_out_nothing_is_delivered",
        "test_a_reader_wakes_at_the_resume",
        "test_a_paused_queue_among_several",
    ),
    "PAUSE … an empty queue": ("test_a_paused_empty_queue_stays",),
    "PAUSE … restart": ("test_a_pause_survives_a_restart",),
    "HELLO": ("test_hello",),
    "INFO": ("test_info",),
    "CLUSTER": SEVERAL_NODES,
    "CLUSTER LEAVING": SEVERAL_NODES,
    "others": "PING, AUTH, CONFIG and their like are Redis's own commands and stay what they are",
    "Error words": ("test_every_error_word_has_a_type",),
}


# -- PAUSE -------------------------------------------------------------------------------------


def test_pauses_replace_each_other(q: Queue) -> None:
    """PAUSE; PAUSE … state; a.7 6: the last one counts, it can be read, and resume ends it."""
    for side in ("out", "in", "all", "in"):
        q.pause(side)
        assert q.configure().paused == side
        assert q.stats().settings.paused == side
    q.resume()
    assert q.configure().paused is None
    q.pause()
    assert q.configure().paused == "out"


@pytest.mark.parametrize("side", ["", "none", "state", "IN", None, 1, True, ["in", "out"]])
def test_bad_options_of_a_pause(q: Queue, raw: Raw, side: Any) -> None:
    """PAUSE: an unknown side is a typed error, and the queue is not paused."""
    q.enqueue(b"x")
    refused(raw, lambda: q.pause(side), "side")


@pytest.mark.parametrize("side", ["in", "all"])
def test_paused_in_nothing_moves_and_nothing_is_lost(q: Queue, raw: Raw, side: str) -> None:
    """PAUSE … in: due jobs and ended leases wait, lease 0 or not, and come after the pause."""
    q.enqueue_many(["held", "waits"], lease=5)
    q.reserve(block=0)
    q.enqueue("delayed", delay=5)
    q.enqueue("once", delay=5, lease=0)
    q.pause(side)
    advance(raw, q.ops, 60)
    with pytest.raises(QueuePaused):
        q.enqueue("refused")
    assert bodies(q.reserve(10, block=0)) == ([] if side == "all" else ["waits"])
    for wait in (10, 100):
        assert q.reserve(10, block=0) == []
        advance(raw, q.ops, wait)
    q.resume()
    assert sorted(bodies(q.reserve(10, block=0))) == ["delayed", "held", "once", "waits"]


def test_putting_back_during_a_pause(q: Queue) -> None:
    """PAUSE … in; NACK; ENQUEUE; a.7 6: nacked, released and promoted jobs wait for the end of the
    pause.
    """
    q.enqueue_many(["nacked", "released", "promoted", "acked"])
    nacked, released, promoted, acked = q.reserve(4, block=0)
    later = q.enqueue("later", delay=600)
    q.pause("in")
    assert nacked.nack(delay=0)
    assert released.release()
    assert list(q.promote([promoted.id, later.id])) == [Outcome.DONE] * 2
    assert acked.ack()
    assert q.reserve(10, block=0) == []
    stats = q.stats()
    assert stats.ready + stats.scheduled == 4
    q.resume()
    assert bodies(q.reserve(10, block=0)) == ["nacked", "released", "promoted", "later"]


@pytest.mark.parametrize("side", ["out", "all"])
def test_paused_out_nothing_is_delivered(q: Queue, side: str) -> None:
    """PAUSE … out: no job is delivered, and reads still show all."""
    q.enqueue_many(range(3))
    q.pause(side)
    assert q.reserve(block=0) == []
    assert q.reserve(block=0.05) == []
    assert bodies(q.peek()) == [0, 1, 2]
    if side == "out":
        q.enqueue(3)
    q.resume()
    assert bodies(q.reserve(10, block=0)) == [0, 1, 2, 3][: 4 if side == "out" else 3]


def test_a_reader_wakes_at_the_resume(real_ps: Penstock, real_raw: Raw) -> None:
    """PAUSE … out: a waiting consumer of a paused queue gets a job at its end, before its own next
    look.
    """
    queue = real_ps.queue("q")
    queue.enqueue(b"x")
    queue.pause("out")
    reader = spawn(lambda: queue.reserve(block=None))
    reach_blocked(real_raw, 1)
    queue.enqueue(b"y")
    assert not reader.is_done
    resumed = raw_time(real_raw)
    queue.resume()
    (job,) = reader.result()
    assert job.body == b"x"
    assert job.delivered - resumed < 3


@pytest.mark.parametrize("what", ["lease", "delay"])
def test_a_reader_gets_jobs_due_during_a_pause(real_ps: Penstock, real_raw: Raw, what: str) -> None:
    """PAUSE … in: a waiting consumer gets a job, due during the pause, at its end."""
    queue = real_ps.queue("q")
    queue.enqueue(b"x", lease=20, delay=20 if what == "delay" else 0)
    queue.reserve(block=0)
    queue.pause("in")
    advance(real_raw, queue.ops, 20)
    reader = spawn(lambda: queue.reserve(block=None))
    reach_blocked(real_raw, 1)
    assert not reader.is_done
    queue.resume()
    assert bodies(reader.result()) == [b"x"]


def test_a_paused_empty_queue_stays(q: Queue, raw: Raw) -> None:
    """PAUSE … an empty queue: an unused paused queue is not removed; after the resume it is."""
    q.pause("in")
    advance(raw, q.ops, 100_000)
    q.sweep()
    assert q.stats().exists
    with pytest.raises(QueuePaused):
        q.enqueue(b"x")
    q.resume()
    advance(raw, q.ops, 100_000)
    q.sweep()
    assert not q.stats().exists


def test_a_pause_survives_a_restart(durable: EmbeddedServer) -> None:
    """PAUSE … restart; a.7 6: after a kill the queue is paused as before."""
    with Penstock(durable.url) as ps:
        for side in ("in", "out", "all"):
            ps.queue(side).enqueue(b"x")
            ps.queue(side).pause(side)
        ps.queue("empty").pause("in")
        durable.kill()
        durable.restart()
        assert [ps.queue(side).configure().paused for side in ("in", "out", "all")] == [
            "in",
            "out",
            "all",
        ]
        with pytest.raises(QueuePaused):
            ps.queue("empty").enqueue(b"x")
        assert ps.queue("out").reserve(block=0) == []


# -- HELLO, INFO, errors -----------------------------------------------------------------------


def test_hello(ps: Penstock, q: Queue) -> None:
    """HELLO: version, the node's id of 40 hex digits, and the nodes with address and priority."""
    hello = ps.hello()
    assert hello.version == 2
    assert len(hello.node) == 40
    assert set(hello.node) <= set("0123456789abcdef")
    assert [node.id for node in hello.nodes] == [hello.node]
    assert hello.nodes[0].priority == 1
    assert parse_id(q.enqueue(b"x").id).node == hello.node[:8]
    again = ps.hello()
    assert (again.node, again.nodes[0].address) == (hello.node, hello.nodes[0].address)


def test_info(ps: Penstock, q: Queue) -> None:
    """INFO: the registered jobs and queues, and the server's own figures."""
    info = ps.info()
    assert (info.registered_jobs, info.registered_queues) == (0, 0)
    one_in_each_state(q)
    ps.queue("other").enqueue_many(range(3))
    info = ps.info()
    assert (info.registered_jobs, info.registered_queues) == (7, 2)
    q.ack([view.id for view in q.peek()])
    assert ps.info().registered_jobs == 6


def _full(q: Queue) -> None:
    q.enqueue(b"x", max_length=1)
    q.enqueue(b"x", max_length=1)


def _paused(q: Queue) -> None:
    q.pause("in")
    q.enqueue(b"x")


def _gone(q: Queue) -> None:
    q.enqueue(b"x")
    (job,) = q.reserve(block=0)
    q.delete([job.id])
    job.extend()


ERRORS: dict[str, tuple[type[PenstockError], Callable[[Queue], Any]]] = {
    "ERR": (BadArgument, lambda q: q.enqueue(b"x", ttl=-1)),
    "BADID": (BadJobId, lambda q: q.ack(["x"])),
    "MAXLEN": (QueueFull, _full),
    "PAUSED": (QueuePaused, _paused),
    "NOJOB": (JobGone, _gone),
}
ELSEWHERE = {"TOOLATE": TooLate, "OOM": OutOfMemory, "NOREPL": NotReplicated}


@pytest.mark.parametrize("word", ERRORS)
def test_every_error_word_has_a_type(q: Queue, word: str) -> None:
    """Error words: each has its own exception under one root; those that need replicas, a full
    server or elapsed time are raised in the tests of their rows.
    """
    kind, call = ERRORS[word]
    with pytest.raises(kind) as caught:
        call(q)
    assert type(caught.value) is kind
    kinds = [kind for kind, _ in ERRORS.values()] + [*ELSEWHERE.values()]
    assert len(set(kinds)) == len(kinds)
    assert all(issubclass(kind, PenstockError) for kind in kinds)
