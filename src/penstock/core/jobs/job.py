"""Deliveries. Plain data, parsed on first use."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from penstock.core.jobs.marks import Death, Unsent, progress_text, read_death
from penstock.core.jobs.record import SCHEDULED_FOR, Record, parse_record
from penstock.core.values.checks import Duration
from penstock.core.values.ids import encode_id, ttl_code
from penstock.core.values.methods import name_methods
from penstock.core.values.policy import RetryPolicy

if TYPE_CHECKING:
    from penstock.core.jobs.emission import Emission

__all__ = [
    "Delivery",
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
EMISSION_LOCK = threading.Lock()
"""The thread of a handler and that of the heartbeat may both begin to tell."""
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

    def watch(self, job: JobName, *, timeout: Duration | None = None) -> Any:
        """Iterate over what happens to a job until it has ended."""

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
        on_emit: is called with a delivery that has entries to send; None = there is no worker.
    """

    state: Any = None
    on_emit: Callable[[Any], None] | None = None

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
        "_emission",
        "_number",
        "_record",
        "_reservation",
        "_result",
        "_term",
        "_unsent",
        "cancelled",
        "lost",
        "settled",
    )

    _term: Any  # until a worker sets it there is none
    _result: tuple[bytes, str]  # the same; its value, and why that is missing
    _unsent: Unsent  # the same until `progress` or `log` is called
    _emission: Emission  # the same until there is something to tell

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

        A worker sends the last one with its heartbeat, about once a second, and all of them at once
        while a client watches the job (`watch`). Without a worker `send_progress` sends it.

        Args:
            done: the part that is done, in any unit.
            total: the whole, in the same unit; None = not known.
            note: text in one line, cut to 200 bytes.

        Raises:
            BadArgument: not a number, or not a text.
        """
        text = progress_text(done, total, note)
        make_unsent(self).progress = text
        self._tell("p", text)

    def log(self, text: str) -> None:
        """Keep a line about the work with the job, for people: `queue.log(job)` reads them.

        The server has the last 100 lines of a job, until it is done or removed; a dead letter keeps
        them. A worker sends them with its heartbeat, about once a second, and before it reports a
        failure. Without a worker `send_progress` sends them. Lines of a job that is done sooner are
        never sent.

        Args:
            text: a line, or several; each is cut to 500 bytes.

        Raises:
            BadArgument: not a text.
        """
        make_unsent(self).add_lines(text)

    def emit(self, data: Any, *, ttl: Duration | None = None) -> None:
        """Send a chunk to the clients that watch the job: a part of the output, such as a token.

        A worker sends it within a few ms while a client watches the job (`watch`). If none does,
        it is dropped, unless it has a `ttl`. Without a worker `send_progress` sends it. The server
        keeps the last 10,000 entries of a job, and about 1 MiB. A chunk that it has no memory for
        is dropped, with a warning in the log of the worker. The job goes on in all of these cases.

        Args:
            data: text, or what fits in JSON; at most 65,536 bytes.
            ttl: seconds, up to a day, for which the chunks of the job are kept behind the last one,
                also if no client watches: one that comes later reads them.

        Raises:
            BadArgument: an argument can't be used; nothing was sent.

        Examples:
            >>> job = q.enqueue("the rain")
            >>> def speak(job):
            ...     for word in job.body.split():
            ...         job.emit(word, ttl=60)
            >>> Worker(ps, q, speak, burst=True).run()
            >>> [event.data for event in q.watch(job.id) if event.kind == "chunk"]
            ['the', 'rain']
        """
        from penstock.core.jobs.emission import emit_ttl_ms, encoded_chunk

        kind, text = encoded_chunk(data)
        emission, span = make_emission(self), emit_ttl_ms(ttl)
        emission.ttl_ms = max(emission.ttl_ms, span)
        self._tell(kind, text)

    def _tell(self, kind: str, text: str) -> None:
        emission, wake = make_emission(self), self._reservation.on_emit
        emission.add(kind, text)
        if wake is not None and emission.is_wanted:
            wake(self)

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


def make_unsent(job: Delivery) -> Unsent:
    """Return what the handler of a job has told and the server does not know yet."""
    unsent: Unsent | None = getattr(job, "_unsent", None)
    if unsent is None:
        unsent = job._unsent = Unsent()
    return unsent


def take_unsent(job: Delivery) -> Unsent | None:
    """Return what is to be sent now, apart from what is told later; None = nothing."""
    unsent: Unsent | None = getattr(job, "_unsent", None)
    return unsent.take() if unsent else None


def put_back(job: Delivery, unsent: Unsent | None) -> None:
    """Keep what could not be sent, unless there is something newer."""
    if unsent:
        make_unsent(job).put_back(unsent)


def put_back_progress(job: Delivery, unsent: Unsent | None) -> None:
    """Keep the progress of a job that a client watches: it goes with the emission."""
    if unsent:
        unsent.lines.clear()
        put_back(job, unsent)


def sent_progress(job: Delivery, text: str) -> None:
    """Note that a progress was sent, unless there is another one by now."""
    unsent = make_unsent(job)
    if unsent.progress is text:
        unsent.progress = ""


def emission_of(job: Delivery) -> Emission | None:
    """Return what the delivery has to tell; None = nothing was told."""
    return getattr(job, "_emission", None)


def make_emission(job: Delivery) -> Emission:
    """Return what the delivery has to tell."""
    from penstock.core.jobs.emission import Emission

    with EMISSION_LOCK:
        emission = emission_of(job)
        if emission is None:
            emission = job._emission = Emission()
    return emission


def note_watched(job: Delivery, *, is_watched: bool) -> bool:
    """Note if a client watches the job; return True if there are entries to send.

    A client that begins to watch is told that the delivery has begun.
    """
    emission = make_emission(job) if is_watched else emission_of(job)
    if emission is None:
        return False
    if is_watched and not emission.is_watched:
        emission.add("s", "")
    emission.note_watched(is_watched)
    return emission.must_go


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


class _HasId(Protocol):
    @property
    def id(self) -> str: ...


JobName: TypeAlias = _HasId | str
"""A job, named by its delivery, which holds the receipt, or by its id alone.

What `enqueue` returns, and a `JobView`, stand for the id.
"""
