"""Tests of `nodes`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from penstock import Penstock
from penstock.embedded import EmbeddedServer
from tests.cli.support import Cli

MakeServer = Callable[..., EmbeddedServer]


@pytest.fixture
def two(make_server: MakeServer) -> tuple[EmbeddedServer, EmbeddedServer]:
    """Two servers."""
    return make_server(tcp=True), make_server(tcp=True)


def test_a_node_is_added_emptied_and_forgotten(
    run_cli: Cli, two: tuple[EmbeddedServer, EmbeddedServer]
) -> None:
    """The list is stored on the nodes: each one knows the others."""
    first, second = two
    alone = run_cli("nodes", url=first.url)
    assert (alone.code, len(alone.rows)) == (0, 1)
    added = run_cli("nodes", "add", second.url, "--json", url=first.url).document["nodes"]
    assert [one["address"] for one in added] == [
        f"127.0.0.1:{server.port}" for server in (first, second)
    ]
    node = added[1]["id"]
    listed = run_cli("nodes", url=second.url)
    assert {row[0].strip() for row in listed.rows} == {one["id"] for one in added}

    with Penstock(second.url, federation=False) as ps:
        job = ps.queue("q").enqueue("x")
        assert run_cli("nodes", "leave", node[:8], url=first.url).code == 0
        left = run_cli("nodes", "drained", node, "--json", url=first.url)
        assert (left.code, left.document["drained"], left.document["waiting"]) == (1, False, 1)
        ps.queue("q").ack([job.id])
    assert run_cli("nodes", "drained", node, url=first.url).code == 0
    views = run_cli("nodes", "--json", url=first.url).document["nodes"]
    assert [(one["leaving"], one["priority"]) for one in views] == [(False, 1), (True, 100)]

    assert run_cli("nodes", "join", added[1]["address"], url=first.url).code == 0
    views = run_cli("nodes", "--json", url=first.url).document["nodes"]
    assert [one["leaving"] for one in views] == [False, False]
    assert run_cli("nodes", "forget", node, url=first.url).code == 0
    assert len(run_cli("nodes", url=f"{first.url} {second.url}").rows) == 1


def test_a_missing_node_is_reported(
    run_cli: Cli, two: tuple[EmbeddedServer, EmbeddedServer], make_server: MakeServer
) -> None:
    """The other nodes have the change; the command fails, so that it is repeated."""
    first, second = two
    run_cli("nodes", "add", second.url, url=first.url)
    second.kill()
    third = make_server(tcp=True)
    result = run_cli("nodes", "add", third.url, url=first.url)
    assert result.code == 1
    assert f"127.0.0.1:{second.port}" in result.err
    assert len(result.rows) == 3
    assert "refused" in result.out


def test_a_password_goes_to_hosts_that_are_named(
    run_cli: Cli, two: tuple[EmbeddedServer, EmbeddedServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listed host is shown with the reason why it is not used, and can be removed."""
    for server in two:
        with redis.Redis.from_url(server.url) as raw:
            raw.config_set("requirepass", "hunter2")
    url, foreign = (server.url.replace("://", "://:hunter2@") for server in two)
    run_cli("nodes", "add", foreign, url=url)
    listed = run_cli("nodes", "--json", url=url)
    assert [bool(one["error"]) for one in listed.document["nodes"]] == [False, True]
    assert "node_hosts" in listed.out
    assert "hunter2" not in listed.out + listed.err
    named = run_cli("nodes", "--json", "--node-hosts", "127.0.0.1 other", url=url)
    assert [one["error"] for one in named.document["nodes"]] == ["", ""]
    monkeypatch.setenv("PENSTOCK_NODE_HOSTS", "127.0.0.*")
    named = run_cli("nodes", "--json", url=url)
    assert [one["error"] for one in named.document["nodes"]] == ["", ""]
    monkeypatch.delenv("PENSTOCK_NODE_HOSTS")
    assert run_cli("nodes", "forget", named.document["nodes"][1]["id"], url=url).code == 0
    assert len(run_cli("nodes", url=url).rows) == 1


def test_figures_of_each_node_are_shown(
    run_cli: Cli, two: tuple[EmbeddedServer, EmbeddedServer]
) -> None:
    """The queue and each node have a row, which shows differing settings."""
    first, second = two
    run_cli("nodes", "add", second.url, url=first.url)
    with Penstock(first.url, federation=False) as ps:
        ps.queue("q").enqueue_many(["a", "b", "c"])
    with Penstock(second.url, federation=False) as ps:
        ps.queue("q").enqueue("d")
        ps.queue("q").configure(lease=7)
    shown = run_cli("stats", "q", url=first.url)
    places = [f"127.0.0.1:{server.port}" for server in two]
    assert [row[0].strip() for row in shown.rows] == ["q", *(f"q on {one}" for one in places)]
    assert [row[1].strip() for row in shown.rows] == ["4", "3", "1"]
    assert f"lease=7.0 (others on {places[0]})" in shown.out
    found = run_cli("stats", "q", "--json", url=first.url).document["queues"][0]
    assert found["differing"] == [places[0]]
    assert {place: found["nodes"][place]["ready"] for place in places} == dict(
        zip(places, (3, 1), strict=True)
    )


def test_bad_calls(run_cli: Cli, two: tuple[EmbeddedServer, EmbeddedServer]) -> None:
    """Without a node, with two, or with an unreachable one."""
    url = two[0].url
    for argv in (["leave"], ["list", "x"], ["fly", "x"]):
        assert run_cli("nodes", *argv, url=url).code == 2
    for argv in (["leave", "00000000"], ["forget", two[1].url], ["add", "nowhere"]):
        result = run_cli("nodes", *argv, url=url)
        assert (result.code, "BadArgument" in result.err) == (1, True)
    assert "can't be reached" in run_cli("nodes", "add", "redis://127.0.0.1:1", url=url).err
