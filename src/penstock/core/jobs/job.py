"""Results of calls: deliveries, enqueue results, outcomes. Plain data, parsed on first use."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple, Protocol, TypeAlias, overload

from penstock.core.jobs.marks import Death, progress_text, read_death
from penstock.core.jobs.record import SCHEDULED_FOR, Record, parse_record, stable_id_of
from penstock.core.values.checks import Duration
from penstock.core.values.ids import AT_LEAST_ONCE_FOREVER, encode_id, number_after, ttl_code
from penstock.core.values.methods import name_methods
from penstock.core.values.policy import RetryPolicy
from penstock.errors import BadArgument

__all__ = [
    "BulkEnqueued",
    "Delivery",
    "Enqueued",
    "JobName",
    "JobQueue",
]


class Counters(NamedTuple):
    """The counters of a job (protocol/core.md, Counters)."""

    deliveries: int
    nacks: int
    crashes: int
    releases: int
    error: str


FIRST_DELIVERY = Counters(1, 0, 0, 0, "")
OWN_TERMS = frozenset({b";l", b";t"})
"""How the fields of a record begin if the job has a lease or a ttl of its own."""


def parse_counters(text: bytes) -> Counters:
    """Parse `deliveries nacks crashes releases[ last error or reason]`; empty = a first delivery.

    A plus after the first number says that this number is set aside for the next delivery.
    """
    if not text:
        return FIRST_DELIVERY
    parts = text.split(b" ", 4)
    error = parts[4].decode("utf-8", "replace") if len(parts) > 4 else ""
    deliveries = int(parts[0][:-1]) - 1 if parts[0].endswith(b"+") else int(parts[0])
    return Counters(deliveries, int(parts[1]), int(parts[2]), int(parts[3]), error)


class JobQueue(Protocol):
    """The queue object of a client, as its jobs and the results of its calls see it."""

    @property
    def job_type(self) -> type[Delivery]:
        """The class of its jobs."""

    def result(self, job: JobName, *, timeout: Duration | None = None) -> Any:
        """Wait until a job has ended, and return its value; a coroutine in an event loop."""

    @property
    def chains(self) -> Any:
        """Its chains."""


class QueueIdentity:
    """The queue's part of a job id: everything besides the number.

    Attributes:
        queue: the queue's name.
        node: 8 hex digits of the node's id.
        epoch: the queue's epoch, 8 hex digits.
        packed: crc and epoch, as the id carries them.
    """

    def __init__(self, queue: str, node: str, crc: int, epoch: str) -> None:
        self.queue = queue
        self.node = node
        self.epoch = epoch
        self.packed = crc.to_bytes(4, "big") + bytes.fromhex(epoch)


class Reservation:
    """The values that all deliveries of one reserve share.

    Attributes:
        queue: the queue object that reserved them.
        place: of the queue.
        owner: the name of the client that reserved them.
        tag: the random half of their receipts.
        receipt: the receipt of a first delivery.
        receipt_with_end: the receipt and the end of its lease, for calls that name all deliveries.
        deferred: finished jobs that the next reserve acknowledges; None = each is acknowledged at
            once.
        now: time of delivery, ms.
        lease_ms: the queue's lease.
        ops: the operations that reserved them; None = another client reserved them.
        state: what the lifespan of their worker yields.
    """

    state: Any = None

    def __init__(
        self, queue: Any, place: QueueIdentity, owner: str, *, tag: int, now: int, lease_ms: int
    ) -> None:
        self.queue = queue
        self.place = place
        self.owner = owner
        self.tag = tag
        self.receipt = f"1-{tag:03x}"
        self.receipt_with_end = f"{self.receipt}@{now + lease_ms}"
        self.deferred: list[Any] | None = None
        self.now = now
        self.lease_ms = lease_ms
        self.ops: Any = None


@name_methods("Job")
class Delivery:
    """One delivery of a job: its data and the receipt that proves the delivery.

    It is parsed on first use, so that reserving many jobs costs little.

    Attributes:
        settled: True = this object has ended its delivery.
        cancelled: True = its worker has learned that the job is cancelled. The handler should end.
        lost: True = its worker knows that the lease has ended: another worker may have the job, and
            then a report of this one changes nothing.
    """

    __slots__ = (
        "_counters",
        "_counts",
        "_data",
        "_number",
        "_progress",
        "_record",
        "_reservation",
        "_result",
        "_term",
        "cancelled",
        "lost",
        "settled",
    )

    _term: Any  # until a worker sets it there is none
    _result: tuple[bytes, str]  # the same; its value, and why that is missing
    _progress: str  # the same until `progress` is called

    def __init__(self, reservation: Reservation, number: bytes, counts: bytes, data: bytes) -> None:
        self._reservation = reservation
        self._number = number
        self.settled = False
        self.lost = False
        self.cancelled = False
        self._counts = counts
        self._data = data
        self._record: Record | None = None
        self._counters: Counters | None = None

    @property
    def _parsed(self) -> Record:
        if self._record is None:
            self._record = parse_record(self._data)
        return self._record

    @property
    def _counted(self) -> Counters:
        if self._counters is None:
            self._counters = parse_counters(self._counts)
        return self._counters

    @property
    def id(self) -> str:
        """Job id, 40 characters."""
        record = self._parsed
        once = record.lease_ms == 0
        ttl = ttl_code(record.ttl_ms, at_most_once=once)
        return encode_id(
            self._reservation.place.node, self._reservation.place.packed, self._number, ttl
        )

    @property
    def stable_id(self) -> str:
        """Key for idempotent handlers: it identifies the enqueue, not the stored job.

        When a failover loses an enqueue and its producer repeats it, the job is there a second time
        under another `id`, and may have been delivered under the first one. Both have the same
        stable id. All deliveries of one job have it too. It has 12 to 20 characters: letters,
        digits, `-` and `_`. If the producer (a client of another kind) gave none, it is the `id`.
        """
        return self._parsed.stable_id or self.id

    @property
    def owner(self) -> str:
        """Name of the client that reserved the job."""
        return self._reservation.owner

    @property
    def state(self) -> Any:
        """Value that the lifespan of the worker yields; None = there is no lifespan or worker."""
        return self._reservation.state

    @property
    def queue_name(self) -> str:
        """Name of the job's queue."""
        return self._reservation.place.queue

    @property
    def body(self) -> Any:
        """Body of the job: bytes, or the object decoded from JSON (or by the client's codec).

        JSON has lists and no tuples: a tuple comes back as a list.

        Raises:
            UndecodableBody: the codec can't decode the bytes, or is unknown; see `raw`.
        """
        ops = self._reservation.ops
        return self._parsed.body(None if ops is None else ops.codec)

    @property
    def raw(self) -> bytes:
        """Bytes of the body as they are stored."""
        return self._data.partition(b"\n")[2]

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers that the producer gave."""
        return self._parsed.headers

    @property
    def attempt(self) -> int:
        """1 for the first try; nacks and crashes count, releases do not."""
        if not self._counts:
            return 1
        counters = self._counted
        return 1 + counters.nacks + counters.crashes

    @property
    def nacks(self) -> int:
        """Number of failures that were reported (nack)."""
        return self._counted.nacks

    @property
    def crashes(self) -> int:
        """Number of leases that ended without a report."""
        return self._counted.crashes

    @property
    def deliveries(self) -> int:
        """Number of this delivery; every delivery counts."""
        return self._counted.deliveries

    @property
    def redeliveries(self) -> int:
        """Deliveries before this one that a nack did not end: Disque's additional deliveries.

        Exact until a redrive, which begins the nacks anew and not the deliveries.
        """
        return self._counted.deliveries - 1 - self._counted.nacks

    @property
    def last_error(self) -> str:
        """Text of the last nack, empty if there was none."""
        return self._counted.error

    @property
    def dedup_id(self) -> str | None:
        """Dedup id that the producer gave, or None."""
        return self._parsed.dedup_id or None

    @property
    def retry(self) -> RetryPolicy | None:
        """Retry policy of the job, or None: the queue's applies."""
        return self._parsed.retry

    @property
    def priority(self) -> int:
        """Priority of the job, 0 to 9; 0 is the usual one."""
        return self._parsed.priority

    @property
    def created(self) -> float:
        """Time of the enqueue, in seconds since 1970 by the server's clock."""
        return int(self._number[:-11]) / 1000

    @property
    def scheduled_for(self) -> float | None:
        """Time of its tick, in seconds since 1970, if a schedule has added the job; else None."""
        tick = self.headers.get(SCHEDULED_FOR, "")
        return int(tick) / 1000 if tick.isdecimal() else None

    @property
    def death(self) -> Death | None:
        """Death of another job, after which this job was added (`on_dead`); else None.

        The body is that of the dead letter.
        """
        place = self._reservation.place
        return read_death(self.headers, place.node, place.packed)

    @property
    def delivered(self) -> float:
        """Time of this delivery, in seconds since 1970 by the server's clock."""
        return self._reservation.now / 1000

    @property
    def at_most_once(self) -> bool:
        """True if the job was enqueued with lease=0."""
        return self._data[2:3] == b"l" and self._parsed.lease_ms == 0

    @property
    def lease(self) -> float:
        """Lease in seconds, from delivery; 0 = at most once."""
        return self._parsed.span_ms(self._reservation.lease_ms) / 1000

    @property
    def ttl(self) -> float | None:
        """Seconds from creation until the job expires (ttl); None = never."""
        ttl = self._parsed.ttl_ms
        return None if ttl is None else ttl / 1000

    @property
    def receipt(self) -> str:
        """Proof of this delivery: its number and a random tag (protocol/core.md, Receipt)."""
        if not self._counts:
            return self._reservation.receipt
        return f"{self._counted.deliveries}-{self._reservation.tag:03x}"

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """Tell how far the work is, for `show` and `peek`.

        A worker sends the last one with its heartbeat, about once a second. Without a worker
        `send_progress` sends it.

        Args:
            done: the part that is done, in any unit.
            total: the whole, in the same unit; None = not known.
            note: text in one line, cut to 200 bytes.

        Raises:
            BadArgument: not a number, or not a text.
        """
        self._progress = progress_text(done, total, note)

    def __repr__(self) -> str:
        state = "settled" if self.settled else "lost" if self.lost else "held"
        where = f"in {self.queue_name!r}, attempt {self.attempt}"
        return f"<{type(self).__name__} {self.id} {state} {where}>"


