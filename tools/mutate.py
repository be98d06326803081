"""Put small faults into core, wire and transport, one at a time, and report which tests notice.

    python tools/mutate.py --count 300 --seed 1            # a table, and how many were noticed
    python tools/mutate.py --count 300 --whole             # survivors meet every case, too
    python tools/mutate.py --count 10 tests/core           # with these tests alone

The faults are drawn at random from all places where one is possible. Each is put into a clone of
HEAD. Then these tests run, until one fails:

1. file: the tests that know the changed file (tests/support/touched.py)
2. fast tier: those of `nox -s quick`, then a short run; tests that execute the changed line first
3. whole: every case, with `--whole`

The first run records which test executes which line, with coverage.py, in build/mutate; it belongs
to one revision. A test notices a fault if it fails twice with it, and passes without it.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib.util
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
TARGETS = (
    "src/penstock/core/**/*.py",
    "src/penstock/wire/*.py",
    "src/penstock/wire/lua/**/*.lua",
    "src/penstock/client/_async/transport/*.py",
)
GENERATED = "src/penstock/wire/replies.py"
RECORD, FAILED, FIRST = "MUTATE_RECORD", "MUTATE_FAILED", "MUTATE_FIRST"
"""Variables that tell the plugin its files: for coverage, for the failed tests, and the list of
tests that come first."""
FILE_LIMIT = 300
"""Seconds for the tests that know a file."""
TIME_LIMIT = "the time limit"
"""Stands for a test that ends an endless loop."""
ALL = ["tests"]
QUICK = (
    *("--whole", "--hypothesis-profile=short", "-k", "not at_any_time"),
    *("tests/core", "tests/protocol/test_vectors.py", "tests/model"),
)
"""Arguments of pytest for the tests that `nox -s quick` runs on fakeredis."""
EQUIVALENT = {
    ("core/jobs/record.py", "not JSON_SCALARS.issuperset(map(type, one)) -> True"): "only slower",
}
"""Faults that change no behaviour, by path below the package, and as described: the reason."""


# -- faults ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    """A change of one place in a file.

    Attributes:
        path: of the file, from the root.
        line: number of the line.
        kind: what is changed.
        start, end: the bytes that are replaced.
        text: the bytes that replace them.
    """

    path: str
    line: int
    kind: str
    start: int
    end: int
    text: bytes

    def applied(self, source: bytes) -> bytes:
        """Return the source with the fault."""
        return source[: self.start] + self.text + source[self.end :]

    def described(self, source: bytes) -> str:
        """Return the old and the new text, on one line."""
        parts = (source[self.start : self.end], self.text)
        old, new = (" ".join(part.decode().split())[:60] for part in parts)
        return f"{old} -> {new or '(nothing)'}"

    def reason(self, source: bytes) -> str:
        """Return why it changes no behaviour; empty if it may."""
        path = self.path.removeprefix("src/penstock/")
        return EQUIVALENT.get((path, self.described(source)), "")


FLIPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
LEFT_OUT = {"annotation", "returns", "decorator_list", "bases"}
"""Fields of nodes that hold types, or settings such as the size of a cache."""
CONTROL = b" only"
"""In comments by which tools/unasync.py keeps lines; a rewritten text would lose them."""


def python_faults(path: str, source: bytes) -> Iterator[Fault]:
    """Yield every fault of a Python file."""
    starts = [*accumulate(map(len, source.splitlines(keepends=True)), initial=0)]
    for node in _nodes(ast.parse(source)):
        for kind, old, new in _changes(node):
            assert old.end_lineno is not None
            assert old.end_col_offset is not None
            start = starts[old.lineno - 1] + old.col_offset
            end = starts[old.end_lineno - 1] + old.end_col_offset
            if CONTROL not in source[start:end]:
                yield Fault(path, old.lineno, kind, start, end, new.encode())


def _nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield nodes whose change is a fault: no types, assertions, log records, texts, exports."""
    text = ast.unparse(node) if isinstance(node, (ast.stmt, ast.Call)) else ""
    if text.startswith(("assert ", "logger.", "__all__", "if TYPE_CHECKING")):
        return
    if isinstance(node, ast.JoinedStr):  # before Python 3.12 its parts have wrong places
        return
    yield node
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and name not in LEFT_OUT:
                yield from _nodes(child)


Change = tuple[str, "ast.expr | ast.stmt", str]
"""Kind, the node that is replaced, and the text that replaces it."""


def _changes(node: ast.AST) -> Iterator[Change]:
    yield from _of_expressions(node)
    match node:
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            if not isinstance(test, ast.Constant):
                yield "condition", test, "True"
                yield "condition", test, "False"
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) != "None":
            yield "return", value, "None"
        case ast.stmt() if _is_removable(node):
            yield "statement", node, "pass"


