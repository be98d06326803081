"""Dedup ids over many calls: the scripts compared with a plain model (protocol/dedup.md)."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from penstock.core.jobs.job import parse_counters
from penstock.core.jobs.record import parse_record
from penstock.wire.keys import DEFAULT_PREFIX, QueueKeys, registry_key
from tests.protocol.clock import T0
from tests.protocol.scenes import Scene
from tests.protocol.seeds import EPOCH
from tests.support.backends import Backend
from tests.support.keyspace import check_invariant

KEYS = QueueKeys("dedup")
NAMES = ("a", "b", "c")
MODES = ("", "u", "ud", "q", "uq", "udq")
TAG = 9
NEVER = 2**53 - 1


@dataclass
class Job:
    """A job in the model.

    Attributes:
        window: `w` of its record, 0 = none.
        until: `u` of its record.
        ends: end of its ttl, 0 = none.
        due: not before this: it was a successor with a delay of its own.
        lease: end of its lease, 0 = it has no holder.
        once: it is delivered at most once.
    """

    number: bytes
    name: str
    body: bytes
    window: int
    until: str
    ends: int
    once: bool = False
    lease: int = 0
    dead: bool = False
    due: int = 0


@dataclass
class Id:
    """The holder of an id: an owner, a successor due at `due`, or a window until `end`."""

    owner: Job | None = None
    successor: Job | None = None
    end: int = 0
    due: int = 0


@dataclass
class Model:
    """Jobs and ids as protocol/dedup.md describes them, compared with the scripts.

    Attributes:
        now: the clock of both.
        call: number of the last call of the producer.
    """

    scene: Scene
    draw: random.Random
    now: int = T0
    call: int = 10
    jobs: dict[bytes, Job] = field(default_factory=dict)
    ids: dict[str, Id] = field(default_factory=lambda: {name: Id() for name in NAMES})

    def run(self, name: str, *args: Any) -> list[Any]:
        """Run a script at the model's time."""
        return self.scene.run(name, *args, at=self.now)

    def lapse(self) -> None:
        """End the ttls and windows whose time has come."""
        for job in [j for j in self.jobs.values() if j.ends and j.ends <= self.now and not j.dead]:
            self.end(job, done=False)
        for one in self.ids.values():
            one.end = one.end if one.end > self.now else 0

    def end(self, job: Job, *, done: bool, buried: bool = False) -> None:
        """End a job, or make it a dead letter."""
        self.release(job, self.now + job.window if done and job.window else 0)
        job.lease, job.dead = 0, buried
        if not buried:
            del self.jobs[job.number]

    def release(self, job: Job, until: int = 0) -> None:
        """Free its id, give it to the successor, or open a window."""
        one = self.ids[job.name]
        if one.owner is job:
            if one.successor:
                one.successor.due = max(one.due, until)
            one.owner, one.successor, one.end = one.successor, None, until or one.end
        elif one.successor is job:
            one.successor = None

    def claimed(self, mode: str, job: Job, new: set[bytes], delay: int) -> tuple[int, bytes | None]:
        """Return the result for a job of a claim: 1 for added, else the reply's code and job."""
        one = self.ids[job.name]
        owner = one.owner
        due = self.now + delay if delay else 0
        busy = owner is not None and owner.lease > self.now
        if one.successor and "u" in mode and ("q" in mode or not busy):
            what = self.updated(one.successor, job, new)
            if "d" in mode and what[0] == 2:
                one.due = due
            return what
        if owner and busy:
            if "q" in mode and not one.successor:
                one.successor, one.end, one.due = job, 0, due
                return 3, None
            return 0, owner.number
        if owner:
            if "u" in mode and (not one.end or "q" in mode):
                return self.updated(owner, job, new)
            return 0, owner.number
        if one.end:
            if "q" in mode:
                one.owner = job
                return 3, None
            return 0, b""
        if mode == "e":
            one.end = self.now + job.window
        else:
            one.owner = job
        return 1, None

    def updated(self, old: Job | None, job: Job, new: set[bytes]) -> tuple[int, bytes]:
        """Replace the content; a job added by the same call is replaced entirely."""
        assert old
        if job.once and not old.once and old.number not in new:
            return -2, old.number
        old.body, old.due = job.body, 0
        old.window, old.until = job.window or old.window, job.until or old.until
        if old.number in new:
            old.window, old.until, old.ends, old.once = job.window, job.until, job.ends, job.once
        return 2, old.number


