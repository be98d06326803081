"""Calls about several nodes, each node in threads of its own: none waits for another node."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread
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
"""Seconds to wait for a node while there are others."""


class Lanes:
    """The threads of each node, and the nodes that are not waited for.

    A call is a node and a function. A node that fails is left out of this call. One that takes
    longer than `NODE_PATIENCE` is late: it is asked beside the others, which do not wait for it,
    and used again when it has answered.

    Attributes:
        _under_way: the calls of each node that were sent last.
        _late: the nodes that are not waited for.
    """

    def __init__(self) -> None:
        self._under_way = defaultdict[str, list[Future[Any]]](list)
        self._late = set[str]()

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
        while nodes and all(map(self._is_busy, nodes)):
            wait(self._pending(nodes), return_when=FIRST_COMPLETED)
        self._late -= {node for node in nodes & self._late if self._has_answered(node)}
        futures = self._send({k: call for k, call in calls.items() if not self._is_busy(call[0])})
        wait([one for k, one in futures.items() if calls[k][0] not in self._late], NODE_PATIENCE)
        while not any(map(_is_well, futures.values())):
            pending = [one for one in futures.values() if not one.done()]
            if not pending:
                break
            wait(pending, return_when=FIRST_COMPLETED)
        errors = [error for k in futures if (error := self._judge(calls[k][0], futures[k]))]
        if needs_one and len(errors) == len(futures):
            raise errors[0]
        return {
            key: future.result()
            for key, future in futures.items()
            if _is_well(future) and calls[key][0] not in self._late
        }

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

    def _is_busy(self, node: str) -> bool:
        return bool(self._pending([node]))

    def _has_answered(self, node: str) -> bool:
        return all(map(_is_well, self._under_way[node]))

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
