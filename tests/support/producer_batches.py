"""Batch headers for tests of the producer state, without the bytes of a batch."""

from __future__ import annotations

from dataclasses import dataclass

from ottla.records.control import ControlType, EndTransactionMarker

MAX_SEQUENCE = 0x7FFF_FFFF


@dataclass(frozen=True)
class FakeBatch:
    producer_id: int
    producer_epoch: int
    base_sequence: int
    base_offset: int
    count: int = 1
    is_transactional: bool = False
    is_control: bool = False
    max_timestamp: int = 0

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.count - 1

    @property
    def last_sequence(self) -> int:
        if self.base_sequence < 0:
            return self.base_sequence
        return (self.base_sequence + self.count - 1) & MAX_SEQUENCE


Logged = tuple[FakeBatch, EndTransactionMarker | None]


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
    batch = FakeBatch(
        producer_id,
        epoch,
        sequence,
        offset,
        count=count,
        is_transactional=transactional,
        max_timestamp=timestamp,
    )
    return batch, None


def end(
    producer_id: int,
    epoch: int,
    offset: int,
    *,
    commit: bool = True,
    coordinator_epoch: int = 0,
    timestamp: int = 0,
) -> Logged:
    batch = FakeBatch(
        producer_id, epoch, -1, offset, is_transactional=True, is_control=True, max_timestamp=timestamp
    )
    return batch, EndTransactionMarker(ControlType.COMMIT if commit else ControlType.ABORT, coordinator_epoch)