def _record(model: Model, until: str) -> Job:
    draw = model.draw
    window = draw.choice([1000, 30_000] if until == "e" else [0, 0, 1000, 30_000])
    ttl = draw.choice([0, 0, 0, 2000, 40_000])
    body = b"%d" % draw.randrange(10**9) + b"x" * draw.choice([0, 0, 3900, 4200, 9000])
    once = ttl > 0 and draw.random() < 0.4
    return Job(b"", draw.choice(NAMES), body, window, until, ttl and model.now + ttl, once)


def _line(model: Model, job: Job) -> bytes:
    ttl = f";t={job.ends - model.now}" if job.ends else ""
    window = f";w={job.window}" if job.window else ""
    until = f";u={job.until}" if job.until else ""
    lease = ";l=0" if job.once else ""
    return f"1{lease}{ttl};d={job.name}{window}{until}\n".encode() + job.body


def _claim(model: Model) -> None:
    model.lapse()
    until = model.draw.choice(["", "", "s", "e"])
    mode = "e" if until == "e" else model.draw.choice(MODES) + until
    jobs = [_record(model, until) for _ in range(model.draw.choice([1, 1, 1, 4]))]
    lines = [_line(model, job) for job in jobs]
    model.call += 1
    ends = min((job.ends for job in jobs if job.ends), default=math.inf)
    delay = min(model.draw.choice([0, 0, 500, 5000]), ends - model.now - 1)
    args = (model.call, EPOCH, delay, "", 0, "", mode, *lines)
    reply = model.run("claim", *args)
    first, new, wanted = reply[2], set[bytes](), []
    for index, job in enumerate(jobs, 1):
        ms, _, seq = first.partition(b"-")
        job.number = b"%s-%d" % (ms, int(seq) + len(new)) if first else b""
        what, number = model.claimed(mode, job, new, delay)
        if number is None:
            new.add(job.number)
            model.jobs[job.number] = job
        if what != 1:
            wanted.append((index, what, job.number if number is None else number))
    assert reply[3] == len(new), (mode, lines)
    assert list(zip(reply[9::5], reply[10::5], reply[11::5], strict=True)) == wanted, (mode, lines)
    if model.draw.random() < 0.3:
        again = model.run("claim", *args)
        assert again[6] == 1
        assert [*again[:6], *again[7:]] == [*reply[:5], 0, *reply[7:]]


def _reserve(model: Model) -> None:
    reply = model.run("reserve", 8, model.draw.choice([1, 3]), TAG, "ada", 0, "")
    model.lapse()
    _delivered(model, reply[6::3])


def _settle(model: Model) -> None:
    model.run("sweep", 8, 600_000)
    model.lapse()
    held = [job for job in model.jobs.values() if job.lease > model.now]
    if not held:
        return
    job = model.draw.choice(held)
    args = (EPOCH, _receipt(model, job), model.draw.choice([0, 1]), TAG, "ada", "", job.number)
    reply = model.run("settle", 8, *args)
    assert reply[6:8] == [1, b""]
    model.end(job, done=True)
    _delivered(model, reply[8::3])


def _receipt(model: Model, job: Job) -> str:
    counters = model.run("show", 8, EPOCH, job.number)[5][5]
    return f"{parse_counters(counters).deliveries}-{TAG:03x}"


def _delivered(model: Model, numbers: list[bytes]) -> None:
    for number in numbers:
        job = model.jobs[number]
        assert not job.dead
        assert max(job.lease, job.due) <= model.now
        assert all(one.successor is not job for one in model.ids.values()), (
            "a successor was delivered"
        )
        if job.until == "s":  # it usually has lost it already
            model.release(job)
        job.lease = model.now + 30_000
        if job.ends:
            job.lease = job.ends if job.once else min(job.lease, job.ends)
    for job in [j for j in model.jobs.values() if not j.dead and j.lease and j.lease <= model.now]:
        if model.run("show", 8, EPOCH, job.number)[5][1] == b"dead":  # its crashes are used up
            model.end(job, done=False, buried=True)


def _some(model: Model) -> list[bytes]:
    numbers = list(model.jobs)
    return model.draw.sample(numbers, min(len(numbers), model.draw.choice([1, 1, 2, 5])))


