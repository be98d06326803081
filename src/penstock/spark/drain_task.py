"""The tasks of `drain`: each takes jobs of a queue and runs their handlers, on an executor."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

import pyarrow as pa

from penstock.client._sync.queue import Queue
from penstock.client._sync.sharded.parts import operations_of
from penstock.client._sync.transport.connection import monotonic
from penstock.core.job import Delivery, set_term, term_of
from penstock.core.logs import Fields, get_logger
from penstock.core.outcomes import Outcome, Settled
from penstock.errors import QueueClosed
from penstock.spark.connect import client, open_in_task
from penstock.spark.job_ref import JobRef
from penstock.spark.options import Connection
from penstock.worker._sync.handler_runner import HandlerRunner
from penstock.worker._sync.heartbeat import Heartbeat
from penstock.worker.dispatcher import Dispatcher
from penstock.worker.handlers import Handlers
from penstock.worker.options import WorkerOptions
from penstock.worker.registered import RegisteredHandler
from penstock.worker.results import ACK, Result, Verdict
from penstock.worker.runners import Item, Runners
from penstock.worker.state import HANDED_BACK, KEPT, WorkerState
from penstock.worker.suspects import suspects_among
from penstock.worker.terms import OVER, Term, begin

__all__ = ["COUNTS", "FIGURES", "KEYS", "AckTask", "DrainTask"]

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


FIGURE_OF = {"ack": "done", "nack": "failed", "bury": "dead", "release": "released"}


@dataclass
class DrainTask:
    """Takes jobs and runs their handlers until the queue is empty. Spark calls it in each task.

    Args:
        connection: options of the connection.
        expected: ids of the nodes that the driver reaches.
        handlers: of the jobs.
        batch_size: most jobs of a block.
        shares: most jobs of each partition; empty = no limit.
        fields: Arrow fields of the results; None = results are dropped.
        encodes_json: whether the only field is a text, and other results become JSON.
        seconds: after which no further block is taken; None = no limit.
        hold: seconds of the leases of finished jobs.
    """

    connection: Connection
    expected: tuple[str, ...]
    handlers: Handlers
    batch_size: int
    shares: tuple[int, ...] = ()
    fields: Sequence[pa.Field] | None = None
    encodes_json: bool = False
    seconds: float | None = None
    hold: float = 600.0

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the results, if they are wanted, and the figures; the input numbers the task."""
        numbers = [batch.column(0)[0].as_py() for batch in batches if batch.num_rows]
        open_in_task(self.connection, self.expected)
        share = self.shares[numbers[0]] if self.shares else None
        opened = client(self.connection)
        loop = DrainLoop(self, opened.queue(self.connection.queue), share)
        heartbeat = Heartbeat(loop.state, opened.backend, name="penstock-drain")
        heartbeat.start()
        try:
            yield from loop.run()
        finally:
            heartbeat.close()


