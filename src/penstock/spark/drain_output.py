"""The output of `drain(…, ack="output")`: results become rows, and their jobs stay held."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from queue import Empty
from queue import Queue as Inbox
from typing import Any

import pyarrow as pa

from penstock.client._sync.queue import Queue
from penstock.client._sync.transport.connection import monotonic
from penstock.core.job import Delivery
from penstock.core.middleware import Middleware, RunEvent
from penstock.core.outcomes import Outcome
from penstock.errors import BadArgument
from penstock.worker.handlers import Handlers
from penstock.worker.results import Done, Result

__all__ = ["KEYS", "DrainOutput", "DrainResults"]

KEYS = pa.schema(
    [
        ("id", pa.string()),
        ("receipt", pa.string()),
        ("attempt", pa.int32()),
        ("dedup_window_ms", pa.int64()),
    ]
)
"""The columns before the results."""
RUNS = 10_000
"""Most runs of handlers whose results wait for Spark; then the handlers wait."""


@dataclass(frozen=True)
class DrainOutput:
    """Settings of the output.

    Attributes:
        fields: Arrow fields of the results.
        encodes_json: whether the only field is a text, and other results become JSON.
        seconds: after which a task takes no more jobs.
        hold: seconds of the leases of finished jobs.
    """

    fields: Sequence[pa.Field]
    encodes_json: bool
    seconds: float
    hold: float


class DrainResults(Middleware):
    """The results of one task. The worker does not acknowledge their jobs.

    Attributes:
        kept: the number of results.
        lost: the number of results that were dropped, as the leases of their jobs had ended.
    """

    def __init__(self, output: DrainOutput, handlers: Handlers) -> None:
        self._output = output
        self._names = [field.name for field in output.fields]
        self._schema = pa.schema([*KEYS, *output.fields])
        self._handlers = handlers
        self._found: Inbox[list[tuple[Delivery, dict[str, Any]]]] = Inbox(RUNS)
        self._held: list[Delivery] = []
        self._renewal = monotonic() + output.hold / 3
        self.kept = self.lost = 0

    @contextmanager
    def run(self, event: RunEvent) -> Iterator[None]:
        """Keep the results of a run. The run fails if one does not fit the schema."""
        yield
        try:
            pairs = zip(event.jobs, self._each(event.jobs, event.value), strict=True)
            rows = [(job, self._row(job, value)) for job, value in pairs if _is_done(job, value)]
            pa.RecordBatch.from_pylist([row for _, row in rows], self._schema)
        except Exception as error:
            text = f"the result does not fit the columns of the schema: {error}"
            raise TypeError(text) from error
        for job, _ in rows:
            job.settled = True
        self.kept += len(rows)
        self._found.put(rows)

    def _each(self, jobs: Sequence[Delivery], value: Any) -> Sequence[Any]:
        """Return a value for each job. A chunk handler returns a list of them, or one for all."""
        handler = self._handlers.find(jobs[0])
        assert handler is not None
        is_list = handler.size is not None and isinstance(value, (list, tuple))
        return value if is_list else [value] * len(jobs)

    def _row(self, job: Delivery, value: Any) -> dict[str, Any]:
        window_ms = None
        if isinstance(value, Done):
            if value.verdict.then is not None:
                reason = "a drain acknowledges jobs later, with their rows: enqueue the next jobs"
                raise BadArgument("then", value, reason)
            value, window_ms = value.value, value.verdict.window_ms
        return {
            "id": job.id,
            "receipt": None if job.at_most_once else job.receipt,
            "attempt": job.attempt,
            "dedup_window_ms": window_ms,
            **columns_of(value, self._names, encodes_json=self._output.encodes_json),
        }

    def rows(self, jobs: Queue) -> list[dict[str, Any]]:
        """Remove and return the rows whose jobs are held; renew the leases of earlier ones."""
        found: list[tuple[Delivery, dict[str, Any]]] = []
        with suppress(Empty):
            while True:
                found += self._found.get_nowait()
        if monotonic() > self._renewal:
            self._renewal = monotonic() + self._output.hold / 3
            held, self._held = self._held, []
            self._hold(jobs, held)
        gone = self._hold(jobs, [job for job, _ in found])
        self.lost += len(gone)
        return [row for job, row in found if job not in gone]

    def _hold(self, queue: Queue, jobs: Sequence[Delivery]) -> set[Delivery]:
        """Renew leases until the output is safe; return the jobs that are lost."""
        leased = [job for job in jobs if not job.at_most_once]
        answers = queue.extend(leased, self._output.hold, late=True) if leased else []
        is_held = [isinstance(one, float) or one is Outcome.UNKNOWN for one in answers]
        self._held += itertools.compress(leased, is_held)
        return {job for job, held in zip(leased, is_held, strict=True) if not held}


def _is_done(job: Delivery, value: Any) -> bool:
    """Return True if a job is done, and not settled by its handler, failed or lost."""
    if job.settled or job.lost or job.cancelled:
        return False
    is_result = isinstance(value, type) and issubclass(value, Result)
    return isinstance(value, Done) or not (is_result or isinstance(value, BaseException))


def columns_of(value: Any, names: Sequence[str], *, encodes_json: bool) -> dict[str, Any]:
    """Return a result as columns."""
    if value is None:
        return {}
    if encodes_json:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        return {names[0]: text}
    if isinstance(value, dict):
        strange = set(value).difference(names)
        if strange:
            raise ValueError(f"no column {', '.join(map(repr, sorted(map(str, strange))))}")
        return value
    if len(names) == 1 and not isinstance(value, tuple):
        return {names[0]: value}
    if isinstance(value, (tuple, list)) and len(value) == len(names):
        return dict(zip(names, value, strict=True))
    raise ValueError(f"a tuple of {len(names)}, or a dict, not {type(value).__name__}")
