"""Supervisor: several processes of one app that die, grow, stop, and are replaced."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import Penstock
from penstock.embedded import EmbeddedServer
from penstock.worker import supervisor as module
from penstock.worker.children import Child
from penstock.worker.supervisor import ChildSlot
from tests.worker.programs import APP, STARTED, Program, Told, ask, ended, wait_until

Worker = Callable[..., Program]

DIES = """
import os
class Dies(Worker):
    def run(self):
        os._exit(3)
dies = Dies(URL, "jobs", handle)
"""


def test_each_process_has_a_number_and_a_name(worker: Worker, told: Told) -> None:
    """Processes are numbered from 1, and the worker's name ends with the number; SIGTERM ends all
    with 0.
    """
    program = worker("--processes", "2")
    seen = [told.next() for _ in range(2)]
    assert sorted((number, name) for number, _, name, _ in seen) == [("1", "app-1"), ("2", "app-2")]
    program.send(signal.SIGTERM)
    assert program.wait() == 0
    assert {told.next()[3], told.next()[3]} == {"down"}


def test_a_killed_process_is_replaced(worker: Worker, told: Told) -> None:
    """A killed process is replaced by one with its number; the other one continues."""
    program = worker("--processes", "2")
    pids = {number: pid for number, pid, *_ in (told.next(), told.next())}
    os.kill(pids["1"], signal.SIGKILL)
    program.line("process 1, pid [0-9]+, was ended by SIGKILL.*: it is replaced")
    number, pid, name = told.until("up")
    assert (number, name) == ("1", "app-1")
    assert pid != pids["1"]
    told.do("one", "two")
    assert {told.next()[3], told.next()[3]} == {"one", "two"}
    assert {child.pid for child in program.children()} == {pid, pids["2"]}


@pytest.mark.slow
def test_a_process_that_keeps_dying_is_replaced_with_growing_delays(
    worker: Worker, app: Path
) -> None:
    """Replacement is delayed by 0.1 s, doubled each time; SIGTERM does not wait for that."""
    app.write_text(APP + DIES)
    program = worker("--processes", "1", target="app:dies")
    for pause in ("0.1", "0.2", "0.4"):
        program.line(f"process 1, pid [0-9]+, ended with 3, .* it is replaced in {pause} s")
    program.send(signal.SIGTERM)
    assert program.wait() == 0


def test_pauses_double_up_to_a_bound() -> None:
    """Delays are at most 30 s for any number of failures; one long life resets them."""
    slot = ChildSlot(1)
    assert [round(slot.next_pause(), 1) for _ in range(10)] == [
        0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30,
    ]  # fmt: skip
    slot.early = 10_000
    assert slot.next_pause() == module.LONGEST_START_PAUSE
    slot.renew()
    assert round(slot.next_pause(), 1) == 0.1


@pytest.mark.slow
def test_a_second_signal_is_forwarded(worker: Worker, told: Told) -> None:
    """A second SIGTERM ends waiting processes at once.

    Ctrl-C reaches all processes of a terminal and counts as one first signal: it interrupts no job.
    """
    program = worker("--processes", "2")
    told.until("up"), told.until("up")
    told.do("long", "long")
    told.until("long"), told.until("long")
    os.killpg(program.process.pid, signal.SIGINT)
    told.until("heard"), told.until("heard")
    program.send(signal.SIGTERM)
    program.line("SIGTERM: stopping")
    assert program.wait() == 0
    told.until("down"), told.until("down")


@pytest.mark.slow
def test_a_process_that_does_not_stop_is_killed(worker: Worker, told: Told) -> None:
    """A process that outlasts its grace is killed; the exit code shows it."""
    before = "from penstock.worker import children; children.CHILD_END_SECONDS = 0.5"
    program = worker("--processes", "2", "--grace", "0.5", before=before)
    told.until("up"), told.until("up")
    told.do("deaf")
    number, pid, _ = told.until("deaf")
    program.send(signal.SIGTERM)
    program.line(f"process {number}, pid {pid}, does not stop: killed")
    assert program.wait() == 1


@pytest.mark.slow
def test_burst_ends_when_all_have(worker: Worker, told: Told) -> None:
    """In burst mode a process that ends with 0 is not replaced; one that dies is.

    The job of the one that died runs again.
    """
    told.do("long once", *(["short"] * 20))
    program = worker("--processes", "2", "--burst")
    number, pid, _ = told.until("long once")
    other = next(found for found in iter(told.next, None) if found[3] == "down")
    assert other[0] != number
    program.line(f"process {other[0]}, pid {other[1]}, ended with 0: nothing is left to do")
    os.kill(pid, signal.SIGKILL)
    assert program.wait() == 0
    assert told.until("up")[0] == number
    assert told.until("long once")[0] == number
    assert len([line for line in program.seen.splitlines() if "has started" in line]) == 3


@pytest.mark.slow
def test_processes_end_with_their_queues(
    worker: Worker, told: Told, server: EmbeddedServer
) -> None:
    """A process whose queues are closed and drained is not replaced."""
    program = worker("--processes", "2")
    told.until("up"), told.until("up")
    told.do(*(["short"] * 5))
    told.until("short")
    with Penstock(server.url) as client:
        client.queue("jobs").close()
        program.line("ended with 81: nothing is left to do")
        assert program.wait() == 0
        assert client.queue("jobs").stats().acked == 5


@pytest.mark.slow
def test_a_process_that_has_done_its_jobs_is_replaced(worker: Worker, told: Told) -> None:
    """With --max-jobs 1 a process that did its jobs is replaced at once until all are done."""
    told.do(*(f"job-{n}" for n in range(4)))
    worker("--processes", "1", "--max-jobs", "1")
    pids = {told.until(f"job-{n}")[1] for n in range(4)}
    assert len(pids) == 4


@pytest.mark.slow
def test_a_process_that_has_grown_is_replaced(worker: Worker, told: Told) -> None:
    """A process that has grown is replaced by one with its number, even without --processes."""
    program = worker("--max-memory", "200M")
    pid = told.until("up")[1]
    told.do("grow", "small")
    program.line(rf"process 1, pid {pid}, holds [2-9]\d\d MiB, more than 200: recycled")
    assert told.until("down")[1] == pid
    assert told.until("up")[1] != pid


@pytest.mark.slow
def test_sighup_replaces_one_after_the_other(worker: Worker, told: Told, app: Path) -> None:
    """SIGHUP replaces one process after the other with the current code, if it can be loaded.

    The supervisor is healthy all the time.
    """
    program = worker("--processes", "2", "--health-port", "0")
    health = program.line(r"probes are answered at (\S+)")[1]
    old = {told.until("up")[1], told.until("up")[1]}
    wait_until(lambda: ask(health)[0] == 200, "all are well")
    app.write_text("import nosuch")
    program.send(signal.SIGHUP)
    program.line("app can't be imported: ModuleNotFoundError: No module named 'nosuch'")
    program.line(r"the app can't be loaded \(ended with 2\): everything stays as it is")
    assert {child.pid for child in program.children()} == old
    app.write_text(APP.replace('tell("up")', 'tell("new")'))
    program.send(signal.SIGHUP)
    order = []
    for _ in range(4):
        order.append(told.next()[3::-3])
        assert ask(health)[0] == 200  # an intended replacement is healthy
    assert sorted(order) == [("down", "1"), ("down", "2"), ("new", "1"), ("new", "2")]
    assert order.index(("down", "1")) < order.index(("down", "2"))
    program.line("process 2 has started")
    started = [int(pid) for _, pid in re.findall(STARTED, program.seen)]
    assert set(started[:2]) == old
    assert {child.pid for child in program.children()} == set(started[2:])
    one, two = program.seen.index("process 1, pid"), program.seen.index("process 2, pid")
    assert one < program.seen.index(f"process 1 has started, pid {started[2]}") < two


BLOCKS = """
import os, time
if os.environ.get("PENSTOCK_PROCESS", "0") == "0":
    assert not os.path.exists("broken"), "broken"
