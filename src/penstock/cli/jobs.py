"""Commands about jobs: enqueue, peek, scan, show, status."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from enum import Enum
from typing import Annotated, Any, BinaryIO

import typer

from penstock import (
    BadArgument,
    DedupStatus,
    Enqueued,
    JobView,
    Penstock,
    RetryPolicy,
    StateName,
    parse_id,
)
from penstock.cli import output
from penstock.cli.app import Failed, Session, command

__all__ = ["QueueArgument", "StateChoice", "enqueue", "peek", "scan", "show", "status"]

QueueArgument = Annotated[str, typer.Argument(metavar="QUEUE", show_default=False)]


class StateChoice(str, Enum):
    """A state that a command may be asked for."""

    READY = "ready"
    SCHEDULED = "scheduled"
    ACTIVE = "active"
    DEAD = "dead"


class Until(str, Enum):
    """Until when a job has its dedup id."""

    FINISHED = "finished"
    STARTED = "started"
    ENQUEUED = "enqueued"


class Duplicate(str, Enum):
    """Values of --on-duplicate: the action taken on a duplicate."""

    REFUSE = "refuse"
    UPDATE = "update"
    DEBOUNCE = "debounce"
    REQUEUE = "requeue"
    REQUEUE_UPDATE = "requeue+update"
    REQUEUE_DEBOUNCE = "requeue+debounce"


@command("enqueue")
def enqueue(
    session: Session,
    queue: QueueArgument,
    body: Annotated[
        str | None,
        typer.Argument(
            metavar="BODY", help="The body; - = read it from stdin.", show_default=False
        ),
    ] = None,
    lines: Annotated[
        bool, typer.Option("--lines", help="Add a job for each line of stdin.")
    ] = False,
    json_body: Annotated[
        bool,
        typer.Option("--json-body/--raw", help="The body is JSON; default: bytes."),
    ] = False,
    delay: Annotated[float, typer.Option(metavar="SECONDS", help="Not before.")] = 0,
    lease: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="0 = deliver at most once.", show_default=False),
    ] = None,
    ttl: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Not after.", show_default=False),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="May be repeated.", show_default=False),
    ] = None,
    replicas: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Replicas that must confirm. Default: the queue's setting.",
            show_default=False,
        ),
    ] = None,
    fsynced: Annotated[
        bool,
        typer.Option(
            "--fsynced",
            help="Wait until the job is on the disks of the server and of these replicas.",
        ),
    ] = False,
    timeout: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Most seconds to wait for replicas and disks. Default: 1, with --fsynced 5.",
            show_default=False,
        ),
    ] = None,
    dedup_id: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="Refuse the job while another one has this id.",
            show_default=False,
        ),
    ] = None,
    dedup_window: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Keep the id taken for this time after the job is done.",
            show_default=False,
        ),
    ] = None,
    dedup_until: Annotated[
        Until,
        typer.Option(
            help="When the id is free again: after the job has finished or started; enqueued ="
            " after the window, counted from now."
        ),
    ] = Until.FINISHED,
    on_duplicate: Annotated[
        Duplicate,
        typer.Option(
            help="What happens to a duplicate: update = the waiting job gets its content; debounce"
            " = the delay starts again, too; requeue = it runs after the active job;"
            " requeue+update, requeue+debounce = later duplicates also replace that one."
        ),
    ] = Duplicate.REFUSE,
    key: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="Jobs with the same key go to one partition, in order.",
            show_default=False,
        ),
    ] = None,
    max_attempts: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Attempts until the job is a dead letter; 0 = no limit. Default: the queue's.",
            show_default=False,
        ),
    ] = None,
    backoff_base: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Delay after the first failure; it doubles. Default: the queue's.",
            show_default=False,
        ),
    ] = None,
    backoff_cap: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", help="The longest delay. Default: the queue's.", show_default=False
        ),
    ] = None,
) -> None:
    """Add a job, or with --lines one for each line of stdin.

    Tells the job's id and state; for a duplicate those of the job that stands for it, and what was
    done.
    """
    if lines == (body is not None):
        raise typer.BadParameter("give a BODY, - to read it from stdin, or --lines")
    options: dict[str, Any] = {
        "delay": delay, "lease": lease, "ttl": ttl, "headers": _headers(header or []),
        "replicas": replicas, "fsynced": fsynced, "timeout": timeout, "dedup_id": dedup_id,
        "dedup_window": dedup_window, "dedup_until": dedup_until.value,
        "on_duplicate": on_duplicate.value, "key": key,
        "retry": _policy(max_attempts, backoff_base, backoff_cap),
    }  # fmt: skip
    stdin = sys.stdin.buffer
    with session.client() as client:
        target = client.open(queue)
        if lines:
            jobs = list(target.enqueue_many(_each_line(stdin, json_body), **options))
        else:
            raw = stdin.read() if body == "-" else (body or "").encode("utf-8", "surrogateescape")
            jobs = [target.enqueue(_body(raw, json_body), **options)]
    actions = Counter(job.action for job in jobs if job.duplicate)
    document = {
        "queue": queue,
        "count": len(jobs) - actions.total(),
        "duplicates": actions.total(),
        "jobs": [asdict(job) for job in jobs],
    }
    session.answer(
        document, lambda: output.write(_sum(jobs, actions) if lines else _outcome(jobs[0]))
    )


def _outcome(job: Enqueued) -> str:
    """Id and state first, for a pipe; `-` where no job stands for a duplicate."""
    told = f"{job.id or '-'} {job.state}"
    if job.duplicate:
        return f"{told} (duplicate: {job.action})"
    return told if job.action == "added" else f"{told} ({job.action})"


def _sum(jobs: Sequence[Enqueued], actions: Counter[str]) -> str:
    told = f"{len(jobs) - actions.total()} jobs added"
    if actions:
        told += f", {actions.total()} duplicates: "
        told += ", ".join(f"{count} {action}" for action, count in sorted(actions.items()))
    return told


def _policy(*parts: Any) -> RetryPolicy | None:
    return None if parts == (None, None, None) else RetryPolicy(*parts)


def _headers(pairs: list[str]) -> dict[str, str]:
    headers = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"--header {pair}: must be NAME=VALUE")
        headers[name] = value
    return headers


def _body(raw: bytes, is_json: bool, argument: str = "body") -> Any:
    if not is_json:
        return raw
    try:
        return json.loads(raw)
    except ValueError as error:
        raise BadArgument(
            argument, raw.decode("utf-8", "replace"), f"must be JSON: {error}"
        ) from error


def _each_line(stdin: BinaryIO, is_json: bool) -> Iterator[Any]:
    for number, line in enumerate(stdin, 1):
        yield _body(line.removesuffix(b"\n"), is_json, f"line {number}")


@command("peek")
def peek(
    session: Session,
    queue: QueueArgument,
    state: Annotated[StateChoice, typer.Option(help="Which jobs.")] = StateChoice.READY,
    n: Annotated[int, typer.Option("--n", "-n", help="Most jobs to show.")] = 10,
    start: Annotated[int, typer.Option(help="Jobs to skip; negative = count from the end.")] = 0,
    newest: Annotated[bool, typer.Option("--newest", help="Start at the end.")] = False,
) -> None:
    """Show the next jobs of a queue without taking them."""
    with session.client() as client:
        views = client.open(queue).peek(n, state=state.value, start=start, newest=newest)
        if not views:
            hint_if_missing(client, queue)
    document = {
        "queue": queue,
        "state": state.value,
        "start": start,
        "newest": newest,
        "jobs": [output.job_document(view) for view in views],
    }
    session.answer(document, lambda: _print_jobs(views, state))


TIME_OF_STATE = {"scheduled": "due", "active": "lease_until", "dead": "died"}


def _print_jobs(views: list[JobView], state: StateChoice) -> None:
    if not views:
        output.note(f"no {state.value} jobs")
        return
    when = TIME_OF_STATE.get(state.value, "created")
    output.table(
        ("id", when.replace("_", " "), "attempt", "owner", "body", "error"),
        [
            (
                view.id,
                output.moment(getattr(view, when)),
                view.attempt,
                view.owner,
                output.short_body(view),
                view.error,
            )
            for view in views
        ],
        right="attempt",
    )


@command("scan")
def scan(
    session: Session,
    queue: Annotated[
        str | None,
        typer.Argument(metavar="[QUEUE]", help="Default: every queue.", show_default=False),
    ] = None,
    state: Annotated[
        list[StateChoice] | None,
        typer.Option(help="Only these jobs; may be repeated. Default: all.", show_default=False),
    ] = None,
    ids: Annotated[bool, typer.Option("--ids", help="Print only ids; read no bodies.")] = False,
) -> None:
    """List all jobs, each once, in no order and in bounded steps.

    Jobs that come, go or change their state meanwhile may be missed.
    """
    states: list[StateName] = [one.value for one in dict.fromkeys(state or ())]
    document: dict[str, Any] = {"queue": queue, "states": states or None}
    with session.client() as client:
        names = client.queues() if queue is None else [queue]
        if queue is not None:
            hint_if_missing(client, queue)
        if ids and not session.as_json:
            output.write_lines(_each_id(client, names, states))
            return
        if ids:
            document["ids"] = list(_each_id(client, names, states))
        else:
            found = client.scan_iter(queues=names, states=states or None)
            views = list({view.id: view for view in found}.values())  # one may be met twice
            document["jobs"] = [output.job_document(view) for view in views]
    session.answer(document, lambda: _print_scan(views, every=queue is None))


def _each_id(client: Penstock, queues: list[str], states: list[StateName]) -> Iterator[str]:
    for name in queues:
        seen: set[str] = set()
        cursor = ""
        while cursor != "0":
            page = client.open(name).scan(cursor or "0", STEP, states=states or None, full=False)
            yield from (one for one in dict.fromkeys(page.ids) if one not in seen)
            seen.update(page.ids)
            cursor = page.cursor


STEP = 1000


def _print_scan(views: list[JobView], *, every: bool) -> None:
    if not views:
        output.note("no jobs")
        return
    rows = [
        (
            view.id,
            *([view.queue] if every else []),
            view.state,
            output.moment(view.created),
            view.attempt,
            view.owner,
            output.short_body(view),
            view.error,
        )
        for view in views
    ]
    named = ("queue",) if every else ()
    columns = ("id", *named, "state", "created", "attempt", "owner", "body", "error")
    output.table(columns, rows, right="attempt")


@command("show")
def show(
    session: Session,
    names: Annotated[
        list[str],
        typer.Argument(metavar="[QUEUE] ID", help="The queue may be omitted: the id finds it."),
    ],
) -> None:
    """Show everything about one job."""
    if len(names) > 2:
        raise typer.BadParameter("give [QUEUE] ID: one id, with or without its queue")
    with session.client() as client:
        queue = names[0] if len(names) == 2 else queue_of(client, names[0])
        view = client.open(queue).show(names[-1])
    if view is None:
        raise Failed(f"queue {queue!r} has no job {names[-1]}: it finished, expired or was deleted")
    session.answer(output.job_document(view), lambda: _print_job(view))


def queue_of(client: Penstock, job_id: str) -> str:
    """The name of the queue of a job, which the registry knows by what the id says.

    Raises:
        BadJobId: malformed.
        Failed: the registry does not list the queue.
    """
    parsed = parse_id(job_id)
    name = client._listed(f"{parsed.crc:08x}{parsed.epoch}")
    if name is None:
        raise Failed(f"no queue has {job_id}: the queue was deleted, or is on another server")
    return name


def _print_job(view: JobView) -> None:
    times = {name: output.moment(getattr(view, name)) for name in MOMENTS}
    codec, _ = output.body_value(view)
    facts: dict[str, Any] = {
        "id": view.id,
        "queue": view.queue,
        "state": view.state,
        "dedup id": view.dedup_id or "",
        "stable id": view.stable_id,
        **times,
        **{name.replace("_", " "): output.span(getattr(view, name)) for name in SPANS},
        "lease": output.span(view.lease) if view.lease else "none (at most once)",
        "owner": view.owner,
        "attempt": view.attempt,
        "retry policy": _policy_text(view.retry),
        **{name: getattr(view, name) for name in COUNTERS},
        "error": view.error,
        **{f"header {name}": value for name, value in view.headers.items()},
        "size": output.size(len(view.raw)),
        "codec": codec,
    }
    output.table(("", ""), [(name, value) for name, value in facts.items() if value != ""])
    lines = view.raw.decode("utf-8", "backslashreplace").split("\n")
    output.write_lines(lines)


def _policy_text(policy: RetryPolicy | None) -> str:
    """What a job's own policy says; what is the queue's is not named."""
    if policy is None:
        return ""
    told = []
    if policy.max_attempts is not None:
        told.append(f"{policy.max_attempts or 'unlimited'} attempts")
    if policy.base is not None:
        told.append(f"backoff from {output.span(policy.base)}")
    if policy.cap is not None:
        told.append(f"up to {output.span(policy.cap)}")
    return ", ".join(told) or "the queue's"


MOMENTS = ("created", "due", "expires", "delivered", "lease_until", "died")
SPANS = ("age", "next_in", "idle", "ttl_left")
COUNTERS = ("deliveries", "redeliveries", "nacks", "crashes", "releases")


@command("status")
def status(
    session: Session,
    queue: QueueArgument,
    dedup_id: Annotated[str, typer.Argument(metavar="DEDUP_ID", show_default=False)],
) -> None:
    """Show who has a dedup id: a job, one that waits for its end, or a window; else exit code 1."""
    with session.client() as client:
        found = client.open(queue).status(dedup_id)
        if found is None:
            hint_if_missing(client, queue)
    if found or session.as_json:
        document = _status_document(queue, found or DedupStatus(dedup_id, "", None, None, None))
        session.answer(document, lambda: _print_status(found))
    if found is None:
        raise Failed(f"no job has the dedup id {dedup_id!r} in queue {queue!r}")


def _status_document(queue: str, found: DedupStatus) -> dict[str, Any]:
    jobs = {"job": found.job, "successor": found.successor}
    return {
        "queue": queue,
        "dedup_id": found.dedup_id,
        "state": found.state or None,
        "window_ends": found.window_ends,
        **{name: output.job_document(view) if view else None for name, view in jobs.items()},
    }


def _print_status(found: DedupStatus | None) -> None:
    if found is None:
        return
    ends = f", ends {output.moment(found.window_ends)}" if found.window_ends is not None else ""
    output.write(f"{found.dedup_id}: {found.state}{ends}")
    held = {"job": found.job, "successor": found.successor}
    rows = [
        (
            role,
            view.id,
            view.state,
            output.span(view.age),
            output.span(view.next_in),
            view.attempt,
            view.owner,
            output.short_body(view),
        )
        for role, view in held.items()
        if view is not None
    ]
    if rows:
        columns = ("", "id", "state", "age", "next in", "attempt", "owner", "body")
        output.table(columns, rows, right="attempt")


def hint_if_missing(client: Penstock, queue: str) -> None:
    """Say so if there is no such queue: an empty answer may be a typing error."""
    if not client.open(queue).stats().exists:
        output.note(f"queue {queue!r} does not exist now")
