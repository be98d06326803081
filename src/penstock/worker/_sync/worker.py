# From src/penstock/worker/_async/worker.py by tools/unasync.py; do not edit.
"""The worker as its user sees it: its options and hooks, its start and end, and its status."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from glob import escape
from types import TracebackType
from typing import Any, TypeVar

from penstock.client._sync.client import Penstock, twin_of
from penstock.client._sync.metrics import Metrics
from penstock.client._sync.queue import Queue
from penstock.client.clock import monotonic
from penstock.core.nodes.times_counter import TimesCounter
from penstock.core.values.answers import HttpAnswer
from penstock.core.values.checks import Duration, duration_ms
from penstock.core.values.durable import Durable
from penstock.errors import BadArgument
from penstock.worker._sync.handler_runner import Take
from penstock.worker._sync.heartbeat import OVERDUE_SECONDS
from penstock.worker._sync.life import WorkerLife
from penstock.worker._sync.lifespan import Lifespan
from penstock.worker.activities import Activity
from penstock.worker.handlers import Handlers
from penstock.worker.held_file import HeldFile
from penstock.worker.isolation import Isolated
from penstock.worker.log import show_by_default
from penstock.worker.monitor import Monitor
from penstock.worker.options import (
    HeartbeatKind,
    Order,
    WorkerOptions,
    handler_sets,
    joined,
    refuse_coroutines,
    refuse_other_kind,
    served,
)
from penstock.worker.process_end import ProcessEnd
from penstock.worker.signals import ReceivedSignals, handling_signals
from penstock.worker.status import WorkerStatus, worker_status

__all__ = ["Worker"]

Hook = TypeVar("Hook", bound=Callable[..., Any])
SIGNAL_CHECK_INTERVAL = 1.0
"""Seconds after which the main thread looks for signals: one may have come before it slept."""


class Worker:
    """Runs handlers for the jobs of one or several queues, until it is stopped.

    When a handler returns, its job is finished. When it raises, the attempt has failed, and the
    job's retry policy decides. `Done`, `Retry`, `Snooze` and `Reject`, returned or raised, ask for
    one outcome explicitly. A thread renews the lease for as long as the handler runs. If the lease
    is lost all the same, a coroutine is cancelled; for a function in a thread `job.lost` becomes
    true. The outcome of such a handler changes nothing.

    Args:
        source: a client, whose settings are used for separate connections; or a URL, a redis-py
            client, or a list of these for several nodes.
        queues: a queue or its name, several of them, or a mapping to weights: with
            `{"mail": 8, "low": 2}` eight jobs of ten come from `mail` while both have some. A
            weight is a share, not a priority. None = the queues that the handlers name.
        handlers: `Handlers`, or one function as the default handler, which gets every job. Those
            registered with the queues themselves (`Queue.handler`) belong to the worker too;
            then None will do. Coroutine functions run in an event loop only, plain functions in
            threads.
        concurrency: how many handlers run at once.
        prefetch: how many more jobs to hold, so that the next job is at hand. Other workers can't
            take them meanwhile. None = it adapts: some while handlers take a few ms, and a job that
            was not begun after 30 ms is given back; 0 = none.
        grace: seconds in which handlers may finish when the worker is stopped. Then their jobs are
            released, without counting an attempt.
        burst: end when no job can be taken any more. Jobs that are due later stay, and so do jobs
            of a queue that is paused or has another exclusive consumer. If a queue can't be used,
            its error is raised at the end, after 30 seconds of failures if it may pass.
        max_jobs: take this many jobs, and end when they are finished.
        throttle: seconds to pause after each look, or a function of the number of waiting jobs.
        monitor: called with a `LoopEvent` after each round.
        heartbeat: "thread"; or "process", where a helper process renews leases, for handlers in
            native code that let no other thread run.
        name: the worker's name, kept with each delivery; None = the client's, or host and process.
        isolate: `module:name` of this worker, or of a function that makes it. Jobs that crashed
            twice then run in a separate process, which imports it, while other jobs go on. None =
            such jobs run when the worker has no other job. `penstock worker` sets it.
        log_jobs: log a line, at INFO, for each finished job.
        order: "weighted" serves all queues by their weights; "strict" serves the first queue as
            long as it has jobs, then the second, and so on.
        time_limit: seconds that a handler may run; then it fails with `TimeLimit`. None = no limit.
        at_most_once: replicas and disks that must confirm the delivery of a job with lease 0 before
            it runs, so that it never runs twice, even after a failover; None = none.

    Raises:
        BadArgument: an argument can't be used.

    Examples:
        >>> from penstock import Handlers
        >>> handlers = Handlers()
        >>> @handlers.handler
        ... def welcome(to: str) -> None:
        ...     print("welcome", to)
        >>> job = welcome.enqueue(q, "ada")
        >>> Worker(ps, q, handlers, burst=True).run()
        welcome ada
    """

    def __init__(
        self,
        source: Penstock | Any,
        queues: str | Queue | Iterable[str | Queue] | Mapping[Any, int] | None = None,
        handlers: Handlers | Callable[..., Any] | None = None,
        *,
        concurrency: int = 8,
        prefetch: int | None = None,
        grace: Duration = 25,
        burst: bool = False,
        max_jobs: int | None = None,
        throttle: Duration | Callable[[int], Duration] = 0,
        monitor: Monitor | None = None,
        heartbeat: HeartbeatKind = "thread",
        name: str | None = None,
        isolate: str | None = None,
        log_jobs: bool = False,
        order: Order = "weighted",
        time_limit: Duration | None = None,
        at_most_once: Durable | None = None,
    ) -> None:
        chosen = served(queues, handlers)
        self.options = WorkerOptions(
            chosen,
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
            log_jobs=log_jobs,
            order=order,
            time_limit=time_limit,
            at_most_once=at_most_once,
        )
        refuse_other_kind(source, Penstock, type(self))
        self._origin = source if isinstance(source, Penstock) else Penstock(source)
        self._handler_times = TimesCounter()
        self._sets = handler_sets(handlers, chosen, self._origin)
        self.handlers = joined(self._sets)
        refuse_coroutines(self.handlers)
        self._client = self._make_client()
        self._lifespan = Lifespan(self)
        self._stops: list[float | None] = []
        self._process_end: ProcessEnd | None = None  # None = it must not end the process
        self._signals = ReceivedSignals()
        self._life: WorkerLife | None = None
        self._activity: Activity | None = None  # of this life
        self._isolated: Isolated | None = None
        self.held_file: HeldFile | None = None  # internal: of a process with a supervisor
        self.take: Take | None = None  # internal: as that of a handler runner
        self.lease_ms: int | None = None  # internal: of its jobs, in place of the queue's

    def _make_client(self) -> Penstock:
        """Return a separate client. Beside a helper process it has one node, like the helper."""
        has_url = isinstance(self._origin.topology.source, str)
        federation = False if has_url and self.options.heartbeat == "process" else None
        return twin_of(self._origin, owner=self.options.name, federation=federation)

    @property
    def name(self) -> str:
        """Name of the worker, kept with each delivery as its owner."""
        return self._client.owner

    @property
    def address(self) -> str:
        """Address of its server, or of its servers, for people."""
        return self._client.topology.current.address

    def change(self, **options: Any) -> None:
        """Change options while the worker does not run; None leaves an option as it is.

        Raises:
            BadArgument: there is no such option, its value can't be used, or the worker runs.
        """
        given = {name: value for name, value in options.items() if value is not None}
        for option, value in given.items():
            if self.state in ("running", "stopping"):
                raise BadArgument(option, value, "the worker runs: stop it first")
            if option not in WorkerOptions.__slots__:
                names = ", ".join(WorkerOptions.__slots__)
                raise BadArgument(option, value, f"no such option: there are {names}")
        self.options = replace(self.options, **given)
        self._client = self._make_client()

    def lifespan(self, function: Hook, /) -> Hook:
        """Use a function as the lifespan, as a decorator: it opens what handlers need.

        It is a context manager function, or a generator function with one `yield`; asynchronous
        ones need a `Worker`. Each process that runs handlers enters it before its first job,
        and leaves it after its last one. Handlers receive the value that it yields as `job.state`,
        or by `State` parameters. It gets the worker if it requires an argument.

        Raises:
            BadArgument: it can't be one, or the worker has one.
        """
        return self._lifespan.add("lifespan", function)

    def on_start(self, function: Hook, /) -> Hook:
        """Call a function when the worker starts, before its lifespan; as a decorator.

        Its errors and arguments are those of `lifespan`.
        """
        return self._lifespan.add("on_start", function)

    def on_stop(self, function: Hook, /) -> Hook:
        """Call a function when the worker ends, after its lifespan; as a decorator.

        It is called if all functions of `on_start` have succeeded; the rest is as there.
        """
        return self._lifespan.add("on_stop", function)

    def __repr__(self) -> str:
        names = ", ".join(map(repr, self.options.queues))
        return f"<{type(self).__name__} {self.name!r} of {names}: {self.state}>"

    # -- life ------------------------------------------------------------------------------

    def run(self, *, signals: bool = True) -> None:
        """Work until the worker is stopped, or all its queues are closed and drained.

        `stop` stops it, and in the main thread SIGTERM, SIGINT and SIGHUP do; SIGHUP only if the
        program neither handles nor ignores it. At the first signal no more jobs are taken, and
        handlers have `grace` seconds to finish. At the second SIGTERM or SIGINT, or when this call
        is cancelled, unfinished jobs are released at once.

        A worker that does not end, because a call to the server does not return, is abandoned some
        seconds after its grace. This call then returns, and `abandoned` is the number of jobs that
        the worker still holds. If a handler blocks the event loop, this call can't return: the
        process ends with exit code 1. So it does at the end of the program if only handlers that
        were given up keep it: coroutines that refuse to be cancelled, calls in executors.

        Args:
            signals: whether to act on signals.

        Raises:
            ConfigurationError, AuthenticationError: the server, or this program, can't be used.
            LifespanError: the lifespan or a hook has failed; at the start no job was taken.
            UnsupportedVersion: a newer penstock has written to a queue; handlers have finished.
            QueueDamaged, NotPermitted, OutOfMemory, ResponseError: of a queue that a burst needs.
        """
        with self._listening(signals):
            self.start()
            try:
                while not (self.join(SIGNAL_CHECK_INTERVAL) or self._is_overdue()):
                    pass
            except BaseException:  # a cancellation, or Ctrl-C that no signal handler has taken
                self.stop(0)
                self.join()
                raise

    def start(self) -> None:
        """Work in the background. A worker that runs goes on.

        A worker that has ended starts again, with new figures. One that is stopping ends first,
        after its grace at most, and starts again. After a `stop` before the first start the worker
        ends at once.

        Raises:
            BadArgument: an annotation of a handler can't be resolved.
            ConfigurationError: gevent or eventlet has replaced the threads of this program.
            ConfigurationError, AuthenticationError: it was stopping, and this error has ended it.
        """
        if self._activity is not None:
            if not self._activity.is_over:
                if not self.stopping:
                    return
                self.join()
            self._stops.clear()
            self._signals = ReceivedSignals()
            self._life = None
            self._client = self._make_client()
        self.handlers = joined(self._sets)  # some may have been registered meanwhile
        self.handlers.check()
        self._life = life = WorkerLife(
            self.options,
            self.handlers,
            self._client,
            lifespan=self._lifespan,
            kind=type(self).__name__,
            stop=self.stop,
            signals=self._signals,
            process_end=self._process_end,
            isolated=self._isolated,
            held_file=self.held_file,
            take=self.take,
            lease_ms=self.lease_ms,
        )
        for grace in self._stops:
            life.state.stop(grace)
        self._activity = Activity(life.run, self.name, lambda: self.stop(0))

    def stop(self, grace: Duration | None = None) -> None:
        """Take no more jobs, and end when the handlers have finished. Returns at once.

        Any thread or signal handler may call this, repeatedly, and before the start.

        Args:
            grace: seconds after which unfinished jobs are released; None = the worker's `grace`.
        """
        seconds = None if grace is None else duration_ms("grace", grace) / 1000
        self._stops.append(seconds)
        if self._life is not None:
            self._life.state.stop(seconds)

    def join(self, timeout: Duration | None = None) -> bool:
        """Wait until the worker has ended.

        Args:
            timeout: seconds to wait; None = no limit.

        Returns:
            Whether it has ended.

        Raises:
            ConfigurationError, AuthenticationError: this error has ended it.
        """
        seconds = None if timeout is None else duration_ms("timeout", timeout) / 1000
        return self._activity is None or self._activity.join(seconds)

    def __enter__(self) -> Worker:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        self.join()

    def _run_isolated(self, isolated: Isolated, kept: dict[str, Any]) -> None:
        """Run in the process that runs suspects: with these options, which it takes over."""
        self.change(name=kept["name"])
        self.options = WorkerOptions(**kept, concurrency=1, heartbeat=self.options.heartbeat)
        self._isolated, self._process_end = isolated, ProcessEnd()
        self.run(signals=False)

    # -- signals ---------------------------------------------------------------------------

    @contextmanager
    def _listening(self, wanted: bool) -> Iterator[None]:
        """Stop the worker at signals. Only the main thread can receive signals."""
        if not wanted or threading.current_thread() is not threading.main_thread():
            yield
            return
        self._process_end = ProcessEnd()
        if self._life is not None:  # `start` was called before
            self._life.state.process_end = self._process_end
        try:
            with handling_signals(self._on_signal), show_by_default():
                yield
        finally:
            self._process_end.disown()
            self._process_end = None

    def _on_signal(self, name: str) -> None:
        self.stop(self._signals.receive(name, is_stopping=self.stopping))

    def _is_overdue(self) -> bool:
        life = self._life
        if life is None or monotonic() < life.state.deadline + OVERDUE_SECONDS:
            return False
        text = "%s did not end in time and is abandoned; its leases will expire"
        life.state.log.error(text, self.name)
        return True

    # -- looking ---------------------------------------------------------------------------

    @property
    def stopping(self) -> bool:
        """True if the worker was told to stop. A long handler may check it."""
        return bool(self._stops)

    @property
    def state(self) -> str:
        """State of the worker: "new", "running", "stopping" or "stopped"."""
        if self._activity is None:
            return "new"
        if self._activity.is_over:
            return "stopped"
        return "stopping" if self.stopping else "running"

    def answer_metrics(self, path: str) -> HttpAnswer | None:
        """Answer GET of a path with the figures of its queues; None = there is nothing at it.

        internal: of the health port, whose threads call it.
        """
        queues = [escape(name) for name in self.options.queues]

        def answer() -> HttpAnswer | None:
            with twin_of(self._origin) as client:
                metrics = Metrics(client, queues, times=self._handler_times)
                return metrics.answer(path)

        return answer()

    @property
    def drained(self) -> bool:
        """True if the worker has ended because all its queues are closed and drained."""
        return self._life is not None and self._life.state.is_drained

    @property
    def abandoned(self) -> int:
        """Number of jobs that the worker could neither report nor release when it ended.

        They return when their leases end. Jobs delivered at most once are not counted.
        """
        life = self._life
        if life is None or not life.state.is_over:
            return 0
        return len(life.state.abandoned | life.state.leased())

    def healthy(self) -> bool:
        """Return whether it runs, and a queue of it could be used in the last 15 seconds."""
        is_alive = self.state in ("running", "stopping")
        return is_alive and self._life is not None and self._life.state.is_healthy

    def status(self) -> WorkerStatus:
        """Return the status and the figures. Any thread may call this."""
        life = self._life
        return worker_status(
            None if life is None else life.state,
            name=self.name,
            life=self.state,
            is_healthy=self.healthy(),
            options=self.options,
            running=() if life is None else life.handler_runner.running_jobs(),
        )
