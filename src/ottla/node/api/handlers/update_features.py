"""UpdateFeatures: raise or lower feature levels of the cluster, all that are named or none.

Version 1 names the kind of downgrade and can only validate (KIP-778).
Version 2 has one result for all features.
"""

from __future__ import annotations

from ottla.node.api.context import ApiRequestContext
from ottla.protocol.acl import AclOperation
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.update_features import UpdateFeaturesRequest, UpdateFeaturesResponse


async def handle(context: ApiRequestContext, request: UpdateFeaturesRequest) -> UpdateFeaturesResponse:
    context.require_of_cluster(AclOperation.ALTER)
    response = await context.controller.control(
        lambda controller: controller.update_features(request, version=context.version)
    )
    if not response.error_code:
        response.error_message = None
        for result in response.results:
            result.error_message = ErrorCode.NONE.text
    return response
