"""The slot map of a cluster, the slots of a command, and how long a call is retried."""

from __future__ import annotations

import pytest

from penstock.core.nodes.cluster import (
    LONGEST_MIGRATION_PAUSE,
    MAX_REDIRECTS,
    MAX_REPEAT_SECONDS,
    Address,
    Patience,
    SlotRange,
    by_slot,
    read_slots,
    slot_of,
)
from penstock.core.nodes.node_views import PrimaryView
from penstock.core.nodes.servers import ServerFacts, together
from penstock.wire.keys import QueueKeys, key_slot


def test_the_map() -> None:
    """The map has slot ranges with their primaries; replicas are left out."""
    reply = [
        [0, 5460, [b"10.0.0.1", 7000, b"id1", []], [b"10.0.0.4", 7003, b"id4", []]],
        [5461, 16383, [b"10.0.0.2", 7001, b"id2", []]],
    ]
    assert read_slots(reply, "asked") == [
        SlotRange(0, 5460, Address("10.0.0.1", 7000)),
        SlotRange(5461, 16383, Address("10.0.0.2", 7001)),
    ]


@pytest.mark.parametrize(
    "entry,host",
    [
        ([b"", 7000, b"id"], "asked"),
        ([None, 7000, b"id", []], "asked"),
        ([b"node.example", 7000, b"id", [b"ip", b"10.0.0.1"]], "node.example"),
        ([b"?", 7000, b"id", [b"ip", b"10.0.0.1"]], "10.0.0.1"),
        ([b"?", 7000, b"id", []], "asked"),
        ([b"::1", 7000, b"id"], "::1"),
    ],
)
def test_the_preferred_endpoint(entry: list[object], host: str) -> None:
    """An endpoint is a name, an address, or the queried server's address if it is empty."""
    assert read_slots([[0, 1, entry]], "asked") == [SlotRange(0, 1, Address(host, 7000))]


@pytest.mark.parametrize(
    "text, address",
    [
        ("h:1", Address("h", 1)),
        ("10.0.0.1:6379", Address("10.0.0.1", 6379)),
        ("[::1]:7000", Address("::1", 7000)),
        ("[fe80::1%eth0]:7000", Address("fe80::1%eth0", 7000)),
    ],
)
def test_the_text_of_an_address(text: str, address: Address) -> None:
    """An IPv6 address is in brackets, as in a URL."""
    assert (str(address), Address.read(text)) == (text, address)
    assert Address.read("/run/redis.sock") is None


def test_the_slot_of_a_command() -> None:
    """The slot of a command is that of its first key; without keys there is none."""
    key = QueueKeys("q")["meta"]
    assert slot_of(("HGET", key, "epoch")) == key_slot(key)
    assert slot_of((b"hget", key.decode(), "epoch")) == key_slot(key)
    assert slot_of(("INFO", "server")) is None
    assert slot_of(("script", "load", "return 1")) is None
    assert slot_of(("PING",)) is None


def test_keys_are_grouped_by_queue() -> None:
    """Keys of one queue are grouped in their order; those of another queue are separate."""
    a, b = QueueKeys("a"), QueueKeys("b")
    assert by_slot([a["wake"], b["wake"], a["space"]]) == {
        key_slot(a["wake"]): (a["wake"], a["space"]),
        key_slot(b["wake"]): (b["wake"],),
    }


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def made(retry_for: float) -> tuple[Clock, Patience]:
    """Return a clock and a patience on it that always draws the longest pause."""
    clock = Clock()
    return clock, Patience(retry_for, clock, lambda: 1.0)


def test_a_failing_server_is_retried_for_a_bounded_time() -> None:
    """Retries have growing pauses, up to 0.25 s in the first second, then up to 1
    s; at least one.
    """
    clock, patience = made(5)
    pauses = []
    while (pause := patience.pause()) is not None:
        pauses.append(pause)
        clock.now += pause
    assert pauses[:8] == [0.01, 0.02, 0.04, 0.08, 0.16, 0.25, 0.25, 0.25]
    assert max(pauses) == 1
    assert 5 <= clock.now <= 6
    clock, patience = made(0)
    assert patience.pause() is not None
    assert patience.pause() is None


def test_a_migration_is_retried_while_it_progresses() -> None:
    """The time starts again with each migrated key, and ends without progress."""
    clock, patience = made(5)
    for left in range(20, 0, -1):
        patience.watch(left)
        pause = patience.pause(LONGEST_MIGRATION_PAUSE)
        assert pause is not None
        assert pause <= LONGEST_MIGRATION_PAUSE
        clock.now += 4
    clock.now += 1
    patience.watch(1)
    assert patience.pause(LONGEST_MIGRATION_PAUSE) is None


def test_a_call_that_may_have_run_is_repeated_for_a_bounded_time() -> None:
    """A call that may have run is retried for five minutes, as its stored reply is kept for ten."""
    clock, patience = made(5)
    patience.lost()
    assert patience.is_unsure
    for left in range(1000, 0, -1):
        patience.watch(left)
        if patience.pause(LONGEST_MIGRATION_PAUSE) is None:
            break
        clock.now += 1
    assert clock.now == MAX_REPEAT_SECONDS


def test_redirections_are_followed_at_once() -> None:
    """The first redirections are followed at once; a circle of redirections ends in time."""
    clock, patience = made(5)
    assert [patience.hop() for _ in range(MAX_REDIRECTS)] == [0.0] * MAX_REDIRECTS
    while (pause := patience.hop()) is not None:
        assert 0 < pause <= LONGEST_MIGRATION_PAUSE
        clock.now += pause
    assert 5 <= clock.now <= 6


def test_the_facts_of_several_servers() -> None:
    """Facts of several servers are sums and worst values; one crowded server makes all crowded."""
    one = {
        "redis_version": "7.0.15",
        "used_memory": "70",
        "maxmemory": "100",
        "maxmemory_policy": "noeviction",
        "aof_enabled": "1",
    }
    other = {
        "redis_version": "6.2.14",
        "used_memory": "80",
        "maxmemory": "100",
        "maxmemory_policy": "allkeys-lru",
        "aof_enabled": "0",
    }
    facts = together([ServerFacts(one, address="a"), ServerFacts(other, address="b")])
    assert facts.version == (6, 2, 14)
    assert (facts.number("used_memory"), facts.number("maxmemory")) == (150, 200)
    assert facts.number("aof_enabled") == 0
    assert facts.evicts == "allkeys-lru"
    assert facts.is_crowded
    assert not together([ServerFacts(one)] * 2).is_crowded
    boundless = ServerFacts({**one, "maxmemory": "0"})
    assert together([ServerFacts(one), boundless]).number("maxmemory") == 0
    assert together([ServerFacts(one)]).fields == one
    assert together([]).fields == {}
    assert facts.primaries() == (
        PrimaryView("a", 70, 100),
        PrimaryView("b", 80, 100, is_crowded=True),
    )
    down = ServerFacts({}, address="c", error="refused")
    facts = together([ServerFacts(one, address="a"), down])
    assert (facts.version, facts.number("used_memory")) == ((7, 0, 15), 70)
    assert facts.primaries()[1] == PrimaryView("c", error="refused")
