"""The queues of a worker, and the reports that are due to them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from penstock.core.calls.call import Call
from penstock.core.calls.operations import OwnNode, QueueOps
from penstock.core.enqueuing.batches import KEEPS_VALUES
from penstock.core.jobs.history import TimesNote
from penstock.core.jobs.job import Delivery, Reservation, epoch_of, reservation_of
from penstock.core.jobs.outcomes import Settled
from penstock.core.jobs.queue_stats import Settings
from penstock.core.jobs.results import AckResults
from penstock.worker.results import ACK, Verdict
from penstock.worker.schedules import Ticker

__all__ = [
    "OUTAGE_SECONDS",
    "Finished",
    "FinishedJobs",
    "QueuePoll",
    "Reports",
    "first_of",
    "jobs_in",
    "share_room",
    "verdict_call",
]


OUTAGE_SECONDS = 30.0
"""Seconds for which a burst waits for a queue whose slot moves or whose server is down."""
DONE_REPORT_DELAY = 0.02
"""Most seconds for which a job that is done waits for the next ones of its reserve."""


class Finished(NamedTuple):
    """Jobs that a handler has finished, and the verdict on them.

    Attributes:
        jobs: the jobs of one run, or of one reserve that were run one after the other.
        verdict: the report to make.
        seconds: the time that the handler took; 0 = no handler has run.
        spans: the time of each job, if they were run one after the other; `seconds` is 0 then.
        tries: how often the queue has refused it.
        stands_in: whether it is the failure of a job whose first report was refused.
        is_counted: whether another report has the time of the same run for the statistics.
    """

    jobs: Sequence[Delivery]
    verdict: Verdict
    seconds: float
    spans: Sequence[float] = ()
    tries: int = 0
    stands_in: bool = False
    is_counted: bool = False

    @property
    def times(self) -> Sequence[float]:
        """The seconds that each job took. All jobs of a chunk took the time of its run."""
        return self.spans or [self.seconds] * len(self.jobs)


class FinishedJobs(deque[Finished]):
    """The reports of the runners for the loop, the oldest first.

    A single runner that has more jobs at hand reports the done jobs of one reserve together: the
    call names them by one receipt, which saves time here and on the server.

    Args:
        clock: returns monotonic seconds.

    Attributes:
        is_last: returns whether the runner that adds a job has no other job at hand.
        due_at: when to report done jobs although the runner has more; inf = there are none.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self.is_last: Callable[[], bool] = lambda: True
        self.due_at = math.inf
        self._clock = clock
        self._done = deque[tuple[Delivery, float]]()
        self._alike: tuple[Reservation | None, Verdict] = (None, ACK)

    def add(self, job: Delivery, verdict: Verdict, seconds: float) -> bool:
        """Add a job that is done to those of its reserve; return whether the loop has to look."""
        is_last, is_due = self.is_last(), False
        reservation, usual = self._alike
        if reservation is not reservation_of(job) or usual is not verdict:
            self.flush()
            self._alike, is_due = (reservation_of(job), verdict), True
        self._done.append((job, seconds))
        if is_last:
            self.flush()
        elif self.due_at == math.inf:
            self.due_at = self._clock() + DONE_REPORT_DELAY
        else:
            return is_due
        return True

    def take(self, *, everything: bool = False) -> Iterator[Finished]:
        """Remove and yield the reports that are due. Stop after one for a whole reserve."""
        if everything or self.due_at <= self._clock():
            self.flush()
        while self:
            report = self.popleft()
            yield report
            if report.spans and not everything:
                return

    def flush(self) -> None:
        """Report the jobs that are done. The runner and the loop may call it at once."""
        self.due_at, verdict = math.inf, self._alike[1]
        done = list[tuple[Delivery, float]]()
        with suppress(IndexError):  # when it is empty
            done.extend(iter(self._done.popleft, None))
        if done:
            jobs, spans = zip(*done, strict=True)
            self.append(Finished(jobs, verdict, 0.0, spans))


Reports: TypeAlias = dict[Verdict, list[Finished]]
"""The reports that are due to one queue, by verdict."""


