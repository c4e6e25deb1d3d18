"""FindCoordinator: find the broker that coordinates a group, a transactional id or a share partition.

It is the leader of the partition to which the key belongs. The first request creates the topic; until it
exists, and while the partition has no leader, the response is COORDINATOR_NOT_AVAILABLE.

Version 1 has key types (KIP-98) and messages.
Version 3 is flexible (KIP-482).
Version 4 takes several keys (KIP-699).
Version 5 can return TRANSACTION_ABORTABLE (KIP-890).
Version 6 has share partitions (KIP-932).
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from ottla.coordinator.runtime.partitioning import partition_for
from ottla.metadata.image.entities import NO_LEADER
from ottla.node.api.auto_topic_creation import create_missing_topics
from ottla.node.api.context import RequestContext
from ottla.node.api.metadata_view import broker_address
from ottla.protocol.acl import AclOperation, AclResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from ottla.protocol.names import (
    CONSUMER_OFFSETS_TOPIC,
    SHARE_GROUP_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
    SharePartitionKey,
)
from ottla.runtime.steps import Steps

_FIRST_VERSION_OF_BATCHES: Final = 4
_FIRST_VERSION_OF_SHARES: Final = 6
GROUP: Final = 0
TRANSACTION: Final = 1
SHARE: Final = 2
_TOPICS: Final = {
    GROUP: CONSUMER_OFFSETS_TOPIC,
    TRANSACTION: TRANSACTION_STATE_TOPIC,
    SHARE: SHARE_GROUP_STATE_TOPIC,
}


def handle(
    context: RequestContext, request: FindCoordinatorRequest
) -> FindCoordinatorResponse | Awaitable[FindCoordinatorResponse]:
    topic = _TOPICS.get(request.key_type)
    if (
        topic is not None
        and topic not in context.image.topics.by_name
        and any(_may_find(context, request.key_type, key) for key in _keys(context, request))
    ):
        return _create_topic_and_respond(context, request, topic)
    return context.run_steps(_respond(context, request))


def failure_response(
    request: FindCoordinatorRequest, code: int, message: str | None
) -> FindCoordinatorResponse:
    keys = request.coordinator_keys
    return FindCoordinatorResponse(
        error_code=int(code),
        error_message=message,
        node_id=-1,
        port=-1,
        coordinators=[_error(key, ErrorCode.of(code), message) for key in keys],
    )


async def _create_topic_and_respond(
    context: RequestContext, request: FindCoordinatorRequest, topic: str
) -> FindCoordinatorResponse:
    await context.broker.coordinators.import_coordinator(topic)
    await create_missing_topics(context.services, [topic])
    response = context.run_steps(_respond(context, request))
    return response if isinstance(response, FindCoordinatorResponse) else await response


def _respond(context: RequestContext, request: FindCoordinatorRequest) -> Steps[FindCoordinatorResponse]:
    if context.version >= _FIRST_VERSION_OF_BATCHES:
        response = FindCoordinatorResponse()
        for key in request.coordinator_keys:
            response.coordinators.append(_find(context, request.key_type, key))
            yield
        return response
    found = _find(context, request.key_type, request.key)
    return FindCoordinatorResponse(
        error_code=found.error_code,
        error_message=found.error_message,
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


def _keys(context: RequestContext, request: FindCoordinatorRequest) -> list[str]:
    return request.coordinator_keys if context.version >= _FIRST_VERSION_OF_BATCHES else [request.key]


def _may_find(context: RequestContext, key_type: int, key: str) -> bool:
    try:
        _check(context, key_type, key)
    except KafkaError:
        return False
    return True


def _find(context: RequestContext, key_type: int, key: str) -> Coordinator:
    try:
        return _coordinator(context, key_type, key)
    except KafkaError as error:
        return _error(key, error.code, error.message)


def _coordinator(context: RequestContext, key_type: int, key: str) -> Coordinator:
    _check(context, key_type, key)
    name = _TOPICS[key_type]
    image = context.image
    topic = image.topics.by_name.get(name)
    if topic is None:
        raise KafkaError(
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            f"The coordinator is not available: {name} could not be created yet; "
            "are there as many brokers as its replicas?",
        )
    located = _share_partition(key).coordinator_key if key_type == SHARE else key
    index = partition_for(located, len(topic.partitions))
    leader = topic.partitions[index].leader
    broker = image.cluster.brokers.get(leader) if leader != NO_LEADER else None
    address = None if broker is None or broker.fenced else broker_address(context, broker)
    if address is None:
        raise KafkaError(
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            f"The coordinator is not available: {name}-{index} has no leader now",
        )
    return Coordinator(key=key, node_id=address.id, host=address.host, port=address.port, error_message="")


def _check(context: RequestContext, key_type: int, key: str) -> None:
    if key_type == GROUP:
        if not context.allowed(AclOperation.DESCRIBE, AclResourceType.GROUP, key):
            raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    elif key_type == TRANSACTION:
        if not context.allowed(AclOperation.DESCRIBE, AclResourceType.TRANSACTIONAL_ID, key):
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    elif key_type == SHARE and context.version >= _FIRST_VERSION_OF_SHARES:
        context.require_cluster_action()
        _share_partition(key)
    else:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown coordinator key type {key_type}")


def _share_partition(key: str) -> SharePartitionKey:
    try:
        return SharePartitionKey.parse(key)
    except ValueError as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from None


def _error(key: str, code: ErrorCode, message: str | None) -> Coordinator:
    return Coordinator(
        key=key,
        node_id=-1,
        host="",
        port=-1,
        error_code=int(code),
        error_message=message if message is not None else code.text,
    )
