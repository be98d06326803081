"""The generation of synchronous code."""

from __future__ import annotations

import shutil
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tools import unasync

ROOT = Path(__file__).resolve().parents[2]


def read_cases() -> dict[str, tuple[str, str]]:
    """Return the cases of unasync_cases.txt: name to (asynchronous, synchronous)."""
    _, *cases = Path(__file__).with_name("unasync_cases.txt").read_text().split("=== ")
    named = (case.partition("\n")[::2] for case in cases)
    return {name: (code.partition("---\n")[0], code.partition("---\n")[2]) for name, code in named}


CASES = read_cases()

BROKEN = {
    "# [async only\nx = 1\n": "a.py:1: '# [async only' without its partner",
    "x = 1\n# async only]\n": "a.py:2: '# async only]' without its partner",
    "async def f():\n    await g()  # async only\n": "does not compile",
    "x: Coroutine[int]\n": "arguments of another number",
}


@pytest.mark.parametrize("case", CASES)
def test_each_rule(case: str) -> None:
    """The rewritten text equals the expected one, after a header that names its source."""
    source, expected = CASES[case]
    header, _, rest = unasync.transform(source, "a/b.py").partition("\n")
    assert rest == expected
    assert header == "# From a/b.py by tools/unasync.py; do not edit."


@pytest.mark.parametrize("case", CASES)
def test_synchronous_code_is_left_alone(case: str) -> None:
    """Rewritten code is not changed by a second rewrite."""
    result = CASES[case][1]
    assert unasync.transform(result, "b.py").partition("\n")[2] == result


@pytest.mark.parametrize("source", BROKEN)
def test_code_that_cannot_be_rewritten_is_refused(source: str) -> None:
    """The message has the file and the reason."""
    with pytest.raises(unasync.UnasyncError) as raised:
        unasync.transform(source, "a.py")
    assert BROKEN[source] in str(raised.value)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A small checkout with current generated files."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "src/penstock/client/_async/deep").mkdir(parents=True)
    (tmp_path / "src/penstock/client/_async/__init__.py").write_text("")
    (tmp_path / "src/penstock/client/_async/deep/a.py").write_text("async def f(): ...\n")
    (tmp_path / "tests/_async").mkdir(parents=True)
    (tmp_path / "tests/_async/test_a.py").write_text("async def test_f(): ...\n")
    unasync.write(made(tmp_path), tmp_path)
    return tmp_path


def made(root: Path) -> dict[Path, str]:
    """Return the unformatted files that would be written."""
    return {
        Path(target) / path.relative_to(root / source): unasync.transform(
            path.read_text(), path.relative_to(root).as_posix()
        )
        for source, target in unasync.TREES.items()
        for path in (root / source).rglob("*.py")
    }


def test_a_checkout_that_is_up_to_date(checkout: Path) -> None:
    """Nothing differs, and writing again changes nothing."""
    assert unasync.differences(made(checkout), checkout) == []
    assert unasync.write(made(checkout), checkout) == []
    assert {path.as_posix() for path in unasync.present(checkout)} == {
        "src/penstock/client/_sync/__init__.py",
        "src/penstock/client/_sync/deep/a.py",
        "tests/_sync/test_a.py",
    }


def test_every_kind_of_difference_is_found(checkout: Path) -> None:
    """A missing file, an extra one, and an added last line are found."""
    (checkout / "src/penstock/client/_sync/__init__.py").unlink()
    (checkout / "src/penstock/client/_sync/data.json").write_text("{}")
    with (checkout / "tests/_sync/test_a.py").open("a") as file:
        file.write("x = 1\n")
    missing, extra, differs = unasync.differences(made(checkout), checkout)
    assert missing == "missing: src/penstock/client/_sync/__init__.py"
    assert extra == "extra: src/penstock/client/_sync/data.json"
    assert differs.startswith("differs: tests/_sync/test_a.py\n")
    assert "-x = 1" in differs


def test_writing_removes_obsolete_files(checkout: Path) -> None:
    """The generated file of a removed source is removed; a file written by hand is refused."""
    (checkout / "tests/_async/test_a.py").unlink()
    assert unasync.write(made(checkout), checkout) == [Path("tests/_sync/test_a.py")]
    (checkout / "tests/_sync/by_hand.py").write_text("x = 1\n")
    with pytest.raises(unasync.UnasyncError, match="by_hand"):
        unasync.write(made(checkout), checkout)
    assert (checkout / "tests/_sync/by_hand.py").exists()


def test_the_command_writes_formatted_files_and_checks_them(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Imports are merged and sorted, lines joined; `--check` reports every difference."""
    (checkout / "src/penstock/client/_async/deep/a.py").write_text(
        "import redis\nimport redis.asyncio\nfrom collections.abc import Awaitable, Callable\n\n\n"
        "x: Callable[[], Awaitable[redis.asyncio.Redis]]\n"
        "y = redis.asyncio.Redis(\n    host='a'\n)\n"
    )
    assert unasync.main(["--root", str(checkout), "--check"]) == 1
    assert "differs: src/penstock/client/_sync/deep/a.py" in capsys.readouterr().out
    assert unasync.main(["--root", str(checkout)]) == 0
    written = (checkout / "src/penstock/client/_sync/deep/a.py").read_text()
    assert written == (
        "# From src/penstock/client/_async/deep/a.py by tools/unasync.py; do not edit.\n"
        "from collections.abc import Callable\n\nimport redis\n\n"
        'x: Callable[[], redis.Redis]\ny = redis.Redis(host="a")\n'
    )
    assert unasync.main(["--root", str(checkout), "--check"]) == 0


@pytest.mark.parametrize("target", unasync.TREES.values())
def test_generated_files_are_marked(target: str) -> None:
    """Reviews and language statistics leave them out."""
    lines = [line.split() for line in (ROOT / ".gitattributes").read_text().splitlines()]
    patterns = [line[0] for line in lines if line[1:] == ["linguist-generated=true"]]
    assert any(fnmatch(f"{target}/a.py", pattern) for pattern in patterns)
