"""The documentation site: every page is in its navigation, and links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from penstock.cli import COMMANDS
from tools import pages

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))
NAV = re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), flags=re.MULTILINE)


def rendered(name: str) -> str:
    """Return the Markdown of a page behind the hook."""
    page = SimpleNamespace(file=SimpleNamespace(src_uri=name))
    return pages.on_page_markdown((DOCS / name).read_text(encoding="utf-8"), page=page)


def test_each_page_is_in_the_navigation() -> None:
    """Once, and the navigation names no other page."""
    assert sorted(NAV) == PAGES


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_to_files(name: str) -> None:
    """Links to pages are relative; those to other files of the repository become absolute."""
    text = re.sub(r"^```.*?^```", "", rendered(name), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"`[^`\n]*`", "", text)
    for link in re.findall(r"\]\(([^)#\s]+)", text):
        if not link.startswith(("https://", "http://", "redis://")):
            target = (DOCS / name).parent / link
            assert target.resolve().is_relative_to(DOCS)
            assert target.exists(), link


def test_links_out_of_the_pages_are_absolute() -> None:
    """The address is that of the sources in pyproject.toml; a link to no file is an error."""
    assert f'Source = "{pages.SOURCE}"' in (ROOT / "pyproject.toml").read_text()
    found = pages.LINK.search("[x](../README.md#see-it-work)")
    assert found is not None
    assert pages.absolute(found, DOCS) == f"]({pages.SOURCE}/README.md#see-it-work)"
    missing = pages.LINK.search("[x](../nosuch.md)")
    assert missing is not None
    with pytest.raises(FileNotFoundError, match="nosuch"):
        pages.absolute(missing, DOCS)


def test_the_page_of_the_command_line_has_each_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its help, at one width whatever the terminal is."""
    monkeypatch.setenv("COLUMNS", "40")
    text = rendered("reference/cli.md")
    assert [
        name for name in COMMANDS if f"## {name}\n\n```text\nusage: penstock {name}" not in text
    ] == []
    assert "<!--" not in text
