# From src/penstock/client/_async/workers.py by tools/unasync.py; do not edit.
"""The workers that run: their entries in the registry, and the jobs that they hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock.client._sync.searching import JobSearch
from penstock.client._sync.transport.executor import Executor
from penstock.core.jobs.views import JobView
from penstock.core.jobs.workers import WorkerView, is_worker_id, read_worker
from penstock.wire.keys import worker_key, workers_key

__all__ = ["MOST_HELD_JOBS", "merged_workers", "read_held_jobs", "read_workers", "with_jobs"]

WORKER_PAGE = 100
MOST_HELD_JOBS = 1000
"""Most jobs that are read of a queue, and of one page."""


def read_workers(executor: Executor, prefix: str) -> list[WorkerView]:
    """Return the workers in the registry of one node. Nothing is written."""
    key = workers_key(prefix)
    view_of = dict[str, WorkerView]()
    start, skip = b"-inf", 0
    while True:
        page = executor.command(
            *("ZRANGE", key, start, "+inf", "BYSCORE", "LIMIT", skip, WORKER_PAGE, "WITHSCORES")
        )
        scores = page[1::2]
        names = [one.decode("utf-8", "replace") for one in page[::2]]
        ids = [one for one in names if is_worker_id(one)]
        texts = executor.command("MGET", *(worker_key(prefix, one) for one in ids)) if ids else []
        for worker_id, text in zip(ids, texts, strict=True):
            view = None if text is None else read_worker(worker_id, text)
            if view is not None:
                view_of[worker_id] = view
        if len(scores) < WORKER_PAGE:
            return list(view_of.values())
        skip = scores.count(scores[-1]) + (skip if scores[-1] == start else 0)
        start = scores[-1]


def merged_workers(lists: Sequence[Sequence[WorkerView]]) -> list[WorkerView]:
    """Return the workers of several nodes, each once, by name."""
    view_of = dict[str, WorkerView]()
    for view in (view for views in lists for view in views):
        known = view_of.get(view.id)
        if known is None or known.seen < view.seen:
            view_of[view.id] = view
    return sorted(view_of.values(), key=lambda one: (one.name, one.since, one.id))


def read_held_jobs(search: JobSearch) -> list[JobView]:
    """Return the jobs of a search, about 1,000 at most."""
    jobs, cursor = list[JobView](), "0"
    while len(jobs) < MOST_HELD_JOBS:
        page = search.page(cursor)
        jobs += page.jobs
        cursor = page.cursor
        if cursor == "0":
            break
    return jobs


def with_jobs(workers: Sequence[WorkerView], jobs: Sequence[JobView]) -> list[WorkerView]:
    """Return the workers with the jobs whose deliveries name them as the owner."""
    held = dict[str, list[JobView]]()
    for job in sorted(jobs, key=lambda one: one.delivered or 0):
        held.setdefault(job.owner, []).append(job)
    return [replace(worker, jobs=tuple(held.get(worker.name, ()))) for worker in workers]
