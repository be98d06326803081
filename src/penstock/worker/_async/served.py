"""The queues that a worker serves, as its client knows them: partitions and nodes turn up."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial

from redis.exceptions import RedisError

from penstock.client._async.client import AsyncPenstock
from penstock.client._async.nodes.federated_node import AsyncBackgroundTasks
from penstock.core.enqueuing.schedules import NewSchedule
from penstock.core.values.near import MISSPELLED, nearest
from penstock.wire.keys import split_name
from penstock.worker.polls import QueuePoll
from penstock.worker.schedules import Ticker, own_part
from penstock.worker.state import WorkerState

__all__ = ["AsyncServedQueues"]

MOST_LISTED_QUEUES = 1_000
"""Queues of a node from which on names are not compared: that would take more than one command."""


class AsyncServedQueues:
    """The queues that a worker serves. A queue has a poll for each partition on each node.

    Args:
        client: the client of the worker.
        weights: the weights of the queues.
        schedules: those that the handlers declare, by queue.
        apps: those to which the handlers belong.
        lease_ms: lease of the jobs; None = that of the queue.
    """

    def __init__(
        self,
        client: AsyncPenstock,
        weights: Mapping[str, int],
        schedules: Mapping[str, Sequence[NewSchedule]],
        apps: frozenset[str],
        lease_ms: int | None,
    ) -> None:
        self._client = client
        self._weights = weights
        self._schedules = schedules
        self._apps = apps
        self._lease_ms = lease_ms
        self._looks = AsyncBackgroundTasks()

    @property
    def schedule_names(self) -> list[str]:
        """Names of the schedules that the handlers declare."""
        return [schedule.name for declared in self._schedules.values() for schedule in declared]

    def polls(self) -> list[QueuePoll]:
        """Return the polls. The partitions of a queue, on each node, share its weight."""
        polls = []
        for name, weight in self._weights.items():
            queue = self._client.queue(name)
            share = weight / (queue.partitions or 1)
            for ops in queue.route.operations:
                own = own_part(self._schedules[name], ops)
                ticker = Ticker(own, 0.0 if own else math.inf, apps=self._apps)
                polls.append(QueuePoll(ops, share, ticker=ticker, lease_ms=self._lease_ms))
        return polls

    def update(self, state: WorkerState) -> None:
        """Add the polls of partitions that the loop has learned of, and those on more nodes."""
        learned, state.learned = state.learned, {}
        for name, partitions in learned.items():
            self._client.queue(name, partitions=partitions)
        for poll in self.polls():
            state.add(poll)

    async def find_misspelled(self) -> dict[str, str]:
        """Return the queues without any job yet whose names are like that of a queue with jobs.

        Returns:
            The name that was probably meant, by the name of the queue.
        """
        topology, listed = self._client.topology, set[str]()
        if topology.federation is None:
            pages = [await topology.driver.registry_page("0", MOST_LISTED_QUEUES)]
        else:
            answers, _ = await topology.federation.each(
                lambda node: node.brief.driver.registry_page("0", MOST_LISTED_QUEUES)
            )
            pages = [page for _, page in answers]
        for cursor, entries in pages:
            if cursor != "0":
                return {}
            listed |= {split_name(name)[0] for name, _ in entries}
        others = sorted(listed - self._weights.keys())
        meant = {name: nearest(name, others, MISSPELLED) for name in self._weights}
        return {name: near for name, near in meant.items() if near and name not in listed}

    def look_for_nodes(self, state: WorkerState) -> None:
        """Look for other nodes in the background, if a look is due: they make the loop end."""
        if self._client.topology.is_look_due and not self._looks.under_way:
            self._looks.begin(partial(self._look, state))

    async def _look(self, state: WorkerState) -> None:
        with suppress(RedisError):  # the loop meets it too
            if await self._client.topology.has_others():
                state.moved = True
                state.wake()

    async def close(self) -> None:
        """End the looks that are under way."""
        await self._looks.close()
