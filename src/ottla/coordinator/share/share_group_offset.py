"""The state of one share partition, and the records that it is written as.

A snapshot is the whole state; an update is a change since, and carries the epoch of the snapshot that it
follows. Both are written in the versions in which Kafka 4.3 writes them
(`ShareCoordinatorRecordHelpers`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

from ottla.coordinator.runtime.effects import CoordinatorRecord
from ottla.coordinator.share.persister import (
    UNINITIALIZED_DELIVERY_COMPLETE_COUNT,
    UNINITIALIZED_START_OFFSET,
    InitialState,
    PersisterStateBatch,
)
from ottla.coordinator.share.persister_state_batch_combiner import (
    combine_state_batches,
    ordered_state_batches,
)
from ottla.protocol.names import SharePartitionKey
from ottla.protocol.share import DeadLetterPlace
from ottla.protocol.share_state_records import (
    ShareSnapshotKey,
    ShareSnapshotValue,
    ShareUpdateKey,
    ShareUpdateValue,
    StateBatch,
)


@dataclass(frozen=True, slots=True)
class ShareGroupOffset:
    """A share partition's state as of its last record."""

    snapshot_epoch: int
    """How many snapshots the state has had before its last one."""
    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: Sequence[PersisterStateBatch]
    """In the order of offsets, without overlaps, none below the start offset."""
    create_timestamp_ms: int
    write_timestamp_ms: int
    """When the last snapshot was written; later than `create_timestamp_ms` if it only repeats the state."""
    dead_letter_place: DeadLetterPlace | None = None

    @property
    def is_initialized(self) -> bool:
        """Whether a leader has begun with it; until then the settings of the group say where it starts."""
        return (
            self.start_offset != UNINITIALIZED_START_OFFSET
            and self.delivery_complete_count != UNINITIALIZED_DELIVERY_COMPLETE_COUNT
        )

    @property
    def is_rewritten(self) -> bool:
        """Whether the last snapshot was only written because the share partition was not in use."""
        return self.create_timestamp_ms != self.write_timestamp_ms

    @classmethod
    def initial(cls, state: InitialState, snapshot_epoch: int, now_ms: int) -> ShareGroupOffset:
        known = state.start_offset != UNINITIALIZED_START_OFFSET
        return cls(
            snapshot_epoch=snapshot_epoch,
            state_epoch=state.state_epoch,
            leader_epoch=0,
            start_offset=state.start_offset,
            delivery_complete_count=0 if known else UNINITIALIZED_DELIVERY_COMPLETE_COUNT,
            batches=(),
            create_timestamp_ms=now_ms,
            write_timestamp_ms=now_ms,
        )

    @classmethod
    def from_snapshot(cls, value: ShareSnapshotValue) -> ShareGroupOffset:
        return cls(
            snapshot_epoch=value.snapshot_epoch,
            state_epoch=value.state_epoch,
            leader_epoch=value.leader_epoch,
            start_offset=value.start_offset,
            delivery_complete_count=value.delivery_complete_count,
            batches=ordered_state_batches(_read_batches(value.state_batches), value.start_offset),
            create_timestamp_ms=value.create_timestamp,
            write_timestamp_ms=value.write_timestamp,
            dead_letter_place=DeadLetterPlace.of(value),
        )

    @classmethod
    def from_update(cls, value: ShareUpdateValue) -> ShareGroupOffset:
        """Restore a state from an update alone, where the log no longer has the snapshot before it."""
        return cls(
            snapshot_epoch=value.snapshot_epoch,
            state_epoch=0,
            leader_epoch=value.leader_epoch,
            start_offset=value.start_offset,
            delivery_complete_count=value.delivery_complete_count,
            batches=combine_state_batches((), _read_batches(value.state_batches), value.start_offset),
            create_timestamp_ms=0,
            write_timestamp_ms=0,
            dead_letter_place=DeadLetterPlace.of(value),
        )

    def merge(self, update: ShareUpdateValue) -> ShareGroupOffset:
        """The state after an update."""
        start_offset = self.start_offset if update.start_offset == -1 else update.start_offset
        return ShareGroupOffset(
            snapshot_epoch=self.snapshot_epoch,
            state_epoch=self.state_epoch,
            leader_epoch=self.leader_epoch if update.leader_epoch == -1 else update.leader_epoch,
            start_offset=start_offset,
            delivery_complete_count=update.delivery_complete_count,
            batches=combine_state_batches(self.batches, _read_batches(update.state_batches), start_offset),
            create_timestamp_ms=self.create_timestamp_ms,
            write_timestamp_ms=self.write_timestamp_ms,
            dead_letter_place=DeadLetterPlace.of(update) or self.dead_letter_place,
        )

    def snapshot_record(self, key: SharePartitionKey) -> CoordinatorRecord:
        value = ShareSnapshotValue(
            snapshot_epoch=self.snapshot_epoch,
            state_epoch=self.state_epoch,
            leader_epoch=self.leader_epoch,
            start_offset=self.start_offset,
            delivery_complete_count=self.delivery_complete_count,
            create_timestamp=self.create_timestamp_ms,
            write_timestamp=self.write_timestamp_ms,
            state_batches=_written_batches(self.batches),
        )
        if self.dead_letter_place is not None:
            self.dead_letter_place.put(value)
        return CoordinatorRecord(_snapshot_key(key), value)


def update_record(
    key: SharePartitionKey,
    *,
    snapshot_epoch: int,
    leader_epoch: int,
    start_offset: int,
    delivery_complete_count: int,
    batches: Iterable[PersisterStateBatch],
    dead_letter_place: DeadLetterPlace | None = None,
) -> CoordinatorRecord:
    """A change of the state; a start offset of -1 leaves it as it is, and so does no place."""
    value = ShareUpdateValue(
        snapshot_epoch=snapshot_epoch,
        leader_epoch=leader_epoch,
        start_offset=start_offset,
        delivery_complete_count=delivery_complete_count,
        state_batches=_written_batches(batches),
    )
    if dead_letter_place is not None:
        dead_letter_place.put(value)
    return CoordinatorRecord(
        ShareUpdateKey(group_id=key.group_id, topic_id=key.topic_id, partition=key.partition), value
    )


def tombstone_record(key: SharePartitionKey) -> CoordinatorRecord:
    return CoordinatorRecord(_snapshot_key(key), None)


def _snapshot_key(key: SharePartitionKey) -> ShareSnapshotKey:
    return ShareSnapshotKey(group_id=key.group_id, topic_id=key.topic_id, partition=key.partition)


def _read_batches(batches: Sequence[StateBatch]) -> Sequence[PersisterStateBatch]:
    if batches and isinstance(batches[0], PersisterStateBatch):
        return cast("list[PersisterStateBatch]", batches)
    return [
        PersisterStateBatch(batch.first_offset, batch.last_offset, batch.delivery_state, batch.delivery_count)
        for batch in batches
    ]


def _written_batches(batches: Iterable[PersisterStateBatch]) -> list[StateBatch]:
    """The batches as those of a record, which is encoded and replayed at once, and not kept.

    They have the attributes of a `StateBatch`, and there may be thousands in a snapshot: making them all
    twice would take most of the time of its write.
    """
    return cast("list[StateBatch]", list(batches))
