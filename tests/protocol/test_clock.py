"""The queue's clock, with a server whose clock jumps forward and back (protocol/core.md, Clock)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from penstock.wire.keys import QueueKeys, end_of
from tests.protocol.clock import T0, run
from tests.protocol.keyspace import Raw, dump, same
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
    """A queue, and calls at chosen times of the server's clock."""

    def __init__(self, raw: Raw) -> None:
        self.raw = raw
        self.call = 0

    def enqueue(self, at: int, record: str = "1\nbody", delay: int = 0) -> bytes:
        """Add a job, and return its number."""
        self.call += 1
        args = (self.call, EPOCH, delay, "", 0, "", record)
        number: bytes = run(self.raw, KEYS, "enqueue", args, now_ms=at)[2]
        return number

    def claim(self, at: int, record: str, delay: int = 0, mode: str = "") -> bytes:
        """Add a job with a dedup id, and return its number."""
        self.call += 1
        args = (self.call, EPOCH, delay, "", 0, "", mode, record)
        number: bytes = run(self.raw, KEYS, "claim", args, now_ms=at)[2]
        return number

    def reserve(self, at: int, n: int = 1) -> list[Any]:
        """Reserve jobs, and return the whole reply."""
        return run(self.raw, KEYS, "reserve", (1, n, 7, "ada", 0, ""), now_ms=at)

    def ack(self, at: int, number: bytes, receipt: str = "1-007") -> int:
        """Acknowledge a delivery, and return the number of done jobs."""
        done: int = run(self.raw, KEYS, "ack", (1, EPOCH, receipt, "", number), now_ms=at)[2]
        return done

    def meta(self, field: str) -> int:
        """Return a number in meta."""
        return int(self.raw.hget(KEYS["meta"], field) or 0)


CALLS: dict[str, tuple[Any, ...]] = {
    "reserve": (1, 1, 7, "ada", 0, ""),
    "configure": (1, "", "lease", 5000),
    "acquire": (1, "", "producer", "0123456789abcdef", "", 5000, "eve"),
    "settle": (1, EPOCH, "", 1, 7, "ada", ""),
}


@pytest.mark.parametrize("name", ["enqueue", "reserve and ack", *CALLS])
def test_the_offset_shrinks_by_a_tenth_of_the_time_that_passed(name: str, raw: Raw) -> None:
    """This holds also if a call follows within the time by which the offset shrinks."""
    line = Line(raw)
    line.enqueue(T0)
    line.enqueue(T0 - 2_000)
    assert line.meta("off") == 2_000
    start = at = T0 - 2_000
    while at < start + 10_000:
        at += 50
        if name == "enqueue":
            line.enqueue(at)
        elif name == "reserve and ack":
            line.enqueue(at)
            line.ack(at, line.reserve(at)[6])
        else:
            run(raw, KEYS, name, CALLS[name], now_ms=at)
    assert 1_000 <= line.meta("off") <= 1_100  # it is written once a second


@pytest.mark.slow
def test_the_clock_does_not_run_back_while_the_offset_shrinks(raw: Raw) -> None:
    """It runs slower by a tenth, without a step, until it equals the server's."""
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
def test_one_wrong_reading_of_the_clock_is_corrected(span: int, raw: Raw) -> None:
    """A job added at a wrong time is finished, and all later times are right."""
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
def test_numbers_rise_despite_the_clock(back: int, raw: Raw) -> None:
    """Numbers continue after the highest one."""
    line = Line(raw)
    times = (T0, T0 + YEARS, T0 - back, T0 + 5, T0 + YEARS, T0 + YEARS + 1, T0 - back, 0, 1_000)
    numbers = [line.enqueue(at) for at in times]
    assert numbers == sorted(set(numbers))
    assert all(len(number) == 24 for number in numbers)


def test_a_queue_that_begins_at_a_wrong_time_has_numbers_of_the_usual_width(raw: Raw) -> None:
    """A server that starts in 1970 gives numbers that sort with later ones as text."""
    line = Line(raw)
    numbers = [line.enqueue(at) for at in (60_000, 60_001, T0)]
    assert numbers == sorted(numbers)
    assert numbers[0] == b"1000000000000-1000000000"


