"""Columns: those that the source gives, and those that the sink understands."""

from __future__ import annotations

__all__ = ["COLUMNS", "SCHEMA", "plain"]

SCHEMA = (
    "id string, queue string, state string, payload binary, headers map<string,string>, "
    "attempt int, nacks int, crashes int, receipt string, dedup_id string, "
    "enqueued_at timestamp, ready_at timestamp, lease_until timestamp, expires_at timestamp, "
    "owner string, last_error string, node string"
)
"""Of the source. What does not apply to a job is null: `receipt` of one that is not active."""

COLUMNS = (
    "payload", "id", "delay", "ready_at", "ttl", "lease", "max_attempts", "backoff", "backoff_cap",
    "headers",
)  # fmt: skip
"""Of the sink, for `operation=enqueue`, beside those that options name."""


def plain(name: str) -> str:
    """A column's name as it is compared: `readyAt` and `READY_AT` are `readyat`."""
    return name.replace("_", "").lower()
