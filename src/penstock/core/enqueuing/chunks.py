"""Bodies cut into chunks, each with its options."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from penstock.core.enqueuing.new_jobs import JobOptions, NewJob, NewJobs
from penstock.core.enqueuing.prepared import Prepared, check_size
from penstock.core.jobs.record import RECORD
from penstock.core.values import stable
from penstock.core.values.checks import BATCH
from penstock.core.values.ids import AT_LEAST_ONCE_FOREVER
from penstock.core.values.partitions import partition_of
from penstock.errors import BadArgument

__all__ = ["CHUNK_BYTES", "TTL_BATCH", "WINDOW", "Window", "chunks", "windows"]

CHUNK_BYTES = 1 << 20
TTL_BATCH = BATCH // 2
"""Most jobs with a ttl in a chunk. A ttl doubles the server's work for a job, so these chunks are
half as long, and block the server no longer than others."""
WINDOW, WINDOW_BYTES = 4 * BATCH, 4 * CHUNK_BYTES
"""Most bodies, and bytes, in a window: enough that the chunk of each partition is not small."""


def chunks(
    bodies: Iterable[Any], options: Prepared, *, parted: bool = False
) -> Iterator[tuple[list[bytes], Prepared]]:
    """Yield records in chunks of up to 1,000 (500 with a ttl) or 1 MiB, each with its options.

    Args:
        bodies: bodies, and jobs that handlers describe. Consecutive jobs share a chunk if their
            options allow it.
        options: of the call; with `NewJobs`, of their handler, too.
        parted: as in `Prepared.goes_with`.

    Raises:
        BadArgument: `bodies` is not an iterable of bodies, or a body can't be used.
    """
    _check_bodies(bodies)
    is_head_whole = options.is_head_whole
    head, bodies = _encoded(bodies, options)
    own = shared = options
    most, join = _most(options), _make_joiner(options)
    chunk: list[bytes] = []
    size = 0
    for body in bodies:
        if is_head_whole and type(body) is bytes:
            own, record = options, RECORD % (head, stable.next_id(), body)
        elif type(body) is NewJob:
            own = join(body.options)
            record = own.record(body.body)
        else:
            own, record = options, options.record(body)
        length = len(record)
        if own is not shared:
            if chunk and not own.goes_with(shared, parted=parted):
                yield chunk, shared
                chunk, size = [], 0
            shared, most = own, _most(own)
        if size + length > CHUNK_BYTES and chunk:
            yield chunk, shared
            chunk, size = [], 0
        if length > CHUNK_BYTES:
            check_size(length)
        chunk.append(record)
        size += length
        if len(chunk) == most:
            yield chunk, shared
            chunk, size = [], 0
    if chunk:
        yield chunk, shared


def _encoded(bodies: Iterable[Any], options: Prepared) -> tuple[bytes, Iterable[Any]]:
    """Return the head of records with bodies of bytes, and the bodies, as JSON if possible."""
    if type(bodies) is not NewJobs:
        return options.head, bodies
    if bodies.encoded is None or options.codec is not None or not options.is_head_whole:
        return options.head, bodies.bodies()
    return options.coded_head, bodies.encoded()


def _make_joiner(options: Prepared) -> Callable[[JobOptions], Prepared]:
    """Return a function that joins options of jobs with those of the call, each once."""
    return lru_cache(maxsize=BATCH)(lambda of_job: of_job.joined(options))


def _most(options: Prepared) -> int:
    return BATCH if options.ttl_code == AT_LEAST_ONCE_FOREVER else TTL_BATCH


def _check_bodies(bodies: Any) -> None:
    if isinstance(bodies, (str, bytes, bytearray, memoryview, Mapping)) or not isinstance(
        bodies, Iterable
    ):
        raise BadArgument("bodies", bodies, "must be an iterable of bodies")


@dataclass(slots=True)
class Window:
    """Consecutive bodies that are sent together, those of each partition in one chunk.

    Attributes:
        options: of its jobs.
        chunks: partition -> records, in the order of the bodies.
        places: partition -> index of the body of each record.
        sizes: partition -> bytes of its records.
        count: number of bodies.
        size: bytes of all records.
    """

    options: Prepared
    chunks: dict[int, list[bytes]] = field(default_factory=dict)
    places: dict[int, list[int]] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)
    count: int = 0
    size: int = 0

    def has_room(self, partition: int, length: int) -> bool:
        """Return True if a record of this length for the partition fits beside those before."""
        held = self.sizes.get(partition, 0)
        return (
            self.count < WINDOW
            and self.size + length <= WINDOW_BYTES
            and (not held or held + length <= CHUNK_BYTES)
            and len(self.chunks.get(partition, ())) < _most(self.options)
        )

    def add(self, partition: int, record: bytes) -> None:
        """Add the record of the next body."""
        self.chunks.setdefault(partition, []).append(record)
        self.places.setdefault(partition, []).append(self.count)
        self.sizes[partition] = self.sizes.get(partition, 0) + len(record)
        self.count += 1
        self.size += len(record)


def windows(bodies: Iterable[Any], options: Prepared, count: int) -> Iterator[Window]:
    """Yield windows of the bodies, each body under the partition that its key or dedup id fixes.

    Raises:
        BadArgument: `bodies` is not an iterable of bodies; or a body or its key can't be used.
    """
    _check_bodies(bodies)
    bodies = bodies.bodies() if type(bodies) is NewJobs else bodies
    window, join = Window(options), _make_joiner(options)
    for body in bodies:
        own = options
        if type(body) is NewJob:
            own, body = join(body.options), body.body
        name = own.chooser(body)
        record = own.record(body, name if own.key is None else None)
        check_size(len(record))
        partition = partition_of(name, count)
        fits = own is window.options or own.goes_with(window.options, parted=False)
        if window.count and not (fits and window.has_room(partition, len(record))):
            yield window
            window = Window(own)
        elif not window.count:
            window.options = own
        window.add(partition, record)
    if window.count:
        yield window
