"""A queue and its model side by side: what both must agree on after each call."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from hypothesis.stateful import RuleBasedStateMachine, invariant

from penstock import Job, JobView, Penstock, Settings, parse_id
from penstock.core.operations import SETTING_KINDS
from penstock.wire.keys import node_key, registry_key
from tests.model.clock import CLOCK, TestClock
from tests.model.faults import Fault, Faults
from tests.model.model import Model, ModelJob, Name, Number
from tests.support.keyspace import Raw, check_invariant, numbers

__all__ = ["STATES", "Bench", "Dice", "SideBySide"]

T = TypeVar("T")
QUEUE = "model"
OWNER = "tester"
START = 1_700_000_000_000
STATES = ("ready", "scheduled", "active", "dead")
PLACES = ("active", "once", "scheduled", "dead")


class Dice:
    """What the client draws by lot: tags as the test says, the rest as Hypothesis seeds it.

    Attributes:
        tag: of the next reserve.
    """

    tag = 0

    def getrandbits(self, bits: int) -> int:
        """A receipt's tag."""
        assert self.tag < 1 << bits
        return self.tag

    def randrange(self, stop: int) -> int:
        """The seed of a backoff."""
        return random.randrange(stop)


@dataclass(frozen=True)
class Bench:
    """What the machine works on: a client of a server, and the ways to disturb it."""

    raw: Raw
    faults: Faults
    dice: Dice


@dataclass
class Known:
    """A job that the test has seen: its id, and the deliveries of it, the youngest last."""

    number: Number
    id: str
    life: int
    deliveries: list[Job]


def as_number(text: bytes) -> Number:
    """A job number as the model writes it."""
    ms, _, seq = text.partition(b"-")
    return int(ms), int(seq)


