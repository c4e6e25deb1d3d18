"""`spark.read.format("ottla")`: ranges are fixed once, when Spark plans the read.

Everything up to the ends that were found then is read, and nothing behind them, however long the tasks take.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from ottla.spark.source.columns import spark_schema
from ottla.spark.source.options import SourceOptions, source_options

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from ottla.spark.source.bounds import Bounds
    from ottla.spark.source.planning import Offsets, Planner
    from ottla.spark.source.splitting import OffsetRange

__all__ = [
    "BatchReader",
    "PushdownReader",
    "RangePartition",
    "batch_reader",
    "check_schema",
    "read_partition",
]


class RangePartition(InputPartition):
    """What one task reads."""

    def __init__(self, value: OffsetRange) -> None:
        super().__init__(value)


def batch_reader(options: Mapping[str, str], schema: StructType) -> DataSourceReader:
    parsed = source_options(options, streaming=False)
    check_schema(parsed, schema)
    return PushdownReader(parsed) if parsed.pushdown else BatchReader(parsed)


def check_schema(options: SourceOptions, schema: StructType) -> None:
    if schema != spark_schema(options.columns):
        raise ValueError(
            f'format("ottla") has the columns {", ".join(options.columns)}, with fixed types: leave out '
            "schema(), and use the option columns to choose among them"
        )


def read_partition(options: SourceOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    from ottla.spark.source.fetching import read_range
    from ottla.spark.source.link import link_to
    from ottla.spark.workers import begin_task

    begin_task()
    if partition.value is None:  # Spark's stand-in where there is nothing to read
        return iter(())
    return read_range(link_to(options.connection), options, partition.value)


class BatchReader(DataSourceReader):
    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._bounds: Bounds | None = None

    def partitions(self) -> list[InputPartition]:
        from ottla.spark.source.planning import Planner
        from ottla.spark.source.splitting import split

        options, planner = self._options, Planner(self._options)
        ranges = self._ranges(planner)
        large = [each for each in ranges if each.size > 0]
        return [
            RangePartition(each)
            for each in split(
                large,
                min_partitions=options.min_partitions,
                max_records=options.max_records_per_partition,
                max_bytes=options.max_bytes_per_partition,
                bytes_per_offset=planner.bytes_per_offset(each.partition for each in large),
            )
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._options, partition)

    def _ranges(self, planner: Planner) -> list[OffsetRange]:
        from ottla.spark.source.splitting import OffsetRange

        options = self._options
        partitions = planner.partitions()
        start = planner.start_of(options.start, partitions)
        end = planner.end_of(options.end, partitions)
        start, end = self._within_the_log(planner, start, end)
        if self._bounds is not None:
            start, end = self._bounds.applied(planner, start, end)
        return [
            OffsetRange(partition, partitions.ids.get(partition.topic), start[partition], end[partition])
            for partition in partitions.all
            if partition in start
        ]

    def _within_the_log(self, planner: Planner, start: Offsets, end: Offsets) -> tuple[Offsets, Offsets]:
        """Offsets that the user named are checked; all others come from the log."""
        from ottla.spark.source.limits import EARLIEST, LATEST, LimitKind
        from ottla.spark.source.loss import LossPolicy

        options = self._options
        loss = LossPolicy(options.fail_on_data_loss)
        if options.start.kind is LimitKind.OFFSETS:
            first = planner.offsets(dict.fromkeys(start, EARLIEST))
            for partition, offset in start.items():
                if offset < first.get(partition, offset):
                    loss.expired(partition, offset, end[partition], first[partition])
                    start = {**start, partition: first[partition]}
        if LimitKind.OFFSETS in (options.start.kind, options.end.kind):
            last = planner.offsets(dict.fromkeys(end, LATEST))
            for partition, known in last.items():
                furthest = max(start[partition], end[partition])
                if furthest > known:
                    loss.beyond_the_end(partition, furthest, known)
                    end = {**end, partition: known}
        return start, end


class PushdownReader(BatchReader):
    """Chosen by the option `pushdown`: Spark fails a reader that takes filters while its setting
    `spark.sql.python.filterPushdown.enabled` is off, so the plain one must not.
    """

    def pushFilters(self, filters: Sequence[Filter]) -> Iterable[Filter]:
        from ottla.spark.source.bounds import bounds_of

        self._bounds, left = bounds_of(filters)
        return left
