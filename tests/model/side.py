"""A queue and its model: both run each call, and must agree after it."""

from __future__ import annotations

import random
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from hypothesis.stateful import RuleBasedStateMachine, invariant

from penstock import Job, JobView, Penstock, QueueStats, RetryPolicy, Settings, parse_id
from penstock.core.jobs.job import number_of
from penstock.core.jobs.queue_stats import SETTING_KINDS, read_settings
from penstock.core.jobs.record import escaped, key_hash
from penstock.core.values.rate import rate_text
from penstock.wire.keys import PRIORITY_SPAN, node_key, registry_key, score_of
from penstock.wire.scripts import LETTERS
from tests.model.clock import CLOCK, TestClock
from tests.model.faults import Fault, Faults
from tests.model.jobs import MONTH, NEVER, OWNER, DedupId, ModelJob, Name, Number, Policy
from tests.model.keys import key_score
from tests.model.model import Model
from tests.support.keyspace import Raw, check_invariant, numbers

__all__ = ["IDS", "STATES", "Bench", "Dice", "SideBySide", "policy"]

T = TypeVar("T")
QUEUE = "model"
START = 1_700_000_000_000
IDS = ("a", "b;d=a", "ö%\n")
"""Dedup ids: few, so that they collide; some are escaped in the record."""
STATES = ("ready", "scheduled", "parked", "active", "dead")
GONE_TOO = 5
"""Picks from this one on may name a job that no longer exists."""
PLACES = ("active", "once", "scheduled", "parked", "dead")
TOTALS = {
    **{name: name for name in (
        "enqueued", "acked", "nacked", "released", "crashed", "died", "redriven", "trimmed",
        "deleted", "cancelled", "purged", "promoted", "withdrawn", "evicted",
        "dangling", "expired", "expired_active",
    )},
    "deliveries": "delivered",
    "postponed": "dequeued",
}  # fmt: skip
"""Totals by their names in stats and in meta."""


class Dice:
    """Random draws of the client: tags from the test, others seeded by Hypothesis.

    Attributes:
        tag: of the next reserve.
    """

    tag = 0

    def getrandbits(self, bits: int) -> int:
        """Return a receipt's tag."""
        assert self.tag < 1 << bits
        return self.tag

    def randrange(self, stop: int) -> int:
        """Return the seed of a backoff."""
        return random.randrange(stop)


@dataclass(frozen=True)
class Bench:
    """The client of a server, and its faults."""

    raw: Raw
    faults: Faults
    dice: Dice
    is_fake: bool


@dataclass
class Known:
    """A job known to the test: its id, and its deliveries, the latest last."""

    number: Number
    id: str
    life: int
    deliveries: list[Job]


def as_number(text: bytes) -> Number:
    """Return a job number in the form of the model."""
    ms, _, seq = text.partition(b"-")
    return int(ms), int(seq)


def policy(parts: Policy | None) -> RetryPolicy | None:
    """Return a policy of the model in the form of callers; a priority alone is none."""
    if parts is None or (parts[:3] == (None, None, None) and parts[3] is not None):
        return None
    attempts, base, cap, _ = parts
    return RetryPolicy(attempts, base and base / 1000, cap and cap / 1000)


