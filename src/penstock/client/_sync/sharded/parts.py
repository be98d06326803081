# From src/penstock/client/_async/sharded/parts.py by tools/unasync.py; do not edit.
"""The parts of a queue: their list, the part of a job, and calls to all of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeVar, cast

from penstock.client._sync.queue import Queue
from penstock.client._sync.settling import check_jobs, settle_each
from penstock.client._sync.sharded import hints
from penstock.client._sync.sharded.shard import Shard
from penstock.client.clock import monotonic
from penstock.core import flows
from penstock.core.calls.call import Call
from penstock.core.calls.failures import passing
from penstock.core.calls.operations import QueueOps
from penstock.core.jobs.hints import Intent, is_once
from penstock.core.jobs.job import Delivery, JobName, ops_of, reservation_of
from penstock.core.jobs.logs import get_logger
from penstock.core.jobs.merge import Answers, hinted, told, with_outcomes
from penstock.core.jobs.outcomes import Outcome, Settled
from penstock.core.jobs.views import QueuePage, ScanPage
from penstock.core.nodes import merging, state
from penstock.core.values.confirmations import Wait
from penstock.core.values.ids import parse_id
from penstock.errors import BadArgument, IncompleteSettle, PenstockError, WrongQueue
from penstock.wire.codes import Code
from penstock.wire.keys import QueueKeys, queue_crcs

if TYPE_CHECKING:
    from penstock.client._sync.backend import Backend
    from penstock.client._sync.sharded.federation import Federation
    from penstock.client._sync.sharded.node_client import NodeClient

__all__ = ["ShardedParts", "operations_of"]

N = TypeVar("N", bound="NodeClient")
T = TypeVar("T")
Page = TypeVar("Page", ScanPage, QueuePage)
logger = get_logger("penstock")


class ShardedParts(Queue):
    """Calls the parts of a queue on several nodes, in several partitions, or both.

    Args:
        federation: the nodes, or the only one.
        name: any non-empty text.
        partitions: their number; None = it has none.

    Attributes:
        partitions: their number; None = it has none.
    """

    def __init__(
        self,
        federation: Federation | NodeClient | Backend,
        name: str,
        partitions: int | None = None,
    ) -> None:
        self.backend: Any = federation
        self.partitions = partitions
        keys, codec = QueueKeys(name, federation.terms.prefix), federation.terms.codec
        self.ops = QueueOps(keys, federation.terms.owner, (), self, codec=codec)
        self._numbers: Sequence[int | None] = [None] if partitions is None else range(partitions)
        self._crcs = queue_crcs(name, partitions)
        self._turn = random.randrange(partitions or 1)
        self.poll_order = state.PollOrder()
        self._shards: dict[tuple[NodeClient, int | None], Shard] = {}
        self._by_ops: dict[QueueOps, Shard] = {}
        self._declared: set[NodeClient] = set()
        self._is_agreed = not federation.is_federated

    # -- parts -----------------------------------------------------------------------------

    @property
    def parts(self) -> list[Shard]:
        """Each partition on each node."""
        return [self._part(home, i) for home in self.backend.homes for i in self._numbers]

    @property
    def operations(self) -> list[QueueOps]:
        """Operations of each part."""
        return [part.ops for part in self.parts]

    def _shard(self, home: NodeClient, client: NodeClient, number: int | None) -> Shard:
        found = self._shards.get((client, number))
        if found is None:
            found = self._shards[client, number] = Shard(self, home, client, number)
            if client is home:
                self._by_ops[found.ops] = found
        return found

    def _part(self, home: NodeClient, number: int | None) -> Shard:
        return self._shard(home, home, number)

    def adopt(self, ops: QueueOps, home: NodeClient, number: int | None) -> None:
        """Use these operations, by which jobs were delivered before, for a part."""
        part = ShardedParts._shard(self, home, home, number)  # not of this class yet
        del self._by_ops[part.ops]
        ops.home, ops.partitions, ops.queue = home, self.partitions, self
        part.ops, self._by_ops[ops] = ops, part

    def _brief(self, home: NodeClient, number: int | None) -> Shard:
        return self._shard(home, home.brief, number)

    def asked(self) -> list[QueueOps]:
        """Return the operations of each part, in the order in which to ask them for jobs."""
        return self.poll_order.order(self.operations, monotonic())

    def declare(self) -> None:
        """Store settings and number of partitions on the nodes that are up and lack them.

        Raises:
            QueuePartitioned: a node has another number of partitions.
        """
        if not self._is_agreed:
            self.agree()
        if self.partitions is None:
            return
        for home in list(self.backend.homes):
            if home not in self._declared and home.state.is_up:
                self.backend.tried(home, partial(self._declare, home))

    def _declare(self, home: NodeClient) -> None:
        """Store the number of partitions on one node, unless it is stored."""
        if self.partitions is not None and home not in self._declared:
            home.connect()
            home.brief.driver.declare(self.ops.keys, self.partitions)
            self._declared.add(home)

    def _part_of(self, name: object) -> Shard:
        if not isinstance(name, Delivery):
            parsed = parse_id(name)
            home = self.backend.home_of(parsed.node, name)
            if parsed.crc not in self._crcs:
                raise WrongQueue("id", name, f"belongs to another queue than {self.name!r}")
            return self._part(home, self._crcs[parsed.crc])
        found = self._by_ops.get(ops_of(name))
        if found is not None:
            return found
        crc = int.from_bytes(reservation_of(name).place.packed[:4], "big")
        if name.queue_name != self.name or crc not in self._crcs:
            raise WrongQueue("job", name.id, f"belongs to another queue than {self.name!r}")
        home = self.backend.home_of(reservation_of(name).place.node, name.id)
        return self._part(home, self._crcs[crc])

    def _routed(
        self,
        names: list[Any],
        call: Callable[[Shard, list[Any]], Sequence[T]],
        unknown: T,
        intent: Intent | None = None,
    ) -> Sequence[T]:
        """Call each part with its jobs; return an answer for each job, in order.

        Args:
            names: deliveries or ids.
            call: calls a part.
            unknown: the answer for a job whose node can't be reached.
            intent: hint to keep on another node then; None = keep nothing.

        Raises:
            NodesMissed: some nodes did not answer; its results have `unknown` for their jobs. Its
                cause is an AckNotReplicated if replicas of the others did not confirm.
            IncompleteSettle: some servers of a cluster did not answer.
        """
        self.backend.connect()
        places: dict[Shard, list[int]] = {}
        for at, name in enumerate(names):
            places.setdefault(self._part_of(name), []).append(at)
        if len(places) == 1:
            [part] = places
            return self._called(part, names, call, intent)
        answers = Answers(len(names), unknown)
        for part, where in places.items():
            try:
                found = self._called(part, [names[at] for at in where], call, intent)
            except Exception as error:  # noqa: PERF203  # part after part; some are borne
                found, unconfirmed, failure = told(error)
                answers.note(where, found)
                answers.short = unconfirmed or answers.short
                if failure is None:
                    continue
                if self.backend.note_failure(part.home, failure):
                    answers.missed[part.home.address] = part.home.state.reason
                    continue
                if part.number is None or not passing(failure):
                    raise
                answers.failure = failure
                if not self.backend.is_apart:
                    break
            else:
                answers.note(where, found)
        return answers.checked(names)

    def _called(
        self,
        part: Shard,
        names: list[Any],
        call: Callable[[Shard, list[Any]], Sequence[T]],
        intent: Intent | None,
    ) -> Sequence[T]:
        place, queue = part.home, part.ops.keys.name
        if intent is not None and place.id and not place.state.is_up:
            kept = hints.keep(self.backend, part.federated, queue, names, intent)
            if any(kept):
                return cast("Sequence[T]", hinted(kept))
        # If another node can keep a hint, this one is asked once, with a short time-out.
        may_keep = intent is not None and not intent.waits and not all(map(is_once, names))
        is_prompt = may_keep and place.is_federated and len(self.backend.homes) > 1
        try:
            self._declare(place)
            return call(
                self._shard(place, part.federated.prompt, part.number) if is_prompt else part, names
            )
        except Exception as error:
            found, unconfirmed, failure = told(error)
            is_down = failure is not None and self.backend.note_failure(place, failure)
            left = names[len(found) :]  # the first chunks may be done
            if is_down and unconfirmed is None and intent is not None:
                kept = hints.keep(self.backend, part.federated, queue, left, intent)
                if any(kept):
                    return cast("Sequence[T]", [*found, *hinted(kept)])
            if not is_down or not is_prompt:
                raise
        try:
            rest = call(part, left)
        except Exception as error:
            more, _, failure = told(error)
            if found:
                raise IncompleteSettle([*found, *more]) from failure
            raise
        ended = Code.ENDED if intent is not None and intent.kind == "bury" else Code.GONE
        if isinstance(rest, Settled):  # the first call may have got through
            rest = cast("Sequence[T]", rest.after_resend(ended))
        return cast("Sequence[T]", [*found, *rest])

    def _settled(
        self,
        jobs: Iterable[JobName],
        build: Callable[[QueueOps, list[JobName]], Call[Settled]],
        *,
        resent_code: int = Code.ENDED,
        wait: Wait | None = None,
        intent: Intent | None = None,
    ) -> Settled:
        """Run a script on jobs, each on its part: see `settle_each`.

        Raises:
            As `_routed`.
        """
        names = check_jobs("jobs", jobs)
        if not names:
            return Settled(names)
        confirmed: list[int] = []

        def counted(part: Shard, own: list[Any]) -> Settled:
            settled = settle_each(part, own, build, resent_code=resent_code, wait=wait)
            confirmed.append(settled.replicas)
            return settled

        with with_outcomes(names):
            found = self._routed(names, counted, Outcome.UNKNOWN, intent)
        whole = found if isinstance(found, Settled) else Settled(names, found)
        whole.replicas = min(confirmed, default=0)
        return whole

    def _asked(self, ask: Callable[[Shard], T]) -> tuple[list[T], dict[str, str]]:
        found, missed = self._asked_nodes(ask)
        return [answer for _, answers in found for answer in answers], missed

    def _asked_nodes(
        self, ask: Callable[[Shard], T]
    ) -> tuple[list[tuple[NodeClient, list[T]]], dict[str, str]]:
        """Ask every part, as `_asked`; return the answers of each node."""

        def ask_all(home: NodeClient) -> list[T]:
            self._declare(home)
            return [ask(self._brief(home, number)) for number in self._numbers]

        found: tuple[list[tuple[NodeClient, list[T]]], dict[str, str]]
        found = self.backend.each(ask_all)
        return found

    # -- settings --------------------------------------------------------------------------

    def agree(self, *more: NodeClient) -> None:
        """Store the latest settings on the nodes that have others.

        A node that can't be reached, or refuses them, is left out. It is tried again when it is
        back, and every 30 s.

        Args:
            more: nodes that are about to be up, in addition to those that are.
        """
        homes = [home for home in list(self.backend.homes) if home.state.is_up]
        homes = list(dict.fromkeys([*homes, *more]))
        self._is_agreed = True
        if len(homes) < 2:
            return
        for number in self._numbers:
            found = {}
            for home in homes:
                part = self._brief(home, number)
                stored = self._best_effort(home, part._stored)
                if stored is not None:
                    found[home] = stored
            for home, fields in merging.to_store(found).items() if found else ():
                part = self._brief(home, number)
                self._best_effort(home, partial(self._store_settings, home, part, fields))
                logger.info("settings of %r: now stored on %s, too", self.name, home.address)

    def _store_settings(self, home: NodeClient, part: Queue, fields: list[Any]) -> None:
        """Store the settings of another node, except those that the script refuses."""
        while True:
            try:
                part._configured(fields)
                return
            except BadArgument as error:
                name = error.argument
                if name == "value":
                    name = error.value.partition(" ")[0]
                if name not in fields[2::2]:
                    raise
                text = "setting %s of %r was not stored on %s, where it is refused: %s"
                logger.warning(text, name, self.name, home.address, error)
            at = fields[::2].index(name) * 2
            fields = fields[:at] + fields[at + 2 :]

    def _best_effort(self, home: NodeClient, ask: Callable[[], T]) -> T | None:
        try:
            return ask()
        except Exception as error:  # noqa: BLE001  # as `agree` says
            if not self.backend.note_failure(home, error):
                logger.warning(
                    "settings of %r were not stored on %s: %s", self.name, home.address, error
                )
            return None


def next_page(
    federation: Any,
    cursor: tuple[str, str],
    places: Iterable[tuple[str, N, Callable[[str], Page]]],
    empty: Page,
) -> tuple[N | None, Page]:
    """Return the next page of a scan, which passes place after place, and its node.

    Args:
        federation: the nodes.
        cursor: the place with which to go on, and the cursor in it: see `split_cursor`.
        places: a key by which they are ordered, the node, and a function of a cursor that returns
            a page.
        empty: the page when no place is left.
    """
    key, inner = cursor
    missed = [home.address for _, home, _ in places if not home.id]
    met = sorted((place for place in places if place[1].id), key=itemgetter(0))
    left = [place for place in met if place[0] >= key]
    for at, (own, home, ask) in enumerate(left):
        page = federation.tried(home, partial(ask, inner if own == key else "0"))
        if page is None:
            missed.append(home.address)
            continue
        behind = [f"{key}:0" for key, _, _ in left[at + 1 : at + 2]]
        after = f"{own}:{page.cursor}" if page.cursor != "0" else behind[0] if behind else "0"
        return home, replace(page, cursor=after, unreachable=tuple(missed))
    return None, replace(empty, unreachable=tuple(missed))


def operations_of(queue: Queue) -> list[QueueOps]:
    """Return the operations of the parts of a queue: one, unless it is sharded."""
    return queue.operations if isinstance(queue, ShardedParts) else [queue.ops]


def ask_order(queues: Sequence[Queue]) -> tuple[list[QueueOps], int]:
    """Return the parts of queues in the order in which to ask them for jobs.

    Returns:
        The parts, and how many of them to ask for more when some jobs were taken: the other
        partitions of a queue had no jobs a moment ago.
    """
    found: list[QueueOps] = []
    for queue in queues:
        found += queue.asked() if isinstance(queue, ShardedParts) else [queue.ops]
    if len(queues) == 1 and isinstance(queue, ShardedParts) and found[0].home is None:
        return found, queue.poll_order.eager
    return found, len(found)


def sources_of(
    queues: Sequence[Queue],
    *,
    apart: bool,
    unavailable: Callable[[], PenstockError] | None = None,
    wait: Wait | None = None,
) -> flows.Sources:
    """Return the parts of queues as a consuming call asks them; see `flows.Sources`."""
    order = partial(ask_order, queues)
    return flows.Sources(order, monotonic, passing, note_poll, apart, unavailable, wait)


def note_poll(part: QueueOps, count: int | None) -> None:
    """Note how many jobs a part gave; None = it did not answer."""
    if isinstance(part.queue, ShardedParts):
        part.queue.poll_order.gave(part, count, monotonic())
