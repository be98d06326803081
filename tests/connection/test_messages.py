"""The errors that a person meets at the first try, with each kind of client.

One table: how the trouble comes about, the class of the error, and what its text must say. Each
line of it runs with `Penstock`, with `AsyncPenstock` and with the command line.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
import redis

from penstock import (
    AccessDenied,
    AsyncPenstock,
    AsyncWorker,
    BadArgument,
    NoSuchDatabase,
    NotPermitted,
    NotRedis,
    OutOfMemory,
    Penstock,
    PenstockError,
    QueueDamaged,
    ReadOnlyReplica,
    ServerTimeout,
    ServerUnreachable,
    UnsupportedVersion,
    Worker,
)
from penstock.client._sync.transport.settings import SOCKET_TIMEOUT
from penstock.core.calls.failures import raise_typed
from penstock.core.calls.troubles import NEEDED_PERMISSIONS
from penstock.embedded import EmbeddedServer
from tests.cli.conftest import run_cli
from tests.cli.support import Cli, environment, in_process_of_its_own
from tests.support.binaries import first_binary, servers
from tests.support.proxy import Proxy

__all__ = ["run_cli"]

QUICK = "socket_timeout=0.5&socket_connect_timeout=0.5"


@dataclass(frozen=True)
class Case:
    """One kind of trouble.

    Args:
        error: the class of the error.
        text: what its message must contain; {at} is the server's address.
        url: of the client; {at} as before.
        commands: sent to the server first.
        base: the class of redis-py that the error must have as well.
    """

    error: type[PenstockError]
    text: str
    url: str = "redis://{at}/0"
    commands: tuple[tuple[str, ...], ...] = ()
    base: type[Exception] = Exception


def user(name: str, *rules: str) -> tuple[tuple[str, ...], ...]:
    """Return the commands that make a user with these ACL rules."""
    return (("ACL", "SETUSER", name, "reset", "on", ">pw", *rules),)


PASSWORD = (("CONFIG", "SET", "requirepass", "secret"),)
CASES = {
    "no password": Case(
        AccessDenied, "the server wants a password: redis://:PASSWORD@{at}",
        commands=PASSWORD, base=redis.AuthenticationError,
    ),
    "wrong password": Case(
        AccessDenied, "{at} refuses the user name or the password",
        url="redis://:wrong@{at}/0", commands=PASSWORD, base=redis.AuthenticationError,
    ),
    "a password that is not wanted": Case(
        AccessDenied, "{at} has no password: leave it out of the URL", url="redis://:pw@{at}/0"
    ),
    "TLS on a plain port": Case(
        ServerTimeout, "does this port speak TLS? otherwise the URL begins with redis://",
        url="rediss://{at}/0?" + QUICK, base=redis.TimeoutError,
    ),
    "a queue in the URL": Case(
        BadArgument, "a URL has the number of a database, as in redis://host:6379/0",
        url="redis://{at}/emails", base=ValueError,
    ),
    "no such database": Case(
        NoSuchDatabase, "{at} has no database of this number", url="redis://{at}/99",
        base=redis.ResponseError,
    ),
    "a read-only replica": Case(
        ReadOnlyReplica, "{at} is a read-only replica: connect to its primary",
        commands=(("REPLICAOF", "127.0.0.1", "1"),), base=redis.exceptions.ReadOnlyError,
    ),
    "keys that are not allowed": Case(
        NotPermitted, "ACL SETUSER <user> ~penstock:*",
        url="redis://eve:pw@{at}/0", commands=user("eve", "~other:*", "+@all"),
        base=redis.exceptions.NoPermissionError,
    ),
    "a command that is not allowed": Case(
        NotPermitted, "this user may not run the command 'evalsha'",
        url="redis://eve:pw@{at}/0", commands=user("eve", "~*", "+@all", "-evalsha"),
        base=redis.exceptions.NoPermissionError,
    ),
    "a command in a script that is not allowed": Case(
        NotPermitted, "this user may not run",
        url="redis://eve:pw@{at}/0", commands=user("eve", "~*", "+@all", "-xadd"),
        base=redis.exceptions.NoPermissionError,
    ),
    "a key of another type": Case(
        QueueDamaged, "key 'penstock:{{q}}:ready' has the wrong type: it is a string, not a stream",
        commands=(
            ("HSET", "penstock:{q}:meta", "v", "2", "epoch", "01020304", "seen", "0"),
            ("SET", "penstock:{q}:ready", "x"),
        ),
    ),
    "a newer protocol": Case(
        UnsupportedVersion, "written by version 9 of the protocol: upgrade penstock",
        commands=(("HSET", "penstock:{q}:meta", "v", "9"),),
    ),
}  # fmt: skip
KINDS = ("sync", "async", "cli")


@pytest.fixture
def tcp() -> Iterator[EmbeddedServer]:
    """A server on loopback whose settings a test may change."""
    with EmbeddedServer(first_binary(), tcp=True) as server:
        yield server


def fails(kind: str, url: str) -> BaseException:
    """Enqueue a job with a client of this kind, and return the error."""
    with pytest.raises(Exception) as caught:  # noqa: PT011  # the caller looks at it
        _enqueue(url) if kind == "sync" else asyncio.run(_aenqueue(url))
    return caught.value


def _enqueue(url: str) -> None:
    with Penstock(url, retry_for=0.1) as ps:
        ps.queue("q").enqueue("x")


async def _aenqueue(url: str) -> None:
    async with AsyncPenstock(url, retry_for=0.1) as ps:
        await ps.queue("q").enqueue("x")


def check(kind: str, case: Case, address: str, cli: Cli) -> None:
    """Check the error of a client, or the line of the command."""
    url, text = case.url.format(at=address), case.text.format(at=address)
    if kind == "cli":
        result = cli("enqueue", "q", "x", url=url)
        assert (result.code, result.out) == (1, "")
        assert result.err.startswith("penstock: ")
        assert text in result.err
        assert result.err.count("\n") == 1
        return
    error = fails(kind, url)
    assert type(error) is case.error
    assert isinstance(error, case.base)
    assert text in str(error)
    assert error.__cause__ is None
    assert error.__suppress_context__ or error.__context__ is None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CASES)
def test_what_a_person_meets(name: str, kind: str, tcp: EmbeddedServer, run_cli: Cli) -> None:
    """Each trouble has one error that says what is wrong and what to do."""
    case = CASES[name]
    with redis.Redis.from_url(tcp.url) as raw:
        for command in case.commands:
            raw.execute_command(*command)
    address = tcp.url.removeprefix("redis://").partition("/")[0]
    check(kind, case, address, run_cli)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_an_impatient_client_is_not_held_by_a_handshake(kind: str, tcp: EmbeddedServer) -> None:
    """With a short `retry_for` it waits a second, not five, for a port that does not speak TLS."""
    began = time.monotonic()
    assert type(fails(kind, tcp.url.replace("redis://", "rediss://"))) is ServerTimeout
    assert time.monotonic() - began < SOCKET_TIMEOUT


def test_a_slow_reply_is_not_cut_by_the_time_to_connect(tcp: EmbeddedServer) -> None:
    """Once it is connected, the time for a reply counts."""
    with Penstock(tcp.url, retry_for=0.1) as ps, redis.Redis.from_url(tcp.url) as raw:
        ps.queue("q").enqueue("x")
        raw.execute_command("CLIENT", "PAUSE", 1500)  # ms
        ps.queue("q").enqueue("y")
        assert ps.queue("q").stats().ready == 2


class Web(BaseHTTPRequestHandler):
    """A web server that refuses everything."""

    def log_message(self, *args: Any) -> None:
        """Log nothing."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_web_server(kind: str, run_cli: Cli) -> None:
    """A port that answers HTTP."""
    with HTTPServer(("127.0.0.1", 0), Web) as web:
        thread = threading.Thread(target=web.serve_forever)
        thread.start()
        try:
            case = Case(NotRedis, "{at} does not speak the protocol of Redis")
            check(kind, case, f"127.0.0.1:{web.server_port}", run_cli)
        finally:
            web.shutdown()
            thread.join()


