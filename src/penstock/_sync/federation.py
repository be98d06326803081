# Generated from src/penstock/_async/federation.py by tools/unasync.py; do not edit.
"""Several nodes as one: who is up, where jobs go, and waiting on all of them at once.

What is decided is in `core.nodes`; here it is carried out (PROTOCOL.md, Several nodes).
"""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, cast

from redis.exceptions import ResponseError

from penstock._acompat import Errand, Signal, first_ready, sleep
from penstock._sync.cluster import Waiters
from penstock._sync.composite import CompositeQueue, ObservedComposite, Part
from penstock._sync.connection import Waiter, monotonic, passing
from penstock._sync.job import Job
from penstock._sync.member import Member
from penstock._sync.queue import Queue
from penstock.core import flows, hints, nodes
from penstock.core.client import QueueFilter, Terms
from penstock.core.hints import Hint, Intent
from penstock.core.members import Entry, address_of, joined, merged_members
from penstock.core.nodes import At, Heard, Hunger, Keep, Listen, Partial, State, Sticky
from penstock.core.options import QUEUE_CURSOR, check_cursor
from penstock.core.servers import PROTOCOL_VERSION, ServerFacts, parse_info
from penstock.core.views import Drain, Hello, Info, NodeView, QueuePage, QueueStats
from penstock.errors import (
    ConfigurationError,
    NodesUnavailable,
    NotReplicated,
    OutOfMemory,
    PenstockError,
    WrongNode,
)
from penstock.wire.keys import hints_key, node_key, nodes_key

__all__ = ["Federation", "Home"]

logger = logging.getLogger("penstock")

T = TypeVar("T")

BRIEF = 2.0
"""Seconds that a consumer waits for the reply of one node while others may have jobs."""
GRACE = 0.5
"""Seconds that a connect waits for the rest when one node has answered."""
SLICE = 0.02
"""Seconds of a wait on one of several nodes that can't be waited for at once (fakeredis)."""
REFRESH = 30.0
"""Seconds after which the list of nodes is read again."""
GLANCE = 0.1
"""Seconds between two looks at whether a node that was down is back, while nothing else happens."""


def is_node_failure(error: BaseException) -> bool:
    """Whether a failure is that of a node, which others may make up for."""
    return passing(error)


