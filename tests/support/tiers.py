"""The cases of a run.

A run with fakeredis and servers divides the cases: `_async` runs on servers, the generated `_sync`
on fakeredis, and all others alternate.

A short run, one without `--whole`, also leaves out tests that are marked `slow`, and runs one case
in n, at least one, of each test marked `sampled(n)`.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests.support.backends import Spec

__all__ = ["left_out"]


def left_out(items: Sequence[pytest.Item], *, whole: bool) -> Iterator[pytest.Item]:
    """Return the items that a run leaves out."""
    has_both = len({spec.is_fake for item in items if (spec := _spec(item))}) == 2
    cases = Counter(_test(item) for item in items)
    seen: Counter[tuple[str, str]] = Counter()
    for item in items:
        test, spec = _test(item), _spec(item)
        mark = item.get_closest_marker("sampled")
        every = 1 if whole or mark is None else mark.args[0]
        number, by_name = seen[test], zlib.crc32(test[0].encode())
        seen[test] += 1
        is_slow = item.get_closest_marker("slow") is not None and not whole
        if is_slow or number % every != by_name % min(every, cases[test]):
            yield item
        elif has_both and _is_generated(item):
            if _is_for_the_other_twin(item, spec):
                yield item
        elif has_both and spec and (number // every + by_name + spec.is_fake) % 2:
            yield item


def _test(item: pytest.Item) -> tuple[str, str]:
    """Return a test's name, and the back end of this case."""
    spec = _spec(item)
    return item.nodeid.partition("[")[0], spec.name if spec else ""


def _is_generated(item: pytest.Item) -> bool:
    return not {"_async", "_sync"}.isdisjoint(item.path.parts)


def _is_for_the_other_twin(item: pytest.Item, spec: Spec | None) -> bool:
    if "_async" in item.path.parts:
        return spec is not None and spec.is_fake
    if spec is not None:
        return not spec.is_fake
    names: Sequence[str] = getattr(item, "fixturenames", ())
    return not {"make_server", "real_backend"}.isdisjoint(names)


def _spec(item: pytest.Item) -> Spec | None:
    """Return the back end of a test that runs on all of them."""
    callspec = getattr(item, "callspec", None)
    params: dict[str, Any] = callspec.params if callspec else {}
    spec: Spec | None = params.get("backend") or params.get("brief_backend")
    return spec
