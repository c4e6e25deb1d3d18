"""The records of share groups, in the versions in which Kafka 4.3 writes them."""

from __future__ import annotations

from collections.abc import Mapping

from ottla.coordinator.group.share.share_group import (
    Partitions,
    ShareGroup,
    ShareGroupMember,
    SharePartitions,
    StatePartitionMetadata,
)
from ottla.coordinator.runtime.effects import CoordinatorRecord
from ottla.protocol.consumer_offsets_records import (
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupCurrentMemberAssignmentTopicPartitions,
    ShareGroupCurrentMemberAssignmentValue,
    ShareGroupMemberMetadataKey,
    ShareGroupMemberMetadataValue,
    ShareGroupMetadataKey,
    ShareGroupMetadataValue,
    ShareGroupStatePartitionMetadataKey,
    ShareGroupStatePartitionMetadataTopicInfo,
    ShareGroupStatePartitionMetadataValue,
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupTargetAssignmentMemberValue,
    ShareGroupTargetAssignmentMetadataKey,
    ShareGroupTargetAssignmentMetadataValue,
    ShareGroupTopicPartitionsInfo,
    TargetAssignmentTopicPartition,
)


def group_epoch(group_id: str, epoch: int, metadata_hash: int) -> CoordinatorRecord:
    return CoordinatorRecord(
        ShareGroupMetadataKey(group_id=group_id),
        ShareGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash),
    )


def member_subscription(group_id: str, member: ShareGroupMember) -> CoordinatorRecord:
    return CoordinatorRecord(
        ShareGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id),
        ShareGroupMemberMetadataValue(
            rack_id=member.rack_id,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=sorted(member.topics),
        ),
    )


def target_epoch(group_id: str, epoch: int, wall_ms: int) -> CoordinatorRecord:
    return CoordinatorRecord(
        ShareGroupTargetAssignmentMetadataKey(group_id=group_id),
        ShareGroupTargetAssignmentMetadataValue(assignment_epoch=epoch, assignment_timestamp=wall_ms),
    )


def target_assignments(group_id: str, targets: Mapping[str, Partitions]) -> list[CoordinatorRecord]:
    """The records of members' targets; members whose targets are the same object share one value."""
    values: dict[int, ShareGroupTargetAssignmentMemberValue] = {}
    records = []
    for member_id, target in targets.items():
        value = values.get(id(target))
        if value is None:
            value = values[id(target)] = ShareGroupTargetAssignmentMemberValue(
                topic_partitions=[
                    TargetAssignmentTopicPartition(topic_id=topic_id, partitions=sorted(partitions))
                    for topic_id, partitions in sorted(target.items())
                ]
            )
        key = ShareGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id)
        records.append(CoordinatorRecord(key, value))
    return records


def current_assignment(group_id: str, member: ShareGroupMember) -> CoordinatorRecord:
    return CoordinatorRecord(
        ShareGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.member_id),
        ShareGroupCurrentMemberAssignmentValue(
            member_epoch=member.epoch,
            previous_member_epoch=member.previous_epoch,
            state=member.state,
            assigned_partitions=[
                ShareGroupCurrentMemberAssignmentTopicPartitions(
                    topic_id=topic_id, partitions=sorted(partitions)
                )
                for topic_id, partitions in sorted(member.assigned.items())
            ],
        ),
    )


def state_partition_metadata(group_id: str, states: StatePartitionMetadata) -> CoordinatorRecord:
    return CoordinatorRecord(
        ShareGroupStatePartitionMetadataKey(group_id=group_id),
        ShareGroupStatePartitionMetadataValue(
            initializing_topics=_topics(states.initializing),
            initialized_topics=_topics(states.initialized),
            deleting_topics=[
                ShareGroupStatePartitionMetadataTopicInfo(topic_id=topic_id, topic_name=name)
                for topic_id, name in sorted(states.deleting.items())
            ],
        ),
    )


def _topics(topics: Mapping[bytes, SharePartitions]) -> list[ShareGroupTopicPartitionsInfo]:
    return [
        ShareGroupTopicPartitionsInfo(
            topic_id=topic_id, topic_name=topic.name, partitions=sorted(topic.partitions)
        )
        for topic_id, topic in sorted(topics.items())
    ]


def member_tombstones(group_id: str, member_id: str, out: list[CoordinatorRecord]) -> None:
    out.append(
        CoordinatorRecord(ShareGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), None)
    )
    out.append(
        CoordinatorRecord(ShareGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), None)
    )
    out.append(CoordinatorRecord(ShareGroupMemberMetadataKey(group_id=group_id, member_id=member_id), None))


def group_tombstones(group: ShareGroup, out: list[CoordinatorRecord]) -> None:
    """Write tombstones for all records of a group, its epoch last."""
    group_id = group.group_id
    for member_id in sorted(group.members.keys() | group.target.keys()):
        member_tombstones(group_id, member_id, out)
    out.append(CoordinatorRecord(ShareGroupTargetAssignmentMetadataKey(group_id=group_id), None))
    out.append(CoordinatorRecord(ShareGroupStatePartitionMetadataKey(group_id=group_id), None))
    out.append(CoordinatorRecord(ShareGroupMetadataKey(group_id=group_id), None))
