"""Schedules: specs, their ticks, and entries as they are stored (protocol/schedules.md)."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, replace
from datetime import datetime, timezone, tzinfo
from functools import cache
from typing import Any, Literal, get_args
from urllib.parse import unquote

from penstock.core.enqueuing.new_jobs import NewJob
from penstock.core.enqueuing.options import NOT_STORED
from penstock.core.enqueuing.prepared import prepared
from penstock.core.jobs.record import RECORD, SCHEDULED_FOR, encode_body
from penstock.core.jobs.views import JobView
from penstock.core.values import stable
from penstock.core.values.checks import (
    MAX_DURATION_MS,
    Missed,
    check_choice,
    check_flag,
    check_party,
    duration_ms,
    seconds_in,
)
from penstock.core.values.codec import Codec
from penstock.core.values.ids import AT_LEAST_ONCE_FOREVER
from penstock.errors import BadArgument, ConfigurationError

__all__ = [
    "NewSchedule",
    "ScheduleView",
    "Spec",
    "StoredSchedule",
    "changed_spec",
    "check_spec",
    "new_schedule",
    "read_entry",
    "view",
]

MISSED_MS = 60_000
"""A tick that is later than this is missed. Also the largest step back of the server's clock after
which a tick is not brought forward: it might run twice."""
MAX_VALUE = 65_536
ANY_TIME = datetime(2025, 1, 1)  # noqa: DTZ001  # the zone is that of the schedule
"""Time from which the next tick of a new cron expression is looked for: it must have one."""
UNITS = {"d": 86_400, "h": 3600, "m": 60, "s": 1}
NOT_OF_SCHEDULES = (*NOT_STORED, "delay", "key")
"""Options of an enqueue that the job of a schedule can't have."""
SPEC_FIELDS = {"cron": str, "every": int, "tz": str, "overlap": bool, "missed": str, "ttl": str}
"""The fields of a stored spec."""
FRONT = rb"(\S+) (\d+) (\d+) (\d+) (\d+) ([0-9a-f ]*[0-9a-f])(?: @(\d+) (\S+))?"