class TaskRunners(Runners):
    """Runs handlers at once, in the only thread of a task, and keeps what the last one returned.

    Args:
        execute: runs one item; it must not raise.
        keeps_results: whether results are wanted, one for each job.

    Attributes:
        results: the results of the last run, by job; empty if it failed.
        interrupt: the KeyboardInterrupt that ended a run and has to end the task; None = none.
    """

    def __init__(self, execute: Callable[[Item], None], *, keeps_results: bool) -> None:
        super().__init__(0, "penstock-drain", execute)
        self.put = execute
        self.results: dict[Delivery, Any] = {}
        self.interrupt: KeyboardInterrupt | None = None
        self._keeps_results = keeps_results

    def call(
        self,
        handler: RegisteredHandler,
        jobs: Sequence[Delivery],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Call the handler."""
        self.results = {}
        try:
            value = super().call(handler, jobs, args, kwargs)
        except KeyboardInterrupt as error:
            self.interrupt = error
            raise
        if self._keeps_results:
            values = _each(value, len(jobs)) if handler.size else [value]
            self.results = dict(zip(jobs, values, strict=True))
        return value


class DrainLoop:
    """The loop of a task: it takes jobs in blocks, runs their handlers, and reports them.

    Args:
        task: its settings.
        queue: the queue.
        share: most jobs; None = no limit.

    Attributes:
        tally: the figures of the task.
        state: shared with the runner of handlers and the heartbeat, as in a worker.
    """

    def __init__(self, task: DrainTask, queue: Queue, share: int | None) -> None:
        self.task = task
        self.queue = queue
        self.tally = Counter[str]()
        self._left = share
        self._size = min(FIRST, task.batch_size)
        self._ends = None if task.seconds is None else monotonic() + task.seconds
        columns = [*FIGURES] if task.fields is None else [*KEYS, *task.fields, *FIGURES]
        self._schema = pa.schema([(one.name, one.type) for one in columns])
        self._rows: list[Row] = []
        self._reports: dict[Verdict, list[Delivery]] = {}
        self._settled_at = 0.0
        self._handler_runner = HandlerRunner(task.handlers, (), lambda: None)
        self._runners = TaskRunners(self._run, keeps_results=task.fields is not None)
        # By this clock every batch is due, so `hand` also runs batches that are not full.
        unknown = self._handler_runner.unknown
        dispatcher = Dispatcher(task.handlers, self._runners, unknown, lambda: math.inf)
        self.state = WorkerState(
            [],
            dispatcher,
            wake=lambda: None,
            clock=monotonic,
            options=WorkerOptions(queue.name),
        )
        self._handler_runner.runners = self._runners
        self._handler_runner.finished = self.state.finished

    def run(self) -> Iterator[pa.RecordBatch]:
        """Work until the queue is empty, or the share is used up."""
        while True:
            sent = monotonic()
            jobs = self._next()
            if not jobs:
                break
            self.tally["taken"] += len(jobs)
            self._block(jobs, sent)
            if self._rows:
                yield self._written()
            self._pace(monotonic() - sent, len(jobs))
        yield figures(self.tally, self._schema)

    # -- taking and settling -----------------------------------------------------------------

    def _next(self) -> Sequence[Delivery]:
        size = self._size if self._left is None else min(self._size, self._left)
        if size == 0 or (self._ends is not None and monotonic() > self._ends):
            self.tally["cut"] = 1
            self._report(acks=True)
            return ()
        done = self._reports.pop(ACK, [])
        try:
            if done:
                outcomes, jobs = self.queue.settle(done, size, block=0)
                self._reported(ACK, done, outcomes)
            else:
                jobs = self.queue.reserve(size, block=0)
        except QueueClosed:
            return ()
        if self._left is not None:
            self._left -= len(jobs)
        return jobs

    def _report(self, *, acks: bool) -> None:
        """Report the verdicts; without `acks`, the next request for jobs reports plain acks."""
        for verdict in [verdict for verdict in self._reports if acks or verdict != ACK]:
            jobs = self._reports.pop(verdict)
            self._reported(verdict, jobs, self._settled(verdict, jobs))
        self._settled_at = monotonic()

    def _settled(self, verdict: Verdict, jobs: Sequence[Delivery]) -> Settled:
        delay = None if verdict.delay_ms < 0 else verdict.delay_ms / 1000
        if verdict.kind == "nack":
            return self.queue.nack(jobs, delay=delay, error=verdict.text)
        if verdict.kind == "release":
            return self.queue.release(jobs, delay=delay or 0)
        if verdict.kind == "bury":
            return self.queue.bury(jobs, verdict.text)
        window = None if verdict.window_ms is None else verdict.window_ms / 1000
        return self.queue.ack(jobs, dedup_window=window)

    def _reported(self, verdict: Verdict, jobs: Sequence[Delivery], outcomes: Settled) -> None:
        self.state.drop(jobs)
        add_outcomes(self.tally, verdict.kind, outcomes)
        for job, outcome in () if outcomes.all_done else zip(jobs, outcomes, strict=True):
            if outcome in (Outcome.STALE, Outcome.ENDED):
                text = "%s: %s came after the lease had ended"
                logger.warning(text, job.id, verdict.kind, extra=Fields(job))

    def _pace(self, seconds: float, count: int) -> None:
        if seconds > SLOW:
            self._size = max(1, min(self._size, count) // 2)
        elif seconds < QUICK and count == self._size:
            self._size = min(self._size * 2, self.task.batch_size)

    # -- running handlers --------------------------------------------------------------------

    def _block(self, jobs: Sequence[Delivery], sent: float) -> None:
        """Run the handlers of one block.

        One suspect runs last and alone. The others are released, so that a crash is not counted
        for all of them.
        """
        state = self.state
        now = monotonic()
        _, renewal = begin(jobs, sent, now)
        state.held.update(dict.fromkeys(jobs, now))
        if renewal < state.beat_at:
            state.poke()
        self._settled_at = monotonic()
        suspects = suspects_among(jobs)
        state.dispatcher.hand([job for job in jobs if job not in suspects] if suspects else jobs)
        if suspects:
            for job in suspects[1:]:
                state.put_back(job, HANDED_BACK)
            self._collect()
            self._report(acks=True)
            state.dispatcher.hand(suspects[:1])
        self._collect()
        self._report(acks=False)

    def _run(self, item: Item) -> None:
        """Run a handler, and settle older jobs, so that a crash does not repeat them."""
        now = monotonic()
        for job in item[1]:
            job.lost = job.lost or term_of(job).is_over(now)
        self._handler_runner.execute(item)
        if self._runners.interrupt is not None:
            raise self._runners.interrupt
        self._collect()
        if monotonic() - self._settled_at > SLOW:
            self._report(acks=True)

    def _collect(self) -> None:
        finished = self.state.finished
        while finished:
            jobs, verdict, _, _ = finished.popleft()
            for job in jobs:
                self._judged(job, verdict)

    def _judged(self, job: Delivery, verdict: Verdict) -> None:
        if verdict is KEPT:
            self.state.drop([job])
            self.tally["lost" if job.lost else "done"] += 1
        elif verdict.kind == "ack" and self.task.fields is not None:
            value = self._runners.results.get(job)
            self._rows.append((job, verdict.window_ms, None if _is_verdict(value) else value))
        elif verdict.kind != "ack" and job.at_most_once:  # the server has removed it at delivery
            self.state.drop([job])
            self.tally["dead"] += 1
        else:
            self._reports.setdefault(verdict, []).append(job)

    # -- results -----------------------------------------------------------------------------

    def _written(self) -> pa.RecordBatch:
        """Return the results of the jobs that are still held."""
        rows, self._rows = self._hold(self._rows), []
        try:
            return self._batch(rows)
        except Exception:  # noqa: BLE001  # a result does not fit: find out which
            rows = [row for row in rows if self._fits(row)]
            self._report(acks=False)
            return self._batch(rows)

    def _hold(self, rows: Sequence[Row]) -> list[Row]:
        """Lengthen the leases of finished jobs, until their output is safe; drop the lost jobs."""
        leased = [job for job, *_ in rows if term_of(job).lease]
        for job in leased:
            set_term(job, Term(term_of(job).until, self.task.hold))
        sent = monotonic()
        answers = self.queue.extend(leased, self.task.hold, late=True) if leased else ()
        heard = monotonic()
        for job, left in zip(leased, answers, strict=True):
            if isinstance(left, float):
                set_term(job, term_of(job).extended(sent, heard, left))
            elif left is not Outcome.UNKNOWN:
                set_term(job, OVER)
        held = [row for row in rows if not term_of(row[0]).is_over(heard)]
        self.tally["lost"] += len(rows) - len(held)
        return held

    def _fits(self, row: Row) -> bool:
        try:
            self._batch([row])
        except Exception as error:  # noqa: BLE001  # any error of Arrow is the handler's failure
            job = row[0]
            handler = self.task.handlers.find(job)
            assert handler is not None
            text = TypeError(f"the result does not fit the columns of the schema: {error}")
            self._judged(job, handler.failed(job, text))
            return False
        return True

    def _batch(self, rows: Sequence[Row]) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([self._columns(*row) for row in rows], self._schema)

    def _columns(self, job: Delivery, window_ms: int | None, value: Any) -> dict[str, Any]:
        names = [one.name for one in self.task.fields or ()]
        return {
            "id": job.id,
            "receipt": None if term_of(job).is_once else job.receipt,
            "attempt": job.attempt,
            "dedup_window_ms": window_ms,
            **columns_of(value, names, encodes_json=self.task.encodes_json),
        }


def figures(tally: Counter[str], schema: pa.Schema = FIGURES) -> pa.RecordBatch:
    """Return a row of figures; other columns of the schema are null."""
    return pa.RecordBatch.from_pylist([{f"_{name}": tally[name] for name in COUNTS}], schema)


def add_outcomes(tally: Counter[str], kind: str, outcomes: Settled) -> None:
    """Count the outcomes of one call that acks, nacks, buries or releases."""
    if outcomes.all_done:
        tally[FIGURE_OF[kind]] += len(outcomes)
        return
    for outcome in outcomes:
        done = FIGURE_OF[kind] if outcome in (Outcome.DONE, Outcome.HINTED) else "lost"
        tally["dead" if outcome is Outcome.DEAD else done] += 1


def _each(value: Any, count: int) -> Sequence[Any]:
    values = value if isinstance(value, (list, tuple)) else [value] * count
    if len(values) != count:
        raise ValueError(f"{len(values)} results for {count} jobs")
    return values


def _is_verdict(value: Any) -> bool:
    """Return True if a returned value is a verdict on the job, not its result."""
    return isinstance(value, BaseException) or (
        isinstance(value, type) and issubclass(value, Result)
    )


def columns_of(value: Any, names: Sequence[str], *, encodes_json: bool) -> dict[str, Any]:
    """Return a result as columns.

    Raises:
        ValueError, TypeError: it does not fit the columns.
    """
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


@dataclass
class AckTask:
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
        open_in_task(self.connection, self.expected)
        queue = client(self.connection).queue(self.connection.queue)
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
        yield figures(tally)
