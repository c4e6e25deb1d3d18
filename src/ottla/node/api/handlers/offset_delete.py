"""OffsetDelete: delete the offsets of a group for topics that it is not subscribed to."""

from __future__ import annotations

from collections.abc import Awaitable

from ottla.coordinator.group.requests import DeleteOffsets
from ottla.node.api.context import RequestContext
from ottla.node.api.group_requests import (
    add_part,
    check_group,
    check_group_id,
    merge,
    parts_of,
    submit,
)
from ottla.protocol.acl import AclOperation, AclResourceType
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from ottla.runtime.turns import Turns


def handle(
    context: RequestContext, request: OffsetDeleteRequest
) -> OffsetDeleteResponse | Awaitable[OffsetDeleteResponse]:
    check_group(context, request.group_id, AclOperation.DELETE)
    check_group_id(request.group_id)
    return _answer_in_parts(context, request) if context.is_long else _answer(context, request)


async def _answer_in_parts(context: RequestContext, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
    """Delete many offsets, some at a time; each has a result of its own."""
    response, turns = OffsetDeleteResponse(), Turns(context.broker.runtime.clock)
    for part in parts_of(request.topics):
        answer = _answer(context, request.replace(topics=part))
        if not isinstance(answer, OffsetDeleteResponse):
            answer = await answer
        add_part(response.topics, answer.topics)
        await turns.pause_if_due()
    return response


def _answer(
    context: RequestContext, request: OffsetDeleteRequest
) -> OffsetDeleteResponse | Awaitable[OffsetDeleteResponse]:
    refused: list[OffsetDeleteResponseTopic] = []
    accepted: list[OffsetDeleteRequestTopic] = []
    for topic in _merge_topics(request.topics):
        if not context.allowed(AclOperation.READ, AclResourceType.TOPIC, topic.name):
            refused.append(_error(topic, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
            continue
        image = context.image.topics.by_name.get(topic.name)
        existing = {} if image is None else image.partitions
        known = [part for part in topic.partitions if part.partition_index in existing]
        unknown = [part for part in topic.partitions if part.partition_index not in existing]
        if known:
            accepted.append(OffsetDeleteRequestTopic(name=topic.name, partitions=known))
        if unknown:
            missing = OffsetDeleteRequestTopic(name=topic.name, partitions=unknown)
            refused.append(_error(missing, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    request.topics = accepted
    ticket = submit(context, request.group_id, DeleteOffsets, request)
    return ticket.then(lambda response: _with_refused(response, refused))


def _merge_topics(topics: list[OffsetDeleteRequestTopic]) -> list[OffsetDeleteRequestTopic]:
    """Merge the entries of a topic that is named more than once."""
    merged: dict[str, OffsetDeleteRequestTopic] = {}
    for topic in topics:
        entry = merged.setdefault(topic.name, OffsetDeleteRequestTopic(name=topic.name, partitions=[]))
        entry.partitions += topic.partitions
    return list(merged.values())


def _with_refused(
    response: OffsetDeleteResponse, refused: list[OffsetDeleteResponseTopic]
) -> OffsetDeleteResponse:
    merge(response.topics, refused)
    return response


def _error(topic: OffsetDeleteRequestTopic, code: ErrorCode) -> OffsetDeleteResponseTopic:
    return OffsetDeleteResponseTopic(
        name=topic.name,
        partitions=[
            OffsetDeleteResponsePartition(partition_index=partition.partition_index, error_code=int(code))
            for partition in topic.partitions
        ],
    )
