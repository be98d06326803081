"""How many jobs a call removes, and when `sweep` moves those of a sparse stream."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.wire.codes import Code
from penstock.wire.keys import QueueKeys, score_of
from penstock.wire.replies import PARSERS
from tests.protocol.clock import T0, run
from tests.protocol.keyspace import Raw
from tests.protocol.seeds import EPOCH
from tests.support.backends import Backend

KEYS = QueueKeys("sparse")
IDLE_MS = 600_000
OWN_NODE = 4096
"""Bytes of a record that no other one shares a node of the stream with."""
DENSEST = 1748
"""Mean bytes of the first and the last record up to which jobs with nodes of their own stay."""


def _fill(raw: Raw, sizes: list[int], first_ms: int = T0 - 9999, **fields: Any) -> list[bytes]:
    """Make a queue with ready jobs whose records have these sizes; return their numbers."""
    meta = {"v": 2, "epoch": EPOCH, "uses": "", "seen": T0, "last": f"{T0 + 9999}-1000000000"}
    raw.hset(KEYS["meta"], mapping=meta | fields)
    numbers = [b"%d-%d" % (first_ms + i, 1_000_000_000) for i in range(len(sizes))]
    with raw.pipeline() as pipe:
        for number, size in zip(numbers, sizes, strict=True):
            pipe.xadd(KEYS["ready"], {"j": "1\n".ljust(size, "x")}, id=number)
        pipe.execute()
    return numbers


def _moved(raw: Raw, numbers: list[bytes]) -> tuple[int, int]:
    """Sweep; return how many jobs were moved, which are the first ones, and if more may follow."""
    records = {entry: fields[b"j"] for entry, fields in raw.xrange(KEYS["ready"])}
    reply = PARSERS["sweep"](run(raw, KEYS, "sweep", [7, IDLE_MS]))
    count = len(numbers) - raw.xlen(KEYS["ready"])
    assert [number for number, _ in raw.xrange(KEYS["ready"])] == numbers[count:]
    assert raw.hgetall(KEYS["held"]) == {one: records[one] for one in numbers[:count]}
    due = {one: float(min(T0, int(one.split(b"-")[0]))) for one in numbers[:count]}
    assert dict(raw.zrange(KEYS["scheduled"], 0, -1, withscores=True)) == due
    return count, reply.more


STREAMS: list[tuple[int, int, int, dict[str, Any], bool]] = [
    (63, 9, 9, {}, False),
    (64, 9, 9, {}, True),
    (64, DENSEST, DENSEST - 1, {}, True),
    (64, DENSEST, DENSEST, {}, False),
    (64, DENSEST - 1, DENSEST + 1, {}, False),
    (64, 9, 9, {"surveyed": T0 - 600_000}, True),
    (64, 9, 9, {"surveyed": T0 - 599_999}, False),
    (64, 9, 9, {"paused": "in"}, False),
    (101, 9, 9, {}, True),  # the last step reads as many as it asks for
]
"""Nodes, bytes of the first and of the last record, fields of meta, and if the jobs are moved."""


def test_a_sparse_stream_takes_more_than_twice_the_memory(backend: Backend) -> None:
    """From 64 nodes on: 4 KiB a node against twice the records, each with 300 bytes more."""
    raw = backend.sync_client()
    numbers = _fill(raw, [9, 9, *[OWN_NODE] * 61, 9])  # 64 jobs in 63 nodes
    assert _moved(raw, numbers) == (0, 0)
    for nodes, first, last, fields, moves in STREAMS:
        raw.flushdb()
        numbers = _fill(raw, [first, *[OWN_NODE] * (nodes - 2), last], **fields)
        found = _moved(raw, numbers)
        assert found == (nodes if moves else 0, 0), (nodes, first, last, fields)


MIB = 1 << 20
SMALL = [9] * 940
"""They fill few nodes, so the stream is a sparse one by the large ones beside them."""


BOUNDS: dict[str, tuple[list[int], int]] = {
    "1111 jobs": ([9, *[OWN_NODE] * 170, *SMALL], 1000),
    "1000 jobs": ([9, *[OWN_NODE] * 170, *SMALL[:829]], 1000),
    "999 jobs": ([9, *[OWN_NODE] * 170, *SMALL[:828]], 999),
    "1 MiB": ([1000, 7192, *[4096] * 254, *[OWN_NODE] * 9, 9], 256),
    "a byte less": ([1000, 7191, *[4096] * 254, *[OWN_NODE] * 9, 9], 257),
    "a large one": ([9, *[OWN_NODE] * 70, MIB, *[OWN_NODE] * 70, 9], 101),
}
"""Bytes of the records, and how many jobs a call moves."""


def test_a_sweep_moves_a_thousand_jobs_or_a_mebibyte(backend: Backend) -> None:
    """A call moves the oldest ones, and says if it stopped at a bound."""
    raw = backend.sync_client()
    for name, (sizes, moves) in BOUNDS.items():
        raw.flushdb()
        numbers = _fill(raw, sizes)
        assert _moved(raw, numbers) == (moves, int(name != "999 jobs")), name


REMOVING: dict[str, tuple[int, tuple[Any, ...]]] = {
    "enqueue": (102, ("", 0, "", 0, "", "1\nx")),
    "claim": (102, ("", 0, "", 0, "", "", "1;d=a\nx")),
    "enqueue 3": (106, ("", 0, "", 0, "", "1\nx", "1\ny", "1\nz")),
    "claim 3": (106, ("", 0, "", 0, "", "", "1;d=a\nx", "1;d=b\ny", "1;d=c\nz")),
    "sweep": (1000, (IDLE_MS,)),
}
"""How many of 1001 expired jobs a call removes, and its arguments."""


@pytest.mark.parametrize("name", REMOVING)
def test_a_call_removes_so_many_expired_jobs(backend: Backend, name: str) -> None:
    """A call that adds n jobs removes 100 + 2 n, a sweep 1000."""
    raw = backend.sync_client()
    for nonce in (1, 2):
        records = ["1;t=1000\nx"] * (1000 if nonce == 1 else 1)
        run(raw, KEYS, "enqueue", [nonce, EPOCH, 0, "", 0, "", *records], now_ms=T0 - 5000)
    removed, args = REMOVING[name]
    reply = run(raw, KEYS, name.partition(" ")[0], [8, *args])
    assert reply[0] == Code.DONE
    assert int(raw.hget(KEYS["meta"], "expired") or 0) == removed
    assert raw.zcard(KEYS["expiry"]) == 1001 - removed


@pytest.mark.parametrize("name, dropped", [("ack", 100), ("sweep", 1000)])
def test_a_call_drops_so_many_marks(name: str, dropped: int, backend: Backend) -> None:
    """A mark of an awaited job goes when its client has not looked for 30 s."""
    raw = backend.sync_client()
    [number] = _fill(raw, [9], uses="w")
    old = (1 << 52) + T0 - 30_000
    raw.zadd(KEYS["expiry"], {f"?{T0}-{1_000_000_000 + i}": old for i in range(dropped + 1)})
    run(raw, KEYS, name, [8, EPOCH, "", "", number] if name == "ack" else [8, IDLE_MS])
    assert raw.zcard(KEYS["expiry"]) == 1


def test_a_step_of_a_purge_removes_a_thousand_jobs(backend: Backend) -> None:
    """It says that there may be more, also if there are none."""
    raw = backend.sync_client()
    for count, wanted in ((999, [999, 0]), (1000, [1000, 1]), (1001, [1000, 1])):
        raw.flushdb()
        numbers = _fill(raw, [9] * count)
        raw.delete(KEYS["ready"])
        raw.hset(KEYS["held"], mapping=dict.fromkeys(numbers, "1\nx"))
        raw.zadd(KEYS["dead"], dict.fromkeys(numbers, T0 - 9))
        assert run(raw, KEYS, "purge", [8, "dead", "", 0])[2:4] == wanted


def test_a_step_of_a_purge_reads_a_thousand_ready_jobs(backend: Backend) -> None:
    """It reads each one in a queue with ttls, in several reads."""
    raw = backend.sync_client()
    for count, wanted in ((16, [16, 0]), (40, [40, 0]), (1001, [1000, 1])):
        raw.flushdb()
        numbers = _fill(raw, [9] * count, uses="t")
        raw.zadd(KEYS["expiry"], {numbers[0]: T0 + 9000})
        assert run(raw, KEYS, "purge", [8, "ready", "", 0])[2:4] == wanted
        assert raw.xlen(KEYS["ready"]) == count - wanted[0]


def test_a_moved_job_of_a_clock_ahead_is_due_now(backend: Backend) -> None:
    """A job is due since its creation, if the clock does not say that this is yet to come."""
    raw = backend.sync_client()
    numbers = _fill(raw, [9, *[OWN_NODE] * 62, 9], first_ms=T0 - 30)
    assert _moved(raw, numbers) == (64, 0)


NUMBER = f"{T0 - 9999}-1000000000"
ZSETS = {"expiry": "t", "once": "o", "windows": "ds", "holds": "y"}
HASHES = {
    "held": "buk",
    "tally": "rmn",
    "dedup": "ds",
    "schedules": "e",
    "batches": "rg",
    "members": "g",
}
"""Keys, and the letters of `uses` that stay while one has an entry."""


@pytest.mark.parametrize("key", ["none", "ready", *ZSETS, *HASHES])
def test_a_sweep_keeps_the_letters_of_what_is_there(key: str, backend: Backend) -> None:
    """A letter goes when no key has what it stands for."""
    raw = backend.sync_client()
    letters = "".join(sorted({*"k", *"".join([*ZSETS.values(), *HASHES.values()])}))
    _fill(raw, [9] if key == "ready" else [], uses=letters)
    if key in ZSETS:
        raw.zadd(KEYS[key], {NUMBER: score_of(T0 + 5000, 0) if key == "once" else T0 + 5000})
    elif key in HASHES:
        raw.hset(KEYS[key], NUMBER, "1\nx")
    run(raw, KEYS, "sweep", [8, IDLE_MS])
    kept = {"none": "", "ready": "k", **ZSETS, **HASHES}[key]
    assert raw.hget(KEYS["meta"], "uses").decode() == "".join(sorted(kept))
