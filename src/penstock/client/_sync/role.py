# From src/penstock/client/_async/role.py by tools/unasync.py; do not edit.
"""An exclusive role of a queue: the only producer, or the only consumer, under a lease."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from penstock.client._sync.route.interfaces import Routed
from penstock.client._sync.route.part import Part
from penstock.client.clock import monotonic
from penstock.core import flows
from penstock.core.jobs.logs import get_logger
from penstock.core.values.annotations import Self
from penstock.core.values.checks import Duration, RoleName, check_block, check_choice, lease_ms
from penstock.core.values.roles import RoleLease
from penstock.errors import BadArgument, ConfigurationError, QueueInUse

logger = get_logger("penstock")
Q = TypeVar("Q", bound=Routed)


class RoleOf(Generic[Q]):
    """An exclusive role; see `Role`, which names the class of its queue.

    Args:
        queue: the queue.
        bind: returns an object of the queue whose calls stay in a part.
        role: "producer" or "consumer".
        lease: seconds for which the role is held after the last call that uses it.
        block: seconds to wait for the role; 0 = not at all, None = for ever.

    Raises:
        BadArgument: an argument can't be used, or the queue object has this role already.
        ConfigurationError: the queue lies on several nodes, or has partitions.
    """

    def __init__(
        self,
        queue: Q,
        bind: Callable[[Part], Q],
        role: RoleName,
        lease: Duration,
        block: Duration | None,
    ) -> None:
        self._part = _check_part(queue)
        self._given, self._bind = queue, bind
        self._role = check_choice("role", role, RoleName)
        self._lease_ms = lease_ms("lease", lease, zero=False)
        self._block = check_block(block)
        if self._role in self._part.ops.role_leases:
            raise BadArgument("role", role, "this queue object holds it already")
        self._role_lease: RoleLease | None = None
        self._unanswered: list[RoleLease] = []
        self._queue: Q | None = None

    def __repr__(self) -> str:
        state = "not held" if self._role_lease is None else "lost" if self.lost else "held"
        return f"<{type(self).__name__} {self._role} of {self._given.name!r}: {state}>"

    @property
    def role(self) -> RoleName:
        """Return "producer" or "consumer"."""
        return self._role

    @property
    def fence(self) -> int:
        """Return the fencing number: higher than that of every earlier holder of the role.

        Another system (a file, a table) can refuse a number lower than one it has seen.
        """
        return self._held.fence

    @property
    def queue(self) -> Q:
        """Return the queue whose calls use the role."""
        queue = self._queue
        if queue is None:
            raise self._untaken()
        return queue

    @property
    def lost(self) -> bool:
        """Return True if the server said that the role has ended, or its lease has run out."""
        role_lease = self._held
        return role_lease.is_refused or monotonic() >= role_lease.until

    @property
    def _held(self) -> RoleLease:
        if self._role_lease is None:
            raise self._untaken()
        return self._role_lease

    def _untaken(self) -> BadArgument:
        return BadArgument("role", self._role, "the role is not held: enter it first (with)")

    def take(self) -> Self:
        """Take the role, as `with` does; wait up to `block` seconds until it is free.

        A call whose reply is lost is repeated, and finds that it has the role. If the repeats fail
        for too long, the role may or may not be taken: call `take` of this object again to hold it,
        or `release` to give it back. A cancelled call gives the role back.

        Raises:
            BadArgument: this object holds the role; it would wait for itself.
            QueueInUse: another client held the role for the whole wait.
            ConfigurationError: the queue lies on several nodes.
        """
        if self._role_lease is not None and not self.lost:
            raise BadArgument("role", self._role, "the role is held already: release it first")
        self._given.route.topology.look()
        part = self._part = _check_part(self._given)
        part.connect()
        # Popped, so that two callers at once use two leases.
        owed = self._unanswered
        role_lease = owed.pop() if owed else RoleLease(self._role, self._lease_ms)
        flow = flows.acquire(part.ops, role_lease, block=self._block, clock=monotonic)
        try:
            role_lease.fence = part.driver.drive(flow)
        except QueueInUse:  # an answer
            raise
        except BaseException:
            self._unanswered.append(role_lease)
            raise
        queue = self._bind(part)
        for other in (*part.ops.role_leases.values(), role_lease):
            queue.ops.use_role(other)
        self._role_lease, self._queue = role_lease, queue
        return self

    def extend(self) -> float:
        """Renew the lease of the role, when no other call does so: during a long job, for example.

        Returns:
            Seconds from now until the lease ends.

        Raises:
            RoleLost: the role has ended.
        """
        ops, role_lease = self._part.ops, self._held
        self._part.executor.run(ops.acquire(role_lease, fence=role_lease.fence))
        return role_lease.until - monotonic()

    def release(self) -> bool:
        """Give the role back. Calls that still use it are refused from now on.

        Returns:
            True; False if the role had ended before.
        """
        owed, is_released = [*self._unanswered], False
        for role_lease in owed:
            is_released |= self._resign(role_lease)
            self._unanswered.remove(role_lease)
        if owed and (self._role_lease is None or self._role_lease.is_refused):
            return is_released
        return self._resign(self._held) or is_released

    def _resign(self, role_lease: RoleLease) -> bool:
        ops = self._part.ops
        call = ops.resign(role_lease)
        reply = self._part.executor.run(call)
        role_lease.is_refused = True
        return bool(reply.given) or call.resent > 0

    def __enter__(self) -> Self:
        return self.take()

    def __exit__(self, *error: object) -> None:
        try:
            self.release()
        except Exception as failure:  # noqa: BLE001  # the lease ends by itself
            logger.warning("%r was not released; it is free when its lease ends: %s", self, failure)


def _check_part(queue: Routed) -> Part:
    part = queue.route.part
    if part is not None:
        return part
    if queue.partitions is not None:
        raise ConfigurationError("only a queue without partitions has exclusive roles")
    raise ConfigurationError("a role is held on one node: make a client of that node alone")


__all__ = ["RoleOf"]
