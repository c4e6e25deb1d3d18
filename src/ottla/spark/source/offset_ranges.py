"""Split ranges of offsets into tasks: by rows as Spark's own source does, and also by bytes.

Kafka's partitions differ in size, and a batch takes as long as its largest task. `split` divides ranges so
that no task has more rows or (where sizes are known) bytes than requested, and that there are as many tasks
as requested. The result depends on the ranges and on `bytes_per_offset` alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ottla.protocol.names import TopicPartition

MAX_TASKS = 100_000


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets from `start` up to `end` (exclusive) of the topic with this id; a None id is not checked."""

    partition: TopicPartition
    topic_id: bytes | None
    start: int
    end: int
    expected_bytes: int = 0
    """The approximate size of the range on the broker's disk; 0 if unknown."""

    @property
    def size(self) -> int:
        return self.end - self.start


def split(
    ranges: Sequence[OffsetRange],
    *,
    min_partitions: int | None = None,
    max_records: int | None = None,
    max_bytes: int | None = None,
    bytes_per_offset: Mapping[TopicPartition, float] | None = None,
) -> list[OffsetRange]:
    """Drop empty ranges and split the others, in their order."""
    sizes = bytes_per_offset or {}
    planned: list[tuple[OffsetRange, int]] = []
    for each in ranges:
        if each.size <= 0:
            continue
        weight = sizes.get(each.partition, 0.0)
        parts = 1
        if max_records is not None:
            parts = -(-each.size // max_records)
        if max_bytes is not None:
            parts = max(parts, -(-int(each.size * weight) // max_bytes))
        planned.append((replace(each, expected_bytes=int(each.size * weight)), min(parts, each.size)))
    _check_task_count(sum(parts for _, parts in planned))
    found = [part for each, parts in planned for part in _split_evenly(each, parts)]
    if min_partitions is not None and len(found) < min_partitions:
        _check_task_count(min_partitions)
        found = _split_to_at_least(found, min_partitions)
    return found


def _check_task_count(tasks: int) -> None:
    if tasks > MAX_TASKS:
        raise ValueError(
            f"the read would be split into {tasks} tasks, more than {MAX_TASKS}; "
            "raise maxRecordsPerPartition or maxBytesPerPartition, or lower minPartitions"
        )


def _split_to_at_least(ranges: list[OffsetRange], wanted: int) -> list[OffsetRange]:
    """Split large ranges by their share of `wanted`; those too small for a split stay whole and do not count
    towards it.
    """
    total = sum(each.size for each in ranges)
    small = {each for each in ranges if _share(each.size, total, wanted) == 1}
    rest = total - sum(each.size for each in small)
    left = max(wanted - len(small), 1)
    return [
        part
        for each in ranges
        for part in ([each] if each in small else _split_evenly(each, _share(each.size, rest, left)))
    ]


def _share(size: int, total: int, wanted: int) -> int:
    return max(int(size / total * wanted + 0.5), 1)


def _split_evenly(each: OffsetRange, parts: int) -> list[OffsetRange]:
    parts = min(parts, each.size)
    if parts <= 1:
        return [each]
    found = []
    at = each.start
    for left in range(parts, 0, -1):
        end = at + (each.end - at) // left
        share = each.expected_bytes * (end - at) // each.size
        found.append(replace(each, start=at, end=end, expected_bytes=share))
        at = end
    return found
