"""Results of jobs: values of handlers as JSON, and the errors of jobs that have none."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from penstock.core.jobs.job import Delivery, JobName, data_of, record_of
from penstock.core.jobs.record import encode_body
from penstock.core.jobs.views import JobResult
from penstock.core.values.ids import AT_LEAST_ONCE_FOREVER, encode_id, parse_id
from penstock.errors import BadArgument, JobCancelled, JobExpired, JobFailed, ResultGone

__all__ = [
    "CHAIN",
    "CHAIN_FIELD",
    "NEXT_LINK",
    "AckResults",
    "count_fitting",
    "encoded_value",
    "linked",
    "links_of",
    "missing_value_mark",
    "next_link",
    "refuse_links",
    "results_of",
    "value_of",
    "value_to_pass",
]

NO_VALUE = (b"", "")
NEXT_LINK = "next"
"""Flag in place of the value of a link of a chain; behind it is the number of the next one."""
CHAIN = "chain"
"""The header of a job that others follow in a chain."""
CHAIN_FIELD = b";h.chain="
"""Its field in a record. If that lacks it, nothing follows."""
RESULT_BYTES_PER_CALL = 1_048_576
"""Most bytes of values that one call brings, unless it brings one value."""

MISSING_VALUE_REASONS = {
    "large": "it was larger than the queue's result_size",
    "full": "the server's memory was full",
    "json": "it could not be written as JSON; the worker's log has the reason",
    NEXT_LINK: "its chain has gone on, and the job that follows it tells more",
    "room": "those of the batch were larger than 16 MiB together",
    "hint": "its node was down when the job was done, and hints carry no values",
}
"""Reasons for which a value was not kept, by flag."""


class AckResults(NamedTuple):
    """The results that go out with an ack (protocol/results.md).

    Attributes:
        spans: ms for which they are kept: one for all, or one for each job, separated by blanks.
        values: the result of each job; empty = nothing is kept of it.
    """

    spans: str
    values: list[bytes]


def encoded_value(value: object) -> bytes:
    """Return the JSON of a value that a handler returned.

    Raises:
        BadArgument: it can't be written as JSON.
    """
    try:
        raw, is_coded = encode_body(value)
    except BadArgument as error:
        raise BadArgument("result", value, error.reason) from error
    if not is_coded:
        raise BadArgument("result", value, "can't be written as JSON: return text, not bytes")
    return raw


def results_of(jobs: Sequence[Delivery], seconds: Sequence[float]) -> AckResults | None:
    """Return the results that go out with an ack of these jobs; None = none of them is kept.

    Args:
        jobs: the jobs, in the order of the call.
        seconds: how long the handler of each has taken.
    """
    spans = [record_of(job).result_ms or _goes_on(job) for job in jobs]
    if not any(spans):
        return None
    values = [
        _result(job, taken) if span else b""
        for job, taken, span in zip(jobs, seconds, spans, strict=True)
    ]
    times = spans if len(set(spans)) > 1 else spans[:1]
    return AckResults(" ".join(map(str, times)), values)


def _goes_on(job: Delivery) -> int:
    return int(getattr(job, "_result", NO_VALUE)[1] == NEXT_LINK)  # the script looks for its flag


def count_fitting(jobs: Sequence[Delivery]) -> int:
    """Return how many leading jobs fit in one call by the bytes of their results (at least 1)."""
    sizes = list(accumulate(len(getattr(job, "_result", NO_VALUE)[0]) for job in jobs))
    return max(1, bisect_right(sizes, RESULT_BYTES_PER_CALL))


def _result(job: Delivery, seconds: float) -> bytes:
    value, flag = getattr(job, "_result", NO_VALUE)
    kept = f"!{flag}".encode() if flag else value
    return b"%d %d %b" % (job.attempt, round(seconds * 1000), kept)


def value_to_pass(job: Delivery) -> Any:
    """Return the value that the next job of a chain gets.

    Raises:
        BadArgument: it is not JSON, or larger than `result_size`.
    """
    raw, flag = getattr(job, "_result", NO_VALUE)
    if flag:
        why = MISSING_VALUE_REASONS.get(flag, flag)
        raise BadArgument("result", f"<of {job.id}>", f"can't go to the next job of a chain: {why}")
    return json.loads(raw) if raw else None


def next_link(job_id: str, result: JobResult | None) -> str | None:
    """Return the id of the job that follows a link of a chain; None = it is none, or the last."""
    if result is None or result.missing != NEXT_LINK:
        return None
    parsed = parse_id(job_id)
    place = parsed.crc.to_bytes(4, "big") + bytes.fromhex(parsed.epoch)
    return encode_id(parsed.node, place, result.value, AT_LEAST_ONCE_FOREVER)


def linked(headers: Mapping[str, str]) -> list[Any]:
    """Return the links that follow a job with these headers; empty = it is no link of a chain."""
    try:
        links = json.loads(headers.get(CHAIN, ""))
        return [[dict(options), body, into] for options, body, into in links]
    except (TypeError, ValueError):
        return []  # a header of the user


def links_of(job: Delivery) -> list[Any]:
    """Return the links that follow a job; empty = none."""
    data = data_of(job)
    has_links = data.find(CHAIN_FIELD, 0, data.find(b"\n")) > 0
    return linked(job.headers) if has_links else []


def refuse_links(jobs: Iterable[JobName]) -> None:
    """Refuse deliveries that others follow in a chain, for an ack that adds none.

    Raises:
        BadArgument: a job is a link; nothing was done.
    """
    for job in jobs:
        if isinstance(job, Delivery) and links_of(job):
            reason = "jobs follow it in a chain, and a worker hands over: return the value"
            raise BadArgument("job", job.id, f"{reason}, or cancel the chain")


def missing_value_mark(job: Delivery) -> str:
    """Return the hint text that marks the value of this job as missing.

    Returns:
        The time of keeping in ms and the result, as an ack has them; empty = no value is lost.
    """
    (value, flag), span = getattr(job, "_result", NO_VALUE), record_of(job).result_ms
    if not span or (not flag and value in (b"", b"null")):
        return ""
    return f"{span} {job.attempt} 0 !{flag or 'hint'}"


def value_of(job_id: str, result: JobResult | None) -> Any:
    """Return the value of a job that has ended.

    Raises:
        JobFailed, JobCancelled, JobExpired, ResultGone: it has none.
    """
    if result is None:
        text = (
            "it is gone and nothing is kept of it; a result is kept for the result_ttl of its"
            " handler or enqueue, such as result_ttl=3600, and without one not at all"
        )
        raise ResultGone(f"job {job_id} has no result: {text}")
    if result.state == "dead":
        raise JobFailed(job_id, result.value.decode("utf-8", "replace"), result.attempt)
    if result.state == "cancelled":
        raise JobCancelled(f"job {job_id} was cancelled")
    if result.state == "expired":
        raise JobExpired(f"job {job_id} expired: its ttl ended before it was done")
    if result.missing:
        why = MISSING_VALUE_REASONS.get(result.missing, result.missing)
        raise ResultGone(f"job {job_id} is done, but its value was not kept: {why}")
    return json.loads(result.value) if result.value else None
