"""The health of a worker for probes: over HTTP, or as a file."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from http import HTTPStatus
from pathlib import Path
from typing import Any, Protocol

from penstock.core.jobs.logs import RateLimit, get_logger
from penstock.core.values.answers import HttpAnswer, json_answer
from penstock.worker.activities import in_thread
from penstock.worker.answering import METRIC_PATHS, AnswerPath, AnswerServer

__all__ = ["HealthFile", "HealthServer", "Probed", "document", "health_problem"]

LOG = get_logger(__name__)
HEALTH_FILE_INTERVAL = 1.0
"""Seconds between two updates of a file."""


class StatusLike(Protocol):
    """The status of a worker or supervisor."""

    def as_dict(self) -> dict[str, Any]:
        """Return the status as JSON takes it."""


class Probed(Protocol):
    """A worker, or the supervisor of several. It answers at once."""

    def healthy(self) -> bool:
        """Return whether it works."""

    def status(self) -> StatusLike:
        """Return its status."""


def document(probed: Probed) -> dict[str, Any]:
    """Return a status for JSON, with `healthy` in it."""
    return {**probed.status().as_dict(), "healthy": bool(probed.healthy())}


class HealthServer(AnswerServer):
    """Answers probes over HTTP, in a thread of its own, from construction to `close()`.

    GET /health answers 200 while `probed` is healthy, else 503. GET /status answers 200 with the
    whole status. Both bodies are JSON.

    Args:
        probed: the worker or supervisor.
        host: address to listen on. Every client that reaches it can read the status.
        port: port to listen on; 0 = any free one.
        more: answers other paths: the figures of queues. None = there are no others.

    Raises:
        OSError: it can't listen there.
    """

    def __init__(
        self,
        probed: Probed,
        host: str = "127.0.0.1",
        port: int = 0,
        more: AnswerPath | None = None,
    ) -> None:
        def answer(path: str) -> HttpAnswer | None:
            if path == "/health":
                healthy = bool(probed.healthy())
                status = HTTPStatus.OK if healthy else HTTPStatus.SERVICE_UNAVAILABLE
                return json_answer({"healthy": healthy}, status)
            if path == "/status":
                return json_answer(document(probed))
            return None if more is None else more(path)

        paths = "/health and /status" if more is None else f"/health, /status, {METRIC_PATHS}"
        super().__init__(answer, paths, host, port)

    @property
    def url(self) -> str:
        """URL of the health endpoint."""
        return self.url_of("/health")


class HealthFile(contextlib.AbstractContextManager["HealthFile"]):
    """Writes the status to a file every second, from construction to `close()`, which removes it.

    The file is always whole: it is replaced, never changed. `health_problem` and `penstock healthy`
    read it, and take its time of modification as the sign of life.

    Args:
        path: the file; its directory has to exist.
        probed: the worker or supervisor.
        every: seconds between two updates.

    Raises:
        OSError: it can't be written.
    """

    def __init__(
        self, path: str | Path, probed: Probed, *, every: float = HEALTH_FILE_INTERVAL
    ) -> None:
        self.path = Path(path)
        self._probed = probed
        self._every = every
        self._new = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        self._closed = threading.Event()
        self._write()
        self._thread = in_thread(self._run, "penstock-health-file")

    def close(self) -> None:
        """Remove the file; a second call does nothing."""
        self._closed.set()
        self._thread.join()
        self.path.unlink(missing_ok=True)

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        complaints = RateLimit(60, time.monotonic)
        while not self._closed.wait(self._every):
            try:
                self._write()
            except Exception:  # noqa: PERF203  # a full disk, for example: the file grows old
                if complaints.allows("file"):
                    text = "the health file can't be written"
                    LOG.exception(text, extra={"path": str(self.path)})

    def _write(self) -> None:
        try:
            self._new.write_text(json.dumps(document(self._probed), default=str) + "\n")
            self._new.replace(self.path)
        except BaseException:
            with contextlib.suppress(OSError):
                self._new.unlink(missing_ok=True)
            raise


def health_problem(path: str | Path, *, max_age: float) -> str:
    """Return what is wrong with the writer of a health file; empty = nothing.

    Args:
        path: as given to `HealthFile`.
        max_age: most seconds since the last sign of life.
    """
    path = Path(path)
    try:
        # The time first: a file that is replaced in between is younger than it seems.
        age = time.time() - path.stat().st_mtime
        healthy = json.loads(path.read_text())["healthy"]
    except OSError as error:
        return f"{path}: {error.strerror}"
    except (ValueError, KeyError, TypeError):
        return f"{path}: not a health file"
    if age > max_age:
        return f"{path}: no sign of life for {age:.0f} s"
    if age < -max_age:  # the clock was set back: it may be of any age
        return f"{path}: its time is {-age:.0f} s from now"
    return "" if healthy is True else f"{path}: it says that it is not healthy"
