"""The command `metrics`: it prints figures for Prometheus, or serves them."""

from __future__ import annotations

import signal
import subprocess
import sys
import urllib.request

from penstock import Penstock
from penstock.embedded import EmbeddedServer
from tests.cli.support import Cli, environment
from tests.cli.test_web import free_port
from tests.support.twins import wait_for
from tests.worker.programs import ask


def test_it_prints_figures(run_cli: Cli, client: Penstock, cli: Cli) -> None:
    """Once, without a port; exit code 1 if the server does not answer."""
    client.queue("mail").enqueue(1)
    client.queue("other").enqueue(1)
    result = cli("metrics", "m*", "nosuch")
    assert result.code == 0
    assert 'penstock_queue_jobs{queue="mail",state="ready"} 1.0' in result.out
    assert "other" not in result.out
    result = run_cli("metrics", url="redis://127.0.0.1:1")
    assert (result.code, result.out) == (1, "")
    assert "can't be reached" in result.err


def test_it_serves_figures(server: EmbeddedServer) -> None:
    """They are fresh at each request, and SIGTERM ends the program."""
    port = free_port()
    at = f"http://127.0.0.1:{port}/metrics"
    program = subprocess.Popen(
        [sys.executable, "-m", "penstock", "metrics", "--url", server.url, "--port", str(port)],
        env=environment(), stderr=subprocess.PIPE, text=True,
    )  # fmt: skip

    def read() -> str:
        try:
            with urllib.request.urlopen(at) as answer:
                return str(answer.read().decode())
        except OSError:
            return ""

    try:
        wait_for(read)
        with Penstock(server.url) as ps:
            ps.queue("mail").enqueue(1)
        assert 'penstock_queue_enqueued_total{queue="mail"} 1.0' in read()
        assert ask(at.replace("metrics", "queues/mail.json"))[1]["backlog"] == 1
        status, document = ask(at.replace("metrics", "nosuch"))
        assert (status, document) == (404, {"error": "there are /metrics and /queues/NAME.json"})
    finally:
        program.send_signal(signal.SIGTERM)
        told = program.communicate(timeout=30)[1]
    assert program.returncode == 0
    assert at in told
