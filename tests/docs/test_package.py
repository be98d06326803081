"""The metadata of the package agree with each other, and its first page runs."""

from __future__ import annotations

import re
from pathlib import Path

import nox

import penstock

ROOT = Path(__file__).parents[2]
PYPROJECT = nox.project.load_toml(ROOT / "pyproject.toml")
PROJECT = PYPROJECT["project"]

KINDS = ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")


def text_of(name: str) -> str:
    """Return the text of a file of the repository."""
    return (ROOT / name).read_text(encoding="utf-8")


def test_one_version() -> None:
    """The version is that of the module; the citation and the changelog know it."""
    assert "version" in PROJECT["dynamic"]
    assert ROOT / PYPROJECT["tool"]["hatch"]["version"]["path"] == Path(
        ROOT, "src/penstock/version.py"
    )
    assert re.search(r"^version: (.*)$", text_of("CITATION.cff"), flags=re.MULTILINE)[1] == (  # type: ignore[index]  # or the test fails
        penstock.__version__
    )


def test_changelog_has_a_form_that_tools_read() -> None:
    """It is that of keepachangelog.com: a heading in brackets for each version, each kind once."""
    heads = re.findall(r"^## (.*)$", text_of("CHANGELOG.md"), flags=re.MULTILINE)
    assert heads[0] == "[Unreleased]"
    assert all(re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", head) for head in heads[1:])
    for version in text_of("CHANGELOG.md").split("\n## ")[1:]:
        kinds = re.findall(r"^### (.*)$", version, flags=re.MULTILINE)
        assert kinds == [one for one in KINDS if one in kinds]


def test_pythons_are_those_of_ci() -> None:
    """The package names the Pythons on which CI runs."""
    named = [
        one.rpartition(" ")[2] for one in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", one)
    ]
    [listed] = re.findall(r"python: \[(.*)\]", text_of(".github/workflows/ci.yml"))
    assert named == re.findall(r"3\.\d+", listed)
    assert PROJECT["requires-python"] == f">={named[0]}"


def test_links_of_the_first_page_become_absolute() -> None:
    """PyPI shows the README without the repository around it."""
    [rule] = PYPROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]
    shown = re.sub(rule["pattern"], rule["replacement"], text_of("README.md"))
    links = re.findall(r"\]\(([^)]+)\)", shown)
    assert len(links) > 5
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
