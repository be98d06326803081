# From src/penstock/client/_async/nodes/agreement.py by tools/unasync.py; do not edit.
"""Settings of a queue on several nodes: the latest ones are stored on all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from penstock.client._sync.nodes.federated_node import FederatedNode
from penstock.client._sync.nodes.federation import Federation
from penstock.core import flows
from penstock.core.calls.operations import QueueOps
from penstock.core.jobs.logs import get_logger
from penstock.core.nodes import merging
from penstock.core.nodes.merging import STORED_SETTINGS
from penstock.errors import BadArgument

__all__ = ["agree"]

logger = get_logger("penstock")
T = TypeVar("T")


def agree(
    federation: Federation,
    name: str,
    partitions: int | None,
    more: Sequence[FederatedNode] = (),
) -> None:
    """Store the latest settings of a queue on the nodes that have others.

    A node that can't be reached, or refuses them, is left out. It is tried again when it is back,
    and every 30 s.

    Args:
        federation: the nodes.
        name: of the queue.
        partitions: their number; None = it has none.
        more: nodes that are about to be up, in addition to those that are.
    """
    nodes = [node for node in list(federation.nodes) if node.state.is_up]
    nodes = list(dict.fromkeys([*nodes, *more]))
    if len(nodes) < 2:
        return
    for number in [None] if partitions is None else range(partitions):
        stored = {}
        for node in nodes:
            ops = node.brief.operations(name, number)
            read = partial(node.brief.executor.command, "HMGET", ops.keys["meta"], *STORED_SETTINGS)
            fields = _try(federation, node, read, queue=name)
            if fields is not None:
                stored[node] = fields
        for node, changes in merging.to_store(stored).items() if stored else ():
            ops = node.brief.operations(name, number)
            ops.partitions = partitions
            store = partial(_store, node, ops, fields=changes)
            _try(federation, node, store, queue=name)
            logger.info("settings of %r: now stored on %s, too", name, node.address)


def _store(node: FederatedNode, ops: QueueOps, fields: list[Any]) -> None:
    """Store the settings of another node, except those that the script refuses."""
    node.brief.connect()
    while True:
        build = partial(ops.configure, fields)
        try:
            node.brief.driver.drive(flows.create_and_run(ops, build))
            return
        except BadArgument as error:
            setting = error.argument
            if setting == "value":
                setting = error.value.partition(" ")[0]
            if setting not in fields[2::2]:
                raise
            text = "setting %s of %r was not stored on %s, where it is refused: %s"
            logger.warning(text, setting, ops.name, node.address, error)
        at = fields[::2].index(setting) * 2
        fields = fields[:at] + fields[at + 2 :]


def _try(
    federation: Federation,
    node: FederatedNode,
    ask: Callable[[], T],
    *,
    queue: str,
) -> T | None:
    try:
        return ask()
    except Exception as error:  # noqa: BLE001  # as `agree` says
        if not federation.note_failure(node, error):
            logger.warning("settings of %r were not stored on %s: %s", queue, node.address, error)
        return None
