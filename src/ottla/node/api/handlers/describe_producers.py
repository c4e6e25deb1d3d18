"""DescribeProducers: list the active producers of partitions, as their leader knows them."""

from __future__ import annotations

from ottla.node.api.context import RequestContext
from ottla.node.api.deduplication import MAX_ITEMS_WITH_DUPLICATES
from ottla.protocol.acl import AclOperation, AclResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicRequest,
    TopicResponse,
)
from ottla.protocol.names import TopicPartition, invalid_topic_name


def handle(context: RequestContext, request: DescribeProducersRequest) -> DescribeProducersResponse:
    topics = request.topics
    if sum(len(topic.partition_indexes) for topic in topics) > MAX_ITEMS_WITH_DUPLICATES:
        topics = _distinct(topics)
    return DescribeProducersResponse(
        topics=[_topic(context, topic.name, topic.partition_indexes) for topic in topics]
    )


def _distinct(topics: list[TopicRequest]) -> list[TopicRequest]:
    indexes_by_topic: dict[str, dict[int, None]] = {}
    for topic in topics:
        indexes_by_topic.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    return [
        TopicRequest(name=name, partition_indexes=list(indexes)) for name, indexes in indexes_by_topic.items()
    ]


def _topic(context: RequestContext, name: str, indexes: list[int]) -> TopicResponse:
    error = _check_topic(context, name)
    partitions = []
    for index in indexes:
        if error is not None:
            partitions.append(
                PartitionResponse(
                    partition_index=index, error_code=int(error.code), error_message=error.message
                )
            )
        else:
            partitions.append(_partition(context, name, index))
    return TopicResponse(name=name, partitions=partitions)


def _check_topic(context: RequestContext, topic: str) -> KafkaError | None:
    reason = invalid_topic_name(topic)
    if reason is not None:
        return KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, reason)
    if not context.allowed(AclOperation.READ, AclResourceType.TOPIC, topic):
        return KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    if topic not in context.image.topics.by_name:
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return None


def _partition(context: RequestContext, topic: str, index: int) -> PartitionResponse:
    try:
        partition = context.broker.replicas.partition(TopicPartition(topic, index))
        partition.check_leader()
    except KafkaError as error:
        return PartitionResponse(partition_index=index, error_code=int(error.code))
    return PartitionResponse(
        partition_index=index,
        active_producers=[
            ProducerState(
                producer_id=entry.producer_id,
                producer_epoch=entry.producer_epoch,
                last_sequence=entry.last_sequence,
                last_timestamp=entry.last_timestamp,
                coordinator_epoch=entry.coordinator_epoch,
                current_txn_start_offset=-1
                if entry.current_txn_first_offset is None
                else entry.current_txn_first_offset,
            )
            for entry in partition.log.producer_state_manager.active_producers.values()
        ],
    )
