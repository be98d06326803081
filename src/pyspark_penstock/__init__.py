"""What Spark looks for: a top-level module `pyspark_…` with a `DefaultSource`.

One such module that fails on import hides all the others, so this one never does: without pyspark
(or with one that has no Python data sources) it is empty.
"""

from __future__ import annotations

__all__ = []

try:
    from penstock.spark.source import PenstockDataSource as DefaultSource
except Exception:  # noqa: BLE001  # see above: whatever is missing, the others must be found
    pass
else:
    __all__ += ["DefaultSource"]
