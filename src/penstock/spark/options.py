"""Options as Spark passes them: text under lower-cased names, checked before anything is done.

A group is a frozen dataclass whose fields are options. The field `batch_size` is the option
`batchSize`. `Read.parse(mapping)` makes a group. It accepts the options of other groups: a view
may be read from and written to. docs/spark.md says what each option does.
"""

from __future__ import annotations

import ast
import difflib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import Field, dataclass, field, fields, replace
from datetime import datetime, timezone
from typing import Any, TypeVar

from penstock.core.values.checks import MAX_DURATION_MS, MAX_LEASE_MS, check_count
from penstock.errors import BadArgument
from penstock.spark.errors import NOT_SHOWN, OptionError
from penstock.wire.keys import DEFAULT_PREFIX, check_prefix, check_queue_name

__all__ = ["SPARK_OPTIONS", "Connection", "Read", "Stream", "Write", "spelled"]

C = TypeVar("C", bound="Connection")
MS_PER_UNIT = {
    "": 1000,
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}
BRIEF_RETRY_MS = 5_000
"""Most time to try one of several nodes that may be left out."""
STATES = ("ready", "scheduled", "parked", "active", "dead")


def option(parse: Callable[[str], object], default: object, *, secret: bool = False) -> Any:
    """Return a field of a group; `parse` raises ValueError with what it accepts."""
    return field(default=default, metadata={"parse": parse}, repr=not secret)


def spelled(name: str) -> str:
    """Return the name of an option as it is documented, from the name of its field."""
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


def text(value: str) -> str:
    """Return the text, which can't be empty."""
    if not value:
        raise ValueError("can't be empty")
    return value


def count(low: int = 1, high: int = 1 << 31) -> Callable[[str], int]:
    """Return a parser of whole numbers within bounds."""

    def parse(value: str) -> int:
        number = int(value) if re.fullmatch(r"\d{1,12}", value) else None
        return check_count("", number, low=low, high=high)

    return parse


def span(high_ms: int = MAX_DURATION_MS, *, low_ms: int = 1) -> Callable[[str], int]:
    """Return a parser of durations, which returns ms.

    It accepts `90`, `90s`, `1.5h`, `2d`, `500ms`; a bare number is seconds, a fraction of a ms one.
    """

    def parse(value: str) -> int:
        found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,6})?)\s*([a-z]*)", value.strip().lower())
        if found is None or found[2] not in MS_PER_UNIT:
            raise ValueError("must be seconds, or a duration such as 500ms, 30s, 5m, 24h, 7d")
        ms = math.ceil(round(float(found[1]) * MS_PER_UNIT[found[2]], 6))
        if not low_ms <= ms <= high_ms:
            raise ValueError(f"must be at least {low_ms} ms and at most {high_ms // 1000} s")
        return ms

    return parse


def choice(*words: str) -> Callable[[str], str]:
    """Return a parser of one of these words, in any case."""

    def parse(value: str) -> str:
        if value.lower() not in words:
            raise ValueError(f"must be one of {', '.join(words)}")
        return value.lower()

    return parse


def flag(value: str) -> bool:
    """Parse `true` or `false`, in any case."""
    return choice("true", "false")(value) == "true"


def listed(*words: str) -> Callable[[str], tuple[str, ...]]:
    """Return a parser of texts, or of these words, with commas between them or as a list."""
    kinds = " of " + ", ".join(words) if words else " texts"

    def parse(value: str) -> tuple[str, ...]:
        texts: Sequence[object] = value.split(",")
        if value.lstrip().startswith(("[", "(")):  # Spark passes on str() of a list or a tuple
            texts = ()
            with suppress(ValueError, SyntaxError):
                texts = ast.literal_eval(value.strip())
        found = tuple(one.strip() for one in texts if isinstance(one, str) and one.strip())
        if not found or len(found) < len(texts) or (words and not set(found).issubset(words)):
            raise ValueError(f"must be one or more{kinds}, separated by commas or as a list")
        return found

    return parse


