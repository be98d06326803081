# From src/penstock/client/_async/nodes/placement.py by tools/unasync.py; do not edit.
"""Adds jobs on the first node that takes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar, cast

from redis.exceptions import ResponseError

from penstock.client._acompat import sleep
from penstock.client._sync.nodes.federated_node import FederatedNode
from penstock.client._sync.nodes.federation import Federation
from penstock.client.clock import monotonic
from penstock.core.calls.failures import passing
from penstock.core.nodes.state import NotTaken
from penstock.errors import NodesUnavailable, NotReplicated, OutOfMemory

__all__ = ["produce"]

T = TypeVar("T")


def produce(federation: Federation, add_to: Callable[[FederatedNode], T]) -> T:
    """Add jobs on the first node that takes them.

    Args:
        federation: the nodes.
        add_to: adds to the part of the queue on a node.

    Raises:
        NodesUnavailable: no node can take them.
        OutOfMemory, NotReplicated: of the node that was asked last.
        redis.exceptions.ConnectionError, TimeoutError: it is not known whether a node has them.
    """
    federation.connect()
    until = monotonic() + federation.config.retry_for
    while True:
        this_round = _PlacementRound[T](federation)
        for crowded in (False, True):
            for node in federation.preferred():
                if this_round.offer(node, add_to, crowded=crowded):
                    federation.sticky.chose(node)
                    return cast("T", this_round.result)
        if this_round.refusal is not None:
            raise this_round.refusal
        if monotonic() >= until or not this_round.may_pass:
            raise NodesUnavailable("no node takes jobs", this_round.reasons)
        sleep(0.05)
        federation.connect()


class _PlacementRound(Generic[T]):
    """One round of offering jobs to nodes.

    Args:
        federation: the nodes.

    Attributes:
        reasons: address of each node that did not take the jobs -> the reason.
        refusal: the last error of a node that surely did not add the jobs.
        may_pass: whether a reason may pass by itself.
        result: the answer of the node that took the jobs.
    """

    def __init__(self, federation: Federation) -> None:
        self._federation = federation
        self._tried: set[FederatedNode] = set()
        self.reasons: dict[str, str] = {}
        self.refusal: Exception | None = None
        self.may_pass = False
        self.result: T | None = None

    def offer(
        self,
        node: FederatedNode,
        add_to: Callable[[FederatedNode], T],
        *,
        crowded: bool,
    ) -> bool:
        """Offer the jobs to a node; return True if it took them.

        Args:
            node: the node.
            add_to: adds to the part of the queue there.
            crowded: whether to offer to a node that is short of memory.

        Raises:
            Exception: the next node must not be asked.
        """
        if node in self._tried:
            return False
        try:
            if not node.state.is_up:
                raise NotTaken(node.address, node.state.reason, passing=True)
            if node.check_taking():
                self._federation.check_id(node)
            if node.state.crowded and not crowded:
                raise NotTaken(
                    node.address, "more than 75 % of its memory is in use", passing=False
                )
            self._tried.add(node)
            self.result = add_to(node)
        except NotTaken as error:
            self.reasons[node.address] = error.reason
            self.may_pass = self.may_pass or error.passing
            return False
        except Exception as error:
            self._federation.note_failure(node, error)
            self.reasons[node.address] = f"{type(error).__name__}: {error}"
            if _is_refusal(error):
                self.refusal = error
            elif isinstance(error, ResponseError) and passing(error):
                self.may_pass = True  # it is in another role, or a cluster that is changing
            elif self._federation.config.on_unknown != "next" or not is_unknown(error):
                raise
            return False
        return True


def _is_refusal(error: Exception) -> bool:
    """Return True if the node surely has not added the jobs, and another one may."""
    return isinstance(error, OutOfMemory) or (
        isinstance(error, NotReplicated) and bool(error.withdrawn)
    )


def is_unknown(error: Exception) -> bool:
    """Return True if after a failed enqueue the job may be there or not."""
    if isinstance(error, NotReplicated):
        return error.withdrawn is None
    return passing(error)
