"""Jobs that are named by id and receipt, which is what a table can store of a delivery."""

from __future__ import annotations

from functools import lru_cache

from penstock.core.ids import parse_id
from penstock.core.job import Delivery, QueueIdentity, Reservation
from penstock.wire.keys import queue_crc

__all__ = ["JobRef"]

NOT_FIRST = b"2 0 0 0"
"""Counters of a job with a receipt of its own, not that of a reservation."""


class JobRef(Delivery):
    """A delivery of which only id and receipt are known: enough to settle it.

    Args:
        queue: the queue's name.
        job_id: the job's id.
        receipt: of the delivery.
        crcs: checksums of the names of its partitions, as ids carry them; empty = it has none.
    """

    __slots__ = ("_id", "_receipt")

    def __init__(
        self, queue: str, job_id: str, receipt: str, crcs: frozenset[int] = frozenset()
    ) -> None:
        found = parse_id(job_id)
        is_own = found.crc in crcs or found.crc == queue_crc(queue)
        reservation = _reservation(queue if is_own else "", found.node, found.crc, found.epoch)
        super().__init__(reservation, found.number, NOT_FIRST, b"1\n")
        self._id = job_id
        self._receipt = receipt

    @property
    def id(self) -> str:
        """Job id that was given."""
        return self._id

    @property
    def receipt(self) -> str:
        """Receipt that was given."""
        return self._receipt


@lru_cache(maxsize=256)
def _reservation(queue: str, node: str, crc: int, epoch: str) -> Reservation:
    """Return the values that jobs of one epoch of a queue share.

    Jobs of another queue get a queue name that calls refuse.
    """
    name = queue or f"<the queue of crc {crc:08x}>"
    return Reservation(None, QueueIdentity(name, node, crc, epoch), "", tag=0, now=0, lease_ms=0)
