"""The longest time for which one call of a script holds the server."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks import report
from benchmarks.bed import Bed
from benchmarks.figures import Budget, Table, median
from benchmarks.plan import BODY, Plan
from penstock.core.flows import new_epoch
from penstock.wire.scripts import Script, all_scripts, script

__all__ = ["hold"]

BUDGET_MS = 50.0
LARGE = b"x" * 1_000_000
SINGLE = b"x" * 4_000_000
BATCH = 1000
TTL_MS, SHIFT_MS = 1_800_000, 3_000_000
"""Leases and ttls end during the measured calls, as the queue's clock is set forward."""
RUNS = 3
ENTRIES = 100_000
"""Calls that the server's SLOWLOG keeps meanwhile."""

Numbers = Sequence[bytes]


@dataclass(frozen=True, slots=True)
class State:
    """A state for all jobs of the queue.

    Attributes:
        name: for the report.
        place: the structure in which the jobs lie.
        fields: those of each record, behind the version.
        delay: ms for which they are delayed.
        then: the calls on them: none, `reserve`, or `bury` as well.
        over: whether their leases and ttls end before the calls are measured.
        named: whether each has a dedup id.
    """

    name: str
    place: str
    fields: bytes = b""
    delay: int = 0
    then: str = ""
    over: bool = False
    named: bool = False


LASTING = b";l=36000000"
MORTAL = b";t=%d" % TTL_MS
STATES: tuple[State, ...] = (
    State("ready", "ready"),
    State("ready, dedup ids", "ready", named=True),
    State("ready, expired", "ready", MORTAL, over=True),
    State("scheduled", "scheduled", delay=36_000_000),
    State("scheduled, due", "scheduled", delay=1),
    State("scheduled, expired", "scheduled", MORTAL, delay=TTL_MS - 1, over=True),
    State("active", "active", LASTING, then="reserve"),
    State("active, lease ended", "active", b";l=%d" % TTL_MS, then="reserve", over=True),
    State("active, expired", "active", LASTING + MORTAL, then="reserve", over=True),
    State("once", "once", b";l=0" + MORTAL, then="reserve"),
    State("once, expired", "once", b";l=0" + MORTAL, then="reserve", over=True),
    State("dead", "dead", LASTING, then="bury"),
)
SINGLE_STATES = tuple(one for one in STATES if one.name in ("ready", "scheduled", "active", "dead"))


