"""The command line with a cluster, partitioned queues, and several nodes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest
from starlette.testclient import TestClient

from penstock import Penstock
from penstock.web import app
from penstock.wire.keys import QueueKeys, end_of, key_slot, partition_name
from tests.cli.conftest import run_cli
from tests.cli.support import Cli, poisoned
from tests.nodes.federation import Servers
from tests.support.cluster import Cluster, RawCluster, names_apart, slot_of_queue

__all__ = ["run_cli"]


def findings(run_cli: Cli, url: str, code: int = 0, *options: str) -> list[dict[str, Any]]:
    """Return the doctor's findings, and check its exit code."""
    result = run_cli("--json", "doctor", *options, url=url)
    assert result.code == code, result
    found: list[dict[str, Any]] = result.document["findings"]
    return found


def of(found: list[dict[str, Any]], check: str) -> list[dict[str, Any]]:
    """Return the findings of one check."""
    return [one for one in found if one["check"] == check]


def test_a_sound_cluster(run_cli: Cli, cluster: Cluster) -> None:
    """The doctor checks every primary, and every queue in its slot."""
    names = names_apart(cluster, 6)
    with Penstock(cluster.url) as ps:
        for name in names:
            ps.queue(name).enqueue_many(range(10))
            ps.queue(name).reserve(3, block=0)
    found = findings(run_cli, cluster.url)
    places = {f"127.0.0.1:{member.port}" for member in cluster.members}
    assert {one["data"]["server"] for one in of(found, "version")} == places
    first, patience = of(found, "cluster")
    assert first["level"] == "ok"
    assert "3 primaries serve 16384 of 16384 slots" in first["text"]
    assert patience["data"] == {"cluster_node_timeout": 15.0}
    (queues,) = of(found, "queues")
    assert (queues["data"]["queues"], queues["data"]["complete"]) == (6, True)


def test_a_migrating_slot(run_cli: Cli, cluster: Cluster) -> None:
    """A migrating slot is named, as its move may have been interrupted."""
    slot = 4711
    cluster.begin_move(slot, cluster.other(slot))
    try:
        found = findings(run_cli, cluster.url)
    finally:
        cluster.stop_move(slot)
    (warning,) = [one for one in of(found, "cluster") if one["level"] == "warning"]
    assert warning["data"]["slots"] == [str(slot)]


def test_damage_on_one_of_the_servers(run_cli: Cli, cluster: Cluster) -> None:
    """Damage on one of the servers is found."""
    names = names_apart(cluster, 3)
    with Penstock(cluster.url) as ps:
        for name in names:
            ps.queue(name).enqueue(1)
            ps.queue(name).reserve(block=0)
    keys = QueueKeys(names[2])
    cluster.owner(slot_of_queue(names[2])).raw.delete(keys["active"])
    (broken, *_) = [one for one in findings(run_cli, cluster.url, 1) if one["level"] == "broken"]
    assert broken["data"]["queue"] == names[2]


@pytest.mark.parametrize("command", ["info", "queues"])
def test_other_commands(run_cli: Cli, cluster: Cluster, command: str) -> None:
    """Other commands work for the whole cluster."""
    names = names_apart(cluster, 3)
    with Penstock(cluster.url) as ps:
        for name in names:
            ps.queue(name).enqueue(1)
    result = run_cli(command, url=cluster.url)
    assert result.code == 0
    assert command == "info" or all(name in result.out for name in names)


def test_every_primary_is_listed(run_cli: Cli, cluster: Cluster) -> None:
    """`nodes` and the page show the memory of each."""
    addresses = {f"127.0.0.1:{one.server.port}" for one in cluster.primaries}
    result = run_cli("nodes", "--json", url=cluster.url)
    [node] = result.document["nodes"]
    assert {one["address"] for one in node["primaries"]} == addresses
    assert all(one["used_memory"] and not one["error"] for one in node["primaries"])
    assert sum(address in run_cli("nodes", url=cluster.url).out for address in addresses) == 3
    with TestClient(app(cluster.url), "http://localhost", client=("127.0.0.1", 1)) as page:
        text = page.get("/nodes").text
    assert "cluster of 3 primaries" in text
    assert all(address in text for address in addresses)
    assert "unreachable" not in text


def test_a_cluster_that_is_down(run_cli: Cli, cluster: Cluster) -> None:
    """The slot without a server and unreachable queues are named."""
    with cluster.without(4711):
        found = findings(run_cli, cluster.url, 1)
    assert of(found, "cluster")[0]["level"] == "broken"


# -- repair --------------------------------------------------------------------------------


def repaired(run_cli: Cli, url: str, names: Sequence[str], *where: str) -> None:
    """Check that the times of these queues are found, repaired, and not found again."""
    texts = [one["text"] for one in findings(run_cli, url, 1) if one["level"] == "broken"]
    ahead = [text for text in texts if "times are too far ahead" in text]
    assert len(ahead) == len(names)
    assert all(any(name in text for text in ahead) for name in names)
    assert all(any(text.startswith(place) for text in ahead) for place in where)
    done = of(findings(run_cli, url, 0, "--repair"), "repair")
    assert [one["data"]["times"] for one in done] == [2] * len(names)
    assert {one["level"] for one in findings(run_cli, url)} <= {"ok", "warning"}


