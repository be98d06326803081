"""Stable ids: unique across records, threads, processes and forks."""

from __future__ import annotations

import itertools
import os
import re
import threading

import pytest

from penstock.core.enqueuing.chunks import chunks
from penstock.core.enqueuing.prepared import prepared
from penstock.core.jobs.record import parse_record, stable_id_of
from penstock.core.values import stable
from penstock.core.values.ids import ORDERED_ALPHABET

FORM = re.compile(rb"[-0-9A-Z_a-z]{12,16}")


def origin(text: bytes) -> bytes:
    """Return the random characters of an id; its last one tells how far all of them are turned."""
    turn = ORDERED_ALPHABET.index(text[-1:])
    return text.translate(
        bytes.maketrans(ORDERED_ALPHABET[turn:] + ORDERED_ALPHABET[:turn], ORDERED_ALPHABET)
    )[:10]


def test_each_is_another_one() -> None:
    """10,000 ids made by several threads are unique and have the form of the protocol."""
    made: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: made.extend(stable.next_id() for _ in range(2_500)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 10_000
    assert all(FORM.fullmatch(text) for text in made)


def test_the_count_never_repeats_another_one() -> None:
    """The counter grows by two characters when two are used up."""
    source = stable.ids()
    made = list(itertools.islice(source, 4_100))
    assert len(set(made)) == 4_100
    assert [len(made[i]) for i in (0, 4095, 4096, 4099)] == [12, 12, 14, 14]
    assert len({origin(text) for text in made}) == 1


def test_neighbours_differ_in_each_character() -> None:
    """Redis 6.2 finds a long text in a table by a part of its characters."""
    made = list(itertools.islice(stable.ids(), 64))
    assert all(len(set(characters)) == 64 for characters in zip(*made, strict=True))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_has_other_ids() -> None:
    """The ids of a forked child do not continue those of the parent."""
    mine = stable.next_id()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, stable.next_id())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = os.read(reader, 64)
    assert FORM.fullmatch(theirs)
    assert origin(theirs) != origin(mine)
    assert origin(stable.next_id()) == origin(mine)


@pytest.mark.parametrize("body", [b"x", {"a": 1}, b";i=no\n;i=no"])
@pytest.mark.parametrize("dedup_id", [None, "x;i=no"])
def test_every_record_has_one(body: object, dedup_id: str | None) -> None:
    """Every record has a stable id; text in a body or header is not taken for one."""
    headers = {"i": "no", "a;i=b": ";i=no"}
    options = prepared(None, True, ttl=60, headers=headers, dedup_id=dedup_id)
    records = [record for chunk, _ in chunks([body] * 3, options) for record in chunk]
    parsed = [parse_record(record) for record in records]
    assert [record.stable_id for record in parsed] == [stable_id_of(r) for r in records]
    assert len({record.stable_id for record in parsed}) == 3
    for record in parsed:
        assert FORM.fullmatch(record.stable_id.encode())
        assert (record.body(), record.dedup_id) == (body, dedup_id or "")
        assert (record.ttl_ms, record.headers["a;i=b"]) == (60_000, ";i=no")
