"""The protocol pages: generated parts are current, transcripts run, tables are complete."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from penstock.core.values.ids import parse_id
from penstock.wire.keys import KEY_KINDS, LASTING_KINDS
from penstock.wire.scripts import LETTERS, all_scripts, parts
from tests.protocol.clock import T0
from tests.protocol.pages import PAGES, ROOT, anchor, prose, section, titles
from tests.protocol.test_vectors import known_meta_fields
from tests.protocol.transcripts import Session, blocks
from tests.protocol.vectors import FOLDER, placed
from tests.support.backends import Backend
from tools import protocol
from tools.protocol import WIDTH

CITATION = re.compile(r"(PROTOCOL\.md|protocol/[a-z]+\.md)(?:, ([A-Z][A-Za-z, ]*[a-z]))?")


def citations(text: str) -> set[tuple[str, str]]:
    """Return pages and titles in a source text: `(protocol/core.md, Job id)`, also across lines."""
    joined = re.sub(r"\n\s*(?:(?:--|#) )?", " ", text)
    return {(page, title) for page, title in CITATION.findall(joined)}


def named(page: str, words: str) -> bool:
    """Tell if the words begin with a heading of the page; text may follow it."""
    return any(re.match(rf"{re.escape(title)}\b", words) for title in titles(PAGES[page]))


def test_generated_parts_are_current() -> None:
    """`python tools/protocol.py` would change nothing."""
    assert protocol.updated(PAGES) == PAGES, "run python tools/protocol.py"


def test_the_check_detects_a_stale_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The check exits with 1 and writes nothing; the command updates the pages."""
    for name, text in PAGES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, "utf-8")
    page = tmp_path / "protocol/scripts.md"
    text = page.read_text("utf-8")
    page.write_text(text.replace("ack.lua", "another.lua"), "utf-8")
    root = ["--root", str(tmp_path)]
    assert protocol.main(["--check", *root]) == 1
    assert "another.lua" in page.read_text("utf-8")
    assert "protocol/scripts.md" in capsys.readouterr().err
    assert protocol.main(root) == 0
    assert page.read_text("utf-8") == text
    assert protocol.main(["--check", *root]) == 0
    page.write_text(text.replace("generated: hashes", "generated: other"), "utf-8")
    assert protocol.main(root) == 2
    assert "hashes" in capsys.readouterr().err


@pytest.mark.parametrize("page", [page for page in PAGES if "```redis" in PAGES[page]])
def test_transcripts_run(page: str, backend: Backend) -> None:
    """Every transcript of a page gives the shown replies on every back end."""
    session = Session(backend.sync_client())
    for block in blocks(PAGES[page]):
        for step, reply in session.play(block):
            wanted = [placed(line, T0) for line in step.reply]
            assert reply == wanted, f"line {block.line}: {step.command}"


def test_every_script_has_a_transcript() -> None:
    """Each section of a script has a transcript."""
    for script in all_scripts():
        assert f"<sha:{script.name}>" in section("protocol/scripts.md", script.name), script.name


def test_citations_name_sections() -> None:
    """Each `(protocol/page.md, Title)` in code, tests and vectors names a page and its heading."""
    found = {
        (str(path.relative_to(ROOT)), *cited)
        for folder in ("src", "tests", "tools", "benchmarks")
        for kind in ("*.py", "*.lua", "*.json")
        for path in (ROOT / folder).rglob(kind)
        if path != Path(__file__)
        for cited in citations(path.read_text("utf-8"))
    }
    assert len(found) > 50
    wrong = [c for c in found if c[1] not in PAGES or (c[2] and not named(c[1], c[2]))]
    assert not wrong


