"""The conversion of groups between the classic and the consumer protocol while their members are online.

A classic group becomes a consumer group when the first member with the consumer protocol joins it: its
members keep their assignments, as classic members of a consumer group. When the last member with the consumer
protocol has left, the group becomes a classic one again. Both write a tombstone of the one form and the
records of the other in a single batch, so that the group is always one of the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from ottla.coordinator.group import records
from ottla.coordinator.group.classic.classic_group import (
    CONSUMER_PROTOCOL_TYPE,
    ClassicGroup,
    ClassicGroupMember,
    ClassicGroupState,
)
from ottla.coordinator.group.classic_group_manager import ClassicGroupManager, join_error
from ottla.coordinator.group.consumer.consumer_group import (
    ConsumerGroup,
    ConsumerGroupMember,
    Owned,
    partitions_of,
)
from ottla.coordinator.group.consumer.subscriptions import metadata_hash
from ottla.coordinator.group.group_metadata_manager import GroupMetadataManager, group_tombstones
from ottla.coordinator.runtime.effects import CoordinatorRecord, Effects, EventTime
from ottla.metadata.image.image import MetadataImage
from ottla.protocol.consumer_offsets_records import ClassicMemberMetadata, ClassicProtocol
from ottla.protocol.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolTopicPartition,
    decode_assignment,
    decode_subscription,
    encode_assignment,
)
from ottla.protocol.errors import ErrorCode, KafkaError, MalformedMessage
from ottla.protocol.messages.sync_group import SyncGroupResponse
from ottla.protocol.prefixed import read_prefix

_LAST_VERSION = 3


class GroupMigration:
    __slots__ = ("_classic_groups", "_metadata")

    def __init__(self, metadata: GroupMetadataManager, classic_groups: ClassicGroupManager) -> None:
        self._metadata = metadata
        self._classic_groups = classic_groups

    # Classic to consumer

    def convert_to_consumer_group(
        self, group: ClassicGroup, effects: Effects, now: EventTime
    ) -> ConsumerGroup:
        """Convert a classic group: a draft of the consumer group, whose records are added to the effects."""
        self._check_upgrade(group)
        try:
            draft = _consumer_group(group, self._metadata.image)
        except MalformedMessage as error:
            raise _no_upgrade(
                group, f"a member's subscription or assignment cannot be read: {error}"
            ) from None
        for waiting in group.members.values():
            effects.reply(
                waiting.awaiting_join, join_error(ErrorCode.REBALANCE_IN_PROGRESS, waiting.member_id)
            )
            effects.reply(
                waiting.awaiting_sync,
                SyncGroupResponse(error_code=int(ErrorCode.REBALANCE_IN_PROGRESS), assignment=b""),
            )
        out = effects.records
        out.append(records.group_metadata(group.group_id, None))
        members = draft.members.values()
        out += [records.member_subscription(group.group_id, member) for member in members]
        out.append(records.group_epoch(group.group_id, draft.epoch, draft.metadata_hash))
        out += [records.target_assignment(group.group_id, id, target) for id, target in draft.target.items()]
        out.append(records.target_epoch(group.group_id, draft.target_epoch, now.wall_ms))
        out += [records.current_assignment(group.group_id, member) for member in members]
        return draft

    def _check_upgrade(self, group: ClassicGroup) -> None:
        if not self._metadata.settings.node.consumer_migration_policy.upgrades:
            raise _no_upgrade(group, "group.consumer.migration.policy does not allow it")
        if not group.speaks_consumer_protocol:
            raise _no_upgrade(group, f"its protocol type is {group.protocol_type}, not consumer")
        if len(group.members) > self._metadata.settings.node.consumer_max_size:
            raise _no_upgrade(group, "it has more members than group.consumer.max.size")

    # Consumer to classic

    def allows_downgrade(self, group: ConsumerGroup, leaving: frozenset[str]) -> bool:
        settings = self._metadata.settings.node
        return (
            settings.consumer_migration_policy.downgrades
            and group.is_classic_without(leaving)
            and len(group.members) - len(leaving & group.members.keys()) <= settings.group_max_size
        )

    def allows_downgrade_by(self, group: ConsumerGroup, returning: ConsumerGroupMember | None) -> bool:
        """Whether the static member that returns with the classic protocol was the last with the consumer
        protocol, and the group may be converted.
        """
        if returning is None or returning.is_classic:
            return False
        settings = self._metadata.settings.node
        return (
            settings.consumer_migration_policy.downgrades
            and all(member.is_classic or member is returning for member in group.members.values())
            and len(group.members) <= settings.group_max_size
        )

    def convert_to_classic_group(
        self, group: ConsumerGroup, leaving: frozenset[str], now: EventTime, *, rebalance: bool
    ) -> Effects:
        """Convert a consumer group without the members that leave. `group` may be a draft with changes."""
        out: list[CoordinatorRecord] = []
        group_tombstones(group, out)
        classic = _classic_group(group, leaving, self._metadata.image, now)
        out.append(records.group_metadata(group.group_id, classic.to_value()))
        return Effects(
            records=out, on_applied=partial(self._on_converted_to_classic_group, classic, rebalance)
        )

    def _on_converted_to_classic_group(
        self, drafted: ClassicGroup, rebalance: bool, now: EventTime
    ) -> Effects | None:
        group = self._metadata.groups[drafted.group_id]
        assert isinstance(group, ClassicGroup)
        for member in group.members.values():
            # The record has only the selected protocol.
            group.change_protocols(member, drafted.members[member.member_id].protocols)
            self._classic_groups.reschedule_heartbeat(group, member, now)
        return self._classic_groups.prepare_rebalance(group, now) if rebalance else None


def _consumer_group(group: ClassicGroup, image: MetadataImage) -> ConsumerGroup:
    draft = ConsumerGroup(group.group_id, epoch=group.generation, target_epoch=group.generation)
    for member in group.members.values():
        assigned: dict[bytes, Owned] = {}
        if member.assignment:
            assignment = decode_assignment(member.assignment)
            if assignment.user_data is not None and len(assignment.user_data):
                raise _no_upgrade(group, "its assignor keeps data of its own in the assignments")
            for topic in assignment.assigned_partitions:
                known = image.topics.by_name.get(topic.topic)
                if known is not None:
                    assigned[known.id] = dict.fromkeys(topic.partitions, group.generation)
        metadata = member.metadata(group.protocol) or member.protocols[0][1]
        subscription = decode_subscription(metadata)
        draft.target[member.member_id] = partitions_of(assigned)
        draft.update(
            ConsumerGroupMember(
                member.member_id,
                epoch=group.generation,
                previous_epoch=group.generation,
                instance_id=member.instance_id,
                rack_id=subscription.rack_id,
                client_id=member.client_id,
                client_host=member.client_host,
                topics=frozenset(subscription.topics),
                regex="",
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                classic=ClassicMemberMetadata(
                    session_timeout_ms=member.session_timeout_ms,
                    supported_protocols=[
                        ClassicProtocol(name=name, metadata=data) for name, data in member.protocols
                    ],
                ),
                assigned=assigned,
            )
        )
    draft.metadata_hash = metadata_hash(draft.subscribed_topics, image)
    return draft


def _classic_group(
    group: ConsumerGroup, leaving: frozenset[str], image: MetadataImage, now: EventTime
) -> ClassicGroup:
    classic = ClassicGroup(
        group.group_id,
        state=ClassicGroupState.STABLE,
        generation=group.epoch,
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        state_timestamp_ms=now.wall_ms,
    )
    for member in group.members.values():
        if member.member_id in leaving or member.classic is None:
            continue
        protocols = tuple(
            (protocol.name, bytes(protocol.metadata)) for protocol in member.classic.supported_protocols
        )
        classic.add(
            ClassicGroupMember(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.rebalance_timeout_ms,
                member.classic.session_timeout_ms,
                CONSUMER_PROTOCOL_TYPE,
                protocols,
                assignment_bytes(member.assigned, protocols[0][1], image),
            )
        )
    classic.protocol = classic.select_protocol()
    return classic


def assignment_bytes(assigned: Mapping[bytes, Owned], metadata: bytes, image: MetadataImage) -> bytes:
    """An assignment as a classic member reads it, in the version of its subscription."""
    version = min(max(read_prefix(metadata), 0), _LAST_VERSION)
    topics = [
        ConsumerProtocolTopicPartition(topic=image.topics.by_id[topic_id].name, partitions=sorted(partitions))
        for topic_id, partitions in assigned.items()
        if topic_id in image.topics.by_id
    ]
    topics.sort(key=lambda topic: topic.topic)
    return encode_assignment(ConsumerProtocolAssignment(assigned_partitions=topics), version)


def _no_upgrade(group: ClassicGroup, reason: str) -> KafkaError:
    return KafkaError(
        ErrorCode.GROUP_ID_NOT_FOUND,
        f"classic group {group.group_id} cannot become a consumer group: {reason}",
    )
