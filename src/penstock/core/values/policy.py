"""Attempts of failed jobs, and the delays between them (protocol/core.md, Record, field `p`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.core.values.checks import Duration, check_count, duration_ms
from penstock.errors import BadArgument

__all__ = ["RETRY_FORM", "RetryPolicy"]

RETRY_FORM = "must be a RetryPolicy, such as RetryPolicy(max_attempts=3)"

MAX_ATTEMPTS = 1_000_000_000
BASE_MS = 5_000
CAP_MS = 21_600_000
MAX_DOUBLINGS = 42
"""More change nothing: 1 ms doubled so often is above 100 years, the longest cap there is."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Number of attempts and delays between them: exponential backoff with full jitter.

    The wait after failure n is drawn from all between 0 and `base` doubled n - 1 times, `cap` at
    most; a millisecond at least, so that nothing spins.

    Args:
        max_attempts: failures and crashes of which a job dies, up to a thousand million; None = the
            queue's (20); 0 = it never does. 1 = it is tried once.
        base: seconds; None = the queue's (5). Kept in whole milliseconds.
        cap: seconds; None = the queue's (6 hours).
        on: rules for kinds of exceptions. The rule of the most specific class counts, whole: what
            it leaves open is the queue's. They are a worker's, and can't be stored with a job.

    Raises:
        BadArgument: an argument can't be used.

    Examples:
        >>> policy = RetryPolicy(max_attempts=3, base=10, cap=60)
        >>> [policy.delay(failures, 1.0) for failures in (1, 2, 3, 4)]  # the longest waits
        [10.0, 20.0, 40.0, 60.0]
    """

    max_attempts: int | None = None
    base: Duration | None = None
    cap: Duration | None = None
    on: Mapping[type[BaseException], RetryPolicy] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if self.max_attempts is not None:
            check_count("max_attempts", self.max_attempts, low=0, high=MAX_ATTEMPTS)
        for name, value in (("base", self.base), ("cap", self.cap)):
            if value is not None:  # a policy read from a job equals the one that was stored
                object.__setattr__(self, name, duration_ms(name, value, zero=False) / 1000)
        object.__setattr__(self, "on", _rules(self.on))

    def delay(self, failures: int, draw: float) -> float:
        """Return the seconds to wait after so many failures and crashes; always finite.

        Args:
            failures: from 1.
            draw: random, above 0 and at most 1.
        """
        base, cap = _ms(self.base, BASE_MS), _ms(self.cap, CAP_MS)
        longest = min(cap, base << min(max(failures - 1, 0), MAX_DOUBLINGS))
        return max(1.0, draw * longest) / 1000

    def matching(self, error: BaseException) -> RetryPolicy:
        """Return the rule for this error, or this policy if there is none."""
        if self.on:
            for kind in type(error).__mro__:
                if kind in self.on:
                    return self.on[kind]
        return self


def _ms(value: Duration | None, default: int) -> int:
    return default if value is None else duration_ms("policy", value)


def _rules(rules: object) -> dict[type[BaseException], RetryPolicy]:
    if not isinstance(rules, Mapping):
        raise BadArgument("on", rules, "must be a mapping of exception types to policies")
    for kind, rule in rules.items():
        if not isinstance(kind, type) or not issubclass(kind, BaseException):
            raise BadArgument("on", kind, "must be an exception type")
        if not isinstance(rule, RetryPolicy):
            raise BadArgument("on", rule, RETRY_FORM)
        if rule.on:
            raise BadArgument("on", rule, "a policy inside on= can't have on= itself")
    return dict(rules)