def test_links_have_targets() -> None:
    """Links between the pages, and from the documentation to them, name a file and a heading."""
    anchors = {page: {anchor(title) for title in titles(text)} for page, text in PAGES.items()}
    sources = {*PAGES, "README.md", "CHANGELOG.md", "CONTRIBUTING.md"}
    sources |= {str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md")}
    count = 0
    for source in sorted(sources):
        text = prose((ROOT / source).read_text("utf-8"))
        for file, name in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", text):
            target = (ROOT / source).parent.joinpath(file).resolve() if file else ROOT / source
            assert target.exists(), f"{source}: {file}"
            page = str(target.relative_to(ROOT))
            if name and page in PAGES:
                assert name in anchors[page], f"{source}: {file}#{name}"
                count += 1
    assert count > 100


SUBJECTS = re.compile(r"(?:^|(?<=\. ))((?:`[^`]+`,\s+)*`[^`]+`):")
"""Words before a colon that begin an item or a sentence of it."""


def _words(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def first_column(title: str, header: str) -> list[str]:
    """Return the words of the first column of a table with this header."""
    table = rf"^\| {re.escape(header)} .*?\n\|[-|]*\n((?:\|.*\n)+)"
    found = re.search(table, section("protocol/core.md", title), re.MULTILINE)
    assert found, f"{title}: no table of {header}"
    cells = [line.split("|")[1] for line in found.group(1).splitlines()]
    return [word for cell in cells for word in _words(cell)]


def test_every_field_of_meta_is_described() -> None:
    """The lists of meta's fields have exactly those that the scripts use, and `stats` answers."""
    known = known_meta_fields()
    items = re.findall(
        r"^- (.*(?:\n  .*)*)", section("protocol/storage.md", "Fields of meta"), re.MULTILINE
    )
    named = [name for item in items for names in SUBJECTS.findall(item) for name in _words(names)]
    assert sorted([*named, "uses"]) == sorted({*known, "@<id>"})
    listed = re.findall(r"'(\w+)'", parts("lib/meta/all_fields")[2].partition("}")[0])
    assert sorted(listed) == sorted(known)


def test_every_letter_of_uses_is_described() -> None:
    """The table has the letters and names that the loader knows."""
    shown = re.findall(
        r"^\| `(\w)` \| `(\w+)` \|", section("protocol/storage.md", "Fields of meta"), re.MULTILINE
    )
    assert sorted((name, letter) for letter, name in shown) == sorted(LETTERS.items())


def test_every_key_is_described() -> None:
    """The table of keys has every kind."""
    shown = first_column("Keys", "key")
    kinds = {name.rpartition(":")[2] for name in shown if "{" in name and "<" not in name}
    assert kinds == {*KEY_KINDS, *LASTING_KINDS, "emitters"}
    assert {"penstock:node", "penstock:queues"} <= set(shown)


def test_settings_and_their_defaults() -> None:
    """The defaults in the table equal those in the scripts."""
    table = re.findall(
        r"^\| `(\w+)` \|[^|]*\| ([^|]*?) \|", section("protocol/core.md", "Settings"), re.MULTILINE
    )
    body = "\n".join(script.source for script in all_scripts())
    for name, default in table:
        if default != "none":
            number = default.split()[0]
            taken = rf"(?:tonumber\([^)]*\) or|limit_of\([^,)]*,) {number}\b"
            assert re.search(taken, body), f"{name}: {number}"
    assert {name for name, _ in table} == {
        "lease", "max_length", "max_attempts", "max_crashes", "max_releases", "max_snoozes",
        "backoff_base", "backoff_cap", "unknown_age", "dead_max", "dead_age",
        "paused", "replicas", "closed",
    }  # fmt: skip


def test_the_worked_example_of_an_id() -> None:
    """The example's parts make up its id, and the vectors have it."""
    text = section("protocol/core.md", "Job id")
    example = re.search(r"^(D-\S{38})$", text, re.MULTILINE)
    assert example
    parsed = parse_id(example.group(1))
    packed = f"{parsed.ms:012x}{parsed.seq:08x}{parsed.crc:08x}{parsed.epoch}"
    for part in (str(parsed.ms), f"{parsed.ms:012x}", f"{parsed.seq:08x}", f"{parsed.crc:08x}"):
        assert f"{part}`" in text or f"`ms` {part}" in text
    assert f"`{packed}`" in text
    assert f"`{example.group(1)[11:35]}`" in text
    cases = json.loads((FOLDER / "ids.json").read_text("utf-8"))["ids"]
    assert cases[0]["id"] == example.group(1)
    assert cases[0]["queue"] == "emails"


def test_the_example_of_a_vector() -> None:
    """It is a case of its file."""
    [example] = re.findall(
        r"^```json\n(.*?)^```$", section("protocol/core.md", "Vectors"), re.DOTALL | re.MULTILINE
    )
    cases = json.loads((FOLDER / "reserve.json").read_text("utf-8"))["cases"]
    assert json.loads(f"{{{example}}}").items() <= cases.items()


def test_producers_and_consumers_read_a_thousand_lines() -> None:
    """core.md stays a page that is read from its beginning to its end."""
    assert PAGES["protocol/core.md"].count("\n") <= 1000


@pytest.mark.parametrize("page", PAGES)
def test_lines_have_at_most_160_characters(page: str) -> None:
    """No line is longer: wide tables are lists, and long commands are several."""
    assert [line for line in PAGES[page].splitlines() if len(line) > WIDTH] == []


@pytest.mark.parametrize("page", PAGES)
def test_lines_end_where_they_end(page: str) -> None:
    """No line ends with blanks, and files end with a line end."""
    assert PAGES[page].endswith("\n")
    assert not re.search(r"[ \t]+$", PAGES[page], re.MULTILINE)


@pytest.mark.parametrize("page", PAGES)
def test_programs_are_not_described_as_people(page: str) -> None:
    """Pages say client, consumer or server instead of who, nobody or somebody."""
    found = re.findall(
        r"\b(who|whom|whoever|(?:any|no|some)body)\b", prose(PAGES[page]), re.IGNORECASE
    )
    assert found == []
