"""The queues of a worker, and the reports that are due to them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from penstock.core.calls import Call
from penstock.core.job import Delivery
from penstock.core.operations import AckResults, QueueOps
from penstock.core.outcomes import Settled
from penstock.core.views import Settings
from penstock.worker.results import Verdict
from penstock.worker.schedules import Ticker

__all__ = ["Finished", "QueuePoll", "Reports", "verdict_call"]


class Finished(NamedTuple):
    """Jobs that a handler has finished, and the verdict on them.

    Attributes:
        jobs: the jobs of one run.
        verdict: the report to make.
        seconds: the time that the handler took; 0 = no handler has run.
        error: the exception that it raised, for the log in case the job is not tried again.
    """

    jobs: Sequence[Delivery]
    verdict: Verdict
    seconds: float
    error: BaseException | None = None


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
        woken: whether this worker has taken a token of it since it asked last.
        barred: until when to leave it alone, as it is damaged or its node is down; inf = for ever,
            as its partitions are polls of their own.
        failures: how many times in a row it was damaged or its node was down.
        error: why it can't be used; None = it can, as far as is known.
        refusals: how many times in a row it gave no jobs, as another client is its only consumer.
            It still accepts reports.
        unsure: whether a report that failed may have been executed.
        drained: when it was found closed and drained; -inf = it was not at the last look.
        asked_at: when its last answer to a reserve was asked for; 0 = there is none.
        asked_ms: the queue's time in that answer.
        lease: seconds: the shortest lease of the last jobs, or that of the queue; 0 = not known.
        trip: seconds that the last call to it took.
        is_slow: whether that is too long for the lease: no jobs are reserved then.
        ticker: its schedules.
    """

    ops: QueueOps
    weight: float = 1
    at: float = 0.0
    recheck_at: float = 0.0
    pause: float = 0.01
    credit: float = 0.0
    size: int = 0
    settings: Settings | None = None
    woken: bool = False
    barred: float = 0.0
    failures: int = 0
    error: Exception | None = None
    refusals: int = 0
    unsure: bool = False
    drained: float = -math.inf
    asked_at: float = 0.0
    asked_ms: int = 0
    lease: float = 0.0
    trip: float = 0.0
    is_slow: bool = False
    ticker: Ticker = field(default_factory=Ticker)

    @property
    def home(self) -> Any:
        """Node of the queue; None if the worker has only one."""
        return self.ops.home

    @property
    def is_usable(self) -> bool:
        """True if it may give this worker jobs, as far as is known."""
        return not self.failures and not self.refusals and not self.is_slow


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
    if verdict.kind == "bury":
        return ops.bury(jobs, verdict.text, verdict.trace)
    if verdict.then is not None and verdict.then.records:
        return ops.hand_over(jobs, verdict.then.records, verdict.window_ms, results=results)
    return ops.ack(jobs, verdict.window_ms, results=results)
