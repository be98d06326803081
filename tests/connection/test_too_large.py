"""Bodies that are larger than a server takes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import redis

from penstock import (
    AccessDenied,
    AsyncPenstock,
    BodyTooLarge,
    IncompleteEnqueue,
    OutcomeUnknown,
    Penstock,
)
from penstock.client._sync.transport.executor import Executor
from penstock.core.values.confirmations import Wait
from penstock.embedded import EmbeddedServer
from penstock.pressure import PressureQueue
from penstock.wire.keys import SLOT_COUNT
from tests.connection.stub import Command, Stub, info
from tests.support.backends import clustered
from tests.support.proxy import Proxy
from tests.support.twins import wait_for

MUCH = b"x" * 2_000_000
LONG = b"x" * 70_000
TOO_LONG = 30.0
"""Seconds; a call that is repeated takes twice as long."""
LIMITS = pytest.mark.parametrize("setting", ["proto-max-bulk-len", "client-query-buffer-limit"])


def limit(server: EmbeddedServer, setting: str) -> None:
    """Let the server take no more than 1 MiB."""
    with redis.Redis.from_url(server.url) as raw:
        raw.config_set(setting, 1 << 20)


@LIMITS
def test_a_body_that_is_too_large(server: EmbeddedServer, setting: str) -> None:
    """The error says so at once, and the client goes on."""
    limit(server, setting)
    with Penstock(server.url, retry_for=60) as ps:
        q, begun = ps.queue("q"), time.monotonic()
        with pytest.raises(BodyTooLarge, match=f"too large.*{setting}"):
            q.enqueue(MUCH)
        with pytest.raises(IncompleteEnqueue) as caught:
            q.enqueue_many([b"a", MUCH, b"c"])
        assert isinstance(caught.value.__cause__, BodyTooLarge)
        assert time.monotonic() - begun < TOO_LONG
        assert [view.body for view in q.peek()] == [b"a"]


@LIMITS
async def test_a_body_that_is_too_large_in_asyncio(server: EmbeddedServer, setting: str) -> None:
    """An asyncio client refuses a body that is too large at once, and goes on with others."""
    limit(server, setting)
    async with AsyncPenstock(server.url, retry_for=60) as ps:
        with pytest.raises(BodyTooLarge, match=f"too large.*{setting}"):
            await asyncio.wait_for(ps.queue("q").enqueue(MUCH), TOO_LONG)
        assert await ps.queue("q").enqueue(b"a")


def test_one_of_several_nodes_refuses_a_body(server: EmbeddedServer) -> None:
    """The node is not taken for one that is down."""
    limit(server, "client-query-buffer-limit")
    with Penstock([server.url]) as ps:
        with pytest.raises(BodyTooLarge):
            ps.queue("q").enqueue(MUCH)
        assert ps.queue("q").enqueue(b"a")


@pytest.mark.slow
def test_a_cluster_refuses_a_body(make_server: Callable[..., EmbeddedServer]) -> None:
    """The error is that of a single server, also without a time for repeats."""
    server = clustered(make_server)
    with redis.Redis.from_url(server.url) as raw:
        raw.execute_command("CLUSTER ADDSLOTS", *range(SLOT_COUNT))
        wait_for(lambda: raw.execute_command("CLUSTER INFO")["cluster_state"] == "ok")
    limit(server, "client-query-buffer-limit")
    with Penstock(server.url, retry_for=0) as ps:
        with pytest.raises(BodyTooLarge):
            ps.queue("q").enqueue(MUCH)
        assert ps.queue("q").enqueue(b"a")


def test_a_message_that_is_too_large(server: EmbeddedServer) -> None:
    """A message of a pressure queue."""
    limit(server, "proto-max-bulk-len")
    q = PressureQueue("q", server.url)
    q.create(0)
    with pytest.raises((BodyTooLarge, OutcomeUnknown), match="too large"):
        q.put(MUCH)  # the reply may be lost, and the call is not repeated
    q.put(b"a")
    assert q.get() == b"a"


def test_bodies_that_are_too_large_together(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are sent in several calls."""
    run = Executor.run

    def limited(node: Executor, call: Any, **options: Any) -> Any:
        if sum(len(arg) for arg in call.args) > 1000:
            raise BodyTooLarge("a hosted service")
        return run(node, call, **options)

    with Penstock(server.url) as ps:
        q = ps.queue("q")
        monkeypatch.setattr(Executor, "run", limited)
        added = q.enqueue_many([b"%0300d" % n for n in range(10)])
        assert [view.body for view in q.peek(10)] == [b"%0300d" % n for n in range(10)]
        assert [one.id for one in added] == [view.id for view in q.peek(10)]