def test_a_clock_that_was_behind_for_one_reading_leaves_no_offset(raw: Raw) -> None:
    """After one reading in 1970 the next one, and the queue's clock, are right."""
    line = Line(raw)
    line.enqueue(T0)
    line.enqueue(60_000)
    line.enqueue(T0 + 10)
    assert (line.meta("seen"), line.meta("off")) == (T0 + 10, 0)


def test_a_ttl_ends_also_where_numbers_run_ahead(raw: Raw) -> None:
    """The ttl counts from the time of the enqueue."""
    line = Line(raw)
    line.ack(T0, line.enqueue(T0 + YEARS), "")
    number = line.enqueue(T0, f"1;t={TTL}\nbody")
    assert int(number[:13]) == T0 + YEARS
    assert raw.zscore(KEYS["expiry"], number) == T0 + TTL
    assert len(line.reserve(T0 + TTL)) == 6
    assert not raw.exists(KEYS["expiry"])


def test_a_job_of_lease_0_whose_number_runs_ahead_ends_a_ttl_after_its_delivery(raw: Raw) -> None:
    """A dead letter of lease 0 that is redriven lives a ttl longer."""
    line = Line(raw)
    line.ack(T0, line.enqueue(T0 + YEARS), "")
    once = line.enqueue(T0, f"1;l=0;t={TTL}\nbody")
    letter = line.enqueue(T0, f"1;t={TTL}\nbody")
    line.reserve(T0 + 10, 2)
    assert end_of(int(raw.zscore(KEYS["once"], once) or 0)) == T0 + 10 + TTL
    run(raw, KEYS, "bury", (1, EPOCH, "1-007", "no use", "", letter), now_ms=T0 + 20)
    assert run(raw, KEYS, "redrive", (1, EPOCH, 0, 0, letter), now_ms=T0 + 2 * TTL)[2] == 1
    assert raw.zscore(KEYS["expiry"], letter) == T0 + 3 * TTL


KEYED = "1;q=0b44b04ce1290\nbody"


def _keyed(line: Line, field: str) -> tuple[bytes, bytes, bytes]:
    """Add three jobs of one key that run one at a time, and deliver the first."""
    line.enqueue(T0)
    line.ack(T0, line.reserve(T0)[6])
    run(line.raw, KEYS, "configure", (1, "", field, 1), now_ms=T0)
    first, second, third = (line.enqueue(T0, KEYED) for _ in range(3))
    assert line.reserve(T0, 5)[6:] == [first, b"", KEYED.encode()]
    return first, second, third


@pytest.mark.parametrize("field", ["per_key", "ordered"])
@pytest.mark.parametrize("name", ["ack", "nack", "release", "bury", "enqueue"])
def test_one_wrong_reading_of_the_clock_stops_no_key(field: str, name: str, raw: Raw) -> None:
    """A job that was admitted or put back at a wrong time is delivered at the right time."""
    line = Line(raw)
    first, second, third = _keyed(line, field)
    args = {
        "nack": (1, EPOCH, "1-007", 0, 1, "", "", first),
        "release": (1, EPOCH, "1-007", 0, first),
        "bury": (1, EPOCH, "1-007", "no use", "", first),
    }
    if name == "ack":
        line.ack(T0 + YEARS, first)
    elif name == "enqueue":
        line.enqueue(T0 + YEARS, KEYED)
        line.ack(T0 + 5, first)
    else:
        run(raw, KEYS, name, args[name], now_ms=T0 + YEARS)
    back = [first] if name in ("nack", "release") else []
    for at, number in enumerate([*back, second, third], T0 + 1_010):
        reply = line.reserve(at)
        assert reply[6] == number
        line.ack(at, number, (reply[7].split() or [b"1"])[0].decode() + "-007")


def test_a_sweep_corrects_the_places_of_a_clock_that_was_wrong_for_a_while(raw: Raw) -> None:
    """An admitted job that is due years ahead is due now; a later try keeps its time."""
    line = Line(raw)
    first, second, _ = _keyed(line, "per_key")
    line.enqueue(T0 + YEARS)
    line.ack(T0 + YEARS, first)
    assert raw.zscore(KEYS["scheduled"], second) == T0 + YEARS
    assert second not in line.reserve(T0 + 10, 5)
    run(raw, KEYS, "sweep", (1, 900_000), now_ms=T0 + 20)
    assert line.reserve(T0 + 30)[6] == second


