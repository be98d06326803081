"""The command about batches: list them, or one's members, or close one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, astuple, replace
from operator import attrgetter
from typing import Annotated, Literal

from penstock import BatchStatus, JobView
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
    action: Annotated[Literal["close", "members"] | None, Argument("ACTION")] = None,
    batch: Annotated[str | None, Argument("ID")] = None,
) -> None:
    """List the batches of a queue whose callbacks have not ended, or look at one, or close it.

    Behind the list come the first 20 dead letters of each of the first 20 batches that have some.

    Args:
        action: close = no more jobs join; for a batch whose producer did not close it. members =
            list its jobs that wait, run, or are dead; `penstock cancel`, `redrive` and `delete`
            take --batch.
        batch: id of the batch: the job id of its callback.

    Examples:
        penstock batches images
        penstock batches images members P7DpjNzE-53DE0HyAH2Bz4UMgHsXO62i-05a0
    """
    if (action is None) != (batch is None):
        raise BadUsage("an action needs the id of a batch")
    with session.queue(queue) as target:
        if batch is not None:
            is_close = action == "close"
            status = target.batches.close(batch) if is_close else target.batches.get(batch)
            if status is None:
                raise Failed(f"there is no batch {batch}, or its callback has ended")
            document = {"queue": queue, **asdict(status)}
            if is_close:
                session.answer(document, f"{status.id}: {status.state}")
                return
            members = list({view.id: view for view in target.jobs(batch=batch)}.values())
            document["members"] = [output.job_document(view) for view in members]
            session.answer(document, lambda: _print_members(status, members))
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


def _print_members(status: BatchStatus, members: Sequence[JobView]) -> None:
    _print([replace(status, failures=())])
    output.write("")
    output.job_table(members, ("id", "state", "handler", "created", "attempts", "owner", "error"))


def _state(batch: BatchStatus) -> str:
    return f"{batch.state} for dead letters" if batch.is_stuck else batch.state
