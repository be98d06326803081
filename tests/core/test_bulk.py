"""Options of an enqueue, and bodies cut into chunks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from penstock import BadArgument, Dedup, Durable
from penstock.core.bulk import CHUNK_BYTES, chunks, prepared
from penstock.core.calls import Wait
from penstock.core.durable import ack_wait


def test_an_enqueue_without_prepared() -> None:
    """The shortest record, at once, for ever."""
    usual = prepared()
    assert (usual.head, usual.coded_head) == (b"1", b"1;c=json")
    assert (usual.delay, usual.bound, usual.block, usual.ttl_code) == (0, "", 0, "ffff")
    assert prepared(delay=0.0, headers={}) == usual


def test_all_prepared() -> None:
    """Each one where it belongs."""
    made = prepared(delay=1.5, lease=60, ttl=120, headers={"a": "b"}, max_length=7, block=2.5)
    assert made.head == b"1;l=60000;t=120000;h.a=b"
    assert (made.delay, made.bound, made.block, made.ttl_code) == (1500, 7, 2.5, "0003")


def test_replicas_that_are_waited_for() -> None:
    """Those of the queue's setting, unless a number is given; none for a job at most once."""
    assert prepared().wait == Wait(None, 1000)
    assert prepared(delay=1).wait == Wait(None, 1000)
    assert prepared(durable=Durable(2, timeout=0.5)).wait == Wait(2, 500)
    assert prepared(durable=Durable(timeout=3)).wait == Wait(None, 3000)
    assert prepared(replicas=0).wait is None
    assert prepared(lease=0).wait is None


def test_the_disk_is_waited_for_longer() -> None:
    """A file is synced every second; a job at most once may be waited for, its replicas may not."""
    assert prepared(durable=Durable(fsynced=True)).wait == Wait(None, 5000, fsynced=True)
    assert prepared(durable=Durable(2, fsynced=True, timeout=0.5)).wait == Wait(
        2, 500, fsynced=True
    )
    assert prepared(durable=Durable(fsynced=True), lease=0).wait == Wait(0, 5000, fsynced=True)
    assert prepared(durable=Durable(0, fsynced=True)).wait == Wait(0, 5000, fsynced=True)


def test_an_ack_waits_for_what_it_says() -> None:
    """Never for the queue's setting; its number goes out with the call."""
    assert ack_wait(0, Durable(timeout=1)) is None
    assert ack_wait(0, None) is None
    assert ack_wait(2, None) == ack_wait(0, Durable(2)) == Wait(2, 1000, 2, refuses=False)
    assert ack_wait(0, Durable(fsynced=True)) == Wait(0, 5000, 0, fsynced=True, refuses=False)


def test_a_moment_travels_as_it_is() -> None:
    """The server makes a delay of it."""
    assert prepared(at=1_700_000_000).delay == "@1700000000000"


def test_at_most_once_has_an_end() -> None:
    """A day unless it is given."""
    assert prepared(lease=0).head == b"1;l=0;t=86400000"
    assert prepared(lease=0).ttl_code == "05a0"
    assert prepared(lease=0, ttl=60).head == b"1;l=0;t=60000"


@pytest.mark.parametrize(
    "changed, argument",
    [
        ({"delay": -1}, "delay"),
        ({"delay": False}, "delay"),
        ({"block": False}, "block"),
        ({"block": -1}, "block"),
        ({"at": 5, "delay": 1}, "at"),
        ({"ttl": 0}, "ttl"),
        ({"ttl": 5, "delay": 5}, "ttl"),
        ({"lease": 86_400 * 25}, "lease"),
        ({"headers": [("a", "b")]}, "headers"),
        ({"headers": {"a": 1}}, "headers"),
        ({"max_length": 0}, "max_length"),
        ({"replicas": -1}, "replicas"),
        ({"replicas": True}, "replicas"),
        ({"replicas": 1001}, "replicas"),
        ({"replicas": 1, "lease": 0}, "replicas"),
        ({"replicas": 1, "durable": Durable()}, "replicas"),
        ({"durable": Durable(1), "lease": 0}, "replicas"),
        ({"durable": 1}, "durable"),
        ({"dedup_id": "a", "dedup": Dedup("a")}, "dedup_id"),
        ({"dedup": Dedup(str)}, "dedup"),
    ],
)
def test_what_can_not_be(changed: dict[str, Any], argument: str) -> None:
    """Named by its argument."""
    with pytest.raises(BadArgument) as caught:
        prepared(**changed)
    assert caught.value.argument == argument


