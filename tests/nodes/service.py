"""A primary with two replicas, and three Sentinels that watch them: real processes on loopback.

with Service() as service, Penstock(service.url, retry_for=20) as ps:
    old = service.kill_primary()
    ps.queue("q").enqueue(1)            # on one of the others
    service.bring_back(old)             # as a replica
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
from redis.backoff import NoBackoff
from redis.retry import Retry

from penstock.embedded import EmbeddedServer, ServerBinary
from tests.support.binaries import first_binary
from tests.support.twins import wait_for

__all__ = ["LOOPBACK", "NAME", "Sentinel", "Service"]

LOOPBACK = "127.0.0.1"
NAME = "jobs"
DOWN_AFTER_MS = 1000
"""With a lower value a busy machine causes failovers."""
QUICK = ("--repl-diskless-sync", "no", "--repl-ping-replica-period", "1")
"""Options of the servers: a replica syncs without a delay."""

Address = tuple[str, int]


class Sentinel(EmbeddedServer):
    """A Sentinel process that knows the others and the replicas from the start.

    Args:
        binary: the server.
        port: where it listens.
        lines: what else is in its configuration.
    """

    def __init__(self, binary: ServerBinary, port: int, lines: Sequence[str]) -> None:
        self._lines = (f"port {port}", f"bind {LOOPBACK}", *lines)
        self._fixed = port
        super().__init__(binary, tcp=True)

    def _command(self) -> list[str]:
        self.port = self._fixed
        path = self.directory / "sentinel.conf"
        if not path.exists():  # after a restart it uses its rewritten file
            path.write_text("\n".join([*self._lines, f"dir {self.directory}", ""]))
        listening = super()._command()
        command = listening[: listening.index(str(self.binary.path)) + 1]
        return [*command, str(path), "--sentinel"]


class Service:
    """A primary, its replicas, and Sentinels.

    Args:
        binary: the servers; the first one that is found unless given.
        replicas: how many.
        args: further options of every server.
    """

    def __init__(
        self,
        binary: ServerBinary | None = None,
        *,
        replicas: int = 2,
        args: Sequence[str] = (),
    ) -> None:
        self.binary = binary or first_binary()
        self._args = (*QUICK, *args)
        self._stack = ExitStack()
        self.servers: list[EmbeddedServer] = []
        self.sentinels: list[Sentinel] = []
        try:
            self._start(1 + replicas)
        except BaseException:
            self._stack.close()
            raise

    def _start(self, count: int) -> None:
        for _ in range(count):
            self.servers.append(self._launch())
        first, *others = self.servers
        for server in others:
            self._follow(server, first)
        ports = _free_ports(3)
        ids = [secrets.token_hex(20) for _ in ports]
        for port, own in zip(ports, ids, strict=True):
            known = [pair for pair in zip(ports, ids, strict=True) if pair[0] != port]
            lines = [f"sentinel myid {own}", *self._watched(known)]
            made = Sentinel(self.binary, port, lines)
            self.sentinels.append(self._stack.enter_context(made))
        self.wait_whole()

    def _launch(self) -> EmbeddedServer:
        """Start one server."""
        started = EmbeddedServer(self.binary, tcp=True, args=self._args)
        return self._stack.enter_context(started)

    def _seen(self, server: EmbeddedServer) -> Address:
        """Return its address as Sentinels and servers see it."""
        return LOOPBACK, server.port or 0

    def _watched(self, others: Sequence[tuple[int, str]]) -> list[str]:
        first, *replicas = map(self._seen, self.servers)
        return [
            f"sentinel monitor {NAME} {first[0]} {first[1]} 2",
            f"sentinel down-after-milliseconds {NAME} {DOWN_AFTER_MS}",
            f"sentinel failover-timeout {NAME} 2000",
            f"sentinel parallel-syncs {NAME} 2",
            *(f"sentinel known-replica {NAME} {host} {port}" for host, port in replicas),
            *(f"sentinel known-sentinel {NAME} {LOOPBACK} {port} {own}" for port, own in others),
        ]

    # -- addresses -------------------------------------------------------------------------

    @property
    def places(self) -> list[Address]:
        """Return host and port of each Sentinel."""
        return [(LOOPBACK, one.port or 0) for one in self.sentinels]

    @property
    def url(self) -> str:
        """Return the service's URL for clients."""
        hosts = ",".join(f"{host}:{port}" for host, port in self.places)
        return f"redis+sentinel://{hosts}/{NAME}"

    def client(self) -> redis.Redis:
        """Return a redis-py client, whose settings can be used; it is not connected."""
        made = redis.sentinel.Sentinel(self.places)  # type: ignore[no-untyped-call]  # not typed
        found: redis.Redis = made.master_for(NAME)
        return found

    def async_client(self) -> redis.asyncio.Redis:
        """Return a redis-py asyncio client, which is not connected."""
        made = redis.asyncio.sentinel.Sentinel(self.places)  # type: ignore[no-untyped-call]  # same
        found: redis.asyncio.Redis = made.master_for(NAME)
        return found

    def raw(self, server: EmbeddedServer) -> redis.Redis:
        """Return a plain client of one server or Sentinel."""
        made: redis.Redis = redis.Redis.from_url(server.url, retry=Retry(NoBackoff(), 0))
        return self._stack.enter_context(made)

    # -- roles -----------------------------------------------------------------------------

    def told(self, sentinel: Sentinel) -> Address:
        """Return the primary's address according to a Sentinel."""
        with redis.Redis.from_url(sentinel.url, retry=Retry(NoBackoff(), 0)) as client:
            return _told(client)

    def primary(self) -> EmbeddedServer:
        """Return the primary according to the first running Sentinel."""
        address = self.told(next(one for one in self.sentinels if one.is_running))
        return next(one for one in self.servers if self._seen(one) == address)

    def replicas(self) -> list[EmbeddedServer]:
        """Return the other running servers."""
        primary = self.primary()
        return [one for one in self.servers if one is not primary and one.is_running]

    def wait_whole(self) -> None:
        """Wait until every running server has its role, and every Sentinel knows.

        Sentinels report links up to 10 s late, so the servers themselves are asked. A Sentinel
        learns within 10 s that a replaced primary is back, watches it for 8 s more, and then makes
        it a replica, which needs a copy.
        """
        running = [self.raw(one) for one in self.sentinels if one.is_running]
        wait_for(lambda: len({_told(one) for one in running}) == 1)
        try:
            wait_for(lambda: self._is_followed(_told(running[0])), 40)
        except TimeoutError as error:
            logs = "\n".join(one.log[-2_000:] for one in self.sentinels)
            raise TimeoutError(f"{error}; the Sentinels say:\n{logs}") from error
        replicas = len(self.replicas())
        others = len(running) - 1
        wait_for(lambda: all(_is_content(one, replicas, others) for one in running))

    def _is_followed(self, address: Address) -> bool:
        """Tell if the primary knows its role, and all other running servers follow it."""
        primary = next(one for one in self.servers if self._seen(one) == address)
        others = sum(one.is_running for one in self.servers) - 1
        with redis.Redis.from_url(primary.url, retry=Retry(NoBackoff(), 0)) as client:
            try:
                told = client.info("replication")
            except redis.exceptions.ConnectionError:  # Sentinel closes connections during changes
                return False
        if told["role"] != "master" or _online(told) != others:
            return False
        # Valkey 9.1 lists a replica as online while it loads its first copy.
        replicas = [one for one in self.servers if one is not primary and one.is_running]
        return all(_has_its_copy(one) for one in replicas)

    # -- faults ----------------------------------------------------------------------------

    def kill_primary(self) -> EmbeddedServer:
        """Kill the primary at once, and return it."""
        old = self.primary()
        old.kill()
        return old

    def fail_over(self) -> EmbeddedServer:
        """Tell a Sentinel to promote another server, wait for it, and return the old primary."""
        old = self.primary()
        self.raw(self.sentinels[0]).execute_command("SENTINEL FAILOVER", NAME)
        self.wait_for_another_than(old)
        return old

    def wait_for_another_than(self, old: EmbeddedServer) -> EmbeddedServer:
        """Wait until all running Sentinels name another server, and return it."""
        before = self._seen(old)
        running = [one for one in self.sentinels if one.is_running]
        wait_for(lambda: all(self.told(one) != before for one in running), 30)
        return self.primary()

    def bring_back(self, server: EmbeddedServer) -> None:
        """Start a killed server as a replica, and wait until the service is whole."""
        host, port = self._seen(self.primary())
        server.args = (*server.args, "--replicaof", host, str(port))
        server.restart()
        self.wait_whole()

    def _follow(self, server: EmbeddedServer, primary: EmbeddedServer) -> None:
        self.raw(server).execute_command("REPLICAOF", *self._seen(primary))

    def close(self) -> None:
        """End all processes, Sentinels first."""
        for one in self.servers:
            if one.is_running:
                one.resume()
        self._stack.close()

    def __enter__(self) -> Service:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind((LOOPBACK, 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def _has_its_copy(replica: EmbeddedServer) -> bool:
    with redis.Redis.from_url(replica.url, retry=Retry(NoBackoff(), 0)) as client:
        try:
            told = client.info("replication")
        except redis.exceptions.ConnectionError:  # also while it loads
            return False
    return bool(told.get("master_link_status") == "up")


def _told(sentinel: redis.Redis) -> Address:
    host, port = sentinel.execute_command("SENTINEL GET-MASTER-ADDR-BY-NAME", NAME)
    return host.decode(), int(port)


def _online(told: dict[str, Any]) -> int:
    """Count the replicas that follow, according to a server."""
    return sum(
        told[f"slave{number}"]["state"] == "online" for number in range(told["connected_slaves"])
    )


def _is_content(sentinel: redis.Redis, replicas: int, others: int) -> bool:
    """Tell if a Sentinel sees as many healthy servers as run."""
    state = sentinel.sentinel_master(NAME)
    seen = [one for one in sentinel.sentinel_slaves(NAME) if one["flags"] == "slave"]
    is_well = state["flags"] == "master" and state["num-other-sentinels"] >= others
    return is_well and len(seen) == replicas
