"""The keys: what the registry lists, what is there, and whether the structures agree.

Everything is bounded: a doctor must not be a burden. What is read of one job is read in one
transaction, as jobs move meanwhile.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from urllib.parse import unquote

from penstock.cli.doctor import times
from penstock.cli.doctor.findings import Check, Finding, Patient, Severity
from penstock.core.partitions import read_mark
from penstock.core.servers import PROTOCOL_VERSION
from penstock.core.views import SETTING_KINDS, number_in
from penstock.wire.keys import (
    KINDS,
    WRITES,
    QueueKeys,
    node_key,
    queue_crc,
    registry_key,
    split_name,
)

__all__ = ["checks"]

SCAN_KEYS = 1_000_000
SCAN_SECONDS = 5.0
QUEUE_SECONDS = 10.0
SAMPLE = 200
FEW = 20
TYPES = {
    "ready": "stream", "held": "hash", "active": "zset", "scheduled": "zset", "once": "zset",
    "dead": "zset", "tally": "hash", "expiry": "zset", "dedup": "hash", "windows": "zset",
    "meta": "hash", "wake": "list", "space": "list",
}  # fmt: skip
NUMBER = re.compile(rb"\d+-\d+")
DEDUP_ID = re.compile(rb"\A(?:@[^\n]*\n)?[1+][^\n]*?;d=([^;\n]+)")
MARKED = re.compile(rb"\A(?:@[^\n]*\n)?\+")
"""A record whose body lies apart (protocol/core.md, Large bodies)."""
NEVER_MS = 2**53 - 1
"""The due time of a job that waits for another one's end (protocol/dedup.md)."""
NUMBERS = (
    *SETTING_KINDS, "enqueued", "delivered", "acked", "nacked", "released", "crashed", "died",
    "redriven", "trimmed", "expired", "expired_active", "deleted", "purged", "promoted",
    "dequeued", "withdrawn",
    "evicted", "dangling", "made", "seen",
)  # fmt: skip
"""Fields of meta that are numbers."""
INDEXES = ("active", "once", "scheduled", "dead")
JOBS = ("ready", "held")
MANY = ("producer", "stage", "commit", "checkpoint")
"""Kinds of keys of which a queue has many."""


@dataclass
class ScannedKeys:
    """What a scan of the key space found.

    Attributes:
        kinds: queue name -> which of its keys are there.
        unknown: keys under our prefix that are none of ours.
        seen: how many keys were looked at.
        complete: whether all of them were.
    """

    kinds: dict[str, set[str]] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)
    seen: int = 0
    complete: bool = False


def scan(patient: Patient) -> ScannedKeys:
    """Every key under the prefix, as far as time allows."""
    found = ScannedKeys(complete=True)
    stop = time.monotonic() + SCAN_SECONDS
    for part in patient.parts.values() or [patient]:
        found.complete = _scan(part, found, stop) and found.complete
    return found


def _scan(patient: Patient, found: ScannedKeys, stop: float) -> bool:
    """Whether every key of one server was looked at in time."""
    pattern = re.sub(r"([*?\[\]\\^-])", r"\\\1", patient.prefix) + ":*"
    cursor = b"0"
    while found.seen < SCAN_KEYS and time.monotonic() < stop:
        cursor, keys = patient.ask("SCAN", cursor, "MATCH", pattern, "COUNT", 1000)
        found.seen += len(keys)
        for key in keys:
            _sort(key, patient.prefix, found)
        if cursor == b"0":
            return True
    return False


def _sort(key: bytes, prefix: str, found: ScannedKeys) -> None:
    if key in (registry_key(prefix), node_key(prefix)):
        return
    text = key.decode("utf-8", "backslashreplace")
    shape = re.fullmatch(r":\{([^{}]+)\}:(\w+)(:[0-9a-zA-Z:]+)?", text[len(prefix) :], re.DOTALL)
    if shape is None or shape[2] not in (MANY if shape[3] else (*KINDS, WRITES)):
        found.unknown.append(text)
    else:
        found.kinds.setdefault(unquote(shape[1]), set()).add(shape[2])


