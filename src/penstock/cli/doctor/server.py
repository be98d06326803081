"""The server: version, persistence, memory, replication, clock, scripts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from penstock.cli.doctor.findings import Finding, Severity
from penstock.cli.doctor.patient import DoctorServer, Patient
from penstock.cli.output import size, span
from penstock.client._sync.transport.sentinel import SentinelAnswer
from penstock.core.servers import OLDEST
from penstock.errors import UnsupportedServer
from penstock.wire.scripts import all_scripts

__all__ = ["CHECKS", "sentinels"]

NEARLY_FULL = 0.9
CLOCK_SLACK = 1.0
LAG = 10

Check = Callable[[DoctorServer], Iterator[Finding]]


def told(check: Check) -> Check:
    """Make a check that reads INFO report it when the server refuses INFO."""

    def looked(server: DoctorServer) -> Iterator[Finding]:
        if server.facts.fields:
            yield from check(server)
        else:
            text = "not known: the server does not answer INFO."
            yield Finding(check.__name__, Severity.WARNING, text)

    return looked


@told
def version(server: DoctorServer) -> Iterator[Finding]:
    """Check that the server has all commands that the scripts use."""
    facts = server.facts
    data = {"server": facts.name, "redis_version": ".".join(map(str, facts.version))}
    try:
        facts.check()
    except UnsupportedServer as error:
        yield Finding("version", Severity.BROKEN, f"{error}.", data)
    else:
        needed = ".".join(map(str, OLDEST))
        text = f"{facts.name} can run all scripts (they need Redis {needed} or newer)."
        yield Finding("version", Severity.OK, text, data)


FSYNC = {
    "always": (Severity.OK, "every write is on disk before it is answered."),
    "everysec": (Severity.OK, "a crash of the machine loses up to a second or two."),
    "no": (
        Severity.WARNING,
        "a crash of the machine loses what the operating system had not written yet.",
    ),
}


@told
def persistence(server: DoctorServer) -> Iterator[Finding]:
    """Report what a restart or a crash of the server loses."""
    fields = server.facts.fields
    if fields.get("aof_enabled") == "1":
        yield _append_only(server)
    else:
        yield _snapshots(server)
    if fields.get("rdb_last_bgsave_status", "ok") != "ok":
        text = "the last snapshot failed: the server may refuse writes until one succeeds."
        yield Finding("persistence", Severity.WARNING, text)


def _append_only(server: DoctorServer) -> Finding:
    if server.facts.fields.get("aof_last_write_status", "ok") != "ok":
        text = "the last write to the append-only file failed: new jobs are lost in a restart."
        return Finding("persistence", Severity.BROKEN, text, {"aof": True})
    policy = server.config("appendfsync")
    level, text = FSYNC.get(
        policy or "", (Severity.OK, "CONFIG GET is forbidden, so appendfsync is not known.")
    )
    data = {"aof": True, "appendfsync": policy}
    return Finding("persistence", level, f"append-only file, appendfsync {policy}: {text}", data)


def _snapshots(server: DoctorServer) -> Finding:
    save = server.config("save")
    data = {"aof": False, "save": save}
    if save == "":
        text = "neither append-only file nor snapshots: a restart loses every job."
        return Finding("persistence", Severity.WARNING, text, data)
    ago = time.time() - float(server.facts.fields.get("rdb_last_save_time", 0))
    text = f"snapshots alone, the last one {span(max(ago, 0))} ago: a crash loses later changes."
    return Finding("persistence", Severity.WARNING, text, data)


@told
def memory(server: DoctorServer) -> Iterator[Finding]:
    """Check that the server does not delete keys by itself."""
    fields = server.facts.fields
    limit, used = int(fields.get("maxmemory", 0)), int(fields.get("used_memory", 0))
    policy = fields.get("maxmemory_policy", "")
    data = {"maxmemory": limit, "used_memory": used, "policy": policy}
    bound = f"{size(used)} of {size(limit)}" if limit else f"{size(used)}, no limit"
    if server.facts.evicts:
        text = f"maxmemory-policy {policy}: at maxmemory jobs are deleted; set it to noeviction."
        yield Finding("memory", Severity.BROKEN, text, data)
    elif policy.startswith("volatile-"):
        text = (
            f"maxmemory-policy {policy}: at maxmemory a repeated enqueue may be added twice; set"
            " it to noeviction."
        )
        yield Finding("memory", Severity.WARNING, text, data)
    elif limit and used > NEARLY_FULL * limit:
        text = f"{bound} used: at maxmemory an enqueue is refused, consumers go on."
        yield Finding("memory", Severity.WARNING, text, data)
    else:
        yield Finding("memory", Severity.OK, f"{bound}; nothing is evicted ({policy}).", data)


@told
def evicted(server: DoctorServer) -> Iterator[Finding]:
    """Check that the server has not deleted keys by itself."""
    count = int(server.facts.fields.get("evicted_keys", 0))
    data = {"evicted_keys": count}
    if count:
        text = f"{count} keys were evicted since the server started: jobs may be among them."
        yield Finding("evicted", Severity.BROKEN, text, data)
    else:
        yield Finding("evicted", Severity.OK, "no key was evicted since the server started.", data)


@told
def replicas(server: DoctorServer) -> Iterator[Finding]:
    """Report the replicas, or that this server is one."""
    fields = server.facts.fields
    if fields.get("role", "master") != "master":
        master = f"{fields.get('master_host')}:{fields.get('master_port')}"
        text = f"this server is a replica of {master}: it refuses writes."
        yield Finding("replicas", Severity.BROKEN, text, {"role": fields["role"], "master": master})
        return
    count = int(fields.get("connected_slaves", 0))
    if not count:
        text = "no replica is connected: if this server is lost, its jobs are lost."
        yield Finding("replicas", Severity.OK, text, {"role": "master", "replicas": []})
    if count:
        yield _restarted(server)
    for number in range(count):
        yield _replica(fields.get(f"slave{number}", ""))


def _restarted(server: DoctorServer) -> Finding:
    """Report whether jobs that replicas confirmed survive a restart of the primary."""
    kept = server.config("appendfsync") if server.facts.fields.get("aof_enabled") == "1" else ""
    data = {"role": "master", "appendfsync": kept}
    if kept == "always":
        text = "confirmed copies survive a restart of this primary: its file has every write."
        return Finding("replicas", Severity.OK, text, data)
    lack = "may lack up to 2 s of writes" if kept else "has no append-only file"
    text = (
        f"this primary {lack}: if it restarts as the primary, jobs that replicas confirmed may be "
        "lost. Use durable=Durable(fsynced=True), or let a replica take over before it restarts."
    )
    return Finding("replicas", Severity.OK if kept else Severity.WARNING, text, data)


def _replica(line: str) -> Finding:
    told = dict(pair.split("=", 1) for pair in line.split(",") if "=" in pair)
    name = f"{told.get('ip', '?')}:{told.get('port', '?')}"
    state, lag = told.get("state", "?"), int(told.get("lag", -1))
    data = {"replica": name, "state": state, "lag": lag}
    if state != "online" or lag > LAG:
        text = f"replica {name} is {state}, heard of {lag} s ago: it confirms nothing."
        return Finding("replicas", Severity.WARNING, text, data)
    return Finding("replicas", Severity.OK, f"replica {name} is online, lag {lag} s.", data)


def sentinels(patient: Patient) -> Iterator[Finding]:
    """Check that all Sentinels answer and name the same primary."""
    if patient.primary is None:
        return
    answers = patient.primary.answers()
    told = [one for _, one in answers if isinstance(one, SentinelAnswer)]
    latest = max(told, key=lambda one: one.epoch, default=None)
    for where, one in answers:
        if not isinstance(one, SentinelAnswer):
            text = f"Sentinel {where} does not answer: {one}."
            yield Finding("sentinels", Severity.WARNING, text, {"sentinel": where})
        elif latest is not None and one.address != latest.address:
            named = "{}:{}".format(*one.address)
            text = f"Sentinel {where} names {named}, in epoch {one.epoch} of {latest.epoch}."
            data = {"sentinel": where, "primary": named, "epoch": one.epoch}
            yield Finding("sentinels", Severity.WARNING, text, data)
    if latest is not None:
        named = "{}:{}".format(*latest.address)
        agreeing = sum(one.address == latest.address for one in told)
        text = f"{agreeing} of {len(answers)} Sentinels name {named}, epoch {latest.epoch}."
        data = {"primary": named, "epoch": latest.epoch, "agreeing": agreeing, "of": len(answers)}
        yield Finding("sentinels", Severity.OK, text, data)


def clock(server: DoctorServer) -> Iterator[Finding]:
    """Compare the clock of the server, by which all times go, with ours."""
    before = time.time()
    seconds, micros = server.ask("TIME")
    after = time.time()
    ahead = int(seconds) + int(micros) / 1e6 - (before + after) / 2
    data = {"ahead": round(ahead, 6), "round_trip": round(after - before, 6)}
    if abs(ahead) > CLOCK_SLACK + after - before:
        side = "ahead of" if ahead > 0 else "behind"
        text = f"the server's clock is {span(abs(ahead))} {side} ours: enqueue(at=...) uses its."
        yield Finding("clock", Severity.WARNING, text, data)
    else:
        text = f"the server's clock and ours differ by {abs(ahead) * 1000:.0f} ms."
        yield Finding("clock", Severity.OK, text, data)


def scripts(server: DoctorServer) -> Iterator[Finding]:
    """Count the scripts that are loaded."""
    every = all_scripts()
    loaded = server.ask("SCRIPT", "EXISTS", *(one.sha for one in every))
    names = [one.name for one, is_there in zip(every, loaded, strict=True) if is_there]
    text = f"{len(names)} of {len(every)} scripts are loaded; clients load the others when needed."
    yield Finding("scripts", Severity.OK, text, {"loaded": names, "of": len(every)})


CHECKS: Sequence[tuple[str, Check]] = (
    ("version", version),
    ("persistence", persistence),
    ("memory", memory),
    ("evicted", evicted),
    ("replicas", replicas),
    ("clock", clock),
    ("scripts", scripts),
)