def test_a_role_taken_at_a_wrong_time_is_free(raw: Raw) -> None:
    """It ends later than its lease allows, so another party may take it."""
    taken = (1, EPOCH, "consumer", "0123456789abcdef", "", 5000, "eve")
    other = (1, EPOCH, "consumer", "fedcba9876543210", "", 5000, "ada")
    assert run(raw, KEYS, "acquire", taken, now_ms=T0 + YEARS)[0] == 1
    assert run(raw, KEYS, "reserve", (1, 1, 7, "bob", 0, ""), now_ms=T0)[0] == 1
    assert run(raw, KEYS, "acquire", other, now_ms=T0)[0] == 1
    assert run(raw, KEYS, "acquire", taken, now_ms=T0 + 10)[0] == -15


def test_a_sweep_takes_a_wrong_time_back(raw: Raw) -> None:
    """Otherwise an empty queue would not be removed for years."""
    line = Line(raw)
    line.ack(T0 + YEARS, line.enqueue(T0 + YEARS), "")
    assert run(raw, KEYS, "sweep", (1, 900_000), now_ms=T0)[5] == b""
    assert line.meta("seen") == T0
    assert run(raw, KEYS, "sweep", (1, 900_000), now_ms=T0 + 900_000)[5] == EPOCH.encode()


PLACES = ("active", "once", "scheduled", "dead", "expiry", "windows", "meta")
HORIZON = 10 * 366 * 86_400_000


def retime(raw: Raw, at: int, horizon: int = HORIZON, *, write: bool = True) -> dict[str, int]:
    """Page through every structure, and count the corrected times in each."""
    found = dict.fromkeys(PLACES, 0)
    for place in PLACES:
        skip = 0
        while skip >= 0:
            args = (1, place, skip, horizon, int(write))
            reply = run(raw, KEYS, "retime", args, now_ms=at)
            assert reply[0] == 1
            found[place] += reply[2]
            skip = reply[3]
    return found


def poisoned(line: Line, wrong: int) -> dict[str, bytes]:
    """Make a queue with a job in each place, and as many wrong times as possible."""
    raw, jobs = line.raw, {}
    jobs["worked on"] = line.enqueue(T0)
    jobs["failed"] = line.enqueue(T0)
    line.reserve(T0, 2)
    run(raw, KEYS, "extend", (1, EPOCH, "1-007", 5_000, 0, jobs["worked on"]), now_ms=wrong)
    run(raw, KEYS, "nack", (1, EPOCH, "1-007", 9_000, 1, "", "", jobs["failed"]), now_ms=wrong)
    jobs["leased"] = line.enqueue(wrong)
    jobs["mortal"] = line.enqueue(wrong, f"1;t={TTL}\nbody")
    jobs["once"] = line.enqueue(wrong, f"1;l=0;t={TTL}\nbody")
    jobs["dead"] = line.enqueue(wrong)
    assert len(line.reserve(wrong, 4)) == 6 + 3 * 4
    run(raw, KEYS, "bury", (1, EPOCH, "1-007", "no use", "", jobs["dead"]), now_ms=wrong)
    for name in ("open", "closed"):
        number = line.claim(wrong, f"1;d={name};w=60000\nbody")
        run(raw, KEYS, "ack", (1, EPOCH, "", "", number), now_ms=wrong)
    jobs["owner"] = line.claim(wrong, "1;d=successor\nbody")
    line.reserve(wrong)
    jobs["successor"] = line.claim(wrong, "1;d=successor\nnext", 30_000, "q")
    jobs["delayed"] = line.enqueue(wrong, f"1;t={TTL}\nbody", 20_000)
    jobs["ready"] = line.enqueue(wrong, f"1;t={TTL}\nbody")
    run(raw, KEYS, "survey", (1, EPOCH, "ready", "", "", 1, 0), now_ms=wrong)
    run(
        raw, KEYS, "acquire", (1, "", "producer", "0123456789abcdef", "", 5000, "eve"), now_ms=wrong
    )
    return jobs


