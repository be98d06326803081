# From src/penstock/client/_async/nodes/agreement.py by tools/unasync.py; do not edit.
"""Settings of a queue on several nodes: the latest ones are stored on all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from penstock.client._sync.nodes.federated_node import FederatedNode
from penstock.client._sync.nodes.interfaces import NodeGroup
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
    federation: NodeGroup,
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
    homes = [home for home in list(federation.homes) if home.state.is_up]
    homes = list(dict.fromkeys([*homes, *more]))
    if len(homes) < 2:
        return
    for number in [None] if partitions is None else range(partitions):
        stored = {}
        for home in homes:
            ops = home.brief.operations(name, number)
            read = partial(home.brief.node.command, "HMGET", ops.keys["meta"], *STORED_SETTINGS)
            fields = _try(federation, home, name, read)
            if fields is not None:
                stored[home] = fields
        for home, changes in merging.to_store(stored).items() if stored else ():
            ops = home.brief.operations(name, number)
            ops.partitions = partitions
            _try(federation, home, name, partial(_store, home, ops, changes))
            logger.info("settings of %r: now stored on %s, too", name, home.address)


def _store(home: FederatedNode, ops: QueueOps, fields: list[Any]) -> None:
    """Store the settings of another node, except those that the script refuses."""
    home.brief.connect()
    while True:
        build = partial(ops.configure, fields)
        try:
            home.brief.driver.drive(flows.create_and_run(ops, build))
            return
        except BadArgument as error:
            setting = error.argument
            if setting == "value":
                setting = error.value.partition(" ")[0]
            if setting not in fields[2::2]:
                raise
            text = "setting %s of %r was not stored on %s, where it is refused: %s"
            logger.warning(text, setting, ops.name, home.address, error)
        at = fields[::2].index(setting) * 2
        fields = fields[:at] + fields[at + 2 :]


def _try(
    federation: NodeGroup,
    home: FederatedNode,
    name: str,
    ask: Callable[[], T],
) -> T | None:
    try:
        return ask()
    except Exception as error:  # noqa: BLE001  # as `agree` says
        if not federation.note_failure(home, error):
            logger.warning("settings of %r were not stored on %s: %s", name, home.address, error)
        return None
