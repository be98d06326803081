"""An HTTP server that answers GET requests in threads of its own."""

from __future__ import annotations

import socket
import socketserver
import sys
import threading
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeAlias

from penstock.core.jobs.logs import get_logger
from penstock.core.values.answers import HttpAnswer, json_answer, unavailable
from penstock.core.values.urls import host_and_port
from penstock.worker.activities import in_thread

__all__ = ["METRIC_PATHS", "AnswerPath", "AnswerServer", "one_at_a_time"]

AnswerPath: TypeAlias = Callable[[str], HttpAnswer | None]
"""Returns the answer to GET of a path, without its query; None = there is nothing at it."""
LOG = get_logger("penstock.worker.health")
METRIC_PATHS = "/metrics and /queues/NAME.json"
"""Paths of the figures of queues."""
SERVER_POLL_INTERVAL = 0.25
"""Most seconds that `AnswerServer.close` takes."""
REQUEST_SECONDS = 5.0
"""Seconds that a client may take to send its request."""
TURN_SECONDS = 5.0
"""Most seconds that a request waits for the answers to earlier ones."""


def one_at_a_time(answer: AnswerPath) -> AnswerPath:
    """Return a function that answers one request after the other: many cost no more at once.

    One that waits too long for its turn is answered with 503, so they do not pile up.
    """
    lock = threading.Lock()

    def answer_alone(path: str) -> HttpAnswer | None:
        if not lock.acquire(timeout=TURN_SECONDS):
            return unavailable("an earlier request is still being answered")
        try:
            return answer(path)
        finally:
            lock.release()

    return answer_alone


class AnswerServer(ThreadingHTTPServer):
    """Answers GET requests, in threads of its own, from construction to `close()`.

    Args:
        answer: answers requests.
        paths: what there is, for the answer 404.
        host: address to listen on. Every client that reaches it can read the answers.
        port: port to listen on; 0 = any free one.

    Attributes:
        port: the port it listens on.

    Raises:
        OSError: it can't listen there.
    """

    daemon_threads = True

    def __init__(
        self,
        answer: AnswerPath,
        paths: str,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self.answer = answer
        self.paths = paths
        self.host = host
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), _Answer)
        self.port: int = self.server_address[1]
        self._thread = in_thread(
            partial(self.serve_forever, SERVER_POLL_INTERVAL), "penstock-health"
        )

    def url_of(self, path: str) -> str:
        """Return the URL of a path."""
        return f"http://{host_and_port(self.host, self.port)}{path}"

    def close(self) -> None:
        """Stop answering and free the port; a second call does nothing."""
        self.shutdown()
        self.server_close()
        self._thread.join()

    def __exit__(self, *_: object) -> None:
        self.close()

    def server_bind(self) -> None:
        """Bind the socket. HTTPServer also asks the DNS for this host, for up to half a minute."""
        socketserver.TCPServer.server_bind(self)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - socketserver's
        """Log a client that closed its connection or sent nothing, without a traceback."""
        LOG.debug("no answer to a probe from %s: %r", client_address, sys.exc_info()[1])


class _Answer(BaseHTTPRequestHandler):
    server: AnswerServer
    server_version = "penstock"
    sys_version = ""
    timeout = REQUEST_SECONDS

    def do_GET(self) -> None:
        """Answer a request."""
        path = self.path.partition("?")[0]
        try:
            answer = self.server.answer(path)
        except Exception as error:
            LOG.exception("%s can't be answered", path)
            answer = json_answer({"error": repr(error)}, HTTPStatus.INTERNAL_SERVER_ERROR)
        if answer is None:
            error_text = {"error": f"there are {self.server.paths}"}
            answer = json_answer(error_text, HTTPStatus.NOT_FOUND)
        raw = answer.body.encode()
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(raw)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(raw)

    do_HEAD = do_GET  # noqa: N815 - the name is http.server's

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - http.server's name
        """Log no request."""
