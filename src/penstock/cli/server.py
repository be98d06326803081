"""The command `info`, about the server."""

from __future__ import annotations

from dataclasses import asdict

from penstock import Hello, Info
from penstock.cli import output
from penstock.cli.app import Session, command

__all__ = ["info"]


@command("info")
def info(session: Session) -> None:
    """Show the server, its memory, and how many queues and jobs it holds.

    Examples:
        penstock info
    """
    with session.client() as client:
        hello, found = client.hello(), client.info()
    document = {"hello": asdict(hello), "info": asdict(found)}
    session.answer(document, lambda: _print_info(hello, found))


def _print_info(hello: Hello, found: Info) -> None:
    figures = {
        "address": ", ".join(one.address for one in hello.nodes),
        **asdict(found),
        "protocol": hello.version,
        "uptime": output.span(found.uptime),
        "used_memory": output.size(found.used_memory),
        "max_memory": output.limit(found.max_memory),
        "aof_enabled": {True: "yes", False: "no", None: None}[found.aof_enabled],
    }
    output.facts({name.replace("_", " "): value for name, value in figures.items()})
