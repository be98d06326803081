"""Takes jobs from several queues, on one node or on several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from penstock.client._async.nodes.node import AsyncNode
from penstock.client._async.route.interfaces import AsyncRoute
from penstock.client.clock import monotonic
from penstock.core import flows
from penstock.core.calls.failures import passing
from penstock.core.calls.operations import QueueOps
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.client._async.nodes.federation import AsyncFederation

__all__ = ["reserve_on_node", "reserve_on_nodes"]


async def reserve_on_node(
    node: AsyncNode,
    routes: Sequence[AsyncRoute],
    request: flows.ReserveRequest,
) -> list[Any]:
    """Take up to n jobs from several queues on one node; see `AsyncQueueTopology.reserve`."""
    await node.connect()
    for route in routes:
        await route.declare()
    is_apart = node.is_apart and any(route.part is None for route in routes)
    count = sum(len(route.operations) for route in routes)
    rules = _make_rules(routes, apart=is_apart and count > 1)
    flow = flows.reserve(rules, request)
    return await (node.brief_driver() if is_apart else node.driver).drive(flow)


async def reserve_on_nodes(
    federation: AsyncFederation,
    routes: Sequence[AsyncRoute],
    request: flows.ReserveRequest,
) -> list[Any]:
    """Take up to n jobs from several queues on all nodes; see `AsyncQueueTopology.reserve`."""
    await federation.connect()
    for route in routes:
        await route.declare()
    unavailable = federation.unavailable
    rules = _make_rules(routes, apart=True, unavailable=unavailable)
    return await federation.drive(flows.reserve(rules, request))


def _make_rules(
    routes: Sequence[AsyncRoute],
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

    def __init__(self, routes: Sequence[AsyncRoute]) -> None:
        self._routes = routes
        self._route_of: dict[QueueOps, AsyncRoute] = {}

    def order_parts(self) -> tuple[list[QueueOps], int]:
        """Return all parts, as each may have jobs; see `AsyncRoute.order_parts`."""
        ordered: list[QueueOps] = []
        for route in self._routes:
            parts, _ = route.order_parts()
            self._route_of.update(dict.fromkeys(parts, route))
            ordered += parts
        return ordered, len(ordered)

    def note_poll(self, ops: QueueOps, count: int | None) -> None:
        """Tell the route of a part how many jobs the part gave."""
        self._route_of[ops].note_poll(ops, count)
