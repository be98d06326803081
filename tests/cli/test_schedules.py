"""Tests of `penstock schedules`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from penstock import Penstock
from tests.cli.support import Cli
from tests.support.backends import Backend


def test_schedules_are_listed(cli: Cli, client: Penstock) -> None:
    """A row for each, with its next tick and its last job."""
    queue = client.queue("q")
    queue.schedules.add("b", every="15m", job="x")
    queue.schedules.add("a", cron="0 3 * * *", tz="Europe/Berlin", job="x")
    queue.schedules.pause("a")
    added = queue.schedules.run("b")
    head, _, *lines = cli("schedules", "q").out.splitlines()
    assert head.split()[:3] == ["schedule", "runs", "at"]
    assert lines[0].split() == ["a", "0", "3", "*", "*", "*", "Europe/Berlin", "paused", "0", "0"]
    assert lines[1].split()[:3] == ["b", "every", "15m"]
    assert lines[1].split()[-3:] == ["ready", "1", "0"]
    document = cli("schedules", "q", "--json").document
    assert document["queue"] == "q"
    first, second = document["schedules"]
    assert (first["name"], first["paused"], first["next"]) == ("a", True, None)
    assert (second["last_run"], second["last_state"], second["runs"]) == (added.id, "ready", 1)


def test_a_queue_without_schedules(cli: Cli, client: Penstock) -> None:
    """An empty list is no failure."""
    client.queue("q").enqueue("x")
    assert cli("schedules", "q", "--json").document == {"queue": "q", "schedules": []}


def test_actions(cli: Cli, client: Penstock) -> None:
    """Trigger, pause, resume and remove one schedule."""
    queue = client.queue("q")
    queue.schedules.add("s", every="15m", job="x")
    job_id = cli("schedules", "q", "trigger", "s").out.strip()
    assert [job.id for job in queue.peek()] == [job_id]
    assert cli("schedules", "q", "pause", "s").out == "s: paused\n"
    assert queue.schedules.list()[0].paused
    assert cli("schedules", "q", "resume", "s").out == "s: not paused\n"
    assert not queue.schedules.list()[0].paused
    removed = {"queue": "q", "schedule": "s", "removed": True}
    assert cli("schedules", "q", "remove", "s", "--json").document == removed
    assert queue.schedules.list() == []
    assert cli("schedules", "q", "remove", "s").out == "s: there is no such schedule\n"


def test_add_and_edit(cli: Cli, client: Penstock) -> None:
    """A schedule is stored with the job of a handler; an edit keeps this job and the counts."""
    add = ("schedules", "q", "add", "s", '{"to": "ada"}', "--json-body", "--header", "handler=send")
    assert cli(*add, "--every", "15m").out == "s: stored\n"
    assert cli(*add, "--every", "15m").out == "s: it was like this\n"
    queue = client.queue("q")
    queue.schedules.run("s")
    assert cli("schedules", "q", "edit", "s", "--overlap", "yes").out == "s: changed\n"
    cron = ("schedules", "q", "edit", "s", "--cron", "0 3 * * *", "--tz", "Europe/Berlin")
    assert cli(*cron, "--json").document == {"queue": "q", "schedule": "s", "changed": True}
    assert cli("schedules", "q", "edit", "s", "--cron", "0 4 * * *").code == 0
    assert cli("schedules", "q", "edit", "s", "--missed", "skip").code == 0
    assert cli("schedules", "q", "edit", "s", "--missed", "skip").out == "s: it was like this\n"
    [one] = queue.schedules.list()
    assert (one.cron, one.tz, one.overlap, one.missed) == (
        "0 4 * * *",
        "Europe/Berlin",
        True,
        "skip",
    )
    assert one.runs == 1
    assert cli("schedules", "q", "edit", "s", "--every", "1d").code == 0
    queue.schedules.run("s")
    first, second = queue.peek()
    assert (first.body, first.headers["handler"]) == (second.body, second.headers["handler"])
    assert (second.body, second.headers["handler"]) == ({"to": "ada"}, "send")


@pytest.mark.parametrize(
    "arguments, reason",
    [
        (("add", "s"), "add needs a BODY, and no other action takes one"),
        (("edit", "s", "x", "--every", "5m"), "add needs a BODY"),
        (("edit", "s"), "edit needs --cron, --every, --tz, --overlap or --missed"),
        (
            ("edit", "s", "--every", "5m", "--json-body"),
            "--header and --json-body go with add only",
        ),
        (("pause", "s", "--every", "5m"), "--every goes with add and edit only"),
        (("edit", "t", "--every", "5m"), "no such schedule"),
        (("edit", "s", "--every", "5x"), "must be seconds, a timedelta, or a text"),
        (("edit", "s", "--tz", "Europe/Berlin"), "every= counts from 1970 in UTC"),
        (("add", "s", "x"), "pass either cron="),
    ],
)
def test_add_and_edit_that_are_refused(
    cli: Cli, client: Penstock, arguments: tuple[str, ...], reason: str
) -> None:
    """The error says what to give; nothing changes."""
    queue = client.queue("q")
    queue.schedules.add("s", every="15m", job="x")
    before = queue.schedules.list()
    result = cli("schedules", "q", *arguments)
    assert result.code != 0
    assert reason in result.err
    assert queue.schedules.list() == before


APP = """
from penstock import Handlers, Penstock, Worker

