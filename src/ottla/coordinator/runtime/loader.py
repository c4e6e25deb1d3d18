"""Loading: from the log of a partition to the state of its machine.

The whole log is read, up to its end as of the start of the load; what lies above the high watermark is ours
too, since a leader never cuts its own log, and answers wait for it. Records of a transaction are replayed as
such and count when their marker comes. A record of a type from the future is skipped, as Kafka does: an
upgrade that was undone may leave it behind. Anything else that cannot be read fails the load and names its
offset.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from ottla.coordinator.runtime.effects import Machine, Producer, ReplayedRecord
from ottla.protocol.coordinator_records import CoordinatorRecords
from ottla.protocol.errors import ErrorCode, KafkaError, MalformedMessage, UnsupportedVersion
from ottla.protocol.schema import Buffer, Message
from ottla.records.batch import BatchHeader, iter_batches, read_records, verify_crc
from ottla.records.control import ControlType, EndTransactionMarker, read_control_records
from ottla.replication.partition import Partition
from ottla.runtime.pool import Pool

_log = logging.getLogger(__name__)

_RECORDS_AT_A_TIME: Final = 500


async def load(
    partition: Partition, machine: Machine, records: CoordinatorRecords, pool: Pool, read_bytes: int
) -> int:
    """Replay the partition into the machine; the offset up to which the state now reaches."""
    log = partition.log
    end = log.log_end_offset
    offset = log.log_start_offset
    since_yield = 0
    while offset < end:
        data = (await pool.run(lambda at=offset: log.read(at, read_bytes, upper_offset=end))).records
        start = offset
        for position, header in iter_batches(data):
            if header.last_offset < offset:
                continue
            verify_crc(data, position, header)
            _replay_batch(data, position, header, machine, records, str(partition.topic_partition))
            offset = header.next_offset
            since_yield += header.count
            if since_yield >= _RECORDS_AT_A_TIME:
                since_yield = 0
                await asyncio.sleep(0)
        if offset == start:
            # Compaction may have emptied the rest of the log, and retention moves its start.
            if data or log.log_start_offset <= offset:
                break
            offset = log.log_start_offset
    return end


def _replay_batch(
    data: Buffer, position: int, header: BatchHeader, machine: Machine, records: CoordinatorRecords, name: str
) -> None:
    producer = Producer(header.producer_id, header.producer_epoch) if header.is_transactional else None
    if header.is_control:
        for control in read_control_records(data, position):
            if isinstance(control.value, EndTransactionMarker) and producer is not None:
                machine.replay_end_transaction(producer, control.type is ControlType.COMMIT)
        return
    for record in read_records(data, position):
        try:
            if record.key is None:
                raise MalformedMessage("it has no key")
            replayed = _decode(records, record.key, record.value, record.offset, name)
            if replayed is not None:
                key, value = replayed
                machine.replay(ReplayedRecord(key, value, record.offset, record.timestamp, producer))
        except (KafkaError, ValueError, LookupError) as error:
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE,
                f"{name}: the record at offset {record.offset} cannot be read: {error}",
            ) from error


def _decode(
    records: CoordinatorRecords, key: bytes, value: bytes | None, offset: int, name: str
) -> tuple[Message, Message | None] | None:
    try:
        records.decode_key(key)
    except UnsupportedVersion as error:
        _log.warning("%s: the record at offset %d is skipped: %s", name, offset, error)
        return None
    return records.decode(key, value)
