"""Tests of `worker` and `healthy`: options, exit codes, log, health."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
from hypothesis import given

from penstock import Durable, Penstock
from penstock import Worker as PlainWorker
from penstock.cli.watching import resident
from penstock.cli.worker import apply_options, parse_queues, parse_size
from penstock.embedded import EmbeddedServer
from penstock.worker.log import LogFormatter
from penstock.worker.target import NoWorker, load
from tests.cli.support import Cli, in_process_of_its_own
from tests.support.hostile import HOSTILE, is_harmless
from tests.worker.conftest import app, told, worker
from tests.worker.programs import APP, STARTED, Program, Told, ask, wait_until

__all__ = ["app", "told", "worker"]

Worker = Callable[..., Program]
PAGE = Path(__file__).parents[2] / "docs" / "workers.md"
MODULES = {
    "broken": "import nosuch",
    "wrong": "def f() pass",
    "leaves": "import sys; sys.exit(3)",
    "made": f"""{APP}
class Deep:
    own = worker

class Own(Told):
    def __init__(self):
        super().__init__(URL, "jobs", handle, name="app")

def make():
    return worker
""",
    "fails": "def make():\n    raise RuntimeError('no\\nidea')",
    "env": "import os\ndef make():\n    raise RuntimeError(os.environ['PENSTOCK_URL'])",
    "fixed": """
import os
from penstock import Penstock, Worker
worker = Worker(Penstock(os.environ["FIXED_URL"]), "jobs", print)
""",
    "other": "text = 'x'\ndef none(): pass\nasync def later(): pass",
}
NO_WORKER = {
    "nosuch:w": "nosuch can't be imported: ModuleNotFoundError: No module named 'nosuch'",
    "broken:w": "broken can't be imported: ModuleNotFoundError: No module named 'nosuch'",
    "wrong:f": "wrong can't be imported: SyntaxError: expected ':' (wrong.py, line 1)",
    "leaves:w": "leaves can't be imported: SystemExit: 3",
    "made:nosuch": "made:nosuch: module 'made' has no attribute 'nosuch'",
    "made:wroker": "made:wroker: module 'made' has no attribute 'wroker' (did you mean 'worker'?)",
    "made:Deep.nosuch": "made:Deep.nosuch: type object 'Deep' has no attribute 'nosuch'",
    "fails:make": "fails:make() failed: RuntimeError: no idea",
    "other:text": "other:text is a str, not a worker or a function that returns one",
    "other:none": "other:none() returned None, not a worker",
    "other:later": "other:later() returned a coroutine, not a worker",
    "made": "'made' is not of the form module:attribute, such as app:worker",
    "made:": "'made:' is not of the form module:attribute",
    "./made.py:w": "'./made.py:w' names a file, not a module: write made:w",
}


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Write the modules into the current directory, which is not on the path."""
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("APP_REDIS", "redis://127.0.0.1:1")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name in MODULES:
            del sys.modules[name]


@pytest.mark.parametrize("target", ["made:worker", "made:make", "made:Deep.own", "made:Own"])
def test_a_worker_is_found(modules: None, target: str) -> None:
    """A worker is found as an attribute, behind dots, or made by a callable."""
    assert load(target).name == "app"


@pytest.mark.parametrize("target, reason", NO_WORKER.items(), ids=list(NO_WORKER))
def test_no_worker(modules: None, run_cli: Cli, target: str, reason: str) -> None:
    """The exit code is 2 with the reason in one line."""
    with pytest.raises(NoWorker, match=re.escape(reason)):
        load(target)
    result = run_cli("worker", target)
    assert (result.code, result.out) == (2, "")
    assert result.err.splitlines()[0].startswith(f"penstock: {reason[:30]}")


def test_the_end_of_the_traceback_follows(modules: None, tmp_path: Path, run_cli: Cli) -> None:
    """Only frames of the app are shown: none of ours, none of Python's imports."""
    lines = run_cli("worker", "fails:make").err.splitlines()
    assert lines[1] == f'  File "{tmp_path}/fails.py", line 2, in make'
    assert lines[-2:] == ["RuntimeError: no", "idea"]
    assert len(run_cli("worker", "nosuch:w").err.splitlines()) == 1
    assert f'File "{tmp_path}/wrong.py", line 1' in run_cli("worker", "wrong:f").err


