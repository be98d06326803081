"""The command about batches: list them, or close one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, astuple
from operator import attrgetter
from typing import Annotated, Literal

from penstock import BatchStatus
from penstock.cli import output
from penstock.cli.app import Session, command
from penstock.cli.jobs import QueueArgument
from penstock.cli.output import Failed
from penstock.cli.parameters import Argument, BadUsage
from penstock.core.enqueuing.batches import BATCHES_WITH_FAILURES

__all__ = ["batches"]

BATCH_COLUMNS = ("batch", "state", "on", "jobs", "done", "failed", "dead", "progress")


@command("batches")
def batches(
    session: Session,
    queue: QueueArgument,
    action: Annotated[Literal["close"] | None, Argument("ACTION")] = None,
    batch: Annotated[str | None, Argument("ID")] = None,
) -> None:
    """List the batches of a queue whose callbacks have not ended, or close one of them.

    Behind the list come the first 20 dead letters of each of the first 20 batches that have some.

    Args:
        action: close = no more jobs join; for a batch whose producer did not close it.
        batch: id of the batch: the job id of its callback.

    Examples:
        penstock batches images
    """
    if (action is None) != (batch is None):
        raise BadUsage("close needs the id of a batch")
    with session.queue(queue) as target:
        if batch is not None:
            status = target.batches.close(batch)
            if status is None:
                raise Failed(f"there is no batch {batch}, or its callback has ended")
            session.answer({"queue": queue, **asdict(status)}, f"{status.id}: {status.state}")
            return
        found = target.batches.list()
        failing = [place for place, one in enumerate(found) if one.dead][:BATCHES_WITH_FAILURES]
        for place in failing:
            found[place] = target.batches.get(found[place].id) or found[place]
    document = {"queue": queue, "batches": [asdict(one) for one in found]}
    session.answer(document, lambda: _print(found))


def _print(found: Sequence[BatchStatus]) -> None:
    figures = attrgetter("on", "total", "done", "failed", "dead")
    rows = [(one.id, _state(one), *figures(one), f"{one.progress:.0%}") for one in found]
    output.table(BATCH_COLUMNS, rows, right="jobs done failed dead progress")
    dead = [(one.id, *astuple(failure)) for one in found for failure in one.failures]
    if dead:
        output.write("")
        output.table(("batch", "dead letter", "handler", "error"), dead)


def _state(batch: BatchStatus) -> str:
    return f"{batch.state} for dead letters" if batch.is_stuck else batch.state
