"""The nodes of a federation: those that were given, and those that they list."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from redis.exceptions import RedisError

from penstock.cli.doctor.connections import DoctorNode
from penstock.cli.doctor.findings import Finding, broken, ok, warning
from penstock.core.nodes.node_list import address_of, learned, merged_members
from penstock.core.values.urls import shown
from penstock.errors import PenstockError

__all__ = ["DoctorNodes"]


class DoctorNodes:
    """The nodes to examine, with a connection to each.

    Args:
        urls: of the nodes that were given.
        prefix: prefix of all keys.
        hosts: hosts of listed nodes that may get the password of the first URL.
        stack: closes the connections.

    Attributes:
        reached: the nodes that were reached.
        missed: address -> the reason why a node is not examined.
        several: True if there is more than one node, missed ones included.

    Raises:
        redis.exceptions.ConnectionError: none of the nodes can be reached.
    """

    def __init__(
        self, urls: Sequence[str], prefix: str, hosts: Sequence[str], stack: ExitStack
    ) -> None:
        self.reached: list[DoctorNode] = []
        self.missed: dict[str, str] = {}
        self._prefix = prefix
        self._stack = stack
        known = {"", *map(address_of, urls)}
        failures = [error for url in urls if (error := self._reach(url, _place(url)))]
        if not self.reached:
            raise failures[0]
        known.update(node.node_id() for node in self.reached)
        while listed := [
            (node_id, entry.address)
            for node_id, entry in merged_members(one.listed() for one in self.reached).items()
            if node_id not in known and entry.address not in known
        ]:
            node_id, address = listed[0]
            known.add(node_id)
            try:
                self._reach(learned(address, urls, hosts), _place(address))
            except PenstockError as error:
                self.missed[_place(address)] = str(error)
        self.several = len(self.reached) + len(self.missed) > 1

    def _reach(self, source: object, address: str) -> Exception | None:
        try:
            node = DoctorNode(source, self._prefix)
        except (RedisError, OSError) as error:
            self.missed[address] = str(error)
            return error
        self._stack.callback(node.close)
        self.reached.append(node)
        return None

    def findings(self, *, repair: bool) -> Iterator[Finding]:
        """Yield a finding for each node that was missed, and a summary; none for a single node."""
        if not self.several:
            return
        done, level = ("repaired", broken) if repair else ("examined", warning)
        for address, reason in self.missed.items():
            text = f"{address} was not {done}: {reason}; repeat the command when it can be reached."
            yield level(text, node=address)
        addresses = [one.address for one in self.reached if one.address not in self.missed]
        text = f"{len(addresses)} of {len(addresses) + len(self.missed)} nodes were {done}."
        yield ok(text, nodes=addresses, missed=list(self.missed))


def _place(url: str) -> str:
    return shown(url).partition("://")[2].partition("/")[0] or shown(url)
