"""ConsumerGroupHeartbeat: a member of a consumer group joins, stays, changes its subscription or leaves, and
gets its assignment.

Version 1 has regular expressions (KIP-848), and the client chooses the member id (KIP-1082).
"""

from __future__ import annotations

from collections.abc import Awaitable

from ottla.coordinator.group.requests import ConsumerGroupHeartbeat
from ottla.node.api.context import RequestContext
from ottla.node.api.group_requests import check_group, submit
from ottla.protocol.acl import AclOperation, AclResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)


def handle(
    context: RequestContext, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse | Awaitable[ConsumerGroupHeartbeatResponse]:
    if not context.broker.coordinators.groups.config.consumer_protocol_enabled:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            "The version of API is not supported: "
            "group.coordinator.rebalance.protocols does not name consumer.",
        )
    check_group(context, request.group_id)
    for topic in request.subscribed_topic_names or ():
        if not context.allowed(AclOperation.DESCRIBE, AclResourceType.TOPIC, topic):
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    if not request.group_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "GroupId can't be empty.")
    return submit(context, request.group_id, ConsumerGroupHeartbeat, request).now_or_later()
