"""Deliveries as reserve makes them, without a server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.core.jobs.job import Delivery, QueueIdentity, Reservation
from penstock.core.jobs.record import encode_body, encode_head

PLACE = QueueIdentity("q", "deadbeef", 0xCAFEBABE, "01020304")
NUMBER = b"1700000000000-1000000005"


def stored(data: bytes, counts: bytes = b"") -> Delivery:
    """Return a delivery of a record."""
    reservation = Reservation(None, PLACE, "me", tag=0x0AB, now=1_700_000_060_000, lease_ms=30_000)
    return Delivery(reservation, NUMBER, counts, data)


def made(
    body: Any, headers: Mapping[str, str] | None = None, counts: bytes = b"", **options: Any
) -> Delivery:
    """Return a delivery of a job as `enqueue` makes it."""
    raw, is_json = encode_body(body)
    plain, of_json = encode_head(headers=headers, **options)
    return stored((of_json if is_json else plain) + raw, counts)


def named(name: str, body: Any, counts: bytes = b"") -> Delivery:
    """Return a delivery of a job with a name."""
    return made(body, {"handler": name}, counts)
