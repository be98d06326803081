"""The cases of a run.

A run with fakeredis and servers divides the cases: `_async` runs on servers, the generated `_sync`
on fakeredis, and all others alternate.

A short run, one without `--whole`, leaves out more:

- It leaves out tests marked `slow`.
- It runs one case in four of each test, at least one and at most four, drawn by the test's name.
  Of the tests that know the files of a change (touched.py) it runs all, up to `MOST_TOUCHED`.
- It runs each case that `_async` and `_sync` have in common in one of the two, alternately.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests.support.backends import Spec
from tests.support.touched import NOTHING, Touched

__all__ = ["left_out"]

ONE_IN, MOST = 4, 4
"""A short run has one case in this many of each test, and at most this many."""
VECTORS = "tests/protocol/test_vectors.py"
"""These are drawn first, as a change of a file that all scripts include touches too many cases."""
PROTOCOL = "tests/protocol/"
"""Tests whose cases are often texts that begin with the name of a script: "reserve due"."""
MOST_TOUCHED = 1000
"""Most cases that a short run has more because a change touches them; a minute or less."""


def left_out(
    items: Sequence[pytest.Item], *, whole: bool, touched: Touched = NOTHING
) -> Iterator[pytest.Item]:
    """Yield the items that a run leaves out.

    Args:
        items: all that were collected.
        whole: whether each case runs.
        touched: the tests of which a short run has each case, unless it is slow.
    """
    has_both = len({spec.is_fake for item in items if (spec := _spec(item))}) == 2
    in_both_suites = set() if whole else _in_both_suites(items, has_both=has_both)
    tests: dict[tuple[str, str], list[pytest.Item]] = {}
    for item in items:
        tests.setdefault(_test(item), []).append(item)
    more = MOST_TOUCHED
    for (test, _), cases in sorted(tests.items(), key=lambda one: VECTORS not in one[0][0]):
        name = _pair(test)
        drawn = cases if whole else _drawn(name, cases)
        if not whole and more > 0:
            added = [item for item in _quick(cases) if _knows(item, touched) and item not in drawn]
            drawn, more = [*drawn, *added[:more]], more - len(added)
        yield from {*cases}.difference(drawn)
        for turn, item in enumerate(drawn, zlib.crc32(name.encode())):
            spec = _spec(item)
            if _is_generated(item):
                is_other = has_both and _is_for_the_other_twin(item, spec)
                if is_other or (name in in_both_suites and (turn + _is_sync(item)) % 2):
                    yield item
            elif has_both and spec and (turn + spec.is_fake) % 2:
                yield item


def _drawn(name: str, cases: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return the cases of one test that a short run has: the same on all back ends."""
    quick = _quick(cases)
    count = min(MOST, -(-len(quick) // ONE_IN))
    return random.Random(name).sample(quick, count)


def _quick(cases: Sequence[pytest.Item]) -> list[pytest.Item]:
    return [item for item in cases if item.get_closest_marker("slow") is None]


def _knows(item: pytest.Item, touched: Touched) -> bool:
    """Return True if the item's file, or the script of its case, is touched."""
    if touched.files and item.path.as_posix().endswith(tuple(touched.files)):
        return True
    params = item.callspec.params if touched.scripts and hasattr(item, "callspec") else {}
    is_text = PROTOCOL in item.path.as_posix()
    return any(_script_of(value, is_text=is_text) in touched.scripts for value in params.values())


def _script_of(value: Any, *, is_text: bool) -> str:
    """Return the script of a vector or of a call, or the name at the beginning of a text."""
    if isinstance(value, str):
        return value.partition(" ")[0].rstrip(",:") if is_text else ""
    return str(getattr(value, "script", getattr(value, "name", "")))


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
