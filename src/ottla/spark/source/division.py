"""Divide ranges of offsets between the files of tables, segments in remote storage, and brokers.

A table comes first, as only the columns that are asked for are decoded; then segments; then brokers. Each
part is a range of offsets, so a record is in exactly one of them, and a batch of a stream that is planned
again has the same records, whatever is in the table by then.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ottla.protocol.names import TopicPartition
from ottla.spark.source.offset_ranges import OffsetRange
from ottla.spark.source.offset_reader import OffsetReader, Offsets
from ottla.spark.source.offsets import OffsetLimit, OffsetLimitKind
from ottla.spark.source.options import SourceOptions

if TYPE_CHECKING:
    # Imported where they are used: most reads need neither.
    from ottla.spark.source.segments import SegmentRange
    from ottla.spark.source.topic_table_files import FileRange, TopicFiles


# A batch with a larger range looks for tables and segments, though the last look found none there.
LARGE_RANGE = 100_000
LOOK_INTERVAL_S = 60.0


@dataclass(frozen=True, slots=True)
class Division:
    """What tasks read from files, from segments, and from brokers."""

    files: Sequence[FileRange] = ()
    segments: Sequence[SegmentRange] = ()
    ranges: list[OffsetRange] = field(default_factory=list)


def limit_by_tables(limit: OffsetLimit, tables: Mapping[str, TopicFiles], offsets: Offsets) -> Offsets:
    """The offsets of a limit, where tables have what the log has deleted."""
    found = dict(offsets)
    for topic, table in tables.items():
        mine = [each for each in found if each.topic == topic]
        times = _times(limit, mine)
        for time_ms in sorted(set(times.values())):
            first = table.first_at(time_ms)
            for each in mine:
                if times.get(each) == time_ms and each.partition in first:
                    found[each] = min(found[each], first[each.partition])
        if limit.kind is OffsetLimitKind.EARLIEST:
            for each in mine:
                if table.offsets.get(each.partition, 0) > 0:
                    found[each] = 0
    return found


def _times(limit: OffsetLimit, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """The times that a limit has for partitions, in milliseconds; none if it has offsets."""
    if limit.kind is OffsetLimitKind.TIME:
        return dict.fromkeys(partitions, max(limit.time_ms, 0))
    if limit.kind is OffsetLimitKind.TIMES:
        return {
            each: limit.by_partition[each] for each in partitions if limit.by_partition.get(each, -1) >= 0
        }
    return {}


def take_files(
    options: SourceOptions,
    tables: Mapping[str, TopicFiles],
    start: Mapping[TopicPartition, int],
    end: Mapping[TopicPartition, int],
) -> tuple[list[FileRange], Offsets]:
    """The files that tasks read, and where the rest of each partition begins."""
    from ottla.spark.source.topic_table_files import bounds_of

    files: list[FileRange] = []
    rest = dict(start)
    for table in tables.values():
        bounds = bounds_of(table, start, end)
        files += table.ranges(bounds, options.max_bytes_per_partition)
        for index, (_, last) in bounds.items():
            rest[TopicPartition(table.topic, index)] = last
    return files, rest


class StreamDivider:
    """Divides the micro-batches of a stream.

    To look for tables and segments costs more than a small batch. So a batch does not look that begins
    behind what the last look has found, unless it is large and that look is some time ago.
    """

    def __init__(self, options: SourceOptions, offset_reader: OffsetReader) -> None:
        self._options = options
        self._offset_reader = offset_reader
        # How far tables and segments went, at the last look.
        self._until: dict[TopicPartition, int] = {}
        self._looks_again_at = 0.0

    def first_offsets(self, offsets: Offsets, ids: Mapping[str, bytes]) -> Offsets:
        """Where a new query begins, with tables that have more than the log."""
        if not self._options.read_from.takes_tables:
            return offsets
        from ottla.spark.source.topic_table_files import find_tables

        return limit_by_tables(self._options.start, find_tables(self._options, ids), offsets)

    def divide(self, ranges: Sequence[OffsetRange]) -> Division:
        wanted = [each for each in ranges if each.size > 0]
        if not self._looks(wanted):
            return Division(ranges=wanted)
        from ottla.spark.source.segments import find_segment_ranges

        self._looks_again_at = time.monotonic() + LOOK_INTERVAL_S
        self._until |= dict.fromkeys((each.partition for each in wanted), 0)
        files: list[FileRange] = []
        if self._options.read_from.takes_tables:
            files, wanted = self._take_files(wanted)
        segments, rest = find_segment_ranges(self._options, self._offset_reader, wanted)
        for segment in segments:
            offsets = segment.offsets
            # There may be more behind it.
            self._until[offsets.partition] = max(self._until[offsets.partition], offsets.end + 1)
        return Division(files, segments, rest)

    def _looks(self, ranges: Sequence[OffsetRange]) -> bool:
        for each in ranges:
            until = self._until.get(each.partition)
            if until is None or each.start < until:
                return True
        is_large = any(each.size >= LARGE_RANGE for each in ranges)
        return is_large and time.monotonic() >= self._looks_again_at

    def _take_files(self, ranges: Sequence[OffsetRange]) -> tuple[list[FileRange], list[OffsetRange]]:
        from ottla.spark.source.topic_table_files import find_tables

        ids = {each.partition.topic: each.topic_id for each in ranges if each.topic_id is not None}
        tables = find_tables(self._options, ids)
        for topic, table in tables.items():
            self._until |= {TopicPartition(topic, index): end for index, end in table.offsets.items()}
        start = {each.partition: each.start for each in ranges}
        end = {each.partition: each.end for each in ranges}
        files, rest = take_files(self._options, tables, start, end)
        left = [replace(each, start=rest[each.partition]) for each in ranges]
        return files, [each for each in left if each.size > 0]
