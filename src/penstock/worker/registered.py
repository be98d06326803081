"""A registered function: its arguments for a job, and the verdict on a job that it handled."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from penstock.core.job import Delivery
from penstock.core.options import Duration, check_text, duration_ms
from penstock.core.policy import RetryPolicy
from penstock.core.schedules import Spec
from penstock.errors import BadArgument, UndecodableBody
from penstock.wire.keys import check_queue_name
from penstock.worker.arguments import Converter, Parameters, Unfit, decoded
from penstock.worker.failures import Backoff
from penstock.worker.functions import check_function, is_async, qualified
from penstock.worker.results import ACK, MAX_TEXT, Result, Retry, Verdict, described

__all__ = ["DEFAULT", "RegisteredHandler", "seconds_of", "title_of"]

DEFAULT = ""
"""The key of the default handler in its set. No name is empty."""


class RegisteredHandler:
    """A registered function: what `Handler` and `BoundHandler` have in common.

    Attributes:
        name: the name in the header of its jobs; None = it has none.
        key: the key in its set: the name or None; `DEFAULT` = it is the default handler.
        queue: name of the queue of its jobs; None = it names none.
        function: the decorated function.
        is_async: whether a call returns a coroutine.
        size: most jobs of one call of a chunk handler; None = it gets one job a call.
        wait: seconds for which a chunk that is not full waits for more jobs.
        is_whole: whether the function gets whole jobs, and not arguments.
        takes_job: whether a job is its only argument.
        time_limit: seconds that a call may take; None = the worker's limit.
        schedule: when jobs of it are added; None = it has no schedule.

    Raises:
        BadArgument: the function can't be a handler.
    """

    def __init__(
        self,
        function: Any,
        name: str | None = None,
        *,
        key: str | None = None,
        queue: str | None = None,
        convert: Converter | None = None,
        size: int | None = None,
        chunk_wait: float = 0.0,
        backoff: Backoff | None = None,
        time_limit: Duration | None = None,
        schedule: Spec | None = None,
    ) -> None:
        if isinstance(function, RegisteredHandler):
            reason = (
                "is a handler already: add it with include() of its set, or decorate the function"
            )
            raise BadArgument("function", function, reason)
        if queue is not None:
            check_queue_name(queue)
        self.is_whole = name is None or size is not None
        check_function(function, whole=self.is_whole)
        if schedule is not None:
            _check_schedule(name, queue)
        wrapper: Any = self
        functools.update_wrapper(wrapper, function, updated=())
        self.name, self.key = name, name if key is None else key
        self.queue = queue
        self.function: Callable[..., Any] = function
        self.is_async = is_async(function)
        self.size = size
        self.takes_job = self.is_whole and size is None
        self.wait = chunk_wait
        self.time_limit = seconds_of("time_limit", time_limit)
        self.schedule = schedule
        self._backoff = backoff or Backoff()
        self._convert = convert
        self._parameters: Parameters | None = None
        if not self.is_whole:
            with contextlib.suppress(NameError):  # an annotation names what is defined later
                self._parameters = Parameters(function, convert, strict=True)

    @property
    def retry(self) -> RetryPolicy | None:
        """Policy for failures, or None."""
        return self._backoff.retry

    @property
    def title(self) -> str:
        """Name for people."""
        return title_of(self.key)

    def __repr__(self) -> str:
        named = repr(self.name) if self.name else self.title
        return f"<{type(self).__name__} {named}: {qualified(self.function)}>"

    def check(self) -> Parameters:
        """Return the parameters, with the annotations that can be resolved now.

        Raises:
            BadArgument: the function can't be a handler.
        """
        if self._parameters is None:
            self._parameters = Parameters(self.function, self._convert)
        return self._parameters

    def arguments(self, job: Delivery) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of the function for a job.

        Raises:
            Unfit: the body is not JSON, or does not fit the function; the job has to become a dead
                letter.
        """
        if self.is_whole:
            return (job,), {}
        try:
            return (self._parameters or self.check()).bind(decoded(job), job)
        except BadArgument as error:
            raise Unfit(f"arguments don't fit {self.name}: {error}") from error

    def returned(self, job: Delivery, value: Any) -> Verdict:
        """Return the verdict on a job whose handler returned a value.

        A `Result` brings its own verdict. An exception counts as if it had been raised. A generator
        or awaitable is a failure, as its work was not done. Anything else is success.
        """
        if value is None:
            return ACK
        if isinstance(value, type) and issubclass(value, Result):
            try:
                value = value()
            except TypeError as error:
                value = error
        if isinstance(value, BaseException):
            return self.failed(job, value)
        kinds = (inspect.isawaitable, inspect.isgenerator, inspect.isasyncgen)
        if not any(is_kind(value) for is_kind in kinds):
            return ACK
        if inspect.iscoroutine(value):
            with contextlib.suppress(Exception):
                value.close()  # otherwise Python warns that it was never awaited
        return self.failed(job, TypeError(f"the handler returned a {type(value).__name__}"))

    def returned_chunk(self, jobs: Sequence[Delivery], value: Any) -> list[Verdict] | None:
        """Return the verdicts on the jobs of a chunk; None = all are acknowledged.

        Args:
            jobs: the argument of the function.
            value: its return value. Each element of a list or tuple concerns one job, as in
                `returned`; any other value concerns all jobs. A list of another length that holds
                results is a failure of all jobs.
        """
        if value is None:
            return None
        each: Sequence[Any] = value if isinstance(value, (list, tuple)) else [value] * len(jobs)
        if len(each) != len(jobs):
            if not any(isinstance(one, BaseException) for one in each):
                return None
            each = [ValueError(f"{len(each)} results for {len(jobs)} jobs")] * len(jobs)
        verdicts = [self.returned(job, one) for job, one in zip(jobs, each, strict=True)]
        return None if all(verdict is ACK for verdict in verdicts) else verdicts

    def failed(self, job: Delivery, error: BaseException) -> Verdict:
        """Return the verdict on a job whose handler raised. Never raises.

        A `Result` brings its own verdict. For other exceptions the first policy that applies
        decides: the rule of the handler's policy for this exception, its tenacity objects, the
        policy stored with the job, the handler's policy, the queue's policy.

        If the exception shows that the job's body can't be decoded, the job becomes a dead letter.
        No rule exceeds the limits of the job and of the queue.
        """
        if isinstance(error, UndecodableBody) and _undecodable(job):
            return Verdict(
                "bury", text=check_text("error", f"body can't be decoded: {error}", limit=MAX_TEXT)
            )
        if not isinstance(error, Result):
            return self._backoff.verdict(job, error, described(error))
        if not isinstance(error, Retry):
            return error.verdict
        own = error.verdict
        cause = error.__cause__ or error
        text = own.text or ("" if cause is error else described(cause))
        verdict = self._backoff.verdict(job, cause, text)
        if verdict.kind == "nack" and own.delay_ms >= 0:
            return verdict._replace(delay_ms=own.delay_ms, is_asked=True)
        return verdict


def seconds_of(name: str, value: Duration | None) -> float | None:
    """Return a duration in seconds; None stays None.

    Raises:
        BadArgument: not a duration above 0.
    """
    return None if value is None else duration_ms(name, value, zero=False) / 1000


def _check_schedule(name: str | None, queue: str | None) -> None:
    """Check that a handler can have a schedule.

    Raises:
        BadArgument: it has no name, or no queue.
    """
    if name is None:
        reason = "a handler without a name can't have a schedule: name it, or use queue.schedule()"
        raise BadArgument("name", name, reason)
    if queue is None:
        reason = 'a handler with a schedule names its queue: handlers.handler(queue="reports", ...)'
        raise BadArgument("queue", queue, reason)


def title_of(key: str | None) -> str:
    """Return the name of a handler for people."""
    return "without a name" if key is None else key or "default"


def _undecodable(job: Delivery) -> bool:
    try:
        job.body  # noqa: B018  # another job's may be the one that could not be decoded
    except UndecodableBody:
        return True
    return False
