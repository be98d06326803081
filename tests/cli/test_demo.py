"""Tests of `demo`: whole runs with a killed worker, on small directories."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from penstock import Penstock
from penstock.cli.demo import worker as worker_module
from penstock.cli.demo import workers as workers_module
from penstock.cli.demo.files import list_files
from penstock.cli.demo.report import Kill
from penstock.cli.demo.run import PROBE_COUNT, DemoRun, Gathered, batch_of, pace_of
from penstock.cli.demo.worker import FILES_QUEUE, RESULTS_QUEUE, result_of
from penstock.cli.demo.workers import DemoWorkers
from penstock.embedded import EmbeddedServer
from tests.cli.support import Cli, environment, hear_signals, in_process_of_its_own

PATIENCE = 60


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory of thirty files of many kinds, and some entries that are not files."""
    root = tmp_path / "folder"
    (root / "below" / "deep").mkdir(parents=True)
    for number in range(24):
        (root / f"file {number}").write_text("line\n" * number)
    (root / "below" / "empty").write_bytes(b"")
    (root / "below" / "no newline").write_bytes(b"a\nb")
    (root / "below" / "deep" / "long").write_bytes(b"x\n" * (3 << 19))
    (root / "below" / "per cent %41 ü").write_text("u")
    (root / os.fsdecode(b"not utf-8 \xff")).write_text("n")
    (root / "site-packages.txt").write_text("a file all the same")
    (root / "site-packages").mkdir()
    (root / "site-packages" / "not ours").write_text("x")
    (root / "link").symlink_to(root / "file 1")
    return root


def gone(pid: int) -> bool:
    """Tell if the process does not exist."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_every_number_of_a_run(folder: Path, tmp_path: Path) -> None:
    """A worker dies with jobs, every file is done, and all used resources are freed."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    result = in_process_of_its_own("demo", "--path", str(folder), "--json", TMPDIR=str(temporary))
    assert (result.code, result.document["ok"]) == (0, True), result.err
    document = result.document
    assert document["path"] == str(folder)
    assert (document["files"], document["acked"], document["lost"]) == (30, 30, 0)
    assert (document["missing"], document["wrong"], document["unreadable"]) == ([], [], [])
    killed = document["killed"]
    assert killed["worker"] in {"worker-1", "worker-2", "worker-3"}
    assert 1 <= killed["held"] <= document["redelivered"] <= 30
    assert gone(killed["pid"])
    assert 0 < document["recovered_after"] <= document["seconds"] < PATIENCE
    assert document["jobs_per_second"] > 0
    pickup = document["pickup_ms"]
    assert 0 < pickup["p50"] <= pickup["p99"]
    assert pickup["samples"] == PROBE_COUNT
    memory = document["memory"]
    assert memory["came_back"] is True
    assert memory["full"]["key_bytes"] > memory["before"]["key_bytes"] + 30 * 50
    assert memory["after"]["key_bytes"] < memory["before"]["key_bytes"] + 30 * 50
    assert memory["before"]["keys"] >= len({FILES_QUEUE, RESULTS_QUEUE})
    assert memory["before"]["server_bytes"] > memory["before"]["key_bytes"]
    assert list(temporary.iterdir()) == []  # the server's directory is removed with it
    assert f"(process {killed['pid']}) is killed with SIGKILL" in result.err
    assert f"its {killed['held']} jobs wait until its lease of 2 s ends" in result.err
    assert "30 of 30 files done" in result.err


