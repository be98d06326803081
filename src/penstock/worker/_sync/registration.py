# From src/penstock/worker/_async/registration.py by tools/unasync.py; do not edit.
"""The entry of a worker in the registry of its nodes (protocol/workers.md)."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable

from penstock.client._sync.transport.executor import Executor
from penstock.client.clock import monotonic
from penstock.core.calls.failures import about_server
from penstock.core.jobs.logs import get_logger
from penstock.core.jobs.workers import WORKER_ENTRY_MS
from penstock.wire.keys import worker_key, workers_key

__all__ = ["Registration"]

logger = get_logger("penstock")

REGISTRATION_DELAY = 1.0
"""Seconds after the start of a worker until it is registered: a short burst writes nothing."""
ENTRY_INTERVAL = 15.0
"""Seconds between two writes of an entry."""
LIST_INTERVAL = 600.0
"""Seconds between two writes of its id in the list, and two removals of those that are too old."""
LISTED_MS = 3_600_000
"""Age at which an id is removed, and time to live of the list after its last change."""


class Registration:
    """Tells the nodes of a worker that it runs. The thread of the heartbeat calls it.

    A failure never disturbs work: the entry is written again later, or ends by itself.

    Args:
        entry: returns the text of the entry. Its arguments are `since_ms`, the time of the worker's
            start, and `seen_ms`, the present one.
        prefix: prefix of all keys.

    Attributes:
        at: when to write the entry next, by the clock.
    """

    def __init__(self, entry: Callable[..., str], prefix: str) -> None:
        self._entry = entry
        self._prefix = prefix
        self._id = secrets.token_hex(8)
        self._began = monotonic()
        self._tidy_at = 0.0
        self._since_ms = 0
        self._executors: set[Executor] = set()
        self._ahead_ms: dict[Executor, int] = {}
        self._has_failed = False
        self.at = self._began + REGISTRATION_DELAY

    def renew(self, nodes: Iterable[Executor]) -> None:
        """Write the entry to nodes: one command for each, and rarely the list."""
        self.at = monotonic() + ENTRY_INTERVAL
        is_tidy = monotonic() < self._tidy_at
        for executor in nodes:
            try:
                was_there = self._write(executor)
                if not (was_there and is_tidy and executor in self._executors):
                    self._tidy(executor)
                    self._executors.add(executor)
            except Exception as error:  # noqa: BLE001, PERF203  # a worker works without an entry
                self._executors.discard(executor)
                executor.close()
                if not (self._has_failed or about_server(error)):  # of which the loop tells
                    self._has_failed = True
                    text = "the list of workers can't be written: %s: %s"
                    logger.info(text, type(error).__name__, error)
        if not is_tidy:
            self._tidy_at = monotonic() + LIST_INTERVAL

    def _write(self, executor: Executor) -> bool:
        """Write the entry; return False if there was none, so that its id may not be listed."""
        if executor not in self._executors:  # else its clock is known
            self._ahead_ms[executor] = executor.time_ms() - int(monotonic() * 1000)
        now_ms = self._ahead_ms[executor] + int(monotonic() * 1000)
        self._since_ms = self._since_ms or now_ms - int((monotonic() - self._began) * 1000)
        entry = self._entry(since_ms=self._since_ms, seen_ms=now_ms)
        key = worker_key(self._prefix, self._id)
        return executor.command("SET", key, entry, "PX", WORKER_ENTRY_MS, "GET") is not None

    def _tidy(self, executor: Executor) -> None:
        """List its id as a new one, and remove old ones."""
        now_ms = executor.time_ms()
        self._ahead_ms[executor] = now_ms - int(monotonic() * 1000)
        key, old = workers_key(self._prefix), now_ms - LISTED_MS
        executor.command("ZADD", key, now_ms, self._id)
        executor.command("ZREMRANGEBYSCORE", key, "-inf", old)
        executor.command("PEXPIRE", key, LISTED_MS)

    def remove(self) -> None:
        """Remove the entry where it was written."""
        for executor in self._executors:
            try:
                executor.connections.give_up_soon()
                executor.command("DEL", worker_key(self._prefix, self._id))
                executor.command("ZREM", workers_key(self._prefix), self._id)
            except Exception as error:  # noqa: BLE001, PERF203  # it ends by itself
                logger.debug("the entry of a worker stays: %s: %s", type(error).__name__, error)
