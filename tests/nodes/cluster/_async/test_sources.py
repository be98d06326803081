"""Sources for a client of a cluster, and its info."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis.asyncio
from redis.asyncio.cluster import ClusterNode

from penstock import (
    AccessDenied,
    AsyncPenstock,
    BadArgument,
    ConfigurationError,
    NotPermitted,
    ServerUnreachable,
)
from penstock.core.nodes.cluster import Address
from penstock.embedded import EmbeddedServer
from penstock.wire.keys import SLOT_COUNT
from tests.protocol.pages import acl_rules
from tests.support.cluster import (
    AsyncRawCluster,
    Cluster,
    Member,
    RawCluster,
    names_apart,
    slot_of_queue,
)
from tests.support.proxy import Proxy
from tests.support.twins import aspawn, await_for


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


async def work(ps: AsyncPenstock, names: list[str]) -> None:
    """Make some calls in several slots."""
    for name in names:
        await ps.queue(name).enqueue(name)
    jobs = await ps.reserve(names, len(names), block=5)
    assert sorted(job.body for job in jobs) == sorted(names)
    for job in jobs:
        await job.ack()
    assert await ps.reserve(names, 1, block=0.05) == []
    assert await ps.queues() == sorted(names)


async def test_the_address_of_any_server(cluster: Cluster) -> None:
    """The address of any one server is sufficient."""
    names = names_apart(cluster, 4)
    ids = set()
    for member in cluster.members:
        async with AsyncPenstock(member.url) as ps:
            await work(ps, names)
            ids.add((await ps.hello()).node)
    assert len(ids) == 1


async def test_the_rights_that_a_client_needs(cluster: Cluster, walled: str) -> None:
    """The permissions in protocol/core.md are sufficient; a cluster is recognised without INFO."""
    async with AsyncPenstock(walled, retry_for=20) as ps:
        names = names_apart(cluster, 4)
        await work(ps, names)
        slot = slot_of_queue(names[0])
        target = cluster.other(slot)
        source = cluster.begin_move(slot, target)
        working = aspawn(work, ps, names)
        await await_for(lambda: cluster.errors("TRYAGAIN") > 3)
        cluster.move_keys(slot, source, target)
        cluster.end_move(slot, target)
        await working.result()


async def test_clients_of_redis_py(cluster: Cluster) -> None:
    """A redis-py client of a cluster or one of its servers gives its settings and is not used."""
    names = names_apart(cluster, 4)
    async with AsyncRawCluster(cluster, client_name="lent") as lent, AsyncPenstock(lent) as ps:
        await work(ps, names)
        clients = [one for member in cluster.members for one in member.raw.client_list()]
        assert sum(one["name"] == "lent" for one in clients) >= 3
    async with redis.asyncio.Redis.from_url(cluster.url) as lent, AsyncPenstock(lent) as ps:
        await work(ps, names)


async def test_start_up_nodes_of_which_one_lives(cluster: Cluster) -> None:
    """Only one of the startup nodes must be running."""
    nodes = [ClusterNode("127.0.0.1", 1), ClusterNode("127.0.0.1", cluster.members[1].port)]
    async with redis.asyncio.RedisCluster(startup_nodes=nodes) as lent, AsyncPenstock(lent) as ps:
        await work(ps, names_apart(cluster, 4))


async def test_addresses_that_are_reached_by_others(cluster: Cluster) -> None:
    """A redis-py client's address remapping, as for servers behind a proxy, is used."""
    proxies = {member.port: Proxy(("127.0.0.1", member.port)) for member in cluster.members}
    try:
        ports = {port: proxy.address[1] for port, proxy in proxies.items()}

        def remap(address: tuple[str, int]) -> tuple[str, int]:
            return address[0], ports.get(address[1], address[1])

        async with (
            AsyncRawCluster(cluster, address_remap=remap) as lent,
            AsyncPenstock(lent) as ps,
        ):
            names = names_apart(cluster, 4)
            await work(ps, names)
            slot = slot_of_queue(names[0])
            cluster.move(slot, cluster.other(slot))
            await work(ps, names)
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


async def test_clients_that_cannot_be_used(cluster: Cluster) -> None:
    """A client that decodes, or one of the other kind, is refused."""
    async with AsyncRawCluster(cluster, decode_responses=True) as lent:
        with pytest.raises(ConfigurationError, match="decode_responses"):
            AsyncPenstock(lent)


# [async only
async def test_a_client_that_is_not_asynchronous(cluster: Cluster) -> None:
    """A synchronous client is refused, as for a single server."""
    with RawCluster(cluster) as client, pytest.raises(BadArgument, match="source"):
        AsyncPenstock(client)  # type: ignore[arg-type]


# async only]


async def test_a_unix_socket_of_one_server(cluster: Cluster) -> None:
    """A unix socket is refused, as other servers can't be reached by it."""
    binary = cluster.members[0].server.binary
    args = ("--cluster-enabled", "yes")
    bus = () if _is_old(cluster) else ("--cluster-port", "1")
    with EmbeddedServer(binary, args=(*args, *bus)) as server:
        ps = AsyncPenstock(server.url)
        with pytest.raises(ConfigurationError, match="TCP"):
            await ps.queue("q").stats()
        await ps.close()


async def test_a_client_is_used_in_several_event_loops_and_closed(cluster: Cluster) -> None:
    """Closing ends the connections to all servers; the next call opens new ones."""
    names = names_apart(cluster, 4)
    ps = AsyncPenstock(cluster.url)
    await work(ps, names)
    await ps.close()
    await await_for(lambda: _clients(cluster) == 0)
    await work(ps, names)
    await ps.close()


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


async def test_info_of_a_cluster(cluster: Cluster) -> None:
    """Info has sums over the primaries; one crowded primary makes the cluster crowded."""
    async with AsyncPenstock(cluster.url) as ps:
        for name in names_apart(cluster, 6):
            await ps.queue(name).enqueue(name)
        info = await ps.info()
        assert (info.registered_queues, info.registered_jobs) == (6, 6)
        used = [member.raw.info("memory")["used_memory"] for member in cluster.members]
        assert info.used_memory is not None
        assert max(used) < info.used_memory
        assert (await ps.hello()).nodes[0].priority == 1
        crowded(cluster.members[2])
        try:
            assert (await ps.hello()).nodes[0].priority == 10
            assert (await ps.info()).max_memory == 0  # two of them have no limit
        finally:
            cluster.members[2].raw.config_set("maxmemory", 0)


async def test_errors_that_a_person_meets(cluster: Cluster) -> None:
    """Errors of a cluster's servers have the same texts as those of a single server."""
    text = "no node of the cluster has answered where the slots are: 127.0.0.1:1 can't be reached"
    async with AsyncPenstock(cluster.url, retry_for=0.1) as ps:
        connections = ps.topology.executor.connections
        await connections.close()
        connections._servers.clear()
        connections._owners = [None] * SLOT_COUNT
        connections._places = [Address("127.0.0.1", 1)]
        with pytest.raises(ServerUnreachable, match=text):
            await ps.queue("q").enqueue("x")
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
                async with AsyncPenstock(url, retry_for=0.1) as ps:
                    await ps.queue("q").enqueue("x")
    finally:
        for member in cluster.members:
            member.raw.acl_deluser("eve")
