"""When a job that failed is tried again: the policies of a handler, in their order."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Any

from penstock.core.job import Delivery
from penstock.core.logs import Fields, get_logger
from penstock.core.options import MAX_DURATION_MS
from penstock.core.policy import RetryPolicy
from penstock.errors import BadArgument
from penstock.worker.results import Result, Verdict

if TYPE_CHECKING:
    from tenacity import RetryCallState
    from tenacity.stop import stop_base
    from tenacity.wait import wait_base

__all__ = ["Backoff"]

logger = get_logger("penstock.worker")

UNSAID = -1
"""As a delay: the next rule decides."""


class Backoff:
    """What a handler says of its failures.

    Args:
        retry: a policy.
        wait, stop: objects of tenacity.

    Attributes:
        retry: the policy.
        stored: what of it can be stored with a job, None if nothing.

    Raises:
        BadArgument: one of them is something else.
    """

    def __init__(
        self,
        retry: RetryPolicy | None = None,
        wait: wait_base | None = None,
        stop: stop_base | None = None,
    ) -> None:
        if retry is not None and not isinstance(retry, RetryPolicy):
            raise BadArgument("retry", retry, "a RetryPolicy")
        self.retry = retry
        self.stored: RetryPolicy | None = None
        if retry is not None and (retry.max_attempts, retry.base, retry.cap) != (None, None, None):
            self.stored = RetryPolicy(retry.max_attempts, retry.base, retry.cap)
        self._tenacity = None if wait is None and stop is None else _Tenacity(wait, stop)

    def verdict(self, job: Delivery, error: BaseException, text: str) -> Verdict:
        """What becomes of a job after a failure: the first policy that has something to say counts.

        The rule for this exception; tenacity's objects; the policy stored with the job; the
        handler's; the queue's. The script applies the attempts of the job's or the queue's policy
        beside all of them.
        """
        retry = self.retry
        if retry is not None and retry.on and _is_ruled(retry, error):
            return _applied(retry.matching(error), job, text)
        if self._tenacity is not None:
            delay_ms = self._tenacity.delay_ms(job, error)
            if delay_ms is None:
                return Verdict("bury", text=text)
            if delay_ms != UNSAID:
                return Verdict("nack", delay_ms, text)
        if retry is None or _stored(job) is not None:
            return Verdict("nack", text=text)
        return _applied(retry, job, text)


class _Tenacity:
    """Asks the objects of a user."""

    def __init__(self, wait: Any, stop: Any) -> None:
        import tenacity  # with its asyncio and tornado parts: not for those who don't use it
        from tenacity.stop import stop_base
        from tenacity.wait import wait_base

        if wait is not None and not isinstance(wait, wait_base):
            raise BadArgument("wait", wait, "a wait object of tenacity")
        if stop is not None and not isinstance(stop, stop_base):
            raise BadArgument("stop", stop, "a stop object of tenacity")
        self._wait = wait
        self._stop = stop
        self._retrying = tenacity.Retrying(
            wait=wait or tenacity.wait_none(), stop=stop or tenacity.stop_never
        )

    def delay_ms(self, job: Delivery, error: BaseException) -> int | None:
        """Until the next try; UNSAID; None = there is none."""
        try:
            state = self._state(job, error)
            delay = None if self._wait is None else float(self._wait(state))
            state.upcoming_sleep = delay or 0.0
            if self._stop is not None and self._stop(state):
                return None
        except Exception:
            logger.exception(
                "wait or stop failed for %r: the next policy decides", job, extra=Fields(job)
            )
            return UNSAID
        return UNSAID if delay is None or math.isnan(delay) else _ms(delay)

    def _state(self, job: Delivery, error: BaseException) -> RetryCallState:
        """Return the failure as tenacity knows it, as if all attempts were made here."""
        from tenacity import RetryCallState

        state = RetryCallState(self._retrying, None, (), {})
        state.attempt_number = job.attempt
        state.set_exception((type(error), error, error.__traceback__))
        state.start_time = (state.outcome_timestamp or 0.0) - max(0.0, job.delivered - job.created)
        return state


def _stored(job: Delivery) -> RetryPolicy | None:
    try:
        return job.retry
    except ValueError:  # a damaged record
        return None


def _is_ruled(policy: RetryPolicy, error: BaseException) -> bool:
    """Return whether a rule is for this exception; one for all exceptions is not for results."""
    kinds = type(error).__mro__
    if isinstance(error, Result):
        kinds = kinds[: kinds.index(Result) + 1]
    return any(kind in policy.on for kind in kinds)


def _applied(policy: RetryPolicy, job: Delivery, text: str) -> Verdict:
    """Return the verdict of a policy after this attempt; the script decides what it leaves open."""
    attempt = job.attempt
    if policy.max_attempts and attempt >= policy.max_attempts:
        return Verdict("bury", text=text)
    if policy.base is None and policy.cap is None:
        return Verdict("nack", text=text)
    return Verdict("nack", _ms(policy.delay(attempt, 1.0 - random.random())), text)


def _ms(seconds: float) -> int:
    return math.ceil(min(max(seconds * 1000, 0.0), MAX_DURATION_MS))
