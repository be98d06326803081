"""Several nodes: which one to produce on, which to ask first, which to leave alone; no I/O.

A queue of several nodes is made of parts, each an ordinary queue on one of them. Here is what is
decided about the parts; `flows` has the procedures, and the client's federation drives them
(protocol/nodes.md, Several nodes).
"""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from penstock.core.flows import (
    AGAIN,
    LINGER,
    TICK,
    Cancelled,
    Clock,
    Effect,
    Quit,
    ReserveJobs,
    Run,
    Tidy,
    take,
)
from penstock.core.hints import Intent
from penstock.core.operations import QueueOps
from penstock.core.options import BATCH
from penstock.core.servers import ServerFacts
from penstock.core.views import SETTING_KINDS, Info, JobView, QueueStats, number_in
from penstock.errors import BadArgument, NodesUnavailable

__all__ = [
    "At",
    "Heard",
    "Keep",
    "Listen",
    "NodeState",
    "NotTaken",
    "Partial",
    "PollOrder",
    "Sticky",
    "at",
    "merged_info",
    "merged_peek",
    "merged_stats",
    "reserve",
    "stats_of_nodes",
    "to_store",
]

T = TypeVar("T")

LOOK = 0.75
"""Seconds for which a producer believes that a node is not leaving."""
MEASURE = 1.0
"""Seconds for which it believes what it saw of a node's memory."""
COOL = 0.1
"""Seconds for which a node is left alone after its first failure; twice as long each time."""
COOLEST = 2.0
PATIENCE = 0.25
"""Most seconds for which a busy consumer does not ask a node that had nothing."""


@dataclass(slots=True)
class NodeState:
    """What a client knows of a node.

    Attributes:
        failures: how often in a row it could not be reached.
        until: when to try it again by the clock; only of one that failed.
        reason: why it could not be reached, in words.
        leaving: whether it takes no new jobs.
        crowded: whether more than three quarters of its memory are in use.
        looked: when its flag was seen.
        measured: when its memory was.
        met: whether it has ever answered.
    """

    failures: int = 0
    until: float = 0.0
    reason: str = ""
    leaving: bool = False
    crowded: bool = False
    looked: float = -math.inf
    measured: float = -math.inf
    met: bool = False

    @property
    def is_up(self) -> bool:
        """Whether it answered when it was asked last."""
        return self.met and self.failures == 0

    def failed(self, now: float, error: BaseException) -> None:
        """It could not be reached: it is left alone for a while."""
        self.failures += 1
        self.until = now + min(COOL * 2 ** min(self.failures - 1, 10), COOLEST)
        self.reason = f"{type(error).__name__}: {error}"
        self.looked = self.measured = -math.inf

    def saw(self, now: float, *, leaving: bool, facts: ServerFacts | None = None) -> None:
        """What it says of itself.

        Args:
            now: when it was asked.
            leaving: its flag.
            facts: about its memory; None = it was not asked.
        """
        self.failures, self.met, self.reason = 0, True, ""
        self.looked, self.leaving = now, leaving
        if facts is not None:
            self.measured, self.crowded = now, facts.is_crowded

    def is_stale(self, now: float) -> bool:
        """Whether a producer has to look again."""
        return now >= self.looked + LOOK

    def is_unmeasured(self, now: float) -> bool:
        """Whether to look at its memory as well."""
        return now >= self.measured + MEASURE


class NotTaken(Exception):
    """A node has begun to refuse jobs while one waited for room there; it was not added.

    Args:
        reason: why, in words.
        passing: whether that may pass by itself.
    """

    def __init__(self, reason: str, *, passing: bool) -> None:
        super().__init__(reason)
        self.passing = passing


class Sticky:
    """Prefers one node for producing, and changes only when it has to.

    Args:
        first: which one at first, counted from 0; a random number spreads the producers.
    """

    def __init__(self, first: int = 0) -> None:
        self._first = first
        self._chosen: object = None

    def order(self, nodes: Sequence[T]) -> list[T]:
        """The nodes in the order in which they are tried: the chosen one, then those behind it."""
        if not nodes:
            return []
        if self._chosen in nodes:
            self._first = nodes.index(self._chosen)
        at = self._first % len(nodes)
        return [*nodes[at:], *nodes[:at]]

    def chose(self, node: object) -> None:
        """This one has taken a job."""
        self._chosen = node


