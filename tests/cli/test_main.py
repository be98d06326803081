"""The program as a whole: options, exit codes, missing packages and servers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

import penstock
from penstock import Penstock
from penstock.cli import main
from penstock.cli.app import SESSION_PARAMETERS, loaded
from penstock.cli.commands import COMMANDS as LISTED
from penstock.cli.parameters import Option, described
from penstock.embedded import EmbeddedServer
from tests.cli.support import Cli, environment, in_process_of_its_own
from tests.support.backends import Backend

COMMANDS = [
    "demo", "worker", "healthy",
    "enqueue", "peek", "scan", "show", "dedup", "stats", "pause", "resume", "close",
    "reopen", "redrive", "promote", "postpone", "purge", "evict", "sweep", "clear", "queues",
    "info", "doctor", "scripts",
]  # fmt: skip
ELSEWHERE = "D-00000000--P6wMjIUDtf9-EJ-fXTvy7f8-ffff"
ON_A_SERVER = [
    ["enqueue", "q", "x"], ["peek", "q"], ["scan"], ["scan", "q", "--ids"], ["show", ELSEWHERE],
    ["stats"], ["stats", "q"], ["pause", "q"], ["resume", "q"], ["redrive", "q"],
    ["close", "q"], ["reopen", "q"],
    ["promote", "q", ELSEWHERE], ["postpone", "q", ELSEWHERE], ["purge", "q", "--yes"],
    ["evict", "q"], ["sweep"], ["queues"], ["queues", "--min-length", "1"], ["info"],
    ["dedup", "q", "owned"], ["clear", "q", "--yes"], ["clear", "--all", "--yes"],
    ["enqueue", "q", "x", "--dedup-id", "owned"], ["queues", "q*"],
]  # fmt: skip


def test_the_program_in_a_process_of_its_own(server: EmbeddedServer) -> None:
    """`python -m penstock.cli` uses the server in PENSTOCK_URL."""
    added = in_process_of_its_own("enqueue", "q", "-", stdin=b"x", PENSTOCK_URL=server.url)
    assert (added.code, added.err) == (0, "")
    shown = in_process_of_its_own("stats", "--json", PENSTOCK_URL=server.url)
    assert [one["ready"] for one in shown.document["queues"]] == [1]


def test_help_names_every_command(run_cli: Cli) -> None:
    """The list is shown with and without a command, and each command has a page."""
    out = run_cli("--help").out
    assert [name for name in COMMANDS if f"\n  {name} " not in out] == []
    for name in COMMANDS[:-1]:
        page = run_cli(name, "-h")
        assert page.code == 0
        assert f"penstock {name}" in page.out
        assert name == "healthy" or "--url" in page.out


def test_each_option_has_help() -> None:
    """The help is the line about the option in the docstring of the command."""
    parameters = {
        (name, one.name): one
        for name in LISTED
        for one in (*described(loaded(name).function).parameters, *SESSION_PARAMETERS)
    }
    helps = {key: one.help for key, one in parameters.items() if isinstance(one.mark, Option)}
    assert len(helps) > 100
    assert [option for option, text in helps.items() if not text] == []
    assert helps["enqueue", "header"] == "A header of the job; may be repeated."
    assert "may be repeated. Default: ready, scheduled and parked." in helps["purge", "state"]


def test_version(run_cli: Cli) -> None:
    """The version is the library's."""
    assert run_cli("--version").out == f"{penstock.__version__}\n"


@pytest.mark.parametrize("argv", [["nosuch"], ["stats", "--nosuch"], ["pause"], ["--url"]])
def test_bad_usage(run_cli: Cli, argv: list[str]) -> None:
    """The exit code is 2, with a line on stderr."""
    result = run_cli(*argv)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("penstock: ")
    assert " --help" in result.err


@pytest.mark.parametrize(
    "argv",
    [
        ["healthy", "file", "--max-age", "nan"],
        ["top", "--interval", "nan"],
        ["top", "--interval", "0"],
        ["worker", "app:worker", "--grace", "nan"],
    ],
    ids=" ".join,
)
def test_numbers_outside_their_bounds(run_cli: Cli, argv: list[str]) -> None:
    """A number that is not between its bounds is bad usage; NaN is between none."""
    result = run_cli(*argv)
    assert result.code == 2
    assert f"argument {argv[-2]}: {argv[-1]} must be at least" in result.err


@pytest.mark.parametrize("argv", ON_A_SERVER, ids=" ".join)
def test_options_stand_before_or_after_the_command(
    run_cli: Cli, real_backend: Backend, argv: list[str]
) -> None:
    """`penstock --url U stats` is `penstock stats --url U`; --prefix and --json too."""
    assert real_backend.url
    options = ["--url", real_backend.url, "--prefix", "other", "--json"]
    with Penstock(real_backend.url, prefix="other") as client:
        answers = []
        for each in ([*options, *argv], [*argv, *options]):
            client.queue("q").clear()
            client.queue("q").enqueue("x", dedup_id="owned")
            answers.append(run_cli(*each))
    before, after = answers
    fails = ELSEWHERE in argv
    assert before.code == after.code == int(fails)
    if not fails:
        assert before.document.keys() == after.document.keys()
    keys = redis.Redis.from_url(real_backend.url).keys()
    assert all(key.startswith(b"other:") for key in keys)