class Home(Member):
    """One of several nodes.

    Args:
        source: a URL or a redis-py client.
        terms: what the client was told.
        learned: its id, if others have told of it.

    Attributes:
        is_learned: whether others have told of it, not the user.
        ear: connections on which a call fails soon: for what others could do as well.
        brief: the same node by these connections.
        state: what is known of it.
        whole_id: its id, all 40 digits; empty until it is known.
        known: the first 8 digits of its ids.
        errand: a look whether it is back, which is under way.
        fault: why it can't be one of these nodes.
    """

    def __init__(self, source: Any, terms: Terms, learned: str = "") -> None:
        super().__init__(source, terms)
        self.is_learned = bool(learned)
        # Where others could do as well, a node that hangs must not hold them up.
        self.ear = self._node.twin(retry_for=0, socket_timeout=BRIEF)
        self.ear.send_once()
        self.brief = Member(source, terms, self.ear)
        self.state = State()
        self.whole_id = ""
        self.known: list[str] = []
        self.errand: Errand | None = None
        self.meet(learned)
        self.fault: Exception | None = None

    @property
    def id(self) -> str:
        """The first 8 digits of its id; empty until it is known."""
        return self.whole_id[:8]

    @property
    def address(self) -> str:
        """Where it is, for people: with its database if that is another one than 0."""
        number = re.search(r"[/=]([1-9][0-9]*)$", address_of(self.source))
        return f"{self._node.address}/{number.group(1)}" if number else self._node.address

    def meet(self, whole_id: str) -> None:
        """Note its id; jobs of one that it had before are still looked for here."""
        self.whole_id = whole_id
        if whole_id and self.id not in self.known:
            self.known.append(self.id)

    def connect(self) -> None:
        """Reach it, unless that was done."""
        if not self._node.id:
            self.look()

    def close(self) -> None:
        """Close the connections."""
        errand, self.errand = self.errand, None
        if errand is not None:
            errand.close()
        super().close()
        self.ear.close()

    def failed(self, error: BaseException) -> None:
        """It could not be reached."""
        if self.state.is_up:
            logger.warning("node %s: %s; going on without it", self.address, error)
        self.state.failed(monotonic(), error)

    def look(self) -> None:
        """Ask who it is and how it is, on a brief connection."""
        self.state.saw(**self.see())

    def see(self) -> dict[str, Any]:
        """The same, but for the opinion of it."""
        now = monotonic()
        if not self.ear.id:
            self.ear.prepare()
            self._node.facts = self.ear.facts
        found = self.ear.command("HMGET", node_key(self.prefix), "id", "leaving")
        if found[0] is None:  # as after a FLUSHALL
            self.ear.identify()
            found = self.ear.command("HMGET", node_key(self.prefix), "id", "leaving")
        self.meet(found[0].decode())
        for node in (self._node, self.ear):
            node.id = self.id
            if self.id not in node.known:
                node.known.append(self.id)
        facts = None
        if self.ear.facts.fields and self.state.is_unmeasured(now):  # else it has no INFO
            facts = ServerFacts(parse_info(self.ear.command("INFO", "memory")))
        return {"now": now, "leaving": bool(found[1]), "facts": facts}

    def seen(self) -> NodeView:
        """The node in words."""
        self.look()
        view = replace(self.brief.view(), address=self.address)
        return replace(view, priority=100, leaving=True) if self.state.leaving else view

    def listed(self) -> dict[str, str]:
        """The list of nodes that it keeps."""
        flat = self.ear.command("HGETALL", nodes_key(self.prefix))
        texts = [text.decode("utf-8", "replace") for text in flat]
        return dict(zip(texts[::2], texts[1::2], strict=True))

    def ready(self) -> None:
        """Have an open connection to it, and an opinion of it that is not too old.

        Raises:
            redis.exceptions.ConnectionError, TimeoutError: nothing was sent that would write.
        """
        self._node.reach()
        if self.state.is_stale(monotonic()) or not self.state.is_up:
            self.look()


