"""The list of nodes that every node keeps, and the form of addresses in it.

An address has no user names, passwords or options. Those are of the client that learns it
(protocol/nodes.md, Several nodes).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from penstock.core.values.urls import host_and_port
from penstock.errors import ConfigurationError

__all__ = [
    "Entry",
    "address_of",
    "learned",
    "merged_members",
    "others",
    "read_entry",
]

URL_PATTERN = re.compile(
    r"([a-z][a-z0-9+.-]*://)(?:([^@/?#]*)@)?([^?#]*)(?:\?([^#]*))?", re.IGNORECASE
)
UNIX_SCHEME = "unix://"
HOST_AND_PORT = r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?"
ADDRESS_PATTERN = (
    rf"(?P<tls>rediss?)://(?P<host>{HOST_AND_PORT})/[0-9]{{1,5}}"
    rf"|(?P<sentinel>rediss?)\+sentinel://(?P<hosts>{HOST_AND_PORT}(?:,{HOST_AND_PORT})*)/[^@?#\s]+"
    r"|unix://(?P<path>/[^@?#\s]+)\?db=[0-9]{1,5}"
)
CLUSTER_NODE_ID = r"[0-9a-f]{40}"
SECRET_OPTION = r"(?:sentinel_)?(?:username|password|ssl_certfile|ssl_keyfile|ssl_password)"
ADDRESS_OPTION = r"host|port|db|path|connection_pool|orig_.*|maint_notifications_pool_handler"
"""Settings of a connection that are part of the address."""


class Entry(NamedTuple):
    """A node in the list.

    Attributes:
        changed: time of the entry, ms since 1970 by the clock of a node.
        address: address of the node; empty = it was removed.
    """

    changed: int
    address: str

    def __str__(self) -> str:
        return f"{self.changed} {self.address}"


def read_entry(text: str) -> Entry | None:
    """Parse a value of the list; None = this version does not know its form."""
    changed, _, address = text.partition(" ")
    return Entry(int(changed), address) if changed.isdecimal() and len(changed) < 16 else None


def merged_members(lists: Iterable[Mapping[str, str]]) -> dict[str, Entry]:
    """Merge lists: of each node the latest entry counts."""
    entries: dict[str, Entry] = {}
    for listed in lists:
        for node, text in listed.items():
            entry = read_entry(text) if re.fullmatch(CLUSTER_NODE_ID, node) else None
            if entry is not None and (node not in entries or entry > entries[node]):
                entries[node] = entry
    return entries


def others(list_: Mapping[str, str], node: str) -> list[str]:
    """Return the addresses of the other nodes in a list.

    Args:
        list_: the list that a node keeps.
        node: the whole id of that node.
    """
    entries = merged_members([list_])
    return [entry.address for one, entry in entries.items() if entry.address and one != node]


def address_of(source: object) -> str:
    """Return the address of a source, without user, password and options; empty = not known.

    Args:
        source: a URL, or a redis-py client.
    """
    if isinstance(source, str):
        match = URL_PATTERN.fullmatch(source)
        if match is None:
            return ""
        scheme, _, place, query = match.groups()
        scheme = scheme.lower()
        number = dict(parse_qsl(query or "")).get("db", "")
        if scheme == UNIX_SCHEME:
            return f"{scheme}{place}?db={number or 0}"
        base, _, last = place.partition("/")
        return f"{scheme}{base}/{number or last or 0}"
    settings = _settings(source)
    number = settings.get("db") or 0
    if "path" in settings:
        return f"{UNIX_SCHEME}{settings['path']}?db={number}"
    if "host" not in settings or type(source).__module__.partition(".")[0] != "redis":
        return ""
    scheme = "rediss" if _is_tls(source) else "redis"
    return f"{scheme}://{host_and_port(settings['host'], settings.get('port', 6379))}/{number}"


def learned(address: str, sources: Sequence[object], hosts: Sequence[str]) -> object:
    """Return a source for a node that was learned from the list.

    It has user, password and options, TLS among them, of the first source that the user gave. Only
    the address is taken from the list, as other clients may be able to write it.

    Args:
        address: address in the list.
        sources: the sources that the user gave.
        hosts: patterns of the hosts that may receive this client's password.

    Raises:
        ConfigurationError: the node can't be used.
    """
    match = re.fullmatch(ADDRESS_PATTERN, address)
    if match is None:
        raise ConfigurationError(
            "its address must have a scheme, host, port and database, and nothing else"
        )
    if "rediss" not in (match["tls"], match["sentinel"]) and any(map(_is_tls, sources)):
        scheme = address.partition("://")[0]
        raise ConfigurationError(f"{scheme}:// has no TLS, but this client's URL has")
    strange = [host for host in _hosts(match) if not any(fnmatchcase(host, one) for one in hosts)]
    if strange and any(map(_has_secret, sources)):
        raise ConfigurationError(
            f"this client has a password or a certificate, and {strange[0]} is not among its "
            "node_hosts: name it there, or give the URL of that node as well"
        )
    first = sources[0]
    return _joined(address, first) if isinstance(first, str) else _relocated(first, address)


def _hosts(match: re.Match[str]) -> list[str]:
    if match["path"]:
        return ["localhost"]
    many = (match["host"] or match["hosts"]).lower().split(",")
    return [re.sub(r":[0-9]*$", "", one).strip("[]") for one in many]


def _is_tls(source: object) -> bool:
    if isinstance(source, str):
        return source.lower().startswith("rediss")
    kind = getattr(getattr(source, "connection_pool", None), "connection_class", None)
    return "SSL" in getattr(kind, "__name__", "")


def _has_secret(source: object) -> bool:
    if isinstance(source, str):
        match = URL_PATTERN.fullmatch(source)
        if match is None:
            return False
        _, user, _, query = match.groups(default="")
        return bool(user) or any(re.fullmatch(SECRET_OPTION, name) for name, _ in parse_qsl(query))
    settings = _settings(source)
    names = [name for name, value in settings.items() if value]
    return "credential_provider" in names or any(
        re.fullmatch(SECRET_OPTION, name) for name in names
    )


def _settings(source: object) -> Mapping[str, Any]:
    settings: Mapping[str, Any] = getattr(
        getattr(source, "connection_pool", None), "connection_kwargs", {}
    )
    return settings


def _joined(address: str, source: str) -> str:
    """Return the URL of `address`, with the user and the options of `source`."""
    match = URL_PATTERN.fullmatch(source)
    user, query = (match[2] or "", match[4] or "") if match else ("", "")
    options = [text for text in query.split("&") if text and not text.startswith("db=")]
    scheme, _, place = address.partition("://")
    place, _, number = place.partition("?")
    text = "&".join([*([number] if number else []), *options])
    return f"{scheme}://{user + '@' if user else ''}{place}{'?' + text if text else ''}"


def _relocated(source: Any, address: str) -> object:
    kinds = {kind.__name__: kind for kind in type(source).__mro__ if _is_redis(kind)}
    pool = getattr(source, "connection_pool", None)
    pools = [k for k in type(pool).__mro__ if k.__name__ == "ConnectionPool" and _is_redis(k)]
    if "Redis" not in kinds or not pools:
        name = type(source).__name__
        raise ConfigurationError(f"the settings of a {name} can't be used for other servers")
    place = pools[0].from_url(address)  # type: ignore[attr-defined]  # both of redis-py's have it
    settings = {
        name: value
        for name, value in _settings(source).items()
        if not re.fullmatch(ADDRESS_OPTION, name)
    }
    for name in ("host", "port", "db", "path"):
        if name in place.connection_kwargs:
            settings[name] = place.connection_kwargs[name]
    new_pool = pools[0](connection_class=place.connection_class, **settings)
    return kinds["Redis"](connection_pool=new_pool)


def _is_redis(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "redis"
