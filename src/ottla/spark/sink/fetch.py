"""Fetch one partition once, for the few records that the sink itself reads."""

from __future__ import annotations

from ottla.client.network_client import NetworkClient
from ottla.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from ottla.protocol.names import TopicPartition

LAST_VERSION_BY_NAME = 12


async def fetch(
    cluster: NetworkClient,
    partition: TopicPartition,
    offset: int,
    *,
    max_bytes: int,
    max_wait_ms: int = 0,
    read_committed: bool = False,
) -> PartitionData:
    """Fetch from the leader. The answer may have an error code."""
    connection = await cluster.leader_connection(partition)
    request = FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=max_bytes,
        isolation_level=int(read_committed),
        topics=[
            FetchTopic(
                topic=partition.topic,
                partitions=[
                    FetchPartition(
                        partition=partition.partition, fetch_offset=offset, partition_max_bytes=max_bytes
                    )
                ],
            )
        ],
    )
    answer = await connection.request(
        request,
        FetchResponse,
        timeout_ms=cluster.config.request_timeout_ms,
        version=connection.version_for(FetchRequest, at_most=LAST_VERSION_BY_NAME),
    )
    return answer.responses[0].partitions[0]
