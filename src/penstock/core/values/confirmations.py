"""Confirmations of replicas and disks, for which a call waits."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["NOTHING", "Confirmed", "Wait"]


class Wait(NamedTuple):
    """The confirmations for which a call waits, on its own connection.

    Attributes:
        replicas: how many must confirm; None = as many as the queue's setting says.
        timeout_ms: for how long.
        expected: the setting as this client knows it; its WAIT is sent with the call.
        fsynced: True = the server and those replicas must have the write on disk.
        is_told: True = the server has told this client the setting.
        refuses: True = the call is not sent if too few replicas are connected. False for an ack and
            for a call that may have run before: their confirmations decide.
        delivers: True = the call takes jobs. Wait only for those delivered at most once. It is not
            sent without the replicas, whatever `refuses` says.
    """

    replicas: int | None
    timeout_ms: int
    expected: int = 0
    fsynced: bool = False
    is_told: bool = False
    refuses: bool = True
    delivers: bool = False


class Confirmed(NamedTuple):
    """The result of a wait.

    Attributes:
        replicas: how many confirmed.
        fsynced: True = the server has the write on disk; False also if it was not asked.
    """

    replicas: int = 0
    fsynced: bool = False

    def covers(self, wanted: int, wait: Wait) -> bool:
        """Return True if these confirmations suffice."""
        return self.replicas >= wanted and (self.fsynced or not wait.fsynced)


NOTHING = Confirmed()
