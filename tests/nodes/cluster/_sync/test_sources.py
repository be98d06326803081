# From tests/nodes/cluster/_async/test_sources.py by tools/unasync.py; do not edit.
"""Sources for a client of a cluster, and its info."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis
from redis.cluster import ClusterNode

from penstock import (
    AccessDenied,
    ConfigurationError,
    NotPermitted,
    Penstock,
    ServerUnreachable,
)
from penstock.core.nodes.cluster import Address
from penstock.embedded import EmbeddedServer
from penstock.wire.keys import SLOT_COUNT
from tests.protocol.pages import acl_rules
from tests.support.cluster import (
    Cluster,
    Member,
    RawCluster,
    names_apart,
    slot_of_queue,
)
from tests.support.proxy import Proxy
from tests.support.twins import spawn, wait_for


@pytest.fixture(params=["as it stands", "without INFO"])
def walled(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[str]:
    """A user with the permissions from protocol/core.md on all servers; returns the address."""
    rules = [*acl_rules("worker"), *BESIDES]
    if request.param == "without INFO":
        rules.remove("+info")
    if _is_old(cluster):
        rules.remove("%R~penstock:nodes")  # as the page says
    for member in cluster.members:
        member.raw.execute_command("ACL", "SETUSER", "worker", *rules)
    yield cluster.url.replace("://", "://worker:secret@")
    for member in cluster.members:
        member.raw.acl_deluser("worker")


def _is_old(cluster: Cluster) -> bool:
    """Tell if it is of Redis 6.2, which has fewer options and counts no subcommands apart."""
    return cluster.members[0].server.binary.version().startswith("6.2")


BESIDES = ("+asking", "+cluster|slots", "+cluster|countkeysinslot")
"""Additional permissions for a cluster (protocol/core.md, Access)."""


def work(ps: Penstock, names: list[str]) -> None:
    """Make some calls in several slots."""
    for name in names:
        ps.queue(name).enqueue(name)
    jobs = ps.reserve(names, len(names), block=5)
    assert sorted(job.body for job in jobs) == sorted(names)
    for job in jobs:
        job.ack()
    assert ps.reserve(names, 1, block=0.05) == []
    assert ps.queues() == sorted(names)


def test_the_address_of_any_server(cluster: Cluster) -> None:
    """The address of any one server is sufficient."""
    names = names_apart(cluster, 4)
    ids = set()
    for member in cluster.members:
        with Penstock(member.url) as ps:
            work(ps, names)
            ids.add(ps.hello().node)
    assert len(ids) == 1


def test_the_rights_that_a_client_needs(cluster: Cluster, walled: str) -> None:
    """The permissions in protocol/core.md are sufficient; a cluster is recognised without INFO."""
    with Penstock(walled, retry_for=20) as ps:
        names = names_apart(cluster, 4)
        work(ps, names)
        slot = slot_of_queue(names[0])
        target = cluster.other(slot)
        source = cluster.begin_move(slot, target)
        working = spawn(work, ps, names)
        wait_for(lambda: cluster.errors("TRYAGAIN") > 3)
        cluster.move_keys(slot, source, target)
        cluster.end_move(slot, target)
        working.result()


def test_clients_of_redis_py(cluster: Cluster) -> None:
    """A redis-py client of a cluster or one of its servers gives its settings and is not used."""
    names = names_apart(cluster, 4)
    with RawCluster(cluster, client_name="lent") as lent, Penstock(lent) as ps:
        work(ps, names)
        clients = [one for member in cluster.members for one in member.raw.client_list()]
        assert sum(one["name"] == "lent" for one in clients) >= 3
    with redis.Redis.from_url(cluster.url) as lent, Penstock(lent) as ps:
        work(ps, names)


def test_start_up_nodes_of_which_one_lives(cluster: Cluster) -> None:
    """Only one of the startup nodes must be running."""
    nodes = [ClusterNode("127.0.0.1", 1), ClusterNode("127.0.0.1", cluster.members[1].port)]
    with redis.RedisCluster(startup_nodes=nodes) as lent, Penstock(lent) as ps:
        work(ps, names_apart(cluster, 4))


def test_addresses_that_are_reached_by_others(cluster: Cluster) -> None:
    """A redis-py client's address remapping, as for servers behind a proxy, is used."""
    proxies = {member.port: Proxy(("127.0.0.1", member.port)) for member in cluster.members}
    try:
        ports = {port: proxy.address[1] for port, proxy in proxies.items()}

        def remap(address: tuple[str, int]) -> tuple[str, int]:
            return address[0], ports.get(address[1], address[1])

        with (
            RawCluster(cluster, address_remap=remap) as lent,
            Penstock(lent) as ps,
        ):
            names = names_apart(cluster, 4)
            work(ps, names)
            slot = slot_of_queue(names[0])
            cluster.move(slot, cluster.other(slot))
            work(ps, names)
            ours = {
                one["addr"]
                for member in cluster.members
                for one in member.raw.client_list()
                if one["cmd"] in ("evalsha", "blpop")
            }
        assert ours
    finally:
        for proxy in proxies.values():
            proxy.close()


