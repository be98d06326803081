"""Write synchronous code and its tests from the asynchronous ones, in the folders of `TREES`.

    python tools/unasync.py            # write each folder _sync from the folder _async beside it
    python tools/unasync.py --check    # compare whole files and the set of files; 1 if they differ

The source is rewritten token by token, by the tables below, and then formatted by ruff. Three
comments control it where the two versions differ:

    import asyncio  # async only              the line is left out
    # [async only ... # async only]           the lines between, and these two, are left out
    # sync only: import threading             the code in the comment stands there instead
"""

from __future__ import annotations

import argparse
import difflib
import io
import keyword
import re
import shutil
import subprocess
import sys
import tempfile
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path
from token import COMMENT, DEDENT, INDENT, NAME, NEWLINE, NL, OP, STRING

TREES = {
    "src/penstock/client/_async": "src/penstock/client/_sync",
    "src/penstock/pressure/_async": "src/penstock/pressure/_sync",
    "src/penstock/worker/_async": "src/penstock/worker/_sync",
    "tests/_async": "tests/_sync",
    "tests/nodes/cluster/_async": "tests/nodes/cluster/_sync",
}
HEADER = "# From {} by tools/unasync.py; do not edit."

# Renamed identifiers, in code, strings and comments. `AsyncX` becomes `X` without a row.
NAMES = {
    "_async": "_sync",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "AbstractAsyncContextManager": "AbstractContextManager",
    "AsyncMock": "MagicMock",
    "FakeAsyncRedis": "FakeRedis",
    "StopAsyncIteration": "StopIteration",
    "aclose": "close",
    "aclosing": "closing",
    "aiter": "iter",
    "anext": "next",
    "asynccontextmanager": "contextmanager",
    "enter_async_context": "enter_context",
    "push_async_callback": "callback",
    "push_async_exit": "push",
    # Fixtures and helpers of the tests.
    "async_client": "sync_client",
    "pytest_asyncio": "pytest",
    # Pairs in penstock's own code: the asyncio one is `a<name>`.
    "acall": "call",
    "aclosed": "closed",
    "acluster_settings": "cluster_settings",
    "aconnect": "connect",
    "afirst_ready": "first_ready",
    "agather": "gather",
    "ahold_interrupts": "hold_interrupts",
    "ain_thread": "in_thread",
    "alock": "lock",
    "apool": "pool",
    "aprobe": "probe",
    "arun": "run",
    "asend": "send",
    "ashield": "shield",
    "asleep": "sleep",
    "asliced": "sliced",
    "asocket_of": "socket_of",
    "aspawn": "spawn",
    "await_for": "wait_for",
}
KEPT = frozenset({"AsyncIO"})  # begins with Async, but is not ours
DOTTED = {("redis", "asyncio"): "redis", ("fakeredis", "aioredis"): "fakeredis"}
# X[..., T] becomes T: the position of T among the arguments.
UNWRAPPED = {"Awaitable": 0, "Coroutine": 2}
DROPPED_DECORATOR = ("@", "pytest", ".", "mark", ".", "asyncio")

DROP_LINE = "# async only"
DROP_FROM, DROP_TO = "# [async only", "# async only]"
SYNC_ONLY = "# sync only:"

OPENING, CLOSING = "([{", ")]}"
# Prose may have the word "await": in text it is code only before a call or an index.
AWAIT_IN_TEXT = re.compile(r"\bawait (?=[\w.]+[(\[])")
ASYNC_IN_TEXT = re.compile(r"\basync (?=(?:def|for|with)\b)")
WORDS = re.compile(r"\b[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*\b")
ARTICLE = re.compile(r"\b([Aa])n (`?)(?=Async[B-DF-HJ-NP-TV-Z])")
ASYNC_CLASS = re.compile(r"^(_*)Async(?=[A-Z])")

Token = tokenize.TokenInfo
Edit = tuple[int, int, str]


class UnasyncError(Exception):
    """A file can't be turned into a synchronous one."""


