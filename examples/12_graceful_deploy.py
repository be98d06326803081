"""A deploy: the old worker gets SIGTERM while it works, a new one continues, and no job is lost.

    python examples/12_graceful_deploy.py

It prints:

    v1 is at work on 1, 2, 3, 4
    v2: 5 done, attempt 1
    v2: 6 done, attempt 1
    SIGTERM for v1: 1 done, attempt 1; 2 done, attempt 1; 3 given up; 4 given up; exit code 0
    v2: 3 done, attempt 1
    v2: 4 done, attempt 1
    acknowledged: 6, failed: 0, crashed: 0
"""

import logging
import os
import sys
import time
from subprocess import PIPE, Popen

from server import url

from penstock import Handlers, Job, Penstock, Worker

logging.getLogger("penstock").setLevel(logging.CRITICAL)
handlers = Handlers()


@handlers.handler("order")
def order(job: Job, number: int, is_long: bool) -> None:
    if worker.name == "v1":
        say(f"{number}")
        # Short jobs finish soon after the SIGTERM; long ones are released after the grace.
        while not job.lost and (is_long or not worker.stopping):
            time.sleep(0.01)
    say(f"{number} given up" if job.lost else f"{number} done, attempt {job.attempt}")


def say(line: str) -> None:
    print(f"{line}\n", end="", flush=True)  # a single write: threads may print at once


def start(version: str) -> Popen[str]:
    """Start a separate process; usually this is `penstock worker app:worker`."""
    env = {**os.environ, "PENSTOCK_URL": url()}
    return Popen([sys.executable, __file__, version], env=env, stdout=PIPE, text=True)


def lines(process: Popen[str], count: int) -> list[str]:
    assert process.stdout
    return [process.stdout.readline().strip() for _ in range(count)]


def deploy() -> None:
    with Penstock(url()) as ps:
        orders = ps.queue("example.orders")
        orders.clear()
        for number in range(1, 7):
            order.enqueue(orders, number, is_long=number in (3, 4))

        with start("v1") as v1:
            print("v1 is at work on", ", ".join(sorted(lines(v1, 4))))
            with start("v2") as v2:
                print(*(f"v2: {line}" for line in lines(v2, 2)), sep="\n")
                v1.terminate()
                ends = sorted(lines(v1, 4))
                print(f"SIGTERM for v1: {'; '.join(ends)}; exit code {v1.wait()}")
                print(*(f"v2: {line}" for line in lines(v2, 2)), sep="\n")
                v2.terminate()
        end = orders.stats()
        print(f"acknowledged: {end.acked}, failed: {end.nacked}, crashed: {end.crashed}")


if sys.argv[1:]:
    options = {"name": sys.argv[1], "concurrency": 4 if sys.argv[1] == "v1" else 1}
    worker = Worker(url(), "example.orders", handlers, grace=0.5, **options)
    worker.run()  # until SIGTERM
else:
    deploy()