def _of_expressions(node: ast.AST) -> Iterator[Change]:
    match node:
        case ast.Compare(ops=[op]) if type(op) in FLIPPED:
            yield "comparison", node, _rewritten(node, ops=[FLIPPED[type(op)]()])
        case ast.BoolOp(op=ast.And()):
            yield "and/or", node, _rewritten(node, op=ast.Or())
        case ast.BoolOp():
            yield "and/or", node, _rewritten(node, op=ast.And())
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "not", node, f"({ast.unparse(operand)})"
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            yield "constant", node, str(value + 1)
            if value > 0:
                yield "constant", node, str(value - 1)
        case ast.Call(args=[first, second, *rest]) if ast.dump(first) != ast.dump(second):
            if not isinstance(first, ast.Starred) and not isinstance(second, ast.Starred):
                yield "arguments", node, _rewritten(node, args=[second, first, *rest])


def _is_removable(node: ast.AST) -> bool:
    """Return True for a statement with an effect; without others, names would be missing."""
    match node:
        case ast.Expr(value=value):
            return not isinstance(value, ast.Constant)
        case ast.AugAssign() | ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            return True
    return False


def _rewritten(node: ast.expr, **fields: Any) -> str:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return f"({ast.unparse(changed)})"


NUMBER = r"(?<![\w.'\"%@-])\d+(?![\w.'\"])"
LUA_CHANGES: list[tuple[str, str, str]] = [
    *(("comparison", rf"(?<= ){old}(?= )", new) for old, new in [
        ("<", "<="), ("<=", "<"), (">", ">="), (">=", ">"), ("==", "~="), ("~=", "=="),
    ]),
    ("and/or", r"\band\b", "or"),
    ("and/or", r"\bor\b", "and"),
    ("not", r"\bnot ", ""),
    ("constant", NUMBER, "+1"),
    ("constant", NUMBER, "-1"),
    ("condition", r"(?<=if ).+?(?= then\b)", "true"),
    ("condition", r"(?<=if ).+?(?= then\b)", "false"),
    ("return", r"(?<=\breturn )(?!nil)[^{]+?(?=$| end\b)", "nil"),
    ("arguments", r"(?<=\w\()(\w+), (\w+)(?=[,)])", r"\2, \1"),
    ("statement", r"(?<=^)\s*(?:redis\.)?call\([^()]*\)$", ""),
    ("statement", r"(?<=^)\s*\w[\w.\[\]]* = [^()]*$", ""),
]  # fmt: skip
"""Kind, pattern in a line of code, and replacement; those of numbers are added."""


def lua_faults(path: str, source: bytes) -> Iterator[Fault]:
    """Yield every fault of a Lua file."""
    at = 0
    for number, line in enumerate(source.decode("ascii").splitlines(keepends=True), 1):
        code = re.split(r"(?:^|\s)--", line.rstrip("\n"))[0]
        for kind, pattern, new in LUA_CHANGES:
            for found in re.finditer(pattern, code):
                text = (
                    str(max(0, int(found[0]) + int(new)))
                    if pattern == NUMBER
                    else found.expand(new)
                )
                if text != found[0]:
                    yield Fault(
                        path, number, kind, at + found.start(), at + found.end(), text.encode()
                    )
        at += len(line)


def list_faults(root: Path) -> list[Fault]:
    """Return the faults of all files, in a fixed order."""
    faults = list[Fault]()
    for file in sorted(file for target in TARGETS for file in root.glob(target)):
        path = file.relative_to(root).as_posix()
        if path != GENERATED:
            make = lua_faults if file.suffix == ".lua" else python_faults
            faults += make(path, file.read_bytes())
    return faults


# -- the plugin of pytest --------------------------------------------------------------------------


def pytest_configure(config: pytest.Config) -> None:
    """Record what each test executes, in the process that runs tests."""
    if (place := os.environ.get(RECORD)) and (
        hasattr(config, "workerinput") or not config.getoption("numprocesses", None)
    ):
        config.pluginmanager.register(_Recorder(place))


