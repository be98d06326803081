"""The texts that a worker logs about itself and about failed jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from penstock.core.jobs.job import Delivery
from penstock.core.jobs.logs import counted, span
from penstock.core.jobs.queue_stats import Settings
from penstock.core.values.policy import BASE_MS, CAP_MS
from penstock.worker.failures import stored_policy
from penstock.worker.options import WorkerOptions
from penstock.worker.results import Verdict
from penstock.worker.running import RunningJob

__all__ = ["FAILED_OUTCOMES", "end_text", "is_last", "prospect", "running_text", "start_text"]

FAILED_OUTCOMES = ("retried", "dead", "rejected", "failed", "unconfirmed", "lost")
"""Outcomes that the last line of a worker counts as failures."""
DEFAULT_MAX_ATTEMPTS = 20
"""The limit of attempts of a queue that sets none."""
MOST_BACKOFF_DOUBLINGS = 42
MOST_LISTED_NAMES = 5
"""Most names or jobs that a line lists."""


def shortened(names: Iterable[str], *, most: int = MOST_LISTED_NAMES) -> str:
    """Return the first names, and how many more there are."""
    listed = list(names)
    more = [f"{len(listed) - most} more"] if len(listed) > most else []
    return ", ".join(listed[:most] + more)


def start_text(
    options: WorkerOptions, where: str, handlers: Sequence[str], schedules: Sequence[str]
) -> str:
    """Return what a worker does, for its first line."""
    queues, known = ", ".join(options.queues), f"; handlers: {shortened(handlers)}"
    if schedules:
        known += f"; schedules: {shortened(schedules)}"
    return f"jobs of {queues} from {where}{known}; concurrency {options.concurrency}"


def running_text(running: Sequence[RunningJob]) -> str:
    """Return the jobs whose handlers run, the oldest first."""
    jobs = [
        f"{job.handler or 'a job'} of {job.queue} ({job.id}, running for {span(job.seconds)})"
        for job in running
    ]
    return f"{counted(len(jobs), 'job')}: {shortened(jobs)}"


def end_text(counts: Mapping[str, int], seconds: float) -> str:
    """Return the summary of a worker's life."""
    failed = {name: counts[name] for name in FAILED_OUTCOMES if counts.get(name)}
    others = counts.keys() - {*FAILED_OUTCOMES, "done", "settled"}
    rest = {name: counts[name] for name in sorted(others)}
    details = ", ".join(f"{count} {name}" for name, count in {**failed, **rest}.items())
    done = counts.get("done", 0) + counts.get("settled", 0)
    text = f"{counted(done, 'job')} done, {sum(failed.values())} failed in {span(seconds)}"
    return f"{text} ({details})" if details else text


def _limit(job: Delivery, settings: Settings | None) -> int | None:
    """Return the most attempts of a job; 0 = no limit, None = not known."""
    if job.at_most_once:
        return 1
    stored = stored_policy(job)
    if stored is not None and stored.max_attempts is not None:
        return stored.max_attempts
    if settings is None:
        return None
    return DEFAULT_MAX_ATTEMPTS if settings.max_attempts is None else settings.max_attempts


def is_last(job: Delivery, verdict: Verdict, settings: Settings | None) -> bool:
    """Return True if a failed job will not be tried again, as far as is known."""
    most = _limit(job, settings)
    return verdict.kind == "bury" or (bool(most) and job.attempt >= (most or 0))


def prospect(job: Delivery, verdict: Verdict, settings: Settings | None) -> str:
    """Return the number of a failed attempt, and when the next one is.

    Args:
        job: the job.
        verdict: the report about it.
        settings: those of its queue; None = they are not known.
    """
    limits = [limit for limit in (verdict.limit, _limit(job, settings)) if limit]
    attempt = f"attempt {job.attempt}" + (f" of {min(limits)}" if limits else "")
    if is_last(job, verdict, settings):
        return attempt
    if verdict.delay_ms >= 0:
        return f"{attempt}, next try in {span(verdict.delay_ms / 1000)}"
    longest = _longest_delay(job, settings)
    return attempt if longest is None else f"{attempt}, next try within {span(longest)}"


def _longest_delay(job: Delivery, settings: Settings | None) -> float | None:
    """Return the seconds below which the script draws the delay; None = not known."""
    stored, bounds = stored_policy(job), []
    for name, default in (("base", BASE_MS / 1000), ("cap", CAP_MS / 1000)):
        own = getattr(stored, name, None)
        if own is None and settings is None:
            return None
        bounds.append(own or getattr(settings, f"backoff_{name}", None) or default)
    base, cap = bounds
    return float(min(cap, base * 2.0 ** min(job.nacks, MOST_BACKOFF_DOUBLINGS)))