def _by_id(model: Model) -> None:
    model.run("sweep", 8, 600_000)
    model.lapse()
    name = model.draw.choice(
        ["ack", "ack", "nack", "release", "bury", "delete", "withdraw", "promote", "dequeue"]
    )
    args: tuple[Any, ...] = {
        "ack": ("", ""),
        "nack": ("", 0, 1, "broke", ""),
        "release": ("", 0),
        "bury": ("", "no use", ""),
    }.get(name, ())
    numbers = _some(model)
    waiting = [one.successor or one.owner for one in model.ids.values() if one.successor or one.end]
    successors = {job.number for job in waiting if job}
    if not numbers:
        return
    reply = model.run(name, 8, EPOCH, *args, *numbers)
    codes = reply[3:] or [1] * len(numbers)
    for number, code in zip(numbers, codes, strict=True):
        job = model.jobs[number]
        if name in ("promote", "dequeue"):
            assert number not in successors or code == -2
        if code == 3 or (name == "bury" and code == 1):
            model.end(job, done=False, buried=True)
        elif code == 1 and name in ("ack", "delete", "withdraw"):
            model.end(job, done=name == "ack")
        elif code == 1:
            job.lease = job.due = 0


def _redrive(model: Model) -> None:
    model.lapse()
    numbers = [job.number for job in model.jobs.values() if job.dead]
    model.draw.shuffle(numbers)
    for number in numbers[:2]:
        job = model.jobs[number]
        one = model.ids[job.name]
        taken = not job.until and bool(one.owner or one.end)
        wanted = -3 if job.ends and job.ends <= model.now else -13 if taken else 1
        reply = model.run("redrive", 8, EPOCH, 0, 0, number)
        assert (reply[5] if len(reply) > 5 else reply[2]) == wanted
        if wanted == 1:
            job.dead = False
            one.owner = one.owner if job.until else job


def _purge(model: Model) -> None:
    model.run("sweep", 8, 600_000)
    model.lapse()
    state = model.draw.choice(["ready", "due", "scheduled", "ended", "active", "once", "dead"])
    if model.draw.random() < 0.5:
        model.run("purge", 8, state, "", 0)
    else:
        model.run("evict", 8, 2, 1)
    left = {number for kind in ("held",) for number in model.scene.raw.hkeys(KEYS[kind])}
    left |= {entry[0] for entry in model.scene.raw.xrange(KEYS["ready"])}
    for job in [job for job in model.jobs.values() if job.number not in left]:
        model.end(job, done=False)


def _pass(model: Model) -> None:
    model.now += model.draw.choice([1, 400, 1000, 3000, 31_000])


USUAL = (_claim, _claim, _claim, _reserve, _reserve, _settle, _by_id, _by_id, _pass, _pass)
EVENTS = (*USUAL, _redrive, _purge)


def _compare(model: Model) -> None:
    """Compare lookups with the model; after a sweep compare the keys exactly."""
    model.lapse()
    for name, one in model.ids.items():
        reply = model.run("lookup", 8, name)
        owners = [job for job in (one.owner, one.successor) if job]
        assert [found[0] for found in reply[6:]] == [job.number for job in owners], name
        assert int(reply[5]) == one.end, name
        for found, job in zip(reply[6:], owners, strict=True):
            record = parse_record(found[6])
            assert (record.raw, record.dedup_id) == (job.body, name)
    if model.draw.random() < 0.5:
        return
    model.run("sweep", 8, 600_000)
    raw = model.scene.raw
    wanted, ends = {}, {}
    for name, one in model.ids.items():
        numbers = [job.number for job in (one.owner, one.successor) if job]
        tail = [b"@%d" % one.end] if one.end else []
        if numbers or tail:
            tail += [b"%d" % one.due] if one.successor and one.due else []
            wanted[name.encode()] = b" ".join([*numbers, *tail])
        if one.end:
            ends[name.encode()] = one.end
        if one.successor:
            due = raw.zscore(KEYS["scheduled"], one.successor.number)
            assert due == NEVER
    found = raw.hgetall(KEYS["dedup"])
    assert {name: value for name, value in found.items() if name[:1] != b"="} == wanted
    windows = dict(raw.zrange(KEYS["windows"], 0, -1, withscores=True))
    assert ends.items() <= windows.items()
    assert all(end > model.now for end in windows.values())
    check_invariant(raw)


def _drain(model: Model) -> None:
    """Deliver every job, and check that no id is left."""
    for _ in range(300):
        _reserve(model)
        for job in [job for job in model.jobs.values() if job.lease > model.now]:
            assert model.run("ack", 8, EPOCH, _receipt(model, job), "", job.number)[2] == 1
            model.end(job, done=True)
        if all(job.dead for job in model.jobs.values()):
            break
        model.now += 5000
    assert all(job.dead for job in model.jobs.values()), "a job is never delivered"
    model.now += 31_000
    model.run("sweep", 8, 600_000)
    assert not model.scene.raw.exists(KEYS["dedup"], KEYS["windows"])


