"""Bodies that are larger than a server takes."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
import redis

from penstock import AsyncPenstock, BodyTooLarge, IncompleteEnqueue, OutcomeUnknown, Penstock
from penstock.client._sync.transport import server as server_module
from penstock.client._sync.transport.node import Node
from penstock.embedded import EmbeddedServer
from penstock.pressure import PressureQueue
from tests.connection.stub import Command, Stub, info

MUCH = b"x" * 2_000_000
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
    """The same holds in asyncio."""
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
    run = Node.run

    def limited(node: Node, call: Any, **options: Any) -> Any:
        if sum(len(arg) for arg in call.args) > 1000:
            raise BodyTooLarge("a hosted service")
        return run(node, call, **options)

    with Penstock(server.url) as ps:
        q = ps.queue("q")
        monkeypatch.setattr(Node, "run", limited)
        added = q.enqueue_many([b"%0300d" % n for n in range(10)])
        assert [view.body for view in q.peek(10)] == [b"%0300d" % n for n in range(10)]
        assert [one.id for one in added] == [view.id for view in q.peek(10)]


def test_a_cut_is_no_sign_of_the_size_while_the_server_is_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server that ends during a long call and does not answer after it is not reached."""
    monkeypatch.setattr(server_module, "DOUBT", 0.1)
    alive = [True]

    def answer(command: Command) -> bytes:
        alive[0] &= command[0] != b"EVALSHA"
        return info(redis_version="7.0.0") if alive[0] else b""

    with Stub(answer) as stub, Penstock(stub.url, retry_for=0) as ps:
        call = ps.queue("q").ops.enqueue([MUCH])
        with pytest.raises(redis.ConnectionError):
            ps.backend.node.link.run(call)