while os.environ.get("PENSTOCK_PROCESS", "0") != "0" and os.path.exists("wait"):
    time.sleep(0.01)
"""


@pytest.mark.slow
def test_a_failed_sighup_leaves_the_one_before_under_way(
    worker: Worker, told: Told, app: Path
) -> None:
    """Replacing goes on if a second SIGHUP finds an app that can't be loaded."""
    program = worker("--processes", "2")
    told.until("up"), told.until("up")
    (app.parent / "wait").touch()
    app.write_text(BLOCKS + APP.replace('tell("up")', 'tell("new")'))
    program.send(signal.SIGHUP)
    program.line("process 1 has started")
    program.line("process 1 has started")
    (app.parent / "broken").touch()
    program.send(signal.SIGHUP)
    program.line("everything stays as it is")
    (app.parent / "wait").unlink()
    assert {told.until("new")[0], told.until("new")[0]} == {"1", "2"}


@pytest.mark.slow
def test_a_killed_supervisor_leaves_no_processes(worker: Worker, told: Told, app: Path) -> None:
    """When the supervisor is killed its processes stop; one that hangs kills itself
    after its grace.
    """
    short = "from penstock.worker import children; children.CHILD_END_SECONDS = 0.5\n"
    app.write_text(short + APP)
    program = worker("--processes", "2", "--grace", "0.5")
    told.until("up"), told.until("up")
    told.do("deaf")
    told.until("deaf")
    children = program.children()
    assert len(children) == 2
    program.send(signal.SIGKILL)
    assert {told.until("down")[0], told.until("down")[0]} == {"1", "2"}
    wait_until(lambda: all(map(ended, children)), "they have ended")


