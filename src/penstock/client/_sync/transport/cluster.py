# From src/penstock/client/_async/transport/cluster.py by tools/unasync.py; do not edit.
"""A Redis Cluster: the way of a call to the server of its slot (protocol/nodes.md, Cluster).

redis-py's own cluster client gives up within half a second beside a slot that is on its way, and
refuses EVALSHA in a pipeline; it only lends its settings.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from redis.exceptions import AskError, ClusterDownError, MovedError, ResponseError, TryAgainError
from redis.exceptions import ConnectionError as RedisConnectionError

from penstock.client._acompat import (
    Reader,
    Signal,
    cluster_settings,
    first_ready,
    lock,
    loop,
    sleep,
)
from penstock.client._sync.transport.blocking import BlockingConnection
from penstock.client._sync.transport.connection import ProducerConnection, monotonic
from penstock.client._sync.transport.failures import (
    CHANGES,
    FAILURES,
    passing,
    raise_typed,
    transient,
)
from penstock.client._sync.transport.server import Server
from penstock.client._sync.transport.settings import HURRY, own_factory, own_settings
from penstock.core.calls import Call
from penstock.core.cluster import NEAR, Address, Patience, apart, read_slots, slot_of
from penstock.core.logs import get_logger
from penstock.core.producer import Producer
from penstock.core.servers import parse_info
from penstock.errors import ConfigurationError, NotReplicated
from penstock.wire.keys import SLOTS, key_slot

__all__ = ["Cluster"]

logger = get_logger("penstock")

NUMBERS = 1 << 32
"""Between the numbers of two producers: they share connections, where each number is there once."""
MAP_TIMEOUT = 1.0
"""Seconds that a server has to tell where the slots are, before the next one is asked."""
MAP_AGE = 1.0
"""Seconds for which the map is not read again for a slot that has moved."""
JUST_READ = 0.01
"""The same when it does not know a slot."""
FORMER = 16
"""Servers without slots that may yet be asked for the map."""
COUNT_AGE = 0.25
"""Seconds for which the keys of a slot that is on its way are not counted again."""

Remap = Callable[[tuple[str, int]], tuple[str, int]]
Act = Callable[..., Any]


class Cluster:
    """Servers that share out the slots: lanes and waiters of each, the map, and the patience.

    A producer is not bound to a connection here: a call keeps its number wherever it is sent.

    Args:
        factory: makes connections, given a host and a port.
        places: where to ask for the map first.
        retry_for: seconds for which a call is tried again when nothing changes.
        remap: gives the address at which a server is reached, for that which it tells.
    """

    def __init__(
        self,
        factory: Callable[..., Any],
        places: Iterable[Address],
        retry_for: float,
        remap: Remap | None = None,
    ) -> None:
        self._factory = factory
        self._places = list(places)
        self._retry_for = retry_for
        self._remap = remap
        self._servers: dict[Address, Server] = {}
        self._owners: list[Server | None] = [None] * SLOTS
        self._read_at = -math.inf
        self._counts: dict[int, tuple[float, int | None]] = {}
        self._producers: list[Producer] = []
        self._numbers = itertools.count(0, NUMBERS)
        self._lock = lock()
        self._bound: object = None

    @classmethod
    def lent(cls, source: object, retry_for: float) -> Cluster | None:
        """With the settings of redis-py's client of a cluster; None = it is no such client.

        Raises:
            ConfigurationError: it decodes responses.
        """
        found = cluster_settings(source)
        if found is None:
            return None
        make, settings, nodes, remap = found
        places = dict.fromkeys(Address(str(node.host), int(node.port)) for node in nodes)
        return cls(own_factory(make, own_settings(settings)), places, retry_for, remap)

    @classmethod
    def behind(cls, server: Server, retry_for: float) -> Cluster | None:
        """That of which the server is a part; None = of none.

        Raises:
            ConfigurationError: it is reached by a Unix socket, where the others are not.
        """
        if not _is_clustered(server):
            return None
        host, _, port = server.address.rpartition(":")
        if not port.isdecimal():
            raise ConfigurationError(
                "a Redis Cluster needs TCP: pass the address of a node, not a Unix socket"
            )
        return cls(server.factory, [Address(host, int(port))], retry_for)

    @property
    def address(self) -> str:
        """Where its map was asked for first, for people."""
        return str(self._places[0])

    @property
    def callers(self) -> list[Producer]:
        """Who numbers calls, as far as they are not at it."""
        return self._producers

    def adjust(self, **settings: float) -> None:
        """Change time-outs of the connections that are made from now on."""
        self._factory = partial(self._factory, **settings)
        for server in self._servers.values():
            server.adjust(**settings)

    def send_once(self) -> None:
        """There is nothing to change: how long a call is tried is said by `retry_for`."""

    def reach(self) -> bool:
        """Have an open connection to one of the primaries; never says that it had to be opened.

        Raises:
            redis.exceptions.ConnectionError, TimeoutError: there is none.
        """
        self._owner(None).reach()
        return False

    def hurry(self) -> None:
        """From now on a call that does not get through within a second is tried once more."""
        self._retry_for = 0.0
        self.adjust(socket_timeout=HURRY, socket_connect_timeout=HURRY)
        self.close()

    def forget(self) -> None:
        """Forget all connections without closing them: another process or loop has them."""
        self._producers = []
        self._lock = lock()
        for server in self._servers.values():
            server.forget()

    def close(self) -> None:
        """Close all connections that are not in use."""
        for server in list(self._servers.values()):
            server.close()

    # -- calls -----------------------------------------------------------------------------

    def run(self, call: Call[Any], *, brief: bool = False) -> list[Any]:
        """Run a script where its queue is; the call is told when it was sent again.

        A call that was redirected was not run. After a lost reply it is repeated with the same
        number, wherever the slot is by then.

        Raises:
            OutOfMemory, QueueDamaged: what the server refused, typed.
            redis.exceptions.ConnectionError, TimeoutError, ClusterDownError, TryAgainError: still
                failing after `retry_for` seconds in which nothing has changed.
        """
        slot = key_slot(call.head[1])
        try:
            caller = self._producers.pop()
        except IndexError:
            caller = Producer(next(self._numbers))
        caller.calls += 1
        patience: Patience | None = None
        try:
            try:
                server = self._owners[slot] or self._owner(slot)
                reply = _exchanged(server, call, caller)
            except Exception as error:
                if not passing(error):
                    raise
                patience = Patience(0.0 if brief else self._retry_for, monotonic)
                act = partial(_repeated, call=call, caller=caller, patience=patience)
                reply, sent = self._again(slot, error, act, call.script.name, patience)
                # The lease of what was reserved counts from the sending, however late it was.
                if patience.is_unsure or call.script.name == "reserve":
                    call.resent = sent
        except BaseException as error:
            self._failed(caller, error, unsure=patience is not None and patience.is_unsure)
            raise
        self._producers.append(caller)
        return reply

    def _failed(self, caller: Producer, error: BaseException, *, unsure: bool) -> None:
        """Raise a refusal typed; a producer with a call of unknown outcome makes no other call.

        Args:
            caller: who has made it.
            error: how it has ended. A call that was only ever redirected has not been run.
            unsure: whether an earlier try had no answer.
        """
        if isinstance(error, ResponseError) and not (unsure and passing(error)):
            self._producers.append(caller)
            raise_typed(error)

    def command(self, *args: Any) -> Any:
        """A plain command that may be repeated, on the server of its first key; undecoded.

        SCRIPT goes to every server that has slots; what has no key to any of them.
        """
        if str(args[0]).upper() == "SCRIPT":
            return self.everywhere([args])[0][0]
        return self._asked(slot_of(args), partial(_commanded, args=args), str(args[0]))

    def everywhere(self, commands: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
        """What each server replies to plain commands: those that have slots, and answer."""

        def act(_: Server, *, asking: bool) -> list[list[Any]]:
            del asking
            return self._replies(commands)

        found: list[list[Any]] = self._asked(None, act, str(commands[0][0]))
        return found

    def _replies(self, commands: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
        """The replies of the servers that answer.

        Raises:
            redis.exceptions.ConnectionError, TimeoutError: none does.
        """
        found = [_tried(server, commands) for server in self._primaries()]
        replies = [one for one in found if isinstance(one, list)]
        if found and not replies:
            raise next(one for one in found if isinstance(one, Exception))
        return replies

    def _asked(self, slot: int | None, act: Act, what: str) -> Any:
        try:
            try:
                return act(self._owner(slot), asking=False)
            except Exception as error:
                if not passing(error):
                    raise
                patience = Patience(self._retry_for, monotonic)
                return self._again(slot, error, act, what, patience)[0]
        except ResponseError as error:
            raise_typed(error)

    def _again(
        self, slot: int | None, error: Exception, act: Act, what: str, patience: Patience
    ) -> tuple[Any, float]:
        """Try until it is done: the result, and when it was sent.

        Raises:
            the error of the last try, when patience has come to its end.
        """
        while True:
            pause = self._pause(slot, error, patience)
            if pause is None:
                raise error
            logger.info("%s: %s: %s; trying again", what, type(error).__name__, error)
            if pause:
                sleep(pause)
            try:
                server, asking = self._way(slot, error)
                sent = monotonic()
                return act(server, asking=asking), sent
            except Exception as later:
                if not passing(later):
                    raise
                error = later

    def _pause(self, slot: int | None, error: Exception, patience: Patience) -> float | None:
        """Seconds until the next try after this error; None = there is none."""
        if isinstance(error, AskError):
            return patience.hop()
        if isinstance(error, TryAgainError) and slot is not None:
            patience.watch(self._left(slot))
            return patience.pause(NEAR)
        if isinstance(error, FAILURES):
            patience.lost()
        return patience.pause()

    def _way(self, slot: int | None, error: Exception) -> tuple[Server, bool]:
        """Where to send the next try, and whether the slot is only expected there."""
        if isinstance(error, AskError):
            target = self._server(self._reached(error.host, error.port))
            if not isinstance(error, MovedError):
                return target, True
            self._owners[error.slot_id] = target
            self._reread(monotonic() - MAP_AGE, first=target)
        elif not isinstance(error, TryAgainError):
            self._reread(monotonic())
        return self._owner(slot), False

    def _left(self, slot: int) -> int | None:
        """How many keys of a slot that is on its way are where they were; None = not told."""
        at, count = self._counts.get(slot, (-math.inf, None))
        if monotonic() > at + COUNT_AGE:
            if len(self._counts) > SLOTS // 16:
                self._counts.clear()
            try:
                server = self._owner(slot)
                count = _commanded(server, args=("CLUSTER", "COUNTKEYSINSLOT", slot))
            except (ResponseError, *FAILURES) as error:
                logger.info("CLUSTER COUNTKEYSINSLOT: %s", error)
            self._counts[slot] = monotonic(), count
        return count

    # -- the map ---------------------------------------------------------------------------

    def _server(self, address: Address) -> Server:
        server = self._servers.get(address)
        if server is None:
            factory = partial(self._factory, host=address.host, port=address.port)
            server = self._servers[address] = Server(factory, str(address), 0.0)
        return server

    def _reached(self, host: str, port: int) -> Address:
        """The address of a server that another one names; no name = where that one is."""
        address = Address(host or self._places[0].host, port)
        return address if self._remap is None else Address(*self._remap(address))

    def _primaries(self) -> list[Server]:
        return list(dict.fromkeys(server for server in self._owners if server is not None))

    def _owner(self, slot: int | None) -> Server:
        """The server of a slot, or any that has some.

        Raises:
            ClusterDownError: no node serves it.
            redis.exceptions.ConnectionError: no node has answered.
        """
        found = self._known(slot)
        if found is None:
            self._reread(monotonic() - JUST_READ)
            found = self._known(slot)
        if found is None:
            raise ClusterDownError(f"no node serves slot {slot}")
        return found

    def _known(self, slot: int | None) -> Server | None:
        if slot is not None:
            return self._owners[slot]
        primaries = self._primaries()
        return random.choice(primaries) if primaries else None

    def _reread(self, since: float, first: Server | None = None) -> None:
        """Read the map again, unless it was read since; entries that can't be read stay.

        Args:
            since: a point of the clock.
            first: server to ask before the others.

        Raises:
            redis.exceptions.ConnectionError: no node answers, and no map is known.
        """
        with self._own_lock():
            if self._read_at > since:
                return
            failed = []
            for address in self._askable(first):
                reason = self._read_from(address)
                if not reason:
                    self._read_at = monotonic()
                    return
                failed.append(f"{address}: {reason}")
        if not self._primaries():
            text = "; ".join(failed)
            raise RedisConnectionError(
                f"no node of the cluster has answered where the slots are: {text}"
            )

    def _own_lock(self) -> Any:
        """The lock, which is one event loop's."""
        bound = loop()
        if bound is not self._bound:
            self._lock, self._bound = lock(), bound
        return self._lock

    def _askable(self, first: Server | None) -> Iterator[Address]:
        """Servers to ask for the slot map: current owners, then given ones, then former owners."""
        known = list(self._servers.items())
        random.shuffle(known)
        owners = set(self._primaries())
        ahead = [address for address, server in known if server is first]
        serving = [address for address, server in known if server in owners]
        others = [address for address, _ in known]
        return iter(dict.fromkeys([*ahead, *serving, *self._places, *others]))

    def _read_from(self, address: Address) -> str:
        """Read the map from one server; why that was not possible, or ''."""
        try:
            reply = self._slots(address)
        except (ResponseError, *FAILURES) as error:
            if not (isinstance(error, ResponseError) or transient(error)):
                raise
            logger.info("map of the cluster: %s: %s", address, error)
            return str(error)
        owners: list[Server | None] = [None] * SLOTS
        for low, high, owner in read_slots(reply, address.host):
            server = self._server(self._reached(*owner))
            owners[low : high + 1] = [server] * (high + 1 - low)
        if not any(owners):
            return "it lists no slots"
        self._owners = owners
        self._leave(set(owners))
        return ""

    def _leave(self, owners: Collection[Server | None]) -> None:
        """Close what has no slots; where addresses come and go, those of long ago are forgotten."""
        idle = [found for found in list(self._servers.items()) if found[1] not in owners]
        for number, (address, server) in enumerate(reversed(idle)):
            server.close()
            if number >= FORMER:
                self._servers.pop(address, None)

    def _slots(self, address: Address) -> Any:
        """The reply to CLUSTER SLOTS, by a connection for that alone."""
        conn = self._factory(
            host=address.host,
            port=address.port,
            socket_timeout=MAP_TIMEOUT,
            socket_connect_timeout=MAP_TIMEOUT,
        )
        lane = ProducerConnection(conn)
        try:
            return lane.command("CLUSTER", "SLOTS")
        finally:
            lane.close()

    # -- waiters ---------------------------------------------------------------------------

    def waiter(self) -> BlockingConnections:
        """What waits for tokens on all servers at once."""
        return BlockingConnections(self)

    def rest(self, waiters: BlockingConnections) -> None:
        """Nothing is kept: its connections have gone back to their servers."""

    def has_moved(self, slot: int, server: Server) -> bool:
        """Whether a slot is known to be elsewhere now."""
        return self._owners[slot] is not server

    def stand(self, slot: int) -> tuple[Server, BlockingConnection]:
        """A waiter at the server of a slot."""
        server = self._owner(slot)
        return server, server.waiter()


