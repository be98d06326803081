# From src/penstock/client/_async/nodes/hints.py by tools/unasync.py; do not edit.
"""Calls about jobs of a node that is down: kept on another node, replayed later.

See protocol/nodes.md, Hints.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from penstock.client._sync.nodes.federated_node import FederatedNode
from penstock.client._sync.nodes.interfaces import NodeGroup
from penstock.client.clock import monotonic
from penstock.core.calls.failures import passing
from penstock.core.jobs import hints
from penstock.core.jobs.hints import Hint, Intent
from penstock.core.jobs.job import JobName
from penstock.core.jobs.logs import get_logger
from penstock.errors import WrongEpoch
from penstock.wire.keys import hints_key, split_name

__all__ = ["keep", "replay", "replay_from"]

logger = get_logger("penstock")


def replay(federation: NodeGroup, node: FederatedNode) -> None:
    """Replay the hints that others keep for a node that is back, and those that it keeps.

    Raises:
        Exception: the node has failed again.
    """
    others = federation.up(node)
    for other in others:
        try:
            lost = replay_from(federation, other, [node])
        except Exception as error:  # noqa: BLE001, PERF203  # not this node's failure
            if not federation.note_failure(other, error):
                logger.warning("hints on %s: %s", other.address, error)
        else:
            if lost is not None:
                raise lost
    replay_from(federation, node, others)


def replay_from(
    federation: NodeGroup,
    keeping_node: FederatedNode,
    nodes: Sequence[FederatedNode],
) -> Exception | None:
    """Replay the hints that one node keeps; return the failure of a node they are for."""
    lost: Exception | None = None
    key = hints_key(federation.config.prefix)
    if not nodes or not keeping_node.brief.executor.command("HLEN", key):
        return None
    cursor = b"0"
    while True:
        cursor, flat = keeping_node.brief.executor.command("HSCAN", key, cursor, "COUNT", 100)
        kept, foreign = hints.read_hints(flat)
        now = keeping_node.brief.executor.time_ms()
        over = [hint.field for hint in kept if hint.until < now]
        for node in nodes:
            own = [hint for hint in kept if hint.node in node.known and node is not keeping_node]
            try:
                for batch in hints.together(own):
                    over += _run(node, batch)
            except Exception as error:
                if not federation.note_failure(node, error):
                    raise
                lost = error
        if over:
            keeping_node.brief.executor.command("HDEL", key, *dict.fromkeys(over))
        if foreign:
            logger.warning(
                "%s keeps %d hints of an unknown kind", keeping_node.address, len(foreign)
            )
        if cursor == b"0" or lost is not None:
            return lost


def _run(node: FederatedNode, batch: Sequence[Hint]) -> list[str]:
    """Run a call for hints about jobs of one queue; return the fields to remove."""
    first = batch[0]
    ops = node.brief.operations(*split_name(first.queue))
    pairs = [text for hint in batch for text in (hint.number, hint.receipt)]
    call = ops.hinted(
        first.kind, first.epoch, window=first.window, reason=first.reason, pairs=pairs
    )
    try:
        node.brief.executor.run(call)
    except WrongEpoch:
        pass  # the queue was re-created: these jobs do not exist any more
    except Exception as error:  # the hints stay
        logger.warning("%d hints for %s: %s", len(batch), node.address, error)
        if passing(error):
            raise
        return []
    text = "late %s on %s: %d jobs of %r"
    logger.info(text, first.kind, node.address, len(batch), first.queue)
    return [hint.field for hint in batch]


def keep(
    federation: NodeGroup,
    node: FederatedNode,
    queue: str,
    names: Sequence[JobName],
    intent: Intent,
) -> list[bool]:
    """Keep a call about jobs of a node that is down on another node.

    Args:
        federation: the nodes.
        node: the node that is down.
        queue: name of the jobs' queue on it.
        names: deliveries or ids.
        intent: the call.

    Returns:
        For each job, whether a hint is kept.
    """
    if not federation.up(node):
        federation.await_looks()  # a new client may not have met the others yet
    hint_of = partial(hints.hint_of, node=node.id, queue=queue, intent=intent)
    for keeping_node in federation.preferred():
        state = keeping_node.state
        if keeping_node is node or not state.is_up:
            continue
        try:
            if state.is_stale(monotonic()):
                keeping_node.look()
            if state.leaving or state.crowded:
                continue
            are_kept = _store(keeping_node, names, hint_of)
        except Exception as error:  # noqa: BLE001  # the next node is tried
            if not federation.note_failure(keeping_node, error):
                logger.warning("hints can't be kept on %s: %s", keeping_node.address, error)
            continue
        if are_kept is not None:
            if any(are_kept) and node.state.is_up:  # it came back meanwhile
                with suppress(Exception):  # replayed when the list of nodes is read again
                    replay_from(federation, keeping_node, [node])
            return are_kept
    return [False] * len(names)


def _store(
    keeping_node: FederatedNode, names: Sequence[JobName], hint_of: Callable[..., Hint | None]
) -> list[bool] | None:
    """Store hints on a node; return for each job if one is kept, or None if there are too many."""
    key, command = hints_key(keeping_node.config.prefix), keeping_node.brief.executor.command
    now = keeping_node.brief.executor.time_ms()
    candidates = [hint_of(name, now=now) for name in names]
    kept = [hint for hint in candidates if hint is not None]
    if not kept:
        return [False] * len(names)
    if command("HLEN", key) + len(kept) > hints.MAX_HINTS:
        return None
    command("HSET", key, *(text for hint in kept for text in (hint.field, hint.value)))
    life = max(hint.until for hint in kept) - now
    if command("PTTL", key) < life:
        command("PEXPIRE", key, life)
    return [hint is not None for hint in candidates]
