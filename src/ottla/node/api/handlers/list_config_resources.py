"""ListConfigResources: list the names of resources that have, or may have, settings of their own.

Version 0 lists client metrics subscriptions only (KIP-714).
Version 1 asks by type; no types means all of them (KIP-1142).
"""

from __future__ import annotations

from collections.abc import Iterator

from ottla.metadata.image.entities import ConfigResourceType
from ottla.node.api.context import RequestContext
from ottla.protocol.acl import CLUSTER_NAME, AclOperation, AclResourceType
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

_TYPES = (
    ConfigResourceType.TOPIC,
    ConfigResourceType.BROKER,
    ConfigResourceType.BROKER_LOGGER,
    ConfigResourceType.CLIENT_METRICS,
    ConfigResourceType.GROUP,
)


def handle(context: RequestContext, request: ListConfigResourcesRequest) -> ListConfigResourcesResponse:
    if not context.allowed(AclOperation.DESCRIBE_CONFIGS, AclResourceType.CLUSTER, CLUSTER_NAME):
        return ListConfigResourcesResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    types = [ConfigResourceType.CLIENT_METRICS] if context.version == 0 else request.resource_types or _TYPES
    if any(kind not in _TYPES for kind in types):
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    return ListConfigResourcesResponse(
        config_resources=[
            ConfigResource(resource_name=name, resource_type=int(kind))
            for kind in dict.fromkeys(types)
            for name in _names(context, kind)
        ]
    )


def _names(context: RequestContext, kind: int) -> Iterator[str]:
    image = context.image
    match kind:
        case ConfigResourceType.TOPIC:
            yield from image.topics.by_name
        case ConfigResourceType.BROKER | ConfigResourceType.BROKER_LOGGER:
            yield from (str(broker.id) for broker in image.cluster.brokers.values() if not broker.fenced)
        case _:
            yield from (resource.name for resource in image.configs if resource.type == kind)
