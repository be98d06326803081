# From src/penstock/client/_async/nodes/federated_node.py by tools/unasync.py; do not edit.
"""One of several nodes: its state, and the connections to it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from penstock.client._acompat import BackgroundTask
from penstock.client._sync.nodes.node import BRIEF_SECONDS, Node
from penstock.client._sync.transport.executor import Executor
from penstock.client.clock import monotonic
from penstock.core.calls.config import ClientConfig
from penstock.core.calls.failures import passing
from penstock.core.jobs.logs import get_logger
from penstock.core.nodes.node_list import address_of
from penstock.core.nodes.node_views import NodeView
from penstock.core.nodes.servers import ServerFacts, parse_info
from penstock.core.nodes.state import NodeState, NotTaken
from penstock.errors import ConfigurationError
from penstock.wire.keys import node_key

__all__ = ["BRIEF_SECONDS", "BackgroundTasks", "FederatedNode"]

logger = get_logger("penstock")


PROMPT_SECONDS = 0.75
"""Seconds that a call waits for a reply when another node can keep it as a hint."""


class BackgroundTasks:
    """Background tasks. Normally one runs at a time; threads that begin at once begin several."""

    def __init__(self) -> None:
        self._all: list[BackgroundTask] = []

    @property
    def under_way(self) -> list[BackgroundTask]:
        """Tasks that have not ended."""
        return [task for task in tuple(self._all) if not task.is_done]

    def begin(self, work: Callable[[], None]) -> None:
        """Start a task; it must not raise."""
        for task in tuple(self._all):
            if task.is_done:
                with suppress(ValueError):  # another thread has removed it
                    self._all.remove(task)
        with suppress(RuntimeError):  # no thread can be started; what is due is begun again
            self._all.append(BackgroundTask(work))

    def close(self) -> None:
        """Cancel the tasks; of threads, wait for their end."""
        while self._all:
            self._all.pop().close()


class FederatedNode(Node):
    """One of several nodes.

    Args:
        source: a URL or a redis-py client.
        config: configuration of the client.
        learned: its id, if it comes from the list of another node.
        executor: runs its calls; None = make them.

    Attributes:
        is_learned: whether it comes from the list of another node, not from the user.
        brief: the node by connections on which a call fails within 2 s, for calls that
            another node could serve as well.
        prompt: the node by connections on which a call fails within 0.75 s, for calls
            that another node can keep as a hint.
        state: whether it is up, leaving, crowded.
        whole_id: its id, all 40 digits; empty until it is known.
        known: the first 8 digits of each of its ids.
        tasks: background look at a node that is down.
        fault: reason why it can't be used; None = none.
        is_known: whether it has told its id since it failed last.
    """

    def __init__(
        self,
        source: Any,
        config: ClientConfig,
        learned: str = "",
        executor: Executor | None = None,
    ) -> None:
        super().__init__(source, config, executor)
        self.is_learned = bool(learned)
        self.brief, self.prompt = (
            Node(source, config, self.executor.twin(retry_for=0, socket_timeout=timeout))
            for timeout in (BRIEF_SECONDS, PROMPT_SECONDS)
        )
        for node in (self.brief, self.prompt):
            node.executor.connections.send_once()
        self.state = NodeState()
        self.whole_id = ""
        self.known: list[str] = []
        self.tasks = BackgroundTasks()
        self.note_id(learned)
        self.fault: Exception | None = None
        self.is_known = False

    @property
    def id(self) -> str:
        """First 8 digits of its id; empty until it is known."""
        return self.whole_id[:8]

    @property
    def address(self) -> str:
        """Address of the node, for people, with its database unless that is 0."""
        number = re.search(r"[/=]([1-9][0-9]*)$", address_of(self.source))
        return f"{self.executor.address}/{number.group(1)}" if number else self.executor.address

    def note_id(self, whole_id: str) -> None:
        """Note its id. Jobs with an earlier id of it are still looked for here."""
        self.whole_id = whole_id
        if whole_id and self.id not in self.known:
            self.known.append(self.id)

    def connect(self) -> None:
        """Reach the node, unless that was done."""
        if not self.executor.id:
            self.look()

    def close(self) -> None:
        """Close the connections."""
        self.tasks.close()
        self.close_connections()

    def close_connections(self) -> None:
        """Close the connections; a background look goes on."""
        for executor in self._executors:
            executor.close()

    @property
    def _executors(self) -> list[Executor]:
        return [self.executor, self.brief.executor, self.prompt.executor]

    def note_refusal(self, error: ConfigurationError) -> None:
        """Note why it can't be used."""
        self.fault = error
        self.is_known = False
        self.state.failed(monotonic(), error)

    def note_failure(self, error: BaseException) -> None:
        """Note that it could not be reached."""
        if self.state.is_up:
            logger.warning("node %s is not used for now: %s", self.address, error)
        self.is_known = False
        self.state.failed(monotonic(), error)

    def look(self) -> None:
        """Read its id, flags and memory, and note that it is up."""
        self.state.note_answer(**self.read_state())

    def read_state(self) -> dict[str, Any]:
        """Read its id, flags and memory; return them as arguments of `NodeState.note_answer`."""
        now = monotonic()
        executor = self.brief.executor
        if not executor.id:
            executor.prepare()
            self.executor.facts = executor.facts
        leaving = self.recognise()
        facts = None
        if executor.facts.fields and self.state.is_unmeasured(now):  # else it has no INFO
            facts = ServerFacts(parse_info(executor.command("INFO", "memory")))
        return {"now": now, "leaving": leaving, "facts": facts}

    def recognise(self) -> bool:
        """Read its id, or give it one; return True if it is leaving."""
        executor = self.brief.executor
        node_id, leaving = executor.command("HMGET", node_key(self.config.prefix), "id", "leaving")
        # It has no id after a FLUSHALL, for example.
        self.note_id(node_id.decode() if node_id else executor.identify())
        self.is_known = True
        for executor in self._executors:
            executor.id = self.id
            if self.id not in executor.known:
                executor.known.append(self.id)
        return bool(leaving)

    def read_view(self) -> NodeView:
        """Read the node's state; return address, memory and flags."""
        self.look()
        return replace(self.brief.view(), address=self.address)

    def check_taking(self) -> bool:
        """Check that the node takes new jobs, before a part of a queue adds some.

        Returns:
            True if the node was asked: its id may have changed.

        Raises:
            NotTaken: it is leaving, or can't be reached.
        """
        try:
            was_asked = self._ensure_ready()
        except Exception as error:
            if not passing(error):
                raise
            self.note_failure(error)
            raise NotTaken(self.address, self.state.reason, passing=True) from error
        if self.state.leaving:
            raise NotTaken(self.address, "leaving", passing=False)
        self.taking_until = math.inf  # from now on the federation checks before each offer
        return was_asked

    def _ensure_ready(self) -> bool:
        """Ensure an open connection, and a state that is not too old; return True if it asked."""
        is_old = not self.state.is_up or self.state.is_stale(monotonic())
        asks = is_old or self.executor.reach()
        if asks:  # by the brief connection: a node that hangs fails there sooner
            self.brief.executor.reach()
            self.look()
        if is_old:
            self.executor.reach()
        return asks
