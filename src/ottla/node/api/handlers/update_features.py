"""UpdateFeatures: raise or lower the cluster's feature levels, all of them or none.

Version 1 names the kind of downgrade and can only validate; 2 has one result for all features.
"""

from __future__ import annotations

from ottla.node.api.context import RequestContext
from ottla.protocol.acl import CLUSTER_NAME, AclOperation, ResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.update_features import UpdateFeaturesRequest, UpdateFeaturesResponse


async def handle(context: RequestContext, request: UpdateFeaturesRequest) -> UpdateFeaturesResponse:
    if not context.allowed(AclOperation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME):
        raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    response = await context.node.control(
        lambda controller: controller.update_features(request, version=context.version)
    )
    if not response.error_code:
        response.error_message = None
        for result in response.results:
            result.error_message = ErrorCode.NONE.text
    return response
