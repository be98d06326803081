"""A primary is killed under load and a replica promoted; the results for each job are counted.

    PYTHONPATH=src python -m tests.nodes.promotion                        # replicas 0, 1, 2
    PYTHONPATH=src python -m tests.nodes.promotion --cut 0.5 --runs 20    # behind a broken link
    PYTHONPATH=src python -m tests.nodes.promotion --cut 0.5 --deliver    # jobs of lease 0 only

Producers and consumers ask so many replicas to confirm what they add, and what they finish. At a
random moment the primary gets SIGKILL and one of the two replicas takes its place; the clients go
on there, asking for one replica less. With `--cut` the link of the one that is promoted breaks so
many seconds (at most) before. In half of the runs the consumers stand still just then, so that jobs
wait. At the end the queue is drained, and counted: a job is

- *lost* when its enqueue was answered as asked for, and it was never delivered;
- *back* when its ack was answered as asked for, and it was delivered after that.

With `--deliver` two consumers take jobs of lease 0, whose delivery the replicas must confirm.
Counted are jobs that a consumer got and that the promoted replica delivers again, and those that
were given up.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from types import TracebackType

import redis
from redis.exceptions import RedisError

from penstock import (
    AckNotReplicated,
    DeliveryNotReplicated,
    Durable,
    Job,
    NotReplicated,
    Outcome,
    Penstock,
    Queue,
)
from penstock.embedded import EmbeddedServer, ServerBinary, find_server
from tests.support.proxy import Proxy
from tests.support.replicated import reach_replicas
from tests.support.twins import wait_for

__all__ = ["Account", "Promotion", "one_run"]

LEASE = 3.0
WAITING = 30_000
"""Jobs that wait for the consumers of `deliver`."""
ARGS = ("--repl-diskless-sync-delay", "0", "--repl-timeout", "60")
PATIENCE = 60.0


class Promotion:
    """A primary and two replicas; clients and each replica connect through proxies.

    Args:
        binary: the servers.
    """

    def __init__(self, binary: ServerBinary | None = None) -> None:
        self._stack = ExitStack()
        try:
            start = self._stack.enter_context
            self.servers = [start(EmbeddedServer(binary, tcp=True, args=ARGS)) for _ in range(3)]
            self.door, *self.links = (start(Proxy(self.servers[0].address)) for _ in range(3))
            self.raws = [start(redis.Redis.from_url(server.url)) for server in self.servers]
            for raw, link in zip(self.raws[1:], self.links, strict=True):
                raw.replicaof(*map(str, link.address))
            reach_replicas(self.raws[0], 2)
        except BaseException:
            self._stack.close()
            raise

    def fall(self, chosen: int, cut: float = 0.0) -> tuple[float, float]:
        """Kill the primary and promote a replica; return when its link broke, and when the primary
        died.

        Args:
            chosen: which, 1 or 2.
            cut: seconds before that in which it gets nothing any more.
        """
        began = time.monotonic()
        if cut:
            self.links[chosen - 1].hole("down")
            time.sleep(cut)
        killed = time.monotonic()
        self.servers[0].kill()
        self.raws[chosen].replicaof("NO", "ONE")
        for link in self.links:
            link.redirect(self.servers[chosen].address)
            link.restore()
            link.cut()
        self.door.redirect(self.servers[chosen].address)
        self.door.cut()
        return began, killed

    def __enter__(self) -> Promotion:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()


@dataclass
class Account:
    """The answers that clients got, with their times.

    Attributes:
        cut: when the promoted replica's link broke, or the primary was killed if it did not.
        killed: when the primary was killed.
        attempted: jobs whose enqueue was begun.
        confirmed: jobs whose enqueue was answered as asked for.
        delivered: jobs that a consumer got, the last time of each.
        acked: jobs whose ack was answered as asked for.
        refused: how many calls were not confirmed.
        broken: what should not have happened.
    """

    cut: float = 0.0
    killed: float = 0.0
    attempted: set[int] = field(default_factory=set)
    confirmed: dict[int, float] = field(default_factory=dict)
    delivered: dict[int, float] = field(default_factory=dict)
    acked: dict[int, float] = field(default_factory=dict)
    refused: int = 0
    broken: list[BaseException] = field(default_factory=list)

    @property
    def lost(self) -> dict[int, float]:
        """Return jobs that were confirmed and never delivered, with the time of the
        confirmation.
        """
        return {n: at for n, at in self.confirmed.items() if n not in self.delivered}

    @property
    def back(self) -> list[int]:
        """Return jobs that were delivered after their acknowledgement."""
        return [n for n, at in self.acked.items() if self.delivered[n] > at]

    @property
    def unexpected(self) -> set[int]:
        """Return jobs that were delivered and never attempted."""
        return self.delivered.keys() - self.attempted

    @property
    def seconds(self) -> float:
        """Return the seconds between the confirmation of the first lost job and the kill."""
        return max(0.0, self.killed - min(self.lost.values(), default=self.killed))


class Load:
    """Producers and consumers that run from construction to `drain`."""

    def __init__(self, url: str, replicas: int) -> None:
        self.replicas = replicas
        self.working = threading.Event()
        self.working.set()
        self.account = Account()
        self._url = url
        self._serial = itertools.count()
        self._is_producing = self._is_consuming = True
        with Penstock(url) as ps:
            ps.queue("q").configure(lease=LEASE)
        works = [self._produce, self._produce, self._produce_many, self._consume, self._consume]
        self._threads = [threading.Thread(target=self._run, args=(work,)) for work in works]
        for thread in self._threads:
            thread.start()

    def _run(self, work: Callable[[Queue], None]) -> None:
        try:
            with Penstock(self._url, retry_for=PATIENCE) as ps:
                work(ps.queue("q"))
        except BaseException as error:  # noqa: BLE001  # recorded in the account
            self.account.broken.append(error)

    def _numbers(self, n: int) -> list[int]:
        numbers = [next(self._serial) for _ in range(n)]
        self.account.attempted.update(numbers)
        return numbers

    def _produce(self, queue: Queue) -> None:
        while self._is_producing:
            (number,) = self._numbers(1)
            try:
                queue.enqueue(number, durable=Durable(self.replicas, timeout=2))
            except (NotReplicated, RedisError):
                self.account.refused += 1
            else:
                self.account.confirmed[number] = time.monotonic()

    def _produce_many(self, queue: Queue) -> None:
        while self._is_producing:
            numbers = self._numbers(20)
            try:
                queue.enqueue_many(numbers, durable=Durable(self.replicas, timeout=2))
            except (NotReplicated, RedisError):
                self.account.refused += 1
            else:
                self.account.confirmed.update(dict.fromkeys(numbers, time.monotonic()))

    def _consume(self, queue: Queue) -> None:
        while self._is_consuming:
            self.working.wait()
            jobs: list[Job] = []
            with suppress(RedisError):
                jobs = queue.reserve(50, block=0.2)
            for job in jobs:
                self.account.delivered[job.body] = time.monotonic()
            with suppress(AckNotReplicated, RedisError):
                outcomes = queue.ack(jobs, durable=Durable(self.replicas, timeout=2))
                now = time.monotonic()
                for job, outcome in zip(jobs, outcomes, strict=True):
                    if outcome is Outcome.DONE:
                        self.account.acked[job.body] = now

    def wait_more(self, count: int) -> None:
        """Wait until this many more are confirmed and acknowledged."""
        account = self.account
        before = len(account.confirmed), len(account.acked)
        wait_for(lambda: bool(account.broken) or len(account.confirmed) >= before[0] + count, 60)
        wait_for(lambda: bool(account.broken) or len(account.acked) >= before[1] + count, 60)

    def drain(self) -> None:
        """Stop adding jobs, and return when none is left."""
        self._is_producing = False
        with Penstock(self._url, retry_for=PATIENCE) as ps:
            queue = ps.queue("q")
            wait_for(lambda: bool(self.account.broken) or _left(queue) == 0, 60)
        self.stop()

    def stop(self) -> None:
        """End the threads."""
        self.working.set()
        self._is_producing = self._is_consuming = False
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Load:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def _left(queue: Queue) -> int:
    stats = queue.stats()
    return stats.ready + stats.active + stats.scheduled


def one_run(
    replicas: int,
    *,
    before: float,
    cut: float = 0.0,
    resting: bool = False,
    binary: ServerBinary | None = None,
) -> Account:
    """Run one experiment, and return its account.

    Args:
        replicas: that have to confirm, of two.
        before: seconds of load before the kill.
        cut: seconds for which the promoted replica gets nothing before it.
        resting: whether consumers stand still from then on: what is added waits.
        binary: the servers.
    """
    with Promotion(binary) as place, Load(place.door.url, replicas) as load:
        load.wait_more(50)
        time.sleep(before)
        if resting:
            load.working.clear()
        load.account.cut, load.account.killed = place.fall(random.choice((1, 2)), cut)
        load.working.set()
        load.replicas = max(0, replicas - 1)
        load.wait_more(50)
        load.drain()
        return load.account


def deliver(
    replicas: int, *, before: float, cut: float, binary: ServerBinary | None = None
) -> tuple[int, int, int]:
    """Take jobs of lease 0 from a primary that dies.

    Args:
        replicas, before, cut, binary: as in `one_run`.

    Returns:
        The number of jobs that consumers got, of those that are delivered again, and of those that
        were given up.
    """
    taken, given_up = set[int](), list[int]()

    def consume(url: str) -> None:
        with suppress(RedisError, DeliveryNotReplicated), Penstock(url, retry_for=0) as own:
            while True:
                take(own.queue("q"))

    def take(source: Queue) -> None:
        try:
            taken.update(job.body for job in source.reserve(10, durable=durable))
        except DeliveryNotReplicated as error:
            given_up.append(len(error.given_up))
            raise

    durable = Durable(replicas, timeout=2) if replicas else None
    with Promotion(binary) as place, Penstock(place.door.url, retry_for=PATIENCE) as ps:
        queue = ps.queue("q")
        queue.enqueue_many(range(WAITING), lease=0)
        wait_for(lambda: all(raw.xlen("penstock:{q}:ready") == WAITING for raw in place.raws))

        threads = [threading.Thread(target=consume, args=(place.servers[0].url,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        wait_for(lambda: bool(taken))
        time.sleep(before)
        place.fall(1, cut)
        for thread in threads:
            thread.join()
        again = [view.body for view in queue.jobs(state=["ready"], n=1000)]
    return len(taken), len(taken.intersection(again)), sum(given_up)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the experiments."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--replicas", type=int, nargs="+", default=[0, 1, 2], metavar="N")
    parser.add_argument("--runs", type=int, default=10, help="for each number of replicas")
    parser.add_argument(
        "--cut",
        type=float,
        default=0.0,
        metavar="S",
        help="the promoted replica's link breaks before",
    )
    parser.add_argument("--server", help="where the server comes from")
    parser.add_argument("--deliver", action="store_true", help="take jobs of lease 0")
    args = parser.parse_args(argv)
    binary = find_server(args.server) if args.server else find_server()
    print(f"{binary.product()} {binary.version()}, the link cut up to {args.cut:g} s before")
    if args.deliver:
        for replicas in args.replicas:
            runs = [
                deliver(
                    replicas,
                    before=random.uniform(0, 1),
                    cut=random.uniform(0, args.cut),
                    binary=binary,
                )
                for _ in range(args.runs)
            ]
            got, again, given_up = zip(*runs, strict=True)
            print(
                f"replicas={replicas}  of {sum(got)} deliveries again: in"
                f" {sum(map(bool, again))} of {args.runs} runs,"
                f" median {statistics.median(again):.0f}, at most {max(again)};"
                f" given up: at most {max(given_up)} in a run",
                flush=True,
            )
        return
    print(
        "            runs that lost    jobs: min  median  max    seconds: max    back   confirmed"
    )
    for replicas in args.replicas:
        accounts = [
            one_run(
                replicas,
                before=random.uniform(0, 1),
                cut=random.uniform(0, args.cut),
                resting=bool(run % 2),
                binary=binary,
            )
            for run in range(args.runs)
        ]
        broken = [error for account in accounts for error in account.broken]
        if broken or any(account.unexpected for account in accounts):
            raise AssertionError(broken or "jobs that were never added")
        lost = [len(account.lost) for account in accounts]
        print(
            f"replicas={replicas}  {sum(map(bool, lost)):15} of {args.runs:2}"
            f" {min(lost):6} {statistics.median(lost):7.0f} {max(lost):4}"
            f" {max(account.seconds for account in accounts):13.3f}"
            f" {sum(len(account.back) for account in accounts):7}"
            f" {sum(len(account.confirmed) for account in accounts):11}",
            flush=True,
        )


if __name__ == "__main__":
    main()
