"""Results of several calls together: counters, pages of deliveries, scans of a changing queue."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from penstock.core.flows.sweeping import IDLE_MS
from penstock.core.jobs.job import parse_counters
from penstock.wire.keys import QueueKeys, score_of
from penstock.wire.replies import PARSERS
from tests.protocol.clock import T0
from tests.protocol.scenes import Scene
from tests.protocol.seeds import EPOCH
from tests.protocol.test_commands import watched
from tests.support.backends import Backend

KEYS = QueueKeys("steps")


def scene_of(backend: Backend) -> Scene:
    """Make an empty queue without limits."""
    scene = Scene(backend.sync_client(), KEYS, {})
    scene.run("configure", 1, EPOCH, "max_attempts", 0, "max_crashes", 0, "max_releases", 0)
    return scene


@dataclass
class History:
    """One job and its deliveries.

    Attributes:
        now: the clock.
        receipts: of all its deliveries, in order.
        held: whether the last one has not been ended.
    """

    scene: Scene
    number: bytes
    now: int = T0
    receipts: list[str] = field(default_factory=list)
    held: bool = False

    def run(self, name: str, *args: Any) -> list[Any]:
        """Run a script at the history's time, 1 ms after the one before."""
        self.now += 1
        return self.scene.run(name, 7, *args, at=self.now)

    def note(self, reply: list[Any], tag: int) -> None:
        """Store the delivery of a reply of reserve or recover, if any."""
        if self.number in reply[6::3]:
            counters = parse_counters(reply[7])
            self.receipts.append(f"{counters.deliveries}-{tag:03x}")
            self.held = True


def _reserve(job: History, draw: random.Random) -> None:
    tag = draw.randrange(4096)
    job.note(job.run("reserve", 1, tag, "ada", 0, ""), tag)


def _lease_ends(job: History, draw: random.Random) -> None:
    job.now += 40_000


def _recover(job: History, draw: random.Random) -> None:
    found = job.run("pending", "-inf", 0, 0)[6:8]
    tag = draw.randrange(4096)
    job.note(job.run("recover", EPOCH, "*", tag, "eve", "", *found), tag)


def _with_receipt(job: History, draw: random.Random) -> None:
    if job.receipts:
        name = draw.choice(["nack", "release", "bury"])
        args = {
            "nack": (0, 1, "broke", ""),
            "release": (0,),
            "bury": (
                "no use",
                "",
            ),
        }[name]
        done = job.run(name, EPOCH, job.receipts[-1], *args, job.number)[2]
        assert done == job.held, name
        job.held = False


def _by_id(job: History, draw: random.Random) -> None:
    name = draw.choice(["nack", "release", "bury", "promote", "dequeue"])
    args: tuple[Any, ...] = {
        "nack": ("", 0, 1, "broke", ""),
        "release": ("", 0),
        "bury": ("", "no use", ""),
    }.get(name, ())
    if job.run(name, EPOCH, *args, job.number)[2]:
        job.held = False


def _redrive(job: History, draw: random.Random) -> None:
    job.run("redrive", EPOCH, 0, 0, job.number)


EVENTS = (_reserve, _reserve, _reserve, _lease_ends, _recover, _with_receipt, _by_id, _redrive)


@pytest.mark.parametrize("seed", range(12))
def test_the_deliveries_of_a_job_are_counted_exactly(seed: int, backend: Backend) -> None:
    """Each has the next number, whatever ended the one before; only the last receipt is valid."""
    draw = random.Random(seed)
    scene = scene_of(backend)
    job = History(scene, scene.run("enqueue", 2, "", 0, "", 0, "", "1\nbody")[2])
    for _ in range(60):
        draw.choice(EVENTS)(job, draw)
        count = parse_counters(job.run("show", EPOCH, job.number)[5][5]).deliveries
        assert count == len(job.receipts) or not job.receipts
        fits = [job.held] if job.receipts and draw.random() < 0.3 else []
        asked = job.receipts if fits else job.receipts[:-1]
        taken = [job.run("extend", EPOCH, r, 0, 0, job.number)[3] > 2 for r in asked]
        assert taken == [False] * (len(asked) - len(fits)) + fits
    assert [int(r.split("-")[0]) for r in job.receipts] == [*range(1, len(job.receipts) + 1)]
    assert len(job.receipts) > 3


