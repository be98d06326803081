"""The calls of a consumer: reserve jobs, and report their outcomes."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.core.calls.call import Call, RawReply, target_of
from penstock.core.calls.operations.base import Names, Operations, outcomes, read_codes
from penstock.core.jobs.job import Delivery, Reservation, epoch_of, number_of, receipt_with_end
from penstock.core.jobs.marks import Unsent
from penstock.core.jobs.outcomes import OUTCOME_OF_CODE, Outcome, Settled
from penstock.core.jobs.results import AckResults
from penstock.errors import QueueClosed
from penstock.wire import replies
from penstock.wire.codes import Code
from penstock.wire.packing import Packable
from penstock.wire.replies import Parser

if TYPE_CHECKING:
    from penstock.core.jobs.emission import ToldEntry

__all__ = ["Consuming", "Exchanged", "JobsOfStep", "Recovered", "Taken"]

DRAINED_NEXT_MS = -2
"""`next` of a reserve on a queue that is closed and drained."""
Delivered = replies.Reserve | replies.ReserveLane | replies.Settle | replies.SettleLane
MISSING_VALUE_MARK = r"(\d{1,13}) (\d+ \d+ !\w+)"
"""The reason of a hint for an ack: see `missing_value_mark`."""
NO_WINDOW = ""
"""The window of an ack that leaves those of the producers."""
FIRST_RECEIPT_PREFIX = "1-"
"""Begin of the receipt of a first delivery."""


class Taken(NamedTuple):
    """The result of a reserve.

    Attributes:
        next_ms: -1 nothing is due, 0 more can be reserved now, -2 the queue is closed and drained,
            else ms until the next event.
        deliveries: the jobs that were reserved.
        lease_ms: the queue's lease.
        now_ms: the queue's time.
    """

    next_ms: int
    deliveries: list[Any]
    lease_ms: int = 0
    now_ms: int = 0

    @property
    def is_over(self) -> bool:
        """True if nothing was reserved, and the queue is closed and drained."""
        return self.next_ms == DRAINED_NEXT_MS and not self.deliveries


class JobsOfStep(NamedTuple):
    """The jobs that a step calls, without their records.

    Attributes:
        place: of the first note, from 1.
        name: of the step.
        total: how many jobs the step has.
        parts: the place of each record among them, from 1.
        print: of their arguments, to tell them from others; "-" = they are not compared.
    """

    place: int
    name: str
    total: int
    parts: tuple[int, ...]
    print: str


class Exchanged(NamedTuple):
    """The result of a settle: an outcome for each finished job, and the reserved jobs."""

    outcomes: Settled
    taken: Taken


class Recovered(NamedTuple):
    """The result of a recover: number of deliveries that it checked, and those taken over."""

    seen: int
    deliveries: list[Any]


class Consuming(Operations):
    """The operations of a consumer."""

    def reserve(
        self, n: int, *, idle: bool = False, provisional: bool = False, lease_ms: int | None = None
    ) -> Call[Taken]:
        """Reserve up to n jobs.

        Args:
            provisional: whether suspects are reserved provisionally.
            lease_ms: in place of the queue's.
        """
        tag, role = random.getrandbits(12), self.consuming
        wanted = -n if provisional else n
        is_idle = b"1" if idle else b"0"
        args: tuple[Packable, ...] = (b"%d" % wanted, b"%d" % tag, self.owner_name, is_idle, role)
        if lease_ms is not None:
            args += (b"%d" % lease_ms,)
        read = partial(self._taken, tag)
        return self.call_read_by("reserve", read, args, fits_lane=n > 0 and not role)

    def _taken(self, tag: int, parse: Parser[Delivered], raw: RawReply) -> Taken:
        reply = parse(raw)
        jobs = self._delivered(tag, reply)
        return Taken(reply.next, jobs, reply.lease, reply.now)

    def _delivered(self, tag: int, reply: Delivered | replies.Recover) -> list[Any]:
        """Return deliveries; the fast lane leaves the counters out, as they are first ones."""
        columns, epoch = reply.jobs, reply.epoch
        if not columns[0]:
            return []
        place = self._place
        if place is None or self._place_epoch != epoch or place.node not in self.known_nodes[:1]:
            place = self.place(epoch)
        reservation = Reservation(
            self.queue, place, self.owner, tag=tag, now=reply.now, lease_ms=reply.lease
        )
        reservation.ops = self
        make = partial(self.make, reservation)
        numbers, *others, records = columns
        counters: Iterable[bytes] = others[0] if others else repeat(b"")
        return [*map(make, numbers, counters, records)]

    def drained(self) -> QueueClosed:
        """Return the error of a queue that is closed and drained."""
        return QueueClosed(f"queue {self.name!r} is closed, and no job is left in it")

    # -- settling --------------------------------------------------------------------------

    def ack(
        self, names: Names, window_ms: int | None = None, *, results: AckResults | None = None
    ) -> Call[Settled]:
        """Finish jobs; a window replaces those of their producers, 0 = none."""
        if window_ms is None and results is None:
            epoch, common, rest = self.named(names, receipts=True)
            is_first = common[:2] == FIRST_RECEIPT_PREFIX
            args = (epoch, common, NO_WINDOW, *rest)
            return self.call_read_by("ack", partial(outcomes, names), args, fits_lane=is_first)
        window = NO_WINDOW if window_ms is None else window_ms
        return self.call_about_jobs("ack", names, window, receipts=True, results=results)

    def ack_one(self, job: Delivery) -> Call[Sequence[int]]:
        """Finish a delivery; the result is its code, or empty."""
        receipt = receipt_with_end(job)
        args = (epoch_of(job), receipt, NO_WINDOW, number_of(job))
        is_first = receipt[:2] == FIRST_RECEIPT_PREFIX
        return self.call_read_by("ack", read_codes, args, fits_lane=is_first)

    def hand_over(
        self,
        names: Names,
        records: Sequence[tuple[int, bytes]],
        window_ms: int | None = None,
        *,
        batch: str = "",
        results: AckResults | None = None,
    ) -> Call[Settled]:
        """Finish one job and add others: delay in ms and record of each.

        `batch`: the condition of a batch on the wire, whose callback is the first record.
        """
        epoch, proof, (number, *_) = self.named(names, receipts=True)
        value: Packable = ""
        if results is not None:
            proof, value = f"{proof}\n{results.spans}", results.values[0]
        delays = " ".join([batch] * bool(batch) + [str(delay) for delay, _ in records])
        window = b"" if window_ms is None else b"%d" % window_ms
        args = (epoch, proof, window, number, value, delays, *(record for _, record in records))
        return self.call_read_by("hand_over", partial(_handed_over, names), args)

    def settle(
        self, names: Names, n: int, *, provisional: bool = False, results: AckResults | None = None
    ) -> Call[Exchanged]:
        """Finish jobs and reserve up to n; `provisional` = suspects provisionally."""
        tag = random.getrandbits(12)
        epoch, proof, rest = self.named(names, receipts=True)
        if results is not None:
            proof, rest = f"{proof}\n{results.spans}", [*rest, *results.values]
        role = self.consuming
        wanted = -n if provisional else n
        begin = epoch, proof, b"%d" % wanted, b"%d" % tag
        args = (*begin, self.owner_name, role, *rest)
        read = partial(self._exchanged, tag, names)
        fits_lane = proof[:2] == FIRST_RECEIPT_PREFIX and results is None and not role
        return self.call_read_by("settle", read, args, fits_lane=fits_lane)

    def _exchanged(
        self, tag: int, names: Names, parse: Parser[Delivered], raw: RawReply
    ) -> Exchanged:
        reply = parse(raw)
        codes = reply.codes.split() if isinstance(reply, replies.Settle) else ()
        outcomes = [OUTCOME_OF_CODE[int(code)] for code in codes] if codes else None
        jobs = self._delivered(tag, reply)
        taken = Taken(reply.next, jobs, reply.lease, reply.now)
        return Exchanged(Settled(names, outcomes), taken)

    def nack(self, names: Names, delay_ms: int, error: str, trace: str = "") -> Call[Settled]:
        """Report failures; trace = the end of a traceback.

        A delay of -1 = by the queue's policy, -2 = this consumer has no handler for the jobs.
        """
        seed = random.randrange(2_147_483_646)
        return self.call_about_jobs("nack", names, delay_ms, seed, error, trace, receipts=True)

    def release(self, names: Names, delay_ms: int) -> Call[Settled]:
        """Give back without a failure; delay -1 = at its place, as nothing has begun with it."""
        return self.call_about_jobs("release", names, delay_ms, receipts=True)

    def suspend(self, names: Names, index: int, name: str, delay_ms: int) -> Call[Settled]:
        """Note a sleep at this place, from 1, and give back until it is over; 0 = a wait."""
        return self.call_about_jobs("suspend", names, index, name, delay_ms, receipts=True)

    def call_jobs(
        self, job: Delivery, step: JobsOfStep, records: Sequence[tuple[int, bytes]]
    ) -> Call[Settled]:
        """Add the jobs that a step calls, delay in ms and record of each, and give back its job."""
        parts = "" if len(records) == step.total else " ".join(map(str, step.parts))
        delays = " ".join(str(delay) for delay, _ in records)
        about = epoch_of(job), job.receipt, number_of(job)
        args = (
            *about,
            b"%d" % step.place,
            step.name,
            b"%d" % step.total,
            parts,
            step.print,
            delays,
        )
        bodies = (record for _, record in records)
        return self.call_read_by("call_jobs", partial(outcomes, [job]), (*args, *bodies))

    def bury(self, names: Names, reason: str, trace: str = "") -> Call[Settled]:
        """Give up."""
        return self.call_about_jobs("bury", names, reason, trace, receipts=True)

    def extend(self, names: Names, lease_ms: int, *, late: bool) -> Call[replies.Extend]:
        """Extend leases; 0 = each job's own lease; late = also in the second half of a ttl."""
        epoch, common, rest = self.named(names, receipts=True)
        return self.call("extend", epoch, common, lease_ms, 1 if late else 0, *rest)

    def renew(self, names: Names, lease_ms: int) -> Call[replies.Extend]:
        """Extend leases, as a heartbeat does: whatever their ttl, and never to an earlier end."""
        epoch, common, rest = self.named(names, receipts=True)
        return self.call("extend", epoch, common, lease_ms, 2, *rest)

    def end_leases(self, epoch: str, receipts: Sequence[tuple[str, str]]) -> Call[replies.Extend]:
        """End leases now, of deliveries by number and receipt: the next reserve counts crashes."""
        pairs = [text for pair in receipts for text in pair]
        return self.call("extend", epoch, "*", 1, 1, *pairs)

    def beat(self, names: Names, unsent: Sequence[Unsent | None]) -> Call[Settled]:
        """Look at deliveries, and store what each has told: its progress and log lines."""
        lines = "".join(
            f"{place}{text}\n"
            for place, by_job in enumerate(unsent, 1)
            if by_job
            for text in by_job.texts()
        )
        return self.call_about_jobs("beat", names, lines, receipts=True)

    def emit(self, job: Delivery, span_ms: int, entries: Sequence[ToldEntry]) -> Call[replies.Emit]:
        """Store what a handler tells; if no client watches, for `span_ms`, 0 = drop it then."""
        number, span = number_of(job), str(span_ms) if span_ms else ""
        pairs = [part for one in entries for part in (f"{one.kind}{one.number}", one.text)]
        call = self.call("emit", epoch_of(job), job.receipt, number, span, *pairs)
        call.target = target_of(call.script, (*call.head[1:], *self.keys.emitted(number)))
        return call

    def note(self, job: Delivery, index: int, name: str, value: bytes) -> Call[replies.Note]:
        """Note the value of a step, as JSON; index: of the note, from 1."""
        about = epoch_of(job), job.receipt, number_of(job)
        return self.call("note", *about, index, name, value)

    def read_notes(self, job: Delivery) -> Call[replies.ReadNotes]:
        """Read the notes of a job."""
        return self.call("read_notes", epoch_of(job), job.receipt, number_of(job))

    def signal(self, names: Names, name: str, value: bytes) -> Call[Settled]:
        """Give a job a signal, with a value as JSON."""
        number, epoch = self.number_of(names[0])
        return self.call_read_by("signal", partial(_signalled, names), (epoch, number, name, value))

    # -- taking over -----------------------------------------------------------------------

    def pending(self, score: bytes | str, skip: int, idle_ms: int) -> Call[replies.Pending]:
        """Return a page of the deliveries that have not ended."""
        return self.call("pending", score, skip, idle_ms)

    def recover(self, epoch: str, pairs: Sequence[Packable]) -> Call[Recovered]:
        """Take over deliveries: number, receipt, number, receipt …"""
        tag = random.getrandbits(12)
        args = (epoch, "*", b"%d" % tag, self.owner_name, self.consuming, *pairs)
        return self.call_read_by("recover", partial(self._recovered, tag), args)

    def _recovered(self, tag: int, parse: Parser[replies.Recover], raw: RawReply) -> Recovered:
        reply = parse(raw)
        jobs = self._delivered(tag, reply)
        return Recovered(reply.seen, jobs)

    def hinted(
        self, kind: str, epoch: str, window: str, reason: str, pairs: Sequence[str]
    ) -> Call[Any]:
        """Repeat the calls of hints: number, receipt, number, receipt …"""
        if kind == "delete":
            return self.call("delete", epoch, *pairs[::2])
        if kind == "bury":
            return self.call(kind, epoch, "*", reason, "", *pairs)
        proof, results = "*", list[str]()
        if match := re.fullmatch(MISSING_VALUE_MARK, reason):
            proof, results = f"*\n{match[1]}", [match[2]] * (len(pairs) // 2)
        return self.call(kind, epoch, proof, "" if window == "-" else window, *pairs, *results)


def _signalled(names: Names, parse: Parser[replies.Signal], raw: RawReply) -> Settled:
    """Return the outcome of a signal: ended = it is there already, taken = another outcome is."""
    reply = parse(raw)
    is_another = reply.outcome == Code.ENDED and not reply.same
    return Settled(names, [Outcome.TAKEN if is_another else OUTCOME_OF_CODE[reply.outcome]])


def _handed_over(names: Names, parse: Parser[Any], raw: RawReply) -> Settled:
    reply = parse(raw)
    is_gone = isinstance(reply, replies.HandOverGone)
    return Settled(names, [OUTCOME_OF_CODE[reply.outcome]] if is_gone else None)
