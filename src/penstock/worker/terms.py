"""The heartbeat policy: until when a worker holds a job, and when to renew its lease.

The heartbeat, which a worker or a task of Spark runs in a thread, and the helper process of a
worker renew leases by these rules.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from penstock.core.jobs.job import (
    OWN_TERMS,
    Delivery,
    QueueIdentity,
    data_of,
    reservation_of,
    set_term,
    term_of,
)
from penstock.core.values.checks import BATCH

__all__ = [
    "LEASE_LOOK_INTERVAL",
    "LEASE_RENEWAL_SHARE",
    "OVER",
    "Term",
    "begin",
    "due",
    "lengthened",
    "next_renewal",
    "renew",
]

LEASE_RENEWAL_SHARE = 2 / 3
"""The part of a lease that is left when the worker renews it."""
LONG_TRIP_SHARE = 1 / 4
"""The largest part of a lease that a round trip may take without consequences."""
TRIPS_PER_LEASE = 8
"""The number of round trips that a lease lasts when it is lengthened for them."""
LONGEST_LEASE = 3600.0
"""Most seconds of a lease that is lengthened."""
LEASE_LOOK_INTERVAL = 10.0
"""Most seconds between two looks at the leases."""


class Term(NamedTuple):
    """The time until which a job is held, by this machine's clock. It counts from the request.

    Attributes:
        until: time by the monotonic clock; inf = delivered at most once, never lost.
        lease: seconds of one lease; 0 = never renewed: delivered at most once, or its ttl ends.
    """

    until: float
    lease: float

    def is_over(self, now: float) -> bool:
        """Return whether the lease has ended, or the job is lost."""
        return self is OVER or self.until < now

    @property
    def is_once(self) -> bool:
        """True if the job is delivered at most once: it has no lease, and is never lost."""
        return self.until == math.inf

    def renewal(self, left: float) -> float:
        """Return when to renew it: when this part of the lease is left; its end if it never is."""
        return self.until - self.lease * left

    def renewed(self, code: int, *, now_ms: int, sent: float, heard: float) -> Term | None:
        """Return the term after an answer of `extend`; None = this worker has lost the job.

        Args:
            code: the answer for this job: the new end in ms, or a code of at most 3.
            now_ms: the server's time.
            sent: when the call was sent.
            heard: when the answer came.
        """
        return None if code <= 3 else self.extended(sent, heard, (code - now_ms) / 1000)

    def extended(self, sent: float, heard: float, left: float) -> Term:
        """Return the term after a renewal for `left` seconds.

        If they are fewer than requested, the ttl of the job ends then, and nothing can lengthen it.
        """
        lease = lengthened(self.lease, heard - sent) if left >= self.lease else 0.0
        return Term(sent + left, lease)


OVER = Term(math.inf, 0.0)
"""The term of a lost job: it is neither renewed nor lost again."""


def lengthened(lease: float, trip: float) -> float:
    """Return a lease that is long enough for round trips of `trip` seconds, in whole ms.

    A server that is asked for a part of a ms gives less, as at the end of a ttl.
    """
    if trip <= lease * LONG_TRIP_SHARE:
        return lease
    return max(lease, round(min(trip * TRIPS_PER_LEASE, LONGEST_LEASE), 3))


def begin(jobs: Sequence[Delivery], sent: float, now: float) -> tuple[float, float]:
    """Set the terms of delivered jobs.

    Args:
        jobs: at least one job.
        sent: when they were requested.
        now: when they came.

    Returns:
        Their shortest lease, and when the first of them has to be renewed.
    """
    trip, shortest, renewal = now - sent, math.inf, math.inf
    reservation, common = None, OVER
    for job in jobs:
        if reservation_of(job) is not reservation:
            reservation = reservation_of(job)
            lease = reservation.lease_ms / 1000
            shortest = min(shortest, lease)
            is_short = trip <= lease * LONG_TRIP_SHARE
            common = Term(sent + lease, lease if is_short else lengthened(lease, trip))
            renewal = min(renewal, common.until - common.lease * LEASE_RENEWAL_SHARE)
        set_term(job, common)
        if data_of(job)[1:3] in OWN_TERMS:
            term = _own_term(job, sent, trip)
            set_term(job, term)
            if term.lease:
                shortest = min(shortest, job.lease)
                renewal = min(renewal, term.renewal(LEASE_RENEWAL_SHARE))
    return shortest, renewal


def _own_term(job: Delivery, sent: float, trip: float) -> Term:
    if job.at_most_once:
        return Term(math.inf, 0.0)
    if job.ttl is not None:
        left = job.created + job.ttl - job.delivered
        if left <= job.lease:
            return Term(sent + left, 0.0)
    return Term(sent + job.lease, lengthened(job.lease, trip))


def due(
    jobs: Iterable[Delivery], now: float, left: float = LEASE_RENEWAL_SHARE
) -> Iterator[tuple[float, list[Delivery]]]:
    """Yield lease and jobs of each call of `extend` that is due. Each has one queue and epoch.

    Args:
        jobs: the jobs that are held.
        now: the time by this machine's monotonic clock.
        left: the part of a lease that is left when it is renewed.
    """
    groups: dict[tuple[QueueIdentity, float], list[Delivery]] = {}
    for job in jobs:
        term = term_of(job)
        if term.lease and term.renewal(left) <= now:
            groups.setdefault((reservation_of(job).place, term.lease), []).append(job)
    for (_, lease), part in groups.items():
        for start in range(0, len(part), BATCH):
            yield lease, part[start : start + BATCH]


def renew(
    jobs: Sequence[Delivery], codes: Sequence[int], *, now_ms: int, sent: float, heard: float
) -> list[Delivery]:
    """Set the terms after an answer of `extend`; return the jobs that are lost."""
    gone = []
    for job, code in zip(jobs, codes, strict=True):
        term = term_of(job).renewed(code, now_ms=now_ms, sent=sent, heard=heard)
        if term is None:
            gone.append(job)
        else:
            set_term(job, term)
    return gone


def next_renewal(jobs: Collection[Delivery], left: float = LEASE_RENEWAL_SHARE) -> float:
    """Return when the first of these leases has to be renewed; inf = never."""
    nearest = math.inf
    for job in jobs:
        term: Term = term_of(job)
        if term.lease:
            nearest = min(nearest, term.until - term.lease * left)  # as `renewal`
    return nearest
