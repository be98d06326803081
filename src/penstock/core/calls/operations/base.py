"""The operations of one queue: its keys, the names of its jobs, and its calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar

from penstock.core.calls.call import Call, RawReply, Target, target_of
from penstock.core.calls.reply_limit import ReplyLimit
from penstock.core.jobs.job import (
    Delivery,
    JobName,
    JobQueue,
    QueueIdentity,
    counts_of,
    epoch_of,
    number_of,
    receipt_with_end,
    reservation_of,
)
from penstock.core.jobs.outcomes import OUTCOME_OF_CODE, Settled
from penstock.core.jobs.results import AckResults
from penstock.core.jobs.views import JobView, read_view
from penstock.core.values.codec import Codec
from penstock.core.values.ids import parse_id
from penstock.core.values.roles import RoleLease
from penstock.errors import MetaLost, WrongEpoch, WrongNode, WrongQueue
from penstock.wire import replies
from penstock.wire.keys import KINDS_PER_CALL, QueueKeys, queue_crc
from penstock.wire.packing import Argument, Packable, words
from penstock.wire.replies import Parser
from penstock.wire.scripts import Script, script

__all__ = [
    "Names",
    "Operations",
    "R",
    "Read",
    "Views",
    "outcomes",
    "read_codes",
]

PRODUCING_SCRIPTS = ("enqueue", "claim", "publish", "tick", "open_batch")
"""Scripts that add jobs: their calls take the producer's id, and use its role if it is held."""
CONSUMING_SCRIPTS = ("reserve", "settle", "recover")
"""Scripts whose calls use the role of the consumer if it is held."""
Names: TypeAlias = Sequence[JobName]
R = TypeVar("R")
Views: TypeAlias = list[JobView | None]
Read: TypeAlias = Callable[[Parser[Any], RawReply], R]


@dataclass(slots=True)
class Form:
    """The parts that all calls of a script on one queue share, as attributes of `Call`.

    Attributes:
        target: of calls that need all keys.
        lane_target: of calls that the fast lane may do: its keys from its first answer on, all keys
            before, and again from its first refusal on. So a queue pays a second trip once at most.
        is_lane_known: whether the fast lane has answered or refused a call.
    """

    script: Script
    target: Target
    lane_target: Target
    parse: Parser[Any]
    adds_to: QueueKeys | None
    role_lease: RoleLease | None
    is_lane_known: bool = False


class UpOrDown(Protocol):
    """The state of one of several nodes."""

    @property
    def is_up(self) -> bool:
        """Return True if the node answered the last call."""


class OwnNode(Protocol):
    """One of several nodes, as the operations of a queue on it see it."""

    whole_id: str

    @property
    def id(self) -> str:
        """Return the first 8 digits of its id."""

    @property
    def state(self) -> UpOrDown:
        """Return its state."""


