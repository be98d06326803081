"""Ids of jobs as people type them: whole, or the beginning of an id or of its second half.

All ids of a queue begin with the same node. What follows it, from the 13th character on, begins
with the job's number, which takes 13 characters: no other job of the queue on that node has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from penstock import Penstock, Queue
from penstock.cli.output import Failed
from penstock.core.values.ids import ID_LENGTH

__all__ = ["JOBS_PER_SEARCH", "each_id", "find_job", "whole_ids"]

UNIQUE_PART = slice(12, 35)
"""The part that differs from job to job; the character before it is always a hyphen."""
MIN_PREFIX_LENGTH = 4
"""Characters that the beginning of an id must have."""
LISTED_IDS = 5
"""Most ids that an error lists."""
JOBS_PER_SEARCH = 1000


def whole_ids(queue: Queue, texts: Sequence[str]) -> list[str]:
    """Return the ids of jobs of a queue; beginnings are looked up among all its jobs.

    Raises:
        Failed: no job, or several, have an id that begins so.
    """
    found: dict[str, list[str]] = {text: [] for text in texts if len(text) < ID_LENGTH}
    if found:
        for job_id in each_id(queue):
            for text, ids in found.items():
                if _begins(job_id, text):
                    ids.append(job_id)
    return [_only(queue.name, text, found[text]) if text in found else text for text in texts]


def find_job(client: Penstock, text: str) -> tuple[Queue, str]:
    """Return the queue and the id of a job whose id begins with a text, among all queues.

    Raises:
        Failed: no job, or several, have an id that begins so.
    """
    queues = [client.open(name) for name in client.queues()]
    found = {one: queue for queue in queues for one in each_id(queue) if _begins(one, text)}
    job_id = _only(None, text, list(found))
    return found[job_id], job_id


def _begins(job_id: str, text: str) -> bool:
    return len(text) >= MIN_PREFIX_LENGTH and (
        job_id.startswith(text) or job_id[UNIQUE_PART].startswith(text)
    )


def _only(queue: str | None, text: str, ids: Sequence[str]) -> str:
    if len(ids) == 1:
        return ids[0]
    if not ids:
        place = "no queue has a" if queue is None else f"queue {queue!r} has no"
        raise Failed(
            f"{place} job whose id begins with {text!r}; give {MIN_PREFIX_LENGTH} characters or "
            "more, or the whole id of a job that has ended"
        )
    listed = ", ".join(sorted(ids)[:LISTED_IDS])
    more = ", …" if len(ids) > LISTED_IDS else ""
    raise Failed(f"{len(ids)} jobs have ids that begin with {text!r}, give more: {listed}{more}")


def each_id(queue: Queue, states: Sequence[str] = (), **chosen: Any) -> Iterator[str]:
    """Yield the id of each job of a queue that is chosen, once, in bounded steps."""
    seen: set[str] = set()  # an id may be found twice
    search, cursor = queue.jobs(states or None, n=JOBS_PER_SEARCH, **chosen), ""  # type: ignore[arg-type]  # it checks them
    while cursor != "0":
        page = search.page(cursor or "0", full=False)
        yield from dict.fromkeys(one for one in page.ids if one not in seen)
        seen.update(page.ids)
        cursor = page.cursor