# The parts of a delivery for operations, workers and Spark; users do not need them.
reservation_of: Callable[[Delivery], Reservation] = attrgetter("_reservation")
ops_of: Callable[[Delivery], Any] = attrgetter("_reservation.ops")
epoch_of: Callable[[Delivery], str] = attrgetter("_reservation.place.epoch")
number_of: Callable[[Delivery], bytes] = attrgetter("_number")
counts_of: Callable[[Delivery], bytes] = attrgetter("_counts")
"""Return the counters as they are stored; empty = a first delivery."""
data_of: Callable[[Delivery], bytes] = attrgetter("_data")
"""Return the record as it is stored."""
parts_of: Callable[[Delivery], tuple[Reservation, bytes, bytes, bytes]] = attrgetter(
    "_reservation", "_counts", "_data", "_number"
)
"""Return the reservation, the counters, the record and the number, in one call."""
record_of: Callable[[Delivery], Record] = attrgetter("_parsed")
term_of: Callable[[Delivery], Any] = attrgetter("_term")
"""Return until when a worker holds the job, by its own clock. The worker has set it."""
set_term: Callable[[Delivery, object], None] = vars(Delivery)["_term"].__set__


def is_renewed(job: object) -> bool:
    """Return whether a worker holds the job, and renews its lease."""
    return isinstance(job, Delivery) and hasattr(job, "_term")


