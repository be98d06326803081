"""All features at once under faults: nothing is lost, nothing is stuck, and every count is exact.

    PYTHONPATH=src python -m tests.crash.storm --site server --faults 1000 --seed 7

Producers and workers of `tests.crash.flow` use schedules, keys with a limit and in order, a rate,
priorities, hand-over to both queues, batches with results, dedup ids, delays, ttls and cancels. A
`Site` says what may happen to the servers of a topology. At the end the faults stop, dead letters
are redriven, batches of dead producers are closed, and both queues have to become empty.
"""

from __future__ import annotations

import argparse
import logging
import random
import signal
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any

import redis
from redis.exceptions import RedisError

from penstock import Penstock, PenstockError, Queue, ResultGone, parse_id
from penstock.embedded import EmbeddedServer
from tests.crash.flow import ORDERS, TASKS
from tests.nodes.service import NAME, Service
from tests.support.binaries import first_binary
from tests.support.cluster import Cluster, RawCluster, slot_of_queue
from tests.support.keyspace import check_invariant
from tests.support.replicated import reach_replicas
from tests.support.twins import wait_for
from tests.support.workers import Nursery, Slot, whole_lines

__all__ = ["SITES", "Report", "Site", "storm"]

PRODUCERS = 2
KINDS = ("thread", "asyncio", "thread")
"""Workers."""
LEASE = 1.0
PER_KEY = 2
RATE, BURST = 200, 20
ALWAYS = ("--appendfsync", "always", "--repl-diskless-sync-delay", "0")
PATIENCE = 120.0
"""Seconds within which the queues become empty."""


class Site:
    """The servers of one topology, and the faults that they survive without a loss."""

    def __init__(self) -> None:
        self.stack = ExitStack()
        self.clients: list[Slot] = []

    url: str | list[str]
    servers: list[EmbeddedServer]
    rare: tuple[str, ...] = ("restart", "hang")
    """Faults of servers, methods of the site, in turn."""

    def restart(self, dice: random.Random) -> None:
        """Kill a server, which has every answered write on disk."""
        server = dice.choice(self.servers)
        server.kill()
        server.restart()

    def hang(self, dice: random.Random) -> None:
        """Stop a server for a moment."""
        server = dice.choice(self.servers)
        server.pause()
        time.sleep(dice.uniform(0.1, 0.6))  # the length of the fault
        server.resume()

    def cut(self, _: random.Random) -> None:
        """Close all connections of clients with all servers."""
        for server in self.servers:
            with suppress(RedisError), redis.Redis.from_url(server.url) as raw:
                raw.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    def check(self) -> None:
        """Check the layout of the keys."""
        for server in self.servers:
            with redis.Redis.from_url(server.url) as raw:
                check_invariant(raw)

    def __enter__(self) -> Site:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stack.close()


class ServerSite(Site):
    """One server."""

    def __init__(self, count: int = 1) -> None:
        super().__init__()
        binary = first_binary()
        self.servers = [
            self.stack.enter_context(EmbeddedServer(binary, tcp=True, appendonly=True, args=ALWAYS))
            for _ in range(count)
        ]
        self.url = self.servers[0].url


class FederationSite(ServerSite):
    """Three nodes; one of them may be down for a while."""

    rare = ("restart", "outage", "hang")

    def __init__(self) -> None:
        super().__init__(3)
        self.url = [server.url for server in self.servers]

    def outage(self, dice: random.Random) -> None:
        """Kill a node, and start it again later."""
        server = dice.choice(self.servers)
        server.kill()
        time.sleep(dice.uniform(0.5, 2))  # the length of the fault
        server.restart()


