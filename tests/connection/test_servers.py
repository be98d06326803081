"""Checks when a client connects, and replies that belong to other calls."""

from __future__ import annotations

import asyncio
import re
import time
import warnings
from collections.abc import Callable

import pytest
import redis

from penstock import (
    AsyncPenstock,
    BadArgument,
    EvictionWarning,
    Penstock,
    ProtocolError,
    UnsupportedServer,
)
from penstock.client._acompat import send
from penstock.client.sockets import Socket
from penstock.embedded import EmbeddedServer
from penstock.wire.scripts import all_scripts
from tests.connection.stub import Command, Stub, bulk, info

Server = Callable[..., EmbeddedServer]
NODE = bulk(b"0" * 40)
SHAS = {one.source.encode(): one.sha.encode() for one in all_scripts()}


def old(command: Command) -> bytes:
    """A Redis 6.0."""
    return info(redis_version="6.0.16") if command[0] == b"INFO" else b"+OK\r\n"


def test_an_old_server_is_refused() -> None:
    """The first call to an old server raises with its version, and sends nothing but INFO."""
    with Stub(old) as stub:
        with pytest.raises(UnsupportedServer, match=r"Redis 6\.0\.16: .*6\.2 or newer"):
            Penstock(stub.url).queue("q").enqueue(1)
        assert set(stub.names()) == {b"INFO"}

        async def connect() -> None:
            async with AsyncPenstock(stub.url):
                pass

        with pytest.raises(UnsupportedServer):
            asyncio.run(connect())
        assert set(stub.names()) == {b"INFO"}


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-random"])
def test_an_evicting_server_is_warned_of(make_server: Server, policy: str) -> None:
    """An evicting server causes a warning once per client, also in the log; it is used."""
    server = make_server(args=("--maxmemory-policy", policy))
    with pytest.warns(EvictionWarning, match=f"{policy}.*noeviction"), Penstock(server.url) as ps:
        ps.queue("q").enqueue(1)

    async def connect() -> None:
        async with AsyncPenstock(server.url) as ps:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                await ps.queue("q").enqueue(1)

    with pytest.warns(EvictionWarning, match=policy):
        asyncio.run(connect())


def test_the_warning_is_in_the_log(make_server: Server, caplog: pytest.LogCaptureFixture) -> None:
    """The log has the warning too, for programs that hide warnings."""
    server = make_server(args=("--maxmemory-policy", "allkeys-lfu"))
    with pytest.warns(EvictionWarning), Penstock(server.url):
        pass
    assert any("allkeys-lfu" in record.getMessage() for record in caplog.records)


class WrongNonces:
    """A server whose first replies to scripts have a wrong nonce."""

    def __init__(self, wrong: int, reply: bytes) -> None:
        self.left = wrong
        self.reply = reply
        self.calls: list[bytes] = []

    def __call__(self, command: Command) -> bytes:
        if command[0] == b"INFO":
            return info(redis_version="7.0.0")
        if command[0] == b"HSETNX":
            return b":1\r\n"
        if command[0] == b"HGET":
            return NODE if command[2] == b"id" else b"$-1\r\n"
        if command[0] == b"HGETALL":
            return b"*0\r\n"
        if command[:2] == [b"SCRIPT", b"LOAD"]:
            return bulk(SHAS[command[2]])
        if command[0] != b"EVALSHA":
            return b"+OK\r\n"
        nonce = command[3 + int(command[2])]
        self.calls.append(nonce)
        self.left -= 1
        if self.left >= 0:
            return self.reply
        number = bulk(b"1700000000000-1000000000")
        epoch = bulk(b"01020304")
        return b"*9\r\n:5\r\n%b%b:1\r\n%b%b" % (bulk(nonce), number, epoch, b":0\r\n" * 4)


STALE = b"*2\r\n:1\r\n" + bulk(b"999999")


