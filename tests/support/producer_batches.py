"""Headers of batches for tests of the producer state, without the records."""

from __future__ import annotations

from ottla.records.batch import BatchHeader
from ottla.records.builder import attributes_of, join_batch
from ottla.records.control import ControlType, EndTransactionMarker
from ottla.records.types import Codec, TimestampType

Logged = tuple[BatchHeader, EndTransactionMarker | None]


def _header(
    producer_id: int,
    epoch: int,
    sequence: int,
    offset: int,
    *,
    timestamp: int,
    count: int = 1,
    transactional: bool = True,
    control: bool = False,
) -> BatchHeader:
    attributes = attributes_of(
        Codec.NONE, TimestampType.CREATE_TIME, transactional=transactional, control=control
    )
    batch = join_batch(
        b"",
        base_offset=offset,
        leader_epoch=0,
        attributes=attributes,
        last_offset_delta=count - 1,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        count=count,
    )
    return BatchHeader.parse(batch)


def data(
    producer_id: int,
    epoch: int,
    sequence: int,
    offset: int,
    *,
    count: int = 1,
    transactional: bool = False,
    timestamp: int = 0,
) -> Logged:
    header = _header(
        producer_id, epoch, sequence, offset, timestamp=timestamp, count=count, transactional=transactional
    )
    return header, None


def end(
    producer_id: int,
    epoch: int,
    offset: int,
    *,
    commit: bool = True,
    coordinator_epoch: int = 0,
    timestamp: int = 0,
) -> Logged:
    header = _header(producer_id, epoch, -1, offset, timestamp=timestamp, control=True)
    return header, EndTransactionMarker(
        ControlType.COMMIT if commit else ControlType.ABORT, coordinator_epoch
    )
