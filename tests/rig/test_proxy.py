"""The proxy applies exactly the requested faults."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from penstock.embedded import EmbeddedServer
from tests.support.proxy import Link, Proxy
from tests.support.resp import ReplyCounter, end_of_value

PUSH = b">2\r\n$4\r\nnews\r\n:1\r\n"


@pytest.fixture(params=[False, True], ids=["unix", "tcp"])
def upstream(
    request: pytest.FixtureRequest, make_server: Callable[..., EmbeddedServer]
) -> EmbeddedServer:
    """A server on either kind of address."""
    return make_server(tcp=request.param)


@pytest.fixture
def proxy(upstream: EmbeddedServer) -> Iterator[Proxy]:
    """A proxy before it."""
    with Proxy(upstream.address) as running:
        yield running


@pytest.fixture
def direct(upstream: EmbeddedServer) -> Iterator[redis.Redis]:
    """A client that bypasses the proxy."""
    with client_of(upstream.url) as client:
        yield client


def client_of(url: str, **options: float) -> redis.Redis:
    """Return a client without retries and handshakes."""
    return redis.Redis.from_url(
        url, protocol=2, driver_info=None, retry=Retry(NoBackoff(), 0), **options
    )


@pytest.fixture
def client(proxy: Proxy) -> Iterator[redis.Redis]:
    """A client that goes through the proxy."""
    with client_of(proxy.url, socket_timeout=5) as through:
        yield through


def test_everything_passes_at_first(proxy: Proxy, client: redis.Redis) -> None:
    """Requests and replies of any size pass, and are counted."""
    body = b"x" * 3_000_000
    client.set("k", body)
    assert client.get("k") == body
    assert proxy.connections == proxy.open_connections == 1
    assert proxy.bytes_up > len(body)
    assert proxy.bytes_down > len(body)


def test_an_eaten_reply_is_a_call_that_ran(
    proxy: Proxy, client: redis.Redis, direct: redis.Redis
) -> None:
    """The server runs the call once, the client gets an error, and the next call works."""
    client.ping()
    fault = proxy.eat_reply(after=b"INCR")
    client.get("n")
    assert not fault.has_struck
    with pytest.raises(redis.ConnectionError):
        client.incr("n")
    fault.wait()
    assert fault.swallowed == b":1\r\n"
    assert direct.get("n") == b"1"
    assert client.incr("n") == 2
    assert proxy.connections == 2


def test_after_the_cut_the_fault_has_struck(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds even if the proxy's thread does not run in between."""
    asked, cut = threading.Event(), Link.cut

    def slow_cut(link: Link) -> None:
        cut(link)
        asked.wait(0.2)

    monkeypatch.setattr(Link, "cut", slow_cut)
    fault = proxy.eat_reply(after=b"PING")
    with socket.create_connection(proxy.address) as client:
        client.sendall(b"PING\r\n")
        assert client.recv(1) == b""
        assert fault.has_struck
        asked.set()


def test_several_replies_are_eaten(proxy: Proxy, client: redis.Redis) -> None:
    """All requested replies of a pipeline are dropped before the cut."""
    fault = proxy.eat_reply(3, after=b"RPUSH")
    pipeline = client.pipeline(transaction=False)
    for element in "abc":
        pipeline.rpush("l", element)
    with pytest.raises(redis.ConnectionError):
        pipeline.execute()
    fault.wait()
    assert fault.swallowed == b":1\r\n:2\r\n:3\r\n"


def test_the_reply_of_a_blocked_call_can_be_eaten(
    proxy: Proxy, client: redis.Redis, direct: redis.Redis
) -> None:
    """Armed without `after` it strikes an earlier call: the element is lost."""
    popped: list[BaseException] = []

    def pop() -> None:
        try:
            client.blpop(["l"], 5)
        except redis.ConnectionError as error:
            popped.append(error)

    thread = threading.Thread(target=pop)
    thread.start()
    proxy.wait_until(lambda p: p.bytes_up > 0)
    fault = proxy.eat_reply()
    direct.rpush("l", "element")
    fault.wait()
    thread.join(5)
    assert b"element" in fault.swallowed
    assert len(popped) == 1
    assert direct.llen("l") == 0


