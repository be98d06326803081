"""The record: a job on the wire (protocol/core.md, Record).

`1;l=60000;t=3600000;c=json;h.trace=abc` + newline + body. The first byte is the version; `l`
(lease, ms), `t` (ttl, ms), `p` (retry policy, priority, handler of a follow-up) and `k` (how long
the result is kept, ms) come first, as the scripts look for them there; `q` is the hash of the key;
`c` is the codec of the body, absent for bytes; `h.<name>` are headers. Unknown fields are kept and
ignored.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NoReturn
from urllib.parse import quote, unquote

from penstock.core.values.checks import MAX_DURATION_MS, duration_ms
from penstock.core.values.codec import Codec
from penstock.core.values.policy import MAX_ATTEMPTS, RetryPolicy
from penstock.errors import BadArgument, UndecodableBody

__all__ = [
    "FIRST_FIELDS_BYTES",
    "KEPT_FIELD",
    "KEY_PLACEHOLDER",
    "RECORD",
    "SCHEDULED_FOR",
    "Record",
    "encode_body",
    "encode_front",
    "encode_head",
    "encode_headers",
    "encode_json",
    "escaped",
    "key_hash",
    "parse_json",
    "parse_record",
    "stable_id_of",
    "with_key",
]

RECORD = b"%b;i=%b\n%b"
"""A record: the fields before the stable id, the stable id, and the body."""
SCHEDULED_FOR = "scheduled_for"
"""The header of a job of a schedule: the time of its tick, in ms since 1970."""
KEPT_FIELD = b";k="
"""The field of a job whose result is kept. If the first bytes of a record lack it, none is kept."""
FIRST_FIELDS_BYTES = 768
"""More bytes than the fields `l`, `t`, `p` and `k` have together."""
KEY_PLACEHOLDER = "-" * 13
"""Stands for the hash of a key that is computed from each body."""
MAX_HEADER_BYTES = 16384
"""Bytes of a record before its body; the scripts refuse more."""
STABLE_ID_FIELD_BYTES = len(";i=") + 16
"""Most bytes of it that a stable id takes."""
POLICY_FIELD = re.compile(
    rb"1[;lt=0-9]*;p=([^,;]*),?([^,;]*),?([^,;]*)"
    rb"(?:,(?:([0-9])(?![^,;])|[^,;]*))?(?:,([^,;]+))?(?:,([^,;]+))?"
)
"""Where the scripts look for it, and how."""
PLAIN_HEAD = re.compile(rb"1(;c=json)?(?:;i=([-0-9A-Z_a-z]*))?")
INSTEAD = (
    "pass text or numbers; Handlers(convert=penstock.integrations.pydantic.converter) converts"
    " arguments of handlers"
)
UNESCAPED = " !\"#$&'()*+,-./:<>?@[]^_`{|}~"

TEXT_KEY_TYPES = frozenset((str,))
JSON_SCALARS = frozenset((str, int, float, bool, type(None)))


def _parts_of(encoder: json.JSONEncoder) -> Callable[[object, int], Iterable[str]]:
    """Return what encodes an object in parts: in C, if Python has that.

    The standard library makes it anew for each object, which takes four times as long as to encode
    a small one.
    """
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return lambda body, _: encoder.encode(body)
    parts: Callable[[object, int], Iterable[str]] = make(
        None, encoder.default, json.encoder.encode_basestring, None, ":", ",", False, False, False
    )
    return parts


_parts = _parts_of(json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False))


def encode_body(body: Any, codec: Codec | None = None) -> tuple[bytes, bool]:
    """Return the body's bytes, and whether JSON or the codec made them. bytes pass untouched.

    Raises:
        BadArgument: it is a handler, or the codec can't express it.
    """
    if isinstance(body, bytes):
        return body, False
    if isinstance(body, (bytearray, memoryview)):
        return bytes(body), False
    if hasattr(type(body), "not_a_body"):  # a handler
        raise BadArgument("body", body, body.not_a_body)
    if codec is not None:
        return codec.encoded(body), True
    raw = encode_json(body)
    if b"{" in raw and type(body) is not str:
        _check_keys(body)
    return raw, True


def encode_json(body: object) -> bytes:
    """Return a body as JSON. The keys of its dicts must be str.

    Raises:
        BadArgument: JSON can't express the object.
    """
    try:
        return "".join(_parts(body, 0)).encode()
    except (TypeError, ValueError, RecursionError) as error:
        why = "it contains itself" if isinstance(error, RecursionError) else str(error)
        reason = f"can't be written as JSON ({why}): {INSTEAD}"
        raise BadArgument("body", body, reason) from error


def parse_json(raw: bytes) -> Any:
    """Parse JSON that a client in any language can read: in UTF-8, without NaN and Infinity.

    Raises:
        ValueError: it is something else.
    """
    try:
        return STRICT_DECODER.decode(raw.decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"must be JSON: {error}") from None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number of JSON")


STRICT_DECODER = json.JSONDecoder(parse_constant=_refuse)


def _check_keys(body: Any) -> None:
    """Refuse keys that JSON would turn into text: `{1: 2}` would come back as `{"1": 2}`.

    Raises:
        BadArgument: a key of a dict is not a str.
    """
    left = [body]
    for value in left:  # it grows meanwhile
        if isinstance(value, dict):
            if not TEXT_KEY_TYPES.issuperset(map(type, value)):
                for key in (key for key in value if not isinstance(key, str)):
                    reason = f"the key {key!r} must be a str for JSON, such as str({key!r})"
                    raise BadArgument("body", body, reason)
            value = value.values()
        if not JSON_SCALARS.issuperset(map(type, value)):
            left += [part for part in value if isinstance(part, (dict, list, tuple))]


def encode_head(
    *,
    lease_ms: int | None = None,
    ttl_ms: int | None = None,
    headers: Mapping[str, str] | None = None,
    dedup: str = "",
    retry: RetryPolicy | None = None,
    codec: str = "json",
    result_ms: int | None = None,
    priority: int | None = None,
    on_dead: str = "",
    key: str = "",
) -> tuple[bytes, bytes]:
    """Return the part of a record before its body: for bytes, and for the output of a codec.

    Args:
        lease_ms, ttl_ms, headers: as a record has them.
        dedup: its fields `d`, `w` and `u`, as `Dedup` writes them.
        retry: the job's own policy; its rules do not go on the wire.
        codec: the name of the codec.
        result_ms: for how long the result is kept; None = the queue's setting, 0 = not at all.
        priority: 0 to 9; None = 0, or that of the job that this one updates.
        on_dead: the handler of the job that its death adds; empty = it adds none.
        key: the hash of the job's key, or `KEY_PLACEHOLDER`; empty = it has no key.

    Raises:
        BadArgument: a header that is not str -> str, or has an empty name, or too much of them.
    """
    if priority == 0 and not dedup:
        priority = None
    front = encode_front(
        lease_ms=lease_ms,
        ttl_ms=ttl_ms,
        retry=retry,
        result_ms=result_ms,
        priority=priority,
        on_dead=on_dead,
    )
    if key:
        front += f";q={key}".encode()
    front += dedup.encode()
    tail = encode_headers("headers", headers) if headers else b""
    if tail or dedup:  # the other fields are short
        check_head(len(front) + len(tail) + len(f";c={codec}\n"))
    return b"%b%b\n" % (front, tail), b"%b;c=%b%b\n" % (front, codec.encode(), tail)


def encode_front(
    *,
    lease_ms: int | None,
    ttl_ms: int | None,
    retry: RetryPolicy | None,
    result_ms: int | None,
    priority: int | None,
    on_dead: str,
) -> bytes:
    """Return the begin of a record: its version, and the fields that the scripts look for there.

    Args: as of `encode_head`.
    """
    front = "1"
    if lease_ms is not None:
        front += f";l={lease_ms}"
    if ttl_ms is not None:
        front += f";t={ttl_ms}"
    if retry is not None or priority is not None or on_dead:
        own = "" if priority is None else f"{priority}"
        follower = f",{quote(on_dead, safe=UNESCAPED.replace(',', ''))}" if on_dead else ""
        front += f";p={_policy_text(retry)}{',' if own or follower else ''}{own}{follower}"
    if result_ms is not None:
        front += f";k={result_ms}"
    return front.encode()


def encode_headers(argument: str, headers: object) -> bytes:
    """Return the fields of a record for headers.

    Raises:
        BadArgument: they are no mapping of str to str, or have an empty name.
    """
    if not isinstance(headers, Mapping):
        raise BadArgument(argument, headers, "must be a mapping of str to str")
    tail = ""
    for name, value in headers.items():
        if not (isinstance(name, str) and isinstance(value, str) and name):
            raise BadArgument(argument, headers, "names and values must be str, names not empty")
        try:
            tail += f";h.{quote(name, safe=UNESCAPED)}={quote(value, safe=UNESCAPED)}"
        except UnicodeEncodeError:
            raise BadArgument(argument, headers, "must be encodable as UTF-8") from None
    return tail.encode()


def key_hash(key: str) -> str:
    """Return the hash that stands for a key: 52 bits of SHA-1, as 13 hex digits."""
    return hashlib.sha1(key.encode(), usedforsecurity=False).hexdigest()[:13]


def with_key(head: bytes, key: str) -> bytes:
    """Return the head of a record with the hash of a key instead of the placeholder."""
    return head.replace(KEY_PLACEHOLDER.encode(), key_hash(key).encode(), 1)


def check_head(size: int) -> None:
    """Refuse a head that is too long for the scripts.

    Raises:
        BadArgument: with its stable id it would have more than 16 KiB.
    """
    if size > MAX_HEADER_BYTES - STABLE_ID_FIELD_BYTES:
        most = f"{MAX_HEADER_BYTES - 100} bytes"
        reason = f"all headers, with the dedup id, must be at most {most}; put more into the body"
        raise BadArgument("headers", f"<{size} bytes>", reason)


def _policy_text(policy: RetryPolicy | None) -> str:
    if policy is None:
        return ",,"
    spans = [
        None if span is None else duration_ms("retry", span) for span in (policy.base, policy.cap)
    ]
    return ",".join("" if part is None else str(part) for part in (policy.max_attempts, *spans))


@lru_cache(maxsize=256)
def parse_policy(*parts: bytes) -> RetryPolicy:
    """Parse attempts, base and cap in ms; an empty or impossible one is None."""
    attempts = _number(parts[0], 0, MAX_ATTEMPTS)
    base, cap = (_number(part, 1, MAX_DURATION_MS) for part in parts[1:])
    return RetryPolicy(
        attempts, None if base is None else base / 1000, None if cap is None else cap / 1000
    )


def _number(text: bytes | str, low: int, high: int) -> int | None:
    value = int(text) if len(text) < 14 and text.isdigit() else -1
    return value if low <= value <= high else None


def escaped(text: str) -> str:
    """Escape a text for the header of a record."""
    return quote(text, safe=UNESCAPED)


@dataclass(slots=True, eq=False)
class Record:
    """A parsed record.

    Attributes:
        lease_ms: the job's own lease, None = the queue's, 0 = at most once.
        ttl_ms: the job's ttl, None = none.
        stable_id: identifies the enqueue; '' = the producer gave none.
        codec: "json", the name of another codec, or "" for bytes.
        headers: str -> str.
        retry: the job's own policy, None = the queue's.
        result_ms: for how long its result is kept; 0 = not at all.
        priority: 0 to 9.
        on_dead: the handler of the job that its death adds; empty = it adds none.
        follow_up: the number of the job that its last death has added; empty = none.
        dedup_id: its dedup id; empty = none.
        key_hash: the hash of its key; empty = it has none.
        raw: the body's bytes.
    """

    raw: bytes
    lease_ms: int | None = None
    ttl_ms: int | None = None
    codec: str = ""
    dedup_id: str = ""
    key_hash: str = ""
    stable_id: str = ""
    retry: RetryPolicy | None = None
    result_ms: int = 0
    priority: int = 0
    on_dead: str = ""
    follow_up: str = ""
    headers: dict[str, str] = field(default_factory=dict)

    def span_ms(self, usual: int) -> int:
        """Return the lease of a delivery: the job's own, or the queue's; at most a tenth of a ttl.

        Args:
            usual: the queue's lease, ms.
        """
        if self.lease_ms is not None:
            return self.lease_ms
        return usual if self.ttl_ms is None else min(usual, max(1000, self.ttl_ms // 10))

    def body(self, codec: Codec | None = None) -> Any:
        """Return the body as its producer gave it: bytes, or an object that the codec decodes.

        Args:
            codec: the client's; it decodes the bodies that have its name.

        Raises:
            UndecodableBody: the codec can't decode the bytes, or is unknown.
        """
        if not self.codec:
            return self.raw
        if codec is not None and codec.name == self.codec:
            return codec.decoded(self.raw)
        if self.codec != "json":
            raise UndecodableBody(f"unknown codec {self.codec!r}: pass it as Penstock(codec=...)")
        try:
            return json.loads(self.raw)
        except (ValueError, RecursionError) as error:
            raise UndecodableBody(str(error)) from error


def stable_id_of(record: bytes) -> str:
    """Return the stable id of a record that this client encoded: it ends the header."""
    return record.partition(b"\n")[0].rpartition(b";i=")[2].decode()


def _whole(value: str) -> int | None:
    """Parse an integer as the scripts do; anything else counts as absent."""
    digits = re.match("[0-9]{1,15}", value)
    return int(digits[0]) if digits else None


def parse_record(data: bytes) -> Record:  # noqa: C901  # one branch for each field
    """Parse a record."""
    head, _, body = data.partition(b"\n")
    record = Record(body)
    if usual := PLAIN_HEAD.fullmatch(head):  # nearly every record
        record.codec = "json" if usual[1] else ""
        record.stable_id = (usual[2] or b"").decode()
        return record
    for part in head.decode("utf-8", "replace").split(";")[1:]:
        name, _, value = part.partition("=")
        if name == "l":
            record.lease_ms = _whole(value)
        elif name == "t":
            record.ttl_ms = _whole(value)
        elif name == "c":
            record.codec = value
        elif name == "p":
            policy = POLICY_FIELD.match(head)
            if policy:
                record.priority = int(policy[4] or 0)
                record.on_dead = unquote((policy[5] or b"").decode("ascii", "replace"))
                record.follow_up = (policy[6] or b"").decode("ascii", "replace")
                if not (policy[4] or policy[5]) or any(policy.groups()[:3]):
                    record.retry = parse_policy(*policy.groups()[:3])
        elif name == "k":
            record.result_ms = _number(value, 1, MAX_DURATION_MS) or 0
        elif name == "q":
            record.key_hash = value
        elif name == "d":
            record.dedup_id = unquote(value)
        elif name == "i":
            record.stable_id = value
        elif name.startswith("h."):
            record.headers[unquote(name[2:])] = unquote(value)
    return record
