"""Samples: how often they are read, and the rates and lines that follow from them."""

from __future__ import annotations

import asyncio
from dataclasses import MISSING, fields
from typing import Any, cast

import pytest

from penstock import AsyncPenstock
from penstock.core.jobs.views import QueuePage, QueueStats, Settings
from penstock.web.sampler import MAX_SAMPLED_QUEUES, POINTS_PER_QUEUE, Sampler


def stats(name: str = "q", **figures: Any) -> QueueStats:
    """Return the figures of a queue; those not given are 0."""
    needed = {one.name: 0 for one in fields(QueueStats) if one.default is MISSING}
    needed.pop("nodes")
    told: dict[str, Any] = {**needed, "epoch": "e", "settings": Settings(), "name": name, **figures}
    return QueueStats(**told)


class Client:
    """Stands for a client: it has pages of figures, and a clock."""

    def __init__(self, *queues: QueueStats) -> None:
        self.queues = list(queues)
        self.reads = 0
        self.now = 100.0

    async def scan_queues(self, cursor: str) -> QueuePage:
        """Return 100 queues."""
        self.reads += 1
        await asyncio.sleep(0)
        start = int(cursor)
        behind = start + 100 if start + 100 < len(self.queues) else 0
        return QueuePage(str(behind), self.queues[start : start + 100], ("n1",) if start else ())

    def sampler(self) -> Sampler:
        """Return a sampler of this client."""
        return Sampler(cast("AsyncPenstock", self), lambda: self.now)


async def test_a_sample_is_read_once_in_two_seconds() -> None:
    """Requests at the same time, and within two seconds, share one."""
    client = Client(stats())
    sampler = client.sampler()
    await asyncio.gather(*(sampler.sample() for _ in range(10)))
    client.now += 1.9
    await sampler.sample()
    assert client.reads == 1
    client.now += 0.1
    await sampler.sample()
    assert client.reads == 2
    sampler.forget()
    await sampler.sample()
    assert client.reads == 3


async def test_a_change_during_a_read_is_seen_by_the_next_request() -> None:
    """The read that is under way may have missed it."""
    client = Client(stats())
    sampler = client.sampler()
    reading = asyncio.create_task(sampler.sample())
    await asyncio.sleep(0)
    sampler.forget()
    await reading
    await sampler.sample()
    assert client.reads == 2


async def test_many_queues_are_read_more_rarely() -> None:
    """Reading 1,000 queues takes ten pages, every ten seconds."""
    client = Client(*(stats(f"q{number}") for number in range(1000)))
    sampler = client.sampler()
    sample = await sampler.sample()
    assert (len(sample.queues), sample.unreachable, sample.is_whole) == (1000, ("n1",), True)
    client.now += 9
    await sampler.sample()
    assert client.reads == 10
    client.now += 1
    await sampler.sample()
    assert client.reads == 20


async def test_more_queues_than_are_read() -> None:
    """There is a limit, and the sample says so."""
    client = Client(*(stats(f"q{number}") for number in range(MAX_SAMPLED_QUEUES + 200)))
    sample = await client.sampler().sample()
    assert (len(sample.queues), sample.is_whole) == (MAX_SAMPLED_QUEUES, False)


async def test_rates() -> None:
    """They are taken over the last ten seconds; the line has a value for each two samples."""
    client = Client()
    sampler = client.sampler()
    for second in range(0, 42, 2):
        done = max(0, second - 20) * 5
        client.queues = [stats(acked=done, enqueued=second * 3, nacked=second, crashed=second)]
        await sampler.sample()
        client.now += 2
    series = sampler.series["q"]
    assert series.rates() == pytest.approx((3, 5, 2))
    assert series.done() == pytest.approx([0] * 10 + [5] * 10)
    assert series.seconds() == 40
    assert sampler.series[""].rates() == series.rates()


async def test_the_memory_is_bounded() -> None:
    """Old figures are dropped, and so are queues that are gone or were made anew."""
    client = Client(stats(acked=50))
    sampler = client.sampler()
    for _ in range(POINTS_PER_QUEUE + 10):
        await sampler.sample()
        client.now += 2
    assert len(sampler.series["q"].points) == POINTS_PER_QUEUE
    client.queues = [stats(epoch="f", acked=1)]
    await sampler.sample()
    assert len(sampler.series["q"].points) == 1
    assert sampler.series["q"].rates() == (0, 0, 0)
    assert sampler.series["q"].done() == []
    client.queues = []
    client.now += 2
    await sampler.sample()
    assert set(sampler.series) == {""}
