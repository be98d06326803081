"""Parties at a pressure queue: a client written by hand from the protocol's text, and ours.

The foreign client sends plain commands, one a trip, in the order in which the clients of the field
send them: it holds its role while it waits, and leaves everything as it is when it dies between
two steps. An operation is a generator of commands, so that a test can stop it before any of them.

Ours are put behind the same verbs, and every refusal becomes a `Refused` of the same kind.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Generator
from typing import Any, Protocol, TypeAlias, TypeVar

from penstock.errors import QueueClosed, QueueFull, QueueInUse, QueueMissing
from penstock.pressure import (
    AsyncPressureQueue,
    OperationUnblocked,
    PressureQueue,
    QueueEmpty,
    QueueExists,
)
from tests.support.keyspace import Raw

__all__ = [
    "GO_STATS",
    "OURS",
    "PREFIX",
    "ROLES",
    "STATS",
    "SUFFIXES",
    "AsyncOurs",
    "Foreign",
    "Keys",
    "Ours",
    "Party",
    "Refused",
    "Walk",
]

T = TypeVar("T")
Steps: TypeAlias = Generator[tuple[Any, ...], Any, T]

PREFIX = "__pressure__"
ROLES = ("producer", "consumer")
STATS = ("produced_messages", "produced_bytes", "consumed_messages", "consumed_bytes")
GO_STATS = tuple(f"stats_{name}" for name in STATS)
"""The Go client's names of counters."""
SUFFIXES = (
    "",
    "bound",
    "producer",
    "consumer",
    "producer_free",
    "consumer_free",
    "not_full",
    "closed",
    *(f"stats:{name}" for name in STATS),
)
"""Suffixes of the twelve keys of a queue."""
TOKEN = b"0"
SHORTEST = 0.01
"""Seconds: for a server a timeout of 0 means none."""


class Refused(Exception):
    """Raised when an operation is refused.

    Args:
        kind: exists, missing, closed, full, empty, in_use or unblocked.
        holder: of the role, when it is in use.
    """

    def __init__(self, kind: str, holder: str = "") -> None:
        super().__init__(kind)
        self.kind = kind
        self.holder = holder


class Keys:
    """The names of a queue's keys: `keys("not_full")`."""

    def __init__(self, name: str, prefix: str = PREFIX) -> None:
        self.base = f"{prefix}:{name}"

    def __call__(self, suffix: str = "") -> str:
        """Return one of the twelve keys."""
        return f"{self.base}:{suffix}" if suffix else self.base

    def all(self) -> list[str]:
        """Return the twelve keys."""
        return [self(suffix) for suffix in SUFFIXES]


class Party(Protocol):
    """A client of a queue, of any kind. Errors are `Refused`."""

    client_id: str

    def create(self, bound: int = 0) -> None: ...
    def exists(self) -> bool: ...
    def length(self) -> int: ...
    def closed(self) -> bool: ...
    def put(self, message: bytes, timeout: float | None = None, overfill: bool = False) -> None: ...
    def put_nowait(self, message: bytes, overfill: bool = False) -> None: ...
    def get(self, timeout: float | None = None) -> bytes: ...
    def get_nowait(self) -> bytes: ...
    def peek_reverse(self, timeout: float | None = None) -> bytes | None: ...
    def peek_reverse_nowait(self) -> bytes | None: ...
    def close(self, timeout: float | None = None) -> None: ...
    def delete(self, timeout: float | None = None) -> None: ...
    def disconnect(self) -> None: ...


# -- the foreign client --------------------------------------------------------------------------