class ClusterSite(Site):
    """Three primaries with a replica each. A primary that is killed is back before it is missed."""

    rare = ("restart", "fail_over", "move", "hang")

    def __init__(self) -> None:
        super().__init__()
        args = ("--appendonly", "yes", *ALWAYS)
        made = Cluster(3, replicas=1, node_timeout=6000, args=args)
        self.cluster = self.stack.enter_context(made)
        self.url = self.cluster.url

    @property
    def servers(self) -> list[EmbeddedServer]:  # type: ignore[override]  # primaries change
        """Return the primaries."""
        return [member.server for member in self.cluster.primaries]

    def restart(self, dice: random.Random) -> None:
        """Kill a primary, and wait until the cluster is whole again."""
        super().restart(dice)
        self.cluster.settle()

    def fail_over(self, dice: random.Random) -> None:
        """Let a replica take over in agreement with its primary."""
        owner = self.cluster.owner(slot_of_queue(dice.choice((TASKS, ORDERS))))
        self.cluster.fail_over(owner)
        self.cluster.settle()

    def move(self, dice: random.Random) -> None:
        """Move the slot of a queue to another primary."""
        slot = slot_of_queue(dice.choice((TASKS, ORDERS)))
        self.cluster.move(slot, self.cluster.other(slot))

    def check(self) -> None:
        """Check the layout of the keys."""
        self.cluster.settle()
        with RawCluster(self.cluster) as raw:
            check_invariant(raw)


class SentinelSite(Site):
    """A primary, two replicas and three Sentinels.

    When the primary is killed, clients stand still and the replicas have all writes: without WAIT
    behind each call, a failover may lose the last ones.
    """

    rare = ("fail_over", "hang", "hang", "hang")

    def __init__(self) -> None:
        super().__init__()
        self.service = self.stack.enter_context(
            Service(first_binary(), args=("--appendonly", "yes", *ALWAYS))
        )
        self.url = self.service.url
        for sentinel in self.service.sentinels:  # a busy machine must cause no failover
            self.sentinel: Any = self.service.raw(sentinel)
            self.sentinel.execute_command("SENTINEL SET", NAME, "down-after-milliseconds", 6000)

    @property
    def servers(self) -> list[EmbeddedServer]:  # type: ignore[override]  # the primary changes
        """Return the primary."""
        port = self.sentinel.sentinel_get_master_addr_by_name(NAME)[1]
        return [one for one in self.service.servers if one.port == port]

    def hang(self, dice: random.Random) -> None:
        """Stop the primary for less time than Sentinels wait."""
        [server] = self.servers
        server.pause()
        time.sleep(dice.uniform(0.05, 0.3))  # the length of the fault
        server.resume()

    def fail_over(self, _: random.Random) -> None:
        """Kill the primary, and start it again as a replica of the next one."""
        for slot in self.clients:
            slot.child.signal(signal.SIGSTOP)
        with redis.Redis.from_url(self.service.primary().url) as raw:
            reach_replicas(raw, 2)
            old = self.service.kill_primary()
        self.service.wait_for_another_than(old)
        for slot in self.clients:
            if not slot.is_frozen:
                slot.child.signal(signal.SIGCONT)
        self.service.bring_back(old)

    def check(self) -> None:
        """Check the layout of the keys."""
        self.service.wait_whole()
        super().check()


SITES: dict[str, Callable[[], Site]] = {
    "server": ServerSite,
    "federation": FederationSite,
    "cluster": ClusterSite,
    "sentinel": SentinelSite,
}


