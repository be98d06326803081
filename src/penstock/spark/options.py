"""Options as Spark hands them over: text under lower-cased names, checked before anything is done.

A group is a frozen dataclass whose fields are options; `Group.parse(mapping)` makes one. Names of
other groups are let pass: one view may be read from and written to.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, NamedTuple, TypeVar

from penstock.core.options import MAX_DURATION_MS, MAX_LEASE_MS
from penstock.errors import BadArgument
from penstock.spark.errors import HIDDEN, OptionError
from penstock.wire.keys import DEFAULT_PREFIX, check_prefix, check_queue_name

__all__ = ["Connection", "Option", "Read", "Stream", "Write", "help_table"]

G = TypeVar("G", bound="Group")
SPARKS = frozenset({"checkpointlocation", "queryname", "outputmode"})
"""What Spark adds of its own."""
SPANS = {"": 1000, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
SIZES = {"": 1, "b": 1, "k": 1 << 10, "kb": 1 << 10, "m": 1 << 20, "mb": 1 << 20}
STATES = ("ready", "scheduled", "active", "dead")
OPERATIONS = ("enqueue", "ack", "nack", "redrive", "delete")


class Option(NamedTuple):
    """One option.

    Attributes:
        name: as it is documented; compared without case.
        parse: text to value; raises ValueError with what would have been accepted.
        default: the value when it is not given.
        help: one line.
        secret: whether its value must not be shown.
    """

    name: str
    parse: Callable[[str], Any]
    default: Any
    help: str
    secret: bool = False


def option(
    name: str, parse: Callable[[str], Any], default: Any, text: str, *, secret: bool = False
) -> Any:
    """A field of a group."""
    made = Option(name, parse, default, text, secret)
    return field(default=default, metadata={"option": made}, repr=not secret)


# -- kinds of values -----------------------------------------------------------------------


def text(value: str) -> str:
    """Any text but none."""
    if not value:
        raise ValueError("can't be empty")
    return value


def flag(value: str) -> bool:
    """Yes or no."""
    if value.lower() not in ("true", "false"):
        raise ValueError("must be true or false")
    return value.lower() == "true"


def count(low: int = 1, high: int = 1 << 31) -> Callable[[str], int]:
    """A whole number within bounds."""

    def parse(value: str) -> int:
        if re.fullmatch(r"\d{1,12}", value) is None or not low <= int(value) <= high:
            raise ValueError(f"must be a whole number from {low} to {high}")
        return int(value)

    return parse


def span(
    high_ms: int = MAX_DURATION_MS, *, low_ms: int = 1, zero: bool = False
) -> Callable[[str], int]:
    """A duration in ms: `90`, `90s`, `1.5h`, `2d`, `500ms`; a bare number is seconds."""

    def parse(value: str) -> int:
        found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,6})?)\s*([a-z]*)", value.strip().lower())
        if found is None or found[2] not in SPANS:
            raise ValueError("must be seconds, or a duration such as 500ms, 30s, 5m, 24h, 7d")
        ms = math.ceil(round(float(found[1]) * SPANS[found[2]], 6))
        if ms > high_ms or (ms < low_ms and not zero):
            least = "above 0" if low_ms == 1 else f"at least {low_ms} ms"
            raise ValueError(f"{least} and at most {high_ms // 1000} s")
        return ms

    return parse


def size(low: int, high: int) -> Callable[[str], int]:
    """Bytes: `65536`, `64k`, `1m`."""

    def parse(value: str) -> int:
        found = re.fullmatch(r"(\d{1,12})\s*([a-z]*)", value.strip().lower())
        if found is None or found[2] not in SIZES:
            raise ValueError("must be bytes, or a size such as 64k, 1m")
        number = int(found[1]) * SIZES[found[2]]
        if not low <= number <= high:
            raise ValueError(f"from {low} to {high} bytes")
        return number

    return parse


def choice(*words: str) -> Callable[[str], str]:
    """One of some words."""

    def parse(value: str) -> str:
        if value.lower() not in words:
            raise ValueError(f"one of {', '.join(words)}")
        return value.lower()

    return parse


def listed(value: str) -> tuple[str, ...]:
    """Texts with commas between them, or a JSON array of texts."""
    parts: Any = value.split(",")
    if value.lstrip().startswith("["):
        try:
            parts = json.loads(value)
        except ValueError:
            raise ValueError(
                "must be texts with commas between them, or a JSON array of texts"
            ) from None
    found = tuple(part.strip() for part in parts if isinstance(part, str) and part.strip())
    if not found or len(found) < len(parts):
        raise ValueError("must be one or more, with commas between them")
    return found


def states(value: str) -> tuple[str, ...]:
    """Names of states."""
    found = tuple(dict.fromkeys(listed(value)))
    if any(one not in STATES for one in found):
        raise ValueError(f"one or more of {', '.join(STATES)}, with commas between them")
    return found


def checked(check: Callable[[Any], Any]) -> Callable[[str], Any]:
    """What the library itself checks."""

    def parse(value: str) -> Any:
        try:
            return check(value)
        except BadArgument as error:
            raise ValueError(error.reason) from None

    return parse


# -- groups --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Group:
    """Options that are parsed together."""

    @classmethod
    def options(cls) -> dict[str, tuple[str, Option]]:
        """Lower-cased name -> field and option."""
        return {
            one.metadata["option"].name.lower(): (one.name, one.metadata["option"])
            for one in fields(cls)
        }

    @classmethod
    def parse(cls: type[G], given: Mapping[str, str]) -> G:
        """The group with what was given, defaults elsewhere.

        Raises:
            OptionError: an option is unknown, or its value can't be used.
        """
        known = cls.options()
        values: dict[str, Any] = {}
        for name, value in given.items():
            lowered = name.lower()
            if lowered in known:
                place, one = known[lowered]
                values[place] = _parsed(one, value)
            elif lowered not in everything() and lowered not in SPARKS:
                raise _unknown(name)
        made = cls(**values)
        made.check()
        return made

    def check(self) -> None:
        """What concerns several options; overridden.

        Raises:
            OptionError: they do not go together.
        """


def _parsed(one: Option, value: str) -> Any:
    try:
        return one.parse(str(value))
    except ValueError as error:
        raise OptionError(one.name, HIDDEN if one.secret else value, str(error)) from None


def _unknown(name: str) -> OptionError:
    if name.lower() in ("path", "paths"):
        return OptionError("queue", None, 'must be empty: name the queue by .option("queue", …)')
    import difflib

    names = {lowered: one.name for lowered, (_, one) in everything().items()}
    close = difflib.get_close_matches(name.lower(), names, n=1)
    hint = f"; did you mean {names[close[0]]!r}?" if close else ""
    return OptionError(name, None, f"unknown{hint}")


@dataclass(frozen=True)
class Connection(Group):
    """Where the queue is. Every group has these."""

    queue: str = option("queue", checked(check_queue_name), "", "the queue's name; required")
    prefix: str = option("prefix", checked(check_prefix), DEFAULT_PREFIX, "prefix of all keys")
    require_queue: bool = option(
        "requireQueue", flag, False, "true: a queue that does not exist is an error"
    )
    url: str = option("url", text, "", "URL of the server; prefer `urlEnv`", secret=True)
    url_env: str = option("urlEnv", text, "", "environment variable that holds the URL")
    nodes: tuple[str, ...] = option(
        "nodes", listed, (), "URLs of several nodes instead", secret=True
    )
    username: str = option("username", text, "", "replaces the one in the URL")
    password_env: str = option("passwordEnv", text, "", "environment variable with the password")
    password_file: str = option("passwordFile", text, "", "file with the password")
    ssl_ca_file: str = option("sslCaFile", text, "", "certificates to trust")
    ssl_cert_file: str = option("sslCertFile", text, "", "the client's certificate")
    ssl_key_file: str = option("sslKeyFile", text, "", "its key")
    connect_timeout: int = option("connectTimeout", span(600_000), 10_000, "for connecting")
    socket_timeout: int = option("socketTimeout", span(600_000), 10_000, "for waiting for a reply")
    retry_for: int = option(
        "retryFor", span(300_000, zero=True), 5_000, "for repeating a call that failed"
    )

    def check(self) -> None:
        """One way to the server, and a queue."""
        if not self.queue:
            raise OptionError("queue", None, "is required: the queue's name")
        ways = [
            name
            for name, value in (("url", self.url), ("urlEnv", self.url_env), ("nodes", self.nodes))
            if value
        ]
        if not ways:
            raise OptionError(
                "url", None, "is required, or urlEnv or nodes: there is no default server"
            )
        if len(ways) > 1:
            raise OptionError(ways[1], None, f"not together with {ways[0]}")
        if self.password_env and self.password_file:
            raise OptionError("passwordFile", None, "not together with passwordEnv")


@dataclass(frozen=True)
class Write(Connection):
    """The sink's."""

    operation: str = option("operation", choice(*OPERATIONS), "enqueue", "what to do with rows")
    payload_column: str = option("payloadColumn", text, "payload", "column of the body")
    payload_format: str = option(
        "payloadFormat",
        choice("raw", "json"),
        "raw",
        "raw: the payload column as it is; json: an object of all columns without another meaning",
    )
    id_column: str = option("idColumn", text, "", "column whose value is the row's dedup id")
    id_from: str = option(
        "idFrom",
        choice("column", "content"),
        "",
        "column: rows must have an id column; content: rows get no ids, even with a column id",
    )
    queue_column: str = option("queueColumn", text, "", "column that names each row's queue")
    write_id: str = option(
        "writeId", text, "", "name of the load: repeating it under the same name adds nothing"
    )
    dedup_window: int = option(
        "dedupWindow", span(), 86_400_000, "for which an id stays taken after its job is done"
    )
    batch_size: int = option("batchSize", count(1, 1000), 500, "rows per script call")
    batch_bytes: int = option("batchBytes", size(1024, 1 << 20), 1 << 20, "bytes per script call")
    commit_mode: str = option(
        "commitMode",
        choice("direct", "staged"),
        "",
        "direct: rows are jobs as they come; staged: when the driver commits, all or none. Not "
        "given: direct for rows with ids, staged for others",
    )
    stage_ttl: int = option(
        "stageTtl", span(), 86_400_000, "for which staged rows are kept without a call of the write"
    )
    on_full: str = option(
        "onFull", choice("wait", "fail"), "wait", "what to do when the queue is full"
    )
    full_timeout: int = option(
        "fullTimeout", span(86_400_000), 60_000, "for which the call then waits"
    )
    replicas: int | None = option(
        "replicas", count(0, 1000), None, "replicas that must confirm each batch"
    )
    replication_timeout: int = option(
        "replicationTimeout", span(3_600_000), 1_000, "for which the call then waits"
    )
    skip_unreachable: bool = option(
        "skipUnreachable",
        flag,
        False,
        "whether rows go to other nodes while one can't be reached, where what is repeated may "
        "be added again",
    )
    delay: int | None = option(
        "delay",
        span(zero=True),
        None,
        "of a nack: time until the next attempt; default: the job's policy",
    )
    error: str = option("error", text, "", "of a nack: text to keep with the job")

    def check_repeats(self, has_ids: bool, named: bool) -> None:
        """See that a repeat of rows that were added as they came adds nothing twice.

        Only ids tell that: where equal rows are, and which of them is which, is another thing when
        the number of partitions is.

        Args:
            has_ids: whether rows have ids.
            named: whether the write can come again under its name: `writeId`, or query and batch.

        Raises:
            OptionError: it would add rows twice.
        """
        if self.commit_mode == "direct" and named and not has_ids:
            raise OptionError(
                "commitMode",
                "direct",
                "rows without ids would be added again by a repeat with another number of "
                "partitions: name a column of ids (idColumn), or use commitMode=staged",
            )

    def with_mode(self, has_ids: bool) -> Write:
        """The same with a commit mode: unless one is given, rows without ids are staged.

        Raises:
            OptionError: they can't be staged.
        """
        if self.commit_mode or self.operation != "enqueue":
            return self
        if not has_ids and self.queue_column:
            raise OptionError(
                "queueColumn",
                self.queue_column,
                "rows without ids are staged, and what is all or none has to be one queue: name a "
                "column of ids (idColumn), or use commitMode=direct, where a repeated write adds "
                "all rows again",
            )
        return replace(self, commit_mode="direct" if has_ids else "staged")

    def check(self) -> None:
        """What goes together."""
        super().check()
        if self.id_from == "content" and self.id_column:
            raise OptionError("idFrom", "content", "not together with idColumn")
        if self.payload_format == "json" and self.payload_column != "payload":
            raise OptionError(
                "payloadColumn", self.payload_column, "not with payloadFormat=json: it has them all"
            )
        if self.operation != "nack" and (self.delay is not None or self.error):
            name = "error" if self.delay is None else "delay"
            reason = "is for operation=nack"
            if name == "delay" and self.operation == "enqueue":
                reason += "; what is enqueued waits by a column delay or ready_at"
            raise OptionError(name, None, reason)
        if self.commit_mode == "staged":
            if self.queue_column:
                raise OptionError(
                    "queueColumn",
                    self.queue_column,
                    "not with commitMode=staged: what is all or none has to be one queue",
                )
            if self.operation != "enqueue":
                raise OptionError("commitMode", "staged", f"not with operation={self.operation}")