def test_a_match_may_span_two_reads(upstream: EmbeddedServer, proxy: Proxy) -> None:
    """A match is found even if its bytes arrive in two parts."""
    fault = proxy.eat_reply(after=b"INCR n")
    with socket.create_connection(proxy.address) as raw:
        raw.sendall(b"IN")
        proxy.wait_until(lambda p: p.bytes_up == 2)
        assert not fault.has_struck
        raw.sendall(b"CR n\r\n")
        assert raw.recv(10) == b""
    fault.wait()


def test_bytes_sent_earlier_are_no_match(proxy: Proxy, client: redis.Redis) -> None:
    """A fault strikes only requests sent after it was armed."""
    client.incr("n")
    fault = proxy.eat_reply(after=b"INCR")
    client.get("n")
    assert not fault.has_struck


REQUEST = b"*3\r\n$6\r\nINCRBY\r\n$1\r\nn\r\n$1\r\n1\r\n"


@pytest.mark.parametrize("after, size", [(b"INCRBY", 0), (b"INCRBY", 3), (b"", len(REQUEST) - 1)])
def test_a_request_cut_short_does_not_run(
    proxy: Proxy, client: redis.Redis, direct: redis.Redis, after: bytes, size: int
) -> None:
    """The server gets this many bytes, and runs nothing."""
    client.ping()
    fault = proxy.cut_after_request_bytes(size, after=after)
    with pytest.raises(redis.ConnectionError):
        client.incr("n")
    fault.wait()
    assert fault.swallowed == REQUEST[REQUEST.index(after) + size :]
    assert direct.get("n") is None
    assert client.incr("n") == 1


def test_a_cut_after_the_last_byte_of_a_request_lets_it_run(
    proxy: Proxy, client: redis.Redis, direct: redis.Redis
) -> None:
    """The server has the whole request; the client can't know."""
    client.ping()
    proxy.hold("down")
    fault = proxy.cut_after_request_bytes(len(b"*3\r\n$5\r\nRPUSH\r\n$1\r\nl\r\n$1\r\na\r\n"))
    with pytest.raises(redis.ConnectionError):
        client.rpush("l", "a")
    fault.wait()
    assert fault.swallowed == b""
    assert direct.blpop(["l"], 5) == (b"l", b"a")


def test_cut_ends_all_connections_and_only_once(proxy: Proxy, client: redis.Redis) -> None:
    """Open connections are closed, new ones work."""
    with client_of(proxy.url) as second:
        client.ping()
        second.ping()
        assert proxy.cut() == 2
        proxy.wait_until(lambda p: p.open_connections == 0)
        for cut in (client, second):
            cut.ping()  # redis-py notices the closed connection before it sends
    assert proxy.connections == 4


def test_a_hole_drops_data_both_ways(
    proxy: Proxy, direct: redis.Redis, client: redis.Redis
) -> None:
    """No data arrives and no connection is closed; the client has to time out by itself."""
    client.ping()
    proxy.hole()
    with (
        client_of(proxy.url, socket_timeout=0.1) as impatient,
        pytest.raises(redis.TimeoutError),
    ):
        impatient.incr("n")
    assert direct.get("n") is None
    assert proxy.connections == 2
    proxy.restore()
    assert client.incr("n") == 1


def test_a_hole_for_replies_lets_requests_through(proxy: Proxy, direct: redis.Redis) -> None:
    """One direction can be dropped alone."""
    proxy.hole("down")
    with (
        client_of(proxy.url, socket_timeout=0.2) as impatient,
        pytest.raises(redis.TimeoutError),
    ):
        impatient.incr("n")
    assert direct.get("n") == b"1"


