"""A pytest plugin: queues for your tests, without a server.

pytest finds it by itself. Ask for a fixture, and the scripts of the protocol run on fakeredis, in
the test's own process; each test has a server of its own:

    def test_a_welcome_is_sent(penstock):
        sign_up("ada", queue=penstock.queue("emails"))
        [job] = penstock.queue("emails").reserve(block=0)
        assert job.body == {"welcome": "ada"}

The server has no replicas, so an enqueue with `replicas=1` raises `NotReplicated`. A marker gives
it some, which confirm every write at once:

    @pytest.mark.penstock(replicas=1)
    def test_an_order_is_copied(penstock):
        assert penstock.queue("orders").enqueue(b"1", replicas=1).replicas == 1

It needs the extra `testing` (fakeredis with Lua); without it, tests that ask for a fixture fail.
"""

from __future__ import annotations

import asyncio
import importlib
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import hiredis
import pytest

if TYPE_CHECKING:
    from fakeredis import FakeServer

    from penstock import AsyncPenstock, Penstock

__all__ = ["apenstock", "penstock", "penstock_server"]

NEEDED = ("fakeredis", "lupa")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    text = "penstock(replicas=n): n replicas of the fixtures' server confirm every write"
    config.addinivalue_line("markers", text)


def _replicas(request: pytest.FixtureRequest) -> int:
    count = 0
    for mark in request.node.iter_markers("penstock"):
        if mark.args or set(mark.kwargs) != {"replicas"}:
            pytest.fail("write the marker as @pytest.mark.penstock(replicas=1)", pytrace=False)
        count = mark.kwargs["replicas"]
        if type(count) is not int or not 0 <= count <= 1000:
            pytest.fail(f"replicas={count!r}: must be a number from 0 to 1000", pytrace=False)
        break  # the marker nearest to the test
    return count


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


class _SyncReplicated(_Replicated):
    def send_packed_command(self, command: Any, *args: Any, **kwargs: Any) -> Any:
        sender: Any = super()
        commands = self.kept(command)
        return sender.send_packed_command(commands, *args, **kwargs) if commands else None

    def read_response(self, *args: Any, **kwargs: Any) -> Any:
        answer = self.due.popleft() if self.due else ...
        reader: Any = super()
        return reader.read_response(*args, **kwargs) if answer is ... else answer


class _AsyncReplicated(_Replicated):
    async def send_packed_command(self, command: Any, *args: Any, **kwargs: Any) -> Any:
        sender: Any = super()
        commands = self.kept(command)
        return await sender.send_packed_command(commands, *args, **kwargs) if commands else None

    async def read_response(self, *args: Any, **kwargs: Any) -> Any:
        answer = self.due.popleft() if self.due else ...
        reader: Any = super()
        return await reader.read_response(*args, **kwargs) if answer is ... else answer


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
        if error.name not in NEEDED:
            raise
        missing = error.name
    pytest.fail(
        f"penstock's fixtures need {missing}: pip install 'penstock[testing]'", pytrace=False
    )


@pytest.fixture
def penstock_server() -> FakeServer:
    """Provide the server behind `penstock` and `apenstock`, empty.

    Use it with a plain client: `fakeredis.FakeRedis(server=penstock_server)`.
    """
    server: FakeServer = _fakeredis().FakeServer()
    return server


@pytest.fixture
def penstock(penstock_server: FakeServer, request: pytest.FixtureRequest) -> Iterator[Penstock]:
    """Provide a `Penstock` on a server of the test's own."""
    from penstock import Penstock

    redis = _fakeredis().FakeRedis(server=penstock_server)
    _give_replicas(redis, _SyncReplicated, _replicas(request))
    with Penstock(redis, owner="test") as client:
        yield client
    redis.close()


@pytest.fixture
def apenstock(
    penstock_server: FakeServer, request: pytest.FixtureRequest
) -> Iterator[AsyncPenstock]:
    """Provide an `AsyncPenstock` on the same server, for tests run by pytest-asyncio, say."""
    from penstock import AsyncPenstock

    redis = _fakeredis().FakeAsyncRedis(server=penstock_server)
    _give_replicas(redis, _AsyncReplicated, _replicas(request))
    client = AsyncPenstock(redis, owner="test")
    yield client
    # The test's event loop may be gone; nothing of fakeredis's connections belongs to it.
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(client.close())
        loop.run_until_complete(redis.aclose())
    finally:
        loop.close()
