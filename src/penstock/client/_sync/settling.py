# From src/penstock/client/_async/settling.py by tools/unasync.py; do not edit.
"""Settling jobs of one node: check their names, and send them in chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from penstock.client._sync.nodes.one_part import OnePart
from penstock.core.calls.call import Call
from penstock.core.calls.operations import QueueOps
from penstock.core.jobs.enqueued import Enqueued
from penstock.core.jobs.hints import Intent
from penstock.core.jobs.job import Delivery, JobName, is_renewed
from penstock.core.jobs.outcomes import OUTCOME_OF_CODE, Outcome, Settled
from penstock.core.jobs.views import JobView
from penstock.core.values.checks import BATCH
from penstock.core.values.confirmations import Confirmed, Wait
from penstock.errors import AckNotReplicated, BadArgument, IncompleteSettle
from penstock.wire.codes import Code

__all__ = ["BuildCall", "check_jobs", "extend_each", "settle_each"]


HANDLES = (Enqueued, JobView)
"""Objects that stand for the id of a job."""
BuildCall: TypeAlias = Callable[[QueueOps, list[JobName]], Call[Settled]]
"""Builds the call of a script on jobs."""


def check_jobs(
    argument: str, jobs: object, *, most: int | None = None, ops: QueueOps | None = None
) -> list[JobName]:
    """Return the jobs as a list.

    Args:
        argument: the name of the argument.
        jobs: its value.
        most: the most jobs that the call takes; None = it is split into several calls.
        ops: check the ids of all jobs by these, if there are several calls.

    Raises:
        BadArgument: not an iterable of jobs or ids, or more than `most`.
        BadJobId: an id is malformed, or of another queue or node.
    """
    if isinstance(jobs, (Delivery, str, bytes)) or not isinstance(jobs, Iterable):
        raise BadArgument(argument, jobs, "must be an iterable of jobs or ids")
    names = list(jobs)
    for at, name in enumerate(names):
        if isinstance(name, HANDLES):
            names[at] = name.id
    if most is not None and len(names) > most:
        raise BadArgument(argument, f"<{len(names)} jobs>", f"must be at most {most}")
    if ops is not None and len(names) > BATCH:
        for name in names:
            ops.number_of(name)
    return names


def settle_each(
    part: OnePart,
    jobs: Iterable[JobName],
    build: BuildCall,
    *,
    resent_code: int = Code.ENDED,
    wait: Wait | None = None,
    intent: Intent | None = None,  # noqa: ARG001  # a queue of several parts uses it
) -> Settled:
    """Run a script on jobs, in chunks; once a chunk is not confirmed, wait for no later one.

    Args:
        part: a part of the queue.
        jobs: deliveries, or ids.
        build: makes the call of a chunk.
        resent_code: of a job with which a call was done before it was sent again.
        wait: the confirmations to wait for.
        intent: hint that another node keeps if the jobs' node is down; None = keep none.

    Raises:
        AckNotReplicated: a chunk was not confirmed; all chunks have run.
        IncompleteSettle: a chunk failed after others had run.
    """
    executor = part.executor
    if not executor.id:
        part.connect()
    names = check_jobs("jobs", jobs, ops=part.ops)
    if not names:
        return Settled(names)
    whole: Settled | None = None
    short: tuple[Wait, int, Confirmed] | None = None
    try:
        for at in range(0, len(names), BATCH):
            call = build(part.ops, names[at : at + BATCH])
            if wait is not None and short is None:
                call.wait = wait
            settled = executor.run(call)
            got = call.confirmed
            settled.replicas = got.replicas
            if call.resent:
                settled = settled.after_resend(resent_code)
            if call.wait is not None and not got.covers(call.wait.expected, call.wait):
                short = (call.wait, 0 if whole is None else len(whole), got)
            whole = settled if whole is None else whole.joined(settled)
    except Exception as error:
        if whole is not None:
            unconfirmed = None if short is None else _not_replicated(whole, *short)
            raise IncompleteSettle(whole, unconfirmed) from error
        raise
    assert whole is not None
    if short is not None:
        raise _not_replicated(whole, *short)
    return whole


def _not_replicated(whole: Settled, wait: Wait, confirmed: int, got: Confirmed) -> AckNotReplicated:
    """Return the error of a call, one chunk of which was not confirmed.

    Args:
        whole: outcomes of all chunks that have run.
        wait: the confirmations that were asked for.
        confirmed: number of jobs in the chunks before that chunk.
        got: the confirmations of that chunk.
    """
    fsynced = got.fsynced if wait.fsynced else None
    return AckNotReplicated(
        whole, confirmed, wanted=wait.expected, got=got.replicas, fsynced=fsynced
    )


def extend_each(
    part: OnePart, jobs: list[JobName], *, span: int, late: bool
) -> list[float | Outcome]:
    """Renew leases of jobs of one node, in chunks; see `Queue.extend`.

    Args:
        part: a part of the queue.
        jobs: deliveries, or ids.
        span: ms, 0 = each job's own lease.
        late: whether jobs in the second half of their ttl are extended.
    """
    part.connect()
    names = check_jobs("jobs", jobs, ops=part.ops)
    results: list[float | Outcome] = []
    for start in range(0, len(names), BATCH):
        chunk = names[start : start + BATCH]
        if any(map(is_renewed, chunk)):  # the worker relies on the end that it knows
            call = part.ops.renew(chunk, span)
        else:
            call = part.ops.extend(chunk, span, late=late)
        reply = part.executor.run(call)
        results += [
            OUTCOME_OF_CODE[until] if until <= Code.DIED else (until - reply.now) / 1000
            for until in reply.untils
        ]
    return results
