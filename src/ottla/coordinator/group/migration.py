"""Groups that change their protocol while their members are online.

A classic group becomes a consumer group when the first member with the new protocol joins it: its members go
on with what they have, as classic members of a consumer group (see `mixed`). When the last member with the
new protocol has left, the group becomes a classic one again. Both are a tombstone of the one form and the
records of the other in a single batch, so that the group is always one of the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from ottla.coordinator.group import records
from ottla.coordinator.group.classic.group import (
    CONSUMER_PROTOCOL_TYPE,
    ClassicGroup,
    ClassicMember,
    ClassicState,
)
from ottla.coordinator.group.classic.rebalance import ClassicRebalance, join_error
from ottla.coordinator.group.consumer.group import ConsumerGroup, ConsumerMember, Owned, partitions_of
from ottla.coordinator.group.consumer.subscriptions import metadata_hash
from ottla.coordinator.group.state import GroupState
from ottla.coordinator.runtime.effects import CoordinatorRecord, Effects, EventTime
from ottla.metadata.image.image import MetadataImage
from ottla.protocol.consumer_offsets_records import ClassicMemberMetadata, ClassicProtocol
from ottla.protocol.errors import ErrorCode, KafkaError, MalformedMessage
from ottla.protocol.messages.sync_group import SyncGroupResponse
from ottla.protocol.prefixed import read_prefix
from ottla.protocol.subscription import (
    ConsumerProtocolAssignment,
    ConsumerProtocolTopicPartition,
    decode_assignment,
    decode_subscription,
    encode_assignment,
)

_LAST_VERSION = 3


class Migration:
    __slots__ = ("_rebalance", "_state")

    def __init__(self, state: GroupState, rebalance: ClassicRebalance) -> None:
        self._state = state
        self._rebalance = rebalance

    # Classic to consumer

    def upgrade(self, group: ClassicGroup, effects: Effects, now: EventTime) -> ConsumerGroup:
        """A consumer group of the members of a classic one; its records are added to the effects."""
        self._check_upgrade(group)
        try:
            draft = _consumer_group(group, self._state.image)
        except MalformedMessage as error:
            raise _no_upgrade(
                group, f"a member's subscription or assignment cannot be read: {error}"
            ) from None
        for waiting in group.members.values():
            effects.reply(waiting.join_token, join_error(ErrorCode.REBALANCE_IN_PROGRESS, waiting.member_id))
            effects.reply(
                waiting.sync_token,
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
        if not self._state.settings.node.consumer_migration_policy.upgrades:
            raise _no_upgrade(group, "group.consumer.migration.policy does not allow it")
        if not group.speaks_consumer_protocol:
            raise _no_upgrade(group, f"its protocol type is {group.protocol_type}, not consumer")
        if len(group.members) > self._state.settings.node.consumer_max_size:
            raise _no_upgrade(group, "it has more members than group.consumer.max.size")

    # Consumer to classic

    def may_downgrade(self, group: ConsumerGroup, leaving: frozenset[str]) -> bool:
        settings = self._state.settings.node
        return (
            settings.consumer_migration_policy.downgrades
            and group.is_classic_without(leaving)
            and len(group.members) - len(leaving & group.members.keys()) <= settings.group_max_size
        )

    def may_downgrade_with(self, group: ConsumerGroup, returning: ConsumerMember | None) -> bool:
        """Whether the static member that returns with the classic protocol was the last with the other."""
        if returning is None or returning.is_classic:
            return False
        settings = self._state.settings.node
        return (
            settings.consumer_migration_policy.downgrades
            and all(member.is_classic or member is returning for member in group.members.values())
            and len(group.members) <= settings.group_max_size
        )

    def downgrade(
        self, group: ConsumerGroup, leaving: frozenset[str], now: EventTime, *, rebalance: bool
    ) -> Effects:
        """A classic group of those who stay. `group` may be a draft that holds what changes on the way."""
        out: list[CoordinatorRecord] = []
        group_tombstones(group, out)
        classic = _classic_group(group, leaving, self._state.image, now)
        out.append(records.group_metadata(group.group_id, classic.to_value()))
        return Effects(records=out, applied=partial(self._downgraded, classic, rebalance))

    def _downgraded(self, drafted: ClassicGroup, rebalance: bool, now: EventTime) -> Effects | None:
        group = self._state.groups[drafted.group_id]
        assert isinstance(group, ClassicGroup)
        for member in group.members.values():
            # The record has only one.
            group.change_protocols(member, drafted.members[member.member_id].protocols)
            self._rebalance.alive(group, member, now)
        return self._rebalance.prepare(group, now) if rebalance else None


def group_tombstones(group: ConsumerGroup, out: list[CoordinatorRecord]) -> None:
    """Remove all that stands of a consumer group, its epoch last."""
    group_id = group.group_id
    targets = sorted(group.target.keys() | group.members.keys())
    out += [records.current_assignment_tombstone(group_id, member_id) for member_id in group.members]
    out += [records.target_assignment_tombstone(group_id, member_id) for member_id in targets]
    out.append(records.target_epoch_tombstone(group_id))
    out += [records.member_subscription_tombstone(group_id, member_id) for member_id in group.members]
    out += [records.regular_expression_tombstone(group_id, regex) for regex in group.regexes]
    out.append(records.group_epoch_tombstone(group_id))


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
            ConsumerMember(
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
        state=ClassicState.STABLE,
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
            ClassicMember(
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
