"""Results of an enqueue: of one job, and of many."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, overload

from penstock.core.jobs.job import JobQueue, QueueIdentity
from penstock.core.jobs.record import stable_id_of
from penstock.core.values.checks import Duration
from penstock.core.values.ids import AT_LEAST_ONCE_FOREVER, encode_id, number_after
from penstock.errors import BadArgument

__all__ = ["BulkEnqueued", "Enqueued", "IdParts", "JobSpan"]

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

    def watch(self, *, timeout: Duration | None = None) -> Any:
        """Iterate over what happens to the job until it has ended; see `Queue.watch`.

        With `async for` if an `AsyncQueue` has added the job.

        Args:
            timeout: as in `Queue.watch`.

        Returns, raises:
            As `Queue.watch`; and BadArgument as `result`.
        """
        return self._queue_for("watch").watch(self.id, timeout=timeout)

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
