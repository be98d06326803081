"""Leases and sweeps that a queue refuses, without a server."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from penstock.client._sync.transport.driver import Driver
from penstock.core.calls.operations import QueueOps
from penstock.core.flows import SweepDue
from penstock.core.jobs.job import Delivery, QueueIdentity, Reservation, set_term, term_of
from penstock.core.jobs.outcomes import Outcome
from penstock.errors import QueueDamaged, WrongEpoch
from penstock.wire.keys import QueueKeys
from penstock.worker import heartbeat_process
from penstock.worker._sync import heartbeat
from penstock.worker.terms import Term

SCRIPT_ERROR = ResponseError("user_script:7: attempt to compare number with nil")
DAMAGED = QueueDamaged("key 'dead' has the wrong type")


class LeaseServer:
    """Renews leases by a virtual clock, except those of damaged jobs.

    A lease that has ended before its renewal is in `ended`.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.damaged = set[Delivery]()
        self.error: Exception = SCRIPT_ERROR
        self.renewals = list[Delivery]()
        self.refusals = 0
        self.cancelled = set[Delivery]()
        self.outcomes = dict[Delivery, Outcome]()
        self.beat_error: Exception | None = None
        self.beat_seconds = 0.0
        self._ops = dict[str, QueueOps]()
        for module in (heartbeat, heartbeat_process):
            monkeypatch.setattr(module, "monotonic", lambda: self.now)
        monkeypatch.setattr(heartbeat, "renew_leases", self._renew)
        monkeypatch.setattr(heartbeat, "send_progress", self._beat)

    def _beat(self, _node: Any, jobs: Sequence[Delivery]) -> list[Any]:
        self.now += self.beat_seconds
        if self.beat_error is not None:
            raise self.beat_error
        return [
            Outcome.CANCELLED if job in self.cancelled else self.outcomes.get(job, Outcome.DONE)
            for job in jobs
        ]

    def _renew(self, _node: Any, lease: float, jobs: Sequence[Delivery]) -> Sequence[Delivery]:
        self.now += 0.001
        if self.damaged.intersection(jobs):
            self.refusals += 1
            raise self.error
        self.renewals += jobs
        gone = [job for job in jobs if term_of(job).until <= self.now]
        for job in jobs:
            set_term(job, Term(self.now + lease, lease))
        return gone

    def deliver(self, name: str, count: int, lease: float) -> list[Delivery]:
        """Return jobs of the queue of this name, with a lease from now on."""
        ops = self._ops.setdefault(name, QueueOps(QueueKeys(name, "penstock"), "me", ()))
        place = QueueIdentity(name, "deadbeef", 0xCAFEBABE, "01020304")
        reservation = Reservation(None, place, "me", tag=0x0AB, now=0, lease_ms=30_000)
        reservation.ops = ops
        jobs = [
            Delivery(reservation, b"1700000000000-%010d" % number, b"", b"1\n")
            for number in range(count)
        ]
        for job in jobs:
            set_term(job, Term(self.now + lease, lease))
        return jobs


class Beats:
    """The heartbeat of a worker that holds jobs, with a clock that its pauses move."""

    def __init__(
        self, server: LeaseServer, jobs: Sequence[Delivery], registration: Any = None
    ) -> None:
        self.server = server
        self.lost = list[Delivery]()
        self.lost_at = 0.0
        self.cancelled = list[Delivery]()
        runners = SimpleNamespace(
            lose=self._lose, cancel=self.cancelled.extend, warn_of_block=lambda _: None
        )
        state: Any = SimpleNamespace(
            held=dict.fromkeys(jobs, server.now),
            helper=None,
            held_file=None,
            suspects=SimpleNamespace(unbegun=()),
            dispatcher=SimpleNamespace(runners=runners),
            log=logging.getLogger("penstock"),
            polls=(),
            telling=(),
        )
        self.beat = heartbeat.Heartbeat(
            state, cast(Any, None), name="leases", registration=registration
        )
        self.beat._executors[None] = cast(Any, SimpleNamespace(close=lambda: None))

    def _lose(self, jobs: Sequence[Delivery]) -> None:
        self.lost += jobs
        self.lost_at = self.server.now
        for job in jobs:
            job.lost = True

    def run(self, seconds: float) -> None:
        """Beat until this time has passed."""
        end = self.server.now + seconds
        while self.server.now < end:
            self.server.now += self.beat.beat()