class Federation:
    """The nodes of one client.

    Args:
        sources: a URL or a redis-py client of each.
        terms: what the client was told.
    """

    def __init__(self, sources: Sequence[Any], terms: Terms) -> None:
        self.terms = terms
        self.homes = [Home(source, terms) for source in sources]
        self.sticky = Sticky(random.randrange(1 << 16))
        self._hunger: dict[str, Hunger] = {}
        self._entries: dict[str, Entry] = {}
        self._gone: list[Home] = []
        self._learning: Errand | None = None
        self._learn_at = 0.0

    @property
    def prefix(self) -> str:
        """Prefix of all keys."""
        return self.terms.prefix

    @property
    def owner(self) -> str:
        """Who reserves."""
        return self.terms.owner

    @property
    def middleware(self) -> tuple[Any, ...]:
        """Hooks."""
        return self.terms.middleware

    is_apart = True
    """Waits on several nodes stand by themselves."""

    def queue(self, name: str) -> Queue:
        """The queue of this name, with a part on each node."""
        made = ObservedComposite if self.middleware else CompositeQueue
        return made(self, name)

    # -- who is there ----------------------------------------------------------------------

    def connect(self) -> None:
        """Reach one node at least, and learn who the others are.

        Raises:
            ConfigurationError: two nodes have one id.
            NodesUnavailable: none was reached within `retry_for`.
        """
        self.tend()
        if not any(home.state.is_up for home in self.homes):
            self._await_one()
        elif not all(home.state.met or home.state.failures for home in self.homes):
            self._await_rest()
        self._raise_fault()

    def _await_one(self) -> None:
        until = monotonic() + self.terms.retry_for
        while True:
            self._await_rest()
            self._raise_fault()
            if any(home.state.is_up for home in self.homes):
                return
            if monotonic() >= until:
                raise self.unavailable()
            sleep(0.02)
            self.tend()

    def _await_rest(self) -> None:
        """Wait for looks that are under way, only for a moment if somebody has answered."""
        until = monotonic() + BRIEF
        while True:
            self.tend()  # for those that were learned just now
            errands = [home.errand for home in self.homes if home.errand is not None]
            under_way = [errand for errand in errands if not errand.is_done]
            if any(home.state.is_up for home in self.homes):
                until = min(until, monotonic() + GRACE)
            left = until - monotonic()
            if not under_way or left <= 0:
                return
            Errand.wait(under_way, left)

    def tend(self) -> None:
        """Look after the nodes that are down, when it is time for it; beside whatever is done."""
        now = monotonic()
        for home in list(self.homes):
            is_due = not home.state.is_up and now >= home.state.until
            if is_due and home.fault is None and (home.errand is None or home.errand.is_done):
                home.errand = Errand(partial(self._look_after, home))
        if now >= self._learn_at and (self._learning is None or self._learning.is_done):
            if self._learn_at:
                self._learning = Errand(self._learn)
            self._learn_at = now + REFRESH

    def _look_after(self, home: Home) -> None:
        """See whether a node is there; never raises."""
        try:
            was = home.state.failures
            self._meet_again(home)
            if was:
                logger.warning("node %s is back", home.address)
        except ConfigurationError as error:
            home.fault = error
            home.state.failed(monotonic(), error)
        except Exception as error:  # noqa: BLE001  # tried again after a while
            home.failed(error)
            with suppress(Exception):
                home.ear.close()

    def _approach(self, home: Home) -> None:
        """Have a connection to a node; one that has closed them may have been away."""
        if home.ear.reach():
            self._meet_again(home)

    def _meet_again(self, home: Home) -> None:
        """Make a node that has been away, or may have been, one of those that are up."""
        found = home.see()
        self._check_id(home)
        self._heard(home.listed())
        # Before anybody takes a job from it: some of them are done.
        self._make_up(home)
        home.state.saw(**found)

    def _check_id(self, home: Home) -> None:
        """Refuse a node that has the id of another one.

        Raises:
            ConfigurationError: it has.
        """
        for other in list(self.homes):
            if other is not home and other.fault is None and other.id and other.id == home.id:
                if other.is_learned or home.is_learned:  # one node by two addresses
                    self.homes.remove(other if other.is_learned else home)
                    continue
                raise ConfigurationError(
                    f"{other.address} and {home.address} have one id, {home.id}: the same server"
                    " under two addresses, or a copy of its data"
                )

    def _learn(self) -> None:
        """Read the lists of all nodes again; never raises."""
        for home in list(self.homes):
            if home.state.is_up:
                try:
                    self._heard(home.listed())
                    self._make_up_from(home, self.homes)
                except Exception as error:  # noqa: BLE001  # it is looked after
                    self.bears(home, error)

    def _heard(self, told: Mapping[str, str]) -> None:
        """Take in what a node says of others."""
        known = {node: str(entry) for node, entry in self._entries.items()}
        self._entries = merged_members([known, told])
        for node, entry in self._entries.items():
            found = [home for home in self.homes if home.whole_id == node]
            if not entry.address:
                # What was forgotten goes, unless nobody else is left.
                for home in found:
                    if len(self.homes) > 1:
                        self.homes.remove(home)
                        self._gone.append(home)
            elif not found:
                self._meet(node, entry.address)

    def _meet(self, node: str, address: str) -> None:
        """A node of which others tell."""
        for home in self.homes:
            if not home.whole_id and address_of(home.source) == address:
                home.meet(node)
                return
        source = joined(address, self.homes[0].source)
        try:
            self.homes.append(Home(source, self.terms, node))
        except PenstockError as error:
            logger.warning("node %s at %s can't be used: %s", node[:8], address, error)

    def _make_up(self, home: Home) -> None:
        """Do what other nodes have kept for one that is back, and what it keeps for others."""
        others = [other for other in self.homes if other is not home and other.state.is_up]
        for other in others:
            try:
                self._make_up_from(other, [home])
            except Exception as error:  # noqa: BLE001, PERF203  # not this node's failure
                if not self.bears(other, error):
                    logger.warning("hints on %s: %s", other.address, error)
        self._make_up_from(home, others)

    def _make_up_from(self, keeper: Home, homes: Sequence[Home]) -> None:
        """Do what one node keeps for others."""
        key = hints_key(self.prefix)
        if not homes or not keeper.ear.command("HLEN", key):
            return
        cursor = b"0"
        while True:
            cursor, flat = keeper.ear.command("HSCAN", key, cursor, "COUNT", 500)
            kept, foreign = hints.read_hints(flat)
            seconds, _ = keeper.ear.command("TIME")
            over = [hint.field for hint in kept if hint.until < int(seconds) * 1000]
            for home in homes:
                own = [hint for hint in kept if hint.node in home.known and home is not keeper]
                for batch in hints.batches(own):
                    over += self._done(home, batch)
            if over:
                keeper.ear.command("HDEL", key, *dict.fromkeys(over))
            if foreign:
                logger.warning("%s keeps %d hints of no kind we know", keeper.address, len(foreign))
            if cursor == b"0":
                return

    def _done(self, home: Home, batch: Sequence[Hint]) -> list[str]:
        """Make up for calls about jobs of one queue; the fields that are done with."""
        first = batch[0]
        ops = Queue(home.brief, first.queue).ops
        call = ops.hinted(
            first.kind, first.epoch, first.window, first.reason, hints.pairs_of(batch)
        )
        try:
            reply, _ = home.brief._driver.run(ops, call)
        except Exception as error:  # it is kept until it can be done
            logger.warning("%d hints for %s: %s", len(batch), home.address, error)
            if is_node_failure(error):
                raise
            return []
        if not hints.is_understood(reply[0]):
            return []
        text = "%s made up for on %s, of %d jobs of %r"
        logger.info(text, first.kind, home.address, len(batch), first.queue)
        return [hint.field for hint in batch]

    def keep(self, home: Home, queue: str, names: Sequence[Any], intent: Intent) -> list[bool]:
        """Keep a call about jobs of a node that can't be reached, on another one; of which jobs."""
        for keeper in self.sticky.order(self.homes):
            state = keeper.state
            if keeper is home or not state.is_up:
                continue
            try:
                if state.is_stale(monotonic()):
                    keeper.look()
                if state.leaving or state.crowded:
                    continue
                found = self._kept(keeper, home.id, queue, names, intent)
            except Exception as error:  # noqa: BLE001  # the next one, then
                self.bears(keeper, error)
                continue
            if found is not None:
                return found
        return [False] * len(names)

    def _kept(
        self, keeper: Home, node: str, queue: str, names: Sequence[Any], intent: Intent
    ) -> list[bool] | None:
        """Of which jobs a node keeps the call; None = it has too much of that."""
        key, command = hints_key(self.prefix), keeper.ear.command
        seconds, micros = command("TIME")
        now = int(seconds) * 1000 + int(micros) // 1000
        found = [hints.hint_of(name, node, queue, intent, now) for name in names]
        kept = [hint for hint in found if hint is not None]
        if not kept:
            return [False] * len(names)
        if command("HLEN", key) + len(kept) > hints.MOST:
            return None
        flat = [text for pair in hints.fields_of(kept).items() for text in pair]
        command("HSET", key, *flat)
        life = hints.longest(kept) - now
        if command("PTTL", key) < life:
            command("PEXPIRE", key, life)
        return [hint is not None for hint in found]

    def entries(self) -> dict[str, Entry]:
        """The list, as all nodes together have it."""
        found, _ = self.each(lambda home: home.listed())
        return merged_members(told for _, told in found)

    def admit(self, url: str) -> Home:
        """Make a node one of these.

        Raises:
            ConfigurationError: it has the id of another one.
        """
        self.connect()
        home = Home(url, self.terms)
        try:
            home.look()
            for other in self.homes:
                if other.id == home.id and address_of(other.source) == address_of(url):
                    home.close()
                    return other
            self._check_id(home)
        except BaseException:
            home.close()
            raise
        self.homes.append(home)
        return home

    def dismiss(self, home: Home) -> None:
        """One of these is none any more."""
        if home in self.homes:
            self.homes.remove(home)
        home.close()

    def rest_of(self, home: Home) -> Drain:
        """What is left on a node."""
        totals = home.brief.totals()
        kept = home.brief.command("HLEN", hints_key(self.prefix))
        return Drain(totals.waiting, totals.active, kept, totals.dead)

    def first(self, ask: Callable[[Home], T]) -> T:
        """What the first node answers that can be reached.

        Raises:
            NodesUnavailable: none.
        """
        self.connect()
        for home in list(self.homes):
            found = self.tried(home, partial(ask, home))
            if found is not None:
                return found
        raise self.unavailable()

    def _raise_fault(self) -> None:
        for home in self.homes:
            if home.fault is not None:
                raise home.fault

    def unavailable(self, what: str = "no node can be reached") -> NodesUnavailable:
        """The error that says so, with what is known of each."""
        reasons = {home.address: home.state.reason or "not asked" for home in self.homes}
        return NodesUnavailable(what, reasons)

    def home_of(self, node: str, name: object) -> Home:
        """The node with this prefix of an id.

        Raises:
            WrongNode: none of these.
        """
        for home in self.homes:
            if node in home.known:
                return home
        known = ", ".join(home.id for home in self.homes if home.id)
        unmet = ", ".join(home.address for home in self.homes if not home.id)
        told = f"node {node} is none of this client's: {known}"
        raise WrongNode("id", name, f"{told}; not reached: {unmet}" if unmet else told)

    def bears(self, home: Home, error: BaseException) -> bool:
        """Whether a failure is that of a node, which the others may make up for; it is noted."""
        if not is_node_failure(error):
            return False
        home.failed(error)
        return True

    def tried(self, home: Home, ask: Callable[[], T]) -> T | None:
        """Ask one node, or None: it can't be reached."""
        if not home.state.is_up:
            return None
        try:
            self._approach(home)
            return ask()
        except Exception as error:
            if not self.bears(home, error):
                raise
            return None

    def know(self) -> None:
        """Reach somebody, so that their nodes are known if they can be."""
        self.connect()

    def close(self) -> None:
        """Close the connections."""
        learning, self._learning = self._learning, None
        if learning is not None:
            learning.close()
        gone, self._gone = self._gone, []
        for home in [*self.homes, *gone]:
            home.close()

    # -- every node ------------------------------------------------------------------------

    def each(self, ask: Callable[[Home], T]) -> tuple[list[tuple[Home, T]], dict[str, str]]:
        """Ask every node that is up; the answers, and why others have none, by address.

        Raises:
            NodesUnavailable: none has answered.
        """
        self.connect()
        found: list[tuple[Home, T]] = []
        missed: dict[str, str] = {}
        for home in list(self.homes):
            if not home.state.is_up:
                missed[home.address] = home.state.reason
                continue
            try:
                self._approach(home)
                found.append((home, ask(home)))
            except Exception as error:
                if not self.bears(home, error):
                    raise
                missed[home.address] = home.state.reason
        if not found:
            raise NodesUnavailable("no node has answered", missed)
        return found, missed

    def queues(self, pattern: str) -> list[str]:
        """The names of the queues that exist on any node, sorted."""
        found, missed = self.each(lambda home: home.brief.queues(pattern))
        return Partial(sorted({name for _, names in found for name in names}), missed)

    def scan_queues(self, cursor: str, n: int, is_wanted: QueueFilter) -> QueuePage:
        """One step through the registries, node by node; a queue counts where it is met first."""
        key, inner = nodes.split_cursor(cursor)
        check_cursor("cursor", inner, QUEUE_CURSOR)
        self.connect()
        homes = sorted((home for home in self.homes if home.id), key=lambda home: home.id)
        missed = [home.address for home in self.homes if not home.id]
        left = [home for home in homes if home.id >= key]
        while left:
            home = left.pop(0)
            page = self._page(home, inner if home.id == key else "0", n)
            if page is None:
                missed.append(home.address)
                continue
            chosen = self._first_met(home, page.queues)
            after = left[0].id if page.cursor == "0" and left else home.id
            is_last = page.cursor == "0" and not left
            return QueuePage(
                "0" if is_last else f"{after}:{page.cursor}",
                [stats for stats in chosen if is_wanted(stats)],
                tuple(missed),
            )
        return QueuePage("0", [], tuple(missed))

    def _page(self, home: Home, cursor: str, n: int) -> QueuePage | None:
        """A page of one node's registry; None = it can't be reached."""
        return self.tried(home, partial(home.brief.scan_queues, cursor, n, _any_queue))

    def _first_met(self, home: Home, found: Sequence[QueueStats]) -> list[QueueStats]:
        """The figures of those among the queues of a node that were not met on one before it."""
        chosen = []
        for one in found:
            parts, missed = self.each(partial(_stats, name=one.name))
            if not any(stats.exists and other.id < home.id for other, stats in parts):
                chosen.append(nodes.merged_stats([stats for _, stats in parts], missed))
        return chosen

    def hello(self) -> Hello:
        """Every node: those that answer, then the others with what is known of them."""
        found, _ = self.each(lambda home: home.seen())
        answered = [view for _, view in found]
        silent = [
            NodeView(
                home.whole_id, home.address, 100, None, None, home.state.leaving, home.state.reason
            )
            for home in self.homes
            if all(home is not other for other, _ in found)
        ]
        return Hello(PROTOCOL_VERSION, answered[0].id, (*answered, *silent))

    def info(self) -> Info:
        """The nodes taken together."""
        found, _ = self.each(lambda home: home.brief.info())
        return nodes.merged_info([info for _, info in found])

    # -- producing -------------------------------------------------------------------------

    def produce(self, parts: Callable[[], Sequence[Part]], attempt: Callable[[Part], T]) -> T:
        """Add jobs on the first node that takes them.

        Args:
            parts: gives the parts of the queue, in the order of preference.
            attempt: adds to a part.

        Raises:
            NodesUnavailable: none can take them.
            OutOfMemory, NotReplicated: of the node that was asked last.
            redis.exceptions.ConnectionError, TimeoutError: it is not known whether a node has them.
        """
        self.connect()
        until = monotonic() + self.terms.retry_for
        while True:
            turn = _Turn(self.terms.on_unknown)
            for crowded in (False, True):
                for part in parts():
                    if self._offer(turn, part, attempt, crowded=crowded):
                        self.sticky.chose(part.home)
                        return cast("T", turn.result)
            if turn.refusal is not None:
                raise turn.refusal
            if monotonic() >= until or not turn.may_pass:
                raise NodesUnavailable("no node takes jobs", turn.reasons)
            sleep(0.05)
            self.connect()

    def _offer(
        self,
        turn: _Turn,
        part: Part,
        attempt: Callable[[Part], Any],
        *,
        crowded: bool,
    ) -> bool:
        """Whether a part has taken what is to be added; if not, why is noted."""
        home = part.home
        if home in turn.tried:
            return False
        try:
            if not home.state.is_up:
                raise self.unavailable()
            home.ready()
        except Exception as error:
            if not is_node_failure(error):
                raise
            if home.state.is_up:
                home.failed(error)
            turn.note(home.address, home.state.reason)
            return False
        if home.state.leaving:
            turn.note(home.address, "leaving", passing=False)
            return False
        if home.state.crowded and not crowded:
            turn.reasons[home.address] = "more than 75 % of its memory are in use"
            return False
        turn.tried.add(home)
        try:
            turn.result = attempt(part)
        except Exception as error:  # noqa: BLE001  # those that end the turn are raised again
            self.bears(home, error)
            turn.failed(home.address, error)
            return False
        return True

    # -- consuming -------------------------------------------------------------------------

    def reserve(self, queues: Sequence[Any], n: int, wait: float | None) -> list[Job]:
        """Take up to n jobs from several queues on all nodes, the first queue first."""
        self.connect()
        name = "\0".join(queue.name for queue in queues)
        hunger = self._hunger.get(name)
        if hunger is None:
            if len(self._hunger) >= 1000:
                self._hunger.clear()
            hunger = self._hunger[name] = Hunger()
        table = nodes.Table(
            lambda: [queue.operations for queue in queues],
            lambda home: home.state.is_up,
            lambda home, error: is_node_failure(error),  # noqa: ARG005  # noted where it was seen
            self.unavailable,
            hunger,
            monotonic,
        )
        flow = nodes.reserve(table, n, wait, transient=passing)
        jobs: list[Job] = self.drive(flow)
        return jobs

    def drive(self, flow: Generator[Any, Any, Any], signal: Signal | None = None) -> Any:
        """Run a flow over several nodes to its end; its result."""
        listener = Listener(self, signal)
        try:
            effect = next(flow)
            while True:
                answer, error = self._tried(effect, listener)
                effect = flow.send(answer) if error is None else flow.throw(error)
        except StopIteration as end:
            return end.value
        finally:
            listener.drop()

    def _tried(self, effect: Any, listener: Listener) -> tuple[Any, Exception | None]:
        try:
            return self._answer(effect, listener), None
        except Exception as error:  # noqa: BLE001  # the flow decides; most let it pass
            return None, error

    def _answer(self, effect: Any, listener: Listener) -> Any:
        if isinstance(effect, At):
            return self._answer_at(effect.home, effect.effect)
        if isinstance(effect, Listen):
            return listener.listen(effect)
        if isinstance(effect, Keep):
            return self.keep(effect.home, effect.queue, effect.jobs, effect.intent)
        if isinstance(effect, flows.Quit):
            return listener.quit()
        if isinstance(effect, flows.Rest):
            return listener.rest(effect.until)
        if isinstance(effect, flows.Cede):
            return sleep(0)
        if isinstance(effect, flows.Drop):
            return listener.drop()
        assert isinstance(effect, flows.Hurry)
        for home in list(self.homes):
            home.ear.hurry()
        return None

    def _answer_at(self, home: Home, effect: flows.Effect) -> Any:
        """Carry out an effect on one node; that it fails is noted."""
        if not home.state.is_up:
            raise self.unavailable(f"{home.address} is down")
        try:
            self._approach(home)
            return home.brief._driver.answer(effect)
        except Exception as error:
            self.bears(home, error)
            raise


