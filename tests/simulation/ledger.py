"""The oracle: what the clients of a world were told and have seen, and what must be true of it.

It is written from the promises of README and PROTOCOL.md. Of the product it asks only what a worker
believes about the end of a lease.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from penstock import AsyncJob, StepFailed
from penstock.core.jobs.job import term_of
from tests.simulation.loop import Process
from tests.simulation.notice import Notice
from tests.simulation.world import World

__all__ = [
    "BURIED",
    "LOST",
    "REPEATED",
    "RESULT",
    "Entry",
    "Ledger",
    "Rate",
    "Run",
    "follow_up_of",
]

SERVER_TICK = 0.001
"""Seconds between two times of a server: scripts count whole milliseconds."""
STEP_OF_QUEUE_TIME = 1.0
"""Most seconds by which the time of a queue goes back when the clock of its server is set back."""
LOST = "may be lost"
REPEATED = "may be there twice"
RESULT = "may have lost its result"
BURIED = "may be a dead letter"


class Rate(NamedTuple):
    """A rate: so many jobs in so many seconds, and so many at once."""

    count: int
    seconds: float
    burst: int


class KeyHold(NamedTuple):
    """A hold of a key.

    Attributes:
        since, until: times of its server.
        told_at: when its client was told of it.
    """

    since: float
    until: float
    told_at: float


def follow_up_of(name: str) -> str:
    """Return the name of the job that the death of a job adds."""
    return f"{name}.death"


@dataclass
class Entry:
    """A job that a producer has tried to add, or a handler has handed over.

    Attributes:
        name: unique.
        deed: what its handler does.
        key: the key, if its jobs are in order; "" = none.
        any_key: the key, in order or not; "" = none.
        paced_key: the key, if it has a rate; "" = none.
        last_counts: number of deliveries and of crashes at the last delivery that was seen.
        dedup_id: the dedup id; "" = none.
        ttl: seconds after which it expires; None = never.
        is_callback: whether it is the callback of a batch.
        members: the jobs of this batch.
        parent: the job that hands it over.
        child: the job that it hands over.
        batch: the batch that it hands over: its callback.
        called: the jobs that its steps call.
        dead: the job whose death adds it.
        attempted_at: when it was tried.
        settled_at: when the producer knew what has become of it; None = it does not.
        is_accepted: whether the producer was told that it was added.
        is_confirmed: whether its producer waits for a replica.
        is_refused: whether the producer was told that it was not added.
        is_cancelled: whether somebody has tried to cancel it.
        ids: the ids under which it was seen.
        done: how often a handler has returned.
        is_dead: whether it has become a dead letter.
        excuses: promises that do not hold for it, by what has happened: `LOST` and others.
    """

    name: str
    deed: str
    key: str = ""
    any_key: str = ""
    paced_key: str = ""
    last_counts: tuple[int, int] = (0, 0)
    dedup_id: str = ""
    ttl: float | None = None
    is_callback: bool = False
    members: list[Entry] = field(default_factory=list)
    parent: Entry | None = None
    child: Entry | None = None
    batch: Entry | None = None
    called: list[Entry] = field(default_factory=list)
    dead: Entry | None = None
    attempted_at: float = 0.0
    settled_at: float | None = None
    is_accepted: bool = False
    is_confirmed: bool = False
    is_refused: bool = False
    is_cancelled: bool = False
    ids: set[str] = field(default_factory=set)
    runs: int = 0
    done: int = 0
    is_dead: bool = False
    excuses: set[str] = field(default_factory=set)

    def is_over(self, now: float) -> bool:
        """Whether the job may have ended, as far as the ledger knows."""
        if self.done or self.is_dead or self.is_cancelled or LOST in self.excuses:
            return True
        return self.ttl is not None and now >= self.attempted_at + self.ttl

    @property
    def is_promised(self) -> bool:
        """Whether the job is known to be there.

        It was accepted, its parent was acknowledged, or the job that it follows is dead.
        """
        if self.dead is not None:
            return self.dead.is_dead and LOST not in self.dead.excuses
        parent = self.parent
        if parent is None:
            return self.is_accepted
        # A parent that can end otherwise may have done so after its handler returned.
        can_end = parent.is_cancelled or parent.is_dead or parent.ttl is not None
        return bool(parent.done) and not (can_end or parent.excuses)


@dataclass(eq=False)
class Run:
    """A run of a handler.

    Attributes:
        entry: its job.
        job: the delivery.
        process: where it runs.
        began_at: when it began.
        extended_to: the end of its lease is not before this time, as its handler has asked for.
    """

    entry: Entry
    job: AsyncJob
    process: Process
    began_at: float
    extended_to: float = 0.0

    @property
    def until(self) -> float:
        """The end of the lease as its worker knows it, which is never after that of the server.

        A job that the worker has noticed as lost has none.
        """
        return -math.inf if self.job.lost else term_of(self.job).until

    @property
    def is_unaware(self) -> bool:
        """Whether its worker is awake, and has not noticed the end of a lease."""
        return self.process.is_alive and not (self.process.was_stopped or self.job.lost)


class Ledger:
    """The ledger of a world.

    Args:
        world: the world.

    Attributes:
        entries: the jobs by name.
        running: the runs under way.
        ticks: the ids of the jobs of each tick, by schedule and time.
        deliveries: the times of all deliveries that a handler has seen.
        deliveries_of_key: those that its rate allows, by key.
        broken: promises that were found broken.
        notice: bounds the time in which a worker notices that a lease has ended.
        latest_notice: most seconds for which a handler ran on after the end of its lease.
        paused_at: the time since when nothing is delivered; None = there is no pause.
        held: the times between which nothing is delivered; None = there is no hold.
        held_keys: the same for keys, and when their clients were told of it.
        refuses_since: the time since when producers are refused; None = they are not.
        has_lost: whether a server has lost settings or counts of deliveries.
        steps_taken: how often a step was taken.
        calls_seen: how often the ends of called jobs were seen.
        outcomes_seen: how often an outcome of a wait was seen, by its signaller or its handler.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.notice = Notice(world.clock)
        self.entries: dict[str, Entry] = {}
        self.running: list[Run] = []
        self.broken: list[str] = []
        self.latest_notice = 0.0
        self.ticks: dict[tuple[str, int], set[str]] = {}
        self.deliveries: list[float] = []
        self.deliveries_of_key: dict[str, list[float]] = defaultdict(list)
        self.accepted_of_key: dict[str, list[str]] = defaultdict(list)
        self.begun_of_key: dict[str, list[str]] = defaultdict(list)
        self.paused_at: float | None = None
        self.held: tuple[float, float] | None = None
        self.held_keys: dict[str, list[KeyHold]] = defaultdict(list)
        self.refuses_since: float | None = None
        self.has_lost = False
        self.steps_taken = 0
        self.outcomes_seen = 0
        self.calls_seen = 0
        self._noted: dict[tuple[str, int], int] = {}
        self._outcomes: dict[str, str | None] = {}
        self._excused: Counter[str] = Counter()
        self._lapsed_at = 0.0
        self._stepped_back_from: list[float] = []
        self._ticked_at: dict[tuple[str, int], float] = {}
        self._time_excess = 0.0

    @property
    def _now(self) -> float:
        return self._world.clock.now

    def complain(self, text: str) -> None:
        """Note a broken promise."""
        self._world.note("BROKEN", text)
        self.broken.append(text)

    # -- producers -------------------------------------------------------------------------

    def attempt(self, entry: Entry) -> None:
        """Note a job that a producer is about to add."""
        self.entries[entry.name] = entry
        entry.attempted_at = self._now
        entry.excuses.update(+self._excused)
        self._world.note("adds", entry.name, entry.deed, entry.key)

    def accept(self, entry: Entry, job_id: str) -> None:
        """Note that a producer was told that its job is in."""
        entry.is_accepted, entry.settled_at = True, self._now
        self._see(entry, job_id)
        if entry.key:
            self.accepted_of_key[entry.key].append(entry.name)
        if self.refuses_since is not None and entry.attempted_at > self.refuses_since:
            self.complain(f"{entry.name} was added while producers are refused")
        for other in self._others_of_dedup_id(entry):
            # A repeat may tell of a job that was added long ago, and has ended.
            is_open = not (entry.is_over(self._now) or other.is_over(self._now))
            if other.is_accepted and is_open:
                self.complain(f"{entry.name} was added beside {other.name} of its dedup id")

    def _others_of_dedup_id(self, entry: Entry) -> list[Entry]:
        if not entry.dedup_id:
            return []
        entries = self.entries.values()
        return [one for one in entries if one.dedup_id == entry.dedup_id and one is not entry]

    def accept_duplicate(self, entry: Entry, job_id: str) -> None:
        """Note that a producer was told that another job stands for its job."""
        entry.settled_at = self._now
        self._world.note("duplicate", entry.name)
        if not entry.dedup_id:
            self.complain(f"{entry.name} is a duplicate, and has no dedup id")
        for other in self.entries.values():
            if _without_node(job_id) in other.ids and other.dedup_id != entry.dedup_id:
                self.complain(f"{entry.name} is a duplicate of {other.name}, which has another id")

    def refuse(self, entry: Entry, error: Exception, *, is_known: bool) -> None:
        """Note that a call has raised.

        Args:
            entry: the job.
            error: what was raised.
            is_known: whether the error says that the job was not added.
        """
        self._world.note("refused", entry.name, type(error).__name__)
        entry.settled_at, entry.is_refused = self._now, is_known

    def hand_over(self, parent: Entry) -> Entry:
        """Return the job that a handler hands over, each time the same."""
        if parent.child is None:
            child = parent.child = Entry(f"{parent.name}.next", "ok", parent=parent)
            self.attempt(child)
            for entry in self.entries.values():
                if parent in entry.members:
                    entry.members.append(child)
        return parent.child

    def hand_over_batch(self, parent: Entry, deeds: Sequence[str]) -> Entry:
        """Return the callback of a batch that a handler hands over, each time the same."""
        if parent.batch is None:
            then = parent.batch = Entry(f"{parent.name}.then", "ok", parent=parent)
            then.is_callback = True
            for number, deed in enumerate(deeds):
                member = Entry(f"{parent.name}.{number}", deed, parent=parent)
                then.members.append(member)
                self.attempt(member)
            self.attempt(then)
        return parent.batch

    def call(self, parent: Entry, deeds: Sequence[str]) -> list[Entry]:
        """Return the jobs that the steps of a handler call, each time the same."""
        if not parent.called:
            for number, deed in enumerate(deeds):
                called = Entry(f"{parent.name}.{number}", deed, parent=parent)
                parent.called.append(called)
                self.attempt(called)
        return parent.called

    def see_called(self, parent: Entry, values: list[Any]) -> None:
        """Note the values of called jobs, which have all ended."""
        self.calls_seen += 1
        expected = [one.name for one in parent.called if one.deed != "always fails"]
        if values != expected:
            self.complain(f"{parent.name} called {expected}, and got {values}")
        for called in parent.called[:-1]:
            if not called.done:
                self.complain(f"{called.name} has a value, and was not run")

    def see_failed_call(self, parent: Entry, error: StepFailed) -> None:
        """Note that a called job has ended without a value."""
        self.calls_seen += 1
        last = parent.called[-1]
        is_usual = error.step == "last" and error.state == "dead"
        if not is_usual and not set().union(*(one.excuses for one in (parent, *parent.called))):
            self.complain(f"a step of {parent.name} failed: {error!r}")
        if is_usual and last.runs == 0:
            self.complain(f"{last.name} is dead, and was not run")

    def expect_follow_up(self, dead: Entry) -> None:
        """Note that the death of a job adds another one."""
        self.attempt(
            Entry(
                follow_up_of(dead.name),
                "ok",
                key=dead.key,
                any_key=dead.any_key,
                paced_key=dead.paced_key,
                dead=dead,
            )
        )

    def _see(self, entry: Entry, job_id: str) -> None:
        entry.ids.add(_without_node(job_id))
        excuses = entry.excuses | (entry.dead.excuses if entry.dead is not None else set())
        if len(entry.ids) > 1 and REPEATED not in excuses:
            self.complain(f"one enqueue of {entry.name} made several jobs: {sorted(entry.ids)}")

    def see_values(self, then: Entry, values: Sequence[Any]) -> None:
        """Note what the callback of a batch reads: the values of its jobs, in their order.

        A job that hands over has the value of the next one. One whose adding had no answer may be
        missing.
        """
        names = [one for one in values if isinstance(one, str)]
        expected = [(one.child or one).name for one in then.members if one.deed != "always fails"]
        rest = iter(expected)
        excuses = then.excuses.union(*(one.excuses for one in then.members))
        if not all(name in rest for name in names) and REPEATED not in excuses:
            self.complain(f"the values of {then.name} are {names}, not {expected}")
        is_whole = all(one.is_accepted for one in then.members) and not excuses
        if is_whole and not self.has_lost and len(values) != len(then.members):
            self.complain(f"{then.name} has {len(values)} values of {len(then.members)} jobs")

    # -- what is no promise any more -------------------------------------------------------

    @contextmanager
    def excusing(self, *excuses: str) -> Iterator[None]:
        """Excuse the jobs that were tried before, and those that are tried meanwhile."""
        for entry in self.entries.values():
            entry.excuses.update(excuses)
        self._excused.update(excuses)
        try:
            yield
        finally:
            self._excused.subtract(excuses)

    @contextmanager
    def wiping(self) -> Iterator[None]:
        """Note that a queue is removed, and has no settings meanwhile."""
        self._lapse()
        self.has_lost = True
        self._excuse_since(self._now, REPEATED)
        with self.excusing(LOST, RESULT, BURIED):
            yield

    def lose_since(self, since: float, *, but_confirmed: bool = False) -> None:
        """Note that a server has forgotten what it did since then.

        Jobs that were added then are lost, and those of an unknown fate may be added again. What
        was delivered then is delivered again: also a job at most once.

        Args:
            since: the time.
            but_confirmed: whether jobs that a replica has confirmed are there.
        """
        kept_holds = {
            key: [hold for hold in holds if hold.told_at < since]
            for key, holds in self.held_keys.items()
        }
        self._lapse()
        self.held_keys.update(kept_holds)
        self.has_lost = True
        self._excuse_since(since, REPEATED)
        for entry in self._unsettled_at(since):
            if not (but_confirmed and entry.is_confirmed and entry.is_accepted):
                entry.excuses.add(LOST)
        for entry in self.entries.values():
            if entry.deed == "once":
                entry.excuses.add(REPEATED)

    def step_clock(self, seconds: float, before: float) -> None:
        """Note that a server's clock was set: forward, all that has a time ends early.

        Set back, the time of a queue goes on, after a step back of less than a second. A stored
        time of its rate that is too far ahead then counts as wrong. Ticks run again at their times.

        Args:
            seconds: by how much.
            before: the time of the server until then.
        """
        self.paused_at = self.held = None  # they are compared with the time of the queue
        self.held_keys.clear()
        if seconds < 0:
            self._time_excess = STEP_OF_QUEUE_TIME
            self._stepped_back_from.append(before)
        else:
            self._lapse()
            self._excuse_since(self._now, REPEATED, BURIED)
            for entry in self.entries.values():
                entry.excuses.update((RESULT, LOST) if entry.ttl else (RESULT,))

    def _excuse_since(self, since: float, *excuses: str) -> None:
        """Excuse the jobs of which no producer knew at this time what has become of them."""
        for entry in self._unsettled_at(since):
            entry.excuses.update(excuses)

    def _unsettled_at(self, since: float) -> list[Entry]:
        entries = [one for one in self.entries.values() if one.dead is None or one.runs]
        return [one for one in entries if one.settled_at is None or one.settled_at >= since]

    def _lapse(self) -> None:
        """Note that a server may have forgotten its deliveries, its pause and its holds."""
        self._lapsed_at = self._now
        self.held_keys.clear()
        self.paused_at = self.refuses_since = self.held = None

    def is_forgotten(self, run: Run) -> bool:
        """Return whether a server may have forgotten a delivery, and no renewal has shown that."""
        if run.job.at_most_once:
            return run.began_at <= self._lapsed_at
        longest = max(term_of(run.job).lease, run.job.lease, run.extended_to - run.began_at)
        # A renewal leaves an end that is later, as it may be behind a step back of the time.
        return run.until - longest - self._time_excess < self._lapsed_at

    # -- handlers --------------------------------------------------------------------------

    def begin(
        self, name: str, job_id: str, job: AsyncJob, process: Process, slots: int | None = None
    ) -> Run:
        """Note that a handler begins; at most so many may hold jobs at once."""
        entry = self.entries.get(name)
        if entry is None:
            self.complain(f"{name} runs, and nothing has added it")
            entry = self.entries[name] = Entry(name, "?")
        self._world.note("begins", name, process.name)
        self._see(entry, job_id)
        run = Run(entry, job, process, self._now)
        self.note_delivery(job)
        self._note_paced(entry, job)
        self._check_holders(run)
        self._check_time(run)
        self._check_key_hold(run)
        if slots is not None:
            self._check_slots(run, slots)
        for member in entry.members:
            if member.is_promised and not (
                member.is_over(self._now) or member.deed == "always fails"
            ):
                self.complain(f"the callback {name} runs before {member.name} has ended")
        if entry.deed == "once" and entry.runs and REPEATED not in entry.excuses:
            self.complain(f"{name} was delivered twice, at most once was promised")
        if entry.is_refused and REPEATED not in entry.excuses:
            self.complain(f"{name} runs, and its producer was told that it was not added")
        if entry.dead is not None and entry.settled_at is None:
            entry.settled_at = self._now
        if entry.key and name not in self.begun_of_key[entry.key]:
            self.begun_of_key[entry.key].append(name)
        entry.runs += 1
        self.running.append(run)
        return run

    def _check_holders(self, new: Run) -> None:
        """Check that no other worker holds the job, or another one of its key."""
        entry, process = new.entry, new.process
        if self.is_forgotten(new):
            return
        for run in self.running:
            if run.until <= self._now + SERVER_TICK or self.is_forgotten(run):
                continue
            if run.entry is entry.dead:
                self.complain(f"{entry.name} follows the death of a job that still runs")
            elif run.entry is entry:
                self.complain(
                    f"{entry.name} runs in {process.name} while {run.process.name} holds it"
                )
            elif entry.key and run.entry.key == entry.key:
                self.complain(f"{entry.name} runs beside {run.entry.name} of its key")

    def _check_slots(self, new: Run, most: int) -> None:
        """Check that no more jobs are held at once than the queue delivers."""
        runs = [run for run in (*self.running, new) if not self.is_forgotten(run)]
        held = {run.entry.name for run in runs if run.until > self._now + SERVER_TICK}
        if len(held) > most and not self.has_lost:
            self.complain(f"{len(held)} jobs are held at once, not {most}: {sorted(held)}")

    def _check_time(self, run: Run) -> None:
        """Check that the job was delivered before the end of its ttl."""
        entry, job = run.entry, run.job
        if entry.ttl is not None and job.delivered >= job.created + entry.ttl + SERVER_TICK:
            self.complain(f"{entry.name} was delivered after the end of its ttl")

    def _check_key_hold(self, run: Run) -> None:
        """Check that no hold of its key lasts."""
        for hold in self.held_keys[run.entry.any_key] if run.entry.any_key else ():
            if hold.since + SERVER_TICK < run.job.delivered < hold.until - SERVER_TICK:
                self.complain(f"{run.entry.name} was delivered during a hold of its key")

    def hold_key(self, key: str, since: float, until: float) -> None:
        """Note that a client was told that a key is held between two times of its server."""
        self._world.note("holds key", key, since, until)
        if not self._excused[LOST]:
            self.held_keys[key].append(KeyHold(since, until, self._now))

    def end_key_hold(self, key: str) -> None:
        """Note that the holds of a key may have ended."""
        self.held_keys[key].clear()

    def note_delivery(self, job: AsyncJob) -> None:
        """Note the delivery of a job."""
        self.deliveries.append(job.delivered)
        if self.paused_at is not None and job.delivered > self.paused_at + SERVER_TICK:
            self.complain(f"{job.id} was delivered during a pause")
        if self.held is not None:
            since, until = self.held
            if since + SERVER_TICK < job.delivered < until - SERVER_TICK:
                self.complain(f"{job.id} was delivered during a hold")

    def hold(self, since: float, until: float) -> None:
        """Note that the queue is held between two times of its server."""
        self._world.note("holds", since, until)
        if not self._excused[LOST]:  # else the hold may go with the jobs
            self.held = since, until

    def _note_paced(self, entry: Entry, job: AsyncJob) -> None:
        """Note a delivery of a key, unless a lease has ended before it: that one costs nothing."""
        deliveries, crashes = entry.last_counts
        entry.last_counts = (job.deliveries, job.crashes)
        if entry.paced_key and job.crashes <= crashes and job.deliveries > deliveries:
            self.deliveries_of_key[entry.paced_key].append(job.delivered)

    def end(self, run: Run, *, is_done: bool) -> None:
        """Note that a handler has ended."""
        self._world.note("ends", run.entry.name, run.process.name, is_done)
        self.running.remove(run)
        run.entry.done += is_done
        late = self._now - run.until
        if run.is_unaware and late > 0:
            self.latest_notice = max(self.latest_notice, late)
            if late > self.notice.seconds_since(run.until):
                self.complain(f"{run.entry.name} ran on for {late:.1f} s, and its lease had ended")

    def take_step(self, run: Run, number: int) -> int:
        """Note that a step was taken; return its value, which no other one has."""
        self.steps_taken += 1
        self._world.note("step", run.entry.name, number, self.steps_taken)
        return self.steps_taken

    def see_step(self, run: Run, number: int, value: int) -> None:
        """Note the value of a step behind its note: each run of the job sees the same."""
        first = self._noted.setdefault((_without_node(run.job.id), number), value)
        if value != first and not self.has_lost:
            self.complain(f"step {number} of {run.entry.name} was {first}, and is {value} now")

    def see_outcome(self, job_id: str, entry: Entry, value: str | None) -> None:
        """Note the outcome of a wait, or a signal that was taken: all are one; None = a timeout."""
        self.outcomes_seen += 1
        first = self._outcomes.setdefault(_without_node(job_id), value)
        if value != first and not self.has_lost:
            self.complain(f"the wait of {entry.name} ended with {first}, and with {value} now")

    def tick(self, at: float, job: AsyncJob, schedule: str) -> None:
        """Note the job of a tick."""
        self._world.note("tick", at, schedule)
        self.note_delivery(job)
        ids = self.ticks.setdefault((schedule, round(at)), set())
        ids.add(job.id)
        ran_at = self._ticked_at.setdefault((schedule, round(at)), self._now)
        # Behind a clock that was set back from a later time it is added again.
        most = 1 + sum(before >= at for before in self._stepped_back_from)
        if len(ids) > most and ran_at > self._lapsed_at:
            self.complain(f"the tick of {schedule} at {at} was added twice")

    def check_ticks(self, schedule: str, began: float, ended: float, every: float) -> None:
        """Check that each tick in this time has run."""
        first = -(-began // every) * every
        while first < ended:
            if (schedule, round(first)) not in self.ticks:
                self.complain(f"the tick of {schedule} at {first} has not run")
            first += every

    def bury(self, name: str) -> None:
        """Note a dead letter."""
        entry = self.entries[name]
        entry.is_dead = True
        if entry.deed != "always fails" and BURIED not in entry.excuses:
            self.complain(f"{name} is a dead letter, and its handler has not given it up")

    # -- the end ---------------------------------------------------------------------------

    def left(self) -> list[str]:
        """Return the jobs that have not ended, and should.

        A job that is delivered at most once may get lost with its delivery.
        """
        return [
            entry.name
            for entry in self.entries.values()
            if entry.is_promised and not entry.is_over(self._now) and entry.deed != "once"
        ]

    def check_orders(self) -> None:
        """Check that the jobs of each key have begun in their order."""
        for key, accepted in self.accepted_of_key.items():
            begun = [name for name in self.begun_of_key[key] if name in accepted]
            wanted = [name for name in accepted if name in begun]
            if begun != wanted:
                self.complain(f"the jobs of key {key} began as {begun}, not as {wanted}")

    def check_rate(self, count: int, seconds: float, burst: int) -> None:
        """Check that at most `burst` deliveries came at once, and `count` in so many seconds."""
        self._check_gaps(self.deliveries, Rate(count, seconds, burst), "the rate")

    def check_key_rate(self, rate: Rate) -> None:
        """Check the same for the jobs of each key."""
        for key, times in self.deliveries_of_key.items():
            self._check_gaps(times, rate, f"the rate of key {key}")

    def _check_gaps(self, times: Iterable[float], rate: Rate, what: str) -> None:
        gap, arrival, excess = rate.seconds / rate.count, 0.0, SERVER_TICK + self._time_excess
        for at in sorted(times):
            arrival = max(arrival, at) + gap
            if arrival > at + rate.burst * gap + excess and not self.has_lost:
                self.complain(f"the delivery at {at:.3f} exceeds {what}")
                return


def _without_node(job_id: str) -> str:
    """Return an id without its node: a client learns late that a flushed node has another id."""
    return job_id[11:]
