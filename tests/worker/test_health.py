"""Health checks: over HTTP, as a file, and the check of that file."""

from __future__ import annotations

import http.client
import json
import os
import socket
import threading
import time
from dataclasses import asdict, dataclass
from glob import escape
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from penstock import AsyncWorker, Penstock, Worker
from penstock.client._sync.metrics import Metrics
from penstock.core.values.answers import HttpAnswer, json_answer
from penstock.worker.answering import one_at_a_time
from penstock.worker.health import HealthFile, HealthServer, health_problem
from tests.support.backends import Backend
from tests.worker.programs import ask, wait_until


@dataclass(frozen=True)
class Status:
    name: str = "w"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Patient:
    """A stand-in for a worker's health and status.

    Attributes:
        well: what it answers.
        error: what it raises instead.
    """

    def __init__(self) -> None:
        self.well = True
        self.error: Exception | None = None

    def healthy(self) -> bool:
        if self.error:
            raise self.error
        return self.well

    def status(self) -> Status:
        return Status()


@pytest.fixture
def patient() -> Patient:
    """A healthy worker."""
    return Patient()


def test_the_server_answers_probes(patient: Patient) -> None:
    """/health returns 200 or 503, /status returns the status; a query is ignored."""
    with HealthServer(patient) as server:
        assert server.url == f"http://127.0.0.1:{server.port}/health"
        assert ask(server.url) == (200, {"healthy": True})
        patient.well = False
        assert ask(server.url + "?verbose") == (503, {"healthy": False})
        status = server.url.replace("/health", "/status")
        assert ask(status) == (200, {"name": "w", "healthy": False})
        assert ask(status + "s")[0] == 404


@pytest.mark.parametrize("kind", [Worker, AsyncWorker])
def test_the_figures_of_a_worker(backend: Backend, kind: Any) -> None:
    """/metrics has those of its own queues, and an autoscaler can ask for their jobs."""
    with Penstock(backend.sync_client()) as client:
        for name in ("a*", "ab"):
            client.queue(name).enqueue(1)
    of_kind = backend.async_client if kind is AsyncWorker else backend.sync_client
    made = kind(of_kind(), "a*", print)
    with HealthServer(made, more=made.answer_metrics) as server:
        with urlopen(server.url_of("/metrics")) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            text = answer.read().decode()
        assert 'penstock_queue_jobs{queue="a*",state="ready"} 1.0' in text
        assert '"ab"' not in text
        assert ask(server.url_of("/queues/a%2A.json"))[1]["backlog"] == 1
        assert ask(server.url_of("/queues/ab.json"))[0] == 404


def test_the_figures_of_named_queues_need_no_scan(real_backend: Backend) -> None:
    """The queues of a worker are asked for by name, however many others there are."""
    raw = real_backend.sync_client()
    names = [f"q{i}" for i in range(5)] + ["a*"]
    with Penstock(raw) as client:
        for name in (*names, "ab"):
            client.queue(name).enqueue(1)

        def scans_of(*patterns: str, found: int) -> int:
            def count() -> int:
                return int(raw.info("commandstats").get("cmdstat_hscan", {"calls": 0})["calls"])

            before = count()
            families = {one.name: one for one in Metrics(client, patterns).read()}
            assert families["penstock_queues"].samples == [((), found)]
            return count() - before

        few = scans_of("no.such", found=0)
        assert scans_of(*map(escape, names), "no.such", "{", found=len(names)) == few
        assert scans_of("q[01]", found=2) > few


