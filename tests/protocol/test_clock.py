"""The queue's clock, with a server whose clock jumps forward and back (PROTOCOL.md, Clock)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from penstock.wire.keys import QueueKeys, end_of
from tests.protocol.clock import T0, run
from tests.protocol.keyspace import Raw
from tests.protocol.seeds import EPOCH
from tests.support.backends import Backend

KEYS = QueueKeys("clock")
MONTH = 30 * 86_400_000
"""ms by which a queue's clock may be ahead."""
YEARS = 19 * 365 * 86_400_000
TTL = 60_000


@pytest.fixture
def raw(backend: Backend) -> Raw:
    """A client of an empty server."""
    return backend.sync_client()


class Line:
    """One queue, and calls at times of the server's clock."""

    def __init__(self, raw: Raw) -> None:
        self.raw = raw
        self.call = 0

    def enqueue(self, at: int, record: str = "1\nbody", delay: int = 0) -> bytes:
        """Add a job; its number."""
        self.call += 1
        args = (self.call, EPOCH, delay, "", 0, "", record)
        number: bytes = run(self.raw, KEYS, "enqueue", args, now_ms=at)[2]
        return number

    def reserve(self, at: int, n: int = 1) -> list[Any]:
        """Take jobs: the whole reply."""
        return run(self.raw, KEYS, "reserve", (1, n, 7, "ada", 0, ""), now_ms=at)

    def ack(self, at: int, number: bytes, receipt: str = "1-007") -> int:
        """Acknowledge a delivery: how many were done."""
        done: int = run(self.raw, KEYS, "ack", (1, EPOCH, receipt, "", number), now_ms=at)[2]
        return done

    def meta(self, field: str) -> int:
        """A number in meta."""
        return int(self.raw.hget(KEYS["meta"], field) or 0)


CALLS: dict[str, tuple[Any, ...]] = {
    "reserve": (1, 1, 7, "ada", 0, ""),
    "configure": (1, "", "lease", 5000),
    "acquire": (1, "", "producer", "0123456789abcdef", "", 5000, "eve"),
    "settle": (1, EPOCH, "", 1, 7, "ada", ""),
}


@pytest.mark.parametrize("name", ["enqueue", "reserve and ack", *CALLS])
def test_the_offset_shrinks_by_a_tenth_of_the_time_that_passed(name: str, raw: Raw) -> None:
    """Also where a call follows the other within the time by which it shrinks."""
    line = Line(raw)
    line.enqueue(T0)
    line.enqueue(T0 - 10_000)
    assert line.meta("off") == 10_000
    start = at = T0 - 10_000
    while at < start + 50_000:
        at += 50
        if name == "enqueue":
            line.enqueue(at)
        elif name == "reserve and ack":
            line.enqueue(at)
            line.ack(at, line.reserve(at)[6])
        else:
            run(raw, KEYS, name, CALLS[name], now_ms=at)
    assert 5_000 <= line.meta("off") <= 5_200


def test_the_clock_does_not_run_back_while_the_offset_shrinks(raw: Raw) -> None:
    """It goes slower by a tenth, without a step, until it is the server's."""
    line = Line(raw)
    line.enqueue(T0)
    times = []
    for at in range(T0 - 300, T0 + 4_000, 7):
        line.enqueue(at)
        times.append(line.reserve(at)[5])
    assert times == sorted(times)
    assert all(after - before <= 7 for before, after in pairwise(times))
    assert times[-1] == at
    assert line.meta("off") == 0


@pytest.mark.parametrize("span", [MONTH + 11, 3 * MONTH, YEARS])
def test_one_wrong_reading_of_the_clock_does_not_stay(span: int, raw: Raw) -> None:
    """A job that was added at a wrong time is done, and all that comes later has the right time."""
    line = Line(raw)
    early = line.enqueue(T0)
    wrong = line.enqueue(T0 + span)
    assert wrong == b"%d-1000000000" % (T0 + span)
    reply = line.reserve(T0 + 10, 2)
    assert (reply[5], reply[6], reply[9]) == (T0 + 10, early, wrong)
    assert (line.meta("seen"), line.meta("off")) == (T0 + 10, 0)
    assert [end_of(int(raw.zscore(KEYS["active"], n) or 0)) for n in (early, wrong)] == [
        T0 + 30_010
    ] * 2
    assert line.ack(T0 + 20, early) == line.ack(T0 + 86_400_000, wrong) == 1


