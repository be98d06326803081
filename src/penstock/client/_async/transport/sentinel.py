"""A primary that is found through Sentinel, and found again when it has changed.

The procedure is in protocol/nodes.md, Sentinel. This module uses the connections of redis-py but
not its pool: the clients of the pool belong to one event loop and try again for a minute, and it
believes a Sentinel that is cut off from the others.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlencode

from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import MasterNotFoundError, Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoPermissionError, RedisError, ResponseError

from penstock.client._acompat import AsyncRedisConnection, apool, asend

# sync only: from penstock.client._acompat import HandshakePacker
from penstock.core.jobs.logs import get_logger
from penstock.core.values.urls import host_and_port, shown, unusable
from penstock.errors import BadArgument
from penstock.wire.packing import pack

__all__ = [
    "AsyncPrimary",
    "SentinelAnswer",
    "sentinel_pool",
    "to_primary",
    "url_pool",
    "without_retry",
]

logger = get_logger("penstock")

SENTINEL_SCHEME = re.compile(r"(?P<base>rediss?)\+sentinel://", re.IGNORECASE)
SENTINEL_URL_FORM = (
    "redis+sentinel://[user:password@]host[:port][,host[:port]...]/service[/db][?option=value...]"
)
SENTINEL_HOST = r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\[\]:/@\s]+)(?::(?P<port>\d{1,5}))?"
SENTINEL_PORT = 26379
SENTINEL_OPTION_PREFIX = "sentinel_"
"""Prefix of the options of a URL that are for the Sentinels."""
SENTINEL_STEP_SECONDS = 1.0
"""Seconds for each step with a Sentinel, and for connecting to a primary, unless told otherwise."""
SENTINEL_LOOK_SECONDS = 1.0
"""Seconds after which a Sentinel is asked again although connections work."""
SENTINEL_REST_SECONDS = 30.0
"""Seconds after which the next Sentinel is asked if one has not answered."""


class SentinelAnswer(NamedTuple):
    """The answer of a Sentinel.

    Args:
        epoch: epoch of the configuration; it rises with each failover.
        address: host and port of the primary.
    """

    epoch: int
    address: tuple[str, int]


class AsyncPrimary:
    """Finds the primary. Takes the place of the pool in redis-py's connections.

    Args:
        pool: has the name of the service, and its Sentinels.

    Attributes:
        turn: number of the primary, counted from 1 on; 0 = none was found yet.
    """

    is_master = True
    check_connection = False

    def __init__(self, pool: SentinelConnectionPool) -> None:
        manager = pool.sentinel_manager
        self.service_name = pool.service_name
        self.turn = 0
        self._address: tuple[str, int] | None = None
        self._epoch = 0
        self._look_at = math.inf
        self._peers = manager.min_other_sentinels
        self._given_ip = getattr(manager, "_force_master_ip", None)  # redis-py has no other name
        self._sentinels = [_maker(one, manager.sentinel_kwargs) for one in manager.sentinels]
        self._idle: dict[str, AsyncRedisConnection] = {}

    def __str__(self) -> str:
        places = ",".join(where for where, _ in self._sentinels)
        return f"{self.service_name}@{places}"

    async def get_master_address(self) -> tuple[str, int]:
        """Ask for the address of the primary. The name is redis-py's.

        Raises:
            MasterNotFoundError: no Sentinel that knows it has answered.
        """
        best: SentinelAnswer | None = None
        failed = []
        for number, (where, make) in enumerate(tuple(self._sentinels)):
            answer = await self._ask(where, make)
            if isinstance(answer, Exception):
                failed.append(f"{where}: {answer}")
                continue
            if best is None or answer.epoch > best.epoch:
                best = answer
            if answer.epoch >= self._epoch:
                self._begin_with(number)
                break
        if best is None:
            text = "; ".join(failed)
            raise MasterNotFoundError(
                f"no Sentinel knows a primary named {self.service_name!r}: {text}"
            )
        self._take(best)
        return best.address

    async def look(self) -> None:
        """Ask again, if that is due: a primary that is cut off from its Sentinels works on.

        Each time another Sentinel is asked, as one that is cut off has an old answer.
        """
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + SENTINEL_LOOK_SECONDS  # other calls use the known address meanwhile
        self._begin_with(1)
        where, make = self._sentinels[0]
        answer = await self._ask(where, make)
        if isinstance(answer, Exception):
            logger.info("Sentinel %s: %s", where, answer)
            self._look_at = time.monotonic() + SENTINEL_REST_SECONDS
        elif answer.epoch >= self._epoch:
            self._take(answer)

    def turn_of(self, address: tuple[str, int]) -> int:
        """Return the number of the primary at an address; 0 = it is not the current one."""
        return self.turn if address == self._address else 0

    def doubt(self) -> None:
        """Ask another Sentinel first: the address it gave is not that of a primary."""
        self._begin_with(1)

    def _begin_with(self, number: int) -> None:
        every = self._sentinels
        self._sentinels = every[number:] + every[:number]

    def _take(self, answer: SentinelAnswer) -> None:
        self._epoch = answer.epoch
        self._look_at = time.monotonic() + SENTINEL_LOOK_SECONDS
        if answer.address != self._address:
            self._address = answer.address
            self.turn += 1
            where = host_and_port(*answer.address)
            logger.info("the primary of %s is %s", self.service_name, where)

    async def answers(self) -> list[tuple[str, SentinelAnswer | Exception]]:
        """Return the answer of each Sentinel, or its error; for tools."""
        return [(where, await self._ask(where, make)) for where, make in self._sentinels]

    async def _ask(
        self, where: str, make: Callable[[], AsyncRedisConnection]
    ) -> SentinelAnswer | Exception:
        try:
            conn = self._idle.pop(where, None) or make()
            try:
                answer = await self._ask_connection(conn)
            except BaseException:
                await conn.disconnect()
                raise
            # Of two connections that were made at once the later one is kept.
            other, self._idle[where] = self._idle.get(where), conn
            if other is not None:
                await other.disconnect()
        except (RedisError, OSError) as error:
            return error
        return answer

    async def _ask_connection(self, conn: AsyncRedisConnection) -> SentinelAnswer:
        name = self.service_name
        # In a failover the first command names the new primary earlier than the second.
        where = pack(("SENTINEL", "GET-MASTER-ADDR-BY-NAME", name))
        await asend(conn, where + pack(("SENTINEL", "MASTER", name)))
        address = await conn.read_response(disable_decoding=True)
        if address is None:
            raise ResponseError("it does not know this name")
        flat = await conn.read_response(disable_decoding=True)
        state = dict(zip(flat[::2], flat[1::2], strict=False))
        if int(state.get(b"num-other-sentinels", 0)) < self._peers:
            raise ResponseError("it sees too few other Sentinels")
        host = self._given_ip or address[0].decode()
        return SentinelAnswer(int(state.get(b"config-epoch", 0)), (host, int(address[1])))

    def forget(self) -> None:
        """Forget the connections without closing them."""
        self._idle = {}

    async def close(self) -> None:
        """Close the connections that are kept for further questions."""
        kept, self._idle = self._idle, {}
        for conn in kept.values():
            await conn.disconnect()


def _maker(
    sentinel: Any, settings: dict[str, Any]
) -> tuple[str, Callable[[], AsyncRedisConnection]]:
    """Return the address of a Sentinel, and a function that makes connections to it.

    Args:
        sentinel: redis-py's client of the Sentinel, which has the settings.
        settings: settings of the user; the default time-outs of redis-py are too long.
    """
    kind = sentinel.connection_pool.connection_class
    kwargs = without_retry(sentinel.connection_pool.connection_kwargs)
    for name in ("socket_timeout", "socket_connect_timeout"):
        kwargs[name] = settings.get(name) or SENTINEL_STEP_SECONDS
    return host_and_port(kwargs["host"], kwargs["port"]), lambda: kind(**kwargs)


def without_retry(lent: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of redis-py for connections that speak RESP2 and never retry."""
    never = {"retry_on_timeout": False, "retry_on_error": [], "retry": Retry(NoBackoff(), 0)}
    # sync only: lent = {"command_packer": HandshakePacker(), **lent}
    return {**lent, **never, "protocol": 2, "health_check_interval": 0}