@dataclass(slots=True, eq=False)
class QueuePoll:
    """A queue as the loop sees it.

    Points in time are by the worker's clock.

    Attributes:
        ops: its operations.
        weight: its share of the room while other queues have jobs, too.
        at: when to ask it next; 0 = it may have jobs now, inf = after a token.
        recheck_at: when to ask it next although it was empty, while the worker is too busy to wait.
        pause: seconds between two such questions.
        credit: the jobs that it is owed of its share; negative = it has had too many.
        size: how many jobs could be taken at the last look.
        settings: those of the queue then; None = they are not known yet.
        allows_prefetch: whether the queue then allowed workers to hold jobs ahead.
        woken: whether this worker has taken a token of it since it asked last.
        barred: until when to leave it alone, as it is damaged or its node is down; inf = for ever,
            as its partitions are polls of their own.
        awaited_until: until when a burst waits for it, as its slot moves or its server is down.
        failures: how many times in a row it was damaged or its node was down.
        error: why it can't be used; None = it can, as far as is known.
        failed_at: when the first of these errors in a row came.
        refusals: how many times in a row it gave no jobs, as another client is its only consumer,
            or as replicas do not confirm deliveries. It still accepts reports.
        unsure: whether a report that failed may have been executed.
        drained: when it was found closed and drained; -inf = it was not at the last look.
        asked_at: when its last answer to a reserve was asked for; 0 = there is none.
        asked_ms: the queue's time in that answer.
        lease: seconds: the shortest lease of the last jobs, or that of the queue; 0 = not known.
        trip: seconds that the last call to it took.
        is_slow: whether that is too long for the lease: no jobs are reserved then.
        ticker: its schedules.
        lease_ms: of the worker's jobs, in place of the queue's; None = the queue's.
        times: of jobs that it has run, for the history of the queue.
    """

    ops: QueueOps
    weight: float = 1
    at: float = 0.0
    recheck_at: float = 0.0
    pause: float = 0.01
    credit: float = 0.0
    size: int = 0
    settings: Settings | None = None
    allows_prefetch: bool = False
    woken: bool = False
    barred: float = 0.0
    awaited_until: float = 0.0
    failures: int = 0
    error: Exception | None = None
    failed_at: float = 0.0
    refusals: int = 0
    unsure: bool = False
    drained: float = -math.inf
    asked_at: float = 0.0
    asked_ms: int = 0
    lease: float = 0.0
    trip: float = 0.0
    is_slow: bool = False
    ticker: Ticker = field(default_factory=Ticker)
    lease_ms: int | None = None
    times: TimesNote = field(default_factory=TimesNote)

    @property
    def node(self) -> OwnNode | None:
        """Node of the queue; None if the worker has only one."""
        return self.ops.node

    @property
    def is_usable(self) -> bool:
        """True if it may give this worker jobs, as far as is known."""
        return not self.failures and not self.refusals and not self.is_slow

    def fail(self, error: Exception, now: float) -> None:
        """Note why it can't be used now."""
        if self.error is None:
            self.failed_at = now
        self.error = error.with_traceback(None)  # see `caught`

    def is_exhausted(self, now: float) -> bool:
        """Return whether a burst has no jobs to expect of it."""
        return self.barred == math.inf or self.at > now >= self.awaited_until


def share_room(polls: Sequence[QueuePoll], room: int) -> dict[QueuePoll, int]:
    """Return how many of `room` jobs to ask each queue for, by weight and credit."""
    total = sum(poll.weight for poll in polls)
    for poll in polls:
        poll.credit += room * poll.weight / total
    parts: dict[QueuePoll, int] = {}
    for _ in range(room):
        most = max(polls, key=lambda poll: poll.credit)
        most.credit -= 1
        parts[most] = parts.get(most, 0) + 1
    return parts


def first_of(finished: Sequence[Finished], most: int) -> Sequence[Finished]:
    """Return as many reports as fit in one call, at least one, all with the same epoch.

    The jobs of a whole reserve get a call of their own.
    """
    count, epoch = 0, epoch_of(finished[0].jobs[0])
    for i, done in enumerate(finished):
        count += len(done.jobs)
        if i and (count > most or done.spans or epoch_of(done.jobs[0]) != epoch):
            return finished[:i]
    return finished


def jobs_in(reports: Reports) -> int:
    """Return the number of jobs that are reported."""
    return sum(len(done.jobs) for finished in reports.values() for done in finished)


def verdict_call(
    ops: QueueOps, jobs: Sequence[Delivery], verdict: Verdict, results: AckResults | None = None
) -> Call[Settled]:
    """Return the call that reports a verdict on jobs.

    Args:
        ops: of their queue.
        jobs: the jobs.
        verdict: the report.
        results: of an ack: the results of the jobs, None = none is kept.
    """
    if verdict.kind == "nack":
        return ops.nack(jobs, verdict.delay_ms, verdict.text, verdict.trace)
    if verdict.kind == "release":
        return ops.release(jobs, verdict.delay_ms)
    if verdict.calls is not None:
        return ops.call_jobs(jobs[0], verdict.calls.step, verdict.calls.records)
    if verdict.sleep is not None:
        return ops.suspend(jobs, verdict.sleep.place, verdict.sleep.name, verdict.delay_ms)
    if verdict.kind == "bury":
        return ops.bury(jobs, verdict.text, verdict.trace)
    if verdict.then is not None and verdict.then.records:
        then = verdict.then
        is_batch = len(then.records) > 1 or then.batch.endswith(KEEPS_VALUES)
        condition = then.batch if is_batch else ""  # a callback alone just follows
        return ops.hand_over(
            jobs, then.records, verdict.window_ms, batch=condition, results=results
        )
    return ops.ack(jobs, verdict.window_ms, results=results)
