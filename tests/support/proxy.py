"""A TCP proxy that breaks connections at a chosen place, in front of a real server.

    with Proxy(server.address) as proxy:
        client = Redis.from_url(proxy.url)
        fault = proxy.eat_reply(after=b"EVALSHA")
        with pytest.raises(ConnectionError):
            queue.enqueue(...)
        fault.wait()            # the server has run the script; its reply is gone

`up` is the way from the client to the server, `down` the way back. Faults are armed once and
strike one connection; modes last until `restore()`. Nothing here sleeps: a test waits for
`fault.wait()` or `proxy.wait_until(...)`.
"""

from __future__ import annotations

import abc
import contextlib
import enum
import select
import socket
import threading
from collections.abc import Callable
from types import TracebackType

from tests.support.resp import ReplyCounter

LOOPBACK = "127.0.0.1"
DIRECTIONS = ("up", "down")
CHUNK = 65536
LONGEST_MATCH = 1024
PATIENCE = 5.0

Address = str | tuple[str, int]


class Mode(enum.Enum):
    """The treatment of the bytes of one direction."""

    PASS = "pass"
    HOLE = "hole"  # dropped, as if lost in the network
    HOLD = "hold"  # kept back until `restore()`, as on a slow network


class Fault(abc.ABC):
    """An armed fault; `wait()` returns when it has struck.

    Args:
        kind: its effect, for messages.
        after: the bytes of a request that it waits for.
    """

    def __init__(self, kind: str, after: bytes) -> None:
        self.kind = kind
        self.after = after
        self.swallowed = b""  # bytes that were dropped
        self.is_over = False
        self._striking = threading.Lock()
        self._struck = threading.Event()

    @property
    def has_struck(self) -> bool:
        """Tell if it is over: bytes dropped, connection cut.

        A client that has seen the cut gets True: the call waits for the proxy's thread, which may
        not have run yet.
        """
        with self._striking:
            return self._struck.is_set()

    def wait(self, timeout: float = PATIENCE) -> None:
        """Block until it has struck.

        Raises:
            TimeoutError: it did not in that time.
        """
        if not self._struck.wait(timeout):
            raise TimeoutError(f"{self.kind} did not strike within {timeout} s")

    def strike(self, link: Link) -> None:
        """Cut the connection, and mark the fault as struck."""
        with self._striking:
            link.cut()
            self._struck.set()

    def begin(self, position: int) -> None:  # noqa: B027 - most faults need no position
        """Start at this position of the next bytes, where `after` matched."""

    @abc.abstractmethod
    def take(self, data: bytes) -> bytes:
        """Process bytes of its direction, and return those that pass."""


class EatReply(Fault):
    """Swallow replies from the server, then cut.

    Args:
        replies: how many.
        after: only once the client has sent these bytes.
    """

    def __init__(self, replies: int, after: bytes) -> None:
        super().__init__(f"eat_reply({replies}, after={after!r})", after)
        self._counter = ReplyCounter(replies)

    def take(self, data: bytes) -> bytes:
        """Drop the server's bytes until the last reply has ended."""
        self.swallowed += data
        self.is_over = self._counter.feed(data)
        return b""


class CutRequest(Fault):
    """Let a number of bytes of a request pass, then cut.

    Args:
        size: how many.
        after: counted from the place where the client sends these bytes.
    """

    def __init__(self, size: int, after: bytes) -> None:
        super().__init__(f"cut_after_request_bytes({size}, after={after!r})", after)
        self._left = size

    def begin(self, position: int) -> None:
        """Count from this position in the next bytes; negative if part of it has passed."""
        self._left += position

    def take(self, data: bytes) -> bytes:
        """Return the part that still passes."""
        passing = data[: max(0, self._left)]
        self.swallowed += data[len(passing) :]
        self._left -= len(data)
        self.is_over = self._left <= 0
        return passing


class Link:
    """One client's connection, and ours to the server on its behalf."""

    def __init__(self, client: socket.socket, upstream: socket.socket) -> None:
        self.ends = {"up": (client, upstream), "down": (upstream, client)}
        self.faults: dict[str, Fault] = {}  # the active fault of each direction
        self.is_open = True
        self.is_damaged = False  # bytes are missing: it can't continue after `restore()`
        self.is_stranded = False  # all its bytes are dropped
        self._tail = b""  # the end of earlier bytes, for a match across two reads
        self._pumps = len(self.ends)

    def find(self, after: bytes, data: bytes) -> int | None:
        """Return where a match of `after` that ends in `data` begins; negative = before it."""
        before = self._tail[1 - len(after) :] if len(after) > 1 else b""
        found = (before + data).find(after)
        return None if found < 0 else found - len(before)

    def remember(self, data: bytes) -> None:
        """Store the end of the client's bytes."""
        self._tail = (self._tail + data)[-LONGEST_MATCH:]

    def cut(self) -> None:
        """Shut both ends, which stops the threads that read or write there."""
        self.is_open = False
        for end in self.ends["up"]:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def pump_ended(self) -> None:
        """Close the sockets when both directions have stopped."""
        self._pumps -= 1
        if not self._pumps:
            for end in self.ends["up"]:
                end.close()


