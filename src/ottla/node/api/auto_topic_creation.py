"""Topics that a broker creates because a client asked for them: by Metadata, or for a coordinator's state.

This is Kafka's `AutoTopicCreationManager`, except that the topic is in the metadata log before any client
gets a response about it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from ottla.metadata.controller.state import ControllerRequestContext
from ottla.node.api.broker_extension import creatable_topic
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.protocol.names import (
    CONSUMER_OFFSETS_TOPIC,
    SHARE_GROUP_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
)

if TYPE_CHECKING:
    from ottla.node.api.services import ApiServices
    from ottla.security.quota.quota_managers import ControllerMutationQuota

_log = logging.getLogger(__name__)

_CREATE_TOPICS_VERSION: Final = 7


def _creatable_topic(services: ApiServices, name: str) -> CreatableTopic:
    """Describe a topic that is created automatically: as the extension or the coordinator wants it that it
    belongs to, otherwise by the defaults.
    """
    for extension in () if services.broker is None else services.broker.extensions:
        if (topic := extension.internal_topic(name)) is not None:
            return topic
    config = services.node.config
    if name == CONSUMER_OFFSETS_TOPIC:
        partitions, replicas = "offsets.topic.num.partitions", "offsets.topic.replication.factor"
        configs = {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(config.number("offsets.topic.segment.bytes")),
        }
    elif name == TRANSACTION_STATE_TOPIC:
        partitions, replicas = (
            "transaction.state.log.num.partitions",
            "transaction.state.log.replication.factor",
        )
        configs = {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "min.insync.replicas": str(config.number("transaction.state.log.min.isr")),
            "segment.bytes": str(config.number("transaction.state.log.segment.bytes")),
            "unclean.leader.election.enable": "false",
        }
    elif name == SHARE_GROUP_STATE_TOPIC:
        partitions, replicas = (
            "share.coordinator.state.topic.num.partitions",
            "share.coordinator.state.topic.replication.factor",
        )
        configs = {
            "cleanup.policy": "delete",
            "compression.type": "producer",
            "min.insync.replicas": str(config.number("share.coordinator.state.topic.min.isr")),
            "retention.ms": "-1",
            "segment.bytes": str(config.number("share.coordinator.state.topic.segment.bytes")),
        }
    else:
        partitions, replicas, configs = "num.partitions", "default.replication.factor", {}
    return creatable_topic(name, config.number(partitions), config.number(replicas), configs)


async def create_missing_topics(
    services: ApiServices,
    names: Iterable[str],
    quota: ControllerMutationQuota | None = None,
    *,
    configs: Mapping[str, str] | None = None,
) -> dict[str, ErrorCode]:
    """Create topics, and return for each the error that its client gets. Those that are above the client's
    quota stay unknown for now. `configs` are added to the settings of each.

    It is no error if a topic has been created meanwhile. A topic gets as many replicas as configured, never
    fewer because brokers are missing: brokers that are registered but fenced get theirs when they are back,
    and where too few are registered the topic stays unknown, so that clients ask again.
    """
    topics = [_creatable_topic(services, name) for name in names]
    for topic in topics:
        topic.configs += [
            CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()
        ]
    errors: dict[str, ErrorCode] = {}
    if quota is not None:
        errors = {topic.name: _client_error(code) for topic in topics if (code := _refusal(quota, topic))}
        topics = [topic for topic in topics if topic.name not in errors]
        if not topics:
            return errors
    return errors | await _create(services, CreateTopicsRequest(topics=topics))


def _refusal(quota: ControllerMutationQuota, topic: CreatableTopic) -> ErrorCode | None:
    try:
        quota.record(topic.num_partitions)
    except KafkaError as error:
        return error.code
    return None


async def _create(services: ApiServices, request: CreateTopicsRequest) -> dict[str, ErrorCode]:
    try:
        if services.controller.active_controller.current is not None:
            response = await services.controller.control(
                lambda controller: controller.create_topics(request, ControllerRequestContext())
            )
        else:
            answer = await services.controller.controllers.request(request, _CREATE_TOPICS_VERSION)
            assert isinstance(answer, CreateTopicsResponse)
            response = answer
    except KafkaError as error:
        return {topic.name: _client_error(error.code) for topic in request.topics}
    except OSError as error:
        _log.warning("automatic creation of topics failed: %s", error)
        return {topic.name: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for topic in request.topics}
    for topic in response.topics:
        if topic.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            _log.info("automatic creation of topic %s failed: %s", topic.name, topic.error_message)
    return {topic.name: _client_error(ErrorCode.of(topic.error_code)) for topic in response.topics}


def _client_error(code: ErrorCode) -> ErrorCode:
    if code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
        return ErrorCode.NONE
    if code in (ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.TOPIC_AUTHORIZATION_FAILED):
        return code
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
