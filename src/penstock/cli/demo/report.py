"""The report of a run of the demo, and the comparison of its results with the directory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from penstock.cli import output
from penstock.cli.demo.files import Listing, digest, path_of, stamp
from penstock.worker.statistics import Summary

__all__ = ["DemoReport", "DemoVerdict", "Kill", "Memory", "check", "print_report"]

MAX_KEPT_KEYS = 2
"""Keys that may be left: the wake lists of the two queues."""
MAX_KEPT_BYTES = 4 << 10
"""Bytes by which the keys may have grown, such as those of a few more producers."""
LISTED_FILES = 20


class DemoVerdict(NamedTuple):
    """The names of files whose results are not as they should be.

    Attributes:
        missing: files without a result.
        wrong: files whose result differs from the file.
        unreadable: files that no worker could read; this is no failure.
    """

    missing: list[str]
    wrong: list[str]
    unreadable: list[str]


def check(root: Path, listing: Listing, results: Mapping[str, Mapping[str, Any]]) -> DemoVerdict:
    """Compare the results with the directory, which is read once more.

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
    """Compare a result with its file. If the file changed since the listing, return True."""
    path = path_of(root, name)
    try:
        found = digest(path)
        if stamp(path) != then:
            return True
    except OSError:
        return True
    return found.items() <= result.items()


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
    """Memory in use at one moment.

    Attributes:
        keys: number of keys of the run's two queues.
        key_bytes: bytes in these keys.
        server_bytes: bytes in use by the server, with its scripts and the buffers of clients.
    """

    keys: int
    key_bytes: int
    server_bytes: int


@dataclass(frozen=True)
class DemoReport:
    """A run of the demo.

    Attributes:
        server: product and version.
        path: the directory.
        workers: how many there were.
        files: how many there were.
        acked: how many jobs were acknowledged.
        redelivered: how many were delivered more than once.
        verdict: the result of the comparison with the directory.
        killed: the worker that was killed; None = it had ended by itself.
        seconds: from the first enqueue to the last acknowledgement.
        recovered_after: seconds from the kill to the last redelivered result; None = none.
        jobs_per_second: without the wait for the lease of the killed worker.
        pace: seconds by which each job was made longer.
        pickup: ms from before an enqueue to the first line of the handler, of idle workers.
        memory: "before" the run, "full" with all jobs waiting, and "after" it.
    """

    server: str
    path: str
    workers: int
    files: int
    acked: int
    redelivered: int
    verdict: DemoVerdict
    killed: Kill | None
    seconds: float
    recovered_after: float | None
    jobs_per_second: float
    pace: float
    pickup: Summary
    memory: Mapping[Literal["before", "full", "after"], Memory]

    @property
    def came_back(self) -> bool:
        """True if the jobs have left no keys and no bytes in keys."""
        before, after = self.memory["before"], self.memory["after"]
        return (
            after.keys - before.keys <= MAX_KEPT_KEYS
            and after.key_bytes - before.key_bytes <= MAX_KEPT_BYTES
        )

    @property
    def ok(self) -> bool:
        """True if a worker was killed, each file has its result, and the memory came back."""
        complete = not self.verdict.missing and not self.verdict.wrong
        return self.killed is not None and complete and self.came_back

    def document(self) -> dict[str, Any]:
        """Return the report for JSON."""
        found = asdict(self)
        del found["verdict"], found["pickup"]
        names = {kind: some[:LISTED_FILES] for kind, some in self.verdict._asdict().items()}
        p50, p99 = round(self.pickup.p50, 3), round(self.pickup.p99, 3)
        return {
            "ok": self.ok,
            **found,
            "lost": len(self.verdict.missing),
            **names,
            "pickup_ms": {"p50": p50, "p99": p99, "samples": self.pickup.count},
            "memory": {**found["memory"], "came_back": self.came_back},
        }


def print_report(report: DemoReport) -> None:
    """Print the table at the end of a run, and the files that have no true result."""
    kill, memory = report.killed, report.memory
    held = f"{kill.worker} was killed with {kill.held}" if kill else "no worker was killed"
    late = report.recovered_after
    slowed = f", each made {report.pace * 1000:.0f} ms longer to be seen" if report.pace else ""
    back = "came back" if report.came_back else "did not come back"
    rows = [
        ("files", report.files, report.path),
        ("jobs acked", report.acked, f"by {report.workers} workers on {report.server}"),
        (
            "redelivered",
            report.redelivered,
            held if late is None else f"{held}, done {late:.1f} s later",
        ),
        ("lost", len(report.verdict.missing), "checked against the directory"),
        ("jobs/s", f"{report.jobs_per_second:.0f}", f"without the wait for a lease{slowed}"),
        ("seconds", f"{report.seconds:.1f}", "with the wait for the lease of that worker"),
        ("pick-up latency p50", f"{report.pickup.p50:.2f} ms", "enqueue to handler"),
        ("pick-up latency p99", f"{report.pickup.p99:.2f} ms", "by idle workers"),
        ("memory before", *_memory(memory["before"])),
        ("with all jobs waiting", *_memory(memory["full"])),
        ("after", *_memory(memory["after"], f": {back}")),
    ]
    output.table(("", "result", ""), rows, right="result")
    for kind, names in report.verdict._asdict().items():
        if names:
            more = ", ..." if len(names) > LISTED_FILES else ""
            output.write(f"{kind} ({len(names)}): {', '.join(names[:LISTED_FILES])}{more}")


def _memory(used: Memory, end: str = "") -> tuple[str, str]:
    server = output.size(used.server_bytes)
    return output.size(used.key_bytes), f"in {used.keys} keys{end}; server: {server}"
