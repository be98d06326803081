"""The log lines of a worker about itself and its jobs."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from penstock import Handlers, Penstock, Reject, Retry, RetryPolicy, Worker, __version__
from penstock.core.jobs.logs import get_logger, hidden
from penstock.embedded import EmbeddedServer
from penstock.worker.log import JsonFormatter, LogFormatter, set_up
from penstock.worker.messages import end_text
from tests.cli.support import environment, hear_signals
from tests.support.backends import Backend
from tests.support.hostile import is_harmless
from tests.support.twins import wait_for
from tests.worker.faults import KINDS, both

PLAIN = """
import sys, threading
from penstock import {kind}, Handlers, Penstock

handlers = Handlers()

@handlers.handler("welcome")
{define} welcome(to: str) -> None:
    if to == "wait":
        print("waiting", flush=True)
        {wait}
    if to == "bad":
        raise ValueError("no \\x1b[2J redis://ada:secret@host/0")

worker = {kind}("{url}", "emails", handlers, name="app", {options})
{setup}
if __name__ == "__main__":
    {run}
"""
A_DAY = 86_400.0
"""Seconds: with this backoff a burst ends before the next attempt, in all but 1 of 10,000 runs."""
FORMS: dict[str, dict[str, str]] = {
    "thread": {
        "kind": "Worker", "define": "def", "wait": "threading.Event().wait()",
        "run": "worker.run()",
    },
    "asyncio": {
        "kind": "AsyncWorker", "define": "async def",
        "wait": "import asyncio; await asyncio.Event().wait()",
        "run": "import asyncio; asyncio.run(worker.run())",
    },
}  # fmt: skip


@pytest.fixture
def program(tmp_path: Path, server: EmbeddedServer) -> Iterator[Callable[..., Any]]:
    """Start a program, as `python app.py` or `penstock worker app:worker`."""
    started: list[subprocess.Popen[str]] = []

    def start(
        kind: str, *jobs: str, command: tuple[str, ...] = (), options: str = "", setup: str = ""
    ) -> subprocess.Popen[str]:
        values = {"url": server.url, "options": options, "setup": setup, **FORMS[kind]}
        (tmp_path / "app.py").write_text(PLAIN.format(**values))
        with Penstock(server.url) as ps:
            ps.queue("emails").configure(backoff_base=A_DAY, backoff_cap=A_DAY)
            for to in jobs:
                ps.queue("emails").enqueue({"to": to}, headers={"handler": "welcome"})
        begin = ["-m", "penstock", "worker", "app:worker", *command] if command else ["app.py"]
        process = subprocess.Popen(
            [sys.executable, *begin],
            cwd=tmp_path,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=hear_signals,  # noqa: PLW1509  # it takes no lock
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("kind", FORMS)
def test_a_plain_program_shows_what_its_worker_does(
    kind: str, program: Callable[..., Any], server: EmbeddedServer
) -> None:
    """Without any setup: banner, failure with attempt and next try, line per job, summary."""
    process = program(kind, "ada", "bad", options="burst=True, log_jobs=True")
    _, written = process.communicate(timeout=60)
    lines = written.splitlines()
    assert process.returncode == 0
    begins = f"INFO penstock: penstock {__version__}: app takes jobs of emails from "
    assert begins in lines[0]
    assert lines[0].endswith("; handlers: welcome; concurrency 8 worker=app")
    assert any(" INFO penstock: welcome " in line and ": done after " in line for line in lines)
    [failure] = [line for line in lines if " WARNING " in line]
    assert "ValueError: no \\x1b[2J" in failure
    assert "; attempt 1 of 20, next try within 24.0 h" in failure
    assert ": app has ended: 1 job done, 1 failed in " in lines[-1]
    assert "secret" not in written
    assert all(map(is_harmless, lines))


@pytest.mark.parametrize(
    "setup",
    [
        "import logging; logging.basicConfig(format='own %(levelname)s %(message)s')",
        "import logging; logging.getLogger('penstock').setLevel('WARNING')",
    ],
    ids=["a root handler", "a level of penstock"],
)
def test_the_programs_own_logging_is_kept(setup: str, program: Callable[..., Any]) -> None:
    """A program that has set up logging sees only what it has asked for."""
    process = program("thread", "ada", options="burst=True, log_jobs=True", setup=setup)
    assert process.communicate(timeout=60)[1] == ""


def test_nothing_stays_behind(server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """After `run` the logger is as it was before."""
    logger, root = logging.getLogger("penstock"), logging.getLogger()
    for one in (logger, root):
        monkeypatch.setattr(one, "handlers", [])
    monkeypatch.setattr(logger, "level", logging.NOTSET)
    seen = []

    def handle(job: Any) -> None:
        seen.append((len(logger.handlers), logger.level))

    with Penstock(server.url) as ps:
        ps.queue("q").enqueue(1)
        Worker(ps, "q", handle, burst=True).run()
    assert (logger.handlers, logger.level) == ([], logging.NOTSET)
    assert seen == [(1, logging.INFO)]


@pytest.mark.parametrize("kind", FORMS)
def test_ctrl_c_tells_what_it_waits_for(kind: str, program: Callable[..., Any]) -> None:
    """The first one names the jobs, and says that a second one ends the worker at once."""
    process = program(kind, "wait", options="grace=600")
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(signal.SIGINT)
    while "SIGINT" not in (line := process.stderr.readline()):
        assert line
    assert "app stops; it waits up to " in line
    assert " for 1 job: welcome of emails (D-" in line
    assert "a second Ctrl-C or SIGTERM ends it at once" in line
    process.send_signal(signal.SIGINT)
    _, rest = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "1 unfinished jobs are given back" in rest
    assert "app has ended: 0 jobs done, 0 failed in " in rest


@pytest.mark.parametrize("processes", [(), ("--processes", "1")], ids=["one", "supervised"])
def test_json_lines(processes: tuple[str, ...], program: Callable[..., Any]) -> None:
    """Each line is one JSON object with the fields of the record."""
    command = ("--log-format", "json", "--log-jobs", "--burst", *processes)
    process = program("thread", "ada", "bad", command=command)
    _, written = process.communicate(timeout=60)
    assert process.returncode == 0
    records = [json.loads(line) for line in written.splitlines()]
    assert all({"time", "pid", "level", "logger", "message"} <= record.keys() for record in records)
    [done] = [record for record in records if record.get("outcome") == "done"]
    assert (done["queue"], done["handler"], done["attempt"]) == ("emails", "welcome", 1)
    assert done["seconds"] >= 0
    [failed] = [record for record in records if record["level"] == "WARNING"]
    assert "secret" not in written
    assert failed["message"].endswith("attempt 1 of 20, next try within 24.0 h")


def test_the_server_is_back(server: EmbeddedServer, caplog: pytest.LogCaptureFixture) -> None:
    """The end of an outage is told once, by each worker."""
    caplog.set_level(logging.INFO, "penstock")
    with both(server.url) as workers, Penstock(server.url) as ps:
        for kind in KINDS:
            ps.queue(kind).enqueue("before")
        for seen, _ in workers.values():
            seen.wait("before")
        server.kill()
        wait_for(lambda: sum("it is tried again" in text for text in caplog.messages) >= 2, 30)
        server.restart()
        for kind in KINDS:
            ps.queue(kind).enqueue("after")
        for seen, _ in workers.values():
            seen.wait("after", timeout=30)
    backs = [text for text in caplog.messages if "the server is back after " in text]
    assert len(backs) == len(KINDS)


HANDLED = {
    "raise": (ValueError("x"), "ValueError: x; attempt 1 of 20, next try within 24.0 h"),
    "own policy": (ValueError("x"), "ValueError: x; attempt 1 of 3, next try within 12.0 h"),
    "retry": (Retry(7, "busy"), "busy; attempt 1 of 20, next try in 7 s"),
    "reject": (Reject("bad"), "bad; attempt 1 of 20: a dead letter"),
    "last": (ValueError("x"), "ValueError: x; attempt 1 of 1: a dead letter"),
    "handler's last": (ValueError("x"), "ValueError: x; attempt 1 of 1: a dead letter"),
    "handler's": (ValueError("x"), "ValueError: x; attempt 1 of 3, next try within 24.0 h"),
    "queue's limit": (ValueError("x"), "ValueError: x; attempt 1 of 20, next try within 24.0 h"),
}
OWN = {
    "handler's last": RetryPolicy(1),
    "handler's": RetryPolicy(3),
    "queue's limit": RetryPolicy(30),
}
"""Policies of the handler. The limit of the queue holds too."""


@pytest.mark.parametrize("returned", [False, True], ids=["raised", "returned"])
@pytest.mark.parametrize("name", HANDLED)
def test_one_line_for_a_failure(
    name: str, returned: bool, brief_backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    """It has the reason, the attempt and its limit, and the time of the next one."""
    error, text = HANDLED[name]
    handlers = Handlers()

    @handlers.handler(None, retry=OWN.get(name))
    def handle(job: Any) -> Any:
        if returned and isinstance(error, (Retry, Reject)):
            return error
        raise error

    policies = {"own policy": RetryPolicy(3, base=A_DAY / 2), "last": RetryPolicy(1)}
    caplog.set_level(logging.INFO, "penstock")
    with Penstock(brief_backend.sync_client()) as ps:
        ps.queue("q").configure(backoff_base=A_DAY, backoff_cap=A_DAY)
        ps.queue("q").enqueue(1, retry=policies.get(name))
        Worker(ps, "q", handlers, burst=True, log_jobs=True).run()
    lines = [record.getMessage() for record in caplog.records if hasattr(record, "job_id")]
    assert [line for line in lines if line.endswith(text)] == lines
    assert len(lines) == 1


def test_a_summary() -> None:
    """Failures are added up; every other outcome is named."""
    assert end_text({}, 2) == "0 jobs done, 0 failed in 2 s"
    counts = {"done": 7, "retried": 2, "dead": 1, "snoozed": 3}
    assert (
        end_text(counts, 200) == "7 jobs done, 3 failed in 3.3 min (2 retried, 1 dead, 3 snoozed)"
    )


@pytest.mark.parametrize(
    "text, shown",
    [
        ("at redis://ada:se@cret@host:1/0", "at redis://***@host:1/0"),
        ("at redis://:secret@host", "at redis://***@host"),
        ("redis://h/0?password=secret&db=1", "redis://h/0?password=***&db=1"),
        ("http://host/a b@c", "http://host/a b@c"),
        ("secret@x", "secret@x"),
    ],
)
def test_no_password_in_a_line(text: str, shown: str, caplog: pytest.LogCaptureFixture) -> None:
    """Messages, arguments, fields and tracebacks of every record hide passwords of URLs."""
    assert hidden(text) == shown
    logger = get_logger("penstock")
    try:
        raise ValueError(text)
    except ValueError:
        logger.exception("%s: %r", text, [text], extra={"own": text})
    [record] = caplog.records
    for formatter in (LogFormatter(), JsonFormatter()):
        assert ("secret" in formatter.format(record)) == ("secret" in shown)
    assert json.loads(JsonFormatter().format(record))["own"] == shown


def test_foreign_records_hide_passwords_too() -> None:
    """A record of another logger, which has no filter of ours."""
    record = logging.makeLogRecord({"msg": "redis://:secret@host\x1b", "own": "redis://:secret@h"})
    assert is_harmless(LogFormatter().format(record))
    for formatter in (LogFormatter(), JsonFormatter()):
        assert "secret" not in formatter.format(record)
        assert "\x1b" not in formatter.format(record)


def test_waiting_is_told_only_once(server: EmbeddedServer, caplog: Any) -> None:
    """`stop()` of a program is told in the same way, without a hint at Ctrl-C."""
    caplog.set_level(logging.INFO, "penstock")
    begun: list[Any] = []

    def handle(job: Any) -> None:
        begun.append(job)
        while not job.lost:
            time.sleep(0.01)

    with Penstock(server.url) as ps:
        ps.queue("q").enqueue(1)
        with Worker(ps, "q", handle, name="w") as worker:
            wait_for(lambda: bool(begun))
            worker.stop(0.3)
    told = [text for text in caplog.messages if "w stops; it waits up to " in text]
    assert len(told) == 1
    assert "Ctrl-C" not in told[0]


@pytest.mark.parametrize("job", ["wait", ""])
@pytest.mark.parametrize("kind", FORMS)
def test_a_worker_ends_at_a_newer_protocol(
    kind: str, job: str, program: Callable[..., Any], server: EmbeddedServer
) -> None:
    """When a newer penstock has written to its queue, a worker that is busy or idle ends with exit
    code 1 and one error that says what to do.
    """
    jobs = [job] if job else []
    process = program(kind, *jobs, command=("--grace", "0.1"), options="concurrency=2")
    if job:
        assert process.stdout.readline() == "waiting\n"
    else:
        assert "takes jobs of emails" in process.stderr.readline()
    with redis.Redis.from_url(server.url) as raw:
        raw.hset("penstock:{emails}:meta", "v", "99")
        raw.rpush("penstock:{emails}:wake", "1")
        _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    told = "queue 'emails' was written by version 99 of the protocol: upgrade penstock"
    [line] = [line for line in err.splitlines() if " ERROR " in line]
    assert told in line
    assert "Traceback" not in err


def test_loggers_of_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log of a worker leaves out a line for each HTTP request, but at the level debug."""
    for level, expected in (("debug", logging.NOTSET), (None, logging.WARNING)):
        root, chatty = logging.getLogger(), logging.getLogger("httpx")
        monkeypatch.setattr(root, "handlers", [])
        monkeypatch.setattr(chatty, "level", logging.NOTSET)
        set_up(level)
        assert chatty.level == expected
        chatty.setLevel(logging.ERROR)
        monkeypatch.setattr(root, "handlers", [])
        set_up(level)
        assert chatty.level == logging.ERROR
    chatty.setLevel(logging.NOTSET)
    logging.getLogger("httpcore").setLevel(logging.NOTSET)
    root.setLevel(logging.WARNING)
