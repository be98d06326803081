"""A connection for calls, which numbers them and waits for replicas and disks."""

from __future__ import annotations

import asyncio  # async only
import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoPermissionError, NoScriptError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from penstock.client._acompat import (
    AsyncRedisConnection,
    aclosed,
    aconnect,
    aprobe,
    ashield,  # async only
    asleep,
)
from penstock.client.clock import monotonic
from penstock.client.sockets import asocket_of
from penstock.core.calls.call import Call, RawReply
from penstock.core.calls.failures import (
    CONNECTION_ERRORS,
    MAY_BE_TOO_LARGE,
    SLOT_ERRORS,
    TOO_LARGE,
    loses_reply,
    refuses_size,
    transient,
)
from penstock.core.calls.reply_limit import size_of
from penstock.core.calls.troubles import ScriptsRefused, reason_of
from penstock.core.jobs.job import ops_of  # async only
from penstock.core.jobs.logs import get_logger
from penstock.core.jobs.views import number_in
from penstock.core.nodes.servers import ServerFacts, Syncing, parse_info, unsynced
from penstock.core.values.caught import caught
from penstock.core.values.confirmations import NOTHING, Confirmed, Wait
from penstock.core.values.producer import Producer
from penstock.errors import (
    BodyTooLarge,
    DeliveryNotReplicated,
    NotReplicated,
    OutcomeUnknown,
    ProtocolError,
)
from penstock.wire.codes import Code
from penstock.wire.keys import QueueKeys
from penstock.wire.packing import Argument, pack, with_record, words
from penstock.wire.scripts import Script

logger = get_logger("penstock")


IDLE_BEFORE_TEST = 1.0
"""Seconds without use after which a connection is tested before a call is sent on it: a load
balancer or a NAT may have dropped it, and informs neither side."""
PROBE_TIMEOUT = 1.0
"""Seconds that a server has to answer this test; then another connection is opened."""
CONFIRM_SLICE_MS = 100
"""Limit in ms of one WAIT or WAITAOF."""
AOF_SETTINGS = "*append*"
"""Pattern for CONFIG GET: appendonly, appendfsync, no-appendfsync-on-rewrite."""
LONG_CALL_REPEATS = 2
"""Number of repeats of a long call by a server that answers other commands."""
SIZE_LIMITS = ("proto-max-bulk-len", "client-query-buffer-limit")
"""Settings of the most bytes of an argument: a server can't run a call with a longer one."""
BUSY_PAUSE = 0.05
"""Seconds until a busy server is asked again for a confirmation."""
REPLICA_COUNT_AGE = 1.0
"""Seconds for which a consumer believes its count of the connected replicas."""
# [async only
DELIVERING_SCRIPTS = frozenset({"reserve", "reserve_plain", "settle", "settle_plain"})
"""Scripts that deliver jobs."""
LATE_REPLY_SECONDS = 1.0
"""Seconds to wait for the reply of a cancelled call."""
# async only]


