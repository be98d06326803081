"""The batches of a checkpoint on the server (protocol/checkpoints.md)."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from penstock.core.calls.refusals import REFUSALS
from penstock.core.jobs.logs import get_logger
from penstock.spark.calls import about_batch
from penstock.spark.shards import OpenShard
from penstock.wire.replies import Assign, Assigned

__all__ = ["Batches"]

logger = get_logger("penstock")

JOBS_PER_ASSIGN = 500
"""Jobs that one script adds to a batch: it takes the server some ms."""
JOBS_OF_UNKNOWN_SIZE = 16
"""Jobs that the first script adds to a batch whose bytes are limited."""
ASSIGNED_PER_PAGE = 1000
ALSO_LATE, STOPS, GOES_ON = 1, 3, 4
"""The argument `late` of `extend` (protocol/scripts.md)."""


class Batches:
    """The batches of one checkpoint on one shard.

    Attributes:
        epoch: of the queue when the batch was created.
        batch: the number of the batch whose jobs are held; 0 = none.
        held: their numbers, by receipt.
        ends: when the leases end, in ms, by receipt; 0 = not known.
        _fence: proves that this reader uses the checkpoint; empty = it has not taken it over.
    """

    def __init__(self, shard: OpenShard, consumer: str, lease_ms: int) -> None:
        self.shard = shard
        self.consumer = consumer
        self.epoch = ""
        self.batch = 0
        self.held: Mapping[str, list[bytes]] = {}
        self.ends: dict[str, int] = {}
        self._lease_ms = lease_ms
        self._fence = ""
        self._finished = 0

    def _run(self, name: str, *args: Any) -> Any:
        return self.shard.run(about_batch(self.shard.ops, name, self.consumer, *args))

    def _assign(self, batch: int, most: int, n: int) -> Assign:
        """Reserve up to n more jobs for a batch. Without a fence, take the checkpoint over."""
        tag, owner = random.getrandbits(12), self.shard.ops.owner_name
        args = (self._fence, batch, most, n, tag, owner, self._lease_ms)
        reply: Assign = self._run("assign", *args)
        self._fence = reply.fence.decode()
        self.ends[f"1-{tag:03x}"] = reply.now + self._lease_ms
        return reply

    def take(self, batch: int, most: int, most_bytes: int | None = None) -> int | None:
        """Reserve this batch, or load it if it exists; return its number of jobs, None = no job.

        With `most_bytes` it is complete as soon as its records have about so many bytes.
        """
        n, taken = JOBS_PER_ASSIGN if most_bytes is None else JOBS_OF_UNKNOWN_SIZE, 0
        while True:
            reply = self._assign(batch, most, n)
            if reply.sealed:
                found = self._load(batch)
                own = {receipt[-3:] for receipt in self.ends}
                if any(receipt[-3:] not in own for receipt in self.held):
                    self._extend(self._lease_ms, GOES_ON)  # of an earlier life: may end soon
                return found
            if reply.jobs == 0 and reply.next != 0:
                return None
            if most_bytes is not None and reply.size:
                taken += reply.size
                of_mean_size = (most_bytes - taken) * min(n, reply.jobs) // reply.size
                n = max(0, min(JOBS_PER_ASSIGN, of_mean_size))
                most = most if n else reply.jobs

    def resume(self, batch: int) -> int | None:
        """Return the number of jobs of a batch that an earlier run of the query has reserved.

        It is loaded when it is planned: it may have more jobs then.
        """
        found = self._load(batch)
        self.batch = 0
        return found or None

    def adopt(self, batch: int) -> int | None:
        """Load a batch of an earlier run; return its number of jobs, None = it is forgotten."""
        if self.batch != batch:
            if self._load(batch) is None:
                return None
            self._assign(batch, 0, 0)
            self._extend(self._lease_ms, GOES_ON)  # its leases may end soon
        return sum(map(len, self.held.values()))

    def _load(self, batch: int) -> int | None:
        """Read receipts that are not known; return the number of jobs, None = no such batch."""
        held = defaultdict(list, self.held if self.batch == batch else {})
        start = sum(map(len, held.values()))
        while True:
            reply = self._run("assigned", self._fence, batch, start, ASSIGNED_PER_PAGE)
            if not isinstance(reply, Assigned):
                return None
            self.epoch = reply.epoch.decode()
            for entry in reply.receipts:
                number, _, receipt = entry.partition(b" ")
                held[receipt.decode()].append(number)
            start += len(reply.receipts)
            if start >= reply.jobs:
                self.batch, self.held = batch, held
                return start

    def _receipts_and_numbers(self) -> Iterator[tuple[str, list[bytes]]]:
        for receipt, numbers in self.held.items():
            for at in range(0, len(numbers), ASSIGNED_PER_PAGE):
                yield receipt, numbers[at : at + ASSIGNED_PER_PAGE]

    def finish(self, batch: int) -> int:
        """Acknowledge the jobs of a finished batch, perhaps again; return how many were held."""
        if batch <= self._finished:
            return 0
        acked, found = 0, self._load(batch)
        if found:
            if not self._fence:
                self._assign(batch, 0, 0)
            for receipt, numbers in self._receipts_and_numbers():
                end = self.ends.get(receipt)
                proof = f"{receipt}@{end}" if end else receipt
                call = self.shard.ops.call("ack", self.epoch, proof, "", *numbers)
                acked += self.shard.run(call).acked
            if acked < found:
                text = "queue %r: %d jobs of batch %d were not held any more: others have settled "
                text += "them, or their leases had ended, and they may be done twice"
                logger.warning(text, self.shard.name, found - acked, batch)
            self._run("dismiss", self._fence, batch)
        if self.batch == batch:
            self.batch, self.held, self.ends = 0, {}, {}
        self._finished = batch
        return acked

    def renew(self) -> None:
        """Renew the leases of the current batch."""
        self._extend(self._lease_ms, ALSO_LATE)

    def leave(self, lease_ms: int) -> None:
        """Keep the jobs for so long while the query does not run; then their end is no crash.

        Another client that has taken the checkpoint over meanwhile decides alone.
        """
        if self.held and isinstance(self._run("assigned", self._fence, self.batch, 0, 1), Assigned):
            self._extend(max(lease_ms, self._lease_ms), STOPS)

    def _extend(self, lease_ms: int, late: int) -> None:
        for receipt, numbers in self._receipts_and_numbers():
            args, ends = (self.epoch, receipt, lease_ms, late), set[int]()
            call = self.shard.ops.call("extend", *args, *numbers)
            with suppress(*REFUSALS):  # the jobs are gone, which `finish` reports
                ends.update(self.shard.run(call).untils)
            self.ends[receipt] = max(0, ends.pop()) if len(ends) == 1 else 0