class PollOrder:
    """Which parts to ask first: those that gave jobs, in turn; but every part gets its turn.

    Attributes:
        eager: how many of the order are not among those that had nothing a moment ago.
    """

    def __init__(self) -> None:
        self.eager = 0
        self._fed: dict[object, None] = {}
        self._asked: dict[object, tuple[float, float]] = {}

    def order(self, parts: Sequence[T], now: float) -> list[T]:
        """Those that have not been asked for a while, those that gave something, the others.

        Among those that gave it goes round, so that each is asked first in its turn.
        """
        fed = [part for part in tuple(self._fed) if part in parts]  # other threads write there
        rest = [part for part in parts if part not in self._fed]
        due = [part for part in rest if now >= self._asked.get(part, (0.0, 0.0))[0]]
        self.eager = len(due) + len(fed)
        return [*due, *fed, *(part for part in rest if part not in due)]  # type: ignore[list-item]  # they are parts

    def failed(self, part: object, now: float) -> None:
        """A part was asked, and did not answer."""
        self._fed.pop(part, None)
        self._asked[part] = (now + AGAIN, PATIENCE)

    def gave(self, part: object, count: int, now: float) -> None:
        """A part was asked, and gave so many."""
        self._fed.pop(part, None)
        if count:
            self._fed[part] = None
            self._asked.pop(part, None)
        else:
            pause = min(max(self._asked.get(part, (0.0, 0.0))[1] * 2, 0.01), PATIENCE)
            self._asked[part] = (now + pause, pause)


# -- waiting on several nodes ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class At:
    """An effect of a procedure on one node, as a part of one on several."""

    home: Any
    effect: Effect


@dataclass(frozen=True, slots=True)
class Listen:
    """Wait for tokens on several nodes until a point of the clock; the answer is a `Heard`.

    The blocking calls stay pending, one a node. Early and empty: the flow's owner has something to
    tell.
    """

    wanted: Mapping[Any, tuple[bytes, ...]]
    until: float


@dataclass(frozen=True, slots=True)
class Heard:
    """What a wait on several nodes has brought.

    Attributes:
        tokens: node and key of each token that was taken.
        lost: nodes whose connection failed: a token may have gone with it.
    """

    tokens: tuple[tuple[Any, bytes], ...] = ()
    lost: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Keep:
    """Keep a call about jobs whose home is down on another node; the answer: of which of them."""

    home: Any
    queue: str
    jobs: Sequence[Any]
    intent: Intent


Effects = At | Listen | Keep | Quit


def at(home: Any, flow: Generator[Effect, Any, T]) -> Generator[Effects, Any, T]:
    """A procedure on one node, its effects marked with that node."""
    try:
        effect = next(flow)
        while True:
            try:
                answer = yield At(home, effect)
            except GeneratorExit:  # noqa: PERF203  # that is what it is for
                flow.close()
                raise
            except BaseException as error:  # noqa: BLE001  # the flow decides
                effect = flow.throw(error)
            else:
                effect = flow.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result


