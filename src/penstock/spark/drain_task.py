"""What a task of `drain` does: one worker's turn at a queue, on an executor."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

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

__all__ = ["COUNTS", "KEYS", "Acking", "Tally", "Working"]

logger = get_logger("penstock")

KEYS = "id string, receipt string, attempt int, dedup_window_ms bigint"
"""What stands before the results in the output."""
COUNTS = ("taken", "done", "failed", "dead", "released", "lost", "cut")
FIRST = 16
"""Jobs of the first block; blocks grow while they are quick."""
QUICK, SLOW = 0.25, 1.0
"""Seconds of a block below which the next one is larger, and above which it is smaller."""


@dataclass
class Tally:
    """What became of jobs; `cut` = the turn ended before the queue was empty."""

    taken: int = 0
    done: int = 0
    failed: int = 0
    dead: int = 0
    released: int = 0
    lost: int = 0
    cut: int = 0

    def count(self, kind: str, outcomes: Sequence[Outcome]) -> None:
        """Add the outcomes of one call."""
        if _all_done(outcomes):
            setattr(self, KINDS[kind], getattr(self, KINDS[kind]) + len(outcomes))
            return
        for outcome in outcomes:
            if outcome is Outcome.DEAD:
                self.dead += 1
            elif outcome in (Outcome.DONE, Outcome.HINTED):
                setattr(self, KINDS[kind], getattr(self, KINDS[kind]) + 1)
            else:
                self.lost += 1

    def rows(self) -> list[int]:
        """The figures in the order of `COUNTS`."""
        return [getattr(self, name) for name in COUNTS]


KINDS = {"ack": "done", "nack": "failed", "bury": "dead", "release": "released"}


class TaskHeartbeat:
    """Renews the leases of a task's jobs, in a thread and on connections of its own.

    When they are renewed is decided by `worker.terms`, as for a worker.

    Args:
        queue: whose jobs, by a client of the thread's own.
        hold: seconds for which finished jobs are held until their output is safe.
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
        """Renew these from now on, instead of the block before; they were asked for at `sent`."""
        _, renewal = begin(jobs, sent, monotonic())
        with self._lock:
            self._block = jobs
        if renewal < self._wakes_at:
            self._poked.set()

    def keep(self, jobs: Sequence[Delivery]) -> list[Delivery]:
        """Hold finished jobs until the output that has them is safe; return those still held."""
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
            self._wakes_at = math.inf  # a block that begins from here on pokes
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
        except Exception as error:  # noqa: BLE001  # tried again, until the leases end
            logger.warning("leases can't be renewed: %s: %s", type(error).__name__, error)
            is_known = False
        else:
            if is_known:
                return
        self._retry_at = monotonic() + min(lease / 10, 1.0)

    def _extend(self, lease: float, jobs: Sequence[Delivery]) -> bool:
        """Extend leases; return whether the server has answered for each."""
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
    """Takes jobs and runs their handlers until the queue is empty; what `mapInArrow` is given.

    Args:
        connection: where the queue is.
        expected: the nodes that the driver reaches.
        handlers: who does the jobs.
        batch_size: most jobs of a block.
        shares: most jobs of each partition; empty = no limit.
        fields: Arrow fields of the results; None = they are not wanted.
        usual: whether the results are texts, or JSON.
        seconds: after which no further block is taken; None = no limit.
        hold: seconds for which finished jobs are held.
    """

    connection: Connection
    expected: tuple[str, ...]
    handlers: Handlers
    batch_size: int
    shares: tuple[int, ...] = ()
    fields: Any = None
    usual: bool = False
    seconds: float | None = None
    hold: float = 600.0
    _made: list[Any] = field(default_factory=list, repr=False)

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Empty the queue; the input only says that there is a partition."""
        number = 0
        for batch in batches:
            number = batch.column(0)[0].as_py() if batch.num_rows else number
        check_identity(self.connection, self.expected)
        share = self.shares[number % len(self.shares)] if self.shares else None
        yield from self.turn(share)

    def turn(self, share: int | None) -> Iterator[Any]:
        """Record batches: of results, if they are wanted, and of what was counted."""
        whole = client(self.connection)
        queue = whole.open(self.connection.queue)
        with whole.twin() as twin, TaskHeartbeat(twin.queue(queue.name), self.hold) as beat:
            yield from DrainLoop(self, queue, beat, share).run()


class DrainLoop:
    """One run of a task.

    Args:
        work: what is to be done.
        queue: whose jobs.
        beat: renews their leases.
        share: most jobs; None = no limit.
    """

    def __init__(
        self, work: Working, queue: Queue, beat: TaskHeartbeat, share: int | None = None
    ) -> None:
        self.work = work
        self.queue = queue
        self.beat = beat
        self.tally = Tally()
        self._left = share
        self._size = min(FIRST, work.batch_size)
        self._ends = None if work.seconds is None else monotonic() + work.seconds
        self._values: list[Any] = []
        self._settled_at = 0.0
        # At a time without end every batch is due: `hand` gives out those that are not full, too.
        self._dispatcher = Dispatcher(work.handlers, self, self._unknown, lambda: math.inf)
        self._done: list[Delivery] = []
        self._rest: dict[Verdict, list[Delivery]] = {}

    def run(self) -> Iterator[Any]:
        """Work until the queue is empty, or the share is used up."""
        while True:
            sent = monotonic()
            jobs = self._next()
            if not jobs:
                break
            self.tally.taken += len(jobs)
            self._block(jobs, sent)
            if self.work.fields is not None:
                yield from self._written()
            self._pace(monotonic() - sent, len(jobs))
        yield self._batch([], [], self.tally)

    # -- taking and settling -----------------------------------------------------------------

    def _next(self) -> Sequence[Delivery]:
        """Settle what is done, and take the next block."""
        size = self._size if self._left is None else min(self._size, self._left)
        if size == 0 or (self._ends is not None and monotonic() > self._ends):
            self.tally.cut = 1
            size = 0
        done, self._done = self._done, []
        try:
            if not done:
                jobs = self.queue.reserve(size, block=0) if size else []
            elif size:
                outcomes, jobs = self.queue.settle(done, size, block=0)
                self._settled("ack", done, outcomes)
            else:
                jobs = []
                self._settled("ack", done, self.queue.ack(done))
        except QueueClosed:
            return ()
        if self._left is not None:
            self._left -= len(jobs)
        return jobs

    def _flush(self, *, acks: bool) -> None:
        """Settle what has failed, and what is done as well."""
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
        self.tally.count(kind, outcomes)
        if _all_done(outcomes):
            return
        for job, outcome in zip(jobs, outcomes, strict=True):
            if outcome in (Outcome.STALE, Outcome.ENDED):
                logger.warning(
                    "%s: %s came after the lease had ended", job.id, kind, extra=Fields(job)
                )

    def _pace(self, seconds: float, count: int) -> None:
        """Quick blocks grow; slow ones shrink, so that other tasks get their part."""
        if seconds > SLOW:
            self._size = max(1, min(self._size, count) // 2)
        elif seconds < QUICK and count == self._size:
            self._size = min(self._size * 2, self.work.batch_size)

    # -- doing -------------------------------------------------------------------------------

    def _block(self, jobs: Sequence[Delivery], sent: float) -> None:
        """Run the handlers of one block.

        A job that may have killed its workers runs last and alone; its like are given back, so
        that they do not have their last crash together.
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
        """Run a handler now, and report what was done long ago: a crash must not cost it."""
        handler, jobs = item
        held = [job for job in jobs if self._is_held(job)]
        if held:
            self._run(handler, held)
        if monotonic() - self._settled_at > SLOW:
            self._flush(acks=self.work.fields is None)
            self._settled_at = monotonic()

    def drain(self) -> list[Item]:
        """Return nothing: each run begins at once."""
        return []

    def lose(self, jobs: Sequence[Delivery]) -> None:
        """Mark jobs as lost."""
        for job in jobs:
            job.lost = True

    def _is_held(self, job: Delivery) -> bool:
        if job.lost or job.term.is_over(monotonic()):
            self.tally.lost += 1
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
        """Note what is to become of a job; one that its handler has settled is left alone."""
        if job.settled:
            self.tally.done += 1
        elif verdict is not ACK and verdict.kind != "ack":
            self._note(verdict, job)
        elif self.work.fields is not None:
            self._values.append((job, verdict.window_ms, None if _is_said(value) else value))
        elif verdict.window_ms is None:
            self._done.append(job)
        else:
            self._rest.setdefault(verdict, []).append(job)

    def _note(self, verdict: Verdict, job: Delivery) -> None:
        if job.at_most_once:  # there is nothing to give back
            self.tally.dead += 1
        else:
            self._rest.setdefault(verdict, []).append(job)

    # -- results -----------------------------------------------------------------------------

    def _written(self) -> Iterator[Any]:
        """The results of a block; jobs whose result does not fit their column have failed."""
        found, self._values = self._values, []
        if not found:
            return
        rows = [(job, window, self._row(value)) for job, window, value in found]
        try:
            batch = self._batch(rows, self._columns(rows))
        except Exception:  # noqa: BLE001  # one of them: which?
            rows = [row for row in rows if self._fits(*row)]
            self._flush(acks=False)
            batch = self._batch(rows, self._columns(rows))
        mine = self.beat.keep([job for job, _, _ in rows])
        if len(mine) < len(rows):
            self.tally.lost += len(rows) - len(mine)
            rows = [row for row in rows if not row[0].lost]
            batch = self._batch(rows, self._columns(rows))
        yield batch

    def _fits(self, job: Delivery, window: int | None, values: Any) -> bool:
        try:
            self._columns([(job, window, values)])
        except Exception as error:  # noqa: BLE001  # whatever Arrow says is the handler's failure
            handler = self.work.handlers.find(job)
            assert handler is not None
            text = TypeError(f"the result does not fit the columns of the schema: {error}")
            self._note(handler.failed(job, text), job)
            return False
        return True

    def _row(self, value: Any) -> Any:
        if self.work.usual and value is not None and not isinstance(value, str):
            try:
                return (json.dumps(value, ensure_ascii=False),)
            except (TypeError, ValueError):
                return (value,)  # Arrow says why not
        if len(self.work.fields) == 1 and not isinstance(value, (dict, tuple)):
            return (value,)
        return value

    def _columns(self, rows: Sequence[tuple[Delivery, int | None, Any]]) -> list[Any]:
        """Arrow columns of results."""
        import pyarrow as pa

        width = len(self.work.fields)
        columns: list[list[Any]] = [[] for _ in range(width)]
        for _, _, value in rows:
            parts = _parts(value, self.work.fields, width)
            for column, part in zip(columns, parts, strict=True):
                column.append(part)
        return [
            pa.array(column, type=one.type)
            for column, one in zip(columns, self.work.fields, strict=True)
        ]

    def _batch(self, rows: Sequence[Any], columns: list[Any], tally: Tally | None = None) -> Any:
        """Rows as they are handed to Spark: keys and results, or figures."""
        import pyarrow as pa

        arrays: list[Any] = []
        names: list[str] = []
        if self.work.fields is not None:
            jobs = [job for job, _, _ in rows]
            receipts = [None if job.term.is_once else job.receipt for job in jobs]
            windows = [window for _, window, _ in rows]
            keys = [
                pa.array([job.id for job in jobs], pa.string()),
                pa.array(receipts, pa.string()),
                pa.array([job.attempt for job in jobs], pa.int32()),
                pa.array(windows, pa.int64()),
            ]
            results = columns or [pa.array([], one.type) for one in self.work.fields]
            if tally is not None:
                keys, results = [_nulls(one, 1) for one in keys], [_nulls(r, 1) for r in results]
            arrays += [*keys, *results]
            names += [part.split()[0] for part in KEYS.split(", ")]
            names += [one.name for one in self.work.fields]
        count = len(rows) if tally is None else 1
        figures = [0] * len(COUNTS) if tally is None else tally.rows()
        arrays += [pa.array([figure] * count, pa.int64()) for figure in figures]
        names += [f"_{name}" for name in COUNTS]
        return pa.RecordBatch.from_arrays(arrays, names)


