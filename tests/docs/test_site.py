"""The documentation site: every page is in its navigation, and links lead somewhere."""

from __future__ import annotations

import posixpath
import re
from configparser import ConfigParser
from pathlib import Path
from types import SimpleNamespace

import pytest

from penstock.cli.app import loaded
from penstock.cli.commands import COMMANDS
from penstock.core.enqueuing.options import NOT_STORED
from penstock.core.jobs.queue_stats import SETTING_KINDS
from penstock.worker.children import CHILD_END_SECONDS, UNREPORTED_GRACE_SECONDS
from tests.protocol.pages import anchor, prose, titles
from tools import pages

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))
FILES = sorted([*ROOT.glob("*.md"), *DOCS.glob("*.md")])
NAV = re.findall(
    r"- (?:.*: )?([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), flags=re.MULTILINE
)
OUTSIDE = [path for path in pages.outside() if not path.startswith("examples/")]
"""Pages of the site outside docs/."""


def rendered(source: str) -> str:
    """Return the Markdown of a page behind the hook."""
    page = SimpleNamespace(file=SimpleNamespace(src_uri=pages.site_uri(source)), meta={})
    return pages.on_page_markdown((ROOT / source).read_text(encoding="utf-8"), page=page)


def test_each_page_is_in_the_navigation() -> None:
    """Once, and the navigation names no other page."""
    assert sorted(NAV) == sorted([*PAGES, *map(pages.site_uri, OUTSIDE), "examples/index.md"])


@pytest.mark.parametrize("source", [*(f"docs/{name}" for name in PAGES), *OUTSIDE])
def test_links_lead_to_files(source: str) -> None:
    """Links are relative: the site has all files to which its pages lead."""
    files = [path.relative_to(ROOT).as_posix() for path in DOCS.rglob("*.*")]
    folders = {posixpath.dirname(path) for path in pages.examples()} | {"examples"}
    site = {pages.site_uri(path) for path in [*files, *pages.outside(), *folders]}
    text = re.sub(r"`[^`\n]*`", "", prose(rendered(source)))
    for link in re.findall(r"\]\(([^)#\s]+)", text):
        if not link.startswith(("https://", "http://")):
            folder = posixpath.dirname(pages.site_uri(source))
            assert posixpath.normpath(posixpath.join(folder, link)) in site, link


def test_each_setting_of_a_queue_is_described() -> None:
    """The table has all that `configure` takes, and nothing else."""
    text = (DOCS / "configuration.md").read_text(encoding="utf-8")
    rows = text.partition("| setting | meaning")[2].partition("\n\n")[0].splitlines()[2:]
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert sorted(named) == sorted(SETTING_KINDS)


def test_options_that_a_hand_over_refuses() -> None:
    """The page names those that belong to the call that adds a job."""
    text = (DOCS / "hand-over.md").read_text(encoding="utf-8")
    [line] = [line for line in text.splitlines() if line.endswith("are refused.")]
    _, _, refused = line.partition("apply. ")
    assert re.findall(r"`(\w+)`", refused) == list(NOT_STORED)


@pytest.mark.parametrize("name", ["shop-worker.service", "Dockerfile"])
def test_files_to_deploy_are_those_on_the_page(name: str) -> None:
    """The page shows each file as it is in examples/deploy."""
    text = (ROOT / "examples/deploy" / name).read_text()
    assert f"```text\n{text}```" in (DOCS / "deploy.md").read_text(encoding="utf-8")


def test_the_unit_of_systemd_starts_a_worker_and_waits_for_its_end() -> None:
    """Its command is one of penstock; it is killed later than the supervisor kills processes."""
    unit = ConfigParser(interpolation=None)
    unit.read(ROOT / "examples/deploy/shop-worker.service")
    service = unit["Service"]
    _, command, *arguments = service["ExecStart"].replace("\\\n", "").split()
    assert command == "worker"
    loaded("worker").parser().parse_args(arguments)
    assert service["KillMode"] == "mixed"
    assert int(service["TimeoutStopSec"]) > UNREPORTED_GRACE_SECONDS + CHILD_END_SECONDS
    assert service["RestartPreventExitStatus"] == "2"


def test_the_glossary_is_that_of_contributing() -> None:
    """Each word is on the page, and the words that are explained everywhere are among them."""
    text = rendered("docs/glossary.md")
    assert "| lease | exclusive holding" in text
    assert len(pages.glossary()) > 25
    assert pages.abbreviations().count("*[") == len(pages.EXPLAINED)


@pytest.mark.parametrize("name", PAGES)
def test_each_page_leads_to_the_glossary(name: str) -> None:
    """By a link at its end, and with the meanings of its words."""
    text = rendered(f"docs/{name}")
    [link] = re.findall(r"explained in the \[glossary\]\((.*)\)", text)
    assert ((DOCS / name).parent / link).resolve() == DOCS / "glossary.md"
    assert "*[lease]: exclusive holding" in text