class _Recorder:
    """A plugin: coverage.py, with a context for each test."""

    def __init__(self, place: str) -> None:
        from coverage import Coverage

        self._coverage = Coverage(
            place, data_suffix=True, source_pkgs=["penstock"], config_file=False
        )
        self._coverage.set_option("run:relative_files", True)
        self._coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._coverage.switch_context(item.nodeid)
        return (yield)

    def pytest_unconfigure(self) -> None:
        self._coverage.stop()
        self._coverage.save()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Move tests to the front that execute the changed line."""
    if place := os.environ.get(FIRST):
        first = set(json.loads(Path(place).read_text("utf-8")))
        items.sort(key=lambda item: item.nodeid not in first)


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


# -- runs ------------------------------------------------------------------------------------------


@dataclass
class Bench:
    """A clone of HEAD in which faults are tried.

    Attributes:
        root: its directory.
        tests: arguments of pytest that choose the tests.
        processes: number of pytest workers for more than the tests of a file.
        lucky: tests that failed without a fault, or only once with one: they count no more.
        limit: seconds for a short run, about three times what it takes without a fault.
    """

    root: Path
    tests: Sequence[str]
    processes: int
    lucky: set[str] = field(default_factory=set)
    limit: float = 3600.0

    def prepare(self) -> None:
        """Clone HEAD as the main branch: then a fault is the only change."""
        run = ["git", "clone", "-q", "--shared", str(ROOT), str(self.root)]
        subprocess.run(run, check=True)
        for command in (["remote", "remove", "origin"], ["checkout", "-q", "-B", "main"]):
            subprocess.run(["git", *command], cwd=self.root, check=True, capture_output=True)
        (self.root / "tools/mutate.py").write_bytes(Path(__file__).read_bytes())
        (self.root / "build").mkdir(exist_ok=True)

    def record(self, place: Path) -> None:
        """Run the tests without a fault, and write which lines they execute."""
        from coverage import Coverage

        began = time.monotonic()
        with tempfile.TemporaryDirectory() as parts:
            recording = {RECORD: f"{parts}/{place.name}"}
            failed = self._run([*self._many(), *self.tests], self.limit, recording)
            if broken := [text for text in failed if "::" not in text]:
                sys.exit(f"the tests can't be run without a fault: {broken}")
            place.parent.mkdir(parents=True, exist_ok=True)
            whole = Coverage(str(place), config_file=False)
            whole.combine([parts], strict=True)
            whole.save()
        self.limit = 60 + 3 * (time.monotonic() - began)
        self.lucky |= set(filter(self._fails, failed))
        for test in sorted(self.lucky):
            print(f"fails without a fault, and counts no more: {test}")
        found = {"lucky": sorted(self.lucky), "limit": self.limit}
        place.with_suffix(".json").write_text(json.dumps(found), encoding="utf-8")

    def read_record(self, place: Path) -> None:
        """Read what the first run on this revision has found out."""
        found = json.loads(place.with_suffix(".json").read_text("utf-8"))
        self.lucky, self.limit = set(found["lucky"]), found["limit"]

    def try_fault(self, fault: Fault, first: Sequence[str], *, whole: bool) -> tuple[str, str]:
        """Return the stage and the test that notices a fault, and passes without it."""
        while True:
            self._put(fault)
            stage, test = self._find_notice(fault, first, whole=whole)
            self._remove(fault)
            if "::" not in test or not self._fails(test):
                return stage, test
            self.lucky.add(test)

    def _put(self, fault: Fault) -> None:
        """Put a fault into its file, and into the file generated from that."""
        file = self.root / fault.path
        file.write_bytes(fault.applied(file.read_bytes()))
        if "_async" in file.parts:
            unasync = [sys.executable, "tools/unasync.py"]
            subprocess.run(unasync, cwd=self.root, check=True, capture_output=True)
        self._forget_bytecode(fault)

    def _remove(self, fault: Fault) -> None:
        """Restore the files."""
        restore = ["git", "checkout", "-q", "--", "src", "tests"]
        subprocess.run(restore, cwd=self.root, check=True)
        self._forget_bytecode(fault)

    def _forget_bytecode(self, fault: Fault) -> None:
        """Remove what Python has compiled: a fault may have the size and the second of another."""
        for path in {fault.path, fault.path.replace("/_async/", "/_sync/")}:
            file = self.root / path
            Path(importlib.util.cache_from_source(str(file))).unlink(missing_ok=True)

    def _find_notice(self, fault: Fault, first: Sequence[str], *, whole: bool) -> tuple[str, str]:
        """Return the stage and the test that notices the fault that is there; or "survived"."""
        known, many = self._list_knowing(fault), self._many()
        test = self._find_failure(known, FILE_LIMIT) if known else ""
        if test and test != TIME_LIMIT:  # they may be many: then the next run finds a loop
            return "file", test
        if self.tests == ALL and (test := self._find_failure([*many, *QUICK], self.limit, first)):
            return "fast tier", test
        if test := self._find_failure([*many, *self.tests], self.limit, first):
            return "fast tier", test
        everything = [*many, "--whole", *self.tests]
        if whole and (test := self._find_failure(everything, 8 * self.limit, first)):
            return "whole", test
        return "survived", ""

    def _list_knowing(self, fault: Fault) -> list[str]:
        """Return the files with tests that know the fault's file."""
        from tests.support.touched import find_touched

        twin = fault.path.replace("/_async/", "/_sync/")
        touched = find_touched({fault.path, twin}, self.root)
        vectors = ["tests/protocol/test_vectors.py"] if touched.scripts else []
        apart = ("tests/nodes/", "tests/spark/", "tests/browser/")
        return [*vectors, *sorted(file for file in touched.files if not file.startswith(apart))]

    def _many(self) -> list[str]:
        """Return the options of a run of all chosen tests: in their order, each worker one."""
        apart = ("--ignore=tests/nodes", "--ignore=tests/spark", "--ignore=tests/browser")
        return [*apart, f"-n{self.processes}", "--dist=load", "--maxschedchunk=1"]

    def _find_failure(self, args: Sequence[str], limit: float, first: Sequence[str] = ()) -> str:
        """Return a test that fails, and fails again; empty if there is none."""
        order = self.root / "build" / "first.json"
        order.write_text(json.dumps([*first]), encoding="utf-8")
        while failed := self._run([*args, "--maxfail=1"], limit, {FIRST: str(order)}):
            if "::" not in failed[0] or self._fails(failed[0]):
                return failed[0]
            self.lucky.add(failed[0])
        return ""

    def _fails(self, test: str) -> bool:
        """Run one test alone, and return True if it fails."""
        return bool(self._run([test, "--whole", "--hypothesis-profile=short"], FILE_LIMIT, {}))

    def _run(self, args: Sequence[str], limit: float, variables: dict[str, str]) -> list[str]:
        """Run pytest; return the tests that failed."""
        notes = self.root / "build" / "failed.txt"
        notes.write_text("", encoding="utf-8")
        path = {"PYTHONPATH": str(self.root / "src"), FAILED: str(notes)}
        options = ("-q", "-p", "tools.mutate", "-p", "no:cacheprovider")
        lucky = (f"--deselect={test}" for test in sorted(self.lucky))
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *options, *lucky, *args],
            cwd=self.root, env={**os.environ, **path, **variables},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        try:
            printed = process.communicate(timeout=limit)[0]
        except subprocess.TimeoutExpired:
            _end(process)
            return [TIME_LIMIT]
        failed = [json.loads(line) for line in notes.read_text("utf-8").splitlines()]
        if process.returncode not in (0, 5) and not failed:
            failed = [f"pytest ended with code {process.returncode}: {printed[-300:]!r}"]
        return failed


