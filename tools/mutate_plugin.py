"""A plugin of pytest for tools/mutate.py: records what tests execute, and forks to run tests.

With `MUTATE_RECORD` in its environment, a run records which test executes which line, and how long
each test takes.

With `MUTATE_SERVE`, a run collects its tests and then answers requests. For each it forks. The
child takes over the files that the request names, as they are then, runs the tests of the request
until one fails, and ends. So neither pytest, nor the package, nor the tests are loaded again.

A child replaces the code of functions, and scripts. A file that differs in what an import runs is
left to a new process.

Requests and answers are lines of JSON: `{"paths": [...], "tests": [...]}`, and then any of
`{"pid": 1}`, `{"unloadable": true}`, `{"start": test}`, `{"failed": test}`, then `{"end": true}`.
"""

from __future__ import annotations

import gc
import json
import os
import resource
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import fields
from functools import _lru_cache_wrapper
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

RECORD, SERVE, FAILED, CHOSEN = "MUTATE_RECORD", "MUTATE_SERVE", "MUTATE_FAILED", "MUTATE_CHOSEN"
"""Variables that tell the plugin: a file for coverage, two file descriptors, a file of failures, a
file with the list of tests to run."""
MOST_MEMORY = 4 << 30
"""Bytes that a child may take: a fault may make a loop endless."""


