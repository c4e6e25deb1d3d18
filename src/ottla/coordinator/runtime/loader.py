"""Load the log of a coordinator's partition into its shard (Kafka's `CoordinatorLoader`).

The whole log is read, up to its end as of the start of the load. Records above the high watermark count too,
since a leader never truncates its own log, and replies wait until they are committed. Records of a
transaction are replayed as such and count when their marker comes. A record of an unknown type is skipped,
as Kafka does: an upgrade that was undone may leave it behind. Any other record that cannot be read fails the
load; the error names its offset.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final

from ottla.coordinator.runtime.effects import CoordinatorShard, ProducerIdAndEpoch, ReplayedRecord
from ottla.protocol.coordinator_records import CoordinatorRecords
from ottla.protocol.errors import ErrorCode, KafkaError, MalformedMessage, UnsupportedVersion
from ottla.protocol.schema import Buffer, Message
from ottla.records.batch import BatchHeader, iter_batches, read_records, verify_crc
from ottla.records.control import ControlType, EndTransactionMarker, read_control_records
from ottla.replication.partition import Partition
from ottla.runtime.pool import Pool

_log = logging.getLogger(__name__)

_RECORDS_AT_A_TIME: Final = 150


async def load_partition(
    partition: Partition, shard: CoordinatorShard, records: CoordinatorRecords, pool: Pool, read_bytes: int
) -> int:
    """Replay the partition into the shard, and make a new log durable; returns the offset up to which the
    state now reaches.
    """
    log = partition.log
    if log.is_new:
        # The first write of the coordinator would do it on the event loop, where it waits for the disk.
        with contextlib.suppress(KafkaError):  # that write tries it again, and says why it cannot
            await log.complete_creation_in(pool)
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
            _replay_batch(data, position, header, shard, records, str(partition.topic_partition))
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
    data: Buffer,
    position: int,
    header: BatchHeader,
    shard: CoordinatorShard,
    records: CoordinatorRecords,
    name: str,
) -> None:
    producer = (
        ProducerIdAndEpoch(header.producer_id, header.producer_epoch) if header.is_transactional else None
    )
    if header.is_control:
        for control in read_control_records(data, position):
            if isinstance(control.value, EndTransactionMarker) and producer is not None:
                shard.replay_end_transaction(producer, control.type is ControlType.COMMIT)
        return
    for record in read_records(data, position):
        try:
            if record.key is None:
                raise MalformedMessage("it has no key")
            replayed = _decode(records, record.key, record.value, record.offset, name)
            if replayed is not None:
                key, value = replayed
                shard.replay(ReplayedRecord(key, value, record.offset, record.timestamp, producer))
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
