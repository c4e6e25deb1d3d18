"""StreamsGroupHeartbeat: a member of a streams group joins with its topology, stays or leaves, and gets its
tasks.

The response also has the status of the group. Internal topics of the topology that do not exist are created
for the client, with its permissions; the status says which of them cannot be created, and why.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import replace
from typing import Final

from ottla.coordinator.group.requests import StreamsGroupHeartbeat, StreamsGroupHeartbeatResult
from ottla.coordinator.group.streams.internal_topic_manager import StreamsStatus
from ottla.node.api.context import RequestContext
from ottla.node.api.forwarding import at_controller
from ottla.node.api.group_requests import check_group, check_streams_protocol, submit
from ottla.protocol.acl import CLUSTER_NAME, AclOperation, AclResourceType
from ottla.protocol.api import API_BY_NAME
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from ottla.protocol.messages.streams_group_heartbeat import (
    Status,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    Topology,
)
from ottla.protocol.names import INTERNAL_TOPICS, invalid_topic_name

_CREATE_TOPICS_VERSION: Final = 7
_MOST_ERRORS_NAMED: Final = 3


def handle(
    context: RequestContext, request: StreamsGroupHeartbeatRequest
) -> StreamsGroupHeartbeatResponse | Awaitable[StreamsGroupHeartbeatResponse]:
    check_streams_protocol(context)
    check_group(context, request.group_id)
    if request.topology is not None:
        _check_topics(context, request.topology)
    if not request.group_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "GroupId can't be empty.")
    ticket = submit(context, request.group_id, StreamsGroupHeartbeat, request)
    if ticket.done:
        result = ticket.result()
        return (
            _create_internal_topics(context, request, result) if result.creatable_topics else result.response
        )
    return _respond(context, request, ticket)


async def _respond(
    context: RequestContext,
    request: StreamsGroupHeartbeatRequest,
    ticket: Awaitable[StreamsGroupHeartbeatResult],
) -> StreamsGroupHeartbeatResponse:
    result = await ticket
    if result.creatable_topics:
        return await _create_internal_topics(context, request, result)
    return result.response


def _check_topics(context: RequestContext, topology: Topology) -> None:
    topics = list(
        dict.fromkeys(
            topic
            for subtopology in topology.subtopologies
            for topic in (
                *subtopology.source_topics,
                *subtopology.repartition_sink_topics,
                *(each.name for each in subtopology.repartition_source_topics),
                *(each.name for each in subtopology.state_changelog_topics),
            )
        )
    )
    internal = [topic for topic in topics if topic in INTERNAL_TOPICS]
    if internal:
        raise KafkaError(
            ErrorCode.STREAMS_INVALID_TOPOLOGY,
            f"Use of Kafka internal topics {','.join(internal)} in a Kafka Streams topology is prohibited.",
        )
    invalid = [topic for topic in topics if invalid_topic_name(topic) is not None]
    if invalid:
        raise KafkaError(
            ErrorCode.STREAMS_INVALID_TOPOLOGY, f"Topic names {','.join(invalid)} are not valid topic names."
        )
    if not all(context.allowed(AclOperation.DESCRIBE, AclResourceType.TOPIC, topic) for topic in topics):
        raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)


async def _create_internal_topics(
    context: RequestContext, request: StreamsGroupHeartbeatRequest, result: StreamsGroupHeartbeatResult
) -> StreamsGroupHeartbeatResponse:
    topics, response = result.creatable_topics, result.response
    denied = _denied(context, topics)
    if denied:
        _tell(response, f"Unauthorized to CREATE on topics {', '.join(denied)}.")
        return response
    coordinators = context.broker.coordinators
    internal_topics = coordinators.streams_internal_topics

    async def send(create: CreateTopicsRequest) -> CreateTopicsResponse:
        creation = replace(context, api=API_BY_NAME["CreateTopics"], version=_CREATE_TOPICS_VERSION)
        quota = creation.mutation_quota(strict_since=0)
        return await at_controller(
            creation,
            create,
            lambda controller: controller.create_topics(create, creation.for_controller(quota)),
        )

    interval_ms = coordinators.groups.streams_heartbeat_interval_ms(request.group_id)
    await internal_topics.create(topics, send, timeout_ms=interval_ms, errors_ttl_ms=2 * interval_ms)
    errors = internal_topics.errors(topic.name for topic in topics)
    if errors:
        listed = [f"{name} ({message})" for name, message in list(errors.items())[:_MOST_ERRORS_NAMED]]
        more = len(errors) - len(listed)
        text = ", ".join(listed) + (f" and {more} more" if more else "")
        _tell(response, f"Creation failed: {text}.")
    return response


def _denied(context: RequestContext, topics: tuple[CreatableTopic, ...]) -> list[str]:
    if context.allowed(AclOperation.CREATE, AclResourceType.CLUSTER, CLUSTER_NAME, log_denied=False):
        return []
    return [
        topic.name
        for topic in topics
        if not context.allowed(AclOperation.CREATE, AclResourceType.TOPIC, topic.name)
    ]


def _tell(response: StreamsGroupHeartbeatResponse, what: str) -> None:
    """Add to the status that internal topics are missing why they are."""
    statuses = response.status = response.status or []
    for status in statuses:
        if status.status_code == StreamsStatus.MISSING_INTERNAL_TOPICS:
            status.status_detail = f"{status.status_detail}; {what}"
            return
    statuses.append(Status(status_code=int(StreamsStatus.MISSING_INTERNAL_TOPICS), status_detail=what))
