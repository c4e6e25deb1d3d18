"""The state of the share partitions in one partition of `__share_group_state` (`ShareCoordinatorShard`).

A share partition is initialized by the group coordinator at a state epoch, read by each leader of its topic's
partition at its leader epoch, and written by that leader. Invariants:

* a leader that another one has followed, or whose state epoch is not the last one, is fenced: it neither
  reads nor writes;
* within a state epoch the start offset does not go back, nor is a state made again that exists: a request
  that was repeated, and whose first copy arrives late, undoes nothing;
* each state can be rebuilt from its last snapshot and the updates after it, so the records below the last
  snapshots of all share partitions are redundant; they are deleted from time to time.

A share partition that is not in use would keep its old snapshot, and with it all records behind it. So while
others are in use, such a "cold" share partition gets a new snapshot now and then. Both are timed from the
first write after the last time: an idle partition has no deadlines.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from ottla.coordinator.runtime.effects import (
    CoordinatorOperation,
    CoordinatorRecord,
    Effects,
    EventTime,
    ProducerIdAndEpoch,
    ReplayedRecord,
    ReplyTo,
)
from ottla.coordinator.runtime.timers import CoordinatorTimer
from ottla.coordinator.share.config import ShareCoordinatorConfig
from ottla.coordinator.share.persister import (
    UNINITIALIZED_START_OFFSET,
    InitialState,
    PersisterResult,
    ShareState,
    StateSummary,
    WriteState,
)
from ottla.coordinator.share.persister_state_batch_combiner import combine_state_batches
from ottla.coordinator.share.requests import (
    DeleteSharePartitions,
    InitializeSharePartitions,
    NewShareCoordinatorConfig,
    PruneRecords,
    ReadSharePartitions,
    ReadSharePartitionSummaries,
    TopicsDeleted,
    WriteSharePartitions,
)
from ottla.coordinator.share.share_group_offset import ShareGroupOffset, tombstone_record, update_record
from ottla.metadata.image.image import MetadataImage
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import SharePartitionKey
from ottla.protocol.share_state_records import (
    ShareSnapshotKey,
    ShareSnapshotValue,
    ShareUpdateKey,
    ShareUpdateValue,
)

_PRUNE: Final = "prune"
_SNAPSHOT_COLD: Final = "snapshot cold partitions"
_SNAPSHOTS_AT_A_TIME: Final = 100
_NO_EPOCH: Final = -1
_SUCCESS: Final = PersisterResult()


class _SharePartitionState:
    """A share partition in memory: its state, and what fences and prunes it."""

    __slots__ = ("leader_epoch", "offset", "snapshot_offset", "state_epoch", "updates")

    def __init__(self, offset: ShareGroupOffset, snapshot_offset: int) -> None:
        self.offset = offset
        # The highest epochs seen; a request with a lower one is fenced.
        self.leader_epoch = offset.leader_epoch
        self.state_epoch = offset.state_epoch
        # Updates since the last snapshot, and where in the log that is.
        self.updates = 0
        self.snapshot_offset = snapshot_offset

    def on_snapshot(self, offset: ShareGroupOffset, at: int) -> None:
        self.offset = offset
        self.leader_epoch = max(self.leader_epoch, offset.leader_epoch)
        self.state_epoch = max(self.state_epoch, offset.state_epoch)
        self.updates = 0
        self.snapshot_offset = at

    def on_update(self, update: ShareUpdateValue) -> None:
        self.offset = self.offset.merge(update)
        self.leader_epoch = max(self.leader_epoch, update.leader_epoch)
        self.updates += 1


class ShareCoordinatorShard:
    """`image` gives the present metadata: the topics whose partitions may have state."""

    __slots__ = (
        "_cold",
        "_config",
        "_handlers",
        "_image",
        "_last_tombstone",
        "_pruned_offset",
        "_timer",
        "_topics",
        "partitions",
    )

    def __init__(self, config: ShareCoordinatorConfig, image: Callable[[], MetadataImage]) -> None:
        self._config = config
        self._image: Final = image
        self.partitions: Final[dict[SharePartitionKey, _SharePartitionState]] = {}
        # The share partitions of each topic, so that its deletion finds them.
        self._topics: Final[dict[bytes, dict[SharePartitionKey, None]]] = {}
        # Where the last share partition was deleted; the lowest offset that counts if there are no others.
        self._last_tombstone: int | None = None
        self._pruned_offset = 0
        # Share partitions that are still to get a new snapshot in this round.
        self._cold: list[SharePartitionKey] = []
        self._timer: Final[CoordinatorTimer[Callable[[EventTime], Effects]]] = CoordinatorTimer()
        self._handlers: Final[dict[type, Callable[[Any, Any, EventTime], Effects]]] = {
            InitializeSharePartitions: self._initialize,
            ReadSharePartitions: self._read,
            WriteSharePartitions: self._write,
            DeleteSharePartitions: self._delete,
            ReadSharePartitionSummaries: self._read_summaries,
            TopicsDeleted: self._on_topics_deleted,
            NewShareCoordinatorConfig: self._on_new_config,
        }

    # Events

    def handle(
        self, to: ReplyTo[Any] | None, operation: CoordinatorOperation[Any], now: EventTime
    ) -> Effects:
        return self._with_upkeep(self._handlers[type(operation)](to, operation, now), now)

    def on_timer(self, now: EventTime) -> Effects:
        due = self._timer.pop_due(now.tick_ms)
        return Effects() if due is None else self._with_upkeep(due[1](now), now)

    def next_deadline_ms(self) -> int | None:
        return self._timer.next_deadline_ms()

    def on_loaded(self, now: EventTime) -> Effects:
        """Delete the state of topics that were deleted while no coordinator had this partition loaded."""
        topics = self._image().topics.by_id
        effects = self._tombstones([topic_id for topic_id in self._topics if topic_id not in topics])
        if self.partitions or self._last_tombstone is not None:
            self._schedule_upkeep(now)
        return effects

    def on_unloaded(self) -> None:
        self._timer.clear()

    def _on_topics_deleted(self, _to: ReplyTo[None] | None, event: TopicsDeleted, _now: EventTime) -> Effects:
        return self._tombstones(event.topic_ids)

    def _tombstones(self, topic_ids: list[bytes] | tuple[bytes, ...]) -> Effects:
        effects = Effects(atomic=False)
        for topic_id in topic_ids:
            effects.records += [tombstone_record(key) for key in self._topics.get(topic_id, ())]
        return effects

    def _on_new_config(
        self, _to: ReplyTo[None] | None, event: NewShareCoordinatorConfig, _now: EventTime
    ) -> Effects:
        self._config = event.config
        return Effects()

    # Requests

    def _initialize(
        self, to: ReplyTo[list[PersisterResult]] | None, request: InitializeSharePartitions, now: EventTime
    ) -> Effects:
        effects = Effects(atomic=False)
        results = []
        for (topic_id, partition), initial in request.partitions:
            key = SharePartitionKey(request.group_id, topic_id, partition)
            error = self._initialize_error(key, initial)
            state = self.partitions.get(key)
            # One without a start offset asks for a state to begin with, and there may be one by now.
            is_there = state is not None and initial.start_offset == UNINITIALIZED_START_OFFSET
            if error is None and not is_there:
                snapshot_epoch = 0 if state is None else state.offset.snapshot_epoch + 1
                offset = ShareGroupOffset.initial(initial, snapshot_epoch, now.wall_ms)
                effects.records.append(offset.snapshot_record(key))
            results.append(error or _SUCCESS)
        return effects.reply(to, results)

    def _initialize_error(self, key: SharePartitionKey, initial: InitialState) -> PersisterResult | None:
        if key.partition < 0:
            return _NEGATIVE_PARTITION
        state = self.partitions.get(key)
        if state is not None and _NO_EPOCH != initial.state_epoch < state.state_epoch:
            return _failure(ErrorCode.FENCED_STATE_EPOCH)
        return self._unknown_partition(key)

    def _write(
        self, to: ReplyTo[list[PersisterResult]] | None, request: WriteSharePartitions, now: EventTime
    ) -> Effects:
        effects = Effects(atomic=False)
        results = []
        combined: dict[SharePartitionKey, WriteState] = {}
        for key, write in request.writes:
            error = self._write_error(key, write)
            if error is None:
                before = combined.get(key)
                combined[key] = write if before is None else _combine(before, write)
            results.append(error or _SUCCESS)
        for key, write in combined.items():
            state = self.partitions[key]
            record = self._state_record(key, state, write, state.offset.leader_epoch, now.wall_ms)
            effects.records.append(record)
        return effects.reply(to, results)

    def _write_error(self, key: SharePartitionKey, write: WriteState) -> PersisterResult | None:
        if key.partition < 0:
            return _NEGATIVE_PARTITION
        state = self.partitions.get(key)
        if state is None:
            return _failure(
                ErrorCode.INVALID_REQUEST, "Write operation on uninitialized share partition not allowed."
            )
        if _NO_EPOCH != write.leader_epoch < state.leader_epoch:
            return _failure(ErrorCode.FENCED_LEADER_EPOCH)
        if _NO_EPOCH != write.state_epoch < state.state_epoch:
            return _failure(ErrorCode.FENCED_STATE_EPOCH)
        return self._unknown_partition(key)

    def _state_record(
        self,
        key: SharePartitionKey,
        state: _SharePartitionState,
        write: WriteState,
        leader_epoch: int,
        wall_ms: int,
    ) -> CoordinatorRecord:
        """The record of a change: an update, or a snapshot after enough updates."""
        current = state.offset
        if write.start_offset != UNINITIALIZED_START_OFFSET and write.start_offset < current.start_offset:
            write = replace(
                write,
                start_offset=current.start_offset,
                delivery_complete_count=current.delivery_complete_count,
            )
        if state.updates < self._config.snapshot_update_records_per_snapshot:
            return update_record(
                key,
                snapshot_epoch=current.snapshot_epoch,
                leader_epoch=leader_epoch,
                start_offset=write.start_offset,
                delivery_complete_count=write.delivery_complete_count,
                batches=combine_state_batches((), write.batches, write.start_offset),
                dead_letter_place=write.dead_letter_place,
            )
        start_offset = write.start_offset
        if start_offset == UNINITIALIZED_START_OFFSET:
            start_offset = current.start_offset
        snapshot = ShareGroupOffset(
            snapshot_epoch=current.snapshot_epoch + 1,
            state_epoch=current.state_epoch,
            leader_epoch=leader_epoch,
            start_offset=start_offset,
            delivery_complete_count=write.delivery_complete_count,
            batches=combine_state_batches(current.batches, write.batches, start_offset),
            create_timestamp_ms=wall_ms,
            write_timestamp_ms=wall_ms,
            dead_letter_place=write.dead_letter_place or current.dead_letter_place,
        )
        return snapshot.snapshot_record(key)

    def _read(
        self, to: ReplyTo[list[ShareState]] | None, request: ReadSharePartitions, now: EventTime
    ) -> Effects:
        """Read states. The epoch of a new leader is written first: it fences the leaders before it."""
        effects = Effects(atomic=False)
        results = []
        for (topic_id, partition), leader_epoch in request.partitions:
            key = SharePartitionKey(request.group_id, topic_id, partition)
            error = self._read_error(key, leader_epoch)
            if error is not None:
                results.append(ShareState(error.error, error.error_message))
                continue
            state = self.partitions[key]
            current = state.offset
            results.append(
                ShareState(
                    state_epoch=current.state_epoch,
                    start_offset=current.start_offset,
                    batches=tuple(current.batches),
                    dead_letter_place=current.dead_letter_place,
                )
            )
            if leader_epoch not in (_NO_EPOCH, state.leader_epoch):
                unchanged = WriteState(
                    current.state_epoch, leader_epoch, current.start_offset, current.delivery_complete_count
                )
                effects.records.append(self._state_record(key, state, unchanged, leader_epoch, now.wall_ms))
        return effects.reply(to, results)

    def _read_error(self, key: SharePartitionKey, leader_epoch: int) -> PersisterResult | None:
        if key.partition < 0:
            return _NEGATIVE_PARTITION
        state = self.partitions.get(key)
        if state is None:
            return _failure(
                ErrorCode.INVALID_REQUEST, "Read operation on uninitialized share partition not allowed."
            )
        if _NO_EPOCH != leader_epoch < state.leader_epoch:
            return _failure(ErrorCode.FENCED_LEADER_EPOCH)
        return self._unknown_partition(key)

    def _delete(
        self, to: ReplyTo[list[PersisterResult]] | None, request: DeleteSharePartitions, _now: EventTime
    ) -> Effects:
        effects = Effects(atomic=False)
        results = []
        for (topic_id, partition), _ in request.partitions:
            key = SharePartitionKey(request.group_id, topic_id, partition)
            error = _NEGATIVE_PARTITION if partition < 0 else self._unknown_partition(key)
            if error is None and key in self.partitions:
                effects.records.append(tombstone_record(key))
            results.append(error or _SUCCESS)
        return effects.reply(to, results)

    def _read_summaries(
        self, to: ReplyTo[list[StateSummary]] | None, request: ReadSharePartitionSummaries, _now: EventTime
    ) -> Effects:
        results = []
        for (topic_id, partition), _ in request.partitions:
            key = SharePartitionKey(request.group_id, topic_id, partition)
            error = _NEGATIVE_PARTITION if partition < 0 else self._unknown_partition(key)
            state = self.partitions.get(key)
            if error is not None:
                results.append(StateSummary(error.error, error.error_message))
            elif state is None:
                results.append(StateSummary())
            else:
                current = state.offset
                results.append(
                    StateSummary(
                        state_epoch=current.state_epoch,
                        leader_epoch=current.leader_epoch,
                        start_offset=current.start_offset,
                        delivery_complete_count=current.delivery_complete_count,
                    )
                )
        return Effects().reply(to, results)

    def _unknown_partition(self, key: SharePartitionKey) -> PersisterResult | None:
        if self._image().topics.partition(key.topic_id, key.partition) is None:
            return _failure(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return None

    # Redundant records

    def _with_upkeep(self, effects: Effects, now: EventTime) -> Effects:
        if effects.records:
            self._schedule_upkeep(now)
        return effects

    def _schedule_upkeep(self, now: EventTime) -> None:
        """Set the deadlines that are not set, after a write."""
        if _PRUNE not in self._timer:
            self._timer.schedule(_PRUNE, now.tick_ms + self._config.prune_interval_ms, self._prune)
        if _SNAPSHOT_COLD not in self._timer:
            at = now.tick_ms + self._config.cold_partition_snapshot_interval_ms
            self._timer.schedule(_SNAPSHOT_COLD, at, self._snapshot_cold_partitions)

    def _prune(self, _now: EventTime) -> Effects:
        """Have the redundant records deleted, once all that makes them redundant is committed."""
        effects = Effects()
        offset = self.last_redundant_offset()
        if offset is not None and offset > self._pruned_offset:
            self._pruned_offset = offset
            effects.sends.append(PruneRecords(offset))
        return effects

    def last_redundant_offset(self) -> int | None:
        """The offset below which no record counts; None if there is none."""
        lowest = min((state.snapshot_offset for state in self.partitions.values()), default=None)
        return self._last_tombstone if lowest is None else lowest

    def _snapshot_cold_partitions(self, now: EventTime) -> Effects:
        """Write new snapshots of share partitions whose last one is old, unless all are like that."""
        interval_ms = self._config.cold_partition_snapshot_interval_ms
        if not self._cold:
            if all(state.offset.is_rewritten for state in self.partitions.values()):
                return Effects()
            self._cold = [
                key
                for key, state in self.partitions.items()
                if now.wall_ms - state.offset.write_timestamp_ms >= interval_ms
            ]
        part, self._cold = self._cold[:_SNAPSHOTS_AT_A_TIME], self._cold[_SNAPSHOTS_AT_A_TIME:]
        effects = Effects(atomic=False)
        for key in part:
            state = self.partitions.get(key)
            if state is not None:
                again = replace(
                    state.offset,
                    snapshot_epoch=state.offset.snapshot_epoch + 1,
                    write_timestamp_ms=now.wall_ms,
                )
                effects.records.append(again.snapshot_record(key))
        # The rest in turns of their own, and then the share partitions that are in use now.
        delay_ms = 1 if self._cold else interval_ms
        self._timer.schedule(_SNAPSHOT_COLD, now.tick_ms + delay_ms, self._snapshot_cold_partitions)
        return effects

    # Replay

    def replay(self, record: ReplayedRecord) -> None:
        key, value = record.key, record.value
        if isinstance(key, ShareSnapshotKey):
            share_partition = SharePartitionKey(key.group_id, key.topic_id, key.partition)
            if value is None:
                self._remove(share_partition)
                self._last_tombstone = record.offset
                return
            assert isinstance(value, ShareSnapshotValue), value
            offset = ShareGroupOffset.from_snapshot(value)
            state = self.partitions.get(share_partition)
            if state is None:
                self._add(share_partition, _SharePartitionState(offset, record.offset))
            else:
                state.on_snapshot(offset, record.offset)
        elif isinstance(key, ShareUpdateKey) and value is not None:
            assert isinstance(value, ShareUpdateValue), value
            share_partition = SharePartitionKey(key.group_id, key.topic_id, key.partition)
            state = self.partitions.get(share_partition)
            if state is None:
                offset = ShareGroupOffset.from_update(value)
                self._add(share_partition, _SharePartitionState(offset, record.offset))
            else:
                state.on_update(value)

    def replay_end_transaction(self, _producer: ProducerIdAndEpoch, _commit: bool) -> None:
        """Nothing in this topic is written by transactions."""

    def _add(self, key: SharePartitionKey, state: _SharePartitionState) -> None:
        self.partitions[key] = state
        self._topics.setdefault(key.topic_id, {})[key] = None

    def _remove(self, key: SharePartitionKey) -> None:
        if self.partitions.pop(key, None) is not None:
            of_topic = self._topics[key.topic_id]
            del of_topic[key]
            if not of_topic:
                del self._topics[key.topic_id]


def _combine(first: WriteState, second: WriteState) -> WriteState:
    """Two writes of a share partition as one; each has passed the fencing."""
    return replace(
        second,
        start_offset=max(first.start_offset, second.start_offset),
        batches=(*first.batches, *second.batches),
        dead_letter_place=second.dead_letter_place or first.dead_letter_place,
    )


def _failure(code: ErrorCode, message: str | None = None) -> PersisterResult:
    return PersisterResult(code, KafkaError(code, message).message)


_NEGATIVE_PARTITION: Final = _failure(
    ErrorCode.INVALID_REQUEST, "The partition id cannot be a negative number."
)
