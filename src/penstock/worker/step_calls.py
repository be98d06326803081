"""The jobs that a step of a handler calls: how they are noted, and how they have ended."""

from __future__ import annotations

import json
import zlib
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

from penstock.core.enqueuing.new_jobs import NewJob
from penstock.core.enqueuing.next_jobs import MOST_BATCH_BYTES, records_of
from penstock.core.enqueuing.options import NOT_STORED
from penstock.core.jobs.job import Delivery, ops_of, reservation_of
from penstock.core.jobs.middleware import HANDLER
from penstock.core.values.ids import AT_LEAST_ONCE_FOREVER, encode_id
from penstock.core.values.partitions import partition_of
from penstock.errors import BadArgument, StepFailed

__all__ = [
    "CALL_FRAME_BYTES",
    "CalledJob",
    "CalledSet",
    "CoroutineJob",
    "check_jobs",
    "print_of",
    "read_called",
    "value_of_call",
]

CALL_FRAME_BYTES = len("c\t1800000000000\t\t1000 1000 12345678 1800000000000-1000000000 open") + 16
"""Most bytes of the note of a called job besides the name of the step, until it has ended."""
NOT_COMPARED = "-"
T = TypeVar("T")
CoroutineJob: TypeAlias = NewJob[Coroutine[Any, Any, T]]
"""A job whose handler is a coroutine function."""


class CalledJob(NamedTuple):
    """A called job, as its caller has noted it.

    Attributes:
        place: of its note, from 1.
        part: its place among the jobs of the step, from 1.
        total: the number of these jobs.
        print: of the arguments of them all; "-" = they are not compared.
        number: its number.
        state: open, done, dead, cancelled, expired or removed.
        text: the value as JSON, "" = none, or `!` and a flag; of a dead letter its error.
    """

    place: int
    part: int
    total: int
    print: str
    number: bytes
    state: str
    text: bytes

    @property
    def is_open(self) -> bool:
        """Whether the called job still waits or runs."""
        return self.state == "open"

    @property
    def has_failed(self) -> bool:
        """Whether the called job died, was removed, or has a value that can't be read."""
        return not self.is_open and (self.state != "done" or self.text[:1] == b"!")

    def failure(self, name: str, job: Delivery | None) -> StepFailed:
        """Return the error of a step whose job has failed."""
        error = self.text.decode("utf-8", "replace")
        if self.state == "done":
            error = f"its value is not kept: {REASON_OF_FLAG.get(error[1:], error)}"
        job_id = "" if job is None else _id_of(job, self.number)
        return StepFailed(name, job_id=job_id, state=self.state, error=error)


REASON_OF_FLAG = {
    "large": "it is larger than the queue's result_size",
    "room": "the steps of the job have no room for it",
    "json": "it can't be written as JSON",
    "full": "the server was full",
    "hint": "its node was down, and its end was kept by another one",
}


def read_called(place: int, value: bytes) -> CalledJob:
    """Read the value of the note of a called job.

    Raises:
        ValueError: it is none.
    """
    part, total, print_, number, state, *rest = value.split(b" ", 5)
    text = rest[0] if rest else b""
    return CalledJob(
        place, int(part), int(total), print_.decode(), number, state.decode("ascii"), text
    )


class CalledSet(dict[int, CalledJob]):
    """The jobs of a step by their parts; a later call of a part replaces the earlier one."""

    def missing(self, total: int, voided: range) -> list[int]:
        """Return the parts that are not called, or that have failed at places that do not count."""
        parts = range(1, total + 1)
        return [part for part in parts if part not in self or _is_void(self[part], voided)]

    def check(self, name: str, total: int, print_: str) -> str | None:
        """Return why these are not the jobs of the step, or None."""
        first = next(iter(self.values()))
        if first.total != total:
            return f"step {name!r} called {first.total} jobs before, and calls {total} now"
        if NOT_COMPARED not in (first.print, print_) and first.print != print_:
            return f"step {name!r} called jobs with other arguments before, or in another order"
        return None


def _is_void(called: CalledJob, voided: range) -> bool:
    return called.has_failed and called.place in voided


def check_jobs(jobs: Iterable[Any], caller: Delivery | None) -> tuple[NewJob[Any], ...]:
    """Return the jobs that a step calls.

    Raises:
        BadArgument: one is no job of a handler, is of another queue or partition, has an option
            that it can't have, or a body that can't be used; or they are too large.
    """
    chosen = tuple(jobs)
    for job in chosen:
        if not isinstance(job, NewJob):
            reason = 'must be a job of a handler: steps.call("ship", ship.job(order_id))'
            raise BadArgument("job", job, reason)
        job.options.refuse(NOT_STORED, "a job that a step calls can't have it: omit it")
        if caller is not None:
            _check_place(job, caller)
    if caller is not None:
        records_of(chosen, ops_of(caller).codec, most=MOST_BATCH_BYTES, argument="jobs")
    return chosen


def _check_place(job: NewJob[Any], caller: Delivery) -> None:
    elsewhere = "a step calls jobs of its own queue: enqueue it, and wait for its signal"
    if job.queue not in (None, caller.queue_name):
        raise BadArgument("queue", job.queue, f"{elsewhere} (docs/steps.md)")
    ops, key = ops_of(caller), job.options.by_name.get("key")
    own = ops.keys.partition
    if key is not None and own is not None and partition_of(key, ops.partitions) != own:
        raise BadArgument("key", key, f"it chooses another partition, and {elsewhere}")


def print_of(jobs: Sequence[NewJob[Any]]) -> str:
    """Return a print of handlers and arguments of several jobs, to tell them from others.

    "-" = they are not compared: one job alone, or arguments that JSON can't express.
    """
    if len(jobs) < 2:
        return NOT_COMPARED
    whole = [[job.options.headers.get(HANDLER), job.body] for job in jobs]
    try:
        text = json.dumps(whole, sort_keys=True)
    except (TypeError, ValueError):
        return NOT_COMPARED
    return f"{zlib.crc32(text.encode()):08x}"


def value_of_call(text: bytes) -> Any:
    """Return the value of a called job; None = its consumer has given none."""
    return json.loads(text) if text else None


def _id_of(job: Delivery, number: bytes) -> str:
    place = reservation_of(job).place
    return encode_id(place.node, place.packed, number, AT_LEAST_ONCE_FOREVER)
