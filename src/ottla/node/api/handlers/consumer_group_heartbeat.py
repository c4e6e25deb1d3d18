"""ConsumerGroupHeartbeat: a member of a consumer group joins, stays, changes its subscription or leaves, and
gets its assignment.

Version 1 has regular expressions (KIP-848), and the client chooses the member id (KIP-1082).
"""

from __future__ import annotations

from collections.abc import Awaitable

from ottla.coordinator.group.requests import ConsumerGroupHeartbeat
from ottla.coordinator.runtime.coordinator_runtime import Ticket
from ottla.node.api.context import RequestContext
from ottla.node.api.group_requests import check_group, submit
from ottla.protocol.acl import AclOperation, AclResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from ottla.runtime.steps import Steps, run_at_once


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
    if context.is_long:
        return _submit_long(context, request)
    run_at_once(_check_topics(context, request))
    return _submit(context, request).now_or_later()


async def _submit_long(
    context: RequestContext, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse:
    await context.complete(_check_topics(context, request))
    return await _submit(context, request)


def _check_topics(context: RequestContext, request: ConsumerGroupHeartbeatRequest) -> Steps[None]:
    for topic in request.subscribed_topic_names or ():
        if not context.allowed(AclOperation.DESCRIBE, AclResourceType.TOPIC, topic):
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        yield


def _submit(
    context: RequestContext, request: ConsumerGroupHeartbeatRequest
) -> Ticket[ConsumerGroupHeartbeatResponse]:
    if not request.group_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "GroupId can't be empty.")
    return submit(context, request.group_id, ConsumerGroupHeartbeat, request)