BACK = Verdict("release", 0)


def _all_done(outcomes: Sequence[Outcome]) -> bool:
    return isinstance(outcomes, Settled) and outcomes.all_done


def _each(value: Any, count: int) -> Sequence[Any]:
    """Return the results of a batch.

    Raises:
        ValueError: there are others than jobs.
    """
    values = value if isinstance(value, (list, tuple)) else [value] * count
    if len(values) != count:
        raise ValueError(f"{len(values)} results for {count} jobs")
    return values


def _is_said(value: Any) -> bool:
    """Whether what a handler returned says what becomes of its job, and is no result."""
    return isinstance(value, BaseException) or (
        isinstance(value, type) and issubclass(value, Result)
    )


def _nulls(array: Any, count: int) -> Any:
    import pyarrow as pa

    return pa.nulls(count, array.type)


def _parts(value: Any, fields: Sequence[Any], width: int) -> Sequence[Any]:
    """The columns of one result.

    Raises:
        ValueError: it has others.
    """
    if value is None:
        return (None,) * width
    if isinstance(value, dict):
        names = [one.name for one in fields]
        strange = set(value) - set(names)
        if strange:
            raise ValueError(f"no column {', '.join(map(repr, sorted(map(str, strange))))}")
        return [value.get(name) for name in names]
    if isinstance(value, (tuple, list)) and len(value) == width:
        return value
    raise ValueError(f"a tuple of {width}, or a dict, not {type(value).__name__}")


