"""The plan of a world: which features, faults, producers and workers it has, from its seed.

Each part has a name, so that a plan can be told in words, and repeated with some of its parts.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

__all__ = ["BLOWS", "FEATURES", "STRIKES", "Blow", "Plan", "draw_plan"]

FAULT_SECONDS = 40.0
"""Virtual seconds in which there are faults, and producers add jobs."""
FEATURES = {
    "keys": 0.5,
    "dedup": 0.4,
    "batches": 0.4,
    "schedule": 0.4,
    "hand-over": 0.3,
    "ttl": 0.3,
    "bounded": 0.2,
    "rate": 0.2,
    "partitions": 0.2,
    "pause": 0.25,
    "purge": 0.15,
    "clear": 0.1,
    "replicas": 0.2,
    "two nodes": 0.15,
    "share": 0.2,
    "slots": 0.2,
}
"""Features and events of a system, each with the share of the worlds that have it."""
LATER_FEATURES = {"key rate": 0.2, "steps": 0.15, "hold": 0.2, "extend": 0.2}
LATEST_FEATURES = {
    "on dead": 0.2,
    "hands batch": 0.2,
    "key hold": 0.2,
    "declared": 0.2,
    "waits": 0.15,
}
"""Features that are drawn apart: the other worlds keep their stories."""
NEWEST_FEATURES = {"calls": 0.2}
PLACES = {"cluster": 0.15, "sentinel": 0.1}
"""Where the queue is, if neither on one server nor on two: in a Redis Cluster of two primaries, or
behind Sentinels. Each primary has a replica, which takes over at an address of its own."""
STRIKES = ("cut request", "cut reply", "mute request", "mute reply", "delay request", "delay reply")
"""What may happen to bytes: the connection breaks, all is lost without a sign, or they are late."""
LONGEST_STOP = 12.0
"""Most seconds for which a process is stopped; more than any lease of these tests."""
LONGEST_OUTAGE = 6.0
"""Most seconds for which a server is down, or a killed process does not run."""
BLOWS: dict[str, tuple[float, float, float]] = {
    "kill": (0.5, 0.1, LONGEST_OUTAGE),
    "stop": (0.5, 0.1, LONGEST_STOP),
    "cut all": (0.5, 0.0, 0.0),
    "restart server": (0.5, 0.1, LONGEST_OUTAGE),
    "flush scripts": (0.5, 0.0, 0.0),
    "fill server": (0.2, 0.5, 10.0),
    "slow server": (0.2, 0.5, 10.0),
    "step clock": (0.15, -3600.0, 3600.0),
    "lose tail": (0.15, 0.1, LONGEST_OUTAGE),
    "fail over": (0.15, 0.1, LONGEST_OUTAGE),
    "flush all": (0.08, 0.0, 0.0),
}
"""What may happen to a process or a server: the share of the worlds, and the least and the most
seconds of one. A clock is set by so many seconds."""
MOVE, LONGEST_MOVE = "move slot", 4.0
"""What happens in a cluster, and the most seconds for which a slot moves."""
BLOWS_OF_PLACE = {"cluster": (MOVE, "fail over"), "sentinel": ("fail over",)}
RIVALS = (
    ("clear", "keys"),  # until the queue is configured again, it has no order
    ("clear", "key rate"),  # so do its keys
    ("clear", "partitions"),  # it is for a queue that no client uses
    ("flush all", "keys"),
    ("flush all", "partitions"),
    ("partitions", "key rate"),  # jobs of a batch are in the partition of the batch
    ("keys", "share"),  # an ordered queue has no share
    ("two nodes", "keys"),  # order, dedup ids and rate are those of each node
    ("two nodes", "dedup"),
    ("two nodes", "rate"),
    ("two nodes", "slots"),
    ("two nodes", "key rate"),
    ("two nodes", "clear"),
    ("two nodes", "cluster"),
    ("two nodes", "sentinel"),
    ("cluster", "sentinel"),
    ("cluster", "step clock"),  # a slot that moves to a server of another time: the same
)
"""Parts that exclude each other: the second one is left out."""
OF_PROCESSES = ("kill", "stop")
"""Blows that strike a process; the others strike a server."""
SERVERS = ("a", "b")
BLOW_PAUSE = 4.0
"""Mean seconds between two blows."""
ALWAYS = frozenset({"p0", "w0"})
"""Names of members that each system has."""


@dataclass(frozen=True)
class Blow:
    """A blow.

    Attributes:
        name: its number and its kind.
        kind: one of `BLOWS`.
        at: seconds after the beginning.
        target: name of the process or the server.
        seconds: for how long, or by how much.
    """

    name: str
    kind: str
    at: float
    target: str
    seconds: float


@dataclass(frozen=True)
class Plan:
    """A plan.

    Attributes:
        features: some of `FEATURES` and the later ones, and of `PLACES`.
        strikes: some of `STRIKES`.
        blows: what happens, in the order of time.
        servers, producers, workers: their names.
        concurrency: of each worker.
        seed: it was drawn from this one.
    """

    features: tuple[str, ...]
    strikes: tuple[str, ...]
    blows: tuple[Blow, ...]
    servers: tuple[str, ...]
    producers: tuple[str, ...]
    workers: tuple[str, ...]
    concurrency: int
    seed: int

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of all parts that a plan can do without."""
        members = [name for name in (*self.producers, *self.workers) if name not in ALWAYS]
        return (*self.features, *self.strikes, *(blow.name for blow in self.blows), *members)

    def keep(self, names: Collection[str]) -> Plan:
        """Return the plan with those of its parts that have these names."""

        def kept(parts: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(part for part in parts if part in names or part in ALWAYS)

        return replace(
            self,
            features=kept(self.features),
            strikes=kept(self.strikes),
            blows=tuple(
                blow
                for blow in self.blows
                if blow.name in names and blow.target not in {*SERVERS} - {*servers_of(names)}
                if blow.kind != MOVE or "cluster" in names
            ),
            producers=kept(self.producers),
            workers=kept(self.workers),
            servers=servers_of(names),
        )


def servers_of(features: Collection[str]) -> tuple[str, ...]:
    """Return the names of the servers that a system with these features has."""
    return SERVERS if "two nodes" in features or "cluster" in features else SERVERS[:1]


def draw_plan(seed: int) -> Plan:
    """Return the plan of a seed."""
    draws = random.Random(f"plan {seed}")
    drawn = [name for name, share in FEATURES.items() if draws.random() < share]
    strikes = tuple(name for name in STRIKES if draws.random() < 0.5)
    drawn += [kind for kind, (share, *_) in BLOWS.items() if draws.random() < share]
    later = random.Random(f"later {seed}")
    drawn += [name for name, share in LATER_FEATURES.items() if later.random() < share]
    latest = random.Random(f"latest {seed}")
    drawn += [name for name, share in LATEST_FEATURES.items() if latest.random() < share]
    newest = random.Random(f"newest {seed}")
    drawn += [name for name, share in NEWEST_FEATURES.items() if newest.random() < share]
    places = random.Random(f"places {seed}")
    drawn += [name for name, share in PLACES.items() if places.random() < share]
    for part, rival in RIVALS:
        if part in drawn and rival in drawn:
            drawn.remove(rival)
    features = tuple(name for name in drawn if name not in BLOWS)
    kinds = [kind for kind in drawn if kind in BLOWS]
    for place in PLACES:
        kinds += [kind for kind in BLOWS_OF_PLACE[place] if place in drawn and kind not in kinds]
    servers = servers_of(features)
    producers = tuple(f"p{i}" for i in range(draws.choice((1, 2))))
    workers = tuple(f"w{i}" for i in range(draws.choice((1, 2, 3))))

    def draw_target(kind: str) -> str:
        return draws.choice((*producers, *workers) if kind in OF_PROCESSES else servers)

    return Plan(
        features=features,
        strikes=strikes,
        blows=_draw_blows(draws, kinds, draw_target),
        servers=servers,
        producers=producers,
        workers=workers,
        concurrency=draws.choice((1, 2, 4)),
        seed=seed,
    )


def _draw_blows(
    draws: random.Random, kinds: list[str], draw_target: Callable[[str], str]
) -> tuple[Blow, ...]:
    blows: list[Blow] = []
    at = draws.expovariate(1 / BLOW_PAUSE)
    while kinds and at < FAULT_SECONDS:
        kind = draws.choice(kinds)
        _, least, most = BLOWS.get(kind, (0.0, 0.1, LONGEST_MOVE))
        seconds = draws.uniform(least, most)
        blows.append(Blow(f"{kind} {len(blows)}", kind, at, draw_target(kind), seconds))
        at += draws.expovariate(1 / BLOW_PAUSE)
    return tuple(blows)
