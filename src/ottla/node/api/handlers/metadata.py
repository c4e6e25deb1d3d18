"""Metadata: list brokers, topics and the leaders of their partitions.

A response is made from one image, so a client never sees a mixture of two states. A topic that does not exist
is created where `auto.create.topics.enable` and the client allow it; the response goes out when the topic is
in the metadata log, and includes it.

Version 1 has the controller, racks and the internal flag, and null for all topics; before, none meant all
  (KIP-4).
Version 2 has the cluster id (KIP-78).
Version 3 has the throttle time (KIP-124).
Version 4 has the choice to create missing topics.
Version 5 has offline replicas (KIP-112).
Version 7 has leader epochs (KIP-320).
Version 8 has authorized operations (KIP-430).
Version 9 is flexible (KIP-482).
Version 10 has topic ids in the response (KIP-516).
Version 11 leaves the cluster's authorized operations to DescribeCluster (KIP-700).
Version 12 may ask by topic id (KIP-516).
Version 13 has an error for the whole response (KIP-1102).
"""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from ottla.metadata.image.entities import TopicImage
from ottla.metadata.image.image import MetadataImage
from ottla.node.api.auto_topic_creation import create_missing_topics
from ottla.node.api.context import RequestContext
from ottla.node.api.metadata_view import TopicView, advertised_controller_id, live_brokers
from ottla.protocol.acl import CLUSTER_NAME, AclOperation, AclResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from ottla.protocol.names import INTERNAL_TOPICS, invalid_topic_name
from ottla.runtime.steps import Steps, run_at_once
from ottla.runtime.turns import Turns
from ottla.runtime.work_queue import in_turns

_ZERO_UUID: Final = bytes(16)
# All topics, if these are more partitions, are listed in several turns.
_ONE_TURN: Final = 1_000
_NO_OPERATIONS: Final = -(2**31)


def handle(
    context: RequestContext, request: MetadataRequest
) -> MetadataResponse | Awaitable[MetadataResponse]:
    topics = request.topics
    if topics is None or (context.version == 0 and not topics):
        if _is_bulky(context.image):
            context.is_bulky = True
            return _all_topics_in_turns(context, request)
        return _all_topics(context, request)
    if context.is_long or _names_many_partitions(context.image, topics):
        context.is_bulky = True
        return _answer_in_turns(context, request, topics)
    asked = run_at_once(_read(context, topics))
    if asked.missing and _may_create(context, request):
        return _create_and_list(context, request, asked)
    return run_at_once(_respond(context, request, asked, {}))


def failure_response(request: MetadataRequest, code: int, _message: str | None) -> MetadataResponse:
    return MetadataResponse(
        topics=[
            MetadataResponseTopic(name=topic.name or "", topic_id=topic.topic_id, error_code=int(code))
            for topic in request.topics or ()
        ]
    )


class _Asked(NamedTuple):
    """The topics that a request names: by ids, or by names, of which some are missing."""

    ids: Collection[bytes]
    names: Collection[str]
    missing: Sequence[str]


async def _answer_in_turns(
    context: RequestContext, request: MetadataRequest, topics: Sequence[MetadataRequestTopic]
) -> MetadataResponse:
    turns = Turns(context.broker.runtime.clock)
    asked = await in_turns(_read(context, topics), turns)
    if asked.missing and _may_create(context, request):
        return await _create_and_list(context, request, asked)
    return await in_turns(_respond(context, request, asked, {}), turns)


def _names_many_partitions(image: MetadataImage, topics: Iterable[MetadataRequestTopic]) -> bool:
    count = 0
    for topic in topics:
        found = image.topics.by_name.get(topic.name or "") or image.topics.by_id.get(bytes(topic.topic_id))
        count += 1 if found is None else len(found.partitions)
    return count > _ONE_TURN


def _may_create(context: RequestContext, request: MetadataRequest) -> bool:
    return request.allow_auto_topic_creation and context.config.flag("auto.create.topics.enable")


