"""Adding jobs where it is possible: which node is asked, and when the next one is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from redis.exceptions import ResponseError

from penstock.client._acompat import asleep
from penstock.client._async.transport.connection import monotonic
from penstock.client._async.transport.failures import passing
from penstock.core.nodes import NotTaken
from penstock.core.options import OnUnknown
from penstock.errors import NodesUnavailable, NotReplicated, OutOfMemory

if TYPE_CHECKING:
    from penstock.client._async.sharded.federated_node import AsyncFederatedNode
    from penstock.client._async.sharded.federation import AsyncFederation
    from penstock.client._async.sharded.shard import AsyncShard

__all__ = ["AsyncPlacement"]

T = TypeVar("T")


class AsyncPlacement:
    """How the nodes of a client come to their jobs.

    Args:
        federation: the nodes.
    """

    def __init__(self, federation: AsyncFederation) -> None:
        self._federation = federation

    async def produce(
        self,
        parts: Callable[[], Sequence[AsyncShard]],
        attempt: Callable[[AsyncShard], Awaitable[T]],
    ) -> T:
        """Add jobs on the first node that takes them.

        Args:
            parts: gives the parts of the queue, in the order of preference.
            attempt: adds to a part.

        Raises:
            NodesUnavailable: none can take them.
            OutOfMemory, NotReplicated: of the node that was asked last.
            redis.exceptions.ConnectionError, TimeoutError: it is not known whether a node has them.
        """
        await self._federation.connect()
        until = monotonic() + self._federation.terms.retry_for
        while True:
            asked_nodes = _PlacementRound(self._federation.terms.on_unknown)
            for crowded in (False, True):
                for part in parts():
                    if await self._offer(asked_nodes, part, attempt, crowded=crowded):
                        self._federation.sticky.chose(part.home)
                        return cast("T", asked_nodes.result)
            if asked_nodes.refusal is not None:
                raise asked_nodes.refusal
            if monotonic() >= until or not asked_nodes.may_pass:
                raise NodesUnavailable("no node takes jobs", asked_nodes.reasons)
            await asleep(0.05)
            await self._federation.connect()

    async def _offer(
        self,
        asked_nodes: _PlacementRound,
        part: AsyncShard,
        attempt: Callable[[AsyncShard], Awaitable[Any]],
        *,
        crowded: bool,
    ) -> bool:
        """Whether a part has taken what is to be added; if not, why is noted."""
        home = part.home
        if home in asked_nodes.tried:
            return False
        try:
            if not home.state.is_up:
                raise self._federation.unavailable()
            if await home.ready():
                await self._federation.check_id(home)
        except Exception as error:
            if not passing(error):
                raise
            if home.state.is_up:
                home.failed(error)
            asked_nodes.note(home.address, home.state.reason)
            return False
        if home.state.leaving:
            asked_nodes.note(home.address, "leaving", passing=False)
            return False
        if home.state.crowded and not crowded:
            asked_nodes.reasons[home.address] = "more than 75 % of its memory is in use"
            return False
        asked_nodes.tried.add(home)
        try:
            asked_nodes.result = await attempt(part)
        except Exception as error:  # noqa: BLE001  # those that end the turn are raised again
            self._federation.bears(home, error)
            asked_nodes.failed(home.address, error)
            return False
        return True


class _PlacementRound:
    """One round of asking nodes to take a job.

    Args:
        on_unknown: what to do when it is not known whether a node has it.

    Attributes:
        tried: those that were asked.
        reasons: why each has not taken it, by address.
        refusal: what the last one said that was able to say no.
        may_pass: whether one of them could not be reached, which may pass.
        result: what the one has answered that took it.
    """

    def __init__(self, on_unknown: OnUnknown) -> None:
        self._on_unknown = on_unknown
        self.tried: set[AsyncFederatedNode] = set()
        self.reasons: dict[str, str] = {}
        self.refusal: Exception | None = None
        self.may_pass = False
        self.result: Any = None

    def note(self, address: str, reason: str, *, passing: bool = True) -> None:
        """It was not asked."""
        self.reasons[address] = reason
        self.may_pass = self.may_pass or passing

    def failed(self, address: str, error: Exception) -> None:
        """It was asked, and has not taken it.

        Raises:
            Exception: the next node is not to be asked.
        """
        self.reasons[address] = f"{type(error).__name__}: {error}"
        if isinstance(error, OutOfMemory) or (isinstance(error, NotReplicated) and error.withdrawn):
            self.refusal = error
        elif isinstance(error, NotTaken):
            self.note(address, str(error), passing=error.passing)
        elif isinstance(error, ResponseError) and passing(error):
            self.may_pass = True  # it is in another role, or a cluster that is changing
        elif self._on_unknown != "next" or not is_unknown(error):
            raise error


def is_unknown(error: Exception) -> bool:
    """Whether a failed enqueue has left it open whether the job is there."""
    if isinstance(error, NotReplicated):
        return error.withdrawn is None
    return passing(error)
