"""`spark.read.format("ottla")`: the offset ranges are fixed once, when Spark plans the read.

Tasks read everything up to the end offsets of that moment and nothing after them, however long they take.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from ottla.spark.source.columns import spark_schema
from ottla.spark.source.options import ReadFrom, SourceOptions, source_options

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from ottla.spark.source.filter_pushdown import FilterBounds
    from ottla.spark.source.offset_ranges import OffsetRange
    from ottla.spark.source.offset_reader import OffsetReader, Offsets
    from ottla.spark.source.segments import SegmentRange
    from ottla.spark.source.topic_table_files import FileRange


class FilePartition(InputPartition):
    """The files of a table that one task reads."""

    def __init__(self, value: FileRange) -> None:
        super().__init__(value)


class SegmentPartition(InputPartition):
    """The offsets that one task reads from segments in the store."""

    def __init__(self, value: SegmentRange) -> None:
        super().__init__(value)


class RangePartition(InputPartition):
    """The range of offsets that one task reads."""

    def __init__(self, value: OffsetRange) -> None:
        super().__init__(value)


def batch_reader(options: Mapping[str, str], schema: StructType) -> DataSourceReader:
    """Create a reader. Raises ValueError if the options or the schema cannot be read."""
    parsed = check_schema(source_options(options, streaming=False), schema)
    return PushdownReader(parsed) if parsed.pushdown else BatchReader(parsed)


def check_schema(options: SourceOptions, schema: StructType) -> SourceOptions:
    """The options with what only Spark's plan has: the schemas of typed records. ValueError if the schema is
    not that of these options.
    """
    if options.formats:
        from ottla.spark.source.typed_records import with_schemas

        found = with_schemas(options, schema)
        if found is not None:
            return found
    elif schema == spark_schema(options.columns):
        return options
    raise ValueError(
        f'format("ottla") has the columns {", ".join(options.columns)}, with fixed types: leave out '
        "schema(), and use the option columns to choose among them"
    )


def read_partition(options: SourceOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    from ottla.spark.worker.garbage_collection import begin_task

    begin_task()
    if partition.value is None:  # Spark's placeholder where there is nothing to read
        return iter(())
    if options.formats:
        from ottla.spark.source.typed_records import bytes_options, typed_batches

        return typed_batches(options, _read_bytes(bytes_options(options), partition))
    return _read_bytes(options, partition)


def _read_bytes(options: SourceOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Read keys and values as they are."""
    from ottla.spark.source.client import source_client
    from ottla.spark.source.range_reader import read_range

    if isinstance(partition, FilePartition):
        from ottla.spark.source.topic_table_files import read_files

        return read_files(options, partition.value)
    if isinstance(partition, SegmentPartition):
        from ottla.spark.source.segments import read_segments

        return read_segments(source_client(options.connection), options, partition.value)
    return read_range(source_client(options.connection), options, partition.value)


