"""The streaming source: micro-batches of leased jobs, acknowledged after Spark's commit.

An offset names the consumer, and the number of the last batch of each shard. A shard is named by
its node, and by its partition if the queue has partitions:
`{"consumer": "…", "queue": "…", "nodes": {"1f2e3d4c/0": 4, …}}`. Others have not begun.
"""

from __future__ import annotations

import re
import secrets
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import accumulate
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pyarrow import RecordBatch
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from penstock.core.jobs.logs import get_logger
from penstock.errors import BadArgument, BatchLost, NodesUnavailable, QueuePartitioned
from penstock.spark.calls import about_batch
from penstock.spark.checkpoint import Batches
from penstock.spark.decoding import Origin, Replies, Shape, pages
from penstock.spark.lanes import Calls, Lanes
from penstock.spark.options import STATES, Stream
from penstock.spark.shards import OpenShards, ShardAddress, open_listed, open_node, open_shards
from penstock.wire.replies import Fetch

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["BatchRange", "StreamReader"]

try:
    from pyspark.sql.streaming.datasource import ReadMaxRows, SupportsTriggerAvailableNow
except ImportError:  # before Spark 4.2
    SupportsTriggerAvailableNow = object

logger = get_logger("penstock")

ROWS_A_PARTITION = 12_500
"""Jobs of a Spark partition, unless `numPartitions` is given."""
STOP_SECONDS = 5.0
"""Most time that `stop` waits for renewals under way."""
SOURCE_PROCESS = "pyspark.sql.streaming.python_streaming_source_runner"
"""The module that Spark runs in a process of its own for each reader, in its main thread."""
MAX_JOBS_PER_BATCH = 10_000_000
"""Most jobs of a batch without a limit."""
Offset = dict[str, Any]
Counts = dict[str, int]
R = TypeVar("R")


