"""A consumer whose leases are bound to the offsets of a streaming query (PROTOCOL.md, Checkpoints).

Nothing of Spark is needed here: `stream` hands its questions on. An offset names the consumer and
the number of the batch up to which all is done: `{"consumer": "…", "n": 4}`, with several nodes
`{"consumer": "…", "nodes": {"1f2e3d4c": 4, …}}`.
"""

from __future__ import annotations

import logging
import re
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from penstock._sync.connection import passing
from penstock.core.options import MAX_LEASE_MS
from penstock.errors import BadArgument, BatchLost
from penstock.spark.lanes import Lane, lanes
from penstock.spark.options import Stream

__all__ = ["Consumer", "Part"]

logger = logging.getLogger("penstock")

STEP = 500
"""Jobs that one script puts into a batch: some ms of the server."""
PAGE = 1000
ROWS_A_PART = 10_000
"""Jobs of a Spark partition, unless `numPartitions` says otherwise."""
NEVER_ENDING = 10_000_000
Offset = dict[str, Any]


class Receipts(NamedTuple):
    """Jobs whose deliveries have one receipt in common, at most 1000."""

    receipt: str
    numbers: list[bytes]


@dataclass(frozen=True)
class Part:
    """A part of a batch, for one task.

    Attributes:
        url: of the node, '' = the one of the options.
        node: its id.
        consumer: the checkpoint.
        batch: the batch's number.
        start, end: which of its jobs.
    """

    url: str
    node: str
    consumer: str
    batch: int
    start: int
    end: int


class Batches:
    """The batches of one checkpoint on one lane.

    Args:
        lane: where.
        consumer: the checkpoint's id.
        lease_ms: of its leases.

    Attributes:
        epoch: of the queue when the batch was made.
        held: the receipts of the batch that is there, by its number; for renewals.
    """

    def __init__(self, lane: Lane, consumer: str, lease_ms: int) -> None:
        self.lane = lane
        self.consumer = consumer
        self.epoch = ""
        self.held: tuple[int, list[Receipts]] = (0, [])
        self._lease_ms = lease_ms
        self._fence = ""
        self._finished = 0

    def _assign(self, batch: int, most: int, n: int) -> list[Any]:
        ops = self.lane.ops
        call = ops.assign(
            self.consumer, self._fence, batch, most=most, n=n, lease_ms=self._lease_ms
        )
        reply = ops.of_batch(self.lane.run(call))
        self._fence = reply[2].decode()
        return reply

    def take(self, batch: int, most: int) -> bool:
        """Have this batch, made now or in an earlier life; False = there is nothing to be put in.

        Raises:
            CheckpointTaken: somebody else has it.
        """
        while True:
            reply = self._assign(batch, most, STEP)
            _, _, _, jobs, sealed, after, epoch, _ = reply
            if sealed:
                self._load(batch)
                return True
            if not epoch or (jobs == 0 and after != 0):
                return False

    def exists(self) -> bool:
        """Whether there is a queue."""
        return bool(self.lane.stats().exists)

    def adopt(self, batch: int) -> int | None:
        """Go on with a batch of an earlier life; how many jobs, None = the server has forgotten it.

        Its leases are renewed at once: they may be nearly over.
        """
        if self.held[0] != batch:
            if self._load(batch, fence="") is None:
                return None
            self._assign(batch, 0, 0)
            self.renew()
        return sum(len(group.numbers) for group in self.held[1])

    def _load(self, batch: int, fence: str | None = None) -> int | None:
        """Read the receipts of a batch; how many, None = it is not there."""
        groups: list[Receipts] = []
        ops, start = self.lane.ops, 0
        shown = self._fence if fence is None else fence
        while True:
            call = ops.assigned(self.consumer, shown, batch, start, PAGE)
            reply = ops.of_batch(self.lane.run(call))
            if reply[0] != 1:
                return None
            self.epoch = reply[3].decode()
            _grouped(groups, reply[6:])
            start += len(reply) - 6
            if start >= reply[4] or len(reply) == 6:
                self.held = (batch, groups)
                return start

    def finish(self, batch: int) -> int:
        """Acknowledge a batch that is done, as far as it is still ours; how many jobs.

        Again and again if need be: what is finished already is gone.
        """
        if batch <= self._finished:
            return 0
        found = self._known(batch)
        acked = 0
        if found:
            self._take_over(batch)
            for group in self.held[1]:
                call = self.lane.ops.ack_receipts(self.epoch, group.receipt, group.numbers)
                reply = self.lane.ops.check(self.lane.run(call))
                acked += int(reply[2])
            if acked < found:
                text = "queue %r: %d jobs of batch %d were not ours any more"
                logger.warning(text, self.lane.queue, found - acked, batch)
            ops = self.lane.ops
            ops.of_batch(self.lane.run(ops.dismiss(self.consumer, self._fence, batch)))
        if self.held[0] == batch:
            self.held = (0, [])
        self._finished = batch
        return acked

    def _known(self, batch: int) -> int | None:
        """The same as `_load`, without reading again what is known; the checkpoint is still ours.

        Raises:
            CheckpointTaken: it is not.
        """
        if self.held[0] != batch:
            return self._load(batch)
        ops = self.lane.ops
        reply = ops.of_batch(self.lane.run(ops.assigned(self.consumer, self._fence, batch, 0, 1)))
        return reply[4] if reply[0] == 1 else None

    def _take_over(self, batch: int) -> None:
        """Have the checkpoint, if this life has not called for it."""
        if not self._fence:
            self._assign(batch, 0, 0)

    def renew(self) -> None:
        """Renew the leases of the batch that is there."""
        for group in self.held[1]:
            call = self.lane.ops.extend_receipts(
                self.epoch, group.receipt, group.numbers, self._lease_ms
            )
            self.lane.run(call)


