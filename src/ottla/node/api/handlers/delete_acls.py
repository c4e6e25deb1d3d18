"""DeleteAcls: the ACLs that match a filter are deleted, and each filter's result lists them."""

from __future__ import annotations

from ottla.metadata.image.acl_filter import AclFilter
from ottla.node.api.context import ApiRequestContext
from ottla.node.network.connection import ProtocolViolation
from ottla.protocol.acl import AclOperation
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.delete_acls import (
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from ottla.runtime.steps import Steps


async def handle(context: ApiRequestContext, request: DeleteAclsRequest) -> DeleteAclsResponse:
    filters = await context.complete(_filters(request))
    context.require_of_cluster(AclOperation.ALTER)
    if context.services.node.authorizer is None:
        raise KafkaError(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")
    return await context.controller.control(lambda controller: controller.delete_acls(filters))


def _filters(request: DeleteAclsRequest) -> Steps[list[AclFilter]]:
    filters = []
    for each in request.filters:
        wanted = AclFilter(
            each.resource_type_filter,
            each.resource_name_filter,
            each.pattern_type_filter,
            each.principal_filter,
            each.host_filter,
            each.operation,
            each.permission_type,
        )
        if wanted.is_unknown:
            raise ProtocolViolation("its DeleteAcls request contains UNKNOWN elements")
        filters.append(wanted)
        yield
    return filters
