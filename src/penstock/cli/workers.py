"""The command `workers`: the workers that run, and the jobs that they hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from operator import attrgetter
from typing import Any

from penstock import WorkerView
from penstock.cli import output
from penstock.cli.app import Session, command

__all__ = ["workers"]

WORKER_COLUMNS = ("worker", "host", "pid", "version", "concurrency", "since", "seen", "queues")
HELD_JOB_COLUMNS = ("id", "queue", "handler", "attempts", "delivered", "progress")


@command("workers")
def workers(session: Session, jobs: bool = False) -> None:
    """List the workers that run.

    A worker is listed from a second after its start on; one that was killed for up to 40 s more.

    Args:
        jobs: also list the jobs that they hold.

    Examples:
        penstock workers --jobs
    """
    with session.client() as client:
        found = client.workers(jobs=jobs)
    document = {"workers": [_document(one, jobs=jobs) for one in found]}
    session.answer(document, lambda: _print(found, jobs=jobs))


def _document(worker: WorkerView, *, jobs: bool) -> dict[str, Any]:
    told = asdict(replace(worker, jobs=()))
    del told["jobs"]
    return told | ({"jobs": [output.job_document(job) for job in worker.jobs]} if jobs else {})


def _print(found: Sequence[WorkerView], *, jobs: bool) -> None:
    if not found:
        output.note("no workers")
        return
    facts = attrgetter("name", "host", "pid", "version", "concurrency")
    rows = [
        (*facts(one), output.moment(one.since), output.moment(one.seen), ", ".join(one.queues))
        for one in found
    ]
    output.table(WORKER_COLUMNS, rows, right="pid concurrency")
    if jobs:
        _print_jobs(found)


def _print_jobs(found: Sequence[WorkerView]) -> None:
    rows = [
        (one.name, *(output.job_cell(job, name) for name in HELD_JOB_COLUMNS))
        for one in found
        for job in one.jobs
    ]
    output.write("")
    output.table(("worker", "job", *HELD_JOB_COLUMNS[1:]), rows, right="attempts")
