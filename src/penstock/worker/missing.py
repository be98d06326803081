"""The handlers that jobs ask for and that a worker does not have."""

from __future__ import annotations

from collections.abc import Callable

from penstock.core.jobs.job import Delivery
from penstock.core.jobs.logs import Fields, RateLimit, get_logger
from penstock.core.jobs.middleware import HANDLER
from penstock.worker.handlers import Handlers
from penstock.worker.messages import shortened

__all__ = ["MissingHandlers", "NoHandler"]

logger = get_logger("penstock.worker")

WARNING_INTERVAL = 60.0
"""Seconds between two warnings about one name."""
RECENT_SECONDS = 150.0
"""Seconds for which a name counts as missing: a job comes back to such a worker after 60 s."""
MOST_MISSING_NAMES = 100
"""Most names that are told apart."""
MOST_KNOWN_NAMES = 50
"""Most handlers of the worker that a warning lists."""


class NoHandler(Exception):
    """Raised by a handler that stands for others: it has none for the job, which is given back.

    The text is the reason.
    """


class MissingHandlers:
    """Notes the names of jobs that a worker gives back, and warns of them once a minute.

    The loop notes them, the thread of the heartbeat reads them.

    Args:
        handlers: those that the worker has.
        clock: returns monotonic seconds.
    """

    def __init__(self, handlers: Handlers, clock: Callable[[], float]) -> None:
        self._handlers = handlers
        self._clock = clock
        self._seen: dict[tuple[str, str], float] = {}
        self._limit = RateLimit(WARNING_INTERVAL, clock)

    def note(self, job: Delivery, reason: str = "") -> str:
        """Note the handler of a job that is given back; return the reason to keep with the job."""
        reason = reason or self._handlers.missing(job)
        key = (job.queue_name, job.headers.get(HANDLER, ""))
        is_known = key in self._seen or len(self._seen) < MOST_MISSING_NAMES
        if is_known:
            self._seen[key] = self._clock()
        if self._limit.allows(" ".join(key) if is_known else ""):
            text = "%s of queue %r is given back: %s; this worker has %s"
            known = shortened([one.title for one in self._handlers], most=MOST_KNOWN_NAMES)
            logger.warning(text, job.id, job.queue_name, reason, known, extra=Fields(job))
        return reason

    def recent(self) -> dict[str, list[str]]:
        """Return the names of the last minutes, by queue; "" = jobs without a name."""
        since, names = self._clock() - RECENT_SECONDS, dict[str, list[str]]()
        for (queue, name), at in list(self._seen.items()):
            if at >= since:
                names.setdefault(queue, []).append(name)
        return names
