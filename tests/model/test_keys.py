"""Limits per key against a plain model: tickets and parked jobs are compared after each step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import fakeredis
import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from penstock.core.record import key_hash
from penstock.wire.keys import QueueKeys, queue_crc, registry_key
from tests.protocol.clock import T0, run
from tests.support.keyspace import check_invariant

EPOCH, TAG, LEASE = "e0e0e0e0", 7, 1000
QUEUE = QueueKeys("q")
NAMES = ("a", "b", "")
LIMITS = st.sampled_from(["per_key 1", "per_key 2", "ordered", "none"])
SPARE = 100
Place = Literal["ready", "scheduled", "active", "parked", "dead"]


@dataclass
class Job:
    """A job of the model; `at` is its due time, or the end of its lease."""

    number: bytes
    key: str
    place: Place
    at: int
    has_ticket: bool = False

    @property
    def created(self) -> int:
        """Return the time of its enqueue."""
        return int(self.number[:-11])


class Model:
    """The jobs of a queue, and what one call decides about their keys."""

    def __init__(self) -> None:
        self.now = T0
        self.jobs: dict[bytes, Job] = {}
        self.limit: float = float("inf")
        self.ordered = False
        self.limited = False
        self.begin()

    def begin(self) -> None:
        """Begin a call."""
        self.is_crowded = any(job.place == "parked" for job in self.jobs.values())
        self.rooms: dict[str, float] = {}
        self.freed: dict[str, int] = {}
        self.robbed: set[str] = set()
        self.used: set[bytes] = set()
        self.before = {job.number: (job.place, job.has_ticket) for job in self.jobs.values()}
        self.given: list[Job] = []
        self.waiting: list[Job] = []

    def of(self, key: str, place: Place) -> list[Job]:
        """Return the jobs of a key in a place, the lowest number first."""
        found = [job for job in self.jobs.values() if job.key == key and job.place == place]
        return sorted(found, key=lambda job: job.number)

    def tickets(self, key: str) -> list[Job]:
        """Return the jobs of a key with a ticket."""
        return [job for job in self.jobs.values() if job.key == key and job.has_ticket]

    def free(self, key: str) -> None:
        """Note that a ticket of a key may be free."""
        self.freed[key] = self.freed.get(key, 0) + 1

    def end_ticket(self, job: Job) -> None:
        """Take the ticket of a job that ends or waits."""
        if job.has_ticket:
            job.has_ticket = False
            self.free(job.key)

    def take(self, job: Job) -> bool:
        """Tell if a candidate may be delivered; else it is parked."""
        if not self.limited or not job.key or job.has_ticket or self.limit == float("inf"):
            self.used.add(job.number)
            return True
        if job.key not in self.rooms:
            comes_later = any(
                number in self.jobs and self.jobs[number].key == job.key
                for number, (place, _) in self.before.items()
                if place == "parked"
            )
            if comes_later:
                self.free(job.key)
            room = 0 if comes_later else self.limit - len(self.tickets(job.key))
            self.rooms[job.key] = room
        if self.rooms[job.key] > 0:
            self.rooms[job.key] -= 1
            self.robbed.add(job.key)
            self.given.append(job)
            return True
        self.waiting.append(job)
        if self.ordered and job.key not in self.robbed:
            self._rob(job)
        return False

    def _rob(self, job: Job) -> None:
        holders = sorted(self.tickets(job.key), key=lambda one: one.number)[:1]
        for holder in holders:
            is_late = holder.place == "scheduled" and holder.at > holder.created
            is_waiting = self.before[holder.number][0] != "active" and not is_late
            if holder.number not in self.used and is_waiting and job.number < holder.number:
                holder.has_ticket = False
                self.robbed.add(job.key)
                self.free(job.key)
            elif holder.number in self.used or not is_waiting:
                self.robbed.add(job.key)

    def admit(self) -> None:
        """End a call: give tickets, park jobs, and give free tickets to parked ones."""
        for job in self.given:
            job.has_ticket = True
        for job in self.waiting:
            job.place = "parked"
        spare = SPARE
        for key, freed in self.freed.items() if self.is_crowded or self.waiting else ():
            parked, room = self.of(key, "parked"), self.limit - len(self.tickets(key))
            count = min(room, freed + spare) if room > 1 else room
            chosen = parked[: int(max(0, count))]
            spare -= max(0, len(chosen) - freed) if room > 1 else 0
            for job in chosen:
                job.place, job.at, job.has_ticket = "scheduled", min(self.now, job.created), True

    def call(self, change: Callable[[], Any]) -> Any:
        """Run a call."""
        self.begin()
        result = change()
        self.admit()
        return result

    def reserve(self, n: int) -> list[bytes]:
        """Deliver jobs."""
        taken: list[Job] = []

        def order(places: Iterable[Place]) -> list[Job]:
            found = [one for one in self.jobs.values() if one.place in places]
            due = [one for one in found if one.place == "ready" or one.at <= self.now]
            return sorted(due, key=lambda one: (one.at, one.number))

        for job in [*order(["active"]), *order(["ready", "scheduled"])]:
            if len(taken) == n:
                break
            if self.take(job):
                taken.append(job)
        for job in taken:
            job.place, job.at = "active", self.now + LEASE
        return [job.number for job in taken]

    def put_back(self, job: Job, delay: int) -> None:
        """Let a job wait for a time."""
        job.place = "scheduled"
        job.at = self.now + delay if delay else min(self.now, job.created)
        if delay and not self.ordered:
            self.end_ticket(job)

    def end(self, job: Job) -> None:
        """Remove a job."""
        self.end_ticket(job)
        del self.jobs[job.number]

    def bury(self, job: Job) -> None:
        """Make a job a dead letter."""
        self.end_ticket(job)
        job.place, job.at = "dead", self.now


class KeysMachine(RuleBasedStateMachine):
    """Random calls on a queue whose jobs have keys."""

    def __init__(self) -> None:
        super().__init__()
        self.raw: Any = fakeredis.FakeRedis(protocol=2)
        self.model = Model()
        self.calls = 0

    def run(self, name: str, *args: Any) -> list[Any]:
        """Run a script at the model's time."""
        self.calls += 1
        return run(self.raw, QUEUE, name, (self.calls, *args), now_ms=self.model.now)

    @initialize(limit=LIMITS, early=st.booleans())
    def begin(self, limit: str, early: bool) -> None:
        """Create the queue; some have jobs from before the limit."""
        self.raw.hset(registry_key("penstock"), f"{queue_crc('q'):08x}{EPOCH}", "q")
        args = ("lease", LEASE, "max_crashes", 0, "max_attempts", 0, "max_releases", 0)
        assert self.run("configure", EPOCH, *args)[0] == 1
        if not early:
            self.claim(["a", "b"])  # they have no tickets, and come first
        self.configure(limit)
        if not early:
            self.enqueue(["a", "b"], 0)
            self.reserve(2)

    @rule(limit=LIMITS)
    def configure(self, limit: str) -> None:
        """Set another limit, or none."""
        name, _, value = limit.partition(" ")
        model = self.model
        model.ordered = name == "ordered"
        model.limit = {"ordered": 1.0, "none": float("inf")}.get(name) or float(value)
        model.limited |= name != "none"
        self.run("configure", "", "per_key", value, "ordered", "1" if model.ordered else "")

    @rule(
        keys=st.lists(st.sampled_from(NAMES), min_size=1, max_size=6),
        delay=st.sampled_from([0, 0, 0, 500]),
    )
    def enqueue(self, keys: list[str], delay: int) -> None:
        """Add jobs."""
        records = [f"1;q={key_hash(key)}\nx" if key else "1\nx" for key in keys]
        first = self.run("enqueue", EPOCH, delay, "", 0, "", *records)[2]
        model = self.model

        def change() -> None:
            for i, key in enumerate(keys):
                number = first[:-10] + b"%d" % (int(first[-10:]) + i)
                at = model.now + delay if delay else int(number[:-11])
                job = Job(number, key, "scheduled" if delay else "ready", at)
                model.jobs[number] = job
                model.before[number] = ("ready", False)
                if not delay:
                    model.take(job)

        model.call(change)

    @rule(keys=st.lists(st.sampled_from(NAMES), min_size=1, max_size=3))
    def claim(self, keys: list[str]) -> None:
        """Add jobs with dedup ids: they go to ready without a look at keys."""
        field = [f";q={key_hash(key)}" if key else "" for key in keys]
        records = [f"1{one};d={self.calls}.{i}\nx" for i, one in enumerate(field)]
        first = self.run("claim", EPOCH, 0, "", 0, "", "", *records)[2]
        for i, key in enumerate(keys):
            number = first[:-10] + b"%d" % (int(first[-10:]) + i)
            self.model.jobs[number] = Job(number, key, "ready", int(number[:-11]))

    @rule(n=st.integers(1, 4))
    def reserve(self, n: int) -> None:
        """Take jobs, until some are there or no more can be reserved."""
        while True:
            reply = self.run("reserve", n, TAG, "ada", 0, "")
            wanted = self.model.call(lambda: self.model.reserve(n))
            assert reply[6::3] == wanted
            if wanted or reply[2] != 0:
                return

    def picked(self, pick: int, *places: Place) -> Job | None:
        """Return a job in one of these places."""
        found = [job for job in self.model.jobs.values() if job.place in places]
        return found[pick % len(found)] if found else None

    @rule(
        pick=st.integers(0, 9),
        how=st.sampled_from(["ack", "ack", "ack", "nack", "release", "bury"]),
        delay=st.sampled_from([0, 300]),
    )
    def report(self, pick: int, how: str, delay: int) -> None:
        """End a delivery by id."""
        job, model = self.picked(pick, "active"), self.model
        if job is None:
            return
        args: dict[str, tuple[Any, ...]] = {
            "ack": ("",), "nack": (delay, 1, "", ""), "release": (delay,), "bury": ("", ""),
        }  # fmt: skip
        assert self.run(how, EPOCH, "", *args[how], job.number)[2] == 1
        ends = {"ack": model.end, "bury": model.bury}.get(how)
        model.call(lambda: ends(job) if ends else model.put_back(job, delay))

    @rule(
        pick=st.integers(0, 9), how=st.sampled_from(["ack", "bury", "delete", "cancel", "withdraw"])
    )
    def end_waiting(self, pick: int, how: str) -> None:
        """End a waiting job by id, also a parked one."""
        job, model = self.picked(pick, "ready", "scheduled", "parked"), self.model
        if job is None:
            return
        args = {"ack": ("", ""), "bury": ("", "", "")}.get(how, ())
        reply = self.run(how, EPOCH, *args, job.number)
        if how != "withdraw" or reply[2]:
            assert reply[2] == 1
            model.call(lambda: model.bury(job) if how == "bury" else model.end(job))

    @rule(pick=st.integers(0, 9), how=st.sampled_from(["promote", "dequeue"]))
    def move(self, pick: int, how: str) -> None:
        """Move a job; a parked one is refused."""
        job, model = self.picked(pick, "ready", "scheduled", "active", "parked"), self.model
        if job is None:
            return
        is_parked = job.place == "parked"
        done = self.run(how, EPOCH, job.number)[2]
        assert not (done and is_parked)
        if done:
            model.call(lambda: model.put_back(job, LEASE if how == "dequeue" else 0))

    @rule()
    def redrive(self) -> None:
        """Bring all dead letters back."""
        self.run("redrive", "", 1000, 0)
        for job in self.model.jobs.values():
            if job.place == "dead":
                job.place, job.at = "scheduled", min(self.model.now, job.created)

    @rule(state=st.sampled_from(["parked", "ready"]))
    def purge(self, state: Place) -> None:
        """Remove the jobs of a place."""
        self.run("purge", state, "", 0)
        gone = [job for job in self.model.jobs.values() if job.place == state]
        self.model.call(lambda: [self.model.end(job) for job in gone])

    @rule()
    def sweep(self) -> None:
        """Repair; a raised limit takes effect, and an unused letter goes."""
        self.run("sweep", 1 << 40)
        model = self.model

        def change() -> None:
            parked = [job for job in model.jobs.values() if job.place == "parked"]
            for job in sorted(parked, key=lambda one: (key_hash(one.key), one.number)):
                model.free(job.key)

        model.call(change)
        has_some = any(job.has_ticket or job.place == "parked" for job in model.jobs.values())
        model.limited &= has_some or model.limit < float("inf")

    @rule(span=st.sampled_from([1, 100, 300, 1001]))
    def time_passes(self, span: int) -> None:
        """Advance the clock."""
        self.model.now += span

    @invariant()
    def structures_agree(self) -> None:
        """Compare each place, and the tickets."""
        check_invariant(self.raw)
        jobs = self.model.jobs.values()
        for place in ("scheduled", "parked", "dead", "active"):
            wanted = {job.number for job in jobs if job.place == place}
            assert set(self.raw.zrange(QUEUE[place], 0, -1)) == wanted, place
        tickets = dict(self.raw.zrange(QUEUE["tickets"], 0, -1, withscores=True))
        assert tickets == {job.number: int(key_hash(job.key), 16) for job in jobs if job.has_ticket}

    @invariant()
    def no_key_is_blocked(self) -> None:
        """A key with a parked job has a ticket out, whose end admits the next one."""
        for key in NAMES[:-1]:
            assert not self.model.of(key, "parked") or self.model.tickets(key), key

    def teardown(self) -> None:
        """Deliver everything: no job stays parked."""
        if not self.calls:
            return
        for _ in range(200):
            self.model.now += LEASE + 1
            numbers = self.run("reserve", 100, TAG, "eve", 0, "")[6::3]
            if numbers:
                self.run("ack", EPOCH, "", "", *numbers)
            elif not self.raw.exists(QUEUE["scheduled"], QUEUE["active"], QUEUE["ready"]):
                break
        assert not self.raw.exists(QUEUE["parked"], QUEUE["tickets"])


def test_tickets_agree_with_their_model() -> None:
    """After each step tickets and parked jobs are those of the model, and no key is blocked."""
    run_state_machine_as_test(
        KeysMachine,
        settings=settings(deadline=None, max_examples=20, stateful_step_count=25),
    )