@dataclass(frozen=True)
class Read(Connection):
    """The batch source's: a snapshot, nothing is taken."""

    states: tuple[str, ...] = option("states", states, STATES, "only jobs in one of these states")
    id_prefix: str = option("idPrefix", text, "", "only jobs whose id begins with this")
    enqueued_after: str = option(
        "enqueuedAfter", text, "", "only jobs enqueued at this time or later"
    )
    enqueued_before: str = option("enqueuedBefore", text, "", "only jobs enqueued before this time")
    num_partitions: int | None = option("numPartitions", count(1, 10_000), None, "Spark partitions")
    fetch_size: int = option("fetchSize", count(1, 1000), 1000, "jobs per script call")
    skip_unreachable: bool = option(
        "skipUnreachable",
        flag,
        False,
        "true: leave out jobs of nodes that can't be reached, instead of failing",
    )
    push_filters: bool = option(
        "pushFilters", flag, False, "true: apply Spark's filters while reading"
    )


@dataclass(frozen=True)
class Stream(Connection):
    """The streaming source's: jobs are leased."""

    max_jobs_per_trigger: int = option(
        "maxJobsPerTrigger", count(1, 10_000_000), 10_000, "most jobs in a micro-batch"
    )
    num_partitions: int | None = option("numPartitions", count(1, 10_000), None, "Spark partitions")
    fetch_size: int = option("fetchSize", count(1, 1000), 1000, "jobs per script call")
    lease_duration: int = option(
        "leaseDuration",
        span(MAX_LEASE_MS, low_ms=100),
        60_000,
        "of the leases, renewed while a batch runs",
    )
    claim_policy: str = option(
        "claimPolicy",
        choice("expire", "sticky"),
        "expire",
        "what happens to the jobs of a query that stops",
    )
    fail_on_lost_claim: bool = option(
        "failOnLostClaim", flag, True, "true: a batch that the server no longer knows is an error"
    )


@cache
def everything() -> dict[str, tuple[str, Option]]:
    """Every option of every group, by its lower-cased name."""
    found: dict[str, tuple[str, Option]] = {}
    for group in (Stream, Read, Write, Connection):
        found.update(group.options())
    return found


def help_table(group: type[Group]) -> list[tuple[str, Any, str]]:
    """Name, default and help of a group's own options, for the manual and its test."""
    base = set() if group is Connection else set(Connection.options())
    return [
        (one.name, one.default, one.help)
        for lowered, (_, one) in group.options().items()
        if lowered not in base
    ]
