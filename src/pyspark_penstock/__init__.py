"""The module that Spark looks for: top-level, named `pyspark_…`, with a `DefaultSource`.

If such a module fails on import, Spark finds none of the others either. So this one never fails:
without pyspark (or with one that has no Python data sources) it is empty.
"""

from __future__ import annotations

__all__ = []

try:
    from penstock.spark.source import PenstockDataSource as DefaultSource
except Exception:  # noqa: BLE001  # see above: whatever is missing, the others must be found
    pass
else:
    __all__ += ["DefaultSource"]
