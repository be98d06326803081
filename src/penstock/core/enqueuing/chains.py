"""Chains: jobs of which each gets the value of the one before (protocol/hand-over.md, Chains).

The first job carries the others in a header, as JSON. A worker that is done with a link hands over
to the next one, with the rest of the header, in the step that acknowledges it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from penstock.core.enqueuing.new_jobs import JobOptions, NewJob
from penstock.core.enqueuing.next_jobs import NextJobs
from penstock.core.enqueuing.options import NOT_STORED
from penstock.core.jobs.job import Delivery, data_of
from penstock.core.jobs.record import FIRST_FIELDS_BYTES, KEPT_FIELD, escaped, parse_record
from penstock.core.values.checks import Duration, duration_ms
from penstock.core.values.policy import RetryPolicy
from penstock.errors import BadArgument

__all__ = ["CHAIN", "ChainStatus", "chain_of", "linked", "links_of", "next_jobs_of"]

CHAIN = "chain"
"""The header of a job that others follow in a chain."""
MOST_LINKS = 100
"""Most jobs of a chain."""
MOST_CHAIN_BYTES = 12_288
"""Most bytes of the header. All headers of a job have 16 KiB at most."""
SPANS = ("lease", "ttl", "result_ttl", "delay")
KEPT_AS_THEY_ARE = ("priority", "key", "headers")
WHOLE_BODY = ""
"""In place of a parameter: the value is the body."""


@dataclass(frozen=True, slots=True)
class ChainStatus:
    """The state of a chain, or of a job without one.

    Attributes:
        state: "waiting" = its present job has not ended; "dead" = that is a dead letter: a redrive
            goes on; "done", "cancelled", "expired"; "gone" = nothing is kept of it.
        id: of the present job, or the last one.
        done: number of jobs that are done.
        left: number of jobs that follow the present one; 0 if it has ended.
        error: of the dead letter.
    """

    state: str
    id: str
    done: int
    left: int = 0
    error: str = ""


def chain_of(first: Any, following: tuple[tuple[NewJob, str | None], ...], ttl: Duration) -> NewJob:
    """Return the first job of a chain, which carries the others.

    Args:
        first: the first job.
        following: the others, each with the parameter that gets the value of the job before; empty
            = the value is the body; None = it keeps its own arguments.
        ttl: seconds for which each link tells, after its end, how to find the next one.

    Raises:
        BadArgument: they are no jobs, too many or too large, or one has an option that it can't
            have.
    """
    span = duration_ms("result_ttl", ttl, zero=False) / 1000
    if not isinstance(first, NewJob):
        reason = "the first one must be a job of a handler: chain(fetch.job(url), resize)"
        raise BadArgument("jobs", first, reason)
    if not 0 < len(following) < MOST_LINKS:
        reason = f"a chain has 2 to {MOST_LINKS} jobs"
        raise BadArgument("jobs", f"<{len(following) + 1} jobs>", reason)
    queues = {job.queue for job in (first, *(job for job, _ in following)) if job.queue}
    if len(queues) > 1:
        raise BadArgument(
            "jobs", sorted(queues), "a chain lies in one queue: return Done(then=...)"
        )
    links = []
    for job, parameter in following:
        job.options.refuse(NOT_STORED, "a job of a chain can't have it, but the first one")
        _check_lease(job)
        options = _stored({"result_ttl": span} | dict(job.options.by_name))
        if job is not following[-1][0]:
            options["result_ttl"] = max(span, options["result_ttl"])
        links.append([options, job.body, parameter])
    _check_lease(first)
    own = first.options.by_name.get("result_ttl")
    span = span if own is None else max(span, duration_ms("result_ttl", own) / 1000)
    return _carrying(first, links, span)


def _check_lease(job: NewJob) -> None:
    if job.options.by_name.get("lease") == 0:
        reason = "a job of a chain is delivered at least once, so that it can hand over: omit it"
        raise BadArgument("lease", 0, reason)


def _carrying(job: NewJob, links: list[Any], span: float) -> NewJob:
    """Return a job with the links that follow it."""
    try:
        text = json.dumps(links, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        reason = f"arguments and options of a chain must be JSON: {error}"
        raise BadArgument("jobs", f"<{len(links)} jobs>", reason) from error
    size = len(escaped(text))
    if size > MOST_CHAIN_BYTES:
        reason = f"the jobs behind the first one must have at most {MOST_CHAIN_BYTES} bytes"
        raise BadArgument("jobs", f"<{size} bytes>", f"{reason}: store large arguments elsewhere")
    return replace(job, options=job.options.updated({"headers": {CHAIN: text}, "result_ttl": span}))


def _stored(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as JSON has them."""
    stored: dict[str, Any] = {}
    for name, value in options.items():
        if value is None:
            continue
        if name in SPANS:
            stored[name] = duration_ms(name, value) / 1000
        elif name == "retry":
            stored[name] = [value.max_attempts, value.base, value.cap]
        elif name == "on_dead":
            head = JobOptions({"on_dead": value}).prepared(None).coded_head
            stored[name] = parse_record(head + b"\n").on_dead
        elif name in KEPT_AS_THEY_ARE:
            stored[name] = dict(value) if name == "headers" else value
    return stored


def linked(headers: Mapping[str, str]) -> list[Any]:
    """Return the links that follow a job with these headers; empty = it is no link of a chain."""
    try:
        links = json.loads(headers.get(CHAIN, ""))
        return [[dict(options), body, into] for options, body, into in links]
    except (TypeError, ValueError):
        return []  # a header of the user


def links_of(job: Delivery) -> list[Any]:
    """Return the links that follow a job; empty = none. It costs little for a job without a result.

    A job that is no link needs no result, and a link has one.
    """
    is_kept = data_of(job).find(KEPT_FIELD, 0, FIRST_FIELDS_BYTES) > 0
    return linked(job.headers) if is_kept and CHAIN in job.headers else []


def next_jobs_of(links: list[Any], value: Callable[[], Any], then: NextJobs | None) -> NextJobs:
    """Return the jobs that follow a link, those that its handler has asked for among them.

    Args:
        links: those that follow it, at least one.
        value: returns its value.
        then: the jobs that its handler has asked for. The callback of a batch takes the place of
            the link: the others follow that.
    """
    if then is not None and then.batch:
        callback, *members = then.jobs
        span = links[0][0].get("result_ttl", 1)
        return replace(then, jobs=(_carrying(callback, links, span), *members))
    (options, body, into), *rest = links
    if "retry" in options:
        options["retry"] = RetryPolicy(*options["retry"])
    if into == WHOLE_BODY:
        body = value()
    elif into is not None:
        body = [value(), *body] if isinstance(body, list) else {into: value(), **body}
    job = NewJob(body, JobOptions(options))
    if rest:
        job = _carrying(job, rest, options["result_ttl"])
    jobs = () if then is None else then.jobs
    return NextJobs((job, *jobs), is_chain=True)
