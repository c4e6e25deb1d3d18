"""StreamsGroupDescribe: describe streams groups, with their topology and the tasks of their members."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from ottla.coordinator.group.requests import DescribeStreamsGroup
from ottla.node.api.context import RequestContext
from ottla.node.api.described_groups import describe_groups
from ottla.node.api.group_requests import check_streams_protocol
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages.streams_group_describe import (
    DescribedGroup,
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
)

_DENIED: Final = "The described group uses topics that the client is not authorized to describe."


def handle(
    context: RequestContext, request: StreamsGroupDescribeRequest
) -> Awaitable[StreamsGroupDescribeResponse]:
    check_streams_protocol(context)
    return _describe(describe_groups(context, request, DescribeStreamsGroup, _failed, _topics, _DENIED))


def failure_response(
    request: StreamsGroupDescribeRequest, code: int, message: str | None
) -> StreamsGroupDescribeResponse:
    return StreamsGroupDescribeResponse(
        groups=[
            DescribedGroup(group_id=group_id, error_code=int(code), error_message=message)
            for group_id in request.group_ids
        ]
    )


async def _describe(groups: Awaitable[list[DescribedGroup]]) -> StreamsGroupDescribeResponse:
    return StreamsGroupDescribeResponse(groups=await groups)


def _failed(group_id: str, error: KafkaError) -> DescribedGroup:
    return DescribedGroup(
        group_id=group_id, error_code=int(error.code), error_message=error.message or error.code.text
    )


def _topics(group: DescribedGroup) -> list[str]:
    subtopologies = (group.topology.subtopologies if group.topology is not None else None) or []
    return sorted(
        {
            topic
            for subtopology in subtopologies
            for topic in (
                *subtopology.source_topics,
                *subtopology.repartition_sink_topics,
                *(each.name for each in subtopology.repartition_source_topics),
                *(each.name for each in subtopology.state_changelog_topics),
            )
        }
    )
