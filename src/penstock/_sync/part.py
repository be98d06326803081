# Generated from src/penstock/_async/part.py by tools/unasync.py; do not edit.
"""A part of a queue: its share on one node, one of its partitions, or both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from penstock._sync.queue import Queue

if TYPE_CHECKING:
    from penstock._sync.composite import CompositeQueue
    from penstock._sync.member import Member

__all__ = ["Part", "Place"]

Place: TypeAlias = Any
"""A node: one of several (`Home`), or the only one (`Alone`)."""


class Part(Queue):
    """A part of a queue: an ordinary queue, whose jobs call the whole their queue.

    Args:
        whole: what it is a part of.
        home: the node.
        client: the node by some connections.
        number: which partition; None = the queue has none.
    """

    def __init__(
        self,
        whole: CompositeQueue,
        home: Place,
        client: Member,
        number: int | None,
    ) -> None:
        super().__init__(client, whole.name, number)
        self.home = home
        self.number = number
        self.ops.home = home if home.is_one_of_several else None
        self.ops.partitions = whole.partitions
        self.ops.queue = whole
