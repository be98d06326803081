"""The exception tree. Redis's own exceptions pass through unchanged.

Expected outcomes are values (a duplicate names the existing job); a broken promise or bad
input is one of these, and every one of them is a `PenstockError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError

__all__ = [
    "AckNotReplicated",
    "BadArgument",
    "BadJobId",
    "BatchLost",
    "CannotSync",
    "CheckpointTaken",
    "ConfigurationError",
    "EmbeddedServerError",
    "IncompleteEnqueue",
    "IncompleteSettle",
    "JobExpired",
    "JobGone",
    "JobNotActive",
    "MetaLost",
    "NodesMissed",
    "NodesUnavailable",
    "NotReplicated",
    "OperationUnblocked",
    "OutOfMemory",
    "OutcomeUnknown",
    "PenstockError",
    "ProtocolError",
    "PutNotReplicated",
    "QueueClosed",
    "QueueDamaged",
    "QueueEmpty",
    "QueueExists",
    "QueueFull",
    "QueueInUse",
    "QueueMissing",
    "QueuePartitioned",
    "QueuePaused",
    "RoleLost",
    "StaleCall",
    "StaleReceipt",
    "TooLate",
    "UndecodableBody",
    "UnsupportedServer",
    "UnsupportedVersion",
    "WrongEpoch",
    "WrongNode",
    "WrongQueue",
]


class PenstockError(Exception):
    """Root of every error that penstock itself raises."""


class BadArgument(PenstockError, ValueError):
    """An argument can't be used; nothing was written.

    Args:
        argument: the parameter's name as the caller wrote it.
        value: what was passed.
        reason: what would have been accepted.
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

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.argument, self.value, self.reason))


class BadJobId(BadArgument):
    """A job id is malformed (protocol/core.md, Job id)."""


class WrongNode(BadJobId):
    """A job id names a node that this client does not know."""


class WrongQueue(BadJobId):
    """A job id belongs to another queue."""


class WrongEpoch(BadJobId):
    """A job id belongs to an earlier life of the queue (removed when idle, made again since)."""


class ConfigurationError(PenstockError):
    """The client or the server is set up in a way that can't keep the promises."""


class UnsupportedServer(ConfigurationError):
    """The server is older than Redis 6.2."""


class CannotSync(ConfigurationError):
    """The server can't tell truthfully whether a write is on disk; nothing was written."""


class UnsupportedVersion(PenstockError):
    """The queue was written by a newer version of the protocol; nothing was written."""


class ProtocolError(PenstockError):
    """A reply is not the answer to the call that was sent; the connection was dropped."""


class QueueDamaged(PenstockError):
    """Keys of the queue contradict each other (meta lost while jobs exist)."""


class MetaLost(QueueDamaged):
    """Jobs exist but the queue's meta does not; the client restores it if the registry knows it."""


class QueueClosed(PenstockError):
    """The queue is closed.

    To a producer: the job was not added. To a consumer: nothing is left that could be delivered.
    """


class QueueFull(PenstockError):
    """The bound of the queue is reached; the job was not added.

    Args:
        text: what is said.
        waiting: how many jobs wait.
        limit: how many may; 0 = it is not known.
    """

    def __init__(self, text: str = "", waiting: int = 0, limit: int = 0) -> None:
        super().__init__(text)
        self.waiting = waiting
        self.limit = limit

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (*self.args, self.waiting, self.limit))


class QueueEmpty(PenstockError):
    """There is no message, or there was none in time."""


class QueueExists(PenstockError):
    """The queue is there, or what is left of an earlier one; nothing was written."""


class QueueMissing(PenstockError):
    """There is no such queue, or it was deleted while the call waited; nothing was written."""


class OperationUnblocked(PenstockError):
    """`unblock` ended the call while it waited; nothing was put or taken."""


class QueuePartitioned(PenstockError):
    """The queue has another number of partitions than it was opened with; nothing was written.

    Args:
        queue: its name.
        partitions: how many it has; None = it is an ordinary queue.
        opened: how many it was opened with; None = as an ordinary queue.
    """

    def __init__(self, queue: str, partitions: int | None, opened: int | None = None) -> None:
        has = "no partitions" if partitions is None else f"{partitions} partitions"
        form = "without any" if opened is None else f"with {opened}"
        super().__init__(f"queue {queue!r} has {has}, and was opened {form}")
        self.queue = queue
        self.partitions = partitions
        self.opened = opened

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.queue, self.partitions, self.opened))


class QueueInUse(PenstockError):
    """Another party has the role that the call needs.

    Args:
        role: "producer" or "consumer".
        holder: who has it, or had it last, as far as is known.
    """

    def __init__(self, role: str, holder: str = "") -> None:
        super().__init__(f"the {role} role is taken by {holder or 'a party that is not known'}")
        self.role = role
        self.holder = holder

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.role, self.holder))


