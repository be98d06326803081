"""Settings on the wire, and what a server says of itself."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest

from penstock import BadArgument, Settings, UnsupportedServer
from penstock.core.servers import ServerFacts, parse_info
from penstock.core.settings import KEEP, setting_fields
from penstock.core.views import SETTING_KINDS, read_settings, read_stats
from penstock.wire.replies import PARSERS


def test_settings_to_fields() -> None:
    """Durations in ms, counts as they are, None drops one, what is kept is not sent."""
    assert setting_fields(
        lease=1.5, max_length=5, dead_max=0, dead_age=timedelta(days=1), backoff_cap=None,
        max_attempts=KEEP,
    ) == [
        "lease", 1500, "max_length", 5, "dead_max", 0, "dead_age", 86_400_000, "backoff_cap", "",
    ]  # fmt: skip
    assert setting_fields() == []


@pytest.mark.parametrize("name", SETTING_KINDS)
def test_settings_that_can_not_be(name: str) -> None:
    """Each names itself."""
    for value in (-1, math.nan, True, "5", math.inf, 0):
        if SETTING_KINDS[name] == "limit" and value == 0 and value is not True:
            continue  # none at all
        with pytest.raises(BadArgument) as caught:
            setting_fields(**{name: value})
        assert caught.value.argument == name


def test_fields_to_settings() -> None:
    """The same way back; what is no setting is passed over."""
    fields = {"v": "1", "lease": "1500", "max_length": "5", "dead_max": "0", "paused": "in"}
    assert read_settings(fields) == Settings(lease=1.5, max_length=5, dead_max=0, paused="in")
    assert read_settings({}) == Settings()


@pytest.mark.parametrize("value", ["", "abc", "-", "-5", "\x00", "0x", "\u0661"])
def test_fields_that_are_no_numbers(value: str) -> None:
    """Count as absent, as for the scripts; everything else is read."""
    assert read_settings({"lease": value, "max_length": "5"}) == Settings(max_length=5)
    names = ("acked", "made", "seen", "lease", "dangling", "producer", "consumer")
    flat = [part.encode() for name in names for part in (name, value)]
    role = f"{value}-1 {value} 9 ada".encode()
    reply = [1, b"1", 1000, 1, 0, 0, 0, 0, -1, *flat, b"enqueued", b"7", b"producer", role]
    stats = read_stats("q", PARSERS["stats"](reply))
    assert (stats.enqueued, stats.acked, stats.age, stats.idle) == (7, 0, None, None)
    assert stats.producer is stats.consumer is None


def facts(**fields: Any) -> ServerFacts:
    """A server that says this of itself."""
    return ServerFacts({name: str(value) for name, value in fields.items()})


def test_info_is_read() -> None:
    """Sections and empty lines are passed over; values may hold colons."""
    text = b"# Server\r\nredis_version:7.0.15\r\n\r\nexecutable:/a:b\r\n"
    assert parse_info(text) == {"redis_version": "7.0.15", "executable": "/a:b"}


@pytest.mark.parametrize(
    "fields, version, name",
    [
        ({"redis_version": "7.0.15"}, (7, 0, 15), "Redis 7.0.15"),
        ({"redis_version": "6.2.0-rc1"}, (6, 2, 0), "Redis 6.2.0-rc1"),
        (
            {"redis_version": "7.2.4", "server_name": "valkey", "valkey_version": "9.1.2"},
            (7, 2, 4),
            "Valkey 9.1.2",
        ),
        ({}, (), "unknown server"),
    ],
)
def test_versions(fields: dict[str, str], version: tuple[int, ...], name: str) -> None:
    """As numbers, and for people."""
    made = ServerFacts(fields)
    assert (made.version, made.name) == (version, name)


@pytest.mark.parametrize("version", ["6.0.16", "5.0.14", "2.8", "6.1.240"])
def test_old_servers_are_refused(version: str) -> None:
    """The message names what it is and what it should be."""
    with pytest.raises(UnsupportedServer, match=f"Redis {version}: .*6.2 or newer"):
        facts(redis_version=version).check()


@pytest.mark.parametrize("version", ["6.2.0", "7.0.15", "8.2.1", "10.0.0"])
def test_newer_servers_are_taken(version: str) -> None:
    """From 6.2 on; and one that does not say what it is."""
    facts(redis_version=version).check()
    ServerFacts({}).check()


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-lfu", "allkeys-random"])
def test_policies_that_delete_jobs(policy: str) -> None:
    """Warned of, with what to do."""
    (text,) = facts(maxmemory_policy=policy).warnings()
    assert policy in text
    assert "noeviction" in text


@pytest.mark.parametrize("policy", ["noeviction", ""])
def test_policies_that_delete_nothing(policy: str) -> None:
    """No warning."""
    assert facts(maxmemory_policy=policy).warnings() == []


@pytest.mark.parametrize("policy", ["volatile-lru", "volatile-ttl"])
def test_policies_that_delete_what_tells_repeats(policy: str) -> None:
    """Producer keys have an end: without them a call that is sent twice adds its jobs twice."""
    (text,) = facts(maxmemory_policy=policy).warnings()
    assert policy in text