def test_a_broken_app_ends_the_supervisor(worker: Worker, app: Path) -> None:
    """A broken app ends the supervisor with 2 after one attempt; the reason is printed once."""
    app.write_text("import nosuch")
    program = worker("--processes", "3")
    assert program.wait() == 2
    assert program.seen.count("app can't be imported: ModuleNotFoundError") == 1
    assert "has started" not in program.seen


@pytest.mark.slow
def test_reload(worker: Worker, told: Told, app: Path) -> None:
    """A change replaces the process if the app can be imported; if not, also at the start, it waits
    for the next change.

    SIGHUP ends all, as the terminal was closed.
    """
    app.write_text("import nosuch")
    program = worker("--reload")

    def change(text: str, awaited: str) -> None:
        # No output tells when the watch begins, so the first change may need a repetition.
        app.write_text(text)
        while not program.has_more(3):
            app.write_text(text)
        program.line(awaited)

    program.line("waiting for a change")
    change(APP, STARTED)
    pid = told.until("up")[1]
    change("import nosuch", "everything stays as it is")
    told.do("still")
    assert told.until("still")[1] == pid
    change(APP.replace('tell("up")', 'tell("new")'), "it is replaced")
    assert told.until("new")[1] != pid
    program.send(signal.SIGHUP)
    assert program.wait() == 0


def test_a_closed_terminal_counts_once(caplog: pytest.LogCaptureFixture) -> None:
    """A shell sends SIGHUP to its jobs, and the kernel sends it again: no job is interrupted."""
    caplog.set_level("INFO", module.__name__)
    supervisor = module.Supervisor(lambda _: [sys.executable], 1, development=True)
    for number in (signal.SIGHUP, signal.SIGHUP, signal.SIGTERM):
        supervisor._on_signal(number)
    first, second = [message.partition(";")[0] for message in caplog.messages]
    assert (first, second) == ("SIGHUP: stopping", "SIGTERM: stopping")


def test_a_signal_before_the_app_is_loaded(worker: Worker, app: Path) -> None:
    """A signal while the app loads ends the supervisor with 0 at once."""
    app.write_text(
        "import sys, time; print('loading', file=sys.stderr, flush=True); time.sleep(99)"
    )
    program = worker("--processes", "2")
    program.line("loading")
    children = program.children()
    program.send(signal.SIGTERM)
    assert program.wait() == 0
    assert all(map(ended, children))


def test_a_report_is_heard_although_its_process_has_ended() -> None:
    """An error leaves the options as they were; a report that is cut off is ignored."""
    good = '{"options": {"grace": 3, "burst": true}, "healthy": true}'
    text = "\n".join([good, '{"healthy": false, "error": "x"}', good[:20]])
    write = "import os, sys; os.write(int(os.environ['PENSTOCK_LINE']), sys.argv[1].encode())"
    child = Child([sys.executable, "-c", f"{write}; sys.exit(7)", text], 1)
    wait_until(lambda: child.code is not None, "it has ended")
    child.close()
    assert (child.code, child.options) == (7, {"grace": 3, "burst": True})
    assert child.status == {"healthy": False, "error": "x"}
