# From src/penstock/worker/_async/heartbeat.py by tools/unasync.py; do not edit.
"""The heartbeat: renews the leases of held jobs, in a thread and on connections of its own.

So a handler that blocks the event loop, or keeps the interpreter busy, does not lose its job. By
this machine's monotonic clock a lease begins when its request is sent. So the worker never counts a
job as held after its lease has ended.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import chain
from typing import cast

from penstock.client._acompat import Wakeup
from penstock.client._sync.emitting import send_emission
from penstock.client._sync.nodes.federated_node import FederatedNode
from penstock.client._sync.topology import Topology
from penstock.client._sync.transport.driver import Driver
from penstock.client._sync.transport.executor import Executor
from penstock.client.clock import monotonic
from penstock.core.calls.failures import about_server
from penstock.core.calls.operations import OwnNode, QueueOps
from penstock.core.jobs.job import (
    Delivery,
    QueueIdentity,
    note_watched,
    ops_of,
    put_back,
    put_back_progress,
    reservation_of,
    set_term,
    take_unsent,
    term_of,
)
from penstock.core.jobs.logs import Fields, get_logger
from penstock.core.jobs.outcomes import Outcome, Settled
from penstock.core.values.checks import BATCH
from penstock.errors import WrongEpoch
from penstock.wire.scripts import script
from penstock.worker._sync.registration import Registration
from penstock.worker.activities import in_thread
from penstock.worker.concerns import is_damage
from penstock.worker.emitting import warn_of_refusal
from penstock.worker.held_file import place_of
from penstock.worker.loop import leave
from penstock.worker.put_off import PutOff, Renewal
from penstock.worker.state import WorkerState
from penstock.worker.terms import OVER, due, next_renewal, renew

__all__ = ["CANNOT_RENEW_TEXT", "Heartbeat", "renew_each"]

logger = get_logger("penstock")

SHORTEST_BEAT_PAUSE = 0.01
"""Fewest seconds between two looks at the leases."""
LEASE_GONE_TEXT = "it expired, it or its queue was removed, or another worker holds it"
CANCELLATION_LOOK_INTERVAL = 0.7
"""Most seconds between two looks. A cancelled job ends within a second, whatever its age: 0.3 s are
left for the call and for the handler to notice."""
TELL_INTERVAL = 0.02
"""Least seconds between two calls that send what handlers tell: meanwhile it gathers."""
HELD_OUTCOMES = (Outcome.DONE, Outcome.WATCHED, Outcome.CANCELLED)
"""Outcomes of a look at jobs that the worker still holds. Others may be those of a report whose
reply is on its way: a job is lost when two looks in a row say so."""
YOUNG_JOB_SECONDS = 0.05
"""Seconds for which a new job is left out of a look. Shorter jobs cost no call."""
LONGEST_RENEWAL_PAUSE = 1.0
"""Most seconds until another attempt at leases that could not be renewed."""
MOST_REFUSED_RENEWALS = 24
"""Most refused calls in a renewal. Every second one halves the smallest part: they find a job."""
CANNOT_RENEW_TEXT = "leases of %r can't be renewed: %s"
OVERDUE_SECONDS = 2.0
"""Seconds after the grace at which `run` abandons a worker that has not ended, and its heartbeat
releases its jobs. After as many seconds more the heartbeat ends the process."""


class Heartbeat:
    """Renews each lease when a third of it has passed; tells handlers that their jobs are lost.

    Args:
        state: the state of the worker.
        topology: the nodes of the client. The heartbeat makes others to the same nodes.
        name: the name of the thread.
        registration: the entry of the worker in the registry; None = it has none.
        overdue: called once if the worker does not end long after its grace; it may end the
            process.
    """

    def __init__(
        self,
        state: WorkerState,
        topology: Topology,
        *,
        name: str,
        registration: Registration | None = None,
        overdue: Callable[[], None] | None = None,
    ) -> None:
        self._state = state
        self._topology = topology
        self._executors: dict[OwnNode | None, Executor] = {}
        self._name = name
        self._registration = registration
        self._overdue = overdue
        self._poked = Wakeup()  # an Event may not be set in a signal handler: it has a lock
        self._closed = False
        self._ask_at = self._tell_at = 0.0
        self._missing = set[Delivery]()
        self._failures = 0
        self._put_off = PutOff(monotonic)
        self._is_silent = False
        self._has_left = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._state.poke = self._poked.set
        if self._state.held_file is not None:
            self._state.held_file.poke = self._poked.set
        self._thread = in_thread(self._main, self._name)

    def close(self) -> None:
        """End the thread, after a call that is in progress."""
        self._closed = True
        self._poked.set()
        if self._thread is not None:
            self._thread.join()

    def _main(self) -> None:
        try:
            self.prepare()
            while not self._closed:
                self._poked.wait(self.beat())
        finally:
            self.end()

    def prepare(self) -> None:
        """Connect early: connecting takes long while a handler keeps the interpreter busy."""
        for node in dict.fromkeys(poll.node for poll in list(self._state.polls)):
            with suppress(Exception):  # the first beat with something to do tries again
                self._executor(node).command("SCRIPT", "LOAD", script("extend").source)

    def beat(self) -> float:
        """Do what is due; return the seconds until the next beat.

        Each step may wait seconds for the server; a closed heartbeat stops. Leases end meanwhile.
        """
        if self._state.held:
            self._state.dispatcher.runners.warn_of_block(monotonic())
        for step in (
            self._renew_leases,
            self._end_left,
            self._ask_for_cancelled,
            self._send_told,
            self._register,
            self._end_overdue,
        ):
            if not self._closed:
                self._lose_ended()
                step()
        self._state.beat_at = math.inf  # the loop pokes when it takes a job from here on
        pause = self._pause()
        self._state.beat_at = monotonic() + pause
        return pause

    def end(self) -> None:
        """Remove the worker from the registry, and close the connections."""
        if self._registration is not None:
            self._registration.remove()
        for executor in self._executors.values():
            executor.close()

    def _executor(self, node: OwnNode | None) -> Executor:
        """Return an executor with connections of its own to a node; None = the only node."""
        executor = self._executors.get(node)
        if executor is None:
            if node is None:
                executor = self._topology.executor.twin(retry_for=1, socket_timeout=2)
            else:
                executor = cast("FederatedNode", node).executor.twin(retry_for=0, socket_timeout=1)
                executor.connections.send_once()
            self._executors[node] = executor
        return executor

    def _renew_leases(self) -> None:
        unreached = set[QueueOps]()
        held = self._lose_ended()
        self._put_off.keep(held)
        first, again = self._put_off.ready_apart(self._renewable(held))
        for lease, jobs in chain(due(first, monotonic()), due(again, monotonic())):
            ops = ops_of(jobs[0])
            self._lose_ended()
            jobs = [job for job in jobs if not job.lost]
            if ops in unreached or not jobs:
                continue
            renewal = renew_each(self._executor(ops.node), lease, jobs)
            if self._put_off.note(ops, renewal):
                self._state.log.warning(CANNOT_RENEW_TEXT, ops.name, renewal.why)
            if not renewal.is_reached:
                unreached.add(ops)
            self._lose(renewal.lost, LEASE_GONE_TEXT)
        self._failures = self._failures + 1 if unreached else 0
        self._is_silent = bool(unreached)

    def _end_left(self) -> None:
        """End the leases of jobs of a process that has died: they run again, each after a crash.

        A failure costs time: such a job comes back when its lease ends by itself.
        """
        held_file = self._state.held_file
        if held_file is None or not held_file.has_left:
            return
        ops_at = {place_of(poll.ops): poll.ops for poll in list(self._state.polls)}
        receipts: dict[tuple[QueueOps, str], list[tuple[str, str]]] = {}
        for note in held_file.take_left(ops_at):
            queue = (ops_at[note.queue, note.node], note.epoch)
            receipts.setdefault(queue, []).append((note.number, note.receipt))
        for (ops, epoch), each in receipts.items():
            for start in range(0, len(each), BATCH):
                with suppress(Exception):
                    call = ops.end_leases(epoch, each[start : start + BATCH])
                    self._executor(ops.node).run(call)

    def _register(self) -> None:
        if self._registration is not None and monotonic() >= self._registration.at:
            self._registration.renew(self._reachable_executors())

    def _reachable_executors(self) -> list[Executor]:
        nodes = dict.fromkeys(poll.node for poll in list(self._state.polls))
        is_up = not self._is_silent
        return [
            self._executor(node) for node in nodes if (is_up if node is None else node.state.is_up)
        ]

    def _ask_for_cancelled(self) -> None:
        """Store the progress of jobs, and learn which are cancelled or gone.

        There is one call for each queue.
        """
        if self._failures or monotonic() < self._ask_at:
            return
        self._ask_at = monotonic() + CANCELLATION_LOOK_INTERVAL
        taken_by = monotonic() - YOUNG_JOB_SECONDS
        held = [job for job, taken in self._state.held.copy().items() if taken < taken_by]
        asked: dict[QueueIdentity, list[Delivery]] = {}
        for job in self._renewable(held):
            if not (job.settled or job.cancelled):
                asked.setdefault(reservation_of(job).place, []).append(job)
        self._missing.intersection_update(held)
        for jobs in asked.values():
            for start in range(0, len(jobs), BATCH):
                self._lose_ended()
                self._look_at(jobs[start : start + BATCH])

    def _look_at(self, jobs: Sequence[Delivery]) -> None:
        executor = self._executor(ops_of(jobs[0]).node)
        try:
            outcomes = send_progress(executor, jobs)
        except WrongEpoch:  # as in `renew_leases`
            self._lose(_leased(jobs), LEASE_GONE_TEXT)
            return
        except Exception as error:  # noqa: BLE001  # it asks again soon
            logger.debug("cancelled jobs are not known: %s: %s", type(error).__name__, error)
            if about_server(error):
                executor.close()
            return
        outcome_of = dict(zip(jobs, outcomes, strict=True))
        for job, outcome in outcome_of.items():
            if note_watched(job, is_watched=outcome is Outcome.WATCHED):
                self._state.note_told(job)
        cancelled = [job for job in jobs if outcome_of[job] is Outcome.CANCELLED]
        if cancelled:
            self._state.dispatcher.runners.cancel(cancelled)
        missing = [job for job in _leased(jobs) if outcome_of[job] not in HELD_OUTCOMES]
        self._lose([job for job in missing if job in self._missing], LEASE_GONE_TEXT)
        self._missing.difference_update(jobs)
        self._missing.update(missing)

    def _send_told(self) -> None:
        """Send what handlers have told, of the jobs that clients watch."""
        if self._failures or monotonic() < self._tell_at:
            return
        for job in list(self._state.telling):
            self._tell_at = monotonic() + TELL_INTERVAL
            self._state.telling.discard(job)  # before the look: what comes behind it adds it again
            if job in self._state.held and not (job.lost or _is_away(job)):
                self._lose_ended()
                self._send_told_of(job)

    def _send_told_of(self, job: Delivery) -> None:
        executor = self._executor(ops_of(job).node)
        try:
            refusal = send_emission(executor, job)
        except WrongEpoch:  # as in `renew_leases`
            return
        except Exception as error:  # noqa: BLE001  # it sends them again soon
            logger.debug("events of %s are not sent: %s: %s", job.id, type(error).__name__, error)
            self._state.telling.add(job)
            self._tell_at = monotonic() + CANCELLATION_LOOK_INTERVAL
            if about_server(error):
                executor.close()
        else:
            warn_of_refusal(self._state, job, refusal)

    @property
    def _end_at(self) -> float:
        return self._state.deadline + (2 * OVERDUE_SECONDS if self._has_left else OVERDUE_SECONDS)

    def _end_overdue(self) -> None:
        """Release the jobs of a worker whose event loop is blocked. Later end the process."""
        overdue = self._overdue
        if overdue is None or monotonic() <= self._end_at:
            return
        if self._has_left:
            self._overdue = None
            overdue()
            return
        self._has_left = True
        # Of several nodes, and of a server that does not answer, the leases end by themselves.
        if self._state.polls[0].node is None and not self._is_silent:
            driver = Driver(self._executor(None), self._topology.config.prefix)
            driver.drive(leave(self._state))

    def _lose_ended(self) -> list[Delivery]:
        """Lose the jobs whose lease or ttl has ended; return the others that are held.

        This includes finished jobs: they must not run again before the loop has reported them, and
        another handler may block the loop. The helper may have renewed leases while one kept the
        interpreter, so its news come first.
        """
        if self._state.helper is not None:
            self._lose(self._state.helper.news(), LEASE_GONE_TEXT)
        now = monotonic()
        held = [job for job in list(self._state.held) if not job.lost]
        over = [job for job in held if term_of(job).until <= now]
        self._lose([job for job in over if term_of(job).lease], "its lease was not renewed in time")
        self._lose([job for job in over if not job.lost], "its ttl has ended")
        return [job for job in held if not job.lost]

    def _renewable(self, held: Sequence[Delivery]) -> list[Delivery]:
        unbegun = self._state.suspects.unbegun
        return [job for job in held if not (job.lost or job in unbegun or _is_away(job))]

    def _lose(self, jobs: Sequence[Delivery], why: str) -> None:
        lost = []
        for job in jobs:
            set_term(job, OVER)
            if not job.settled and job in self._state.held:
                lost.append(job)
                logger.warning("%s is lost: %s", job.id, why, extra=Fields(job))
        if lost:
            self._state.dispatcher.runners.lose(lost)

    def _pause(self) -> float:
        held = [job for job in list(self._state.held) if not job.lost]
        nearest = min((term_of(job).until for job in held), default=math.inf)
        ready = self._put_off.ready(self._renewable(held))
        nearest = min(nearest, next_renewal(ready), self._put_off.next_at(), self._ask_at)
        if self._state.telling:
            nearest = min(nearest, self._tell_at)
        if self._overdue is not None:
            nearest = min(nearest, self._end_at)
        shortest = min(SHORTEST_BEAT_PAUSE * 2.0 ** min(self._failures, 10), LONGEST_RENEWAL_PAUSE)
        return min(max(nearest - monotonic(), shortest), CANCELLATION_LOOK_INTERVAL)


def _leased(jobs: Sequence[Delivery]) -> list[Delivery]:
    """Return the jobs that can be lost: all but those delivered at most once."""
    return [job for job in jobs if not term_of(job).is_once]


def send_progress(executor: Executor, jobs: Sequence[Delivery]) -> Settled:
    """Store what the handlers of jobs of one queue have told; return the outcome for each job."""
    told = [take_unsent(job) for job in jobs]
    try:
        outcomes: Settled = executor.run(ops_of(jobs[0]).beat(jobs, told))
    except BaseException:
        for job, unsent in zip(jobs, told, strict=True):
            put_back(job, unsent)
        raise
    for job, unsent, outcome in zip(jobs, told, outcomes, strict=True):
        if outcome is Outcome.WATCHED:
            put_back_progress(job, unsent)
    return outcomes


def renew_each(executor: Executor, lease: float, jobs: Sequence[Delivery]) -> Renewal:
    """Renew the leases of jobs of one queue. If that is refused, renew those of each half.

    So a job whose lease can't be renewed does not end those of the others. After a refusal the
    smallest part and the largest part follow in turn: the smallest finds a job to leave out next
    time, and the largest finds the jobs beside many such jobs.

    Args:
        executor: of the queue's node.
        lease: seconds.
        jobs: of one epoch.
    """
    renewal, parts, refusals = Renewal(), [jobs], MOST_REFUSED_RENEWALS
    while parts and refusals:
        parts.sort(key=len)
        part = parts.pop(0 if refusals % 2 else -1)
        try:
            renewal.lost += renew_leases(executor, lease, part)
        except Exception as error:  # noqa: BLE001  # tried again, until the leases end
            renewal.why = f"{type(error).__name__}: {error}"
            if about_server(error):
                renewal.is_reached = False
                return renewal
            refusals -= 1
            half = 0 if is_damage(error) else len(part) // 2
            if half:
                parts += [part[:half], part[half:]]
            else:
                renewal.refused += part
        else:
            renewal.answered += part
    renewal.left = [job for part in parts for job in part]
    return renewal


def renew_leases(executor: Executor, lease: float, jobs: Sequence[Delivery]) -> Sequence[Delivery]:
    """Renew the leases of jobs of one queue; return the jobs that are lost.

    If the server was not reached, the connection is closed.
    """
    ops, sent = ops_of(jobs[0]), monotonic()
    try:
        call = ops.renew(jobs, round(lease * 1000))
        reply = executor.run(call)
    except WrongEpoch:  # the queue was deleted and re-created: it has none of these jobs
        return jobs
    except Exception as error:
        if about_server(error):
            executor.close()
        raise
    begun = call.resent or sent
    return renew(jobs, reply.untils, now_ms=reply.now, sent=begun, heard=monotonic())


def _is_away(job: Delivery) -> bool:
    """Return True if the job's node, one of several, is down. It must not delay the others."""
    node = ops_of(job).node
    return node is not None and not node.state.is_up
