"""Scripts read, deliver and answer about 1 MiB in a call: the job that reaches it is the last."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import pytest

from penstock.wire.keys import QueueKeys, score_of
from penstock.wire.replies import PARSERS
from tests.protocol.clock import T0, run
from tests.protocol.keyspace import Raw
from tests.protocol.seeds import EPOCH
from tests.support.backends import Backend

KEYS = QueueKeys("mebibyte")
TAG = 0xABC
SIZE = 1 << 14
"""Bytes of a record: 64 of them are 1 MiB."""
REACH = (1 << 20) // SIZE
JOBS = REACH + 6
NUMBERS = [b"%d-1000000000" % (T0 - 9999 + i) for i in range(JOBS)]
NOTE = f"@{T0 - 5000} ada\n"
LATER = T0 + 70_000
"""Later than a right clock has a time, see retime."""


def _put(raw: Raw, place: str, sizes: list[int]) -> None:
    """Make a queue with jobs in this place, whose stored texts have these sizes."""
    raw.flushdb()
    meta = {"v": 2, "epoch": EPOCH, "uses": "", "seen": T0, "last": f"{T0}-1000000000"}
    raw.hset(KEYS["meta"], mapping=meta)
    note = NOTE if place in ("active", "ended", "dead") else ""
    texts = [(note + "1\n").ljust(size, "x") for size in sizes]
    if place == "ready":
        for number, text in zip(NUMBERS, texts, strict=True):
            raw.xadd(KEYS["ready"], {"j": text}, id=number)
        return
    if place == "failed":
        errors = ["1 0 1 0 " + "x" * size for size in sizes]
        raw.hset(KEYS["tally"], mapping=dict(zip(NUMBERS, errors, strict=True)))
    raw.hset(KEYS["held"], mapping=dict(zip(NUMBERS, texts, strict=True)))
    index, first = {
        "due": ("scheduled", T0 - 1000),
        "scheduled": ("scheduled", LATER),
        "active": ("active", score_of(T0 + 30_000, TAG)),
        "ended": ("active", score_of(T0 - 1000, TAG)),
        "dead": ("dead", T0 - 1000),
        "failed": ("dead", T0 - 1000),
        "dead later": ("dead", LATER),
    }[place]
    step = 4096 if index == "active" else 1
    raw.zadd(KEYS[index], {number: first + i * step for i, number in enumerate(NUMBERS)})


Count = Callable[[Any], int]


def _jobs(reply: Any) -> int:
    return len(reply.jobs)


def _rows(width: int) -> Count:
    return lambda reply: len(reply.jobs) // width


def _delivered(reply: Any) -> int:
    return len(reply.jobs[0])


RECEIPTS = [part for number in NUMBERS for part in (number, f"1-{TAG:03x}")]
RESERVE = (1000, 7, "eve", 0, "", "")
CALLS: dict[str, tuple[str, tuple[Any, ...], Count, bool]] = {
    "reserve ready": ("ready", RESERVE, _delivered, False),
    "reserve due": ("due", RESERVE, _delivered, False),
    "reserve ended": ("ended", RESERVE, _delivered, True),
    "recover": ("active", (EPOCH, "*", 7, "eve", "", *RECEIPTS), attrgetter("seen"), True),
    "peek ready": ("ready", ("ready", 0, 1000, 0), _jobs, False),
    "peek scheduled": ("scheduled", ("scheduled", 0, 1000, 0), _jobs, False),
    "peek dead": ("dead", ("dead", 0, 1000, 0), _jobs, True),
    "browse ready": ("ready", ("ready", "", 1000, 0, 0), attrgetter("looked"), False),
    "browse dead": ("dead", ("dead", "", 1000, 0, 0), attrgetter("looked"), False),
    "survey ready": ("ready", ("", "ready", "", "", 1000, 2), _rows(2), False),
    "survey scheduled": ("scheduled", ("", "scheduled", "", "", 1000, 2), _rows(4), False),
    "scan ready": ("ready", (0, 1000, 1), _jobs, False),
    "results": ("failed", (EPOCH, "", *NUMBERS), _jobs, False),
    "show": ("scheduled", (EPOCH, *NUMBERS), _jobs, False),
    "retime": ("dead later", ("dead", 0, 0, 0), attrgetter("found"), False),
}
"""Place of the jobs, arguments, the count of jobs in a reply, and if the notes count not."""


@pytest.mark.parametrize("call", CALLS)
def test_a_call_ends_with_the_job_that_reaches_a_mebibyte(call: str, backend: Backend) -> None:
    """With a byte less there is room for one more job."""
    raw = backend.sync_client()
    place, args, count, is_bare = CALLS[call]
    extra = len(NOTE) if is_bare else 0
    for missing in (0, 1):
        sizes = [SIZE + extra] * JOBS
        for at in (0, -1):  # some calls begin with the last one
            sizes[at] -= missing
        _put(raw, place, sizes)
        name = call.partition(" ")[0]
        reply = PARSERS[name](run(raw, KEYS, name, [8, *args]))
        assert count(reply) == REACH + missing
