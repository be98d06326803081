# From src/penstock/worker/_async/life.py by tools/unasync.py; do not edit.
"""One life of a worker: the parts that its start makes, what runs in its task, and its end."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from socket import gethostname

from redis.exceptions import RedisError

from penstock.client._acompat import Wakeup, shield
from penstock.client._sync.client import Penstock
from penstock.client.clock import monotonic
from penstock.core.calls.failures import passing
from penstock.core.jobs.logs import RateLimit, get_logger, span
from penstock.core.jobs.middleware import with_settle
from penstock.core.jobs.workers import worker_entry
from penstock.errors import OutOfMemory
from penstock.version import __version__
from penstock.worker._sync.handler_runner import HandlerRunner, Take
from penstock.worker._sync.heartbeat import Heartbeat
from penstock.worker._sync.lifespan import Lifespan
from penstock.worker._sync.registration import Registration
from penstock.worker._sync.served import ServedQueues
from penstock.worker.dispatcher import Dispatcher
from penstock.worker.handlers import Handlers
from penstock.worker.heartbeat_process import HeartbeatProcess
from penstock.worker.held_file import HeldFile
from penstock.worker.isolation import Isolated, Isolator
from penstock.worker.limits import Limits
from penstock.worker.loop import work
from penstock.worker.messages import end_text, running_text, start_text
from penstock.worker.monitor import LoopEvent
from penstock.worker.options import WorkerOptions, check_states
from penstock.worker.process_end import ProcessEnd
from penstock.worker.runners import Item, Runners
from penstock.worker.schedules import declared_schedules
from penstock.worker.signals import ReceivedSignals
from penstock.worker.state import WorkerState

__all__ = ["WorkerLife"]

logger = get_logger("penstock")

ISOLATED_OPTIONS = ("queues", "grace", "log_jobs", "time_limit")
"""Options that an isolated process takes over."""
NO_SERVER_INTERVAL = 5.0
"""Fewest seconds between two log lines of a worker whose server is not there yet."""
HELPER_READY_SECONDS = 10.0
"""Most seconds to wait for the helper process: a handler may soon let no other thread run."""


class WorkerLife:
    """One life of a worker, from its start until it has ended. The next start makes another one.

    Args:
        options: the options of the worker.
        handlers: its handlers.
        client: its client, which is closed at the end.
        lifespan: its hooks.
        kind: the name of its class.
        stop: stops it: `Worker.stop`.
        signals: those that it has received.
        process_end: ends the process for it; None = the process is not its own.
        isolated: the line to the worker whose suspects it runs, if it runs in a process for these.
        held_file: tells its supervisor which jobs it holds, if it has one.
        take: as that of a handler runner.
        lease_ms: lease of its jobs; None = that of the queue.

    Attributes:
        state: what its parts share.
        handler_runner: runs its handlers.
    """

    def __init__(
        self,
        options: WorkerOptions,
        handlers: Handlers,
        client: Penstock,
        *,
        lifespan: Lifespan,
        kind: str,
        stop: Callable[[float | None], None],
        signals: ReceivedSignals,
        process_end: ProcessEnd | None,
        isolated: Isolated | None,
        held_file: HeldFile | None,
        take: Take | None,
        lease_ms: int | None,
    ) -> None:
        self._options = options
        self._handlers = handlers
        self._client = client
        self._name = client.owner
        self._lifespan = lifespan
        self._kind = kind
        self._stop = stop
        self._signals = signals
        self._has_said_stop = False
        self._lap = 0.0
        self._wake = Wakeup()
        schedules = declared_schedules(handlers, options.queues, client.topology.config.codec)
        apps = frozenset(handler.app for handler in handlers)
        self._queues = ServedQueues(client, options.queues, schedules, apps, lease_ms)
        self.handler_runner = HandlerRunner(handlers, client.middleware, self._wake.set)
        self.handler_runner.client, self.handler_runner.take = client, take
        self._runners = Runners(options.concurrency, self._name, self.handler_runner.execute)
        self._runners.limits = Limits(options.time_limit, options.grace, self._stop_stuck)
        self.state = self._make_state()
        self.state.isolated, self.state.process_end = isolated, process_end
        self.state.held_file = held_file
        self._lead_reports()

    def _make_state(self) -> WorkerState:
        options = self._options
        dispatcher = Dispatcher(
            self._handlers,
            self._runners,
            return_unknown=self.handler_runner.return_unknown,
            clock=monotonic,
        )
        state = WorkerState(
            self._queues.polls(),
            dispatcher,
            wake=self._wake.set_from_thread,
            clock=monotonic,
            options=options,
            name=self._name,
        )
        state.hooks = with_settle(self._client.middleware)
        if options.heartbeat == "process":
            source, prefix = self._client.topology.source, self._client.prefix
            state.helper = HeartbeatProcess(source, prefix=prefix, owner=self._name)
        if options.isolate is not None:
            kept = {name: options.shown()[name] for name in ISOLATED_OPTIONS}
            kept["name"] = f"{self._name}-isolated"
            state.isolator = Isolator(options.isolate, kept, state)
        return state

    def _lead_reports(self) -> None:
        """Lead the reports of handlers to the loop, and what the loop asks about them back."""
        state, runner = self.state, self.handler_runner
        runner.runners, runner.finished = self._runners, state.finished
        runner.settings_of, state.fail_refused = state.settings_of, runner.fail_refused
        runner.note_hold = state.give_back_ahead
        if self._options.concurrency == 1:
            state.finished.is_last = self._runners.is_empty

    def _stop_stuck(self, item: Item) -> None:
        """End the worker, as a thread of it can't be freed."""
        self.handler_runner.give_up(item)
        text = "%s stops: a handler has ignored its time limit, and its thread can't be ended"
        logger.error(text, self._name)
        self._stop(None)

    # -- from the start to the end ---------------------------------------------------------

    def run(self) -> None:
        """Work until the worker is stopped, or all its queues are closed and drained.

        Raises:
            LifespanError: the lifespan or a hook has failed.
            PenstockError: why the worker can't go on.
        """
        state, began = self.state, monotonic()
        heartbeat = self._make_heartbeat()
        try:
            self._enter_lifespan()
            self._runners.start()  # handlers see the context variables that the lifespan has set
            if state.helper is not None:
                state.helper.start()
            heartbeat.start()
            self._wait_for_helper()
            if self._connect():
                self._say_start()
                self._warn_of_misspelled()
                self._work()
            if (refusal := state.refusal) is not None:
                raise refusal
        finally:
            self._queues.close()
            heartbeat.close()
            if state.helper is not None:
                state.helper.close()
            if state.isolator is not None and (left := state.isolator.close()):
                state.abandoned.add(left)
            self._runners.close(1.0)
            if state.process_end is not None:
                state.process_end.note_tasks(self._runners.unfinished())
            try:
                self._lifespan.stop()
            finally:
                self._client.close()
                self._wake.close()
                self._say_end(monotonic() - began)

    def _make_heartbeat(self) -> Heartbeat:
        state = self.state
        entry = partial(
            worker_entry,
            name=self._name,
            kind=self._kind,
            host=gethostname(),
            version=__version__,
            queues=[*self._options.queues],
            concurrency=self._options.concurrency,
            unknown=self.handler_runner.missing.recent,
        )
        registration = Registration(entry, self._client.prefix)
        return Heartbeat(
            state,
            self._client.topology,
            name=f"{self._name}-leases",
            registration=None if state.isolated else registration,
            overdue=state.process_end.end if state.process_end else None,
        )

    def _enter_lifespan(self) -> None:
        self._lifespan.start()
        self.handler_runner.state = self._lifespan.state
        check_states(self._handlers, self._lifespan.state)
        self.state.answered = monotonic()

    def _wait_for_helper(self) -> None:
        helper, until = self.state.helper, monotonic() + HELPER_READY_SECONDS
        while helper and monotonic() < until and not (helper.is_ready() or self.state.stopping):
            self._wake.wait(0.02)

    def _connect(self) -> bool:
        """Connect to the server; return False if the worker was stopped meanwhile."""
        pause, topology = 0.1, self._client.topology
        limit = RateLimit(NO_SERVER_INTERVAL, monotonic)
        while not self.state.stopping:
            try:
                if topology.federation is None:  # tried once: the reason is logged here
                    topology.executor.connections.reach()
                self._client.connect()
                return True
            except Exception as error:
                if not (passing(error) or isinstance(error, OutOfMemory)):
                    raise
                if limit.allows(""):
                    text = "%s: no server yet, it is tried again: %s"
                    self.state.log.warning(text, self._name, error)
            pause = min(pause * 2, 2.0)
            self._wake.wait(pause)
        return False

    def _work(self) -> None:
        """Run the loop, and another one each time that more nodes were found."""
        state = self.state
        while True:
            nodes = self._client.topology.current
            state.has_several_servers, state.moved = nodes.is_apart, False
            self._queues.update(state)
            nodes.drive(work(state, self._end_round), self._wake)
            if not state.moved:
                return
            self._client.topology.join()
            try:
                self._connect()
            except BaseException:
                self._stop(0)
                leaving = work(state, self._end_round)  # it leaves at once
                shield(nodes.drive(leaving, self._wake))
                raise
            state.log.info("%s takes jobs of several nodes", self._name)

    def _end_round(self, got: int) -> None:
        state = self.state
        state.idle_rounds = 0 if got else state.idle_rounds + 1
        if state.stopping and not self._has_said_stop:
            self._say_stop()
        if self._lap != state.lap:  # once a poll interval, and not in every round
            self._lap = state.lap
            self._queues.look_for_nodes(state)
        if state.learned or state.polls[0].ops.node is not None:
            self._queues.update(state)
        monitor = self._options.monitor
        if monitor is None:
            return
        try:
            monitor(LoopEvent(state.sizes, state.idle_rounds, got))
        except Exception as error:  # noqa: BLE001  # whatever a user's function raises
            state.complain("monitor", error)

    # -- what it logs about itself ---------------------------------------------------------

    def _say_start(self) -> None:
        topology = self._client.topology
        where = topology.current.address
        if topology.federation is None:
            where = f"{topology.executor.facts.name} at {where}"
        handlers = [handler.title for handler in self._handlers]
        text = start_text(self._options, where, handlers, self._queues.schedule_names)
        self.state.log.info("penstock %s: %s takes %s", __version__, self._name, text)

    def _warn_of_misspelled(self) -> None:
        if self.state.isolated is not None:  # its worker has warned
            return
        for text in self._handlers.unknown_followers():
            self.state.log.warning("%s", text)
        with suppress(RedisError):  # the loop meets it too
            for name, near in self._queues.find_misspelled().items():
                text = "%s: queue %r has never had a job (did you mean %r?)"
                self.state.log.warning(text, self._name, name, near)

    def _say_stop(self) -> None:
        self._has_said_stop = True
        state = self.state
        isolated = () if state.isolator is None else state.isolator.running
        running, left = self.handler_runner.running_jobs() + isolated, state.deadline - monotonic()
        if running and left > 0:
            subject, hint = self._signals.last or "stop()", self._signals.hint
            text, waits = "%s: %s stops; it waits up to %s for %s%s", running_text(running)
            state.log.info(text, subject, self._name, span(left), waits, hint)

    def _say_end(self, seconds: float) -> None:
        state, federation = self.state, self._client.topology.federation
        text = end_text(state.statistics.snapshot().counts, seconds)
        if self._options.burst and federation and (down := federation.down):
            text += f". Jobs of nodes that can't be reached are left: {', '.join(down)}"
            state.log.warning("%s has ended: %s", self._name, text)
        else:
            state.log.info("%s has ended: %s", self._name, text)
