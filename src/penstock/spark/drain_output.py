"""The output of `drain(…, ack="output")`: results become rows, and their jobs stay held."""

from __future__ import annotations

import itertools
import json
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event
from typing import Any

import pyarrow as pa

from penstock.client._sync.queue import Queue
from penstock.client._sync.transport.connection import monotonic
from penstock.core.job import Delivery
from penstock.core.middleware import Middleware, RunEvent
from penstock.core.outcomes import Outcome
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
WAITING = 10_000
"""Results that wait for Spark; if there are more, the handlers wait, too."""
QUICK = {pa.string(): str, pa.int64(): int, pa.float64(): float, pa.bool_(): bool}
"""Columns whose usual values need no trial conversion."""
Row = Sequence[Any]


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
        schema: the columns of the keys and the results.
        kept: the number of results.
        lost: the number of results that were dropped, as the leases of their jobs had ended.
    """

    def __init__(self, output: DrainOutput, handlers: Handlers) -> None:
        self.schema = pa.schema([*KEYS, *output.fields])
        self._output = output
        self._names = [field.name for field in output.fields]
        self._quick = [QUICK.get(field.type) for field in output.fields]
        self._handlers = handlers
        self._found = deque[tuple[Delivery, Row]]()
        self._room = Event()
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
        except Exception as error:
            text = f"the result does not fit the columns of the schema: {error}"
            raise TypeError(text) from error
        for job, _ in rows:
            job.settled = True
        self.kept += len(rows)
        self._found.extend(rows)
        if len(self._found) > WAITING:
            self._room.clear()
            self._room.wait(1)

    def _each(self, jobs: Sequence[Delivery], value: Any) -> Sequence[Any]:
        """Return a value for each job. A batch handler returns a list of them, or one for all."""
        handler = self._handlers.find(jobs[0])
        assert handler is not None
        is_list = handler.size is not None and isinstance(value, (list, tuple))
        return value if is_list else [value] * len(jobs)

    def _row(self, job: Delivery, value: Any) -> Row:
        window_ms = None
        if isinstance(value, Done):
            value, window_ms = None, value.verdict.window_ms
        found = values_of(value, self._names, encodes_json=self._output.encodes_json)
        for field, kind, one in zip(self._output.fields, self._quick, found, strict=True):
            if one is not None and (type(one) is not kind or not _is_usual(one)):
                pa.array([one], field.type)  # raises if it does not fit
        receipt = None if job.at_most_once else job.receipt
        return (job.id, receipt, job.attempt, window_ms, *found)

    def batch(self, jobs: Queue) -> pa.RecordBatch | None:
        """Remove and return the rows whose jobs are held; renew the leases of earlier ones."""
        found = [self._found.popleft() for _ in range(len(self._found))]
        self._room.set()
        if monotonic() > self._renewal:
            self._renewal = monotonic() + self._output.hold / 3
            held, self._held = self._held, []
            self._hold(jobs, held)
        gone = self._hold(jobs, [job for job, _ in found])
        self.lost += len(gone)
        rows = [row for job, row in found if not gone or job not in gone]
        if not rows:
            return None
        columns = zip(self.schema.types, zip(*rows, strict=True), strict=True)
        return pa.RecordBatch.from_arrays(
            [pa.array(values, kind) for kind, values in columns], schema=self.schema
        )

    def _hold(self, queue: Queue, jobs: Sequence[Delivery]) -> set[Delivery]:
        """Renew leases until the output is safe; return the jobs that are lost."""
        leased = [job for job in jobs if not job.at_most_once]
        answers = queue.extend(leased, self._output.hold, late=True) if leased else []
        is_held = [isinstance(one, float) or one is Outcome.UNKNOWN for one in answers]
        self._held += itertools.compress(leased, is_held)
        return {job for job, held in zip(leased, is_held, strict=True) if not held}


def _is_usual(value: Any) -> bool:
    """Return True if a value of a Python type certainly fits into a column of that type."""
    if type(value) is str:
        return value.isascii()
    return type(value) is not int or -(2**63) <= value < 2**63


def _is_done(job: Delivery, value: Any) -> bool:
    """Return True if a job is done, and not settled by its handler, failed or lost."""
    if job.settled or job.lost or job.cancelled:
        return False
    is_result = isinstance(value, type) and issubclass(value, Result)
    return isinstance(value, Done) or not (is_result or isinstance(value, BaseException))


def values_of(value: Any, names: Sequence[str], *, encodes_json: bool) -> Row:
    """Return the values of a result for these columns."""
    if value is None:
        return [None] * len(names)
    if encodes_json:
        return [value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)]
    if isinstance(value, dict):
        strange = set(value).difference(names)
        if strange:
            raise ValueError(f"no column {', '.join(map(repr, sorted(map(str, strange))))}")
        return [value.get(name) for name in names]
    if len(names) == 1 and not isinstance(value, tuple):
        return [value]
    if isinstance(value, (tuple, list)) and len(value) == len(names):
        return value
    raise ValueError(f"a tuple of {len(names)}, or a dict, not {type(value).__name__}")
