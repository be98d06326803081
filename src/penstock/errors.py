"""The exceptions of penstock. Redis's other exceptions pass through unchanged.

Expected outcomes are values: a duplicate, for example, is a result that names the existing job.
Bad input and broken promises are exceptions. Every one of them is a `PenstockError`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

from redis.exceptions import (
    AuthenticationError,
    InvalidResponse,
    NoPermissionError,
    ReadOnlyError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

__all__ = [
    "AccessDenied",
    "AckNotReplicated",
    "BadArgument",
    "BadJobId",
    "BatchClosed",
    "BatchLost",
    "BodyTooLarge",
    "CannotSync",
    "CheckpointTaken",
    "ConfigurationError",
    "DeliveryNotReplicated",
    "DuplicateStep",
    "IncompleteEnqueue",
    "IncompleteSettle",
    "JobCancelled",
    "JobExpired",
    "JobFailed",
    "JobGone",
    "JobNotActive",
    "MetaLost",
    "NoSuchDatabase",
    "NodesMissed",
    "NodesUnavailable",
    "NotPermitted",
    "NotRedis",
    "NotReplicated",
    "NotesLost",
    "OutOfMemory",
    "OutcomeUnknown",
    "PenstockError",
    "ProtocolError",
    "QueueClosed",
    "QueueDamaged",
    "QueueFull",
    "QueueInUse",
    "QueueMissing",
    "QueuePartitioned",
    "QueuePaused",
    "ReadOnlyReplica",
    "ResultGone",
    "ResultTimeout",
    "RoleLost",
    "ServerError",
    "ServerTimeout",
    "ServerUnreachable",
    "StaleCall",
    "StaleReceipt",
    "StepError",
    "StepFailed",
    "StepNotKept",
    "StepOverlap",
    "StepTimeout",
    "StepsChanged",
    "TooLate",
    "UndecodableBody",
    "UnsupportedServer",
    "UnsupportedVersion",
    "WrongEpoch",
    "WrongNode",
    "WrongQueue",
]


E = TypeVar("E", bound="PenstockError")
CHANGING_OUTCOMES = ("done", "dead", "cancelled")
"""Outcomes of jobs that a call has changed."""


class PenstockError(Exception):
    """Base class of every error that penstock raises. Errors can be pickled and copied."""

    _made_from: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls: type[E], *args: Any, **kwargs: Any) -> E:
        """Remember the arguments for copies."""
        error = super().__new__(cls, *args, **kwargs)
        error._made_from = args, kwargs
        return error

    def __reduce__(self) -> tuple[Any, ...]:
        args, kwargs = self._made_from
        return partial(type(self), *args, **kwargs), (), vars(self)


class BadArgument(PenstockError, ValueError):
    """An argument has a value that can't be used; nothing was written.

    Args:
        argument: name of the parameter.
        value: the value that was passed.
        reason: why it is refused, or which values are accepted.
    """

    def __init__(self, argument: str, value: Any, reason: str) -> None:
        try:
            shown = repr(value)
        except (RecursionError, ValueError):  # nested too deep, an int of too many digits
            shown = f"<{type(value).__name__}>"
        if len(shown) > 120:
            shown = shown[:117] + "..."
        super().__init__(f"{argument}={shown}: {reason}")
        self.argument = argument
        self.value = value
        self.reason = reason


class BadJobId(BadArgument):
    """A job id is malformed (protocol/core.md, Job id)."""


class WrongNode(BadJobId):
    """A job id names a node that this client does not know. Add that node to the client's URLs."""


class WrongQueue(BadJobId):
    """A job id belongs to another queue."""


class WrongEpoch(BadJobId):
    """A job id belongs to an earlier queue of this name, which was deleted and created again."""


class ConfigurationError(PenstockError):
    """The configuration of the client or the server does not allow what was asked for."""


class UnsupportedServer(ConfigurationError):
    """The server is older than Redis 6.2."""


class CannotSync(ConfigurationError):
    """The server can't confirm that a write is on disk; nothing was written."""


class UnsupportedVersion(PenstockError):
    """The queue uses a newer version of the protocol; nothing was written. Upgrade penstock."""


