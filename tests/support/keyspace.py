"""The keys of a server for tests: whole dumps, and the invariant of the layout."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import redis

from penstock.core.calls.operations import QueueOps
from penstock.core.values.partitions import read_count
from penstock.wire.keys import (
    DEFAULT_PREFIX,
    KEY_KINDS,
    LASTING_KINDS,
    PRIORITY_SPAN,
    registry_key,
    tag,
)
from penstock.wire.scripts import all_scripts
from penstock.worker.step_run import outcomes_in
from tests.support.twins import wait_for

__all__ = [
    "Raw",
    "advance",
    "check_invariant",
    "drop_producers",
    "dump",
    "evalshas",
    "method_of",
    "numbers",
    "queue_time_ms",
    "raw_time",
    "reach_blocked",
]

Raw: TypeAlias = Any
"""A redis-py client; the types of its replies depend on settings."""

LARGE = 4096
"""Bodies above this many bytes are stored separately."""
INDEXES = ("active", "once", "scheduled", "parked", "dead")


def dump(raw: Raw) -> dict[bytes, Any]:
    """Return every key with its type and value, and whether it expires."""
    return {key: (_value(raw, key), raw.pttl(key) > 0) for key in sorted(raw.scan_iter(count=1000))}


def _value(raw: Raw, key: bytes) -> tuple[str, Any]:
    kind = raw.type(key).decode()
    if kind == "stream":
        last = raw.xinfo_stream(key)["last-generated-id"]
        return kind, (last, raw.xrange(key))
    readers: dict[str, Callable[[], Any]] = {
        "string": lambda: raw.get(key),
        "hash": lambda: raw.hgetall(key),
        "zset": lambda: raw.zrange(key, 0, -1, withscores=True),
        "list": lambda: raw.lrange(key, 0, -1),
        "set": lambda: raw.smembers(key),
    }
    return kind, readers[kind]()


def numbers(raw: Raw, ops: QueueOps, kind: str) -> list[bytes]:
    """Return the job numbers in one structure of a queue, in its order."""
    key = ops.keys[kind]
    if kind == "ready":
        return [entry[0] for entry in raw.xrange(key)]
    if kind in ("held", "tally"):
        return sorted(name for name in raw.hkeys(key) if not name.startswith(b"="))
    return list(raw.zrange(key, 0, -1))


def check_invariant(raw: Raw, prefix: str = DEFAULT_PREFIX, *, is_listed: bool = True) -> None:
    """Each record lies in one place, each held job in one index, and all of it is listed.

    Raises:
        AssertionError: what is wrong, and in which queue.
    """
    parts = [key.rpartition(b"}:") for key in raw.scan_iter(f"{prefix}:{{*", count=1000)]
    # keys of other programs have one more colon and a name
    kinds = [part for part in parts if b":" not in part[2]]
    # these stay for a while behind a cleared queue, or come before it exists
    apart = {b"finished", *(kind.encode() for kind in LASTING_KINDS)}
    bases = {tagged + end for tagged, end, kind in kinds if kind not in apart}
    for base in bases:
        _check_queue(raw, base, raw.hvals(registry_key(prefix)) if is_listed else None)


def _check_queue(raw: Raw, base: bytes, listed: list[bytes] | None) -> None:
    if read_count(raw.hget(base + b"meta", "v")) is not None:  # the name of a partitioned queue
        assert raw.hlen(base + b"meta") == 1, f"{base!r}: more than the number of partitions"
        others = [kind for kind in KEY_KINDS if kind != "meta" and raw.exists(base + kind.encode())]
        assert not others, f"{base!r}: has partitions, and {others} of its own"
        return
    waiting = {number: fields[b"j"] for number, fields in raw.xrange(base + b"ready")}
    ready = waiting.keys()
    stored = raw.hgetall(base + b"held")
    for number in stored.pop(b"=", b"").split():  # its body is removed by a later call
        stored.pop(b"=" + number, None)
    kept = {name: stored.pop(name) for name in [*stored] if name.startswith(b">")}
    held = {number for number in stored if not number.startswith(b"=")}
    indexes = {kind: set(raw.zrange(base + kind.encode(), 0, -1)) for kind in INDEXES}
    assert not ready & held, f"{base!r}: in ready and in held: {ready & held}"
    for kind, members in indexes.items():
        assert members <= held, f"{base!r}: in {kind}, not in held: {members - held}"
    records = waiting | {number: _without_note(stored[number]) for number in held}
    _check_bodies(base, stored, records)
    total = sum(len(members) for members in indexes.values())
    assert total == len(held), f"{base!r}: {len(held)} held jobs have {total} places in indexes"
    tally = raw.hgetall(base + b"tally")
    steps = _check_notes(base, tally, held)
    _check_calls(base, tally, raw.hgetall(base + b"members"))
    fields = set(raw.hkeys(base + b"tally")) - steps
    marks = {field[1:] for field in fields if field[:1] in (b"c", b"e", b"p", b"s")}
    counted = {field for field in fields if field[1:] not in marks}
    gone = (counted | marks) - held
    assert not gone, f"{base!r}: counters or marks of jobs that are gone: {gone}"
    ends = set(raw.zrange(base + b"expiry", 0, -1))
    groups = {name for name in ends if name.startswith(b">")}
    counts = {name: int(block.split(b"\n", 1)[0]) for name, block in kept.items()}
    expected = {b">%d %d %b" % (len(kept[name]), counts[name], name[1:]) for name in kept}
    assert groups == expected, f"{base!r}: results {expected}, ends of {groups}"
    for name, block in kept.items():
        found = block.count(b"\n" + name[1:])
        assert found == counts[name], f"{base!r}: {found} results in {name!r}, not {counts[name]}"
    size, noted = sum(map(len, kept.values())), raw.hmget(base + b"meta", "kept", "kept_bytes")
    told, count = [int(one or 0) for one in noted], sum(counts.values())
    assert told == [count, size], f"{base!r}: {count} results, {size} bytes, noted {told}"
    awaited = {name for name in ends if name[:1] in (b"?", b"!")}
    unended = {
        mark + number for number in (ready | held) - indexes["dead"] for mark in (b"?", b"!")
    }
    assert awaited <= unended, f"{base!r}: marks of ended jobs: {awaited - unended}"
    _check_batches(base, raw, ready | held)
    ends -= groups | awaited
    unfinished = ready | indexes["active"] | indexes["scheduled"] | indexes["parked"]
    assert ends <= unfinished, f"{base!r}: ends of ttl of other jobs: {ends - unfinished}"
    heads = {number: _fields(record) for number, record in records.items()}
    named, starting = _check_dedup(raw, base, indexes, heads, ends)
    ruled = {
        number
        for number, head in heads.items()
        if b"p" in [*head][: 1 + len({b"l", b"t"} & head.keys())]
    }
    used = {
        "r": counted,
        "m": marks,
        "t": ends,
        "o": indexes["once"],
        "d": named,
        "s": starting,
        "p": ruled,
        "w": awaited,
        "n": steps,
    }
    used["u"] = _check_priorities(raw, base, heads)
    tickets = set(raw.zrange(base + b"tickets", 0, -1))
    strays = tickets - ready - indexes["active"] - indexes["scheduled"] - indexes["once"]
    assert not strays, f"{base!r}: tickets of jobs that are parked, dead or gone: {strays}"
    used["q"] = tickets | indexes["parked"]
    used["e"] = set(raw.hkeys(base + b"schedules"))
    strays = set(raw.zrange(base + b"ticks", 0, -1)) - used["e"]
    assert not strays, f"{base!r}: ticks of schedules that are gone: {strays}"
    used["b"] = stored.keys() - held
    used["k"] = kept.keys() | {number for number, head in heads.items() if b"k" in head}
    _check_meta(raw, base, listed, used)
    for token in (b"wake", b"space"):
        assert raw.llen(base + token) <= 1, f"{base!r}: several {token.decode()} tokens"


def _check_notes(base: bytes, tally: dict[bytes, bytes], held: set[bytes]) -> set[bytes]:
    """Check the notes of jobs with steps, and return all their fields.

    A later call removes those of jobs that have ended, which the field `n` and pieces list.
    """
    fields = {name for name in tally if name[:1] == b"n"}
    first, last = map(int, tally.get(b"n", b"1 0").split())
    pieces = [b"n:%d" % piece for piece in range(first, last + 1)]
    words = b"".join(tally[piece] for piece in pieces).split()
    expected = {b"n", *pieces} if words else set[bytes]()
    for number, count in zip(words[::3], words[1::3], strict=True):
        assert number not in held, f"{base!r}: notes of {number!r} are to be removed"
        expected |= {b"n%b:%d" % (number, place + 1) for place in range(int(count))}
        expected |= fields & {b"n%b:0" % number}
    for head in fields - {b"n"}:
        if b":" in head:
            continue
        if head[1:2] == b"b":  # values of a batch, of at most 10,000 members
            count, size = tally[head].split(b" ")
            places = [b"%b:%d" % (head, place + 1) for place in range(min(int(count), 10_000))]
            assert head[2:] in held, f"{base!r}: values of a batch that is gone: {head!r}"
            assert sum(len(tally[place]) for place in places) == int(size), (
                f"{base!r}: size of {head!r}"
            )
            expected |= {head, *places}
            continue
        count, size, redriven, voided, wait = tally[head].split(b" ", 4)
        places = [b"%b:%d" % (head, place + 1) for place in range(int(count))]
        waits = tally.get(head + b":0", b"")
        places += [head + b":0"] * bool(waits)
        assert head[1:] in held, f"{base!r}: notes of a job that is gone: {head!r}"
        assert sum(len(tally[place]) for place in places) == int(size), (
            f"{base!r}: size of {head!r}"
        )
        shown = f"{base!r}: {head!r}: {tally[head]!r}, {waits!r}"
        assert int(redriven) <= int(count), shown
        assert int(voided) <= len(waits), shown
        notes = [tally[place].split(b"\t", 3) for place in places if not place.endswith(b":0")]
        called = [(name, value.split(b" ")) for kind, _, name, value in notes if kind == b"c"]
        if wait[:1] == b"c":  # it waits for the called jobs of a step
            open_calls, name = wait[1:].split(b" ", 1)
            own = [words for step, words in called if step == name and words[4] == b"open"]
            assert len(own) == int(open_calls) > 0, shown
        elif wait != b"-":
            _, name = wait.split(b" ", 1)
            outcomes = outcomes_in(waits, int(voided))
            assert name.decode() not in outcomes, shown
        expected |= {head, *places}
    assert fields == expected, f"{base!r}: notes {fields}, wanted {expected}"
    return fields


def _check_calls(base: bytes, tally: dict[bytes, bytes], members: dict[bytes, bytes]) -> None:
    """Check that the jobs which steps have called, and that have not ended, know their places."""
    places = {place: number for number, place in members.items() if place[:1] == b"n"}
    noted = {
        name: value.split(b"\t", 3)[3].split(b" ")
        for name, value in tally.items()
        if name[:1] == b"n" and value[:2] == b"c\t" and name.partition(b":")[0] in tally
    }
    waiting = {name: words[3] for name, words in noted.items() if words[4] == b"open"}
    known = {name: number for name, number in places.items() if name.partition(b":")[0] in tally}
    assert waiting == known, f"{base!r}: called {waiting}, members {known}"


def _check_priorities(raw: Raw, base: bytes, heads: dict[bytes, dict[bytes, bytes]]) -> set[bytes]:
    """Check the places of jobs with a priority, and return the numbers of all of them."""
    parts = {number: head.get(b"p", b"").split(b",") for number, head in heads.items()}
    known = {
        number: int(part[3])
        for number, part in parts.items()
        if len(part) > 3 and len(part[3]) == 1 and b"1" <= part[3] <= b"9"
    }
    ready = {number for number, _ in raw.xrange(base + b"ready")}
    assert not ready & known.keys(), f"{base!r}: in ready, with a priority: {ready & known.keys()}"
    waiting = raw.zrange(base + b"scheduled", 0, -1, withscores=True)
    for number, score in waiting:
        priority = known.get(number, 0)
        assert score >= 0 or -(score // PRIORITY_SPAN) == priority, f"{base!r}: {number!r}: {score}"
    coming = {
        number: min(score, 2**49 - 1) * 16 + known[number]
        for number, score in waiting
        if score >= 0 and number in known
    }
    urgent = dict(raw.zrange(base + b"urgent", 0, -1, withscores=True))
    assert urgent == coming, f"{base!r}: urgent is {urgent}, wanted {coming}"
    return {*known}


def _check_bodies(base: bytes, stored: dict[bytes, bytes], records: dict[bytes, bytes]) -> None:
    """Check that large bodies are stored separately, each once, and no others are."""
    apart = {number[1:]: body for number, body in stored.items() if number.startswith(b"=")}
    marked = {number for number, record in records.items() if record.startswith(b"+")}
    assert marked == apart.keys(), f"{base!r}: bodies of {apart.keys()}, wanted: those of {marked}"
    for number, record in records.items():
        head, newline, body = record.partition(b"\n")
        assert newline, f"{base!r}: the header of {number!r} has no end"
        assert not (body and number in apart), f"{base!r}: {number!r} has two bodies"
        body = apart.get(number, body)
        assert (len(body) > LARGE) == (number in apart), f"{base!r}: {len(body)} B of {number!r}"
        assert len(head) <= 16384, f"{base!r}: {len(head)} B of header of {number!r}"


def _check_dedup(
    raw: Raw,
    base: bytes,
    indexes: dict[str, set[bytes]],
    heads: dict[bytes, dict[bytes, bytes]],
    ends: set[bytes],
) -> tuple[set[bytes], set[bytes]]:
    """Check that ids belong to their jobs, and ends to their windows.

    Returns:
        The ids, and the numbers of the jobs whose id is taken until they are started.
    """
    found = raw.hgetall(base + b"dedup")
    windows = dict(raw.zrange(base + b"windows", 0, -1, withscores=True))
    has: dict[bytes, bytes] = {}
    starting: set[bytes] = set()
    for name, value in found.items():
        owner, _, other = value.partition(b" ") if not value.startswith(b"@") else (b"", b"", value)
        end = other[1:] if other.startswith(b"@") else b""
        successor, _, due = (b"", b"", b"") if end else other.partition(b" ")
        own = [number for number in (owner, successor) if number]
        assert not due or due.isdigit(), f"{base!r}: the id {name!r} is {value!r}"
        assert own or end, f"{base!r}: the id {name!r} is {value!r}"
        assert not end or windows.get(name) == float(end), f"{base!r}: no window of {name!r}"
        for number in own:
            assert number in heads, f"{base!r}: {name!r} is that of a job that is gone: {value!r}"
            assert number not in indexes["dead"], f"{base!r}: {name!r} is that of a dead letter"
            assert heads[number].get(b"d") == name, f"{base!r}: {number!r} has another id"
            assert number not in has, f"{base!r}: {number!r} has two ids"
            has[number] = name
        assert len(own) < 2 or own[1] in indexes["scheduled"], f"{base!r}: {value!r} does not wait"
        starting |= {number for number in own if heads[number].get(b"u") == b"s"}
    mortal = indexes["once"] | indexes["dead"] | ends
    for number, head in heads.items():
        if b"d" in head and b"u" not in head and number not in mortal:
            assert number in has, f"{base!r}: no dedup entry for the id of {number!r}"
    return {*found, *windows}, starting


def _fields(record: bytes) -> dict[bytes, bytes]:
    """Return the fields of a record."""
    fields = record.partition(b"\n")[0].split(b";")[1:]
    return {name: text for name, _, text in (one.partition(b"=") for one in fields)}


def _without_note(value: bytes) -> bytes:
    """Return the record in a value of `held`."""
    return value.partition(b"\n")[2] if value.startswith(b"@") else value


def _check_meta(
    raw: Raw, base: bytes, listed: list[bytes] | None, uses: dict[str, set[bytes]]
) -> None:
    meta = raw.hgetall(base + b"meta")
    newer = bool({*b"kmeuq"} & {*meta.get(b"uses", b"")}) or b"kept_bytes" in meta
    assert meta.get(b"v") in ((b"3",) if newer else (b"2", b"3")), f"{base!r}: meta is {meta}"
    for letter, members in uses.items():
        noted = letter in meta[b"uses"].decode()
        assert noted or not members, f"{base!r}: uses lacks {letter!r}"
    assert (b"c" in meta[b"uses"]) == (b"closed" in meta), f"{base!r}: closed or not? {meta}"
    assert (b"a" in meta[b"uses"]) == (b"rate" in meta), f"{base!r}: a rate or not? {meta}"
    held = any(b" " in meta.get(role, b"") for role in (b"producer", b"consumer"))
    assert (b"x" in meta[b"uses"]) or not held, f"{base!r}: uses lacks x: {meta}"
    own = base[base.index(b"{") + 1 : base.rindex(b"}")]
    assert listed is None or own in {tag(name.decode()).encode() for name in listed}, (
        f"{base!r} is not listed"
    )


def drop_producers(raw: Raw, ops: QueueOps) -> int:
    """Remove the notes of a queue's producers, and return how many there were."""
    names = [name for name in raw.hkeys(ops.keys["meta"]) if name.startswith(b"@")]
    return raw.hdel(ops.keys["meta"], *names) if names else 0


