"""What log records say beside their text: fields for formatters that write JSON.

This is the one place where the fields of a job have their names; docs/observing.md lists them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from penstock.core.job import Delivery
from penstock.core.middleware import HANDLER

__all__ = ["FIELDS", "Fields"]

FIELDS = ("job_id", "queue", "handler", "worker", "attempt")
"""The fields that a record about a job has."""


class Fields(Mapping[str, Any]):
    """The fields of a record about a job: `logger.warning("…", extra=Fields(job))`.

    They are put together when logging looks at them, so a record nobody writes costs nothing.

    Args:
        job: the handler of one without a name is None.
        more: others beside them.
    """

    def __init__(self, job: Delivery, **more: Any) -> None:
        self._job = job
        self._more = more

    @cached_property
    def _all(self) -> dict[str, Any]:
        job = self._job
        handler = job.headers.get(HANDLER)
        own = (job.id, job.queue_name, handler, job.owner, job.attempt)
        return {**dict(zip(FIELDS, own, strict=True)), **self._more}

    def __getitem__(self, name: str) -> Any:
        return self._all[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)