def registry(patient: Patient) -> dict[str, list[str]]:
    """Name -> epochs under which the registry lists it."""
    flat = patient.ask("HGETALL", registry_key(patient.prefix))
    listed: dict[str, list[str]] = {}
    for place, name in zip(flat[::2], flat[1::2], strict=True):
        listed.setdefault(name.decode("utf-8", "backslashreplace"), []).append(place.decode())
    return listed


def queues(patient: Patient, horizon: int, *, repair: bool) -> Iterator[Finding]:
    """Registry, metas and key space against each other, then a sample of each queue.

    Args:
        horizon: days; no delay and no window is longer.
        repair: whether times that lie ahead are brought back.
    """
    found = scan(patient)
    kind = patient.ask("TYPE", registry_key(patient.prefix)).decode()
    if kind not in ("hash", "none"):
        text = f"the registry key is a {kind}: no queue can be created or found."
        yield Finding("queues", Severity.BROKEN, text, {"type": kind})
        return
    listed = registry(patient)
    names = sorted({*listed, *found.kinds})
    stop = time.monotonic() + QUEUE_SECONDS
    looked, damaged = 0, False
    for name in names:
        if time.monotonic() > stop and not repair:
            break
        looked += 1
        for finding in _queue(patient, name, listed.get(name, []), horizon, repair=repair):
            damaged = damaged or finding.level is Severity.BROKEN
            yield finding
    yield _summary(looked, len(names), found, damaged)
    yield _unknown(found)


def _summary(looked: int, count: int, found: ScannedKeys, damaged: bool) -> Finding:
    complete = found.complete and looked == count
    data = {"queues": count, "looked_at": looked, "keys": found.seen, "complete": complete}
    of = f" of {count}" if looked < count else ""
    text = f"{looked}{of} queues and {found.seen} keys looked at"
    text += "" if complete else ", not all of them"
    if damaged:
        return Finding("queues", Severity.BROKEN, f"{text}: damage was found, see above.", data)
    return Finding("queues", Severity.OK, f"{text}: no damage was found.", data)


def _unknown(found: ScannedKeys) -> Finding:
    data = {"count": len(found.unknown), "keys": found.unknown[:10]}
    if not found.unknown:
        return Finding("keys", Severity.OK, "no unknown key under the prefix.", data)
    some = ", ".join(repr(key) for key in found.unknown[:3])
    more = ", ..." if len(found.unknown) > 3 else ""
    text = f"{len(found.unknown)} keys under the prefix do not belong to penstock: {some}{more}"
    return Finding("keys", Severity.WARNING, text, data)


def _queue(
    patient: Patient, name: str, fields: list[str], horizon: int, *, repair: bool
) -> Iterator[Finding]:
    whole, number = split_name(name)
    keys = QueueKeys(whole, patient.prefix, number)
    crc, name = queue_crc(name), _shown(keys)
    data = {"queue": name}
    wrong = _wrong_types(patient, keys)
    for kind, actual in wrong.items():
        text = f"queue {name!r}: {kind} is a {actual}, not a {TYPES[kind]}: calls are refused."
        yield Finding("queues", Severity.BROKEN, text, {**data, "key": kind, "type": actual})
    if wrong:
        return
    epoch, protocol, dangling = patient.ask("HMGET", keys["meta"], "epoch", "v", "dangling")
    if read_mark(protocol) is not None and not _others(patient, keys):
        return  # the number of partitions, which are queues of their own
    if epoch is None:
        yield from _without_meta(patient, keys, fields)
        return
    if protocol != b"%d" % PROTOCOL_VERSION:
        text = f"queue {name!r} was written by version {protocol!r} of the protocol."
        yield Finding("queues", Severity.BROKEN, text, data)
        return
    if f"{crc:08x}{epoch.decode()}" not in fields:
        text = f"queue {name!r} is not in the registry: `penstock queues` does not show it."
        yield Finding("queues", Severity.WARNING, text, data)
    count = number_in((dangling or b"").decode("utf-8", "replace"))
    if count:
        text = f"queue {name!r}: {count} entries without a job were removed."
        yield Finding("queues", Severity.WARNING, text, {**data, "dangling": count})
    if repair:
        yield from times.repaired(patient, keys, name, horizon)
    yield from times.ahead(patient, keys, name, horizon)
    yield from _no_numbers(patient, keys)
    yield from _damage(patient, keys)


