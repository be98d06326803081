"""A consumer whose leases belong to the offsets of a streaming query (protocol/checkpoints.md).

An offset names the consumer, and the number of the last batch of each shard. A shard is named by
its node, and by its partition if the queue has partitions:
`{"consumer": "…", "nodes": {"1f2e3d4c/0": 4, "1f2e3d4c/1": 2, …}}`. Others have not begun.
"""

from __future__ import annotations

import random
import re
import secrets
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from pyspark.sql.datasource import InputPartition

from penstock.client._sync.transport.failures import passing
from penstock.core.logs import get_logger
from penstock.core.options import MAX_LEASE_MS
from penstock.core.refusals import REFUSALS
from penstock.core.views import QueueStats
from penstock.errors import BadArgument, BatchLost, NodesUnavailable, QueuePartitioned
from penstock.spark.calls import about_batch
from penstock.spark.options import STATES, Stream
from penstock.spark.shards import OpenShard, OpenShards, ShardAddress, open_shards
from penstock.wire.replies import Assign, Assigned

__all__ = ["BatchRange", "BatchSlice", "Consumer", "lost"]

logger = get_logger("penstock")

STEP = 500
"""Jobs that one script adds to a batch: it takes the server some ms."""
PAGE = 1000
ROWS_A_PARTITION = 12_500
"""Jobs of a Spark partition, unless `numPartitions` is given."""
THREADS = 8
"""Most shards that the driver calls at a time."""
NEVER_ENDING = 10_000_000
Offset = dict[str, Any]
Counts = dict[str, int]
R = TypeVar("R")


@dataclass
class Receipts:
    """Jobs that share a receipt, at most 1000. Leases end at `until`, in ms; 0 = not known."""

    receipt: str
    numbers: list[bytes]
    until: int = 0

    @property
    def hinted(self) -> str:
        """Receipt with the hint when the leases end, if that is known."""
        return f"{self.receipt}@{self.until}" if self.until else self.receipt


class BatchRange(NamedTuple):
    """Jobs of a batch that follow one another on a shard."""

    address: ShardAddress
    batch: int
    start: int
    end: int


@dataclass(frozen=True)
class BatchSlice(InputPartition):
    """A Spark partition of a batch. It may have jobs of several shards."""

    consumer: str
    ranges: tuple[BatchRange, ...]


