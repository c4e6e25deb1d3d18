"""Reading a log: by offset, by time, and the aborted transactions of a range.

The bound of a read is an offset (the high watermark, the last stable offset); where it lies in its segment is
remembered, for the readers at the end of a log all ask with the same one. All of this may run in another
thread than the event loop: the list of segments is replaced and never changed, and a segment that goes keeps
its open file until the reader is done.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.log.log_core import LogCore
from ottla.log.segment import timestamp_lookup as lookup
from ottla.log.segment.segment import LogSegment
from ottla.log.segment.timestamp_lookup import TimestampAndOffset
from ottla.log.segment.txn_index import AbortedTxn
from ottla.protocol.errors import ErrorCode, KafkaError


class FetchDataInfo(NamedTuple):
    records: bytes
    """Batches; the first may begin below the offset asked for, the last may be cut by the size limit."""
    offset: int
    """The offset asked for."""
    segment_base_offset: int
    position: int
    """Where the records lie in that segment's file; -1 if there are none."""


def read(
    core: LogCore, offset: int, max_bytes: int, upper_offset: int | None, min_one_batch: bool
) -> FetchDataInfo:
    core.check_usable()
    local = core.local
    end = local.log_end_offset
    upper = end if upper_offset is None else min(upper_offset, end)
    if not core.log_start_offset <= offset <= end:
        raise KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"{core.partition} has no offset {offset}, only {core.log_start_offset} to {end}",
        )
    if offset < upper:
        try:
            for segment in local.segments_from(offset):
                if segment.base_offset >= upper:
                    break
                found = segment.find(offset)
                if found is not None:
                    limit = _upper_position(core, segment, upper, end) - found.position
                    size = max(max_bytes, found.size) if min_one_batch else max_bytes
                    data = segment.read(found.position, min(size, limit)) if size > 0 < limit else b""
                    return FetchDataInfo(data, offset, segment.base_offset, found.position)
        except OSError as error:
            raise core.guard("reading").failure(error) from error
        # Compaction may have left nothing there; or the log is shorter than its last shutdown said.
        core.verify_end()
    return FetchDataInfo(b"", offset, local.active.base_offset, -1)


def _upper_position(core: LogCore, segment: LogSegment, upper: int, end: int) -> int:
    """Where in `segment` the batches below `upper` end."""
    if upper >= end:
        return segment.size
    known = core.upper
    if known is not None and known[0] == upper and known[1] is segment:
        return known[2]
    found = segment.find(upper)
    if found is None:
        return segment.size
    core.upper = (upper, segment, found.position)
    return found.position


def offset_for_timestamp(core: LogCore, timestamp: int) -> TimestampAndOffset | None:
    core.check_usable()
    with core.guard("searching a timestamp"):
        return lookup.first_at_or_after(core.segments, timestamp, core.log_start_offset)


def offset_for_max_timestamp(core: LogCore) -> TimestampAndOffset | None:
    core.check_usable()
    with core.guard("searching the greatest timestamp"):
        return lookup.greatest(core.segments, core.log_start_offset)


def aborted_transactions(core: LogCore, start_offset: int, upper_offset: int) -> list[AbortedTxn]:
    aborted: list[AbortedTxn] = []
    with core.guard("reading the transaction index"):
        for segment in core.local.segments_from(start_offset):
            core.producers.mend_txn_index(segment)
            found = segment.txn_index.collect(start_offset, upper_offset)
            aborted.extend(found.aborted)
            if found.is_complete:
                break
    return aborted
