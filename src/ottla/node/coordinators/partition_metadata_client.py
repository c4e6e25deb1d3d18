"""The ends of partitions, wherever they are led, for the lag of share groups (Kafka's
`PartitionMetadataClient`).

What this broker leads is not asked over the network; other leaders get ListOffsets requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Final, NamedTuple

from ottla.metadata.image.cache import MetadataCache
from ottla.metadata.image.entities import NO_LEADER
from ottla.node.cluster.peers import PeerBrokers
from ottla.node.config.dynamic import DynamicBrokerConfig
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ottla.protocol.names import TopicPartition
from ottla.replication.list_offsets import fetch_offset_for_timestamp
from ottla.replication.partition import FetchIsolation
from ottla.replication.replica_manager import ReplicaManager
from ottla.runtime.clock import Clock
from ottla.runtime.turns import Turns

_CONSUMER: Final = -1
_LATEST: Final = -1
_NEWEST_VERSION: Final = 11
# In one request; others are answered between two of them.
_PARTITIONS_AT_A_TIME: Final = 1000
_UNREACHABLE: Final = (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NETWORK_EXCEPTION)


class LatestOffset(NamedTuple):
    """The offset of a partition's next record, or why it is not known."""

    error: ErrorCode
    offset: int = -1


class PartitionMetadataClient:
    def __init__(
        self,
        config: DynamicBrokerConfig,
        metadata: MetadataCache,
        peers: PeerBrokers,
        replicas: ReplicaManager,
        clock: Clock,
    ) -> None:
        self._clock: Final = clock
        self._config: Final = config
        self._metadata: Final = metadata
        self._replicas: Final = replicas
        self._channel: Final = peers.peer_channel("partition-metadata")

    def close(self) -> None:
        self._channel.close()

    async def list_latest_offsets(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, LatestOffset]:
        """The end of each partition; an error stays with its partition."""
        found: dict[TopicPartition, LatestOffset] = {}
        by_leader: dict[int, list[list[TopicPartition]]] = {}
        by_name = self._metadata.image.topics.by_name
        turns = Turns(self._clock)
        for each in partitions:
            topic = by_name.get(each.topic)
            known = None if topic is None else topic.partitions.get(each.partition)
            if known is None:
                found[each] = LatestOffset(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            elif known.leader == NO_LEADER:
                found[each] = LatestOffset(ErrorCode.LEADER_NOT_AVAILABLE)
            elif known.leader == self._config.current.node_id:
                found[each] = self._local(each)
            else:
                asked = by_leader.setdefault(known.leader, [[]])
                if len(asked[-1]) >= _PARTITIONS_AT_A_TIME:
                    asked.append([])
                asked[-1].append(each)
            if turns.is_due():
                await turns.pause()
        for answers in await asyncio.gather(
            *(self._ask_all(leader, each) for leader, each in by_leader.items())
        ):
            for answer in answers:
                found |= answer
                await turns.pause_if_due()
        return found

    async def _ask_all(
        self, leader: int, requests: list[list[TopicPartition]]
    ) -> list[dict[TopicPartition, LatestOffset]]:
        """Ask a leader, by one request after the other, until one finds that it does not answer."""
        answers: list[dict[TopicPartition, LatestOffset]] = []
        for partitions in requests:
            answer = await self._ask(leader, partitions)
            answers.append(answer)
            failure = answer[partitions[0]]
            if failure.error in _UNREACHABLE:
                answers += [dict.fromkeys(rest, failure) for rest in requests[len(answers) :]]
                break
        return answers

    def _local(self, each: TopicPartition) -> LatestOffset:
        try:
            latest = fetch_offset_for_timestamp(
                self._replicas.partition(each), _LATEST, isolation=FetchIsolation.HIGH_WATERMARK
            )
        except KafkaError as error:
            return LatestOffset(error.code)
        assert latest is not None, each
        return LatestOffset(ErrorCode.NONE, latest.offset)

    async def _ask(self, leader: int, partitions: list[TopicPartition]) -> dict[TopicPartition, LatestOffset]:
        topics: dict[str, ListOffsetsTopic] = {}
        for each in partitions:
            topic = topics.setdefault(each.topic, ListOffsetsTopic(name=each.topic))
            topic.partitions.append(ListOffsetsPartition(partition_index=each.partition, timestamp=_LATEST))
        request = ListOffsetsRequest(replica_id=_CONSUMER, topics=list(topics.values()))
        timeout_ms = self._config.current.number("request.timeout.ms")
        try:
            response = await self._channel.request(leader, request, _NEWEST_VERSION, timeout_ms=timeout_ms)
        except OSError as error:
            is_late = isinstance(error, TimeoutError)
            code = ErrorCode.REQUEST_TIMED_OUT if is_late else ErrorCode.NETWORK_EXCEPTION
            return dict.fromkeys(partitions, LatestOffset(code))
        except KafkaError as error:
            return dict.fromkeys(partitions, LatestOffset(error.code))
        assert isinstance(response, ListOffsetsResponse)
        answered = {
            TopicPartition(topic.name, part.partition_index): LatestOffset(
                ErrorCode.of(part.error_code), part.offset
            )
            for topic in response.topics
            for part in topic.partitions
        }
        missing = LatestOffset(ErrorCode.UNKNOWN_SERVER_ERROR)
        return {each: answered.get(each, missing) for each in partitions}
