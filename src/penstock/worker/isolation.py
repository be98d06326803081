"""A process that runs a worker's suspects, so that ordinary jobs go on meanwhile.

The process imports the worker's app anew and asks for no jobs. The worker sends it one suspect at a
time over a line. Like every worker, the process begins the job, renews its lease and reports its
outcome, on connections of its own. So the end of one process affects no job of the other.

    worker  -> process   {"job": ..., "place": ..., "partitions": ...}  {"stop": seconds}
    process -> worker    {"ready": true}  {"outcome": {...}}  {"refused": true}

When the line breaks the other side is dead. The process then stops as its worker would.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.client.clock import monotonic
from penstock.core.jobs.job import Delivery, ops_of
from penstock.core.jobs.logs import Fields, get_logger
from penstock.core.jobs.middleware import HANDLER
from penstock.wire.keys import split_name
from penstock.worker.deliveries import take_over
from penstock.worker.held_file import place_of
from penstock.worker.log import chosen_setup
from penstock.worker.packing import packed, unpacked
from penstock.worker.processes import Line, Process, ending
from penstock.worker.running import RunningJob
from penstock.worker.suspects import FORGET_SUSPECT_SECONDS, PUT_ASIDE

if TYPE_CHECKING:
    from penstock.worker.state import WorkerState

__all__ = ["Isolated", "Isolator"]

logger = get_logger("penstock")

BROKEN_APP_SECONDS = 60.0
"""Seconds until another process is started after one that could not load the app."""
APP_LOAD_SECONDS = 60.0
"""Seconds in which a process has to load the app."""
ISOLATED_STUCK_SECONDS = 5
"""Seconds after which a process that reads nothing of a message is killed."""
MOST_REFUSED_SUSPECTS = 3
"""Jobs in a row that a process may refuse while it learns of partitions and nodes."""
ISOLATED_END_SECONDS = 1.0
"""Seconds in which the process has to end after its worker."""


class Isolator:
    """The worker's side. Only the worker's loop calls it; any thread may read `running`.

    Args:
        target: `module:name` of the worker, or of a function that makes it.
        config: the options of the worker that the process takes over.
        state: the state of the worker.

    Attributes:
        job: the job that the process has.
    """

    def __init__(self, target: str, config: Mapping[str, Any], state: WorkerState) -> None:
        self.job: Delivery | None = None
        self._target = target
        self._config = config
        self._state = state
        self._process: Process | None = None
        self._inbox: deque[dict[str, Any] | None] = deque()
        self._is_ready = False
        self._broken_until = -math.inf
        self._since = 0.0  # the start of the process, of the job, or of the time without one
        self._ends_at = math.inf
        self._refusals = 0  # in a row

    @property
    def is_broken(self) -> bool:
        """True if the app could not be loaded in the process lately."""
        return monotonic() < self._broken_until

    @property
    def running(self) -> tuple[RunningJob, ...]:
        """Job that the isolated process runs, for the worker's status."""
        job, since = self.job, self._since
        if job is None:
            return ()
        running = RunningJob(
            id=job.id,
            queue=job.queue_name,
            handler=job.headers.get(HANDLER),
            attempt=job.attempt,
            seconds=monotonic() - since,
        )
        return (running,)

    def take(self, job: Delivery) -> bool:
        """Give a suspect to the process if it has none; start the process if there is none.

        Returns:
            Whether the process has taken the job.
        """
        if self._process is None:
            self._start()
            return False
        if not self._is_ready or self.job is not None:
            return False
        ops = ops_of(job)
        is_sent = self._tell(job=packed(job), place=[*place_of(ops)], partitions=ops.partitions)
        if is_sent:
            self.job, self._since = job, monotonic()
        return is_sent

    def check(self) -> None:
        """Handle the messages of the process, and tell it when to end."""
        while self._inbox:
            message = self._inbox.popleft()
            if message is None:
                self._take_end()
            elif "ready" in message:
                self._is_ready, self._since = True, monotonic()
            else:
                self._take_report(message)
        if self._process is None:
            return
        now, ends_at = monotonic(), self._state.deadline
        if self.job is None and now - self._since > (
            FORGET_SUSPECT_SECONDS if self._is_ready else APP_LOAD_SECONDS
        ):
            if not self._is_ready:
                self._process.kill()
                return
            self._is_ready, self._since, ends_at = False, now, now
        if ends_at < self._ends_at:
            self._ends_at = ends_at
            self._tell(stop=max(0.0, ends_at - now))

    def _tell(self, **message: Any) -> bool:
        assert self._process is not None
        self._process.line.send(message, ISOLATED_STUCK_SECONDS)
        if self._process.line.unsent:
            self._process.kill()
            return False
        return True

    def _start(self) -> None:
        if self.is_broken:
            return
        self._inbox = inbox = deque[Any]()

        def hear(messages: list[Any]) -> None:
            inbox.extend(messages)
            self._state.wake()

        try:
            process = Process.of_module(
                "isolated_process", self._target, self._config, chosen_setup()
            )
            process.listen(hear, "penstock-isolation")
        except (OSError, RuntimeError) as error:  # no process, or no thread
            self._break(str(error))
            return
        self._process = process
        self._is_ready, self._ends_at, self._since = False, math.inf, monotonic()
        self._state.log.info("process %d runs suspects apart from other jobs", process.pid)

    def _break(self, why: str) -> None:
        self._broken_until = monotonic() + BROKEN_APP_SECONDS
        text = (
            "suspects can't run in a process of their own (%s): they run while the worker has no "
            "other job"
        )
        self._state.log.error(text, why)

    def _take_report(self, message: dict[str, Any]) -> None:
        state, job = self._state, self.job
        assert job is not None
        self.job, self._since = None, monotonic()
        if "refused" in message:
            state.put_back(job, PUT_ASIDE)
            self._refusals += 1
            if self._refusals > MOST_REFUSED_SUSPECTS and not state.stopping:
                self._break(f"it does not know queue {job.queue_name!r}")
            return
        self._refusals = 0
        state.note_outcome((job,), **message["outcome"])
        if state.options.burst:
            state.look_everywhere()

    def _take_end(self) -> None:
        code, job = self._reap(), self.job
        was_ready, self._is_ready, self.job = self._is_ready, False, None
        if job is not None and not self._state.stopping:
            self._state.note_outcome((job,), "lost")
            text = "%s: the process that ran it %s"
            logger.error(text, job.id, ending(code), extra=Fields(job))
        elif job is None and not was_ready and code:
            self._break(f"it {ending(code)}")

    def _reap(self) -> int:
        """Return the exit code of the process, which has broken its line or is to end."""
        assert self._process is not None
        process, self._process = self._process, None
        return process.close(ISOLATED_END_SECONDS)

    def close(self) -> Delivery | None:
        """End the process; return the job that it could not release, if there is one."""
        job, self.job = self.job, None
        if self._process is None:
            return None
        if not self._is_ready:  # it may be long in loading the app
            self._process.kill()
        return job if self._reap() else None