def _end(process: subprocess.Popen[str]) -> None:
    """Interrupt a run, so that its tests stop their servers; end its group if that hangs."""
    process.send_signal(signal.SIGINT)
    try:
        process.communicate(timeout=30)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def find_executing(place: Path, fault: Fault) -> list[str]:
    """Return the tests that execute the line of a fault."""
    from coverage import CoverageData

    data = CoverageData(str(place))
    data.read()
    return [test for test in data.contexts_by_lineno(fault.path).get(fault.line, []) if test]


def main() -> None:
    """Try faults, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=20, help="number of faults")
    parser.add_argument("--seed", type=int, default=1, help="draws the faults")
    parser.add_argument("--whole", action="store_true", help="survivors meet every case")
    parser.add_argument("--processes", type=int, default=min(8, 3 * (os.cpu_count() or 1)))
    parser.add_argument("tests", nargs="*", default=ALL, help="of the fast tier")
    args = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    revision = ["git", "rev-parse", "--short=12", "HEAD"]
    head = subprocess.run(
        revision, cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()
    chosen = "-".join(test.replace("/", ".") for test in args.tests)
    place = ROOT / "build" / "mutate" / f"{head}-{chosen}.coverage"
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
        bench = Bench(Path(folder, "penstock"), args.tests, args.processes)
        bench.prepare()
        if not place.with_suffix(".json").exists():
            bench.record(place)
        bench.read_record(place)
        faults = list_faults(bench.root)
        print(f"{args.count} of {len(faults)} faults, seed {args.seed}, revision {head}")
        counts = Counter[str]()
        for fault in random.Random(args.seed).sample(faults, args.count):
            source, began = (bench.root / fault.path).read_bytes(), time.monotonic()
            stage, test = "equivalent", fault.reason(source)
            if not test:
                first = find_executing(place, fault)
                stage, test = bench.try_fault(fault, first, whole=args.whole)
            counts[stage] += 1
            seconds = time.monotonic() - began
            row = (f"{fault.path}:{fault.line}", fault.kind, fault.described(source))
            print(" | ".join([*row, stage, test, f"{seconds:.0f} s"]), flush=True)
    real = args.count - counts["equivalent"]
    print(f"{dict(counts)}; noticed: {real - counts['survived']} of {real}")


if __name__ == "__main__":
    main()
