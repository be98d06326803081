"""Takes jobs, runs handlers, reports what became of the jobs."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, cast

from penstock.client._acompat import AsyncSignal
from penstock.client._async.client import AsyncPenstock
from penstock.client._async.sharded.federated_node import AsyncBackgroundTasks
from penstock.client._async.transport.connection import monotonic
from penstock.client._async.transport.failures import passing
from penstock.client._async.transport.node import AsyncNode
from penstock.core.logs import get_logger
from penstock.core.options import Duration, duration_ms
from penstock.errors import BadArgument, OutOfMemory
from penstock.worker._async.handler_runner import AsyncHandlerRunner
from penstock.worker._async.heartbeat import OVERDUE, AsyncHeartbeat
from penstock.worker.dispatcher import Dispatcher
from penstock.worker.handlers import Handlers
from penstock.worker.heartbeat_process import HeartbeatProcess
from penstock.worker.isolation import Isolated, Isolator
from penstock.worker.loop import work
from penstock.worker.monitor import LoopEvent, Monitor
from penstock.worker.options import HeartbeatKind, WorkerOptions, check_handlers
from penstock.worker.polls import QueuePoll

# sync only: from penstock.worker.options import refuse_coroutines
from penstock.worker.runners import AsyncActivity, AsyncRunners
from penstock.worker.state import WorkerState
from penstock.worker.statistics import Statistics
from penstock.worker.status import WorkerStatus

__all__ = ["AsyncWorker"]

logger = get_logger("penstock")

SIGNALS = (signal.SIGTERM, signal.SIGINT)
SIGHT = 1.0
"""Seconds after which the main thread looks for signals: one that comes while it goes to sleep does
not wake it."""


class AsyncWorker:
    """Runs handlers for the jobs of one or several queues, until it is stopped.

    A handler that returns finishes its job; one that raises has failed, and the job is tried again
    by its policy; `Done`, `Retry`, `Snooze` and `Reject`, returned or raised, say it in so many
    words. Leases are renewed by a thread of its own for as long as a handler runs. When a lease is
    lost all the same, a coroutine is cancelled, and for a function in a thread `job.lost` turns
    true; what such a handler reports changes nothing.

    Args:
        source: a client, whose settings it takes over for connections of its own; or a URL, a
            redis-py client, or a list of these: several nodes.
        queues: a name, several, or names with weights: `{"mail": 8, "low": 2}` takes eight jobs of
            ten from `mail` while both have some. It is a share, not a priority.
        handlers: `Handlers`, or a function alone, the default handler: it gets every job, whatever
            its name. Coroutine functions run in an event loop only, plain functions in threads.
        concurrency: how many handlers run at once.
        prefetch: how many jobs are held besides, so that the next one is at hand. They are not
            there for other workers meanwhile.
        grace: seconds that handlers have to finish when the worker is stopped; then their jobs are
            given back, with no attempt charged.
        burst: end when no job can be taken any more. Those that are due later stay, and those of a
            queue that is paused, or that has another exclusive consumer.
        max_jobs: take so many jobs, and end when they are finished.
        throttle: seconds to leave the queues alone after each look at them; or what computes them
            from the number of jobs that wait.
        monitor: called with a `LoopEvent` after each round.
        heartbeat: "thread", or "process": leases are renewed by a helper process, for handlers in
            native code that never let the interpreter go.
        name: who takes the jobs, kept with each delivery; default that of the client, or host and
            process.
        isolate: `module:name` of this worker, or of a function that makes it. Jobs that crashed
            twice then run in a process of their own, which imports it, and other jobs go on
            meanwhile. None = they run when the worker has no other job. `penstock worker` sets it.

    Raises:
        BadArgument: an argument can't be used.
    """

    def __init__(
        self,
        source: AsyncPenstock | Any,
        queues: str | Iterable[str] | Mapping[str, int],
        handlers: Handlers | Callable[..., Any],
        *,
        concurrency: int = 8,
        prefetch: int = 0,
        grace: Duration = 25,
        burst: bool = False,
        max_jobs: int | None = None,
        throttle: Duration | Callable[[int], Duration] = 0,
        monitor: Monitor | None = None,
        heartbeat: HeartbeatKind = "thread",
        name: str | None = None,
        isolate: str | None = None,
    ) -> None:
        self.options = WorkerOptions(
            queues,
            concurrency=concurrency,
            prefetch=prefetch,
            grace=grace,
            burst=burst,
            max_jobs=max_jobs,
            throttle=throttle,
            monitor=monitor,
            heartbeat=heartbeat,
            name=name,
            isolate=isolate,
        )
        self.handlers = check_handlers(handlers)
        # sync only: refuse_coroutines(self.handlers)
        self._origin = source if isinstance(source, AsyncPenstock) else AsyncPenstock(source)
        self._client = self._twinned(name)
        self._statistics = Statistics()
        self._stops: list[float | None] = []
        self._owns_process = False
        self._state: WorkerState | None = None
        self._handler_runner: AsyncHandlerRunner | None = None
        self._activity: AsyncActivity | None = None
        self._lap = 0.0
        self._looking = AsyncBackgroundTasks()
        self._isolated: Isolated | None = None

    def _twinned(self, name: str | None) -> AsyncPenstock:
        """A client of its own; of one node where a helper process, which has one, renews leases."""
        is_alone = self.options.heartbeat == "process" and isinstance(self._origin._source, str)
        return self._origin.twin(owner=name, federation=False if is_alone else None)

    @property
    def name(self) -> str:
        """Who takes the jobs."""
        return self._client.owner

    @property
    def _fields(self) -> dict[str, str]:
        return {"worker": self.name}

    def change(self, **options: Any) -> None:
        """Change options while the worker does not run; None leaves one as it is.

        Raises:
            BadArgument: no such option, a value that can't be used, or it runs.
        """
        given = {name: value for name, value in options.items() if value is not None}
        if self.state in ("running", "stopping") and given:
            raise BadArgument(*next(iter(given.items())), "the worker runs")
        self.options = self.options.changed(**given)
        if "name" in given:
            self._client = self._twinned(self.options.name)

    def __repr__(self) -> str:
        names = ", ".join(map(repr, self.options.queues))
        return f"<{type(self).__name__} {self.name!r} of {names}: {self.state}>"

    # -- life ------------------------------------------------------------------------------

    async def run(self, *, signals: bool = True) -> None:
        """Work until stopped: by `stop`, or in the main thread by SIGTERM or SIGINT.

        Or until there is nothing left to do: all queues are closed and drained.

        At the first signal no more jobs are taken, and handlers have `grace` seconds to finish; at
        the second, or when this call is cancelled, what is not finished is given back at once.

        Args:
            signals: whether to listen to signals.

        A worker that can't end, because a call to the server does not come back, is left behind
        some seconds after that: this call returns, and `abandoned` tells what it still holds. Only
        if a handler blocks the event loop itself, so that nothing can return, or coroutines that
        refuse to be cancelled keep the event loop from ending, the process is ended, with exit code
        1.

        Raises:
            ConfigurationError, AuthenticationError: the server can't be used.
        """
        with self._listening(signals):
            await self.start()
            try:
                while not (await self.join(SIGHT) or self._is_overdue()):
                    pass
            except BaseException:  # a cancellation, or Ctrl-C that no signal handler has taken
                self.stop(0)
                await self.join()
                raise

    async def start(self) -> None:
        """Begin to work in the background; one that works already goes on.

        A worker that has ended starts again, with new figures. One that is stopping is waited for,
        for its grace at most, and started again. `stop` before the first start is not forgotten:
        the worker ends at once.

        Raises:
            BadArgument: an annotation of a handler can't be resolved.
            ConfigurationError, AuthenticationError: it was stopping, and has ended because of that.
        """
        if self._activity is not None:
            if not self._activity.is_over:
                if not self.stopping:
                    return
                await self.join()
            self._renew()
        self.handlers.check()
        wake, options = AsyncSignal(), self.options
        handler_runner = AsyncHandlerRunner(self.handlers, self._client.middleware, wake.set)
        runners = AsyncRunners(options.concurrency, self.name, handler_runner.execute)
        self._state = state = WorkerState(
            self._polls(),
            Dispatcher(self.handlers, runners, handler_runner.unknown, monotonic),
            wake=wake.set_from_thread,
            clock=monotonic,
            options=options,
            statistics=self._statistics,
            fields=self._fields,
        )
        state.helper, state.isolated = self._helper(), self._isolated
        state.isolator = self._isolator(state)
        self._handler_runner = handler_runner
        handler_runner.runners, handler_runner.finished = runners, state.finished
        for grace in self._stops:
            state.stop(grace)
        self._activity = AsyncActivity(lambda: self._main(state, runners, wake), self.name)

    def _renew(self) -> None:
        self._stops.clear()
        self._state, self._statistics = None, Statistics()
        self._client = self._origin.twin(owner=self.options.name)

    def stop(self, grace: Duration | None = None) -> None:
        """Take no more jobs, and end when the handlers have finished; returns at once.

        May be called from any thread and from a signal handler, again, and before the start.

        Args:
            grace: seconds after which unfinished jobs are given back; None = the worker's.
        """
        seconds = None if grace is None else duration_ms("grace", grace) / 1000
        self._stops.append(seconds)
        if self._state is not None:
            self._state.stop(seconds)

    async def join(self, timeout: Duration | None = None) -> bool:
        """Wait until it has ended.

        Args:
            timeout: seconds, None = for ever.

        Returns:
            Whether it has ended.

        Raises:
            ConfigurationError, AuthenticationError: it has ended because of that.
        """
        seconds = None if timeout is None else duration_ms("timeout", timeout) / 1000
        return self._activity is None or await self._activity.join(seconds)

    async def __aenter__(self) -> AsyncWorker:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        await self.join()

    def _is_overdue(self) -> bool:
        """Return whether it should have ended some time ago."""
        state = self._state
        if state is None or monotonic() < state.deadline + OVERDUE:
            return False
        text = "%s did not end in time and is abandoned; its leases will expire"
        logger.error(text, self.name, extra=self._fields)
        return True

    @contextmanager
    def _listening(self, wanted: bool) -> Iterator[None]:
        """Stop the worker at signals, where Python can receive them."""
        if not wanted or threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._on_signal) for number in SIGNALS}
        self._owns_process = True
        try:
            yield
        finally:
            self._owns_process = False
            for number, handler in before.items():
                # None: it was not set by Python, and can't be set again.
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002  # its form
        self.stop(0 if self._stops else None)

    # -- looking ---------------------------------------------------------------------------

    @property
    def stopping(self) -> bool:
        """Whether it was told to stop; long handlers may look at it."""
        return bool(self._stops)

    @property
    def state(self) -> str:
        """new, running, stopping or stopped."""
        if self._activity is None:
            return "new"
        if self._activity.is_over:
            return "stopped"
        return "stopping" if self.stopping else "running"

    @property
    def drained(self) -> bool:
        """Whether it has found all its queues closed and drained, and therefore ended."""
        return self._state is not None and self._state.is_drained

    @property
    def abandoned(self) -> int:
        """How many jobs it could neither report nor give back when it ended.

        Their leases end by themselves. Jobs delivered at most once are not among them.
        """
        state = self._state
        if state is None or not state.is_over:
            return 0
        return len(state.abandoned | state.leased())

    def healthy(self) -> bool:
        """Whether it works: it is running, and the server has answered in the last 15 seconds."""
        is_alive = self.state in ("running", "stopping")
        return is_alive and self._state is not None and self._state.is_healthy

    def status(self) -> WorkerStatus:
        """What it is doing, and its figures so far; from any thread."""
        state, handler_runner = self._state, self._handler_runner
        isolated = () if state is None or state.isolator is None else state.isolator.running
        sizes = dict.fromkeys(self.options.queues, 0)
        if state is not None:
            sizes.update(state.sizes)
        return WorkerStatus(
            name=self.name,
            state=self.state,
            healthy=self.healthy(),
            queues=sizes,
            concurrency=self.options.concurrency,
            options=self.options.shown() | {"name": self.name},
            held=0 if state is None else len(state.held) + len(isolated),
            taken=0 if state is None else state.taken,
            running=isolated if handler_runner is None else handler_runner.at_work() + isolated,
            idle_rounds=0 if state is None else state.idle_rounds,
            answered=0.0 if state is None else monotonic() - state.answered,
            stats=self._statistics.snapshot(),
        )

    # -- the loop --------------------------------------------------------------------------

    async def _main(self, state: WorkerState, runners: AsyncRunners, wake: AsyncSignal) -> None:
        helper = state.helper
        heartbeat = AsyncHeartbeat(
            state,
            self._twin,
            prefix=self._client.prefix,
            name=f"{self.name}-leases",
            overdue=self._end_process if self._owns_process else None,
            helper=helper,
        )
        runners.start()
        try:
            if helper is not None:
                helper.start()
            heartbeat.start()
            if helper is not None:
                await self._ready(state, wake, helper)
            if await self._connected(state, wake):
                text = "%s takes jobs of %s"
                logger.info(text, self.name, ", ".join(self.options.queues), extra=self._fields)
                await self._work(state, wake)
        finally:
            await self._looking.close()
            heartbeat.close()
            if helper is not None:
                helper.close()
            if state.isolator is not None and (left := state.isolator.close()):
                state.abandoned.add(left)
            is_free = await runners.close(1.0)
            await self._client.close()
            wake.close()
            logger.info("%s has ended", self.name, extra=self._fields)
            if not is_free and self._owns_process:
                runners.at_end(_end_process)

    async def _work(self, state: WorkerState, wake: AsyncSignal) -> None:
        """Drive the loop to its end, over several nodes as soon as its node lists others."""
        while True:
            home = self._client._home
            state.apart, state.moved = home.is_apart, False
            flow = work(state, self._looped)
            await home.drive(flow, wake)
            if not state.moved:
                return
            self._client._join()
            await self._connected(state, wake)
            logger.info("%s takes jobs of several nodes", self.name, extra=self._fields)

    async def _look(self) -> None:
        """Look for other nodes in the list of its node; the loop ends if there are some."""
        state = self._state
        if state is not None and await self._client._has_others():
            state.moved = True
            state.wake()

    def _twin(self, home: Any) -> AsyncNode:
        """Return a separate connection to a node for the heartbeat; None = the only node."""
        if home is None:
            return self._client._node.twin(retry_for=1, socket_timeout=2)
        twin = home.node.twin(retry_for=0, socket_timeout=1)
        twin.link.send_once()
        return cast("AsyncNode", twin)

    def _polls(self) -> list[QueuePoll]:
        """Return its queues. The partitions of a queue, on each node, share its weight."""
        found = []
        for name, weight in self.options.queues.items():
            queue = self._client.queue(name)
            share = weight / (queue.partitions or 1)
            found += [QueuePoll(ops, share) for ops in queue.operations]
        return found

    def _helper(self) -> HeartbeatProcess | None:
        if self.options.heartbeat != "process":
            return None
        return HeartbeatProcess(self._client._source, prefix=self._client.prefix, owner=self.name)

    def _isolator(self, state: WorkerState) -> Isolator | None:
        target, options = self.options.isolate, self.options
        if target is None:
            return None
        told = {"queues": dict(options.queues), "grace": options.grace_s, "name": self.name}
        return Isolator(target, told, state.wake, self._fields)

    async def _run_isolated(self, isolated: Isolated, told: dict[str, Any]) -> None:
        """Run what another worker hands this one, which is the same app in another process."""
        self.change(queues=told["queues"], grace=told["grace"], name=f"{told['name']}-isolated")
        only = {"burst": False, "max_jobs": None, "monitor": None, "throttle": 0, "isolate": None}
        self.options = self.options.changed(concurrency=1, prefetch=0, **only)
        self._isolated, self._owns_process = isolated, True
        await self.run(signals=False)

    async def _ready(self, state: WorkerState, wake: AsyncSignal, helper: HeartbeatProcess) -> None:
        """Wait some seconds for the helper: a handler may let nothing else run at once."""
        until = monotonic() + 10
        while not state.stopping and monotonic() < until and not helper.is_ready():
            await wake.wait(0.02)

    async def _connected(self, state: WorkerState, wake: AsyncSignal) -> bool:
        """Wait for the server; return False if the worker was stopped before it was reached."""
        pause = 0.1
        while not state.stopping:
            if await self._connect():
                return True
            pause = min(pause * 2, 2.0)
            await wake.wait(pause)
        return False

    async def _connect(self) -> bool:
        try:
            await self._client.connect()
        except Exception as error:
            if not (passing(error) or isinstance(error, OutOfMemory)):
                raise
            logger.warning("%s: no server yet: %s", self.name, error, extra=self._fields)
            return False
        return True

    def _looped(self, got: int) -> None:
        state, monitor = self._state, self.options.monitor
        assert state is not None
        state.idle_rounds = 0 if got else state.idle_rounds + 1
        if self._lap != state.lap:  # once a tick, and not in every round
            self._lap = state.lap
            if self._client._is_look_due and not self._looking.under_way:
                self._looking.begin(self._look)
        learned, state.learned = state.learned, {}
        for name, partitions in learned.items():
            self._client.queue(name, partitions=partitions)
        if learned or state.polls[0].ops.home is not None:
            for poll in self._polls():
                state.add(poll)
        if monitor is None:
            return
        try:
            monitor(LoopEvent(state.sizes, state.idle_rounds, got))
        except Exception as error:  # noqa: BLE001  # whatever a user's function raises
            state.complain("monitor", error)

    def _end_process(self) -> None:
        """End the process, unless `run` has returned: its event loop does not move."""
        if self._owns_process:
            _end_process()


def _end_process() -> None:
    """End this process, as its worker can't come to an end: that is a failure."""
    logger.error("a worker did not end in time; the process is ended with exit code 1")
    logging.shutdown()
    os._exit(1)
