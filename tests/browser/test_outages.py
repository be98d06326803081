"""The page while its server or its own process does not answer: it says so, and recovers."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from penstock import Penstock
from penstock.embedded import EmbeddedServer
from penstock.web import app
from tests.browser.conftest import PATIENCE, Served
from tests.browser.test_browser import DESK, PHONE

LIVE_PATHS = ["/", "/queues/mail", "/workers", "/schedules", "/batches", "/nodes"]


@pytest.fixture
def ps(server: EmbeddedServer) -> Iterator[Penstock]:
    """A client of a server that the test may kill, with a queue."""
    with Penstock(server.url) as client:
        client.queue("mail").enqueue_many(range(3))
        yield client


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A window in which errors of the console are expected."""
    context = browser.new_context(viewport=DESK)
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    yield page
    context.close()


def expect_trouble(page: Page, text: str) -> None:
    """The page says since when its figures are old, and why; nothing claims that it is live."""
    trouble = page.locator("#trouble")
    expect(trouble).to_contain_text(text)
    expect(trouble).to_contain_text(re.compile(r"since \d\d?:\d\d:\d\d"))
    expect(page.locator("#live-switch")).to_have_text("Not live")
    expect(page.locator("#live")).to_have_class(re.compile("stale"))


def expect_live(page: Page) -> None:
    """The page shows fresh figures, and no notice."""
    expect(page.locator("#trouble")).to_be_hidden()
    expect(page.locator("#live-switch")).to_have_text("Live")
    expect(page.locator("#live")).not_to_have_class(re.compile("stale"))
    expect(page.locator("#age")).to_have_text(re.compile(r"^\d s ago$"))


@pytest.mark.parametrize("path", LIVE_PATHS)
def test_the_server_dies(server: EmbeddedServer, ps: Penstock, page: Page, path: str) -> None:
    """Every page with live figures says that they are old, and shows new ones afterwards."""
    with Served(app(server.url)) as served:
        page.goto(served.url + path)
        expect_live(page)
        server.kill()
        expect_trouble(page, "No new figures since")
        expect(page.locator("#trouble")).to_contain_text("be reached")
        server.restart()
        expect_live(page)


def test_the_server_hangs(server: EmbeddedServer, ps: Penstock, page: Page) -> None:
    """A request without an answer is noticed before any timeout."""
    with Served(app(server.url)) as served:
        page.goto(f"{served.url}/queues/mail")
        expect_live(page)
        server.pause()
        try:
            expect_trouble(page, "No answer since")
        finally:
            server.resume()
        ps.queue("mail").enqueue(4)
        expect_live(page)
        expect(page.locator("#state-ready strong")).to_have_text("4")


def test_the_process_of_the_page_dies(server: EmbeddedServer, ps: Penstock, page: Page) -> None:
    """The page says that its own process does not answer; another one on its port is enough."""
    with Served(app(server.url)) as served:
        port = served.port
        page.goto(served.url)
        expect_live(page)
    expect_trouble(page, "No answer since")
    ps.queue("mail").enqueue(4)
    with Served(app(server.url), port):
        expect_live(page)
        expect(page.locator(".tiles .ready dd")).to_have_text("4")


def test_a_page_of_an_error_recovers(server: EmbeddedServer, ps: Penstock, page: Page) -> None:
    """A page that was opened during an outage becomes the page that was asked for."""
    server.kill()
    with Served(app(server.url)) as served:
        page.goto(f"{served.url}/queues/mail")
        expect(page.locator("h1")).to_contain_text("does not answer")
        server.restart()
        expect(page.locator("h1")).to_have_text("mail")


def test_a_queue_that_is_deleted(server: EmbeddedServer, ps: Penstock, page: Page) -> None:
    """The page of a queue that has gone says so."""
    with Served(app(server.url)) as served:
        page.goto(f"{served.url}/queues/mail")
        expect_live(page)
        ps.queue("mail").clear()
        expect_trouble(page, "There is no queue 'mail'")


def test_updates_that_are_switched_off(server: EmbeddedServer, ps: Penstock, page: Page) -> None:
    """The age of the figures grows, and the page says nothing about a server it does not ask."""
    with Served(app(server.url)) as served:
        page.set_viewport_size(PHONE)  # type: ignore[arg-type]  # of playwright
        page.clock.install()
        page.goto(f"{served.url}/queues/mail")
        expect_live(page)
        page.locator("#live-switch").click()
        page.clock.fast_forward(150_000)
        expect(page.locator("#age")).to_have_text("2 min ago")
        expect(page.locator("#trouble")).to_be_hidden()
