"""The module that Spark looks for: top-level, named `pyspark_…`, with a `DefaultSource`.

If such a module fails on import, Spark finds none of the others either. So this one never fails:
without pyspark (or with one that has no Python data sources) it is empty.
"""

from __future__ import annotations

from typing import Any

__all__ = []

try:
    from penstock.spark.source import PenstockDataSource as DefaultSource
except Exception as reason:  # noqa: BLE001  # see above: whatever is missing, the others must be found
    failure = reason
    try:
        from pyspark.sql.datasource import DataSource
    except Exception:  # noqa: BLE001  # without pyspark nobody asks for the source
        pass
    else:

        class DefaultSource(DataSource):  # type: ignore[no-redef]  # in place of the source
            """Raises the reason why penstock can't be imported, as soon as the source is used."""

            def __init__(self, options: Any) -> None:
                super().__init__(options)
                text = f"penstock can't be imported here: {type(failure).__name__}: {failure}"
                raise ImportError(text) from failure

            @classmethod
            def name(cls) -> str:
                """Return the name for `format`."""
                return "penstock"

        __all__ += ["DefaultSource"]
else:
    __all__ += ["DefaultSource"]
