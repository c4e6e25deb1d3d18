"""The keys and values in `__share_group_state`: the progress of share groups in partitions.

A snapshot holds the whole state, and the updates after it what changed since. Framing and tombstones are
those of `ottla.protocol.coordinator_records`.
"""

from __future__ import annotations

from typing import Final

from ottla.protocol.coordinator_records import CoordinatorRecords
from ottla.protocol.schema import Message, Struct, array, int8, int16, int32, int64, string, uuid


class ShareSnapshotKey(Message, api_key=0, versions="0"):
    """The state of a share partition."""

    group_id: str = string()
    topic_id: bytes = uuid()
    partition: int = int32()


class StateBatch(Struct):
    first_offset: int = int64()
    last_offset: int = int64()
    delivery_state: int = int8()
    delivery_count: int = int16()


class ShareSnapshotValue(Message, api_key=0, versions="0", flexible="0+"):
    snapshot_epoch: int = int32()
    state_epoch: int = int32()
    leader_epoch: int = int32()
    start_offset: int = int64()
    delivery_complete_count: int = int32(tag=0, default=-1)
    create_timestamp: int = int64()
    write_timestamp: int = int64()
    state_batches: list[StateBatch] = array(StateBatch)


class ShareUpdateKey(Message, api_key=1, versions="0"):
    """A change to the state of a share partition."""

    group_id: str = string()
    topic_id: bytes = uuid()
    partition: int = int32()


class ShareUpdateValue(Message, api_key=1, versions="0", flexible="0+"):
    snapshot_epoch: int = int32()
    leader_epoch: int = int32()
    start_offset: int = int64()
    delivery_complete_count: int = int32(tag=0, default=-1)
    state_batches: list[StateBatch] = array(StateBatch)


RECORDS: Final = CoordinatorRecords(
    (
        (ShareSnapshotKey, ShareSnapshotValue),
        (ShareUpdateKey, ShareUpdateValue),
    )
)
