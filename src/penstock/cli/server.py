"""The command about the server: info."""

from __future__ import annotations

from dataclasses import asdict

from penstock import Hello, Info
from penstock.cli import output
from penstock.cli.app import Session, command

__all__ = ["info"]


@command("info")
def info(session: Session) -> None:
    """Show the server, its memory, and how many queues and jobs it holds."""
    with session.client() as client:
        hello, found = client.hello(), client.info()
    document = {"hello": asdict(hello), "info": asdict(found)}
    session.answer(document, lambda: _print_info(hello, found))


def _print_info(hello: Hello, found: Info) -> None:
    facts = {
        **asdict(found),
        "protocol": hello.version,
        "uptime": output.span(found.uptime),
        "used_memory": _size(found.used_memory),
        "max_memory": _size(found.max_memory, nothing="no limit"),
        "aof_enabled": {True: "yes", False: "no", None: None}[found.aof_enabled],
    }
    shown = [(name.replace("_", " "), value) for name, value in facts.items()]
    addresses = ", ".join(one.address for one in hello.nodes)
    output.table(("", ""), [("address", addresses), *_known(shown)])


def _known(facts: list[tuple[str, object]]) -> list[tuple[str, object]]:
    """What the server tells; on some it does not tell everything."""
    return [(name, value) for name, value in facts if value not in (None, "")]


def _size(count: int | None, nothing: str = "") -> str:
    if count is None:
        return ""
    return output.size(count) if count or not nothing else nothing
