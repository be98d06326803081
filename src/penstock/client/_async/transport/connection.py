"""Connections to one server: lanes for calls, waiters for tokens, and the retry that heals them.

redis-py's own retry is off: it resends whatever was sent, and what must not run twice would
(protocol/core.md, Connections).
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

import hiredis
import tenacity
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.exceptions import (
    AskError,
    AuthenticationError,
    AuthorizationError,
    ClusterDownError,
    MasterDownError,
    MaxConnectionsError,
    NoScriptError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from penstock.client._acompat import (
    PENDING,
    AsyncReader,
    AsyncSignal,
    aclosed,
    aexchanged,
    aloop,
    asend,
    asleep,
    asliced,
)
from penstock.client._async.transport.sentinel import (
    PATIENCE,
    AsyncFound,
    AsyncPrimary,
    is_sentinel_url,
    sentinel_pool,
    url_pool,
)
from penstock.core.calls import NOTHING, Call, Confirmed, Wait, longest_pause
from penstock.core.logs import get_logger
from penstock.core.producer import Producer
from penstock.core.servers import ServerFacts, Syncing, parse_info, unsynced
from penstock.core.urls import check_url, shown
from penstock.core.views import number_in
from penstock.errors import (
    BadArgument,
    ConfigurationError,
    NotReplicated,
    OutOfMemory,
    ProtocolError,
    QueueDamaged,
)
from penstock.wire.codes import Code
from penstock.wire.keys import QueueKeys
from penstock.wire.scripts import Script

logger = get_logger("penstock")

pack: Callable[[tuple[Any, ...]], bytes] = hiredis.pack_command

monotonic = time.monotonic

SOCKET_TIMEOUT = 5.0
HURRY = 1.0
"""Seconds that a client which is about to end waits for a reply."""
STOP_TIMEOUT = 2.0
"""Seconds after which a BLPOP that does not end makes the connection a dead one."""
SLICE_MS = 100
"""Most ms of one WAIT or WAITAOF."""
AOF_SETTINGS = "*append*"
"""What CONFIG GET is asked for: appendonly, appendfsync, no-appendfsync-on-rewrite."""
BUSY_PAUSE = 0.05
"""Seconds until a server that is busy is asked again for a confirmation."""
FAKE_SLICE = 0.02
"""Seconds of one BLPOP on a connection that can't be waited on."""
RENEW = 60.0
"""Seconds after which a pending BLPOP is ended and sent anew, which tells a dead connection."""
FAILURES = (RedisConnectionError, RedisTimeoutError, ProtocolError)
"""A call has had no answer."""
UNLESS = (AuthenticationError, AuthorizationError, MaxConnectionsError)
CHANGES = (AskError, ClusterDownError, TryAgainError)
"""What a cluster answers of a slot that is elsewhere (MOVED is an AskError), or on its way."""
PASSING = re.compile(
    r"(?:^|-)(?:READONLY|MASTERDOWN|NOREPLICAS|UNBLOCKED|BUSY|MISCONF|TRYAGAIN) "
    r"|WAIT cannot be used with replica"
)
"""In the text of a refusal that is not about the call: by a server that is no primary (any more),
or cut off from its own; that runs a slow script (BUSY), or can't write to its disk (MISCONF).
Redis 6.2 wraps what a script was refused."""


def connection_factory(source: object) -> tuple[Any, str]:
    """What makes our connections, and where to, from a URL or a redis-py client's own settings.

    Raises:
        BadArgument: neither of the two, a URL that can't be used, or a client of replicas.
        ConfigurationError: the client decodes responses, so bodies would not come back as bytes.
    """
    given: Any
    if isinstance(source, str):
        check_url("source", source)
        given = sentinel_pool(source) if is_sentinel_url(source) else url_pool(source, source)
    elif isinstance(source, Redis) and not isinstance(source, Pipeline):
        given = source.connection_pool
    else:
        reason = f"must be a URL or a {Redis.__module__} client, not a pipeline"
        raise BadArgument("source", shown(source), reason)
    kwargs = own_settings(given.connection_kwargs)
    if isinstance(given, SentinelConnectionPool):
        kwargs.setdefault("socket_connect_timeout", PATIENCE)
        if not given.is_master:
            raise BadArgument(
                "source", shown(source), "must be a client of the primary, made with master_for()"
            )
        found = AsyncFound(given, kwargs)
        return found, str(found.primary)
    host = f"{kwargs.get('host', 'localhost')}:{kwargs.get('port', 6379)}"
    return own_factory(given.connection_class, kwargs), str(kwargs.get("path") or host)