class ProtocolError(PenstockError):
    """A reply does not belong to the call that was sent; the connection was closed."""


class QueueDamaged(PenstockError):
    """Keys of the queue contradict each other. `penstock doctor` shows what is wrong."""


class MetaLost(QueueDamaged):
    """The queue has jobs, but its meta key is lost and can't be restored from the registry."""


class BatchClosed(PenstockError):
    """A batch takes no more jobs: it is closed, abandoned (an hour without a job), or has ended."""


class QueueClosed(PenstockError):
    """The queue is closed.

    For a producer: the job was not added. For a consumer: no job is left to deliver.
    """


class QueueFull(PenstockError):
    """The queue holds as many jobs as its limit allows; the job was not added.

    Args:
        text: the message.
        waiting: number of waiting jobs.
        limit: the queue's limit; 0 = not known.
        expired: number of expired jobs that the refused call removed; try again if there are any.
    """

    def __init__(self, text: str = "", waiting: int = 0, limit: int = 0, expired: int = 0) -> None:
        super().__init__(text)
        self.waiting = waiting
        self.limit = limit
        self.expired = expired


class QueueMissing(PenstockError):
    """The queue does not exist, or was deleted while the call waited; nothing was written."""


class QueuePartitioned(PenstockError):
    """The queue was opened with a wrong number of partitions; nothing was written.

    Args:
        queue: name of the queue.
        partitions: number of partitions that it has; None = it is an ordinary queue.
        opened: number that it was opened with; None = it was opened as an ordinary queue.
    """

    def __init__(self, queue: str, partitions: int | None, opened: int | None = None) -> None:
        has = "no partitions" if partitions is None else f"{partitions} partitions"
        form = "without any" if opened is None else f"with {opened}"
        way = "omit partitions=" if partitions is None else f"pass partitions={partitions}"
        super().__init__(f"queue {queue!r} has {has}, but was opened {form}: {way}")
        self.queue = queue
        self.partitions = partitions
        self.opened = opened


class QueueInUse(PenstockError):
    """Another client holds the exclusive role that the call needs.

    Args:
        role: "producer" or "consumer".
        holder: the client that holds the role, or held it last; "" = not known.
        left: seconds until its lease ends unless it is renewed; 0 = not known.
    """

    def __init__(self, role: str, holder: str = "", left: float = 0.0) -> None:
        by = holder or "an unknown client"
        super().__init__(f"the {role} role is held by {by}: try again when it is free")
        self.role = role
        self.holder = holder
        self.left = left


class ServerError(PenstockError):
    """The server can't be reached, or refuses this client; see the subclasses.

    Each of them is also the error of redis-py that it explains.
    """


class ServerUnreachable(ServerError, RedisConnectionError):
    """No connection to the server; it was tried again for `retry_for` seconds."""


class ServerTimeout(ServerError, RedisTimeoutError):
    """The server did not answer in time."""


class AccessDenied(ServerError, AuthenticationError):
    """The server wants a password, or refuses the one it was sent."""


class NotPermitted(ServerError, NoPermissionError):
    """The server's rules forbid a command or a key, or it or a proxy does not have the command."""


class NotRedis(ServerError, InvalidResponse):
    """The program at this address is not a Redis server."""


class NoSuchDatabase(ServerError, ResponseError):
    """The server has no database with the number in the URL."""


class ReadOnlyReplica(ServerError, ReadOnlyError):
    """The server is a read-only replica of another one."""


class OutcomeUnknown(PenstockError, RedisConnectionError):
    """The connection failed after the call was sent, so its outcome is not known.

    The call was not repeated, because it must not run twice; or it was long, and the server closed
    the connection at each repeat: the body may be too large for it or a proxy. The cause
    (`__cause__`) is redis-py's exception. Or a signal was repeated, and the job was gone then.
    """


class RoleLost(PenstockError):
    """The client no longer holds the exclusive role: its lease ended, or it was released.

    The call changed nothing.

    Args:
        role: "producer" or "consumer".
    """

    def __init__(self, role: str) -> None:
        super().__init__(f"this client no longer holds the {role} role: take the role again")
        self.role = role