@pytest.mark.parametrize("options", [[], ["--processes", "1"]], ids=["here", "supervised"])
def test_a_broken_app_in_json(worker: Worker, app: Path, options: list[str]) -> None:
    """With `--log-format json` each line is a document, also the traceback of a broken app."""
    app.write_text("def f():\n    raise RuntimeError('no\\nidea')\nf()")
    program = worker("--log-format", "json", *options)
    assert program.wait() == 2
    first = json.loads(program.seen.splitlines()[0])
    assert first["message"] == "app can't be imported: RuntimeError: no idea"
    assert first["traceback"].splitlines()[-2:] == ["RuntimeError: no", "idea"]
    assert {json.loads(line)["level"] for line in program.seen.splitlines()} == {"ERROR"}


@pytest.mark.parametrize("options", [[], ["--processes", "1"]], ids=["here", "supervised"])
def test_systemd_is_told(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: list[str]
) -> None:
    """A unit with Type=notify has started when the app is loaded and signals are handled."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        line.bind(str(tmp_path / "notify"))
        line.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        program = worker(*options)
        assert line.recv(100) == b"READY=1"
        program.send(signal.SIGTERM)
        assert program.wait() == 0
        line.setblocking(False)
        with pytest.raises(BlockingIOError):
            line.recv(100)


EARLY_HANG_UP = """
import os, signal, sys
class Finder:
    def find_spec(name, path, target=None):
        if name == 'penstock.cli.worker':
            os.kill(os.getpid(), signal.SIGHUP)
sys.meta_path.insert(0, Finder)
"""


def test_a_reload_during_the_start(worker: Worker, told: Told) -> None:
    """SIGHUP before its handler is there does not end the supervisor: it is handled then."""
    program = worker("--processes", "1", before=f"exec({EARLY_HANG_UP!r})")
    program.line("replacing the processes one by one")
    told.until("up")
    program.send(signal.SIGTERM)
    assert program.wait() == 0


@pytest.mark.parametrize(
    "option, value",
    [
        ("--processes", "0"), ("--queues", ""), ("--queues", "a,,b"), ("--queues", "a:0"),
        ("--queues", "a,a:2"), ("--concurrency", "0"), ("--concurrency", "1001"),
        ("--name", ""), ("--prefetch", "-1"), ("--grace", "-1"), ("--max-jobs", "0"),
        ("--max-memory", "many"),
        ("--max-memory", "0"), ("--health-port", "70000"), ("--log-level", "loud"),
        ("--health-file", "/nosuch/directory/file"),
    ],
)  # fmt: skip
def test_a_value_that_is_refused(modules: None, run_cli: Cli, option: str, value: str) -> None:
    """The exit code is 2 and the option is named, whether the command or the worker refuses."""
    result = run_cli("worker", "made:worker", f"{option}={value}")
    assert (result.code, result.out) == (2, "")
    assert option in result.err.splitlines()[-1]


@pytest.mark.parametrize("option", ["--max-memory=1G", "--reload"])
def test_a_package_that_is_missing(
    run_cli: Cli, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    """The exit code is 2, with the package to install."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    result = run_cli("worker", "app:worker", option)
    assert result.code == 2
    assert "pip install 'penstock[" in result.err.splitlines()[-1]


def test_the_server_is_the_apps_choice(modules: None, run_cli: Cli) -> None:
    """The app gets --url as PENSTOCK_URL; a prefix can't be passed."""
    told = in_process_of_its_own("--url", "redis://here", "worker", "env:make")
    assert (told.code, told.err.splitlines()[0]) == (
        2, "penstock: env:make() failed: RuntimeError: redis://here",
    )  # fmt: skip
    result = run_cli("--prefix", "other", "worker", "made:worker")
    assert result.code == 2
    assert "--prefix" in result.err


def test_an_app_with_another_server(modules: None) -> None:
    """A worker warns if the app does not use the server of --url or PENSTOCK_URL."""
    with EmbeddedServer(tcp=True) as server:
        port = server.url.rpartition(":")[2].partition("/")[0]
        for url, warned in (
            (server.url, False),
            (f"redis://localhost:{port}/1", False),
            ("redis://127.0.0.1:1", True),
        ):
            told = in_process_of_its_own(
                "worker", "fixed:worker", "--burst", PENSTOCK_URL=url, FIXED_URL=server.url
            )
            assert told.code == 0, told.err
            text = f"fixed:worker uses 127.0.0.1:{port}, not 127.0.0.1:1"
            assert (text in told.err) is warned
            assert " uses " not in told.err.replace(text, "")


