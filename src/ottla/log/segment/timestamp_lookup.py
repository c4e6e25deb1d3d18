"""Finding records by their timestamps.

The time index leads to the first batch that can hold the record; the record itself is found in the batch,
compressed or not. The answers are those of a scan of the whole log from its start offset: also where
timestamps run backwards, and where the log start lies in the middle of a batch or behind the greatest
timestamp of a segment.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ottla.log.segment.segment import LogSegment
from ottla.log.segment.time_index import NO_TIMESTAMP
from ottla.records.batch import BatchHeader, Record, read_records


class TimestampAndOffset(NamedTuple):
    timestamp: int
    offset: int
    leader_epoch: int | None
    """None where the batch has none."""


def first_at_or_after(
    segments: Sequence[LogSegment], timestamp: int, start_offset: int
) -> TimestampAndOffset | None:
    """The first record from `start_offset` on that is not older than `timestamp`."""
    for number, segment in enumerate(segments):
        if number + 1 < len(segments) and segments[number + 1].base_offset <= start_offset:
            continue
        if segment.max_timestamp.timestamp < timestamp:
            continue
        begin = max(segment.time_index.lookup(timestamp).offset, start_offset)
        for position, header in segment.headers(segment.offset_index.lookup(begin).position):
            if header.max_timestamp < timestamp or header.last_offset < start_offset:
                continue
            for record in _records(segment, position, header):
                if record.timestamp >= timestamp and record.offset >= start_offset:
                    return _found(record, header)
    return None


def greatest(segments: Sequence[LogSegment], start_offset: int) -> TimestampAndOffset | None:
    """The first record from `start_offset` on with the greatest timestamp of them; None if none has one."""
    best: TimestampAndOffset | None = None
    for number, segment in enumerate(segments):
        if number + 1 < len(segments) and segments[number + 1].base_offset <= start_offset:
            continue
        if best is not None and segment.max_timestamp.timestamp <= best.timestamp:
            continue
        if segment.base_offset >= start_offset:
            found = _first_with(segment, segment.max_timestamp.timestamp)
        else:
            found = _greatest_in(segment, start_offset)
        if found is not None and (best is None or found.timestamp > best.timestamp):
            best = found
    return best


def _first_with(segment: LogSegment, timestamp: int) -> TimestampAndOffset | None:
    if timestamp < 0:
        return None
    begin = segment.offset_index.lookup(segment.max_timestamp.offset).position
    for position, header in segment.headers(begin):
        if header.max_timestamp >= timestamp:
            for record in _records(segment, position, header):
                if record.timestamp >= timestamp:
                    return _found(record, header)
    return None


def _greatest_in(segment: LogSegment, start_offset: int) -> TimestampAndOffset | None:
    best: TimestampAndOffset | None = None
    known = NO_TIMESTAMP
    for position, header in segment.headers(segment.offset_index.lookup(start_offset).position):
        if header.last_offset < start_offset or header.max_timestamp <= known:
            continue
        for record in _records(segment, position, header):
            if record.offset >= start_offset and record.timestamp > known:
                best, known = _found(record, header), record.timestamp
    return best


def _records(segment: LogSegment, position: int, header: BatchHeader) -> list[Record]:
    return read_records(segment.read(position, header.size))


def _found(record: Record, header: BatchHeader) -> TimestampAndOffset:
    epoch = header.leader_epoch
    return TimestampAndOffset(record.timestamp, record.offset, epoch if epoch >= 0 else None)
