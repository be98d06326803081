"""One function an operation: it builds the `Call` of a script and knows how to read the reply."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

from penstock.core.calls import NOTHING, Call, Confirmed, Wait
from penstock.core.codec import Codec
from penstock.core.ids import encode_id, number_after, parse_id, ttl_code
from penstock.core.job import Batch, Delivery, Enqueued, QueueIdentity, Settled
from penstock.core.partitions import read_mark
from penstock.core.record import escaped, parse_record, stable_id_of
from penstock.core.roles import RoleLease
from penstock.core.views import (
    DedupStatus,
    JobView,
    QueueStats,
    ScanPage,
    Settings,
    read_settings,
    read_stats,
    read_view,
)
from penstock.errors import (
    BadArgument,
    BadJobId,
    CheckpointTaken,
    MetaLost,
    QueueClosed,
    QueueFull,
    QueueInUse,
    QueuePartitioned,
    QueuePaused,
    RoleLost,
    StaleCall,
    UnsupportedVersion,
    WrongEpoch,
    WrongNode,
    WrongQueue,
)
from penstock.wire.keys import QueueKeys, queue_crc
from penstock.wire.scripts import script

__all__ = ["QueueOps", "Staged", "Taken"]

GONE = 0
SWEPT = 0
"""Of peek: expired jobs were in the way and are removed."""
ENDED = 2
REFUSED = -2
MISSING = -5
DAMAGED = -8
FULL = -3
CLOSED = -14
IN_USE = -15
ROLE_LOST = -16
TAKEN_OVER = -17
UNSTAGED = -18
BAD_RECORD = -10
MALFORMED = -19
FORMS = {
    "number": "must be a job number: ms, a dash, ten digits, without leading zeros",
    "fence": "must be the job number that the previous step returned",
    "from": "must be a job number",
    "to": "must be a job number",
    "owner": "must be at most 200 bytes without a line feed",
    "lease": "must be ms, at most 2073600000 (24 days), and end before 2094-09-07",
}
"""How an argument that a script has refused has to be."""
DRAINED = -2
"""As `next` of a reserve: closed, and nothing is left that could be delivered."""
PRODUCING = ("enqueue", "claim", "publish")
APART = ("producer", "stage", "commit")
"""Kinds of keys of which a queue has many: which one is said call by call."""
ACTIONS = {2: "updated", 3: "requeued", 0: "refused", -2: "refused"}
STATES = ("ready", "scheduled", "active", "dead")


class Taken(NamedTuple):
    """The reply of a reserve.

    Attributes:
        next_ms: -1 nothing is due, 0 more can be reserved now, -2 the queue is closed and drained,
            else ms until the next event.
        deliveries: what was taken.
    """

    next_ms: int
    deliveries: list[Any]

    @property
    def is_over(self) -> bool:
        """Whether nothing was taken, and nothing will be: the queue is closed and drained."""
        return self.next_ms == DRAINED and not self.deliveries


class Staged(NamedTuple):
    """What is staged together: all of it will be in the queue, or nothing.

    Attributes:
        writer: who stages, 1 to 64 letters and digits.
        batch: which batch of this writer, from 0; a later one follows when all of this is done.
    """

    writer: str
    batch: int


class QueueOps:
    """The operations of one queue, bound to its keys.

    Args:
        keys: the queue's keys.
        owner: who reserves.
        known_nodes: ids of the nodes that this client knows, 8 hex digits each; kept by the client.
        queue: the object that jobs call their queue.
        make: builds a job from the arguments of `Delivery`.
        codec: of bodies; None = plain JSON.

    Attributes:
        home: where they are carried out; None = the client has one node alone.
        partitions: of how many partitions this is one; None = the queue has none.
    """

    def __init__(
        self,
        keys: QueueKeys,
        owner: str,
        known_nodes: Sequence[str],
        queue: Any = None,
        make: Callable[..., Any] = Delivery,
        codec: Codec | None = None,
    ) -> None:
        self.keys = keys
        self.owner = owner
        self.queue = queue
        self.make = make
        self.codec = codec
        self.home: Any = None
        self.partitions: int | None = None
        self.crc = queue_crc(keys.name)
        self._owner = owner.encode()
        self._heads: dict[str, tuple[Any, ...]] = {}
        self._place: QueueIdentity | None = None
        self._replicas: int | None = None
        self.tenures: dict[str, RoleLease] = {}
        self._producing = self._consuming = ""
        self.known_nodes = known_nodes

    @property
    def name(self) -> str:
        """The queue's name."""
        return self.keys.whole

    def bear(self, tenure: RoleLease) -> None:
        """From now on calls of this role's kind bear it."""
        self.tenures[tenure.role] = tenure
        if tenure.role == "producer":
            self._producing = tenure.mark
        else:
            self._consuming = tenure.mark

    def _bearing(self, role: str, call: Call) -> Call:
        """The call as it goes out, if this role is borne."""
        return call._replace(bearer=self.tenures[role]) if role in self.tenures else call

    def _call(self, name: str, *args: Any) -> Call:
        found = script(name)
        head = self._heads.get(name)
        if head is None:
            kinds = tuple(kind for kind in found.keys if kind not in APART)
            head = self._heads[name] = (len(found.keys), *self.keys.of(kinds))
        return Call(found, head, args, self.keys if name in PRODUCING else None, ops=self)

    def place(self, node: str, epoch: bytes) -> QueueIdentity:
        """What ids of this queue carry; built once an epoch."""
        place = self._place
        if place is None or place.epoch != epoch.decode() or place.node != node:
            place = self._place = QueueIdentity(self.name, node, self.crc, epoch.decode())
        return place

    def check(self, reply: list[Any]) -> list[Any]:
        """Raise what the codes that any script may answer stand for.

        Raises:
            UnsupportedVersion, QueuePartitioned, MetaLost, QueueClosed, QueuePaused, QueueInUse,
            RoleLost, StaleCall, WrongEpoch, BadArgument.
        """
        code = reply[0]
        if code == -6:
            raise self._foreign(reply[2])
        if code == DAMAGED:
            raise MetaLost(f"queue {self.name!r} has jobs but no meta key: run penstock doctor")
        if code == -4:
            raise QueuePaused(
                f"queue {self.name!r} is paused ({reply[2].decode()}): resume() ends that"
            )
        if code == CLOSED:
            raise QueueClosed(
                f"queue {self.name!r} is closed and takes no more jobs: reopen() ends that"
            )
        if code == IN_USE:
            raise QueueInUse(reply[2].decode(), reply[3].decode("utf-8", "replace"))
        if code == ROLE_LOST:
            raise RoleLost(reply[2].decode())
        if code == -7:
            raise StaleCall(
                f"call {int(reply[1])} did nothing: call {int(reply[2])} of this producer ran first"
            )
        if code in (BAD_RECORD, MALFORMED):
            raise _refused(reply)
        if code == -9:
            raise WrongEpoch(
                "id", "<ids of an earlier queue>", f"queue {self.name!r} has been made anew since"
            )
        return reply

    def repair(self, epochs: Sequence[str], call: Call) -> Call:
        """Make lost meta anew, with the epoch of the job ids that are out.

        Args:
            epochs: those under which the registry lists the queue.
            call: the one that met the damage; the ids that it names count first, then those that
                this client has seen.

        Raises:
            MetaLost: it can't be told which epoch that is; a wrong one makes all ids invalid.
        """
        seen = "" if self._place is None else self._place.epoch
        known = [epoch for epoch in (call.epoch, seen) if epoch in epochs]
        if not known and len(epochs) != 1:
            raise MetaLost(_no_epoch(self.name, epochs))
        return self._call("configure", f"!{(known or epochs)[0]}")

    def _foreign(self, version: bytes) -> Exception:
        """The error of a queue that is none of this version."""
        count = read_mark(version)
        if count is not None:
            return QueuePartitioned(self.name, count)
        shown = version.decode("utf-8", "replace")
        text = (
            f"queue {self.name!r} was written by version {shown} of the protocol: upgrade penstock"
        )
        return UnsupportedVersion(text)

    # -- producing -------------------------------------------------------------------------

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
    ) -> Call:
        """Add records; none = only put the space token back. With a mode they have dedup ids."""
        if mode is None:
            call = self._call("enqueue", create, delay, bound, wait_ms, self._producing, *records)
        else:
            role = self._producing
            call = self._call("claim", create, delay, bound, wait_ms, role, mode, *records)
        if self._producing:
            call = self._bearing("producer", call)
        if wait is None:
            return call
        expected = self._replicas if wait.replicas is None else wait.replicas
        if expected or wait.fsynced:
            wait = wait._replace(expected=expected or 0, is_told=self._replicas is not None)
        return call._replace(wait=wait)

    # -- staging ---------------------------------------------------------------------------

    def _staging(self, name: str, at: Staged, *args: Any) -> Call:
        keys = (self.keys.stage(at.writer, at.batch), self.keys.commit(at.writer))
        head = (4, *keys, self.keys["writes"], self.keys["meta"])
        return Call(script(name), head, (at.batch, *args))

    def stage(self, at: Staged, field: str, ttl_ms: int, chunk: bytes) -> Call:
        """Keep a chunk of jobs aside; see `staged_chunk`."""
        return self._staging("stage", at, field, ttl_ms, chunk)

    def commit(
        self, at: Staged, stages: Sequence[tuple[str, int]], keep_ms: int, wait: Wait | None
    ) -> Call:
        """Promise what these attempts have staged: name and number of chunks of each."""
        flat = [part for stage in stages for part in stage]
        return self._staging("commit", at, keep_ms, *flat)._replace(wait=wait)

    def unstage(self, at: Staged, keep_ms: int | None) -> Call:
        """Forget what is staged: all is in the queue (and for how long that is known), or none."""
        return self._staging("unstage", at, "" if keep_ms is None else keep_ms)

    def publish(
        self, at: Staged, field: str, most: int, *, create: str, wait_ms: int, wait: Wait | None
    ) -> Call:
        """Move the first jobs of a staged chunk into the queue."""
        call = self._call("publish", create, "", wait_ms, self._producing, field, most)
        head = (*call.head, self.keys.stage(at.writer, at.batch), self.keys.commit(at.writer))
        if self._producing:
            call = self._bearing("producer", call)
        return call._replace(head=head, wait=wait)

    def replicated(self, reply: list[Any], wait: Wait | None) -> tuple[int, Confirmed]:
        """How many replicas were to confirm an enqueue, and what was confirmed."""
        self._replicas = reply[8]
        if wait is None:
            return 0, NOTHING
        return (reply[8] if wait.replicas is None else wait.replicas), reply[-1]

    def claimed(
        self, reply: list[Any], records: Sequence[bytes], node: str, ttl: str, replicas: int
    ) -> list[Enqueued]:
        """The answers to jobs with dedup ids: those that were added, and the others among them."""
        place = self.place(node, reply[4])
        state, first = self.state_of(reply), reply[2]
        others = {reply[i]: reply[i + 1 : i + 5] for i in range(9, len(reply) - 4, 5)}
        found: list[Enqueued] = []
        added = 0
        for at, record in enumerate(records, 1):
            if at in others:
                found.append(self._other(place, others[at], replicas, record))
                added += found[-1].action == "requeued"
            else:
                number = number_after(first, added)
                job_id = encode_id(node, place.packed, number, ttl)
                stable_id = stable_id_of(record)
                found.append(Enqueued(job_id, state, False, replicas, stable_id=stable_id))
                added += 1
        return found

    def _other(
        self, place: QueueIdentity, parts: list[Any], replicas: int, given: bytes
    ) -> Enqueued:
        what, number, state, header = parts
        record = parse_record(header + b"\n")
        ttl = ttl_code(record.ttl_ms, at_most_once=record.lease_ms == 0)
        return Enqueued(
            encode_id(place.node, place.packed, number, ttl) if number else "",
            "active" if state == b"once" else state.decode(),
            what != 3,
            replicas if what == 3 else 0,
            ACTIONS[what],
            stable_id_of(given) if what > 1 else "",
        )

    def updates(self, reply: list[Any]) -> int:
        """How many jobs that were there before have new content after a claim."""
        return sum(what == 2 for what in reply[10 : len(reply) - 3 : 5])

    def lookup(self, dedup_id: str) -> Call:
        """Who has a dedup id."""
        return self._call("lookup", escaped(dedup_id))

    def clear(self) -> Call:
        """Remove the queue."""
        return self._call("clear")

    def status(self, dedup_id: str, reply: list[Any], node: str) -> DedupStatus | None:
        """Read the reply of lookup; None = nobody has the id."""
        jobs = [view for view in self.views(reply, node, 6) if view]
        ends = int(reply[5]) / 1000 or None
        if not jobs and ends is None:
            return None
        job = jobs[0] if jobs else None
        state = "window" if ends is not None or job is None else job.state
        return DedupStatus(dedup_id, state, job, jobs[1] if len(jobs) > 1 else None, ends)

    def withdraw(self, names: Sequence[Any]) -> Call:
        """Remove jobs that were never delivered."""
        epoch, _, rest = self._named(names, receipts=False)
        return self._call("withdraw", epoch, *rest)

    def withdraw_added(self, reply: list[Any]) -> Call:
        """Remove what an enqueue has added, as far as nobody got it."""
        numbers = [number_after(reply[2], i) for i in range(reply[3])]
        return self._call("withdraw", reply[4], *numbers)

    def id_of(self, place: QueueIdentity, number: bytes, ttl: str) -> str:
        """The id of a job of this queue."""
        return encode_id(place.node, place.packed, number, ttl)

    def state_of(self, reply: list[Any]) -> str:
        """Where an enqueue put its jobs."""
        return "scheduled" if reply[7] else "ready"

    def full(self, reply: list[Any]) -> QueueFull:
        """The error of a full queue."""
        text = f"queue {self.name!r} is full: {reply[2]} jobs wait, the limit is {reply[3]}"
        return QueueFull(text, reply[2], reply[3])

    # -- consuming -------------------------------------------------------------------------

    def reserve(self, n: int, *, idle: bool, provisional: bool = False) -> tuple[Call, int]:
        """Take up to n, suspects perhaps provisionally; the call and the tag that `taken` needs."""
        tag = random.getrandbits(12)
        role = self._consuming
        call = self._call(
            "reserve", -n if provisional else n, tag, self._owner, 1 if idle else 0, role
        )
        return (self._bearing("consumer", call) if role else call), tag

    def taken(self, reply: list[Any], tag: int, node: str, start: int = 6) -> Taken:
        """Read the reply of reserve (start 6) or settle (start 8)."""
        self.check(reply)
        if len(reply) == start:
            return Taken(reply[2], [])
        batch = Batch(
            self.queue,
            self.place(node, reply[3]),
            self.owner,
            tag=tag,
            now=reply[5],
            lease_ms=reply[4],
        )
        batch.ops = self
        make = self.make
        parts = zip(reply[start::3], reply[start + 1 :: 3], reply[start + 2 :: 3], strict=True)
        return Taken(reply[2], [make(batch, *part) for part in parts])

    def drained(self) -> QueueClosed:
        """The error of a queue that is closed and drained."""
        return QueueClosed(f"queue {self.name!r} is closed, and no job is left in it")

    # -- naming jobs -----------------------------------------------------------------------

    def number_of(self, name: object) -> tuple[bytes, str]:
        """Number and epoch of a job named by a delivery or an id.

        Raises:
            BadJobId: malformed.
            WrongQueue, WrongNode: of another queue, or a node this client does not know.
        """
        if isinstance(name, Delivery):
            if name.queue_name != self.name:
                raise WrongQueue("job", name.id, f"belongs to another queue than {self.name!r}")
            return name.number, name.epoch
        parsed = parse_id(name)
        if self.known_nodes and parsed.node not in self.known_nodes:
            known = ", ".join(self.known_nodes)
            raise WrongNode(
                "id", name, f"node {parsed.node} is unknown, this client knows {known}: add its URL"
            )
        if parsed.crc != self.crc:
            raise WrongQueue("id", name, f"belongs to another queue than {self.name!r}")
        return parsed.number, parsed.epoch

    def _named(self, names: Sequence[Any], *, receipts: bool) -> tuple[str, str, list[Any]]:
        """Epoch, common receipt and the rest of ARGV for a script that names deliveries."""
        if not names:
            return "", "", []
        alike = _alike(names, self.name)
        if alike is not None:
            receipt = names[0].hinted if receipts else ""
            return alike.place.epoch, receipt, [name.number for name in names]
        numbers, epoch = [], None
        shown: list[str] = []
        for name in names:
            number, of = self.number_of(name)
            if epoch is None:
                epoch = of
            elif epoch != of:
                raise WrongEpoch(
                    "id", name, "the call has ids of an earlier queue of this name, too: drop those"
                )
            numbers.append(number)
            if receipts:
                shown.append(name.receipt if isinstance(name, Delivery) else "")
        if not receipts:
            return epoch or "", "", numbers
        if shown.count(shown[0]) == len(shown):
            return epoch or "", shown[0], numbers
        pairs: list[Any] = [part for pair in zip(numbers, shown, strict=True) for part in pair]
        return epoch or "", "*", pairs

    def codes(self, names: Sequence[Any], reply: list[Any], start: int = 3) -> Settled:
        """Read `{1, nonce, done, code…}`."""
        self.check(reply)
        return Settled(names, reply[start:] if len(reply) > start else None)

    # -- settling --------------------------------------------------------------------------

    def ack(self, names: Sequence[Any], window_ms: int | None = None) -> Call:
        """Finish jobs; a window stands instead of those that their producers gave, 0 = none."""
        epoch, common, rest = self._named(names, receipts=True)
        window = "" if window_ms is None else window_ms
        return self._call("ack", epoch, common, window, *rest)

    def settle(
        self, names: Sequence[Any], n: int, *, provisional: bool = False
    ) -> tuple[Call, int]:
        """Finish jobs and take up to n more, suspects perhaps provisionally."""
        tag = random.getrandbits(12)
        epoch, common, rest = self._named(names, receipts=True)
        role = self._consuming if n else ""
        wanted = -n if provisional else n
        call = self._call("settle", epoch, common, wanted, tag, self._owner, role, *rest)
        return (self._bearing("consumer", call) if role else call), tag

    def settled(self, names: Sequence[Any], reply: list[Any]) -> Settled:
        """Read the acknowledging half of a settle."""
        self.check(reply)
        return Settled(names, [int(code) for code in reply[7].split()] if reply[7] else None)

    def nack(self, names: Sequence[Any], delay_ms: int, error: str) -> Call:
        """Report failures; delay -1 = by the queue's policy."""
        epoch, common, rest = self._named(names, receipts=True)
        seed = random.randrange(2_147_483_646)
        return self._call("nack", epoch, common, delay_ms, seed, error, *rest)

    def release(self, names: Sequence[Any], delay_ms: int) -> Call:
        """Give back without a failure."""
        epoch, common, rest = self._named(names, receipts=True)
        return self._call("release", epoch, common, delay_ms, *rest)

    def bury(self, names: Sequence[Any], reason: str) -> Call:
        """Give up."""
        epoch, common, rest = self._named(names, receipts=True)
        return self._call("bury", epoch, common, reason, *rest)

    def extend(self, names: Sequence[Any], lease_ms: int, *, late: bool) -> Call:
        """Renew leases; 0 = each job's own lease; late = in the second half of a ttl, too."""
        epoch, common, rest = self._named(names, receipts=True)
        return self._call("extend", epoch, common, lease_ms, 1 if late else 0, *rest)

    def pending(self, score: bytes | str, skip: int, idle_ms: int) -> Call:
        """A page of the deliveries that nobody has ended."""
        return self._call("pending", score, skip, idle_ms)

    def recover(self, epoch: str, pairs: Sequence[Any]) -> tuple[Call, int]:
        """Take deliveries over: number, receipt, number, receipt …"""
        tag = random.getrandbits(12)
        call = self._call("recover", epoch, "*", tag, self._owner, self._consuming, *pairs)
        return self._bearing("consumer", call), tag

    def hinted(self, kind: str, epoch: str, window: str, reason: str, pairs: Sequence[str]) -> Call:
        """Make up for calls that were kept elsewhere: number, receipt, number, receipt …"""
        if kind == "delete":
            return self._call("delete", epoch, *pairs[::2])
        text = reason if kind == "bury" else "" if window == "-" else window
        return self._call(kind, epoch, "*", text, *pairs)

    # -- the batch of a checkpoint -----------------------------------------------------------

    def _of_checkpoint(self, name: str, consumer: str, *args: Any) -> Call:
        found = script(name)
        keys = self.keys.of(found.keys[:-1])
        head = (len(found.keys), *keys, self.keys.checkpoint(consumer))
        return Call(found, head, args, ops=self)

    def assign(
        self, consumer: str, fence: str, batch: int, *, most: int, n: int, lease_ms: int
    ) -> tuple[Call, int]:
        """Reserve up to n more jobs for a batch; gives the call and the tag of its receipts.

        An empty fence takes the checkpoint over.
        """
        tag = random.getrandbits(12)
        args = (fence, batch, most, n, tag, self._owner, lease_ms)
        return self._of_checkpoint("assign", consumer, *args), tag

    def assigned(self, consumer: str, fence: str, batch: int, start: int, count: int) -> Call:
        """A page of the receipts of a batch."""
        return self._of_checkpoint("assigned", consumer, fence, batch, start, count)

    def fetch(self, consumer: str, batch: int, start: int, count: int, full: int) -> Call:
        """The jobs of a part of a batch that are still held under its receipts."""
        return self._of_checkpoint("fetch", consumer, batch, start, count, full)

    def dismiss(self, consumer: str, fence: str, batch: int) -> Call:
        """Forget the receipts of a batch."""
        return self._of_checkpoint("dismiss", consumer, fence, batch)

    def of_batch(self, reply: list[Any]) -> list[Any]:
        """What a script about a checkpoint's batch has answered, code 0 included.

        Raises:
            CheckpointTaken: another client has taken the checkpoint over.
            As `check`.
        """
        if reply[0] == TAKEN_OVER:
            raise CheckpointTaken(
                f"queue {self.name!r}: another run of the query uses this checkpoint now"
            )
        return self.check(reply)

    def ack_receipts(
        self, epoch: str, receipt: str, numbers: Sequence[Any], until: int = 0
    ) -> Call:
        """Finish jobs that have one receipt in common; `until` is a hint when their leases end."""
        common = f"{receipt}@{until}" if until else receipt
        return self._call("ack", epoch, common, "", *numbers)

    def extend_receipts(
        self, epoch: str, receipt: str, numbers: Sequence[Any], lease_ms: int
    ) -> Call:
        """Renew the leases of jobs that have one receipt in common."""
        return self._call("extend", epoch, receipt, lease_ms, 1, *numbers)

    # -- moving ----------------------------------------------------------------------------

    def promote(self, names: Sequence[Any]) -> Call:
        """Bring jobs forward to the place of their creation."""
        epoch, _, rest = self._named(names, receipts=False)
        return self._call("promote", epoch, *rest)

    def dequeue(self, names: Sequence[Any]) -> Call:
        """Take jobs out for the time of a lease."""
        epoch, _, rest = self._named(names, receipts=False)
        return self._call("dequeue", epoch, *rest)

    # -- dead letters, removal -------------------------------------------------------------

    def redrive(self, names: Sequence[Any] | None, limit: int = 0, skip: int = 0) -> Call:
        """Bring dead letters back: the named, or `limit` of the oldest after `skip`."""
        if names is None:
            return self._call("redrive", "", limit, skip)
        epoch, _, rest = self._named(names, receipts=False)
        return self._call("redrive", epoch, 0, 0, *rest)

    def delete(self, names: Sequence[Any]) -> Call:
        """Remove jobs in any state."""
        epoch, _, rest = self._named(names, receipts=False)
        return self._call("delete", epoch, *rest)

    def purge(self, state: str, fence: bytes | str, skip: int) -> Call:
        """One step of a purge."""
        return self._call("purge", state, fence, skip)

    def sweep(self, idle_ms: int) -> Call:
        """One step of a sweep."""
        return self._call("sweep", idle_ms)

    def evict(self, count: int, *, letters: bool) -> Call:
        """Remove what nobody will be given again."""
        return self._call("evict", count, 1 if letters else 0)

    # -- roles -----------------------------------------------------------------------------

    def acquire(self, tenure: RoleLease, *, fence: int | str = "", create: str = "") -> Call:
        """Take an exclusive role; with the number of this taking: renew it."""
        kind, token, lease = tenure.role, tenure.token, tenure.lease_ms
        call = self._call("acquire", create, kind, token, fence, lease, self._owner)
        return call._replace(bearer=tenure)

    def resign(self, tenure: RoleLease) -> Call:
        """Give an exclusive role back."""
        return self._call("resign", tenure.role, tenure.token)

    # -- looking ---------------------------------------------------------------------------

    def stats(self) -> Call:
        """Counts."""
        return self._call("stats")

    def peek(self, state: str, start: int, count: int, *, newest: bool) -> Call:
        """Jobs of a state, in order or backwards."""
        return self._call("peek", state, start, count, 1 if newest else 0)

    def scan(self, cursor: str, count: int, states: Collection[str], *, full: bool) -> Call:
        """A step through all jobs."""
        return self._call("scan", cursor, count, 1 if full else 0, *states)

    def survey(self, epoch: str, place: str, start: str, end: str, count: int, full: int) -> Call:
        """A page of the jobs of one structure, between two places in it."""
        return self._call("survey", epoch, place, start, end, count, full)

    def show(self, names: Sequence[Any]) -> Call:
        """Jobs by id."""
        epoch, _, rest = self._named(names, receipts=False)
        return self._call("show", epoch, *rest)

    def show_numbers(self, epoch: str, numbers: Sequence[Any]) -> Call:
        """Jobs by number, at most 100."""
        return self._call("show", epoch, *numbers)

    def receipt(self, reply: list[Any]) -> str | None:
        """The receipt that holds the one job of a reply of show, None = nobody's does."""
        job = self.check(reply)[5]
        return (job[7].decode() or None) if job else None

    def configure(self, fields: Sequence[Any], *, create: str = "") -> Call:
        """Store settings: name, value, name, value …; '' drops one."""
        return self._call("configure", create, *fields)

    def settings(self, reply: list[Any]) -> Settings:
        """Read the reply of configure."""
        settings = read_settings(
            {reply[i].decode(): reply[i + 1].decode() for i in range(4, len(reply), 2)}
        )
        self._replicas = settings.replicas or 0
        return settings

    def views(self, reply: list[Any], node: str, start: int = 5) -> list[JobView | None]:
        """Read `{1, nonce, now, lease, epoch, job…}`; None for a job that is gone."""
        self.check(reply)
        place = self.place(node, reply[4])
        return [
            read_view(place, entry, reply[3], reply[2], self.codec) if entry else None
            for entry in reply[start:]
        ]

    def page(self, reply: list[Any], node: str, *, full: bool) -> ScanPage:
        """Read the reply of scan."""
        jobs = [view for view in self.views(reply, node, 6) if view]
        return ScanPage(reply[5].decode(), [view.id for view in jobs], jobs if full else [])

    def stats_of(self, reply: list[Any]) -> QueueStats:
        """Read the reply of stats."""
        return read_stats(self.name, self.check(reply))