def _no_numbers(patient: Patient, keys: QueueKeys) -> Iterator[Finding]:
    """Settings and counters that are no numbers: the scripts take the default for them."""
    values = patient.ask("HMGET", keys["meta"], *NUMBERS)
    for name, value in zip(NUMBERS, values, strict=True):
        if value is not None and not value.isdigit():
            text = (
                f"queue {_shown(keys)!r}: {name} of meta is no number ({value!r}) and counts as "
                f"absent: HDEL {keys['meta'].decode()} {name}"
            )
            data = {"queue": _shown(keys), "field": name}
            yield Finding("queues", Severity.WARNING, text, data)


def _shown(keys: QueueKeys) -> str:
    """The name of a queue, and which of its partitions it is."""
    return keys.whole if keys.partition is None else f"{keys.whole} (partition {keys.partition})"


def _others(patient: Patient, keys: QueueKeys) -> list[str]:
    """What there is of a queue besides its meta."""
    return [kind for kind in KINDS if kind != "meta" and patient.ask("EXISTS", keys[kind])]


def _wrong_types(patient: Patient, keys: QueueKeys) -> dict[str, str]:
    found = patient.together(("TYPE", keys[kind]) for kind in KINDS)
    actual = {kind: one.decode() for kind, one in zip(KINDS, found, strict=True)}
    return {kind: one for kind, one in actual.items() if one not in ("none", TYPES[kind])}


def _without_meta(patient: Patient, keys: QueueKeys, fields: list[str]) -> Iterator[Finding]:
    name = _shown(keys)
    data = {"queue": name}
    there = [kind for kind in KINDS if patient.ask("EXISTS", keys[kind])]
    if set(there) & set(JOBS):
        text = f"queue {name!r} has jobs but no meta: an enqueue repairs it if it is listed."
        yield Finding("queues", Severity.BROKEN, text, {**data, "keys": there})
    elif there:
        text = f"queue {name!r} is gone, but left {', '.join(there)}."
        yield Finding("queues", Severity.WARNING, text, {**data, "keys": there})
    elif fields:
        text = (
            f"queue {name!r} is listed but does not exist: its removal was interrupted; harmless."
        )
        yield Finding("queues", Severity.WARNING, text, data)


def _damage(patient: Patient, keys: QueueKeys) -> Iterator[Finding]:
    """A held job lies in one index, an index entry has a record, a dedup id has a job."""
    faults: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for number, fault in chain(
        _held(patient, keys),
        _bodies(patient, keys),
        _entries(patient, keys),
        _in_ready(patient, keys),
        _named(patient, keys),
        _heirs(patient, keys),
    ):
        faults[fault] += 1
        examples.setdefault(fault, number)
    for fault, count in faults.items():
        name = _shown(keys)
        text = f"queue {name!r}: {count} {fault}, such as {examples[fault]}."
        data = {"queue": name, "fault": fault, "count": count, "example": examples[fault]}
        yield Finding("queues", Severity.BROKEN, text, data)


def _held(patient: Patient, keys: QueueKeys) -> Iterator[tuple[str, str]]:
    names = patient.ask("HRANDFIELD", keys["held"], SAMPLE)
    numbers = [name for name in names if not name.startswith(b"=")]
    width = 1 + len(INDEXES)
    replies = patient.together(
        [
            question
            for number in numbers
            for question in (
                ("HEXISTS", keys["held"], number),
                *(("ZSCORE", keys[index], number) for index in INDEXES),
            )
        ]
    )
    for at, number in enumerate(numbers):
        exists, *scores = replies[at * width : (at + 1) * width]
        places = sum(score is not None for score in scores)
        if exists and places != 1:
            kind = "held jobs in no index" if not places else "held jobs in several indexes"
            yield number.decode(), kind


