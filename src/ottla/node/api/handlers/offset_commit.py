"""OffsetCommit: commit the offsets up to which a group has read.

The response goes out when the offsets are committed in `__consumer_offsets`. An error of the whole request is
the error of every partition.

Versions 2 to 4 may set a retention.
Version 5 leaves the retention to the broker's settings (KIP-211).
Version 6 has leader epochs (KIP-320).
Version 7 has static members (KIP-345).
Version 8 is flexible (KIP-482).
Version 9 serves consumer groups: STALE_MEMBER_EPOCH, GROUP_ID_NOT_FOUND (KIP-848).
Version 10 names topics by id (KIP-848).
"""

from __future__ import annotations

from collections.abc import Awaitable

from ottla.coordinator.group.requests import CommitOffsets
from ottla.node.api.context import RequestContext
from ottla.node.api.group_requests import (
    add_part,
    check_committed_topic,
    check_group,
    existing,
    merge,
    parts_of,
    submit,
)
from ottla.node.api.response_errors import error_for_each_part
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from ottla.runtime.turns import Turns

_FIRST_VERSION_BY_ID = 10


def handle(
    context: RequestContext, request: OffsetCommitRequest
) -> OffsetCommitResponse | Awaitable[OffsetCommitResponse]:
    check_group(context, request.group_id)
    return _answer_in_parts(context, request) if context.is_long else _answer(context, request)


async def _answer_in_parts(context: RequestContext, request: OffsetCommitRequest) -> OffsetCommitResponse:
    """Commit many offsets, some at a time. Each has a result of its own, so that the group may change
    meanwhile.
    """
    response, turns = OffsetCommitResponse(), Turns(context.broker.runtime.clock)
    for part in parts_of(request.topics):
        answer = _answer(context, request.replace(topics=part))
        if not isinstance(answer, OffsetCommitResponse):
            answer = await answer
        add_part(response.topics, answer.topics)
        await turns.pause_if_due()
    return response


def _answer(
    context: RequestContext, request: OffsetCommitRequest
) -> OffsetCommitResponse | Awaitable[OffsetCommitResponse]:
    refused: list[OffsetCommitResponseTopic] = []
    accepted: list[OffsetCommitRequestTopic] = []
    for topic in request.topics:
        code = check_committed_topic(context, topic, by_id=context.version >= _FIRST_VERSION_BY_ID)
        if code is not ErrorCode.NONE:
            refused.append(_error(topic, code))
            continue
        known, unknown = existing(context, topic)
        if known.partitions:
            accepted.append(known)
        if unknown.partitions:
            refused.append(_error(unknown, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    if not accepted:
        return OffsetCommitResponse(topics=refused)
    request.topics = accepted
    return _commit(context, request, refused)


def _commit(
    context: RequestContext, request: OffsetCommitRequest, refused: list[OffsetCommitResponseTopic]
) -> OffsetCommitResponse | Awaitable[OffsetCommitResponse]:
    """Commit what was accepted; if that fails as a whole, what was refused keeps its own errors."""
    try:
        ticket = submit(context, request.group_id, CommitOffsets, request)
        reply = ticket.then(lambda response: _with_refused(response, refused))
        return reply if isinstance(reply, OffsetCommitResponse) else _commit_later(request, reply, refused)
    except KafkaError as error:
        return _with_refused(error_for_each_part(request, error.code, None), refused)


async def _commit_later(
    request: OffsetCommitRequest,
    reply: Awaitable[OffsetCommitResponse],
    refused: list[OffsetCommitResponseTopic],
) -> OffsetCommitResponse:
    try:
        return await reply
    except KafkaError as error:
        return _with_refused(error_for_each_part(request, error.code, None), refused)


def _error(topic: OffsetCommitRequestTopic, code: ErrorCode) -> OffsetCommitResponseTopic:
    return OffsetCommitResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            OffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=int(code))
            for partition in topic.partitions
        ],
    )


def _with_refused(
    response: OffsetCommitResponse, refused: list[OffsetCommitResponseTopic]
) -> OffsetCommitResponse:
    merge(response.topics, refused)
    return response
