"""The registry of workers: the entry of each one that runs (protocol/workers.md)."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.core.jobs.views import JobView
from penstock.errors import BadArgument
from penstock.wire.keys import check_queue_name

__all__ = ["WORKER_ENTRY_MS", "WorkerView", "is_worker_id", "read_worker", "worker_entry"]

WORKER_ENTRY_MS = 40_000
"""Time to live of an entry. A worker that was killed is listed for so long at most."""
MAX_NAMES_BYTES = 8192
"""Most bytes of the names of queues in an entry."""
WORKER_ID = r"[0-9a-f]{16}"


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker that runs, as it has described itself.

    Times are seconds since 1970 by the server's clock.

    Attributes:
        id: 16 hex digits, chosen at its start.
        name: its name, kept with each delivery as the owner. Several workers may have one name.
        kind: its class: Worker or AsyncWorker.
        host: the name of its machine.
        pid: the id of its process.
        version: the version of penstock.
        queues: the names of its queues; the first ones, if they are too long together.
        concurrency: how many handlers run at once.
        unknown: names of handlers, by queue, for which it has given jobs back in the last minutes,
            as it has no such handler; "" = it has none for jobs without a name.
        since: when it started.
        seen: when it wrote its entry last.
        jobs: the jobs that it holds, if they were asked for.
    """

    id: str
    name: str
    kind: str
    host: str
    pid: int
    version: str
    queues: tuple[str, ...]
    concurrency: int
    since: float
    seen: float
    unknown: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    jobs: tuple[JobView, ...] = field(default=(), repr=False)


def worker_entry(
    *,
    name: str,
    kind: str,
    host: str,
    version: str,
    queues: Sequence[str],
    concurrency: int,
    since_ms: int,
    seen_ms: int,
    unknown: Callable[[], Mapping[str, Sequence[str]]] = dict,
) -> str:
    """Return the text that a worker of this process stores about itself."""
    fields: dict[str, object] = {
        "name": name,
        "kind": kind,
        "host": host,
        "pid": os.getpid(),
        "version": version,
        "queues": _shortened(queues),
        "concurrency": concurrency,
        "since": since_ms,
        "seen": seen_ms,
    }
    if missing := unknown():
        fields["unknown"] = {queue: _shortened(names) for queue, names in missing.items()}
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))


def _shortened(names: Sequence[str]) -> list[str]:
    shortened, left = list[str](), MAX_NAMES_BYTES
    for name in names:
        left -= len(name.encode())
        if left < 0:
            break
        shortened.append(name)
    return shortened


def is_worker_id(text: str) -> bool:
    """Return True if this is the id of a worker."""
    return re.fullmatch(WORKER_ID, text) is not None


def read_worker(worker_id: str, text: bytes) -> WorkerView | None:
    """Return a worker from its entry; None = this version can't read it."""
    try:
        fields = json.loads(text)
        return WorkerView(
            id=worker_id,
            name=str(fields["name"]),
            kind=str(fields["kind"]),
            host=str(fields["host"]),
            pid=int(fields["pid"]),
            version=str(fields["version"]),
            queues=tuple(map(check_queue_name, fields["queues"])),
            concurrency=int(fields["concurrency"]),
            since=int(fields["since"]) / 1000,
            seen=int(fields["seen"]) / 1000,
            unknown={
                check_queue_name(queue): tuple(map(str, names))
                for queue, names in dict(fields.get("unknown", {})).items()
            },
        )
    except (BadArgument, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
