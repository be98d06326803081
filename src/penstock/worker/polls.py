"""The queues of a worker, and what is to be reported to them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from penstock.core.operations import QueueOps
from penstock.worker.results import Verdict

__all__ = ["Finished", "QueuePoll", "Todo"]


class Finished(NamedTuple):
    """Jobs that a handler has done with, and what is to become of them.

    Attributes:
        jobs: of one run.
        verdict: what is reported.
        seconds: that the handler took; 0 = none has run.
        error: what it raised, kept until it is known that the job is not tried again.
    """

    jobs: Sequence[Any]
    verdict: Verdict
    seconds: float
    error: BaseException | None = None


@dataclass(slots=True)
class QueuePoll:
    """A queue as the loop sees it.

    Attributes:
        ops: its operations.
        weight: its share of the room when others have jobs too.
        at: when to ask it next by the clock; 0 = there may be more now, inf = after a token.
        recheck_at: when to ask it next although it was empty, while the worker is too busy to wait.
        pause: seconds between two such questions.
        credit: what it is owed in shares.
        size: jobs that could be taken when it was last looked at.
        woken: whether this worker has taken a token of it since it asked last.
        barred: until when it is left alone by the clock, as it is damaged; inf = for ever, as its
            partitions stand for it.
        failures: how many times in a row it was found so, or its node was down.
        refusals: how many times in a row it gave no jobs as it has another exclusive consumer;
            reports it takes all the same.
        unsure: whether a report may have got through although it failed.
        drained: when it was found closed and drained by the clock; -inf = it was not, when it was
            asked last.
        lease: shortest lease of its last jobs in seconds, or what the queue says; 0 = not known.
        trip: seconds that the last call to it took.
        is_slow: whether that is too long for the lease: it is not asked for jobs.
    """

    ops: QueueOps
    weight: float = 1
    at: float = 0.0
    recheck_at: float = 0.0
    pause: float = 0.01
    credit: float = 0.0
    size: int = 0
    woken: bool = False
    barred: float = 0.0
    failures: int = 0
    refusals: int = 0
    unsure: bool = False
    drained: float = -math.inf
    lease: float = 0.0
    trip: float = 0.0
    is_slow: bool = False

    @property
    def home(self) -> Any:
        """Its node, if the worker has several."""
        return self.ops.home

    @property
    def is_usable(self) -> bool:
        """Whether it may give this worker jobs, as far as is known."""
        return not self.failures and not self.refusals and not self.is_slow


@dataclass(slots=True)
class Todo:
    """What the loop has to report about jobs of one queue."""

    acks: list[Finished] = field(default_factory=list)
    others: dict[Verdict, list[Finished]] = field(default_factory=dict)

    @property
    def jobs(self) -> int:
        """How many jobs these are."""
        lists = [self.acks, *self.others.values()]
        return sum(len(done.jobs) for part in lists for done in part)
