"""Fixtures: a browser, the page on a port of this machine, and a client to check its effects."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from playwright.sync_api import Browser, ConsoleMessage, Page, Playwright, sync_playwright

from penstock import Penstock
from penstock.web import app
from tests.support.backends import Backend

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
PATIENCE = 20_000
"""Milliseconds that a test waits for the page."""
Visit = Callable[..., Page]


class Served(uvicorn.Server):
    """A server in a thread of its own, on some port or a given one."""

    def __init__(self, application: Any, port: int = 0) -> None:
        super().__init__(uvicorn.Config(application, log_level="error", access_log=False))
        self.socket = socket.create_server(("127.0.0.1", port))
        self.is_up = threading.Event()
        self.thread = threading.Thread(target=self.run, args=([self.socket],))

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Tell that the server answers."""
        await super().startup(sockets)
        self.is_up.set()

    @property
    def port(self) -> int:
        """Its port."""
        number: int = self.socket.getsockname()[1]
        return number

    @property
    def url(self) -> str:
        """Address of the page."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Served:
        self.thread.start()
        assert self.is_up.wait(30)
        return self

    def __exit__(self, *error: object) -> None:
        self.should_exit = True
        self.thread.join()
        self.socket.close()


@pytest.fixture(scope="session")
def playwright() -> Iterator[Playwright]:
    with sync_playwright() as started:
        yield started


@pytest.fixture(scope="session")
def browser(playwright: Playwright) -> Iterator[Browser]:
    assert CHROMIUM, "install chromium (Debian: apt-get install chromium)"
    options = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    started = playwright.chromium.launch(executable_path=CHROMIUM, args=options)
    yield started
    started.close()


@pytest.fixture
def ps(one_server: Backend) -> Iterator[Penstock]:
    with Penstock(one_server.sync_client()) as client:
        yield client


@pytest.fixture
def served(one_server: Backend, ps: Penstock) -> Iterator[Served]:
    """The page with actions."""
    with Served(app(one_server.url, write=True)) as server:
        yield server


@pytest.fixture
def visit(browser: Browser, served: Served) -> Iterator[Visit]:
    """Open the page in a window of its own; at the end no error may have been reported."""
    troubles = list[str]()
    with contextlib.ExitStack() as stack:

        def opened(path: str = "/", **options: Any) -> Page:
            context = browser.new_context(base_url=served.url, **options)
            stack.callback(context.close)
            page = context.new_page()
            page.set_default_timeout(PATIENCE)
            watch(page, troubles)
            page.goto(path)
            return page

        yield opened
    assert troubles == []


def watch(page: Page, troubles: list[str]) -> None:
    """Collect errors of the console and of scripts, dialogs, and answers that are errors."""

    def told(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            troubles.append(f"console: {message.text}")

    page.on("console", told)
    page.on("pageerror", lambda error: troubles.append(f"script: {error}"))
    page.on("dialog", lambda dialog: troubles.append(f"dialog: {dialog.message}"))
    page.on(
        "response",
        lambda answer: troubles.append(f"{answer.status} {answer.url}") if not answer.ok
        and not 300 <= answer.status < 400 else None,
    )  # fmt: skip


@pytest.fixture
def keep() -> Callable[[Page, str], None]:
    """Write a screenshot for the docs into $PENSTOCK_SCREENSHOTS, if that is set."""

    def written(page: Page, name: str) -> None:
        folder = os.environ.get("PENSTOCK_SCREENSHOTS")
        if folder:
            page.screenshot(path=Path(folder, f"web-{name}.png"), full_page=True)

    return written