class Batches:
    """The batches of one checkpoint on one shard.

    Attributes:
        epoch: of the queue when the batch was created.
        held: the number and the receipts of the current batch.
    """

    def __init__(self, shard: OpenShard, consumer: str, lease_ms: int) -> None:
        self.shard = shard
        self.consumer = consumer
        self.epoch = ""
        self.held: tuple[int, list[Receipts]] = (0, [])
        self._lease_ms = lease_ms
        self._fence = ""
        self._finished = 0
        self._ends: dict[str, int] = {}
        self._asked = False

    @property
    def jobs(self) -> int:
        """Number of jobs in the current batch."""
        return sum(len(group.numbers) for group in self.held[1])

    def _run(self, name: str, *args: Any) -> Any:
        return self.shard.run(about_batch(self.shard.ops, name, self.consumer, *args))

    def _assign(self, batch: int, most: int, n: int) -> Assign:
        """Reserve up to n more jobs for a batch. Without a fence, take the checkpoint over."""
        tag, owner = random.getrandbits(12), self.shard.ops.owner_name
        args = (self._fence, batch, most, n, tag, owner, self._lease_ms)
        reply: Assign = self._run("assign", *args)
        self._fence = reply.fence.decode()
        self._ends[f"1-{tag:03x}"] = reply.now + self._lease_ms
        return reply

    def take(self, batch: int, most: int) -> bool:
        """Reserve this batch, or load it if it exists; return False if there are no jobs."""
        while True:
            reply = self._assign(batch, most, STEP)
            if reply.sealed:
                self._load(batch)
                return True
            if not reply.epoch or (reply.jobs == 0 and reply.next != 0):
                return False

    def resume(self, batch: int) -> bool:
        """Load this batch if an earlier run of the query has reserved it; return whether it has.

        Only the first call looks: later batches are reserved by this run.
        """
        if self._asked:
            return False
        found = self._load(batch)
        self._asked = True
        if not found:
            self.held = (0, [])  # it may have jobs when it is planned
            return False
        self._assign(batch, 0, 0)
        self.renew()
        return True

    def adopt(self, batch: int) -> int | None:
        """Load a batch of an earlier run; return its number of jobs, None = it is forgotten."""
        if self.held[0] != batch:
            if self._load(batch, fence="") is None:
                return None
            self._assign(batch, 0, 0)
            self.renew()  # its leases may end soon
        return self.jobs

    def _load(self, batch: int, fence: str | None = None) -> int | None:
        """Read the receipts of a batch; return its number of jobs, or None if it does not exist."""
        groups: list[Receipts] = []
        latest: dict[bytes, Receipts] = {}
        start, shown = 0, self._fence if fence is None else fence
        while True:
            reply = self._run("assigned", shown, batch, start, PAGE)
            if not isinstance(reply, Assigned):
                return None
            self.epoch = reply.epoch.decode()
            for entry in reply.receipts:
                number, _, receipt = entry.partition(b" ")
                group = latest.get(receipt)
                if group is None or len(group.numbers) == PAGE:
                    group = latest[receipt] = Receipts(receipt.decode(), [])
                    group.until = self._ends.get(group.receipt, 0)
                    groups.append(group)
                group.numbers.append(number)
            start += len(reply.receipts)
            if start >= reply.jobs or not reply.receipts:
                self._ends = {}
                self.held = (batch, groups)
                return start

    def finish(self, batch: int) -> int:
        """Acknowledge the jobs of a finished batch, perhaps again; return how many were held."""
        if batch <= self._finished:
            return 0
        found = self._known(batch)
        acked = 0
        if found:
            if not self._fence:
                self._assign(batch, 0, 0)
            for group in self.held[1]:
                call = self.shard.ops.call("ack", self.epoch, group.hinted, "", *group.numbers)
                acked += self.shard.run(call).acked
            if acked < found:
                text = "queue %r: %d jobs of batch %d had lost their lease and may be done twice"
                logger.warning(text, self.shard.name, found - acked, batch)
            self._run("dismiss", self._fence, batch)
        if self.held[0] == batch:
            self.held = (0, [])
        self._finished = batch
        return acked

    def _known(self, batch: int) -> int | None:
        """Return the number of jobs of a batch. If the batch is loaded, don't load it again."""
        if self.held[0] != batch:
            return self._load(batch)
        reply = self._run("assigned", self._fence, batch, 0, 1)
        return reply.jobs if isinstance(reply, Assigned) else None

    def renew(self) -> None:
        """Renew the leases of the current batch."""
        for group in self.held[1]:
            args, ends = (self.epoch, group.receipt, self._lease_ms, 1), set[int]()
            call = self.shard.ops.call("extend", *args, *group.numbers)
            with suppress(*REFUSALS):  # the jobs are gone, which `finish` reports
                ends.update(self.shard.run(call).untils)
            group.until = max(0, ends.pop()) if len(ends) == 1 else 0


