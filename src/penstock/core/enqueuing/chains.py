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
from penstock.core.enqueuing.prepared import Prepared
from penstock.core.jobs.record import escaped, parse_record
from penstock.core.jobs.results import CHAIN
from penstock.core.values.checks import Duration, duration_ms, lease_ms
from penstock.core.values.policy import RetryPolicy
from penstock.errors import BadArgument

__all__ = ["ChainStatus", "chain_of", "next_jobs_of"]

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


class LinkOptions(JobOptions):
    """The options of a job that others follow in a chain: those of a call can't end the chain."""

    __slots__ = ()

    def joined(self, call: Prepared) -> Prepared:
        """Return these options with those of a call, which win.

        Raises:
            BadArgument: the call would lose the chain: by a shorter `result_ttl`, by lease 0, or by
                another header `chain`.
        """
        chosen, least = call.arguments, self.by_name["result_ttl"]
        _check_lease(chosen)
        span = chosen.get("result_ttl")
        if span is not None and duration_ms("result_ttl", span) < duration_ms("result_ttl", least):
            reason = f"each job of this chain tells for {least:g} s which one follows"
            raise BadArgument("result_ttl", span, f"{reason}: say it in chain(..., result_ttl=...)")
        headers = chosen.get("headers") or {}
        if headers.get(CHAIN, self.headers[CHAIN]) != self.headers[CHAIN]:
            reason = f"the header {CHAIN!r} has the jobs of the chain: omit it"
            raise BadArgument("headers", headers, reason)
        return super().joined(call)


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
    for job, _ in following:
        if job.queue not in (None, first.queue):
            reason = "a chain lies in one queue, that of the first job: return Done(then=...)"
            raise BadArgument("jobs", [first.queue, job.queue], reason)
    links = []
    for job, parameter in following:
        job.options.refuse(NOT_STORED, "a job of a chain can't have it, but the first one")
        _check_lease(job.options.by_name)
        options = _stored(job.options.by_name)
        options["result_ttl"] = max(span, options.get("result_ttl", 0))
        links.append([options, job.body, parameter])
    _check_lease(first.options.by_name)
    own = first.options.by_name.get("result_ttl")
    span = span if own is None else max(span, duration_ms("result_ttl", own) / 1000)
    return _carrying(first, links, span)


def _check_lease(options: Mapping[str, Any]) -> None:
    lease = options.get("lease")
    if lease is not None and lease_ms("lease", lease) == 0:
        reason = "a job of a chain is delivered at least once, so that it can hand over: omit it"
        raise BadArgument("lease", lease, reason)


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
    options = job.options.updated({"headers": {CHAIN: text}, "result_ttl": span})
    return replace(job, options=LinkOptions(options.by_name))


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
