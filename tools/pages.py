"""Hooks of the documentation site (mkdocs.yml): pages from outside docs/, the help of commands, the
glossary, whose source is CONTRIBUTING.md, and diagrams of states, as tables.

The site has all files of the repository to which its pages lead, so its links are relative.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from penstock.cli.app import loaded, main_parser
from penstock.cli.commands import COMMANDS

ROOT = Path(__file__).parents[1]
TOP = {
    "README.md": "overview.md",
    "PROTOCOL.md": "protocol.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
"""Files beside docs/ and their pages."""
LEXERS = {".py": "python", ".mjs": "js", ".service": "ini", "": "docker"}
"""Kinds of files in examples/ that have a page, and how it colours them; others are downloads."""
LEFT_OUT = {"__init__.py", "package-lock.json"}
CODE_OR_LINK = re.compile(
    r"(?P<code>^```.*?^```$|`[^`\n]+`)|\]\((?![a-z]+:)(?P<target>[^)#\s]+)(?P<anchor>#[^)\s]+)?\)",
    flags=re.MULTILINE | re.DOTALL,
)
DIAGRAM = re.compile(r"^```mermaid\nstateDiagram-v2\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
NAMED_PAGE = re.compile(r"\b((?:docs|protocol)/[a-z-]+)\.md((?:,\s[A-Z][^,.;:()<]*)*)")
"""A page, and sections of it, as docstrings name them."""
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


def on_files(files: Any, *, config: Any) -> Any:
    """Add the pages and downloads whose files are outside docs/."""
    from mkdocs.structure.files import File  # the tests of this module do without it

    for path in outside():
        uri = site_uri(path)
        text = page_of_example(path) if uri != path and path.startswith("examples/") else None
        source = {"abs_src_path": str(ROOT / path)} if text is None else {"content": text}
        files.append(File.generated(config, uri, **source))
    for folder in sorted({posixpath.dirname(path) for path in examples()} | {"examples"}):
        files.append(File.generated(config, site_uri(folder), content=page_of_folder(folder)))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Adapt the links and diagrams, insert the help of commands and the glossary.

    Each page of docs/ ends with a link to the glossary and with the meanings of its words.

    Raises:
        FileNotFoundError: a link leads to no file of the site.
    """
    uri = page.file.src_uri
    source = next((path for path in outside() if site_uri(path) == uri), f"docs/{uri}")
    if source == "README.md":
        markdown = promises(markdown)
    if source.startswith("examples/") or uri.startswith("examples/"):
        return markdown
    markdown = DIAGRAM.sub(lambda found: "\n".join(transitions(found[1])), markdown)
    markdown = CODE_OR_LINK.sub(lambda found: adapted(found, source), markdown)
    if not source.startswith("docs/"):
        page.meta["search"] = {"boost": 0.5}
        return markdown
    if COMMANDS_HERE in markdown:
        markdown = markdown.replace(COMMANDS_HERE, commands())
    markdown = markdown.replace(GLOSSARY_HERE, "\n".join(glossary()))
    words = posixpath.relpath("glossary.md", posixpath.dirname(uri))
    line = f"Words with dots below them are explained in the [glossary]({words}).\n{{ .words }}"
    return f"{markdown}\n\n{line}\n\n{abbreviations()}"


def on_page_content(html: str, *, page: Any, **_: Any) -> str:
    """Make links of the pages and sections that docstrings name.

    Raises:
        FileNotFoundError: a docstring names no file of the site.
    """
    uri = page.file.src_uri
    if not uri.startswith("reference/"):
        return html
    return NAMED_PAGE.sub(lambda found: linked(found, posixpath.dirname(uri)), html)


def linked(found: re.Match[str], folder: str) -> str:
    """Return "docs/keys.md, Holds" of a docstring as links to the page and to its sections."""
    path = f"{found[1]}.md"
    text = (ROOT / path).read_text(encoding="utf-8")
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    title, *sections = re.findall(r"^#+ (.*)$", prose, flags=re.MULTILINE)
    # of reference/api/, the address of reference/api.md
    place = f"../{posixpath.relpath(site_uri(path).removesuffix('.md'), folder)}/"
    links, rest = (
        [f'<a href="{place}">{title.partition(":")[0]}</a>'],
        re.sub(r"\s+", " ", found[2]),
    )
    while named := [one for one in sections if re.match(rf", {re.escape(one)}\b", rest)]:
        name = max(named, key=len)
        anchor = re.sub(r"[^\w -]", "", name).lower().replace(" ", "-")
        links.append(f'<a href="{place}#{anchor}">{name}</a>')
        rest = rest.removeprefix(f", {name}")
    return ", ".join(links) + rest