def queue_time_ms(raw: Raw, ops: QueueOps) -> int:
    """Return a queue's clock: the server's with the queue's offset, never before a shown time."""
    off, seen = (int(value or 0) for value in raw.hmget(ops.keys["meta"], "off", "seen"))
    time = int(raw_time(raw) * 1000)
    shrunk = min(off, max(0, off - (seen - time)) // 10)
    return max(time + off - shrunk, seen)


ADVANCE = """
local time, meta = redis.call('TIME'), redis.call('HMGET', KEYS[1], 'off', 'seen')
local off, seen = tonumber(meta[1] or 0), tonumber(meta[2] or 0)
time = time[1] * 1000 + math.floor(time[2] / 1000)
local behind = seen - time
local shrunk = math.min(off, math.max(0, math.floor((off - behind) / 10)))
local ahead = math.max(time + off - shrunk, seen) + ARGV[1] - time
off = math.max(ahead, math.ceil((10 * ahead - behind) / 9))
redis.call('HSET', KEYS[1], 'off', string.format('%.0f', off))
"""


def advance(raw: Raw, ops: QueueOps, seconds: float) -> None:
    """Set a queue's clock forward, by its offset (protocol/core.md, Clock).

    Each read reduces the offset by a tenth of the time since the last one. It is a script, as a
    call of a client in between would reduce the offset differently.
    """
    raw.eval(ADVANCE, 1, ops.keys["meta"], round(seconds * 1000))


def raw_time(raw: Raw) -> float:
    """Return the server's clock in seconds since 1970."""
    seconds, micros = raw.time()
    return float(seconds + micros / 1_000_000)


def reach_blocked(raw: Raw, count: int, queues: int = 1) -> None:
    """Return when this many clients are blocked, each on this many queues.

    In a cluster a client has a connection for each queue.
    """
    connections = count * queues if isinstance(raw, redis.RedisCluster) else count
    wait_for(lambda: raw.info("clients")["blocked_clients"] == connections)


def load_scripts(raw: Raw) -> None:
    """Load every script, so that no call is sent twice because of NOSCRIPT."""
    for one in all_scripts():
        raw.script_load(one.source)


def evalshas(raw: Raw) -> int:
    """Count the scripts that the server has run by EVALSHA since its start.

    The first call of a script that it does not know is answered NOSCRIPT, and comes again.
    """
    called = raw.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0)
    unknown = raw.info("errorstats").get("errorstat_NOSCRIPT", {}).get("count", 0)
    return int(called) - int(unknown)


def method_of(queue: Any, name: str) -> Callable[..., Any]:
    """Return a method that takes jobs, by name; "withdraw" = `delete` of jobs never delivered."""
    if name == "withdraw":
        return partial(queue.delete, if_undelivered=True)
    found: Callable[..., Any] = getattr(queue, name)
    return found


def _check_batches(base: bytes, raw: Any, jobs: set[bytes]) -> None:
    """The counters of each batch are those of its members."""
    members, batches = raw.hgetall(base + b"members"), raw.hgetall(base + b"batches")
    gone = (set(members) | set(batches)) - jobs
    assert not gone, f"{base!r}: members or batches of jobs that are gone: {gone}"
    for callback, entry in batches.items():
        total, done, failed, dead = map(int, entry.split()[1:5])
        own = (value for value in members.values() if value.lstrip(b"!").startswith(callback))
        places = [value for value in own if value.lstrip(b"!").partition(b":")[0] == callback]
        found = (len(places), sum(value[:1] == b"!" for value in places))
        assert found == (total - done - failed, dead), (
            f"{base!r}: {entry!r} of {callback!r}: {found}"
        )
