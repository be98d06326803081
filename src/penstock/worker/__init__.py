"""The worker: runs handlers, renews leases, and finishes its jobs when it is stopped.

The path of one job:

1. `AsyncWorker.run` starts the loop, the runners and the heartbeat, which share a `WorkerState`.
2. The loop (`loop.work`) reserves the job. In the same call it reports finished jobs.
3. `deliveries.take_reply` takes the reply: it notes until when the job is held, and gives the job
   to the `Dispatcher`, which finds its handler and fills chunks.
4. A runner (`runners.py`) takes it and calls `AsyncHandlerRunner.execute`, which calls the handler,
   decides by what it returned or raised (`registered.py`, `failures.py`), and leaves a `Verdict`.
5. The next round of the loop reports the verdict, and `reporting.count` counts the outcome.

Meanwhile the heartbeat, or a helper process, renews the lease by the rules in `terms.py`. Jobs that
have crashed twice take another way (`suspects.py`, `isolation.py`).
"""

from __future__ import annotations

from penstock.worker._async.bound import AsyncBoundHandler
from penstock.worker._async.steps import AsyncSteps
from penstock.worker._async.worker import AsyncWorker
from penstock.worker._sync.bound import BoundHandler
from penstock.worker._sync.steps import Steps
from penstock.worker._sync.worker import Worker
from penstock.worker.arguments import Conversion, Converter, Unfit
from penstock.worker.calling import Handler
from penstock.worker.handlers import Handlers
from penstock.worker.lifespan import LifespanError
from penstock.worker.limits import CancelledRun, TimeLimit
from penstock.worker.monitor import LoopEvent, Monitor, size_monitor
from penstock.worker.results import ACK, Done, Reject, Result, Retry, Snooze, Verdict
from penstock.worker.running import RunningJob
from penstock.worker.state_values import STATE, State
from penstock.worker.statistics import Summary, WorkerStats
from penstock.worker.status import WorkerStatus
from penstock.worker.step_run import RunEnded, Suspended

__all__ = [
    "ACK",
    "STATE",
    "AsyncBoundHandler",
    "AsyncSteps",
    "AsyncWorker",
    "BoundHandler",
    "CancelledRun",
    "Conversion",
    "Converter",
    "Done",
    "Handler",
    "Handlers",
    "LifespanError",
    "LoopEvent",
    "Monitor",
    "Reject",
    "Result",
    "Retry",
    "RunEnded",
    "RunningJob",
    "Snooze",
    "State",
    "Steps",
    "Summary",
    "Suspended",
    "TimeLimit",
    "Unfit",
    "Verdict",
    "Worker",
    "WorkerStats",
    "WorkerStatus",
    "size_monitor",
]
