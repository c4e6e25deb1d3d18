"""The records of streams groups, as Kafka 4.3 writes them (`StreamsCoordinatorRecordHelpers`)."""

from __future__ import annotations

from ottla.coordinator.group.streams.streams_group import (
    StreamsGroup,
    StreamsGroupMember,
    Tasks,
    TasksTuple,
    TasksWithEpochs,
)
from ottla.coordinator.runtime.effects import CoordinatorRecord
from ottla.protocol.consumer_offsets_records import (
    KeyValue,
    LastAssignmentConfig,
    StreamsGroupCurrentMemberAssignmentKey,
    StreamsGroupCurrentMemberAssignmentTaskIds,
    StreamsGroupCurrentMemberAssignmentValue,
    StreamsGroupMemberEndpoint,
    StreamsGroupMemberMetadataKey,
    StreamsGroupMemberMetadataValue,
    StreamsGroupMetadataKey,
    StreamsGroupMetadataValue,
    StreamsGroupTargetAssignmentMemberKey,
    StreamsGroupTargetAssignmentMemberTaskIds,
    StreamsGroupTargetAssignmentMemberValue,
    StreamsGroupTargetAssignmentMetadataKey,
    StreamsGroupTargetAssignmentMetadataValue,
    StreamsGroupTopologyKey,
    StreamsGroupTopologyValue,
)


def group_metadata(group: StreamsGroup) -> CoordinatorRecord:
    return CoordinatorRecord(
        StreamsGroupMetadataKey(group_id=group.group_id),
        StreamsGroupMetadataValue(
            epoch=group.epoch,
            metadata_hash=group.metadata_hash,
            validated_topology_epoch=group.validated_topology_epoch,
            last_assignment_configs=[
                LastAssignmentConfig(key=key, value=value)
                for key, value in sorted(group.assignment_configs.items())
            ],
        ),
    )


def member_metadata(group_id: str, member: StreamsGroupMember) -> CoordinatorRecord:
    endpoint = member.user_endpoint
    return CoordinatorRecord(
        StreamsGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id),
        StreamsGroupMemberMetadataValue(
            instance_id=member.instance_id,
            rack_id=member.rack_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            topology_epoch=member.topology_epoch,
            process_id=member.process_id,
            user_endpoint=None
            if endpoint is None
            else StreamsGroupMemberEndpoint(host=endpoint.host, port=endpoint.port),
            client_tags=[KeyValue(key=key, value=value) for key, value in sorted(member.client_tags.items())],
        ),
    )


def topology(group_id: str, value: StreamsGroupTopologyValue) -> CoordinatorRecord:
    return CoordinatorRecord(StreamsGroupTopologyKey(group_id=group_id), value)


def target_epoch(group_id: str, epoch: int, wall_ms: int) -> CoordinatorRecord:
    return CoordinatorRecord(
        StreamsGroupTargetAssignmentMetadataKey(group_id=group_id),
        StreamsGroupTargetAssignmentMetadataValue(assignment_epoch=epoch, assignment_timestamp=wall_ms),
    )


def target_assignment(group_id: str, member_id: str, target: TasksTuple) -> CoordinatorRecord:
    return CoordinatorRecord(
        StreamsGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id),
        StreamsGroupTargetAssignmentMemberValue(
            active_tasks=_target_tasks(target.active),
            standby_tasks=_target_tasks(target.standby),
            warmup_tasks=_target_tasks(target.warmup),
        ),
    )


def current_assignment(group_id: str, member: StreamsGroupMember) -> CoordinatorRecord:
    assigned, revoking = member.assigned, member.revoking
    return CoordinatorRecord(
        StreamsGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.member_id),
        StreamsGroupCurrentMemberAssignmentValue(
            member_epoch=member.epoch,
            previous_member_epoch=member.previous_epoch,
            state=member.state.value,
            active_tasks=_active_tasks(assigned.active),
            standby_tasks=_tasks(assigned.standby),
            warmup_tasks=_tasks(assigned.warmup),
            active_tasks_pending_revocation=_active_tasks(revoking.active),
            standby_tasks_pending_revocation=_tasks(revoking.standby),
            warmup_tasks_pending_revocation=_tasks(revoking.warmup),
        ),
    )


def member_tombstones(group_id: str, member_id: str) -> list[CoordinatorRecord]:
    return [
        CoordinatorRecord(
            StreamsGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), None
        ),
        CoordinatorRecord(
            StreamsGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), None
        ),
        CoordinatorRecord(StreamsGroupMemberMetadataKey(group_id=group_id, member_id=member_id), None),
    ]


def group_tombstones(group: StreamsGroup) -> list[CoordinatorRecord]:
    """Tombstones for all records of a group, but not of its offsets."""
    group_id = group.group_id
    tombstones = []
    for member_id in sorted(group.members.keys() | group.target.keys()):
        tombstones += member_tombstones(group_id, member_id)
    return [
        *tombstones,
        CoordinatorRecord(StreamsGroupTargetAssignmentMetadataKey(group_id=group_id), None),
        CoordinatorRecord(StreamsGroupMetadataKey(group_id=group_id), None),
        CoordinatorRecord(StreamsGroupTopologyKey(group_id=group_id), None),
    ]


def _target_tasks(tasks: Tasks) -> list[StreamsGroupTargetAssignmentMemberTaskIds]:
    return [
        StreamsGroupTargetAssignmentMemberTaskIds(subtopology_id=id, partitions=sorted(partitions))
        for id, partitions in sorted(tasks.items())
    ]


def _tasks(tasks: Tasks) -> list[StreamsGroupCurrentMemberAssignmentTaskIds]:
    return [
        StreamsGroupCurrentMemberAssignmentTaskIds(subtopology_id=id, partitions=sorted(partitions))
        for id, partitions in sorted(tasks.items())
    ]


def _active_tasks(tasks: TasksWithEpochs) -> list[StreamsGroupCurrentMemberAssignmentTaskIds]:
    return [
        StreamsGroupCurrentMemberAssignmentTaskIds(
            subtopology_id=id,
            partitions=sorted(partitions),
            assignment_epochs=[partitions[partition] for partition in sorted(partitions)],
        )
        for id, partitions in sorted(tasks.items())
    ]