@dataclass
class Acking:
    """Acknowledges the jobs of an output that is safe; what `mapInArrow` is given.

    Args:
        connection: where the queue is.
        expected: the nodes that the driver reaches.
    """

    connection: Connection
    expected: tuple[str, ...]

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Acknowledge; counts come back."""
        import pyarrow as pa

        check_identity(self.connection, self.expected)
        queue = client(self.connection).open(self.connection.queue)
        tally = Tally()
        for batch in batches:
            rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
            self.settle(queue, rows, tally)
        arrays = [pa.array([figure], pa.int64()) for figure in tally.rows()]
        yield pa.RecordBatch.from_arrays(arrays, [f"_{name}" for name in COUNTS])

    def settle(self, queue: Any, rows: Iterator[Any], tally: Tally) -> None:
        """Acknowledge rows of id, receipt, window; one without a receipt was delivered once."""
        crcs = frozenset(ops.crc for ops in operations_of(queue))
        by_receipt: Callable[[Any], Any] = lambda row: (row[1], row[2])  # noqa: E731
        for (receipt, window), part in groupby(rows, by_receipt):
            if receipt is None:
                tally.done += sum(1 for _ in part)
                continue
            held = [JobRef(queue.name, row[0], receipt, crcs) for row in part]
            seconds = None if window is None else window / 1000
            tally.count("ack", queue.ack(held, dedup_window=seconds))