def hold(bed: Bed, plan: Plan) -> Table:
    """Measure every script, with the largest arguments, on a queue whose jobs have one state."""
    table = Table(
        "hold",
        "The longest time for which one call holds the server",
        ("jobs", "state", "slowest script", "ms", "the next ones"),
        f"SLOWLOG: the longest call of a run, median of {min(RUNS, plan.rounds)} runs; each script"
        " with 1,000 jobs named, asked for or added, or as large a page as it takes. Other work on"
        " the machine counts: run it alone.",
    )
    singles = max(plan.large // 100, 2)
    loads = [(f"{plan.hold:,} of 100 B", plan.hold, BODY, STATES)]
    loads += [(f"{plan.large:,} of 1 MB", plan.large, LARGE, STATES)]
    loads += [(f"{singles} of 4 MB", singles, SINGLE, SINGLE_STATES)]
    before = bed.redis.config_get("slowlog-*")
    bed.redis.config_set("slowlog-log-slower-than", 0)
    bed.redis.config_set("slowlog-max-len", ENTRIES)
    for load, jobs, body, states in loads:
        for state in states:
            found = _Held(bed, state, jobs, body).measure(min(RUNS, plan.rounds))
            figures = sorted(((median(ms), name) for name, ms in found.items()), reverse=True)
            (worst, slowest), others = figures[0], figures[1:4]
            name = f"{load}, {state.name}: longest call"
            budget = Budget(name, worst, BUDGET_MS, unit="ms") if body is not SINGLE else None
            words = ", ".join(f"{other} {ms:.1f}" for ms, other in others)
            report.say(f"  {name}: {slowest} {worst:.1f} ms, {words}", progress=True)
            table.add(load, state.name, slowest, worst, words, budget=budget)
            for ms, other in figures:
                table.rounds[f"{load}, {state.name}: {other} ms"] = [ms]
    for name, value in before.items():
        bed.redis.config_set(name, value)
    return table


@dataclass(slots=True)
class _Held:
    """A queue whose jobs have one state, and the scripts that run on it."""

    bed: Bed
    state: State
    jobs: int
    body: bytes
    serial: int = 0
    keys: dict[str, bytes] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    saved: dict[bytes, bytes] = field(default_factory=dict)
    epoch: str = field(default_factory=new_epoch)

    def measure(self, runs: int) -> dict[str, list[float]]:
        """Return the longest call of each script in ms, for each run."""
        queue = self.bed.client.queue(f"hold {secrets.token_hex(4)}")
        self.keys = {
            **queue.ops.keys.names,
            "checkpoint": queue.ops.keys.checkpoint("hold"),
            "stage": queue.ops.keys.stage("hold", 1),
            "commit": queue.ops.keys.commit("hold"),
        }
        for one in all_scripts():
            self.names[self.bed.redis.script_load(one.source)] = one.name
        found: dict[str, list[float]] = {}
        for _ in range(runs):
            for name, ms in self._run().items():
                found.setdefault(name, []).append(ms)
        self.bed.redis.slowlog_reset()
        self._call("clear")
        for name, ms in self._slowest().items():
            found[name] = [ms]
        self.bed.drop([*self.saved.values()])
        return found

    def _call(self, name: str, *args: Any, rest: Sequence[Any] = ()) -> list[Any]:
        """Run a script and return its reply."""
        return self._send("EVALSHA", script(name), script(name).sha, *args, *rest)

    def _send(self, command: str, source: Script, text: str, *args: Any) -> list[Any]:
        self.serial += 1
        keys = [self.keys[kind] for kind in source.keys]
        producer = ("00000000445566ff",) if "producer" in source.args else ()
        reply: list[Any] = self.bed.redis.execute_command(
            command, text, len(keys), *keys, self.serial, *producer, *args
        )
        return reply

    # -- filling ---------------------------------------------------------------------------

    def _fill(self) -> None:
        """Bring all jobs into the state, unless nearly all of them still have it.

        They are built once; later the server copies the saved keys back.
        """
        redis, keys = self.bed.redis, set(self.keys.values())
        if not self.saved:
            self._build()
            self.saved = {key: b"%b saved" % key for key in keys if redis.exists(key)}
            for key, copy in self.saved.items():
                redis.copy(key, copy)
        elif self._there() < self.jobs * 9 // 10:
            self.bed.drop([*keys])
            for key, copy in self.saved.items():
                redis.copy(copy, key)

    def _there(self) -> int:
        size = {"ready": "xlen"}.get(self.state.place, "zcard")
        return int(getattr(self.bed.redis, size)(self.keys[self.state.place]))

    def _build(self) -> None:
        self._call("configure", self.epoch, rest=["dead_max", 10**8])
        chunk = max(1, min(BATCH, 16_000_000 // len(self.body)))
        for start in range(0, self.jobs, chunk):
            name, *args = self._adding(min(chunk, self.jobs - start), b"")
            source = script(name)
            self._send("EVAL", source, self._with_bodies(source), *args)
        if self.state.then:
            self._reserve_all()
        if self.state.over:
            self.bed.redis.hset(self.keys["meta"], "off", SHIFT_MS)

    def _with_bodies(self, source: Script) -> str:
        """Return the script with Lua that makes the bodies on the server, so that none is sent."""
        return (
            f"local body = string.rep('{BODY.decode()}', {len(self.body) // len(BODY)})\n"
            f"for i = {len(source.args) + 1}, #ARGV do ARGV[i] = ARGV[i] .. body end\n"
            f"{source.source}"
        )

    def _adding(self, n: int, body: bytes) -> list[Any]:
        """Return the script that adds jobs, and its arguments."""
        record = b"1" + self.state.fields
        if not self.state.named:
            return ["enqueue", "", self.state.delay, "", 0, "", *[b"%b\n%b" % (record, body)] * n]
        named = [b"%b;d=%x-%d\n%b" % (record, self.serial, i, body) for i in range(n)]
        return ["claim", "", self.state.delay, "", 0, "", "", *named]

    def _reserve_all(self) -> None:
        while self.bed.redis.xlen(self.keys["ready"]):
            self._call("reserve", BATCH, 7, "hold", 0, "")
            if self.state.then == "bury":
                numbers = self.bed.redis.zrange(self.keys["active"], 0, -1)
                self._call("bury", "", "", "broken", rest=numbers)

    # -- measuring -------------------------------------------------------------------------

    def _run(self) -> dict[str, float]:
        """Run every script once or more; return the longest call of each in ms."""
        found: dict[str, float] = {}
        for step in (*self._looks(), *self._changes()):
            self._fill()
            numbers = self._numbers()
            self.bed.redis.slowlog_reset()
            step(numbers)
            for name, ms in self._slowest().items():
                found[name] = max(found.get(name, 0.0), ms)
        return found

    def _numbers(self) -> Numbers:
        """Return up to 1,000 jobs of the state."""
        if self.state.place == "ready":
            reply = self.bed.redis.xrange(self.keys["ready"], count=min(BATCH, self.jobs))
            return [entry[0] for entry in reply]
        found: list[bytes] = self.bed.redis.zrange(self.keys[self.state.place], 0, BATCH - 1)
        return found

    def _slowest(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for entry in self.bed.redis.slowlog_get(ENTRIES):
            words = entry["command"].split()
            name = self.names.get(words[1].decode()) if words[0].upper() == b"EVALSHA" else None
            if name is not None:
                found[name] = max(found.get(name, 0.0), entry["duration"] / 1000)
        return found

    def _looks(self) -> tuple[Callable[[Numbers], object], ...]:
        call, place = self._call, self.state.place
        logical = {"ready": "ready", "scheduled": "scheduled", "dead": "dead"}.get(place, "active")
        none = "dead" if logical != "dead" else "ready"
        return (
            lambda _: call("peek", "ready", 0, BATCH, 0),
            lambda _: call("peek", logical, 0, BATCH, 0),
            lambda _: call("peek", logical, BATCH, 1, 1),
            lambda _: call("peek", logical, -BATCH, BATCH, 0),
            lambda _: self._scan(),
            lambda _: self._scan(none),
            lambda _: call("survey", "", place, "", "", BATCH, 2),
            lambda _: call("stats"),
            lambda _: call("pending", "-inf", 0, 0),
            lambda numbers: call("show", "", rest=numbers[:100]),
            lambda _: call("lookup", "none"),
            lambda _: call("retime", "expiry" if place == "ready" else place, 0, 10**12, 0),
            lambda _: call("sweep", 900_000),
        )

    def _scan(self, *states: str) -> None:
        cursor: Any = b"0"
        for _ in range(5):
            cursor = self._call("scan", cursor, BATCH, 1, rest=states)[5]
            if cursor == b"0":
                return

    def _changes(self) -> tuple[Callable[[Numbers], object], ...]:
        call = self._call
        purged = {"ready": "ready", "once": "once", "dead": "dead"}
        kinds = {"scheduled": ("scheduled", "due"), "active": ("active", "ended")}
        states = kinds.get(self.state.place) or (purged[self.state.place],)
        return (
            lambda numbers: call("extend", "", "", 36_000_000, 1, rest=numbers),
            lambda numbers: call("recover", "", "*", 9, "hold", "", rest=self._receipts(numbers)),
            lambda numbers: call("promote", "", rest=numbers),
            lambda numbers: call("dequeue", "", rest=numbers),
            lambda numbers: call("nack", "", "", 0, 5, "broken", rest=numbers),
            lambda numbers: call("release", "", "", 0, rest=numbers),
            lambda numbers: call("bury", "", "", "broken", rest=numbers),
            lambda _: call("redrive", "", BATCH, 0),
            lambda numbers: call("redrive", "", 0, 0, rest=numbers),
            lambda _: call("reserve", BATCH, 8, "hold", 0, ""),
            lambda numbers: call("settle", "", "", BATCH, 8, "hold", "", rest=numbers),
            lambda numbers: call("ack", "", "", "", rest=numbers),
            lambda numbers: call("withdraw", "", rest=numbers),
            lambda numbers: call("delete", "", rest=numbers),
            lambda _: self._batch(),
            lambda _: call("evict", BATCH, 1),
            lambda _: call(*self._adding(self._fitting(), self.body)),
            lambda _: self._stage(),
            lambda _: [
                call("acquire", "", "consumer", "a" * 32, "", 1, "hold"),
                call("resign", "consumer", "a" * 32),
            ],
            *(lambda _, state=state: call("purge", state, "", 0) for state in states),
        )

    def _fitting(self) -> int:
        """Return the number of jobs that one call adds: at most 1 MiB, and at least one."""
        return max(1, min(BATCH, 1_048_576 // len(self.body)))

    def _receipts(self, numbers: Numbers) -> list[bytes]:
        """Return each number with the receipt of its delivery, if it has one."""
        scores = self.bed.redis.zmscore(self.keys["active"], numbers) if numbers else []
        pairs = zip(numbers, scores, strict=True)
        return [
            part
            for number, score in pairs
            if score is not None
            for part in (number, b"1-%03x" % (int(score) % 4096))
        ]

    def _batch(self) -> None:
        """Claim a batch of a checkpoint, read it, and release it."""
        fence = self._call("assign", "", 1, BATCH, BATCH, 9, "hold", 36_000_000)[2]
        self._call("assigned", "", 1, 0, BATCH)
        self._call("fetch", 1, 0, BATCH, 2)
        self._call("dismiss", fence, 1)

    def _stage(self) -> None:
        """Stage jobs, promise, publish and forget them."""
        count = self._fitting()
        record = b"1;d=staged-%d\n%b" % (self.serial, self.body)
        sizes = b" ".join([b"%d" % len(record)] * count)
        chunk = b"0 " + sizes + b"\n" + record * count
        self.bed.redis.delete(self.keys["commit"], self.keys["stage"])
        self._call("stage", 1, "0:0", 60_000, chunk)
        self._call("commit", 1, 60_000, count, rest=["0", 1])
        self._call("publish", "", "", 0, "", "0:0", BATCH)
        self._call("unstage", 1, "")
