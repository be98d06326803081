"""Exclusive roles: the only producer, or the only consumer, of a queue (protocol/roles.md)."""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass, field

from penstock.core.values.checks import RoleName
from penstock.wire.codes import Code

__all__ = ["RoleLease"]

RENEWING_CODES = (Code.DONE, Code.FULL)
"""Codes of calls that have renewed the role that they pass: done, and full."""


@dataclass(eq=False, slots=True)
class RoleLease:
    """A lease on a role, as its holder sees it.

    Attributes:
        role: producer or consumer.
        lease_ms: for how long it holds without a call that uses it.
        token: identifies the holder.
        fence: the number of this lease.
        until: the earliest end of the lease, by the holder's own clock.
        is_refused: True = the server has reported its end.
    """

    role: RoleName
    lease_ms: int
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    fence: int = 0
    until: float = -math.inf
    is_refused: bool = False

    @property
    def argument(self) -> str:
        """The argument `role` of the scripts."""
        return f"{self.fence}-{self.token}"

    def note_answer(self, code: int, sent: float, *, repeated: bool) -> None:
        """Note the answer to a call that uses the role: the role is renewed, or has ended.

        Args:
            code: of the answer.
            sent: when the call was sent, by the holder's own clock.
            repeated: whether it is the answer to an earlier call, given again.
        """
        if code == Code.ROLE_LOST:
            self.is_refused = True
        elif code in RENEWING_CODES and not repeated:
            self.until = max(self.until, sent + self.lease_ms / 1000)
