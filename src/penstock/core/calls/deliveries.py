"""Check the confirmations of jobs delivered at most once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.core.calls.call import Call
from penstock.errors import DeliveryNotReplicated

if TYPE_CHECKING:
    from penstock.core.calls.operations import Taken


__all__ = ["check_deliveries"]


def check_deliveries(call: Call[Any], taken: Taken) -> DeliveryNotReplicated | None:
    """Return the error for jobs delivered at most once that were not confirmed; None = all were.

    It has all jobs that the call has taken.
    """
    wait, got = call.wait, call.confirmed
    if wait is None or got.covers(wait.expected, wait):
        return None
    given_up = [job for job in taken.deliveries if job.at_most_once]
    if not given_up:
        return None
    fsynced = got.fsynced if wait.fsynced else None
    jobs = [job for job in taken.deliveries if not job.at_most_once]
    return DeliveryNotReplicated(wait.expected, got.replicas, fsynced, jobs=jobs, given_up=given_up)