def pages(scene: Scene, idle_ms: int, at: int) -> list[list[Any]]:
    """Return the replies of pending, from the first page to the last."""
    found: list[list[Any]] = []
    score: Any = "-inf"
    skip = 0
    while score:
        found.append(scene.run("pending", 3, score, skip, idle_ms, at=at))
        score, skip = found[-1][4:6]
    return found


def test_all_pages_together_have_every_delivery(backend: Backend) -> None:
    """With several pages, equal scores and own leases each old enough delivery is returned."""
    scene = scene_of(backend)
    leases = ("1\nb", "1;l=90000\nb", "1;l=40000\nb")
    for call, record in enumerate(leases, 2):
        scene.run("enqueue", call, "", 0, "", 0, "", *[record] * 1000)
        for part in range(4):
            scene.run("reserve", 3, 250, 9, "ada", 0, "", at=T0 + call * 100 + part)
    found = pages(scene, 50, T0 + 453)
    assert len(found) > 1
    triples = {
        reply[i]: tuple(reply[i + 1 : i + 3]) for reply in found for i in range(6, len(reply), 3)
    }
    assert len(triples) == 3000
    assert set(triples.values()) == {
        (b"1-009", b"%d" % (T0 + call * 100 + part)) for call in (2, 3, 4) for part in range(4)
    }
    assert sum(len(reply) - 6 for reply in pages(scene, 52, T0 + 453)) // 3 >= 2500


def test_pages_are_complete_when_deliveries_end_between_them(backend: Backend) -> None:
    """Deliveries that end between two pages do not hide others on later pages."""
    scene = scene_of(backend)
    for call in (2, 3, 4):
        scene.run("enqueue", call, "", 0, "", 0, "", *["1\nb"] * 1000)
    first = scene.run("reserve", 3, 600, 9, "ada", 0, "")[6::3]
    later = [
        n for _ in range(3) for n in scene.run("reserve", 3, 800, 9, "ada", 0, "", at=T0 + 1)[6::3]
    ]
    page = scene.run("pending", 4, "-inf", 0, 0, at=T0 + 2)
    had = page[6::3]
    assert len(had) == 2000
    ended = [*first, *had[1600:]]
    scene.run("ack", 5, EPOCH, "1-009", "", *ended[:500], at=T0 + 3)
    scene.run("ack", 5, EPOCH, "1-009", "", *ended[500:], at=T0 + 3)
    rest: list[Any] = []
    while page[4]:
        page = scene.run("pending", 4, *page[4:6], 0, at=T0 + 4)
        rest += page[6::3]
    assert {*had, *rest} == {*first, *later}


def _stir(scene: Scene, draw: random.Random, call: int, keep: set[bytes]) -> None:
    """Move jobs about as busy clients would; those to keep are never removed."""
    taken = scene.run("reserve", 3, 30, 9, "ada", 0, "", at=T0 + call)
    for number, counters in zip(taken[6::3], taken[7::3], strict=True):
        receipt = f"{parse_counters(counters).deliveries}-009"
        end = draw.choice(["ack", "nack", "release", "bury", "promote", ""])
        if end == "ack" and number not in keep:
            scene.run("ack", 4, EPOCH, receipt, "", number)
        elif end == "nack":
            scene.run("nack", 4, EPOCH, receipt, draw.choice([0, 5000]), 1, "broke", "", number)
        elif end == "release":
            scene.run("release", 4, EPOCH, receipt, 0, number)
        elif end == "bury":
            scene.run("bury", 4, EPOCH, receipt, "no use", "", number)
        elif end == "promote":
            scene.run("promote", 4, EPOCH, number)
    scene.run("redrive", 5, "", 10, 0)
    scene.run("enqueue", 100 + call, "", draw.choice([0, 500]), "", 0, "", *["1\nnew"] * 25)


@pytest.mark.parametrize("seed", range(3))
def test_a_scan_of_a_changing_queue_finds_all_staying_jobs(
    seed: int, real_backend: Backend
) -> None:
    """A job that exists from the first step to the last is returned despite busy clients."""
    draw = random.Random(seed)
    scene = scene_of(real_backend)
    first = scene.run("enqueue", 2, "", 0, "", 0, "", *["1\nold"] * 400)[2]
    keep = {b"%s-%d" % (first[:-11], 1000000000 + i) for i in range(0, 400, 2)}
    _stir(scene, draw, 1, keep)
    cursor: Any = "0"
    seen: set[bytes] = set()
    steps = 0
    while True:
        reply = scene.run("scan", 6, cursor, 20, 0, at=T0 + steps)
        seen |= {job[0] for job in reply[6:]}
        steps, cursor = steps + 1, reply[5]
        if cursor == b"0":
            break
        _stir(scene, draw, steps + 1, keep)
    assert keep <= seen
    assert 10 < steps < 400


