"""A format of Spark whose sink stops at chosen points, under its own name.

`register` adds it to a session; the class is pickled by value, as the executors of a standalone cluster
cannot import the tests.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ottla.spark.pipelines.testing.stop_points import VARIABLE, StoppingDataSource, StopPoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["FORMAT", "VARIABLE", "StopPoint", "register"]

FORMAT = "ottla_with_stops"


class NamedDataSource(StoppingDataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT


def register(spark: SparkSession) -> None:
    """Make `format(FORMAT)` known to a session."""
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
    spark.dataSource.register(NamedDataSource)
