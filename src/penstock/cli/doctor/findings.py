"""Findings of the doctor, and the helpers of its checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from redis.exceptions import ResponseError

from penstock.client._sync.transport.sentinel import Primary
from penstock.client._sync.transport.settings import connection_factory
from penstock.core.cluster import Address, read_slots, slot_of
from penstock.core.servers import ServerFacts, parse_info
from penstock.wire.keys import SLOTS

__all__ = ["Check", "Finding", "Patient", "Severity", "examined", "examined_apart"]


class Severity(str, Enum):
    """The severity of a finding."""

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
    level: Severity
    text: str
    data: dict[str, Any] = field(default_factory=dict)


class Patient:
    """The server that is examined, or the cluster; only a repair writes to it.

    A plain connection, as `Penstock` refuses some of the servers that ought to be examined.

    Args:
        url: where it is.
        prefix: prefix of all keys.

    Attributes:
        primary: who knows where the server is, if Sentinels do.
        address: where the server is.
        parts: the primaries of a cluster, each as a patient; empty where there is none.

    Raises:
        redis.exceptions.ConnectionError: the server is not there.
    """

    def __init__(self, url: str, prefix: str) -> None:
        self.prefix = prefix
        factory, self.address = connection_factory(url)
        self.primary: Primary | None = getattr(factory, "primary", None)
        self.parts: dict[str, Patient] = {}
        self._begin(factory())
        if self.facts.number("cluster_enabled"):
            self._join(factory)

    def _begin(self, connection: Any) -> None:
        self._connection = connection
        self._facts: ServerFacts | None = None
        self._owners: list[Patient] = []
        connection.connect()

    def _join(self, factory: Callable[..., Any]) -> None:
        """Learn who serves which slots."""
        owners: list[Patient] = [self] * SLOTS
        host = self.address.rpartition(":")[0]
        for first, last, owner in read_slots(self.ask("CLUSTER", "SLOTS"), host):
            part = self.parts.get(str(owner)) or self._part(factory, owner)
            owners[first : last + 1] = [part] * (last + 1 - first)
        self._owners = owners

    def _part(self, factory: Callable[..., Any], owner: Address) -> Patient:
        part: Patient = object.__new__(Patient)
        part.prefix, part.address, part.primary, part.parts = self.prefix, str(owner), None, {}
        part._begin(factory(host=owner.host, port=owner.port))
        self.parts[str(owner)] = part
        return part

    def _at(self, command: tuple[Any, ...]) -> Patient:
        """Who is to be asked: in a cluster, where the command's key is."""
        slot = slot_of(command)
        return self if slot is None or not self._owners else self._owners[slot]

    @property
    def facts(self) -> ServerFacts:
        """INFO; empty when it is forbidden."""
        if self._facts is None:
            self._facts = ServerFacts(parse_info(self._info()))
        return self._facts

    def _info(self) -> bytes:
        sections = ("server", "memory", "persistence", "replication", "stats", "cluster")
        try:
            return b"\n".join([self.ask("INFO", section) for section in sections])
        except ResponseError:
            return b""

    def ask(self, *command: Any) -> Any:
        """A command's reply as it came, undecoded."""
        connection = self._at(command)._connection
        connection.send_command(*command)
        return connection.read_response(disable_decoding=True)

    def together(self, commands: Iterable[tuple[Any, ...]]) -> list[Any]:
        """The replies to commands about one queue that see one and the same moment."""
        asked = list(commands)
        if not asked:
            return []
        packed = [("MULTI",), *asked, ("EXEC",)]
        connection = self._at(asked[0])._connection
        connection.send_packed_command(connection.pack_commands(packed))
        replies = [_read(connection) for _ in packed]
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        answers: list[Any] = replies[-1]
        return answers

    def run(self, source: str, keys: Sequence[bytes], args: Sequence[Any]) -> Any:
        """The reply of a script, where its keys are."""
        connection = self._at(("EXISTS", keys[0]))._connection
        connection.send_command("EVAL", source, len(keys), *keys, *args)
        return connection.read_response(disable_decoding=True)

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
        for part in self.parts.values():
            part.close()
        if self.primary is not None:
            self.primary.close()


def _read(connection: Any) -> Any:
    """A reply; an error too is one, or the replies behind it would be taken for others."""
    try:
        return connection.read_response(disable_decoding=True)
    except ResponseError as error:
        return error


Check = Callable[[Patient], Iterator[Finding]]


def examined(patient: Patient, checks: Iterable[tuple[str, Check]]) -> Iterator[Finding]:
    """Run checks, each to its end."""
    for name, check in checks:
        yield from _survived(patient, name, check)


def examined_apart(patient: Patient, checks: Iterable[tuple[str, Check]]) -> Iterator[Finding]:
    """The same of a server, or of each primary of a cluster, whose findings say which."""
    if not patient.parts:
        yield from examined(patient, checks)
    every = list(checks)
    for address, part in patient.parts.items():
        for finding in examined(part, every):
            data = {**finding.data, "server": address}
            yield replace(finding, text=f"{address}: {finding.text}", data=data)


def _survived(patient: Patient, name: str, check: Check) -> Iterator[Finding]:
    """A check's findings; a command that the server refuses is a finding, not the end."""
    try:
        yield from check(patient)
    except ResponseError as error:
        yield Finding(name, Severity.WARNING, f"could not be checked: {error}")
