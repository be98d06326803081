"""Parties at a pressure queue that are killed: inside a wait, outside of one, and at random."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from penstock.embedded import EmbeddedServer
from tests.conformance.pressure import Keys, Ours, Refused
from tests.conformance.pressure_crowd import Crowd
from tests.conformance.pressure_storm import Storm, refusal
from tests.support.binaries import first_binary
from tests.support.keyspace import Raw
from tests.support.workers import until

KINDS = ("sync", "async", "foreign")
OWN = ("sync", "async")
KILLS = 12
KEYS = Keys("q")


@pytest.fixture(scope="module")
def crowd() -> Iterator[Crowd]:
    """The process that starts the victims."""
    with Crowd() as made:
        yield made


@pytest.fixture(scope="module")
def home() -> Iterator[EmbeddedServer]:
    """A server on loopback for the tests of this file."""
    with EmbeddedServer(first_binary(), tcp=True) as server:
        yield server


@pytest.fixture
def raw(home: EmbeddedServer) -> Iterator[Raw]:
    """A plain client of the server, which is empty."""
    with redis.Redis.from_url(home.url, protocol=2) as client:
        client.flushall()
        yield client


@pytest.fixture
def mine(home: EmbeddedServer, raw: Raw) -> Iterator[Any]:
    """Our surviving party; the queue has a bound of 1."""
    made: Any = Ours(home.url, "q", client_id="survivor")
    made.create(1)
    yield made
    made.disconnect()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verb", ["get", "put"])
def test_killed_inside_a_wait(
    verb: str, kind: str, home: EmbeddedServer, crowd: Crowd, raw: Raw, mine: Any
) -> None:
    """P-26: its role stays taken in its name; timed calls time out; when freed, all works.

    No message is lost, as a wait takes none.
    """
    role = "consumer" if verb == "get" else "producer"
    if verb == "put":
        mine.put_nowait(b"first")
    victim = crowd.start("wait", kind=kind, url=home.url, name="q", client_id="victim", verb=verb)
    until(lambda: not raw.exists(KEYS(f"{role}_free")) and raw.get(KEYS(role)) == b"victim")
    victim.kill()
    calls: list[tuple[Any, ...]] = (
        [(mine.get, 0.1), (mine.get_nowait,)]
        if verb == "get"
        else [(mine.put, b"x", 0.1), (mine.put_nowait, b"x"), (mine.close, 0.1)]
    )
    for call, *args in calls:
        start = time.monotonic()
        with pytest.raises(Refused, match="in_use") as refused:
            call(*args)
        assert refused.value.holder == "victim"
        assert time.monotonic() - start < 10
    assert mine.free_role(role) is True
    assert mine.free_role(role) is False
    if verb == "get":
        mine.put_nowait(b"first")
    assert mine.get(5) == b"first"
    mine.put(b"second", 5)
    assert mine.get_nowait() == b"second"
    assert (raw.llen(KEYS("producer_free")), raw.llen(KEYS("consumer_free"))) == (1, 1)
    assert tuple(mine.counters()) == (2, 11, 2, 11)


@pytest.mark.parametrize("kind", OWN)
@pytest.mark.parametrize("verb", ["get", "put"])
def test_killed_as_it_is_woken(
    verb: str, kind: str, home: EmbeddedServer, crowd: Crowd, raw: Raw, mine: Any
) -> None:
    """P-26: one of ours dies after the server replied with a message, or room, and loses none.

    It is stopped before it can read the reply.
    """
    role = "consumer" if verb == "get" else "producer"
    if verb == "put":
        mine.put_nowait(b"first")
    victim = crowd.start("wait", kind=kind, url=home.url, name="q", client_id="victim", verb=verb)
    until(lambda: raw.get(KEYS(role)) == b"victim" and raw.info("clients")["blocked_clients"] == 1)
    victim.freeze()
    if verb == "get":
        raw.lpush(KEYS(), b"first")
    else:
        assert mine.get_nowait() == b"first"
    victim.kill()
    assert mine.free_role(role) is True
    if verb == "get":
        assert mine.get_nowait() == b"first"
    mine.put_nowait(b"second")
    assert raw.lrange(KEYS(), 0, -1) == [b"second"]
    assert raw.llen(KEYS("not_full")) == 0


@pytest.mark.parametrize("kind", OWN)
def test_killed_outside_a_wait(
    kind: str, home: EmbeddedServer, crowd: Crowd, raw: Raw, mine: Any, tmp_path: Path
) -> None:
    """P-26: one of ours that is killed outside a wait leaves both roles free, every time.

    The counters are exact.
    """
    log = tmp_path / "log"
    log.touch()
    mine.delete()
    mine.create(0)
    deeds = ["put_nowait", "get_nowait", "put"]
    for turn in range(KILLS):
        size = log.stat().st_size
        common = {"url": home.url, "name": "q", "log": str(log), "deeds": deeds}
        victim = crowd.start("live", kind=kind, client_id=f"v{turn}", seed=turn, **common)
        until(lambda size=size: log.stat().st_size > size + 1000)  # it is working
        victim.kill()
        until(lambda: raw.llen(KEYS("producer_free")) == raw.llen(KEYS("consumer_free")) == 1)
        mine.put_nowait(b"here")
        assert refusal(mine.get_nowait) == ""
        entered, entered_bytes, left, left_bytes = mine.counters()
        waiting = raw.lrange(KEYS(), 0, -1)
        assert entered - left == len(waiting)
        assert entered_bytes - left_bytes == sum(map(len, waiting))
    assert victim.ended() == -signal.SIGKILL


@pytest.mark.parametrize("verb", ["put", "close", "get", "delete"])
def test_killed_while_it_waits_for_a_role(
    verb: str, home: EmbeddedServer, crowd: Crowd, raw: Raw, mine: Any
) -> None:
    """P-26: one of ours that dies while another party holds the role leaves no trace.

    Only a delete leaves one: the next delete finishes it.
    """
    role = "consumer" if verb in ("get", "delete") else "producer"
    raw.rpop(KEYS(f"{role}_free"))
    raw.set(KEYS(role), "other")
    before = {client["id"] for client in raw.client_list()}
    victim = crowd.start("wait", kind="sync", url=home.url, name="q", client_id="victim", verb=verb)
    until(lambda: raw.info("clients")["blocked_clients"] == 1)
    victim.kill()
    until(lambda: {client["id"] for client in raw.client_list()} <= before)
    assert raw.get(KEYS(role)) == b"other"
    raw.lpush(KEYS(f"{role}_free"), 0)  # the holder is done
    if verb == "delete":
        assert refusal(mine.create, 1) == "exists"
        assert refusal(mine.delete, 20) in ("", "missing")
        assert not raw.dbsize()
        mine.create(1)
    mine.put(b"x", 5)
    assert mine.get(5) == b"x"
    assert (raw.llen(KEYS("producer_free")), raw.llen(KEYS("consumer_free"))) == (1, 1)


@pytest.mark.slow
def test_killed_at_random(home: EmbeddedServer, crowd: Crowd, raw: Raw, tmp_path: Path) -> None:
    """P-26, P-27: six seconds of killed processes; `free_role()` ends every block.

    Order is kept, no message is doubled, and the counters are exact. A longer one is in
    tests/nodes.
    """
    sums = Storm(home, crowd, tmp_path, seed=6).run(6)
    assert sums["kills"] >= 3
    assert sums["done put"] + sums["done put_nowait"] >= 10
    assert sums["done get"] + sums["done get_nowait"] >= 5