@pytest.mark.parametrize(
    "options, argument",
    [
        ({"replicas": -1}, "replicas"),
        ({"replicas": True}, "replicas"),
        ({"fsynced": 1}, "fsynced"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": True}, "timeout"),
        ({"timeout": 3601}, "timeout"),
    ],
)
def test_a_durable_that_can_not_be(options: dict[str, Any], argument: str) -> None:
    """It is refused when it is made, and the error names the argument."""
    with pytest.raises(BadArgument) as caught:
        Durable(**options)
    assert caught.value.argument == argument


def test_an_ack_that_can_not_be() -> None:
    """Both forms, or something else than a Durable."""
    for replicas, durable in ((1, Durable(1)), (0, 1), (True, None), (None, None)):
        with pytest.raises(BadArgument):
            ack_wait(replicas, durable)  # type: ignore[arg-type]


def test_a_head_of_many_ids_is_written_once() -> None:
    """The id of each body stands in its place; a long one counts to the bound of the head."""
    made = prepared(ttl=60, headers={"a": "b"}, dedup=Dedup(str, window=5), many=True)
    assert made.record(7).startswith(b"1;t=60000;d=7;w=5000;c=json;h.a=b;i=")
    assert made.record(b";d").startswith(b"1;t=60000;d=b'%3Bd';w=5000;h.a=b;i=")
    large = prepared(headers={"a": "b" * 15_000}, dedup=Dedup(str), many=True)
    assert large.record(7)
    with pytest.raises(BadArgument, match=r"^headers=.*with the dedup id, must be at most 16284"):
        large.record(";" * 1000)


def test_chunks_of_a_thousand() -> None:
    """The last one may be shorter; none is empty."""
    assert [len(chunk) for chunk in chunks(range(2001), prepared())] == [1000, 1000, 1]
    assert [len(chunk) for chunk in chunks(range(1000), prepared())] == [1000]
    assert list(chunks([], prepared())) == []


@pytest.fixture
def fixed_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stable ids of one length."""
    monkeypatch.setattr("penstock.core.bulk.next_stable_id", lambda: b"0123456789ab")


@pytest.mark.usefixtures("fixed_ids")
def test_chunks_with_a_ttl_are_half_as_long() -> None:
    """A chunk with a ttl costs the server as much as one without that has twice as many jobs."""
    assert [len(chunk) for chunk in chunks(range(1001), prepared(ttl=60))] == [500, 500, 1]


@pytest.mark.usefixtures("fixed_ids")
def test_chunks_of_a_mebibyte() -> None:
    """Heads included; a body above the bound is a chunk of its own."""
    half, head = CHUNK_BYTES // 2, len(b"1;i=0123456789ab\n")
    sizes = [half - head, half - head, 1, CHUNK_BYTES + 5, 3, half, half]
    made = chunks(map(bytes, sizes), prepared())
    cut = [[len(record) - head for record in chunk] for chunk in made]
    assert cut == [[half - head, half - head], [1], [CHUNK_BYTES + 5], [3, half], [half]]


def test_bodies_are_read_chunk_by_chunk() -> None:
    """Not further ahead than the chunk that is asked for."""
    read = []

    def bodies() -> Iterator[int]:
        for number in range(2500):
            read.append(number)
            yield number

    made = chunks(bodies(), prepared())
    next(made)
    assert len(read) == 1000
    next(made)
    assert len(read) == 2000


@pytest.mark.usefixtures("fixed_ids")
def test_each_body_has_its_codec() -> None:
    """Bytes and JSON may be mixed."""
    (records,) = chunks([b"x", "x", bytearray(b"y"), None], prepared(headers={"a": "b"}))
    assert records == [
        b"1;h.a=b;i=0123456789ab\nx",
        b'1;c=json;h.a=b;i=0123456789ab\n"x"',
        b"1;h.a=b;i=0123456789ab\ny",
        b"1;c=json;h.a=b;i=0123456789ab\nnull",
    ]


@pytest.mark.parametrize("bodies", ["abc", b"abc", {"a": 1}, 5, None, memoryview(b"x")])
def test_what_is_one_body_and_not_many(bodies: Any) -> None:
    """A slip of the pen, refused."""
    with pytest.raises(BadArgument, match="bodies="):
        list(chunks(bodies, prepared()))