def pytest_configure(config: pytest.Config) -> None:
    """Record what each test executes, in the process that runs tests; or answer requests."""
    runs_tests = hasattr(config, "workerinput") or not config.getoption("numprocesses", None)
    if (place := os.environ.get(RECORD)) and runs_tests:
        config.pluginmanager.register(_Recorder(place))
    if descriptors := os.environ.pop(SERVE, ""):
        config.pluginmanager.register(_Forks(*map(int, descriptors.split(","))))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out the tests that were not chosen, and run the others in the order of the choice."""
    if place := os.environ.get(CHOSEN):
        order = {test: at for at, test in enumerate(json.loads(Path(place).read_text("utf-8")))}
        items[:] = sorted(
            (item for item in items if item.nodeid in order), key=lambda item: order[item.nodeid]
        )


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note a failed test."""
    _note(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Note a file that can't be imported."""
    _note(report)


def _note(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.failed and (place := os.environ.get(FAILED)):
        with Path(place).open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(report.nodeid)}\n")


class _Recorder:
    """A plugin: coverage.py, with a context for each test."""

    def __init__(self, place: str) -> None:
        from coverage import Coverage

        self._coverage = Coverage(
            place, data_suffix=True, source_pkgs=["penstock"], config_file=False
        )
        self._coverage.set_option("run:relative_files", True)
        # A plugin has imported the package before.
        self._coverage.set_option("run:disable_warnings", ["module-not-measured"])
        self._place = Path(f"{place}.{os.getpid()}.json")
        self._seconds = defaultdict[str, float](float)
        self._test = ""
        self._scripts = defaultdict[str, set[str]](set)
        self._note_calls()
        self._coverage.start()

    def _note_calls(self) -> None:
        """Note the script of each call that is made from now on, and the test that makes it."""
        from penstock.core.calls.call import Call

        usual = Call.__init__

        def noting(call: Call[Any], script: Any, *args: Any, **named: Any) -> None:
            self._scripts[self._test].add(script.name)
            usual(call, script, *args, **named)

        Call.__init__ = noting  # type: ignore[assignment, method-assign]  # it stands in for it

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._coverage.switch_context(item.nodeid)
        self._test = item.nodeid
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration

    def pytest_unconfigure(self) -> None:
        self._coverage.stop()
        self._coverage.save()
        scripts = {test: sorted(names) for test, names in self._scripts.items() if test}
        notes = {"seconds": self._seconds, "scripts": scripts}
        self._place.write_text(json.dumps(notes), encoding="utf-8")


class _Forks:
    """A plugin that answers requests; in a child, one that reports each test."""

    def __init__(self, requests: int, answers: int) -> None:
        self._requests = os.fdopen(requests, "rb")
        self._answers = os.fdopen(answers, "w", encoding="utf-8", buffering=1)
        self._is_child = False
        os.set_inheritable(requests, False)
        os.set_inheritable(answers, False)

    def _answer(self, **answer: Any) -> None:
        self._answers.write(f"{json.dumps(answer)}\n")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Fork for each request; in a child, let pytest run its tests."""
        items = {item.nodeid: item for item in session.items}
        loaded = Loaded(session.config.rootpath)
        gc.collect()
        gc.freeze()
        self._answer(tests=[*items])
        while line := self._requests.readline():
            request = json.loads(line)
            if not (child := os.fork()):
                self._is_child = True
                os.setsid()
                resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
                self._answer(pid=os.getpid())
                if not loaded.take_over(request["paths"]):
                    self._answer(unloadable=True)
                    os._exit(0)
                session.items[:] = [items[test] for test in request["tests"] if test in items]
                session.testscollected = len(session.items)
                return None
            os.waitpid(child, 0)
            self._answer(end=True)
        return True

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self) -> Iterator[None]:
        """End a child when its fixtures are closed: all else is the first process's."""
        yield
        if self._is_child:
            os._exit(0)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._answer(start=nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._answer(failed=report.nodeid)


class Loaded:
    """The functions, caches and scripts of the package that this process has loaded."""

    def __init__(self, root: Path) -> None:
        from penstock.wire.scripts import Script

        gc.unfreeze()  # frozen objects are in no list
        self._root = root
        self._texts = {str(file): file.read_bytes() for file in root.glob("src/penstock/**/*.py")}
        self._functions: dict[tuple[str, CodeType], list[FunctionType]] = {}
        self._caches: list[_lru_cache_wrapper[Any]] = []
        self._scripts = list[Script]()
        for one in gc.get_objects():
            if isinstance(one, FunctionType) and one.__code__.co_filename in self._texts:
                place = (one.__code__.co_filename, one.__code__)
                self._functions.setdefault(place, []).append(one)
            elif isinstance(one, _lru_cache_wrapper) and one.__module__.startswith(
                ("penstock.", "tests.support.backends")
            ):
                self._caches.append(one)
            elif isinstance(one, Script):
                self._scripts.append(one)

    def take_over(self, paths: Sequence[str]) -> bool:
        """Use these files as they are now; return False if only a new process can."""
        changes = list[tuple[FunctionType, CodeType]]()
        for path in paths:
            if path.endswith(".py"):
                place = str(self._root / path)
                new = compile(Path(place).read_bytes(), place, "exec", dont_inherit=True)
                old = compile(self._texts[place], place, "exec", dont_inherit=True)
                pairs = changed_functions(old, new)
                if pairs is None:
                    return False
                found = [
                    (function, after)
                    for before, after in pairs
                    for function in self._functions.get((place, before), [])
                ]
                if pairs and not found:
                    return False
                changes += found
        for function, code in changes:
            function.__code__ = code
        for cache in self._caches:
            cache.cache_clear()
        if any("/wire/" in path for path in paths):
            self._renew_scripts()
        return True

    def _renew_scripts(self) -> None:
        """Give the scripts that others hold their new text."""
        from penstock.wire.scripts import Script, script

        for old in self._scripts:
            new = script(old.name)
            for field in fields(Script):
                object.__setattr__(old, field.name, getattr(new, field.name))


def changed_functions(old: CodeType, new: CodeType) -> list[tuple[CodeType, CodeType]] | None:
    """Return the code of functions before and after a change; None if more than that differs."""
    nested = [
        [const for const in code.co_consts if isinstance(const, CodeType)] for code in (old, new)
    ]
    if not _runs_alike(old, new) or len(nested[0]) != len(nested[1]):
        return None
    pairs = list[tuple[CodeType, CodeType]]()
    for before, after in zip(*nested, strict=True):
        if _is_function(before):
            if before.co_freevars != after.co_freevars:
                return None
            pairs += [(before, after)] * (before != after)
            pairs += changed_functions(before, after) or []
        else:
            deeper = changed_functions(before, after)
            if deeper is None:
                return None
            pairs += deeper
    return pairs


def _is_function(code: CodeType) -> bool:
    return bool(code.co_flags & CO_OPTIMIZED)


def _runs_alike(old: CodeType, new: CodeType) -> bool:
    """Return True if two codes do the same, apart from the functions that they make."""
    kept = [
        (
            code.co_code,
            code.co_names,
            [(type(one), one) for one in code.co_consts if not isinstance(one, CodeType)],
        )
        for code in (old, new)
    ]
    return kept[0] == kept[1]