@pytest.mark.slow
def test_a_run_on_a_server_of_others(folder: Path, server: EmbeddedServer, run_cli: Cli) -> None:
    """On a given server other keys are not touched, no key is left, and the table is readable."""
    with Penstock(server.url) as client, redis.Redis.from_url(server.url) as raw:
        client.queue(FILES_QUEUE).enqueue("theirs")
        client.queue(RESULTS_QUEUE).enqueue("theirs")
        raw.set("penstock-demo", "theirs")
        before = dumped(raw)
        result = run_cli("demo", "--path", str(folder), "--workers", "2", url=server.url)
        assert result.code == 0, result.err
        assert dumped(raw) == before
    rows = {row[0].strip(): [cell.strip() for cell in row[1:]] for row in result.rows}
    assert rows["files"] == ["30", str(folder)]
    assert rows["jobs acked"][0] == "30"
    assert int(rows["redelivered"][0]) >= 1
    assert rows["lost"] == ["0", "checked against the directory"]
    assert "came back" in result.out
    assert "the server you named" in result.out
    assert list(rows) == [
        "files", "jobs acked", "redelivered", "lost", "jobs/s", "seconds",
        "pick-up latency p50", "pick-up latency p99", "memory before",
        "with all jobs waiting", "after",
    ]  # fmt: skip


def dumped(raw: Any) -> dict[bytes, bytes]:
    """Return every key with its value."""
    return {key: raw.dump(key) for key in raw.scan_iter()}


@pytest.mark.slow
def test_a_single_file_is_enough(tmp_path: Path, run_cli: Cli) -> None:
    """The worker with the file is killed, and another one does it."""
    (tmp_path / "only").write_text("x\n")
    result = run_cli("demo", "--path", str(tmp_path), "--json")
    assert result.code == 0, result.err
    document = result.document
    assert (document["files"], document["acked"], document["lost"]) == (1, 1, 0)
    assert (document["killed"]["held"], document["redelivered"]) == (1, 1)


