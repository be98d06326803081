# From src/penstock/client/_async/route/reserving.py by tools/unasync.py; do not edit.
"""Takes jobs from several queues, on one node or on several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.client._sync.nodes.node import Node
from penstock.client._sync.route.interfaces import Route
from penstock.client.clock import monotonic
from penstock.core import flows
from penstock.core.calls.failures import passing
from penstock.core.calls.operations import QueueOps, Taken
from penstock.core.values.confirmations import Wait
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.client._sync.nodes.federation import Federation

__all__ = ["reserve_on_node", "reserve_on_nodes"]


def reserve_on_node(
    node: Node,
    routes: Sequence[Route],
    n: int,
    wait: float | None,
    *,
    seen: Taken | None,
    confirm: Wait | None,
) -> list[Any]:
    """Take up to n jobs from several queues on one node; see `QueueTopology.reserve`."""
    node.connect()
    for route in routes:
        route.declare()
    is_apart = node.is_apart and any(route.part is None for route in routes)
    count = sum(len(route.operations) for route in routes)
    rules = _make_rules(routes, apart=is_apart and count > 1, confirm=confirm)
    flow = flows.reserve(rules, n, wait, seen)
    return (node.brief_driver() if is_apart else node.driver).drive(flow)


def reserve_on_nodes(
    federation: Federation,
    routes: Sequence[Route],
    n: int,
    wait: float | None,
    *,
    confirm: Wait | None,
) -> list[Any]:
    """Take up to n jobs from several queues on all nodes; see `QueueTopology.reserve`."""
    federation.connect()
    for route in routes:
        route.declare()
    unavailable = federation.unavailable
    rules = _make_rules(routes, apart=True, unavailable=unavailable, confirm=confirm)
    return federation.drive(flows.reserve(rules, n, wait))


def _make_rules(
    routes: Sequence[Route],
    *,
    apart: bool,
    unavailable: Callable[[], PenstockError] | None = None,
    confirm: Wait | None,
) -> flows.ReserveRules:
    order = partial(_order_parts, routes)
    return flows.ReserveRules(
        order=order,
        clock=monotonic,
        transient=passing,
        noted=_note_poll,
        apart=apart,
        unavailable=unavailable,
        wait=confirm,
    )


def _order_parts(routes: Sequence[Route]) -> tuple[list[QueueOps], int]:
    if len(routes) == 1:
        return routes[0].order_parts()
    ordered = [ops for route in routes for ops in route.order_parts()[0]]
    return ordered, len(ordered)


def _note_poll(ops: QueueOps, count: int | None) -> None:
    ops.queue.route.note_poll(ops, count)
