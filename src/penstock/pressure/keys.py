"""Names of the keys of a pressure queue (protocol/pressure.md, The keys of pressure)."""

from __future__ import annotations

from typing import Literal, TypeAlias

from penstock.errors import BadArgument
from penstock.wire.scripts import Script

__all__ = ["DEFAULT_PREFIX", "PressureKeys", "Role", "check_names", "check_role"]

DEFAULT_PREFIX = "__pressure__"
SUFFIXES = {
    "bound": "bound",
    "producer": "producer",
    "consumer": "consumer",
    "producer_free": "producer_free",
    "consumer_free": "consumer_free",
    "not_full": "not_full",
    "closed": "closed",
    "produced_messages": "stats:produced_messages",
    "produced_bytes": "stats:produced_bytes",
    "consumed_messages": "stats:consumed_messages",
    "consumed_bytes": "stats:consumed_bytes",
    # The Go client counts under names of its own. They are removed with the queue, and not read.
    "stats_produced_messages": "stats_produced_messages",
    "stats_produced_bytes": "stats_produced_bytes",
    "stats_consumed_messages": "stats_consumed_messages",
    "stats_consumed_bytes": "stats_consumed_bytes",
}

Role: TypeAlias = Literal["producer", "consumer"]

# What a script calls the keys of the role that it acts in.
OF_ROLE: dict[Role, dict[str, str]] = {
    "producer": {
        "holder": "producer",
        "free": "producer_free",
        "idle": "consumer_free",
        "messages": "produced_messages",
        "bytes": "produced_bytes",
    },
    "consumer": {
        "holder": "consumer",
        "free": "consumer_free",
        "idle": "producer_free",
        "messages": "consumed_messages",
        "bytes": "consumed_bytes",
    },
}


def _check_text(argument: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise BadArgument(argument, value, "must be a str that is not empty")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadArgument(argument, value, "must be encodable as UTF-8") from None
    return value


def check_names(name: object, prefix: object) -> tuple[str, str]:
    """Name and prefix, if the queue's keys are those of no other queue.

    Raises:
        BadArgument: empty, no text, or ending like one of the keys of a queue: `jobs:bound` would
            be the bound of `jobs`.
    """
    name, prefix = _check_text("name", name), _check_text("prefix", prefix)
    whole = f"{prefix}:{name}" if ":" in prefix else name
    for suffix in SUFFIXES.values():
        if whole.endswith(f":{suffix}"):
            raise BadArgument(
                "name", name, f"must not end with :{suffix}, the name of a key of another queue"
            )
    return name, prefix


def check_role(role: object) -> Role:
    """One of the two roles.

    Raises:
        BadArgument: another thing.
    """
    if role == "producer":
        return "producer"
    if role == "consumer":
        return "consumer"
    raise BadArgument("role", role, 'must be "producer" or "consumer"')


class PressureKeys:
    """The keys of one queue.

    Args:
        name: the queue's name, as it is: other clients do not quote it.
        prefix: the prefix of every key.

    Attributes:
        is_tagged: whether a hash tag keeps all of them in one slot of a Redis Cluster.
    """

    def __init__(self, name: str, prefix: str) -> None:
        base = f"{prefix}:{name}"
        self.names = {kind: f"{base}:{suffix}".encode() for kind, suffix in SUFFIXES.items()}
        self.names["queue"] = base.encode()
        _, brace, after = base.partition("{")
        self.is_tagged = bool(brace) and after.find("}") > 0

    def __getitem__(self, kind: str) -> bytes:
        return self.names[kind]

    def free(self, role: Role) -> bytes:
        """The list that has a token while the role is free."""
        return self.names[f"{role}_free"]

    def head(self, script: Script, role: Role | None = None) -> tuple[int | bytes, ...]:
        """The keys of a script with their number before them, as EVALSHA takes them.

        Args:
            script: which.
            role: that it acts in, if its header speaks of a role.
        """
        said = OF_ROLE[role] if role else {}
        return len(script.keys), *(self.names[said.get(kind, kind)] for kind in script.keys)
