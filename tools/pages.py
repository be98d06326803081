"""Hooks of the documentation site (mkdocs.yml): links out of docs/, the help of commands, and the
glossary, whose source is CONTRIBUTING.md.
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import Any

from penstock.cli.app import loaded, main_parser
from penstock.cli.commands import COMMANDS

ROOT = Path(__file__).parents[1]
SOURCE = "https://penstock.example/source"
"""Where the files of the repository are: as `project.urls` in pyproject.toml."""
LINK = re.compile(r"\]\(((?:\.\./)+)([^)#]+)(#[^)]*)?\)")
COMMANDS_HERE = "<!-- commands -->"
GLOSSARY_HERE = "<!-- glossary -->"
EXPLAINED = {
    *(
        "ack",
        "bury",
        "dead letter",
        "dedup id",
        "epoch",
        "heartbeat",
        "hint",
        "lease",
        "nack",
        "partition",
    ),
    *("receipt", "recover", "redrive", "reserve", "shard", "suspect", "wake token"),
}
"""Words that show their meaning on every page; the others are too common."""


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Make links to files outside docs/ absolute, insert the help of commands and the glossary.

    Each page ends with a link to the glossary and with the meanings of its words.

    Raises:
        FileNotFoundError: a link leads to no file.
    """
    place = ROOT / "docs" / Path(page.file.src_uri).parent
    if COMMANDS_HERE in markdown:
        markdown = markdown.replace(COMMANDS_HERE, commands())
    markdown = markdown.replace(GLOSSARY_HERE, "\n".join(glossary()))
    markdown = LINK.sub(lambda found: absolute(found, place), markdown)
    words = posixpath.relpath("glossary.md", posixpath.dirname(page.file.src_uri))
    return f"{markdown}\n\n---\n\nWords: [glossary]({words})\n\n{abbreviations()}"


def absolute(found: re.Match[str], place: Path) -> str:
    """Return a link of a page in this directory: absolute if its file is outside docs/."""
    target = Path(os.path.normpath(place / found[1] / found[2]))
    if not target.exists():
        raise FileNotFoundError(f"{found[0]}: {target} does not exist")
    if target.is_relative_to(ROOT / "docs"):
        return found[0]
    return f"]({SOURCE}/{target.relative_to(ROOT)}{found[3] or ''})"


def glossary() -> list[str]:
    """Return the lines of the table of words in CONTRIBUTING.md."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.partition("\n## Glossary\n")[2].partition("\n## ")[0]
    return [line for line in section.splitlines() if line.startswith("|")]


def abbreviations() -> str:
    """Return the meanings of the words that are explained everywhere, in the form of `abbr`."""
    rows = [line.strip("| ").split(" | ") for line in glossary()[2:]]
    meanings = {word: row[1] for row in rows for word in row[0].split(", ")}
    return "\n".join(f"*[{word}]: {meanings[word]}" for word in sorted(EXPLAINED))


def commands() -> str:
    """Return the help of each command, as Markdown."""
    os.environ["COLUMNS"] = "100"  # argparse wraps at the width of the terminal
    parts = [f"```text\n{main_parser().format_help()}```"]
    helps = {name: loaded(name).parser().format_help() for name in COMMANDS}
    parts += [f"## {name}\n\n```text\n{text}```" for name, text in helps.items()]
    return "\n\n".join(parts)