class OutcomeUnknown(PenstockError, RedisConnectionError):
    """The connection failed after the call was sent, and what must not run twice is not repeated.

    It has run, or will not run; the cause (`__cause__`) is redis-py's exception.
    """


class RoleLost(PenstockError):
    """The exclusive role that the call bears has ended: its lease did, or it was given back.

    The call did nothing, whether somebody else has the role by now or not.

    Args:
        role: "producer" or "consumer".
    """

    def __init__(self, role: str) -> None:
        super().__init__(f"the {role} role is not held any more")
        self.role = role

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.role,))


class CheckpointTaken(PenstockError):
    """Somebody else has taken the checkpoint over: a later life of the query, or one from a copy.

    The call did nothing; the checkpoint's batch is the other's.
    """


class BatchLost(PenstockError):
    """The server has forgotten a checkpoint's batch; no job is lost, but some may be done twice.

    After a failover that lost it, a removal of the queue, or more than a week without a call: its
    jobs are in the queue, or will be when their leases end.
    """


class QueuePaused(PenstockError):
    """The queue is paused for producers; the job was not added."""


class OutOfMemory(PenstockError):
    """The server is at maxmemory and refused the enqueue; nothing was written."""


class StaleCall(PenstockError):
    """A later call of the same producer ran before this one, which therefore did nothing."""


class StaleReceipt(PenstockError):
    """The delivery has ended, and perhaps a later one holds the job: this call changed nothing.

    Args:
        job_id: the job.
        operation: what was tried.
        receipt: of this delivery.
        current: of the delivery that holds the job now; None = there is none, or it can't be told.
    """

    def __init__(
        self, job_id: str, operation: str, receipt: str = "", current: str | None = None
    ) -> None:
        now = "this delivery has ended"
        if current is not None:
            now = f"a later delivery holds the job, with receipt {current}"
        super().__init__(f"{operation} of {job_id} with receipt {receipt or '?'}: {now}")
        self.job_id = job_id
        self.operation = operation
        self.receipt = receipt
        self.current = current

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.job_id, self.operation, self.receipt, self.current))


class JobGone(PenstockError):
    """The job finished, expired or was deleted before this call, which changed nothing."""


class JobExpired(PenstockError):
    """The job's ttl has ended, so it can't be brought back."""


class JobNotActive(PenstockError):
    """The call needs a delivered job and this one is in another state; nothing changed."""


class TooLate(PenstockError):
    """More than half of the job's ttl has passed, so its lease is not extended by hand any more."""


class UndecodableBody(PenstockError, ValueError):
    """The bytes of a body are not what its codec says, or nobody knows the codec.

    They can be had as `job.raw`.
    """


class NotReplicated(PenstockError):
    """Fewer replicas than asked for confirmed the write in time, or it was not on disk in time.

    Args:
        wanted: replicas asked for.
        got: replicas that confirmed.
        withdrawn: True = the jobs were taken back, nobody gets them; False = something stays: some
            of them had been delivered meanwhile, or others were updated; None = not known, as the
            connection failed.
        fsynced: whether the server has them on disk; None = that was not asked for. If it was, the
            replicas that confirmed have them on disk, too.
        connected: how many replicas follow the server, when those were too few and the call was
            therefore refused at once: nothing was added. None = it was waited for.
    """

    def __init__(
        self,
        wanted: int,
        got: int,
        withdrawn: bool | None = True,
        fsynced: bool | None = None,
        connected: int | None = None,
    ) -> None:
        outcome = "withdrawn" if withdrawn else "not all of it could be withdrawn"
        if withdrawn is None:
            outcome = "whether they were withdrawn is not known"
        text = f"{_confirmed(wanted, got, fsynced)}: {outcome}"
        if connected is not None:
            text = (
                f"{connected} of {wanted} replicas are connected: nothing was added; ask for "
                "fewer, or see to the replicas"
            )
        super().__init__(text)
        self.wanted = wanted
        self.got = got
        self.withdrawn = withdrawn
        self.fsynced = fsynced
        self.connected = connected

    def __reduce__(self) -> tuple[Any, ...]:
        state = (self.wanted, self.got, self.withdrawn, self.fsynced, self.connected)
        return (type(self), state)