def jobs_in_order(bad: Sequence[Delivery], good: Sequence[Delivery], order: str) -> list[Delivery]:
    """Return damaged and healthy jobs in this order."""
    if order == "mixed":
        step = len(good) // len(bad)
        parts = [[job, *good[n * step : (n + 1) * step]] for n, job in enumerate(bad)]
        return [job for part in parts for job in part] + list(good[len(bad) * step :])
    return [*bad, *good] if order == "bad first" else [*good, *bad]


def test_a_lease_that_is_refused_does_not_end_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a job makes the server refuse the renewal of many, those of the others are renewed."""
    server = LeaseServer(monkeypatch)
    jobs = server.deliver("q", 300, 30.0)
    server.damaged = {jobs[123]}
    set_term(jobs[5], Term(server.now, 30.0))
    renewal = heartbeat.renew_each(cast(Any, None), 30.0, jobs)
    assert set(renewal.answered) == set(server.renewals) == set(jobs) - server.damaged
    assert (renewal.refused, renewal.lost, renewal.left) == ([jobs[123]], [jobs[5]], [])
    assert renewal.why == f"ResponseError: {SCRIPT_ERROR}"


def test_a_refused_lease_does_not_hold_up_other_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs with a shorter lease in the same queue are renewed while the first one is refused."""
    server = LeaseServer(monkeypatch)
    bad, good = server.deliver("q", 1, 60.0), server.deliver("q", 2, 6.0)
    server.damaged = set(bad)
    beats = Beats(server, [*bad, *good])
    beats.run(100.0)
    assert beats.lost == bad


@pytest.mark.parametrize("order", ["bad first", "good first", "mixed"])
@pytest.mark.parametrize("count, healthy", [(1, 2), (20, 1), (50, 950), (100, 100)])
def test_healthy_jobs_beside_many_damaged_ones(
    monkeypatch: pytest.MonkeyPatch, order: str, count: int, healthy: int
) -> None:
    """However many leases are refused, those of the other jobs are renewed in time."""
    server = LeaseServer(monkeypatch)
    bad, good = server.deliver("q", count, 6.0), server.deliver("q", healthy, 6.0)
    server.damaged = set(bad)
    beats = Beats(server, jobs_in_order(bad, good, order))
    beats.run(30.0)
    assert set(beats.lost) == server.damaged


def test_a_queue_that_refuses_all_leases_costs_few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """One call follows another at growing intervals, and all leases are renewed after a repair."""
    server = LeaseServer(monkeypatch)
    jobs = server.deliver("q", 1000, 60.0)
    server.damaged, server.error = set(jobs), DAMAGED
    beats = Beats(server, jobs)
    beats.run(50.0)
    assert 5 < server.refusals < 20
    server.damaged.clear()
    beats.run(5.0)
    assert len(server.renewals) == 1000
    assert not beats.lost


def test_jobs_with_refused_leases_are_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The heartbeat learns of their cancels as soon as of others."""
    server = LeaseServer(monkeypatch)
    jobs = server.deliver("q", 1, 60.0)
    server.damaged = set(jobs)
    beats = Beats(server, jobs)
    beats.run(30.0)
    assert server.refusals > 3, "the pause between two renewals is not long yet"
    server.cancelled = set(jobs)
    beats.run(1.0)
    assert beats.cancelled[:1] == jobs


@pytest.mark.parametrize("outcome", [Outcome.GONE, Outcome.STALE, Outcome.REFUSED, Outcome.ENDED])
def test_a_lost_job_is_noticed_before_its_renewal(
    monkeypatch: pytest.MonkeyPatch, outcome: Outcome
) -> None:
    """It was deleted, or another worker has it: two looks say so, long before a third of a lease.

    One look may come between a report and its reply: that job is not lost.
    """
    server = LeaseServer(monkeypatch)
    gone, reported, once, kept = server.deliver("q", 4, 600.0)
    set_term(once, Term(math.inf, 0.0))
    beats = Beats(server, [gone, reported, once, kept])
    beats.run(1.0)
    server.outcomes = dict.fromkeys([gone, reported, once], outcome)
    beats.run(0.5)
    del server.outcomes[reported]
    beats.run(2.0)
    assert beats.lost == [gone]


def test_jobs_of_a_queue_that_was_cleared_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look that finds another epoch tells that all are lost; those at most once go on."""
    server = LeaseServer(monkeypatch)
    jobs = server.deliver("q", 3, 600.0)
    set_term(jobs[2], Term(math.inf, 0.0))
    beats = Beats(server, jobs)
    beats.run(1.0)
    server.beat_error = WrongEpoch("id", "q", "of another epoch")
    beats.run(1.0)
    assert beats.lost == jobs[:2]


