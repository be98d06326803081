"""The proxy that answers WAITAOF for a server that may lack it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from penstock.embedded import EmbeddedServer
from tests.support.waitaof import WaitAof


def test_answers_to_waitaof(make_server: Callable[..., EmbeddedServer]) -> None:
    """It answers at the right position among other replies of every kind; without a file with an
    error.
    """
    server = make_server(tcp=True, appendonly=True, args=("--appendfsync", "always"))
    with WaitAof(server, keeping=1) as door, redis.Redis.from_url(door.url, protocol=2) as client:
        pipe = client.pipeline(transaction=False)
        pipe.set("a", b"1\r\n\xff").execute_command("WAITAOF", 1, 0, 100)
        pipe.get("a").get("none").rpush("list", 1, 2).lrange("list", 0, -1)
        assert pipe.execute() == [True, [1, 0], b"1\r\n\xff", None, 2, [b"1", b"2"]]
        with pytest.raises(redis.ResponseError, match="wrong kind"):
            client.incr("list")
        client.config_set("appendonly", "no")
        with pytest.raises(redis.ResponseError, match="appendonly is disabled"):
            client.execute_command("WAITAOF", 1, 0, 100)
