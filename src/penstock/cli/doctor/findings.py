"""What an examination found, and the tools with which the parts of it look."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from redis.exceptions import ResponseError

from penstock._sync.connection import connection_factory
from penstock._sync.sentinel import Primary
from penstock.core.servers import ServerFacts, parse_info

__all__ = ["Check", "Finding", "Level", "Patient", "examined"]


class Level(str, Enum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    BROKEN = "broken"
    """It breaks a promise (PROTOCOL.md, Guarantees)."""

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report.

    Args:
        check: what was looked at.
        level: how bad it is.
        text: one sentence for people.
        data: the figures behind it, for programs.
    """

    check: str
    level: Level
    text: str
    data: dict[str, Any] = field(default_factory=dict)


class Patient:
    """The server that is examined; nothing is ever written to it.

    A plain connection, as `Penstock` refuses some of the servers that ought to be examined.

    Args:
        url: where it is.
        prefix: prefix of all keys.

    Attributes:
        primary: who knows where the server is, if Sentinels do.

    Raises:
        redis.exceptions.ConnectionError: the server is not there.
    """

    def __init__(self, url: str, prefix: str) -> None:
        self.prefix = prefix
        factory, _ = connection_factory(url)
        self.primary: Primary | None = getattr(factory, "primary", None)
        self._connection = factory()
        self._connection.connect()
        self._facts: ServerFacts | None = None

    @property
    def facts(self) -> ServerFacts:
        """INFO; empty when it is forbidden."""
        if self._facts is None:
            self._facts = ServerFacts(parse_info(self._info()))
        return self._facts

    def _info(self) -> bytes:
        sections = ("server", "memory", "persistence", "replication", "stats")
        try:
            return b"\n".join([self.ask("INFO", section) for section in sections])
        except ResponseError:
            return b""

    def ask(self, *command: Any) -> Any:
        """A command's reply as it came, undecoded."""
        self._connection.send_command(*command)
        return self._connection.read_response(disable_decoding=True)

    def together(self, commands: Iterable[tuple[Any, ...]]) -> list[Any]:
        """The replies to commands that see one and the same moment."""
        packed = [("MULTI",), *commands, ("EXEC",)]
        self._connection.send_packed_command(self._connection.pack_commands(packed))
        replies = [self._read() for _ in packed]
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        answers: list[Any] = replies[-1]
        return answers

    def _read(self) -> Any:
        """A reply; an error too is one, or the replies behind it would be taken for others."""
        try:
            return self._connection.read_response(disable_decoding=True)
        except ResponseError as error:
            return error

    def config(self, name: str) -> str | None:
        """A setting of the server, None where CONFIG is forbidden."""
        try:
            found = self.ask("CONFIG", "GET", name)
        except ResponseError:
            return None
        return found[1].decode() if len(found) == 2 else None

    def close(self) -> None:
        """Close the connections."""
        self._connection.disconnect()
        if self.primary is not None:
            self.primary.close()


Check = Callable[[Patient], Iterator[Finding]]


def examined(patient: Patient, checks: Iterable[tuple[str, Check]]) -> Iterator[Finding]:
    """Run checks, each to its end."""
    for name, check in checks:
        yield from _survived(patient, name, check)


def _survived(patient: Patient, name: str, check: Check) -> Iterator[Finding]:
    """A check's findings; a command that the server refuses is a finding, not the end."""
    try:
        yield from check(patient)
    except ResponseError as error:
        yield Finding(name, Level.WARNING, f"could not be looked at: {error}")
