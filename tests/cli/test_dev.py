"""The command `dev`: one command for a server, the page and a worker."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from penstock import Penstock
from penstock.embedded import EmbeddedServer
from tests.cli.support import Cli, environment, hear_signals
from tests.cli.test_web import free_port

APP = """
import os
from penstock import Handlers, Penstock, Worker

ps = Penstock(os.environ["PENSTOCK_URL"])
handlers = Handlers()

@handlers.handler(result_ttl=600)
def greet(name: str) -> str:
    return "{greeting} " + name

worker = Worker(ps, "emails", handlers)
"""


@contextmanager
def running(
    directory: Path, *argv: str, url: str, port: int | None = 0
) -> Iterator[subprocess.Popen[str]]:
    """Run `penstock dev`, and end it by SIGINT, as Ctrl-C does; the exit code must be 0."""
    own_port = [] if port is None else ["--port", str(port)]
    command = subprocess.Popen(
        [sys.executable, "-m", "penstock", "dev", *own_port, *argv],
        env=environment(PENSTOCK_URL=url),
        cwd=directory,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=hear_signals,  # noqa: PLW1509  # no thread runs yet
    )
    try:
        yield command
        command.send_signal(signal.SIGINT)
        assert command.wait(60) == 0
    finally:
        command.kill()
        command.communicate()


def read_until(command: subprocess.Popen[str], pattern: str) -> re.Match[str]:
    """Read stderr up to a line that matches."""
    assert command.stderr is not None
    lines = []
    for line in command.stderr:
        lines.append(line)
        if found := re.search(pattern, line):
            return found
    pytest.fail(f"no line like {pattern!r} in:\n{''.join(lines)}")


@pytest.mark.slow
def test_a_server_a_page_and_a_worker_with_reload(tmp_path: Path) -> None:
    """A job runs, changed code runs, the page has actions, and Ctrl-C leaves nothing running."""
    app = tmp_path / "app.py"
    app.write_text(APP.replace("{greeting}", "hello"))
    url = f"redis://localhost:{free_port()}/0"
    with running(tmp_path, "app:worker", url=url) as command:
        read_until(command, re.escape(url) + r" \(\w+ [\d.]+, started; its data end")
        page = read_until(command, r"(http://127\.0\.0\.1:\d+/) \(read and write\)")[1]
        read_until(command, "takes jobs of emails")
        with Penstock(url) as ps:
            emails = ps.queue("emails")
            handler = {"handler": "greet"}
            job = emails.enqueue(["ada"], headers=handler, result_ttl=600)
            assert job.result(timeout=60) == "hello ada"
            app.write_text(APP.replace("{greeting}", "welcome"))
            read_until(command, r"changed: app\.py")
            read_until(command, "takes jobs of emails")
            job = emails.enqueue(["bob"], headers=handler, result_ttl=600)
            assert job.result(timeout=60) == "welcome bob"
            emails.enqueue("x", delay=3600)
            with urllib.request.urlopen(f"{page}queues/emails") as answer:
                assert answer.status == 200
    with pytest.raises(RedisConnectionError):
        Penstock(url, retry_for=0).connect()


def test_a_server_that_is_there_is_used_and_left_running(tmp_path: Path) -> None:
    """Without a worker it serves the page until a signal."""
    with EmbeddedServer(tcp=True) as server:
        with running(tmp_path, url=server.url) as command:
            told = read_until(command, r"penstock: (redis://\S+)(.*)")
            assert (told[1], told[2]) == (server.url, "")
            read_until(command, "Ctrl-C ends both")
        assert Penstock(server.url).queues() == []


def test_two_commands_at_once(tmp_path: Path) -> None:
    """Without --port the second one takes the next free port, and prints it."""
    page = r"http://127\.0\.0\.1:(\d+)/"
    with (
        EmbeddedServer(tcp=True) as server,
        running(tmp_path, url=server.url, port=None) as first,
    ):
        port = read_until(first, page)[1]
        read_until(first, "Ctrl-C ends both")
        with running(tmp_path, url=server.url, port=None) as second:
            assert port != read_until(second, page)[1]
            read_until(second, "Ctrl-C ends both")


def test_what_is_refused(run_cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A port in use and a missing package are named, with the remedy; nothing is started."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = run_cli("dev", "--port", str(taken.getsockname()[1]))
    assert result.code == 1
    assert "in use" in result.err
    assert "--port 0" in result.err
    monkeypatch.setattr("importlib.util.find_spec", {}.get)
    result = run_cli("dev")
    assert result.code == 1
    assert "pip install 'penstock[dev]'" in result.err
