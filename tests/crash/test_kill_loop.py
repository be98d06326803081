"""Producers and consumers killed, frozen and disconnected at random for a while."""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis

from penstock import Penstock, Queue
from penstock.embedded import EmbeddedServer
from tests.crash.tasks import QUEUE
from tests.support.keyspace import advance, check_invariant
from tests.support.workers import Nursery, Slot, whole_lines

SECONDS = 12.0
PRODUCERS = 2
CONSUMERS = 3
LEASE = 0.6


class Story:
    """The records of the clients, and the final content of the queue."""

    def __init__(self, log: Path) -> None:
        self.told: dict[str, Counter[str]] = defaultdict(Counter)
        self.ids: dict[str, set[str]] = defaultdict(set)
        self.latest: Counter[str] = Counter()
        self.acked: dict[str, int] = {}
        for line in whole_lines(log.read_bytes()):
            self._read(*line.split(" "))

    def _read(self, event: str, *words: str) -> None:
        if event in ("attempted", "accepted", "acking"):
            self.told[event].update(words)
        elif event == "got":
            body, job_id, deliveries = words
            self.delivered(body, job_id, int(deliveries))
        else:
            body, deliveries = words
            self.told["acked"][body] += 1
            self.acked[body] = int(deliveries)

    def delivered(self, body: str, job_id: str, deliveries: int) -> None:
        """Record the n-th delivery of a job."""
        self.told["got"][body] += 1
        self.ids[body].add(job_id)
        self.latest[body] = max(self.latest[body], deliveries)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The file to which the clients write."""
    path = tmp_path / "log"
    path.touch()
    return path


@pytest.fixture
def durable(make_server: Callable[..., EmbeddedServer]) -> EmbeddedServer:
    """A server that has every answered write on disk."""
    return make_server(tcp=True, appendonly=True, args=("--appendfsync", "always"))


@pytest.fixture
def queue(durable: EmbeddedServer) -> Iterator[Queue]:
    """A bounded queue with short leases, in which no job is buried."""
    with Penstock(durable.url, retry_for=10) as client:
        made = client.queue(QUEUE)
        made.configure(
            lease=LEASE,
            max_length=3_000,
            max_crashes=1_000_000,
            max_attempts=1_000_000,
            max_releases=1_000_000,
        )
        yield made


def live_and_die(server: EmbeddedServer, log: Path, *, restarts: bool) -> Counter[str]:
    """Run clients and kill them; return how often each fault occurred."""
    done: Counter[str] = Counter()
    dice = random.Random(7)
    with ExitStack() as stack:
        homes = [
            stack.enter_context(Nursery("tests.crash.tasks")) for _ in range(PRODUCERS + CONSUMERS)
        ]
        places = {"url": server.url, "log": str(log)}
        producers = [
            Slot(home, "produce", name=f"p{i}", **places)
            for i, home in enumerate(homes[:PRODUCERS])
        ]
        consumers = [Slot(home, "consume", **places) for home in homes[PRODUCERS:]]
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            time.sleep(dice.uniform(0.0, 0.1))  # the work to be interrupted
            chance = dice.random()
            if restarts and chance < 0.06:
                server.kill()
                server.restart()
                done["restarts"] += 1
            elif chance < 0.4:
                dice.choice(consumers).freeze()
                done["freezes"] += 1
            else:
                dice.choice(producers + consumers).renew()
                done["kills"] += 1
        for slot in producers + consumers:
            slot.kill()
    return done


def drain(queue: Queue, raw: redis.Redis, story: Story) -> Counter[str]:
    """Reserve and acknowledge all jobs, and return the bodies."""
    drained: Counter[str] = Counter()
    while True:
        advance(raw, queue.ops, 10)
        if not (jobs := queue.reserve(1000, block=0)):
            break
        for job in jobs:
            body = job.body.decode()
            drained[body] += 1
            story.delivered(body, job.id, job.deliveries)
        assert queue.ack(jobs)
    stats = queue.stats()
    assert (stats.ready, stats.scheduled, stats.active, stats.dead, stats.unswept) == (0,) * 5
    return drained


@pytest.mark.slow
@pytest.mark.parametrize("restarts", [False, True], ids=["clients", "clients-and-server"])
def test_nothing_is_lost(restarts: bool, durable: EmbeddedServer, queue: Queue, log: Path) -> None:
    """A job confirmed to its producer is delivered; an acknowledged job never comes back."""
    done = live_and_die(durable, log, restarts=restarts)
    with redis.Redis.from_url(durable.url) as raw:
        check_invariant(raw)
        story = Story(log)
        drained = drain(queue, raw, story)
        check_invariant(raw)
        assert not raw.exists(*queue.ops.keys.of(("held", "active", "scheduled", "tally")))
    attempted, accepted = set(story.told["attempted"]), set(story.told["accepted"])
    acking, got = set(story.told["acking"]), set(story.told["got"])
    assert accepted - acking <= set(drained), "lost: accepted, and not acknowledged"
    assert accepted <= got, "lost: accepted and never delivered"
    assert got <= attempted, "delivered, and never added"
    assert max(drained.values(), default=1) == 1
    assert {body for body, ids in story.ids.items() if len(ids) > 1} == set(), "added twice"
    assert not set(story.acked) & set(drained), "acknowledged, and still there"
    if not restarts:
        # A repeated acknowledgement may find another consumer's work; here none was repeated.
        assert max(story.told["acked"].values()) == 1
        later = {body for body, number in story.acked.items() if story.latest[body] > number}
        assert later == set(), "acknowledged, and delivered again"
    assert queue.stats().enqueued >= len(accepted)
    check_that_it_was_hard(done, story, restarts=restarts)


def check_that_it_was_hard(done: Counter[str], story: Story, *, restarts: bool) -> None:
    """Check that there were many jobs and many interruptions."""
    assert done["kills"] >= 20
    assert done["freezes"] >= 10
    assert done["restarts"] >= 3 or not restarts
    assert len(story.acked) >= 500
    assert max(story.latest.values()) > 1