class Isolated:
    """The process's side: receives the worker's suspects.

    Args:
        line: its end of the line to the worker.
    """

    def __init__(self, line: Line) -> None:
        self._line = line
        self._jobs: deque[dict[str, Any]] = deque()
        self._is_ready = False

    def take_jobs(self, state: WorkerState) -> None:
        """Take the jobs that have come."""
        if not self._is_ready:
            self._is_ready = True
            # In a thread of its own, because a handler may block the loop.
            self._line.listen(partial(self._hear, state), "penstock-isolation")
            self._line.send({"ready": True}, ISOLATED_STUCK_SECONDS)
        while self._jobs:
            self._take(state, self._jobs.popleft())

    def _hear(self, state: WorkerState, messages: list[Any]) -> None:
        for message in messages:
            if message is None:
                state.stop()
            elif "stop" in message:
                state.stop(message["stop"])
            else:
                self._jobs.append(message)
        state.wake()

    def _take(self, state: WorkerState, message: dict[str, Any]) -> None:
        poll = next((s for s in state.polls if [*place_of(s.ops)] == message["place"]), None)
        if poll is not None and not state.stopping:
            take_over(state, unpacked(message["job"], poll.ops))
            return
        if message["partitions"] is not None:  # it will know them the next time
            state.learned[split_name(message["place"][0])[0]] = message["partitions"]
        self._line.send({"refused": True}, ISOLATED_STUCK_SECONDS)

    def report_outcome(self, **outcome: Any) -> None:
        """Report the outcome of the job to the worker: arguments of `WorkerState.note_outcome`."""
        self._line.send({"outcome": outcome}, ISOLATED_STUCK_SECONDS)