def _refused(reply: list[Any]) -> BadArgument:
    """The error of an argument that a script does not take."""
    if reply[0] == BAD_RECORD:
        text = "must be a record of this version with a header of at most 16384 bytes"
        return BadArgument("records", reply[2], text)
    name, value = (part.decode("utf-8", "replace") for part in reply[2:4])
    return BadArgument(name, value, FORMS[name])


def _no_epoch(queue: str, epochs: Sequence[str]) -> str:
    """Say why lost meta can't be made anew."""
    text = f"queue {queue!r} has jobs but no meta, and the registry"
    if not epochs:
        return f"{text} does not list it: clear() removes its jobs, nothing restores them"
    return (
        f"{text} lists it with the epochs {', '.join(sorted(epochs))}: call ack, extend or show"
        " with a job id that is out, which tells the right one"
    )


def staged_chunk(delay: int | str, records: Sequence[bytes]) -> bytes:
    """Records as they are staged together: delay and sizes, newline, one after the other."""
    sizes = " ".join([str(len(record)) for record in records])
    return b"%b %b\n%b" % (str(delay).encode(), sizes.encode(), b"".join(records))


def _alike(names: Sequence[Any], queue: str) -> Batch | None:
    """What the names share when all are first deliveries of one reserve of this queue."""
    batch = names[0].batch if isinstance(names[0], Delivery) else None
    if batch is None or batch.place.queue != queue:
        return None
    for name in names:
        if not isinstance(name, Delivery) or name.batch is not batch or not name.first:
            return None
    return batch


def purge_parts(states: Collection[str]) -> list[str]:
    """What to purge for these states, in an order in which no job slips by when its time comes."""
    parts = {
        "ready": "ready",
        "scheduled": "scheduled",
        "active": "active",
        "once": "active",
        "due": "ready",
        "ended": "ready",
        "dead": "dead",
    }
    return [part for part, state in parts.items() if state in states]


def check_states(argument: str, values: object) -> tuple[str, ...]:
    """Names of states, each once; None = all.

    Raises:
        BadArgument: not a collection of ready, scheduled, active, dead.
    """
    if values is None:
        return ()
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise BadArgument(argument, values, f"must be names out of {', '.join(STATES)}")
    found = list(values)
    if not found or any(value not in STATES for value in found):
        raise BadArgument(argument, values, f"must be names out of {', '.join(STATES)}")
    return tuple(dict.fromkeys(found))


def check_state(argument: str, value: object) -> str:
    """A state's name.

    Raises:
        BadArgument: not one of ready, scheduled, active, dead.
    """
    if value not in STATES:
        raise BadArgument(argument, value, f"must be one of {', '.join(STATES)}")
    return str(value)


__all__ += ["BadJobId", "check_state", "check_states", "purge_parts", "staged_chunk"]
