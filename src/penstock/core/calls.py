"""What goes out and comes back: one run of a script, and what is waited for behind it."""

from __future__ import annotations

from typing import Any, NamedTuple

from penstock.core.roles import Tenure
from penstock.wire.keys import QueueKeys
from penstock.wire.scripts import Script

__all__ = ["NOTHING", "Call", "Confirmed", "Wait"]


class Wait(NamedTuple):
    """What an enqueue or an ack waits for, on its own connection.

    Attributes:
        replicas: how many must have it; None = as many as the queue's setting says.
        timeout_ms: for how long.
        expected: how many this client takes the setting for; its WAIT goes out with the call.
        fsynced: whether the server, and those replicas, must have it on disk.
        is_told: whether the server has told this client of the setting.
    """

    replicas: int | None
    timeout_ms: int
    expected: int = 0
    fsynced: bool = False
    is_told: bool = False


class Confirmed(NamedTuple):
    """What became of a wait.

    Attributes:
        replicas: how many confirmed.
        fsynced: whether the server has it on disk; False also when it was not asked.
    """

    replicas: int = 0
    fsynced: bool = False

    def covers(self, wanted: int, wait: Wait) -> bool:
        """Whether this is what was asked for."""
        return self.replicas >= wanted and (self.fsynced or not wait.fsynced)


NOTHING = Confirmed()


class Call(NamedTuple):
    """One run of a script.

    Attributes:
        script: which.
        head: keys' count and keys, as EVALSHA takes them after the SHA.
        args: ARGV after the nonce.
        queue: keys of the queue when the producer's key is to be added (enqueue), else None.
        wait: what to wait for, or None; what was confirmed is added to the reply.
        bearer: the exclusive role that the call bears or takes, or None; it is told the answer.
    """

    script: Script
    head: tuple[Any, ...]
    args: tuple[Any, ...]
    queue: QueueKeys | None = None
    wait: Wait | None = None
    bearer: Tenure | None = None
