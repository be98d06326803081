"""Queues of the protocol pressure: interrupted threads, and users with few permissions."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest
import redis

from penstock import QueueInUse
from penstock.core.calls.call import Call
from penstock.embedded import EmbeddedServer
from penstock.pressure import PressureQueue
from penstock.pressure._sync import waiting
from penstock.pressure._sync.connections import PressureServer
from tests.protocol.pages import acl_rules
from tests.support.twins import Beside, spawn, wait_for

FREE = "__pressure__:q:producer_free"


@pytest.fixture
def plain(server: EmbeddedServer) -> Iterator[redis.Redis]:
    """A client of `server`."""
    with redis.Redis.from_url(server.url) as client:
        yield client


@pytest.fixture
def interrupted() -> Iterator[threading.Event]:
    """An event that is set as soon as the main thread is interrupted."""
    event = threading.Event()

    def interrupt(*_: object) -> None:
        event.set()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    yield event
    signal.signal(signal.SIGINT, before)


def after(plain: redis.Redis, role: str | None, interrupted: threading.Event) -> Beside[None]:
    """Interrupt the blocked main thread, and then push the role's token if any."""
    main = threading.main_thread().ident
    assert main

    def interrupt() -> None:
        wait_for(lambda: plain.info("clients")["blocked_clients"] == 1)
        signal.pthread_kill(main, signal.SIGINT)
        assert interrupted.wait(20)
        if role:
            plain.lpush(role, 0)

    return spawn(interrupt)


def tokens(plain: redis.Redis) -> list[int]:
    """Return the lengths of the three token lists."""
    names = ("producer_free", "consumer_free", "not_full")
    return [plain.llen(f"__pressure__:q:{name}") for name in names]


def check_interrupted_wait(
    server: EmbeddedServer, plain: redis.Redis, kind: str, interrupted: threading.Event
) -> None:
    """Interrupt a wait for room or a message, and check that the queue is unchanged."""
    with PressureQueue("q", server.url) as q:
        q.create(1)
        if kind == "put":
            q.put("a")
        beside = after(plain, None, interrupted)
        with pytest.raises(KeyboardInterrupt):
            q.put("b") if kind == "put" else q.get()
        beside.result()
        assert tokens(plain) == ([1, 1, 0] if kind == "put" else [1, 1, 1])


@pytest.mark.parametrize("kind", ["put", "get"])
def test_an_interrupted_wait_gives_its_role_back(
    server: EmbeddedServer, plain: redis.Redis, kind: str, interrupted: threading.Event
) -> None:
    """Ctrl-C during a wait for room or a message leaves the queue unchanged."""
    check_interrupted_wait(server, plain, kind, interrupted)


def test_a_party_interrupted_while_waiting_returns_its_role(
    server: EmbeddedServer,
    plain: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    interrupted: threading.Event,
) -> None:
    """The server pops the role's token for a call that was interrupted just before."""
    monkeypatch.setattr(waiting, "MOST_LOST_RACES", 0)
    with PressureQueue("q", server.url) as q:
        q.create()
        plain.rpop(FREE)
        beside = after(plain, FREE, interrupted)
        with pytest.raises(KeyboardInterrupt):
            q.put("a")
        beside.result()
        assert tokens(plain) == [1, 1, 1]
        assert plain.llen("__pressure__:q") == 0


@pytest.mark.parametrize("name", ["send", "pop", "wait_for_reply", "read_response", "take_popped"])
def test_a_party_interrupted_while_it_takes_the_token_returns_its_role(
    server: EmbeddedServer, plain: redis.Redis, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The interrupt comes at the end of a function between the command and the note."""

    def interrupt(frame: FrameType, event: str, _: object) -> Callable[..., Any]:
        is_end = event == "return" and frame.f_code.co_name == name
        if is_end and not struck and _is_in(frame, "_pop_token"):
            if name in ("send", "pop"):
                plain.lpush(FREE, 0)
            struck.append(name)
            signal.raise_signal(signal.SIGINT)
        return interrupt

    struck = list[str]()
    monkeypatch.setattr(waiting, "MOST_LOST_RACES", 0)
    with PressureQueue("q", server.url) as q:
        q.create()
        plain.rpop(FREE)
        beside = None if name in ("send", "pop") else spawn(_push_when_awaited, plain)
        sys.settrace(interrupt)
        try:
            with pytest.raises(KeyboardInterrupt):
                q.put("a")
        finally:
            sys.settrace(None)
        if beside:
            beside.result()
        assert struck
        assert tokens(plain) == [1, 1, 1]
        assert plain.llen("__pressure__:q") == 0


@pytest.mark.parametrize("operation", ["put", "get"])
def test_a_second_interrupt_does_not_lose_the_role(
    server: EmbeddedServer,
    plain: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    interrupted: threading.Event,
    operation: str,
) -> None:
    """It comes while the interrupted call gives its role back, and ends the call afterwards."""
    leave, struck = PressureServer.run_repeatable, list[int]()

    def interrupted_leave(server: PressureServer, call: Call[Any]) -> Any:
        struck.append(1)
        signal.raise_signal(signal.SIGINT)
        return leave(server, call)

    monkeypatch.setattr(PressureServer, "run_repeatable", interrupted_leave)
    check_interrupted_wait(server, plain, operation, interrupted)
    assert struck == [1]


def _is_in(frame: FrameType | None, name: str) -> bool:
    while frame is not None and frame.f_code.co_name != name:
        frame = frame.f_back
    return frame is not None


def _push_when_awaited(plain: redis.Redis) -> None:
    wait_for(lambda: plain.info("clients")["blocked_clients"] == 1)
    plain.lpush(FREE, 0)


def test_the_rights_in_the_document_are_enough(server: EmbeddedServer, plain: redis.Redis) -> None:
    """Every operation and wait works with the permissions in protocol/pressure.md."""
    plain.execute_command("ACL", "SETUSER", "party", *acl_rules("party"))
    host, port = server.address
    url = f"redis://party:secret@{host}:{port}"
    with PressureQueue("q", url) as q, PressureQueue("q", url) as other:
        q.create(1)
        assert (q.exists(), q.length(), q.closed(), q.bound()) == (True, 0, False, 1)
        q.put("a", timeout=1)
        putting = spawn(other.put, "b")
        wait_for(lambda: plain.llen(FREE) == 0)
        with pytest.raises(QueueInUse):
            q.put("c", timeout=0.1)
        assert q.free_role("producer")
        assert q.get() == b"a"
        putting.result()
        assert q.get_nowait() == b"b"
        getting = spawn(other.get)
        wait_for(lambda: plain.llen(FREE.replace("producer", "consumer")) == 0)
        q.put_nowait("d")
        assert getting.result() == b"d"
        plain.rpop(FREE)
        _stand_in_line(plain, q)
        q.close()
        q.delete()
    assert plain.keys() == []


def _stand_in_line(plain: redis.Redis, q: PressureQueue) -> None:
    """Queue for the role from the first attempt on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(waiting, "MOST_LOST_RACES", 0)
        putting = spawn(q.put, "e")
        wait_for(lambda: plain.info("clients")["blocked_clients"] == 1)
        plain.lpush(FREE, 0)
        putting.result()
