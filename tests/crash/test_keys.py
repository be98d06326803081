"""Consumers of an ordered queue are killed at any moment."""

from __future__ import annotations

import random
import signal
import time
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path

import pytest
import redis

from penstock import Penstock
from penstock.embedded import EmbeddedServer
from tests.crash.tasks import QUEUE
from tests.support.keyspace import check_invariant
from tests.support.workers import Child, Nursery, until, whole_lines

KEYS, JOBS, CONSUMERS, KILLS = 3, 25, 2, 15
LEASE = 1.0
"""Longer than a consumer needs to write down what it has received."""


def kill(consumers: list[Child]) -> None:
    """Kill consumers, and wait for their ends."""
    for child in consumers:
        child.signal(signal.SIGKILL)
        assert child.wait() == []


def key_of(body: bytes) -> str:
    """Return the key of a job."""
    return body.split()[0].decode()


@pytest.mark.slow
def test_the_order_of_a_key_survives_kills(
    crash_server: EmbeddedServer, raw: redis.Redis, tmp_path: Path
) -> None:
    """A job of a key begins only when the one before it has ended, whichever consumers die."""
    log = tmp_path / "log"
    log.touch()
    dice = random.Random(3)
    with Penstock(crash_server.url) as client, ExitStack() as stack:
        queue = client.queue(QUEUE)
        queue.configure(ordered=True, lease=LEASE, max_crashes=0, max_attempts=0, max_releases=0)
        homes = [stack.enter_context(Nursery("tests.crash.tasks")) for _ in range(CONSUMERS)]
        places = {"url": crash_server.url, "log": str(log)}
        consumers = [home.start("consume_in_order", **places) for home in homes]
        bodies = [f"{key} {number}".encode() for number in range(JOBS) for key in range(KEYS)]
        queue.enqueue_many(bodies[:-KEYS], key=key_of)
        for _ in range(KILLS):
            time.sleep(dice.uniform(0.0, 0.1))  # the work to be interrupted
            at = dice.randrange(CONSUMERS)
            kill([consumers[at]])
            consumers[at] = homes[at].start("consume_in_order", **places)
        kill(consumers)
        queue.enqueue_many(bodies[-KEYS:], key=key_of)
        assert homes[0].start("consume_in_order", **places, dies=True).wait() == []
        consumers = [home.start("consume_in_order", **places) for home in homes]
        until(lambda: queue.stats().acked == KEYS * JOBS, timeout=60)
        kill(consumers)
        stats = queue.stats()
    assert (stats.ready, stats.scheduled, stats.active, stats.parked, stats.dead) == (0,) * 5
    check_invariant(raw)
    assert not raw.exists(*queue.ops.keys.of(("parked", "tickets")))
    events = [line.split(" ") for line in whole_lines(log.read_bytes())]
    for key in map(str, range(KEYS)):
        own = [words for words in events if words[1] == key]
        assert [number for number, _ in groupby(int(words[2]) for words in own)] == [*range(JOBS)]
        deliveries = [(int(words[2]), int(words[3])) for words in own if words[0] == "begun"]
        assert deliveries == sorted(set(deliveries)), "a job was begun twice at once"
    assert stats.crashed > 0, "no consumer was killed while it had a job"