class AsyncToPrimary:
    """Makes a connection of redis-py check that it has reached a primary.

    Attributes:
        turn: number of the primary, counted by `AsyncPrimary`.
    """

    turn = 0

    async def connect_to(self, address: tuple[str, int]) -> None:
        """Connect; called by redis-py with the address that the Sentinels gave.

        Raises:
            redis.exceptions.ConnectionError: it can't be reached, or is not a primary.
        """
        conn: Any = self
        primary: AsyncPrimary = conn.connection_pool
        turn = primary.turn_of(address)
        try:
            await super().connect_to(address)  # type: ignore[misc]  # a mixin
            await self._check_role(conn)
        except BaseException:
            primary.doubt()
            await conn.disconnect()
            raise
        self.turn = turn

    async def _check_role(self, conn: Any) -> None:
        await asend(conn, pack(("ROLE",)))
        try:
            role = await conn.read_response(disable_decoding=True)
        except NoPermissionError:  # then a replica shows only when it refuses a write
            return
        if role[0] != b"master":
            raise RedisConnectionError(
                f"{host_and_port(conn.host, conn.port)} is not the primary now"
            )


def to_primary(kind: type) -> Callable[..., AsyncRedisConnection]:
    """Return a class of connections of redis-py that check their role."""
    return type(f"ToPrimary{kind.__name__}", (AsyncToPrimary, kind), {})


