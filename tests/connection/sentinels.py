"""A Sentinel whose answers the test sets, and a server that is no longer the primary."""

from __future__ import annotations

from collections.abc import Callable

from tests.connection.stub import Command, Stub, bulk, info

__all__ = ["Demoted", "FakeSentinel", "sentinel_url"]

NAME = b"jobs"


class FakeSentinel(Stub):
    """A Sentinel that knows one service.

    Args:
        port: of its primary.

    Attributes:
        port, epoch, peers: its answers; a port of 0 means an unknown name.
        asked: how often it was asked where the primary is.
    """

    def __init__(self, port: int | None, *, epoch: int = 0, peers: int = 2) -> None:
        self.port = port or 0
        self.epoch = epoch
        self.peers = peers
        self.asked = 0
        super().__init__(self._says)

    @property
    def place(self) -> str:
        """Host and port."""
        return self.url.removeprefix("redis://").removesuffix("/0")

    def moves(self, port: int | None) -> None:
        """Name another server as the primary from now on."""
        self.port, self.epoch = port or 0, self.epoch + 1

    def _says(self, command: Command) -> bytes:
        if command[0] != b"SENTINEL":
            return b"+OK\r\n"
        if command[1] == b"GET-MASTER-ADDR-BY-NAME":
            self.asked += 1
        known = command[2] == NAME and self.port
        if command[1] == b"GET-MASTER-ADDR-BY-NAME":
            return _array(b"127.0.0.1", b"%d" % self.port) if known else b"*-1\r\n"
        if not known:
            return b"-ERR No such master with that name\r\n"
        state = (b"config-epoch", b"%d" % self.epoch, b"num-other-sentinels", b"%d" % self.peers)
        return _array(b"name", NAME, *state)


def _array(*texts: bytes) -> bytes:
    return b"*%d\r\n%b" % (len(texts), b"".join(map(bulk, texts)))


def sentinel_url(*sentinels: FakeSentinel, patience: int | None = None) -> str:
    """Return the URL of the service with these Sentinels, each of which has this many seconds."""
    url = f"redis+sentinel://{','.join(one.place for one in sentinels)}/jobs"
    return f"{url}?sentinel_socket_timeout={patience}" if patience else url


class Demoted(Stub):
    """A demoted primary: it claims to be the primary and answers some commands with errors.

    Args:
        says: bytes that answer a command, by its name; b"" closes the connection.
        before: called with each command that is answered so, ahead of the answer.

    Attributes:
        refused: these commands.
    """

    def __init__(
        self, says: dict[bytes, bytes], before: Callable[[Command], None] = lambda _: None
    ) -> None:
        self._says = says
        self._before = before
        self.refused: list[Command] = []
        super().__init__(self._answered)

    @property
    def port(self) -> int:
        """Return its port."""
        return int(self.url.rpartition(":")[2].removesuffix("/0"))

    def _answered(self, command: Command) -> bytes:
        name = command[0]
        if name in self._says:
            self.refused.append(command)
            self._before(command)
            return self._says[name]
        if name == b"ROLE":
            return b"*3\r\n" + bulk(b"master") + b":0\r\n*0\r\n"
        if name == b"INFO":
            return info(redis_version="7.0.0")
        if name == b"HGET":
            return bulk(b"0" * 40) if command[2] == b"id" else b"$-1\r\n"
        if name == b"HGETALL":
            return b"*0\r\n"
        if name == b"CLIENT" and command[1] == b"ID":
            return b":7\r\n"
        return b"+OK\r\n"
