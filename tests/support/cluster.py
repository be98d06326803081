"""A Redis Cluster of real servers on loopback, for tests to break.

with Cluster(3, replicas=1) as cluster, Penstock(cluster.url) as ps:
    cluster.move(slot, to=cluster.primaries[1])
    cluster.owner(slot).kill()
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any

import redis
import redis.asyncio
from redis.asyncio.cluster import ClusterNode as AsyncClusterNode
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode
from redis.retry import Retry

from penstock.embedded import EmbeddedServer, EmbeddedServerError, ServerBinary
from penstock.wire.keys import SLOT_COUNT, QueueKeys, key_slot
from tests.support.binaries import first_binary
from tests.support.twins import wait_for

__all__ = ["AsyncRawCluster", "Cluster", "Member", "RawCluster", "names_apart", "slot_of_queue"]

STARTUP = 30.0


def slot_of_queue(name: str) -> int:
    """Return the slot of a queue."""
    return key_slot(QueueKeys(name)["meta"])


def names_apart(cluster: Cluster, count: int, stem: str = "queue") -> list[str]:
    """Return names of queues on different primaries, as far as there are enough."""
    found: dict[int, list[str]] = {}
    for number in range(1000):
        name = f"{stem} {number}"
        found.setdefault(cluster.owner(slot_of_queue(name)).port, []).append(name)
    columns = [found[port] for port in sorted(found)]
    return [columns[i % len(columns)][i // len(columns)] for i in range(count)]


class Member:
    """One server of a cluster.

    Args:
        server: the process.
    """

    def __init__(self, server: EmbeddedServer) -> None:
        self.server = server
        assert server.port is not None
        self.port = server.port
        self.url = f"redis://127.0.0.1:{server.port}"
        self.raw: Any = redis.Redis(
            host="127.0.0.1", port=server.port, protocol=2, retry=Retry(NoBackoff(), 0)
        )
        self.id = self.cluster("MYID").decode()

    def __repr__(self) -> str:
        return f"<Member {self.port}>"

    def cluster(self, *args: Any) -> Any:
        """Return the reply to a CLUSTER command."""
        return self.raw.execute_command("CLUSTER", *args, NEVER_DECODE=True)

    def info(self) -> dict[str, str]:
        """Return the fields of CLUSTER INFO."""
        lines = self.cluster("INFO").decode().split()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    @property
    def is_primary(self) -> bool:
        """Tell if it believes to be a primary."""
        return bool(self.raw.info("replication")["role"] == "master")

    def owners(self) -> list[int]:
        """Return the port that serves each slot, according to this server; 0 for none."""
        found = [0] * SLOT_COUNT
        for first, last, owner, *_ in self.cluster("SLOTS"):
            found[first : last + 1] = [owner[1]] * (last + 1 - first)
        return found

    def errors(self, kind: str) -> int:
        """Count its replies of this kind: MOVED, ASK, TRYAGAIN, CLUSTERDOWN, NOSCRIPT."""
        told = self.raw.info("errorstats").get(f"errorstat_{kind}", {})
        return int(told.get("count", 0))

    def calls(self, command: str) -> int:
        """Count its commands of this name, including those of scripts.

        Redis 6.2 counts all subcommands together.
        """
        told = self.raw.info("commandstats")
        all_together = told.get(f"cmdstat_{command.partition('|')[0]}", {})
        return int(told.get(f"cmdstat_{command}", all_together).get("calls", 0))

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self.server.kill()

    def close(self) -> None:
        """Close our connection to it."""
        self.raw.close()


class Cluster:
    """Primaries with equal shares of the slots, each with replicas.

    Args:
        primaries: how many.
        replicas: of each.
        node_timeout: milliseconds after which a silent member counts as dead.
        binary: the server; the first one that is found unless given.
        args: further options of every server.
    """

    def __init__(
        self,
        primaries: int = 3,
        *,
        replicas: int = 0,
        node_timeout: int = 1000,
        binary: ServerBinary | None = None,
        args: Sequence[str] = (),
    ) -> None:
        self._stack = ExitStack()
        self._binary = binary or first_binary()
        self._args = (
            *("--cluster-enabled", "yes"),
            *("--cluster-node-timeout", str(node_timeout)),
            *("--cluster-replica-validity-factor", "0"),
            *("--repl-diskless-sync-delay", "0"),
            *args,
        )
        self.members: list[Member] = []
        self._node_timeout = node_timeout / 1000
        self._calm_at = 0.0
        try:
            self._build(primaries, replicas)
        except BaseException:
            self.close()
            raise

    def _build(self, primaries: int, replicas: int) -> None:
        for number in range(primaries * (1 + replicas)):
            member = self.add()
            member.cluster("SET-CONFIG-EPOCH", number + 1)
        first, count = self.members[0], len(self.members)
        for number, member in enumerate(self.members[:primaries]):
            low, high = number * SLOT_COUNT // primaries, (number + 1) * SLOT_COUNT // primaries
            member.cluster("ADDSLOTS", *range(low, high))
        for member in self.members[1:]:
            first.cluster("MEET", "127.0.0.1", member.port)
        wait_for(lambda: all(len(_known(one)) == count for one in self.members), STARTUP)
        for number, member in enumerate(self.members[primaries:]):
            member.cluster("REPLICATE", self.members[number % primaries].id)
        wait_for(lambda: all(_is_ready(one) for one in self.members), STARTUP)
        ports = first.owners()
        wait_for(lambda: all(one.owners() == ports for one in self.members), STARTUP)

    def add(self) -> Member:
        """Start one more server, outside of the cluster."""
        member = Member(self._start())
        self._stack.callback(member.close)
        self.members.append(member)
        return member

    def _start(self) -> EmbeddedServer:
        """Start a server whose second port, 10,000 above the first, is valid and free."""
        try:
            server = EmbeddedServer(self._binary, tcp=True, args=self._args)
        except EmbeddedServerError as error:
            if "port" not in str(error).lower():
                raise
            return self._start()
        return self._stack.enter_context(server)

    # -- queries ---------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """The address of one of them."""
        return self.alive[0].url

    @property
    def alive(self) -> list[Member]:
        """Return the running members."""
        return [member for member in self.members if member.server.is_running]

    @property
    def primaries(self) -> list[Member]:
        """Return those with slots, according to the first living one."""
        ports = set(self.alive[0].owners())
        return [member for member in self.members if member.port in ports]

    def owner(self, slot: int) -> Member:
        """Return the one that serves a slot, according to the first living one."""
        port = self.alive[0].owners()[slot]
        return self._at(port)

    def other(self, slot: int) -> Member:
        """Return a primary that does not serve a slot."""
        owner = self.owner(slot)
        return next(member for member in self.primaries if member is not owner)

    def errors(self, kind: str) -> int:
        """Count the replies of this kind from all members."""
        return sum(member.errors(kind) for member in self.alive)

    def calls(self, command: str) -> int:
        """Count the commands of this name on all members."""
        return sum(member.calls(command) for member in self.alive)

    def _at(self, port: int) -> Member:
        return next(member for member in self.members if member.port == port)

    def replica_of(self, primary: Member) -> Member:
        """Return one of its replicas, when that is up to date."""
        found: list[Member] = []

        def look() -> bool:
            for member in self.alive:
                told = member.raw.info("replication")
                if told["role"] == "slave" and told["master_port"] == primary.port:
                    found[:] = [member]
                    return bool(told["master_link_status"] == "up")
            return False

        wait_for(look, STARTUP)
        return found[0]

    # -- changes ---------------------------------------------------------------------------

    def begin_move(self, slot: int, target: Member) -> Member:
        """Start migrating a slot, and return its server. No keys have moved yet."""
        source = self.owner(slot)
        target.cluster("SETSLOT", slot, "IMPORTING", source.id)
        source.cluster("SETSLOT", slot, "MIGRATING", target.id)
        return source

    def move_keys(
        self, slot: int, source: Member, target: Member, *, most: int | None = None
    ) -> int:
        """Move keys of a migrating slot, and return their number."""
        moved = 0
        while most is None or moved < most:
            keys = source.cluster("GETKEYSINSLOT", slot, 1)
            if not keys:
                break
            source.raw.execute_command(
                "MIGRATE", "127.0.0.1", target.port, keys[0], 0, 10_000, "REPLACE"
            )
            moved += 1
        return moved

    def end_move(self, slot: int, target: Member) -> None:
        """Give a slot to the server with its keys; all members know it when this returns.

        That server takes the next epoch that it knows of. If it had missed the last move it would
        lose to it, and then two servers would name each other forever.
        """
        wait_for(lambda: _epochs_agree(self.alive), STARTUP)
        others = [one for one in self.primaries if one is not target]
        for member in [target, *others]:
            member.cluster("SETSLOT", slot, "NODE", target.id)
        wait_for(lambda: all(one.owners()[slot] == target.port for one in self.primaries))

    def stop_move(self, slot: int) -> None:
        """Cancel a migration of which no key has moved."""
        for member in self.primaries:
            member.cluster("SETSLOT", slot, "STABLE")

    def move(self, slot: int, target: Member) -> None:
        """Move a whole slot."""
        source = self.begin_move(slot, target)
        while self.move_keys(slot, source, target):
            pass
        self.end_move(slot, target)

    @contextmanager
    def without(self, slot: int) -> Iterator[None]:
        """Leave a slot without an owner in the block, which brings all servers down."""
        owner = self.owner(slot)
        for member in self.members:
            member.cluster("DELSLOTS", slot)
        try:
            wait_for(lambda: all(one.info()["cluster_state"] == "fail" for one in self.members))
            yield
        finally:
            owner.cluster("ADDSLOTS", slot)
            self.settle()

    def fail_over(self, primary: Member) -> Member:
        """Let a replica take over in agreement with its primary, and return it.

        Wait two timeouts since the last one: its remaining votes could promote a replica for a
        moment, which then loses its writes.
        """
        wait_for(lambda: time.monotonic() > self._calm_at, STARTUP)
        wait_for(lambda: _epochs_agree(self.alive), STARTUP)
        replica = self.replica_of(primary)
        replica.cluster("FAILOVER")
        self.wait_taken_over(primary)
        self._calm_at = time.monotonic() + 3 * self._node_timeout
        return replica

    def wait_taken_over(self, primary: Member) -> None:
        """Wait until all living members see the slots of one elsewhere, and work."""
        others = [one for one in self.alive if one is not primary]
        wait_for(lambda: all(primary.port not in one.owners() for one in others), STARTUP)
        wait_for(lambda: all(one.info()["cluster_state"] == "ok" for one in others), STARTUP)

    def bring_back(self, member: Member) -> None:
        """Start a killed server again, and wait until it copies the new primary."""
        member.server.restart()
        wait_for(lambda: not member.is_primary, STARTUP)
        wait_for(lambda: _is_ready(member), STARTUP)

    def settle(self) -> None:
        """Wait until all living members agree, and every slot is served."""
        wait_for(lambda: all(one.info()["cluster_state"] == "ok" for one in self.alive), STARTUP)
        wait_for(self._agree, STARTUP)

    def _agree(self) -> bool:
        ports = self.alive[0].owners()
        return 0 not in ports and all(one.owners() == ports for one in self.alive)

    def empty(self) -> None:
        """Remove all keys and scripts."""
        for member in self.primaries:
            member.raw.flushall()
            member.raw.script_flush()

    def close(self) -> None:
        """End all servers."""
        self._stack.close()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _known(member: Member) -> list[str]:
    """Return the members that one knows and is connected with."""
    lines = member.cluster("NODES").decode().splitlines()
    return [line for line in lines if "handshake" not in line and " connected" in line]


def _epochs_agree(members: Sequence[Member]) -> bool:
    """Tell if all know the same epoch of each."""
    told = [
        {words[0]: words[6] for words in map(str.split, one.cluster("NODES").decode().splitlines())}
        for one in members
    ]
    return all(one == told[0] for one in told)


def _is_ready(member: Member) -> bool:
    told = member.raw.info("replication")
    linked = told["role"] == "master" or told["master_link_status"] == "up"
    return linked and member.info()["cluster_state"] == "ok"


_Client: Any = redis.RedisCluster  # some of its methods have signatures that can't be overridden
_Node: Any = ClusterNode


class RawCluster(_Client):  # type: ignore[misc]  # redis-py is untyped
    """redis-py's client, with the combined answers of all primaries.

    Args:
        cluster: the cluster.
        options: of the client.
    """

    def __init__(self, cluster: Cluster, **options: Any) -> None:
        nodes = [_Node("127.0.0.1", member.port) for member in cluster.alive]
        super().__init__(startup_nodes=nodes, protocol=2, **options)

    def info(self, section: str | None = None) -> Any:
        """Return the sums over all primaries."""
        args = () if section is None else (section,)
        told = super().info(*args, target_nodes=_Client.PRIMARIES)
        return _merged(list(told.values()))

    def dbsize(self) -> int:
        """Return the number of keys."""
        return len(self.keys())

    def keys(self, pattern: str = "*") -> list[bytes]:
        """Return the keys of all primaries."""
        return list(self.scan_iter(pattern))


def _merged(told: list[Any]) -> Any:
    first = told[0]
    if isinstance(first, dict):
        names = {name: None for one in told for name in one}
        return {name: _merged([one[name] for one in told if name in one]) for name in names}
    return sum(told) if isinstance(first, (int, float)) else first


class AsyncRawCluster(redis.asyncio.RedisCluster):
    """redis-py's asyncio client of a cluster.

    Args:
        cluster: the cluster.
        options: of the client.
    """

    def __init__(self, cluster: Cluster, **options: Any) -> None:
        nodes = [AsyncClusterNode("127.0.0.1", member.port) for member in cluster.alive]
        super().__init__(startup_nodes=nodes, protocol=2, **options)
