"""The limits of values that users give, as the documentation has them, in numbers."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from penstock import BadArgument, Dedup, Durable, RetryPolicy
from penstock.core.values.checks import (
    check_count,
    check_handler_name,
    check_label,
    duration_ms,
    lease_ms,
)
from penstock.core.values.partitions import check_partitions
from penstock.core.values.rate import rate_field
from penstock.wire.keys import check_queue_name

CENTURY = 3_162_240_000
MS = timedelta(milliseconds=1)
LIMITS: dict[str, tuple[Callable[[Any], object], list[Any], list[Any]]] = {
    "attempts": (lambda n: RetryPolicy(max_attempts=n), [0, 1_000_000_000], [-1, 1_000_000_001]),
    "backoff": (lambda s: RetryPolicy(base=s), [MS, CENTURY], [0, CENTURY + 1]),
    "duration": (partial(duration_ms, "delay"), [0, CENTURY, float(CENTURY)], [-MS, CENTURY + 1]),
    "window": (lambda s: Dedup("a", window=s), [MS, CENTURY], [0, CENTURY + 1]),
    "lease": (partial(lease_ms, "lease"), [0, 2_073_600], [-1, 2_073_601, 2_073_600.5]),
    "wait": (lambda s: Durable(timeout=s), [MS, 3600], [0, timedelta(hours=1) + MS]),
    "count": (partial(check_count, "n"), [1, 9_007_199_254_740_991], [0, 9_007_199_254_740_992]),
    "partitions": (check_partitions, [1, 256], [0, 257]),
    "label": (partial(check_label, "key"), ["a", "é" * 512], ["", "é" * 512 + "a"]),
    "handler": (partial(check_handler_name, "handler"), ["a", "é" * 100], ["", "é" * 100 + "a"]),
    "queue": (check_queue_name, ["a", "é" * 512], ["", "é" * 512 + "a"]),
    "rate": (
        lambda text: rate_field("rate", text, None),
        ["1/d", "1/24h", "1000000/s"],
        ["0/s", "1/0s", "1000001/s", "1/86401s"],
    ),
}
"""What checks or takes a value, values that it takes, and values that it refuses."""


@pytest.mark.parametrize("name", LIMITS)
def test_a_value_at_its_limit_is_taken_and_one_beyond_it_is_refused(name: str) -> None:
    """The numbers stand here as such: a limit that moves changes what users were told."""
    check, taken, refused = LIMITS[name]
    for value in taken:
        check(value)
    for value in refused:
        with pytest.raises(BadArgument):
            check(value)
