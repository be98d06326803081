"""Group 11: passwords are hidden wherever Spark shows options."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from penstock import Penstock
from penstock.embedded import EmbeddedServer
from tests.spark.support import Driver

PASSWORD = "correct-horse-battery"


@pytest.fixture
def guarded(make_server: Callable[..., EmbeddedServer]) -> EmbeddedServer:
    """A server with a password."""
    server = make_server(tcp=True)
    with redis.Redis.from_url(server.url) as client:
        client.config_set("requirepass", PASSWORD)
    return server


def test_no_password_is_shown(
    guarded: EmbeddedServer, driver: Callable[..., Driver], tmp_path: Path
) -> None:
    """No password is in plans, event log, REST, progress, checkpoints, errors or logs."""
    password_file = tmp_path / "password"
    password_file.write_text(f"{PASSWORD}\n")
    place = guarded.url.removeprefix("redis://")
    ways = {
        "url": {"url": f"redis://:{PASSWORD}@{place}"},
        "passwordEnv": {"url": guarded.url, "passwordEnv": "QUEUE_PASSWORD"},
        "passwordFile": {"url": guarded.url, "passwordFile": str(password_file)},
    }
    events = tmp_path / "events"
    events.mkdir()
    started = driver(
        "tests.spark.programs:watched",
        master="local[2]",  # no second attempt of the tasks that fail
        conf={
            "spark.ui.enabled": "true",
            "spark.ui.port": "0",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": events.as_uri(),
            "spark.log.level": "INFO",
        },
        env={"QUEUE_PASSWORD": PASSWORD},
        ways=ways,
        directory=str(tmp_path / "work"),
    )
    found: dict[str, Any] = started.result()
    rest = found.pop("rest")
    assert rest
    assert PASSWORD not in json.dumps(rest)
    assert set(found) == set(ways)
    for way, shown in found.items():
        assert shown.pop("rows") == 30
        assert set(shown) == {"explain", "errors", "progress", "describe"}
        assert all(shown.values()), {name: bool(text) for name, text in shown.items()}
        for name, text in shown.items():
            assert PASSWORD not in json.dumps(text), (way, name)
        assert f"dangerous {way}" in json.dumps(shown["errors"])  # the queue of the failing calls
    assert PASSWORD not in started.log
    written = [path for path in tmp_path.rglob("*") if path.is_file() and path != password_file]
    assert any(events in path.parents for path in written)
    assert all(any(f"{way}/checkpoint" in str(path) for path in written) for way in ways)
    assert [path for path in written if PASSWORD.encode() in path.read_bytes()] == []
    with Penstock(f"redis://:{PASSWORD}@{place}") as ps:
        assert [ps.queue(way).stats().ready for way in ways] == [30, 30, 30]