@dataclass
class Story:
    """The lines that the clients have logged, by job and batch.

    Attributes:
        accepted: name of a job -> its ids.
        begun: job id -> number of the line and number of the delivery, of each run that began.
        done: job id -> the lines of the runs that came to their end.
        mortal: names of jobs with a ttl, or that were cancelled.
        members: id of a batch -> the names of jobs that may have joined.
        counts: id of a batch -> total, done, failed and dead as its callback has seen them.
    """

    accepted: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    begun: dict[str, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    done: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    names: dict[str, str] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    delivered: dict[str, set[tuple[int, str, int]]] = field(
        default_factory=lambda: defaultdict(set)
    )
    mortal: set[str] = field(default_factory=set)
    rejected: set[str] = field(default_factory=set)
    handing: set[str] = field(default_factory=set)
    members: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    conditions: dict[str, str] = field(default_factory=dict)
    opened: dict[str, str] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)
    counts: dict[str, list[tuple[int, ...]]] = field(default_factory=lambda: defaultdict(list))
    ticks: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    told: Counter[str] = field(default_factory=Counter)
    attempts: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)

    def read(self, log: Path) -> Story:
        """Read the lines of a log."""
        for at, line in enumerate(whole_lines(log.read_bytes())):
            event, *words = line.split(" ")
            self.told[event] += 1
            getattr(self, f"_{event}", self._other)(at, *words)
        return self

    def _other(self, *_: object) -> None:
        """Ignore an event that is only counted."""

    def _attempted(self, _: int, *names: str) -> None:
        self.attempts.update(names)

    def _accepted(self, _: int, name: str, job_id: str) -> None:
        self.accepted[name].add(job_id)

    def _begun(self, at: int, name: str, job_id: str, deliveries: str, ms: str, key: str) -> None:
        self.begun[job_id].append((at, int(deliveries)))
        self.names[job_id] = name
        if key != "-":
            self.delivered[parse_id(job_id).node].add((int(ms), job_id, int(deliveries)))
            self.keys[job_id] = key

    def _done(self, at: int, _: str, job_id: str, __: str) -> None:
        self.done[job_id].append(at)

    def _rejected(self, _: int, job_id: str) -> None:
        self.rejected.add(job_id)

    def _handing(self, _: int, name: str) -> None:
        self.handing.add(name)

    def _mortal(self, _: int, name: str) -> None:
        self.mortal.add(name)

    def _opening(self, _: int, name: str, on: str) -> None:
        self.conditions[name] = on

    def _opened(self, _: int, name: str, batch: str) -> None:
        self.opened[batch] = name

    def _closed(self, _: int, __: str, batch: str) -> None:
        self.closed.add(batch)

    def _member(self, _: int, name: str, batch: str) -> None:
        self.members[batch].add(name)

    def _counted(self, _: int, batch: str, *counts: str) -> None:
        self.counts[batch].append(tuple(map(int, counts)))

    def _tick(self, _: int, job_id: str, tick: str, __: str) -> None:
        self.ticks[int(tick)].add(job_id)

    def _struck(self, _: int, kind: str) -> None:
        self.told[f"lost {kind}"] += 1

    def _error(self, _: int, name: str) -> None:
        self.errors[name] += 1

    # -- rules -----------------------------------------------------------------------------

    def ids_of(self, name: str) -> set[str]:
        """Return the ids of all jobs with a name, answered or delivered."""
        return self.accepted.get(name, set()) | self._by_name.get(name, set())

    @property
    def _by_name(self) -> dict[str, set[str]]:
        if not hasattr(self, "_found"):
            self._found: dict[str, set[str]] = defaultdict(set)
            for job_id, name in self.names.items():
                self._found[name].add(job_id)
        return self._found

    def lost(self) -> set[str]:
        """Return jobs that were accepted, or handed over, and never came to their end."""
        done = {self.names[job_id] for job_id in self.done}
        wanted = {name for name in self.accepted if name not in self.mortal}
        wanted |= {f"{name}.{end}" for name in self.handing - self.mortal for end in "ao"}
        wanted |= {self.opened[batch] for batch in self.closed}
        return {name for name in wanted if name not in done}

    def doubled(self) -> dict[str, set[str]]:
        """Return the names with several jobs.

        A dedup id is unique on one node. So jobs that are added twice with one, by the producer or
        by a repeated hand-over to another queue, may be on several nodes.
        """
        found: dict[str, set[str]] = {}
        for name in {*self.accepted, *self._by_name}:
            ids = self.ids_of(name)
            has_dedup = name.endswith(".o") or self.attempts[name] > 1
            if len(ids) > (len({parse_id(one).node for one in ids}) if has_dedup else 1):
                found[name] = ids
        return found

    def disorder(self) -> list[tuple[bytes, bytes]]:
        """Return pairs of jobs of a key of which the later one began before the other had ended.

        Dead letters leave the order, and come back at any place.
        """
        found, rows = [], defaultdict(list)
        for job_id, key in self.keys.items():
            runs = self.begun[job_id]
            if job_id not in self.rejected:
                last = max(runs, key=lambda run: run[1])[0]
                rows[key, parse_id(job_id).node].append((parse_id(job_id).number, runs[0][0], last))
        for jobs in rows.values():
            jobs.sort()
            for (one, _, last), (other, first, _) in pairwise(jobs):
                if last > first:
                    found.append((one, other))
        return found

    def too_fast(self, rate: float, burst: int) -> dict[str, float]:
        """Return by how many seconds the deliveries of the ordered queue were too early."""
        found: dict[str, float] = {}
        for place, times in self.delivered.items():
            tat = 0.0
            for ms, *_ in sorted(times):
                tat = max(tat, ms / 1000) + 1 / rate
                early = tat - ms / 1000 - burst / rate
                if early > 0.05:
                    found[place] = max(found.get(place, 0), early)
        return found

    def wrong_batches(self) -> list[Any]:
        """Return batches whose counters are not those of their jobs when the callback ran."""
        found: list[Any] = []
        for batch, name in self.opened.items():
            counts = self.counts.get(batch, [])
            joined = set()
            for member in self.members[batch]:
                joined |= self.ids_of(member) | self.ids_of(f"{member}.a")
            for total, done, failed, dead in counts:
                left = total - done - failed - dead  # redriven when the callback was due
                is_whole = total == len(joined) and 0 <= left <= len(joined & self.rejected)
                is_done = self.conditions[name] == "finished" or done == total
                if not is_whole or failed or not is_done:
                    found.append((name, batch, len(joined), (total, done, failed, dead)))
            if batch in self.closed and not counts:
                found.append((name, batch, "its callback has not run"))
        return found


