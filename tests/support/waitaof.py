"""WAITAOF for a server without it, as if every append-only file were always synced.

With `appendfsync always` a server answers, and a replica confirms, when its disk has the write. So
WAIT equals WAITAOF, except for replicas without a file, which WAITAOF never counts.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import hiredis
import redis

from penstock.embedded import EmbeddedServer
from penstock.wire.packing import pack
from tests.support.proxy import Listener

__all__ = ["WaitAof"]

REFUSED = b"-ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.\r\n"


class WaitAof:
    """A proxy of a server that answers WAITAOF.

    Args:
        server: gets WAIT instead.
        keeping: how many of its replicas have a file.
    """

    def __init__(self, server: EmbeddedServer, keeping: int = 0) -> None:
        self._upstream = server.address
        self._keeping = keeping
        self._raw = redis.Redis.from_url(server.url, protocol=2, decode_responses=True)
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []
        listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{listening.getsockname()[1]}/0"
        self._listener = Listener(listening, self._accept)

    def __enter__(self) -> WaitAof:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        for end in self._sockets:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for end in self._sockets:
            end.close()
        self._raw.close()

    def _accept(self, client: socket.socket) -> None:
        server = socket.create_connection(self._upstream)  # type: ignore[arg-type]  # TCP
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets.append(end)
        asked: deque[bool] = deque()

        def up(command: list[bytes]) -> bytes:
            asked.append(command[0].upper() == b"WAITAOF")
            return pack((b"WAIT", *command[2:])) if asked[-1] else pack(tuple(command))

        def down(reply: Any) -> bytes:
            return self._answer(reply) if asked.popleft() else packed(reply)

        for pump in ((client, server, up), (server, client, down)):
            self._threads.append(threading.Thread(target=_pump, args=pump, daemon=True))
            self._threads[-1].start()

    def _answer(self, confirmed: int | Exception) -> bytes:
        if isinstance(confirmed, Exception):
            return packed(confirmed)
        if self._raw.config_get("appendonly")["appendonly"] == "no":
            return REFUSED
        return packed([1, min(confirmed, self._keeping)])


def _pump(source: socket.socket, target: socket.socket, turned: Callable[[Any], bytes]) -> None:
    reader = hiredis.Reader()
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            reader.feed(data)
            out = []
            while (found := reader.gets()) is not False:
                out.append(turned(found))
            if out:
                target.sendall(b"".join(out))
        target.shutdown(socket.SHUT_WR)


def packed(reply: Any) -> bytes:
    """Return an encoded reply; a status becomes a bulk string."""
    if reply is None:
        return b"$-1\r\n"
    if isinstance(reply, int):
        return b":%d\r\n" % reply
    if isinstance(reply, bytes):
        return b"$%d\r\n%b\r\n" % (len(reply), reply)
    if isinstance(reply, list):
        return b"*%d\r\n" % len(reply) + b"".join(map(packed, reply))
    return b"-%b\r\n" % str(reply).encode()
