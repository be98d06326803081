"""Queues as a source and a sink of Spark: `format("penstock")`.

Spark finds the data source if the package is installed. Otherwise call `register`: if penstock is a
zip that is shipped with the job, or another `pyspark_*` module is broken.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock.spark.errors import OptionError, WrongServer

if TYPE_CHECKING:
    from penstock.spark.drain_driver import Drained, drain
    from penstock.spark.frames import name_checkpoint, write
    from penstock.spark.sink import enqueue_partition
    from penstock.spark.source import PenstockDataSource

__all__ = [
    "Drained", "OptionError", "PenstockDataSource", "WrongServer", "drain", "enqueue_partition",
    "name_checkpoint", "register", "write",
]  # fmt: skip

LAZY_MODULES = {
    "Drained": "drain_driver", "PenstockDataSource": "source", "drain": "drain_driver",
    "enqueue_partition": "sink", "name_checkpoint": "frames", "write": "frames",
}  # fmt: skip


def register(spark: Any) -> None:
    """Make `format("penstock")` known to a session.

    Args:
        spark: a SparkSession, classic or Connect.
    """
    from penstock.spark.source import PenstockDataSource

    spark.dataSource.register(PenstockDataSource)


def __getattr__(name: str) -> Any:
    """Import modules that need pyspark when one of their names is used."""
    if name not in LAZY_MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{LAZY_MODULES[name]}"), name)
