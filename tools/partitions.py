"""Measure the effect of partitions on a Redis Cluster: jobs per CPU second of its busiest server.

    python tools/partitions.py                          # 1, 4 and 16 partitions, three primaries
    python tools/partitions.py --jobs 100000 --partitions 1 8
    python tools/partitions.py --idle 20                # what a consumer that waits costs

How. Three servers on this machine are a cluster. One client adds jobs of 100 bytes in bulks of 100,
takes them in batches of up to 100 and acknowledges those, a hundred bulks ahead of the consumer at
most. Before and after it each server tells the CPU time that it has used. What a queue can do at
most is given by the server that is busiest first: so many jobs for each second of that one's CPU.
The servers share few cores here with the client and with whatever else runs, so jobs a second would
say how fast this machine is, and nothing about partitions; CPU time does not depend on that.

With --idle one consumer waits for so many seconds without a new job: commands that clients sent,
and CPU time, without what the servers need by themselves.

What it is not. Several clients, a network, replicas: they cost the same with partitions or without.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":  # the library of this checkout, installed or not
    root = Path(__file__).resolve().parent.parent
    sys.path[:0] = [str(root / "src"), str(root)]

from penstock import Penstock, Queue
from tests.support.cluster import Cluster, Member

__all__ = ["Run", "idle", "load"]

BATCH = 100
AHEAD = 100
BODY = b"x" * 100
SCRIPTED = ("evalsha", "blpop")
"""Commands of a waiting client that no script runs."""


@dataclass(frozen=True)
class Run:
    """The cost of a number of jobs.

    Attributes:
        partitions: of the queue; None = it had none.
        jobs: how many.
        seconds: of CPU, by server.
    """

    partitions: int | None
    jobs: int
    seconds: tuple[float, ...]

    @property
    def rate(self) -> float:
        """Return the jobs per second of the busiest server."""
        return self.jobs / max(self.seconds)


def used(members: Sequence[Member]) -> list[float]:
    """Return the CPU seconds of each server so far."""
    found = [member.raw.info("cpu") for member in members]
    return [one["used_cpu_user"] + one["used_cpu_sys"] for one in found]


def load(cluster: Cluster, partitions: int | None, jobs: int) -> Run:
    """Pass jobs through a new queue."""
    with Penstock(cluster.url) as ps:
        queue = ps.queue(f"load {partitions}", partitions=partitions)
        _pass(queue, 10 * BATCH)  # creates scripts, connections and keys
        members = cluster.primaries
        before = used(members)
        _pass(queue, jobs)
        seconds = [after - was for after, was in zip(used(members), before, strict=True)]
        queue.clear()
    return Run(partitions, jobs, tuple(seconds))


def _pass(queue: Queue, jobs: int) -> None:
    added = done = 0
    while done < jobs:
        while added < min(jobs, done + AHEAD * BATCH):
            added += len(queue.enqueue_many([BODY] * min(BATCH, jobs - added)))
        taken = queue.reserve(BATCH, block=0)
        done += queue.ack(taken).done


def idle(cluster: Cluster, partitions: int | None, seconds: float) -> tuple[float, float]:
    """Return the commands a second, and CPU milliseconds, of all servers for a waiting consumer."""
    members = cluster.primaries
    with Penstock(cluster.url) as ps:
        queue = ps.queue(f"idle {partitions}", partitions=partitions)
        queue.enqueue_many([BODY] * 10)
        queue.ack(queue.reserve(10))
        quiet = used(members)
        time.sleep(seconds)
        quiet = [after - was for after, was in zip(used(members), quiet, strict=True)]
        thread = threading.Thread(target=queue.reserve, kwargs={"block": seconds + 4})
        thread.start()
        time.sleep(2)
        calls, before = _calls(members), used(members)
        time.sleep(seconds)
        rate = (_calls(members) - calls) / seconds
        busy = [after - was for after, was in zip(used(members), before, strict=True)]
        thread.join()
    return rate, 1000 * (sum(busy) - sum(quiet)) / seconds


def _calls(members: Sequence[Member]) -> int:
    """Return the number of a waiting client's commands on the servers."""
    return sum(member.calls(name) for member in members for name in SCRIPTED)


def main() -> None:
    """Measure, and print a line for each number of partitions."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--partitions", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--jobs", type=int, default=50_000)
    parser.add_argument("--idle", type=float, metavar="SECONDS")
    args = parser.parse_args()
    with Cluster(3, node_timeout=15_000) as cluster:
        if args.idle:
            for count in args.partitions:
                rate, cpu = idle(cluster, count, args.idle)
                print(f"{count:3} partitions: {rate:5.2f} commands/s, {cpu:5.2f} ‰ of a core")
            return
        first: float | None = None
        for count in args.partitions:
            run = load(cluster, count, args.jobs)
            first = first or run.rate
            share = " ".join(f"{seconds:5.2f}" for seconds in run.seconds)
            print(
                f"{count:3} partitions: {share} s of CPU, {run.rate:8.0f} jobs for each s of the"
                f" busiest, {run.rate / first:4.2f} times as many"
            )


if __name__ == "__main__":
    main()
