"""What comes into an append and what comes out of it.

A leader checks what producers send and gives it its place (`from_producer`); a follower, and the leader of
the metadata log, append batches that have their place already and only see that they are whole and follow on
(`as_given`). Both end in `Incoming`, the batches as they will be written.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.log.append_origin import AppendOrigin
from ottla.log.log_config import LogConfig
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import TopicPartition
from ottla.records.batch import BatchHeader, iter_batches, verify_crc
from ottla.records.types import NO_PRODUCER_ID, NO_TIMESTAMP, TimestampType
from ottla.records.validation import validate_and_assign_offsets
from ottla.runtime.disk import Buffer

MAX_OFFSET = (1 << 63) - 1


class LogAppendInfo(NamedTuple):
    first_offset: int
    last_offset: int
    max_timestamp: int
    log_append_time: int
    """The time that the broker gave the records; -1 where the producer's timestamps stand."""
    log_start_offset: int
    last_leader_epoch: int = -1
    """Of the last batch; -1 if nothing was appended."""
    size: int = 0
    """Bytes appended: 0 for a duplicate, and where a follower's fetch held nothing new."""
    duplicate: bool = False
    """True if the batch had been appended before; the offsets are those of the first time."""
    rolled: bool = False
    """True if a segment was closed by this append; it is then due to be flushed."""
    flush_due: bool = False
    """True if `flush.messages` asks for a flush that was left to the caller."""


class UnexpectedAppendOffset(KafkaError):
    """A follower was given batches that begin below the end of its log."""

    __slots__ = ("first_offset", "last_offset")

    def __init__(self, message: str, first_offset: int, last_offset: int) -> None:
        super().__init__(ErrorCode.OFFSET_OUT_OF_RANGE, message)
        self.first_offset = first_offset
        self.last_offset = last_offset


class Incoming(NamedTuple):
    """Batches with their final offsets and epochs, at least one."""

    data: memoryview
    batches: list[BatchHeader]
    max_timestamp: int
    append_time: int

    @property
    def has_producers(self) -> bool:
        for batch in self.batches:  # noqa: SIM110 - every append asks
            if batch.producer_id != NO_PRODUCER_ID:
                return True
        return False


def from_producer(
    data: Buffer, config: LogConfig, first_offset: int, leader_epoch: int, now_ms: int, origin: AppendOrigin
) -> Incoming:
    """Check batches against the topic's settings and give them offsets from `first_offset` on."""
    timestamp_type = config.message_timestamp_type
    records = validate_and_assign_offsets(
        data,
        first_offset=first_offset,
        leader_epoch=leader_epoch,
        now_ms=now_ms,
        timestamp_type=timestamp_type,
        before_max_ms=config.message_timestamp_before_max_ms,
        after_max_ms=config.message_timestamp_after_max_ms,
        compacted=config.compact,
        codec_target=config.target_codec,
        level=config.target_level,
        max_message_bytes=config.max_message_bytes,
        origin=origin,
    )
    append_time = now_ms if timestamp_type is TimestampType.LOG_APPEND_TIME else NO_TIMESTAMP
    return Incoming(records.buffer, records.batches, records.max_timestamp, append_time)


def check_offsets(header: BatchHeader, partition: TopicPartition) -> None:
    """The log must end above the batch: it must not span less than nothing, nor reach the last offset of all,
    after which there is none to go on with.
    """
    if not 0 <= header.base_offset <= header.last_offset < MAX_OFFSET:
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            f"{partition}: a batch that begins at offset {header.base_offset} and spans "
            f"{header.last_offset_delta + 1} offsets; no log holds that",
        )


def as_given(
    data: Buffer, partition: TopicPartition, end_offset: int, leader_epoch: int, origin: AppendOrigin
) -> Incoming | None:
    """Check that batches with offsets follow on the end of the log; None if there is none to append.

    A follower leaves out what is of a later epoch than it asked for: the sender has lost its leadership
    since.
    """
    batches: list[BatchHeader] = []
    size = 0
    max_timestamp = NO_TIMESTAMP
    for at, header in iter_batches(data):
        if header.leader_epoch != leader_epoch and origin is AppendOrigin.RAFT_LEADER:
            raise KafkaError(
                ErrorCode.INVALID_RECORD,
                f"{partition}: a batch of epoch {header.leader_epoch} from the leader of {leader_epoch}",
            )
        if header.leader_epoch > leader_epoch:
            break
        verify_crc(data, at, header)
        if header.base_offset < end_offset:
            raise UnexpectedAppendOffset(
                f"{partition}: a batch from {header.base_offset} to {header.last_offset} begins below the "
                f"end of the log, {end_offset}",
                header.base_offset,
                header.last_offset,
            )
        check_offsets(header, partition)
        end_offset = header.next_offset
        max_timestamp = max(max_timestamp, header.max_timestamp)
        batches.append(header)
        size = at + header.size
    if not batches:
        return None
    view = memoryview(data)
    return Incoming(view if view.nbytes == size else view[:size], batches, max_timestamp, NO_TIMESTAMP)
