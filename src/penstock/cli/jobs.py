"""Commands about jobs: enqueue, peek, scan, show, result, status."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import islice
from typing import Annotated, Any, BinaryIO

from penstock import (
    BadArgument,
    Dedup,
    DedupStatus,
    DedupUntil,
    Durable,
    Enqueued,
    JobView,
    LogLine,
    OnDuplicate,
    Penstock,
    Queue,
    RetryPolicy,
    StateName,
    parse_id,
)
from penstock.cli import output
from penstock.cli.app import Session, command, open_existing
from penstock.cli.chosen import ChosenJobs
from penstock.cli.ids import JOBS_PER_SEARCH, each_id, find_job, whole_ids
from penstock.cli.output import Failed
from penstock.cli.parameters import Argument, BadUsage, Option
from penstock.core.jobs.logs import counted, policy_text
from penstock.core.jobs.middleware import HANDLER
from penstock.core.values.ids import ID_LENGTH

__all__ = [
    "QueueArgument",
    "dedup",
    "enqueue",
    "parsed_body",
    "parsed_headers",
    "peek",
    "result",
    "scan",
    "show",
]

QueueArgument = Annotated[str, Argument("QUEUE")]
JobArgument = Annotated[list[str], Argument("[QUEUE] ID")]


@command("enqueue")
def enqueue(
    session: Session,
    queue: QueueArgument,
    body: Annotated[str | None, Argument("BODY")] = None,
    lines: bool = False,
    json_body: bool = False,
    delay: float = 0,
    lease: float | None = None,
    ttl: float | None = None,
    header: Annotated[list[str] | None, Option(metavar="NAME=VALUE")] = None,
    replicas: int | None = None,
    fsynced: bool = False,
    timeout: float | None = None,
    dedup_id: str | None = None,
    dedup_window: float | None = None,
    dedup_until: DedupUntil = "finished",
    on_duplicate: Annotated[OnDuplicate, Option(metavar="EFFECT")] = "refuse",
    key: str | None = None,
    max_attempts: int | None = None,
    backoff_base: float | None = None,
    backoff_cap: float | None = None,
    result_ttl: float | None = None,
    priority: int | None = None,
    on_dead: Annotated[str | None, Option(metavar="HANDLER")] = None,
) -> None:
    """Add a job, or with --lines one for each line of stdin.

    Prints the job's id and state. For a duplicate it prints the id and state of the job that has
    the dedup id, and the action taken.

    Args:
        body: the body of the job; - = read it from stdin.
        lines: add a job for each line of stdin.
        json_body: the body is JSON. Default: bytes.
        delay: time before the job is delivered.
        lease: time that a consumer may hold the job; 0 = deliver it at most once. Default: the
            queue's.
        ttl: time after which the job expires. Default: never.
        header: a header of the job; may be repeated.
        replicas: number of replicas that must confirm the job. Default: the queue's.
        fsynced: wait until the job is on the disks of the server and of these replicas.
        timeout: longest wait for replicas and disks. Default: 1, with --fsynced 5.
        dedup_id: refuse the job while another one has this id.
        dedup_window: keep the id taken for this time after the job is done.
        dedup_until: when the id is free again: finished = when the job has ended; started = when
            it is delivered; enqueued = when the window, counted from now, is over.
        on_duplicate: the effect of a duplicate: refuse = none; update = the waiting job gets its
            content; debounce = as update, and the delay starts again; requeue = it runs after the
            active job; requeue+update, requeue+debounce = as requeue, and later duplicates update
            or debounce that one.
        key: jobs with the same key go to one partition, in order; the queue may limit how many run
            at once.
        max_attempts: attempts until the job is a dead letter; 0 = no limit. Default: the queue's.
        backoff_base: delay after the first failure; it doubles. Default: the queue's.
        backoff_cap: the longest delay after a failure. Default: the queue's.
        result_ttl: time for which the result is kept after the end of the job. Default: not at all.
        priority: 0 to 9; jobs with a higher priority are delivered first.
        on_dead: if the job becomes a dead letter, another one is added, for this handler.

    Examples:
        penstock enqueue emails hello --delay 60
        penstock enqueue emails --json-body '{"to": "ada"}' --dedup-id welcome:ada
    """
    if lines == (body is not None):
        raise BadUsage("give a BODY, - to read it from stdin, or --lines, and only one of them")
    retry = RetryPolicy(max_attempts, backoff_base, backoff_cap)
    options: dict[str, Any] = {
        "delay": delay, "lease": lease, "ttl": ttl, "headers": parsed_headers(header or []),
        "durable": Durable(replicas, fsynced, timeout), "key": key,
        "dedup": _dedup(dedup_id, dedup_window, dedup_until, on_duplicate),
        "retry": None if retry == RetryPolicy() else retry,
        "result_ttl": result_ttl, "priority": priority, "on_dead": on_dead,
    }  # fmt: skip
    stdin = sys.stdin.buffer
    with session.client() as client:
        target = client.open(queue)
        if lines:
            jobs = list(target.enqueue_many(_each_line(stdin, json_body), **options))
        else:
            raw = stdin.read() if body == "-" else (body or "").encode("utf-8", "surrogateescape")
            jobs = [target.enqueue(parsed_body(raw, is_json=json_body), **options)]
    actions = Counter(job.action for job in jobs if job.duplicate)
    duplicates = actions.total()
    document = {
        "queue": queue,
        "count": len(jobs) - duplicates,
        "duplicates": duplicates,
        "jobs": [job.as_dict() for job in jobs],
    }
    told = f"{counted(len(jobs) - duplicates, 'job')} added"
    if actions:
        each = ", ".join(f"{count} {action}" for action, count in sorted(actions.items()))
        told += f", {duplicates} duplicates: {each}"
    session.answer(document, told if lines else _outcome(jobs[0]))


def _dedup(
    dedup_id: str | None, window: float | None, until: DedupUntil, on_duplicate: OnDuplicate
) -> Dedup | None:
    if dedup_id is not None:
        return Dedup(dedup_id, window=window, until=until, on_duplicate=on_duplicate)
    if (window, until, on_duplicate) != (None, "finished", "refuse"):
        reason = "--dedup-window, --dedup-until and --on-duplicate work only with --dedup-id"
        raise BadArgument("dedup_id", None, reason)
    return None


def _outcome(job: Enqueued) -> str:
    told = f"{job.id or '-'} {job.state}"
    if job.duplicate:
        return f"{told} (duplicate: {job.action})"
    return told if job.action == "added" else f"{told} ({job.action})"


def parsed_headers(pairs: list[str]) -> dict[str, str]:
    """Return the headers of options NAME=VALUE."""
    headers = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise BadUsage(f"--header {pair}: must be NAME=VALUE, with a name")
        headers[name] = value
    return headers


def parsed_body(raw: bytes, *, is_json: bool, argument: str = "body") -> Any:
    """Return the body of a job from the bytes of an argument or a line."""
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
        yield parsed_body(line.removesuffix(b"\n"), is_json=is_json, argument=f"line {number}")


@command("peek")
def peek(
    session: Session,
    queue: QueueArgument,
    chosen: ChosenJobs,
    state: StateName = "ready",
    n: Annotated[int, Option(("--n", "-n"))] = 10,
    start: int = 0,
    newest: bool = False,
) -> None:
    """Show the next jobs of a queue without reserving them.

    Args:
        state: state of the jobs.
        n: show at most this many jobs.
        start: skip this many jobs; negative = count from the end, without options that choose.
        newest: start with the newest job.

    Examples:
        penstock peek emails --state dead -n 5
        penstock peek emails --handler digest --older-than 3600
    """
    if chosen and start < 0:
        raise BadUsage("a negative --start doesn't go with options that choose jobs")
    with session.queue(queue) as target:
        if chosen:
            search = target.jobs(state, newest=newest, n=JOBS_PER_SEARCH, **chosen.options)
            views = list(islice(search, start, start + n))
        else:
            views = target.peek(n, state=state, start=start, newest=newest)
    document = {
        "queue": queue,
        "state": state,
        "start": start,
        "newest": newest,
        "jobs": [output.job_document(view) for view in views],
    }
    rare = ("key_hash", "waits_for", "batch", "priority", "cancelled", "progress")
    told = [name for name in rare if any(getattr(view, name) for view in views)]
    at = TIME_OF_STATE[state]
    columns = ("id", *_handler(views), at, "attempts", "owner", *told, "body", "error")
    session.answer(document, lambda: output.job_table(views, columns, f"{state} jobs"))
    if state == "dead" and len(views) > 1 and not session.as_json:
        output.note(f"penstock errors {queue} counts them by handler and error")


TIME_OF_STATE = {
    "ready": "created", "scheduled": "due", "active": "lease_until", "dead": "died",
    "parked": "created",
}  # fmt: skip


@command("scan")
def scan(
    session: Session,
    chosen: ChosenJobs,
    queue: Annotated[str | None, Argument("QUEUE")] = None,
    state: list[StateName] | None = None,
    ids: bool = False,
) -> None:
    """List all jobs, each once, in no order and in bounded steps.

    A job that is added, removed or changes its state meanwhile may be missed.

    Args:
        queue: name of a queue. Default: every queue.
        state: only jobs in this state; may be repeated. Default: all jobs.
        ids: print only ids; read no bodies.

    Examples:
        penstock scan emails --state active
        penstock scan --handler digest --ids
        penstock scan --text ada@example.com
    """
    states: list[StateName] = list(dict.fromkeys(state or ()))
    document: dict[str, Any] = {"queue": queue, "states": states or None}
    with session.client() as client:
        names = client.queues() if queue is None else [open_existing(client, queue).name]
        each = (
            one for name in names for one in each_id(client.open(name), states, **chosen.options)
        )
        if ids and not session.as_json:
            output.write_lines(each)
            return
        if ids:
            document["ids"] = list(each)
        else:
            found = (
                view
                for name in names
                for view in client.open(name).jobs(states or None, **chosen.options)
            )
            views = list({view.id: view for view in found}.values())  # one may be found twice
            document["jobs"] = [output.job_document(view) for view in views]
    session.answer(document, lambda: _print_scanned(views, with_queue=queue is None))


def _print_scanned(views: Sequence[JobView], *, with_queue: bool) -> None:
    more = [*(["queue"] if with_queue else []), *_handler(views)]
    waits = ["waits_for"] if any(view.waits_for for view in views) else []
    columns = ("id", *more, "state", "created", "attempts", "owner", *waits, "body", "error")
    output.job_table(views, columns)


def _handler(views: Sequence[JobView]) -> list[str]:
    return ["handler"] if any(HANDLER in view.headers for view in views) else []


@command("show")
def show(session: Session, job: JobArgument, watch: bool = False) -> None:
    """Show everything about one job.

    Args:
        job: the queue may be omitted: the id finds it. The beginning of an id is enough.
        watch: print a line each time the job's state, attempt or progress changes, until it ends.

    Examples:
        penstock show P7DpjNzE-53DE
        penstock show emails P7DpjNzE-53DE --watch
    """
    with session.client() as client:
        queue, job_id = _locate(client, job)
        view = queue.show(job_id)
        if view is None:
            reason = "it finished, expired or was deleted"
            raise Failed(f"queue {queue.name!r} has no job {job_id}: {reason}")
        if watch:
            _watch(session, queue, view)
        else:
            log = queue.log(job_id)
            session.answer(_whole_document(view, log), partial(_print_job, view, log))


WATCH_INTERVAL = 0.5
"""Seconds between two looks at a job that is watched."""
ENDED_STATES = ("done", "cancelled", "dead", "expired")


def _watch(session: Session, queue: Queue, view: JobView | None) -> None:
    assert view is not None
    job_id, told = view.id, ""
    while view is not None:
        line = _changing(view)
        if line != told:
            session.answer(
                _whole_document(view, queue.log(job_id)), f"{output.moment(view.now)}  {line}"
            )
            sys.stdout.flush()
            told = line
        if view.state in ENDED_STATES:
            return
        time.sleep(WATCH_INTERVAL)
        view = queue.show(job_id)
    document = {"id": job_id, "queue": queue.name, "state": "gone"}
    session.answer(document, "gone: it finished without a kept result, expired or was deleted")


def _changing(view: JobView) -> str:
    state = "to be cancelled" if view.cancelled and view.state == "active" else view.state
    attempt = f"attempt {view.attempts}" if view.attempts else ""
    until = [f"{name} {at}" for name, at in _wait_of(view).items() if at]
    facts = [state, *until, attempt, view.owner, view.progress, view.error]
    return "  ".join(str(fact) for fact in facts if fact)


@command("result")
def result(session: Session, job: JobArgument, timeout: float | None = None) -> None:
    """Wait for the end of a job, and print the value that its handler returned, as JSON.

    Args:
        job: the queue may be omitted: the id finds it. The beginning of an id is enough until the
            job has ended.
        timeout: seconds to wait; 0 = look once. Default: for ever.

    Examples:
        penstock result emails P7DpjNzE-53DE --timeout 10
    """
    with session.client() as client:
        queue, job_id = _locate(client, job)
        value = queue.result(job_id, timeout=timeout)
    session.answer(value, json.dumps(value, ensure_ascii=False))


def _locate(client: Penstock, names: Sequence[str]) -> tuple[Queue, str]:
    """Return the queue of a job and its id, from `[QUEUE] ID`.

    Raises:
        BadJobId: malformed.
        Failed: the beginning of no id, or of several; or the registry does not list the queue.
    """
    if len(names) > 2:
        raise BadUsage("give [QUEUE] ID: one id, with or without its queue")
    *queue, job_id = names
    if queue:
        found = client.open(queue[0])
        return found, whole_ids(found, [job_id])[0]
    if len(job_id) < ID_LENGTH:
        return find_job(client, job_id)
    parsed = parse_id(job_id)
    name = client.topology.queue_at(f"{parsed.crc:08x}{parsed.epoch}")
    if name is None:
        raise Failed(f"no queue has {job_id}: the queue was deleted, or is on another server")
    return client.open(name), job_id


def _whole_document(view: JobView, log: Sequence[LogLine]) -> dict[str, Any]:
    """Return a job for JSON, with failures, steps and log, which only single jobs have."""
    failures = [asdict(failure) for failure in view.failures]
    steps = [asdict(step) for step in view.steps]
    lines = [asdict(line) for line in log]
    told = {"failures": failures, "trace": view.trace, "steps": steps, "log": lines}
    return {**output.job_document(view), **told}


def _wait_of(view: JobView) -> dict[str, str]:
    """Return the facts about a wait that stand in the place of the due time."""
    if view.is_asleep and view.due is not None:
        return {"due": "", "sleeps until": output.moment(view.due)}
    if view.step is not None or (view.signal is not None and view.due is None):
        return {"waits for": view.waits_for or ""}
    if view.signal is not None and view.due is not None:
        return {"due": "", f"waits for signal {view.signal} until": output.moment(view.due)}
    if view.state != "parked":
        return {}
    label = "its key is held until" if view.key_held else "waits for its key until"
    until = {} if view.due is None else {"due": "", label: output.moment(view.due)}
    return {**until, "waits for": view.waits_for or ""}


def _print_job(view: JobView, log: Sequence[LogLine]) -> None:
    if view.finished is not None:
        output.facts({name: output.job_cell(view, name) for name in KEPT_FACTS})
        return
    figures = {
        **{name.replace("_", " "): output.job_cell(view, name) for name in JOB_FACTS},
        **_wait_of(view),
        "lease": output.span(view.lease) if view.lease else "none (at most once)",
        "retry policy": policy_text(view.retry) if view.retry else "",
        "priority": view.priority or "",
        "on death": f"a job of {view.on_dead}" if view.on_dead else "",
        "called by": view.caller or "",
        "added after its death": view.follow_up or "",
        "added after the death of": view.death.id if view.death else "",
        **{f"header {name}": value for name, value in view.headers.items()},
        "size": output.size(len(view.raw)),
        "codec": output.body_value(view)[0],
    }
    output.facts(figures)
    if view.steps:
        steps = [
            (output.moment(one.at), one.kind, one.name, one.job or "", one.state)
            for one in view.steps
        ]
        width = 5 if any(one.job for one in view.steps) else 3
        columns = ("at", "kind", "step", "job", "state")[:width]
        output.table(columns, [row[:width] for row in steps])
    if log:
        output.table(("logged at", "text"), [(output.moment(line.at), line.text) for line in log])
    if view.failures:
        rows = [
            (output.moment(failure.at), output.span(failure.seconds), failure.owner, failure.text)
            for failure in view.failures
        ]
        output.table(("failed at", "after", "owner", "error"), rows)
    if view.trace:
        output.write_lines(view.trace.split("\n"))
    output.write_lines(view.raw.decode("utf-8", "backslashreplace").split("\n"))


JOB_FACTS = (
    "id", "queue", "state", "dedup_id", "key_hash", "stable_id",
    *output.MOMENT_FIELDS, *output.DURATION_FIELDS,
    "owner", "attempts", "batch", "deliveries", "redeliveries", "nacks", "crashes", "releases",
    "snoozes", "unknowns", "error", "progress",
)  # fmt: skip
"""Attributes of a job that `show` prints, in this order."""
KEPT_FACTS = ("id", "queue", "state", "created", "finished", "age", "attempts")
"""Those of a job that has ended, and whose result is kept."""


@command("dedup")
def dedup(
    session: Session,
    queue: QueueArgument,
    dedup_id: Annotated[str, Argument("DEDUP_ID")],
) -> None:
    """Show which job has a dedup id; exit code 1 if the id is free.

    The id may also be reserved for a job that runs next, or for the rest of a window.

    Examples:
        penstock dedup emails welcome:ada
    """
    with session.queue(queue) as target:
        found = target.dedup_status(dedup_id)
        told = found or DedupStatus(dedup_id, "", None, None, None)
        jobs = {"job": told.job, "successor": told.successor}
        documents = {
            role: view and _whole_document(view, target.log(view.id)) for role, view in jobs.items()
        }
    document = {
        "queue": queue,
        "dedup_id": dedup_id,
        "state": told.state or None,
        "window_ends": told.window_ends,
        **documents,
    }
    if found or session.as_json:
        session.answer(document, lambda: _print_dedup(told, jobs))
    if found is None:
        raise Failed(f"no job has the dedup id {dedup_id!r} in queue {queue!r}")


def _print_dedup(found: DedupStatus, jobs: Mapping[str, JobView | None]) -> None:
    ends = f", ends {output.moment(found.window_ends)}" if found.window_ends is not None else ""
    output.write(f"{found.dedup_id}: {found.state}{ends}")
    columns = ("id", "state", "age", "next_in", "attempts", "owner", "body")
    there = {role: view for role, view in jobs.items() if view is not None}
    rows = [
        (role, *(output.job_cell(view, name) for name in columns)) for role, view in there.items()
    ]
    if rows:
        output.table(("", *columns), rows, right="attempts")
