"""A server of the simulation: fakeredis executes its commands, and the scripts of the product."""

from __future__ import annotations

import copy
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any, NamedTuple
from unittest import mock

import fakeredis
import hiredis
import redis
from fakeredis._helpers import NoResponse, SimpleError, SimpleString
from fakeredis._socket import FakeSocket
from fakeredis._socket._resp import convert_to_resp2
from fakeredis.commands_mixins import scripting_mixin
from fakeredis.model._command_info import is_write_command

from tests.simulation.loop import EPOCH, Clock
from tests.simulation.scripts import (
    DENIED_TO_FULL,
    CompiledScripts,
    is_plain,
    script_command,
    show_to_lua,
)

__all__ = ["MOST_SECONDS_BEHIND", "Server", "Session", "use_server_time"]

VERSION = (7, 0)
"""Version of the servers, as they tell it."""
INFO = (
    b"redis_version:7.0.15\r\ncluster_enabled:0\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\n"
    b"role:master\r\nconnected_slaves:1\r\naof_enabled:0\r\nloading:0\r\n"
)
"""The reply to INFO, whatever the section."""
FULL_TEXT = "OOM command not allowed when used memory > 'maxmemory'."
MOST_SECONDS_BEHIND = 5.0
"""Most seconds of requests that wait for a slow server."""


class _Wait(NamedTuple):
    """A command that blocks.

    Attributes:
        attempt: tries it again; None = it blocks on.
        shape: makes the reply.
    """

    attempt: Callable[[bool], Any]
    shape: Callable[[Any], Any]


class Session(FakeSocket):
    """The server's end of a connection. A command that blocks delays those behind it.

    Args:
        server: the server.
        reply: is called with the bytes of a reply.
        owner: name of the client, for the trace.

    Attributes:
        is_asking: whether the last command was ASKING, see `Cluster`.
        command: the last command.
    """

    def __init__(self, server: Server, reply: Callable[[bytes], None], owner: str) -> None:
        super().__init__(server.fake, 0, client_class=redis.Redis)
        self._owner = server
        self._reply = reply
        self._reader = hiredis.Reader()
        self._commands: deque[list[bytes]] = deque()
        self._wait: _Wait | None = None
        self._wait_number = 0
        self._has_written = False
        self.is_asking = False
        self.command: Sequence[bytes] = ()
        server.trace(server.name, self._client_info["id"], "is opened by", owner)

    def feed(self, data: bytes) -> None:
        """Take bytes of a client, and run the commands that are complete."""
        self._reader.feed(data)
        while (command := self._reader.gets()) is not False:
            self._commands.append(command)
        self.run()

    def run(self) -> None:
        """Run the commands that have come, up to one that blocks."""
        while self._commands and self._wait is None:
            self._owner.execute(self, self._commands.popleft())

    def _get_server_runtime(self, server: Any) -> Any:
        if not isinstance(getattr(server, "_lua_runtime", None), CompiledScripts):
            runtime = super()._get_server_runtime(server)
            server._lua_runtime = CompiledScripts(runtime, self._owner.alter)
        return server._lua_runtime

    def _run_command(self, func: Any, sig: Any, args: list[Any], from_script: bool) -> Any:
        name = sig.name.lower()
        if not from_script:
            self._has_written = False
        if self._owner.is_full and name in DENIED_TO_FULL and not self._has_written:
            return SimpleError(FULL_TEXT)
        self._has_written |= from_script and is_write_command(name.encode())
        return super()._run_command(func, sig, args, from_script)

    def _lua_redis_call(self, runtime: Any, expected: Any, op: bytes, *args: Any) -> Any:
        command = script_command(op, len(args))
        if command is None:
            return super()._lua_redis_call(runtime, expected, op, *args)
        if self._owner.is_full and command.needs_memory and not self._has_written:
            raise SimpleError(FULL_TEXT)
        self._has_written |= command.is_write
        reply = command.run(self, args)
        if is_plain(reply):
            return show_to_lua(reply, runtime.table_from)
        return self._convert_redis_result(runtime, convert_to_resp2(reply))

    def put_response(self, msg: Any) -> None:
        """Send a reply."""
        reply = encode(msg)
        self._owner.trace(self._owner.name, self._client_info["id"], reply)
        self._reply(reply)

    def _decode_result(self, result: Any) -> Any:
        return result  # `encode` needs the types

    def _blocking(
        self,
        timeout: float | None,
        func: Callable[[bool], Any],
        shape: Callable[[Any], Any] | None = None,
    ) -> Any:
        shape = shape or (lambda result: result)
        found = func(True)
        if found is not None or self._in_transaction:
            return shape(found)
        self._wait, self._blocked = _Wait(func, shape), True
        self._wait_number += 1
        self._owner.block(self, self._wait_number, timeout)
        return NoResponse()

    def wait_for_replica(self, timeout: float) -> None:
        """Tell the number of replicas that have the writes of this connection."""

        def count(is_first: bool) -> int | None:
            del is_first
            return None if self._owner.has_lag else 1

        result = self._blocking(timeout, count, lambda found: found or 0)
        if not isinstance(result, NoResponse):
            self.put_response(result)

    def try_again(self) -> bool:
        """Try the command that blocks again; return True if it has ended."""
        wait = self._wait
        if wait is None:
            return True
        try:
            if self._unblock_reason is not None:
                self._take_unblock_reason()
                found = None
            elif (found := wait.attempt(False)) is None:
                return False
            self._end_wait(wait.shape(found))
        except SimpleError as error:
            self._end_wait(error)
        return True

    def fail(self, error: SimpleError) -> None:
        """End the command that blocks with an error."""
        self._end_wait(error)
        self.run()

    def time_out(self, number: int) -> None:
        """End the command that blocks, if it is the one with this number."""
        if self._wait is not None and self._wait_number == number:
            self._end_wait(self._wait.shape(None))
            self.run()

    def _end_wait(self, result: Any) -> None:
        self._wait, self._blocked, self._unblock_reason = None, False, None
        self.put_response(result)

    @property
    def is_blocked(self) -> bool:
        """True while a command blocks."""
        return self._wait is not None

    def end(self) -> None:
        """Forget the connection: its client is gone."""
        self._wait = None
        self._commands.clear()
        self._owner.forget(self)


