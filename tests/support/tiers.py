"""The cases of a run.

A run with fakeredis and servers divides the cases: `_async` runs on servers, the generated `_sync`
on fakeredis, and all others alternate.

A short run, one without `--whole`, leaves out more:

- It leaves out tests marked `slow`.
- It runs one case in n, at least one, of each test marked `sampled(n)`.
- It runs each case that `_async` and `_sync` have in common in one of the two, alternately.
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
    """Yield the items that a run leaves out."""
    has_both = len({spec.is_fake for item in items if (spec := _spec(item))}) == 2
    in_both_suites = set() if whole else _in_both_suites(items, has_both=has_both)
    counts = Counter(map(_test, items))
    seen: Counter[tuple[str, str]] = Counter()
    for item in items:
        test, spec = _test(item), _spec(item)
        mark = item.get_closest_marker("sampled")
        every = 1 if whole or mark is None else mark.args[0]
        number, by_name = seen[test], zlib.crc32(_pair(test[0]).encode())
        turn = number // every + by_name
        seen[test] += 1
        is_slow = item.get_closest_marker("slow") is not None and not whole
        if is_slow or number % every != by_name % min(every, counts[test]):
            yield item
        elif _is_generated(item):
            is_paired = _pair(test[0]) in in_both_suites
            is_other = has_both and _is_for_the_other_twin(item, spec)
            if is_other or (is_paired and (turn + _is_sync(item)) % 2):
                yield item
        elif has_both and spec and (turn + spec.is_fake) % 2:
            yield item


def _test(item: pytest.Item) -> tuple[str, str]:
    """Return a test's name, and the back end of this case."""
    spec = _spec(item)
    return item.nodeid.partition("[")[0], spec.name if spec else ""


def _pair(test: str) -> str:
    """Return the name that a test of `_async` has in common with its twin."""
    return test.replace("/_sync/", "/_async/")


def _in_both_suites(items: Sequence[pytest.Item], *, has_both: bool) -> set[str]:
    """Return the pairs of which this run has both tests."""
    found: dict[bool, set[str]] = {False: set(), True: set()}
    for item in items:
        is_other = has_both and _is_for_the_other_twin(item, _spec(item))
        if _is_generated(item) and not is_other:
            found[_is_sync(item)].add(_pair(_test(item)[0]))
    return found[False] & found[True]


def _is_generated(item: pytest.Item) -> bool:
    return not {"_async", "_sync"}.isdisjoint(item.path.parts)


def _is_sync(item: pytest.Item) -> bool:
    return "_sync" in item.path.parts


def _is_for_the_other_twin(item: pytest.Item, spec: Spec | None) -> bool:
    if not _is_sync(item):
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
