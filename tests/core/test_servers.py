"""Rules by which the client decides that a server's writes are on disk."""

from __future__ import annotations

import pytest

from penstock import CannotSync
from penstock.core.nodes.servers import ServerFacts, Syncing, unsynced

REDIS_8 = {"redis_version": "8.0.2", "aof_enabled": "1"}
REDIS_74 = {"redis_version": "7.4.1", "aof_enabled": "1"}
REDIS_7 = {"redis_version": "7.0.15", "aof_enabled": "1"}
VALKEY = {
    "redis_version": "7.2.4",
    "server_name": "valkey",
    "valkey_version": "9.1.2",
    "aof_enabled": "1",
}
ALWAYS = {"appendonly": "yes", "appendfsync": "always", "no-appendfsync-on-rewrite": "no"}
EVERYSEC = {**ALWAYS, "appendfsync": "everysec"}
SUSPENDED = {**ALWAYS, "no-appendfsync-on-rewrite": "yes"}
BEGINNING = {"aof_rewrite_in_progress": "1", "aof_base_size": "0"}


@pytest.mark.parametrize("settings", [EVERYSEC, ALWAYS, SUSPENDED, None])
@pytest.mark.parametrize("replicas", [0, 2])
def test_redis_8_is_asked(settings: dict[str, str] | None, replicas: int) -> None:
    """Redis 8 is asked with WAITAOF, whatever its settings, and for its replicas too."""
    assert ServerFacts(REDIS_8).syncing(settings, replicas) is Syncing.WAITAOF


@pytest.mark.parametrize("fields", [REDIS_7, REDIS_74, VALKEY], ids=["7.0", "7.4", "valkey"])
def test_always_is_the_proof_elsewhere(fields: dict[str, str]) -> None:
    """On other servers `appendfsync always` is proof for the server itself, even in a rewrite."""
    assert ServerFacts(fields).syncing(ALWAYS, 0) is Syncing.ALWAYS
    rewritten = {**fields, "aof_rewrite_in_progress": "1", "aof_base_size": "500"}
    assert ServerFacts(rewritten).syncing(ALWAYS, 0) is Syncing.ALWAYS


REFUSED = [
    ({}, ALWAYS, 0, "does not answer INFO"),
    ({**REDIS_8, "aof_enabled": "0"}, ALWAYS, 0, r"Redis 8\.0\.2 has no append-only file"),
    ({**VALKEY, "aof_enabled": "0"}, ALWAYS, 0, r"Valkey 9\.1\.2 has no append-only file"),
    (REDIS_7, EVERYSEC, 0, "appendfsync is everysec, not always, and it has no WAITAOF"),
    (REDIS_74, EVERYSEC, 0, "everysec, not always, and its WAITAOF answers before the disk does"),
    (VALKEY, EVERYSEC, 0, "everysec, not always, and its WAITAOF answers before the disk does"),
    (VALKEY, SUSPENDED, 0, "no-appendfsync-on-rewrite suspends"),
    (REDIS_7, None, 0, "CONFIG GET is forbidden"),
    (VALKEY, {}, 0, "appendonly no"),
    (REDIS_7, ALWAYS, 1, "can't tell what its replicas have on disk"),
    (VALKEY, ALWAYS, 1, "can't tell what its replicas have on disk"),
    ({**REDIS_7, **BEGINNING}, ALWAYS, 0, "still creating its append-only file"),
    ({**REDIS_8, "server_name": "other"}, EVERYSEC, 0, "its WAITAOF answers before the disk does"),
]


@pytest.mark.parametrize("fields, settings, replicas, reason", REFUSED)
def test_all_else_is_refused(
    fields: dict[str, str], settings: dict[str, str] | None, replicas: int, reason: str
) -> None:
    """Everything else is refused, with the server's name and the reason."""
    with pytest.raises(CannotSync, match=reason):
        ServerFacts(fields).syncing(settings, replicas)


def test_proof_from_a_reply() -> None:
    """A reply proves only an `always` that is not suspended."""
    assert unsynced(ALWAYS) == ""
    assert "everysec" in unsynced(EVERYSEC)
    assert "suspends" in unsynced(SUSPENDED)
    assert "appendonly no" in unsynced({**ALWAYS, "appendonly": "no"})
