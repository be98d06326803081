"""Where the jobs of a source are: a queue on each of its nodes, and what is read there.

A lane is one queue on one node. Several nodes are read by a client each: a batch is bound to the
node that has its jobs, so nothing is to be chosen among them.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, TypeVar

from penstock import Penstock
from penstock._sync.connection import passing
from penstock.core.operations import Call, QueueOps
from penstock.errors import QueueMissing
from penstock.spark.connect import check_identity, client
from penstock.spark.errors import WrongServer
from penstock.spark.options import Connection

__all__ = ["Lane", "lanes"]

logger = logging.getLogger("penstock")
C = TypeVar("C", bound=Connection)


class Lane:
    """One queue on one node.

    Args:
        made: a client of that node alone.
        queue: the queue's name.
        url: how the node was named; '' = by the options themselves.
    """

    def __init__(self, made: Penstock, queue: str, url: str = "") -> None:
        made.connect()
        self._driver = made._driver
        self.url = url
        self.node = made._node.id
        self.ops: QueueOps = made.queue(queue).ops
        self.queue = queue

    @property
    def key(self) -> str:
        """What it is called in offsets."""
        return self.node

    def run(self, call: Call) -> list[Any]:
        """The reply of a script, with lost meta restored first."""
        reply, _ = self._driver.run(self.ops, call)
        return reply

    def command(self, *args: Any) -> Any:
        """The reply of a plain command."""
        return self._driver.node.command(*args)

    def stats(self) -> Any:
        """The queue's figures."""
        return self.ops.stats_of(self.run(self.ops.stats()))

    def missing(self) -> QueueMissing:
        """The error of a queue that has to be there."""
        return QueueMissing(f"option 'requireQueue': there is no queue {self.queue!r}")

    def packed(self, epoch: bytes) -> bytes:
        """What ids of this life of the queue carry."""
        return self.ops.place(self.node, epoch).packed


def single(options: C, url: str) -> C:
    """The options of one of several nodes."""
    return replace(options, nodes=(), url=url) if url else options


def lane(options: Connection, url: str, node: str = "") -> Lane:
    """One lane.

    Args:
        options: of the source.
        url: which node; '' = there is one alone.
        node: the id that the driver knows it by, 8 hex digits; '' = not checked.

    Raises:
        WrongServer: it is another node.
    """
    own = single(options, url)
    found = Lane(client(own), options.queue, url)
    if node and found.node != node:
        check_identity(own, (node,))
        raise WrongServer(f"queue {options.queue!r}: node {found.node} instead of {node}")
    return found


def lanes(options: Connection) -> list[Lane]:
    """All lanes of a source; of several nodes those that can be reached.

    Raises:
        redis.exceptions.ConnectionError, TimeoutError: none can.
    """
    if not options.nodes:
        return [lane(options, "")]
    found: list[Lane] = []
    failed: Exception | None = None
    for url in options.nodes:
        try:
            found.append(lane(options, url))
        except Exception as error:  # noqa: PERF203  # a node at a time
            if not passing(error):
                raise
            logger.warning("queue %r: a node can't be reached: %s", options.queue, error)
            failed = error
    if not found and failed is not None:
        raise failed
    return found
