"""Put small faults into core, wire and transport, one at a time, and report which tests notice.

    python -m tools.mutate --count 300 --seed 1            # a row each, and a table
    python -m tools.mutate --count 300 --whole             # survivors meet every case, too
    python -m tools.mutate --count 60 --files '*.lua' tests/protocol   # these files, these tests

The faults are drawn at random from all places where one is possible. Each is put into a clone of
HEAD. Then these tests run, the quickest first, until one fails:

1. touched: the tests that execute the changed line and know its file (tests/support/touched.py);
   for Lua the vectors of the scripts that have it, and other cases of the protocol with their names
2. short: the others of a short run that execute the line, as many as take 20 seconds; for Lua those
   that call such a script, and those of the protocol
3. whole: with `--whole`, every case of those tests; every test if none is known

The first run records which test executes which line, with coverage.py, in build/mutate; it belongs
to one revision of src and tests. A file beside it has the verdicts: a run that was stopped goes on
there. A test notices a fault if it fails twice with it, and passes without it. Tests run in forks
of one process that has loaded them (tools/mutate_plugin.py).
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
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

from tests.support.touched import find_scripts, find_touched
from tools.mutate_equivalent import EQUIVALENT, reason_at
from tools.mutate_record import Record, twin_of

ROOT = Path(__file__).resolve().parent.parent
TARGETS = (
    "src/penstock/core/**/*.py",
    "src/penstock/wire/*.py",
    "src/penstock/wire/lua/**/*.lua",
    "src/penstock/client/_async/transport/*.py",
)
GENERATED = "src/penstock/wire/replies.py"
RECORD, SERVE, FAILED, CHOSEN = "MUTATE_RECORD", "MUTATE_SERVE", "MUTATE_FAILED", "MUTATE_CHOSEN"
"""Variables that tell tools/mutate_plugin.py what to do."""
PYTEST = (
    sys.executable,
    "-m",
    "pytest",
    "-q",
    "-p",
    "tools.mutate_plugin",
    "-p",
    "no:cacheprovider",
)
APART = ("--ignore=tests/spark", "--ignore=tests/browser")
START_LIMIT, RUN_LIMIT, TEST_LIMIT = 600, 600, 30
"""Seconds to collect the tests, to run some in a new process, and for one test; a test gets ten
times what it has taken, too."""
SHORT_LIMIT = 20
"""Seconds that the tests of a short run take that execute the line and do not know the file."""
TIME_LIMIT = "the time limit"
"""Stands for a test that ends an endless loop."""
PROTOCOL = "tests/protocol/"

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
        before = source[: self.start].rpartition(b"\n")[2]
        path, line, change = self.named(source)
        return EQUIVALENT.get((path, line, change)) or reason_at(before, change)

    def named(self, source: bytes) -> tuple[str, str, str]:
        """Return the path below the package, the line, and the change."""
        line = source.splitlines()[self.line - 1].decode().strip()
        return self.path.removeprefix("src/penstock/"), line, self.described(source)


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
    if text.startswith(("assert ", "logger.", "_logger.", "__all__", "if TYPE_CHECKING")):
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
        case ast.Call(args=[first, second, *rest]) if _is_ordered(node, first, second):
            yield "arguments", node, _rewritten(node, args=[second, first, *rest])


def _is_ordered(call: ast.Call, first: ast.expr, second: ast.expr) -> bool:
    """Return True if it matters which argument is the first."""
    if isinstance(first, ast.Starred) or isinstance(second, ast.Starred):
        return False
    return ast.dump(first) != ast.dump(second) and ast.unparse(call.func) not in {"max", "min"}


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
    ("arguments", r"(?<!math\.m..\()(?<=\w\()(\w+), (\w+)(?=[,)])", r"\2, \1"),
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


# -- runs ------------------------------------------------------------------------------------------


class Unloadable(Exception):
    """A fault that only a new process can load."""


class Forks:
    """A process that has collected the tests, and forks to run some with a fault."""

    def __init__(self, root: Path, args: Sequence[str]) -> None:
        there, here = os.pipe(), os.pipe()
        options = ("-x", "--whole", "--hypothesis-profile=short")
        self._process = subprocess.Popen(
            [*PYTEST, *options, *args],
            cwd=root, pass_fds=(there[0], here[1]), stdout=subprocess.DEVNULL,
            env={**environment(root), SERVE: f"{there[0]},{here[1]}"},
        )  # fmt: skip
        os.close(there[0])
        os.close(here[1])
        self._requests, self._answers = os.fdopen(there[1], "w"), here[0]
        self._read = b""
        self.tests: list[str] = self._answer(START_LIMIT)["tests"]

    def find_failure(
        self, paths: Sequence[str], tests: Sequence[str], seconds: Mapping[str, float]
    ) -> str:
        """Run tests with these files as they are now; return the first that fails, or ""."""
        print(json.dumps({"paths": paths, "tests": tests}), file=self._requests, flush=True)
        child, limit, failed, unloadable, current = 0, float(TEST_LIMIT), "", False, ""
        while True:
            try:
                answer = self._answer(limit)
            except TimeoutError:
                _kill_group(child)
                failed = current = current or TIME_LIMIT
                continue
            match answer:
                case {"pid": int(child)}:
                    pass
                case {"failed": str(failed)}:
                    pass
                case {"unloadable": True}:
                    unloadable = True
                case {"start": str(current)}:
                    limit = TEST_LIMIT + 10 * seconds.get(current, 0)
                case {"end": True}:
                    break
        if unloadable:
            raise Unloadable
        return failed

    def _answer(self, limit: float) -> dict[str, Any]:
        while b"\n" not in self._read:
            if not select.select([self._answers], [], [], limit)[0]:
                raise TimeoutError
            if not (more := os.read(self._answers, 1 << 20)):
                sys.exit("the tests can't be collected")
            self._read += more
        line, _, self._read = self._read.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the process."""
        self._requests.close()
        self._process.wait()
        os.close(self._answers)