def test_the_memory_of_a_process_is_that_of_its_own_too() -> None:
    """Child processes count with it; an ended one has none."""
    large = "x = bytearray(100 << 20); print('there', flush=True); input()"
    small = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {large!r}])"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", small], stdin=pipe, stdout=pipe) as process:
        assert process.stdout
        assert process.stdout.readline() == b"there\n"
        held = resident([process.pid])
        assert held.keys() == {process.pid}
        assert 100 << 20 < held[process.pid] < 300 << 20
        process.communicate(b"\n")
        assert resident([process.pid]) == {process.pid: 0}


def test_queues_and_sizes() -> None:
    """Only digits after the last colon are a weight; sizes are powers of 1024."""
    assert parse_queues("emails,low") == ["emails", "low"]
    assert parse_queues("emails:8,low") == {"emails": 8, "low": 1}
    assert parse_queues("a:b,c:d:2") == {"a:b": 1, "c:d": 2}
    assert [parse_size(text) for text in ("100", "1k", "1.5K", "512M", "512MB", "2G")] == [
        100, 1 << 10, 1536, 512 << 20, 512 << 20, 2 << 30,
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text, durable",
    [
        ("2", Durable(2)),
        ("fsynced", Durable(fsynced=True)),
        ("2,fsynced,timeout=0.5", Durable(2, fsynced=True, timeout=0.5)),
    ],
)
def test_confirmations(text: str, durable: Durable) -> None:
    """They are a number of replicas, the disk, and a timeout, in this order."""
    made = PlainWorker("redis://127.0.0.1:1", "q", print)
    apply_options({"at_most_once": text}, made, "app:worker")
    assert made.options.at_most_once == durable


@pytest.mark.parametrize("text", ["", "two", "fsynced,2", "timeout=1", "2,timeout=0", "1001", "2,"])
def test_confirmations_that_are_refused(text: str, run_cli: Cli) -> None:
    """The message names the option, the value and the form."""
    refused = run_cli("worker", "app:worker", f"--at-most-once={text}")
    assert refused.code == 2
    assert f"argument --at-most-once: {text!r}: must be such as 2 or" in refused.err


def queues_of_running(health: str) -> list[str]:
    """Return the queues of the jobs that a worker runs, by its health port."""
    _, document = ask(health.replace("/health", "/status"))
    return [running["queue"] for running in document["running"]]


def test_one_process_is_this_one(worker: Worker, told: Told) -> None:
    """Without --processes it runs here: signals are the worker's, options override the app's."""
    told.do("options", "long", queue="emails")
    program = worker(
        *("--queues", "emails:8,low", "--concurrency", "3", "--prefetch", "4", "--grace", "0.5"),
        *("--max-jobs", "6", "--name", "mine", "--burst", "--health-port", "0"),
    )
    health = program.line(r"probes are answered at (http://\S+)")[1]
    number, pid, name = told.until("up")
    assert (number, pid, name) == ("-", program.process.pid, "mine")
    given = "concurrency=3, prefetch=4, grace=0.5, burst=True, max_jobs=6"
    first, *others = sorted((told.next()[3] for _ in range(3)), key=len)  # two threads tell them
    assert (first, others[0]) == ("long", "options")
    assert f"queues={{'emails': 8, 'low': 1}}, {given}" in others[1]
    status, document = ask(health.replace("/health", "/status"))
    assert (status, document["name"], document["healthy"]) == (200, "mine", True)
    wait_until(lambda: queues_of_running(health) == ["emails"], "the first of two jobs has ended")
    program.send(signal.SIGHUP)  # its terminal is closed
    told.until("heard")
    program.send(signal.SIGTERM)
    assert program.wait() == 0
    told.until("down")


