"""`format("ottla")`: the one class that Spark asks for readers and writers.

It is made anew for nearly every call, in processes that need only one of its sides; each side is therefore
imported when it is asked for. Options are looked at where a reader or a writer is made, so that a mistake is
told before anything is read or written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from ottla.spark.workers import begin_task

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceArrowWriter,
        DataSourceReader,
        DataSourceStreamArrowWriter,
        DataSourceStreamReader,
    )
    from pyspark.sql.types import StructType

__all__ = ["OttlaDataSource"]


class OttlaDataSource(DataSource):
    """Kafka topics, with the options and columns of Spark's own `format("kafka")`."""

    @classmethod
    def name(cls) -> str:
        return "ottla"

    def schema(self) -> StructType:
        from ottla.spark.source.columns import spark_schema
        from ottla.spark.source.options import columns_of

        begin_task()
        return spark_schema(columns_of(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        from ottla.spark.source.batch import batch_reader

        begin_task()
        return batch_reader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from ottla.spark.source.stream import stream_reader

        return stream_reader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from ottla.spark.sink import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        from ottla.spark.sink import stream_writer

        begin_task()
        return stream_writer(self.options, schema, overwrite)
