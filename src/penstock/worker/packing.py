"""Deliveries as JSON, for a process that runs jobs of a worker or renews their leases."""

from __future__ import annotations

from base64 import b64decode, b64encode
from functools import lru_cache
from typing import Any

from penstock.core.calls.operations import QueueOps
from penstock.core.jobs.job import (
    Delivery,
    QueueIdentity,
    Reservation,
    counts_of,
    data_of,
    number_of,
    reservation_of,
    set_term,
    term_of,
)
from penstock.worker.terms import Term

__all__ = ["packed", "unpacked"]


def packed(job: Delivery, *, whole: bool = True) -> list[Any]:
    """Return a delivery and its term as JSON takes them; its queue is not part of it.

    Args:
        job: the delivery.
        whole: with its record and its last error. A renewal of the lease needs neither.
    """
    reservation, counts, data = reservation_of(job), counts_of(job), data_of(job)
    if not whole:
        counts, data = b" ".join(counts.split(b" ", 4)[:4]), b"1\n"
    texts = [b64encode(part).decode() for part in (number_of(job), counts, data)]
    place = (reservation.place.node, reservation.place.epoch)
    return [place, [reservation.tag, reservation.now, reservation.lease_ms], texts, term_of(job)]


def unpacked(message: list[Any], ops: QueueOps) -> Delivery:
    """Return the delivery of a queue with its term."""
    (node, epoch), (tag, now, lease_ms), texts, term = message
    place = _identity(ops.name, node, ops.crc, epoch)
    reservation = Reservation(ops.queue, place, ops.owner, tag=tag, now=now, lease_ms=lease_ms)
    reservation.ops = ops
    job: Delivery = ops.make(reservation, *map(b64decode, texts))
    set_term(job, Term(*term))
    return job


@lru_cache(maxsize=1000)
def _identity(queue: str, node: str, crc: int, epoch: str) -> QueueIdentity:
    """Return one object for all jobs of an epoch, whose leases are renewed together."""
    return QueueIdentity(queue=queue, node=node, crc=crc, epoch=epoch)