def test_a_worker_of_coroutines(worker: Worker, told: Told, app: Path) -> None:
    """It runs in its own event loop, and ends as a threaded worker does."""
    app.write_text(
        APP
        + "from penstock import AsyncWorker\n"
        + "async def handle(job):\n    tell(job.body)\n"
        + "def make():\n    return AsyncWorker(URL, 'jobs', handle, name='async')\n"
    )
    program = worker("--processes", "1", "--max-jobs", "3", target="app:make")
    told.do("one", "two", "three")
    assert {told.next()[3] for _ in range(3)} == {"one", "two", "three"}
    program.line("process 1, pid [0-9]+, ended with 0: it is replaced")
    program.line(STARTED)
    told.do("four")
    told.until("four")
    program.send(signal.SIGTERM)
    assert program.wait() == 0


@pytest.mark.parametrize(
    "options, name", [((), "app"), (("--processes", "1", "--name", "web"), "web-1")]
)
def test_suspects_run_in_a_process_of_their_own(
    options: tuple[str, ...], name: str, worker: Worker, told: Told, server: EmbeddedServer
) -> None:
    """Isolation is the default, as the command knows how to import the app.

    The process has the worker's queues and logs in the same way.
    """
    with Penstock(server.url) as client:
        queue = client.queue("emails")
        queue.enqueue("suspect")
        queue.configure(lease=0.05)
        for _ in range(2):
            assert queue.reserve(block=5)
        wait_until(lambda: queue.stats().active == 0, "the second lease ends")
        queue.configure(lease=30)
    program = worker("--queues", "emails", *options)
    pid = program.line("process ([0-9]+) runs suspects apart from other jobs")[1]
    found = next(one for one in iter(told.next, None) if one[3] == "suspect")
    assert (str(found[1]), found[2]) == (pid, f"{name}-isolated")
    program.line(f"{name}-isolated takes jobs of emails")
    program.send(signal.SIGTERM)
    assert program.wait() == 0


@pytest.mark.slow
def test_jobs_that_could_not_be_given_back(
    worker: Worker, told: Told, server: EmbeddedServer, app: Path
) -> None:
    """If the server does not answer when the worker stops, the exit code is that of a failure.

    The lines after `run` run.
    """
    app.write_text(APP.replace('tell("down")', 'os.write(2, b"after\\n")'))
    program = worker("--grace", "0")
    told.until("up")
    told.do("long")
    told.until("long")
    server.pause()
    try:
        program.send(signal.SIGTERM)
        assert program.wait() == 1
    finally:
        server.resume()
    after, end = program.seen.partition("after\n")[1:]
    assert after
    assert "1 jobs were neither reported nor released" in end


@pytest.mark.slow
def test_health_of_several(worker: Worker, told: Told, tmp_path: Path, run_cli: Cli) -> None:
    """The supervisor is healthy if all processes are: over HTTP, and in the file,
    removed at the end.
    """
    file = tmp_path / "health"
    options = ("--processes", "2", "--health-port", "0", "--health-file", str(file))
    stale = "from penstock.worker import supervisor as s; s.STALE_REPORT_SECONDS = 3"
    program = worker(*options, before=stale)
    health = program.line(r"probes are answered at (http://\S+)")[1]
    wait_until(lambda: ask(health) == (200, {"healthy": True}), "all are well")
    _, document = ask(health.replace("/health", "/status"))
    assert document["pid"] == program.process.pid
    numbers = [(p["number"], p["worker"]["name"], p["starts"]) for p in document["processes"]]
    assert numbers == [(1, "app-1", 1), (2, "app-2", 1)]
    wait_until(lambda: run_cli("healthy", str(file)).code == 0, "the file says so too")
    frozen = document["processes"][0]["pid"]
    os.kill(frozen, signal.SIGSTOP)
    wait_until(lambda: ask(health)[0] == 503, "one does not report any more")
    os.kill(frozen, signal.SIGCONT)
    wait_until(lambda: ask(health)[0] == 200, "all are well again")
    told.do("ill")
    told.until("ill")
    wait_until(lambda: ask(health)[0] == 503, "one is not")
    wait_until(lambda: run_cli("healthy", str(file)).code == 1, "the file says so too")
    assert sum(p["healthy"] for p in json.loads(file.read_text())["processes"]) == 1
    program.send(signal.SIGTERM)
    assert program.wait() == 0
    assert not file.exists()
    result = run_cli("healthy", str(file), "--max-age", "3")
    assert (result.code, result.err) == (1, f"penstock: {file}: No such file or directory\n")