class Table:
    """The sources of one consuming call: queues on nodes, in order of preference.

    Args:
        rows: gives the queues in the order of preference, each as its parts, as they are now: nodes
            may come and go meanwhile.
        unavailable: the error that says that no node has answered.
        hunger: which parts to ask first.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        rows: Callable[[], Sequence[Sequence[QueueOps]]],
        unavailable: Callable[[], NodesUnavailable],
        poll_order: PollOrder,
        clock: Clock,
    ) -> None:
        self._rows = rows
        self.unavailable = unavailable
        self.poll_order = poll_order
        self.clock = clock

    @property
    def parts(self) -> list[QueueOps]:
        """All of them, as they are to be asked."""
        now = self.clock()
        return [part for row in self._rows() for part in self.poll_order.order(row, now)]

    def wanted(self, over: Collection[QueueOps]) -> dict[Any, tuple[bytes, ...]]:
        """The tokens to wait for, by node; not of drained parts: their tokens are always there."""
        found: dict[Any, tuple[bytes, ...]] = {}
        for row in self._rows():
            for part in row:
                if part.home.state.is_up and part not in over:
                    found[part.home] = (*found.get(part.home, ()), part.keys["wake"])
        return found

    def told(self, heard: Heard) -> list[QueueOps]:
        """The parts whose tokens were taken."""
        return [part for part in self.parts if (part.home, part.keys["wake"]) in heard.tokens]

    def lost(self, heard: Heard) -> list[QueueOps]:
        """The parts on nodes whose connection failed."""
        return [part for part in self.parts if part.home in heard.lost]


@dataclass(slots=True)
class _ReserveState:
    """What one consuming call has got and heard so far.

    Attributes:
        jobs: what was taken.
        due: when an event falls due that this consumer was told of, by part.
        told: parts whose token this consumer has taken, and which it has not asked since.
        over: parts that were closed and drained when they were asked last.
        idle: whether it has waited.
        heard: whether any node has answered.
        failure: the last failure of a node.
    """

    jobs: list[Any] = field(default_factory=list)
    due: dict[QueueOps, float] = field(default_factory=dict)
    told: set[QueueOps] = field(default_factory=set)
    over: set[QueueOps] = field(default_factory=set)
    idle: bool = False
    heard: bool = False
    failure: BaseException | None = None


def reserve(
    table: Table,
    n: int,
    block: float | None,
    *,
    transient: Callable[[BaseException], bool],
) -> Generator[Effects, Any, list[Any]]:
    """Take up to n jobs from queues on several nodes; wait on all of them until there is one.

    As `flows.reserve`, but that a node which fails is left to the others, and asked again when it
    is back.

    Args:
        block: seconds to wait, 0 = not at all, None = for ever.
        transient: whether a failure is that of a node, which other nodes may make up for; the
            driver of the effects has noted it.

    Raises:
        NodesUnavailable: no node has answered.
        QueueClosed: every queue is closed and drained, on every node.
    """
    clock = table.clock
    deadline = math.inf if block is None else clock() + block
    patience = max(deadline, clock() + LINGER)
    progress, lap = _ReserveState(), clock() + TICK
    asked: Sequence[QueueOps] = table.parts
    while True:
        yield from _ask(table, asked, n, patience, progress, transient)
        is_over = not progress.jobs and progress.over.issuperset(table.parts)
        if is_over and len(asked) < len(table.parts):
            asked = table.parts  # they were not found so at the same time
            continue
        if progress.jobs or is_over or clock() >= deadline:
            break
        until = min([lap, deadline, *progress.due.values()])
        progress.idle = True
        try:
            yield from _tidy(table)
            heard: Heard = yield Listen(table.wanted(progress.over), until)
        except Cancelled:
            yield from _leave(table, progress, clock() + TICK)
            raise
        progress.told.update(table.told(heard))
        asked = [*table.told(heard), *table.lost(heard)]
        now = clock()
        if now >= lap or now >= deadline:
            asked, lap = table.parts, now + TICK
        else:
            asked += [part for part, moment in progress.due.items() if moment <= now]
            # Nodes that have come back meanwhile.
            asked += [p for p in table.parts if p not in progress.due and p.home.state.is_up]
        asked = list(dict.fromkeys(asked))
    if progress.idle:
        # Jobs that were taken are the caller's, whatever fails now.
        with suppress(Exception):
            yield from _leave(table, progress, clock() + TICK)
    if is_over:
        raise table.parts[0].drained()
    if not progress.jobs and not progress.heard:
        raise table.unavailable() from progress.failure
    return progress.jobs


def _ask(
    table: Table,
    asked: Sequence[QueueOps],
    n: int,
    until: float,
    progress: _ReserveState,
    transient: Callable[[BaseException], bool],
) -> Generator[Effects, Any, None]:
    """Ask parts for what is lacking; a part whose node fails is left out. `until` as in `take`."""
    for part in asked:
        if len(progress.jobs) >= n:
            return
        if not part.home.state.is_up:
            progress.due.pop(part, None)
            continue
        wanted = n - len(progress.jobs)
        progress.told.discard(part)
        clock, idle = table.clock, progress.idle
        took = take([part], 0, wanted, idle, (), transient, clock=clock, until=until)
        try:
            taken = yield from at(part.home, took)
        except Cancelled:
            yield from _give_back(progress.jobs)
            raise
        except Exception as error:
            progress.due.pop(part, None)
            if not transient(error):
                yield from _give_back(progress.jobs)
                raise
            progress.failure = error
            continue
        progress.heard = True
        table.poll_order.gave(part, len(taken.deliveries), table.clock())
        progress.jobs += taken.deliveries
        (progress.over.add if taken.is_over else progress.over.discard)(part)
        progress.due[part] = (
            math.inf
            if taken.deliveries or taken.next_ms <= 0
            else table.clock() + taken.next_ms / 1000
        )


def _tidy(table: Table) -> Generator[Effects, Any, None]:
    """Sweep what is due on each node that is up."""
    parts: dict[Any, list[QueueOps]] = {}
    for part in table.parts:
        if part.home.state.is_up:
            parts.setdefault(part.home, []).append(part)
    for home, own in parts.items():
        with suppress(Exception):  # the call has noted it
            yield At(home, Tidy(tuple(own)))


def _leave(table: Table, progress: _ReserveState, tick: float) -> Generator[Effects, Any, None]:
    """End the waits; hand on the tokens taken meanwhile, and events only this one was told of."""
    progress.told.update(table.told((yield Quit())))
    for part in table.parts:
        is_near = part in progress.told or progress.due.get(part, math.inf) <= tick
        if is_near and part.home.state.is_up:
            with suppress(Exception):
                yield At(part.home, ReserveJobs(part, 0, True))


def _give_back(jobs: Sequence[Any]) -> Generator[Effects, Any, None]:
    """Release jobs that no caller has seen; those at most once can't be, nor what fails now."""
    by_part: dict[QueueOps, list[Any]] = {}
    for job in jobs:
        if not job.at_most_once:
            by_part.setdefault(job.batch.ops, []).append(job)
    for part, own in by_part.items():
        for start in range(0, len(own), BATCH):
            with suppress(Exception):
                yield At(part.home, Run(part.release(own[start : start + BATCH], 0)))


