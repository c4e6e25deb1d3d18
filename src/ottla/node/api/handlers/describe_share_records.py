"""DescribeShareRecords: list what share groups have in delivery, as the leaders of partitions know it. Apache
Kafka does not have this request; it is announced to Ottla's own clients.

For each partition it lists ranges of records that are alike, in some states (`InFlightState`; all if none is
named), from an offset on: who holds them, or how long they wait, and how often they were delivered. The
answer has a bounded number of ranges, and the offset from which on there may be more; a partition for which
nothing was left has its own start there. It takes what DescribeShareGroupOffsets takes: DESCRIBE of the group
and of the topics.
"""

from __future__ import annotations

from typing import Final

from ottla.node.api.context import RequestContext
from ottla.node.api.group_requests import check_group, check_group_id, check_share_groups
from ottla.node.api.share_requests import LooksLeft, share_records_partition
from ottla.node.share.share_partition import InFlightState
from ottla.protocol.acl import AclOperation
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages.describe_share_records import (
    DescribeShareRecordsRequest,
    DescribeShareRecordsRequestPartition,
    DescribeShareRecordsResponse,
    DescribeShareRecordsResponsePartition,
    DescribeShareRecordsResponseTopic,
    RecordsInDelivery,
)

MAX_RANGES: Final = 1_000


async def handle(
    context: RequestContext, request: DescribeShareRecordsRequest
) -> DescribeShareRecordsResponse:
    check_share_groups(context)
    check_group(context, request.group_id, AclOperation.DESCRIBE)
    check_group_id(request.group_id)
    states = frozenset(request.states) or frozenset(InFlightState)
    left = LooksLeft(context)
    ranges_left = max(0, min(request.max_ranges, MAX_RANGES))
    response = DescribeShareRecordsResponse()
    for topic in request.topics:
        answer = DescribeShareRecordsResponseTopic(name=topic.name)
        response.topics.append(answer)
        for part in topic.partitions:
            described = await _describe(context, request, topic.name, part, states, ranges_left, left)
            ranges_left -= len(described.ranges)
            answer.partitions.append(described)
            await left.pause_if_due()
    return response


async def _describe(
    context: RequestContext,
    request: DescribeShareRecordsRequest,
    topic: str,
    part: DescribeShareRecordsRequestPartition,
    states: frozenset[int],
    most: int,
    left: LooksLeft,
) -> DescribeShareRecordsResponsePartition:
    described = DescribeShareRecordsResponsePartition(partition_index=part.partition_index)
    if left.is_used_up or (most == 0 and request.max_ranges > 0):
        described.next_offset = max(0, part.start_offset)
        return described
    manager = context.broker.share_partitions
    try:
        partition = share_records_partition(context, topic, part.partition_index, AclOperation.DESCRIBE)
        async with manager.loaded(request.group_id, partition) as leader:
            share = leader.share
            assert share is not None, leader.key
            described.start_offset = share.start_offset
            described.held = share.acquired_records
            described.waiting = share.waiting_records
            described.dead = share.dead_records
            if leader.dead_letters is not None:
                described.dead_letter_problem = leader.dead_letters.problem
            page = share.records_in_flight(
                part.start_offset, states, manager.now_ms(), most=most, most_looks=left.most
            )
            left.count(max(len(page.records), left.most if page.next_offset is not None else 1))
            described.next_offset = -1 if page.next_offset is None else page.next_offset
            described.ranges = [
                RecordsInDelivery(
                    first_offset=each.first_offset,
                    last_offset=each.last_offset,
                    state=int(each.state),
                    delivery_count=each.delivery_count,
                    member_id=each.member_id,
                    age_ms=each.age_ms,
                    left_ms=each.left_ms,
                )
                for each in page.records
            ]
    except KafkaError as error:
        context.count_error(int(error.code))
        described.error_code, described.error_message = int(error.code), error.message or error.code.text
    return described
