"""A stub of the Docker engine with the part of its HTTP API that starts one Redis container.

The container that it starts is a server of this machine. Beside it testcontainers starts Ryuk, a
container that removes the others when the connection to it ends. The image of Redis is not there
before it is fetched, and a container runs when it has been looked at once.
"""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from penstock.embedded import EmbeddedServer

__all__ = ["StubEngine"]


@dataclass
class Container:
    """A container that a client has created: its id, its port here, and its states to come."""

    id: str
    inside: str
    port: int | None
    states: list[str] = field(default_factory=lambda: ["created", "running"])

    def described(self) -> dict[str, Any]:
        """Return what the engine tells about it."""
        state = self.states[0] if len(self.states) == 1 else self.states.pop(0)
        bound = {self.inside: [{"HostIp": "127.0.0.1", "HostPort": str(self.port)}]}
        return {
            "Id": self.id,
            "Name": "/stub",
            "Image": "sha256:beef",
            "Config": {"Image": "stub", "Labels": {}},
            "HostConfig": {"NetworkMode": "bridge"},
            "State": {"Status": state, "Running": state == "running"},
            "NetworkSettings": {"Ports": bound, "Networks": {}},
        }


class StubEngine(ThreadingHTTPServer):
    """A server on loopback.

    Attributes:
        calls: the requests, as `POST containers/create`.
        containers: those that run now, by their images.
        removed: the images of those that were removed.
        heard: what Ryuk was told: the labels of containers to remove.
    """

    daemon_threads = True

    def __init__(self, redis: EmbeddedServer) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.redis = redis
        self.calls: list[str] = []
        self.containers: dict[str, Container] = {}
        self.removed: list[str] = []
        self.heard: list[bytes] = []
        self._images = {"testcontainers/ryuk"}
        self._ryuk = socket.create_server(("127.0.0.1", 0))

    @property
    def url(self) -> str:
        """The value for DOCKER_HOST."""
        return f"tcp://127.0.0.1:{self.server_address[1]}"

    @contextmanager
    def serving(self) -> Iterator[StubEngine]:
        """Answer requests in a thread of its own, and be Ryuk in another."""
        runs = (lambda: self.serve_forever(0.02), self._reap)
        threads = [threading.Thread(target=run, daemon=True) for run in runs]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self.shutdown()
            self.server_close()
            self._ryuk.shutdown(socket.SHUT_RDWR)
            self._ryuk.close()
            for thread in threads:
                thread.join()

    def _reap(self) -> None:
        while True:
            try:
                connection, _ = self._ryuk.accept()
            except OSError:  # it is closed
                return
            with connection:
                while told := connection.recv(1000):
                    self.heard.append(told)

    def answer(self, call: str, query: str, sent: Any) -> tuple[int, Any]:
        """Return the status and the JSON of a request."""
        answers: dict[str, tuple[int, Any]] = {
            "GET version": (200, {"ApiVersion": "1.44", "Version": "25", "MinAPIVersion": "1.24"}),
            "GET _ping": (200, "OK"),
            "GET images/json": (200, []),
        }
        if call in answers:
            return answers[call]
        if call == "POST images/create":
            name = re.findall("fromImage=([^&]+)", query)[0]
            self._images.add(name)
            return 200, {"status": f"pulled {name}"}
        if asked := re.fullmatch(r"GET images/(.+)/json", call):
            is_here = asked[1].partition(":")[0] in self._images
            return (200, {"Id": "sha256:beef"}) if is_here else (404, {"message": "no such image"})
        if call == "POST containers/create":
            return self._create(sent)
        for image, container in list(self.containers.items()):
            if call == f"POST containers/{container.id}/start":
                return 204, None
            if call == f"GET containers/{container.id}/json":
                return 200, container.described()
            if call == f"DELETE containers/{container.id}":
                del self.containers[image]
                self.removed.append(image)
                return 204, None
        return 404, {"message": f"the stub does not know {call}"}

    def _create(self, sent: Any) -> tuple[int, Any]:
        image = sent["Image"].partition(":")[0]
        [inside] = sent["HostConfig"]["PortBindings"]
        port = self._ryuk.getsockname()[1] if image.endswith("ryuk") else self.redis.port
        made = self.containers[image] = Container(f"{len(self.calls):060x}", inside, port)
        return 201, {"Id": made.id, "Warnings": []}


class _Handler(BaseHTTPRequestHandler):
    server: StubEngine
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        call = f"{self.command} {re.sub(r'^/(v[0-9.]+/)?', '', path)}"
        self.server.calls.append(call)
        sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        status, value = self.server.answer(call, query, json.loads(sent) if sent else None)
        body = b"" if value is None else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_DELETE = do_GET  # noqa: N815 - the names are the base's

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is the base's
        """Keep the tests' output clean."""
