"""A stub of the Docker engine with the part of its HTTP API that starts one Redis container.

The container that it starts is a server of this machine.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from penstock.embedded import EmbeddedServer

__all__ = ["StubEngine"]

ID = "c0ffee" * 10


class StubEngine(ThreadingHTTPServer):
    """A server on loopback; `calls` lists the requests as `POST containers/create`."""

    daemon_threads = True

    def __init__(self, redis: EmbeddedServer) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.redis = redis
        self.calls: list[str] = []

    @property
    def url(self) -> str:
        """The value for DOCKER_HOST."""
        return f"tcp://127.0.0.1:{self.server_address[1]}"

    @contextmanager
    def serving(self) -> Iterator[StubEngine]:
        """Answer requests in a thread of its own."""
        thread = threading.Thread(target=self.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.shutdown()
            self.server_close()
            thread.join()

    def answer(self, call: str) -> tuple[int, Any]:
        """Return the status and the JSON of a request."""
        bound = {"6379/tcp": [{"HostIp": "127.0.0.1", "HostPort": str(self.redis.port)}]}
        container = {
            "Id": ID,
            "Name": "/redis",
            "Image": "sha256:beef",
            "Config": {"Image": "redis", "Labels": {}},
            "HostConfig": {"NetworkMode": "bridge"},
            "State": {"Status": "running", "Running": True},
            "NetworkSettings": {"Ports": bound, "Networks": {}},
        }
        answers: dict[str, tuple[int, Any]] = {
            "GET version": (200, {"ApiVersion": "1.44", "Version": "25", "MinAPIVersion": "1.24"}),
            "GET _ping": (200, "OK"),
            "GET images/json": (200, [{"Id": "sha256:beef", "RepoTags": ["redis:8-alpine"]}]),
            "GET images/<any>/json": (200, {"Id": "sha256:beef"}),
            "POST containers/create": (201, {"Id": ID, "Warnings": []}),
            f"POST containers/{ID}/start": (204, None),
            f"GET containers/{ID}/json": (200, container),
            "GET containers/json": (200, [container]),
            f"DELETE containers/{ID}": (204, None),
        }
        call = re.sub(r"^GET images/.+/json$", "GET images/<any>/json", call)
        return answers.get(call, (404, {"message": f"the stub does not know {call}"}))


class _Handler(BaseHTTPRequestHandler):
    server: StubEngine
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = re.sub(r"^/(v[0-9.]+/)?", "", self.path.partition("?")[0])
        self.server.calls.append(f"{self.command} {path}")
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        status, value = self.server.answer(self.server.calls[-1])
        body = b"" if value is None else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_DELETE = do_GET  # noqa: N815 - the names are the base's

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is the base's
        """Keep the tests' output clean."""
