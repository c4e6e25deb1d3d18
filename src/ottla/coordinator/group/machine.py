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
    DeleteGroup,
    DescribeClassic,
    DescribeConsumer,
    FetchOffsets,
    GroupRequest,
    ListGroups,
    NewImage,
    NewSettings,
)
from ottla.coordinator.group.state import Group, GroupState
from ottla.coordinator.runtime.effects import Effects, Now, Producer, ReplayedRecord, Token
from ottla.metadata.image.image import MetadataImage
from ottla.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from ottla.protocol.messages.heartbeat import HeartbeatRequest
from ottla.protocol.messages.join_group import JoinGroupRequest
from ottla.protocol.messages.leave_group import LeaveGroupRequest
from ottla.protocol.messages.offset_commit import OffsetCommitRequest
from ottla.protocol.messages.offset_delete import OffsetDeleteRequest
from ottla.protocol.messages.sync_group import SyncGroupRequest
from ottla.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest

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
        self._handlers: dict[type, Callable[[Token, Any, Now], Effects]] = {
            JoinGroupRequest: self._join,
            SyncGroupRequest: self._sync,
            HeartbeatRequest: self._heartbeat,
            LeaveGroupRequest: self._leave,
            ConsumerGroupHeartbeatRequest: self._consumers.heartbeat,
            OffsetCommitRequest: self._offset_requests.commit,
            TxnOffsetCommitRequest: self._offset_requests.commit_in_transaction,
            OffsetDeleteRequest: lambda token, request, _: self._offset_requests.delete(token, request.body),
            FetchOffsets: lambda token, request, _: self._offset_requests.fetch(token, request),
            ListGroups: lambda token, request, _: self._admin.list_groups(token, request),
            DescribeClassic: lambda token, it, _: self._admin.describe_classic(token, it.group_id),
            DescribeConsumer: lambda token, it, _: self._admin.describe_consumer(token, it.group_id),
            DeleteGroup: lambda token, it, _: self._admin.delete(token, it.group_id),
            NewImage: self._new_image,
            NewSettings: self._new_settings,
        }

    # Events

    def handle(self, token: Token, request: Any, now: Now) -> Effects:
        kind = type(request.body) if isinstance(request, GroupRequest) else type(request)
        return self._handlers[kind](token, request, now)

    def on_timer(self, now: Now) -> Effects:
        due = self.state.timers.pop_due(now.tick_ms)
        return Effects() if due is None else due[1](now)

    def next_deadline_ms(self) -> int | None:
        return self.state.timers.next_deadline_ms()

    def _join(self, token: Token, request: GroupRequest, now: Now) -> Effects:
        group = self.state.groups.get(request.body.group_id)
        if isinstance(group, ConsumerGroup):
            if not group.is_empty:
                return self._mixed.join(token, request, group, now)
            return self._join_emptied(token, request, group, now)
        return self._classic.join(token, request, group, now)

    def _join_emptied(self, token: Token, request: GroupRequest, group: ConsumerGroup, now: Now) -> Effects:
        """A classic member comes to an empty consumer group, which gives way to a classic one."""
        effects = self._classic.join(token, request, None, now)
        delete = self._admin.replaced(group)
        effects.records[:0] = delete
        return effects

    def _member_group(self, request: GroupRequest) -> Group:
        group = self.state.groups.get(request.body.group_id)
        if group is None:
            raise unknown_member(request.body.group_id, getattr(request.body, "member_id", ""))
        return group

    def _sync(self, token: Token, request: GroupRequest, now: Now) -> Effects:
        group = self._member_group(request)
        if isinstance(group, ConsumerGroup):
            return self._mixed.sync(token, request, group, now)
        return self._classic.sync(token, request, group, now)

    def _heartbeat(self, token: Token, request: GroupRequest, now: Now) -> Effects:
        group = self._member_group(request)
        if isinstance(group, ConsumerGroup):
            return self._mixed.heartbeat(token, request, group, now)
        return self._classic.heartbeat(token, request, group, now)

    def _leave(self, token: Token, request: GroupRequest, now: Now) -> Effects:
        group = self._member_group(request)
        if isinstance(group, ConsumerGroup):
            return self._mixed.leave(token, request, group, now)
        return self._classic.leave(token, request, group, now)

    def _new_image(self, token: Token, event: NewImage, now: Now) -> Effects:
        self.state.image = event.image
        return self._admin.topics_deleted(event.deleted_topics) if event.deleted_topics else Effects()

    def _new_settings(self, token: Token, event: NewSettings, now: Now) -> Effects:
        self.state.settings = event.settings
        return Effects()

    # Expiry

    def _expire(self, now: Now) -> Effects:
        self._schedule_expiry(now)
        return self._admin.expire(now)

    def _schedule_expiry(self, now: Now) -> None:
        interval_ms = self.state.settings.node.offsets_retention_check_interval_ms
        self.state.timers.schedule(_EXPIRY, now.tick_ms + interval_ms, self._expire)

    # Replay

    def replay(self, record: ReplayedRecord) -> None:
        self._replay.replay(record)

    def replay_end_transaction(self, producer: Producer, commit: bool) -> None:
        self._replay.end_transaction(producer, commit)

    def on_loaded(self, now: Now) -> Effects:
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