def test_a_scan_ends_despite_a_producer(backend: Backend) -> None:
    """Jobs added between the steps, more than a step returns, do not prolong it."""
    scene = scene_of(backend)
    scene.run("enqueue", 2, "", 0, "", 0, "", *["1\nold"] * 30)
    cursor: Any = "0"
    steps, found = 0, []
    while cursor != b"0":
        reply = scene.run("scan", 6, cursor, 10, 1)
        found += [job[6] for job in reply[6:]]
        steps, cursor = steps + 1, reply[5]
        scene.run("enqueue", 2 + steps, "", 0, "", 0, "", *["1\nnew"] * 20)
    assert found == [b"1\nold"] * 30
    assert steps < 6


@pytest.mark.parametrize("state", ["scheduled", "active", "dead"])
def test_a_peek_reads_only_the_returned_jobs(state: str, real_backend: Backend) -> None:
    """Bodies after the last returned job are not read, as that could block the server."""
    scene = scene_of(real_backend)
    delay = 60_000 if state == "scheduled" else 0
    scene.run("enqueue", 2, "", delay, "", 0, "", *["1\nbody"] * 30)
    taken = scene.run("reserve", 3, 30, 9, "ada", 0, "")[6::3]
    if state == "dead":
        scene.run("bury", 4, EPOCH, "1-009", "no use", "", *taken)
    for newest in (0, 1):
        look = partial(scene.run, "peek", 5, state, 3, 2, newest)
        commands = watched(real_backend, look)
        assert [c.shown for c in commands].count("HGET held") == 2


def _interleaved(scene: Scene) -> int:
    """Make ended leases, due jobs and ready ones, more than a page of each; return the time."""
    scene.run("enqueue", 2, "", 0, "", 0, "", *["1;l=100\nended"] * 120)
    scene.run("reserve", 3, 70, 9, "ada", 0, "")
    scene.run("reserve", 3, 50, 9, "ada", 0, "", at=T0 + 1)
    for i in range(13):
        scene.run("enqueue", 3 + i, "", 100, "", 0, "", *["1\ndue"] * 10, at=T0 + 2 * i)
    for i in range(13):
        scene.run("enqueue", 20 + i, "", 0, "", 0, "", *["1\nready"] * 7, at=T0 + 101 + 2 * i)
    return T0 + 500


def test_a_peek_is_a_slice_in_the_order_of_reserve(backend: Backend) -> None:
    """From the front, from the end, backwards: all pages have reserve's order."""
    scene, draw = scene_of(backend), random.Random(1)
    at = _interleaved(scene)
    whole = [job[0] for job in scene.run("peek", 5, "ready", 0, 1000, 0, at=at)[5:]]
    assert len(whole) == 120 + 130 + 91
    for _ in range(40):
        start, count = draw.randrange(-350, 350), draw.choice([1, 5, 120, 1000])
        newest = start >= 0 and draw.random() < 0.5
        reply = scene.run("peek", 5, "ready", start, count, int(newest), at=at)
        ordered = whole[::-1] if newest else whole
        if start < 0:
            wanted = ordered[start:][:count] if -start <= len(whole) else []
        else:
            wanted = ordered[start : start + count]
        assert [job[0] for job in reply[5:]] == wanted, (start, count, newest)
    taken = scene.run("reserve", 6, 1000, 10, "eve", 0, "", at=at)
    assert taken[6::3] == whole


