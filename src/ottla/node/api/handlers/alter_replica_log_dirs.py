"""AlterReplicaLogDirs: move partitions to other data directories of this broker, while they serve.

The response goes out when the moves have begun; DescribeLogDirs shows their progress.

Version 2 is flexible (KIP-482).
"""

from __future__ import annotations

from collections.abc import Awaitable

from ottla.node.api.context import RequestContext
from ottla.protocol.acl import CLUSTER_NAME, AclOperation, AclResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from ottla.protocol.names import TopicPartition
from ottla.runtime.steps import Steps


def handle(
    context: RequestContext, request: AlterReplicaLogDirsRequest
) -> AlterReplicaLogDirsResponse | Awaitable[AlterReplicaLogDirsResponse]:
    return context.run_steps(_alter(context, request))


def _alter(
    context: RequestContext, request: AlterReplicaLogDirsRequest
) -> Steps[AlterReplicaLogDirsResponse]:
    allowed = context.allowed(AclOperation.ALTER, AclResourceType.CLUSTER, CLUSTER_NAME)
    topics: dict[str, AlterReplicaLogDirTopicResult] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            result = topics.setdefault(topic.name, AlterReplicaLogDirTopicResult(topic_name=topic.name))
            for index in topic.partitions:
                error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
                if allowed:
                    error = _move(context, TopicPartition(topic.name, index), directory.path)
                result.partitions.append(
                    AlterReplicaLogDirPartitionResult(partition_index=index, error_code=int(error))
                )
                yield
    return AlterReplicaLogDirsResponse(results=list(topics.values()))


def _move(context: RequestContext, tp: TopicPartition, path: str) -> ErrorCode:
    manager = context.broker.alter_log_dirs
    try:
        manager.check_directory(path)
        manager.begin(context.broker.replicas.partition(tp), path)
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE
