"""The test bed: the server, the connections to it, and the reading of its counters."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from redis import Redis

from benchmarks.figures import Sample
from penstock.client._sync.client import Penstock
from penstock.embedded import EmbeddedServer, find_server

__all__ = ["SENT", "Bed", "Counted", "Refused", "opened"]

OURS = {"config|resetstat", "info", "script|load", "client|setinfo", "hello"}
SENT = ("evalsha", "blpop", "client|unblock", "client|id")
"""Commands of consumers and workers, each sent in its own trip; no script runs them."""


class Refused(Exception):
    """The given server is unsuitable for measurements."""


@dataclass(frozen=True, slots=True)
class Counted:
    """Numbers of commands that ran, by name.

    Attributes:
        calls: how often each ran, those inside scripts included.
    """

    calls: dict[str, int]

    @property
    def scripts(self) -> int:
        """Return the number of scripts."""
        return self.calls.get("evalsha", 0)

    @property
    def total(self) -> int:
        """Return the number of commands, scripts included."""
        return sum(self.calls.values())

    def of(self, names: Iterable[str]) -> int:
        """Return how often these ran."""
        return sum(self.calls.get(name, 0) for name in names)


class Bed:
    """A server for measurements.

    Args:
        url: where it listens.
        pid: its process, when it is ours.
        transport: how it is reached, in words.
    """

    def __init__(self, url: str, pid: int | None, transport: str) -> None:
        self.url = url
        self.pid = pid
        self.transport = transport
        self.prefix = f"b{secrets.token_hex(4)[1:]}"  # as long as the default, for bytes sent
        self.redis: Any = Redis.from_url(url, socket_timeout=60)  # COPY of 1 GB takes a while
        self.client = Penstock(url, prefix=self.prefix)
        self._keys: list[str] = []

    def key(self, name: str) -> str:
        """Return a key of this run."""
        key = f"{self.prefix}:{name}"
        self._keys.append(key)
        return key

    def cpu(self) -> float:
        """Return the CPU seconds that the server has used."""
        fields = self.redis.info("cpu")
        return float(fields["used_cpu_user"]) + float(fields["used_cpu_sys"])

    def measure(self, work: Callable[[], int]) -> Sample:
        """Measure the cost of a piece of work, which returns how many jobs it moved."""
        server = self.cpu()
        client, begin = time.process_time(), time.perf_counter()
        jobs = work()
        wall, client = time.perf_counter() - begin, time.process_time() - client
        return Sample(jobs, max(self.cpu() - server, 0.0), client, wall)

    def count(self, work: Callable[[], object]) -> Counted:
        """Count the commands of a piece of work."""
        before = self._calls()
        work()
        after = self._calls()
        moved = {name: calls - before.get(name, 0) for name, calls in after.items()}
        return Counted({n: c for n, c in moved.items() if c > 0 and n not in OURS})

    def _calls(self) -> dict[str, int]:
        stats = self.redis.info("commandstats")
        return {name.removeprefix("cmdstat_"): int(s["calls"]) for name, s in stats.items()}

    def used_memory(self) -> int:
        """Return the bytes that the server has allocated."""
        return int(self.redis.info("memory")["used_memory"])

    def key_memory(self, keys: list[bytes]) -> int:
        """Return MEMORY USAGE of keys, with every element counted."""
        return sum(int(self.redis.memory_usage(key, samples=0) or 0) for key in keys)

    def blocked(self) -> int:
        """Return the number of blocked clients."""
        return int(self.redis.info("clients")["blocked_clients"])

    def await_blocked(self, clients: int, timeout: float = 30.0) -> None:
        """Wait until this many clients are blocked."""
        deadline = time.monotonic() + timeout
        while self.blocked() < clients:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.blocked()} of {clients} consumers wait")
            time.sleep(0.0005)

    def drop(self, keys: list[bytes]) -> None:
        """Remove keys in the foreground, so that no removal disturbs the next measurement."""
        for key in keys:
            self.redis.delete(key)

    def clean(self) -> None:
        """Remove every key of this run, and close the connections."""
        self.client.close()
        for key in self.redis.scan_iter(match=f"{self.prefix}:*", count=1000):
            self.redis.unlink(key)
        self.redis.close()


@contextlib.contextmanager
def opened(url: str | None, *, sure: bool) -> Iterator[Bed]:
    """Open a bed on its own server, or on the given one.

    Args:
        url: a server; None = start one on loopback, without persistence.
        sure: measure on a database that holds keys all the same.

    Raises:
        Refused: the database given is not empty.
    """
    if url is None:
        with EmbeddedServer(find_server(), tcp=True) as server:
            bed = Bed(server.url, server.pid, "loopback TCP, no persistence")
            try:
                yield bed
            finally:
                bed.client.close()
                bed.redis.close()
        return
    bed = Bed(url, None, "given by --url")
    held = int(bed.redis.dbsize())
    if held and not sure:
        bed.redis.close()
        raise Refused(f"the database holds {held} keys; --yes measures on it all the same")
    try:
        yield bed
    finally:
        bed.clean()