def promises(readme: str) -> str:
    """Return the sections of README.md that no other page of the site has."""
    sections = re.split(r"^(?=## )", readme, flags=re.MULTILINE)
    kept = [one for one in sections if one.startswith(("## What is promised", "## Compared"))]
    return "".join(["# Promises\n\n", *kept])


@cache
def outside() -> tuple[str, ...]:
    """Return the files outside docs/ that are part of the site."""
    protocol = sorted(f"protocol/{path.name}" for path in (ROOT / "protocol").glob("*.md"))
    return (*TOP, *protocol, *examples())


@cache
def examples() -> tuple[str, ...]:
    """Return the files of examples/ that are part of the site."""
    found = (path for path in (ROOT / "examples").rglob("*") if path.is_file())
    names = (path.relative_to(ROOT) for path in found if path.name not in LEFT_OUT)
    ours = (name for name in names if not {"__pycache__", "node_modules"} & {*name.parts})
    return tuple(sorted(name.as_posix() for name in ours))


def site_uri(path: str) -> str:
    """Return the place in the site of a file or folder of the repository."""
    if path in TOP:
        return TOP[path]
    if not path.startswith("examples"):
        return path.removeprefix("docs/")
    if (ROOT / path).is_dir():
        return f"{path}/index.md"
    return f"{path}.md" if posixpath.splitext(path)[1] in LEXERS else path


def adapted(found: re.Match[str], source: str) -> str:
    """Return a link of this file as it is in the site; code stays as it is."""
    if found["code"]:
        return found[0]
    target = posixpath.normpath(posixpath.join(posixpath.dirname(source), found["target"]))
    is_part = target.startswith(("docs/", "examples")) or target in outside()
    if not is_part or not (ROOT / target).exists():
        raise FileNotFoundError(f"{source}: {found[0]}: {target} is no file of the site")
    link = posixpath.relpath(site_uri(target), posixpath.dirname(site_uri(source)) or ".")
    return f"]({link}{found['anchor'] or ''})"


def page_of_example(path: str) -> str:
    """Return the page of a program, with its text."""
    text = (ROOT / path).read_text(encoding="utf-8")
    lexer = LEXERS[posixpath.splitext(path)[1]]
    return f"# {posixpath.basename(path)}\n\n`{path}`\n\n```{lexer}\n{text.rstrip()}\n```\n"


def page_of_folder(folder: str) -> str:
    """Return the page of a folder of examples/, with a list of all files below it."""
    lines = [f"# {'Examples' if folder == 'examples' else folder}", ""]
    for path in examples():
        if path.startswith(f"{folder}/"):
            link = posixpath.relpath(site_uri(path), folder)
            lines.append(f"- [{posixpath.relpath(path, folder)}]({link}){purpose(path)}")
    return "\n".join(lines) + "\n"


def purpose(path: str) -> str:
    """Return the first line of the docstring of a program, behind a colon; or nothing."""
    text = (ROOT / path).read_text(encoding="utf-8")
    found = re.match(r'(?:#.*\n)*"""(.*?)(?:"""|\n\n)', text, flags=re.DOTALL)
    return f": {' '.join(found[1].split())}" if found and path.endswith(".py") else ""


def transitions(diagram: str) -> Iterator[str]:
    """Yield the table of a diagram of states in Mermaid's language, which needs no script."""
    names = {name: text for text, name in re.findall(r'state "(.*)" as (\w+)', diagram)}
    yield from ("| from | to | by |", "|---|---|---|")
    for before, after, by in re.findall(r"^\s+(\S+) --> (\S+): (.*)$", diagram, re.MULTILINE):
        start = "(new)" if before == "[*]" else names.get(before, before)
        yield f"| {start} | {'(gone)' if after == '[*]' else names.get(after, after)} | {by} |"


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
    os.environ["COLUMNS"] = "82"  # argparse wraps at the width of the terminal
    parts = [f"```text\n{main_parser().format_help()}```"]
    helps = {name: loaded(name).parser().format_help() for name in COMMANDS}
    parts += [f"## {name}\n\n```text\n{text}```" for name, text in helps.items()]
    return "\n\n".join(parts)
