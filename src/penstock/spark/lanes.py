"""Calls about several nodes, each node in threads of its own: none waits for another node."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic
from typing import Any, TypeVar

from redis.exceptions import TimeoutError as RedisTimeoutError

from penstock.core.calls.failures import passing
from penstock.core.jobs.logs import get_logger

__all__ = ["Calls", "Lanes"]

logger = get_logger("penstock")
R = TypeVar("R")
Calls = Mapping[str, tuple[str, Callable[[], R]]]
"""Node and function of each call, by its name."""
Waiting = SimpleQueue[tuple[Future[Any], Callable[[], Any]]]

NODE_THREADS = 8
"""Most calls about a node at a time."""
NODE_PATIENCE = 5.0
"""Seconds to wait for an answer of a node while there are others."""


class Lanes:
    """The threads of each node, and the nodes that are not waited for.

    A call is a node and a function. A node that fails is left out of this call. One that does not
    answer for `NODE_PATIENCE` is late: it is asked beside the others, which do not wait for it, and
    used again when it has answered.

    Attributes:
        waits_for_all: whether no node is late, however long its calls take.
        _under_way: the calls of each node that were sent last.
        _answered: the time of the clock when each node has answered last.
        _late: the nodes that are not waited for.
    """

    def __init__(self) -> None:
        self.waits_for_all = False
        self._under_way = defaultdict[str, list[Future[Any]]](list)
        self._answered = defaultdict[str, float](float)
        self._late = set[str]()

    def note_answer(self, node: str) -> None:
        """Note that a node has answered: a call of many trips is not late then."""
        self._answered[node] = monotonic()

    def run_each(self, calls: Calls[R]) -> dict[str, R]:
        """Run calls, and return all results, or raise the first error."""
        return {key: future.result() for key, future in self._send(calls).items()}

    def run_on_usable(self, calls: Calls[R], *, needs_one: bool = False) -> dict[str, R]:
        """Run calls, and return the results of the nodes that can be used now.

        Args:
            calls: calls about several nodes.
            needs_one: whether the error of a node is raised if all of them have failed.

        Raises:
            Exception: an error that is not about the connection.
        """
        nodes = {node for node, _ in calls.values()}
        self._await_one(nodes)
        for node in nodes & self._late:
            if not self._pending([node]):
                errors = [self._judge(node, future) for future in self._under_way[node]]
                if not any(errors):
                    self._late.discard(node)
        futures = self._send({k: call for k, call in calls.items() if not self._pending([call[0]])})
        self._await_answers({node for k, (node, _) in calls.items() if k in futures} - self._late)
        while not any(map(_is_well, futures.values())):
            pending = [one for one in futures.values() if not one.done()]
            if not pending:
                break
            wait(pending, return_when=FIRST_COMPLETED)
        judged = [self._judge(calls[key][0], future) for key, future in futures.items()]
        failed = [error for error in judged if error is not None]
        if needs_one and len(failed) == len(futures):
            raise failed[0]
        return {
            key: future.result()
            for key, future in futures.items()
            if _is_well(future) and calls[key][0] not in self._late
        }

    def _await_one(self, nodes: set[str]) -> None:
        """Wait until one of the nodes has no call under way; or all, if all are waited for."""
        if self.waits_for_all:
            wait(self._pending(nodes))
        while nodes and all(self._pending([node]) for node in nodes):
            wait(self._pending(nodes), return_when=FIRST_COMPLETED)

    def _await_answers(self, nodes: set[str]) -> None:
        """Wait for the calls of these nodes, of each as long as it answers."""
        began = monotonic()
        while True:
            left = {
                node: max(began, self._answered[node]) + self._patience - monotonic()
                for node in nodes
                if self._pending([node])
            }
            awaited = [node for node, seconds in left.items() if seconds > 0]
            if not awaited:
                return
            seconds = min(left[node] for node in awaited)
            wait(self._pending(awaited), None if seconds == math.inf else seconds, FIRST_COMPLETED)

    @property
    def _patience(self) -> float:
        return math.inf if self.waits_for_all else NODE_PATIENCE

    def _send(self, calls: Calls[R]) -> dict[str, Future[R]]:
        """Begin the calls in threads that a program which ends does not wait for."""
        futures = {key: Future[R]() for key in calls}
        waiting = defaultdict[str, Waiting](SimpleQueue)
        for key, (node, do) in calls.items():
            waiting[node].put((futures[key], do))
        for node, queue in waiting.items():
            self._under_way[node] = [futures[key] for key in calls if calls[key][0] == node]
            for _ in range(min(NODE_THREADS, len(self._under_way[node]))):
                Thread(target=_work, args=(queue,), name="penstock-node", daemon=True).start()
        return futures

    def _pending(self, nodes: Iterable[str]) -> list[Future[Any]]:
        return [one for node in nodes for one in self._under_way[node] if not one.done()]

    def _judge(self, node: str, future: Future[Any]) -> BaseException | None:
        """Return the error of a call whose node can't be used now; raise another one."""
        if not future.done():
            if node not in self._late:
                text = "a node is not used for now: it has not answered for %g s"
                logger.warning(text, NODE_PATIENCE)
            self._late.add(node)
            return RedisTimeoutError("no answer")
        error = future.exception()
        if error is not None:
            if not passing(error.__cause__ or error):
                raise error
            logger.warning("a node is not used for now: %s", error)
        return error


def _work(waiting: Waiting) -> None:
    with suppress(Empty):
        while True:
            future, do = waiting.get_nowait()
            try:
                future.set_result(do())
            except BaseException as error:  # noqa: BLE001  # its caller gets it
                future.set_exception(error)


def _is_well(future: Future[Any]) -> bool:
    return future.done() and future.exception() is None
