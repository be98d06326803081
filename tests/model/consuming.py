"""Rules that deliver jobs and settle them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule

from penstock import Job, Outcome, QueueClosed, WrongEpoch
from penstock.core.jobs.record import key_hash
from tests.model.draws import AMONG, DELAYS, ENDS, KEYS, PICKS, PROVISIONAL, call
from tests.model.jobs import ModelJob, Name
from tests.model.producing import Producing
from tests.model.waiting import TAGS

__all__ = ["Consuming"]


class Consuming(Producing):
    """Rules that reserve jobs, settle them, and extend their leases."""

    # -- delivering ------------------------------------------------------------------------

    @call(n=st.sampled_from([1, 1, 2, 3, 10, 200]), tag=TAGS)
    def reserve(self, n: int, tag: int) -> None:
        """Reserve jobs."""
        self.reserve_some(n, tag)

    def reserve_some(self, n: int, tag: int) -> None:
        """Reserve jobs from the model and the queue."""
        self.bench.dice.tag = tag
        provisional = tag in PROVISIONAL

        def model() -> list[ModelJob]:
            while True:
                taken, more = self.model.reserve(n, tag, provisional=provisional)
                if taken or not more:
                    return taken

        def unseen() -> list[ModelJob]:
            # leased, but the reply is lost
            return self.model.reserve(n, tag, provisional=provisional)[0]

        def queue() -> tuple[Sequence[Job], bool]:
            if provisional:
                return self.reserve_provisionally(n)
            try:
                return self.queue.reserve(n, block=0), False
            except QueueClosed:
                return [], True

        first = unseen if self.fault == "after" else model
        wanted, (got, is_over), _ = self.both(first, queue, model)
        self.received(wanted, got)
        assert is_over == (self.model.drained and not wanted)
        self.check_rearmed("reserve left something")

    def reserve_provisionally(self, n: int) -> tuple[Sequence[Job], bool]:
        """Reserve jobs as a worker does; return if the queue is drained."""
        self.client.connect()  # ids need the node's
        while True:
            taken = self.client.topology.executor.run(self.ops.reserve(n, provisional=True))
            if taken.deliveries or taken.next_ms != 0:
                return taken.deliveries, taken.is_over and not taken.deliveries

    # -- settling --------------------------------------------------------------------------

    def settle_with(
        self,
        picks: Iterable[tuple[int, str]],
        model: Callable[[list[Name]], Sequence[Any]],
        queue: Callable[[list[Any]], Sequence[Any]],
        fit: Sequence[str],
        gone: bool = False,
    ) -> list[Any]:
        """Name jobs in a call, and compare each outcome; return the effect of the
        (last) sending.
        """
        names, jobs, current = self.named(picks, fit)
        if not jobs:
            return []
        if not current:
            with pytest.raises(WrongEpoch):
                queue(jobs)
            return []
        plain, got, resent = self.both(lambda: list(model(names)), lambda: list(queue(jobs)))
        mine = Outcome.GONE if gone else Outcome.ENDED
        told = [Outcome.DONE if resent and outcome is mine else outcome for outcome in plain]
        assert got == told
        return plain

    @call(picks=PICKS, among=AMONG, window=ENDS)
    def ack(self, picks: list[tuple[int, str]], among: Sequence[str], window: int | None) -> None:
        """Finish jobs, perhaps with a window."""
        seconds = None if window is None else window / 1000
        self.settle_with(
            picks,
            lambda names: self.model.ack(names, window),
            lambda jobs: self.queue.ack(jobs, dedup_window=seconds),
            among,
            gone=True,
        )

    @call(picks=PICKS, n=st.sampled_from([1, 2, 10]), tag=TAGS)
    def settle(self, picks: list[tuple[int, str]], n: int, tag: int) -> None:
        """Finish jobs and reserve others."""
        names, jobs, current = self.named(picks)
        self.bench.dice.tag = tag
        if not current:
            with pytest.raises(WrongEpoch):
                self.queue.ack_and_reserve(jobs, n)
            return

        def script() -> Any:
            return self.model.settle(names, n, tag)[:2]

        def model() -> Any:
            outcomes, taken, more = self.model.settle(names, n, tag)
            while more and not taken:  # successors of the finished jobs
                taken, more = self.model.reserve(n, tag)
            return outcomes, taken

        first = script if self.fault == "after" else model
        (outcomes, wanted), (settled, got), resent = self.both(
            first, lambda: self.queue.ack_and_reserve(jobs, n), model
        )
        if resent:
            outcomes = [Outcome.DONE if o is Outcome.GONE else o for o in outcomes]
        assert list(settled) == outcomes
        self.received(wanted, got)
        self.check_rearmed("settle left something")

    @rule(
        pick=st.integers(0, 3),
        count=st.sampled_from([1, 1, 2, 3]),
        delay=st.sampled_from([0, 0, 50]),
        key=KEYS,
    )
    def hand_over(self, pick: int, count: int, delay: int, key: str) -> None:
        """Finish a job, and add those that follow it."""
        names, jobs, current = self.named([(pick, "receipt")])
        if not jobs or not current or not self.model.exists:
            return
        bodies = [self.body() for _ in range(count)]
        keys = self.keys_of(bodies, key)
        heads = [b"1;q=" + key_hash(keys[one]).encode() if one in keys else b"1" for one in bodies]
        records = [(delay, head + b"\n" + body) for head, body in zip(heads, bodies, strict=True)]
        self.fault = ""
        (outcomes, added), got, _ = self.both(
            lambda: self.model.hand_over(names[0], bodies, keys, delay),
            lambda: list(self.client.topology.executor.run(self.ops.hand_over(jobs, records))),
        )
        assert got == outcomes
        epoch = self.raw.hget(self.ops.keys["meta"], "epoch")
        for job in added:
            self.learn(self.ops.id_of(b"%d-%d" % job.number, epoch, "ffff"))
        if added and not delay and self.model.paused not in ("out", "all"):
            self.must_wake = "jobs were handed over"

    @call(
        picks=PICKS,
        among=AMONG,
        delay=st.one_of(st.none(), DELAYS),
        error=st.sampled_from(["", "no", "a\nb"]),
    )
    def nack(
        self, picks: list[tuple[int, str]], among: Sequence[str], delay: int | None, error: str
    ) -> None:
        """Report failures."""
        seconds = None if delay is None else delay / 1000
        done = self.settle_with(
            picks,
            lambda names: self.model.nack(names, delay, error),
            lambda jobs: self.queue.nack(jobs, delay=seconds, error=error),
            among,
        )
        self.take_over_drawn()
        if Outcome.DONE in done and delay == 0 and not self.model.paused:
            self.must_wake = "a job was nacked"

    @call(picks=PICKS, among=AMONG, delay=DELAYS)
    def release(self, picks: list[tuple[int, str]], among: Sequence[str], delay: int) -> None:
        """Release jobs."""
        done = self.settle_with(
            picks,
            lambda names: self.model.release(names, delay),
            lambda jobs: self.queue.release(jobs, delay=delay / 1000),
            among,
        )
        if Outcome.DONE in done and delay == 0 and not self.model.paused:
            self.must_wake = "a job was released"

    @call(picks=PICKS, among=AMONG, reason=st.sampled_from(["", "poison", "é" * 600]))
    def bury(self, picks: list[tuple[int, str]], among: Sequence[str], reason: str) -> None:
        """Bury jobs."""
        kept = reason.encode()[:1024].decode()
        self.settle_with(
            picks,
            lambda names: self.model.bury(names, kept),
            lambda jobs: self.queue.bury(jobs, reason),
            among,
        )

    @call(
        n=st.sampled_from([1, 1, 2, 3, 1000]),
        idle=st.sampled_from([0, 1, 2, 1_000, 3_000, 20_000]),
        tag=TAGS,
    )
    def recover(self, n: int, idle: int, tag: int) -> None:
        """Take over deliveries that are old enough."""
        self.recover_some(n, idle, tag)

    @rule(n=st.integers(1, 3), pick=st.integers(0, 3), early=st.sampled_from([0, 0, 1]), tag=TAGS)
    def recover_to_the_ms(self, n: int, pick: int, early: int, tag: int) -> None:
        """Use the age of one of them as bound, or 1 ms more."""
        self.set_model_clock()
        held = self.model.at("active")
        ages = sorted(max(0, self.model.now - (job.delivered or 0)) for job in held)
        if ages:
            self.fault = ""
            self.recover_some(n, ages[pick % len(ages)] + early, tag)

    def recover_some(self, n: int, idle: int, tag: int) -> None:
        """Recover from the model and the queue; a fault strikes the script that recovers."""
        self.bench.dice.tag = tag
        lost = self.fault == "after"
        wanted, got, _ = self.both(
            list if lost else (lambda: self.model.recover(n, idle, tag)),
            lambda: self.queue.recover(n, idle=idle / 1000),
            lambda: self.model.recover(n, idle, tag, lost=True),
            spared=1,
        )
        self.received(wanted, got)

    @call(picks=PICKS, lease=st.sampled_from([None, 1, 3_000, 80_000]), late=st.booleans())
    def extend(self, picks: list[tuple[int, str]], lease: int | None, late: bool) -> None:
        """Renew leases."""

        def model(names: list[Name]) -> list[Any]:
            found = self.model.extend(names, lease, late)
            return [x if isinstance(x, Outcome) else x / 1000 for x in found]

        names, jobs, current = self.named(picks)
        if not current:
            return
        seconds = None if lease is None else lease / 1000

        def extend() -> list[Any]:
            settled = self.queue.extend(jobs, seconds, late=late)
            both = zip(settled, settled.seconds_left, strict=True)
            return [outcome if left is None else left for outcome, left in both]

        wanted, got, _ = self.both(lambda: model(names), extend)
        assert got == wanted

    @rule(pick=st.integers(0, 3), after=st.sampled_from([0, 0, 1]))
    def extend_at_half(self, pick: int, after: int) -> None:
        """Extend at half of a ttl, which works, or 1 ms later, which does not."""
        self.set_model_clock()
        halves = [
            job.number[0] + job.ttl // 2 + after - self.model.now
            for job in self.model.at("active")
            if job.ttl
        ]
        ahead = [span for span in halves if span >= 0]
        if ahead:
            self.clock.set(self.clock.ms + ahead[pick % len(ahead)])
            self.extend(fault="", picks=[(0, "id"), (1, "id"), (2, "id")], lease=None, late=False)

    def take_over_drawn(self) -> None:
        """Check that random due times are within their bounds, and copy them to the model."""
        for job in self.model.jobs.values():
            if job.drawn is not None:
                number = b"%d-%d" % job.number
                due = int(self.raw.zscore(self.ops.keys["scheduled"], number) or 0)
                assert due in job.drawn
                job.at, job.drawn = due, None