class CheckpointTaken(PenstockError):
    """Another run of the query uses this checkpoint now: a restart, or a run on a copy of it.

    The call changed nothing; the batch of the checkpoint belongs to the other run.
    """


class BatchLost(PenstockError):
    """The server has no record of a checkpoint's batch; no job is lost, some may run twice.

    Causes are a failover that lost writes, a deleted queue, or more than a week without a call.
    The jobs of the batch are in the queue, or return to it when their leases end.
    """


class QueuePaused(PenstockError):
    """The queue is paused for producers; the job was not added."""


class OutOfMemory(PenstockError):
    """The server has reached maxmemory and refused the enqueue; nothing was written.

    After a lost reply this is the answer to a repeat: see protocol/durability.md.
    """


class BodyTooLarge(PenstockError):
    """The server refuses a call because of its size; nothing was written.

    Send a smaller body, or keep it elsewhere and send its address.
    """


class StaleCall(PenstockError):
    """A later call of the same producer ran first, so this call did nothing."""


class StaleReceipt(PenstockError):
    """This delivery of the job has ended; the call changed nothing.

    Another worker may hold the job now.

    Args:
        job_id: id of the job.
        operation: name of the call.
        receipt: receipt of this delivery.
        current: receipt of the delivery that holds the job now; None = none, or not known.
    """

    def __init__(
        self, job_id: str, operation: str, receipt: str = "", current: str | None = None
    ) -> None:
        now = "this delivery has ended; nothing changed"
        if current is not None:
            now = f"a later delivery holds the job, receipt {current}; nothing changed"
        super().__init__(f"{operation} of {job_id} with receipt {receipt or '?'}: {now}")
        self.job_id = job_id
        self.operation = operation
        self.receipt = receipt
        self.current = current


class JobGone(PenstockError):
    """The job does not exist: it finished, expired or was deleted. The call changed nothing."""


class JobNotActive(PenstockError):
    """The call needs an active job, and this one is in another state; nothing changed."""


class TooLate(PenstockError):
    """The lease can't be extended: more than half of the job's ttl has passed."""


class NotesLost(PenstockError):
    """The server has other notes of the job than this run: a failover has lost some. It is ended.

    The step of this call has run, and was not noted. The next attempt goes on behind the last note.
    """


class StepError(PenstockError):
    """A step of a handler can't be taken, see the subclasses; also one of a job with lease 0.

    If the handler does not catch it, the job becomes a dead letter at once, as another attempt
    would end likewise. Correct the handler, then redrive the job: it keeps the values of its steps.
    """


class DuplicateStep(StepError):
    """A run uses the name of a step twice; the second step has not begun.

    In a loop, put the id of the item into the name.
    """


class StepsChanged(StepError):
    """The notes of the job are not those of this handler, or of this version; no step has begun."""


class StepOverlap(StepError):
    """A step begins while another one of the run has not ended: inside of it, or beside it."""


class StepNotKept(StepError):
    """The value of a step can't be kept: it is not JSON, or too large, or one of too many.

    Return less, such as the address of the value. The effects of the step's function have happened.
    """


class StepTimeout(StepError, TimeoutError):
    """No signal came before the end of the timeout of `steps.wait`; a promote ends it earlier.

    That is the outcome of the wait in all later runs, until a redrive: then the job waits again.
    """


class StepFailed(StepError):
    """A job that `steps.call` or `steps.gather` has called has ended without a value.

    All later runs see the same end. A redrive of the caller calls the job again, if no other step
    was noted behind it.

    Args:
        step: the name of the step.
        job_id: the called job; empty = there is none, as there is no server.
        state: "dead", "cancelled", "expired", "removed" (deleted or purged); "done" = its value was
            not kept.
        error: of a dead letter; or why there is no value.
    """

    def __init__(self, step: str, *, job_id: str, state: str, error: str) -> None:
        ended = {"dead": "is a dead letter", "removed": "was removed"}.get(state, f"is {state}")
        super().__init__(f"step {step!r}: job {job_id} {ended}{': ' * bool(error)}{error}")
        self.step = step
        self.job_id = job_id
        self.state = state
        self.error = error


