"""A connection that waits until replicas and disks have its writes."""

from __future__ import annotations

import math

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from penstock.client._acompat import (
    AsyncRedisConnection,
    asleep,
)
from penstock.client._async.transport.commands import AsyncCommandConnection
from penstock.client.clock import monotonic
from penstock.core.calls.call import Call
from penstock.core.calls.failures import (
    transient,
)
from penstock.core.jobs.logs import get_logger
from penstock.core.jobs.queue_stats import number_in
from penstock.core.nodes.servers import ServerFacts, Syncing, parse_info, unsynced
from penstock.core.values.confirmations import NOTHING, Confirmed, Wait
from penstock.errors import (
    DeliveryNotReplicated,
    NotReplicated,
)
from penstock.wire.codes import Code
from penstock.wire.keys import QueueKeys
from penstock.wire.packing import pack, words

__all__ = ["DONE", "DONE_CODES", "LANE", "AsyncConfirmingConnection", "pairs"]

logger = get_logger("penstock")

CONFIRM_SLICE_MS = 100
"""Limit in ms of one WAIT or WAITAOF."""
AOF_SETTINGS = "*append*"
"""Pattern for CONFIG GET: appendonly, appendfsync, no-appendfsync-on-rewrite."""
BUSY_PAUSE = 0.05
"""Seconds until a busy server is asked again for a confirmation."""
REPLICA_COUNT_AGE = 1.0
"""Seconds for which a consumer believes its count of the connected replicas."""
DONE, LANE = int(Code.DONE), int(Code.LANE)
"""Two codes as numbers: to read one of the enum takes as long as to call a function."""
DONE_CODES = (DONE, LANE)
"""Codes of calls that have changed something."""