# -- answers of several nodes made one ---------------------------------------------------------


class Partial(list[T]):
    """Items from all nodes that answered.

    Attributes:
        unreachable: addresses of those that did not: what lies there is missing.
    """

    def __init__(self, items: Iterable[T] = (), unreachable: Iterable[str] = ()) -> None:
        super().__init__(items)
        self.unreachable = tuple(unreachable)


SUMMED = (
    "ready", "scheduled", "active", "dead", "expired", "enqueued", "deliveries", "acked", "nacked",
    "released", "crashed", "died", "redriven", "trimmed", "swept", "deleted", "purged", "promoted",
    "dequeued", "withdrawn", "evicted", "dangling", "expired_active",
)  # fmt: skip


def merged_stats(found: Sequence[QueueStats], unreachable: Iterable[str] = ()) -> QueueStats:
    """The figures of a queue that has parts; settings are those that were stored last.

    Args:
        found: at least one, in the order of preference.
        unreachable: addresses of nodes that did not answer.
    """
    there = [stats for stats in found if stats.exists]
    first, is_one = max(there or found, key=_age_of_settings), len(found) == 1
    sums = {name: sum(getattr(stats, name) for stats in found) for name in SUMMED}
    return replace(
        first,
        epoch=first.epoch if is_one else None,
        producer=first.producer if is_one else None,
        consumer=first.consumer if is_one else None,
        oldest=_best(max, [stats.oldest for stats in there]),
        age=_best(max, [stats.age for stats in there]),
        idle=_best(min, [stats.idle for stats in there]),
        closed=bool(there) and all(stats.closed for stats in there),
        unreachable=tuple(unreachable),
        **sums,
    )