@pytest.mark.parametrize("state", ["scheduled", "active", "dead"])
def test_a_peek_is_a_slice_of_a_state(state: str, backend: Backend) -> None:
    """Pages of the other states have one order over more than a page."""
    scene = scene_of(backend)
    for i in range(12):
        delay = 60_000 if state == "scheduled" else 0
        scene.run("enqueue", 2 + i, "", delay, "", 0, "", *["1\nbody"] * 20, at=T0 + i)
        taken = scene.run("reserve", 3, 20, 9, "ada", 0, "", at=T0 + i)[6::3]
        if state == "dead":
            scene.run("bury", 4, EPOCH, "1-009", "no use", "", *taken, at=T0 + i)
    whole = [job[0] for job in scene.run("peek", 5, state, 0, 1000, 0, at=T0 + 20)[5:]]
    assert whole == sorted(whole)
    assert len(whole) == 240
    for start, count in [
        (0, 5),
        (99, 2),
        (150, 1000),
        (-1, 1),
        (-140, 90),
        (-240, 1000),
        (-241, 5),
    ]:
        reply = scene.run("peek", 5, state, start, count, 0, at=T0 + 20)
        wanted = whole[start:][:count] if start >= -240 else []
        assert [job[0] for job in reply[5:]] == wanted
        if start >= 0:
            reply = scene.run("peek", 5, state, start, count, 1, at=T0 + 20)
            assert [job[0] for job in reply[5:]] == whole[::-1][start:][:count]


def _leftovers(scene: Scene, count: int) -> list[bytes]:
    """Make ended things of each kind, and return three deliveries.

    They end by T0 + 200: jobs whose ttl ends after 100 ms, jobs delivered at most once, windows,
    and dead letters that a setting does not keep.
    """
    run = scene.run
    run("configure", 2, EPOCH, "dead_max", count)
    run("enqueue", 3, "", 0, "", 0, "", *["1\ndead"] * count)
    letters = run("reserve", 4, count, 9, "ada", 0, "")[6::3]
    run("bury", 5, EPOCH, "1-009", "no use", "", *letters)
    run("enqueue", 6, "", 0, "", 0, "", *["1;l=0;t=100\nonce"] * count)
    run("reserve", 7, count, 9, "ada", 0, "")
    run("claim", 8, "", 0, "", 0, "", "e", *[f"1;d=w{i};w=100;u=e\n" for i in range(count)])
    run("ack", 9, EPOCH, "1-009", "", *run("reserve", 9, count, 9, "ada", 0, "")[6::3])
    run("enqueue", 10, "", 0, "", 0, "", *["1\nheld"] * 3)
    active: list[bytes] = run("reserve", 11, 3, 9, "ada", 0, "")[6::3]
    run("enqueue", 12, "", 0, "", 0, "", *["1;t=100\nshort"] * count, "1\nlong")
    run("configure", 13, "", "dead_max", 0)
    return active


def _left(scene: Scene) -> list[int]:
    return [scene.raw.zcard(KEYS[kind]) for kind in ("expiry", "once", "windows", "dead")]


@pytest.mark.parametrize(
    "call, left",
    [
        ("enqueue", [102, 102, 300, 300]),
        ("enqueue, refused", [102, 102, 300, 300]),
        ("claim", [102, 102, 102, 300]),
        ("reserve", [0, 0, 300, 300]),
        ("settle", [0, 0, 0, 300]),
        ("ack", [300, 300, 194, 300]),
        ("hand_over", [300, 300, 196, 300]),
        ("bury", [300, 300, 300, 197]),
        ("recover", [300, 300, 300, 197]),
        ("sweep", [0, 0, 0, 0]),
        ("stats", [300, 300, 300, 300]),
        ("peek", [200, 200, 300, 300]),
    ],
)
def test_the_larger_a_call_the_more_it_removes(
    call: str, left: list[int], backend: Backend
) -> None:
    """A hundred of each kind, and two for each job that is added or ended.

    A call that delivers removes up to 2000, to reach the jobs behind them. A count removes none.
    """
    scene = scene_of(backend)
    active = _leftovers(scene, 300)
    scene.run("configure", 14, "", "max_crashes", 1)
    assert _left(scene) == [300] * 4
    rows = {
        "enqueue": (20, "", 0, "", 0, "", *["1\nnew"] * 49),
        "enqueue, refused": (20, "", 0, 1, 0, "", *["1\nnew"] * 49),
        "claim": (20, "", 0, "", 0, "", "", *[f"1;d=n{i}\nnew" for i in range(49)]),
        "reserve": (20, 49, 9, "eve", 0, ""),
        "settle": (20, EPOCH, "1-009", 49, 9, "eve", "", *active),
        "ack": (20, EPOCH, "1-009", "", *active),
        "hand_over": (20, EPOCH, "1-009", "", active[0], "", "", "1\nnew", "1\nnew"),
        "bury": (20, EPOCH, "1-009", "", "", *active),
        "recover": (20, EPOCH, "*", 9, "eve", "", *(x for one in active for x in (one, "1-009"))),
        "sweep": (20, 600_000),
        "stats": (20,),
        "peek": (20, "dead", 0, 1, 0),
    }
    name = call.partition(",")[0]
    scene.run(name, *rows[call], at=T0 + 200)
    assert _left(scene) == left