@pytest.mark.parametrize("reply", [STALE, b"*0\r\n", b"+OK\r\n", b":1\r\n", b"*-1\r\n"])
def test_a_reply_of_another_call(reply: bytes) -> None:
    """After another call's reply the connection is dropped, and the call repeated on a new one."""
    answer = WrongNonces(2, reply)
    with Stub(answer) as stub:
        with Penstock(stub.url) as ps:
            assert ps.queue("q").enqueue(1).id.startswith("D-00000000-")
        assert len(answer.calls) == 3
        assert len(set(answer.calls)) == 1
        assert stub.connections >= 3

        async def run() -> str:
            async with AsyncPenstock(stub.url) as ps:
                return (await ps.queue("q").enqueue(1)).id

        answer.left = 1
        assert asyncio.run(run()).startswith("D-00000000-")


def test_replies_that_are_never_ours() -> None:
    """If replies never match, a typed error is raised after a bounded time."""
    with Stub(WrongNonces(10**6, STALE)) as stub:
        start = time.monotonic()
        with (
            Penstock(stub.url, retry_for=0.2) as ps,
            pytest.raises(ProtocolError, match="enqueue: the reply is not that of call"),
        ):
            ps.queue("q").enqueue(1)
        assert time.monotonic() - start < 10


def test_a_call_that_is_interrupted(make_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C between sending and reading: the next call gets its own reply."""
    server = make_server()
    with Penstock(server.url) as ps:
        q = ps.queue("q")
        q.enqueue("first")
        connection = ps.topology.executor.connections.idle[-1]
        producer = connection.producer

        def interrupted(own: Socket, packed: bytes) -> None:
            send(own._conn, packed)
            raise KeyboardInterrupt

        monkeypatch.setattr(Socket, "trip", interrupted)
        with pytest.raises(KeyboardInterrupt):
            q.stats()
        monkeypatch.undo()
        done = q.enqueue("second")
        assert [view.body for view in q.peek()] == ["first", "second"]
        assert q.peek()[1].id == done.id
        assert producer not in {one.producer for one in ps.topology.executor.connections.idle}


async def test_a_call_that_is_cancelled(make_server: Server) -> None:
    """Cancelling a call at any point raises the cancellation, and the client still works."""
    server = make_server()
    async with AsyncPenstock(server.url) as ps:
        q = ps.queue("q")
        await q.enqueue("make the queue")
        for steps in range(100):
            task = asyncio.ensure_future(q.enqueue_many(range(100)))
            for _ in range(steps):
                await asyncio.sleep(0)
            if task.done():
                break
            task.cancel()
            await asyncio.wait({task})
            assert task.cancelled(), f"a cancellation after {steps} turns of the loop was lost"
            done = await q.enqueue(["mark", steps])
            view = await q.show(done.id)
            assert view is not None
            assert view.body == ["mark", steps]
        assert steps > 3
        stats = await q.stats()
        assert stats.enqueued == stats.ready
        assert (stats.ready - 1 - steps) % 100 == 0


def test_a_body_of_512_mib_is_not_sent(make_server: Server) -> None:
    """A body of 512 MiB is refused by the client without a command."""
    server = make_server()
    with Penstock(server.url) as ps, redis.Redis.from_url(server.url) as raw:
        q = ps.queue("q")
        q.enqueue(b"small")
        with pytest.raises(BadArgument, match=r"body='<\d+ bytes>': .*below 512 MiB"):
            q.enqueue(bytes(1 << 29))
        assert raw.info("stats")["total_net_input_bytes"] < 1 << 20
        assert q.stats().ready == 1


def test_scripts_are_loaded_once(make_server: Server) -> None:
    """Scripts are loaded by SCRIPT LOAD, not EVAL; a second client finds them."""
    server = make_server(tcp=True)
    with redis.Redis.from_url(server.url) as raw:
        for _ in range(2):
            with Penstock(server.url) as ps:
                ps.queue("q").enqueue(1)
        stats = raw.info("commandstats")
        assert "cmdstat_eval" not in stats
        loads = next(v for k, v in stats.items() if re.fullmatch(r"cmdstat_script(\|load)?", k))
        assert loads["calls"] == 1
