# From src/penstock/client/_async/transport/executor.py by tools/unasync.py; do not edit.
"""Runs the calls of a node, which is a server or a cluster."""

from __future__ import annotations

import os
import secrets
import warnings
import weakref
from collections.abc import Sequence
from typing import Any, NoReturn, TypeVar

from redis.exceptions import NoPermissionError, ResponseError

from penstock.client._acompat import LoopLock, sleep
from penstock.client._sync.transport.cluster import Cluster
from penstock.client._sync.transport.finished import EndReader
from penstock.client._sync.transport.server import Server
from penstock.client._sync.transport.settings import connection_factory, seconds_to_connect
from penstock.client.clock import monotonic
from penstock.core.calls.call import Call, CallingQueue, RawReply
from penstock.core.calls.failures import passing, transient
from penstock.core.calls.refusals import refusal
from penstock.core.calls.troubles import wrong_type
from penstock.core.jobs.logs import get_logger
from penstock.core.nodes.servers import EvictionWarning, ServerFacts, parse_info, together
from penstock.core.values.methods import refuse_pickle
from penstock.errors import NotPermitted, QueueDamaged, ReadOnlyReplica, UnsupportedServer
from penstock.wire.codes import Code
from penstock.wire.keys import node_key, nodes_key, registry_entry, registry_key
from penstock.wire.packing import Argument

__all__ = ["Executor", "forget_after_fork"]

logger = get_logger("penstock")
R = TypeVar("R")

INFO_SECTIONS = ("server", "clients", "memory", "persistence", "replication", "stats")
"""Of INFO."""
MOST_FIELD_LOOKS = 8
"""Most tries to read a field that HSETNX finds."""
FIELD_LOOK_PAUSE_SECONDS = 0.01
"""Seconds between the first two; twice as long each time, 2.6 s in all."""
CALLS_PER_TRIP = 100
"""Most calls in one trip."""


