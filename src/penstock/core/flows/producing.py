"""Add jobs, wait for room, make a queue, take jobs back."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from penstock.core.calls.call import Call
from penstock.core.calls.operations import QueueOps
from penstock.core.calls.operations.producing import Added
from penstock.core.calls.refusals import REFUSALS
from penstock.core.flows import effects
from penstock.core.flows.effects import (
    Clock,
    Effect,
    EndWait,
    Listen,
    Register,
    Run,
    SweepDue,
    Unregister,
    poll_interval,
)
from penstock.core.values.confirmations import Confirmed
from penstock.errors import BodyTooLarge, NotReplicated, OutOfMemory, QueueFull, QueueMissing
from penstock.wire.codes import Code

__all__ = ["create_and_run", "enqueue", "new_epoch", "withdraw"]

R = TypeVar("R", bound=Any)


def new_epoch() -> str:
    """Return the epoch of a new queue: 8 random hex digits, never all zero."""
    return f"{secrets.randbits(32) or 1:08x}"


def enqueue(
    ops: QueueOps,
    records: Sequence[bytes],
    make: Callable[..., Call[Added]],
    *,
    block: float | None,
    in_parts: bool,
    clock: Clock,
) -> Generator[Effect, Any, tuple[Added, Confirmed]]:
    """Add records in one script; make the queue first if need be; wait for room if asked to.

    Args:
        make: builds the call from records, `create` (the epoch of a new queue) and `wait_ms`.
        block: seconds to wait for room, 0 = not at all, None = for ever.
        in_parts: whether to add only some of them if not all fit; the reply has the count.

    Returns:
        The reply, and the confirmations.

    Raises:
        QueueFull, QueueClosed, QueuePaused, QueueInUse, RoleLost, QueueDamaged, StaleCall,
        UnsupportedVersion.
    """
    deadline = math.inf if block is None else clock() + block
    todo, waited = records, False
    while True:
        is_last = clock() >= deadline
        build = partial(make, todo, wait_ms=0 if is_last else int(effects.POLL_INTERVAL * 2000))
        todo = records
        try:
            call, reply = yield from create_and_run(ops, build)
        except QueueFull as full:
            room = full.limit - full.waiting
            if full.expired:
                continue
            if is_last:
                yield from _leave_producer(ops, waited)
                raise
            if in_parts and 0 < room < len(records):
                todo = records[:room]
                continue
        except REFUSALS:
            with suppress(Exception):
                yield from _leave_producer(ops, waited)
            raise
        else:
            # The jobs are in: what fails from here on must not say otherwise.
            with suppress(Exception):
                if reply.created:
                    yield SweepDue((), is_new=True)
                yield from _leave_producer(ops, waited)
            return reply, call.confirmed
        waited = True
        yield Listen((ops,), min(deadline, clock() + poll_interval([ops], "producer")), "space")


def create_and_run(
    ops: QueueOps, build: Callable[..., Call[R]]
) -> Generator[Effect, Any, tuple[Call[R], R]]:
    """Run a call, and return it with its reply. If there is no queue, make it first.

    A queue is registered before it exists: a crash in between leaves an entry without a queue.

    Args:
        build: builds the call from `create`, the epoch of a new queue; '' = make none.
    """
    call = build(create="")
    try:
        return call, (yield Run(call))
    except QueueMissing:
        epoch = new_epoch()
    yield Register(ops, epoch)
    call = build(create=epoch)
    try:
        reply = yield Run(call)
    except (*REFUSALS, OutOfMemory, BodyTooLarge) as error:
        # Nothing was written, unless an earlier try, without a reply, has made the queue. The
        # scripts know a repeat, so their own refusals hold for the earlier try, too.
        if isinstance(error, REFUSALS) or not call.resent:
            with suppress(Exception):  # the refusal counts more than a leftover
                yield Unregister(ops, epoch)
        raise
    with suppress(Exception):  # so does the answer
        if reply.epoch.decode() != epoch:  # another client was quicker
            yield Unregister(ops, epoch)
        elif reply.created:  # again: a sweep may have removed the entry meanwhile
            yield Register(ops, epoch)
    return call, reply


def withdraw(
    ops: QueueOps,
    reply: Added,
    *,
    wanted: int,
    got: int,
    updated: bool = False,
    fsynced: bool | None = None,
) -> Generator[Effect, Any, NotReplicated]:
    """Remove jobs that too few replicas confirmed; return the error of the enqueue.

    Args:
        updated: whether jobs that were there before have new content, which stays.
        fsynced: whether the jobs are on disk; None = that was not asked for.
    """
    withdrawn: bool | None = None
    if reply.count == 0:
        return NotReplicated(wanted, got, not updated, fsynced)
    with suppress(Exception):
        call = ops.withdraw_added(reply)
        answer = yield Run(call)
        if not (call.resent and Code.GONE in answer.codes):
            # jobs that are gone were delivered and finished
            withdrawn = not answer.codes and not updated
    return NotReplicated(wanted, got, withdrawn, fsynced)


def _leave_producer(ops: QueueOps, waited: bool) -> Generator[Effect, Any, None]:
    """End the wait. If it took a token and there is room, wake the next producer."""
    if waited and (yield EndWait()).woken:
        yield Run(ops.enqueue(()))