def _popped(waiter: Waiter | Waiters, keys: tuple[bytes, ...]) -> list[bytes]:
    """The keys of tokens that a wait has taken."""
    if not waiter.is_sliced:
        return waiter.taken()
    key = waiter.pop(keys, SLICE)
    return [] if key is None else [key]


def _any_queue(stats: QueueStats) -> bool:  # noqa: ARG001  # its form
    return True


def _stats(home: Home, name: str) -> QueueStats:
    return Queue(home.brief, name).stats()


class _Turn:
    """One round of asking nodes to take a job.

    Args:
        on_unknown: what to do when it is not known whether a node has it.

    Attributes:
        tried: those that were asked.
        reasons: why each has not taken it, by address.
        refusal: what the last one said that was able to say no.
        may_pass: whether one of them could not be reached, which may pass.
        result: what the one has answered that took it.
    """

    def __init__(self, on_unknown: str) -> None:
        self._on_unknown = on_unknown
        self.tried: set[Home] = set()
        self.reasons: dict[str, str] = {}
        self.refusal: Exception | None = None
        self.may_pass = False
        self.result: Any = None

    def note(self, address: str, reason: str, *, passing: bool = True) -> None:
        """It was not asked."""
        self.reasons[address] = reason
        self.may_pass = self.may_pass or passing

    def failed(self, address: str, error: Exception) -> None:
        """It was asked, and has not taken it.

        Raises:
            Exception: the next node is not to be asked.
        """
        self.reasons[address] = f"{type(error).__name__}: {error}"
        if isinstance(error, OutOfMemory) or (isinstance(error, NotReplicated) and error.withdrawn):
            self.refusal = error
        elif isinstance(error, ResponseError) and passing(error):
            self.may_pass = True  # it is in another role, or a cluster that is changing
        elif self._on_unknown != "next" or not is_unknown(error):
            raise error


