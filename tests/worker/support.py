"""Worker processes, and the events that their handlers log, for tests.

    worker = crew.start("asyncio", queues=["a"], concurrency=2)
    queue.enqueue({"n": 1, "do": "nap", "s": 0.5})
    crew.diary.wait("start", n=1)
    worker.signal(signal.SIGTERM)
    assert worker.ended() == 0

Times are of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import json
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from penstock import Queue
from tests.support.workers import PATIENCE, Child, Nursery, until, whole_lines

__all__ = ["Crew", "Diary", "Run", "WorkerProcess", "add", "runs", "runs_at_once"]

Event = dict[str, Any]


class Diary:
    """The events logged by handlers of several processes.

    Args:
        path: of the file, which is there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = 0
        self._events: list[Event] = []

    def events(self, event: str | None = None, **wanted: Any) -> list[Event]:
        """Return the events of a kind so far, with these values."""
        with self.path.open("rb") as file:
            file.seek(self._read)
            lines, ending, _ = file.read().rpartition(b"\n")
        self._read += len(lines + ending)
        self._events += map(json.loads, whole_lines(lines))
        if event is not None:
            wanted["event"] = event
        return [one for one in self._events if wanted.items() <= one.items()]

    def wait(self, event: str, count: int = 1, patience: float = PATIENCE, **wanted: Any) -> Event:
        """Wait for an event, and return the last of `count` ones.

        Raises:
            TimeoutError: there were not so many in that time.
        """
        try:
            until(lambda: len(self.events(event, **wanted)) >= count, patience)
        except TimeoutError:
            told = Counter(one["event"] for one in self.events())
            raise TimeoutError(f"no {count} x {event} {wanted} in {patience} s: {told}") from None
        return self.events(event, **wanted)[count - 1]


class WorkerProcess:
    """A worker in a process of its own.

    Args:
        child: the process.
    """

    def __init__(self, child: Child) -> None:
        self.child = child
        self.pid = child.pid
        self.died: float | None = None

    def signal(self, number: signal.Signals) -> float:
        """Send a signal and return the time."""
        self.child.signal(number)
        return time.monotonic()

    def kill(self) -> float:
        """Kill the process with SIGKILL and return the time of its end."""
        self.child.signal(signal.SIGKILL)
        self.ended()
        assert self.child.killed
        assert self.died is not None
        return self.died

    def ended(self) -> int | None:
        """Wait until the process has ended, and return its exit code."""
        self.child.wait()
        self.died = self.child.ended_at
        return self.child.exit_code


class Crew:
    """The workers on one server; the end of the test kills those that run.

    Args:
        url: of the server.
        diary: where they write.
        home: gives a nursery that has no living child.
    """

    def __init__(self, url: str, diary: Diary, home: Callable[[], Nursery]) -> None:
        self.url = url
        self.diary = diary
        self.workers: list[WorkerProcess] = []
        self._home = home

    def start(self, kind: str, *, patient: bool = True, **options: Any) -> WorkerProcess:
        """Start a worker, and wait until it asks for jobs if `patient`.

        Options as in `tests.worker.tasks.work`.
        """
        options = {"url": self.url, "queues": ["work"], **options}
        child = self._home().start("work", kind=kind, diary=str(self.diary.path), **options)
        worker = WorkerProcess(child)
        self.workers.append(worker)
        if options.get("control"):
            assert child.next_event() == "listening"
        if patient:
            self.diary.wait("up", pid=child.pid)
        return worker

    def deaths(self) -> dict[int, float]:
        """Return the time of death of each process."""
        return {one.pid: one.died for one in self.workers if one.died is not None}

    def close(self) -> None:
        """Kill the remaining workers."""
        for worker in self.workers:
            if worker.died is None and worker.child.status is None:
                worker.signal(signal.SIGCONT)
                worker.signal(signal.SIGKILL)
                worker.ended()


class Run:
    """One call of a handler.

    Attributes:
        start, end: when it began and ended, at the latest when its process was dead; inf = it goes
            on.
        finished: whether the handler came to its end.
    """

    def __init__(self, event: Event) -> None:
        self.pid: int = event["pid"]
        self.n: int = event["n"]
        self.start: float = event["t"]
        self.end = float("inf")
        self.finished = False
        self.event = event

    def __repr__(self) -> str:
        return f"<{self.n} in {self.pid} from {self.start:.3f} to {self.end:.3f}>"


def runs(events: Iterable[Event], deaths: dict[int, float] | None = None) -> dict[int, list[Run]]:
    """Return the runs of each job, the earliest first."""
    found: dict[int, list[Run]] = defaultdict(list)
    open_runs: dict[tuple[int, str, int], Run] = {}
    for event in sorted(events, key=lambda one: one["t"]):
        if event["event"] == "start":
            run = Run(event)
            found[run.n].append(run)
            open_runs[run.pid, event["id"], event["deliveries"]] = run
        elif event["event"] in ("end", "cancelled"):
            run = open_runs.pop((event["pid"], event["id"], event["deliveries"]))
            run.end, run.finished = event["t"], event["event"] == "end"
    for run in open_runs.values():
        run.end = (deaths or {}).get(run.pid, run.end)
    return found


def runs_at_once(found: dict[int, list[Run]]) -> list[tuple[Run, Run]]:
    """Return the runs that began while an earlier run of the same job was active."""
    pairs = []
    for one in found.values():
        for i, later in enumerate(one):
            pairs += [(earlier, later) for earlier in one[:i] if later.start < earlier.end]
    return pairs


def add(queue: Queue, count: int, do: str = "nothing", s: float = 0.0, **options: Any) -> None:
    """Enqueue jobs 0, 1, 2, … with the same task."""
    queue.enqueue_many(({"n": n, "do": do, "s": s} for n in range(count)), **options)
