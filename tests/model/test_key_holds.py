"""Random calls around holds of keys: what is delivered, in which order, and what is left."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock import Penstock, Queue
from penstock.client._sync.queue import Job
from tests.support.backends import Backend
from tests.support.keyspace import Raw, advance
from tests.support.profiles import at_most

LIMITS: dict[str, dict[str, Any]] = {
    "none": {},
    "per_key": {"per_key": 2},
    "share": {"share": 1},
    "share and per_key": {"share": 1, "per_key": 2},
    "ordered": {"ordered": True},
    "key_rate": {"key_rate": "1/s", "key_burst": 2},
    "max_active": {"max_active": 3},
}
MOST_OF_KEY = {"per_key": 2, "share and per_key": 2, "ordered": 1}
LEASE, HOLD_MARGIN = 100, 5
"""Seconds. An example takes less than the margin, by which its own clock is behind."""
KEYS = st.sampled_from("abc")
ACTS = st.one_of(
    st.tuples(st.just("add"), st.lists(KEYS, min_size=1, max_size=4)),
    st.tuples(st.just("add urgently"), st.lists(KEYS, min_size=1, max_size=2)),
    st.tuples(st.just("take"), st.integers(1, 4)),
    st.tuples(st.sampled_from(["ack", "nack", "put back"]), st.integers(0, 3)),
    st.tuples(st.just("hold"), st.tuples(KEYS, st.sampled_from([20, 50, 90]))),
    st.tuples(st.just("end"), KEYS),
    st.tuples(st.just("pass"), st.sampled_from([10, 30, 110])),
    st.tuples(st.just("limit"), st.sampled_from(sorted(LIMITS))),
    st.tuples(st.just("sweep"), st.none()),
)


class Story:
    """A queue, and what has happened to it.

    Args:
        raw: its server.
        queue: the queue.
        limit: the name of its limit.

    Attributes:
        now: seconds that have passed.
        ends: when the hold of each key ends, at the earliest.
        hands: the deliveries that last, and when they began.
    """

    def __init__(self, raw: Raw, queue: Queue, limit: str) -> None:
        self.raw, self.queue, self.limit = raw, queue, limit
        self.now = self.count = 0
        self.ends: dict[str, int] = {}
        self.hands: list[tuple[Job, int]] = []
        self.open: dict[str, list[str]] = defaultdict(list)
        self.has_order = limit == "ordered"
        self.was_loose = False
        queue.configure(lease=LEASE, max_attempts=0, max_crashes=0, **LIMITS[limit])

    def run(self, act: str, what: Any) -> None:
        """Do one thing, and check what comes of it."""
        if act in ("add", "add urgently"):
            self._add(what, 1 if act == "add urgently" and not self.has_order else 0)
        elif act == "take":
            self.take(what)
        elif act in ("ack", "nack", "put back"):
            self._settle(act, what)
        elif act == "hold":
            key, span = what
            assert self.queue.hold(span, key=key)
            self.ends[key] = max(self.ends.get(key, 0), self.now + span)
        elif act == "end":
            self.queue.hold(0, key=what)
            self.ends.pop(what, None)
        elif act == "pass":
            self._pass(what)
        elif act == "limit" and not self.has_order and what != "ordered":
            dropped = dict.fromkeys(["per_key", "share", "key_rate", "key_burst", "max_active"])
            self.queue.configure(**{**dropped, **LIMITS[what]})
            self.limit, self.was_loose = what, True
        elif act == "sweep":
            self.queue.sweep()

    def _add(self, keys: list[str], priority: int) -> None:
        for key in keys:
            self.count += 1
            body = f"{key}{self.count}"
            self.queue.enqueue(body, key=key, priority=priority)
            self.open[key].append(body)

    def take(self, n: int) -> int:
        """Reserve jobs; return how many came."""
        jobs = self.queue.reserve(n, block=0)
        for job in jobs:
            key = job.body[0]
            assert job.body in self.open[key]
            assert self.now + HOLD_MARGIN > self.ends.get(key, 0), f"{job.body} is held"
            if self.has_order:
                assert job.body == self.open[key][0]
            self.hands.append((job, self.now))
            held = [one for one, _ in self.hands if one.body[0] == key]
            assert self.was_loose or len(held) <= MOST_OF_KEY.get(self.limit, 100)
        return len(jobs)

    def _settle(self, act: str, at: int) -> None:
        if at < len(self.hands):
            job, _ = self.hands.pop(at)
            if act == "ack":
                self.finish(job)
            elif act == "nack":
                job.nack(delay=10)
            else:
                job.release()

    def finish(self, job: Job) -> None:
        """Acknowledge a job whose lease lasts."""
        job.ack()
        self.open[job.body[0]].remove(job.body)

    def _pass(self, seconds: int) -> None:
        advance(self.raw, self.queue.ops, seconds)
        self.now += seconds
        self.hands = [(job, began) for job, began in self.hands if self.now - began < LEASE]

    def end(self) -> None:
        """Let the holds end, and finish all jobs; nothing is left."""
        for _ in range(40):
            for job, _ in self.hands:
                self.finish(job)
            self.hands = []
            self._pass(110)
            while self.take(4):
                for job, _ in self.hands:
                    self.finish(job)
                self.hands = []
            if not any(self.open.values()):
                break
        assert not any(self.open.values()), self.open
        for _ in range(3):
            self._pass(110)
            self.queue.sweep()
        kinds = ("parked", "tickets", "turns", "holds", "paces", "active", "scheduled")
        assert not self.raw.exists(*(self.queue.ops.keys[kind] for kind in kinds))


@settings(at_most(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(limit=st.sampled_from(sorted(LIMITS)), acts=st.lists(ACTS, max_size=25))
def test_holds_of_keys_hold(backend: Backend, limit: str, acts: list[tuple[str, Any]]) -> None:
    """Nothing of a held key is delivered; order and limits stay; all jobs come, and no set is left.

    Its holds end by themselves or by hand, beside retries, lost deliveries and changed limits.
    """
    raw = backend.sync_client()
    raw.flushdb()
    with Penstock(raw, owner="tester") as ps:
        story = Story(raw, ps.queue("q"), limit)
        for act, what in acts:
            story.run(act, what)
        story.end()