def sentinel_pool(url: str) -> SentinelConnectionPool | None:
    """Return a pool as `Sentinel.master_for` makes it; nothing is sent.

    None = the URL has another scheme.

    Raises:
        BadArgument: the URL has not the form that is documented.
    """
    match = SENTINEL_SCHEME.match(url)
    if match is None:
        return None
    scheme = match["base"].lower()
    rest, _, query = url[match.end() :].partition("?")
    user, _, place = rest.rpartition("@")
    hosts, *path = place.split("/")
    service, db = ([unquote(part) for part in path] + [""])[:2] if len(path) in (1, 2) else ("", "")
    if not service or not re.fullmatch(r"\d{0,9}", db):
        raise _bad(url, f"the form {SENTINEL_URL_FORM}")
    secure = {"ssl": True} if scheme == "rediss" else {}
    pairs = parse_qsl(query, keep_blank_values=True)
    theirs = [
        (name.removeprefix(SENTINEL_OPTION_PREFIX), value)
        for name, value in pairs
        if name.startswith(SENTINEL_OPTION_PREFIX)
    ]
    ours = [pair for pair in pairs if not pair[0].startswith(SENTINEL_OPTION_PREFIX)]
    common = [pair for pair in ours if pair[0].startswith("ssl_")]
    kwargs = _options(url, f"{scheme}://{user}@h/{db or 0}", ours)
    sentinel_kwargs = _options(url, f"{scheme}://h", [*common, *theirs])
    manager = Sentinel(  # type: ignore[no-untyped-call] # not typed for threads
        _places(url, hosts), sentinel_kwargs={**sentinel_kwargs, **secure}
    )
    return SentinelConnectionPool(service, manager, **secure, **kwargs)  # type: ignore[no-untyped-call] # same


def _places(url: str, hosts: str) -> list[tuple[str, int]]:
    places = []
    for text in hosts.split(","):
        match = re.fullmatch(SENTINEL_HOST, text)
        port = int(match["port"] or SENTINEL_PORT) if match else 0
        if match is None or not 0 < port < 65536:
            raise _bad(url, "must be host or host:port for each Sentinel, with a port up to 65535")
        places.append((match["host"].strip("[]"), port))
    return places


def _options(url: str, base: str, pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Return options as redis-py reads them from a URL; its connections check the names.

    Raises:
        BadArgument: an option can't be used.
    """
    pool = url_pool(f"{base}?{urlencode(pairs)}", url)
    named = {"username", "password", "db", *(name for name, _ in pairs)}
    return {name: pool.connection_kwargs[name] for name in named & pool.connection_kwargs.keys()}


def url_pool(url: str, user_url: str) -> Any:
    """Return redis-py's pool for a URL; nothing is sent.

    Args:
        url: a URL in redis-py's form.
        user_url: the URL of the user, for the error.

    Raises:
        BadArgument: redis-py can't use it, or knows no such option.
    """
    new_pool: Any = None
    complaint = ""
    try:
        new_pool = apool.from_url(url)
        new_pool.connection_class(**new_pool.connection_kwargs)
    except (TypeError, ValueError, RedisError) as error:
        complaint = str(error) or type(error).__name__
    if complaint:  # raised here, as redis-py's error may hold a part of the password
        raise _bad(user_url, unusable(user_url, complaint))
    return new_pool


def _bad(url: str, reason: str) -> BadArgument:
    return BadArgument("source", shown(url), reason)
