"""Tests of `info`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

from penstock import Penstock
from penstock.embedded import EmbeddedServer
from tests.cli.support import Cli
from tests.support.backends import Backend


def test_info_has_the_fields_of_the_library(cli: Cli, client: Penstock) -> None:
    """The document has the fields of hello() and info(); times may differ between the calls."""
    queue = client.queue("q")
    queue.enqueue_many(range(5))
    queue.enqueue("later", delay=60)
    queue.bury(queue.reserve(2, block=0), "no")
    queue.reserve(1, block=0)
    client.queue("other").enqueue("x")
    document = cli("info", "--json").document
    hello, info = asdict(client.hello()), asdict(client.info())
    assert document.keys() == {"hello", "info"}
    [node] = document["hello"]["nodes"]
    assert node.keys() == hello["nodes"][0].keys()
    assert (node["id"], node["address"]) == (hello["node"], hello["nodes"][0]["address"])
    assert (document["hello"]["version"], document["hello"]["node"]) == (2, hello["node"])
    moving = ("uptime", "connected_clients", "used_memory")
    assert {k: v for k, v in document["info"].items() if k not in moving} == {
        k: v for k, v in info.items() if k not in moving
    }
    assert all(isinstance(document["info"][name], int) for name in moving)
    assert (info["registered_queues"], info["registered_jobs"], info["waiting_jobs"]) == (2, 7, 4)


def test_info_for_people(cli: Cli, client: Penstock) -> None:
    """Each fact has a line: the node, the server and its memory, queues and jobs."""
    client.queue("q").enqueue_many(range(3))
    result = cli("info")
    facts = {row[0].strip(): row[1].strip() for row in result.rows}
    assert (result.code, result.err) == (0, "")
    assert facts["node"] == client.hello().node
    assert facts["server"] == client.info().server
    assert facts["used memory"].endswith("iB")
    assert facts["max memory"] == "no limit"
    assert (facts["registered queues"], facts["registered jobs"]) == ("1", "3")
    assert (facts["protocol"], facts["blocked clients"]) == ("2", "0")


def test_info_of_an_empty_server_leaves_nothing(cli: Cli, real_backend: Backend) -> None:
    """Reading creates no queue; only the node's id is stored."""
    assert cli("info", "--json").document["info"]["registered_jobs"] == 0
    assert real_backend.sync_client().keys() == [b"penstock:node"]


def test_info_names_a_limit(run_cli: Cli, make_server: Callable[..., EmbeddedServer]) -> None:
    """The server's memory limit and its enabled features are shown."""
    server = make_server(tcp=True, appendonly=True, args=("--maxmemory", "64mb"))
    facts = {row[0].strip(): row[1].strip() for row in run_cli("info", url=server.url).rows}
    assert facts["max memory"] == "64.00 MiB"
    assert facts["aof enabled"] == "yes"
    assert facts["maxmemory policy"] == "noeviction"


def test_info_without_permission(run_cli: Cli, make_server: Callable[..., EmbeddedServer]) -> None:
    """Without permission for INFO the server's figures are left out, ours are shown."""
    server = make_server(tcp=True)
    with Penstock(server.url) as client:
        client.queue("q").enqueue("x")
        client.topology.executor.command(
            "ACL", "SETUSER", "shy", "on", ">pw", "~*", "&*", "+@all", "-info"
        )
    url = f"redis://shy:pw@127.0.0.1:{server.port}/0"
    result = run_cli("info", url=url)
    facts = {row[0].strip(): row[1].strip() for row in result.rows}
    assert result.code == 0
    assert facts["registered jobs"] == "1"
    assert not facts.keys() & {"used memory", "max memory", "uptime", "aof enabled"}
    document = run_cli("info", "--json", url=url).document
    assert document["info"]["used_memory"] is None