@dataclass(frozen=True, slots=True)
class Spec:
    """When a schedule runs.

    Attributes:
        cron: a cron expression, or None.
        every_ms: the ms between two ticks, counted from 1970; None = it has a cron expression.
        tz: the zone of the cron expression.
        overlap: whether a job is added while the last one has not ended.
        missed: how ticks are made up for that are more than a minute late.
        ttl_code: the last four digits of the ids of its jobs.
    """

    cron: str | None = None
    every_ms: int | None = None
    tz: str = "UTC"
    overlap: bool = False
    missed: Missed = "one"
    ttl_code: str = AT_LEAST_ONCE_FOREVER

    def after(self, ms: int) -> int:
        """Return the time of the first tick later than `ms`.

        Raises:
            ConfigurationError: a package or a zone is missing on this machine, or this version
                can't read the cron expression.
        """
        if self.every_ms is not None:
            return (ms // self.every_ms + 1) * self.every_ms
        zone, module = zone_of(self.tz), cronsim()
        start = datetime.fromtimestamp(ms // 1000, timezone.utc).astimezone(zone)
        try:
            times = (round(at.timestamp()) * 1000 for at in module.CronSim(self.cron, start))
            # In the second of two equal hours cronsim first returns a time in the first one.
            following: int = next(at for at in times if at > ms)
        except (module.CronSimError, StopIteration) as error:
            reason = f"cron expression {self.cron!r}: {_cron_fault(error)}"
            raise ConfigurationError(reason) from error
        return following

    @property
    def text(self) -> str:
        """The spec for people."""
        if self.every_ms is not None:
            return f"every {span_text(self.every_ms)}"
        return f"{self.cron} {self.tz}"

    def encoded(self) -> bytes:
        """Return the JSON that is stored: fields with their defaults are left out."""
        fields = {
            "cron": self.cron,
            "every": self.every_ms,
            "missed": self.missed,
            "overlap": self.overlap,
            "ttl": self.ttl_code,
            "tz": None if self.cron is None else self.tz,
        }
        usual = (None, "one", False, AT_LEAST_ONCE_FOREVER)
        fields = {name: value for name, value in fields.items() if value not in usual}
        return json.dumps(fields, separators=(",", ":"), sort_keys=True).encode()

    @classmethod
    def decoded(cls, raw: bytes) -> Spec:
        """Read the JSON of a stored spec.

        Raises:
            ValueError: it is malformed.
        """
        fields = json.loads(raw)
        if not isinstance(fields, dict) or not ("cron" in fields or fields.get("every", 0)):
            raise ValueError(f"a schedule with neither cron nor every: {raw[:200]!r}")
        spec = cls(
            fields.get("cron"),
            fields.get("every"),
            fields.get("tz", "UTC"),
            fields.get("overlap", False),
            fields.get("missed", "one"),
            fields.get("ttl", AT_LEAST_ONCE_FOREVER),
        )
        for name, kind in SPEC_FIELDS.items():
            if name in fields and type(fields[name]) is not kind:
                raise ValueError(f"{name} of a schedule is no {kind.__name__}: {raw[:200]!r}")
        if spec.every_ms is not None and not 0 < spec.every_ms <= MAX_DURATION_MS:
            raise ValueError(f"every of a schedule is out of bounds: {raw[:200]!r}")
        if spec.missed not in get_args(Missed):
            raise ValueError(f"missed of a schedule is unknown: {raw[:200]!r}")
        return spec


@dataclass(frozen=True, slots=True)
class NewSchedule:
    """A schedule as a program describes it.

    Attributes:
        name: its name.
        spec: when it runs.
        record: the record of its jobs, without stable id and without the time of a tick.
        app: the app whose code declares it; empty = none.
    """

    name: str
    spec: Spec
    record: bytes
    app: str = ""

    @property
    def value(self) -> bytes:
        """The value that is stored."""
        return self.spec.encoded() + b"\n" + self.record

    @property
    def value_hash(self) -> str:
        """The hash of the value."""
        return hashlib.sha1(self.value, usedforsecurity=False).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class StoredSchedule:
    """A schedule as it is stored.

    Attributes:
        name: its name.
        tick: the time of the next tick, ms; None = it is paused or orphaned.
        last_run: the number of its last job; None = it has had none.
        last_tick: the time of the last tick, ms; 0 = it has had none.
        runs, skipped: the numbers of its jobs and of its skipped ticks.
        paused: whether a client has paused it.
        is_orphaned: whether it waits, as no worker of its app declares it.
        value_hash: that of its value.
        spec: when it runs.
        record: the record of its jobs; empty = it was not read.
        replaced_hashes: those of the last values that were replaced, the latest first.
        app: the app whose code declares it; empty = none.
        declared: when a worker has last declared it, ms; 0 = never.
    """

    name: str
    tick: int | None
    last_run: bytes | None
    last_tick: int
    runs: int
    skipped: int
    paused: bool
    value_hash: str
    spec: Spec
    record: bytes
    replaced_hashes: tuple[str, ...] = ()
    app: str = ""
    declared: int = 0
    is_orphaned: bool = False

    def record_at(self, ms: int) -> bytes:
        """Return the record of the job of a tick."""
        head, _, body = self.record.partition(b"\n")
        head = b"%b;h.%b=%d" % (head, SCHEDULED_FOR.encode(), ms)
        return RECORD % (head, stable.next_id(), body)

    def what(self, now_ms: int) -> Literal["run", "alone", "skip"]:
        """Return what to do about its tick at this time: see the script `tick`."""
        assert self.tick is not None
        if self.spec.missed == "skip" and now_ms - self.tick > MISSED_MS:
            return "skip"
        return "run" if self.spec.overlap else "alone"

    def first_tick(self, now_ms: int) -> int:
        """Return the first tick after this time that has not run yet.

        The last tick lies ahead after a step back of the server's clock. If it lies far ahead, the
        clock was wrong for a while: then it does not count.
        """
        has_run = self.last_tick if self.last_tick <= now_ms + MISSED_MS else 0
        return self.spec.after(max(now_ms, has_run))

    def earlier(self, now_ms: int) -> int | None:
        """Return the tick that should come before the stored one; None = the stored one is right.

        The stored one is too late if the server's clock was wrong, and far ahead, when it was set.
        """
        if self.tick is None or self.tick <= self.spec.after(now_ms + MISSED_MS):
            return None
        return self.first_tick(now_ms)


@dataclass(frozen=True, slots=True)
class ScheduleView:
    """A schedule of a queue.

    Attributes:
        name: its name.
        spec: when it runs, for people: the cron expression and its zone, or "every 15m".
        cron, tz: the cron expression and its zone; None = it has an interval.
        every: the seconds between two ticks; None = it has a cron expression.
        overlap, missed: as of `queue.schedules.add`.
        next: the next tick, in seconds since 1970; None = it is paused or orphaned.
        last: the last tick, in seconds since 1970; None = it has had none.
        last_run: the id of its last job; None = it has had none.
        last_state: the state of that job; None = it has ended.
        runs: the number of jobs that it has added.
        skipped: the number of ticks that it has skipped: the last job had not ended, or they were
            missed.
        paused: whether it is paused.
        app: the app whose code declares it; None = none: `schedules.add` has created it.
        orphaned: whether its ticks wait, as no worker that runs has declared it for a minute, and
            one of its app does without it: its handler was removed.
        last_failures: how often that job has failed.
        last_error: its last error, or None.
    """

    name: str
    spec: str
    cron: str | None
    tz: str | None
    every: float | None
    overlap: bool
    missed: Missed
    next: float | None
    last: float | None
    last_run: str | None
    last_state: str | None
    runs: int
    skipped: int
    paused: bool
    app: str | None = None
    orphaned: bool = False
    last_failures: int = 0
    last_error: str | None = None


def read_entry(name: bytes, tick: bytes, raw: bytes) -> StoredSchedule:
    """Read an entry of a reply.

    Raises:
        ValueError: it is malformed, or of a newer protocol.
    """
    front, _, value = raw.partition(b"\n")
    spec, _, record = value.partition(b"\n")
    match = re.fullmatch(FRONT, front)
    if match is None:
        raise ValueError(f"not an entry of a schedule: {front[:200]!r}")
    last_run, last_tick, runs, skipped, paused, hashes, declared, app = match.groups()
    value_hash, *replaced_hashes = hashes.decode().split()
    return StoredSchedule(
        name.decode("utf-8", "replace"),
        int(tick) if tick else None,
        None if last_run == b"-" else last_run,
        int(last_tick),
        int(runs),
        int(skipped),
        paused == b"1",
        value_hash,
        Spec.decoded(spec),
        record,
        tuple(replaced_hashes),
        unquote((app or b"").decode()),
        int(declared or 0),
        is_orphaned=len(paused) > 1,
    )


# -- checks ------------------------------------------------------------------------------------


def new_schedule(
    name: object, job: Any, spec: Spec, codec: Codec | None, app: str = ""
) -> NewSchedule:
    """Return a schedule of these arguments.

    Args:
        name: its name.
        job: a `NewJob`, or a body.
        spec: when it runs.
        codec: of bodies.
        app: the app whose code declares it.

    Raises:
        BadArgument: the name or the job can't be used.
    """
    checked = check_party("name", name)
    options, body = prepared(codec), job
    if isinstance(job, NewJob):
        options, body = job.options.prepared(codec), job.body
        job.options.refuse(
            NOT_OF_SCHEDULES, "the job of a schedule can't have it: omit it in options()"
        )
    raw, is_coded = encode_body(body, codec)
    record = b"%b\n%b" % (options.coded_head if is_coded else options.head, raw)
    if len(record) > MAX_VALUE:
        reason = f"the job of a schedule has at most {MAX_VALUE} bytes: store large data elsewhere"
        raise BadArgument("job", f"{len(record)} bytes", reason)
    return NewSchedule(checked, replace(spec, ttl_code=options.ttl_code), record, app)


def check_spec(
    cron: object = None,
    every: Any = None,
    tz: object = None,
    *,
    overlap: object = False,
    missed: Any = "one",
) -> Spec:
    """Return the spec of these arguments of `queue.schedules.add`.

    Raises:
        BadArgument: one of them can't be used.
    """
    check_flag("overlap", overlap)
    chosen: Missed = check_choice("missed", missed, Missed)
    if (cron is None) == (every is None):
        reason = 'pass either cron="0 3 * * *" or every="15m"'
        raise BadArgument("cron", cron, reason)
    if every is not None:
        if tz is not None:
            reason = "every= counts from 1970 in UTC: leave tz out, or use cron="
            raise BadArgument("tz", tz, reason)
        return Spec(None, _every_ms(every), overlap=bool(overlap), missed=chosen)
    zone = "UTC" if tz is None else tz
    text = _checked_cron(cron, zone)
    assert isinstance(zone, str)
    return Spec(text, None, zone, bool(overlap), chosen)


def changed_spec(
    spec: Spec, *, cron: object, every: Any, tz: object, overlap: object, missed: Any
) -> Spec:
    """Return a spec with other values where they are given; see `queue.schedules.change`.

    Raises:
        BadArgument: one of them can't be used.
    """
    if cron is None and every is None:
        cron, every = spec.cron, every_of(spec)
    if tz is None and every is None and spec.cron is not None:
        tz = spec.tz
    changed = check_spec(
        cron,
        every,
        tz,
        overlap=spec.overlap if overlap is None else overlap,
        missed=spec.missed if missed is None else missed,
    )
    return replace(changed, ttl_code=spec.ttl_code)


def _every_ms(every: Any) -> int:
    if isinstance(every, str):
        seconds = seconds_in(every)
        if seconds is None:
            reason = 'must be seconds, a timedelta, or a text such as "15m", "1h30m" or "2d"'
            raise BadArgument("every", every, reason)
        every = seconds
    ms = duration_ms("every", every)
    if ms < 1000:
        raise BadArgument("every", every, "must be at least one second")
    return ms


def _checked_cron(cron: object, tz: object) -> str:
    if not isinstance(cron, str):
        reason = 'must be a cron expression such as "0 3 * * *": minute hour day month weekday'
        raise BadArgument("cron", cron, reason)
    try:
        module = cronsim()
    except ConfigurationError as error:
        raise BadArgument("cron", cron, str(error)) from error
    try:
        zone = zone_of(tz)
    except ConfigurationError as error:
        raise BadArgument("tz", tz, str(error)) from error
    text = " ".join(cron.split())
    try:
        next(module.CronSim(text, ANY_TIME.replace(tzinfo=zone)))
    except (module.CronSimError, StopIteration) as error:
        reason = f"{_cron_fault(error)}: must be minute hour day month weekday, such as '0 3 * * *'"
        raise BadArgument("cron", cron, reason) from error
    return text


def _cron_fault(error: Exception) -> str:
    return "it never comes" if isinstance(error, StopIteration) else str(error)


@cache
def cronsim() -> Any:
    """Return the module cronsim.

    Raises:
        ConfigurationError: it is not installed.
    """
    try:
        import cronsim  # an extra
    except ImportError as error:
        text = "cron= needs the package cronsim: pip install 'penstock[cron]'"
        raise ConfigurationError(text) from error
    return cronsim


@cache
def zone_of(name: object) -> tzinfo:
    """Return a time zone.

    Raises:
        ConfigurationError: this machine does not know it.
    """
    from zoneinfo import ZoneInfo  # few programs need it

    if name == "UTC":
        return timezone.utc
    try:
        return ZoneInfo(str(name) if isinstance(name, str) else "")
    except (LookupError, OSError, ValueError) as error:
        text = "no such time zone: use a name such as Europe/Berlin. If this machine has no zones"
        raise ConfigurationError(f"{text}: pip install 'penstock[cron]'") from error


def every_of(spec: Spec) -> float | None:
    """Return the seconds between two ticks; None = the spec is a cron expression."""
    return None if spec.every_ms is None else spec.every_ms / 1000


def span_text(ms: int) -> str:
    """Return an interval as `every=` takes it: 1h30m."""
    left, rest = divmod(ms, 1000)
    parts = list[str]()
    for unit, seconds in UNITS.items():
        count, left = divmod(left, seconds)
        if count:
            parts.append(f"{count}{unit}")
    return f"{ms / 1000:g}s" if rest or not parts else "".join(parts)


def view(entry: StoredSchedule, last_run: str | None, job: JobView | None) -> ScheduleView:
    """Return the schedule of an entry, as users see it; `job`: the last one, if it is there."""
    spec = entry.spec
    return ScheduleView(
        entry.name,
        spec.text,
        spec.cron,
        spec.tz if spec.cron is not None else None,
        every_of(spec),
        spec.overlap,
        spec.missed,
        None if entry.tick is None else entry.tick / 1000,
        entry.last_tick / 1000 or None,
        last_run,
        None if job is None else job.state,
        entry.runs,
        entry.skipped,
        entry.paused,
        entry.app or None,
        entry.is_orphaned,
        0 if job is None else job.nacks + job.crashes,
        job.error or None if job is not None else None,
    )