def own_settings(lent: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of our connections, from those of others.

    Raises:
        ConfigurationError: they decode responses, so bodies would not come back as bytes.
    """
    kwargs = dict(lent)
    if kwargs.get("decode_responses"):
        raise ConfigurationError(
            "the client has decode_responses=True, but bodies are bytes: pass one without it"
        )
    for name in ("retry_on_timeout", "retry_on_error"):
        kwargs.pop(name, None)
    kwargs.update(protocol=2, retry=Retry(NoBackoff(), 0), health_check_interval=0)
    kwargs.setdefault("socket_timeout", SOCKET_TIMEOUT)
    return kwargs


def own_factory(make: Callable[..., Any], settings: dict[str, Any]) -> Callable[..., Any]:
    """What makes connections with these settings, or others instead."""
    settings.setdefault("socket_connect_timeout", SOCKET_TIMEOUT)

    def factory(**changed: Any) -> Any:
        return make(**{**settings, **changed})

    return factory


def raise_typed(error: ResponseError) -> NoReturn:
    """Raise the typed error for an error reply, or Redis's own where there is none.

    Raises:
        OutOfMemory, QueueDamaged, redis.exceptions.ResponseError.
    """
    text = str(error)
    # Redis 6.2 keeps the code in the text of a script's error; elsewhere redis-py takes it off.
    if "OOM" in text or "'maxmemory'" in text:
        refused = "the server has reached maxmemory and refused the job; nothing was written"
        raise OutOfMemory(refused) from error
    if "WRONGTYPE" in text:
        damage = f"a key of the queue has the wrong type; nothing was written: {text}"
        raise QueueDamaged(damage) from error
    raise error


class AsyncProducerConnection(Producer):
    """A connection with a producer's id and counter; one call at a time.

    Attributes:
        has_opened: whether `open` has connected it before.
        used: when the last reply came, by our clock, if whoever uses the lane has noted it.
    """

    __slots__ = ("_conn", "_followers", "_syncing", "has_opened", "used")

    def __init__(self, conn: Any) -> None:
        super().__init__()
        self._conn = conn
        self._syncing: Syncing | None = None
        self._followers = 0
        self.has_opened = False
        self.used = 0.0

    async def exchange(self, call: Call[Any], caller: Producer) -> list[Any]:
        """Send a call and read its reply, loading the script if the server does not know it.

        What is to be confirmed is asked for in the same trip, as far as it is known what that is;
        the call is told what was confirmed.

        Args:
            call: which.
            caller: whose call it is, the lane itself as a rule; its counter numbers the call.

        Raises:
            CannotSync: the server can't tell truthfully whether the call is on disk; nothing was
                sent.
            NotReplicated: jobs are to be added, and too few replicas are connected; nothing was
                sent.
            ProtocolError: the reply is that of another call; the connection is closed.
        """
        nonce = b"%d" % caller.calls
        head = call.head
        if call.queue is not None:
            head = (*head, caller.keys.get(call.queue.name) or caller.key(call.queue))
        packed = pack((b"EVALSHA", call.script.sha, *head, nonce, *call.args))
        wait = call.wait
        how, asked, conn = None, b"", self._conn
        if wait is not None and (wait.expected or wait.fsynced):
            how, asked = await self._asking(call, wait)
            packed += asked
        try:
            await asend(conn, packed)
            reply = await conn.read_response(disable_decoding=True)
        except ResponseError as error:
            reply = await self._loaded(call, packed, error, how, asked)
        if not isinstance(reply, list) or reply[1:2] != [nonce]:
            await self.close()
            raise ProtocolError(f"{call.script.name}: the reply is not that of call {caller.calls}")
        if wait is not None and (asked or reply[0] == Code.DONE):
            wanted = wait.replicas
            if wanted is None and reply[0] == Code.DONE:  # the queue's setting, told by the reply
                wanted = call.parse(reply).replicas
            if asked or wanted:
                await self._conclude(call, how, asked, reply[0], wanted or 0)
        return reply

    async def _loaded(
        self,
        call: Call[Any],
        packed: bytes,
        error: ResponseError,
        how: Syncing | None,
        asked: bytes,
    ) -> Any:
        """The reply of a script that the server did not know; any other refusal is raised."""
        if transient(error):
            raise error  # whoever takes it closes the connection
        if asked:
            await self._confirmed(how)
        if not isinstance(error, NoScriptError):
            raise error
        await self._load(call.script)
        return await self._again(packed)

    async def _conclude(
        self, call: Call[Any], how: Syncing | None, asked: bytes, code: int, wanted: int
    ) -> None:
        """Read the answer to the question, and wait for what is missing."""
        got = await self._confirmed(how) if asked else NOTHING
        if code == Code.DONE:
            assert call.wait is not None
            until = monotonic() + (call.wait.timeout_ms - (SLICE_MS if asked else 0)) / 1000
            call.confirmed = await self._settled(how, wanted, got, call.wait, until)

    async def _settled(
        self, how: Syncing | None, wanted: int, got: Confirmed | None, wait: Wait, until: float
    ) -> Confirmed:
        """Wait until all that are connected have confirmed, or until the time is over."""
        if got is not None and not got.covers(wanted, wait):
            got = await self._waited(how, await self._reachable(wanted), got, wait, until)
        if got is None or got.replicas < wanted:
            self._followers = 0  # asked anew before the next call
        return got or NOTHING

    async def _asking(self, call: Call[Any], wait: Wait) -> tuple[Syncing | None, bytes]:
        """How the disk is asked, None = not at all; and the question that goes out with a call.

        Raises:
            CannotSync: the disk can't be asked.
            NotReplicated: too few replicas are connected to confirm jobs that are to be added.
        """
        how = await self._syncing_of(call, wait) if wait.fsynced else None
        reached = await self.require(wait, call.queue)
        return how, question(how, reached, min(wait.timeout_ms, SLICE_MS))

    async def require(
        self, wait: Wait, queue: QueueKeys | None = None, *, afresh: bool = False
    ) -> int:
        """Count the connected replicas, up to those that are to confirm.

        Args:
            wait: what a call will wait for.
            queue: whose setting says how many replicas those are, if `wait` does not.
            afresh: whether the server is asked even if it has been for an earlier call.

        Raises:
            NotReplicated: too few, and such a call must not be sent then.
        """
        if afresh:
            self._followers = 0
        reached = await self._reachable(wait.expected)
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
            wait: for how many and how long; the disk is not asked.
        """
        until = monotonic() + wait.timeout_ms / 1000
        return await self._settled(None, wait.expected, NOTHING, wait, until)

    async def _reachable(self, replicas: int) -> int:
        """So many replicas, or as many as are connected if those are fewer.

        The server is asked unless so many have confirmed the last call of this connection.
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

    async def _syncing_of(self, call: Call[Any], wait: Wait) -> Syncing:
        """How the disks that a call waits for are asked.

        The queue's setting may want replicas whose disks can't be: that is found out before the
        call, where no reply has said otherwise.

        Raises:
            CannotSync: they can't be asked.
        """
        if wait.replicas is not None or call.queue is None:
            return await self._learn_syncing(wait.expected)
        how = await self._learn_syncing(0)
        if how is Syncing.ALWAYS and (wait.expected or not wait.is_told):
            how = await self._learn_syncing(await self._setting_of(call.queue))
        return how

    async def _setting_of(self, queue: QueueKeys) -> int:
        """How many replicas the queue's setting wants now."""
        setting = await self.command("HGET", queue["meta"], "replicas")
        return number_in((setting or b"").decode("utf-8", "replace")) or 0

    async def _again(self, packed: bytes) -> Any:
        """Send once more; a refusal closes the connection, as a WAIT may be under way behind it."""
        try:
            return await self._roundtrip(packed)
        except ResponseError:
            await self.close()
            raise

    async def _learn_syncing(self, replicas: int) -> Syncing:
        """Find out how the server tells what is on disk, once a connection.

        Raises:
            CannotSync: it does not, or not truthfully, or not of replicas.
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

    async def _confirmed(self, how: Syncing | None) -> Confirmed | None:
        """The answer to the question; None = it is refused, and asking again is of no use.

        A server that knows no WAIT has no replica that could confirm; one that is a replica by now
        confirms nothing.
        """
        try:
            answer = await self._conn.read_response(disable_decoding=True)
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

    async def _waited(
        self, how: Syncing | None, wanted: int, got: Confirmed, wait: Wait, until: float
    ) -> Confirmed:
        """Wait on this connection, whose last write is the one that is meant.

        In slices: a blocked connection says nothing, and must not be taken for a dead one.
        """
        while not got.covers(wanted, wait) and monotonic() < until:
            if how is Syncing.ALWAYS:  # what its replicas have on disk is never known
                break
            left = max(1, min(SLICE_MS, round((until - monotonic()) * 1000)))
            await asend(self._conn, question(how, wanted, left))
            more = await self._confirmed(how)
            if more is None:
                break
            got = more
        return got

    async def _roundtrip(self, packed: bytes) -> Any:
        conn = self._conn
        await asend(conn, packed)
        return await conn.read_response(disable_decoding=True)

    async def _load(self, script: Script) -> None:
        sha = await self.command("SCRIPT", "LOAD", script.source)
        if sha.decode() != script.sha:
            raise ProtocolError(f"{script.name}: the server has another SHA-1 for it")

    async def command(self, *args: Any) -> Any:
        """A plain command, its reply undecoded."""
        return await self._roundtrip(pack(args))

    async def together(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Several plain commands in one trip, none of which is refused; their replies."""
        await asend(self._conn, b"".join(map(pack, commands)))
        return [await self._conn.read_response(disable_decoding=True) for _ in commands]

    @property
    def turn(self) -> int:
        """Which primary it leads to, where Sentinels know."""
        return int(getattr(self._conn, "turn", 0))

    async def open(self) -> bool:
        """Connect, unless it is connected and nobody has closed it; whether it had to."""
        if not aclosed(self._conn):
            return False
        await self.close()
        await self._conn.connect()
        self.has_opened = True
        return True

    async def close(self) -> None:
        """Close the connection; the next call opens it again."""
        self._syncing, self._followers = None, 0
        await self._conn.disconnect()


def question(how: Syncing | None, replicas: int, ms: int) -> bytes:
    """What is sent behind a call to have it confirmed, packed; `how` = on disk, too."""
    if how is None:
        return pack((b"WAIT", replicas, ms))
    if how is Syncing.WAITAOF:
        return pack((b"WAITAOF", 1, replicas, ms))
    # The reply to the call waited for the disk if the setting was `always`: is it?
    return pack((b"CONFIG", b"GET", AOF_SETTINGS))


def _pairs(flat: list[bytes]) -> dict[str, str]:
    """The answer to CONFIG GET."""
    return {flat[i].decode(): flat[i + 1].decode() for i in range(0, len(flat), 2)}


class AsyncBlockingConnection:
    """A connection that blocks on wake and space tokens, and never takes anything else.

    Args:
        conn: without a socket time-out.
        server: at the other end, to end a pending BLPOP from a lane.
    """

    def __init__(self, conn: Any, server: AsyncServer) -> None:
        self._conn = conn
        self._server = server
        self.reader: AsyncReader | None = None
        self._since = 0.0
        self._id = b""

    async def pop(
        self, keys: tuple[bytes, ...], timeout: float, signal: AsyncSignal | None = None
    ) -> bytes | None:
        """Wait for a token; None after `timeout` seconds or at the signal, and the BLPOP stays."""
        if self.is_sliced:
            return await self._pop_slices(keys, timeout, signal)
        return await self.begin(keys) or await self.read(timeout, signal)

    @property
    def is_sliced(self) -> bool:
        """Whether nothing can stay pending on it: it has to wait in slices, by `pop`."""
        return asliced(self._conn)

    @property
    def readers(self) -> list[AsyncReader]:
        """What is pending, to be waited for together with others."""
        return [] if self.reader is None else [self.reader]

    async def taken(self) -> list[bytes]:
        """The key of a token that the pending BLPOP has taken, if it has; else it stays."""
        key = None if self.reader is None else await self.read(0)
        return [] if key is None else [key]

    async def begin(self, keys: tuple[bytes, ...]) -> bytes | None:
        """Send the BLPOP unless it is pending, anew if it is old; the key of a token it took."""
        if self._id and self._server.has_moved(self._conn):
            await self.drop()
            raise RedisConnectionError("another server is the primary now")
        if self.reader is not None and monotonic() > self._since + RENEW:
            for key in await self.quit():
                return key
        if self.reader is None:
            try:
                self.reader = await self._block(keys)
            except BaseException:
                await self.drop()  # half a handshake may be under way on it
                raise
        return None

    async def read(self, timeout: float, signal: AsyncSignal | None = None) -> bytes | None:
        """Read the key of a token; None in time or at the signal, and the BLPOP stays."""
        assert self.reader is not None
        reply = await self.reader.read(timeout, signal)
        if reply is PENDING:
            return None
        self.reader = None
        return reply[0] if reply else None

    async def _block(self, keys: tuple[bytes, ...]) -> AsyncReader:
        """Send the BLPOP, on a connection whose id is known."""
        self._since = monotonic()
        if not self._id:
            await self._introduce()
        await asend(self._conn, pack((b"BLPOP", *keys, b"0")))
        return AsyncReader(self._conn)

    async def _introduce(self) -> None:
        """Connect and ask for the connection's id; only what blocks may take as long as it takes.

        A server that is stopped accepts connections, and says nothing.
        """
        asked = pack((b"CLIENT", b"ID"))
        self._id = b"%d" % await aexchanged(self._conn, asked, SOCKET_TIMEOUT)

    async def _pop_slices(
        self, keys: tuple[bytes, ...], timeout: float, signal: AsyncSignal | None
    ) -> bytes | None:
        """Wait by BLPOPs that end by themselves, short ones if a signal may come."""
        if signal is None:
            return await self._pop_slice(keys, timeout)
        until = monotonic() + timeout
        while not signal.take():
            key = await self._pop_slice(keys, min(FAKE_SLICE, until - monotonic()))
            if key is not None or monotonic() >= until:
                return key
        return None

    async def _pop_slice(self, keys: tuple[bytes, ...], timeout: float) -> bytes | None:
        packed = pack((b"BLPOP", *keys, b"%.3f" % max(timeout, 0.001)))
        await asend(self._conn, packed)
        reply = await self._conn.read_response(disable_decoding=True)
        return reply[0] if reply else None

    async def quit(self) -> tuple[bytes, ...]:
        """End a pending BLPOP; the key of a token that it took meanwhile, if it did."""
        if self.reader is None:
            return ()
        if self._server.has_moved(self._conn):
            await self.drop()
            return ()
        try:
            await self._server.command(*self.unblock)
        except BaseException:
            await self.drop()
            raise
        return await self.ended()

    @property
    def unblock(self) -> tuple[Any, ...]:
        """The command that ends a pending BLPOP from another connection."""
        return ("CLIENT", "UNBLOCK", self._id)

    async def ended(self) -> tuple[bytes, ...]:
        """Read what came of a BLPOP that was ended; the key of a token, if it took one."""
        assert self.reader is not None
        try:
            reply = await self.reader.read(STOP_TIMEOUT)
        except BaseException:
            await self.drop()
            raise
        if reply is PENDING:
            await self.drop()
            return ()
        self.reader = None
        return (reply[0],) if reply else ()

    async def drop(self) -> None:
        """Close the connection, whatever is pending on it."""
        if self.reader is not None:
            self.reader.drop()
            self.reader = None
        await self._conn.disconnect()
        self._id = b""


class AsyncServer:
    """One server: lanes for calls, waiters for tokens, and the retry.

    Under Sentinel it is whichever is the primary.

    Args:
        factory: makes connections.
        address: where they lead, for people.
        retry_for: seconds for which a call is tried again when the connection fails.
    """

    def __init__(self, factory: Callable[..., Any], address: str, retry_for: float) -> None:
        self.factory = factory
        self.address = address
        self._lanes: list[AsyncProducerConnection] = []
        self._waiters: list[AsyncBlockingConnection] = []
        self._primary: AsyncPrimary | None = getattr(factory, "primary", None)
        self._turn = 0
        self._bound: object = None
        self._sends_once = False
        self._has_lost = False
        self._retrying = tenacity.AsyncRetrying(
            stop=tenacity.stop_after_delay(retry_for),
            wait=_pause,
            retry=tenacity.retry_if_exception(transient),
            reraise=True,
        )

    @property
    def callers(self) -> list[AsyncProducerConnection]:
        """Who numbers calls, as far as they are not at it."""
        return self._lanes

    def adjust(self, **settings: Any) -> None:
        """Change settings of the connections that are made from now on."""
        self.factory = partial(self.factory, **settings)

    def send_once(self) -> None:
        """From now on a call that fails is not sent again: somebody else may do as well."""
        self._sends_once = True

    async def hurry(self) -> None:
        """From now on a call that does not get through within a second is tried once more."""
        self.adjust(socket_timeout=HURRY, socket_connect_timeout=HURRY)
        self._retrying = self._retrying.copy(stop=tenacity.stop_after_attempt(1))
        await self.close()

    def forget(self) -> None:
        """Leave all connections to whoever else has them: another process, or a closed loop."""
        self._lanes, self._waiters = [], []
        if self._primary is not None:
            self._primary.forget()

    # -- lanes -----------------------------------------------------------------------------

    def _bind(self) -> None:
        """Leave the connections of another event loop."""
        bound = aloop()
        if bound is not self._bound:
            self.forget()
            self._bound = bound

    def take(self) -> AsyncProducerConnection:
        """A lane for one call; give it back with `give`, or close it."""
        self._bind()
        try:
            return self._lanes.pop()
        except IndexError:
            return AsyncProducerConnection(self.factory())

    def give(self, lane: AsyncProducerConnection) -> None:
        """Keep a lane, whose call has been answered, for the next one."""
        self._lanes.append(lane)

    async def _led(self, primary: AsyncPrimary) -> AsyncProducerConnection:
        """A lane to the server that is the primary now; what leads to others is closed."""
        self._bind()
        await primary.look()
        if self._turn != primary.turn:
            self._turn = primary.turn
            await self._leave(primary.turn)
        lane = self.take()
        if lane.turn != self._turn:  # given back since by a call that began before
            await lane.close()
        return lane

    async def _leave(self, turn: int) -> None:
        """Close what does not lead to this primary; another thread may take or give one back."""
        for lane in tuple(self._lanes):
            if lane.turn != turn:
                with suppress(ValueError):
                    self._lanes.remove(lane)
                    await lane.close()
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            await waiter.drop()

    def has_moved(self, conn: Any) -> bool:
        """Whether a connection leads to a server that was the primary."""
        return self._primary is not None and bool(conn.turn != self._primary.turn)

    async def _lane(self) -> AsyncProducerConnection:
        """Take a lane for one call; open it first if the call is not sent a second time."""
        lane = self.take() if self._primary is None else await self._led(self._primary)
        if self._sends_once:
            had_opened = lane.has_opened
            if await self._open(lane) and had_opened:
                self._has_lost = True
        return lane

    async def _open(self, lane: AsyncProducerConnection) -> bool:
        try:
            return await lane.open()
        except BaseException:
            await lane.close()
            raise

    async def run(self, call: Call[Any], *, brief: bool = False) -> list[Any]:
        """Run a script and return its reply; the call is told when it was sent again.

        Raises:
            OutOfMemory, QueueDamaged: what the server refused, typed.
            redis.exceptions.ConnectionError, TimeoutError: still failing after `retry_for` seconds.
        """
        self._bind()  # async only
        if self._primary is not None or self._sends_once:
            lane = await self._lane()
        else:
            try:
                lane = self._lanes.pop()
            except IndexError:
                lane = AsyncProducerConnection(self.factory())
        lane.calls += 1
        try:
            try:
                reply = await lane.exchange(call, lane)
            except Exception as error:
                if not transient(error):
                    raise
                reply = await self._again(lane, call, error, brief=brief)
        except BaseException as error:
            await self._failed(lane, error)
            raise
        self._lanes.append(lane)
        return reply

    async def _failed(self, lane: AsyncProducerConnection, error: BaseException) -> None:
        """Keep the lane of a call that was refused, and raise that typed; close any other.

        There a reply may still be under way and the outcome is unknown: neither the connection nor
        the producer id is used again.
        """
        if isinstance(error, ResponseError) and not transient(error):
            self._lanes.append(lane)
            raise_typed(error)
        if isinstance(error, NotReplicated):  # nothing was sent
            self._lanes.append(lane)
            return
        await lane.close()

    async def _again(
        self, lane: AsyncProducerConnection, call: Call[Any], error: Exception, *, brief: bool
    ) -> list[Any]:
        """Send the same call, with the same number, on a new connection, for a bounded time.

        The reply is that to the last time, so a lease in it counts from then.
        """
        if self._sends_once:
            raise error
        logger.info("%s: %s; trying again", call.script.name, error)
        doubts = [] if isinstance(error, ResponseError) else [error]

        async def repeat() -> list[Any]:
            await lane.close()
            call.resent = monotonic()
            if doubts:
                call.doubt()
            try:
                return await lane.exchange(call, lane)
            except (RedisConnectionError, RedisTimeoutError, ProtocolError) as failure:
                doubts.append(failure)
                raise

        retrying = self._retrying.copy()
        if brief:
            retrying = self._retrying.copy(stop=tenacity.stop_after_attempt(1))
        try:
            return await retrying(repeat)
        except ResponseError as refusal:
            if doubts and transient(refusal):
                raise doubts[0] from refusal  # it may have run before: that is no refusal
            raise

    async def reach(self) -> bool:
        """Have an open connection, as far as can be seen; of all that fails nothing was sent.

        Returns:
            Whether it had to be opened, or one was found closed since the last `reach`.

        Raises:
            redis.exceptions.ConnectionError, TimeoutError: at the first attempt.
        """
        lane = self.take() if self._primary is None else await self._led(self._primary)
        opened = await self._open(lane) or self._has_lost
        self._has_lost = False
        self.give(lane)
        return opened

    async def command(self, *args: Any) -> Any:
        """A plain command that may be repeated, its reply undecoded."""
        lane = await self._lane()

        async def attempt() -> Any:
            try:
                return await lane.command(*args)
            except Exception as error:
                if transient(error):
                    await lane.close()
                raise

        try:
            reply: Any = await self._retrying.copy()(
                attempt
            )  # a copy: concurrent calls would mix their state
        except BaseException as error:
            await self._failed(lane, error)
            raise
        self._lanes.append(lane)
        return reply

    async def everywhere(self, commands: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
        """What each server replies to plain commands: this one."""
        return [[await self.command(*args) for args in commands]]

    # -- waiters ---------------------------------------------------------------------------

    def waiter(self) -> AsyncBlockingConnection:
        """A waiter for one wait; give it back with `rest`."""
        self._bind()
        try:
            return self._waiters.pop()
        except IndexError:
            return AsyncBlockingConnection(self.factory(socket_timeout=None), self)

    def rest(self, waiter: AsyncBlockingConnection) -> None:
        """Keep a waiter with nothing pending for the next wait."""
        self._waiters.append(waiter)

    async def close(self) -> None:
        """Close all connections that are not in use."""
        lanes, self._lanes = self._lanes, []
        waiters, self._waiters = self._waiters, []
        for lane in lanes:
            await lane.close()
        for waiter in waiters:
            await waiter.drop()
        if self._primary is not None:
            await self._primary.close()


def _pause(state: tenacity.RetryCallState) -> float:
    elapsed = state.seconds_since_start or 0.0
    return random.random() * longest_pause(state.attempt_number, elapsed)


def transient(error: BaseException) -> bool:
    """Whether a failure may pass by itself: the connection's, or of a server that is not ready.

    Any other refusal is the answer.
    """
    if isinstance(error, ResponseError):
        codes = (ReadOnlyError, MasterDownError, TryAgainError)
        return isinstance(error, codes) or PASSING.search(str(error)) is not None
    return isinstance(error, FAILURES) and not isinstance(error, UNLESS)


def passing(error: BaseException) -> bool:
    """Whether a failure may pass by itself, that of a cluster which is changing included."""
    return isinstance(error, CHANGES) or transient(error)