@pytest.mark.parametrize("seed", range(12))
def test_ids_are_released_as_their_jobs_end(seed: int, backend: Backend) -> None:
    """In any order of events an id belongs to one job, and is free after its end."""
    scene = Scene(backend.sync_client(), KEYS, {})
    scene.run("configure", 1, EPOCH, "max_attempts", 3, "max_crashes", 2, "max_releases", 3)
    scene.raw.hset(registry_key(DEFAULT_PREFIX), f"00000000{EPOCH}", "dedup")
    model = Model(scene, random.Random(seed))
    for _ in range(120):
        model.draw.choice(EVENTS)(model)
        _compare(model)
    _drain(model)


def test_a_thousand_successors_leave_no_data(backend: Backend) -> None:
    """A thousand jobs in turn with one id: the keys hold only the last one."""
    scene = Scene(backend.sync_client(), KEYS, {})
    body = "1;d=page\nbody"
    number = scene.run("claim", 1, EPOCH, 0, "", 0, "", "", body)[2]
    for call in range(2, 1002):
        assert scene.run("reserve", 3, 1, TAG, "ada", 0, "")[6] == number
        reply = scene.run("claim", call, EPOCH, 0, "", 0, "", "q", body)
        assert reply[9:11] == [1, 3]
        assert scene.run("ack", 3, EPOCH, f"1-{TAG:03x}", "", number) == [1, b"3", 1]
        number = reply[2]
    raw = scene.raw
    assert raw.hgetall(KEYS["dedup"]) == {b"page": number}
    assert raw.hkeys(KEYS["held"]) == raw.zrange(KEYS["scheduled"], 0, -1) == [number]
    assert raw.xlen(KEYS["ready"]) == 0
    assert not raw.exists(*(KEYS[k] for k in ("active", "windows", "tally", "expiry", "dead")))


BROKEN = {
    "the job is gone": ("HSET", "dedup", "gone", "1-1000000000"),
    "a dead letter has it": ("HSET", "dedup", "dead", "<dead>"),
    "the job has another one": ("HSET", "dedup", "other", "<owner>"),
    "two of one job": ("HSET", "dedup", "a", "<owner> <owner>"),
    "the successor does not wait": ("HSET", "dedup", "a", "<successor> <owner>"),
    "the id has no entry": ("HDEL", "dedup", "a"),
    "an end without a window": ("HSET", "dedup", "b", "@5"),
    "another end than its window": ("HSET", "dedup", "w", "@5"),
    "empty": ("HSET", "dedup", "b", ""),
    "not in uses": ("HSET", "meta", "uses", "r"),
}
"""Breaks of the layout: a command on one kind of key, with the jobs of the test below."""


@pytest.mark.parametrize("command", BROKEN.values(), ids=BROKEN)
def test_the_invariant_detects_wrong_dedup_ids(command: tuple[str, ...], backend: Backend) -> None:
    """Each violation of the layout of dedup ids is found, and none without one."""
    scene = Scene(backend.sync_client(), KEYS, {})
    raw = scene.raw
    raw.hset(registry_key(DEFAULT_PREFIX), f"00000000{EPOCH}", "dedup")
    lines = [f"1;d={name}{';w=9000' if name == 'w' else ''}\nbody" for name in ("a", "w", "dead")]
    scene.run("claim", 1, EPOCH, 0, "", 0, "", "", *lines)
    owner, done, dead = scene.run("reserve", 2, 3, TAG, "ada", 0, "")[6::3]
    scene.run("ack", 3, EPOCH, f"1-{TAG:03x}", "", done)
    scene.run("bury", 4, EPOCH, f"1-{TAG:03x}", "no use", "", dead)
    successor = scene.run("claim", 5, EPOCH, 0, "", 0, "", "q", "1;d=a\nbody")[2]
    check_invariant(raw)
    names = {"<owner>": owner.decode(), "<successor>": successor.decode(), "<dead>": dead.decode()}
    name, kind, *args = command
    for mark, number in names.items():
        args = [arg.replace(mark, number) for arg in args]
    raw.execute_command(name, KEYS[kind], *args)
    with pytest.raises(AssertionError):
        check_invariant(raw)
