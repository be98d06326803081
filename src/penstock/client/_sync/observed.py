# From src/penstock/client/_async/observed.py by tools/unasync.py; do not edit.
"""The queue of a client that has middleware: hooks around the calls that enqueue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from penstock.client._sync.queue import Queue
from penstock.core.enqueuing.options import headers_of
from penstock.core.jobs.job import BulkEnqueued, Enqueued
from penstock.core.jobs.middleware import enqueue_event, enqueuing

__all__ = ["ObservedQueue"]


class ObservedQueue(Queue):
    """A queue whose enqueues pass through the middleware of its client.

    A class of its own, so that without middleware a queue pays nothing for it.
    """

    def enqueue(
        self, body: Any, *, headers: Mapping[str, str] | None = None, **options: Any
    ) -> Enqueued:
        """Run `Queue.enqueue` inside the hooks."""
        event = enqueue_event(self.name, 1, headers_of(body, headers))
        with enqueuing(self.backend.terms.middleware, event):
            result = super().enqueue(body, headers=event.headers or None, **options)
            event.results = (result,)
        return result

    def enqueue_many(
        self,
        bodies: Iterable[Any],
        *,
        headers: Mapping[str, str] | None = None,
        **options: Any,
    ) -> BulkEnqueued:
        """Run `Queue.enqueue_many` inside the hooks: they run once, not once a chunk."""
        event = enqueue_event(self.name, None, headers_of(bodies, headers))
        with enqueuing(self.backend.terms.middleware, event):
            results = super().enqueue_many(bodies, headers=event.headers or None, **options)
            event.results = results
        return results