class AsyncConfirmingConnection(AsyncCommandConnection):
    """A connection that knows how the server confirms writes, and asks for it."""

    __slots__ = ("_counted_at", "_followers", "_last_confirmed", "_syncing")

    def __init__(self, conn: AsyncRedisConnection) -> None:
        super().__init__(conn)
        self._syncing: Syncing | None = None
        self._followers = 0
        self._counted_at = -math.inf
        self._last_confirmed = NOTHING

    async def require(
        self, wait: Wait, queue: QueueKeys | None = None, *, afresh: bool = False
    ) -> int:
        """Count the connected replicas, up to the number that has to confirm.

        Args:
            wait: the confirmations that a call waits for.
            queue: its setting is the number of replicas, if `wait` has none.
            afresh: whether to ask the server even if an earlier call did.

        Raises:
            NotReplicated: there are too few, and the call must not be sent then.
        """
        if afresh:
            self._followers = 0
        reached = await self._count_replicas(wait.expected)
        if reached < wait.expected and wait.refuses:
            wanted = wait.replicas
            if wanted is None and queue is not None:
                wanted = await self._setting_of(queue)
            if wanted is not None and reached < wanted:
                fsynced = False if wait.fsynced else None
                raise NotReplicated(wanted, 0, fsynced=fsynced, connected=reached)
        return reached

    async def confirm(self, wait: Wait) -> Confirmed:
        """Wait until replicas have the last write of this connection, or the time is over.

        Args:
            wait: number of replicas and time-out; the disk is not asked.
        """
        until = monotonic() + wait.timeout_ms / 1000
        return await self._await_all(None, wait.expected, NOTHING, wait=wait, until=until)

    async def _require_confirmable(self, call: Call[object], wait: Wait) -> Syncing | None:
        """Check, before jobs are taken, that their delivery can be confirmed.

        No delivery begins while the last one of this connection is not confirmed, so a replica that
        lags costs the jobs of one call. On a new connection, confirm one write first.

        Returns:
            How to ask what is on disk; None = it is not asked.

        Raises:
            CannotSync, DeliveryNotReplicated: it can't; nothing was sent.
        """
        how = await self._syncing_of(call, wait) if wait.fsynced else None
        now = monotonic()
        if now > self._counted_at + REPLICA_COUNT_AGE:
            self._followers, self._counted_at = 0, now
        fsynced = False if wait.fsynced else None
        reached = await self._count_replicas(wait.expected)
        if reached < wait.expected:
            raise DeliveryNotReplicated(wait.expected, got=0, fsynced=fsynced, connected=reached)
        if not self._last_confirmed.covers(wait.expected, wait):
            got = await self._confirm_last_write(how, wait)
            if not got.covers(wait.expected, wait):
                fsynced = got.fsynced if wait.fsynced else None
                raise DeliveryNotReplicated(wait.expected, got.replicas, fsynced)
        return how

    async def _confirm_last_write(self, how: Syncing | None, wait: Wait) -> Confirmed:
        until = monotonic() + wait.timeout_ms / 1000
        question = _question(how, wait.expected, min(wait.timeout_ms, CONFIRM_SLICE_MS))
        got = await self._read_confirmations(how, question)
        self._last_confirmed = await self._await_all(
            how, wait.expected, got, wait=wait, until=until
        )
        if self._last_confirmed.covers(wait.expected, wait):
            self._counted_at = monotonic()
        return self._last_confirmed

    async def _prepare_question(
        self, call: Call[object], wait: Wait
    ) -> tuple[Syncing | None, bytes]:
        """Return how to ask what is on disk (None = not asked), and the question, packed.

        Raises:
            CannotSync: the server can't tell what is on disk.
            NotReplicated: too few replicas are connected to confirm the jobs of this call.
        """
        if wait.delivers:  # only the reply tells if any such job was delivered
            return await self._require_confirmable(call, wait), b""
        how = await self._syncing_of(call, wait) if wait.fsynced else None
        reached = await self.require(wait, call.adds_to)
        return how, _question(how, reached, min(wait.timeout_ms, CONFIRM_SLICE_MS))

    async def _conclude(
        self, call: Call[object], how: Syncing | None, question: bytes, code: int, wanted: int
    ) -> None:
        got = await self._read_confirmations(how) if question else NOTHING
        if code in DONE_CODES:
            assert call.wait is not None
            until = (
                monotonic() + (call.wait.timeout_ms - (CONFIRM_SLICE_MS if question else 0)) / 1000
            )
            call.confirmed = await self._await_all(how, wanted, got, wait=call.wait, until=until)

    async def _await_all(
        self, how: Syncing | None, wanted: int, got: Confirmed | None, wait: Wait, until: float
    ) -> Confirmed:
        """Wait until all connected replicas have confirmed, or until the time is over."""
        if got is not None and not got.covers(wanted, wait):
            got = await self._await_in_slices(
                how, await self._count_replicas(wanted), got, wait=wait, until=until
            )
        if got is None or got.replicas < wanted:
            self._followers = 0  # asked anew before the next call
        return got or NOTHING

    async def _await_in_slices(
        self, how: Syncing | None, wanted: int, got: Confirmed, wait: Wait, until: float
    ) -> Confirmed:
        """Wait until the last write of this connection is confirmed, or until the time is over.

        Wait in slices, because the socket time-out of a longer wait would close the connection.
        """
        while not got.covers(wanted, wait) and monotonic() < until:
            if how is Syncing.ALWAYS:  # it can't tell what its replicas have on disk
                break
            left = max(1, min(CONFIRM_SLICE_MS, round((until - monotonic()) * 1000)))
            more = await self._read_confirmations(how, _question(how, wanted, left))
            if more is None:
                break
            got = more
        return got

    async def _read_confirmations(
        self, how: Syncing | None, question: bytes = b""
    ) -> Confirmed | None:
        """Ask for confirmations, unless that was done with the call, and read the answer.

        None = the server refuses them, and asking again is of no use.

        A server without WAIT has no replicas, and one that became a replica confirms nothing.
        """
        try:
            answer = await self._socket.trip(question)
        except ResponseError as error:
            if str(error).startswith("BUSY "):  # a slow script of another client: asked again
                await asleep(BUSY_PAUSE)
                return NOTHING
            if self.turn and transient(error):  # the call has run, and is repeated elsewhere
                raise RedisConnectionError(str(error)) from error
            logger.info("the server confirms no writes: %s", error)
            self._syncing = None
            return None
        if how is None:
            return Confirmed(int(answer))
        if how is Syncing.WAITAOF:
            return Confirmed(int(answer[1]), int(answer[0]) > 0)
        reason = unsynced(pairs(answer))
        if reason:
            logger.info("the server confirms no writes: %s", reason)
            self._syncing = None
            return None
        return Confirmed(0, fsynced=True)

    async def _count_replicas(self, replicas: int) -> int:
        """Return `replicas`, or the number of connected replicas if that is lower.

        The server is asked unless this many have confirmed the last call of this connection.
        """
        if replicas > self._followers:
            try:
                fields = parse_info(await self.command("INFO", "replication"))
            except ResponseError as error:
                if transient(error):
                    raise
                fields = {}
            connected = fields.get("connected_slaves") if fields.get("role") == "master" else None
            self._followers = replicas if connected is None else int(connected)
        return min(replicas, self._followers)

    async def _syncing_of(self, call: Call[object], wait: Wait) -> Syncing:
        """Return how to ask what is on the disks that a call waits for.

        The queue's setting may require replicas, and some servers can't tell what their replicas
        have on disk. So the setting is read before the call, unless a reply has given it.

        Raises:
            CannotSync: the server can't tell.
        """
        if wait.replicas is not None or call.adds_to is None:
            return await self._learn_syncing(wait.expected)
        how = await self._learn_syncing(0)
        if how is Syncing.ALWAYS and (wait.expected or not wait.is_told):
            how = await self._learn_syncing(await self._setting_of(call.adds_to))
        return how

    async def _setting_of(self, queue: QueueKeys) -> int:
        setting = await self.command("HGET", queue["meta"], "replicas")
        return number_in((setting or b"").decode("utf-8", "replace")) or 0

    async def _learn_syncing(self, replicas: int) -> Syncing:
        """Find out how the server tells what is on disk, once per connection.

        Raises:
            CannotSync: it can't tell, does not tell the truth, or can't tell it of replicas.
        """
        how = self._syncing
        if how is Syncing.WAITAOF or (how is Syncing.ALWAYS and not replicas):
            return how
        fields: dict[str, str] = {}
        settings: dict[str, str] | None = None
        try:
            for section in ("server", "persistence"):
                fields.update(parse_info(await self.command("INFO", section)))
            settings = pairs(await self.command("CONFIG", "GET", AOF_SETTINGS))
        except ResponseError as error:
            if transient(error):
                raise
            logger.info("INFO, CONFIG GET: %s", error)
        self._syncing = how = ServerFacts(fields).syncing(settings, replicas)
        return how

    async def close(self) -> None:
        """Close the connection; the next call opens it again."""
        self._syncing, self._followers, self._last_confirmed = None, 0, NOTHING
        await super().close()


def _question(how: Syncing | None, replicas: int, ms: int) -> bytes:
    """Pack the WAIT that follows a call; with `how`, the question about the disk instead."""
    if how is None:
        return pack(words((b"WAIT", replicas, ms)))
    if how is Syncing.WAITAOF:
        return pack(words((b"WAITAOF", 1, replicas, ms)))
    # With appendfsync always the reply to the call came after the disk, so read that setting.
    return pack((b"CONFIG", b"GET", AOF_SETTINGS))


def pairs(flat: list[bytes]) -> dict[str, str]:
    """Return the pairs of a flat reply, as text."""
    return {flat[i].decode(): flat[i + 1].decode() for i in range(0, len(flat), 2)}
