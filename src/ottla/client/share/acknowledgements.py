"""Acknowledgements of one partition as ranges of offsets, each with one type.

Pure: the consumer collects what its user acknowledges, and the request manager sends it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ottla.protocol.share import AcknowledgeType


class AcknowledgedRange(NamedTuple):
    first_offset: int
    last_offset: int
    type: AcknowledgeType


class AcquiredSlice(NamedTuple):
    """What there is of an acquired range: the records from index `begin` to `end`, and the offsets without
    one.
    """

    begin: int
    end: int
    delivery_count: int
    gaps: tuple[tuple[int, int], ...]


def acquired_slices(
    offsets: Sequence[int], acquired: Iterable[tuple[int, int, int]]
) -> Iterator[AcquiredSlice]:
    """Find each acquired range (first offset, last offset, delivery count) in the offsets of records, which
    ascend. Offsets of a range may have no record: markers of transactions, and what compaction has removed.

    >>> list(acquired_slices([4, 5, 7, 9], [(5, 8, 1)]))
    [AcquiredSlice(begin=1, end=3, delivery_count=1, gaps=((6, 6), (8, 8)))]
    """
    for first, last, delivery_count in acquired:
        begin = bisect_left(offsets, first)
        end = bisect_right(offsets, last, begin)
        gaps = () if end - begin == last - first + 1 else tuple(_gaps(offsets[begin:end], first, last))
        yield AcquiredSlice(begin, end, delivery_count, gaps)


def _gaps(offsets: Iterable[int], first: int, last: int) -> Iterator[tuple[int, int]]:
    expected = first
    for offset in offsets:
        if offset > expected:
            yield expected, offset - 1
        expected = offset + 1
    if expected <= last:
        yield expected, last


def without_gaps(first: int, last: int, gaps: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The parts of a range that are between its gaps.

    >>> list(without_gaps(5, 8, [(6, 6), (8, 8)]))
    [(5, 5), (7, 7)]
    """
    at = first
    for low, high in gaps:
        if low > at:
            yield at, low - 1
        at = high + 1
    if at <= last:
        yield at, last


def ranges_of(types: Mapping[int, AcknowledgeType]) -> list[AcknowledgedRange]:
    """The types of single offsets as ranges.

    >>> [tuple(map(int, each)) for each in ranges_of({2: AcknowledgeType.ACCEPT, 1: AcknowledgeType.ACCEPT})]
    [(1, 2, 1)]
    """
    return merge_ranges(AcknowledgedRange(offset, offset, type) for offset, type in types.items())


def merge_ranges(ranges: Iterable[AcknowledgedRange]) -> list[AcknowledgedRange]:
    """Sort ranges, which do not overlap, and join neighbours of one type."""
    merged: list[AcknowledgedRange] = []
    for each in sorted(ranges):
        if merged and merged[-1].type == each.type and merged[-1].last_offset + 1 == each.first_offset:
            merged[-1] = AcknowledgedRange(merged[-1].first_offset, each.last_offset, each.type)
        else:
            merged.append(each)
    return merged
