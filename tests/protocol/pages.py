"""The pages of the protocol as text: PROTOCOL.md and protocol/*.md."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["PAGES", "ROOT", "acl_rules", "anchor", "prose", "section", "titles"]

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    str(path.relative_to(ROOT)): path.read_text("utf-8")
    for path in (ROOT / "PROTOCOL.md", *sorted((ROOT / "protocol").glob("*.md")))
}
FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


def prose(text: str) -> str:
    """Return a text without its code blocks."""
    return FENCE.sub("", text)


def titles(text: str) -> list[str]:
    """Return the headings of a text."""
    return re.findall(r"^#+ (.*)$", prose(text), re.MULTILINE)


def anchor(title: str) -> str:
    """Return the name of a heading in links, as GitHub makes it."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def section(page: str, title: str) -> str:
    """Return the text of a section with its subsections."""
    text = PAGES[page]
    plain = FENCE.sub(lambda m: m.group().replace("#", "-"), text)
    head = re.search(rf"^(#+) {re.escape(title)}\n", plain, re.MULTILINE)
    assert head, f"{page} has no section {title!r}"
    level = len(head.group(1))
    end = re.compile(rf"^#{{1,{level}}} ", re.MULTILINE).search(plain, head.end())
    return text[head.end() : end.start() if end else len(text)]


def acl_rules(user: str) -> list[str]:
    """Return the rules of the lines `ACL SETUSER <user> ...` in the pages."""
    lines = re.findall(rf"^ACL SETUSER {user} (.*)$", "\n".join(PAGES.values()), re.MULTILINE)
    assert lines, f"no access rules of {user!r}"
    return " ".join(lines).split()
