"""A worker of the demo, a process of its own: `python -m penstock.cli.demo.worker ...`.

Each of its jobs names a file. It enqueues the results before it acknowledges their jobs. The worker
that takes the job of a planned file reports that, and waits to be killed. Its jobs are then
delivered to another worker.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

from penstock import EvictionWarning, Handlers, Job, Penstock, Worker
from penstock.cli.demo.files import digest, path_of

__all__ = ["DEMO_LEASE", "FILES_QUEUE", "RESULTS_QUEUE", "main", "result_of"]

FILES_QUEUE = "files"
RESULTS_QUEUE = "results"
DEMO_LEASE = 2.0


def result_of(job: Job, root: Path, pace: float = 0) -> dict[str, Any]:
    """Read the file that a job names, and return the result.

    Args:
        job: its body has the name of the file, or the number of a probe.
        root: the directory that the names of files are relative to.
        pace: seconds by which the job is made longer.
    """
    started = time.monotonic_ns()
    told: dict[str, Any] = {"worker": job.owner, "delivery": job.deliveries}
    if "probe" in job.body:
        return {"kind": "probe", "probe": job.body["probe"], "started": started, **told}
    told.update(kind="file", path=job.body["path"])
    time.sleep(pace)
    try:
        return {**digest(path_of(root, job.body["path"])), **told}
    except OSError as error:
        return {"error": f"{type(error).__name__}: {error.strerror}", **told}


def main() -> None:
    """Work as the argument says, a JSON object that `DemoWorkers` writes."""
    given = json.loads(sys.argv[1])
    root = Path(given["root"])
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    warnings.simplefilter("ignore", EvictionWarning)  # the command has printed it
    with Penstock(given["url"], prefix=given["prefix"], owner=given["owner"]) as client:
        results = client.queue(RESULTS_QUEUE)
        handlers = Handlers()

        @handlers.chunk(None, size=given["batch"])
        def work(jobs: list[Job]) -> None:
            if any(job.body.get("path") == given["victim"] and job.deliveries == 1 for job in jobs):
                results.enqueue({"kind": "victim", "worker": client.owner})
                threading.Event().wait()  # until the command kills this process
            results.enqueue_many([result_of(job, root, given["pace"]) for job in jobs])

        results.enqueue({"kind": "ready", "worker": client.owner})
        Worker(client, FILES_QUEUE, handlers, concurrency=1).run()


def _end_with(parent: int) -> None:
    """End when the parent has ended. If it was killed, it could not say so."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


if __name__ == "__main__":
    main()
