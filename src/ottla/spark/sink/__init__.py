"""Writing to topics: `df.write.format("ottla")` and `df.writeStream.format("ottla")`.

Tasks write in transactions, the driver decides for the batch as a whole by one record of a log, and then ends
them all: see docs/spark/exactly-once.md. The rules of that log are in `ledger`, the two phases in `task` and
`driver`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from ottla.spark.sink.writers import BatchWriter, StreamWriter

__all__ = ["batch_writer", "stream_writer"]


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    """ValueError if the options or the columns cannot be written."""
    from ottla.spark.sink.columns import check_schema, columns_to_write
    from ottla.spark.sink.options import sink_options
    from ottla.spark.sink.writers import BatchWriter

    if overwrite:
        raise ValueError('a topic cannot be overwritten; write with mode("append")')
    found = sink_options(options)
    check_schema(schema, found.topic)
    return BatchWriter(found, columns_to_write(schema))


def stream_writer(
    options: Mapping[str, str],
    schema: StructType,
    overwrite: bool,  # noqa: ARG001 - in complete mode the whole result is appended, as by Spark's own sink
) -> StreamWriter:
    """As `batch_writer`."""
    from ottla.spark.sink.columns import check_schema, columns_to_write
    from ottla.spark.sink.options import sink_options
    from ottla.spark.sink.writers import StreamWriter

    found = sink_options(options)
    check_schema(schema, found.topic)
    return StreamWriter(found, columns_to_write(schema))
