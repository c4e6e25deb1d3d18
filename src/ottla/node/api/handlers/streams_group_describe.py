"""StreamsGroupDescribe: describe streams groups, with their topology and the tasks of their members.

Version 1 names the assignor (KIP-1357), and has the description of the application by a member if that is
  asked for (KIP-1331).
"""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial
from typing import Final

from ottla.coordinator.group.requests import DescribeStreamsGroup
from ottla.coordinator.group.streams.topology_description import nodes_of
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
    operation = partial(
        DescribeStreamsGroup, include_topology_description=request.include_topology_description
    )
    return _describe(describe_groups(context, request, operation, _failed, _topics, _DENIED))


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
            for node in nodes_of(group.topology_description)
            for topic in (*node.source_topics, *((node.sink_topic,) if node.sink_topic else ()))
        }
        | {
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
