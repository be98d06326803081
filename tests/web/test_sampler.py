"""Samples: how often they are read, and the rates and lines that follow from them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import MISSING, fields
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Any, cast

import pytest

from penstock import AsyncPenstock, NotPermitted
from penstock.core.jobs.queue_stats import QueuePage, QueueStats, Settings
from penstock.core.nodes.problems import Problem
from penstock.web.sampler import KEPT_SEARCHES, MAX_SAMPLED_QUEUES, POINTS_PER_QUEUE, Sampler


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
        self.is_refused = False

    async def scan_queues(self, cursor: str, n: int, *, pattern: str) -> QueuePage:
        """Return those among n queues that match."""
        self.reads += 1
        await asyncio.sleep(0)
        start = int(cursor)
        behind = start + n if start + n < len(self.queues) else 0
        page = [one for one in self.queues[start : start + n] if fnmatchcase(one.name, pattern)]
        return QueuePage(str(behind), page, ("n1",) if start else ())

    async def find_problems(self, queues: Iterable[QueueStats]) -> list[Problem]:
        """Return one for each queue."""
        if self.is_refused:
            raise NotPermitted("INFO")
        return [Problem("dead", "1 dead letter", one.name, "") for one in queues]

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
    """Reading 1,000 queues takes five pages, every ten seconds."""
    client = Client(*(stats(f"q{number}") for number in range(1000)))
    sampler = client.sampler()
    sample = await sampler.sample()
    assert (len(sample.queues), sample.unreachable, sample.is_whole) == (1000, ("n1",), True)
    client.now += 9
    await sampler.sample()
    assert client.reads == 5
    client.now += 1
    await sampler.sample()
    assert client.reads == 10


async def test_more_queues_than_are_read() -> None:
    """There is a limit, and the sample says so."""
    client = Client(*(stats(f"q{number}") for number in range(MAX_SAMPLED_QUEUES + 200)))
    sample = await client.sampler().sample()
    assert (len(sample.queues), sample.is_whole) == (MAX_SAMPLED_QUEUES, False)


async def test_a_name_among_more_queues_than_are_read() -> None:
    """It is looked up among all of them, in capitals or not, with rates of its own."""
    client = Client(
        *(stats(f"q{n}") for n in range(MAX_SAMPLED_QUEUES)), stats("Last [1]!", dead=3)
    )
    sampler = client.sampler()
    await sampler.sample()
    found = sampler.find("LAST [1]!")
    assert found is sampler.find("LAST [1]!")
    assert [one.dead for one in (await found.sample()).queues.values()] == [3]
    client.queues[-1] = stats("Last [1]!", acked=20)
    sampler.forget()
    client.now += 2
    assert (await found.sample()).is_whole
    assert found.series["Last [1]!"].rates().done == 10
    for number in range(KEPT_SEARCHES):
        sampler.find(str(number))
    assert sampler.find("LAST [1]!") is not found


async def test_problems_that_may_not_be_read() -> None:
    """They are unknown, and the figures are there."""
    client = Client(stats())
    assert [one.queue for one in (await client.sampler().sample()).problems or ()] == ["q"]
    client.is_refused = True
    sample = await client.sampler().sample()
    assert (sample.problems, list(sample.queues)) == (None, ["q"])


async def test_a_name_among_few_queues() -> None:
    """All queues were read: a filter reads nothing."""
    sampler = Client(stats()).sampler()
    await sampler.sample()
    assert sampler.find("q") is sampler
    assert sampler.find("") is sampler


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
    times, values = zip(*series.done(), strict=True)
    assert values == pytest.approx([0] * 10 + [5] * 10)
    assert [later - time for time, later in pairwise(times)] == [2] * 19
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
    client.now += 295
    await sampler.sample()
    assert len(sampler.series["q"].points) == 3  # of the last five minutes
    client.queues = [stats(epoch="f", acked=1)]
    client.now += 2
    await sampler.sample()
    assert len(sampler.series["q"].points) == 1
    assert sampler.series["q"].rates() == (None, None, None)
    assert sampler.series["q"].done() == []
    client.queues = []
    client.now += 2
    await sampler.sample()
    assert set(sampler.series) == {""}
