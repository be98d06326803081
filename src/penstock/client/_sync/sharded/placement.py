# From src/penstock/client/_async/sharded/placement.py by tools/unasync.py; do not edit.
"""Adds jobs on the first node that takes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from redis.exceptions import ResponseError

from penstock.client._acompat import sleep
from penstock.client.clock import monotonic
from penstock.core.calls.failures import passing
from penstock.core.nodes.state import NotTaken
from penstock.errors import NodesUnavailable, NotReplicated, OutOfMemory

if TYPE_CHECKING:
    from penstock.client._sync.sharded.federated_node import FederatedNode
    from penstock.client._sync.sharded.federation import Federation
    from penstock.client._sync.sharded.shard import Shard

__all__ = ["produce"]

T = TypeVar("T")


def produce(
    federation: Federation,
    part_on: Callable[[FederatedNode], Shard],
    attempt: Callable[[Shard], T],
) -> T:
    """Add jobs on the first node that takes them.

    Args:
        federation: the nodes.
        part_on: returns the part of the queue on a node.
        attempt: adds to a part.

    Raises:
        NodesUnavailable: no node can take them.
        OutOfMemory, NotReplicated: of the node that was asked last.
        redis.exceptions.ConnectionError, TimeoutError: it is not known whether a node has them.
    """
    federation.connect()
    until = monotonic() + federation.terms.retry_for
    while True:
        found = _PlacementRound(federation)
        for crowded in (False, True):
            for home in federation.preferred():
                if found.offer(part_on(home), attempt, crowded=crowded):
                    federation.sticky.chose(home)
                    return cast("T", found.result)
        if found.refusal is not None:
            raise found.refusal
        if monotonic() >= until or not found.may_pass:
            raise NodesUnavailable("no node takes jobs", found.reasons)
        sleep(0.05)
        federation.connect()


class _PlacementRound:
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
        self.result: Any = None

    def offer(self, part: Shard, attempt: Callable[[Shard], Any], *, crowded: bool) -> bool:
        """Offer the jobs to a part; return True if it took them.

        Args:
            part: the part.
            attempt: adds to it.
            crowded: whether to offer to a node that is short of memory.

        Raises:
            Exception: the next node must not be asked.
        """
        home = part.federated
        if home in self._tried:
            return False
        try:
            if not home.state.is_up:
                raise NotTaken(home.state.reason, passing=True)
            if home.check_taking():
                self._federation.check_id(home)
            if home.state.crowded and not crowded:
                raise NotTaken("more than 75 % of its memory is in use", passing=False)
            self._tried.add(home)
            self.result = attempt(part)
        except NotTaken as error:
            self.reasons[home.address] = str(error)
            self.may_pass = self.may_pass or error.passing
            return False
        except Exception as error:
            self._federation.note_failure(home, error)
            self.reasons[home.address] = f"{type(error).__name__}: {error}"
            if _is_refusal(error):
                self.refusal = error
            elif isinstance(error, ResponseError) and passing(error):
                self.may_pass = True  # it is in another role, or a cluster that is changing
            elif self._federation.terms.on_unknown != "next" or not is_unknown(error):
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
