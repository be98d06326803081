"""Read-only views of nodes; imported when a program looks at them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

__all__ = ["Drain", "Hello", "Info", "NodeView", "PrimaryView", "merged_info"]


@dataclass(frozen=True, slots=True)
class PrimaryView:
    """A primary of a Redis Cluster.

    Attributes:
        address: host and port.
        used_memory: bytes; None = the server does not report it.
        max_memory: bytes; 0 = no limit; None = the server does not report it.
        is_crowded: whether more than three quarters of its memory are in use.
        error: reason why it does not answer; empty if it does.
    """

    address: str
    used_memory: int | None = None
    max_memory: int | None = None
    is_crowded: bool = False
    error: str = ""


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node as this client sees it.

    Attributes:
        id: 40 hex digits; the ids of its jobs contain the first 8.
        address: host and port, or the path of its socket.
        priority: 1 = healthy, 10 = above three quarters of its `maxmemory`, 100 = leaving or
            unreachable: no jobs are added there.
        used_memory: bytes; None = the server does not report it.
        max_memory: bytes; 0 = no limit; None = the server does not report it.
        leaving: whether it takes no new jobs.
        error: reason why it can't be reached; empty if it was reached.
        primaries: of a Redis Cluster, which is one node; empty for a single server.
    """

    id: str
    address: str
    priority: int = 100
    used_memory: int | None = None
    max_memory: int | None = None
    leaving: bool = False
    error: str = ""
    primaries: tuple[PrimaryView, ...] = ()


@dataclass(frozen=True, slots=True)
class Drain:
    """The jobs left on a node that is being drained. It is true when the node is drained.

    Attributes:
        waiting: jobs that are ready, scheduled or parked.
        active: leased jobs.
        hints: calls that it stores for other nodes.
        rows: rows of staged writes that are not in their queues yet.
        dead: dead letters; they are never delivered.
    """

    waiting: int
    active: int
    hints: int
    rows: int
    dead: int

    def __bool__(self) -> bool:
        return not (self.waiting or self.active or self.hints or self.rows)


@dataclass(frozen=True, slots=True)
class Hello:
    """The client's node and the nodes that it knows.

    Attributes:
        version: version of the protocol.
        node: id of the node that answered, 40 hex digits.
        nodes: every node this client knows, the one that answered first.
    """

    version: int
    node: str
    nodes: tuple[NodeView, ...]


@dataclass(frozen=True, slots=True)
class Info:
    """The state of a node. Figures that the server does not report are None.

    Attributes:
        node: its id, 40 hex digits.
        server: product and version.
        uptime: seconds since the server was started.
        connected_clients: clients of the whole server.
        blocked_clients: clients of the whole server in a blocking call. Redis does not report
            which client waits for which queue.
        used_memory, max_memory: bytes.
        maxmemory_policy: the server's policy at `max_memory`; it should be "noeviction".
        aof_enabled: whether it writes an append-only file.
        connected_replicas: number of its replicas.
        registered_queues: queues that exist.
        registered_jobs: jobs in all of them, in every state.
        waiting_jobs: registered jobs that are ready, scheduled or parked.
    """

    node: str
    server: str
    uptime: int | None
    connected_clients: int | None
    blocked_clients: int | None
    used_memory: int | None
    max_memory: int | None
    maxmemory_policy: str | None
    aof_enabled: bool | None
    connected_replicas: int | None
    registered_queues: int
    registered_jobs: int
    waiting_jobs: int


def merged_info(infos: Sequence[Info]) -> Info:
    """Merge the info of nodes: numbers are added, texts that differ become None."""
    values: dict[str, Any] = {}
    for field in fields(Info):
        of_all = [getattr(info, field.name) for info in infos]
        if all(type(value) is int for value in of_all) and field.name != "uptime":
            values[field.name] = sum(of_all)
        else:
            values[field.name] = of_all[0] if all(v == of_all[0] for v in of_all) else None
    known = [info.uptime for info in infos if info.uptime is not None]
    values["uptime"] = min(known, default=None)
    values["node"] = " ".join(info.node for info in infos)
    values["server"] = ", ".join(dict.fromkeys(info.server for info in infos))
    return Info(**values)
