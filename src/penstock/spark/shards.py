"""The shards of a queue: the queue itself, or one of its partitions, on each node.

Each node has its own client, and each shard belongs to one node. So a call never chooses a node:
rows and batches do that by their ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from penstock import Penstock
from penstock.client._sync.queue import Queue
from penstock.client._sync.transport.failures import passing
from penstock.core.calls import Call
from penstock.core.logs import get_logger
from penstock.core.node_list import others
from penstock.core.views import QueueStats
from penstock.errors import QueueMissing
from penstock.spark.connect import current, reaching
from penstock.spark.errors import Unreachable, WrongServer
from penstock.spark.options import Connection

__all__ = [
    "OpenShard",
    "OpenShards",
    "ShardAddress",
    "open_in_task",
    "open_listed",
    "open_on_driver",
    "open_shards",
]

logger = get_logger("penstock")
R = TypeVar("R")


@dataclass(frozen=True)
class ShardAddress:
    """The address of a shard, for a task.

    Attributes:
        url: the node's, perhaps with a password; '' = that of the options.
        node: its id, 8 hex digits; '' = not known.
        number: of the partition; None = the queue has none.
        partitions: their number; None = the queue has none.
    """

    url: str = field(default="", repr=False)
    node: str = ""
    number: int | None = None
    partitions: int | None = None


class OpenShard:
    """A shard that this process has reached."""

    def __init__(self, made: Penstock, name: str, address: ShardAddress = ShardAddress()) -> None:
        made.connect()
        self.name = name
        self.queue = Queue(made.backend.member, name, address.number)
        self.ops = self.queue.ops
        self.ops.partitions = address.partitions
        self.node = made.backend.node.id
        self.address = replace(address, node=self.node)

    @property
    def key(self) -> str:
        """Its name in offsets."""
        return self.node if self.address.number is None else f"{self.node}/{self.address.number}"

    def run(self, call: Call[R]) -> R:
        """Run a script and return its result."""
        return self.queue.backend.node.run(call)

    def command(self, *args: Any) -> Any:
        """Run a plain command and return its reply."""
        return self.queue.backend.node.command(*args)

    def stats(self) -> QueueStats:
        """Return the queue's figures."""
        return self.run(self.ops.stats())

    def exists(self) -> bool:
        """Return whether the queue exists: one in partitions exists before its first job."""
        return self.address.partitions is not None or bool(self.stats().exists)

    def missing(self) -> QueueMissing:
        """Return the error for a queue that must exist."""
        return QueueMissing(f"option 'requireQueue': queue {self.name!r} does not exist")


class OpenShards(list[OpenShard]):
    """The shards of a queue that can be reached.

    Attributes:
        clients: a client of each node that was reached, with the options that lead to it.
        unreached: the number of nodes that can't be reached.
        partitions: the largest number of partitions on a node; 1 if the queue has none.
    """

    unreached = 0
    partitions = 1

    def __init__(self, shards: Iterable[OpenShard] = ()) -> None:
        super().__init__(shards)
        self.clients: list[tuple[Connection, Penstock]] = []

    def of(self, name: str) -> OpenShards:
        """Return the shards of a queue on the same nodes.

        The number of partitions is read each time, as a queue may be created or re-created at any
        time. For a node that does not have the queue, the number of another node counts.
        """
        found, stored = OpenShards(), list[int | None]()
        found.unreached = self.unreached
        for options, made in self.clients:
            try:
                with reaching(options):
                    stored.append(made.backend.member.partitions(name))
                found.clients.append((options, made))
            except Unreachable as error:  # noqa: PERF203  # once a node
                found.leave_out(error, self.unreached + len(self.clients))
        usual = next((count for count in stored if count is not None), None)
        for (options, made), own in zip(found.clients, stored, strict=True):
            count = (usual if own is None else own) or None
            found.partitions = max(found.partitions, count or 1)
            url = options.nodes[0] if options.nodes else ""
            for number in [None] if count is None else range(count):
                found.append(OpenShard(made, name, ShardAddress(url, "", number, count)))
        return found

    def leave_out(self, error: Unreachable, nodes: int) -> None:
        """Count a node that can't be reached; raise the error if no node is left."""
        self.unreached += 1
        if self.unreached >= nodes or not passing(error.__cause__ or error):
            raise error
        logger.warning("a node can't be reached: %s", error)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Ids of the nodes."""
        return tuple(sorted({shard.node for shard in self}))

    def find(self, node: str, number: int = 0) -> Queue | None:
        """Return the shard of a partition on a node; None = it can't be reached."""
        wanted = (node, number)
        found = (one.queue for one in self if (one.node, one.address.number or 0) == wanted)
        return next(found, None)

    def check(self, options: Connection, *, whole: bool) -> None:
        """Check that the queue exists, if it has to, and that every node was reached.

        Args:
            options: of the connection.
            whole: whether every node is needed, as the node of a row depends on the list of nodes.
        """
        if options.require_queue and not any(shard.exists() for shard in self):
            raise self[0].missing()
        if whole and self.unreached:
            raise Unreachable(
                f"queue {self[0].name!r}: {self.unreached} of {len(options.nodes)} nodes can't be "
                f"reached. Rows that an earlier attempt has put there would be added again "
                f"(skipUnreachable=true writes to the others)"
            )


def open_shards(options: Connection) -> OpenShards:
    """Open all shards of a queue: each partition on each node that can be reached."""
    found = OpenShards()
    for url in options.nodes or ("",):
        own = _single(options, url)
        try:
            found.clients.append((own, current(own)))
        except Unreachable as error:
            found.leave_out(error, len(options.nodes))
    return found.of(options.queue)


def _single(options: Connection, url: str) -> Connection:
    """Return the options of one of several nodes."""
    return replace(options, nodes=(url,)) if url else options


def open_listed(options: Connection, addresses: Iterable[ShardAddress]) -> Iterator[OpenShard]:
    """Open shards in turn, for a task. If another node answers at an address, that is an error."""
    clients: dict[str, Penstock] = {}
    for address in addresses:
        own = _single(options, address.url)
        made = clients.get(address.url)
        if made is None:
            made = clients[address.url] = current(own)
        with reaching(own):
            found = OpenShard(made, options.queue, address)
        _check_nodes(own, (found.node,), (address.node,))
        yield found


def open_on_driver(options: Connection, *, whole: bool = False) -> OpenShards:
    """Return the shards, for the driver. Its tasks compare the ids of the nodes with theirs."""
    found = open_shards(options)
    found.check(options, whole=whole)
    node = found[0].queue.backend.node
    if not options.nodes and (listed := others(node.listed(), node.whole_id())):
        logger.warning(
            "queue %r: option 'url' names one of several nodes, and only this one is read and "
            "written. Name all of them by option 'nodes'; the others are %s",
            options.queue,
            ", ".join(map(repr, listed)),
        )
    return found


def open_in_task(options: Connection, expected: Sequence[str]) -> OpenShards:
    """Return the shards, for a task.

    Args:
        expected: ids of the nodes that the driver reaches; empty = not known.
    """
    found = open_shards(options)
    _check_nodes(options, found.nodes, expected)
    return found


def _check_nodes(options: Connection, found: Sequence[str], expected: Sequence[str]) -> None:
    if expected and not set(found) & set(expected):
        raise WrongServer(
            f"queue {options.queue!r}: the driver's server is node {', '.join(expected)}, and from "
            f"here the same options lead to node {', '.join(found)}; a host name such as localhost "
            f"is not the same machine everywhere"
        )