def _read(context: RequestContext, topics: Iterable[MetadataRequestTopic]) -> Steps[_Asked]:
    """Look at what is asked for. INVALID_REQUEST, or UNKNOWN_SERVER_ERROR as in Kafka, if it cannot be."""
    ids: dict[bytes, None] = {}
    names: dict[str, None] = {}
    for topic in topics:
        yield
        if context.version < 12 and (topic.name is None or topic.topic_id != _ZERO_UUID):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Topic IDs are not supported in requests for version {context.version}",
            )
        if topic.name is None and topic.topic_id == _ZERO_UUID:
            raise KafkaError(
                ErrorCode.UNKNOWN_SERVER_ERROR, "A topic of the request has neither a name nor an id"
            )
        if topic.topic_id != _ZERO_UUID:
            ids[bytes(topic.topic_id)] = None
        elif topic.name is not None:
            names[topic.name] = None
    missing: list[str] = []
    for name in () if ids else names:
        yield
        if (
            name not in context.image.topics.by_name
            and invalid_topic_name(name) is None
            and context.allowed(AclOperation.DESCRIBE, AclResourceType.TOPIC, name, log_denied=False)
        ):
            missing.append(name)
    return _Asked(ids, names, missing)


def _all_topics(context: RequestContext, request: MetadataRequest) -> MetadataResponse:
    image = context.image
    builder = _Topics(context, request, image)
    topics = [
        builder.topic(topic)
        for topic in image.topics.by_name.values()
        if context.allowed(AclOperation.DESCRIBE, AclResourceType.TOPIC, topic.name, log_denied=False)
    ]
    return _response(context, request, image, topics)


def _is_bulky(image: MetadataImage) -> bool:
    by_name = image.topics.by_name
    return len(by_name) > _ONE_TURN or sum(len(topic.partitions) for topic in by_name.values()) > _ONE_TURN


async def _all_topics_in_turns(context: RequestContext, request: MetadataRequest) -> MetadataResponse:
    image = context.image
    builder = _Topics(context, request, image)
    turns = Turns(context.broker.runtime.clock)
    topics = []
    for topic in image.topics.by_name.values():
        if context.allowed(AclOperation.DESCRIBE, AclResourceType.TOPIC, topic.name, log_denied=False):
            topics.append(builder.topic(topic))
        if turns.is_due():
            await turns.pause()
    return _response(context, request, image, topics)


def _respond(
    context: RequestContext, request: MetadataRequest, asked: _Asked, errors: Mapping[str, ErrorCode]
) -> Steps[MetadataResponse]:
    """`errors` are those of topics that could not be created."""
    if asked.ids:
        return _by_id(context, request, asked.ids)
    return _by_name(context, request, asked.names, errors)


def _by_id(
    context: RequestContext, request: MetadataRequest, ids: Iterable[bytes]
) -> Steps[MetadataResponse]:
    image = context.image
    builder = _Topics(context, request, image)
    unknown: list[MetadataResponseTopic] = []
    found: list[MetadataResponseTopic] = []
    for topic_id in ids:
        yield
        topic = image.topics.by_id.get(topic_id)
        if topic is None:
            error = ErrorCode.UNKNOWN_TOPIC_ID
            unknown.append(MetadataResponseTopic(name=None, topic_id=topic_id, error_code=error))
        elif not context.allowed(AclOperation.DESCRIBE, AclResourceType.TOPIC, topic.name):
            error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            unknown.append(MetadataResponseTopic(name=None, topic_id=topic_id, error_code=error))
        else:
            found.append(builder.topic(topic))
    return _response(context, request, image, [*unknown, *found])


async def _create_and_list(
    context: RequestContext, request: MetadataRequest, asked: _Asked
) -> MetadataResponse:
    errors = {}
    allowed = []
    turns = Turns(context.broker.runtime.clock)
    for name in asked.missing:
        if context.allowed(
            AclOperation.CREATE, AclResourceType.CLUSTER, CLUSTER_NAME, log_denied=False
        ) or context.allowed(AclOperation.CREATE, AclResourceType.TOPIC, name):
            allowed.append(name)
        else:
            errors[name] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        await turns.pause_if_due()
    if allowed:
        quota = context.mutation_quota(strict_since=0)
        errors |= await create_missing_topics(context.services, allowed, quota)
    return await in_turns(_respond(context, request, asked, errors), turns)


