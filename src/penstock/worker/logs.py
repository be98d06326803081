"""The worker's log records: each has the worker's name, and those about a job its fields."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from penstock.core.job import Delivery
from penstock.core.logs import fields

if TYPE_CHECKING:
    Adapter = logging.LoggerAdapter[logging.Logger]
else:  # a generic class only from Python 3.11 on
    Adapter = logging.LoggerAdapter

__all__ = ["WorkerLog"]


class WorkerLog(Adapter):
    """The logger "penstock.worker" with the worker's name on every record.

        log.warning("%s: the lease is lost", job.id, job=job)
        log.error("%r is not there any more", queue, fields={"queue": queue})

    The fields (core/logs.py) are put together only if the record is written.

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
