"""What a task of `drain` does: one worker's turn at a queue, on an executor."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from penstock.client._sync.queue import Queue
from penstock.client._sync.transport.connection import monotonic
from penstock.core.job import Delivery, Outcome, Settled
from penstock.core.logs import ONCE, Fields, get_logger, log_failure
from penstock.errors import QueueClosed
from penstock.spark.connect import check_identity, client
from penstock.spark.job_ref import JobRef
from penstock.spark.options import Connection
from penstock.worker.arguments import Unfit
from penstock.worker.handlers import Handler, Handlers
from penstock.worker.results import ACK, Result, Verdict, described

__all__ = ["COUNTS", "KEYS", "Acking", "Tally", "Working"]

logger = get_logger("penstock")

KEYS = "id string, receipt string, attempt int, dedup_window_ms bigint"
"""What stands before the results in the output."""
COUNTS = ("taken", "done", "failed", "dead", "released", "lost", "cut")
FIRST = 16
"""Jobs of the first block; blocks grow while they are quick."""
QUICK, SLOW = 0.25, 1.0
"""Seconds of a block below which the next one is larger, and above which it is smaller."""
SUSPECT = 2
"""Crashes after which a job is suspected of killing its workers; see `worker.suspects`."""


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
    """Renews the leases of the jobs of a task, in a thread and on a connection of its own.

    Args:
        queue: whose jobs, by a client of the thread's own.
        hold: seconds for which jobs that are done are held until their output is safe.
    """

    def __init__(self, queue: Queue, hold: float) -> None:
        self._queue = queue
        self._hold = hold
        self._lock = threading.Lock()
        self._jobs: Sequence[Delivery] = ()
        self._kept: list[Delivery] = []
        self._kept_at = monotonic()
        self._lease = 0.0
        self._due = 0.0
        self.until = 0.0
        self._closed = threading.Event()
        self._poked = threading.Event()
        self._thread = threading.Thread(target=self._main, name="penstock-drain", daemon=True)

    def __enter__(self) -> TaskHeartbeat:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._poked.set()
        self._thread.join()

    def hold(self, jobs: Sequence[Delivery], sent: float) -> None:
        """From now on these are being worked on; they were asked for at that time."""
        leases = _leases(jobs)
        with self._lock:
            self._jobs = jobs
            self._lease = min(leases, default=0.0)
            self.until = sent + self._lease if leases else float("inf")
            was, self._due = self._due, sent + self._lease / 3 if leases else float("inf")
        if self._due < was or was <= monotonic():
            self._poked.set()

    def keep(self, jobs: Sequence[Delivery]) -> list[Delivery]:
        """These are done, and held until the output that has them is safe; those still ours."""
        with self._lock:
            self._jobs = ()
        mine = self._extended(jobs, self._hold)
        with self._lock:
            if not self._kept:
                self._kept_at = monotonic()
            self._kept += mine
        return mine

    def _main(self) -> None:
        while not self._closed.is_set():
            self._poked.clear()
            now = monotonic()
            with self._lock:
                jobs = self._jobs if self._due <= now else ()
                kept = list(self._kept) if self._kept_at + self._hold / 3 <= now else []
            if jobs:
                self._renew(jobs, now)
            if kept:
                self._renew_kept(kept, now)
            with self._lock:
                nearest = self._due if self._jobs else float("inf")
                nearest = min(nearest, self._kept_at + self._hold / 3)
            self._poked.wait(max(0.01, min(nearest - monotonic(), 10.0)))

    def _renew(self, jobs: Sequence[Delivery], now: float) -> None:
        try:
            self._extended([job for job in jobs if not job.lost], None)
        except Exception as error:  # noqa: BLE001  # tried again, until the leases end
            logger.warning("leases can't be renewed: %s: %s", type(error).__name__, error)
            with self._lock:
                self._due = now + min(self._lease / 10, 1.0)
            return
        with self._lock:
            if self._jobs is jobs:
                self.until, self._due = now + self._lease, now + self._lease / 3

    def _renew_kept(self, kept: Sequence[Delivery], now: float) -> None:
        with suppress(Exception):  # the same; whoever acknowledges them sees what is lost
            self._extended(kept, self._hold)
            with self._lock:
                self._kept_at = now

    def _extended(self, jobs: Sequence[Delivery], lease: float | None) -> list[Delivery]:
        """Extend leases; the jobs that are still ours."""
        leased = [job for job in jobs if not _is_once(job)]
        if not leased:
            return list(jobs)
        for job, left in zip(leased, self._queue.extend(leased, lease, late=True), strict=True):
            if type(left) is not float:
                job.lost = left is not Outcome.UNKNOWN
        return [job for job in jobs if not job.lost]


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
                    "%s: %s came after its lease had ended", job.id, kind, extra=Fields(job)
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
        suspects = [job for job in jobs if not job.first and job.crashes >= SUSPECT]
        calm = [job for job in jobs if job not in suspects] if suspects else jobs
        self._portions(calm)
        if suspects:
            self._rest.setdefault(BACK, []).extend(suspects[1:])
            self._flush(acks=self.work.fields is None)
            self._portions(suspects[:1])
        self._flush(acks=False)

    def _portions(self, jobs: Sequence[Delivery]) -> None:
        find = self.work.handlers.find
        settled_at = monotonic()
        batches: dict[Handler[..., Any], list[Delivery]] = {}
        for job in jobs:
            handler = find(job)
            if handler is None:
                self._note(Verdict("bury", text=self.work.handlers.missing(job)), job)
            elif handler.size is None:
                if self._is_held(job):
                    self._one(handler, job)
            else:
                batches.setdefault(handler, []).append(job)
            if monotonic() - settled_at > SLOW:  # a crash must not cost what was done long ago
                self._flush(acks=self.work.fields is None)
                settled_at = monotonic()
        for handler, part in batches.items():
            size = handler.size or 1
            for start in range(0, len(part), size):
                held = [job for job in part[start : start + size] if self._is_held(job)]
                if held:
                    self._many(handler, held)

    def _is_held(self, job: Delivery) -> bool:
        if job.lost or (monotonic() > self.beat.until and not _is_once(job)):
            self.tally.lost += 1
            return False
        return True

    def _one(self, handler: Handler[..., Any], job: Delivery) -> None:
        try:
            args, kwargs = handler.arguments(job)
            value = handler.function(*args, **kwargs)
        except Unfit as error:
            self._note(Verdict("bury", text=str(error)), job)
        except (Exception, SystemExit) as error:  # noqa: BLE001  # its failure, not this task's
            self._failed(handler, [job], error)
        else:
            if type(value) in PLAIN:
                self._finished(job, ACK, value)
            else:
                self._finished(job, handler.returned(job, value), value)

    def _many(self, handler: Handler[..., Any], jobs: list[Delivery]) -> None:
        try:
            value = handler.function(list(jobs))
        except (Exception, SystemExit) as error:  # noqa: BLE001  # same
            self._failed(handler, jobs, error)
            return
        verdicts = handler.returned_batch(jobs, value) or [ACK] * len(jobs)
        values: Sequence[Any] = value if isinstance(value, (list, tuple)) else [value] * len(jobs)
        if len(values) != len(jobs):
            if self.work.fields is not None:  # results without a job are nobody's
                text = f"{len(values)} results for {len(jobs)} jobs"
                self._failed(handler, jobs, ValueError(text))
                return
            values = [None] * len(jobs)
        for job, verdict, one in zip(jobs, verdicts, values, strict=True):
            self._finished(job, verdict, one)

    def _failed(
        self, handler: Handler[..., Any], jobs: Sequence[Delivery], error: BaseException
    ) -> None:
        verdicts = [handler.failed(job, error) for job in jobs]
        if not isinstance(error, Result):
            job, is_last = jobs[0], verdicts[0].kind == "bury"
            ending = ONCE if job.at_most_once else "a dead letter" if is_last else ""
            with suppress(Exception):  # a filter of the user's log
                log_failure(job, described(error), error, ending=ending)
        for job, verdict in zip(jobs, verdicts, strict=True):
            self._finished(job, verdict, None)

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
            text = TypeError(f"the result does not fit the columns of the output: {error}")
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
            receipts = [None if _is_once(job) else job.receipt for job in jobs]
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
PLAIN = frozenset({type(None), bool, int, float, str, bytes, list, tuple, dict})
"""Of results that say nothing of their job."""


def _all_done(outcomes: Sequence[Outcome]) -> bool:
    return isinstance(outcomes, Settled) and outcomes.all_done


def _is_once(job: Delivery) -> bool:
    """Whether it is delivered at most once; few records have to be parsed for it."""
    return job._data[2:3] == b"l" and job.at_most_once


def _leases(jobs: Sequence[Delivery]) -> set[float]:
    """The leases of jobs that have one; the record names it before all else if it is its own."""
    usual, own = set[float](), set[float]()
    for job in jobs:
        if job._data[2:3] != b"l":
            usual.add(job.batch.lease_ms / 1000)
        elif not job.at_most_once:
            own.add(job.lease)
    return usual | own


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
        crcs = frozenset(ops.crc for ops in queue.operations)
        by_receipt: Callable[[Any], Any] = lambda row: (row[1], row[2])  # noqa: E731
        for (receipt, window), part in groupby(rows, by_receipt):
            if receipt is None:
                tally.done += sum(1 for _ in part)
                continue
            held = [JobRef(queue.name, row[0], receipt, crcs) for row in part]
            seconds = None if window is None else window / 1000
            tally.count("ack", queue.ack(held, dedup_window=seconds))
