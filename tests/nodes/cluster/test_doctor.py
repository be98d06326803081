"""The command line on a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import Penstock
from penstock.wire.keys import QueueKeys
from tests.cli.conftest import run_cli
from tests.cli.support import Cli
from tests.support.cluster import Cluster, names_apart, slot_of_queue

__all__ = ["run_cli"]


def findings(run_cli: Cli, cluster: Cluster, code: int = 0) -> list[dict[str, Any]]:
    """What the doctor says, which must end with this exit code."""
    result = run_cli("--json", "doctor", url=cluster.url)
    assert result.code == code, result
    found: list[dict[str, Any]] = result.document["findings"]
    return found


def of(found: list[dict[str, Any]], check: str) -> list[dict[str, Any]]:
    """The findings of one check."""
    return [one for one in found if one["check"] == check]


def test_a_sound_cluster(run_cli: Cli, cluster: Cluster) -> None:
    """Every primary is looked at, and every queue wherever it lies."""
    names = names_apart(cluster, 6)
    with Penstock(cluster.url) as ps:
        for name in names:
            ps.queue(name).enqueue_many(range(10))
            ps.queue(name).reserve(3, block=0)
    found = findings(run_cli, cluster)
    places = {f"127.0.0.1:{member.port}" for member in cluster.members}
    assert {one["data"]["server"] for one in of(found, "version")} == places
    first, patience = of(found, "cluster")
    assert first["level"] == "ok"
    assert "3 primaries serve 16384 of 16384 slots" in first["text"]
    assert patience["data"] == {"cluster_node_timeout": 15.0}
    (queues,) = of(found, "queues")
    assert (queues["data"]["queues"], queues["data"]["complete"]) == (6, True)


def test_a_slot_on_its_way(run_cli: Cli, cluster: Cluster) -> None:
    """Somebody may have left it there: it is named."""
    slot = 4711
    cluster.begin_move(slot, cluster.other(slot))
    try:
        found = findings(run_cli, cluster)
    finally:
        cluster.stop_move(slot)
    (warning,) = [one for one in of(found, "cluster") if one["level"] == "warning"]
    assert warning["data"]["slots"] == [str(slot)]


def test_damage_on_one_of_the_servers(run_cli: Cli, cluster: Cluster) -> None:
    """It is found there."""
    names = names_apart(cluster, 3)
    with Penstock(cluster.url) as ps:
        for name in names:
            ps.queue(name).enqueue(1)
            ps.queue(name).reserve(block=0)
    keys = QueueKeys(names[2])
    cluster.owner(slot_of_queue(names[2])).raw.delete(keys["active"])
    (broken, *_) = [one for one in findings(run_cli, cluster, 1) if one["level"] == "broken"]
    assert broken["data"]["queue"] == names[2]


@pytest.mark.parametrize("command", ["info", "queues"])
def test_other_commands(run_cli: Cli, cluster: Cluster, command: str) -> None:
    """They go to the cluster as a whole."""
    names = names_apart(cluster, 3)
    with Penstock(cluster.url) as ps:
        for name in names:
            ps.queue(name).enqueue(1)
    result = run_cli(command, url=cluster.url)
    assert result.code == 0
    assert command == "info" or all(name in result.out for name in names)


def test_a_cluster_that_is_down(run_cli: Cli, cluster: Cluster) -> None:
    """The slot that nobody serves is told, and what can't be looked at."""
    with cluster.without(4711):
        found = findings(run_cli, cluster, 1)
    assert of(found, "cluster")[0]["level"] == "broken"
