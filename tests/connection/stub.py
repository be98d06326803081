"""A server whose answers the test chooses."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from types import TracebackType

import hiredis

from tests.support.proxy import LOOPBACK, Listener

__all__ = ["Stub", "bulk", "info"]

Command = list[bytes]


def bulk(data: bytes) -> bytes:
    """Return a bulk string."""
    return b"$%d\r\n%b\r\n" % (len(data), data)


def info(**fields: str) -> bytes:
    """Return a reply to INFO."""
    lines = "".join(f"{name}:{value}\r\n" for name, value in fields.items())
    return bulk(f"# Server\r\n{lines}".encode())


class Stub:
    """A server on loopback that answers each command with the bytes returned by `answer`.

    Args:
        answer: from a command to its reply; b"" closes the connection instead.
    """

    def __init__(self, answer: Callable[[Command], bytes]) -> None:
        self._answer = answer
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.commands: list[Command] = []
        listening = socket.socket()
        listening.bind((LOOPBACK, 0))
        self.url = f"redis://{LOOPBACK}:{listening.getsockname()[1]}/0"
        self._listener = Listener(listening, self._accept)

    @property
    def connections(self) -> int:
        """Return the number of accepted connections."""
        return len(self._sockets)

    def names(self) -> list[bytes]:
        """Return the names of the received commands, without a client's handshake."""
        return [one[0] for one in self.commands if one[0] not in (b"CLIENT", b"HELLO", b"SELECT")]

    def _accept(self, accepted: socket.socket) -> None:
        self._sockets.append(accepted)
        thread = threading.Thread(target=self._serve, args=(accepted,), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _serve(self, accepted: socket.socket) -> None:
        reader = hiredis.Reader()
        with contextlib.suppress(OSError), accepted:
            while data := accepted.recv(65536):
                reader.feed(data)
                while (command := reader.gets()) is not False:
                    self.commands.append(command)
                    reply = self._answer(command)
                    if not reply:
                        return
                    accepted.sendall(reply)

    def __enter__(self) -> Stub:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._listener.close()
        for accepted in self._sockets:
            with contextlib.suppress(OSError):
                accepted.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)
