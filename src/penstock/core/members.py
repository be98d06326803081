"""The list of nodes that is kept on every node, and how their addresses are written.

An address says where a node is, and nothing of who may use it: names, passwords and options are
those of the client that learns it (PROTOCOL.md, Several nodes).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote

from penstock.errors import BadArgument

__all__ = ["Entry", "address_of", "joined", "merged_members", "read_entry"]

URL = re.compile(r"([a-z][a-z0-9+.-]*://)(?:([^@/?#]*)@)?([^?#]*)(?:\?([^#]*))?")
LOCAL = "unix://"


class Entry(NamedTuple):
    """What the list says of a node.

    Attributes:
        changed: when that was written, ms since 1970 by the clock of some node.
        address: where it is; empty = it was forgotten.
    """

    changed: int
    address: str

    def __str__(self) -> str:
        return f"{self.changed} {self.address}"


def read_entry(text: str) -> Entry | None:
    """A value of the list; None = none that this version understands."""
    changed, _, address = text.partition(" ")
    return Entry(int(changed), address) if changed.isdecimal() and len(changed) < 16 else None


def merged_members(lists: Iterable[Mapping[str, str]]) -> dict[str, Entry]:
    """Several lists taken together: of each node what was written last."""
    found: dict[str, Entry] = {}
    for one in lists:
        for node, text in one.items():
            entry = read_entry(text)
            if entry is not None and (node not in found or entry > found[node]):
                found[node] = entry
    return found


def check_url(argument: str, value: object) -> str:
    """A URL of a node.

    Raises:
        BadArgument: it is none.
    """
    if not isinstance(value, str) or URL.fullmatch(value) is None:
        raise BadArgument(argument, value, "the URL of a node")
    return value


def address_of(source: object) -> str:
    """Where a source leads, without names, passwords and options; empty = nobody else can tell.

    Args:
        source: a URL, or a redis-py client.
    """
    if isinstance(source, str):
        found = URL.fullmatch(source)
        if found is None:
            return ""
        scheme, _, place, query = found.groups()
        number = dict(parse_qsl(query or "")).get("db", "")
        if scheme == LOCAL:
            return f"{scheme}{place}?db={number or 0}"
        base, _, last = place.partition("/")
        return f"{scheme}{base}/{number or last or 0}"
    pool: Any = getattr(source, "connection_pool", None)
    settings = dict(getattr(pool, "connection_kwargs", {}))
    number = settings.get("db") or 0
    if "path" in settings:
        return f"{LOCAL}{settings['path']}?db={number}"
    if "host" not in settings or type(source).__module__.partition(".")[0] != "redis":
        return ""
    scheme = "rediss" if "SSL" in pool.connection_class.__name__ else "redis"
    return f"{scheme}://{settings['host']}:{settings.get('port', 6379)}/{number}"


def joined(address: str, source: object) -> str:
    """The URL of a node that was learned: its address, the name and options of a source we have."""
    scheme, _, place, query = _parts(address)
    if isinstance(source, str):
        _, user, _, options = _parts(source)
        pairs = [pair for pair in parse_qsl(options or "") if pair[0] != "db"]
    else:
        settings = getattr(getattr(source, "connection_pool", None), "connection_kwargs", {})
        user, pairs = _user(settings), []
    pairs = [*parse_qsl(query or ""), *pairs]
    text = "&".join(f"{quote(name)}={quote(value)}" for name, value in pairs)
    return f"{scheme}{user + '@' if user else ''}{place}{'?' + text if text else ''}"


def _parts(url: str) -> tuple[str, str, str, str]:
    found = URL.fullmatch(url)
    assert found is not None
    scheme, user, place, query = found.groups(default="")
    return scheme, user, place, query


def _user(settings: Mapping[str, Any]) -> str:
    name, password = settings.get("username") or "", settings.get("password") or ""
    return f"{quote(name, safe='')}:{quote(password, safe='')}" if name or password else ""


__all__ += ["check_url"]