class Foreign:
    """A client of the protocol that is independent of ours.

    Args:
        client: plain, without a socket time-out and without repeats; used by this party alone.
        name: of the queue.
        prefix: of all keys.
        client_id: its id.
        remembers: reads the bound and whether the queue is closed once, when the handle is made,
            as the clients of the field do.
        old_room: after each get it says that there is room, without looking, as the older rule
            has it.
        go: it counts under the names of the Go client, and removes those alone.
    """

    def __init__(
        self,
        client: Raw,
        name: str,
        *,
        prefix: str = PREFIX,
        client_id: str = "foreign_pid1",
        remembers: bool = False,
        old_room: bool = False,
        go: bool = False,
    ) -> None:
        self.client = client
        self.keys = Keys(name, prefix)
        self.client_id = client_id
        self.old_room = old_room
        self._stats = GO_STATS if go else SUFFIXES[-4:]
        self._remembered: tuple[int, bool] | None = None
        if remembers:
            self._remembered = (
                int(client.get(self.keys("bound")) or 0),
                bool(client.exists(self.keys("closed"))),
            )

    def create(self, bound: int = 0) -> None:
        """Make the queue."""
        run(self.client, self.create_steps(bound))

    def exists(self) -> bool:
        """Tell if the queue exists."""
        return bool(self.client.exists(self.keys("bound")))

    def length(self) -> int:
        """Return the number of waiting messages."""
        run(self.client, self._existing())
        return int(self.client.llen(self.keys()))

    def closed(self) -> bool:
        """Tell if it is closed."""
        run(self.client, self._existing())
        return run(self.client, self._is_closed())

    def put(self, message: bytes, timeout: float | None = None, overfill: bool = False) -> None:
        """Add a message, and wait for the role and for room."""
        run(self.client, self.put_steps(message, timeout=timeout, overfill=overfill))

    def put_nowait(self, message: bytes, overfill: bool = False) -> None:
        """Add a message."""
        run(self.client, self.put_steps(message, block=False, overfill=overfill))

    def get(self, timeout: float | None = None) -> bytes:
        """Get a message, and wait for the role and for a message."""
        return run(self.client, self.get_steps(timeout=timeout))

    def get_nowait(self) -> bytes:
        """Get a message."""
        return run(self.client, self.get_steps(block=False))

    def peek_reverse(self, timeout: float | None = None) -> bytes | None:
        """Return the newest message, and wait for the role."""
        return run(self.client, self.peek_reverse_steps(timeout=timeout))

    def peek_reverse_nowait(self) -> bytes | None:
        """Return the newest message."""
        return run(self.client, self.peek_reverse_steps(block=False))

    def close(self, timeout: float | None = None) -> None:
        """Push the two sentinels."""
        run(self.client, self.close_steps(timeout=timeout))

    def delete(self, timeout: float | None = None) -> None:
        """Remove the queue; wait for both roles without a limit."""
        assert timeout is None, "this client has no time limit here"
        run(self.client, self.delete_steps())

    def disconnect(self) -> None:
        """Close the connection."""
        self.client.close()

    def walk(self, operation: str, *args: Any, **options: Any) -> Walk:
        """Return an operation to run step by step: `walk("put", b"x", block=False)`."""
        return Walk(self.client, getattr(self, f"{operation}_steps")(*args, **options), self.keys)

    # Operations as commands, in the order in which they are sent.

    def create_steps(self, bound: int = 0) -> Steps[None]:
        """SETNX decides; then the three tokens."""
        keys = self.keys
        if not (yield "SETNX", keys("bound"), bound):
            raise Refused("exists")
        for name in ("producer_free", "consumer_free", "not_full"):
            length = yield "LPUSH", keys(name), TOKEN
            assert length == 1, f"{name} was there before the queue"

    def put_steps(
        self,
        message: bytes,
        *,
        block: bool = True,
        timeout: float | None = None,
        overfill: bool = False,
    ) -> Steps[None]:
        """Take the role, check `closed`, take room, push the message, the token of
        room, the counters.
        """
        waiting = _Waiting(block, timeout)
        yield from self._existing()
        yield from self._take("producer", waiting)
        yield from self._holding("producer", self._put(message, waiting, overfill))

    def _put(self, message: bytes, waiting: _Waiting, overfill: bool) -> Steps[None]:
        if (yield from self._is_closed()):
            raise Refused("closed")
        if (yield from self._bound()) and not overfill:
            token = yield from self._pop("not_full", waiting)
            if token is None:
                raise Refused("full")
        yield "LPUSH", self.keys(), message
        bound = yield from self._bound()
        if bound and (yield "LLEN", self.keys()) < bound:
            yield from self._say_room()
        yield from self._count("produced", message)

    def get_steps(self, *, block: bool = True, timeout: float | None = None) -> Steps[bytes]:
        """Take the role, pop a message or sentinel, push the token of room, update the counters."""
        waiting = _Waiting(block, timeout)
        yield from self._existing()
        yield from self._take("consumer", waiting)
        message = yield from self._holding("consumer", self._get(waiting))
        return bytes(message)

    def _get(self, waiting: _Waiting) -> Steps[bytes]:
        message = yield from self._popped(waiting)
        if message is None and not waiting.block:
            yield from self._room_after_get()
        if message is None:
            raise Refused("closed" if (yield from self._is_closed()) else "empty")
        yield from self._room_after_get()
        yield from self._count("consumed", message)
        return bytes(message)

    def _popped(self, waiting: _Waiting) -> Steps[bytes | None]:
        """Return the next message, or None."""
        keys = self.keys
        if not waiting.block or (yield from self._is_closed()):
            message = yield "RPOP", keys()
            return None if message is None else bytes(message)
        found = yield "BRPOP", keys(), keys("closed"), waiting.seconds()
        if found is None:
            return None
        if found[0] == keys("closed").encode():
            raise Refused("closed")
        return bytes(found[1])

    def peek_reverse_steps(
        self, *, block: bool = True, timeout: float | None = None
    ) -> Steps[bytes | None]:
        """Take the producer role and read the newest message; check `closed` without one."""
        yield from self._existing()
        yield from self._take("producer", _Waiting(block, timeout))
        return (yield from self._holding("producer", self._peek_reverse()))

    def _peek_reverse(self) -> Steps[bytes | None]:
        found = yield "LRANGE", self.keys(), 0, 0
        if not found and (yield "EXISTS", self.keys("closed")):
            raise Refused("closed")
        return bytes(found[0]) if found else None

    def close_steps(self, *, timeout: float | None = None) -> Steps[None]:
        """Take the producer role and push two sentinels: a waiting consumer pops one of them."""
        yield from self._existing()
        yield from self._take("producer", _Waiting(True, timeout))
        yield from self._holding("producer", self._close())

    def _close(self) -> Steps[None]:
        if (yield "EXISTS", self.keys("closed")):
            raise Refused("closed")
        yield "LPUSH", self.keys("closed"), TOKEN, TOKEN

    def delete_steps(self) -> Steps[None]:
        """Remove the key that marks the queue as existing, then wake all waits."""
        keys = self.keys
        yield from self._existing()
        if not (yield "DEL", keys("bound")):
            raise Refused("missing")
        yield "LPUSH", keys("not_full"), TOKEN
        yield "LPUSH", keys("closed"), TOKEN, TOKEN
        for role in ROLES:
            yield "BRPOP", keys(f"{role}_free"), 0
            yield "DEL", keys(role), keys(f"{role}_free")
        yield "DEL", keys("not_full"), keys("closed"), *map(keys, self._stats), keys()

    # Parts of operations.

    def _existing(self) -> Steps[None]:
        if not (yield "EXISTS", self.keys("bound")):
            raise Refused("missing")

    def _bound(self) -> Steps[int]:
        if self._remembered is not None:
            return self._remembered[0]
        return int((yield "GET", self.keys("bound")) or 0)

    def _is_closed(self) -> Steps[bool]:
        if self._remembered is not None and self._remembered[1]:
            return True
        return bool((yield "EXISTS", self.keys("closed")))

    def _pop(self, suffix: str, waiting: _Waiting) -> Steps[Any]:
        if waiting.block:
            return (yield "BRPOP", self.keys(suffix), waiting.seconds())
        return (yield "RPOP", self.keys(suffix))

    def _take(self, role: str, waiting: _Waiting) -> Steps[None]:
        token = yield from self._pop(f"{role}_free", waiting)
        if token is None:
            holder = yield "GET", self.keys(role)
            raise Refused("in_use", (holder or b"").decode())
        yield "SET", self.keys(role), self.client_id

    def _holding(self, role: str, steps: Steps[T]) -> Steps[T]:
        """Do something with a role and give it back, also after a refusal."""
        give_back = ("LPUSH", self.keys(f"{role}_free"), TOKEN)
        try:
            result = yield from steps
        except Refused:
            yield give_back
            raise
        yield give_back
        return result

    def _room_after_get(self) -> Steps[None]:
        bound = yield from self._bound()
        if self.old_room or not bound or (yield "LLEN", self.keys()) < bound:
            yield from self._say_room()

    def _say_room(self) -> Steps[None]:
        yield "LPUSH", self.keys("not_full"), TOKEN
        yield "LTRIM", self.keys("not_full"), 0, 0

    def _count(self, what: str, message: bytes) -> Steps[None]:
        first = 0 if what == "produced" else 2
        yield "INCR", self.keys(self._stats[first])
        yield "INCRBY", self.keys(self._stats[first + 1]), len(message)