def moment(value: str) -> int:
    """Parse a time, which is UTC unless it says otherwise; return ms since 1970."""
    try:
        if value.replace(".", "", 1).isdigit():
            found = datetime.fromtimestamp(float(value), timezone.utc)
        else:
            found = datetime.fromisoformat(value.replace("Z", "+00:00"))
        aware = found if found.tzinfo else found.replace(tzinfo=timezone.utc)
        return round(aware.timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        raise ValueError("must be a time such as 2026-01-31T12:00Z or seconds since 1970") from None


def _parsed(one: Field[Any], value: str) -> Any:
    try:
        return one.metadata["parse"](value)
    except ValueError as error:
        reason = error.reason if isinstance(error, BadArgument) else str(error)
        raise OptionError(spelled(one.name), value if one.repr else NOT_SHOWN, reason) from None


def _unknown(name: str) -> OptionError:
    if name.lower() in ("path", "paths"):
        return OptionError("path", None, 'is not used: name the queue by .option("queue", …)')
    if name.lower() == "startingoffsets":
        return OptionError(name, None, "unknown: a stream reads every job that waits in the queue")
    if name.lower() in SPARK_OPTIONS:
        return OptionError(name, None, "can't be used here: only options of the connection can")
    close = difflib.get_close_matches(name.lower(), SPARK_OPTIONS, n=1)
    hint = f"; did you mean {spelled(SPARK_OPTIONS[close[0]].name)!r}?" if close else ""
    return OptionError(name, None, f"unknown{hint}")


@dataclass(frozen=True)
class Connection:
    """Options of the connection. Every other group has them, too."""

    queue: str = option(check_queue_name, "")
    prefix: str = option(check_prefix, DEFAULT_PREFIX)
    require_queue: bool = option(flag, False)
    url: str = option(text, "", secret=True)
    url_env: str = option(text, "")
    nodes: tuple[str, ...] = option(listed(), (), secret=True)
    password_env: str = option(text, "")
    password_file: str = option(text, "")
    retry_for: int = option(span(300_000, low_ms=0), 120_000)

    @classmethod
    def options(cls) -> dict[str, Field[Any]]:
        """Return the fields by the lower-cased names of their options."""
        return {spelled(one.name).lower(): one for one in fields(cls)}

    @classmethod
    def parse(cls: type[C], given: Mapping[str, object], *, strict: bool = False) -> C:
        """Return the options with the given values; names are in any case, None = not given.

        Raises:
            OptionError: an option is unknown, of another group (if `strict`), or can't be used.
        """
        known = cls.options()
        values: dict[str, Any] = {}
        for name, value in given.items():
            one = known.get(name.lower())
            if one is None and (strict or name.lower() not in KNOWN_OPTIONS):
                raise _unknown(name)
            if one is not None and value is not None:
                values[one.name] = _parsed(one, str(value))
        return cls(**values)

    @property
    def leaves_out(self) -> bool:
        """True if one of several nodes is left out while it can't be reached."""
        return True

    def of_node(self: C, url: str) -> C:
        """Return the options for one of several nodes; '' = the only server."""
        if not url:
            return self
        is_brief = self.leaves_out and len(self.nodes) > 1
        retry_for = min(self.retry_for, BRIEF_RETRY_MS) if is_brief else self.retry_for
        return replace(self, nodes=(url,), retry_for=retry_for)

    def each_node(self: C) -> list[C]:
        """Return the options for each node."""
        return [self.of_node(url) for url in self.nodes or ("",)]

    def __post_init__(self) -> None:
        if not self.queue:
            raise OptionError("queue", None, "is required: the queue's name")
        given = {"url": self.url, "urlEnv": self.url_env, "nodes": self.nodes}
        ways = [name for name, value in given.items() if value]
        if not ways:
            raise OptionError("url", None, "is required, or urlEnv or nodes: there is no default")
        if len(ways) > 1:
            raise OptionError(ways[1], None, f"can't be used together with {ways[0]}")
        if len(set(self.nodes)) < len(self.nodes):
            raise OptionError("nodes", NOT_SHOWN, "must not have the same URL twice")
        if self.password_env and self.password_file:
            raise OptionError("passwordFile", None, "can't be used together with passwordEnv")


@dataclass(frozen=True)
class Write(Connection):
    """Options of the sink."""

    operation: str = option(choice("enqueue", "ack", "nack", "redrive", "delete"), "enqueue")
    payload_column: str = option(text, "payload")
    payload_format: str = option(choice("raw", "json"), "raw")
    id_column: str = option(text, "")
    queue_column: str = option(text, "")
    write_id: str = option(text, "")
    dedup_window: int = option(span(), 86_400_000)
    batch_size: int = option(count(1, 1000), 500)
    commit_mode: str = option(choice("direct", "staged"), "")
    stage_ttl: int = option(span(), 86_400_000)
    on_full: str = option(choice("wait", "fail"), "wait")
    full_timeout: int = option(span(86_400_000, low_ms=0), 60_000)
    replicas: int | None = option(count(0, 1000), None)
    replication_timeout: int = option(span(3_600_000), 1_000)
    skip_unreachable: bool = option(flag, False)
    delay: int | None = option(span(low_ms=0), None)
    error: str = option(text, "")

    @property
    def leaves_out(self) -> bool:
        """True with `skipUnreachable`."""
        return self.skip_unreachable

    @property
    def patience(self) -> float:
        """Most seconds to wait for a queue that is full or paused."""
        return 0 if self.on_full == "fail" else self.full_timeout / 1000

    def check_repeats(self, has_ids: bool, named: bool) -> None:
        """Check that a repeat of a direct write adds no row twice.

        A write is repeated under its name: `writeId`, or query and batch. With another number of
        partitions, equal rows are then in other places and in another order.
        """
        if self.commit_mode == "direct" and named and not has_ids:
            reason = "a repeat may add rows without ids again: set idColumn, or commitMode=staged"
            raise OptionError("commitMode", "direct", reason)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.operation != "nack" and self.delay is not None:
            reason = "is for operation=nack; to delay new jobs, use a column delay or ready_at"
            raise OptionError("delay", None, reason)
        if self.operation != "nack" and self.error:
            raise OptionError("error", None, "is for operation=nack")
        if self.operation not in ("enqueue", "ack") and self.replicas is not None:
            raise OptionError("replicas", str(self.replicas), "is for operation=enqueue or ack")
        if self.commit_mode == "staged" and self.queue_column:
            reason = "is not for staged writes, the default without ids: set idColumn (or "
            reason += "commitMode=direct, if a repeat may add rows again)"
            raise OptionError("queueColumn", self.queue_column, reason)
        if self.commit_mode == "staged" and self.operation != "enqueue":
            raise OptionError("commitMode", "staged", "is for operation=enqueue")


@dataclass(frozen=True)
class Source(Connection):
    """Options of both sources."""

    num_partitions: int | None = option(count(1, 10_000), None)
    fetch_size: int = option(count(1, 1000), 1000)


@dataclass(frozen=True)
class Read(Source):
    """Options of the batch source, which reads a snapshot and takes nothing."""

    states: tuple[str, ...] = option(listed(*STATES), STATES)
    id_prefix: str = option(text, "")
    enqueued_after: int | None = option(moment, None)
    enqueued_before: int | None = option(moment, None)
    skip_unreachable: bool = option(flag, False)

    @property
    def leaves_out(self) -> bool:
        """True with `skipUnreachable`."""
        return self.skip_unreachable


@dataclass(frozen=True)
class Stream(Source):
    """Options of the streaming source, which leases jobs."""

    max_jobs_per_trigger: int = option(count(1, 10_000_000), 10_000)
    max_bytes_per_trigger: int | None = option(count(1, 1 << 40), None)
    min_jobs_per_trigger: int = option(count(1, 10_000_000), 1)
    max_trigger_delay: int = option(span(), 900_000)
    lease_duration: int = option(span(MAX_LEASE_MS, low_ms=100), 60_000)
    stop_lease: int = option(span(MAX_LEASE_MS, low_ms=100), 3_600_000)
    lease_policy: str = option(choice("expire", "sticky"), "expire")
    fail_on_lost_batch: bool = option(flag, True)

    @property
    def leaves_out(self) -> bool:
        """False: a node is left out by its `Lanes`, which go on trying it."""
        return False

    @property
    def lease_ms(self) -> int:
        """Length of the leases: with `leasePolicy=sticky` the maximum."""
        return MAX_LEASE_MS if self.lease_policy == "sticky" else self.lease_duration


SPARK_OPTIONS = {**Write.options(), **Read.options(), **Stream.options()}
"""Every option of every group, by its lower-cased name."""
KNOWN_OPTIONS = {*SPARK_OPTIONS, "checkpointlocation", "queryname", "outputmode"}
"""Options of other groups, and those that Spark adds itself."""
