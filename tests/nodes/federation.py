"""Servers to kill, freeze and fill, each of them a node; and a ledger of the jobs.

with Servers(3) as servers, servers.client() as ps: ledger = Ledger(ps.queue("q")) ...
servers[0].kill() ... ledger.settle(servers)
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import redis
from redis.exceptions import RedisError

from penstock import Penstock, PenstockError, Queue, parse_id
from penstock.embedded import EmbeddedServer
from tests.support.binaries import first_binary
from tests.support.keyspace import check_invariant
from tests.support.twins import wait_for

__all__ = ["Ledger", "Servers", "fill_up", "home_of", "one_on"]


class Servers:
    """Servers whose append-only files are on disk before each answer.

    Args:
        count: how many.
        args: more of their options.
    """

    def __init__(self, count: int, *args: str) -> None:
        self._stack = ExitStack()
        aof = ("--appendfsync", "always", "--auto-aof-rewrite-percentage", "0")
        self._args = (*aof, "--repl-diskless-sync-delay", "0", *args)
        self.all = [self.more() for _ in range(count)]

    def more(self, *args: str) -> EmbeddedServer:
        """Start one more, which is not in `all`."""
        binary = first_binary()
        made = EmbeddedServer(binary, tcp=True, appendonly=True, args=(*self._args, *args))
        return self._stack.enter_context(made)

    @property
    def urls(self) -> list[str]:
        """Return their addresses."""
        return [server.url for server in self.all]

    def client(self, **options: Any) -> Penstock:
        """Return a client of all of them."""
        return Penstock(self.urls, **options)

    def raw(self, number: int) -> Any:
        """Return a plain client of one of them."""
        return self._stack.enter_context(redis.Redis.from_url(self.all[number].url))

    def number_of(self, address: str) -> int:
        """Return the number of the server with this address."""
        return [f"127.0.0.1:{server.port}" for server in self.all].index(address)

    def with_id(self, ps: Penstock, node: str) -> EmbeddedServer:
        """Return the server whose id has this prefix."""
        [view] = [one for one in ps.hello().nodes if one.id.startswith(node)]
        return self.all[self.number_of(view.address)]

    def __enter__(self) -> Servers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for server in self.all:
            if kind is None and server.is_running:
                with redis.Redis.from_url(server.url, socket_timeout=5) as raw:
                    check_invariant(raw)
        self._stack.close()


def home_of(job_id: str) -> str:
    """Return the node that an id names."""
    return parse_id(job_id).node


def one_on(server: EmbeddedServer, body: Any = "x", **options: Any) -> str:
    """Add a job on one node, and return its id."""
    with Penstock(server.url, federation=False) as single:
        return single.queue("q").enqueue(body, **options).id


def fill_up(raw: Any, share: float) -> None:
    """Fill this share of its memory by setting the bound.

    Args:
        raw: a plain client.
        share: 0.8 = 80 %; 1.1 = above the bound, so jobs are refused.
    """
    raw.config_set("maxmemory-policy", "noeviction")
    raw.config_set("maxmemory", int(raw.info("memory")["used_memory"] / share))


class Ledger:
    """Producers and consumers of one queue, and the results for each job.

    Args:
        servers: where.
        query: options of the addresses.
        options: of the clients.
    """

    name = "q"

    def __init__(self, servers: Servers, query: str = "", **options: Any) -> None:
        self.urls = [f"{url}?{query}" for url in servers.urls]
        self.options = options
        self.added: dict[str, Any] = {}
        self.unknown: list[Any] = []
        self.delivered: Counter[str] = Counter()
        self.bodies: Counter[Any] = Counter()
        self.outcomes: dict[str, list[str]] = defaultdict(list)
        self.broken: list[BaseException] = []
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        with self.client() as ps:
            # Jobs of lost replies come back soon, any number of times.
            ps.queue(self.name).configure(lease=3, max_crashes=0)

    def client(self) -> Penstock:
        """A client of all servers."""
        return Penstock(self.urls, **self.options)

    def produce(self, pause: float = 0.0) -> None:
        """Start adding jobs, until the end."""
        self._run(lambda: self._produce(pause))

    def consume(self) -> None:
        """Start reserving and acknowledging jobs, until the end."""
        self._run(self._consume)

    def _run(self, work: Any) -> None:
        def guarded() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001  # raised at the end
                self.broken.append(error)

        thread = threading.Thread(target=guarded)
        self._threads.append(thread)
        thread.start()

    def _produce(self, pause: float) -> None:
        number, producer = 0, threading.get_ident()
        with self.client() as ps:
            queue = ps.queue(self.name)
            while not self._stop.wait(pause):
                number += 1
                try:
                    done = queue.enqueue([producer, number])
                except RedisError:
                    self.unknown.append([producer, number])
                else:
                    self.added[done.id] = [producer, number]

    def _consume(self) -> None:
        with self.client() as ps:
            queue = ps.queue(self.name)
            while not self._stop.is_set():
                self.take(queue, 0.2)

    def take(self, queue: Queue, block: float) -> int:
        """Reserve, acknowledge and record some jobs; return their number."""
        try:
            jobs = queue.reserve(10, block=block)
        except RedisError:
            return 0
        for job in jobs:
            self.delivered[job.id] += 1
            self.bodies[str(job.body)] += 1
            try:
                [outcome] = queue.ack([job])
            except (RedisError, PenstockError):
                continue
            self.outcomes[job.id].append(outcome.value)
        return len(jobs)

    def wait_added(self, count: int) -> None:
        """Return when this many more jobs were added."""
        goal = len(self.added) + count
        wait_for(lambda: bool(self.broken) or len(self.added) >= goal)

    def wait_acked(self, count: int) -> None:
        """Return when this many more jobs were acknowledged."""
        goal = len(self.outcomes) + count
        wait_for(lambda: bool(self.broken) or len(self.outcomes) >= goal)

    def end(self) -> None:
        """Stop adding jobs, drain the queue, and check the rules of a total queue.

        Raises:
            AssertionError: a job was lost, or one came back that was acknowledged.
        """
        self._stop.set()
        for thread in self._threads:
            thread.join()
        assert not self.broken, self.broken
        with self.client() as ps:
            queue = ps.queue(self.name)
            wait_for(lambda: not ps.hello().nodes[-1].error)
            wait_for(lambda: self.take(queue, 0.1) == 0 and _is_empty(queue))
        lost = set(self.added) - set(self.delivered)
        assert not lost, f"{len(lost)} of {len(self.added)} jobs were not delivered"
        foreign = set(self.delivered) - set(self.added)
        bodies = Counter(str(body) for body in self.unknown)
        assert len(foreign) <= len(bodies), "jobs that were never added"

    def came_back(self) -> list[str]:
        """Return the jobs that were acknowledged on their node and delivered again."""
        return [job for job, outcomes in self.outcomes.items() if "done" in outcomes[:-1]]


def _is_empty(queue: Queue) -> bool:
    stats = queue.stats()
    return not (stats.unreachable or stats.ready or stats.scheduled or stats.active)


def spread(ids: Iterable[str]) -> Counter[str]:
    """Count the jobs of each node."""
    return Counter(home_of(one) for one in ids)


__all__ += ["spread"]