def _grouped(groups: list[Receipts], entries: Sequence[bytes]) -> None:
    """Add entries of a batch to those that have the same receipt as the one before."""
    last = b""
    numbers: list[bytes] = groups[-1].numbers if groups else []
    if groups:
        last = groups[-1].receipt.encode()
    for entry in entries:
        number, _, receipt = entry.partition(b" ")
        if receipt != last or len(numbers) == PAGE:
            last, numbers = receipt, []
            groups.append(Receipts(receipt.decode(), numbers))
        numbers.append(number)


class Consumer:
    """The driver's half of a streaming source.

    Args:
        options: of the source.
        lane_source: makes the lanes; for tests.
        beat: seconds between two renewals; None = a third of the lease.
    """

    def __init__(
        self,
        options: Stream,
        *,
        lane_source: Callable[[Stream], list[Lane]] = lanes,
        beat: float | None = None,
    ) -> None:
        self._options = options
        self._lane_source = lane_source
        sticky = options.claim_policy == "sticky"
        self.lease_ms = MAX_LEASE_MS if sticky else options.lease_duration
        self._beat = min(self.lease_ms / 3000, 60.0) if beat is None else beat
        self._initial: Offset | None = None
        self._planned: Offset | None = None
        self._made: dict[str, Batches] = {}
        self._consumer = ""
        self._left: int | None = None
        self._stopped = threading.Event()
        self._renewer: threading.Thread | None = None

    # -- offsets ---------------------------------------------------------------------------

    def initial(self) -> Offset:
        """The offset before the first batch; the same whenever it is asked for."""
        if self._initial is None:
            name = secrets.token_hex(8)
            counts: Offset = {"nodes": {}} if self._options.nodes else {"n": 0}
            self._initial = {"consumer": name, **counts}
        return self._initial

    def _count(self, offset: Offset, key: str) -> int:
        return int(offset.get("nodes", {}).get(key, 0) if self._options.nodes else offset["n"])

    def _moved(self, offset: Offset, counts: Mapping[str, int]) -> Offset:
        if self._options.nodes:
            return {**offset, "nodes": {**offset.get("nodes", {}), **counts}}
        return {**offset, "n": next(iter(counts.values()), offset["n"])}

    def _batches(self, consumer: str) -> dict[str, Batches]:
        """The batches of each lane; a node that comes back later is met then."""
        if consumer != self._consumer:
            self._consumer = _checked(consumer)
            self._made = {}
        for lane in self._lane_source(self._options):
            if lane.key not in self._made:
                self._made[lane.key] = Batches(lane, consumer, self.lease_ms)
        return self._made

    # -- what Spark asks -------------------------------------------------------------------

    def latest(self, start: Offset | None, limit: int | None) -> Offset:
        """Finish what is noted as done, and have the next batch.

        Args:
            start: up to there all is in the commit log; None = it is not said (Spark 4.0, 4.1):
                what was planned last.
            limit: the most jobs; None = all that can be reserved now.
        """
        start = start or self._planned or self.initial()
        found = self._batches(start["consumer"])
        if self._options.require_queue and not any(one.exists() for one in found.values()):
            raise next(iter(found.values())).lane.missing()
        self._each(found, lambda one: one.finish(self._count(start, one.lane.key)))
        most = left = self._budget(found, limit)
        counts: dict[str, int] = {}
        for place, (key, one) in enumerate(found.items()):
            after = self._count(start, key) + 1
            share = -(-left // (len(found) - place))
            if share > 0 and self._tried(one, partial(one.take, after, share)):
                counts[key] = after
                left -= sum(len(group.numbers) for group in one.held[1])
        if self._left is not None:
            self._left -= most - left
        self._watch()
        return self._moved(start, counts) if counts else start

    def _budget(self, found: Mapping[str, Batches], limit: int | None) -> int:
        most = limit
        if self._left is not None:
            most = self._left if most is None else min(most, self._left)
        if most is None:
            most = min(self._ready(found), NEVER_ENDING)
        return most

    def _ready(self, found: Mapping[str, Batches]) -> int:
        return sum(one.lane.stats().ready for one in found.values())

    def available_now(self) -> None:
        """From now on no more is taken than can be reserved at this moment."""
        lanes_now = self._lane_source(self._options)
        self._left = sum(lane.stats().ready for lane in lanes_now)

    def parts(self, start: Offset, end: Offset) -> list[Part]:
        """The parts of the batch between two offsets.

        Raises:
            BatchLost: the server has forgotten it, and `failOnLostClaim` is true.
        """
        if self._consumer and start["consumer"] != end["consumer"]:
            self._finish_other(start)
        self._planned = end
        found: list[Part] = []
        for key, one in self._batches(end["consumer"]).items():
            batch = self._count(end, key)
            same = start["consumer"] == end["consumer"]
            if batch == (self._count(start, key) if same else 0):
                continue
            jobs = one.adopt(batch)
            if jobs is None:
                self._lost(one, batch)
            else:
                found += self._cut(one, batch, jobs)
        self._watch()
        return found

    def _cut(self, one: Batches, batch: int, jobs: int) -> Iterator[Part]:
        wanted = self._options.num_partitions or -(-jobs // ROWS_A_PART)
        size = max(1, -(-jobs // max(1, wanted)))
        for first in range(0, jobs, size):
            end = min(first + size, jobs)
            yield Part(one.lane.url, one.lane.node, one.consumer, batch, first, end)

    def _lost(self, one: Batches, batch: int) -> None:
        error = lost(one.lane.queue, batch)
        if self._options.fail_on_lost_claim:
            raise error
        logger.warning("%s", error)

    def _finish_other(self, start: Offset) -> None:
        """Finish the last batch of another consumer: its offset is in the commit log (Spark 4.0
        and 4.1 begin anew after a restart, as they do not say where they are).
        """
        for lane in self._lane_source(self._options):
            one = Batches(lane, start["consumer"], self.lease_ms)
            one.finish(self._count(start, lane.key))

    def committed(self, end: Offset) -> None:
        """The second chance: what was noted as done is finished, if it is not yet."""
        found = self._batches(end["consumer"])
        self._each(found, lambda one: one.finish(self._count(end, one.lane.key)))

    def figures(self) -> dict[str, int]:
        """How much waits, for the progress of the query."""
        known = [lane.stats() for lane in self._lane_source(self._options)]
        return {
            name: sum(getattr(stats, name) for stats in known)
            for name in ("ready", "scheduled", "active", "dead")
        }

    # -- leases ----------------------------------------------------------------------------

    def _each(self, found: Mapping[str, Batches], do: Callable[[Batches], Any]) -> None:
        for one in found.values():
            self._tried(one, partial(do, one))

    def _tried(self, one: Batches, do: Callable[[], Any]) -> Any:
        """Do it; a node of several that can't be reached is left out."""
        try:
            return do()
        except Exception as error:
            if not self._options.nodes or not passing(error):
                raise
            logger.warning("node %s: %s; going on without it", one.lane.node, error)
            return None

    def _watch(self) -> None:
        """Renew leases from now on, while there are any."""
        if self._renewer is None and not self._stopped.is_set():
            name = f"penstock-{self._consumer}"
            self._renewer = threading.Thread(target=self._renewals, name=name, daemon=True)
            self._renewer.start()

    def _renewals(self) -> None:
        while not self._stopped.wait(self._beat):
            for one in list(self._made.values()):
                try:
                    one.renew()
                except Exception as error:  # noqa: BLE001, PERF203  # the next beat may get through
                    logger.warning("leases on node %s were not renewed: %s", one.lane.node, error)

    def stop(self) -> None:
        """Renew no more; what is leased is found by the next life, or comes back."""
        self._stopped.set()
        if self._renewer is not None:
            self._renewer.join()
            self._renewer = None


def lost(queue: str, batch: int) -> BatchLost:
    """The error of a batch that the server has forgotten."""
    return BatchLost(
        f"queue {queue!r}: the server has forgotten batch {batch} of this checkpoint; its jobs are "
        "in the queue or come back when their leases end, and may be done twice "
        "(failOnLostClaim=false goes on)"
    )


def _checked(consumer: object) -> str:
    """The id of a checkpoint, as an offset has it.

    Raises:
        BadArgument: the checkpoint is not one of this source.
    """
    if isinstance(consumer, str) and re.fullmatch("[0-9a-f]{16}", consumer):
        return consumer
    raise BadArgument("checkpointLocation", consumer, "the offset in it is not one of this source")
