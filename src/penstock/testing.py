"""Tests without a server; the pytest plugin `pytest_penstock` has this as fixtures.

The scripts of the protocol run on fakeredis, in the test's own process. While a test runs, every
`Penstock` and `AsyncPenstock` of the process leads to the test's own server, also those that were
made when the app was imported:

    def test_a_welcome_is_sent(penstock):
        sign_up("ada")
        penstock.assert_enqueued(welcome, "ada")
        assert penstock.work(handlers) == {"done": 1}

Other test runners call `use`, as in a test case of unittest or Django:

    class SignUpTest(TestCase):
        def setUp(self):
            self.penstock = self.enterContext(penstock.testing.use())

The server has no replicas, so an enqueue with `replicas=1` raises `NotReplicated`. A marker, or
`use(replicas=1)`, gives it some, which confirm every write at once:

    @pytest.mark.penstock(replicas=1)
    def test_an_order_is_copied(penstock):
        assert penstock.queue("orders").enqueue(b"1", replicas=1).replicas == 1

It needs the extra `testing` (fakeredis with Lua).
"""

from __future__ import annotations

import asyncio
import importlib
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

import hiredis
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from penstock.client.redirection import redirect_all
from penstock.core.values.checks import check_count
from penstock.errors import ConfigurationError
from penstock.worker._async.kit import AsyncPenstockKit
from penstock.worker._sync.kit import PenstockKit

if TYPE_CHECKING:
    from fakeredis import FakeServer

__all__ = [
    "AsyncPenstockKit", "PenstockKit", "async_kit", "fake_server", "redirect_clients", "sync_kit",
    "use",
]  # fmt: skip

NEEDED_PACKAGES = ("fakeredis", "lupa")


class _Replicated:
    """A connection that answers questions about replicas; the server gets all other commands.

    fakeredis has no WAIT and no replication.

    Attributes:
        replicas: how many there are.
        due: answers in the order of the questions; `...` = the server's.
    """

    replicas = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.due: deque[Any] = deque()
        super().__init__(*args, **kwargs)

    def send_packed_command(self, command: Any, *args: Any, **kwargs: Any) -> Any:
        """Send the commands for the server."""
        commands = self.kept(command)
        sender: Any = super()
        sent = sender.send_packed_command
        return sent(commands, *args, **kwargs) if commands else self.give_answer(None)

    def read_response(self, *args: Any, **kwargs: Any) -> Any:
        """Return the next answer, ours or the server's."""
        answer = self.due.popleft() if self.due else ...
        reader: Any = super()
        read = reader.read_response
        return read(*args, **kwargs) if answer is ... else self.give_answer(answer)

    def give_answer(self, value: Any) -> Any:
        """Return what a method of the connection returns in place of a value."""
        return value

    def kept(self, chunks: bytes | list[bytes]) -> list[bytes]:
        """Return the commands for the server; the others are answered from here."""
        reader = hiredis.Reader()
        reader.feed(b"".join([chunks] if isinstance(chunks, bytes) else chunks))
        commands: list[bytes] = []
        while (command := reader.gets()) is not False:
            answer = self.answer_to(command)
            self.due.append(answer)
            if answer is ...:
                commands.append(hiredis.pack_command(tuple(command)))
        return commands

    def answer_to(self, command: list[bytes]) -> Any:
        """Return the answer to a question about replicas; `...` = it is another command."""
        if command[0].upper() == b"WAIT":
            return self.replicas
        if [part.upper() for part in command] == [b"INFO", b"REPLICATION"]:
            return b"role:master\r\nconnected_slaves:%d\r\n" % self.replicas
        return ...

    def disconnect(self, *args: Any, **kwargs: Any) -> Any:
        """Forget the answers that are due; an asynchronous connection returns an awaitable."""
        self.due.clear()
        closer: Any = super()
        return closer.disconnect(*args, **kwargs)


class _AsyncReplicated(_Replicated):
    async def give_answer(self, value: Any) -> Any:
        """Return an awaitable, as methods of asynchronous connections do."""
        return value


def _give_replicas(redis: Any, kind: type[_Replicated], count: int) -> None:
    if count:
        pool = redis.connection_pool
        made = type(kind.__name__, (kind, pool.connection_class), {"replicas": count})
        pool.connection_class = made