class Operations:
    """The operations of one queue, bound to its keys.

    Args:
        keys: the queue's keys.
        owner: the consumer's name.
        known_nodes: ids of the nodes that this client knows, 8 hex digits each, the present one
            first; kept by the client.
        queue: the object that jobs call their queue.
        make: builds a job from the arguments of `Delivery`.
        codec: of bodies; None = plain JSON.

    Attributes:
        node: the node that runs them; None = the client has one node.
        partitions: number of partitions of the queue, of which this is one; None = it has none.
        replicas: the queue's setting as this client knows it; None = not known.
        joining: `&` and the number of the batch that all jobs join; empty = none.
        reply_limit: how many jobs a reply may have, after one was lost.
        asked: the lease in ms that `reserve` asks for in place of the queue's; empty = none.
    """

    def __init__(
        self,
        keys: QueueKeys,
        owner: str,
        known_nodes: Sequence[str],
        queue: JobQueue | None = None,
        make: Callable[..., Any] = Delivery,
        codec: Codec | None = None,
    ) -> None:
        self.keys = keys
        self.name = keys.whole
        self.owner = owner
        self.queue = queue
        self.make = make
        self.codec = codec
        self.node: OwnNode | None = None
        self.partitions: int | None = None
        self.crc = queue_crc(keys.name)
        self.owner_name = owner.encode()
        self.replicas: int | None = None
        self.reply_limit = ReplyLimit()
        self.role_leases: dict[str, RoleLease] = {}
        self.producing = self.consuming = self.joining = ""
        self.known_nodes = known_nodes
        self._forms: dict[str, Form] = {}
        self._place: QueueIdentity | None = None
        self._place_epoch = b""

    def use_role(self, role_lease: RoleLease) -> None:
        """Use the role in the calls of its kind from now on."""
        self.role_leases[role_lease.role] = role_lease
        if role_lease.role == "producer":
            self.producing = role_lease.argument
        else:
            self.consuming = role_lease.argument
        self._forms.clear()  # they have no role lease, or an earlier one

    def call(self, name: str, *args: Argument) -> Call[Any]:
        """Return the call of a script; its result is the reply with names."""
        form = self._forms.get(name) or self._form(name)
        return Call(
            form.script, form.target, words(args), form.parse, form.adds_to,
            role_lease=form.role_lease, ops=self,
        )  # fmt: skip

    def call_read_by(
        self, name: str, read: Read[R], args: tuple[Packable, ...], *, fits_lane: bool = False
    ) -> Call[R]:
        """Return the call of a script.

        Args:
            name: the script's name.
            read: makes the result of a parser and the reply.
            args: ARGV after the nonce.
            fits_lane: whether the fast lane of the script may do it.
        """
        form = self._forms.get(name) or self._form(name)
        target = form.lane_target if fits_lane else form.target
        return Call(
            form.script, target, args, partial(read, form.parse), form.adds_to,
            role_lease=form.role_lease, ops=self, tries_lane=fits_lane and not form.is_lane_known,
        )  # fmt: skip

    def accept(self, script: Script) -> None:
        """Note that the fast lane has answered a call: its keys are enough from now on."""
        form = self._forms.get(script.name) or self._form(script.name)
        if not form.is_lane_known:
            keys, omitted = (
                form.target.head[1 : script.lane + 1],
                len(script.args) - script.lane_args,
            )
            form.lane_target = target_of(script, keys, omitted=omitted)
            form.is_lane_known = True

    def decline(self, script: Script) -> None:
        """Note that the fast lane has refused a call with its keys: send all keys from now on."""
        form = self._forms.get(script.name) or self._form(script.name)
        form.lane_target, form.is_lane_known = form.target, True

    def all_keys(self, script: Script) -> Target:
        """Return the target of a script's calls with all keys."""
        return (self._forms.get(script.name) or self._form(script.name)).target

    def _form(self, name: str) -> Form:
        chosen = script(name)
        kinds = tuple(kind for kind in chosen.keys if kind not in KINDS_PER_CALL)
        target = target_of(chosen, self.keys.of(kinds))
        role = (
            "producer"
            if name in PRODUCING_SCRIPTS
            else "consumer"
            if name in CONSUMING_SCRIPTS
            else ""
        )
        adds_to, role_lease = self.keys if role == "producer" else None, self.role_leases.get(role)
        form = self._forms[name] = Form(
            script=chosen,
            target=target,
            lane_target=target,
            parse=replies.PARSERS[name],
            adds_to=adds_to,
            role_lease=role_lease,
        )
        return form

    @property
    def whole_node_id(self) -> str:
        """All 40 digits of the id of its node, if there are several nodes."""
        return "" if self.node is None else self.node.whole_id

    @property
    def node_id(self) -> str:
        """Node id, 8 hex digits; empty until it is known."""
        if self.node is not None:
            return self.node.id
        return self.known_nodes[0] if self.known_nodes else ""

    @property
    def is_up(self) -> bool:
        """True if the node answered the last call, as far as is known."""
        return self.node is None or self.node.state.is_up

    def place(self, epoch: bytes) -> QueueIdentity:
        """Return the queue's part of job ids; it is built once for an epoch."""
        place, known = self._place, self.known_nodes
        node = known[0] if self.node is None and known else self.node_id
        if place is None or self._place_epoch != epoch or place.node != node:
            place = self._place = QueueIdentity(self.name, node, self.crc, epoch.decode())
            self._place_epoch = epoch
        return place

    def views(self, reply: replies.Show | replies.Scan | replies.Browse | replies.Lookup) -> Views:
        """Return the jobs in a reply; None for one that is gone."""
        place, lease, now = self.place(reply.epoch), reply.lease, reply.now
        return [
            read_view(place, entry, lease, now, self.codec) if entry else None
            for entry in reply.jobs
        ]

    def repair(self, epochs: Sequence[str], call: Call[Any]) -> Call[replies.Configure]:
        """Restore lost meta with the epoch of known job ids.

        Args:
            epochs: those under which the registry lists the queue.
            call: the call that found the damage; the ids that it names count first, then those
                that this client has seen.

        Raises:
            MetaLost: the epoch is not known; a wrong one makes all ids invalid.
        """
        seen = "" if self._place is None else self._place.epoch
        known = [epoch for epoch in (call.epoch, seen) if epoch in epochs]
        if not known and len(epochs) != 1:
            raise MetaLost(_no_epoch(self.name, epochs))
        return self.call("configure", f"!{(known or epochs)[0]}")

    # -- naming jobs -----------------------------------------------------------------------

    def number_of(self, name: object) -> tuple[bytes, str]:
        """Return number and epoch of a job named by a delivery or an id.

        Raises:
            BadJobId: malformed.
            WrongQueue, WrongNode: of another queue, or a node this client does not know.
        """
        if isinstance(name, Delivery):
            if name.queue_name != self.name:
                raise WrongQueue("job", name.id, f"belongs to another queue than {self.name!r}")
            return number_of(name), epoch_of(name)
        parsed = parse_id(name)
        if self.known_nodes and parsed.node not in self.known_nodes:
            known = ", ".join(self.known_nodes)
            raise WrongNode(
                "id", name, f"node {parsed.node} is unknown, this client knows {known}: add its URL"
            )
        if parsed.crc != self.crc:
            raise WrongQueue("id", name, f"belongs to another queue than {self.name!r}")
        return parsed.number, parsed.epoch

    def named(self, names: Names, *, receipts: bool = False) -> tuple[str, str, list[Packable]]:
        """Return epoch, common receipt and the rest of ARGV for a script about jobs."""
        if not names:
            return "", "", []
        numbers: list[Packable] = []
        first = names[0]
        if isinstance(first, Delivery) and reservation_of(first).place.queue == self.name:
            reservation = reservation_of(first)
            for name in names:
                if (
                    not isinstance(name, Delivery)
                    or reservation_of(name) is not reservation
                    or counts_of(name)
                ):
                    break
                numbers.append(number_of(name))
            else:  # first deliveries of one reserve
                return reservation.place.epoch, receipt_with_end(first) if receipts else "", numbers
        return self._named_apart(names, receipts=receipts)

    def _named_apart(self, names: Names, *, receipts: bool) -> tuple[str, str, list[Packable]]:
        numbers: list[Packable] = []
        epoch = None
        shown: list[str] = []
        for name in names:
            number, of = self.number_of(name)
            if epoch is None:
                epoch = of
            elif epoch != of:
                raise WrongEpoch(
                    "id",
                    name,
                    "the call has ids of an earlier queue of this name, too: omit them",
                )
            numbers.append(number)
            if receipts:
                shown.append(name.receipt if isinstance(name, Delivery) else "")
        if not receipts:
            return epoch or "", "", numbers
        if shown.count(shown[0]) == len(shown):
            return epoch or "", shown[0], numbers
        pairs: list[Packable] = [part for pair in zip(numbers, shown, strict=True) for part in pair]
        return epoch or "", "*", pairs

    def call_about_jobs(
        self,
        script_name: str,
        names: Names,
        *args: Argument,
        receipts: bool = False,
        results: AckResults | None = None,
    ) -> Call[Settled]:
        """Return the call of a script about jobs; its result is an outcome for each of them."""
        epoch, proof, rest = self.named(names, receipts=receipts)
        if results is not None:
            proof, rest = f"{proof}\n{results.spans}", [*rest, *results.values]
        begin = (epoch, proof) if receipts else (epoch,)
        return self.call_read_by(
            script_name, partial(outcomes, names), (*begin, *words(args), *rest)
        )


def outcomes(names: Names, parse: Parser[Any], raw: RawReply) -> Settled:
    """Return the outcome of each job."""
    codes = getattr(parse(raw), "codes", ())
    return Settled(names, map(OUTCOME_OF_CODE.__getitem__, codes) if codes else None)


def read_codes(parse: Parser[Any], raw: RawReply) -> Sequence[int]:
    """Return the code of each job; none = all are done."""
    return getattr(parse(raw), "codes", ())


def _no_epoch(queue: str, epochs: Sequence[str]) -> str:
    text = f"queue {queue!r} has jobs but no meta, and the registry"
    if not epochs:
        return f"{text} does not list it: clear() removes its jobs, nothing restores them"
    return (
        f"{text} lists it with the epochs {', '.join(sorted(epochs))}: call ack, extend or show"
        " with a job id that is out, which tells the right one"
    )
