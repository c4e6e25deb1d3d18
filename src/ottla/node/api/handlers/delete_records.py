"""DeleteRecords: move the log start offset of partitions up; consumers no longer see records before it.

Offset -1 stands for the high watermark. The response waits until every replica has followed, or `timeout_ms`
is over.

Version 2 is flexible (KIP-482).
"""

from __future__ import annotations

from collections.abc import Awaitable
from operator import itemgetter
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
_OFFSET: Final = itemgetter(0)


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
        # By partition: the offsets that every replica's log start must reach, and their parts of the
        # response. A request may name a partition again and again.
        self.waiting: dict[Partition, list[tuple[int, DeleteRecordsPartitionResult]]] = {}

    def delete(self, topic: str, part: DeleteRecordsPartition) -> DeleteRecordsPartitionResult:
        result = DeleteRecordsPartitionResult(partition_index=part.partition_index, low_watermark=-1)
        try:
            if not self._context.allowed(AclOperation.DELETE, AclResourceType.TOPIC, topic):
                raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            tp = TopicPartition(topic, part.partition_index)
            partition = self._context.broker.replicas.partition(tp)
            offset = partition.delete_records_on_leader(part.offset)
            self.waiting.setdefault(partition, []).append((offset, result))
        except KafkaError as error:
            result.error_code = int(error.code)
        return result

    def done(self) -> bool:
        """Put the low watermarks into the response; True once every replica has followed."""
        for partition, results in list(self.waiting.items()):
            low_watermark = partition.low_watermark if partition.is_leader else None
            if low_watermark is not None and low_watermark < max(results, key=_OFFSET)[0]:
                continue
            self._decide(partition, low_watermark)
        return not self.waiting

    def on_timeout(self) -> None:
        """Decide what still waits."""
        for partition in list(self.waiting):
            self._decide(partition, partition.low_watermark if partition.is_leader else None)

    def _decide(self, partition: Partition, low_watermark: int | None) -> None:
        for offset, result in self.waiting.pop(partition):
            if low_watermark is None:
                result.error_code = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            elif low_watermark < offset:
                result.error_code = int(ErrorCode.REQUEST_TIMED_OUT)
            else:
                result.low_watermark = low_watermark


async def _finish(
    context: RequestContext,
    request: DeleteRecordsRequest,
    deletions: _Deletions,
    response: DeleteRecordsResponse,
) -> DeleteRecordsResponse:
    keys = [partition.topic_partition for partition in deletions.waiting]
    if not await context.broker.replicas.purgatory.try_complete_else_watch(
        keys, deletions.done, request.timeout_ms
    ):
        deletions.on_timeout()
    return response