class AckNotReplicated(NotReplicated):
    """Jobs were acknowledged, and fewer replicas than asked for confirmed it in time.

    That can't be taken back, and need not be repeated: `outcomes` says what was done, on the
    primary. The jobs whose end was not confirmed come back if a replica takes the primary's place
    that has not got it (with `fsynced`: or if the server falls now).

    Args:
        outcomes: those of all jobs of the call, as `ack` returns them.
        confirmed: how many of them, from the first, were confirmed as asked for.
        wanted: replicas asked for.
        got: replicas that confirmed the first jobs behind those.
        fsynced: whether the server has these on disk; None = that was not asked for.

    `withdrawn` is False.
    """

    def __init__(
        self, outcomes: Any, confirmed: int, wanted: int, got: int, fsynced: bool | None = None
    ) -> None:
        super().__init__(wanted, got, False, fsynced)
        what = _confirmed(wanted, got, fsynced)
        text = f"the jobs are acknowledged, and may come back; {confirmed} of {len(outcomes)} can't"
        self.args = (f"{what}: {text}",)
        self.outcomes = outcomes
        self.confirmed = confirmed

    def __reduce__(self) -> tuple[Any, ...]:
        return (
            type(self),
            (self.outcomes, self.confirmed, self.wanted, self.got, self.fsynced),
        )


class PutNotReplicated(NotReplicated):
    """A message was put, and fewer replicas than asked for confirmed it in time.

    It stays in the queue of the primary and can be taken there: putting it again puts it twice. It
    is lost if a replica that has not got it takes the primary's place.

    Args:
        wanted: replicas asked for.
        got: replicas that confirmed.

    `withdrawn` is False.
    """

    def __init__(self, wanted: int, got: int) -> None:
        super().__init__(wanted, got, False)
        text = "the message was put, and stays in the queue; do not put it again"
        self.args = (f"{_confirmed(wanted, got, None)}: {text}",)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.wanted, self.got))


def _confirmed(wanted: int, got: int, fsynced: bool | None) -> str:
    """What was confirmed, in words."""
    if fsynced is None:
        return f"{got} of {wanted} replicas confirmed"
    disk = "it is on the server's disk" if fsynced else "it was not on the server's disk in time"
    return f"{disk}, {got} of {wanted} replicas confirmed" if wanted else disk


class NodesUnavailable(PenstockError, RedisConnectionError):
    """No node could do what was asked, and nothing was done.

    Args:
        what: what was asked.
        reasons: address of each node -> why not: it can't be reached, leaves, or has no memory.
    """

    def __init__(self, what: str, reasons: Mapping[str, str] = MappingProxyType({})) -> None:
        told = "; ".join(f"{address}: {reason}" for address, reason in reasons.items())
        super().__init__(f"{what}: {told}" if told else what)
        self.what = what
        self.reasons = dict(reasons)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.what, self.reasons))


class NodesMissed(PenstockError):
    """A call that is about several nodes was not answered by all of them; the others have done it.

    Args:
        unreachable: address of each node that was missed -> why.
        results: what the others have answered; what it is depends on the call.
    """

    def __init__(self, unreachable: Mapping[str, str], results: Any = None) -> None:
        told = "; ".join(f"{address}: {reason}" for address, reason in unreachable.items())
        super().__init__(f"not answered by {told}")
        self.unreachable = dict(unreachable)
        self.results = results

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.unreachable, self.results))


class IncompleteEnqueue(PenstockError):
    """A bulk enqueue failed after some of its chunks were accepted.

    Args:
        results: the results of the jobs that were accepted, in order. With keys, or dedup ids, in
            partitions: of all bodies up to the last that was accepted; those of them that were not
            have no id, and the state "missing".

    The cause (`__cause__`) is the error of the chunk that failed. The jobs of that chunk were
    not added, unless the cause is a connection error: then their outcome is unknown.
    """

    def __init__(self, results: Any) -> None:
        count = len(results) - getattr(results, "missing", 0)
        super().__init__(f"{count} jobs were accepted before the failure")
        self.results = results

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.results,))


class IncompleteSettle(PenstockError):
    """A call about more than 1000 jobs, or jobs of several partitions, failed after some were done.

    Args:
        outcomes: those of the jobs of these chunks, in order: the first of those that were named.
            Of several partitions: those of all jobs, `Outcome.UNKNOWN` where it failed.
        not_replicated: of an ack with `replicas` or `fsynced`, what would have been raised without
            the failure, about the same outcomes; None = those were confirmed, or need not be.

    The cause (`__cause__`) is the error of the chunk that failed. Nothing was done with the jobs of
    that chunk, unless the cause is a connection error: then their outcome is unknown.
    """

    def __init__(self, outcomes: Any, not_replicated: AckNotReplicated | None = None) -> None:
        told = f"{len(outcomes)} jobs were dealt with before the failure"
        if not_replicated is not None:
            told += f", {not_replicated.confirmed} of them confirmed as asked for"
        super().__init__(told)
        self.outcomes = outcomes
        self.not_replicated = not_replicated

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.outcomes, self.not_replicated))


class EmbeddedServerError(PenstockError):
    """No server binary was found, or it did not start."""
