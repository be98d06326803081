# From src/penstock/client/_async/transport/cluster.py by tools/unasync.py; do not edit.
"""A Redis Cluster: sends each call to the server of its slot (protocol/nodes.md, Cluster).

redis-py's own cluster client gives up within half a second while a slot is migrated, and refuses
EVALSHA in a pipeline; only its settings are used.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from redis.exceptions import AskError, ClusterDownError, MovedError, ResponseError, TryAgainError

from penstock.client._acompat import LoopLock, RedisConnection, sleep
from penstock.client._sync.transport.blocking import BlockingConnection
from penstock.client._sync.transport.connection import ProducerConnection
from penstock.client._sync.transport.server import Server
from penstock.client._sync.transport.settings import (
    HURRY_SECONDS,
    own_factory,
    own_settings,
    seconds_to_connect,
)
from penstock.client.clock import monotonic
from penstock.client.lent_clusters import cluster_nodes, cluster_settings
from penstock.core.calls.call import Call, RawReply
from penstock.core.calls.failures import CONNECTION_ERRORS, SLOT_ERRORS, passing, transient
from penstock.core.calls.troubles import raise_explained
from penstock.core.jobs.logs import get_logger
from penstock.core.nodes.cluster import (
    LONGEST_MIGRATION_PAUSE,
    Address,
    Patience,
    by_slot,
    read_slots,
    slot_of,
)
from penstock.core.nodes.servers import parse_info
from penstock.core.values.producer import Producer
from penstock.errors import ConfigurationError, OutOfMemory, QueueDamaged, ServerUnreachable
from penstock.wire.keys import SLOT_COUNT, key_slot
from penstock.wire.packing import Argument

__all__ = ["Cluster", "is_elsewhere"]

logger = get_logger("penstock")

NONCES_PER_PRODUCER = 1 << 32
"""Distance of the numbers of two producers: on a connection that they share, each is unique."""
MAP_TIMEOUT = 1.0
"""Seconds that a server has to return the slot map, before the next one is asked."""
MAP_FRESH_SECONDS = 1.0
"""Seconds for which the map is not read again because of a slot that has moved."""
MAP_JUST_READ_SECONDS = 0.01
"""Seconds for which it is not read again because it lacks a slot."""
MOST_FORMER_SERVERS = 16
"""Number of servers without slots that are still asked for the map."""

T = TypeVar("T")
Remap = Callable[[tuple[str, int]], tuple[str, int]]
Act = Callable[..., T]
"""Done on a server (`Server`), with `asking=True` behind ASKING."""


class Cluster:
    """The servers of a cluster, their connections, and the map of the slots.

    A producer is not bound to a connection: a call keeps its number on each server.

    Args:
        factory: makes connections, given a host and a port.
        places: addresses to query for the map first.
        retry_for: seconds for which a call is tried again while nothing changes.
        remap: returns the address at which a server is reached for the one that it announces.

    Attributes:
        idle: producers without a call under way.
    """

    def __init__(
        self,
        factory: Callable[..., RedisConnection],
        places: Iterable[Address],
        retry_for: float,
        remap: Remap | None = None,
    ) -> None:
        self._factory = factory
        self._places = list(places)
        self._retry_for = retry_for
        self._remap = remap
        self._servers: dict[Address, Server] = {}
        self._owners: list[Server | None] = [None] * SLOT_COUNT
        self._read_at = -math.inf
        self.idle: list[Producer] = []
        self._numbers = itertools.count(0, NONCES_PER_PRODUCER)
        self._lock = LoopLock()

    @classmethod
    def of_client(cls, source: Any, retry_for: float) -> Cluster | None:
        """Return one with the settings of a client of redis-py; None = it is no cluster client.

        Raises:
            ConfigurationError: the client decodes responses.
        """
        known = cluster_settings(source)
        if known is None:
            return None
        make, settings = known
        factory = own_factory(make, own_settings(settings), seconds_to_connect(retry_for))
        places = dict.fromkeys(Address(one.host, int(one.port)) for one in cluster_nodes(source))
        remap = source.nodes_manager.address_remap
        return cls(factory, places, retry_for, remap=remap)

    @classmethod
    def of_server(cls, server: Server, retry_for: float) -> Cluster | None:
        """Return the cluster of a server; None = it is not part of one.

        Raises:
            ConfigurationError: it is reached by a Unix socket, and the others can't be.
        """
        if not _is_clustered(server):
            return None
        address = Address.read(server.address)
        if address is None:
            raise ConfigurationError(
                "a Redis Cluster needs TCP: pass the address of a node, not a Unix socket"
            )
        return cls(server.factory, [address], retry_for)

    @property
    def address(self) -> str:
        """Address of one of its servers, for people."""
        return str(self._places[0])

    def adjust(self, **settings: float) -> None:
        """Change time-outs of the connections that are made from now on."""
        self._factory = partial(self._factory, **settings)
        for server in self._servers.values():
            server.adjust(**settings)

    def send_once(self) -> None:
        """Do nothing: `retry_for` says for how long a call is tried."""

    def reach(self) -> bool:
        """Ensure an open connection to one of the primaries; return False.

        Raises:
            redis.exceptions.ConnectionError, TimeoutError: none can be reached.
        """
        self._owner(None).reach()
        return False

    def give_up_soon(self) -> None:
        """Try each call twice at most from now on, with a time-out of one second."""
        self._retry_for = 0.0
        self.adjust(socket_timeout=HURRY_SECONDS, socket_connect_timeout=HURRY_SECONDS)
        self.close()

    def forget(self) -> None:
        """Forget all connections without closing them: another process or loop has them."""
        self.idle = []
        self._lock.forget()
        for server in self._servers.values():
            server.forget()

    def close(self) -> None:
        """Close all connections that are not in use."""
        for server in list(self._servers.values()):
            server.close()

    # -- calls -----------------------------------------------------------------------------

    def run(self, call: Call[object], *, brief: bool = False) -> RawReply:
        """Run a script on the server of its queue, and note in the call when it was sent again.

        A call that was redirected was not run. After a lost reply it is repeated with the same
        number, on the server that has the slot by then.

        Raises:
            OutOfMemory, QueueDamaged: the server refused it.
            redis.exceptions.ConnectionError, TimeoutError, ClusterDownError, TryAgainError: still
                failing after `retry_for` seconds in which nothing has changed.
        """
        slot = key_slot(call.head[1])
        try:
            caller = self.idle.pop()
        except IndexError:
            caller = Producer(next(self._numbers))
        caller.calls += 1
        patience = Patience(0.0 if brief else self._retry_for, monotonic)

        def act(server: Server, *, asking: bool = False) -> RawReply:
            if patience.is_unsure:
                call.doubt()

            def exchange(connection: ProducerConnection) -> RawReply:
                if asking or not patience.is_unsure:  # ASKING holds for one command
                    return connection.exchange(call, caller)
                return connection.exchange_again(call, caller)

            return _use_connection(server, exchange, call=call, asking=asking)

        try:
            reply, resent = self._try_until(slot, act, call.script.name, patience=patience)
        except BaseException as error:
            is_refused = isinstance(error, (ResponseError, OutOfMemory, QueueDamaged))
            if is_refused and not (patience.is_unsure and passing(error)):
                self.idle.append(caller)  # after an unknown outcome it is not used again
            raise
        if patience.is_unsure or call.script.name == "reserve":  # a lease counts from then
            call.resent = resent
        self.idle.append(caller)
        return reply

    def run_each(self, calls: Sequence[Call[object]]) -> list[RawReply | Exception]:
        """Run scripts one by one, as each may be redirected; return the reply or refusal of each.

        Raises:
            redis.exceptions.ConnectionError, TimeoutError, ClusterDownError, TryAgainError: as in
                `run`.
        """
        answers: list[RawReply | Exception] = []
        for call in calls:
            try:
                answers.append(self.run(call))
            except Exception as error:  # noqa: PERF203  # each is a trip
                if passing(error):
                    raise
                answers.append(error)
        return answers

    def commands(self, commands: Sequence[tuple[Argument, ...]]) -> list[Any]:
        """Run plain commands one by one."""
        return [self.command(*args) for args in commands]

    def command(self, *args: Argument) -> Any:
        """Run a plain command, which may be repeated, on the server of its first key; undecoded.

        SCRIPT goes to every server that has slots, a command without a key to one of them.
        """
        if str(args[0]).upper() == "SCRIPT":
            every = self.everywhere([args]).values()
            return next(replies[0] for replies in every if isinstance(replies, list))
        return self._try_for_a_while(slot_of(args), partial(_send_command, args=args), str(args[0]))

    def everywhere(self, commands: Sequence[tuple[Argument, ...]]) -> dict[str, list[Any] | str]:
        """Return the replies to plain commands of each server that has slots, by its address.

        A server that can't be reached has the reason as a text.

        Raises:
            redis.exceptions.ConnectionError, TimeoutError: no server answers.
        """

        def act(
            _: Server,
            *,
            asking: bool = False,  # noqa: ARG001  # `_use_connection` passes it
        ) -> dict[str, list[Any] | str]:
            answers, errors = dict[str, list[Any] | str](), list[Exception]()
            try:
                for server in self._primaries():
                    try:
                        answers[server.address] = [
                            _send_command(server, args=args) for args in commands
                        ]
                    except CONNECTION_ERRORS as error:  # noqa: PERF203  # server after server
                        answers[server.address] = str(error) or type(error).__name__
                        errors.append(error)
                if errors and len(errors) == len(answers):
                    raise errors.pop(0)
                return answers
            finally:
                errors.clear()  # see `caught`

        return self._try_for_a_while(None, act, str(commands[0][0]))

    def _try_for_a_while(self, slot: int | None, act: Act[T], what: str) -> T:
        patience = Patience(self._retry_for, monotonic)
        return self._try_until(slot, act, what, patience=patience)[0]

    def _try_until(
        self, slot: int | None, act: Act[T], what: str, patience: Patience
    ) -> tuple[T, float]:
        """Try until `act` succeeds; return its result, and when it was sent again, 0 = never.

        Raises:
            Exception: the last error, when patience ends.
        """
        failure: list[Exception] = []  # of the last try
        try:
            while True:
                try:
                    server, asking = self._route(slot, *failure)
                    sent = monotonic() if failure else 0.0
                    return act(server, asking=asking), sent
                except Exception as error:
                    pause = self._pause(slot, error, patience) if passing(error) else None
                    if pause is None:
                        raise
                    logger.info("%s: %s: %s; trying again", what, type(error).__name__, error)
                    failure[:] = [error]
                if pause:
                    sleep(pause)
        finally:
            failure.clear()  # see `caught`

    def _pause(self, slot: int | None, error: Exception, patience: Patience) -> float | None:
        """Return the seconds until the next try after this error; None = give up."""
        if isinstance(error, AskError):
            return patience.hop()
        if isinstance(error, TryAgainError) and slot is not None:
            left = self._keys_left(slot)
            if left is not None:
                patience.watch(left)
            return patience.pause(LONGEST_MIGRATION_PAUSE)
        if isinstance(error, CONNECTION_ERRORS):
            patience.lost()
        return patience.pause()

    def _route(self, slot: int | None, error: Exception | None = None) -> tuple[Server, bool]:
        """Return the server for the next try, and True if the call must follow ASKING.

        Args:
            slot: the slot of the call; None = any server.
            error: the error of the last try; None = there was none.
        """
        if isinstance(error, AskError):
            target = self._server(self._address_of(error.host, error.port))
            if not isinstance(error, MovedError):
                return target, True
            self._owners[error.slot_id] = target
            self._reread(monotonic() - MAP_FRESH_SECONDS, first=target)
        elif error is not None and not isinstance(error, TryAgainError):
            self._reread(monotonic())
        return self._owner(slot), False

    def _keys_left(self, slot: int) -> int | None:
        """Count the keys of a slot in migration that its owner still has; None = not known."""
        try:
            server = self._owner(slot)
            count: int = _send_command(server, args=("CLUSTER", "COUNTKEYSINSLOT", slot))
        except (ResponseError, *CONNECTION_ERRORS) as error:
            logger.info("CLUSTER COUNTKEYSINSLOT: %s", error)
            return None
        return count

    # -- the map ---------------------------------------------------------------------------

    def _server(self, address: Address) -> Server:
        server = self._servers.get(address)
        if server is None:
            factory = partial(self._factory, host=address.host, port=address.port)
            server = self._servers[address] = Server(factory, str(address), retry_for=0.0)
        return server

    def _address_of(self, host: str, port: int) -> Address:
        """Return the address of a server that another server names; no host = the other's host."""
        address = Address(host or self._places[0].host, port)
        return address if self._remap is None else Address(*self._remap(address))

    def _primaries(self) -> list[Server]:
        return list(dict.fromkeys(server for server in self._owners if server is not None))

    def _owner(self, slot: int | None) -> Server:
        """Return the server of a slot; without a slot, any server that has some.

        Raises:
            ClusterDownError: no node serves it.
            redis.exceptions.ConnectionError: no node has answered.
        """
        owner = self._known(slot)
        if owner is None:
            self._reread(monotonic() - MAP_JUST_READ_SECONDS)
            owner = self._known(slot)
        if owner is None:
            raise ClusterDownError(f"no node serves slot {slot}")
        return owner

    def _known(self, slot: int | None) -> Server | None:
        if slot is not None:
            return self._owners[slot]
        primaries = self._primaries()
        return random.choice(primaries) if primaries else None

    def _reread(self, since: float, first: Server | None = None) -> None:
        """Read the map, unless that was done after `since`; if no server replies, keep the old one.

        Args:
            since: a time of the monotonic clock.
            first: server to ask before the others.

        Raises:
            redis.exceptions.ConnectionError: no node answers, and no map is known.
        """
        with self._lock.current():
            if self._read_at > since:
                return
            failed = []
            for address in self._askable(first):
                reason = self._read_from(address)
                if not reason:
                    self._read_at = monotonic()
                    return
                failed.append(reason if str(address) in reason else f"{address}: {reason}")
        if not self._primaries():
            text = "; ".join(failed)
            raise ServerUnreachable(
                f"no node of the cluster has answered where the slots are: {text}"
            )

    def _askable(self, first: Server | None) -> Iterator[Address]:
        """Return addresses to query for the map: `first`, then owners, seeds and former owners."""
        known = [*self._servers.copy().items()]
        random.shuffle(known)
        known.sort(key=lambda one: one[1] is not first)
        owners = {first, *self._primaries()}
        serving = [address for address, server in known if server in owners]
        return iter(dict.fromkeys([*serving, *self._places, *(address for address, _ in known)]))

    def _read_from(self, address: Address) -> str:
        """Read the map from a server; return the reason if it has none, else an empty text."""
        where = {"host": address.host, "port": address.port}
        limits = {"socket_timeout": MAP_TIMEOUT, "socket_connect_timeout": MAP_TIMEOUT}
        connection = ProducerConnection(self._factory(**where, **limits))
        try:
            try:
                reply = connection.command("CLUSTER", "SLOTS")
            except (ResponseError, *CONNECTION_ERRORS) as error:
                raise_explained(error, str(address), tls=connection.uses_tls)
                raise
        except (ResponseError, *CONNECTION_ERRORS) as error:
            if not (isinstance(error, ResponseError) or transient(error)):
                raise
            logger.info("map of the cluster: %s: %s", address, error)
            return str(error)
        finally:
            connection.close()
        owners: list[Server | None] = [None] * SLOT_COUNT
        for low, high, owner in read_slots(reply, address.host):
            server = self._server(self._address_of(*owner))
            owners[low : high + 1] = [server] * (high + 1 - low)
        if not any(owners):
            return "it lists no slots"
        self._owners = owners
        self._close_former(set(owners))
        return ""

    def _close_former(self, owners: Collection[Server | None]) -> None:
        idle = [item for item in self._servers.copy().items() if item[1] not in owners]
        for number, (address, server) in enumerate(reversed(idle)):
            server.close()
            if number >= MOST_FORMER_SERVERS:
                self._servers.pop(address, None)

    # -- waits ----------------------------------------------------------------------------

    def locate_keys(
        self, keys: tuple[bytes, ...]
    ) -> dict[tuple[Server, int | None], tuple[bytes, ...]]:
        """Return the places where to wait for tokens: the servers and slots of their keys."""
        return {(self._owner(slot), slot): own for slot, own in by_slot(keys).items()}

    def has_moved(self, server: Server, slot: int | None) -> bool:
        """Return True if another server is known to have the slot now."""
        return slot is not None and self._owners[slot] is not server


