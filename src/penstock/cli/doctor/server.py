"""The server: version, persistence, memory, replication, clock, scripts."""

from __future__ import annotations

import time
from collections.abc import Iterator

from penstock.cli.doctor import times
from penstock.cli.doctor.connections import DoctorNode, DoctorServer
from penstock.cli.doctor.findings import Finding, broken, ok, warning
from penstock.cli.output import size, span
from penstock.client._sync.transport.sentinel import SentinelAnswer
from penstock.core.nodes.servers import OLDEST_REDIS
from penstock.core.values.urls import host_and_port
from penstock.errors import UnsupportedServer
from penstock.wire.scripts import all_scripts

__all__ = ["SERVER_CHECKS", "check_sentinels"]

MEMORY_WARNING_SHARE = 0.9
CLOCK_WARNING_SECONDS = 1.0
REPLICA_LAG_SECONDS = 10


def check_version(server: DoctorServer) -> Iterator[Finding]:
    """Check that the server has all commands that the scripts use."""
    facts = server.facts
    data = {"server": facts.name, "redis_version": ".".join(map(str, facts.version))}
    try:
        facts.check()
    except UnsupportedServer as error:
        yield broken(f"{error}.", **data)
    else:
        needed = ".".join(map(str, OLDEST_REDIS))
        text = f"{facts.name} can run all scripts (they need Redis {needed} or newer)."
        yield ok(text, **data)


FINDING_OF_FSYNC = {
    "always": (ok, "every write is on disk before it is answered."),
    "everysec": (ok, "a crash of the machine loses up to a second or two."),
    "no": (warning, "a crash of the machine loses what the operating system had not written yet."),
    None: (ok, "CONFIG GET is forbidden, so appendfsync is not known."),
}


def check_persistence(server: DoctorServer) -> Iterator[Finding]:
    """Report what a restart or a crash of the server loses."""
    fields = server.facts.fields
    yield _append_only(server) if server.facts.number("aof_enabled") else _snapshots(server)
    if fields.get("rdb_last_bgsave_status", "ok") != "ok":
        yield warning("the last snapshot failed: the server may refuse writes until one succeeds.")


def _append_only(server: DoctorServer) -> Finding:
    if server.facts.fields.get("aof_last_write_status", "ok") != "ok":
        text = "the last write to the append-only file failed: new jobs are lost in a restart."
        return broken(text, aof=True)
    policy = server.config("appendfsync")
    level, text = FINDING_OF_FSYNC.get(policy, FINDING_OF_FSYNC[None])
    text = f"append-only file, appendfsync {policy}: {text}"
    return level(text, aof=True, appendfsync=policy)


def _snapshots(server: DoctorServer) -> Finding:
    save = server.config("save")
    if save == "":
        text = "neither append-only file nor snapshots: a restart loses every job."
    else:
        ago = time.time() - float(server.facts.fields.get("rdb_last_save_time", 0))
        last = f"the last one {span(max(ago, 0))} ago"
        text = f"snapshots alone, {last}: a crash loses later changes."
    return warning(text, aof=False, save=save)


def check_memory(server: DoctorServer) -> Iterator[Finding]:
    """Check that the server does not delete keys by itself."""
    facts = server.facts
    limit, used = facts.number("maxmemory") or 0, facts.number("used_memory") or 0
    policy = facts.fields.get("maxmemory_policy", "")
    bound = f"{size(used)} of {size(limit)}" if limit else f"{size(used)}, no limit"
    level = broken if facts.evicts else warning
    if risks := facts.warnings():
        text = f"{risks[0]}."
    elif limit and used > MEMORY_WARNING_SHARE * limit:
        text = f"{bound} used: at maxmemory an enqueue is refused, consumers go on."
    else:
        level, text = ok, f"{bound}; nothing is evicted ({policy})."
    yield level(text, maxmemory=limit, used_memory=used, policy=policy)


def check_evicted(server: DoctorServer) -> Iterator[Finding]:
    """Check that the server has not deleted keys by itself."""
    level, text = ok, "no key was evicted since the server started."
    if count := server.facts.number("evicted_keys") or 0:
        level = broken
        text = f"{count} keys were evicted since the server started: jobs may be among them."
    yield level(text, evicted_keys=count)


