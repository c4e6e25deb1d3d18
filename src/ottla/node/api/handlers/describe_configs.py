"""DescribeConfigs: the settings of topics, brokers, groups, client metrics and loggers, and their sources.

A broker answers for itself and for the cluster's defaults (the empty name), not for another broker. The
response leaves out unknown names. A resource that is named twice is described twice, except in a request that
names more of them than any client does (`deduplication`). What extensions say of a
topic (`table.status`) only those get who name it.

Version 3 has types and documentation (KIP-569).
Version 4 is flexible (KIP-482).
"""

from __future__ import annotations

from collections.abc import Awaitable, Container, Iterator
from typing import Final

from ottla.metadata.image.entities import ConfigResource, ConfigResourceType
from ottla.node.api.config_admin_manager import parse_node_id
from ottla.node.api.context import RequestContext
from ottla.node.api.deduplication import deduplicate_long
from ottla.node.config.describe import ConfigValueSource, ConfigView
from ottla.node.config.loggers import logger_levels
from ottla.protocol.acl import CLUSTER_NAME, AclOperation, AclResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from ottla.protocol.names import invalid_topic_name
from ottla.runtime.steps import Steps

# Resources that are described at once. Each may have hundreds of settings.
_AT_ONCE: Final = 5


def handle(
    context: RequestContext, request: DescribeConfigsRequest
) -> DescribeConfigsResponse | Awaitable[DescribeConfigsResponse]:
    return context.run_bulky(_describe(context, request), len(request.resources), _AT_ONCE)


def _describe(context: RequestContext, request: DescribeConfigsRequest) -> Steps[DescribeConfigsResponse]:
    response = DescribeConfigsResponse()
    for resource in deduplicate_long(request.resources, _key):
        result = DescribeConfigsResult(
            resource_type=resource.resource_type, resource_name=resource.resource_name
        )
        try:
            result.configs = _configs(context, request, resource)
        except KafkaError as error:
            result.error_code, result.error_message = int(error.code), error.message or ""
        response.results.append(result)
        yield
    return response


def _key(resource: DescribeConfigsResource) -> tuple[int, str, tuple[str, ...]]:
    return resource.resource_type, resource.resource_name, tuple(resource.configuration_keys or ())


def _configs(
    context: RequestContext, request: DescribeConfigsRequest, resource: DescribeConfigsResource
) -> list[DescribeConfigsResourceResult]:
    kind, name = resource.resource_type, resource.resource_name
    _authorize(context, kind, name)
    view = ConfigView(
        context.config,
        resource.configuration_keys or None,
        synonyms=request.include_synonyms,
        documentation=request.include_documentation,
    )
    overrides = context.image.config(ConfigResource(kind, name))
    match kind:
        case ConfigResourceType.TOPIC:
            reason = invalid_topic_name(name)
            if reason is not None:
                raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, reason)
            if name not in context.image.topics.by_name:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "")
            found = view.topic(overrides)
            if resource.configuration_keys:
                found += _topic_status(context, name, resource.configuration_keys)
            return found
        case ConfigResourceType.BROKER:
            if not name:
                return view.broker_default()
            _check_own_id(context, name)
            return view.broker()
        case ConfigResourceType.BROKER_LOGGER:
            if not name:
                raise _invalid("Broker id must not be empty")
            _check_own_id(context, name)
            return _loggers(resource.configuration_keys or None)
        case ConfigResourceType.CLIENT_METRICS:
            if not name:
                raise _invalid("Client metrics subscription name must not be empty")
            return view.client_metrics(overrides)
        case ConfigResourceType.GROUP:
            if not name:
                raise _invalid("Group name must not be empty")
            return view.group(overrides)
        case _:
            raise _invalid(f"Unsupported resource type: {kind}")


def _authorize(context: RequestContext, kind: int, name: str) -> None:
    if kind == ConfigResourceType.TOPIC:
        allowed = context.allowed(AclOperation.DESCRIBE_CONFIGS, AclResourceType.TOPIC, name)
        error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    elif kind == ConfigResourceType.GROUP:
        allowed = context.allowed(AclOperation.DESCRIBE_CONFIGS, AclResourceType.GROUP, name)
        error = ErrorCode.GROUP_AUTHORIZATION_FAILED
    else:
        allowed = context.allowed(AclOperation.DESCRIBE_CONFIGS, AclResourceType.CLUSTER, CLUSTER_NAME)
        error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    if not allowed:
        raise KafkaError(error, error.text)


def _check_own_id(context: RequestContext, name: str) -> None:
    own = context.config.node_id
    node_id = parse_node_id(name)
    if node_id is None:
        raise _invalid(f"Broker id must be an integer, but it is: {name}")
    if node_id != own:
        raise _invalid(
            f"Unexpected broker id, expected {own} or empty string, but received {name}; "
            f"ask broker {name} itself"
        )


def _topic_status(
    context: RequestContext, topic: str, names: Container[str]
) -> Iterator[DescribeConfigsResourceResult]:
    """What extensions of this broker say of a topic, to those who ask for it by name."""
    broker = context.services.broker
    for extension in () if broker is None else broker.extensions:
        for name, value in extension.topic_status(topic).items():
            if name in names:
                yield DescribeConfigsResourceResult(
                    name=name, value=value, read_only=True, config_source=ConfigValueSource.UNKNOWN
                )


def _loggers(names: list[str] | None) -> list[DescribeConfigsResourceResult]:
    return [
        DescribeConfigsResourceResult(
            name=name, value=level, config_source=ConfigValueSource.DYNAMIC_BROKER_LOGGER
        )
        for name, level in logger_levels().items()
        if names is None or name in names
    ]


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)
