"""The whole key space of a server as plain data, to be loaded and compared (tests/vectors)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, TypeAlias

__all__ = ["Raw", "Space", "dump", "load", "same", "text", "without_px"]

Raw: TypeAlias = Any
"""A redis-py client; the types of its replies depend on settings."""
Space: TypeAlias = dict[str, dict[str, Any]]
"""Name of a key -> its content, whose name tells the type. The character U+00nn is the byte nn."""

LEEWAY_MS = 30_000
"""Maximum of ms between a write and the dump."""


def text(data: bytes | str) -> str:
    """Return bytes in the form of JSON files."""
    return data if isinstance(data, str) else data.decode("latin-1")


def dump(raw: Raw) -> Space:
    """Return every key with its whole content, in three round trips."""
    keys = sorted(raw.keys("*"))
    with raw.pipeline(transaction=False) as pipe:
        for key in keys:
            pipe.type(key).pttl(key)
        facts = pipe.execute()
        kinds = [text(kind) for kind in facts[::2]]
        for key, kind in zip(keys, kinds, strict=True):
            _read(pipe, key, kind)
        values = iter(pipe.execute())
    space: Space = {}
    for key, kind, left in zip(keys, kinds, facts[1::2], strict=True):
        space[text(key)] = _value(kind, values)
        if left > 0:
            space[text(key)]["px"] = left
    return space


def _read(pipe: Raw, key: bytes, kind: str) -> None:
    if kind == "stream":
        pipe.xinfo_stream(key).xrange(key)
    elif kind == "hash":
        pipe.hgetall(key)
    elif kind == "zset":
        pipe.execute_command("ZRANGE", key, 0, -1, "WITHSCORES")
    elif kind == "list":
        pipe.lrange(key, 0, -1)
    else:
        pipe.get(key)


def _value(kind: str, replies: Iterator[Any]) -> dict[str, Any]:
    found = next(replies)
    if kind == "stream":
        entries = {
            text(number): [text(part) for pair in fields.items() for part in pair]
            for number, fields in next(replies)
        }
        return {"last": text(found["last-generated-id"]), "entries": entries}
    if kind == "hash":
        return {"fields": {text(name): text(found[name]) for name in sorted(found)}}
    if kind == "zset":
        return {"members": {text(member): _whole(score) for member, score in _pairs(found)}}
    if kind == "list":
        return {"items": [text(item) for item in found]}
    return {"value": text(found)}


def _pairs(flat: Any) -> list[tuple[Any, Any]]:
    if flat and isinstance(flat[0], tuple):
        return list(flat)
    return list(zip(flat[::2], flat[1::2], strict=True))


def _whole(score: Any) -> str:
    number = float(score)
    return str(int(number)) if number.is_integer() else repr(number)


def load(raw: Raw, space: Mapping[str, Mapping[str, Any]]) -> None:
    """Write these keys into an empty database, in one round trip."""
    with raw.pipeline(transaction=False) as pipe:
        for name, value in space.items():
            key = name.encode("latin-1")
            [part] = _LOADERS.keys() & value.keys()
            _LOADERS[part](pipe, key, value)
            if "px" in value:
                pipe.pexpire(key, value["px"])
        pipe.execute()


def _load_stream(pipe: Raw, key: bytes, value: Mapping[str, Any]) -> None:
    numbers = sorted(value["entries"], key=lambda number: [int(n) for n in number.split("-")])
    for number in numbers:
        fields = (part.encode("latin-1") for part in value["entries"][number])
        pipe.execute_command("XADD", key, number, *fields)
    if numbers[-1:] != [value["last"]]:
        pipe.execute_command("XADD", key, value["last"], "j", "")
        pipe.execute_command("XDEL", key, value["last"])


def _load_hash(pipe: Raw, key: bytes, value: Mapping[str, Any]) -> None:
    pairs = (part.encode("latin-1") for pair in value["fields"].items() for part in pair)
    pipe.execute_command("HSET", key, *pairs)


def _load_zset(pipe: Raw, key: bytes, value: Mapping[str, Any]) -> None:
    pairs = ((score, member.encode("latin-1")) for member, score in value["members"].items())
    pipe.execute_command("ZADD", key, *chain.from_iterable(pairs))


def _load_list(pipe: Raw, key: bytes, value: Mapping[str, Any]) -> None:
    pipe.execute_command("RPUSH", key, *(item.encode("latin-1") for item in value["items"]))


def _load_string(pipe: Raw, key: bytes, value: Mapping[str, Any]) -> None:
    pipe.execute_command("SET", key, value["value"].encode("latin-1"))


_LOADERS = {
    "entries": _load_stream,
    "fields": _load_hash,
    "members": _load_zset,
    "items": _load_list,
    "value": _load_string,
}


def same(found: Space, wanted: Space) -> bool:
    """Tell if two key spaces are equal; a time to live may be up to a minute shorter."""
    return without_px(found) == without_px(wanted) and all(
        _px_fits(found[name].get("px"), value.get("px")) for name, value in wanted.items()
    )


def without_px(space: Space) -> Space:
    """Return the keys without their times to live."""
    return {
        name: {part: content for part, content in value.items() if part != "px"}
        for name, value in space.items()
    }


def _px_fits(found: int | None, wanted: int | None) -> bool:
    if found is None or wanted is None:
        return found is wanted
    return abs(wanted - found) < LEEWAY_MS
