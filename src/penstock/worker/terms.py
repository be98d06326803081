"""Until when a worker holds a job."""

from __future__ import annotations

import math
from typing import NamedTuple

from penstock.core.job import Delivery

__all__ = ["LEFT", "OVER", "Term", "lengthened", "term_of"]

LEFT = 2 / 3
"""What is left of a lease when the worker renews it."""
NEAR = 1 / 4
"""The largest part of a lease that a round trip may take without consequences."""
TIMES = 8
"""How many round trips a lease lasts that is lengthened for them."""
LONGEST = 3600.0
"""Most seconds of such a lease."""


class Term(NamedTuple):
    """Until when a job is held, by this machine's clock: from the time of asking, never later.

    Attributes:
        until: seconds of the monotonic clock; inf = delivered at most once, never lost.
        lease: seconds of one lease; 0 = not to be renewed: at most once, or its ttl ends then.
    """

    until: float
    lease: float

    def is_over(self, now: float) -> bool:
        """Whether the job is nobody's any more, or somebody else's."""
        return self is OVER or self.until < now

    def renewal(self, left: float) -> float:
        """When to renew it: when so much of its lease is left; its end, if it can't be renewed."""
        return self.until - self.lease * left

    def renewed(self, sent: float, heard: float, now_ms: int, code: int) -> Term | None:
        """What an answer of `extend` makes of it; None = the job is gone, or somebody else's.

        Args:
            sent: when that was asked for.
            heard: when the answer came.
            now_ms: the server's time.
            code: its answer for this job: the new end in ms, or why there is none.
        """
        if code <= 3:
            return None
        left = (code - now_ms) / 1000
        # Less than was asked for: its ttl ends then, and nothing can lengthen it.
        lease = lengthened(self.lease, heard - sent) if left >= self.lease else 0.0
        return Term(sent + left, lease)


OVER = Term(math.inf, 0.0)
"""The term of a job that is lost: there is nothing to renew, and no end to look for."""


def lengthened(lease: float, trip: float) -> float:
    """The lease to renew with, so that renewals come in time although a round trip takes so long.

    Args:
        lease: in seconds.
        trip: seconds from a request to its answer.
    """
    return lease if trip <= lease * NEAR else max(lease, min(trip * TIMES, LONGEST))


def term_of(job: Delivery, sent: float, trip: float) -> Term:
    """The lease of a job that has its own, or a ttl that bounds it.

    Args:
        job: just delivered.
        sent: when it was asked for.
        trip: seconds that this took.
    """
    if job.at_most_once:
        return Term(math.inf, 0.0)
    if job.ttl is not None:
        left = job.created + job.ttl - job.delivered
        if left <= job.lease:
            return Term(sent + left, 0.0)
    return Term(sent + job.lease, lengthened(job.lease, trip))
