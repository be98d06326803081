"""A script call, and the durability wait that follows it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from penstock.core.values.confirmations import NOTHING, Confirmed, Wait
from penstock.core.values.roles import RoleLease
from penstock.wire.codes import Code
from penstock.wire.keys import QueueKeys
from penstock.wire.packing import Packable, front_of, with_args, with_record
from penstock.wire.replies import Configure
from penstock.wire.scripts import Script

__all__ = ["Call", "RawReply", "Target", "longest_pause", "target_of"]

R_co = TypeVar("R_co", covariant=True)
RawReply: TypeAlias = list[Any]
"""A reply of a script as it comes from the server."""
LONG_CALL_BYTES = 65_536
"""Bytes of arguments that each server takes at once."""
EARLY_RETRY_PAUSE = 0.25
"""Longest pause between two tries of a call, in seconds, in the first second."""
LATE_RETRY_PAUSE = 1.0
"""Longest pause between two tries of a call, in seconds, after the first second."""


class ReplySizes(Protocol):
    """Limits the replies of a queue's calls; see `ReplyLimit`."""

    @property
    def most(self) -> int:
        """Return the most jobs of a reply; 0 = as many as are asked for."""

    @property
    def suspected_size(self) -> int:
        """Return the size of a call whose reply was lost; 0 = none was."""

    def note_loss(self, call: Call[Any], now: float) -> bool:
        """Note that a reply was lost."""

    def note_reply(self, call: Call[Any], result: Any) -> None:
        """Note that a reply has come."""

    def apply(self, call: Call[Any], now: float) -> None:
        """Let a call ask for less."""


class Target(NamedTuple):
    """The script of calls and its keys, packed once for all of them.

    Attributes:
        head: count of the keys and the keys, as EVALSHA takes them after the SHA.
        front: the packed words up to the last key.
        size: their number.
        begin: the begin of a call with one record, packed: `front`, and the number of all words.
        omitted: how many of the first of `Call.args` are left out: the keys are those of the lane.
    """

    head: tuple[bytes, ...]
    front: bytes
    size: int
    begin: bytes
    omitted: int = 0


def target_of(script: Script, keys: Sequence[bytes], *, omitted: int = 0) -> Target:
    """Return the target of the calls of a script with these keys; `omitted` as in `Target`."""
    head = (b"%d" % len(keys), *keys)
    front, size = front_of(script.sha, head), 2 + len(head)
    begin = b"*%d\r\n%b" % (size + len(script.args) - omitted + 1, front)
    return Target(head, front, size, begin, omitted)


class CallingQueue(Protocol):
    """The operations of a queue, as the executor of its calls sees them; see `Operations`."""

    name: str
    keys: QueueKeys
    crc: int

    @property
    def reply_limit(self) -> ReplySizes:
        """Return the limit of its replies."""

    def accept(self, script: Script) -> None:
        """Note that the fast lane of a script has answered a call."""

    def decline(self, script: Script) -> None:
        """Note that the fast lane of a script has refused a call, for want of keys."""

    def all_keys(self, script: Script) -> Target:
        """Return the target of a script's calls with all keys."""

    def repair(self, epochs: Sequence[str], call: Call[Any]) -> Call[Configure]:
        """Return the call that restores lost meta."""


@dataclass(slots=True)
class Call(Generic[R_co]):
    """A run of a script, and its result.

    Attributes:
        script: the script.
        target: its keys, as they are sent.
        args: ARGV after the nonce.
        parse: makes the result of a reply whose code is not negative.
        adds_to: keys of the queue if the call adds jobs, and takes the producer's id; else None.
        wait: the durability wait behind the call, or None.
        role_lease: that of the exclusive role that the call uses or takes, or None; it is told the
            answer.
        ops: the operations of the queue, for its errors and the repair of its meta; None = a
            negative code is the caller's to read.
        ends_with_record: whether the last argument is a short record, and the others are often the
            same.
        tries_lane: whether it is not known yet if the fast lane can do such calls of the queue.
        resent: when the call was sent again by our clock, 0 = it was not. Set by the executor.
        confirmed: the result of the wait. Set by the executor.
        losses: how often its reply was lost. Set by `ReplyLimit`.
    """

    script: Script
    target: Target
    args: tuple[Packable, ...]
    parse: Callable[[RawReply], R_co]
    adds_to: QueueKeys | None = None
    wait: Wait | None = None
    role_lease: RoleLease | None = None
    ops: CallingQueue | None = None
    ends_with_record: bool = False
    tries_lane: bool = False
    resent: float = 0.0
    confirmed: Confirmed = NOTHING
    losses: int = 0

    @property
    def head(self) -> tuple[bytes, ...]:
        """Count of the keys and the keys, as EVALSHA takes them after the SHA."""
        return self.target.head

    @property
    def sent_args(self) -> tuple[Packable, ...]:
        """ARGV after nonce and producer, as it is sent with these keys."""
        return self.args[self.target.omitted :]

    @property
    def is_long(self) -> bool:
        """True if a server might refuse it for its size."""
        return sum(map(len, self.args)) > LONG_CALL_BYTES

    def doubt(self) -> None:
        """Note that the call may have run: now its confirmations decide."""
        if self.wait is not None:
            self.wait = self.wait._replace(refuses=False)

    def note_lane(self, code: int) -> None:
        """Note in the queue if the fast lane has answered the call, with this code."""
        if code == Code.LANE:
            assert self.ops is not None
            self.ops.accept(self.script)

    def send_all_keys(self) -> None:
        """Send all keys from now on, as the fast lane has refused the call."""
        assert self.ops is not None
        self.target = self.ops.all_keys(self.script)
        if not self.resent:  # else its first sending may be the reason
            self.ops.decline(self.script)

    def pack(self, nonce: bytes, producer: bytes) -> bytes:
        """Return the command as it is sent."""
        _, front, size, begin, omitted = self.target
        if self.ends_with_record:
            return with_record(begin, nonce, producer, self.args, omitted)
        first = (nonce,) if self.adds_to is None else (nonce, producer)
        return with_args(front, size, (*first, *self.sent_args))

    @property
    def epoch(self) -> str:
        """Epoch of the job ids in the arguments, or ''."""
        return str(self.args[0]) if self.script.args[1:2] == ("wanted",) else ""


def longest_pause(tries: int, elapsed: float) -> float:
    """Return the longest pause, in seconds, before the next try; a random part of it is used.

    A few ms at first, and never more than `EARLY_RETRY_PAUSE` in the first second: most outages are
    short, and a call should not take much longer than the outage.

    Args:
        tries: how many have failed.
        elapsed: seconds since the first one failed.
    """
    return min(
        EARLY_RETRY_PAUSE if elapsed < 1 else LATE_RETRY_PAUSE, 0.005 * 2.0 ** min(tries, 10)
    )