def test_a_connection_that_lost_bytes_is_cut_when_the_hole_is_mended(proxy: Proxy) -> None:
    """A connection that lost bytes is unusable; one that lost none continues."""
    with (
        socket.create_connection(proxy.address) as idle,
        socket.create_connection(proxy.address) as damaged,
    ):
        proxy.wait_until(lambda p: p.connections == 2)
        proxy.hole("up")
        damaged.sendall(b"PING\r\n")
        proxy.wait_until(lambda p: p.bytes_up == 6)
        proxy.restore()
        assert damaged.recv(10) == b""
        idle.sendall(b"PING\r\n")
        assert idle.recv(10) == b"+PONG\r\n"


def test_held_replies_arrive_late_and_whole(proxy: Proxy, direct: redis.Redis) -> None:
    """`restore()` delivers the data kept back."""
    with socket.create_connection(proxy.address) as raw:
        proxy.hold("down")
        raw.sendall(b"INCR n\r\n")
        proxy.wait_until(lambda p: p.bytes_down == 4)
        raw.setblocking(False)
        with pytest.raises(BlockingIOError):
            raw.recv(10)
        assert direct.get("n") == b"1"
        raw.settimeout(5)
        proxy.restore()
        assert raw.recv(10) == b":1\r\n"


def test_refused_connections_are_refused_and_open_ones_continue(
    proxy: Proxy, client: redis.Redis
) -> None:
    """The port stays reserved for the proxy, so that `restore()` works."""
    client.ping()
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(proxy.address)
    assert client.ping()
    proxy.restore()
    with client_of(proxy.url) as other:
        assert other.ping()


def test_restore_disarms(proxy: Proxy, client: redis.Redis) -> None:
    """A fault that has not struck is removed."""
    fault = proxy.eat_reply(after=b"INCR")
    proxy.restore()
    assert client.incr("n") == 1
    with pytest.raises(TimeoutError, match="eat_reply"):
        fault.wait(0)


def test_a_server_that_is_down_is_a_closed_connection(
    upstream: EmbeddedServer, proxy: Proxy, client: redis.Redis
) -> None:
    """Without a server the proxy closes accepted connections; it works again with the server."""
    upstream.kill()
    with pytest.raises(redis.ConnectionError):
        client.ping()
    upstream.restart()
    assert client.ping()


def test_close_ends_connections_even_held_ones(upstream: EmbeddedServer) -> None:
    """Closing leaves no thread and no open connection."""
    before = threading.active_count()
    proxy = Proxy(upstream.address)
    with proxy, socket.create_connection(proxy.address) as raw:
        proxy.hold()
        raw.sendall(b"PING\r\n")
        proxy.wait_until(lambda p: p.bytes_up == 6)
        proxy.close()
        assert raw.recv(10) == b""
    assert threading.active_count() == before
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(proxy.address)


VALUES = [
    b"+OK\r\n",
    b"-ERR no\r\n",
    b":12\r\n",
    b"$-1\r\n",
    b"$0\r\n\r\n",
    b"$4\r\n\r\n\r\n\r\n",
    b"*-1\r\n",
    b"*0\r\n",
    b"*2\r\n*1\r\n:1\r\n$1\r\na\r\n",
    b"_\r\n",
    b"#t\r\n",
    b",1.5\r\n",
    b"=5\r\ntxt:a\r\n",
    b"%1\r\n+k\r\n*1\r\n:1\r\n",
    b"~1\r\n:1\r\n",
    b"|1\r\n+k\r\n+v\r\n:1\r\n",
]


@pytest.mark.parametrize("value", VALUES)
def test_the_end_of_a_reply_is_found(value: bytes) -> None:
    """The end of every kind of reply is found exactly."""
    assert end_of_value(value + b"+next\r\n") == len(value)
    assert [end_of_value(value[:size]) for size in range(len(value))] == [None] * len(value)


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_replies_are_counted_in_pieces_of_any_size(step: int) -> None:
    """The last byte of the last reply completes the count; pushes are not replies."""
    stream = PUSH + b"".join(VALUES) + PUSH
    end = len(stream) - len(PUSH)
    counter = ReplyCounter(len(VALUES))
    pieces = [stream[start : min(start + step, end)] for start in range(0, end, step)]
    assert [counter.feed(piece) for piece in pieces] == [False] * (len(pieces) - 1) + [True]