class BatchRange(NamedTuple):
    """Jobs of a batch that follow one another on a shard."""

    address: ShardAddress
    batch: int
    start: int
    end: int


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of the streaming source: `read` runs in tasks, all else on the driver.

    Spark creates several readers, some only to pickle them. So nothing is done before the first
    call of a method.

    Attributes:
        _planned: the offset at which the last planned batch ends.
        _made: the batches of the checkpoint on each shard that was reached so far.
        _reached: the shards that were reached last.
        _turn: which of the shards with equal shares gets the rest first.
        _wait_until: time of the clock until which a trigger waits for `minJobsPerTrigger`.
        _left: how many more jobs the query takes; None = no limit.
        _heartbeats: the thread that renews the leases of a node, by its id.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._given = options, schema
        self._name = secrets.token_hex(8)
        self._planned: Offset | None = None
        self._made: dict[str, Batches] = {}
        self._reached = OpenShards()
        self._turn = 0
        self._consumer = ""
        self._left: int | None = None
        self._stopped = threading.Event()
        self._heartbeats: dict[str, threading.Thread] = {}
        self._lanes = Lanes()
        self._wait_until = 0.0

    @cached_property
    def checked(self) -> tuple[Stream, Shape]:
        """Options and columns. Spark hides errors of the constructor behind an error of its own."""
        options, schema = self._given
        return Stream.parse(options), Shape(schema)

    @property
    def options(self) -> Stream:
        """The options."""
        return self.checked[0]

    @property
    def shape(self) -> Shape:
        """The columns."""
        return self.checked[1]

    @cached_property
    def beat(self) -> float:
        """Seconds between two renewals of the leases."""
        return min(self.options.lease_ms / 3000, 60.0)

    def __getstate__(self) -> dict[str, Any]:
        return {"checked": self.checked}  # what `read` needs

    def getDefaultReadLimit(self) -> Any:  # noqa: N802  # Spark's name
        """Return the limit of `maxJobsPerTrigger`."""
        return ReadMaxRows(self.options.max_jobs_per_trigger)

    def initialOffset(self) -> Offset:  # noqa: N802  # Spark's name
        """Return the offset before the first batch."""
        return {"consumer": self._name, "queue": self.options.queue, "nodes": {}}

    def _consumer_of(self, offset: object) -> str:
        """Return the name of the checkpoint with this offset, which must be one of this queue."""
        found = offset if isinstance(offset, dict) else {}
        consumer, queue = str(found.get("consumer")), found.get("queue")
        if not isinstance(found.get("nodes"), dict) or not re.fullmatch("[0-9a-f]{16}", consumer):
            reason = "has the offset of another source: another query has used this directory"
            raise BadArgument("checkpointLocation", offset, reason)
        if queue != self.options.queue:
            reason = f"has the offset of queue {queue!r}, not of {self.options.queue!r}"
            raise BadArgument("checkpointLocation", offset, reason)
        return consumer

    def _named(self, counts: Counts) -> Counts:
        """Return the numbers of an offset without nodes that the options no longer name.

        Jobs of such a node may not have been processed. They must not be acknowledged when the
        options name the node again.
        """
        if self._reached.unreached:
            return counts
        return {key: n for key, n in counts.items() if key[:8] in self._reached.nodes}

    def _open(self, consumer: str) -> dict[str, Batches]:
        """Return new objects for the batches of a checkpoint on the shards that are reached now."""
        self._reached = self._find_shards()
        for one in self._reached:
            one.on_answer = partial(self._lanes.note_answer, one.address.url)
        return {one.key: Batches(one, consumer, self.options.lease_ms) for one in self._reached}

    def _find_shards(self) -> OpenShards:
        options = self.options
        if not options.nodes:
            return open_shards(options)
        calls = {
            url: (url, partial(open_node, options.of_node(url), options.queue))
            for url in options.nodes
        }
        nodes = list(self._lanes.run_on_usable(calls, needs_one=True).values())
        return OpenShards.found(options.queue, nodes, len(calls) - len(nodes))

    def _open_batches(self, consumer: str) -> dict[str, Batches]:
        """Return the batches of a checkpoint, with what this reader knows of them."""
        if consumer != self._consumer:
            self._consumer, self._made = consumer, {}
        found = {key: self._made.get(key, new) for key, new in self._open(consumer).items()}
        self._made = self._made | found  # in one step: the heartbeat reads it
        return found

    def latestOffset(  # noqa: N802  # Spark's name; no arguments before Spark 4.2
        self, start: Offset | None = None, limit: Any = None
    ) -> Offset:
        """Acknowledge the batch that Spark has committed, and reserve the next one.

        Spark 4.0 and 4.1 do not pass `start`, the committed offset: then it is that planned last.
        """
        start = start or self._planned or self.initialOffset()
        # ReadAllAvailable of trigger(once=True) has no number.
        usual = self.options.max_jobs_per_trigger
        most = usual if limit is None else getattr(limit, "max_rows", None)
        found = self._open_batches(self._consumer_of(start))
        if not self._reached.unreached:
            self._reached.check(self.options, whole=False)
        # A shard whose last batch could not be acknowledged gets no next one: it would replace
        # the last one, and jobs that are done would be delivered again.
        finished = self._finish(start, found)
        counts: Counts = {}
        if not self._waits_for_more(finished):
            counts = self._reserve(start, finished, most)
        self._start_heartbeats()
        return {**start, "nodes": self._named(start["nodes"]) | counts}

    def _waits_for_more(self, found: Mapping[str, Batches]) -> bool:
        """Return True while there are fewer jobs than `minJobsPerTrigger`, for `maxTriggerDelay`.

        The first trigger does not wait: an earlier run may have reserved its batch.
        """
        options, now = self.options, monotonic()
        if self._left is None and options.min_jobs_per_trigger > 1 and now < self._wait_until:
            ready = self._run_on_usable(found, lambda key: found[key].shard.queue.stats().ready)
            if sum(ready.values()) < options.min_jobs_per_trigger:
                return True
        self._wait_until = now + options.max_trigger_delay / 1000
        return False

    def _reserve(self, start: Offset, found: Mapping[str, Batches], limit: int | None) -> Counts:
        """Reserve the next batch of these shards; return its number for each shard that has jobs.

        Without a limit, batches that an earlier run has reserved are loaded too.
        """
        counts: Counts = {}
        after = {key: start["nodes"].get(key, 0) + 1 for key in found}
        if limit is None or self._left is not None:
            known = self._run_on_usable(found, lambda key: found[key].resume(after[key]))
            counts = {key: after[key] for key in known}
        shares = self._share_out({key: found[key] for key in found if key not in counts}, limit)
        asked = {key: found[key] for key in shares}
        most_bytes = self.options.max_bytes_per_trigger
        part = None if most_bytes is None else max(1, most_bytes // max(1, len(asked)))
        taken = self._run_on_usable(
            asked, lambda key: found[key].take(after[key], shares[key], part)
        )
        if self._left is not None:
            self._left -= sum(taken.values())
        return counts | {key: after[key] for key in taken}

    def _share_out(self, found: Mapping[str, Batches], limit: int | None) -> Counts:
        """Return the most jobs for each shard, without shards that have none.

        Shards with few jobs come first: the others get the rest of their equal share.
        """
        ready: Counts = {}
        if len(found) > 1 or limit is None:
            ready = self._run_on_usable(found, lambda key: found[key].shard.queue.stats().ready)
        left = min(most for most in (limit, self._left, MAX_JOBS_PER_BATCH) if most is not None)
        equal = -(-left // max(1, len(found)))
        turns = {key: (at - self._turn) % len(found) for at, key in enumerate(found)}
        self._turn += 1
        order = sorted(found, key=lambda key: (min(ready.get(key, 0), equal), turns[key]))
        shares: Counts = {}
        for place, key in enumerate(order):
            share = -(-left // (len(order) - place))
            shares[key] = min(share, ready.get(key, share))
            left -= shares[key]
        return {key: share for key, share in shares.items() if share > 0}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        """Let the query end after the jobs that are ready now."""
        self._lanes.waits_for_all = True  # or the query would end without the jobs of a slow node
        self._left = self.reportLatestOffset()["ready"]

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Return the slices of the batch between two offsets, one for each task.

        A slice has the consumer and a list of ranges, perhaps of several shards.

        If a node that has jobs of it can't be reached, that is an error: otherwise these jobs would
        be acknowledged unprocessed.
        """
        same = self._consumer_of(start) == self._consumer_of(end)
        if not same:  # no `start` was passed: Spark 4.0 and 4.1
            self._finish(start, self._open(self._consumer_of(start)))
        self._planned = end
        self._open_batches(self._consumer_of(end))
        before = start["nodes"] if same else {}
        new = {key: n for key, n in end["nodes"].items() if n != before.get(key)}
        known = {key: self._made[key] for key in new if key in self._made}
        jobs = self._lanes.run_each(self._calls(known, lambda key: known[key].adopt(new[key])))
        ranges: list[BatchRange] = []
        for key, batch in new.items():
            if key not in known and self._reached.unreached:
                text = f"node {key[:8]} has jobs of batch {batch} and can't be reached"
                raise NodesUnavailable(f"queue {self.options.queue!r}: {text}")
            count = jobs.get(key)
            if count is None:
                self._report_lost(batch)
            elif count:
                ranges.append(BatchRange(known[key].shard.address, batch, 0, count))
        self._start_heartbeats()
        return [InputPartition((self._consumer_of(end), one)) for one in self._cut(ranges)]

    def _cut(self, ranges: Sequence[BatchRange]) -> Iterator[list[BatchRange]]:
        """Yield the ranges of each slice. All slices but the last have the same number of jobs."""
        *before, jobs = accumulate((one.end for one in ranges), initial=0)
        wanted = self.options.num_partitions or -(-jobs // ROWS_A_PARTITION)
        size = -(-jobs // max(1, wanted))
        for first in range(0, jobs, size or 1):
            end = first + size
            yield [
                one._replace(start=max(0, first - at), end=min(one.end, end - at))
                for one, at in zip(ranges, before, strict=True)
                if at < end and first < at + one.end
            ]

    def _report_lost(self, batch: int) -> None:
        """Raise the error for a batch that the server has forgotten, or log it."""
        error = BatchLost(
            f"queue {self.options.queue!r}: the server has forgotten batch {batch} of this "
            "checkpoint; its jobs may be done twice. To go on, set failOnLostBatch=false"
        )
        if self.options.fail_on_lost_batch:
            raise error
        logger.warning("%s", error)

    def commit(self, end: Offset) -> None:
        """Acknowledge a batch, unless `latestOffset` has done that."""
        self._finish(end, self._open_batches(self._consumer_of(end)))

    def _finish(self, offset: Offset, found: Mapping[str, Batches]) -> dict[str, Batches]:
        """Acknowledge the batches of an offset; return those for which that was possible."""
        ended = self._run_on_usable(
            found, lambda key: found[key].finish(offset["nodes"].get(key, 0))
        )
        return {key: found[key] for key in ended}

    def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802  # Spark's name
        """Return the numbers of jobs, and the oldest wait, which the query's progress shows."""
        found = self._open("")
        known = self._run_on_usable(found, lambda key: found[key].shard.queue.stats()).values()
        oldest = max((stats.oldest or 0.0 for stats in known), default=0.0)
        counts = {name: sum(getattr(stats, name) for stats in known) for name in STATES}
        return {**counts, "oldestWaitMs": round(oldest * 1000)}

    def _run_on_usable(
        self, of: Mapping[str, Batches], do: Callable[[str], R | None]
    ) -> dict[str, R]:
        """Call a function with the key of each shard.

        Leave out shards for which it returns None, and those that can't be used now.
        """

        def try_shard(key: str) -> R | None:
            try:
                return do(key)
            except QueuePartitioned:  # it was created after the shards were listed
                return None

        several = self.options.nodes
        run = self._lanes.run_on_usable if several else self._lanes.run_each
        results = run(self._calls(of, try_shard))
        return {key: one for key, one in results.items() if one is not None}

    def _calls(self, of: Mapping[str, Batches], do: Callable[[str], R]) -> Calls[R]:
        return {key: (one.shard.address.url, partial(do, key)) for key, one in of.items()}

    def _start_heartbeats(self) -> None:
        """Start a thread for each new node: a node that hangs does not keep others waiting."""
        _let_terminate()
        for node in {key[:8] for key in self._made} - self._heartbeats.keys():
            name = f"penstock-{self._consumer}-{node}"
            args = (node,)
            beats = threading.Thread(target=self._renew_until_stopped, args=args, name=name)
            beats.daemon = True
            beats.start()
            self._heartbeats[node] = beats

    def _renew_until_stopped(self, node: str) -> None:
        while not self._stopped.wait(self.beat):
            self.renew(node)
        stop_ms = self.options.stop_lease
        self._for_each_batch(node, lambda one: one.leave(stop_ms), "extended for the next run")

    def renew(self, node: str = "") -> None:
        """Renew the leases of the shards of a node; '' = of every shard."""
        self._for_each_batch(node, Batches.renew, "renewed")

    def _for_each_batch(self, node: str, do: Callable[[Batches], None], done: str) -> None:
        for one in [one for key, one in self._made.items() if key.startswith(node)]:
            try:
                do(one)
            except Exception as error:  # noqa: BLE001, PERF203  # the next beat tries again
                logger.warning("leases on node %s were not %s: %s", one.shard.node, done, error)

    def stop(self) -> None:
        """Keep the jobs of the last batch for `stopLease`, for the next run of the query.

        Spark may have committed it: only the next run is told. Each node has a thread, and those
        that do not answer are left behind after `STOP_SECONDS`.
        """
        self._stopped.set()
        until = monotonic() + STOP_SECONDS
        for beats in self._heartbeats.values():
            beats.join(max(0.0, until - monotonic()))
        self._heartbeats.clear()

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """Yield the jobs of a slice that the query still holds."""
        yield from map(self.shape.batch, pages(self._fetch_replies(*partition.value)))

    def _fetch_replies(self, consumer: str, ranges: list[BatchRange]) -> Replies:
        shards = open_listed(self.options, [one.address for one in ranges])
        for found, (_, batch, at, end) in zip(shards, ranges, strict=True):
            while at < end:
                count = min(self.options.fetch_size, end - at)
                args = (batch, at, count, self.shape.full)
                reply = found.run(about_batch(found.ops, "fetch", consumer, *args))
                if not isinstance(reply, Fetch) or reply.next <= at:  # forgotten, or finished
                    self._report_lost(batch)
                    break
                at = reply.next
                packed = found.ops.place(reply.epoch).packed
                yield Origin(self.options.queue, found.node, packed, "active"), reply.jobs


def _let_terminate() -> None:
    """Let Spark's process of a reader end in order at SIGTERM, by which Spark stops a query.

    Spark calls `stop` when the process ends so, and does not wait for it.
    """
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None and spec.name == SOURCE_PROCESS:
        signal.signal(signal.SIGTERM, _exit_once)


def _exit_once(number: int, _: object) -> None:
    signal.signal(number, signal.SIG_IGN)  # Spark sends it twice
    sys.exit(0)
