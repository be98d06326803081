"""Hosts, authentication, headers, and where the page is mounted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.requests import Request
from starlette.testclient import TestClient

from penstock import AsyncPenstock, BadArgument, Penstock
from penstock.web import app
from penstock.web.security import (
    FAILURES_SECONDS,
    MOST_FAILING_CLIENTS,
    MOST_FAILURES,
    Failures,
)
from tests.support.backends import Backend
from tests.web.conftest import Open
from tests.web.support import Browser

POLICY = (
    "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
    "object-src 'none'"
)


@pytest.mark.parametrize("path", ["/", "/nothing", "/jobs/none", "/static/style.css"])
def test_headers(page: Browser, path: str) -> None:
    """Every answer has the headers that protect it."""
    headers = page.get(path).headers
    assert headers["content-security-policy"] == POLICY
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "same-origin"
    expected = "max-age=3600" if "static" in path else "no-store"
    assert headers["cache-control"] == expected


def test_no_inline_code(ps: Penstock, writable: Browser) -> None:
    """The policy allows no inline script and style, and pages have none; htmx may not eval."""
    ps.queue("emails").enqueue(1)
    for path in ("/", "/queues/emails", "/schedules", "/nodes", "/runs"):
        found = writable.get(path)
        for tag, given in found.reader.tags:
            assert "style" not in given
            assert tag != "style"
            assert tag != "script" or given.get("src")
        assert '"allowEval":false' in found.html
        assert "http://" not in found.html.replace("http://www.w3.org/", "")


def test_the_cookie(open_page: Open) -> None:
    """The cookie of the forms' token is not for scripts, nor for other sites."""
    cookie = open_page().get("/").headers["set-cookie"]
    assert cookie.startswith("penstock_csrf=")
    assert "HttpOnly; SameSite=Strict" in cookie


@pytest.mark.parametrize(
    "host, status",
    [
        ("localhost", 200),
        ("localhost:8080", 200),
        ("127.0.0.1:8080", 200),
        ("[::1]:8080", 200),
        ("LOCALHOST", 200),
        ("evil.example", 400),
        ("localhost.evil.example:80", 400),
        ("", 400),
    ],
)
def test_hosts(page: Browser, host: str, status: int) -> None:
    """Only the allowed names are answered, so no other site's name leads to this page."""
    assert page.get("/", headers={"host": host}).status == status


def test_more_hosts(open_page: Open) -> None:
    """Other names are allowed by the option `hosts`."""
    page = open_page(hosts=["Queues.example"])
    assert page.get("/", headers={"host": "queues.example:80"}).status == 200
    assert page.get("/").status == 400
    assert open_page(hosts=["*"]).get("/", headers={"host": "any"}).status == 200


def test_a_form_of_another_site(ps: Penstock, writable: Browser) -> None:
    """A request with the origin of another site is refused."""
    ps.queue("emails").enqueue(1)
    form = writable.get("/queues/emails").form("side")
    fields = [*form.fields, ("side", "all")]
    foreign = {"origin": "http://evil.example"}
    assert writable.post(form.action, fields, headers=foreign).status == 403
    assert ps.queue("emails").stats().settings.paused is None
    malformed = {"origin": "http://["}
    assert writable.post(form.action, fields, headers=malformed).status == 403
    assert writable.post(form.action, fields, headers={"origin": "http://localhost"}).status == 200


def test_other_machines_need_authentication(open_page: Open) -> None:
    """Without it only this machine is answered."""
    found = open_page(client=("192.0.2.7", 1), hosts=["*"]).get("/")
    assert (found.status, "set a user" in found.html) == (403, True)
    page = open_page(client=("192.0.2.7", 1), hosts=["*"], auth=("ada", "secret"))
    assert page.get("/").status == 401
    assert page.get("/", auth=("ada", "secret")).status == 200


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Basic",
        "Basic !",
        "Basic YWRhOg==",
        "Basic YWRhOnNlY3JldHM=",
        "Bearer secret",
        "Basic w7w=",
    ],
)
@pytest.mark.parametrize("path", ["/", "/static/style.css", "/nothing"])
def test_wrong_passwords(open_page: Open, header: str, path: str) -> None:
    """They are refused on every path, and the browser is told to ask."""
    found = open_page(auth=("ada", "secret")).get(path, headers={"authorization": header})
    assert found.status == 401
    assert found.headers["www-authenticate"].startswith("Basic realm=")


def test_wrong_passwords_are_counted(open_page: Open, caplog: pytest.LogCaptureFixture) -> None:
    """Each is logged; ten block their address for a minute, also for the right one."""
    page = open_page(auth=("ada", "secret"))
    for _ in range(20):
        assert page.get("/").status == 401  # no password is no wrong one
    with caplog.at_level(logging.WARNING, "penstock.web.audit"):
        for number in range(MOST_FAILURES):
            assert page.get("/", auth=("eve\n", f"guess {number}")).status == 401
    assert caplog.messages == ["wrong password: user='eve\\n' client=127.0.0.1"] * MOST_FAILURES
    found = page.get("/", auth=("ada", "secret"))
    assert (found.status, found.headers["retry-after"]) == (429, "60")
    assert "Too many wrong passwords" in found.html


