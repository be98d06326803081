"""The command `nodes`: list, add, empty and remove nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Literal

from penstock import Drain, NodesMissed, NodeView
from penstock.cli import output
from penstock.cli.app import Session, command
from penstock.cli.output import Failed
from penstock.cli.parameters import Argument, BadUsage

__all__ = ["nodes"]


@command("nodes")
def nodes(
    session: Session,
    action: Annotated[
        Literal["list", "add", "leave", "drained", "forget", "join"],
        Argument("ACTION"),
    ] = "list",
    node: Annotated[str | None, Argument("NODE")] = None,
) -> None:
    """List the nodes of a federation, or change one of them.

    --url names one or several of them; the others are learned from these.

    Args:
        action: what to do: list; add = add the node at a URL; leave = send no new jobs to it;
            drained = exit code 1 unless it is empty; forget = remove it from the list; join =
            undo leave.
        node: id of the node (8 digits are enough) or its address; its URL for add.

    Examples:
        penstock nodes
        penstock nodes add redis://10.0.0.7:6379/0
    """
    if (node is None) != (action == "list"):
        needs = "takes no NODE" if action == "list" else "needs a NODE: its id or its address"
        raise BadUsage(f"{action} {needs}")
    missed = None
    with session.client() as client:
        if action == "drained":
            _show_drain(session, client.nodes.check_drained(node or ""))
            return
        try:
            if action != "list":
                getattr(client.nodes, action)(node)
        except NodesMissed as error:
            missed = error
        found = client.nodes.list()
    session.answer({"nodes": [asdict(one) for one in found]}, lambda: _print(found))
    if missed:
        raise Failed(f"{missed}; repeat the command when they are back")


def _print(found: Sequence[NodeView]) -> None:
    columns = ("id", "address", "priority", "used", "max", "leaving", "error")
    rows = list[tuple[object, ...]]()
    for one in found:
        used, most = output.size(one.used_memory), output.limit(one.max_memory)
        leaving = "yes" if one.leaving else ""
        rows.append((one.id, one.address, one.priority, used, most, leaving, one.error))
        rows += [
            (
                "",
                part.address,
                "",
                output.size(part.used_memory),
                output.limit(part.max_memory),
                "",
                part.error,
            )
            for part in one.primaries
        ]
    output.table(columns, rows, right="priority used max")


def _show_drain(session: Session, left: Drain) -> None:
    figures = asdict(left)
    session.answer({"drained": bool(left), **figures}, lambda: output.facts(figures))
    if not left:
        text = "the node is not empty yet: it has waiting or active jobs, staged rows, or hints"
        raise Failed(text)
