"""Group 1: how the sink packs records, and waits for room, without a server."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest

from penstock import BadArgument, QueueFull, QueuePaused
from penstock.spark import sink
from penstock.spark.options import Write
from penstock.spark.sink import Packer, RecordBatch, put_patiently

HERE = {"queue": "mail", "url": "redis://not-used"}


@pytest.mark.parametrize(
    "sizes, rows, sent",
    [
        ([1] * 7, 3, [[1] * 3, [1] * 3, [1]]),
        ([400, 400, 400, 400], 9, [[400, 400], [400, 400]]),
        ([400, 300, 300, 1], 9, [[400, 300, 300], [1]]),
        ([2000, 1, 2000, 1, 1], 9, [[2000], [1], [2000], [1, 1]]),
    ],
)
def test_a_batch_ends_before_it_is_too_large(
    sizes: list[int], rows: int, sent: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call has at most `batchSize` records and 1 MiB; a larger record has one of its own."""
    monkeypatch.setattr(sink, "CHUNK_BYTES", 1000 + 3 * sink.RECORD_OVERHEAD_BYTES)
    batches, packer = packing(rows)
    for at, size in enumerate(sizes):
        packer.add(["key"], [b"x" * size], [at])
    packer.finish()
    assert [[len(record) for record in batch.records] for _, batch in batches] == sent
    assert [one for _, batch in batches for one in batch.delays] == list(range(len(sizes)))


def packing(rows: int) -> tuple[list[tuple[str, RecordBatch]], Packer[str]]:
    """Return a list, and a packer that sends batches to it."""
    batches: list[tuple[str, RecordBatch]] = []

    def send(some: Mapping[str, RecordBatch]) -> None:
        batches.extend(some.items())

    return batches, Packer[str](Write.parse({**HERE, "batchSize": rows}), send)


def test_memory_of_many_small_batches_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """When it is used up, all batches are sent, and each record once."""
    monkeypatch.setattr(sink, "MAX_HELD_BYTES", 10 * (sink.RECORD_OVERHEAD_BYTES + 1))
    batches, packer = packing(40)
    keys = [f"k{number % 8}" for number in range(22)] + ["last"] * 18
    packer.add(keys, [b"x"] * 40, range(40))
    packer.finish()
    got = [(at, key) for key, batch in batches for at in batch.delays]
    assert sorted(got) == list(enumerate(keys))
    lengths = [len(batch.records) for _, batch in batches]
    assert lengths == [2, 2, 2, 1, 1, 1, 1, 1] * 2 + [11, 7]  # eleven records are too many


def test_a_refused_ttl_names_its_row() -> None:
    """Of the rows with this ttl it is that of the latest time; other errors stay."""
    batch = RecordBatch()
    for name, ttl, delay in (("a", 9, "@9000"), ("b", 5, "@4000"), ("c", 5, "@5000"), ("d", 5, 0)):
        batch.records.append(b"1;l=9;t=%d;p=3,,;d=%b;i=x\nbody" % (ttl * 1000, name.encode()))
        batch.delays.append(delay)
    row = "row 'c' starts at 1970-01-01T00:00:05+00:00: the ttl must be longer"
    with pytest.raises(BadArgument, match=re.escape(f"ttl=5.0: {row}")), batch.naming_rows():
        raise BadArgument("ttl", 5.0, "must be longer")
    for error in (BadArgument("ttl", 7.0, "short"), BadArgument("n", "5", "wrong")):
        with pytest.raises(BadArgument) as caught, batch.naming_rows():
            raise error
        assert caught.value is error


class Server:
    """A queue that is refused or has room, and its clock.

    Args:
        answers: what happens to each call: None = all are added, an error, or a function.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: Any) -> None:
        self.now, self.answers = 100.0, list(answers)
        self.calls: list[tuple[int, int, float]] = []
        self.slept: list[float] = []
        monkeypatch.setattr(sink, "monotonic", lambda: self.now)
        monkeypatch.setattr(sink, "sleep", self.sleep)

    def sleep(self, seconds: float) -> None:
        """Pause."""
        self.slept.append(seconds)
        self.now += seconds

    def put(self, at: int, n: int, block: float) -> int:
        """Answer a call; a refused one lasts as long as it may wait."""
        self.calls.append((at, n, block))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            self.now += block
            raise answer
        self.now += 1
        return n


def full(waiting: int, limit: int = 80) -> QueueFull:
    """Return the refusal of a queue with so many waiting jobs."""
    return QueueFull("full", waiting, limit, 0)


PAUSED = QueuePaused("paused")


@pytest.mark.parametrize(
    "answers, calls, slept",
    [
        # What fits is added at once. Then it waits for an eighth of the limit.
        ([full(50), None, full(80), None, None],
         [(0, 100, 0), (0, 30, 0), (30, 70, 0), (30, 10, 20), (40, 60, 0)], []),
        # The last records fit exactly.
        ([full(0), None, None], [(0, 100, 0), (0, 80, 0), (80, 20, 0)], []),
        ([full(79), None, None], [(0, 100, 0), (0, 1, 0), (1, 99, 0)], []),
        # The time begins anew after each progress.
        ([full(80), None, full(80), None, None],
         [(0, 100, 0), (0, 10, 20), (10, 90, 0), (10, 10, 20), (20, 80, 0)], []),
        # A small limit: one record at a time.
        ([full(4, 4), None, None], [(0, 100, 0), (0, 1, 20), (1, 99, 0)], []),
        ([PAUSED, PAUSED, None], [(0, 100, 0)] * 3, [0.5, 0.5]),
    ],
)  # fmt: skip
def test_a_write_waits_for_room(
    answers: list[Any], calls: list[Any], slept: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write goes on as soon as there is room, with as many records as possible."""
    server = Server(monkeypatch, *answers)
    put_patiently(Write.parse({**HERE, "fullTimeout": "20s"}), 100, server.put)
    assert (server.calls, server.slept) == (calls, slept)


@pytest.mark.parametrize(
    "more, answers, calls, words",
    [
        ({"onFull": "fail"}, [full(50), None, full(80)], 3,
         "30 of these 100 rows were added, repeating the write adds the rest$"),
        ({"onFull": "fail"}, [PAUSED], 1, "paused; 0 of these 100 rows were added"),
        ({"fullTimeout": "20s"}, [full(80), full(80)], 2,
         r"There was no room within fullTimeout \(20 s\)\. Check that consumers run; .* may need$"),
        ({"fullTimeout": "1200ms"}, [PAUSED] * 4, 4,
         r"The pause did not end within fullTimeout \(1\.2 s\)$"),
        ({"fullTimeout": "20s", "commitMode": "staged"}, [full(80), full(80)], 2,
         "full; all staged rows are committed, and some may be in the queue. There was no room"),
    ],
)  # fmt: skip
def test_a_write_that_waits_in_vain(
    more: dict[str, str], answers: list[Any], calls: int, words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The error tells how many rows were added, why it ended, and what to do."""
    server = Server(monkeypatch, *map(copied, answers))
    options = Write.parse({**HERE, **more})
    with pytest.raises((QueueFull, QueuePaused), match=words):
        put_patiently(options, 100, server.put)
    assert len(server.calls) == calls
    assert sum(server.slept) <= options.patience + 0.001


def copied(answer: Any) -> Any:
    """Return an error of its own for each call."""
    return type(answer)(*answer.args) if isinstance(answer, QueuePaused) else answer
