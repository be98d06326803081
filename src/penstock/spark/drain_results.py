"""The output of a `drain`: results become rows, and their jobs stay held until these are safe."""

from __future__ import annotations

import itertools
import json
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter, itemgetter
from threading import Event
from typing import Any, NamedTuple

import pyarrow as pa

from penstock.client._sync.queue import Queue
from penstock.client.clock import monotonic
from penstock.core.jobs.job import OWN_TERMS, Delivery, Reservation, parts_of
from penstock.core.jobs.outcomes import Outcome
from penstock.core.jobs.results import links_of
from penstock.core.values.caught import message_of
from penstock.core.values.ids import AT_LEAST_ONCE_FOREVER
from penstock.spark.decoding import Origin, id_column, times_and_sequences
from penstock.spark.operations import collect_outcomes, delivery_maker
from penstock.worker.registered import AnyHandler
from penstock.worker.results import Done, Result

__all__ = ["KEYS_SCHEMA", "DrainOutput", "DrainResults", "HeldJobs", "make_held_jobs"]

KEYS_SCHEMA = pa.schema([("id", pa.string()), ("attempt", pa.int32()), ("receipts", pa.string())])
"""The columns before the results.

`receipts` has the `HeldJobs` of a batch, in its last row: it is written where all its rows are. A
row without an id has the figures of its task as receipts.
"""
MAX_WAITING_RESULTS = 10_000
"""Results that wait for Spark; if there are more, the handlers wait, too."""
EXACT_TYPES = {pa.string(): str, pa.int64(): int, pa.float64(): float, pa.bool_(): bool}
"""Columns whose usual values need no trial conversion."""
to_json = json.JSONEncoder(ensure_ascii=False).encode
Row = Sequence[Any]
"""The columns of a result."""


class OwnTerms(NamedTuple):
    """The terms of jobs that have a lease or a ttl of their own: the end of their ids shows them.

    Attributes:
        code: the last four digits of the ids.
        at_most_once: whether they were delivered at most once.
    """

    code: str
    at_most_once: bool


class ResultKind(NamedTuple):
    """The parts that jobs have in common.

    Attributes:
        reservation: that of all.
        counts: their counters.
        own: None = they have no terms of their own.
        window_ms: their dedup window; None = as their producers chose.
    """

    reservation: Reservation
    counts: bytes
    own: OwnTerms | None
    window_ms: int | None


class HeldJobs(NamedTuple):
    """Jobs with one receipt. The output has them as JSON.

    Attributes:
        node: 8 hex digits of the node's id.
        place: crc of the queue's name and epoch, in hex.
        receipt: perhaps with the end of their leases.
        window_ms: their dedup window; None = as their producers chose.
        numbers: their numbers, with blanks between them.
    """

    node: str
    place: str
    receipt: str
    window_ms: int | None
    numbers: str


def make_held_jobs(
    queue: Queue, groups: Iterable[HeldJobs]
) -> Iterator[tuple[int | None, list[Delivery]]]:
    """Yield windows and jobs. Neighbours with one receipt are mostly the jobs of one reserve."""
    for (node, place, receipt, window), part in itertools.groupby(groups, lambda one: one[:4]):
        make = delivery_maker(queue.name, node, int(place[:8], 16), place[8:], receipt)
        numbers = " ".join([one.numbers for one in part]).encode().split()
        yield window, list(map(make, numbers))


@dataclass(frozen=True)
class DrainOutput:
    """Settings of the output."""

    fields: Sequence[pa.Field]
    encodes_json: bool  # the only field is a text, and other results become JSON
    seconds: float  # after which a task takes no more jobs
    hold_ms: int  # the leases of finished jobs


class ResultPage:
    """Results whose jobs have all in common but their numbers.

    Attributes:
        receipt: empty = the jobs were delivered at most once.
        window_ms: their dedup window; None = as their producers chose.
        is_short: whether their leases may end before the output is safe.
        code: the last four digits of their ids.
    """

    def __init__(self, kind: ResultKind, numbers: Sequence[bytes], rows: Sequence[Row]) -> None:
        reservation, own = kind.reservation, kind.own
        first = Delivery(reservation, numbers[0], kind.counts, b"")
        self.window_ms = kind.window_ms
        self.place, self.attempt = reservation.place, first.attempt
        self.code = AT_LEAST_ONCE_FOREVER if own is None else own.code
        self.is_short = own is not None and not own.at_most_once
        if own is not None and own.at_most_once:
            self.receipt = ""
        else:
            self.receipt = first.receipt if own or kind.counts else reservation.receipt_with_end
        self.numbers, self.rows = numbers, rows

    def held(self) -> HeldJobs:
        """Return the jobs, without their results."""
        place, numbers = self.place, b" ".join(self.numbers).decode()
        return HeldJobs(place.node, place.packed.hex(), self.receipt, self.window_ms, numbers)

    def extend(self, queue: Queue, seconds: float) -> int:
        """Renew the leases; drop the jobs that are lost, and return their number."""
        ((_, jobs),) = make_held_jobs(queue, [self.held()])
        answers = collect_outcomes(partial(queue.extend, lease=seconds, late=True), jobs)
        kept = [one in (Outcome.DONE, Outcome.UNKNOWN) for one in answers]
        self.numbers = list(itertools.compress(self.numbers, kept))
        self.rows = list(itertools.compress(self.rows, kept))
        return kept.count(False)


