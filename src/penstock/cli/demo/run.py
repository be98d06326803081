"""A run of the demo: enqueue the files, let workers work, kill one, gather the results."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock import Penstock
from penstock.cli.demo.files import Listing
from penstock.cli.demo.report import DemoReport, Kill, Memory, check
from penstock.cli.demo.screen import Screen
from penstock.cli.demo.worker import DEMO_LEASE, FILES_QUEUE, RESULTS_QUEUE
from penstock.cli.demo.workers import DemoWorkers
from penstock.cli.output import Failed
from penstock.worker.statistics import summary

__all__ = ["DemoRun", "batch_of", "keys", "pace_of"]

PROBE_COUNT = 200
WARM_UP_PROBES = 20
PROBE_PAUSE = 0.003
"""Seconds between two probes, after which the workers are idle again."""
RESULT_TIMEOUT = 30.0
"""Seconds without a result after which a run is given up."""
FILES_WITHOUT_PACE = 1000
MIN_RUN_SECONDS = 2.0
"""Seconds that a smaller directory takes at least."""
LONGEST_PACE = 0.4


def batch_of(files: int, workers: int) -> int:
    """Return how many jobs a worker reserves at once."""
    return max(1, min(16, files // (workers * 8)))


def pace_of(files: int, workers: int) -> float:
    """Return seconds by which each job is made longer: a small directory can be watched."""
    return (
        0.0
        if files >= FILES_WITHOUT_PACE
        else round(min(LONGEST_PACE, workers * MIN_RUN_SECONDS / files), 4)
    )


def victim_of(listing: Listing) -> str:
    """Return the file whose job a worker is killed with: a third of the jobs are before it."""
    return list(listing)[len(listing) // 3]


@dataclass
class Gathered:
    """The results so far.

    Attributes:
        first: name of a file -> the first result for it.
        redelivered: names of files whose job was delivered more than once.
        by: worker that has started -> how many results it has sent.
        probes: probe -> when its handler began, monotonic ns.
        victim: worker that waits to be killed.
        last_first: when the last result of a first delivery came, monotonic s.
        last_again: when the last result of another delivery came.
    """

    first: dict[str, dict[str, Any]] = field(default_factory=dict)
    redelivered: set[str] = field(default_factory=set)
    by: Counter[str] = field(default_factory=Counter)
    probes: dict[int, int] = field(default_factory=dict)
    victim: str | None = None
    last_first: float = 0.0
    last_again: float = 0.0

    def add(self, told: dict[str, Any]) -> None:
        """Add a result."""
        now = time.monotonic()
        if told["kind"] == "ready":
            self.by[told["worker"]] = 0
        elif told["kind"] == "probe":
            self.probes[told["probe"]] = told["started"]
        elif told["kind"] == "victim":
            self.victim = told["worker"]
        else:
            self.by[told["worker"]] += 1
            self.first.setdefault(told["path"], told)
            if told["delivery"] == 1:
                self.last_first = now
            else:
                self.redelivered.add(told["path"])
                self.last_again = now


class DemoRun:
    """One run, on a server and under a prefix of its own.

    Args:
        client: connected, with a prefix of its own.
        url: the server.
        root: the directory.
        listing: its files.
        workers: how many.
        screen: shows the progress.
    """

    def __init__(
        self, client: Penstock, url: str, root: Path, listing: Listing, workers: int, screen: Screen
    ) -> None:
        self.client = client
        self.root = root
        self.listing = listing
        self.workers = workers
        self.screen = screen
        self.files = client.queue(FILES_QUEUE)
        self.results = client.queue(RESULTS_QUEUE)
        self.gathered = Gathered()
        self.kill: Kill | None = None
        self.killed_at = 0.0
        self._news = time.monotonic()
        self.pace = pace_of(len(listing), workers)
        self._processes = DemoWorkers(
            client, url, root,
            batch=batch_of(len(listing), workers), pace=self.pace, victim=victim_of(listing),
        )  # fmt: skip

    def run(self) -> DemoReport:
        """Run to the end.

        Raises:
            Failed: the workers did not start, or all died.
        """
        try:
            self._start_workers()
            pickup = self._probe()
            before = self._memory()
            self._enqueue()
            full = self._memory()
            began = time.monotonic()
            self.screen.start()
            self.files.resume()
            self._work()
            ended = time.monotonic()
            self.screen.say("sweep, and look whether the memory came back")
            return self._report(pickup, began, ended, before, full)
        finally:
            self._processes.end()

    def _memory(self) -> Memory:
        executor = self.client.topology.executor
        found = set(keys(self.client, "{*"))  # {files}:... and {results}:..., not those of workers
        sizes = [executor.command("MEMORY", "USAGE", key) or 0 for key in found]
        return Memory(
            keys=len(sizes),
            key_bytes=sum(sizes),
            server_bytes=executor.server_facts().number("used_memory") or 0,
        )

    def _start_workers(self) -> None:
        self.screen.note(f"starting {self.workers} workers")
        self._processes.start(self.workers)
        while len(self.gathered.by) < self.workers:
            self._gather(0.5)
        self.screen.say(f"{self.workers} workers are ready, each a process")

    def _probe(self) -> list[float]:
        """Enqueue single jobs for idle workers; return the ms until the handler of each began."""
        waits = []
        for number in range(WARM_UP_PROBES + PROBE_COUNT):
            self.screen.note(
                f"{max(number - WARM_UP_PROBES, 0)} of {PROBE_COUNT} single jobs to idle workers"
            )
            time.sleep(PROBE_PAUSE)
            asked = time.monotonic_ns()
            self.files.enqueue({"probe": number}, lease=DEMO_LEASE)
            while number not in self.gathered.probes:
                self._gather(0.5)
            waits.append((self.gathered.probes[number] - asked) / 1e6)
        while self.files.stats().active:  # its result comes before it is acknowledged
            self._gather(0.01)
        self.screen.say(f"{PROBE_COUNT} single jobs were enqueued to idle workers")
        return waits[WARM_UP_PROBES:]

    def _enqueue(self) -> None:
        """Enqueue all jobs. The queue is paused first, so that no job is reserved yet."""
        names = self.listing
        self.files.pause("out")
        self.files.enqueue_many(({"path": name} for name in names), lease=DEMO_LEASE)
        self.screen.say(f"{len(names)} jobs are enqueued, one for each file")

    def _work(self) -> None:
        while not self._finished():
            try:
                self._gather(0.02)
            except Failed as error:
                self.screen.say(str(error))
                return
            self.screen.progress(len(self.gathered.first), len(self.listing), self._workers())
            if self.gathered.victim:
                self._kill(self.gathered.victim)
                self.gathered.victim = None

    def _finished(self) -> bool:
        complete = len(self.gathered.first) == len(self.listing)
        if not complete and time.monotonic() - self._news < DEMO_LEASE + 1:
            return False
        counts = self.files.stats()
        if counts.ready + counts.scheduled + counts.active:
            return False
        while self._gather(0):  # a worker sends a result before it acknowledges the job
            pass
        return True

    def _kill(self, worker: str) -> None:
        self.kill = self._processes.kill(worker)
        if self.kill:
            self.killed_at = time.monotonic()
            told = f"{worker} (process {self.kill.pid}) is killed with SIGKILL, its"
            self.screen.say(
                f"{told} {self.kill.held} jobs wait until its lease of {DEMO_LEASE:g} s ends"
            )

    def _gather(self, block: float) -> int:
        jobs = self.results.reserve(500, block=block)
        for job in jobs:
            self.gathered.add(job.body)
        self.results.ack(jobs)
        now = time.monotonic()
        if jobs:
            self._news = now
        if deaths := self._processes.deaths():
            self.screen.say(deaths)
        if not self._processes.running or now - self._news > RESULT_TIMEOUT:
            raise Failed(f"no news from the workers. {deaths}")
        return len(jobs)

    def _workers(self) -> dict[str, str]:
        states = {name: str(count) for name, count in sorted(self.gathered.by.items())}
        if self.kill:
            states[self.kill.worker] += " (killed)"
        return states

    def _report(
        self, pickup: Sequence[float], began: float, ended: float, before: Memory, full: Memory
    ) -> DemoReport:
        gathered = self.gathered
        acked = self.files.stats().acked - WARM_UP_PROBES - PROBE_COUNT
        self.client.sweep()
        firsts = len(gathered.first) - len(gathered.redelivered)
        recovered = None
        if self.kill and gathered.redelivered:
            recovered = round(gathered.last_again - self.killed_at, 3)
        return DemoReport(
            server=self.client.topology.executor.server_facts().name,
            path=str(self.root),
            workers=self.workers,
            files=len(self.listing),
            acked=acked,
            redelivered=len(gathered.redelivered),
            verdict=check(self.root, self.listing, gathered.first),
            killed=self.kill,
            seconds=round(ended - began, 3),
            recovered_after=recovered,
            jobs_per_second=round(firsts / max(gathered.last_first - began, 1e-9), 1),
            pace=self.pace,
            pickup=summary(pickup),
            memory={"before": before, "full": full, "after": self._memory()},
        )


def keys(client: Penstock, pattern: str = "*") -> Iterator[bytes]:
    """Yield the keys under the client's prefix whose rest matches a pattern, some of them twice."""
    cursor = b"0"
    while True:
        cursor, page = client.topology.executor.command(
            "SCAN", cursor, "MATCH", f"{client.prefix}:{pattern}", "COUNT", 1000
        )
        yield from page
        if cursor == b"0":
            return
