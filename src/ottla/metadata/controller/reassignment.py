"""Reassignment: move the replicas of a partition, in steps that never reduce durability.

A reassignment first adds the new replicas beside the old ones; once the ISR contains them, the old ones are
removed (see `completed_reassignment`). Until then it can be cancelled.
"""

from __future__ import annotations

from collections.abc import Iterable

from ottla.metadata.controller.partition_change_builder import (
    Election,
    PartitionReassignmentReplicas,
    PartitionReassignmentRevert,
)
from ottla.metadata.controller.state import (
    NO_ERROR,
    ApiError,
    ControllerState,
    Decision,
    Result,
    check_record_count,
)
from ottla.metadata.controller.topics import validate_manual_partition_assignment
from ottla.metadata.image.entities import PartitionRegistration, TopicImage
from ottla.metadata.records import MetadataRecord
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from ottla.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from ottla.protocol.metadata_records import PartitionChangeRecord


def alter_partition_reassignments(
    state: ControllerState, request: AlterPartitionReassignmentsRequest
) -> Decision[AlterPartitionReassignmentsResponse]:
    allow_change = request.allow_replication_factor_change
    records: list[MetadataRecord] = []
    responses: list[ReassignableTopicResponse] = []
    for asked_topic in request.topics:
        answers: list[ReassignablePartitionResponse] = []
        for asked in asked_topic.partitions:
            error = NO_ERROR
            try:
                record = _reassign(state, asked_topic.name, asked, allow_change=allow_change)
                if record is not None:
                    records.append(record)
            except KafkaError as raised:
                error = ApiError.of(raised)
            answers.append(
                ReassignablePartitionResponse(
                    partition_index=asked.partition_index,
                    error_code=int(error.code),
                    error_message=error.message,
                )
            )
            yield
        responses.append(ReassignableTopicResponse(name=asked_topic.name, partitions=answers))
    check_record_count(records)
    return Result(
        records,
        AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=allow_change, responses=responses
        ),
    )


def _reassign(
    state: ControllerState, name: str, asked: ReassignablePartition, *, allow_change: bool
) -> PartitionChangeRecord | None:
    topic = state.image.topics.by_name.get(name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {name}.")
    partition = topic.partitions.get(asked.partition_index)
    if partition is None:
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {name}:{asked.partition_index}."
        )
    if asked.replicas is None:
        return _cancel(state, topic, asked.partition_index, partition)
    validate_manual_partition_assignment(state, asked.replicas, None)
    if not allow_change:
        _check_replication_factor(partition, len(asked.replicas))
    way = PartitionReassignmentReplicas.between(partition.replicas, asked.replicas)
    change = state.partition_change_builder(topic, asked.partition_index, partition)
    change.replicas = way.replicas
    # A reassignment in progress may be adding replicas that this one drops, and removing some that it keeps.
    change.removing = way.removing
    change.adding = sorted({*way.adding, *(set(partition.adding_replicas) & set(asked.replicas))})
    return change.build()


def _check_replication_factor(partition: PartitionRegistration, target: int) -> None:
    current = len({*partition.replicas, *partition.adding_replicas} - set(partition.removing_replicas))
    if current != target:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor is changed from {current} to {target}, which the request does not "
            "allow.",
        )


def _cancel(
    state: ControllerState, topic: TopicImage, index: int, partition: PartitionRegistration
) -> PartitionChangeRecord | None:
    if not partition.is_reassigning:
        raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS.text)
    revert = PartitionReassignmentRevert.of(partition)
    if not revert.replicas:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "Invalid replica assignment: every replica would be new, so none could be copied from.",
        )
    unclean_enabled = state.unclean_election_enabled(topic.name)
    if revert.unclean and not unclean_enabled:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Unable to revert partition assignment for {topic.name}:{index} because it would require "
            "an unclean leader election. No former replica is in sync, so records could be lost.",
        )
    change = state.partition_change_builder(topic, index, partition)
    if unclean_enabled:
        change.election = Election.UNCLEAN
    change.isr = revert.isr
    change.replicas = revert.replicas
    change.removing = []
    change.adding = []
    return change.build()


def list_partition_reassignments(
    state: ControllerState, request: ListPartitionReassignmentsRequest
) -> Decision[ListPartitionReassignmentsResponse]:
    """The reassignments in progress: all of them, or those of the named partitions."""
    by_name = state.image.topics.by_name
    wanted: Iterable[tuple[TopicImage, Iterable[int]]]
    if request.topics is None:
        wanted = ((topic, topic.partitions) for topic in by_name.values())
    else:
        wanted = (
            (by_name[asked.name], asked.partition_indexes)
            for asked in request.topics
            if asked.name in by_name
        )
    topics: list[OngoingTopicReassignment] = []
    for topic, indexes in wanted:
        ongoing: list[OngoingPartitionReassignment] = []
        for index in indexes:
            yield
            partition = topic.partitions.get(index)
            if partition is not None and partition.is_reassigning:
                ongoing.append(
                    OngoingPartitionReassignment(
                        partition_index=index,
                        replicas=list(partition.replicas),
                        adding_replicas=list(partition.adding_replicas),
                        removing_replicas=list(partition.removing_replicas),
                    )
                )
        if ongoing:
            topics.append(OngoingTopicReassignment(name=topic.name, partitions=ongoing))
    return Result([], ListPartitionReassignmentsResponse(topics=topics))