class BatchReader(DataSourceReader):
    """Reads a batch; plans its ranges in the driver, and reads one of them per task."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._bounds: FilterBounds | None = None

    def partitions(self) -> list[InputPartition]:
        from ottla.spark.source.offset_ranges import split
        from ottla.spark.source.offset_reader import OffsetReader

        options, offset_reader = self._options, OffsetReader(self._options)
        if options.read_from.takes_tables:
            files, ranges = self._divide(offset_reader)
        else:
            files, ranges = [], self._ranges(offset_reader)
        large = [each for each in ranges if each.size > 0]
        if options.read_from.takes_segments:
            from ottla.spark.source.segments import find_segment_ranges

            segments, large = find_segment_ranges(options, offset_reader, large)
            files += map(SegmentPartition, segments)
        return files + [
            RangePartition(each)
            for each in split(
                large,
                min_partitions=options.min_partitions,
                max_records=options.max_records_per_partition,
                max_bytes=options.max_bytes_per_partition,
                bytes_per_offset=offset_reader.bytes_per_offset(each.partition for each in large),
            )
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._options, partition)

    def _ranges(self, offset_reader: OffsetReader) -> list[OffsetRange]:
        from ottla.spark.source.offset_ranges import OffsetRange

        options = self._options
        partitions = offset_reader.partitions()
        start = offset_reader.start_of(options.start, partitions)
        end = offset_reader.end_of(options.end, partitions)
        start, end = self._within_log_bounds(offset_reader, start, end)
        if self._bounds is not None:
            start, end = self._bounds.apply(offset_reader, start, end)
        return [
            OffsetRange(partition, partitions.ids.get(partition.topic), start[partition], end[partition])
            for partition in partitions.all
            if partition in start
        ]

    def _divide(self, offset_reader: OffsetReader) -> tuple[list[InputPartition], list[OffsetRange]]:
        """Divide the offsets between the files of tables and the brokers."""
        from ottla.spark.source.division import limit_by_tables, take_files
        from ottla.spark.source.offset_ranges import OffsetRange
        from ottla.spark.source.topic_table_files import find_tables

        options = self._options
        partitions = offset_reader.partitions()
        tables = find_tables(options, partitions.ids)
        start = offset_reader.start_of(options.start, partitions)
        end = offset_reader.end_of(options.end, partitions)
        start = limit_by_tables(options.start, tables, start)
        end = limit_by_tables(options.end, tables, end)
        found, rest = take_files(options, tables, start, end)
        files: list[InputPartition] = [FilePartition(each) for each in found]
        if options.read_from is ReadFrom.TABLE:
            return files, []
        rest, end = self._within_log(offset_reader, rest, end)
        return files, [
            OffsetRange(partition, partitions.ids.get(partition.topic), rest[partition], end[partition])
            for partition in partitions.all
            if partition in rest
        ]

    def _within_log(
        self,
        offset_reader: OffsetReader,
        start: Offsets,
        end: Offsets,
    ) -> tuple[Offsets, Offsets]:
        """Check what is left for the brokers: retention may have deleted what is in no table."""
        from ottla.spark.source.data_loss import DataLossPolicy
        from ottla.spark.source.offsets import EARLIEST

        first = offset_reader.offsets(dict.fromkeys(start, EARLIEST))
        loss = DataLossPolicy(self._options.fail_on_data_loss)
        for partition, offset in start.items():
            begins = first.get(partition, offset)
            if offset < begins and offset < end[partition]:
                loss.report_expired(partition, offset, end[partition], begins)
                start = {**start, partition: begins}
        return self._within_log_bounds(offset_reader, start, end)

    def _within_log_bounds(
        self, offset_reader: OffsetReader, start: Offsets, end: Offsets
    ) -> tuple[Offsets, Offsets]:
        """Check the offsets that the user named; all others come from the log."""
        from ottla.spark.source.data_loss import DataLossPolicy
        from ottla.spark.source.offsets import EARLIEST, LATEST, OffsetLimitKind

        options = self._options
        loss = DataLossPolicy(options.fail_on_data_loss)
        if options.start.kind is OffsetLimitKind.OFFSETS:
            first = offset_reader.offsets(dict.fromkeys(start, EARLIEST))
            for partition, offset in start.items():
                if offset < min(first.get(partition, offset), end[partition]):
                    loss.report_expired(partition, offset, end[partition], first[partition])
                    start = {**start, partition: first[partition]}
        if OffsetLimitKind.OFFSETS in (options.start.kind, options.end.kind):
            last = offset_reader.offsets(dict.fromkeys(end, LATEST))
            for partition, known in last.items():
                furthest = max(start[partition], end[partition])
                if furthest > known:
                    loss.report_beyond_end(partition, furthest, known)
                    end = {**end, partition: known}
        return start, end


class PushdownReader(BatchReader):
    """A reader that takes filters, chosen by the option `pushdown`.

    Spark fails a reader with `pushFilters` while `spark.sql.python.filterPushdown.enabled` is off, so the
    plain reader must not have it.
    """

    def pushFilters(self, filters: Sequence[Filter]) -> Iterable[Filter]:
        from ottla.spark.source.filter_pushdown import push_filters

        self._bounds, remaining = push_filters(filters)
        return remaining
