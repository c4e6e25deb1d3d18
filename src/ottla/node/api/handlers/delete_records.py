"""DeleteRecords: move the log start offset of partitions up; consumers no longer see records before it.

Offset -1 stands for the high watermark. The response waits until every replica has followed, or `timeout_ms`
is over.

Version 2 is flexible (KIP-482).
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from ottla.node.api.context import RequestContext
from ottla.protocol.acl import AclOperation, AclResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from ottla.protocol.names import TopicPartition
from ottla.replication.partition import Partition
from ottla.runtime.turns import Turns

# More partitions are looked at in turns: a log start that moves may have files to look for.
_MANY: Final = 20


def handle(
    context: RequestContext, request: DeleteRecordsRequest
) -> DeleteRecordsResponse | Awaitable[DeleteRecordsResponse]:
    deletions = _Deletions(context)
    if sum(len(topic.partitions) for topic in request.topics) > _MANY:
        return _delete_in_turns(context, request, deletions)
    response = DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[deletions.delete(topic.name, part) for part in topic.partitions],
            )
            for topic in request.topics
        ]
    )
    if deletions.done():
        return response
    return _finish(context, request, deletions, response)


async def _delete_in_turns(
    context: RequestContext, request: DeleteRecordsRequest, deletions: _Deletions
) -> DeleteRecordsResponse:
    response = DeleteRecordsResponse(topics=[])
    turns = Turns(context.broker.runtime.clock)
    for topic in request.topics:
        result = DeleteRecordsTopicResult(name=topic.name, partitions=[])
        response.topics.append(result)
        for part in topic.partitions:
            result.partitions.append(deletions.delete(topic.name, part))
            await turns.pause_if_due()
    return response if deletions.done() else await _finish(context, request, deletions, response)


class _Deletions:
    def __init__(self, context: RequestContext) -> None:
        self._context = context
        # (partition, offset that every replica's log start must reach, its part of the response)
        self.waiting: list[tuple[Partition, int, DeleteRecordsPartitionResult]] = []

    def delete(self, topic: str, part: DeleteRecordsPartition) -> DeleteRecordsPartitionResult:
        result = DeleteRecordsPartitionResult(partition_index=part.partition_index, low_watermark=-1)
        try:
            if not self._context.allowed(AclOperation.DELETE, AclResourceType.TOPIC, topic):
                raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            tp = TopicPartition(topic, part.partition_index)
            partition = self._context.broker.replicas.partition(tp)
            self.waiting.append((partition, partition.delete_records_on_leader(part.offset), result))
        except KafkaError as error:
            result.error_code = int(error.code)
        return result

    def done(self) -> bool:
        """Put the low watermarks into the response; True once every replica has followed."""
        waiting = False
        for partition, offset, result in self.waiting:
            if not partition.is_leader:
                result.error_code = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            elif partition.low_watermark >= offset:
                result.low_watermark = partition.low_watermark
            else:
                waiting = True
        return not waiting


async def _finish(
    context: RequestContext,
    request: DeleteRecordsRequest,
    deletions: _Deletions,
    response: DeleteRecordsResponse,
) -> DeleteRecordsResponse:
    keys = [partition.topic_partition for partition, _, _ in deletions.waiting]
    if not await context.broker.replicas.purgatory.try_complete_else_watch(
        keys, deletions.done, request.timeout_ms
    ):
        for partition, offset, result in deletions.waiting:
            if result.low_watermark < offset and partition.is_leader:
                result.error_code = int(ErrorCode.REQUEST_TIMED_OUT)
    return response
