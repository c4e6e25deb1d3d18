"""First and last offsets of partitions, offsets by time, and deleting records before an offset."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple, TypeVar

from ottla.client.admin.requests import AdminRequests
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ottla.protocol.names import TopicPartition

T = TypeVar("T")


# Kafka's replica id for a reader that any replica answers, not only the leader.
_DEBUGGING_CONSUMER = -2


class OffsetSpec(IntEnum):
    """Special timestamps, to be given instead of a time in milliseconds."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    EARLIEST_LOCAL = -4
    LATEST_TIERED = -5
    EARLIEST_PENDING_UPLOAD = -6


class FoundOffset(NamedTuple):
    """`offset` is -1 if no record matches."""

    offset: int
    timestamp: int
    leader_epoch: int


class OffsetsAdmin:
    __slots__ = ("_requests",)

    def __init__(self, caller: AdminRequests) -> None:
        self._requests = caller

    async def list(
        self, wanted: Mapping[TopicPartition, int], *, read_committed: bool = False
    ) -> dict[TopicPartition, FoundOffset | KafkaError]:
        """For each partition the first offset at or after a timestamp, or that of an `OffsetSpec`."""

        async def ask(
            node_id: int, partitions: list[TopicPartition]
        ) -> dict[TopicPartition, FoundOffset | KafkaError]:
            request = ListOffsetsRequest(
                replica_id=-1,
                isolation_level=1 if read_committed else 0,
                topics=[
                    ListOffsetsTopic(
                        name=topic,
                        partitions=[
                            ListOffsetsPartition(
                                partition_index=index, timestamp=wanted[TopicPartition(topic, index)]
                            )
                            for index in indexes
                        ],
                    )
                    for topic, indexes in by_topic(partitions).items()
                ],
                timeout_ms=self._requests.cluster.config.request_timeout_ms,
            )
            answer = await self._requests.cluster.request(node_id, request, ListOffsetsResponse)
            return {
                partition: FoundOffset(entry.offset, entry.timestamp, entry.leader_epoch)
                if not entry.error_code
                else KafkaError(ErrorCode.of(entry.error_code), f"{partition}: cannot list its offset")
                for topic in answer.topics
                for entry in topic.partitions
                for partition in [TopicPartition(topic.name, entry.partition_index)]
            }

        return await self._requests.by_leader(wanted, ask, "ListOffsets")

    async def of_replica(
        self, broker_id: int, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int | KafkaError]:
        """The end offsets of one broker's replicas, leader or not, as a consumer of that replica sees
        them.
        """
        request = ListOffsetsRequest(
            replica_id=_DEBUGGING_CONSUMER,
            topics=[
                ListOffsetsTopic(
                    name=topic,
                    partitions=[
                        ListOffsetsPartition(partition_index=index, timestamp=OffsetSpec.LATEST)
                        for index in indexes
                    ],
                )
                for topic, indexes in by_topic(partitions).items()
            ],
            timeout_ms=self._requests.cluster.config.request_timeout_ms,
        )
        answer = await self._requests.node(broker_id, request, ListOffsetsResponse)
        return {
            partition: KafkaError(ErrorCode.of(entry.error_code), f"{partition}: not on broker {broker_id}")
            if entry.error_code
            else entry.offset
            for topic in answer.topics
            for entry in topic.partitions
            for partition in [TopicPartition(topic.name, entry.partition_index)]
        }

    async def of_topic(
        self, topic: str, spec: int, *, read_committed: bool = False
    ) -> dict[int, FoundOffset]:
        """The same for all partitions of a topic, by partition number; the first failure is raised."""
        partitions = await self._requests.partitions_of(topic)
        found = await self.list(dict.fromkeys(partitions, spec), read_committed=read_committed)
        return {p.partition: result for p, result in all_or_raise(found).items()}

    async def beginning(self, topic: str) -> dict[int, int]:
        """The offset of the first record, by partition."""
        return {p: found.offset for p, found in (await self.of_topic(topic, OffsetSpec.EARLIEST)).items()}

    async def end(self, topic: str, *, read_committed: bool = False) -> dict[int, int]:
        """The offset after the last record, or after the last committed one, by partition."""
        found = await self.of_topic(topic, OffsetSpec.LATEST, read_committed=read_committed)
        return {p: entry.offset for p, entry in found.items()}

    async def delete_records(
        self, before: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int | KafkaError]:
        """Delete records before an offset (-1: before the high watermark); returns the new first offsets."""

        async def ask(
            node_id: int, partitions: list[TopicPartition]
        ) -> dict[TopicPartition, int | KafkaError]:
            request = DeleteRecordsRequest(
                topics=[
                    DeleteRecordsTopic(
                        name=topic,
                        partitions=[
                            DeleteRecordsPartition(
                                partition_index=index, offset=before[TopicPartition(topic, index)]
                            )
                            for index in indexes
                        ],
                    )
                    for topic, indexes in by_topic(partitions).items()
                ],
                timeout_ms=self._requests.timeout_ms,
            )
            answer = await self._requests.cluster.request(node_id, request, DeleteRecordsResponse)
            return {
                partition: entry.low_watermark
                if not entry.error_code
                else KafkaError(
                    ErrorCode.of(entry.error_code), f"{partition}: cannot delete before {before[partition]}"
                )
                for topic in answer.topics
                for entry in topic.partitions
                for partition in [TopicPartition(topic.name, entry.partition_index)]
            }

        return await self._requests.by_leader(before, ask, "DeleteRecords")


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    grouped: dict[str, list[int]] = {}
    for topic, partition in partitions:
        grouped.setdefault(topic, []).append(partition)
    return grouped


def all_or_raise(results: Mapping[TopicPartition, T | KafkaError]) -> dict[TopicPartition, T]:
    found: dict[TopicPartition, T] = {}
    for partition, result in results.items():
        if isinstance(result, KafkaError):
            raise result
        found[partition] = result
    return found
