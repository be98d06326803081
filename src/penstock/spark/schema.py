"""The columns of the Spark data source."""

__all__ = ["SCHEMA"]

SCHEMA = (
    "id string, queue string, state string, payload binary, headers map<string,string>, "
    "attempt int, nacks int, crashes int, receipt string, dedup_id string, "
    "enqueued_at timestamp, ready_at timestamp, lease_until timestamp, expires_at timestamp, "
    "owner string, last_error string, node string"
)
"""The columns of the source; null if they do not apply, as `receipt` of a ready job."""
