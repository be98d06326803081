"""The slots of a Redis Cluster."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.cli.doctor.connections import DoctorNode, DoctorServer
from penstock.cli.doctor.findings import Finding, broken, ok, warning
from penstock.core.nodes.servers import parse_info
from penstock.wire.keys import SLOT_COUNT

__all__ = ["check_cluster"]

LISTED_SLOTS = 3


def check_cluster(node: DoctorNode) -> Iterator[Finding]:
    """Check that every slot is served and stays on its server."""
    if not node.is_cluster:
        return
    servers = node.servers
    told = parse_info(servers[0].ask("CLUSTER", "INFO"))
    served, state = int(told.get("cluster_slots_assigned", 0)), told.get("cluster_state", "?")
    addresses = sorted(one.address for one in servers)
    data = {"state": state, "slots": served, "primaries": addresses}
    if state != "ok":
        text = (
            f"the cluster is down ({served} of {SLOT_COUNT} slots are served): calls are refused."
        )
        yield broken(text, **data)
    else:
        level = ok if served == SLOT_COUNT else broken
        yield level(f"{len(servers)} primaries serve {served} of {SLOT_COUNT} slots.", **data)
    for one in servers:
        if slots := _leaving(one):
            some = ", ".join(slots[:LISTED_SLOTS]) + (", ..." if len(slots) > LISTED_SLOTS else "")
            text = f"{one.address}: slots are being moved ({some}): their queues pause meanwhile."
            yield warning(text, server=one.address, slots=slots)
    silence = servers[0].config("cluster-node-timeout")
    if silence is not None:
        seconds = int(silence) / 1000
        text = f"a primary is replaced after {seconds:g} s and an election: set retry_for higher."
        yield ok(text, cluster_node_timeout=seconds)


def _leaving(server: DoctorServer) -> list[str]:
    """Return the slots that are being migrated from this server to another one."""
    for line in server.ask("CLUSTER", "NODES").decode().splitlines():
        words = line.split()
        if "myself" in words[2].split(","):
            return [word[1:].partition("->")[0] for word in words[8:] if "->-" in word]
    return []
