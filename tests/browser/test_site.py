"""The documentation site as it was built (build/site): its links, and its pages on a phone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import cache, partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

SITE = Path(__file__).parents[2] / "build" / "site"
"""`nox -s docs` and `nox -s browser` build it."""
PAGES = sorted(page.relative_to(SITE).as_posix() for page in SITE.rglob("index.html"))
HERE = "http://site/"
PHONE = {"width": 390, "height": 844}
SPILL = """() => {
    const width = document.documentElement.clientWidth
    const wide = document.documentElement.scrollWidth - width
    return wide <= 0 ? [] : [...document.querySelectorAll(".md-content *")]
        .filter((one) => one.getBoundingClientRect().right > width)
        .map((one) => one.outerHTML.slice(0, 200)).slice(0, 3).concat(wide)
}"""
"""The elements that make a page wider than its window; none = it does not scroll sideways."""


class Links(HTMLParser):
    """The links of a page, what it loads, and the names of its places."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.names: set[str] = {""}
        self.feed((SITE / page).read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the links and names of an element."""
        given = {name: value or "" for name, value in attrs}
        self.names |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag == "link" and given.get("rel") != "canonical" and "href" in given:
            self.loaded.append(given["href"])
        if "src" in given:
            self.loaded.append(given["src"])


read = cache(Links)


def lost(page: str, link: str) -> bool:
    """Return True if a link within the site leads to no file, or to no place of its page."""
    target = urlsplit(urljoin(HERE + page, link))
    if f"{target.scheme}://{target.netloc}/" != HERE:
        return target.netloc.endswith(".example")
    path = unquote(target.path).lstrip("/")
    path = f"{path}index.html" if not path or path.endswith("/") else path
    if not (SITE / path).is_file():
        return True
    return path.endswith(".html") and unquote(target.fragment) not in read(path).names


class Served(SimpleHTTPRequestHandler):
    """Serves the site, and logs nothing."""

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The address of the site."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Served, directory=str(SITE)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def phone(browser: Browser) -> Iterator[Page]:
    """A page of a phone."""
    page = browser.new_page(viewport=PHONE, reduced_motion="reduce")
    yield page
    page.close()


def test_the_site_was_built() -> None:
    """With the pages from outside docs/: `nox -s docs` builds it."""
    assert {"index.html", "protocol/core/index.html", "changelog/index.html"} <= set(PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    """Each leads to a file of the site and a place in it, or to an address that exists."""
    assert [link for link in read(page).links if lost(page, link)] == []


@pytest.mark.parametrize("page", PAGES)
def test_a_page_loads_nothing_from_elsewhere(page: str) -> None:
    """No script, style, font or picture; each is a file of the site."""
    loaded = read(page).loaded
    assert [one for one in loaded if urlsplit(one).netloc or lost(page, one)] == []


@pytest.mark.parametrize("page", PAGES)
def test_no_page_scrolls_sideways_on_a_phone(page: str, phone: Page, address: str) -> None:
    """Wide code and tables scroll inside their box."""
    phone.goto(address + page)
    assert phone.evaluate(SPILL) == []


def test_the_drawer_and_the_search_on_a_phone(phone: Page, address: str) -> None:
    """The drawer leads to a page of another group; the search finds a page."""
    phone.goto(f"{address}handlers/")
    phone.locator("label.md-header__button[for=__drawer]").click()
    expect(phone.get_by_role("link", name="Retries", exact=True)).to_be_in_viewport()
    phone.get_by_role("link", name="Retries", exact=True).click()
    expect(phone.locator("h1")).to_contain_text("Retries")
    phone.locator("label.md-header__button[for=__search]").click()
    phone.get_by_role("textbox", name="Search").fill("suspect")
    expect(phone.locator(".md-search-result__item").first).to_be_visible()
    assert phone.evaluate(SPILL) == []


def test_both_palettes(phone: Page, address: str) -> None:
    """The button changes to the dark palette and back; the next page has the same."""
    phone.goto(address)
    body = phone.locator("body")
    expect(body).to_have_attribute("data-md-color-scheme", "default")
    phone.get_by_title("Dark").click()
    expect(body).to_have_attribute("data-md-color-scheme", "slate")
    phone.goto(f"{address}tutorial/")
    expect(body).to_have_attribute("data-md-color-scheme", "slate")
    phone.get_by_title("Light").click()
    expect(body).to_have_attribute("data-md-color-scheme", "default")
