"""Batches as the producer state wants them: each header with the marker that it carries, if it is one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ottla.log.segment.segment import LogSegment
from ottla.records.batch import BatchHeader
from ottla.records.control import EndTransactionMarker, read_control_records
from ottla.runtime.disk import Buffer


def end_txn_marker(buffer: Buffer, at: int, header: BatchHeader) -> EndTransactionMarker | None:
    """The marker in a control batch; None if the batch is empty or its record is of another kind."""
    if not header.is_control or header.count == 0:
        return None
    value = read_control_records(buffer, at)[0].value
    return value if isinstance(value, EndTransactionMarker) else None


def with_markers(
    buffer: Buffer, batches: Sequence[BatchHeader]
) -> list[tuple[BatchHeader, EndTransactionMarker | None]]:
    """The batches that lie one after another in `buffer`."""
    result = []
    at = 0
    for header in batches:
        result.append((header, end_txn_marker(buffer, at, header) if header.is_control else None))
        at += header.size
    return result


def batches_between(
    segments: Sequence[LogSegment], start_offset: int, end_offset: int
) -> Iterator[tuple[BatchHeader, EndTransactionMarker | None]]:
    """The batches from `start_offset` to `end_offset`, by their headers only where that is enough."""
    for number, segment in enumerate(segments):
        if segment.base_offset >= end_offset:
            return
        if number + 1 < len(segments) and segments[number + 1].base_offset <= start_offset:
            continue
        found = segment.find(start_offset)
        if found is None:
            continue
        for position, header in segment.headers(found.position):
            if header.base_offset >= end_offset:
                return
            marker = None
            if header.is_control:
                marker = end_txn_marker(segment.read(position, header.size), 0, header)
            yield header, marker