@dataclass(frozen=True)
class Report:
    """The result of a storm."""

    site: str
    faults: Counter[str]
    story: Story
    stats: dict[str, Any]
    seconds: float

    def check_that_it_was_hard(self) -> None:
        """Check that there were many jobs of each kind, and many interruptions."""
        told, stats = self.story.told, self.stats.values()
        assert told["lost reply"] + told["lost request"] >= 5, str(self)
        assert self.faults["kill"] >= 2, str(self)
        assert sum(one.crashed for one in stats) >= 1, str(self)
        assert sum(one.acked for one in stats) >= 100, str(self)
        assert len(self.story.counts) >= 5, str(self)
        assert self.story.ticks, str(self)

    def __str__(self) -> str:
        story, told = self.story, self.story.told
        jobs = sum(one.enqueued for one in self.stats.values())
        again = sum(len(at) > 1 for at in story.done.values())
        count = sum(self.faults.values())
        lines = [
            f"{self.site}: {count} faults in {self.seconds:.0f} s: {dict(self.faults)}",
            f"calls broken behind the reply: {told['lost reply']}, before: {told['lost request']}",
            f"jobs: {jobs}, runs: {told['begun']}, done: {told['done']}, done again: {again}",
            f"batches: {len(story.opened)}, callbacks: {len(story.counts)}",
            f"ticks: {len(story.ticks)}, errors of producers: {dict(story.errors)}",
            f"lost: {len(story.lost())}, doubled: {len(story.doubled())}",
        ]
        names = ("acked", "nacked", "released", "crashed", "died", "cancelled", "expired")
        for queue, one in self.stats.items():
            told_of = ", ".join(f"{name} {getattr(one, name)}" for name in names)
            lines.append(f"{queue}: {told_of}")
        return "\n  ".join(lines)


