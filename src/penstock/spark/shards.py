"""Where the jobs of a source are: a queue on each of its nodes, and what is read there.

A shard is a queue, or one of its partitions, on one node. Several nodes are read by a
client each: a batch is bound to the node that has its jobs, so nothing is to be chosen among them.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from penstock.spark.connect import check_identity, current, reaching
from penstock.spark.errors import Unreachable, WrongServer
from penstock.spark.options import Connection

__all__ = ["ShardAddress", "ShardReader", "ShardReaders", "open_shard", "open_shards"]

logger = get_logger("penstock")
C = TypeVar("C", bound=Connection)
R = TypeVar("R")


@dataclass(frozen=True)
class ShardAddress:
    """Where a shard is: what a task is told of it.

    Attributes:
        url: how the node is named, perhaps with a password; '' = by the options themselves.
        node: its id, 8 hex digits; '' = not checked.
        number: which partition; None = the queue has none.
        partitions: how many there are; None likewise.
    """

    url: str = field(default="", repr=False)
    node: str = ""
    number: int | None = None
    partitions: int | None = None


class ShardReader:
    """One queue on one node, or a partition of it.

    Args:
        made: a client of that node alone.
        queue: the queue's name.
        site: where; its node is learned here.
    """

    def __init__(self, made: Penstock, queue: str, site: ShardAddress = ShardAddress()) -> None:
        made.connect()
        self._driver = made._driver
        self.node = made._node.id
        self.site = replace(site, node=self.node)
        self.ops: QueueOps = Queue(made._member, queue, site.number).ops
        self.ops.partitions = site.partitions
        self.queue = queue

    @property
    def key(self) -> str:
        """What it is called in offsets."""
        return self.node if self.site.number is None else f"{self.node}/{self.site.number}"

    def run(self, call: Call[R]) -> R:
        """Run a script and return its result."""
        return self._driver.node.run(call)

    def command(self, *args: Any) -> Any:
        """The reply of a plain command."""
        return self._driver.node.command(*args)

    def stats(self) -> QueueStats:
        """The queue's figures."""
        return self.run(self.ops.stats())

    def exists(self) -> bool:
        """Whether there is a queue: one in partitions is there before its first job is."""
        return self.site.partitions is not None or bool(self.stats().exists)

    def missing(self) -> QueueMissing:
        """The error of a queue that has to be there."""
        return QueueMissing(f"option 'requireQueue': queue {self.queue!r} does not exist")

    def packed(self, epoch: bytes) -> bytes:
        """What ids of this life of the queue carry."""
        return self.ops.place(epoch).packed


def single(options: C, url: str) -> C:
    """The options of one of several nodes."""
    return replace(options, nodes=(), url=url) if url else options


def open_shard(options: Connection, site: ShardAddress) -> ShardReader:
    """One shard.

    Args:
        options: of the source.
        site: where, as the driver has found it.

    Raises:
        WrongServer: it is another node.
    """
    own = single(options, site.url)
    made = current(own)
    with reaching(own):
        found = ShardReader(made, options.queue, site)
    if site.node and found.node != site.node:
        check_identity(own, (site.node,))
        raise WrongServer(
            f"queue {options.queue!r}: the server is node {found.node}, not {site.node} as before"
        )
    return found


class ShardReaders(list[ShardReader]):
    """All shards that can be reached.

    Attributes:
        unreached: how many nodes can't be.
    """

    unreached = 0


def open_shards(options: Connection) -> ShardReaders:
    """All shards of a source: each partition, on each of several nodes that can be reached.

    How many partitions there are is asked each time, as a queue may be made, or made anew, at any
    time. A node that has not heard of the queue goes by the others.

    Raises:
        Unreachable: no node can be reached.
    """
    if not options.nodes:
        return _spread(options.queue, [("", *_reached(options))])
    reached: list[tuple[str, Penstock, int | None]] = []
    failed: list[Unreachable] = []
    for url in options.nodes:
        try:
            reached.append((url, *_reached(single(options, url))))
        except Unreachable as error:  # noqa: PERF203  # a node at a time
            if not passing(error.__cause__ or error):
                raise
            logger.warning("queue %r: a node can't be reached: %s", options.queue, error)
            failed.append(error)
    if not reached:
        raise failed[-1]
    found = _spread(options.queue, reached)
    found.unreached = len(failed)
    return found


def _reached(options: Connection) -> tuple[Penstock, int | None]:
    """A client of a node, and how many partitions the queue has there.

    Raises:
        Unreachable: it can't be reached.
    """
    made = current(options)
    with reaching(options):
        return made, _partitions(made, options.queue)


def _partitions(made: Penstock, queue: str) -> int | None:
    """How many partitions a queue has; 0 = it is an ordinary one, None = it is not there."""
    return made._member.partitions(queue)


def _spread(queue: str, reached: Sequence[tuple[str, Penstock, int | None]]) -> ShardReaders:
    """The shards of nodes of which it is known how many partitions the queue has there."""
    usual = next((count for _, _, count in reached if count is not None), None)
    found = ShardReaders()
    for url, made, own in reached:
        count = (usual if own is None else own) or None
        for number in [None] if count is None else range(count):
            found.append(ShardReader(made, queue, ShardAddress(url, "", number, count)))
    return found