@pytest.mark.parametrize("kind", KINDS)
def test_no_server(kind: str, run_cli: Cli) -> None:
    """A port on which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    hint = "To start one here: penstock --url redis://{at} dev"
    text = f"{{at}} can't be reached: Connection refused. {hint}"
    check(kind, Case(ServerUnreachable, text, base=redis.ConnectionError), address, run_cli)


def test_a_client_says_what_it_waits_for(
    server: EmbeddedServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A call that is repeated for more than a second is told, once."""
    with Proxy(server.address) as proxy:
        proxy.refuse()
        with pytest.raises(ServerUnreachable), Penstock(proxy.url, retry_for=3):
            pass
    told = [text for text in caplog.messages if "does not answer" in text]
    assert len(told) == 1
    assert told[0].endswith("; tried for 3 s")


OTHERS: dict[str, tuple[Callable[[], object], str]] = {
    "a sync client in an AsyncWorker": (
        lambda: AsyncWorker(Penstock(), "q", print),  # type: ignore[arg-type]  # the mistake
        "AsyncWorker takes a URL, AsyncPenstock or a redis.asyncio.Redis, not Penstock",
    ),
    "an async client in a Worker": (
        lambda: Worker(AsyncPenstock(), "q", print),  # type: ignore[arg-type]  # the mistake
        "Worker takes a URL, Penstock or a redis.Redis, not AsyncPenstock",
    ),
    "a sync redis client in an AsyncWorker": (
        lambda: AsyncWorker(redis.Redis(), "q", print),
        "AsyncWorker takes a URL, AsyncPenstock or a redis.asyncio.Redis, not redis.client.Redis",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_client_of_the_other_kind(name: str) -> None:
    """The error names both kinds."""
    make, text = OTHERS[name]
    with pytest.raises(BadArgument) as caught:
        make()
    assert text in str(caught.value)


@pytest.mark.parametrize(
    "module, package",
    [
        ("integrations.otel", "opentelemetry"),
        ("integrations.prometheus", "prometheus_client"),
        ("integrations.pydantic", "pydantic"),
        ("integrations.django", "django"),
        ("web", "starlette"),
        ("web", "jinja2"),
    ],
)
def test_a_missing_extra(module: str, package: str) -> None:
    """The error says which extra to install."""
    code = f"import sys; sys.modules[{package!r}] = None; import penstock.{module}"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(), check=False
    )
    extra = module.rpartition(".")[2]
    assert done.returncode == 1
    assert done.stderr.endswith(f": pip install 'penstock[{extra}]'\n")


@pytest.mark.parametrize(
    "target, written",
    [("app.py:worker", "app:worker"), ("./app.py:w", "app:w"), ("a/b.py", "a.b:worker")],
)
def test_a_file_in_place_of_a_module(target: str, written: str, run_cli: Cli) -> None:
    """`penstock worker app.py:worker` says what to write."""
    result = run_cli("worker", target)
    assert result.code == 2
    assert result.err == f"penstock: {target!r} names a file, not a module: write {written}\n"


def test_python_m_penstock() -> None:
    """`python -m penstock` is the command line."""
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "--version"],
        capture_output=True, text=True, env=environment(), check=False,
    )  # fmt: skip
    assert done.stdout == in_process_of_its_own("--version").out