def transform(source: str, path: str) -> str:
    """Return the synchronous version of a source text, before formatting.

    Args:
        source: Python code.
        path: its path, for the header and for messages.
    """
    chosen = _choose_lines(source, path)
    result = f"{HEADER.format(path)}\n{_Rewriter(chosen).rewritten()}"
    try:
        compile(result, path, "exec", dont_inherit=True)
    except SyntaxError as error:
        raise UnasyncError(f"{path}: the result does not compile: {error}") from error
    return result


def rename(name: str) -> str:
    """Return the synchronous name of an identifier."""
    if name in KEPT:
        return name
    return NAMES.get(name) or ASYNC_CLASS.sub(r"\1", name)


def translate(text: str) -> str:
    """Translate prose, or code inside of it: a comment, a docstring, an f-string."""
    text = ARTICLE.sub(r"\1 \2", AWAIT_IN_TEXT.sub("", ASYNC_IN_TEXT.sub("", text)))
    return WORDS.sub(_translate_words, text)


def _translate_words(found: re.Match[str]) -> str:
    first, second, *rest = [*found.group().split("."), ""]
    short = DOTTED.get((first, second))
    parts = [short, *rest] if short else [first, second, *rest]
    return ".".join(map(rename, parts)).rstrip(".")


def _tokens(source: str) -> list[Token]:
    return list(tokenize.generate_tokens(io.StringIO(source).readline))


def _choose_lines(source: str, path: str) -> str:
    """Leave out lines for asyncio only, and insert those for the synchronous version."""
    lines = list(io.StringIO(source))
    opened: int | None = None
    for token in _tokens(source):
        text, number = token.string.rstrip(), token.start[0] - 1
        if token.type != COMMENT:
            continue
        if text == DROP_FROM and opened is None:
            opened = number
        elif text == DROP_TO and opened is not None:
            lines[opened : number + 1] = [""] * (number + 1 - opened)
            opened = None
        elif text in (DROP_FROM, DROP_TO):
            raise UnasyncError(f"{path}:{number + 1}: {text!r} without its partner")
        elif text.endswith(DROP_LINE):
            lines[number] = ""
        elif text.startswith(SYNC_ONLY) and opened is None:
            lines[number] = _uncommented(lines[number])
    if opened is not None:
        raise UnasyncError(f"{path}:{opened + 1}: {DROP_FROM!r} without its partner")
    return "".join(lines)


def _uncommented(line: str) -> str:
    indent, code = line.split(SYNC_ONLY, 1)
    return indent + code.removeprefix(" ")