@pytest.mark.parametrize("back", [0, MONTH, 2 * MONTH])
def test_numbers_rise_whatever_the_clock_says(back: int, raw: Raw) -> None:
    """They go on behind the highest one."""
    line = Line(raw)
    times = (T0, T0 + YEARS, T0 - back, T0 + 5, T0 + YEARS, T0 + YEARS + 1, T0 - back, 0, 1_000)
    numbers = [line.enqueue(at) for at in times]
    assert numbers == sorted(set(numbers))
    assert all(len(number) == 24 for number in numbers)


def test_a_queue_that_begins_at_a_wrong_time_has_numbers_of_the_usual_width(raw: Raw) -> None:
    """A server that starts in 1970: its numbers sort with the later ones as text."""
    line = Line(raw)
    numbers = [line.enqueue(at) for at in (60_000, 60_001, T0)]
    assert numbers == sorted(numbers)
    assert numbers[0] == b"1000000000000-1000000000"


def test_a_clock_that_was_behind_for_one_reading_leaves_no_offset(raw: Raw) -> None:
    """One reading in 1970: the next one is right, and so is the queue."""
    line = Line(raw)
    line.enqueue(T0)
    line.enqueue(60_000)
    line.enqueue(T0 + 10)
    assert (line.meta("seen"), line.meta("off")) == (T0 + 10, 0)


def test_a_ttl_ends_also_where_numbers_run_ahead(raw: Raw) -> None:
    """It is counted from the time of the enqueue."""
    line = Line(raw)
    line.ack(T0, line.enqueue(T0 + YEARS), "")
    number = line.enqueue(T0, f"1;t={TTL}\nbody")
    assert int(number[:13]) == T0 + YEARS
    assert raw.zscore(KEYS["expiry"], number) == T0 + TTL
    assert len(line.reserve(T0 + TTL)) == 6
    assert not raw.exists(KEYS["expiry"])


def test_a_job_of_lease_0_whose_number_runs_ahead_ends_a_ttl_after_its_delivery(raw: Raw) -> None:
    """And a dead letter that is brought back lives a ttl longer."""
    line = Line(raw)
    line.ack(T0, line.enqueue(T0 + YEARS), "")
    once = line.enqueue(T0, f"1;l=0;t={TTL}\nbody")
    letter = line.enqueue(T0, f"1;t={TTL}\nbody")
    line.reserve(T0 + 10, 2)
    assert end_of(int(raw.zscore(KEYS["once"], once) or 0)) == T0 + 10 + TTL
    run(raw, KEYS, "bury", (1, EPOCH, "1-007", "no use", letter), now_ms=T0 + 20)
    assert run(raw, KEYS, "redrive", (1, EPOCH, 0, 0, letter), now_ms=T0 + 2 * TTL)[2] == 1
    assert raw.zscore(KEYS["expiry"], letter) == T0 + 3 * TTL


def test_a_role_taken_at_a_wrong_time_is_free(raw: Raw) -> None:
    """It ends further ahead than its lease: another party may take it."""
    taken = (1, EPOCH, "consumer", "0123456789abcdef", "", 5000, "eve")
    other = (1, EPOCH, "consumer", "fedcba9876543210", "", 5000, "ada")
    assert run(raw, KEYS, "acquire", taken, now_ms=T0 + YEARS)[0] == 1
    assert run(raw, KEYS, "reserve", (1, 1, 7, "bob", 0, ""), now_ms=T0)[0] == 1
    assert run(raw, KEYS, "acquire", other, now_ms=T0)[0] == 1
    assert run(raw, KEYS, "acquire", taken, now_ms=T0 + 10)[0] == -15


def test_a_sweep_takes_a_wrong_time_back(raw: Raw) -> None:
    """Or an empty queue would not be removed for years."""
    line = Line(raw)
    line.ack(T0 + YEARS, line.enqueue(T0 + YEARS), "")
    assert run(raw, KEYS, "sweep", (1, 900_000), now_ms=T0)[5] == b""
    assert line.meta("seen") == T0
    assert run(raw, KEYS, "sweep", (1, 900_000), now_ms=T0 + 900_000)[5] == EPOCH.encode()
