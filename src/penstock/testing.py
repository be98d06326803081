"""Clients for tests without a server; the pytest plugin `pytest_penstock` has them as fixtures.

The scripts of the protocol run on fakeredis, in the test's own process. Each test has a server of
its own:

    def test_a_welcome_is_sent(penstock):
        sign_up("ada", ps=penstock)
        penstock.assert_enqueued(welcome, "ada")
        assert penstock.work(handlers) == {"done": 1}

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
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

import hiredis
import pytest

from penstock.worker._async.kit import AsyncPenstockKit
from penstock.worker._sync.kit import PenstockKit

if TYPE_CHECKING:
    from fakeredis import FakeServer

__all__ = ["AsyncPenstockKit", "PenstockKit", "async_kit", "fake_server", "sync_kit"]

NEEDED_PACKAGES = ("fakeredis", "lupa")


def _replicas(request: pytest.FixtureRequest) -> int:
    mark = request.node.get_closest_marker("penstock")
    if mark is None:
        return 0
    if mark.args or set(mark.kwargs) != {"replicas"}:
        pytest.fail("write the marker as @pytest.mark.penstock(replicas=1)", pytrace=False)
    count: object = mark.kwargs["replicas"]
    if type(count) is not int or not 0 <= count <= 1000:
        pytest.fail(f"replicas={count!r}: must be a number from 0 to 1000", pytrace=False)
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
    pytest.fail(
        f"penstock's fixtures need {missing}: pip install 'penstock[testing]'", pytrace=False
    )


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
    """Return a new server."""
    server: FakeServer = _fakeredis().FakeServer()
    server.dbs[0]  # makes it: two threads that connect first would make one each
    return server


@contextmanager
def sync_kit(server: FakeServer, request: pytest.FixtureRequest) -> Iterator[PenstockKit]:
    """Yield a client of a server, with the replicas of the test's marker."""
    redis = _fakeredis().FakeRedis(server=server)
    _give_replicas(redis, _Replicated, _replicas(request))
    client = PenstockKit(redis, owner="test")
    with _clock() as client.advance, client:
        yield client
    redis.close()


@contextmanager
def async_kit(server: FakeServer, request: pytest.FixtureRequest) -> Iterator[AsyncPenstockKit]:
    """Yield an asynchronous client of a server, as `sync_kit`."""
    redis = _fakeredis().FakeAsyncRedis(server=server)
    _give_replicas(redis, _AsyncReplicated, _replicas(request))
    client = AsyncPenstockKit(redis, owner="test")
    with _clock() as client.advance:
        yield client
    # The test's event loop may be gone; nothing of fakeredis's connections belongs to it.
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(client.close())
        loop.run_until_complete(redis.aclose())
    finally:
        loop.close()
