"""A bounded, exclusive queue that is shared with other clients of the protocol pressure 0.15."""

from __future__ import annotations

import asyncio  # async only
import os
import socket

# sync only: import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from penstock.core.calls.call import Call
from penstock.core.nodes.servers import ServerFacts, parse_info
from penstock.core.values.checks import Duration, check_block, check_count, check_flag, check_party
from penstock.core.values.confirmations import Confirmed
from penstock.errors import ConfigurationError, QueueClosed
from penstock.pressure._async.connections import AsyncPressureServer
from penstock.pressure._async.deletion import delete
from penstock.pressure._async.waiting import AsyncWaitingCall, Operation
from penstock.pressure.calls import PressureCalls, PressureState
from penstock.pressure.errors import OperationUnblocked, PutNotReplicated
from penstock.pressure.keys import PressureKeys, Role, check_names, check_role
from penstock.pressure.options import (
    PressureCounters,
    check_replicas,
    message_bytes,
    prefix_in,
    url_in,
)
from penstock.wire.codes import PressureCode


class AsyncPressureQueue:
    """A queue by its name; nothing is sent until a method is called.

    At any time one client may put and one may get. It opens its own connections, one for each call
    that runs at the same time. Tasks may share it. A forked child opens new connections.

    Args:
        name: text that does not end like a key of another queue (`jobs:bound`).
        source: a URL, or a redis-py client whose settings are used; None = the server named by the
            variables REDIS_SERVER (or REDIS_HOST), REDIS_PORT and REDIS_DB, by default
            127.0.0.1:6379/0.
        prefix: prefix of all keys; None = the variable PRESSURE_PREFIX, by default `__pressure__`.
        client_id: unique name of this client, shown to people. None = host, process, and task or
            thread.

    Raises:
        BadArgument, ConfigurationError: an argument or an environment variable can't be used.
    """

    def __init__(
        self,
        name: str,
        source: str | Redis | None = None,
        *,
        prefix: str | None = None,
        client_id: str | None = None,
    ) -> None:
        chosen_prefix = prefix_in(os.environ) if prefix is None else prefix
        self.name, self.prefix = check_names(name, chosen_prefix)
        self._party = None if client_id is None else check_party("client_id", client_id).encode()
        self._server = AsyncPressureServer(url_in(os.environ) if source is None else source)
        self._calls = PressureCalls(self.name, PressureKeys(self.name, self.prefix))
        self._is_checked = False
        self._unblocks = 0

    def __repr__(self) -> str:
        return f"<AsyncPressureQueue {self.prefix}:{self.name} at {self._server.address}>"

    @property
    def client_id(self) -> str:
        """Name of this client; by default that of the task or thread that asks."""
        return self._id().decode()

    def _id(self) -> bytes:
        if self._party is not None:
            return self._party
        # sync only: thread = threading.get_ident()
        # [async only
        task = asyncio.current_task()
        # Names are for people, and many tasks may have the same one.
        thread = "" if task is None else f"{task.get_name()}_{id(task):x}"
        # async only]
        return f"{socket.gethostname()}_pid{os.getpid()}_tid{thread}".encode()

    # -- the life of a queue ---------------------------------------------------------------

    async def create(self, bound: int = 0) -> None:
        """Create the queue, in one step.

        Args:
            bound: the most messages that may wait; 0 = no limit.

        Raises:
            BadArgument: not a whole number of at least 0.
            QueueExists: the queue exists, or keys of an earlier one are left.
        """
        limit = check_count("bound", bound, low=0)
        await self._run_once(self._calls.call("create", limit=limit))

    async def close(self, timeout: Duration | None = None) -> None:
        """Refuse new messages. Messages that wait can still be taken.

        If a producer waits for room, it puts its message before the queue is closed.

        Args:
            timeout: seconds to wait for the role of the producer; None = for ever.

        Raises:
            QueueClosed: the queue was closed already.
            QueueInUse: another client had the role all the time.
            QueueMissing: there is no queue.
        """
        operation = Operation(
            "close", "producer", values={"id": self._id()}, is_unblocked=lambda: False
        )
        await self._run_waiting(operation, timeout)

    async def delete(self, timeout: Duration | None = None) -> None:
        """Remove the queue and its messages; waiting calls end.

        The queue ceases to exist at once. Its last keys are removed when both roles are free. If
        another client died during a deletion, the keys that it left are removed a second later.

        Args:
            timeout: seconds to wait for the roles; None = for ever.

        Raises:
            QueueMissing: there is no queue.
            QueueInUse: a client had its role all the time. Call `delete` again to continue.
        """
        wait = check_block(timeout, "timeout")
        await self._check()
        await delete(self._server, self._calls, wait)

    async def free_role(self, role: Role) -> bool:
        """Free a role whose holder has died.

        The protocol can't tell if a holder is alive, so make sure that it is not. A penstock client
        that is alive notices that it lost the role, and waits for it again. Any other client does
        not notice, and uses the role at the same time as the next holder.

        Args:
            role: "producer" or "consumer".

        Returns:
            True = the role was taken and is free now; False = it was free already.

        Raises:
            QueueMissing: there is no queue, nor anything left of one.
        """
        name = check_role(role)
        reply = await self._run_once(self._calls.call("free", name, role=name))
        return bool(reply.code == PressureCode.DONE)

    # -- messages --------------------------------------------------------------------------

    async def put(
        self,
        message: bytes | str,
        timeout: Duration | None = None,
        overfill: bool = False,
        *,
        replicas: int = 0,
        replication_timeout: Duration = 1,
    ) -> None:
        """Wait for the role of the producer and for room, then put a message.

        Args:
            message: bytes, or text, which is stored as UTF-8.
            timeout: seconds to wait; None = for ever.
            overfill: put it even if there is no room.
            replicas: how many replicas must confirm the message.
            replication_timeout: seconds to wait for that, once the message is put.

        Raises:
            QueueFull: there was no room in time.
            QueueInUse: another client had the role of the producer all the time.
            QueueClosed, QueueMissing: the queue is closed, or missing, or was deleted meanwhile.
            OperationUnblocked: `unblock` ended the wait; the message was not put.
            PutNotReplicated: the message was put, and too few replicas confirmed it in time. It
                stays in the queue.
            NotReplicated: too few replicas are connected; the message was not put.
            OutcomeUnknown: the connection failed, and the message may have been put or not.
        """
        values: dict[str, bytes | int] = {
            "id": self._id(),
            "overfill": int(check_flag("overfill", overfill)),
            "message": message_bytes(message),
        }
        wait = check_replicas(replicas, replication_timeout)
        operation = Operation(
            "put", "producer", values=values, is_unblocked=self._unblock_check(), wait=wait
        )
        _, confirmed = await self._run_waiting(operation, timeout)
        if confirmed.replicas < replicas:
            raise PutNotReplicated(replicas, confirmed.replicas)

    async def put_nowait(self, message: bytes | str, overfill: bool = False) -> None:
        """Put a message now.

        Args:
            message, overfill: as in `put`.

        Raises:
            QueueFull, QueueInUse, QueueClosed, QueueMissing: nothing was put.
            OutcomeUnknown: the connection failed, and the message may have been put or not.
        """
        await self.put(message, 0, overfill)

    async def get(self, timeout: Duration | None = None) -> bytes:
        """Wait for the role of the consumer and for a message, then take the oldest one.

        If the call is cancelled or interrupted while it takes a message, the message may be lost.
        A `timeout` loses no message.

        Args:
            timeout: seconds to wait; None = for ever.

        Raises:
            QueueEmpty: there was none in time.
            QueueInUse: another client had the role of the consumer all the time.
            QueueClosed: no message is left, and none will come.
            QueueMissing: there is no queue, or it was deleted meanwhile.
            OperationUnblocked: `unblock` ended the wait; no message was taken.
            OutcomeUnknown: the connection failed, and a message may have been taken and lost.
        """
        return await self._get(timeout, self._unblock_check())

    async def _get(self, timeout: Duration | None, is_unblocked: Callable[[], bool]) -> bytes:
        operation = Operation(
            "get", "consumer", values={"id": self._id()}, is_unblocked=is_unblocked
        )
        reply, _ = await self._run_waiting(operation, timeout)
        return bytes(reply.message)

    async def get_nowait(self) -> bytes:
        """Take the oldest message now.

        Raises:
            QueueEmpty, QueueInUse, QueueClosed, QueueMissing: as in `get`.
            OutcomeUnknown: the connection failed, and a message may have been taken and lost.
        """
        return await self.get(0)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Take every message, until the queue is closed and no message is left.

        Raises:
            OperationUnblocked: `unblock` was called since the iteration began.
        """
        is_unblocked = self._unblock_check()
        while True:
            try:
                message = await self._get(None, is_unblocked)
            except QueueClosed:
                return
            yield message

    def unblock(self) -> None:
        """End the waits of this object: each raises `OperationUnblocked` within 0.5 s.

        Ends every `get`, `put`, `peek_reverse` and iteration that has begun, and gives their roles
        back; nothing is put or taken. Calls that begin later wait as usual, and so do `close`,
        `delete`, and all calls of other objects. May be called by any thread, and by the handler of
        a signal.
        """
        self._unblocks += 1

    def _unblock_check(self) -> Callable[[], bool]:
        before = self._unblocks
        return lambda: self._unblocks != before

    # -- looking ---------------------------------------------------------------------------

    async def peek_reverse(self, timeout: Duration | None = None) -> bytes | None:
        """Wait for the role of the producer, then read the newest message and leave it there.

        While this call has the role, no other client can put a message.

        Args:
            timeout: seconds to wait for the role of the producer; None = for ever.

        Returns:
            The message that was put last, or None: no message waits.

        Raises:
            QueueClosed: the queue is closed and no message is left.
            QueueInUse: another client had the role all the time.
            QueueMissing: there is no queue, or it was deleted meanwhile.
            OperationUnblocked: `unblock` ended the wait.
            OutcomeUnknown: the connection failed while the call waited; it may be repeated.
        """
        operation = Operation(
            "peek_reverse",
            "producer",
            values={"id": self._id()},
            is_unblocked=self._unblock_check(),
        )
        reply, _ = await self._run_waiting(operation, timeout)
        return bytes(reply.founds[0]) if reply.founds else None

    async def peek_reverse_nowait(self) -> bytes | None:
        """Read the newest message now, in the role of the producer, and leave it there.

        Returns:
            The message that was put last, or None: no message waits.

        Raises:
            QueueClosed, QueueInUse, QueueMissing: as in `peek_reverse`.
            OutcomeUnknown: the connection failed; the call may be repeated.
        """
        return await self.peek_reverse(0)

    async def exists(self) -> bool:
        """Return True if the queue exists."""
        return (await self._read_state()).bound is not None

    async def length(self) -> int:
        """Return the number of waiting messages.

        Raises:
            QueueMissing: there is no queue.
        """
        return (await self._read_living_state()).length

    async def closed(self) -> bool:
        """Return True if the queue is closed; it may still have messages.

        Raises:
            QueueMissing: there is no queue.
        """
        return (await self._read_living_state()).is_closed

    async def bound(self) -> int:
        """Return the most messages that may wait; 0 = no limit.

        Raises:
            QueueMissing: there is no queue.
        """
        return (await self._read_living_state()).bound or 0

    async def counters(self) -> PressureCounters:
        """Return the messages and bytes put and taken since the queue was made, by all clients.

        Raises:
            QueueMissing: there is no queue.
        """
        return (await self._read_living_state()).counters

    async def _read_living_state(self) -> PressureState:
        seen = await self._read_state()
        if seen.bound is None:
            raise self._calls.error(PressureCode.MISSING)
        return seen

    async def _read_state(self) -> PressureState:
        await self._check()
        return self._calls.parse_state(await self._server.run_repeatable(self._calls.call("show")))

    # -- connections -----------------------------------------------------------------------

    async def disconnect(self) -> None:
        """Close the connections of this object; the next call opens new ones."""
        await self._server.close()

    async def __aenter__(self) -> AsyncPressureQueue:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.disconnect()

    async def _run_once(self, call: Call[Any]) -> Any:
        await self._check()
        reply = await self._server.run_once(call)
        if reply.code < 0:
            raise self._calls.error(reply.code)
        return reply

    async def _run_waiting(
        self, operation: Operation, timeout: Duration | None
    ) -> tuple[Any, Confirmed]:
        wait = check_block(timeout, "timeout")
        await self._check()
        if operation.is_unblocked():  # an iteration, between two of its messages
            raise OperationUnblocked(f"queue {self.name!r}: unblock() ended the call")
        waiting = AsyncWaitingCall(self._server, self._calls, operation, timeout=wait)
        reply = await waiting.run_now()
        if reply.code in (PressureCode.IN_USE, PressureCode.FULL, PressureCode.EMPTY) and wait != 0:
            reply = await waiting.wait_and_run()
        if reply.code != PressureCode.DONE:
            raise self._calls.error(reply.code, operation.role, getattr(reply, "party", b""))
        return reply, waiting.confirmed

    async def _check(self) -> None:
        """Give back roles of earlier calls. Check the server, once.

        Raises:
            UnsupportedServer: older than Redis 6.2.
            ConfigurationError: in a Redis Cluster the keys would lie in many slots.
        """
        await self._server.send_unsent()
        if self._is_checked:
            return
        facts = ServerFacts({})
        with suppress(ResponseError):  # forbidden, or fakeredis
            facts = ServerFacts(parse_info(await self._server.command("INFO")))
        facts.check()
        if facts.number("cluster_enabled") and not self._calls.keys.is_tagged:
            raise ConfigurationError(
                "this is a Redis Cluster, and the keys of a queue must lie in one slot: put"
                f" a part of its name or of the prefix in braces, as in {{{self.name}}}"
            )
        self._is_checked = True
