"""PROTOCOL.md says what is so: generated parts are current, transcripts run, tables complete."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from penstock.core.ids import parse_id
from penstock.wire.keys import KINDS
from penstock.wire.scripts import all_scripts
from tests.protocol.clock import T0
from tests.protocol.test_vectors import meta_fields
from tests.protocol.transcripts import DOCUMENT, Session, blocks
from tests.protocol.vectors import FOLDER, placed
from tests.support.backends import Backend
from tools import protocol

TEXT = DOCUMENT.read_text("utf-8")
FENCE = re.DOTALL | re.MULTILINE
SECTIONS = ("Job id", "Keys", "Record", "Receipt", "Counters", "Clock", "Waking", "Repeats",
            "Procedures", "Connections", "Servers", "Settings", "Life of a job", "Scripts",
            "Vectors", "Versions", "Conformance", "Guarantees", "Jobs with a name")  # fmt: skip


def section(title: str) -> str:
    """The text of a section, its subsections included."""
    prose = re.sub(r"^```.*?^```$", lambda m: re.sub("#", "-", m.group()), TEXT, flags=FENCE)
    head = re.search(rf"^(#+) {re.escape(title)}\n", prose, re.MULTILINE)
    assert head, f"PROTOCOL.md has no section {title!r}"
    level = len(head.group(1))
    end = re.compile(rf"^#{{1,{level}}} ", re.MULTILINE).search(prose, head.end())
    return TEXT[head.end() : end.start() if end else len(TEXT)]


def test_generated_parts_are_current() -> None:
    """`python tools/protocol.py` would change nothing."""
    assert protocol.updated(TEXT) == TEXT, "run python tools/protocol.py"


def test_the_check_tells_a_stale_document(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The check exits with 1 and writes nothing; the command brings the file up to date."""
    copy = tmp_path / "PROTOCOL.md"
    copy.write_text(TEXT.replace("stateDiagram-v2", "another"), "utf-8")
    assert protocol.main(["--check", "--file", str(copy)]) == 1
    assert "another" in copy.read_text("utf-8")
    assert protocol.main(["--file", str(copy)]) == 0
    assert copy.read_text("utf-8") == TEXT
    assert protocol.main(["--check", "--file", str(copy)]) == 0
    copy.write_text(TEXT.replace("generated: hashes", "generated: other"), "utf-8")
    assert protocol.main(["--file", str(copy)]) == 2
    assert "hashes" in capsys.readouterr().err


def test_transcripts_run(backend: Backend) -> None:
    """Every transcript gives the replies that the document shows, on every back end."""
    session = Session(backend.sync_client())
    count = 0
    for block in blocks(TEXT):
        for step, reply in session.play(block):
            wanted = [placed(line, T0) for line in step.reply]
            assert reply == wanted, f"line {block.line}: {step.command}"
            count += 1
    assert count > 40


def test_every_script_has_a_transcript() -> None:
    """Each section of a script shows it at work."""
    for script in all_scripts():
        assert f"<sha:{script.name}>" in section(script.name), script.name


@pytest.mark.parametrize("title", SECTIONS)
def test_sections_that_the_code_cites_exist(title: str) -> None:
    """Docstrings and comments say (PROTOCOL.md, Title)."""
    assert section(title).strip()


def test_citations_name_sections() -> None:
    """No docstring or comment of the library cites a section that is not there."""
    source = DOCUMENT.parent / "src" / "penstock"
    titles = set(re.findall(r"^#+ (.*)$", TEXT, re.MULTILINE))
    cited = set()
    for path in [*source.rglob("*.py"), *source.rglob("*.lua")]:
        text = re.sub(r"\n(?:--|#)?\s*", " ", path.read_text("utf-8"))
        cited |= set(re.findall(r"\(PROTOCOL\.md, ([A-Z][a-z ]+)\)", text))
    assert cited
    assert cited <= titles


def test_links_lead_somewhere() -> None:
    """Every link within the document has the name of a heading, as GitHub makes it."""
    prose = re.sub(r"^```.*?^```$", "", TEXT, flags=FENCE)
    titles = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    names = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
    linked = set(re.findall(r"\]\(#([^)]*)\)", TEXT))
    assert linked
    assert linked <= names


def first_column(title: str, header: str) -> list[str]:
    """The words of the first column of a table that begins with this header."""
    table = rf"^\| {re.escape(header)} .*?\n\|[-|]*\n((?:\|.*\n)+)"
    found = re.search(table, section(title), re.MULTILINE)
    assert found, f"{title}: no table of {header}"
    cells = [line.split("|")[1] for line in found.group(1).splitlines()]
    return [word for cell in cells for word in re.findall(r"`([^`]+)`", cell)]


def test_every_field_of_meta_is_described() -> None:
    """The table of meta's fields lists what the scripts read and write, and nothing else."""
    known = set.union(*(meta_fields(script) for script in all_scripts()))
    assert sorted(first_column("Keys", "field")) == sorted(known)


def test_every_key_is_described() -> None:
    """The table of keys lists every kind."""
    shown = first_column("Keys", "key")
    kinds = {name.rpartition(":")[2] for name in shown if "{" in name and "<" not in name}
    assert kinds == {*KINDS, "writes"}
    assert {"penstock:node", "penstock:queues"} <= set(shown)


def test_settings_and_their_defaults() -> None:
    """The defaults of the table are those in the scripts."""
    table = re.findall(r"^\| `(\w+)` \|[^|]*\| ([^|]*?) \|", section("Settings"), re.MULTILINE)
    body = "\n".join(script.source for script in all_scripts())
    for name, default in table:
        if default != "none":
            number = default.split()[0]
            taken = rf"(?:tonumber\([^)]*\) or|limit\([^,)]*,) {number}\b"
            assert re.search(taken, body), f"{name}: {number}"
    assert {name for name, _ in table} == {
        "lease", "max_length", "max_attempts", "max_crashes", "max_releases", "backoff_base",
        "backoff_cap", "dead_max", "dead_age", "paused", "replicas", "closed",
    }  # fmt: skip


def test_the_worked_example_of_an_id() -> None:
    """The parts of the example are what its id is made of, and the vectors have it."""
    text = section("Job id")
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


def test_lines_end_where_they_end() -> None:
    """No blanks at the ends of lines, and a line end at the end of the file."""
    assert TEXT.endswith("\n")
    assert not re.search(r"[ \t]+$", TEXT, re.MULTILINE)
