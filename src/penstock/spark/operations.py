"""Acknowledges, nacks, redrives or deletes jobs that rows name by id and receipt."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from typing import Any

from penstock.client._sync.queue import Queue
from penstock.client._sync.settling import settle_each
from penstock.core.ids import JobId, parse_id
from penstock.core.job import Delivery, QueueIdentity, Reservation
from penstock.core.operations import QueueOps
from penstock.core.outcomes import Outcome, Settled
from penstock.errors import BadJobId, NodesUnavailable, WrongEpoch, WrongQueue
from penstock.spark.errors import RowError
from penstock.spark.options import Write
from penstock.spark.rows import Column, Fields, as_list, batches, columns_of
from penstock.spark.shards import OpenShards
from penstock.wire.codes import Code

__all__ = ["Settler"]

RECEIPT = re.compile("([1-9][0-9]*)-([0-9a-f]{3})").fullmatch


def delivery_of(queue: str, job: JobId, receipt: str) -> Delivery | None:
    """Return a delivery of which only id and receipt are known; None = that is no receipt."""
    found = RECEIPT(receipt)
    if found is None:
        return None
    shared = _reservation(queue, job.node, job.crc, job.epoch, int(found[2], 16))
    counts = b"" if found[1] == "1" else f"{found[1]} 0 0 0".encode()
    return Delivery(shared, job.number, counts, b"1\n")


@lru_cache(maxsize=256)
def _reservation(queue: str, node: str, crc: int, epoch: str, tag: int) -> Reservation:
    place = QueueIdentity(queue, node, crc, epoch)
    made = Reservation(None, place, "", tag=tag, now=0, lease_ms=0)
    made.hinted = made.receipt  # when the leases end is not known
    return made


class Settler:
    """Runs one operation on the jobs that rows name, in batches.

    In a repeated task, the outcome of jobs that are settled is `gone`, `ended` or `refused`. It is
    no error.
    """

    def __init__(self, options: Write, fields: Fields, found: OpenShards) -> None:
        self._options = options
        self._width = len(fields)
        self._places = columns_of(fields, options)
        self._waiting: dict[tuple[str, int, str], list[Delivery | str]] = {}
        self._shards = {(one.node, one.ops.crc): one.queue for one in found}
        self._known = frozenset(crc for _, crc in self._shards)
        self._counts = Counter({"rows": 0})
        self._row = 0

    def put(self, rows: Iterable[Any]) -> dict[str, int]:
        """Settle the jobs of all rows; return the number of rows, and of each outcome."""
        for columns, count in batches(rows, self._width):
            self._add(columns, count)
        for life, names in self._waiting.items():
            self._settle(life, names)
        return self._counts

    def _add(self, columns: Sequence[Column], count: int) -> None:
        given = {name: as_list(name, columns[place]) for name, place in self._places.items()}
        receipts = given.get("receipt", [None] * count)
        for job_id, receipt in zip(given["id"], receipts, strict=True):
            life, name = self._named(job_id, receipt)
            names = self._waiting.setdefault(life, [])
            names.append(name)
            self._row += 1
            if len(names) >= self._options.batch_size:
                self._settle(life, self._waiting.pop(life))

    def _named(self, job_id: Any, receipt: Any) -> tuple[tuple[str, int, str], Delivery | str]:
        try:
            parsed = parse_id(job_id)
            if parsed.crc not in self._known:
                raise WrongQueue("id", job_id, f"must be an id of queue {self._options.queue!r}")
        except BadJobId as error:
            raise RowError("id", job_id, error.reason, self._row) from None
        life = (parsed.node, parsed.crc, parsed.epoch)
        if not receipt:
            return life, job_id
        job = delivery_of(self._options.queue, parsed, receipt)
        if job is None:
            reason = "must be a receipt as the source returned it"
            raise RowError("receipt", receipt, reason, self._row)
        return life, job

    def _settle(self, life: tuple[str, int, str], names: list[Delivery | str]) -> None:
        shard = self._shards.get(life[:2])
        if shard is None:
            raise NodesUnavailable(f"node {life[0]} has jobs of these rows and can't be reached")
        self._counts["rows"] += len(names)
        try:
            outcomes: Sequence[Outcome] = self._act(shard)(names)
        except WrongEpoch:  # the queue was deleted and re-created
            outcomes = [Outcome.GONE] * len(names)
        self._counts.update(outcome.value for outcome in outcomes)

    def _act(self, shard: Queue) -> Callable[[list[Delivery | str]], Settled]:
        options = self._options
        if options.operation == "nack":
            delay = None if options.delay is None else options.delay / 1000
            return partial(shard.nack, delay=delay, error=options.error)
        if options.operation == "redrive":
            return partial(settle_each, shard, build=QueueOps.redrive, resent_code=Code.REFUSED)
        return shard.ack if options.operation == "ack" else shard.delete
