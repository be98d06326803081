"""The calls of a producer: add jobs, and withdraw them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from penstock.core.calls.call import Call, RawReply
from penstock.core.calls.operations.base import Form, Names, Operations
from penstock.core.enqueuing.options import Prepared
from penstock.core.jobs.job import Enqueued, QueueIdentity
from penstock.core.jobs.outcomes import Settled
from penstock.core.jobs.record import escaped, parse_record, stable_id_of
from penstock.core.jobs.views import DedupStatus
from penstock.core.values.confirmations import Wait
from penstock.core.values.ids import encode_id, number_after, ttl_code
from penstock.wire import replies
from penstock.wire.packing import Packable, front_of, words
from penstock.wire.replies import Parser

__all__ = ["MAX_PLAIN_BYTES", "Added", "Producing", "updates"]

Added = replies.Enqueue | replies.Claim
"""The reply to a call that has added jobs."""
MAX_PLAIN_BYTES = 4096
"""Longest record that `enqueue_plain` adds. Longer ones are packed together with their call."""
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
        delay: str | int = 0,
        bound: int | str = "",
        wait_ms: int = 0,
        wait: Wait | None = None,
        mode: str | None = None,
    ) -> Call[Added]:
        """Add records; none = only return the space token. With a mode they have dedup ids."""
        role, name = self.producing, "enqueue" if mode is None else "claim"
        create = self.joining or create
        begin = words((create, delay, bound, wait_ms, role))
        args = (*begin, *records) if mode is None else (*begin, mode, *records)
        call: Call[Added]
        read = partial(self._added, len(records))
        if mode is None and not (create or delay or role) and bound == "" and are_plain(records):
            call = self.call_plain_first("enqueue", read, args, tuple(records))
        else:
            call = self.call_read_by(name, read, args)
        if wait is not None:
            call.wait = self._expecting(wait)
        return call

    def _expecting(self, wait: Wait) -> Wait:
        """Return a wait with the confirmations that are asked for together with the call."""
        expected = self.replicas if wait.replicas is None else wait.replicas
        if not (expected or wait.fsynced):
            return wait
        return wait._replace(expected=expected or 0, is_told=self.replicas is not None)

    def _added(self, count: int, parse: Parser[Any], raw: RawReply) -> Added:
        reply = parse(raw)
        if isinstance(reply, replies.EnqueuePlain):
            first, epoch = reply.first, reply.epoch
            return replies.Enqueue((reply.code, reply.nonce, first, count, epoch, 0, 0, 0, 0))
        if reply.created:  # the plain form was refused because there was no queue
            self.declined.pop("enqueue", None)
        added: Added = reply
        return added

    def enqueue_plain(self, record: bytes) -> Call[replies.EnqueuePlain]:
        """Add one record without options. Its script and keys are packed once for all calls."""
        form = self._forms.get("enqueue_plain") or self._form("enqueue_plain")
        front = self._fronts.get("enqueue_plain") or self._pack_front(form)
        return Call(
            form.script, form.head, (record,), form.parse, form.queue, ops=self, front=front
        )

    def enqueue_one(self, record: bytes, options: Prepared) -> Call[Added]:
        """Add one record, to a queue that exists and has room.

        Its script and keys are packed once for all calls.
        """
        name = "enqueue" if options.dedup is None else "claim"
        form = self._forms.get(name) or self._form(name)
        delay, bound = options.delay, options.bound
        args: tuple[Packable, ...] = (
            self.joining,
            delay if isinstance(delay, str) else b"%d" % delay,
            bound if isinstance(bound, str) else b"%d" % bound,
            b"0",
            self.producing,
            record,
        )
        if options.dedup is not None:
            args = (*args[:-1], options.dedup.mode, record)
        front = b""
        if len(record) <= MAX_PLAIN_BYTES:
            front = self._fronts.get(name) or self._pack_front(form)
        wait = options.wait
        if wait is not None and (wait.fsynced or wait.replicas or self.replicas):
            wait = self._expecting(wait)
        return Call(
            form.script, form.head, args, form.parse, form.queue, wait,
            role_lease=form.role_lease, ops=self, front=front,
        )  # fmt: skip

    def _pack_front(self, form: Form) -> bytes:
        script = form.script
        arguments = len(script.args) + len(script.rest)
        front = self._fronts[script.name] = front_of(script.sha, form.head, arguments)
        return front

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
        others = {index: told for index, *told in reply.others}
        found: list[Enqueued] = []
        added = 0
        for at, record in enumerate(records, 1):
            if at in others:
                found.append(_other(place, others[at], replicas, record))
                added += found[-1].action == "requeued"
            else:
                number = number_after(reply.first, added)
                job_id = encode_id(place.node, place.packed, number, ttl)
                stable_id = stable_id_of(record)
                found.append(Enqueued(job_id, state, replicas=replicas, stable_id=stable_id))
                added += 1
        return found

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


def are_plain(records: Sequence[bytes]) -> bool:
    """Return whether `enqueue_plain` is worth a try; a single job has a way of its own."""
    if (
        len(records) < 2
        or records[0][1:3] in OWN_TERM_FIELDS
        or records[0][1:5] == AT_MOST_ONCE_FIELD
    ):
        return False
    return max(map(len, records)) <= MAX_PLAIN_BYTES


def updates(reply: Added) -> int:
    """Return the number of existing jobs to which a claim gave new content."""
    if isinstance(reply, replies.Enqueue):
        return 0
    return sum(what == 2 for _, what, *_ in reply.others)


def _other(place: QueueIdentity, told: Sequence[Any], replicas: int, given: bytes) -> Enqueued:
    what, number, state, header = told
    record = parse_record(header + b"\n")
    ttl = ttl_code(record.ttl_ms, at_most_once=record.lease_ms == 0)
    return Enqueued(
        encode_id(place.node, place.packed, number, ttl) if number else "",
        state="active" if state == b"once" else state.decode(),
        duplicate=what != 3,
        replicas=replicas if what == 3 else 0,
        action=ACTION_OF_CODE[what],
        stable_id=stable_id_of(given) if what > 1 else "",
    )