def check_replicas(server: DoctorServer) -> Iterator[Finding]:
    """Report the replicas, or that this server is one."""
    fields = server.facts.fields
    role = fields.get("role", "master")
    if role != "master":
        master = host_and_port(fields.get("master_host"), fields.get("master_port"))
        text = f"this server is a replica of {master}: it refuses writes."
        yield broken(text, role=role, master=master)
        return
    if count := server.facts.number("connected_slaves"):
        yield _restarted(server)
        yield from (_replica(fields.get(f"slave{number}", "")) for number in range(count))
    else:
        text = "no replica is connected: if this server is lost, its jobs are lost."
        yield ok(text, role=role, replicas=[])


def _restarted(server: DoctorServer) -> Finding:
    is_aof = bool(server.facts.number("aof_enabled"))
    policy = server.config("appendfsync") if is_aof else ""
    if policy == "always":
        text = "confirmed copies survive a restart of this primary: its file has every write."
    else:
        lack = "may lack up to 2 s of writes" if is_aof else "has no append-only file"
        text = (
            f"this primary {lack}: if it restarts as the primary, jobs that replicas confirmed may"
            " be lost. Use durable=Durable(fsynced=True), or let a replica take over before it"
            " restarts."
        )
    return (ok if is_aof else warning)(text, role="master", appendfsync=policy)


def _replica(line: str) -> Finding:
    told = dict(pair.split("=", 1) for pair in line.split(",") if "=" in pair)
    name = host_and_port(told.get("ip", "?"), told.get("port", "?"))
    state, lag = told.get("state", "?"), int(told.get("lag", -1))
    level, text = ok, f"replica {name} is online, lag {lag} s."
    if state != "online" or lag > REPLICA_LAG_SECONDS:
        level = warning
        text = f"replica {name} is {state}, last heard from {lag} s ago: it confirms nothing."
    return level(text, replica=name, state=state, lag=lag)


def check_sentinels(node: DoctorNode) -> Iterator[Finding]:
    """Check that all Sentinels answer and name the same primary."""
    if node.primary is None:
        return
    answers, agreeing = node.primary.answers(), 0
    told = [one for _, one in answers if isinstance(one, SentinelAnswer)]
    latest = max(told, key=lambda one: one.epoch, default=None)
    for where, one in answers:
        if not isinstance(one, SentinelAnswer):
            yield warning(f"Sentinel {where} does not answer: {one}.", sentinel=where)
        elif latest and one.address != latest.address:
            named = "{}:{}".format(*one.address)
            text = f"Sentinel {where} names {named}, in epoch {one.epoch} of {latest.epoch}."
            yield warning(text, sentinel=where, primary=named, epoch=one.epoch)
        else:
            agreeing += 1
    if latest:
        named, epoch, of = "{}:{}".format(*latest.address), latest.epoch, len(answers)
        text = f"{agreeing} of {of} Sentinels name {named}, epoch {epoch}."
        yield ok(text, primary=named, epoch=epoch, agreeing=agreeing, of=of)


def check_clock(server: DoctorServer) -> Iterator[Finding]:
    """Compare the clock of the server, by which all times go, with ours."""
    ahead, trip = times.read_clock(server)
    level, text = ok, f"the server's clock and ours differ by {abs(ahead) * 1000:.0f} ms."
    if abs(ahead) > CLOCK_WARNING_SECONDS + trip:
        level = warning
        text = f"the server's clock is {times.beside_ours(ahead)}: enqueue(at=...) goes by it."
    yield level(text, ahead=round(ahead, 6), round_trip=round(trip, 6))


def check_scripts(server: DoctorServer) -> Iterator[Finding]:
    """Count the scripts that are loaded."""
    every = all_scripts()
    loaded = server.ask("SCRIPT", "EXISTS", *(one.sha for one in every))
    names = [one.name for one, is_there in zip(every, loaded, strict=True) if is_there]
    text = f"{len(names)} of {len(every)} scripts are loaded; clients load the others when needed."
    yield ok(text, loaded=names, of=len(every))


SERVER_CHECKS = (
    check_version,
    check_persistence,
    check_memory,
    check_evicted,
    check_replicas,
    check_clock,
    check_scripts,
)
