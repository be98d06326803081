"""The keys of the queues: compare the registry with the keys, and the structures of each queue.

Everything is bounded, so that the server is not burdened. All that is read of one job is read in
one transaction, because jobs move meanwhile.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any
from urllib.parse import unquote

from redis.exceptions import ResponseError

from penstock.cli.doctor import times
from penstock.cli.doctor.connections import Command, DoctorNode, DoctorQueue
from penstock.cli.doctor.findings import Finding, broken, name_check, ok, warning
from penstock.core.calls.troubles import KEY_TYPES
from penstock.core.jobs.queue_stats import SETTING_KINDS, TOTALS
from penstock.core.jobs.views import NEVER_MS
from penstock.core.values.partitions import read_count
from penstock.core.values.rate import rate_text
from penstock.wire.keys import (
    KEY_KINDS,
    KINDS_PER_CALL,
    LASTING_KINDS,
    QueueKeys,
    hints_key,
    node_key,
    nodes_key,
    queue_crc,
    registry_key,
    split_name,
    worker_key,
    workers_key,
)

__all__ = ["check_queues"]

MAX_SCANNED_KEYS = 1_000_000
MAX_SCAN_SECONDS = 5.0
MAX_QUEUE_SECONDS = 10.0
MAX_PROMISE_AGE = 60
"""A committed write that is not published by then has perhaps lost its driver."""
SAMPLED_JOBS = 200
SAMPLED_ENTRIES = 20
JOB_NUMBER = re.compile(rb"\d+-\d+")
DEDUP_ID_FIELD = re.compile(rb"\A(?:@[^\n]*\n)?[1+][^\n]*?;d=([^;\n]+)")
RECORD_OF_LARGE_BODY = re.compile(rb"\A(?:@[^\n]*\n)?\+")
"""A record whose body lies apart (protocol/storage.md, Large bodies)."""
NUMBER_FIELDS = (
    *(name for name, kind in SETTING_KINDS.items() if kind not in ("rate", "slots")),
    *TOTALS.values(), "kept", "kept_bytes", "configured", "made", "seen",
)  # fmt: skip
"""Fields of meta that are numbers."""
INDEX_KINDS = ("active", "once", "scheduled", "parked", "dead")
RECORD_KINDS = ("ready", "held")
QUEUE_VERSIONS = (b"2", b"3")
"""The queue has version 3 since the first job whose result is kept."""
RESULT_PREFIX = b">"
"""Beginning of the name of a result."""
SHARED_KEYS = (registry_key, node_key, nodes_key, hints_key, workers_key)
"""Names of keys that belong to no queue."""


@dataclass
class ScannedKeys:
    """The result of a scan of the key space.

    Attributes:
        kinds: queue name -> the kinds of its keys.
        unknown: keys under our prefix that no queue has.
        seen: how many keys were read.
        complete: True if these were all keys.
    """

    kinds: dict[str, set[str]] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)
    seen: int = 0
    complete: bool = True


def scan(node: DoctorNode) -> ScannedKeys:
    """Read every key under the prefix, as far as time allows."""
    found = ScannedKeys()
    stop = time.monotonic() + MAX_SCAN_SECONDS
    pattern = re.sub(r"([*?\[\]\\^-])", r"\\\1", node.prefix) + ":*"
    for server in node.servers:
        cursor = b""
        while cursor != b"0" and found.complete:
            cursor, keys = server.ask("SCAN", cursor or b"0", "MATCH", pattern, "COUNT", 1000)
            for key in keys:
                _sort(key, node.prefix, found)
            found.seen += len(keys)
            late = found.seen >= MAX_SCANNED_KEYS or time.monotonic() >= stop
            found.complete = cursor == b"0" or not late
    return found


def _sort(key: bytes, prefix: str, found: ScannedKeys) -> None:
    if key in (one(prefix) for one in SHARED_KEYS) or key.startswith(worker_key(prefix, "")):
        return
    text = key.decode("utf-8", "backslashreplace")
    shape = re.fullmatch(r":\{([^{}]+)\}:(\w+)(:[-0-9a-zA-Z:]+)?", text[len(prefix) :], re.DOTALL)
    if shape is None or shape[2] not in (
        KINDS_PER_CALL if shape[3] else (*KEY_KINDS, *LASTING_KINDS, "emitters")
    ):
        found.unknown.append(text)
    else:
        found.kinds.setdefault(unquote(shape[1]), set()).add(shape[2])


def check_queues(node: DoctorNode, horizon: int, *, repair: bool) -> Iterator[Finding]:
    """Compare registry, metas and key space, then check a sample of each queue's jobs.

    Args:
        node: the node.
        horizon: days; no delay and no window is longer.
        repair: list queues that are not in the registry, and bring back times that lie ahead.
    """
    try:
        found = scan(node)
        registry = registry_key(node.prefix)
        kind = node.at(registry).ask("TYPE", registry).decode()
        if kind not in ("hash", "none"):
            text = f"the registry key is a {kind}: no queue can be created or found."
            yield broken(text, type=kind)
            return
        flat = node.at(registry).ask("HGETALL", registry)
    except ResponseError as error:
        yield _refused("the queues", error, repair=repair)
        return
    listed: dict[str, list[str]] = {}
    for place, name in zip(flat[::2], flat[1::2], strict=True):
        listed.setdefault(name.decode("utf-8", "backslashreplace"), []).append(place.decode())
    names = sorted({*listed, *found.kinds})
    stop = time.monotonic() + MAX_QUEUE_SECONDS
    looked, is_damaged = 0, False
    for name in names:
        if time.monotonic() > stop and not repair:
            break
        looked += 1
        queue = _doctor_queue(node, name)
        fields = listed.get(name, [])
        for finding in _check_queue(node, queue, fields, horizon, repair=repair):
            is_damaged |= finding.level == "broken"
            yield finding
        yield from name_check("staged", islice(_check_staged(queue), SAMPLED_ENTRIES))
    yield _summary(looked, len(names), found, is_damaged)
    yield from name_check("keys", [_unknown(found)])


def _refused(subject: str, error: ResponseError, *, repair: bool, **data: object) -> Finding:
    done, level = ("repaired", broken) if repair else ("checked", warning)
    return level(f"{subject} could not be {done}: {error}", **data)


def _summary(looked: int, count: int, found: ScannedKeys, is_damaged: bool) -> Finding:
    complete = found.complete and looked == count
    of = f" of {count}" if looked < count else ""
    text = f"{looked}{of} queues and {found.seen} keys looked at"
    text += "" if complete else ", not all of them"
    text += ": damage was found, see above." if is_damaged else ": no damage was found."
    level = broken if is_damaged else ok
    return level(text, queues=count, looked_at=looked, keys=found.seen, complete=complete)


def _unknown(found: ScannedKeys) -> Finding:
    level, text, count = ok, "no unknown key under the prefix.", len(found.unknown)
    if count:
        some = ", ".join(map(repr, found.unknown[:3])) + (", ..." if count > 3 else "")
        level, text = warning, f"{count} keys under the prefix do not belong to penstock: {some}"
    return level(text, count=count, keys=found.unknown[:10])


def _doctor_queue(node: DoctorNode, listed_name: str) -> DoctorQueue:
    whole, number = split_name(listed_name)
    keys = QueueKeys(whole, node.prefix, number)
    name = whole if number is None else f"{whole} (partition {number})"
    return DoctorQueue(node.at(keys["meta"]), keys, name)


def _check_queue(
    node: DoctorNode, queue: DoctorQueue, fields: Sequence[str], horizon: int, *, repair: bool
) -> Iterator[Finding]:
    try:
        wrong = list(_check_meta(node, queue, fields, repair=repair))
        yield from wrong
        if any(one.level == "broken" for one in wrong):
            return
        version = queue.ask("HGET", "meta", "v")
        if version is None or read_count(version) is not None:
            return  # there is no queue, or each of its partitions is one
        if repair:
            yield from name_check("repair", times.repair_times(queue, horizon))
        yield from name_check("times", times.check_times(queue, horizon))
        yield from _check_damage(queue)
    except ResponseError as error:
        yield _refused(f"queue {queue.name!r}", error, repair=repair, queue=queue.name)


def _check_staged(queue: DoctorQueue) -> Iterator[Finding]:
    """Describe the staged writes of which rows are not yet in the queue (protocol/staging.md)."""
    try:
        flat = queue.ask("HGETALL", "staged")
        if not flat:
            return
        era, (seconds, _) = queue.ask("GET", "writes"), queue.server.ask("TIME")
        for write, entry in sorted(zip(flat[::2], flat[1::2], strict=True)):
            writer, _, batch = write.decode().partition(":")
            ends, rows, *promise = entry.split(b" ", 2)
            left, age = int(ends) // 1000 - int(seconds), None
            if left < 0 or not int(rows):
                continue
            text = f": batch {batch} of writer {writer} has {int(rows)} staged rows, "
            committed = queue.server.ask("HGET", queue.keys.commit(writer), "at")
            if promise == [era] and committed:
                age = int(seconds) - int(committed) // 1000
                text += f"committed {age} s ago: the write, repeated, adds them if its driver died."
            else:
                text += f"not committed. They expire in {left} s."
            level = warning if age is not None and age > MAX_PROMISE_AGE else ok
            data = {"writer": writer, "batch": int(batch), "rows": int(rows), "committed_ago": age}
            yield queue.about(level, text, **data)
    except ResponseError as error:
        subject = f"queue {queue.name!r}: its staged writes"
        yield _refused(subject, error, repair=False, queue=queue.name)


def _check_meta(
    node: DoctorNode, queue: DoctorQueue, fields: Sequence[str], *, repair: bool
) -> Iterator[Finding]:
    types = queue.transaction(("TYPE", kind) for kind in KEY_KINDS)
    there = {
        kind: one.decode() for kind, one in zip(KEY_KINDS, types, strict=True) if one != b"none"
    }
    wrong = {kind: actual for kind, actual in there.items() if actual != KEY_TYPES[kind]}
    for kind, actual in wrong.items():
        text = f": {kind} is a {actual}, not a {KEY_TYPES[kind]}: calls are refused."
        yield queue.about(broken, text, key=kind, type=actual)
    if wrong:
        return
    epoch, version = queue.ask("HMGET", "meta", "epoch", "v")
    if read_count(version) is not None and there.keys() == {"meta"}:
        return
    if epoch is None:
        there.pop("finished", None)  # `clear` tells waiting clients; it ends by itself
        yield from _check_without_meta(queue, list(there), is_listed=bool(fields))
    elif version not in QUEUE_VERSIONS:
        yield queue.about(broken, f" was written by version {version!r} of the protocol.")
    else:
        place = f"{queue_crc(queue.keys.name):08x}{epoch.decode()}"
        if place not in fields and repair:
            registry = registry_key(node.prefix)
            node.at(registry).ask("HSET", registry, place, queue.keys.name)
            yield queue.about(ok, " was not in the registry, and is now.")
        elif place not in fields:
            text = " is not in the registry, so nothing lists it: penstock doctor --repair"
            yield queue.about(warning, text)
        yield from _check_numbers(queue)


def _check_without_meta(
    queue: DoctorQueue, there: Sequence[str], *, is_listed: bool
) -> Iterator[Finding]:
    if set(there) & set(RECORD_KINDS):
        text = " has jobs but no meta: an enqueue repairs it if it is listed."
        yield queue.about(broken, text, keys=there)
    elif there:
        text = f" does not exist, but some of its keys do: {', '.join(there)}."
        yield queue.about(warning, text, keys=there)
    elif is_listed:
        text = " is listed but does not exist: its removal was interrupted; harmless."
        yield queue.about(warning, text)


def _check_numbers(queue: DoctorQueue) -> Iterator[Finding]:
    """Check the settings and counters; the scripts use the default for what is not a number."""
    values = queue.ask("HMGET", "meta", *NUMBER_FIELDS)
    for number, value in zip(NUMBER_FIELDS, values, strict=True):
        if value is not None and not value.isdigit():
            remedy = f"HDEL {queue.keys['meta'].decode()} {number}"
            text = f": {number} of meta is ignored, as {value!r} is not a number: {remedy}"
            yield queue.about(warning, text, field=number)
        elif number == "dangling" and value and int(value):
            text = f": {int(value)} entries without a job were removed."
            yield queue.about(warning, text, dangling=int(value))
    for name in ("rate", "key_rate"):
        rate = queue.ask("HGET", "meta", name)
        if rate is not None and rate_text(rate.decode("utf-8", "replace")) is None:
            remedy = f"HDEL {queue.keys['meta'].decode()} {name}"
            text = f": {name} of meta limits nothing, as {rate!r} is no rate: {remedy}"
            yield queue.about(warning, text, field=name)


def _check_damage(queue: DoctorQueue) -> Iterator[Finding]:
    examples: dict[str, list[str]] = {}
    for check in (
        _check_indexes,
        _check_records,
        _check_dedup_ids,
        _check_successors,
        _check_urgent,
    ):
        for number, fault in check(queue):
            examples.setdefault(fault, []).append(number.decode())
    for fault, numbers in examples.items():
        count, example = len(numbers), numbers[0]
        text = f": {count} {fault}, such as {example}."
        yield queue.about(broken, text, fault=fault, count=count, example=example)


def _examine_each(
    queue: DoctorQueue, numbers: Iterable[bytes], about: Callable[[bytes], Sequence[Command]]
) -> Iterator[tuple[bytes, list[Any]]]:
    """Send the same commands for each job. The replies for one job come from one transaction."""
    every = iter(numbers)
    while page := list(islice(every, SAMPLED_JOBS)):
        replies = queue.transaction(chain.from_iterable(map(about, page)))
        width = len(replies) // len(page)
        yield from ((one, replies[i * width :][:width]) for i, one in enumerate(page))


def _check_indexes(queue: DoctorQueue) -> Iterator[tuple[bytes, str]]:
    """Check that each held job lies in one index, and that each index entry is a held job."""
    held = queue.ask("HRANDFIELD", "held", SAMPLED_JOBS)
    numbers = {name for name in held if not name.startswith((b"=", RESULT_PREFIX))}
    for index in INDEX_KINDS:
        numbers.update(queue.ask("ZRANGE", index, 0, SAMPLED_JOBS - 1))

    def about(number: bytes) -> list[Command]:
        return [("HEXISTS", "held", number), *(("ZSCORE", index, number) for index in INDEX_KINDS)]

    for number, (exists, *scores) in _examine_each(queue, numbers, about):
        found = [index for index, one in zip(INDEX_KINDS, scores, strict=True) if one is not None]
        if not exists:
            for index in found:
                yield number, f"entries of {index} without a job"
        elif len(found) != 1:
            yield number, f"held jobs in {'several indexes' if found else 'no index'}"


def _check_records(queue: DoctorQueue) -> Iterator[tuple[bytes, str]]:
    """Check that a job is in ready or in held, and that a separate body exists and has a job.

    Few jobs are read, because the reply contains their records.
    """
    names = queue.ask("HRANDFIELD", "held", SAMPLED_ENTRIES)
    entries = queue.ask("XRANGE", "ready", "-", "+", "COUNT", SAMPLED_ENTRIES)
    ending = queue.ask("ZRANGE", "expiry", 0, SAMPLED_ENTRIES - 1)
    later = (queue.ask("HGET", "held", "=") or b"").split()  # removed by later calls
    found = {*(name.removeprefix(b"=") for name in names), *ending, *(one[0] for one in entries)}
    numbers = {name for name in found if name and not name.startswith(RESULT_PREFIX)}

    def about(number: bytes) -> list[Command]:
        return [
            ("HGET", "held", number),
            ("XRANGE", "ready", number, number),
            ("ZSCORE", "expiry", number),
            ("HSTRLEN", "held", b"=" + number),
        ]

    for number, (value, waiting, ends, size) in _examine_each(queue, numbers, about):
        records = [*([] if value is None else [value]), *(entry[1][1] for entry in waiting)]
        is_apart = any(map(RECORD_OF_LARGE_BODY.match, records))
        if len(records) > 1:
            yield number, "jobs in both ready and held"
        if ends is not None and not records:
            yield number, "entries of expiry without a job"
        if is_apart and not size:
            yield number, "jobs whose body is lost"
        if size and not is_apart and number not in later:
            yield number, "bodies without a job"


def _check_dedup_ids(queue: DoctorQueue) -> Iterator[tuple[bytes, str]]:
    """Check that jobs that have a dedup id, or wait for its end, exist."""
    page = queue.ask("HSCAN", "dedup", "0", "COUNT", SAMPLED_ENTRIES)[1][: 2 * SAMPLED_ENTRIES]
    owners = dict(zip(page[::2], page[1::2], strict=True))
    names = {number: name for name, value in owners.items() for number in JOB_NUMBER.findall(value)}

    def about(number: bytes) -> list[Command]:
        return [
            ("HGET", "dedup", names[number]),
            ("HEXISTS", "held", number),
            ("XRANGE", "ready", number, number),
        ]

    for number, (now, held, waiting) in _examine_each(queue, names, about):
        if number in JOB_NUMBER.findall(now or b"") and not held and not waiting:
            yield number, "dedup ids without a job"


def _check_successors(queue: DoctorQueue) -> Iterator[tuple[bytes, str]]:
    """Check that a job without a due time waits for the end of a job with the same dedup id.

    The callback of a batch waits for the jobs of the batch.
    """
    for number in queue.ask(
        "ZRANGE", "scheduled", NEVER_MS, "+inf", "BYSCORE", "LIMIT", 0, SAMPLED_ENTRIES
    ):
        name = DEDUP_ID_FIELD.search(queue.ask("HGET", "held", number) or b"")
        dedup_id = name[1] if name else b""
        commands: list[Command] = [
            ("ZSCORE", "scheduled", number),
            ("HEXISTS", "batches", number),
            ("HGET", "dedup", dedup_id),
        ]
        score, calls_back, value = queue.transaction(commands)
        waits = calls_back or number in JOB_NUMBER.findall(value or b"")[1:]
        if score and float(score) >= NEVER_MS and not waits:
            yield number, "jobs that wait for the end of a job that does not exist"


def _check_urgent(queue: DoctorQueue) -> Iterator[tuple[bytes, str]]:
    """Check that a job whose priority is noted in urgent waits for its time."""
    numbers = queue.ask("ZRANGE", "urgent", 0, SAMPLED_JOBS - 1)
    for number, (score,) in _examine_each(
        queue, numbers, lambda one: [("ZSCORE", "scheduled", one)]
    ):
        if score is None or float(score) < 0:
            yield number, "entries of urgent without a job that waits"
