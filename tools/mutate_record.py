"""A record of which test executes which line, for tools/mutate.py."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from pathlib import Path

__all__ = ["Record", "twin_of"]

PROTOCOL = "tests/protocol/"
UNKNOWN_SECONDS = 600.0
"""Stands for the time of a test that is not in the record."""


@dataclass
class Record:
    """The tests of a run without a fault.

    Attributes:
        contexts: by path and line, the tests that execute the line.
        seconds: by test, how long it takes.
        scripts: by test, the names of the scripts that its clients call.
    """

    contexts: dict[str, dict[int, list[str]]]
    seconds: dict[str, float]
    scripts: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def read(cls, place: Path) -> Record:
        """Read a record."""
        from coverage import CoverageData

        data = CoverageData(str(place))
        data.read()
        contexts = {path: data.contexts_by_lineno(path) for path in data.measured_files()}
        notes = json.loads(place.with_suffix(".json").read_text("utf-8"))
        return cls(contexts, notes["seconds"], notes["scripts"])

    def find_executing(self, path: str, line: int, root: Path) -> list[str]:
        """Return the tests that execute a line, or that line of the generated file, by their time.

        A line in the middle of an expression may have no entry, and a branch may never run: then
        they are those of the last line above it.
        """
        found = {*self._executing(path, line)}
        if twin_of(path) != path:
            found |= {*self._executing(twin_of(path), twin_line(path, line, root))}
        return self.sort(found)

    def find_calling(self, scripts: Iterable[str]) -> list[str]:
        """Return the tests that call one of the scripts, by their time; those of the protocol, too.

        Those run scripts without a client.
        """
        wanted = {*scripts}
        return self.sort(
            test
            for test in self.seconds
            if test.startswith(PROTOCOL) or not wanted.isdisjoint(self.scripts.get(test, ()))
        )

    def _executing(self, path: str, line: int) -> list[str]:
        contexts = self.contexts.get(path, {})
        last = next((one for one in range(line, 0, -1) if one in contexts), 0)
        return [test for test in contexts.get(last, []) if test]

    def sort(self, tests: Iterable[str]) -> list[str]:
        """Return tests, the quickest first; those that were not in the record come last."""
        return sorted(tests, key=lambda test: (self.seconds.get(test, UNKNOWN_SECONDS), test))


def twin_of(path: str) -> str:
    """Return the file that is generated from a file; itself without one."""
    return path.replace("/_async/", "/_sync/")


def twin_line(path: str, line: int, root: Path) -> int:
    """Return the number of a line in the file that is generated from its file."""
    texts = [(root / one).read_text("utf-8") for one in (path, twin_of(path))]
    plain = [re.sub(r"\b(async|await) |_?[Aa]sync|\ba(?=[a-z]+\()", "", text) for text in texts]
    old, new = (text.splitlines() for text in plain)
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    before = [block for block in matcher.get_matching_blocks() if block.size and block.a < line]
    last = before[-1] if before else None
    return last.b + min(line - last.a, last.size) if last else 0
