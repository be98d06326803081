# From src/penstock/client/_async/sharded/alone.py by tools/unasync.py; do not edit.
"""One node as the home of all parts of a queue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.core.config import ClientConfig
from penstock.core.hints import Intent
from penstock.core.nodes import NodeState
from penstock.errors import WrongNode

if TYPE_CHECKING:
    from penstock.client._sync.job import Job
    from penstock.client._sync.sharded.node_client import NodeClient
    from penstock.client._sync.sharded.shard import Shard

__all__ = ["Alone"]

T = TypeVar("T")


class Alone:
    """A node as a queue of several parts sees it, where there is no other one.

    It answers to what a federation does, and to what one of its nodes does. There is no
    other node to fail over to, so errors are raised as they are.

    Args:
        member: the node.

    Attributes:
        brief, patient: the node, too: there is no hurry.
        homes: this one.
        state: always up.
    """

    is_one_of_several = False
    is_several = False

    def __init__(self, member: NodeClient) -> None:
        self.brief = self.patient = member
        self.homes = [self]
        self.state = NodeState(met=True)

    @property
    def prefix(self) -> str:
        """Prefix of all keys."""
        return self.brief.prefix

    @property
    def owner(self) -> str:
        """Who reserves."""
        return self.brief.owner

    @property
    def terms(self) -> ClientConfig:
        """What the client was told."""
        return self.brief.terms

    @property
    def middleware(self) -> tuple[Any, ...]:
        """Hooks."""
        return self.brief.middleware

    @property
    def id(self) -> str:
        """The first 8 digits of its id; empty until it is known."""
        return self.brief._node.id

    @property
    def address(self) -> str:
        """Where it is, for people."""
        return self.brief._node.address

    @property
    def is_apart(self) -> bool:
        """Whether parts may lie on several servers, each of which may fail by itself."""
        return self.brief.is_apart

    def connect(self) -> None:
        """Reach the server and learn its id, unless that was done."""
        self.brief.connect()

    def preferred(self) -> list[Alone]:
        """The node."""
        return self.homes

    def home_of(self, node: str, name: object) -> Alone:
        """The node, if this is the prefix of its ids.

        Raises:
            WrongNode: it is not.
        """
        known = self.brief._node.known
        if known and node not in known:
            told = f"node {node} is unknown, this client knows {', '.join(known)}: add its URL"
            raise WrongNode("id", name, told)
        return self

    def bears(self, home: object, error: BaseException) -> bool:  # noqa: ARG002  # its form
        """Whether others make up for a failure: there are none."""
        return False

    def keep(self, home: object, queue: str, names: Sequence[Any], intent: Intent) -> list[bool]:
        """Return no node: a single node has no other one for hints."""
        del home, queue, intent
        return [False] * len(names)

    def tried(self, home: object, ask: Callable[[], T]) -> T | None:
        """Ask the node."""
        del home
        return ask()

    def each(self, ask: Callable[[Alone], T]) -> tuple[list[tuple[Alone, T]], dict[str, str]]:
        """Ask the node."""
        self.connect()
        return [(self, ask(self))], {}

    def produce(
        self,
        parts: Callable[[], Sequence[Shard]],
        attempt: Callable[[Shard], T],
    ) -> T:
        """Add jobs to the part, on its only node."""
        [part] = parts()
        return attempt(part)

    def reserve(self, queues: Sequence[Any], n: int, wait: float | None) -> list[Job]:
        """Take up to n jobs from several queues, the first queue first."""
        return self.brief.reserve(queues, n, wait)