def test_a_sweep_removes_a_thousand_at_most(backend: Backend) -> None:
    """It removes at most that many of each kind, and reports if there are more."""
    scene = scene_of(backend)
    for part in range(2):
        count = (600, 401)[part]
        records = [f"1;t=100;d=p{part}w{i};w=100;u=e\n" for i in range(count)]
        scene.run("claim", 2 + part, "", 0, "", 0, "", "e", *records)
    assert scene.run("sweep", 9, 600_000, at=T0 + 200)[2:5] == [1000, 0, 1]
    assert scene.run("sweep", 9, 600_000, at=T0 + 200)[2:5] == [1, 0, 0]
    assert scene.run("stats", 9, at=T0 + 200)[3:8] == [0, 0, 0, 0, 0]
    assert _left(scene) == [0] * 4


@pytest.mark.parametrize("size", [1, 40, 400])
def test_a_producer_leaves_no_more_behind_than_it_adds(size: int, backend: Backend) -> None:
    """It removes as many ended windows and ttls as it adds, whatever the size of its calls."""
    scene = scene_of(backend)
    for call in range(12):
        at = T0 + call * 10
        records = [f"1;t=5;d=c{call}-{i};w=5;u=e\nbody" for i in range(size)]
        scene.run("claim", 10 + call, "", 0, "", 0, "", "e", *records, at=at)
        left = _left(scene)
        assert left[0] <= size
        assert left[2] <= size


def test_a_consumer_leaves_no_more_windows_than_it_opens(backend: Backend) -> None:
    """Each ack opens as many as it names, and removes those of the one before."""
    scene = scene_of(backend)
    for call in range(8):
        at = T0 + call * 10
        records = [f"1;d=c{call}-{i};w=5\nbody" for i in range(300)]
        scene.run("claim", 10 + call, "", 0, "", 0, "", "", *records)
        found = scene.run("reserve", 1, 300, 9, "eve", 0, "", at=at)[6::3]
        scene.run("ack", 1, EPOCH, "1-009", "", *found, at=at)
        assert _left(scene)[2] == 300


def test_a_read_removes_a_hundred_at_most(backend: Backend) -> None:
    """It removes at most that many of each kind; a second read removes the rest."""
    scene = scene_of(backend)
    _leftovers(scene, 101)
    left = []
    for _ in range(3):
        left.append(_left(scene))
        scene.run("peek", 20, "dead", 0, 1, 0, at=T0 + 200)
    assert left == [[101, 101, 101, 101], [1, 1, 101, 101], [0, 0, 101, 101]]


@pytest.mark.parametrize("script", ["enqueue", "claim"])
def test_a_repeat_adds_nothing_to_a_queue_that_is_idle(script: str, backend: Backend) -> None:
    """Its job was delivered and finished before: it is added once, however late the repeat."""
    scene = Scene(backend.sync_client(), KEYS, {})
    mode = [""] if script == "claim" else []
    call: tuple[Any, ...] = (5, EPOCH, 0, "", 0, "", *mode, "1;d=x\nbody" if mode else "1\nbody")
    first = scene.run(script, *call)
    number = scene.run("reserve", 6, 1, 9, "ada", 0, "")[6]
    scene.run("ack", 7, EPOCH, "1-009", "", number)
    assert scene.run("sweep", 8, IDLE_MS, at=T0 + 300_000)[5:] == [b"", EPOCH.encode()]
    again = scene.run(script, *call, at=T0 + 300_000)
    assert again[2:7] == [*first[2:5], 0, 1]
    assert not scene.raw.exists(KEYS["held"])
    assert scene.raw.xlen(KEYS["ready"]) == 0
    assert scene.run("sweep", 9, IDLE_MS, at=T0 + 300_000 + IDLE_MS)[5:] == [EPOCH.encode(), b""]
    assert not scene.raw.exists(KEYS["meta"])