def test_a_lease_that_ends_during_a_call_is_noticed_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The heartbeat looks at the leases before each call, as a silent server delays each one."""
    server = LeaseServer(monkeypatch)
    call_seconds = 8.0

    class SlowRegistration:
        at = 0.0

        def renew(self, _: Any) -> None:
            server.now += call_seconds

    jobs = [*server.deliver("one", 1, 3.0), *server.deliver("two", 1, 600.0)]
    beats = Beats(server, jobs, SlowRegistration())
    server.now += 0.5
    server.beat_seconds, server.beat_error = call_seconds, RedisTimeoutError("no reply")
    ended = term_of(jobs[0]).until
    beats.run(1.0)
    assert beats.lost == jobs[:1]
    assert beats.lost_at - ended < call_seconds


class Line:
    """The helper's end of the line to a worker that ends after one wait."""

    unsent = b""
    is_broken = True

    def __init__(self) -> None:
        self.sent = list[list[Any]]()
        self.waits = list[float]()

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)

    def receive(self) -> list[Any]:
        return []

    def flush(self) -> None:
        pass

    def send(self, message: list[Any]) -> None:
        self.sent += message


def test_the_helper_renews_the_leases_of_the_other_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue that refuses a renewal is left alone for a moment; the others are not."""
    server, line = LeaseServer(monkeypatch), Line()
    server.error = DAMAGED
    bad, good = server.deliver("bad", 1, 30.0), server.deliver("good", 1, 30.0)
    server.damaged = set(bad)
    helper = heartbeat_process._Helper(cast(Any, line))
    helper._executor = cast(Any, object())
    helper._held = dict(enumerate([*bad, *good]))
    server.now += 8.0  # a quarter of the lease
    helper._beat()
    helper._beat()
    assert (server.refusals, server.renewals) == (1, good)
    assert [key for key, *_ in line.sent] == [1]
    assert helper._next == 0.0


def test_the_helper_tries_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a refusal it does not wait for the next renewal of another job."""
    server, line = LeaseServer(monkeypatch), Line()
    jobs = server.deliver("q", 1, 30.0)
    server.damaged = set(jobs)
    helper = heartbeat_process._Helper(cast(Any, line))
    helper._executor = cast(Any, object())
    helper._held = dict(enumerate(jobs))
    server.now += 8.0  # a quarter of the lease
    helper._beat()
    assert server.refusals == 1
    helper.run()
    assert max(line.waits) <= 0.25
    server.damaged.clear()
    server.now += max(line.waits) + 0.001
    helper._beat()
    assert server.renewals == jobs


def test_a_queue_that_can_not_be_swept_does_not_stop_the_others() -> None:
    """A worker sweeps its other queues."""
    swept: list[str] = []

    def run(call: Any) -> Any:
        swept.append(call.ops.name)
        if call.ops.name == "bad":
            raise DAMAGED
        return SimpleNamespace(expired=0, trimmed=0, more=0, removed=b"")

    driver = Driver(cast(Any, SimpleNamespace(run=run)), "penstock")
    turns = SimpleNamespace(is_due=lambda *_: True, listed=lambda _: 0)
    driver._turns = cast(Any, turns)
    queues = [QueueOps(QueueKeys(name, "penstock"), "me", ()) for name in ("bad", "good")]
    driver.answer(SweepDue(tuple(queues)))
    assert swept == ["bad", "good"]