@pytest.mark.slow
def test_the_figures_of_several(
    worker: Worker, told: Told, server: EmbeddedServer, app: Path
) -> None:
    """A process answers, which knows the server and the prefix of the app; without one: 503."""
    app.write_text(APP.replace("Told(URL", "Told(Penstock(URL, prefix='own')"))
    with Penstock(server.url, prefix="own") as client:
        client.queue("jobs").enqueue_many(["long"] * 5)
        client.queue("other").enqueue(1)
        wrong = "import os; os.environ['PENSTOCK_URL'] = 'redis://127.0.0.1:1'"
        program = worker("--processes", "2", "--health-port", "0", before=wrong)
        health = program.line(r"probes are answered at (http://\S+)")[1]
        of_queue = health.replace("health", "queues/jobs.json")
        code, document = ask(of_queue)
        if code != 200:
            assert (code, list(document)) == (503, ["error"])
        wait_until(lambda: ask(of_queue)[0] == 200, "a process answers")
        assert ask(of_queue)[1]["backlog"] == 5
        assert ask(of_queue.replace("jobs", "other"))[0] == 404
        with urlopen(health.replace("health", "metrics")) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            assert 'penstock_queue_jobs{queue="jobs",state="active"}' in answer.read().decode()
        program.send(signal.SIGTERM)
        program.wait()


def test_the_page_about_running(
    worker: Worker, server: EmbeddedServer, app: Path, run_cli: Cli
) -> None:
    """The page's app runs unchanged, and the table of deploy.md has every option of the command."""
    text = PAGE.read_text(encoding="utf-8")
    found = re.search(r"^```python\n(# app.py\n.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    assert found
    app.write_text(found[1].replace("redis://localhost:6379/0", server.url))
    with Penstock(server.url) as client:
        client.queue("emails").enqueue(["Ada"], headers={"handler": "welcome"})
        assert worker("--burst").wait() == 0
        assert client.queue("emails").stats().acked == 1
    options = set(
        re.findall(r"^  (--[a-z-]+)", run_cli("worker", "--help").out, flags=re.MULTILINE)
    )
    table = PAGE.with_name("deploy.md").read_text(encoding="utf-8")
    assert options == set(re.findall(r"^\| `(--[a-z-]+)", table, flags=re.MULTILINE))


def test_lines_of_log() -> None:
    """A line has time, process, level, logger, message and extra fields; a traceback follows."""
    record = logging.makeLogRecord(
        {
            "created": 1.5, "process": 7, "levelname": "INFO", "name": "penstock.worker",
            "msg": "two\n%s", "args": ("lines",), "queue": "a b", "job": "D-1", "none": "",
        }
    )  # fmt: skip
    line = (
        "1970-01-01T00:00:01.500Z 7 INFO penstock.worker: two\\nlines queue='a b' job=D-1 none=''"
    )
    assert LogFormatter().format(record) == line
    try:
        raise ValueError("x")
    except ValueError:
        record.exc_info = sys.exc_info()
    first, *trace = LogFormatter().format(record).splitlines()
    assert (first, trace[-1]) == (line, "  ValueError: x")


@given(HOSTILE, HOSTILE)
def test_hostile_text_in_lines_of_log(text: str, value: str) -> None:
    """A record of any logger stays one harmless line, and traceback lines are indented."""
    record = logging.makeLogRecord({"msg": "%s", "args": (text,), "queue": value})
    try:
        raise ValueError(text)
    except ValueError:
        record.exc_info = sys.exc_info()
    first, *trace = LogFormatter().format(record).split("\n")
    assert is_harmless(first)
    assert all(is_harmless(line) and line.startswith("  ") for line in trace)


def test_the_log_of_an_app_stays_its_own(worker: Worker, told: Told, app: Path) -> None:
    """Logging set up by the app is kept; --log-level decides what is shown."""
    app.write_text(
        APP
        + "import logging, sys\n"
        + "logging.basicConfig(format='own %(levelname)s %(message)s', level='ERROR')\n"
        + "worker.healthy = lambda: logging.getLogger('x').debug('asked') or True\n"
    )
    program = worker("--log-level", "debug", "--health-port", "0")
    health = program.line(r"own INFO probes are answered at (http://\S+)")[1]
    assert ask(health)[0] == 200
    program.line("own DEBUG asked")
