"""A worker of the demo, a process of its own: `python -m penstock.cli.demo.worker ...`.

It reserves jobs, each of which names a file, and enqueues a result before it acknowledges the job.
When it is killed, the jobs that it holds are delivered to another worker.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

from penstock import EvictionWarning, Job, Penstock
from penstock.cli.demo.files import digest, path_of

__all__ = ["FILES", "LEASE", "RESULTS", "DemoWorker", "main"]

FILES = "files"
RESULTS = "results"
LEASE = 2.0
BLOCK = 2.0
"""Seconds after which an idle worker checks that its parent still runs."""


class DemoWorker:
    """Works through the queue of files.

    Args:
        client: its `owner` is the name of the worker.
        root: the directory that the names of files are relative to.
        batch: how many jobs are reserved at once.
        pace: seconds by which each job is made longer.
    """

    def __init__(self, client: Penstock, root: Path, *, batch: int, pace: float = 0) -> None:
        self.name = client.owner
        self.files = client.queue(FILES)
        self.results = client.queue(RESULTS)
        self.root = root
        self.batch = batch
        self.pace = pace
        self._held: list[Job] = []
        self._renewed = 0.0

    def run(self) -> None:
        """Work until the process that started this one has ended."""
        parent = os.getppid()
        self.results.enqueue({"kind": "ready", "worker": self.name})
        while os.getppid() == parent:
            if not self._held:
                self._hold(self.files.reserve(self.batch, block=BLOCK))
                continue
            self.results.enqueue_many([self.work(job) for job in self._held])
            _, jobs = self.files.settle(self._held, self.batch)
            self._hold(jobs)

    def _hold(self, jobs: list[Job]) -> None:
        self._held, self._renewed = jobs, time.monotonic()

    def work(self, job: Job) -> dict[str, Any]:
        """Do a job; return its result."""
        started = time.monotonic_ns()
        told: dict[str, Any] = {"worker": self.name, "delivery": job.deliveries}
        if "probe" in job.body:
            return {"kind": "probe", "probe": job.body["probe"], "started": started, **told}
        told.update(kind="file", path=job.body["path"])
        time.sleep(self.pace)
        self._renew()
        try:
            found = digest(path_of(self.root, job.body["path"]), self._renew)
        except OSError as error:
            return {"error": f"{type(error).__name__}: {error.strerror}", **told}
        return {**asdict(found), **told}

    def _renew(self) -> None:
        if time.monotonic() - self._renewed > LEASE / 4:
            self.files.extend(self._held)
            self._renewed = time.monotonic()


def main() -> None:
    """Work as the argument says, a JSON object that `DemoWorkers` writes."""
    given = json.loads(sys.argv[1])
    root = Path(given["root"])
    warnings.simplefilter("ignore", EvictionWarning)  # the command has printed it
    with Penstock(given["url"], prefix=given["prefix"], owner=given["owner"]) as client:
        DemoWorker(client, root, batch=given["batch"], pace=given["pace"]).run()


if __name__ == "__main__":
    main()