@pytest.mark.parametrize("span", [YEARS, 12 * 366 * 86_400_000])
def test_times_that_lie_ahead_are_brought_back(span: int, raw: Raw) -> None:
    """Each time is as far away as it was at the wrong time; receipts stay valid."""
    line = Line(raw)
    jobs = poisoned(line, T0 + span)
    now = T0 + 1_000
    counted = retime(raw, now, write=False)
    assert counted == retime(raw, now, write=False)
    assert all(counted.values())
    retime(raw, now)
    assert not any(retime(raw, now).values())

    def end(index: str, name: str) -> int:
        score = int(raw.zscore(KEYS[index], jobs[name]) or 0)
        return end_of(score) - now if index in ("active", "once") else score - now

    assert end("active", "worked on") == 30_000
    assert end("active", "leased") == 30_000
    assert end("active", "mortal") == 6_000
    assert end("once", "once") == TTL
    assert end("scheduled", "failed") == 0
    assert end("scheduled", "delayed") == 20_000
    assert end("dead", "dead") == 0
    assert [end("expiry", name) for name in ("mortal", "delayed", "ready")] == [TTL] * 3
    assert (raw.hget(KEYS["held"], jobs["leased"]) or b"").startswith(b"@%d ada\n" % now)
    successor = (raw.hget(KEYS["dedup"], "successor") or b"").split()
    assert int(successor[2]) == now + 30_000
    assert raw.hget(KEYS["dedup"], "open") == b"@%d" % now
    assert line.meta("seen") == now
    assert not raw.hexists(KEYS["meta"], "surveyed")
    assert raw.hget(KEYS["meta"], "producer") == b"%d" % ((T0 + span) * 1000 + 789)
    assert line.ack(now, jobs["leased"]) == 1
    stats = run(raw, KEYS, "stats", (1,), now_ms=now)
    assert stats[3:8] == [2, 2, 4, 1, 0]
    assert len(line.reserve(now + TTL, 100)) > 6
    assert run(raw, KEYS, "stats", (1,), now_ms=now + TTL)[7] == 0


def test_right_times_stay(raw: Raw) -> None:
    """Long delays, leases, ttls and windows are not changed."""
    line = Line(raw)
    day = 86_400_000
    line.enqueue(T0, f"1;l={24 * day};t={90 * day}\nbody")
    line.enqueue(T0, f"1;l=0;t={90 * day}\nbody")
    line.reserve(T0, 2)
    line.enqueue(T0, f"1;t={4000 * day}\nbody", 3000 * day)
    line.enqueue(T0, f"1;t={4000 * day}\nbody")
    number = line.claim(T0, f"1;d=a;w={300 * day}\nbody")
    run(raw, KEYS, "ack", (1, EPOCH, "", "", number))
    run(raw, KEYS, "acquire", (1, "", "producer", "0123456789abcdef", "", 24 * day, "eve"))
    before = dump(raw)
    for at in (T0, T0 + 999):
        assert not any(retime(raw, at).values())
    assert same(dump(raw), before)


def test_times_beyond_a_horizon_are_wrong(raw: Raw) -> None:
    """A time beyond the horizon is wrong if nothing else shows it."""
    line = Line(raw)
    poisoned(line, T0 + 2 * 366 * 86_400_000)
    now = T0 + 1_000
    retime(raw, now)
    assert retime(raw, now, 366 * 86_400_000)["windows"] == 2
    assert retime(raw, now, 366 * 86_400_000)["windows"] == 0


def test_numbers_come_back_when_no_job_has_one(raw: Raw) -> None:
    """They come back only without a job, as they must rise."""
    line = Line(raw)
    number = line.enqueue(T0 + YEARS)
    now = T0 + 1_000
    retime(raw, now)
    assert int(line.enqueue(now)[:13]) == T0 + YEARS
    line.ack(now, number, "")
    line.ack(now, line.reserve(now)[6])
    assert retime(raw, now)["meta"] == 1
    assert int(line.enqueue(now)[:13]) == now + 1


def test_pages_of_wrong_times(raw: Raw) -> None:
    """Jobs beyond one page are corrected too; others are skipped."""
    line = Line(raw)
    for _ in range(3):
        line.call += 1
        args = (line.call, EPOCH, 86_400_000, "", 0, "", *["1\nright"] * 500)
        run(raw, KEYS, "enqueue", args)
    for _ in range(3):
        line.call += 1
        args = (line.call, EPOCH, 3_600_000, "", 0, "", *["1\nwrong"] * 500)
        run(raw, KEYS, "enqueue", args, now_ms=T0 + YEARS)
    assert retime(raw, T0)["scheduled"] == 1500
    scores = [at for _, at in raw.zrange(KEYS["scheduled"], 0, -1, withscores=True)]
    assert scores == [T0 + 3_600_000] * 1500 + [T0 + 86_400_000] * 1500