class BlockingConnections:
    """Blocks on tokens in several slots: one connection each, all of them awaited at once.

    Args:
        cluster: where.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._waiters: dict[int, tuple[Server, BlockingConnection]] = {}

    def pop(
        self, keys: tuple[bytes, ...], timeout: float, signal: Signal | None = None
    ) -> bytes | None:
        """Wait for a token; None after `timeout` seconds or at the signal.

        The BLPOPs of the other slots stay, also when there is a token.
        """
        until = monotonic() + timeout
        key = self.begin(keys)
        if key is not None:
            return key
        readers = {waiter.reader: waiter for _, waiter in self._waiters.values() if waiter.reader}
        found = first_ready(list(readers), until - monotonic(), signal)
        return None if found is None else readers[found].read(0)

    is_sliced = False

    @property
    def readers(self) -> list[Reader]:
        """Replies to wait for, together with those of other connections."""
        return [reader for _, waiter in self._waiters.values() for reader in waiter.readers]

    def begin(self, keys: tuple[bytes, ...]) -> bytes | None:
        """Have a BLPOP pending in each slot; the key of a token that one from before has taken."""
        for slot, group in apart(keys).items():
            if slot not in self._waiters:
                self._waiters[slot] = self._cluster.stand(slot)
            server, waiter = self._waiters[slot]
            if self._cluster.has_moved(slot, server):
                raise RedisConnectionError(f"slot {slot} has moved away from {server.address}")
            key = waiter.begin(group)
            if key is not None:
                return key
        return None

    def taken(self) -> list[bytes]:
        """The keys of tokens that were taken; what has none stays."""
        return [key for _, waiter in self._waiters.values() for key in waiter.taken()]

    def quit(self) -> tuple[bytes, ...]:
        """End what is pending; the keys of tokens that were taken meanwhile."""
        standing: dict[Server, list[BlockingConnection]] = {}
        waiters, self._waiters = self._waiters, {}
        for slot, (server, waiter) in waiters.items():
            if self._cluster.has_moved(slot, server):
                waiter.drop()  # it may never answer
            else:
                standing.setdefault(server, []).append(waiter)
        keys: list[bytes] = []
        for server, these in standing.items():
            keys += _ended(server, these)
        return tuple(keys)

    def drop(self) -> None:
        """Close the connections, whatever is pending on them."""
        waiters, self._waiters = list(self._waiters.values()), {}
        for _, waiter in waiters:
            waiter.drop()


def _ended(server: Server, waiters: list[BlockingConnection]) -> list[bytes]:
    """End what is pending at one server; the keys of tokens that were taken."""
    try:
        return _unblocked(server, waiters)
    except BaseException as error:
        for waiter in waiters:
            waiter.drop()
        if not passing(error):
            raise
        return []


def _unblocked(server: Server, waiters: list[BlockingConnection]) -> list[bytes]:
    """End what is pending at one server in one trip; the keys of tokens that were taken."""
    pending = [waiter for waiter in waiters if waiter.reader is not None]
    if pending:
        lane = server.take()
        try:
            lane.together([waiter.unblock for waiter in pending])
        except BaseException:
            lane.close()
            raise
        server.give(lane)
    keys = [key for waiter in pending for key in waiter.ended()]
    for waiter in waiters:
        server.rest(waiter)
    return keys


def _repeated(
    server: Server,
    call: Call[Any],
    caller: Producer,
    patience: Patience,
    *,
    asking: bool = False,
) -> list[Any]:
    """Run a script on one server, once more."""
    if patience.is_unsure:
        call.doubt()
    return _exchanged(server, call, caller, asking=asking)


def _is_answer(error: BaseException) -> bool:
    """Whether the server has refused the call itself; the connection is as good as before."""
    if isinstance(error, NotReplicated):  # nothing was sent
        return True
    return isinstance(error, ResponseError) and not transient(error)


def _exchanged(
    server: Server, call: Call[Any], caller: Producer, *, asking: bool = False
) -> list[Any]:
    """Run a script on one server, once."""
    lane = server.take()
    try:
        if asking:  # good for one command; should the script have to be loaded, all begins anew
            lane.command("ASKING")
        reply = lane.exchange(call, caller)
    except BaseException as error:
        if isinstance(error, CHANGES) or _is_answer(error):
            server.give(lane)
        else:
            lane.close()
        raise
    server.give(lane)
    return reply


def _commanded(server: Server, args: tuple[Any, ...], *, asking: bool = False) -> Any:
    """Send a plain command to one server, once."""
    lane = server.take()
    try:
        if asking:
            lane.command("ASKING")
        reply = lane.command(*args)
    except BaseException as error:
        if isinstance(error, CHANGES) or _is_answer(error):
            server.give(lane)
        else:
            lane.close()
        raise
    server.give(lane)
    return reply


def _tried(server: Server, commands: Sequence[tuple[Any, ...]]) -> list[Any] | Exception:
    """The replies of one server to plain commands, or the failure to get one."""
    try:
        return [_commanded(server, args=args) for args in commands]
    except FAILURES as failure:
        return failure


def _is_clustered(server: Server) -> bool:
    """Whether a server is a part of a cluster, as it says or as it shows."""
    try:
        told = parse_info(server.command("INFO", "cluster"))
    except ResponseError as error:
        if transient(error):
            raise
        try:
            return isinstance(server.command("CLUSTER", "SLOTS"), list)
        except ResponseError as refusal:
            if transient(refusal):
                raise
            return False
    return told.get("cluster_enabled") == "1"
