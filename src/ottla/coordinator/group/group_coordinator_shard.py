"""The groups and offsets of one partition of `__consumer_offsets`: the shard of the group coordinator.

It passes operations on to the manager that handles them, and replays records into groups and offsets. The
record of an offset creates a simple group where there is none; the records of another group replace it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ottla.coordinator.group.classic.classic_group import ClassicGroup, unknown_member
from ottla.coordinator.group.classic_group_manager import ClassicGroupManager, join_error
from ottla.coordinator.group.config import GroupSettings
from ottla.coordinator.group.consumer.consumer_group import ConsumerGroup
from ottla.coordinator.group.consumer_group_manager import ConsumerGroupManager
from ottla.coordinator.group.group_metadata_manager import GroupMetadataManager, group_tombstones
from ottla.coordinator.group.migration import GroupMigration
from ottla.coordinator.group.offset_metadata_manager import OffsetMetadataManager
from ottla.coordinator.group.requests import (
    AlterShareGroupOffsets,
    CommitOffsets,
    CommitTransactionalOffsets,
    CompleteDeleteShareGroupOffsets,
    ConsumerGroupHeartbeat,
    DeleteGroup,
    DeleteOffsets,
    DeleteShareGroupOffsets,
    DescribeClassicGroup,
    DescribeConsumerGroup,
    DescribeShareGroup,
    DescribeStreamsGroup,
    FetchOffsets,
    Heartbeat,
    InitializedSharePartitions,
    JoinGroup,
    LeaveGroup,
    ListGroups,
    NewGroupSettings,
    NewMetadataImage,
    ShareGroupHeartbeat,
    ShareStatesInitialized,
    StreamsGroupHeartbeat,
    SyncGroup,
    UpdateTopologyDescription,
)
from ottla.coordinator.group.share.share_group import ShareGroup
from ottla.coordinator.group.share_group_manager import ShareGroupManager
from ottla.coordinator.group.streams.streams_group import StreamsGroup
from ottla.coordinator.group.streams_group_manager import StreamsGroupManager
from ottla.coordinator.runtime.effects import (
    CoordinatorOperation,
    CoordinatorRecord,
    Effects,
    EventTime,
    ProducerIdAndEpoch,
    ReplayedRecord,
    ReplyTo,
)
from ottla.metadata.image.image import MetadataImage
from ottla.protocol.consumer_offsets_records import LegacyOffsetCommitKey, OffsetCommitKey
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.heartbeat import HeartbeatResponse
from ottla.protocol.messages.join_group import JoinGroupResponse
from ottla.protocol.messages.leave_group import LeaveGroupResponse
from ottla.protocol.messages.sync_group import SyncGroupResponse
from ottla.protocol.names import TopicIdPartition

_EXPIRY: Final = "expiry"


class GroupCoordinatorShard:
    """`new_id` makes ids for members; it must not give one twice."""

    __slots__ = (
        "_classic_groups",
        "_consumer_groups",
        "_handlers",
        "_share_groups",
        "_streams_groups",
        "metadata",
        "offsets",
    )

    def __init__(self, settings: GroupSettings, image: MetadataImage, new_id: Callable[[], str]) -> None:
        self.metadata: Final = GroupMetadataManager(settings, image, new_id)
        self._classic_groups: Final = ClassicGroupManager(self.metadata)
        self._consumer_groups: Final = ConsumerGroupManager(
            self.metadata, GroupMigration(self.metadata, self._classic_groups)
        )
        self._share_groups: Final = ShareGroupManager(self.metadata)
        self._streams_groups: Final = StreamsGroupManager(self.metadata)
        self.offsets: Final = OffsetMetadataManager(self.metadata, self._classic_groups)
        metadata, offsets, shares = self.metadata, self.offsets, self._share_groups
        self._handlers: Final[dict[type, Callable[[Any, Any, EventTime], Effects]]] = {
            JoinGroup: self._join_group,
            SyncGroup: self._sync_group,
            Heartbeat: self._heartbeat,
            LeaveGroup: self._leave_group,
            ConsumerGroupHeartbeat: self._consumer_groups.consumer_group_heartbeat,
            StreamsGroupHeartbeat: self._streams_groups.streams_group_heartbeat,
            CommitOffsets: offsets.commit_offsets,
            CommitTransactionalOffsets: offsets.commit_transactional_offsets,
            DeleteOffsets: lambda to, request, _: offsets.delete_offsets(to, request),
            FetchOffsets: lambda to, request, _: offsets.fetch_offsets(to, request),
            ListGroups: lambda to, request, _: metadata.list_groups(to, request),
            DescribeClassicGroup: lambda to, request, _: metadata.describe_classic_group(
                to, request.group_id
            ),
            DescribeConsumerGroup: lambda to, request, _: metadata.describe_consumer_group(
                to, request.group_id
            ),
            DescribeStreamsGroup: lambda to, request, _: self._streams_groups.describe_streams_group(
                to, request
            ),
            UpdateTopologyDescription: lambda to, request, _: (
                self._streams_groups.update_topology_description(to, request.body)
            ),
            ShareGroupHeartbeat: shares.share_group_heartbeat,
            ShareStatesInitialized: shares.states_initialized,
            DescribeShareGroup: lambda to, request, _: shares.describe_share_group(to, request.group_id),
            InitializedSharePartitions: lambda to, request, _: shares.initialized_partitions(
                to, request.group_id
            ),
            AlterShareGroupOffsets: shares.alter_offsets,
            DeleteShareGroupOffsets: shares.delete_offsets,
            CompleteDeleteShareGroupOffsets: shares.complete_delete_offsets,
            DeleteGroup: self._delete_group,
            NewMetadataImage: self._on_new_metadata_image,
            NewGroupSettings: self._on_new_settings,
        }

    # Events

    def handle(
        self, to: ReplyTo[Any] | None, operation: CoordinatorOperation[Any], now: EventTime
    ) -> Effects:
        return self._handlers[type(operation)](to, operation, now)

    def on_timer(self, now: EventTime) -> Effects:
        due = self.metadata.timer.pop_due(now.tick_ms)
        return Effects() if due is None else due[1](now)

    def next_deadline_ms(self) -> int | None:
        return self.metadata.timer.next_deadline_ms()

    def on_loaded(self, now: EventTime) -> Effects:
        effects = Effects()
        for group in list(self.metadata.groups.values()):
            if isinstance(group, ClassicGroup):
                effects.extend(self._classic_groups.on_loaded(group, now))
            elif isinstance(group, ShareGroup):
                self._share_groups.on_loaded(group, now)
            elif isinstance(group, StreamsGroup):
                self._streams_groups.on_loaded(group, now)
            else:
                self._consumer_groups.on_loaded(group, now)
        self._schedule_expiry(now)
        return effects

    def on_unloaded(self) -> None:
        self.metadata.timer.clear()

    def _on_new_metadata_image(
        self, _to: ReplyTo[None] | None, event: NewMetadataImage, _now: EventTime
    ) -> Effects:
        before, self.metadata.image = self.metadata.image, event.image
        if not event.deleted_topics:
            return Effects()
        by_name, by_id = before.topics.by_name, event.image.topics.by_id
        deleted_ids = [by_name[name].id for name in sorted(event.deleted_topics) if name in by_name]
        effects = self.offsets.on_topics_deleted(event.deleted_topics)
        return effects.extend(
            self._share_groups.on_topics_deleted(frozenset(id for id in deleted_ids if id not in by_id))
        )

    def _on_new_settings(
        self, _to: ReplyTo[None] | None, event: NewGroupSettings, _now: EventTime
    ) -> Effects:
        self.metadata.settings = event.settings
        return Effects()

    # Requests of the classic protocol, to classic groups and to consumer groups with classic members

    def _join_group(
        self, to: ReplyTo[JoinGroupResponse] | None, request: JoinGroup, now: EventTime
    ) -> Effects:
        group = self.metadata.groups.get(request.body.group_id)
        if isinstance(group, ShareGroup):
            return Effects().reply(to, join_error(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
        if group is None or isinstance(group, ClassicGroup):
            return self._classic_groups.join_group(to, request, group, now)
        if not group.is_empty:
            if isinstance(group, ConsumerGroup):
                return self._consumer_groups.join_group(to, request, group, now)
            return Effects().reply(to, join_error(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
        # An empty consumer or streams group gives way to a classic one; its offsets stay.
        effects = self._classic_groups.join_group(to, request, None, now)
        tombstones: list[CoordinatorRecord] = []
        group_tombstones(group, tombstones)
        effects.records[:0] = tombstones
        return effects

    def _sync_group(
        self, to: ReplyTo[SyncGroupResponse] | None, request: SyncGroup, now: EventTime
    ) -> Effects:
        group = self._group_of(request.body.group_id, request.body.member_id)
        if isinstance(group, ConsumerGroup):
            return self._consumer_groups.sync_group(to, request, group, now)
        return self._classic_groups.sync_group(to, request, group, now)

    def _heartbeat(
        self, to: ReplyTo[HeartbeatResponse] | None, request: Heartbeat, now: EventTime
    ) -> Effects:
        group = self._group_of(request.body.group_id, request.body.member_id)
        if isinstance(group, ConsumerGroup):
            return self._consumer_groups.heartbeat(to, request, group, now)
        return self._classic_groups.heartbeat(to, request, group, now)

    def _leave_group(
        self, to: ReplyTo[LeaveGroupResponse] | None, request: LeaveGroup, now: EventTime
    ) -> Effects:
        group = self._group_of(request.body.group_id, request.body.member_id)
        if isinstance(group, ConsumerGroup):
            return self._consumer_groups.leave_group(to, request, group, now)
        return self._classic_groups.leave_group(to, request, group, now)

    def _group_of(self, group_id: str, member_id: str) -> ClassicGroup | ConsumerGroup:
        """The group of a classic member."""
        group = self.metadata.groups.get(group_id)
        if not isinstance(group, ClassicGroup | ConsumerGroup):
            raise unknown_member(group_id, member_id)
        return group

    # Deletion and expiry

    def _delete_group(
        self, to: ReplyTo[tuple[TopicIdPartition, ...]] | None, request: DeleteGroup, _now: EventTime
    ) -> Effects:
        group = self.metadata.group(request.group_id)
        if not group.is_empty:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f"The group {request.group_id} is not empty.")
        if isinstance(group, ShareGroup) and not group.states.is_empty and not request.states_deleted:
            return self._share_groups.delete_states(to, group)
        effects = Effects(atomic=False)
        self.offsets.delete_all_offsets(request.group_id, effects.records)
        group_tombstones(group, effects.records)
        return effects.reply(to, ())

    def _cleanup_group_metadata(self, now: EventTime) -> Effects:
        """Delete expired offsets, and then groups that are empty and have none."""
        self._schedule_expiry(now)
        effects = Effects(atomic=False)
        for group in list(self.metadata.groups.values()):
            if isinstance(group, ShareGroup):
                continue  # their positions are in the share coordinator, which does not let them expire
            has_none = self.offsets.cleanup_expired_offsets(group, effects.records, now.wall_ms)
            if has_none and group.is_empty and not (isinstance(group, ClassicGroup) and group.pending):
                group_tombstones(group, effects.records)
        return effects

    def _schedule_expiry(self, now: EventTime) -> None:
        interval_ms = self.metadata.settings.node.offsets_retention_check_interval_ms
        self.metadata.timer.schedule(_EXPIRY, now.tick_ms + interval_ms, self._cleanup_group_metadata)

    # Replay

    def replay(self, record: ReplayedRecord) -> None:
        if isinstance(record.key, OffsetCommitKey | LegacyOffsetCommitKey):
            group_id = self.offsets.replay(record)
            if group_id is not None and group_id not in self.metadata.groups:
                self.metadata.groups[group_id] = ClassicGroup(group_id)
        else:
            self.metadata.replay(record.key, record.value)

    def replay_end_transaction(self, producer: ProducerIdAndEpoch, commit: bool) -> None:
        for group_id in self.offsets.replay_end_transaction(producer.id, commit):
            if commit:
                self.metadata.groups.setdefault(group_id, ClassicGroup(group_id))