class UndecodableBody(PenstockError, ValueError):
    """The body can't be decoded: its codec is unknown, or its bytes are not valid for the codec.

    `job.raw` returns the bytes.
    """


class NotReplicated(PenstockError):
    """The write was not confirmed in time: by too few replicas, or not by the disk.

    Args:
        wanted: number of replicas asked for.
        got: number of replicas that confirmed.
        withdrawn: True = the jobs were removed again and are never delivered. False = some jobs
            remain: they were delivered already, or the call updated existing jobs. None = not
            known, because the connection failed.
        fsynced: True = the write is on the server's disk, and on the disks of the replicas that
            confirmed. None = this was not asked for.
        connected: number of connected replicas, if there were too few and the call was refused at
            once: nothing was added. None = the call waited for confirmations.
    """

    def __init__(
        self,
        wanted: int,
        got: int,
        withdrawn: bool | None = True,
        fsynced: bool | None = None,
        connected: int | None = None,
    ) -> None:
        outcome = "the jobs were withdrawn" if withdrawn else "not all jobs could be withdrawn"
        if withdrawn is None:
            outcome = "it is not known whether the jobs were withdrawn"
        text = f"{_confirmed(wanted, got, fsynced)}: {outcome}"
        if connected is not None:
            text = (
                f"{connected} of {wanted} replicas are connected, nothing was added: connect more "
                "replicas, or ask for fewer"
            )
        super().__init__(text)
        self.wanted = wanted
        self.got = got
        self.withdrawn = withdrawn
        self.fsynced = fsynced
        self.connected = connected


class AckNotReplicated(NotReplicated):
    """The jobs were acknowledged on the primary, but the ack was not confirmed in time.

    Do not repeat the call: `outcomes` has its results. If the server fails now, jobs whose ack was
    not confirmed may be delivered again.

    Args:
        outcomes: the outcomes of all jobs of the call, as `ack` returns them.
        confirmed: the number of jobs, counted from the first, whose ack was confirmed.
        wanted: number of replicas asked for.
        got: number of replicas that confirmed the first unconfirmed jobs.
        fsynced: whether the server has these on disk; None = this was not asked for.

    `withdrawn` is False.
    """

    def __init__(
        self, outcomes: Any, confirmed: int, wanted: int, got: int, fsynced: bool | None = None
    ) -> None:
        super().__init__(wanted, got, False, fsynced)
        what = _confirmed(wanted, got, fsynced)
        text = f"the ack of {confirmed} of {len(outcomes)} jobs is safe"
        self.args = (f"{what}: {text}, the others may be delivered again after a failover",)
        self.outcomes = outcomes
        self.confirmed = confirmed


class DeliveryNotReplicated(NotReplicated):
    """A reserve that waits for confirmations did not get them for jobs with `lease=0`.

    No job was taken if `given_up` is empty. The jobs in it stay active on the server until their
    ttl ends, and will not be delivered again. They must not be processed: if a replica without the
    delivery becomes the primary, it delivers them.

    Args:
        wanted: number of replicas asked for.
        got: number of replicas that confirmed.
        fsynced: whether the server has the delivery on disk; None = this was not asked for.
        connected: number of connected replicas, if there were too few and nothing was taken.
        jobs: the other jobs that the call has taken: process them as usual.
        given_up: the deliveries that were not confirmed.

    `withdrawn` is False.
    """

    def __init__(
        self,
        wanted: int,
        got: int,
        fsynced: bool | None = None,
        connected: int | None = None,
        *,
        jobs: Iterable[Any] = (),
        given_up: Iterable[Any] = (),
    ) -> None:
        super().__init__(wanted, got, False, fsynced, connected)
        self.jobs: list[Any] = list(jobs)
        self.given_up: list[Any] = list(given_up)
        told = _confirmed(wanted, got, fsynced)
        if connected is not None:
            told = f"{connected} of {wanted} replicas are connected, no job was taken"
            told += ": connect more replicas, or ask for fewer"
        elif not self.given_up:
            told += ", no job was taken: wait until they do, or ask for fewer"
        else:
            told += f": {len(self.given_up)} jobs with lease=0 are given up as delivered"
            told += f"; process the other {len(self.jobs)}, in `jobs`" if self.jobs else ""
        self.args = (told,)