def test_what_redis_adds_is_the_cause() -> None:
    """The server's own text about a script is kept where ours does not say it all."""
    texts = {
        OutOfMemory: "OOM command not allowed, script: f1, on @user_script:23.",
        QueueDamaged: "WRONGTYPE Operation against a key, script: f1, on @user_script:23.",
    }
    for kind, text in texts.items():
        reply = redis.exceptions.ResponseError(text)
        with pytest.raises(kind) as caught:
            raise_typed(reply)
        assert caught.value.__cause__ is reply
    with pytest.raises(QueueDamaged) as caught:
        raise_typed(reply, mistyped="key 'penstock:{q}:ready' has the wrong type")
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("name", servers())
def test_the_rights_that_the_message_names(name: str) -> None:
    """A refusal inside a script that names no command lists rules that are enough."""
    with (
        EmbeddedServer(servers()[name], tcp=True) as server,
        redis.Redis.from_url(server.url) as raw,
    ):
        raw.execute_command(*user("eve", "~penstock:*", "+@all", "-xadd")[0])
        url = server.url.replace("redis://", "redis://eve:pw@")
        text = str(fails("sync", url))
        rules = text[text.index("ACL SETUSER <user> ") :].split()[3:]
        assert "+xadd" in rules or "+@write" in rules
        rules = rules[: rules.index("allows")] if "allows" in rules else rules
        raw.execute_command("ACL", "SETUSER", "eve", *rules)
        _enqueue(url)
        raw.execute_command("ACL", "SETUSER", "eve", "-@all", *NEEDED_PERMISSIONS.split())
        with Penstock(url) as ps:
            done: list[Any] = []
            Worker(ps, "q", lambda job: done.append(job.body), burst=True).run()
            assert done == ["x"]
            assert ps.queue("q").reserve(block=0.01) == []
