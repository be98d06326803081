"""The command `web`: it serves the page, and refuses to do so without protection."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from base64 import b64encode

import pytest

from penstock import Penstock
from penstock.embedded import EmbeddedServer
from tests.cli.support import Cli, environment
from tests.support.twins import wait_for


def free_port() -> int:
    """Return a port of this machine that is not in use."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def test_it_serves_the_page(server: EmbeddedServer) -> None:
    """It asks for the password, shows the queues, and ends at SIGTERM."""
    with Penstock(server.url) as ps:
        ps.queue("emails").enqueue(1)
    port = free_port()
    arguments = ["web", "--url", server.url, "--port", str(port), "--user", "ada"]
    page = subprocess.Popen(
        [sys.executable, "-m", "penstock", *arguments],
        env=environment(PENSTOCK_WEB_PASSWORD="secret"),
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        request = urllib.request.Request(f"http://127.0.0.1:{port}/")
        wait_for(lambda: _status(request) is not None)
        assert _status(request) == 401
        request.add_header("Authorization", f"Basic {b64encode(b'ada:secret').decode()}")
        with urllib.request.urlopen(request) as answer:
            assert b"emails" in answer.read()
    finally:
        page.send_signal(signal.SIGTERM)
        told = page.communicate(timeout=30)[1]
    assert f"http://127.0.0.1:{port}/ (read-only)" in told


def test_it_serves_the_page_below_a_path(server: EmbeddedServer) -> None:
    """A proxy passes the path on; every link stays below it."""
    with Penstock(server.url) as ps:
        ps.queue("emails").enqueue(1)
    port = free_port()
    arguments = ["web", "--url", server.url, "--port", str(port), "--path", "/admin/queues/"]
    page = subprocess.Popen(
        [sys.executable, "-m", "penstock", *arguments],
        env=environment(), stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        at = f"http://127.0.0.1:{port}/admin/queues"
        wait_for(lambda: _status(urllib.request.Request(f"{at}/health")) == 200)
        with urllib.request.urlopen(at) as answer:
            text = answer.read().decode()
        assert 'href="/admin/queues/queues/emails"' in text
        assert _status(urllib.request.Request(f"http://127.0.0.1:{port}/")) == 404
    finally:
        page.send_signal(signal.SIGTERM)
        told = page.communicate(timeout=30)[1]
    assert f"{at}/ (read-only)" in told


@pytest.mark.parametrize("path", ["queues", "/a b", "//x", "/a?b", "/../x"])
def test_paths_that_are_none(run_cli: Cli, path: str) -> None:
    """A path begins with a slash and has no special characters."""
    result = run_cli("web", "--path", path)
    assert (result.code, "argument --path" in result.err) == (2, True)


def _status(request: urllib.request.Request) -> int | None:
    try:
        with urllib.request.urlopen(request) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except OSError:
        return None


@pytest.mark.parametrize(
    "arguments, password, told",
    [
        (["--host", "0.0.0.0"], "", "reachable from other machines"),
        (["--host", "::"], "", "reachable from other machines"),
        (["--host", "queues.example"], "", "reachable from other machines"),
        (["--host", "a" * 64, "--user", "ada"], "secret", "has 1 to 63 characters"),
        (["--user", "ada"], "", "needed together"),
        ([], "secret", "needed together"),
    ],
)
def test_what_is_refused(
    run_cli: Cli, monkeypatch: pytest.MonkeyPatch, arguments: list[str], password: str, told: str
) -> None:
    """Beyond this machine the page needs a user and a password."""
    monkeypatch.setenv("PENSTOCK_WEB_PASSWORD", password)
    result = run_cli("web", *arguments)
    assert result.code == 1
    assert told in result.err
    assert "secret" not in result.err


@pytest.mark.parametrize("port", ["-1", "0", "70000", "http"])
def test_a_port_that_is_none(run_cli: Cli, port: str) -> None:
    """It is bad usage, and not the traceback of a server that did not start."""
    result = run_cli("web", "--port", port)
    assert result.code == 2
    assert "--port" in result.err
