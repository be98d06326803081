"""The retry policies of a handler, in their order."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Any

from penstock.core.jobs.job import Delivery
from penstock.core.jobs.logs import Fields, get_logger
from penstock.core.values.checks import MAX_DURATION_MS
from penstock.core.values.policy import RETRY_FORM, RetryPolicy
from penstock.errors import BadArgument
from penstock.worker.results import Result, Verdict

if TYPE_CHECKING:
    from tenacity import RetryCallState
    from tenacity.stop import stop_base
    from tenacity.wait import wait_base

__all__ = ["Backoff", "UnclearError", "stored_policy"]

logger = get_logger("penstock.worker")

UNDECIDED = -1
"""A delay that leaves the decision to the next policy."""


class UnclearError(BaseException):
    """Stands for an exception of a handler that raises others when it is looked at.

    The handler has not raised it. So it is no `Exception`, and rules for that do not cover it.
    """

    def __init__(self) -> None:
        super().__init__("the handler's exception could not be described")


class Backoff:
    """The retry policies of one handler.

    Args:
        retry: a policy.
        wait, stop: objects of tenacity.

    Attributes:
        retry: the policy.
        stored: the part of it that can be stored with a job; None = nothing.

    Raises:
        BadArgument: an argument has another type.
    """

    def __init__(
        self,
        retry: RetryPolicy | None = None,
        wait: wait_base | None = None,
        stop: stop_base | None = None,
    ) -> None:
        if retry is not None and not isinstance(retry, RetryPolicy):
            raise BadArgument("retry", retry, RETRY_FORM)
        self.retry = retry
        self.stored: RetryPolicy | None = None
        if retry is not None and (retry.max_attempts, retry.base, retry.cap) != (None, None, None):
            self.stored = RetryPolicy(retry.max_attempts, retry.base, retry.cap)
        self._tenacity = None if wait is None and stop is None else _Tenacity(wait, stop)

    def verdict(self, job: Delivery, error: BaseException, text: str) -> Verdict:
        """Return the verdict on a failed job by the first policy that applies.

        Their order: the rule for this exception, tenacity's objects, the policy stored with the
        job, the handler's, the queue's. The script always applies the limit of attempts of the
        job or the queue as well.
        """
        retry = self.retry
        if retry is not None and retry.on and _is_ruled(retry, error):
            return _verdict_of_policy(retry.matching(error), job, text)
        if self._tenacity is not None:
            delay_ms = self._tenacity.delay_ms(job, error)
            if delay_ms is None:
                return Verdict("bury", text=text)
            if delay_ms != UNDECIDED:
                return Verdict("nack", delay_ms, text)
        if retry is None or stored_policy(job) is not None:
            return Verdict("nack", text=text)
        return _verdict_of_policy(retry, job, text)


class _Tenacity:
    def __init__(self, wait: Any, stop: Any) -> None:
        import tenacity  # slow to import, and rarely used
        from tenacity.stop import stop_base
        from tenacity.wait import wait_base

        if wait is not None and not isinstance(wait, wait_base):
            raise BadArgument("wait", wait, "must be a wait object of tenacity")
        if stop is not None and not isinstance(stop, stop_base):
            raise BadArgument("stop", stop, "must be a stop object of tenacity")
        self._wait = wait
        self._stop = stop
        self._retrying = tenacity.Retrying(
            wait=wait or tenacity.wait_none(), stop=stop or tenacity.stop_never
        )

    def delay_ms(self, job: Delivery, error: BaseException) -> int | None:
        """Return the delay of the next attempt; UNDECIDED = not decided; None = give the job up."""
        try:
            state = self._state(job, error)
            delay = None if self._wait is None else float(self._wait(state))
            state.upcoming_sleep = delay or 0.0
            if self._stop is not None and self._stop(state):
                return None
        except BaseException:  # whatever a user's function raises
            logger.exception(
                "wait or stop failed for %r: the next policy decides", job, extra=Fields(job)
            )
            return UNDECIDED
        return UNDECIDED if delay is None or math.isnan(delay) else _ms(delay)

    def _state(self, job: Delivery, error: BaseException) -> RetryCallState:
        """Return the failure as tenacity's state, as if this process had made all attempts."""
        from tenacity import RetryCallState

        state = RetryCallState(self._retrying, None, (), {})
        state.attempt_number = job.attempt
        state.set_exception((type(error), error, error.__traceback__))
        state.start_time = (state.outcome_timestamp or 0.0) - max(0.0, job.delivered - job.created)
        return state


def stored_policy(job: Delivery) -> RetryPolicy | None:
    """Return the policy stored with a job; None = there is none that can be read."""
    try:
        return job.retry
    except ValueError:  # a damaged record
        return None


def _is_ruled(policy: RetryPolicy, error: BaseException) -> bool:
    """Return True if a rule covers this exception. Rules for Exception exclude results."""
    kinds = type(error).__mro__
    if isinstance(error, Result):
        kinds = kinds[: kinds.index(Result) + 1]
    return any(kind in policy.on for kind in kinds)


def _verdict_of_policy(policy: RetryPolicy, job: Delivery, text: str) -> Verdict:
    attempt, limit = job.attempt, policy.max_attempts or 0
    if limit and attempt >= limit:
        return Verdict("bury", text=text, limit=limit)
    if policy.base is None and policy.cap is None:
        return Verdict("nack", text=text, limit=limit)
    return Verdict("nack", _ms(policy.delay(attempt, 1.0 - random.random())), text, limit=limit)


def _ms(seconds: float) -> int:
    return math.ceil(min(max(seconds * 1000, 0.0), MAX_DURATION_MS))
