"""Names of the keys of a queue (protocol/core.md, Keys).

All keys of a queue carry its name as hash tag, so it lives in one slot of a Redis Cluster. Braces,
percent signs and control bytes of the name are percent-encoded in the tag: a brace would end it.
"""

from __future__ import annotations

import binascii
import re
import zlib
from functools import cache
from itertools import product
from string import ascii_lowercase

from penstock.errors import BadArgument

__all__ = [
    "DEFAULT_PREFIX",
    "KEY_KINDS",
    "KINDS_PER_CALL",
    "LASTING_KINDS",
    "PRIORITY_SPAN",
    "QUEUE_KINDS",
    "SCORE_ORIGIN_MS",
    "SLOT_COUNT",
    "QueueKeys",
    "check_prefix",
    "check_queue_name",
    "end_of",
    "hints_key",
    "is_listed_name",
    "key_slot",
    "node_key",
    "nodes_key",
    "partition_name",
    "queue_crc",
    "queue_crcs",
    "registry_entry",
    "registry_key",
    "score_of",
    "split_name",
    "tag",
    "worker_key",
    "workers_key",
]

DEFAULT_PREFIX = "penstock"
KEY_KINDS = (
    "meta", "ready", "wake", "held", "active", "scheduled", "tally",
    "urgent", "once", "dead", "expiry", "finished", "members", "batches", "space", "dedup",
    "windows", "parked", "tickets", "turns", "paces", "holds", "ticks", "schedules",
)  # fmt: skip
LASTING_KINDS = ("staged", "writes", "history")
"""Index and promises of staged writes, and the history: they outlive an idle queue, as none of
KEY_KINDS does."""
QUEUE_KINDS = (*KEY_KINDS, *LASTING_KINDS)
"""The order of KEYS in every script of a queue. Those that the usual calls need come first."""
KINDS_PER_CALL = ("stage", "commit", "checkpoint", "emitted", "emitters")
"""Kinds of keys that some calls name, behind those of the queue. Of all but the last a queue has
many."""
MAX_NAME_BYTES = 1024
SCORE_ORIGIN_MS = 1_735_689_600_000
"""2025-01-01: scores of `active` and `once` count from there, so they are exact until 2094."""
PRIORITY_SPAN = 1 << 42
"""A score in `scheduled` is lower by this much for each priority of a job that is ready."""
SLOT_COUNT = 16384
"""Number of slots of a Redis Cluster."""

MAX_PARTITIONS = 256
"""Each one that is waited for costs a consumer a look every few seconds."""
PARTITION_SEPARATOR = "\0/"
"""Separator of the name of a queue and the number of a partition: no name has a NUL."""

REGISTRY_ENTRY = re.compile(rb"[0-9a-f]{16}")
"""A field of the registry: checksum of the queue's name, and epoch."""
UNSAFE_IN_NAME = re.compile(r"[{}%\x00-\x1f\x7f]")


def check_queue_name(name: object) -> str:
    """Return the name of a queue: a str of 1 to 1024 bytes of UTF-8 without NUL.

    Raises:
        BadArgument: otherwise.
    """
    if not isinstance(name, str):
        raise BadArgument("queue", name, "a queue's name must be a str")
    if not name:
        raise BadArgument("queue", name, "a queue's name can't be empty")
    if "\0" in name:
        raise BadArgument("queue", name, "a queue's name can't contain NUL")
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        raise BadArgument("queue", name, "a queue's name must be encodable as UTF-8") from None
    if len(encoded) > MAX_NAME_BYTES:
        raise BadArgument("queue", name, f"a queue's name must be at most {MAX_NAME_BYTES} bytes")
    return name


def check_prefix(prefix: object) -> str:
    """Return the key prefix: 1 to 100 printable characters without braces.

    Raises:
        BadArgument: otherwise.
    """
    fits = isinstance(prefix, str) and prefix.isprintable() and 1 <= len(prefix) <= 100
    if not isinstance(prefix, str) or not fits or UNSAFE_IN_NAME.search(prefix):
        raise BadArgument(
            "prefix", prefix, "must be 1 to 100 characters, without braces, % and control bytes"
        )
    return prefix


def queue_crc(name: str) -> int:
    """Return the CRC-32 of the name's UTF-8 bytes, as a job id carries it."""
    return zlib.crc32(name.encode())


def tag(name: str) -> str:
    """Return the hash tag of a queue: its name with braces and control bytes percent-encoded."""
    return UNSAFE_IN_NAME.sub(lambda found: f"%{ord(found.group()):02X}", name)


def partition_name(name: str, number: int) -> str:
    """Return the name of a partition in keys, ids and the registry (protocol/partitions.md)."""
    return name + _ending(number)


def queue_crcs(name: str, partitions: int | None) -> dict[int, int | None]:
    """Return the CRC-32 of each partition's name -> its number; None = of the queue without any."""
    if partitions is None:
        return {queue_crc(name): None}
    return {queue_crc(partition_name(name, number)): number for number in range(partitions)}