def _bodies(patient: Patient, keys: QueueKeys) -> Iterator[tuple[str, str]]:
    """A body that lies apart, and the header that says so, are both there."""
    names = patient.ask("HRANDFIELD", keys["held"], FEW)
    entries = patient.ask("XRANGE", keys["ready"], "-", "+", "COUNT", FEW)
    owed = (patient.ask("HGET", keys["held"], "=") or b"").split()  # they go later
    found = {*(name.removeprefix(b"=") for name in names), *(entry[0] for entry in entries)}
    for number in found - {b"", *owed}:
        value, waiting, size = patient.together(
            [
                ("HGET", keys["held"], number),
                ("XRANGE", keys["ready"], number, number),
                ("HSTRLEN", keys["held"], b"=" + number),
            ]
        )
        is_marked = _is_marked(value) or any(_is_marked(entry[1][1]) for entry in waiting)
        if is_marked and not size:
            yield number.decode(), "jobs whose body is lost"
        elif size and not is_marked:
            yield number.decode(), "bodies without a job"


def _is_marked(value: bytes | None) -> bool:
    """Whether a value says that the body lies apart."""
    return MARKED.match(value or b"") is not None


def _entries(patient: Patient, keys: QueueKeys) -> Iterator[tuple[str, str]]:
    for index in INDEXES:
        numbers = patient.ask("ZRANGE", keys[index], 0, SAMPLE - 1)
        replies = patient.together(
            [
                question
                for number in numbers
                for question in (
                    ("ZSCORE", keys[index], number),
                    ("HEXISTS", keys["held"], number),
                )
            ]
        )
        for number, score, held in zip(numbers, replies[::2], replies[1::2], strict=True):
            if score is not None and not held:
                yield number.decode(), f"entries of {index} without a job"


def _in_ready(patient: Patient, keys: QueueKeys) -> Iterator[tuple[str, str]]:
    """Ready gives a whole body for each number asked for, so few are."""
    names = patient.ask("HRANDFIELD", keys["held"], FEW)
    held = [name for name in names if not name.startswith(b"=")]
    ending = patient.ask("ZRANGE", keys["expiry"], 0, FEW - 1)
    for number in {*held, *ending}:
        exists, score, waiting = patient.together(
            [
                ("HEXISTS", keys["held"], number),
                ("ZSCORE", keys["expiry"], number),
                ("XRANGE", keys["ready"], number, number),
            ]
        )
        if exists and waiting:
            yield number.decode(), "jobs in both ready and held"
        elif score is not None and not exists and not waiting:
            yield number.decode(), "entries of expiry without a job"


def _named(patient: Patient, keys: QueueKeys) -> Iterator[tuple[str, str]]:
    """The jobs that have a dedup id, or wait for its end, are there."""
    page = patient.ask("HSCAN", keys["dedup"], "0", "COUNT", FEW)[1][: 2 * FEW]
    for name, value in zip(page[::2], page[1::2], strict=True):
        for number in NUMBER.findall(value):
            now, held, waiting = patient.together(
                [
                    ("HGET", keys["dedup"], name),
                    ("HEXISTS", keys["held"], number),
                    ("XRANGE", keys["ready"], number, number),
                ]
            )
            if number in NUMBER.findall(now or b"") and not held and not waiting:
                yield number.decode(), "dedup ids without a job"


def _heirs(patient: Patient, keys: QueueKeys) -> Iterator[tuple[str, str]]:
    """A job without a time waits for the end of another one that has the same dedup id."""
    for number in patient.ask(
        "ZRANGE", keys["scheduled"], NEVER_MS, "+inf", "BYSCORE", "LIMIT", 0, FEW
    ):
        name = DEDUP_ID.search(patient.ask("HGET", keys["held"], number) or b"")
        score, value = patient.together(
            [
                ("ZSCORE", keys["scheduled"], number),
                ("HGET", keys["dedup"], name[1] if name else b""),
            ]
        )
        if score and float(score) >= NEVER_MS and number not in NUMBER.findall(value or b"")[1:]:
            yield number.decode(), "jobs that wait for the end of a job that does not exist"


def checks(horizon: int, *, repair: bool) -> list[tuple[str, Check]]:
    """What is looked at; see `queues`."""
    return [("queues", partial(queues, horizon=horizon, repair=repair))]
