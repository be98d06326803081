"""The shards of a source, and calls on them.

A shard is a queue, or one of its partitions, on one node. Each of several nodes has its own client:
a batch belongs to the node that has its jobs, so no call chooses a node.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from penstock import Penstock
from penstock.client._sync.queue import Queue
from penstock.client._sync.transport.failures import passing
from penstock.core.calls import Call
from penstock.core.logs import get_logger
from penstock.core.operations import QueueOps
from penstock.core.views import QueueStats
from penstock.errors import QueueMissing
from penstock.spark.connect import check_nodes, current, reaching
from penstock.spark.errors import Unreachable
from penstock.spark.options import Connection

__all__ = ["ShardAddress", "ShardReader", "ShardReaders", "open_shard", "open_shards"]

logger = get_logger("penstock")
R = TypeVar("R")


@dataclass(frozen=True)
class ShardAddress:
    """The address of a shard, for a task.

    Attributes:
        url: the node's, perhaps with a password; '' = that of the options.
        node: its id, 8 hex digits; '' = not checked.
        number: of the partition; None = the queue has none.
        partitions: their number; None = the queue has none.
    """

    url: str = field(default="", repr=False)
    node: str = ""
    number: int | None = None
    partitions: int | None = None


class ShardReader:
    """One queue on one node, or a partition of it.

    Args:
        made: a client of only this node.
        queue: the queue's name.
        address: its address; the id of the node is filled in.
    """

    def __init__(self, made: Penstock, queue: str, address: ShardAddress = ShardAddress()) -> None:
        made.connect()
        self._node = made.backend.node
        self.node = self._node.id
        self.address = replace(address, node=self.node)
        self.ops: QueueOps = Queue(made.backend.member, queue, address.number).ops
        self.ops.partitions = address.partitions
        self.queue = queue

    @property
    def key(self) -> str:
        """Its name in offsets."""
        return self.node if self.address.number is None else f"{self.node}/{self.address.number}"

    def run(self, call: Call[R]) -> R:
        """Run a script and return its result."""
        return self._node.run(call)

    def command(self, *args: Any) -> Any:
        """Run a plain command and return its reply."""
        return self._node.command(*args)

    def stats(self) -> QueueStats:
        """Return the queue's figures."""
        return self.run(self.ops.stats())

    def exists(self) -> bool:
        """Return whether the queue exists: one in partitions exists before its first job."""
        return self.address.partitions is not None or bool(self.stats().exists)

    def missing(self) -> QueueMissing:
        """Return the error for a queue that must exist."""
        return QueueMissing(f"option 'requireQueue': queue {self.queue!r} does not exist")


def single(options: Connection, url: str) -> Connection:
    """Return the options of one of several nodes."""
    return replace(options, nodes=(), url=url) if url else options


def open_shard(options: Connection, address: ShardAddress) -> ShardReader:
    """Open one shard.

    Args:
        options: of the source.
        address: its address, as the driver has found it.

    Raises:
        WrongServer: another node answers there.
    """
    own = single(options, address.url)
    made = current(own)
    with reaching(own):
        found = ShardReader(made, options.queue, address)
    check_nodes(own, (found.node,), (address.node,) if address.node else ())
    return found


class ShardReaders(list[ShardReader]):
    """All shards that can be reached.

    Attributes:
        unreached: the number of nodes that can't be reached.
    """

    unreached = 0


def open_shards(options: Connection) -> ShardReaders:
    """Open all shards of a source: each partition on each node that can be reached.

    The number of partitions is read each time, as a queue may be created or re-created at any
    time. For a node that does not have the queue, the number of another node counts.

    Raises:
        Unreachable: no node can be reached.
    """
    reached: list[tuple[str, Penstock, int | None]] = []
    failed: list[Unreachable] = []
    for url in options.nodes or ("",):
        own = single(options, url)
        try:
            made = current(own)
            with reaching(own):
                reached.append((url, made, made.backend.member.partitions(options.queue)))
        except Unreachable as error:
            if not options.nodes or not passing(error.__cause__ or error):
                raise
            logger.warning("queue %r: a node can't be reached: %s", options.queue, error)
            failed.append(error)
    if not reached:
        raise failed[-1]
    found = ShardReaders()
    found.unreached = len(failed)
    usual = next((count for _, _, count in reached if count is not None), None)
    for url, made, stored in reached:
        count = (usual if stored is None else stored) or None
        for number in [None] if count is None else range(count):
            found.append(ShardReader(made, options.queue, ShardAddress(url, "", number, count)))
    return found
