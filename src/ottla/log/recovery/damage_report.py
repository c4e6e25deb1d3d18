"""Find the whole batches behind a damaged one: they are lost with it, and the loss is reported.

Where batches follow the damage, they hold records that were not synced and are lost with it. They
are searched byte by byte, since the damage may be in a length. A header is believed only if its offsets can
belong to the segment, so that the search does not check the sum of a gigabyte for every byte that looks like
a beginning.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.log.segment.segment import LogSegment
from ottla.protocol.errors import KafkaError
from ottla.records.batch import HEADER_SIZE, BatchHeader, verify_crc

_SEARCH_BYTES = 1024 * 1024
_MAGIC = b"\x02"
_MAGIC_POSITION = 16


class WholeBatches(NamedTuple):
    """Whole batches, and the offsets that they span."""

    batches: int
    first_offset: int
    last_offset: int
    first_timestamp: int
    last_timestamp: int


def find_whole_batches(segment: LogSegment, position: int) -> WholeBatches | None:
    """The whole batches at or behind `position`, wherever they begin; None if there is none."""
    count = 0
    first: BatchHeader | None = None
    last: BatchHeader | None = None
    first_timestamp, last_timestamp = 1 << 63, -1
    size = segment.size
    while size - position >= HEADER_SIZE:
        chunk = segment.read(position, _SEARCH_BYTES)
        step = max(len(chunk) - HEADER_SIZE + 1, 1)
        at = _next_beginning(chunk, 0)
        while at is not None and at < step:
            header = _whole_batch(segment, position + at, size)
            if header is None:
                at = _next_beginning(chunk, at + 1)
                continue
            count += 1
            first = first or header
            last = header
            first_timestamp = min(first_timestamp, header.base_timestamp)
            last_timestamp = max(last_timestamp, header.max_timestamp)
            at += header.size
            if at >= step:
                step = at
                break
            at = _next_beginning(chunk, at)
        position += step
    if first is None or last is None:
        return None
    return WholeBatches(count, first.base_offset, last.last_offset, first_timestamp, last_timestamp)


def _next_beginning(chunk: bytes, at: int) -> int | None:
    found = chunk.find(_MAGIC, at + _MAGIC_POSITION)
    return found - _MAGIC_POSITION if found >= 0 else None


def _whole_batch(segment: LogSegment, position: int, size: int) -> BatchHeader | None:
    try:
        header = BatchHeader.parse(segment.read(position, HEADER_SIZE))
        if header.size > size - position or not (
            segment.base_offset <= header.base_offset <= header.last_offset
            and segment.fits(header.last_offset)
        ):
            return None
        verify_crc(segment.read(position, header.size), 0, header)
    except KafkaError:
        return None
    return header