class Proxy:
    """A listener on a free loopback port that forwards to one server.

    Args:
        upstream: path of a unix socket, or host and port (`EmbeddedServer.address`).
    """

    def __init__(self, upstream: Address) -> None:
        self._upstream = upstream
        self._changed = threading.Condition()
        self._modes = dict.fromkeys(DIRECTIONS, Mode.PASS)
        self._bytes = dict.fromkeys(DIRECTIONS, 0)
        self._accepted = 0
        self._links: list[Link] = []
        self._armed: dict[str, list[Fault]] = {direction: [] for direction in DIRECTIONS}
        self._threads: list[threading.Thread] = []
        # Bound but never listening: the port stays ours while connections are refused.
        self._reservation = _bound((LOOPBACK, 0))
        self.port: int = self._reservation.getsockname()[1]
        self._listener: Listener | None = None
        self._listen()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        return (LOOPBACK, self.port)

    @property
    def url(self) -> str:
        """The URL for redis-py's `from_url`."""
        return f"redis://{LOOPBACK}:{self.port}/0"

    @property
    def connections(self) -> int:
        """Return the number of accepted connections."""
        return self._accepted

    @property
    def open_connections(self) -> int:
        """Return the number of open connections."""
        return sum(link.is_open for link in tuple(self._links))

    @property
    def bytes_up(self) -> int:
        """Return the number of bytes from clients, including dropped ones."""
        return self._bytes["up"]

    @property
    def bytes_down(self) -> int:
        """Return the number of bytes from the server, including dropped ones."""
        return self._bytes["down"]

    def eat_reply(self, replies: int = 1, *, after: bytes = b"") -> Fault:
        """Drop the next replies and the connection; the server has run the commands.

        Args:
            replies: so many whole replies are swallowed before the cut; pushes don't count.
            after: strike the first connection that sends these bytes; the name of a command
                (`b"EVALSHA"`) leaves handshakes alone. Without it: the first to be answered.
        """
        return self._arm("down", EatReply(replies, after))

    def cut_after_request_bytes(self, size: int, *, after: bytes = b"") -> Fault:
        """Pass only the first bytes of a request to the server, and cut the connection.

        Args:
            size: how many of them, counted from the start of `after` where that is given.
            after: strike the first connection that sends these bytes.
        """
        return self._arm("up", CutRequest(size, after))

    def cut(self) -> int:
        """Cut every open connection, and return their number."""
        with self._changed:
            links = [link for link in self._links if link.is_open]
            for link in links:
                link.cut()
            self._changed.notify_all()
        return len(links)

    def hole(self, *directions: str) -> None:
        """Drop all data, on old and new connections: `up`, `down`, or both."""
        self._set_mode(Mode.HOLE, *directions)

    def hold(self, *directions: str) -> None:
        """Keep all data back until `restore()`: `up`, `down`, or both."""
        self._set_mode(Mode.HOLD, *directions)

    def strand(self) -> int:
        """Drop all further data of the open connections, and return their number.

        They stay open, also after `restore()`, and new ones work: as if a router had forgotten
        them.
        """
        with self._changed:
            links = [link for link in self._links if link.is_open]
            for link in links:
                link.is_stranded = True
        return len(links)

    def redirect(self, upstream: Address) -> None:
        """Forward new connections to another server."""
        self._upstream = upstream

    def refuse(self) -> None:
        """Refuse new connections; open ones continue."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def restore(self) -> None:
        """Return to normal: accept, disarm, and pass the data kept back.

        Connections that lost bytes are cut, as neither side could use them.
        """
        with self._changed:
            for faults in self._armed.values():
                faults.clear()
            for link in self._links:
                if link.is_damaged:
                    link.cut()
        self._set_mode(Mode.PASS)
        if self._listener is None:
            self._listen()

    def wait_until(self, reached: Callable[[Proxy], bool], timeout: float = PATIENCE) -> None:
        """Block until a condition on the proxy's counters holds.

        Raises:
            TimeoutError: it did not in that time.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: reached(self), timeout):
                raise TimeoutError(f"not reached within {timeout} s: {self!r}")

    def close(self) -> None:
        """Stop listening and cut all connections."""
        self.refuse()
        self.cut()
        for thread in self._threads:
            thread.join(PATIENCE)
        self._reservation.close()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        modes = {direction: mode.value for direction, mode in self._modes.items()}
        return f"<Proxy {self.url} connections={self._accepted} bytes={self._bytes} modes={modes}>"

    def _arm(self, direction: str, fault: Fault) -> Fault:
        if len(fault.after) > LONGEST_MATCH:
            raise ValueError(f"after= may have {LONGEST_MATCH} bytes")
        with self._changed:
            self._armed[direction].append(fault)
        return fault

    def _set_mode(self, mode: Mode, *directions: str) -> None:
        with self._changed:
            for direction in directions or DIRECTIONS:
                self._modes[direction] = mode
            self._changed.notify_all()

    def _listen(self) -> None:
        self._listener = Listener(_bound(self.address), self._accept)

    def _accept(self, client: socket.socket) -> None:
        try:
            upstream = _connect(self._upstream)
        except OSError:  # the server is down: so is the proxy
            client.close()
            return
        for end in (client, upstream):
            if end.family == socket.AF_INET:
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = Link(client, upstream)
        pumps = [
            threading.Thread(target=self._pump, args=(link, direction), daemon=True)
            for direction in DIRECTIONS
        ]
        with self._changed:
            self._accepted += 1
            self._links = [*(link for link in self._links if link.is_open), link]
            self._threads = [*(one for one in self._threads if one.is_alive()), *pumps]
            for pump in pumps:
                pump.start()
            self._changed.notify_all()

    def _pump(self, link: Link, direction: str) -> None:
        source, target = link.ends[direction]
        with contextlib.suppress(OSError):
            while link.is_open and (data := source.recv(CHUNK)):
                passing, fault = self._judge(link, direction, data)
                if passing:
                    target.sendall(passing)
                if fault is not None and fault.is_over:
                    fault.strike(link)
        with self._changed:
            link.cut()
            link.pump_ended()
            self._changed.notify_all()

    def _judge(self, link: Link, direction: str, data: bytes) -> tuple[bytes, Fault | None]:
        """Return the bytes that pass, and the fault that has struck them."""
        with self._changed:
            self._bytes[direction] += len(data)
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: self._modes[direction] is not Mode.HOLD or not link.is_open
            )
            self._choose_victims(link, direction, data)
            fault = link.faults.get(direction)
            passing = fault.take(data) if fault is not None else data
            if self._modes[direction] is Mode.HOLE or not link.is_open or link.is_stranded:
                passing = b""
            link.is_damaged |= len(passing) < len(data) and not link.is_stranded
        return passing, fault

    def _choose_victims(self, link: Link, direction: str, data: bytes) -> None:
        """Let armed faults strike this connection if these bytes match."""
        for where, faults in self._armed.items():
            for fault in tuple(faults):
                position = self._match(link, direction, where, fault, data)
                if position is not None and where not in link.faults:
                    fault.begin(position)
                    link.faults[where] = fault
                    faults.remove(fault)
        if direction == "up":
            link.remember(data)

    @staticmethod
    def _match(link: Link, direction: str, where: str, fault: Fault, data: bytes) -> int | None:
        if not fault.after:
            return 0 if direction == where else None
        return link.find(fault.after, data) if direction == "up" else None


class Listener:
    """A thread that accepts connections until it is closed.

    Args:
        listening: a bound socket.
        accept: called with each connection.
    """

    def __init__(self, listening: socket.socket, accept: Callable[[socket.socket], None]) -> None:
        self._socket = listening
        self._accept = accept
        self._waker, self._woken = socket.socketpair()
        self._socket.listen(128)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop; connections that are not accepted yet are refused."""
        self._waker.close()
        self._thread.join()
        self._woken.close()
        self._socket.close()

    def _run(self) -> None:
        while True:
            ready, _, _ = select.select([self._socket, self._woken], [], [])
            if self._woken in ready:
                return
            with contextlib.suppress(OSError):
                self._accept(self._socket.accept()[0])


def _bound(address: tuple[str, int]) -> socket.socket:
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind(address)
    return made


def _connect(address: Address) -> socket.socket:
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    made = socket.socket(family)
    try:
        made.settimeout(PATIENCE)
        made.connect(address)
        made.settimeout(None)
    except OSError:
        made.close()
        raise
    return made
