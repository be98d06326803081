"""Commands that move or remove jobs: those with some ids, or all that options choose."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Annotated, Literal, NamedTuple

from penstock import Outcome, Queue, Settled, Signalled, StateName
from penstock.cli import output
from penstock.cli.app import Session, command
from penstock.cli.chosen import ChosenJobs, YesOption
from penstock.cli.ids import whole_ids
from penstock.cli.jobs import QueueArgument
from penstock.cli.output import Failed
from penstock.cli.parameters import Argument, BadUsage
from penstock.core.jobs.logs import counted

__all__ = ["cancel", "delete", "postpone", "promote", "redrive", "signal"]

JOBS_PER_STEP = 1000
"""Most jobs that one call looks at or changes."""
IdsArgument = Annotated[list[str] | None, Argument("ID")]
CHANGED_OUTCOMES = (Outcome.DONE, Outcome.CANCELLED)


class _Action(NamedTuple):
    """An action on jobs, and the words for it.

    Attributes:
        run: takes the queue and some ids.
        key: of the number of changed jobs, in JSON.
        done: what was done, after a number of jobs.
        question: the verb of a question before it; empty = nothing is asked.
        undelivered: whether it concerns only jobs that were never delivered.
    """

    run: Callable[[Queue, list[str]], Settled | int]
    key: str
    done: str
    question: str = ""
    undelivered: bool = False


@command("redrive")
def redrive(
    session: Session,
    queue: QueueArgument,
    chosen: ChosenJobs,
    ids: IdsArgument = None,
    limit: int | None = None,
    dry_run: bool = False,
) -> None:
    """Make dead letters ready jobs again.

    Their attempts are counted from zero again. A dead letter stays dead if another job has its
    dedup id now.

    Args:
        ids: ids of dead letters. Default: all, oldest first.
        limit: at most this many, the oldest first; of those that options choose, the newest.
        dry_run: only print how many jobs the options choose.

    Examples:
        penstock redrive emails --limit 100
        penstock redrive emails --group 0c51f2a94e7b
        penstock redrive emails P7DpjNzE-53DE
    """
    if ids and (limit is not None or chosen or dry_run):
        raise BadUsage("--limit, --dry-run and options that choose jobs don't go with ids")
    if chosen or dry_run:
        action = _Action(Queue.redrive, "redriven", "redriven")
        _settle_chosen(session, queue, "dead", chosen, action, limit=limit, dry_run=dry_run)
        return
    with session.queue(queue) as target:
        count = target.redrive(whole_ids(target, ids) if ids else None, limit=limit)
    session.answer({"queue": queue, "redriven": count}, f"{counted(count, 'dead letter')} redriven")
    if ids and count < len(ids):
        failed = f"{len(ids) - count} of {len(ids)} could not be redriven"
        raise Failed(f"{failed}: `penstock show ID` shows the state of a job")


@command("cancel")
def cancel(
    session: Session,
    queue: QueueArgument,
    chosen: ChosenJobs,
    ids: IdsArgument = None,
    state: Literal["ready", "scheduled", "parked", "active"] | None = None,
    dry_run: bool = False,
    yes: YesOption = False,
) -> None:
    """Cancel jobs. Waiting jobs are removed at once; the workers of active jobs end them.

    Args:
        ids: ids of jobs; the beginning of an id is enough.
        state: cancel the jobs in this state that the other options choose.
        dry_run: only print how many jobs that would be.
        yes: do not ask for confirmation.

    Examples:
        penstock cancel emails P7DpjNzE-53DE
        penstock cancel emails --state scheduled --handler digest --dry-run
    """
    action = _Action(Queue.cancel, "cancelled", "cancelled", "Cancel")
    _act(session, queue, ids, state, chosen, action, dry_run=dry_run, yes=yes)


@command("delete")
def delete(
    session: Session,
    queue: QueueArgument,
    chosen: ChosenJobs,
    ids: IdsArgument = None,
    state: StateName | None = None,
    if_undelivered: bool = False,
    dry_run: bool = False,
    yes: YesOption = False,
) -> None:
    """Remove jobs in any state, without a trace. A worker that runs one can't finish it.

    Args:
        ids: ids of jobs; the beginning of an id is enough.
        state: delete the jobs in this state that the other options choose.
        if_undelivered: remove only jobs that were never delivered.
        dry_run: only print how many jobs the options choose.
        yes: do not ask for confirmation.

    Examples:
        penstock delete emails P7DpjNzE-53DE --if-undelivered
        penstock delete emails --state dead --group 0c51f2a94e7b
    """
    run = partial(Queue.delete, if_undelivered=if_undelivered)
    action = _Action(run, "deleted", "deleted", "Delete", undelivered=if_undelivered)
    _act(session, queue, ids, state, chosen, action, dry_run=dry_run, yes=yes)


@command("promote")
def promote(
    session: Session,
    queue: QueueArgument,
    chosen: ChosenJobs,
    ids: IdsArgument = None,
    state: Literal["scheduled", "active"] | None = None,
    dry_run: bool = False,
) -> None:
    """Make jobs ready to be delivered now.

    Use it for jobs that are delayed, wait for their next attempt, or are held by a consumer.

    Args:
        ids: ids of jobs; the beginning of an id is enough.
        state: promote the jobs in this state that the other options choose.
        dry_run: only print how many jobs that would be.

    Examples:
        penstock promote emails P7DpjNzE-53DE
        penstock promote emails --state scheduled --handler digest
    """
    action = _Action(Queue.promote, "promoted", "brought forward")
    _act(session, queue, ids, state, chosen, action, dry_run=dry_run)


@command("postpone")
def postpone(
    session: Session, queue: QueueArgument, ids: Annotated[list[str], Argument("ID")]
) -> None:
    """Set ready jobs aside. They come back when their lease time is over.

    Args:
        ids: ids of jobs; the beginning of an id is enough.

    Examples:
        penstock postpone emails P7DpjNzE-53DE
    """
    _settle(session, queue, ids, _Action(Queue.postpone, "postponed", "postponed"))


SIGNAL_FAILURES = {
    Signalled.THERE_ALREADY: "it has an earlier signal of this name, or its wait has timed out",
    Signalled.GONE: "it finished, expired or was deleted before",
    Signalled.AT_MOST_ONCE: "it is delivered at most once (lease 0), so it can't wait",
}


@command("signal")
def signal(
    session: Session,
    queue: QueueArgument,
    job_id: Annotated[str, Argument("JOB_ID")],
    name: Annotated[str, Argument("NAME")],
    value: Annotated[str, Argument("VALUE")] = "null",
) -> None:
    """Give a job the value that its step `steps.wait(NAME)` waits for, or will wait for.

    The first signal of a name stays.

    Args:
        job_id: the id of the job; its beginning is enough.
        name: the name of the wait.
        value: JSON, or any other text, which is taken as it is. Default: null.

    Examples:
        penstock signal orders P7DpjNzE-53DE approval
        penstock signal orders P7DpjNzE-53DE approval '{"by": "ada"}'
    """
    with session.queue(queue) as target:
        [whole] = whole_ids(target, [job_id])
        outcome = target.signal(whole, name, _json_or_text(value))
    document = {"queue": queue, "id": whole, "name": name, "outcome": outcome.value}
    session.answer(document, f"signal {name}: {outcome}")
    if not outcome:
        raise Failed(f"{whole} has not taken the signal: {SIGNAL_FAILURES[outcome]}")


def _json_or_text(text: str) -> object:
    try:
        value: object = json.loads(text)
    except ValueError:
        return text
    return value


def _act(
    session: Session,
    queue: str,
    ids: Sequence[str] | None,
    state: StateName | None,
    chosen: ChosenJobs,
    action: _Action,
    *,
    dry_run: bool,
    yes: bool = True,
) -> None:
    """Act on the jobs with these ids, or on those that options choose.

    Raises:
        BadUsage: neither ids nor options, or both.
    """
    if ids and (state or chosen or dry_run):
        raise BadUsage("--state, --dry-run and options that choose jobs don't go with ids")
    if not ids and state is None:
        raise BadUsage("give ids, or --state and options that choose among the jobs in it")
    if ids:
        _settle(session, queue, ids, action)
    else:
        _settle_chosen(session, queue, state, chosen, action, dry_run=dry_run, yes=yes)


def _settle(session: Session, queue: str, ids: Sequence[str], action: _Action) -> None:
    """Act on jobs, and print the outcome of each."""
    with session.queue(queue) as target:
        names = list(dict.fromkeys(whole_ids(target, ids)))
        settled = action.run(target, names)
    assert isinstance(settled, Settled)
    outcomes = dict(zip(names, settled, strict=True))
    document = {
        "queue": queue,
        action.key: settled.done,
        "jobs": [{"id": name, "outcome": outcome.value} for name, outcome in outcomes.items()],
    }
    session.answer(document, f"{counted(settled.done, 'job')} {action.done}")
    failed = [f"{name} {one}" for name, one in outcomes.items() if one not in CHANGED_OUTCOMES]
    if failed:
        listed = ", ".join(failed)
        raise Failed(f"{len(failed)} of {len(names)} could not be {action.done}: {listed}")


def _settle_chosen(
    session: Session,
    queue: str,
    state: StateName | None,
    chosen: ChosenJobs,
    action: _Action,
    *,
    limit: int | None = None,
    dry_run: bool = False,
    yes: bool = False,
) -> None:
    """Find the jobs of a state that match, ask, and act on these in steps."""
    with session.queue(queue) as target:
        ids = _find_ids(target, state, chosen, limit, undelivered=action.undelivered)
        count, of_queue = 0, f"{counted(len(ids), 'job')} in state {state}"
        if ids and action.question and not (yes or dry_run):
            output.confirm(f"{action.question} {of_queue} of {queue}?", action.done)
        for start in range(0, 0 if dry_run else len(ids), JOBS_PER_STEP):
            settled = action.run(target, ids[start : start + JOBS_PER_STEP])
            count += settled if isinstance(settled, int) else settled.done
    document = {
        "queue": queue, "state": state, "matched": len(ids), action.key: count, "dry_run": dry_run,
    }  # fmt: skip
    changed = f"{counted(count, 'job')} {action.done}"
    if dry_run:
        shown = f"{of_queue} would be {action.done}"
    else:
        shown = changed if count == len(ids) else f"{changed}, of {len(ids):,} that matched"
    session.answer(document, shown)


def _find_ids(
    queue: Queue,
    state: StateName | None,
    chosen: ChosenJobs,
    limit: int | None,
    *,
    undelivered: bool,
) -> list[str]:
    """Return the ids of matching jobs, the newest first: jobs that are added later are none."""
    search = queue.jobs(state, newest=True, body=0, n=JOBS_PER_STEP, **chosen.options)
    views = (one for one in search if not (undelivered and (one.deliveries or state == "dead")))
    return list(dict.fromkeys(view.id for view in islice(views, limit)))