class _Rewriter:
    """A collector of replacements in the text, token by token."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._tokens = [t for t in _tokens(source) if t.type not in (INDENT, DEDENT)]
        self._edits: list[Edit] = []
        starts = [0]
        for line in io.StringIO(source):
            starts.append(starts[-1] + len(line))
        self._line_starts = starts

    def rewritten(self) -> str:
        index = 0
        while index < len(self._tokens):
            index = self._step(index)
        result, position = [], 0
        for start, end, new in sorted(self._edits):
            if start < position:  # inside of a part already left out
                continue
            result += [self._source[position:start], new]
            position = end
        return "".join(result) + self._source[position:]

    def _step(self, index: int) -> int:
        """Process the token at this position; return the position of the next one."""
        token = self._tokens[index]
        if self._begins_dropped_decorator(index):
            return self._drop_line(index)
        if token.type in (STRING, COMMENT):
            self._replace(index, index, translate(token.string))
        elif tokenize.tok_name[token.type] in ("FSTRING_START", "TSTRING_START"):
            return self._translate_fstring(index)
        elif token.type == NAME:
            return self._name(index)
        return index + 1

    def _name(self, index: int) -> int:
        name = self._tokens[index].string
        after = self._string(index + 1)
        if name == "async" and after in ("def", "for", "with"):
            self._delete_up_to_next(index)
        elif name == "await":
            self._delete_up_to_next(index)
            self._drop_parentheses(index)
        elif (dotted := self._dotted(index)) is not None:
            self._replace(index, index + 2, dotted)
            return index + 3
        elif name in UNWRAPPED and after == "[":
            self._unwrap(index, UNWRAPPED[name])
        else:
            if name == "AsyncGenerator" and after == "[":
                self._complete_generator(index + 1)
            self._replace(index, index, rename(name))
        return index + 1

    def _string(self, index: int) -> str:
        return self._tokens[index].string if 0 <= index < len(self._tokens) else ""

    def _offset(self, place: tuple[int, int]) -> int:
        return self._line_starts[place[0] - 1] + place[1]

    def _start(self, index: int) -> int:
        return self._offset(self._tokens[index].start)

    def _end(self, index: int) -> int:
        return self._offset(self._tokens[index].end)

    def _replace(self, first: int, last: int, new: str) -> None:
        start, end = self._start(first), self._end(last)
        if self._source[start:end] != new:
            self._edits.append((start, end, new))

    def _delete_up_to_next(self, index: int) -> None:
        same_line = self._tokens[index].end[0] == self._tokens[index + 1].start[0]
        end = self._start(index + 1) if same_line else self._end(index)
        self._edits.append((self._start(index), end, ""))

    def _begins_dropped_decorator(self, index: int) -> bool:
        wanted = DROPPED_DECORATOR
        return tuple(self._string(index + n) for n in range(len(wanted))) == wanted

    def _drop_line(self, index: int) -> int:
        last = index
        while self._tokens[last].type != NEWLINE:
            last += 1
        line = self._line_starts[self._tokens[index].start[0] - 1]
        self._edits.append((line, self._end(last), ""))
        return last + 1

    def _translate_fstring(self, index: int) -> int:
        """Translate one piece, as Python up to 3.11 splits it, so that all versions agree."""
        depth, last = 0, index
        while True:
            kind = tokenize.tok_name[self._tokens[last].type]
            depth += kind.endswith("STRING_START") - kind.endswith("STRING_END")
            if not depth:
                break
            last += 1
        text = self._source[self._start(index) : self._end(last)]
        self._replace(index, last, translate(text))
        return last + 1

    def _dotted(self, index: int) -> str | None:
        if self._string(index - 1) == "." or self._string(index + 1) != ".":
            return None
        return DOTTED.get((self._string(index), self._string(index + 2)))

    def _closing(self, opening: int) -> int:
        """Return the position of the closing bracket."""
        return next(place for place, depth in self._depths(opening) if depth == 0)

    def _depths(self, opening: int) -> Iterator[tuple[int, int]]:
        depth = 0
        for place in range(opening, len(self._tokens)):
            token = self._tokens[place]
            if token.type == OP:
                depth += (token.string in OPENING) - (token.string in CLOSING)
            yield place, depth

    def _commas(self, opening: int) -> list[int]:
        """Return the commas directly inside a bracket, except one at its end."""
        closing = self._closing(opening)
        return [
            place
            for place, depth in self._depths(opening)
            if place < closing and depth == 1 and self._string(place) == ","
            if self._next_code(place + 1) != closing
        ]

    def _next_code(self, index: int) -> int:
        while self._tokens[index].type in (NL, COMMENT):
            index += 1
        return index

    def _unwrap(self, index: int, kept: int) -> None:
        commas, closing = self._commas(index + 1), self._closing(index + 1)
        if len(commas) != kept:
            raise UnasyncError(f"{self._tokens[index].line.strip()}: arguments of another number")
        begin = self._next_code((commas[-1] if commas else index + 1) + 1)
        self._edits.append((self._start(index), self._start(begin), ""))
        end = closing - 1
        while self._tokens[end].type in (NL, COMMENT) or self._string(end) == ",":
            end -= 1
        self._edits.append((self._end(end), self._end(closing), ""))

    def _complete_generator(self, opening: int) -> None:
        """Complete the arguments: AsyncGenerator[Y, S] is Generator[Y, S, None]."""
        missing = 2 - len(self._commas(opening))
        closing = self._closing(opening)
        last = closing - 1
        while self._tokens[last].type in (NL, COMMENT) or self._string(last) == ",":
            last -= 1
        self._edits.append((self._end(last), self._end(last), ", None" * missing))

    def _drop_parentheses(self, index: int) -> None:
        """Drop the parentheses of `(await x()).y`."""
        opening = index - 1
        if self._string(opening) != "(" or self._is_operand(opening - 1):
            return
        before = self._source[self._start(opening) - 1 : self._start(opening)]
        closing = self._closing(opening)
        if before.isalnum() or not self._is_primary(opening, closing):
            return
        self._edits.append((self._start(opening), self._end(opening), ""))
        self._edits.append((self._start(closing), self._end(closing), ""))

    def _is_operand(self, index: int) -> bool:
        """Tell if a parenthesis after this token would be a call."""
        token = self._tokens[index]
        is_name = token.type == NAME and not keyword.iskeyword(token.string)
        return is_name or token.type == STRING or token.string in CLOSING

    def _is_primary(self, opening: int, closing: int) -> bool:
        """Tell if everything after `await` binds tighter than any operator."""
        for place, depth in self._depths(opening):
            token = self._tokens[place]
            if place == closing:
                return True
            if depth > 1 or place <= opening + 1:  # inside a call's brackets; "(" and "await"
                continue
            is_name = token.type == NAME and not keyword.iskeyword(token.string)
            if not is_name and token.string not in (".", *CLOSING):
                return False
        return False


def generate(root: Path, only: Path | None = None) -> dict[Path, str]:
    """Return every generated file of a checkout, by its path, formatted.

    Args:
        root: of the checkout.
        only: the source of the one file to generate, from the root.
    """
    made = {}
    for source, target in TREES.items():
        for path in sorted((root / source).rglob("*.py")):
            here = path.relative_to(root)
            if only not in (None, here):
                continue
            there = Path(target) / path.relative_to(root / source)
            made[there] = transform(path.read_text("utf-8"), here.as_posix())
    return _formatted(made, root / "pyproject.toml")


def _formatted(files: dict[Path, str], config: Path) -> dict[Path, str]:
    if not files:
        return files
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        shutil.copy(config, place)
        for path, text in files.items():
            (place / path).parent.mkdir(parents=True, exist_ok=True)
            (place / path).write_text(text, "utf-8")
        _ruff(place, "check", "--select", "I,F401,PLC0414", "--fix", "--exit-zero")
        _ruff(place, "format")
        return {path: (place / path).read_text("utf-8") for path in files}


def _ruff(place: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "ruff", *arguments, "--quiet", "--no-cache", "."]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UnasyncError(f"ruff {arguments[0]}: {(done.stderr or done.stdout).strip()}")


def present(root: Path) -> set[Path]:
    """Return every file in the generated trees."""
    found = (path for target in TREES.values() for path in (root / target).rglob("*"))
    return {
        path.relative_to(root)
        for path in found
        if path.is_file() and "__pycache__" not in path.parts
    }


def differences(made: dict[Path, str], root: Path) -> list[str]:
    """Return missing, extra and differing files; empty if all is well."""
    there = present(root)
    found = [f"missing: {path}" for path in sorted(made.keys() - there)]
    found += [f"extra: {path}" for path in sorted(there - made.keys())]
    for path in sorted(made.keys() & there):
        old = (root / path).read_text("utf-8")
        if old != made[path]:
            found.append(f"differs: {path}\n{_summary(old, made[path])}")
    return found


def _summary(old: str, new: str, *, limit: int = 12) -> str:
    lines = list(
        difflib.unified_diff(
            old.splitlines(), new.splitlines(), "as it is", "as written", lineterm="", n=0
        )
    )
    more = [f"... {len(lines) - limit} more lines"] if len(lines) > limit else []
    return "\n".join("    " + line for line in [*lines[:limit], *more])


def write(made: dict[Path, str], root: Path) -> list[Path]:
    """Update the trees, and return the changed and removed files.

    Raises:
        UnasyncError: a file there was not generated.
    """
    changed = []
    marker = HEADER.partition("{}")[0]
    for path in sorted(present(root) - made.keys()):
        if not (root / path).read_text("utf-8", "replace").startswith(marker):
            raise UnasyncError(f"{path} is not generated and lies among generated files")
        (root / path).unlink()
        changed.append(path)
    for path, text in made.items():
        target = root / path
        if not target.exists() or target.read_text("utf-8") != text:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, "utf-8")
            changed.append(path)
    return changed


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 0 if all is well."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    options = parser.parse_args(arguments)
    try:
        made = generate(options.root)
        if options.check:
            found = differences(made, options.root)
            print("\n".join(found) or f"{len(made)} generated files are up to date")
            return 1 if found else 0
        for path in write(made, options.root):
            print(path)
    except UnasyncError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
