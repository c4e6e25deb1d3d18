"""ApiVersions: list the APIs and versions that this listener serves, and the cluster's feature levels.

A client sends this first, before it knows any version. So the response header is always version 0, and a
version that is not served is answered in version 0 with error UNSUPPORTED_VERSION and the one range that the
client needs to ask again.

Version 1 has the throttle time (KIP-124).
Version 3 is flexible, has the client's software name and version (KIP-511), and the feature levels (KIP-584);
  as its readers take a minimum of 0 for an error, it leaves out features that begin at 0.
Version 4 has these features too (KAFKA-17011).
Version 5 may name the cluster and the node that the client means to reach; another one answers
  REBOOTSTRAP_REQUIRED, as addresses that lead to it are out of date (KIP-1242).

What only Ottla has is announced to its own clients: others get what Apache Kafka answers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from ottla.metadata.features import KRAFT_VERSION, SUPPORTED_FEATURES
from ottla.node.api.context import RequestContext
from ottla.node.api.routes import ROUTES
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

# What a connection keeps of its client's software: clients that have not logged in send it too.
_MAX_SOFTWARE: Final = 200
_OWN_CLIENT: Final = "ottla "
_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def handle(context: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
    if context.version >= 3:
        name, version = request.client_software_name, request.client_software_version
        if _SOFTWARE.fullmatch(name) is None or _SOFTWARE.fullmatch(version) is None:
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
        context.connection.client_software = f"{name} {version}"[:_MAX_SOFTWARE]
    node = context.services.node
    if request.cluster_id is not None and (request.cluster_id, request.node_id) != (
        node.cluster_id,
        node.config.node_id,
    ):
        return ApiVersionsResponse(error_code=ErrorCode.REBOOTSTRAP_REQUIRED)
    image = context.image
    return ApiVersionsResponse(
        api_keys=[
            ApiVersion(api_key=key, min_version=first, max_version=last)
            for key, first, last in _announced_apis(context)
        ],
        supported_features=[
            SupportedFeatureKey(name=feature, min_version=levels.min, max_version=levels.max)
            for feature, levels in SUPPORTED_FEATURES.items()
            if context.version >= 4 or levels.min > 0
        ],
        finalized_features_epoch=image.provenance.last_contained_offset,
        finalized_features=[
            FinalizedFeatureKey(name=feature, min_version_level=level, max_version_level=level)
            for feature, level in _finalized_features(context).items()
        ],
    )


def _announced_apis(context: RequestContext) -> Iterator[tuple[int, int, int]]:
    """The APIs that the listener serves, with their first and last versions."""
    listener, broker = context.listener, context.services.broker
    extensions = () if broker is None else broker.extensions
    optional = {key for extension in extensions for key in extension.announced_apis()}
    is_own_client = (context.connection.client_software or "").startswith(_OWN_CLIENT)
    for key, route in sorted(ROUTES.items()):
        if not (route.api.is_of_kafka or is_own_client):
            continue
        if listener.kind in route.listeners and (key in optional or not route.is_optional):
            yield key, *route.announced_versions(listener.kind, unstable=listener.serves_unstable_versions)


def _finalized_features(context: RequestContext) -> dict[str, int]:
    """The finalized levels above 0, with that of the quorum's protocol, which is not in the image."""
    levels = context.image.features.finalized_versions()
    if context.controller.metadata.kraft_version > 0:
        levels[KRAFT_VERSION] = context.controller.metadata.kraft_version
    return levels
