"""What the worker's log records say beside their text: fields for formatters that write JSON.

This is the one place where the fields have their names; docs/observing.md lists them.
"""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from penstock.core.job import Delivery
from penstock.core.middleware import HANDLER

if TYPE_CHECKING:
    Adapter = logging.LoggerAdapter[logging.Logger]
else:  # a generic class only from Python 3.11 on
    Adapter = logging.LoggerAdapter

__all__ = ["FIELDS", "WorkerLog", "fields"]

FIELDS = ("job_id", "queue", "handler", "worker", "attempt")
"""The fields that a job has."""


def fields(job: Delivery) -> dict[str, Any]:
    """The fields of a record about this job; the handler is None for the default one."""
    return {
        "job_id": job.id,
        "queue": job.queue_name,
        "handler": job.headers.get(HANDLER),
        "worker": job.owner,
        "attempt": job.attempt,
    }


class WorkerLog(Adapter):
    """The logger "penstock.worker" with the worker's name on every record.

        log.warning("%s: the lease is lost", job.id, job=job)
        log.error("%r is not there any more", queue, fields={"queue": queue})

    The fields are put together only if the record is written.

    Args:
        worker: the worker's name.
        logger: another logger.
    """

    def __init__(self, worker: str, logger: logging.Logger | None = None) -> None:
        super().__init__(logger or logging.getLogger("penstock.worker"), {"worker": worker})

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        """Turn `job=` and `fields=` into `extra=`."""
        job: Delivery | None = kwargs.pop("job", None)
        more = kwargs.pop("fields", None) or {}
        found = fields(job) if job is not None else {}
        kwargs["extra"] = {**found, **(self.extra or {}), **(kwargs.get("extra") or {}), **more}
        return msg, kwargs
