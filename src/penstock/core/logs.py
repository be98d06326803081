"""What log records say beside their text: fields for formatters that write JSON.

This is the one place where the fields have their names; docs/observing.md lists them.
"""

from __future__ import annotations

from typing import Any

from penstock.core.job import Delivery
from penstock.core.middleware import HANDLER

__all__ = ["FIELDS", "fields"]

FIELDS = ("job_id", "queue", "handler", "worker", "attempt")
"""The fields that a record about a job has."""


def fields(job: Delivery) -> dict[str, Any]:
    """The fields of a record about this job, as `extra=`; the default handler is None."""
    return {
        "job_id": job.id,
        "queue": job.queue_name,
        "handler": job.headers.get(HANDLER),
        "worker": job.owner,
        "attempt": job.attempt,
    }
