"""Acknowledges, nacks, redrives or deletes jobs that rows name by id and receipt."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from typing import Any

from penstock.client._sync.queue import Queue
from penstock.core.calls.operations import QueueOps
from penstock.core.jobs.job import Delivery, JobName, QueueIdentity, Reservation
from penstock.core.jobs.outcomes import Outcome, Settled
from penstock.core.values.durable import Durable
from penstock.core.values.ids import parse_id
from penstock.errors import BadJobId, NodesUnavailable, WrongEpoch, WrongQueue
from penstock.spark.encoding import Column, Fields, as_list, batches, columns_of
from penstock.spark.errors import RowError
from penstock.spark.options import Write
from penstock.spark.shards import OpenShards
from penstock.wire.codes import Code

__all__ = ["Settler", "collect_outcomes", "delivery_maker"]

match_receipt = re.compile("[1-9][0-9]*-[0-9a-f]{3}").fullmatch
IdOrigin = tuple[str, int, str]
"""Node, crc and epoch of job ids: jobs with the same ones are settled together."""


@lru_cache(maxsize=256)
def delivery_maker(
    queue: str, node: str, crc: int, epoch: str, receipt: str
) -> Callable[[bytes], Delivery]:
    """Return a function that makes a delivery with this receipt of a job number.

    Args:
        queue: name of the queue.
        node, crc, epoch: as in the job's id.
        receipt: with the end of the lease, or without.
    """
    deliveries, _, tag = receipt.partition("-")
    identity = QueueIdentity(queue, node, crc, epoch)
    shared = Reservation(None, identity, "", tag=int(tag[:3], 16), now=0, lease_ms=0)
    shared.receipt_with_end = receipt
    counters = b"" if deliveries == "1" else f"{deliveries} 0 0 0".encode()
    return lambda number: Delivery(shared, number, counters, b"1\n")


def collect_outcomes(call: Callable[[list[Any]], Sequence[Any]], jobs: list[Any]) -> Sequence[Any]:
    """Return the outcomes of a call; of jobs of an earlier queue, which was deleted, it is gone."""
    try:
        return call(jobs)
    except WrongEpoch:
        return [Outcome.GONE] * len(jobs)


class Settler:
    """Runs one operation on the jobs that rows name, in batches.

    In a repeated task, the outcome of jobs that are settled is `gone`, `ended` or `refused`. It is
    no error.
    """

    def __init__(self, options: Write, fields: Fields, found: OpenShards) -> None:
        self._options = options
        self._places = columns_of(fields, options)
        self._waiting = defaultdict[IdOrigin, list[JobName]](list)
        self._shards = {(one.node, one.ops.crc): one.queue for one in found}
        self._crcs = frozenset(crc for _, crc in self._shards)
        self._counts = Counter({"rows": 0})
        self._row = 0

    def put(self, rows: Iterable[Any]) -> dict[str, int]:
        """Settle the jobs of all rows; return the number of rows, and of each outcome."""
        for columns in batches(rows):
            self._add(columns)
        for place, names in self._waiting.items():
            self._settle(place, names)
        return self._counts

    def _add(self, columns: Sequence[Column]) -> None:
        given = {name: as_list(name, columns[at]) for name, at in self._places.items()}
        receipts = given.get("receipt", [None] * len(given["id"]))
        for job_id, receipt in zip(given["id"], receipts, strict=True):
            place, name = self._named(job_id, receipt)
            names = self._waiting[place]
            names.append(name)
            self._row += 1
            if len(names) >= self._options.batch_size:
                self._settle(place, self._waiting.pop(place))

    def _named(self, job_id: Any, receipt: Any) -> tuple[IdOrigin, JobName]:
        try:
            parsed = parse_id(job_id)
            if parsed.crc not in self._crcs:
                raise WrongQueue("id", job_id, f"must be an id of queue {self._options.queue!r}")
        except BadJobId as error:
            raise RowError("id", job_id, error.reason, self._row) from None
        place = (parsed.node, parsed.crc, parsed.epoch)
        if not receipt:
            return place, job_id
        if not match_receipt(receipt):
            raise RowError("receipt", receipt, "must be a receipt of the source", self._row)
        return place, delivery_maker(self._options.queue, *place, receipt)(parsed.number)

    def _settle(self, place: IdOrigin, names: list[JobName]) -> None:
        node, crc, _ = place
        shard = self._shards.get((node, crc))
        if shard is None:
            raise NodesUnavailable(f"node {node} has jobs of these rows and can't be reached")
        self._counts["rows"] += len(names)
        outcomes = collect_outcomes(self._call(shard), names)
        self._counts.update(outcome.value for outcome in outcomes)

    def _call(self, shard: Queue) -> Callable[[list[JobName]], Settled]:
        options = self._options
        if options.operation == "nack":
            delay = None if options.delay is None else options.delay / 1000
            return partial(shard.nack, delay=delay, error=options.error)
        if options.operation == "redrive":
            return partial(shard.route.settle, build=QueueOps.redrive, resent_code=Code.REFUSED)
        if options.operation == "delete":
            return shard.delete
        durable = Durable(options.replicas, timeout=options.replication_timeout / 1000)
        return partial(shard.ack, durable=durable)
