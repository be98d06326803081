"""The tasks of `drain`: each takes jobs of a queue and runs their handlers, on an executor."""

from __future__ import annotations

import json
import math
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

import pyarrow as pa

from penstock.client._sync.client import twin_of
from penstock.client._sync.queue import Queue
from penstock.client._sync.sharded.parts import operations_of
from penstock.client._sync.transport.connection import monotonic
from penstock.core.job import Delivery, Outcome, Settled
from penstock.core.logs import Fields, get_logger
from penstock.errors import QueueClosed, WrongEpoch
from penstock.spark.connect import check_identity, client
from penstock.spark.job_ref import JobRef
from penstock.spark.options import Connection
from penstock.worker.arguments import Unfit
from penstock.worker.dispatcher import Dispatcher
from penstock.worker.handlers import Handler, Handlers
from penstock.worker.results import ACK, Result, Verdict
from penstock.worker.runners import Item
from penstock.worker.running import arguments_of, concluded, failed, unfit
from penstock.worker.suspects import suspects_among
from penstock.worker.terms import PAUSE, Term, begin, due, next_renewal

__all__ = ["COUNTS", "FIGURES", "KEYS", "Acking", "Working"]

logger = get_logger("penstock")

KEYS = pa.schema(
    [
        ("id", pa.string()),
        ("receipt", pa.string()),
        ("attempt", pa.int32()),
        ("dedup_window_ms", pa.int64()),
    ]
)
"""The columns before the results in the output."""
COUNTS = ("taken", "done", "failed", "dead", "released", "lost", "cut")
"""Figures of a task; `cut` is 1 if the task ended before the queue was empty."""
FIGURES = pa.schema([(f"_{name}", pa.int64()) for name in COUNTS])
Row = tuple[Delivery, int | None, Any]
"""A job, the window of its dedup id in ms, and its result."""
FIRST = 16
"""Jobs of the first block; blocks grow while they take little time."""
QUICK, SLOW = 0.25, 1.0
"""Seconds of a block below which the next one is larger, and above which it is smaller."""


KINDS = {"ack": "done", "nack": "failed", "bury": "dead", "release": "released"}


class TaskHeartbeat:
    """Renews the leases of a task's jobs, in a thread with its own connections.

    `worker.terms` decides when a lease is renewed, as for a worker.

    Args:
        queue: the queue, opened by a client that only the thread uses.
        hold: seconds of the leases of finished jobs whose output is not safe yet.
    """

    def __init__(self, queue: Queue, hold: float) -> None:
        self._queue = queue
        self._hold = hold
        self._lock = threading.Lock()
        self._block: Sequence[Delivery] = ()
        self._kept: list[Delivery] = []
        self._wakes_at = 0.0
        self._retry_at = 0.0
        self._closed = False
        self._poked = threading.Event()
        self._thread = threading.Thread(target=self._main, name="penstock-drain", daemon=True)

    def __enter__(self) -> TaskHeartbeat:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True
        self._poked.set()
        self._thread.join()

    def hold(self, jobs: Sequence[Delivery], sent: float) -> None:
        """Renew these jobs, which were requested at `sent`, instead of the block before."""
        _, renewal = begin(jobs, sent, monotonic())
        with self._lock:
            self._block = jobs
        if renewal < self._wakes_at:
            self._poked.set()

    def keep(self, jobs: Sequence[Delivery]) -> list[Delivery]:
        """Hold finished jobs until their output is safe; return those that are still held."""
        with self._lock:
            self._block = ()
        leased = [job for job in jobs if not job.term.is_once]
        for job in leased:
            job.term = Term(job.term.until, self._hold)
        self._extend(self._hold, leased)
        mine = [job for job in jobs if not job.lost]
        with self._lock:
            self._kept += mine
        return mine

    def _main(self) -> None:
        while not self._closed:
            self._poked.clear()
            with self._lock:
                held = [job for job in (*self._block, *self._kept) if not job.lost]
            now = monotonic()
            for lease, jobs in due(held, now) if now >= self._retry_at else ():
                self._renew(lease, jobs)
            self._wakes_at = math.inf  # a block that begins after this sets `_poked`
            with self._lock:
                nearest = next_renewal([*self._block, *self._kept])
            pause = max(0.01, min(max(nearest, self._retry_at) - monotonic(), PAUSE))
            self._wakes_at = monotonic() + pause
            self._poked.wait(pause)

    def _renew(self, lease: float, jobs: Sequence[Delivery]) -> None:
        try:
            is_known = self._extend(lease, jobs)
        except WrongEpoch:
            for job in jobs:
                job.lost = True
        except Exception as error:  # noqa: BLE001  # tried again until the leases end
            logger.warning("leases can't be renewed: %s: %s", type(error).__name__, error)
            is_known = False
        else:
            if is_known:
                return
        self._retry_at = monotonic() + min(lease / 10, 1.0)

    def _extend(self, lease: float, jobs: Sequence[Delivery]) -> bool:
        """Extend leases; return True if the server has answered for each job."""
        if not jobs:
            return True
        sent, is_known = monotonic(), True
        answers = self._queue.extend(jobs, lease, late=True)
        heard = monotonic()
        for job, left in zip(jobs, answers, strict=True):
            if isinstance(left, float):
                job.term = job.term.extended(sent, heard, left)
            elif left is Outcome.UNKNOWN:
                is_known = False
            else:
                job.lost = True
        return is_known


