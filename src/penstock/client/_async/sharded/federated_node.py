"""One of several nodes: what is known of it, and two ways to it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any

from penstock.client._acompat import AsyncBackgroundTask
from penstock.client._async.sharded.node_client import BRIEF, AsyncNodeClient
from penstock.client._async.transport.connection import monotonic
from penstock.client._async.transport.failures import passing
from penstock.client._async.transport.node import AsyncNode
from penstock.core.config import ClientConfig
from penstock.core.logs import get_logger
from penstock.core.node_list import address_of
from penstock.core.nodes import NodeState, NotTaken
from penstock.core.servers import ServerFacts, parse_info
from penstock.core.views import NodeView
from penstock.errors import ConfigurationError
from penstock.wire.keys import node_key

__all__ = ["BRIEF", "AsyncBackgroundTasks", "AsyncFederatedNode"]

logger = get_logger("penstock")


PROMPT = 0.75
"""Seconds that a call waits for a reply when another node can keep what it was to do."""


class AsyncBackgroundTasks:
    """What is done beside, as a rule one at a time; threads that begin at once begin several."""

    def __init__(self) -> None:
        self._all: list[AsyncBackgroundTask] = []

    @property
    def under_way(self) -> list[AsyncBackgroundTask]:
        """Those that have not ended."""
        return [errand for errand in tuple(self._all) if not errand.is_done]

    def begin(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do something beside; it is not to raise."""
        for errand in tuple(self._all):
            if errand.is_done:
                with suppress(ValueError):  # another thread was quicker
                    self._all.remove(errand)
        self._all.append(AsyncBackgroundTask(work))

    async def close(self) -> None:
        """Give them up."""
        while self._all:
            await self._all.pop().close()


class AsyncFederatedNode(AsyncNodeClient):
    """One of several nodes.

    Args:
        source: a URL or a redis-py client.
        terms: what the client was told.
        learned: its id, if others have told of it.
        node: its connections; None = of its own.

    Attributes:
        is_learned: whether others have told of it, not the user.
        ear: connections on which a call fails soon: for what others could do as well.
        brief: the same node by these connections.
        prompt: the same by connections on which a call fails within 0.75 s: for what another node
            can keep at once.
        state: what is known of it.
        whole_id: its id, all 40 digits; empty until it is known.
        known: the first 8 digits of its ids.
        errands: looks whether it is back.
        fault: why it can't be one of these nodes.
        is_known: whether it has told its id since it failed last.
    """

    is_one_of_several = True

    def __init__(
        self, source: Any, terms: ClientConfig, learned: str = "", node: AsyncNode | None = None
    ) -> None:
        super().__init__(source, terms, node)
        self.is_learned = bool(learned)
        # Where others could do as well, a node that hangs must not hold them up.
        self.ear = self._node.twin(retry_for=0, socket_timeout=BRIEF)
        self.ear.send_once()
        self.brief = AsyncNodeClient(source, terms, self.ear)
        self.prompt = AsyncNodeClient(
            source, terms, self._node.twin(retry_for=0, socket_timeout=PROMPT)
        )
        self.prompt._node.send_once()
        self.state = NodeState()
        self.whole_id = ""
        self.known: list[str] = []
        self.errands = AsyncBackgroundTasks()
        self.meet(learned)
        self.fault: Exception | None = None
        self.is_known = False

    @property
    def patient(self) -> AsyncNodeClient:
        """Itself: by connections on which a call is tried for as long as the client was told."""
        return self

    @property
    def id(self) -> str:
        """The first 8 digits of its id; empty until it is known."""
        return self.whole_id[:8]

    @property
    def address(self) -> str:
        """Where it is, for people: with its database if that is another one than 0."""
        number = re.search(r"[/=]([1-9][0-9]*)$", address_of(self.source))
        return f"{self._node.address}/{number.group(1)}" if number else self._node.address

    @property
    def is_looked_after(self) -> bool:
        """Whether a look at it is under way."""
        return bool(self.errands.under_way)

    def meet(self, whole_id: str) -> None:
        """Note its id; jobs of one that it had before are still looked for here."""
        self.whole_id = whole_id
        if whole_id and self.id not in self.known:
            self.known.append(self.id)

    async def connect(self) -> None:
        """Reach it, unless that was done."""
        if not self._node.id:
            await self.look()

    async def close(self) -> None:
        """Close the connections."""
        await self.errands.close()
        await self.hang_up()

    async def hang_up(self) -> None:
        """Close the connections; a look that is under way goes on."""
        await self._node.close()
        await self.ear.close()
        await self.prompt.close()

    def refused(self, error: ConfigurationError) -> None:
        """It is none of these nodes, as long as it is as it is."""
        self.fault = error
        self.is_known = False
        self.state.failed(monotonic(), error)

    def failed(self, error: BaseException) -> None:
        """It could not be reached."""
        if self.state.is_up:
            logger.warning("node %s is not used for now: %s", self.address, error)
        self.is_known = False
        self.state.failed(monotonic(), error)

    async def look(self) -> None:
        """Ask who it is and how it is, on a brief connection."""
        self.state.saw(**await self.see())

    async def see(self) -> dict[str, Any]:
        """The same, but for the opinion of it."""
        now = monotonic()
        if not self.ear.id:
            await self.ear.prepare()
            self._node.facts = self.ear.facts
        leaving = await self.recognise()
        facts = None
        if self.ear.facts.fields and self.state.is_unmeasured(now):  # else it has no INFO
            facts = ServerFacts(parse_info(await self.ear.command("INFO", "memory")))
        return {"now": now, "leaving": leaving, "facts": facts}

    async def recognise(self) -> bool:
        """Ask for its id, and whether it is leaving."""
        found = await self.ear.command("HMGET", node_key(self.prefix), "id", "leaving")
        if found[0] is None:  # as after a FLUSHALL
            await self.ear.identify()
            found = await self.ear.command("HMGET", node_key(self.prefix), "id", "leaving")
        self.meet(found[0].decode())
        self.is_known = True
        for node in (self._node, self.ear, self.prompt._node):
            node.id = self.id
            if self.id not in node.known:
                node.known.append(self.id)
        return bool(found[1])

    async def seen(self) -> NodeView:
        """The node in words."""
        await self.look()
        return replace(await self.brief.view(), address=self.address)

    async def check_taking(self) -> None:
        """Look whether the node still takes jobs, for a part that is about to add some.

        Raises:
            NotTaken: it does not.
        """
        try:
            await self.ready()
        except Exception as error:
            if not passing(error):
                raise
            self.failed(error)
            raise NotTaken(self.state.reason, passing=True) from error
        if self.state.leaving:
            raise NotTaken("leaving", passing=False)
        self.taking_until = math.inf  # from now on the federation looks before each offer

    async def listed(self) -> dict[str, str]:
        """The list of nodes that it keeps."""
        return await self.ear.listed()

    async def ready(self) -> bool:
        """Have an open connection to it, and an opinion of it that is not too old.

        Returns:
            Whether it was looked at: it may be another one by now.

        Raises:
            redis.exceptions.ConnectionError, TimeoutError: nothing was sent that would write.
        """
        is_old = not self.state.is_up or self.state.is_stale(monotonic())
        if is_old:  # by the brief question first: one that hangs is told so by it
            await self.ear.reach()
            await self.look()
        if await self._node.reach() and not is_old:
            await self.ear.reach()
            await self.look()
            return True
        return is_old
