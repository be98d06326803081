"""The rate of a queue is that of a plain GCRA, at every millisecond."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import fakeredis
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.keys import QueueKeys
from tests.protocol.clock import T0, run
from tests.support.profiles import at_most

EPOCH = "e0e0e0e0"
RATES = st.tuples(
    st.sampled_from([1, 2, 3, 7, 100, 999_983]),  # jobs
    st.sampled_from([1, 10, 999, 1000, 60_000, 86_400_000]),  # in ms
    st.sampled_from([1, 2, 5, 20]),  # burst
    st.sampled_from([1, 1, 1, 3, 16]),  # partitions
)
CALLS = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 3), st.integers(0, 2000), st.sampled_from([0, 10**5, 10**9])),
        st.sampled_from([1, 1, 2, 10, 30]),
    ),
    min_size=1,
    max_size=12,
)


@dataclass
class Gcra:
    """A plain GCRA.

    Attributes:
        interval: ms between two jobs.
        burst: jobs at once.
        tat: the theoretical arrival time of the next job.
    """

    interval: Fraction
    burst: int
    tat: Fraction = Fraction(0)

    def may(self, now: int) -> bool:
        """Tell if a job may be delivered now."""
        return max(self.tat, Fraction(now)) + self.interval <= now + self.burst * self.interval

    def take(self, now: int, n: int) -> int:
        """Deliver up to n jobs, and return how many."""
        count = 0
        while count < n and self.may(now):
            self.tat = max(self.tat, Fraction(now)) + self.interval
            count += 1
        return count


def _fill(raw: fakeredis.FakeRedis, keys: QueueKeys, call: int) -> None:
    run(raw, keys, "enqueue", [call, EPOCH, 0, "", 0, "", *["1\nx"] * 400])


@at_most(60)
@given(rate=RATES, calls=CALLS)
def test_deliveries_are_those_of_a_gcra(
    rate: tuple[int, int, int, int], calls: list[tuple[int, int]]
) -> None:
    """Each call delivers as many jobs as the model, and `next` is the first ms of another one."""
    count, period, burst, parts = rate
    raw, keys = fakeredis.FakeRedis(server=fakeredis.FakeServer(), protocol=2), QueueKeys("q")
    _fill(raw, keys, 1)
    text = f"{count}/{period}" + (f"/{parts}" if parts > 1 else "")
    run(raw, keys, "configure", [2, "", "rate", text, "burst", burst])
    model = Gcra(Fraction(period * parts, count), max(1, burst // parts))
    now, delivered = T0, list[int]()
    for place, (span, n) in enumerate(calls):
        now += span
        reply = run(raw, keys, "reserve", [3 + place, n, 0, "eve", 0, ""], now_ms=now)
        taken = (len(reply) - 6) // 3
        assert taken == model.take(now, n)
        delivered += [now] * taken
        held = not model.may(now)
        assert (reply[2] > 0) == held
        if held:
            assert model.may(now + reply[2])
            assert not model.may(now + reply[2] - 1)
    for first, start in enumerate(delivered):
        for last in range(first, len(delivered)):
            allowed = model.burst + (delivered[last] - start) / model.interval
            assert last - first + 1 <= allowed


@at_most(20)
@given(
    jumps=st.lists(st.sampled_from([-40 * 86_400_000, -5000, 700, 10**10]), min_size=1, max_size=6)
)
def test_a_clock_that_jumps_holds_jobs_back_no_longer_than_a_burst(jumps: list[int]) -> None:
    """Whatever the clock did, the next job is at most a burst of intervals away."""
    raw, keys = fakeredis.FakeRedis(server=fakeredis.FakeServer(), protocol=2), QueueKeys("q")
    _fill(raw, keys, 1)
    run(raw, keys, "configure", [2, "", "rate", "10/1000", "burst", 5])
    now = T0
    for place, jump in enumerate(jumps):
        now += jump
        reply = run(raw, keys, "reserve", [3 + place, 9, 0, "eve", 0, ""], now_ms=now)
        assert len(reply) - 6 <= 3 * 5
        assert 0 < reply[2] <= 5 * 100
    reply = run(raw, keys, "reserve", [99, 9, 0, "eve", 0, ""], now_ms=now + 2 * 5 * 100)
    assert len(reply) == 6 + 3 * 5  # after a step back the queue's time is a tenth slower
