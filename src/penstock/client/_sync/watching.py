# From src/penstock/client/_async/watching.py by tools/unasync.py; do not edit.
"""Watching a job: what happens to it, as events, until its end."""

from __future__ import annotations

import math
from collections.abc import Iterator

from penstock.client._sync.route.interfaces import Routed
from penstock.client._sync.route.part import Part
from penstock.client._sync.transport.finished import JobWait
from penstock.client.clock import monotonic
from penstock.core.jobs.events import JobEvent, JobStory, LookedAt
from penstock.core.jobs.job import JobName
from penstock.core.jobs.results import next_link
from penstock.errors import ResultTimeout

__all__ = ["watch_job"]

MANY_ENTRIES = 10
"""Fewest entries of a reply that has left some out: it has about 1 MiB of them."""


def watch_job(
    queue: Routed, job: JobName, *, span: float | None, look_again: float
) -> Iterator[JobEvent]:
    """Yield what happens to a job; see `Queue.watch`.

    Args:
        queue: of the job.
        job: a delivery or an id.
        span: seconds in which the job must have ended; None = it need not.
        look_again: seconds after which a job of which nothing was told is looked at.
    """
    names = [job]
    until, wait = math.inf if span is None else monotonic() + span, JobWait()
    story = JobStory(_id_of(names[0]))

    def look(part: Part, own: list[JobName]) -> list[LookedAt | None]:
        return [part.watch(own[0], story.place, None if span == 0 else wait)]

    try:
        while True:
            [seen] = queue.route.refresh().call_parts(names, look, None)
            assert seen is not None
            following = next_link(_id_of(names[0]), seen.result)
            for event in story.read(seen):
                if not (following and event.kind == "ended"):
                    yield event
            if following:
                names, story = [following], JobStory(following)
                continue
            left = until - monotonic()
            if story.has_ended:
                return
            if seen.read >= MANY_ENTRIES:  # there may be more
                continue
            if left <= 0:
                raise ResultTimeout(f"job {names[0]!s} has not ended within {span} s")
            wait.pause([seen.last, story.place], min(left, look_again))
    finally:
        wait.leave()


def _id_of(name: JobName) -> str:
    return name if isinstance(name, str) else name.id
