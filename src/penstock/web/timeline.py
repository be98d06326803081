"""The timeline of a job: its times, its steps and its failures, in order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from penstock.core.jobs.logs import span
from penstock.core.jobs.marks import Failure
from penstock.core.jobs.views import JobView, StepKind, StepView

__all__ = ["JobTime", "timeline_of"]


class JobTime(NamedTuple):
    """One time in the life of a job.

    Attributes:
        at: seconds since 1970.
        what: for people.
        kind: a state whose colour it has; empty = none.
        more: more about it, in the same line.
        text: an error.
    """

    at: float
    what: str
    kind: str = ""
    more: str = ""
    text: str = ""


def timeline_of(job: JobView) -> list[JobTime]:
    """Return the times of a job, the earliest first."""
    kind = "active" if job.state == "done" else "dead"
    times = [
        (job.created, "enqueued", ""),
        (job.delivered, "last delivered", "active"),
        (job.cancelled, "cancelled", "dead"),
        (job.due, _name_of_due(job), "scheduled"),
        (job.lease_until, "lease ends", "active"),
        (job.expires, "expires", ""),
    ]
    ends = [(job.died, "died", "dead"), (job.finished, job.state, kind)]
    found = [*_known(times), *map(_taken, job.steps), *map(_failed, job.failures), *_known(ends)]
    return sorted(found, key=lambda one: one.at)  # of one time: in this order


STEP_TEXTS: dict[StepKind, str] = {
    "run": "step", "sleep": "sleep", "call": "call", "signal": "signal", "timeout": "no signal",
}  # fmt: skip


def _taken(step: StepView) -> JobTime:
    more = "" if step.seconds is None else f", for {span(step.seconds)}"
    if step.job is not None:
        more = f" {step.job}: {step.state}"
    return JobTime(step.at, f"{STEP_TEXTS[step.kind]} {step.name}", "", more)


def _name_of_due(job: JobView) -> str:
    if job.is_asleep:
        return "sleeps until"
    if job.signal is not None:
        return f"waits for signal {job.signal} until"
    if job.state != "parked":
        return "due"
    return "its key is held until" if job.key_held else "waits for its key until"


def _known(times: Iterable[tuple[float | None, str, str]]) -> list[JobTime]:
    return [JobTime(at, what, kind) for at, what, kind in times if at is not None]


def _failed(one: Failure) -> JobTime:
    after = "" if one.seconds is None else f", after {span(one.seconds)}"
    on = f", on {one.owner}" if one.owner else ""
    return JobTime(one.at, "failed", "dead", after + on, one.text)
