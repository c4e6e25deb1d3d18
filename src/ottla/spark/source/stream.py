"""`spark.readStream.format("ottla")`: micro-batches of whatever has come, or of as much as is allowed.

One reader lives in a process beside the driver for as long as the query runs, and is asked for the latest
offsets every few milliseconds while nothing comes; it asks the cluster at a decent pace and keeps what it
learns in between. Spark keeps the offsets. A batch that Spark runs again has the same ends, and its
beginnings come from the end of the batch before or, where there is none, from its own
(`StreamOffset.begins`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from ottla.spark.source.batch import RangePartition, check_schema, read_partition
from ottla.spark.source.options import SourceOptions, source_options

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from ottla.spark.source.driver import StreamDriver

__all__ = ["StreamReader", "stream_reader"]

Json = dict[str, dict[str, Any]]


def stream_reader(options: Mapping[str, str], schema: StructType) -> DataSourceStreamReader:
    parsed = source_options(options, streaming=True)
    check_schema(parsed, schema)
    return StreamReader(parsed)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Spark's side; what it decides is in `StreamDriver`, which is not pickled to tasks."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._driver: StreamDriver | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_driver": None}

    @property
    def driver(self) -> StreamDriver:
        if self._driver is None:
            from ottla.spark.source.driver import StreamDriver

            self._driver = StreamDriver(self._options)
        return self._driver

    def initialOffset(self) -> Json:
        return self.driver.initial().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        options = self._options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self.driver.stop_at_what_is_there()

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:
        from ottla.spark.source.limits import StreamOffset

        begin = StreamOffset.from_json(start)
        end = self.driver.latest(begin, limited=not isinstance(limit, ReadAllAvailable), now=time.monotonic)
        # The same text for the same offset: Spark would take another for new data.
        return start if end is None else end.to_json()

    def reportLatestOffset(self) -> Json | None:
        known = self.driver.known_ends()
        return known.to_json() if known is not None else None

    def partitions(self, start: Json, end: Json) -> list[InputPartition]:
        from ottla.spark.source.limits import StreamOffset

        ranges = self.driver.ranges(StreamOffset.from_json(start), StreamOffset.from_json(end))
        return [RangePartition(each) for each in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._options, partition)

    def commit(self, end: Json) -> None:
        from ottla.spark.source.limits import StreamOffset

        self.driver.reached(StreamOffset.from_json(end))

    def stop(self) -> None:
        """Nothing to end: Spark kills the process."""