PASSED: dict[tuple[int, int], int] = {
    (0, 600): 0, (0, 1100): 100, (500, 600): 100, (2000, 300): 200, (2050, 300): 250,
    (2300, 0): 200,
}  # fmt: skip
"""Due jobs that have expired, and behind them jobs whose records are gone; how many are left."""


@pytest.mark.parametrize("expired, lost", PASSED)
def test_a_reserve_passes_a_thousand_jobs_of_no_use(
    expired: int, lost: int, backend: Backend
) -> None:
    """It removes them on the way to others; behind 2000 expired ones it passes a hundred more."""
    scene = scene_of(backend)
    scene.run("enqueue", 2, "", 0, "", 0, "", "1\nbody")
    numbers = [f"{T0 - 9000}-{1_000_000_000 + i}" for i in range(expired + lost)]
    scene.raw.zadd(KEYS["scheduled"], dict.fromkeys(numbers, T0 - 5000))
    if expired:
        scene.raw.hset(KEYS["held"], mapping=dict.fromkeys(numbers[:expired], "1;t=8000\nx"))
        scene.raw.zadd(KEYS["expiry"], dict.fromkeys(numbers[:expired], T0 - 1000))
        scene.raw.hset(KEYS["meta"], "uses", "t")
    taken = len(scene.run("reserve", 3, 1, 9, "eve", 0, "")[6:]) // 3
    left = PASSED[expired, lost]
    assert (scene.raw.zcard(KEYS["scheduled"]), taken) == (left, int(not left))


EVERY_SECOND: dict[str, tuple[Any, ...]] = {
    "enqueue": ("", 0, "", 0, "", "1\nx"),
    "reserve": (1, 7, "eve", 0, "", ""),
    "ack": (EPOCH, "1-abc", "", "#"),
    "settle": (EPOCH, "1-abc", 1, 7, "eve", "", "#"),
    "nack": (EPOCH, "1-abc", 0, 1, "broke", "", "#"),
}
"""Calls that write, four of them by a fast lane; # is the number of a delivery."""


@pytest.mark.parametrize("name", EVERY_SECOND)
def test_the_time_is_stored_once_a_second(name: str, backend: Backend) -> None:
    """A call that writes stores its time if the stored one is a second old."""
    for age, stored in ((999, T0 - 999), (1000, T0)):
        scene = Scene(backend.sync_client(), KEYS, {})
        scene.raw.flushdb()
        scene.run("enqueue", 1, EPOCH, 0, "", 0, "", "1\nx", "1\ny", at=T0 - 2000)
        number = scene.run("reserve", 2, 1, 0xABC, "ada", 0, "", "", at=T0 - 2000)[6]
        scene.raw.hset(KEYS["meta"], "seen", T0 - age)
        scene.run(name, 8, *(number if one == "#" else one for one in EVERY_SECOND[name]))
        assert int(scene.raw.hget(KEYS["meta"], "seen") or 0) == stored


ENDED: dict[str, tuple[tuple[Any, ...], Callable[[Any], int]]] = {
    "stats": ((), lambda reply: reply.ready),
    "reserve": ((5, 7, "eve", 0, "", ""), lambda reply: len(reply.jobs[0])),
    "peek": (("ready", 0, 9, 0), lambda reply: len(reply.jobs)),
    "browse": (("ended", "", 9, 0, 0), lambda reply: reply.looked),
    "purge": (("ended", "", 0), lambda reply: reply.removed),
}
"""Arguments of calls, and how many ended leases their replies show."""


@pytest.mark.parametrize("name", ENDED)
def test_a_lease_ends_in_its_last_ms(name: str, backend: Backend) -> None:
    """The tag of a delivery is no part of the time: the highest has ended, the lowest has not."""
    scene = scene_of(backend)
    numbers = [b"%d-1000000000" % (T0 - 9000 + i) for i in range(2)]
    scene.raw.hset(KEYS["held"], mapping=dict.fromkeys(numbers, f"@{T0 - 5000} ada\n1\nx"))
    scene.raw.hset(KEYS["meta"], "last", numbers[1])
    scores = (score_of(T0, 4095), score_of(T0 + 1, 0))
    scene.raw.zadd(KEYS["active"], dict(zip(numbers, scores, strict=True)))
    args, count = ENDED[name]
    assert count(PARSERS[name](scene.run(name, 8, *args))) == 1