class _Waiting:
    """The time that an operation may wait, for all its waits together."""

    def __init__(self, block: bool, timeout: float | None) -> None:
        self.block = block
        self._end = None if timeout is None else time.monotonic() + timeout

    def seconds(self) -> float:
        """Return the remaining time, as BRPOP takes it: 0 is without a limit."""
        return 0 if self._end is None else max(self._end - time.monotonic(), SHORTEST)


def run(client: Raw, steps: Steps[T]) -> T:
    """Send the commands of an operation one by one, and return its result."""
    return Walk(client, steps).finish()


class Walk:
    """An operation of the foreign client that a test can stop anywhere.

    Dropping it there has the effect of a client's death.

    Args:
        client: sends the commands.
        steps: the operation.
        keys: names of its queue's keys.
    """

    def __init__(self, client: Raw, steps: Steps[Any], keys: Keys | None = None) -> None:
        self._client = client
        self._steps = steps
        self._keys = keys
        self._result: Any = None
        self.next: tuple[Any, ...] | None = None
        self._go_on(None)

    def _go_on(self, reply: Any) -> None:
        try:
            self.next = self._steps.send(reply)
        except StopIteration as done:
            self.next, self._result = None, done.value

    @property
    def is_done(self) -> bool:
        """Tell if no command is left."""
        return self.next is None

    def step(self) -> None:
        """Send the next command."""
        assert self.next is not None
        self._go_on(self._client.execute_command(*self.next))

    def before(self, command: str, suffix: str) -> Walk:
        """Run until this command with this key is the next one."""
        assert self._keys is not None
        while self.next is not None and self.next[:2] != (command, self._keys(suffix)):
            self.step()
        assert self.next is not None, f"{command} of {suffix!r} is no step of it"
        return self

    def finish(self) -> Any:
        """Send the remaining commands, and return the result."""
        while self.next is not None:
            self.step()
        return self._result


