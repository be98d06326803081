"""Instructions that the server executes for a job, counted by valgrind: the same in each run.

Times vary by a tenth from run to run; these counts by less than a hundredth, on a busy machine
too. They leave out the kernel, which sends and receives.
"""

from __future__ import annotations

import contextlib
import csv
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path

from benchmarks.bed import Bed, Refused
from benchmarks.contenders import Jobs, KeptJobs, Lists, Streams
from benchmarks.cost import STEPS, steps, stock
from benchmarks.figures import Budget, Table
from benchmarks.plan import BODY, Plan
from penstock.embedded import EmbeddedServer, ServerBinary, find_server

__all__ = ["HISTORY", "instructions", "is_there", "record"]

HISTORY = Path(__file__).parent / "history.csv"
"""One line for each measured commit; `--record` adds one."""
CALLS = {1: 600, 10: 120, 100: 100}
"""Calls of each step, by the jobs of a call; the garbage collector of Lua works in some of them."""
KEPT_BUDGET = 1.86
"""The most that the whole life of jobs with results may cost, x Streams."""
STANDING = 300
QUIET = ("--hz", "1", "--activerehashing", "no", "--dynamic-hz", "no")
"""The least work that a server does by itself, as much as its speed under valgrind decides."""
RISE = 1.02
"""The most that a count may be above the one that was recorded last."""


def is_there() -> bool:
    """Tell if valgrind is installed."""
    return shutil.which("callgrind_control") is not None


def instructions(_bed: Bed, _plan: Plan) -> Table:
    """Count the instructions of each step, and of the base on the same server."""
    if not is_there():
        raise Refused("the section instructions needs valgrind: apt-get install valgrind")
    table = Table(
        "instructions",
        "Instructions of the server per job",
        ("step", "base", "base instructions/job", "penstock instructions/job", "x base"),
        f"{len(BODY)}-byte bodies, {STANDING} jobs wait; counted by callgrind in user space.",
    )
    with _counted_server() as (bed, counted):
        base: dict[str, float] = {}
        before, lists = _last_record(), Lists(bed.redis, bed.key("list"))

        def push() -> None:
            for _ in range(CALLS[1]):
                lists.add()

        pushed = counted(push) / CALLS[1]
        for n, calls in CALLS.items():
            base = _costs(counted, Streams(bed.redis, bed.key(f"stream:{n}")), n, calls)
            ours = _costs(counted, Jobs(bed.client, f"queue {n}"), n, calls)
            for step in STEPS:
                name, count = f"{step} by {n}", round(ours[step])
                budget = _rise(name, count, before)
                table.add(name, "Streams", base[step], count, count / base[step], budget=budget)
            if n == 1:
                table.add("add by 1", "LPUSH", pushed, ours["add"], ours["add"] / pushed)
        contender = KeptJobs(bed.client, "kept")
        _add_results(table, base, _costs(counted, contender, n, calls), before)
    return table


def _add_results(
    table: Table, base: dict[str, float], kept: dict[str, float], before: dict[str, str]
) -> None:
    """Add the rows of jobs whose results are kept."""
    name, count = "ack, results by 100", round(kept["ack"])
    budget = _rise(name, count, before)
    table.add(name, "Streams", base["ack"], count, count / base["ack"], budget=budget)
    whole, ours = sum(base.values()), round(sum(kept.values()))
    budget = Budget("instructions of a life with a result, x Streams", ours / whole, KEPT_BUDGET)
    table.add("life, results by 100", "Streams", whole, ours, ours / whole, budget=budget)


def _rise(name: str, count: int, before: dict[str, str]) -> Budget | None:
    """Return the bound of a count that was recorded before."""
    if not before.get(name):
        return None
    return Budget(f"instructions of {name}, x the last record", count / int(before[name]), RISE)


def _server() -> str:
    """Return the server with its version."""
    binary = find_server()
    return f"{binary.product()} {binary.version()}"


def _costs(
    counted: Callable[[Callable[[], object]], int], contender: Streams | Jobs, n: int, calls: int
) -> dict[str, float]:
    """Return the instructions of each step, per job."""
    stock(contender, STANDING)
    for work in steps(contender, n, n * 3, []):  # loads scripts and fills caches
        work()
    found = steps(contender, n, n * calls, [])
    return {step: counted(work) / n / calls for step, work in zip(STEPS, found, strict=True)}


@contextlib.contextmanager
def _counted_server() -> Iterator[tuple[Bed, Callable[[Callable[[], object]], int]]]:
    """Start a server under valgrind; yield it, and what counts its instructions for some work."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "counts")
        wrapper = Path(folder, "server")
        wrapper.write_text(
            "#!/bin/sh\nexec valgrind -q --tool=callgrind"
            f' --callgrind-out-file={out} {shlex.quote(str(find_server().path))} "$@"\n'
        )
        wrapper.chmod(0o755)
        with EmbeddedServer(ServerBinary("callgrind", wrapper), tcp=True, args=QUIET) as server:
            bed = Bed(server.url, server.pid, "loopback TCP, under valgrind")
            counts = _Counts(server.pid, out)
            try:
                yield bed, counts
            finally:
                bed.client.close()
                bed.redis.close()


class _Counts:
    """Counts the instructions of a process under callgrind."""

    def __init__(self, pid: int, out: Path) -> None:
        self._pid, self._out, self._dumps = pid, out, 0

    def __call__(self, work: Callable[[], object]) -> int:
        self._control("--zero")
        work()
        self._control("--dump")
        self._dumps += 1
        lines = Path(f"{self._out}.{self._dumps}").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("totals:"))

    def _control(self, option: str) -> None:
        command = ["callgrind_control", option, str(self._pid)]
        subprocess.run(command, check=True, capture_output=True, timeout=60)


# -- history -----------------------------------------------------------------------------------


def record(table: Table, commit: str) -> None:
    """Append the counts of penstock to the history, as those of a commit."""
    rows = [row.cells for row in table.rows]
    counts = {str(cells[0]): cells[3] for cells in rows if cells[1] == "Streams"}
    today = datetime.now(tz=timezone.utc).date().isoformat()
    line = {"date": today, "commit": commit, "server": _server(), **counts}
    is_new = not HISTORY.exists()
    with HISTORY.open("a", newline="") as file:
        writer = csv.DictWriter(file, list(line), lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerow(line)


def _last_record() -> dict[str, str]:
    """Return the newest line of the history with this server."""
    if not HISTORY.exists():
        return {}
    with HISTORY.open(newline="") as file:
        lines = [line for line in csv.DictReader(file) if line["server"] == _server()]
    return lines[-1] if lines else {}
