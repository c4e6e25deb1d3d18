"""The groups and offsets of one partition of `__consumer_offsets`, as a machine of the coordinators' engine.

It hands requests to the parts that know them and replays records into the groups and offsets. A record of
an offset makes a simple group where there is none, which gives way to the records of a real one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ottla.coordinator.group.admin import GroupAdmin
from ottla.coordinator.group.classic.coordinator import ClassicCoordinator
from ottla.coordinator.group.classic.group import ClassicGroup, unknown_member
from ottla.coordinator.group.config import GroupSettings
from ottla.coordinator.group.consumer.classic_members import MixedCoordinator
from ottla.coordinator.group.consumer.coordinator import ConsumerCoordinator
from ottla.coordinator.group.consumer.group import ConsumerGroup
from ottla.coordinator.group.migration import Migration
from ottla.coordinator.group.offsets.requests import OffsetCoordinator
from ottla.coordinator.group.offsets.store import OffsetStore
from ottla.coordinator.group.replay import GroupReplay
from ottla.coordinator.group.requests import (
    CommitOffsets,
    CommitTransactionalOffsets,
    ConsumerGroupHeartbeat,
    DeleteGroup,
    DeleteOffsets,
    DescribeClassicGroup,
    DescribeConsumerGroup,
    FetchOffsets,
    GroupRequest,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    ListGroups,
    NewGroupSettings,
    NewMetadataImage,
    SyncGroup,
)
from ottla.coordinator.group.state import Group, GroupState
from ottla.coordinator.runtime.effects import Effects, EventTime, ProducerIdAndEpoch, ReplayedRecord, ReplyTo
from ottla.metadata.image.image import MetadataImage

_EXPIRY = "expiry"


class GroupMachine:
    """`new_id` gives ids for members; it must not give one twice."""

    __slots__ = (
        "_admin",
        "_classic",
        "_consumers",
        "_handlers",
        "_mixed",
        "_offset_requests",
        "_replay",
        "offsets",
        "state",
    )

    def __init__(self, settings: GroupSettings, image: MetadataImage, new_id: Callable[[], str]) -> None:
        self.state = GroupState(settings, image, new_id)
        self.offsets = OffsetStore()
        self._classic = ClassicCoordinator(self.state)
        migration = Migration(self.state, self._classic.rebalance)
        self._consumers = ConsumerCoordinator(self.state, migration)
        self._mixed = MixedCoordinator(self.state, self._consumers, migration)
        self._offset_requests = OffsetCoordinator(self.state, self.offsets, self._classic.rebalance)
        self._admin = GroupAdmin(self.state, self.offsets)
        self._replay = GroupReplay(self.state, self.offsets)
        self._handlers: dict[type, Callable[[ReplyTo[Any] | None, Any, EventTime], Effects]] = {
            JoinGroup: self._join,
            SyncGroup: self._sync,
            Heartbeat: self._heartbeat,
            LeaveGroup: self._leave,
            ConsumerGroupHeartbeat: self._consumers.heartbeat,
            CommitOffsets: self._offset_requests.commit,
            CommitTransactionalOffsets: self._offset_requests.commit_in_transaction,
            DeleteOffsets: lambda token, request, _: self._offset_requests.delete(token, request.body),
            FetchOffsets: lambda token, request, _: self._offset_requests.fetch(token, request),
            ListGroups: lambda token, request, _: self._admin.list_groups(token, request),
            DescribeClassicGroup: lambda token, it, _: self._admin.describe_classic(token, it.group_id),
            DescribeConsumerGroup: lambda token, it, _: self._admin.describe_consumer(token, it.group_id),
            DeleteGroup: lambda token, it, _: self._admin.delete(token, it.group_id),
            NewMetadataImage: self._new_image,
            NewGroupSettings: self._new_settings,
        }

    # Events

    def handle(self, token: ReplyTo[Any] | None, request: Any, now: EventTime) -> Effects:
        return self._handlers[type(request)](token, request, now)

    def on_timer(self, now: EventTime) -> Effects:
        due = self.state.timers.pop_due(now.tick_ms)
        return Effects() if due is None else due[1](now)

    def next_deadline_ms(self) -> int | None:
        return self.state.timers.next_deadline_ms()

    def _join(self, token: ReplyTo[Any] | None, request: GroupRequest[Any, Any], now: EventTime) -> Effects:
        group = self.state.groups.get(request.body.group_id)
        if isinstance(group, ConsumerGroup):
            if not group.is_empty:
                return self._mixed.join(token, request, group, now)
            return self._join_emptied(token, request, group, now)
        return self._classic.join(token, request, group, now)

    def _join_emptied(
        self,
        token: ReplyTo[Any] | None,
        request: GroupRequest[Any, Any],
        group: ConsumerGroup,
        now: EventTime,
    ) -> Effects:
        """A classic member comes to an empty consumer group, which gives way to a classic one."""
        effects = self._classic.join(token, request, None, now)
        delete = self._admin.replaced(group)
        effects.records[:0] = delete
        return effects

    def _member_group(self, request: GroupRequest[Any, Any]) -> Group:
        group = self.state.groups.get(request.body.group_id)
        if group is None:
            raise unknown_member(request.body.group_id, getattr(request.body, "member_id", ""))
        return group

    def _sync(self, token: ReplyTo[Any] | None, request: GroupRequest[Any, Any], now: EventTime) -> Effects:
        group = self._member_group(request)
        if isinstance(group, ConsumerGroup):
            return self._mixed.sync(token, request, group, now)
        return self._classic.sync(token, request, group, now)

    def _heartbeat(
        self, token: ReplyTo[Any] | None, request: GroupRequest[Any, Any], now: EventTime
    ) -> Effects:
        group = self._member_group(request)
        if isinstance(group, ConsumerGroup):
            return self._mixed.heartbeat(token, request, group, now)
        return self._classic.heartbeat(token, request, group, now)

    def _leave(self, token: ReplyTo[Any] | None, request: GroupRequest[Any, Any], now: EventTime) -> Effects:
        group = self._member_group(request)
        if isinstance(group, ConsumerGroup):
            return self._mixed.leave(token, request, group, now)
        return self._classic.leave(token, request, group, now)

    def _new_image(self, token: ReplyTo[Any] | None, event: NewMetadataImage, now: EventTime) -> Effects:
        self.state.image = event.image
        return self._admin.topics_deleted(event.deleted_topics) if event.deleted_topics else Effects()

    def _new_settings(self, token: ReplyTo[Any] | None, event: NewGroupSettings, now: EventTime) -> Effects:
        self.state.settings = event.settings
        return Effects()

    # Expiry

    def _expire(self, now: EventTime) -> Effects:
        self._schedule_expiry(now)
        return self._admin.expire(now)

    def _schedule_expiry(self, now: EventTime) -> None:
        interval_ms = self.state.settings.node.offsets_retention_check_interval_ms
        self.state.timers.schedule(_EXPIRY, now.tick_ms + interval_ms, self._expire)

    # Replay

    def replay(self, record: ReplayedRecord) -> None:
        self._replay.replay(record)

    def replay_end_transaction(self, producer: ProducerIdAndEpoch, commit: bool) -> None:
        self._replay.end_transaction(producer, commit)

    def on_loaded(self, now: EventTime) -> Effects:
        effects = Effects()
        for group in list(self.state.groups.values()):
            if isinstance(group, ClassicGroup):
                effects.extend(self._classic.loaded(group, now))
            else:
                self._consumers.loaded(group, now)
        self._schedule_expiry(now)
        return effects

    def on_unloaded(self) -> None:
        self.state.timers.clear()
