"""The calls of a producer: add jobs, and withdraw them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.core.calls.call import Call, RawReply
from penstock.core.calls.operations.base import Names, Operations
from penstock.core.enqueuing.prepared import Prepared
from penstock.core.jobs.enqueued import Enqueued
from penstock.core.jobs.job import QueueIdentity
from penstock.core.jobs.outcomes import Settled
from penstock.core.jobs.record import escaped, parse_record, stable_id_of
from penstock.core.jobs.views import DedupStatus
from penstock.core.values.confirmations import Wait
from penstock.core.values.ids import encode_id, number_after, ttl_code
from penstock.wire import replies
from penstock.wire.packing import Packable
from penstock.wire.replies import Parser

__all__ = ["SHORT_RECORD_BYTES", "Added", "Producing", "updates"]

Added = replies.Enqueue | replies.Claim
"""The reply to a call that has added jobs."""
SHORT_RECORD_BYTES = 4096
"""Longest record that the fast lane adds."""
OWN_TERM_FIELDS, AT_MOST_ONCE_FIELD = (b";t", b";p"), b";l=0"
"""Begin of the options of a record with a ttl or a policy, and of one delivered at most once."""
ACTION_OF_CODE = {2: "updated", 3: "requeued", 0: "refused", -2: "refused"}


class Producing(Operations):
    """The operations of a producer."""

    def enqueue(
        self,
        records: Sequence[bytes],
        *,
        create: str = "",
        delay: bytes = b"0",
        bound: bytes = b"",
        wait_ms: int = 0,
        wait: Wait | None = None,
        mode: str | None = None,
    ) -> Call[Added]:
        """Add records; none = only return the space token. With a mode they have dedup ids."""
        role, name = self.producing, "enqueue" if mode is None else "claim"
        create = self.joining or create
        begin: tuple[Packable, ...] = (create, delay, bound, b"%d" % wait_ms, role)
        args = (*begin, *records) if mode is None else (*begin, mode, *records)
        has_options = mode is not None or create or delay != b"0" or role or bound
        fits_lane = not has_options and fit_lane(records)
        call: Call[Added] = self.call_read_by(name, read_added, args, fits_lane=fits_lane)
        if wait is not None:
            call.wait = self._expecting(wait)
        return call

    def _expecting(self, wait: Wait) -> Wait:
        """Return a wait with the confirmations that are asked for together with the call."""
        expected = self.replicas if wait.replicas is None else wait.replicas
        if not (expected or wait.fsynced):
            return wait
        return wait._replace(expected=expected or 0, is_told=self.replicas is not None)

    def enqueue_one(
        self, record: bytes, options: Prepared, *, fits_lane: bool = False
    ) -> Call[Added]:
        """Add one record, to a queue that exists and has room; `fits_lane` as in `call_read_by`."""
        name = "enqueue" if options.dedup is None else "claim"
        form = self._forms.get(name) or self._form(name)
        args: tuple[Packable, ...] = (
            self.joining, options.delay, options.bound, b"0", self.producing, record,
        )  # fmt: skip
        if options.dedup is not None:
            args = (*args[:-1], options.dedup.mode, record)
        wait = options.wait
        if wait is not None and (wait.fsynced or wait.replicas or self.replicas):
            wait = self._expecting(wait)
        return Call(  # names would take as long as all the rest
            form.script, form.lane_target if fits_lane else form.target, args, form.parse,
            form.adds_to, wait, form.role_lease, self, len(record) <= SHORT_RECORD_BYTES,
            fits_lane and not form.is_lane_known,
        )  # fmt: skip

    def id_of(self, number: bytes, epoch: bytes, ttl: str) -> str:
        """Return the id of a job that was added."""
        place = self.place(epoch)
        return encode_id(place.node, place.packed, number, ttl)

    def claimed(
        self, reply: replies.Claim, records: Sequence[bytes], ttl: str, replicas: int
    ) -> list[Enqueued]:
        """Return the results of jobs with dedup ids, added or not."""
        place = self.place(reply.epoch)
        state = "scheduled" if reply.scheduled else "ready"
        others = {index: fields for index, *fields in reply.others}
        results: list[Enqueued] = []
        added = 0
        for at, record in enumerate(records, 1):
            if at in others:
                results.append(_other(place, others[at], replicas, record))
                added += results[-1].action == "requeued"
            else:
                number = number_after(reply.first, added)
                job_id = encode_id(place.node, place.packed, number, ttl)
                stable_id = stable_id_of(record)
                results.append(Enqueued(job_id, state, replicas=replicas, stable_id=stable_id))
                added += 1
        return results

    def lookup(self, dedup_id: str) -> Call[replies.Lookup]:
        """Look up the job that has a dedup id."""
        return self.call("lookup", escaped(dedup_id))

    def status(self, dedup_id: str, reply: replies.Lookup) -> DedupStatus | None:
        """Return the job that has a dedup id; None = the id is free."""
        jobs = [job for job in self.views(reply) if job]
        ends = int(reply.ends) / 1000 or None
        if not jobs and ends is None:
            return None
        job = jobs[0] if jobs else None
        state = "window" if ends is not None or job is None else job.state
        return DedupStatus(dedup_id, state, job, jobs[1] if len(jobs) > 1 else None, ends)

    def withdraw(self, names: Names) -> Call[Settled]:
        """Remove jobs that were never delivered."""
        return self.call_about_jobs("withdraw", names)

    def withdraw_added(self, reply: Added) -> Call[replies.Withdraw]:
        """Remove the jobs of an enqueue that were not delivered yet."""
        numbers = [number_after(reply.first, i) for i in range(reply.count)]
        return self.call("withdraw", reply.epoch, *numbers)


def read_added(parse: Parser[Any], raw: RawReply) -> Added:
    """Return the reply to a call that adds jobs."""
    added: Added = parse(raw)
    return added


def fit_lane(records: Sequence[bytes]) -> bool:
    """Return True if the fast lane may add these records."""
    if not records or records[0][1:3] in OWN_TERM_FIELDS or records[0][1:5] == AT_MOST_ONCE_FIELD:
        return False
    return max(map(len, records)) <= SHORT_RECORD_BYTES


def updates(reply: Added) -> int:
    """Return the number of existing jobs to which a claim gave new content."""
    if isinstance(reply, replies.Enqueue):
        return 0
    return sum(what == 2 for _, what, *_ in reply.others)


def _other(
    place: QueueIdentity, fields: Sequence[Any], replicas: int, new_record: bytes
) -> Enqueued:
    what, number, state, header = fields
    record = parse_record(header + b"\n")
    ttl = ttl_code(record.ttl_ms, at_most_once=record.lease_ms == 0)
    return Enqueued(
        encode_id(place.node, place.packed, number, ttl) if number else "",
        state="active" if state == b"once" else state.decode(),
        duplicate=what != 3,
        replicas=replicas if what == 3 else 0,
        action=ACTION_OF_CODE[what],
        stable_id=stable_id_of(new_record) if what > 1 else "",
    )