@pytest.mark.parametrize("argv", [*ON_A_SERVER, ["doctor"]], ids=" ".join)
def test_a_server_that_is_down(
    run_cli: Cli, make_server: Callable[..., EmbeddedServer], argv: list[str]
) -> None:
    """The exit code is 1, with one line about it."""
    server = make_server(tcp=True)
    server.kill()
    result = run_cli(*argv, url=server.url)
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith("penstock: 127.0.0.1:")
    assert result.err.count("\n") == 1


@pytest.mark.parametrize("url", ["http://localhost", "nonsense", "redis://localhost:port"])
def test_an_invalid_url(run_cli: Cli, url: str) -> None:
    """The exit code is 1, with one line."""
    for command in ("stats", "doctor", "demo"):
        result = run_cli(command, url=url)
        assert (result.code, result.out) == (1, "")
        assert result.err.splitlines()[-1].startswith("penstock: BadArgument: source=")


@pytest.mark.parametrize("argv", [["enqueue", "q", "x"], ["peek", "q"], ["stats", "q"]])
def test_a_key_of_the_wrong_type(cli: Cli, real_backend: Backend, argv: list[str]) -> None:
    """The exit code is 1, the damage is named, and the key is not changed."""
    raw = real_backend.sync_client()
    with Penstock(raw) as client:
        client.queue("q").enqueue("x")
    raw.delete("penstock:{q}:ready")
    raw.set("penstock:{q}:ready", "not a stream")
    result = cli(*argv)
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith("penstock: QueueDamaged: key 'penstock:{q}:")
    assert "has the wrong type: it is a " in result.err
    assert raw.get("penstock:{q}:ready") == b"not a stream"


def test_a_queue_of_a_newer_protocol(cli: Cli, real_backend: Backend) -> None:
    """A newer protocol has exit code 1."""
    real_backend.sync_client().hset("penstock:{q}:meta", mapping={"v": "4", "epoch": "0000000a"})
    result = cli("stats", "q")
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith("penstock: UnsupportedVersion: ")


def test_a_wrong_password(run_cli: Cli, make_server: Callable[..., EmbeddedServer]) -> None:
    """The exit code is 1 without retries."""
    server = make_server(tcp=True, args=("--requirepass", "right"))
    url = f"redis://:wrong@127.0.0.1:{server.port}/0"
    result = run_cli("stats", url=url)
    assert (result.code, result.out) == (1, "")
    assert "password" in result.err
    assert "right" not in result.err


def test_an_evicting_server_is_a_warning_on_stderr(
    run_cli: Cli, make_server: Callable[..., EmbeddedServer]
) -> None:
    """The command works; the warning is one line on stderr, outside of the document."""
    server = make_server(tcp=True, args=("--maxmemory-policy", "allkeys-lru"))
    result = run_cli("enqueue", "q", "x", "--json", url=server.url)
    assert (result.code, result.document["count"]) == (0, 1)
    assert result.err.startswith("penstock: warning: maxmemory-policy is allkeys-lru")
    assert result.err.count("\n") == 1


def test_a_reader_that_never_reads() -> None:
    """`penstock scripts | true` prints no error, although a short text is written at exit."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "penstock.cli", "scripts"]
    done = subprocess.run(
        command, stdout=write, stderr=subprocess.PIPE, env=environment(), timeout=60, check=False
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (1, b"")


def test_streams_that_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon may have none: output is dropped, input is empty, the exit code is the usual one."""
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    try:
        assert main(["scripts"]) == 0
        assert main(["stats", "--nonsense"]) == 2
        assert sys.stdin.read() == ""
    finally:
        for stream in (sys.stdin, sys.stdout, sys.stderr):
            stream.close()


def test_a_reader_that_leaves(server: EmbeddedServer) -> None:
    """`penstock peek | head` ends without a traceback."""
    with Penstock(server.url) as client:
        client.queue("q").enqueue_many([b"x" * 1000] * 1000)
    shown = subprocess.Popen(
        [sys.executable, "-m", "penstock.cli", "peek", "q", "-n", "1000", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(PENSTOCK_URL=server.url),
    )
    assert shown.stdout is not None
    assert shown.stdout.readline() == b"{\n"
    shown.stdout.close()
    _, err = shown.communicate(timeout=60)
    assert (shown.returncode, err) == (1, b"")


@pytest.mark.slow
def test_without_rich_the_error_has_advice(tmp_path: Path) -> None:
    """The commands that need it say so in one line, with exit code 2; others don't need it."""
    (tmp_path / "rich.py").write_text("raise ModuleNotFoundError(name='rich')")
    path = os.pathsep.join([str(tmp_path), environment()["PYTHONPATH"]])
    result = in_process_of_its_own("demo", PYTHONPATH=path)
    assert (result.code, result.out) == (2, "")
    assert result.err == ("penstock: this command needs rich: pip install 'penstock[cli]'\n")
    assert in_process_of_its_own("scripts", PYTHONPATH=path).code == 0


def test_another_missing_module_is_not_taken_for_the_extra(tmp_path: Path) -> None:
    """Its ImportError is raised unchanged."""
    (tmp_path / "rich.py").write_text("import nosuchmodule")
    path = os.pathsep.join([str(tmp_path), environment()["PYTHONPATH"]])
    result = in_process_of_its_own("demo", PYTHONPATH=path)
    assert result.code == 1
    assert "No module named 'nosuchmodule'" in result.err
    assert "penstock[cli]" not in result.err