def stats_of_nodes(
    found: Mapping[str, Sequence[QueueStats]], unreachable: Iterable[str] = ()
) -> QueueStats:
    """The figures of a queue on several nodes, those of each, and which settings differ.

    Args:
        found: address of each node -> the figures of its parts there.
        unreachable: addresses of nodes that did not answer.
    """
    nodes = {address: merged_stats(parts) for address, parts in found.items()}
    every = [stats for parts in found.values() for stats in parts]
    whole, latest = merged_stats(every, unreachable), max(every, key=_age_of_settings)
    wanted = (latest.settings, latest.closed)
    differing = [
        address
        for address, parts in found.items()
        if any((stats.settings, stats.closed) != wanted for stats in parts)
    ]
    return replace(whole, nodes=nodes, differing=tuple(differing))


def _age_of_settings(stats: QueueStats) -> float:
    return stats.configured or 0


STORED = ("configured", "paused", "closed", *SETTING_KINDS)
"""Fields of `meta` that are the same on every node, behind the time at which they were stored."""


def to_store(found: Mapping[T, Sequence[bytes | None]]) -> dict[T, list[Any]]:
    """Return what to configure on which nodes, so that all have the settings stored last.

    Args:
        found: node -> its values of `STORED`.
    """

    def age(values: Sequence[bytes | None]) -> int:
        return number_in((values[0] or b"").decode("utf-8", "replace")) or 0

    latest = max(found.values(), key=lambda values: (age(values), [one or b"" for one in values]))
    fields = [(name, value or b"") for name, value in zip(STORED, latest, strict=True)][1:]
    result: dict[T, list[Any]] = {}
    for node, values in found.items():
        if age(latest) and list(values[1:]) != list(latest[1:]):
            since = max(age(latest), age(values) + 1)  # of two of one ms one has to be younger
            result[node] = ["configured", since, *(text for pair in fields for text in pair)]
    return result


def _best(choose: Callable[..., float], values: Iterable[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return choose(present) if present else None


def merged_info(found: Sequence[Info]) -> Info:
    """Nodes taken together: numbers are sums, and what is not the same everywhere is None."""
    values: dict[str, Any] = {}
    for one in fields(Info):
        of_all = [getattr(info, one.name) for info in found]
        if all(type(value) is int for value in of_all) and one.name != "uptime":
            values[one.name] = sum(of_all)
        else:
            values[one.name] = of_all[0] if all(v == of_all[0] for v in of_all) else None
    values["uptime"] = _best(min, [info.uptime for info in found])
    values["node"] = " ".join(info.node for info in found)
    values["server"] = ", ".join(dict.fromkeys(info.server for info in found))
    return Info(**values)


def merged_peek(
    found: Iterable[Sequence[JobView]], state: str, start: int, n: int, *, newest: bool
) -> list[JobView]:
    """The jobs that are seen, out of what each part has shown.

    The order within a part stays; parts are merged by the time that counts in that state.

    Args:
        found: of each part the first jobs; the newest, backwards, where it is counted from there.
        state, start, n, newest: as of `peek`.
    """
    key = PLACES[state]
    if not newest and start >= 0:
        return list(heapq.merge(*found, key=key))[start : start + n]
    views = list(heapq.merge(*([*reversed(part)] for part in found), key=key))
    if newest:
        return views[::-1][start : start + n]
    return views[start:][:n] if len(views) >= -start else []


PLACES: Mapping[str, Callable[[JobView], float]] = {
    "ready": lambda view: view.created if view.due is None else view.due,
    "scheduled": lambda view: view.due or 0.0,
    "active": lambda view: view.lease_until or math.inf,
    "dead": lambda view: view.died or 0.0,
}
"""What jobs of a state are sorted by, across nodes."""


def split_cursor(cursor: object) -> tuple[str, str]:
    """Which part a scan over several goes on with, and where in it; two empty texts to begin.

    Raises:
        BadArgument: not "0", nor the cursor of a page.
    """
    found = CURSOR.fullmatch(cursor) if isinstance(cursor, str) else None
    if found is None and cursor != "0":
        raise BadArgument("cursor", cursor, 'must be the cursor of a page, or "0" to begin')
    return (found.group(1), found.group(2)) if found else ("", "0")


CURSOR = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{8})?):(.+)")
"""Node, perhaps the checksum of a part's name, and the cursor of that part."""
