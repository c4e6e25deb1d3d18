"""How many bytes partitions have on disk, from their leaders, one request each.

An estimate for cutting tasks, and no more: whoever may not ask (it needs DESCRIBE on the cluster) or gets no
answer reads the same rows, cut by rows alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from ottla.client.admin.offsets import by_topic
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from ottla.protocol.names import TopicPartition
from ottla.spark.source.link import Link

__all__ = ["sizes_on_disk"]

log = logging.getLogger(__name__)


async def sizes_on_disk(
    link: Link, partitions: Iterable[TopicPartition], *, timeout_ms: int
) -> dict[TopicPartition, int]:
    leaders: dict[int, list[TopicPartition]] = {}
    for partition in partitions:
        info = link.cluster.view.leader(partition)
        if info is not None:
            leaders.setdefault(info.leader, []).append(partition)
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            answers = await asyncio.gather(*(_ask(link, node, owned) for node, owned in leaders.items()))
    except (KafkaError, TimeoutError) as error:
        log.info("sizes of partitions are not known, so tasks are not cut by bytes: %s", error)
        return {}
    return {partition: size for answer in answers for partition, size in answer.items()}


async def _ask(link: Link, node_id: int, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
    request = DescribeLogDirsRequest(
        topics=[
            DescribableLogDirTopic(topic=topic, partitions=indexes)
            for topic, indexes in by_topic(partitions).items()
        ]
    )
    answer = await link.cluster.request(node_id, request, DescribeLogDirsResponse)
    return {
        TopicPartition(topic.name, each.partition_index): each.partition_size
        for result in answer.results
        for topic in result.topics
        for each in topic.partitions
        if not each.is_future_key
    }