def test_clients_that_cannot_be_used(cluster: Cluster) -> None:
    """A client that decodes, or one of the other kind, is refused."""
    with RawCluster(cluster, decode_responses=True) as lent:
        with pytest.raises(ConfigurationError, match="decode_responses"):
            Penstock(lent)


def test_a_unix_socket_of_one_server(cluster: Cluster) -> None:
    """A unix socket is refused, as other servers can't be reached by it."""
    binary = cluster.members[0].server.binary
    args = ("--cluster-enabled", "yes")
    bus = () if _is_old(cluster) else ("--cluster-port", "1")
    with EmbeddedServer(binary, args=(*args, *bus)) as server:
        ps = Penstock(server.url)
        with pytest.raises(ConfigurationError, match="TCP"):
            ps.queue("q").stats()
        ps.close()


def test_a_client_is_used_in_several_event_loops_and_closed(cluster: Cluster) -> None:
    """Closing ends the connections to all servers; the next call opens new ones."""
    names = names_apart(cluster, 4)
    ps = Penstock(cluster.url)
    work(ps, names)
    ps.close()
    wait_for(lambda: _clients(cluster) == 0)
    work(ps, names)
    ps.close()


def _clients(cluster: Cluster) -> int:
    """Count the connections except the test's own."""
    own = (
        "restore",
        "info",
        "client|list",
        "cluster|",
        "ping",
        "config|",
        "flushall",
        "script|flush",
    )
    if _is_old(cluster):
        own = tuple(name.partition("|")[0] for name in own)
    clients = [one for member in cluster.members for one in member.raw.client_list(_type="normal")]
    return sum(not one["cmd"].startswith(own) for one in clients)


def crowded(member: Member) -> None:
    """Tell if it has used most of its memory."""
    used = member.raw.info("memory")["used_memory"]
    member.raw.config_set("maxmemory", int(used * 1.2))


def test_info_of_a_cluster(cluster: Cluster) -> None:
    """Info has sums over the primaries; one crowded primary makes the cluster crowded."""
    with Penstock(cluster.url) as ps:
        for name in names_apart(cluster, 6):
            ps.queue(name).enqueue(name)
        info = ps.info()
        assert (info.registered_queues, info.registered_jobs) == (6, 6)
        used = [member.raw.info("memory")["used_memory"] for member in cluster.members]
        assert info.used_memory is not None
        assert max(used) < info.used_memory
        assert ps.hello().nodes[0].priority == 1
        crowded(cluster.members[2])
        try:
            assert ps.hello().nodes[0].priority == 10
            assert ps.info().max_memory == 0  # two of them have no limit
        finally:
            cluster.members[2].raw.config_set("maxmemory", 0)


def test_errors_that_a_person_meets(cluster: Cluster) -> None:
    """Errors of a cluster's servers have the same texts as those of a single server."""
    text = "no node of the cluster has answered where the slots are: 127.0.0.1:1 can't be reached"
    with Penstock(cluster.url, retry_for=0.1) as ps:
        connections = ps.topology.executor.connections
        connections.close()
        connections._servers.clear()
        connections._owners = [None] * SLOT_COUNT
        connections._places = [Address("127.0.0.1", 1)]
        with pytest.raises(ServerUnreachable, match=text):
            ps.queue("q").enqueue("x")
    for member in cluster.members:
        rules = ("on", ">secret", "~*", "+@all", "-evalsha")
        member.raw.execute_command("ACL", "SETUSER", "eve", *rules)
    try:
        for password, kind, told in (
            ("wrong", AccessDenied, "refuses the user name or the password"),
            ("secret", NotPermitted, "may not run the command 'evalsha'"),
        ):
            url = cluster.url.replace("://", f"://eve:{password}@")
            with pytest.raises(kind, match=f"127.0.0.1:[0-9]+.*{told}"):
                with Penstock(url, retry_for=0.1) as ps:
                    ps.queue("q").enqueue("x")
    finally:
        for member in cluster.members:
            member.raw.acl_deluser("eve")