def environment(root: Path) -> dict[str, str]:
    """Return the variables of a run in a clone."""
    return {**os.environ, "PYTHONPATH": str(root / "src")}


def _kill_group(child: int) -> None:
    """Interrupt a child, so that its tests stop their servers; after 10 s end its group."""
    with suppress(ProcessLookupError):
        os.kill(child, signal.SIGINT)
        for _ in range(100):
            os.kill(child, 0)
            time.sleep(0.1)
        os.killpg(child, signal.SIGKILL)


@dataclass(eq=False)
class Bench:
    """A clone of HEAD in which faults are tried.

    Attributes:
        root: its directory.
        tests: arguments of pytest that choose the tests.
        lucky: tests that failed without a fault, or only once with one: they count no more.
    """

    root: Path
    tests: Sequence[str]
    lucky: set[str] = field(default_factory=set)

    def prepare(self) -> None:
        """Clone HEAD as the main branch: then a fault is the only change."""
        run = ["git", "clone", "-q", "--shared", str(ROOT), str(self.root)]
        subprocess.run(run, check=True)
        for command in (["remote", "remove", "origin"], ["checkout", "-q", "-B", "main"]):
            subprocess.run(["git", *command], cwd=self.root, check=True, capture_output=True)
        plugin = self.root / "tools/mutate_plugin.py"
        plugin.write_bytes(Path(__file__).with_name(plugin.name).read_bytes())
        (self.root / "build").mkdir(exist_ok=True)

    def record(self, place: Path) -> None:
        """Run the tests without a fault; write which lines each executes, and its time."""
        from coverage import Coverage

        with tempfile.TemporaryDirectory() as parts:
            run = [*PYTEST, "--hypothesis-profile=short", *APART, *self.tests]
            recording = {RECORD: f"{parts}/{place.name}"}
            variables = {**environment(self.root), **recording}
            subprocess.run(run, cwd=self.root, check=False, env=variables)
            seconds, scripts = Counter[str](), dict[str, list[str]]()
            for file in Path(parts).glob("*.json"):
                notes = json.loads(file.read_text("utf-8"))
                seconds.update(notes["seconds"])
                scripts.update(notes["scripts"])
                file.unlink()
            place.parent.mkdir(parents=True, exist_ok=True)
            whole = Coverage(str(place), config_file=False)
            whole.combine([parts], strict=True)
            whole.save()
        notes = {"seconds": seconds, "scripts": scripts}
        place.with_suffix(".json").write_text(json.dumps(notes), encoding="utf-8")

    def open(self, record: Record) -> None:
        """Collect the tests."""
        self._record = record
        self._forks = Forks(self.root, [*APART, *self.tests])

    def close(self) -> None:
        """End what runs the tests."""
        self._forks.close()

    def try_fault(self, fault: Fault, *, whole: bool) -> tuple[str, str]:
        """Return the stage and the test that notices a fault, and passes without it."""
        for stage, tests in self._stages(fault, whole=whole):
            while test := self._find_failure(fault, tests):
                if "::" not in test or not self._run([], [test]):
                    return stage, test
                self.lucky.add(test)
        return "survived", ""

    def _stages(self, fault: Fault, *, whole: bool) -> Iterator[tuple[str, list[str]]]:
        """Yield the tests of each stage: those that execute the line if that is known."""
        knows = self._known(fault.path)
        if fault.path.endswith(".lua"):
            executing = self._record.find_calling(find_scripts(fault.path, self.root))
        else:
            executing = self._record.find_executing(fault.path, fault.line, self.root)
        everything = self._record.sort(self._forks.tests)
        short = [test for test in everything if test in self._record.seconds]
        candidates = everything if fault.path.endswith(".lua") else executing or short
        near = [test for test in candidates if knows(test)]
        yield "touched", near
        others = [test for test in executing if not knows(test)]
        ends = accumulate(self._record.seconds.get(test, SHORT_LIMIT) for test in others)
        quick = [test for test, end in zip(others, ends, strict=True) if end < SHORT_LIMIT]
        yield "short", quick
        names = {test.partition("[")[0] for test in executing}
        of_names = (one for one in everything if one.partition("[")[0] in names)
        if whole:
            ran = {*near, *quick}
            cases = of_names if executing else everything
            yield "whole", [test for test in cases if test not in ran]

    @lru_cache(None)  # noqa: B019 - there is one bench
    def _known(self, path: str) -> Callable[[str], bool]:
        """Return a function that tells if a test knows a file."""
        touched = find_touched({path, twin_of(path)}, self.root)
        if touched.scripts:
            names = "|".join(map(re.escape, touched.scripts))
            case = re.compile(rf"{PROTOCOL}.*\[(?:.*-)?(?:{names})[] :,-]")
            return lambda test: bool(case.match(test))
        return lambda test: test.partition("::")[0] in touched.files

    def _find_failure(self, fault: Fault, tests: Sequence[str]) -> str:
        """Return a test that fails with the fault, and fails again; empty if there is none."""
        paths = self._put(fault)
        try:
            while test := self._run(paths, tests):
                if "::" not in test or self._run(paths, [test]):
                    return test
                self.lucky.add(test)
            return ""
        finally:
            self._remove(fault)

    def _put(self, fault: Fault) -> list[str]:
        """Put a fault into its file, and into the file generated from that; return both."""
        file, twin = self.root / fault.path, self.root / twin_of(fault.path)
        file.write_bytes(fault.applied(file.read_bytes()))
        if twin != file:
            from tools.unasync import generate

            [text] = generate(self.root, Path(fault.path)).values()
            twin.write_text(text, "utf-8")
        self._forget_bytecode(fault)
        return sorted({fault.path, twin_of(fault.path)})

    def _remove(self, fault: Fault) -> None:
        restore = ["git", "checkout", "-q", "--", "src", "tests"]
        subprocess.run(restore, cwd=self.root, check=True)
        self._forget_bytecode(fault)

    def _forget_bytecode(self, fault: Fault) -> None:
        """Remove what Python has compiled: a fault may have the size and the second of another."""
        for path in {fault.path, twin_of(fault.path)}:
            file = self.root / path
            Path(importlib.util.cache_from_source(str(file))).unlink(missing_ok=True)

    def _run(self, paths: Sequence[str], tests: Sequence[str]) -> str:
        """Run tests with these files changed; return the first that fails, or ""."""
        tests = [test for test in tests if test not in self.lucky]
        try:
            return self._forks.find_failure(paths, tests, self._record.seconds) if tests else ""
        except Unloadable:
            return self._run_anew(tests)

    def _run_anew(self, tests: Sequence[str]) -> str:
        """Run tests in a new process, with their files as they are."""
        notes = self.root / "build" / "failed.txt"
        chosen = self.root / "build" / "chosen.txt"
        notes.write_text("", encoding="utf-8")
        chosen.write_text(json.dumps(tests), encoding="utf-8")
        files = dict.fromkeys(test.partition("::")[0] for test in tests)
        process = subprocess.Popen(
            [*PYTEST, "-x", "--whole", "--hypothesis-profile=short", *files],
            cwd=self.root, env={**environment(self.root), FAILED: str(notes), CHOSEN: str(chosen)},
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            process.communicate(timeout=RUN_LIMIT)
        except subprocess.TimeoutExpired:
            _kill_group(process.pid)
            process.wait()
            return TIME_LIMIT
        failed = [json.loads(line) for line in notes.read_text("utf-8").splitlines()]
        if process.returncode not in (0, 5) and not failed:
            failed = [f"pytest ended with code {process.returncode}"]
        return failed[0] if failed else ""


@dataclass
class Verdicts:
    """The faults that were tried, in a file: a run that was stopped goes on behind them."""

    place: Path
    rows: list[dict[str, str]] = field(default_factory=list)

    def read(self) -> None:
        """Read what earlier runs have found."""
        if self.place.exists():
            self.rows = [json.loads(line) for line in self.place.read_text("utf-8").splitlines()]

    def find(self, row: dict[str, str]) -> dict[str, str] | None:
        """Return the verdict about a fault; None if it was not tried."""
        return next((one for one in self.rows if row.items() <= one.items()), None)

    def add(self, row: dict[str, str]) -> None:
        """Add a verdict."""
        self.rows.append(row)
        with self.place.open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(row)}\n")


