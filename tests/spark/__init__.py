"""The Spark data source on Spark; a session of its own, `nox -s spark`, which needs Java."""
