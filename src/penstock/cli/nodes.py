"""The command about several nodes: which there are, and what is done about one of them."""

from __future__ import annotations

from dataclasses import asdict
from enum import Enum
from typing import Annotated, Any

import typer

from penstock import Drain, NodesMissed, NodeView, Penstock
from penstock.cli import output
from penstock.cli.app import Failed, Session, command

__all__ = ["nodes"]


class Action(str, Enum):
    """The actions of `penstock nodes`."""

    LIST = "list"
    ADD = "add"
    LEAVE = "leave"
    DRAINED = "drained"
    FORGET = "forget"
    JOIN = "join"


@command("nodes")
def nodes(
    session: Session,
    action: Annotated[
        Action,
        typer.Argument(
            help="list; add URL; leave = send no new jobs there; drained = exit code 1 unless it "
            "is empty; forget = remove it from the list; join = undo leave.",
            show_default=False,
        ),
    ] = Action.LIST,
    node: Annotated[
        str | None,
        typer.Argument(
            metavar="[NODE]",
            help="Id (its first 8 digits) or address of the node; for add a URL.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """List the nodes of a federation, or do something about one of them.

    --url names one of them, or several with blanks between; the others are learned from it.
    """
    if (node is None) != (action is Action.LIST):
        raise typer.BadParameter("list takes no NODE; the other actions need one")
    if action is Action.DRAINED:
        _show_drain(session, node or "")
        return
    with session.client() as client:
        told = _done(client, action, node or "")
        found = client.nodes.list()
    document = {"nodes": [asdict(one) for one in found]}
    session.answer(document, lambda: _print(found))
    if told:
        raise Failed(told)


def _done(client: Penstock, action: Action, node: str) -> str:
    """Do it; what is to be said of nodes that were missed."""
    try:
        if action is not Action.LIST:
            getattr(client.nodes, action.value)(node)
    except NodesMissed as error:
        return f"{error}; repeat the command when they are back"
    return ""


def _print(found: tuple[NodeView, ...]) -> None:
    columns = ("id", "address", "priority", "used", "max", "leaving", "error")
    rows = [
        (
            one.id,
            one.address,
            one.priority,
            _size(one.used_memory),
            "no limit" if one.max_memory == 0 else _size(one.max_memory),
            "yes" if one.leaving else "",
            one.error,
        )
        for one in found
    ]
    output.table(columns, rows, right="priority used max")


def _size(count: int | None) -> str:
    return "" if count is None else output.size(count)


def _show_drain(session: Session, node: str) -> None:
    with session.client() as client:
        found: Drain = client.nodes.drained(node)
    figures: dict[str, Any] = asdict(found)
    session.answer(
        {"drained": bool(found), **figures},
        lambda: output.table(("", ""), list(figures.items()), right=""),
    )
    if not found:
        raise Failed("it is not empty yet")
