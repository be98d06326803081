"""Settings on the wire, and the server's INFO."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest

from penstock import BadArgument, Settings, UnsupportedServer
from penstock.core.calls.settings import KEEP, setting_fields
from penstock.core.jobs.queue_stats import SETTING_KINDS, read_settings, read_stats
from penstock.core.nodes.servers import ServerFacts, parse_info
from penstock.wire.replies import PARSERS


def test_settings_to_fields() -> None:
    """Durations are in ms, counts unchanged; None removes a setting, unchanged ones
    are not sent.
    """
    given = {
        "lease": 1.5, "max_length": 5, "dead_max": 0, "dead_age": timedelta(days=1),
        "backoff_cap": None, "max_attempts": KEEP, "self": "no setting",
    }  # fmt: skip
    assert setting_fields(given) == [
        "lease", 1500, "max_length", 5, "dead_max", 0, "dead_age", 86_400_000, "backoff_cap", "",
    ]  # fmt: skip
    assert setting_fields({}) == []
    assert setting_fields({"per_key": 2, "ordered": True}) == ["per_key", 2, "ordered", 1]
    assert setting_fields({"share": 2}) == ["share", 2]
    assert setting_fields({"max_active": 20}) == ["max_active", 20]
    assert setting_fields({"max_active": 20}, 16) == ["max_active", "20/16"]
    paced = {"rate": "5/s", "key_rate": "60/min", "key_burst": 3}
    assert setting_fields(paced, partitions=4) == [
        "rate", "5/1000/4", "key_rate", "60/60000", "key_burst", 3,
    ]  # fmt: skip
    assert setting_fields({"ordered": False}) == ["ordered", ""]
    assert setting_fields({"history": False}) == ["history", 0]
    assert setting_fields({"history": True}) == ["history", ""]


@pytest.mark.parametrize("name", SETTING_KINDS)
def test_invalid_settings(name: str) -> None:
    """An invalid setting is refused by name."""
    for value in (-1, math.nan, True, "5", math.inf, 0):
        if SETTING_KINDS[name] == "limit" and value == 0 and value is not True:
            continue  # no settings
        if SETTING_KINDS[name] in ("flag", "switch") and value is True:
            continue
        with pytest.raises(BadArgument) as caught:
            setting_fields({name: value})
        assert caught.value.argument == name


def test_fields_to_settings() -> None:
    """Stored fields are parsed into settings; unknown ones are ignored."""
    fields = {"v": "1", "lease": "1500", "max_length": "5", "dead_max": "0", "paused": "in"}
    assert read_settings(fields) == Settings(lease=1.5, max_length=5, dead_max=0, paused="in")
    assert read_settings({}) == Settings()
    assert read_settings({"per_key": "2", "ordered": "1"}) == Settings(per_key=2, ordered=True)
    for text in ("20", "20/16"):
        assert read_settings({"max_active": text}) == Settings(max_active=20)
    for text in ("", "0", "x", "20/", "20/0", "/16", "020"):
        assert read_settings({"max_active": text}) == Settings()


@pytest.mark.parametrize("value", ["", "abc", "-", "-5", "\x00", "0x", "\u0661"])
def test_fields_that_are_no_numbers(value: str) -> None:
    """A field that is not a number counts as absent, as for the scripts."""
    assert read_settings({"lease": value, "max_length": "5"}) == Settings(max_length=5)
    names = ("acked", "made", "seen", "lease", "dangling", "producer", "consumer")
    flat = [part.encode() for name in names for part in (name, value)]
    role = f"{value}-1 {value} 9 ada".encode()
    numbers = [1, 0, 0, 0, 0, -1, *[0] * 5]
    reply = [1, b"1", 1000, *numbers, *flat, b"enqueued", b"7", b"producer", role]
    stats = read_stats("q", PARSERS["stats"](reply))
    assert (stats.enqueued, stats.acked, stats.age, stats.idle) == (7, 0, None, None)
    assert stats.producer is stats.consumer is None


def facts(**fields: Any) -> ServerFacts:
    """A server with this INFO."""
    return ServerFacts({name: str(value) for name, value in fields.items()})


def test_info_is_read() -> None:
    """Section headers and empty lines are skipped; values may have colons."""
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
    """Versions are available as numbers and as text."""
    made = ServerFacts(fields)
    assert (made.version, made.name) == (version, name)


@pytest.mark.parametrize("version", ["6.0.16", "5.0.14", "2.8", "6.1.240"])
def test_old_servers_are_refused(version: str) -> None:
    """An old server is refused; the error has its version and the required one."""
    with pytest.raises(UnsupportedServer, match=f"Redis {version}: .*6.2 or newer"):
        facts(redis_version=version).check()


@pytest.mark.parametrize("version", ["6.2.0", "7.0.15", "8.2.1", "10.0.0"])
def test_newer_servers_are_taken(version: str) -> None:
    """Servers from 6.2 on are accepted, and those without a version."""
    facts(redis_version=version).check()
    ServerFacts({}).check()


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-lfu", "allkeys-random"])
def test_policies_that_delete_jobs(policy: str) -> None:
    """A policy that deletes jobs causes a warning with advice."""
    (text,) = facts(maxmemory_policy=policy).warnings()
    assert policy in text
    assert "noeviction" in text


@pytest.mark.parametrize("policy", ["noeviction", ""])
def test_policies_that_delete_nothing(policy: str) -> None:
    """A policy that deletes nothing causes no warning."""
    assert facts(maxmemory_policy=policy).warnings() == []


@pytest.mark.parametrize("policy", ["volatile-lru", "volatile-ttl"])
def test_policies_that_delete_producer_keys(policy: str) -> None:
    """A policy that deletes expiring keys causes a warning: repeated calls would add jobs twice."""
    (text,) = facts(maxmemory_policy=policy).warnings()
    assert policy in text
