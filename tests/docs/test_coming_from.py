"""The code in docs/ runs unchanged, and prints the documented output."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.backends import Backend
from tools.newcomer import FENCE, URL

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
ELSEWHERE = {"deploy.md", "frameworks.md", "recipes.md", "spark.md", "testing.md"}
"""Files and parts of programs: other tests run them."""
WITH_CODE = [
    page
    for page in PAGES
    if page.name not in ELSEWHERE and "```py" in page.read_text(encoding="utf-8")
]
OPTIONS = ("-o", "ELLIPSIS", "-o", "NORMALIZE_WHITESPACE")
"""Of doctest: an answer may be shortened, and folded."""
WIDTH = 80
"""Columns of a line of code."""
LANGUAGES = {"python", "pycon", "text", "sh", "redis", "mermaid"}


class Block(NamedTuple):
    """A program of a page.

    Attributes:
        line: of the page, where its fence is.
        code: the program.
        output: its output, or None if the page has none.
    """

    line: int
    code: str
    output: str | None


def blocks(text: str) -> list[Block]:
    """Return the programs of a page; an output is the `text` block directly after one.

    Raises:
        AssertionError: a block that might be a program, and would not be run.
    """
    found = list(FENCE.finditer(text))
    marks = sum(line.lstrip("> \t").startswith(("```", "~~~")) for line in text.splitlines())
    assert marks == 2 * len(found), "a fence that is indented, unclosed, or of another kind"
    programs = []
    for fence, after in zip_longest(found, found[1:]):
        line = text.count("\n", 0, fence.start()) + 1
        assert fence[1] in LANGUAGES, f"line {line}: ```{fence[1]}, not one of {LANGUAGES}"
        if fence[1] == "python":
            follows = after is not None and not text[fence.end() : after.start()].strip()
            output = after[2] if follows and after[1] == "text" else None
            programs.append(Block(line, fence[2], output))
    return programs


def folded(output: str) -> str:
    """Return an output as a page shows it: lines of more columns than `WIDTH` are folded."""
    fold = textwrap.TextWrapper(
        WIDTH, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    ).fill
    return "".join(f"{fold(line) if len(line) > WIDTH else line}\n" for line in output.splitlines())


def sessions(text: str) -> list[str]:
    """Return the examples of a page, one session per section (##); lines keep their numbers."""
    found, is_example = [""], False
    for number, line in enumerate(text.splitlines()):
        if line.startswith("## "):
            found.append("\n" * number)
        if line.startswith("```"):
            is_example = line == "```pycon"
            line = ""
        found[-1] += (line if is_example else "") + "\n"
    return [session for session in found if session.strip()]


def run(block: Block, url: str) -> str:
    """Return the output of a program in its own process, with the test's server URL."""
    assert URL in block.code, f"line {block.line}: a program says where its server is, {URL}"
    return printed(block, "-c", block.code.replace(URL, url))


def run_session(session: str, url: str, directory: Path) -> str:
    """Return doctest's output for a session in its own process: empty if all answers match."""
    page = directory / "page.md"
    page.write_text(session.replace(URL, url), encoding="utf-8")
    first = session.count("\n") - session.lstrip("\n").count("\n") + 1
    assert URL in session, f"line {first}: a session says where its server is, {URL}"
    return printed(Block(first, session, ""), "-m", "doctest", *OPTIONS, str(page))


def printed(block: Block, *arguments: str, **environment: str) -> str:
    """Return Python's output; the exit code must be 0."""
    done = subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT / "src"),
            "PYTHONIOENCODING": "utf-8",
            "PYTEST_ADDOPTS": "",
            **environment,
        },
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, f"line {block.line}: {done.stderr or done.stdout}"
    return done.stdout


