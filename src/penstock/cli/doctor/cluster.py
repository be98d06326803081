"""The servers of a Redis Cluster among each other; nothing where there is none."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.cli.doctor.findings import Check, Finding, Patient, Severity
from penstock.core.servers import parse_info
from penstock.wire.keys import SLOTS

__all__ = ["CHECKS"]

FEW = 3


def cluster(patient: Patient) -> Iterator[Finding]:
    """Check that every slot is served and stays where it is."""
    if not patient.parts:
        return
    told = parse_info(patient.ask("CLUSTER", "INFO"))
    served, state = int(told.get("cluster_slots_assigned", 0)), told.get("cluster_state", "?")
    data = {"state": state, "slots": served, "primaries": sorted(patient.parts)}
    if state != "ok":
        text = f"the cluster is down ({served} of {SLOTS} slots are served): calls are refused."
        yield Finding("cluster", Severity.BROKEN, text, data)
    else:
        count = len(patient.parts)
        text = f"{count} primaries serve {served} of {SLOTS} slots."
        yield Finding("cluster", Severity.OK if served == SLOTS else Severity.BROKEN, text, data)
    yield from _on_their_way(patient)
    yield from _patience(patient)


def _on_their_way(patient: Patient) -> Iterator[Finding]:
    """Slots that migrate: their queues stand still meanwhile."""
    for address, part in patient.parts.items():
        slots = _leaving(part)
        if slots:
            some = ", ".join(slots[:FEW]) + (", ..." if len(slots) > FEW else "")
            text = f"{address}: slots are on their way ({some}): queues in them stand still."
            data = {"server": address, "slots": slots}
            yield Finding("cluster", Severity.WARNING, text, data)


def _leaving(part: Patient) -> list[str]:
    for line in part.ask("CLUSTER", "NODES").decode().splitlines():
        words = line.split()
        if "myself" in words[2].split(","):
            return [word[1:].partition("->")[0] for word in words[8:] if "->-" in word]
    return []


def _patience(patient: Patient) -> Iterator[Finding]:
    """Report how long a failover takes."""
    silence = patient.config("cluster-node-timeout")
    if silence is None:
        return
    seconds = int(silence) / 1000
    text = f"a primary is replaced after {seconds:g} s and an election: retry_for should exceed it."
    yield Finding("cluster", Severity.OK, text, {"cluster_node_timeout": seconds})


CHECKS: list[tuple[str, Check]] = [("cluster", cluster)]
