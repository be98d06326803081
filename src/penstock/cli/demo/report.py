"""What came of a run of the demo: checked against the directory, and told."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from penstock.cli import output
from penstock.cli.demo.files import Listing, digest, path_of, stamp

__all__ = ["DemoReport", "DemoVerdict", "Kill", "Memory", "check", "percentile", "print_report"]

KEPT_KEYS = 4 << 10
"""Bytes by which the keys may have grown: those of a few more producers."""
KEPT_SERVER = 256 << 10
"""Bytes by which a server of our own may have: buffers of clients, scripts."""
SHOWN = 20


@dataclass(frozen=True)
class DemoVerdict:
    """What the results lack; everything is empty when nothing does.

    Attributes:
        missing: files without a result.
        wrong: files whose result is not what the file holds.
        unreadable: files that no worker could read; they were worked on all the same.
    """

    missing: list[str]
    wrong: list[str]
    unreadable: list[str]

    @property
    def fine(self) -> bool:
        """True if each file has its result."""
        return not self.missing and not self.wrong


def check(root: Path, listing: Listing, results: Mapping[str, Mapping[str, Any]]) -> DemoVerdict:
    """Hold the results against the directory, which is read once more.

    Args:
        root: the directory.
        listing: its files, as they were before the run.
        results: name of a file -> the first result for it.
    """
    unreadable = [name for name in listing if "error" in results.get(name, ())]
    judged = [name for name in listing if name in results and name not in set(unreadable)]
    return DemoVerdict(
        missing=[name for name in listing if name not in results],
        wrong=[name for name in judged if not _matches(root, listing[name], name, results[name])],
        unreadable=unreadable,
    )


def _matches(root: Path, then: tuple[int, int], name: str, result: Mapping[str, Any]) -> bool:
    """Whether a result is true; of a file that changed since it was listed nothing can be said."""
    path = path_of(root, name)
    try:
        found = digest(path)
        if stamp(path) != then:
            return True
    except OSError:
        return True
    told = (result.get("size"), result.get("lines"), result.get("sha256"))
    return told == (found.size, found.lines, found.sha256)


@dataclass(frozen=True)
class Kill:
    """The worker that was killed.

    Attributes:
        worker: its name.
        pid: its process.
        held: how many jobs it had under a lease.
    """

    worker: str
    pid: int
    held: int


@dataclass(frozen=True)
class Memory:
    """Bytes in use at one moment.

    Attributes:
        server: by the server, with all its clients.
        keys: by the keys of the run.
    """

    server: int
    keys: int


@dataclass(frozen=True)
class DemoReport:
    """A run of the demo.

    Attributes:
        server: product and version.
        own_server: whether it was started for the run.
        path: the directory.
        files: how many there were.
        acked: how many jobs were acknowledged.
        redelivered: how many were delivered more than once.
        verdict: what the directory says.
        seconds: from the first enqueue to the last acknowledgement.
        rate: jobs a second, without the wait for the lease of the killed worker.
        recovered: seconds from the kill to the last redelivered result; None = nothing was.
        pickup: ms from before an enqueue to the first line of the handler, of idle workers.
        before, full, after: memory before the run, with all jobs waiting, and after it.
        workers: how many there were.
        pace: seconds that each job was made longer.
        kill: the worker that was killed; None = no worker had a job at that moment.
    """

    server: str
    own_server: bool
    path: Path
    files: int
    acked: int
    redelivered: int
    verdict: DemoVerdict
    seconds: float
    rate: float
    recovered: float | None
    before: Memory
    full: Memory
    after: Memory
    workers: int
    pace: float
    kill: Kill | None
    pickup: Sequence[float] = field(repr=False)

    @property
    def came_back(self) -> bool:
        """Whether the memory did; of a server that others use too only our keys can tell."""
        server = self.after.server - self.before.server <= KEPT_SERVER or not self.own_server
        return server and self.after.keys - self.before.keys <= KEPT_KEYS

    @property
    def ok(self) -> bool:
        """Every file has its result, and the memory came back."""
        return self.verdict.fine and self.came_back

    def document(self) -> dict[str, Any]:
        """As JSON shows it."""
        kill = self.kill
        return {
            "ok": self.ok,
            "server": self.server,
            "own_server": self.own_server,
            "path": str(self.path),
            "workers": self.workers,
            "files": self.files,
            "acked": self.acked,
            "redelivered": self.redelivered,
            "lost": len(self.verdict.missing),
            "missing": self.verdict.missing[:SHOWN],
            "wrong": self.verdict.wrong[:SHOWN],
            "unreadable": self.verdict.unreadable[:SHOWN],
            "killed": kill and {"worker": kill.worker, "pid": kill.pid, "held": kill.held},
            "seconds": round(self.seconds, 3),
            "recovered_after": None if self.recovered is None else round(self.recovered, 3),
            "jobs_per_second": round(self.rate, 1),
            "pace": self.pace,
            "pickup_ms": {
                "p50": round(percentile(self.pickup, 50), 3),
                "p99": round(percentile(self.pickup, 99), 3),
                "samples": len(self.pickup),
            },
            "memory": {
                "before": asdict(self.before),
                "full": asdict(self.full),
                "after": asdict(self.after),
                "came_back": self.came_back,
            },
        }


def percentile(values: Sequence[float], percent: int) -> float:
    """The value below which so many percent of the others lie."""
    if len(values) < 2:
        return values[0] if values else 0.0
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def print_report(report: DemoReport) -> None:
    """The table at the end, and what is to be said about it."""
    kill, verdict = report.kill, report.verdict
    held = f"{kill.worker} held {kill.held} when it was killed" if kill else "no worker was killed"
    late = "" if report.recovered is None else f", all done {report.recovered:.1f} s later"
    slowed = f", each made {report.pace * 1000:.0f} ms longer to be seen" if report.pace else ""
    back = "came back" if report.came_back else "did not come back"
    rows = [
        ("files", report.files, str(report.path)),
        ("jobs acked", report.acked, f"by {report.workers} workers on {report.server}"),
        ("redelivered after the kill", report.redelivered, held + late),
        ("lost", len(verdict.missing), "checked against the directory"),
        ("jobs/s", f"{report.rate:.0f}", f"in {report.seconds:.1f} s{slowed}"),
        ("pick-up latency p50", f"{percentile(report.pickup, 50):.2f} ms", "enqueue to handler"),
        ("pick-up latency p99", f"{percentile(report.pickup, 99):.2f} ms", "by idle workers"),
        ("Redis memory before", output.size(report.before.server), _keys(report.before)),
        ("with all jobs waiting", output.size(report.full.server), _keys(report.full)),
        ("after", output.size(report.after.server), f"{_keys(report.after)}: {back}"),
    ]
    output.table(("", "result", ""), rows, right="result")
    for kind in ("missing", "wrong", "unreadable"):
        names = getattr(verdict, kind)
        if names:
            more = ", ..." if len(names) > SHOWN else ""
            output.write(f"{kind} ({len(names)}): {', '.join(names[:SHOWN])}{more}")


def _keys(memory: Memory) -> str:
    return f"the queue's keys {output.size(memory.keys)}"
