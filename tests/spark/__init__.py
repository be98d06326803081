"""The Spark data source on Spark itself: a session of its own, `nox -s spark`; it needs Java."""
