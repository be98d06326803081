"""Hooks of the documentation site (mkdocs.yml): links out of docs/, and the help of commands."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from penstock.cli import COMMANDS
from penstock.cli.app import loaded, main_parser

ROOT = Path(__file__).parents[1]
SOURCE = "https://penstock.example/source"
"""Where the files of the repository are: as `project.urls` in pyproject.toml."""
LINK = re.compile(r"\]\(((?:\.\./)+)([^)#]+)(#[^)]*)?\)")
COMMANDS_HERE = "<!-- commands -->"


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Make links to files outside docs/ absolute, and insert the help of commands.

    Raises:
        FileNotFoundError: a link leads to no file.
    """
    place = ROOT / "docs" / Path(page.file.src_uri).parent
    if COMMANDS_HERE in markdown:
        markdown = markdown.replace(COMMANDS_HERE, commands())
    return LINK.sub(lambda found: absolute(found, place), markdown)


def absolute(found: re.Match[str], place: Path) -> str:
    """Return a link of a page in this directory: absolute if its file is outside docs/."""
    target = Path(os.path.normpath(place / found[1] / found[2]))
    if not target.exists():
        raise FileNotFoundError(f"{found[0]}: {target} does not exist")
    if target.is_relative_to(ROOT / "docs"):
        return found[0]
    return f"]({SOURCE}/{target.relative_to(ROOT)}{found[3] or ''})"


def commands() -> str:
    """Return the help of each command, as Markdown."""
    os.environ["COLUMNS"] = "100"  # argparse wraps at the width of the terminal
    parts = [f"```text\n{main_parser().format_help()}```"]
    helps = {name: loaded(name).parser().format_help() for name in COMMANDS}
    parts += [f"## {name}\n\n```text\n{text}```" for name, text in helps.items()]
    return "\n\n".join(parts)
