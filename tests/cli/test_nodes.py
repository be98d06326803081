"""nodes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

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
    """The list is kept on the nodes: any of them tells of the others."""
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

    assert run_cli("nodes", "leave", node[:8], url=first.url).code == 0
    with Penstock(second.url) as ps:
        job = ps.queue("q").enqueue("x")
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


def test_who_was_missed_is_named(
    run_cli: Cli, two: tuple[EmbeddedServer, EmbeddedServer], make_server: MakeServer
) -> None:
    """The others have it; the command fails, so that it is done again."""
    first, second = two
    run_cli("nodes", "add", second.url, url=first.url)
    second.kill()
    third = make_server(tcp=True)
    result = run_cli("nodes", "add", third.url, url=first.url)
    assert result.code == 1
    assert f"127.0.0.1:{second.port}" in result.err
    assert len(result.rows) == 3
    assert "refused" in result.out


def test_bad_calls(run_cli: Cli, two: tuple[EmbeddedServer, EmbeddedServer]) -> None:
    """Without a node, with one too many, with one that is not there."""
    url = two[0].url
    for argv in (["leave"], ["list", "x"], ["fly", "x"]):
        assert run_cli("nodes", *argv, url=url).code == 2
    for argv in (["leave", "00000000"], ["forget", two[1].url], ["add", "nowhere"]):
        result = run_cli("nodes", *argv, url=url)
        assert (result.code, "BadArgument" in result.err) == (1, True)
    assert "can't be reached" in run_cli("nodes", "add", "redis://127.0.0.1:1", url=url).err
