"""The examples with FastAPI and Django: real processes, a real server, and SIGTERM."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError

import pytest

from penstock import Penstock
from tests.cli.support import environment, hear_signals
from tests.support.backends import Backend
from tests.worker.programs import wait_until

EXAMPLES = Path(__file__).parents[2] / "examples"
TIMEOUT = 60

Run = Callable[..., "subprocess.Popen[str]"]


def free_port() -> int:
    """Return a port on loopback that is free now."""
    with closing(socket.socket()) as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def asked(url: str, *, post: bool = False) -> Any:
    """Return the JSON of a page; None while nothing answers there."""
    request = urllib.request.Request(url, method="POST" if post else "GET")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            return json.load(answer)
    except (URLError, ConnectionError):
        return None


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Send SIGTERM; return the exit code and what the process has written."""
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=TIMEOUT)
    return process.returncode, out


@pytest.fixture
def run(real_backend: Backend, tmp_path: Path) -> Iterator[Run]:
    """Start programs in a directory of an example; the end of the test kills them."""
    assert real_backend.url
    more = {"PENSTOCK_URL": real_backend.url, "SHOP_DATABASE": str(tmp_path / "db")}
    more["PYTHONUNBUFFERED"] = "1"
    more["PYTHONDONTWRITEBYTECODE"] = "1"
    with ExitStack() as stack:

        def start(directory: str, *command: str) -> subprocess.Popen[str]:
            process = subprocess.Popen(
                [sys.executable, *command],
                cwd=EXAMPLES / directory,
                env=environment(**more),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                preexec_fn=hear_signals,  # noqa: PLW1509  # it takes no lock
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield start


@pytest.mark.slow
def test_a_worker_in_fastapi(run: Run, real_backend: Backend) -> None:
    """The app's lifespan runs the worker; SIGTERM ends both, the worker with its own lifespan."""
    port = free_port()
    site = f"http://127.0.0.1:{port}"
    process = run("fastapi", "-m", "uvicorn", "app:app", "--port", str(port))
    wait_until(lambda: asked(f"{site}/health") == {"healthy": True}, "the app runs")
    assert len(asked(f"{site}/welcome/ada", post=True)["id"]) == 40
    wait_until(lambda: asked(f"{site}/sent") == ["ada"], "the handler has run")
    code, out = ended(process)
    assert code in (0, -signal.SIGTERM), out  # newer uvicorns end by the signal itself
    assert "the worker has ended" in out
    with Penstock(real_backend.url) as client:
        stats = client.queue("emails").stats()
        assert (stats.ready, stats.active, stats.acked) == (0, 0, 1)


@pytest.mark.slow
def test_progress_in_fastapi(run: Run) -> None:
    """A stream of events tells the progress of a job, then its result; of no job it is 404."""
    port = free_port()
    site = f"http://127.0.0.1:{port}"
    run("fastapi", "-m", "uvicorn", "progress:app", "--port", str(port))
    wait_until(lambda: asked(f"{site}/openapi.json"), "the app runs")
    job = asked(f"{site}/albums/50", post=True)["id"]
    with urllib.request.urlopen(f"{site}/albums/{job}/events", timeout=TIMEOUT) as answer:
        assert answer.headers.get_content_type() == "text/event-stream"
        parts = answer.read().decode().strip().split("\n\n")
    told = [tuple(line.partition(": ")[2] for line in part.split("\n")) for part in parts]
    assert told[-1] == ("done", '"50 pictures"')
    steps = [json.loads(data) for name, data in told if name == "progress"]
    done = [step["done"] for step in steps]
    assert done
    assert done == [*range(int(done[0]), 50)]
    assert steps[-1] == {"done": 49, "total": 50, "note": "picture 50"}
    with pytest.raises(HTTPError, match="404"):
        urllib.request.urlopen(f"{site}/albums/D-none/events", timeout=TIMEOUT)


@pytest.mark.slow
def test_tokens_in_fastapi(run: Run) -> None:
    """A stream of events brings each token once and in order, also to a page that comes late."""
    port = free_port()
    site = f"http://127.0.0.1:{port}"
    run("fastapi", "-m", "uvicorn", "tokens:app", "--port", str(port))
    wait_until(lambda: asked(f"{site}/openapi.json"), "the app runs")
    job = asked(f"{site}/stories/fox", post=True)["id"]
    for _ in ("while it runs", "after its end"):
        with urllib.request.urlopen(f"{site}/stories/{job}/events", timeout=TIMEOUT) as answer:
            parts = answer.read().decode().strip().split("\n\n")
        told = [tuple(line.partition(": ")[2] for line in part.split("\n")) for part in parts]
        chunks = [json.loads(data)["data"] for name, data in told if name == "chunk"]
        assert "".join(chunks) == "Once upon a time, a fox met another fox. "
        assert [name for name, _ in told if name in ("started", "ended")] == ["started", "ended"]
        assert json.loads(told[-1][1])["state"] == "done"
    with pytest.raises(HTTPError, match="404"):
        urllib.request.urlopen(f"{site}/stories/D-none/events", timeout=TIMEOUT)


@pytest.mark.slow
def test_a_worker_in_django(run: Run) -> None:
    """A view adds a job of penstock and a task of Django when its transaction commits; the command
    runs both, and SIGTERM ends it.
    """
    migrated = run("django", "manage.py", "migrate", "--verbosity", "0")
    assert (migrated.communicate(timeout=TIMEOUT)[0], migrated.returncode) == ("", 0)
    port = free_port()
    site = f"http://127.0.0.1:{port}/orders"
    server = run("django", "manage.py", "runserver", "--noreload", str(port))
    worker = run("django", "manage.py", "penstock_worker", "--concurrency", "2")
    wait_until(lambda: asked(site) == [], "the server runs")
    assert asked(f"{site}/ada", post=True) == {"order": 1}
    done = [{"id": 1, "customer": "ada", "confirmed": True, "packed": True}]
    wait_until(lambda: asked(site) == done, "the jobs have run")
    code, out = ended(worker)
    assert code == 0, out
    assert "takes jobs of default, emails" in out
    assert "2 jobs done, 0 failed" in out
    ended(server)