class Executor:
    """Runs the calls of a client on one node.

    Args:
        source: URL or redis-py client.
        prefix: prefix of all keys.
        retry_for: seconds for which a call is tried again when the connection fails.

    Attributes:
        connections: the connections.
        finished: reads which jobs have ended, for those that wait for results.
        id: first 8 digits of its id; empty until it is known.
        known: the first 8 digits of each of its ids, the present one first.
        facts: INFO of the server, read once.
    """

    def __init__(self, source: object, *, prefix: str, retry_for: float) -> None:
        self._source = source
        self._prefix = prefix
        self._retry_for = retry_for
        cluster = Cluster.of_client(source, retry_for)
        self._is_cluster_known = cluster is not None
        self.connections: Server | Cluster = cluster or Server(
            *connection_factory(source, seconds_to_connect(retry_for)), retry_for=retry_for
        )
        self._lock = LoopLock()
        self.finished = EndReader(self)
        self.id = ""
        self.known: list[str] = []
        self.facts = ServerFacts({})
        forget_after_fork(self)

    def __reduce__(self) -> NoReturn:
        refuse_pickle()

    @property
    def address(self) -> str:
        """Address of the node, for people."""
        return self.connections.address

    def twin(self, *, retry_for: float, socket_timeout: float) -> Executor:
        """Return an executor with own connections to the node, for another thread or event loop.

        Args:
            retry_for: seconds for which a call is tried again.
            socket_timeout: seconds for a reply, and for connecting.
        """
        twin = Executor(self._source, prefix=self._prefix, retry_for=retry_for)
        twin.connections.adjust(
            socket_timeout=socket_timeout, socket_connect_timeout=socket_timeout
        )
        return twin

    def forget(self) -> None:
        """Forget all connections without closing them: another process or loop has them."""
        self.connections.forget()
        self.finished.forget()
        self._lock.forget()

    # -- identity -----------------------------------------------------------------------------

    @property
    def is_cluster(self) -> bool:
        """True if it is a Redis Cluster; known from the first call on."""
        return isinstance(self.connections, Cluster)

    def _find_cluster(self) -> None:
        """Find out if the server is part of a cluster, before any other command is sent to it."""
        with self._lock.current():
            if self._is_cluster_known:
                return
            server = self.connections
            assert isinstance(server, Server)
            cluster = Cluster.of_server(server, self._retry_for)
            if cluster is not None:
                self.connections = cluster
                server.close()
            self._is_cluster_known = True

    def prepare(self) -> None:
        """Learn the node's id and check the server, once.

        Raises:
            UnsupportedServer: older than Redis 6.2.
        """
        if not self._is_cluster_known:
            self._find_cluster()
        with self._lock.current():
            if not self.known:
                self.facts = self.server_facts()
                self.facts.check()
                for text in self.facts.warnings():
                    logger.warning(text)
                    warnings.warn(text, EvictionWarning, stacklevel=4)
                self.identify()

    def identify(self) -> str:
        """Learn the node's id, or give it one; again per new queue, as a FLUSHALL removes it.

        Jobs with an earlier id of the node are still looked for here.

        Returns:
            All 40 digits.
        """
        key, new = node_key(self._prefix), secrets.token_hex(20)
        whole = self.set_absent(key, "id", new).decode()
        self.id = whole[:8]
        self.known[:] = [self.id, *(node for node in self.known if node != self.id)]
        return whole

    def set_absent(self, key: str | bytes, field: str, value: str) -> bytes:
        """Return the value of a field of a hash; if it has none, write this one.

        Nothing else is written: a full server can still be drained. If the field goes again before
        it is read, as by a FLUSHALL, it is set again.

        Raises:
            UnsupportedServer: HSETNX finds the field, and HGET does not.
        """
        for attempt in range(MOST_FIELD_LOOKS):
            if (stored := self.command("HGET", key, field)) is not None:
                return bytes(stored)
            if self.command("HSETNX", key, field, value):
                return value.encode()
            sleep(FIELD_LOOK_PAUSE_SECONDS * 2.0**attempt)
        name = key if isinstance(key, str) else key.decode()
        raise UnsupportedServer(
            f"{self.address}: HSETNX finds the field {field!r} of key {name!r}, and HGET does not:"
            " a proxy may read from a replica; connect to the primary"
        )

    def whole_id(self) -> str:
        """Return the node's id, all 40 digits; empty if it has none."""
        stored = self.command("HGET", node_key(self._prefix), "id")
        return str(stored.decode()) if stored else ""

    def read_node_list(self) -> dict[str, str]:
        """Return its list of nodes, id -> entry; empty if this user may not read it."""
        try:
            flat = self.command("HGETALL", nodes_key(self._prefix))
        except NoPermissionError as error:
            logger.info("%s: the list of nodes: %s", self.address, error)
            return {}
        texts = [text.decode("utf-8", "replace") for text in flat]
        return dict(zip(texts[::2], texts[1::2], strict=True))

    def time_ms(self) -> int:
        """Return the time of the server, ms since 1970."""
        seconds, micros = self.command("TIME")
        return int(seconds) * 1000 + int(micros) // 1000

    def server_facts(self) -> ServerFacts:
        """Return INFO of the server, or of all primaries of a cluster; empty if it is refused."""
        if not self._is_cluster_known:
            self._find_cluster()
        try:
            answers = self.connections.everywhere([("INFO", name) for name in INFO_SECTIONS])
        except ResponseError as error:
            if transient(error):
                raise
            logger.info("INFO failed (%s); the server's settings are not checked", error)
            return ServerFacts({})
        return together([_facts_of(address, answer) for address, answer in answers.items()])

    # -- calls --------------------------------------------------------------------------------

    def run(self, call: Call[R], *, brief: bool = False) -> R:
        """Run a script and return its result; the call notes what was confirmed.

        It is sent again when the connection fails, and after a repair when the queue has lost its
        meta.

        Args:
            call: the script with its arguments.
            brief: whether to try it twice at most.

        Raises:
            OutOfMemory, QueueDamaged: the server refused it.
            MetaLost: the queue has lost its meta, and its epoch is not known.
            As `refusal`: the script refused it.
            redis.exceptions.ConnectionError, TimeoutError: still failing after `retry_for` seconds.
        """
        if not self._is_cluster_known:
            self._find_cluster()
        sent = 0.0 if call.role_lease is None else monotonic()
        limit = None if call.ops is None else call.ops.reply_limit
        if limit is not None and limit.most:
            limit.apply(call, monotonic())
        raw = self.connections.run(call, brief=brief)
        if call.tries_lane:
            call.note_lane(raw[0])
        if raw[0] < 0 or call.role_lease is not None:
            raw = self._repair_and_rerun(call, raw, sent, brief=brief)
        result = call.parse(raw)
        if limit is not None and limit.suspected_size:
            limit.note_reply(call, result)
        return result

    def run_each(self, calls: Sequence[Call[R]]) -> list[R | Exception]:
        """Run scripts in few trips if possible; return the result, or the error, of each.

        Args:
            calls: as in `ProducerConnection.exchange_each`.

        Raises:
            redis.exceptions.ConnectionError, TimeoutError: still failing after `retry_for` seconds.
        """
        assert len({call.head[1] for call in calls}) == len(calls), "two calls of one queue"
        if not self._is_cluster_known:
            self._find_cluster()
        sent, raws, results = monotonic(), list[Any](), list[R | Exception]()
        for at in range(0, len(calls), CALLS_PER_TRIP):
            raws += self.connections.run_each(calls[at : at + CALLS_PER_TRIP])
        for call, raw in zip(calls, raws, strict=True):
            try:
                if isinstance(raw, Exception):
                    raise raw
                if call.tries_lane:
                    call.note_lane(raw[0])
                if raw[0] < 0 or call.role_lease is not None:
                    raw = self._repair_and_rerun(call, raw, sent, brief=False)
                results.append(call.parse(raw))
            except Exception as error:  # noqa: PERF203  # few are refused
                if passing(error):
                    raise
                results.append(error)
        return results

    def _repair_and_rerun(
        self, call: Call[Any], raw: RawReply, sent: float, *, brief: bool
    ) -> RawReply:
        ops, role_lease = call.ops, call.role_lease
        assert ops is not None
        if raw[0] == Code.KEYS_MISSING:
            call.send_all_keys()
            raw = self.connections.run(call, brief=brief)
        if raw[0] == Code.DAMAGED:
            self._repair(ops, call)
            call.resent, sent = 0.0, monotonic()
            raw = self.connections.run(call, brief=brief)
        code = raw[0]
        if role_lease is not None:
            is_adding = call.adds_to is not None and code == Code.DONE
            repeated = is_adding and call.parse(raw).repeat == 1
            role_lease.note_answer(code, call.resent or sent, repeated=repeated)
        if code < 0:
            raise refusal(ops.name, raw, call.script.bounds)
        return raw

    def _repair(self, ops: CallingQueue, call: Call[object]) -> None:
        """Restore the lost meta of a queue (protocol/maintenance.md, Repairing meta).

        Raises:
            MetaLost: the epoch of the queue is not known.
            QueueDamaged: this user may not write, or what looks like jobs is no key of a queue.
        """
        for kind in ("ready", "held"):
            key = ops.keys[kind]
            fault = wrong_type(kind, key, self.command("TYPE", key).decode())
            if fault:
                raise QueueDamaged(f"{fault}; nothing was written")
        listed = [epoch for name, epoch in self.registry() if name == ops.keys.name]
        repair = ops.repair(listed, call)
        try:
            raw = self.connections.run(repair)
        except (NotPermitted, ReadOnlyReplica) as error:
            fault = f"queue {ops.name!r} has lost its meta key, which this user may not restore"
            raise QueueDamaged(f"{fault}: any call of a user that may write does") from error
        if raw[0] < 0:
            raise refusal(ops.name, raw, repair.script.bounds)
        new_epoch = repair.parse(raw).epoch.decode()
        leftovers = [f"{ops.crc:08x}{epoch}" for epoch in listed if epoch != new_epoch]
        if leftovers:
            self.command("HDEL", registry_key(self._prefix), *leftovers)
        logger.warning(
            "the meta key of queue %r was lost; it was restored with epoch %s", ops.name, new_epoch
        )

    def registry(self) -> list[tuple[str, str]]:
        """Return name and epoch of every queue in the registry."""
        flat = self.command("HGETALL", registry_key(self._prefix))
        return list(filter(None, map(registry_entry, flat[::2], flat[1::2])))

    def reach(self) -> bool:
        """Ensure an open connection. If this raises, nothing was sent.

        Returns:
            True if it had to be opened.

        Raises:
            redis.exceptions.ConnectionError, TimeoutError: at the first attempt.
        """
        if not self._is_cluster_known:
            self._find_cluster()
        return self.connections.reach()

    def command(self, *args: Argument) -> Any:
        """Run a plain command, which may be repeated; its reply is undecoded."""
        if not self._is_cluster_known:
            self._find_cluster()
        return self.connections.command(*args)

    def commands(self, commands: Sequence[tuple[Argument, ...]]) -> list[Any]:
        """Run one or more plain commands, in one trip if possible; replies are undecoded."""
        if not self._is_cluster_known:
            self._find_cluster()
        return self.connections.commands(commands)

    def close(self) -> None:
        """Close all connections that are not in use."""
        self.connections.close()


def _facts_of(address: str, answer: list[Any] | str) -> ServerFacts:
    """Return the facts of one server: its sections of INFO, or the reason why it has none."""
    if isinstance(answer, str):
        return ServerFacts({}, address=address, error=answer)
    return ServerFacts(parse_info(b"\n".join(answer)), address=address)


_nodes: weakref.WeakSet[Executor | Server] = weakref.WeakSet()


def forget_after_fork(node: Executor | Server) -> None:
    """Make forked children forget the connections and producers, which are the parent's."""
    _nodes.add(node)


def _after_fork() -> None:
    for node in list(_nodes):
        node.forget()


if hasattr(os, "register_at_fork"):  # Windows does not fork
    os.register_at_fork(after_in_child=_after_fork)