def test_there_are_pages() -> None:
    """These pages exist: an empty list would run nothing and pass."""
    assert {"coming-from-redisrq.md", "observing.md", "workers.md"} <= {
        page.name for page in WITH_CODE
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_blocks_of_a_page_have_a_known_language(page: Path) -> None:
    """So no program is left out because of the name of its language."""
    blocks(page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.stem)
def test_the_programs_of_a_page_run(page: Path, one_server: Backend, tmp_path: Path) -> None:
    """Its programs run on one server and print the documented output.

    Sessions of its sections are checked too.
    """
    assert one_server.url is not None
    text = page.read_text(encoding="utf-8")
    programs, examples = blocks(text), sessions(text)
    assert programs or examples
    for session in examples:
        run_session(session, one_server.url, tmp_path)
    for program in programs:
        output = run(program, one_server.url)
        if program.output is not None:
            assert folded(output) == program.output, f"{page.name}, line {program.line}"


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda page: page.stem)
def test_lines_of_code_fit_into_their_box(page: Path) -> None:
    """They have at most 80 columns, so that a page shows them whole."""
    found = FENCE.findall(page.read_text(encoding="utf-8"))
    assert [line for _, code in found for line in code.splitlines() if len(line) > WIDTH] == []


def test_long_lines_of_an_output_are_folded() -> None:
    """The rest of a line is indented; a word is never cut."""
    assert folded("ten letters " * 10 + "\nshort\n") == (
        f"{'ten letters ' * 6}ten\n    letters {'ten letters ' * 2}ten letters\nshort\n"
    )


def test_blocks_are_found() -> None:
    """Every program is found with its line, and an output that follows directly."""
    page = """# A page

```python
print(1)
```

```text
1
```
```python
print(2)
```

It prints:

```text
2
```
```sh
echo 3
```
"""
    assert blocks(page) == [
        Block(3, "print(1)\n", "1\n"),
        Block(10, "print(2)\n", None),
    ]


@pytest.mark.parametrize("language", ["", "py", "python3", "python title", "pycon title"])
def test_programs_under_another_name_are_refused(language: str) -> None:
    """A block that looks like a program and would not be run is an error."""
    with pytest.raises(AssertionError, match="not one of"):
        blocks(f"```{language}\nprint(1)\n```\n")


@pytest.mark.parametrize("fence", ["  ```python", "~~~python", "> ```python", "```python"])
def test_fences_of_another_kind_are_refused(fence: str) -> None:
    """A fence in a list, a quotation, of tildes, or without an end is an error."""
    with pytest.raises(AssertionError, match="fence"):
        blocks(f"{fence}\nprint(1)\n")


SECTIONS = f"""# A page

```pycon
>>> url = "{URL}"
```

So it goes on:

```pycon
>>> url[:6]
'redis:'
>>> int(url)
Traceback (most recent call last):
ValueError: invalid literal for int() with base 10: 'redis...'
```

## Another section

```pycon
>>> url = "{URL}"
>>> len(url) > 100
False
```
"""


def test_a_session_continues_through_its_section(tmp_path: Path) -> None:
    """A section is one session; the next section has another. Lines keep their numbers."""
    first, second = sessions(SECTIONS)
    assert first.splitlines()[9] == ">>> url[:6]"
    assert second.splitlines()[20] == ">>> len(url) > 100"
    for session in (first, second):
        run_session(session, URL, tmp_path)


@pytest.mark.parametrize(
    "said, wrong, line",
    [
        ("'redis:'", "'other:'", 10),
        ("'redis:'\n", "", 10),
        ("base 10", "base 16", 12),
        ("ValueError", "KeyError", 12),
        (">>> url[:6]", ">>> url[:5]", 10),
        ("False", "True", 21),
        (f'>>> url = "{URL}"\n>>> len', f'>>> uri = "{URL}"\n>>> len', 21),
    ],
)
def test_a_wrong_answer_of_a_session_is_reported(
    said: str, wrong: str, line: int, tmp_path: Path
) -> None:
    """A differing answer is reported with its line on the page."""
    assert SECTIONS.count(said) == 1
    session = sessions(SECTIONS.replace(said, wrong))[line > 20]
    with pytest.raises(AssertionError, match=f", line {line},"):
        run_session(session, URL, tmp_path)


def test_a_failing_program_is_reported(one_server: Backend) -> None:
    """It is reported with its line on the page and its output."""
    assert one_server.url is not None
    with pytest.raises(AssertionError, match=r"line 7: (.|\n)*ZeroDivisionError"):
        run(Block(7, f"# {URL}\n1 / 0\n", None), one_server.url)
    with pytest.raises(AssertionError, match="says where its server is"):
        run(Block(7, "print(1)\n", None), one_server.url)
