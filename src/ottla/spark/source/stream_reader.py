"""`spark.readStream.format("ottla")`: micro-batches of all new records, or of as many as the options allow.

One reader lives in a process beside the driver for as long as the query runs. Spark asks it for the latest
offsets every few milliseconds while nothing arrives; it limits how often it asks the cluster and keeps the
answers in between. Spark keeps the offsets. A batch that Spark runs again has the same end offsets; its start
offsets are the end of the previous batch, or for the first batch its own (`StreamOffset.begins`).
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

from ottla.spark.source.batch_reader import (
    FilePartition,
    RangePartition,
    SegmentPartition,
    check_schema,
    read_partition,
)
from ottla.spark.source.options import SourceOptions, source_options

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from ottla.spark.source.micro_batch_stream import MicroBatchStream


Json = dict[str, dict[str, Any]]


def stream_reader(options: Mapping[str, str], schema: StructType) -> DataSourceStreamReader:
    """Create a reader. One whose options cannot be read says so when Spark first asks it for something: where
    no reader is created at all, PySpark fails over that and hides why.
    """
    try:
        parsed = check_schema(source_options(options, streaming=True), schema)
    except ValueError as error:
        return RefusedStreamReader(error)
    return StreamReader(parsed)


class RefusedStreamReader(DataSourceStreamReader):
    """Raises what is wrong with the options, whatever it is asked for."""

    def __init__(self, error: ValueError) -> None:
        self._error = error

    def initialOffset(self) -> Json:
        raise self._error

    def latestOffset(self, *_: object) -> Json:
        raise self._error

    def partitions(self, start: Json, end: Json) -> list[InputPartition]:
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        raise self._error


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Spark's interface; the work is done by `MicroBatchStream`, which is not pickled to tasks."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._stream: MicroBatchStream | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_stream": None}

    @property
    def stream(self) -> MicroBatchStream:
        if self._stream is None:
            from ottla.spark.source.micro_batch_stream import MicroBatchStream

            self._stream = MicroBatchStream(self._options)
        return self._stream

    def initialOffset(self) -> Json:
        return self.stream.initial_offset().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        options = self._options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self.stream.prepare_for_trigger_available_now()

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:
        from ottla.spark.source.offsets import StreamOffset

        begin = StreamOffset.from_json(start)
        end = self.stream.latest_offset(
            begin, limited=not isinstance(limit, ReadAllAvailable), now=time.monotonic
        )
        # The same text for the same offset: Spark takes a different text for new data.
        return start if end is None else end.to_json()

    def reportLatestOffset(self) -> Json | None:
        known = self.stream.latest_known_offset()
        return known.to_json() if known is not None else None

    def partitions(self, start: Json, end: Json) -> list[InputPartition]:
        from ottla.spark.source.offsets import StreamOffset

        plan = self.stream.plan_ranges(StreamOffset.from_json(start), StreamOffset.from_json(end))
        return [
            *map(FilePartition, plan.files),
            *map(SegmentPartition, plan.segments),
            *map(RangePartition, plan.ranges),
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._options, partition)

    def commit(self, end: Json) -> None:
        from ottla.spark.source.offsets import StreamOffset

        self.stream.commit(StreamOffset.from_json(end))

    def stop(self) -> None:
        """Do nothing: Spark kills the process."""