set_result: Callable[[Delivery, tuple[bytes, str]], None] = vars(Delivery)["_result"].__set__


def progress_of(job: Delivery) -> str:
    """Return the progress that is to be sent; "" = none."""
    return getattr(job, "_progress", "")


def sent_progress(job: Delivery, text: str) -> None:
    """Note that a progress was sent, unless there is another one by now."""
    if job._progress is text:
        job._progress = ""


def forget_failures(job: Delivery) -> None:
    """Note that the server has set the nacks and crashes of the job to 0."""
    if job._counts:
        deliveries, _, _, others = job._counts.split(b" ", 3)
        job._counts, job._counters = b"%b 0 0 %b" % (deliveries, others), None


def receipt_with_end(job: Delivery) -> str:
    """Return the receipt; of a first delivery with the end of its lease as this client knows it."""
    if job._counts:
        return job.receipt
    reservation = job._reservation
    if job._data[1:3] not in OWN_TERMS:
        return reservation.receipt_with_end
    record = job._parsed
    until = reservation.now + record.span_ms(reservation.lease_ms)
    if record.ttl_ms is not None:
        until = min(until, int(job._number[:-11]) + record.ttl_ms)
    return f"{reservation.receipt}@{until}"


JobName: TypeAlias = Delivery | str
"""A job, named by its delivery, which holds the receipt, or by its id alone."""

