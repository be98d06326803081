"""The network of the simulation: connections whose bytes take time, get lost, or come late."""

from __future__ import annotations

import asyncio
import contextvars
import errno
import random
from collections.abc import Callable, Iterable
from typing import Any

from tests.simulation.loop import Process, SimulatedLoop, current_process, outside
from tests.simulation.server import Server, Session

__all__ = ["Network"]

USUAL_DELAY = (0.0001, 0.0004)
"""Seconds that bytes need, least and most."""
ORDER_SECONDS = 1e-7
"""Seconds between the bytes of two writes, as timers of one time may end in any order."""
KEEPALIVE_SECONDS = 45.0
"""Seconds after which TCP finds a connection dead that carries no bytes any more."""


class Link:
    """A connection of a client to a server.

    Args:
        network: the network.
        server: the server.
        process: the process of the client.
        protocol: gets the bytes at the client's end.

    Attributes:
        process: the argument.
        unread: number of deliveries that the client's process has not taken: it may be stopped.
    """

    def __init__(
        self, network: Network, server: Server, process: Process | None, protocol: Any
    ) -> None:
        self._network = network
        self._loop = network.loop
        self.server = server
        self.process = process
        self._protocol = protocol
        self._context = contextvars.copy_context()
        self.transport = _Transport(self)
        self.session = Session(server, self._answer, process.name if process else "-")
        self._up_at = self._down_at = 0.0
        self.is_open = True
        self._is_mute = False
        self.unread = 0

    def _at(self, last: float) -> float:
        """Return when bytes that are sent now arrive: after those before them."""
        return max(last + ORDER_SECONDS, self._loop.time() + self._network.delay())

    def _outside(self, when: float, callback: Callable[..., None], *args: Any) -> None:
        self._loop.call_at(when, callback, *args, context=outside())

    # -- to the server ---------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Send bytes of the client."""
        if not self.is_open or self._is_mute:
            return
        self._network.strike(self, "request")
        if self.is_open and not self._is_mute:
            self._up_at = self.server.finish_at(self._at(self._up_at))
            self._outside(self._up_at, self._arrive, data)

    def _arrive(self, data: bytes) -> None:
        if self.is_open and not self._is_mute:
            self.session.feed(data)

    # -- to the client ---------------------------------------------------------------------

    def _answer(self, data: bytes) -> None:
        if not self.is_open or self._is_mute:
            return
        self._network.strike(self, "reply")
        if self.is_open and not self._is_mute:
            self._down_at = self._at(self._down_at)
            self._outside(self._down_at, self._reach, data)

    def _reach(self, data: bytes) -> None:
        if self.is_open:
            self.unread += 1
            self._loop.call_soon(self._take, data, context=self._context)

    def _take(self, data: bytes) -> None:
        self.unread -= 1
        if not self.transport.is_closing():
            self._protocol.data_received(data)

    # -- ends ------------------------------------------------------------------------------

    def mute(self) -> None:
        """Lose all bytes from now on, without a sign of it until TCP tests the connection."""
        self._is_mute = True
        self._outside(self._loop.time() + KEEPALIVE_SECONDS, self.cut)

    def delay(self, seconds: float) -> None:
        """Delay all bytes that are sent from now on by at least so many seconds."""
        self._up_at = self._down_at = max(self._up_at, self._down_at, self._loop.time() + seconds)

    def cut(self) -> None:
        """Break the connection: both ends see it, and bytes under way are lost."""
        if self.is_open:
            self.is_open = False
            self._end_session()
            self.unread += 1
            self._loop.call_soon(self._lose, _reset(), context=self._context)

    def close(self) -> None:
        """Close the client's end. The server sees it when all bytes have come."""
        if not self._is_mute:
            self._up_at = self._at(self._up_at)
            self._outside(self._up_at, self._end_session)

    def _lose(self, error: Exception | None) -> None:
        self.unread -= 1
        self.transport.lose(error)

    def tell_lost(self, error: Exception | None) -> None:
        """Tell the client that its connection is closed."""
        self._loop.call_soon(self._protocol.connection_lost, error)

    def _end_session(self) -> None:
        self.is_open = False
        self.session.end()
        self._network.links.pop(self, None)


class _Socket:
    """The socket of a connection, as the client asks for it."""

    def __init__(self, link: Link) -> None:
        self.link = link

    def setsockopt(self, *_: Any) -> None:
        """Set nothing."""


class _Transport(asyncio.Transport):
    """The client's end of a connection."""

    def __init__(self, link: Link) -> None:
        super().__init__({"socket": _Socket(link), "peername": (link.server.name, 6379)})
        self._link = link
        self._is_closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes."""
        if not self._is_closing:
            self._link.send(bytes(data))

    def is_closing(self) -> bool:
        """Return True after `close`."""
        return self._is_closing

    def close(self) -> None:
        """Close the connection."""
        if not self._is_closing:
            self._link.close()
            self.lose(None)

    abort = close

    def lose(self, error: Exception | None) -> None:
        """Note that the connection is closed."""
        if not self._is_closing:
            self._is_closing = True
            self._link.tell_lost(error)

    def get_write_buffer_size(self) -> int:
        """Return 0: bytes are sent at once."""
        return 0

    def pause_reading(self) -> None:
        """Do nothing: the client's buffers have no limit."""

    def resume_reading(self) -> None:
        """Do nothing."""


class Network:
    """Connections between processes and servers.

    Args:
        draws: the source of randomness.

    Attributes:
        loop: the event loop; set before the first connection.
        servers: the servers by name.
        links: the open connections, in the order in which they were opened.
        strike: may break a connection that is about to carry a request or a reply.
        refused: names of servers that refuse connections.
    """

    loop: SimulatedLoop

    def __init__(self, draws: random.Random) -> None:
        self._draws = draws
        self.servers: dict[str, Server] = {}
        self.links: dict[Link, None] = {}
        self.strike: Callable[[Link, str], None] = _spare
        self.refused: set[str] = set()

    def clear(self) -> None:
        """Forget the connections, and what strikes them."""
        self.links.clear()
        self.strike = _spare

    def delay(self) -> float:
        """Draw the seconds that bytes need."""
        return self._draws.uniform(*USUAL_DELAY)

    async def connect(
        self, make_protocol: Callable[[], Any], host: str, port: int, **_: Any
    ) -> tuple[asyncio.Transport, Any]:
        """Open a connection, as `create_connection` of an event loop does."""
        del port
        await asyncio.sleep(self.delay())
        if host in self.refused:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"{host} refuses connections")
        protocol = make_protocol()
        link = Link(self, self.servers[host], current_process(), protocol)
        self.links[link] = None
        protocol.connection_made(link.transport)
        return link.transport, protocol

    def links_of(self, process: Process) -> list[Link]:
        """Return the open connections of a process."""
        return [link for link in self.links if link.process is process]


def _spare(link: Link, what: str) -> None:
    """Do nothing to a request or a reply."""


def _reset() -> Exception:
    return ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")


def readable(socks: Iterable[_Socket], timeout: float) -> list[_Socket]:
    """Return the sockets that can be read, in place of the kernel."""
    assert timeout == 0
    return [sock for sock in socks if sock.link.unread]