class Server:
    """A server.

    Args:
        name: its host name.
        clock: the virtual clock.
        call_later: calls back after some seconds.
        trace: is told each command.

    Attributes:
        fake: holds the data.
        ahead: seconds that its clock is ahead.
        was_stepped: whether its clock was ever set.
        commands: number of commands that it has run.
        is_full: whether its memory is full, and nothing may be evicted.
        has_lag: whether its replica gets nothing.
        seconds_per_request: for which it is busy with a request.
        alter: returns the text that runs in place of a script's own.
        answer: returns the reply to a command that it does not run; None = it runs it.
    """

    def __init__(
        self,
        name: str,
        clock: Clock,
        call_later: Callable[..., object],
        trace: Callable[..., None],
    ) -> None:
        self.name = name
        self.ahead = 0.0
        self.was_stepped = False
        self.commands = 0
        self.is_full = self.has_lag = False
        self.seconds_per_request = 0.0
        self._busy_until = 0.0
        self.alter: Callable[[bytes], bytes] = lambda source: source
        self.answer: Callable[[Session, Sequence[bytes]], Any] = lambda *_: None
        self._clock = clock
        self._call_later = call_later
        self.trace = trace
        self._blocked: list[Session] = []
        self.fake = fakeredis.FakeServer(version=VERSION)

    def time(self) -> float:
        """Return the time of the server, in seconds since 1970."""
        return EPOCH + self._clock.now + self.ahead

    def execute(self, session: Session, command: Sequence[bytes]) -> None:
        """Run a command, then those that it lets go on."""
        self.commands += 1
        _TIME.server = self
        self.trace(self.name, session._client_info["id"], *command)
        session.command = command
        answer = self.answer(session, command)
        if answer is not None:
            session.put_response(answer)
        elif command[0].upper() == b"INFO":  # fakeredis has none
            session.put_response(INFO)
        elif command[0].upper() == b"WAIT":  # nor this
            session.wait_for_replica(int(command[2]) / 1000)
        else:
            session._process_command(list(command))
        self._serve_blocked()

    def step_clock(self, seconds: float) -> None:
        """Set the clock forward, or back."""
        self.ahead += seconds
        self.was_stepped = True

    def set_clock_as(self, other: Server) -> None:
        """Have the time of another server."""
        self.ahead, self.was_stepped = other.ahead, other.was_stepped

    def finish_at(self, arrival: float) -> float:
        """Return when the server has done a request that comes then: one after the other."""
        if self.seconds_per_request:
            begin = min(max(arrival, self._busy_until), arrival + MOST_SECONDS_BEHIND)
            arrival = self._busy_until = begin + self.seconds_per_request
        return arrival

    @property
    def data(self) -> Mapping[bytes, Any]:
        """All keys with their values."""
        return self.fake.dbs[0]

    def take_key(self, key: bytes, source: Server) -> None:
        """Take a key from another server."""
        with self.fake.lock, source.fake.lock:
            self.fake.dbs[0][key] = source.fake.dbs[0].pop(key)
        self._serve_blocked()

    def refuse_blocked(self, refuse: Callable[[Sequence[bytes]], SimpleError | None]) -> None:
        """End commands that block, each with the error that `refuse` returns, if it does."""
        for session in [*self._blocked]:
            error = refuse(session.command)
            if error is not None:
                self._blocked.remove(session)
                session.fail(error)

    def copy_data(self) -> dict[bytes, Any]:
        """Return a copy of all keys."""
        return copy.deepcopy(self.fake.dbs[0]._dict)

    def replace_data(self, data: dict[bytes, Any]) -> None:
        """Have these keys, and no others."""
        with self.fake.lock:
            database = self.fake.dbs[0]
            database.clear()
            for key, item in data.items():
                database[key] = item

    def flush_scripts(self) -> None:
        """Forget the scripts."""
        self.fake.script_cache.clear()

    def block(self, session: Session, number: int, timeout: float | None) -> None:
        """Note that a command of a session blocks."""
        self._blocked.append(session)
        if timeout:
            self._call_later(timeout, session.time_out, number)

    def _serve_blocked(self) -> None:
        """Let blocked commands go on, the longest waiting first."""
        with self.fake.lock:
            ended = [session for session in self._blocked if session.try_again()]
        if ended:
            self._blocked = [one for one in self._blocked if one.is_blocked]
            for session in ended:
                session.run()

    def end(self) -> None:
        """Free the interpreter: it and Python keep each other alive, and no collector sees that."""
        for name in [name for name in vars(self.fake) if name.startswith("_lua_")]:
            delattr(self.fake, name)

    def forget(self, session: Session) -> None:
        """Forget a session."""
        if session in self._blocked:
            self._blocked.remove(session)
        if session in self.fake.sockets:
            self.fake.sockets.remove(session)