def _by_name(
    context: RequestContext,
    request: MetadataRequest,
    names: Iterable[str],
    errors: Mapping[str, ErrorCode],
) -> Steps[MetadataResponse]:
    image = context.image
    builder = _Topics(context, request, image)
    denied: list[MetadataResponseTopic] = []
    found: list[MetadataResponseTopic] = []
    unknown: list[MetadataResponseTopic] = []
    for name in names:
        yield
        topic = image.topics.by_name.get(name)
        if not context.allowed(AclOperation.DESCRIBE, AclResourceType.TOPIC, name):
            denied.append(_denied(name))
        elif topic is not None:
            found.append(builder.topic(topic))
        elif invalid_topic_name(name) is not None:
            unknown.append(builder.error(name, ErrorCode.INVALID_TOPIC_EXCEPTION))
        else:
            error = errors.get(name, ErrorCode.NONE) or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if error is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                unknown.append(_denied(name, internal=name in INTERNAL_TOPICS))
            else:
                unknown.append(builder.error(name, error))
    return _response(context, request, image, [*denied, *found, *unknown])


class _Topics:
    """Makes the topics of a response from those of an image."""

    def __init__(self, context: RequestContext, request: MetadataRequest, image: MetadataImage) -> None:
        self._context = context
        self._operations = request.include_topic_authorized_operations
        self._view = TopicView(image, context.listener.name, context.version)

    def topic(self, topic: TopicImage) -> MetadataResponseTopic:
        partitions = []
        for index, registration in topic.partitions.items():
            seen = self._view.partition(registration)
            partitions.append(
                MetadataResponsePartition(
                    error_code=seen.error,
                    partition_index=index,
                    leader_id=seen.leader,
                    leader_epoch=registration.leader_epoch,
                    replica_nodes=seen.replicas,
                    isr_nodes=seen.isr,
                    offline_replicas=seen.offline,
                )
            )
        return MetadataResponseTopic(
            name=topic.name,
            topic_id=topic.id,
            is_internal=topic.name in INTERNAL_TOPICS,
            partitions=partitions,
            topic_authorized_operations=self._authorized_operations(topic.name),
        )

    def error(self, name: str, error: ErrorCode) -> MetadataResponseTopic:
        return MetadataResponseTopic(
            name=name,
            error_code=error,
            is_internal=name in INTERNAL_TOPICS,
            topic_authorized_operations=self._authorized_operations(name),
        )

    def _authorized_operations(self, name: str) -> int:
        if not self._operations:
            return _NO_OPERATIONS
        return self._context.authorized_operations(AclResourceType.TOPIC, name)


def _denied(name: str, *, internal: bool = False) -> MetadataResponseTopic:
    """Whether the topic exists, and what it is, must not be disclosed."""
    return MetadataResponseTopic(
        name=name, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, is_internal=internal
    )


def _response(
    context: RequestContext,
    request: MetadataRequest,
    image: MetadataImage,
    topics: list[MetadataResponseTopic],
) -> MetadataResponse:
    brokers = [
        MetadataResponseBroker(node_id=broker.id, host=broker.host, port=broker.port, rack=broker.rack)
        for broker in live_brokers(context, image)
    ]
    operations = _NO_OPERATIONS
    if 8 <= context.version <= 10 and request.include_cluster_authorized_operations:
        operations = 0
        if context.allowed(AclOperation.DESCRIBE, AclResourceType.CLUSTER, CLUSTER_NAME):
            operations = context.authorized_operations(AclResourceType.CLUSTER, CLUSTER_NAME)
    return MetadataResponse(
        brokers=brokers,
        cluster_id=context.services.node.cluster_id,
        controller_id=advertised_controller_id(context),
        topics=topics,
        cluster_authorized_operations=operations,
    )