IdParts: TypeAlias = tuple[Any, bytes, bytes, str]
"""Operations of the queue, number, epoch and ttl code: the id is built from them when it is read.

A plain tuple, as each enqueue makes one: a NamedTuple costs as much as the whole `Enqueued`.
"""


class Enqueued:
    """The result of an enqueue.

    Attributes:
        state: where the job is: ready or scheduled; of a duplicate also parked, active, or
            "window". A new job that is parked behind others of its key counts as ready.
        duplicate: True = an existing job stands for this one, which was not added.
        replicas: how many replicas confirmed; 0 when none was asked for.
        action: "added"; "requeued" = added, to run when the one that is there has ended;
            "updated" = the existing job has this content now; "refused" = nothing changed.
        queue: internal: the queue object that `result` asks; None = this object was copied.
    """

    __slots__ = ("_id", "_stable_id", "action", "duplicate", "queue", "replicas", "state")

    def __init__(
        self,
        id: str | IdParts,  # noqa: A002  # the name of the attribute
        state: str,
        duplicate: bool = False,
        replicas: int = 0,
        action: str = "added",
        stable_id: str | bytes = "",
        queue: JobQueue | None = None,
    ) -> None:
        self._id = id
        self.state = state
        self.duplicate = duplicate
        self.replicas = replicas
        self.action = action
        self._stable_id = stable_id
        self.queue = queue

    @property
    def id(self) -> str:
        """The id of the job, built when it is first read.

        That of the existing one, if it is a duplicate (empty: it is done, and the window of its
        dedup id is open).
        """
        known = self._id
        if not isinstance(known, str):
            ops, number, epoch, ttl = known
            known = self._id = str(ops.id_of(number, epoch, ttl))
        return known

    @property
    def stable_id(self) -> str:
        """The `stable_id` that the consumer of the job sees; empty if the job was refused."""
        known = self._stable_id
        return known if isinstance(known, str) else stable_id_of(known)

    def result(self, *, timeout: Duration | None = None) -> Any:
        """Wait until the job has ended, and return the value that its handler returned.

        To be awaited if an `AsyncQueue` has added the job. The job needs a `result_ttl`.

        Args:
            timeout: as in `Queue.result`.

        Returns, raises:
            As `Queue.result`; and BadArgument if this object was copied, or stands for no job: call
            `Queue.result` with its id.
        """
        return self._queue_for("result").result(self.id, timeout=timeout)

    def status(self) -> Any:
        """Return the state of the job, or of its chain: a `ChainStatus`. To be awaited as `result`.

        Raises:
            As `queue.chains.status` and `result`.
        """
        return self._queue_for("chains.status").chains.status(self.id)

    def cancel(self) -> Any:
        """Cancel the job, or its chain. To be awaited as `result`.

        Returns, raises:
            As `queue.chains.cancel` and `result`.
        """
        return self._queue_for("chains.cancel").chains.cancel(self.id)

    def _queue_for(self, method: str) -> JobQueue:
        if self.queue is None or not self.id:
            raise BadArgument("job", self.id, f"has no queue here: call queue.{method}(id)")
        return self.queue

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes by name."""
        names = ("id", "state", "duplicate", "replicas", "action", "stable_id")
        return {name: getattr(self, name) for name in names}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Enqueued):
            return NotImplemented
        return self._compared() == other._compared()

    def __hash__(self) -> int:
        return hash(self._compared())

    def __reduce__(self) -> tuple[object, ...]:
        return Enqueued, (*self._compared(), self.stable_id)

    def _compared(self) -> tuple[object, ...]:
        return self.id, self.state, self.duplicate, self.replicas, self.action

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.as_dict().items())
        return f"{type(self).__name__}({shown})"


@dataclass(slots=True)
class JobSpan:
    """The results of jobs that were added in one step, with numbers first, first + 1, …

    Attributes:
        first: number of the first job.
        count: how many jobs.
        place: of the queue.
        state, replicas: of each result.
        heads: the heads of the records, which have the stable ids; empty = not known.
        ttl: the last four digits of the ids.
    """

    first: bytes
    count: int
    place: QueueIdentity
    state: str
    replicas: int = 0
    heads: Sequence[bytes] = ()
    ttl: str = AT_LEAST_ONCE_FOREVER

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, offset: int) -> Enqueued:
        number = number_after(self.first, offset)
        job_id = encode_id(self.place.node, self.place.packed, number, self.ttl)
        head = self.heads[offset] if self.heads else ""
        return Enqueued(job_id, self.state, replicas=self.replicas, stable_id=head)


class BulkEnqueued(Sequence[Enqueued]):
    """The results of a bulk enqueue, in the order of the bodies; ids are built on first use."""

    def __init__(self, queue: JobQueue | None = None) -> None:
        self._queue = queue
        self._parts: list[JobSpan | Sequence[Enqueued]] = []
        self._starts: list[int] = []
        self._length = 0

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_queue": None}  # it can't be pickled

    def append(self, part: JobSpan | Sequence[Enqueued]) -> None:
        """Append the results of a chunk: a span, or one by one those of jobs with dedup ids."""
        if len(part):
            self._parts.append(part)
            self._starts.append(self._length)
            self._length += len(part)

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Enqueued: ...
    @overload
    def __getitem__(self, index: slice) -> list[Enqueued]: ...
    def __getitem__(self, index: int | slice) -> Enqueued | list[Enqueued]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._length))]
        place = index + self._length if index < 0 else index
        if not 0 <= place < self._length:
            raise IndexError(index)
        part = bisect_right(self._starts, place) - 1
        return self._result(self._parts[part], place - self._starts[part])

    def __iter__(self) -> Iterator[Enqueued]:
        for part in self._parts:
            for i in range(len(part)):
                yield self._result(part, i)

    def _result(self, part: JobSpan | Sequence[Enqueued], offset: int) -> Enqueued:
        result = part[offset]
        result.queue = self._queue
        return result

    @property
    def ids(self) -> list[str]:
        """Job ids, in order."""
        return [result.id for result in self]

    @property
    def duplicates(self) -> int:
        """Number of bodies that were not added, because a job with the same dedup id existed."""
        return sum(result.duplicate for result in self._iter_results())

    @property
    def missing(self) -> int:
        """Number of bodies that a failed call on partitions may not have added."""
        return sum(result.state == "missing" for result in self._iter_results())

    def _iter_results(self) -> Iterator[Enqueued]:
        for part in self._parts:
            if not isinstance(part, JobSpan):
                yield from part

    def __repr__(self) -> str:
        return f"<BulkEnqueued {self._length} jobs>"