class Consumer:
    """The methods of a streaming source that Spark calls on the driver.

    Spark creates several readers, some only to pickle them. So nothing is done before the first
    call of a method. `beat` has the seconds between two renewals; None = a third of the lease.
    """

    def __init__(
        self,
        options: Stream,
        *,
        find_shards: Callable[[Stream], OpenShards] = open_shards,
        beat: float | None = None,
    ) -> None:
        self.options = options
        self._find_shards = find_shards
        sticky = options.lease_policy == "sticky"
        self.lease_ms = MAX_LEASE_MS if sticky else options.lease_duration
        self._beat = min(self.lease_ms / 3000, 60.0) if beat is None else beat
        self._initial: Offset | None = None
        self._planned: Offset | None = None
        self._made: dict[str, Batches] = {}
        self._unreached = 0
        self._turn = 0
        self._consumer = ""
        self._left: int | None = None
        self._stopped = threading.Event()
        self._heartbeat: threading.Thread | None = None

    # -- offsets ---------------------------------------------------------------------------

    def initialOffset(self) -> Offset:  # noqa: N802  # Spark's name
        """Return the offset before the first batch, which is made once."""
        if self._initial is None:
            name = secrets.token_hex(8)
            self._initial = {"consumer": name, "nodes": {}}
        return self._initial

    def _kept(self, offset: Offset, found: Mapping[str, Batches]) -> Offset:
        """Return the offset without nodes that the options no longer name.

        Jobs of such a node may not have been processed. They must not be acknowledged when the
        options name the node again.
        """
        named = {one.shard.node for one in found.values()}
        nodes = offset["nodes"]
        if self._unreached or named.issuperset(key[:8] for key in nodes):
            return offset
        return {**offset, "nodes": {key: n for key, n in nodes.items() if key[:8] in named}}

    def _batches(self, consumer: str) -> dict[str, Batches]:
        if consumer != self._consumer:
            self._consumer = consumer
            self._made = {}
        reached = self._find_shards(self.options)
        self._unreached = reached.unreached
        made = dict(self._made)
        for shard in reached:
            if shard.key not in made:
                made[shard.key] = Batches(shard, consumer, self.lease_ms)
        self._made = made  # in one step: the heartbeat reads it
        return {shard.key: made[shard.key] for shard in reached}

    # -- calls of Spark ---------------------------------------------------------------------

    def latest(self, start: Offset | None, limit: int | None) -> Offset:
        """Acknowledge the batch that Spark has committed, and reserve at most `limit` more jobs.

        Spark 4.0 and 4.1 do not pass `start`, the committed offset: then it is that planned last.
        """
        start = start or self._planned or self.initialOffset()
        found = self._batches(_consumer(start))
        if self.options.require_queue:
            known = self._usable(found, lambda key: found[key].shard.exists())
            if len(known) == len(found) and not any(known.values()) and not self._unreached:
                raise next(iter(found.values())).shard.missing()
        # A shard whose last batch could not be acknowledged gets no next one: it would replace
        # the last one, and jobs that are done would be delivered again.
        free = self._finished(start, found)
        counts = self._taken(start, free, limit) if free else {}
        self._watch()
        kept = self._kept(start, found)
        return {**kept, "nodes": {**kept["nodes"], **counts}} if counts else kept

    def _taken(self, start: Offset, found: Mapping[str, Batches], limit: int | None) -> Counts:
        """Reserve the next batch of these shards; return its number for each shard that has jobs.

        Shards with few jobs come first: the others get the rest of their equal share. Without a
        limit, batches that an earlier run has reserved are loaded too.
        """
        counts: Counts = {}
        after = {key: _count(start, key) + 1 for key in found}
        if limit is None or self._left is not None:
            known = self._usable(found, lambda key: found[key].resume(after[key]))
            counts = {key: after[key] for key, is_known in known.items() if is_known}
        shares = self._shares([key for key in found if key not in counts], found, limit)
        asked = {key: found[key] for key in shares}
        taken = self._usable(asked, lambda key: found[key].take(after[key], shares[key]))
        counts.update((key, after[key]) for key, is_taken in taken.items() if is_taken)
        if self._left is not None:
            self._left -= sum(found[key].jobs for key, is_taken in taken.items() if is_taken)
        return counts

    def _shares(
        self, keys: Sequence[str], found: Mapping[str, Batches], limit: int | None
    ) -> Counts:
        """Return the most jobs for each shard, without shards that have none."""
        ready: Counts = {}
        if len(found) > 1 or limit is None:
            ready = {key: stats.ready for key, stats in self._stats(found).items()}
        limits = [most for most in (limit, self._left) if most is not None]
        left = min(limits or [sum(ready.values()), NEVER_ENDING])
        equal = -(-left // len(found))
        turns = {key: (at - self._turn) % len(found) for at, key in enumerate(found)}
        self._turn += 1
        shares: Counts = {}
        order = sorted(keys, key=lambda key: (min(ready.get(key, 0), equal), turns[key]))
        for place, key in enumerate(order):
            share = -(-left // (len(order) - place))
            shares[key] = min(share, ready.get(key, share))
            left -= shares[key]
        return {key: share for key, share in shares.items() if share > 0}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        """Let the query end after the jobs that are ready now."""
        self._left = self.reportLatestOffset()["ready"]

    def partitions(self, start: Offset, end: Offset) -> list[BatchSlice]:
        """Return the slices of the batch between two offsets, one for each task.

        If a node that has jobs of it can't be reached, that is an error: otherwise these jobs would
        be acknowledged unprocessed.
        """
        same = _consumer(start) == _consumer(end)
        if self._consumer and not same:  # Spark 4.0 and 4.1 did not pass `start` to `latest`
            other, shards = _consumer(start), self._find_shards(self.options)
            self._finished(start, {one.key: Batches(one, other, self.lease_ms) for one in shards})
        self._planned = end
        self._batches(_consumer(end))
        new = {
            key: batch
            for key, batch in end["nodes"].items()
            if batch != (_count(start, key) if same else 0)
        }
        known = {key: self._made[key] for key in new if key in self._made}
        jobs = self._each(known, lambda key: known[key].adopt(new[key]))
        ranges: list[BatchRange] = []
        for key, batch in new.items():
            if key not in known and self._unreached:
                raise NodesUnavailable(
                    f"queue {self.options.queue!r}: node {key[:8]} has jobs of batch {batch} of "
                    "this checkpoint, and can't be reached"
                )
            count = jobs.get(key)
            if count is None:
                self._lost(batch)
            elif count:
                ranges.append(BatchRange(known[key].shard.address, batch, 0, count))
        self._watch()
        return [BatchSlice(_consumer(end), tuple(one)) for one in self._cut(ranges)]

    def _cut(self, ranges: Sequence[BatchRange]) -> Iterator[list[BatchRange]]:
        """Yield the ranges of each slice. All slices but the last have the same number of jobs."""
        jobs = sum(one.end for one in ranges)
        wanted = self.options.num_partitions or -(-jobs // ROWS_A_PARTITION)
        size = -(-jobs // max(1, wanted))
        made, room = list[BatchRange](), size
        for whole in ranges:
            at = whole.start
            while at < whole.end:
                end = min(whole.end, at + room)
                made.append(whole._replace(start=at, end=end))
                room -= end - at
                at = end
                if room == 0:
                    yield made
                    made, room = [], size
        if made:
            yield made

    def _lost(self, batch: int) -> None:
        error = lost(self.options.queue, batch)
        if self.options.fail_on_lost_batch:
            raise error
        logger.warning("%s", error)

    def commit(self, end: Offset) -> None:
        """Acknowledge a batch, unless `latest` has done that."""
        self._finished(end, self._batches(_consumer(end)))

    def _finished(self, offset: Offset, found: Mapping[str, Batches]) -> dict[str, Batches]:
        """Acknowledge the batches of an offset; return those for which that was possible."""
        ended = self._usable(found, lambda key: found[key].finish(_count(offset, key)))
        return {key: found[key] for key in ended}

    def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802  # Spark's name
        """Return the numbers of jobs, which the query's progress shows."""
        shards = self._find_shards(self.options)
        known = self._stats({one.key: Batches(one, "", self.lease_ms) for one in shards}).values()
        return {name: sum(getattr(stats, name) for stats in known) for name in STATES}

    def _stats(self, found: Mapping[str, Batches]) -> dict[str, QueueStats]:
        return self._usable(found, lambda key: found[key].shard.stats())

    # -- leases ----------------------------------------------------------------------------

    def _usable(self, found: Mapping[str, Batches], do: Callable[[str], R]) -> dict[str, R]:
        """Call a function with the key of each shard; leave out shards that can't be used now."""

        def tried(key: str) -> R | None:
            shard = found[key].shard
            try:
                return do(key)
            except QueuePartitioned:  # it was created after the shards were listed
                if shard.address.number is not None:
                    raise
            except Exception as error:
                if not self.options.nodes or not passing(error):
                    raise
                logger.warning("node %s is not used for now: %s", shard.node, error)
            return None

        results = self._each(found, tried)
        return {key: one for key, one in results.items() if one is not None}

    def _each(self, keys: Collection[str], do: Callable[[str], R]) -> dict[str, R]:
        """Call a function with the key of each shard, for some of them at a time."""
        if len(keys) < 2:
            return {key: do(key) for key in keys}
        with ThreadPoolExecutor(min(THREADS, len(keys))) as pool:
            return dict(zip(keys, pool.map(do, keys), strict=True))

    def _watch(self) -> None:
        if self._heartbeat is None and not self._stopped.is_set():
            name = f"penstock-{self._consumer}"
            self._heartbeat = threading.Thread(target=self._renewals, name=name, daemon=True)
            self._heartbeat.start()

    def _renewals(self) -> None:
        while not self._stopped.wait(self._beat):
            self.renew()

    def renew(self) -> None:
        """Renew the leases of every shard that can be reached."""
        for one in list(self._made.values()):
            try:
                one.renew()
            except Exception as error:  # noqa: BLE001, PERF203  # the next beat tries again
                logger.warning("leases on node %s were not renewed: %s", one.shard.node, error)

    def stop(self) -> None:
        """Stop the heartbeat. The next run finds the leased jobs, or their leases end."""
        self._stopped.set()
        if self._heartbeat is not None:
            self._heartbeat.join()
            self._heartbeat = None


def lost(queue: str, batch: int) -> BatchLost:
    """Return the error for a batch that the server has forgotten."""
    return BatchLost(
        f"queue {queue!r}: the server has forgotten batch {batch} of this checkpoint; its jobs are "
        "in the queue or come back when their leases end, and may be done twice. To go on, set "
        "failOnLostBatch=false"
    )


def _count(offset: Offset, key: str) -> int:
    return int(offset["nodes"].get(key, 0))


def _consumer(offset: object) -> str:
    if isinstance(offset, dict) and isinstance(offset.get("nodes"), dict):
        consumer = offset.get("consumer")
        if isinstance(consumer, str) and re.fullmatch("[0-9a-f]{16}", consumer):
            return consumer
    reason = "has the offset of another source: another query has used this directory"
    raise BadArgument("checkpointLocation", offset, reason)
