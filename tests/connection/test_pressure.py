"""A thread that is interrupted while it waits for a pressure queue leaves nothing behind."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest
import redis

from penstock.embedded import EmbeddedServer
from penstock.pressure import Queue
from penstock.pressure._sync import turn
from tests.support.twins import Beside, spawn, wait_for

FREE = "__pressure__:q:producer_free"


@pytest.fixture
def plain(server: EmbeddedServer) -> Iterator[redis.Redis]:
    """A client of `server`."""
    with redis.Redis.from_url(server.url) as client:
        yield client


def after(plain: redis.Redis, role: str | None) -> Beside[None]:
    """Interrupt the main thread when it is blocked, and then give the role, if any."""
    main = threading.main_thread().ident
    assert main

    def interrupt() -> None:
        wait_for(lambda: plain.info("clients")["blocked_clients"] == 1)
        signal.pthread_kill(main, signal.SIGINT)
        if role:
            plain.lpush(role, 0)

    return spawn(interrupt)


def tokens(plain: redis.Redis) -> list[int]:
    """Elements of the three lists of tokens."""
    names = ("producer_free", "consumer_free", "not_full")
    return [plain.llen(f"__pressure__:q:{name}") for name in names]


@pytest.mark.parametrize("kind", ["put", "get"])
def test_an_interrupted_wait_gives_its_role_back(
    server: EmbeddedServer, plain: redis.Redis, kind: str
) -> None:
    """Ctrl-C in a wait for room or for a message: the next call finds the queue as it was."""
    with Queue("q", server.url) as q:
        q.create(1)
        if kind == "put":
            q.put("a")
        beside = after(plain, None)
        with pytest.raises(KeyboardInterrupt):
            q.put("b") if kind == "put" else q.get()
        beside.result()
        assert tokens(plain) == ([1, 1, 0] if kind == "put" else [1, 1, 1])


def test_who_is_interrupted_in_line_gives_back_what_it_got(
    server: EmbeddedServer, plain: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server hands the role over after the interrupt, to one who is about to leave."""
    monkeypatch.setattr(turn, "DEFEATS", 0)
    with Queue("q", server.url) as q:
        q.create()
        plain.rpop(FREE)
        beside = after(plain, FREE)
        with pytest.raises(KeyboardInterrupt):
            q.put("a")
        beside.result()
        assert tokens(plain) == [1, 1, 1]
        assert plain.llen("__pressure__:q") == 0
