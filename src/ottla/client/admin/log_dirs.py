"""Log directories of brokers: their replicas and sizes, and moving replicas between them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ottla.client.admin.offsets import by_topic
from ottla.client.admin.requests import AdminRequests
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopic,
)
from ottla.protocol.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from ottla.protocol.names import TopicPartition


@dataclass(frozen=True, slots=True)
class ReplicaInfo:
    size_bytes: int
    offset_lag: int
    is_future: bool


@dataclass(frozen=True, slots=True)
class LogDir:
    """One directory of one broker. Sizes are None if the broker does not report them."""

    broker_id: int
    path: str
    error: ErrorCode
    total_bytes: int | None
    usable_bytes: int | None
    replicas: Mapping[TopicPartition, ReplicaInfo]


class LogDirsAdmin:
    __slots__ = ("_requests",)

    def __init__(self, caller: AdminRequests) -> None:
        self._requests = caller

    async def describe(
        self,
        *,
        brokers: Iterable[int] | None = None,
        topics: Iterable[str] | None = None,
        partitions: Iterable[TopicPartition] | None = None,
    ) -> list[LogDir]:
        """The directories of all brokers, or of these; with only the replicas of some topics, or of some
        partitions, if these are given.
        """
        wanted = None
        if topics is not None:
            partitions = [p for topic in topics for p in await self._requests.partitions_of(topic)]
        if partitions is not None:
            wanted = [
                DescribableLogDirTopic(topic=topic, partitions=indexes)
                for topic, indexes in by_topic(partitions).items()
            ]
        request = DescribeLogDirsRequest(topics=wanted)
        ids = sorted((await self._requests.cluster.refresh()).brokers) if brokers is None else list(brokers)
        answers = await asyncio.gather(
            *(self._requests.node(broker, request, DescribeLogDirsResponse) for broker in ids)
        )
        return [
            LogDir(
                broker,
                result.log_dir,
                ErrorCode.of(result.error_code),
                result.total_bytes if result.total_bytes >= 0 else None,
                result.usable_bytes if result.usable_bytes >= 0 else None,
                {
                    TopicPartition(topic.name, p.partition_index): ReplicaInfo(
                        p.partition_size, p.offset_lag, p.is_future_key
                    )
                    for topic in result.topics
                    for p in topic.partitions
                },
            )
            for broker, answer in zip(ids, answers)
            for result in answer.results
        ]

    async def move(
        self, broker_id: int, moves: Mapping[TopicPartition, str]
    ) -> dict[TopicPartition, KafkaError | None]:
        """Move replicas of one broker to other directories of it."""
        by_path: dict[str, list[TopicPartition]] = {}
        for partition, path in moves.items():
            by_path.setdefault(path, []).append(partition)
        request = AlterReplicaLogDirsRequest(
            dirs=[
                AlterReplicaLogDir(
                    path=path,
                    topics=[
                        AlterReplicaLogDirTopic(name=topic, partitions=indexes)
                        for topic, indexes in by_topic(partitions).items()
                    ],
                )
                for path, partitions in by_path.items()
            ]
        )
        answer = await self._requests.node(broker_id, request, AlterReplicaLogDirsResponse)
        return {
            partition: _move_error(p.error_code, partition, moves[partition])
            for topic in answer.results
            for p in topic.partitions
            for partition in [TopicPartition(topic.topic_name, p.partition_index)]
        }


def _move_error(error_code: int, partition: TopicPartition, path: str) -> KafkaError | None:
    code = ErrorCode.of(error_code)
    return KafkaError(code, f"{partition}: cannot move to {path}: {code.text}") if code else None