@pytest.mark.slow
def test_a_worker_is_killed_however_late_the_command_reads(
    folder: Path, run_cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others do all other files meanwhile; it holds its job until it is killed."""
    work = DemoRun._work

    def work_late(self: DemoRun) -> None:
        deadline = time.monotonic() + PATIENCE
        while self.results.stats().ready < 30:  # 29 results, and the message of the worker
            assert time.monotonic() < deadline
        work(self)

    monkeypatch.setattr(DemoRun, "_work", work_late)
    result = run_cli("demo", "--path", str(folder), "--json")
    assert result.code == 0, result.err
    document = result.document
    assert (document["killed"]["held"], document["redelivered"], document["acked"]) == (1, 1, 30)


@pytest.mark.slow
def test_a_run_without_a_kill_is_a_failure(
    folder: Path, run_cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker dies before the command kills it: the files are done, but the exit code is 1."""
    kill = DemoWorkers.kill

    def kill_dead(self: DemoWorkers, name: str) -> Kill | None:
        self.running[name].kill()
        self.running[name].wait()
        return kill(self, name)

    monkeypatch.setattr(DemoWorkers, "kill", kill_dead)
    result = run_cli("demo", "--path", str(folder), "--json")
    assert result.code == 1
    document = result.document
    assert (document["ok"], document["killed"], document["recovered_after"]) == (False, None, None)
    assert (document["acked"], document["lost"]) == (30, 0)
    assert re.search(r"worker-\d ended", result.err)


@pytest.mark.slow
def test_a_file_without_a_result_is_a_failure(
    folder: Path, run_cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exit code is 1 and the file is named; the run ends."""
    add = Gathered.add

    def forgetful(self: Gathered, told: dict[str, Any]) -> None:
        if told.get("path") != "below/empty":
            add(self, told)

    monkeypatch.setattr(Gathered, "add", forgetful)
    result = run_cli("demo", "--path", str(folder), "--json")
    assert result.code == 1
    document = result.document
    assert (document["ok"], document["lost"], document["missing"]) == (False, 1, ["below/empty"])
    assert (document["files"], document["acked"]) == (30, 30)


@pytest.mark.slow
def test_a_terminal_sees_a_bar(folder: Path) -> None:
    """A terminal shows live progress, and the table at the end."""
    ours, theirs = pty.openpty()
    shown = subprocess.Popen(
        [sys.executable, "-m", "penstock.cli", "demo", "--path", str(folder)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment(TERM="xterm", COLUMNS="150", LINES="40"),
    )
    os.close(theirs)
    seen = b"".join(read_all(ours)).decode("utf-8", "replace")
    assert shown.wait(PATIENCE) == 0, seen
    assert "30/30" in seen
    assert re.search(r"worker-\d: \d+ \(killed\)", seen)
    assert "starting 3 workers" in seen
    assert "single jobs to idle workers" in seen
    assert "redelivered" in seen


def read_all(terminal: int) -> Iterator[bytes]:
    """Yield the output of a terminal until its other end is closed."""
    while True:
        try:
            block = os.read(terminal, 65536)
        except OSError:  # Linux reports the end with EIO
            block = b""
        if not block:
            os.close(terminal)
            return
        yield block


@pytest.mark.parametrize(
    "argv, code, complaint",
    [
        (["--path", "nosuch"], 2, "nosuch"),
        (["--workers", "1"], 2, "--workers"),
        (["--path", "empty"], 1, "has no files"),
    ],
)
def test_arguments_that_cannot_be_run(
    tmp_path: Path,
    run_cli: Cli,
    monkeypatch: pytest.MonkeyPatch,
    argv: list[str],
    code: int,
    complaint: str,
) -> None:
    """A missing directory, a single worker, or no files: nothing is started."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    result = run_cli("demo", *argv)
    assert (result.code, result.out) == (code, "")
    assert complaint in result.err


def test_workers_that_do_not_start(
    folder: Path, run_cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run ends at once with their output."""
    monkeypatch.setattr(workers_module, "WORKER_COMMAND", (shutil.which("false"),))
    result = run_cli("demo", "--path", str(folder))
    assert result.code == 1
    assert "no news from the workers" in result.err
    assert "ended" in result.err


# -- the workers ---------------------------------------------------------------------------


PLAN = {"batch": 4, "pace": 0.0, "victim": "file%202"}


@pytest.fixture
def start(
    server: EmbeddedServer, folder: Path
) -> Iterator[Callable[..., tuple[Penstock, DemoWorkers]]]:
    """Return a client, and workers that end with the test."""
    crews: list[DemoWorkers] = []
    with Penstock(server.url, prefix="demo") as client:

        def begin(count: int, **options: Any) -> tuple[Penstock, DemoWorkers]:
            crew = DemoWorkers(client, server.url, folder, **{**PLAN, **options})
            crews.append(crew)
            crew.start(count)
            ready = {}
            while len(ready) < count:
                for job in client.queue(RESULTS_QUEUE).reserve(10, block=PATIENCE):
                    ready[job.body["worker"]] = job.ack()
            return client, crew

        yield begin
        for crew in crews:
            crew.end()


def test_a_worker_with_jobs_is_killed_and_another_one_does_them(
    start: Callable[..., tuple[Penstock, DemoWorkers]],
) -> None:
    """It waits with the planned job. The jobs counted as held are those delivered again."""
    client, crew = start(2)
    files, gathered = client.queue(FILES_QUEUE), Gathered()
    files.enqueue_many([{"path": f"file%20{number}"} for number in range(4)], lease=2)
    deadline = time.monotonic() + PATIENCE
    kill = None
    while len(gathered.first) < 4 or files.stats().active:
        assert time.monotonic() < deadline
        for job in client.queue(RESULTS_QUEUE).reserve(10, block=1):
            gathered.add(job.body)
            job.ack()
        if gathered.victim and kill is None:
            kill = crew.kill(gathered.victim)
    assert kill is not None
    assert gone(kill.pid)
    assert len(gathered.redelivered) == kill.held
    assert list(crew.running) == list({"worker-1", "worker-2"} - {kill.worker})
    assert files.stats().acked == 4


def test_a_worker_that_dies_by_itself_is_reported(
    server: EmbeddedServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its death is reported once, with its last output."""
    code = "raise SystemExit('no memory')"
    monkeypatch.setattr(workers_module, "WORKER_COMMAND", (sys.executable, "-c", code))
    with Penstock(server.url) as client:
        crew = DemoWorkers(client, server.url, folder, **PLAN)
        crew.start(1)
        crew.running["worker-1"].wait(PATIENCE)
        assert crew.kill("worker-1") is None
        assert crew.deaths() == "worker-1 ended: no memory"
        assert crew.kill("worker-1") is None
        assert (crew.running, crew.deaths()) == ({}, "")
        crew.end()


def test_a_worker_ends_with_its_parent(server: EmbeddedServer, folder: Path) -> None:
    """When the demo is killed its workers end too."""
    read, write = os.pipe()
    plan = {"url": server.url, "prefix": "demo", "root": str(folder), **PLAN}
    arguments = [*workers_module.WORKER_COMMAND, json.dumps({**plan, "owner": "w"})]
    parent = subprocess.Popen(
        [sys.executable, "-c", f"import subprocess; subprocess.run({arguments!r})"],
        stdout=write,  # the worker's too
        env=environment(),
    )
    os.close(write)
    with Penstock(server.url, prefix="demo") as client:
        [ready] = client.queue(RESULTS_QUEUE).reserve(block=PATIENCE)
        assert ready.body == {"kind": "ready", "worker": "w"}
        parent.kill()
        parent.wait()
        assert os.read(read, 1) == b""  # end of file: the other end is closed everywhere
    os.close(read)


def test_a_file_that_cannot_be_read_is_a_result_too(server: EmbeddedServer, folder: Path) -> None:
    """The file counts as processed; no file is lost."""
    with Penstock(server.url) as client:
        client.queue(FILES_QUEUE).enqueue({"path": "nosuch"})
        [job] = client.queue(FILES_QUEUE).reserve(block=0)
        told = result_of(job, folder)
    assert (told["kind"], told["path"]) == ("file", "nosuch")
    assert told["error"].startswith("FileNotFoundError")


# -- the plan ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "files, workers, batch, paced",
    [(1, 2, 1, True), (30, 3, 1, True), (999, 3, 16, True), (1000, 3, 16, False)],
)
def test_small_directories_are_made_to_last(
    files: int, workers: int, batch: int, paced: bool
) -> None:
    """A run takes long enough to watch, and no batch longer than a lease without a renewal."""
    assert batch_of(files, workers) == batch
    pace = pace_of(files, workers)
    assert (pace > 0) == paced
    assert pace + worker_module.DEMO_LEASE / 4 < worker_module.DEMO_LEASE


def test_the_directory_as_it_is_listed(folder: Path) -> None:
    """Regular files with names that JSON can express, with their size; no links, no packages."""
    listing = list_files(folder)
    assert len(listing) == 30
    assert listing["below/deep/long"][0] == 3 << 20
    assert "below/per%20cent%20%2541%20%C3%BC" in listing
    assert "not%20utf-8%20%FF" in listing
    assert "site-packages.txt" in listing
    assert not any("link" in name or "not%20ours" in name for name in listing)
    assert list_files(folder, ".txt").keys() == {"site-packages.txt"}


@pytest.mark.slow
def test_interrupted(folder: Path, server: EmbeddedServer) -> None:
    """Ctrl-C during a run ends the workers and removes the keys."""
    running = subprocess.Popen(
        [sys.executable, "-m", "penstock.cli", "demo", "--path", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(PENSTOCK_URL=server.url),
        preexec_fn=hear_signals,  # noqa: PLW1509  # it takes no lock
        text=True,
    )
    assert running.stdout is not None
    pid = 0
    for line in running.stdout:
        if "is killed with SIGKILL" in line:
            pid = int(line.partition("(process ")[2].partition(")")[0])
            break
    assert pid
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=PATIENCE)
    assert running.returncode != 0
    assert "Traceback" not in err
    with redis.Redis.from_url(server.url) as raw:
        assert raw.keys("penstock-demo-*") == []
        deadline = time.monotonic() + PATIENCE
        while len(raw.client_list()) > 1:  # the server notices a death when it reads
            assert time.monotonic() < deadline
