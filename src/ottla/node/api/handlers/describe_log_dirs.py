"""DescribeLogDirs: list the log directories, the partitions in them with their sizes, and the free space.

Null topics stand for all partitions.

Version 2 is flexible (KIP-482).
Version 3 has an error for the whole response (KIP-784).
Version 4 returns total and free space (KIP-827).
Version 5 says whether a directory takes no new partitions (KIP-1066).
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Final

from ottla.log.directory.directory import LogDirectory
from ottla.node.api.context import RequestContext
from ottla.protocol.acl import CLUSTER_NAME, AclOperation, AclResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from ottla.protocol.names import TopicPartition
from ottla.runtime.turns import Turns

# More logs than these are described in several turns.
_ONE_TURN: Final = 1_000


def handle(
    context: RequestContext, request: DescribeLogDirsRequest
) -> Coroutine[Any, Any, DescribeLogDirsResponse]:
    context.is_bulky = context.broker.logs.log_count > _ONE_TURN
    return _describe(context, request)


async def _describe(context: RequestContext, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
    if not context.allowed(AclOperation.DESCRIBE, AclResourceType.CLUSTER, CLUSTER_NAME):
        return DescribeLogDirsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    requested = None
    if request.topics is not None:
        requested, turns = set[TopicPartition](), Turns(context.broker.runtime.clock)
        for topic in request.topics:
            for index in topic.partitions:
                requested.add(TopicPartition(topic.topic, index))
                await turns.pause_if_due()
    logs = context.broker.logs
    return DescribeLogDirsResponse(
        results=[await _directory(context, directory, requested) for directory in logs.directories]
    )


async def _directory(
    context: RequestContext, directory: LogDirectory, requested: set[TopicPartition] | None
) -> DescribeLogDirsResult:
    broker = context.broker
    path = directory.path
    if not directory.is_online:
        return DescribeLogDirsResult(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=path)
    cordoned = context.config.names("cordoned.log.dirs")
    try:
        topics = await _topics(context, directory, requested)
    except KafkaError as error:
        return DescribeLogDirsResult(error_code=error.code, log_dir=path)
    result = DescribeLogDirsResult(
        log_dir=path,
        topics=topics,
        is_cordoned="*" in cordoned or path in cordoned,
    )
    try:
        usage = await broker.runtime.pool.run(broker.runtime.disk.usage, directory.path)
    except OSError:
        return result
    result.total_bytes, result.usable_bytes = usage.total_bytes, usage.free_bytes
    return result


async def _topics(
    context: RequestContext, directory: LogDirectory, requested: set[TopicPartition] | None
) -> list[DescribeLogDirsTopic]:
    """The logs of a directory by topic; many of them are described in several turns."""
    manager = context.broker.logs
    turns = Turns(context.broker.runtime.clock)
    topics: dict[str, DescribeLogDirsTopic] = {}
    for log in manager.logs_in(directory):
        name, index = log.topic_partition
        # A log that was deleted or moved in an earlier turn has no size to ask for.
        if (requested is None or log.topic_partition in requested) and manager.holds(log):
            # A future log lags behind the one it is to replace; a current one behind nothing.
            lag = max(log.high_watermark - log.log_end_offset, 0)
            topics.setdefault(name, DescribeLogDirsTopic(name=name)).partitions.append(
                DescribeLogDirsPartition(
                    partition_index=index,
                    partition_size=log.size,
                    offset_lag=lag,
                    is_future_key=log.is_future,
                )
            )
        if turns.is_due():
            await turns.pause()
    return list(topics.values())