class Storm:
    """The clients of a site, and the faults that befall them.

    Args:
        site: the servers.
        log: a file in an empty directory.
        seed: of the choices.
    """

    def __init__(self, site: Site, log: Path, seed: int) -> None:
        log.touch()
        self.site, self.log, self.dice = site, log, random.Random(seed)
        self.faults: Counter[str] = Counter()
        self.calm = log.parent / "calm"
        self.stack = ExitStack()
        logger = logging.getLogger("penstock")
        self.stack.callback(logger.setLevel, logger.level)
        logger.setLevel(logging.CRITICAL)
        self.client = self.stack.enter_context(Penstock(site.url, retry_for=30))
        self.tasks, self.orders = self.client.queue(TASKS), self.client.queue(ORDERS)
        patient: dict[str, Any] = {"lease": LEASE, "max_crashes": 0, "max_attempts": 1000}
        patient |= {"max_releases": 0, "backoff_base": 0.01, "backoff_cap": 0.05}
        self.tasks.configure(per_key=PER_KEY, **patient)
        self.orders.configure(ordered=True, rate=f"{RATE}/s", burst=BURST, **patient)
        places: dict[str, Any] = {"url": site.url, "log": str(log), "calm": str(self.calm)}
        kinds = [*KINDS, *["produce"] * PRODUCERS]
        homes = [self.stack.enter_context(Nursery("tests.crash.flow")) for _ in kinds]
        self.producers, self.workers = [], []
        for number, (home, kind) in enumerate(zip(homes, kinds, strict=True)):
            if kind == "produce":
                self.producers.append(Slot(home, "produce", name=f"p{number}", **places))
            else:
                self.workers.append(Slot(home, "work", kind=kind, **places))
        site.clients += [*self.producers, *self.workers]

    def strike(self, number: int) -> None:
        """Let one fault happen; each 15th is one of a server."""
        chance, clients = self.dice.random(), self.producers + self.workers
        turn, place = divmod(number, 15)
        if place == 7:
            name = self.site.rare[turn % len(self.site.rare)]
            getattr(self.site, name)(self.dice)
        elif chance < 0.1:
            name = "cut"
            self.site.cut(self.dice)
        elif chance < 0.35:
            name = "kill"
            self.dice.choice(clients).renew()
        elif chance < 0.55:
            name = "freeze"
            self.dice.choice(clients).freeze()
        else:
            name = self.dice.choice(("lose reply", "break request"))
            number = signal.SIGUSR1 if name == "lose reply" else signal.SIGUSR2
            self.dice.choice([one for one in clients if not one.is_frozen] or clients).child.signal(
                number
            )
        self.faults[name] += 1

    def check_limits(self) -> None:
        """Check that no more jobs of a key are active than may be."""
        for queue, most in ((self.tasks, PER_KEY), (self.orders, 1)):
            views = queue.peek(1000, state="active")
            held = Counter(
                (parse_id(view.id).node, view.key_hash) for view in views if view.key_hash
            )
            crowded = {key: count for key, count in held.items() if count > most}
            assert not crowded, f"{queue.name}: {crowded}"

    def settle(self) -> None:
        """End the faults, and wait until both queues are empty."""
        for slot in self.workers:
            if slot.is_frozen:
                slot.freeze()
        for slot in self.producers:
            slot.kill()
        self.calm.touch()
        for slot in self.workers:  # a script may wait for a call that was broken
            slot.renew()
        deadline = time.monotonic() + PATIENCE
        while not all([self._is_empty(self.tasks), self._is_empty(self.orders)]):
            left = [queue.stats() for queue in (self.tasks, self.orders)]
            assert time.monotonic() < deadline, f"stuck: {left} {self.tasks.batches.list()}"
            time.sleep(0.2)  # other processes empty the queues: no event tells
        for slot in self.workers:
            slot.kill()

    def _is_empty(self, queue: Queue) -> bool:
        with suppress(RedisError, PenstockError):
            queue.schedules.remove("nightly")
            queue.sweep()
            for batch in queue.batches.list():
                if batch.state == "open":
                    queue.batches.close(batch.id)
            if any(batch.state == "called" for batch in queue.batches.list()):
                return False  # its callback is to see what there was, before dead letters are back
            queue.redrive()
            for view in queue.peek(100, state="dead"):
                if not queue.redrive([view.id]):  # its ttl has ended
                    queue.delete([view.id])
            one = queue.stats()
            left = one.ready + one.scheduled + one.active + one.parked + one.dead + one.unswept
            return not left and not one.unreachable and not queue.batches.list()
        return False

    def __enter__(self) -> Storm:
        return self

    def __exit__(self, *_: object) -> None:
        for slot in self.producers + self.workers:
            slot.child.signal(signal.SIGCONT)
        self.stack.close()


