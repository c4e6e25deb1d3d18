"""AlterShareRecords: release, reject or skip records that a share group has in delivery. Apache Kafka does
not have this request; it is announced to Ottla's own clients.

Ranges of offsets, in order, are released (2: available at once, also if they wait for a retry), rejected (3:
archived, with a dead letter where the group has a topic for them) or skipped (0: archived without). What a
member holds is taken from it: its own acknowledgement is refused afterwards. A range may name the delivery
count that its sender has seen: records that were delivered once more meanwhile stay as they are. What is
done, or being changed by another request, stays as well, so the same request twice changes nothing more.

The answer comes once the change is persisted, and says how many records were changed. A large change is done
in parts: the offset at which the answer ends is where the next request begins. It takes what
AlterShareGroupOffsets takes, and what every member needs: READ of the group and of the topics.
"""

from __future__ import annotations

from ottla.node.api.context import RequestContext
from ottla.node.api.group_requests import check_group, check_group_id, check_share_groups
from ottla.node.api.share_requests import LooksLeft, share_records_partition
from ottla.protocol.acl import AclOperation
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.alter_share_records import (
    AlterShareRecordsRequest,
    AlterShareRecordsRequestPartition,
    AlterShareRecordsRequestRange,
    AlterShareRecordsResponse,
    AlterShareRecordsResponsePartition,
    AlterShareRecordsResponseTopic,
)
from ottla.protocol.share import AcknowledgeType

_TYPES = frozenset((AcknowledgeType.GAP, AcknowledgeType.RELEASE, AcknowledgeType.REJECT))


async def handle(context: RequestContext, request: AlterShareRecordsRequest) -> AlterShareRecordsResponse:
    check_share_groups(context)
    check_group(context, request.group_id)
    check_group_id(request.group_id)
    if request.acknowledge_type not in _TYPES:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Records are released (2), rejected (3) or skipped (0).")
    left = LooksLeft(context)
    response = AlterShareRecordsResponse()
    for topic in request.topics:
        answer = AlterShareRecordsResponseTopic(name=topic.name)
        response.topics.append(answer)
        for part in topic.partitions:
            answer.partitions.append(await _alter(context, request, topic.name, part, left))
            await left.pause_if_due()
    return response


async def _alter(
    context: RequestContext,
    request: AlterShareRecordsRequest,
    topic: str,
    part: AlterShareRecordsRequestPartition,
    left: LooksLeft,
) -> AlterShareRecordsResponsePartition:
    altered = AlterShareRecordsResponsePartition(partition_index=part.partition_index)
    try:
        _check_order(part.ranges)
        if left.is_used_up:
            altered.next_offset = part.ranges[0].first_offset if part.ranges else -1
            return altered
        partition = share_records_partition(context, topic, part.partition_index, AclOperation.READ)
        manager = context.broker.share_partitions
        async with manager.loaded(request.group_id, partition) as leader:
            most = left.most
            altered.records, next_offset = await manager.alter_records(
                leader,
                [(each.first_offset, each.last_offset, each.delivery_count) for each in part.ranges],
                AcknowledgeType(request.acknowledge_type),
                most_looks=most,
            )
            left.count(most if next_offset is not None else len(part.ranges))
            altered.next_offset = -1 if next_offset is None else next_offset
    except KafkaError as error:
        context.count_error(int(error.code))
        altered.error_code, altered.error_message = int(error.code), error.message or error.code.text
    return altered


def _check_order(ranges: list[AlterShareRecordsRequestRange]) -> None:
    previous = -1
    for each in ranges:
        if not previous < each.first_offset <= each.last_offset:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Ranges of offsets have to be in order.")
        previous = each.last_offset
