"""Tests of `penstock workers`."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from penstock import Handlers, Penstock, Worker
from penstock.worker._sync import registration
from tests.cli.support import Cli
from tests.support.twins import wait_for


@pytest.fixture
def working(client: Penstock, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A worker that runs a job; the id of the job."""
    monkeypatch.setattr(registration, "REGISTRATION_DELAY", 0.0)
    handlers, begun, go = Handlers(), threading.Event(), threading.Event()

    @handlers.handler
    def resize(path: str) -> None:
        del path
        begun.set()
        go.wait(30)

    job = resize.enqueue(client.queue("q"), "a.png")
    with Worker(client, ["q", "r"], handlers, name="web-1", concurrency=4):
        assert begun.wait(20)
        wait_for(lambda: bool(client.workers()))
        yield job.id
        go.set()


def test_workers_are_listed(cli: Cli, working: str) -> None:
    """A row for each worker; with --jobs a row for each job that it holds."""
    (row,) = cli("workers").rows
    assert (row[0].strip(), row[-1].strip()) == ("web-1", "q, r")
    (told,) = cli("workers", "--json").document["workers"]
    assert (told["name"], told["concurrency"], told["queues"]) == ("web-1", 4, ["q", "r"])
    assert "jobs" not in told
    (told,) = cli("workers", "--jobs", "--json").document["workers"]
    assert [(job["id"], job["attempts"]) for job in told["jobs"]] == [(working, 1)]
    out = cli("workers", "--jobs").out
    assert [line.split()[:4] for line in out.splitlines()[-2:] if line.strip()][-1] == [
        "web-1", working, "q", "resize",
    ]  # fmt: skip


def test_no_workers(cli: Cli, client: Penstock) -> None:
    """The list is empty."""
    del client
    found = cli("workers")
    assert (found.code, found.out, "no workers" in found.err) == (0, "", True)
    assert cli("workers", "--json").document == {"workers": []}


def test_the_doctor_knows_the_keys(cli: Cli, working: str) -> None:
    """The entries of workers are no unknown keys."""
    del working
    assert "do not belong to penstock" not in cli("doctor").out
