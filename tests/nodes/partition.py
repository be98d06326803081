"""A service whose network can be cut between servers, and between clients and servers.

    with Partitioned() as service, Penstock(service.url) as ps:
        cut = service.inner[service.primary()]     # what other servers and Sentinels come in by
        cut.hole()                                 # the primary is alone with the clients
        ...
        cut.restore()

Each server has two doors. The inner one is where Sentinels and servers believe it to be; clients
come in by the outer one, as the Sentinels that they ask, by doors of their own (`gates`), say so.
"""

from __future__ import annotations

import redis

from penstock.embedded import EmbeddedServer
from tests.connection.stub import Command, Stub, bulk
from tests.nodes.service import LOOPBACK, NAME, Address, Service
from tests.support.proxy import Proxy

__all__ = ["Partitioned"]

UNREACHABLE = (LOOPBACK, 1)


class Front(Stub):
    """A Sentinel proxy that names the outer doors instead of the inner ones.

    Args:
        sentinel: a client of it.
        outer: from the port of an inner door to that of the outer one.
    """

    def __init__(self, sentinel: redis.Redis, outer: dict[int, int]) -> None:
        self._sentinel = sentinel
        self._outer = outer
        super().__init__(self._says)

    @property
    def port(self) -> int:
        """Return its port."""
        return int(self.url.rpartition(":")[2].removesuffix("/0"))

    def _says(self, command: Command) -> bytes:
        if command[0] != b"SENTINEL":
            return b"+OK\r\n"
        try:
            reply = self._sentinel.execute_command(b" ".join(command[:2]).decode(), *command[2:])
        except redis.ResponseError as error:
            return b"-ERR %b\r\n" % str(error).encode()
        if isinstance(reply, dict):
            flat = [str(text).encode() for pair in reply.items() for text in pair]
        else:
            host, port = reply
            flat = [host, b"%d" % self._outer[int(port)]]
        return b"*%d\r\n%b" % (len(flat), b"".join(map(bulk, flat)))


class Partitioned(Service):
    """Servers behind proxies.

    Attributes:
        inner, outer: the doors of each server.
        gates: the doors of the Sentinels, for clients.
    """

    def __init__(self) -> None:
        self.inner: dict[EmbeddedServer, Proxy] = {}
        self.outer: dict[EmbeddedServer, Proxy] = {}
        self.gates: list[Proxy] = []
        super().__init__()
        ports = {self.inner[one].port: self.outer[one].port for one in self.servers}
        for sentinel in self.sentinels:
            front = self._stack.enter_context(Front(self.raw(sentinel), ports))
            self.gates.append(self._stack.enter_context(Proxy((LOOPBACK, front.port))))

    def _launch(self) -> EmbeddedServer:
        inner, outer = Proxy(UNREACHABLE), Proxy(UNREACHABLE)
        self._stack.callback(inner.close)
        self._stack.callback(outer.close)
        seen = ("--replica-announce-ip", LOOPBACK, "--replica-announce-port", str(inner.port))
        started = EmbeddedServer(self.binary, tcp=True, args=(*self._args, *seen))
        inner.redirect(started.address)
        outer.redirect(started.address)
        self.inner[started], self.outer[started] = inner, outer
        return self._stack.enter_context(started)

    def _seen(self, server: EmbeddedServer) -> Address:
        return self.inner[server].address

    @property
    def url(self) -> str:
        """Return the service's URL for clients."""
        hosts = ",".join(f"{LOOPBACK}:{gate.port}" for gate in self.gates)
        return f"redis+sentinel://{hosts}/{NAME}?socket_timeout=1"

    def isolate(self, server: EmbeddedServer) -> None:
        """Drop all data from other servers and Sentinels to it, and its answers."""
        self.inner[server].hole()

    def heal(self) -> None:
        """Restore the network, and wait until the service is whole."""
        for door in (*self.inner.values(), *self.outer.values(), *self.gates):
            door.restore()
        self.wait_whole()
