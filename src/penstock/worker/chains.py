"""Chains that a caller composes of jobs and handlers."""

from __future__ import annotations

from functools import partial
from typing import Any

from penstock.core.enqueuing.chains import chain_of
from penstock.core.enqueuing.new_jobs import NewJob
from penstock.core.values.checks import Duration
from penstock.errors import BadArgument
from penstock.worker.registered import AnyHandler, RegisteredHandler

__all__ = ["chain"]


def chain(
    first: NewJob,
    /,
    *following: AnyHandler | partial[Any] | NewJob,
    result_ttl: Duration = 86_400,
) -> NewJob:
    """Return a job that others follow: each begins when the one before is done, with its value.

        job = queue.enqueue(chain(fetch.job(url), resize, partial(upload, bucket="a")))
        job.result()  # that of the last one

    It is added as any job: by `enqueue`, to a batch, by `Done(then=[...])`. A worker acknowledges a
    link and adds the next one in one step, as with `Done(then=...)`. All lie in one queue.

    Args:
        first: the first job.
        *following: what follows, 99 at most: a handler gets the value of the job before as its
            first argument, `partial(resize, width=100)` others behind it. A job keeps the arguments
            that it has. A handler that gets whole jobs has the value as body.
        result_ttl: seconds for which each link tells, after its end, which job follows, and the
            last one its value, unless its handler says longer. A link that waits and runs for
            longer than this is lost for `result`, `status` and `cancel`, and goes on. An `enqueue`
            refuses a shorter one.

    Raises:
        BadArgument: an argument is none of these, a handler can't be called so, or has another
            queue than the first job, or the jobs behind that have more than 12 KiB, or an option
            that they can't have: `at`, `max_length`, `block`, `replicas`, `durable`, a dedup id, or
            lease 0.

    Examples:
        >>> from functools import partial
        >>> handlers = Handlers()
        >>> @handlers.handler
        ... def add(a: int, b: int) -> int:
        ...     return a + b
        >>> job = q.enqueue(chain(add.job(1, 2), partial(add, b=10), partial(add, b=100)))
        >>> Worker(ps, q, handlers, burst=True).run()
        >>> job.result(timeout=10)
        113
    """
    return chain_of(first, tuple(_link(one) for one in following), result_ttl)


def _link(one: object) -> tuple[NewJob, str | None]:
    if isinstance(one, NewJob):
        return one, None
    if isinstance(one, RegisteredHandler):
        return one.link((), {})
    if isinstance(one, partial) and isinstance(one.func, RegisteredHandler):
        return one.func.link(one.args, one.keywords)
    raise BadArgument("jobs", one, "must be a handler, partial(handler, ...) or a job of a handler")
