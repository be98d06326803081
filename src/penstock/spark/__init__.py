"""Queues as a source and a sink of Spark: `format("penstock")`.

The data source is found by itself where the package is installed; `register` makes it known where
that look-up does not reach (a zip shipped with the job, another broken `pyspark_*` module).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock.spark.errors import OptionError, WrongServer

if TYPE_CHECKING:
    from penstock.spark.drain_driver import Drained, drain
    from penstock.spark.partition import enqueue_partition
    from penstock.spark.source import PenstockDataSource

__all__ = [
    "Drained",
    "OptionError",
    "PenstockDataSource",
    "WrongServer",
    "drain",
    "enqueue_partition",
    "register",
]

PLACES = {
    "Drained": "drain_driver",
    "PenstockDataSource": "source",
    "drain": "drain_driver",
    "enqueue_partition": "partition",
}


def register(spark: Any) -> None:
    """Make `format("penstock")` known to a session.

    Args:
        spark: a SparkSession, classic or Connect.
    """
    from penstock.spark.source import PenstockDataSource

    spark.dataSource.register(PenstockDataSource)


def __getattr__(name: str) -> Any:
    """The rest is imported when it is asked for: what needs pyspark, and what takes its time."""
    if name not in PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{PLACES[name]}"), name)