handlers = Handlers()


@handlers.handler(queue="q", every="{every}")
def report() -> None: ...


worker = Worker(Penstock("{url}"), "q", handlers, burst=True)
"""


def test_a_roll_back(
    cli: Cli, client: Penstock, real_backend: Backend, tmp_path: Path, monkeypatch: Any
) -> None:
    """The version that an app declares comes back, although a later one has replaced it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name, every in (("before", "1h"), ("after", "2h")):
        monkeypatch.delitem(sys.modules, f"rolled_{name}", raising=False)  # of another server
        text = APP.format(every=every, url=real_backend.url)
        (tmp_path / f"rolled_{name}.py").write_text(text)
        assert cli("worker", f"rolled_{name}:worker").code == 0
    assert cli("worker", "rolled_before:worker").code == 0  # it changes nothing
    assert client.queue("q").schedules.list()[0].spec == "every 2h"
    back = cli("schedules", "q", "restore", "report", "--app", "rolled_before:worker")
    assert back.out == "report: restored\n"
    assert client.queue("q").schedules.list()[0].spec == "every 1h"
    back = cli("schedules", "q", "restore", "report", "--app", "rolled_before:worker")
    assert back.out == "report: it has this version already\n"
    missing = cli("schedules", "q", "restore", "other", "--app", "rolled_before:worker")
    assert (missing.code, "has no handler 'other' with a schedule" in missing.err) == (1, True)
    missing = cli("schedules", "q", "restore", "report", "--app", "rolled_nowhere:worker")
    assert (missing.code, "can't be imported" in missing.err) == (1, True)
    assert cli("schedules", "q", "restore", "report").code == 2
    assert cli("schedules", "q", "pause", "report", "--app", "rolled_before:worker").code == 2


@pytest.mark.parametrize("action", ["trigger", "pause", "resume"])
def test_a_schedule_that_is_not_there(cli: Cli, client: Penstock, action: str) -> None:
    """It is an error."""
    client.queue("q").enqueue("x")
    found = cli("schedules", "q", action, "s")
    assert (found.code, "no such schedule" in found.err) == (1, True)


@pytest.mark.parametrize("argv", [["pause"], ["stop", "s"]])
def test_bad_usage(cli: Cli, argv: list[str]) -> None:
    """An action needs a name, and must be one of four."""
    assert cli("schedules", "q", *argv).code == 2
