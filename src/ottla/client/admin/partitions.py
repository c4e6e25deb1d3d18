"""Replicas of partitions: reassignment, leader elections, and the producer states of leaders."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from ottla.client.admin.offsets import by_topic
from ottla.client.admin.requests import AdminRequests
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from ottla.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    ProducerState,
    TopicRequest,
)
from ottla.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    TopicPartitions,
)
from ottla.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsTopics,
)
from ottla.protocol.names import TopicPartition


class ElectionType(IntEnum):
    PREFERRED = 0
    UNCLEAN = 1


@dataclass(frozen=True, slots=True)
class Reassignment:
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


class PartitionsAdmin:
    __slots__ = ("_requests",)

    def __init__(self, caller: AdminRequests) -> None:
        self._requests = caller

    async def reassign(
        self, targets: Mapping[TopicPartition, Sequence[int] | None]
    ) -> dict[TopicPartition, KafkaError | None]:
        """Start moving partitions to other replicas; None cancels a reassignment in progress."""
        request = AlterPartitionReassignmentsRequest(
            timeout_ms=self._requests.timeout_ms,
            topics=[
                ReassignableTopic(
                    name=topic,
                    partitions=[
                        ReassignablePartition(
                            partition_index=index, replicas=None if ids is None else list(ids)
                        )
                        for index in indexes
                        for ids in [targets[TopicPartition(topic, index)]]
                    ],
                )
                for topic, indexes in by_topic(targets).items()
            ],
        )
        answer = await self._requests.controller(
            request, AlterPartitionReassignmentsResponse, lambda r: [r.error_code]
        )
        self._requests.raise_error(answer, "reassignment")
        return {
            partition: self._requests.error_of(result, str(partition))
            for topic in answer.responses
            for result in topic.partitions
            for partition in [TopicPartition(topic.name, result.partition_index)]
        }

    async def reassignments(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, Reassignment]:
        """The reassignments in progress, of all partitions or of these."""
        wanted = None
        if partitions is not None:
            wanted = [
                ListPartitionReassignmentsTopics(name=topic, partition_indexes=indexes)
                for topic, indexes in by_topic(partitions).items()
            ]
        request = ListPartitionReassignmentsRequest(timeout_ms=self._requests.timeout_ms, topics=wanted)
        answer = await self._requests.controller(
            request, ListPartitionReassignmentsResponse, lambda r: [r.error_code]
        )
        self._requests.raise_error(answer, "reassignments")
        return {
            TopicPartition(topic.name, p.partition_index): Reassignment(
                tuple(p.replicas), tuple(p.adding_replicas), tuple(p.removing_replicas)
            )
            for topic in answer.topics
            for p in topic.partitions
        }

    async def elect_leaders(
        self, election: ElectionType, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, KafkaError | None]:
        """Elect the preferred replica (or, at the risk of losing records, any) as leader; None means all
        partitions.
        """
        wanted = None
        if partitions is not None:
            wanted = [
                TopicPartitions(topic=topic, partitions=indexes)
                for topic, indexes in by_topic(partitions).items()
            ]
        request = ElectLeadersRequest(
            election_type=election, topic_partitions=wanted, timeout_ms=self._requests.timeout_ms
        )
        answer = await self._requests.controller(request, ElectLeadersResponse, lambda r: [r.error_code])
        if answer.error_code:
            raise KafkaError(ErrorCode.of(answer.error_code))
        return {
            partition: self._requests.error_of(result, str(partition))
            for topic in answer.replica_election_results
            for result in topic.partition_result
            for partition in [TopicPartition(topic.topic, result.partition_id)]
        }

    async def producers(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, list[ProducerState] | KafkaError]:
        """The producers whose state the leaders of these partitions keep."""

        async def ask(
            node_id: int, owned: list[TopicPartition]
        ) -> dict[TopicPartition, list[ProducerState] | KafkaError]:
            request = DescribeProducersRequest(
                topics=[
                    TopicRequest(name=topic, partition_indexes=indexes)
                    for topic, indexes in by_topic(owned).items()
                ]
            )
            answer = await self._requests.cluster.request(node_id, request, DescribeProducersResponse)
            return {
                partition: self._requests.error_of(result, str(partition)) or result.active_producers
                for topic in answer.topics
                for result in topic.partitions
                for partition in [TopicPartition(topic.name, result.partition_index)]
            }

        return await self._requests.by_leader(partitions, ask, "DescribeProducers")