def test_cuts_do_not_show_that_nothing_was_written(server: EmbeddedServer) -> None:
    """A proxy closes the connection in place of the replies: no job is added twice."""
    with Proxy(server.address) as proxy, Penstock(proxy.url) as ps:
        q = ps.queue("q")
        q.enqueue(b"first")
        for add in (partial(q.enqueue_many, [b"x" * 1000] * 100), partial(q.enqueue, LONG)):
            for _ in range(3):
                proxy.eat_reply(after=b"x" * 1000)
            with pytest.raises(OutcomeUnknown, match="is unknown; the body may be too large"):
                add()
        assert q.stats().ready == 1 + 100 + 1


async def test_cuts_of_jobs_that_go_together(server: EmbeddedServer) -> None:
    """Concurrent calls of asyncio do not repeat their jobs either."""
    with Proxy(server.address) as proxy:
        async with AsyncPenstock(proxy.url) as ps:
            q = ps.queue("q")
            await q.enqueue(b"first")
            for _ in range(3):
                proxy.eat_reply(after=b"x" * 1000)
            calls = [q.enqueue(b"a") for _ in range(4)]
            calls += [q.enqueue(b"x" * 1000) for _ in range(100)]
            ends = await asyncio.gather(*calls, return_exceptions=True)
            assert any(isinstance(end, OutcomeUnknown) for end in ends)
            assert (await q.stats()).ready == 1 + 104


def test_a_lost_reply_to_a_long_call(server: EmbeddedServer) -> None:
    """The call is repeated, even by a user who may not run PING."""
    with redis.Redis.from_url(server.url) as raw:
        raw.execute_command("ACL", "SETUSER", "w", "on", ">p", "~*", "+@all", "-ping")
    with Proxy(server.address) as proxy, Penstock(proxy.url.replace("//", "//w:p@")) as ps:
        q = ps.queue("q")
        q.enqueue(b"first")
        proxy.eat_reply(after=b"x" * 1000)
        assert q.enqueue(LONG)
        assert q.stats().ready == 2


def test_a_cut_is_no_sign_of_the_size_while_the_server_is_down() -> None:
    """A server that ends during a long call is not reached; one of several is asked once more."""
    alive = [True]

    def answer(command: Command) -> bytes:
        alive[0] &= command[0] != b"EVALSHA"
        return info(redis_version="7.0.0") if alive[0] else b""

    with Stub(answer) as stub, Penstock(stub.url, retry_for=2) as ps:
        connections, opened = ps.topology.executor.connections, stub.connections
        connections.send_once()
        with pytest.raises(redis.ConnectionError) as caught:
            connections.run(ps.queue("q").ops.enqueue([MUCH]))
        assert not isinstance(caught.value, OutcomeUnknown)
        assert stub.connections <= opened + 2


def test_a_refused_login_is_not_hidden_by_a_lost_confirmation() -> None:
    """The server asks for a password at the call, and closes the connection at the WAIT."""

    def answer(command: Command) -> bytes:
        replies = {b"EVALSHA": b"-NOAUTH Authentication required.\r\n", b"WAIT": b""}
        return replies.get(command[0], info(role="master", connected_slaves="1"))

    with Stub(answer) as stub, Penstock(stub.url, retry_for=0) as ps:
        call = ps.queue("q").ops.enqueue([b"a"], wait=Wait(1, 100, expected=1))
        with pytest.raises(AccessDenied):
            ps.topology.executor.connections.run(call)
