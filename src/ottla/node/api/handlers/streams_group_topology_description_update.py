"""StreamsGroupTopologyDescriptionUpdate: take what a member tells of its application (KIP-1331).

Members send it when the response to a heartbeat asks for it. The coordinator of the group keeps it in memory,
for StreamsGroupDescribe.
"""

from __future__ import annotations

from collections.abc import Awaitable

from ottla.coordinator.group.requests import UpdateTopologyDescription
from ottla.node.api.context import RequestContext
from ottla.node.api.group_requests import check_group, check_streams_protocol, submit
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.streams_group_topology_description_update import (
    StreamsGroupTopologyDescriptionUpdateRequest,
    StreamsGroupTopologyDescriptionUpdateResponse,
)


def handle(
    context: RequestContext, request: StreamsGroupTopologyDescriptionUpdateRequest
) -> Awaitable[StreamsGroupTopologyDescriptionUpdateResponse]:
    check_streams_protocol(context)
    check_group(context, request.group_id)
    if not request.group_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "GroupId can't be empty.")
    if not request.member_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "MemberId can't be empty.")
    return submit(context, request.group_id, UpdateTopologyDescription, request)