def is_elsewhere(
    connections: Server | Cluster,
    place: tuple[Server, int | None],
    waiter: BlockingConnection,
) -> bool:
    """Return True if another server is the right one for a wait now; this one may never answer."""
    return waiter.has_moved if isinstance(connections, Server) else connections.has_moved(*place)


def _use_connection(
    server: Server,
    use: Callable[[ProducerConnection], T],
    *,
    call: Call[object] | None = None,
    asking: bool = False,
) -> T:
    connection = server.take()
    try:
        server.replace_if_dead(connection)
        if asking:  # for one command: if the script has to be loaded, all begins again
            connection.command("ASKING")
        result = use(connection)
    except SLOT_ERRORS:
        server.give(connection)
        raise
    except BaseException as error:
        server.handle_failure(connection, error, call)
        raise
    server.give(connection)
    return result


def _send_command(server: Server, args: tuple[Argument, ...], *, asking: bool = False) -> Any:
    return _use_connection(server, lambda connection: connection.command(*args), asking=asking)


def _is_clustered(server: Server) -> bool:
    try:
        info = parse_info(server.command("INFO", "cluster"))
    except ResponseError as error:
        if transient(error):
            raise
        try:
            return isinstance(server.command("CLUSTER", "SLOTS"), list)
        except ResponseError as refusal:
            if transient(refusal):
                raise
            return False
    return info.get("cluster_enabled") == "1"
