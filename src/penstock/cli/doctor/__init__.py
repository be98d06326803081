"""`penstock doctor`: settings of servers and states of queues that break a promise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from typing import Annotated

from redis.exceptions import RedisError

from penstock.cli import output
from penstock.cli.app import Session, command
from penstock.cli.doctor import cluster, keys, server, times
from penstock.cli.doctor.connections import DoctorNode
from penstock.cli.doctor.findings import Finding, add_address, name_check, ok, run_checks, warning
from penstock.cli.doctor.nodes import DoctorNodes
from penstock.cli.parameters import Option
from penstock.core.values.urls import shown
from penstock.errors import PenstockError

__all__ = ["doctor"]

SHOWN_PROBLEMS = 3
"""Problems with the work that the report names."""


@command("doctor")
def doctor(
    session: Session,
    repair: bool = False,
    horizon: Annotated[int, Option(metavar="DAYS", low=1, high=36_600)] = times.HORIZON_DAYS,
) -> None:
    """Examine servers and queues; exit code 1 if a promise of penstock is broken.

    Looks at every primary of a cluster and every listed node of a federation. Nothing is written
    without --repair. Jobs are sampled, and keys are read for a few seconds at most.

    Args:
        repair: list queues that are missing in the registry, and correct times that a wrong server
            clock has set too far in the future.
        horizon: a time further in the future than this counts as wrong.

    Examples:
        penstock doctor
        penstock doctor --repair
    """
    urls = session.urls()
    with ExitStack() as stack:
        nodes = DoctorNodes(urls, session.prefix, session.node_hosts.split(), stack)
        if repair:
            for node in nodes.reached:
                for one in node.servers:
                    times.refuse_wrong_clock(one)
        findings: list[Finding] = []
        for node in nodes.reached:
            found = _examine(node, horizon, repair=repair)
            if not nodes.several:
                findings += found
                continue
            try:
                findings += add_address(found, "node", node.address)
            except (RedisError, OSError) as error:
                nodes.missed[node.address] = str(error)
        findings = [*name_check("nodes", nodes.findings(repair=repair)), *findings]
        findings += name_check("work", _check_work(session, nodes))
    healthy = all(finding.level != "broken" for finding in findings)
    document = {
        "url": " ".join(map(shown, urls)),
        "prefix": session.prefix,
        "healthy": healthy,
        "findings": [asdict(one) for one in findings],
    }
    rows = [(one.level, one.check, one.text) for one in findings]
    session.answer(document, lambda: output.table(("", "check", ""), rows))
    if not healthy:
        raise SystemExit(1)


def _check_work(session: Session, nodes: DoctorNodes) -> Iterator[Finding]:
    """Yield what is wrong now with the work on the nodes, as `penstock check` finds it."""
    if not any(node.node_id() for node in nodes.reached):  # a client would give them an id
        yield ok("no client has used the server yet.", problems=[])
        return
    try:
        with session.client() as client:
            found = client.find_problems()
    except (PenstockError, RedisError, OSError) as error:
        yield warning(f"could not be checked: {error}")
        return
    problems = [one for one in found if one.kind not in ("node", "memory")]  # other checks say so
    if not problems:
        yield ok("nothing is wrong now.", problems=[])
        return
    texts = [f"{one.queue}: {one.text}" for one in problems[:SHOWN_PROBLEMS]]
    more = [f"{len(problems) - SHOWN_PROBLEMS} more"] if len(problems) > SHOWN_PROBLEMS else []
    text = f"{'; '.join([*texts, *more])}; see `penstock check`."
    yield warning(text, problems=[asdict(one) for one in problems])


def _examine(node: DoctorNode, horizon: int, *, repair: bool) -> Iterator[Finding]:
    yield from run_checks(node, cluster.check_cluster)
    for one in node.servers:
        found = run_checks(one, *server.SERVER_CHECKS)
        yield from add_address(found, "server", one.address) if node.is_cluster else found
    yield from run_checks(node, server.check_sentinels)
    yield from name_check("queues", keys.check_queues(node, horizon, repair=repair))