@cache
def _ending(number: int) -> str:
    """Return the end of a partition's name: its number, and letters that spread them over slots.

    CRC-16 is linear, so the letters change the slot in the same way for every queue: the first 2,
    4, 8, … partitions have one in each half, quarter, eighth, … of the slots.
    """
    place = int(f"{number:08b}"[::-1], 2)
    for letters in product(ascii_lowercase, repeat=3):
        ending = f"{PARTITION_SEPARATOR}{number:03d}-{''.join(letters)}"
        if key_slot(ending.encode()) >> 6 == place:
            return ending
    raise AssertionError(number)  # three letters are enough for every number below 256


def split_name(name: str) -> tuple[str, int | None]:
    """Split a name of the registry into the name of a queue and the number of a partition."""
    whole, between, ending = name.partition(PARTITION_SEPARATOR)
    number = ending[:3]
    return (whole, int(number)) if between and number.isdecimal() else (name, None)


def is_listed_name(name: str) -> bool:
    """Return True if this is the name of a queue or of a partition, as the registry has it."""
    whole, number = split_name(name)
    if number is not None and (number >= MAX_PARTITIONS or name != partition_name(whole, number)):
        return False
    return "\0" not in whole and 0 < len(whole.encode()) <= MAX_NAME_BYTES


def registry_entry(field: bytes, name: bytes) -> tuple[str, str] | None:
    """Return name and epoch of an entry of the registry; None = it is of another form."""
    text = name.decode("utf-8", "replace")
    if not REGISTRY_ENTRY.fullmatch(field) or int(field[:8], 16) != queue_crc(text):
        return None
    return (text, field[8:].decode()) if is_listed_name(text) else None


class QueueKeys:
    """The key names of one queue.

    Args:
        name: the queue's name.
        prefix: the prefix of every key.
        partition: the number of a partition; None = the queue as a whole.

    Attributes:
        whole: the queue's name.
        name: that of the partition.
    """

    __slots__ = ("_base", "name", "names", "partition", "prefix", "whole")

    def __init__(
        self, name: str, prefix: str = DEFAULT_PREFIX, partition: int | None = None
    ) -> None:
        self.whole = check_queue_name(name)
        self.partition = partition
        self.name = name if partition is None else partition_name(name, partition)
        self.prefix = check_prefix(prefix)
        self._base = f"{prefix}:{{{tag(self.name)}}}:"
        self.names = {kind: (self._base + kind).encode() for kind in QUEUE_KINDS}

    def __getitem__(self, kind: str) -> bytes:
        return self.names[kind]

    def of(self, kinds: tuple[str, ...]) -> tuple[bytes, ...]:
        """Return the names of these kinds, in this order."""
        return tuple(self.names[kind] for kind in kinds)

    def stage(self, writer: str, batch: int) -> bytes:
        """Return the key of the rows that a writer has staged for a batch."""
        return f"{self._base}stage:{writer}:{batch}".encode()

    def commit(self, writer: str) -> bytes:
        """Return the key of a writer's last promise."""
        return f"{self._base}commit:{writer}".encode()

    def checkpoint(self, consumer: str) -> bytes:
        """Return the key of one checkpoint: the receipts of its batch."""
        return f"{self._base}checkpoint:{consumer}".encode()

    def emitted(self, number: bytes) -> tuple[bytes, bytes]:
        """Return the key of what a job tells those that watch it, and that of the list of these."""
        base = self._base.encode()
        return b"%bemitted:%b" % (base, number), base + b"emitters"


def key_slot(key: bytes) -> int:
    """Return the slot of a key in a Redis Cluster; text in its first braces decides, if any."""
    start = key.find(b"{")
    if start >= 0:
        end = key.find(b"}", start + 1)
        if end > start + 1:
            key = key[start + 1 : end]
    return binascii.crc_hqx(key, 0) % SLOT_COUNT


def registry_key(prefix: str) -> bytes:
    """Return the key of the hash that lists queues: crc32 and epoch -> name. Meta is the truth."""
    return f"{prefix}:queues".encode()


def node_key(prefix: str) -> bytes:
    """Return the key of the hash that holds this node's id."""
    return f"{prefix}:node".encode()


def score_of(end_ms: int, tag: int) -> int:
    """Return the score in `active` or `once` of a delivery that ends at this time."""
    return (end_ms - SCORE_ORIGIN_MS) * 4096 + tag


def end_of(score: int) -> int:
    """Return the time in ms at which a delivery with this score ends."""
    return score // 4096 + SCORE_ORIGIN_MS


def nodes_key(prefix: str) -> bytes:
    """Return the key of the hash that lists nodes: id -> time of the entry, and address."""
    return f"{prefix}:nodes".encode()


def workers_key(prefix: str) -> bytes:
    """Return the key of the sorted set that lists workers: id -> when it wrote its entry."""
    return f"{prefix}:workers".encode()


def worker_key(prefix: str, worker_id: str) -> bytes:
    """Return the key of the entry of a worker. All entries lie in the slot of the list."""
    return f"{prefix}:worker:{{{prefix}:workers}}:{worker_id}".encode()


def hints_key(prefix: str) -> bytes:
    """Return the key of the hash of hints: calls for nodes that could not be reached."""
    return f"{prefix}:hints".encode()
