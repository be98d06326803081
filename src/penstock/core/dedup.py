"""Dedup ids: what an enqueue says of them, and how it lies in records (protocol/dedup.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.core.codec import Codec
from penstock.core.options import check_label, duration_ms
from penstock.core.policy import RetryPolicy
from penstock.core.record import encode_body, encode_dedup, encode_head
from penstock.core.stable import next_stable_id
from penstock.errors import BadArgument

__all__ = ["Dedup", "dedup_of"]

MODES = {
    "refuse": "",
    "update": "u",
    "debounce": "ud",
    "requeue": "q",
    "requeue+update": "uq",
    "requeue+debounce": "udq",
}
"""What becomes of a duplicate -> the letters of `claim`."""
UNTIL = {"finished": "", "started": "s", "enqueued": "e"}
"""Until when an id is taken -> the field `u` of a record."""


@dataclass(frozen=True, slots=True)
class Dedup:
    """What an enqueue says of dedup ids.

    Attributes:
        id: the id, or what computes it from a body.
        window_ms: for how long it stays taken beyond its end, None = not at all.
        until: the field `u` of the record.
        mode: the letters of `claim`.
        lease_ms, ttl_ms, headers, retry, codec: of the record.
    """

    id: str | Callable[[Any], Any]
    window_ms: int | None
    until: str
    mode: str
    lease_ms: int | None
    ttl_ms: int | None
    headers: Mapping[str, str] | None
    retry: RetryPolicy | None
    codec: Codec | None = None

    def name_of(self, body: Any) -> str:
        """The dedup id of a body.

        Raises:
            BadArgument: it can't be used.
        """
        return self.id if isinstance(self.id, str) else check_label("dedup_id", self.id(body))

    def record(self, body: Any, name: str | None = None) -> bytes:
        """The whole record of a body.

        Args:
            body: the body.
            name: its dedup id, if that was computed.

        Raises:
            BadArgument: the body can't be used, or its id.
        """
        raw, is_coded = encode_body(body, self.codec)
        name = self.name_of(body) if name is None else name
        fields = encode_dedup(name, self.window_ms, self.until)
        heads = encode_head(
            lease_ms=self.lease_ms,
            ttl_ms=self.ttl_ms,
            headers=self.headers,
            dedup=fields,
            retry=self.retry,
            codec="json" if self.codec is None else self.codec.name,
        )
        return b"%b;i=%b\n%b" % (heads[is_coded][:-1], next_stable_id(), raw)


def dedup_of(
    dedup_id: Any,
    window: Any,
    until: Any,
    on_duplicate: Any,
    *,
    lease_ms: int | None,
    ttl_ms: int | None,
    headers: Mapping[str, str] | None,
    retry: RetryPolicy | None,
    codec: Codec | None,
    many: bool,
) -> Dedup | None:
    """Check what an enqueue says of dedup ids; None = nothing.

    Args:
        many: whether the id may be computed from each body.

    Raises:
        BadArgument: which argument, and why.
    """
    if not isinstance(on_duplicate, str) or on_duplicate not in MODES:
        raise BadArgument("on_duplicate", on_duplicate, f"must be one of {', '.join(MODES)}")
    if not isinstance(until, str) or until not in UNTIL:
        raise BadArgument("dedup_until", until, f"must be one of {', '.join(UNTIL)}")
    span = None if window is None else duration_ms("dedup_window", window, zero=False)
    if dedup_id is None:
        for name, value, usual in (
            ("dedup_window", window, None),
            ("on_duplicate", on_duplicate, "refuse"),
            ("dedup_until", until, "finished"),
        ):
            if value != usual:
                raise BadArgument(name, value, "works only with dedup_id")
        return None
    if until == "enqueued" and span is None:
        raise BadArgument(
            "dedup_until", until, "needs dedup_window=, the time for which the id is taken"
        )
    if until == "started" and span is not None:
        raise BadArgument(
            "dedup_window", window, 'not with dedup_until="started": use "ended" or "enqueued"'
        )
    if until == "enqueued" and on_duplicate != "refuse":
        raise BadArgument(
            "on_duplicate", on_duplicate, 'must be "refuse" with dedup_until="enqueued"'
        )
    if not (many and callable(dedup_id)):
        check_label("dedup_id", dedup_id)
    mode = MODES[on_duplicate] + UNTIL[until]
    return Dedup(dedup_id, span, UNTIL[until], mode, lease_ms, ttl_ms, headers, retry, codec)