def test_requests_do_not_pile_up(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one is not answered the next ones get 503; then all is as before."""
    monkeypatch.setattr("penstock.worker.answering.TURN_SECONDS", 0.01)
    begun, go_on = threading.Event(), threading.Event()

    def answer(path: str) -> HttpAnswer:
        begun.set()
        assert go_on.wait(60)
        return json_answer({"path": path})

    with HealthServer(patient, more=one_at_a_time(answer)) as server:
        first = threading.Thread(target=ask, args=[server.url_of("/metrics")])
        first.start()
        assert begun.wait(60)
        error = {"error": "an earlier request is still being answered"}
        assert ask(server.url_of("/metrics")) == (503, error)
        assert ask(server.url)[0] == 200
        go_on.set()
        first.join()
        assert ask(server.url_of("/metrics")) == (200, {"path": "/metrics"})


def test_the_head_of_an_answer(patient: Patient) -> None:
    """HEAD returns the header without the body; no header has software versions."""
    with HealthServer(patient) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        connection.request("HEAD", "/health")
        with connection.getresponse() as answer:
            assert (answer.status, answer.read()) == (200, b"")
            assert answer.headers["Content-Type"] == "application/json"
            assert answer.headers["Server"].strip() == "penstock"
        connection.close()


def test_a_failing_status(patient: Patient, caplog: pytest.LogCaptureFixture) -> None:
    """A failing status returns 500 and is logged; the next request works."""
    patient.error = RuntimeError("no idea")
    with HealthServer(patient) as server:
        assert ask(server.url) == (500, {"error": "RuntimeError('no idea')"})
        patient.error = None
        assert ask(server.url)[0] == 200
    assert "no idea" in caplog.text


def test_a_silent_client_does_not_block_others(
    patient: Patient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A silent client does not block others and is disconnected after a timeout."""
    monkeypatch.setattr("penstock.worker.answering._Answer.timeout", 0.2)
    with (
        HealthServer(patient) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=60) as silent,
    ):
        assert ask(server.url)[0] == 200
        assert silent.recv(1) == b""


def test_a_closed_server_frees_its_port(patient: Patient) -> None:
    """A server may be closed twice, and its thread ends."""
    before = threading.active_count()
    server = HealthServer(patient)
    server.close()
    server.close()
    assert threading.active_count() == before
    with HealthServer(patient, port=server.port) as second, pytest.raises(OSError, match="in use"):
        HealthServer(patient, port=second.port)


def test_the_file_is_there_while_it_is_written(patient: Patient, tmp_path: Path) -> None:
    """The file exists from the start, is replaced atomically, and is removed at the end."""
    path = tmp_path / "health"
    with HealthFile(path, patient, every=0.01):
        first = path.stat()
        assert json.loads(path.read_text()) == {"name": "w", "healthy": True}
        assert health_problem(path, max_age=60) == ""
        wait_until(lambda: path.stat().st_ino != first.st_ino, "it is replaced")
        patient.well = False
        wait_until(lambda: health_problem(path, max_age=60), "it is not healthy")
        assert health_problem(path, max_age=60) == f"{path}: it says that it is not healthy"
    assert list(tmp_path.iterdir()) == []
    assert health_problem(path, max_age=60) == f"{path}: No such file or directory"


def test_a_file_that_cannot_be_written(
    patient: Patient, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The first write raises; later failures are logged once, and the file grows old."""
    with pytest.raises(FileNotFoundError):
        HealthFile(tmp_path / "nosuch" / "health", patient)
    path = tmp_path / "health"
    asked = 0

    def fails() -> bool:
        nonlocal asked
        asked += 1
        raise RuntimeError("no idea")

    with HealthFile(path, patient, every=0.01):
        patient.healthy = fails  # type: ignore[method-assign]
        wait_until(lambda: asked > 3, "it is tried again and again")
        assert path.exists()
    assert caplog.text.count("the health file can't be written") == 1
    assert list(tmp_path.iterdir()) == []


def test_an_old_file_is_unhealthy(tmp_path: Path) -> None:
    """An old file, or one from the future, is unhealthy."""
    path = tmp_path / "health"
    path.write_text('{"healthy": true}')
    assert health_problem(path, max_age=15) == ""
    now = time.time()
    os.utime(path, (now, now - 100))
    assert health_problem(path, max_age=15) == f"{path}: no sign of life for 100 s"
    assert health_problem(path, max_age=200) == ""
    os.utime(path, (now, now + 1000))
    assert "from now" in health_problem(path, max_age=15)


@pytest.mark.parametrize("text", ["", "{}", "[]", "nonsense", '{"healthy": "yes"}', "\x80"])
def test_a_file_of_another_kind(tmp_path: Path, text: str) -> None:
    """A file of another format is unhealthy."""
    path = tmp_path / "health"
    path.write_text(text, encoding="latin-1")
    assert health_problem(path, max_age=15)
