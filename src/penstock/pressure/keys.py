"""Names of the keys of a pressure queue (protocol/pressure.md, The keys of pressure)."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from penstock.core.values.checks import check_choice
from penstock.errors import BadArgument
from penstock.wire.scripts import Script

__all__ = ["DEFAULT_PRESSURE_PREFIX", "PressureKeys", "Role", "check_names", "check_role", "utf8"]

DEFAULT_PRESSURE_PREFIX = "__pressure__"
STATE_KEYS = (
    "bound", "producer", "consumer", "producer_free", "consumer_free", "not_full", "closed",
)  # fmt: skip
COUNTER_KEYS = ("produced_messages", "produced_bytes", "consumed_messages", "consumed_bytes")
KEY_SUFFIXES = (
    {name: name for name in STATE_KEYS}
    | {name: f"stats:{name}" for name in COUNTER_KEYS}
    # The Go client counts under names of its own. They are removed with the queue, and not read.
    | {f"stats_{name}": f"stats_{name}" for name in COUNTER_KEYS}
)

Role: TypeAlias = Literal["producer", "consumer"]


def _of_role(role: Role, other: Role, done: str) -> dict[str, str]:
    return {
        "holder": role,
        "free": f"{role}_free",
        "idle": f"{other}_free",
        "messages": f"{done}_messages",
        "bytes": f"{done}_bytes",
    }


KEYS_OF_ROLE: dict[Role, dict[str, str]] = {
    "producer": _of_role("producer", "consumer", "produced"),
    "consumer": _of_role("consumer", "producer", "consumed"),
}
"""The keys of each role, by their names in the headers of the scripts."""


def _check_text(argument: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise BadArgument(argument, value, "must be a str that is not empty")
    utf8(argument, value)
    return value


def utf8(argument: str, text: str) -> bytes:
    """Encode an argument.

    Raises:
        BadArgument: UTF-8 can't hold it.
    """
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise BadArgument(argument, text, "must be encodable as UTF-8") from None


def check_names(name: object, prefix: object) -> tuple[str, str]:
    """Return name and prefix, if no other queue can have the same keys.

    Raises:
        BadArgument: empty, no text, or with the ending of a key: `jobs:bound` is a key of `jobs`.
    """
    name, prefix = _check_text("name", name), _check_text("prefix", prefix)
    whole = f"{prefix}:{name}" if ":" in prefix else name
    for suffix in KEY_SUFFIXES.values():
        if whole.endswith(f":{suffix}"):
            raise BadArgument(
                "name", name, f"must not end with :{suffix}, the name of a key of another queue"
            )
    return name, prefix


def check_role(role: Any) -> Role:
    """Return a role.

    Raises:
        BadArgument: not a role.
    """
    checked: Role = check_choice("role", role, Role)
    return checked


class PressureKeys:
    """The keys of one queue.

    Args:
        name: the queue's name, which is not quoted, because other clients do not.
        prefix: the prefix of every key.

    Attributes:
        is_tagged: True if a hash tag keeps all of them in one slot of a Redis Cluster.
    """

    def __init__(self, name: str, prefix: str) -> None:
        base = f"{prefix}:{name}"
        self.names = {kind: f"{base}:{suffix}".encode() for kind, suffix in KEY_SUFFIXES.items()}
        self.names["queue"] = base.encode()
        _, brace, after = base.partition("{")
        self.is_tagged = bool(brace) and after.find("}") > 0

    def __getitem__(self, kind: str) -> bytes:
        return self.names[kind]

    def free(self, role: Role) -> bytes:
        """Return the list that has a token while the role is free."""
        return self.names[f"{role}_free"]

    def of(self, script: Script, role: Role | None = None) -> tuple[bytes, ...]:
        """Return the keys of a script, in the order of KEYS.

        Args:
            script: the script.
            role: in which it acts, if its header speaks of a role.
        """
        said = KEYS_OF_ROLE[role] if role else {}
        return tuple(self.names[said.get(kind, kind)] for kind in script.keys)
