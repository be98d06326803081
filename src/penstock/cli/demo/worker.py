"""A worker of the demo, a process of its own: `python -m penstock.cli.demo.worker ...`.

Takes jobs, each of which names a file, and puts what it finds out into the queue of results before
it acknowledges. Whatever it holds when it is killed is delivered to another one.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections.abc import Sequence
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
"""Seconds after which an idle worker looks whether its parent is still there."""


class DemoWorker:
    """Works through the queue of files.

    Args:
        client: whose `owner` is this worker's name.
        root: the directory that the names of files are relative to.
        batch: how many jobs are taken at once.
        pace: seconds to spend on each job besides, for directories too small to watch.
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
        """Work until the process that started this one is gone."""
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
        """One job: what is to be told of it."""
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
        """A lease is short, and a file may be long."""
        if time.monotonic() - self._renewed > LEASE / 4:
            self.files.extend(self._held)
            self._renewed = time.monotonic()


def main(argv: Sequence[str] | None = None) -> None:
    """Work as the arguments say; see `start` in `demo.run`."""
    parser = argparse.ArgumentParser()
    for option in ("url", "prefix", "owner"):
        parser.add_argument(f"--{option}", required=True)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--pace", type=float, default=0.0)
    given = parser.parse_args(argv)
    warnings.simplefilter("ignore", EvictionWarning)  # who started us has said so already
    with Penstock(given.url, prefix=given.prefix, owner=given.owner) as client:
        DemoWorker(client, given.root, batch=given.batch, pace=given.pace).run()


if __name__ == "__main__":
    main()