def ids_of(pages: Iterable[ResultPage]) -> pa.Array:
    """Return the ids of the jobs."""
    arrays = []
    for (place, code), part in itertools.groupby(pages, attrgetter("place", "code")):
        numbers = [number for page in part for number in page.numbers]
        origin = Origin(place.queue, place.node, place.packed, "ready")
        arrays.append(id_column(origin, *times_and_sequences(numbers), code))
    return pa.concat_arrays(arrays)


class DrainResults:
    """The results of one task. The worker does not acknowledge their jobs.

    Attributes:
        schema: the columns of the keys and the results.
        kept: the number of results whose jobs have leases.
        lost: the number of results that were dropped, as the leases of their jobs had ended.
    """

    def __init__(self, output: DrainOutput) -> None:
        self.schema = pa.schema([*KEYS_SCHEMA, *output.fields])
        self._output, self._hold = output, output.hold_ms / 1000
        self._names = [column.name for column in output.fields]
        self._types = [column.type for column in output.fields]
        self._exact = [EXACT_TYPES.get(arrow_type) for arrow_type in self._types]
        self._nothing = None, (None,) * len(self._names)
        self._waiting = deque[Any]()
        self._kind: ResultKind | None = None
        self._room = Event()
        self._held: list[HeldJobs] = []
        self._renewal = monotonic() + self._hold / 6
        self.kept = self.lost = 0

    def take(self, handler: AnyHandler, jobs: Sequence[Delivery], value: Any) -> None:
        """Keep the results of a run, and settle its jobs.

        Raises:
            TypeError: a result does not fit the schema.
        """
        if len(self._waiting) > 3 * MAX_WAITING_RESULTS:
            self._room.clear()
            self._room.wait(1)
        try:
            if handler.size is None:
                rows = [self._row(jobs[0], value)]
            else:
                each = value if isinstance(value, (list, tuple)) else [value] * len(jobs)
                if len(each) != len(jobs):
                    raise ValueError(f"{len(each)} results for {len(jobs)} jobs")
                rows = list(map(self._row, jobs, each))
        except Exception as error:
            text = f"the result does not fit the columns of the schema: {message_of(error)}"
            raise TypeError(text) from error
        for job, result in zip(jobs, rows, strict=True):
            if result is not None:
                job.settled = True
                reservation, counts, data, number = parts_of(job)
                has_own = data[1:3] in OWN_TERMS
                own = OwnTerms(job.id[-4:], job.at_most_once) if has_own else None
                window_ms, row = result
                kind = ResultKind(reservation, counts, own, window_ms)
                if self._kind != kind:
                    self._kind = kind
                self._waiting += (self._kind, number, row)

    def _row(self, job: Delivery, value: Any) -> tuple[int | None, Row] | None:
        """Return the dedup window and the columns; None = the job is not done by this result."""
        if job.settled or job.lost or job.cancelled:
            return None
        if links_of(job):
            raise ValueError("jobs of a chain can be drained only with ack='task'")
        if value is None or value is Done:
            return self._nothing
        window_ms = None
        if isinstance(value, Done):
            if value.verdict.then is not None:
                raise ValueError("Done(then=...) works only with ack='task'")
            value, window_ms = value.value, value.verdict.window_ms
        elif isinstance(value, type) and issubclass(value, Result):
            return None
        if isinstance(value, BaseException):
            return None
        values = values_of(value, self._names, encodes_json=self._output.encodes_json)
        for arrow_type, exact_type, item in zip(self._types, self._exact, values, strict=True):
            if item is not None and (type(item) is not exact_type or not _fits_exactly(item)):
                pa.array([item], arrow_type)  # raises if it does not fit
        return window_ms, tuple(values)

    def batch(self, queue: Queue) -> pa.RecordBatch | None:
        """Remove and return the rows whose jobs are held; renew the leases of earlier ones."""
        parts = [self._waiting.popleft() for _ in range(len(self._waiting))]
        self._room.set()
        self._renew(queue)
        pages = []
        results = zip(parts[::3], parts[1::3], parts[2::3], strict=True)
        for kind, part in itertools.groupby(results, itemgetter(0)):
            _, numbers, rows = zip(*part, strict=True)
            pages.append(page := ResultPage(kind, numbers, rows))
            self.kept += len(rows) if page.receipt else 0
            if page.is_short:
                self.lost += page.extend(queue, self._hold)
        pages = [page for page in pages if page.rows]
        if not pages:
            return None
        groups = [page.held() for page in pages if page.receipt]
        self._held += groups
        attempts = [page.attempt for page in pages for _ in page.rows]
        receipts = [None] * (len(attempts) - 1) + [json.dumps(groups)]
        all_rows = [row for page in pages for row in page.rows]
        columns = ([row[at] for row in all_rows] for at in range(len(self._names)))
        values = map(pa.array, [attempts, receipts, *columns], self.schema.types[1:])
        return pa.RecordBatch.from_arrays([ids_of(pages), *values], schema=self.schema)

    def _renew(self, queue: Queue) -> None:
        if monotonic() > self._renewal:
            self._renewal = monotonic() + self._hold / 6
            for _, jobs in make_held_jobs(queue, self._held):
                collect_outcomes(partial(queue.extend, lease=self._hold, late=True), jobs)


def _fits_exactly(value: Any) -> bool:
    """Return True if a value of a Python type certainly fits into a column of that type."""
    if type(value) is str:
        return value.isascii()
    return type(value) is not int or -(2**63) <= value < 2**63


def values_of(value: Any, names: Sequence[str], *, encodes_json: bool) -> Row:
    """Return the values of a result for these columns."""
    if value is None:
        return [None] * len(names)
    if encodes_json:
        return [value if isinstance(value, str) else to_json(value)]
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
