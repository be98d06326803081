"""Batches against a plain model: counters, states and callbacks, whatever happens to the jobs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from penstock import BatchClosed, Dedup, Job, Outcome, Penstock, Queue, parse_id
from tests.model.clock import TestClock, use_test_clock
from tests.model.test_model import profile
from tests.support.backends import Backend
from tests.support.keyspace import Raw, check_invariant

START = 1_700_000_000_000
HOUR_MS = 3_600_000
CALLBACK = b"callback"
STATES = ("ready", "scheduled", "parked", "active", "dead")
OPTIONS: list[dict[str, Any]] = [
    {}, {}, {"ttl": 2}, {"lease": 0, "ttl": 3}, {"delay": 1}, {"key": "a"}, {"priority": 3},
    {"dedup": Dedup("x")}, {"dedup": Dedup("x", on_duplicate="requeue")},
]  # fmt: skip
"""Options of jobs."""


def number(job_id: str) -> bytes:
    """Return the number in an id."""
    return parse_id(job_id).number


@dataclass
class Group:
    """A batch of the model."""

    id: str
    on: Any
    queue: Queue
    deadline: int
    state: str = "open"
    members: set[bytes] = field(default_factory=set)
    done: set[bytes] = field(default_factory=set)
    may_run: bool = False  # its callback was due, promoted or redriven
    is_ended: bool = False  # its callback is gone


class BatchesMachine(RuleBasedStateMachine):
    """Random calls on a queue with batches."""

    raw: Raw

    def __init__(self) -> None:
        super().__init__()
        self.raw.flushdb()
        self.clock = TestClock(self.raw, START)
        self.client = Penstock(self.raw)
        self.queue = self.client.queue("q")
        self.queue.configure(
            lease=1, max_attempts=3, max_crashes=2, backoff_base=0.1, dead_max=3, per_key=1
        )
        self.groups: list[Group] = []
        self.held: list[Job] = []
        self.dead: set[bytes] = set()

    def teardown(self) -> None:
        """Close the client."""
        self.client.close()

    # -- producers -------------------------------------------------------------------------

    @initialize(
        ons=st.lists(st.sampled_from(["success", "finished"]), min_size=1, max_size=2),
        many=st.lists(
            st.tuples(st.integers(1, 3), st.sampled_from(OPTIONS)), min_size=1, max_size=4
        ),
        closes=st.booleans(),
        n=st.integers(1, 6),
    )
    def begin(self, ons: Any, many: Any, closes: bool, n: int) -> None:
        """Begin with some batches with jobs, some of them delivered."""
        for at, on in enumerate(ons):
            self.open(on)
            for count, options in many:
                self.join(at, count, options)
            if closes:
                self.close(at)
            self.reserve(n)

    @rule(on=st.sampled_from(["success", "finished"]))
    def open(self, on: Any) -> None:
        """Open a batch."""
        batch = self.queue.batch(then=CALLBACK, on=on).__enter__()
        self.groups.append(Group(batch.id, on, batch.queue, self.clock.ms + HOUR_MS))

    @rule(pick=st.integers(0, 3), count=st.integers(1, 4), options=st.sampled_from(OPTIONS))
    def join(self, pick: int, count: int, options: dict[str, Any]) -> None:
        """Add jobs to a batch, which refuses them if it is not open; duplicates do not join."""
        if not self.groups:
            return
        group = self.groups[pick % len(self.groups)]
        if "dedup" in options:
            count = 1
        try:
            added = group.queue.enqueue_many([b"member"] * count, **options)
        except BatchClosed:
            assert group.state != "open" or group.is_ended
            return
        assert group.state == "open"
        assert not group.is_ended
        group.deadline = self.clock.ms + HOUR_MS
        members = {number(one.id) for one in added if one.id and not one.duplicate}
        if not members:
            group.deadline = int(self.raw.zscore(group.queue.ops.keys["expiry"], number(group.id)))
        group.members |= members

    @rule(options=st.sampled_from(OPTIONS))
    def enqueue(self, options: dict[str, Any]) -> None:
        """Add a job to no batch."""
        self.queue.enqueue(b"other", **options)

    @rule(pick=st.integers(0, 3))
    def close(self, pick: int) -> None:
        """Close a batch; again changes nothing."""
        if self.groups:
            group = self.groups[pick % len(self.groups)]
            status = self.queue.batches.close(group.id)
            assert (status is None) == group.is_ended
            if group.state == "open":
                group.state = "waiting"

    # -- consumers -------------------------------------------------------------------------

    @rule(n=st.integers(1, 6))
    def reserve(self, n: int) -> None:
        """Take jobs; a callback only if it may run."""
        jobs = self.queue.reserve(n, block=0)
        self.observe()
        for job in jobs:
            for group in self.groups:
                assert job.id != group.id or group.may_run, group
        self.held += jobs

    @rule(
        pick=st.integers(0, 9),
        how=st.sampled_from(["ack", "ack", "settle", "hand over", "nack", "release", "bury"]),
    )
    def report(self, pick: int, how: str) -> None:
        """Report about a delivery, perhaps once more or too late."""
        if not self.held:
            return
        job = self.held[pick % len(self.held)]
        before = self.present()
        if how == "hand over":
            call = self.queue.ops.hand_over([job], [(0, b"1\nnext")])
            [outcome] = self.client.topology.executor.run(call)
        elif how == "settle":
            [outcome], jobs = self.queue.ack_and_reserve([job], 1)
            self.held += jobs
        else:
            [outcome] = getattr(self.queue, how)([job])
        if outcome is not Outcome.DONE or how not in ("ack", "settle", "hand over"):
            return
        for group in self.groups:
            if number(job.id) in group.members:
                group.done.add(number(job.id))
                if how == "hand over":
                    group.members |= self.present() - before
                    if group.state == "open":
                        group.deadline = self.clock.ms + HOUR_MS

    # -- ends ------------------------------------------------------------------------------

    @rule(
        pick=st.integers(0, 30),
        how=st.sampled_from(["ack", "bury", "cancel", "delete", "withdraw", "promote", "postpone"]),
    )
    def end(self, pick: int, how: str) -> None:
        """Name a member by id."""
        members = sorted(one for group in self.groups for one in group.members)
        if members:
            self.name(members[pick % len(members)], how)

    @rule(pick=st.integers(0, 3), how=st.sampled_from(["promote", "promote", "cancel", "bury"]))
    def end_callback(self, pick: int, how: str) -> None:
        """Name a callback by id."""
        if self.groups:
            group = self.groups[pick % len(self.groups)]
            entry = self.raw.hget(self.queue.ops.keys["batches"], number(group.id)) or b""
            waits = entry[-2:] in (b" 0", b" 1")  # also if no call has met its deadline yet
            done = self.name(number(group.id), how)
            if done and waits and how in ("promote", "bury"):
                group.state, group.may_run = "called", True

    def name(self, member: bytes, how: str) -> bool:
        """Make a call about a job."""
        epoch = self.raw.hget(self.queue.ops.keys["meta"], "epoch")
        job_id = self.queue.ops.id_of(member, epoch, "ffff")
        if how == "withdraw":
            [outcome] = self.queue.delete([job_id], if_undelivered=True)
        else:
            [outcome] = getattr(self.queue, how)([job_id])
        if how == "ack" and outcome is Outcome.DONE:
            for group in self.groups:
                if member in group.members:
                    group.done.add(member)
        return outcome is Outcome.DONE

    @rule(limit=st.sampled_from([None, 1]))
    def redrive(self, limit: int | None) -> None:
        """Bring dead letters back."""
        self.queue.redrive(limit=limit)
        for group in self.groups:  # a callback, too
            is_back = number(group.id) in self.dead - self.letters()
            group.may_run |= is_back and number(group.id) in self.present()

    @rule(state=st.sampled_from(["ready", "scheduled", "dependent", "parked", "active", "dead"]))
    def purge(self, state: Any) -> None:
        """Remove the jobs of a state."""
        self.queue.purge(state)

    @rule(evict=st.sampled_from([0, 0, 1]))
    def sweep(self, evict: int) -> None:
        """Remove what is over."""
        self.queue.sweep(evict=evict)

    @rule(span=st.sampled_from([1, 150, 1001, 1001, 2500, HOUR_MS]))
    def time_passes(self, span: int) -> None:
        """Advance the clock."""
        self.clock.set(self.clock.ms + span)

    # -- comparisons -----------------------------------------------------------------------

    def present(self) -> set[bytes]:
        """Return the jobs on the server."""
        ready = {name for name, _ in self.raw.xrange(self.queue.ops.keys["ready"])}
        held = self.raw.hkeys(self.queue.ops.keys["held"])
        return ready | {name for name in held if not name.startswith(b"=")}

    def letters(self) -> set[bytes]:
        """Return the dead letters."""
        return set(self.raw.zrange(self.queue.ops.keys["dead"], 0, -1))

    def observe(self) -> None:
        """Follow what the queue has done with members by itself, and decide about the callbacks."""
        present, dead = self.present(), self.letters()
        for group in self.groups:
            group.is_ended |= number(group.id) not in present
            if group.state == "open" and self.clock.ms >= group.deadline:
                group.state = "abandoned"
            _, failed, died, left = self.counts(group, present, dead)
            if group.state != "waiting" or left:
                continue
            if group.on == "finished" or not failed + died:
                group.state, group.may_run = "called", True
            elif not died:
                group.state = "failed"
        self.dead = dead

    def counts(self, group: Group, present: set[bytes], dead: set[bytes]) -> tuple[int, ...]:
        """Return how many members are done, failed, dead, and left."""
        kinds = Counter(
            "done"
            if one in group.done
            else "failed"
            if one not in present
            else "dead"
            if one in dead
            else "left"
            for one in group.members
        )
        return tuple(kinds[kind] for kind in ("done", "failed", "dead", "left"))

    @invariant()
    def batches_agree(self) -> None:
        """Compare state and counters of each batch."""
        self.observe()
        check_invariant(self.raw)
        present, dead = self.present(), self.letters()
        for group in self.groups:
            status = self.queue.batches.get(group.id)
            assert (status is None) == group.is_ended, group
            if status is not None:
                done, failed, died, left = self.counts(group, present, dead)
                assert (status.state, status.total) == (group.state, len(group.members)), group
                found = (status.done, status.failed, status.dead, status.open)
                assert found == (done, failed, died, left), group
        listed = {status.id for status in self.queue.batches.list()}
        assert listed == {group.id for group in self.groups if not group.is_ended}


def test_batches_agree_with_their_model(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counters are exact and a callback runs only when it may, however members end."""
    use_test_clock(monkeypatch)

    class Machine(BatchesMachine):
        raw = backend.sync_client()

    run_state_machine_as_test(Machine, settings=profile(15, steps=25))
