"""One run of a handler: its arguments, and the verdicts on its jobs.

Runners differ in how they call the function: in a thread, in a task of an event loop, in a task of
Spark. These rules are the same for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from penstock.core.job import Delivery
from penstock.core.logs import ONCE, Fields, get_logger, log_failure
from penstock.worker.handlers import Handler
from penstock.worker.results import ACK, Result, Verdict, described

__all__ = ["arguments_of", "concluded", "failed", "unfit"]

logger = get_logger("penstock")

PLAIN = frozenset({type(None), bool, int, float, str, bytes, dict})
"""Types of return values that mean success."""


def arguments_of(
    handler: Handler[..., Any], jobs: Sequence[Delivery]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and keyword arguments for a run.

    Raises:
        Unfit: the body of the job does not fit the function.
    """
    return handler.arguments(jobs[0]) if handler.size is None else ((list(jobs),), {})


def concluded(
    handler: Handler[..., Any], jobs: Sequence[Delivery], value: Any
) -> list[Verdict] | None:
    """Return the verdicts after a handler has returned a value; None = all are acknowledged."""
    if type(value) in PLAIN:
        return None
    if handler.size:
        return handler.returned_batch(jobs, value)
    verdict = handler.returned(jobs[0], value)
    return None if verdict is ACK else [verdict]


def failed(
    handler: Handler[..., Any], jobs: Sequence[Delivery], error: BaseException
) -> list[Verdict]:
    """Return the verdicts after a handler has raised. One failure is logged once for all jobs."""
    verdicts = [handler.failed(job, error) for job in jobs]
    if isinstance(error, Result):
        return verdicts
    final = [
        job
        for job, verdict in zip(jobs, verdicts, strict=True)
        if verdict.kind == "bury" or job.at_most_once
    ]
    ending = "" if not final else ONCE if final[0].at_most_once else "a dead letter"
    with suppress(Exception):  # a filter of the user's log must not end the runner
        log_failure((final or jobs)[0], described(error), error, ending=ending)
    return verdicts


def unfit(job: Delivery, reason: str) -> Verdict:
    """Return the verdict on a job that no handler can process."""
    with suppress(Exception):  # as above
        logger.error("%s becomes a dead letter: %s", job.id, reason, extra=Fields(job))
    return Verdict("bury", text=reason)