class SideBySide(RuleBasedStateMachine):
    """One queue, one client, one model."""

    bench: Bench

    def __init__(self) -> None:
        super().__init__()
        self.raw = self.bench.raw
        self.raw.flushdb()
        self.clock = TestClock(self.raw, START)
        self.client = Penstock(self.raw, owner=OWNER)
        self.queue = self.client.queue(QUEUE)
        self.ops = self.queue.ops
        self.model = Model()
        self.known: list[Known] = []
        self.by_number: dict[Number, Known] = {}
        self.life = 0
        self.fault: Fault = ""
        self.bodies = 0
        self.must_wake = ""  # why there has to be a wake token now
        self.had: tuple[int, int] = (0, 0)  # jobs that waited, and until when a producer waits
        self.latest_seen = 0
        self.has_changed = False

    def teardown(self) -> None:
        """Close the client."""
        self.client.close()

    # -- running a call on both ------------------------------------------------------------

    def meta(self, *names: str) -> list[int]:
        """Numbers stored in meta; 0 where there is none."""
        return [int(x or 0) for x in self.raw.hmget(self.ops.keys["meta"], *names)]

    def both(
        self, model: Callable[[], T], queue: Callable[[], Any], again: Callable[[], T] | None = None
    ) -> tuple[T, Any, bool]:
        """Run a call on the model and on the queue, with the fault that was chosen before.

        Args:
            model, queue: the call.
            again: what the model does when the server runs the call twice; None = the call.

        Returns:
            Both answers, and whether the call was sent twice.
        """
        fault, self.fault = self.fault, ""
        if fault == "flushed":
            self.raw.script_flush()
            fault = ""
        self.set_model_clock()
        self.had = (self.model.waiting, self.meta("full")[0])
        totals = self.model.totals.copy()
        wanted = model()
        if fault == "after":
            wanted = (again or model)()
        self.bench.faults.armed = fault
        try:
            got = queue()
        finally:
            self.bench.faults.armed = ""
        self.has_changed = self.model.totals != totals
        return wanted, got, bool(fault)

    def set_model_clock(self) -> None:
        """The rule of the clock: TIME plus the offset, and never before what was seen."""
        seen, off = self.meta("seen", "off")
        assert off >= 0
        self.model.now = max(self.clock.ms + off, seen)

    def learn(self, job_id: str) -> Known:
        """Note a job by its id."""
        number = as_number(parse_id(job_id).number)
        if number not in self.by_number:
            self.by_number[number] = Known(number, job_id, self.life, [])
            self.known.append(self.by_number[number])
        found = self.by_number[number]
        assert found.id == job_id
        return found

    def named(self, picks: Iterable[tuple[int, str]]) -> tuple[list[Name], list[Any], bool]:
        """Jobs that were picked, as the model and the queue take them, and if they are of now.

        The held come first, then the living, then those that are gone.
        """
        held = {number for number, job in self.model.jobs.items() if job.place == "active"}
        ranks = [(k.number in held) + (k.number in self.model.jobs) for k in self.known]
        order = sorted(range(len(self.known)), key=lambda i: (ranks[i], i), reverse=True)
        chosen: dict[Number, tuple[Name, Any, bool]] = {}
        for place, how in picks:
            if not order:
                break
            known = self.known[order[place % len(order)]]
            name: Any = known.id
            receipt = None
            if how != "id" and known.deliveries:
                name = known.deliveries[0 if how == "old receipt" else -1]
                first, _, tag = name.receipt.partition("-")
                receipt = (int(first), int(tag, 16))
            current = known.life == self.life and self.model.exists
            chosen[known.number] = ((known.number, receipt), name, current)
        triples = list(chosen.values())
        return [t[0] for t in triples], [t[1] for t in triples], all(t[2] for t in triples)

    def received(self, wanted: Iterable[ModelJob], got: Sequence[Job]) -> None:
        """Compare what was delivered with what should have been."""
        assert [as_number(job.number) for job in got] == [job.number for job in wanted]
        for mine, job in zip(wanted, got, strict=True):
            assert job.receipt == f"{mine.deliveries}-{mine.tag:03x}"
            assert (job.body, job.ttl) == (mine.body, None if mine.ttl is None else mine.ttl / 1000)
            lease = self.model.setting("lease") if mine.lease is None else mine.lease
            assert (job.lease, job.at_most_once) == (lease / 1000, mine.lease == 0)
            counters = (job.deliveries, job.nacks, job.crashes, job.last_error)
            assert counters == (mine.deliveries, mine.nacks, mine.crashes, mine.error)
            assert job.attempt == 1 + mine.nacks + mine.crashes
            assert (job.created, job.delivered) == (mine.number[0] / 1000, self.model.now / 1000)
            self.learn(job.id).deliveries.append(job)

    def settings(self) -> Settings:
        """The model's settings as the queue shows them."""
        values: dict[str, Any] = {
            name: value if SETTING_KINDS[name] == "count" else value / 1000
            for name, value in self.model.settings.items()
        }
        return Settings(**values, paused=self.model.paused or None)

    # -- what can be seen ------------------------------------------------------------------

    @invariant()
    def counts_agree(self) -> None:
        """Every figure of stats."""
        self.set_model_clock()
        reply, _ = self.client._node.run(self.ops.stats())
        assert reply[2] == self.model.now
        stats = self.ops.read_stats(reply)
        model = self.model
        assert stats.exists == model.exists
        assert self.client.queues() == ([QUEUE] if model.exists else [])
        assert stats.settings == self.settings()
        for state in STATES:
            assert getattr(stats, state) == len(model.listed(state)), state
        assert stats.expired == len(model.listed("expired"))
        oldest = None if model.oldest is None else model.oldest / 1000
        if oldest is not None and stats.expired:  # an expired job that lies there still may count
            assert stats.oldest is not None
            assert stats.oldest >= oldest
        else:
            assert stats.oldest == oldest
        for total in (
            "enqueued", "deliveries", "acked", "nacked", "released", "crashed", "died",
            "redriven", "trimmed", "swept", "deleted", "purged", "dangling",
        ):  # fmt: skip
            assert getattr(stats, total) == model.totals[total], total

    @invariant()
    def lists_agree(self) -> None:
        """The jobs of every state in order, and all that is known of each."""
        for state in STATES:
            views = self.queue.peek(1000, state=state)
            assert [view.id for view in views] == [
                self.by_number[job.number].id for job in self.model.listed(state)
            ], state
            for view in views:
                self.compare(view)

    @invariant()
    def known_jobs_agree(self) -> None:
        """Every job that was ever seen in this life of the queue."""
        ids = [known.id for known in self.by_number.values()]
        for start in range(0, len(ids) if self.model.exists else 0, 100):
            reply, _ = self.client._node.run(self.ops.show(ids[start : start + 100]))
            views = self.ops.views(reply, self.client._node.id)
            for job_id, view in zip(ids[start : start + 100], views, strict=True):
                number = as_number(parse_id(job_id).number)
                assert (view is None) == (number not in self.model.jobs), job_id
                if view is not None:
                    self.compare(view)

    def compare(self, view: JobView) -> None:
        """A job as a reader sees it."""
        model = self.model
        job = model.jobs[as_number(parse_id(view.id).number)]
        state = model.state(job)
        delivered = job.delivered is not None
        lease = model.setting("lease") if job.lease is None else job.lease
        wanted = JobView(
            id=self.by_number[job.number].id,
            queue=QUEUE,
            state=state,
            raw=job.body,
            codec="",
            headers={},
            created=job.number[0] / 1000,
            due=job.at / 1000 if state == "scheduled" else None,
            lease=lease / 1000,
            lease_until=job.at / 1000 if state == "active" and job.place == "active" else None,
            expires=None if job.expires is None else job.expires / 1000,
            died=job.at / 1000 if state == "dead" else None,
            delivered=(job.delivered or 0) / 1000 if delivered else None,
            owner=OWNER if delivered else "",
            deliveries=job.deliveries,
            nacks=job.nacks,
            crashes=job.crashes,
            releases=job.releases,
            error=job.error,
        )
        assert view == wanted

    # -- what must always hold ---------------------------------------------------------------

    @invariant()
    def structures_agree(self) -> None:
        """Each job lies where the layout wants it, and there is nothing else on the server."""
        check_invariant(self.raw)
        jobs = self.model.jobs.values()
        ready = [as_number(number) for number in numbers(self.raw, self.ops, "ready")]
        assert ready == sorted(job.number for job in jobs if job.place == "ready")
        held = {as_number(number) for number in numbers(self.raw, self.ops, "held")}
        assert held == {job.number for job in jobs if job.place != "ready"}
        for place in PLACES:
            scale = 4096 if place in ("active", "once") else 1
            assert self.scores(place) == {
                job.number: job.at * scale + (job.tag if scale > 1 else 0)
                for job in jobs
                if job.place == place
            }, place
        assert self.scores("expiry") == {job.number: job.expires for job in jobs if job.may_expire}
        keys = {self.ops.keys[kind] for kind in self.ops.keys.names}
        keys |= {CLOCK, node_key("penstock"), registry_key("penstock")}
        producers = self.ops.keys.producer("")
        others = [key for key in self.raw.scan_iter() if key not in keys]
        assert [key for key in others if not key.startswith(producers)] == []
        assert all(self.raw.pttl(key) > 0 for key in others)

    def scores(self, kind: str) -> dict[Number, int]:
        """An index as the server has it."""
        pairs = self.raw.zrange(self.ops.keys[kind], 0, -1, withscores=True)
        return {as_number(number): int(score) for number, score in pairs}

    @invariant()
    def tokens_are_there(self) -> None:
        """Whoever must be woken has a token; a clock once seen is not forgotten."""
        why, self.must_wake = self.must_wake, ""
        assert not why or self.raw.llen(self.ops.keys["wake"]), why
        waited, until = self.had
        limit = self.model.settings.get("max_length", 1 << 53)
        if self.model.waiting < min(waited, limit) and until > self.model.now:
            assert self.raw.llen(self.ops.keys["space"]), "room, and a producer waits"
        self.had = (0, 0)
        seen = self.meta("seen")[0]
        assert seen >= self.latest_seen
        self.latest_seen = seen
        assert not self.has_changed or self.model.now - seen < 1000, "a change without its time"
        self.has_changed = False