class AsyncProducerConnection(Producer):
    """A connection with a producer's id and counter; one call at a time.

    Attributes:
        has_opened: whether `open` has connected it before.
        used: when it was last used, or tested, by the clock.
    """

    __slots__ = (
        "_conn",
        "_counted_at",
        "_followers",
        "_last_confirmed",
        "_socket",
        "_syncing",
        "has_opened",
        "used",
    )

    def __init__(self, conn: AsyncRedisConnection) -> None:
        super().__init__()
        self._conn = conn
        self._socket = asocket_of(conn)
        self._syncing: Syncing | None = None
        self._followers = 0
        self._counted_at = -math.inf
        self._last_confirmed = NOTHING
        self.has_opened = False
        self.used = 0.0

    async def exchange(self, call: Call[Any], caller: Producer) -> RawReply:
        """Send a call and read its reply, loading the script if the server does not know it.

        The question for confirmations goes out in the same trip, if it is known by then. The call
        gets the result.

        Args:
            call: the script with its arguments.
            caller: numbers the call; usually this connection.

        Raises:
            CannotSync: the server can't tell if the call is on disk; nothing was sent.
            NotReplicated: too few replicas are connected to confirm the jobs of this call; nothing
                was sent.
            ProtocolError: the reply is that of another call; the connection is closed.
        """
        nonce = b"%d" % caller.calls
        if call.front:
            packed = with_record(call.front, nonce, caller.producer, *call.args)
        else:
            args = call.args if call.queue is None else (caller.producer, *call.args)
            packed = pack((b"EVALSHA", call.script.sha, *call.head, nonce, *args))
        wait = call.wait
        how, asked = None, b""
        if wait is not None and (wait.expected or wait.fsynced or wait.delivers):
            how, asked = await self._prepare_question(call, wait)
            packed += asked
        is_taking = call.script.name in DELIVERING_SCRIPTS  # async only
        try:
            # sync only: reply: Any = self._socket.trip(packed)
            # [async only
            reply: Any = await self._socket.trip(packed, keep=is_taking)
        except asyncio.CancelledError:
            if is_taking:
                await ashield(self._give_back(call, nonce))
            raise
        # async only]
        except CONNECTION_ERRORS:
            self._note_lost_reply(call)
            raise
        except ResponseError:
            reply = await self._load_and_rerun(call, packed, how, asked)
        if type(reply) is not list or len(reply) < 2 or reply[1] != nonce:
            await self.close()
            raise ProtocolError(f"{call.script.name}: the reply is not that of call {caller.calls}")
        if wait is not None:
            await self._await_confirmations(call, wait, how, asked, reply)
        found: RawReply = reply
        return found

    async def exchange_again(self, call: Call[Any], caller: Producer) -> RawReply:
        """Send a call again whose reply was lost.

        Raises:
            BodyTooLarge, OutcomeUnknown: the server closes the connection during each repeat of a
                long call, and answers other commands. Its settings show that it can't have run the
                call, or they don't.
            As `exchange`.
        """
        repeats = 0
        while call.is_long and size_of(call) < 2:  # else the reply may be what is too large
            await self._check_answers()
            try:
                return await self.exchange(call, caller)
            except RedisConnectionError as error:
                repeats += 1
                if type(error) is not RedisConnectionError:  # such as that it is loading its data
                    raise
                if repeats == LONG_CALL_REPEATS:
                    if await self._has_limit_below(max(map(len, call.args))):
                        text = "the server closes the connection during the call"
                        raise BodyTooLarge(f"{text}: {TOO_LARGE}") from error
                    raise OutcomeUnknown(f"{call.script.name}: {MAY_BE_TOO_LARGE}") from error
            await self.close()
        return await self.exchange(call, caller)

    async def _has_limit_below(self, size: int) -> bool:
        """Return True if a setting of the server is below this size of an argument."""
        limits: list[str] = []
        with suppress(ResponseError, *CONNECTION_ERRORS):
            for name in SIZE_LIMITS:
                limits += _pairs(await self.command("CONFIG", "GET", name)).values()
        return any(int(limit) < size for limit in limits)

    async def _check_answers(self) -> None:
        """Raise an error if the server is not ready. A user may not be allowed to run PING."""
        try:
            await self.command("PING")
        except ResponseError as error:
            if transient(error):
                raise

    async def exchange_each(
        self, calls: Sequence[Call[Any]], callers: Sequence[Producer]
    ) -> list[RawReply | ResponseError]:
        """Send calls in one trip; return the reply, or the refusal, of each.

        Args:
            calls: of different queues, as a repeat is known only by the last number in its queue.
                They wait for no disk.
            callers: number the calls.

        Raises:
            NotReplicated, ProtocolError: as in `exchange`.
        """
        for call in calls:
            if call.wait is not None and call.wait.expected:
                await self.require(call.wait, call.queue)
        nonces, parts = [b"%d" % caller.calls for caller in callers], list[bytes]()
        for call, nonce, caller in zip(calls, nonces, callers, strict=True):
            args = call.args if call.queue is None else (caller.producer, *call.args)
            parts.append(pack((b"EVALSHA", call.script.sha, *call.head, nonce, *args)))
        answers = await self.replies(b"".join(parts), len(parts))
        for nonce, answer in zip(nonces, answers, strict=True):
            if isinstance(answer, list) and answer[1] != nonce:
                raise ProtocolError(f"the reply is not that of call {nonce.decode()}")
        await self._conclude_each(calls, answers)
        return answers

    async def _conclude_each(self, calls: Sequence[Call[Any]], answers: Sequence[Any]) -> None:
        """Wait for replicas, once for all calls with the same terms: a WAIT covers all writes."""
        told = dict[tuple[int, int], Confirmed]()
        for call, answer in zip(calls, answers, strict=True):
            wait = call.wait
            if wait is not None and isinstance(answer, list) and answer[0] == Code.DONE:
                wanted = call.parse(answer).replicas if wait.replicas is None else wait.replicas
                terms = wanted, wait.timeout_ms
                if wanted and terms not in told:
                    await self._conclude(call, None, b"", Code.DONE, wanted)
                    told[terms] = call.confirmed
                call.confirmed = told.get(terms, NOTHING)

    def _note_lost_reply(self, call: Call[object]) -> None:
        """Let the repeat and later calls of the queue ask for less: the reply may be too large."""
        ops = call.ops
        if ops is None or not self._socket.has_sent or not loses_reply(caught()):
            return
        size = size_of(call)
        if not ops.reply_limit.note_loss(call, monotonic()):
            return
        if size > 1:
            text = "queue %r: a reply of %s about up to %d jobs was lost (%s): now up to %d a call"
            reason, most = reason_of(caught()), ops.reply_limit.most
            logger.warning(text, ops.name, call.script.name, size, reason, most)
        else:
            text = (
                "queue %r: a reply of %s about one job was lost again (%s); it may be larger than"
                " the server's client-output-buffer-limit, or a proxy, allows"
            )
            logger.warning(text, ops.name, call.script.name, reason_of(caught()))

    async def _load_and_rerun(
        self, call: Call[object], packed: bytes, how: Syncing | None, asked: bytes
    ) -> Any:
        """Load an unknown script and run it. Any other refusal is raised again."""
        is_over = transient(caught()) and not isinstance(caught(), SLOT_ERRORS)
        if is_over or refuses_size(caught()):
            raise  # noqa: PLE0704  # no variable holds it; the caller closes the connection
        if asked:
            await self._read_confirmations(how)
        if not isinstance(caught(), NoScriptError):
            raise  # noqa: PLE0704  # as above
        await self._load(call.script)
        try:
            return await self._socket.trip(packed)
        except ResponseError:  # the reply of a WAIT may follow
            await self.close()
            raise
        except CONNECTION_ERRORS:
            self._note_lost_reply(call)
            raise

    # [async only
    async def _give_back(self, call: Call[Any], nonce: bytes) -> None:
        """Wait for the reply of a cancelled call, and release its jobs, which no caller gets."""
        with suppress(Exception):
            reply = await asyncio.wait_for(self._socket.trip(), LATE_REPLY_SECONDS)
            code, own, *_ = reply
            if own == nonce and code == Code.DONE:
                await self._release(call, reply)

    async def _release_anew(self, call: Call[Any], reply: RawReply) -> None:
        """Release the jobs of a reply on a new connection: this one waits for confirmations."""
        with suppress(Exception):
            await self.close()
            await asyncio.wait_for(self._release(call, reply), LATE_REPLY_SECONDS)

    async def _release(self, call: Call[Any], reply: RawReply) -> None:
        if jobs := [job for job in _deliveries(call, reply) if not job.at_most_once]:
            self.calls += 1
            await self.exchange(ops_of(jobs[0]).release(jobs, 0), self)

    # async only]
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

    async def _confirm_deliveries(
        self, call: Call[Any], how: Syncing | None, wait: Wait, reply: RawReply
    ) -> None:
        """Wait for the confirmations of a reply that delivers jobs at most once.

        If the connection fails, return the reply: its other jobs are still delivered.
        """
        if not any(job.at_most_once for job in _deliveries(call, reply)):
            call.confirmed = Confirmed(wait.expected, wait.fsynced)
            return
        try:
            call.confirmed = await self._confirm_last_write(how, wait)
        except (RedisConnectionError, RedisTimeoutError) as error:
            logger.info("%s: %s; its jobs with lease=0 are not confirmed", call.script.name, error)
            await self.close()
        # [async only
        except asyncio.CancelledError:
            await ashield(self._release_anew(call, reply))
            raise
        # async only]

    async def _confirm_last_write(self, how: Syncing | None, wait: Wait) -> Confirmed:
        """Wait for the confirmations of the last write of this connection, and note the result."""
        until = monotonic() + wait.timeout_ms / 1000
        asked = question(how, wait.expected, min(wait.timeout_ms, CONFIRM_SLICE_MS))
        got = await self._read_confirmations(how, asked)
        self._last_confirmed = await self._await_all(how, wait.expected, got, wait, until)
        if self._last_confirmed.covers(wait.expected, wait):
            self._counted_at = monotonic()
        return self._last_confirmed

    async def _await_confirmations(
        self, call: Call[Any], wait: Wait, how: Syncing | None, asked: bytes, reply: RawReply
    ) -> None:
        code = reply[0]
        if wait.delivers:
            if code == Code.DONE:
                await self._confirm_deliveries(call, how, wait, reply)
        elif asked or code == Code.DONE:
            wanted = wait.replicas
            if wanted is None and code == Code.DONE:  # the queue's setting, told by the reply
                wanted = call.parse(reply).replicas
            if asked or wanted:
                await self._conclude(call, how, asked, code, wanted or 0)

    async def _conclude(
        self, call: Call[object], how: Syncing | None, asked: bytes, code: int, wanted: int
    ) -> None:
        got = await self._read_confirmations(how) if asked else NOTHING
        if code == Code.DONE:
            assert call.wait is not None
            until = monotonic() + (call.wait.timeout_ms - (CONFIRM_SLICE_MS if asked else 0)) / 1000
            call.confirmed = await self._await_all(how, wanted, got, call.wait, until)

    async def _await_all(
        self, how: Syncing | None, wanted: int, got: Confirmed | None, wait: Wait, until: float
    ) -> Confirmed:
        """Wait until all connected replicas have confirmed, or until the time is over."""
        if got is not None and not got.covers(wanted, wait):
            got = await self._await_in_slices(
                how, await self._count_replicas(wanted), got, wait, until
            )
        if got is None or got.replicas < wanted:
            self._followers = 0  # asked anew before the next call
        return got or NOTHING

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
        reached = await self.require(wait, call.queue)
        return how, question(how, reached, min(wait.timeout_ms, CONFIRM_SLICE_MS))

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
        return await self._await_all(None, wait.expected, NOTHING, wait, until)

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
            told = fields.get("connected_slaves") if fields.get("role") == "master" else None
            self._followers = replicas if told is None else int(told)
        return min(replicas, self._followers)

    async def _syncing_of(self, call: Call[object], wait: Wait) -> Syncing:
        """Return how to ask what is on the disks that a call waits for.

        The queue's setting may require replicas, and some servers can't tell what their replicas
        have on disk. So the setting is read before the call, unless a reply has given it.

        Raises:
            CannotSync: the server can't tell.
        """
        if wait.replicas is not None or call.queue is None:
            return await self._learn_syncing(wait.expected)
        how = await self._learn_syncing(0)
        if how is Syncing.ALWAYS and (wait.expected or not wait.is_told):
            how = await self._learn_syncing(await self._setting_of(call.queue))
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
            settings = _pairs(await self.command("CONFIG", "GET", AOF_SETTINGS))
        except ResponseError as error:
            if transient(error):
                raise
            logger.info("INFO, CONFIG GET: %s", error)
        self._syncing = how = ServerFacts(fields).syncing(settings, replicas)
        return how

    async def _read_confirmations(
        self, how: Syncing | None, asked: bytes = b""
    ) -> Confirmed | None:
        """Ask for confirmations, unless that was done with the call, and read the answer.

        None = the server refuses them, and asking again is of no use.

        A server without WAIT has no replicas, and one that became a replica confirms nothing.
        """
        try:
            answer = await self._socket.trip(asked)
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
        reason = unsynced(_pairs(answer))
        if reason:
            logger.info("the server confirms no writes: %s", reason)
            self._syncing = None
            return None
        return Confirmed(0, fsynced=True)

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
            more = await self._read_confirmations(how, question(how, wanted, left))
            if more is None:
                break
            got = more
        return got

    async def _load(self, script: Script) -> None:
        try:
            sha = await self.command("SCRIPT", "LOAD", script.source)
        except ResponseError as error:
            if transient(error) or isinstance(error, NoPermissionError):
                raise
            raise ScriptsRefused(reason_of(error)) from None
        if sha.decode() != script.sha:
            raise ProtocolError(f"{script.name}: the server has another SHA-1 for it")

    async def command(self, *args: Argument) -> Any:
        """Run a plain command; its reply is undecoded."""
        return await self._socket.trip(pack(words(args)))

    async def replies(self, packed: bytes, count: int) -> list[Any]:
        """Send packed commands and return the next replies; an error reply is not raised."""
        found: list[Any] = []
        for _ in range(count):
            try:
                found.append(await self._socket.trip(packed))
            except ResponseError as error:  # each is a read
                found.append(error)
            packed = b""
        return found

    async def together(self, commands: Sequence[tuple[Argument, ...]]) -> RawReply:
        """Run plain commands, none of which may be refused, in one trip; return their replies."""
        first = await self._socket.trip(b"".join(map(pack, map(words, commands))))
        return [first, *[await self._socket.trip() for _ in commands[1:]]]

    @property
    def turn(self) -> int:
        """Number of the primary it leads to, counted by `AsyncPrimary`; 0 = without Sentinel."""
        return int(getattr(self._conn, "turn", 0))

    @property
    def uses_tls(self) -> bool:
        """True if the connection is encrypted."""
        return "SSL" in type(self._conn).__name__

    async def close_if_dead(self, idle_limit: float = IDLE_BEFORE_TEST) -> bool:
        """Close the connection if it was idle for more than `idle_limit` seconds and is dead.

        Returns:
            True if it was open and did not answer.
        """
        was_idle = monotonic() > self.used + idle_limit
        self.used = monotonic()
        if not was_idle:
            return False
        limit = min(self._conn.socket_timeout or PROBE_TIMEOUT, PROBE_TIMEOUT)
        was_dead = not aclosed(self._conn)
        if was_dead and await aprobe(self._conn, limit):
            return False
        await self.close()
        return was_dead

    async def open(self, idle_limit: float = IDLE_BEFORE_TEST) -> bool:
        """Connect unless there is an open connection; return True if it connected.

        Args:
            idle_limit: seconds without use after which the connection is tested.
        """
        await self.close_if_dead(idle_limit)
        if not aclosed(self._conn):
            return False
        await self.close()
        await aconnect(self._conn)
        self.has_opened = True
        return True

    async def close(self) -> None:
        """Close the connection; the next call opens it again."""
        self._syncing, self._followers, self._last_confirmed = None, 0, NOTHING
        await self._conn.disconnect()


def question(how: Syncing | None, replicas: int, ms: int) -> bytes:
    """Pack the WAIT that follows a call; with `how`, the question about the disk instead."""
    if how is None:
        return pack(words((b"WAIT", replicas, ms)))
    if how is Syncing.WAITAOF:
        return pack(words((b"WAITAOF", 1, replicas, ms)))
    # With appendfsync always the reply to the call came after the disk, so read that setting.
    return pack((b"CONFIG", b"GET", AOF_SETTINGS))


def _deliveries(call: Call[Any], reply: RawReply) -> list[Any]:
    result = call.parse(reply)
    deliveries: list[Any] = getattr(result, "taken", result).deliveries
    return deliveries


def _pairs(flat: list[bytes]) -> dict[str, str]:
    return {flat[i].decode(): flat[i + 1].decode() for i in range(0, len(flat), 2)}