def test_a_block_ends() -> None:
    """It ends a minute after the first wrong password; other addresses are not blocked."""
    now = [0.0]
    failures = Failures(lambda: now[0])
    for second in range(MOST_FAILURES):
        assert not failures.is_blocked("eve")
        now[0] = second
        failures.note("eve")
    assert failures.is_blocked("eve")
    assert not failures.is_blocked("ada")
    now[0] = FAILURES_SECONDS
    assert not failures.is_blocked("eve")
    failures.note("eve")
    assert not failures.is_blocked("eve")


def test_few_addresses_are_remembered() -> None:
    """A flood of addresses takes no memory: the earliest is forgotten."""
    failures = Failures()
    for _ in range(MOST_FAILURES):
        failures.note("eve")
    for number in range(MOST_FAILING_CLIENTS):
        failures.note(str(number))
    assert not failures.is_blocked("eve")


def test_a_probe(open_page: Open) -> None:
    """A kubelet asks by address and without a user; it learns only that the process answers."""
    page = open_page(client=("192.0.2.7", 1), auth=("ada", "secret"), url="redis://127.0.0.1:1")
    found = page.get("/health", headers={"host": "10.0.0.7:8080"})
    assert (found.status, found.html) == (200, "ok\n")


def test_a_proxy_that_rewrites_the_host(ps: Penstock, writable: Browser) -> None:
    """A form is refused, with what to change in the proxy."""
    ps.queue("emails").enqueue(1)
    form = writable.get("/queues/emails").form("side", "all")
    fields = [*form.fields, ("side", "all")]
    found = writable.post(form.action, fields, headers={"origin": "https://admin.example.com"})
    assert found.status == 403
    assert "'https://admin.example.com', and this page is served as 'localhost'" in found.html
    assert "proxy_set_header Host $http_host" in found.html


@pytest.mark.parametrize("is_async", [False, True])
def test_a_function_recognizes_users(
    ps: Penstock, open_page: Open, caplog: pytest.LogCaptureFixture, is_async: bool
) -> None:
    """It gets the request; the name that it returns is in the audit log."""

    def known(request: Request) -> str | None:
        return {"1": "eve\n"}.get(request.headers.get("x-session", ""))

    async def later(request: Request) -> str | None:
        await asyncio.sleep(0)
        return known(request)

    ps.queue("emails").enqueue(1)
    page = open_page(auth=later if is_async else known, write=True)
    assert page.get("/").status == 403
    page.client.headers["x-session"] = "1"
    with caplog.at_level("INFO", "penstock.web.audit"):
        page.press(page.get("/queues/emails"), "side", "all")
    assert "action=pause user='eve\\n'" in caplog.text


@pytest.mark.parametrize("answer", [None, False, True, "", 0, 7])
def test_only_a_name_is_a_user(open_page: Open, answer: Any) -> None:
    """A function that returns anything but a name has refused the request."""
    assert open_page(auth=lambda _: answer).get("/").status == 403


@pytest.mark.parametrize(
    "options",
    [
        {"auth": "ada"},
        {"auth": ("ada", "")},
        {"auth": ("", "")},
        {"auth": ("ada",)},
        {"hosts": "localhost"},
        {"hosts": [7]},
        {"hosts": ["queues.example:8080"]},
        {"hosts": ["[::1]:80"]},
        {"write": "yes"},
        {"hide_bodies": None},
    ],
)
def test_bad_options(options: dict[str, Any]) -> None:
    """An option that can't be used is refused, and no password is told."""
    with pytest.raises(BadArgument) as caught:
        app("redis://localhost", **options)
    assert "ada" not in str(caught.value)


def test_a_client_of_another_kind(ps: Penstock) -> None:
    """A synchronous client is refused."""
    with pytest.raises(BadArgument, match="AsyncPenstock"):
        app(ps)  # type: ignore[arg-type]


def test_mounted_in_fastapi(ps: Penstock, real_backend: Backend) -> None:
    """All links and forms stay below the path of the mount."""
    ps.queue("emails").enqueue(1)
    client = AsyncPenstock(real_backend.url)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with client:
            yield

    host = FastAPI(lifespan=lifespan)
    host.mount("/admin/queues", app(client, write=True, auth=lambda _: "eve"))
    with TestClient(host, "http://localhost") as test:
        page = Browser(test)
        for path in ("/", "/queues/emails", "/schedules", "/nodes", "/runs"):
            found = page.get(f"/admin/queues{path}")
            assert found.status == 200
            links = [href for href, _ in found.reader.links if not href.startswith("#")]
            targets = [str(given["src"]) for tag, given in found.reader.tags if tag == "script"]
            targets += [str(given["hx-get"]) for _, given in found.reader.tags if "hx-get" in given]
            targets += links + [form.action for form in found.reader.forms]
            assert all(target.startswith("/admin/queues/") for target in targets), targets
            for target in set(targets):
                if "actions" not in target:
                    assert test.get(target).status_code in (200, 404), target
        done = page.press(page.get("/admin/queues/queues/emails"), "side", "all")
        assert done.status == 200
        assert "Paused" in done.text