@dataclass
class Working:
    """Takes jobs and runs their handlers until the queue is empty. Spark calls it in each task.

    Args:
        connection: options of the connection.
        expected: ids of the nodes that the driver reaches.
        handlers: of the jobs.
        batch_size: most jobs of a block.
        shares: most jobs of each partition; empty = no limit.
        fields: Arrow fields of the results; None = results are dropped.
        usual: whether the only field is a text, in which other results stand as JSON.
        seconds: after which no further block is taken; None = no limit.
        hold: seconds of the leases of finished jobs.
    """

    connection: Connection
    expected: tuple[str, ...]
    handlers: Handlers
    batch_size: int
    shares: tuple[int, ...] = ()
    fields: Sequence[pa.Field] | None = None
    usual: bool = False
    seconds: float | None = None
    hold: float = 600.0

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the results, if they are wanted, and the figures; the input numbers the task."""
        number = 0
        for batch in batches:
            number = batch.column(0)[0].as_py() if batch.num_rows else number
        check_identity(self.connection, self.expected)
        share = self.shares[number % len(self.shares)] if self.shares else None
        whole = client(self.connection)
        queue = whole.open(self.connection.queue)
        with twin_of(whole) as twin, TaskHeartbeat(twin.queue(queue.name), self.hold) as beat:
            yield from DrainLoop(self, queue, beat, share).run()


class DrainLoop:
    """One run of a task.

    Args:
        work: its settings.
        queue: the queue.
        beat: renews the leases.
        share: most jobs; None = no limit.
    """

    def __init__(self, work: Working, queue: Queue, beat: TaskHeartbeat, share: int | None) -> None:
        self.work = work
        self.queue = queue
        self.beat = beat
        self.tally = Counter[str]()
        self._left = share
        self._size = min(FIRST, work.batch_size)
        self._ends = None if work.seconds is None else monotonic() + work.seconds
        self._values: list[Row] = []
        self._kept = [] if work.fields is None else [*KEYS, *work.fields]
        self._names = [one.name for one in (*self._kept, *FIGURES)]
        self._settled_at = 0.0
        # By this clock every batch is due, so `hand` also runs batches that are not full.
        self._dispatcher = Dispatcher(work.handlers, self, self._unknown, lambda: math.inf)
        self._done: list[Delivery] = []
        self._rest: dict[Verdict, list[Delivery]] = {}

    def run(self) -> Iterator[pa.RecordBatch]:
        """Work until the queue is empty, or the share is used up."""
        while True:
            sent = monotonic()
            jobs = self._next()
            if not jobs:
                break
            self.tally["taken"] += len(jobs)
            self._block(jobs, sent)
            if self.work.fields is not None:
                yield from self._written()
            self._pace(monotonic() - sent, len(jobs))
        yield self._last()

    # -- taking and settling -----------------------------------------------------------------

    def _next(self) -> Sequence[Delivery]:
        size = self._size if self._left is None else min(self._size, self._left)
        if size == 0 or (self._ends is not None and monotonic() > self._ends):
            self.tally["cut"] = 1
            self._flush(acks=True)
            return ()
        done, self._done = self._done, []
        try:
            if done:
                outcomes, jobs = self.queue.settle(done, size, block=0)
                self._settled("ack", done, outcomes)
            else:
                jobs = self.queue.reserve(size, block=0)
        except QueueClosed:
            return ()
        if self._left is not None:
            self._left -= len(jobs)
        return jobs

    def _flush(self, *, acks: bool) -> None:
        """Settle jobs that are not just acknowledged; with `acks`, settle finished ones too."""
        rest, self._rest = self._rest, {}
        for verdict, jobs in rest.items():
            self._settled(verdict.kind, jobs, self._told(verdict, jobs))
        if acks and self._done:
            done, self._done = self._done, []
            self._settled("ack", done, self.queue.ack(done))

    def _told(self, verdict: Verdict, jobs: Sequence[Delivery]) -> Sequence[Outcome]:
        delay = None if verdict.delay_ms < 0 else verdict.delay_ms / 1000
        if verdict.kind == "nack":
            return self.queue.nack(jobs, delay=delay, error=verdict.text)
        if verdict.kind == "release":
            return self.queue.release(jobs, delay=delay or 0)
        if verdict.kind == "bury":
            return self.queue.bury(jobs, verdict.text)
        window = None if verdict.window_ms is None else verdict.window_ms / 1000
        return self.queue.ack(jobs, dedup_window=window)

    def _settled(self, kind: str, jobs: Sequence[Delivery], outcomes: Sequence[Outcome]) -> None:
        add_outcomes(self.tally, kind, outcomes)
        for job, outcome in () if _all_done(outcomes) else zip(jobs, outcomes, strict=True):
            if outcome in (Outcome.STALE, Outcome.ENDED):
                text = "%s: %s came after the lease had ended"
                logger.warning(text, job.id, kind, extra=Fields(job))

    def _pace(self, seconds: float, count: int) -> None:
        if seconds > SLOW:
            self._size = max(1, min(self._size, count) // 2)
        elif seconds < QUICK and count == self._size:
            self._size = min(self._size * 2, self.work.batch_size)

    # -- doing -------------------------------------------------------------------------------

    def _block(self, jobs: Sequence[Delivery], sent: float) -> None:
        """Run the handlers of one block.

        One suspect runs last and alone. The others are released, so that a crash is not counted
        for all of them.
        """
        self.beat.hold(jobs, sent)
        self._settled_at = monotonic()
        suspects = suspects_among(jobs)
        calm = [job for job in jobs if job not in suspects] if suspects else jobs
        self._dispatcher.hand(calm)
        if suspects:
            self._rest.setdefault(BACK, []).extend(suspects[1:])
            self._flush(acks=self.work.fields is None)
            self._dispatcher.hand(suspects[:1])
        self._flush(acks=False)

    def _unknown(self, job: Delivery) -> None:
        self._note(unfit(job, self.work.handlers.missing(job)), job)

    def put(self, item: Item) -> None:
        """Run a handler now, and settle older jobs, so that a crash does not repeat them."""
        handler, jobs = item
        held = [job for job in jobs if self._is_held(job)]
        if held:
            self._run(handler, held)
        if monotonic() - self._settled_at > SLOW:
            self._flush(acks=self.work.fields is None)
            self._settled_at = monotonic()

    def drain(self) -> list[Item]:
        """Return no items: each one runs at once."""
        return []

    def lose(self, jobs: Sequence[Delivery]) -> None:
        """Mark jobs as lost."""
        for job in jobs:
            job.lost = True

    def _is_held(self, job: Delivery) -> bool:
        if job.lost or job.term.is_over(monotonic()):
            self.tally["lost"] += 1
            return False
        return True

    def _run(self, handler: Handler[..., Any], jobs: list[Delivery]) -> None:
        values: Sequence[Any] = [None] * len(jobs)
        try:
            args, kwargs = arguments_of(handler, jobs)
            value = handler.function(*args, **kwargs)
            verdicts = concluded(handler, jobs, value) or [ACK] * len(jobs)
            if self.work.fields is not None:
                values = _each(value, len(jobs)) if handler.size else [value]
        except Unfit as error:
            verdicts = [unfit(jobs[0], str(error))]
        except (Exception, SystemExit) as error:  # noqa: BLE001  # its failure, not this task's
            verdicts = failed(handler, jobs, error)
        for job, verdict, one in zip(jobs, verdicts, values, strict=True):
            self._finished(job, verdict, one)

    def _finished(self, job: Delivery, verdict: Verdict, value: Any) -> None:
        if job.settled:
            self.tally["done"] += 1
        elif verdict is not ACK and verdict.kind != "ack":
            self._note(verdict, job)
        elif self.work.fields is not None:
            self._values.append((job, verdict.window_ms, None if _is_said(value) else value))
        elif verdict.window_ms is None:
            self._done.append(job)
        else:
            self._rest.setdefault(verdict, []).append(job)

    def _note(self, verdict: Verdict, job: Delivery) -> None:
        if job.at_most_once:  # the server has removed it at delivery
            self.tally["dead"] += 1
        else:
            self._rest.setdefault(verdict, []).append(job)

    # -- results -----------------------------------------------------------------------------

    def _written(self) -> Iterator[pa.RecordBatch]:
        rows, self._values = self._values, []
        if not rows:
            return
        try:
            batch = self._batch(rows)
        except Exception:  # noqa: BLE001  # a result does not fit: find out which
            rows = [row for row in rows if self._fits(row)]
            self._flush(acks=False)
            batch = self._batch(rows)
        mine = self.beat.keep([job for job, _, _ in rows])
        if len(mine) < len(rows):
            self.tally["lost"] += len(rows) - len(mine)
            batch = self._batch([row for row in rows if not row[0].lost])
        yield batch

    def _fits(self, row: Row) -> bool:
        try:
            self._columns([row])
        except Exception as error:  # noqa: BLE001  # any error of Arrow is the handler's failure
            job = row[0]
            handler = self.work.handlers.find(job)
            assert handler is not None
            text = TypeError(f"the result does not fit the columns of the schema: {error}")
            self._note(handler.failed(job, text), job)
            return False
        return True

    def _columns(self, rows: Sequence[Row]) -> list[pa.Array]:
        fields = self.work.fields or ()
        parts = [_parts(value, fields, self.work.usual) for _, _, value in rows]
        return [
            pa.array([part[at] for part in parts], type=one.type) for at, one in enumerate(fields)
        ]

    def _batch(self, rows: Sequence[Row]) -> pa.RecordBatch:
        jobs = [job for job, _, _ in rows]
        keys = (
            [job.id for job in jobs],
            [None if job.term.is_once else job.receipt for job in jobs],
            [job.attempt for job in jobs],
            [window for _, window, _ in rows],
        )
        arrays = [pa.array(key, kind) for key, kind in zip(keys, KEYS.types, strict=True)]
        zeros = pa.array([0] * len(rows), pa.int64())
        arrays += [*self._columns(rows), *[zeros] * len(COUNTS)]
        return pa.RecordBatch.from_arrays(arrays, self._names)

    def _last(self) -> pa.RecordBatch:
        arrays = [pa.nulls(1, one.type) for one in self._kept]
        return pa.RecordBatch.from_arrays([*arrays, *figures(self.tally)], self._names)


BACK = Verdict("release", 0)


def figures(tally: Counter[str]) -> list[pa.Array]:
    """Return the columns of a row of figures."""
    return [pa.array([tally[name]], pa.int64()) for name in COUNTS]


def _all_done(outcomes: Sequence[Outcome]) -> bool:
    return isinstance(outcomes, Settled) and outcomes.all_done


def add_outcomes(tally: Counter[str], kind: str, outcomes: Sequence[Outcome]) -> None:
    """Count the outcomes of one call that acks, nacks, buries or releases."""
    if _all_done(outcomes):
        tally[KINDS[kind]] += len(outcomes)
        return
    for outcome in outcomes:
        done = KINDS[kind] if outcome in (Outcome.DONE, Outcome.HINTED) else "lost"
        tally["dead" if outcome is Outcome.DEAD else done] += 1


def _each(value: Any, count: int) -> Sequence[Any]:
    values = value if isinstance(value, (list, tuple)) else [value] * count
    if len(values) != count:
        raise ValueError(f"{len(values)} results for {count} jobs")
    return values


def _is_said(value: Any) -> bool:
    """Return True if a returned value is a verdict on the job, not its result."""
    return isinstance(value, BaseException) or (
        isinstance(value, type) and issubclass(value, Result)
    )


def _parts(value: Any, fields: Sequence[pa.Field], usual: bool) -> Sequence[Any]:
    if value is None:
        return (None,) * len(fields)
    if usual and not isinstance(value, str):
        try:
            return (json.dumps(value, ensure_ascii=False),)
        except (TypeError, ValueError):
            return (value,)  # Arrow raises with the reason
    if len(fields) == 1 and not isinstance(value, (dict, tuple)):
        return (value,)
    if isinstance(value, dict):
        names = [one.name for one in fields]
        strange = set(value).difference(names)
        if strange:
            raise ValueError(f"no column {', '.join(map(repr, sorted(map(str, strange))))}")
        return [value.get(name) for name in names]
    if isinstance(value, (tuple, list)) and len(value) == len(fields):
        return value
    raise ValueError(f"a tuple of {len(fields)}, or a dict, not {type(value).__name__}")


@dataclass
class Acking:
    """Acknowledges jobs whose results are safe. Spark calls it for each partition of the results.

    Args:
        connection: options of the connection.
        expected: ids of the nodes that the driver reaches.
    """

    connection: Connection
    expected: tuple[str, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Acknowledge rows of id, receipt and window; return the figures.

        A row without a receipt is of a job that was delivered at most once.
        """
        check_identity(self.connection, self.expected)
        queue = client(self.connection).open(self.connection.queue)
        tally = Counter[str]()
        crcs = frozenset(ops.crc for ops in operations_of(queue))
        for batch in batches:
            rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
            for (receipt, window), part in groupby(rows, itemgetter(1, 2)):
                if receipt is None:
                    tally["done"] += sum(1 for _ in part)
                    continue
                held = [JobRef(queue.name, row[0], receipt, crcs) for row in part]
                seconds = None if window is None else window / 1000
                add_outcomes(tally, "ack", queue.ack(held, dedup_window=seconds))
        yield pa.RecordBatch.from_arrays(figures(tally), FIGURES.names)