class _ServerTime(ModuleType):
    """The module `time` as fakeredis sees it: it tells the time of the server that runs a command.

    Attributes:
        server: this server.
    """

    server: Server | None = None

    def __init__(self) -> None:
        super().__init__("time")
        vars(self).update(vars(time) | {"time": self.tell})

    def tell(self) -> float:
        """Return the time of the server."""
        return EPOCH if self.server is None else self.server.time()


_TIME = _ServerTime()


@contextmanager
def use_server_time() -> Iterator[None]:
    """Let fakeredis use the time of the servers."""
    loaded: list[Any] = [
        module
        for name, module in sys.modules.items()
        if name.startswith("fakeredis") and vars(module).get("time") is time
    ]
    for module in loaded:
        module.time = _TIME
    _TIME.server = None
    try:
        # It takes a thirtieth of the time; the tests on fakeredis check that scripts have none.
        with mock.patch.object(scripting_mixin, "_check_for_lua_globals", _check_nothing):
            yield
    finally:
        for module in loaded:
            module.time = time


def _check_nothing(*_: object) -> None:
    """Stand for the look at the globals of Lua at each command."""


def encode(reply: Any) -> bytes:
    """Return a reply as bytes of RESP2."""
    if isinstance(reply, bool) or reply is None:
        return b":%d\r\n" % reply if reply is not None else b"$-1\r\n"
    if isinstance(reply, int):
        return b":%d\r\n" % reply
    if isinstance(reply, bytes):
        return b"$%d\r\n%s\r\n" % (len(reply), reply)
    if isinstance(reply, SimpleString):
        return b"+%s\r\n" % reply.value
    if isinstance(reply, SimpleError):
        return b"-%s\r\n" % reply.value.encode()
    if isinstance(reply, dict):
        return encode([part for pair in reply.items() for part in pair])
    if isinstance(reply, str):
        return encode(reply.encode())
    assert isinstance(reply, (list, tuple)), reply
    return b"*%d\r\n%s" % (len(reply), b"".join(map(encode, reply)))