def leases_are_near(raw: Any, keys: QueueKeys) -> None:
    """Tell if both leases end within half a minute."""
    ends = [end_of(int(score)) for _, score in raw.zrange(keys["active"], 0, -1, withscores=True)]
    assert len(ends) == 2
    assert all(0 < end - time.time() * 1000 <= 30_000 for end in ends)


def test_a_repair_reaches_every_slot(run_cli: Cli, cluster: Cluster) -> None:
    """Queues and partitions on all primaries are repaired."""
    partitions = [partition_name("parted", number) for number in range(3)]
    with Penstock(cluster.url) as ps:
        ps.queue("parted", partitions=4).enqueue("x", key="a")
    with RawCluster(cluster) as raw:
        names = [*names_apart(cluster, 3), *partitions]
        every = [poisoned(raw, name) for name in names]
        owners = {cluster.owner(key_slot(keys["meta"])).port for keys in every}
        assert len(owners) == 3
        shown = [*names[:3], *(f"parted (partition {number})" for number in range(3))]
        repaired(run_cli, cluster.url, [repr(name) for name in shown])
        for keys in every:
            leases_are_near(raw, keys)


def test_a_repair_with_a_migrating_slot(run_cli: Cli, cluster: Cluster) -> None:
    """A queue in a migrating slot is named with exit code 1; the others are repaired."""
    names = names_apart(cluster, 3)
    with RawCluster(cluster) as raw:
        every = [poisoned(raw, name) for name in names]
        slot = slot_of_queue(names[0])
        cluster.begin_move(slot, cluster.other(slot))
        try:
            found = findings(run_cli, cluster.url, 1, "--repair")
        finally:
            cluster.stop_move(slot)
        (broken,) = [one for one in of(found, "queues") if "repaired" in one["text"]]
        assert (broken["level"], broken["data"]["queue"]) == ("broken", names[0])
        assert {one["data"]["queue"] for one in of(found, "repair")} == set(names[1:])
        findings(run_cli, cluster.url, 0, "--repair")
        for keys in every:
            leases_are_near(raw, keys)


def test_a_repair_reaches_every_node(run_cli: Cli) -> None:
    """With one node of a federation given, the listed ones are repaired too."""
    with Servers(3) as servers, servers.client() as ps:
        for url in servers.urls:
            ps.nodes.add(url)
        ps.queue("parted", partitions=2).enqueue("x", key="a")
        names = ["q", partition_name("parted", 1)]
        every = [(raw, poisoned(raw, name)) for raw in map(servers.raw, range(3)) for name in names]
        places = [f"127.0.0.1:{server.port}" for server in servers.all]
        found = findings(run_cli, servers.urls[0], 1)
        (nodes,) = of(found, "nodes")
        assert (nodes["level"], sorted(nodes["data"]["nodes"])) == ("ok", sorted(places))
        assert {one["data"]["node"] for one in of(found, "version")} == set(places)
        assert all(one["level"] == "ok" for one in of(found, "keys"))
        repaired(run_cli, " ".join(servers.urls), ["'q'", "'parted (partition 1)'"] * 3, *places)
        for raw, keys in every:
            leases_are_near(raw, keys)


def test_a_node_that_is_down(run_cli: Cli) -> None:
    """A node that is down is named with advice; others are checked; a repair is incomplete."""
    with Servers(3) as servers, servers.client() as ps:
        for url in servers.urls:
            ps.nodes.add(url)
        every = [(raw, poisoned(raw)) for raw in map(servers.raw, range(2))]
        servers.all[2].kill()
        gone = f"127.0.0.1:{servers.all[2].port}"
        for url in (servers.urls[0], " ".join(servers.urls)):
            warning, nodes = of(findings(run_cli, url, 1), "nodes")
            assert (warning["level"], nodes["data"]["missed"]) == ("warning", [gone])
            assert gone in warning["text"]
            assert "repeat the command" in warning["text"]
        missed, _ = of(findings(run_cli, servers.urls[0], 1, "--repair"), "nodes")
        assert missed["level"] == "broken"
        for raw, keys in every:
            leases_are_near(raw, keys)
        servers.all[2].restart()
        found = findings(run_cli, servers.urls[0], 0, "--repair")
        assert [one["level"] for one in of(found, "nodes")] == ["ok"]


def test_no_node_is_there(run_cli: Cli) -> None:
    """Without any node: exit code 1 and one line, as for a single server."""
    with Servers(2) as servers:
        urls = " ".join(servers.urls)
    result = run_cli("doctor", url=urls)
    assert (result.code, result.out, result.err.count("\n")) == (1, "", 1)
    assert "can't be reached" in result.err