# -- ours ----------------------------------------------------------------------------------------

OURS: dict[type[Exception], str] = {
    QueueExists: "exists",
    QueueMissing: "missing",
    QueueClosed: "closed",
    QueueFull: "full",
    QueueEmpty: "empty",
    QueueInUse: "in_use",
    OperationUnblocked: "unblocked",
}
"""Our errors -> their kinds here."""


def _refused(error: Exception) -> Refused:
    return Refused(OURS[type(error)], getattr(error, "holder", "") or "")


class Ours:
    """Our synchronous queue.

    Args:
        source: as `PressureQueue` takes it.
        name: of the queue.
        prefix: of all keys.
        client_id: its id.
    """

    def __init__(
        self, source: Any, name: str, *, prefix: str = PREFIX, client_id: str | None = "ours"
    ) -> None:
        self.client_id = client_id or ""
        self.queue = PressureQueue(name, source, prefix=prefix, client_id=client_id)

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        method = getattr(self.queue, verb)

        def called(*args: Any, **options: Any) -> Any:
            try:
                return method(*args, **options)
            except tuple(OURS) as error:
                raise _refused(error) from error

        return called

    def each(self) -> list[bytes]:
        """Return the messages of an iteration until it ends."""
        return list(self.queue)


class AsyncOurs:
    """Our asyncio queue, in an event loop of its own; its verbs may be used by any thread.

    Args:
        source: as `AsyncPressureQueue` takes it, or a function that makes it on the loop.
        name: of the queue.
        prefix: of all keys.
        client_id: its id.
    """

    def __init__(
        self, source: Any, name: str, *, prefix: str = PREFIX, client_id: str | None = "ours"
    ) -> None:
        self.client_id = client_id or ""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.queue: AsyncPressureQueue = self._do(self._make(source, name, prefix, client_id))

    async def _make(
        self, source: Any, name: str, prefix: str, client_id: str | None
    ) -> AsyncPressureQueue:
        self._client = source() if callable(source) else None
        given = source if self._client is None else self._client
        return AsyncPressureQueue(name, given, prefix=prefix, client_id=client_id)

    def _do(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        method = getattr(self.queue, verb)

        def called(*args: Any, **options: Any) -> Any:
            try:
                return self._do(method(*args, **options))
            except tuple(OURS) as error:
                raise _refused(error) from error

        return called

    async def _each(self) -> list[bytes]:
        return [message async for message in self.queue]

    def each(self) -> list[bytes]:
        """Return the messages of an iteration until it ends."""
        return list(self._do(self._each()))

    async def _end(self) -> None:
        mine = asyncio.current_task()
        waiting = [task for task in asyncio.all_tasks() if task is not mine]
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await self.queue.disconnect()
        if self._client is not None:
            await self._client.aclose()

    def disconnect(self) -> None:
        """End running waits, close the connections, and end the loop."""
        if self._loop.is_closed():
            return
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