class SideBySide(RuleBasedStateMachine):
    """One queue, two alternating clients, one model."""

    bench: Bench

    def __init__(self) -> None:
        super().__init__()
        self.raw = self.bench.raw
        self.raw.flushdb()
        self.clock = TestClock(self.raw, START)
        self.client = Penstock(self.raw, owner=OWNER)
        self.other = Penstock(self.raw, owner=OWNER)  # the next call is its own
        self.queue = self.client.queue(QUEUE)
        self.ops = self.queue.ops
        self.model = Model()
        self.known: list[Known] = []
        self.by_number: dict[Number, Known] = {}
        self.life = 0
        self.fault: Fault = ""
        self.bodies = 0
        self.had_slot = True  # before the last call
        self.had_alarm = 0  # the time of which a waiting consumer was told before the last call
        self.must_wake = ""  # the reason why a wake token must exist now
        self.had: tuple[int, int] = (0, 0)  # waiting jobs, and until when a producer waits
        self.latest_seen = 0
        self.opened: defaultdict[str, set[int]] = defaultdict(set)  # ends of windows, by dedup id
        self.has_changed = False
        self.timer: int | None = None  # until when a consumer waits, unless a token comes
        self.is_prioritised = False  # jobs of this queue have had priorities

    def teardown(self) -> None:
        """Check that no ended window leaves data, and close the client."""
        try:
            if sys.exc_info()[0] is None:
                self.clock.set(self.clock.latest + 1_000_000)
                self.queue.sweep()
                self.set_model_clock()
                self.model.sweep(0)
                assert not self.raw.exists(self.ops.keys["windows"])
                names = self.raw.hgetall(self.ops.keys["dedup"])
                assert all(b"@" not in value for value in names.values()), names
                assert len(names) == sum(self.model.holders(one)[0] is not None for one in IDS)
        finally:
            self.client.close()
            self.other.close()

    # -- running a call on both ------------------------------------------------------------

    def present(self) -> set[Number]:
        """Return the server's jobs."""
        ready = [entry[0] for entry in self.raw.xrange(self.ops.keys["ready"])]
        held = self.raw.hkeys(self.ops.keys["held"])
        return {as_number(name) for name in (*ready, *held) if not name.startswith(b"=")}

    def meta(self, *names: str) -> list[int]:
        """Return numbers stored in meta; 0 if missing."""
        return [int(x or 0) for x in self.raw.hmget(self.ops.keys["meta"], *names)]

    def both(
        self,
        model: Callable[[], T],
        queue: Callable[[], Any],
        again: Callable[[], T] | None = None,
        spared: int = 0,
        *,
        adds: bool = False,
    ) -> tuple[T, Any, bool]:
        """Run a call on the model and on the queue, with the fault that was chosen before.

        Args:
            model, queue: the call.
            again: the model's call when the server runs it twice; None = the same call.
            spared: scripts of the call that pass before the fault comes.
            adds: whether it adds jobs unless it is refused: then a rate or a hold may spare it the
                token.

        Returns:
            Both answers, and whether the call was sent twice.
        """
        fault, self.fault = self.fault, ""
        if fault == "flushed":
            self.raw.script_flush()
            fault = ""
        elif fault == "token lost":  # lost with its consumer
            if self.raw.lpop(self.ops.keys["wake"]):
                self.timer = None
            fault = ""
        self.set_model_clock()
        self.model.freed.clear()
        self.had = (self.model.waiting, self.meta("full")[0])
        self.had_slot, self.had_alarm = self.model.free_slots > 0, self.meta("alarm")[0]
        totals, was_drained = self.model.totals.copy(), self.model.drained
        wanted = model()
        if fault == "after":
            wanted = (again or model)()
        self.bench.faults.armed, self.bench.faults.spared = fault, spared
        try:
            got = queue()
        finally:
            self.bench.faults.armed = ""
        self.client, self.other = self.other, self.client
        self.queue = self.client.queue(QUEUE)
        self.model.found(self.present())
        self.has_changed = self.model.totals != totals
        freed = [self.model.jobs.get(number) for number in self.model.freed]
        if (
            not self.model.paused
            and self.had_slot
            and (not adds or isinstance(wanted, str) or self.wakes_for_jobs)
            and any(job and job.place == "scheduled" and job.at <= self.model.now for job in freed)
        ):
            self.must_wake = "a job that waited for the end of another one is due"
        if self.model.drained and not was_drained:
            self.must_wake = "a closed queue was drained"
        return wanted, got, bool(fault)

    def set_model_clock(self) -> None:
        """Set the model's clock: TIME plus the offset, and never before a shown time."""
        seen, off = self.meta("seen", "off")
        assert 0 <= off <= MONTH
        raw = self.clock.ms
        if seen - raw > MONTH:  # this reading or an earlier one is wrong
            self.model.now, self.latest_seen = raw, 0
        else:
            passed = max(0, raw + off - seen)
            self.model.now = max(raw + off - min(off, passed // 10), seen)
        now = self.model.now
        self.model.line_end = seen + 1_000 if now - seen > MONTH else now  # TIME may be wrong
        uses = self.raw.hget(self.ops.keys["meta"], "uses") or b""
        self.model.has_tickets = LETTERS["tickets"].encode() in uses

    def learn(self, job_id: str) -> Known:
        """Record a job by its id."""
        number = as_number(parse_id(job_id).number)
        if number not in self.by_number:
            self.by_number[number] = Known(number, job_id, self.life, [])
            self.known.append(self.by_number[number])
        found = self.by_number[number]
        assert found.id == job_id
        return found

    def named(
        self, picks: Iterable[tuple[int, str]], fit: Sequence[str] = ("active", "once")
    ) -> tuple[list[Name], list[Any], bool]:
        """Return the picked jobs as arguments of model and queue, and if all are of this epoch.

        Args:
            picks: which, and how.
            fit: places, or states, whose jobs come first; then those that live, then the others.
        """
        self.set_model_clock()
        jobs = self.model.jobs
        fits = {n for n, job in jobs.items() if {job.place, self.model.state(job)} & set(fit)}
        ranks = [(k.number in fits) + (k.number in jobs) for k in self.known]
        living = sum(rank > 0 for rank in ranks)
        order = sorted(range(len(self.known)), key=lambda i: (ranks[i], i), reverse=True)
        chosen: list[tuple[Name, Any, int]] = []
        for place, how in picks:
            if not order:
                break
            pool = order[:living] if living and place < GONE_TOO else order
            known = self.known[pool[place % len(pool)]]
            name: Any = known.id
            receipt = None
            if how != "id" and known.deliveries:
                name = known.deliveries[0 if how == "old receipt" else -1]
                first, _, tag = name.receipt.partition("-")
                receipt = (int(first), int(tag, 16))
            chosen.append(((known.number, receipt), name, known.life))
        lives = {c[2] for c in chosen}  # without a queue every job is gone
        current = len(lives) < 2 and (not self.model.exists or lives <= {self.life})
        return [c[0] for c in chosen], [c[1] for c in chosen], current

    def received(self, wanted: Iterable[ModelJob], got: Sequence[Job]) -> None:
        """Compare the delivered jobs with the expected ones."""
        wanted = list(wanted)
        told = [as_number(number_of(job)) for job in got]
        assert told == [job.number for job in wanted], (
            told,
            wanted,
            self.model.ids,
            self.model.now,
        )
        for mine, job in zip(wanted, got, strict=True):
            assert job.receipt == f"{mine.deliveries}-{mine.tag:03x}"
            assert (job.body, job.ttl) == (mine.body, None if mine.ttl is None else mine.ttl / 1000)
            lease = self.model.span(mine)
            assert (job.lease, job.at_most_once) == (lease / 1000, mine.lease == 0)
            assert (job.retry, job.priority) == (policy(mine.retry), mine.priority)
            counters = (job.deliveries, job.nacks, job.crashes, job.last_error)
            assert counters == (mine.deliveries, mine.nacks, mine.crashes, mine.error)
            assert job.attempt == 1 + mine.nacks + mine.crashes
            assert job.redeliveries == mine.others
            assert (job.created, job.delivered) == (mine.number[0] / 1000, self.model.now / 1000)
            self.learn(job.id).deliveries.append(job)

    def settings(self) -> Settings:
        """Return the model's settings as the queue shows them."""
        values: dict[str, Any] = {
            name: value
            if SETTING_KINDS[name] in ("count", "limit", "flag", "slots")
            else value / 1000
            for name, value in self.model.settings.items()
        }
        for name in ("rate", "key_rate"):
            if name in values:
                values[name] = rate_text(f"1/{self.model.settings[name]}")
        if "ordered" in values:
            values["ordered"] = True
        return Settings(**values, paused=self.model.paused or None)

    # -- comparisons -----------------------------------------------------------------------

    @invariant()
    def totals_agree(self) -> None:
        """Compare counters and settings in meta with the model's."""
        fields = {
            field.decode(): value.decode()
            for field, value in self.raw.hgetall(self.ops.keys["meta"]).items()
        }
        assert ("epoch" in fields) == self.model.exists
        assert read_settings(fields) == self.settings()
        for total, field in TOTALS.items():
            assert int(fields.get(field, 0)) == self.model.totals[total], total
        assert int(fields.get("made", 0)) == self.model.made

    @invariant()
    def jobs_agree(self) -> None:
        """Compare every job of a scan, which changes nothing, unlike stats and peek."""
        self.set_model_clock()
        self.scanned(1000, STATES)

    def scanned(self, n: int, states: Sequence[str], *, full: bool = True) -> None:
        """Scan step by step, and compare the found jobs."""
        cursor, ids, views = "0", list[str](), list[JobView]()
        search, steps = self.queue.jobs(states, n=n), 0  # type: ignore[arg-type]  # states
        while steps == 0 or cursor != "0":
            page = search.page(cursor, full=full)
            cursor, steps = page.cursor, steps + 1
            ids += page.ids
            views += page.jobs
        expected = [job for state in states for job in self.model.listed(state)]
        assert sorted(set(ids)) == sorted(self.by_number[job.number].id for job in expected)
        assert [view.id for view in views] == (ids if full else [])
        for view in views:
            self.compare(view)

    @invariant()
    def known_jobs_agree(self) -> None:
        """Compare every known job of this epoch."""
        ids = [known.id for known in self.by_number.values()]
        for start in range(0, len(ids) if self.model.exists else 0, 100):
            views = self.client.topology.executor.run(self.ops.show(ids[start : start + 100]))
            for job_id, view in zip(ids[start : start + 100], views, strict=True):
                number = as_number(parse_id(job_id).number)
                assert (view is None) == (number not in self.model.jobs), job_id
                if view is not None:
                    self.compare(view)
                    texts = self.model.jobs[number].failures
                    assert [failure.text for failure in view.failures] == texts

    def counted(self, stats: QueueStats) -> None:
        """Compare all stats."""
        model = self.model
        assert stats.exists == model.exists
        assert self.client.queues() == ([QUEUE] if model.exists else [])
        assert stats.settings == self.settings()
        for state in STATES:
            assert getattr(stats, state) == len(model.listed(state)) or state == "parked", state
        assert stats.parked == len(model.at("parked"))  # expired ones, too
        assert stats.unswept == len(model.listed("expired"))
        assert stats.dependent == sum(job.at == NEVER for job in model.listed("scheduled"))
        oldest = None if model.oldest is None else model.oldest / 1000
        if oldest is not None and stats.unswept:  # an expired job that is still stored may count
            assert stats.oldest is not None
            assert stats.oldest >= oldest
        else:
            assert stats.oldest == oldest
        for total in TOTALS:
            assert getattr(stats, total) == model.totals[total], total
        seen = self.meta("seen")[0]
        times = (max(0, model.now - at) / 1000 for at in (model.made, seen))
        assert (stats.age, stats.idle) == (tuple(times) if model.exists else (None, None))

    def peeked(self, views: Sequence[JobView], wanted: Sequence[ModelJob]) -> None:
        """Compare a list of jobs, in order."""
        assert [view.id for view in views] == [self.by_number[job.number].id for job in wanted]
        for view in views:
            self.compare(view)

    def compare(self, view: JobView) -> None:
        """Compare a job as readers see it."""
        model = self.model
        job = model.jobs[as_number(parse_id(view.id).number)]
        state = model.state(job)
        delivered = job.delivered is not None
        lease = model.span(job)
        is_parked = state == "parked"
        turn = model.turns.get(job.key, 0) if is_parked else 0
        due = job.at if state == "scheduled" and job.at != NEVER else turn
        limits = model.settings
        wanted = JobView(
            id=self.by_number[job.number].id,
            queue=QUEUE,
            state=state,
            raw=job.body,
            codec="",
            headers={},
            now=model.now / 1000,
            created=job.number[0] / 1000,
            due=due / 1000 if due and (due > model.now or state == "scheduled") else None,
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
            snoozes=job.snoozes,
            cancelled=view.cancelled if job.marked else None,
            failures=view.failures,
            dedup_id=job.dedup_id,
            retry=policy(job.retry),
            priority=job.priority,
            key_hash=key_hash(job.key) if job.key else None,
            key_taken=model.tickets_of(job.key) if is_parked else None,
            key_limit=(1 if model.is_ordered else limits.get("per_key") or limits.get("share"))
            if is_parked
            else None,
        )
        other = [name for name in JobView.__slots__ if getattr(view, name) != getattr(wanted, name)]
        assert view == wanted, [(x, getattr(view, x), getattr(wanted, x)) for x in other]
        assert (view.cancelled is not None) == job.marked
        if state != "expired":
            unsaid = job.place == "active" and state == "ready"  # a crash that no call has seen yet
            assert view.redeliveries == job.others + unsaid

    @invariant()
    def ids_agree(self) -> None:
        """Compare the holder of each dedup id, in `status` and in the keys."""
        self.set_model_clock()
        for name in IDS:
            owner, successor, end = self.model.holders(name)
            self.opened[name].add(end)
            found = self.queue.dedup_status(name)
            assert (found is None) == (owner is None and not end), name
            if found is None:
                continue
            views = [view for view in (found.job, found.successor) if view]
            wanted = [job for job in (owner, successor) if job]
            assert [view.id for view in views] == [self.by_number[x.number].id for x in wanted]
            for view in views:
                self.compare(view)
            assert found.window_ends == (end / 1000 if end else None)
            assert found.state == ("window" if end or owner is None else self.model.state(owner))
        stored = self.raw.hgetall(self.ops.keys["dedup"])
        windows = dict(self.raw.zrange(self.ops.keys["windows"], 0, -1, withscores=True))
        known = {escaped(name).encode(): one for name, one in self.model.ids.items()}
        for name in known.keys() | stored.keys():
            one = known.get(name, DedupId())
            value = stored.get(name, b"")
            words = [b"%d-%d" % number for number in (one.owner, one.successor) if number]
            words += [b"%d" % one.due] if one.due else []
            end = int(value.rpartition(b"@")[2]) if b"@" in value else 0
            if end > self.model.now or one.end > self.model.now:
                assert end == one.end == windows[name], name
            assert value.partition(b"@")[0].split() == words, name

    def clock_jumps(self, span: int) -> None:
        """Set the server's clock; an ended window that is still stored may be open again.

        When an ended window is removed is up to the scripts, so the model copies that from them.
        """
        self.timer = None
        self.set_model_clock()
        before = self.model.now
        self.clock.set(self.clock.ms + span)
        self.set_model_clock()
        for name in IDS:
            value = self.raw.hget(self.ops.keys["dedup"], escaped(name)) or b""
            end = int(value.rpartition(b"@")[2]) if b"@" in value else 0
            one = self.model.ids.setdefault(name, DedupId())
            if end != one.end:
                assert {end, one.end} <= {0} | self.opened[name], name
                assert max(end, one.end) <= before, name
                one.end = end
            if one == DedupId():
                del self.model.ids[name]

    def nothing_is_left(self) -> None:
        """Check that a sweep leaves no free id and no ended window."""
        wanted = {name for name in IDS if self.model.holders(name) != (None, None, 0)}
        found = self.raw.hkeys(self.ops.keys["dedup"])
        assert set(found) == {escaped(name).encode() for name in wanted}
        windows = self.raw.zrange(self.ops.keys["windows"], 0, -1, withscores=True)
        assert all(end > self.model.now for _, end in windows)

    # -- invariants ------------------------------------------------------------------------

    @invariant()
    def structures_agree(self) -> None:
        """Check that each job is at its place in the layout, and the server has no other data."""
        check_invariant(self.raw)
        jobs = self.model.jobs.values()
        ready = [as_number(number) for number in numbers(self.raw, self.ops, "ready")]
        assert ready == sorted(job.number for job in jobs if job.place == "ready")
        held = {as_number(number) for number in numbers(self.raw, self.ops, "held")}
        assert held == {job.number for job in jobs if job.place != "ready"}
        for place in PLACES:
            leased = place in ("active", "once")
            assert self.scores(place) == {
                job.number: score_of(job.at, job.tag)
                if leased
                else int(key_hash(job.key), 16)
                if place == "parked"
                else job.at - (job.raised and place == "scheduled") * job.priority * PRIORITY_SPAN
                for job in jobs
                if job.place == place
            }, place
        tickets = {job.number: int(key_hash(job.key), 16) for job in jobs if job.has_ticket}
        assert self.scores("tickets") == tickets
        waiting = {job.key for job in jobs if job.place == "parked"}
        going = {job.key for job in jobs if job.has_ticket} | {*self.model.turns}
        assert waiting <= going or self.model.is_loosened, "a key is blocked"
        in_us = {key: at * 1000 for key, at in self.model.paces.items()}
        for kind, times in (("turns", self.model.turns), ("paces", in_us)):
            stored = self.raw.zrange(self.ops.keys[kind], 0, -1, withscores=True)
            assert {one.decode(): int(at) for one, at in stored} == {
                key_score(key): at for key, at in times.items()
            }, kind
        assert self.scores("expiry") == {job.number: job.ends for job in jobs if job.may_expire}
        keys = {self.ops.keys[kind] for kind in self.ops.keys.names}
        keys |= {CLOCK, node_key("penstock"), registry_key("penstock")}
        assert [key for key in self.raw.scan_iter() if key not in keys] == []

    def scores(self, kind: str) -> dict[Number, int]:
        """Return an index of the server, without the marks of awaited jobs."""
        pairs = self.raw.zrange(self.ops.keys[kind], 0, -1, withscores=True)
        return {as_number(name): int(at) for name, at in pairs if name[:1] not in (b"?", b"!")}

    @property
    def wakes_for_jobs(self) -> bool:
        """Whether the last call has woken a consumer for the jobs that it added.

        If a rate or a hold delays the next job, none is woken that could not wait for its time, or
        while another one has a timer that ends before it.
        """
        if self.model.paused == "out" or not self.had_slot or self.model.is_held_for_long:
            return False
        return not self.model.now < self.had_alarm <= self.model.allowed_at

    @invariant()
    def tokens_are_there(self) -> None:
        """Check that a token exists for each client to wake, and that a shown clock is kept."""
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
