"""Retry policies: the delay after a failure, and invalid policies."""

from __future__ import annotations

import copy
import pickle
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import BadArgument, RetryPolicy

DAY = 86_400.0
CENTURY = 100 * 366 * DAY
DRAWS = st.floats(0, 1, exclude_min=True)
SPANS = st.integers(1, int(CENTURY * 1000)).map(lambda ms: ms / 1000)


class Refused(ConnectionError):
    """An error of the user."""


def test_delays_double_up_to_the_cap() -> None:
    """With the largest draw the delays are base, 2 base, 4 base, ... up to the cap."""
    policy = RetryPolicy(base=2, cap=15)
    assert [policy.delay(n, 1.0) for n in (1, 2, 3, 4, 5, 99)] == [2, 4, 8, 15, 15, 15]


def test_the_defaults_are_those_of_a_queue() -> None:
    """The defaults are 5 seconds and 6 hours, as in the settings of protocol/core.md."""
    assert RetryPolicy().delay(1, 1.0) == 5
    assert RetryPolicy().delay(100, 1.0) == 6 * 3600
    assert RetryPolicy(cap=1).delay(1, 1.0) == 1
    assert RetryPolicy(base=4 * DAY).delay(1, 1.0) == 6 * 3600


@given(failures=st.integers(1, 10**9), draw=DRAWS, base=SPANS, cap=SPANS)
def test_a_delay_is_a_share_of_the_longest(
    failures: int, draw: float, base: float, cap: float
) -> None:
    """A delay is between a millisecond and the cap or doubled base, and finite."""
    policy = RetryPolicy(base=base, cap=cap)
    longest = min(cap, base * 2 ** min(failures - 1, 64))
    assert policy.delay(failures, draw) == pytest.approx(max(0.001, draw * longest))
    assert 0.001 <= policy.delay(failures, draw) <= cap


@given(draw=DRAWS, base=SPANS, cap=SPANS)
def test_delays_never_shrink(draw: float, base: float, cap: float) -> None:
    """With the same draw a later failure never has a shorter delay."""
    policy = RetryPolicy(base=base, cap=cap)
    delays = [policy.delay(n, draw) for n in (*range(1, 60), 10**9)]
    assert delays == sorted(delays)


@pytest.mark.parametrize("failures", [0, -3])
def test_no_failure_yet_is_as_the_first(failures: int) -> None:
    """An invalid number of failures is treated as the first and raises nothing."""
    assert RetryPolicy(base=2).delay(failures, 1.0) == 2
    assert RetryPolicy(base=2).delay(1, 0.0) == 0.001


def test_the_most_specific_rule_matches() -> None:
    """The rule of the most specific class matches, in any order of the rules."""
    broad, narrow = RetryPolicy(max_attempts=2), RetryPolicy(max_attempts=3)
    policy = RetryPolicy(on={OSError: broad, ConnectionError: narrow})
    assert policy.matching(Refused()) is narrow
    assert policy.matching(FileNotFoundError()) is broad
    assert policy.matching(ValueError()) is policy
    assert broad.matching(Refused()) is broad


def test_rules_are_copied() -> None:
    """Later changes of the given mapping do not affect the policy."""
    rules = {OSError: RetryPolicy(max_attempts=2)}
    policy = RetryPolicy(on=rules)
    rules.clear()
    assert policy.matching(OSError()).max_attempts == 2


def test_policies_are_values() -> None:
    """Policies are compared, hashed, copied and pickled by value."""
    policy = RetryPolicy(5, timedelta(seconds=1), 60, on={OSError: RetryPolicy(1)})
    assert policy == RetryPolicy(5, 1.0, timedelta(minutes=1), on={OSError: RetryPolicy(1)})
    assert policy != RetryPolicy(5, 1, 60)
    assert hash(policy) == hash(RetryPolicy(5, 1, 60))
    assert pickle.loads(pickle.dumps(policy)) == copy.deepcopy(policy) == policy
    assert RetryPolicy(base=0.0001).base == 0.001


@pytest.mark.parametrize(
    "argument, value",
    [
        ("max_attempts", -1), ("max_attempts", 1.5), ("max_attempts", True), ("max_attempts", "3"),
        ("max_attempts", 1 << 60), ("base", 0), ("base", -1), ("base", float("nan")),
        ("base", "5"), ("base", float("inf")), ("cap", 0), ("cap", 2 * CENTURY), ("cap", True),
        ("on", None), ("on", [OSError]), ("on", {"OSError": RetryPolicy()}),
        ("on", {int: RetryPolicy()}), ("on", {OSError: 3}),
        ("on", {OSError: RetryPolicy(on={OSError: RetryPolicy()})}),
    ],
)  # fmt: skip
def test_invalid_retry_policies(argument: str, value: Any) -> None:
    """An invalid policy is refused; the error names the argument."""
    with pytest.raises(BadArgument) as caught:
        RetryPolicy(**{argument: value})
    assert caught.value.argument == argument