def is_unknown(error: Exception) -> bool:
    """Whether a failed enqueue has left it open whether the job is there."""
    if isinstance(error, NotReplicated):
        return error.withdrawn is None
    return passing(error)


class Listener:
    """The blocking half of a call on several nodes: a pending BLPOP on each of them.

    Args:
        federation: whose nodes.
        signal: ends a wait early when it is set.
    """

    def __init__(self, federation: Federation, signal: Signal | None) -> None:
        self._federation = federation
        self._signal = signal
        self._waiters: dict[Home, Waiter | Waiters] = {}
        self._keys: dict[Home, tuple[bytes, ...]] = {}

    def listen(self, effect: Listen) -> Heard:
        """Wait on all; what was taken, and who was lost."""
        tokens: list[tuple[Any, bytes]] = []
        lost: list[Any] = []
        for home in [home for home in self._waiters if home not in effect.wanted]:
            self._waiters.pop(home).drop()
        for home, keys in effect.wanted.items():
            waiter = self._waiters.get(home)
            if waiter is None:
                waiter = self._waiters[home] = home.ear.waiter()
            if waiter.is_sliced:
                continue
            try:
                found = self._armed(home, waiter, keys)
            except Exception as error:  # noqa: BLE001  # `_lose` raises what is none of the node's
                self._lose(home, error)
                lost.append(home)
            else:
                tokens += [(home, key) for key in found]
        if not tokens and not lost:
            self._rest(effect)
            tokens, lost = self._taken(effect)
        return Heard(tuple(tokens), tuple(lost))

    def _armed(
        self, home: Home, waiter: Waiter | Waiters, keys: tuple[bytes, ...]
    ) -> Sequence[bytes]:
        """Have a BLPOP on these keys pending; the keys of tokens that those from before took."""
        before, self._keys[home] = self._keys.get(home, keys), keys
        found = waiter.quit() if before != keys else ()
        key = waiter.begin(keys) if not found else None
        return found if key is None else (key,)

    def _until(self, until: float) -> float:
        """Until when to wait; nodes that are down are looked after meanwhile."""
        self._federation.tend()
        is_whole = all(home.state.is_up for home in self._federation.homes)
        return until if is_whole else min(until, monotonic() + GLANCE)

    def rest(self, until: float) -> None:
        """Wait without listening."""
        span = max(0.0, self._until(until) - monotonic())
        (sleep(span) if self._signal is None else self._signal.wait(span))

    def _rest(self, effect: Listen) -> None:
        """Wait until something is there."""
        until = self._until(effect.until)
        if any(waiter.is_sliced for waiter in self._waiters.values()):
            if self._signal is not None:
                self._signal.take()
            return
        readers = [reader for waiter in self._waiters.values() for reader in waiter.readers]
        if readers:
            first_ready(readers, until - monotonic(), self._signal)
        else:
            self.rest(until)

    def _taken(self, effect: Listen) -> tuple[list[tuple[Any, bytes]], list[Any]]:
        tokens: list[tuple[Any, bytes]] = []
        lost: list[Any] = []
        for home, waiter in list(self._waiters.items()):
            try:
                found = _popped(waiter, effect.wanted[home])
            except Exception as error:  # noqa: BLE001, PERF203  # as above
                self._lose(home, error)
                lost.append(home)
            else:
                tokens += [(home, key) for key in found]
        return tokens, lost

    def _lose(self, home: Home, error: Exception) -> None:
        """A wait has failed; whether the node has will be seen when it is asked."""
        self._waiters.pop(home).drop()
        if not passing(error):
            raise error

    def quit(self) -> Heard:
        """End the waits, and keep the connections; the tokens taken meanwhile."""
        tokens = []
        for home, waiter in list(self._waiters.items()):
            del self._waiters[home]
            if not home.state.is_up:
                waiter.drop()
                continue
            try:
                keys = waiter.quit()
            except Exception as error:
                if not is_node_failure(error):
                    raise
                home.failed(error)
                continue
            home.ear.rest(waiter)
            tokens += [(home, key) for key in keys]
        return Heard(tuple(tokens))

    def drop(self) -> None:
        """Close the connections, whatever is pending on them."""
        while self._waiters:
            self._waiters.popitem()[1].drop()
