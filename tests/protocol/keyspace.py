"""The whole key space of a server as plain data, to be loaded and compared (tests/vectors)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

__all__ = ["Raw", "Space", "dump", "load", "same", "text"]

Raw: TypeAlias = Any
"""A redis-py client; the types of its replies depend on settings."""
Space: TypeAlias = dict[str, dict[str, Any]]
"""Name of a key -> its type and value. Text is bytes: the character U+00nn is the byte nn."""

LEEWAY_MS = 60_000
"""Maximum of ms between a write and the dump."""


def text(data: bytes | str) -> str:
    """Return bytes in the form of JSON files."""
    return data if isinstance(data, str) else data.decode("latin-1")


def dump(raw: Raw) -> Space:
    """Return every key with its type and whole value."""
    return {text(key): _value(raw, key) for key in sorted(raw.keys("*"))}


def _value(raw: Raw, key: bytes) -> dict[str, Any]:
    kind = text(raw.type(key))
    value: dict[str, Any] = {"type": kind}
    if kind == "stream":
        value["last"] = text(raw.xinfo_stream(key)["last-generated-id"])
        value["entries"] = [
            [text(number), [text(part) for pair in fields.items() for part in pair]]
            for number, fields in raw.xrange(key)
        ]
    elif kind == "hash":
        found = raw.hgetall(key)
        value["fields"] = {text(name): text(found[name]) for name in sorted(found)}
    elif kind == "zset":
        flat = raw.execute_command("ZRANGE", key, 0, -1, "WITHSCORES")
        value["members"] = {text(member): _whole(score) for member, score in _pairs(flat)}
    elif kind == "list":
        value["items"] = [text(item) for item in raw.lrange(key, 0, -1)]
    else:
        value["value"] = text(raw.get(key))
    left = raw.pttl(key)
    if left > 0:
        value["px"] = left
    return value


def _pairs(flat: Any) -> list[tuple[Any, Any]]:
    if flat and isinstance(flat[0], tuple):
        return list(flat)
    return list(zip(flat[::2], flat[1::2], strict=True))


def _whole(score: Any) -> str:
    number = float(score)
    return str(int(number)) if number.is_integer() else repr(number)


def load(raw: Raw, space: Mapping[str, Mapping[str, Any]]) -> None:
    """Write these keys into an empty database."""
    for name, value in space.items():
        _LOADERS[value["type"]](raw, name.encode("latin-1"), value)
        if "px" in value:
            raw.pexpire(name.encode("latin-1"), value["px"])


def _load_stream(raw: Raw, key: bytes, value: Mapping[str, Any]) -> None:
    for number, fields in value["entries"]:
        raw.execute_command("XADD", key, number, *(part.encode("latin-1") for part in fields))
    if not value["entries"] or value["entries"][-1][0] != value["last"]:
        raw.execute_command("XADD", key, value["last"], "j", "")
        raw.execute_command("XDEL", key, value["last"])


def _load_hash(raw: Raw, key: bytes, value: Mapping[str, Any]) -> None:
    for field, content in value["fields"].items():
        raw.execute_command("HSET", key, field.encode("latin-1"), content.encode("latin-1"))


def _load_zset(raw: Raw, key: bytes, value: Mapping[str, Any]) -> None:
    for member, score in value["members"].items():
        raw.execute_command("ZADD", key, score, member.encode("latin-1"))


def _load_list(raw: Raw, key: bytes, value: Mapping[str, Any]) -> None:
    raw.execute_command("RPUSH", key, *(item.encode("latin-1") for item in value["items"]))


def _load_string(raw: Raw, key: bytes, value: Mapping[str, Any]) -> None:
    raw.execute_command("SET", key, value["value"].encode("latin-1"))


_LOADERS = {
    "stream": _load_stream,
    "hash": _load_hash,
    "zset": _load_zset,
    "list": _load_list,
    "string": _load_string,
}


def same(found: Space, wanted: Space) -> bool:
    """Tell if two key spaces are equal; a time to live may be up to a minute shorter."""
    return _without_px(found) == _without_px(wanted) and all(
        _px_fits(found[name].get("px"), value.get("px")) for name, value in wanted.items()
    )


def _without_px(space: Space) -> Space:
    return {
        name: {part: content for part, content in value.items() if part != "px"}
        for name, value in space.items()
    }


def _px_fits(found: int | None, wanted: int | None) -> bool:
    if found is None or wanted is None:
        return found is wanted
    return abs(wanted - found) < LEEWAY_MS
