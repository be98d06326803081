# From src/penstock/client/_async/adding.py by tools/unasync.py; do not edit.
"""Adding jobs on one node: make room, wait for room, and check the confirmations."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.client._sync.nodes.one_part import OnePart
from penstock.client.clock import monotonic
from penstock.core import flows
from penstock.core.calls.call import Call
from penstock.core.calls.operations.producing import Added, updates
from penstock.core.enqueuing.prepared import Prepared
from penstock.core.nodes.state import FLAG_MAX_AGE
from penstock.core.values.confirmations import Confirmed, Wait
from penstock.errors import BodyTooLarge, NotReplicated, OutOfMemory, QueueFull, QueueMissing

if TYPE_CHECKING:
    from penstock.client._sync.transport.driver import Driver

__all__ = ["add", "add_each", "add_when_room", "confirm"]

EVICTION_LIMITS = (100, 200, 400, 800, 1000, 1000)
"""Limits of lease-0 jobs to evict from a full server, one for each refusal of an enqueue."""
QUEUES_PER_EVICTION_SWEEP = 16
"""Number of listed queues to sweep when there is no job left to evict."""


def add(
    part: OnePart, records: Sequence[bytes], options: Prepared, *, is_tried: bool = False
) -> tuple[Added, Confirmed]:
    """Add in one round trip if possible; while the server is full, evict and try again.

    If they are too many bytes for the server, only the first of them are added.

    Args:
        part: the part of the queue.
        records: the records.
        options: of all of them.
        is_tried: whether a call without a wait was refused, as the queue is missing or full.

    Raises:
        OutOfMemory: nothing is left to evict, or the client has `evict=False`.
        BodyTooLarge: the first one alone is, or they have dedup ids.
    """
    rounds = iter(EVICTION_LIMITS if part.node.config.evict else ())
    is_tried = is_tried or options.block != 0
    while True:
        try:
            if not is_tried:
                call = _call_of(part, options)(records)
                return part.executor.run(call), call.confirmed
            return add_when_room(part, records, options, in_parts=options.dedup is None)
        except (QueueMissing, QueueFull):  # noqa: PERF203  # a few rounds, each a trip
            if is_tried:
                raise
            is_tried = True
        except OutOfMemory:
            n = next(rounds, None)
            if n is None or not _make_room(part, n):
                raise
        except BodyTooLarge:  # all together, or each
            if len(records) < 2 or options.dedup is not None:
                raise
            records = records[: len(records) // 2]


def _call_of(part: OnePart, options: Prepared) -> Callable[..., Call[Added]]:
    return partial(
        part.ops.enqueue,
        delay=options.delay,
        bound=options.bound,
        wait=options.wait,
        mode=None if options.dedup is None else options.dedup.mode,
    )


def _make_room(part: OnePart, n: int) -> bool:
    """Remove delivered lease-0 jobs of this queue, else unused queues; True if any was."""
    evicted = part.executor.run(part.ops.evict(n, letters=False))
    return evicted.once > 0 or part.driver.sweep_listed(QUEUES_PER_EVICTION_SWEEP) > 0


def add_when_room(
    part: OnePart,
    records: Sequence[bytes],
    options: Prepared,
    *,
    in_parts: bool,
) -> tuple[Added, Confirmed]:
    """Add jobs, and wait for room; while waiting, check that the node still takes jobs.

    With `in_parts` some of the jobs may be added, if there is no room for all.
    """
    until = math.inf if options.block is None else monotonic() + options.block
    while True:
        span = max(0.0, min(FLAG_MAX_AGE, until - monotonic()))
        flow = flows.enqueue(
            part.ops,
            records,
            _call_of(part, options),
            block=span,
            in_parts=in_parts,
            clock=monotonic,
        )
        try:
            done = part.driver.drive(flow)
        except QueueFull:
            if monotonic() >= until:
                raise
        else:
            return done
        part.node.check_taking()


def add_each(
    batches: Sequence[tuple[OnePart, Sequence[bytes], Prepared]],
) -> list[Added | Exception]:
    """Add jobs to different queues, those of a node together; return the reply or error of each.

    Jobs that too few replicas confirmed are taken back.
    """
    flow_of = partial(flows.enqueue, block=0, in_parts=False, clock=monotonic)
    by_driver: dict[Driver, dict[int, Generator[Any, Any, tuple[Added, Confirmed]]]] = {}
    for at, (part, records, options) in enumerate(batches):
        flow = flow_of(part.ops, records, _call_of(part, options))
        by_driver.setdefault(part.driver, {})[at] = flow
    ends: dict[int, Added | Exception] = {}
    for driver, some in by_driver.items():
        for at, end in zip(some, driver.drive_each([*some.values()]), strict=True):
            part, _, options = batches[at]
            if isinstance(end, Exception):
                ends[at] = end
                continue
            try:
                ends[at] = end[0]
                confirm(part, *end, wait=options.wait)
            except NotReplicated as error:
                ends[at] = error
    return [ends[at] for at in range(len(batches))]


def confirm(part: OnePart, reply: Added, got: Confirmed, wait: Wait | None) -> int:
    """Return how many replicas confirmed; if too few did, take the jobs back and raise."""
    if wait is None:
        return got.replicas
    wanted = reply.replicas if wait.replicas is None else wait.replicas
    if got.covers(wanted, wait):
        return got.replicas
    updated = updates(reply) > 0
    if reply.count > 0 or updated:
        fsynced = got.fsynced if wait.fsynced else None
        flow = flows.withdraw(
            part.ops, reply, wanted=wanted, got=got.replicas, updated=updated, fsynced=fsynced
        )
        raise part.driver.drive(flow)
    return got.replicas
