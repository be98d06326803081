"""Durability of one call: the replicas and disks that must confirm it."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.core.values.checks import Duration, check_count, check_flag, duration_ms
from penstock.core.values.confirmations import Wait
from penstock.errors import BadArgument

__all__ = ["Durable", "ack_wait", "delivery_wait", "enqueue_wait"]

MAX_WAIT_MS = 3_600_000
DEFAULT_WAIT_MS = 1000
DEFAULT_FSYNC_WAIT_MS = 5000
"""Default timeout for disks: `appendfsync everysec` needs a second, and the time of a sync."""


@dataclass(frozen=True, slots=True)
class Durable:
    """Confirmations that an enqueue or an ack waits for, or a reserve of jobs with `lease=0`.

    Args:
        replicas: number of replicas that must confirm; None = the queue's setting (0) in an
            enqueue, none in an ack or a reserve.
        fsynced: whether the write must be on the server's disk, and on the disks of these replicas.
            It needs a server that reports this: Redis 8.0 or newer; or, without replicas, any
            server with `appendfsync always`.
        timeout: seconds to wait, up to an hour; None = 1, with `fsynced` 5.

    Raises:
        BadArgument: an argument can't be used.

    Examples:
        >>> q.enqueue(b"order", durable=Durable(0, timeout=0.5)).replicas
        0
    """

    replicas: int | None = None
    fsynced: bool = False
    timeout: Duration | None = None

    def __post_init__(self) -> None:
        if self.replicas is not None:
            check_count("replicas", self.replicas, low=0, high=1000)
        check_flag("fsynced", self.fsynced)
        if self.timeout is None:
            return
        if duration_ms("timeout", self.timeout, zero=False) > MAX_WAIT_MS:
            raise BadArgument("timeout", self.timeout, "must be at most an hour")

    @property
    def timeout_ms(self) -> int:
        """Return the milliseconds to wait."""
        if self.timeout is not None:
            return duration_ms("timeout", self.timeout)
        return DEFAULT_FSYNC_WAIT_MS if self.fsynced else DEFAULT_WAIT_MS


def enqueue_wait(replicas: int | None, durable: Durable | None, *, once: bool) -> Wait | None:
    """Return the wait of an enqueue; None = no wait, even if the queue has a setting.

    Args:
        replicas: the short form.
        durable: the long form.
        once: whether the jobs are delivered at most once. Those are never replicated.

    Raises:
        BadArgument: an argument can't be used, or both forms were given.
    """
    chosen = _chosen(replicas, durable, short=replicas is not None)
    if once and chosen.replicas:
        reason = "a job with lease=0 is not replicated: omit replicas= or lease=0"
        raise BadArgument("replicas", chosen.replicas, reason)
    wanted = 0 if once else chosen.replicas
    if wanted == 0 and not chosen.fsynced:
        return None
    return Wait(wanted, chosen.timeout_ms, fsynced=chosen.fsynced)


def ack_wait(replicas: int, durable: Durable | None) -> Wait | None:
    """Return the wait of an ack, which ignores the queue's setting; None = no wait.

    Args, raises: as `enqueue_wait`.
    """
    if durable is None and type(replicas) is int and replicas == 0:
        return None
    check_count("replicas", replicas, low=0, high=1000)
    chosen = _chosen(replicas, durable, short=replicas != 0)
    wanted = chosen.replicas or 0
    if wanted == 0 and not chosen.fsynced:
        return None
    return Wait(wanted, chosen.timeout_ms, wanted, fsynced=chosen.fsynced, refuses=False)


def delivery_wait(durable: Durable | None, argument: str = "durable") -> Wait | None:
    """Return the wait of a call that takes jobs, for those delivered at most once; None = no wait.

    Args:
        durable: the confirmations.
        argument: the name of the argument.

    Raises:
        BadArgument: it can't be used.
    """
    if durable is None:
        return None
    if not isinstance(durable, Durable):
        raise BadArgument(argument, durable, "must be a Durable, such as Durable(1)")
    if durable.replicas is None and not durable.fsynced:
        raise BadArgument(argument, durable, "confirms nothing: pass replicas= or fsynced=True")
    wanted = durable.replicas or 0
    if wanted == 0 and not durable.fsynced:
        return None
    return Wait(wanted, durable.timeout_ms, wanted, fsynced=durable.fsynced, delivers=True)


def _chosen(replicas: int | None, durable: object, *, short: bool) -> Durable:
    if durable is None:
        return Durable(replicas)
    if not isinstance(durable, Durable):
        raise BadArgument("durable", durable, "must be a Durable; a number is passed as replicas=")
    if short:
        raise BadArgument("replicas", replicas, "not together with durable=: pass one of them")
    return durable