def kept_value(queue: Queue, job_id: str) -> Any:
    """Return the value of a job that is done; None if only a hint of its end was kept."""
    try:
        return queue.result(job_id, timeout=0)
    except ResultGone as gone:
        if "hints carry no values" in str(gone):
            return None
        raise


def storm(name: str, directory: Path, *, faults: int, seed: int) -> Report:
    """Run a storm of so many faults on a site, and check the rules.

    Args:
        name: of the site.
        directory: an empty one.
        faults: how many.
        seed: of the choices.
    """
    began = time.monotonic()
    with SITES[name]() as site, Storm(site, directory / "log", seed) as rig:
        wait_for(lambda: rig.tasks.stats().acked > 20 and rig.orders.stats().acked > 20, 60)
        for number in range(faults):
            time.sleep(rig.dice.uniform(0, 0.15))  # the work to be interrupted
            rig.strike(number)
            if number % 20 == 0:
                rig.check_limits()
        rig.settle()
        site.check()
        story = Story().read(rig.log)
        for batch in story.closed:  # a report that was kept on another node has no value
            values = (story.opened[batch], None) if name == "federation" else (story.opened[batch],)
            assert kept_value(rig.tasks, batch) in values, batch
        stats = {queue.name: queue.stats() for queue in (rig.tasks, rig.orders)}
        report = Report(name, rig.faults, story, stats, time.monotonic() - began)
        check(report)
        return report


def check(report: Report) -> None:
    """Check the rules.

    Raises:
        AssertionError: one of them does not hold.
    """
    story = report.story
    for name, one in report.stats.items():
        ended = one.acked + one.cancelled + one.expired + one.deleted + one.evicted + one.trimmed
        assert one.enqueued == ended, f"{name}: {one.enqueued} added, {ended} ended\n{report}"
        assert one.dangling == 0
    assert not story.lost(), (story.lost(), str(report))
    assert not story.disorder(), (story.disorder(), str(report))
    assert not story.doubled(), (story.doubled(), str(report))
    assert not story.wrong_batches(), (story.wrong_batches(), str(report))
    assert not story.too_fast(RATE, BURST), (story.too_fast(RATE, BURST), str(report))
    twice = {tick: ids for tick, ids in story.ticks.items() if len(ids) > 1}
    assert not twice, (twice, str(report))


@contextmanager
def _directory(kept: str | None) -> Iterator[Path]:
    if kept:
        Path(kept).mkdir(parents=True)
        yield Path(kept)
        return
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


def main(argv: Sequence[str] | None = None) -> None:
    """Run a storm."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--site", choices=SITES, default="server")
    parser.add_argument("--faults", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--keep", help="a directory for the log of the clients")
    args = parser.parse_args(argv)
    with _directory(args.keep) as directory:
        print(storm(args.site, directory, faults=args.faults, seed=args.seed))


if __name__ == "__main__":
    main()
