"""A part of a queue: a whole queue on one node, or one of its partitions there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from penstock.client._async.adding import add, confirm
from penstock.client._async.nodes.one_part import AsyncOnePart
from penstock.client._async.settling import settle_each
from penstock.client._async.transport.finished import AsyncJobWait
from penstock.client.clock import monotonic
from penstock.core import flows
from penstock.core.calls.operations.managing import Looked
from penstock.core.calls.operations.producing import SHORT_RECORD_BYTES, Added
from penstock.core.enqueuing.prepared import Prepared, check_size
from penstock.core.jobs.enqueued import BulkEnqueued, Enqueued, JobSpan
from penstock.core.jobs.job import Delivery, JobName
from penstock.core.jobs.logs import get_logger
from penstock.core.jobs.marks import LogLine, read_log
from penstock.core.jobs.outcomes import OUTCOME_OF_CODE, Outcome
from penstock.core.jobs.queue_stats import QueueStats, Settings
from penstock.core.jobs.views import RECEIPT_PLACE, DedupStatus, JobView, ScanPage
from penstock.core.nodes.merging import STORED_SETTINGS
from penstock.core.values.checks import BATCH, JOB_CURSOR, StateName, check_cursor
from penstock.core.values.confirmations import Confirmed
from penstock.errors import NodesUnavailable, OutOfMemory, QueueFull, QueueMissing
from penstock.wire.codes import Code
from penstock.wire.replies import Claim

if TYPE_CHECKING:
    from penstock.core.enqueuing.schedules import NewSchedule
    from penstock.core.jobs.events import LookedAt
    from penstock.core.jobs.searching import Search

__all__ = ["AsyncAskPart", "AsyncCallPart", "AsyncOpenedBatch", "AsyncPart", "AsyncReadPart"]

logger = get_logger("penstock")


class AsyncOpenedBatch(NamedTuple):
    """A batch that was just opened.

    Attributes:
        part: where it lies.
        number: of its callback.
        id: the id of its callback.
    """

    part: AsyncPart
    number: bytes
    id: str


class AsyncPart(AsyncOnePart):
    """A queue on one node, or one of its partitions there. Internal."""

    # -- producing -------------------------------------------------------------------------

    async def add(self, record: bytes, options: Prepared) -> Enqueued:
        """Add a job: in one direct call if the queue exists and has room."""
        if monotonic() >= self.node.taking_until and not await self._check_taking():
            return await self.queue.route.add(record, options)
        ops, is_short = self.ops, len(record) <= SHORT_RECORD_BYTES
        if not is_short:
            check_size(len(record))
        fits_lane = is_short and options.fits_lane and not (ops.producing or ops.joining)
        # [async only
        gathering = self._gathering if fits_lane else None
        if gathering is not None and not gathering.has_room():
            added = await gathering.add(record)
            if added is not None:
                added.queue = ops.queue
                return added
            gathering = None  # refused together: it is tried by itself
        # async only]
        try:
            call = ops.enqueue_one(record, options, fits_lane=fits_lane)
            # [async only
            try:
                reply = await self.executor.run(call)
            finally:
                if gathering is not None:
                    gathering.done()
            # async only]
            # sync only: reply = self.executor.run(call)
            confirmed = call.confirmed
        except (QueueMissing, QueueFull, OutOfMemory, NodesUnavailable) as error:
            outcome = await self._add_anyway(record, options, error)
            if isinstance(outcome, Enqueued):
                return outcome
            reply, confirmed = outcome
        ops.replicas, replicas, wait = reply.replicas, confirmed.replicas, options.wait
        if wait is not None and (ops.replicas or wait.replicas or wait.fsynced):
            replicas = await confirm(self, reply, confirmed, wait=wait)
        if isinstance(reply, Claim) and reply.others:
            [added] = ops.claimed(reply, (record,), options.ttl_code, replicas=replicas)
            added.queue = ops.queue
            return added
        state = "scheduled" if reply.scheduled else "ready"
        id_parts = ops, reply.first, reply.epoch, options.ttl_code
        head = record[: record.index(b"\n")]
        return Enqueued(id_parts, state, replicas=replicas, stable_id=head, queue=ops.queue)

    async def _add_anyway(
        self, record: bytes, options: Prepared, error: Exception
    ) -> Enqueued | tuple[Added, Confirmed]:
        """Add a job whose direct call failed: create the queue, make room, or find another node."""
        try:
            if isinstance(error, NodesUnavailable):
                raise error
            return await add(self, (record,), options, is_tried=True)
        except NodesUnavailable:
            if not await self._find_other_route():
                raise
            return await self.queue.route.add(record, options)

    async def add_chunk(self, chunk: list[bytes], options: Prepared, results: BulkEnqueued) -> None:
        """Add the jobs of a chunk; append the results, also of those before a failure."""
        if monotonic() >= self.node.taking_until and not await self._check_taking():
            await self.queue.route.add_chunk(chunk, options, results)
            return
        while chunk:
            try:
                reply, got = await add(self, chunk, options)
            except NodesUnavailable:
                if not await self._find_other_route():
                    raise
                await self.queue.route.add_chunk(chunk, options, results)
                return
            self.ops.replicas = reply.replicas
            replicas = await confirm(self, reply, got, wait=options.wait)
            if isinstance(reply, Claim):
                results.append(self.ops.claimed(reply, chunk, options.ttl_code, replicas=replicas))
                return
            count, place = reply.count, self.ops.place(reply.epoch)
            state = "scheduled" if reply.scheduled else "ready"
            heads = [record[: record.index(b"\n")] for record in chunk[:count]]
            span = JobSpan(
                first=reply.first,
                count=count,
                place=place,
                state=state,
                replicas=replicas,
                heads=heads,
                ttl=options.ttl_code,
            )
            results.append(span)
            chunk = chunk[count:]

    async def _check_taking(self) -> bool:
        """Check that the node takes jobs; return False if the queue has another route now."""
        await self.node.check_taking()
        return True

    async def _find_other_route(self) -> bool:
        """Return True if the queue has another route now, because its node is leaving."""
        return False

    async def open_batch(self, record: bytes, on: str) -> AsyncOpenedBatch:
        """Open a batch with this callback."""
        await self.connect()
        build = partial(self.ops.open_batch, record, on)
        _, reply = await self.driver.drive(flows.create_and_run(self.ops, build))
        return AsyncOpenedBatch(self, reply.first, self.ops.batch_id(reply.epoch, reply.first))

    async def store_schedule(self, new: NewSchedule, *, force: bool) -> int:
        """Store a schedule. Returns: as `flows.schedule`."""
        await self.connect()
        return await self.driver.drive(flows.schedule(self.ops, new, force=force))

    # -- settling --------------------------------------------------------------------------

    async def ack_one(self, job: Delivery) -> Outcome:
        """Finish one delivery without waiting for replicas."""
        call = self.ops.ack_one(job)
        codes = await self.executor.run(call)
        if not codes or (call.resent and codes[0] == Code.GONE):
            return Outcome.DONE
        return OUTCOME_OF_CODE[codes[0]]

    settle = settle_each

    async def read_receipt(self, job: Delivery) -> str | None:
        """Return the receipt of the delivery that holds a job; None = it is not known."""
        try:
            [entry] = (await self.executor.run(self.ops.showing([job]))).jobs
            is_held = entry and entry[1] != b"parked"
            return (entry[RECEIPT_PLACE].decode() or None) if is_held else None
        except Exception as error:  # noqa: BLE001  # the caller raises an error of its own
            logger.info("the holder of %s is not known: %s", job.id, error)
            return None

    # -- moving and removing ---------------------------------------------------------------

    async def redrive(self, most: int) -> int:
        """Bring the oldest dead letters back; return their number."""
        total = skip = 0
        while total < most:
            call = self.ops.redrive_oldest(min(most - total, BATCH), skip)
            reply = await self.executor.run(call)
            total, skip = total + reply.done, skip + reply.kept
            if reply.more == 0:
                break
        return total

    async def purge(self, kinds: list[str]) -> int:
        """Remove the jobs of these kinds; return their number."""
        total, fence = 0, b""
        for kind in kinds:
            again = True
            while again:
                fence, removed, steps = await self._purge_once(kind, fence)
                total += removed
                # Jobs leave a range as their time comes, and a pass of several steps may miss some.
                again = steps > 1 and removed > 0
        return total

    async def _purge_once(self, kind: str, fence: bytes) -> tuple[bytes, int, int]:
        skip, removed, steps, more = 0, 0, 0, 1
        while more:
            reply = await self.executor.run(self.ops.purge(kind, fence, skip))
            removed, steps = removed + reply.removed, steps + 1
            more, fence, skip = reply.more, reply.fence, reply.skip
        return fence, removed, steps

    async def sweep(self, evict: int, *, dead: bool) -> int:
        """Remove expired jobs, and evict up to so many; return the number of both."""
        removed = (await self.driver.sweep(self.ops))[0]
        if not evict:
            return removed
        evicted = await self.executor.run(self.ops.evict(evict, letters=dead))
        return removed + evicted.once + evicted.dead

    async def clear(self) -> tuple[bool, int]:
        """Remove the queue; return whether it existed, and its number of jobs."""
        await self.connect()
        reply = await self.executor.run(self.ops.clear())
        if reply.epoch:
            await self.driver.unregister((self.ops, reply.epoch.decode()))
        return bool(reply.epoch), reply.jobs

    # -- looking ---------------------------------------------------------------------------

    async def read_stats(self) -> QueueStats:
        """Return its counts."""
        await self.connect()
        return await self.executor.run(self.ops.stats())

    async def peek(self, state: StateName, start: int, n: int, *, newest: bool) -> list[JobView]:
        """Return jobs without taking them."""
        await self.connect()
        views = None
        while views is None:
            views = await self.executor.run(self.ops.peek(state, start, n, newest=newest))
        return [view for view in views if view]

    async def read_results(self, names: list[JobName], wait: AsyncJobWait | None = None) -> Looked:
        """Look for the results of jobs, which are awaited with `wait`."""
        await self.connect()
        executor, ops = self.executor, self.ops
        if wait is not None:  # before the look: no end behind it is missed
            number, _ = ops.number_of(names[0])
            wait.enter(executor.finished, {ops.keys["finished"]: number})
        return await executor.run(ops.results(names, awaited=wait is not None))

    async def watch(self, name: JobName, place: bytes, wait: AsyncJobWait | None) -> LookedAt:
        """Look at a job, which is watched with `wait`; read what it has told behind this place."""
        await self.connect()
        executor, ops = self.executor, self.ops
        if wait is not None:  # before the look, as above
            number, _ = ops.number_of(name)
            emitted, _ = ops.keys.emitted(number)
            wait.enter(executor.finished, {ops.keys["finished"]: number, emitted: b""})
        return await executor.run(ops.watch(name, place, awaited=wait is not None))

    async def show(self, names: list[JobName]) -> list[JobView | None]:
        """Return all data of jobs."""
        await self.connect()
        views = await self.executor.run(self.ops.show(names))
        for at, view in enumerate(views):
            if view is not None and view.finished is not None:  # the ttl in its id is not kept
                name = names[at]
                views[at] = replace(view, id=name if isinstance(name, str) else name.id)
        return views

    async def look_up(self, dedup_id: str) -> DedupStatus | None:
        """Return the job that has a dedup id."""
        return self.ops.status(dedup_id, await self.executor.run(self.ops.lookup(dedup_id)))

    async def scan(
        self, cursor: str, n: int, states: Sequence[StateName], *, full: bool
    ) -> ScanPage:
        """Return the next page of jobs, in no order."""
        call = self.ops.scan(check_cursor("cursor", cursor, JOB_CURSOR), n, states, full=full)
        await self.connect()
        return await self.executor.run(call)

    async def find(self, search: Search, cursor: str, n: int) -> ScanPage:
        """Return the next page of the jobs that match."""
        kind, place = search.check_cursor(cursor)
        await self.connect()
        jobs, looked = list[JobView](), 0
        while True:
            call = self.ops.browse(
                kind, place, n - looked, newest=search.newest, body=search.listed_bytes
            )
            place, count, views = await self.executor.run(call)
            jobs += filter(search.matches, views)
            looked += count
            cursor = search.next_cursor(kind, place)
            if place or looked >= n or cursor == "0":
                return ScanPage(cursor, [job.id for job in jobs], jobs, looked=looked)
            kind = cursor[:-1]

    # -- settings --------------------------------------------------------------------------

    async def configure(self, fields: list[Any]) -> Settings:
        """Store settings; return all of them."""
        await self.connect()
        build = partial(self.ops.configure, fields)
        _, reply = await self.driver.drive(flows.create_and_run(self.ops, build))
        return self.ops.settings(reply)

    async def hold(self, span_ms: int, hashed_key: str) -> bool:
        """Hold this part, or a key in it; return whether the part exists."""
        await self.connect()
        return (await self.executor.run(self.ops.hold(span_ms, hashed_key))).code > 0

    async def read_history(self) -> tuple[dict[bytes, bytes], int]:
        """Return the history of this part as stored, and the time of the server in ms."""
        flat = await self.executor.command("HGETALL", self.ops.keys["history"])
        return dict(zip(flat[::2], flat[1::2], strict=True)), await self.executor.time_ms()

    async def read_logs(self, names: list[JobName]) -> list[list[LogLine]]:
        """Return the log of each of these jobs of this part."""
        await self.connect()
        fields = [b"l" + self.ops.number_of(name)[0] for name in names]
        marks = await self.executor.command("HMGET", self.ops.keys["tally"], *fields)
        return [read_log(mark or b"") for mark in marks]

    async def read_settings(self) -> list[bytes | None]:
        """Return the settings as stored, with the time of their last change."""
        stored: list[bytes | None] = await self.executor.command(
            "HMGET", self.ops.keys["meta"], *STORED_SETTINGS
        )
        return stored


T = TypeVar("T")
AsyncAskPart: TypeAlias = Callable[[AsyncPart], Awaitable[T]]
"""Asks a part."""
AsyncCallPart: TypeAlias = Callable[[AsyncPart, list[JobName]], Awaitable[Sequence[T]]]
"""Calls a part with its jobs; returns an answer for each."""
AsyncReadPart: TypeAlias = Callable[[AsyncPart, str], Awaitable[ScanPage]]
"""Reads the page behind a cursor of a part."""
