# Generated from src/penstock/_async/part.py by tools/unasync.py; do not edit.
"""A part of a queue: its share on one node, one of its partitions, or both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from penstock._sync.connection import monotonic, passing
from penstock._sync.queue import Queue
from penstock.core import nodes
from penstock.core.bulk import Prepared
from penstock.errors import QueueFull

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

    def _enqueue_flow(
        self, records: Sequence[bytes], options: Prepared, *, partial: bool
    ) -> list[Any]:
        """As in a queue; who waits for room looks, meanwhile, whether the node still takes jobs."""
        if options.block == 0 or self.ops.home is None:
            return super()._enqueue_flow(records, options, partial=partial)
        until = math.inf if options.block is None else monotonic() + options.block
        while True:
            began = monotonic()
            span = max(0.0, min(nodes.LOOK, until - began))
            try:
                slice_ = replace(options, block=span)
                return super()._enqueue_flow(records, slice_, partial=partial)
            except QueueFull:
                if not began + span <= monotonic() < until:
                    raise  # it was not waited for, as they will never fit; or the time is over
            self._check_taking()

    def _check_taking(self) -> None:
        """Look whether the node still takes jobs.

        Raises:
            NotTaken: it does not.
        """
        try:
            self.home.ready()
        except Exception as error:
            if not passing(error):
                raise
            self.home.failed(error)
            raise nodes.NotTaken(self.home.state.reason, passing=True) from error
        if self.home.state.leaving:
            raise nodes.NotTaken("leaving", passing=False)
