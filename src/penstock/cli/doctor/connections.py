"""The servers that the doctor examines.

The doctor opens its own connections, because `Penstock` refuses servers that it has to examine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from redis.exceptions import RedisError, ResponseError

from penstock.cli.doctor.findings import Finding
from penstock.client._sync.transport.connection import ProducerConnection
from penstock.client._sync.transport.settings import connection_factory
from penstock.core.calls.troubles import raise_explained
from penstock.core.nodes.cluster import Address, read_slots
from penstock.core.nodes.servers import ServerFacts, parse_info
from penstock.wire.keys import SLOT_COUNT, QueueKeys, key_slot, node_key, nodes_key

__all__ = ["Command", "DoctorNode", "DoctorQueue", "DoctorServer"]

Command = tuple[str | bytes | int, ...]
"""A Redis command with its arguments."""


class DoctorServer:
    """A connection to one server.

    Args:
        connection: of redis-py, not connected yet.
        address: of the server.

    Raises:
        redis.exceptions.ConnectionError: the server can't be reached.
    """

    def __init__(self, connection: Any, address: str) -> None:
        self.address = address
        self._connection = ProducerConnection(connection)
        try:
            connection.connect()
        except RedisError as error:
            raise_explained(error, address)
            raise

    @cached_property
    def facts(self) -> ServerFacts:
        """Fields of INFO.

        Raises:
            redis.exceptions.ResponseError: INFO is forbidden.
        """
        return ServerFacts(parse_info(self.ask("INFO")))

    def is_cluster(self) -> bool:
        """Return True if it is in a Redis Cluster; False if INFO is forbidden."""
        try:
            return bool(self.facts.number("cluster_enabled"))
        except ResponseError:
            return False

    def ask(self, *command: str | bytes | int) -> Any:
        """Return the reply to a command, undecoded."""
        return self._connection.command(*command)

    def transaction(self, commands: Iterable[Command]) -> list[Any]:
        """Return the replies to commands that run at one moment."""
        try:
            replies: Any = self._connection.together([("MULTI",), *commands, ("EXEC",)])
        except ResponseError:
            self._connection.close()  # replies to the other commands are unread
            raise
        return list(replies[-1])

    def config(self, name: str) -> str | None:
        """Return a setting of the server; None if CONFIG is forbidden."""
        try:
            found = self.ask("CONFIG", "GET", name)
        except ResponseError:
            return None
        return found[1].decode() if len(found) == 2 else None

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


@dataclass(frozen=True, slots=True)
class DoctorQueue:
    """A queue that is examined, or one of its partitions.

    Args:
        server: has its keys.
        keys: its keys.
        name: its name for people.
    """

    server: DoctorServer
    keys: QueueKeys
    name: str

    def ask(self, command: str, kind: str, *args: str | bytes | int) -> Any:
        """Return the reply to a command about one of its keys, undecoded."""
        return self.server.ask(command, self.keys[kind], *args)

    def transaction(self, commands: Iterable[Command]) -> list[Any]:
        """Return the replies to such commands, which run at one moment."""
        return self.server.transaction(
            (command, self.keys[str(kind)], *args) for command, kind, *args in commands
        )

    def about(self, level: Callable[..., Finding], text: str, **data: object) -> Finding:
        """Return a finding about it; `text` follows its name."""
        return level(f"queue {self.name!r}{text}", queue=self.name, **data)


class DoctorNode:
    """A node that is examined: one server, or a Redis Cluster. Only a repair writes to it.

    Args:
        source: its URL.
        prefix: prefix of all keys.

    Attributes:
        address: its address.
        servers: the server, or the primaries of the cluster.
        is_cluster: True for a Redis Cluster.
        primary: asks the Sentinels of the URL; None without Sentinels.

    Raises:
        redis.exceptions.ConnectionError: a server can't be reached.
    """

    def __init__(self, source: object, prefix: str) -> None:
        self.prefix = prefix
        factory, self.address, self.primary = connection_factory(source)
        with ExitStack() as stack:
            if self.primary:
                stack.callback(self.primary.close)
            self._first = DoctorServer(factory(), self.address)
            stack.callback(self._first.close)
            self.is_cluster = self._first.is_cluster()
            owners = {}
            self._owners = [self._first] * SLOT_COUNT
            slots = self._first.ask("CLUSTER", "SLOTS") if self.is_cluster else ()
            asked = Address.read(self.address)
            for first, last, owner in read_slots(slots, asked.host if asked else ""):
                if owner not in owners:
                    connection = factory(host=owner.host, port=owner.port)
                    owners[owner] = DoctorServer(connection, str(owner))
                    stack.callback(owners[owner].close)
                self._owners[first : last + 1] = [owners[owner]] * (last + 1 - first)
            self.servers = list(owners.values()) or [self._first]
            self.close = stack.pop_all().close

    def at(self, key: bytes) -> DoctorServer:
        """Return the server that has a key."""
        return self._owners[key_slot(key)]

    def node_id(self) -> str:
        """Return the id of the node; empty = it has none, or reading it is forbidden."""
        return self._fields(node_key(self.prefix)).get("id", "")

    def listed(self) -> dict[str, str]:
        """Return the list of nodes that it keeps: id -> entry; empty if reading it is forbidden."""
        return self._fields(nodes_key(self.prefix))

    def _fields(self, key: bytes) -> dict[str, str]:
        try:
            flat = self.at(key).ask("HGETALL", key)
        except ResponseError:
            return {}
        texts = [text.decode("utf-8", "replace") for text in flat]
        return dict(zip(texts[::2], texts[1::2], strict=True))