def table(rows: Sequence[dict[str, str]]) -> Iterator[str]:
    """Yield a line for each folder and for each kind: how many faults each stage notices."""
    stages = ("touched", "short", "whole", "survived", "equivalent")
    yield " | ".join(["", *stages, "noticed"])
    groups = [(row["place"].removeprefix("src/penstock/").rpartition("/")[0], row) for row in rows]
    groups += [(row["kind"], row) for row in rows]
    groups += [("all", row) for row in rows]
    for name in dict.fromkeys(name for name, _ in groups):
        counts = Counter(row["stage"] for group, row in groups if group == name)
        real = counts.total() - counts["equivalent"]
        share = f"{real - counts['survived']} of {real}"
        yield " | ".join([name, *(str(counts[stage]) for stage in stages), share])


def main() -> None:
    """Try faults, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=20, help="number of faults")
    parser.add_argument("--seed", type=int, default=1, help="draws the faults")
    parser.add_argument("--files", default="*", help="pattern of the files to change: *.lua")
    parser.add_argument("--whole", action="store_true", help="survivors meet every case")
    parser.add_argument("tests", nargs="*", default=["tests"], help="that may notice")
    args = parser.parse_args()
    run = ["git", "rev-parse", "HEAD:src", "HEAD:tests"]
    done = subprocess.run(run, cwd=ROOT, check=True, capture_output=True, text=True)
    trees = "-".join(tree[:8] for tree in done.stdout.split())
    chosen = "-".join(test.replace("/", ".") for test in args.tests)
    place = ROOT / "build" / "mutate" / f"{trees}-{chosen}.coverage"
    verdicts = Verdicts(place.with_suffix(".verdicts"))
    verdicts.read()
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
        bench = Bench(Path(folder, "penstock"), args.tests)
        bench.prepare()
        if not place.with_suffix(".json").exists():
            bench.record(place)
        bench.open(Record.read(place))
        faults = [one for one in list_faults(bench.root) if fnmatch(one.path, args.files)]
        print(f"{args.count} of {len(faults)} faults, seed {args.seed}")
        rows = list[dict[str, str]]()
        for fault in random.Random(args.seed).sample(faults, args.count):
            rows.append(row := find_verdict(bench, fault, verdicts, whole=args.whole))
            print(" | ".join(row.values()), flush=True)
        bench.close()
    print(*table(rows), sep="\n")


def find_verdict(bench: Bench, fault: Fault, verdicts: Verdicts, *, whole: bool) -> dict[str, str]:
    """Return a row about a fault: of an earlier run, or after it was tried."""
    source, began = (bench.root / fault.path).read_bytes(), time.monotonic()
    row = {
        "place": f"{fault.path}:{fault.line}:{fault.start}",
        "kind": fault.kind,
        "change": fault.described(source),
    }
    if reason := fault.reason(source):
        return {**row, "stage": "equivalent", "test": reason}
    found = verdicts.find(row)
    if found and not (whole and found["stage"] == "survived"):
        return found
    stage, test = bench.try_fault(fault, whole=whole)
    seconds = time.monotonic() - began
    row |= {"stage": stage, "test": test, "seconds": f"{seconds:.1f}"}
    verdicts.add(row)
    return row


if __name__ == "__main__":
    main()