def _fakeredis() -> Any:
    """Import fakeredis only when a test needs it, because the import is slow."""
    try:
        importlib.import_module("lupa")  # without it fakeredis has no EVALSHA
        return importlib.import_module("fakeredis")
    except ModuleNotFoundError as error:
        if error.name not in NEEDED_PACKAGES:
            raise
        missing = error.name
    raise ConfigurationError(f"penstock.testing needs {missing}: pip install 'penstock[testing]'")


class _Clock(ModuleType):
    """The module `time` as fakeredis sees it: some seconds ahead."""

    def __init__(self) -> None:
        super().__init__("time")
        vars(self).update(vars(time) | {"time": self.now})
        self.ahead = 0.0

    def now(self) -> float:
        """Return the moved time."""
        return time.time() + self.ahead

    def advance(self, seconds: float) -> None:
        """Move the clock forward."""
        self.ahead += seconds


_CLOCK = _Clock()


@contextmanager
def _clock() -> Iterator[Callable[[float], None]]:
    """Yield a function that moves the clock of fakeredis; the end sets it back."""
    loaded = [module for name, module in sys.modules.items() if name.startswith("fakeredis")]
    timed: list[Any] = [one for one in loaded if vars(one).get("time") in (time, _CLOCK)]
    for module in timed:
        module.time = _CLOCK
    try:
        yield _CLOCK.advance
    finally:
        _CLOCK.ahead = 0.0
        for module in timed:
            module.time = time


def fake_server() -> FakeServer:
    """Return a new server.

    Raises:
        ConfigurationError: the extra `testing` is not installed.
    """
    server: FakeServer = _fakeredis().FakeServer()
    server.dbs[0]  # makes it: two threads that connect first would make one each
    return server


def _sync_redis(server: FakeServer, replicas: int) -> Any:
    redis = _fakeredis().FakeRedis(server=server)
    _give_replicas(redis, _Replicated, replicas)
    return redis


def _async_redis(server: FakeServer, replicas: int) -> Any:
    redis = _fakeredis().FakeAsyncRedis(server=server)
    _give_replicas(redis, _AsyncReplicated, replicas)
    return redis


def redirect_clients(server: FakeServer, *, replicas: int = 0) -> AbstractContextManager[None]:
    """Lead every client of the process to a server in a block, and back at its end.

    A client that was made from a client of fakeredis stays where it is.

    Args:
        server: the server.
        replicas: how many confirm every write.
    """
    redis, asyncio_redis = _sync_redis(server, replicas), _async_redis(server, replicas)
    return redirect_all({Redis: redis, AsyncRedis: asyncio_redis})


@contextmanager
def sync_kit(server: FakeServer, *, replicas: int = 0, **options: Any) -> Iterator[PenstockKit]:
    """Yield a client of a server, with helpers for tests.

    Args:
        server: the server.
        replicas: how many confirm every write.
        **options: as of `Penstock`, such as the prefix of the app's client.
    """
    redis = _sync_redis(server, replicas)
    client = PenstockKit(redis, **{"owner": "test", **options})
    with _clock() as client.advance, client:
        yield client
    redis.close()


@contextmanager
def async_kit(
    server: FakeServer, *, replicas: int = 0, **options: Any
) -> Iterator[AsyncPenstockKit]:
    """Yield an asynchronous client of a server, as `sync_kit`."""
    redis = _async_redis(server, replicas)
    client = AsyncPenstockKit(redis, **{"owner": "test", **options})
    with _clock() as client.advance:
        yield client
    # The test's event loop may be gone; nothing of fakeredis's connections belongs to it.
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(client.close())
        loop.run_until_complete(redis.aclose())
    finally:
        loop.close()


@contextmanager
def use(*, replicas: int = 0, **options: Any) -> Iterator[PenstockKit]:
    """Lead every client of the process to a new server in this block; yield helpers for tests.

    Args:
        replicas: how many confirm every write.
        **options: of the client with the helpers, as of `Penstock`; such as the prefix of the
            app's client.

    Raises:
        BadArgument: not a number of replicas, or an option can't be used.
        ConfigurationError: the extra `testing` is not installed.

    Examples:
        >>> from penstock.testing import use
        >>> with use() as kit:
        ...     job = kit.queue("emails").enqueue("ada")  # or by a client of the app
        ...     kit.queues()
        ['emails']
    """
    server = fake_server()
    check_count("replicas", replicas, low=0, high=1000)
    with (
        redirect_clients(server, replicas=replicas),
        sync_kit(server, replicas=replicas, **options) as kit,
    ):
        yield kit
