"""`format("ottla")`: the class that Spark asks for readers and writers.

Spark creates it again for nearly every call, in processes that need only a reader or only a writer; so each
is imported when it is asked for. Options are checked where a reader or a writer is created, so that a mistake
fails before anything is read or written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from ottla.spark.worker.garbage_collection import begin_task

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceArrowWriter,
        DataSourceReader,
        DataSourceStreamArrowWriter,
        DataSourceStreamReader,
    )
    from pyspark.sql.types import StructType

    from ottla.spark.sink.listener import SinkListener


class OttlaDataSource(DataSource):
    """Kafka topics, with the options and columns of Spark's own `format("kafka")`."""

    @classmethod
    def name(cls) -> str:
        return "ottla"

    def schema(self) -> StructType:
        from ottla.spark.source.columns import spark_schema
        from ottla.spark.source.options import columns_of, is_typed

        begin_task()
        columns = columns_of(self.options)
        if not is_typed(self.options):
            return spark_schema(columns)
        from ottla.spark.source.typed_records import typed_schema

        return typed_schema(self.options, columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        from ottla.spark.source.batch_reader import batch_reader

        begin_task()
        return batch_reader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from ottla.spark.source.stream_reader import stream_reader

        return stream_reader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from ottla.spark.sink.writers import batch_writer

        return batch_writer(self.options, schema, overwrite, self.sink_listener())

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        begin_task()
        if "mergeTable" in self.options:
            from ottla.spark.merge.writer import merge_writer

            return merge_writer(self.options, schema)
        from ottla.spark.sink.writers import stream_writer

        return stream_writer(self.options, schema, self.sink_listener())

    def sink_listener(self) -> SinkListener:
        """The listener of new writers, which does nothing. A subclass may return another one."""
        from ottla.spark.sink.listener import SinkListener

        return SinkListener()
