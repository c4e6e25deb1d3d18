"""Compaction of one batch.

Of each key only the newest record stays. The batch keeps its base offset, last offset and sequence numbers,
so that a producer's state can be rebuilt from it; only records are removed. A tombstone or the marker of a
transaction without data must stay until its readers have seen it, so the first cleaning that meets one sets
the delete horizon, until which it stays: the batch's base timestamp becomes the horizon, and the timestamp
deltas are rewritten.

The cleaner decides which batches are dropped as a whole, and whether an empty one stays for its producer's
state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.records._kernel import BatchHeader, Encoder, OffsetMap, copy_records, select_records
from ottla.records.batch import payload_of
from ottla.records.builder import attributes_of, join_batch, seal
from ottla.records.types import HEADER_SIZE, MAX_DECOMPRESSED_BYTES, NO_TIMESTAMP, Codec

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["OffsetMap", "empty_batch", "filter_batch", "map_batch"]


def map_batch(
    buf: Buffer,
    pos: int,
    header: BatchHeader,
    offset_map: OffsetMap,
    *,
    start_offset: int = 0,
    max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES,
) -> bool:
    """Enter the keys of the batch at `pos` into the map; False if it became full before the batch's end."""
    payload = payload_of(buf, pos, header, max_decompressed_bytes=max_decompressed_bytes)
    return offset_map.put_batch(payload, header, start_offset)


def filter_batch(
    buf: Buffer,
    pos: int,
    header: BatchHeader,
    offset_map: OffsetMap,
    *,
    now_ms: int,
    delete_retention_ms: int,
    marker_of_empty_transaction: bool = False,
    level: int | None = None,
    max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES,
) -> bytes | bytearray | memoryview | None:
    """Filter the batch at `pos` (Kafka's `shouldRetainRecord` for each record); return its own bytes if
    nothing changes, None if no record is left.

    Control batches keep their records. A batch whose tombstones have passed their delete horizon loses them;
    `marker_of_empty_transaction` says that this control batch ends a transaction of which no data is left.
    """
    horizon = header.delete_horizon_ms
    payload = payload_of(buf, pos, header, max_decompressed_bytes=max_decompressed_bytes)
    marks: bytes | None = None
    if header.is_control:
        kept, tombstones = header.count, False
    else:
        kept, tombstones, marks = select_records(
            payload, header, offset_map, keep_tombstones=horizon is None or now_ms < horizon
        )
    if not kept:
        return None
    sets_horizon = horizon is None and (tombstones or marker_of_empty_transaction)
    if kept == header.count and not sets_horizon:
        return memoryview(buf)[pos : pos + header.size]
    if sets_horizon:
        horizon = now_ms + delete_retention_ms
    encoder = Encoder(horizon, capacity=memoryview(payload).nbytes)
    copy_records(encoder, payload, header, marks)
    return seal(
        encoder,
        base_offset=header.base_offset,
        codec=header.codec,
        level=level,
        timestamp_type=header.timestamp_type,
        append_time_ms=header.max_timestamp,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        transactional=header.is_transactional,
        control=header.is_control,
        leader_epoch=header.leader_epoch,
        delete_horizon_ms=horizon,
        last_offset=header.last_offset,
    )


def empty_batch(header: BatchHeader) -> bytes:
    """The header of a batch that lost all of its records but keeps its producer and its offsets."""
    batch = join_batch(
        b"",
        base_offset=header.base_offset,
        leader_epoch=header.leader_epoch,
        attributes=attributes_of(
            Codec.NONE,
            header.timestamp_type,
            transactional=header.is_transactional,
            control=header.is_control,
        ),
        last_offset_delta=header.last_offset_delta,
        base_timestamp=NO_TIMESTAMP,
        max_timestamp=header.max_timestamp,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        count=0,
    )
    assert len(batch) == HEADER_SIZE
    return bytes(batch)
