# From src/penstock/client/_async/route/reserving.py by tools/unasync.py; do not edit.
"""Takes jobs from several queues, on one node or on several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from penstock.client._sync.nodes.node import Node
from penstock.client._sync.route.interfaces import Route
from penstock.client.clock import monotonic
from penstock.core import flows
from penstock.core.calls.failures import passing
from penstock.core.calls.operations import QueueOps
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.client._sync.nodes.federation import Federation

__all__ = ["reserve_on_node", "reserve_on_nodes"]


def reserve_on_node(
    node: Node,
    routes: Sequence[Route],
    request: flows.ReserveRequest,
) -> list[Any]:
    """Take up to n jobs from several queues on one node; see `QueueTopology.reserve`."""
    node.connect()
    for route in routes:
        route.declare()
    is_apart = node.is_apart and any(route.part is None for route in routes)
    count = sum(len(route.operations) for route in routes)
    rules = _make_rules(routes, apart=is_apart and count > 1)
    flow = flows.reserve(rules, request)
    return (node.brief_driver() if is_apart else node.driver).drive(flow)


def reserve_on_nodes(
    federation: Federation,
    routes: Sequence[Route],
    request: flows.ReserveRequest,
) -> list[Any]:
    """Take up to n jobs from several queues on all nodes; see `QueueTopology.reserve`."""
    federation.connect()
    for route in routes:
        route.declare()
    unavailable = federation.unavailable
    rules = _make_rules(routes, apart=True, unavailable=unavailable)
    return federation.drive(flows.reserve(rules, request))


def _make_rules(
    routes: Sequence[Route],
    *,
    apart: bool,
    unavailable: Callable[[], PenstockError] | None = None,
) -> flows.ReserveRules:
    if len(routes) == 1:
        order, noted = routes[0].order_parts, routes[0].note_poll
    else:
        several = _SeveralQueues(routes)
        order, noted = several.order_parts, several.note_poll
    return flows.ReserveRules(
        order=order,
        clock=monotonic,
        transient=passing,
        noted=noted,
        apart=apart,
        unavailable=unavailable,
    )


class _SeveralQueues:
    """The routes of several queues of which one call takes jobs, the first queue first."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._routes = routes
        self._route_of: dict[QueueOps, Route] = {}

    def order_parts(self) -> tuple[list[QueueOps], int]:
        """Return all parts, as each may have jobs; see `Route.order_parts`."""
        ordered: list[QueueOps] = []
        for route in self._routes:
            parts, _ = route.order_parts()
            self._route_of.update(dict.fromkeys(parts, route))
            ordered += parts
        return ordered, len(ordered)

    def note_poll(self, ops: QueueOps, count: int | None) -> None:
        """Tell the route of a part how many jobs the part gave."""
        self._route_of[ops].note_poll(ops, count)