def linked(html: str) -> str:
    """Return the HTML of a page of the reference behind the hook."""
    page = SimpleNamespace(file=SimpleNamespace(src_uri="reference/api.md"))
    return pages.on_page_content(html, page=page)


@pytest.mark.parametrize(
    "named, shown",
    [
        ("(docs/results.md).", '(<a href="../../results/">Results</a>).'),
        (
            "see protocol/maintenance.md, Scanning.",
            (
                'see <a href="../../protocol/maintenance/">Inspecting, removing, repairing</a>, '
                '<a href="../../protocol/maintenance/#scanning">Scanning</a>.'
            ),
        ),
        (
            "(docs/keys.md, A rate for\neach key, Holds)",
            (
                '(<a href="../../keys/">Keys</a>, '
                '<a href="../../keys/#a-rate-for-each-key">A rate for each key</a>, '
                '<a href="../../keys/#holds">Holds</a>)'
            ),
        ),
        ("docs/nodes.md, Beside that", '<a href="../../nodes/">Nodes</a>, Beside that'),
    ],
)
def test_pages_that_docstrings_name_are_links(named: str, shown: str) -> None:
    """Also their sections, by the longest title."""
    assert linked(f"<p>{named}</p>") == f"<p>{shown}</p>"


def test_a_page_of_a_docstring_that_does_not_exist_is_an_error() -> None:
    """The site is not built."""
    with pytest.raises(FileNotFoundError, match=r"docs/nosuch\.md"):
        linked("<p>docs/nosuch.md</p>")


def test_the_page_of_promises_has_what_no_other_page_has() -> None:
    """The other sections of README are on the first page and in the tutorial."""
    titles_of_page = re.findall(r"^##? (.*)$", rendered("README.md"), flags=re.MULTILINE)
    assert titles_of_page == ["Promises", "What is promised", "Compared"]


@pytest.mark.parametrize(
    "source, link, shown",
    [
        ("docs/deploy.md", "workers.md#leases", "workers.md#leases"),
        ("docs/reference/api.md", "../../PROTOCOL.md", "../protocol.md"),
        ("docs/deploy.md", "../README.md#compared", "overview.md#compared"),
        ("docs/deploy.md", "../examples/", "examples/index.md"),
        ("docs/deploy.md", "../examples/14_replicas.py", "examples/14_replicas.py.md"),
        (
            "docs/observing.md",
            "../examples/grafana/penstock.json",
            "examples/grafana/penstock.json",
        ),
        ("protocol/core.md", "keys.md", "keys.md"),
        ("PROTOCOL.md", "protocol/core.md#access", "protocol/core.md#access"),
        ("CHANGELOG.md", "docs/web.md", "web.md"),
        ("docs/deploy.md", "https://example.com/x.md", "https://example.com/x.md"),
        ("docs/deploy.md", "#options", "#options"),
    ],
)
def test_links_follow_their_files_into_the_site(source: str, link: str, shown: str) -> None:
    """Where a page is elsewhere in the site than in the repository, its links change."""
    text = f"[x]({link}) and `[y]({link})`"
    found = pages.CODE_OR_LINK.sub(lambda found: pages.adapted(found, source), text)
    assert found == f"[x]({shown}) and `[y]({link})`"


@pytest.mark.parametrize("link", ["../nosuch.md", "nosuch.md", "../pyproject.toml"])
def test_a_link_to_no_file_of_the_site_is_an_error(link: str) -> None:
    """It names the page and the file."""
    found = pages.CODE_OR_LINK.search(f"[x]({link})")
    assert found is not None
    with pytest.raises(FileNotFoundError, match=r"docs/deploy.md: .*no file of the site"):
        pages.adapted(found, "docs/deploy.md")


def test_a_diagram_becomes_a_table() -> None:
    """One row for each arrow, with the names that the diagram gives to states."""
    text = rendered("docs/states.md")
    assert "| (new) | ready | enqueue |" in text
    assert "| dead | (gone) | delete, or too old |" in text
    assert "mermaid" not in text
    assert "| (new) | waiting: ready or scheduled | enqueue |" in rendered(
        "docs/coming-from-carmine.md"
    )


def test_the_page_of_the_command_line_has_each_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its help, at one width whatever the terminal is."""
    monkeypatch.setenv("COLUMNS", "40")
    text = rendered("docs/reference/cli.md")
    assert [
        name for name in COMMANDS if f"## {name}\n\n```text\nusage: penstock {name}" not in text
    ] == []
    assert "<!--" not in text


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_links_lead_to_headings(path: Path) -> None:
    """Also those of pages outside the site, such as the changelog."""
    text = re.sub(r"`[^`\n]*`", "", prose(path.read_text(encoding="utf-8")))
    for link, name in re.findall(r"\]\(([^)#\s:]*)#([^)]+)\)", text):
        target = path.parent / link if link else path
        heads = map(anchor, titles(target.read_text(encoding="utf-8")))
        assert name in heads, f"{link}#{name}"
