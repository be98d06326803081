"""The columns of the source, and those that the sink accepts."""

from __future__ import annotations

__all__ = ["COLUMNS", "SCHEMA", "plain"]

SCHEMA = (
    "id string, queue string, state string, payload binary, headers map<string,string>, "
    "attempt int, nacks int, crashes int, receipt string, dedup_id string, "
    "enqueued_at timestamp, ready_at timestamp, lease_until timestamp, expires_at timestamp, "
    "owner string, last_error string, node string"
)
"""The columns of the source; null if they do not apply, as `receipt` of a ready job."""

COLUMNS = (
    "payload", "id", "delay", "ready_at", "ttl", "lease", "max_attempts", "backoff", "backoff_cap",
    "headers",
)  # fmt: skip
"""The columns of the sink for `operation=enqueue`, besides those that options name."""


def plain(name: str) -> str:
    """Return a column's name for comparison: `readyAt` and `READY_AT` become `readyat`."""
    return name.replace("_", "").lower()