def _confirmed(wanted: int, got: int, fsynced: bool | None) -> str:
    if fsynced is None:
        return f"{got} of {wanted} replicas confirmed"
    disk = "is on the server's disk" if fsynced else "was not on the server's disk in time"
    return f"the write {disk}" + (f", {got} of {wanted} replicas confirmed" if wanted else "")


class NodesUnavailable(PenstockError, RedisConnectionError):
    """No node could run the call; nothing was done.

    Args:
        what: the first part of the message.
        reasons: address of each node -> why it did not run the call.
    """

    def __init__(self, what: str, reasons: Mapping[str, str] = MappingProxyType({})) -> None:
        told = "; ".join(f"{address}: {reason}" for address, reason in reasons.items())
        super().__init__(f"{what}: {told}" if told else what)
        self.what = what
        self.reasons = dict(reasons)


class NodesMissed(PenstockError):
    """Some nodes did not answer a call to several nodes; the others did their part.

    Args:
        unreachable: address of each node that did not answer -> the reason.
        results: the result of the other nodes; its type depends on the call.
    """

    def __init__(self, unreachable: Mapping[str, str], results: Any = None) -> None:
        told = "; ".join(f"{address}: {reason}" for address, reason in unreachable.items())
        super().__init__(f"these nodes did not answer, the others did their part: {told}")
        self.unreachable = dict(unreachable)
        self.results = results


class IncompleteEnqueue(PenstockError):
    """A bulk enqueue failed after some of its chunks were accepted.

    Args:
        results: the results of the accepted jobs, in order. In a partitioned queue, with keys or
            dedup ids: the results of all bodies up to the last accepted one. A body that was not
            accepted has no id and the state "missing".

    The cause (`__cause__`) is the error of the chunk that failed. The jobs of that chunk were
    not added, unless the cause is a connection error: then their outcome is unknown.
    """

    def __init__(self, results: Any) -> None:
        count = len(results) - getattr(results, "missing", 0)
        super().__init__(f"{count} jobs were added before the call failed")
        self.results = results


class IncompleteSettle(PenstockError):
    """A call about many jobs failed after some of its chunks were done.

    A chunk is 1000 jobs, or the jobs of one partition or queue.

    Args:
        outcomes: the outcomes of the jobs of the chunks before, in the order of the call. For
            several partitions or queues: the outcomes of all jobs, `Outcome.UNKNOWN` for those of
            chunks that failed, or were not sent as they are on the same server.
        not_replicated: the error about missing confirmations of these outcomes, for an ack with
            `replicas` or `fsynced`; None = they were confirmed, or no confirmation was asked for.

    The cause (`__cause__`) is the error of the chunk that failed. The jobs of that chunk did not
    change, unless the cause is a connection error: then their outcome is unknown.
    """

    def __init__(self, outcomes: Any, not_replicated: AckNotReplicated | None = None) -> None:
        done = sum(not isinstance(one, str) or one in CHANGING_OUTCOMES for one in outcomes)
        told = f"{done} jobs were done before the call failed"
        if not_replicated is not None:
            told += f", {not_replicated.confirmed} of them confirmed"
        super().__init__(told)
        self.outcomes = outcomes
        self.not_replicated = not_replicated


class JobFailed(PenstockError):
    """`result` was asked of a job that is a dead letter.

    Args:
        job_id: the job.
        error: the error of its last attempt, or the reason for which it was given up.
        attempts: number of failed attempts.
    """

    def __init__(self, job_id: str, error: str, attempts: int) -> None:
        super().__init__(f"job {job_id} is a dead letter after {attempts} attempts: {error}")
        self.job_id = job_id
        self.error = error
        self.attempts = attempts


class JobCancelled(PenstockError):
    """`result` was asked of a job that was cancelled."""


class JobExpired(PenstockError):
    """`result` was asked of a job whose ttl ended before it was done."""


class ResultGone(PenstockError):
    """There is no result: the job is gone and nothing is kept of it, or its value was not kept."""


class ResultTimeout(PenstockError, TimeoutError):
    """The job had not ended when the timeout of `result` was over. It goes on."""
