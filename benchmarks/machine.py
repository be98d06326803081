"""The machine: its size, its load, and the assignment of cores."""

from __future__ import annotations

import contextlib
import os
import platform
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import hiredis
import redis

__all__ = ["Noise", "describe", "load_average", "memory_bytes", "pinned", "share_cores"]


QUIET = 0.2
"""Cores used by other programs, above which absolute figures are unreliable."""


def cores(pid: int = 0) -> list[int]:
    """Return the cores that a process, or this one, may use; empty if unknown."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(pid))
    return []


def share_cores(pids: Sequence[int], server_pid: int | None) -> None:
    """Let our servers use the cores of the driver and of the pinned server."""
    both = {*cores(), *(cores(server_pid) if server_pid is not None else ())}
    if both:
        for pid in pids:
            os.sched_setaffinity(pid, both)


def memory_bytes() -> int | None:
    """Return the physical memory, if known."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def load_average() -> str:
    """Return the load of the last 1, 5 and 15 minutes."""
    try:
        return " ".join(f"{load:.2f}" for load in os.getloadavg())
    except (AttributeError, OSError):
        return "unknown"


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def describe(server: dict[str, Any], *, placement: str, transport: str) -> dict[str, str]:
    """Return the machine and the versions for the report.

    Args:
        server: the fields of INFO server.
        placement: which core is whose.
        transport: how the server is reached.
    """
    memory = memory_bytes()
    name = "Valkey" if "valkey_version" in server else "Redis"
    version = server.get("valkey_version") or server.get("redis_version", "unknown")
    size = f"{memory / 2**30:.1f} GiB" if memory else "memory unknown"
    return {
        "machine": f"{os.cpu_count()} cores ({_processor()}), {size}, {platform.system()}",
        "server": f"{name} {version}, {transport}",
        "client": f"Python {platform.python_version()}, redis-py {redis.__version__},"
        f" hiredis {hiredis.__version__}",
        "cores": placement,
    }


@contextlib.contextmanager
def pinned(server_pid: int | None) -> Iterator[str]:
    """Pin the server to one core and this process to another during the block.

    A round trip costs less when both share a core, and unpinned figures jump between the two.

    Args:
        server_pid: the server, if it is ours to move.

    Yields:
        Cores of the driver and the server, in words.
    """
    mine = cores()
    if len(mine) < 2:
        yield "not pinned"
        return
    before = set(mine)
    words = f"driver on core {mine[1]}"
    if server_pid is not None:
        os.sched_setaffinity(server_pid, {mine[0]})
        words = f"server on core {mine[0]}, {words}"
    os.sched_setaffinity(0, {mine[1]})
    try:
        yield words
    finally:
        os.sched_setaffinity(0, before)


class Noise:
    """The load of other programs: load average before and after, and CPU that is neither ours nor
    idle.

    Args:
        server_pid: the server, if it is a process of this machine that we know.
    """

    def __init__(self, server_pid: int | None) -> None:
        self._pid = server_pid
        self._load = load_average()
        self._begin = self._look()

    def _look(self) -> tuple[float, float, float]:
        """Return seconds: clock, busy cores of the machine, our own."""
        ticks = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
        times = os.times()
        ours = times.user + times.system + times.children_user + times.children_system
        busy = 0.0
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = [
                int(part) for part in Path("/proc/stat").read_text().split("\n")[0].split()[1:]
            ]
            busy = (sum(fields[:8]) - fields[3] - fields[4]) / ticks
            if self._pid is not None:
                stat = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
                ours += (int(stat[11]) + int(stat[12])) / ticks
        return time.monotonic(), busy, ours

    def report(self) -> dict[str, str]:
        """Return the load before and after, and the number of cores that others used."""
        end = self._look()
        seconds, busy, ours = (b - a for a, b in zip(self._begin, end, strict=True))
        words = {"load before": self._load, "load after": load_average()}
        if busy and self._pid is not None:
            others = max(busy - ours, 0) / seconds
            words["others"] = f"{others:.2f} cores busy with other work"
            if others > QUIET:
                words["others"] += ": jobs/s are low, ratios hold better"
        words["took"] = f"{seconds:.0f} s"
        return words
